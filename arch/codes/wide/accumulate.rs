//! Weighted sums of looked-up centroids, for registers.
//!
//! Words of two rows alternate in a register, so that one instruction multiplies both with their
//! weights and adds the products:
//!
//! ```text
//! row a    a₀ a₁ a₂ …
//! row b    b₀ b₁ b₂ …         ─►   a₀ b₀ │ a₁ b₁ │ a₂ b₂ …   ·   wa wb │ wa wb │ …
//! ```

use super::unpack::{Bytes, Codes, MAX_REGISTERS, SPARE, Segment, Words, kind};
use super::woven;
use crate::Rows;
use crate::codes::layout::Codebook;
use crate::codes::scalar::{PAGE, finish_sums, quantize_products, weight_limit};
use crate::registers::Integers;

/// Implements `scalar::accumulate_codes`, with a separate function for each kind of codes.
#[inline(always)]
pub(crate) fn accumulate_codes<L: Integers>(book: &Codebook, rows: &Rows, weights: &[f32], acc: &mut [f32]) {
    let Codebook { packing, centroids, .. } = *book;
    if rows.bytes.is_empty() {
        return;
    }
    if woven::accumulate::<L>(book, rows, weights, acc) {
        return;
    }
    if centroids.len() > 16 {
        return accumulate_kind::<L, { kind::WORDS }>(book, rows, weights, acc);
    }
    match (packing.radix(), packing.raw_bits()) {
        (1, 1) => accumulate_kind::<L, 1>(book, rows, weights, acc),
        (1, 2) => accumulate_kind::<L, 2>(book, rows, weights, acc),
        (1, 4) => accumulate_kind::<L, 4>(book, rows, weights, acc),
        _ => accumulate_kind::<L, { kind::ORDERED }>(book, rows, weights, acc),
    }
}

#[inline(always)]
fn accumulate_kind<L: Integers, const KIND: u8>(
    book: &Codebook,
    rows: &Rows,
    weights: &[f32],
    acc: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    let pass = Pass::<L, KIND> {
        codes: Codes::new(KIND, packing, rows.dim, 2),
        bytes: Bytes::new(KIND, centroids, 0),
        words: Words::new(if KIND == kind::WORDS { centroids } else { &[] }),
        levels: centroids.len(),
        scale,
    };
    let (count, dim) = (rows.count(), rows.dim);
    let mut spare = [0; SPARE];
    for (p, page) in rows.pages(PAGE).enumerate() {
        let segments = pass.codes.with_margin(&page, &mut spare);
        let mut scales = [0.0; PAGE];
        page.read_scales(0, &mut scales);
        let weights = |q: usize| &weights[q * count + p * PAGE..][..page.count()];
        let queries = acc.len() / dim;
        let mut q = 0;
        while q < queries {
            // Queries that share the lookups.
            let (each, many) = match queries - q {
                1 => (1, 1),
                2..4 => (2, 2),
                many => (4, many / 4 * 4),
            };
            let (range, acc) = (q..q + many, &mut acc[q * dim..(q + many) * dim]);
            match each {
                4 => pass.add::<4>(&page, &scales, &segments, range.map(weights), acc),
                2 => pass.add::<2>(&page, &scales, &segments, range.map(weights), acc),
                _ => pass.add::<1>(&page, &scales, &segments, range.map(weights), acc),
            }
            q += many;
        }
    }
}

struct Pass<L: Integers, const KIND: u8> {
    codes: Codes<L>,
    bytes: Bytes<L>,
    words: Words<L>,
    levels: usize,
    scale: f32,
}

/// The weights of two rows in a dword, ready to be splat. Behind an odd last row comes a row of
/// weight 0.
type Pairs = [u32; PAGE / 2];

/// Sets the pairs of these weights. Pairs behind them keep their values.
#[inline(always)]
fn set_pairs(weights: &[i16], pairs: &mut Pairs) {
    let (twos, last) = weights.as_chunks();
    for (pair, [low, high]) in pairs.iter_mut().zip(twos) {
        *pair = u32::from(*low as u16) | u32::from(*high as u16) << 16;
    }
    if let [low] = last {
        pairs[twos.len()] = u32::from(*low as u16);
    }
}

impl<L: Integers, const KIND: u8> Pass<L, KIND> {
    /// Adds a page to the sums of the queries, Q at a time.
    #[inline(always)]
    fn add<'w, const Q: usize>(
        &self,
        rows: &Rows,
        scales: &[f32; PAGE],
        segments: &[Segment; 2],
        mut weights: impl Iterator<Item = &'w [f32]>,
        acc: &mut [f32],
    ) {
        let dim = rows.dim;
        // Created once for all pages: setting it to zero takes as long as adding some rows.
        let mut pairs = [[[0; PAGE / 2]; 2]; Q];
        let mut sums = [[0i32; 16 * MAX_REGISTERS]; Q];
        let (mut products, mut ints) = ([0.0; PAGE], [0; PAGE]);
        for acc in acc.chunks_exact_mut(Q * dim) {
            let mut units = [None; Q];
            // Weights come last in the zip, so that an extra query is not consumed.
            for ((pairs, unit), weights) in pairs.iter_mut().zip(&mut units).zip(&mut weights) {
                for ((product, weight), scale) in products.iter_mut().zip(weights).zip(scales) {
                    *product = weight * scale;
                }
                *unit = quantize_products(&products[..weights.len()], weight_limit(self.levels), &mut ints);
                if unit.is_some() {
                    let mut rest = &ints[..];
                    for (segment, pairs) in segments.iter().zip(pairs) {
                        set_pairs(&rest[..segment.count], pairs);
                        rest = &rest[segment.count..];
                    }
                }
            }
            for register in 0..self.codes.registers() {
                if L::LANES > 1 {
                    // Prefetch what comes next, a part with each register.
                    let each = rows.count().div_ceil(self.codes.registers());
                    rows.prefetch_some(register * each, each);
                }
                let mut registers = [[L::splat(0); 4]; Q];
                for (i, segment) in segments.iter().enumerate() {
                    let pairs = pairs.each_ref().map(|pairs| &pairs[i]);
                    self.add_segment(segment, register, pairs, &mut registers);
                }
                let first = self.codes.first_coordinate(register);
                for (sums, registers) in sums.iter_mut().zip(registers) {
                    let mut lanes = [[0; 4]; 4];
                    for (lanes, register) in lanes.iter_mut().zip(registers) {
                        *lanes = L::add_lanes(register);
                    }
                    let ours = sums[first..].iter_mut().step_by(kind::stride(KIND));
                    for (sum, lane) in ours.zip(lanes.as_flattened()) {
                        *sum = *lane;
                    }
                }
            }
            for ((acc, sums), unit) in acc.chunks_exact_mut(dim).zip(&sums).zip(units) {
                if let Some(unit) = unit {
                    finish_sums(&sums[..dim], unit * self.scale, acc);
                }
            }
        }
    }

    /// Adds one register of coordinates of all rows, so that the sums stay in registers.
    #[inline(always)]
    fn add_segment<const Q: usize>(
        &self,
        segment: &Segment,
        register: usize,
        pairs: [&Pairs; Q],
        sums: &mut [[L::V; 4]; Q],
    ) {
        let mut registers = *sums;
        let (unit, k) = (register / kind::stride(KIND), register % kind::stride(KIND));
        for first in (0..segment.count).step_by(2 * L::LANES) {
            let mut codes = self.codes.unit::<KIND, 2>(&segment.group(first), unit);
            for codes in &mut codes {
                *codes = Codes::<L>::indices::<KIND>(*codes, k / kind::tables(KIND));
            }
            if KIND != kind::WORDS && L::LANES > 1 {
                // Interleave the bytes of two rows before looking them up: fewer shuffles than
                // interleaving words.
                let [low, high] = L::interleave(codes[0], codes[1]);
                let table = k % kind::tables(KIND);
                let [[a, b], [c, d]] = [self.bytes.words(table, low), self.bytes.words(table, high)];
                for (sums, pairs) in registers.iter_mut().zip(pairs) {
                    let weights = L::splat_pairs([pairs[first / 2], pairs[first / 2 + L::LANES - 1]]);
                    sums[0] = L::dot_words(sums[0], a, weights);
                    sums[1] = L::dot_words(sums[1], b, weights);
                    sums[2] = L::dot_words(sums[2], c, weights);
                    sums[3] = L::dot_words(sums[3], d, weights);
                }
                continue;
            }
            let [[a, b], [c, d]] = if KIND == kind::WORDS {
                self.words.lookup(codes)
            } else {
                let table = k % kind::tables(KIND);
                [self.bytes.words(table, codes[0]), self.bytes.words(table, codes[1])]
            };
            for (sums, pairs) in registers.iter_mut().zip(pairs) {
                let weights = L::splat_pairs([pairs[first / 2], pairs[first / 2 + L::LANES - 1]]);
                [sums[0], sums[1]] = L::add_weighted([sums[0], sums[1]], a, c, weights);
                [sums[2], sums[3]] = L::add_weighted([sums[2], sums[3]], b, d, weights);
            }
        }
        *sums = registers;
    }
}
