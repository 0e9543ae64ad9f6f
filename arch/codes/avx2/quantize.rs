//! From values to codes and back, with AVX2.

use crate::codes::scalar;
use crate::registers::avx2::{load, load_first, load_ps, store_ps};
use core::arch::x86_64::*;

/// Implements `scalar::quantize` by binary search, as the AVX-512 kernel does. Up to four levels of
/// the search fit registers, the others are gathered.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    match thresholds.len() {
        0..4 => sixteen::<2>(x, scale, thresholds, codes),
        4..8 => sixteen::<3>(x, scale, thresholds, codes),
        8..16 => sixteen::<4>(x, scale, thresholds, codes),
        16..32 => halving::<5, 32>(x, scale, thresholds, codes),
        32..64 => halving::<6, 64>(x, scale, thresholds, codes),
        64..128 => halving::<7, 128>(x, scale, thresholds, codes),
        _ => halving::<8, 256>(x, scale, thresholds, codes),
    }
}

/// Searches up to 15 thresholds, for 32 values at a time.
///
/// A comparison that holds is -1, so indices count down from 0. A permutation reads three bits of
/// an index, so that an index of -1 finds position 7.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteen<const BITS: usize>(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    // The first eight thresholds, and the last eight of fifteen.
    let (low, high) = (load_or_nan(thresholds), load_or_nan(thresholds.get(7..).unwrap_or_default()));
    let pick = |from, places: [i32; 8]| _mm256_permutevar8x32_ps(from, load(&places));
    let first = pick(low, [7; 8]);
    let levels = [
        pick(_mm256_blend_ps::<0x10>(low, high), [3, 0, 0, 0, 0, 0, 0, 4]),
        pick(_mm256_blend_ps::<0x44>(low, high), [1, 0, 0, 0, 0, 6, 2, 5]),
        pick(_mm256_blend_ps::<0xaa>(low, high), [0, 7, 5, 3, 1, 6, 4, 2]),
    ];
    let scale = _mm256_set1_ps(scale);
    let search = |x: &[f32; 8]| {
        let y = _mm256_mul_ps(load_ps(x), scale);
        let at_least = |threshold| _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(y, threshold));
        // With fewer thresholds, the first comparisons would fail anyway.
        let mut index = if BITS == 4 { at_least(first) } else { _mm256_setzero_si256() };
        for level in &levels[if BITS == 2 { 1 } else { 0 }..] {
            let upper = at_least(_mm256_permutevar8x32_ps(*level, index));
            index = _mm256_add_epi32(_mm256_add_epi32(index, index), upper);
        }
        index
    };
    let all = |x: &[f32; 32], codes: &mut [u8; 32]| {
        let x = x.as_chunks().0;
        let low = _mm256_packs_epi32(search(&x[0]), search(&x[1]));
        let high = _mm256_packs_epi32(search(&x[2]), search(&x[3]));
        let order = load(&[0u32, 4, 1, 5, 2, 6, 3, 7]);
        let found = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        store(codes, _mm256_abs_epi8(found));
    };
    let ((chunks, x), (code_chunks, codes)) = (x.as_chunks(), codes.as_chunks_mut());
    for (x, codes) in chunks.iter().zip(code_chunks) {
        all(x, codes);
    }
    if !x.is_empty() {
        let (mut padded, mut found) = ([0.0; 32], [0; 32]);
        padded[..x.len()].copy_from_slice(x);
        all(&padded, &mut found);
        codes.copy_from_slice(&found[..codes.len()]);
    }
}

/// Loads up to eight values, with NaN for missing ones: no value is at or above NaN. A copy in
/// memory would be worse: loading what was just written takes as long as a search.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_or_nan(values: &[f32]) -> __m256 {
    let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let there = _mm256_cmpgt_epi32(_mm256_set1_epi32(values.len().min(8) as i32), places);
    // SAFETY: a masked load does not touch values whose mask is zero, and the mask has one lane for
    // each value.
    let values = unsafe { _mm256_maskload_ps(values.as_ptr(), there) };
    _mm256_blendv_ps(_mm256_set1_ps(f32::NAN), values, _mm256_castsi256_ps(there))
}

/// Stores 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(bytes: &mut [u8; 32], x: __m256i) {
    // SAFETY: the array has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), x) }
}

/// Searches more thresholds, for eight values at a time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halving<const BITS: usize, const COUNT: usize>(
    x: &[f32],
    scale: f32,
    thresholds: &[f32],
    codes: &mut [u8],
) {
    // Missing thresholds are NaN: no value is at or above NaN.
    let mut all = [f32::NAN; COUNT];
    all[..thresholds.len()].copy_from_slice(thresholds);
    // Level l of the search has one threshold for each outcome of the levels before it. They are
    // 2^(BITS-l) apart.
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
                    // SAFETY: an index of l bits times 2^(BITS-l), plus less than that, is below 2^BITS ≤ COUNT.
                    unsafe { _mm256_i32gather_ps::<4>(all.as_ptr(), at) }
                }
            };
            let upper = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(y, threshold));
            // The index doubles, plus one where the comparison holds, which is -1.
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

/// Loads eight words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_8(words: &[i16; 8]) -> __m128i {
    // SAFETY: the array holds the 16 bytes that are read.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

/// Implements `scalar::lookup`.
///
/// Codebooks of up to 16 centroids are looked up byte by byte, 32 codes at a time. Larger ones are
/// left to LLVM: a gather takes as long as eight loads.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn lookup(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    if centroids.len() > 16 {
        return scalar::lookup(codes, centroids, scale, out);
    }
    let words = match (centroids.as_chunks().0, centroids.as_chunks().0) {
        ([all], _) => load::<[i16; 16]>(all),
        (_, [all]) if centroids.len() == 8 => _mm256_castsi128_si256(load_8(all)),
        _ => {
            let mut all = [0; 16];
            all[..centroids.len()].copy_from_slice(centroids);
            load(&all)
        }
    };
    let (low, high) = byte_tables(words);
    let last = _mm256_set1_epi8(centroids.len() as i8 - 1);
    let scale = _mm256_set1_ps(scale);
    let all = |codes: &[u8; 32], out: &mut [f32; 32]| {
        let index = _mm256_min_epu8(load(codes), last);
        store_scaled(_mm256_shuffle_epi8(low, index), _mm256_shuffle_epi8(high, index), scale, out);
    };
    let ((chunks, codes), (out_chunks, out)) = (codes.as_chunks(), out.as_chunks_mut());
    for (codes, out) in chunks.iter().zip(out_chunks) {
        all(codes, out);
    }
    if !codes.is_empty() {
        let (mut padded, mut values) = ([0; 32], [0.0; 32]);
        padded[..codes.len()].copy_from_slice(codes);
        all(&padded, &mut values);
        out.copy_from_slice(&values[..out.len()]);
    }
}

/// Splits sixteen words into their lower and their upper bytes, each in both lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn byte_tables(words: __m256i) -> (__m256i, __m256i) {
    let both = |half| _mm256_permute4x64_epi64::<0b10_00_10_00>(_mm256_packus_epi16(half, half));
    (both(_mm256_and_si256(words, _mm256_set1_epi16(0xff))), both(_mm256_srli_epi16::<8>(words)))
}

/// Stores the words with these lower and upper bytes, times `scale`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_scaled(low: __m256i, high: __m256i, scale: __m256, out: &mut [f32; 32]) {
    let (a, b) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
    let eights = [
        _mm256_castsi256_si128(a),
        _mm256_castsi256_si128(b),
        _mm256_extracti128_si256::<1>(a),
        _mm256_extracti128_si256::<1>(b),
    ];
    for (eight, out) in eights.into_iter().zip(out.as_chunks_mut().0) {
        let values = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(eight));
        store_ps(out, _mm256_mul_ps(values, scale));
    }
}

/// Implements `scalar::lookup_sixes`, 32 codes at a time.
///
/// ```text
/// dword, of three bytes    ........ dddddd cc│cccc bbbb│bb aaaaaa
/// codes in bytes           00dddddd 00cccccc 00bbbbbb 00aaaaaa       four shifts, each with a mask
/// ```
///
/// A code's lowest four bits look up bytes in each of four tables, and the others choose one.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn lookup_sixes(bytes: &[u8], centroids: &[i16; 64], scale: f32, out: &mut [f32]) {
    let mut tables = [(_mm256_setzero_si256(), _mm256_setzero_si256()); 4];
    for (tables, words) in tables.iter_mut().zip(centroids.as_chunks::<16>().0) {
        *tables = byte_tables(load(words));
    }
    // Codes 16 to 32 begin with byte 12, which is byte 4 of the upper lane.
    let [lower, upper] = [
        _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1),
        _mm_setr_epi8(4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1),
    ];
    let (places, scale) = (_mm256_set_m128i(upper, lower), _mm256_set1_ps(scale));
    let all = |bytes: &[u8; 24], out: &mut [f32; 32]| {
        // SAFETY: both loads lie within the array.
        let (lower, upper) = unsafe {
            (_mm_loadu_si128(bytes.as_ptr().cast()), _mm_loadu_si128(bytes.as_ptr().add(8).cast()))
        };
        let x = _mm256_shuffle_epi8(_mm256_set_m128i(upper, lower), places);
        let only = |x, mask| _mm256_and_si256(x, _mm256_set1_epi32(mask));
        let codes = _mm256_or_si256(
            _mm256_or_si256(only(x, 0x3f), only(_mm256_slli_epi32::<2>(x), 0x3f00)),
            _mm256_or_si256(
                only(_mm256_slli_epi32::<4>(x), 0x3f_0000),
                only(_mm256_slli_epi32::<6>(x), 0x3f00_0000),
            ),
        );
        let (by_16, by_32) = (_mm256_slli_epi16::<3>(codes), _mm256_slli_epi16::<2>(codes));
        let choose = |tables: [__m256i; 4]| {
            let [a, b, c, d] = tables.map(|table| _mm256_shuffle_epi8(table, codes));
            let (lower, upper) = (_mm256_blendv_epi8(a, b, by_16), _mm256_blendv_epi8(c, d, by_16));
            _mm256_blendv_epi8(lower, upper, by_32)
        };
        store_scaled(choose(tables.map(|(low, _)| low)), choose(tables.map(|(_, high)| high)), scale, out);
    };
    let (chunks, out) = out.as_chunks_mut();
    // The last codes may have as many bytes as a whole chunk.
    let rest = bytes.get(24 * chunks.len()..).unwrap_or_default();
    for (bytes, out) in bytes.as_chunks().0.iter().zip(chunks) {
        all(bytes, out);
    }
    if !out.is_empty() {
        let (mut padded, mut values) = ([0; 24], [0.0; 32]);
        padded[..rest.len()].copy_from_slice(rest);
        all(&padded, &mut values);
        out.copy_from_slice(&values[..out.len()]);
    }
}
