//! What scores and weighted sums of rows of codes have in common.

use crate::rows::ROWS;
use core::arch::x86_64::*;

/// Queries in a pass.
pub(crate) const QUERIES: usize = 32;

/// Centroids of sixteen rows, transposed, so that a lane has four bytes of its own row; a query's four bytes go to all
/// lanes: then no sum needs a reduction, which would take as long as the products.
pub(crate) type Columns = [__m512i; ROWS];

/// (f32(sum) · factor) · row scale.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn finish(sums: __m512i, excess: __m512i, factor: __m512, scales: __m512) -> __m512 {
    let sums = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, excess));
    _mm512_mul_ps(_mm512_mul_ps(sums, factor), scales)
}
