//! Distortion, score errors and stored bytes: the published rows, and every other width against the f64 oracle.
//! Two-sided: a codec that is better than its definition is not that codec.
//!
//! Vectors are Gaussian from a seeded generator, about a million coordinates a row at D = 128: the sampling noise of a
//! distortion is below 0.2%.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Random, Steps, build, decode_rows, encode_rows, signs};
use crate::oracle::Marginal;
use octaplex::CodecSpec;
use octaplex::codebook::{LEVELS, WIDTHS};
use octaplex::codecs::{Codec, HeadId};

/// The one table of tolerances, relative unless said otherwise.
mod tolerance {
    /// Distortions, as the formats promise; sampling noise is a tenth of it.
    pub(crate) const DISTORTION: f64 = 0.015;
    /// Mean |q·k - score|: an absolute mean over 16 queries has 0.3% of noise, integer queries add 0.3%.
    pub(crate) const SCORE: f64 = 0.015;
    /// The slope of scores over products: noise of √(distortion/samples) is 0.05%, f16 norms add 0.02%.
    pub(crate) const SLOPE: f64 = 0.002;
    /// The library against the oracle's quantiser on the *same* vectors, so without sampling noise: ±127 centroids cost
    /// 0.2% at 16 levels, ±2047 ones 0.6% at 256, f16 norms 4e-8 of the energy (0.1% of an 8-bit distortion).
    pub(crate) const SAME_VECTORS: f64 = 0.010;
    /// The oracle's sample of 60,000 coordinates against its own integral: 1% of noise, 3% where a few coordinates in
    /// wide outer cells decide (256 levels).
    pub(crate) const SAMPLE: f64 = 0.05;
}

const D: usize = 128;
const VECTORS: usize = 8192;
const QUERIES: usize = 16;

fn distortion(codec: &dyn Codec, x: &[f32]) -> f64 {
    let decoded = decode_rows(codec, &encode_rows(codec, x));
    crate::oracle::distortion(&crate::oracle::to_f64(x), &crate::oracle::to_f64(&decoded))
}

/// Asserts |measured/expected - 1| ≤ tolerance, with half a unit of the last printed digit of `expected` on top.
fn assert_near(what: &str, measured: f64, expected: &str, tolerance: f64) {
    let decimals = expected.split('.').nth(1).map_or(0, str::len);
    let value: f64 = expected.parse().unwrap();
    let allowed = tolerance * value + 0.5 * 10f64.powi(-(decimals as i32));
    assert!((measured - value).abs() <= allowed, "{what}: measured {measured:.6}, documented {expected}");
    println!("{what}: {measured:.6} ({expected})");
}

/// Compares with the distortions of `docs/formats.md`, at D = 128.
#[test]
fn documented_distortions() {
    let x = Random::new(40).gaussians(VECTORS * D);
    for (spec, expected) in [
        ("turboquant:bits=1,gain=norm", ".3615"),
        ("turboquant:bits=2,gain=norm", ".1162"),
        ("turboquant:bits=3,gain=norm", ".0340"),
        ("turboquant:bits=4,gain=norm", ".00930"),
        ("turboquant:bits=5,gain=norm", ".00245"),
        ("turboquant:bits=6,gain=norm", ".00063"),
        ("turboquant:levels=5,gain=norm", ".0790"),
        ("turboquant:levels=6,gain=norm", ".0573"),
        ("turboquant:levels=10,gain=norm", ".0226"),
        ("turboquant:levels=12,gain=norm", ".0160"),
        ("turboquant:bits=2,gain=unbiased", ".130"),
        ("turboquant:bits=3,gain=unbiased", ".0345"),
        ("turboquant:bits=4,gain=norm,rounds=2", ".00930"),
        ("turboquant:bits=3,gain=norm,rounds=3,seed=11", ".0340"),
        ("turboquant-qjl:bits=3", ".0660"),
        ("polarquant:bits=2", ".220"),
        ("polarquant:bits=3", ".0569"),
        ("polarquant:bits=4", ".0144"),
        ("polarquant:depth=4", ".0322"),
        ("octopus:bits=2,tail=paper,gain=norm", ".0833"),
        ("octopus:bits=3,tail=paper,gain=norm", ".0244"),
        ("octopus:bits=4,tail=paper,gain=norm", ".0066"),
        ("octopus:bits=2,split=even,tail=paper,gain=norm", ".0486"),
        ("octopus:bits=3,split=even,tail=paper,gain=norm", ".0129"),
        ("octopus:bits=4,split=even,tail=paper,gain=norm", ".0033"),
        ("octopus:bits=5,split=even,tail=paper,gain=norm", ".00085"),
        ("octopus:bits=2,rounding=scalar,tail=paper,gain=norm", ".0897"),
        ("octopus:bits=3,rounding=scalar,tail=paper,gain=norm", ".0260"),
        ("octopus:bits=4,rounding=scalar,tail=paper,gain=norm", ".0071"),
        ("tq3_0", ".189"),
        ("tq3_0:variant=3bit", ".0315"),
        ("int:bits=2", ".589"),
        ("int:bits=3", ".0751"),
        ("int:bits=4", ".0138"),
        ("int:bits=4,rotate=true", ".0138"),
        ("int:bits=2,asymmetric=true,group=32", ".155"),
        ("int:bits=3,asymmetric=true,group=32", ".0282"),
        ("int:bits=4,asymmetric=true,group=32", ".0061"),
    ] {
        assert_near(spec, distortion(&*build(spec, D), &x), expected, tolerance::DISTORTION);
    }
}

#[cfg(feature = "alloc")]
#[test]
fn dense_rotations_have_the_same_distortion() {
    let x = Random::new(41).gaussians(1500 * D);
    let codec = build("turboquant:bits=3,gain=norm,rotation=haar", D);
    assert_near("haar", distortion(&*codec, &x), ".0340", tolerance::DISTORTION);
}

/// The gains: `mse` is the least-squares one, never worse than `norm` for any vector; `unbiased` has d/(1-d).
#[test]
fn gains_relate_as_they_should() {
    let x = Random::new(42).gaussians(2000 * D);
    for rate in ["bits=1", "levels=3", "bits=2", "bits=3", "bits=4", "bits=5"] {
        let [norm, mse, unbiased] = ["norm", "mse", "unbiased"]
            .map(|gain| distortion(&*build(&format!("turboquant:{rate},gain={gain}"), D), &x));
        assert!(mse < norm, "{rate}: mse {mse}, norm {norm}");
        assert!(mse > 0.95 * norm, "{rate}: mse {mse}, norm {norm}");
        // On the sphere, d of the least-squares gain is 1 - <u,q>²/<q,q>; the unbiased one has 1/cos² - 1.
        let expected = mse / (1.0 - mse);
        assert!(
            (unbiased / expected - 1.0).abs() < tolerance::DISTORTION,
            "{rate}: {unbiased} for {expected}"
        );
    }
}

/// Scores of Gaussian queries with Gaussian keys: (exact, score) pairs, all queries with all keys.
fn score_pairs(spec: &str, seed: u64) -> Vec<(f64, f64)> {
    let (mut random, codec) = (Random::new(seed), build(spec, D));
    let (keys, queries) = (random.gaussians(VECTORS * D), random.gaussians(QUERIES * D));
    let mut scores = vec![0.0; QUERIES * VECTORS];
    codec.prepare_and_score(&queries, &encode_rows(&*codec, &keys), &mut scores).unwrap();
    let keys = crate::oracle::to_f64(&keys);
    let exact = queries.chunks(D).flat_map(|q| {
        let q = crate::oracle::to_f64(q);
        keys.chunks(D).map(move |k| crate::oracle::dot(&q, k)).collect::<Vec<_>>()
    });
    exact.zip(scores).map(|(exact, score)| (exact, f64::from(score))).collect()
}

/// Mean |q·k - score|, at mean query norm: 16 queries' norms vary by some percent.
fn score_error(spec: &str, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    random.gaussians(VECTORS * D);
    let queries = crate::oracle::to_f64(&random.gaussians(QUERIES * D));
    let mean_norm = queries.chunks(D).map(|q| crate::oracle::dot(q, q).sqrt()).sum::<f64>() / QUERIES as f64;
    let pairs = score_pairs(spec, seed);
    let error = pairs.iter().map(|(exact, score)| (exact - score).abs()).sum::<f64>() / pairs.len() as f64;
    // E‖q‖ of a 128-wide Gaussian: √2·Γ(64.5)/Γ(64).
    error * 11.291_6 / mean_norm
}

#[test]
fn documented_score_errors() {
    for (spec, expected) in [
        ("turboquant:bits=2,gain=norm", "3.08"),
        ("turboquant:bits=3,gain=norm", "1.67"),
        ("turboquant:bits=4,gain=norm", ".87"),
        ("turboquant:bits=3,gain=unbiased", "1.69"),
        ("turboquant-qjl:bits=2", "4.10"),
        ("turboquant-qjl:bits=3", "2.32"),
        ("turboquant-qjl:bits=4", "1.25"),
        ("octopus:bits=2,rounding=scalar,tail=paper,gain=norm", "2.72"),
        ("octopus:bits=3,rounding=scalar,tail=paper,gain=norm", "1.46"),
        ("octopus:bits=4,rounding=scalar,tail=paper,gain=norm", ".76"),
        ("octopus-qjl:bits=2,rounding=scalar,tail=paper,gain=norm", "2.04"),
        ("octopus-qjl:bits=3,rounding=scalar,tail=paper,gain=norm", "1.09"),
        ("octopus-qjl:bits=4,rounding=scalar,tail=paper,gain=norm", ".57"),
    ] {
        assert_near(spec, score_error(spec, 43), expected, tolerance::SCORE);
    }
}

#[test]
fn unbiased_scores_have_slope_one() {
    for (spec, slope) in [
        ("turboquant:bits=1,gain=unbiased", 1.0),
        ("turboquant:bits=2,gain=unbiased", 1.0),
        ("turboquant:bits=3,gain=unbiased", 1.0),
        ("turboquant:levels=3,gain=unbiased", 1.0),
        ("turboquant:bits=5,gain=unbiased", 1.0),
        ("octopus:bits=2,gain=unbiased", 1.0),
        ("octopus-qjl:bits=2", 1.0),
        ("octopus-qjl:bits=2,gain=norm", 1.0),
        ("octopus-qjl:bits=4", 1.0),
        // Gain `norm` shrinks scores by its distortion.
        ("turboquant:bits=2,gain=norm", 1.0 - 0.1162),
        ("turboquant:bits=3,gain=norm", 1.0 - 0.0340),
    ] {
        let pairs = score_pairs(spec, 44);
        let product: f64 = pairs.iter().map(|(exact, score)| exact * score).sum();
        let measured = product / pairs.iter().map(|(exact, _)| exact * exact).sum::<f64>();
        println!("{spec}: slope {measured:.4} ({slope})");
        assert!((measured - slope).abs() < tolerance::SLOPE, "{spec}: slope {measured}");
    }
}

/// Every width and number of levels: the library's distortion on a sample against the oracle's quantiser, on the same
/// vectors and rotation, and the oracle's integral over the exact density.
#[test]
fn turboquant_equals_the_oracle_at_every_width() {
    let mut random = Random::new(45);
    for dim in WIDTHS {
        let marginal = Marginal::new(dim);
        let hadamard = crate::oracle::hadamard(dim);
        let signs = signs(0, HeadId::default(), dim);
        let x = random.gaussians(60_000 / dim * dim);
        let exact = crate::oracle::to_f64(&x);
        let rotated: Vec<Vec<f64>> =
            exact.chunks(dim).map(|x| crate::oracle::rotate(&hadamard, &signs, 1, x)).collect();
        let energy = crate::oracle::dot(&exact, &exact);
        for levels in LEVELS {
            let rate = if levels.is_power_of_two() {
                format!("bits={}", levels.ilog2())
            } else {
                format!("levels={levels}")
            };
            let measured = distortion(&*build(&format!("turboquant:{rate},gain=norm"), dim), &x);
            let codewords = marginal.lloyd_max(levels);
            let mut residual = 0.0;
            for x in &rotated {
                let norm = crate::oracle::dot(x, x).sqrt();
                for x in x {
                    let error = x - norm * codewords[crate::oracle::nearest(&codewords, x / norm)];
                    residual += error * error;
                }
            }
            let sampled = residual / energy;
            let at = format!("{levels} levels at {dim}");
            assert!(
                (measured / sampled - 1.0).abs() < tolerance::SAME_VECTORS,
                "{at}: measured {measured}, the oracle has {sampled}"
            );
            let integral = marginal.distortion(dim, &codewords);
            assert!(
                (sampled / integral - 1.0).abs() < tolerance::SAMPLE,
                "{at}: the oracle's sample {sampled}, integral {integral}"
            );
        }
    }
}

/// Integers at every width, rate and group against the textbook's, which has exact scales.
#[test]
fn int_equals_the_oracle_at_every_width() {
    let mut random = Random::new(46);
    for dim in WIDTHS {
        let x = random.gaussians(24_000 / dim * dim);
        let exact = crate::oracle::to_f64(&x);
        for bits in 2..=8 {
            for asymmetric in [false, true] {
                for group in [16, 32, 64, dim] {
                    if dim % group != 0 || (group == dim && dim < 80) {
                        continue;
                    }
                    let name = if group == dim { "token".to_owned() } else { group.to_string() };
                    let spec = format!("int:bits={bits},group={name},asymmetric={asymmetric}");
                    let measured = distortion(&*build(&spec, dim), &x);
                    let decoded: Vec<f64> = exact
                        .chunks(dim)
                        .flat_map(|x| crate::oracle::integers(x, bits, group, asymmetric))
                        .collect();
                    let expected = crate::oracle::distortion(&exact, &decoded);
                    assert!(
                        (measured / expected - 1.0).abs() < tolerance::DISTORTION,
                        "{spec} at {dim}: measured {measured}, the oracle has {expected}"
                    );
                }
            }
        }
    }
}

/// Plain floats: half a unit of the last place at most.
#[test]
fn floats_are_rounded_to_nearest() {
    let x = Random::new(47).gaussians(1024 * D);
    for (spec, unit) in [("f16", 11), ("bf16", 8), ("f32", 24)] {
        let codec = build(spec, D);
        let decoded = decode_rows(&*codec, &encode_rows(&*codec, &x));
        for (x, y) in x.iter().zip(&decoded) {
            // 2⁻²⁵: half of f16's smallest step.
            assert!((x - y).abs() <= x.abs() * 0.5f32.powi(unit) + 3e-8, "{spec}: {y} for {x}");
        }
        if spec == "f32" {
            assert_eq!(x, decoded);
        } else {
            // Uniform rounding of uniform mantissas: 2^-2p/3 times E[ulp²]/E[x²], near 0.22·4^-p.
            let measured = distortion(&*codec, &x) * 4f64.powi(unit);
            assert!((0.15..0.3).contains(&measured), "{spec}: {measured}");
        }
    }
}

/// The table of stored bytes.
#[test]
fn stored_bytes() {
    let bytes = |spec: &str, dim| spec.parse::<CodecSpec>().unwrap().block_bytes(dim);
    for bits in 1..=8 {
        let spec = format!("turboquant:bits={bits}");
        for (dim, factor) in [(64, 8), (96, 12), (128, 16)] {
            assert_eq!(bytes(&spec, dim), factor * bits + 2, "{spec} at {dim}");
        }
    }
    for (levels, expected) in
        [(3, [15, 22, 28]), (5, [21, 30, 40]), (6, [23, 34, 44]), (10, [29, 42, 56]), (12, [31, 46, 60])]
    {
        let spec = format!("turboquant:levels={levels}");
        assert_eq!([64, 96, 128].map(|dim| bytes(&spec, dim)), expected, "{spec}");
    }
    for (spec, bits_per_value) in [
        ("turboquant:bits=1", 1.125),
        ("turboquant:bits=6", 6.125),
        ("int:bits=2", 2.125),
        ("int:bits=3", 3.125),
        ("int:bits=4", 4.125),
        ("int:bits=2,asymmetric=true,group=32", 3.0),
        ("int:bits=3,asymmetric=true,group=32", 4.0),
        ("int:bits=4,asymmetric=true,group=32", 5.0),
        ("f16", 16.0),
        ("bf16", 16.0),
        ("f32", 32.0),
    ] {
        assert_eq!(spec.parse::<CodecSpec>().unwrap().bits_per_value(D), bits_per_value, "{spec}");
    }
}
