//! NEON with the dot-product instructions of ARMv8.2: scores; everything else is NEON's.

use super::neon::Neon;
use crate::lanes;
use crate::{IntQuery, Octahedral, Rows};

pub(crate) use super::neon::{
    accumulate_affine, accumulate_codes, accumulate_floats, accumulate_octahedral, decode_affine,
    decode_floats, dot, encode_floats, lookup, max_abs, min_max, multiply_columns, octahedral_decode,
    octahedral_encode, pack, quantize, quantize_affine, quantize_query, rotate, rotate_inverse, score_affine,
    score_floats, score_octahedral_floats, unpack,
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
pub(crate) fn score_octahedral(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    lanes::score_octahedral::<Neon<true>>(layout, stride, bytes, queries, scores);
}
