//! Scores of 32 rows at a time. Lanes are rows, so a chunk's fields lie at the same bits in all
//! lanes, and tables belong to one chunk.
//!
//! ```text
//! rows                                    columns
//! row 0   │ b₀ b₁ b₂ … │      transpose   │ b₀ of rows 0 … 31 │
//! row 1   │ b₀ b₁ b₂ … │         →        │ b₁ of rows 0 … 31 │     one shift extracts a field of 32 rows
//! …                                       │ …                 │
//! ```
//!
//! For each chunk, two `vpshufb` look up each component of the query, turned back by the units of
//! 32 rows. Four gathers load the members, once for all queries. `vpmaddubsw` multiplies, and
//! `vpmaddwd` adds and multiplies by the radius.
//!
//! On a Sapphire Rapids this takes 0.48 of the time of eight rows at a time (36 ns for 128
//! coordinates, or 12 to 17 ns). With eight queries it takes 0.52. In pages of 64 rows it takes
//! 0.23, because a query's tables come from registers. The three vector ports limit it: a chunk of
//! 32 rows has 131 operations for them, 44 cycles (22 by llvm-mca).

use super::super::layout::{ChunkLayout, QuaternionSet, TURNS, unit_reciprocal};
use super::super::layout::{MAX_CHUNKS, MAX_ROW};
use super::super::scalar;
use super::{EIGHT, Planes, turn_planes};
use crate::registers::avx2::fields::load_16;
use crate::registers::avx2::{load, store_first, store_ps, upper_products};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Number of rows in a block.
const ROWS: usize = 32;

/// Number of queries in a pass.
const QUERIES: usize = 4;

/// Number of runs of eight chunks in the widest vector.
const STEPS: usize = MAX_CHUNKS / EIGHT;

/// Four registers whose lanes are rows, in the order of [`interleave`].
type Fours = [__m256i; 4];

/// Implements `scalar::score_quaternions`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let (count, row_bytes) = (bytes.len() / layout.row_bytes(), layout.row_bytes());
    if count == 0 {
        return;
    }
    if row_bytes < 16 {
        // At most five chunks.
        return scalar::score_quaternions(layout, set, bytes, queries, scores);
    }
    let split = Split::new(layout);
    let mut block = Block::new();
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        let mut turned = [const { [const { MaybeUninit::uninit() }; QUERIES] }; STEPS];
        for (q, query) in queries.iter().enumerate() {
            for (turned, query) in turned.iter_mut().zip(query.chunks(4 * EIGHT)) {
                turned[q].write(Turned::new(query));
            }
        }
        for (b, rows) in bytes.chunks(ROWS * row_bytes).enumerate() {
            block.fill(layout, rows);
            let mut sums = [[_mm256_setzero_ps(); 4]; QUERIES];
            for chunk in 0..layout.chunks {
                // SAFETY: the first queries are written for every run of eight chunks, because a
                // query has four values a chunk.
                unsafe { block.add(&split, set, chunk, &turned[chunk / EIGHT][..queries.len()], &mut sums) };
            }
            let scales = block.scales(layout);
            for (sums, scores) in sums.iter().zip(scores.chunks_exact_mut(count)) {
                let scores = &mut scores[ROWS * b..count.min(ROWS * (b + 1))];
                for ((sums, scale), scores) in
                    in_order(sums).into_iter().zip(scales).zip(scores.chunks_mut(EIGHT))
                {
                    store_first(scores, _mm256_mul_ps(sums, scale));
                }
            }
        }
    }
}

/// Eight chunks of a query.
struct Turned {
    /// Each component, turned back by each of 24 units.
    components: [[[u8; 32]; 4]; EIGHT],
    /// The value of one integer product step.
    units: [f32; EIGHT],
}

/// For each component and unit: which of twelve inner products it is, and its sign. The 24 inner
/// products differ from these by sign only.
static PRODUCTS: [[[u8; 32]; 2]; 4] = {
    let mut products = [[[0x80; 32], [1; 32]]; 4];
    let mut i = 0;
    while i < 4 * 24 {
        let (c, p) = (i / 24, i % 24);
        let unit = TURNS[c][p];
        let (place, negative) = match unit {
            0..8 => (unit / 2, unit % 2 == 1),
            _ if unit.is_multiple_of(2) => (4 + (unit - 8) / 2, false),
            _ => (4 + (23 - unit) / 2, true),
        };
        products[c][0][p] = place;
        products[c][1][p] = if negative { 0xff } else { 1 };
        i += 1;
    }
    products
};

impl Turned {
    /// Prepares up to eight chunks like `scalar::ChunkQuery`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(query: &[f32]) -> Self {
        let mut padded = [0.0; 4 * EIGHT];
        padded[..query.len()].copy_from_slice(query);
        let [w, x, y, z] = turn_planes(&padded);
        let plus = |a, b| _mm256_add_ps(a, b);
        let minus = |a, b| _mm256_sub_ps(a, b);
        let (half, limit, zero) = (_mm256_set1_ps(0.5), _mm256_set1_ps(127.0), _mm256_setzero_ps());
        let max = {
            let magnitude = |c| _mm256_andnot_ps(_mm256_set1_ps(-0.0), c);
            let [w, x, y, z] = [magnitude(w), magnitude(x), magnitude(y), magnitude(z)];
            let axis = _mm256_max_ps(_mm256_max_ps(w, x), _mm256_max_ps(y, z));
            _mm256_max_ps(axis, _mm256_mul_ps(plus(plus(w, x), plus(y, z)), half))
        };
        let factor = _mm256_div_ps(limit, max);
        let finite = _mm256_cmp_ps::<_CMP_LT_OQ>(factor, _mm256_set1_ps(f32::INFINITY));
        let unit = _mm256_and_ps(finite, _mm256_div_ps(_mm256_div_ps(max, limit), limit));
        // The halves with a positive w. The bits of their number make x, y and z negative.
        let (pairs, others) =
            ([plus(w, x), minus(w, x)], [plus(y, z), minus(z, y), minus(y, z), minus(minus(zero, y), z)]);
        let mut products = [w, x, y, z, zero, zero, zero, zero, zero, zero, zero, zero];
        for (i, product) in products[4..].iter_mut().enumerate() {
            *product = _mm256_mul_ps(plus(pairs[i % 2], others[i / 2]), half);
        }
        // Four products of each chunk next to each other.
        let bytes = |four: usize| {
            let int = |i: usize| {
                let scaled = _mm256_mul_ps(products[4 * four + i], factor);
                _mm256_and_si256(_mm256_cvtps_epi32(scaled), _mm256_castps_si256(finite))
            };
            let (low, high) = (_mm256_packs_epi32(int(0), int(1)), _mm256_packs_epi32(int(2), int(3)));
            _mm256_shuffle_epi8(_mm256_packs_epi16(low, high), load(&FOURS))
        };
        let (a, b, c, none) = (bytes(0), bytes(1), bytes(2), _mm256_setzero_si256());
        let (ab, c_none) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, none));
        let (ab_high, c_none_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, none));
        let twelves = [
            _mm256_unpacklo_epi64(ab, c_none),
            _mm256_unpackhi_epi64(ab, c_none),
            _mm256_unpacklo_epi64(ab_high, c_none_high),
            _mm256_unpackhi_epi64(ab_high, c_none_high),
        ];
        let mut turned = Self { components: [[[0; 32]; 4]; EIGHT], units: [0.0; EIGHT] };
        store_ps(&mut turned.units, unit);
        for (i, twelve) in twelves.into_iter().enumerate() {
            let both = [
                _mm256_permute2x128_si256::<0x00>(twelve, twelve),
                _mm256_permute2x128_si256::<0x11>(twelve, twelve),
            ];
            for (half, twelve) in both.into_iter().enumerate() {
                for (component, [places, signs]) in turned.components[i + 4 * half].iter_mut().zip(&PRODUCTS)
                {
                    let bytes = _mm256_sign_epi8(_mm256_shuffle_epi8(twelve, load(places)), load(signs));
                    store_bytes(component, bytes);
                }
            }
        }
        turned
    }
}

/// Every fourth byte.
static FOURS: [u8; 32] = {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 32 {
        places[i] = (i % 4 * 4 + i % 16 / 4) as u8;
        i += 1;
    }
    places
};

/// Stores 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_bytes(out: &mut [u8; 32], x: __m256i) {
    // SAFETY: the array has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) }
}

/// The split of a layout's codes into units and members.
struct Split {
    layout: ChunkLayout,
    raw_bits: u32,
    /// See [`unit_reciprocal`].
    reciprocal: __m256i,
    shift: __m128i,
    count: __m256i,
    last: __m256i,
    /// For S = 3·2ⁿ: (i mod 3)·2ⁿ, the upper digit of a member in its place.
    digits: __m256i,
}

/// For a base-9 digit: ⌊8·nine/3⌋, and the remainder of 8·nine by 3.
static THIRDS: [[u8; 16]; 2] =
    [[0, 2, 5, 8, 10, 13, 16, 18, 21, 0, 0, 0, 0, 0, 0, 0], [0, 2, 1, 0, 2, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0]];

/// ⌊i/3⌋ of an index up to 15.
static THIRD: [u8; 16] = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5];
/// i mod 3 of an index up to 15.
static MODULO_3: [u8; 16] = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0];

/// Looks up bytes in a table of 16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up(table: &[u8; 16], at: __m256i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(table)), at)
}

impl Split {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(layout: &ChunkLayout) -> Self {
        let (reciprocal, shift) = unit_reciprocal(layout.members);
        let raw_bits = layout.raw_bits();
        let lower = if layout.radix { raw_bits - 3 } else { 0 };
        Self {
            layout: *layout,
            raw_bits,
            reciprocal: _mm256_set1_epi16(reciprocal as i16),
            shift: _mm_cvtsi32_si128(shift as i32),
            count: _mm256_set1_epi16(layout.members.into()),
            last: _mm256_set1_epi16(layout.codes() as i16 - 1),
            digits: _mm256_broadcastsi128_si256(_mm_sll_epi16(
                load_16(&MODULO_3),
                _mm_cvtsi32_si128(lower as i32),
            )),
        }
    }

    /// Returns units and members of whole codes, from their low and high bytes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn whole(&self, low: __m256i, high: __m256i) -> (__m256i, __m256i) {
        let split = |codes: __m256i| {
            let codes = _mm256_min_epu16(codes, self.last);
            let units = upper_products(_mm256_slli_epi16::<2>(codes), self.reciprocal);
            let units = _mm256_srl_epi16(units, self.shift);
            (units, _mm256_sub_epi16(codes, _mm256_mullo_epi16(units, self.count)))
        };
        let (a_units, a_members) = split(_mm256_unpacklo_epi8(low, high));
        let (b_units, b_members) = split(_mm256_unpackhi_epi8(low, high));
        (_mm256_packus_epi16(a_units, b_units), _mm256_packus_epi16(a_members, b_members))
    }

    /// Returns units and members from a base-9 digit and the raw bits below it, for S = 3·2ⁿ:
    ///
    /// ```text
    /// code                │ nine │ three │ lower │      digit 0..9, 3 bits, n bits
    /// 8·nine + three      3·unit + digit               unit = ⌊code / S⌋, because 24·S = 9·2ⁿ⁺³
    /// member              digit·2ⁿ + lower             the remainder of code by S
    ///
    /// 8·nine = 3·THIRDS[0] + THIRDS[1], so left = THIRDS[1] + three has the same digit
    /// ```
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn mixed(&self, nine: __m256i, three: __m256i, lower: __m256i) -> (__m256i, __m256i) {
        let left = _mm256_add_epi8(look_up(&THIRDS[1], nine), three);
        let units = _mm256_add_epi8(look_up(&THIRDS[0], nine), look_up(&THIRD, left));
        (units, _mm256_or_si256(_mm256_shuffle_epi8(self.digits, left), lower))
    }
}

/// 32 rows, transposed to columns of one byte each.
struct Block {
    columns: [MaybeUninit<[u8; ROWS]>; MAX_ROW + 16],
    /// Number of columns that are written, from the first on.
    filled: usize,
}

impl Block {
    /// Creates an empty block.
    #[inline]
    fn new() -> Self {
        Self { columns: [MaybeUninit::uninit(); MAX_ROW + 16], filled: 0 }
    }

    /// Takes up to 32 rows, except their flags.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fill(&mut self, layout: &ChunkLayout, rows: &[u8]) {
        let (row_bytes, end) = (layout.row_bytes(), layout.flags_at());
        for at in (0..end).step_by(16) {
            // If a row ends earlier, take its last 16 bytes.
            let at = at.min(row_bytes - 16);
            columns_from(rows, row_bytes, at, &mut self.columns[at..]);
        }
        self.filled = end;
    }

    /// Returns a column: byte `at` of each row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn column(&self, at: usize) -> __m256i {
        assert!(at < self.filled);
        // SAFETY: `fill` wrote all columns below `filled`.
        load(unsafe { self.columns[at].assume_init_ref() })
    }

    /// Extracts `width` bits, up to 8, from bit `bit` of the rows on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn field(&self, bit: usize, width: u32) -> __m256i {
        let (at, shift) = (bit / 8, bit as u32 % 8);
        let mask = _mm256_set1_epi8(((1u32 << width) - 1) as i8);
        let low = self.column(at);
        if shift == 0 {
            return _mm256_and_si256(low, mask);
        }
        let low = _mm256_srl_epi16(low, _mm_cvtsi32_si128(shift as i32));
        if shift + width <= 8 {
            return _mm256_and_si256(low, mask);
        }
        let high = _mm256_sll_epi16(self.column(at + 1), _mm_cvtsi32_si128(8 - shift as i32));
        // The low byte's bits below, the high byte's above.
        let below = _mm256_set1_epi8((0xffu32 >> shift) as i8);
        let both = _mm256_or_si256(_mm256_and_si256(low, below), _mm256_andnot_si256(below, high));
        _mm256_and_si256(both, mask)
    }

    /// Returns a chunk's base-9 digit. Its lower base-3 digit is at place `2·chunk % 5` of its
    /// byte. Values that are no digits count modulo 3.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn nine(&self, digits_at: usize, chunk: usize) -> __m256i {
        let (at, place) = (digits_at + 2 * chunk / 5, 2 * chunk % 5);
        let (column, zero) = (self.column(at), _mm256_setzero_si256());
        let nine = _mm256_set1_epi16(9);
        if let Some(factor) = NINTHS.get(place) {
            // The fraction of the byte divided by 3^(place + 2), times nine.
            let factor = _mm256_set1_epi16(*factor);
            let digits = |words| upper_products(_mm256_mullo_epi16(words, factor), nine);
            let (a, b) = (_mm256_unpacklo_epi8(column, zero), _mm256_unpackhi_epi8(column, zero));
            return _mm256_packus_epi16(digits(a), digits(b));
        }
        // The last digit of a byte, which may exceed 242, and three times the first digit of the
        // next byte.
        let column = _mm256_min_epu8(column, _mm256_add_epi8(column, _mm256_set1_epi8(13)));
        let next = self.column(at + 1);
        let digits = |words, next| {
            let upper = _mm256_mullo_epi16(next, _mm256_set1_epi16(21846));
            _mm256_add_epi16(upper_products(words, _mm256_set1_epi16(810)), upper_products(upper, nine))
        };
        let a = digits(_mm256_unpacklo_epi8(column, zero), _mm256_unpacklo_epi8(next, zero));
        let b = digits(_mm256_unpackhi_epi8(column, zero), _mm256_unpackhi_epi8(next, zero));
        _mm256_packus_epi16(a, b)
    }

    /// Returns units, members and radii of a chunk, a byte for each row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn chunk(&self, split: &Split, chunk: usize) -> [__m256i; 3] {
        let (layout, bits) = (&split.layout, split.raw_bits);
        let bit = 8 * 2 + chunk * bits as usize;
        let (units, members) = if layout.radix {
            let below = bits - 3;
            let nine = self.nine(layout.digits_at(), chunk);
            split.mixed(nine, self.field(bit + below as usize, 3), self.field(bit, below))
        } else {
            let high = if bits > 8 { self.field(bit + 8, bits - 8) } else { _mm256_setzero_si256() };
            split.whole(self.field(bit, bits.min(8)), high)
        };
        let radius_bits = layout.radius_bits.into();
        let radii = self.field(8 * layout.radii_at() + chunk * radius_bits as usize, radius_bits);
        [units, members, radii]
    }

    /// Adds a chunk's products: f32(dot·radius)·(chunk's unit).
    ///
    /// # Safety
    /// All of `queries` must be written.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add(
        &self,
        split: &Split,
        set: &QuaternionSet,
        chunk: usize,
        queries: &[MaybeUninit<Turned>],
        sums: &mut [[__m256; 4]; QUERIES],
    ) {
        let zero = _mm256_setzero_si256();
        let [units, members, radii] = self.chunk(split, chunk);
        let mut places = interleave([members, zero, zero, zero]);
        for place in &mut places {
            // SAFETY: `Split` computes members as remainders by S, and `check_chunks` has compared
            // S with the length of `set.ints`, which has four bytes for each member.
            *place = unsafe { _mm256_i32gather_epi32::<4>(set.ints.as_ptr().cast(), *place) };
        }
        let members = places;
        // In both words of a lane.
        let radii = interleave([radii, zero, radii, zero]);
        // A shuffle gives 0 for bytes above 127: once for units from 16 on, once for units below.
        let low = _mm256_adds_epu8(units, _mm256_set1_epi8(0x70));
        let high = _mm256_sub_epi8(units, _mm256_set1_epi8(16));
        for (query, sums) in queries.iter().zip(sums) {
            // SAFETY: the caller promises it.
            let query = unsafe { query.assume_init_ref() };
            let components = &query.components[chunk % EIGHT];
            let component = |c: usize| {
                let halves = components[c].as_chunks().0;
                _mm256_or_si256(look_up(&halves[0], low), look_up(&halves[1], high))
            };
            let query_of = interleave([component(0), component(1), component(2), component(3)]);
            let unit = _mm256_set1_ps(query.units[chunk % EIGHT]);
            for i in 0..4 {
                // Two products of ±127 fit into 16 bits. Times the radius, both are below 2²⁴:
                // exact.
                let signed = _mm256_sign_epi8(query_of[i], members[i]);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(members[i]), signed);
                let steps = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, radii[i]));
                sums[i] = _mm256_add_ps(sums[i], _mm256_mul_ps(steps, unit));
            }
        }
    }

    /// Returns (row scale/limit), eight rows a register.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn scales(&self, layout: &ChunkLayout) -> [__m256; 4] {
        let limit = _mm256_set1_ps(layout.radius_limit().into());
        let (low, high) = (self.column(0), self.column(1));
        let (a, b) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
        let scale = |halves| _mm256_div_ps(_mm256_cvtph_ps(halves), limit);
        [
            scale(_mm256_castsi256_si128(a)),
            scale(_mm256_castsi256_si128(b)),
            scale(_mm256_extracti128_si256::<1>(a)),
            scale(_mm256_extracti128_si256::<1>(b)),
        ]
    }
}

/// 65536/3^(place + 2), rounded up: exact for a byte.
static NINTHS: [i16; 4] = [7282, 2428, 810, 270];

/// Joins four bytes of each of 32 rows to 32 bits. Register i has rows 4i … 4i + 3 and 16 + 4i ….
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn interleave([a, b, c, d]: [__m256i; 4]) -> Fours {
    let (ab, cd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
    [
        _mm256_unpacklo_epi16(ab, cd),
        _mm256_unpackhi_epi16(ab, cd),
        _mm256_unpacklo_epi16(ab_high, cd_high),
        _mm256_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// Restores the rows' own order from that of [`interleave`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_order([a, b, c, d]: &Planes) -> Planes {
    [
        _mm256_permute2f128_ps::<0x20>(*a, *b),
        _mm256_permute2f128_ps::<0x20>(*c, *d),
        _mm256_permute2f128_ps::<0x31>(*a, *b),
        _mm256_permute2f128_ps::<0x31>(*c, *d),
    ]
}

/// Transposes 16 bytes from byte `at` on of up to 32 rows, which must have them. Missing rows
/// repeat the last one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn columns_from(rows: &[u8], row_bytes: usize, at: usize, columns: &mut [MaybeUninit<[u8; ROWS]>]) {
    let count = rows.len() / row_bytes;
    assert!(at + 16 <= row_bytes && count > 0 && columns.len() >= 16);
    let sixteen = |r: usize| {
        let from = r.min(count - 1) * row_bytes + at;
        // SAFETY: the row is one of `count`, and the 16 bytes end inside it.
        unsafe { _mm_loadu_si128(rows.as_ptr().add(from).cast()) }
    };
    let mut now = [_mm256_setzero_si256(); 16];
    for (i, now) in now.iter_mut().enumerate() {
        *now = _mm256_set_m128i(sixteen(16 + i), sixteen(i));
    }
    // Each step moves the highest bit of a register's number to the bytes' numbers, and one back.
    for _ in 0..4 {
        let before = now;
        for i in 0..8 {
            now[2 * i] = _mm256_unpacklo_epi8(before[i], before[i + 8]);
            now[2 * i + 1] = _mm256_unpackhi_epi8(before[i], before[i + 8]);
        }
    }
    for (now, column) in now.into_iter().zip(columns) {
        // SAFETY: the column has 32 bytes.
        unsafe { _mm256_storeu_si256(column.as_mut_ptr().cast(), now) };
    }
}
