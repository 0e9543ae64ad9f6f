//! Kernels for AVX2, with F16C (and FMA only where a product is exact).
//!
//! The same algorithms as in the AVX-512 backend, with what there is: `vpshufb` looks up sixteen bytes, shifts of
//! bytes are multiplications of words, and `vpmaddubsw` with `vpmaddwd` stands in for `vpdpbusd`.

use crate::rows::Block;
use core::arch::x86_64::*;

/// 32 bytes of plain integers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load<T: Lanes + ?Sized>(values: &T) -> __m256i {
    assert!(size_of_val(values) >= 32);
    // SAFETY: the values are as many bytes as are read, and `Lanes` have no padding.
    unsafe { _mm256_loadu_si256(core::ptr::from_ref(values).cast()) }
}

/// Arrays of plain integers.
pub(crate) trait Lanes {}
impl Lanes for [u8; 32] {}
impl Lanes for [i8; 32] {}
impl Lanes for [u16; 16] {}
impl Lanes for [i16] {}

/// The first `values.len()` of 8 values, at most all.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store_first(values: &mut [f32], x: __m256) {
    match values.first_chunk_mut() {
        Some(values) => store_ps(values, x),
        None => {
            let mut all = [0.0; 8];
            store_ps(&mut all, x);
            values.copy_from_slice(&all[..values.len()]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store_ps(values: &mut [f32; 8], x: __m256) {
    // SAFETY: the array holds the 32 bytes that are written.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), x) }
}

/// The f16 scales of eight rows of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn scales_of_eight(block: &Block, first: usize) -> __m256 {
    let scales = block.window(0, 2);
    // In general registers, which have nothing else to do here.
    let mut quads = [0; 2];
    for (i, quad) in quads.iter_mut().enumerate() {
        for r in 0..4 {
            *quad |= i64::from(scales.word(first + 4 * i + r) as u16) << (16 * r);
        }
    }
    _mm256_cvtph_ps(_mm_set_epi64x(quads[1], quads[0]))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_ps(values: &[f32; 8]) -> __m256 {
    // SAFETY: the array holds the 32 bytes that are read.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Up to 8 values, zeros behind them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_first(values: &[f32]) -> __m256 {
    match values.first_chunk() {
        Some(values) => load_ps(values),
        None => {
            let mut all = [0.0; 8];
            all[..values.len()].copy_from_slice(values);
            load_ps(&all)
        }
    }
}

/// Rounds as `scalar::rint` does, by the same two additions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rint(x: __m256) -> __m256 {
    let magic = _mm256_set1_ps(12_582_912.0);
    _mm256_sub_ps(_mm256_add_ps(x, magic), magic)
}

#[inline]
pub(crate) fn first_chunks(values: &mut [f32; 16]) -> &mut [[f32; 8]] {
    values.as_chunks_mut().0
}
