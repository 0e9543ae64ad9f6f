//! Compares rotations of every width and kind with dense matrices in f64, and tests these matrices too.
//!
//! Only the inverse rotation is public, as `finish` of a codec. `octaplex_arch` has both directions.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random, build, signs};
use crate::oracle::{Marginal, Matrix};
use octaplex::codebook::WIDTHS;
use octaplex::codecs::{HeadId, Role};
use octaplex::{Backend, CodecSpec};

#[test]
fn the_oracles_bases_are_hadamard_matrices() {
    for base in [
        crate::oracle::paley_1(3),
        crate::oracle::paley_1(11),
        crate::oracle::paley_1(19),
        crate::oracle::paley_2(5),
        crate::oracle::paley_2(13),
    ] {
        let order = base.order();
        assert!(base.rows.iter().flatten().all(|x| x.abs() == 1.0), "order {order}: entries are ±1");
        assert_eq!(base.orthogonality_error(order as f64), 0.0, "order {order}");
        assert_eq!(base.transpose().orthogonality_error(order as f64), 0.0, "order {order}, columns");
    }
    // The first rows of the textbook's order 12: a border of ones, and the quadratic residues 1, 3, 4, 5, 9 mod 11.
    let h12 = crate::oracle::paley_1(11);
    assert_eq!(h12.rows[0], [1.0; 12]);
    assert_eq!(h12.rows[1], [-1., 1., -1., 1., -1., -1., -1., 1., 1., 1., -1., 1.]);
    assert_ne!(h12, h12.transpose(), "Paley I is not symmetric");
    assert_eq!(crate::oracle::paley_2(13), crate::oracle::paley_2(13).transpose(), "Paley II is symmetric");
    assert_eq!(crate::oracle::sylvester(4).rows[3], [1.0, -1.0, -1.0, 1.0]);
}

#[test]
fn the_oracles_matrices_are_hadamard_matrices_of_every_width() {
    for width in WIDTHS {
        let h = crate::oracle::hadamard(width);
        assert_eq!(h.order(), width);
        assert_eq!(h.orthogonality_error(width as f64), 0.0, "width {width}");
    }
}

#[test]
fn the_oracles_quantisers_are_textbook() {
    assert_eq!(crate::oracle::nearest(&[-1.0, 0.0, 2.0], 0.9), 1);
    assert_eq!(crate::oracle::nearest(&[-1.0, 0.0, 2.0], 1.0), 1, "ties go to the lowest");
    assert_eq!(crate::oracle::integers(&[-7.0, 3.4, 0.5, 2.5], 4, 4, false), [-7.0, 3.0, 0.0, 2.0]);
    assert_eq!(crate::oracle::integers(&[1.0, 2.0, 3.1, 4.0], 2, 4, true), [1.0, 2.0, 3.0, 4.0]);
    // Max's table for the Gaussian, which a coordinate in many dimensions tends to.
    let marginal = Marginal::new(100_000);
    for (levels, distortion) in [(2, 0.3634), (4, 0.1175), (8, 0.03454), (16, 0.009497), (5, 0.0799)] {
        let codewords = marginal.lloyd_max(levels);
        let ours = marginal.distortion(100_000, &codewords);
        assert!(
            (ours / distortion - 1.0).abs() < 2e-3,
            "{levels} levels: {ours}, the table says {distortion}"
        );
    }
    let two = marginal.lloyd_max(2)[1] * 100_000f64.sqrt();
    assert!((two - 0.7979).abs() < 1e-3, "√(2/π), not {two}");
}

#[test]
fn the_oracles_attention_is_attention() {
    let (keys, values) = (vec![vec![0.0; 4]; 2], vec![vec![1.0, 0.0, 0.0, 4.0], vec![3.0, 0.0, 0.0, 0.0]]);
    assert_eq!(
        crate::oracle::attention(&[5.0; 4], &keys, &values),
        [2.0, 0.0, 0.0, 2.0],
        "equal logits: the mean"
    );
    let keys = vec![vec![1.0; 4], vec![-1.0; 4]];
    let output = crate::oracle::attention(&[50.0; 4], &keys, &values);
    assert!((output[0] - 1.0).abs() < 1e-9, "a far larger logit: its value");
}

/// Signed bits for `octaplex_arch`.
fn masks(signs: &[f64]) -> Vec<u32> {
    signs.iter().map(|s| u32::from(*s < 0.0) << 31).collect()
}

#[test]
fn rotations_equal_the_dense_matrix_both_ways() {
    let mut random = Random::new(1);
    for width in WIDTHS {
        let h = crate::oracle::hadamard(width);
        let signs = signs(random.word(), HeadId::default(), width);
        let x = random.gaussians(width);
        let exact = crate::oracle::rotate(&h, &signs, 1, &crate::oracle::to_f64(&x));
        let norm = crate::oracle::dot(&exact, &exact).sqrt();
        for backend in octaplex_arch::Backend::available() {
            let scale = (1.0 / (width as f64).sqrt()) as f32;
            let mut y = x.clone();
            backend.rotate(&mut y, &masks(&signs), scale);
            for (y, exact) in y.iter().zip(&exact) {
                // f32 rounds log2(D) ≤ 10 times, or 12+12 times within a base: some 1e-6 of a coordinate.
                assert!((f64::from(*y) - exact).abs() < 1e-6 * norm, "width {width}, {}", backend.name());
            }
            backend.rotate_inverse(&mut y, &masks(&signs), scale);
            for (y, x) in y.iter().zip(&x) {
                assert!((y - x).abs() < 1e-6 * norm as f32, "width {width}, {}: inverse", backend.name());
            }
        }
    }
}

/// Returns the matrix of `finish`, column by column.
fn inverse_matrix(spec: &str, width: usize) -> Matrix {
    let codec = build(spec, width);
    let columns: Vec<Vec<f64>> = (0..width)
        .map(|c| {
            let mut x = vec![0.0; width];
            x[c] = 1.0;
            codec.finish(&mut x);
            crate::oracle::to_f64(&x)
        })
        .collect();
    Matrix { rows: columns }.transpose()
}

#[cfg(feature = "alloc")]
fn largest_difference(a: &Matrix, b: &Matrix) -> f64 {
    a.rows.iter().flatten().zip(b.rows.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn codecs_rotate_by_the_seeds_signs_and_hadamards_matrix() {
    for width in WIDTHS {
        let h = crate::oracle::hadamard(width);
        for (spec, seed, rounds) in [
            ("turboquant", 0, 1),
            ("turboquant:rounds=2,seed=9", 9, 2),
            ("turboquant:rounds=3", 0, 3),
            ("int:rotate=true,seed=5", 5, 1),
        ] {
            let codec = build(spec, width);
            let signs = signs(seed, HeadId::default(), width);
            // R⁻¹ of the forward rotation of x is x.
            let x: Vec<f64> = (0..width).map(|i| ((i * 7 + 3) % 11) as f64 - 5.0).collect();
            let rotated = crate::oracle::rotate(&h, &signs, rounds, &x);
            let mut y: Vec<f32> = rotated.iter().map(|&y| y as f32).collect();
            codec.finish(&mut y);
            for (y, x) in y.iter().zip(&x) {
                assert!((f64::from(*y) - x).abs() < 1e-4, "{spec} at {width}: {y} for {x}");
            }
        }
    }
}

#[test]
fn every_head_has_a_rotation_of_its_own() {
    let spec: CodecSpec = "turboquant:seed=4".parse().unwrap();
    let heads = [
        HeadId::default(),
        HeadId { layer: 1, ..HeadId::default() },
        HeadId { head: 1, ..HeadId::default() },
        HeadId { role: Role::Values, ..HeadId::default() },
    ];
    for head in heads {
        let codec = Any::<128>::build(spec, Backend::detect(), head).unwrap();
        let x: Vec<f64> = (0..128).map(|i| f64::from(i) - 60.0).collect();
        let rotated = crate::oracle::rotate(&crate::oracle::hadamard(128), &signs(4, head, 128), 1, &x);
        let mut y: [f32; 128] = core::array::from_fn(|i| rotated[i] as f32);
        codec.finish(&mut y);
        for (y, x) in y.iter().zip(&x) {
            assert!((f64::from(*y) - x).abs() < 1e-4, "{head:?}: {y} for {x}");
        }
    }
    let all: Vec<Vec<f64>> = heads.iter().map(|head| signs(4, *head, 128)).collect();
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b), "two heads share their signs");
    }
}

#[test]
fn wht_rotations_are_orthonormal() {
    for width in WIDTHS {
        let error = inverse_matrix("turboquant:rounds=2", width).orthogonality_error(1.0);
        assert!(error < 2e-6, "width {width}: {error}");
    }
}

/// The Q of A = QR with a positive diagonal of R, which is unique, by Gram and Schmidt, twice for good measure: another
/// way than the library's Householder.
#[cfg(feature = "alloc")]
fn gram_schmidt(a: &Matrix) -> Matrix {
    let mut columns = a.transpose().rows;
    for k in 0..columns.len() {
        let (done, rest) = columns.split_at_mut(k);
        let column = &mut rest[0];
        for _ in 0..2 {
            for q in done.iter() {
                let projection = crate::oracle::dot(q, column);
                for (x, q) in column.iter_mut().zip(q) {
                    *x -= projection * q;
                }
            }
        }
        let norm = crate::oracle::dot(column, column).sqrt();
        column.iter_mut().for_each(|x| *x /= norm);
    }
    Matrix { rows: columns }.transpose()
}

#[cfg(feature = "alloc")]
#[test]
fn haar_rotations_are_the_q_of_the_seeds_gaussians() {
    for width in WIDTHS {
        let inverse = inverse_matrix("turboquant:rotation=haar,seed=2", width);
        let error = inverse.orthogonality_error(1.0);
        assert!(error < 1e-6, "width {width}: {error}");
        if width > 192 {
            continue; // Gram and Schmidt take D³
        }
        let mut words = crate::common::stream(2, HeadId::default(), 1);
        let mut unit = || (words() >> 11) as f64;
        let mut gaussians = Vec::new();
        while gaussians.len() < width * width {
            let (u1, u2) = ((unit() + 1.0) / 2f64.powi(53), unit() / 2f64.powi(53));
            let angle = 2.0 * std::f64::consts::PI * u2;
            gaussians.extend([angle.cos(), angle.sin()].map(|x| (-2.0 * u1.ln()).sqrt() * x));
        }
        let q = gram_schmidt(&Matrix::from(width, |r, c| gaussians[r * width + c]));
        let difference = largest_difference(&q.transpose(), &inverse);
        assert!(difference < 1e-6, "width {width}: {difference}");
    }
}
