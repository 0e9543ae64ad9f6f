//! Scores for registers: integer dot products of queries and looked-up centroids.
//!
//! A query is ordered once, in the order in which [`Codes`] returns the codes of rows. Then, for
//! each block of [`BLOCK`] rows, the codes of a few rows at a time are loaded, looked up in the
//! codebook, multiplied with the query's values and added. With one query and a symmetric codebook,
//! the query's signs are moved to the codes before the lookup: see [`order`].
//!
//! On Sapphire Rapids with one query, signs on codes, and threes of bytes with 3 bits, take 0.89,
//! 0.77 and 0.94 of the time without them (2, 3 and 4 bits, AVX2). Reading the scales of sixteen
//! rows at a time is worth more: together they take 0.67, 0.62 and 0.75.

use super::unpack::{Bytes, Codes, Group, MAX_REGISTERS, SPARE, Words, gather, kind};
use crate::codes::layout::Codebook;
use crate::registers::Integers;
use crate::rows::each_page_mut_of;
use crate::{IntQuery, Rows};
use core::ops::Range;

/// A query's values in the order in which codes come, two registers for each register of codes.
///
/// If centroids are words, the two are the query's halves. If they are bytes, the two are
/// magnitudes and signed values. With flips, they are magnitudes and the bits by which codes are
/// flipped, for the first of the registers that are loaded together.
type Values<V> = [V; 2 * MAX_REGISTERS];

/// Orders a query's values as codes come. It writes in place, because moving the array would take as
/// long as scoring ten rows.
///
/// With `FLIP`, values are multiplied as magnitudes, and their signs go to the codes. In a symmetric
/// codebook, flipping all bits of a code negates its centroid. So the second register of a pair
/// has ones at the codes of negative values. With 2 bits, a byte has four codes:
///
/// ```text
/// values      x₀  x₁  x₂  x₃ | x₄ …            lane i has the values 4·i to 4·i + 3
/// codes       c₃c₃ c₂c₂ c₁c₁ c₀c₀              byte i, as it is stored
/// flips       0 0  1 1  0 0  1 1               if x₀ and x₂ are negative
/// registers   |x₀₊₄ᵢ| flips, |x₁₊₄ᵢ| –, |x₂₊₄ᵢ| –, |x₃₊₄ᵢ| –
/// ```
#[inline(always)]
fn order<L: Integers, const KIND: u8, const FLIP: bool>(
    codes: &Codes<L>,
    query: &[i16],
    values: &mut Values<L::V>,
) {
    let (stride, bits) = (kind::stride(KIND), usize::from(KIND));
    let width = 16 * stride;
    let values = values.chunks_exact_mut(2 * stride).take(codes.registers() / stride);
    for (unit, values) in values.enumerate() {
        // Zeros behind the end of the row, where codes are undefined.
        let start = unit * width;
        let mut padded;
        let words = match query.get(start..start + width) {
            Some(words) => words,
            None => {
                let ours = query.get(start..).unwrap_or_default();
                padded = [0i16; 128];
                padded[..ours.len()].copy_from_slice(ours);
                &padded[..width]
            }
        };
        if KIND == kind::WORDS {
            for (value, half) in values.iter_mut().zip(words.as_chunks().0) {
                *value = L::load_words(half);
            }
            continue;
        }
        for (k, [magnitudes, other]) in values.as_chunks_mut().0.iter_mut().enumerate() {
            let mut bytes = [0; 16];
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = words[i * stride + k] as u8;
            }
            *other = L::load(&bytes);
            *magnitudes = L::magnitudes(*other);
        }
        if FLIP {
            let mut flips = [0u32; 16];
            for (flips, words) in flips.iter_mut().zip(words.chunks_exact(stride)) {
                for (k, word) in words.iter().enumerate() {
                    *flips |= ((*word >> 15) as u32 & ((1 << bits) - 1)) << (bits * k);
                }
            }
            for byte in 0..(stride * bits).div_ceil(8) {
                let mut bytes = [0; 16];
                for (byte_of, flips) in bytes.iter_mut().zip(flips) {
                    *byte_of = (flips >> (8 * byte)) as u8;
                }
                values[2 * byte + 1] = L::load(&bytes);
            }
        }
    }
}

/// Implements `scalar::score_codes`.
#[inline(always)]
pub(crate) fn score_codes<L: Integers>(
    book: &Codebook,
    pages: &[Rows],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    score_some::<L>(book, pages, (queries, 0..queries.len()), scores);
}

/// Scores some of the queries.
#[inline(always)]
pub(crate) fn score_some<L: Integers>(
    book: &Codebook,
    pages: &[Rows],
    queries: (&[IntQuery], Range<usize>),
    scores: &mut [f32],
) {
    let Codebook { packing, centroids, .. } = *book;
    let Some(Rows { dim, .. }) = pages.first().filter(|_| !queries.1.is_empty()) else { return };
    if centroids.len() > 16 {
        return score_kind::<L, { kind::WORDS }>(book, *dim, pages, queries, scores);
    }
    match (packing.radix(), packing.raw_bits()) {
        (1, 1) => score_kind::<L, 1>(book, *dim, pages, queries, scores),
        (1, 2) => score_kind::<L, 2>(book, *dim, pages, queries, scores),
        (1, 4) => score_kind::<L, 4>(book, *dim, pages, queries, scores),
        (1, 3) if L::THREES && dim.is_multiple_of(128) => {
            score_kind::<L, { kind::THREES }>(book, *dim, pages, queries, scores)
        }
        _ => score_kind::<L, { kind::ORDERED }>(book, *dim, pages, queries, scores),
    }
}

/// Scores rows of one kind of codes. Queries are taken four, two or one at a time.
#[inline(always)]
fn score_kind<L: Integers, const KIND: u8>(
    book: &Codebook,
    dim: usize,
    pages: &[Rows],
    (queries, Range { start, end }): (&[IntQuery], Range<usize>),
    scores: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    let pass = Pass::<L, KIND> {
        codes: Codes::new(KIND, packing, dim, 2),
        bytes: Bytes::new(KIND, centroids, L::BIAS),
        words: Words::new(if KIND == kind::WORDS { centroids } else { &[] }),
        scale,
    };
    let twos = start + (end - start) / 4 * 4;
    let one = twos + (end - twos) / 2 * 2;
    // Rows at a time share the loads of queries, if their sums stay in registers.
    if start < twos && L::EIGHT_ROWS && L::ROW_DOTS {
        pass.score::<4, 4, BLOCK, 0, false>(pages, (queries, start..twos), scores);
    } else if start < twos && L::EIGHT_ROWS {
        pass.score::<2, 4, BLOCK, 0, false>(pages, (queries, start..twos), scores);
    } else if start < twos {
        pass.score::<1, 4, BLOCK, 0, false>(pages, (queries, start..twos), scores);
    }
    if twos < one {
        pass.score::<2, 2, BLOCK, 0, false>(pages, (queries, twos..one), scores);
    }
    if one == end {
        return;
    }
    // With one query, its signs can be moved to the codes.
    let symmetric = || centroids.iter().zip(centroids.iter().rev()).all(|(a, b)| *a == -*b);
    if L::FLIPS && matches!(KIND, 1..=4) && symmetric() {
        pass.score::<4, 1, BLOCK, 0, true>(pages, (queries, one..end), scores);
    } else if L::FOUR_UNITS && KIND == 4 && pass.codes.registers() == 8 {
        pass.score::<8, 1, 8, 4, false>(pages, (queries, one..end), scores);
    } else if L::EIGHT_ROWS && (L::FOUR_UNITS || KIND == 4) {
        pass.score::<8, 1, 8, 0, false>(pages, (queries, one..end), scores);
    } else {
        pass.score::<4, 1, BLOCK, 0, false>(pages, (queries, one..end), scores);
    }
}

/// Rows whose scores are usually finished together.
pub(crate) const BLOCK: usize = 16;

/// Writes the scores of the rows `ours`, up to a block of them, for each query: integer sum times
/// the query's factor times the row's scale.
#[inline(always)]
pub(crate) fn finish_block<const Q: usize, const N: usize>(
    sums: &[[i32; N]; Q],
    scales: [f32; N],
    count: usize,
    factors: [f32; Q],
    ours: Range<usize>,
    scores: &mut [f32],
) {
    for (q, (sums, factor)) in sums.iter().zip(factors).enumerate() {
        let scores = &mut scores[q * count + ours.start..][..ours.len()];
        // A full block has a constant length, so that `memcpy` is not called.
        match scores.first_chunk_mut::<N>() {
            Some(scores) => {
                // In an array of their own, because LLVM for ARM does not vectorise stores to `scores`.
                let mut block = [0.0; N];
                for r in 0..N {
                    block[r] = (sums[r] as f32 * factor) * scales[r];
                }
                *scores = block;
            }
            None => {
                for ((score, sum), of_row) in scores.iter_mut().zip(sums).zip(scales) {
                    *score = (*sum as f32 * factor) * of_row;
                }
            }
        }
    }
}

/// Adds the products of a register of centroids with each query.
#[inline(always)]
fn add<L: Integers, const Q: usize, const FLIP: bool>(
    sums: &mut [L::V; Q],
    centroids: L::V,
    queries: &[Values<L::V>; Q],
    register: usize,
) {
    for (sum, query) in sums.iter_mut().zip(queries) {
        let (magnitudes, signed) = (query[2 * register], query[2 * register + 1]);
        *sum = if FLIP {
            L::dot_magnitudes(*sum, centroids, magnitudes)
        } else {
            L::dot_signed(*sum, centroids, magnitudes, signed)
        };
    }
}

/// The state that the scores of all queries share: the places of codes, and the tables of centroids.
struct Pass<L: Integers, const KIND: u8> {
    codes: Codes<L>,
    bytes: Bytes<L>,
    words: Words<L>,
    scale: f32,
}

impl<L: Integers, const KIND: u8> Pass<L, KIND> {
    /// Scores pages. Q queries share the lookups, and R rows of each lane are taken at a time: four
    /// sums or eight. N rows are finished together. If the number of units is constant, it is
    /// UNITS.
    #[inline(always)]
    fn score<const R: usize, const Q: usize, const N: usize, const UNITS: usize, const FLIP: bool>(
        &self,
        pages: &[Rows],
        (all, Range { start, end }): (&[IntQuery], Range<usize>),
        scores: &mut [f32],
    ) {
        const { assert!((R * Q).is_multiple_of(4) && (N.is_multiple_of(R * L::LANES) || !L::EIGHT_ROWS)) };
        // Created once for all queries: setting it to zero takes as long as scoring some rows.
        let mut values = [[L::splat(0); 2 * MAX_REGISTERS]; Q];
        let mut spare = [0; SPARE];
        for from in (start..end).step_by(Q) {
            let (mut factors, mut less) = ([0.0; Q], [L::splat(0); Q]);
            for (q, query) in all[from..].iter().take(Q).enumerate() {
                order::<L, KIND, FLIP>(&self.codes, query.values, &mut values[q]);
                factors[q] = query.scale * self.scale;
                if KIND != kind::WORDS && L::BIAS > 0 {
                    // Each of four sums gets a quarter of it.
                    let sum = query.values.iter().map(|value| i32::from(*value)).sum::<i32>();
                    less[q] = L::splat_pairs([(-i32::from(L::BIAS / 4) * sum) as u32; 2]);
                }
            }
            for (rows, scores) in each_page_mut_of(pages, all.len(), from..from + Q, scores) {
                let segments = &self.codes.with_margin(rows, &mut spare);
                let (ready, count) = (segments[0].count, segments[0].count + segments[1].count);
                for first in (0..count).step_by(N) {
                    let block = N.min(count - first);
                    if L::LANES > 1 && from == start {
                        rows.prefetch_some(first, N);
                    }
                    // Read scales before the sums, which hide the latency.
                    let scales = L::read_scales(rows, first);
                    let mut sums = [[0; N]; Q];
                    for r in (0..block).step_by(R * L::LANES) {
                        // Usually all rows are in the first segment. The last rows of a page fill a
                        // block with those before them.
                        let group = if first + r + R * L::LANES <= ready {
                            segments[0].whole::<R>(first + r, L::LANES)
                        } else {
                            gather(segments, first + r)
                        };
                        self.dot::<R, Q, N, UNITS, FLIP>(&group, &values, less, &mut sums, r);
                    }
                    finish_block::<Q, N>(&sums, scales, count, factors, first..first + block, scores);
                }
            }
        }
    }

    /// Computes R sums of each query for each lane, beginning with `start`, and writes them from
    /// index `first` on.
    #[inline(always)]
    fn dot<const R: usize, const Q: usize, const N: usize, const UNITS: usize, const FLIP: bool>(
        &self,
        rows: &Group<R>,
        queries: &[Values<L::V>; Q],
        start: [L::V; Q],
        out: &mut [[i32; N]; Q],
        first: usize,
    ) {
        let mut sums = [start; R];
        if UNITS == 4 {
            // Written out: LLVM would leave a loop, with queries and addresses in it.
            self.add_unit::<R, Q, FLIP>(&mut sums, rows, queries, 0);
            self.add_unit::<R, Q, FLIP>(&mut sums, rows, queries, 1);
            self.add_unit::<R, Q, FLIP>(&mut sums, rows, queries, 2);
            self.add_unit::<R, Q, FLIP>(&mut sums, rows, queries, 3);
        } else {
            for unit in 0..self.codes.registers().min(MAX_REGISTERS) / kind::stride(KIND) {
                self.add_unit::<R, Q, FLIP>(&mut sums, rows, queries, unit);
            }
        }
        // Sum i of the R·Q sums is that of row i % R and query i / R. Four of them are finished at once.
        for at in (0..R * Q).step_by(4) {
            let mut four = [L::splat(0); 4];
            for (i, four) in (at..).zip(&mut four) {
                *four = sums[i % R][i / R];
            }
            for (lane, four) in L::sum_four(four).iter().enumerate().take(L::LANES) {
                for (i, ours) in (at..).step_by(R.min(4)).zip(four.chunks_exact(R.min(4))) {
                    out[i / R][first + R * lane + i % R..][..ours.len()].copy_from_slice(ours);
                }
            }
        }
    }

    /// Adds the products of one unit of registers.
    #[inline(always)]
    fn add_unit<const R: usize, const Q: usize, const FLIP: bool>(
        &self,
        sums: &mut [[L::V; Q]; R],
        rows: &Group<R>,
        queries: &[Values<L::V>; Q],
        unit: usize,
    ) {
        let stride = kind::stride(KIND);
        if KIND == kind::THREES {
            for (r, sums) in sums.iter_mut().enumerate() {
                let mut threes = self.codes.threes(rows, r, unit);
                if FLIP {
                    for (i, bytes) in threes.iter_mut().enumerate() {
                        *bytes = L::flip(*bytes, queries[0][2 * (8 * unit + i) + 1]);
                    }
                }
                for (k, (indices, table)) in Codes::<L>::indices_of_threes(threes).into_iter().enumerate() {
                    let centroids = self.bytes.lookup(table, indices);
                    add::<L, Q, FLIP>(sums, centroids, queries, 8 * unit + k);
                }
            }
            return;
        }
        let mut codes = self.codes.unit::<KIND, R>(rows, unit);
        if FLIP {
            for codes in &mut codes {
                *codes = L::flip(*codes, queries[0][2 * stride * unit + 1]);
            }
        }
        if KIND == kind::WORDS {
            for ([a, b], sums) in self.words.lookup(codes).into_iter().zip(sums) {
                for (sum, query) in sums.iter_mut().zip(queries) {
                    let half = L::dot_words(*sum, a, query[2 * unit]);
                    *sum = L::dot_words(half, b, query[2 * unit + 1]);
                }
            }
            return;
        }
        self.half::<R, Q, FLIP>(sums, codes, queries, unit, 0);
        if stride > kind::tables(KIND) {
            self.half::<R, Q, FLIP>(sums, codes, queries, unit, 1);
        }
    }

    /// Adds the products of the lower or the upper half bytes of a unit. It is a function, because
    /// LLVM does not unroll a loop over them for NEON.
    #[inline(always)]
    fn half<const R: usize, const Q: usize, const FLIP: bool>(
        &self,
        sums: &mut [[L::V; Q]; R],
        codes: [L::V; R],
        queries: &[Values<L::V>; Q],
        unit: usize,
        half: usize,
    ) {
        let mut indices = codes;
        for codes in &mut indices {
            *codes = Codes::<L>::indices::<KIND>(*codes, half);
        }
        for table in 0..kind::tables(KIND) {
            let register = unit * kind::stride(KIND) + half * kind::tables(KIND) + table;
            for (indices, sums) in indices.into_iter().zip(&mut *sums) {
                let centroids = self.bytes.lookup(table, indices);
                add::<L, Q, FLIP>(sums, centroids, queries, register);
            }
        }
    }
}
