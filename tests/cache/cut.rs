//! Rollbacks that go further back than `max_rollback`: where pages are cut, the tokens that they decode to, and the tokens
//! that a sliding window then counts as dropped.

use super::{attend, spec};
use crate::common::{Random, bits};
use octaplex::cache::Center;
use octaplex::{Attend, Backend, KvCache, LayerConfig};

const DIM: usize = 32;

fn config() -> LayerConfig {
    LayerConfig::new(1, DIM, 2000).sink_tokens(0).recent_window(0).max_rollback(0)
}

#[test]
fn a_page_that_ends_where_a_rollback_does_stays_whole() {
    let rows = Random::new(1).gaussians(512 * DIM);
    for (sinks, page) in [(0, 64), (4, 64), (0, 128), (3, 256)] {
        let config = config().sink_tokens(sinks).page(page);
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.append(0, &rows, &rows).unwrap();
        let pages = (512 - sinks) / page;
        for whole in (1..pages).rev() {
            let end = sinks + whole * page;
            let mut cut = cache.fork();
            cut.truncate(end).unwrap();
            assert_eq!((cut.stats().decoded_tokens, cut.stats().paged_tokens), (0, whole * page), "at {end}");
            // A token further, and one less far.
            let mut cut = cache.fork();
            cut.truncate(end - 1).unwrap();
            let before = ((whole - 1) * page, page - 1);
            assert_eq!((cut.stats().paged_tokens, cut.stats().decoded_tokens), before, "before {end}");
            let mut cut = cache.fork();
            cut.truncate(end + 1).unwrap();
            assert_eq!(
                (cut.stats().paged_tokens, cut.stats().decoded_tokens),
                (whole * page, 1),
                "after {end}"
            );
        }
    }
}

/// Integers of 4 bits with a scale of f16 decode 65504 to 65520, which f16 does not hold.
#[test]
fn what_pages_decode_to_is_held_by_the_window() {
    let (largest, keys) = (65504.0f32, spec("int"));
    let config = config().keys(keys).values(keys).center(Center::Off).balance(false);
    for sign in [1.0, -1.0] {
        let rows = vec![sign * largest; 128 * DIM];
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.append(0, &rows, &rows).unwrap();
        let (mut key, mut value) = ([0.0; DIM], [0.0; DIM]);
        cache.layers()[0].decode(0, 70, &mut key, &mut value).unwrap();
        assert!(key[0].abs() > largest && value[0].abs() > largest, "nothing to clamp: {}", key[0]);
        cache.truncate(100).unwrap();
        assert_eq!(cache.stats().decoded_tokens, 36);
        for token in 64..100 {
            cache.layers()[0].decode(0, token, &mut key, &mut value).unwrap();
            assert_eq!((key, value), ([sign * largest; DIM], [sign * largest; DIM]), "token {token}");
        }
        let output = attend(&mut cache, &[1e-6; DIM], &Attend::default());
        assert!(output.iter().all(|x| x.is_finite()));
        assert_eq!(KvCache::load(&cache.save(), Backend::detect()).unwrap().stats(), cache.stats());
    }
}

/// A layer that is cut back to its beginning no longer counts the dropped tokens.
#[test]
fn a_sliding_layer_that_starts_anew_has_dropped_nothing() {
    let rows = Random::new(2).gaussians(600 * DIM);
    for sinks in [0, 4] {
        for position in [0, sinks] {
            let config = config().sink_tokens(sinks).max_rollback(64).sliding_window(100);
            let mut cache = KvCache::new([config], Backend::detect()).unwrap();
            cache.append(0, &rows, &rows).unwrap();
            assert!(cache.stats().evicted_tokens > 300);
            cache.truncate(position).unwrap();
            // A state that snapshots know.
            let mut loaded = KvCache::load(&cache.save(), Backend::detect()).unwrap();
            let mut anew = KvCache::new([config], Backend::detect()).unwrap();
            anew.append(0, &rows[..position * DIM], &rows[..position * DIM]).unwrap();
            for count in [90, 64, 200] {
                for cache in [&mut cache, &mut loaded, &mut anew] {
                    cache.append(0, &rows[..count * DIM], &rows[..count * DIM]).unwrap();
                }
                let expected = bits(&attend(&mut anew, &rows[..DIM], &Attend::default()));
                for cache in [&mut cache, &mut loaded] {
                    assert_eq!(bits(&attend(cache, &rows[..DIM], &Attend::default())), expected);
                    let (next, position) =
                        (cache.layers()[0].next_position(), anew.layers()[0].next_position());
                    assert_eq!(next, position);
                }
            }
            for cache in [&mut cache, &mut loaded, &mut anew] {
                let next = cache.layers()[0].next_position();
                cache.truncate(next - 64).unwrap();
            }
            let expected = bits(&attend(&mut anew, &rows[..DIM], &Attend::default()));
            assert_eq!(bits(&attend(&mut cache, &rows[..DIM], &Attend::default())), expected);
        }
    }
}
