//! The specification: the exact result of every kernel.
//!
//! Each backend equals the `scalar.rs` of each folder bit for bit. So everything that affects a bit
//! is fixed there: the order of sums (16 lanes, then halves), ties, rounding, and that
//! multiplications and additions are never fused.
//!
//! The functions are `#[inline(always)]`. A backend may compile one for its own instruction set,
//! and keep the result where LLVM is as fast as intrinsics. The source stays the same, and so do
//! the bits.
//!
//! [`Backend`](crate::Backend) checks lengths before it calls a kernel. This file has the kernels
//! on plain vectors.

mod softmax;

pub(crate) use crate::floats::{LANES, decode_floats, encode_floats, halve, sqrt};
pub(crate) use softmax::*;

use super::hadamard;
use crate::Float;
use crate::floats::rint_i16;
use core::slice::ChunksExact;

/// Returns Σ aᵢ·bᵢ in 16 lanes, then by halves.
#[cfg_attr(target_os = "none", inline(never))] // one copy for all kernels
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

/// Adds `x` to `y`.
#[inline(always)]
pub(crate) fn add(x: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

/// Returns max |xᵢ|, 0 for an empty slice. A NaN is ignored.
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
    // None is NaN or -0, so the order does not matter, and halves are vectors.
    for width in [8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut_checked(width).unwrap_or_default();
        for (low, high) in low.iter_mut().zip(high) {
            *low = if *high > *low { *high } else { *low };
        }
    }
    lanes[0]
}

/// Rotates: x ← scale · H·(s∘x). `signs` has 0 or the sign bit for each coordinate.
#[inline(always)]
pub(crate) fn rotate(x: &mut [f32], signs: &[u32], scale: f32) {
    apply_signs(x, signs);
    hadamard_transform(x, false);
    for x in x {
        *x *= scale;
    }
}

/// Rotates back: x ← s∘(scale · Hᵀx). It is the inverse of [`rotate`] for an orthonormal `scale`.
#[inline(always)]
pub(crate) fn rotate_inverse(x: &mut [f32], signs: &[u32], scale: f32) {
    hadamard_transform(x, true);
    for x in x.iter_mut() {
        *x *= scale;
    }
    apply_signs(x, signs);
}

/// Applies sign masks: 0, or the sign bit.
#[inline(always)]
pub(crate) fn apply_signs(x: &mut [f32], signs: &[u32]) {
    for (x, sign) in x.iter_mut().zip(signs) {
        *x = f32::from_bits(x.to_bits() ^ sign);
    }
}

/// Multiplies by H = Sylvester ⊗ base, with index = hi·base + lo. The base acts on lo first. Then
/// butterflies (a+b, a-b) of steps 1, 2, 4 … act on hi.
#[inline(always)]
pub(crate) fn hadamard_transform(x: &mut [f32], transpose: bool) {
    let base = hadamard::base_pass(x, transpose);
    butterflies(x, base);
}

/// Does butterflies of steps `first`, 2·`first` … on all of `x`.
///
/// ```text
/// step 1    (x₀ x₁) (x₂ x₃)              →  x₀+x₁  x₀-x₁  x₂+x₃  x₂-x₃
/// step 2    (y₀ y₂) (y₁ y₃)              →  y₀+y₂  y₁+y₃  y₀-y₂  y₁-y₃
/// ```
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

/// Multiplies a dense D×D matrix, stored column by column, by a vector: y = Σⱼ xⱼ·columnⱼ, j
/// ascending.
#[inline(always)]
pub(crate) fn multiply_columns(columns: &[f32], x: &[f32], y: &mut [f32]) {
    y.fill(0.0);
    for (column, &x) in columns.chunks_exact(x.len()).zip(x) {
        for (y, m) in y.iter_mut().zip(column) {
            *y += x * m;
        }
    }
}

/// Quantises: out = rint(x · limit/max|x|), ties to even. Returns max|x|/limit. If the factor
/// overflows because the vector is tiny, all are 0.
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

/// Returns the largest bits of the floats without their signs. A NaN is above infinity.
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

/// Scores rows of floats: [`dot`] of the query and the row.
#[inline(always)]
pub(crate) fn score_floats(format: Float, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    let rows = bytes.chunks_exact(dim * format.bytes());
    score_rows(|row, values| decode_floats(format, row, values), dot, dim, rows, queries, scores);
}

/// Adds weight·x to `acc`, rows in ascending order.
#[inline(always)]
pub(crate) fn accumulate_floats(format: Float, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    let rows = bytes.chunks_exact(dim * format.bytes());
    accumulate_rows(|row, values| decode_floats(format, row, values), dim, rows, weights, acc);
}

/// Scores decoded rows: `dot` of the query and each row.
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

/// Adds weight·x of decoded rows to `acc`, rows in ascending order. There must be at least one row.
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

/// Returns the smallest and the largest value by compare and select, (∞, -∞) for none.
///
/// A NaN is ignored. Of -0 and +0 the first in a lane remains, and lanes are compared in ascending
/// order.
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
