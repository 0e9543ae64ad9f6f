//! Trees of polar coordinates with AVX2, eight rows at a time. A lane is a row, and each node of
//! the tree is one register.
//!
//! ```text
//! lanes        row 0 │ row 1 │ … │ row 7
//! node 0       cos     cos         cos           looked up by the codes of node 0 in the eight rows
//!              sin     sin         sin
//! sum 0        q₀·cos + q₁·sin     …             then sums of two nodes meet at the node above
//! ```
//!
//! Cosines and sines are looked up in registers, with one `vpermps` for each eight of them. These
//! lookups and the transposition from bytes to lanes use one port of Sapphire Rapids, and bound the
//! time. With codes of 3 bits and 128 coordinates a score takes 31 ns there, and 139 ns with
//! `wide.rs`. A sum takes 49 and 148 ns.

use super::wide;
use crate::codes::wide::unpack::{Codes, MARGIN, SPARE, Segment, gather, kind};
use crate::registers::Integers;
use crate::registers::avx2::fields::{halves_of_eight, transpose};
use crate::registers::avx2::{Avx2, Ymm, load_ps, store_first, store_ps};
use crate::{AngleTree, Angles, MAX_DIM, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Rows in a block, one a lane.
const ROWS: usize = 8;

/// Codes of the widest row, and those that the last register of a stream has too many.
const MAX_CODES: usize = MAX_DIM + 16;

/// The cosines and sines of a node in eight rows.
type Direction = [__m256; 2];

/// Implements `scalar::score_angles`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_angles(tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    if !taken(tree, bytes) {
        return wide::score_angles::<Avx2>(tree, bytes, queries, scores);
    }
    let count = bytes.len() / tree.row_bytes();
    let (mut buffers, mut spare) = (Buffers::new(), [0; SPARE]);
    let segments = segments(tree, bytes, &mut spare);
    let mut sums = [_mm256_setzero_ps(); MAX_DIM / 2];
    for first in (0..count).step_by(ROWS) {
        let directions = buffers.look_up(tree, &segments, first);
        for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
            let (mut nodes, mut rest) = (tree.dim / 2, directions);
            for ((sum, pair), [cos, sin]) in sums.iter_mut().zip(query.as_chunks::<2>().0).zip(rest) {
                let (a, b) = (_mm256_set1_ps(pair[0]), _mm256_set1_ps(pair[1]));
                *sum = _mm256_add_ps(_mm256_mul_ps(a, *cos), _mm256_mul_ps(b, *sin));
            }
            for _ in 1..tree.levels.len() {
                rest = &rest[nodes..];
                nodes /= 2;
                for (i, [cos, sin]) in rest[..nodes].iter().enumerate() {
                    let (a, b) = (_mm256_mul_ps(sums[2 * i], *cos), _mm256_mul_ps(sums[2 * i + 1], *sin));
                    sums[i] = _mm256_add_ps(a, b);
                }
            }
            let mut score = _mm256_mul_ps(halves_of_eight(bytes, tree.row_bytes(), first, 0), sums[0]);
            for (root, sum) in sums.iter().enumerate().take(tree.roots()).skip(1) {
                score = _mm256_add_ps(
                    score,
                    _mm256_mul_ps(halves_of_eight(bytes, tree.row_bytes(), first, 2 * root), *sum),
                );
            }
            store_first(&mut scores[first..count.min(first + ROWS)], score);
        }
    }
}

/// Implements `scalar::accumulate_angles`.
///
/// Values are decoded with a row in each lane, from the roots down. Then eight coordinates of eight
/// rows are transposed at a time.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_angles(tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    if !taken(tree, bytes) || !tree.dim.is_multiple_of(ROWS) {
        return wide::accumulate_angles::<Avx2>(tree, bytes, weights, acc);
    }
    let count = bytes.len() / tree.row_bytes();
    let (mut buffers, mut spare) = (Buffers::new(), [0; SPARE]);
    let segments = segments(tree, bytes, &mut spare);
    let mut values = [_mm256_setzero_ps(); MAX_DIM];
    for first in (0..count).step_by(ROWS) {
        let directions = buffers.look_up(tree, &segments, first);
        let (mut nodes, mut done) = (tree.roots(), tree.codes());
        for (root, value) in values[..nodes].iter_mut().enumerate() {
            *value = halves_of_eight(bytes, tree.row_bytes(), first, 2 * root);
        }
        while nodes < tree.dim {
            done -= nodes;
            for (i, [cos, sin]) in directions[done..done + nodes].iter().enumerate().rev() {
                let radius = values[i];
                values[2 * i] = _mm256_mul_ps(radius, *cos);
                values[2 * i + 1] = _mm256_mul_ps(radius, *sin);
            }
            nodes *= 2;
        }
        for (chunk, values) in values[..tree.dim].as_chunks().0.iter().enumerate() {
            let rows = transpose(values);
            for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(tree.dim)) {
                let acc = &mut acc.as_chunks_mut().0[chunk];
                let mut sum = load_ps(acc);
                for (row, weight) in rows.iter().zip(&weights[first..]) {
                    sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(*weight), *row));
                }
                store_ps(acc, sum);
            }
        }
    }
}

/// Returns whether these kernels run: if there are rows, and rows are short. Trees of more than one
/// or two levels have short rows.
fn taken(tree: &AngleTree, bytes: &[u8]) -> bool {
    !bytes.is_empty() && tree.row_bytes() <= MAX_DIM
}

/// Splits rows into those that can be read with a margin behind them, and a copy of the others.
/// Reads of the last stream's codes end farthest behind, at most a margin behind the row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn segments<'a>(tree: &AngleTree, bytes: &'a [u8], spare: &'a mut [u8; SPARE]) -> [Segment<'a>; 2] {
    let len = tree.row_bytes();
    let rows = Rows { bytes, stride: len, len, dim: tree.dim, scales: None, ahead: &[] };
    Segment::both(&rows, len + MARGIN, spare)
}

/// Buffers that blocks of rows share. They are created once a call, because they are larger than
/// what a block reads and writes.
struct Buffers {
    /// The codes of each node, one for each row.
    by_node: [[u8; ROWS]; MAX_CODES],
    /// The cosines and sines of each node.
    directions: [MaybeUninit<Direction>; MAX_DIM],
}

impl Buffers {
    const fn new() -> Self {
        Self { by_node: [[0; ROWS]; MAX_CODES], directions: [const { MaybeUninit::uninit() }; MAX_DIM] }
    }

    /// Looks up the directions of all nodes in eight rows.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn look_up(&mut self, tree: &AngleTree, segments: &[Segment; 2], first: usize) -> &[Direction] {
        let rows = gather::<4>(segments, first);
        let (mut at, mut done) = (2 * tree.roots(), 0);
        for (count, packing) in tree.streams() {
            let codes = Codes::<Ymm>::new(kind::ORDERED, packing, count, at);
            let sixteens = self.by_node[done..].as_chunks_mut().0;
            for (register, by_node) in sixteens.iter_mut().enumerate().take(codes.registers()) {
                turn(codes.unit::<{ kind::ORDERED }, 4>(&rows, register), by_node);
            }
            (at, done) = (at + packing.bytes(count), done + count);
        }
        let (mut nodes, mut done) = (tree.dim / 2, 0);
        for angles in tree.levels {
            let tables = Tables::new(angles);
            let places = self.directions[done..done + nodes].iter_mut().zip(&self.by_node[done..]);
            for (direction, codes) in places {
                let codes = _mm_cvtsi64_si128(i64::from_le_bytes(*codes));
                direction.write(tables.look_up(_mm256_cvtepu8_epi32(codes)));
            }
            (nodes, done) = (nodes / 2, done + nodes);
        }
        let written: *const [MaybeUninit<Direction>] = &raw const self.directions[..done];
        // SAFETY: the levels have `done` nodes in all, and each has been written.
        unsafe { &*(written as *const [Direction]) }
    }
}

/// Transposes sixteen codes of eight rows, so that the codes of each node are together. Each
/// register has the codes of rows i and i + 4, one after the other.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn turn([a, b, c, d]: [__m256i; 4], by_node: &mut [[u8; ROWS]; 16]) {
    let (ab, cd) = (Ymm::interleave(a, b), Ymm::interleave(c, d));
    let rows_together = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (half, by_node) in by_node.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let fours = [_mm256_unpacklo_epi16(ab[half], cd[half]), _mm256_unpackhi_epi16(ab[half], cd[half])];
        for (four, by_node) in fours.into_iter().zip(by_node.as_chunks_mut::<4>().0) {
            let turned = _mm256_permutevar8x32_epi32(four, rows_together);
            // SAFETY: the codes of four nodes for eight rows are the 32 bytes that are written.
            unsafe { _mm256_storeu_si256(by_node.as_mut_ptr().cast(), turned) };
        }
    }
}

/// A codebook in registers: up to 16 cosines and sines. Larger codebooks are gathered from memory.
struct Tables<'a> {
    angles: Angles<'a>,
    cos: [__m256; 2],
    sin: [__m256; 2],
}

impl<'a> Tables<'a> {
    /// Loads a codebook.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(angles: &Angles<'a>) -> Self {
        let mut tables = [[0.0; 16]; 2];
        for (i, direction) in angles.directions.iter().take(16).enumerate() {
            [tables[0][i], tables[1][i]] = *direction;
        }
        let halves = |table: &[f32; 16]| {
            let halves = table.as_chunks().0;
            [load_ps(&halves[0]), load_ps(&halves[1])]
        };
        Self { angles: *angles, cos: halves(&tables[0]), sin: halves(&tables[1]) }
    }

    /// Looks up the cosine and sine of eight codes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn look_up(&self, codes: __m256i) -> Direction {
        match self.angles.bits {
            ..=3 => {
                [_mm256_permutevar8x32_ps(self.cos[0], codes), _mm256_permutevar8x32_ps(self.sin[0], codes)]
            }
            4 => {
                // The fourth bit moves to the top, where the blend looks.
                let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
                let of = |[low, high]: [__m256; 2]| {
                    let (low, high) =
                        (_mm256_permutevar8x32_ps(low, codes), _mm256_permutevar8x32_ps(high, codes));
                    _mm256_blendv_ps(low, high, upper)
                };
                [of(self.cos), of(self.sin)]
            }
            _ => {
                let directions = self.angles.directions.as_flattened();
                let last = _mm256_set1_epi32(directions.len() as i32 - 2);
                let cos = _mm256_min_epu32(_mm256_slli_epi32::<1>(codes), last);
                let sin = _mm256_add_epi32(cos, _mm256_set1_epi32(1));
                // SAFETY: no cosine lies behind the last one, and a sine follows each.
                unsafe {
                    [
                        _mm256_i32gather_ps::<4>(directions.as_ptr(), cos),
                        _mm256_i32gather_ps::<4>(directions.as_ptr(), sin),
                    ]
                }
            }
        }
    }
}
