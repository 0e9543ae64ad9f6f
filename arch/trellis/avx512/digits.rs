//! Scores of windowed codebooks for rows of 128 coordinates, codes of base-3 digits and up to two raw bits, and up to
//! 256 centroids.
//!
//! As in `window_halves.rs`, two rows share a register. Each byte of it has a group of five coordinates, whose digits
//! share a byte of the row, and there is one look-up for each of the five. Two tables of that byte, of 256 entries, give
//! all five digits where indices want them, the last one after a shift; there is no arithmetic. The rest is found as in
//! that file, except raw codes of two bits: those of eight groups do not fit a quadword, so each look-up collects the
//! bytes that its codes are in.

use super::halves::{Query, arrange, find, load_16, load_halves, permute};
use crate::registers::avx512::load;
use crate::rows::{Blocks, ROWS, Window};
use crate::trellis::layout::WindowCodebook;
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;

/// Coordinates of a row.
const DIM: usize = 128;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;
/// Digits in a byte.
const GROUP: usize = 5;
/// Bytes of a row's digit plane.
const GROUPS: usize = DIM.div_ceil(GROUP);

/// A byte for each place in a register: the first 32 are groups of one row, the others of another.
type Places = [u8; 64];

/// The coordinates of look-ups; from 128 on there are none.
const fn coordinates() -> [Places; GROUP] {
    let mut places = [[0; 64]; GROUP];
    let mut i = 0;
    while i < GROUP * 64 {
        places[i / 64][i % 64] = (GROUP * (i % 32) + i / 64) as u8;
        i += 1;
    }
    places
}

/// The bytes of two rows' planes of one bit that a quadword needs, for forty coordinates and some before them. From
/// index 16 on there are zeros: before the first byte, there is none.
const BIT_BYTES: Places = {
    let mut bytes = [16; 64];
    let mut i = 0;
    while i < 64 {
        let (row, after) = (i / 32, GROUP * (i / 8 % 4) + i % 8);
        if after >= 1 && after <= PATH {
            bytes[i] = (64 * row + after - 1) as u8;
        }
        i += 1;
    }
    bytes
};

/// The bit of a group's first coordinate in its quadword.
const FIRST_BITS: Places = {
    let mut bits = [0; 64];
    let mut i = 0;
    while i < 64 {
        bits[i] = (8 + GROUP * (i % 8)) as u8;
        i += 1;
    }
    bits
};

/// The bytes of two rows' raw bits that look-ups' codes of two bits are in.
const fn pair_bytes() -> [Places; GROUP] {
    let mut places = coordinates();
    let mut i = 0;
    while i < GROUP * 64 {
        let coordinate = places[i / 64][i % 64] as usize;
        places[i / 64][i % 64] = (i % 64 / 32 * 32 + coordinate % DIM / 4) as u8;
        i += 1;
    }
    places
}

/// The bits of quadwords of these bytes at which the codes begin.
const fn pair_bits() -> [Places; GROUP] {
    let mut places = coordinates();
    let mut i = 0;
    while i < GROUP * 64 {
        places[i / 64][i % 64] = (8 * (i % 8)) as u8 + 2 * (places[i / 64][i % 64] % 4);
        i += 1;
    }
    places
}

/// The bytes of two rows' digits, which lie at the end of 32 bytes.
const DIGIT_BYTES: Places = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        if i % 32 < GROUPS {
            bytes[i] = (i / 32 * 64 + 32 - GROUPS + i % 32) as u8;
        }
        i += 1;
    }
    bytes
};

/// Valid bits of these: the last group has three digits, five bits.
const DIGIT_BITS: Places = {
    let mut bits = [0xff; 64];
    (bits[GROUPS - 1], bits[32 + GROUPS - 1]) = (0x1f, 0x1f);
    bits
};

/// The two layouts of an index, by the first bit of the window. Raw bits are above it; the digit is above them in the
/// first layout, below the window in the second.
const LAYOUTS: [usize; 2] = [0, 2];

/// The layouts of look-ups: two of them share windows that `vpmultishiftqb` has taken, and digits from one table.
const LAYOUT: [usize; GROUP] = [0, 0, 1, 1, 1];

/// The first bit of a digit in an index.
const fn digit_at(raw: usize, history: u32, layout: usize) -> usize {
    if layout == 0 { history as usize + 1 + raw } else { 0 }
}

/// The digits of a byte where look-ups 0, 2 and 4 want them, 4's two bits higher; or look-ups 1 and 3.
const fn digits(raw: usize, history: u32, odd: usize) -> [Places; 4] {
    let mut table = [[0; 64]; 4];
    let mut i = 0;
    while i < 256 {
        let (mut rest, mut look_up, mut byte) = (i, 0, 0);
        while look_up < GROUP {
            if look_up % 2 == odd {
                let spare = if look_up == GROUP - 1 { 2 } else { 0 };
                byte |= (rest % 3) << (digit_at(raw, history, LAYOUT[look_up]) + spare);
            }
            rest /= 3;
            look_up += 1;
        }
        table[i / 64][i % 64] = byte as u8;
        i += 1;
    }
    table
}

/// For each layout and index: code << (history + 1) | window. A digit 3 does not occur.
const fn orders<const TABLES: usize>(raw: usize, history: u32) -> [[Places; TABLES]; 2] {
    let mut orders = [[[0; 64]; TABLES]; 2];
    let mut i = 0;
    while i < 2 * TABLES * 64 {
        let (layout, index) = (i / 64 / TABLES, i % (TABLES * 64));
        let above = index >> LAYOUTS[layout];
        let window = above & ((2 << history) - 1);
        let low = above >> (history + 1) & ((1 << raw) - 1);
        let digit = index >> digit_at(raw, history, layout) & 3;
        let code = ((digit % 3) << raw) | low;
        orders[layout][index / 64][index % 64] = (code << (history + 1) | window) as u8;
        i += 1;
    }
    orders
}

/// Scores one query if the shape is of these; `false` if not.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) -> bool {
    if rows.dim != DIM {
        return false;
    }
    match (book.levels(), book.history()) {
        (3, ..=4) => score_as::<0, 4, 2>(book, rows, scale, query, scores),
        (3, 5) => score_as::<0, 5, 4>(book, rows, scale, query, scores),
        (6, ..=3) => score_as::<1, 3, 2>(book, rows, scale, query, scores),
        (6, 4) => score_as::<1, 4, 4>(book, rows, scale, query, scores),
        (12, ..=3) => score_as::<2, 3, 4>(book, rows, scale, query, scores),
        _ => return false,
    }
    true
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_as<const RAW: usize, const HISTORY: u32, const TABLES: usize>(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let query = Query::new(query, scale);
    let values = const { coordinates() }.map(|coordinates| query.bytes(&coordinates));
    let orders = const { orders::<TABLES>(RAW, HISTORY) };
    let tables = [arrange(book, -128, HISTORY, &orders[0]), arrange(book, -128, HISTORY, &orders[1])];
    let digit_tables = const { [digits(RAW, HISTORY, 0), digits(RAW, HISTORY, 1)] };
    let digit_tables = digit_tables.map(|table| table.map(|bytes| load(&bytes)));
    let (bit_bytes, digit_bytes, digit_bits) = (load(&BIT_BYTES), load(&DIGIT_BYTES), load(&DIGIT_BITS));
    let plus = |x: __m512i, by: i8| _mm512_add_epi8(x, _mm512_set1_epi8(by));
    let (history, first_bits) = (HISTORY as i8, load(&FIRST_BITS));
    let window_shifts = [0, 1, 2].map(|i| plus(first_bits, i - history));
    let raw_shifts = window_shifts.map(|shifts| plus(shifts, -1));
    let pair_bytes = const { pair_bytes() }.map(|bytes| load(&bytes));
    let mut pair_shifts = const { pair_bits() }.map(|bits| plus(load(&bits), -1 - history));
    let bits = |at: usize, count: usize| _mm512_set1_epi8((((1u32 << count) - 1) << at) as i8);
    let window = HISTORY as usize + 1;
    let window_bits = LAYOUTS.map(|at| bits(at, window));
    let raw_bits = LAYOUTS.map(|at| bits(at + window, RAW));
    for (shifts, layout) in pair_shifts.iter_mut().zip(LAYOUT) {
        *shifts = plus(*shifts, -(LAYOUTS[layout] as i8));
    }

    let zero = _mm512_setzero_si512();
    let mut padded = None;
    let blocks = Blocks::with(rows, rows.stride, &mut padded);
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        let end = 2 + PATH + RAW * PATH + GROUPS;
        let block = blocks.get(i).apart(end);
        let path = block.window(2, 2 + PATH);
        let raw = block.window(2 + PATH, 2 + PATH + RAW * PATH);
        let groups = block.window(end - 32, end);
        let mut sums = [[zero; 4]; 2];
        // Two pairs of rows at a time: four do not fit the registers, and one waits for its own results.
        for (half, sums) in sums.iter_mut().enumerate() {
            for (pair, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let (mut paths, mut raws, mut digits) = ([zero; 2], [zero; 2], [[zero; 2]; 2]);
                for i in 0..2 {
                    // Rows r and r + 4 side by side.
                    let r = 8 * half + 2 * pair + i;
                    paths[i] = permute(load_16(&path, r), bit_bytes, load_16(&path, r + 4));
                    raws[i] = match RAW {
                        0 => zero,
                        1 => permute(load_16(&raw, r), bit_bytes, load_16(&raw, r + 4)),
                        _ => load_halves::<32>(&raw, 0, r),
                    };
                    let groups = permute(load_32(&groups, r), digit_bytes, load_32(&groups, r + 4));
                    let groups = _mm512_and_si512(groups, digit_bits);
                    digits[i] = [find(&digit_tables[0], groups), find(&digit_tables[1], groups)];
                }
                for (p, layout) in LAYOUT.into_iter().enumerate() {
                    // 0, 1, 0, 1, 2: look-ups two apart find their windows in the same bytes, two bits apart.
                    let above = p - LAYOUTS[layout];
                    for i in 0..2 {
                        let mut codes = digits[i][p % 2];
                        if p == GROUP - 1 {
                            codes = _mm512_srli_epi16::<2>(codes);
                        }
                        if RAW > 0 {
                            let low = if RAW == 1 {
                                _mm512_multishift_epi64_epi8(raw_shifts[above], raws[i])
                            } else {
                                let bytes = _mm512_permutexvar_epi8(pair_bytes[p], raws[i]);
                                _mm512_multishift_epi64_epi8(pair_shifts[p], bytes)
                            };
                            codes = _mm512_ternarylogic_epi64::<0xca>(raw_bits[layout], low, codes);
                        }
                        let windows = _mm512_multishift_epi64_epi8(window_shifts[above], paths[i]);
                        let index = _mm512_ternarylogic_epi64::<0xca>(window_bits[layout], windows, codes);
                        sums[i] = _mm512_dpbusd_epi32(sums[i], find(&tables[layout], index), values[p]);
                    }
                }
            }
        }
        query.finish(sums, &block, scores);
    }
}

/// 32 bytes, zeros behind them.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_32(window: &Window, r: usize) -> __m512i {
    let bytes: &[u8; 32] = window.first(r);
    // SAFETY: the array has 32 bytes.
    _mm512_zextsi256_si512(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
}
