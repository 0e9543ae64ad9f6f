//! NEON with the dot-product instructions of ARMv8.2: scores; everything else is NEON's.

use super::neon::Neon;
use crate::lanes;
use crate::{IntQuery, Rows};

pub(crate) use super::neon::{
    accumulate_affine, accumulate_codes, accumulate_floats, decode_affine, decode_floats, dot, encode_floats,
    lookup, max_abs, min_max, multiply_columns, pack, quantize, quantize_affine, quantize_query, rotate,
    rotate_inverse, score_affine, score_floats, unpack,
};

pub(crate) use super::neon::{exp_weights, scale_logits, soft_cap};

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
