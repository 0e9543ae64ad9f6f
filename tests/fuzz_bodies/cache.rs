//! A cache's life against the plain model: append, attend, truncate, evict, fork, save and load in any order, under any windows.
//!
//! An input: the configuration (a byte a choice), then operations, a byte for which one and bytes for how much.

use super::{Input, Kept};
use crate::model::{Model, distance};
use octaplex::cache::Center;
use octaplex::{Attend, Backend, CodecSpec, Error, KvCache, LayerConfig};
use std::rc::Rc;

/// Operations of one input.
const OPERATIONS: usize = 24;
/// Tokens that the model's attention may look at, all operations together: it is slow.
const LOOKED_AT: usize = 4000;

fn configuration(input: &mut Input) -> LayerConfig {
    let mut config = LayerConfig::new(1 + input.below(2), 32, [300, 200, 1000][input.below(3)]);
    let pairs = [
        ("int8:group=16", "f16"),
        ("f32", "f32"),
        ("trellis:m=16", "turboquant:bits=8"),
        ("turboquant:bits=6", "int:bits=8,med=1"),
    ];
    let (keys, values) = input.pick(&pairs);
    (config.keys, config.values) = (keys.parse().unwrap(), values.parse().unwrap());
    config.page = input.pick(&[64, 64, 64, 128]);
    config.sink_tokens = input.pick(&[4, 0, 7]);
    config.recent_window = input.pick(&[1, 0, 64, 20]);
    config.sliding_window = input.pick(&[None, Some(70), Some(30), Some(1), Some(130)]);
    config.max_rollback = input.pick(&[5, 0, 64, 100]);
    config.center = input.pick(&[Center::Page, Center::Off, Center::Prefix]);
    config.balance = input.byte() & 1 == 0;
    config
}

fn empty(config: LayerConfig) -> Option<KvCache> {
    thread_local!(static CACHES: Kept<LayerConfig, Option<Rc<KvCache>>> = Kept::new());
    let make = || KvCache::new([config], Backend::detect()).ok().map(Rc::new);
    CACHES.with(|caches| caches.get(config, make)).map(|cache| cache.fork()) // which shares the codecs
}

/// Rows that differ in every token, cheaply; whole sixteenths, exact in f16.
fn rows(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 26) as f32 / 16.0 - 2.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

pub fn cache(data: &[u8]) {
    let mut input = Input::new(data);
    let config = configuration(&mut input);
    let Some(mut cache) = empty(config) else { return };
    let mut model = Model::new(config);
    let mut others: Vec<(KvCache, Model)> = Vec::new();
    let (mut seed, mut looked_at) = (0, 0);
    let token = config.kv_heads * config.key_dim;
    for _ in 0..OPERATIONS {
        if input.is_empty() || looked_at > LOOKED_AT {
            break;
        }
        match input.below(8) {
            0..3 => {
                let count = if input.byte() & 3 == 0 {
                    1 + usize::from(input.byte())
                } else {
                    input.pick(&[64, 1, 65, 3])
                };
                seed += 1;
                let (keys, values) = (rows(count * token, seed), rows(count * token, !seed));
                match cache.append(0, &keys, &values) {
                    Ok(()) => model.append(&keys, &values),
                    Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
                }
            }
            3 => {
                let position = model.next.saturating_sub(usize::from(input.byte()));
                match cache.truncate(position) {
                    Ok(()) => model.truncate(position),
                    Err(error) => {
                        assert!(matches!(error, Error::Dropped { .. }), "{error}");
                        assert!(config.sliding_window.is_some(), "{error}");
                        assert!(position + config.max_rollback < model.furthest, "{error}");
                    }
                }
            }
            4 => {
                let start = usize::from(input.byte());
                let before: Vec<usize> = cache.layers()[0].positions().collect();
                let range = start..start + usize::from(input.byte());
                let dropped = cache.evict(range.clone());
                assert_eq!(cache.stats().tokens, before.len() - dropped);
                let gone = model.forget_evicted(&before, &cache);
                assert_eq!(gone.len(), dropped, "{config:?}");
                assert!(
                    gone.iter().all(|position| range.contains(position)),
                    "{range:?}, {gone:?}: {config:?}"
                );
            }
            5 if others.len() < 3 => others.push((cache.fork(), model.clone())),
            6 if !others.is_empty() => {
                let other = input.below(others.len());
                std::mem::swap(&mut others[other].0, &mut cache);
                std::mem::swap(&mut others[other].1, &mut model);
            }
            _ => {
                let saved = cache.save();
                let mut loaded = empty(config).unwrap();
                loaded.layer_mut(0).unwrap().load(layer(&saved)).unwrap();
                assert!(loaded.save() == saved, "{config:?}: a snapshot is not what was loaded");
                cache = loaded;
            }
        }
        check(&cache, &model, &mut looked_at, seed);
    }
}

/// The first layer's part of a snapshot.
fn layer(snapshot: &[u8]) -> &[u8] {
    &snapshot[24..]
}

fn check(cache: &KvCache, model: &Model, looked_at: &mut usize, seed: u32) {
    let config = model.config;
    assert_eq!(cache.layers()[0].next_position(), model.next, "{config:?}");
    // Evicted tokens are gone under a sliding window, too. The model knows that.
    model.check_held(cache);
    let queries = rows(config.kv_heads * config.key_dim, seed ^ 0x55aa);
    let mut output = vec![f32::NAN; config.kv_heads * config.value_dim];
    let attended = cache.attend(0, &queries, &mut output);
    if cache.layers()[0].tokens() == 0 {
        assert_eq!(attended, Err(Error::Empty), "{config:?}");
        return;
    }
    attended.unwrap();
    *looked_at += model.positions.len();
    let far = distance(&output, &model.attend(&queries, &Attend::default()));
    // Averages are shorter than the vectors whose errors they keep.
    let exact = matches!(config.values, CodecSpec::F16(_) | CodecSpec::F32(_));
    assert!(
        far < if exact { 0.03 } else { 0.2 },
        "{config:?}, {} tokens: {far} of the norm away",
        model.next
    );
}
