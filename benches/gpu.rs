//! Times a GPU: encoding, appending, blocks of queries, and a decode step. Run
//! `cargo bench --features cuda --bench gpu -- [codec ...]`; `KEYS+VALUES` names two codecs. `python3 benches/peers/sdpa.py`
//! measures blocks and steps of cuDNN in the same way. Keys and values are Gaussian.
//!
//! * Encoding: the kernels' time for 65,536 tokens of 4 heads. Appending: the host's time for a token.
//! * Blocks: 2,048 and 16 queries, the newest of 32,768 tokens. Medians of 20, in microseconds.
//! * A decode step: one captured graph with enough layers to exceed the GPU's cache several times. A line has the median of
//!   50 launches, in microseconds a layer.
//!
//! `OCTAPLEX_SPLITS=N` splits a sequence into N parts, `OCTAPLEX_SHAPE=N` runs only the shape with this number, and
//! `OCTAPLEX_DIM=N` sets another width than 128.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use octaplex::{Attend, LayerConfig, gpu};

/// Query heads, key/value heads, sequences, tokens; the same as in `sdpa.py`.
const SHAPES: [(usize, usize, usize, usize); 5] =
    [(28, 4, 1, 16_384), (28, 4, 1, 65_536), (28, 4, 1, 131_072), (32, 8, 1, 65_536), (64, 8, 8, 131_072)];
/// Codecs of keys and values.
fn dim() -> usize {
    std::env::var("OCTAPLEX_DIM").map_or(128, |dim| dim.parse().expect("OCTAPLEX_DIM is a width"))
}
/// Parses a codec, or two.
fn config(name: &str, kv_heads: usize, tokens: usize) -> LayerConfig {
    let (keys, values) = name.split_once('+').unwrap_or((name, name));
    let [keys, values] = [keys, values].map(|spec| spec.parse().unwrap());
    LayerConfig::new(kv_heads, dim(), tokens + 256).keys(keys).values(values)
}

/// The least bytes of all layers of a graph.
const BYTES: usize = 400_000_000;

/// Returns numbers that look Gaussian: sums of four bytes, fast.
fn rows(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32).to_le_bytes().iter().take(4).map(|byte| f32::from(*byte)).sum::<f32>() / 148.0 - 3.446
    };
    (0..count).map(|_| next()).collect()
}

/// Times the kernels that encode 65,536 tokens of 4 heads; keys and values are on the GPU in f16.
fn encode(device: &gpu::Device, named: &[String]) {
    let (kv_heads, tokens) = (4, 65_536);
    let (keys, values) = (rows(kv_heads * tokens * dim(), 1), rows(kv_heads * tokens * dim(), 2));
    for name in named {
        let mut layer = gpu::Layer::new(device, &config(name, kv_heads, tokens), 1, tokens).unwrap();
        match layer.time_append(&keys, &values, 20) {
            Ok(mut times) => {
                times.sort_by(f32::total_cmp);
                println!("encode {tokens} tokens x {kv_heads}, {name:18} {:8.1} us", times[10]);
            }
            Err(gpu::Error::Unsupported { why }) => println!("encode {name}: {why}"),
            Err(error) => panic!("{error}"),
        }
        // One token at a time on the host's clock; a page closes every 64.
        let row = &keys[..kv_heads * dim()];
        layer.append(0, &keys[..1024 * row.len()], &values[..1024 * row.len()]).unwrap();
        let start = std::time::Instant::now();
        (0..1024).for_each(|_| layer.append(0, row, row).unwrap());
        let each = start.elapsed().as_secs_f64() * 1e6 / 1024.0;
        println!("append one token x {kv_heads}, {name:18} {each:8.1} us");
    }
}

/// Times a block of 2,048 queries, the newest of 32,768 tokens, as in `sdpa.py`.
fn block(device: &gpu::Device, named: &[String]) {
    let (heads, kv_heads, tokens, queries) = (28, 4, 32_768, 2048);
    let (keys, values) = (rows(kv_heads * tokens * dim(), 1), rows(kv_heads * tokens * dim(), 2));
    let asked = rows(heads * queries * dim(), 3);
    for name in named {
        let mut layer = gpu::Layer::new(device, &config(name, kv_heads, tokens), 1, tokens).unwrap();
        layer.append(0, &keys, &values).unwrap();
        for count in [2048, 16] {
            let options = Attend::default().queries(count);
            let mut times = layer.time_block(&asked[..heads * count * dim()], &options, 20).unwrap();
            times.sort_by(f32::total_cmp);
            println!(
                "block of {count} queries, {heads}/{kv_heads}, {tokens} tokens, {name:18} {:8.1} us",
                times[10]
            );
        }
    }
}

fn main() {
    let device = match gpu::Device::new(0) {
        Ok(device) => device,
        Err(failure) => return println!("skipped: {failure}"),
    };
    let named: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let all = [
        "turboquant:bits=4",
        "trellis:m=4",
        "turboquant:bits=3",
        "turboquant:bits=2",
        "trellis:m=2",
        "trellis:m=8",
        "octopus+turboquant:bits=4",
        "tq3_0+turboquant:bits=4",
        "hqmq+turboquant:bits=4",
        "int:bits=4",
        "int:bits=8",
    ];
    let named = if named.is_empty() { all.map(String::from).to_vec() } else { named };
    encode(&device, &named);
    block(&device, &named);
    let splits = std::env::var("OCTAPLEX_SPLITS").ok().and_then(|splits| splits.parse().ok());
    println!("{}: microseconds a decode step, D = {}, median of 50", device.name(), dim());
    let alone = std::env::var("OCTAPLEX_SHAPE").ok().and_then(|shape| shape.parse::<usize>().ok());
    for (number, (heads, kv_heads, sequences, tokens)) in SHAPES.into_iter().enumerate() {
        if alone.is_some_and(|alone| alone != number) {
            continue;
        }
        for name in &named {
            let config = config(name, kv_heads, tokens);
            let few = 8192;
            let (keys, values) = (rows(kv_heads * few * dim(), 1), rows(kv_heads * few * dim(), 2));
            let bytes = (sequences * tokens * kv_heads * dim()) as f64 / 4.0 * config.page_bits();
            let count = (BYTES as f64 / bytes).ceil().clamp(1.0, 40.0) as usize;
            let mut layers: Vec<gpu::Layer> = (0..count)
                .map(|_| {
                    let mut layer = gpu::Layer::new(&device, &config, sequences, sequences * tokens).unwrap();
                    for sequence in 0..sequences {
                        (0..tokens / few).for_each(|_| layer.append(sequence, &keys, &values).unwrap());
                    }
                    layer.reserve_splits(heads, splits).unwrap();
                    layer
                })
                .collect();
            let queries = rows(sequences * heads * dim(), 3);
            let mut output = vec![0.0; queries.len()];
            for layer in &mut layers {
                layer.attend(&queries, &mut output).unwrap();
            }
            let step =
                gpu::Layer::capture_all(&mut layers.iter_mut().collect::<Vec<_>>(), &Attend::default())
                    .unwrap();
            layers[0].time(&step, 10).unwrap();
            let mut times = layers[0].time(&step, 50).unwrap();
            times.sort_by(f32::total_cmp);
            let each = times[25] / count as f32;
            let bytes = layers[0].gpu_page_bytes() * tokens / 64 * sequences;
            println!(
                "{heads}/{kv_heads} x {sequences}, {tokens:6} tokens, {name:18} {each:8.1} us ({:4.2} TB/s, {count} layers)",
                bytes as f32 / each / 1e6
            );
        }
    }
}
