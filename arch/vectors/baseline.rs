//! The baseline of benchmarks: an f16 dot product as fast as this CPU allows, as an uncompressed
//! cache would run it.
//!
//! It fuses multiply-adds and has its own order of sums. So it is **not** bit-exact, and no result
//! of the library uses it.

use core::arch::x86_64::*;

/// Scores rows of f16 one by one, with AVX2, FMA and F16C: eight lanes and four accumulators, so
/// that additions need not wait for one another.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn f16_dot_fma_avx2(query: &[f32], bytes: &[u8], scores: &mut [f32]) {
    for (row, score) in bytes.chunks_exact(2 * query.len()).zip(scores) {
        let mut sums = [_mm256_setzero_ps(); 4];
        let step = |halves: &[u8; 16], query: &[f32; 8], sum: &mut __m256| {
            // SAFETY: the arrays hold the 16 and 32 bytes that the loads read.
            let (halves, query) =
                unsafe { (_mm_loadu_si128(halves.as_ptr().cast()), _mm256_loadu_ps(query.as_ptr())) };
            *sum = _mm256_fmadd_ps(_mm256_cvtph_ps(halves), query, *sum);
        };
        let ((halves, tail), (values, query_tail)) = (row.as_chunks::<16>(), query.as_chunks::<8>());
        let ((fours, rest), (query_fours, query_rest)) = (halves.as_chunks::<4>(), values.as_chunks::<4>());
        for (halves, query) in fours.iter().zip(query_fours) {
            for i in 0..4 {
                step(&halves[i], &query[i], &mut sums[i]);
            }
        }
        for (i, (halves, query)) in rest.iter().zip(query_rest).enumerate() {
            step(halves, query, &mut sums[i]);
        }
        let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
        let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        let sum = _mm_add_ss(sum, _mm_movehdup_ps(sum));
        *score = _mm_cvtss_f32(sum) + dot_tail(query_tail, tail);
    }
}

/// Scores rows of f16 one by one with AVX-512: 16 lanes and four accumulators.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
pub(crate) fn f16_dot_fma_avx512(query: &[f32], bytes: &[u8], scores: &mut [f32]) {
    for (row, score) in bytes.chunks_exact(2 * query.len()).zip(scores) {
        let mut sums = [_mm512_setzero_ps(); 4];
        let step = |halves: &[u8; 32], query: &[f32; 16], sum: &mut __m512| {
            // SAFETY: the arrays hold the 32 and 64 bytes that the loads read.
            let (halves, query) =
                unsafe { (_mm256_loadu_si256(halves.as_ptr().cast()), _mm512_loadu_ps(query.as_ptr())) };
            *sum = _mm512_fmadd_ps(_mm512_cvtph_ps(halves), query, *sum);
        };
        let ((halves, tail), (values, query_tail)) = (row.as_chunks::<32>(), query.as_chunks::<16>());
        let ((fours, rest), (query_fours, query_rest)) = (halves.as_chunks::<4>(), values.as_chunks::<4>());
        for (halves, query) in fours.iter().zip(query_fours) {
            for i in 0..4 {
                step(&halves[i], &query[i], &mut sums[i]);
            }
        }
        for (i, (halves, query)) in rest.iter().zip(query_rest).enumerate() {
            step(halves, query, &mut sums[i]);
        }
        let sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
        *score = _mm512_reduce_add_ps(sum) + dot_tail(query_tail, tail);
    }
}

/// Returns the products of the coordinates behind the last full register.
#[target_feature(enable = "fma,f16c")]
#[inline]
fn dot_tail(query: &[f32], bytes: &[u8]) -> f32 {
    let mut sum = 0.0f32;
    for (bytes, query) in bytes.as_chunks::<2>().0.iter().zip(query) {
        let value = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(*bytes))));
        sum += _mm_cvtss_f32(value) * query;
    }
    sum
}
