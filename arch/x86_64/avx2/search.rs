//! The path search on AVX2: the steps of `search.rs`.

use crate::search::{self, Floats};
use crate::{Fit, WindowCodebook};
use core::arch::x86_64::*;

/// See `scalar::viterbi_encode`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn viterbi_encode(
    book: &WindowCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
) {
    let packing = book.packing();
    search::viterbi_encode::<Avx2>(book, dim, z, scales, bytes, fits, |codes, planes| {
        if let Some(packing) = packing {
            super::pack(packing, codes, planes);
        }
    });
}

/// Registers of AVX2; to be named where its features are enabled, and nowhere else.
struct Avx2;

/// Intrinsics in a place that cannot carry `#[target_feature]`, a trait.
macro_rules! avx2 {
    ($($body:tt)*) => {{
        // SAFETY: only `viterbi_encode` above uses `Avx2`, and whoever calls it has asked the CPU for AVX2. Loads and
        // stores have as many elements as a register.
        unsafe { $($body)* }
    }};
}

impl Floats for Avx2 {
    type F = __m256;
    const WIDTH: usize = 8;

    #[inline(always)]
    fn splat(x: f32) -> __m256 {
        avx2!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(x: &[f32]) -> __m256 {
        let x = &x[..8];
        avx2!(_mm256_loadu_ps(x.as_ptr()))
    }

    #[inline(always)]
    fn store(out: &mut [f32], x: __m256) {
        let out = &mut out[..8];
        avx2!(_mm256_storeu_ps(out.as_mut_ptr(), x))
    }

    #[inline(always)]
    fn store_bits(out: &mut [u32], x: __m256) {
        let out = &mut out[..8];
        avx2!(_mm256_storeu_ps(out.as_mut_ptr().cast(), x))
    }

    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_add_ps(a, b))
    }

    /// The square: a multiplication costs what the mask of an absolute value would.
    #[inline(always)]
    fn error(y: __m256, centroid: __m256) -> __m256 {
        avx2!({
            let difference = _mm256_sub_ps(y, centroid);
            _mm256_mul_ps(difference, difference)
        })
    }

    #[inline(always)]
    fn square(error: __m256) -> __m256 {
        error
    }

    /// By their bits, which compare as the floats do, on ports that those leave free.
    #[inline(always)]
    fn min(a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_castsi256_ps(_mm256_min_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b))))
    }

    #[inline(always)]
    fn mark_less(bits: __m256, bit: u32, a: __m256, b: __m256) -> __m256 {
        avx2!({
            let less = _mm256_cmpgt_epi32(_mm256_castps_si256(b), _mm256_castps_si256(a));
            let marked = _mm256_and_si256(less, _mm256_set1_epi32(bit as i32));
            _mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(bits), marked))
        })
    }

    #[inline(always)]
    fn less(a: __m256, b: __m256) -> u64 {
        avx2!({
            let less = _mm256_cmpgt_epi32(_mm256_castps_si256(b), _mm256_castps_si256(a));
            _mm256_movemask_ps(_mm256_castsi256_ps(less)) as u64
        })
    }

    #[inline(always)]
    fn twice(x: __m256) -> [__m256; 2] {
        avx2!([
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)),
        ])
    }

    #[inline(always)]
    fn upper(x: __m256) -> __m256 {
        avx2!(_mm256_permute2f128_ps::<1>(x, x))
    }
}
