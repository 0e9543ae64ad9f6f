//! Refusals of a cache: when they come, and that the cache stays as it was.

use super::{attend, spec};
use crate::common::{Any, Random, bits, four_bits};
use octaplex::cache::{Center, LayerCache, SharedLayer};
use octaplex::codecs::{Codec, HeadId};
use octaplex::{Attend, Backend, CacheConfig, Error, KvCache, LayerConfig, f16};

#[test]
fn bad_input_changes_nothing() {
    let config = LayerConfig::new(2, 64, 300);
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    let mut random = Random::new(2);
    let rows = random.gaussians(2 * 250 * 64);
    let queries = random.gaussians(2 * 64);
    assert_eq!(cache.attend(0, &queries, &mut [0.0; 128]), Err(Error::Empty));
    cache.append(0, &rows, &rows).unwrap();
    let before = bits(&attend(&mut cache, &queries, &Attend::default()));
    let stats = cache.stats();

    let mut bad = random.gaussians(2 * 30 * 64);
    let good = bad.clone();
    bad[1000] = f32::NAN;
    let row = |what, finite| Error::Row { layer: 0, what, head: 0, row: 15, channel: Some(40), finite };
    assert_eq!(cache.append(0, &bad, &good), Err(row("keys", false)));
    assert_eq!(cache.append(0, &good, &bad), Err(row("values", false)));
    bad[1000] = 65520.0;
    assert_eq!(cache.append(0, &bad, &good), Err(row("keys", true)));
    assert_eq!(cache.append(0, &good, &bad), Err(row("values", true)));
    // A key that f16 holds, with a norm that it does not.
    bad[1000..1100].fill(60000.0);
    bad.iter_mut().skip(1).step_by(2).for_each(|x| *x = -*x);
    let norm = Error::Row { layer: 0, what: "keys", head: 0, row: 15, channel: None, finite: true };
    assert_eq!(cache.append(0, &bad, &good), Err(norm));
    let many = random.gaussians(2 * 51 * 64);
    assert_eq!(cache.append(0, &many, &many), Err(Error::Full { capacity: 300, needed: 301 }));
    assert!(matches!(cache.append(0, &good[1..], &good), Err(Error::Rows { .. })));
    assert!(matches!(cache.append(0, &good, &many), Err(Error::Rows { .. })));
    assert_eq!(cache.append(1, &good, &good), Err(Error::Missing { what: "layer", number: 1, count: 1 }));
    let bad_query = vec![f32::INFINITY; 128];
    let refused = cache.attend(0, &bad_query, &mut [0.0; 128]);
    assert!(matches!(refused, Err(Error::Row { what: "queries", head: 0, row: 0, channel: Some(0), .. })));
    for options in [
        Attend::default().queries(2),
        Attend::default().scale(f32::NAN),
        Attend::default().soft_cap(-1.0),
        Attend::default().sink_logits(&[1.0]),
        Attend::default().bias(&[1.0]),
        Attend::default().window(0),
        Attend::default().heads(0),
        Attend::default().heads(3),
        Attend::default().first_head(2),
        Attend::default().first_head(usize::MAX).heads(1),
    ] {
        assert!(cache.attend_with(0, &queries, &options, &mut [0.0; 128]).is_err(), "{options:?}");
    }
    assert_eq!(before, bits(&attend(&mut cache, &queries, &Attend::default())));
    assert_eq!(stats, cache.stats());

    for bad in [
        config.page(100),
        config.kv_heads(0),
        config.capacity(100),
        config.key_dim(65),
        config.sliding_window(0),
        config.keys(spec("int:group=64")).key_dim(96),
    ] {
        assert!(KvCache::new([bad], Backend::detect()).is_err(), "{bad:?}");
        assert_eq!((bad.required_bytes(), bad.scratch_len(4)), (0, 0), "{bad:?}");
    }
    for bad in [
        config.page(0),
        config.kv_heads(usize::MAX),
        config.recent_window(usize::MAX),
        config.key_dim(usize::MAX),
        #[cfg(target_pointer_width = "64")] // 2^32 tokens are no more than a layer may have
        config.capacity(usize::MAX),
    ] {
        assert!(KvCache::new([bad], Backend::detect()).is_err(), "{bad:?}");
        assert_eq!((bad.required_bytes(), bad.scratch_len(4)), (0, 0), "{bad:?}");
    }
}

/// If `append` takes a token, its page can be encoded. So no later token is refused because of an earlier one.
#[test]
fn keys_are_refused_when_they_come_or_never() {
    let one = |value: f32| {
        let mut row = [0.0; 64];
        row[5] = value;
        row
    };
    for balance in [false, true] {
        for center in [Center::Off, Center::Prefix, Center::Page] {
            for keys in ["turboquant", "int:bits=2", "hqmq:s=24,r=3", "trellis:m=1,states=4"] {
                let config = LayerConfig::new(1, 64, 1000)
                    .keys(spec(keys))
                    .values(spec("f16"))
                    .center(center)
                    .balance(balance)
                    .recent_window(16);
                let mut cache = KvCache::new([config], Backend::detect()).unwrap();
                // Keys that hardly vary in one channel, which queries find important: divided by 2⁻⁸.
                if balance {
                    let keys: Vec<f32> =
                        (0..128 * 64).map(|i| [1.0, -1.0][i % 7 % 2] * (i % 64 != 5) as u8 as f32).collect();
                    cache.calibrate(0, &keys, &[30.0; 64 * 64]).unwrap();
                }
                let mut refused = 0;
                for token in 0..400 {
                    let value = match token % 40 {
                        _ if token < 100 => 30.0 + token as f32 / 4096.0,
                        39 => [20_000.0, 31_000.0, -31_000.0, 50_000.0, 65_000.0][token / 40 % 5],
                        n => 300.0 * (n as f32 - 20.0),
                    };
                    let before = cache.stats();
                    if let Err(error) = cache.append(0, &one(value), &[1.0; 64]) {
                        assert!(matches!(error, Error::Row { what: "keys", row: 0, .. }), "{error}");
                        assert_eq!(cache.stats(), before);
                        refused += 1;
                        // Tokens that only close pages are never refused.
                        cache.append(0, &one(30.0), &[1.0; 64]).unwrap_or_else(|error| {
                            panic!("{keys}, {center:?}, balance {balance}, token {token}: {error}")
                        });
                    }
                }
                assert!(cache.stats().paged_tokens >= 300 && refused < 400, "{keys}: {refused}");
                let output = attend(&mut cache, &[0.1; 64], &Attend::default());
                assert!(output.iter().all(|x| (x - 1.0).abs() < 1e-3), "{keys}: {output:?}");
            }
        }
    }
}

#[test]
fn a_refused_page_leaves_a_full_sliding_layer_as_it_was() {
    // Four pages see all of the window, and a fifth does not fit.
    let config = four_bits(LayerConfig::new(1, 32, 319))
        .layer(7)
        .recent_window(0)
        .sink_tokens(0)
        .sliding_window(256)
        .max_rollback(0)
        .balance(false);
    // Every key alone can be encoded, even at twice its length. Minus the page's mean, the last key is one large
    // coordinate in the rotated basis. Its code is clipped, and the gain that compensates pushes the norm beyond f16.
    let codec =
        Any::<32>::build(config.keys, Backend::detect(), HeadId { layer: 7, ..HeadId::default() }).unwrap();
    let key = |sign: f32| {
        let mut key = [4243.0; 32];
        key[0] = sign * 18_000.0;
        codec.finish(&mut key);
        key
    };
    let mut scratch = vec![0.0; config.scratch_len(1)];
    let memory = vec![0; config.required_bytes()];
    let mut cache = LayerCache::<Any<32>, Any<32>, _>::new(&config, Backend::detect(), memory).unwrap();
    for token in 0..319 {
        let sign = if token == 318 { -1.0 } else { 1.0 };
        cache.append(&key(sign), &[token as f32; 32], &mut scratch).unwrap();
    }
    let mut before = Vec::new();
    cache.save(&mut |piece| before.extend_from_slice(piece));
    let refused = cache.append(&key(1.0), &[0.0; 32], &mut scratch).unwrap_err();
    let expected = Error::Page { layer: 7, what: "keys", head: 0, position: 256, row: Some(62) };
    assert_eq!(refused, expected);
    assert_eq!(
        refused.to_string(),
        "layer 7, keys: head 0, the page that begins at position 256 cannot close: row 62 (minus the page's mean \
         if keys are centred) is too large for the codec (f16 ends below 65520)"
    );
    let mut after = Vec::new();
    cache.save(&mut |piece| after.extend_from_slice(piece));
    assert!(before == after, "the refused append changed the cache");
}

/// Memory that no machine has is an error and does not end the program, for one layer and for all layers together.
#[test]
fn memory_that_nobody_has_is_refused() {
    let config = LayerConfig::new(1, 64, 1 << 40);
    let long = config.kv_heads(1 << 16).recent_window(1 << 24).max_rollback(1 << 24);
    let memory = |refused: Result<(), Error>| match refused {
        Err(Error::Memory { what, bytes }) => (what, bytes > 1 << 47),
        other => panic!("{other:?}"),
    };
    let backend = Backend::detect();
    assert_eq!(memory(KvCache::new([long], backend).map(drop)), ("the exact tokens of all layers", true));
    assert_eq!(memory(SharedLayer::on_heap(&long, backend).map(drop)), ("the exact tokens of a layer", true));
    // Layer by layer each could be had, as memory is given before it is used. All of them take more than the addresses of a
    // process (128 TiB), so they are refused also where the system promises any amount.
    let some = config.recent_window(1 << 23).layer(3);
    assert!(SharedLayer::on_heap(&some, backend).is_ok());
    let many = KvCache::new((0..1 << 16).map(|number| some.layer(number)), backend).map(drop);
    assert!(matches!(many, Err(Error::Memory { .. })));
    for layers in [0, (1 << 16) + 1, usize::MAX] {
        let refused = KvCache::new(CacheConfig::new(layers, 1, 64, 1000).layers(), backend).map(drop);
        assert_eq!(refused, Err(Error::Unsupported { why: "a cache has 1 to 65,536 layers" }));
    }
    let words = Error::Memory { what: "a test", bytes: 7 }.to_string();
    assert_eq!(words, "cannot allocate 7 bytes for a test");
}

/// A codec that refuses norms of 1024 and more, the lowest limit that a codec may have.
#[derive(Clone)]
struct Strict;

impl Codec for Strict {
    fn dim(&self) -> usize {
        64
    }

    fn block_bytes(&self) -> usize {
        256
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        if x.iter().map(|x| x * x).sum::<f32>() >= 1024.0 * 1024.0 {
            return Err(Error::Overflow);
        }
        block.as_chunks_mut::<4>().0.iter_mut().zip(x).for_each(|(bytes, x)| *bytes = x.to_le_bytes());
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        x.iter_mut().zip(block.as_chunks::<4>().0).for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
        Ok(())
    }
}

/// Rows are stored in f16. A row that is shorter than the bound, but longer in f16, is refused when it comes.
#[test]
fn rows_that_f16_makes_too_long_are_refused_when_they_come() {
    // 64 such values are a norm of 1023.84, and 1024 in f16; half of it where keys are centred.
    for (center, x) in [(Center::Off, 127.98f32), (Center::Page, 63.99)] {
        let config = LayerConfig::new(1, 64, 500).center(center).balance(false);
        let mut memory = vec![0; config.required_bytes_with(&Strict, &Strict).unwrap()];
        let mut scratch = vec![0.0; config.scratch_len(1) + 1000];
        let backend = Backend::detect();
        let mut cache = LayerCache::with_codecs(&config, Strict, Strict, backend, &mut memory[..]).unwrap();
        let fine = [1.0; 64];
        assert!(
            [x; 64].iter().map(|x| x * x).sum::<f32>() < (64.0 * f16::from_f32(x).to_f32().powi(2)) - 1.0
        );
        let key = cache.append(&[x; 64], &fine, &mut scratch);
        assert!(matches!(key, Err(Error::Row { what: "keys", channel: None, .. })), "{center:?}: {key:?}");
        let value = cache.append(&fine, &[127.98; 64], &mut scratch);
        assert!(matches!(value, Err(Error::Row { what: "values", channel: None, .. })), "{value:?}");
        assert_eq!(cache.tokens(), 0);
    }
}
