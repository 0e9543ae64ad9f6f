//! Planes of signs.

use crate::{SignQuery, SignRows};

forward_to_scalar! {
    pack_signs(x: &[f32], plane: &mut [u8]);
    unpack_signs(plane: &[u8], scale: f32, out: &mut [f32]);
    score_signs(rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]);
    accumulate_signs(rows: &SignRows, scale: f32, weights: &[f32], acc: &mut [f32]);
}
