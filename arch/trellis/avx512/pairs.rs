//! Scores of windowed codebooks where rows are whole units of 128 coordinates and an index needs seven bits at most. (For
//! one unit, `window_halves.rs` is shorter.)
//!
//! A lane of eight bytes has sixteen coordinates, in two registers: the first eight of each lane, the other eight. Both
//! come from the same quadwords, by two `vpmultishiftqb` each for the windows and for the codes, as these take any
//! eight neighbouring bits of a quadword for each byte. The path bits of a lane and the byte before them come from one
//! `vpermb`. Codes of 1 and 2 bits come from broadcasts of their 16 and 32 bytes, codes of 4 bits are quadwords
//! already: no shuffle, if each lane takes sixteen coordinates that its quadword has. It is the query that is put into
//! that order, once a page.

use crate::codes::avx512::score::{add_four, add_lanes, finish};
use crate::codes::avx512::unpack::scales;
use crate::registers::avx512::{load, load_words, narrow, store_first};
use crate::rows::{Block, Blocks, ROWS, Window};
use crate::trellis::layout::WindowCodebook;
use crate::{IntQuery, MAX_DIM, Rows, registers};
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

/// The first bit of a byte's window in its lane, one too many for the history: of the first register. The second's are
/// eight more.
static PATH_SHIFTS: [u8; 64] = {
    let mut shifts = [0; 64];
    let mut i = 0;
    while i < 64 {
        shifts[i] = (8 + i % 8) as u8;
        i += 1;
    }
    shifts
};

/// By raw bits: the first bit of a byte's code in its lane's quadword, of the first register.
static CODE_SHIFTS: [[u8; 64]; 5] = {
    let mut shifts = [[0; 64]; 5];
    let mut i = 0;
    while i < 5 * 64 {
        let (bits, lane, code) = (i / 64, i % 64 / 8, i % 8);
        // Broadcast quadwords have more coordinates than their lanes take.
        let skipped = match bits {
            1 | 2 => FIRST[bits][lane] % (64 / bits),
            _ => 0,
        };
        shifts[bits][i % 64] = (bits * (skipped + code)) as u8;
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

/// Where a query's quadwords go: the even ones to the first register, the odd ones to the second.
static QUERY_LANES: [[u64; 8]; 5] = {
    let mut lanes = [[0; 8]; 5];
    let mut i = 0;
    while i < 40 {
        lanes[i / 8][i % 8] = FIRST[i / 8][i % 8] as u64 / 8;
        i += 1;
    }
    lanes
};

/// 0, 1, 2 …
static IDENTITY: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

struct Pairs {
    dim: usize,
    path_end: usize,
    /// The centroids, 128 more.
    table: [__m512i; 2],
    path_bytes: __m512i,
    path_shifts: [__m512i; 2],
    code_shifts: [__m512i; 2],
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
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) -> bool {
    let (bits, radix) = book.packing().map_or((0, 1), |packing| (packing.raw_bits(), packing.radix()));
    if !rows.dim.is_multiple_of(UNIT) || radix != 1 || book.centroids().len() > 128 {
        return false;
    }
    let small = book.centroids().len() <= 64;
    match (small, bits) {
        (true, 0) => score_as::<true, 0>(book, rows, scale, query, scores),
        (true, 1) => score_as::<true, 1>(book, rows, scale, query, scores),
        (true, 2) => score_as::<true, 2>(book, rows, scale, query, scores),
        (true, _) => score_as::<true, 3>(book, rows, scale, query, scores),
        (_, 0) => score_as::<false, 0>(book, rows, scale, query, scores),
        (_, 1) => score_as::<false, 1>(book, rows, scale, query, scores),
        (_, 2) => score_as::<false, 2>(book, rows, scale, query, scores),
        (_, 3) => score_as::<false, 3>(book, rows, scale, query, scores),
        _ => score_as::<false, 4>(book, rows, scale, query, scores),
    }
    true
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_as<const SMALL: bool, const BITS: usize>(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let pairs = Pairs::new::<BITS>(book, rows.dim);
    let query = Query::new::<BITS>(query, scale);
    let mut padded = None;
    let blocks = Blocks::with(rows, rows.stride, &mut padded);
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        let block = blocks.get(i);
        let mut fours = [_mm512_setzero_si512(); ROWS / 4];
        for (i, four) in fours.iter_mut().enumerate() {
            let mut sums = [_mm512_setzero_si512(); 4];
            for (unit, values) in query.values[..rows.dim / UNIT].iter().enumerate() {
                let places = pairs.places::<BITS>(&block, unit);
                for (r, sum) in sums.iter_mut().enumerate() {
                    let [a, b] = pairs.centroids::<SMALL, BITS>(&places, unit, 4 * i + r);
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
        let lanes = load(&QUERY_LANES[BITS]);
        let next = _mm512_add_epi64(lanes, _mm512_set1_epi64(1));
        let mut values = [[_mm512_setzero_si512(); 2]; UNITS];
        let mut sum = _mm512_setzero_si512();
        for (values, ints) in values.iter_mut().zip(query.values.chunks_exact(UNIT)) {
            let half = |i: usize| narrow(load_words(&ints[i..i + 32]), load_words(&ints[i + 32..i + 64]));
            let (low, high) = (half(0), half(64));
            *values = [lanes, next].map(|lanes| _mm512_permutex2var_epi64(low, lanes, high));
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

impl Pairs {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new<const BITS: usize>(book: &WindowCodebook, dim: usize) -> Self {
        let centroids = book.centroids();
        // Bits above an index do not count: a table of less than a register repeats.
        let mut table = [load_signed(&centroids[..centroids.len().min(64)]); 2];
        if centroids.len() > 64 {
            table[1] = load_signed(&centroids[64..]);
        }
        let last = _mm512_set1_epi8(centroids.len().min(64) as i8 - 1);
        let index = _mm512_and_si512(load(&IDENTITY), last);
        let bias = _mm512_set1_epi8(-128);
        let eight = _mm512_set1_epi8(8);
        let path_shifts = _mm512_sub_epi8(load(&PATH_SHIFTS), _mm512_set1_epi8(book.history() as i8));
        let above = _mm512_set1_epi8(book.history() as i8 + 1);
        let code_shifts = _mm512_sub_epi8(load(&CODE_SHIFTS[BITS]), above);
        let eight_codes = _mm512_set1_epi8(8 * BITS as i8);
        Self {
            dim,
            path_end: 2 + WindowCodebook::path_bytes(dim),
            table: table.map(|table| _mm512_xor_si512(_mm512_permutexvar_epi8(index, table), bias)),
            path_bytes: load(&PATH_BYTES[BITS]),
            path_shifts: [path_shifts, _mm512_add_epi8(path_shifts, eight)],
            code_shifts: [code_shifts, _mm512_add_epi8(code_shifts, eight_codes)],
            window_bits: _mm512_set1_epi8((book.windows() - 1) as i8),
        }
    }

    /// Path bits and codes of a unit in each row.
    #[inline(always)]
    fn places<'a, const BITS: usize>(&self, block: &Block<'a>, unit: usize) -> [Window<'a>; 2] {
        assert!(unit < self.dim / UNIT);
        // After the first unit, from the byte before.
        let path = 2 + UNIT / 8 * unit;
        let codes = self.path_end + UNIT / 8 * BITS * unit;
        [
            block.window(if unit == 0 { path } else { path - 1 }, path + UNIT / 8),
            block.window(codes, codes + UNIT / 8 * BITS),
        ]
    }

    /// 128 centroids, 128 more, in the lanes' order.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroids<const SMALL: bool, const BITS: usize>(
        &self,
        [path, codes]: &[Window; 2],
        unit: usize,
        r: usize,
    ) -> [__m512i; 2] {
        // Before the path plane, there are zeros.
        let path = if unit == 0 {
            let path = _mm512_castsi128_si512(load_16(path.first(r)));
            _mm512_maskz_permutexvar_epi8(!1, self.path_bytes, path)
        } else {
            // A byte earlier, so that all indices are one too low.
            let path = _mm512_castsi256_si512(load_17(path.first(r)));
            let indices = _mm512_add_epi8(self.path_bytes, _mm512_set1_epi8(1));
            _mm512_permutexvar_epi8(indices, path)
        };
        let windows = self.path_shifts.map(|shifts| _mm512_multishift_epi64_epi8(shifts, path));
        let indices = if BITS == 0 {
            windows
        } else {
            let codes = match BITS {
                1 => _mm512_broadcast_i32x4(load_16(codes.first(r))),
                2 => _mm512_broadcast_i64x4(load_32(codes.first(r))),
                3 => _mm512_permutexvar_epi8(load(&SIXES), load_48(codes.first(r))),
                _ => load(codes.first::<64>(r)),
            };
            // Bits of the window below, of the code above; what is above both does not count.
            let join = |windows, shifts| {
                let codes = _mm512_multishift_epi64_epi8(shifts, codes);
                _mm512_ternarylogic_epi64::<0xca>(self.window_bits, windows, codes)
            };
            [join(windows[0], self.code_shifts[0]), join(windows[1], self.code_shifts[1])]
        };
        if SMALL {
            indices.map(|index| _mm512_permutexvar_epi8(index, self.table[0]))
        } else {
            indices.map(|index| _mm512_permutex2var_epi8(self.table[0], index, self.table[1]))
        }
    }
}

/// At most 64 bytes, zeros behind them.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_signed(bytes: &[i8]) -> __m512i {
    // SAFETY: the mask has at most `bytes.len()` bits, and a masked load touches nothing whose bit is clear.
    unsafe { _mm512_maskz_loadu_epi8(registers::avx512::first(bytes.len()), bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array has 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_17(bytes: &[u8; 17]) -> __m256i {
    // SAFETY: the mask has 17 bits, and a masked load touches nothing whose bit is clear.
    unsafe { _mm256_maskz_loadu_epi8(0x1_ffff, bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array has 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_48(bytes: &[u8; 48]) -> __m512i {
    // SAFETY: the mask has 48 bits, and a masked load touches nothing whose bit is clear.
    unsafe { _mm512_maskz_loadu_epi8(0xffff_ffff_ffff, bytes.as_ptr().cast()) }
}
