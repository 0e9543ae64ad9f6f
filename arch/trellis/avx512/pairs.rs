//! Scores of trellis codes where rows are whole units of 128 coordinates and an index needs eight bits at most.
//!
//! A lane of eight bytes has sixteen coordinates, the even ones in one register and the odd ones in another. Windows of
//! both come from one `vpmultishiftqb`, which takes any eight neighbouring bits of a quadword for each byte, and a shift;
//! and so do their codes. The path bits of a lane and the byte before them come from one `vpermb`. Codes of 1 and 2 bits
//! come from broadcasts of their 16 and 32 bytes, codes of 4 bits are quadwords already: no shuffle, if each lane takes
//! sixteen coordinates that its quadword has. It is the query that is put into that order, once a page.

use super::{BIAS, MEDIUM, SMALL, WIDE, find, tables};
use crate::codes::avx512::score::{add_four, add_lanes, finish};
use crate::codes::avx512::unpack::scales;
use crate::registers::avx512::{load, load_array, load_codes, load_words, narrow, store_first};
use crate::rows::{Block, Blocks, ROWS, Window};
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, MAX_DIM, Rows};
use core::arch::x86_64::*;

/// Coordinates of two registers.
const UNIT: usize = 128;
/// Units of the widest row.
const UNITS: usize = MAX_DIM / UNIT;

/// By raw bits: the first of a lane's sixteen coordinates.
static FIRST: [[usize; 8]; 5] = [
    [0, 16, 32, 48, 64, 80, 96, 112],
    [0, 64, 16, 80, 32, 96, 48, 112],
    [0, 32, 64, 96, 16, 48, 80, 112],
    [0, 16, 32, 48, 64, 80, 96, 112],
    [0, 16, 32, 48, 64, 80, 96, 112],
];

/// By raw bits: the byte of the path plane's sixteen before a lane's own, and those. (Of the first lane, there is none.)
static PATH_BYTES: [[u8; 64]; 5] = {
    let mut bytes = [[0; 64]; 5];
    let mut i = 0;
    while i < 5 * 64 {
        bytes[i / 64][i % 64] = ((FIRST[i / 64][i % 64 / 8] / 8 + i % 8 + 63) % 64) as u8;
        i += 1;
    }
    bytes
};

/// The bit of an even coordinate in its lane's path bits.
static PATH_SHIFTS: [u8; 64] = {
    let mut shifts = [0; 64];
    let mut i = 0;
    while i < 64 {
        shifts[i] = (8 + 2 * (i % 8)) as u8;
        i += 1;
    }
    shifts
};

/// By raw bits: the first bit of an odd coordinate's code in its lane's quadword.
static CODE_SHIFTS: [[u8; 64]; 5] = {
    let mut shifts = [[0; 64]; 5];
    let mut i = 0;
    while i < 5 * 64 {
        let (bits, lane, byte) = (i / 64, i % 64 / 8, i % 8);
        // Broadcast quadwords have more coordinates than their lanes take.
        let skipped = match bits {
            1 | 2 => FIRST[bits][lane] % (64 / bits),
            _ => 0,
        };
        shifts[bits][i % 64] = (bits * (skipped + 2 * byte + 1)) as u8;
        i += 1;
    }
    shifts
};

/// Six bytes with sixteen codes of three bits for each lane.
static SIXES: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        bytes[i] = (6 * (i / 8) + i % 8 % 6) as u8;
        i += 1;
    }
    bytes
};

/// By raw bits: the even coordinates of the lanes.
static EVEN: [[u8; 64]; 5] = {
    let mut coordinates = [[0; 64]; 5];
    let mut i = 0;
    while i < 5 * 64 {
        coordinates[i / 64][i % 64] = (FIRST[i / 64][i % 64 / 8] + 2 * (i % 8)) as u8;
        i += 1;
    }
    coordinates
};

struct Pairs<const KIND: usize> {
    table: [__m512i; 4],
    path_bytes: __m512i,
    path_shifts: __m512i,
    code_shifts: __m512i,
    window_bits: __m512i,
}

/// A query in the lanes' order.
struct Query {
    values: [[__m512i; 2]; UNITS],
    /// 128 · Σ q: what the offset of the centroids adds to each sum.
    excess: __m512i,
    factor: __m512,
}

/// Scores one query if the shape is of these; `false` if not.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) -> bool {
    let (bits, radix) = book.packing().map_or((0, 1), |packing| (packing.raw_bits(), packing.radix()));
    // The even coordinate's code is found below the odd one's, which begins behind the window.
    if !rows.dim.is_multiple_of(UNIT) || radix != 1 || book.history() + 1 < bits {
        return false;
    }
    match (book.centroids().len(), bits) {
        (..=64, 0) => score_as::<SMALL, 0>(book, rows, scale, query, scores),
        (..=64, 1) => score_as::<SMALL, 1>(book, rows, scale, query, scores),
        (..=64, 2) => score_as::<SMALL, 2>(book, rows, scale, query, scores),
        (..=64, _) => score_as::<SMALL, 3>(book, rows, scale, query, scores),
        (..=128, 0) => score_as::<MEDIUM, 0>(book, rows, scale, query, scores),
        (..=128, 1) => score_as::<MEDIUM, 1>(book, rows, scale, query, scores),
        (..=128, 2) => score_as::<MEDIUM, 2>(book, rows, scale, query, scores),
        (..=128, 3) => score_as::<MEDIUM, 3>(book, rows, scale, query, scores),
        (..=128, _) => score_as::<MEDIUM, 4>(book, rows, scale, query, scores),
        (..=256, 1) => score_as::<WIDE, 1>(book, rows, scale, query, scores),
        (..=256, 2) => score_as::<WIDE, 2>(book, rows, scale, query, scores),
        (..=256, 3) => score_as::<WIDE, 3>(book, rows, scale, query, scores),
        (..=256, _) => score_as::<WIDE, 4>(book, rows, scale, query, scores),
        _ => return false,
    }
    true
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_as<const KIND: usize, const BITS: usize>(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    if rows.dim == UNIT {
        score_units::<KIND, BITS, 1>(book, rows, scale, query, scores);
    } else {
        score_units::<KIND, BITS, 0>(book, rows, scale, query, scores);
    }
}

/// `N`: the number of units, if it is known at compile time, and with it the rows' distance; 0 if not.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_units<const KIND: usize, const BITS: usize, const N: usize>(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let units = if N == 0 { rows.dim / UNIT } else { N };
    let pairs = Pairs::<KIND>::new::<BITS>(book);
    let query = Query::new::<BITS>(query, scale);
    let mut padded = None;
    let blocks = Blocks::with(rows, rows.stride, &mut padded);
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        let mut block = blocks.get(i);
        if N > 0 {
            block = block.apart(2 + (1 + BITS) * UNIT / 8 * N);
        }
        let mut fours = [_mm512_setzero_si512(); ROWS / 4];
        for (i, four) in fours.iter_mut().enumerate() {
            let mut sums = [_mm512_setzero_si512(); 4];
            for (unit, values) in query.values[..units].iter().enumerate() {
                let places = pairs.places::<BITS>(&block, unit, units);
                for (r, sum) in sums.iter_mut().enumerate() {
                    let [a, b] = pairs.centroids::<BITS>(&places, unit, 4 * i + r);
                    *sum = _mm512_dpbusd_epi32(*sum, a, values[0]);
                    *sum = _mm512_dpbusd_epi32(*sum, b, values[1]);
                }
            }
            *four = add_four(sums);
        }
        let sums = add_lanes(fours);
        store_first(finish(sums, query.excess, query.factor, scales(&block)), scores);
    }
}

impl Query {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new<const BITS: usize>(query: &IntQuery, scale: f32) -> Self {
        let even = load(&EVEN[BITS]);
        let odd = _mm512_add_epi8(even, _mm512_set1_epi8(1));
        let mut values = [[_mm512_setzero_si512(); 2]; UNITS];
        let mut sum = _mm512_setzero_si512();
        for (values, ints) in values.iter_mut().zip(query.values.chunks_exact(UNIT)) {
            let half = |i: usize| narrow(load_words(&ints[i..i + 32]), load_words(&ints[i + 32..i + 64]));
            let (low, high) = (half(0), half(64));
            *values = [even, odd].map(|index| _mm512_permutex2var_epi8(low, index, high));
            for values in values {
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), *values);
            }
        }
        Self {
            values,
            excess: _mm512_set1_epi32(_mm512_reduce_add_epi32(sum)),
            factor: _mm512_set1_ps(query.scale * scale),
        }
    }
}

impl<const KIND: usize> Pairs<KIND> {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new<const BITS: usize>(book: &TrellisCodebook) -> Self {
        let above = book.history() as i8 + 1;
        let less = |shifts, by| _mm512_sub_epi8(load(shifts), _mm512_set1_epi8(by));
        Self {
            table: tables(book, BIAS),
            path_bytes: load(&PATH_BYTES[BITS]),
            path_shifts: less(&PATH_SHIFTS, above - 1),
            code_shifts: less(&CODE_SHIFTS[BITS], above),
            window_bits: _mm512_set1_epi8((book.windows() - 1) as i8),
        }
    }

    /// Path bits and codes of a unit in each row.
    #[inline(always)]
    fn places<'a, const BITS: usize>(&self, block: &Block<'a>, unit: usize, units: usize) -> [Window<'a>; 2] {
        assert!(unit < units);
        // After the first unit, from the byte before.
        let path = 2 + UNIT / 8 * unit;
        let codes = 2 + UNIT / 8 * (units + BITS * unit);
        [
            block.window(if unit == 0 { path } else { path - 1 }, path + UNIT / 8),
            block.window(codes, codes + UNIT / 8 * BITS),
        ]
    }

    /// 128 centroids, 128 more, in the lanes' order.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroids<const BITS: usize>(
        &self,
        [path, codes]: &[Window; 2],
        unit: usize,
        r: usize,
    ) -> [__m512i; 2] {
        // Before the path plane, there are zeros.
        let path = if unit == 0 {
            let path = load_array::<16>(path.first(r));
            _mm512_maskz_permutexvar_epi8(!1, self.path_bytes, path)
        } else {
            // A byte earlier, so that all indices are one too low.
            let path = load_array::<17>(path.first(r));
            let indices = _mm512_add_epi8(self.path_bytes, _mm512_set1_epi8(1));
            _mm512_permutexvar_epi8(indices, path)
        };
        let windows = _mm512_multishift_epi64_epi8(self.path_shifts, path);
        // Shifts of words move bits into the next byte: above the window, or below the code.
        let windows = [windows, _mm512_srli_epi16::<1>(windows)];
        let indices = if BITS == 0 {
            windows
        } else {
            let codes = match BITS {
                1 => _mm512_broadcast_i32x4(load_codes(codes.first(r))),
                2 => _mm512_broadcast_i64x4(_mm512_castsi512_si256(load_array::<32>(codes.first(r)))),
                3 => _mm512_permutexvar_epi8(load(&SIXES), load_array::<48>(codes.first(r))),
                _ => load(codes.first::<64>(r)),
            };
            let codes = _mm512_multishift_epi64_epi8(self.code_shifts, codes);
            let codes = [_mm512_sll_epi16(codes, _mm_cvtsi32_si128(BITS as i32)), codes];
            // Bits of the window below, of the code above; what is above both does not count.
            let join = |i: usize| _mm512_ternarylogic_epi64::<0xca>(self.window_bits, windows[i], codes[i]);
            [join(0), join(1)]
        };
        indices.map(|index| find::<KIND>(&self.table, index))
    }
}
