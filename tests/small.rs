//! The main operations of a cache, for every kind of codec. The tests are small enough for an interpreter that looks for
//! undefined behaviour (`ci/memory.sh`), which is a thousand times slower than the CPU.
#![cfg(feature = "alloc")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::bits;
use octaplex::{Backend, KvCache, LayerConfig};

const DIM: usize = 32;

/// Returns rows that all differ. Their values are multiples of 1/7.
fn rows(count: usize) -> Vec<f32> {
    (0..count * DIM).map(|i| ((i * 31 % 97) as f32 - 48.0) / 7.0).collect()
}

fn attend(cache: &mut KvCache) -> Vec<u32> {
    let mut output = [0.0; 2 * DIM];
    cache.attend(0, &rows(2), &mut output).unwrap();
    assert!(output.iter().all(|x| x.is_finite()));
    bits(&output)
}

/// Appends, attends, forks, truncates, saves, loads and evicts with these codecs, and checks every result.
fn check_life(keys: &str, values: &str) {
    let mut config = LayerConfig::new(1, DIM, 80);
    (config.keys, config.values) = (keys.parse().unwrap(), values.parse().unwrap());
    (config.sink_tokens, config.recent_window) = (1, 4);
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    // A page closes within this; its keys and values are then compressed.
    cache.append(0, &rows(72), &rows(72)).unwrap();
    let before = attend(&mut cache);

    let fork = cache.fork();
    cache.append(0, &rows(2), &rows(2)).unwrap();
    assert_ne!(attend(&mut cache), before, "{keys}: two more tokens");
    cache.truncate(72).unwrap();
    assert_eq!(attend(&mut cache), before, "{keys}: without them again");

    let mut bytes = fork.save();
    let mut loaded = KvCache::load(&bytes, Backend::detect()).unwrap();
    assert_eq!(attend(&mut loaded), before, "{keys}: after saving and loading");
    for damaged in (0..bytes.len()).step_by(bytes.len() / 5) {
        bytes[damaged] ^= 0x40;
        assert!(KvCache::load(&bytes, Backend::detect()).is_err(), "{keys}: byte {damaged}");
        assert!(KvCache::load(&bytes[..damaged], Backend::detect()).is_err(), "{keys}: cut at {damaged}");
        bytes[damaged] ^= 0x40;
    }
    assert_eq!(cache.evict(0..80), 64, "{keys}: the page goes");
}

#[test]
fn floats() {
    check_life("f16", "bf16");
}

#[test]
fn codes_and_paths() {
    check_life("turboquant", "trellis:m=2");
}

#[test]
fn triplets_and_integers() {
    check_life("octopus", "int:bits=3");
}

#[test]
fn angles_and_chunks_with_outliers() {
    check_life("polarquant:bits=3", "hqmq:s=24,r=3,med=2");
}

#[test]
fn residuals_and_blocks() {
    check_life("turboquant-qjl:bits=3", "tq3_0");
}

#[test]
fn signs_and_sums_of_directions() {
    check_life("qjl", "additive");
}

#[test]
fn two_norms_and_bf16() {
    check_life("octopus-qjl", "bf16");
}
