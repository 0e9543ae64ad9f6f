//! Chunks as products of quaternions with AVX2. Lanes are rows in a score, and eight chunks in a
//! weighted sum.
//!
//! For sums, a row's fields come out eight to a register, as in `triplets`. On a Sapphire Rapids, a
//! sum of 128 coordinates takes 44 ns, against 115 ns of the implementation for any registers. With
//! eight queries it takes 10 and 24 ns. The number of instructions that the CPU can issue limits
//! it.

mod score;

pub(crate) use score::score_quaternions;

use super::layout::{ChunkLayout, MAX_CHUNKS, QuaternionSet, UNITS, unit_reciprocal};
use crate::registers::Elementwise;
use crate::registers::avx2::fields::{Fields, halves_of_eight, load_some};
use crate::registers::avx2::{Ymm, load, store_ps, upper_products};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Number of chunks in a step.
const EIGHT: usize = 8;

/// Number of steps for the widest row.
const STEPS: usize = MAX_CHUNKS / EIGHT;

/// Codes of eight chunks, 32 bits each.
#[derive(Clone, Copy)]
struct Codes {
    units: __m256i,
    members: __m256i,
    radii: __m256i,
}

/// Unpacks eight chunks at a time from rows of one shape.
struct Unpack {
    layout: ChunkLayout,
    raw: Fields,
    radii: Fields,
    /// The shift of the base-9 digit.
    above: __m128i,
    /// See [`unit_reciprocal`].
    reciprocal: __m256i,
    shift: __m128i,
    count: __m256i,
    last: __m256i,
}

impl Unpack {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(layout: &ChunkLayout) -> Self {
        let (reciprocal, shift) = unit_reciprocal(layout.members);
        Self {
            layout: *layout,
            raw: Fields::new(layout.raw_bits() as usize),
            radii: Fields::new(layout.radius_bits.into()),
            above: _mm_cvtsi32_si128(layout.raw_bits() as i32),
            reciprocal: _mm256_set1_epi16(reciprocal as i16),
            shift: _mm_cvtsi32_si128(shift as i32),
            count: _mm256_set1_epi16(layout.members.into()),
            last: _mm256_set1_epi32(layout.codes() as i32 - 1),
        }
    }

    /// Unpacks chunks 8·`step` … of the row that begins at byte `row`. Behind the row's end, codes
    /// have no meaning.
    ///
    /// # Safety
    /// If `READY`, 16 bytes must follow the row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes<const READY: bool>(&self, bytes: &[u8], row: usize, step: usize) -> Codes {
        let layout = &self.layout;
        // SAFETY: each load begins within the row, and the caller promises 16 bytes behind it.
        let load = |at: usize| unsafe { load_some::<READY>(bytes, row + at) };
        let mut codes = self.raw.of(load(2 + step * layout.raw_bits() as usize));
        if layout.radix {
            let nines = self.nines(load(layout.digits_at() + DIGITS[step].first), step);
            codes = _mm256_or_si256(codes, _mm256_sll_epi32(nines, self.above));
        } else {
            codes = _mm256_min_epu32(codes, self.last);
        }
        let radii = self.radii.of(load(layout.radii_at() + step * usize::from(layout.radius_bits)));
        // Of the two words of a lane, the upper one stays 0.
        let units = upper_products(_mm256_slli_epi16::<2>(codes), self.reciprocal);
        let units = _mm256_srl_epi16(units, self.shift);
        Codes { units, members: _mm256_sub_epi16(codes, _mm256_mullo_epi16(units, self.count)), radii }
    }

    /// Returns base-9 digits. The two words of a lane contribute the lower and the upper base-3
    /// digit.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn nines(&self, sixteen: __m128i, step: usize) -> __m256i {
        let table = &DIGITS[step];
        let words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), load(&table.bytes));
        let thirds = _mm256_mullo_epi16(words, load(&table.factors));
        let digits = upper_products(thirds, _mm256_set1_epi16(3));
        _mm256_madd_epi16(digits, _mm256_set1_epi32(3 << 16 | 1))
    }
}

/// The places of the base-3 digits of eight chunks, two to a lane, and how to extract them.
///
/// ```text
/// byte = d₀ + 3·d₁ + 9·d₂ + 27·d₃ + 81·d₄
/// byte · ⌈2¹⁶/3ⁿ⁺¹⌉ mod 2¹⁶      the fraction of byte/3ⁿ⁺¹ in 2¹⁶ths: times 3, its integer part is dₙ
/// ```
///
/// This is exact for every byte.
struct DigitStep {
    /// The byte of the plane from which `bytes` count.
    first: usize,
    bytes: [u8; 32],
    factors: [u16; 16],
}

static DIGITS: [DigitStep; STEPS] = {
    const NONE: DigitStep = DigitStep { first: 0, bytes: [0xff; 32], factors: [0; 16] };
    let mut steps = [NONE; STEPS];
    let mut step = 0;
    while step < steps.len() {
        steps[step].first = 16 * step / 5;
        let mut i = 0;
        while i < 16 {
            let digit = 16 * step + i;
            steps[step].bytes[2 * i] = (digit / 5 - steps[step].first) as u8;
            steps[step].factors[i] = [21846, 7282, 2428, 810, 270][digit % 5];
            i += 1;
        }
        step += 1;
    }
    steps
};

/// Components of eight quaternions.
type Planes = [__m256; 4];

/// Positions of eight quaternions in a slice, in bytes.
type Places = [u32; EIGHT];

/// Loads eight quaternions as components.
/// # Safety
/// A quaternion must lie at each of these positions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quads(of: &[[f32; 4]], places: &Places) -> Planes {
    let mut quads = [&of[0]; 16];
    for (quad, place) in quads.iter_mut().zip(places) {
        // SAFETY: the caller promises it.
        *quad = unsafe { &*of.as_ptr().byte_add(*place as usize) };
    }
    Ymm::quads(&quads).map(|plane| _mm256_castsi256_ps(plane))
}

/// Returns unit·q.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn product([a, b, c, d]: Planes, [w, x, y, z]: Planes) -> Planes {
    let m = |a, b| _mm256_mul_ps(a, b);
    let plus = |a, b| _mm256_add_ps(a, b);
    let minus = |a, b| _mm256_sub_ps(a, b);
    [
        minus(minus(m(a, w), m(b, x)), plus(m(c, y), m(d, z))),
        plus(plus(m(a, x), m(b, w)), minus(m(c, z), m(d, y))),
        plus(plus(m(a, y), m(c, w)), minus(m(d, x), m(b, z))),
        plus(plus(m(a, z), m(d, w)), minus(m(b, y), m(c, x))),
    ]
}

/// Number of rows whose values are kept for all queries.
const ROWS: usize = 64;

/// Implements `scalar::accumulate_quaternions`.
///
/// For eight chunks at a time it decodes some rows. Then it adds them for each query, whose sums
/// stay in registers as components.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let (count, width) = (bytes.len() / layout.row_bytes(), 4 * layout.chunks);
    let unpack = Unpack::new(layout);
    let limit = _mm256_set1_ps(layout.radius_limit().into());
    let mut values = [const { MaybeUninit::<Planes>::uninit() }; ROWS];
    // A pass of its own, so that the stores have completed when general registers load from them.
    let mut places = [([0; EIGHT], [0; EIGHT], _mm256_setzero_ps()); ROWS];
    for first in (0..count).step_by(ROWS) {
        let rows = ROWS.min(count - first);
        let ready = (first + rows) * layout.row_bytes() + 16 <= bytes.len();
        let mut scales = [0.0; ROWS];
        for (i, scales) in scales.as_chunks_mut().0.iter_mut().enumerate().take(rows.div_ceil(EIGHT)) {
            let of_eight = halves_of_eight(bytes, layout.row_bytes(), first + EIGHT * i, 0);
            store_ps(scales, _mm256_div_ps(of_eight, limit));
        }
        for step in 0..layout.chunks.div_ceil(EIGHT) {
            for (r, (places, scale)) in places[..rows].iter_mut().zip(scales).enumerate() {
                let row = (first + r) * layout.row_bytes();
                // SAFETY: if `ready`, 16 bytes follow the row. Otherwise `codes` checks.
                let codes = unsafe {
                    if ready {
                        unpack.codes::<true>(bytes, row, step)
                    } else {
                        unpack.codes::<false>(bytes, row, step)
                    }
                };
                store_ints(&mut places.0, _mm256_slli_epi32::<4>(codes.units));
                store_ints(&mut places.1, _mm256_slli_epi32::<4>(codes.members));
                places.2 = _mm256_mul_ps(_mm256_cvtepi32_ps(codes.radii), _mm256_set1_ps(scale));
            }
            for (values, (units, members, radii)) in values.iter_mut().zip(&places[..rows]) {
                // SAFETY: units are below 24, members are remainders by the set's length, and both
                // are times 16 bytes.
                let product = unsafe { product(quads(&UNITS, units), quads(set.members, members)) };
                values.write(product.map(|c| _mm256_mul_ps(c, *radii)));
            }
            // SAFETY: these have just been written.
            let values = unsafe { &*(&raw const values[..rows] as *const [Planes]) };
            for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(width)) {
                let acc = &mut acc[4 * EIGHT * step..];
                let acc = &mut acc[..(4 * EIGHT).min(width - 4 * EIGHT * step)];
                let mut padded = [0.0; 4 * EIGHT];
                padded[..acc.len()].copy_from_slice(acc);
                let mut sums = turn_planes(&padded);
                for (values, weight) in values.iter().zip(&weights[first..]) {
                    let weight = _mm256_set1_ps(*weight);
                    for (sum, x) in sums.iter_mut().zip(values) {
                        *sum = _mm256_add_ps(*sum, _mm256_mul_ps(weight, *x));
                    }
                }
                store_planes(sums, &mut padded);
                acc.copy_from_slice(&padded[..acc.len()]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_ints(out: &mut Places, x: __m256i) {
    // SAFETY: the array has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) }
}

/// Splits eight consecutive quaternions into components.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn turn_planes(x: &[f32; 4 * EIGHT]) -> Planes {
    let mut quads = [&[0.0; 4]; 16];
    for (quad, x) in quads.iter_mut().zip(x.as_chunks().0) {
        *quad = x;
    }
    Ymm::quads(&quads).map(|plane| _mm256_castsi256_ps(plane))
}

/// Joins components to eight consecutive quaternions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_planes([w, x, y, z]: Planes, out: &mut [f32; 4 * EIGHT]) {
    let pd = |a| _mm256_castps_pd(a);
    let (wx_low, wx_high) = (pd(_mm256_unpacklo_ps(w, x)), pd(_mm256_unpackhi_ps(w, x)));
    let (yz_low, yz_high) = (pd(_mm256_unpacklo_ps(y, z)), pd(_mm256_unpackhi_ps(y, z)));
    // Register i has chunks i and 4 + i.
    let fours = [
        _mm256_unpacklo_pd(wx_low, yz_low),
        _mm256_unpackhi_pd(wx_low, yz_low),
        _mm256_unpacklo_pd(wx_high, yz_high),
        _mm256_unpackhi_pd(wx_high, yz_high),
    ];
    for (i, four) in fours.into_iter().enumerate() {
        let four = _mm256_castpd_ps(four);
        for (half, quad) in
            [_mm256_castps256_ps128(four), _mm256_extractf128_ps::<1>(four)].into_iter().enumerate()
        {
            let place = &mut out.as_chunks_mut::<4>().0[i + 4 * half];
            // SAFETY: the array has the 16 bytes that are written.
            unsafe { _mm_storeu_ps(place.as_mut_ptr(), quad) };
        }
    }
}
