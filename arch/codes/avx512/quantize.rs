//! From values to codes and back, with AVX-512.

use super::codebook::Words;
use super::unpack::{CHUNK, Raw, Unpack};
use crate::registers;
use crate::registers::avx512::{
    first, load_codes, load_ps, load_tail, load_words, store_bytes, store_codes, store_first, store_ps,
    store_tail,
};
use crate::rows::Block;
use crate::{MAX_DIM, Packing};
use core::arch::x86_64::*;

/// Implements `scalar::quantize` by binary search. Thresholds ascend, so log₂ of their number of
/// comparisons give the same code as comparing with each.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    match thresholds.len() {
        0..2 => sixteen::<1>(x, scale, thresholds, codes),
        2..4 => sixteen::<2>(x, scale, thresholds, codes),
        4..8 => sixteen::<3>(x, scale, thresholds, codes),
        8..16 => sixteen::<4>(x, scale, thresholds, codes),
        16..32 => halving::<5>(x, scale, thresholds, codes),
        32..64 => halving::<6>(x, scale, thresholds, codes),
        64..128 => halving::<7>(x, scale, thresholds, codes),
        _ => halving::<8>(x, scale, thresholds, codes),
    }
}

/// The thresholds in the order of a search. Level l has one threshold for each of the 2ˡ outcomes
/// of the levels before.
///
/// ```text
/// level 0       t₃                     7 thresholds, 3 levels
/// level 1    t₁    t₅
/// level 2   t₀ t₂ t₄ t₆                index = 2·index + (x ≥ threshold)
/// ```
///
/// Each level has as many registers as it needs: levels 0 to 4 one, 5 two, 6 four, 7 eight.
struct Search {
    levels: [[__m512; 8]; 8],
}

impl Search {
    /// Sorts thresholds into levels. The last level has every other threshold, the one before it
    /// every other of the rest, and so on. Missing thresholds are NaN: no value is at or above NaN.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new<const BITS: usize>(thresholds: &[f32]) -> Self {
        let nan = _mm512_set1_ps(f32::NAN);
        let mut rest = [nan; 16];
        for (rest, thresholds) in rest.iter_mut().zip(thresholds.chunks(16)) {
            *rest = _mm512_mask_blend_ps(first(thresholds.len()) as u16, nan, load_tail(thresholds));
        }
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
        let mut levels = [[nan; 8]; 8];
        for level in (0..BITS).rev() {
            // The remaining 2^(level+1) - 1 thresholds are in this many pairs of registers.
            let pairs = if level > 4 { 1 << (level - 4) } else { 1 };
            for i in 0..pairs {
                levels[level][i] = _mm512_permutex2var_ps(rest[2 * i], even, rest[2 * i + 1]);
                rest[i] = _mm512_permutex2var_ps(rest[2 * i], odd, rest[2 * i + 1]);
            }
        }
        levels[0][0] = _mm512_broadcastss_ps(_mm512_castps512_ps128(levels[0][0]));
        Self { levels }
    }

    /// Returns threshold number `index` of a level.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn threshold(&self, level: usize, index: __m512i) -> __m512 {
        let t = &self.levels[level];
        let pair = |i: usize| _mm512_permutex2var_ps(t[i], index, t[i + 1]);
        let select = |bit: i32, a, b| {
            _mm512_mask_blend_ps(_mm512_test_epi32_mask(index, _mm512_set1_epi32(bit)), a, b)
        };
        match level {
            0 => t[0],
            1..5 => _mm512_permutexvar_ps(index, t[0]),
            5 => pair(0),
            6 => select(32, pair(0), pair(2)),
            _ => select(64, select(32, pair(0), pair(2)), select(32, pair(4), pair(6))),
        }
    }
}

/// Quantises with `BITS` levels of comparisons.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn halving<const BITS: usize>(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    let search = Search::new::<BITS>(thresholds);
    map(x, scale, codes, |y| {
        let mut index = _mm512_setzero_si512();
        for level in 0..BITS {
            let upper = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(y, search.threshold(level, index));
            let lower = _mm512_add_epi32(index, index);
            index = _mm512_mask_or_epi32(lower, upper, lower, _mm512_set1_epi32(1));
        }
        index
    });
}

/// Quantises with up to 15 thresholds. They fit one register, so a step reads the threshold that is
/// `half` - 1 behind lane `index`. No index has to be doubled, and a step takes three instructions.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sixteen<const BITS: usize>(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    let count = first(thresholds.len()) as u16;
    let thresholds = _mm512_mask_blend_ps(count, _mm512_set1_ps(f32::NAN), load_tail(thresholds));
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let further =
        |half| _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(half - 1)), thresholds);
    let middle = _mm512_broadcastss_ps(_mm512_castps512_ps128(further(1 << (BITS - 1))));
    let levels: [__m512; BITS] = core::array::from_fn(|level| further(1 << (BITS - 1 - level)));
    map(x, scale, codes, |y| {
        let mut index = _mm512_setzero_si512();
        for (level, thresholds) in levels.iter().enumerate() {
            let half = _mm512_set1_epi32(1 << (BITS - 1 - level));
            let threshold = if level == 0 { middle } else { _mm512_permutexvar_ps(index, *thresholds) };
            let upper = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(y, threshold);
            index = _mm512_mask_or_epi32(index, upper, index, half);
        }
        index
    });
}

/// Computes codes = find(x·scale).
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn map(x: &[f32], scale: f32, codes: &mut [u8], find: impl Fn(__m512) -> __m512i) {
    let scale = _mm512_set1_ps(scale);
    let find = |x| find(_mm512_mul_ps(x, scale));
    // 64 codes at a time: the next kernel loads 64 bytes, and would wait for four smaller stores.
    let ((blocks, x), (codes_blocks, codes)) = (x.as_chunks::<64>(), codes.as_chunks_mut::<64>());
    for (x, codes) in blocks.iter().zip(codes_blocks) {
        let [a, b, c, d] = core::array::from_fn(|i| find(load_ps(&x.as_chunks().0[i])));
        // Packs work in lanes of 128 bits, which gives dwords a0 b0 c0 d0 a1 ….
        let packed = _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        store_bytes(codes, _mm512_permutexvar_epi32(order, packed));
    }
    let find = |x| _mm512_cvtepi32_epi8(find(x));
    let ((chunks, tail), (codes, codes_tail)) = (x.as_chunks(), codes.as_chunks_mut());
    for (x, codes) in chunks.iter().zip(codes) {
        store_codes(codes, find(load_ps(x)));
    }
    if !tail.is_empty() {
        let mask = first(codes_tail.len()) as u16;
        // SAFETY: a masked store touches nothing whose mask bit is clear, and the mask has `codes_tail.len()` bits.
        unsafe { _mm_mask_storeu_epi8(codes_tail.as_mut_ptr().cast(), mask, find(load_tail(tail))) }
    }
}

/// Implements `scalar::lookup`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn lookup(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    let scale = _mm512_set1_ps(scale);
    if centroids.len() <= 16 {
        let table = few(centroids, scale);
        let last = _mm512_set1_epi32(centroids.len() as i32 - 1);
        let find = |codes: __m128i| {
            let index = _mm512_min_epu32(_mm512_cvtepu8_epi32(codes), last);
            _mm512_permutexvar_ps(index, table)
        };
        let ((chunks, tail), (out, out_tail)) = (codes.as_chunks(), out.as_chunks_mut());
        for (codes, out) in chunks.iter().zip(out) {
            store_ps(out, find(load_codes(codes)));
        }
        if !tail.is_empty() {
            let codes = _mm512_castsi512_si128(registers::avx512::load_bytes(tail));
            store_tail(out_tail, find(codes));
        }
        return;
    }
    let words = Words::new(centroids);
    let last = _mm512_set1_epi8((centroids.len() - 1) as i8);
    for (codes, out) in codes.chunks(64).zip(out.chunks_mut(64)) {
        let codes = _mm512_min_epu8(registers::avx512::load_bytes(codes), last);
        store_scaled(words.lookup::<false>(codes), scale, out);
    }
}

/// Implements `Backend::lookup_packed`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn lookup_packed(packing: Packing, bytes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    if packing.radix() > 1 {
        if centroids.len() > 16 {
            let codes = &mut [0; MAX_DIM][..out.len()];
            super::unpack(packing, bytes, codes);
            return lookup(codes, centroids, scale, out);
        }
        let table = few(centroids, _mm512_set1_ps(scale));
        let (unpack, row) = (Unpack::new(packing, out.len(), 0), Block::one(bytes));
        for (i, out) in out.chunks_mut(CHUNK).enumerate() {
            store_few(unpack.codes(&unpack.chunk(i), &row, 0), table, out);
        }
        return;
    }
    let (raw, scale) = (Raw::new(packing.raw_bits()), _mm512_set1_ps(scale));
    let chunks = bytes.chunks(8 * packing.raw_bits() as usize).zip(out.chunks_mut(CHUNK));
    if centroids.len() <= 16 {
        let table = few(centroids, scale);
        for (bytes, out) in chunks {
            store_few(raw.codes(registers::avx512::load_bytes(bytes)), table, out);
        }
        return;
    }
    let words = Words::new(centroids);
    for (bytes, out) in chunks {
        let codes = raw.codes(registers::avx512::load_bytes(bytes));
        store_scaled(words.lookup::<false>(codes), scale, out);
    }
}

/// Looks up to 64 codes in a table of at most sixteen values, and stores the results.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn store_few(codes: __m512i, table: __m512, out: &mut [f32]) {
    let quarters = [
        _mm512_castsi512_si128(codes),
        _mm512_extracti32x4_epi32::<1>(codes),
        _mm512_extracti32x4_epi32::<2>(codes),
        _mm512_extracti32x4_epi32::<3>(codes),
    ];
    for (codes, out) in quarters.into_iter().zip(out.chunks_mut(16)) {
        store_first(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), table), out);
    }
}

/// Returns up to sixteen centroids times `scale`.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn few(centroids: &[i16], scale: __m512) -> __m512 {
    let words = _mm512_castsi512_si256(load_words(centroids));
    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(words)), scale)
}

/// Stores up to 64 words times `scale`.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn store_scaled([low, high]: [__m512i; 2], scale: __m512, out: &mut [f32]) {
    for (i, out) in out.chunks_mut(16).enumerate() {
        let half = if i < 2 { low } else { high };
        let words =
            if i % 2 == 0 { _mm512_castsi512_si256(half) } else { _mm512_extracti64x4_epi64::<1>(half) };
        let values = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(words)), scale);
        match out.try_into() {
            Ok(out) => store_ps(out, values),
            Err(_) => store_tail(out, values),
        }
    }
}
