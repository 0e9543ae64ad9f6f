//! Scores of windowed codebooks for rows of 128 coordinates, codes of at most two bits and up to 64 centroids.
//!
//! Two rows share a register, and each byte of it has four neighbouring coordinates, one for each of four look-ups. Of
//! two-bit codes that is how they lie: two of the four are where an index wants them, below the window's bits or above
//! (two orders of one table), and one shift brings the other two there. The path bits of a quadword's 32 coordinates, with
//! the byte before, come from one `vpermb`, and each look-up's windows from one `vpmultishiftqb`. It is the query that
//! is put into that order, once a page.

use super::codes::scales;
use super::score::{add_four, finish};
use super::window_pairs::{load_16, load_32, load_signed};
use super::{load, load_words, narrow, store_first};
use crate::windows::WindowCodebook;
use crate::x86_64::rows::{Block, Blocks, ROWS};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;

/// Coordinates of a row.
const DIM: usize = 128;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;

/// The bytes of two path planes that a quadword's 32 coordinates need: the one before (of the first, there is none), four.
static PATH_BYTES: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        bytes[i] = ((4 * (i / 8) + i % 8 + 63) % 64) as u8;
        i += 1;
    }
    bytes
};

/// Bytes whose path bit has none before it in the row.
const STARTS: u64 = 1 | 1 << 32;

/// The bytes of two planes of one-bit codes, four to a quadword.
static CODE_BYTES: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        bytes[i] = (4 * (i / 8) + i % 8 % 4) as u8;
        i += 1;
    }
    bytes
};

/// Coordinates of the first look-up.
static COORDINATES: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        bytes[i] = (4 * (i % 32)) as u8;
        i += 1;
    }
    bytes
};

/// The first bit of the quadword's four coordinates: 0, 4, 8 …
const STEPS: i64 = 0x1c18_1410_0c08_0400;

/// For each look-up, how its indices are found, and its centroids, 128 more.
struct LookUp {
    path_shifts: __m512i,
    code_shifts: __m512i,
    window_bits: __m512i,
    table: __m512i,
    query: __m512i,
}

/// Scores one query if the shape is of these; `false` if not.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn score(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) -> bool {
    if rows.dim != DIM || book.centroids().len() > 64 {
        return false;
    }
    match book.levels() {
        1 => score_as::<0>(book, rows, scale, query, scores),
        2 => score_as::<1>(book, rows, scale, query, scores),
        4 => score_as::<2>(book, rows, scale, query, scores),
        _ => return false,
    }
    true
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_as<const BITS: usize>(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let half =
        |i: usize| narrow(load_words(&query.values[i..i + 32]), load_words(&query.values[i + 32..i + 64]));
    let (low, high) = (half(0), half(64));
    let bias = _mm512_set1_epi8(-128);
    let excess = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, low), bias, high);
    // What the offset of the centroids adds to each sum.
    let excess = _mm512_set1_epi32(_mm512_reduce_add_epi32(excess));
    let factor = _mm512_set1_ps(query.scale * scale);
    let look_ups = [0, 1, 2, 3].map(|p| LookUp::new::<BITS>(book, p, low, high));
    let (path_bytes, code_bytes) = (load(&PATH_BYTES), load(&CODE_BYTES));

    let mut padded = None;
    let blocks = Blocks::with(rows, rows.stride, &mut padded);
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        let block = blocks.get(i);
        let mut sums = [[_mm512_setzero_si512(); 4]; 2];
        for (i, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
            // Rows r and r + 4 side by side.
            let r = i + i / 4 * 4;
            let path = _mm512_castsi256_si512(two_halves(&block, 2, r));
            let path = _mm512_maskz_permutexvar_epi8(!STARTS, path_bytes, path);
            let codes = match BITS {
                0 => path,
                1 => {
                    let codes = _mm512_castsi256_si512(two_halves(&block, 2 + PATH, r));
                    _mm512_permutexvar_epi8(code_bytes, codes)
                }
                _ => two_wholes(&block, 2 + PATH, r),
            };
            let shifted = _mm512_srli_epi16::<2>(codes);
            for (p, look_up) in look_ups.iter().enumerate() {
                let mut index = _mm512_multishift_epi64_epi8(look_up.path_shifts, path);
                if BITS > 0 {
                    let codes = match (BITS, p) {
                        (1, _) => _mm512_multishift_epi64_epi8(look_up.code_shifts, codes),
                        (_, 0 | 2) => codes,
                        _ => shifted,
                    };
                    index = _mm512_ternarylogic_epi64::<0xca>(look_up.window_bits, index, codes);
                }
                *sum =
                    _mm512_dpbusd_epi32(*sum, _mm512_permutexvar_epi8(index, look_up.table), look_up.query);
            }
        }
        let [a, b] = sums.map(|sums| add_four(sums));
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let sums = _mm512_add_epi32(even, odd);
        store_first(finish(sums, excess, factor, scales(&block)), scores);
    }
}

/// Sixteen bytes of row `r`, sixteen of row `r + 4`.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn two_halves(block: &Block, start: usize, r: usize) -> __m256i {
    let window = block.window(start, start + 16);
    let [a, b] = [r, r + 4].map(|r| load_16(window.first(r)));
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b)
}

/// 32 bytes of row `r`, 32 of row `r + 4`.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn two_wholes(block: &Block, start: usize, r: usize) -> __m512i {
    let window = block.window(start, start + 32);
    let [a, b] = [r, r + 4].map(|r| load_32(window.first(r)));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
}

impl LookUp {
    /// The `p`-th coordinates of bytes.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new<const BITS: usize>(book: &WindowCodebook, p: i8, low: __m512i, high: __m512i) -> Self {
        // Two-bit codes lie at bits 4 and 5, with four bits of the window below, or at bits 0 and 1.
        let history = if BITS == 2 { 3 } else { book.history() as i8 };
        let below = if BITS == 2 && p < 2 { 2 } else { 0 };
        // A shorter history needs the window's upper bits only; indices repeat in a larger table.
        let (own, spare) = (book.history() as u8 + 1, history as u8 - book.history() as u8);
        let mut order = [0; 64];
        for (i, place) in order.iter_mut().enumerate() {
            let i = i as u8;
            let (window, code) =
                if below > 0 { (i >> 2, i & 3) } else { (i & ((2 << history) - 1), i >> (history + 1)) };
            *place = code << own | window >> spare;
        }
        let last = book.centroids().len() as i8 - 1;
        let order = _mm512_and_si512(load(&order), _mm512_set1_epi8(last));
        let table = _mm512_permutexvar_epi8(order, load_signed(book.centroids()));
        let coordinate = _mm512_add_epi8(_mm512_set1_epi64(STEPS), _mm512_set1_epi8(p));
        let shifts = |by: i8| _mm512_add_epi8(coordinate, _mm512_set1_epi8(by));
        let coordinates = _mm512_add_epi8(load(&COORDINATES), _mm512_set1_epi8(p));
        Self {
            path_shifts: shifts(8 - history - below),
            code_shifts: shifts(-history - 1),
            window_bits: _mm512_set1_epi8(((2 << history) - 1) << below),
            table: _mm512_xor_si512(table, _mm512_set1_epi8(-128)),
            query: _mm512_permutex2var_epi8(low, coordinates, high),
        }
    }
}
