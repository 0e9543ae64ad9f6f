//! Scores: integer dot products of queries and looked-up centroids.

use super::unpack::{Bytes, Codes, MAX_REGISTERS, SPARE, Segment, Words, kind};
use crate::registers::Registers;
use crate::vectors::scalar::f16_to_f32;
use crate::{IntQuery, Rows};
use core::ops::Range;

/// A query, its values in the order in which the codes come.
struct Query<L: Registers> {
    values: [L::V; 2 * MAX_REGISTERS],
    factor: f32,
}

impl<L: Registers> Query<L> {
    #[inline(always)]
    fn new<const KIND: u8>(codes: &Codes<L>, query: &IntQuery, scale: f32) -> Self {
        let mut values = [L::splat(0); 2 * MAX_REGISTERS];
        for register in 0..codes.registers() {
            // Zeros beyond the row's end, where codes are anything.
            let mut words = [0i16; 16];
            let ours = query.values.iter().skip(codes.first_coordinate(register));
            for (word, value) in words.iter_mut().zip(ours.step_by(kind::stride(KIND))) {
                *word = *value;
            }
            if KIND == kind::WORDS {
                for (value, half) in values[2 * register..].iter_mut().zip(words.as_chunks().0) {
                    *value = L::load_words(half);
                }
            } else {
                values[register] = L::load(&words.map(|word| word as u8));
            }
        }
        Self { values, factor: query.scale * scale }
    }
}

#[inline(always)]
pub(crate) fn score_codes<L: Registers>(
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
        return score_kind::<L, { kind::WORDS }>(rows, centroids, scale, queries, scores);
    }
    match (rows.packing.radix(), rows.packing.raw_bits()) {
        (1, 1) => score_kind::<L, 1>(rows, centroids, scale, queries, scores),
        (1, 2) => score_kind::<L, 2>(rows, centroids, scale, queries, scores),
        (1, 4) => score_kind::<L, 4>(rows, centroids, scale, queries, scores),
        _ => score_kind::<L, { kind::ORDERED }>(rows, centroids, scale, queries, scores),
    }
}

fn score_kind<L: Registers, const KIND: u8>(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let pass = Pass::<L, KIND> {
        codes: Codes::new(KIND, rows.packing, rows.dim, 2),
        bytes: Bytes::new(centroids),
        words: Words::new(if KIND == kind::WORDS { centroids } else { &[] }),
        scale,
    };
    let mut spare = [0; SPARE];
    let segments = pass.codes.with_margin(rows, &mut spare);
    let count = rows.count();
    let (fours, rest) = queries.as_chunks::<4>();
    let (four_scores, scores) = scores.split_at_mut(4 * fours.len() * count);
    for (queries, scores) in fours.iter().zip(four_scores.chunks_exact_mut(4 * count)) {
        pass.score::<1, 4>(&segments, queries, scores);
    }
    let (twos, one) = rest.as_chunks::<2>();
    let (two_scores, scores) = scores.split_at_mut(2 * twos.len() * count);
    for (queries, scores) in twos.iter().zip(two_scores.chunks_exact_mut(2 * count)) {
        pass.score::<2, 2>(&segments, queries, scores);
    }
    if let [query] = one {
        pass.score::<4, 1>(&segments, &[*query], scores);
    }
}

/// Rows whose scores are finished together.
pub(crate) const BLOCK: usize = 16;

/// Scores of the rows `ours` of `count`, up to a block of them, for each query: their integer sums by the query's factor
/// and the rows' scales.
#[inline(always)]
pub(crate) fn finish_block<const Q: usize>(
    sums: &[[i32; BLOCK]; Q],
    scales: [u16; BLOCK],
    factors: [f32; Q],
    count: usize,
    ours: Range<usize>,
    scores: &mut [f32],
) {
    let scales = scales.map(f16_to_f32);
    for (q, (sums, factor)) in sums.iter().zip(factors).enumerate() {
        let mut finished = [0.0; BLOCK];
        for r in 0..BLOCK {
            finished[r] = (sums[r] as f32 * factor) * scales[r];
        }
        let scores = &mut scores[q * count + ours.start..][..ours.len()];
        match scores.first_chunk_mut() {
            Some(scores) => *scores = finished,
            None => scores.copy_from_slice(&finished[..ours.len()]),
        }
    }
}

struct Pass<L: Registers, const KIND: u8> {
    codes: Codes<L>,
    bytes: Bytes<L>,
    words: Words<L>,
    scale: f32,
}

impl<L: Registers, const KIND: u8> Pass<L, KIND> {
    /// Q queries that share the look-ups, R rows at a time.
    fn score<const R: usize, const Q: usize>(
        &self,
        segments: &[Segment; 2],
        queries: &[IntQuery; Q],
        scores: &mut [f32],
    ) {
        let queries = queries.each_ref().map(|query| Query::new::<KIND>(&self.codes, query, self.scale));
        let count = segments[0].count + segments[1].count;
        let mut done = 0;
        for segment in segments {
            for first in (0..segment.count).step_by(BLOCK) {
                let block = BLOCK.min(segment.count - first);
                let mut sums = [[0; BLOCK]; Q];
                let mut scales = [0; BLOCK];
                for r in (0..block).step_by(R) {
                    // Where fewer than R rows are left, the last one is scored again.
                    let rows: [&[u8]; R] =
                        core::array::from_fn(|i| segment.row(first + (r + i).min(block - 1)));
                    for (i, row_sums) in self.dot(rows, &queries).into_iter().enumerate() {
                        scales[r + i] = u16::from_le_bytes([rows[i][0], rows[i][1]]);
                        for (sums, sum) in sums.iter_mut().zip(row_sums) {
                            sums[r + i] = L::sum(sum);
                        }
                    }
                }
                let factors = queries.each_ref().map(|query| query.factor);
                let ours = done + first..done + first + block;
                finish_block(&sums, scales, factors, count, ours, scores);
            }
            done += segment.count;
        }
    }

    #[inline(always)]
    fn dot<const R: usize, const Q: usize>(
        &self,
        rows: [&[u8]; R],
        queries: &[Query<L>; Q],
    ) -> [[L::V; Q]; R] {
        let mut sums = [[L::splat(0); Q]; R];
        // The inner loop goes over the registers of the same 16 bytes: their shifts become constants.
        let stride = kind::stride(KIND);
        let registers = self.codes.registers().min(MAX_REGISTERS);
        let mut first = 0;
        while first < registers {
            for register in first..first + stride {
                let codes = self.codes.get::<KIND, R>(rows, register);
                if KIND == kind::WORDS {
                    for ([a, b], sums) in self.words.lookup(codes).into_iter().zip(&mut sums) {
                        for (sum, query) in sums.iter_mut().zip(queries) {
                            let half = L::dot_words(*sum, a, query.values[2 * register]);
                            *sum = L::dot_words(half, b, query.values[2 * register + 1]);
                        }
                    }
                } else {
                    for (codes, sums) in codes.into_iter().zip(&mut sums) {
                        let centroids = self.bytes.lookup(codes);
                        for (sum, query) in sums.iter_mut().zip(queries) {
                            *sum = L::dot_bytes(*sum, centroids, query.values[register]);
                        }
                    }
                }
            }
            first += stride;
        }
        sums
    }
}
