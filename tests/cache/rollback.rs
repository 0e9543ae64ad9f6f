//! Rejected drafts: a rollback within `max_rollback` leaves the bits of a cache that never drafted, a longer one never
//! loses a visible token without saying so.

use super::{attend, spec};
use crate::common::{Random, bits, is_thorough};
use octaplex::cache::Center;
use octaplex::{Attend, Backend, Error, KvCache, LayerConfig};

const DIM: usize = 32;
const TOKENS: usize = 700;

/// A sequence, and drafts that never were part of it.
struct Rows {
    tokens: Vec<f32>,
    drafts: Vec<f32>,
    query: Vec<f32>,
}

impl Rows {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut rows = |count: usize| random.gaussians(count * DIM);
        Self { tokens: rows(TOKENS + 64), drafts: rows(64), query: rows(1) }
    }

    fn token(&self, number: usize) -> &[f32] {
        &self.tokens[number * DIM..][..DIM]
    }

    fn draft(&self, number: usize) -> &[f32] {
        &self.drafts[number * DIM..][..DIM]
    }
}

fn seen(cache: &mut KvCache, query: &[f32]) -> Vec<u32> {
    bits(&attend(cache, query, &Attend::default()))
}

fn config(window: Option<usize>, page: usize) -> LayerConfig {
    let mut config = LayerConfig::new(1, DIM, 2000);
    (config.sliding_window, config.page) = (window, page);
    (config.keys, config.values) = (spec("turboquant"), spec("int:bits=3"));
    config
}

#[test]
fn a_rollback_gives_the_bits_of_a_cache_that_never_drafted() {
    let rows = Rows::new(1);
    for page in [64, 128] {
        for window in [Some(64), Some(256), None] {
            let mut plain = KvCache::new([config(window, page)], Backend::detect()).unwrap();
            for token in 0..TOKENS {
                plain.append(0, rows.token(token), rows.token(token)).unwrap();
                let expected = seen(&mut plain, &rows.query);
                let mut drafted = plain.fork();
                for draft in 1..=64 {
                    drafted.append(0, rows.draft(draft - 1), rows.draft(draft - 1)).unwrap();
                    if !is_thorough() && draft % 9 != 1 && draft != 64 {
                        continue;
                    }
                    let mut back = drafted.fork();
                    back.truncate(token + 1).unwrap();
                    assert_eq!(
                        seen(&mut back, &rows.query),
                        expected,
                        "window {window:?}, pages of {page}, {} tokens, {draft} drafts",
                        token + 1
                    );
                }
            }
        }
    }
}

/// Speculative decoding as engines do it: a few drafts at a time, some of them right. After each rollback, the cache is the
/// same as one that has never seen the drafts.
#[test]
fn speculation_goes_on_as_if_it_had_not_been() {
    let rows = Rows::new(2);
    for (window, page, seed) in [(Some(64), 64, 1), (Some(256), 128, 2), (None, 64, 3), (Some(100), 128, 4)] {
        let mut random = Random::new(seed);
        let mut plain = KvCache::new([config(window, page)], Backend::detect()).unwrap();
        let mut drafting = plain.fork();
        let mut done = 0;
        while done < TOKENS {
            let accepted = random.below(20);
            for token in done..done + accepted {
                plain.append(0, rows.token(token), rows.token(token)).unwrap();
                drafting.append(0, rows.token(token), rows.token(token)).unwrap();
            }
            let rejected = random.below(65 - accepted);
            for draft in 0..rejected {
                drafting.append(0, rows.draft(draft), rows.draft(draft)).unwrap();
            }
            done += accepted;
            drafting.truncate(done).unwrap();
            if done > 0 {
                assert_eq!(
                    seen(&mut drafting, &rows.query),
                    seen(&mut plain, &rows.query),
                    "{window:?}, {done}"
                );
            }
        }
        // In the end, whatever is held is the same bytes.
        let tail = |cache: &KvCache| cache.layers()[0].positions().collect::<Vec<_>>();
        let (some, all) = (tail(&drafting), tail(&plain));
        assert!(all.ends_with(&some[4..]), "{some:?}, {all:?}");
        assert_eq!(drafting.stats().decoded_tokens, 0);
    }
}

/// Above 4,096 tokens, attention divides pages into parts. Parts are the same, whether or not drafts made the layer drop pages.
#[test]
fn a_rollback_gives_the_same_bits_in_long_windows() {
    let mut random = Random::new(5);
    let long = config(Some(9000), 64).capacity(20_000);
    let rows = random.gaussians(9300 * DIM);
    let query = random.gaussians(DIM);
    let mut plain = KvCache::new([long], Backend::detect()).unwrap();
    plain.append(0, &rows, &rows).unwrap();
    let mut drafted = plain.fork();
    let drafts = random.gaussians(64 * DIM);
    drafted.append(0, &drafts, &drafts).unwrap();
    assert!(
        drafted.stats().evicted_tokens > plain.stats().evicted_tokens,
        "a page was dropped on account of drafts"
    );
    drafted.truncate(9300).unwrap();
    assert_eq!(seen(&mut drafted, &query), seen(&mut plain, &query));
}

/// A first page that closes with drafts in it decides nothing.
#[test]
fn the_balance_and_the_prefix_are_taken_back() {
    let rows = Rows::new(3);
    for center in [Center::Prefix, Center::Page] {
        let config = config(None, 64).center(center);
        let wild: Vec<f32> =
            (0..64 * DIM).map(|i| if i % DIM < 4 { 50.0 } else { 1.0 } * [1.0, -1.0][i / DIM % 2]).collect();
        let mut plain = KvCache::new([config], Backend::detect()).unwrap();
        plain.append(0, &rows.tokens[..70 * DIM], &rows.tokens[..70 * DIM]).unwrap();
        let mut drafted = plain.fork();
        drafted.append(0, &wild, &wild).unwrap();
        assert_eq!(drafted.stats().paged_tokens, 64);
        drafted.truncate(70).unwrap();
        for cache in [&mut plain, &mut drafted] {
            cache.append(0, &rows.tokens[70 * DIM..200 * DIM], &rows.tokens[70 * DIM..200 * DIM]).unwrap();
        }
        assert!(plain.save() == drafted.save(), "{center:?}");
        // A calibrated balance stays.
        let mut calibrated = KvCache::new([config], Backend::detect()).unwrap();
        calibrated.calibrate(0, &wild, &[]).unwrap();
        let empty = calibrated.save();
        calibrated.append(0, &wild, &wild).unwrap();
        calibrated.append(0, &wild, &wild).unwrap();
        calibrated.append(0, &wild, &wild).unwrap();
        calibrated.truncate(0).unwrap();
        let start = calibrated.save().len() - 4 - 2 * DIM;
        assert!(
            calibrated.save().len() >= empty.len()
                && calibrated.save()[start..] == empty[empty.len() - 4 - 2 * DIM..]
        );
    }
}

#[test]
fn a_rollback_that_would_lose_visible_tokens_is_refused() {
    let rows = Rows::new(4);
    let mut cache = KvCache::new([config(None, 64), config(Some(256), 64)], Backend::detect()).unwrap();
    for layer in 0..2 {
        cache.append(layer, &rows.tokens[..700 * DIM], &rows.tokens[..700 * DIM]).unwrap();
    }
    let before = cache.save();
    let refused = cache.truncate(300);
    let Err(error) = refused else { panic!("{:?}", cache.stats()) };
    assert_eq!(error, Error::Dropped { visible: 44, held: 324, max_rollback: 400 });
    assert_eq!(
        error.to_string(),
        "the sliding window needs the tokens from position 44 on, but those before 324 were dropped: pass fewer \
         tokens at a time, configure a max_rollback of 400, or clear the layer and append again"
    );
    assert!(cache.save() == before, "no layer has changed");
    // As said.
    let patient = config(Some(256), 64).max_rollback(400);
    let mut patient = KvCache::new([patient], Backend::detect()).unwrap();
    patient.append(0, &rows.tokens[..700 * DIM], &rows.tokens[..700 * DIM]).unwrap();
    patient.truncate(300).unwrap();
    // Back to the sinks nothing is lost; nor by a clear.
    cache.truncate(4).unwrap();
    assert_eq!(cache.layers()[1].tokens(), 4);
    for layer in 0..2 {
        cache.append(layer, &rows.tokens[4 * DIM..300 * DIM], &rows.tokens[4 * DIM..300 * DIM]).unwrap();
    }
    cache.truncate(240).unwrap();
}

/// A block of queries that begins so early that the layer has dropped their tokens.
#[test]
fn a_block_of_queries_sees_everything_or_is_refused() {
    let rows = Rows::new(5);
    let mut cache = KvCache::new([config(Some(64), 64)], Backend::detect()).unwrap();
    cache.append(0, &rows.tokens[..600 * DIM], &rows.tokens[..600 * DIM]).unwrap();
    for (queries, fits) in [(1, true), (65, true), (200, false)] {
        let mut output = vec![0.0; queries * DIM];
        let block = vec![0.1; queries * DIM];
        let options = Attend::default().queries(queries);
        let result = cache.attend_with(0, &block, &options, &mut output);
        assert_eq!(result.is_ok(), fits, "{queries}: {result:?}");
        assert!(fits || matches!(result, Err(Error::Dropped { .. })));
    }
}

/// A rollback does not bring evicted tokens back.
#[test]
fn no_rollback_brings_evicted_tokens_back() {
    let rows = Rows::new(6);
    let mut cache = KvCache::new([config(None, 64)], Backend::detect()).unwrap();
    cache.append(0, &rows.tokens[..270 * DIM], &rows.tokens[..270 * DIM]).unwrap();
    assert_eq!(cache.evict(132..196), 64);
    cache.truncate(240).unwrap();
    let held: Vec<usize> = cache.layers()[0].positions().collect();
    assert_eq!(held, (0..132).chain(196..240).collect::<Vec<_>>());
}

/// Bytes that forks share count once, and layers can be attended from several threads.
#[test]
fn forks_share_and_threads_attend() {
    let rows = Rows::new(7);
    let mut cache = KvCache::new([config(None, 64), config(Some(256), 64)], Backend::detect()).unwrap();
    for layer in 0..2 {
        cache.append(layer, &rows.tokens[..500 * DIM], &rows.tokens[..500 * DIM]).unwrap();
    }
    assert_eq!(cache.stats().shared_bytes, 0);
    let alone = KvCache::bytes_together([&cache]);
    assert_eq!(alone, cache.stats().bytes);
    let mut fork = cache.fork();
    assert!(fork.stats().shared_bytes > 0 && cache.stats().shared_bytes == fork.stats().shared_bytes);
    assert_eq!(KvCache::bytes_together([&cache, &fork]), alone + fork.stats().own_bytes());
    let outputs = std::thread::scope(|scope| {
        let attend = |layer| {
            let mut output = [0.0; DIM];
            cache.attend(layer, &rows.query, &mut output).map(|()| bits(&output))
        };
        [0, 1].map(|layer| scope.spawn(move || attend(layer))).map(|thread| thread.join().unwrap())
    });
    assert_eq!(outputs[0], Ok(seen(&mut fork, &rows.query)));
    assert!(outputs[1].is_ok() && outputs[1] != outputs[0]);
    drop(fork);
    assert_eq!(cache.stats().shared_bytes, 0);
}
