//! Rows of integers with a scale (and a zero) for each group, with AVX-512.
//!
//! On Sapphire Rapids, decoding takes 0.4 to 0.65 of AVX2's time. Quantising took 0.8 to 0.9 of it,
//! which is not worth code, so AVX2's implementation runs.

use crate::registers::avx512::{decode_f16, first, store_ps};
use crate::{Affine, MAX_DIM};
use core::arch::x86_64::*;

/// Extracts 16 codes of a row as floats.
///
/// `vpermb` brings the two bytes that contain a code to its dword, and a shift moves the code's
/// first bit to the front. Codes of up to 4 bits are then looked up in a table of 16 floats, which
/// ignores stray high bits. Larger codes are masked and converted.
struct Numbers {
    /// Byte indices that bring the two bytes of each code to its dword.
    spread: __m512i,
    /// The first bit of each code in its two bytes.
    shift: __m512i,
    /// Ones for the bits of a code.
    mask: __m512i,
    /// The code of the integer 0.
    offset: __m512i,
    /// The floats of codes up to 4 bits.
    table: __m512,
    /// Bytes of 16 codes.
    step: usize,
}

impl Numbers {
    /// Prepares the constants for a layout.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(layout: &Affine) -> Self {
        let bits = i32::from(layout.bits);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let start = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(bits));
        let byte = _mm512_srli_epi32::<3>(start);
        let mask = _mm512_set1_epi32((1 << bits) - 1);
        let offset = _mm512_set1_epi32(layout.offset);
        Self {
            spread: _mm512_or_si512(
                byte,
                _mm512_slli_epi32::<8>(_mm512_add_epi32(byte, _mm512_set1_epi32(1))),
            ),
            shift: _mm512_and_si512(start, _mm512_set1_epi32(7)),
            mask,
            offset,
            table: _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(lanes, mask), offset)),
            step: 2 * usize::from(layout.bits),
        }
    }

    /// Returns the 16 integers code - offset of up to 16 bytes. `SMALL` codes have up to 4 bits.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn take<const SMALL: bool>(&self, bytes: &[u8]) -> __m512 {
        // SAFETY: a masked load touches nothing whose mask bit is clear, and the mask has `bytes.len()` bits.
        let bytes = unsafe { _mm_maskz_loadu_epi8(first(bytes.len()) as u16, bytes.as_ptr().cast()) };
        let spread = _mm512_permutexvar_epi8(self.spread, _mm512_castsi128_si512(bytes));
        let codes = _mm512_srlv_epi32(spread, self.shift);
        if SMALL {
            return _mm512_permutexvar_ps(codes, self.table);
        }
        _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(codes, self.mask), self.offset))
    }

    /// Passes all integers of a row to `out`, sixteen at a time.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn take_row(&self, codes: &[u8], mut out: impl FnMut(usize, __m512)) {
        if self.step <= 8 {
            for (i, bytes) in codes.chunks_exact(self.step).enumerate() {
                out(i, self.take::<true>(bytes));
            }
        } else {
            for (i, bytes) in codes.chunks_exact(self.step).enumerate() {
                out(i, self.take::<false>(bytes));
            }
        }
    }
}

/// The scales of a row, or its scales and zeros in turns.
type Header = [f32; MAX_DIM / 8 + 16];

/// Reads the scales and zeros of a row.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn header(layout: &Affine, row: &[u8], out: &mut Header) {
    for (bytes, out) in row[..layout.header_bytes()].chunks(32).zip(out.as_chunks_mut().0) {
        store_ps(out, decode_f16(bytes));
    }
}

/// Implements `scalar::decode_affine`. A group has a whole number of registers.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn decode_affine(layout: &Affine, row: &[u8], out: &mut [f32]) {
    let mut scales = [0.0; MAX_DIM / 8 + 16];
    header(layout, row, &mut scales);
    let out = out.as_chunks_mut().0;
    let steps = layout.group / 16;
    let (mut group, mut left) = (0, steps);
    Numbers::new(layout).take_row(layout.codes(row), |i, values| {
        if left == 0 {
            (group, left) = (group + 1, steps);
        }
        left -= 1;
        let (scale, zero) =
            if layout.asymmetric { (scales[2 * group], scales[2 * group + 1]) } else { (scales[group], 0.0) };
        let scaled = _mm512_mul_ps(values, _mm512_set1_ps(scale));
        store_ps(&mut out[i], _mm512_add_ps(scaled, _mm512_set1_ps(zero)));
    });
}
