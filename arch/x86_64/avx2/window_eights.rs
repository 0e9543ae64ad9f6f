//! Scores of windowed codebooks for rows of 128 coordinates, codes of at most two bits and up to 8 states.
//!
//! Two rows share a register, and each byte of it has eight neighbouring coordinates, one for each of eight look-ups, as
//! the path plane has them: a window of four bits is a shift and a mask away (where it begins in the byte before, of the
//! two bytes' inner halves), and it is an index of `vpshufb`. Each code has a table of its own; the bits of the codes
//! blend what was found, brought to the top of their bytes one after another. It is the query that is put into that order,
//! once a page.

use super::{load, scales_of_eight, store_first};
use crate::windows::WindowCodebook;
use crate::x86_64::rows::{Block, Blocks, ROWS};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;

/// Coordinates of a row.
const DIM: usize = 128;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;
/// Queries that share a pass over the rows.
const QUERIES: usize = 8;
/// Coordinates of a byte.
const EACH: usize = 8;

/// A query in the look-ups' order: magnitudes, and the values whose signs go to the centroids.
type Values = [[__m256i; 2]; EACH];

/// Scores queries if the shape is of these; `false` if not.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn score(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) -> bool {
    if rows.dim != DIM || book.states() > 8 {
        return false;
    }
    match book.levels() {
        1 => score_as::<1>(book, rows, scale, queries, scores),
        2 => score_as::<2>(book, rows, scale, queries, scores),
        4 => score_as::<4>(book, rows, scale, queries, scores),
        _ => return false,
    }
    true
}

#[target_feature(enable = "avx2,fma,f16c")]
fn score_as<const M: usize>(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let tables = tables::<M>(book);
    let count = rows.count();
    let mut padded = None;
    let blocks = Blocks::with(rows, rows.stride, &mut padded);
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        if let [query] = queries {
            let values = values(query);
            for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
                let block = blocks.get(i);
                let mut sums = [[_mm256_setzero_si256(); 4]; 2];
                for (i, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
                    *sum = dot(&centroids::<M>(&tables, &block, i + i / 4 * 4), &values);
                }
                for (half, (sums, scores)) in sums.into_iter().zip(scores.chunks_mut(8)).enumerate() {
                    finish(sums, query.scale * scale, scales_of_eight(&block, 8 * half), scores);
                }
            }
            continue;
        }
        let mut all = [[[_mm256_setzero_si256(); 2]; EACH]; QUERIES];
        for (all, query) in all.iter_mut().zip(queries) {
            *all = values(query);
        }
        for first in (0..count).step_by(8) {
            let block = blocks.get(first / ROWS);
            let mut sums = [[_mm256_setzero_si256(); 4]; QUERIES];
            for r in 0..4 {
                let found = centroids::<M>(&tables, &block, first % ROWS + r);
                for (sums, values) in sums.iter_mut().zip(&all[..queries.len()]) {
                    sums[r] = dot(&found, values);
                }
            }
            let scales = scales_of_eight(&block, first % ROWS);
            for ((sums, query), scores) in sums.into_iter().zip(queries).zip(scores.chunks_exact_mut(count)) {
                let end = count.min(first + 8);
                finish(sums, query.scale * scale, scales, &mut scores[first..end]);
            }
        }
    }
}

/// (f32(sum) · factor) · row scale of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish([a, b, c, d]: [__m256i; 4], factor: f32, scales: __m256, scores: &mut [f32]) {
    let sums = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(factor));
    store_first(scores, _mm256_mul_ps(scaled, scales));
}

/// The centroids of each code by windows of four bits, of which a shorter history needs the upper ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tables<const M: usize>(book: &WindowCodebook) -> [__m256i; M] {
    let mut tables = [_mm256_setzero_si256(); M];
    for (table, centroids) in tables.iter_mut().zip(book.centroids().chunks_exact(book.windows())) {
        let mut bytes = [0i8; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = centroids[(i % 16) >> (3 - book.history())];
        }
        *table = load(&bytes);
    }
    tables
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values(query: &IntQuery) -> Values {
    let mut bytes = [[0i8; 32]; EACH];
    for (i, ints) in query.values.as_chunks::<EACH>().0.iter().enumerate() {
        for (bytes, int) in bytes.iter_mut().zip(ints) {
            (bytes[i], bytes[16 + i]) = (*int as i8, *int as i8);
        }
    }
    bytes.map(|bytes| [_mm256_abs_epi8(load(&bytes)), load(&bytes)])
}

/// `vpmaddubsw` wants an unsigned operand: it gets the query's magnitudes, and the centroids their signs. Sums of two
/// products stay below 2¹⁵, as both are at most 127.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot(centroids: &[__m256i; EACH], values: &Values) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for (centroids, [magnitudes, signed]) in centroids.iter().zip(values) {
        let products = _mm256_maddubs_epi16(*magnitudes, _mm256_sign_epi8(*centroids, *signed));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
    }
    sum
}

/// The first, second, … coordinate of each byte in rows `r` and `r + 4`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn centroids<const M: usize>(tables: &[__m256i; M], block: &Block, r: usize) -> [__m256i; EACH] {
    let low = _mm256_set1_epi8(15);
    let path = two(block, 2, r);
    // Half of a byte, and half of the one before.
    let before = _mm256_and_si256(_mm256_srli_epi16::<4>(_mm256_bslli_epi128::<1>(path)), low);
    let inner = _mm256_or_si256(_mm256_slli_epi16::<4>(_mm256_and_si256(path, low)), before);
    let windows = [
        _mm256_srli_epi16::<1>(inner),
        _mm256_srli_epi16::<2>(inner),
        _mm256_srli_epi16::<3>(inner),
        path,
        _mm256_srli_epi16::<1>(path),
        _mm256_srli_epi16::<2>(path),
        _mm256_srli_epi16::<3>(path),
        _mm256_srli_epi16::<4>(path),
    ];
    // Codes of the first coordinates, of the last ones.
    let mut codes = [path; 2];
    if M == 2 {
        codes = [two(block, 2 + PATH, r); 2];
    }
    if M == 4 {
        let (a, b) = (two(block, 2 + PATH, r), two(block, 2 + 2 * PATH, r));
        let bytes = _mm256_set1_epi16(0xff);
        codes = [
            _mm256_packus_epi16(_mm256_and_si256(a, bytes), _mm256_and_si256(b, bytes)),
            _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b)),
        ];
    }
    let mut found = [path; EACH];
    for i in (0..EACH).rev() {
        let window = _mm256_and_si256(windows[i], low);
        let look_up = |code: usize| _mm256_shuffle_epi8(tables[code % M], window);
        found[i] = look_up(0);
        if M == 2 {
            found[i] = _mm256_blendv_epi8(found[i], look_up(1), codes[0]);
            codes[0] = _mm256_add_epi8(codes[0], codes[0]);
        }
        if M == 4 {
            // The highest bits are the last coordinate's, the upper one first.
            let codes = &mut codes[i / 4];
            let upper = *codes;
            let lower = _mm256_add_epi8(upper, upper);
            *codes = _mm256_add_epi8(lower, lower);
            let even = _mm256_blendv_epi8(found[i], look_up(1), lower);
            let odd = _mm256_blendv_epi8(look_up(2), look_up(3), lower);
            found[i] = _mm256_blendv_epi8(even, odd, upper);
        }
    }
    found
}

/// Sixteen bytes of row `r`, sixteen of row `r + 4`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two(block: &Block, start: usize, r: usize) -> __m256i {
    let window = block.window(start, start + 16);
    let [a, b] = [r, r + 4].map(|r| {
        let bytes: &[u8; 16] = window.first(r);
        // SAFETY: the array has 16 bytes.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    });
    _mm256_set_m128i(b, a)
}
