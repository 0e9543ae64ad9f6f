//! The specification of rows of integers with a scale.

use crate::codes::scalar::unpack;
use crate::floats::rint;
use crate::{Affine, Packing};

/// Quantises: code = clamp(rint((x - zero)/scale) + offset, lowest, highest), ties to even. A zero
/// scale gives codes 0.
#[inline(always)]
pub(crate) fn quantize_affine(
    x: &[f32],
    zero: f32,
    scale: f32,
    offset: i32,
    range: (i32, i32),
    codes: &mut [u8],
) {
    if scale == 0.0 {
        codes.fill(0);
        return;
    }
    let (low, high) = (range.0 as f32, range.1 as f32);
    for (x, code) in x.iter().zip(codes) {
        let y = (x - zero) / scale;
        let y = if y < low { low } else { y };
        let y = if y > high { high } else { y };
        *code = (rint(y) as i32 + offset) as u8;
    }
}

/// Decodes: x̂ = (code - offset)·scale + zero, group by group.
#[inline(always)]
pub(crate) fn decode_affine(layout: &Affine, row: &[u8], out: &mut [f32]) {
    decode_affine_with(unpack, layout, row, out);
}

/// Decodes with a backend's own `unpack`.
#[inline(always)]
pub(crate) fn decode_affine_with(
    unpack: impl Fn(Packing, &[u8], &mut [u8]),
    layout: &Affine,
    row: &[u8],
    out: &mut [f32],
) {
    let mut codes = [0; crate::MAX_DIM];
    let codes = &mut codes[..layout.dim];
    unpack(layout.packing(), layout.codes(row), codes);
    for (g, (out, codes)) in
        out.chunks_exact_mut(layout.group).zip(codes.chunks_exact(layout.group)).enumerate()
    {
        let (scale, zero) = layout.scale_and_zero(row, g);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = (i32::from(*code) - layout.offset) as f32 * scale + zero;
        }
    }
}
