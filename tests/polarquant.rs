//! PolarQuant against its definition with trigonometric functions, and its figures.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Random, Steps, build};
use octaplex::CodecSpec;
use octaplex_arch::{AngleTree, Angles, Backend};
use std::f64::consts::{FRAC_PI_2, PI};

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn distortion_is_that_of_the_definition() {
    for (spec, dim, expected) in [
        ("polarquant:bits=2", 128, 0.220),
        ("polarquant:bits=3", 128, 0.0569),
        ("polarquant:bits=4", 128, 0.0144),
        ("polarquant:depth=4", 128, 0.0322),
    ] {
        let codec = build(spec, dim);
        let mut random = Random::new(1);
        let (mut error, mut energy, mut score_error) = (0.0, 0.0, 0.0);
        for _ in 0..3000 {
            let x = random.gaussians(dim);
            let query = random.gaussians(dim);
            let mut block = vec![0; codec.block_bytes()];
            let mut decoded = vec![0.0; dim];
            let mut score = [0.0];
            codec.encode(&x, &mut block).unwrap();
            codec.decode(&block, &mut decoded).unwrap();
            codec.prepare_and_score(&query, &block, &mut score).unwrap();
            let residual: Vec<f32> = x.iter().zip(&decoded).map(|(a, b)| a - b).collect();
            error += dot(&residual, &residual);
            energy += dot(&x, &x);
            score_error += (dot(&query, &x) - f64::from(score[0])).abs();
        }
        println!("{spec}: distortion {:.4}, score error {:.3}", error / energy, score_error / 3000.0);
        assert!((error / energy / expected - 1.0).abs() < 0.015, "{spec}: {}", error / energy);
    }
}

#[test]
fn blocks_have_the_documented_bytes() {
    for (spec, dim, bytes) in [
        ("polarquant:bits=2", 128, 34),
        ("polarquant:bits=3", 128, 50),
        ("polarquant:bits=4", 128, 66),
        ("polarquant:bits=2", 64, 18),
        ("polarquant:bits=3", 64, 26),
        ("polarquant:bits=4", 64, 34),
        ("polarquant:depth=4", 128, 62),
        ("polarquant:depth=4", 96, 47),
        ("polarquant:depth=4", 80, 39),
    ] {
        let spec: CodecSpec = spec.parse().unwrap();
        assert_eq!(spec.block_bytes(dim), bytes, "{spec} at {dim}");
    }
    let four: CodecSpec = "polarquant:depth=4".parse().unwrap();
    assert_eq!(four.bits_per_value(128), 3.875);
    for (text, dims) in
        [("polarquant", &[80, 96, 112, 160, 192, 576][..]), ("polarquant:bits=3,depth=4", &[64, 128][..])]
    {
        let spec: CodecSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        for dim in dims {
            assert!(
                crate::common::try_build(spec, *dim, octaplex::Backend::SCALAR).is_err(),
                "{spec} at {dim}"
            );
            assert_eq!(spec.block_bytes(*dim), 0);
        }
    }
}

/// An angle's code by its arctangent.
fn code(x: f64, y: f64, first: bool, bits: u8, tangents: &[f32]) -> (usize, f64) {
    let angle = y.atan2(x).rem_euclid(2.0 * PI);
    if first {
        let sectors = f64::from(1u32 << bits);
        let exact = angle / (2.0 * PI) * sectors;
        return (exact as usize % (1 << bits), (exact - exact.round()).abs());
    }
    let thresholds = tangents.iter().map(|t| f64::from(*t).atan());
    let near = thresholds.clone().map(|t| (t - angle).abs()).fold(FRAC_PI_2, f64::min);
    (thresholds.filter(|t| angle >= *t).count(), near)
}

/// Codes by comparison are codes by arctangent, except for angles within rounding of a threshold.
#[test]
fn comparisons_find_the_angles() {
    let mut random = Random::new(2);
    let tangents: Vec<f32> = (1..4).map(|k| (f64::from(k) * PI / 8.0).tan() as f32).collect();
    for bits in [1u8, 2, 3, 4] {
        let codes = 1usize << bits;
        let circle = |k: usize| (k as f64 + 0.5) * 2.0 * PI / codes as f64;
        let first: Vec<f32> =
            (1..codes / 4).map(|k| (k as f64 * 2.0 * PI / codes as f64).tan() as f32).collect();
        let directions: Vec<[f32; 2]> =
            (0..codes).map(|k| [circle(k).cos() as f32, circle(k).sin() as f32]).collect();
        let levels = [
            Angles { bits, directions: &directions, tangents: &first },
            Angles { bits: 2, directions: &[[0.9, 0.3]; 4], tangents: &tangents },
        ];
        let tree = AngleTree { dim: 64, levels: &levels };
        for _ in 0..500 {
            let x = random.gaussians(64);
            for backend in Backend::available() {
                let (mut radii, mut found) = (x.clone(), vec![0xff; 48]);
                backend.quantize_angles(&tree, &mut radii, &mut found);
                let mut level: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                for (range, angles, is_first) in [(0..32, levels[0], true), (32..48, levels[1], false)] {
                    for (pair, found) in level.chunks(2).zip(&found[range]) {
                        let (code, near) = code(pair[0], pair[1], is_first, angles.bits, angles.tangents);
                        assert!(code == usize::from(*found) || near < 1e-6, "{pair:?}: {code} {found}");
                    }
                    level = level.chunks(2).map(|p| p[0].hypot(p[1])).collect();
                }
                for (a, b) in level.iter().zip(&radii[..16]) {
                    assert!((a - f64::from(*b)).abs() < 1e-6);
                }
            }
        }
        // Axes begin their quadrants; zeros of both signs are in the first, above all its tangents.
        for (x, y, quadrant) in [
            (1.0, 0.0, 0),
            (1.0, -0.0, 0),
            (0.0, 1.0, 1),
            (-0.0, 1.0, 1),
            (-1.0, 0.0, 2),
            (-1.0, -0.0, 2),
            (0.0, -1.0, 3),
            (0.0, 0.0, 0),
            (-0.0, -0.0, 0),
        ] {
            let (x, mut found) = ([x, y].repeat(32), vec![0xff; 48]);
            Backend::detect().quantize_angles(&tree, &mut x.clone(), &mut found);
            let within = if x[0] == 0.0 && x[1] == 0.0 { first.len() } else { 0 };
            assert_eq!(usize::from(found[0]), quadrant * codes / 4 + within, "{bits} bits");
        }
    }
}
