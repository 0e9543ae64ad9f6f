//! Scores and weighted sums for many queries, as products of matrices of words, or of bytes with
//! AVX-VNNI.
//!
//! Rows are looked up once for up to 64 queries, into a tile in the first-level cache. The tile has
//! pairs of words as `vpmaddwd` takes them:
//!
//! ```text
//! scores    a pair = two neighbouring coordinates of one row, a row in each dword; times the query's pair
//! sums      a pair = one coordinate of two neighbouring rows, a coordinate in each dword; times two weights
//!
//! tile      │r₀: x₀ x₁│r₁: x₀ x₁│ … │r₁₅: x₀ x₁│      · │q₀ q₁│ splat to all dwords
//!           │r₀: x₂ x₃│r₁: x₂ x₃│ … │r₁₅: x₂ x₃│      · │q₂ q₃│
//! ```
//!
//! Queries and weights are such pairs as they lie in memory. The sums of four queries stay in
//! registers. A pair of coordinates (or rows), sixteen rows (or coordinates) and a query take two
//! products, two additions and one load that splats. The additions bound the time: 16 instructions
//! on three ports for 128 coordinates of a row.
//!
//! On Sapphire Rapids, attention of 32 queries takes 0.69 of its time with `wide.rs` for codes of 4
//! bits, and 0.59 for 3 bits. With AVX-VNNI, scores of codebooks of bytes are products of fours of
//! bytes (`vpdpbusd`), which take 0.68 of the time of words with 32 queries.
//!
//! The caller looks rows up: codes in this file, trellis codes in `trellis/avx2/many.rs`.

use crate::codes::layout::Codebook;
use crate::codes::scalar::{PAGE, quantize_products, weight_limit};
use crate::codes::wide;
use crate::codes::wide::unpack::{Bytes, Codes, Group, SPARE, Words, gather, kind};
use crate::registers::Integers;
use crate::registers::avx2::{Ymm, load_ps, store_first, store_ps};
use crate::rows::{each_page_mut_of, each_page_of};
use crate::{IntQuery, MAX_DIM, Packing, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

/// Queries whose sums are in registers.
const FEW: usize = 4;

/// Queries that share a tile.
pub(crate) const QUERIES: usize = 64;

/// Rows of a tile of coordinates.
pub(crate) const ROWS: usize = crate::rows::ROWS;

/// Returns how many of the queries are taken here: none if they are too few to be faster than one
/// by one.
pub(crate) fn taken(queries: usize, at_least: usize) -> usize {
    if queries >= at_least { queries / FEW * FEW } else { 0 }
}

/// Sixteen dwords for each pair of coordinates, or of a page's rows, or for each four coordinates.
pub(crate) type Tile = [[__m256i; 2]];

/// Memory for the largest possible number of values. Only the used ones are written.
pub(crate) struct Buffer<T, const N: usize>([MaybeUninit<T>; N]);

impl<T: Copy, const N: usize> Buffer<T, N> {
    pub(crate) const EMPTY: Self = Self([const { MaybeUninit::uninit() }; N]);

    /// Returns the first `count` values, filled with `value`.
    #[inline(always)]
    pub(crate) fn first(&mut self, count: usize, value: T) -> &mut [T] {
        let places = &mut self.0[..count];
        places.fill(MaybeUninit::new(value));
        // SAFETY: all have just been written.
        unsafe { places.assume_init_mut() }
    }
}

/// Sixteen coordinates of eight rows as words: for rows i and i + 4, the lower eight coordinates,
/// then the upper ones.
pub(crate) type Eight = [[__m256i; 2]; 4];

/// Up to [`QUERIES`] queries, prepared for all pages of a call.
pub(crate) struct Queries<'a> {
    queries: &'a [IntQuery<'a>],
    /// Their values as fours of bytes, if tiles have fours.
    quads: &'a [[i8; 4]],
}

/// Memory for [`Queries`].
pub(crate) type Quads = Buffer<[i8; 4], { QUERIES * MAX_DIM / 4 }>;

impl<'a> Queries<'a> {
    /// Prepares queries, with `quads` for tiles of fours.
    #[inline(never)]
    pub(crate) fn new(queries: &'a [IntQuery<'a>], quads: bool, memory: &'a mut Quads) -> Self {
        let dim = queries.first().map_or(0, |query| query.values.len());
        let memory = memory.first(if quads { queries.len() * dim / 4 } else { 0 }, [0; 4]);
        for (query, quads) in queries.iter().zip(memory.chunks_exact_mut((dim / 4).max(1))) {
            for (quad, words) in quads.iter_mut().zip(query.values.as_chunks().0) {
                *quad = words.map(|word| word as i8);
            }
        }
        Self { queries, quads: memory }
    }
}

/// Scores a page with as many queries as [`taken`] returned.
///
/// `coordinates` fills the tile for [`ROWS`] rows from one on, as [`turn_coordinates`] does, for
/// all registers of sixteen. With `QUADS` it does so as [`turn_quads`] does, with the bias of `L`.
/// It is called once for all queries. It is a `dyn`, so that this function is compiled once, and
/// not for every shape of trellis codes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score<L: Integers<V = __m256i>, const QUADS: bool>(
    rows: &Rows,
    scale: f32,
    Queries { queries, quads }: &Queries,
    scores: &mut [f32],
    coordinates: &mut dyn FnMut(usize, &mut Tile),
) {
    let (count, each, mut buffer) = (rows.count(), rows.dim / 4, Buffer::<_, { MAX_DIM / 2 }>::EMPTY);
    let tile = buffer.first(if QUADS { each } else { 2 * each }, [_mm256_setzero_si256(); 2]);
    for first in (0..count).step_by(ROWS) {
        rows.prefetch_some(first, ROWS);
        coordinates(first, tile);
        let mut scales = [0.0; ROWS];
        rows.read_scales(first, &mut scales);
        let scores_of = scores.chunks_exact_mut(FEW * count);
        for (i, (queries, scores)) in queries.as_chunks::<FEW>().0.iter().zip(scores_of).enumerate() {
            let mut values: [&[i16]; FEW] = [&[]; FEW];
            values.iter_mut().zip(queries).for_each(|(values, query)| *values = query.values);
            let sums = if QUADS {
                quad_product::<L>(tile, &quads[FEW * i * each..][..FEW * each])
            } else {
                product::<L>(tile, &values)
            };
            for ((query, sums), scores) in queries.iter().zip(sums).zip(scores.chunks_exact_mut(count)) {
                let factor = _mm256_set1_ps(query.scale * scale);
                let ours = scores[first..].chunks_mut(8);
                for ((sums, scales), scores) in sums.into_iter().zip(scales.as_chunks().0).zip(ours) {
                    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), factor);
                    store_first(scores, _mm256_mul_ps(scaled, load_ps(scales)));
                }
            }
        }
    }
}

/// Multiplies the tile's fours of bytes, minus their bias, with those of each query.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad_product<L: Integers<V = __m256i>>(tile: &Tile, quads: &[[i8; 4]]) -> [[__m256i; 2]; FEW] {
    let mut sums = [[_mm256_setzero_si256(); 2]; FEW];
    let (one, _) = quads.split_at(tile.len());
    debug_assert!(FEW * one.len() == quads.len());
    let mut of_query = [one; FEW];
    for ((of_query, quads), sums) in of_query.iter_mut().zip(quads.chunks_exact(tile.len())).zip(&mut sums) {
        let sum: i32 = quads.as_flattened().iter().map(|value| i32::from(*value)).sum();
        (*of_query, *sums) = (quads, [_mm256_set1_epi32(-i32::from(L::BIAS) * sum); 2]);
    }
    for (k, [low, high]) in tile.iter().enumerate() {
        for (sums, quads) in sums.iter_mut().zip(of_query) {
            let quad = _mm256_set1_epi32(i32::from_le_bytes(quads[k].map(|byte| byte as u8)));
            sums[0] = L::dot_signed(sums[0], *low, quad, quad);
            sums[1] = L::dot_signed(sums[1], *high, quad, quad);
        }
    }
    sums
}

/// Adds weighted rows for as many queries as [`taken`] returned, for centroids of `levels` levels.
///
/// `pairs` fills the tile for a range of rows (a page) and sixteen coordinates, as [`turn_pairs`]
/// does, eight rows at a time. Registers come in order, page by page.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate<L: Integers<V = __m256i>>(
    rows: &Rows,
    levels: usize,
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
    pairs: &mut dyn FnMut(Range<usize>, usize, &mut Tile),
) {
    let (count, dim, mut buffer) = (rows.count(), rows.dim, Buffer::<_, { MAX_DIM / 2 }>::EMPTY);
    let (stride, mut memory) = (count.min(PAGE).next_multiple_of(8), Buffer::<_, { QUERIES * PAGE }>::EMPTY);
    let together = QUERIES.min(acc.len() / dim);
    let (ints, mut products) = (memory.first(together * stride, 0), [0.0; PAGE]);
    for (p, page) in rows.pages(PAGE).enumerate() {
        let range = p * PAGE..p * PAGE + page.count();
        rows.prefetch_some(range.start, PAGE);
        // Four pairs for every eight rows.
        let tile = buffer.first(4 * range.len().div_ceil(8), [_mm256_setzero_si256(); 2]);
        let mut scales = [0.0; PAGE];
        page.read_scales(0, &mut scales);
        for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * dim)) {
            let mut units = [None; QUERIES];
            let each = weights.chunks_exact(count).zip(ints.chunks_exact_mut(stride));
            for ((weights, ints), unit) in each.zip(&mut units) {
                let weights = &weights[range.clone()];
                for ((product, weight), scale) in products.iter_mut().zip(weights).zip(&scales) {
                    *product = weight * scale;
                }
                // Rows behind the last one of a short page have a weight of 0.
                ints[weights.len()..].fill(0);
                *unit = quantize_products(&products[..weights.len()], weight_limit(levels), ints);
            }
            for register in 0..dim / 16 {
                pairs(range.clone(), register, tile);
                let fours = ints.chunks_exact(FEW * stride).zip(units.as_chunks::<FEW>().0);
                for ((ints, units), acc) in fours.zip(acc.chunks_exact_mut(FEW * dim)) {
                    let mut of_query = [&ints[..0]; FEW];
                    of_query.iter_mut().zip(ints.chunks_exact(stride)).for_each(|(slot, ints)| *slot = ints);
                    let sums = product::<L>(tile, &of_query);
                    for ((sums, unit), acc) in sums.into_iter().zip(units).zip(acc.chunks_exact_mut(dim)) {
                        let Some(unit) = unit else { continue };
                        let factor = _mm256_set1_ps(unit * scale);
                        let ours = acc[16 * register..].as_chunks_mut().0;
                        for (sums, acc) in sums.into_iter().zip(ours) {
                            let added = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), factor);
                            store_ps(acc, _mm256_add_ps(load_ps(acc), added));
                        }
                    }
                }
            }
        }
    }
}

/// Multiplies the tile's pairs with those of each query.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn product<L: Integers<V = __m256i>>(tile: &[[__m256i; 2]], queries: &[&[i16]; FEW]) -> [[__m256i; 2]; FEW] {
    let mut sums = [[_mm256_setzero_si256(); 2]; FEW];
    let mut pairs: [&[[i16; 2]]; FEW] = [&[]; FEW];
    for (pairs, query) in pairs.iter_mut().zip(queries) {
        *pairs = &query.as_chunks().0[..tile.len()];
    }
    for (k, [low, high]) in tile.iter().enumerate() {
        for (sums, pairs) in sums.iter_mut().zip(pairs) {
            let [first, second] = pairs[k];
            let pair = _mm256_set1_epi32(i32::from(second) << 16 | i32::from(first as u16));
            sums[0] = L::dot_words(sums[0], *low, pair);
            sums[1] = L::dot_words(sums[1], *high, pair);
        }
    }
    sums
}

/// Transposes sixteen coordinates of sixteen rows into the tile's eight pairs, with a dword for
/// each row. In the drawing, r·k is pair k of row r: two words, one dword.
///
/// ```text
/// a, b, c, d   0·0 0·1 0·2 0·3 │ 4·0 …      1·0 1·1 … │ 5·0 …      2·0 … │ 6·0 …      3·0 … │ 7·0 …
/// ab           0·0 1·0 0·1 1·1 │ 4·0 5·0 …                         cd likewise, of rows 2 and 3
/// tile         0·0 1·0 2·0 3·0 │ 4·0 5·0 6·0 7·0                   pair 0 of rows 0 to 7: `low`
///              0·1 1·1 2·1 3·1 │ 4·1 5·1 6·1 7·1                   pair 1
/// ```
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn turn_coordinates(rows: [Eight; 2], tile: &mut Tile) {
    let mut halves = [[_mm256_setzero_si256(); 8]; 2];
    for (half, [a, b, c, d]) in halves.iter_mut().zip(rows) {
        for (i, four) in half.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let (ab, cd) = (_mm256_unpacklo_epi32(a[i], b[i]), _mm256_unpacklo_epi32(c[i], d[i]));
            let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a[i], b[i]), _mm256_unpackhi_epi32(c[i], d[i]));
            *four = [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ];
        }
    }
    for ((tile, low), high) in tile[..8].iter_mut().zip(halves[0]).zip(halves[1]) {
        *tile = [low, high];
    }
}

/// Transposes bytes of sixteen coordinates, of rows i and i + 4, into the tile's four fours of
/// coordinates of sixteen rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn turn_quads(rows: [[__m256i; 4]; 2], tile: &mut Tile) {
    for (half, [a, b, c, d]) in rows.into_iter().enumerate() {
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        tile[0][half] = _mm256_unpacklo_epi64(ab, cd);
        tile[1][half] = _mm256_unpackhi_epi64(ab, cd);
        tile[2][half] = _mm256_unpacklo_epi64(ab_high, cd_high);
        tile[3][half] = _mm256_unpackhi_epi64(ab_high, cd_high);
    }
}

/// Interleaves sixteen coordinates of eight rows into the tile's four pairs of rows. In the drawing,
/// r·x is coordinate x of row r, one word.
///
/// ```text
/// a[0], b[0]   0·0 0·1 … 0·7 │ 4·0 4·1 … 4·7              1·0 1·1 … 1·7 │ 5·0 5·1 … 5·7
/// p            0·0 1·0 0·1 1·1 … 0·3 1·3 │ 4·0 5·0 …      q: coordinates 4 to 7
/// tile[0]      p's lower lane │ q's lower lane            rows 0 and 1; r and s: coordinates 8 to 15
/// tile[2]      p's upper lane │ q's upper lane            rows 4 and 5
/// ```
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn turn_pairs(rows: Eight, tile: &mut Tile) {
    let tile = &mut tile[..4];
    for (i, [a, b]) in rows.as_chunks().0.iter().enumerate() {
        let quads = |i: usize| (_mm256_unpacklo_epi16(a[i], b[i]), _mm256_unpackhi_epi16(a[i], b[i]));
        let ((p, q), (r, s)) = (quads(0), quads(1));
        let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
        let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
        tile[i] = [low(p, q), low(r, s)];
        tile[i + 2] = [high(p, q), high(r, s)];
    }
}

/// Implements `scalar::score_codes`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_codes<L: Integers<V = __m256i>>(
    book: &Codebook,
    pages: &[Rows],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    let Some(dim) = pages.first().map(|rows| rows.dim) else { return };
    // `wide.rs` looks half bytes up as they come, two codes or more at a time, so it wins up to
    // more queries.
    let halves = packing.radix() == 1 && matches!(packing.raw_bits(), 1 | 2 | 4);
    let many = taken_codes(dim, queries.len(), if halves { 16 } else { 8 });
    wide::score_some::<L>(book, pages, (queries, many..queries.len()), scores);
    if many == 0 {
        return;
    }
    let quads = L::BIAS > 0 && centroids.len() <= 16;
    let look_up = LookUp::new(packing, dim, centroids, if quads { L::BIAS } else { 0 });
    let (mut memory, mut spare) = (Buffer::EMPTY, [0; SPARE]);
    for first in (0..many).step_by(QUERIES) {
        let some = first..many.min(first + QUERIES);
        let ours = Queries::new(&queries[some.clone()], quads, &mut memory);
        for (rows, scores) in each_page_mut_of(pages, queries.len(), some, scores) {
            let segments = look_up.codes.with_margin(rows, &mut spare);
            if quads {
                score::<L, true>(rows, scale, &ours, scores, &mut |first, tile| {
                    let [low, high] = [gather(&segments, first), gather(&segments, first + 8)];
                    for register in 0..look_up.codes.registers() {
                        let bytes =
                            [look_up.bytes_of_eight(&low, register), look_up.bytes_of_eight(&high, register)];
                        turn_quads(bytes, &mut tile[4 * register..]);
                    }
                });
                continue;
            }
            score::<L, false>(rows, scale, &ours, scores, &mut |first, tile| {
                let [low, high] = [gather(&segments, first), gather(&segments, first + 8)];
                for register in 0..look_up.codes.registers() {
                    let eights = [look_up.eight_rows(&low, register), look_up.eight_rows(&high, register)];
                    turn_coordinates(eights, &mut tile[8 * register..]);
                }
            });
        }
    }
}

/// Implements `scalar::accumulate_codes`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_codes<L: Integers<V = __m256i>>(
    book: &Codebook,
    pages: &[Rows],
    weights: &[f32],
    acc: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    let Some(dim) = pages.first().map(|rows| rows.dim) else { return };
    let queries = acc.len() / dim;
    let many = taken_codes(dim, queries, 8);
    let (acc, rest) = acc.split_at_mut(many * dim);
    wide::accumulate_some::<L>(book, pages, weights, (queries, many), rest);
    if many == 0 {
        return;
    }
    let (look_up, mut spare) = (LookUp::new(packing, dim, centroids, 0), [0; SPARE]);
    for (rows, weights) in each_page_of(pages, queries, 0..many, weights) {
        let segments = look_up.codes.with_margin(rows, &mut spare);
        accumulate::<L>(rows, centroids.len(), scale, weights, acc, &mut |page, register, tile| {
            for (first, tile) in page.step_by(8).zip(tile.chunks_exact_mut(4)) {
                turn_pairs(look_up.eight_rows(&gather(&segments, first), register), tile);
            }
        });
    }
}

/// Returns how many queries are [`taken`]. None if rows end within a register.
fn taken_codes(dim: usize, queries: usize, at_least: usize) -> usize {
    if dim.is_multiple_of(16) { taken(queries, at_least) } else { 0 }
}

/// Looks up rows of codes as words, or as bytes that a bias makes unsigned.
struct LookUp {
    codes: Codes<Ymm>,
    /// The table of a codebook of up to 16 levels.
    bytes: Bytes<Ymm>,
    /// The table of a larger one.
    words: Words<Ymm>,
    levels: usize,
}

impl LookUp {
    /// Prepares the lookup of codes of one packing.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(packing: Packing, dim: usize, centroids: &[i16], bias: u8) -> Self {
        let words = centroids.len() > 16;
        Self {
            codes: Codes::new(if words { kind::WORDS } else { kind::ORDERED }, packing, dim, 2),
            bytes: Bytes::new(kind::ORDERED, if words { &[] } else { centroids }, bias),
            words: Words::new(if words { centroids } else { &[] }),
            levels: centroids.len(),
        }
    }

    /// Looks up bytes of eight rows, for codebooks of up to sixteen levels.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn bytes_of_eight(&self, rows: &Group<4>, register: usize) -> [__m256i; 4] {
        let mut found = self.codes.unit::<{ kind::ORDERED }, 4>(rows, register);
        for found in &mut found {
            *found = self.bytes.lookup(0, *found);
        }
        found
    }

    /// Looks up words of eight rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn eight_rows(&self, rows: &Group<4>, register: usize) -> Eight {
        if self.levels > 16 {
            return self.words.lookup(self.codes.unit::<{ kind::WORDS }, 4>(rows, register));
        }
        let mut found = [[_mm256_setzero_si256(); 2]; 4];
        let codes = self.codes.unit::<{ kind::ORDERED }, 4>(rows, register);
        for (found, codes) in found.iter_mut().zip(codes) {
            *found = self.bytes.words(0, codes);
        }
        found
    }
}
