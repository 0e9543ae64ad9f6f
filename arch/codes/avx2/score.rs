//! Scores of packed rows.

use super::codebook::Codebook;
use super::unpack::{CHUNK, LOAD, MAX_CHUNKS, Unpack, kind, step};
use crate::codes::scalar;
use crate::registers::avx2::{load, scales_of_eight, store_first};
use crate::rows::{Block, Blocks, ROWS};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;

/// See `scalar::score_codes`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_codes(
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if 2 + rows.packing.bytes(rows.dim) < LOAD || rows.bytes.is_empty() {
        return scalar::score_codes(rows, centroids, scale, queries, scores);
    }
    let unpack = Unpack::new(rows.packing, rows.dim, 2);
    let codebook = Codebook::new(centroids);
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let small = centroids.len() <= 16;
    for (queries, scores) in queries.chunks(2).zip(scores.chunks_mut(2 * rows.count())) {
        let all = All { unpack: &unpack, codebook: &codebook, blocks: &blocks, scale, queries };
        match (unpack.kind(), small, queries) {
            (1, _, [_]) => all.bytes::<1, 1>(scores),
            (2, _, [_]) => all.bytes::<2, 1>(scores),
            (4, _, [_]) => all.bytes::<4, 1>(scores),
            (kind::STREAM, true, [_]) => all.bytes::<{ kind::STREAM }, 1>(scores),
            (kind::BYTES, true, [_]) => all.bytes::<{ kind::BYTES }, 1>(scores),
            (kind::SEVENS, true, [_]) => all.bytes::<{ kind::SEVENS }, 1>(scores),
            (1, ..) => all.bytes::<1, 2>(scores),
            (2, ..) => all.bytes::<2, 2>(scores),
            (4, ..) => all.bytes::<4, 2>(scores),
            (kind::STREAM, true, _) => all.bytes::<{ kind::STREAM }, 2>(scores),
            (kind::BYTES, true, _) => all.bytes::<{ kind::BYTES }, 2>(scores),
            (kind::SEVENS, true, _) => all.bytes::<{ kind::SEVENS }, 2>(scores),
            (kind::STREAM, ..) => all.words::<{ kind::STREAM }>(scores),
            (kind::BYTES, ..) => all.words::<{ kind::BYTES }>(scores),
            _ => all.words::<{ kind::SEVENS }>(scores),
        }
    }
}

struct All<'a> {
    unpack: &'a Unpack,
    codebook: &'a Codebook,
    blocks: &'a Blocks<'a>,
    scale: f32,
    queries: &'a [IntQuery<'a>],
}

impl All<'_> {
    /// Codebooks of bytes, for at most `Q` queries. `vpmaddubsw` wants an unsigned operand: it gets the query's
    /// magnitudes, and the centroids their signs. Sums of two products stay below 2¹⁵, as both are at most 127.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn bytes<const KIND: u8, const Q: usize>(&self, scores: &mut [f32]) {
        let zero = _mm256_setzero_si256();
        let mut values = [[[zero; 2]; MAX_CHUNKS]; Q];
        for (query, values) in self.queries.iter().zip(&mut values) {
            for (c, values) in values[..self.unpack.count()].iter_mut().enumerate() {
                let mut bytes = [0i8; CHUNK];
                for (i, byte) in bytes.iter_mut().enumerate() {
                    if let Some(j) = self.unpack.coordinate(c, i) {
                        *byte = query.values.get(j).map_or(0, |value| *value as i8);
                    }
                }
                let signed = load(&bytes);
                *values = [_mm256_abs_epi8(signed), signed];
            }
        }
        let ones = _mm256_set1_epi16(1);
        self.each_four(scores, |block: &Block, first| {
            let mut sums = [[zero; 4]; Q];
            for c in (0..self.unpack.count()).step_by(step(KIND)) {
                let windows = self.unpack.windows::<KIND>(block, c);
                for r in 0..4 {
                    let codes = self.unpack.codes::<KIND>(&windows, first + r);
                    for (k, codes) in codes[..step(KIND)].iter().enumerate() {
                        let centroids = self.codebook.bytes(*codes);
                        for (values, sums) in values.iter().zip(&mut sums) {
                            let [magnitudes, signed] = values[c + k];
                            let products =
                                _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(centroids, signed));
                            sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(products, ones));
                        }
                    }
                }
            }
            sums
        });
    }

    /// Codebooks of words, for at most two queries.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn words<const KIND: u8>(&self, scores: &mut [f32]) {
        let zero = _mm256_setzero_si256();
        let mut values = [[[zero; 2]; MAX_CHUNKS]; 2];
        for (query, values) in self.queries.iter().zip(&mut values) {
            for (values, query) in values.iter_mut().zip(query.values.chunks(CHUNK)) {
                let mut words = [0; CHUNK];
                words[..query.len()].copy_from_slice(query);
                // As `Codebook::words` gives them: of each lane's sixteen codes, the first and the last eight.
                let (low, high) = (load(&words[..16]), load(&words[16..]));
                *values = [
                    _mm256_permute2x128_si256::<0x20>(low, high),
                    _mm256_permute2x128_si256::<0x31>(low, high),
                ];
            }
        }
        self.each_four(scores, |block: &Block, first| {
            let mut sums = [[zero; 4]; 2];
            for c in 0..self.unpack.count() {
                let windows = self.unpack.windows::<KIND>(block, c);
                for r in 0..4 {
                    let centroids = self.codebook.words(self.unpack.codes::<KIND>(&windows, first + r)[0]);
                    for (values, sums) in values.iter().zip(&mut sums) {
                        for (centroids, values) in centroids.iter().zip(&values[c]) {
                            sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(*centroids, *values));
                        }
                    }
                }
            }
            sums
        });
    }

    /// Four rows at a time, their sums put together to sixteen and scaled.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn each_four<const Q: usize>(
        &self,
        scores: &mut [f32],
        four: impl Fn(&Block, usize) -> [[__m256i; 4]; Q],
    ) {
        let count = scores.len() / self.queries.len();
        for i in 0..count.div_ceil(ROWS) {
            let block = self.blocks.get(i);
            let mut fours = [[_mm256_setzero_si256(); ROWS / 4]; Q];
            for quarter in 0..ROWS / 4 {
                for (fours, [a, b, c, d]) in fours.iter_mut().zip(four(&block, 4 * quarter)) {
                    // In each lane, the sums of the four rows.
                    fours[quarter] = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
                }
            }
            for ((query, fours), scores) in
                self.queries.iter().zip(&fours).zip(scores.chunks_exact_mut(count))
            {
                let factor = _mm256_set1_ps(query.scale * self.scale);
                for (half, scores) in scores[i * ROWS..].chunks_mut(8).take(2).enumerate() {
                    let [a, b] = [fours[2 * half], fours[2 * half + 1]];
                    let sums = _mm256_add_epi32(
                        _mm256_permute2x128_si256::<0x20>(a, b),
                        _mm256_permute2x128_si256::<0x31>(a, b),
                    );
                    let result = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), factor);
                    store_first(scores, _mm256_mul_ps(result, scales_of_eight(&block, 8 * half)));
                }
            }
        }
    }
}
