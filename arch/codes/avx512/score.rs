//! Scores of packed rows, for codebooks of up to 16 levels.

use super::codebook::{Bytes, kind, step};
use super::pairs;
use super::sums::{Columns, QUERIES, finish};
use super::tiles::TileQueries;
use super::unpack::{CHUNK, MAX_CHUNKS};
use crate::codes::layout::Codebook;
use crate::registers::amx::Tiles;
use crate::registers::avx512::{add_four, add_lanes, load_words, narrow, scales, store_first, to_array};
use crate::rows::{Blocks, ROWS};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Implements `scalar::score_codes` for codebooks of up to 16 levels.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_codes(
    tiles: Option<Tiles>,
    book: &Codebook,
    rows: &Rows,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    if rows.bytes.is_empty() {
        return;
    }
    if let [query] = queries
        && pairs::score(book, rows, query, scores)
    {
        return;
    }
    let bytes = Bytes::new(packing, rows.dim, centroids, 0x80);
    match bytes.kind() {
        kind::NIBBLES => score_bytes::<{ kind::NIBBLES }>(tiles, &bytes, rows, scale, queries, scores),
        kind::PAIRS => score_bytes::<{ kind::PAIRS }>(tiles, &bytes, rows, scale, queries, scores),
        kind::RAW => score_bytes::<{ kind::RAW }>(tiles, &bytes, rows, scale, queries, scores),
        kind::BYTES => score_bytes::<{ kind::BYTES }>(tiles, &bytes, rows, scale, queries, scores),
        kind::TERNARY => score_bytes::<{ kind::TERNARY }>(tiles, &bytes, rows, scale, queries, scores),
        _ => score_bytes::<{ kind::SEVENS }>(tiles, &bytes, rows, scale, queries, scores),
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
    /// Orders a query for a kind of rows.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(query: &IntQuery, scale: f32, kind: u8) -> Self {
        let mut values = [_mm512_setzero_si512(); MAX_CHUNKS];
        let excess = query_bytes(query, kind, &mut values);
        Self { values, excess, factor: _mm512_set1_ps(query.scale * scale) }
    }
}

/// Writes the bytes of a query over the zeros in `values`. Returns what the offset of the centroids
/// adds to each sum.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn query_bytes(query: &IntQuery, kind: u8, values: &mut [__m512i; MAX_CHUNKS]) -> __m512i {
    let mut sum = _mm512_setzero_si512();
    for (chunk, values) in query.values.chunks(CHUNK).zip(values.iter_mut()) {
        let (low, high) = chunk.split_at(chunk.len().min(32));
        *values = narrow(load_words(low), load_words(high));
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), *values);
    }
    if step(kind) == 2 {
        for [a, b] in values.as_chunks_mut::<2>().0 {
            let odd = |x| _mm512_srli_epi16::<8>(x);
            (*a, *b) = (narrow(*a, *b), narrow(odd(*a), odd(*b)));
        }
    }
    _mm512_set1_epi32(_mm512_reduce_add_epi32(sum))
}

/// Scores rows of one kind, with one, four, eight or 32 queries at a time.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_bytes<const KIND: u8>(
    tiles: Option<Tiles>,
    bytes: &Bytes,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let count = rows.count();
    let mut rest = (queries, scores);
    while !rest.0.is_empty() {
        // More than two queries are cheaper together, even if a slot stays empty.
        let width = match rest.0.len() {
            1 | 2 => 1,
            few @ 3..8 => few,
            many => (many / 8 * 8).min(QUERIES),
        };
        let (queries, later) = rest.0.split_at(width);
        let (scores, behind) = rest.1.split_at_mut(width * count);
        match queries {
            [query] => {
                score_one::<KIND>(bytes, &blocks, &ByteQuery::new(query, scale, KIND), scores);
            }
            [_, _, _] | [_, _, _, _] => {
                score_many::<KIND, 4>(bytes, &blocks, count, scale, queries, scores);
            }
            _ => match tiles {
                Some(tiles) if queries.len() == QUERIES => {
                    score_tiles::<KIND>(tiles, bytes, &blocks, count, scale, queries, scores);
                }
                _ => score_many::<KIND, 8>(bytes, &blocks, count, scale, queries, scores),
            },
        }
        rest = (later, behind);
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

/// Scores rows with several queries. They share unpacking and lookup, and `Q` of them share each
/// load of a looked-up register.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_many<const KIND: u8, const Q: usize>(
    bytes: &Bytes,
    blocks: &Blocks,
    count: usize,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let mut many = Many::<Q>::new();
    for query in queries {
        let mut values = [_mm512_setzero_si512(); MAX_CHUNKS];
        let excess = query_bytes(query, KIND, &mut values);
        many.push(&values[..bytes.chunks()], excess, _mm512_set1_ps(query.scale * scale));
    }
    let mut columns = [const { MaybeUninit::uninit() }; MAX_CHUNKS];
    for i in 0..count.div_ceil(ROWS) {
        blocks.prefetch(i);
        let block = blocks.get(i);
        if queries.len() <= Q {
            // Use what was looked up at once, without storing it: a fifth faster.
            let mut sums = [_mm512_setzero_si512(); Q];
            for c in (0..bytes.chunks()).step_by(step(KIND)) {
                for (c, columns) in (c..).zip(bytes.transposed::<KIND>(&block, c).iter().take(step(KIND))) {
                    many.add(0, c, columns, &mut sums);
                }
            }
            many.end(0, sums, scales(&block), count, i * ROWS, scores);
            continue;
        }
        let columns = &mut columns[..bytes.chunks()];
        bytes.columns::<KIND>(&block, columns);
        // SAFETY: `columns` has written each.
        let columns = unsafe { columns.assume_init_ref() };
        many.score(columns, scales(&block), count, i * ROWS, scores);
    }
}

/// Scores rows with [`QUERIES`] queries, with AMX tiles.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_tiles<const KIND: u8>(
    tiles: Tiles,
    bytes: &Bytes,
    blocks: &Blocks,
    count: usize,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let mut tiled = TileQueries::new(bytes.chunks());
    for query in queries {
        let mut values = [_mm512_setzero_si512(); MAX_CHUNKS];
        let excess = query_bytes(query, KIND, &mut values);
        tiled.push(&values, excess, _mm512_set1_ps(query.scale * scale));
    }
    // SAFETY: `columns` writes each.
    unsafe {
        tiled.score(tiles, blocks, count, scores, |block, columns| bytes.columns::<KIND>(block, columns))
    }
}

/// Queries in the form in which they are multiplied with [`Columns`], `Q` at a time.
///
/// A page has only some dozen rows, so memory that is not needed is not even set to zero.
pub(crate) struct Many<const Q: usize> {
    /// For each chunk and each query, sixteen dwords. They are set for the first `len` queries,
    /// rounded up to `Q`, and all chunks.
    dwords: [[MaybeUninit<[i32; ROWS]>; QUERIES]; MAX_CHUNKS],
    /// What the offset of the centroids adds to each sum, and the factor. Set for the first `len`.
    ends: [MaybeUninit<(__m512i, __m512)>; QUERIES],
    len: usize,
    chunks: usize,
}

impl<const Q: usize> Many<Q> {
    /// Creates an empty list.
    #[inline]
    pub(crate) fn new() -> Self {
        const { assert!(QUERIES.is_multiple_of(Q)) };
        Self {
            dwords: [const { [const { MaybeUninit::uninit() }; QUERIES] }; MAX_CHUNKS],
            ends: [const { MaybeUninit::uninit() }; QUERIES],
            len: 0,
            chunks: 0,
        }
    }

    /// Appends a query. All must have the same number of chunks.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn push(&mut self, values: &[__m512i], excess: __m512i, factor: __m512) {
        assert!(self.len == 0 || self.chunks == values.len());
        self.chunks = values.len();
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
        assert_eq!(columns.len(), self.chunks);
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
        assert!(group.is_multiple_of(Q) && group < self.len && chunk < self.chunks);
        let dwords = &self.dwords[chunk][group..group + Q];
        for (at, column) in columns.iter().enumerate() {
            for (sum, dwords) in sums.iter_mut().zip(dwords) {
                // SAFETY: `push` sets each group with all its chunks.
                let dword = unsafe { dwords.assume_init_ref() }[at];
                *sum = _mm512_dpbusd_epi32(*sum, *column, _mm512_set1_epi32(dword));
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
