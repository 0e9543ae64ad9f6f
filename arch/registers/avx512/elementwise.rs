//! Elementwise operations on sixteen lanes.

use super::load_triplets;
use crate::registers::{Elementwise, Table};
use core::arch::x86_64::*;

/// Registers of 512 bits. Name this type only where AVX-512 is enabled.
pub(crate) struct Zmm;

/// Calls intrinsics in trait methods, which cannot carry `#[target_feature]`.
macro_rules! avx512 {
    ($($body:tt)*) => {{
        // SAFETY: `Zmm` is only used where AVX-512 was detected. Loads and stores take slices of
        // their size.
        unsafe { $($body)* }
    }};
}

/// Reinterprets a register as floats.
#[inline(always)]
fn floats(x: __m512i) -> __m512 {
    avx512!(_mm512_castsi512_ps(x))
}

/// Reinterprets a register as integers.
#[inline(always)]
fn bits(x: __m512) -> __m512i {
    avx512!(_mm512_castps_si512(x))
}

/// Loads four quadruples into one register.
#[inline(always)]
fn side_by_side([a, b, c, d]: [&[f32; 4]; 4]) -> __m512 {
    avx512!({
        let lanes = _mm512_castps128_ps512(_mm_loadu_ps(a.as_ptr()));
        let lanes = _mm512_insertf32x4::<1>(lanes, _mm_loadu_ps(b.as_ptr()));
        let lanes = _mm512_insertf32x4::<2>(lanes, _mm_loadu_ps(c.as_ptr()));
        _mm512_insertf32x4::<3>(lanes, _mm_loadu_ps(d.as_ptr()))
    })
}

impl Elementwise for Zmm {
    type V = __m512i;
    const LANES: usize = 16;

    methods! { __m512i;
        add(a, b) = avx512!(bits(_mm512_add_ps(floats(a), floats(b))));
        sub(a, b) = avx512!(bits(_mm512_sub_ps(floats(a), floats(b))));
        multiply(a, b) = avx512!(bits(_mm512_mul_ps(floats(a), floats(b))));
        divide(a, b) = avx512!(bits(_mm512_div_ps(floats(a), floats(b))));
        sqrt(x) = avx512!(bits(_mm512_sqrt_ps(floats(x))));
        min(a, b) = avx512!(bits(_mm512_min_ps(floats(a), floats(b))));
        max(a, b) = avx512!(bits(_mm512_max_ps(floats(a), floats(b))));
        and(a, b) = avx512!(_mm512_and_si512(a, b));
        or(a, b) = avx512!(_mm512_or_si512(a, b));
        xor(a, b) = avx512!(_mm512_xor_si512(a, b));
        add_ints(a, b) = avx512!(_mm512_add_epi32(a, b));
        multiply_ints(a, b) = avx512!(_mm512_mullo_epi32(a, b));
        min_ints(a, b) = avx512!(_mm512_min_epi32(a, b));
        max_ints(a, b) = avx512!(_mm512_max_epi32(a, b));
        signs(x) = avx512!(_mm512_srai_epi32::<31>(x));
        greater(a, b, yes, no) =
            avx512!(_mm512_mask_mov_epi32(no, _mm512_cmp_ps_mask::<_CMP_GT_OQ>(floats(a), floats(b)), yes));
        equal(a, b, yes, no) =
            avx512!(_mm512_mask_mov_epi32(no, _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(floats(a), floats(b)), yes));
    }

    methods! {
        splat(x: f32) -> __m512i = avx512!(bits(_mm512_set1_ps(x)));
        splat_int(x: i32) -> __m512i = avx512!(_mm512_set1_epi32(x));

    }

    #[inline(always)]
    fn load(x: &[f32]) -> __m512i {
        let x = &x[..16];
        avx512!(_mm512_loadu_si512(x.as_ptr().cast()))
    }

    #[inline(always)]
    fn load_ints(x: &[u32]) -> __m512i {
        let x = &x[..16];
        avx512!(_mm512_loadu_si512(x.as_ptr().cast()))
    }

    #[inline(always)]
    fn store(out: &mut [f32], x: __m512i) {
        let out = &mut out[..16];
        avx512!(_mm512_storeu_si512(out.as_mut_ptr().cast(), x))
    }

    #[inline(always)]
    fn store_ints(out: &mut [u32], x: __m512i) {
        let out = &mut out[..16];
        avx512!(_mm512_storeu_si512(out.as_mut_ptr().cast(), x))
    }

    #[inline(always)]
    fn triplets(x: &[f32]) -> [__m512i; 3] {
        let [x, y, z] = avx512!(load_triplets(x));
        [bits(x), bits(y), bits(z)]
    }

    /// Sixteen loads and a transposition. Unlike tables, their time does not grow with the size of
    /// the set.
    #[inline(always)]
    fn quads(of: &[&[f32; 4]; 16]) -> [__m512i; 4] {
        // Each lane of 128 bits gets every fourth quadruple.
        let a = side_by_side([of[0], of[4], of[8], of[12]]);
        let b = side_by_side([of[1], of[5], of[9], of[13]]);
        let c = side_by_side([of[2], of[6], of[10], of[14]]);
        let d = side_by_side([of[3], of[7], of[11], of[15]]);
        avx512!({
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            [
                bits(_mm512_shuffle_ps::<0x44>(ab, cd)),
                bits(_mm512_shuffle_ps::<0xee>(ab, cd)),
                bits(_mm512_shuffle_ps::<0x44>(ab_high, cd_high)),
                bits(_mm512_shuffle_ps::<0xee>(ab_high, cd_high)),
            ]
        })
    }

    #[inline(always)]
    fn count_at_least(counts: __m512i, x: __m512i, threshold: __m512i) -> __m512i {
        avx512!({
            let reached = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(floats(x), floats(threshold));
            _mm512_mask_add_epi32(counts, reached, counts, _mm512_set1_epi32(1))
        })
    }

    #[inline(always)]
    fn look_up(table: &Table<Self>, index: __m512i) -> __m512i {
        let [a, b, c, d] = table.first;
        match table.all.len() {
            ..17 => avx512!(_mm512_permutexvar_epi32(index, a)),
            17..33 => avx512!(_mm512_permutex2var_epi32(a, index, b)),
            33..65 => avx512!({
                let upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
                let low = _mm512_permutex2var_epi32(a, index, b);
                _mm512_mask_mov_epi32(low, upper, _mm512_permutex2var_epi32(c, index, d))
            }),
            length => {
                let index = Self::and(index, Self::splat_int(length as i32 - 1));
                // The mask keeps indices below the length, a power of two.
                avx512!(_mm512_i32gather_epi32::<4>(index, table.all.as_ptr().cast()))
            }
        }
    }
}
