//! The specification of rows of codes, and of how codes become bits.

use super::layout::Codebook;
use crate::floats::rint_i16;
use crate::rows::{each_page, each_page_mut};
use crate::vectors::scalar::max_abs;
use crate::{IntQuery, Packing, Rows};

/// Quantises: code = number of thresholds ≤ x·scale. Thresholds ascend, so a value on one gets the
/// upper code.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    for (x, code) in x.iter().zip(codes) {
        let y = x * scale;
        *code = thresholds.iter().filter(|&&t| y >= t).count() as u8;
    }
}

/// Looks up: out = scale · centroid[code]. Codes beyond the codebook give its last centroid.
#[inline(always)]
pub(crate) fn lookup(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    for (code, out) in codes.iter().zip(out) {
        *out = centroid(centroids, *code) as f32 * scale;
    }
}

/// Looks up packed codes of 6 bits. Three bytes are four codes, which are read together.
#[inline(always)]
pub(crate) fn lookup_sixes(bytes: &[u8], centroids: &[i16; 64], scale: f32, out: &mut [f32]) {
    let value = |codes: u32, i: usize| f32::from(centroids[(codes >> (6 * i)) as usize % 64]) * scale;
    let (fours, rest) = out.as_chunks_mut();
    // Three codes have three bytes too.
    let last = bytes.get(3 * fours.len()..).unwrap_or_default();
    for (out, [a, b, c]) in fours.iter_mut().zip(bytes.as_chunks().0) {
        let codes = u32::from_le_bytes([*a, *b, *c, 0]);
        *out = [value(codes, 0), value(codes, 1), value(codes, 2), value(codes, 3)];
    }
    let codes = last.iter().rev().fold(0, |codes, byte| codes << 8 | u32::from(*byte));
    rest.iter_mut().enumerate().for_each(|(i, out)| *out = value(codes, i));
}

/// Returns the centroid of a code, the last one for codes beyond the codebook.
#[inline(always)]
pub(crate) fn centroid(centroids: &[i16], code: u8) -> i16 {
    if crate::CHECKED {
        return centroids[usize::from(code).min(centroids.len() - 1)];
    }
    centroids.get(usize::from(code)).or(centroids.last()).copied().unwrap_or(0)
}

/// Writes the raw plane, then the digit plane. See [`Packing`].
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

/// Writes the digit plane. The first digit of a group is least significant.
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

/// Reads the codes that [`pack`] wrote. Any bytes are allowed. A group beyond its range gives
/// digits modulo the radix.
#[cfg_attr(target_os = "none", inline(never))] // one copy for all kernels
#[cfg_attr(not(target_os = "none"), inline(always))]
pub(crate) fn unpack(packing: Packing, bytes: &[u8], codes: &mut [u8]) {
    let (raw, digits) = bytes.split_at_checked(packing.raw_bytes(codes.len())).unwrap_or_default();
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

/// Writes a little-endian bit stream, least significant bit first.
pub(crate) struct BitWriter<'a> {
    bytes: core::slice::IterMut<'a, u8>,
    buffer: u32,
    filled: u32,
}

impl<'a> BitWriter<'a> {
    /// Begins a stream.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes: bytes.iter_mut(), buffer: 0, filled: 0 }
    }

    /// Appends the low `bits` bits of `value`. Its other bits must be zero.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: u32, bits: u32) {
        self.buffer |= value << self.filled;
        self.filled += bits;
        while self.filled >= 8 {
            self.flush_byte();
        }
    }

    /// Writes the lowest byte of the buffer.
    #[inline(always)]
    fn flush_byte(&mut self) {
        if let Some(byte) = self.bytes.next() {
            *byte = self.buffer as u8;
        }
        self.buffer >>= 8;
        self.filled = self.filled.saturating_sub(8);
    }

    /// Writes the last, partly filled byte. Its unused bits are zero.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        if self.filled > 0 {
            self.flush_byte();
        }
    }
}

/// Reads a little-endian bit stream, least significant bit first. Zeros follow the last byte.
pub(crate) struct BitReader<'a> {
    bytes: core::slice::Iter<'a, u8>,
    buffer: u32,
    filled: u32,
}

impl<'a> BitReader<'a> {
    /// Begins to read.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter(), buffer: 0, filled: 0 }
    }

    /// Reads the next `bits` bits.
    #[inline(always)]
    pub(crate) fn take(&mut self, bits: u32) -> u32 {
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

/// Scores rows, laid out \[query]\[row]: (f32(Σ q·c) · (query scale · table scale)) · row scale.
/// The sum is an exact integer.
#[inline(always)]
pub(crate) fn score_codes(book: &Codebook, pages: &[Rows], queries: &[IntQuery], scores: &mut [f32]) {
    for (rows, scores) in each_page_mut(pages, queries.len(), scores) {
        score_page(book, rows, queries, scores);
    }
}

/// Scores a page.
#[inline(always)]
fn score_page(book: &Codebook, rows: &Rows, queries: &[IntQuery], scores: &mut [f32]) {
    let Codebook { packing, centroids, scale } = *book;
    let count = rows.count();
    let mut codes = [0; crate::MAX_DIM];
    let codes = &mut codes[..rows.dim.min(crate::MAX_DIM)];
    for (r, row) in rows.iter().enumerate() {
        unpack(packing, row.get(2..).unwrap_or_default(), codes);
        let row_scale = rows.scale(r);
        for (q, query) in queries.iter().enumerate() {
            let mut sum = 0i32;
            for (code, value) in codes.iter().zip(query.values) {
                sum += i32::from(*value) * i32::from(centroid(centroids, *code));
            }
            if let Some(score) = scores.get_mut(q * count + r) {
                *score = (sum as f32 * (query.scale * scale)) * row_scale;
            }
        }
    }
}

/// Rows that share one set of integer weights in [`accumulate_codes`].
pub(crate) const PAGE: usize = 256;

/// 2⁻¹⁰⁰. A run of rows whose products of weight and row scale are all below this adds nothing.
pub(crate) const SMALLEST_WEIGHT: f32 = 7.888_609e-31;

/// Returns the largest integer weight for a codebook. With it, `PAGE` products of weight and
/// centroid fit an `i32`.
#[inline(always)]
pub(crate) fn weight_limit(levels: usize) -> i16 {
    if levels <= 16 { 32767 } else { 4095 }
}

/// Adds Σ weight·row scale·table scale·centroid to `acc`, in integers.
///
/// For each run of [`PAGE`] rows, the products weight·row scale are quantised against the largest
/// of them. Sums over rows are then exact in `i32`. One `f32` multiplication and addition a
/// coordinate ends the run. A run whose largest product is below 2⁻¹⁰⁰ adds nothing.
#[inline(always)]
pub(crate) fn accumulate_codes(book: &Codebook, pages: &[Rows], weights: &[f32], acc: &mut [f32]) {
    let queries = pages.first().map_or(0, |rows| acc.len() / rows.dim);
    for (rows, weights) in each_page(pages, queries, weights) {
        accumulate_page(book, rows, weights, acc);
    }
}

/// Adds a page.
#[inline(always)]
fn accumulate_page(book: &Codebook, rows: &Rows, weights: &[f32], acc: &mut [f32]) {
    let Codebook { packing, centroids, scale } = *book;
    let (count, dim) = (rows.count(), rows.dim.min(crate::MAX_DIM));
    let mut codes = [0; crate::MAX_DIM];
    for (weights, acc) in weights.chunks_exact(count.max(1)).zip(acc.chunks_exact_mut(dim.max(1))) {
        for (page, weights) in rows.pages(PAGE).zip(weights.chunks(PAGE)) {
            let mut ints = [0; PAGE];
            let Some(unit) = quantize_weights(&page, weights, weight_limit(centroids.len()), &mut ints)
            else {
                continue;
            };
            let mut sums = [0i32; crate::MAX_DIM];
            for (row, weight) in page.iter().zip(ints) {
                unpack(packing, row.get(2..).unwrap_or_default(), &mut codes[..dim]);
                for (sum, code) in sums.iter_mut().zip(&codes[..dim]) {
                    *sum += i32::from(weight) * i32::from(centroid(centroids, *code));
                }
            }
            finish_sums(&sums[..dim], unit * scale, acc);
        }
    }
}

/// Quantises the weights of a run of rows. Returns the value of one integer step, or `None` if the
/// run adds nothing.
#[inline(always)]
pub(crate) fn quantize_weights(
    page: &Rows,
    weights: &[f32],
    limit: i16,
    ints: &mut [i16; PAGE],
) -> Option<f32> {
    quantize_weights_in(page, weights, limit, &mut [0.0; PAGE], ints)
}

/// Does the same in memory that the caller has set to anything: zeros would cost as much as some
/// rows.
#[inline(always)]
pub(crate) fn quantize_weights_in(
    page: &Rows,
    weights: &[f32],
    limit: i16,
    products: &mut [f32; PAGE],
    ints: &mut [i16; PAGE],
) -> Option<f32> {
    let products = products.get_mut(..weights.len())?;
    if let Some(scales) = page.scales {
        for ((product, weight), scale) in products.iter_mut().zip(weights).zip(scales) {
            *product = scale * weight;
        }
    } else {
        let mut scales = [0.0; PAGE];
        page.read_scales(0, &mut scales);
        for ((product, weight), scale) in products.iter_mut().zip(weights).zip(scales) {
            *product = scale * weight;
        }
    }
    quantize_products(products, limit, ints)
}

/// Quantises products: ints = rint(product · limit/max|product|). Returns the value of one integer
/// step.
#[inline(always)]
pub(crate) fn quantize_products(products: &[f32], limit: i16, ints: &mut [i16]) -> Option<f32> {
    let max = max_abs(products);
    // Products are finite: callers bound weights by MAX_WEIGHT, and row scales are finite.
    if max < SMALLEST_WEIGHT {
        return None;
    }
    let factor = f32::from(limit) / max;
    for (int, product) in ints.iter_mut().zip(products) {
        *int = rint_i16(product * factor);
    }
    Some(max / f32::from(limit))
}

/// Adds integer sums, times `factor`, to `acc`.
#[inline(always)]
pub(crate) fn finish_sums(sums: &[i32], factor: f32, acc: &mut [f32]) {
    for (acc, sum) in acc.iter_mut().zip(sums) {
        *acc += *sum as f32 * factor;
    }
}
