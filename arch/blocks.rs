//! Kernels for small blocks that each have a scale.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod layout;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::{BLOCK_BYTES, BLOCK_VALUES, Backend, BlockBook, MAX_DIM};

impl Backend {
    /// Quantises values: writes the scale, the codes and the bit plane of each 32 values. Scales
    /// must not round to infinity as f16.
    ///
    /// # Panics
    /// If `x` is not whole blocks of 32 values, or `bytes` does not have as many blocks.
    pub fn quantize_blocks(self, book: &BlockBook, x: &[f32], bytes: &mut [u8]) {
        check_blocks(x.len(), bytes);
        dispatch!(
            self, avx2: scalar, avx512: avx512, registers: scalar;
            quantize_blocks(book: &BlockBook, x: &[f32], bytes: &mut [u8])
        )
    }

    /// Returns whether all scales are finite.
    ///
    /// # Panics
    /// If `bytes` is not whole blocks.
    #[must_use]
    pub fn blocks_are_finite(self, bytes: &[u8]) -> bool {
        contract!(bytes.len().is_multiple_of(BLOCK_BYTES));
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            blocks_are_finite(bytes: &[u8]) -> bool
        )
    }

    /// Decodes blocks: out = scale · centroid\[code]. Scales must be finite.
    ///
    /// # Panics
    /// If `out` is not whole blocks of 32 values, or `bytes` does not have as many blocks.
    pub fn decode_blocks(self, book: &BlockBook, bytes: &[u8], out: &mut [f32]) {
        check_blocks(out.len(), bytes);
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            decode_blocks(book: &BlockBook, bytes: &[u8], out: &mut [f32])
        )
    }

    /// Scores every query with every row of `dim` values, laid out \[query]\[row]:
    /// [`dot`](Self::dot) of the query and the decoded row.
    ///
    /// # Panics
    /// If `dim` is not a multiple of 32 up to [`MAX_DIM`], or lengths are not whole rows.
    pub fn score_blocks(
        self,
        book: &BlockBook,
        dim: usize,
        bytes: &[u8],
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        let rows = check_block_rows(dim, bytes);
        contract!(queries.iter().all(|query| query.len() == dim));
        contract!(scores.len() == queries.len() * rows);
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            score_blocks(book: &BlockBook, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32])
        )
    }

    /// Adds Σ weight·decoded row to `acc`, laid out \[query]\[dim], rows in ascending order.
    /// Weights are laid out \[query]\[row].
    ///
    /// # Panics
    /// If `dim` is not a multiple of 32 up to [`MAX_DIM`], or lengths are not whole rows.
    pub fn accumulate_blocks(
        self,
        book: &BlockBook,
        dim: usize,
        bytes: &[u8],
        weights: &[f32],
        acc: &mut [f32],
    ) {
        let rows = check_block_rows(dim, bytes);
        contract!(acc.len().is_multiple_of(dim));
        contract!(weights.len() == acc.len() / dim * rows);
        if !bytes.is_empty() {
            dispatch!(
                self, avx2: avx2, avx512: avx512, registers: wide;
                accumulate_blocks(book: &BlockBook, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32])
            )
        }
    }
}

/// Checks that the bytes are the blocks of `values` values.
fn check_blocks(values: usize, bytes: &[u8]) {
    contract!(values.is_multiple_of(BLOCK_VALUES));
    contract!(bytes.len() == values / BLOCK_VALUES * BLOCK_BYTES);
}

/// Checks that the bytes are whole rows, and returns their number.
fn check_block_rows(dim: usize, bytes: &[u8]) -> usize {
    contract!((BLOCK_VALUES..=MAX_DIM).contains(&dim) && dim.is_multiple_of(BLOCK_VALUES));
    let row_bytes = dim / BLOCK_VALUES * BLOCK_BYTES;
    contract!(bytes.len().is_multiple_of(row_bytes));
    bytes.len() / row_bytes
}
