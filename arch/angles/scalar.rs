//! The specification of trees of polar coordinates. Encoding compares with tangents. Decoding and
//! scoring multiply by table entries.

use crate::codes::scalar::unpack;
use crate::floats::{f16_to_f32, sqrt};
use crate::vectors::scalar::accumulate_rows;
use crate::{AngleTree, Angles, MAX_DIM};

/// Pairs that are quantised together, one a lane. Their number does not affect the codes.
const LANES: usize = 8;

/// Quantises coordinates level by level. The first values of `x` become the roots' radii.
#[inline(always)]
pub(crate) fn quantize_angles(tree: &AngleTree, x: &mut [f32], codes: &mut [u8]) {
    let (mut nodes, mut rest) = (tree.dim / 2, codes);
    for (level, angles) in tree.levels.iter().enumerate() {
        let (codes, above) = rest.split_at_mut(nodes);
        for (k, codes) in codes.chunks_mut(LANES).enumerate() {
            let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
            let pairs = &x[2 * LANES * k..][..2 * codes.len()];
            match pairs.first_chunk::<{ 2 * LANES }>() {
                Some(pairs) => {
                    (a, b) =
                        (core::array::from_fn(|i| pairs[2 * i]), core::array::from_fn(|i| pairs[2 * i + 1]))
                }
                None => {
                    for (i, pair) in pairs.as_chunks::<2>().0.iter().enumerate() {
                        (a[i], b[i]) = (pair[0], pair[1]);
                    }
                }
            }
            let found = if level == 0 { first_codes(angles, &a, &b) } else { count_tangents(angles, &a, &b) };
            let mut radii = [0.0; LANES];
            for lane in 0..LANES {
                radii[lane] = sqrt(a[lane] * a[lane] + b[lane] * b[lane]);
            }
            for ((code, found), (x, radius)) in
                codes.iter_mut().zip(found).zip(x[LANES * k..].iter_mut().zip(radii))
            {
                (*code, *x) = (found as u8, radius);
            }
        }
        (nodes, rest) = (nodes / 2, above);
    }
}

/// Returns the codes of level 1: the quadrant, then a count of tangents within it.
///
/// Each pair is turned into the first quadrant, as (a, b). The code counts the tangents t with b ≥
/// a·t. An axis belongs to the quadrant that it begins. (0, 0) belongs to the first quadrant, in
/// its last sector.
#[inline(always)]
fn first_codes(angles: &Angles, x: &[f32; LANES], y: &[f32; LANES]) -> [u32; LANES] {
    let (mut quadrants, mut a, mut b) = ([0; LANES], [0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        let (x, y) = (x[lane], y[lane]);
        let upper = u32::from((x <= 0.0) & (y > 0.0));
        let lower = if x < 0.0 { 2 } else { 3 };
        let quadrant = if (y < 0.0) | ((y <= 0.0) & (x < 0.0)) { lower } else { upper };
        // The second quadrant maps to (y, -x), the third to (-x, -y), the fourth to (-y, x).
        (a[lane], b[lane]) = if quadrant % 2 == 0 { (x.abs(), y.abs()) } else { (y.abs(), x.abs()) };
        quadrants[lane] = quadrant;
    }
    let mut codes = count_tangents(angles, &a, &b);
    for (code, quadrant) in codes.iter_mut().zip(quadrants) {
        *code |= quadrant << angles.bits >> 2;
    }
    codes
}

/// Counts the tangents t with b ≥ a·t for each pair.
#[inline(always)]
fn count_tangents(angles: &Angles, a: &[f32; LANES], b: &[f32; LANES]) -> [u32; LANES] {
    let mut counts = [0; LANES];
    for tangent in angles.tangents {
        for lane in 0..LANES {
            counts[lane] += u32::from(b[lane] >= a[lane] * tangent);
        }
    }
    counts
}

/// Reads a root of a row.
#[inline(always)]
pub(crate) fn root(row: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([row[2 * index], row[2 * index + 1]]))
}

/// Decodes a row from the roots down: r → (r·cos, r·sin).
#[inline(always)]
pub(crate) fn decode_angles(tree: &AngleTree, row: &[u8], out: &mut [f32]) {
    let mut codes = [0; MAX_DIM];
    for (nodes, packing, bytes) in tree.planes(row) {
        unpack(packing, bytes, &mut codes[nodes]);
    }
    let (mut nodes, mut done) = (tree.roots(), tree.codes());
    for (index, out) in out[..nodes].iter_mut().enumerate() {
        *out = root(row, index);
    }
    for angles in tree.levels.iter().rev() {
        done -= nodes;
        for i in (0..nodes).rev() {
            let [cos, sin] = angles.directions[usize::from(codes[done + i])];
            (out[2 * i], out[2 * i + 1]) = (out[i] * cos, out[i] * sin);
        }
        nodes *= 2;
    }
}

/// Scores rows, from the query's coordinates up: (a, b) → a·cos + b·sin. The roots follow in
/// ascending order, starting with the first product.
#[inline(always)]
pub(crate) fn score_angles(tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    let count = bytes.len() / tree.row_bytes();
    let (mut codes, mut sums) = ([0; MAX_DIM], [0.0; MAX_DIM]);
    for (r, row) in bytes.chunks_exact(tree.row_bytes()).enumerate() {
        for (nodes, packing, bytes) in tree.planes(row) {
            unpack(packing, bytes, &mut codes[nodes]);
        }
        for (q, query) in queries.iter().enumerate() {
            sums[..tree.dim].copy_from_slice(query);
            let (mut nodes, mut done) = (tree.dim / 2, 0);
            for angles in tree.levels {
                for i in 0..nodes {
                    let [cos, sin] = angles.directions[usize::from(codes[done + i])];
                    sums[i] = sums[2 * i] * cos + sums[2 * i + 1] * sin;
                }
                (nodes, done) = (nodes / 2, done + nodes);
            }
            scores[q * count + r] = weigh_roots(tree, row, &sums);
        }
    }
}

/// Returns Σ root·sum in ascending order, starting with the first product.
#[inline(always)]
pub(crate) fn weigh_roots(tree: &AngleTree, row: &[u8], sums: &[f32]) -> f32 {
    (1..tree.roots()).fold(root(row, 0) * sums[0], |score, index| score + root(row, index) * sums[index])
}

/// Adds Σ weight·decoded row to `acc`, rows in ascending order.
#[inline(always)]
pub(crate) fn accumulate_angles(tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    let rows = bytes.chunks_exact(tree.row_bytes());
    accumulate_rows(|row, values| decode_angles(tree, row, values), tree.dim, rows, weights, acc);
}
