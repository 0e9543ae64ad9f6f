//! Tests a codec of the caller's own whose blocks are a norm and planes. Caches keep its pages lean.

use crate::common::Random;
use octaplex::cache::LayerCache;
use octaplex::codecs::{Codec, Pages, PlaneRows, Planes};
use octaplex::{Backend, Error, LayerConfig, f16};

const DIM: usize = 32;

/// The largest magnitude in f16, then 4 bits a value.
struct Nibbles {
    lean: bool,
    /// The constant that [`Planes::encode_planes`] returns instead of each norm.
    norm: Option<f32>,
}

impl Nibbles {
    fn encode_row(&self, x: &[f32], planes: &mut [u8]) -> Result<f32, Error> {
        if let Some(index) = x.iter().position(|x| !x.is_finite()) {
            return Err(Error::NonFinite { index });
        }
        let norm = f16::from_f32(x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()))).to_f32();
        let code =
            |x: f32| if norm > 0.0 { (x / norm * 7.5 + 7.5).round().clamp(0.0, 15.0) as u8 } else { 8 };
        for (byte, pair) in planes.iter_mut().zip(x.chunks_exact(2)) {
            *byte = code(pair[0]) | code(pair[1]) << 4;
        }
        Ok(norm)
    }

    fn decode_row(planes: &[u8], norm: f32, x: &mut [f32]) {
        for (pair, byte) in x.chunks_exact_mut(2).zip(planes) {
            for (x, code) in pair.iter_mut().zip([byte & 15, byte >> 4]) {
                *x = norm * (f32::from(code) - 7.5) / 7.5;
            }
        }
    }
}

impl Codec for Nibbles {
    fn dim(&self) -> usize {
        DIM
    }

    fn block_bytes(&self) -> usize {
        2 + DIM / 2
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        let (head, planes) = block.split_at_mut(2);
        head.copy_from_slice(&f16::from_f32(self.encode_row(x, planes)?).to_le_bytes());
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        let norm = f16::from_le_bytes([block[0], block[1]]).to_f32();
        if !norm.is_finite() {
            return Err(Error::Corrupt { block: 0 });
        }
        Self::decode_row(&block[2..], norm, x);
        Ok(())
    }

    fn pages(&self) -> Pages<'_> {
        if self.lean { Pages::Lean(self) } else { Pages::Blocks }
    }
}

impl Planes for Nibbles {
    fn plane_bytes(&self) -> usize {
        DIM / 2
    }

    fn encode_planes(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error> {
        let rows = rows.chunks_exact(DIM).zip(planes.chunks_exact_mut(DIM / 2));
        for ((x, planes), norm) in rows.zip(norms) {
            let found = self.encode_row(x, planes)?;
            *norm = self.norm.unwrap_or(found);
        }
        Ok(())
    }

    fn decode_planes(&self, rows: &PlaneRows, row: usize, x: &mut [f32]) -> Result<(), Error> {
        assert!(row < rows.count());
        Self::decode_row(rows.planes(row), rows.norm(row), x);
        Ok(())
    }
}

const HEADS: usize = 2;
const TOKENS: usize = 300;

type Cache = LayerCache<Nibbles, Nibbles, Vec<u8>>;

fn cache(lean: bool, norm: Option<f32>) -> (Cache, Vec<f32>) {
    let config = LayerConfig::new(HEADS, DIM, 400);
    let codec = || Nibbles { lean, norm };
    let bytes = config.required_bytes_with(&codec(), &codec()).unwrap();
    let memory = vec![0; bytes];
    let cache = LayerCache::with_codecs(&config, codec(), codec(), Backend::detect(), memory).unwrap();
    (cache, vec![0.0; config.scratch_len(2 * HEADS)])
}

/// Rows of one token, heads first.
fn rows(random: &mut Random) -> Vec<f32> {
    let mut rows = random.gaussians(HEADS * TOKENS * DIM);
    // A constant channel, for the centre to take.
    rows.iter_mut().step_by(DIM).for_each(|x| *x += 4.0);
    rows
}

#[test]
fn pages_of_an_own_codec_are_lean() {
    let mut random = Random::new(31);
    let (k, v, queries) = (rows(&mut random), rows(&mut random), random.gaussians(2 * HEADS * DIM));
    let [lean, blocks] = [true, false].map(|lean| {
        let (mut cache, mut scratch) = cache(lean, None);
        cache.append(&k[..], &v[..], &mut scratch).unwrap();
        let mut output = vec![0.0; queries.len()];
        cache.attend(&queries, &mut output, &mut scratch).unwrap();
        for (head, (q, output)) in queries.chunks(DIM).zip(output.chunks(DIM)).enumerate() {
            let exact = exact(q, &k[head / 2 * TOKENS * DIM..], &v[head / 2 * TOKENS * DIM..]);
            let error = output.iter().zip(&exact).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(error < 0.05, "lean {lean}: {error}");
        }
        // Every token decodes near its input, in a page or not.
        let (mut key, mut value) = ([0.0; DIM], [0.0; DIM]);
        for (number, position) in cache.positions().enumerate() {
            cache.decode(1, number, &mut key, &mut value).unwrap();
            for (decoded, rows) in [(&key, &k), (&value, &v)] {
                let row = &rows[(TOKENS + position) * DIM..][..DIM];
                assert!(decoded.iter().zip(row).all(|(x, y)| (x - y).abs() < 0.6), "lean {lean}: {number}");
            }
        }
        cache.stats().paged_bytes
    });
    // Without their f16, and with 6 bits each and 3 bytes together; the centre is as before.
    let pages = 3;
    let saved = pages * HEADS * 2 * (2 * 64 - (3 + 6 * 64 / 8));
    assert_eq!(blocks - lean, saved);
}

fn exact(q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let rows = |x: &[f32]| x[..TOKENS * DIM].to_vec();
    let weights: Vec<f32> = rows(k).chunks(DIM).map(|k| (dot(q, k) / (DIM as f32).sqrt()).exp()).collect();
    let sum: f32 = weights.iter().sum();
    (0..DIM)
        .map(|i| weights.iter().zip(rows(v).chunks(DIM)).map(|(w, v)| w * v[i]).sum::<f32>() / sum)
        .collect()
}

/// A norm that no page can hold is an error, and the cache is as it was.
#[test]
fn norms_that_are_no_numbers_are_refused() {
    for norm in [f32::NAN, f32::INFINITY, 1e6] {
        let (mut cache, mut scratch) = cache(true, Some(norm));
        let k = rows(&mut Random::new(5));
        assert!(cache.append(&k[..], &k[..], &mut scratch).is_err(), "{norm}");
        assert_eq!(cache.stats().tokens, 0, "{norm}");
    }
}
