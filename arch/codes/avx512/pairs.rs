//! Scores of one query for codes of two, three or four plain bits.
//!
//! Two rows share a register, with 32 bytes each, so that their sums take half the additions. A
//! byte is looked up as it lies: `vpermb` uses its lowest six bits, and a table may ignore some of
//! them:
//!
//! ```text
//! byte of 4-bit codes    │ c₁ c₁ c₁ c₁ │ c₀ c₀ c₀ c₀ │     table for c₀: any six low bits; c₁: after a shift by 4
//! byte of 2-bit codes    │ c₃ c₃ │ c₂ c₂ │ c₁ c₁ │ c₀ c₀ │     tables for c₀, c₁, c₂; c₃: after a shift by 2
//! ```
//!
//! So 4 bits take a shift for every second lookup, and 2 bits for every fourth.

use super::sums::finish;
use crate::codes::layout::Codebook;
use crate::registers::avx512::{
    IDENTITY, add_four, load, load_array, load_words, narrow, places, scales, store_first, table,
};
use crate::rows::{Blocks, ROWS, Window, each_page_mut};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;

/// Scores one query if there is a loop for this shape. Returns `false` if not.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score(
    book: &Codebook,
    dim: usize,
    pages: &[Rows],
    query: &IntQuery,
    scores: &mut [f32],
) -> bool {
    let Codebook { packing, centroids, scale } = *book;
    match (packing.levels(), dim) {
        (16, 64) => score_units::<4, 2, 1>(pages, centroids, scale, query, scores),
        (16, 128) => score_units::<4, 2, 2>(pages, centroids, scale, query, scores),
        (16, 256) => score_units::<4, 2, 4>(pages, centroids, scale, query, scores),
        (8, 128) => score_units::<3, 4, 1>(pages, centroids, scale, query, scores),
        (8, 256) => score_units::<3, 4, 2>(pages, centroids, scale, query, scores),
        (4, 128) => score_units::<2, 4, 1>(pages, centroids, scale, query, scores),
        (4, 256) => score_units::<2, 4, 2>(pages, centroids, scale, query, scores),
        _ => return false,
    }
    true
}

/// For 3 bits: the byte indices of a quadword's six bytes, and the first bits of its eight pairs of
/// codes.
static SIXES: [u8; 64] = places!(i => i / 32 * 32 + i % 32 / 8 * 6 + i % 8);
static PAIRS: [u8; 64] = places!(i => 6 * (i % 8));

/// Scores rows of `UNITS` units. A unit takes `LOOK_UPS` lookups of 32 coordinates in each of two
/// rows.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_units<const BITS: usize, const LOOK_UPS: usize, const UNITS: usize>(
    pages: &[Rows],
    centroids: &[i16],
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let mut table = [0; 64];
    for (entry, centroid) in table[..16].iter_mut().zip(centroids) {
        *entry = *centroid as u8 ^ 0x80;
    }
    let table = load(&table);
    // A table for each bit at which a code may begin.
    let table = |bit: u32| {
        let codes = _mm512_srl_epi16(load(&IDENTITY), _mm_cvtsi32_si128(bit as i32));
        _mm512_permutexvar_epi8(_mm512_and_si512(codes, _mm512_set1_epi8((1 << BITS) - 1)), table)
    };
    let tables = [table(0), table(2), table(3), table(4)];
    let (sixes, pairs) = (load(&SIXES), load(&PAIRS));
    let query = Query::<LOOK_UPS, UNITS>::new(query, scale, 32 * LOOK_UPS, const { &coordinates(BITS) });
    for (rows, scores) in each_page_mut(pages, 1, scores) {
        let mut padded = None;
        let blocks = Blocks::new(rows, &mut padded);
        for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
            blocks.prefetch(i);
            let block = blocks.get(i);
            let mut sums = [[_mm512_setzero_si512(); 4]; 2];
            for (half, sums) in sums.iter_mut().enumerate() {
                for (unit, values) in query.values.iter().enumerate() {
                    let start = 2 + 4 * LOOK_UPS * BITS * unit;
                    let end = start + 4 * LOOK_UPS * BITS;
                    let windows = [block.window(start, end), block.window(end - 32, end)];
                    for (r, sum) in (8 * half..).zip(sums.iter_mut()) {
                        let fields = halves::<32>(&windows[0], r);
                        let found = match BITS {
                            2 => [(fields, 0), (fields, 1), (fields, 3), (_mm512_srli_epi16::<2>(fields), 3)],
                            3 => {
                                let upper = halves::<32>(&windows[1], r);
                                let of = |bytes, places| {
                                    _mm512_multishift_epi64_epi8(
                                        pairs,
                                        _mm512_permutexvar_epi8(places, bytes),
                                    )
                                };
                                let (a, b) = (
                                    of(fields, sixes),
                                    of(upper, _mm512_add_epi8(sixes, _mm512_set1_epi8(8))),
                                );
                                [(a, 0), (a, 2), (b, 0), (b, 2)]
                            }
                            _ => [(fields, 0), (_mm512_srli_epi16::<4>(fields), 0), (fields, 0), (fields, 0)],
                        };
                        for (values, (index, table)) in values.iter().zip(found) {
                            let centroids = _mm512_permutexvar_epi8(index, tables[table]);
                            *sum = _mm512_dpbusd_epi32(*sum, centroids, *values);
                        }
                    }
                }
            }
            store_first(finish(add_pairs(sums), query.excess, query.factor, scales(&block)), scores);
        }
    }
}

/// Returns, for each lookup, the coordinate of its unit in each position.
const fn coordinates<const LOOK_UPS: usize>(bits: usize) -> [[u8; 64]; LOOK_UPS] {
    table!(LOOK_UPS; i => places!(place => match bits {
        2 => 4 * (place % 32) + i,
        _ => 64 * (i / 2) + 2 * (place % 32) + i % 2,
    }))
}

/// A query in the order of `L` lookups, for each of `N` units.
pub(crate) struct Query<const L: usize, const N: usize> {
    pub(crate) values: [[__m512i; L]; N],
    /// 128 · Σ q, which the offset of the centroids adds to each sum.
    pub(crate) excess: __m512i,
    /// Query scale times table scale.
    pub(crate) factor: __m512,
}

impl<const L: usize, const N: usize> Query<L, N> {
    /// Orders a query for units of up to 128 coordinates. `coordinates` gives the coordinate of
    /// each position; 128 and more mark unused ones.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(query: &IntQuery, scale: f32, unit: usize, coordinates: &[[u8; 64]; L]) -> Self {
        let mut values = [[_mm512_setzero_si512(); L]; N];
        let mut sum = _mm512_setzero_si512();
        for (values, ints) in values.iter_mut().zip(query.values.chunks_exact(unit)) {
            let words = |i: usize| load_words(ints.get(i..unit.min(i + 32)).unwrap_or_default());
            let half = |i: usize| narrow(words(i), words(i + 32));
            let (low, high) = (half(0), half(64));
            for half in [low, high] {
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), half);
            }
            for (values, coordinates) in values.iter_mut().zip(coordinates) {
                let index = load(coordinates);
                let outside = _mm512_movepi8_mask(index);
                *values = _mm512_maskz_permutex2var_epi8(!outside, low, index, high);
            }
        }
        Self {
            values,
            excess: _mm512_set1_epi32(_mm512_reduce_add_epi32(sum)),
            factor: _mm512_set1_ps(query.scale * scale),
        }
    }
}

/// Loads the first `N` bytes of rows `r` and `r + 4` into the halves of a register.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn halves<const N: usize>(window: &Window, r: usize) -> __m512i {
    let (a, b) = (load_array::<N>(window.first(r)), load_array::<N>(window.first(r + 4)));
    // Sixteen bytes are inserted straight from memory.
    if N == 16 {
        return _mm512_inserti32x4::<2>(a, _mm512_castsi512_si128(b));
    }
    _mm512_inserti64x4::<1>(a, _mm512_castsi512_si256(b))
}

/// Sums rows that are in registers as [`halves`] loads them. The i-th of eight registers has rows i
/// + 4·(i/4) and 4 more.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn add_pairs([a, b]: [[__m512i; 4]; 2]) -> __m512i {
    let (a, b) = (add_four(a), add_four(b));
    let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    _mm512_add_epi32(even, odd)
}
