//! Fields to vectors: decoding and weighted sums.

use super::*;
use crate::registers::avx512::{load_triplets, permute_three, table};
use crate::triplets::scalar;

/// Where three registers of triplets take their elements from.
///
/// Element k of register r is component (16r + k) % 3 of triplet (16r + k) / 3:
///
/// ```text
/// x  x₀ x₁ x₂ …        register 0   x₀ y₀ z₀ x₁ y₁ z₁ …
/// y  y₀ y₁ y₂ …    →   register 1   y₅ z₅ x₆ …
/// z  z₀ z₁ z₂ …        register 2   z₁₀ x₁₁ y₁₁ …
/// ```
///
/// The first index takes from x and y, the second from that result and z.
const INTERLEAVE: [[[u32; LANES]; 2]; 3] = table!(3; r => [
    table!(LANES; k => ((LANES * r + k) / 3 + if (LANES * r + k) % 3 == 1 { LANES } else { 0 }) as u32),
    table!(LANES; k => if (LANES * r + k) % 3 == 2 { LANES + (LANES * r + k) / 3 } else { k } as u32),
]);

/// Stores the first `out.len()` elements of 16 triplets.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn store_triplets(t: [__m512; 3], out: &mut [f32]) {
    for (x, out) in permute_three(t, &INTERLEAVE).into_iter().zip(out.chunks_mut(LANES)) {
        store_first(x, out);
    }
}

/// Implements `scalar::decode_triplets`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn decode_triplets(layout: &TripletLayout, stream: &[u8], scale: f32, out: &mut [f32]) {
    if layout.directions.is_empty() {
        scalar::decode_triplets(layout, stream, scale, out);
    } else {
        by_kind!(decode(layout, stream, scale, out));
    }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn decode<const PARTS: usize, const RADII: usize>(
    layout: &TripletLayout,
    stream: &[u8],
    scale: f32,
    out: &mut [f32],
) {
    let fields = Fields::<PARTS, RADII>::new(layout);
    let (triplets, rest) = out.split_at_mut((3 * layout.triplets()).min(layout.dim));
    let factor = _mm512_set1_ps(scale * layout.unit());
    for (chunk, out) in Chunk::all(layout).zip(triplets.chunks_mut(TOGETHER * 3 * LANES)) {
        let chunk = Chunk { at: chunk.at - layout.header_bytes(), ..chunk };
        for (group, out) in fields.decode(chunk.load(stream, 0)).into_iter().zip(out.chunks_mut(3 * LANES)) {
            store_triplets(scaled(fields.vectors(group), factor), out);
        }
    }
    layout.decode_rest(stream, scale, rest);
}

/// Implements `scalar::accumulate_triplets`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_triplets(layout: &TripletLayout, rows: &Rows, weights: &[f32], acc: &mut [f32]) {
    if layout.directions.is_empty() {
        return scalar::accumulate_triplets(layout, rows, weights, acc);
    }
    let count = rows.count();
    for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * layout.dim)) {
        by_kind!(accumulate(layout, rows, weights, acc));
    }
}

/// Number of rows that are decoded before any is added.
const ROWS: usize = 8;

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate<const PARTS: usize, const RADII: usize>(
    layout: &TripletLayout,
    all: &Rows,
    weights: &[f32],
    acc: &mut [f32],
) {
    let count = all.count();
    let fields = Fields::<PARTS, RADII>::new(layout);
    let rest = Rest::new(layout);
    let split = (3 * layout.triplets()).min(layout.dim);
    let groups = layout.triplets().div_ceil(LANES);
    let zero = _mm512_setzero_ps();
    let mut sums = [[[zero; 3]; GROUPS]; QUERIES];
    for (sums, acc) in sums.iter_mut().zip(acc.chunks_exact(layout.dim)) {
        for (sums, acc) in sums.iter_mut().zip(acc[..split].chunks(3 * LANES)) {
            *sums = load_triplets(acc);
        }
    }
    // Created once, because zeroing it takes a quarter of the time of a row's sums.
    let mut vectors = [[[zero; 3]; ROWS]; GROUPS];
    for first in (0..count).step_by(ROWS) {
        let rows = first..(first + ROWS).min(count);
        let mut scales = [0.0; ROWS];
        let batch = all.some(first, ROWS);
        let mut rests = [[0.0; LANES]; 2];
        let centroids = rest.centroids(&batch);
        for (rests, upper) in rests.iter_mut().zip([_mm512_slli_epi32::<16>(centroids), centroids]) {
            store_first(_mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(upper)), rests);
        }
        for r in 0..batch.count() {
            scales[r] = layout.row_scale(&batch, r);
            for (chunk, vectors) in Chunk::all(layout).zip(vectors.chunks_mut(TOGETHER)) {
                let groups = fields.decode(chunk.load(all.bytes, (first + r) * all.stride));
                for (vectors, group) in vectors.iter_mut().zip(groups) {
                    vectors[r] = fields.vectors(group);
                }
            }
        }
        for ((weights, sums), acc) in
            weights.chunks_exact(count).zip(&mut sums).zip(acc.chunks_exact_mut(layout.dim))
        {
            let mut scaled = [0.0; ROWS];
            for ((scaled, weight), scale) in scaled.iter_mut().zip(&weights[rows.clone()]).zip(scales) {
                *scaled = weight * scale;
            }
            let scaled = &scaled[..rows.len()];
            for (sums, vectors) in sums[..groups].iter_mut().zip(&vectors) {
                let [mut x, mut y, mut z] = *sums;
                for (vector, scaled) in vectors.iter().zip(scaled) {
                    let weight = _mm512_set1_ps(scaled * layout.unit());
                    x = _mm512_add_ps(x, _mm512_mul_ps(weight, vector[0]));
                    y = _mm512_add_ps(y, _mm512_mul_ps(weight, vector[1]));
                    z = _mm512_add_ps(z, _mm512_mul_ps(weight, vector[2]));
                }
                *sums = [x, y, z];
            }
            for (acc, rests) in acc[split..].iter_mut().zip(&rests) {
                for (rest, scaled) in rests.iter().zip(scaled) {
                    *acc += (scaled * layout.rest_scale) * rest;
                }
            }
        }
    }
    for (sums, acc) in sums.iter().zip(acc.chunks_exact_mut(layout.dim)) {
        for (sums, acc) in sums.iter().zip(acc[..split].chunks_mut(3 * LANES)) {
            store_triplets(*sums, acc);
        }
    }
}
