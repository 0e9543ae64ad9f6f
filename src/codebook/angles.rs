//! Codebooks of angles, for trees of polar coordinates.
//!
//! ```text
//! coordinates   x₀  x₁   x₂  x₃         level 1: the angle of (x₀, x₁), and its radius r
//!                ╲  ╱     ╲  ╱          level 2: the angle of the two radii below
//! radii           r₀       r₁           …
//!                   ╲     ╱             the root keeps the norm
//!                     norm
//! ```
//!
//! Over a uniform unit vector, angles of level 1 are uniform on [0, 2π). Their codebook is equal
//! sectors, with centroids in the middle. On level l ≥ 2 an angle ψ lies between two radii, and has
//! the density sin^(2^(l-1)-1)(2ψ) on [0, π/2]. Its codebook is Lloyd-Max.
//!
//! Only cosines are tabulated. Centroids lie symmetrically, so their sines are the same numbers in
//! another order. The threshold between two directions has the tangent of their sum.
//!
//! The test `tests/angles.rs` writes the tables, and proves that they are current.

mod tables;

use octaplex_arch::Angles;
use tables::COSINES;

/// The number of levels that have codebooks.
pub(crate) const LEVELS: usize = COSINES.len();

/// An entry for each centroid of each codebook of a level: 2 for 1 bit, 4 for 2 bits … 256 for 8
/// bits.
type Table<T> = [[T; 510]; LEVELS];

/// Returns where the codebook of `bits` bits begins in the row of its level.
const fn start(bits: usize) -> usize {
    (1 << bits) - 2
}

/// Cosine and sine of each centroid, computed by the compiler.
static DIRECTIONS: Table<[f32; 2]> = {
    let mut directions = [[[0.0; 2]; 510]; LEVELS];
    let mut level = 0;
    while level < LEVELS {
        let mut bits = 1;
        while bits <= 8 {
            let codes = 1 << bits;
            let mut k = 0;
            while k < codes {
                // sin ψ = cos(π/2 - ψ). On the full circle that is a quarter of the sectors back.
                // Two sectors have no such centroid.
                let sin = match (level, bits) {
                    (0, 1) => 1.0 - 2.0 * k as f32,
                    (0, _) => COSINES[0][start(bits) + (k + codes - codes / 4) % codes],
                    _ => COSINES[level][start(bits) + codes - 1 - k],
                };
                directions[level][start(bits) + k] = [COSINES[level][start(bits) + k], sin];
                k += 1;
            }
            bits += 1;
        }
        level += 1;
    }
    directions
};

/// The tangent of the threshold behind each centroid.
static TANGENTS: Table<f32> = {
    let mut tangents = [[0.0; 510]; LEVELS];
    let mut level = 0;
    while level < LEVELS {
        let mut i = 0;
        while i + 1 < 510 {
            let ([c0, s0], [c1, s1]) = (DIRECTIONS[level][i], DIRECTIONS[level][i + 1]);
            tangents[level][i] = (s0 + s1) / (c0 + c1);
            i += 1;
        }
        level += 1;
    }
    tangents
};

/// Returns the codebook of `bits` bits (1 to 8) on a level (from 1).
pub(crate) fn angles(level: usize, bits: u8) -> Angles<'static> {
    let (start, codes) = (start(bits.into()), 1 << bits);
    let thresholds = if level == 1 { (codes / 4).max(1) } else { codes } - 1;
    Angles {
        bits,
        directions: &DIRECTIONS[level - 1][start..][..codes],
        tangents: &TANGENTS[level - 1][start..][..thresholds],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_unit_vectors_in_order() {
        for level in 1..=LEVELS {
            for bits in 1..=8 {
                let angles = angles(level, bits);
                for [cos, sin] in angles.directions {
                    assert!((cos * cos + sin * sin - 1.0).abs() < 2e-7, "level {level}, {bits} bits");
                }
                for pair in angles.directions.windows(2) {
                    let ([c0, s0], [c1, s1]) = (pair[0], pair[1]);
                    assert!(
                        c0 * s1 - s0 * c1 > 0.0 || bits == 1,
                        "level {level}, {bits} bits: not ascending"
                    );
                }
                assert!(angles.tangents.is_sorted_by(|a, b| a < b), "level {level}, {bits} bits");
                for (t, pair) in angles.tangents.iter().zip(angles.directions.windows(2)) {
                    let ([c0, s0], [c1, s1]) = (pair[0], pair[1]);
                    assert!(s0 / c0 < *t && *t < s1 / c1, "level {level}, {bits} bits");
                }
            }
        }
    }
}
