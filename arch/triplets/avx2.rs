//! Triplets, eight fields a register: a gather looks their directions up. On an Intel Sapphire Rapids, with 128 coordinates
//! of 3 bits, a row's score takes 23 ns, by the text for registers 54; its weighted sum 33 and 82; decoding with the
//! rotation 90 and 148, encoding 450 and 742.

use super::layout::MAX_FIELDS;
use super::scalar;
use super::wide::{COORDINATES, RADII, TOP};
use crate::registers::avx2::fields::{Fields, load_16};
use crate::registers::avx2::{load, load_first, store_first, store_ps};
use crate::vectors::scalar::{LANES, halve};
use crate::{Float, IntQuery, MAX_DIM, Rows, TripletLayout};
use core::arch::x86_64::*;

/// Fields of a register.
const FIELDS: usize = 8;

/// Registers of the widest row.
const GROUPS: usize = MAX_FIELDS.div_ceil(FIELDS);

/// Queries that share the look-ups.
const QUERIES: usize = 8;

/// Integer directions, four bytes each, and radii of eight fields.
type Group = (__m256i, __m256);

/// Gets them out of eight fields, which are as many bytes as a field has bits: at most 16.
struct LookUp<'a> {
    layout: &'a TripletLayout<'a>,
    fields: Fields,
    /// Up to eight radii.
    radii: __m256,
}

impl<'a> LookUp<'a> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(layout: &'a TripletLayout<'a>) -> Self {
        assert!(!layout.directions.is_empty() && !layout.radii.is_empty());
        let radii = load_first(&layout.radii[..layout.radii.len().min(8)]);
        Self { layout, fields: Fields::new(layout.field_bits()), radii }
    }

    /// Fields from byte `at` on; behind a row's last triplet some of no meaning.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn get(&self, bytes: &[u8], at: usize) -> Group {
        let fields = self.fields.get(bytes, at);
        let (directions, radii) = (self.layout.directions, self.layout.radii);
        let codes = _mm256_and_si256(fields, _mm256_set1_epi32(directions.len() as i32 - 1));
        let radius = _mm256_srl_epi32(fields, _mm_cvtsi32_si128(2 * i32::from(self.layout.direction_bits)));
        // SAFETY: neither table is empty, as `new` saw to, and indices have no bits but those of its length less one: what
        // is left of a field above its direction is as many bits as the table of radii has entries for.
        unsafe {
            let directions = _mm256_i32gather_epi32::<4>(directions.as_ptr().cast(), codes);
            let radii = match radii.len() {
                ..=8 => _mm256_permutevar8x32_ps(self.radii, radius),
                _ => _mm256_i32gather_ps::<4>(radii.as_ptr(), radius),
            };
            (directions, radii)
        }
    }

    /// All fields of the row whose stream begins at byte `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn row(&self, bytes: &[u8], at: usize, groups: &mut [Group]) {
        for (g, group) in groups.iter_mut().enumerate() {
            *group = self.get(bytes, at + g * self.layout.field_bits());
        }
    }
}

/// See `TripletLayout::row_scale`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_scale(layout: &TripletLayout, rows: &Rows, r: usize) -> f32 {
    if layout.scale == Float::F32 || rows.scales.is_some() {
        return layout.row_scale(rows, r);
    }
    let row = rows.row(r);
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(u16::from_le_bytes([row[0], row[1]]).into())))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_triplets(layout: &TripletLayout, rows: &Rows, queries: &[IntQuery], scores: &mut [f32]) {
    let count = rows.count();
    let look_up = LookUp::new(layout);
    let split = (3 * layout.triplets()).min(layout.dim);
    let mut groups = [(_mm256_setzero_si256(), _mm256_setzero_ps()); GROUPS];
    let groups = &mut groups[..layout.triplets().div_ceil(FIELDS)];
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut((QUERIES * count).max(1))) {
        let mut prepared = [[[0; 4 * FIELDS]; GROUPS]; QUERIES];
        for (prepared, query) in prepared.iter_mut().zip(queries) {
            let triplets = prepared.as_flattened_mut().as_chunks_mut::<4>().0;
            for (bytes, values) in triplets.iter_mut().zip(query.values[..split].chunks(3)) {
                bytes.iter_mut().zip(values).for_each(|(byte, value)| *byte = *value as u8);
            }
        }
        for (r, row) in rows.iter().enumerate() {
            look_up.row(rows.bytes, r * rows.stride + layout.header_bytes(), groups);
            let mut rest = [0; 2];
            for (rest, centroid) in rest.iter_mut().zip(layout.rest(layout.stream(row))) {
                *rest = i32::from(centroid);
            }
            let row_scale = row_scale(layout, rows, r);
            for (q, (query, prepared)) in queries.iter().zip(&prepared).enumerate() {
                let sum = sum_products(groups, prepared);
                let rest: i32 = query.values[split..].iter().zip(rest).map(|(q, c)| i32::from(*q) * c).sum();
                scores[q * count + r] =
                    scalar::finish_score(layout, sum, rest as f32, query.scale, row_scale);
            }
        }
    }
}

/// Σ radius·(q·n), triplet `i` in lane `i % 16`; beyond the last one queries are zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_products(groups: &[Group], query: &[[u8; 4 * FIELDS]; GROUPS]) -> f32 {
    let mut lanes = [_mm256_setzero_ps(); 2];
    for (g, ((n, radii), q)) in groups.iter().zip(query).enumerate() {
        // Two products of ±127 fit a word.
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(*n), _mm256_sign_epi8(load(q), *n));
        let dots = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        lanes[g % 2] = _mm256_add_ps(lanes[g % 2], _mm256_mul_ps(dots, *radii));
    }
    let mut sums = [0.0; LANES];
    for (lanes, sums) in lanes.into_iter().zip(sums.as_chunks_mut().0) {
        store_ps(sums, lanes);
    }
    halve(sums)
}

/// radius·n of eight triplets: 24 coordinates in their order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn vectors((n, radii): Group) -> [__m256; 3] {
    // Exact, as the products with n·2²⁴ are those with n.
    let radii = _mm256_castps_si256(_mm256_mul_ps(radii, _mm256_set1_ps(TOP)));
    // Four coordinates of the lower four triplets, and of the upper four.
    let mut fours = [_mm256_setzero_ps(); 3];
    for (fours, (coordinates, spread)) in fours.iter_mut().zip(COORDINATES.iter().zip(&RADII)) {
        let order = |order| _mm256_broadcastsi128_si256(load_16(order));
        let n = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(n, order(coordinates)));
        *fours = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_shuffle_epi8(radii, order(spread))), n);
    }
    let [a, b, c] = fours;
    [
        _mm256_permute2f128_ps::<0x20>(a, b),
        _mm256_blend_ps::<0xf0>(c, a),
        _mm256_permute2f128_ps::<0x31>(b, c),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn decode_triplets(layout: &TripletLayout, stream: &[u8], scale: f32, out: &mut [f32]) {
    if layout.directions.is_empty() {
        return scalar::decode_triplets(layout, stream, scale, out);
    }
    let look_up = LookUp::new(layout);
    let (triplets, rest) = out.split_at_mut((3 * layout.triplets()).min(layout.dim));
    let factor = _mm256_set1_ps(scale * layout.unit());
    for (g, out) in triplets.chunks_mut(3 * FIELDS).enumerate() {
        let x = vectors(look_up.get(stream, g * layout.field_bits()));
        for (x, out) in x.into_iter().zip(out.chunks_mut(8)) {
            store_first(out, _mm256_mul_ps(x, factor));
        }
    }
    layout.decode_rest(stream, scale, rest);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_triplets(layout: &TripletLayout, rows: &Rows, weights: &[f32], acc: &mut [f32]) {
    if layout.directions.is_empty() {
        return scalar::accumulate_triplets(layout, rows, weights, acc);
    }
    let count = rows.count();
    let look_up = LookUp::new(layout);
    let split = (3 * layout.triplets()).min(layout.dim);
    let groups = layout.triplets().div_ceil(FIELDS);
    let mut values = [0.0; MAX_DIM + 3 * FIELDS];
    for (r, row) in rows.iter().enumerate() {
        let at = r * rows.stride + layout.header_bytes();
        for (g, values) in values.as_chunks_mut::<{ 3 * FIELDS }>().0[..groups].iter_mut().enumerate() {
            let x = vectors(look_up.get(rows.bytes, at + g * layout.field_bits()));
            for (x, values) in x.into_iter().zip(values.as_chunks_mut().0) {
                store_ps(values, x);
            }
        }
        for (value, centroid) in values[split..layout.dim].iter_mut().zip(layout.rest(layout.stream(row))) {
            *value = f32::from(centroid);
        }
        let row_scale = row_scale(layout, rows, r);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(layout.dim)) {
            let weight = weights[r] * row_scale;
            let ((values, rest), (acc, rest_acc)) = (values.split_at(split), acc.split_at_mut(split));
            scalar::add_row(weight * layout.unit(), values, acc);
            scalar::add_row(weight * layout.rest_scale, rest, rest_acc);
        }
    }
}
