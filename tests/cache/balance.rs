//! The balance: which tokens decide it, and that it costs nothing if channels are alike.

use super::{attend, spec};
use crate::common::{Random, bits, four_bits};
use octaplex::cache::Center;
use octaplex::{Attend, Backend, CodecSpec, KvCache, LayerConfig, f16};

const DIM: usize = 64;
const TOKENS: usize = 400;

fn pages(cache: &KvCache) -> Vec<u8> {
    let layer = &cache.layers()[0];
    let mut bytes = Vec::new();
    for page in 0..layer.stats().paged_tokens / 64 {
        let from = bytes.len();
        layer.save_page(page, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
        // Without the fingerprint, the balance and the checksum, which a cache without balance does not have, and the
        // prefix centre between the heads' balances.
        let config = layer.config();
        let lean = matches!(config.keys, CodecSpec::TurboQuant(_) | CodecSpec::Trellis(_));
        let prefix = config.center == Center::Prefix || config.center == Center::Page && lean;
        let each = 2 * DIM * (usize::from(config.balance) + usize::from(prefix));
        bytes.drain(from..from + 16 + 2 * each);
        bytes.truncate(bytes.len() - 4);
    }
    bytes
}

/// Two heads: channels of the first are alike, of the second as `spread` says.
fn keys(spread: impl Fn(usize) -> f32, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut keys = random.gaussians(2 * TOKENS * DIM);
    for (i, x) in keys[TOKENS * DIM..].iter_mut().enumerate() {
        *x *= spread(i % DIM);
    }
    keys
}

fn filled(config: LayerConfig, keys: &[f32]) -> KvCache {
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    cache.append(0, keys, keys).unwrap();
    cache
}

#[test]
fn equal_channels_are_as_they_were_without_it() {
    for codec in ["turboquant", "trellis", "int", "hqmq"] {
        for center in [Center::Off, Center::Prefix, Center::Page] {
            for seed in 0..4 {
                let on = LayerConfig::new(2, DIM, 1000).keys(spec(codec)).center(center);
                assert!(on.balance, "it is the default");
                let off = on.balance(false);
                let keys = keys(|_| 3.0, seed);
                let (mut on, mut off) = (filled(on, &keys), filled(off, &keys));
                assert!(pages(&on) == pages(&off), "{codec}, {center:?}");
                assert_eq!(on.stats().balanced_heads, 0);
                let queries = Random::new(9).gaussians(4 * DIM);
                let outputs =
                    [&mut on, &mut off].map(|cache| bits(&attend(cache, &queries, &Attend::default())));
                assert_eq!(outputs[0], outputs[1], "{codec}, {center:?}");
            }
        }
    }
}

#[test]
fn a_large_channel_is_balanced() {
    let error = |balance: bool, calibrated: bool| {
        let config =
            four_bits(LayerConfig::new(2, DIM, 1000)).balance(balance).sink_tokens(0).recent_window(0);
        let keys = keys(|channel| if channel == 7 { 40.0 } else { 1.0 }, 3);
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        let query = Random::new(5).gaussians(DIM);
        if calibrated {
            let queries = Random::new(6).gaussians(2 * 100 * DIM);
            cache.calibrate(0, &keys, &queries).unwrap();
        }
        cache.append(0, &keys, &keys).unwrap();
        assert_eq!(cache.stats().balanced_heads, usize::from(balance), "the second of two");
        let mut scores = vec![0.0; cache.layers()[0].tokens()];
        cache.scores(0, 1, &query, &mut scores).unwrap();
        let exact: Vec<f64> =
            keys[TOKENS * DIM..].chunks_exact(DIM).map(|key| super::dot(&query, key)).collect();
        // Pages only: tokens outside of pages are exact.
        scores.iter().zip(&exact).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>()
    };
    let (off, on, calibrated) = (error(false, false), error(true, false), error(true, true));
    assert!(on < 0.3 * off && calibrated < 0.3 * off, "{off}, {on}, {calibrated}");
}

/// Rows of two heads whose channel c is ±`size(c)` in turns: that is its deviation, and its rms.
fn alternating(size: impl Fn(usize) -> f32, rows: usize) -> Vec<f32> {
    let value = |i: usize| if (i / DIM).is_multiple_of(2) { size(i % DIM) } else { -size(i % DIM) };
    (0..2 * rows * DIM).map(value).collect()
}

/// The balance of the first head.
fn balance(keys: &[f32], queries: &[f32]) -> Vec<f32> {
    let config = four_bits(LayerConfig::new(2, DIM, 1000));
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    if !queries.is_empty() {
        cache.calibrate(0, keys, queries).unwrap();
    }
    cache.append(0, keys, keys).unwrap();
    let mut bytes = Vec::new();
    cache.layers()[0].save_page(0, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
    let values = bytes[16..16 + 2 * DIM].as_chunks::<2>().0;
    values.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
}

#[test]
fn deviations_to_the_half_and_queries_to_three_eighths() {
    let (sigma, rms) = (|c| 1.0 + c as f32, |c| 0.1 + (c * 29 % DIM) as f32);
    let (keys, queries) = (alternating(sigma, TOKENS), alternating(rms, 64));
    for (queries, exponent) in [(&[][..], 0.0f32), (&queries, 0.375)] {
        for (c, s) in balance(&keys, queries).into_iter().enumerate() {
            let exact = sigma(c).sqrt() / rms(c).powf(exponent);
            assert!((s / exact - 1.0).abs() < 0.0006, "{exponent}, channel {c}: {s}, {exact}");
        }
    }
}

/// Deviations of two sizes, just below and just above what chance could show.
#[test]
fn small_differences_are_left_alone() {
    let keys = |ratio: f32| alternating(|c| if c < DIM / 2 { 1.0 } else { ratio }, TOKENS);
    let is_balanced = |balance: Vec<f32>| balance.iter().any(|s| *s != 1.0);
    // s is 1 or √ratio. These ratios put its squared coefficient of variation just below and above 4/(8·128), for the
    // first window's 128 keys.
    assert!(!is_balanced(balance(&keys(1.27), &[])) && is_balanced(balance(&keys(1.30), &[])));
    // Against 4·(1/(8·400) + 9/(128·64)).
    let queries = alternating(|_| 2.0, 64);
    assert!(!is_balanced(balance(&keys(1.32), &queries)) && is_balanced(balance(&keys(1.36), &queries)));
}

/// Queries attended in between, and how a prompt comes in, do not change a byte.
#[test]
fn the_balance_does_not_depend_on_append_sizes_or_queries() {
    let keys = keys(|channel| 1.0 + channel as f32, 4);
    let config = four_bits(LayerConfig::new(2, DIM, 1000)).center(Center::Prefix);
    let whole = filled(config, &keys);
    for step in [1, 7, 64, 131, 133] {
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        for from in (0..TOKENS).step_by(step) {
            let to = TOKENS.min(from + step);
            let rows: Vec<f32> = keys
                .chunks_exact(TOKENS * DIM)
                .flat_map(|head| &head[from * DIM..to * DIM])
                .copied()
                .collect();
            cache.append(0, &rows, &rows).unwrap();
            attend(&mut cache, &Random::new(from as u64).gaussians(4 * DIM), &Attend::default());
        }
        assert!(cache.save() == whole.save(), "{step} at a time");
    }
}

/// A few queries are too little data: the balance is that of the keys alone.
#[test]
fn thirty_two_queries_are_enough() {
    let keys = keys(|channel| 1.0 + channel as f32, 5);
    let config = four_bits(LayerConfig::new(2, DIM, 1000));
    let calibrated = |queries: usize| {
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.calibrate(0, &keys, &Random::new(8).gaussians(2 * queries * DIM)).unwrap();
        cache.save()
    };
    assert!(calibrated(0) == calibrated(31) && calibrated(31) != calibrated(32));
}
