//! Codebooks of angles, for trees of polar coordinates.
//!
//! Over a uniform unit vector, the angle on level 1 (between two coordinates) is uniform on [0, 2π): equal sectors,
//! centroids in their middles. On level l ≥ 2 (between two radii) it has the density sin^(2^(l-1)-1)(2ψ) on [0, π/2]:
//! Lloyd-Max. Only cosines are tabulated. Centroids lie symmetrically, so the sines are the same numbers in another
//! order, and the tangent of the threshold between two directions is that of their sum.
//!
//! The tables are written by the test `tests/angles.rs`, which also proves that they are up to date.

mod tables;

use octaplex_arch::Angles;
use tables::COSINES;

/// Levels that have codebooks.
pub(crate) const LEVELS: usize = COSINES.len();

type Table<T> = [[T; 510]; LEVELS];

/// Where the codebook of `bits` bits starts in its level's row.
const fn start(bits: usize) -> usize {
    (1 << bits) - 2
}

static DIRECTIONS: Table<[f32; 2]> = {
    let mut directions = [[[0.0; 2]; 510]; LEVELS];
    let mut level = 0;
    while level < LEVELS {
        let mut bits = 1;
        while bits <= 8 {
            let codes = 1 << bits;
            let mut k = 0;
            while k < codes {
                // sin ψ = cos(π/2 - ψ); on the circle, a quarter of a turn back. Two sectors have no such centroid.
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

/// The codebook of `bits` bits (1 to 8) on a level (from 1).
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
