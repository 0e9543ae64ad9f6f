//! The specification: rows of integers with a scale.

use crate::codes::scalar::unpack;
use crate::vectors::scalar::{LANES, accumulate_rows, halve, rint};
use crate::{Affine, Packing};

/// code = clamp(rint((x - zero)/scale) + offset, lowest, highest), ties to even; a zero scale gives code 0.
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

/// x̂ = (code - offset)·scale + zero, group by group.
#[inline(always)]
pub(crate) fn decode_affine(layout: &Affine, row: &[u8], out: &mut [f32]) {
    decode_affine_with(unpack, layout, row, out);
}

/// [`decode_affine`] with a backend's own step.
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

/// score\[query]\[row] = halve(Σ_g scale_g·(Σ q·(code - offset) in 16 lanes)) + Σ_g zero_g·qsum_g, both sums over the
/// groups ascending, where qsum_g = halve(Σ q in 16 lanes) over the group.
#[inline(always)]
pub(crate) fn score_affine(layout: &Affine, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    score_affine_with(unpack, layout, bytes, queries, scores);
}

/// [`score_affine`] with a backend's own step.
#[inline(always)]
pub(crate) fn score_affine_with(
    unpack: impl Fn(Packing, &[u8], &mut [u8]),
    layout: &Affine,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let row_bytes = layout.row_bytes();
    let count = bytes.len() / row_bytes;
    let mut codes = [0; crate::MAX_DIM];
    let mut values = [0.0f32; crate::MAX_DIM];
    for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
        unpack(layout.packing(), layout.codes(row), &mut codes[..layout.dim]);
        for (value, code) in values.iter_mut().zip(&codes[..layout.dim]) {
            *value = (i32::from(*code) - layout.offset) as f32;
        }
        for (q, query) in queries.iter().enumerate() {
            scores[q * count + r] = score_affine_row(layout, row, query, &values[..layout.dim]);
        }
    }
}

#[inline(always)]
pub(crate) fn score_affine_row(layout: &Affine, row: &[u8], query: &[f32], values: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut zeros = 0.0f32;
    for (g, (query, values)) in
        query.chunks_exact(layout.group).zip(values.chunks_exact(layout.group)).enumerate()
    {
        let (scale, zero) = layout.scale_and_zero(row, g);
        let (mut products, mut sums) = ([0.0f32; LANES], [0.0f32; LANES]);
        for (query, values) in query.as_chunks::<LANES>().0.iter().zip(values.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                products[lane] += query[lane] * values[lane];
                sums[lane] += query[lane];
            }
        }
        for lane in 0..LANES {
            lanes[lane] += products[lane] * scale;
        }
        if layout.asymmetric {
            zeros += halve(sums) * zero;
        }
    }
    halve(lanes) + zeros
}

/// acc\[query]\[j] += weight·x̂\[j] with x̂ of [`decode_affine`], rows ascending.
#[inline(always)]
pub(crate) fn accumulate_affine(layout: &Affine, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    accumulate_affine_with(unpack, layout, bytes, weights, acc);
}

/// [`accumulate_affine`] with a backend's own step.
#[inline(always)]
pub(crate) fn accumulate_affine_with(
    unpack: impl Fn(Packing, &[u8], &mut [u8]),
    layout: &Affine,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let rows = bytes.chunks_exact(layout.row_bytes());
    let decode = |row: &[u8], values: &mut [f32]| decode_affine_with(&unpack, layout, row, values);
    accumulate_rows(decode, layout.dim, rows, weights, acc);
}
