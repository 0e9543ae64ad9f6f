//! The trellis code: distances from the Shannon bound, distortions as documented, tables as they must be.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod common;

use common::{Random, build, decode_rows, encode_rows};

/// (distortion, bits per value, everything stored counted) on Gaussian vectors.
fn measure(spec: &str, dim: usize, vectors: usize) -> (f64, f64) {
    let codec = build(spec, dim);
    let rows = Random::new(11).gaussians(vectors * dim);
    let decoded = decode_rows(&*codec, &encode_rows(&*codec, &rows));
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = rows.iter().zip(&decoded).map(|(a, b)| square(a - b)).sum();
    let bits = 8.0 * codec.block_bytes() as f64 / dim as f64;
    (error / rows.iter().map(|x| square(*x)).sum::<f64>(), bits)
}

/// The bound is D = 2^(-2R): 6.02 dB a bit.
#[test]
fn less_than_two_decibels_above_the_shannon_bound() {
    for (spec, bits) in [("trellis:m=2", 2.125), ("trellis:m=4,states=16", 3.125)] {
        let (distortion, rate) = measure(spec, 128, 4000);
        assert_eq!(rate, bits, "{spec}");
        let gap = 20.0 * 2f64.log10() * rate + 10.0 * distortion.log10();
        assert!((1.5..2.0).contains(&gap), "{spec}: {gap} dB");
    }
}

/// At most the documented distortion (gain norm) and 1%; much less would be a mistake in the measurement.
#[test]
fn distortions_are_as_documented() {
    let documented = [
        ("trellis:m=1", [0.3074, 0.3051, 0.3039]),
        ("trellis:m=2", [0.0834, 0.0826, 0.0822]),
        ("trellis:m=3", [0.0379, 0.0376, 0.0374]),
        ("trellis:m=4", [0.0217, 0.0215, 0.0213]),
        ("trellis:m=6", [0.0098, 0.0097, 0.0097]),
        ("trellis:m=8", [0.0056, 0.0055, 0.0055]),
        ("trellis:m=12", [0.00265, 0.00263, 0.00262]),
        ("trellis:m=16", [0.00159, 0.00157, 0.00156]),
        ("trellis:m=2,states=16", [0.0807, 0.0799, 0.0792]),
        ("trellis:m=4,states=16", [0.0208, 0.0206, 0.0204]),
        ("trellis:m=8,states=16", [0.0054, 0.0053, 0.0052]),
        ("trellis:m=2,states=64", [0.0780, 0.0762, 0.0751]),
        ("trellis:m=4,states=64", [0.0199, 0.0194, 0.0192]),
    ];
    for (spec, bounds) in documented {
        for (dim, bound) in [64, 128, 256].into_iter().zip(bounds) {
            let (distortion, _) = measure(&format!("{spec},gain=norm"), dim, 96_000 / dim);
            let ratio = distortion / bound;
            assert!((0.85..1.012).contains(&ratio), "{spec} at {dim}: {distortion}, documented {bound}");
        }
    }
}

/// Every pair of states and levels has a table; more states buy less distortion.
#[test]
fn tables_are_complete_and_states_pay() {
    for levels in [1, 2, 3, 4, 6, 8, 12, 16] {
        let mut last = f64::INFINITY;
        for states in [4, 8, 16, 32, 64] {
            let (distortion, _) = measure(&format!("trellis:m={levels},states={states}"), 128, 600);
            assert!(distortion < last * 1.01, "{states} states, {levels} levels: {distortion}, fewer {last}");
            last = distortion;
        }
    }
}
