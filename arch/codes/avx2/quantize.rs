//! From values to codes and from codes to values.

use crate::codes::{scalar, wide};
use crate::registers;
use crate::registers::avx2::{Avx2, load_first, load_ps};
use core::arch::x86_64::*;

/// code = number of thresholds ≤ x·scale, found by halving; see the AVX-512 kernel. Up to three levels fit a register,
/// the others are gathered.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    match thresholds.len() {
        // Few comparisons with all are faster.
        0..5 => wide::quantize::<Avx2>(x, scale, thresholds, codes),
        5..8 => halving::<3, 16>(x, scale, thresholds, codes),
        8..16 => halving::<4, 16>(x, scale, thresholds, codes),
        16..32 => halving::<5, 32>(x, scale, thresholds, codes),
        32..64 => halving::<6, 64>(x, scale, thresholds, codes),
        64..128 => halving::<7, 128>(x, scale, thresholds, codes),
        _ => halving::<8, 256>(x, scale, thresholds, codes),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halving<const BITS: usize, const ROOM: usize>(
    x: &[f32],
    scale: f32,
    thresholds: &[f32],
    codes: &mut [u8],
) {
    // Thresholds that are not there are NaN, at or below which nothing is.
    let mut all = [f32::NAN; ROOM];
    all[..thresholds.len()].copy_from_slice(thresholds);
    // Level l has one threshold for each outcome of the levels before, 2^(BITS-l) apart.
    let mut levels = [_mm256_setzero_ps(); BITS];
    for (l, level) in levels.iter_mut().enumerate().take(4) {
        let (apart, half) = (1 << (BITS - l), 1 << (BITS - l - 1));
        let mut table = [0.0; 8];
        for (i, entry) in table.iter_mut().enumerate().take(1 << l) {
            *entry = all[i * apart + half - 1];
        }
        *level = if l == 0 { _mm256_set1_ps(table[0]) } else { load_ps(&table) };
    }
    let scale = _mm256_set1_ps(scale);
    for (x, codes) in x.chunks(8).zip(codes.chunks_mut(8)) {
        let y = _mm256_mul_ps(load_first(x), scale);
        let mut index = _mm256_setzero_si256();
        for (l, level) in levels.iter().enumerate() {
            let threshold = match l {
                0 => *level,
                1..4 => _mm256_permutevar8x32_ps(*level, index),
                _ => {
                    let half = 1 << (BITS - l - 1);
                    let shift = _mm_cvtsi32_si128((BITS - l) as i32);
                    let at = _mm256_add_epi32(_mm256_sll_epi32(index, shift), _mm256_set1_epi32(half - 1));
                    // SAFETY: an index of l bits times 2^(BITS-l), plus less than that, is below 2^BITS ≤ ROOM.
                    unsafe { _mm256_i32gather_ps::<4>(all.as_ptr(), at) }
                }
            };
            let upper = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(y, threshold));
            // Twice the index, plus one where the comparison holds, which is -1.
            index = _mm256_sub_epi32(_mm256_add_epi32(index, index), upper);
        }
        let words = _mm_packus_epi32(_mm256_castsi256_si128(index), _mm256_extracti128_si256::<1>(index));
        let found = _mm_cvtsi128_si64(_mm_packus_epi16(words, words)).to_le_bytes();
        match codes.first_chunk_mut() {
            Some(codes) => *codes = found,
            None => codes.copy_from_slice(&found[..codes.len()]),
        }
    }
}

/// out = centroid · scale; codes above the codebook take its last centroid. Larger codebooks are left to LLVM: a
/// gather takes as long as eight loads.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn lookup(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    if centroids.len() > 16 {
        return scalar::lookup(codes, centroids, scale, out);
    }
    let mut table = [0.0; 16];
    for (entry, centroid) in table.iter_mut().zip(centroids) {
        *entry = f32::from(*centroid) * scale;
    }
    let last = _mm256_set1_epi32(centroids.len() as i32 - 1);
    let (lower, upper) = (load_first(&table[..8]), load_first(&table[8..]));
    for (codes, out) in codes.chunks(8).zip(out.chunks_mut(8)) {
        let mut eight = [0; 8];
        match codes.first_chunk() {
            Some(codes) => eight = *codes,
            None => eight[..codes.len()].copy_from_slice(codes),
        }
        let index = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(eight)));
        let index = _mm256_min_epu32(index, last);
        let (a, b) = (_mm256_permutevar8x32_ps(lower, index), _mm256_permutevar8x32_ps(upper, index));
        // The sign bit decides: bit 3 of the index.
        let upper_half = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
        registers::avx2::store_first(out, _mm256_blendv_ps(a, b, upper_half));
    }
}
