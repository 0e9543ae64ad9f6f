//! The specification of small blocks: 32 values with 2-bit codes, a bit plane, and an f16 scale
//! that fits the largest value.

use crate::floats::{f16_to_f32, f32_to_f16};
use crate::vectors::scalar::{accumulate_rows, dot, max_abs, score_rows};
use crate::{BLOCK_BYTES, BLOCK_VALUES, BlockBook};

/// Quantises each 32 values: scale = max|x| / largest centroid, and code = the number of thresholds
/// that are not above x/scale.
///
/// The quotient is x · (1/scale), with the scale in `f32` before it is rounded to f16. A scale of 0
/// gives quotients of 0. If 1/scale overflows, 0 · ∞ is NaN, and a NaN gets the last code.
#[inline(always)]
pub(crate) fn quantize_blocks(book: &BlockBook, x: &[f32], bytes: &mut [u8]) {
    match book {
        BlockBook::TwoBits { centroids, thresholds } => quantize_with(centroids, thresholds, x, bytes),
        BlockBook::ThreeBits { centroids, thresholds } => quantize_with(centroids, thresholds, x, bytes),
    }
}

/// Quantises with a codebook of N values.
#[inline(always)]
fn quantize_with<const N: usize, const T: usize>(
    centroids: &[f32; N],
    thresholds: &[f32; T],
    x: &[f32],
    bytes: &mut [u8],
) {
    let blocks = bytes.as_chunks_mut::<BLOCK_BYTES>().0;
    for (x, block) in x.as_chunks::<BLOCK_VALUES>().0.iter().zip(blocks) {
        let scale = max_abs(x) / centroids[N - 1];
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let (mut low, mut plane) = (0u64, 0u32);
        for (j, x) in x.iter().enumerate() {
            let y = x * inverse;
            // Counted from above, so that a NaN gets the last code.
            let mut code = T as u32;
            for threshold in thresholds {
                code -= u32::from(y < *threshold);
            }
            low |= u64::from(code & 3) << (2 * j);
            let bit = if N == 8 { code >> 2 } else { u32::from(x - scale * centroids[code as usize] >= 0.0) };
            plane |= bit << j;
        }
        block[..8].copy_from_slice(&low.to_le_bytes());
        block[8..12].copy_from_slice(&plane.to_le_bytes());
        block[12..].copy_from_slice(&f32_to_f16(scale).to_le_bytes());
    }
}

/// The bytes of 32 small blocks, which fill a whole number of registers.
const RUN: usize = 32 * BLOCK_BYTES;

/// Ones for the exponents of a run's scales.
static EXPONENTS: [u8; RUN] = {
    let mut mask = [0; RUN];
    let mut i = BLOCK_BYTES - 1;
    while i < RUN {
        mask[i] = 0x7c;
        i += BLOCK_BYTES;
    }
    mask
};

/// Returns whether no scale has an exponent of all ones, which would be infinity or NaN.
#[inline(always)]
pub(crate) fn blocks_are_finite(bytes: &[u8]) -> bool {
    let (runs, rest) = bytes.as_chunks::<RUN>();
    // An exponent of all ones plus the lowest of them carries into the sign bit.
    let mut carries = [0u8; 64];
    for run in runs {
        for (bytes, mask) in run.as_chunks::<64>().0.iter().zip(EXPONENTS.as_chunks::<64>().0) {
            for lane in 0..64 {
                carries[lane] |= (bytes[lane] & mask[lane]) + 4;
            }
        }
    }
    let carries = carries.iter().fold(0, |all, carry| all | carry);
    let rest = rest.as_chunks::<BLOCK_BYTES>().0.iter().fold(0, |all, block| all | ((block[13] & 0x7c) + 4));
    (carries | rest) & 0x80 == 0
}

/// Decodes blocks: out = scale · centroid\[code].
#[inline(always)]
pub(crate) fn decode_blocks(book: &BlockBook, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<BLOCK_BYTES>().0;
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<BLOCK_VALUES>().0) {
        let scale = f16_to_f32(u16::from_le_bytes([block[12], block[13]]));
        match book {
            BlockBook::TwoBits { centroids, .. } => {
                let values = centroids.map(|c| scale * c);
                for (j, out) in out.iter_mut().enumerate() {
                    *out = values[usize::from((block[j / 4] >> (2 * (j % 4))) & 3)];
                }
            }
            BlockBook::ThreeBits { centroids, .. } => {
                let values = centroids.map(|c| scale * c);
                for (j, out) in out.iter_mut().enumerate() {
                    let low = (block[j / 4] >> (2 * (j % 4))) & 3;
                    let high = (block[8 + j / 8] >> (j % 8)) & 1;
                    *out = values[usize::from(low | (high << 2))];
                }
            }
        }
    }
}

/// Scores rows: [`dot`] of the query and the decoded row.
#[inline(always)]
pub(crate) fn score_blocks(
    book: &BlockBook,
    dim: usize,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let rows = bytes.chunks_exact(dim / BLOCK_VALUES * BLOCK_BYTES);
    score_rows(|row, values| decode_blocks(book, row, values), dot, dim, rows, queries, scores);
}

/// Adds Σ weight·decoded row to `acc`, rows in ascending order.
#[inline(always)]
pub(crate) fn accumulate_blocks(
    book: &BlockBook,
    dim: usize,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let rows = bytes.chunks_exact(dim / BLOCK_VALUES * BLOCK_BYTES);
    accumulate_rows(|row, values| decode_blocks(book, row, values), dim, rows, weights, acc);
}
