//! Scores of 64 rows at a time. Lanes are rows, so every table belongs to one chunk and fits into
//! registers.
//!
//! ```text
//! byte lane        row 0   row 1   …   row 63
//! unit p     →     component c of the query, turned back by p          vpermb, one register of a query
//! member s   →     component c of the member                           vpermb, two or four registers
//! vpdpbusd         Σ over c of the products, + start
//! ```
//!
//! The first operand of `vpdpbusd` is unsigned. So the query's bytes are 128 too large, and the sum
//! starts at -128·Σ member, which all queries share.

use super::{load_chunks, to_bytes};
use crate::quaternions::layout::{ChunkLayout, QuaternionSet, TURNS, unit_reciprocal};
use crate::quaternions::layout::{MAX_CHUNKS, MAX_ROW};
use crate::quaternions::scalar;
use crate::registers::avx512::{
    floats_in_order, in_order, interleave, load, load_bytes, places, table, to_array, transpose_bytes,
};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

/// Number of rows in a block.
const ROWS: usize = 64;

/// Number of queries in a pass.
const QUERIES: usize = 8;

/// 16 chunks of a query: the twelve inner products that differ by more than sign, and the value of
/// one unit.
struct Turned {
    /// Row i has the products of chunk i as signed bytes: twelve, then zeros.
    ints: [[u8; 16]; 16],
    /// What an integer of each chunk is worth. 0 for chunks without a finite scale.
    units: [f32; 16],
}

/// Number of runs of 16 chunks in the widest vector.
const STEPS: usize = MAX_CHUNKS / 16;

/// Implements `scalar::score_quaternions`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = bytes.len() / layout.row_bytes();
    if count == 0 {
        return;
    }
    if layout.row_bytes() < 16 {
        // At most five chunks: only tests have such a width.
        return scalar::score_quaternions(layout, set, bytes, queries, scores);
    }
    let (members, splitter, steps) = (Members::new(set), Splitter::new(layout), layout.chunks.div_ceil(16));
    let mut block = Block::new();
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        let mut turned = [const { [const { MaybeUninit::uninit() }; QUERIES] }; STEPS];
        for (q, query) in queries.iter().enumerate() {
            for (turned, query) in turned.iter_mut().zip(query.chunks(64)) {
                turned[q].write(Turned::new(query));
            }
        }
        for (b, rows) in bytes.chunks(ROWS * layout.row_bytes()).enumerate() {
            let mut sums = [[_mm512_setzero_ps(); 4]; QUERIES];
            block.fill(layout, rows);
            for (step, turned) in turned[..steps].iter().enumerate() {
                let chunks = 16 * step..layout.chunks.min(16 * step + 16);
                // SAFETY: the first `queries.len()` of each of the first `steps` are written: a
                // query has four values a chunk, so its runs of 64 are as many as the steps.
                unsafe { block.add_scores(&splitter, &members, chunks, &turned[..queries.len()], &mut sums) };
            }
            for (sums, scores) in sums.iter().zip(scores.chunks_mut(count)) {
                finish(*sums, rows, layout, &mut scores[b * ROWS..]);
            }
        }
    }
}

impl Turned {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(query: &[f32]) -> Self {
        let q = load_chunks(query);
        let [w, x, y, z] = q;
        let a = each!(c in q => _mm512_abs_ps(c));
        let axis = _mm512_max_ps(_mm512_max_ps(a[0], a[1]), _mm512_max_ps(a[2], a[3]));
        let half = _mm512_set1_ps(0.5);
        let sum = _mm512_add_ps(_mm512_add_ps(a[0], a[1]), _mm512_add_ps(a[2], a[3]));
        let max = _mm512_max_ps(axis, _mm512_mul_ps(sum, half));
        let limit = _mm512_set1_ps(127.0);
        let factor = _mm512_div_ps(limit, max);
        let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(factor, _mm512_set1_ps(f32::INFINITY));
        let unit = _mm512_maskz_div_ps(finite, _mm512_div_ps(max, limit), limit);
        // The halves with a positive w. The bits of their number make x, y and z negative.
        let pairs = [_mm512_add_ps(w, x), _mm512_sub_ps(w, x)];
        let others = [
            _mm512_add_ps(y, z),
            _mm512_sub_ps(z, y),
            _mm512_sub_ps(y, z),
            _mm512_sub_ps(_mm512_sub_ps(_mm512_setzero_ps(), y), z),
        ];
        let mut table = [[0; 16]; 16];
        for (i, row) in table[..12].iter_mut().enumerate() {
            let product = match i {
                0..4 => q[i],
                _ => _mm512_mul_ps(_mm512_add_ps(pairs[i % 2], others[i / 2 - 2]), half),
            };
            *row = to_bytes(_mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(product, factor)));
        }
        let mut turned = Self { ints: transpose_16(&table), units: [0.0; 16] };
        // SAFETY: `units` has 16 values.
        unsafe { _mm512_storeu_ps(turned.units.as_mut_ptr(), unit) };
        turned
    }
}

/// For unit p and component c, entry 32·c + p is the number of the inner product that it takes. The
/// number is one of the twelve, or 16 more for the negative.
static TABLE: [[u8; 64]; 2] = table!(2; half => places!(i => match i % 32 {
    p @ 0..24 => turn(TURNS[2 * half + i / 32][p] as usize),
    _ => 0,
}));

/// Returns the number of the inner product for a unit.
const fn turn(unit: usize) -> usize {
    match unit {
        0..8 => unit / 2 + unit % 2 * 16,
        _ if unit.is_multiple_of(2) => 4 + (unit - 8) / 2,
        _ => 4 + (23 - unit) / 2 + 16,
    }
}

/// Components of members as bytes, 64 to a register.
struct Members {
    planes: [[__m512i; 4]; 4],
    count: usize,
}

impl Members {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(set: &QuaternionSet) -> Self {
        let mut planes = [[_mm512_setzero_si512(); 4]; 4];
        let bytes = as_bytes(set.ints);
        for (part, bytes) in bytes.chunks(256).enumerate() {
            let quarter = |i: usize| load_bytes(bytes.get(64 * i..).map_or(&[], |b| &b[..b.len().min(64)]));
            let [a, b, c, d] = [quarter(0), quarter(1), quarter(2), quarter(3)];
            for (component, plane) in planes.iter_mut().enumerate() {
                let picks = load(&EVERY_FOURTH[component]);
                let (low, high) =
                    (_mm512_permutex2var_epi8(a, picks, b), _mm512_permutex2var_epi8(c, picks, d));
                plane[part] = _mm512_mask_mov_epi8(low, 0xffff_ffff_0000_0000, high);
            }
        }
        Self { planes, count: set.ints.len() }
    }

    /// Looks up one component of 64 members.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn look_up(&self, component: usize, members: __m512i, upper: __mmask64) -> __m512i {
        let plane = &self.planes[component];
        let low = _mm512_permutex2var_epi8(plane[0], members, plane[1]);
        if self.count <= 128 {
            return low;
        }
        if self.count <= 192 {
            return _mm512_mask_permutexvar_epi8(low, upper, members, plane[2]);
        }
        _mm512_mask_mov_epi8(low, upper, _mm512_permutex2var_epi8(plane[2], members, plane[3]))
    }
}

/// Returns the components of members as bytes.
fn as_bytes(ints: &[[i8; 4]]) -> &[u8] {
    let flat = ints.as_flattened();
    // SAFETY: i8 and u8 have the same size and alignment, and every bit pattern is valid for both.
    unsafe { core::slice::from_raw_parts(flat.as_ptr().cast(), flat.len()) }
}

/// Row c: component c of 32 members in two registers, every fourth of their bytes, twice.
static EVERY_FOURTH: [[u8; 64]; 4] = table!(4; first => places!(i => (4 * i + first) % 128));

/// 64 rows, transposed to columns of one byte each. A chunk's field starts at the same bit in every
/// row, so one shift extracts it from all of them.
struct Block {
    columns: [MaybeUninit<[u8; 64]>; MAX_ROW + 16],
    /// Number of columns that are written, from the first on.
    filled: usize,
}

/// How codes of a layout split into units and members.
struct Splitter {
    layout: ChunkLayout,
    raw_bits: u32,
    /// See [`unit_reciprocal`].
    reciprocal: __m512i,
    shift: __m128i,
    count: __m512i,
    last: __m512i,
}

impl Splitter {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(layout: &ChunkLayout) -> Self {
        let (reciprocal, shift) = unit_reciprocal(layout.members);
        Self {
            layout: *layout,
            raw_bits: layout.raw_bits(),
            reciprocal: _mm512_set1_epi16(reciprocal as i16),
            shift: _mm_cvtsi32_si128(shift as i32),
            count: _mm512_set1_epi16(layout.members.into()),
            last: _mm512_set1_epi16(layout.codes() as i16 - 1),
        }
    }

    /// Returns units and members of whole codes, from their low and high bytes.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn split(&self, low: __m512i, high: __m512i) -> (__m512i, __m512i) {
        let split = |codes: __m512i| {
            let codes = _mm512_min_epu16(codes, self.last);
            let units = _mm512_mulhi_epu16(_mm512_slli_epi16::<2>(codes), self.reciprocal);
            let units = _mm512_srl_epi16(units, self.shift);
            (units, _mm512_sub_epi16(codes, _mm512_mullo_epi16(units, self.count)))
        };
        let (a_units, a_members) = split(_mm512_unpacklo_epi8(low, high));
        let (b_units, b_members) = split(_mm512_unpackhi_epi8(low, high));
        (_mm512_packus_epi16(a_units, b_units), _mm512_packus_epi16(a_members, b_members))
    }

    /// Returns units and members from a base-9 digit and the raw bits below it, for S = 3·2ⁿ:
    ///
    /// ```text
    /// code                │ nine │ three │ lower │      digit 0..9, 3 bits, n bits
    /// 8·nine + three      3·unit + digit               unit = ⌊code / S⌋, because 24·S = 9·2ⁿ⁺³
    /// member              digit·2ⁿ + lower             the remainder of code by S
    /// ```
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn split_mixed(&self, nine: __m512i, three: __m512i, lower: __m512i) -> (__m512i, __m512i) {
        let upper = _mm512_or_si512(_mm512_slli_epi16::<3>(nine), three);
        let look_up =
            |table: &[[u8; 64]; 2]| _mm512_permutex2var_epi8(load(&table[0]), upper, load(&table[1]));
        let count = _mm_cvtsi32_si128(self.raw_bits as i32 - 3);
        (look_up(&THIRDS), _mm512_or_si512(_mm512_sll_epi16(look_up(&MODULO_3), count), lower))
    }
}

/// ⌊i/3⌋ of an index below 128.
static THIRDS: [[u8; 64]; 2] = table!(2; half => places!(i => (64 * half + i) / 3));
/// i mod 3 of an index below 128.
static MODULO_3: [[u8; 64]; 2] = table!(2; half => places!(i => (64 * half + i) % 3));

/// For a byte of five base-3 digits. 0 to 3: two digits from that place on. 4: the last digit. 5:
/// three times the first digit.
static DIGITS: [[[u8; 64]; 4]; 6] = table!(6; i => table!(4; part => places!(k => digits(64 * part + k)[i])));

/// Computes the entries of [`DIGITS`] for a byte.
const fn digits(v: usize) -> [usize; 6] {
    [v % 9, v / 3 % 9, v / 9 % 9, v / 27 % 9, v / 81 % 3, v % 3 * 3]
}

/// Looks up bytes in a table of 256: two lookups of 128 entries, selected by the top bit.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn look_up_256(table: &[[u8; 64]; 4], at: __m512i) -> __m512i {
    let low = _mm512_permutex2var_epi8(load(&table[0]), at, load(&table[1]));
    let high = _mm512_permutex2var_epi8(load(&table[2]), at, load(&table[3]));
    _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(at), high)
}

impl Block {
    /// Creates an empty block.
    #[inline]
    fn new() -> Self {
        Self { columns: [MaybeUninit::uninit(); MAX_ROW + 16], filled: 0 }
    }

    /// Takes up to 64 rows, except their flags.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
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
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn column(&self, at: usize) -> __m512i {
        assert!(at < self.filled);
        // SAFETY: `fill` wrote all columns below `filled`.
        load(unsafe { self.columns[at].assume_init_ref() })
    }

    /// Extracts `width` bits, up to 8, from bit `bit` of the rows on.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn field(&self, bit: usize, width: u32) -> __m512i {
        let (at, shift) = (bit / 8, bit as u32 % 8);
        let mask = _mm512_set1_epi8(((1u32 << width) - 1) as i8);
        let low = _mm512_srl_epi16(self.column(at), _mm_cvtsi32_si128(shift as i32));
        if shift + width <= 8 {
            return _mm512_and_si512(low, mask);
        }
        let high = _mm512_sll_epi16(self.column(at + 1), _mm_cvtsi32_si128(8 - shift as i32));
        // The low byte's bits below, the high byte's above.
        let both = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8((0xffu32 >> shift) as i8), low, high);
        _mm512_and_si512(both, mask)
    }

    /// Returns units, members and radii of a chunk, a byte for each row.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn chunk(&self, splitter: &Splitter, chunk: usize) -> [__m512i; 3] {
        let (layout, bits) = (&splitter.layout, splitter.raw_bits);
        let bit = 8 * 2 + chunk * bits as usize;
        let (units, members) = if layout.radix {
            let (at, place) = (layout.digits_at() + 2 * chunk / 5, 2 * chunk % 5);
            let mut nine = look_up_256(&DIGITS[place], self.column(at));
            if place == 4 {
                nine = _mm512_add_epi8(nine, look_up_256(&DIGITS[5], self.column(at + 1)));
            }
            let below = bits - 3;
            splitter.split_mixed(nine, self.field(bit + below as usize, 3), self.field(bit, below))
        } else {
            let high = if bits > 8 { self.field(bit + 8, bits - 8) } else { _mm512_setzero_si512() };
            splitter.split(self.field(bit, bits.min(8)), high)
        };
        let radius_bits = layout.radius_bits.into();
        let radii = self.field(8 * layout.radii_at() + chunk * radius_bits as usize, radius_bits);
        [units, members, radii]
    }

    /// Adds the products of some chunks for all queries.
    ///
    /// # Safety
    /// All of `queries` must be written.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn add_scores(
        &self,
        splitter: &Splitter,
        members: &Members,
        chunks: Range<usize>,
        queries: &[MaybeUninit<Turned>],
        sums: &mut [[__m512; 4]],
    ) {
        let zero = _mm512_setzero_si512();
        for (chunk, at) in chunks.enumerate() {
            let [p, s, radii] = self.chunk(splitter, at);
            let upper = _mm512_movepi8_mask(s);
            let component = |c: usize| members.look_up(c, s, upper);
            let products = interleave([component(0), component(1), component(2), component(3)]);
            let offset = each!(b in products => {
                _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(-128), b))
            });
            let radii = each!(r in interleave([radii, zero, zero, zero]) => _mm512_cvtepi32_ps(r));
            // Byte c of a lane is 32·c + unit, the entry of component c in `TABLE`.
            let at =
                each!(p in interleave([p, p, p, p]) => _mm512_add_epi8(p, _mm512_set1_epi32(0x6040_2000)));
            for (query, sums) in queries.iter().zip(sums.iter_mut()) {
                // SAFETY: the caller promises it.
                let query = unsafe { query.assume_init_ref() };
                // SAFETY: the array has the 16 bytes that are read.
                let ints = unsafe { _mm_loadu_si128(query.ints[chunk].as_ptr().cast()) };
                // The products, then their negatives, 128 too large so that they are unsigned.
                let both = _mm256_set_m128i(_mm_sub_epi8(_mm_setzero_si128(), ints), ints);
                let source = _mm512_castsi256_si512(_mm256_xor_si256(both, _mm256_set1_epi8(-128)));
                let low = _mm512_permutexvar_epi8(load(&TABLE[0]), source);
                let high = _mm512_permutexvar_epi8(load(&TABLE[1]), source);
                let unit = _mm512_set1_ps(query.units[chunk]);
                for quarter in 0..4 {
                    let turned = _mm512_permutex2var_epi8(low, at[quarter], high);
                    let dot = _mm512_dpbusd_epi32(offset[quarter], turned, products[quarter]);
                    // |dot·radius| < 2²⁴, so the product is exact.
                    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), radii[quarter]);
                    sums[quarter] = _mm512_add_ps(sums[quarter], _mm512_mul_ps(scaled, unit));
                }
            }
        }
    }
}

/// Multiplies sums by the rows' scales, and stores up to 64 scores.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn finish(sums: [__m512; 4], rows: &[u8], layout: &ChunkLayout, scores: &mut [f32]) {
    let mut units = [0u16; ROWS];
    for (unit, row) in units.iter_mut().zip(rows.chunks_exact(layout.row_bytes())) {
        *unit = u16::from_le_bytes([row[0], row[1]]);
    }
    let limit = _mm512_set1_ps(layout.radius_limit().into());
    let count = rows.len() / layout.row_bytes();
    for (part, (sum, scores)) in
        floats_in_order(sums).into_iter().zip(scores[..count].chunks_mut(16)).enumerate()
    {
        let mask = if scores.len() < 16 { (1 << scores.len()) - 1 } else { !0 };
        // SAFETY: `units` has 64 values, and the loop reads 16 at a time. The mask has as many bits
        // as `scores` has values.
        unsafe {
            let units = _mm256_loadu_si256(units.as_ptr().add(16 * part).cast());
            let units = _mm512_div_ps(_mm512_cvtph_ps(units), limit);
            _mm512_mask_storeu_ps(scores.as_mut_ptr(), mask, _mm512_mul_ps(sum, units));
        }
    }
}

/// Transposes 16 bytes from byte `at` on of up to 64 rows, which must have them. Missing rows
/// repeat the last one.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn columns_from(rows: &[u8], row_bytes: usize, at: usize, columns: &mut [MaybeUninit<[u8; 64]>]) {
    let count = rows.len() / row_bytes;
    assert!(at + 16 <= row_bytes && count > 0);
    let sixteen = |r: usize| {
        let from = r.min(count - 1) * row_bytes + at;
        // SAFETY: the row is one of `count`, and the 16 bytes end inside it.
        unsafe { _mm_loadu_si128(rows.as_ptr().add(from).cast()) }
    };
    let mut now = [_mm512_setzero_si512(); 16];
    for (i, now) in now.iter_mut().enumerate() {
        let lanes = _mm512_castsi128_si512(sixteen(i));
        let lanes = _mm512_inserti32x4::<1>(lanes, sixteen(16 + i));
        let lanes = _mm512_inserti32x4::<2>(lanes, sixteen(32 + i));
        *now = _mm512_inserti32x4::<3>(lanes, sixteen(48 + i));
    }
    for (now, column) in transpose_bytes(now).into_iter().zip(columns) {
        // SAFETY: the column has 64 bytes.
        unsafe { _mm512_storeu_si512(column.as_mut_ptr().cast(), now) };
    }
}

/// Transposes 16 rows of 16 bytes.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn transpose_16(rows: &[[u8; 16]; 16]) -> [[u8; 16]; 16] {
    let mut fours = [_mm512_setzero_si512(); 4];
    for (four, rows) in fours.iter_mut().zip(rows.as_flattened().as_chunks().0) {
        *four = load::<[u8; 64]>(rows);
    }
    // Rows 4l to 4l + 3 are next to each other in lane l, so a column's four parts lie in four
    // lanes.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let mut columns = [[0; 16]; 16];
    for (columns, mixed) in columns.as_chunks_mut::<4>().0.iter_mut().zip(interleave(in_order(fours))) {
        let four: [u8; 64] = to_array(_mm512_permutexvar_epi32(order, mixed));
        columns.as_flattened_mut().copy_from_slice(&four);
    }
    columns
}
