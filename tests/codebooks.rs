//! Computes the Lloyd-Max codebooks from their definition and compares them with the committed tables.
//!
//! `OCTAPLEX_BLESS=1 cargo test --test codebooks` rewrites `src/codebook/tables.rs`; the other tests of that
//! run still see the tables it was compiled with, so run once more without the variable.
//!
//! A codebook is optimal when each threshold is the midpoint of its neighbouring centroids and each centroid
//! is the mean of the density over its cell. The density is symmetric and log-concave, which makes the
//! optimum unique and antisymmetric, so only the centroids above zero are unknown. Lloyd's alternation of the
//! two conditions slows as the levels grow, far too much at 256; Newton's method needs six steps or fewer.
//!
//! The same text must come out on every machine: hence `libm` for transcendental functions, and assertions
//! that no number is rounded from so near a tie that the error of the solution, below 1e-13, could matter.

use std::fmt::Write;

use octaplex::codebook::{LEVELS, WIDTHS, lloyd_max};

/// The density of one coordinate of a uniform unit vector, scaled to 1 at zero, and a rule to integrate it.
struct Marginal {
    dim: f64,
    rule: Vec<(f64, f64)>,
}

impl Marginal {
    fn new(dim: usize) -> Self {
        Self { dim: dim as f64, rule: gauss_legendre(16) }
    }

    fn density(&self, x: f64) -> f64 {
        libm::exp((self.dim - 3.0) / 2.0 * libm::log1p(-x * x))
    }

    /// Integrals of `f(x)`, `(x - c) f(x)` and `(x - c)² f(x)` over the cell `[low, high]`.
    ///
    /// Moments about the centroid `c` rather than about zero keep their digits when the cell is narrow.
    /// The cell is cut into panels of at most one standard deviation, `1 / sqrt(dim)`, on each of which a
    /// 16-point rule is exact to rounding error.
    fn moments(&self, c: f64, low: f64, high: f64) -> [f64; 3] {
        let panels = ((high - low) * libm::sqrt(self.dim)).ceil();
        let half_width = (high - low) / panels / 2.0;
        let mut sums = [0.0; 3];
        for panel in 0..panels as usize {
            let middle = low + (2 * panel + 1) as f64 * half_width;
            for &(node, weight) in &self.rule {
                let x = middle + half_width * node;
                let mass = half_width * weight * self.density(x);
                sums[0] += mass;
                sums[1] += (x - c) * mass;
                sums[2] += (x - c) * (x - c) * mass;
            }
        }
        sums
    }
}

/// Nodes and weights of Gauss-Legendre quadrature on [-1, 1]: the roots of the Legendre polynomial of degree
/// `n`, by Newton's method from their asymptotic positions.
fn gauss_legendre(n: usize) -> Vec<(f64, f64)> {
    let node = |i: usize| {
        let mut x = libm::cos(std::f64::consts::PI * (i as f64 + 0.75) / (n as f64 + 0.5));
        let mut slope = 0.0;
        for _ in 0..8 {
            let (mut previous, mut value) = (1.0, x);
            for k in 2..=n {
                let k = k as f64;
                (previous, value) = (value, ((2.0 * k - 1.0) * x * value - (k - 1.0) * previous) / k);
            }
            slope = n as f64 * (x * value - previous) / (x * x - 1.0);
            x -= value / slope;
        }
        (x, 2.0 / ((1.0 - x * x) * slope * slope))
    };
    (0..n).map(node).collect()
}

/// Where Newton's method starts: for many levels, the density of optimal centroids tends to `f^(1/3)`, so
/// place them at evenly spaced quantiles of that.
fn companding_start(marginal: &Marginal, levels: usize) -> Vec<f64> {
    const STEPS: usize = 2000;
    let at = |step: usize| step as f64 / STEPS as f64;
    let mut cumulative = vec![0.0];
    for step in 0..STEPS {
        cumulative.push(cumulative[step] + libm::cbrt(marginal.density(at(step) + at(1) / 2.0)));
    }
    let quantile = |q: f64| {
        let target = q * cumulative[STEPS];
        let step = cumulative.partition_point(|&c| c <= target) - 1;
        at(step) + (target - cumulative[step]) / (cumulative[step + 1] - cumulative[step]) * at(1)
    };
    // Quantiles of the upper half: 1, 3, 5, ... over an even `levels`; 2, 4, 6, ... over an odd one.
    (0..levels / 2).map(|i| quantile((2 * i + 1 + levels % 2) as f64 / levels as f64)).collect()
}

/// Ends of the cells of the centroids above zero: one more than there are centroids.
fn cell_ends(upper: &[f64], levels: usize) -> Vec<f64> {
    // The lowest cell begins at zero, or halfway to the centroid at zero.
    let first = if levels.is_multiple_of(2) { 0.0 } else { upper[0] / 2.0 };
    let midpoints = upper.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    std::iter::once(first).chain(midpoints).chain([1.0]).collect()
}

/// The Newton step for `g_i = ∫ (c_i - x) f(x) dx = 0`, with the integral over cell `i`.
///
/// Moving an end `b` of cell `i` changes `g_i` by `±(c_i - b) f(b)`, and an end moves half as far as either
/// centroid beside it, so the Jacobian is symmetric and tridiagonal.
fn newton_step(marginal: &Marginal, upper: &[f64], levels: usize) -> Vec<f64> {
    let n = upper.len();
    let ends = cell_ends(upper, levels);
    // `pull[i]`: coupling of the centroids on the two sides of `ends[i]`. An end that is fixed has none.
    let mut pull: Vec<f64> =
        (0..n).map(|i| (upper[i] - ends[i]) * marginal.density(ends[i]) / 2.0).chain([0.0]).collect();
    if levels.is_multiple_of(2) {
        pull[0] = 0.0;
    }
    // Thomas' algorithm: eliminate downwards, substitute upwards.
    let (mut pivot, mut step) = (vec![0.0; n], vec![0.0; n]);
    for i in 0..n {
        let [mass, offset, _] = marginal.moments(upper[i], ends[i], ends[i + 1]);
        (pivot[i], step[i]) = (mass - pull[i] - pull[i + 1], offset);
        if i > 0 {
            let factor = pull[i] / pivot[i - 1];
            pivot[i] -= factor * pull[i];
            step[i] += factor * step[i - 1];
        }
    }
    for i in (0..n).rev() {
        let above = if i + 1 < n { pull[i + 1] * step[i + 1] } else { 0.0 };
        step[i] = (step[i] + above) / pivot[i];
    }
    step
}

/// The centroids above zero of the optimal codebook.
fn optimal_centroids(marginal: &Marginal, levels: usize) -> Vec<f64> {
    let mut upper = companding_start(marginal, levels);
    // The start is too spread out in the tail, where Newton's method would overshoot and never return. Two
    // of Lloyd's rounds (each centroid moves to the mean of its cell) cure that; ten are ample.
    for _ in 0..10 {
        let ends = cell_ends(&upper, levels);
        for (i, c) in upper.iter_mut().enumerate() {
            let [mass, offset, _] = marginal.moments(*c, ends[i], ends[i + 1]);
            *c += offset / mass;
        }
    }
    // Six steps suffice; the last one is below the rounding error, since each squares the error.
    for _ in 0..20 {
        let step = newton_step(marginal, &upper, levels);
        upper.iter_mut().zip(&step).for_each(|(c, s)| *c += s);
        if step.iter().all(|s| s.abs() < 1e-12 * upper[upper.len() - 1]) {
            return upper;
        }
    }
    unreachable!("Newton's method does not converge for width {}, {levels} levels", marginal.dim)
}

/// All centroids as integers, and the scale that takes them back.
fn round_to_integers(upper: &[f64], levels: usize) -> (Vec<i16>, f32) {
    let largest = upper[upper.len() - 1];
    let limit = if levels <= 16 { 127.0 } else { 2047.0 };
    let kappa = limit / largest;
    let scale = largest / limit;
    assert_eq!((scale * (1.0 - 1e-11)) as f32, (scale * (1.0 + 1e-11)) as f32, "scale too near a tie");
    let above = upper.iter().map(|c| {
        let exact = kappa * c;
        assert!((exact - exact.floor() - 0.5).abs() > 1e-6, "centroid too near a tie");
        exact.round_ties_even() as i16
    });
    let above: Vec<i16> = above.collect();
    let below = above.iter().rev().map(|c| -c);
    let zero = (levels % 2 == 1).then_some(0);
    (below.chain(zero).chain(above.iter().copied()).collect(), scale as f32)
}

/// The text of `src/codebook/tables.rs`.
fn tables() -> String {
    let mut text = String::from(
        "//! Generated by `OCTAPLEX_BLESS=1 cargo test --test codebooks`; do not edit.

use super::Codebook;

const fn book(scale: f32, centroids: &'static [i16]) -> Codebook {
    Codebook { centroids, scale }
}

/// One row per entry of `WIDTHS`, one column per entry of `LEVELS`.
#[rustfmt::skip]
pub(super) static LLOYD_MAX: [[Codebook; 13]; 11] = [
",
    );
    for dim in WIDTHS {
        let marginal = Marginal::new(dim);
        let _ = writeln!(text, "[ // width {dim}");
        for levels in LEVELS {
            let (centroids, scale) = round_to_integers(&optimal_centroids(&marginal, levels), levels);
            let mut line = format!("book({scale:?}, &[");
            for (k, centroid) in centroids.iter().enumerate() {
                let item = format!("{}{centroid}", if k == 0 { "" } else { "," });
                if line.len() + item.len() > 106 {
                    let _ = writeln!(text, "{line},");
                    line = centroid.to_string();
                } else {
                    line += &item;
                }
            }
            let _ = writeln!(text, "{line}]),");
        }
        text += "],\n";
    }
    text + "];\n"
}

#[test]
fn committed_tables_are_up_to_date() {
    let expected = tables();
    if std::env::var_os("OCTAPLEX_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/codebook/tables.rs");
        std::fs::write(path, expected).expect("the table file can be written");
    } else {
        let committed = include_str!("../src/codebook/tables.rs").replace('\r', "");
        assert!(committed == expected, "stale tables: run OCTAPLEX_BLESS=1 cargo test --test codebooks");
    }
}

#[test]
fn every_codebook_is_increasing_antisymmetric_and_uses_its_range() {
    for (dim, levels) in WIDTHS.iter().flat_map(|&d| LEVELS.map(|l| (d, l))) {
        let book = lloyd_max(dim, levels).expect("a listed codebook");
        let centroids = book.centroids();
        assert_eq!(centroids.len(), levels);
        assert_eq!(book.levels(), levels);
        assert!(centroids.is_sorted_by(|a, b| a < b), "{dim} x {levels}");
        assert!(centroids.iter().zip(centroids.iter().rev()).all(|(a, b)| *a == -b), "{dim} x {levels}");
        assert_eq!(centroids[levels - 1], if levels <= 16 { 127 } else { 2047 });
        assert!(book.scale() > 0.0 && book.value(levels - 1) < 1.0);
    }
}

#[test]
fn only_listed_codebooks_exist() {
    for (dim, levels) in [(0, 4), (33, 4), (1024, 4), (128, 0), (128, 1), (128, 7), (128, 512)] {
        assert_eq!(lloyd_max(dim, levels), None);
    }
}

#[test]
fn thresholds_separate_neighbouring_values() {
    for (dim, levels) in WIDTHS.iter().flat_map(|&d| LEVELS.map(|l| (d, l))) {
        let book = lloyd_max(dim, levels).expect("a listed codebook");
        let mut buffer = [f32::NAN; 255];
        let count = book.thresholds(&mut buffer);
        assert_eq!(count, levels - 1);
        for (k, &t) in buffer[..count].iter().enumerate() {
            assert!(book.value(k) < t && t < book.value(k + 1), "{dim} x {levels}, threshold {k}");
            assert_eq!(t, -buffer[count - 1 - k]);
        }
        assert!(buffer[count..].iter().all(|t| t.is_nan()), "the rest is left alone");
    }
}

/// The mean squared error as a share of the mean square, `dim · E[(x - c)²]`, against published figures.
#[test]
fn distortion_at_width_128_is_that_of_the_optimum() {
    let expected = [
        (2, 0.3609, 0.005),
        (3, 0.188, 0.01),
        (4, 0.1160, 0.005),
        (5, 0.0790, 0.01),
        (6, 0.0573, 0.01),
        (8, 0.03397, 0.005),
        (10, 0.0226, 0.01),
        (12, 0.0160, 0.01),
        (16, 0.00931, 0.005),
        (32, 0.00245, 0.005),
        (64, 0.00063, 0.005),
    ];
    let marginal = Marginal::new(128);
    for (levels, optimum, tolerance) in expected {
        let book = lloyd_max(128, levels).expect("a listed codebook");
        let value = |k: usize| f64::from(book.value(k));
        let (mut mass, mut error) = (0.0, 0.0);
        for k in 0..levels {
            let low = if k == 0 { -1.0 } else { (value(k - 1) + value(k)) / 2.0 };
            let high = if k + 1 == levels { 1.0 } else { (value(k) + value(k + 1)) / 2.0 };
            let [m0, _, m2] = marginal.moments(value(k), low, high);
            (mass, error) = (mass + m0, error + m2);
        }
        let relative = 128.0 * error / mass;
        assert!((relative / optimum - 1.0).abs() < tolerance, "{levels} levels: {relative}");
    }
}
