//! Scores of windowed codebooks for rows of 128 coordinates, codes of at most two bits and up to 8 states: eight neighbouring
//! coordinates in each byte, one for each of eight look-ups, as the path plane has them. A window of four bits is a
//! shift away (where it begins in the byte before, of the two bytes' inner halves), a code another one; together
//! they are the index. It is the query that is put into that order, once a page.

use super::Lanes;
use crate::scalar::f16_to_f32;
use crate::windows::WindowCodebook;
use crate::{IntQuery, Rows};

/// Coordinates of a row.
const DIM: usize = 128;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;
/// Coordinates of a byte.
const EACH: usize = 8;

/// What turns bytes by one, with a zero in the first place.
static BEFORE: [u8; 16] = [255, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

/// How to find the centroids of a row.
pub(super) struct Eights<L: Lanes> {
    levels: usize,
    /// `code << 4 | window`, windows of four bits, of which a shorter history needs the upper ones.
    table: [L::V; 4],
    before: L::V,
}

impl<L: Lanes> Eights<L> {
    /// `None` for other shapes.
    #[inline(always)]
    pub(super) fn new(book: &WindowCodebook, dim: usize) -> Option<Self> {
        let levels = book.levels();
        if dim != DIM || book.states() > 8 || !matches!(levels, 1 | 2 | 4) {
            return None;
        }
        let mut table = [L::splat(0); 4];
        for (table, centroids) in table.iter_mut().zip(book.centroids().chunks_exact(book.windows())) {
            let mut bytes = [0; 16];
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = centroids[i >> (3 - book.history())] as u8;
            }
            *table = L::load(&bytes);
        }
        Some(Self { levels, table, before: L::load(&BEFORE) })
    }

    #[inline(always)]
    pub(super) fn score(&self, rows: &Rows, scale: f32, queries: &[IntQuery], scores: &mut [f32]) {
        match self.levels {
            1 => self.score_as::<1>(rows, scale, queries, scores),
            2 => self.score_as::<2>(rows, scale, queries, scores),
            _ => self.score_as::<4>(rows, scale, queries, scores),
        }
    }

    #[inline(always)]
    fn score_as<const M: usize>(&self, rows: &Rows, scale: f32, queries: &[IntQuery], scores: &mut [f32]) {
        let count = rows.count();
        let (fours, ones) = queries.as_chunks::<4>();
        let (four_scores, one_scores) = scores.split_at_mut(4 * fours.len() * count);
        for (queries, scores) in fours.iter().zip(four_scores.chunks_exact_mut(4 * count)) {
            self.score_with::<M, 4>(rows, scale, queries, scores);
        }
        for (query, scores) in ones.iter().zip(one_scores.chunks_exact_mut(count)) {
            self.score_with::<M, 1>(rows, scale, &[*query], scores);
        }
    }

    /// Q queries that share the look-ups.
    #[inline(always)]
    fn score_with<const M: usize, const Q: usize>(
        &self,
        rows: &Rows,
        scale: f32,
        queries: &[IntQuery; Q],
        scores: &mut [f32],
    ) {
        let count = rows.count();
        let mut values = [[L::splat(0); EACH]; Q];
        for (values, query) in values.iter_mut().zip(queries) {
            for (i, value) in values.iter_mut().enumerate() {
                let mut bytes = [0; 16];
                for (byte, ints) in bytes.iter_mut().zip(query.values.as_chunks::<EACH>().0) {
                    *byte = ints[i] as u8;
                }
                *value = L::load(&bytes);
            }
        }
        for (r, row) in rows.bytes.chunks_exact(rows.stride).enumerate() {
            let mut sums = [L::splat(0); Q];
            for (i, centroids) in self.centroids::<M>(row).into_iter().enumerate() {
                for (sum, values) in sums.iter_mut().zip(&values) {
                    *sum = L::dot_bytes(*sum, centroids, values[i]);
                }
            }
            let row_scale = f16_to_f32(u16::from_le_bytes([row[0], row[1]]));
            for (q, (query, sum)) in queries.iter().zip(sums).enumerate() {
                scores[q * count + r] = (L::sum(sum) as f32 * (query.scale * scale)) * row_scale;
            }
        }
    }

    /// The first, second, … coordinate of each byte.
    #[inline(always)]
    fn centroids<const M: usize>(&self, row: &[u8]) -> [L::V; EACH] {
        let load = |start: usize| row[start..].first_chunk().map_or(L::splat(0), |bytes| L::load(bytes));
        let path = load(2);
        // Half of a byte, and half of the one before.
        let before = L::shift_bytes_right(L::lookup(path, self.before), 4);
        let inner = L::or(L::multiply_words(L::and(path, L::splat(15)), L::splat_word(16)), before);
        // Codes of the first coordinates, of the last ones.
        let codes = match M {
            2 => [load(2 + PATH); 2],
            4 => {
                let (a, b) = (load(2 + PATH), load(2 + 2 * PATH));
                let up = |x| L::multiply_words(x, L::splat_word(256));
                [L::upper_bytes(up(a), up(b)), L::upper_bytes(a, b)]
            }
            _ => [path; 2],
        };
        // One by one, so that each becomes its own shifts.
        let at = |i: usize| self.look_up::<M>(i, if i < 3 { inner } else { path }, codes[i / 4]);
        [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]
    }

    /// Coordinate `i` of each byte.
    #[inline(always)]
    fn look_up<const M: usize>(&self, i: usize, path: L::V, codes: L::V) -> L::V {
        let windows = match i {
            0..3 => L::shift_bytes_right(path, i as u32 + 1),
            3 => path,
            _ => L::shift_bytes_right(path, i as u32 - 3),
        };
        let index_bits = L::splat((16 * M - 1) as u8);
        if M == 1 {
            return L::lookup(self.table[0], L::and(windows, index_bits));
        }
        // Shifts of words move bits into the next byte: below the code's, where they are masked.
        let codes = match if M == 4 { 2 * (i % 4) } else { i } {
            4 => codes,
            at @ 0..4 => L::multiply_words(codes, L::splat_word(1 << (4 - at))),
            at => L::shift_bytes_right(codes, at as u32 - 4),
        };
        let above = L::splat((16 * M - 16) as u8);
        L::lookup_64(&self.table, L::and(L::select(above, codes, windows), index_bits))
    }
}
