//! Scores: integer dot products of queries and looked-up centroids.

use super::unpack::{Bytes, Codes, Group, MAX_REGISTERS, SPARE, Segment, Words, kind};
use crate::registers::Integers;
use crate::{IntQuery, Packing, Rows};
use core::ops::Range;

/// A query's values in the order in which the codes come: two registers for one of codes, halves where centroids are
/// words, magnitudes and signed values where they are bytes.
type Values<V> = [V; 2 * MAX_REGISTERS];

/// In place: moving the array would take as long as scoring ten rows.
#[inline(always)]
fn order<L: Integers, const KIND: u8>(codes: &Codes<L>, query: &[i16], values: &mut Values<L::V>) {
    for register in 0..codes.registers() {
        // Zeros beyond the row's end, where codes are anything.
        let mut words = [0i16; 16];
        let ours = query.iter().skip(codes.first_coordinate(register)).step_by(kind::stride(KIND));
        for (word, value) in words.iter_mut().zip(ours) {
            *word = *value;
        }
        if KIND == kind::WORDS {
            for (value, half) in values[2 * register..].iter_mut().zip(words.as_chunks().0) {
                *value = L::load_words(half);
            }
        } else {
            let mut bytes = [0; 16];
            for (byte, word) in bytes.iter_mut().zip(words) {
                *byte = word as u8;
            }
            let signed = L::load(&bytes);
            (values[2 * register], values[2 * register + 1]) = (L::magnitudes(signed), signed);
        }
    }
}

#[inline(always)]
pub(crate) fn score_codes<L: Integers>(
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if rows.bytes.is_empty() {
        return;
    }
    if centroids.len() > 16 {
        return score_kind::<L, { kind::WORDS }>(packing, rows, centroids, scale, queries, scores);
    }
    match (packing.radix(), packing.raw_bits()) {
        (1, 1) => score_kind::<L, 1>(packing, rows, centroids, scale, queries, scores),
        (1, 2) => score_kind::<L, 2>(packing, rows, centroids, scale, queries, scores),
        (1, 4) => score_kind::<L, 4>(packing, rows, centroids, scale, queries, scores),
        _ => score_kind::<L, { kind::ORDERED }>(packing, rows, centroids, scale, queries, scores),
    }
}

#[inline(always)]
fn score_kind<L: Integers, const KIND: u8>(
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let pass = Pass::<L, KIND> {
        codes: Codes::new(KIND, packing, rows.dim, 2),
        bytes: Bytes::new(KIND, centroids),
        words: Words::new(if KIND == kind::WORDS { centroids } else { &[] }),
        scale,
    };
    let mut spare = [0; SPARE];
    let segments = pass.codes.with_margin(rows, &mut spare);
    let count = rows.count();
    let (fours, rest) = queries.split_at(queries.len() / 4 * 4);
    let (twos, one) = rest.split_at(rest.len() / 2 * 2);
    let (four_scores, scores) = scores.split_at_mut(fours.len() * count);
    let (two_scores, scores) = scores.split_at_mut(twos.len() * count);
    if !fours.is_empty() {
        pass.score::<1, 4>(rows, &segments, fours, four_scores);
    }
    if !twos.is_empty() {
        pass.score::<2, 2>(rows, &segments, twos, two_scores);
    }
    if !one.is_empty() {
        pass.score::<4, 1>(rows, &segments, one, scores);
    }
}

/// Rows whose scores are finished together.
pub(crate) const BLOCK: usize = 16;

/// Scores of the rows `ours`, up to a block of them, for each query: their integer sums by the query's factor
/// and the rows' scales.
#[inline(always)]
pub(crate) fn finish_block<const Q: usize>(
    sums: &[[i32; BLOCK]; Q],
    rows: &Rows,
    factors: [f32; Q],
    ours: Range<usize>,
    scores: &mut [f32],
) {
    let count = rows.count();
    let mut factors_of_rows = [0.0; BLOCK];
    rows.read_scales(ours.start, &mut factors_of_rows);
    for (q, (sums, factor)) in sums.iter().zip(factors).enumerate() {
        let scores = &mut scores[q * count + ours.start..][..ours.len()];
        // A full block apart: its length is known, and no `memcpy` is called.
        match scores.first_chunk_mut::<BLOCK>() {
            Some(scores) => {
                for r in 0..BLOCK {
                    scores[r] = (sums[r] as f32 * factor) * factors_of_rows[r];
                }
            }
            None => {
                for ((score, sum), of_row) in scores.iter_mut().zip(sums).zip(factors_of_rows) {
                    *score = (*sum as f32 * factor) * of_row;
                }
            }
        }
    }
}

struct Pass<L: Integers, const KIND: u8> {
    codes: Codes<L>,
    bytes: Bytes<L>,
    words: Words<L>,
    scale: f32,
}

impl<L: Integers, const KIND: u8> Pass<L, KIND> {
    /// Queries of which Q share the look-ups, R rows of each lane at a time: four sums.
    #[inline(always)]
    fn score<const R: usize, const Q: usize>(
        &self,
        rows: &Rows,
        segments: &[Segment; 2],
        queries: &[IntQuery],
        scores: &mut [f32],
    ) {
        const { assert!(R * Q == 4) };
        // For all: setting it to zero takes as long as scoring some rows.
        let mut values = [[L::splat(0); 2 * MAX_REGISTERS]; Q];
        let groups = queries.as_chunks::<Q>().0.iter();
        for (queries, scores) in groups.zip(scores.chunks_exact_mut(Q * rows.count())) {
            let mut factors = [0.0; Q];
            for ((query, values), factor) in queries.iter().zip(&mut values).zip(&mut factors) {
                order::<L, KIND>(&self.codes, query.values, values);
                *factor = query.scale * self.scale;
            }
            let mut done = 0;
            for segment in segments {
                for first in (0..segment.count).step_by(BLOCK) {
                    let block = BLOCK.min(segment.count - first);
                    let mut sums = [[0; BLOCK]; Q];
                    for r in (0..block).step_by(R * L::LANES) {
                        let found = self.dot(&segment.group::<R>(first + r), &values);
                        for (lane, four) in found.iter().enumerate().take(L::LANES) {
                            for (sums, ours) in sums.iter_mut().zip(four.chunks_exact(R)) {
                                sums[r + R * lane..][..R].copy_from_slice(ours);
                            }
                        }
                    }
                    let ours = done + first..done + first + block;
                    finish_block(&sums, rows, factors, ours, scores);
                }
                done += segment.count;
            }
        }
    }

    /// For each lane, R sums of each query.
    #[inline(always)]
    fn dot<const R: usize, const Q: usize>(
        &self,
        rows: &Group<R>,
        queries: &[Values<L::V>; Q],
    ) -> [[i32; 4]; 2] {
        let mut sums = [[L::splat(0); Q]; R];
        let stride = kind::stride(KIND);
        for unit in 0..self.codes.registers().min(MAX_REGISTERS) / stride {
            let codes = self.codes.unit::<KIND, R>(rows, unit);
            if KIND == kind::WORDS {
                for ([a, b], sums) in self.words.lookup(codes).into_iter().zip(&mut sums) {
                    for (sum, query) in sums.iter_mut().zip(queries) {
                        let half = L::dot_words(*sum, a, query[2 * unit]);
                        *sum = L::dot_words(half, b, query[2 * unit + 1]);
                    }
                }
                continue;
            }
            for half in 0..stride / kind::tables(KIND) {
                let mut indices = codes;
                for codes in &mut indices {
                    *codes = Codes::<L>::indices::<KIND>(*codes, half);
                }
                for table in 0..kind::tables(KIND) {
                    let register = unit * stride + half * kind::tables(KIND) + table;
                    for (indices, sums) in indices.into_iter().zip(&mut sums) {
                        let centroids = self.bytes.lookup(table, indices);
                        for (sum, query) in sums.iter_mut().zip(queries) {
                            let (magnitudes, signed) = (query[2 * register], query[2 * register + 1]);
                            *sum = L::dot_signed(*sum, centroids, magnitudes, signed);
                        }
                    }
                }
            }
        }
        let mut four = [L::splat(0); 4];
        for (i, four) in four.iter_mut().enumerate() {
            *four = sums[i % R][i / R];
        }
        L::sum_four(four)
    }
}
