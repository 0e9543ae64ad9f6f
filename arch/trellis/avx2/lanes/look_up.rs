//! Centroids of a trellis code by `vpshufb` and `vpblendvb`.

use super::{EACH, TABLES};
use crate::registers::avx2::load;
use crate::trellis::layout::TrellisCodebook;
use core::arch::asm;
use core::arch::x86_64::*;

/// The centroids by the four newest bits of a window, of which a shorter history has fewer: a table for each code and, if
/// `FIVE`, for each oldest bit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tables<const BITS: usize, const FIVE: bool>(book: &TrellisCodebook) -> [__m256i; TABLES] {
    let mut tables = [_mm256_setzero_si256(); TABLES];
    for (n, table) in tables[..1 << (BITS + FIVE as usize)].iter_mut().enumerate() {
        let mut bytes = [0i8; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let (code, window) =
                if FIVE { (n / 2, i % 16 * 2 + n % 2) } else { (n, (i % 16) >> (3 - book.history())) };
            *byte = book.centroids()[code * book.windows() + window];
        }
        *table = load(&bytes);
    }
    tables
}

/// What each of the eight look-ups finds.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn centroids<const BITS: usize, const FIVE: bool>(
    tables: &[__m256i; TABLES],
    planes: &[__m256i; 5],
) -> [__m256i; EACH] {
    [
        look_up::<BITS, FIVE, 0>(tables, planes),
        look_up::<BITS, FIVE, 1>(tables, planes),
        look_up::<BITS, FIVE, 2>(tables, planes),
        look_up::<BITS, FIVE, 3>(tables, planes),
        look_up::<BITS, FIVE, 4>(tables, planes),
        look_up::<BITS, FIVE, 5>(tables, planes),
        look_up::<BITS, FIVE, 6>(tables, planes),
        look_up::<BITS, FIVE, 7>(tables, planes),
    ]
}

/// Of each byte, the `K`-th coordinate; with two-bit codes the `K % 4`-th of their `K / 4`-th register.
///
/// Bytes of the first register with windows have the four bits before the byte's coordinates and four of theirs, those
/// of the second the last four of eight and four more, or, with two-bit codes, both alternate: in all of them the
/// window of coordinate `K % 4` begins at bit `K % 4 + 1`, and has one bit more before that.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up<const BITS: usize, const FIVE: bool, const K: usize>(
    tables: &[__m256i; TABLES],
    planes: &[__m256i; 5],
) -> __m256i {
    let windows = planes[K / 4];
    let index = match K % 4 {
        0 => _mm256_srli_epi16::<1>(windows),
        1 => _mm256_srli_epi16::<2>(windows),
        2 => _mm256_srli_epi16::<3>(windows),
        _ => _mm256_srli_epi16::<4>(windows),
    };
    let mut chosen = [windows; 4];
    let mut used = 0;
    if FIVE {
        chosen[0] = on_top(windows, K % 4);
        used = 1;
    }
    for bit in 0..BITS {
        let (plane, bit) = if BITS == 2 { (K / 4, K % 4 * 2 + bit) } else { (0, K * BITS + bit) };
        chosen[used] = on_top(planes[2 + plane + bit / 8], bit % 8);
        used += 1;
    }
    match used {
        0 => choose::<1, false>(tables, index, chosen),
        1 => choose::<2, false>(tables, index, chosen),
        2 => choose::<4, false>(tables, index, chosen),
        // On Zen 5, `vpshufb` and `vpblendvb` share two of four ports: with many tables, some look-ups do without half
        // of the latter.
        3 if K.is_multiple_of(4) => choose::<8, false>(tables, index, chosen),
        3 => choose::<8, true>(tables, index, chosen),
        _ => choose::<16, true>(tables, index, chosen),
    }
}

/// An entry of `N` tables: by the index' lowest four bits, and by the tops of other bytes, the lowest of the table's number
/// first. With `SPLIT`, the index gets the last of these for its top: `vpshufb` gives zero where it is set, so the upper half
/// of the tables is asked with the inverse, and one of the two finds something.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn choose<const N: usize, const SPLIT: bool>(
    tables: &[__m256i; TABLES],
    index: __m256i,
    tops: [__m256i; 4],
) -> __m256i {
    let mut found = [index; TABLES];
    let mut left = N;
    if SPLIT {
        left /= 2;
        let top = tops[N.ilog2() as usize - 1];
        let low_bits = _mm256_set1_epi8(0x7f);
        let below = _mm256_xor_si256(_mm256_and_si256(_mm256_xor_si256(index, top), low_bits), top);
        let above = _mm256_xor_si256(below, _mm256_set1_epi8(-128));
        for i in 0..left {
            let lower = _mm256_shuffle_epi8(tables[i], below);
            found[i] = _mm256_or_si256(lower, _mm256_shuffle_epi8(tables[i + left], above));
        }
    } else {
        let index = _mm256_and_si256(index, _mm256_set1_epi8(15));
        for i in 0..N {
            found[i] = _mm256_shuffle_epi8(tables[i], index);
        }
    }
    for top in tops {
        if left > 1 {
            left /= 2;
            for i in 0..left {
                found[i] = _mm256_blendv_epi8(found[2 * i], found[2 * i + 1], top);
            }
        }
    }
    found[0]
}

/// A bit of each byte on its top.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn on_top(bytes: __m256i, bit: usize) -> __m256i {
    match bit {
        0 => shift_left::<7>(bytes),
        1 => shift_left::<6>(bytes),
        2 => shift_left::<5>(bytes),
        3 => shift_left::<4>(bytes),
        4 => shift_left::<3>(bytes),
        5 => shift_left::<2>(bytes),
        6 => twice(bytes),
        _ => bytes,
    }
}

/// Bytes, doubled; see [`shift_left`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(bytes: __m256i) -> __m256i {
    let sums;
    // SAFETY: AVX2, which this function enables, has the instruction; it touches registers only.
    unsafe {
        asm!(
            "vpaddb {}, {}, {}",
            out(ymm_reg) sums, in(ymm_reg) bytes, in(ymm_reg) bytes,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Words, shifted. By name, as LLVM knows that `vpblendvb` asks for one bit, and makes a mask and a comparison of the
/// shift that brings it to the top.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift_left<const BITS: usize>(words: __m256i) -> __m256i {
    let shifted;
    // SAFETY: AVX2, which this function enables, has the instruction; it touches registers only.
    unsafe {
        asm!(
            "vpsllw {}, {}, {}",
            out(ymm_reg) shifted, in(ymm_reg) words, const BITS,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    shifted
}
