//! Rows of integers with a scale, for registers: the specification's text around faster unpacking.

use super::scalar;
use crate::Affine;
use crate::codes::wide::unpack;
use crate::registers::Registers;

#[inline(always)]
pub(crate) fn decode_affine<L: Registers>(layout: &Affine, row: &[u8], out: &mut [f32]) {
    scalar::decode_affine_with(unpack::<L>, layout, row, out);
}

#[inline(always)]
pub(crate) fn score_affine<L: Registers>(
    layout: &Affine,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    scalar::score_affine_with(unpack::<L>, layout, bytes, queries, scores);
}

#[inline(always)]
pub(crate) fn accumulate_affine<L: Registers>(
    layout: &Affine,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    scalar::accumulate_affine_with(unpack::<L>, layout, bytes, weights, acc);
}
