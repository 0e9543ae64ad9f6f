//! Packs codes into planes of bits, and unpacks them, with AVX-512.

use super::unpack::{CHUNK, Raw, Unpack};
use crate::codes::scalar;
use crate::registers::avx512::{load, load_bytes, places, store_bytes, table, together};
use crate::rows::Block;
use crate::{MAX_DIM, Packing};
use core::arch::x86_64::*;

/// Implements `scalar::pack`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn pack(packing: Packing, codes: &[u8], bytes: &mut [u8]) {
    if packing.radix() == 1 {
        return pack_bits(packing.raw_bits(), codes, bytes);
    }
    if codes.len() > MAX_DIM {
        return scalar::pack(packing, codes, bytes);
    }
    let (raw, digits) = bytes.split_at_mut(packing.raw_bytes(codes.len()));
    pack_bits(packing.raw_bits(), codes, raw);
    // Digits become a byte for each group. Groups of base 5 and 9 then lose their eighth bit.
    let (group, width) = packing.digit_group();
    let (deal, weights) = match group {
        5 => (&DEAL[0], 0x51_1b09_0301),
        3 => (&DEAL[1], 0x19_0501),
        _ => (&DEAL[2], 0x0901),
    };
    let deal = load(deal);
    let present = _mm512_cmplt_epu8_mask(deal, _mm512_set1_epi8(64));
    let shift = _mm_cvtsi32_si128(packing.raw_bits() as i32);
    let digit_mask = _mm512_set1_epi8((0xffu8 >> packing.raw_bits()) as i8);
    let mut groups = [0; MAX_DIM / 2];
    for (codes, groups) in codes.chunks(8 * group).zip(groups.as_chunks_mut().0) {
        let digits = _mm512_and_si512(_mm512_srl_epi16(load_bytes(codes), shift), digit_mask);
        let quads = _mm512_maskz_permutexvar_epi8(present, deal, digits);
        let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), quads, _mm512_set1_epi64(weights));
        let sums = _mm512_cvtepi64_epi8(_mm512_add_epi64(sums, _mm512_srli_epi64::<32>(sums)));
        *groups = _mm_cvtsi128_si64(sums).to_le_bytes();
    }
    pack_bits(width, &groups[..codes.len().div_ceil(group)], digits);
}

/// Digit j of group i goes to byte j of quadword i, for eight groups of 5, 3 or 2 digits. 64 marks
/// an unused byte.
static DEAL: [[u8; 64]; 3] = [deal(5), deal(3), deal(2)];

/// Builds the indices for groups of `group` digits.
const fn deal(group: usize) -> [u8; 64] {
    places!(i => if i % 8 < group { i / 8 * group + i % 8 } else { 64 })
}

/// Packs fields of up to eight bits.
///
/// Neighbours are joined in pairs. Multiplications by 1 and 2^bits that add up join bytes to words,
/// and words to dwords. A shift joins dwords to quadwords. Eight codes are then `bits` bytes of a
/// quadword, and `vpermb` moves the quadwords together. The end of `bytes` may cut the last code
/// short.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn pack_bits(bits: u32, codes: &[u8], bytes: &mut [u8]) {
    if bits == 0 {
        return;
    }
    if bits == 8 {
        bytes.copy_from_slice(&codes[..bytes.len()]);
        return;
    }
    let mask = _mm512_set1_epi8(((1u32 << bits) - 1) as i8);
    let by_word = _mm512_set1_epi16((1 | 256 << bits) as i16);
    let by_dword = _mm512_set1_epi32(1 | 65536 << (2 * bits));
    let up = _mm_cvtsi32_si128(4 * bits as i32);
    let low = _mm512_set1_epi64(0xffff_ffff);
    let join = load(&JOIN[bits as usize]);
    for (codes, bytes) in codes.chunks(CHUNK).zip(bytes.chunks_mut(8 * bits as usize)) {
        let codes = _mm512_and_si512(load_bytes(codes), mask);
        let words = _mm512_maddubs_epi16(by_word, codes);
        let dwords = _mm512_madd_epi16(words, by_dword);
        let upper = _mm512_sll_epi64(_mm512_srli_epi64::<32>(dwords), up);
        // This is upper | (dwords & low).
        let quads = _mm512_ternarylogic_epi64::<0xf8>(upper, dwords, low);
        store_bytes(bytes, _mm512_permutexvar_epi8(join, quads));
    }
}

/// Indices that move quadwords of `bits` bytes together.
static JOIN: [[u8; 64]; 8] = table!(8; bits => together(8, bits));

/// Implements `scalar::unpack`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn unpack(packing: Packing, bytes: &[u8], codes: &mut [u8]) {
    if packing.radix() > 1 && codes.len() > MAX_DIM {
        return scalar::unpack(packing, bytes, codes);
    }
    if packing.radix() == 1 {
        let raw = Raw::new(packing.raw_bits());
        for (bytes, codes) in bytes.chunks(8 * packing.raw_bits() as usize).zip(codes.chunks_mut(CHUNK)) {
            store_bytes(codes, raw.codes(load_bytes(bytes)));
        }
        return;
    }
    let unpack = Unpack::new(packing, codes.len(), 0);
    let row = Block::one(bytes);
    for (i, codes) in codes.chunks_mut(CHUNK).enumerate() {
        store_bytes(codes, unpack.codes(&unpack.chunk(i), &row, 0));
    }
}
