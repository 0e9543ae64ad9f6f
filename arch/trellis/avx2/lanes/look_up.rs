//! Looks up centroids of a trellis code with `vpshufb` and `vpblendvb`. On CPUs with AVX-VNNI,
//! `vpblendvb` takes three operations, so from eight tables on `vpsignb` and additions replace it.

use super::{EACH, TABLES};
use crate::registers::Integers;
use crate::trellis::layout::TrellisCodebook;
use core::arch::asm;
use core::arch::x86_64::*;

/// The number of tables from which on they are added up, where choosing is expensive.
const SIGNS_FROM: usize = 8;

/// Builds the tables of a shape, with `bias` added to the centroids.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tables<L: Integers, const BITS: usize, const FIVE: bool>(
    book: &TrellisCodebook,
    bias: u8,
) -> [__m256i; TABLES] {
    let mut tables = [_mm256_setzero_si256(); TABLES];
    fill(book, &mut tables[..1 << (BITS + FIVE as usize)], FIVE, L::DEAR_CHOICES, bias);
    tables
}

/// Fills tables of the centroids plus `bias`, by the four newest bits of a window. A shorter history
/// has fewer bits. There is a table for each code and, if `five`, for each oldest bit. Not inlined, so
/// that there is one copy for all shapes.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn fill(book: &TrellisCodebook, tables: &mut [__m256i], five: bool, dear: bool, bias: u8) {
    let count = tables.len();
    for (n, table) in tables.iter_mut().enumerate() {
        let entry = |i| {
            let (code, window) = if five { (n / 2, i * 2 + n % 2) } else { (n, i >> (3 - book.history())) };
            book.centroids()[code * book.windows() + window]
        };
        let bytes = match book.centroids().as_chunks::<16>().0.get(n) {
            Some(bytes) if book.windows() == 16 => *bytes,
            _ => core::array::from_fn(entry),
        };
        // SAFETY: the array has sixteen bytes.
        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        *table = _mm256_add_epi8(_mm256_broadcastsi128_si256(bytes), _mm256_set1_epi8(bias as i8));
    }
    if dear && count >= SIGNS_FROM {
        // The difference that each bit but the highest makes, alone and together with those below
        // it.
        for bit in 0..count.ilog2() - 1 {
            for n in (0..count).filter(|n| n >> bit & 1 == 1) {
                tables[n] = _mm256_sub_epi8(tables[n], tables[n - (1 << bit)]);
            }
        }
    }
}

/// Returns what each of the eight lookups finds.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn centroids<L: Integers, const BITS: usize, const FIVE: bool>(
    tables: &[__m256i; TABLES],
    planes: &[__m256i; 5],
) -> [__m256i; EACH] {
    [
        look_up::<L, BITS, FIVE, 0>(tables, planes),
        look_up::<L, BITS, FIVE, 1>(tables, planes),
        look_up::<L, BITS, FIVE, 2>(tables, planes),
        look_up::<L, BITS, FIVE, 3>(tables, planes),
        look_up::<L, BITS, FIVE, 4>(tables, planes),
        look_up::<L, BITS, FIVE, 5>(tables, planes),
        look_up::<L, BITS, FIVE, 6>(tables, planes),
        look_up::<L, BITS, FIVE, 7>(tables, planes),
    ]
}

/// Looks up the `K`-th coordinate of each byte. With codes of two bits, it is the `K % 4`-th of the
/// `K / 4`-th register.
///
/// ```text
/// bit               7  6  5  4  3  2  1  0      p: the path byte of these coordinates
/// inner, K = 0..4   p3 p2 p1 p0 o7 o6 o5 o4     o: the path byte before it
/// path,  K = 4..8   p7 p6 p5 p4 p3 p2 p1 p0     with codes of two bits, bytes of both alternate
///
/// window            bits K%4 + 1 … K%4 + 4, the newest on top; with `FIVE` also bit K%4
/// ```
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn look_up<L: Integers, const BITS: usize, const FIVE: bool, const K: usize>(
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
    let mut bits = [(windows, K % 4); 4];
    let mut used = usize::from(FIVE);
    for bit in 0..BITS {
        let (plane, bit) = if BITS == 2 { (K / 4, K % 4 * 2 + bit) } else { (0, K * BITS + bit) };
        bits[used] = (planes[2 + plane + bit / 8], bit % 8);
        used += 1;
    }
    match used {
        0 => choose::<1, false, false>(tables, index, bits),
        1 => choose::<2, false, false>(tables, index, bits),
        2 if L::DEAR_CHOICES => choose::<4, true, false>(tables, index, bits),
        2 => choose::<4, false, false>(tables, index, bits),
        3 if L::DEAR_CHOICES => choose::<8, true, true>(tables, index, bits),
        // On Zen 5, `vpshufb` and `vpblendvb` share two of four ports. With many tables, some
        // lookups do without half of the blends.
        3 if K.is_multiple_of(4) => choose::<8, false, false>(tables, index, bits),
        3 => choose::<8, true, false>(tables, index, bits),
        _ if L::DEAR_CHOICES => choose::<16, true, true>(tables, index, bits),
        _ => choose::<16, true, false>(tables, index, bits),
    }
}

/// Returns entries of `N` tables. The lowest four bits of the index select the entry. Bits of other
/// bytes select the table, the lowest bit of its number first.
///
/// With `SPLIT`, the last of these bits goes to the top of the index. `vpshufb` gives zero where it
/// is set. So the upper half of the tables is looked up with the inverse, and only one of the two
/// lookups finds something. With `SIGNS`, tables hold differences, and `vpsignb` gives zero where a
/// bit is not set. That takes three operations, while `vpblendvb` and the shift before it take
/// four.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn choose<const N: usize, const SPLIT: bool, const SIGNS: bool>(
    tables: &[__m256i; TABLES],
    index: __m256i,
    bits: [(__m256i, usize); 4],
) -> __m256i {
    let mut found = [index; TABLES];
    let mut left = N;
    if SPLIT {
        left /= 2;
        let top = on_top(bits[N.ilog2() as usize - 1]);
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
    for (bytes, bit) in bits {
        if left == 1 {
            break;
        }
        left /= 2;
        let set = _mm256_and_si256(bytes, _mm256_set1_epi8((1u8 << bit) as i8));
        for i in 0..left {
            let [a, b] = [found[2 * i], found[2 * i + 1]];
            found[i] = match bit {
                _ if !SIGNS => _mm256_blendv_epi8(a, b, on_top((bytes, bit))),
                // The uppermost bit alone makes a byte negative.
                7 => _mm256_sub_epi8(a, _mm256_sign_epi8(b, set)),
                _ => _mm256_add_epi8(a, _mm256_sign_epi8(b, set)),
            };
        }
    }
    found[0]
}

/// Moves a bit of each byte to its top.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn on_top((bytes, bit): (__m256i, usize)) -> __m256i {
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

/// Doubles bytes; see [`shift_left`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(bytes: __m256i) -> __m256i {
    let sums;
    // SAFETY: AVX2, which this function enables, has the instruction. It only uses registers.
    unsafe {
        asm!(
            "vpaddb {}, {}, {}",
            out(ymm_reg) sums, in(ymm_reg) bytes, in(ymm_reg) bytes,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Shifts words. It is assembly, because LLVM knows that `vpblendvb` reads one bit, and would
/// replace the shift that moves it to the top by a mask and a comparison.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift_left<const BITS: usize>(words: __m256i) -> __m256i {
    let shifted;
    // SAFETY: AVX2, which this function enables, has the instruction. It only uses registers.
    unsafe {
        asm!(
            "vpsllw {}, {}, {}",
            out(ymm_reg) shifted, in(ymm_reg) words, const BITS,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    shifted
}
