//! Codes and radii to planes.
//!
//! ```text
//! codes of b bits     │ c₀ │ │ c₁ │ │ c₂ │ │ c₃ │ …      one a word
//! multiply-add        │ c₁ c₀    │ │ c₃ c₂    │ …        two neighbours in 32 bits
//! shifts, or          │ c₃ c₂ c₁ c₀ │ …                  … until eight codes are b bytes of a quadword or a pair
//! vpermb              those bytes, joined
//! ```

use crate::quaternions::layout::ChunkLayout;
use crate::registers::avx512::{first, load, load_bytes, places, store_bytes, table, together};
use core::arch::x86_64::*;

/// Implements `scalar::pack_chunks`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn pack_chunks(layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]) {
    let raw_bits = layout.raw_bits();
    let (digits_at, radii_at, flags_at) = (layout.digits_at(), layout.radii_at(), layout.flags_at());
    let raw = &mut row[2..digits_at];
    let compress = load(&COMPRESS_PAIRS[raw_bits as usize]);
    for (codes, bytes) in codes.chunks(32).zip(raw.chunks_mut(4 * raw_bits as usize)) {
        let low = _mm512_and_si512(load_codes(codes), _mm512_set1_epi16((1 << raw_bits) - 1));
        store_bytes(bytes, _mm512_permutexvar_epi8(compress, join_codes(low, raw_bits)));
    }
    if layout.radix {
        // Thirty codes are sixty digits, twelve bytes.
        let mut codes = codes;
        let mut bytes = &mut row[digits_at..radii_at];
        while !codes.is_empty() {
            let count = if codes.len() > 32 { 30 } else { codes.len() };
            let (now, later) = bytes.split_at_mut((2 * count).div_ceil(5));
            store_bytes(now, join_digits(_mm512_srl_epi16(load_codes(&codes[..count]), count_of(raw_bits))));
            (codes, bytes) = (&codes[count..], later);
        }
    }
    let bits = layout.radius_bits;
    let compress = load(&COMPRESS_QUADS[usize::from(bits)]);
    for (radii, bytes) in radii.chunks(64).zip(row[radii_at..flags_at].chunks_mut(8 * usize::from(bits))) {
        store_bytes(bytes, _mm512_permutexvar_epi8(compress, join_radii(load_bytes(radii), bits.into())));
    }
}

/// Loads up to 32 codes, then zeros.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_codes(codes: &[u16]) -> __m512i {
    // SAFETY: a masked load does not touch values whose mask bit is clear, and the mask has at most
    // `codes.len()` bits.
    unsafe { _mm512_maskz_loadu_epi16(first(codes.len()) as u32, codes.as_ptr().cast()) }
}

/// Returns a shift count for a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn count_of(bits: u32) -> __m128i {
    _mm_cvtsi32_si128(bits as i32)
}

/// Joins eight codes of up to 13 bits in the low bytes of each 128 bits.
///
/// ```text
/// codes     c₀ c₁ c₂ c₃           │ c₄ c₅ c₆ c₇              two quadwords of words
/// pairs     c₁c₀ c₃c₂             │ c₅c₄ c₇c₆                dwords of 2·b bits
/// fours     c₃c₂c₁c₀              │ c₇c₆c₅c₄                 4·b bits, at most 52
/// beside    c₃c₂c₁c₀ | upper four << 4·b                     the lower quadword
/// left                              c₇c₆c₅c₄ >> 64 - 4·b     the upper one: what was shifted out
/// ```
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn join_codes(codes: __m512i, bits: u32) -> __m512i {
    let pairs = _mm512_madd_epi16(codes, _mm512_set1_epi32((1 << bits) << 16 | 1));
    let low = _mm512_and_si512(pairs, _mm512_set1_epi64(0xffff_ffff));
    let fours = _mm512_or_si512(low, _mm512_sll_epi64(_mm512_srli_epi64::<32>(pairs), count_of(2 * bits)));
    // The upper four codes move up by the bits of the lower ones: what fits beside them, then the
    // rest.
    let upper = _mm512_sll_epi64(_mm512_unpackhi_epi64(fours, fours), count_of(4 * bits));
    let beside = _mm512_or_si512(fours, upper);
    let left = _mm512_srl_epi64(fours, count_of(64 - 4 * bits));
    _mm512_mask_mov_epi64(beside, 0xaa, left)
}

/// Joins eight radii of up to 6 bits in the low bytes of each quadword.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn join_radii(radii: __m512i, bits: u32) -> __m512i {
    let pairs = _mm512_maddubs_epi16(radii, _mm512_set1_epi16((1 << bits) << 8 | 1));
    let fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32((1 << (2 * bits)) << 16 | 1));
    let low = _mm512_and_si512(fours, _mm512_set1_epi64(0xffff_ffff));
    _mm512_or_si512(low, _mm512_sll_epi64(_mm512_srli_epi64::<32>(fours), count_of(4 * bits)))
}

/// Joins base-9 digits in 32 words to bytes of five base-3 digits.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn join_digits(nines: __m512i) -> __m512i {
    // A third of 0..=8 is 11/32 of it, rounded down. The lower digit plus 256 times the upper one
    // is n + 253·upper.
    let upper = _mm512_srli_epi16::<5>(_mm512_mullo_epi16(nines, _mm512_set1_epi16(11)));
    let digits = _mm512_add_epi16(nines, _mm512_mullo_epi16(upper, _mm512_set1_epi16(253)));
    let four = _mm512_permutexvar_epi8(load(&FIRST_FOUR), digits);
    let fifth = _mm512_maskz_permutexvar_epi8(0x1111_1111_1111, load(&FIFTH), digits);
    let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), four, _mm512_set1_epi32(0x1b09_0301));
    let sums = _mm512_dpbusd_epi32(sums, fifth, _mm512_set1_epi32(81));
    _mm512_zextsi128_si512(_mm512_cvtepi32_epi8(sums))
}

/// Byte 4j + i: digit 5j + i. The thirteenth byte has only four digits, so no fifth one is added to
/// it.
static FIRST_FOUR: [u8; 64] = places!(i => i / 4 * 5 + i % 4);

/// Byte 4j + i: digit 5j + 4.
static FIFTH: [u8; 64] = places!(i => i / 4 * 5 + 4);

/// Row b: the low b bytes of each 128 bits, joined.
static COMPRESS_PAIRS: [[u8; 64]; 14] = compress(16);

/// Row b: the low b bytes of each quadword, joined.
static COMPRESS_QUADS: [[u8; 64]; 14] = compress(8);

/// Computes the positions of the low bytes of every `step` bytes, for each number of bits.
const fn compress(step: usize) -> [[u8; 64]; 14] {
    table!(14; bits => together(step, bits))
}
