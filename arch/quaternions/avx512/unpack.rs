//! Planes to units, members and radii, 16 chunks at a time, and to vectors.

use super::{Planes, load_chunks};
use crate::floats::row_scale;
use crate::quaternions::layout::{ChunkLayout, MAX_CHUNKS, QuaternionSet, UNITS, unit_reciprocal};
use crate::registers::Elementwise;
use crate::registers::avx512::{
    Zmm, decode_f16, first, floats_in_order, load, load_bytes, mulhi, places, store_ps, table, to_array,
};
use core::arch::x86_64::*;

/// Codes of 16 chunks in 32-bit lanes.
#[derive(Clone, Copy)]
pub(crate) struct Codes {
    pub(crate) units: __m512i,
    pub(crate) members: __m512i,
    pub(crate) radii: __m512i,
}

/// Unpacks 16 chunks at a time from rows of one shape.
///
/// Each step starts on a byte, because 16 codes of b bits are 2b bytes. A code lies inside three or
/// four bytes from its first one on.
pub(crate) struct Unpack {
    layout: ChunkLayout,
    raw_bits: u32,
    raw_bytes: __m512i,
    raw_shift: __m512i,
    raw_mask: __m512i,
    radius_bytes: __m512i,
    radius_shift: __m512i,
    radius_mask: __m512i,
    /// See [`unit_reciprocal`].
    reciprocal: __m512i,
    shift: __m128i,
    count: __m512i,
    last: __m512i,
}

impl Unpack {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(layout: &ChunkLayout) -> Self {
        let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let bit_of = |bits: u32| _mm512_mullo_epi32(lane, _mm512_set1_epi32(bits as i32));
        // Byte indices b, b + 1, b + 2, b + 3 in each lane.
        let bytes_of = |bit: __m512i| {
            let byte = _mm512_srli_epi32::<3>(bit);
            let four = _mm512_mullo_epi32(byte, _mm512_set1_epi32(0x0101_0101));
            _mm512_add_epi8(four, _mm512_set1_epi32(0x0302_0100))
        };
        let raw_bits = layout.raw_bits();
        let (raw, radius) = (bit_of(raw_bits), bit_of(layout.radius_bits.into()));
        let seven = _mm512_set1_epi32(7);
        let (reciprocal, shift) = unit_reciprocal(layout.members);
        Self {
            layout: *layout,
            raw_bits,
            raw_bytes: bytes_of(raw),
            raw_shift: _mm512_and_si512(raw, seven),
            raw_mask: _mm512_set1_epi32((1 << raw_bits) - 1),
            radius_bytes: bytes_of(radius),
            radius_shift: _mm512_and_si512(radius, seven),
            radius_mask: _mm512_set1_epi32((1 << layout.radius_bits) - 1),
            reciprocal: _mm512_set1_epi16(reciprocal as i16),
            shift: _mm_cvtsi32_si128(shift as i32),
            count: _mm512_set1_epi16(layout.members.into()),
            last: _mm512_set1_epi32(layout.codes() as i32 - 1),
        }
    }

    /// Unpacks chunks 16·`step` … of the row that begins at byte `row`. Behind the row's end, codes
    /// have no meaning.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn codes(&self, bytes: &[u8], row: usize, step: usize) -> Codes {
        let layout = &self.layout;
        let field = |at: usize, places, shift, mask| {
            let four = _mm512_permutexvar_epi8(places, load_32(bytes, row + at));
            _mm512_and_si512(_mm512_srlv_epi32(four, shift), mask)
        };
        let at = 2 + 2 * step * self.raw_bits as usize;
        let mut codes = field(at, self.raw_bytes, self.raw_shift, self.raw_mask);
        if layout.radix {
            let nines = self.nines(bytes, row + layout.digits_at(), step);
            codes = _mm512_or_si512(codes, _mm512_sll_epi32(nines, _mm_cvtsi32_si128(self.raw_bits as i32)));
        } else {
            codes = _mm512_min_epu32(codes, self.last);
        }
        let at = layout.radii_at() + 2 * step * usize::from(layout.radius_bits);
        let radii = field(at, self.radius_bytes, self.radius_shift, self.radius_mask);
        // Of the two words of a lane, the upper one stays 0.
        let units = _mm512_srl_epi16(mulhi(_mm512_slli_epi16::<2>(codes), self.reciprocal), self.shift);
        let members = _mm512_sub_epi16(codes, _mm512_mullo_epi16(units, self.count));
        Codes { units, members, radii }
    }

    /// Returns base-9 digits. The two words of a lane contribute the lower and the upper base-3
    /// digit.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn nines(&self, bytes: &[u8], plane: usize, step: usize) -> __m512i {
        let table = &DIGITS[step];
        let source = load_32(bytes, plane + table.first);
        let words = _mm512_maskz_permutexvar_epi8(0x5555_5555_5555_5555, load(&table.bytes), source);
        let above = mulhi(_mm512_add_epi16(words, words), load(&table.factors));
        // ⌈2¹⁶/3⌉ is exact for a byte.
        let thirds = mulhi(above, _mm512_set1_epi16(21846));
        let digits = _mm512_sub_epi16(above, _mm512_add_epi16(thirds, _mm512_add_epi16(thirds, thirds)));
        _mm512_madd_epi16(digits, _mm512_set1_epi32(3 << 16 | 1))
    }
}

/// Loads 32 bytes, at least as many as 16 codes have. Behind the last byte it returns zeros.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_32(bytes: &[u8], at: usize) -> __m512i {
    match bytes[at..].first_chunk::<32>() {
        // SAFETY: the array has the 32 bytes that are read.
        Some(bytes) => _mm512_castsi256_si512(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }),
        None => load_bytes(&bytes[at..]),
    }
}

/// Where the base-3 digits of 16 chunks lie, two to a lane, and how to bring them to the lowest
/// place.
///
/// The upper half of 2·byte · ⌈2¹⁵/3ⁿ⌉ is ⌊byte/3ⁿ⌋, exact for every byte.
#[derive(Clone, Copy)]
struct DigitStep {
    /// The byte of the plane from which `bytes` count.
    first: usize,
    bytes: [u8; 64],
    factors: [u16; 32],
}

/// Each step has 32 digits, so it begins at digit 32·`step`, inside byte 32·`step`/5.
static DIGITS: [DigitStep; MAX_CHUNKS.div_ceil(16)] = table!(MAX_CHUNKS.div_ceil(16); step => DigitStep {
    first: 32 * step / 5,
    bytes: places!(i => (32 * step + i / 2) / 5 - 32 * step / 5),
    factors: table!(32; i => [32768, 10923, 3641, 1214, 405][(32 * step + i) % 5]),
});

/// Components of the units, as tables in registers.
struct Units([[__m512; 2]; 4]);

impl Units {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new() -> Self {
        let half = |c: usize, half: usize| _mm512_castsi512_ps(load(&UNIT_BITS[c][half]));
        let both = |c: usize| [half(c, 0), half(c, 1)];
        Self([both(0), both(1), both(2), both(3)])
    }

    /// Looks up the components of 16 units.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn of(&self, units: __m512i) -> Planes {
        let component = |c: usize| _mm512_permutex2var_ps(self.0[c][0], units, self.0[c][1]);
        [component(0), component(1), component(2), component(3)]
    }
}

/// The bits of the units, two registers of 16 units for each component. The second is padded with
/// zeros.
static UNIT_BITS: [[[u32; 16]; 2]; 4] = table!(4; c => table!(2; half => table!(16; i => {
    let unit = 16 * half + i;
    if unit < UNITS.len() { UNITS[unit][c].to_bits() } else { 0 }
})));

/// The table positions of 16 chunks.
#[derive(Clone, Copy)]
struct Places {
    units: __m512i,
    /// Positions of members in the set, in bytes.
    members: [u32; 16],
    radii: __m512,
}

/// Decodes rows.
struct Decoder<'a> {
    unpack: Unpack,
    units: Units,
    set: &'a QuaternionSet<'a>,
    limit: f32,
}

impl<'a> Decoder<'a> {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(layout: &ChunkLayout, set: &'a QuaternionSet<'a>) -> Self {
        Self { unpack: Unpack::new(layout), units: Units::new(), set, limit: layout.radius_limit().into() }
    }

    /// Returns the value of one radius step of a row.
    #[inline]
    fn unit(&self, row: &[u8]) -> f32 {
        row_scale(row) / self.limit
    }

    /// Finds the positions for chunks 16·`step` … of a row.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn places(&self, bytes: &[u8], row: usize, unit: f32, step: usize) -> Places {
        let codes = self.unpack.codes(bytes, row, step);
        Places {
            units: codes.units,
            members: to_array(_mm512_slli_epi32::<4>(codes.members)),
            radii: _mm512_mul_ps(_mm512_cvtepi32_ps(codes.radii), _mm512_set1_ps(unit)),
        }
    }

    /// Decodes 16 chunks to components.
    ///
    /// # Safety
    /// The positions must come from [`places`](Self::places).
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn planes(&self, places: &Places) -> Planes {
        let mut quads = [&self.set.members[0]; 16];
        for (quad, place) in quads.iter_mut().zip(places.members) {
            // SAFETY: `Unpack` computes members as remainders by S, and `check_chunks` has compared
            // S with the length of `set.members`. A place is such a number times its 16 bytes.
            *quad = unsafe { &*self.set.members.as_ptr().byte_add(place as usize) };
        }
        let q = each!(c in Zmm::quads(&quads) => _mm512_castsi512_ps(c));
        each!(c in product(&self.units.of(places.units), &q) => _mm512_mul_ps(c, places.radii))
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn decode(&self, row: &[u8], out: &mut [f32]) {
        let unit = self.unit(row);
        for (step, out) in out.chunks_mut(64).enumerate() {
            // SAFETY: these positions come from `places`.
            store_chunks(out, unsafe { self.planes(&self.places(row, 0, unit, step)) });
        }
    }
}

/// Stores up to 16 chunks.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn store_chunks(out: &mut [f32], planes: Planes) {
    for (part, row) in interleave(planes).into_iter().enumerate() {
        let mask = first(out.len().saturating_sub(16 * part)) as u16;
        // SAFETY: a masked store does not touch values whose mask bit is clear. The others are
        // inside `out`.
        unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr().wrapping_add(16 * part), mask, row) };
    }
}

/// Returns unit·q.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn product(unit: &Planes, q: &Planes) -> Planes {
    let ([a, b, c, d], [w, x, y, z]) = (*unit, *q);
    let m = |a, b| _mm512_mul_ps(a, b);
    let plus = |a, b| _mm512_add_ps(a, b);
    let minus = |a, b| _mm512_sub_ps(a, b);
    [
        minus(minus(m(a, w), m(b, x)), plus(m(c, y), m(d, z))),
        plus(plus(m(a, x), m(b, w)), minus(m(c, z), m(d, y))),
        plus(plus(m(a, y), m(c, w)), minus(m(d, x), m(b, z))),
        plus(plus(m(a, z), m(d, w)), minus(m(b, y), m(c, x))),
    ]
}

/// Joins components to 16 consecutive quaternions.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn interleave([w, x, y, z]: Planes) -> [__m512; 4] {
    let pd = |a| _mm512_castps_pd(a);
    let (wx_low, wx_high) = (pd(_mm512_unpacklo_ps(w, x)), pd(_mm512_unpackhi_ps(w, x)));
    let (yz_low, yz_high) = (pd(_mm512_unpacklo_ps(y, z)), pd(_mm512_unpackhi_ps(y, z)));
    // Register i has chunks i, 4 + i, 8 + i and 12 + i.
    let ps = |a| _mm512_castpd_ps(a);
    floats_in_order([
        ps(_mm512_unpacklo_pd(wx_low, yz_low)),
        ps(_mm512_unpackhi_pd(wx_low, yz_low)),
        ps(_mm512_unpacklo_pd(wx_high, yz_high)),
        ps(_mm512_unpackhi_pd(wx_high, yz_high)),
    ])
}

/// Number of rows whose values are kept for all queries.
const ROWS: usize = 32;

/// Implements `scalar::decode_quaternions`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn decode_quaternions(layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]) {
    Decoder::new(layout, set).decode(row, out);
}

/// Implements `scalar::accumulate_quaternions`.
///
/// For 16 chunks at a time it decodes some rows. Then it adds them for each query, whose sums stay
/// in registers as components.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let (row_bytes, width) = (layout.row_bytes(), 4 * layout.chunks);
    let count = bytes.len() / row_bytes;
    let decoder = Decoder::new(layout, set);
    let zero = _mm512_setzero_ps();
    // A pass of its own, so that the stores have completed when general registers load from them.
    let mut places = [Places { units: _mm512_setzero_si512(), members: [0; 16], radii: zero }; ROWS];
    let (mut values, mut scales) = ([[zero; 4]; ROWS], [0.0; ROWS]);
    for (block, rows) in bytes.chunks(ROWS * row_bytes).enumerate() {
        let mut halves = [[0; 2]; ROWS];
        for (half, row) in halves.iter_mut().zip(rows.chunks_exact(row_bytes)) {
            *half = [row[0], row[1]];
        }
        for (halves, scales) in halves.as_flattened().chunks(32).zip(scales.as_chunks_mut().0) {
            store_ps(scales, _mm512_div_ps(decode_f16(halves), _mm512_set1_ps(decoder.limit)));
        }
        for step in 0..layout.chunks.div_ceil(16) {
            let starts = (0..rows.len()).step_by(row_bytes);
            for ((places, scale), row) in places.iter_mut().zip(&scales).zip(starts) {
                *places = decoder.places(rows, row, *scale, step);
            }
            let values = &mut values[..rows.len() / row_bytes];
            for (values, places) in values.iter_mut().zip(&places) {
                // SAFETY: these positions come from `places`.
                *values = unsafe { decoder.planes(places) };
            }
            for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(width)) {
                let acc = &mut acc[64 * step..width.min(64 * (step + 1))];
                let mut sums = load_chunks(acc);
                for (values, weight) in values.iter().zip(&weights[ROWS * block..]) {
                    for (sum, x) in sums.iter_mut().zip(values) {
                        *sum = _mm512_add_ps(*sum, _mm512_mul_ps(_mm512_set1_ps(*weight), *x));
                    }
                }
                store_chunks(acc, sums);
            }
        }
    }
}
