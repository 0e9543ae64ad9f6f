//! Kernels for rows of integers with a scale, and perhaps a zero, for each group.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod layout;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::{Affine, Backend, MAX_DIM};

impl Backend {
    /// Quantises values: code = clamp(rint((x - zero)/scale), range) + offset. A zero scale gives
    /// codes 0.
    ///
    /// # Panics
    /// If there are not as many codes as values, or if codes of the range do not fit a byte.
    pub fn quantize_affine(
        self,
        x: &[f32],
        zero: f32,
        scale: f32,
        offset: i32,
        range: (i32, i32),
        codes: &mut [u8],
    ) {
        contract!(x.len() == codes.len());
        contract!(range.0 <= range.1 && range.0 + offset >= 0 && range.1 + offset <= 255);
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: scalar;
            quantize_affine(x: &[f32], zero: f32, scale: f32, offset: i32, range: (i32, i32), codes: &mut [u8])
        )
    }

    /// Decodes one row: out = (code - offset)·scale + zero, group by group.
    ///
    /// # Panics
    /// If the lengths do not fit the layout.
    pub fn decode_affine(self, layout: &Affine, row: &[u8], out: &mut [f32]) {
        check_affine(layout);
        contract!((row.len(), out.len()) == (layout.row_bytes(), layout.dim));
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: wide;
            decode_affine(layout: &Affine, row: &[u8], out: &mut [f32])
        )
    }
}

/// Checks the layout: whole groups of a multiple of 16 codes, and 2 to 8 bits.
fn check_affine(layout: &Affine) {
    contract!(layout.group > 0 && layout.group.is_multiple_of(16) && layout.dim.is_multiple_of(layout.group));
    contract!((2..=8).contains(&layout.bits) && layout.dim <= MAX_DIM);
}
