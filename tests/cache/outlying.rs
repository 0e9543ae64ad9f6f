//! A few huge values do not decide the balance, the grades or the prefix centre of a whole sequence.

use super::spec;
use crate::common::Random;
use octaplex::cache::Center;
use octaplex::chunk::{ChunkCodec, ChunkConfig};
use octaplex::{Backend, CodecSpec, KvCache, LayerConfig};

const DIM: usize = 64;
const TOKENS: usize = 700;
/// Tokens whose errors count: they are in pages that close after those that decide.
const LATER: core::ops::Range<usize> = 300..600;
const CODECS: [&str; 6] = ["graded", "trellis", "turboquant", "int", "hqmq", "octopus"];

fn config(keys: &str) -> LayerConfig {
    LayerConfig::new(1, DIM, 4096).keys(spec(keys)).values(CodecSpec::F32(Default::default()))
}

fn keys() -> Vec<f32> {
    let mut random = Random::new(11);
    (0..TOKENS * DIM)
        .map(|i| random.gaussian() * (1.0 + (i % DIM % 5) as f32) + (i % DIM) as f32 / 8.0)
        .collect()
}

/// The relative error of the later keys, without a constant channel.
fn error(config: LayerConfig, keys: &[f32], calibrate: bool) -> f64 {
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    if calibrate {
        cache.calibrate(0, keys, &keys[..200 * DIM]).unwrap();
    }
    cache.append(0, keys, keys).unwrap();
    let (mut errors, mut norms, mut row, mut value) = (0.0, 0.0, [0.0; DIM], [0.0; DIM]);
    for token in LATER {
        cache.layers()[0].decode(0, token, &mut row, &mut value).unwrap();
        for (a, b) in row.iter().zip(&keys[token * DIM..]) {
            errors += f64::from(a - b).powi(2);
            norms += f64::from(*b).powi(2);
        }
    }
    (errors / norms).sqrt()
}

/// Adds outlying values, which are (token, channel, value).
fn with(keys: &[f32], outlying: &[(usize, usize, f32)]) -> Vec<f32> {
    let mut keys = keys.to_vec();
    outlying.iter().for_each(|(token, channel, x)| keys[token * DIM + channel] = *x);
    keys
}

/// Keys, and outlying values among them.
type Case<'a> = (&'a [f32], &'a [(usize, usize, f32)]);

#[test]
fn outlying_values_do_not_decide_for_later_keys() {
    let plain = keys();
    let mut constant = keys();
    constant.iter_mut().skip(7).step_by(DIM).for_each(|x| *x = 2.5);
    let cases: [Case; 12] = [
        (&plain, &[(40, 7, 1000.0)]),
        (&plain, &[(40, 7, 20_000.0)]),
        (&plain, &[(40, 7, -20_000.0)]),
        (&plain, &[(4, 7, 20_000.0)]),
        (&plain, &[(2, 7, 20_000.0)]),
        (&plain, &[(100, 63, -20_000.0)]),
        (&plain, &[(40, 0, 20_000.0), (40, 7, -9000.0), (40, 33, 1000.0)]),
        (&plain, &[(40, 7, 20_000.0), (41, 7, 20_000.0)]),
        (&plain, &[(40, 7, 20_000.0), (90, 7, -1000.0)]),
        (&plain, &[(40, 7, 300.0), (41, 8, 300.0)]),
        (&constant, &[(40, 7, 20_000.0)]),
        (&constant, &[(100, 20, -20_000.0)]),
    ];
    for codec in CODECS {
        for (number, (keys, outlying)) in cases.into_iter().enumerate() {
            for center in [Center::Page, Center::Prefix] {
                for calibrate in [false, true] {
                    let config = config(codec).center(center);
                    let without = error(config, keys, calibrate);
                    let error = error(config, &with(keys, outlying), calibrate);
                    let what = format!("{codec}, case {number}, {center:?}, calibrated {calibrate}");
                    assert!(error < 1.1 * without, "{what}: {error} instead of {without}");
                }
            }
        }
    }
}

/// A query that is far from all others does not decide which channels count.
#[test]
fn an_outlying_query_does_not_decide() {
    let (keys, all) = (keys(), Random::new(12).gaussians(260 * DIM));
    let saved = |queries: &[f32]| {
        let mut cache = KvCache::new([config("graded")], Backend::detect()).unwrap();
        cache.calibrate(0, &keys, queries).unwrap();
        cache.append(0, &keys, &keys).unwrap();
        let (mut row, mut value, mut errors) = ([0.0; DIM], [0.0; DIM], 0.0);
        for token in LATER {
            cache.layers()[0].decode(0, token, &mut row, &mut value).unwrap();
            errors +=
                row.iter().zip(&keys[token * DIM..]).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        }
        errors.sqrt()
    };
    // Queries count 256 at a time: of 260, the last 4 are too few to tell.
    for (count, query, x) in
        [(200, 3, 20_000.0), (200, 199, -1000.0), (260, 258, 20_000.0), (257, 256, -9000.0)]
    {
        let queries = &all[..count * DIM];
        let (without, error) = (saved(queries), saved(&with(queries, &[(query, 9, x)])));
        assert!(error < 1.1 * without, "query {query} of {count}: {error} instead of {without}");
    }
}

/// A channel with many spikes is like that: its balance accounts for them.
#[test]
fn many_large_values_still_decide() {
    let plain = keys();
    let spikes: Vec<_> = (4..TOKENS).step_by(12).map(|token| (token, 7, 300.0)).collect();
    let keys = with(&plain, &spikes);
    let balanced = error(config("trellis"), &keys, false);
    let unbalanced = error(config("trellis").balance(false), &keys, false);
    assert!(balanced < unbalanced, "{balanced}, {unbalanced}");
}

/// The last page of a chunk may have too few rows to tell what is outlying.
#[test]
fn outlying_values_do_not_decide_for_a_chunk() {
    let plain = keys();
    let error = |tokens: usize, keys: &[f32]| {
        let keys = &keys[..tokens * DIM];
        let codec = ChunkCodec::new(ChunkConfig::new(1, 1, DIM), Backend::detect()).unwrap();
        let blob = codec.encode(&[keys, keys].concat()).unwrap();
        let mut decoded = vec![0.0f32; 2 * keys.len()];
        codec.decode(&blob, &mut decoded).unwrap();
        let later = 64 * DIM..512 * DIM;
        let pairs = decoded[later.clone()].iter().zip(&keys[later]);
        pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    for (tokens, at) in [(512, 40), (515, 513), (530, 520)] {
        let without = error(tokens, &plain);
        let with = error(tokens, &with(&plain, &[(at, 7, 20_000.0)]));
        assert!(with < 1.1 * without, "{tokens} tokens: {with} instead of {without}");
    }
}
