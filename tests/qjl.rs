//! The sign sketch: its bias, its errors, its layout.
#![cfg(feature = "alloc")] // dense sketches live on the heap
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random};
use octaplex::codecs::HeadId;
use octaplex::{Backend, CodecSpec};

fn build<const D: usize>(spec: &str) -> Any<D> {
    let spec: CodecSpec = spec.parse().unwrap();
    Any::build(spec, Backend::detect(), HeadId::default()).unwrap()
}

fn gaussian<const D: usize>(random: &mut Random) -> [f32; D] {
    std::array::from_fn(|_| random.gaussian())
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The estimate of <x, x> by x's own block.
fn self_score<const D: usize>(codec: &Any<D>, x: &[f32; D]) -> f64 {
    let mut block = vec![0; codec.block_bytes()];
    codec.encode(x, &mut block).unwrap();
    let mut score = [0.0];
    codec.score(&[codec.prepare_query(x).unwrap()], &block, &mut score).unwrap();
    f64::from(score[0]) / dot(x, x)
}

/// Mean of the estimates of <x, x> over seeds and positions, for vectors of `ones` equal values.
fn bias(sketch: &str, ones: usize) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for seed in 0..16 {
        let codec = build::<128>(&format!("qjl:{sketch},seed={seed}"));
        for position in 0..128 {
            let mut x = [0.0; 128];
            for k in 0..ones {
                x[(position + 37 * k) % 128] = 1.0;
            }
            sum += self_score(&codec, &x);
            count += 1.0;
        }
    }
    sum / count
}

#[test]
fn one_hadamard_round_biases_sparse_residuals_and_two_do_not() {
    let (one, pair, two) =
        (bias("sketch_rounds=1", 1), bias("sketch_rounds=1", 2), bias("sketch_rounds=2", 1));
    println!("one-hot: {one:.4} with one round, {two:.4} with two; two equal values, one round: {pair:.4}");
    assert!((one - 1.2533).abs() < 0.005, "{one}");
    assert!((pair - 0.886).abs() < 0.005, "{pair}");
    assert!((two - 1.0).abs() < 0.01, "{two}");
    let (three, gauss) = (bias("sketch_rounds=3", 1), bias("sketch=gauss", 1));
    println!("one-hot: {three:.4} with three rounds, {gauss:.4} with a dense matrix");
    assert!((three - 1.0).abs() < 0.01 && (gauss - 1.0).abs() < 0.01);
}

#[test]
fn gaussian_vectors_are_unbiased_either_way() {
    for sketch in ["sketch_rounds=1", "sketch_rounds=2", "sketch=gauss"] {
        let mut random = Random::new(1);
        let mean = (0..16).map(|seed| {
            let codec = build::<128>(&format!("qjl:{sketch},seed={seed}"));
            (0..256).map(|_| self_score(&codec, &gaussian(&mut random))).sum::<f64>() / 256.0
        });
        let mean = mean.sum::<f64>() / 16.0;
        assert!((mean - 1.0).abs() < 0.005, "{sketch}: {mean}");
    }
}

/// (E‖x-x̂‖²/E‖x‖², mean |q·k - score|, slope of score on q·k) for N(0,1) keys and queries, over eight seeds.
fn measure(spec: &str) -> (f64, f64, f64) {
    const KEYS: usize = 256;
    const SEEDS: usize = 8;
    let mut random = Random::new(7);
    let (mut error, mut energy) = (0.0, 0.0);
    let (mut absolute, mut cross, mut square) = (0.0, 0.0, 0.0);
    for seed in 0..SEEDS {
        let separator = if spec.contains(':') { ',' } else { ':' };
        let codec = build::<128>(&format!("{spec}{separator}seed={seed}"));
        let keys: Vec<[f32; 128]> = (0..KEYS).map(|_| gaussian(&mut random)).collect();
        let mut blocks = vec![0; KEYS * codec.block_bytes()];
        codec.encode_page(&keys, &mut blocks).unwrap();
        for (key, block) in keys.iter().zip(blocks.chunks(codec.block_bytes())) {
            let mut decoded = [0.0; 128];
            codec.decode(block, &mut decoded).unwrap();
            let residual: Vec<f32> = key.iter().zip(&decoded).map(|(a, b)| a - b).collect();
            error += dot(&residual, &residual);
            energy += dot(key, key);
        }
        for _ in 0..16 {
            let query: [f32; 128] = gaussian(&mut random);
            let mut scores = [0.0; KEYS];
            codec.score(&[codec.prepare_query(&query).unwrap()], &blocks, &mut scores).unwrap();
            for (key, score) in keys.iter().zip(scores) {
                let exact = dot(&query, key);
                absolute += (exact - f64::from(score)).abs();
                cross += exact * f64::from(score);
                square += exact * exact;
            }
        }
    }
    (error / energy, absolute / (16 * SEEDS * KEYS) as f64, cross / square)
}

#[test]
fn errors_are_those_of_the_theory() {
    // (spec, distortion, score error). The sketch multiplies the MSE stage's distortion by π/2 - 1 (orthonormal), or by
    // 1.563 (dense, D = 128), which one matrix misses by 1%: the sum of its squares is D² only on average.
    for (spec, distortion, score) in [
        ("turboquant-qjl:bits=2", 0.202, 4.10),
        ("turboquant-qjl:bits=3", 0.0660, 2.32),
        ("turboquant-qjl:bits=4", 0.0194, 1.25),
        ("turboquant-qjl:bits=3,sketch=gauss", 0.1816, 3.85),
        ("qjl", 0.5708, 6.85),
    ] {
        let (d, s, slope) = measure(spec);
        println!("{spec}: distortion {d:.4}, score error {s:.3}, slope {slope:.4}");
        assert!((d / distortion - 1.0).abs() < 0.015, "{spec}: distortion {d}");
        assert!((s / score - 1.0).abs() < 0.03, "{spec}: score error {s}");
        assert!((slope - 1.0).abs() < 0.01, "{spec}: slope {slope}");
    }
}

/// f16 norm, 32 bytes of codes, f16 residual norm, 16 bytes of signs.
#[test]
fn the_published_52_bytes() {
    let codec = build::<128>("turboquant-qjl");
    assert_eq!(codec.block_bytes(), 52);
    let mut parts = Vec::new();
    "turboquant-qjl".parse::<CodecSpec>().unwrap().layout(128, |bytes, _| parts.push(bytes));
    assert_eq!(parts, [2, 32, 2, 16]);

    let x: [f32; 128] = gaussian(&mut Random::new(3));
    let mut block = [0; 52];
    codec.encode(&x, &mut block).unwrap();
    let coarse = build::<128>("turboquant:bits=2,gain=norm");
    let mut expected = [0; 34];
    coarse.encode(&x, &mut expected).unwrap();
    assert_eq!(block[..34], expected);
    let residual = half::f16::from_le_bytes([block[34], block[35]]).to_f64();
    assert!((residual * residual - 0.116).abs() < 0.03, "{residual}");
}

#[test]
fn zero_vectors_have_zero_blocks_and_bad_scales_are_refused() {
    for spec in ["qjl", "turboquant-qjl"] {
        let codec = build::<64>(spec);
        let bytes = codec.block_bytes();
        let mut block = vec![0xff; bytes];
        codec.encode(&[0.0; 64], &mut block).unwrap();
        assert!(block.iter().all(|b| *b == 0), "{spec}");
        let mut x = [1.0; 64];
        codec.decode(&block, &mut x).unwrap();
        assert!(x.iter().all(|x| *x == 0.0), "{spec}");
        let query = codec.prepare_query(&[1.0; 64]).unwrap();
        for at in [0, if spec == "qjl" { 0 } else { 18 }] {
            let mut bad = vec![0; 2 * bytes];
            bad[bytes + at + 1] = 0x7c;
            let mut scores = [3.0; 2];
            let expected = Err(octaplex::Error::Corrupt { block: 1 });
            assert_eq!(
                codec.score(std::slice::from_ref(&query), &bad, &mut scores),
                expected,
                "{spec}, {at}"
            );
            assert!(scores == [3.0; 2] || scores == [0.0; 2], "{spec}, {at}: {scores:?}");
            assert!(codec.decode(&bad[bytes..], &mut x).is_err());
            assert!(codec.accumulate(&[1.0; 2], &bad, &mut [[0.0; 64]]).is_err());
        }
        assert!(codec.encode(&[f32::NAN; 64], &mut block).is_err());
        assert!(codec.prepare_query(&[f32::INFINITY; 64]).is_err());
    }
}

/// Σ weight·decoded block, by `accumulate` and by `decode`.
#[test]
fn accumulating_is_decoding_and_adding() {
    for spec in ["qjl", "qjl:sketch=gauss", "turboquant-qjl", "turboquant-qjl:bits=6,sketch_rounds=3"] {
        let codec = build::<96>(spec);
        let mut random = Random::new(5);
        let values: Vec<[f32; 96]> = (0..300).map(|_| gaussian(&mut random)).collect();
        let weights: Vec<f32> = (0..600).map(|_| random.unit() as f32 / 300.0).collect();
        let mut blocks = vec![0; 300 * codec.block_bytes()];
        codec.encode_page(&values, &mut blocks).unwrap();
        let mut acc = [[0.0; 96]; 2];
        codec.accumulate(&weights, &blocks, &mut acc).unwrap();
        for (acc, weights) in acc.iter_mut().zip(weights.chunks(300)) {
            codec.finish(acc);
            let mut expected = [0.0f64; 96];
            for (weight, block) in weights.iter().zip(blocks.chunks(codec.block_bytes())) {
                let mut decoded = [0.0; 96];
                codec.decode(block, &mut decoded).unwrap();
                expected.iter_mut().zip(decoded).for_each(|(e, d)| *e += f64::from(d) * f64::from(*weight));
            }
            for (a, e) in acc.iter().zip(expected) {
                assert!((f64::from(*a) - e).abs() < 1e-4, "{spec}: {a} {e}");
            }
        }
    }
}

#[test]
fn specs_print_and_parse() {
    for text in ["qjl", "qjl:sketch_rounds=1", "turboquant-qjl:bits=4,sketch=gauss,rotation=haar,seed=9"] {
        let spec: CodecSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        let full = spec.full().to_string();
        assert_eq!(full.parse::<CodecSpec>(), Ok(spec), "{full}");
    }
    assert!("turboquant-qjl:bits=1".parse::<CodecSpec>().is_err());
    assert!("qjl:sketch_rounds=4".parse::<CodecSpec>().is_err());
    let spec: CodecSpec = "qjl:sketch=gauss,sketch_rounds=3".parse().unwrap();
    assert!(Any::<64>::build(spec, Backend::SCALAR, HeadId::default()).is_err());
}
