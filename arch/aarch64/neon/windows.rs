//! Windowed codebooks.

use crate::{Fit, IntQuery, WindowCodebook};

forward_to_scalar! {
    decode_windows(book: &WindowCodebook, row: &[u8], scale: f32, out: &mut [f32]);
    score_windows(book: &WindowCodebook, dim: usize, bytes: &[u8], scale: f32, queries: &[IntQuery], scores: &mut [f32]);
    accumulate_windows(book: &WindowCodebook, dim: usize, bytes: &[u8], scale: f32, weights: &[f32], acc: &mut [f32]);
    viterbi_encode(book: &WindowCodebook, dim: usize, z: &[f32], scales: &[f32], bytes: &mut [u8], fits: &mut [Fit]);
}
