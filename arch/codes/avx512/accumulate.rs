//! Weighted sums of packed rows.
//!
//! The specification's weights are 16-bit integers, its centroids (of up to 16 levels) 8-bit ones. A weight splits
//! into an upper and a lower byte, and `vpdpbusd` adds four rows' products at once; the sums, exact in any order, are
//! put together at the end of a run of rows. For that the bytes of four rows must lie side by side, coordinate by
//! coordinate: eight unpack instructions a register of each of the four rows, shared by all queries.

use super::codebook::{Bytes, kind, step};
use super::unpack;
use super::unpack::{CHUNK, MAX_CHUNKS};
use crate::codes::scalar;
use crate::codes::scalar::{PAGE, weight_limit};
use crate::registers::avx512::{in_order, load_ps, load_some, load_tail, store_codes, store_ps, store_tail};
use crate::rows::{Blocks, ROWS};
use crate::vectors::avx512::rint;
use crate::{Packing, Rows};
use core::arch::x86_64::*;
use core::array;
use core::mem::MaybeUninit;
use core::ops::Range;

/// Queries in a pass.
const QUERIES: usize = 8;

/// Rows whose interleaved centroids are kept in the first-level cache while the queries go through them.
const TILE: usize = 4 * ROWS;

/// acc\[query] += Σ weight·row scale·table scale·centroid, with integer weights for each run of `PAGE` rows.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_codes(
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let count = rows.count();
    if count == 0 {
        return;
    }
    let bytes = Bytes::new(packing, rows.dim, centroids, 0);
    for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * rows.dim)) {
        match bytes.kind() {
            kind::NIBBLES => accumulate_bytes::<{ kind::NIBBLES }>(&bytes, rows, scale, weights, acc),
            kind::PAIRS => accumulate_bytes::<{ kind::PAIRS }>(&bytes, rows, scale, weights, acc),
            kind::RAW => accumulate_bytes::<{ kind::RAW }>(&bytes, rows, scale, weights, acc),
            kind::BYTES => accumulate_bytes::<{ kind::BYTES }>(&bytes, rows, scale, weights, acc),
            kind::TERNARY => accumulate_bytes::<{ kind::TERNARY }>(&bytes, rows, scale, weights, acc),
            _ => accumulate_bytes::<{ kind::SEVENS }>(&bytes, rows, scale, weights, acc),
        }
    }
}

/// A run's weights of one query, as the bytes that `vpdpbusd` multiplies.
pub(crate) struct ByteWeights {
    /// Of weight + offset. Behind a run's end these belong to zero rows.
    pub(crate) low: [u8; PAGE],
    pub(crate) high: [u8; PAGE],
    /// What makes all weights unsigned: 0 if they are, 2¹⁵ if not.
    pub(crate) offset: i32,
    /// Value of a weight's unit; 0 if the run adds nothing.
    pub(crate) unit: f32,
}

impl ByteWeights {
    pub(crate) const NONE: Self = Self { low: [0; PAGE], high: [0; PAGE], offset: 0, unit: 0.0 };

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn set(&mut self, weights: &[f32], scales: &[__m512; PAGE / 16]) {
        let ints = IntWeights::new(weights, scales, weight_limit(16));
        self.unit = ints.unit;
        self.offset = if ints.negative { 0x8000 } else { 0 };
        let offset = _mm512_set1_epi32(self.offset);
        let (low, high) = (self.low.as_chunks_mut().0, self.high.as_chunks_mut().0);
        for (i, (low, high)) in low.iter_mut().zip(high).enumerate().take(ints.count()) {
            let weight = _mm512_add_epi32(ints.get(i), offset);
            store_codes(low, _mm512_cvtepi32_epi8(weight));
            store_codes(high, _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(weight)));
        }
    }
}

/// `scalar::quantize_weights` for a run of rows, 16 at a time.
pub(crate) struct IntWeights<'a> {
    weights: &'a [f32],
    scales: &'a [__m512; PAGE / 16],
    factor: __m512,
    /// Value of a weight's unit; 0 if the run adds nothing.
    pub(crate) unit: f32,
    /// Whether any weight may be negative.
    negative: bool,
}

impl<'a> IntWeights<'a> {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(weights: &'a [f32], scales: &'a [__m512; PAGE / 16], limit: i16) -> Self {
        let factor = _mm512_setzero_ps();
        let mut ints = Self { weights, scales, factor, unit: 0.0, negative: false };
        let (mut max, mut any) = (factor, factor);
        for i in 0..ints.count() {
            let product = ints.product(i);
            max = _mm512_max_ps(_mm512_abs_ps(product), max);
            any = _mm512_or_ps(any, product);
        }
        let max = f32::from_bits(_mm512_reduce_max_epu32(_mm512_castps_si512(max)));
        if max >= scalar::SMALLEST_WEIGHT {
            ints.negative = _mm512_movepi32_mask(_mm512_castps_si512(any)) != 0;
            ints.factor = _mm512_set1_ps(f32::from(limit) / max);
            ints.unit = max / f32::from(limit);
        }
        ints
    }

    /// Registers of sixteen weights.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.weights.len().div_ceil(16)
    }

    /// Behind the end weights are 0, and scales finite.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn product(&self, i: usize) -> __m512 {
        _mm512_mul_ps(load_some(&self.weights[16 * i..]), self.scales[i])
    }

    /// The integers of weights 16·i and so on; below `count`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn get(&self, i: usize) -> __m512i {
        _mm512_cvtps_epi32(rint(_mm512_mul_ps(self.product(i), self.factor)))
    }
}

/// The scales of a run of rows.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn run_scales(blocks: &Blocks, run: Range<usize>) -> [__m512; PAGE / 16] {
    let mut scales = [_mm512_setzero_ps(); PAGE / 16];
    for (scales, block) in scales.iter_mut().zip(run) {
        *scales = unpack::scales(&blocks.get(block));
    }
    scales
}

/// The sums of 64 coordinates, in the order of the interleaved bytes.
pub(crate) type Sums = [__m512i; 4];

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate_bytes<const KIND: u8>(
    bytes: &Bytes,
    rows: &Rows,
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let count = rows.count();
    let queries = weights.len() / count;
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    for run in (0..count).step_by(PAGE) {
        let run = run..count.min(run + PAGE);
        let scales = run_scales(&blocks, run.start / ROWS..run.end.div_ceil(ROWS));
        if queries == 1 {
            let mut ints = ByteWeights::NONE;
            ints.set(&weights[run.clone()], &scales);
            if ints.offset == 0 {
                accumulate_one::<KIND>(bytes, &blocks, run, &ints, scale, acc);
                continue;
            }
        }
        accumulate_many::<KIND>(bytes, &blocks, run, (weights, count, &scales), scale, acc);
    }
}

/// A run for up to eight queries, whose weights are those of all `count` rows.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate_many<const KIND: u8>(
    bytes: &Bytes,
    blocks: &Blocks,
    run: Range<usize>,
    (weights, count, scales): (&[f32], usize, &[__m512; PAGE / 16]),
    scale: f32,
    acc: &mut [f32],
) {
    let (chunks, queries) = (bytes.chunks(), weights.len() / count);
    let zero = [_mm512_setzero_si512(); 4];
    let mut ints = [const { ByteWeights::NONE }; QUERIES];
    // Sums with the lower and with the upper bytes of the weights.
    let mut sums = [[MaybeUninit::<[Sums; 2]>::uninit(); MAX_CHUNKS]; QUERIES];
    let mut plain = [zero; MAX_CHUNKS];
    let mut tile = [[MaybeUninit::<Sums>::uninit(); TILE / 4]; MAX_CHUNKS];
    let mut any_offset = false;
    for (q, ints) in ints[..queries].iter_mut().enumerate() {
        ints.set(&weights[q * count..][run.clone()], scales);
        any_offset |= ints.offset != 0;
        sums[q][..chunks].fill(MaybeUninit::new([zero; 2]));
    }
    for start in (run.clone()).step_by(TILE) {
        let fours = (run.end.min(start + TILE) - start).div_ceil(ROWS) * (ROWS / 4);
        for b in 0..fours / 4 {
            let block = blocks.get(start / ROWS + b);
            for first in [0, 4, 8, 12] {
                for c in (0..chunks).step_by(step(KIND)) {
                    let centroids = bytes.interleaved::<KIND>(&block, c, first);
                    for (centroids, tile) in centroids.iter().zip(&mut tile[c..c + step(KIND)]) {
                        tile[b * 4 + first / 4].write(*centroids);
                    }
                }
            }
        }
        let (pairs, last) = ints[..queries].as_chunks::<2>();
        let at = (start - run.start) / 4;
        // SAFETY: the tile is written above, for each of `chunks` and `fours`, and the sums are set at the start of the
        // run, for each of `queries` and `chunks`.
        unsafe {
            for (ints, sums) in pairs.iter().zip(sums.as_chunks_mut().0) {
                add_products(&tile[..chunks], fours, at, ints, sums);
            }
            if let [ints] = last {
                let (ints, sums) = (array::from_ref(ints), array::from_mut(&mut sums[queries - 1]));
                add_products(&tile[..chunks], fours, at, ints, sums);
            }
        }
        if any_offset {
            for (tile, plain) in tile[..chunks].iter().zip(&mut plain) {
                for tile in &tile[..fours] {
                    // SAFETY: as above.
                    let centroids = unsafe { tile.assume_init_ref() };
                    for i in 0..4 {
                        plain[i] = _mm512_dpbusd_epi32(plain[i], _mm512_set1_epi8(1), centroids[i]);
                    }
                }
            }
        }
    }

    for (q, (ints, acc)) in ints.iter().zip(acc.chunks_exact_mut(acc.len() / queries)).enumerate() {
        if ints.unit == 0.0 {
            continue;
        }
        let offset = _mm512_set1_epi32(ints.offset);
        let mut totals = [zero; MAX_CHUNKS];
        for ((total, sums), plain) in totals[..chunks].iter_mut().zip(&sums[q]).zip(&plain) {
            // SAFETY: set at the start of the run, as `q` is below `queries`.
            let [low, high] = unsafe { sums.assume_init() };
            for i in 0..4 {
                let sum = _mm512_add_epi32(low[i], _mm512_slli_epi32::<8>(high[i]));
                total[i] = _mm512_sub_epi32(sum, _mm512_mullo_epi32(plain[i], offset));
            }
        }
        finish::<KIND>(&mut totals[..chunks], ints.unit * scale, acc);
    }
}

/// Adds a tile's products with the weights of `N` queries. Two take one load of each centroid, and hide the latency of
/// one another.
///
/// # Safety
/// Of each chunk, the first `fours` of the tile and the sums are set.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn add_products<const N: usize>(
    tile: &[[MaybeUninit<Sums>; TILE / 4]],
    fours: usize,
    at: usize,
    ints: &[ByteWeights; N],
    sums: &mut [[MaybeUninit<[Sums; 2]>; MAX_CHUNKS]; N],
) {
    let zero = [_mm512_setzero_si512(); 4];
    for (c, tile) in tile.iter().enumerate() {
        let mut totals = [[zero; 2]; N];
        for (total, sums) in totals.iter_mut().zip(&*sums) {
            // SAFETY: promised by the caller.
            *total = unsafe { sums[c].assume_init() };
        }
        for (i, tile) in tile[..fours].iter().enumerate() {
            // SAFETY: promised by the caller.
            let centroids = unsafe { tile.assume_init_ref() };
            for ([low, high], ints) in totals.iter_mut().zip(ints) {
                let (l, h) = (four(&ints.low.as_chunks().0[at + i]), four(&ints.high.as_chunks().0[at + i]));
                for k in 0..4 {
                    low[k] = _mm512_dpbusd_epi32(low[k], l, centroids[k]);
                    high[k] = _mm512_dpbusd_epi32(high[k], h, centroids[k]);
                }
            }
        }
        for (total, sums) in totals.into_iter().zip(&mut *sums) {
            sums[c].write(total);
        }
    }
}

/// A run for one query without negative weights: its sums stay in registers.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate_one<const KIND: u8>(
    bytes: &Bytes,
    blocks: &Blocks,
    run: Range<usize>,
    ints: &ByteWeights,
    scale: f32,
    acc: &mut [f32],
) {
    if ints.unit == 0.0 {
        return;
    }
    let zero = [_mm512_setzero_si512(); 4];
    for c in (0..bytes.chunks()).step_by(step(KIND)) {
        let (mut low, mut high) = ([zero; 2], [zero; 2]);
        let mut weights = ints.low.as_chunks().0.iter().zip(ints.high.as_chunks().0);
        for block in run.start / ROWS..run.end.div_ceil(ROWS) {
            let block = blocks.get(block);
            for (first, (l, h)) in [0, 4, 8, 12].into_iter().zip(&mut weights) {
                let centroids = bytes.interleaved::<KIND>(&block, c, first);
                let (l, h) = (four(l), four(h));
                for k in 0..step(KIND) {
                    for i in 0..4 {
                        low[k][i] = _mm512_dpbusd_epi32(low[k][i], l, centroids[k][i]);
                        high[k][i] = _mm512_dpbusd_epi32(high[k][i], h, centroids[k][i]);
                    }
                }
            }
        }
        let mut totals = [zero; 2];
        for k in 0..step(KIND) {
            for i in 0..4 {
                totals[k][i] = _mm512_add_epi32(low[k][i], _mm512_slli_epi32::<8>(high[k][i]));
            }
        }
        finish::<KIND>(&mut totals[..step(KIND)], ints.unit * scale, &mut acc[c * CHUNK..]);
    }
}

/// Four bytes, sixteen times.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn four(bytes: &[u8; 4]) -> __m512i {
    _mm512_set1_epi32(i32::from_le_bytes(*bytes))
}

/// acc += sum·factor for up to 16 coordinates.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn add(acc: &mut [f32], sum: __m512i, factor: f32) {
    let product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor));
    match acc.first_chunk_mut() {
        Some(acc) => store_ps(acc, _mm512_add_ps(load_ps(acc), product)),
        None => store_tail(acc, _mm512_add_ps(load_tail(acc), product)),
    }
}

/// acc += sum·factor, the sums brought into the order of the coordinates.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn finish<const KIND: u8>(sums: &mut [Sums], factor: f32, acc: &mut [f32]) {
    for sums in sums.iter_mut() {
        *sums = in_order(*sums);
    }
    let add = |acc: &mut [f32], sum: __m512i| add(acc, sum, factor);
    if step(KIND) == 2 {
        for (pair, acc) in sums.as_chunks::<2>().0.iter().zip(acc.chunks_mut(128)) {
            for (i, acc) in acc.chunks_mut(32).enumerate() {
                let (x, y) = (pair[0][i], pair[1][i]);
                let index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                let further = _mm512_add_epi32(index, _mm512_set1_epi32(8));
                let (low, high) = acc.split_at_mut(acc.len().min(16));
                add(low, _mm512_permutex2var_epi32(x, index, y));
                if !high.is_empty() {
                    add(high, _mm512_permutex2var_epi32(x, further, y));
                }
            }
        }
    } else {
        for (sums, acc) in sums.iter().zip(acc.chunks_mut(64)) {
            for (sum, acc) in sums.iter().zip(acc.chunks_mut(16)) {
                add(acc, *sum);
            }
        }
    }
}
