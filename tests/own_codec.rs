//! Tests a codec of the caller's own, int8 with an f32 scale: through the trait, through `Typed`, and in caches.

use crate::common::{Random, Steps, bits, four_bits};
use octaplex::cache::LayerCache;
use octaplex::codecs::{Codec, Typed};
use octaplex::{Backend, Error, LayerConfig};

/// Scale, then a byte a value. Decoding is all it can do: scores and sums are the trait's.
struct Plain {
    dim: usize,
}

impl Codec for Plain {
    fn dim(&self) -> usize {
        self.dim
    }

    fn block_bytes(&self) -> usize {
        4 + self.dim
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        if let Some(index) = x.iter().position(|x| !x.is_finite()) {
            return Err(Error::NonFinite { index });
        }
        let scale = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) / 127.0;
        block[..4].copy_from_slice(&scale.to_le_bytes());
        for (byte, x) in block[4..].iter_mut().zip(x) {
            *byte = if scale > 0.0 { (x / scale).round() as i8 as u8 } else { 0 };
        }
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        if !scale.is_finite() {
            return Err(Error::Corrupt { block: 0 });
        }
        block[4..].iter().zip(x).for_each(|(byte, x)| *x = f32::from(*byte as i8) * scale);
        Ok(())
    }
}

/// The same codec in a basis of its own: every value is negated, and two queries' words carry a mark. It is a rotating codec in
/// one line.
struct Mirrored(Plain);

const MARK: f32 = 77.0;

impl Codec for Mirrored {
    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        self.0.encode(&x.iter().map(|x| -x).collect::<Vec<_>>(), block)
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        self.0.decode(block, x)?;
        self.finish(x);
        Ok(())
    }

    fn query_len(&self) -> usize {
        self.dim() + 1
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        query[0] = MARK;
        query[1..].iter_mut().zip(q).for_each(|(query, q)| *query = -q);
        Ok(())
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        assert!(queries.iter().all(|query| query[0] == MARK));
        let queries: Vec<&[f32]> = queries.iter().map(|query| &query[1..]).collect();
        self.0.score(&queries, blocks, scores)
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        self.0.accumulate(weights, blocks, acc)
    }

    fn finish(&self, acc: &mut [f32]) {
        acc.iter_mut().for_each(|x| *x = -*x);
    }
}

fn codecs(dim: usize) -> [Box<dyn Codec>; 2] {
    [Box::new(Plain { dim }), Box::new(Mirrored(Plain { dim }))]
}

/// Checks the laws that `tests/properties.rs` checks for the library's codecs.
#[test]
fn the_trait_defaults_keep_its_promises() {
    let mut random = Random::new(1);
    for dim in [3, 32, 45, 576] {
        for codec in codecs(dim) {
            let (rows, bytes) = (random.gaussians(12 * dim), codec.block_bytes());
            let page = codec.page(&rows).unwrap();
            let mut decoded = vec![0.0; rows.len()];
            codec.decode_page(&page, &mut decoded).unwrap();
            let error: f32 = rows.iter().zip(&decoded).map(|(x, y)| (x - y).powi(2)).sum();
            assert!(error < 1e-3 * rows.iter().map(|x| x * x).sum::<f32>());

            // Ten queries at once and one by one; scores are products with decoded rows.
            let mut scores = vec![0.0; 10 * 12];
            codec.prepare_and_score(&rows[..10 * dim], &page, &mut scores).unwrap();
            for (q, scores) in rows.chunks_exact(dim).zip(scores.chunks_exact(12)) {
                let mut alone = vec![0.0; 12];
                codec.prepare_and_score(q, &page, &mut alone).unwrap();
                assert_eq!(bits(scores), bits(&alone));
                for (score, x) in scores.iter().zip(decoded.chunks_exact(dim)) {
                    let product: f32 = q.iter().zip(x).map(|(q, x)| q * x).sum();
                    assert!((score - product).abs() < 1e-2, "{score} {product}");
                }
            }

            // Sums, a page at once and in two.
            let (mut whole, mut halves) = (vec![0.0; 2 * dim], vec![0.0; 2 * dim]);
            codec.accumulate(&rows[..24], &page, &mut whole).unwrap();
            for half in [0..6, 6..12] {
                let weights = [&rows[half.start..half.end], &rows[12 + half.start..12 + half.end]].concat();
                codec.accumulate(&weights, &page[half.start * bytes..half.end * bytes], &mut halves).unwrap();
            }
            assert_eq!(bits(&whole), bits(&halves));
            codec.finish(&mut whole);
            for (weights, sum) in rows[..24].chunks_exact(12).zip(whole.chunks_exact(dim)) {
                for (i, sum) in sum.iter().enumerate() {
                    let expected: f32 = (0..12).map(|row| weights[row] * decoded[row * dim + i]).sum();
                    assert!((sum - expected).abs() < 1e-3);
                }
            }
        }
    }
}

#[test]
fn what_is_wrong_is_an_error_and_changes_nothing() {
    let prepare = |value| Plain { dim: 32 }.prepare_query(&[value; 32], &mut [0.0; 32]);
    assert_eq!(prepare(f32::NAN), Err(Error::NonFinite { index: 0 }));
    assert_eq!(prepare(2f32.powi(58)), Err(Error::Overflow));
    assert_eq!(prepare(2f32.powi(58).next_down()), Ok(()));
    let mut random = Random::new(2);
    for codec in codecs(32) {
        let mut rows = random.gaussians(8 * 32);
        let mut page = codec.page(&rows).unwrap();
        let length = |result: Result<(), Error>| matches!(result, Err(Error::Length { .. }));
        let (mut scores, mut sums) = ([7.0; 8], [7.0; 32]);
        assert!(length(codec.prepare_and_score(&rows[..32], &page[1..], &mut scores)));
        assert!(length(codec.prepare_and_score(&rows[..32], &page, &mut scores[1..])));
        assert!(length(codec.accumulate(&[1.0; 7], &page, &mut sums)));
        assert!(length(codec.accumulate(&[1.0; 8], &page, &mut sums[1..])));
        assert_eq!(codec.accumulate(&[f32::NAN; 8], &page, &mut sums), Err(Error::NonFinite { index: 0 }));
        assert_eq!(codec.accumulate(&[1e10; 8], &page, &mut sums), Err(Error::Weight { index: 0 }));
        page[5 * 36..][..4].fill(0xff);
        let corrupt = Err(Error::Corrupt { block: 5 });
        assert_eq!(codec.prepare_and_score(&rows[..32], &page, &mut scores), corrupt);
        assert_eq!(codec.accumulate(&[1.0; 8], &page, &mut sums), corrupt);
        let mut decoded = [7.0; 8 * 32];
        assert_eq!(codec.decode_page(&page, &mut decoded), corrupt);
        assert!(scores.iter().chain(&sums).chain(&decoded).all(|x| *x == 7.0));
        rows[6 * 32 + 1] = f32::NAN;
        let mut untouched = page.clone();
        assert_eq!(codec.encode_page(&rows, &mut untouched), Err(Error::NonFinite { index: 6 * 32 + 1 }));
        assert!(untouched == page);
    }
}

#[test]
fn typed_codecs_take_arrays() {
    let codec = Typed::<_, 32>::new_with(Mirrored(Plain { dim: 32 })).unwrap();
    let mut page = [0; 2 * 36];
    codec.encode_page(&[[0.5; 32], [1.0; 32]], &mut page).unwrap();
    let query = codec.prepare_query(&[1.0; 32]).unwrap();
    let mut scores = [0.0; 20 * 2];
    codec.score(&vec![query; 20], &page, &mut scores).unwrap();
    assert!(scores.chunks(2).all(|two| (two[0] - 16.0).abs() < 0.1 && (two[1] - 32.0).abs() < 0.1));
    let wrong = Typed::<_, 64>::new_with(Plain { dim: 32 }).map(drop);
    assert_eq!(wrong, Err(Error::Width { actual: 32 }));
}

/// A layer with keys in one and values in the other codec: its attention is near the exact one.
#[test]
fn a_cache_in_given_bytes_takes_it() {
    let config = four_bits(LayerConfig::new(2, 32, 400));
    let [keys, values] = codecs(32);
    let bytes = config.required_bytes_with(&*keys, &*values).unwrap();
    assert!(bytes > config.required_bytes(), "eight bits take more than four");
    let short = LayerCache::with_codecs(&config, &*keys, &*values, Backend::detect(), vec![0; bytes - 1]);
    assert!(matches!(short, Err(Error::Length { .. })));
    let mut cache =
        LayerCache::with_codecs(&config, &*keys, &*values, Backend::detect(), vec![0; bytes]).unwrap();
    let mut random = Random::new(3);
    let mut scratch = vec![0.0; config.scratch_len(4)];
    let (k, v) = (random.gaussians(2 * 300 * 32), random.gaussians(2 * 300 * 32));
    cache.append(&k[..], &v[..], &mut scratch).unwrap();
    assert!(cache.stats().paged_tokens >= 128);
    let (queries, mut output) = (random.gaussians(4 * 32), vec![0.0; 4 * 32]);
    cache.attend(&queries, &mut output, &mut scratch).unwrap();
    for (head, (q, output)) in queries.chunks(32).zip(output.chunks(32)).enumerate() {
        let rows = |x: &[f32]| x[head / 2 * 300 * 32..][..300 * 32].to_vec();
        let (k, v) = (rows(&k), rows(&v));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let weights: Vec<f32> = k.chunks(32).map(|k| (dot(q, k) / 32f32.sqrt()).exp()).collect();
        let sum: f32 = weights.iter().sum();
        for (i, output) in output.iter().enumerate() {
            let exact: f32 = weights.iter().zip(v.chunks(32)).map(|(w, v)| w * v[i]).sum::<f32>() / sum;
            assert!((output - exact).abs() < 0.02, "{output} {exact}");
        }
    }

    // The layer says that it has no snapshot: no bytes could name its codecs.
    let mut snapshot = Vec::new();
    cache.save(&mut |piece| snapshot.extend_from_slice(piece));
    assert!(matches!(cache.load(&snapshot), Err(Error::Unsupported { .. })));
    assert!(matches!(cache.load_page(&snapshot), Err(Error::Unsupported { .. })));
    let mut named = LayerCache::<octaplex::codecs::TurboQuant<32>, octaplex::codecs::TurboQuant<32>, _>::new(
        &config,
        Backend::detect(),
        vec![0; config.required_bytes()],
    )
    .unwrap();
    assert!(matches!(named.load(&snapshot), Err(Error::Snapshot { .. })));
    assert!(cache.save_page(0, &mut |_| {}).is_err());
    let other = LayerConfig::new(1, 64, 400);
    let wrong = LayerCache::with_codecs(&other, &*keys, &*values, Backend::detect(), vec![0; 1 << 20]);
    assert_eq!(wrong.map(drop), Err(Error::Width { actual: 32 }));
}

#[test]
fn a_cache_with_other_codecs_than_its_configuration_is_refused() {
    let config = LayerConfig::new(1, 32, 400);
    let memory = vec![0; config.required_bytes()];
    let wrong = LayerCache::<octaplex::codecs::Trellis<32>, octaplex::codecs::TurboQuant<32>, _>::new(
        &config,
        Backend::detect(),
        memory,
    );
    assert!(matches!(wrong.map(drop), Err(Error::Unsupported { .. })));
}

#[cfg(feature = "alloc")]
#[test]
fn a_cache_on_the_heap_takes_it() {
    use octaplex::KvCache;
    use octaplex::cache::SharedLayer;
    use octaplex::chunk::{ChunkCodec, ChunkConfig};
    use std::sync::Arc;

    let config = LayerConfig::new(1, 32, 400);
    let codec: Arc<dyn Codec> = Arc::new(Plain { dim: 32 });
    let layer = SharedLayer::on_heap_with(&config, codec.clone(), codec, Backend::detect()).unwrap();
    let mut cache = KvCache::from_layers(vec![layer]);
    cache.append(0, &[0.5; 300 * 32][..], &[0.25; 300 * 32][..]).unwrap();
    let fork = cache.fork();
    let mut output = [0.0; 32];
    fork.attend(0, &[0.1; 32], &mut output).unwrap();
    assert!(output.iter().all(|x| (x - 0.25).abs() < 0.01), "{output:?}");
    assert!(KvCache::load(&cache.save(), Backend::detect()).is_err());
    let chunks = ChunkCodec::new(ChunkConfig::new(1, 1, 32), Backend::detect()).unwrap();
    let chunk = chunks.encode(&[0.5; 2 * 130 * 32]).unwrap();
    assert!(matches!(cache.append_chunk(&chunk), Err(Error::Unsupported { .. })));
}
