//! Weighted sums of looked-up centroids.

use super::unpack::{Bytes, Codes, MAX_REGISTERS, SPARE, Segment, Words, kind};
use crate::Rows;
use crate::codes::scalar::{PAGE, finish_sums, quantize_weights, weight_limit};
use crate::registers::Registers;

#[inline(always)]
pub(crate) fn accumulate_codes<L: Registers>(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    if rows.bytes.is_empty() {
        return;
    }
    if centroids.len() > 16 {
        return accumulate_kind::<L, { kind::WORDS }>(rows, centroids, scale, weights, acc);
    }
    match (rows.packing.radix(), rows.packing.raw_bits()) {
        (1, 1) => accumulate_kind::<L, 1>(rows, centroids, scale, weights, acc),
        (1, 2) => accumulate_kind::<L, 2>(rows, centroids, scale, weights, acc),
        (1, 4) => accumulate_kind::<L, 4>(rows, centroids, scale, weights, acc),
        _ => accumulate_kind::<L, { kind::ORDERED }>(rows, centroids, scale, weights, acc),
    }
}

fn accumulate_kind<L: Registers, const KIND: u8>(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let pass = Pass::<L, KIND> {
        codes: Codes::new(KIND, rows.packing, rows.dim, 2),
        bytes: Bytes::new(centroids),
        words: Words::new(if KIND == kind::WORDS { centroids } else { &[] }),
        levels: centroids.len(),
        scale,
    };
    let (count, dim) = (rows.count(), rows.dim);
    let mut spare = [0; SPARE];
    for (p, page) in rows.pages(PAGE).enumerate() {
        let segments = pass.codes.with_margin(&page, &mut spare);
        let weights = |q: usize| &weights[q * count + p * PAGE..][..page.count()];
        let queries = acc.len() / dim;
        let mut q = 0;
        while q < queries {
            // Queries that share the look-ups.
            match queries - q {
                1 => q += pass.add(&page, &segments, [weights(q)], &mut acc[q * dim..]),
                2..4 => q += pass.add(&page, &segments, [q, q + 1].map(weights), &mut acc[q * dim..]),
                _ => {
                    q += pass.add(
                        &page,
                        &segments,
                        [q, q + 1, q + 2, q + 3].map(weights),
                        &mut acc[q * dim..],
                    );
                }
            }
        }
    }
}

struct Pass<L: Registers, const KIND: u8> {
    codes: Codes<L>,
    bytes: Bytes<L>,
    words: Words<L>,
    levels: usize,
    scale: f32,
}

/// Two rows' weights, ready to be splat.
type Pairs = [u32; PAGE / 2 + 1];

impl<L: Registers, const KIND: u8> Pass<L, KIND> {
    /// Adds a page to Q queries' sums and returns Q.
    fn add<const Q: usize>(
        &self,
        page: &Rows,
        segments: &[Segment; 2],
        weights: [&[f32]; Q],
        acc: &mut [f32],
    ) -> usize {
        let mut ints = [[0; PAGE]; Q];
        let mut units = [None; Q];
        for q in 0..Q {
            units[q] = quantize_weights(page, weights[q], weight_limit(self.levels), &mut ints[q]);
            if units[q].is_none() {
                ints[q] = [0; PAGE];
            }
        }
        let pairs = ints.each_ref().map(|ints| {
            let (first, second) = ints.split_at(segments[0].count);
            [pair_up(first), pair_up(&second[..segments[1].count])]
        });
        let mut sums = [[0i32; 16 * MAX_REGISTERS]; Q];
        for register in 0..self.codes.registers() {
            let mut registers = [[L::splat(0); 4]; Q];
            for (s, segment) in segments.iter().enumerate() {
                self.add_segment(segment, register, pairs.each_ref().map(|pairs| &pairs[s]), &mut registers);
            }
            let first = self.codes.first_coordinate(register);
            for (sums, registers) in sums.iter_mut().zip(registers) {
                let mut lanes = [[0; 4]; 4];
                for (lanes, register) in lanes.iter_mut().zip(registers) {
                    L::store_sums(lanes, register);
                }
                let ours = sums[first..].iter_mut().step_by(kind::stride(KIND));
                for (sum, lane) in ours.zip(lanes.as_flattened()) {
                    *sum = *lane;
                }
            }
        }
        let dim = page.dim;
        for ((acc, sums), unit) in acc.chunks_exact_mut(dim).zip(&sums).zip(units) {
            if let Some(unit) = unit {
                finish_sums(&sums[..dim], unit * self.scale, acc);
            }
        }
        Q
    }

    /// One register's coordinates of all rows, so that their sums stay in registers.
    #[inline(always)]
    fn add_segment<const Q: usize>(
        &self,
        segment: &Segment,
        register: usize,
        pairs: [&Pairs; Q],
        sums: &mut [[L::V; 4]; Q],
    ) {
        let mut registers = *sums;
        for i in 0..segment.count.div_ceil(2) {
            // Behind an odd last row comes a row of weight 0.
            let rows = [segment.row(2 * i), segment.row((2 * i + 1).min(segment.count - 1))];
            let codes = self.codes.get::<KIND, 2>(rows, register);
            let [[a, b], [c, d]] = if KIND == kind::WORDS {
                self.words.lookup(codes)
            } else {
                [L::extend(self.bytes.lookup(codes[0])), L::extend(self.bytes.lookup(codes[1]))]
            };
            for (sums, pairs) in registers.iter_mut().zip(pairs) {
                let weights = L::splat_pair(pairs[i]);
                [sums[0], sums[1]] = L::add_weighted([sums[0], sums[1]], a, c, weights);
                [sums[2], sums[3]] = L::add_weighted([sums[2], sums[3]], b, d, weights);
            }
        }
        *sums = registers;
    }
}

#[inline(always)]
fn pair_up(ints: &[i16]) -> Pairs {
    let mut pairs = [0; PAGE / 2 + 1];
    for (pair, ints) in pairs.iter_mut().zip(ints.chunks(2)) {
        *pair = u32::from(ints[0] as u16) | u32::from(ints.get(1).map_or(0, |i| *i as u16)) << 16;
    }
    pairs
}
