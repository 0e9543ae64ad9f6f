//! Scores of packed rows, for codebooks of up to 16 levels.

use super::codebook::{Bytes, kind, step};
use super::pairs;
use super::sums::{Columns, PASS, QUERIES, finish};
use super::tiles::TileQueries;
use super::unpack::{CHUNK, MAX_CHUNKS};
use crate::codes::layout::Codebook;
use crate::registers::amx::Tiles;
use crate::registers::avx512::{
    add_four, add_lanes, load, load_words, narrow, scales, store_first, to_array,
};
use crate::rows::{Block, Blocks, ROWS, each_page_mut, each_part_mut};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Implements `scalar::score_codes` for codebooks of up to 16 levels.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_codes(
    tiles: Option<Tiles>,
    book: &Codebook,
    pages: &[Rows],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    let Some(&Rows { dim, .. }) = pages.first() else { return };
    if let [query] = queries
        && pairs::score(book, dim, pages, query, scores)
    {
        return;
    }
    let bytes = Bytes::new(packing, dim, centroids, 0x80);
    match bytes.kind() {
        kind::NIBBLES => score_bytes::<{ kind::NIBBLES }>(tiles, &bytes, pages, scale, queries, scores),
        kind::PAIRS => score_bytes::<{ kind::PAIRS }>(tiles, &bytes, pages, scale, queries, scores),
        kind::RAW => score_bytes::<{ kind::RAW }>(tiles, &bytes, pages, scale, queries, scores),
        kind::BYTES => score_bytes::<{ kind::BYTES }>(tiles, &bytes, pages, scale, queries, scores),
        kind::TERNARY => score_bytes::<{ kind::TERNARY }>(tiles, &bytes, pages, scale, queries, scores),
        _ => score_bytes::<{ kind::SEVENS }>(tiles, &bytes, pages, scale, queries, scores),
    }
}

/// A query's bytes in the order of the looked-up centroids.
pub(crate) struct ByteQuery {
    pub(crate) values: [__m512i; MAX_CHUNKS],
    /// 128 · Σ q, which the offset of the centroids adds to each sum.
    pub(crate) excess: __m512i,
    /// Query scale times table scale.
    pub(crate) factor: __m512,
}

impl ByteQuery {
    /// Returns a query of zeros.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn zeros() -> Self {
        let zero = _mm512_setzero_si512();
        Self { values: [zero; MAX_CHUNKS], excess: zero, factor: _mm512_setzero_ps() }
    }

    /// Orders a query for a kind of rows.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(query: &IntQuery, scale: f32, kind: u8) -> Self {
        let mut new = Self::zeros();
        new.set(query, scale, kind);
        new
    }

    /// Replaces this by another query of the same width. A block of queries is prepared anew for every
    /// call, so it sets no memory that it does not need.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn set(&mut self, query: &IntQuery, scale: f32, kind: u8) {
        let (whole, tail) = query.values.as_chunks::<CHUNK>();
        let values = &mut self.values[..whole.len() + usize::from(!tail.is_empty())];
        for (chunk, values) in whole.iter().zip(&mut *values) {
            let [low, high] = chunk.as_chunks::<32>().0 else { continue };
            *values = narrow(load(low), load(high));
        }
        if let (false, Some(values)) = (tail.is_empty(), values.last_mut()) {
            let (low, high) = tail.split_at(tail.len().min(32));
            *values = narrow(load_words(low), load_words(high));
        }
        let mut sum = _mm512_setzero_si512();
        for values in &mut *values {
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), *values);
        }
        let count = values.len();
        if step(kind) == 2 {
            // The last pair may have a register of zeros.
            if let Some(values) = self.values.get_mut(count) {
                *values = _mm512_setzero_si512();
            }
            for [a, b] in self.values.as_chunks_mut::<2>().0.iter_mut().take(count.div_ceil(2)) {
                let odd = |x| _mm512_srli_epi16::<8>(x);
                (*a, *b) = (narrow(*a, *b), narrow(odd(*a), odd(*b)));
            }
        }
        self.excess = _mm512_set1_epi32(_mm512_reduce_add_epi32(sum));
        self.factor = _mm512_set1_ps(query.scale * scale);
    }
}

/// Scores pages of one kind: one query at a time, a few, or blocks of queries.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_bytes<const KIND: u8>(
    tiles: Option<Tiles>,
    bytes: &Bytes,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    match queries.len() {
        // More than two queries are cheaper together, even if a slot stays empty.
        1 | 2 => {
            for (q, query) in queries.iter().enumerate() {
                let query = ByteQuery::new(query, scale, KIND);
                for (rows, scores) in each_part_mut(pages, queries.len(), q..q + 1, scores) {
                    let mut padded = None;
                    score_one::<KIND>(bytes, &Blocks::new(rows, &mut padded), &query, scores);
                }
            }
        }
        3 | 4 => score_few::<KIND, 4>(bytes, pages, scale, queries, scores),
        5..=8 => score_few::<KIND, 8>(bytes, pages, scale, queries, scores),
        _ => {
            let prepare = |query: &IntQuery, bytes: &mut ByteQuery| bytes.set(query, scale, KIND);
            let look_up = |block: &Block, columns: &mut [_]| bytes.columns::<KIND>(block, columns);
            // SAFETY: `columns` writes each.
            unsafe { score_blocks(tiles, ROWS * bytes.chunks(), pages, queries, scores, &prepare, &look_up) }
        }
    }
}

/// Brings a query into the order of lookups.
type Prepare<'a> = &'a dyn Fn(&IntQuery, &mut ByteQuery);
/// Looks up the columns of a block, as many as there are chunks.
type LookUp<'a> = &'a dyn Fn(&Block, &mut [MaybeUninit<Columns>]);

/// Scores pages with any number of queries. Up to [`PASS`] share lookups, or [`QUERIES`] with tiles.
/// Chunks have sixteen columns, and all have `columns` of them. It is compiled once for all kinds of
/// rows.
///
/// # Safety
/// `look_up` must set all columns that it receives.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) unsafe fn score_blocks(
    tiles: Option<Tiles>,
    columns: usize,
    pages: &[Rows],
    queries: &[IntQuery],
    scores: &mut [f32],
    prepare: Prepare,
    look_up: LookUp,
) {
    let pass = if tiles.is_some() { QUERIES } else { PASS };
    for first in (0..queries.len()).step_by(pass) {
        let pass = first..queries.len().min(first + pass);
        let prepared = (&queries[pass.clone()], prepare);
        let parts = each_part_mut(pages, queries.len(), pass.clone(), scores);
        // SAFETY: the caller vouches for `look_up`.
        unsafe {
            match tiles {
                Some(tiles) if pass.len() == QUERIES => {
                    score_tiles(tiles, columns.div_ceil(ROWS), parts, prepared, look_up)
                }
                _ if pass.len() <= 4 => score_many::<4>(columns, parts, prepared, look_up),
                _ => score_many::<8>(columns, parts, prepared, look_up),
            }
        }
    }
}

/// Scores pages with up to [`PASS`] queries. `Q` of them share each load of a looked-up register.
///
/// # Safety
/// As [`score_blocks`].
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn score_many<'r, 's, const Q: usize>(
    count: usize,
    parts: impl Iterator<Item = (&'r Rows<'r>, &'s mut [f32])>,
    (queries, prepare): (&[IntQuery], Prepare<'_>),
    look_up: LookUp<'_>,
) {
    let (mut many, mut bytes, chunks) = (Many::<Q>::new(count), ByteQuery::zeros(), count.div_ceil(ROWS));
    for query in queries {
        prepare(query, &mut bytes);
        many.push(&bytes.values[..chunks], bytes.excess, bytes.factor);
    }
    let mut columns = [const { MaybeUninit::uninit() }; MAX_CHUNKS];
    for (rows, scores) in parts {
        let (count, mut padded) = (rows.count(), None);
        let blocks = Blocks::new(rows, &mut padded);
        for i in 0..count.div_ceil(ROWS) {
            blocks.prefetch(i);
            let (block, columns) = (blocks.get(i), &mut columns[..chunks]);
            look_up(&block, columns);
            // SAFETY: the caller vouches for `look_up`, which has set them.
            let columns = unsafe { columns.assume_init_ref() };
            many.score(columns, scales(&block), count, i * ROWS, scores);
        }
    }
}

/// Scores pages with [`QUERIES`] queries, with AMX tiles.
///
/// # Safety
/// As [`score_blocks`].
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn score_tiles<'r, 's>(
    tiles: Tiles,
    chunks: usize,
    parts: impl Iterator<Item = (&'r Rows<'r>, &'s mut [f32])>,
    (queries, prepare): (&[IntQuery], Prepare<'_>),
    look_up: LookUp<'_>,
) {
    let (mut tiled, mut bytes) = (TileQueries::new(chunks), ByteQuery::zeros());
    for query in queries {
        prepare(query, &mut bytes);
        tiled.push(&bytes.values, bytes.excess, bytes.factor);
    }
    let configured = tiles.configure();
    for (rows, scores) in parts {
        let mut padded = None;
        let blocks = &Blocks::new(rows, &mut padded);
        // SAFETY: the caller vouches for `look_up`.
        unsafe { tiled.score(&configured, blocks, rows.count(), scores, look_up) }
    }
}

/// Scores rows with one query, four rows at a time.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_one<const KIND: u8>(bytes: &Bytes, blocks: &Blocks, query: &ByteQuery, scores: &mut [f32]) {
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        blocks.prefetch(i);
        let block = blocks.get(i);
        let mut fours = [_mm512_setzero_si512(); ROWS / 4];
        for (i, four) in fours.iter_mut().enumerate() {
            let mut sums = [_mm512_setzero_si512(); 4];
            for c in (0..bytes.chunks()).step_by(step(KIND)) {
                let centroids = bytes.four::<KIND>(&block, c, 4 * i);
                for (centroids, values) in centroids.iter().zip(&query.values[c..c + step(KIND)]) {
                    for (sum, centroids) in sums.iter_mut().zip(centroids) {
                        *sum = _mm512_dpbusd_epi32(*sum, *centroids, *values);
                    }
                }
            }
            *four = add_four(sums);
        }
        let sums = add_lanes(fours);
        store_first(finish(sums, query.excess, query.factor, scales(&block)), scores);
    }
}

/// Scores pages with up to `Q` queries. What is looked up is used at once, without storing it, which
/// is a fifth faster.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_few<const KIND: u8, const Q: usize>(
    bytes: &Bytes,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let mut many = Many::<Q>::new(ROWS * bytes.chunks());
    for query in queries {
        let ByteQuery { values, excess, factor } = ByteQuery::new(query, scale, KIND);
        many.push(&values[..bytes.chunks()], excess, factor);
    }
    for (rows, scores) in each_page_mut(pages, queries.len(), scores) {
        let (count, mut padded) = (rows.count(), None);
        let blocks = Blocks::new(rows, &mut padded);
        for i in 0..count.div_ceil(ROWS) {
            blocks.prefetch(i);
            let block = blocks.get(i);
            let mut sums = [_mm512_setzero_si512(); Q];
            for c in (0..bytes.chunks()).step_by(step(KIND)) {
                let columns = bytes.transposed::<KIND>(&block, c);
                for (c, columns) in (c..).zip(columns.iter().take(step(KIND))) {
                    many.add(0, c, columns, &mut sums);
                }
            }
            many.end(0, sums, scales(&block), count, i * ROWS, scores);
        }
    }
}

/// Queries in the form in which they are multiplied with [`Columns`], `Q` at a time.
///
/// A page has only some dozen rows, so memory that is not needed is not even set to zero.
pub(crate) struct Many<const Q: usize> {
    /// For each chunk and each query, sixteen dwords. They are set for the first `len` queries,
    /// rounded up to `Q`, and all chunks.
    dwords: [[MaybeUninit<[i32; ROWS]>; PASS]; MAX_CHUNKS],
    /// The amount that the offset of the centroids adds to each sum, and the factor. Set for the first `len`.
    ends: [MaybeUninit<(__m512i, __m512)>; PASS],
    len: usize,
    columns: usize,
}

impl<const Q: usize> Many<Q> {
    /// Creates an empty list of queries for this many columns.
    #[inline]
    pub(crate) fn new(columns: usize) -> Self {
        const { assert!(PASS.is_multiple_of(Q)) };
        Self {
            dwords: [const { [const { MaybeUninit::uninit() }; PASS] }; MAX_CHUNKS],
            ends: [const { MaybeUninit::uninit() }; PASS],
            len: 0,
            columns,
        }
    }

    /// Appends a query.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn push(&mut self, values: &[__m512i], excess: __m512i, factor: __m512) {
        assert_eq!(values.len(), self.columns.div_ceil(ROWS));
        let first_of_group = self.len.is_multiple_of(Q);
        for (values, dwords) in values.iter().zip(&mut self.dwords) {
            if first_of_group {
                dwords[self.len..][..Q].fill(MaybeUninit::new([0; ROWS]));
            }
            dwords[self.len].write(to_array(*values));
        }
        self.ends[self.len].write((excess, factor));
        self.len += 1;
    }

    /// Scores sixteen rows, those from `first` on. `scores` are laid out \[query]\[`count`]; rows
    /// behind the last one are left out.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn score(
        &self,
        columns: &[Columns],
        scales: __m512,
        count: usize,
        first: usize,
        scores: &mut [f32],
    ) {
        assert_eq!(columns.len(), self.columns.div_ceil(ROWS));
        for (group, scores) in (0..self.len).step_by(Q).zip(scores.chunks_mut(Q * count)) {
            let mut sums = [_mm512_setzero_si512(); Q];
            for (chunk, columns) in columns.iter().enumerate() {
                self.add(group, chunk, columns, &mut sums);
            }
            self.end(group, sums, scales, count, first, scores);
        }
    }

    /// Adds the products of a chunk with the queries of a group.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn add(&self, group: usize, chunk: usize, columns: &Columns, sums: &mut [__m512i; Q]) {
        assert!(group.is_multiple_of(Q) && group < self.len && ROWS * chunk < self.columns);
        let dwords = &self.dwords[chunk][group..group + Q];
        // Eight columns are written out. Rows of 32 coordinates have no more.
        let halves = (self.columns - ROWS * chunk).div_ceil(8);
        for (half, columns) in columns.as_chunks::<8>().0.iter().take(halves).enumerate() {
            for (at, column) in columns.iter().enumerate() {
                for (sum, dwords) in sums.iter_mut().zip(dwords) {
                    // SAFETY: `push` sets each group with all its chunks.
                    let dword = unsafe { dwords.assume_init_ref() }[8 * half + at];
                    *sum = _mm512_dpbusd_epi32(*sum, *column, _mm512_set1_epi32(dword));
                }
            }
        }
    }

    /// Writes the scores of a group from its sums. `scores` begin with the group's.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn end(
        &self,
        group: usize,
        sums: [__m512i; Q],
        scales: __m512,
        count: usize,
        first: usize,
        scores: &mut [f32],
    ) {
        let ends = &self.ends[group..self.len];
        for ((sum, end), scores) in sums.into_iter().zip(ends).zip(scores.chunks_exact_mut(count)) {
            // SAFETY: `push` has set it, because it is below `len`.
            let (excess, factor) = unsafe { end.assume_init() };
            store_first(finish(sum, excess, factor, scales), &mut scores[first..]);
        }
    }
}
