//! Trees of polar coordinates.

use crate::AngleTree;

forward_to_scalar! {
    quantize_angles(tree: &AngleTree, x: &mut [f32], codes: &mut [u8]);
    decode_angles(tree: &AngleTree, row: &[u8], out: &mut [f32]);
    score_angles(tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_angles(tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}
