//! Scores: the products of triplets and queries, 16 rows at a time.

use super::*;
use crate::registers::avx512::{halve_rows, load_some, places, scales};
use crate::{Float, IntQuery};

/// Implements `scalar::score_triplets`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_triplets(layout: &TripletLayout, rows: &Rows, queries: &[IntQuery], scores: &mut [f32]) {
    let count = rows.count();
    if count == 0 {
        return;
    }
    if let [query] = queries {
        return by_kind!(score_one(layout, rows, query, scores));
    }
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        by_kind!(score_some(layout, rows, queries, scores));
    }
}

/// Scores rows with one query.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_one<const PARTS: usize, const RADII: usize>(
    layout: &TripletLayout,
    rows: &Rows,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let (bytes, stride) = (rows.bytes, rows.stride);
    let fields = Fields::<PARTS, RADII>::new(layout);
    let rest = Rest::new(layout);
    let mut queries = [[Query::none(); TOGETHER]; GROUPS.div_ceil(TOGETHER)];
    let split = (3 * layout.triplets()).min(layout.dim);
    for (slot, values) in queries.as_flattened_mut().iter_mut().zip(query.values[..split].chunks(3 * LANES)) {
        *slot = Query::new(values);
    }
    for (b, (rows, scores)) in rows.pages(BATCH).zip(scores.chunks_mut(BATCH)).enumerate() {
        let mut sums = [_mm512_setzero_ps(); BATCH];
        for (chunk, query) in Chunk::all(layout).zip(&queries) {
            let rows = Batch { bytes, stride, first: b * BATCH, count: scores.len(), chunk };
            let sums = &mut sums;
            match (RADII > 1, chunk.is_long, chunk.groups) {
                (false, false, ..=2) => add_products::<PARTS, RADII, false, 2>(&fields, &rows, query, sums),
                (false, false, 3) => add_products::<PARTS, RADII, false, 3>(&fields, &rows, query, sums),
                (false, true, 3) => add_products::<PARTS, RADII, true, 3>(&fields, &rows, query, sums),
                _ => add_products::<PARTS, RADII, true, TOGETHER>(&fields, &rows, query, sums),
            }
        }
        let rests = rest.sums(rest.centroids(&rows), query.values);
        finish(layout, halve_rows(&sums), rests, row_scales(layout, &rows), query.scale, scores);
    }
}

/// A chunk of up to 16 rows of a page.
struct Batch<'a> {
    bytes: &'a [u8],
    stride: usize,
    first: usize,
    /// 1 to 16.
    count: usize,
    chunk: Chunk,
}

impl Batch<'_> {
    /// Loads `TURNS` rows from `row` on. Beyond the last row it repeats that row.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn load<const LONG: bool>(&self, row: usize) -> [[__m512i; 2]; TURNS] {
        let mut at = [self.first * self.stride + self.chunk.at; TURNS];
        for (r, at) in at.iter_mut().enumerate() {
            *at += (row + r).min(self.count - 1) * self.stride;
        }
        let mut loaded = [[_mm512_setzero_si512(); 2]; TURNS];
        if at[TURNS - 1] + if LONG { 128 } else { 64 } <= self.bytes.len() {
            for (loaded, at) in loaded.iter_mut().zip(at) {
                // SAFETY: no row begins behind the last one, which this many bytes follow.
                unsafe {
                    let from = self.bytes.as_ptr().add(at);
                    *loaded = [_mm512_loadu_si512(from.cast()); 2];
                    if LONG {
                        loaded[1] = _mm512_loadu_si512(from.add(64).cast());
                    }
                }
            }
        } else {
            for (loaded, at) in loaded.iter_mut().zip(at) {
                *loaded = [load_at(self.bytes, at); 2];
                if LONG {
                    loaded[1] = load_at(self.bytes, at + 64);
                }
            }
        }
        loaded
    }
}

/// Number of rows whose steps alternate.
///
/// One row is a long chain of dependent instructions. In program order, the CPU's queues hold only
/// two or three whole rows.
const TURNS: usize = 4;

/// Computes sums\[row] += radius·(q·n) for the `GROUPS` groups of a chunk.
///
/// `LONG` says whether the fields have more than 64 bytes. Groups beyond the last have queries of
/// zero. As a separate function it keeps its tables in registers for all rows.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn add_products<const PARTS: usize, const RADII: usize, const LONG: bool, const GROUPS: usize>(
    fields: &Fields<PARTS, RADII>,
    rows: &Batch,
    query: &[Query; TOGETHER],
    sums: &mut [__m512; BATCH],
) {
    for (turn, sums) in
        sums.as_chunks_mut::<TURNS>().0.iter_mut().enumerate().take(rows.count.div_ceil(TURNS))
    {
        let groups = fields.decode_rows::<LONG, TURNS>(rows.load::<LONG>(TURNS * turn));
        for (g, query) in query.iter().enumerate().take(GROUPS) {
            for (sum, groups) in sums.iter_mut().zip(&groups) {
                *sum = _mm512_add_ps(*sum, query.products(groups[g], fields.radius(groups[g])));
            }
        }
    }
}

/// Scores rows with several queries.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_some<const PARTS: usize, const RADII: usize>(
    layout: &TripletLayout,
    all: &Rows,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = all.count();
    let fields = Fields::<PARTS, RADII>::new(layout);
    let rest = Rest::new(layout);
    let split = (3 * layout.triplets()).min(layout.dim);
    let mut groups = [[Query::none(); GROUPS]; QUERIES];
    for (groups, query) in groups.iter_mut().zip(queries) {
        for (group, values) in groups.iter_mut().zip(query.values[..split].chunks(3 * LANES)) {
            *group = Query::new(values);
        }
    }
    let used = layout.triplets().div_ceil(LANES);
    let zero = _mm512_setzero_ps();
    let mut decoded = [[(_mm512_setzero_si512(), zero); GROUPS]; BATCH];
    for (b, batch) in all.pages(BATCH).enumerate() {
        let rows = BATCH * b..(BATCH * (b + 1)).min(count);
        for (row, decoded) in rows.clone().zip(&mut decoded) {
            for (chunk, decoded) in Chunk::all(layout).zip(decoded.chunks_mut(TOGETHER)) {
                let groups = fields.decode(chunk.load(all.bytes, row * all.stride));
                for (decoded, group) in decoded.iter_mut().zip(groups) {
                    *decoded = (group, fields.radius(group));
                }
            }
        }
        let rests = rest.centroids(&batch);
        let scales = row_scales(layout, &batch);
        for ((groups, query), scores) in groups.iter().zip(queries).zip(scores.chunks_exact_mut(count)) {
            let mut sums = [zero; BATCH];
            let sums_of_rows = &mut sums[..rows.len()];
            match used {
                ..=2 => sum_products::<2>(groups, &decoded, sums_of_rows),
                3 => sum_products::<3>(groups, &decoded, sums_of_rows),
                4 => sum_products::<4>(groups, &decoded, sums_of_rows),
                _ => sum_products::<GROUPS>(groups, &decoded, sums_of_rows),
            }
            let rests = rest.sums(rests, query.values);
            finish(layout, halve_rows(&sums), rests, scales, query.scale, &mut scores[rows.clone()]);
        }
    }
}

/// Computes sums\[row] = Σ radius·(q·n) of the first `COUNT` groups. Groups beyond the last have
/// queries of zero.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sum_products<const COUNT: usize>(
    queries: &[Query; GROUPS],
    decoded: &[[(__m512i, __m512); GROUPS]; BATCH],
    sums: &mut [__m512],
) {
    for (sum, decoded) in sums.iter_mut().zip(decoded) {
        *sum = _mm512_setzero_ps();
        for (query, (group, radius)) in queries.iter().zip(decoded).take(COUNT) {
            *sum = _mm512_add_ps(*sum, query.products(*group, *radius));
        }
    }
}

/// A group of a query: bytes 0, x, y and z in each lane, and the sum that cancels the tables' 128.
#[derive(Clone, Copy)]
struct Query {
    values: __m512i,
    start: __m512i,
}

impl Query {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn none() -> Self {
        Self { values: _mm512_setzero_si512(), start: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(values: &[i16]) -> Self {
        let at = |k: usize| _mm512_cvtepi16_epi8(load_words(values.get(k..).unwrap_or(&[])));
        let bytes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(at(0)), at(32));
        let values = _mm512_maskz_permutexvar_epi8(0xeeee_eeee_eeee_eeee, load(&SPREAD), bytes);
        let zero = _mm512_setzero_si512();
        let sums = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(-128), values);
        Self { values, start: _mm512_sub_epi32(zero, sums) }
    }

    /// Returns radius·(q·n).
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn products(&self, group: __m512i, radius: __m512) -> __m512 {
        let dot = _mm512_dpbusd_epi32(self.start, group, self.values);
        _mm512_mul_ps(_mm512_cvtepi32_ps(dot), radius)
    }
}

/// Spreads three bytes to each lane, behind a byte that is left out.
const SPREAD: [u8; 64] = places!(i => if i % 4 > 0 { i / 4 * 3 + i % 4 - 1 } else { 0 });

/// Returns the scales of up to 16 rows.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn row_scales(layout: &TripletLayout, rows: &Rows) -> __m512 {
    if let Some(scales) = rows.scales {
        return load_some(scales);
    }
    if layout.scale != Float::F32 && rows.count() == BATCH {
        return scales(&Block::of(rows.bytes, rows.stride));
    }
    let bits = windows(rows, 0);
    match layout.scale {
        Float::F32 => _mm512_castsi512_ps(bits),
        _ => _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)),
    }
}

/// Computes the scores of a batch of rows from its sums.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn finish(
    layout: &TripletLayout,
    sums: __m512,
    rest: __m512i,
    row_scales: __m512,
    query_scale: f32,
    scores: &mut [f32],
) {
    let sums = _mm512_mul_ps(sums, _mm512_set1_ps(layout.unit()));
    let rest = _mm512_mul_ps(_mm512_cvtepi32_ps(rest), _mm512_set1_ps(layout.rest_scale));
    let scores_of_rows =
        _mm512_mul_ps(_mm512_mul_ps(_mm512_add_ps(sums, rest), _mm512_set1_ps(query_scale)), row_scales);
    store_first(scores_of_rows, scores);
}
