//! Trees of polar coordinates, for registers: the specification's text around faster unpacking.

use super::scalar;
use crate::AngleTree;
use crate::codes::wide::unpack;
use crate::registers::Registers;

#[inline(always)]
pub(crate) fn decode_angles<L: Registers>(tree: &AngleTree, row: &[u8], out: &mut [f32]) {
    scalar::decode_angles_with(unpack::<L>, tree, row, out);
}

#[inline(always)]
pub(crate) fn score_angles<L: Registers>(
    tree: &AngleTree,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    scalar::score_angles_with(unpack::<L>, tree, bytes, queries, scores);
}

#[inline(always)]
pub(crate) fn accumulate_angles<L: Registers>(
    tree: &AngleTree,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    scalar::accumulate_angles_with(unpack::<L>, tree, bytes, weights, acc);
}
