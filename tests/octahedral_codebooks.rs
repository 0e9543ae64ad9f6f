//! Computes the codebooks of octahedral coordinates and triplet radii and compares them with the committed tables.
//!
//! `OCTAPLEX_BLESS=1 cargo test --test suite octahedral_codebooks` rewrites `src/codebook/octahedral_tables.rs`; the other
//! tests of that run still see the tables it was compiled with, so run once more without the variable.
//!
//! Both are Lloyd-Max quantisers of a density on [0, 1]: that of |ξ| (the codebook of ξ is the mirrored one, with a
//! threshold at zero), and that of the radius. The method is the one of `codebooks.rs`: a few rounds of Lloyd's
//! alternation, then Newton's method on the centroids' conditions, whose Jacobian is tridiagonal.

use crate::lloyd::gauss_legendre;
use std::fmt::Write;

use octaplex::codebook::{WIDTHS, octahedral_coordinates, triplet_radii};

/// A density on [0, 1], up to a factor, and the length of a panel on which a 16-point rule integrates it exactly.
struct Density<'a> {
    at: &'a dyn Fn(f64) -> f64,
    panel: f64,
    rule: Vec<(f64, f64)>,
}

impl Density<'_> {
    /// Integrals of `f(x)`, `(x - c) f(x)` and `(x - c)² f(x)` over the cell `[low, high]`.
    fn moments(&self, c: f64, low: f64, high: f64) -> [f64; 3] {
        let panels = ((high - low) / self.panel).ceil();
        let half_width = (high - low) / panels / 2.0;
        let mut sums = [0.0; 3];
        for panel in 0..panels as usize {
            let middle = low + (2 * panel + 1) as f64 * half_width;
            for &(node, weight) in &self.rule {
                let x = middle + half_width * node;
                let mass = half_width * weight * (self.at)(x);
                sums[0] += mass;
                sums[1] += (x - c) * mass;
                sums[2] += (x - c) * (x - c) * mass;
            }
        }
        sums
    }

    /// The centroids of the optimal quantiser.
    fn centroids(&self, levels: usize) -> Vec<f64> {
        let mut c = self.companding_start(levels);
        for _ in 0..40 {
            let ends = cell_ends(&c);
            for (i, c) in c.iter_mut().enumerate() {
                let [mass, offset, _] = self.moments(*c, ends[i], ends[i + 1]);
                *c += offset / mass;
            }
        }
        for _ in 0..20 {
            let step = self.newton_step(&c);
            c.iter_mut().zip(&step).for_each(|(c, s)| *c += s);
            if step.iter().all(|s| s.abs() < 1e-12 * c[levels - 1]) {
                return c;
            }
        }
        unreachable!("Newton's method does not converge for {levels} levels")
    }

    /// Evenly spaced quantiles of f^(1/3), to which the density of optimal centroids tends.
    fn companding_start(&self, levels: usize) -> Vec<f64> {
        const STEPS: usize = 2000;
        let at = |step: usize| step as f64 / STEPS as f64;
        let mut cumulative = vec![0.0];
        for step in 0..STEPS {
            cumulative.push(cumulative[step] + libm::cbrt((self.at)(at(step) + at(1) / 2.0)));
        }
        let quantile = |q: f64| {
            let target = q * cumulative[STEPS];
            let step = cumulative.partition_point(|&c| c <= target) - 1;
            at(step) + (target - cumulative[step]) / (cumulative[step + 1] - cumulative[step]) * at(1)
        };
        (0..levels).map(|i| quantile((2 * i + 1) as f64 / (2 * levels) as f64)).collect()
    }

    /// The Newton step for `∫ (c_i - x) f(x) dx = 0` over every cell; moving an end moves two of these integrals.
    fn newton_step(&self, c: &[f64]) -> Vec<f64> {
        let (n, ends) = (c.len(), cell_ends(c));
        let pull =
            |i: usize| if i == 0 || i == n { 0.0 } else { (c[i] - ends[i]) * (self.at)(ends[i]) / 2.0 };
        let (mut pivot, mut step) = (vec![0.0; n], vec![0.0; n]);
        for i in 0..n {
            let [mass, offset, _] = self.moments(c[i], ends[i], ends[i + 1]);
            (pivot[i], step[i]) = (mass - pull(i) - pull(i + 1), offset);
            if i > 0 {
                let factor = pull(i) / pivot[i - 1];
                pivot[i] -= factor * pull(i);
                step[i] += factor * step[i - 1];
            }
        }
        for i in (0..n).rev() {
            let above = if i + 1 < n { pull(i + 1) * step[i + 1] } else { 0.0 };
            step[i] = (step[i] + above) / pivot[i];
        }
        step
    }
}

/// The cells' ends: 0, the midpoints, 1.
fn cell_ends(c: &[f64]) -> Vec<f64> {
    let midpoints = c.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    std::iter::once(0.0).chain(midpoints).chain([1.0]).collect()
}

/// The density of |ξ|.
fn coordinate_density(a: f64) -> f64 {
    let b = 1.0 - a;
    (b / (1.0 - 2.0 * a + 3.0 * a * a) + a / (2.0 - 4.0 * a + 3.0 * a * a)) / libm::sqrt(a * a + b * b)
}

/// Calls `f` with the density of the radius.
fn with_radius_density<T>(dim: usize, f: impl FnOnce(&Density) -> T) -> T {
    let dim = dim as f64;
    // Divided by its largest value, which the density would otherwise underflow from.
    let log = |r: f64| 2.0 * libm::log(r) + (dim - 5.0) / 2.0 * libm::log1p(-r * r);
    let peak = log(libm::sqrt(2.0 / (dim - 3.0)));
    let at = move |r: f64| libm::exp(log(r) - peak);
    f(&Density { at: &at, panel: 0.5 / libm::sqrt(dim), rule: gauss_legendre(16) })
}

fn with_coordinate_density<T>(f: impl FnOnce(&Density) -> T) -> T {
    f(&Density { at: &coordinate_density, panel: 1.0 / 16.0, rule: gauss_legendre(16) })
}

/// To integers, none of them so near a tie that the last bits of the solution could matter.
fn in_units(centroids: &[f64], unit: f64) -> Vec<u16> {
    let round = |c: &f64| {
        let exact = c * unit;
        assert!((exact - exact.floor() - 0.5).abs() > 1e-7, "centroid too near a tie");
        exact.round_ties_even() as u16
    };
    centroids.iter().map(round).collect()
}

/// `&[a,b,…],` in lines of at most 110 characters.
fn write_slice(text: &mut String, values: &[u16]) {
    let mut line = String::from("&[");
    for (k, value) in values.iter().enumerate() {
        let item = format!("{}{value}", if k == 0 { "" } else { "," });
        if line.len() + item.len() > 106 {
            let _ = writeln!(text, "{line},");
            line = value.to_string();
        } else {
            line += &item;
        }
    }
    let _ = writeln!(text, "{line}],");
}

/// The text of `src/codebook/octahedral_tables.rs`.
fn tables() -> String {
    let mut text = String::from(
        "//! Generated by `OCTAPLEX_BLESS=1 cargo test --test suite octahedral_codebooks`; do not edit.

/// Positive centroids of an octahedral coordinate in units of 2⁻¹⁵, for 1 to 7 bits.
#[rustfmt::skip]
pub(super) static COORDINATES: [&[i16]; 7] = [
",
    );
    for bits in 1..=7 {
        let centroids = with_coordinate_density(|density| density.centroids(1 << (bits - 1)));
        write_slice(&mut text, &in_units(&centroids, 32768.0));
    }
    text += "];

/// Centroids of a triplet's radius in units of 2⁻¹⁶: one row per entry of `WIDTHS`, one column for each of 0 to 6 bits.
#[rustfmt::skip]
pub(super) static RADII: [[&[u16]; 7]; 11] = [
";
    for dim in WIDTHS {
        let _ = writeln!(text, "[ // width {dim}");
        for bits in 0..=6 {
            let centroids = with_radius_density(dim, |density| density.centroids(1 << bits));
            write_slice(&mut text, &in_units(&centroids, 65536.0));
        }
        text += "],\n";
    }
    text + "];\n"
}

#[test]
fn committed_tables_are_up_to_date() {
    let expected = tables();
    if std::env::var_os("OCTAPLEX_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/codebook/octahedral_tables.rs");
        std::fs::write(path, expected).expect("the table file can be written");
    } else {
        let committed = include_str!("../src/codebook/octahedral_tables.rs").replace('\r', "");
        assert!(
            committed == expected,
            "stale tables: run OCTAPLEX_BLESS=1 cargo test --test suite octahedral_codebooks"
        );
    }
}

#[test]
fn only_listed_codebooks_exist() {
    assert!(octahedral_coordinates(0).is_none() && octahedral_coordinates(8).is_none());
    assert!(triplet_radii(128, 7).is_none() && triplet_radii(127, 2).is_none());
}

/// Mean squared errors of an independent implementation, in f64 with unrounded centroids.
#[test]
fn distortions_are_those_of_the_optimum() {
    let coordinates = [0.07006056, 0.01946253, 0.005079009, 0.001282833, 0.0003215341, 0.00008043531];
    for (bits, expected) in (1..).zip(coordinates) {
        let book = octahedral_coordinates(bits).expect("a listed codebook");
        let book: Vec<f64> = book.iter().map(|&c| f64::from(c) / 32768.0).collect();
        let error = with_coordinate_density(|density| mean_squared_error(density, &book));
        assert!((error / expected - 1.0).abs() < 1e-4, "{bits} bits: {error}");
    }
    let radii = [
        (64, [0.002331471, 0.0007191231, 0.0002041107, 0.00005482493]),
        (128, [0.001199592, 0.0003716600, 0.0001058084, 0.00002847291]),
        (256, [0.0006082949, 0.0001888818, 0.00005385392, 0.00001450530]),
    ];
    for (dim, expected) in radii {
        for (bits, expected) in (1..).zip(expected) {
            let book = triplet_radii(dim, bits).expect("a listed codebook");
            let book: Vec<f64> = book.iter().map(|&c| f64::from(c) / 65536.0).collect();
            let error = with_radius_density(dim, |density| mean_squared_error(density, &book));
            assert!((error / expected - 1.0).abs() < 1e-4, "{dim}, {bits} bits: {error}");
        }
    }
}

fn mean_squared_error(density: &Density, book: &[f64]) -> f64 {
    assert!(book.is_sorted_by(|a, b| a < b));
    let ends = cell_ends(book);
    let (mut mass, mut error) = (0.0, 0.0);
    for (k, &c) in book.iter().enumerate() {
        let [m0, _, m2] = density.moments(c, ends[k], ends[k + 1]);
        (mass, error) = (mass + m0, error + m2);
    }
    error / mass
}
