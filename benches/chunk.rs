//! Chunks of 256 tokens of 8 heads of width 128, bf16, on one core: gigabytes of the tensor a second, encoded and decoded; the
//! fastest of many, all codecs taking turns. `cargo bench --bench chunk --features std`.
#![allow(missing_docs, clippy::unwrap_used)]

use octaplex::chunk::{ChunkCodec, ChunkConfig};
use octaplex::{Backend, bf16};
use std::time::{Duration, Instant};

const LAYERS: usize = 4;
const TOKENS: usize = 256;

/// Returns Gaussian numbers that are good enough for timing: sums of twelve uniform ones.
fn gaussian(count: usize) -> Vec<bf16> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| bf16::from_f32((0..12).map(|_| uniform()).sum::<f32>() - 6.0)).collect()
}

fn timed(best: &mut Duration, mut work: impl FnMut()) {
    let start = Instant::now();
    work();
    *best = (*best).min(start.elapsed());
}

fn main() {
    let specs =
        ["turboquant:bits=2", "turboquant", "trellis:m=2", "trellis", "trellis:m=8", "graded", "int", "fp8"];
    let mut cases: Vec<_> = specs
        .iter()
        .map(|spec| {
            let values = if *spec == "graded" { "trellis" } else { spec };
            let config =
                ChunkConfig::new(LAYERS, 8, 128).keys(spec.parse().unwrap()).values(values.parse().unwrap());
            let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
            let blob = vec![0; codec.max_bytes(TOKENS)];
            (codec, blob, [Duration::MAX; 2])
        })
        .collect();
    let mut tensor = gaussian(2 * LAYERS * TOKENS * 8 * 128);
    for _ in 0..40 {
        for (codec, blob, [encode, decode]) in &mut cases {
            let mut length = 0;
            timed(encode, || length = codec.encode_into(&tensor[..], blob).unwrap());
            let mut decoded = vec![bf16::ZERO; tensor.len()];
            timed(decode, || codec.decode(&blob[..length], &mut decoded[..]).unwrap());
            std::hint::black_box(&mut tensor);
        }
    }
    println!("{:?}: codec, bits a value, GB/s encoded, GB/s decoded", Backend::detect());
    let bytes = 2.0 * tensor.len() as f64;
    for (spec, (codec, _, times)) in specs.iter().zip(&cases) {
        let bits = 16.0 * codec.max_bytes(TOKENS) as f64 / bytes;
        let [encode, decode] = times.map(|time| bytes / time.as_secs_f64() / 1e9);
        println!("{spec:<18} {bits:5.2} {encode:6.2} {decode:6.2}");
    }
}
