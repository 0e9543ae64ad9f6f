//! NEON with the dot-product instructions of ARMv8.2: scores; everything else is NEON's.

use super::neon::Neon;
use crate::lanes;
use crate::{IntQuery, Rows, SignQuery, SignRows};

pub(crate) use super::neon::{
    accumulate_affine, accumulate_angles, accumulate_blocks, accumulate_codes, accumulate_floats,
    accumulate_signs, blocks_are_finite, decode_affine, decode_angles, decode_blocks, decode_floats, dot,
    encode_floats, lookup, max_abs, min_max, multiply_columns, pack, pack_signs, quantize, quantize_affine,
    quantize_angles, quantize_blocks, quantize_query, rotate, rotate_inverse, score_affine, score_angles,
    score_blocks, score_floats, unpack, unpack_signs,
};

#[target_feature(enable = "dotprod")]
pub(crate) fn score_codes(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    lanes::score_codes::<Neon<true>>(rows, centroids, scale, queries, scores);
}

#[target_feature(enable = "dotprod")]
pub(crate) fn score_signs(rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]) {
    lanes::score_signs::<Neon<true>>(rows, scale, queries, scores);
}
