//! Grades: which channels get more bits, and that nothing else changes.

use super::spec;
use crate::common::{Random, bits};
use octaplex::{Backend, Error, KvCache, LayerConfig};

const DIM: usize = 64;
const TOKENS: usize = 400;

/// Every third channel and some more: half of them.
fn is_strong(channel: usize) -> bool {
    channel * 37 % DIM < DIM / 2
}

/// Gaussian rows of two heads, strong channels in the second alone.
fn rows(strong: f32, count: usize, seed: u64) -> Vec<f32> {
    let mut rows = Random::new(seed).gaussians(2 * count * DIM);
    for (i, x) in rows[count * DIM..].iter_mut().enumerate() {
        *x *= if is_strong(i % DIM) { strong } else { 1.0 };
    }
    rows
}

fn config() -> LayerConfig {
    LayerConfig::new(2, DIM, 1000)
        .keys(spec("graded"))
        .values(spec("trellis"))
        .sink_tokens(0)
        .recent_window(0)
}

/// The relative error of strong channels and of the others, in the second head.
fn errors(cache: &KvCache, keys: &[f32]) -> [f64; 2] {
    let layer = &cache.layers()[0];
    let (mut sums, mut squares) = ([0.0; 2], [0.0; 2]);
    let (mut key, mut value) = ([0.0; DIM], [0.0; DIM]);
    for number in 0..layer.stats().paged_tokens {
        layer.decode(1, number, &mut key, &mut value).unwrap();
        for (channel, (found, exact)) in key.iter().zip(&keys[(TOKENS + number) * DIM..]).enumerate() {
            let group = usize::from(!is_strong(channel));
            sums[group] += f64::from(found - exact).powi(2);
            squares[group] += f64::from(*exact).powi(2);
        }
    }
    [sums[0] / squares[0], sums[1] / squares[1]]
}

#[test]
fn channels_that_count_have_more_bits() {
    for balance in [true, false] {
        for strong in [4.0, 0.25] {
            let keys = rows(strong, TOKENS, 3);
            let mut cache = KvCache::new([config().balance(balance)], Backend::detect()).unwrap();
            cache.append(0, &keys, &keys).unwrap();
            let mut errors = errors(&cache, &keys);
            if strong < 1.0 {
                errors.reverse();
            }
            // 4 bits and 2.
            assert!(errors[0] < 0.008 && errors[1] > 0.05, "{balance}, {strong}: {errors:?}");
        }
    }
}

/// Deviations of 4 and 1, queries of 1 and 16.
#[test]
fn queries_say_which_count() {
    let keys = rows(4.0, TOKENS, 4);
    for (weak, fine) in [(16.0, 1), (2.0, 0)] {
        let mut queries = rows(1.0, 64, 5);
        queries.chunks_exact_mut(DIM).flat_map(|row| row.iter_mut().enumerate()).for_each(|(channel, x)| {
            *x *= if is_strong(channel) { 1.0 } else { weak };
        });
        let mut cache = KvCache::new([config()], Backend::detect()).unwrap();
        cache.calibrate(0, &keys, &queries).unwrap();
        cache.append(0, &keys, &keys).unwrap();
        let errors = errors(&cache, &keys);
        assert!(errors[fine] < 0.008 && errors[1 - fine] > 0.05, "{weak}: {errors:?}");
    }
}

/// Scores equal those of the decoded keys, sorted or not. A saved cache gives the same bits, and signs that are not half of all
/// are refused.
#[test]
fn scores_are_products_with_what_decodes() {
    let keys = rows(4.0, TOKENS, 6);
    let queries = rows(1.0, 1, 7);
    for balance in [true, false] {
        let mut cache = KvCache::new([config().balance(balance)], Backend::detect()).unwrap();
        cache.append(0, &keys, &keys).unwrap();
        let mut scores = vec![0.0; TOKENS];
        cache.scores(0, 1, &queries[DIM..], &mut scores).unwrap();
        let (mut key, mut value) = ([0.0; DIM], [0.0; DIM]);
        let norm = super::dot(&queries[DIM..], &queries[DIM..]).sqrt();
        for (number, score) in scores.iter().enumerate() {
            cache.layers()[0].decode(1, number, &mut key, &mut value).unwrap();
            let exact = super::dot(&queries[DIM..], &key);
            let length = super::dot(&key, &key).sqrt();
            assert!((f64::from(*score) - exact).abs() < 0.02 * norm * length, "{number}: {score}, {exact}");
        }
        let saved = cache.save();
        let loaded = KvCache::load(&saved, Backend::SCALAR).unwrap();
        let mut outputs = [vec![0.0; 2 * DIM], vec![0.0; 2 * DIM]];
        cache.attend(0, &queries, &mut outputs[0]).unwrap();
        loaded.attend(0, &queries, &mut outputs[1]).unwrap();
        assert_eq!(bits(&outputs[0]), bits(&outputs[1]));

        let mut page = Vec::new();
        cache.layers()[0].save_page(1, &mut |piece| page.extend_from_slice(piece)).unwrap();
        page[16 + 1] ^= 0x80;
        let end = page.len() - 4;
        let crc = crate::snapshot::crc32(&page[..end]);
        page[end..].copy_from_slice(&crc.to_le_bytes());
        let mut empty = KvCache::new([config().balance(balance)], Backend::detect()).unwrap();
        let refused = empty.layer_mut(0).unwrap().load_page(&page);
        assert!(matches!(refused, Err(Error::Snapshot { .. })), "{refused:?}");
    }
}

/// A rollback opens the first page, and the new tokens decide the order of its channels again.
#[test]
fn a_rollback_takes_the_grades_back() {
    let [first, second] = [rows(4.0, TOKENS, 8), rows(0.25, TOKENS, 9)];
    let mut cache = KvCache::new([config()], Backend::detect()).unwrap();
    let head = |rows: &[f32]| {
        rows.chunks_exact(TOKENS * DIM).flat_map(|head| &head[..64 * DIM]).copied().collect::<Vec<_>>()
    };
    cache.append(0, &head(&first), &head(&first)).unwrap();
    cache.truncate(0).unwrap();
    cache.append(0, &second, &second).unwrap();
    let mut fresh = KvCache::new([config()], Backend::detect()).unwrap();
    fresh.append(0, &second, &second).unwrap();
    assert!(cache.layers()[0].stats().paged_tokens == 384 && cache.save() == fresh.save());
}
