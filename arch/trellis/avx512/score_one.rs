//! Scores of one query, where an index has at most eight bits. Rows have whole units of 128
//! coordinates if codes are plain bits, and 128 coordinates if they have base-3 digits.
//!
//! Two rows share a register, with 32 bytes each, so that their sums take half the additions. Each
//! byte has four neighbouring coordinates. (It has two if codes have three or four bits, and five
//! if their digits share a byte of the row.) There is one lookup for each of them.
//!
//! ```text
//! register     │ row r: 32 bytes │ row r + 4: 32 bytes │
//! byte k       coordinates 4k … 4k+3; lookup i takes coordinate 4k + i of every byte
//! multishift   any eight bits of the lane's path quadword: moves the window to its place in the index
//! code         stays where it lies or is shifted: the table may have any order
//! ```
//!
//! The query is put into the order of the lookups, once a call.

use super::BIAS;
use super::lanes::tables;
use super::lookup::{MEDIUM, SMALL, WIDE, find};
use crate::codes::avx512::pairs::{Query, add_pairs, halves};
use crate::codes::avx512::sums::finish;
use crate::registers::avx512::{load, places, scales, store_first, table};
use crate::rows::{Block, Blocks, ROWS, Window, each_page_mut};
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, MAX_DIM, Rows};
use core::arch::x86_64::*;

/// Coordinates of two rows in two registers.
const UNIT: usize = 128;
/// Units of the widest row.
const UNITS: usize = MAX_DIM / UNIT;
/// The most lookups of a unit.
const LOOK_UPS: usize = 5;
/// Bytes of a row's digits.
const DIGITS: usize = UNIT.div_ceil(5);

/// A byte for each position in a register, see `places!`. The first 32 belong to one row, the
/// others to another.
type Places = [u8; 64];

/// The parts of an index: a window of `history` + 1 bits, `raw` bits of a code, and two bits of its
/// digit if it has one.
#[derive(Clone, Copy)]
struct Shape {
    raw: usize,
    digit: bool,
    history: usize,
}

/// The order of an index's bits: the lowest bit of each part.
///
/// ```text
///                top bit … lowest bit
/// code first     window │ raw bits │ digit      if the code lies low in its byte
/// window first   digit │ raw bits │ window      if it lies above a window: it is only shifted down
/// in twos        c₁ │ c₀ │ p₁ p₀ p₋₁ p₋₂ p₋₃    c: code, p: path bit; the second coordinate's index
///                                               is this one, shifted down by one bit
/// ```
struct Order {
    window_first: bool,
    /// The digit if there is one, otherwise the raw bits.
    code: usize,
    raw: usize,
    window: usize,
}

impl Shape {
    /// Returns the coordinate of a lookup in a position, 128 and more if it has none. Also returns
    /// its path bit in the quadword that [`path_byte`](Self::path_byte) collects.
    const fn coordinate(self, look_up: usize, place: usize) -> (usize, usize) {
        let (quad, byte) = (place / 8 % 4, place % 8);
        let (first, half, bit) = match (self.digit, self.raw) {
            (true, _) => (40 * quad, 0, 5 * byte + look_up),
            (_, ..=2) => (32 * quad, 0, 4 * byte + look_up),
            _ => (16 * quad, look_up / 2, 2 * byte + look_up % 2),
        };
        (first + 64 * half + bit, 8 + 32 * half + bit)
    }

    /// Returns the byte of the path plane (or of another plane of one bit) for a position. 0 is the
    /// byte before the first.
    const fn path_byte(self, place: usize) -> usize {
        let (quad, byte) = (place / 8 % 4, place % 8);
        match (self.digit, self.raw) {
            (true, _) => 5 * quad + byte,
            (_, ..=2) => 4 * quad + byte,
            _ => 2 * quad + byte % 4 + 8 * (byte / 4),
        }
    }

    /// Returns the lowest bit of a code, or of its digit, in the byte from which a lookup takes it.
    const fn code_bit(self, look_up: usize) -> usize {
        match (self.digit, self.raw) {
            (true, _) => 2 * (look_up % 4),
            (_, 2) => 2 * look_up,
            (_, 3 | 4) => self.raw * (look_up % 2),
            _ => 0,
        }
    }

    /// Returns how the index of a lookup is ordered. The window is first if the code lies high
    /// enough in its byte.
    const fn order(self, look_up: usize) -> Order {
        let window = self.history + 1;
        if self.in_twos() {
            // Here `raw` is not a bit of an index, but the lowest bit of the codes that `twos` takes:
            // see the drawing there.
            return Order { window_first: true, code: 0, raw: 3, window: 0 };
        }
        let upper = if self.digit { window + self.raw } else { window };
        if self.code_bit(look_up) >= upper {
            return Order { window_first: true, code: upper, raw: window, window: 0 };
        }
        let raw = if self.digit { 2 } else { 0 };
        Order { window_first: false, code: 0, raw, window: raw + self.raw }
    }

    /// Returns code << (history + 1) | window for each index, in both orders.
    const fn orders(self) -> [[Places; 4]; 2] {
        let mut orders = [[[0; 64]; 4]; 2];
        let window_bits = self.history + 1;
        let mut i = 0;
        while i < 512 {
            let (window_at, raw_at, digit_at) = if i < 256 {
                (2 * self.digit as usize + self.raw, 2 * self.digit as usize, 0)
            } else if self.in_twos() {
                (0, 5, 6)
            } else {
                (0, window_bits, window_bits + self.raw)
            };
            let window = (i % 256) >> window_at & ((1 << window_bits) - 1);
            let raw = (i % 256) >> raw_at & ((1 << self.raw) - 1);
            // Digit 3 stands for 0, see `digits`.
            let digit = if self.digit { ((i % 256) >> digit_at & 3) % 3 } else { 0 };
            orders[i / 256][i % 256 / 64][i % 64] =
                (((digit << self.raw | raw) << window_bits) | window) as u8;
            i += 1;
        }
        orders
    }

    /// Returns whether one index serves two coordinates, shifted by one bit for the second. Then it
    /// has a window of five bits, and above it the two codes. [`Way::twos`] builds it for the first
    /// and the third of four neighbours.
    const fn in_twos(self) -> bool {
        !self.digit && self.raw == 1 && self.history == 3
    }

    /// Returns the bytes of the path plane, and of another plane of one bit.
    const fn path_bytes(self) -> Places {
        places!(i => (i / 32 * 32 + self.path_byte(i) + 63) % 64)
    }

    /// Returns for a lookup: the shifts of the path bits, the shifts of raw bits, and the bytes
    /// that contain these.
    const fn shifts(self, look_up: usize) -> [Places; 3] {
        let order = self.order(look_up);
        [
            places!(i => (self.coordinate(look_up, i).1 + 64 - self.history - order.window) % 64),
            places!(i => self.raw_place(look_up, i).0 - order.raw),
            places!(i => i / 32 * 32 + self.raw_place(look_up, i).1),
        ]
    }

    /// Returns the bit of a quadword at which raw bits begin, plus 64, and the byte that [`Way`]
    /// collects for this position.
    const fn raw_place(self, look_up: usize, place: usize) -> (usize, usize) {
        let (coordinate, path_bit) = self.coordinate(look_up, place);
        let byte = place % 8;
        match (self.digit, self.raw) {
            (_, 0 | 1) => (64 + path_bit, 0),
            (true, _) => (64 + 8 * byte + 2 * (coordinate % 4), coordinate % UNIT / 4),
            // Six bytes are sixteen codes of three bits. For the second half of a row, the first
            // byte is the eighth.
            _ => (64 + 6 * byte, 6 * (place / 8 % 4) + byte % 6 + look_up / 2 * 8),
        }
    }

    /// Returns the coordinates of a lookup, to put a query into its order.
    const fn coordinates(self, look_up: usize) -> Places {
        places!(i => self.coordinate(look_up, i).0)
    }
}

/// The bytes of digits in the last 32 bytes of two rows.
static DIGIT_BYTES: Places = places!(i => i / 32 * 32 + (32 - DIGITS + i % 32) % 32);

/// The valid bits of digits. The last byte has three digits, which take five bits.
static DIGIT_BITS: Places = places!(i => if i % 32 == DIGITS - 1 { 0x1f } else { 0xff });

/// The lower four digits of numbers below 128, two bits each.
static FOUR_DIGITS: [Places; 2] = [places!(i => four_digits(i)), places!(i => four_digits(64 + i))];

/// Returns the lower four base-3 digits of a number, two bits each.
const fn four_digits(number: usize) -> usize {
    (number % 3) | ((number / 3 % 3) << 2) | ((number / 9 % 3) << 4) | ((number / 27 % 3) << 6)
}

/// Scores one query if there is a kernel for the shape. Returns whether there is. A kernel for a
/// longer history serves a shorter one.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score(
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) -> bool {
    let radix = book.packing().map_or(1, |packing| packing.radix());
    if !dim.is_multiple_of(UNIT) || radix != 1 && dim != UNIT {
        return false;
    }
    match (book.levels(), book.history()) {
        (1, ..=5) => score_as::<0, false, 5>(book, dim, pages, scale, query, scores),
        (1, _) => score_as::<0, false, 6>(book, dim, pages, scale, query, scores),
        (2, ..=3) => score_as::<1, false, 3>(book, dim, pages, scale, query, scores),
        (2, 4) => score_as::<1, false, 4>(book, dim, pages, scale, query, scores),
        (2, 5) => score_as::<1, false, 5>(book, dim, pages, scale, query, scores),
        (2, _) => score_as::<1, false, 6>(book, dim, pages, scale, query, scores),
        (4, ..=3) => score_as::<2, false, 3>(book, dim, pages, scale, query, scores),
        (4, 4) => score_as::<2, false, 4>(book, dim, pages, scale, query, scores),
        (4, 5) => score_as::<2, false, 5>(book, dim, pages, scale, query, scores),
        (8, 2) => score_as::<3, false, 2>(book, dim, pages, scale, query, scores),
        (8, 3) => score_as::<3, false, 3>(book, dim, pages, scale, query, scores),
        (8, 4) => score_as::<3, false, 4>(book, dim, pages, scale, query, scores),
        (16, 2) => score_as::<4, false, 2>(book, dim, pages, scale, query, scores),
        (16, 3) => score_as::<4, false, 3>(book, dim, pages, scale, query, scores),
        (3, ..=3) => score_as::<0, true, 3>(book, dim, pages, scale, query, scores),
        (3, 4) => score_as::<0, true, 4>(book, dim, pages, scale, query, scores),
        (3, 5) => score_as::<0, true, 5>(book, dim, pages, scale, query, scores),
        (6, ..=3) => score_as::<1, true, 3>(book, dim, pages, scale, query, scores),
        (6, 4) => score_as::<1, true, 4>(book, dim, pages, scale, query, scores),
        (12, ..=3) => score_as::<2, true, 3>(book, dim, pages, scale, query, scores),
        _ => return false,
    }
    true
}

/// Scores rows of one shape.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_as<const RAW: usize, const DIGIT: bool, const HISTORY: usize>(
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    if DIGIT || dim == UNIT {
        score_units::<RAW, DIGIT, HISTORY, 1>(book, dim, pages, scale, query, scores);
    } else {
        score_units::<RAW, DIGIT, HISTORY, UNITS>(book, dim, pages, scale, query, scores);
    }
}

/// Scores rows of up to `N` units. If there is only one, the compiler knows that, and with it the
/// distance of rows.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_units<const RAW: usize, const DIGIT: bool, const HISTORY: usize, const N: usize>(
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let units = if N == 1 { 1 } else { dim / UNIT };
    let way = Way::<RAW, DIGIT, HISTORY>::new(book);
    let query =
        Query::<LOOK_UPS, N>::new(query, scale, UNIT, const { &Way::<RAW, DIGIT, HISTORY>::COORDINATES });
    for (rows, scores) in each_page_mut(pages, 1, scores) {
        let mut padded = None;
        let blocks = Blocks::new(rows, &mut padded);
        for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
            // In a separate function, m = 4 takes 2.5 ns a row instead of 3.0 from the second-level
            // cache. With m = 8 and 16 it would take 1.05 to 1.1 of the time (Zen 4).
            if RAW > 2 {
                blocks.prefetch(i);
            } else {
                blocks.prefetch_apart(i);
            }
            let block = blocks.get(i);
            let mut sums = [[_mm512_setzero_si512(); 4]; 2];
            for (half, sums) in sums.iter_mut().enumerate() {
                for (unit, values) in query.values[..units].iter().enumerate() {
                    let windows = Way::<RAW, DIGIT, HISTORY>::windows(&block, unit, units);
                    for (r, sum) in (8 * half..).zip(sums.iter_mut()) {
                        let planes = way.planes(&windows, unit, units, r);
                        for (look_up, values) in values.iter().enumerate().take(if DIGIT { 5 } else { 4 }) {
                            *sum = _mm512_dpbusd_epi32(*sum, way.centroids(look_up, &planes), *values);
                        }
                    }
                }
            }
            store_first(finish(add_pairs(sums), query.excess, query.factor, scales(&block)), scores);
        }
    }
}

/// The constants that find the centroids of two rows.
struct Way<const RAW: usize, const DIGIT: bool, const HISTORY: usize> {
    /// The centroids plus 128, in the two orders of an index.
    tables: [[__m512i; 4]; 2],
    path_bytes: __m512i,
    /// See `Shape::shifts`.
    shifts: [[__m512i; 3]; LOOK_UPS],
    /// The bits of windows and of raw bits, in the two orders.
    window_bits: [__m512i; 2],
    raw_bits: [__m512i; 2],
}

/// The bytes of two rows for a unit: quadwords of path bits, bytes with the codes or digits of its
/// halves, and raw bits if there are digits.
type Planes = [__m512i; 4];

impl<const RAW: usize, const DIGIT: bool, const HISTORY: usize> Way<RAW, DIGIT, HISTORY> {
    const SHAPE: Shape = Shape { raw: RAW, digit: DIGIT, history: HISTORY };
    const ORDERS: [[Places; 4]; 2] = Self::SHAPE.orders();
    const PATH_BYTES: Places = Self::SHAPE.path_bytes();
    const SHIFTS: [[Places; 3]; LOOK_UPS] = table!(LOOK_UPS; i => Self::SHAPE.shifts(i));
    const COORDINATES: [Places; LOOK_UPS] = table!(LOOK_UPS; i => Self::SHAPE.coordinates(i));
    /// The bits by which indices are found: 6, 7 or 8.
    const KIND: usize = match HISTORY + 1 + RAW + 2 * DIGIT as usize {
        ..=6 => SMALL,
        7 => MEDIUM,
        _ => WIDE,
    };

    /// Builds the tables of a codebook.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(book: &TrellisCodebook) -> Self {
        let mut chunks = [_mm512_setzero_si512(); 4];
        tables(book, BIAS, &mut chunks);
        // A shorter history is the upper bits of a window.
        let spare = HISTORY as u32 - book.history();
        let (inside, down) = (_mm512_set1_epi8((0xffu8 >> spare) as i8), _mm_cvtsi32_si128(spare as i32));
        let zero = _mm512_setzero_si512();
        let mut way = Self {
            tables: [[zero; 4]; 2],
            path_bytes: load(const { &Self::PATH_BYTES }),
            shifts: [[zero; 3]; LOOK_UPS],
            window_bits: [zero; 2],
            raw_bits: [zero; 2],
        };
        for (table, order) in
            way.tables.as_flattened_mut().iter_mut().zip(const { &Self::ORDERS }.as_flattened())
        {
            let order = _mm512_and_si512(_mm512_srl_epi16(load(order), down), inside);
            *table = find(Self::KIND, &chunks, order);
        }
        for (shifts, bytes) in
            way.shifts.as_flattened_mut().iter_mut().zip(const { &Self::SHIFTS }.as_flattened())
        {
            *shifts = load(bytes);
        }
        let digit = 2 * usize::from(DIGIT);
        for (order, (window, raw)) in [(digit + RAW, digit), (0, HISTORY + 1)].into_iter().enumerate() {
            let bits = |count: usize, at: usize| (((1u32 << count) - 1) << at) as i8;
            way.window_bits[order] = _mm512_set1_epi8(bits(HISTORY + 1, window));
            way.raw_bits[order] = _mm512_set1_epi8(bits(RAW, raw));
        }
        way
    }

    /// Returns where each row has the path bits of a unit, its codes or raw bits (the first half if
    /// they take more than 32 bytes), and its digits or the second half.
    #[inline]
    fn windows<'a>(block: &Block<'a>, unit: usize, units: usize) -> [Window<'a>; 3] {
        assert!(unit < units);
        // After the first unit, begin one byte earlier.
        let path = 2 + UNIT / 8 * unit;
        let raw = 2 + UNIT / 8 * (units + RAW * unit);
        let end = raw + UNIT / 8 * RAW + if DIGIT { DIGITS } else { 0 };
        [
            block.window(if unit == 0 { path } else { path - 1 }, path + UNIT / 8),
            block.window(raw, end),
            block.window(end - if RAW > 0 || DIGIT { 32 } else { 0 }, end),
        ]
    }

    /// Loads rows `r` and `r + 4`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn planes(&self, [path, raw, last]: &[Window; 3], unit: usize, units: usize, r: usize) -> Planes {
        if const { Self::SHAPE.in_twos() } && units == 1 {
            // Path plane and codes together are 32 bytes.
            let bytes = halves::<32>(last, r);
            let path = _mm512_maskz_permutexvar_epi8(!(1 << 32 | 1), self.path_bytes, bytes);
            let codes = _mm512_add_epi8(self.path_bytes, _mm512_set1_epi8(16));
            return self.twos(path, _mm512_permutexvar_epi8(codes, bytes));
        }
        // In front of the path plane are zeros. In front of another unit is a byte more, so all its
        // indices are one too low.
        let path = if unit == 0 {
            _mm512_maskz_permutexvar_epi8(!(1 << 32 | 1), self.path_bytes, halves::<16>(path, r))
        } else {
            let indices = _mm512_add_epi8(self.path_bytes, _mm512_set1_epi8(1));
            _mm512_permutexvar_epi8(indices, halves::<17>(path, r))
        };
        let raw = match RAW {
            0 => path,
            1 => _mm512_permutexvar_epi8(self.path_bytes, halves::<16>(raw, r)),
            2 => halves::<32>(raw, r),
            3 => self.threes(0, halves::<32>(raw, r)),
            _ => halves::<32>(raw, r),
        };
        if const { Self::SHAPE.in_twos() } {
            return self.twos(path, raw);
        }
        if DIGIT {
            let [a, b] = Self::digits(halves::<32>(last, r));
            return [path, a, b, raw];
        }
        let upper = match RAW {
            3 => self.threes(2, halves::<32>(last, r)),
            4 => halves::<32>(last, r),
            _ => raw,
        };
        [path, raw, upper, raw]
    }

    /// Returns the indices of coordinates 0 and 2 of each byte. Shifted down by one bit, they are
    /// those of coordinates 1 and 3. An index has six bits; `vpermb` ignores the bits above.
    ///
    /// ```text
    /// bit       7    6    5    4    3    2    1    0         p: path bits, c: codes
    /// path      …    p₃   p₂   p₁   p₀   p₋₁  p₋₂  p₋₃
    /// codes     …    c₃   c₂   c₁   c₀   …
    ///
    /// first     …    c₁   c₀   p₁   p₀   p₋₁  p₋₂  p₋₃       codes << 2 above five bits of path
    /// third     …    c₃   c₂   p₃   p₂   p₁   p₀   p₋₁       codes above five bits of path >> 2
    /// ```
    ///
    /// The table ignores bit 4: it is the window bit, or the code, of the other coordinate.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn twos(&self, path: __m512i, codes: __m512i) -> Planes {
        let [window_shifts, code_shifts, _] = self.shifts[0];
        let path = _mm512_multishift_epi64_epi8(window_shifts, path);
        let codes = _mm512_multishift_epi64_epi8(code_shifts, codes);
        let five = _mm512_set1_epi8(0x1f);
        let first = _mm512_ternarylogic_epi64::<0xca>(five, path, _mm512_slli_epi16::<2>(codes));
        let third = _mm512_ternarylogic_epi64::<0xca>(five, _mm512_srli_epi16::<2>(path), codes);
        [first, third, first, third]
    }

    /// Returns codes of three bits, with those of neighbours side by side.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn threes(&self, look_up: usize, bytes: __m512i) -> __m512i {
        let [_, shifts, places] = self.shifts[look_up];
        _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(places, bytes))
    }

    /// Returns the digits of groups of five: the lower four with two bits each, then the last one
    /// in the lowest two bits.
    ///
    /// The remainder of a number after 81, 162 or 243 is the least of the differences, because the
    /// others wrap. 243 stands for 0, as 3 does.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn digits(bytes: __m512i) -> [__m512i; 2] {
        let groups = _mm512_and_si512(_mm512_permutexvar_epi8(load(&DIGIT_BYTES), bytes), load(&DIGIT_BITS));
        let less = |by: u8| _mm512_sub_epi8(groups, _mm512_set1_epi8(by as i8));
        let rest = _mm512_min_epu8(_mm512_min_epu8(groups, less(81)), _mm512_min_epu8(less(162), less(243)));
        let four = _mm512_permutex2var_epi8(load(&FOUR_DIGITS[0]), rest, load(&FOUR_DIGITS[1]));
        // 81, 162 and 243 are 1, 2 and 3 modulo 4.
        [four, _mm512_sub_epi8(groups, rest)]
    }

    /// Looks up the centroids of a lookup.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroids(&self, look_up: usize, planes @ [path, low, high, raw]: &Planes) -> __m512i {
        if const { Self::SHAPE.in_twos() } {
            let index = planes[look_up / 2];
            let index = if look_up.is_multiple_of(2) { index } else { _mm512_srli_epi16::<1>(index) };
            return find(Self::KIND, &self.tables[1], index);
        }
        let [window_shifts, code_shifts, code_bytes] = self.shifts[look_up];
        let order = Self::SHAPE.order(look_up);
        let table = usize::from(order.window_first);
        let mut index = _mm512_multishift_epi64_epi8(window_shifts, *path);
        if RAW > 0 || DIGIT {
            let upper = if DIGIT { look_up == 4 } else { look_up >= 2 };
            let mut code = if upper { *high } else { *low };
            if RAW == 1 && !DIGIT {
                code = _mm512_multishift_epi64_epi8(code_shifts, code);
            }
            // Shifts of words move bits into the next byte, but not to where an index has a code.
            let down = (Self::SHAPE.code_bit(look_up) - order.code) as i32;
            code = _mm512_srl_epi16(code, _mm_cvtsi32_si128(down));
            if DIGIT && RAW > 0 {
                let raw = if RAW == 1 { *raw } else { _mm512_permutexvar_epi8(code_bytes, *raw) };
                let raw = _mm512_multishift_epi64_epi8(code_shifts, raw);
                code = _mm512_ternarylogic_epi64::<0xca>(self.raw_bits[table], raw, code);
            }
            index = _mm512_ternarylogic_epi64::<0xca>(self.window_bits[table], index, code);
        }
        find(Self::KIND, &self.tables[table], index)
    }
}
