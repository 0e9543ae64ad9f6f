//! Planes of signs: a plane's bits are the mask of a register of ones, and `vpdpbusd` adds the query's bytes under it.

use super::score::{add_four, add_lanes};
use super::{first, load_tail, store_tail};
use crate::{Float, MAX_DIM, SignQuery, SignRows};
use core::arch::x86_64::*;

forward_to_scalar! {
    enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni";
    accumulate_signs(rows: &SignRows, scale: f32, weights: &[f32], acc: &mut [f32]);
}

/// Rows in a block: the block's sums fill one register.
const ROWS: usize = 16;

/// Signs in a register of bytes.
const CHUNK: usize = 64;

/// bit = x ≥ 0, so that -0 is positive; least significant bit first.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn pack_signs(x: &[f32], plane: &mut [u8]) {
    for (x, plane) in x.chunks(16).zip(plane.chunks_mut(2)) {
        let bits = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(load_tail(x), _mm512_setzero_ps()).to_le_bytes();
        plane.copy_from_slice(&bits[..plane.len()]);
    }
}

/// out = scale where the bit is set, -scale elsewhere.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn unpack_signs(plane: &[u8], scale: f32, out: &mut [f32]) {
    let minus = _mm512_set1_ps(f32::from_bits(scale.to_bits() ^ 0x8000_0000));
    for (out, plane) in out.chunks_mut(16).zip(plane.chunks(2)) {
        let bits = u16::from_le_bytes([plane[0], plane.get(1).copied().unwrap_or(0)]);
        store_tail(out, _mm512_mask_blend_ps(bits, minus, _mm512_set1_ps(scale)));
    }
}

/// A query's bytes, zeros behind them.
struct Padded {
    values: [__m512i; MAX_DIM / CHUNK],
    /// Σ q.
    total: __m512i,
    unit: __m512,
}

impl Padded {
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

/// score\[query]\[row] += (f32(Σ ±q) · (query scale · table scale)) · row scale, the sum an exact integer.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_signs(rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]) {
    let count = rows.count();
    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count.max(1))) {
        let query = Padded::new(query, scale);
        match (rows.dim % CHUNK, rows.dim / CHUNK) {
            (0, 2) => score_one::<2, 0>(rows, &query, scores),
            (0, 1) => score_one::<1, 0>(rows, &query, scores),
            (0, 4) => score_one::<4, 0>(rows, &query, scores),
            (0, _) => score_one::<0, 0>(rows, &query, scores),
            (_, 0) => score_one::<0, 2>(rows, &query, scores),
            _ => score_one::<0, 1>(rows, &query, scores),
        }
    }
}

/// `CHUNKS`: how many whole chunks a row has, 0 for as many as it has. `TAIL`: 0 for no part of a chunk behind them,
/// 1 for one behind a whole chunk, 2 for nothing but a part.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_one<const CHUNKS: usize, const TAIL: u8>(rows: &SignRows, query: &Padded, scores: &mut [f32]) {
    let add = |row: &[u8]| {
        let plane = rows.plane(row);
        let (words, rest) = plane.as_chunks::<8>();
        let words = if CHUNKS == 0 { words } else { &words[..CHUNKS] };
        let mut sum = _mm512_setzero_si512();
        for (word, values) in words.iter().zip(&query.values) {
            let ones = _mm512_maskz_set1_epi8(u64::from_le_bytes(*word), 1);
            sum = _mm512_dpbusd_epi32(sum, ones, *values);
        }
        if TAIL > 0 {
            let word = match plane.last_chunk() {
                // The last 8 bytes, without those that have been added already.
                Some(word) if TAIL == 1 => u64::from_le_bytes(*word) >> (64 - 8 * rest.len()),
                _ => rest.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)),
            };
            sum = _mm512_dpbusd_epi32(sum, _mm512_maskz_set1_epi8(word, 1), query.values[words.len()]);
        }
        sum
    };
    for (block, scores) in rows.bytes.chunks(ROWS * rows.stride).zip(scores.chunks_mut(ROWS)) {
        let zero = _mm512_setzero_si512();
        let positive = if scores.len() == ROWS {
            let four = |first: usize| {
                let row = |r| &block[(first + r) * rows.stride..][..rows.stride];
                add_four([add(row(0)), add(row(1)), add(row(2)), add(row(3))])
            };
            add_lanes([four(0), four(4), four(8), four(12)])
        } else {
            let mut sums = [zero; ROWS];
            for (sum, row) in sums.iter_mut().zip(block.chunks_exact(rows.stride)) {
                *sum = add(row);
            }
            let four = |i: usize| add_four([sums[i], sums[i + 1], sums[i + 2], sums[i + 3]]);
            add_lanes([four(0), four(4), four(8), four(12)])
        };
        let sums = _mm512_sub_epi32(_mm512_slli_epi32::<1>(positive), query.total);
        let products =
            _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), query.unit), scales(rows, block));
        store_tail(scores, _mm512_add_ps(load_tail(scores), products));
    }
}

/// The scales of up to 16 rows.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scales(rows: &SignRows, block: &[u8]) -> __m512 {
    let halves = |at: usize| {
        let mut halves = [0u16; ROWS];
        for (half, row) in halves.iter_mut().zip(block.chunks_exact(rows.stride)) {
            *half = u16::from_le_bytes([row[at], row[at + 1]]);
        }
        // SAFETY: the array holds the 32 bytes that are read.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) })
    };
    let scales = halves(rows.at);
    match rows.outer {
        None => scales,
        Some(Float::F32) => {
            let mut outer = [0.0; ROWS];
            for (outer, row) in outer.iter_mut().zip(block.chunks_exact(rows.stride)) {
                *outer = f32::from_le_bytes([row[0], row[1], row[2], row[3]]);
            }
            _mm512_mul_ps(load_tail(&outer), scales)
        }
        Some(_) => _mm512_mul_ps(halves(0), scales),
    }
}
