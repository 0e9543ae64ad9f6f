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
use super::woven::{self, Weights};
use crate::Rows;
use crate::codes::layout::Codebook;
use crate::codes::scalar::{PAGE, finish_sums, weight_limit};
use crate::registers::Integers;
use crate::rows::{each_page_of, give_strided, take_strided};

/// Implements `scalar::accumulate_codes`, with a separate function for each kind of codes.
#[inline(always)]
pub(crate) fn accumulate_codes<L: Integers>(
    book: &Codebook,
    pages: &[Rows],
    weights: &[f32],
    acc: &mut [f32],
) {
    let queries = pages.first().map_or(0, |rows| acc.len() / rows.dim);
    accumulate_some::<L>(book, pages, weights, (queries, 0), acc);
}

/// Adds rows for the queries from `first` on. `acc` has these alone, and weights are those of
/// `queries`.
#[inline(always)]
pub(crate) fn accumulate_some<L: Integers>(
    book: &Codebook,
    pages: &[Rows],
    weights: &[f32],
    (queries, first): (usize, usize),
    acc: &mut [f32],
) {
    let Codebook { packing, centroids, .. } = *book;
    let Some(Rows { dim, .. }) = pages.first().filter(|_| first < queries) else { return };
    let weights = (weights, queries, first);
    if woven::accumulate::<L>(book, *dim, pages, weights, acc) {
        return;
    }
    if centroids.len() > 16 {
        return accumulate_kind::<L, { kind::WORDS }>(book, *dim, pages, weights, acc);
    }
    match (packing.radix(), packing.raw_bits()) {
        (1, 1) => accumulate_kind::<L, 1>(book, *dim, pages, weights, acc),
        (1, 2) => accumulate_kind::<L, 2>(book, *dim, pages, weights, acc),
        (1, 4) => accumulate_kind::<L, 4>(book, *dim, pages, weights, acc),
        _ => accumulate_kind::<L, { kind::ORDERED }>(book, *dim, pages, weights, acc),
    }
}

#[inline(always)]
fn accumulate_kind<L: Integers, const KIND: u8>(
    book: &Codebook,
    dim: usize,
    pages: &[Rows],
    (weights, queries, first): Weights,
    acc: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    let pass = Pass::<L, KIND> {
        codes: Codes::new(KIND, packing, dim, 2),
        bytes: Bytes::new(KIND, centroids, 0),
        words: Words::new(if KIND == kind::WORDS { centroids } else { &[] }),
        levels: centroids.len(),
        scale,
    };
    let (mut q, mut rest) = (first, acc);
    while q < queries {
        // Queries that share the lookups.
        let each = match queries - q {
            1 => 1,
            2..4 => 2,
            _ => 4,
        };
        let (acc, others) = core::mem::take(&mut rest).split_at_mut(each * dim);
        match each {
            4 => pass.add::<4>(pages, weights, (queries, q), acc),
            2 => pass.add::<2>(pages, weights, (queries, q), acc),
            _ => pass.add::<1>(pages, weights, (queries, q), acc),
        }
        (q, rest) = (q + each, others);
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

/// Sets the pairs of these weights. Behind them is a pair of zeros, if there is a place for it.
#[inline(always)]
fn set_pairs(weights: &[i16], pairs: &mut Pairs) {
    let (twos, last) = weights.as_chunks();
    for (pair, [low, high]) in pairs.iter_mut().zip(twos) {
        *pair = u32::from(*low as u16) | u32::from(*high as u16) << 16;
    }
    let mut behind = pairs.iter_mut().skip(twos.len());
    if let ([low], Some(pair)) = (last, behind.next()) {
        *pair = u32::from(*low as u16);
        behind.next().into_iter().for_each(|pair| *pair = 0);
    } else if let Some(pair) = pairs.get_mut(twos.len()) {
        *pair = 0;
    }
}

impl<L: Integers, const KIND: u8> Pass<L, KIND> {
    /// Adds pages to the sums of Q queries from `first` on, whose weights are among those of
    /// `queries`. Sums of pages are in the order of the registers until the last page.
    #[inline(always)]
    fn add<const Q: usize>(
        &self,
        pages: &[Rows],
        weights: &[f32],
        (queries, first): (usize, usize),
        acc: &mut [f32],
    ) {
        let registers = self.codes.registers().min(MAX_REGISTERS);
        // Created once for all pages: setting it to zero takes as long as adding some rows.
        let mut pairs = [[[0; PAGE / 2]; 2]; Q];
        let (mut products, mut ints, mut spare) = ([0.0; PAGE], [0; PAGE], [0; SPARE]);
        let mut sums = [[[0.0; 16]; MAX_REGISTERS]; Q];
        let dim = acc.len() / Q;
        for (sums, acc) in sums.iter_mut().zip(acc.chunks_exact(dim)) {
            take_strided(kind::stride(KIND), 16, acc, sums[..registers].as_flattened_mut());
        }
        for (rows, weights) in each_page_of(pages, queries, first..first + Q, weights) {
            let count = rows.count();
            for (p, page) in rows.pages(PAGE).enumerate() {
                let segments = self.codes.with_margin(&page, &mut spare);
                let (mut units, limit) = ([None; Q], weight_limit(self.levels));
                for ((pairs, unit), weights) in
                    pairs.iter_mut().zip(&mut units).zip(weights.chunks_exact(count))
                {
                    let weights = &weights[p * PAGE..][..page.count()];
                    *unit = L::quantize_weights(&page, weights, limit, &mut products, &mut ints);
                    if unit.is_some() {
                        let mut rest = &ints[..];
                        for (segment, pairs) in segments.iter().zip(pairs) {
                            set_pairs(&rest[..segment.count], pairs);
                            rest = &rest[segment.count..];
                        }
                    }
                }
                if units.iter().all(Option::is_none) {
                    continue;
                }
                for register in 0..registers {
                    if L::LANES > 1 {
                        // Prefetch what comes next, a part with each register.
                        let each = page.count().div_ceil(registers);
                        page.prefetch_some(register * each, each);
                    }
                    let mut added = [[L::splat(0); 4]; Q];
                    for (i, segment) in segments.iter().enumerate() {
                        let pairs = pairs.each_ref().map(|pairs| &pairs[i]);
                        self.add_segment(segment, register, pairs, &mut added);
                    }
                    for ((sums, added), unit) in sums.iter_mut().zip(added).zip(units) {
                        let mut lanes = [[0; 4]; 4];
                        for (lanes, added) in lanes.iter_mut().zip(added) {
                            *lanes = L::add_lanes(added);
                        }
                        if let Some(unit) = unit {
                            finish_sums(lanes.as_flattened(), unit * self.scale, &mut sums[register]);
                        }
                    }
                }
            }
        }
        for (sums, acc) in sums.iter().zip(acc.chunks_exact_mut(dim)) {
            give_strided(kind::stride(KIND), 16, sums[..registers].as_flattened(), acc);
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
