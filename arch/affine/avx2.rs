//! Rows of integers with a scale (and a zero) for each group, with AVX2.
//!
//! Sixteen bytes are loaded, and each dword of a register gets the two bytes in which its code
//! begins:
//!
//! ```text
//! 3 bits   bytes   │c₂c₂ c₁c₁c₁ c₀c₀c₀│c₅ c₄c₄c₄ c₃c₃c₃ c₂│…      first bits 0, 3, 6, 9, 12 …
//!          dwords  │ bytes 0, 1 │ bytes 0, 1 │ bytes 0, 1 │ bytes 1, 2 │ …
//!          shift     0            3            6            1            then a mask of 3 bits
//! ```
//!
//! On Sapphire Rapids it is 1.3 (8 bits) to 3 times as fast as `wide.rs`, measured with scores and
//! sums that were later removed.

use super::scalar;
use crate::registers::avx2::{load_ps, rint, store_ps};
use crate::vectors::avx2::floats::decode_floats;
use crate::{Affine, Float, MAX_DIM};
use core::arch::x86_64::*;

/// The scales of a row, or its scales and zeros in turns.
type Header = [f32; MAX_DIM / 8];

/// Extracts the integers of a row, sixteen at a time, as floats.
struct Numbers {
    /// Byte indices that bring the two bytes of each code to its dword: of the first eight codes,
    /// and of the others.
    spread: [__m256i; 2],
    /// The first bit of each code in its two bytes.
    shift: __m256i,
    /// Ones for the bits of a code.
    mask: __m256i,
    /// The code of the integer 0.
    offset: __m256i,
    /// Bytes of eight codes.
    step: usize,
}

impl Numbers {
    /// Prepares the constants for a layout.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(layout: &Affine) -> Self {
        let bits = i32::from(layout.bits);
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let start = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(bits));
        let byte = _mm256_srli_epi32::<3>(start);
        let next = _mm256_slli_epi32::<8>(_mm256_add_epi32(byte, _mm256_set1_epi32(1)));
        let spread = _mm256_or_si256(byte, next);
        Self {
            spread: [spread, _mm256_add_epi8(spread, _mm256_set1_epi8(bits as i8))],
            shift: _mm256_and_si256(start, _mm256_set1_epi32(7)),
            mask: _mm256_set1_epi32((1 << bits) - 1),
            offset: _mm256_set1_epi32(layout.offset),
            step: usize::from(layout.bits),
        }
    }

    /// Writes all integers of a row as floats. A load of sixteen bytes that would end behind the
    /// row is moved back to its end.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn take_row(&self, layout: &Affine, row: &[u8], out: &mut [f32]) {
        let mut short = [0; 16];
        let row = if row.len() < 16 {
            short[..row.len()].copy_from_slice(row);
            &short
        } else {
            row
        };
        let starts = (layout.header_bytes()..).step_by(2 * self.step).take(layout.dim / 16);
        for (start, out) in starts.zip(out.as_chunks_mut::<16>().0) {
            let at = start.min(row.len() - 16);
            let late = _mm256_set1_epi8((start - at) as i8);
            let bytes: &[u8] = &row[at..at + 16];
            // SAFETY: the slice has the 16 bytes that are read.
            let bytes = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) });
            for (spread, out) in self.spread.iter().zip(out.as_chunks_mut().0) {
                let dwords = _mm256_shuffle_epi8(bytes, _mm256_add_epi8(*spread, late));
                let codes = _mm256_and_si256(_mm256_srlv_epi32(dwords, self.shift), self.mask);
                store_ps(out, _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, self.offset)));
            }
        }
    }
}

/// Reads the scales and zeros of a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn header(layout: &Affine, row: &[u8], out: &mut Header) {
    let bytes = &row[..layout.header_bytes()];
    decode_floats(Float::F16, bytes, &mut out[..bytes.len() / 2]);
}

/// Returns the scale and the zero of a group.
#[inline]
fn scale_and_zero(layout: &Affine, header: &Header, group: usize) -> (f32, f32) {
    if layout.asymmetric { (header[2 * group], header[2 * group + 1]) } else { (header[group], 0.0) }
}

/// Implements `scalar::decode_affine`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn decode_affine(layout: &Affine, row: &[u8], out: &mut [f32]) {
    let mut scales = [0.0; MAX_DIM / 8];
    header(layout, row, &mut scales);
    Numbers::new(layout).take_row(layout, row, out);
    for (group, values) in out[..layout.dim].chunks_exact_mut(layout.group).enumerate() {
        let (scale, zero) = scale_and_zero(layout, &scales, group);
        for value in values {
            *value = *value * scale + zero;
        }
    }
}

/// Implements `scalar::quantize_affine`. Zero scales, and lengths that are no multiple of eight,
/// are left to the specification.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn quantize_affine(
    x: &[f32],
    zero: f32,
    scale: f32,
    offset: i32,
    range: (i32, i32),
    codes: &mut [u8],
) {
    if scale == 0.0 || !x.len().is_multiple_of(8) {
        return scalar::quantize_affine(x, zero, scale, offset, range, codes);
    }
    let (zero, scale) = (_mm256_set1_ps(zero), _mm256_set1_ps(scale));
    let (low, high) = (_mm256_set1_ps(range.0 as f32), _mm256_set1_ps(range.1 as f32));
    for (x, codes) in x.as_chunks().0.iter().zip(codes.as_chunks_mut::<8>().0) {
        let y = _mm256_div_ps(_mm256_sub_ps(load_ps(x), zero), scale);
        // The instruction `max(low, y)` is `low > y ? low : y`, which treats NaN as the
        // specification does.
        let y = _mm256_min_ps(high, _mm256_max_ps(low, y));
        let code = _mm256_add_epi32(_mm256_cvtps_epi32(rint(y)), _mm256_set1_epi32(offset));
        let words = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256::<1>(code));
        *codes = _mm_cvtsi128_si64(_mm_packus_epi16(words, words)).to_le_bytes();
    }
}
