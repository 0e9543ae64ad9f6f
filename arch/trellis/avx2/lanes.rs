//! Scores and weighted sums of trellis codes for common shapes: rows of 128, 64 and 32 coordinates,
//! up to 8 states (16 for 128), and codes of 0 to 3 bits.
//!
//! Rows r and r + 4 share a register, or four rows of 64, or eight of 32. Each byte has eight
//! neighbouring coordinates, one for each of eight lookups, in the order of the path plane. (With
//! codes of two bits it has four, in the order of their plane.)
//!
//! ```text
//! register     │ row r: 16 path bytes │ row r + 4: 16 path bytes │
//! byte k         coordinates 8k … 8k+7: lookup i takes coordinate i of every byte
//!
//! index          the window's four newest bits, by a shift and a mask: for `vpshufb`
//! tables         a fifth window bit and the code's bits choose among tables: each is moved to the top of its
//!                byte, where `vpblendvb` looks
//! ```
//!
//! The query is put into this order, once a page.
//!
//! On Intel Sapphire Rapids, a row of 128 and a query take 8.4 ns with 64 centroids and 14 ns with
//! 128. The general kernels of `avx2.rs` take 32 and 35 ns. A whole attention step (8 states, m =
//! 4, keys and values) takes half of their time at width 64. At width 32 it takes a tenth, because
//! `avx2.rs` leaves short rows to the specification.

mod look_up;
mod many;
mod planes;

use crate::codes::avx2::many::{Buffer, taken};
use crate::codes::scalar::{PAGE, finish_sums};
use crate::registers::Integers;
use crate::registers::avx2::{scales_of_eight, store_first};
use crate::rows::{Blocks, ROWS};
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use look_up::{centroids, tables};
use many::{score_tiles, sum_tiles};
use planes::all_planes;

/// Coordinates of a lane: of one row, of two or of four.
const LANE: usize = 128;
/// The widths of which two or four rows share a lane.
const HALF: usize = LANE / 2;
const QUARTER: usize = LANE / 4;
/// The number of queries from which on tiles are faster, for scores and for sums.
const MANY: [usize; 2] = [16, 8];
/// Queries that share a pass over the rows.
pub(crate) const QUERIES: usize = 8;
/// Registers of a pair of rows.
const EACH: usize = 8;
/// The most tables: three bits of a code, and one of the window.
const TABLES: usize = 16;

/// A query in the order of the lookups: magnitudes, and the values whose signs move to the
/// centroids.
type Values = [[__m256i; 2]; EACH];

/// Calls a function for the number of bits of a code.
macro_rules! for_codes {
    ($book:expr, $function:ident::<$lanes:ident, $five:literal, $dim:ident>($($argument:expr),*)) => {
        match $book.levels() {
            1 => $function::<$lanes, 0, $five, $dim>($($argument),*),
            2 => $function::<$lanes, 1, $five, $dim>($($argument),*),
            4 => $function::<$lanes, 2, $five, $dim>($($argument),*),
            8 => $function::<$lanes, 3, $five, $dim>($($argument),*),
            _ => return false,
        }
    };
}

/// Calls a function for a shape.
macro_rules! for_shape {
    ($book:expr, $rows:expr, $function:ident::<$lanes:ident>($($argument:expr),*)) => {{
        match ($rows.dim, $book.states()) {
            (LANE, ..=8) => for_codes!($book, $function::<$lanes, false, LANE>($book, $rows, $($argument),*)),
            (LANE, 16) => for_codes!($book, $function::<$lanes, true, LANE>($book, $rows, $($argument),*)),
            (HALF, ..=8) => for_codes!($book, $function::<$lanes, false, HALF>($book, $rows, $($argument),*)),
            (QUARTER, ..=8) => for_codes!($book, $function::<$lanes, false, QUARTER>($book, $rows, $($argument),*)),
            _ => return false,
        }
        true
    }};
}

/// Returns whether there is a kernel for a shape.
pub(crate) fn takes(book: &TrellisCodebook, dim: usize) -> bool {
    let width = dim == LANE && book.states() <= 16 || [HALF, QUARTER].contains(&dim) && book.states() <= 8;
    width && [1, 2, 4, 8].contains(&book.levels())
}

/// Scores queries if there is a kernel for the shape. Returns whether there is.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score<L: Integers<V = __m256i>>(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) -> bool {
    for_shape!(book, rows, score_as::<L>(scale, queries, scores))
}

/// Adds rows for as many queries as are faster with tiles, if there is a kernel for the shape.
/// Returns how many those were.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sum_many<L: Integers<V = __m256i>>(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) -> usize {
    let taken = taken(acc.len() / rows.dim, MANY[1]);
    let (weights, acc) = (&weights[..taken * rows.count()], &mut acc[..taken * rows.dim]);
    let sum = |acc: &mut [f32]| -> bool { for_shape!(book, rows, sum_tiles::<L>(scale, weights, acc)) };
    if taken > 0 && sum(acc) { taken } else { 0 }
}

/// Adds up to 256 rows for up to eight queries, if there is a kernel for the shape. Returns whether
/// there is.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sum_page<L: Integers<V = __m256i>>(
    book: &TrellisCodebook,
    rows: &Rows,
    ints: &[[i16; PAGE]],
    units: &[Option<f32>],
    acc: &mut [f32],
) -> bool {
    for_shape!(book, rows, sum_as::<L>(ints, units, acc))
}

/// Scores codes of `BITS` bits. Windows have five bits if `FIVE`, otherwise up to four.
#[target_feature(enable = "avx2,fma,f16c")]
fn score_as<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = rows.count();
    let (many, queries) = queries.split_at(taken(queries.len(), MANY[0]));
    let (many_scores, scores) = scores.split_at_mut(many.len() * count);
    if !many.is_empty() {
        score_tiles::<L, BITS, FIVE, DIM>(book, rows, scale, many, many_scores);
    }
    let tables = tables::<L, BITS, FIVE>(book, L::BIAS);
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        if let [query] = queries {
            score_one::<L, BITS, FIVE, DIM>(&tables, &blocks, scale, query, scores);
        } else {
            score_some::<L, BITS, FIVE, DIM>(&tables, &blocks, scale, queries, scores);
        }
    }
}

/// Scores a pair of rows with one query.
#[target_feature(enable = "avx2,fma,f16c")]
fn score_one<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    tables: &[__m256i; TABLES],
    blocks: &Blocks,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let (values, start) = (values::<BITS, DIM>(query), start::<L, BITS, DIM>(query));
    for (i, scores) in scores.chunks_mut(8).enumerate() {
        let (block, r) = (blocks.get(i / (ROWS / 8)), i % (ROWS / 8) * 8);
        if r == 0 {
            blocks.prefetch_apart(i / (ROWS / 8));
        }
        // Load all planes first: from memory to a window takes as long as the lookups of a pair.
        let planes = all_planes::<BITS, DIM>(&block, r);
        let mut sums = [_mm256_setzero_si256(); 4];
        for (i, planes) in planes[..DIM / 32].iter().enumerate() {
            add::<L, BITS, DIM>(i, &centroids::<L, BITS, FIVE>(tables, planes), &values, start, &mut sums);
        }
        finish::<BITS, DIM>(sums, query.scale * scale, scales_of_eight(&block, r), scores);
    }
}

/// Scores rows with several queries, which share the lookups.
#[target_feature(enable = "avx2,fma,f16c")]
fn score_some<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    tables: &[__m256i; TABLES],
    blocks: &Blocks,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let mut all = [([[_mm256_setzero_si256(); 2]; EACH], _mm256_setzero_si256()); QUERIES];
    for ((values_of, start_of), query) in all.iter_mut().zip(queries) {
        (*values_of, *start_of) = (values::<BITS, DIM>(query), start::<L, BITS, DIM>(query));
    }
    let all = &all[..queries.len()];
    let count = scores.len() / queries.len();
    for first in (0..count).step_by(8) {
        let (block, r) = (blocks.get(first / ROWS), first % ROWS);
        if r == 0 {
            blocks.prefetch_apart(first / ROWS);
        }
        let mut sums = [[_mm256_setzero_si256(); 4]; QUERIES];
        for (i, planes) in all_planes::<BITS, DIM>(&block, r)[..DIM / 32].iter().enumerate() {
            let found = centroids::<L, BITS, FIVE>(tables, planes);
            for (sums, (values, start)) in sums.iter_mut().zip(all) {
                add::<L, BITS, DIM>(i, &found, values, *start, sums);
            }
        }
        let scales = scales_of_eight(&block, r);
        for ((sums, query), scores) in sums.into_iter().zip(queries).zip(scores.chunks_exact_mut(count)) {
            let end = count.min(first + 8);
            finish::<BITS, DIM>(sums, query.scale * scale, scales, &mut scores[first..end]);
        }
    }
}

/// Adds rows of one shape for up to eight queries.
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_as<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    book: &TrellisCodebook,
    rows: &Rows,
    ints: &[[i16; PAGE]],
    units: &[Option<f32>],
    acc: &mut [f32],
) {
    let tables = tables::<L, BITS, FIVE>(book, 0);
    let zero = _mm256_setzero_si256();
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let queries = acc.len() / DIM;
    // For each lookup, bytes 0 to 8 of a lane, then the others.
    let (mut sums, mut weights) = (Buffer::<_, QUERIES>::EMPTY, Buffer::<_, QUERIES>::EMPTY);
    let (sums, weights) = (sums.first(queries, [[zero; 2]; EACH]), weights.first(queries, [zero; 4]));
    let mut found = [[zero; EACH]; 4];
    for first in (0..rows.count()).step_by(8) {
        let (block, r) = (blocks.get(first / ROWS), first % ROWS);
        if r == 0 {
            blocks.prefetch_apart(first / ROWS);
        }
        let planes = all_planes::<BITS, DIM>(&block, r);
        for (found, planes) in found[..DIM / 32].iter_mut().zip(&planes) {
            *found = centroids::<L, BITS, FIVE>(&tables, planes);
        }
        for (weights, ints) in weights.iter_mut().zip(ints) {
            for (i, weights) in weights.iter_mut().enumerate() {
                let (a, b) = (ints[first + i], ints[first + i + 4]);
                *weights = _mm256_set1_epi32(i32::from(b) << 16 | i32::from(a as u16));
            }
        }
        for k in 0..EACH {
            let mut pairs = [[zero; 2]; 4];
            for (pair, found) in pairs[..DIM / 32].iter_mut().zip(&found) {
                let (a, b) = (_mm256_castsi256_si128(found[k]), _mm256_extracti128_si256::<1>(found[k]));
                *pair = [
                    _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)),
                    _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)),
                ];
            }
            for (sums, weights) in sums.iter_mut().zip(&*weights) {
                for (half, sum) in sums[k].iter_mut().enumerate() {
                    for (i, pair) in pairs[..DIM / 32].iter().enumerate() {
                        let of = |byte| weights[i * (LANE / DIM) + row_of_lane::<BITS, DIM>(k, byte)];
                        let weights = _mm256_blend_epi32::<0b1111_0000>(of(8 * half), of(8 * half + 4));
                        *sum = L::dot_words(*sum, pair[half], weights);
                    }
                }
            }
        }
    }
    for ((sums, unit), acc) in sums.iter().zip(units).zip(acc.chunks_exact_mut(DIM)) {
        let Some(unit) = unit else { continue };
        let mut in_order = [0; DIM];
        for (k, sums) in sums.as_chunks::<4>().0.iter().enumerate() {
            for half in 0..2 {
                // Four lookups of a byte are four neighbouring coordinates.
                let [a, b, c, d] = *sums;
                for (i, four) in transpose([a[half], b[half], c[half], d[half]]).into_iter().enumerate() {
                    let lanes = [_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four)];
                    for (lane, sum) in lanes.into_iter().enumerate() {
                        let first = coordinate::<BITS, DIM>(4 * k, 8 * half + 4 * lane + i);
                        add_to(&mut in_order.as_chunks_mut().0[first / 4], sum);
                    }
                }
            }
        }
        finish_sums(&in_order, *unit, acc);
    }
}

/// Transposes four rows of four dwords in each half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (low_ac, high_ac) = (_mm256_unpacklo_epi32(a, c), _mm256_unpackhi_epi32(a, c));
    let (low_bd, high_bd) = (_mm256_unpacklo_epi32(b, d), _mm256_unpackhi_epi32(b, d));
    [
        _mm256_unpacklo_epi32(low_ac, low_bd),
        _mm256_unpackhi_epi32(low_ac, low_bd),
        _mm256_unpacklo_epi32(high_ac, high_bd),
        _mm256_unpackhi_epi32(high_ac, high_bd),
    ]
}

/// Adds four integers to others in memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_to(four: &mut [i32; 4], sum: __m128i) {
    let place = four.as_mut_ptr().cast();
    // SAFETY: the array has four integers.
    unsafe { _mm_storeu_si128(place, _mm_add_epi32(_mm_loadu_si128(place), sum)) }
}

/// Returns which coordinate the `k`-th lookup finds for byte `i` of a lane.
fn coordinate<const BITS: usize, const DIM: usize>(k: usize, i: usize) -> usize {
    let in_lane = if BITS == 2 { k / 4 * 64 + i * 4 + k % 4 } else { i * 8 + k };
    in_lane % DIM
}

/// Returns which of a lane's rows the `k`-th lookup finds for byte `i`.
fn row_of_lane<const BITS: usize, const DIM: usize>(k: usize, i: usize) -> usize {
    let in_lane = if BITS == 2 { k / 4 * 64 + i * 4 } else { i * 8 };
    in_lane / DIM
}

/// Adds the products of lookups number `i` of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<L: Integers<V = __m256i>, const BITS: usize, const DIM: usize>(
    i: usize,
    found: &[__m256i; EACH],
    values: &Values,
    start: __m256i,
    sums: &mut [__m256i; 4],
) {
    if DIM < LANE && BITS == 2 {
        sums[2 * i] = dot::<L>(start, &found[..4], &values[..4]);
        sums[2 * i + 1] = dot::<L>(start, &found[4..], &values[4..]);
    } else {
        sums[i] = dot::<L>(start, found, values);
    }
}

/// Returns the number of `i32` partial sums that [`finish`] adds up for one row's score: 1, 2 or 4.
const fn partial_sums<const BITS: usize, const DIM: usize>() -> usize {
    if BITS == 2 && DIM < LANE { DIM / 16 } else { DIM / 32 }
}

/// Returns (f32(sum) · factor) · row scale of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<const BITS: usize, const DIM: usize>(
    [a, b, c, d]: [__m256i; 4],
    factor: f32,
    scales: __m256,
    scores: &mut [f32],
) {
    let sums = match partial_sums::<BITS, DIM>() {
        1 => a,
        2 => {
            let a = _mm256_shuffle_epi32::<0b11_01_10_00>(a);
            let b = _mm256_shuffle_epi32::<0b11_01_10_00>(b);
            _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
        }
        _ => add_pairs(add_pairs(a, c), add_pairs(b, d)),
    };
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(factor));
    store_first(scores, _mm256_mul_ps(scaled, scales));
}

/// Adds lanes i and i + 2 of each half, alternating between a and b. `vphaddd` takes four times as
/// long on Zen 5.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_pairs(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
}

/// Puts a query into the order of the lookups.
///
/// Interleaving the bytes of registers that are half of all apart moves the uppermost bit of a byte's
/// number to the bottom. Four times, with eight registers, byte 8i + k comes to register k, place i:
///
/// ```text
/// number of a byte    r₂ r₁ r₀ │ b₃ b₂ b₁ b₀       register │ place
/// after four rounds   b₂ b₁ b₀ │ r₂ r₁ r₀ b₃       with codes of two bits, r₂ stays: two groups of four registers
/// ```
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values<const BITS: usize, const DIM: usize>(query: &IntQuery) -> Values {
    let sixteens = query.values.as_chunks::<16>().0;
    let mut bytes = [_mm_setzero_si128(); EACH];
    for (i, bytes) in bytes.iter_mut().enumerate() {
        let words = sixteens[i % (DIM / 16)].as_ptr();
        // SAFETY: the array has sixteen words.
        *bytes =
            unsafe { _mm_packs_epi16(_mm_loadu_si128(words.cast()), _mm_loadu_si128(words.add(8).cast())) };
    }
    let group = if BITS == 2 { EACH / 2 } else { EACH };
    for _ in 0..4 {
        let from = bytes;
        for (i, pair) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            let first = 2 * i / group * group + i % (group / 2);
            let (a, b) = (from[first], from[first + group / 2]);
            *pair = [_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)];
        }
    }
    let mut values = [[_mm256_setzero_si256(); 2]; EACH];
    for (values, bytes) in values.iter_mut().zip(bytes) {
        let both = _mm256_broadcastsi128_si256(bytes);
        *values = [_mm256_abs_epi8(both), both];
    }
    values
}

/// Returns the value with which each sum begins: it cancels what the centroids' bias adds to a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn start<L: Integers<V = __m256i>, const BITS: usize, const DIM: usize>(query: &IntQuery) -> __m256i {
    let sum = query.values.iter().map(|value| i32::from(*value)).sum::<i32>();
    _mm256_set1_epi32(-i32::from(L::BIAS) / partial_sums::<BITS, DIM>() as i32 * sum)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<L: Integers<V = __m256i>>(
    mut sum: __m256i,
    centroids: &[__m256i],
    values: &[[__m256i; 2]],
) -> __m256i {
    for (centroids, [magnitudes, signed]) in centroids.iter().zip(values) {
        sum = L::dot_signed(sum, *centroids, *magnitudes, *signed);
    }
    sum
}
