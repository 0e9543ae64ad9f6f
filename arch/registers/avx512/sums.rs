//! Sums the lanes of several registers at once.

use core::arch::x86_64::*;

/// Adds up four registers within each lane of 128 bits. Together with [`add_lanes`], sixteen
/// registers take 15 additions of two shuffles each. Sixteen separate reductions would take 64.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn add_four([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let pairs = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (ab, cd) = (pairs(a, b), pairs(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// Sums sixteen registers: lane i of the result is the sum of the lanes of register i.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn add_sixteen(sums: &[__m512i; 16]) -> __m512i {
    let mut fours = [_mm512_setzero_si512(); 4];
    for (four, sums) in fours.iter_mut().zip(sums.as_chunks().0) {
        *four = add_four(*sums);
    }
    add_lanes(fours)
}

/// Adds up lanes of 128 bits: lane 4·i + j of the result is the sum of register j of the i-th four.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn add_lanes([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let lanes =
        |a, b| _mm512_add_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    lanes(lanes(a, b), lanes(c, d))
}

/// Sums sixteen registers in the order of `floats::halve`: lane r of the result is the sum of
/// `rows[r]`. It takes 15 additions of two shuffles each, instead of 64 of one.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn halve_rows(rows: &[__m512; 16]) -> __m512 {
    let four = |i: usize| halve_four([rows[i], rows[i + 4], rows[i + 8], rows[i + 12]]);
    join_fours([four(0), four(1), four(2), four(3)])
}

/// Does the first two halvings of four rows. Lane i of 128 bits holds what is left of row i.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn halve_four([a, b, c, d]: [__m512; 4]) -> __m512 {
    let halves = |a, b| _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let (ab, cd) = (halves(a, b), halves(c, d));
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd))
}

/// Does the last two halvings. Lane 4·i + m is the sum of the i-th row of the m-th four.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn join_fours([a, b, c, d]: [__m512; 4]) -> __m512 {
    let pairs = |a, b| {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        let (lower, upper) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(lower), _mm512_castpd_ps(upper))
    };
    let (ab, cd) = (pairs(a, b), pairs(c, d));
    _mm512_add_ps(_mm512_shuffle_ps::<0x88>(ab, cd), _mm512_shuffle_ps::<0xdd>(ab, cd))
}
