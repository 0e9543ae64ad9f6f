//! The specification: what every kernel computes, to the bit.
//!
//! Each backend equals the `scalar.rs` of each folder bit for bit, so everything that a bit can depend on is written
//! down there: the order of sums (16 lanes, then halving), tie-breaks, rounding, and that multiplications and additions
//! are never fused. The functions are `#[inline(always)]` so that a backend may compile one of them for its own
//! instruction set and keep it where LLVM's output is as fast as intrinsics: the text, and so the bits, stay
//! the same.
//!
//! Lengths have been checked by [`Backend`](crate::Backend) when a kernel is reached. Here are plain vectors.

mod softmax;

pub(crate) use crate::floats::{LANES, decode_floats, encode_floats, halve, sqrt};
pub(crate) use softmax::*;

use super::hadamard;
use crate::Float;
use crate::floats::rint_i16;
use core::slice::ChunksExact;

/// Σ aᵢ·bᵢ.
#[cfg_attr(target_os = "none", inline(never))] // once for all kernels
#[cfg_attr(not(target_os = "none"), inline(always))]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in a_tail.iter().zip(b_tail).enumerate() {
        lanes[lane] += a * b;
    }
    halve(lanes)
}

/// y ← y + x.
#[inline(always)]
pub(crate) fn add(x: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

/// max |xᵢ|, 0 for an empty slice; a NaN never wins.
#[inline(always)]
pub(crate) fn max_abs(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let a = chunk[lane].abs();
            lanes[lane] = if a > lanes[lane] { a } else { lanes[lane] };
        }
    }
    for x in tail {
        lanes[0] = if x.abs() > lanes[0] { x.abs() } else { lanes[0] };
    }
    lanes.into_iter().fold(0.0, |max, a| if a > max { a } else { max })
}

/// x ← scale · H·(s∘x). `signs` holds 0 or the sign bit for each coordinate.
#[inline(always)]
pub(crate) fn rotate(x: &mut [f32], signs: &[u32], scale: f32) {
    apply_signs(x, signs);
    hadamard_transform(x, false);
    for x in x {
        *x *= scale;
    }
}

/// x ← s∘(scale · Hᵀx), the inverse of [`rotate`] for an orthonormal `scale`.
#[inline(always)]
pub(crate) fn rotate_inverse(x: &mut [f32], signs: &[u32], scale: f32) {
    hadamard_transform(x, true);
    for x in x.iter_mut() {
        *x *= scale;
    }
    apply_signs(x, signs);
}

#[inline(always)]
pub(crate) fn apply_signs(x: &mut [f32], signs: &[u32]) {
    for (x, sign) in x.iter_mut().zip(signs) {
        *x = f32::from_bits(x.to_bits() ^ sign);
    }
}

/// H = Sylvester ⊗ base, index = hi·base + lo: the base on the low index first, then butterflies (a+b, a-b) on the
/// high one with step 1, 2, 4 …
#[inline(always)]
pub(crate) fn hadamard_transform(x: &mut [f32], transpose: bool) {
    let base = hadamard::base_pass(x, transpose);
    butterflies(x, base);
}

/// Butterflies with step `first`, 2·`first`, … on the whole of `x`.
#[inline(always)]
pub(crate) fn butterflies(x: &mut [f32], first: usize) {
    let mut step = first;
    while step < x.len() {
        for pair in x.chunks_exact_mut(2 * step) {
            let (a, b) = pair.split_at_mut(step);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        step *= 2;
    }
}

/// y ← M·x for a dense row-major D×D matrix given by its *columns*: y = Σⱼ xⱼ·columnⱼ, j ascending.
#[inline(always)]
pub(crate) fn multiply_columns(columns: &[f32], x: &[f32], y: &mut [f32]) {
    y.fill(0.0);
    for (column, &x) in columns.chunks_exact(x.len()).zip(x) {
        for (y, m) in y.iter_mut().zip(column) {
            *y += x * m;
        }
    }
}

/// out = rint(x · limit/max|x|), ties to even; returns max|x|/limit. A vector so
/// small that the quotient overflows gives zeros and 0.
#[inline(always)]
pub(crate) fn quantize_query(x: &[f32], limit: i16, out: &mut [i16]) -> f32 {
    let max = max_abs(x);
    let factor = f32::from(limit) / max;
    if factor.is_infinite() {
        out.fill(0);
        return 0.0;
    }
    for (x, out) in x.iter().zip(out) {
        *out = rint_i16(x * factor);
    }
    max / f32::from(limit)
}

/// The largest bits of the floats without their signs: of the largest magnitude, or beyond infinity's for a NaN.
#[inline(always)]
pub(crate) fn largest_bits(format: Float, bytes: &[u8]) -> u32 {
    let mut largest = 0;
    match format {
        Float::F16 | Float::Bf16 => {
            let mut halves = 0u16;
            for b in bytes.as_chunks::<2>().0 {
                halves = halves.max(u16::from_le_bytes(*b) & 0x7fff);
            }
            largest = u32::from(halves);
        }
        Float::F32 => {
            for b in bytes.as_chunks::<4>().0 {
                largest = largest.max(u32::from_le_bytes(*b) & 0x7fff_ffff);
            }
        }
    }
    largest
}

/// score\[query]\[row] = [`dot`] of the query and the row's floats.
#[inline(always)]
pub(crate) fn score_floats(format: Float, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    let rows = bytes.chunks_exact(dim * format.bytes());
    score_rows(|row, values| decode_floats(format, row, values), dot, dim, rows, queries, scores);
}

/// acc\[query]\[j] += weight·x\[j], rows ascending.
#[inline(always)]
pub(crate) fn accumulate_floats(format: Float, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    let rows = bytes.chunks_exact(dim * format.bytes());
    accumulate_rows(|row, values| decode_floats(format, row, values), dim, rows, weights, acc);
}

/// score\[query]\[row] = `dot` of the query and the decoded row.
#[inline(always)]
pub(crate) fn score_rows(
    mut decode: impl FnMut(&[u8], &mut [f32]),
    dot: impl Fn(&[f32], &[f32]) -> f32,
    dim: usize,
    rows: ChunksExact<u8>,
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = rows.len();
    let mut values = [0.0; crate::MAX_DIM];
    let values = &mut values[..dim];
    for (r, row) in rows.enumerate() {
        decode(row, values);
        for (q, query) in queries.iter().enumerate() {
            scores[q * count + r] = dot(query, values);
        }
    }
}

/// acc\[query]\[j] += weight·x\[j] with x of the decoded row, rows ascending. There are rows.
#[inline(always)]
pub(crate) fn accumulate_rows(
    mut decode: impl FnMut(&[u8], &mut [f32]),
    dim: usize,
    rows: ChunksExact<u8>,
    weights: &[f32],
    acc: &mut [f32],
) {
    let count = rows.len();
    let mut values = [0.0; crate::MAX_DIM];
    let values = &mut values[..dim];
    for (r, row) in rows.enumerate() {
        decode(row, values);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
            for (acc, x) in acc.iter_mut().zip(values.iter()) {
                *acc += weights[r] * x;
            }
        }
    }
}

/// (min, max) of the values by compare and select, (∞, -∞) for none; a NaN never wins. Of -0 and +0 the first of a lane
/// stays, and lanes are compared in ascending order.
#[inline(always)]
pub(crate) fn min_max(x: &[f32]) -> (f32, f32) {
    let mut lanes = [(f32::INFINITY, f32::NEG_INFINITY); LANES];
    for chunk in x.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = (if x < lane.0 { x } else { lane.0 }, if x > lane.1 { x } else { lane.1 });
        }
    }
    lanes
        .into_iter()
        .fold(lanes[0], |m, l| (if l.0 < m.0 { l.0 } else { m.0 }, if l.1 > m.1 { l.1 } else { m.1 }))
}
