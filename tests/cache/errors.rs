//! Errors say what was expected and why, and leave everything as it was.

use super::spec;
use crate::common::Any;
use octaplex::cache::LayerCache;
use octaplex::codecs::HeadId;
use octaplex::{Attend, Backend, Error, KvCache, LayerConfig};

#[test]
fn errors_say_which_and_why() {
    let config = LayerConfig::new(2, 64, 1000).layer(3);
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    let rows = vec![0.5; 2 * 10 * 64];
    let mut bad = rows.clone();
    cache.append(0, &rows, &rows).unwrap();
    let mut output = vec![0.0; 8 * 64];
    let one = Attend::default();
    let three = one.queries(3);
    let small = LayerConfig::new(2, 64, 128);
    let mut said = vec![
        cache.append(0, &rows[..100], &rows),
        cache.append(0, &rows, &rows[..128]),
        cache.attend_with(0, &rows[..7 * 64], &one, &mut output),
        cache.attend_with(0, &rows[..7 * 64], &three, &mut output),
        cache.attend_with(0, &rows[..100], &one, &mut output),
        cache.attend_with(0, &rows[..4 * 64], &one, &mut output),
        KvCache::new([small], Backend::detect()).map(drop),
        cache.append(1, &rows, &rows),
        cache.scores(0, 2, &rows[..64], &mut output),
    ];
    bad[64 * 13 + 5] = f32::NAN;
    said.push(cache.append(0, &bad, &rows));
    said.push(cache.attend_with(0, &bad[..16 * 64], &one, &mut vec![0.0; 16 * 64]));
    bad[64 * 13 + 5] = -65520.0;
    said.push(cache.append(0, &rows, &bad));
    bad[64 * 13..][..64].fill(60_000.0);
    said.push(cache.append(0, &bad, &rows));
    bad[64 * 13 + 5] = 1e16;
    said.push(cache.attend_with(0, &bad[..16 * 64], &one, &mut vec![0.0; 16 * 64]));
    let three_rows = &bad[64 * 11..][..3 * 64];
    said.push(cache.scores(0, 1, three_rows, &mut output[..30]));
    let mut weights = [1.0; 20];
    weights[13] = 4_294_967_296.0;
    cache.accumulate(0, 1, &weights, &mut output[..2 * 64]).unwrap();
    weights[13] = 4_294_967_808.0;
    said.push(cache.accumulate(0, 1, &weights, &mut output[..2 * 64]));
    let mut bias = [f32::NEG_INFINITY; 40];
    bias[31] = 1e38;
    said.push(cache.attend_with(0, &rows[..4 * 64], &one.bias(&bias), &mut output[..4 * 64]));
    bias[31] = f32::INFINITY;
    said.push(cache.attend_with(0, &rows[..4 * 64], &one.bias(&bias), &mut output[..4 * 64]));
    let sinks = [0.0, 0.0, f32::NAN, 0.0];
    said.push(cache.attend_with(0, &rows[..4 * 64], &one.sink_logits(&sinks), &mut output[..4 * 64]));
    let said: Vec<String> = said.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    let expected = [
        "keys: 2 heads of width 64 take a multiple of 128 values, got 100",
        "values: 2 heads of width 64 with 10 rows each take 1280 values, got 128",
        "7 query heads are not a multiple of 2 key/value heads",
        "queries: 3 heads of width 64 take a multiple of 192 values, got 448",
        "queries: 1 heads of width 64 take a multiple of 64 values, got 100",
        "output: 4 heads of width 64 with 1 rows each take 256 values, got 512",
        "capacity 128 is too small: sinks 4 + window 64 + page 64 need 132",
        "layer 1 is out of range (0..1)",
        "head 2 is out of range (0..2)",
        "layer 3, keys: head 1, row 3, value 5 is NaN or infinite",
        "layer 3, queries: head 13, row 0, value 5 is NaN or infinite",
        "layer 3, values: head 1, row 3, value 5 is too large: f16 ends below 65520",
        "layer 3, keys: head 1, row 3, its norm is too large for the codec: f16 ends below 65520",
        "layer 3, queries: head 13, row 0, value 5 is too large: queries, and queries times the scale, must be below 2^50",
        "layer 3, queries: head 1, row 2, value 5 is too large: queries, and queries times the scale, must be below 2^50",
        "layer 3, weights: head 1, row 1, value 3 is too large: weights must be at most 2^32",
        "layer 3, bias: head 3, row 0, value 1 is too large: biases must be below 2^126",
        "layer 3, bias: head 3, row 0, value 1 is NaN or infinite",
        "layer 3, sink logits: head 2, row 0, value 0 is NaN or infinite",
    ];
    assert_eq!(said, expected);
    assert_eq!(cache.stats().tokens, 10);
}

/// Each call of a layer with arguments that it refuses, next to ones that it takes.
#[test]
fn a_layer_refuses_what_does_not_fit() {
    let (config, backend) = (LayerConfig::new(2, 64, 1000), Backend::detect());
    let codec = || Any::<64>::build(config.keys, backend, HeadId::default()).unwrap();
    for bad in [config.page(100), config.capacity(100)] {
        let mut memory = vec![0; 1 << 20];
        let made = LayerCache::<Any<64>, Any<64>, _>::new(&bad, backend, &mut memory[..]).map(drop);
        assert!(matches!(made, Err(Error::Unsupported { .. } | Error::Capacity { .. })), "{made:?}");
        let made = LayerCache::with_codecs(&bad, codec(), codec(), backend, &mut memory[..]).map(drop);
        assert!(matches!(made, Err(Error::Unsupported { .. } | Error::Capacity { .. })), "{made:?}");
    }
    let memory = vec![0; config.required_bytes()];
    let mut layer = LayerCache::<Any<64>, Any<64>, _>::new(&config, backend, memory).unwrap();
    let (rows, one) = (vec![0.5; 2 * 10 * 64], Attend::default());
    let mut scratch = vec![0.0; config.scratch_len(1)];
    let empty = layer.attend_with(&rows[..128], &one, &mut [0.0; 128], &mut scratch);
    assert_eq!(empty, Err(Error::Empty));
    let empty = layer.attend_with(&[f32::NAN; 128], &one, &mut [0.0; 128], &mut scratch);
    assert!(matches!(empty, Err(Error::Row { .. })), "{empty:?}");
    layer.append(&rows, &rows, &mut scratch).unwrap();
    let none = layer.attend_with(&rows[..128], &one.queries(0), &mut [0.0; 128], &mut scratch);
    assert!(matches!(none, Err(Error::Unsupported { .. })), "{none:?}");
    let missing = Err(Error::Missing { what: "head", number: 2, count: 2 });
    assert_eq!(layer.scores(2, &rows[..64], &mut [0.0; 10], &mut scratch), missing);
    assert_eq!(layer.accumulate(2, &[0.1; 10], &mut [0.0; 64], &mut scratch), missing);
    let length = Err(Error::Length { what: "values of rows", expected: 64, actual: 65 });
    assert_eq!(layer.scores(1, &rows[..65], &mut [0.0; 10], &mut scratch), length);
    assert_eq!(layer.accumulate(1, &[0.1; 10], &mut [0.0; 65], &mut scratch), length);
    // As much scratch as the error asks for is enough, one value less is not.
    let mut too_little = |call: &dyn Fn(&mut [f32]) -> Result<(), Error>| {
        let Err(Error::Length { what: "values of scratch", expected, actual: 0 }) = call(&mut []) else {
            panic!("no scratch is too little")
        };
        assert_eq!(call(&mut scratch[..expected]), Ok(()));
        let refused = Error::Length { what: "values of scratch", expected, actual: expected - 1 };
        assert_eq!(call(&mut scratch[..expected - 1]), Err(refused));
    };
    too_little(&|scratch| layer.attend_with(&rows[..128], &one, &mut [0.0; 128], scratch));
    too_little(&|scratch| layer.scores(1, &rows[..64], &mut [0.0; 10], scratch));
    too_little(&|scratch| layer.accumulate(1, &[0.1; 10], &mut [0.0; 64], scratch));
    let (mut key, mut value) = ([0.0; 64], [0.0; 64]);
    let missing = |what, number, count| Err(Error::Missing { what, number, count });
    assert_eq!(layer.decode(2, 9, &mut key, &mut value), missing("head", 2, 2));
    assert_eq!(layer.decode(1, 10, &mut key, &mut value), missing("token", 10, 10));
    assert_eq!(layer.decode(1, 9, &mut key, &mut value), Ok(()));
    let nan = [f32::NAN; 128];
    for (keys, queries) in [(&nan[..], &rows[..]), (&rows[..], &nan[..])] {
        let refused = layer.calibrate(keys, queries);
        assert!(matches!(refused, Err(Error::Row { finite: false, .. })), "{refused:?}");
    }
    // A page closes: without scratch no token gets in.
    let many = vec![0.5; 2 * 130 * 64];
    assert!(matches!(layer.append(&many, &many, &mut []), Err(Error::Length { .. })));
    assert_eq!(layer.tokens(), 10);

    // A snapshot with more tokens than fit.
    layer.append(&many, &many, &mut scratch).unwrap();
    let mut snapshot = Vec::new();
    layer.save(&mut |piece| snapshot.extend_from_slice(piece));
    for (capacity, found) in [(139, Err(Error::Full { capacity: 139, needed: 140 })), (140, Ok(()))] {
        let config = config.capacity(capacity);
        let memory = vec![0; config.required_bytes()];
        let mut other = LayerCache::<Any<64>, Any<64>, _>::new(&config, backend, memory).unwrap();
        assert_eq!(other.load(&snapshot), found);
    }
}

/// A block that no codec wrote, counted over all pages, wherever it is met; and no layer is cut where one cannot be.
#[test]
fn damaged_blocks_are_counted_over_all_pages() {
    let config = LayerConfig::new(1, 32, 700)
        .recent_window(0)
        .sink_tokens(0)
        .max_rollback(0)
        .balance(false)
        .keys(spec("int"))
        .values(spec("int:bits=3"));
    for damaged_values in [false, true] {
        let mut cache = KvCache::new([config, config], Backend::detect()).unwrap();
        let rows: Vec<f32> = (0..192 * 32).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
        for layer in 0..2 {
            for page in rows.chunks_exact(64 * 32) {
                cache.append(layer, page, page).unwrap();
            }
        }
        let mut damaged = KvCache::new([config, config], Backend::detect()).unwrap();
        for layer in 0..2 {
            for page in 0..3 {
                let mut bytes = Vec::new();
                cache.layers()[layer].save_page(page, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
                if (layer, page) == (1, 1) {
                    // Magic, version, fingerprint, the page's header: then key blocks, value blocks.
                    let (key, value) = (config.keys.block_bytes(32), config.values.block_bytes(32));
                    let (start, block) =
                        if damaged_values { (16 + 8 + 64 * key, value) } else { (16 + 8, key) };
                    bytes[start + 5 * block..][..block].fill(0xff);
                    let end = bytes.len() - 4;
                    let crc = crate::snapshot::crc32(&bytes[..end]);
                    bytes[end..].copy_from_slice(&crc.to_le_bytes());
                }
                damaged.layer_mut(layer).unwrap().load_page(&bytes).unwrap();
            }
        }
        let corrupt = Err(Error::Corrupt { block: 64 + 5 });
        let (mut output, query) = (vec![0.0; 32], vec![0.1; 32]);
        assert_eq!(damaged.attend(1, &query, &mut output), corrupt);
        let scores = damaged.scores(1, 0, &query, &mut [0.0; 192]);
        assert_eq!(scores, if damaged_values { Ok(()) } else { corrupt });
        let sums = damaged.accumulate(1, 0, &[0.1; 192], &mut output);
        assert_eq!(sums, if damaged_values { corrupt } else { Ok(()) });
        let before = damaged.save();
        assert_eq!(damaged.truncate(100), corrupt);
        assert!(damaged.save() == before, "one layer was cut and the other not");
        // Tokens before the damaged one can be had.
        damaged.truncate(64 + 5).unwrap();
        assert_eq!(damaged.layers()[0].next_position(), 69);
    }
}
