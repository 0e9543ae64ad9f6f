//! Codebooks for triplets of coordinates of a random unit vector: a direction on the sphere and a
//! radius.
//!
//! The direction of a triplet (x, y, z) is uniform on the sphere. The octahedral map takes it to a
//! square: (x, y) over |x|+|y|+|z|, with the lower hemisphere folded outwards.
//!
//! ```text
//! ┌───────────┐
//! │z<0 ╱ ╲ z<0│    inner diamond, z ≥ 0: (ξ, η) = (x, y)
//! │  ╱     ╲  │    corners, z < 0: (ξ, η) = (1 - |y|, 1 - |x|) with the signs of x and y
//! │╱  z ≥ 0  ╲│
//! │╲         ╱│
//! │  ╲     ╱  │
//! │z<0 ╲ ╱ z<0│
//! └───────────┘
//! ```
//!
//! Each coordinate ξ of the square has the density `(1/π)/√(a² + (1-a)²) · ((1-a)/(1-2a+3a²) +
//! a/(2-4a+3a²))` with a = |ξ|, for every width. The radius ρ has `f(r) ∝ r²·(1-r²)^((dim-5)/2)`.
//! Centroids are integers, in units of 2⁻¹⁵ for ξ and 2⁻¹⁶ for ρ, so sums and midpoints of a few of
//! them are exact in `f32`.
//!
//! The compiler computes lengths and directions from the centroids of ξ.

use super::WIDTHS;
use super::octahedral_tables::{COORDINATES, RADII};

/// Returns the positive centroids of ξ in ascending order, in units of 2⁻¹⁵. The negative ones
/// mirror them.
///
/// `None` unless `bits` is 1 to 7.
#[must_use]
pub const fn octahedral_coordinates(bits: u8) -> Option<&'static [i16]> {
    if bits >= 1 && bits <= 7 { Some(COORDINATES[bits as usize - 1]) } else { None }
}

/// Returns the centroids of a triplet's radius in `dim` dimensions in ascending order, in units of
/// 2⁻¹⁶.
///
/// `None` unless `dim` is one of [`WIDTHS`] and `bits` 0 to 6. With 0 bits there is one centroid,
/// the mean.
#[must_use]
pub fn triplet_radii(dim: usize, bits: u8) -> Option<&'static [u16]> {
    let row = WIDTHS.iter().position(|&width| width == dim)?;
    RADII[row].get(usize::from(bits)).copied()
}

/// Unfolds a point of the square's positive quadrant. Returns (x, y, |z|) and the reciprocal of its
/// length.
const fn unfold(xi: i16, eta: i16) -> ([f64; 3], f64) {
    let (a, b) = (xi as f64 / 32768.0, eta as f64 / 32768.0);
    let z = (1.0 - a) - b;
    let (x, y) = if z < 0.0 { (1.0 - b, 1.0 - a) } else { (a, b) };
    let energy = x * x + y * y + z * z;
    // 1/√energy by Newton's method, since constants cannot call `sqrt`. The energy lies between 1/3
    // and 1.
    let mut length = 1.3;
    let mut step = 0;
    while step < 6 {
        length *= 1.5 - 0.5 * energy * length * length;
        step += 1;
    }
    ([x, y, z], length)
}

/// Computes 1/‖(x, y, z)‖ for every pair of positive centroids. The rank of η is the major index.
const fn lengths<const N: usize>(bits: u8) -> [f32; N] {
    let mut table = [0.0; N];
    let centroids = COORDINATES[bits as usize - 1];
    let half = centroids.len();
    let mut k = 0;
    while k < N {
        table[k] = unfold(centroids[k % half], centroids[k / half]).1 as f32;
        k += 1;
    }
    table
}

/// Computes 127 times the direction of every code, rounded. The code of η is the major index, and
/// the fourth byte is zero.
const fn directions<const N: usize>(bits: u8) -> [[i8; 4]; N] {
    let mut table = [[0; 4]; N];
    let centroids = COORDINATES[bits as usize - 1];
    let half = centroids.len();
    let mut k = 0;
    while k < N {
        let (i, j) = (k % (2 * half), k / (2 * half));
        let (right, up) = (i >= half, j >= half);
        let xi = centroids[if right { i - half } else { half - 1 - i }];
        let eta = centroids[if up { j - half } else { half - 1 - j }];
        let ([x, y, z], length) = unfold(xi, eta);
        let signs = [if right { 1.0 } else { -1.0 }, if up { 1.0 } else { -1.0 }, 1.0];
        let vector = [x, y, z];
        let mut c = 0;
        while c < 3 {
            let exact = 127.0 * vector[c] * length * signs[c];
            table[k][c] = if exact < 0.0 { (exact - 0.5) as i8 } else { (exact + 0.5) as i8 };
            c += 1;
        }
        k += 1;
    }
    table
}

/// Extracts one component of the directions, plus 128, in the order of
/// [`octaplex_arch::TripletLayout::planes`].
///
/// With 5 bits only the quadrant ξ, η > 0 is stored, with 4 bits only the half η > 0: kernels
/// restore the signs. Smaller tables repeat until they fill 128 entries.
const fn plane<const N: usize>(directions: &[[i8; 4]], component: usize) -> [u8; N] {
    let mut table = [0; N];
    let codes = directions.len();
    let mut k = 0;
    while k < N {
        let code = match codes {
            1024 => (k / 16 + 16) * 32 + (k % 16 + 16),
            256 => 128 + k,
            _ => k % codes,
        };
        table[k] = (directions[code][component] as i16 + 128) as u8;
        k += 1;
    }
    table
}

/// The tables that follow from the centroids of ξ, in the form of [`octaplex_arch::TripletLayout`].
#[derive(Debug)]
pub(crate) struct Directions {
    pub(crate) lengths: &'static [f32],
    pub(crate) directions: &'static [[i8; 4]],
    pub(crate) planes: [&'static [u8]; 3],
}

/// Builds the tables for a number of bits. `exact` leaves out the integer directions, which 8 bits
/// a component would not resolve.
macro_rules! directions {
    ($bits:literal, $entries:literal) => {{
        static LENGTHS: [f32; 1 << (2 * $bits - 2)] = lengths($bits);
        static DIRECTIONS: [[i8; 4]; 1 << (2 * $bits)] = directions($bits);
        static X: [u8; $entries] = plane(&DIRECTIONS, 0);
        static Y: [u8; $entries] = plane(&DIRECTIONS, 1);
        static Z: [u8; $entries] = plane(&DIRECTIONS, 2);
        Directions { lengths: &LENGTHS, directions: &DIRECTIONS, planes: [&X, &Y, &Z] }
    }};
    ($bits:literal, exact) => {{
        static LENGTHS: [f32; 1 << (2 * $bits - 2)] = lengths($bits);
        Directions { lengths: &LENGTHS, directions: &[], planes: [&[]; 3] }
    }};
}

static BY_BITS: [Directions; 7] = [
    directions!(1, 128),
    directions!(2, 128),
    directions!(3, 128),
    directions!(4, 128),
    directions!(5, 256),
    directions!(6, exact),
    directions!(7, exact),
];

/// Returns the tables for `bits` from 1 to 7.
pub(crate) fn directions_of(bits: u8) -> Option<&'static Directions> {
    BY_BITS.get(usize::from(bits).wrapping_sub(1))
}
