//! The specification: what every kernel computes, to the bit.
//!
//! Each backend equals these functions bit for bit, so everything that a bit can depend on is written down here:
//! the order of sums (16 lanes, then halving), tie-breaks, rounding, and that multiplications and additions are
//! never fused. The functions are `#[inline(always)]` so that a backend may compile one of them for its own
//! instruction set and keep it where LLVM's output is as fast as intrinsics: the text, and so the bits, stay
//! the same.
//!
//! Lengths have been checked by [`Backend`](crate::Backend) when a kernel is reached.

pub(crate) mod quaternion;

pub(crate) use quaternion::{
    accumulate_quaternions, chunk_norms, decode_quaternions, pack_chunks, quaternion_encode,
    score_quaternions,
};
pub(crate) mod windows;

pub(crate) use windows::{accumulate_windows, decode_windows, score_windows, viterbi_encode};

use crate::hadamard;
use crate::{Affine, Float, IntQuery, Packing, Rows};
use half::{bf16, f16};

mod softmax;
pub(crate) use softmax::*;
mod angles;
mod blocks;
mod signs;

pub(crate) use angles::*;
pub(crate) use blocks::*;
pub(crate) use signs::*;
mod octahedral;
pub(crate) use octahedral::*;

/// Lanes of every `f32` sum. Element `i` goes to lane `i % 16`, ascending; then 16 → 8 → 4 → 2 → 1 by halves.
pub(crate) const LANES: usize = 16;

/// Adds the upper half of the lanes to the lower one until a single sum is left.
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

/// Σ aᵢ·bᵢ.
#[inline(always)]
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
fn hadamard_transform(x: &mut [f32], transpose: bool) {
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

/// code = number of thresholds ≤ x·scale; the thresholds ascend, so a value on one goes to the upper cell.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    for (x, code) in x.iter().zip(codes) {
        let y = x * scale;
        *code = thresholds.iter().filter(|&&t| y >= t).count() as u8;
    }
}

/// out = scale · centroid[code]; codes above the codebook take its last centroid.
#[inline(always)]
pub(crate) fn lookup(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    for (code, out) in codes.iter().zip(out) {
        *out = centroid(centroids, *code) as f32 * scale;
    }
}

#[inline(always)]
fn centroid(centroids: &[i16], code: u8) -> i16 {
    centroids[usize::from(code).min(centroids.len() - 1)]
}

/// Writes the raw plane, then the digit plane; see [`Packing`].
#[inline(always)]
pub(crate) fn pack(packing: Packing, codes: &[u8], bytes: &mut [u8]) {
    let (raw, digits) = bytes.split_at_mut(packing.raw_bytes(codes.len()));
    let (raw_bits, radix) = (packing.raw_bits(), packing.radix());
    if raw_bits > 0 {
        let mut writer = BitWriter::new(raw);
        for code in codes {
            writer.push(u32::from(*code) & ((1 << raw_bits) - 1), raw_bits);
        }
        writer.finish();
    }
    if radix > 1 {
        pack_digits(packing, codes, digits);
    }
}

/// Writes the digit plane.
#[inline(always)]
pub(crate) fn pack_digits(packing: Packing, codes: &[u8], digits: &mut [u8]) {
    let (raw_bits, radix) = (packing.raw_bits(), packing.radix());
    let (group, width) = packing.digit_group();
    let mut writer = BitWriter::new(digits);
    for codes in codes.chunks(group) {
        let value = codes.iter().rev().fold(0, |v, code| v * radix + (u32::from(*code) >> raw_bits));
        let bits = if codes.len() == group { width } else { packing.short_group_bits(codes.len()) };
        writer.push(value, bits);
    }
    writer.finish();
}

/// The codes that [`pack`] wrote. Any bytes are allowed; a digit group beyond its range gives digits modulo the
/// radix.
#[inline(always)]
pub(crate) fn unpack(packing: Packing, bytes: &[u8], codes: &mut [u8]) {
    let (raw, digits) = bytes.split_at(packing.raw_bytes(codes.len()));
    let (raw_bits, radix) = (packing.raw_bits(), packing.radix());
    if raw_bits > 0 {
        let mut reader = BitReader::new(raw);
        for code in codes.iter_mut() {
            *code = reader.take(raw_bits) as u8;
        }
    } else {
        codes.fill(0);
    }
    if radix > 1 {
        let (group, width) = packing.digit_group();
        let mut reader = BitReader::new(digits);
        for codes in codes.chunks_mut(group) {
            let bits = if codes.len() == group { width } else { packing.short_group_bits(codes.len()) };
            let mut value = reader.take(bits);
            for code in codes {
                *code |= ((value % radix) << raw_bits) as u8;
                value /= radix;
            }
        }
    }
}

/// Little-endian, least significant bit first.
struct BitWriter<'a> {
    bytes: core::slice::IterMut<'a, u8>,
    buffer: u32,
    filled: u32,
}

impl<'a> BitWriter<'a> {
    #[inline(always)]
    fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes: bytes.iter_mut(), buffer: 0, filled: 0 }
    }

    #[inline(always)]
    fn push(&mut self, value: u32, bits: u32) {
        self.buffer |= value << self.filled;
        self.filled += bits;
        while self.filled >= 8 {
            self.flush_byte();
        }
    }

    #[inline(always)]
    fn flush_byte(&mut self) {
        if let Some(byte) = self.bytes.next() {
            *byte = self.buffer as u8;
        }
        self.buffer >>= 8;
        self.filled = self.filled.saturating_sub(8);
    }

    /// Writes the last, partly filled byte; its unused bits are zero.
    #[inline(always)]
    fn finish(mut self) {
        if self.filled > 0 {
            self.flush_byte();
        }
    }
}

struct BitReader<'a> {
    bytes: core::slice::Iter<'a, u8>,
    buffer: u32,
    filled: u32,
}

impl<'a> BitReader<'a> {
    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter(), buffer: 0, filled: 0 }
    }

    #[inline(always)]
    fn take(&mut self, bits: u32) -> u32 {
        while self.filled < bits {
            self.buffer |= u32::from(self.bytes.next().copied().unwrap_or(0)) << self.filled;
            self.filled += 8;
        }
        let value = self.buffer & ((1 << bits) - 1);
        self.buffer >>= bits;
        self.filled -= bits;
        value
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

/// Rounds to the nearest integer, ties to even, for |x| < 2²²: the sum with 1.5·2²³ has no fraction bits left.
#[inline(always)]
pub(crate) fn rint(x: f32) -> f32 {
    (x + RINT_MAGIC) - RINT_MAGIC
}

const RINT_MAGIC: f32 = 12_582_912.0;

/// [`rint`] of a value within ±32767: where the fraction bits were, the sum holds the integer in two's complement.
#[inline(always)]
pub(crate) fn rint_i16(x: f32) -> i16 {
    (x + RINT_MAGIC).to_bits() as i16
}

/// The f16 at the head of a row.
#[inline(always)]
pub(crate) fn row_scale(row: &[u8]) -> f32 {
    f16::from_le_bytes([row[0], row[1]]).to_f32()
}

/// score\[query]\[row] = (f32(Σ q·c) · (query scale · table scale)) · row scale, the sum an exact integer.
#[inline(always)]
pub(crate) fn score_codes(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = rows.count();
    let mut codes = [0; crate::MAX_DIM];
    let codes = &mut codes[..rows.dim];
    for (r, row) in rows.iter().enumerate() {
        unpack(rows.packing, rows.planes(row), codes);
        let row_scale = row_scale(row);
        for (q, query) in queries.iter().enumerate() {
            let mut sum = 0i32;
            for (code, value) in codes.iter().zip(query.values) {
                sum += i32::from(*value) * i32::from(centroid(centroids, *code));
            }
            scores[q * count + r] = (sum as f32 * (query.scale * scale)) * row_scale;
        }
    }
}

/// Rows that share one set of integer weights in [`accumulate_codes`].
pub(crate) const PAGE: usize = 256;

/// 2⁻¹⁰⁰: a run of rows whose products of weight and row scale are all below adds nothing.
pub(crate) const SMALLEST_WEIGHT: f32 = 7.888_609e-31;

/// The largest integer weight: with it, `PAGE` products of weight and centroid fit an `i32`.
#[inline(always)]
pub(crate) fn weight_limit(levels: usize) -> i16 {
    if levels <= 16 { 32767 } else { 4095 }
}

/// acc\[query] += Σ weight·row scale·table scale·centroid, in integers: for each run of [`PAGE`] rows, the products
/// weight·row scale are quantised against their largest, the sums over rows are exact `i32`, and one `f32`
/// multiply-add a coordinate closes the run. A run whose largest product is below 2⁻¹⁰⁰ adds nothing.
#[inline(always)]
pub(crate) fn accumulate_codes(rows: &Rows, centroids: &[i16], scale: f32, weights: &[f32], acc: &mut [f32]) {
    let (count, dim) = (rows.count(), rows.dim);
    let mut codes = [0; crate::MAX_DIM];
    for (weights, acc) in weights.chunks_exact(count.max(1)).zip(acc.chunks_exact_mut(dim)) {
        for (page, weights) in rows.pages(PAGE).zip(weights.chunks(PAGE)) {
            let mut ints = [0; PAGE];
            let Some(unit) = quantize_weights(&page, weights, weight_limit(centroids.len()), &mut ints)
            else {
                continue;
            };
            let mut sums = [0i32; crate::MAX_DIM];
            for (row, weight) in page.iter().zip(ints) {
                unpack(page.packing, page.planes(row), &mut codes[..dim]);
                for (sum, code) in sums.iter_mut().zip(&codes[..dim]) {
                    *sum += i32::from(weight) * i32::from(centroid(centroids, *code));
                }
            }
            finish_sums(&sums[..dim], unit * scale, acc);
        }
    }
}

/// The integer weights of a run of rows and the value of one unit; `None` where the run adds nothing.
#[inline(always)]
pub(crate) fn quantize_weights(
    page: &Rows,
    weights: &[f32],
    limit: i16,
    ints: &mut [i16; PAGE],
) -> Option<f32> {
    let mut products = [0.0; PAGE];
    for ((product, weight), row) in products.iter_mut().zip(weights).zip(page.iter()) {
        *product = weight * row_scale(row);
    }
    quantize_products(&products[..weights.len()], limit, ints)
}

/// ints = rint(product · limit/max|product|), and the value of one unit.
#[inline(always)]
pub(crate) fn quantize_products(products: &[f32], limit: i16, ints: &mut [i16; PAGE]) -> Option<f32> {
    let max = max_abs(products);
    // Products are finite: the contract bounds weights by MAX_WEIGHT and asks for finite row scales.
    if max < SMALLEST_WEIGHT {
        return None;
    }
    let factor = f32::from(limit) / max;
    for (int, product) in ints.iter_mut().zip(products) {
        *int = rint_i16(product * factor);
    }
    Some(max / f32::from(limit))
}

#[inline(always)]
pub(crate) fn finish_sums(sums: &[i32], factor: f32, acc: &mut [f32]) {
    for (acc, sum) in acc.iter_mut().zip(sums) {
        *acc += *sum as f32 * factor;
    }
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

/// f16 → f32 for finite values and zero, by integer operations that every instruction set vectorises: shift into
/// place, then one exact multiplication by 2¹¹² repairs the exponent (and normalises subnormals).
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    const TWO_112: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let value = f32::from_bits(magnitude) * TWO_112;
    f32::from_bits(value.to_bits() | (u32::from(bits & 0x8000) << 16))
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

/// Writes little-endian floats, rounded to nearest even.
#[inline(always)]
pub(crate) fn encode_floats(format: Float, x: &[f32], bytes: &mut [u8]) {
    match format {
        Float::F16 => {
            for (x, b) in x.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = f16::from_f32(*x).to_le_bytes();
            }
        }
        Float::Bf16 => {
            for (x, b) in x.iter().zip(bytes.as_chunks_mut::<2>().0) {
                *b = bf16::from_f32(*x).to_le_bytes();
            }
        }
        Float::F32 => {
            for (x, b) in x.iter().zip(bytes.as_chunks_mut::<4>().0) {
                *b = x.to_le_bytes();
            }
        }
    }
}

/// score\[query]\[row] = [`dot`] of the query and the row's floats.
#[inline(always)]
pub(crate) fn score_floats(format: Float, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    score_floats_with(decode_floats, dot, format, dim, bytes, queries, scores);
}

/// [`score_floats`] with a backend's own steps.
#[inline(always)]
pub(crate) fn score_floats_with(
    decode_floats: impl Fn(Float, &[u8], &mut [f32]),
    dot: impl Fn(&[f32], &[f32]) -> f32,
    format: Float,
    dim: usize,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let row_bytes = dim * format.bytes();
    let count = bytes.len() / row_bytes;
    let mut values = [0.0; crate::MAX_DIM];
    for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
        decode_floats(format, row, &mut values[..dim]);
        for (q, query) in queries.iter().enumerate() {
            scores[q * count + r] = dot(query, &values[..dim]);
        }
    }
}

/// acc\[query]\[j] += weight·x\[j], rows ascending.
#[inline(always)]
pub(crate) fn accumulate_floats(format: Float, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    accumulate_floats_with(decode_floats, format, dim, bytes, weights, acc);
}

/// [`accumulate_floats`] with a backend's own step.
#[inline(always)]
pub(crate) fn accumulate_floats_with(
    decode_floats: impl Fn(Float, &[u8], &mut [f32]),
    format: Float,
    dim: usize,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let row_bytes = dim * format.bytes();
    let count = bytes.len() / row_bytes;
    let mut values = [0.0; crate::MAX_DIM];
    for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
        decode_floats(format, row, &mut values[..dim]);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
            for (acc, x) in acc.iter_mut().zip(&values[..dim]) {
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

/// code = clamp(rint((x - zero)/scale) + offset, lowest, highest), ties to even; a zero scale gives code 0 plus
/// nothing: all codes 0.
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
fn score_affine_row(layout: &Affine, row: &[u8], query: &[f32], values: &[f32]) -> f32 {
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
    let row_bytes = layout.row_bytes();
    let count = bytes.len() / row_bytes;
    let mut values = [0.0; crate::MAX_DIM];
    let values = &mut values[..layout.dim];
    for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
        decode_affine_with(&unpack, layout, row, values);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(layout.dim)) {
            for (acc, x) in acc.iter_mut().zip(values.iter()) {
                *acc += weights[r] * x;
            }
        }
    }
}
