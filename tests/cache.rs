//! The cache against a plain f32 model of it: append, attend, truncate, evict, fork, in any order.
#![cfg(feature = "alloc")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod balance;
mod budget;
#[cfg(feature = "alloc")]
mod builder;
mod cut;
mod decided;
mod errors;
mod grades;
mod limits;
mod orders;
mod outlying;
mod pieces;
mod query_heads;
mod refused;
mod rollback;
mod threads;

use crate::common::{Any, Random, bits, four_bits};
use crate::model::{Model, distance, dot, softmax};
use octaplex::cache::{Center, LayerCache};
use octaplex::{Attend, Backend, CacheConfig, CodecSpec, Error, Floats, KvCache, LayerConfig, f16};

fn close(actual: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    let distance = distance(actual, expected);
    assert!(distance <= tolerance, "{what}: {distance} of the norm away");
}

fn spec(text: &str) -> CodecSpec {
    text.parse().unwrap()
}

/// A layer whose pages lose nothing, so that the model is exact.
fn exact(random: &mut Random) -> LayerConfig {
    let widths = [(64, 64), (32, 64), (96, 32), (80, 80)];
    let (key_dim, value_dim) = widths[random.below(4)];
    let sliding_window = [None, None, Some(100), Some(300)][random.below(4)];
    let mut config = LayerConfig::new(1, key_dim, 1500)
        .layer(random.below(9) as u32)
        .kv_heads(1 + random.below(3))
        .value_dim(value_dim)
        .keys(spec(["f32", "int:bits=8,group=16"][random.below(2)]))
        .values(spec(["f16", "f32"][random.below(2)]))
        .page([64, 128][random.below(2)])
        .sink_tokens([0, 4, 7][random.below(3)])
        .recent_window([0, 1, 64, 100][random.below(4)])
        .center([Center::Off, Center::Prefix, Center::Page][random.below(3)])
        .balance(random.below(2) == 0)
        .max_rollback([0, 5, 64, 200][random.below(4)]);
    config.sliding_window = sliding_window;
    config
}

fn attend(cache: &mut KvCache, queries: &[f32], options: &Attend) -> Vec<f32> {
    let config = *cache.layers()[0].config();
    let mut output = vec![f32::NAN; queries.len() / config.key_dim * config.value_dim];
    cache.attend_with(0, queries, options, &mut output).unwrap();
    output
}

#[test]
fn random_operations_match_the_model() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let config = exact(&mut random);
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        let mut model = Model::new(config);
        let mut others: Vec<(KvCache, Model)> = Vec::new();
        for _ in 0..24 {
            match random.below(10) {
                0..5 => {
                    let count = [1, 3, 64, 70, 200][random.below(5)];
                    let keys = random.gaussians(config.kv_heads * count * config.key_dim);
                    let values = random.gaussians(config.kv_heads * count * config.value_dim);
                    match cache.append(0, &keys, &values) {
                        Ok(()) => {
                            model.append(&keys, &values);
                        }
                        Err(error) => {
                            assert!(matches!(error, Error::Full { .. }), "{error}");
                            assert_eq!(cache.layers()[0].next_position(), model.next);
                        }
                    }
                }
                5 => {
                    let back = [1, 10, 64, 150][random.below(4)];
                    let position = model.next.saturating_sub(back);
                    match cache.truncate(position) {
                        Ok(()) => model.truncate(position),
                        Err(error) => {
                            assert!(matches!(error, Error::Dropped { .. }), "{error}");
                            assert!(config.sliding_window.is_some());
                            assert!(position + config.max_rollback < model.furthest, "{error}");
                        }
                    }
                }
                6 if config.sliding_window.is_none() => {
                    let start = random.below(model.next + 1);
                    let range = start..start + random.below(300);
                    let before: Vec<usize> = cache.layers()[0].positions().collect();
                    let evicted = cache.evict(range.clone());
                    assert_eq!(cache.stats().tokens, before.len() - evicted);
                    assert_eq!(evicted % config.page, 0);
                    let dropped = model.forget_evicted(&before, &cache);
                    assert_eq!(dropped.len(), evicted);
                    assert!(
                        dropped.iter().all(|position| range.contains(position)),
                        "{dropped:?}, {range:?}"
                    );
                    let page_inside = |from: usize| range.start <= from && from + config.page <= range.end;
                    let starts = (0..cache.layers()[0].stats().paged_tokens).step_by(config.page);
                    let held: Vec<usize> = cache.layers()[0].positions().skip(config.sink_tokens).collect();
                    assert!(starts.map(|index| held[index]).all(|from| !page_inside(from)));
                }
                7 => others.push((cache.fork(), model.clone())),
                8 if !others.is_empty() => {
                    let other = random.below(others.len());
                    std::mem::swap(&mut others[other].0, &mut cache);
                    std::mem::swap(&mut others[other].1, &mut model);
                }
                _ => {}
            }
            check(&mut cache, &model, &mut random, seed);
        }
    }
}

fn check(cache: &mut KvCache, model: &Model, random: &mut Random, seed: u64) {
    let config = model.config;
    assert_eq!(cache.layers()[0].next_position(), model.next);
    model.check_held(cache);
    if model.next == 0 {
        return;
    }
    let mut n = [1, 1, 5][random.below(3)].min(model.next);
    if config.sliding_window.is_some() {
        // A block's first query sees further back than its last.
        n = n.min(config.max_rollback + 1);
    }
    let heads = config.kv_heads * [1, 3, 8][random.below(3)];
    let queries = random.gaussians(heads * n * config.key_dim);
    let sink_logits = random.gaussians(heads);
    let rows = [1, heads][random.below(2)];
    let bias = random.gaussians(rows * model.next);
    let mut options = Attend::default().queries(n);
    let mut pick = |chance| random.below(chance) == 0;
    if pick(3) {
        options.scale = Some(0.2);
    }
    if pick(3) {
        options.soft_cap = Some(2.0);
    }
    if pick(3) {
        options.sink_logits = &sink_logits;
    }
    if pick(3) {
        options.bias = &bias;
    }
    if pick(3) && config.sliding_window.is_none() {
        options.window = Some(90);
    }
    options.keep_sinks = pick(2);
    if cache.layers()[0].tokens() == 0 {
        let mut output = vec![0.0; heads * n * config.value_dim];
        assert_eq!(cache.attend_with(0, &queries, &options, &mut output), Err(Error::Empty));
        return;
    }
    let (actual, expected) = (attend(cache, &queries, &options), model.attend(&queries, &options));
    close(&actual, &expected, 0.02, &format!("seed {seed}, {config:?}, {options:?}"));
}

#[test]
fn scores_and_sums_give_what_attend_gives() {
    let pairs = [
        ("turboquant", "turboquant:bits=3"),
        ("int:asymmetric=true", "f16"),
        ("hqmq:med=1", "turboquant"),
        ("graded:fine=8,coarse=4", "trellis"),
        ("int:bits=5,med=2", "int:med=1"),
        ("hqmq", "hqmq:med=2"),
    ];
    for (keys, values) in pairs {
        for (center, balance) in [(Center::Off, false), (Center::Page, true), (Center::Prefix, true)] {
            let mut random = Random::new(3);
            let each = LayerConfig::new(2, 64, 6000)
                .keys(spec(keys))
                .values(spec(values))
                .center(center)
                .balance(balance);
            let mut cache = KvCache::new([each], Backend::detect()).unwrap();
            let count = 5000;
            let rows: Vec<f32> = random.gaussians(2 * count * 64).iter().map(|x| x + 1.5).collect();
            cache.append(0, &rows, &rows).unwrap();
            let queries = random.gaussians(4 * 64);
            let output = attend(&mut cache, &queries, &Attend::default());
            for (head, query) in queries.chunks_exact(64).enumerate() {
                let mut scores = vec![0.0; count];
                cache.scores(0, head / 2, query, &mut scores).unwrap();
                let exact: Vec<f32> = rows[head / 2 * count * 64..][..count * 64]
                    .chunks_exact(64)
                    .map(|key| dot(query, key) as f32)
                    .collect();
                let error = scores.iter().zip(&exact).map(|(a, b)| (a - b).abs()).sum::<f32>();
                assert!(
                    error / (count as f32) < 1.6,
                    "{keys}: mean error of scores {}",
                    error / count as f32
                );
                let logits: Vec<f64> = scores.iter().map(|x| f64::from(*x) / 8.0).collect();
                let weights: Vec<f32> = softmax(&logits).iter().map(|w| *w as f32).collect();
                let mut sum = vec![0.0; 64];
                cache.accumulate(0, head / 2, &weights, &mut sum).unwrap();
                close(&output[head * 64..][..64], &sum, 1e-4, keys);
            }
        }
    }
}

#[test]
fn pages_of_any_size_are_cut_and_closed_again() {
    let mut random = Random::new(31);
    let (keys, values) = (spec("hqmq:s=192,r=6,med=1"), spec("hqmq:s=192,r=6,med=2"));
    let config = LayerConfig::new(2, 64, 1000).keys(keys).values(values);
    let mut memory = vec![0; config.required_bytes()];
    let mut scratch = vec![0.0; config.scratch_len(2)];
    let mut fixed =
        LayerCache::<Any<64>, Any<64>, _>::new(&config, Backend::detect(), &mut memory[..]).unwrap();
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    let mut model = Model::new(config);
    for (count, position) in [(400, 100), (300, 260), (70, 1000), (500, 520)] {
        let rows = random.gaussians(2 * count * 64);
        model.append(&rows, &rows);
        cache.append(0, &rows, &rows).unwrap();
        fixed.append(&rows, &rows, &mut scratch).unwrap();
        cache.truncate(position).unwrap();
        fixed.truncate(position).unwrap();
        model.truncate(position);
        let queries = random.gaussians(2 * 64);
        let output = attend(&mut cache, &queries, &Attend::default());
        close(&output, &model.attend(&queries, &Attend::default()), 0.25, "after cutting a page");
        let mut other = [0.0; 128];
        fixed.attend(&queries, &mut other, &mut scratch).unwrap();
        assert_eq!(bits(&output), bits(&other));
        assert_eq!(fixed.stats(), cache.stats());
    }
    assert_eq!(cache.stats().decoded_tokens, 32 + 4);
}

#[test]
fn one_token_at_a_time_or_all_at_once() {
    let mut random = Random::new(11);
    for center in [Center::Off, Center::Prefix, Center::Page] {
        let each = LayerConfig::new(2, 64, 1000).balance(true).center(center);
        let rows = random.gaussians(2 * 500 * 64);
        let new = || KvCache::new([each], Backend::detect()).unwrap();
        let (mut at_once, mut one_by_one) = (new(), new());
        at_once.append(0, &rows, &rows).unwrap();
        for token in 0..500 {
            let row: Vec<f32> =
                rows.chunks_exact(500 * 64).flat_map(|head| &head[token * 64..][..64]).copied().collect();
            one_by_one.append(0, &row, &row).unwrap();
        }
        let queries = random.gaussians(4 * 64);
        let outputs =
            [&mut at_once, &mut one_by_one].map(|cache| attend(cache, &queries, &Attend::default()));
        assert_eq!(bits(&outputs[0]), bits(&outputs[1]), "{center:?}");
    }
}

#[test]
fn every_backend_and_every_batch_gives_the_same_bits() {
    let mut random = Random::new(5);
    let each = LayerConfig::new(2, 64, 9000).balance(true);
    let rows = random.gaussians(2 * 8500 * 64);
    let queries = random.gaussians(2 * 12 * 64);
    let mut expected: Option<Vec<u32>> = None;
    for backend in Backend::available() {
        let mut cache = KvCache::new([each], backend).unwrap();
        cache.append(0, &rows, &rows).unwrap();
        let output = attend(&mut cache, &queries, &Attend::default());
        let output = bits(&output);
        assert_eq!(expected.get_or_insert_with(|| output.clone()), &output, "{}", backend.name());
        if backend.name() == Backend::detect().name() {
            // One query head of each key/value head at a time.
            for head in 0..12 {
                let pair = [&queries[head * 64..][..64], &queries[(12 + head) * 64..][..64]].concat();
                let alone = bits(&attend(&mut cache, &pair, &Attend::default()));
                assert_eq!(alone[..64], output[head * 64..][..64]);
                assert_eq!(alone[64..], output[(12 + head) * 64..][..64]);
            }
        }
    }
}

#[test]
fn a_layer_in_the_callers_memory() {
    let config = LayerConfig::new(2, 64, 500).sliding_window(200);
    let mut random = Random::new(9);
    let mut memory = random.bytes(config.required_bytes());
    let mut scratch = vec![f32::NAN; config.scratch_len(4)];
    let mut fixed =
        LayerCache::<Any<64>, Any<64>, _>::new(&config, Backend::detect(), &mut memory[..]).unwrap();
    let mut shared = KvCache::new([config], Backend::detect()).unwrap();
    for count in [1, 100, 300, 64, 1, 700, 5] {
        let rows = random.gaussians(2 * count * 64);
        fixed.append(&rows, &rows, &mut scratch).unwrap();
        shared.append(0, &rows, &rows).unwrap();
        let queries = random.gaussians(4 * 64);
        let mut output = [0.0; 4 * 64];
        fixed.attend(&queries, &mut output, &mut scratch).unwrap();
        assert_eq!(bits(&output), bits(&attend(&mut shared, &queries, &Attend::default())));
        assert_eq!(fixed.stats(), shared.stats());
    }
    assert!(fixed.stats().evicted_tokens > 700, "{:?}", fixed.stats());
    let short = vec![0; config.required_bytes() - 1];
    let refused = LayerCache::<Any<64>, Any<64>, _>::new(&config, Backend::detect(), short);
    assert!(matches!(refused, Err(Error::Length { .. })));
    let refused =
        LayerCache::<Any<64>, Any<32>, _>::new(&config, Backend::detect(), vec![0; config.required_bytes()]);
    assert!(matches!(refused, Err(Error::Width { actual: 64 })));
}

#[test]
fn every_float_type_comes_in() {
    let config = LayerConfig::new(1, 64, 400);
    let rows = Random::new(4).gaussians(300 * 64);
    let half: Vec<f16> = rows.iter().map(|x| f16::from_f32(*x)).collect();
    let brain: Vec<half::bf16> = rows.iter().map(|x| half::bf16::from_f32(*x)).collect();
    let wide: Vec<f32> = brain.iter().map(|x| x.to_f32()).collect();
    let output = |rows: Floats| {
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.append(0, rows, rows).unwrap();
        bits(&attend(&mut cache, &[0.3; 64], &Attend::default()))
    };
    assert_eq!(output(Floats::F32(&rows)), output(Floats::F16(&half)));
    assert_eq!(output(Floats::F32(&wide)), output(Floats::Bf16(&brain)));
}

#[test]
fn centre_and_balance_are_counted_and_help() {
    let mut random = Random::new(8);
    // Large constants, and channels whose keys and queries vary on opposite scales.
    let constants: Vec<f32> = random.gaussians(64).iter().map(|x| 30.0 * x).collect();
    let sizes: Vec<f32> = (0..64).map(|c| if c % 4 == 0 { 8.0 } else { 0.5 }).collect();
    let keys: Vec<f32> =
        (0..600 * 64).map(|i| constants[i % 64] + sizes[i % 64] * random.gaussian()).collect();
    let queries: Vec<f32> = (0..64 * 64).map(|i| random.gaussian() / sizes[i % 64]).collect();
    let error = |config: LayerConfig| {
        let config = config.sink_tokens(0).recent_window(0);
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        if config.balance {
            cache.calibrate(0, &keys, &queries).unwrap();
        }
        cache.append(0, &keys[..576 * 64], &keys[..576 * 64]).unwrap();
        let mut scores = vec![0.0; 64 * 576];
        cache.scores(0, 0, &queries, &mut scores).unwrap();
        let mut sum = 0.0;
        for (scores, query) in scores.chunks_exact(576).zip(queries.chunks_exact(64)) {
            let exact: Vec<f64> = keys[..576 * 64].chunks_exact(64).map(|key| dot(query, key)).collect();
            let errors: Vec<f64> = exact.iter().zip(scores).map(|(a, b)| a - f64::from(*b)).collect();
            let mean = errors.iter().sum::<f64>() / 576.0;
            sum += errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>();
        }
        (sum, cache.stats().bytes)
    };
    let base = four_bits(LayerConfig::new(1, 64, 1000)).balance(false);
    let (plain, plain_bytes) = error(base.center(Center::Off));
    let (prefix, prefix_bytes) = error(base.center(Center::Prefix));
    let (page, page_bytes) = error(base);
    let (balanced, balanced_bytes) = error(base.balance(true));
    assert!(
        prefix < plain / 20.0 && page < plain / 20.0 && balanced < page / 2.0,
        "{plain} {prefix} {page} {balanced}"
    );
    assert_eq!(prefix_bytes - plain_bytes, 2 * 64);
    // A prefix centre as well; and in each of nine pages 5 bits a channel and an f16.
    assert_eq!(page_bytes - prefix_bytes, 9 * (5 * 64 / 8 + 2));
    assert_eq!(balanced_bytes - page_bytes, 2 * 64);
}

#[test]
fn calibration() {
    let mut random = Random::new(21);
    let config = LayerConfig::new(1, 64, 1000).balance(true);
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    let rows = random.gaussians(200 * 64);
    let layer = cache.layer_mut(0).unwrap();
    assert!(layer.calibrate(&rows[1..], &[]).is_err());
    assert!(layer.calibrate(&rows, &rows[1..]).is_err());
    layer.calibrate(&rows, &rows).unwrap();
    layer.calibrate(&rows, &[]).unwrap();
    cache.append(0, &rows, &rows).unwrap();
    assert!(matches!(cache.calibrate(0, &rows, &rows), Err(Error::Unsupported { .. })));
    assert!(cache.calibrate(1, &rows, &rows).is_err());
    let plain = four_bits(LayerConfig::new(1, 64, 1000)).balance(false);
    let mut plain = KvCache::new([plain], Backend::detect()).unwrap();
    assert!(plain.calibrate(0, &rows, &rows).is_err());
}

#[test]
fn boundary_layers_are_exact() {
    let config = CacheConfig::new(4, 1, 64, 1000).boundary_layers(1);
    let specs: Vec<String> = config.layers().map(|layer| layer.keys.to_string()).collect();
    assert_eq!(specs, ["f16", "graded", "graded", "f16"]);
}

#[test]
fn extreme_arguments_are_no_panic() {
    let config = LayerConfig::new(1, 32, 4000).recent_window(0).sink_tokens(0);
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    // Nothing weighted is nothing.
    let mut output = [7.0; 32];
    cache.accumulate(0, 0, &[], &mut output).unwrap();
    assert_eq!(output, [0.0; 32]);
    cache.append(0, &[0.5; 100 * 32], &[0.5; 100 * 32]).unwrap();
    let mut last = [0.0; 2 * 32];
    let queries = Attend::default().queries(2);
    cache.attend_with(0, &[0.1; 2 * 32], &queries.position(99), &mut last).unwrap();
    let mut output = [0.0; 2 * 32];
    let options = queries.position(usize::MAX);
    cache.attend_with(0, &[0.1; 2 * 32], &options, &mut output).unwrap();
    assert_eq!(bits(&output), bits(&last), "a query far behind the end sees what the last one sees");
}

#[test]
fn a_sliding_layer_keeps_no_more_pages_than_it_shows() {
    let from = four_bits(LayerConfig::new(1, 32, 4000)).recent_window(0).sink_tokens(0);
    let to = from.sliding_window(128).max_rollback(0);
    let mut from = KvCache::new([from], Backend::detect()).unwrap();
    from.append(0, &[0.5; 640 * 32], &[0.5; 640 * 32]).unwrap();
    let mut to = KvCache::new([to], Backend::detect()).unwrap();
    for page in 0..10 {
        let mut bytes = Vec::new();
        from.layers()[0].save_page(page, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
        to.layer_mut(0).unwrap().load_page(&bytes).unwrap();
        let shown = (64 * page).saturating_sub(64)..64 * (page + 1);
        assert_eq!(to.layers()[0].positions().collect::<Vec<_>>(), shown.collect::<Vec<_>>());
    }
    let mut output = [0.0; 32];
    to.attend_with(0, &[0.1; 32], &Attend::default().window(640), &mut output).unwrap();
    assert!(output.iter().all(|x| (x - 0.5).abs() < 0.15), "{output:?}");
}
