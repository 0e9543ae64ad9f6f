//! Planes of signs with AVX-512. A plane's bits are the mask of a register of ones, under which
//! `vpdpbusd` adds the query's bytes.
//!
//! On Sapphire Rapids, scores take 0.3 to 0.4 of AVX2's time. Unpacking took 0.7 to 0.95 of the
//! specification's, which is not worth code.

use crate::registers::avx512::{add_sixteen, first, load_ps, load_tail, scales, scales_at, store_first};
use crate::rows::{Block, ROWS};
use crate::{Float, MAX_DIM, SignQuery, SignRows};
use core::arch::x86_64::*;

/// Signs in a register of bytes.
const CHUNK: usize = 64;

/// A query's bytes in registers, with zeros behind them.
struct Padded {
    values: [__m512i; MAX_DIM / CHUNK],
    /// The sum of all bytes of the query.
    total: __m512i,
    /// Query scale times table scale.
    unit: __m512,
}

impl Padded {
    /// Loads a query.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(query: &SignQuery, scale: f32) -> Self {
        let mut values = [_mm512_setzero_si512(); MAX_DIM / CHUNK];
        let mut total = _mm512_setzero_si512();
        for (bytes, values) in query.values.chunks(CHUNK).zip(&mut values) {
            // SAFETY: a masked load touches nothing whose mask bit is clear, and the mask has `bytes.len()` bits.
            *values = unsafe { _mm512_maskz_loadu_epi8(first(bytes.len()), bytes.as_ptr()) };
            total = _mm512_dpbusd_epi32(total, _mm512_set1_epi8(1), *values);
        }
        Self {
            values,
            total: _mm512_set1_epi32(_mm512_reduce_add_epi32(total)),
            unit: _mm512_set1_ps(query.scale * scale),
        }
    }
}

/// Implements `scalar::score_signs`. Common widths have their own loops.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_signs(rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]) {
    let count = rows.count();
    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count.max(1))) {
        let query = Padded::new(query, scale);
        for (bytes, scores) in rows.bytes.chunks(ROWS * rows.stride).zip(scores.chunks_mut(ROWS)) {
            let (positive, scales) = match (rows.dim, scores.len()) {
                (128, ROWS) => full_block::<2, false>(rows, bytes, &query),
                (64, ROWS) => full_block::<1, false>(rows, bytes, &query),
                (65.., ROWS) if rows.dim.is_multiple_of(CHUNK) => full_block::<0, false>(rows, bytes, &query),
                (65.., ROWS) => full_block::<0, true>(rows, bytes, &query),
                _ => any_block(rows, bytes, &query),
            };
            let sums = _mm512_sub_epi32(_mm512_slli_epi32::<1>(positive), query.total);
            let products = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), query.unit), scales);
            store_first(_mm512_add_ps(load_tail(scores), products), scores);
        }
    }
}

/// Returns the sums of the query's bytes at set bits, and the scales, of 16 rows.
///
/// Rows have `CHUNKS` whole chunks (0: as many as the width says). With `TAIL`, a part of a chunk
/// follows.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn full_block<const CHUNKS: usize, const TAIL: bool>(
    rows: &SignRows,
    bytes: &[u8],
    query: &Padded,
) -> (__m512i, __m512) {
    let block = Block::of(bytes, rows.stride);
    let start = rows.at + 2;
    let chunks = if CHUNKS == 0 { rows.dim / CHUNK } else { CHUNKS };
    let mut sums = [_mm512_setzero_si512(); ROWS];
    for (chunk, values) in query.values[..chunks].iter().enumerate() {
        let window = block.window(start + 8 * chunk, start + 8 * chunk + 8);
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_dpbusd_epi32(*sum, _mm512_maskz_set1_epi8(window.quad(r), 1), *values);
        }
    }
    if TAIL {
        // Load the last 8 bytes, and shift out the bits that were added already.
        let end = start + rows.dim / 8;
        let (window, shift) = (block.window(end - 8, end), CHUNK - rows.dim % CHUNK);
        for (r, sum) in sums.iter_mut().enumerate() {
            let ones = _mm512_maskz_set1_epi8(window.quad(r) >> shift, 1);
            *sum = _mm512_dpbusd_epi32(*sum, ones, query.values[chunks]);
        }
    }
    let inner = scales_at(&block, rows.at);
    let scales = match rows.outer {
        None => inner,
        Some(Float::F32) => _mm512_mul_ps(outer_f32(rows, bytes), inner),
        Some(_) => _mm512_mul_ps(scales(&block), inner),
    };
    (add_sixteen(&sums), scales)
}

/// Reads the f32 at the front of each row.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn outer_f32(rows: &SignRows, bytes: &[u8]) -> __m512 {
    let mut outer = [0.0; ROWS];
    for (outer, row) in outer.iter_mut().zip(bytes.chunks_exact(rows.stride)) {
        *outer = f32::from_le_bytes([row[0], row[1], row[2], row[3]]);
    }
    load_ps(&outer)
}

/// Returns the same for up to 16 rows of any width.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn any_block(rows: &SignRows, bytes: &[u8], query: &Padded) -> (__m512i, __m512) {
    let mut sums = [_mm512_setzero_si512(); ROWS];
    let mut scales = [0.0; ROWS];
    for ((sum, scale), row) in sums.iter_mut().zip(&mut scales).zip(bytes.chunks_exact(rows.stride)) {
        *scale = rows.scale(row);
        for (bytes, values) in rows.plane(row).chunks(8).zip(&query.values) {
            let mask = bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
            *sum = _mm512_dpbusd_epi32(*sum, _mm512_maskz_set1_epi8(mask, 1), *values);
        }
    }
    (add_sixteen(&sums), load_ps(&scales))
}
