//! Small blocks for registers. Codes become byte indices into a register of four scaled values.
//!
//! ```text
//! codes    c₀ c₁ c₂ c₃                    2 bits each
//! index    4·c₀ + 0 1 2 3 │ 4·c₁ + 0 1 2 3 │ …      the four bytes of each float
//! ```

use crate::floats::f16_to_f32;
use crate::registers::Registers;
use crate::vectors::scalar::{accumulate_rows, score_rows};
use crate::vectors::wide::dot;
use crate::{BLOCK_BYTES, BLOCK_VALUES, BlockBook};

/// Implements `scalar::decode_blocks`.
#[inline(always)]
pub(crate) fn decode_blocks<L: Registers>(book: &BlockBook, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<BLOCK_BYTES>().0;
    let out = out.as_chunks_mut::<BLOCK_VALUES>().0;
    match book {
        BlockBook::TwoBits { centroids, .. } => {
            for (block, out) in blocks.iter().zip(out) {
                decode::<L, false>([centroids, centroids], block, out);
            }
        }
        BlockBook::ThreeBits { centroids, .. } => {
            let (low, high) = centroids.split_at(4);
            let (Some(low), Some(high)) = (low.first_chunk(), high.first_chunk()) else { return };
            for (block, out) in blocks.iter().zip(out) {
                decode::<L, true>([low, high], block, out);
            }
        }
    }
}

/// Decodes a block with four values for each state of the plane's bit.
#[inline(always)]
fn decode<L: Registers, const PLANE: bool>(
    books: [&[f32; 4]; 2],
    block: &[u8; BLOCK_BYTES],
    out: &mut [f32; BLOCK_VALUES],
) {
    let scale = L::splat_float(f16_to_f32(u16::from_le_bytes([block[12], block[13]])));
    let [low, high] = books.map(|book| L::multiply_floats(scale, L::load_floats(book)));
    let mut bytes = [0; 16];
    bytes[..BLOCK_BYTES].copy_from_slice(block);
    let bytes = L::load(&bytes);
    for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let index = indices::<L, PLANE>(bytes, half as u8);
        for (group, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let first = 4 * group as u8;
            let [a, b, c, d] = [first, first + 1, first + 2, first + 3];
            let spread = L::load(&[a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d]);
            let index =
                L::or(L::lookup(index, spread), L::load(&[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]));
            let mut values = L::lookup(low, index);
            if PLANE {
                // An index outside of its register gives zeros, so an OR merges both lookups.
                values = L::or(values, L::lookup(high, L::sub_bytes(index, L::splat(16))));
            }
            L::store_floats(out, values);
        }
    }
}

/// Returns where the values of 16 codes begin in a register of four floats. A set bit of the plane
/// adds 16 bytes.
#[inline(always)]
fn indices<L: Registers, const PLANE: bool>(block: L::V, half: u8) -> L::V {
    let first = 4 * half;
    let [a, b, c, d] = [first, first + 1, first + 2, first + 3];
    let codes = L::lookup(block, L::load(&[a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d]));
    // One code in each byte, in either half of it. Then in the lower half, as code or as 4 · code.
    let codes = L::and(codes, L::load(&[3, 12, 48, 192, 3, 12, 48, 192, 3, 12, 48, 192, 3, 12, 48, 192]));
    let codes = L::or(L::and(codes, L::splat(15)), L::shift_bytes_right(codes, 4));
    let index = L::lookup(L::load(&[0, 4, 8, 12, 4, 0, 0, 0, 8, 0, 0, 0, 12, 0, 0, 0]), codes);
    if !PLANE {
        return index;
    }
    let (a, b) = (8 + 2 * half, 9 + 2 * half);
    let plane = L::lookup(block, L::load(&[a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b]));
    let bits = L::and(plane, L::load(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]));
    let ones = L::min_bytes(bits, L::splat(1));
    L::or(index, L::multiply_words(ones, L::splat_word(16)))
}

/// Implements `scalar::score_blocks`.
#[inline(always)]
pub(crate) fn score_blocks<L: Registers>(
    book: &BlockBook,
    dim: usize,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let rows = bytes.chunks_exact(dim / BLOCK_VALUES * BLOCK_BYTES);
    let decode = |row: &[u8], values: &mut [f32]| decode_blocks::<L>(book, row, values);
    score_rows(decode, dot::<L>, dim, rows, queries, scores);
}

/// Implements `scalar::accumulate_blocks`.
#[inline(always)]
pub(crate) fn accumulate_blocks<L: Registers>(
    book: &BlockBook,
    dim: usize,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let rows = bytes.chunks_exact(dim / BLOCK_VALUES * BLOCK_BYTES);
    accumulate_rows(|row, values| decode_blocks::<L>(book, row, values), dim, rows, weights, acc);
}
