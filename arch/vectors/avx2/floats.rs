//! Rows of plain floats with AVX2: sums in the order of `scalar::dot`, multiplications and
//! additions not fused.
//!
//! On Sapphire Rapids it is 1.1 to 4.7 times as fast as `wide.rs`.

use crate::registers::avx2::{Sixteen, add_products, halve, load_ps, load_sixteen, store_first, store_ps};
use crate::vectors::{avx2, scalar};
use crate::{Float, MAX_DIM, registers};
use core::arch::x86_64::*;

/// Rows that are decoded together.
pub(crate) const ROWS: usize = 8;

/// Decoded rows of up to `MAX_DIM` values.
pub(crate) type Decoded = [[f32; MAX_DIM]; ROWS];

/// Implements `scalar::score_floats`. One query of f16 rows needs no buffer of decoded values.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_floats(format: Float, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    let row_bytes = dim * format.bytes();
    let count = bytes.len() / row_bytes;
    if let ([query], Float::F16) = (queries, format) {
        for (row, score) in bytes.chunks_exact(row_bytes).zip(scores) {
            *score = dot_f16(query, row);
        }
        return;
    }
    let mut values = [0.0; MAX_DIM];
    let values = &mut values[..dim];
    for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
        decode_floats(format, row, values);
        for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
            scores[r] = avx2::dot(query, values);
        }
    }
}

/// Returns the product of a query and a row of f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_f16(query: &[f32], row: &[u8]) -> f32 {
    let ((query, query_tail), (row, row_tail)) = (query.as_chunks::<16>(), row.as_chunks::<32>());
    let mut lanes = [_mm256_setzero_ps(); 2];
    for (query, row) in query.iter().zip(row) {
        add_products(&mut lanes, load_sixteen(query), decode_f16(row));
    }
    if !query_tail.is_empty() {
        let mut row = [0; 32];
        row[..row_tail.len()].copy_from_slice(row_tail);
        // No lane is ever -0, so adding the zeros behind the end changes nothing.
        add_products(&mut lanes, load_sixteen(query_tail), decode_f16(&row));
    }
    halve(lanes)
}

/// Converts sixteen f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_f16(bytes: &[u8; 32]) -> Sixteen {
    let load = |half: &[u8; 16]| {
        // SAFETY: the array holds the 16 bytes that are read.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(half.as_ptr().cast()) })
    };
    let halves = bytes.as_chunks::<16>().0;
    [load(&halves[0]), load(&halves[1])]
}

/// Implements `scalar::accumulate_floats`. Eight rows are decoded once for all queries.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_floats(format: Float, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    let row_bytes = dim * format.bytes();
    let count = bytes.len() / row_bytes;
    if acc.len() == dim && dim.is_multiple_of(8) {
        match format {
            Float::F16 => return add_to_one::<16>(bytes, row_bytes, weights, acc),
            Float::F32 => return add_to_one::<32>(bytes, row_bytes, weights, acc),
            Float::Bf16 => {}
        }
    }
    let mut decoded = [[0.0; MAX_DIM]; ROWS];
    for (i, rows) in bytes.chunks(ROWS * row_bytes).enumerate() {
        for (row, decoded) in rows.chunks_exact(row_bytes).zip(&mut decoded) {
            decode_floats(format, row, &mut decoded[..dim]);
        }
        let rows = rows.len() / row_bytes;
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
            add_rows(&decoded, &weights[i * ROWS..][..rows], acc);
        }
    }
}

/// Adds rows for one query, which needs no buffer of decoded values. The sums of 64 coordinates stay in
/// registers from the first row to the last. Eight values take EIGHT bytes: 16 as f16, 32 as f32.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn add_to_one<const EIGHT: usize>(
    bytes: &[u8],
    row_bytes: usize,
    weights: &[f32],
    acc: &mut [f32],
) {
    let (blocks, rest) = acc.as_chunks_mut::<64>();
    let after = 8 * EIGHT * blocks.len();
    for (i, acc) in blocks.iter_mut().enumerate() {
        add_columns::<EIGHT, 8>(&bytes[8 * EIGHT * i..], row_bytes, weights, acc);
    }
    for (i, acc) in rest.chunks_exact_mut(8).enumerate() {
        add_columns::<EIGHT, 1>(&bytes[after + EIGHT * i..], row_bytes, weights, acc);
    }
}

/// Adds the first 8·N coordinates of rows that begin every `row_bytes` bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_columns<const EIGHT: usize, const N: usize>(
    bytes: &[u8],
    row_bytes: usize,
    weights: &[f32],
    acc: &mut [f32],
) {
    let acc = acc.as_chunks_mut().0;
    let mut sums = [_mm256_setzero_ps(); N];
    for (sum, acc) in sums.iter_mut().zip(acc.iter()) {
        *sum = load_ps(acc);
    }
    for (row, weight) in bytes.chunks(row_bytes).zip(weights) {
        let weight = _mm256_set1_ps(*weight);
        for (sum, x) in sums.iter_mut().zip(row[..EIGHT * N].as_chunks::<EIGHT>().0) {
            let x = if EIGHT == 16 {
                // SAFETY: the array holds the 16 bytes that are read.
                _mm256_cvtph_ps(unsafe { _mm_loadu_si128(x.as_ptr().cast()) })
            } else {
                // SAFETY: the array holds the 32 bytes that are read.
                unsafe { _mm256_loadu_ps(x.as_ptr().cast()) }
            };
            *sum = _mm256_add_ps(*sum, _mm256_mul_ps(weight, x));
        }
    }
    for (sum, acc) in sums.into_iter().zip(acc) {
        store_ps(acc, sum);
    }
}

/// Adds weight·row to `acc`, rows in ascending order. The sums of 64 coordinates at a time stay in
/// registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn add_rows(rows: &Decoded, weights: &[f32], acc: &mut [f32]) {
    let (blocks, rest) = acc.as_chunks_mut::<64>();
    let after = 64 * blocks.len();
    for (i, acc) in blocks.iter_mut().enumerate() {
        let acc = acc.as_chunks_mut().0;
        let mut sums = [_mm256_setzero_ps(); 8];
        for (sum, acc) in sums.iter_mut().zip(acc.iter()) {
            *sum = load_ps(acc);
        }
        for (weight, row) in weights.iter().zip(rows) {
            let row = row[64 * i..][..64].as_chunks().0;
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum = _mm256_add_ps(*sum, _mm256_mul_ps(_mm256_set1_ps(*weight), load_ps(x)));
            }
        }
        for (sum, acc) in sums.into_iter().zip(acc) {
            store_ps(acc, sum);
        }
    }
    for (weight, row) in weights.iter().zip(rows) {
        for (acc, x) in rest.iter_mut().zip(&row[after..]) {
            *acc += weight * x;
        }
    }
}

/// Implements `scalar::decode_floats`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn decode_floats(format: Float, bytes: &[u8], out: &mut [f32]) {
    if format != Float::F16 {
        return scalar::decode_floats(format, bytes, out);
    }
    let ((chunks, tail), (out, out_tail)) = (bytes.as_chunks::<32>(), out.as_chunks_mut::<16>());
    for (bytes, out) in chunks.iter().zip(out) {
        for (half, out) in decode_f16(bytes).into_iter().zip(out.as_chunks_mut().0) {
            store_ps(out, half);
        }
    }
    if !out_tail.is_empty() {
        let mut bytes = [0; 32];
        bytes[..tail.len()].copy_from_slice(tail);
        for (half, out) in decode_f16(&bytes).into_iter().zip(out_tail.chunks_mut(8)) {
            store_first(out, half);
        }
    }
}

/// Implements `scalar::encode_floats`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn encode_floats(format: Float, x: &[f32], bytes: &mut [u8]) {
    if format != Float::F16 {
        return scalar::encode_floats(format, x, bytes);
    }
    let ((chunks, tail), (bytes, bytes_tail)) = (x.as_chunks(), bytes.as_chunks_mut());
    for (x, bytes) in chunks.iter().zip(bytes) {
        encode_eight(load_ps(x), bytes);
    }
    if !tail.is_empty() {
        let mut all = [0; 16];
        encode_eight(registers::avx2::load_first(tail), &mut all);
        bytes_tail.copy_from_slice(&all[..bytes_tail.len()]);
    }
}

/// Converts eight values to f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn encode_eight(x: __m256, bytes: &mut [u8; 16]) {
    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
    // SAFETY: the array holds the 16 bytes that are written.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), halves) }
}
