//! Scores of packed rows.

use super::codebook::{Bytes, kind};
use super::codes::{Block, CHUNK, MAX_CHUNKS, Place, ROWS};
use super::{load_words, narrow, store_first};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// score\[query]\[row] = (f32(Σ q·c) · (query scale · table scale)) · row scale, the sum an exact integer.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_codes(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if centroids.len() > 16 {
        return crate::scalar::score_codes(rows, centroids, scale, queries, scores);
    }
    if rows.count() < ROWS {
        return score_short(rows, centroids, scale, queries, scores);
    }
    let bytes = Bytes::new(rows.packing, rows.dim, centroids, 0x80);
    match bytes.kind() {
        kind::NIBBLES => score_bytes::<{ kind::NIBBLES }>(&bytes, rows, scale, queries, scores),
        kind::PAIRS => score_bytes::<{ kind::PAIRS }>(&bytes, rows, scale, queries, scores),
        kind::RAW => score_bytes::<{ kind::RAW }>(&bytes, rows, scale, queries, scores),
        kind::BYTES => score_bytes::<{ kind::BYTES }>(&bytes, rows, scale, queries, scores),
        kind::TERNARY => score_bytes::<{ kind::TERNARY }>(&bytes, rows, scale, queries, scores),
        _ => score_bytes::<{ kind::SEVENS }>(&bytes, rows, scale, queries, scores),
    }
}

/// Fewer rows than a block has: moves them to where there are enough, zeros behind them.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_short(rows: &Rows, centroids: &[i16], scale: f32, queries: &[IntQuery], scores: &mut [f32]) {
    let count = rows.count();
    if count == 0 {
        return;
    }
    let stride = 2 + rows.packing.bytes(rows.dim);
    let mut bytes = [0; ROWS * (2 + crate::MAX_DIM)];
    let bytes = &mut bytes[..ROWS * stride];
    for (copy, row) in bytes.chunks_exact_mut(stride).zip(rows.iter()) {
        copy.copy_from_slice(&row[..stride]);
    }
    let full = Rows { bytes, stride, ..*rows };
    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
        let mut padded = [0.0; ROWS];
        score_codes(&full, centroids, scale, core::slice::from_ref(query), &mut padded);
        scores.copy_from_slice(&padded[..count]);
    }
}

/// A query in the order of the looked-up bytes.
struct ByteQuery {
    values: [__m512i; MAX_CHUNKS],
    /// 128 · Σ q: what the offset of the centroids adds to each sum.
    excess: __m512i,
    factor: __m512,
}

impl ByteQuery {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(query: &IntQuery, scale: f32, kind: u8) -> Self {
        let mut values = [_mm512_setzero_si512(); MAX_CHUNKS];
        let mut sum = _mm512_setzero_si512();
        for (chunk, values) in query.values.chunks(CHUNK).zip(&mut values) {
            let (low, high) = chunk.split_at(chunk.len().min(32));
            *values = narrow(load_words(low), load_words(high));
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), *values);
        }
        for [a, b] in values.as_chunks_mut::<2>().0 {
            match kind {
                kind::NIBBLES => {
                    let odd = |x| _mm512_srli_epi16::<8>(x);
                    (*a, *b) = (narrow(*a, *b), narrow(odd(*a), odd(*b)));
                }
                kind::PAIRS => {
                    let even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
                    let odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
                    (*a, *b) =
                        (_mm512_permutex2var_epi64(*a, even, *b), _mm512_permutex2var_epi64(*a, odd, *b));
                }
                _ => {}
            }
        }
        Self {
            values,
            excess: _mm512_set1_epi32(_mm512_reduce_add_epi32(sum)),
            factor: _mm512_set1_ps(query.scale * scale),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn finish(&self, sums: __m512i, scales: __m512) -> __m512 {
        let sums = _mm512_sub_epi32(sums, self.excess);
        _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), self.factor), scales)
    }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_bytes<const KIND: u8>(
    bytes: &Bytes,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if let [query] = queries {
        return score_one::<KIND>(bytes, rows, &ByteQuery::new(query, scale, bytes.kind()), scores);
    }
    let per_pass = 8 * rows.count();
    for (queries, scores) in queries.chunks(8).zip(scores.chunks_mut(per_pass)) {
        let queries: [Option<ByteQuery>; 8] =
            core::array::from_fn(|q| queries.get(q).map(|query| ByteQuery::new(query, scale, bytes.kind())));
        score_eight::<KIND>(bytes, rows, queries.iter().flatten(), scores);
    }
}

/// Where blocks start. The last one overlaps the one before: the same bits are written twice.
fn blocks(count: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(ROWS).map(move |first| first.min(count - ROWS))
}

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_one<const KIND: u8>(bytes: &Bytes, rows: &Rows, query: &ByteQuery, scores: &mut [f32]) {
    for first in blocks(rows.count()) {
        let block = Block::new(rows, first);
        let four = |first| {
            let mut sums = [_mm512_setzero_si512(); 4];
            bytes.each::<KIND>(&block, first, |chunk, centroids| {
                for (sum, centroids) in sums.iter_mut().zip(centroids) {
                    *sum = _mm512_dpbusd_epi32(*sum, centroids, query.values[chunk]);
                }
            });
            add_four(sums)
        };
        let sums = add_lanes([four(0), four(4), four(8), four(12)]);
        store_first(query.finish(sums, block.window(&Place::SCALE).scales()), &mut scores[first..]);
    }
}

/// Several queries share the unpacking and the look-up, by way of the first-level cache.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_eight<'q, const KIND: u8>(
    bytes: &Bytes,
    rows: &Rows,
    queries: impl Iterator<Item = &'q ByteQuery> + Clone,
    scores: &mut [f32],
) {
    let count = rows.count();
    let mut looked_up = [[MaybeUninit::uninit(); ROWS]; MAX_CHUNKS];
    for first in blocks(count) {
        let block = Block::new(rows, first);
        for first in [0, 4, 8, 12] {
            bytes.each::<KIND>(&block, first, |chunk, centroids| {
                for (out, centroids) in looked_up[chunk][first..].iter_mut().zip(centroids) {
                    out.write(centroids);
                }
            });
        }
        let scales = block.window(&Place::SCALE).scales();
        for (query, scores) in queries.clone().zip(scores.chunks_exact_mut(count)) {
            let mut sums = [_mm512_setzero_si512(); ROWS];
            for (centroids, values) in looked_up[..bytes.chunks()].iter().zip(&query.values) {
                for (sum, centroids) in sums.iter_mut().zip(centroids) {
                    // SAFETY: `each` has just gone through these chunks and all rows.
                    *sum = _mm512_dpbusd_epi32(*sum, unsafe { centroids.assume_init() }, *values);
                }
            }
            let four = |i: usize| add_four([sums[i], sums[i + 1], sums[i + 2], sums[i + 3]]);
            let sums = add_lanes([four(0), four(4), four(8), four(12)]);
            store_first(query.finish(sums, scales), &mut scores[first..]);
        }
    }
}

/// The sums of four registers in each lane of 128 bits. With [`add_lanes`], sixteen registers take 15 additions of
/// two shuffles each; sixteen separate reductions would take 64.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn add_four([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let pairs = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (ab, cd) = (pairs(a, b), pairs(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// Lane 4·i + j of the result is the sum of the lanes of register j of the i-th four.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn add_lanes([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let lanes =
        |a, b| _mm512_add_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    lanes(lanes(a, b), lanes(c, d))
}
