//! Rows of codes in plain Rust, for CPUs for which there are no vector kernels. Those are CPUs for
//! which LLVM vectorises (SSE2), and CPUs without vectors.
//!
//! The bits are the specification's, because sums are exact integers. A row becomes `i16` centroids
//! once for all queries that share it, through a table of two codes at a time. What remains are
//! products of `i16`.

use super::layout::Codebook;
use super::scalar::{PAGE, finish_sums, quantize_products, unpack, weight_limit};
use crate::rows::{each_page, each_page_mut};
use crate::{IntQuery, MAX_DIM, Packing, Rows};
use core::array;

/// Queries that share a pass over the rows.
const QUERIES: usize = 8;

/// Coordinates whose sums are kept at a time, and rows that are added to them at a time.
const COLUMNS: usize = 128;
const ROWS: usize = 4;

/// Whether two queries, or two coordinates of one query, share a multiplication in the halves of an
/// `i64`.
///
/// ```text
/// i64       b·2³² + a                              two factors
/// · c       (b·c)·2³² + a·c                        one product, two results
/// ```
///
/// This pays off where a product of 64 bits takes as long as one of 32, and where there are no
/// vectors.
const IN_PAIRS: bool = cfg!(any(
    all(target_arch = "wasm32", not(target_feature = "simd128")),
    all(target_arch = "riscv64", not(target_feature = "v")),
));

/// Implements [`scalar::score_codes`](super::scalar::score_codes).
pub(crate) fn score_codes(book: &Codebook, pages: &[Rows], queries: &[IntQuery], scores: &mut [f32]) {
    for (rows, scores) in each_page_mut(pages, queries.len(), scores) {
        score_page(book, rows, queries, scores);
    }
}

/// Scores a page.
fn score_page(book: &Codebook, rows: &Rows, queries: &[IntQuery], scores: &mut [f32]) {
    let Codebook { packing, centroids, scale } = *book;
    if IN_PAIRS
        && let [query] = queries
        && packing.radix() == 1
    {
        match packing.raw_bits() {
            1 => return score_one::<1>(rows, centroids, scale, query, scores),
            2 => return score_one::<2>(rows, centroids, scale, query, scores),
            3 => return score_one::<3>(rows, centroids, scale, query, scores),
            4 => return score_one::<4>(rows, centroids, scale, query, scores),
            _ => {}
        }
    }
    let book = Book::new(packing, centroids);
    score_rows(rows, scale, queries, scores, |row, out| book.read(rows, row, 0, out));
}

/// Implements [`scalar::accumulate_codes`](super::scalar::accumulate_codes).
pub(crate) fn accumulate_codes(book: &Codebook, pages: &[Rows], weights: &[f32], acc: &mut [f32]) {
    let queries = pages.first().map_or(0, |rows| acc.len() / rows.dim);
    for (rows, weights) in each_page(pages, queries, weights) {
        accumulate_page(book, rows, weights, acc);
    }
}

/// Adds a page.
fn accumulate_page(book: &Codebook, rows: &Rows, weights: &[f32], acc: &mut [f32]) {
    let Codebook { packing, centroids, scale } = *book;
    let book = Book::new(packing, centroids);
    accumulate_rows(rows, weight_limit(centroids.len()), scale, weights, acc, |row, start, out| {
        book.read(rows, row, start, out);
    });
}

/// Scores rows that `read` turns into centroids.
#[inline(always)]
pub(crate) fn score_rows(
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
    read: impl Fn(&[u8], &mut [i16]),
) {
    let (count, dim) = (rows.count(), rows.dim);
    let mut centroids = [0; MAX_DIM];
    let centroids = &mut centroids[..dim];
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut((QUERIES * count).max(1))) {
        let mut pairs = [[0; MAX_DIM]; if IN_PAIRS { QUERIES / 2 } else { 0 }];
        for (pairs, pair) in pairs.iter_mut().zip(queries.chunks(2)) {
            let second = pair.get(1).unwrap_or(&pair[0]);
            for ((pair_value, a), b) in pairs.iter_mut().zip(pair[0].values).zip(second.values) {
                *pair_value = packed(*a, *b);
            }
        }
        for (r, row) in rows.iter().enumerate() {
            read(row, centroids);
            let mut sums = [0; QUERIES];
            if IN_PAIRS {
                for (sums, pairs) in
                    sums.as_chunks_mut().0.iter_mut().zip(&pairs).take(queries.len().div_ceil(2))
                {
                    *sums = dot_pairs(centroids, &pairs[..dim]);
                }
            } else {
                for (sum, query) in sums.iter_mut().zip(queries) {
                    *sum = dot(centroids, query.values);
                }
            }
            let row_scale = rows.scale(r);
            for (q, (query, sum)) in queries.iter().zip(sums).enumerate() {
                scores[q * count + r] = (sum as f32 * (query.scale * scale)) * row_scale;
            }
        }
    }
}

/// Scores one query, whose coordinates share products in pairs: one product of 64 bits is the sum of
/// two products.
///
/// ```text
/// centroids    b·2³² + a                       of coordinates 0 and 1: a, b
/// query        p·2³² + q                       of coordinates 0 and 1: p, q, in reverse order
/// product      bp·2⁶⁴ │ (ap + bq)·2³² │ aq     bp falls out of 64 bits; `parted` takes aq away
/// ```
fn score_one<const BITS: usize>(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let mut pairs = [0; 256];
    for (pairs, second) in pairs.chunks_exact_mut(1 << BITS).zip(centroids) {
        for (pair, first) in pairs.iter_mut().zip(centroids) {
            *pair = packed(*first, *second);
        }
    }
    // The query's pairs, with zeros behind the last.
    let mut crossed = [[0; 4]; MAX_DIM / 8];
    let crossed = &mut crossed[..rows.dim.div_ceil(8)];
    for (crossed, pair) in crossed.as_flattened_mut().iter_mut().zip(query.values.chunks(2)) {
        *crossed = packed(pair.get(1).copied().unwrap_or(0), pair[0]);
    }
    let add = |sum: i64, codes: u64, crossed: &[i64; 4]| {
        crossed.iter().enumerate().fold(sum, |sum, (i, crossed)| {
            let pair: i64 = pairs[(codes >> (2 * BITS * i)) as usize & ((1 << (2 * BITS)) - 1)];
            sum.wrapping_add(pair.wrapping_mul(*crossed))
        })
    };
    for ((r, row), score) in rows.iter().enumerate().zip(scores) {
        let (codes, last) = row[2..].as_chunks::<BITS>();
        let sum = codes.iter().zip(&*crossed).fold(0, |sum, (codes, crossed)| add(sum, word(codes), crossed));
        let sum = crossed.get(codes.len()).map_or(sum, |crossed| add(sum, word(last), crossed));
        *score = (parted(sum)[1] as f32 * (query.scale * scale)) * rows.scale(r);
    }
}

/// Returns Σ aᵢ·bᵢ, which is exact.
#[inline(always)]
fn dot(a: &[i16], b: &[i16]) -> i32 {
    a.iter().zip(b).fold(0i32, |sum, (a, b)| sum.wrapping_add(i32::from(*a) * i32::from(*b)))
}

/// Packs two integers into one. Sums of its products with other integers hold both sums, if each
/// fits an `i32`.
#[inline(always)]
fn packed(low: i16, high: i16) -> i64 {
    (i64::from(high) << 32) + i64::from(low)
}

/// Splits a packed sum into its two sums.
#[inline(always)]
fn parted(sum: i64) -> [i32; 2] {
    let low = sum as i32;
    [low, (sum.wrapping_sub(i64::from(low)) >> 32) as i32]
}

/// Returns both sums Σ aᵢ·bᵢ of packed factors. They are exact.
#[inline(always)]
fn dot_pairs(a: &[i16], pairs: &[i64]) -> [i32; 2] {
    parted(
        a.iter()
            .zip(pairs)
            .fold(0i64, |sum, (a, pair_value)| sum.wrapping_add(i64::from(*a).wrapping_mul(*pair_value))),
    )
}

/// Adds weighted rows. `read` turns the coordinates of a row from a multiple of [`COLUMNS`] on into
/// centroids.
#[inline(always)]
pub(crate) fn accumulate_rows(
    rows: &Rows,
    limit: i16,
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
    read: impl Fn(&[u8], usize, &mut [i16]),
) {
    let (count, dim) = (rows.count(), rows.dim);
    let batches = weights.chunks((QUERIES * count).max(1)).zip(acc.chunks_mut(QUERIES * dim));
    for (weights, acc) in batches {
        for (number, page) in rows.pages(PAGE).enumerate() {
            let mut ints = [[0; PAGE]; QUERIES];
            let mut units = [None; QUERIES];
            let mut scales = [0.0; PAGE];
            page.read_scales(0, &mut scales);
            for (q, weights) in weights.chunks_exact(count).enumerate() {
                let weights = &weights[number * PAGE..][..page.count()];
                let mut products = [0.0; PAGE];
                for ((product, weight), scale) in products.iter_mut().zip(weights).zip(scales) {
                    *product = weight * scale;
                }
                units[q] = quantize_products(&products[..weights.len()], limit, &mut ints[q]);
            }
            let queries = acc.len() / dim;
            for start in (0..dim).step_by(COLUMNS) {
                let width = COLUMNS.min(dim - start);
                let mut sums = [[0i32; COLUMNS]; if IN_PAIRS { 0 } else { QUERIES }];
                let mut pairs = [[0i64; COLUMNS]; if IN_PAIRS { QUERIES / 2 } else { 0 }];
                let mut centroids = [[0; COLUMNS]; ROWS];
                for block in 0..page.count().div_ceil(ROWS) {
                    for (centroids, r) in centroids.iter_mut().zip(ROWS * block..page.count()) {
                        read(page.row(r), start, &mut centroids[..width]);
                    }
                    // Rows behind the last one have a weight of 0.
                    let weights = |q: usize| -> &[i16; ROWS] { &ints[q].as_chunks().0[block] };
                    for (q, sums) in sums.iter_mut().enumerate().take(queries) {
                        add_rows(weights(q), &centroids, &mut sums[..width]);
                    }
                    for (pair, sums) in pairs.iter_mut().enumerate().take(queries.div_ceil(2)) {
                        let weights =
                            array::from_fn(|r| packed(weights(2 * pair)[r], weights(2 * pair + 1)[r]));
                        add_pairs(weights, &centroids, &mut sums[..width]);
                    }
                }
                for (q, acc) in acc.chunks_exact_mut(dim).enumerate() {
                    let Some(unit) = units[q] else { continue };
                    let parts: [i32; COLUMNS];
                    let sums = if IN_PAIRS {
                        parts = pairs[q / 2].map(|pair_value| parted(pair_value)[q % 2]);
                        &parts
                    } else {
                        &sums[q]
                    };
                    finish_sums(&sums[..width], unit * scale, &mut acc[start..start + width]);
                }
            }
        }
    }
}

/// Adds Σ weight·centroids of four rows to the sums.
#[inline(always)]
fn add_rows(weights: &[i16; ROWS], centroids: &[[i16; COLUMNS]; ROWS], sums: &mut [i32]) {
    let [a, b, c, d] = centroids;
    let [wa, wb, wc, wd] = weights.map(i32::from);
    for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let (a, b, c, d) = (i32::from(*a), i32::from(*b), i32::from(*c), i32::from(*d));
        *sum = sum.wrapping_add(a * wa + b * wb + (c * wc + d * wd));
    }
}

/// Adds Σ weight·centroids of four rows for two queries, whose weights are packed.
#[inline(always)]
fn add_pairs([wa, wb, wc, wd]: [i64; ROWS], centroids: &[[i16; COLUMNS]; ROWS], sums: &mut [i64]) {
    let [a, b, c, d] = centroids;
    let times = |centroid: &i16, weight: i64| i64::from(*centroid).wrapping_mul(weight);
    for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let (ab, cd) = (times(a, wa).wrapping_add(times(b, wb)), times(c, wc).wrapping_add(times(d, wd)));
        *sum = sum.wrapping_add(ab.wrapping_add(cd));
    }
}

/// A codebook as a table of neighbouring codes, and how codes are packed.
struct Book<'a> {
    packing: Packing,
    centroids: &'a [i16],
    /// The centroids of two codes of up to four bits, for each value that both have together.
    pairs: [[i16; 2]; 256],
}

impl<'a> Book<'a> {
    /// Builds the table of pairs, if codes have up to four bits.
    fn new(packing: Packing, centroids: &'a [i16]) -> Self {
        let mut pairs = [[0; 2]; 256];
        if packing.radix() == 1 && packing.raw_bits() <= 4 {
            for (pairs, second) in pairs.chunks_exact_mut(centroids.len()).zip(centroids) {
                for (pair, first) in pairs.iter_mut().zip(centroids) {
                    *pair = [*first, *second];
                }
            }
        }
        Self { packing, centroids, pairs }
    }

    /// Reads the centroids of a row from coordinate `start` on, a multiple of eight.
    fn read(&self, rows: &Rows, row: &[u8], start: usize, out: &mut [i16]) {
        let planes = &row[2..];
        match (self.packing.radix(), self.packing.raw_bits()) {
            (1, 1) => self.read_pairs::<1>(planes, start, out),
            (1, 2) => self.read_pairs::<2>(planes, start, out),
            (1, 3) => self.read_pairs::<3>(planes, start, out),
            (1, 4) => self.read_pairs::<4>(planes, start, out),
            (1, 5) => self.read_codes::<5>(planes, start, out),
            (1, 6) => self.read_codes::<6>(planes, start, out),
            (1, 7) => self.read_codes::<7>(planes, start, out),
            (1, 8) => self.read_codes::<8>(planes, start, out),
            _ => {
                let mut codes = [0; MAX_DIM];
                unpack(self.packing, planes, &mut codes[..rows.dim]);
                for (out, code) in out.iter_mut().zip(&codes[start..]) {
                    *out = self.centroids[usize::from(*code)];
                }
            }
        }
    }

    /// Reads centroids through the table of pairs.
    #[inline(always)]
    fn read_pairs<const BITS: usize>(&self, planes: &[u8], start: usize, out: &mut [i16]) {
        eights::<BITS>(planes, start, out, |codes, out| {
            for (i, pair) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *pair = self.pairs[(codes >> (2 * BITS * i)) as usize & ((1 << (2 * BITS)) - 1)];
            }
        });
    }

    /// Reads centroids one by one.
    #[inline(always)]
    fn read_codes<const BITS: usize>(&self, planes: &[u8], start: usize, out: &mut [i16]) {
        let Some(centroids) = self.centroids.get(..1 << BITS) else { return };
        eights::<BITS>(planes, start, out, |codes, out| {
            for (i, out) in out.iter_mut().enumerate() {
                *out = centroids[(codes >> (BITS * i)) as usize & ((1 << BITS) - 1)];
            }
        });
    }
}

/// Passes the codes of eight coordinates at a time to `read`, the first in the lowest bits. Eight
/// codes of `BITS` bits are exactly `BITS` bytes. `start` is a multiple of eight.
#[inline(always)]
pub(crate) fn eights<const BITS: usize>(
    plane: &[u8],
    start: usize,
    out: &mut [i16],
    mut read: impl FnMut(u64, &mut [i16; 8]),
) {
    let (outs, rest) = out.as_chunks_mut::<8>();
    let (codes, last) = plane[start / 8 * BITS..].as_chunks::<BITS>();
    for (out, codes) in outs.iter_mut().zip(codes) {
        read(word(codes), out);
    }
    if !rest.is_empty() {
        let last = codes.get(outs.len()).map_or(last, |codes| codes);
        let mut eight = [0; 8];
        read(word(last), &mut eight);
        rest.copy_from_slice(&eight[..rest.len()]);
    }
}

/// Reads up to eight bytes as a little-endian integer.
#[inline(always)]
pub(crate) fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
