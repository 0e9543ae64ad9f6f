//! From vectors to fields: the search for the best direction and radius.

use super::decode::load_triplets;
use super::*;
use crate::Search;
use crate::registers::avx512::to_array;
use crate::triplets::layout::MAX_FIELDS;
use crate::triplets::scalar;

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn encode_triplets(
    layout: &TripletLayout,
    search: Search,
    x: &[f32],
    scale: f32,
    stream: &mut [u8],
) {
    match (search, layout.direction_bits) {
        (Search::All, _) => scalar::encode_triplets(layout, search, x, scale, stream),
        (_, ..=4) => encode::<true>(layout, search, x, scale, stream),
        _ => encode::<false>(layout, search, x, scale, stream),
    }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn encode<const SMALL: bool>(
    layout: &TripletLayout,
    search: Search,
    x: &[f32],
    scale: f32,
    stream: &mut [u8],
) {
    let mut fields = [0; MAX_FIELDS];
    let encoder = Encoder::<SMALL>::new(layout, search);
    for (x, fields) in x.chunks(3 * LANES).zip(fields.as_chunks_mut::<LANES>().0) {
        let t = load_triplets(x).map(|c| _mm512_mul_ps(c, _mm512_set1_ps(scale)));
        *fields = to_array(encoder.fields(search, t));
    }
    scalar::finish_fields(layout, x, scale, &mut fields, stream);
}

/// What encoding looks up; `SMALL`: directions of up to 4 bits, whose tables fit registers.
struct Encoder<'a, const SMALL: bool> {
    layout: &'a TripletLayout<'a>,
    /// Up to sixteen positive decision points of ξ and η, ascending, then infinity.
    points: __m512,
    /// The same, one by one: with few of them, comparing with all is faster than a search whose steps wait for each
    /// other.
    few_points: [f32; LANES],
    /// The first sixteen centroids, and of directions of 5 bits the others.
    centroids: [__m512; 2],
    lengths: [__m512; 4],
    /// Decision points of the radius, then infinity.
    radii: [__m512; 4],
    few_radii: [f32; LANES],
}

impl<'a, const SMALL: bool> Encoder<'a, SMALL> {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(layout: &'a TripletLayout, search: Search) -> Self {
        let part = |x: &[f32], k: usize| load_tail(x.get(k..).unwrap_or(&[]));
        let half = layout.coordinates.len() / 2;
        let upper = &layout.coordinates[half..];
        let points = match search {
            Search::Bracket => or_infinity(load_tail(&upper[..half.min(LANES)]), half),
            _ => midpoints(upper, 0),
        };
        let radii = [0, 16, 32, 48].map(|k| midpoints(layout.radii, k));
        let (mut few_points, mut few_radii) = ([0.0; LANES], [0.0; LANES]);
        store_first(points, &mut few_points);
        store_first(radii[0], &mut few_radii);
        Self {
            layout,
            points,
            few_points,
            centroids: [part(layout.coordinates, 0), part(layout.coordinates, 16)],
            lengths: [0, 16, 32, 48].map(|k| part(layout.lengths, k)),
            radii,
            few_radii,
        }
    }

    /// Sixteen fields.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn fields(&self, search: Search, t: [__m512; 3]) -> __m512i {
        let (xi, eta) = octahedral_map(t);
        let (i, j) = (self.count_points(search, xi), self.count_points(search, eta));
        let (codes, best) = match search {
            Search::Bracket => {
                let one = _mm512_set1_epi32(1);
                let below =
                    |count: __m512i| _mm512_max_epi32(_mm512_sub_epi32(count, one), _mm512_setzero_si512());
                self.best_direction(t, [below(i), self.clamp(i)], [below(j), self.clamp(j)])
            }
            Search::Neighbours => {
                let one = _mm512_set1_epi32(1);
                let around = |code: __m512i| {
                    let below = _mm512_max_epi32(_mm512_sub_epi32(code, one), _mm512_setzero_si512());
                    [below, code, self.clamp(_mm512_add_epi32(code, one))]
                };
                self.best_direction(t, around(i), around(j))
            }
            Search::Nearest | Search::All => {
                let [x, y, z] = t.map(|c| _mm512_mul_ps(c, c));
                (self.join(i, j), _mm512_sqrt_ps(_mm512_add_ps(_mm512_add_ps(x, y), z)))
            }
        };
        let shift = _mm_cvtsi32_si128(2 * i32::from(self.layout.direction_bits));
        _mm512_or_si512(codes, _mm512_sll_epi32(self.count_radii(best), shift))
    }

    /// At most the last code.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn clamp(&self, code: __m512i) -> __m512i {
        _mm512_min_epi32(code, _mm512_set1_epi32(self.layout.coordinates.len() as i32 - 1))
    }

    /// The direction's code.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn join(&self, i: __m512i, j: __m512i) -> __m512i {
        let shift = _mm_cvtsi32_si128(self.layout.direction_bits.into());
        _mm512_or_si512(i, _mm512_sll_epi32(j, shift))
    }

    /// How many decision points (centroids to bracket, midpoints for nearest codes) are at most `x`. They mirror each
    /// other: so many positive ones for |x|, in the case of a negative `x` those below |x|.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn count_points(&self, search: Search, x: __m512) -> __m512i {
        let negative = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_setzero_ps());
        let bits = _mm512_castps_si512(_mm512_abs_ps(x));
        let bits = _mm512_mask_sub_epi32(bits, negative, bits, _mm512_set1_epi32(1));
        let magnitude = _mm512_castsi512_ps(bits);
        let half = self.layout.coordinates.len() as i32 / 2;
        let mut count = _mm512_setzero_si512();
        let mut step = half / 2;
        if SMALL {
            count = count_reached(&self.few_points[..8], magnitude);
        } else {
            loop {
                let probe = _mm512_add_epi32(count, _mm512_set1_epi32(step.max(1) - 1));
                let reached = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(magnitude, self.point(search, half, probe));
                count = _mm512_mask_add_epi32(count, reached, count, _mm512_set1_epi32(step.max(1)));
                if step == 0 {
                    break;
                }
                step /= 2;
            }
        }
        let middle = _mm512_set1_epi32(half);
        let lower = if search == Search::Bracket { middle } else { _mm512_set1_epi32(half - 1) };
        _mm512_mask_sub_epi32(_mm512_add_epi32(middle, count), negative, lower, count)
    }

    /// Positive decision point number `index`, below `half`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn point(&self, search: Search, half: i32, index: __m512i) -> __m512 {
        if half <= 16 {
            return _mm512_permutexvar_ps(index, self.points);
        }
        let index = _mm512_add_epi32(index, _mm512_set1_epi32(half));
        let point = self.gather(self.layout.coordinates, index);
        if search == Search::Bracket {
            return point;
        }
        let next =
            self.gather(self.layout.coordinates, self.clamp(_mm512_add_epi32(index, _mm512_set1_epi32(1))));
        // The last centroid has no midpoint above it; values of up to 1 never reach 2.
        let is_last = _mm512_cmpeq_epi32_mask(index, _mm512_set1_epi32(2 * half - 1));
        let middle = _mm512_mul_ps(_mm512_add_ps(point, next), _mm512_set1_ps(0.5));
        _mm512_mask_mov_ps(middle, is_last, _mm512_set1_ps(f32::INFINITY))
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn gather(&self, table: &[f32], index: __m512i) -> __m512 {
        let inside = _mm512_cmplt_epu32_mask(index, _mm512_set1_epi32(table.len() as i32));
        // SAFETY: only lanes whose index is below the table's length are read.
        unsafe { _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), inside, index, table.as_ptr()) }
    }

    /// How many midpoints of radii are at most `x`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn count_radii(&self, x: __m512) -> __m512i {
        let [a, b, c, d] = self.radii;
        let wide = self.layout.radius_bits > 4;
        if self.layout.radius_bits <= 3 {
            return count_reached(&self.few_radii[..(1 << self.layout.radius_bits) - 1], x);
        }
        let mut count = _mm512_setzero_si512();
        let mut step = 1 << self.layout.radius_bits >> 1;
        while step > 0 {
            let probe = _mm512_add_epi32(count, _mm512_set1_epi32(step - 1));
            let mut point = _mm512_permutexvar_ps(probe, a);
            if wide {
                let upper = _mm512_test_epi32_mask(probe, _mm512_set1_epi32(32));
                let (low, high) = (_mm512_permutex2var_ps(a, probe, b), _mm512_permutex2var_ps(c, probe, d));
                point = _mm512_mask_blend_ps(upper, low, high);
            }
            let reached = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, point);
            count = _mm512_mask_add_epi32(count, reached, count, _mm512_set1_epi32(step));
            step /= 2;
        }
        count
    }

    /// What codes of ξ or η stand for.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroid(&self, code: __m512i) -> __m512 {
        match self.layout.direction_bits {
            _ if SMALL => _mm512_permutexvar_ps(code, self.centroids[0]),
            5 => _mm512_permutex2var_ps(self.centroids[0], code, self.centroids[1]),
            _ => self.gather(self.layout.coordinates, code),
        }
    }

    /// Ranks among the positive centroids.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn rank(&self, code: __m512i) -> __m512i {
        let half = self.layout.coordinates.len() as i32 / 2;
        let upper = _mm512_test_epi32_mask(code, _mm512_set1_epi32(half));
        let flip = _mm512_mask_mov_epi32(_mm512_set1_epi32(half - 1), upper, _mm512_set1_epi32(half));
        _mm512_xor_si512(code, flip)
    }

    /// 1/‖(x, y, z)‖ of ranks j and i.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn length(&self, i: __m512i, j: __m512i) -> __m512 {
        let shift = _mm_cvtsi32_si128(i32::from(self.layout.direction_bits) - 1);
        let index = _mm512_or_si512(i, _mm512_sll_epi32(j, shift));
        if !SMALL {
            return self.gather(self.layout.lengths, index);
        }
        let [a, b, c, d] = self.lengths;
        let upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
        let (low, high) = (_mm512_permutex2var_ps(a, index, b), _mm512_permutex2var_ps(c, index, d));
        _mm512_mask_blend_ps(upper, low, high)
    }

    /// The code of the best direction and its projection; codes ascend, and equals of an earlier one lose.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn best_direction<const N: usize>(
        &self,
        t: [__m512; 3],
        columns: [__m512i; N],
        rows: [__m512i; N],
    ) -> (__m512i, __m512) {
        let one = _mm512_set1_ps(1.0);
        let side = |code: __m512i| {
            let c = self.centroid(code);
            let a = _mm512_abs_ps(c);
            (c, a, _mm512_sub_ps(one, a), self.rank(code))
        };
        let (across, up) = (columns.map(side), rows.map(side));
        let (mut best, mut code) = (_mm512_set1_ps(f32::NEG_INFINITY), _mm512_setzero_si512());
        for (j, (eta, b, one_less_b, rank_j)) in rows.into_iter().zip(up) {
            for (i, (xi, _, one_less_a, rank_i)) in columns.into_iter().zip(across) {
                let z = _mm512_sub_ps(one_less_a, b);
                let folded = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(z, _mm512_setzero_ps());
                let x = _mm512_mask_mov_ps(xi, folded, copy_sign(one_less_b, xi));
                let y = _mm512_mask_mov_ps(eta, folded, copy_sign(one_less_a, eta));
                let length = self.length(rank_i, rank_j);
                let [x, y, z] = [x, y, z].map(|c| _mm512_mul_ps(c, length));
                let xy = _mm512_add_ps(_mm512_mul_ps(t[0], x), _mm512_mul_ps(t[1], y));
                let projection = _mm512_add_ps(xy, _mm512_mul_ps(t[2], z));
                let better = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(projection, best);
                best = _mm512_mask_mov_ps(best, better, projection);
                code = _mm512_mask_mov_epi32(code, better, self.join(i, j));
            }
        }
        (code, best)
    }
}

/// How many of the points are at most `x`.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn count_reached(points: &[f32], x: __m512) -> __m512i {
    let mut count = _mm512_setzero_si512();
    for point in points {
        let reached = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(*point));
        count = _mm512_mask_add_epi32(count, reached, count, _mm512_set1_epi32(1));
    }
    count
}

/// The magnitude of one with the sign of the other.
#[inline]
#[target_feature(enable = "avx512f")]
fn copy_sign(magnitude: __m512, sign: __m512) -> __m512 {
    let mask = _mm512_set1_epi32(i32::MIN);
    let bits =
        _mm512_ternarylogic_epi32::<0xca>(mask, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude));
    _mm512_castsi512_ps(bits)
}

/// (ξ, η) of sixteen triplets.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn octahedral_map([x, y, z]: [__m512; 3]) -> (__m512, __m512) {
    let (zero, one) = (_mm512_setzero_ps(), _mm512_set1_ps(1.0));
    let sum = _mm512_add_ps(_mm512_add_ps(_mm512_abs_ps(x), _mm512_abs_ps(y)), _mm512_abs_ps(z));
    let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(sum, _mm512_set1_ps(scalar::SMALLEST));
    let inverse = _mm512_div_ps(one, _mm512_mask_mov_ps(one, counts, sum));
    let (p, q) = (_mm512_mul_ps(x, inverse), _mm512_mul_ps(y, inverse));
    let fold = |p: __m512, q: __m512| {
        let folded = _mm512_sub_ps(one, _mm512_abs_ps(q));
        let minus = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(p, zero);
        _mm512_mask_xor_ps(folded, minus, folded, _mm512_set1_ps(-0.0))
    };
    let lower = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(z, zero);
    (_mm512_mask_mov_ps(p, lower, fold(p, q)), _mm512_mask_mov_ps(q, lower, fold(q, p)))
}

/// The first `count` lanes, infinity in the others.
#[inline]
#[target_feature(enable = "avx512f")]
fn or_infinity(x: __m512, count: usize) -> __m512 {
    let mask = if count < LANES { (1u16 << count) - 1 } else { !0 };
    _mm512_mask_mov_ps(_mm512_set1_ps(f32::INFINITY), mask, x)
}

/// Midpoints of neighbours from number `first` on, sixteen or fewer, then infinity.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn midpoints(centroids: &[f32], first: usize) -> __m512 {
    let (low, high) = (centroids.get(first..).unwrap_or(&[]), centroids.get(first + 1..).unwrap_or(&[]));
    let sums = _mm512_add_ps(load_tail(low), load_tail(high));
    or_infinity(_mm512_mul_ps(sums, _mm512_set1_ps(0.5)), high.len())
}
