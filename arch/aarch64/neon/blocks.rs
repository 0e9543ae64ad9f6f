//! Small blocks.

use crate::BlockBook;

forward_to_scalar! {
    quantize_blocks(book: &BlockBook, x: &[f32], bytes: &mut [u8]);
    blocks_are_finite(bytes: &[u8]) -> bool;
    decode_blocks(book: &BlockBook, bytes: &[u8], out: &mut [f32]);
    score_blocks(book: &BlockBook, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_blocks(book: &BlockBook, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}
