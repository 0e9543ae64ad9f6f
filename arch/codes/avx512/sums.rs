//! The common parts of scores and weighted sums of rows of codes.

use crate::rows::ROWS;
use core::arch::x86_64::*;

/// Queries in a pass that share lookups.
pub(crate) const PASS: usize = 64;

/// Queries in a pass with AMX tiles.
pub(crate) const QUERIES: usize = 32;

/// Centroids of sixteen rows, transposed.
///
/// ```text
/// register j    lane 0: bytes 4·j … 4·j+3 of row 0 │ lane 1: of row 1 │ … │ lane 15: of row 15
/// query         its bytes 4·j … 4·j+3, in all lanes
/// ```
///
/// A sum then stays within its lane. Reducing it across lanes would take as long as the products.
pub(crate) type Columns = [__m512i; ROWS];

/// Returns (f32(sum - excess) · factor) · row scale.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn finish(sums: __m512i, excess: __m512i, factor: __m512, scales: __m512) -> __m512 {
    let sums = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, excess));
    _mm512_mul_ps(_mm512_mul_ps(sums, factor), scales)
}
