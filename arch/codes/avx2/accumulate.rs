//! Weighted sums of packed rows: centroids as words, those of two rows side by side for `vpmaddwd`.

use super::codebook::Codebook;
use super::unpack::{CHUNK, LOAD, Unpack, kind, step};
use crate::codes::scalar;
use crate::codes::scalar::{PAGE, weight_limit};
use crate::registers::avx2::{load_first, load_ps, rint, scales_of_eight, store_ps};
use crate::rows::{Blocks, ROWS};
use crate::{MAX_DIM, Rows, vectors};
use core::arch::x86_64::*;

/// Queries in a pass.
const QUERIES: usize = 8;

/// See `scalar::accumulate_codes`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_codes(rows: &Rows, centroids: &[i16], scale: f32, weights: &[f32], acc: &mut [f32]) {
    if 2 + rows.packing.bytes(rows.dim) < LOAD || rows.bytes.is_empty() {
        return scalar::accumulate_codes(rows, centroids, scale, weights, acc);
    }
    let unpack = Unpack::new(rows.packing, rows.dim, 2);
    match unpack.kind() {
        1 => accumulate::<1>(&unpack, rows, centroids, scale, weights, acc),
        2 => accumulate::<2>(&unpack, rows, centroids, scale, weights, acc),
        4 => accumulate::<4>(&unpack, rows, centroids, scale, weights, acc),
        kind::STREAM => accumulate::<{ kind::STREAM }>(&unpack, rows, centroids, scale, weights, acc),
        kind::BYTES => accumulate::<{ kind::BYTES }>(&unpack, rows, centroids, scale, weights, acc),
        _ => accumulate::<{ kind::SEVENS }>(&unpack, rows, centroids, scale, weights, acc),
    }
}

/// A run's weights of one query, and the value of their unit; 0 if the run adds nothing.
#[derive(Clone, Copy)]
struct Weights {
    values: [i16; PAGE],
    unit: f32,
}

impl Weights {
    /// `scalar::quantize_weights`, eight at a time.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn set(&mut self, weights: &[f32], scales: &[[f32; 8]; PAGE / 8], limit: i16) {
        let mut products = [[0.0; 8]; PAGE / 8];
        for ((product, weights), scales) in products.iter_mut().zip(weights.chunks(8)).zip(scales) {
            store_ps(product, _mm256_mul_ps(load_first(weights), load_ps(scales)));
        }
        let used = &products[..weights.len().div_ceil(8)];
        let max = vectors::scalar::max_abs(used.as_flattened());
        if max < scalar::SMALLEST_WEIGHT {
            self.unit = 0.0;
            return;
        }
        let factor = _mm256_set1_ps(f32::from(limit) / max);
        self.unit = max / f32::from(limit);
        for (values, products) in self.values.as_chunks_mut::<8>().0.iter_mut().zip(&products) {
            let ints = _mm256_cvtps_epi32(rint(_mm256_mul_ps(load_ps(products), factor)));
            let words = _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256::<1>(ints));
            // SAFETY: the array holds the 16 bytes that are written.
            unsafe { _mm_storeu_si128(values.as_mut_ptr().cast(), words) }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate<const KIND: u8>(
    unpack: &Unpack,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let codebook = Codebook::new(centroids);
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let count = rows.count();
    let limit = weight_limit(centroids.len());
    let zero = _mm256_setzero_si256();
    let mut ints = [Weights { values: [0; PAGE], unit: 0.0 }; QUERIES];
    let mut sums = [[[zero; 4]; 4]; QUERIES];
    let mut totals = [[0; MAX_DIM]; QUERIES];
    for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * rows.dim)) {
        let queries = weights.len() / count;
        for run in (0..count).step_by(PAGE) {
            let end = count.min(run + PAGE);
            let mut scales = [[0.0; 8]; PAGE / 8];
            for (i, scales) in scales[..2 * (end - run).div_ceil(ROWS)].iter_mut().enumerate() {
                store_ps(scales, scales_of_eight(&blocks.get(run / ROWS + i / 2), i % 2 * 8));
            }
            for (q, ints) in ints[..queries].iter_mut().enumerate() {
                ints.set(&weights[q * count..][run..end], &scales, limit);
            }
            for c in (0..unpack.count()).step_by(step(KIND)) {
                sums[..queries].fill([[zero; 4]; 4]);
                for (b, first) in (run / ROWS..end.div_ceil(ROWS)).zip((0..).step_by(ROWS)) {
                    let block = blocks.get(b);
                    let windows = unpack.windows::<KIND>(&block, c);
                    for r in (0..ROWS).step_by(2) {
                        let these = unpack.codes::<KIND>(&windows, r);
                        let next = unpack.codes::<KIND>(&windows, r + 1);
                        for k in 0..step(KIND) {
                            let (a, b) = (codebook.words(these[k]), codebook.words(next[k]));
                            let pairs = [
                                _mm256_unpacklo_epi16(a[0], b[0]),
                                _mm256_unpackhi_epi16(a[0], b[0]),
                                _mm256_unpacklo_epi16(a[1], b[1]),
                                _mm256_unpackhi_epi16(a[1], b[1]),
                            ];
                            for (ints, sums) in ints[..queries].iter().zip(&mut sums) {
                                let [low, high] = [ints.values[first + r], ints.values[first + r + 1]];
                                let pair = _mm256_set1_epi32(i32::from(low) & 0xffff | i32::from(high) << 16);
                                for (sum, words) in sums[k].iter_mut().zip(pairs) {
                                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, pair));
                                }
                            }
                        }
                    }
                }
                for (sums, totals) in sums[..queries].iter().zip(&mut totals) {
                    for (k, sums) in sums[..step(KIND)].iter().enumerate() {
                        for (i, sum) in in_order(*sums).into_iter().enumerate() {
                            if let Some(j) = unpack.coordinate(c + k, i)
                                && j < rows.dim
                            {
                                totals[j] = sum;
                            }
                        }
                    }
                }
            }
            for ((ints, totals), acc) in ints.iter().zip(&totals).zip(acc.chunks_exact_mut(rows.dim)) {
                if ints.unit != 0.0 {
                    scalar::finish_sums(&totals[..rows.dim], ints.unit * scale, acc);
                }
            }
        }
    }
}

/// The sums of a register's bytes, in the bytes' order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_order([a, b, c, d]: [__m256i; 4]) -> [i32; CHUNK] {
    let mut out = [0; CHUNK];
    let ordered = [
        _mm256_permute2x128_si256::<0x20>(a, b),
        _mm256_permute2x128_si256::<0x20>(c, d),
        _mm256_permute2x128_si256::<0x31>(a, b),
        _mm256_permute2x128_si256::<0x31>(c, d),
    ];
    for (out, sums) in out.as_chunks_mut::<8>().0.iter_mut().zip(ordered) {
        // SAFETY: the array holds the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sums) }
    }
    out
}
