//! Vectors of plain floats, for registers of 128 bits.

use super::scalar::{apply_signs, butterflies};
use super::{hadamard, scalar};
use crate::Float;
use crate::registers::Registers;

/// Implements `scalar::rotate`.
#[inline(always)]
pub(crate) fn rotate<L: Registers>(x: &mut [f32], signs: &[u32], scale: f32) {
    apply_signs(x, signs);
    transform::<L>(x, false);
    for x in x {
        *x *= scale;
    }
}

/// Implements `scalar::rotate_inverse`.
#[inline(always)]
pub(crate) fn rotate_inverse<L: Registers>(x: &mut [f32], signs: &[u32], scale: f32) {
    transform::<L>(x, true);
    for (x, sign) in x.iter_mut().zip(signs) {
        *x = f32::from_bits((*x * scale).to_bits() ^ sign);
    }
}

/// Implements `scalar::hadamard_transform`. Butterflies within 16 coordinates stay in registers,
/// and later steps go over memory two at a time.
#[inline(always)]
pub(crate) fn transform<L: Registers>(x: &mut [f32], transpose: bool) {
    if !x.len().is_multiple_of(16) || !x.len().is_power_of_two() {
        let base = hadamard::base_pass(x, transpose);
        return butterflies(x, base);
    }
    for block in x.as_chunks_mut::<16>().0 {
        let rows = block.as_chunks_mut::<4>().0;
        let [a, b] = within_eight::<L>(L::load_floats(&rows[0]), L::load_floats(&rows[1]));
        let [c, d] = within_eight::<L>(L::load_floats(&rows[2]), L::load_floats(&rows[3]));
        let ([a, b], [c, d]) = (butterfly::<L>(a, b), butterfly::<L>(c, d));
        let ([a, c], [b, d]) = (butterfly::<L>(a, c), butterfly::<L>(b, d));
        for (row, x) in rows.iter_mut().zip([a, b, c, d]) {
            L::store_floats(row, x);
        }
    }
    let mut step = 16;
    while 2 * step < x.len() {
        two_steps::<L>(x, step);
        step *= 4;
    }
    butterflies(x, step);
}

/// Does the butterflies of steps `step` and 2·`step` in one pass over memory.
#[inline(always)]
pub(crate) fn two_steps<L: Registers>(x: &mut [f32], step: usize) {
    for block in x.chunks_exact_mut(4 * step) {
        let (lower, upper) = block.split_at_mut(2 * step);
        let ((a, b), (c, d)) = (lower.split_at_mut(step), upper.split_at_mut(step));
        let [a, b, c, d] = [a, b, c, d].map(|x| x.as_chunks_mut::<4>().0.iter_mut());
        for (((a, b), c), d) in a.zip(b).zip(c).zip(d) {
            let ([p, q], [r, s]) = (
                butterfly::<L>(L::load_floats(a), L::load_floats(b)),
                butterfly::<L>(L::load_floats(c), L::load_floats(d)),
            );
            let ([p, r], [q, s]) = (butterfly::<L>(p, r), butterfly::<L>(q, s));
            for (place, x) in [(a, p), (b, q), (c, r), (d, s)] {
                L::store_floats(place, x);
            }
        }
    }
}

/// Does the butterflies of steps 1 and 2 on two registers.
///
/// ```text
/// a, b        0 1 2 3 │ 4 5 6 7
/// unzipped    0 2 4 6 │ 1 3 5 7         step 1 is now between the registers
/// unzipped    again                     step 2, and the last one restores the order
/// ```
#[inline(always)]
pub(crate) fn within_eight<L: Registers>(a: L::V, b: L::V) -> [L::V; 2] {
    let [even, odd] = L::unzip_floats(a, b);
    let [sum, difference] = butterfly::<L>(even, odd);
    let [first, second] = L::unzip_floats(sum, difference);
    let [sum, difference] = butterfly::<L>(first, second);
    L::unzip_floats(sum, difference)
}

/// Returns a + b and a - b.
#[inline(always)]
pub(crate) fn butterfly<L: Registers>(a: L::V, b: L::V) -> [L::V; 2] {
    [L::add_floats(a, b), L::sub_floats(a, b)]
}

/// Implements `scalar::dot` with four registers, which are the specification's 16 lanes.
#[inline(always)]
pub(crate) fn dot<L: Registers>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [L::splat(0); 4];
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a.as_chunks().0, b.as_chunks().0);
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = L::add_floats(*sum, L::multiply_floats(L::load_floats(a), L::load_floats(b)));
        }
    }
    let mut lanes = [[0.0; 4]; 4];
    for (lanes, sum) in lanes.iter_mut().zip(sums) {
        L::store_floats(lanes, sum);
    }
    let lanes: &mut [f32] = lanes.as_flattened_mut();
    for (lane, (a, b)) in lanes.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *lane += a * b;
    }
    scalar::halve(lanes.first_chunk().copied().unwrap_or_default())
}

/// Implements `scalar::decode_floats`.
#[inline(always)]
pub(crate) fn decode_floats<L: Registers>(format: Float, bytes: &[u8], out: &mut [f32]) {
    L::decode_floats(format, bytes, out);
}

/// Implements `scalar::score_floats`.
#[inline(always)]
pub(crate) fn score_floats<L: Registers>(
    format: Float,
    dim: usize,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let rows = bytes.chunks_exact(dim * format.bytes());
    let decode = |row: &[u8], values: &mut [f32]| L::decode_floats(format, row, values);
    scalar::score_rows(decode, dot::<L>, dim, rows, queries, scores);
}

/// Implements `scalar::accumulate_floats`.
#[inline(always)]
pub(crate) fn accumulate_floats<L: Registers>(
    format: Float,
    dim: usize,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let rows = bytes.chunks_exact(dim * format.bytes());
    scalar::accumulate_rows(|row, values| L::decode_floats(format, row, values), dim, rows, weights, acc);
}

/// Implements `scalar::encode_floats`.
#[inline(always)]
pub(crate) fn encode_floats<L: Registers>(format: Float, x: &[f32], bytes: &mut [u8]) {
    L::encode_floats(format, x, bytes);
}
