//! Runs random operations on a cache of a million tokens for some time: `ci/soak.sh SECONDS`. They are appends, rollbacks,
//! evictions, forks, saves and loads. After each, the process's memory is measured. After every fourth, attention is
//! compared with a model that generates the rows again.
#![cfg(all(feature = "alloc", target_os = "linux"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::Random;
use octaplex::{Backend, Error, KvCache, LayerConfig, f16};
use std::time::{Duration, Instant};

const DIM: usize = 32;
const CAPACITY: usize = 1 << 20;

/// A token of the model: its position, and the number that generates its rows.
type Token = (usize, u64);

/// A row in sixteenths, exact in f16.
fn row(seed: u64) -> [f32; DIM] {
    let mut state = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    core::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f16::from_f32((state >> 58) as f32 / 16.0 - 2.0).to_f32()
    })
}

/// Attention in f64, one pass: the largest logit is at most 32·4/√32.
fn attend(tokens: &[Token], query: &[f32; DIM]) -> [f32; DIM] {
    let (mut total, mut sums) = (0.0, [0f64; DIM]);
    for (_, seed) in tokens {
        let dot: f64 = row(*seed).iter().zip(query).map(|(k, q)| f64::from(k * q)).sum();
        let weight = (dot / (DIM as f64).sqrt() - 22.7).exp();
        total += weight;
        sums.iter_mut().zip(row(!seed)).for_each(|(sum, v)| *sum += weight * f64::from(v));
    }
    sums.map(|sum| (sum / total) as f32)
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
}

#[test]
#[ignore = "ci/soak.sh runs it for a given time"]
fn a_million_tokens() {
    let seconds = std::env::var("OCTAPLEX_SOAK_SECONDS").map_or(10, |seconds| seconds.parse().unwrap());
    let mut config = LayerConfig::new(1, DIM, CAPACITY);
    (config.keys, config.values) = ("int:bits=8,group=16".parse().unwrap(), "f16".parse().unwrap());
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    let (mut tokens, mut next, mut seed) = (Vec::<Token>::new(), 0, 1);
    let mut append = |cache: &mut KvCache, tokens: &mut Vec<Token>, next: &mut usize, count: usize| {
        let rows = |flip: u64| -> Vec<f32> {
            (seed..seed + count as u64).flat_map(|seed| row(seed ^ flip)).collect()
        };
        let appended = cache.append(0, &rows(0), &rows(u64::MAX));
        if appended.is_ok() {
            tokens.extend((0..count).map(|i| (*next + i, seed + i as u64)));
            *next += count;
        }
        seed += count as u64;
        appended
    };
    while tokens.len() < 1_000_000 {
        append(&mut cache, &mut tokens, &mut next, 50_000).unwrap();
    }
    let (mut random, mut counts, mut fork) =
        (Random::new(77), [0usize; 6], None::<(KvCache, Vec<Token>, usize)>);
    let (mut first, mut most, mut worst, start) = (0, 0, 0f32, Instant::now());
    let mut operations = 0usize;
    while start.elapsed() < Duration::from_secs(seconds) {
        let operation = random.below(6);
        counts[operation] += 1;
        match operation {
            0 => {
                let count = [1, 70, 3000, 20_000][random.below(4)];
                if let Err(error) = append(&mut cache, &mut tokens, &mut next, count) {
                    assert!(matches!(error, Error::Full { .. }), "{error}");
                    assert!(tokens.len() + count > CAPACITY - 64, "{error} at {} tokens", tokens.len());
                }
            }
            1 => {
                let back = [1, 60, 5000][random.below(3)];
                next = next.saturating_sub(back);
                cache.truncate(next).unwrap();
                tokens.retain(|token| token.0 < next);
            }
            2 => {
                let from = random.below(next);
                let range = from..from + random.below(20_000);
                let dropped = cache.evict(range.clone());
                assert!(dropped.is_multiple_of(config.page), "{dropped} tokens are no whole pages");
                let held: Vec<usize> = cache.layers()[0].positions().collect();
                let before = tokens.len();
                tokens.retain(|(position, _)| {
                    let kept = held.binary_search(position).is_ok();
                    assert!(kept || range.contains(position), "{position} is gone, not of {range:?}");
                    kept
                });
                assert_eq!(before - tokens.len(), dropped);
            }
            // One fork at a time: to and fro.
            3 => match fork.take() {
                Some(other) => (cache, tokens, next) = other,
                None => fork = Some((cache.fork(), tokens.clone(), next)),
            },
            4 => {
                let saved = cache.save();
                cache = KvCache::load(&saved, Backend::detect()).unwrap();
                assert!(cache.save() == saved);
                fork = None; // shares nothing any more: both together would be twice the memory
            }
            _ => {
                assert!(cache.layers()[0].positions().eq(tokens.iter().map(|token| token.0)));
            }
        }
        while tokens.len() < 900_000 {
            append(&mut cache, &mut tokens, &mut next, 50_000).unwrap();
        }
        operations += 1;
        // The model takes longer than all the rest.
        if operations.is_multiple_of(4) {
            let query = row(random.word());
            let (mut output, expected) = ([0.0; DIM], attend(&tokens, &query));
            cache.attend(0, &query, &mut output).unwrap();
            let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
            let far = norm(&mut output.iter().zip(&expected).map(|(a, b)| a - b))
                / norm(&mut expected.iter().copied());
            worst = worst.max(far);
            assert!(far < 1e-3, "{operations} operations: {far} of the norm away");
        }
        let memory = resident();
        most = most.max(memory);
        if operations == 60 {
            first = most;
        }
    }
    let [appends, rollbacks, evictions, forks, loads, looks] = counts;
    println!(
        "{} s, {operations} operations: {appends} appends, {rollbacks} rollbacks, {evictions} evictions, {forks} forks, {loads} saves and loads, {looks} looks",
        start.elapsed().as_secs()
    );
    println!(
        "{} tokens in the end; attention at most {worst:.1e} of its norm from the model; at most {} MiB after 60 operations, {} MiB in the end",
        tokens.len(),
        first >> 20,
        most >> 20
    );
    assert!(operations <= 60 || most < first + first / 4, "memory grows: {first} bytes, then {most}");
}
