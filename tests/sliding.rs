//! Gives closed pages to a layer with a sliding window, from chunks or one by one. The layer drops pages that the window no
//! longer shows, as it does when tokens are appended.
#![cfg(feature = "alloc")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Random, bits, four_bits};
use octaplex::cache::{Center, LayerCache, SharedLayer};
use octaplex::chunk::{ChunkCodec, ChunkConfig};
use octaplex::codecs::AnyCodec;
use octaplex::{Attend, Backend, Error, KvCache, LayerConfig};

const DIM: usize = 64;

fn config(page: usize) -> LayerConfig {
    let config = four_bits(LayerConfig::new(1, DIM, 1 << 20)).page(page).center(Center::Off).balance(false);
    config.sink_tokens(0).recent_window(0).max_rollback(0)
}

fn chunks(page: usize) -> ChunkCodec {
    let LayerConfig { keys, values, .. } = config(page);
    let config = ChunkConfig::new(1, 1, DIM).keys(keys).values(values);
    let config = config.page(page).center(Center::Off).balance(false);
    ChunkCodec::new(config, Backend::detect()).unwrap()
}

fn attend(cache: &KvCache, query: &[f32], options: &Attend) -> Vec<u32> {
    let mut output = [0.0; DIM];
    cache.attend_with(0, query, options, &mut output).unwrap();
    bits(&output)
}

/// Chunk after chunk, as many as one likes: the same as tokens that are appended, to the bit.
#[test]
fn chunks_slide_through_a_window() {
    let mut random = Random::new(1);
    for page in [64, 128] {
        let codec = chunks(page);
        for window in [1, 64, 100, 128, 333, 600, 1000] {
            for tokens in [64, 256, 512, 1024, 513] {
                let mut by_chunk =
                    KvCache::new([config(page).sliding_window(window)], Backend::detect()).unwrap();
                let mut by_token = by_chunk.fork();
                for _ in 0..3 {
                    let (keys, values) = (random.gaussians(tokens * DIM), random.gaussians(tokens * DIM));
                    let blob = codec.encode(&[&keys[..], &values[..]].concat()[..]).unwrap();
                    if by_chunk.layers()[0].next_position().is_multiple_of(page) {
                        by_chunk.append_chunk(&blob).unwrap();
                    } else {
                        assert!(tokens == 513 || tokens == 64, "the window is not empty");
                        break;
                    }
                    by_token.append(0, &keys, &values).unwrap();
                    let what = format!("pages of {page}, window {window}, {tokens} tokens");
                    assert_eq!(by_chunk.stats(), by_token.stats(), "{what}");
                    let positions = |cache: &KvCache| cache.layers()[0].positions().collect::<Vec<_>>();
                    assert_eq!(positions(&by_chunk), positions(&by_token), "{what}");
                    if tokens.is_multiple_of(page) {
                        assert!(by_chunk.save() == by_token.save(), "{what}");
                        let query = &keys[..DIM];
                        let expected = attend(&by_token, query, &Attend::default());
                        assert_eq!(attend(&by_chunk, query, &Attend::default()), expected, "{what}");
                    }
                }
            }
        }
    }
}

/// With rollbacks: the tokens that the window needs after the longest rollback are stored, and the oldest pages are not.
#[test]
fn a_rollback_behind_chunks_sees_a_whole_window() {
    let rows = Random::new(2).gaussians(2 * 256 * DIM);
    let (codec, query) = (chunks(64), &rows[..DIM]);
    let blob = codec.encode(&rows[..]).unwrap();
    for (window, rollback, recent) in
        [(512, 64, 64), (1024, 64, 64), (128, 64, 64), (512, 0, 0), (70, 130, 0)]
    {
        let each = config(64).recent_window(recent).max_rollback(rollback);
        let mut sliding = KvCache::new([each.sliding_window(window)], Backend::detect()).unwrap();
        let mut all = KvCache::new([each], Backend::detect()).unwrap();
        for count in 1..=40 {
            sliding.append_chunk(&blob).unwrap();
            all.append_chunk(&blob).unwrap();
            let (next, held) = (256 * count, sliding.layers()[0].tokens());
            assert_eq!(sliding.layers()[0].next_position(), next);
            assert_eq!(held, next.min((window + rollback).next_multiple_of(64)), "window {window}");
            assert_eq!(sliding.stats().evicted_tokens, next - held);
            let shown = Attend::default().window(window);
            assert_eq!(attend(&sliding, query, &Attend::default()), attend(&all, query, &shown));
            let (mut back, mut all) = (sliding.fork(), all.fork());
            back.truncate(next - rollback).unwrap();
            all.truncate(next - rollback).unwrap();
            assert_eq!(attend(&back, query, &Attend::default()), attend(&all, query, &shown));
            if next > window + rollback + 64 {
                let further = sliding.fork().truncate(next - rollback - 65);
                assert!(matches!(further, Err(Error::Dropped { .. })), "{further:?}");
            }
            // The loaded cache continues.
            sliding = KvCache::load(&sliding.save(), Backend::detect()).unwrap();
        }
    }
}

/// Pages one by one, on the heap and in memory that is brought, with gaps and without.
#[test]
fn single_pages_slide_through_a_window() {
    let rows = Random::new(3).gaussians(8 * 64 * DIM);
    let mut full = KvCache::new([config(64)], Backend::detect()).unwrap();
    full.append(0, &rows, &rows).unwrap();
    let pages: Vec<Vec<u8>> = (0..8)
        .map(|index| {
            let mut page = Vec::new();
            full.layers()[0].save_page(index, &mut |bytes| page.extend_from_slice(bytes)).unwrap();
            page
        })
        .collect();
    for (window, rollback) in [(1, 0), (64, 0), (100, 0), (64, 64), (200, 64), (10_000, 64)] {
        for capacity in [1 << 20, 512] {
            let config = config(64).max_rollback(rollback).sliding_window(window).capacity(capacity);
            let mut shared = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
            let mut memory = vec![0; config.capacity(512).required_bytes()];
            let mut brought = LayerCache::<AnyCodec, AnyCodec, _>::new(
                &config.capacity(512),
                Backend::detect(),
                &mut memory[..],
            )
            .unwrap();
            let mut scratch = vec![0.0; config.scratch_len(1)];
            for (index, page) in pages.iter().enumerate().filter(|(index, _)| ![2, 5, 6].contains(index)) {
                shared.load_page(page).unwrap();
                brought.load_page(page).unwrap();
                let next = 64 * (index + 1);
                let visible = next.saturating_sub(window + rollback);
                let seen = [0, 1, 3, 4, 7].iter().filter(|&&page| page <= index && 64 * (page + 1) > visible);
                let expected: Vec<usize> = seen.flat_map(|page| 64 * page..64 * (page + 1)).collect();
                assert_eq!(shared.positions().collect::<Vec<_>>(), expected, "window {window}, page {index}");
                assert_eq!(
                    brought.positions().collect::<Vec<_>>(),
                    expected,
                    "window {window}, page {index}"
                );
                let (mut one, mut other) = ([0.0; DIM], [0.0; DIM]);
                shared.attend(&rows[..DIM], &mut one, &mut scratch).unwrap();
                brought.attend(&rows[..DIM], &mut other, &mut scratch).unwrap();
                assert_eq!(bits(&one), bits(&other));
                assert!(one.iter().all(|x| x.is_finite()));
            }
        }
    }
}

/// A prompt's first queries see only sinks, but later queries of the same call may miss tokens that the window has dropped.
/// Then the call is refused. In blocks, the prompt is computed.
#[test]
fn a_prompt_in_one_call_misses_nothing() {
    let f16 = "f16".parse().unwrap();
    let rows = Random::new(5).gaussians(700 * DIM);
    for (sinks, window, rollback) in [(0, 100, 64), (4, 100, 64), (4, 100, 0), (70, 1, 64), (4, 300, 130)] {
        let each = config(64).keys(f16).values(f16).sink_tokens(sinks).max_rollback(rollback).query_heads(1);
        let new = |each| KvCache::new([each], Backend::detect()).unwrap();
        for tokens in [1, 3, 4, 5, 71, 150, 231, 232, 300, 700] {
            let (mut sliding, mut all) = (new(each.sliding_window(window)), new(each));
            let rows = &rows[..tokens * DIM];
            sliding.append(0, rows, rows).unwrap();
            all.append(0, rows, rows).unwrap();
            let mut expected = vec![0.0; tokens * DIM];
            all.attend_with(0, rows, &Attend::default().window(window), &mut expected[..]).unwrap();
            let (what, mut output) = (format!("{tokens} tokens, {sinks} sinks"), vec![0.0; tokens * DIM]);
            let attended = sliding.attend(0, rows, &mut output[..]);
            match sliding.stats().evicted_tokens {
                0 => assert_eq!((attended, bits(&output)), (Ok(()), bits(&expected)), "{what}"),
                dropped => {
                    let held = sinks + dropped;
                    let refused = Error::Dropped { visible: sinks, held, max_rollback: tokens - sinks - 1 };
                    assert_eq!(attended, Err(refused), "{what}");
                }
            }
            // Queries of sinks alone miss nothing.
            let first = tokens.min(sinks) * DIM;
            if first > 0 {
                let start = Attend::default().position(0);
                sliding.attend_with(0, &rows[..first], &start, &mut output[..first]).unwrap();
                assert_eq!(bits(&output[..first]), bits(&expected[..first]), "{what}");
            }
            let mut sliding = new(each.sliding_window(window));
            for (rows, expected) in
                rows.chunks((rollback + 1) * DIM).zip(expected.chunks((rollback + 1) * DIM))
            {
                let mut output = vec![0.0; rows.len()];
                sliding.append(0, rows, rows).unwrap();
                sliding.attend(0, rows, &mut output[..]).unwrap();
                assert!(output.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-5), "{what}");
            }
        }
    }
}

/// Without a window nothing is dropped, and tokens that do not fit are refused; the layer stays as it was.
#[test]
fn pages_without_room_are_refused() {
    let blob = chunks(64).encode(&Random::new(4).gaussians(2 * 256 * DIM)[..]).unwrap();
    for (capacity, recent) in [(600, 0), (512, 0), (600, 64), (575, 0)] {
        let config = config(64).capacity(capacity).recent_window(recent);
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.append_chunk(&blob).unwrap();
        cache.append_chunk(&blob).unwrap();
        let before = cache.save();
        assert_eq!(cache.append_chunk(&blob), Err(Error::Full { capacity, needed: 768 + recent }));
        assert!(cache.save() == before);
    }
    // A sliding window whose pages do not fit either.
    let config = config(64).capacity(300).sliding_window(1000);
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    cache.append_chunk(&blob).unwrap();
    assert_eq!(cache.append_chunk(&blob), Err(Error::Full { capacity: 300, needed: 512 }));
}

/// The rows of a last page that is not full decode beyond f16's end, and are clamped to it before they are appended.
#[test]
fn a_chunk_s_last_rows_are_held_by_the_window() {
    let (largest, int) = (65504.0f32, "int".parse().unwrap());
    let codec = ChunkConfig::new(1, 1, DIM).keys(int).values(int).center(Center::Off).balance(false);
    let codec = ChunkCodec::new(codec, Backend::detect()).unwrap();
    for (keys, values) in [(largest, 1.0), (-largest, 1.0), (1.0, largest), (1.0, -largest)] {
        let rows: Vec<f32> = [[keys; 70 * DIM], [values; 70 * DIM]].concat();
        let blob = codec.encode(&rows[..]).unwrap();
        let mut cache = KvCache::new([config(64).keys(int).values(int)], Backend::detect()).unwrap();
        cache.append_chunk(&blob).unwrap();
        let (mut key, mut value) = ([0.0; DIM], [0.0; DIM]);
        cache.layers()[0].decode(0, 63, &mut key, &mut value).unwrap();
        assert!(key[0].abs() > largest || value[0].abs() > largest, "nothing to clamp");
        for token in 64..70 {
            cache.layers()[0].decode(0, token, &mut key, &mut value).unwrap();
            let close = |x: f32, y: f32| (x - y).abs() < 0.01;
            assert!(
                key.iter().all(|x| close(*x, keys)) && value.iter().all(|x| close(*x, values)),
                "{token}"
            );
        }
        let mut decoded = vec![0.0; rows.len()];
        codec.decode(&blob, &mut decoded[..]).unwrap();
        assert!(decoded.iter().all(|x| x.abs() <= largest));
    }
}
