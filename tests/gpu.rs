//! Compares pages and attention on a GPU with the CPU: `cargo test --features cuda --test gpu`, or `hip`.
//!
//! Without a GPU, each test prints what is missing and passes. `OCTAPLEX_REQUIRE=cuda`, or `hip`, makes
//! that a failure.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

#[path = "common/vectors.rs"]
#[allow(dead_code, unreachable_pub)] // other tests take more of it
mod vectors;

#[path = "gpu/append.rs"]
mod append;

#[path = "gpu/bias.rs"]
mod bias;

#[path = "gpu/cells.rs"]
mod cells;

#[path = "gpu/engine.rs"]
mod engine;
#[path = "gpu/steps.rs"]
mod steps;

#[path = "gpu/extremes.rs"]
mod extremes;

#[path = "gpu/block.rs"]
mod block;

#[path = "gpu/failures.rs"]
mod failures;

#[path = "gpu/graded.rs"]
mod graded;

#[path = "gpu/groups.rs"]
mod groups;

#[path = "gpu/indexed.rs"]
mod indexed;

#[path = "gpu/integers.rs"]
mod integers;

#[path = "gpu/outliers.rs"]
mod outliers;

#[path = "gpu/portable.rs"]
mod portable;

#[path = "gpu/snapshot.rs"]
mod snapshot;

use octaplex::cache::SharedLayer;
use octaplex::{Attend, Backend, CodecSpec, Error, LayerConfig, gpu};
use std::sync::OnceLock;
use vectors::Random;

/// Returns the GPU, or prints why there is none.
fn device() -> Option<gpu::Device> {
    static DEVICE: OnceLock<Result<gpu::Device, gpu::Failure>> = OnceLock::new();
    match DEVICE.get_or_init(|| gpu::Device::new(0)) {
        Ok(device) => Some(device.clone()),
        Err(failure) => {
            let required = std::env::var("OCTAPLEX_REQUIRE")
                .is_ok_and(|names| names.split(',').any(|name| matches!(name, "cuda" | "hip")));
            assert!(!required, "required, but {failure}");
            println!("skipped: {failure}");
            None
        }
    }
}

/// Codecs that GPUs take.
const CODECS: [&str; 6] = [
    "turboquant:bits=4",
    "turboquant:bits=3",
    "turboquant:bits=2",
    "trellis:m=4",
    "trellis:m=2",
    "trellis:m=8",
];

/// Keys and values with different codecs.
const OTHERS: [(&str, &str); 17] = [
    ("octopus", "turboquant"),
    ("octopus:bits=2", "trellis"),
    ("octopus:bits=4", "turboquant:bits=3"),
    ("octopus:bdir=4,bnrm=0,tail=paper", "trellis:m=2"),
    ("octopus:bdir=1,bnrm=6,gain=norm,rounds=2", "turboquant:bits=2"),
    ("int", "int"),
    ("int:bits=8", "int:bits=8"),
    ("int:bits=8,rotate=true", "int:rotate=true"),
    ("int:rotate=true", "trellis"),
    ("turboquant:bits=3", "int:bits=8,rotate=true"),
    ("octopus", "int"),
    ("turboquant:bits=8", "turboquant:bits=8"),
    ("turboquant:bits=5", "turboquant:bits=7"),
    ("turboquant:bits=6", "trellis:states=16"),
    ("trellis:m=16", "turboquant:bits=6"),
    ("octopus", "turboquant:bits=8"),
    ("trellis:m=3,states=32", "trellis:m=1,states=4"),
];

/// Keys of small blocks, and of chunks with all kinds of sets.
const SMALL: [(&str, &str); 8] = [
    ("tq3_0", "turboquant"),
    ("tq3_0:variant=3bit", "trellis"),
    ("hqmq", "turboquant:bits=3"),
    ("hqmq:s=24,r=3,rotate=true", "int"),
    ("hqmq:s=255,r=6", "trellis:m=2"),
    ("hqmq:s=255,r=6", "turboquant:bits=8"),
    ("hqmq:s=192,r=2,secondary=optimised", "turboquant:bits=2"),
    ("hqmq:s=1,r=5,seed=3", "int:bits=8"),
];

/// Returns all of these that support a width: small blocks need a multiple of 32.
fn others(dim: usize) -> impl Iterator<Item = (&'static str, &'static str)> {
    let fits = move |keys: &str| dim.is_multiple_of(32) || !keys.starts_with("tq3_0");
    OTHERS.into_iter().chain(SMALL).filter(move |(keys, _)| fits(keys))
}

/// Widths that GPUs take.
const WIDTHS: [usize; 6] = [64, 80, 96, 128, 192, 256];

/// Runs all widths in parallel, because compiling kernels takes most of the time.
fn each_width(widths: &[usize], check: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| widths.iter().for_each(|dim| drop(scope.spawn(|| check(*dim)))));
}

/// A test case.
#[derive(Clone, Copy)]
struct Case {
    config: LayerConfig,
    heads: usize,
    tokens: usize,
    seed: u64,
}

/// Creates a case with `turboquant` keys and values, for tests of the code around codecs.
fn four_bits(config: LayerConfig) -> LayerConfig {
    let codec = "turboquant".parse().unwrap();
    config.keys(codec).values(codec)
}

fn case(keys: &str, values: &str, dim: usize, heads: (usize, usize), tokens: usize) -> Case {
    let spec = |text: &str| text.parse::<CodecSpec>().unwrap();
    let config = LayerConfig::new(heads.1, dim, tokens.max(256) + 256).keys(spec(keys)).values(spec(values));
    Case { config, heads: heads.0, tokens, seed: tokens as u64 }
}

impl Case {
    /// Creates a layer on the CPU.
    fn layer(&self) -> SharedLayer {
        let [keys, values] = self.rows();
        let mut layer = SharedLayer::on_heap(&self.config, Backend::detect()).unwrap();
        let mut scratch = vec![0.0; self.config.scratch_len(self.heads)];
        layer.append(&keys, &values, &mut scratch).unwrap();
        layer
    }

    /// Returns keys with a large constant part, channels and rows of different sizes, and values.
    fn rows(&self) -> [Vec<f32>; 2] {
        let LayerConfig { kv_heads, key_dim: dim, .. } = self.config;
        let mut random = Random::new(self.seed);
        let channels: Vec<f32> = (0..dim).map(|c| if c % 17 == 3 { 6.0 } else { 0.0 }).collect();
        let mut rows = |centre: bool| {
            let mut rows = random.gaussians(kv_heads * self.tokens * dim);
            for (number, row) in rows.chunks_exact_mut(dim).enumerate() {
                let size =
                    [1.0, 0.6, 1.7, 0.05][number * 7 % 13 % 4] * if number % 97 == 5 { 0.0 } else { 1.0 };
                for (x, channel) in row.iter_mut().zip(&channels) {
                    *x = *x * size + if centre { *channel } else { 0.0 };
                }
            }
            rows
        };
        [rows(true), rows(false)]
    }

    fn queries(&self) -> Vec<f32> {
        self.block(1)
    }

    /// Returns queries of each head.
    fn block(&self, count: usize) -> Vec<f32> {
        let mut random = Random::new(self.seed ^ 0x5eed);
        random.gaussians(self.heads * count * self.config.key_dim)
    }

    /// Computes attention on the CPU.
    fn on_cpu(&self, layer: &SharedLayer, queries: &[f32], options: &Attend) -> Vec<f32> {
        let mut output = vec![0.0; queries.len()];
        let rows = queries.len() / self.config.key_dim;
        let mut scratch = vec![0.0; self.config.scratch_len(rows)];
        layer.attend_with(queries, options, &mut output, &mut scratch).unwrap();
        output
    }

    /// Computes attention in f64 on the decoded tokens of the layer.
    fn in_f64(&self, layer: &SharedLayer, queries: &[f32], options: &Attend) -> Vec<f64> {
        let LayerConfig { kv_heads, key_dim: dim, sink_tokens, .. } = self.config;
        let (positions, next) = (layer.positions().collect::<Vec<_>>(), layer.next_position());
        let scale = options.scale.map_or(1.0 / (dim as f64).sqrt(), f64::from);
        let (block, window) = (options.queries.unwrap_or(1), options.window.or(self.config.sliding_window));
        let first = options.position.unwrap_or_else(|| next - block);
        let mut output = Vec::new();
        let decode = |(head, number)| {
            let (mut key, mut value) = (vec![0.0; dim], vec![0.0; dim]);
            layer.decode(head, number, &mut key, &mut value).unwrap();
            (key, value)
        };
        let tokens = positions.len();
        let decoded: Vec<_> = (0..kv_heads)
            .flat_map(|head| (0..tokens).map(move |number| (head, number)))
            .map(decode)
            .collect();
        for (head, queries) in queries.chunks_exact(block * dim).enumerate() {
            let decoded = &decoded[head / (self.heads / kv_heads) * tokens..][..tokens];
            for (query, at) in queries.chunks_exact(dim).zip(first..) {
                let start = window.map_or(0, |window| (at + 1).saturating_sub(window));
                let mut logits = Vec::new();
                for ((key, _), position) in decoded.iter().zip(&positions) {
                    let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    let mut logit = dot * scale;
                    if let Some(cap) = options.soft_cap.map(f64::from) {
                        logit = cap * (logit / cap).tanh();
                    }
                    if !options.bias.is_empty() {
                        let row = if options.bias.len() == next { 0 } else { head };
                        logit += f64::from(options.bias[row * next + position]);
                    }
                    let is_sink = options.keep_sinks && *position < sink_tokens;
                    let seen = *position <= at && (*position >= start || is_sink);
                    logits.push(if seen { logit } else { f64::NEG_INFINITY });
                }
                let sink = options.sink_logits.get(head).map(|x| f64::from(*x));
                let max = logits.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = logits.iter().copied().chain(sink).map(|x| (x - max).exp()).sum();
                let mut sum = vec![0.0; dim];
                for (logit, (_, value)) in logits.iter().zip(decoded) {
                    let weight = (logit - max).exp() / total;
                    sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * f64::from(*x));
                }
                output.extend(sum);
            }
        }
        output
    }

    /// Computes attention on a GPU, and returns the layer too.
    fn on_gpu(&self, device: &gpu::Device, layer: &SharedLayer) -> gpu::Layer {
        let mut gpu = gpu::Layer::new(device, &self.config, 1, layer.stats().paged_tokens).unwrap();
        gpu.upload(0, layer).unwrap();
        gpu.reserve(self.heads).unwrap();
        gpu
    }

    /// Returns the largest relative error of a head's output, compared with f64 and with the CPU.
    fn check(&self, device: &gpu::Device, options: &Attend) -> (f64, f64) {
        let layer = self.layer();
        self.check_layer(&layer, &mut self.on_gpu(device, &layer), options)
    }

    /// Does the same with a layer that the CPU and the GPU hold.
    fn check_layer(&self, layer: &SharedLayer, gpu: &mut gpu::Layer, options: &Attend) -> (f64, f64) {
        let queries = self.block(options.queries.unwrap_or(1));
        let mut output = vec![f32::NAN; queries.len()];
        gpu.attend_with(&queries, options, &mut output).unwrap();
        let exact = self.in_f64(layer, &queries, options);
        let cpu: Vec<f64> = self.on_cpu(layer, &queries, options).iter().map(|x| f64::from(*x)).collect();
        let dim = self.config.key_dim;
        (error(&output, &exact, dim), error(&cpu.iter().map(|x| *x as f32).collect::<Vec<_>>(), &exact, dim))
    }
}

/// Returns the largest ‖a - b‖/‖b‖ of all rows.
fn error(a: &[f32], b: &[f64], dim: usize) -> f64 {
    let rows = a.chunks_exact(dim).zip(b.chunks_exact(dim)).map(|(a, b)| {
        let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
        let norm: f64 = b.iter().map(|b| b * b).sum();
        if a.iter().all(|x| x.is_finite()) { (error / norm.max(1e-30)).sqrt() } else { f64::INFINITY }
    });
    rows.fold(0.0, f64::max)
}

/// Maximum difference from f64.
const TOLERANCE: f64 = 3e-4;
/// The same for a block, which rounds queries, keys, values and weights. Over all pairs and widths the
/// maximum was 2.1e-3 on an H200, and 2.2e-3 with these kernels on a CPU (`kernels/portable.cuh`).
const BLOCK_TOLERANCE: f64 = 2.7e-3;

#[test]
fn missing_drivers_and_gpus_are_named() {
    match gpu::Device::new(0) {
        Ok(device) => {
            println!("{}, {:?}, {}", device.name(), device.vendor(), device.architecture());
            let none = gpu::Device::new(1000).unwrap_err();
            assert!(matches!(none, gpu::Failure::NoGpu { ordinal: 1000, .. }), "{none}");
            assert_eq!(gpu::Device::of(device.vendor(), 0).unwrap().name(), device.name());
        }
        Err(failure) => {
            println!("skipped: {failure}");
            assert!(matches!(failure, gpu::Failure::NoDriver | gpu::Failure::NoGpu { .. }), "{failure:?}");
        }
    }
    // The error names each supported vendor, and what to install.
    let text = gpu::Failure::NoDriver.to_string();
    for (vendor, what) in [(gpu::Vendor::Nvidia, "libcuda.so"), (gpu::Vendor::Amd, "libamdhip64.so")] {
        let here = gpu::Vendor::ALL.contains(&vendor);
        assert_eq!(text.contains(what), here, "{text}");
        if !here {
            assert_eq!(gpu::Device::of(vendor, 0).unwrap_err(), gpu::Failure::NoDriver);
        }
    }
}

/// Returns the bytes of a page, as a snapshot contains them before its checksum.
fn page_bytes(layer: &SharedLayer, index: usize) -> Vec<u8> {
    let (mut bytes, mut len, mut varies) = (Vec::new(), 0, false);
    layer.save_page(index, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
    layer.config().page_layout(|part, what| {
        len += part;
        varies |= what.starts_with("length of the page");
    });
    let end = bytes.len() - 4;
    // A page of variable length states its length after its position.
    let is_start = |at: &usize| bytes[at + 8..at + 16] == ((end - at) as u64).to_le_bytes();
    let start = if varies { (0..end - 16).find(is_start).unwrap() } else { end - len };
    bytes[start..end].to_vec()
}

/// Checks that a sequence has the bytes of all pages of the CPU's layer, and returns their number.
fn assert_pages(gpu: &mut gpu::Layer, sequence: usize, layer: &SharedLayer) -> usize {
    let (pages, config) = (gpu.pages(sequence).unwrap(), layer.config());
    let page = |index| {
        let expected = page_bytes(layer, index);
        let mut bytes = vec![0xaa; expected.len()];
        gpu.page(sequence, index, &mut bytes).unwrap();
        assert!(
            bytes == expected,
            "{}, {}, width {}, pages of {}: page {index}",
            config.keys,
            config.values,
            config.key_dim,
            config.page
        );
        bytes.len()
    };
    (0..pages).map(page).sum()
}

#[test]
fn pages_round_trip() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let pairs = (0..6).map(|number| (CODECS[number], CODECS[(number + dim / 64) % CODECS.len()]));
        for (keys, values) in pairs.chain(others(dim)) {
            for (page, center) in [
                (64, octaplex::cache::Center::Page),
                (128, octaplex::cache::Center::Prefix),
                (256, octaplex::cache::Center::Page),
            ] {
                let mut case = case(keys, values, dim, (2, 2), 900);
                case.config = case.config.page(page).center(center);
                let layer = case.layer();
                let mut gpu = case.on_gpu(&device, &layer);
                assert_eq!(gpu.pages(0).unwrap(), layer.stats().paged_tokens / page);
                assert_eq!(gpu.tokens(0).unwrap(), 900);
                assert_pages(&mut gpu, 0, &layer);
            }
        }
    });
}

#[test]
fn every_codec_and_width_attends_like_f64() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let next = |number| CODECS[(number + 1 + dim / 64) % CODECS.len()];
        let pairs =
            (0..6).flat_map(|number| [CODECS[number], next(number)].map(|values| (CODECS[number], values)));
        for (keys, values) in pairs.chain(others(dim)) {
            let (gpu, cpu) = case(keys, values, dim, (14, 2), 1000).check(&device, &Attend::default());
            println!("{keys:18} {values:18} width {dim:3}: gpu {gpu:.1e}, CPU {cpu:.1e}");
            assert!(gpu < TOLERANCE, "{keys}, {values}, width {dim}: {gpu:e}");
        }
    });
}

#[test]
fn lengths_heads_and_pages() {
    let Some(device) = device() else { return };
    // Exact tokens alone, one page, pages that are no multiple of four; one head, and more than eight for
    // one key.
    let lengths = [1, 3, 4, 5, 60, 131, 132, 195, 196, 260, 324, 388, 452, 2000, 9000];
    for (number, tokens) in lengths.into_iter().enumerate() {
        for dim in WIDTHS {
            let heads = [(1, 1), (8, 1), (20, 2), (9, 3)][number % 4];
            let mut case = case("turboquant", "trellis", dim, heads, tokens);
            case.config = case.config.page([64, 128, 256][number % 3]).sink_tokens([0, 4, 17][number % 3]);
            let (gpu, _) = case.check(&device, &Attend::default());
            assert!(gpu < TOLERANCE, "{tokens} tokens, width {dim}, heads {heads:?}: {gpu:e}");
        }
    }
}

#[test]
fn every_option() {
    let Some(device) = device() else { return };
    let logits: Vec<f32> = (0..12).map(|head| head as f32 / 2.0 - 1.0).collect();
    let all = [
        Attend::default().scale(0.2),
        Attend::default().soft_cap(3.0),
        Attend::default().window(700),
        Attend::default().window(300).keep_sinks(true),
        Attend::default().window(20),
        Attend::default().sink_logits(&logits),
        Attend::default().sink_logits(&logits).soft_cap(8.0).window(400).keep_sinks(true).scale(-0.1),
    ];
    for (keys, dim) in [
        ("turboquant", 128),
        ("trellis", 64),
        ("turboquant:bits=3", 80),
        ("turboquant:bits=2", 256),
        ("octopus", 128),
        ("int", 96),
        ("tq3_0:variant=3bit", 192),
        ("hqmq", 80),
        ("turboquant:bits=8", 128),
        ("trellis:states=64", 192),
        ("int:med=2", 128),
        ("turboquant:levels=12", 80),
        ("graded", 128),
    ] {
        let of_keys = ["graded", "octopus", "tq3_0", "hqmq"].iter().any(|alone| keys.starts_with(alone));
        let values = if of_keys { "turboquant" } else { keys };
        let case = case(keys, values, dim, (12, 2), 1500);
        let layer = case.layer();
        let mut gpu = case.on_gpu(&device, &layer);
        for (number, options) in all.iter().enumerate() {
            let (gpu, _) = case.check_layer(&layer, &mut gpu, options);
            assert!(gpu < TOLERANCE, "{keys}, options {number}: {gpu:e}");
        }
    }
    let configs: [fn(LayerConfig) -> LayerConfig; 5] = [
        |config| config.center(octaplex::cache::Center::Off),
        |config| config.center(octaplex::cache::Center::Prefix),
        |config| config.balance(false),
        |config| config.sliding_window(500),
        |config| config.keys("turboquant:rounds=3,seed=9,gain=norm".parse().unwrap()),
    ];
    for (number, config) in configs.iter().enumerate() {
        let mut case = case("turboquant", "turboquant:bits=3", 128, (8, 2), 1500);
        case.config = config(case.config);
        let (gpu, _) = case.check(&device, &Attend::default());
        assert!(gpu < TOLERANCE, "configuration {number}: {gpu:e}");
    }
}

#[test]
fn sequences_forks_and_graphs() {
    let Some(device) = device() else { return };
    let cases = [900, 40, 2000].map(|tokens| Case {
        config: case("trellis", "turboquant", 128, (8, 2), 2000).config,
        ..case("trellis", "turboquant", 128, (8, 2), tokens)
    });
    let layers = cases.map(|case| case.layer());
    let mut gpu = gpu::Layer::new(&device, &cases[0].config, 4, 5000).unwrap();
    for (number, layer) in layers.iter().enumerate() {
        gpu.upload(number, layer).unwrap();
    }
    gpu.reserve(8).unwrap();
    let width = 8 * 128;
    let queries: Vec<f32> = (0..4).flat_map(|number| cases[number % 3].queries()).collect();
    let mut output = vec![f32::NAN; 4 * width];
    gpu.attend(&queries, &mut output).unwrap();
    let check = |output: &[f32], number: usize, layer: &SharedLayer, case: &Case| {
        let mine = number * width..(number + 1) * width;
        let exact = case.in_f64(layer, &queries[mine.clone()], &Attend::default());
        let error = error(&output[mine], &exact, 128);
        assert!(error < TOLERANCE, "sequence {number}: {error:e}");
    };
    (0..3).for_each(|number| check(&output, number, &layers[number], &cases[number]));
    assert!(output[3 * width..].iter().all(|x| *x == 0.0), "a sequence that holds nothing");

    // A captured step sees the data at its launch, and is bit-exact with a step that was not captured.
    let step = gpu.capture(&Attend::default()).unwrap();
    let mut again = vec![f32::NAN; 4 * width];
    gpu.launch(&step, &queries, &mut again).unwrap();
    assert_eq!(output, again);
    gpu.fork(2, 3).unwrap();
    gpu.clear(2).unwrap();
    gpu.launch(&step, &queries, &mut again).unwrap();
    assert_eq!(again[..2 * width], output[..2 * width]);
    assert!(again[2 * width..3 * width].iter().all(|x| *x == 0.0));
    check(&again, 3, &layers[2], &cases[2]);

    // Pages of sequence 3 stay while it holds them. Then they are free.
    assert!(matches!(gpu.upload(2, &layers[2]), Ok(())));
    assert!(matches!(gpu.upload(1, &layers[2]), Err(gpu::Error::Full { .. })));
    gpu.launch(&step, &queries, &mut again).unwrap();
    assert_eq!(again[..2 * width], output[..2 * width], "a refused upload changes nothing");
    gpu.clear(3).unwrap();
    gpu.upload(1, &layers[2]).unwrap();

    // Steps do not allocate.
    let allocated = allocation_counter::measure(|| {
        gpu.attend(&queries, &mut output).unwrap();
        gpu.launch(&step, &queries, &mut again).unwrap();
    });
    assert_eq!((allocated.count_total, &output), (0, &again));

    // A step of another layer is an error, and so is a step from before another number of heads.
    gpu.reserve(4).unwrap();
    let refused = gpu.launch(&step, &queries[..4 * 4 * 128], &mut again[..4 * 4 * 128]);
    assert!(matches!(refused, Err(gpu::Error::Unsupported { .. })), "{refused:?}");
}

/// With this number of heads, exact tokens have no blocks of threads of their own. One sequence has no
/// pages.
#[test]
fn exact_tokens_with_pages() {
    let Some(device) = device() else { return };
    // Trellis keys use other code for exact tokens, and so do columns of a warp beyond 128.
    let codes = ("turboquant", "trellis");
    for (dim, (keys, values)) in [
        (64, codes),
        (80, codes),
        (128, codes),
        (128, ("trellis", "turboquant")),
        (128, ("octopus", "turboquant")),
        (64, ("int", "int:bits=8")),
        (192, ("trellis", "trellis")),
        (96, ("tq3_0", "trellis")),
        (128, ("hqmq", "turboquant")),
        (64, ("turboquant:bits=7", "turboquant:bits=8")),
        (128, ("turboquant:levels=12", "turboquant:levels=10")),
        (256, ("trellis:m=6,states=16", "turboquant:bits=5")),
    ] {
        let cases = [6000, 100, 1000].map(|tokens| {
            let mut case = case(keys, values, dim, (24, 24), 6000);
            (case.tokens, case.config.sink_tokens) = (tokens, 40);
            case
        });
        let layers = cases.map(|case| case.layer());
        let mut gpu = gpu::Layer::new(&device, &cases[0].config, 3, 8000).unwrap();
        layers.iter().enumerate().for_each(|(number, layer)| gpu.upload(number, layer).unwrap());
        gpu.reserve(24).unwrap();
        let width = 24 * dim;
        let queries: Vec<f32> = cases.iter().flat_map(Case::queries).collect();
        let mut output = vec![f32::NAN; 3 * width];
        gpu.attend(&queries, &mut output).unwrap();
        for (number, (case, layer)) in cases.iter().zip(&layers).enumerate() {
            let mine = number * width..(number + 1) * width;
            let exact = case.in_f64(layer, &queries[mine.clone()], &Attend::default());
            let wrong = error(&output[mine], &exact, dim);
            println!("{} tokens, width {dim}, {keys}: {wrong:.1e}", case.tokens);
            assert!(wrong < TOLERANCE, "{} tokens, width {dim}, {keys}: {wrong:e}", case.tokens);
        }
    }
}

#[test]
fn unsupported_configurations_are_errors() {
    let Some(device) = device() else { return };
    let config = four_bits(LayerConfig::new(2, 128, 1000));
    let refused = |config: LayerConfig| match gpu::Layer::new(&device, &config, 1, 1000) {
        Err(gpu::Error::Unsupported { why }) => why,
        other => panic!("{other:?}"),
    };
    for keys in ["octopus:norm=f32", "octopus:bdir=6,bnrm=4"] {
        assert!(refused(config.keys(keys.parse().unwrap())).contains("turboquant"), "{keys}");
    }
    for values in ["octopus", "tq3_0", "hqmq"] {
        assert!(refused(config.values(values.parse().unwrap())).contains("turboquant"), "{values}");
    }
    let haar = refused(config.values("turboquant:levels=12,rotation=haar".parse().unwrap()));
    assert!(haar.contains("rotation=wht") && haar.contains("leave rotation=haar out"), "{haar}");
    assert!(refused(four_bits(LayerConfig::new(2, 112, 1000))).contains("width"));
    let groups = four_bits(LayerConfig::new(2, 80, 1000)).values("int:group=32".parse().unwrap());
    let odd = gpu::Layer::new(&device, &groups, 1, 1000);
    assert!(matches!(odd, Err(gpu::Error::Library(Error::Unsupported { .. }))), "{odd:?}");
    let huge = gpu::Layer::new(&device, &four_bits(LayerConfig::new(1024, 128, 1 << 30)), 1, 1 << 30);
    assert!(matches!(huge, Err(gpu::Error::Device(gpu::Failure::Memory { .. }))), "{huge:?}");

    let case = case("turboquant", "turboquant", 128, (4, 2), 500);
    let (layer, queries) = (case.layer(), case.queries());
    let mut gpu = gpu::Layer::new(&device, &case.config, 1, 1000).unwrap();
    let mut output = vec![0.0; queries.len()];
    assert!(matches!(gpu.attend(&queries, &mut output), Err(gpu::Error::Unsupported { .. })));
    assert!(matches!(gpu.reserve(3), Err(gpu::Error::Library(Error::Heads { .. }))));
    gpu.reserve(4).unwrap();
    assert_eq!(gpu.attend(&queries, &mut output), Err(gpu::Error::Library(Error::Empty)));
    gpu.upload(0, &layer).unwrap();
    let refused = gpu.capture(&Attend::default().queries(2));
    assert!(matches!(refused, Err(gpu::Error::Unsupported { .. })), "{refused:?}");
    let mut bad = queries.clone();
    bad[77] = f32::NAN;
    let refused = gpu.attend(&bad, &mut output);
    assert_eq!(refused, Err(gpu::Error::Library(Error::NonFinite { index: 77 })));
    assert!(gpu.attend(&queries[1..], &mut output).is_err());
    assert!(gpu.attend_with(&queries, &Attend::default().window(0), &mut output).is_err());
    let other = Case { config: case.config.sink_tokens(5), ..case }.layer();
    assert!(matches!(gpu.upload(0, &other), Err(gpu::Error::Unsupported { .. })));
    assert!(matches!(gpu.upload(1, &layer), Err(gpu::Error::Library(Error::Missing { .. }))));
    assert!(matches!(gpu.page(0, 99, &mut []), Err(gpu::Error::Library(Error::Missing { .. }))));
    gpu.attend(&queries, &mut output).unwrap();
    let exact = case.in_f64(&layer, &queries, &Attend::default());
    assert!(error(&output, &exact, 128) < TOLERANCE, "as it was");
}
