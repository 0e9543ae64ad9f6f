//! NEON with the dot-product instructions of ARMv8.2: scores; everything else is NEON's.

use super::neon::Neon;
use crate::lanes;
use crate::quaternion::{ChunkLayout, QuaternionSet};
use crate::{IntQuery, Octahedral, Rows, SignQuery, SignRows, WindowCodebook};

// The functions below take the place of NEON's.
pub(crate) use super::neon::*;

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

#[target_feature(enable = "dotprod")]
pub(crate) fn score_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    lanes::score_quaternions::<Neon<true>>(layout, set, bytes, queries, scores);
}

#[target_feature(enable = "dotprod")]
pub(crate) fn score_signs(rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]) {
    lanes::score_signs::<Neon<true>>(rows, scale, queries, scores);
}

#[target_feature(enable = "dotprod")]
pub(crate) fn score_windows(
    book: &WindowCodebook,
    dim: usize,
    bytes: &[u8],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    lanes::score_windows::<Neon<true>>(book, dim, bytes, scale, queries, scores);
}
