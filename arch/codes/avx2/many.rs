//! Scores and weighted sums for many queries: products of matrices of words.
//!
//! Rows are looked up once for all of up to 32 queries, into a tile in the first-level cache: pairs of words as `vpmaddwd`
//! takes them, of neighbouring coordinates of eight rows for scores, of neighbouring rows for sums. Queries, and weights,
//! are such pairs as they lie in memory. Four queries' sums stay in registers. A pair of rows (or of coordinates), sixteen
//! coordinates (or rows) and a query take two products and two additions, and one load that splats: the additions bound it,
//! 16 instructions on three ports for 128 coordinates of a row. On a Sapphire Rapids, attention of 32 queries takes .69 of the
//! time that it took with the text for registers (codes of 4 bits, keys and values), .59 with 3 bits.

use crate::codes::scalar::{PAGE, quantize_products, weight_limit};
use crate::codes::wide;
use crate::codes::wide::unpack::{Bytes, Codes, Group, SPARE, Segment, Words, gather, kind};
use crate::registers::avx2::{Ymm, load_ps, store_first, store_ps};
use crate::{IntQuery, MAX_DIM, Packing, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Queries whose sums are in registers.
const FEW: usize = 4;

/// Queries that share a tile.
const QUERIES: usize = 32;

/// Of so many queries, those that are taken here: none where they are too few to be faster than the text for registers, or
/// rows end within a register.
fn taken(queries: usize, at_least: usize, dim: usize) -> usize {
    if queries >= at_least && dim.is_multiple_of(16) { queries / FEW * FEW } else { 0 }
}

/// Sixteen dwords for each pair of coordinates, or of a page's rows.
type Tile = [MaybeUninit<[__m256i; 2]>; MAX_DIM / 2];

/// See `scalar::score_codes`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_codes(
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    // Half bytes are looked up as they come there, two codes or more at a time.
    let halves = packing.radix() == 1 && matches!(packing.raw_bits(), 1 | 2 | 4);
    let taken = taken(queries.len(), if halves { 16 } else { 8 }, rows.dim);
    let (many, rest) = queries.split_at(taken);
    let (many_scores, rest_scores) = scores.split_at_mut(taken * rows.count());
    if !rest.is_empty() {
        wide::score_codes::<Ymm>(packing, rows, centroids, scale, rest, rest_scores);
    }
    if many.is_empty() || rows.bytes.is_empty() {
        return;
    }
    let look_up = LookUp::new(packing, rows.dim, centroids);
    let (count, mut spare, mut tile) = (rows.count(), [0; SPARE], [MaybeUninit::uninit(); MAX_DIM / 2]);
    let segments = look_up.codes.with_margin(rows, &mut spare);
    for first in (0..count).step_by(16) {
        let found = look_up.coordinates(&segments, first, &mut tile);
        let mut scales = [0.0; 16];
        rows.read_scales(first, &mut scales);
        let scores_of = many_scores.chunks_exact_mut(FEW * count);
        for (queries, scores) in many.as_chunks::<FEW>().0.iter().zip(scores_of) {
            let sums = product(found, queries.each_ref().map(|query| query.values));
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

/// See `scalar::accumulate_codes`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_codes(
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let (count, dim) = (rows.count(), rows.dim);
    let taken = taken(acc.len() / dim, 8, dim);
    let (weights, rest_weights) = weights.split_at(taken * count);
    let (acc, rest) = acc.split_at_mut(taken * dim);
    if !rest.is_empty() {
        wide::accumulate_codes::<Ymm>(packing, rows, centroids, scale, rest_weights, rest);
    }
    if acc.is_empty() || rows.bytes.is_empty() {
        return;
    }
    let look_up = LookUp::new(packing, dim, centroids);
    let (mut spare, mut tile) = ([0; SPARE], [MaybeUninit::uninit(); MAX_DIM / 2]);
    // Zeros behind the last row of all pages but full ones.
    let (mut ints, mut products) = ([[0; PAGE]; QUERIES], [0.0; PAGE]);
    for (p, page) in rows.pages(PAGE).enumerate() {
        let segments = look_up.codes.with_margin(&page, &mut spare);
        let mut scales = [0.0; PAGE];
        page.read_scales(0, &mut scales);
        for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * dim)) {
            let mut units = [None; QUERIES];
            for ((weights, ints), unit) in weights.chunks_exact(count).zip(&mut ints).zip(&mut units) {
                let weights = &weights[p * PAGE..][..page.count()];
                for ((product, weight), scale) in products.iter_mut().zip(weights).zip(&scales) {
                    *product = weight * scale;
                }
                ints[weights.len()..].fill(0);
                *unit = quantize_products(&products[..weights.len()], weight_limit(centroids.len()), ints);
            }
            for register in 0..dim / 16 {
                let found = look_up.pairs(&segments, register, &mut tile);
                let fours = ints.as_chunks::<FEW>().0.iter().zip(units.as_chunks::<FEW>().0);
                for ((ints, units), acc) in fours.zip(acc.chunks_exact_mut(FEW * dim)) {
                    let sums = product(found, ints.each_ref().map(|ints| &ints[..]));
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

/// Σ of the tile's pairs times a query's.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn product(tile: &[[__m256i; 2]], queries: [&[i16]; FEW]) -> [[__m256i; 2]; FEW] {
    let mut sums = [[_mm256_setzero_si256(); 2]; FEW];
    let pairs = queries.map(|query| &query.as_chunks::<2>().0[..tile.len()]);
    for (k, [low, high]) in tile.iter().enumerate() {
        for (sums, pairs) in sums.iter_mut().zip(pairs) {
            let [first, second] = pairs[k];
            let pair = _mm256_set1_epi32(i32::from(second) << 16 | i32::from(first as u16));
            sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(*low, pair));
            sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(*high, pair));
        }
    }
    sums
}

/// From rows to tiles.
struct LookUp {
    codes: Codes<Ymm>,
    bytes: Bytes<Ymm>,
    words: Words<Ymm>,
    levels: usize,
}

impl LookUp {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(packing: Packing, dim: usize, centroids: &[i16]) -> Self {
        let words = centroids.len() > 16;
        Self {
            codes: Codes::new(if words { kind::WORDS } else { kind::ORDERED }, packing, dim, 2),
            bytes: Bytes::new(kind::ORDERED, if words { &[] } else { centroids }),
            words: Words::new(if words { centroids } else { &[] }),
            levels: centroids.len(),
        }
    }

    /// Sixteen coordinates of eight rows: of rows i and i + 4 the lower eight, and the upper ones.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn eight_rows(&self, rows: &Group<4>, register: usize) -> [[__m256i; 2]; 4] {
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

    /// A dword of each of sixteen rows for each pair of coordinates; the last row again where there are fewer.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn coordinates<'t>(
        &self,
        segments: &[Segment; 2],
        first: usize,
        tile: &'t mut Tile,
    ) -> &'t [[__m256i; 2]] {
        let groups = [gather(segments, first), gather(segments, first + 8)];
        let registers = self.codes.registers();
        for (register, tile) in tile.as_chunks_mut::<8>().0.iter_mut().enumerate().take(registers) {
            let mut halves = [[_mm256_setzero_si256(); 8]; 2];
            for (half, rows) in halves.iter_mut().zip(&groups) {
                let [a, b, c, d] = self.eight_rows(rows, register);
                for (i, four) in half.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let (ab, cd) = (_mm256_unpacklo_epi32(a[i], b[i]), _mm256_unpacklo_epi32(c[i], d[i]));
                    let (ab_high, cd_high) =
                        (_mm256_unpackhi_epi32(a[i], b[i]), _mm256_unpackhi_epi32(c[i], d[i]));
                    *four = [
                        _mm256_unpacklo_epi64(ab, cd),
                        _mm256_unpackhi_epi64(ab, cd),
                        _mm256_unpacklo_epi64(ab_high, cd_high),
                        _mm256_unpackhi_epi64(ab_high, cd_high),
                    ];
                }
            }
            for ((tile, low), high) in tile.iter_mut().zip(halves[0]).zip(halves[1]) {
                tile.write([low, high]);
            }
        }
        // SAFETY: eight for each register have just been written.
        unsafe { tile[..8 * registers].assume_init_ref() }
    }

    /// Sixteen coordinates of each pair of rows; the last row again behind it.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn pairs<'t>(&self, segments: &[Segment; 2], register: usize, tile: &'t mut Tile) -> &'t [[__m256i; 2]] {
        let eights = segments.iter().map(|segment| segment.count).sum::<usize>().div_ceil(8);
        for (eight, tile) in tile.as_chunks_mut::<4>().0.iter_mut().enumerate().take(eights) {
            let found = self.eight_rows(&gather(segments, 8 * eight), register);
            for (i, [a, b]) in found.as_chunks().0.iter().enumerate() {
                let quads = |i: usize| (_mm256_unpacklo_epi16(a[i], b[i]), _mm256_unpackhi_epi16(a[i], b[i]));
                let ((p, q), (r, s)) = (quads(0), quads(1));
                let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
                let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
                tile[i].write([low(p, q), low(r, s)]);
                tile[i + 2].write([high(p, q), high(r, s)]);
            }
        }
        // SAFETY: four for each eight rows have just been written.
        unsafe { tile[..4 * eights].assume_init_ref() }
    }
}
