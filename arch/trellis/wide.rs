//! Trellis codes for registers: rows of centroids, 16 at a time.
//!
//! A window comes from a word with a byte of the path plane and the byte before, as in `avx2.rs`: a
//! multiplication moves it to the top. Codes are unpacked as in `codes`. Tables of up to 256
//! entries are looked up, and larger ones read one by one.

mod rows128;

use super::layout::{Fit, TrellisCodebook};
use super::search;
use super::search::Floats;
use crate::codes::scalar::{PAGE, finish_sums, quantize_weights_in, weight_limit};
use crate::codes::wide::unpack::{Codes, SPARE, Segment, kind};
use crate::registers::Registers;
use crate::rows::{each_page_mut_of, each_page_of};
use crate::{IntQuery, MAX_DIM, Packing, Rows, codes};

/// Registers of the widest row.
const REGISTERS: usize = MAX_DIM / 16;
/// The largest table that is looked up in registers.
const TABLE: usize = 256;

/// Implements `scalar::viterbi_encode`.
#[inline(always)]
pub(crate) fn viterbi_encode<L: Floats + Registers>(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
) {
    let packing = book.packing();
    search::viterbi_encode::<L>(book, dim, z, scales, bytes, fits, |codes, planes| {
        if let Some(packing) = packing {
            codes::wide::pack::<L>(packing, codes, planes);
        }
    });
}

/// The constants that find the centroids of a row.
struct Lookup<'a, L: Registers> {
    book: &'a TrellisCodebook<'a>,
    dim: usize,
    /// Unpacks codes. Not used if there is only one code.
    codes: Codes<L>,
    /// The centroids, 64 to four registers. Unused if there are more than [`TABLE`].
    table: [[L::V; 4]; TABLE / 64],
    /// [`SPREAD`] in registers: for the first register of a row, and for the others.
    spread: [[L::V; 2]; 2],
    /// [`UP`] in a register.
    up: L::V,
    /// The factor that moves a code above the bits of its window.
    above: L::V,
}

/// For the lower and the upper eight coordinates of a register, the bytes of their words, counted
/// from the byte before the register's own. In the first register of a row, that byte reads as
/// zero.
static SPREAD: [[[u8; 16]; 2]; 2] = {
    let mut spread = [[[0; 16]; 2]; 2];
    let mut i = 0;
    while i < 64 {
        let (first, half, place) = (i / 32, i / 16 % 2, i % 16);
        let byte = (half + place % 2) as u8;
        spread[first][half][place] = if first == 0 && byte == 0 { 0xff } else { byte };
        i += 1;
    }
    spread
};

/// The factors that move the path bit of coordinate i to the top of its word.
static UP: [i16; 8] = [128, 64, 32, 16, 8, 4, 2, 1];

impl<'a, L: Registers> Lookup<'a, L> {
    /// Prepares a codebook and a width.
    #[inline(always)]
    fn new(book: &'a TrellisCodebook<'a>, dim: usize) -> Self {
        // With a single code there are no planes to unpack. The shape of the path plane stands in
        // for them.
        let (packing, start) = match book.packing() {
            Some(packing) => (packing, 2 + TrellisCodebook::path_bytes(dim)),
            None => (Packing::bits(1), 2),
        };
        let mut table = [[L::splat(0); 4]; TABLE / 64];
        if book.centroids().len() <= TABLE {
            let registers = table.as_flattened_mut();
            for (register, centroids) in registers.iter_mut().zip(book.centroids().chunks(16)) {
                let mut bytes = [0; 16];
                for (byte, centroid) in bytes.iter_mut().zip(centroids) {
                    *byte = *centroid as u8;
                }
                *register = L::load(&bytes);
            }
        }
        Self {
            book,
            dim,
            codes: Codes::new(kind::ORDERED, packing, dim, start),
            table,
            spread: SPREAD.each_ref().map(|halves| halves.each_ref().map(|bytes| L::load(bytes))),
            up: L::load_words(&UP),
            above: L::splat_word(2 << book.history()),
        }
    }

    /// Returns the centroids from 16·register on of R rows, as signed bytes.
    #[inline(always)]
    fn centroids<const R: usize>(&self, rows: [&[u8]; R], register: usize) -> [L::V; R] {
        let mut found = [L::splat(0); R];
        let [low, high] = self.spread[usize::from(register > 0)];
        for (found, row) in found.iter_mut().zip(rows) {
            let path = row[1 + 2 * register..].first_chunk().map_or(L::splat(0), |bytes| L::load(bytes));
            let words = |spread| L::multiply_words(L::lookup(path, spread), self.up);
            let windows = L::upper_bytes(words(low), words(high));
            *found = L::shift_bytes_right(windows, 7 - self.book.history());
        }
        let codes = match self.book.levels() {
            1 => [L::splat(0); R],
            _ => self.codes.get::<{ kind::ORDERED }, R>(rows, register),
        };
        let entries = self.book.centroids().len();
        for (found, codes) in found.iter_mut().zip(codes) {
            let windows = *found;
            if entries > TABLE {
                *found = self.read_each(windows, codes);
                continue;
            }
            // An index has eight bits, so that a product of words moves none into the next byte.
            let index = L::or(windows, L::multiply_words(codes, self.above));
            *found = if entries <= 16 {
                L::lookup(self.table[0][0], index)
            } else {
                L::lookup_64(&self.table[0], index)
            };
            for (i, block) in self.table[..entries.div_ceil(64).min(TABLE / 64)].iter().enumerate().skip(1) {
                let index = L::sub_bytes(index, L::splat(64 * i as u8));
                *found = L::or(*found, L::lookup_64(block, index));
            }
        }
        found
    }

    /// Reads centroids one by one, for larger tables.
    #[inline(always)]
    fn read_each(&self, windows: L::V, codes: L::V) -> L::V {
        let (mut window, mut code, mut found) = ([0; 16], [0; 16], [0; 16]);
        L::store(&mut window, windows);
        L::store(&mut code, codes);
        for i in 0..16 {
            let index = usize::from(code[i]) << (self.book.history() + 1) | usize::from(window[i]);
            found[i] = self.book.centroids().get(index).map_or(0, |centroid| *centroid as u8);
        }
        L::load(&found)
    }

    /// Splits rows into those with a margin behind them, and copies of the others.
    #[inline(always)]
    fn segments<'r>(&self, rows: &Rows<'r>, spare: &'r mut [u8; SPARE]) -> [Segment<'r>; 2] {
        self.codes.with_margin(rows, spare)
    }
}

/// Implements `scalar::decode_trellis`.
#[inline(always)]
pub(crate) fn decode_trellis<L: Registers>(book: &TrellisCodebook, row: &[u8], scale: f32, out: &mut [f32]) {
    let lookup = Lookup::<L>::new(book, out.len());
    let mut spare = [0; SPARE];
    let (stride, len, dim) = (row.len(), row.len(), out.len());
    let segments =
        lookup.segments(&Rows { bytes: row, stride, len, dim, scales: None, ahead: &[] }, &mut spare);
    let Some(segment) = segments.iter().find(|segment| segment.count > 0) else { return };
    for (register, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let mut bytes = [0; 16];
        L::store(&mut bytes, lookup.centroids([segment.row(0)], register)[0]);
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = f32::from(byte as i8) * scale;
        }
    }
}

/// Implements `scalar::score_trellis`.
#[inline(always)]
pub(crate) fn score_trellis<L: Registers>(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let Some(Rows { dim, .. }) = pages.first() else { return };
    if rows128::score::<L>(book, *dim, pages, scale, queries, scores) {
        return;
    }
    let (lookup, fours) = (Lookup::<L>::new(book, *dim), queries.len() / 4 * 4);
    for first in (0..fours).step_by(4) {
        score::<L, 2, 4>(&lookup, pages, scale, (queries, first), scores);
    }
    for first in fours..queries.len() {
        score::<L, 4, 1>(&lookup, pages, scale, (queries, first), scores);
    }
}

/// Scores pages with Q of all queries, from `from` on. They share the lookups, and R rows are taken
/// at a time.
#[inline(always)]
fn score<L: Registers, const R: usize, const Q: usize>(
    lookup: &Lookup<L>,
    pages: &[Rows],
    scale: f32,
    (all, from): (&[IntQuery], usize),
    scores: &mut [f32],
) {
    let queries = &all[from..from + Q];
    let mut values = [[L::splat(0); REGISTERS]; Q];
    for (values, query) in values.iter_mut().zip(queries) {
        for (value, words) in values.iter_mut().zip(query.values.as_chunks::<16>().0) {
            *value = L::load(&words.map(|word| word as u8));
        }
    }
    let mut spare = [0; SPARE];
    for (rows, scores) in each_page_mut_of(pages, all.len(), from..from + Q, scores) {
        let (count, mut done) = (rows.count(), 0);
        for segment in &lookup.segments(rows, &mut spare) {
            for first in (0..segment.count).step_by(R) {
                // If fewer than R rows are left, the last one is scored again.
                let mut some: [&[u8]; R] = [&[]; R];
                for (i, row) in some.iter_mut().enumerate() {
                    *row = segment.row((first + i).min(segment.count - 1));
                }
                let mut sums = [[L::splat(0); Q]; R];
                for register in 0..lookup.dim / 16 {
                    for (centroids, sums) in lookup.centroids(some, register).into_iter().zip(&mut sums) {
                        for (sum, values) in sums.iter_mut().zip(&values) {
                            *sum = L::dot_bytes(*sum, centroids, values[register % REGISTERS]);
                        }
                    }
                }
                for (r, sums) in (done + first..).zip(sums).take(R.min(segment.count - first)) {
                    let row_scale = rows.scale(r);
                    for (q, (query, sum)) in queries.iter().zip(sums).enumerate() {
                        scores[q * count + r] = (L::sum(sum) as f32 * (query.scale * scale)) * row_scale;
                    }
                }
            }
            done += segment.count;
        }
    }
}

/// Implements `scalar::accumulate_trellis`.
#[inline(always)]
pub(crate) fn accumulate_trellis<L: Registers>(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let Some(Rows { dim, .. }) = pages.first() else { return };
    if rows128::accumulate::<L>(book, *dim, pages, scale, weights, acc) {
        return;
    }
    let (lookup, queries) = (Lookup::<L>::new(book, *dim), acc.len() / dim);
    let fours = queries / 4 * 4;
    for q in (0..fours).step_by(4) {
        add::<L, 4>(&lookup, pages, scale, (weights, queries, q), &mut acc[q * dim..]);
    }
    for q in fours..queries {
        add::<L, 1>(&lookup, pages, scale, (weights, queries, q), &mut acc[q * dim..]);
    }
}

/// Adds pages to the sums of Q queries from `first` on, whose weights are among those of `queries`.
#[inline(always)]
fn add<L: Registers, const Q: usize>(
    lookup: &Lookup<L>,
    pages: &[Rows],
    scale: f32,
    (weights, queries, first): (&[f32], usize, usize),
    acc: &mut [f32],
) {
    let (dim, limit, mut spare) = (lookup.dim, weight_limit(lookup.book.levels()), [0; SPARE]);
    let (mut products, mut ints) = ([0.0; PAGE], [[0; PAGE]; Q]);
    for (rows, weights) in each_page_of(pages, queries, first..first + Q, weights) {
        let count = rows.count();
        for (p, page) in rows.pages(PAGE).enumerate() {
            let (segments, mut units) = (&lookup.segments(&page, &mut spare), [None; Q]);
            for ((unit, ints), weights) in units.iter_mut().zip(&mut ints).zip(weights.chunks_exact(count)) {
                let weights = &weights[p * PAGE..][..page.count()];
                *unit = quantize_weights_in(&page, weights, limit, &mut products, ints);
            }
            for register in 0..dim / 16 {
                let registers = add_register::<L, Q>(lookup, segments, register, &ints);
                for ((acc, registers), unit) in acc.chunks_exact_mut(dim).zip(registers).zip(units) {
                    let Some(unit) = unit else { continue };
                    let mut sums = [[0; 4]; 4];
                    for (sums, register) in sums.iter_mut().zip(registers) {
                        L::store_sums(sums, register);
                    }
                    finish_sums(sums.as_flattened(), unit * scale, &mut acc[16 * register..][..16]);
                }
            }
        }
    }
}

/// Adds sixteen coordinates of all rows.
#[inline(always)]
fn add_register<L: Registers, const Q: usize>(
    lookup: &Lookup<L>,
    segments: &[Segment; 2],
    register: usize,
    ints: &[[i16; PAGE]; Q],
) -> [[L::V; 4]; Q] {
    let mut registers = [[L::splat(0); 4]; Q];
    let mut done = 0;
    for segment in segments {
        for first in (0..segment.count).step_by(2) {
            // Behind an odd last row comes a row of weight 0.
            let odd = first + 1 == segment.count;
            let rows = [segment.row(first), segment.row(first + usize::from(!odd))];
            let [[a, b], [c, d]] = lookup.centroids(rows, register).map(|bytes| L::extend(bytes));
            for (sums, ints) in registers.iter_mut().zip(ints) {
                let low = u32::from(ints[done + first] as u16);
                let high = if odd { 0 } else { u32::from(ints[done + first + 1] as u16) };
                let weights = L::splat_pair(low | high << 16);
                [sums[0], sums[1]] = L::add_weighted([sums[0], sums[1]], a, c, weights);
                [sums[2], sums[3]] = L::add_weighted([sums[2], sums[3]], b, d, weights);
            }
        }
        done += segment.count;
    }
    registers
}
