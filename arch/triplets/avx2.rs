//! Triplets as octahedral directions and radii.

use super::layout::MAX_FIELDS;
use super::look_up::{Quads, score_with};
use super::scalar::encode_by;
use crate::vectors::scalar::{LANES, halve};
use crate::{IntQuery, Octahedral, Search};
use core::arch::x86_64::*;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn octahedral_encode(
    layout: &Octahedral,
    search: Search,
    x: &[f32],
    scale: f32,
    stream: &mut [u8],
) {
    encode_by::<16>(layout, search, x, scale, stream);
}

/// Four triplets a register: directions are looked up one by one, and widened to words for `vpmaddwd`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_octahedral(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    score_with(layout, stride, bytes, queries, scores, |n, radii, q, groups| sum(n, radii, q, groups));
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(directions: &Quads, radii: &[f32; MAX_FIELDS], query: &Quads, groups: usize) -> f32 {
    let mut lanes = [_mm256_setzero_ps(); 2];
    let products =
        directions.as_flattened().as_chunks::<64>().0.iter().zip(query.as_flattened().as_chunks::<64>().0);
    for ((n, q), radii) in products.zip(radii.as_chunks::<LANES>().0).take(groups) {
        let registers = n.as_chunks::<32>().0.iter().zip(q.as_chunks::<32>().0).zip(radii.as_chunks::<8>().0);
        for (lanes, ((n, q), radii)) in lanes.iter_mut().zip(registers) {
            let dots = _mm256_cvtepi32_ps(dot_quads(n, q));
            *lanes = _mm256_add_ps(*lanes, _mm256_mul_ps(dots, load_ps(radii)));
        }
    }
    let mut sums = [0.0; LANES];
    for (lanes, sums) in lanes.iter().zip(sums.as_chunks_mut::<8>().0) {
        // SAFETY: the array holds the 32 bytes that are written.
        unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), *lanes) };
    }
    halve(sums)
}

/// Σ of the products of four neighbouring signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_quads(n: &[u8; 32], q: &[u8; 32]) -> __m256i {
    // Sums of two products, x and y, then z and 0, of triplets 0 to 3 and 4 to 7.
    let pairs = |k: usize| {
        let words = |bytes: &[u8; 32]| _mm256_cvtepi8_epi16(load(&bytes.as_chunks::<16>().0[k]));
        _mm256_madd_epi16(words(n), words(q))
    };
    // Within halves of the register: triplets 0, 1, 4, 5; 2, 3, 6, 7.
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(pairs(0), pairs(1)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array holds the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_ps(x: &[f32; 8]) -> __m256 {
    // SAFETY: the array holds the 32 bytes that are read.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}
