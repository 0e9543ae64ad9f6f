//! Operations on single floats: rounding, square roots, halves, and the order of sums. They are
//! part of the specification of every shape.

use crate::CHECKED;

/// Formats of plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
}

impl Float {
    /// Returns the bytes of a value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// The number of lanes of every `f32` sum.
///
/// Element `i` goes to lane `i % 16`, in ascending order. Then the upper half of the lanes is added
/// to the lower half until one is left. So a sum has the same bits on every backend:
///
/// ```text
/// elements   0  1 … 15 │ 16 17 … 31 │ …
/// lanes      0  1 … 15 │  0  1 … 15 │ …      16 ─► 8 ─► 4 ─► 2 ─► 1
/// ```
pub(crate) const LANES: usize = 16;

/// Adds the upper half of the lanes to the lower half until one sum is left.
#[inline(always)]
pub(crate) fn halve(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Rounds to the nearest integer, ties to even, for |x| < 2²². The sum with 1.5·2²³ has no fraction
/// bits left.
#[inline(always)]
pub(crate) fn rint(x: f32) -> f32 {
    (x + RINT_MAGIC) - RINT_MAGIC
}

/// 1.5·2²³. Adding it moves the integer part of a small float to the lowest bits of the mantissa.
pub(crate) const RINT_MAGIC: f32 = 12_582_912.0;

/// Rounds as [`rint`] does, for values within ±32767. The low bits of the sum are the integer in
/// two's complement.
#[inline(always)]
pub(crate) fn rint_i16(x: f32) -> i16 {
    (x + RINT_MAGIC).to_bits() as i16
}

/// Returns the exact square root, rounded to nearest: the same bits on every machine.
///
/// `libm` uses the instruction in an encoding that waits for the upper halves of AVX-512's
/// registers. On an Intel server core that takes 181 ns instead of 1.8. The intrinsic gets the
/// encoding of the function around it, and LLVM can vectorise it.
#[inline(always)]
pub(crate) fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    return {
        use core::arch::x86_64::{_mm_cvtss_f32, _mm_set_ss, _mm_sqrt_ss};
        // SAFETY: SSE is part of every x86-64 target.
        unsafe { _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))) }
    };
    #[cfg(not(target_arch = "x86_64"))]
    return libm::sqrtf(x);
}

/// Reads the f16 at the front of a row.
#[inline(always)]
pub(crate) fn row_scale(row: &[u8]) -> f32 {
    let bytes = if CHECKED { [row[0], row[1]] } else { row.first_chunk().copied().unwrap_or_default() };
    f16_to_f32(u16::from_le_bytes(bytes))
}

/// Converts the bits of an f16 to f32, with operations that every instruction set vectorises.
///
/// ```text
/// f16    s eeeee mmmmmmmmmm
/// f32    s 000eeeee mmmmmmmmmm0000000000000      shifted left by 13, the sign set apart
/// ```
///
/// One exact multiplication by 2¹¹² then repairs the exponent, and normalises subnormals. Infinities
/// and NaN, whose exponent is all ones, get the exponent of all ones of an f32.
#[inline(always)]
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    const TWO_112: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let value = f32::from_bits(magnitude) * TWO_112;
    // A signed comparison of words: SSE2 has no other.
    let ones = if magnitude as i32 >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value.to_bits() | ones | (u32::from(bits & 0x8000) << 16))
}

/// Converts to the bits of an f16, rounded to nearest even. A NaN stays one.
#[inline]
#[must_use]
pub fn f32_to_f16(x: f32) -> u16 {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let (sign, magnitude) = ((x.to_bits() >> 16) as u16 & 0x8000, x.to_bits() & 0x7fff_ffff);
    let rounded = if magnitude > INFINITY {
        0x7e00 | (magnitude >> 13 & 0x3ff)
    } else if magnitude >= 65_536f32.to_bits() {
        0x7c00
    } else if magnitude < (1.0 / 16_384.0f32).to_bits() {
        // Subnormal. The lowest bit of a half is 2⁻²⁴, and so is that of an f16: the addition rounds.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        // The exponent's bias is 112 less. A carry of the mantissa belongs into the exponent.
        (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13
    };
    sign | rounded as u16
}

/// Converts to the bits of a bf16, rounded to nearest even. A NaN stays one.
#[inline]
#[must_use]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Reads little-endian floats.
#[inline(always)]
pub(crate) fn decode_floats(format: Float, bytes: &[u8], out: &mut [f32]) {
    match format {
        Float::F16 => {
            for (b, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                *out = f16_to_f32(u16::from_le_bytes(*b));
            }
        }
        Float::Bf16 => {
            for (b, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            }
        }
        Float::F32 => {
            for (b, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                *out = f32::from_le_bytes(*b);
            }
        }
    }
}

/// Writes little-endian floats, rounded to nearest even.
#[inline(always)]
pub(crate) fn encode_floats(format: Float, x: &[f32], bytes: &mut [u8]) {
    match format {
        Float::F16 => {
            for (x, b) in x.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = f32_to_f16(*x).to_le_bytes();
            }
        }
        Float::Bf16 => {
            for (x, b) in x.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = f32_to_bf16(*x).to_le_bytes();
            }
        }
        Float::F32 => {
            for (x, b) in x.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *b = x.to_le_bytes();
            }
        }
    }
}
