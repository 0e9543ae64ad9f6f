//! Elementwise operations on eight lanes.

use super::{Avx2, Ymm};
use crate::registers::{Elementwise, Registers, Table};
use core::arch::x86_64::*;

/// Reinterprets a register as floats.
#[inline(always)]
fn floats(x: __m256i) -> __m256 {
    avx2!(_mm256_castsi256_ps(x))
}

/// Reinterprets a register as integers.
#[inline(always)]
fn bits(x: __m256) -> __m256i {
    avx2!(_mm256_castps_si256(x))
}

impl Elementwise for Ymm {
    type V = __m256i;
    const LANES: usize = 8;

    methods! { __m256i;
        add(a, b) = avx2!(bits(_mm256_add_ps(floats(a), floats(b))));
        sub(a, b) = avx2!(bits(_mm256_sub_ps(floats(a), floats(b))));
        multiply(a, b) = avx2!(bits(_mm256_mul_ps(floats(a), floats(b))));
        divide(a, b) = avx2!(bits(_mm256_div_ps(floats(a), floats(b))));
        sqrt(x) = avx2!(bits(_mm256_sqrt_ps(floats(x))));
        min(a, b) = avx2!(bits(_mm256_min_ps(floats(a), floats(b))));
        max(a, b) = avx2!(bits(_mm256_max_ps(floats(a), floats(b))));
        and(a, b) = avx2!(_mm256_and_si256(a, b));
        or(a, b) = avx2!(_mm256_or_si256(a, b));
        xor(a, b) = avx2!(_mm256_xor_si256(a, b));
        add_ints(a, b) = avx2!(_mm256_add_epi32(a, b));
        multiply_ints(a, b) = avx2!(_mm256_mullo_epi32(a, b));
        min_ints(a, b) = avx2!(_mm256_min_epi32(a, b));
        max_ints(a, b) = avx2!(_mm256_max_epi32(a, b));
        signs(x) = avx2!(_mm256_srai_epi32::<31>(x));
        greater(a, b, yes, no) =
            avx2!(_mm256_blendv_epi8(no, yes, bits(_mm256_cmp_ps::<_CMP_GT_OQ>(floats(a), floats(b)))));
        equal(a, b, yes, no) =
            avx2!(_mm256_blendv_epi8(no, yes, bits(_mm256_cmp_ps::<_CMP_EQ_OQ>(floats(a), floats(b)))));
        // A mask is -1.
        count_at_least(counts, x, threshold) =
            avx2!(_mm256_sub_epi32(counts, bits(_mm256_cmp_ps::<_CMP_GE_OQ>(floats(x), floats(threshold)))));
    }

    methods! {
        splat(x: f32) -> __m256i = avx2!(bits(_mm256_set1_ps(x)));
        splat_int(x: i32) -> __m256i = avx2!(_mm256_set1_epi32(x));
    }

    #[inline(always)]
    fn load(x: &[f32]) -> __m256i {
        let x = &x[..8];
        avx2!(bits(_mm256_loadu_ps(x.as_ptr())))
    }

    #[inline(always)]
    fn load_ints(x: &[u32]) -> __m256i {
        let x = &x[..8];
        avx2!(_mm256_loadu_si256(x.as_ptr().cast()))
    }

    #[inline(always)]
    fn store(out: &mut [f32], x: __m256i) {
        let out = &mut out[..8];
        avx2!(_mm256_storeu_ps(out.as_mut_ptr(), floats(x)))
    }

    #[inline(always)]
    fn store_ints(out: &mut [u32], x: __m256i) {
        let out = &mut out[..8];
        avx2!(_mm256_storeu_si256(out.as_mut_ptr().cast(), x))
    }

    #[inline(always)]
    fn quads(of: &[&[f32; 4]; 16]) -> [__m256i; 4] {
        avx2!({
            // Each lane of 128 bits gets every fourth quadruple.
            let a = _mm256_loadu2_m128(of[4].as_ptr(), of[0].as_ptr());
            let b = _mm256_loadu2_m128(of[5].as_ptr(), of[1].as_ptr());
            let c = _mm256_loadu2_m128(of[6].as_ptr(), of[2].as_ptr());
            let d = _mm256_loadu2_m128(of[7].as_ptr(), of[3].as_ptr());
            let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
            [
                bits(_mm256_shuffle_ps::<0x44>(ab, cd)),
                bits(_mm256_shuffle_ps::<0xee>(ab, cd)),
                bits(_mm256_shuffle_ps::<0x44>(ab_high, cd_high)),
                bits(_mm256_shuffle_ps::<0xee>(ab_high, cd_high)),
            ]
        })
    }

    #[inline(always)]
    fn triplets(x: &[f32]) -> [__m256i; 3] {
        let (low, high) = x.split_at(12);
        let [x0, y0, z0] = Avx2::load_triplets(low.first_chunk().unwrap_or(&[0.0; 12]));
        let [x1, y1, z1] = Avx2::load_triplets(high.first_chunk().unwrap_or(&[0.0; 12]));
        avx2!([_mm256_set_m128i(x1, x0), _mm256_set_m128i(y1, y0), _mm256_set_m128i(z1, z0)])
    }

    #[inline(always)]
    fn look_up(table: &Table<Self>, index: __m256i) -> __m256i {
        if table.all.len() <= 8 {
            return avx2!(bits(_mm256_permutevar8x32_ps(floats(table.first[0]), index)));
        }
        let index = Self::and(index, Self::splat_int(table.all.len() as i32 - 1));
        // The mask keeps indices below the length, a power of two.
        avx2!(bits(_mm256_i32gather_ps::<4>(table.all.as_ptr(), index)))
    }
}
