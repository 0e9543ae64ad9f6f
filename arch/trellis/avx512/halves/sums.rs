//! Weighted sums.
//!
//! The bytes of four pairs of rows are interleaved, so that four neighbouring bytes are of four rows in the lower half of
//! a register and of the next four in the upper half, each with their own weights; the halves are added in the end.

use super::{DIM, Halves, PATH, coordinate};
use crate::codes::avx512::accumulate::{ByteWeights, in_order, run_scales};
use crate::codes::avx512::codebook::interleave;
use crate::codes::scalar::{PAGE, finish_sums};
use crate::rows::{Blocks, ROWS};
use crate::trellis::layout::WindowCodebook;
use crate::trellis::scalar::scaled_rows;
use core::arch::x86_64::*;

/// Sums rows with the weights of one query if the shape is of these; `false` if not. See `scalar::accumulate_windows`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate(
    book: &WindowCodebook,
    dim: usize,
    bytes: &[u8],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) -> bool {
    if dim != DIM {
        return false;
    }
    for_shape!(book, accumulate_as(book, bytes, scale, weights, acc));
    true
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate_as<const BITS: usize, const HISTORY: u32, const TABLES: usize>(
    book: &WindowCodebook,
    bytes: &[u8],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let halves = Halves::<BITS, HISTORY, TABLES>::new(book, 0);
    let stride = book.row_bytes(DIM);
    let ones = ByteWeights { low: [1; PAGE], ..ByteWeights::NONE };
    for (page, weights) in bytes.chunks(PAGE * stride).zip(weights.chunks(PAGE)) {
        let rows = &scaled_rows(page, stride, DIM);
        let mut padded = None;
        let blocks = &Blocks::with(rows, stride, &mut padded);
        let count = rows.count().div_ceil(ROWS);
        let mut ints = ByteWeights::NONE;
        ints.set(weights, &run_scales(blocks, 0..count));
        if ints.unit == 0.0 {
            continue;
        }
        let mut sums = halves.sums(blocks, count, &ints);
        if ints.offset != 0 {
            for (sum, plain) in sums.iter_mut().zip(halves.sums(blocks, count, &ones)) {
                *sum = sum.wrapping_sub(plain.wrapping_mul(ints.offset));
            }
        }
        finish_sums(&sums, ints.unit * scale, acc);
    }
}

impl<const BITS: usize, const HISTORY: u32, const TABLES: usize> Halves<BITS, HISTORY, TABLES> {
    /// The weighted sums of a page's coordinates.
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn sums(&self, blocks: &Blocks, count: usize, ints: &ByteWeights) -> [i32; DIM] {
        let mut sums = [0; DIM];
        // A pass for each: the sums of more do not fit the registers.
        self.add::<0>(blocks, count, ints, &mut sums);
        self.add::<1>(blocks, count, ints, &mut sums);
        self.add::<2>(blocks, count, ints, &mut sums);
        self.add::<3>(blocks, count, ints, &mut sums);
        sums
    }

    /// Those of look-up `P`.
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn add<const P: usize>(&self, blocks: &Blocks, count: usize, ints: &ByteWeights, out: &mut [i32; DIM]) {
        let zero = _mm512_setzero_si512();
        let order = _mm512_mask_set1_epi32(zero, 0xff00, 1);
        // With the lower and with the upper bytes of the weights.
        let (mut low, mut high) = ([zero; 4], [zero; 4]);
        for i in 0..count {
            let block = blocks.get(i).apart(2 + PATH + BITS * PATH);
            for half in 0..2 {
                // Four weights of one row after the other, and of the other.
                let weights = |bytes: &[u8; PAGE]| {
                    let eight = u64::from_le_bytes(bytes.as_chunks().0[2 * i + half]);
                    _mm512_permutexvar_epi32(order, _mm512_castsi128_si512(_mm_cvtsi64_si128(eight as i64)))
                };
                let (l, h) = (weights(&ints.low), weights(&ints.high));
                let mut found = [zero; 4];
                for (r, found) in (8 * half..).zip(&mut found) {
                    *found = self.centroids(&self.planes(&block, r), P);
                }
                for (k, found) in interleave(found).into_iter().enumerate() {
                    low[k] = _mm512_dpbusd_epi32(low[k], l, found);
                    high[k] = _mm512_dpbusd_epi32(high[k], h, found);
                }
            }
        }
        for (low, high) in low.iter_mut().zip(high) {
            *low = _mm512_add_epi32(*low, _mm512_slli_epi32::<8>(high));
        }
        // The places of one row and those of the other.
        let [a, b, c, d] = in_order(low);
        for (i, sums) in [_mm512_add_epi32(a, c), _mm512_add_epi32(b, d)].into_iter().enumerate() {
            let mut places = [0; 16];
            // SAFETY: the array has 16 integers.
            unsafe { _mm512_storeu_si512(places.as_mut_ptr().cast(), sums) }
            for (place, sum) in places.into_iter().enumerate() {
                out[coordinate(BITS, P, 16 * i + place)] = sum;
            }
        }
    }
}
