//! Scores and weighted sums with codebooks of more than 16 centroids, which have 12 bits: words instead of bytes.

use super::accumulate::{IntWeights, add, run_scales};
use super::codebook::Words;
use super::score::add_sixteen;
use super::unpack::{CHUNK, Chunk, MAX_CHUNKS, Unpack, scales};
use crate::codes::scalar::{PAGE, weight_limit};
use crate::registers::avx512::{load_words, store_first};
use crate::rows::{Blocks, ROWS};
use crate::{IntQuery, Packing, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Queries in a pass.
const QUERIES: usize = 8;

/// The way from packed codes to words.
struct Lookup {
    unpack: Unpack,
    words: Words,
    chunks: [Chunk; MAX_CHUNKS],
    count: usize,
}

impl Lookup {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(packing: Packing, rows: &Rows, centroids: &[i16]) -> Self {
        let unpack = Unpack::new(packing, rows.dim, 2);
        let count = rows.dim.div_ceil(CHUNK);
        let mut chunks = [unpack.chunk(0); MAX_CHUNKS];
        for (i, chunk) in chunks[..count].iter_mut().enumerate() {
            *chunk = unpack.chunk(i);
        }
        Self { unpack, words: Words::new(centroids), chunks, count }
    }
}

/// See `scalar::score_codes`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_codes(
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = rows.count();
    if count == 0 {
        return;
    }
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let lookup = Lookup::new(packing, rows, centroids);
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        let mut values = [[MaybeUninit::<[__m512i; 2]>::uninit(); MAX_CHUNKS]; QUERIES];
        for (query, values) in queries.iter().zip(&mut values) {
            for (query, values) in query.values.chunks(CHUNK).zip(values) {
                let (low, high) = query.split_at(query.len().min(32));
                values.write([load_words(low), load_words(high)]);
            }
        }
        let mut found = [[MaybeUninit::<[__m512i; 2]>::uninit(); ROWS]; MAX_CHUNKS];
        for i in 0..count.div_ceil(ROWS) {
            blocks.ask(i);
            let block = blocks.get(i);
            for (chunk, found) in lookup.chunks[..lookup.count].iter().zip(&mut found) {
                for (r, found) in found.iter_mut().enumerate() {
                    found.write(lookup.words.lookup(lookup.unpack.codes(chunk, &block, r)));
                }
            }
            let scales = scales(&block);
            for ((query, values), scores) in queries.iter().zip(&values).zip(scores.chunks_exact_mut(count)) {
                let mut sums = [_mm512_setzero_si512(); ROWS];
                for (values, found) in values.iter().zip(&found[..lookup.count]) {
                    // SAFETY: written above for each query and its chunks, of which `lookup` has as many.
                    let values = unsafe { values.assume_init() };
                    for (sum, found) in sums.iter_mut().zip(found) {
                        // SAFETY: written above for these chunks and all rows.
                        let found = unsafe { found.assume_init() };
                        *sum = _mm512_dpwssd_epi32(*sum, found[0], values[0]);
                        *sum = _mm512_dpwssd_epi32(*sum, found[1], values[1]);
                    }
                }
                let sums = _mm512_cvtepi32_ps(add_sixteen(&sums));
                let factor = _mm512_set1_ps(query.scale * scale);
                store_first(_mm512_mul_ps(_mm512_mul_ps(sums, factor), scales), &mut scores[i * ROWS..]);
            }
        }
    }
}

/// See `scalar::accumulate_codes`. Two rows' words lie side by side, and `vpdpwssd` adds both products.
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
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let lookup = Lookup::new(packing, rows, centroids);
    let zero = [_mm512_setzero_si512(); 4];
    for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * rows.dim)) {
        let queries = weights.len() / count;
        for run in (0..count).step_by(PAGE) {
            let end = count.min(run + PAGE);
            let scales = run_scales(&blocks, run / ROWS..end.div_ceil(ROWS));
            let mut ints = [const { ([[0; 2]; PAGE / 2], 0.0) }; QUERIES];
            let mut sums = [[MaybeUninit::<[__m512i; 4]>::uninit(); MAX_CHUNKS]; QUERIES];
            for (q, (pairs, unit)) in ints[..queries].iter_mut().enumerate() {
                let weights = &weights[q * count..][run..end];
                let ints = IntWeights::new(weights, &scales, weight_limit(centroids.len()));
                *unit = ints.unit;
                for (i, pairs) in pairs.as_chunks_mut().0.iter_mut().enumerate().take(ints.count()) {
                    store_pairs(pairs, _mm512_cvtepi32_epi16(ints.get(i)));
                }
                sums[q][..lookup.count].fill(MaybeUninit::new(zero));
            }
            for (b, pairs) in (run / ROWS..end.div_ceil(ROWS)).zip((0..).step_by(ROWS / 2)) {
                blocks.ask(b);
                let block = blocks.get(b);
                for (c, chunk) in lookup.chunks[..lookup.count].iter().enumerate() {
                    let mut tile = [zero; ROWS / 2];
                    for (pair, tile) in tile.iter_mut().enumerate() {
                        let words = |r| lookup.words.lookup(lookup.unpack.codes(chunk, &block, r));
                        let (a, b) = (words(2 * pair), words(2 * pair + 1));
                        *tile = [
                            _mm512_unpacklo_epi16(a[0], b[0]),
                            _mm512_unpackhi_epi16(a[0], b[0]),
                            _mm512_unpacklo_epi16(a[1], b[1]),
                            _mm512_unpackhi_epi16(a[1], b[1]),
                        ];
                    }
                    for ((weights, _), sums) in ints[..queries].iter().zip(&mut sums) {
                        // SAFETY: set at the start of the run for each of `queries` and chunk.
                        let mut totals = unsafe { sums[c].assume_init() };
                        for (tile, pair) in tile.iter().zip(&weights[pairs..pairs + ROWS / 2]) {
                            let pair =
                                _mm512_set1_epi32(i32::from(pair[0]) & 0xffff | i32::from(pair[1]) << 16);
                            for (total, words) in totals.iter_mut().zip(tile) {
                                *total = _mm512_dpwssd_epi32(*total, *words, pair);
                            }
                        }
                        sums[c].write(totals);
                    }
                }
            }
            for (((_, unit), sums), acc) in ints.iter().zip(&sums).zip(acc.chunks_exact_mut(rows.dim)) {
                if *unit == 0.0 {
                    continue;
                }
                for (sums, acc) in sums.iter().zip(acc.chunks_mut(CHUNK)) {
                    // SAFETY: as above; there are as many chunks of coordinates.
                    let [a, b, c, d] = unsafe { sums.assume_init() };
                    // Unpacked: lane l of the first has coordinates 8·l …, of the second 8·l + 4 ….
                    let lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
                    let upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
                    let ordered = [
                        _mm512_permutex2var_epi64(a, lower, b),
                        _mm512_permutex2var_epi64(a, upper, b),
                        _mm512_permutex2var_epi64(c, lower, d),
                        _mm512_permutex2var_epi64(c, upper, d),
                    ];
                    for (sum, acc) in ordered.into_iter().zip(acc.chunks_mut(16)) {
                        add(acc, sum, unit * scale);
                    }
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_pairs(pairs: &mut [[i16; 2]; 8], words: __m256i) {
    // SAFETY: the array holds the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), words) }
}
