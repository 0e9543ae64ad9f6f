//! Scores and weighted sums with codebooks of more than 16 centroids. Their centroids have 12 bits,
//! so they are words and not bytes.
//!
//! If centroids are the codes minus an offset, nothing is looked up. On Sapphire Rapids with eight
//! bits, 128 coordinates and one query, a score then takes 0.33 of its time with lookups, and a sum
//! 0.64. With many queries the words are transposed once for all of them, which takes 0.5 to 0.6 of
//! the time with 32 queries.

use super::accumulate::{IntWeights, RunScales, add, run_scales};
use super::codebook::Words;
use super::sums::finish;
use super::unpack::{CHUNK, Chunk, MAX_CHUNKS, Masked, Unpack};
use crate::codes::layout::Codebook;
use crate::codes::scalar::{PAGE, weight_limit};
use crate::registers::avx512::{
    add_four, add_lanes, add_sixteen, load_words, narrow, scales, store_first, transpose,
};
use crate::rows::{Blocks, ROWS, each_page, each_page_mut};
use crate::{IntQuery, Packing, Rows};
use core::arch::x86_64::*;
use core::array;
use core::mem::MaybeUninit;

/// Queries in a pass.
const QUERIES: usize = 8;

/// The number of queries from which on they are scored [`FEW`] at a time, with transposed words
/// that all share.
const MANY: usize = 16;

/// Queries whose sums are in registers.
const FEW: usize = 8;

/// Unpacks codes, and looks up words.
struct Lookup {
    unpack: Unpack,
    words: Words,
    chunks: [Chunk; MAX_CHUNKS],
    count: usize,
}

impl Lookup {
    /// Prepares rows of one packing.
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

/// Implements `scalar::score_codes` for codebooks of more than 16 levels.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_codes(book: &Codebook, pages: &[Rows], queries: &[IntQuery], scores: &mut [f32]) {
    let Some(first) = pages.first() else { return };
    let lookup = Lookup::new(book.packing, first, book.centroids);
    for (rows, scores) in each_page_mut(pages, queries.len(), scores) {
        if rows.count() > 0 {
            score_rows(book, &lookup, rows, queries, scores);
        }
    }
}

/// Scores the rows of a page.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_rows(book: &Codebook, lookup: &Lookup, rows: &Rows, queries: &[IntQuery], scores: &mut [f32]) {
    let (Codebook { packing, scale, .. }, count) = (*book, rows.count());
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let many =
        if queries.len() >= MANY && rows.dim.is_multiple_of(2) { queries.len() / FEW * FEW } else { 0 };
    let ((many, queries), (scores_of_many, scores)) =
        (queries.split_at(many), scores.split_at_mut(many * count));
    if !many.is_empty() {
        match lookup.words.offset {
            Some(_) => score_many::<true>(lookup, &blocks, rows, scale, many, scores_of_many),
            None => score_many::<false>(lookup, &blocks, rows, scale, many, scores_of_many),
        }
    }
    if let Some(offset) = lookup.words.offset {
        for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
            match packing.raw_bits() {
                8 => score_integers::<true>(lookup, &blocks, offset, scale, query, scores),
                _ => score_integers::<false>(lookup, &blocks, offset, scale, query, scores),
            }
        }
        return;
    }
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
            blocks.prefetch(i);
            let block = blocks.get(i);
            for (chunk, found) in lookup.chunks[..lookup.count].iter().zip(&mut found) {
                for (r, found) in found.iter_mut().enumerate() {
                    found.write(lookup.words.lookup::<false>(lookup.unpack.codes(chunk, &block, r)));
                }
            }
            let scales = scales(&block);
            for ((query, values), scores) in queries.iter().zip(&values).zip(scores.chunks_exact_mut(count)) {
                let mut sums = [_mm512_setzero_si512(); ROWS];
                for (values, found) in values.iter().zip(&found[..lookup.count]) {
                    // SAFETY: written above for each query and its chunks, which are
                    // `lookup.count`.
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

/// Scores rows of an even width with a multiple of [`FEW`] queries. A lane is a row, and two words
/// of it are multiplied with two words of a query, which all lanes share. So no sum needs a
/// reduction.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_many<const OFFSET: bool>(
    lookup: &Lookup,
    blocks: &Blocks,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let (count, pairs) = (rows.count(), rows.dim / 2);
    let mut columns = [[_mm512_setzero_si512(); ROWS]; 2 * MAX_CHUNKS];
    for i in 0..count.div_ceil(ROWS) {
        blocks.prefetch(i);
        let block = blocks.get(i);
        for (chunk, columns) in lookup.chunks[..lookup.count].iter().zip(columns.as_chunks_mut::<2>().0) {
            let mut found = [[_mm512_setzero_si512(); ROWS]; 2];
            for r in 0..ROWS {
                [found[0][r], found[1][r]] =
                    lookup.words.lookup::<OFFSET>(lookup.unpack.codes(chunk, &block, r));
            }
            *columns = [transpose(&found[0]), transpose(&found[1])];
        }
        let columns = &columns.as_flattened()[..pairs];
        let scales = scales(&block);
        for (queries, scores) in queries.as_chunks::<FEW>().0.iter().zip(scores.chunks_exact_mut(FEW * count))
        {
            let mut values: [&[[i16; 2]]; FEW] = [&[]; FEW];
            for (values, query) in values.iter_mut().zip(queries) {
                *values = &query.values.as_chunks().0[..pairs];
            }
            let mut sums = [_mm512_setzero_si512(); FEW];
            for (at, column) in columns.iter().enumerate() {
                for (sum, values) in sums.iter_mut().zip(values) {
                    let [a, b] = values[at];
                    let pair = _mm512_set1_epi32(i32::from(b) << 16 | i32::from(a as u16));
                    *sum = _mm512_dpwssd_epi32(*sum, *column, pair);
                }
            }
            for ((query, sums), scores) in queries.iter().zip(sums).zip(scores.chunks_exact_mut(count)) {
                let factor = _mm512_set1_ps(query.scale * scale);
                let end = count.min((i + 1) * ROWS);
                store_first(finish(sums, _mm512_setzero_si512(), factor, scales), &mut scores[i * ROWS..end]);
            }
        }
    }
}

/// Scores one query if centroids are the codes minus an offset. Codes are bytes (with `WHOLE` as
/// they lie in the row), and each coordinate of the query splits into two bytes.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_integers<const WHOLE: bool>(
    lookup: &Lookup,
    blocks: &Blocks,
    offset: u8,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let mut values = [[_mm512_setzero_si512(); 2]; MAX_CHUNKS];
    for (values, query) in values.iter_mut().zip(query.values.chunks(CHUNK)) {
        let (low, high) = query.split_at(query.len().min(32));
        let (low, high) = (load_words(low), load_words(high));
        // q = 128·upper + lower. For q within ±1023 both are signed bytes.
        let lower = |x| _mm512_and_si512(x, _mm512_set1_epi16(0x7f));
        let upper = |x| _mm512_srai_epi16::<7>(x);
        *values = [narrow(lower(low), lower(high)), narrow(upper(low), upper(high))];
    }
    let all: i32 = query.values.iter().map(|value| i32::from(*value)).sum();
    let excess = _mm512_set1_epi32(i32::from(offset) * all);
    let factor = _mm512_set1_ps(query.scale * scale);
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        blocks.prefetch(i);
        let block = blocks.get(i);
        let mut fours = [_mm512_setzero_si512(); ROWS / 4];
        for (i, four) in fours.iter_mut().enumerate() {
            let mut sums = [[_mm512_setzero_si512(); 4]; 2];
            for (chunk, [lower, upper]) in lookup.chunks[..lookup.count].iter().zip(values) {
                let raw = Masked::new(&block, &chunk.raw);
                for k in 0..4 {
                    let bytes = raw.load(4 * i + k);
                    let codes = if WHOLE { bytes } else { lookup.unpack.codes(chunk, &block, 4 * i + k) };
                    sums[0][k] = _mm512_dpbusd_epi32(sums[0][k], codes, lower);
                    sums[1][k] = _mm512_dpbusd_epi32(sums[1][k], codes, upper);
                }
            }
            let (lower, upper) = (add_four(sums[0]), add_four(sums[1]));
            *four = _mm512_add_epi32(lower, _mm512_slli_epi32::<7>(upper));
        }
        store_first(finish(add_lanes(fours), excess, factor, scales(&block)), scores);
    }
}

/// Implements `scalar::accumulate_codes` for codebooks of more than 16 levels. Words of two rows
/// lie side by side, and `vpdpwssd` adds both products.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_codes(book: &Codebook, pages: &[Rows], weights: &[f32], acc: &mut [f32]) {
    let Codebook { packing, centroids, scale } = *book;
    let Some(first) = pages.first() else { return };
    let lookup = Lookup::new(packing, first, centroids);
    for (rows, weights) in each_page(pages, acc.len() / first.dim, weights) {
        if rows.count() == 0 {
            continue;
        }
        let mut padded = None;
        let blocks = Blocks::new(rows, &mut padded);
        match lookup.words.offset {
            Some(_) => accumulate::<true>(&lookup, &blocks, rows, centroids.len(), scale, weights, acc),
            None => accumulate::<false>(&lookup, &blocks, rows, centroids.len(), scale, weights, acc),
        }
    }
}

/// Adds weighted rows, run by run, for up to [`QUERIES`] queries at a time.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate<const OFFSET: bool>(
    lookup: &Lookup,
    blocks: &Blocks,
    rows: &Rows,
    levels: usize,
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let (count, zero) = (rows.count(), [_mm512_setzero_si512(); 4]);
    for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * rows.dim)) {
        let queries = weights.len() / count;
        for run in (0..count).step_by(PAGE) {
            let end = count.min(run + PAGE);
            let mut scales = RunScales::EMPTY;
            let scales = run_scales(blocks, run / ROWS..end.div_ceil(ROWS), &mut scales);
            let mut ints = [const { ([[0; 2]; PAGE / 2], 0.0) }; QUERIES];
            let mut sums = [[MaybeUninit::<[__m512i; 4]>::uninit(); MAX_CHUNKS]; QUERIES];
            for (q, (pairs, unit)) in ints[..queries].iter_mut().enumerate() {
                let weights = &weights[q * count..][run..end];
                let ints = IntWeights::new(weights, scales, weight_limit(levels));
                *unit = ints.unit;
                let mut pairs = pairs.as_chunks_mut().0.iter_mut();
                ints.each(|ints| {
                    if let Some(pairs) = pairs.next() {
                        store_pairs(pairs, _mm512_cvtepi32_epi16(ints));
                    }
                });
                sums[q][..lookup.count].fill(MaybeUninit::new(zero));
            }
            for (b, pairs) in (run / ROWS..end.div_ceil(ROWS)).zip((0..).step_by(ROWS / 2)) {
                blocks.prefetch(b);
                let block = blocks.get(b);
                for (c, chunk) in lookup.chunks[..lookup.count].iter().enumerate() {
                    let words = |r| lookup.words.lookup::<OFFSET>(lookup.unpack.codes(chunk, &block, r));
                    let side_by_side = |pair: usize| {
                        let (a, b) = (words(2 * pair), words(2 * pair + 1));
                        [
                            _mm512_unpacklo_epi16(a[0], b[0]),
                            _mm512_unpackhi_epi16(a[0], b[0]),
                            _mm512_unpacklo_epi16(a[1], b[1]),
                            _mm512_unpackhi_epi16(a[1], b[1]),
                        ]
                    };
                    if let ([(weights, _)], [sums, ..]) = (&ints[..queries], &mut sums) {
                        // SAFETY: set at the start of the run for the one query and each chunk.
                        let mut totals = unsafe { sums[c].assume_init() };
                        for (n, weights) in weights[pairs..pairs + ROWS / 2].iter().enumerate() {
                            add_products(&mut totals, &side_by_side(n), weights);
                        }
                        sums[c].write(totals);
                        continue;
                    }
                    let tile: [_; ROWS / 2] = array::from_fn(side_by_side);
                    for ((weights, _), sums) in ints[..queries].iter().zip(&mut sums) {
                        // SAFETY: set at the start of the run for each of `queries` and chunk.
                        let mut totals = unsafe { sums[c].assume_init() };
                        for (tile, pair) in tile.iter().zip(&weights[pairs..pairs + ROWS / 2]) {
                            add_products(&mut totals, tile, pair);
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
                    // SAFETY: set at the start of the run for each query and chunk. `acc` has as many
                    // rows, and each row as many chunks.
                    let [a, b, c, d] = unsafe { sums.assume_init() };
                    // After unpacking, lane l of the first register has coordinates 8·l …, and of the
                    // second 8·l + 4 ….
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

/// Adds the products of two rows' words, side by side, with their weights.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn add_products(totals: &mut [__m512i; 4], words: &[__m512i; 4], pair: &[i16; 2]) {
    let pair = _mm512_set1_epi32(i32::from(pair[0]) & 0xffff | i32::from(pair[1]) << 16);
    for (total, words) in totals.iter_mut().zip(words) {
        *total = _mm512_dpwssd_epi32(*total, *words, pair);
    }
}

/// Stores eight pairs of words.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_pairs(pairs: &mut [[i16; 2]; 8], words: __m256i) {
    // SAFETY: the array holds the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), words) }
}
