//! The search for octahedral directions of `wide/encode.rs`, eight triplets a register, with gathers.

use crate::registers::Registers;
use crate::registers::avx2::{Avx2, load_first};
use crate::triplets::layout::MAX_FIELDS;
use crate::triplets::scalar;
use crate::triplets::wide::encode::Encoder;
use crate::{Search, TripletLayout};
use core::arch::x86_64::*;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn encode_triplets(
    layout: &TripletLayout,
    search: Search,
    x: &[f32],
    scale: f32,
    stream: &mut [u8],
) {
    if search == Search::All {
        return scalar::encode_triplets(layout, search, x, scale, stream);
    }
    let mut fields = [0; MAX_FIELDS];
    let encoder = Eight::new(Encoder::new(layout, search));
    for (x, fields) in x.chunks(24).zip(fields.as_chunks_mut::<8>().0) {
        let mut filled = [0.0; 24];
        if x.len() < 24 {
            filled[..x.len()].copy_from_slice(x);
        }
        let halves = x.first_chunk().unwrap_or(&filled).as_chunks::<12>().0;
        let (low, high) = (Avx2::load_triplets(&halves[0]), Avx2::load_triplets(&halves[1]));
        let mut t = [_mm256_set1_ps(scale); 3];
        for (t, (low, high)) in t.iter_mut().zip(low.into_iter().zip(high)) {
            *t = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_set_m128i(high, low)), *t);
        }
        let found = encoder.fields(search, &t);
        // SAFETY: the array holds the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(fields.as_mut_ptr().cast(), found) };
    }
    scalar::finish_fields(layout, x, scale, &mut fields, stream);
}

/// What encoding compares with and looks up.
struct Eight<'a> {
    of: Encoder<'a, Avx2>,
    /// Up to eight positive centroids.
    table: __m256,
}

/// Codes of ξ or η, less half their number, and what follows from them: see `wide::encode::Side`.
#[derive(Clone, Copy)]
struct Side {
    code: __m256i,
    rank: __m256i,
    magnitude: __m256,
    one_less: __m256,
    t: __m256,
}

impl<'a> Eight<'a> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(of: Encoder<'a, Avx2>) -> Self {
        let table = load_first(&of.upper[..of.upper.len().min(8)]);
        Self { of, table }
    }

    /// Eight fields.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fields(&self, search: Search, t: &[__m256; 3]) -> __m256i {
        let (zero, one, minus_one) = (_mm256_setzero_si256(), _mm256_set1_epi32(1), _mm256_set1_epi32(-1));
        let half = self.of.upper.len() as i32;
        let (first, last) = (_mm256_set1_epi32(-half), _mm256_set1_epi32(half - 1));
        let (mut codes, mut negative) = ([zero; 2], [zero; 2]);
        for ((code, negative), x) in codes.iter_mut().zip(&mut negative).zip(octahedral_map(t)) {
            *negative = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_setzero_ps()));
            // Of a negative one the points below its magnitude, of others those up to it.
            let bits = _mm256_add_epi32(_mm256_castps_si256(magnitude(x)), *negative);
            let count = count_reached(&self.of.directions[..self.of.points], _mm256_castsi256_ps(bits));
            *code = _mm256_xor_si256(count, *negative);
        }
        let ([xi, eta], negative) = (codes, negative);
        let (codes, best) = match search {
            Search::Bracket => {
                // Those that bracket a negative one: its code here and the one above.
                let around = |code, negative| {
                    let below = _mm256_add_epi32(code, _mm256_xor_si256(negative, minus_one));
                    [_mm256_max_epi32(below, first), _mm256_min_epi32(_mm256_add_epi32(below, one), last)]
                };
                self.best_direction(t, [around(xi, negative[0]), around(eta, negative[1])])
            }
            Search::Neighbours => {
                let around = |code| {
                    let (below, above) = (_mm256_sub_epi32(code, one), _mm256_add_epi32(code, one));
                    [_mm256_max_epi32(below, first), code, _mm256_min_epi32(above, last)]
                };
                self.best_direction(t, [around(xi), around(eta)])
            }
            Search::Nearest | Search::All => {
                let [x, y, z] = *t;
                let xy = _mm256_add_ps(_mm256_mul_ps(x, x), _mm256_mul_ps(y, y));
                let squares = _mm256_add_ps(xy, _mm256_mul_ps(z, z));
                let rows = _mm256_mullo_epi32(eta, _mm256_set1_epi32(2 * half));
                (_mm256_add_epi32(xi, rows), _mm256_sqrt_ps(squares))
            }
        };
        let radius = count_reached(&self.of.radii[..self.of.layout.radii.len() - 1], best);
        let radius = _mm256_mullo_epi32(radius, _mm256_set1_epi32(4 * half * half));
        _mm256_add_epi32(_mm256_add_epi32(codes, _mm256_set1_epi32(half + 2 * half * half)), radius)
    }

    /// What a code, less half their number, stands for.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn side(&self, code: __m256i, t: __m256) -> Side {
        let negative = _mm256_srai_epi32::<31>(code);
        let rank = _mm256_xor_si256(code, negative);
        let magnitude = match self.of.upper.len() {
            ..=8 => _mm256_permutevar8x32_ps(self.table, rank),
            _ => gather(self.of.upper, rank),
        };
        let one_less = _mm256_sub_ps(_mm256_set1_ps(1.0), magnitude);
        Side { code, rank, magnitude, one_less, t: turn(t, _mm256_castsi256_ps(negative)) }
    }

    /// See `wide::encode::Encoder::best_direction`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn best_direction<const N: usize>(
        &self,
        t: &[__m256; 3],
        [columns, rows]: [[__m256i; N]; 2],
    ) -> (__m256i, __m256) {
        let half = self.of.upper.len() as i32;
        let mut sides = [self.side(columns[0], t[0]); N];
        for k in 1..N {
            sides[k] = self.side(columns[k], t[0]);
        }
        let (mut codes, mut best) = (_mm256_setzero_si256(), _mm256_set1_ps(f32::NEG_INFINITY));
        for code in rows {
            let mut row = self.side(code, t[1]);
            row.code = _mm256_mullo_epi32(row.code, _mm256_set1_epi32(2 * half));
            row.rank = _mm256_mullo_epi32(row.rank, _mm256_set1_epi32(half));
            for column in &sides {
                let length = gather(self.of.layout.lengths, _mm256_add_epi32(row.rank, column.rank));
                let x = _mm256_mul_ps(_mm256_min_ps(column.magnitude, row.one_less), length);
                let y = _mm256_mul_ps(_mm256_min_ps(row.magnitude, column.one_less), length);
                let z = _mm256_mul_ps(_mm256_sub_ps(column.one_less, row.magnitude), length);
                let xy = _mm256_add_ps(_mm256_mul_ps(column.t, x), _mm256_mul_ps(row.t, y));
                let projection = _mm256_add_ps(xy, _mm256_mul_ps(t[2], z));
                let better = _mm256_cmp_ps::<_CMP_GT_OQ>(projection, best);
                let code = _mm256_add_epi32(row.code, column.code);
                codes = _mm256_blendv_epi8(codes, code, _mm256_castps_si256(better));
                best = _mm256_blendv_ps(best, projection, better);
            }
        }
        (codes, best)
    }
}

/// How many of the points are at most `x`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn count_reached(points: &[f32], x: __m256) -> __m256i {
    let mut count = _mm256_setzero_si256();
    for point in points {
        let reached = _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_set1_ps(*point));
        count = _mm256_sub_epi32(count, _mm256_castps_si256(reached));
    }
    count
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn magnitude(x: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), x)
}

/// `x`, its sign turned where the mask has ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn turn(x: __m256, mask: __m256) -> __m256 {
    _mm256_xor_ps(x, _mm256_and_ps(mask, _mm256_set1_ps(-0.0)))
}

/// Elements of a table that is not empty; indices are below its length, a power of two.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn gather(table: &[f32], index: __m256i) -> __m256 {
    assert!(!table.is_empty());
    let index = _mm256_and_si256(index, _mm256_set1_epi32(table.len() as i32 - 1));
    // SAFETY: indices have no bits but those of the length less one.
    unsafe { _mm256_i32gather_ps::<4>(table.as_ptr(), index) }
}

/// ξ and η.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn octahedral_map(&[x, y, z]: &[__m256; 3]) -> [__m256; 2] {
    let (zero, one) = (_mm256_setzero_ps(), _mm256_set1_ps(1.0));
    let sum = _mm256_add_ps(_mm256_add_ps(magnitude(x), magnitude(y)), magnitude(z));
    let is_zero = _mm256_cmp_ps::<_CMP_LT_OQ>(sum, _mm256_set1_ps(scalar::SMALLEST));
    let inverse = _mm256_div_ps(one, _mm256_blendv_ps(sum, one, is_zero));
    let (p, q) = (_mm256_mul_ps(x, inverse), _mm256_mul_ps(y, inverse));
    let fold =
        |p: __m256, q: __m256| turn(_mm256_sub_ps(one, magnitude(q)), _mm256_cmp_ps::<_CMP_LT_OQ>(p, zero));
    let lower = _mm256_cmp_ps::<_CMP_LT_OQ>(z, zero);
    [_mm256_blendv_ps(p, fold(p, q), lower), _mm256_blendv_ps(q, fold(q, p), lower)]
}
