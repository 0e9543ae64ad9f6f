//! Kernels for planes of signs.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod layout;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::{Backend, Float, MAX_DIM, SignQuery, SignRows};

impl Backend {
    /// Packs signs: bit = x ≥ 0, so -0 is positive. Least significant bit first, in whole bytes.
    ///
    /// # Panics
    /// If there are not 8 values for each byte.
    pub fn pack_signs(self, x: &[f32], plane: &mut [u8]) {
        contract!(x.len() == 8 * plane.len());
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: scalar;
            pack_signs(x: &[f32], plane: &mut [u8])
        )
    }

    /// Unpacks signs: out = scale where the bit is set, and -scale elsewhere.
    ///
    /// # Panics
    /// If there are not 8 values for each byte.
    pub fn unpack_signs(self, plane: &[u8], scale: f32, out: &mut [f32]) {
        contract!(out.len() == 8 * plane.len());
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            unpack_signs(plane: &[u8], scale: f32, out: &mut [f32])
        )
    }

    /// Adds estimates to the scores, laid out \[query]\[row]: (Σ ±q, an exact integer) · (query
    /// scale · `scale`) · row scale.
    ///
    /// # Panics
    /// If the width is not a multiple of 8, or a row's scale or plane lies outside its stride. If
    /// queries or scores do not fit the rows.
    pub fn score_signs(self, rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]) {
        check_sign_rows(rows);
        contract!(queries.iter().all(|query| query.values.len() == rows.dim));
        contract!(scores.len() == queries.len() * rows.count());
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: wide + dots;
            score_signs(rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32])
        )
    }

    /// Adds Σ ±weight·row scale·`scale` to `acc`, laid out \[query]\[dim].
    ///
    /// Weights and sums are integers within each run of 256 rows. Weights, laid out \[query]\[row],
    /// must be at most [`MAX_WEIGHT`](crate::MAX_WEIGHT) in magnitude, and row scales finite.
    ///
    /// # Panics
    /// If the width is not a multiple of 8, or a row's scale or plane lies outside its stride. If
    /// `acc` and weights do not fit the rows.
    pub fn accumulate_signs(self, rows: &SignRows, scale: f32, weights: &[f32], acc: &mut [f32]) {
        check_sign_rows(rows);
        contract!(acc.len().is_multiple_of(rows.dim));
        contract!(weights.len() == acc.len() / rows.dim * rows.count());
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            accumulate_signs(rows: &SignRows, scale: f32, weights: &[f32], acc: &mut [f32])
        )
    }
}

/// Checks that scale and plane lie within the rows.
fn check_sign_rows(rows: &SignRows) {
    contract!((1..=MAX_DIM).contains(&rows.dim) && rows.dim.is_multiple_of(8));
    contract!(rows.at >= rows.outer.map_or(0, Float::bytes));
    contract!(rows.stride >= rows.at + 2 + rows.dim / 8);
    contract!(rows.bytes.len().is_multiple_of(rows.stride));
}
