//! Scores of packed rows.

use super::codes::{Bytes, CHUNK, MAX_CHUNKS, Order};
use super::{load, load_bytes};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Rows in a block: the block's sums fill one register.
const ROWS: usize = 16;

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
    let count = rows.count();
    if count == 0 {
        return;
    }
    let bytes = Bytes::new(rows.packing, rows.dim, centroids, 0x80);
    if let [query] = queries {
        score_bytes::<1>(&bytes, rows, scale, core::slice::from_ref(query), scores);
    } else {
        for (queries, scores) in queries.chunks(8).zip(scores.chunks_mut(8 * count)) {
            score_bytes::<8>(&bytes, rows, scale, queries, scores);
        }
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
    fn new(query: &IntQuery, scale: f32, order: Order) -> Self {
        let mut values = [_mm512_setzero_si512(); MAX_CHUNKS];
        for (chunk, values) in query.values.chunks(CHUNK).zip(&mut values) {
            let mut bytes = [0; CHUNK];
            for (byte, value) in bytes.iter_mut().zip(chunk) {
                *byte = *value as u8;
            }
            *values = load(&bytes);
        }
        if order == Order::Nibbles {
            let even = _mm512_set1_epi16(0xff);
            for pair in values.as_chunks_mut::<2>().0 {
                // `vpmovwb` keeps the low bytes.
                let narrow = |a, b| {
                    let (a, b) = (_mm512_cvtepi16_epi8(a), _mm512_cvtepi16_epi8(b));
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
                };
                let _ = even;
                let odd = pair.map(|x| _mm512_srli_epi16::<8>(x));
                *pair = [narrow(pair[0], pair[1]), narrow(odd[0], odd[1])];
            }
        }
        let mut sum = _mm512_setzero_si512();
        for values in values {
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), values);
        }
        Self {
            values,
            excess: _mm512_set1_epi32(_mm512_reduce_add_epi32(sum)),
            factor: _mm512_set1_ps(query.scale * scale),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_bytes<const Q: usize>(
    bytes: &Bytes,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = rows.count();
    let chunks = match bytes.order() {
        Order::Natural => rows.dim.div_ceil(CHUNK),
        Order::Nibbles => rows.dim.div_ceil(2 * CHUNK) * 2,
    };
    let queries: [Option<ByteQuery>; Q] =
        core::array::from_fn(|q| queries.get(q).map(|query| ByteQuery::new(query, scale, bytes.order())));
    let mut block = [[MaybeUninit::uninit(); ROWS]; MAX_CHUNKS];
    let block = &mut block[..chunks];
    if count < ROWS {
        block.fill([MaybeUninit::new(_mm512_setzero_si512()); ROWS]);
    }
    for (b, page) in rows.pages(ROWS).enumerate() {
        bytes.expand(&page, block);
        let scales = row_scales(&page);
        for (query, scores) in queries.iter().flatten().zip(scores.chunks_exact_mut(count)) {
            let mut sums = [_mm512_setzero_si512(); ROWS];
            for (centroids, values) in block.iter().zip(&query.values) {
                for (sum, centroids) in sums.iter_mut().zip(centroids) {
                    // SAFETY: `expand` wrote all rows of a full block; before the only other one, the last, they
                    // hold zeros or older rows.
                    *sum = _mm512_dpbusd_epi32(*sum, unsafe { centroids.assume_init() }, *values);
                }
            }
            let sums = _mm512_sub_epi32(transpose_add(&sums), query.excess);
            let result = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), query.factor), scales);
            store(result, &mut scores[b * ROWS..]);
        }
    }
}

/// The f16 scales of up to 16 rows.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn row_scales(rows: &Rows) -> __m512 {
    let mut scales = [0u8; 32];
    for (scale, row) in scales.as_chunks_mut::<2>().0.iter_mut().zip(rows.iter()) {
        *scale = [row[0], row[1]];
    }
    _mm512_cvtph_ps(_mm512_castsi512_si256(load_bytes(&scales)))
}

/// The first `out.len()` of 16 values, at most all.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(values: __m512, out: &mut [f32]) {
    let mask = if out.len() < 16 { (1 << out.len()) - 1 } else { !0 };
    // SAFETY: a masked store touches no value whose mask bit is clear, and the mask has `out.len()` bits at most.
    unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, values) }
}

/// Lane r of the result is the sum of the lanes of `rows[r]`: 15 additions of two shuffles each, where 16 separate
/// reductions would take 64.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn transpose_add(rows: &[__m512i; ROWS]) -> __m512i {
    let pairs = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let fours = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    let lanes =
        |a, b| _mm512_add_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    let four = |i: usize| fours(pairs(rows[i], rows[i + 1]), pairs(rows[i + 2], rows[i + 3]));
    lanes(lanes(four(0), four(4)), lanes(four(8), four(12)))
}
