//! Scores of octahedral directions: four triplets a register, their directions looked up one by one.

use super::Lanes;
use crate::octahedral::{MAX_FIELDS, Quads, score_with};
use crate::scalar::{LANES, halve};
use crate::{IntQuery, Octahedral};

/// What these kernels need besides.
pub(crate) trait Triplets: Lanes {
    /// Σ of the products of four neighbouring signed bytes, within ±127, in each of four `i32`.
    fn dot_quads(a: Self::V, b: Self::V) -> Self::V;
    /// Four `i32` as floats.
    fn to_floats(x: Self::V) -> Self::V;
}

#[inline(always)]
pub(crate) fn score_octahedral<L: Triplets>(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    score_with(layout, stride, bytes, queries, scores, sum::<L>);
}

#[inline(always)]
fn sum<L: Triplets>(directions: &Quads, radii: &[f32; MAX_FIELDS], query: &Quads, groups: usize) -> f32 {
    let mut lanes = [L::splat(0); 4];
    let products =
        directions.as_flattened().as_chunks::<64>().0.iter().zip(query.as_flattened().as_chunks::<64>().0);
    for ((n, q), radii) in products.zip(radii.as_chunks::<16>().0).take(groups) {
        let registers = n.as_chunks().0.iter().zip(q.as_chunks().0).zip(radii.as_chunks().0);
        for (lanes, ((n, q), radii)) in lanes.iter_mut().zip(registers) {
            let dots = L::to_floats(L::dot_quads(L::load(n), L::load(q)));
            *lanes = L::add_floats(*lanes, L::multiply_floats(dots, L::load_floats(radii)));
        }
    }
    let mut sums = [0.0; LANES];
    for (lanes, sums) in lanes.iter().zip(sums.as_chunks_mut::<4>().0) {
        L::store_floats(sums, *lanes);
    }
    halve(sums)
}
