//! Packs codes into planes of bits, with AVX2.

use crate::codes::wide;
use crate::registers::avx2::{Avx2, load};
use crate::{MAX_DIM, Packing};
use core::arch::x86_64::*;

/// Codes in a register of bytes.
const CHUNK: usize = 32;

/// Implements `scalar::pack` for codes of 1 to 7 bits. Others, and those with digits, are left to
/// `wide.rs`.
///
/// ```text
/// bytes     c₀ │ c₁ │ c₂ │ c₃ …            · (1, 2^b) and add
/// words     c₁c₀     │ c₃c₂                · (1, 2^2b) and add
/// dwords    c₃c₂c₁c₀                       shift by 4b and or
/// quads     c₇ … c₀ in b bytes             a shuffle moves the quads together
/// ```
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn pack(packing: Packing, codes: &[u8], bytes: &mut [u8]) {
    if packing.radix() > 1 || packing.raw_bits() == 8 || codes.len() > MAX_DIM {
        return wide::pack::<Avx2>(packing, codes, bytes);
    }
    let bits = packing.raw_bits();
    let mask = _mm256_set1_epi8(((1u32 << bits) - 1) as i8);
    let by_word = _mm256_set1_epi16((1 | 256 << bits) as i16);
    let by_dword = _mm256_set1_epi32(1 | 65536 << (2 * bits));
    let up = _mm_cvtsi32_si128(4 * bits as i32);
    let low = _mm256_set1_epi64x(0xffff_ffff);
    let join = load(&JOIN[bits as usize]);
    let (all, mut filled) = (bytes.len(), 0);
    for codes in codes.chunks(CHUNK) {
        let codes = match codes.first_chunk::<CHUNK>() {
            Some(codes) => load(codes),
            None => {
                let mut all = [0u8; CHUNK];
                all[..codes.len()].copy_from_slice(codes);
                load(&all)
            }
        };
        let words = _mm256_maddubs_epi16(by_word, _mm256_and_si256(codes, mask));
        if bits == 4 {
            // The lower byte of a word contains both codes.
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi16(words, words));
            store_some(&mut bytes[filled..], _mm256_castsi256_si128(packed));
            filled += CHUNK / 2;
            continue;
        }
        let dwords = _mm256_madd_epi16(words, by_dword);
        let upper = _mm256_sll_epi64(_mm256_srli_epi64::<32>(dwords), up);
        let quads = _mm256_or_si256(upper, _mm256_and_si256(dwords, low));
        let joined = _mm256_shuffle_epi8(quads, join);
        // Each lane is stored with zeros behind its bytes. The next lane overwrites them.
        for lane in [_mm256_castsi256_si128(joined), _mm256_extracti128_si256::<1>(joined)] {
            store_some(&mut bytes[filled.min(all)..], lane);
            filled += 2 * bits as usize;
        }
    }
}

/// Stores as many bytes as fit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_some(bytes: &mut [u8], lane: __m128i) {
    match bytes.first_chunk_mut() {
        Some(bytes) => store_16(bytes, lane),
        None => {
            let mut last = [0; 16];
            store_16(&mut last, lane);
            bytes.copy_from_slice(&last[..bytes.len()]);
        }
    }
}

/// Stores sixteen bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_16(bytes: &mut [u8; 16], lane: __m128i) {
    // SAFETY: the array has the 16 bytes that are written.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), lane) }
}

/// Shuffles that move two quadwords of `bits` bytes each together, in each lane.
static JOIN: [[u8; 32]; 8] = {
    let mut table = [[0x80; 32]; 8];
    let mut bits = 1;
    while bits < 8 {
        let mut i = 0;
        while i < 2 * bits {
            table[bits][i] = (i / bits * 8 + i % bits) as u8;
            table[bits][16 + i] = table[bits][i];
            i += 1;
        }
        bits += 1;
    }
    table
};
