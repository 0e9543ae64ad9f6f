//! Scores, and sums in `sums.rs`, of windowed codebooks for rows of 128 coordinates, codes of raw bits and up to 256
//! centroids.
//!
//! Two rows share a register: a look-up finds 64 centroids, 32 of each row, and four look-ups find all. The path bits
//! that a quadword needs, with the byte before, come from one `vpermt2b` of two planes, and windows from
//! `vpmultishiftqb`, which takes any eight neighbouring bits of a quadword for each byte. Eight bits hold windows of
//! several neighbours, or several codes; and a table may have any order, so each look-up takes both where they lie, or a
//! shift away. It is the query that is put into the look-ups' order, once a page.
//!
//! Operations are what counts. Of Zen 5's four pipes, `vpermb` and masks from bytes go to two, `vpmultishiftqb` and
//! products to two, shifts to two, the rest to any; and all four together read nine registers a cycle. A load that
//! broadcasts or inserts 16 or 32 bytes is a permutation too; one that merges under a mask goes to any pipe. What is
//! known at compile time, the distance between rows included, costs no instructions.

use crate::codes::avx512::score::{add_four, finish};
use crate::codes::avx512::unpack::scales;
use crate::registers::avx512::{load, load_words, narrow, store_first};
use crate::rows::{Block, Blocks, ROWS, Window};
use crate::trellis::layout::WindowCodebook;
use crate::{IntQuery, Rows, registers};
use core::arch::x86_64::*;
pub(super) use sums::accumulate;

/// Coordinates of a row.
const DIM: usize = 128;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;

/// For each look-up, a byte for each place in the register.
type Places = [[u8; 64]; 4];

/// The coordinate that a look-up has in a place. Of codes up to two bits, four neighbours share a byte. Otherwise two
/// do, and a quadword has sixteen coordinates in each of two registers; of four bits, the second register has the second
/// halves of rows.
const fn coordinate(bits: usize, look_up: usize, place: usize) -> usize {
    let (quad, byte, half) = (place / 8 % 4, place % 8, look_up / 2);
    match bits {
        0..=2 => 32 * quad + 4 * byte + look_up,
        3 => 32 * quad + 16 * half + 2 * byte + look_up % 2,
        _ => 64 * half + 16 * quad + 2 * byte + look_up % 2,
    }
}

const fn coordinates(bits: usize) -> Places {
    let mut places = [[0; 64]; 4];
    let mut i = 0;
    while i < 4 * 64 {
        places[i / 64][i % 64] = coordinate(bits, i / 64, i % 64) as u8;
        i += 1;
    }
    places
}

/// The bytes of two rows' path planes that a quadword needs. Index 16 finds a zero: before the first, there is none.
const fn path_bytes(bits: usize) -> [u8; 64] {
    let mut bytes = [16; 64];
    let mut i = 0;
    while i < 64 {
        let (row, quad, byte) = (i / 32, i / 8 % 4, i % 8);
        // Of two halves of a row, four bytes each.
        let after = if bits == 4 { byte / 4 * 8 + 2 * quad + byte % 4 } else { 4 * quad + byte };
        if after >= 1 && after <= PATH {
            bytes[i] = (64 * row + after - 1) as u8;
        }
        i += 1;
    }
    bytes
}

/// The bytes of two rows' codes that a quadword needs: of one bit four, of three bits twice six. Rows start `before`
/// bytes before them.
const fn code_bytes(bits: usize, half: usize, before: usize) -> [u8; 64] {
    let (step, own) = if bits == 3 { (12, 6) } else { (4, 4) };
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (row, quad, byte) = (i / 32, i / 8 % 4, i % 8);
        bytes[i] = (64 * row + before + step * quad + own * half + byte % own) as u8;
        i += 1;
    }
    bytes
}

/// The bits of a quadword at which the path bit and the code are of the first coordinate of each byte.
const fn first_bits(bits: usize) -> [Places; 2] {
    let mut places = [[[0; 64]; 4]; 2];
    let mut i = 0;
    while i < 4 * 64 {
        let (look_up, place) = (i / 64, i % 64);
        let c = coordinate(bits, look_up, place) - Step::neighbour(bits, look_up);
        let path = if bits == 4 { c % 16 + c / 64 * 32 } else { c % 32 };
        let own = if bits <= 2 { 32 } else { 16 };
        places[0][look_up][place] = 8 + path as u8;
        places[1][look_up][place] = (bits * (c % own)) as u8;
        i += 1;
    }
    places
}

/// How a look-up finds the bits of an index: where they lie in it is free, as a table may have any order.
#[derive(Clone, Copy)]
struct Step {
    /// The bit to which `vpmultishiftqb` takes the window of a byte's first coordinate (those of its neighbours follow,
    /// one bit higher each), and a shift to the left of all.
    window: (i8, i8),
    /// The same for codes; of two and four bits, they stay as they lie.
    code: (i8, i8),
}

impl Step {
    const fn new(window: (i8, i8), code: (i8, i8)) -> Self {
        Self { window, code }
    }

    /// How many coordinates of its byte come before the look-up's.
    const fn neighbour(bits: usize, look_up: usize) -> usize {
        if bits <= 2 { look_up } else { look_up % 2 }
    }

    /// The first bit of the window in an index.
    const fn window_at(&self, bits: usize, look_up: usize) -> u32 {
        (self.window.0 + self.window.1 + Self::neighbour(bits, look_up) as i8) as u32
    }

    /// The first bit of the code.
    const fn code_at(&self, bits: usize, look_up: usize) -> u32 {
        (self.code.0 + self.code.1 + (bits * Self::neighbour(bits, look_up)) as i8) as u32
    }
}

/// By raw bits and history, the four look-ups. Window and code lie in the lower seven bits of an index, or in all eight
/// if there are 256 centroids.
const fn steps(bits: usize, history: u32) -> [Step; 4] {
    let step = Step::new;
    match (bits, history) {
        (0, ..=3) => [step((0, 0), (0, 0)); 4],
        (0, _) => {
            let (even, odd) = (step((0, 0), (0, 0)), step((0, -1), (0, 0)));
            [even, odd, step((-2, 0), (0, 0)), step((-2, -1), (0, 0))]
        }
        (1, ..=3) => {
            [step((0, 0), (4, 0)), step((0, 0), (4, 0)), step((0, 0), (4, 0)), step((0, 0), (-1, 0))]
        }
        (1, 4 | 5) => {
            [step((0, 0), (4, 2)), step((0, 0), (-1, 0)), step((-2, 0), (4, 0)), step((-2, 0), (-1, -2))]
        }
        (1, _) => {
            [step((0, 0), (5, 2)), step((0, 0), (-1, 0)), step((-2, 0), (5, 0)), step((-2, 0), (-1, -2))]
        }
        (2, ..=3) => {
            [step((2, 0), (0, 0)), step((2, 0), (0, -1)), step((-2, 0), (0, 0)), step((-2, 0), (0, -1))]
        }
        (2, 4) => {
            [step((2, 0), (0, 0)), step((-1, 0), (0, 3)), step((-2, 0), (0, 1)), step((-1, 0), (0, -6))]
        }
        (2, _) => [step((2, 0), (0, 0)), step((1, 0), (0, -2)), step((-2, 0), (0, 2)), step((-3, 0), (0, 0))],
        (3, _) => {
            let at = if history == 4 { 2 } else { 1 };
            let (even, odd) = (step((0, 0), (at, 3)), step((0, -1), (at, 0)));
            [even, odd, even, odd]
        }
        (_, 2) => {
            let (even, odd) = (step((4, 0), (0, 0)), step((-1, 0), (0, -1)));
            [even, odd, even, odd]
        }
        _ => {
            let (even, odd) = (step((4, 0), (0, 0)), step((-1, 0), (0, 0)));
            [even, odd, even, odd]
        }
    }
}

/// For each look-up and index, in registers: code << (history + 1) | window.
const fn orders<const TABLES: usize>(bits: usize, history: u32) -> [[[u8; 64]; TABLES]; 4] {
    let steps = steps(bits, history);
    let mut orders = [[[0; 64]; TABLES]; 4];
    let mut i = 0;
    while i < 4 * TABLES * 64 {
        let (look_up, index) = (i / 64 / TABLES, i % (TABLES * 64));
        let window = index >> steps[look_up].window_at(bits, look_up) & ((2 << history) - 1);
        let code = index >> steps[look_up].code_at(bits, look_up) & ((1 << bits) - 1);
        orders[look_up][index / 64][index % 64] = (code << (history + 1) | window) as u8;
        i += 1;
    }
    orders
}

/// Which look-ups are the first to use what each of them uses.
struct Shared {
    path_shifts: [usize; 4],
    code_shifts: [usize; 4],
    window_bits: [usize; 4],
    table: [usize; 4],
}

impl Shared {
    const fn of(bits: usize, history: u32) -> Self {
        let steps = steps(bits, history);
        let [mut path_shifts, mut code_shifts, mut window_bits, mut table] = [[0; 4]; 4];
        let mut i = 0;
        while i < 4 {
            let half = if bits < 3 { 0 } else { 100 * (i as i32 / 2) };
            path_shifts[i] = (half + 50 + steps[i].window.0 as i32) as usize;
            code_shifts[i] = (50 + steps[i].code.0) as usize;
            window_bits[i] = steps[i].window_at(bits, i) as usize;
            table[i] = 8 * window_bits[i] + steps[i].code_at(bits, i) as usize;
            i += 1;
        }
        Self {
            path_shifts: first_equal(path_shifts),
            code_shifts: first_equal(code_shifts),
            window_bits: first_equal(window_bits),
            table: first_equal(table),
        }
    }
}

const fn first_equal(values: [usize; 4]) -> [usize; 4] {
    let mut first = [0; 4];
    let mut i = 0;
    while i < 4 {
        while values[first[i]] != values[i] {
            first[i] += 1;
        }
        i += 1;
    }
    first
}

/// How a look-up finds its indices, and the centroids.
struct LookUp<const TABLES: usize> {
    path_shifts: __m512i,
    code_shifts: __m512i,
    window_bits: __m512i,
    table: [__m512i; TABLES],
}

/// The way from rows to centroids.
struct Halves<const BITS: usize, const HISTORY: u32, const TABLES: usize> {
    look_ups: [LookUp<TABLES>; 4],
    path_bytes: __m512i,
    code_bytes: [__m512i; 2],
}

/// Runs a function for the shape of a codebook; `false` if it has none.
macro_rules! for_shape {
    ($book:expr, $function:ident($($argument:expr),*)) => {
        match ($book.levels(), $book.history()) {
            (1, ..=3) => $function::<0, 3, 2>($($argument),*),
            (1, _) => $function::<0, 6, 2>($($argument),*),
            (2, ..=3) => $function::<1, 3, 2>($($argument),*),
            (2, 4 | 5) => $function::<1, 5, 2>($($argument),*),
            (2, _) => $function::<1, 6, 4>($($argument),*),
            (4, ..=3) => $function::<2, 3, 2>($($argument),*),
            (4, 4) => $function::<2, 4, 2>($($argument),*),
            (4, 5) => $function::<2, 5, 4>($($argument),*),
            (8, ..=3) => $function::<3, 3, 2>($($argument),*),
            (8, 4) => $function::<3, 4, 4>($($argument),*),
            (16, 2) => $function::<4, 2, 2>($($argument),*),
            (16, 3) => $function::<4, 3, 4>($($argument),*),
            _ => return false,
        }
    };
}

mod sums;

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
    for_shape!(book, score_as(book, rows, scale, query, scores));
    true
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_as<const BITS: usize, const HISTORY: u32, const TABLES: usize>(
    book: &WindowCodebook,
    rows: &Rows,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let halves = Halves::<BITS, HISTORY, TABLES>::new(book, -128);
    let query = Query::new(query, scale);
    let values = const { coordinates(BITS) }.map(|coordinates| query.bytes(&coordinates));
    let mut padded = None;
    let blocks = Blocks::with(rows, rows.stride, &mut padded);
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        let block = blocks.get(i).apart(2 + PATH + BITS * PATH);
        let mut sums = [[_mm512_setzero_si512(); 4]; 2];
        for (half, sums) in sums.iter_mut().enumerate() {
            let mut planes = [[_mm512_setzero_si512(); 3]; 4];
            for (r, planes) in (8 * half..).zip(&mut planes) {
                *planes = halves.planes(&block, r);
            }
            for p in 0..4 {
                for (sum, planes) in sums.iter_mut().zip(&planes) {
                    *sum = _mm512_dpbusd_epi32(*sum, halves.centroids(planes, p), values[p]);
                }
            }
        }
        query.finish(sums, &block, scores);
    }
}

impl<const BITS: usize, const HISTORY: u32, const TABLES: usize> Halves<BITS, HISTORY, TABLES> {
    const STEPS: [Step; 4] = steps(BITS, HISTORY);
    const SHARED: Shared = Shared::of(BITS, HISTORY);

    /// The way to centroids on which `flip` is xored.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(book: &WindowCodebook, flip: i8) -> Self {
        Self {
            look_ups: [0, 1, 2, 3].map(|p| LookUp::new::<BITS, HISTORY>(book, flip, p)),
            path_bytes: load(&const { path_bytes(BITS) }),
            code_bytes: [
                load(&const { code_bytes(BITS, 0, if BITS == 3 { PATH } else { 0 }) }),
                load(&const { code_bytes(BITS, 1, PATH) }),
            ],
        }
    }

    /// The path bits and the codes, in two registers, of rows `r` and `r + 4` side by side.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn planes(&self, block: &Block, r: usize) -> [__m512i; 3] {
        let path = block.window(2, 2 + PATH);
        let path = permute(load_16(&path, r), self.path_bytes, load_16(&path, r + 4));
        let codes = if BITS == 3 {
            block.window(2, 2 + 4 * PATH)
        } else {
            block.window(2 + PATH, 2 + PATH + BITS * PATH)
        };
        let [a, b] = match BITS {
            0 => [path; 2],
            1 => [permute(load_16(&codes, r), self.code_bytes[0], load_16(&codes, r + 4)); 2],
            2 => [load_halves::<32>(&codes, 0, r); 2],
            3 => {
                let (a, b) = (load(codes.first::<64>(r)), load(codes.first::<64>(r + 4)));
                [permute(a, self.code_bytes[0], b), permute(a, self.code_bytes[1], b)]
            }
            _ => [load_halves::<64>(&codes, 0, r), load_halves::<64>(&codes, 32, r)],
        };
        [path, a, b]
    }

    /// The centroids of a look-up.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroids(&self, planes: &[__m512i; 3], p: usize) -> __m512i {
        let (step, shared, look_ups) = (&Self::STEPS[p], &Self::SHARED, &self.look_ups);
        let windows = _mm512_multishift_epi64_epi8(look_ups[shared.path_shifts[p]].path_shifts, planes[0]);
        let mut index = shift(windows, step.window.1);
        if BITS > 0 {
            let mut codes = planes[1 + p / 2];
            if BITS % 2 == 1 {
                codes = _mm512_multishift_epi64_epi8(look_ups[shared.code_shifts[p]].code_shifts, codes);
            }
            let codes = shift(codes, step.code.1);
            let window_bits = look_ups[shared.window_bits[p]].window_bits;
            index = _mm512_ternarylogic_epi64::<0xca>(window_bits, index, codes);
        }
        find(&look_ups[shared.table[p]].table, index)
    }
}

/// A query of 128 coordinates.
pub(crate) struct Query {
    /// Its bytes, in two registers.
    low: __m512i,
    high: __m512i,
    /// 128 · Σ q: what the offset of the centroids adds to each sum.
    excess: __m512i,
    factor: __m512,
}

impl Query {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(query: &IntQuery, scale: f32) -> Self {
        let half = |i: usize| {
            narrow(load_words(&query.values[i..i + 32]), load_words(&query.values[i + 32..i + 64]))
        };
        let (low, high) = (half(0), half(64));
        let bias = _mm512_set1_epi8(-128);
        let excess = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, low);
        let excess = _mm512_dpbusd_epi32(excess, bias, high);
        Self {
            low,
            high,
            excess: _mm512_set1_epi32(_mm512_reduce_add_epi32(excess)),
            factor: _mm512_set1_ps(query.scale * scale),
        }
    }

    /// The bytes at these coordinates, zeros from 128 on.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn bytes(&self, coordinates: &[u8; 64]) -> __m512i {
        let coordinates = load(coordinates);
        let inside = _mm512_movepi8_mask(coordinates);
        _mm512_maskz_permutex2var_epi8(!inside, self.low, coordinates, self.high)
    }

    /// The scores of a block from sums whose i-th register of eight has rows i + 4·(i/4) and 4 more.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn finish(&self, sums: [[__m512i; 4]; 2], block: &Block, scores: &mut [f32]) {
        let [a, b] = sums.map(|sums| add_four(sums));
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let sums = _mm512_add_epi32(even, odd);
        store_first(finish(sums, self.excess, self.factor, scales(block)), scores);
    }
}

/// Words shifted to the left, or to the right: bytes get bits of their neighbours, but not where an index looks.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn shift(x: __m512i, by: i8) -> __m512i {
    match by {
        0 => x,
        1.. => _mm512_sll_epi16(x, _mm_cvtsi32_si128(by.into())),
        _ => _mm512_srl_epi16(x, _mm_cvtsi32_si128((-by).into())),
    }
}

/// The centroids, with `flip` xored on them, in the order of indices code << (history + 1) | window; `history` is the
/// codebook's or a longer one.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn arrange<const TABLES: usize>(
    book: &WindowCodebook,
    flip: i8,
    history: u32,
    order: &[[u8; 64]; TABLES],
) -> [__m512i; TABLES] {
    let mut chunks = [_mm512_setzero_si512(); TABLES];
    for (chunk, centroids) in chunks.iter_mut().zip(book.centroids().chunks(64)) {
        *chunk = _mm512_xor_si512(load_signed(centroids), _mm512_set1_epi8(flip));
    }
    // A shorter history is the upper bits of a window.
    let spare = history - book.history();
    let bits = _mm512_set1_epi8((0xffu8 >> spare) as i8);
    let mut table = [_mm512_setzero_si512(); TABLES];
    for (table, order) in table.iter_mut().zip(order) {
        let order = _mm512_srl_epi16(load(order), _mm_cvtsi32_si128(spare as i32));
        *table = find(&chunks, _mm512_and_si512(order, bits));
    }
    table
}

/// The bytes of a table at indices of 7 or 8 bits.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn find<const TABLES: usize>(table: &[__m512i; TABLES], index: __m512i) -> __m512i {
    let low = permute(table[0], index, table[1]);
    if TABLES == 2 {
        return low;
    }
    let high = permute(table[TABLES - 2], index, table[TABLES - 1]);
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high)
}

/// `vpermt2b`: bytes of `a`, and from 64 on of `b`.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn permute(a: __m512i, index: __m512i, b: __m512i) -> __m512i {
    _mm512_permutex2var_epi8(a, index, b)
}

/// Sixteen bytes, zeros behind them.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_16(window: &Window, r: usize) -> __m512i {
    let bytes: &[u8; 16] = window.first(r);
    // SAFETY: the array has 16 bytes.
    _mm512_zextsi128_si512(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Of `N` bytes of row `r` and of row `r + 4`, 32 each from `at` on.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_halves<const N: usize>(window: &Window, at: usize, r: usize) -> __m512i {
    assert!(at + 32 <= N);
    let [a, b] = [r, r + 4].map(|r| window.first::<N>(r).as_ptr().wrapping_add(at));
    // SAFETY: 32 bytes are there. The second load's mask has only the upper half's bits: it touches nothing before `b`.
    unsafe {
        let a = _mm512_zextsi256_si512(_mm256_loadu_si256(a.cast()));
        _mm512_mask_loadu_epi64(a, 0xf0, b.wrapping_sub(32).cast())
    }
}

/// At most 64 bytes, zeros behind them.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_signed(bytes: &[i8]) -> __m512i {
    // SAFETY: the mask has at most `bytes.len()` bits, and a masked load touches nothing whose bit is clear.
    unsafe { _mm512_maskz_loadu_epi8(registers::avx512::first(bytes.len()), bytes.as_ptr()) }
}

impl<const TABLES: usize> LookUp<TABLES> {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new<const BITS: usize, const HISTORY: u32>(book: &WindowCodebook, flip: i8, p: usize) -> Self {
        let step = const { steps(BITS, HISTORY) }[p];
        let [path, codes] = const { first_bits(BITS) }.map(|places| load(&places[p]));
        let less = |x, by: i8| _mm512_sub_epi8(x, _mm512_set1_epi8(by));
        let table = arrange(book, flip, HISTORY, &const { orders::<TABLES>(BITS, HISTORY) }[p]);
        Self {
            path_shifts: less(path, HISTORY as i8 + step.window.0),
            code_shifts: less(codes, step.code.0),
            window_bits: _mm512_set1_epi8((((2u32 << HISTORY) - 1) << step.window_at(BITS, p)) as i8),
            table,
        }
    }
}
