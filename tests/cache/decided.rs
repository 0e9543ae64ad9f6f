//! Decisions of the first page that closes, seen in snapshots: a head's balance, order of channels and prefix centre. A
//! rollback that opens the page again undoes them all.

use super::{attend, spec};
use crate::common::{Random, bits, four_bits};
use octaplex::cache::Center;
use octaplex::{Attend, Backend, KvCache, LayerConfig, f16};

const DIM: usize = 64;

/// Returns a configuration of one head without exact tokens: a page closes as soon as it is full.
fn config() -> LayerConfig {
    four_bits(LayerConfig::new(1, DIM, 2000)).sink_tokens(0).recent_window(0).max_rollback(0)
}

/// Reads balance and prefix centre from a snapshot. Without exact tokens, its front section holds nothing else.
fn decided(cache: &KvCache, pieces: usize) -> Vec<Vec<f32>> {
    let (bytes, config) = (cache.save(), cache.layers()[0].config());
    let header = 12 + 52 + 8 + config.keys.to_string().len() + config.values.to_string().len() + 60 + 8 + 4;
    let front = &bytes[16 + 8 + header..][..pieces * 2 * DIM];
    let value = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32();
    front.chunks_exact(2 * DIM).map(|piece| piece.as_chunks::<2>().0.iter().map(value).collect()).collect()
}

/// Returns a cache of these keys, with values of 0.
fn filled(config: LayerConfig, keys: &[f32]) -> KvCache {
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    cache.append(0, keys, &vec![0.0; keys.len()][..]).unwrap();
    cache
}

#[test]
fn a_first_page_that_opens_again_has_decided_nothing() {
    let mut random = Random::new(1);
    // Channels of very different widths: there is something to balance.
    let mut keys = |count: usize| -> Vec<f32> {
        (0..count * DIM).map(|i| random.gaussian() * if i % 8 == 0 { 30.0 } else { 1.0 } + 5.0).collect()
    };
    let (first, others, query) = (keys(70), keys(150), keys(1));
    for (text, center) in [("turboquant", Center::Prefix), ("graded", Center::Page), ("int", Center::Prefix)]
    {
        let config = config().max_rollback(64).center(center).keys(spec(text));
        let never = filled(config, &first[..30 * DIM]);
        let mut back = filled(config, &first);
        assert!(back.stats().balanced_heads == 1 && back.stats().paged_tokens == 64, "{text}");
        back.truncate(30).unwrap();
        assert!(back.save() == never.save(), "{text}: something was left of the page");
        assert_eq!(back.stats(), never.stats(), "{text}");
        let loaded = KvCache::load(&back.save(), Backend::detect()).unwrap();
        for mut cache in [loaded, back] {
            let mut never = never.fork();
            for cache in [&mut never, &mut cache] {
                cache.append(0, &others, &others).unwrap();
            }
            assert!(cache.save() == never.save(), "{text}: another page was first");
            let output = bits(&attend(&mut cache, &query, &Attend::default()));
            assert_eq!(output, bits(&attend(&mut never, &query, &Attend::default())), "{text}");
        }
    }
}

/// A calibrated balance is no decision of the first page.
#[test]
fn a_calibrated_balance_stays_when_the_first_page_opens() {
    let mut random = Random::new(2);
    let mut keys = |count: usize| -> Vec<f32> {
        (0..count * DIM).map(|i| random.gaussian() * if i % 8 == 0 { 30.0 } else { 1.0 }).collect()
    };
    let (prompt, queries) = (keys(70), keys(40));
    let config = config().max_rollback(64).center(Center::Prefix);
    let calibrated = || {
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.calibrate(0, &prompt, &queries).unwrap();
        cache
    };
    let (mut never, mut back) = (calibrated(), calibrated());
    never.append(0, &prompt[..30 * DIM], &prompt[..30 * DIM]).unwrap();
    back.append(0, &prompt, &prompt).unwrap();
    back.truncate(30).unwrap();
    assert!(back.save() == never.save());
    assert_eq!(back.stats().balanced_heads, 1);
}

/// Channels that weigh the same go to the fine half in their order.
#[test]
fn ties_of_channel_weight_go_to_the_first() {
    let fine = |keys: &dyn Fn(usize, usize) -> f32| -> Vec<usize> {
        let keys: Vec<f32> = (0..64 * DIM).map(|i| keys(i / DIM, i % DIM)).collect();
        for balance in [true, false] {
            let cache = filled(config().keys(spec("graded")).balance(balance), &keys);
            let balance = &decided(&cache, 1)[0];
            assert_eq!(balance.iter().filter(|s| **s > 0.0).count(), DIM / 2);
        }
        let cache = filled(config().keys(spec("graded")), &keys);
        decided(&cache, 1)[0]
            .iter()
            .enumerate()
            .filter(|(_, s)| **s > 0.0)
            .map(|(channel, _)| channel)
            .collect()
    };
    let sign = |token: usize| if token.is_multiple_of(2) { 1.0 } else { -1.0 };
    let all: Vec<usize> = (0..DIM / 2).collect();
    assert_eq!(fine(&|_, channel| channel as f32), all, "constant keys");
    assert_eq!(fine(&|token, _| sign(token)), all, "channels of one width");
    // Ten heavier channels at the end, ten lighter ones at the start: the middle is tied.
    let width = |channel: usize| match channel {
        0..10 => 0.5,
        54.. => 2.0,
        _ => 1.0,
    };
    let expected: Vec<usize> = (10..32).chain(54..64).collect();
    assert_eq!(fine(&|token, channel| sign(token) * width(channel)), expected);
}

/// A large constant channel asks for a small balance. Divided by it, the keys would not fit into f16. So all channels are divided by
/// more, and the balance has a bound that keeps the longest key short enough.
#[test]
fn a_balance_keeps_keys_within_their_bound() {
    const LONGEST: f32 = 16384.0;
    let mut random = Random::new(3);
    let mut keys: Vec<f32> = random.gaussians(64 * DIM);
    for row in keys.chunks_exact_mut(DIM) {
        (row[5], row[9]) = (30_000.0, 0.01 * row[9]);
    }
    let mut small = keys.clone();
    small.chunks_exact_mut(DIM).for_each(|row| row[5] = 30.0);
    let balance = |keys: &[f32]| decided(&filled(config().center(Center::Page), keys), 1).remove(0);
    let (held, free) = (balance(&keys), balance(&small));
    let least = |channel: usize| {
        let largest = keys.chunks_exact(DIM).map(|row| row[channel].abs()).fold(0.0, f32::max);
        f16::from_f32(largest * ((DIM as f32).sqrt() / LONGEST)).to_f32()
    };
    assert!(free[5] < 0.01 && least(5) > 14.0);
    let by = 256.0 / free.iter().fold(0.0f32, |most, s| most.max(*s));
    for channel in 0..DIM {
        let larger = f16::from_f32(free[channel] * by).to_f32().min(256.0);
        assert_eq!(held[channel], larger.max(least(channel)), "channel {channel}");
    }
    // Divided, no key is longer.
    let longest = |row: &[f32]| row.iter().zip(&held).map(|(x, s)| (x / s) * (x / s)).sum::<f32>().sqrt();
    assert!(keys.chunks_exact(DIM).all(|row| longest(row) <= 1.001 * LONGEST));
}

/// The centre of all pages is the mean of the first 128 keys, or of as many as there are when the first page closes.
#[test]
fn a_prefix_centre_is_the_mean_of_128_keys() {
    for (page, recent, tokens, counted) in
        [(64, 64, 128, 128), (128, 0, 128, 128), (128, 64, 192, 128), (256, 0, 256, 128), (64, 0, 64, 64)]
    {
        let config = config().page(page).recent_window(recent).center(Center::Prefix).balance(false);
        let prefix = |key: usize| {
            // Rows of mean zero, among which the key is not outlying.
            let row = |i: usize| if (i / DIM).is_multiple_of(2) { 0.25 } else { -0.25 };
            let mut keys: Vec<f32> = (0..tokens * DIM).map(|i| row(i) * counted as f32).collect();
            keys[key * DIM..][..DIM].iter_mut().for_each(|x| *x += counted as f32);
            let mut cache = filled(config, &keys);
            // The window goes, so that a snapshot's front is the centre alone.
            if recent > 0 {
                cache.append(0, &vec![0.0; recent * DIM], &vec![0.0; recent * DIM]).unwrap();
            }
            let (tokens, paged) = (cache.stats().tokens, cache.stats().paged_tokens);
            let bytes = cache.save();
            let config = cache.layers()[0].config();
            let texts = config.keys.to_string().len() + config.values.to_string().len();
            let front = 16 + 8 + 12 + 52 + 8 + texts + 60 + 8 + 4 + (tokens - paged) * 4 * DIM;
            f16::from_le_bytes([bytes[front], bytes[front + 1]]).to_f32()
        };
        let what = format!("pages of {page}, {recent} recent tokens");
        assert_eq!(prefix(0), 1.0, "{what}: the first");
        assert_eq!(prefix(counted - 1), 1.0, "{what}: the last of {counted}");
        if tokens > counted {
            assert_eq!(prefix(counted), 0.0, "{what}: the one behind");
        }
    }
}
