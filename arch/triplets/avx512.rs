//! Triplets with AVX-512: octahedral directions and radii, 64 fields at a time.
//!
//! ```text
//! 64 fields                 at most 128 bytes
//! vpermi2b, twice           four neighbouring fields to each quadword
//! vpmultishiftqb            one byte of each field: a register with one code of all 64
//! vpermb                    x, y and z of each code, from tables of 64 bytes
//! unpack                    │ r x y z │ r x y z │ …      16 fields, 32 bits each
//! vpdpbusd                  · (0, qx, qy, qz)
//! ```
//!
//! Up to 3 bits, the tables have all codes. With 4 bits they have the positive codes, which the
//! others mirror. Tables of 64 need `vpermb`, a third of the operations of `vpermi2b` on Intel. 5
//! bits take 256 entries.
//!
//! `vpdpbusd` needs an unsigned operand, so the tables contain n + 128, and the sum starts at
//! -128·Σq.

pub(crate) use decode::{accumulate_triplets, decode_triplets};
pub(crate) use score::score_triplets;

use crate::floats::LANES;
use crate::registers::avx512::{interleave, load, load_bytes, load_tail, load_words, store_first};
use crate::rows::Block;
use crate::{Rows, TripletLayout};
use core::arch::x86_64::*;

/// Groups of 16 triplets in the widest row.
const GROUPS: usize = crate::MAX_DIM.div_ceil(3 * LANES);

/// Number of rows whose sums are reduced together.
const BATCH: usize = 16;

/// Groups of 16 triplets that are decoded together.
const TOGETHER: usize = 4;

/// Finds directions and radii of 64 fields.
///
/// `PARTS` is the number of registers with one component of the directions: four with 5 bits,
/// otherwise one. `RADII` is the number of registers with radii: four with 5 or 6 bits, otherwise
/// one.
///
/// Byte 16q + 4g + k of a register of codes belongs to field 16g + 4q + k. Unpacking takes it to
/// lane 4q + k of group g.
struct Fields<const PARTS: usize, const RADII: usize> {
    /// Indices of the eight bytes with four fields from 4q on, of groups 0 and 2. The second
    /// register is for groups 1 and 3.
    windows: [__m512i; 2],
    /// Bit offsets of the fields in their quadwords.
    offsets: __m512i,
    radius_offsets: __m512i,
    /// With 4 bits: the code bits that form the low bits of an index, and all ones. With fewer
    /// bits: all bits of an index, and none.
    low: __m512i,
    negate: __m512i,
    /// Components of directions plus 128.
    tables: [[__m512i; PARTS]; 3],
    radii: [__m512; RADII],
}

impl<const PARTS: usize, const RADII: usize> Fields<PARTS, RADII> {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(layout: &TripletLayout) -> Self {
        let bits = layout.field_bits() as i64;
        let first_fields = _mm512_setr_epi64(0, 32, 4, 36, 8, 40, 12, 44);
        let first_bits = _mm512_mullo_epi32(first_fields, _mm512_set1_epi64(bits));
        let eight = _mm512_set_epi64(
            0x0808_0808_0808_0808,
            0,
            0x0808_0808_0808_0808,
            0,
            0x0808_0808_0808_0808,
            0,
            0x0808_0808_0808_0808,
            0,
        );
        let to_bytes = |x: __m512i| _mm512_shuffle_epi8(x, eight);
        let window = to_bytes(_mm512_srli_epi64::<3>(first_bits));
        let window = _mm512_add_epi8(window, _mm512_set1_epi64(0x0706_0504_0302_0100));
        let offsets = to_bytes(_mm512_and_si512(first_bits, _mm512_set1_epi64(7)));
        let offsets = _mm512_add_epi8(offsets, _mm512_set1_epi64(bits * 0x0302_0100_0302_0100));
        let count = layout.radii.len();
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        // A loop, because closures of `map` are not always inlined into functions with target
        // features.
        let mut radii = [_mm512_setzero_ps(); RADII];
        for (k, radii) in radii.iter_mut().enumerate() {
            let part = load_tail(&layout.radii[16 * k % count..]);
            *radii =
                _mm512_permutexvar_ps(_mm512_and_si512(lanes, _mm512_set1_epi32(count as i32 - 1)), part);
        }
        let four = layout.direction_bits == 4;
        let mut tables = [[window; PARTS]; 3];
        for (table, plane) in tables.iter_mut().zip(layout.planes) {
            let (parts, _) = plane.as_chunks();
            for (table, part) in table.iter_mut().zip(parts) {
                *table = load(part);
            }
            if let ([table], [_, upper], true) = (&mut table[..], parts, four) {
                // Of eight positive η, the eight positive ξ.
                let eights = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
                *table = _mm512_permutex2var_epi64(*table, eights, load(upper));
            }
        }
        Self {
            windows: [window, _mm512_add_epi8(window, _mm512_set1_epi8(2 * bits as i8))],
            offsets,
            radius_offsets: _mm512_add_epi8(offsets, _mm512_set1_epi8(2 * layout.direction_bits as i8)),
            low: _mm512_set1_epi8(if four { 0x07 } else { 0x3f }),
            negate: _mm512_set1_epi8(if four { -1 } else { 0 }),
            tables,
            radii,
        }
    }

    /// Returns lanes of radius code, x, y and z for four groups of fields. The radius code may have
    /// stray bits above it. x, y and z are 128 too large.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn decode(&self, bytes: [__m512i; 2]) -> [__m512i; TOGETHER] {
        let [groups] = self.decode_rows::<true, 1>([bytes]);
        groups
    }

    /// Decodes several rows like `decode`, step by step. Without `LONG`, the first 64 bytes contain
    /// all fields.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn decode_rows<const LONG: bool, const N: usize>(
        &self,
        bytes: [[__m512i; 2]; N],
    ) -> [[__m512i; TOGETHER]; N] {
        // Loops, because closures of `map` are not always inlined into functions with target
        // features.
        let zero = _mm512_setzero_si512();
        let mut windows = [[zero; 2]; N];
        for (windows, [low, high]) in windows.iter_mut().zip(bytes) {
            for (window, index) in windows.iter_mut().zip(self.windows) {
                *window = match LONG {
                    true => _mm512_permutex2var_epi8(low, index, high),
                    false => _mm512_permutexvar_epi8(index, low),
                };
            }
        }
        let (mut radii, mut directions) = ([zero; N], [[zero; 3]; N]);
        for (radii, windows) in radii.iter_mut().zip(windows) {
            *radii = codes(windows, self.radius_offsets);
        }
        for (directions, windows) in directions.iter_mut().zip(windows) {
            *directions = if PARTS > 1 { self.directions_5(windows) } else { self.directions_4(windows) };
        }
        let mut groups = [[zero; TOGETHER]; N];
        for ((groups, radius), [x, y, z]) in groups.iter_mut().zip(radii).zip(directions) {
            *groups = interleave([radius, x, y, z]);
        }
        groups
    }

    /// Looks up directions of up to 4 bits.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn directions_4(&self, windows: [__m512i; 2]) -> [__m512i; 3] {
        let codes = codes(windows, self.offsets);
        // With 4 bits, bits 3 and 7 are the signs. Negative codes are looked up mirrored, and x or
        // y is negated: 256 - (128 + y). `vpshufb` gives zero where bit 7 is set, otherwise an
        // entry.
        let left = _mm512_shuffle_epi8(self.negate, _mm512_slli_epi16::<4>(codes));
        let down = _mm512_shuffle_epi8(self.negate, codes);
        let index = _mm512_ternarylogic_epi32::<0xca>(self.low, codes, _mm512_srli_epi16::<1>(codes));
        let index = _mm512_ternarylogic_epi32::<0x78>(index, left, _mm512_set1_epi8(0x07));
        let index = _mm512_ternarylogic_epi32::<0x78>(index, down, _mm512_set1_epi8(0x38));
        let [x, y, z] = self.tables.map(|table| _mm512_permutexvar_epi8(index, table[0]));
        let negated = |x: __m512i, mask: __m512i| _mm512_sub_epi8(_mm512_xor_si512(x, mask), mask);
        [negated(x, left), negated(y, down), z]
    }

    /// Looks up directions of 5 bits.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn directions_5(&self, windows: [__m512i; 2]) -> [__m512i; 3] {
        let at = |shift: i8| codes(windows, _mm512_add_epi8(self.offsets, _mm512_set1_epi8(shift)));
        // Take four bits of ξ and four of η, then both signs in bit 7. Offsets are modulo 64.
        let code = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(0x0f), at(0), at(1));
        let all = _mm512_set1_epi8(-1);
        let (left, down) = (_mm512_shuffle_epi8(all, at(-3)), _mm512_shuffle_epi8(all, at(2)));
        // Xors with the lower half of `left` and the upper half of `down`.
        let flip = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(0x0f), left, down);
        let code = _mm512_xor_si512(code, flip);
        let upper = _mm512_movepi8_mask(code);
        let [x, y, z] = self.tables.map(|table| match table[..] {
            [a, b, c, d] => {
                let (low, high) =
                    (_mm512_permutex2var_epi8(a, code, b), _mm512_permutex2var_epi8(c, code, d));
                _mm512_mask_blend_epi8(upper, low, high)
            }
            _ => code,
        });
        let negated = |x: __m512i, mask: __m512i| _mm512_sub_epi8(_mm512_xor_si512(x, mask), mask);
        [negated(x, left), negated(y, down), z]
    }

    /// Returns radii. Their codes are the low bits of the lanes.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn radius(&self, codes: __m512i) -> __m512 {
        let [a, b, c, d] = self.radii[..] else { return _mm512_permutexvar_ps(codes, self.radii[0]) };
        let upper = _mm512_test_epi32_mask(codes, _mm512_set1_epi32(32));
        let (low, high) = (_mm512_permutex2var_ps(a, codes, b), _mm512_permutex2var_ps(c, codes, d));
        _mm512_mask_blend_ps(upper, low, high)
    }

    /// Returns x, y and z times the radius, for a group.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn vectors(&self, group: __m512i) -> [__m512; 3] {
        let radius = self.radius(group);
        let n = _mm512_xor_si512(group, _mm512_set1_epi8(-128));
        let x = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(n));
        let y = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(n));
        let z = _mm512_srai_epi32::<24>(n);
        scaled([_mm512_cvtepi32_ps(x), _mm512_cvtepi32_ps(y), _mm512_cvtepi32_ps(z)], radius)
    }
}

/// Multiplies each component by a factor.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn scaled([x, y, z]: [__m512; 3], factor: __m512) -> [__m512; 3] {
    [_mm512_mul_ps(factor, x), _mm512_mul_ps(factor, y), _mm512_mul_ps(factor, z)]
}

/// Extracts one byte of each of 64 fields.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn codes([even, odd]: [__m512i; 2], offsets: __m512i) -> __m512i {
    let codes = _mm512_multishift_epi64_epi8(offsets, even);
    _mm512_mask_multishift_epi64_epi8(codes, 0xf0f0_f0f0_f0f0_f0f0, offsets, odd)
}

/// The position of the bytes of 64 fields.
#[derive(Clone, Copy)]
struct Chunk {
    /// Where they begin in a row.
    at: usize,
    /// Whether they are more than 64 bytes.
    is_long: bool,
    /// Groups of 16 fields that are triplets, at most four.
    groups: usize,
}

impl Chunk {
    /// Iterates over the fields of a row, 64 at a time.
    #[inline(always)]
    fn all(layout: &TripletLayout) -> impl Iterator<Item = Self> {
        let (header, bits, triplets) = (layout.header_bytes(), layout.field_bits(), layout.triplets());
        (0..triplets).step_by(TOGETHER * LANES).map(move |first| {
            let count = (triplets - first).min(TOGETHER * LANES);
            Self { at: header + first * bits / 8, is_long: count * bits > 512, groups: count.div_ceil(LANES) }
        })
    }

    /// Loads the bytes from the row that begins at `row`. What follows the fields does not matter.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn load(self, bytes: &[u8], row: usize) -> [__m512i; 2] {
        let at = row + self.at;
        let low = load_at(bytes, at);
        [low, if self.is_long { load_at(bytes, at + 64) } else { low }]
    }
}

/// Loads 64 bytes from `at` on, with zeros behind the end.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_at(bytes: &[u8], at: usize) -> __m512i {
    if at + 64 <= bytes.len() {
        // SAFETY: 64 bytes follow `at`.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().add(at).cast()) }
    } else {
        load_bytes(&bytes[at.min(bytes.len() - 1)..])
    }
}

/// Number of queries that are scored together.
const QUERIES: usize = 8;

/// Loads four bytes from each of up to 16 rows, from `at` on. Shorter rows are padded with zeros.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn windows(rows: &Rows, at: usize) -> __m512i {
    if at + 4 > rows.len {
        let mut windows = [0; BATCH];
        for (window, row) in windows.iter_mut().zip(rows.iter()) {
            *window = row[at..].iter().rev().fold(0, |window, byte| window << 8 | u32::from(*byte));
        }
        return load(&windows);
    }
    if rows.count() == BATCH {
        // A gather would take a third of the time of the scores.
        let block = Block::of(rows.bytes, rows.stride).window(at, at + 4);
        return load(&core::array::from_fn(|r| u32::from_le_bytes(*block.first(r))));
    }
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let present = _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32(rows.count() as i32));
    let offsets = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(rows.stride as i32));
    // SAFETY: reads four bytes of each present row, from `at` on. They are inside the row.
    unsafe {
        let base = rows.bytes.as_ptr().add(at).cast();
        _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), present, offsets, base)
    }
}

/// Finds the coordinates left over. The last four bytes of a stream contain the whole last field.
struct Rest {
    /// Where these bytes begin in a row.
    at: usize,
    shift: u32,
    bits: u32,
    count: usize,
    /// 128 centroids of 16 bits.
    centroids: [__m512i; 4],
}

impl Rest {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(layout: &TripletLayout) -> Self {
        let count = layout.dim - (3 * layout.triplets()).min(layout.dim);
        let end = layout.header_bytes() + layout.stream_bytes();
        let at = end.saturating_sub(4);
        let bit = 8 * layout.header_bytes() + layout.triplets() * layout.field_bits();
        let shift = (bit - (8 * at).min(bit)) as u32;
        let centroids = [0, 32, 64, 96].map(|k| load_words(layout.rest.get(k..).unwrap_or(&[])));
        Self { at, shift, bits: layout.rest_bits.into(), count, centroids }
    }

    /// Returns the centroids of the coordinates left over in up to 16 rows. Each lane has two, of
    /// 16 bits. A missing one is 0.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroids(&self, rows: &Rows) -> __m512i {
        if self.count == 0 {
            return _mm512_setzero_si512();
        }
        let windows = windows(rows, self.at);
        let mask = _mm512_set1_epi32((1 << self.bits) - 1);
        let [a, b, c, d] = self.centroids;
        let first = _mm512_srl_epi32(windows, _mm_cvtsi32_si128(self.shift as i32));
        let second = _mm512_srl_epi32(windows, _mm_cvtsi32_si128((self.shift + self.bits) as i32));
        let codes = _mm512_and_si512(first, mask);
        let codes = _mm512_or_si512(codes, _mm512_slli_epi32::<16>(_mm512_and_si512(second, mask)));
        let words = if self.bits <= 6 {
            _mm512_permutex2var_epi16(a, codes, b)
        } else {
            let upper = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(64));
            let (low, high) =
                (_mm512_permutex2var_epi16(a, codes, b), _mm512_permutex2var_epi16(c, codes, d));
            _mm512_mask_blend_epi16(upper, low, high)
        };
        if self.count > 1 { words } else { _mm512_and_si512(words, _mm512_set1_epi32(0xffff)) }
    }

    /// Returns Σ q·centroid.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn sums(&self, centroids: __m512i, query: &[i16]) -> __m512i {
        let q = |i: usize| i32::from(query[query.len() - self.count..].get(i).copied().unwrap_or(0));
        _mm512_madd_epi16(centroids, _mm512_set1_epi32(q(0) & 0xffff | q(1) << 16))
    }
}

/// Calls a function that is generic over the kinds of [`Fields`].
macro_rules! by_kind {
    ($function:ident($layout:ident $(, $argument:expr)*)) => {
        match ($layout.direction_bits == 5, $layout.radius_bits > 4) {
            (false, false) => $function::<1, 1>($layout $(, $argument)*),
            (false, true) => $function::<1, 4>($layout $(, $argument)*),
            (true, false) => $function::<4, 1>($layout $(, $argument)*),
            (true, true) => $function::<4, 4>($layout $(, $argument)*),
        }
    };
}

// Declared behind `by_kind`, which they use.

mod decode;
mod score;
