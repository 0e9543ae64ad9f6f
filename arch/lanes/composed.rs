//! The specification's text around faster steps: unpacking, dot products, f16.

use super::{Lanes, dot, unpack};
use crate::{Affine, AngleTree, Float, scalar};

#[inline(always)]
pub(crate) fn decode_floats<L: Lanes>(format: Float, bytes: &[u8], out: &mut [f32]) {
    L::decode_floats(format, bytes, out);
}

#[inline(always)]
pub(crate) fn score_floats<L: Lanes>(
    format: Float,
    dim: usize,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    scalar::score_floats_with(L::decode_floats, dot::<L>, format, dim, bytes, queries, scores);
}

#[inline(always)]
pub(crate) fn accumulate_floats<L: Lanes>(
    format: Float,
    dim: usize,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    scalar::accumulate_floats_with(L::decode_floats, format, dim, bytes, weights, acc);
}

#[inline(always)]
pub(crate) fn decode_affine<L: Lanes>(layout: &Affine, row: &[u8], out: &mut [f32]) {
    scalar::decode_affine_with(unpack::<L>, layout, row, out);
}

#[inline(always)]
pub(crate) fn score_affine<L: Lanes>(layout: &Affine, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    scalar::score_affine_with(unpack::<L>, layout, bytes, queries, scores);
}

#[inline(always)]
pub(crate) fn accumulate_affine<L: Lanes>(layout: &Affine, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    scalar::accumulate_affine_with(unpack::<L>, layout, bytes, weights, acc);
}

#[inline(always)]
pub(crate) fn decode_angles<L: Lanes>(tree: &AngleTree, row: &[u8], out: &mut [f32]) {
    scalar::decode_angles_with(unpack::<L>, tree, row, out);
}

#[inline(always)]
pub(crate) fn score_angles<L: Lanes>(tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    scalar::score_angles_with(unpack::<L>, tree, bytes, queries, scores);
}

#[inline(always)]
pub(crate) fn accumulate_angles<L: Lanes>(tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    scalar::accumulate_angles_with(unpack::<L>, tree, bytes, weights, acc);
}
