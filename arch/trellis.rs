//! Kernels for rows of codes whose centroids depend on a path through a trellis, and the search for
//! the best path.
//!
//! # Which file serves which rows
//! The first line that fits a call serves it. The `match` in the file has the exact shapes. Without a
//! number, any number of queries is meant. `wide` serves NEON, SIMD128, and x86-64 with the feature `wide`.
//!
//! | scores on | width | states | levels | queries | file |
//! |---|---|---|---|---|---|
//! | avx512 | 32, 64 | up to 8 | 2, 4, 8 | | `avx512/narrow.rs` |
//! | | multiples of 128 | index of up to 8 bits | 1, 2, 4, 8, 16 | 1 | `avx512/score_one.rs` |
//! | | 128 | index of up to 8 bits | 3, 6, 12 | 1 | `avx512/score_one.rs` |
//! | | others | | | | `avx512.rs`: `lookup.rs`, `lanes.rs` |
//! | avx2, avx-vnni | 32, 64, 128 | up to 8; 16 at 128 | 1, 2, 4, 8 | | `avx2/lanes.rs`; from 16 queries `lanes/many.rs` |
//! | | rows of less than 16 bytes | | | | `scalar.rs` |
//! | | others | | | | `avx2.rs` |
//! | wide | 32, 64, 128 | up to 8; 16 at 128 | see its `score` | | `wide/rows128.rs` |
//! | | others | | | | `wide.rs`, four queries at a time |
//! | portable, scalar | all | | | | `portable.rs`, `scalar.rs` |
//!
//! | sums on | width | states | levels | queries | file |
//! |---|---|---|---|---|---|
//! | avx512 | multiples of 64 | up to 8 | 4 | | `avx512/woven.rs` in `sums.rs` |
//! | | others | | | | `avx512/sums.rs` with `lookup.rs` |
//! | avx2, avx-vnni | as for scores | | | | the same files; from 8 queries `lanes/many.rs` |
//! | wide | 64, 128 | up to 8 | 2, 4, 8 | | `wide/rows128/sums.rs` |
//! | | others | | | | `wide.rs`, four queries at a time |
//! | portable, scalar | all | | | | `portable.rs`, `scalar.rs` |
//!
//! Decoding is in `avx512.rs`, in `wide.rs` also for AVX2, and in `scalar.rs`. The path search is in
//! `avx512/search.rs`, `avx2/search.rs`, `search.rs` for `wide`, and `scalar.rs`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod layout;
#[cfg(not(target_os = "none"))]
pub(crate) mod portable;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
pub(crate) mod search;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::rows::Pages;
use crate::{Backend, Fit, IntQuery, MAX_DIM, Rows, TrellisCodebook};

impl Backend {
    /// Decodes a row of [`TrellisCodebook`] codes: out = scale · centroid.
    ///
    /// # Panics
    /// If the width is not a multiple of 16 up to [`MAX_DIM`], or the row has another length.
    pub fn decode_trellis(self, book: &TrellisCodebook, row: &[u8], scale: f32, out: &mut [f32]) {
        check_dim(out.len());
        contract!(row.len() == book.row_bytes(out.len()));
        dispatch!(
            self, avx2: wide, avx512: avx512, registers: wide;
            decode_trellis(book: &TrellisCodebook, row: &[u8], scale: f32, out: &mut [f32])
        )
    }

    /// Scores every query with every row of up to [`MAX_PAGES`](crate::MAX_PAGES) pages, laid out
    /// \[page]\[query]\[row]: (Σ q·centroid, an exact integer) · (query scale · `scale`) · row scale.
    /// The integers of queries must be within ±127.
    ///
    /// # Panics
    /// If the rows do not fit the codebook, or queries or scores do not fit the rows.
    pub fn score_trellis(
        self,
        book: &TrellisCodebook,
        pages: &[Rows],
        scale: f32,
        queries: &[IntQuery],
        scores: &mut [f32],
    ) {
        let pages = Pages::new(pages, self, |dim| row_bytes(book, dim));
        let Some(dim) = pages.dim() else { return };
        contract!(queries.iter().all(|query| query.values.len() == dim));
        contract!(scores.len() == queries.len() * pages.rows());
        let pages = pages.get();
        dispatch!(
            self, portable: portable, avx2: avx2<Ymm | Vnni>, avx512: avx512 + tiles, registers: wide + dots;
            score_trellis(book: &TrellisCodebook, pages: &[Rows], scale: f32, queries: &[IntQuery], scores: &mut [f32])
        )
    }

    /// Adds Σ weight·row scale·`scale`·centroid to `acc`, laid out \[query]\[dim].
    ///
    /// Weights and sums are integers within each run of 256 rows of a page. Weights, laid out
    /// \[page]\[query]\[row], must be at most [`MAX_WEIGHT`](crate::MAX_WEIGHT) in magnitude, and row
    /// scales finite. There are up to [`MAX_PAGES`](crate::MAX_PAGES) pages, which are added in order.
    ///
    /// # Panics
    /// If the rows do not fit the codebook, or `acc` and weights do not fit the rows.
    pub fn accumulate_trellis(
        self,
        book: &TrellisCodebook,
        pages: &[Rows],
        scale: f32,
        weights: &[f32],
        acc: &mut [f32],
    ) {
        let pages = Pages::new(pages, self, |dim| row_bytes(book, dim));
        let Some(dim) = pages.dim() else { return };
        contract!(acc.len().is_multiple_of(dim));
        contract!(weights.len() == acc.len() / dim * pages.rows());
        let pages = pages.get();
        dispatch!(
            self, portable: portable, avx2: avx2<Ymm>, avx512: avx512 + tiles, registers: wide + dots;
            accumulate_trellis(book: &TrellisCodebook, pages: &[Rows], scale: f32, weights: &[f32], acc: &mut [f32])
        )
    }

    /// Finds the row with the least squared error for each vector z·scale of width `dim`, by
    /// Viterbi's algorithm.
    ///
    /// It writes the planes of the row and returns how well it fits. The two bytes of the row's
    /// scale do not change. z·scale must be at most 2²⁰ in magnitude. It takes O(dim · states ·
    /// levels) a vector.
    ///
    /// # Panics
    /// If `dim` is not a multiple of 16 up to [`MAX_DIM`], or slices do not have `fits.len()`
    /// vectors.
    pub fn viterbi_encode(
        self,
        book: &TrellisCodebook,
        dim: usize,
        z: &[f32],
        scales: &[f32],
        bytes: &mut [u8],
        fits: &mut [Fit],
    ) {
        check_dim(dim);
        let count = fits.len();
        contract!((z.len(), scales.len()) == (count * dim, count));
        contract!(bytes.len() == count * book.row_bytes(dim));
        dispatch!(
            self, avx2: avx2, avx512: avx512 + tiles, registers: wide;
            viterbi_encode(book: &TrellisCodebook, dim: usize, z: &[f32], scales: &[f32], bytes: &mut [u8], fits: &mut [Fit])
        )
    }
}

/// Checks the width, and returns the bytes of a row.
fn row_bytes(book: &TrellisCodebook, dim: usize) -> usize {
    check_dim(dim);
    book.row_bytes(dim)
}

/// Checks the width.
fn check_dim(dim: usize) {
    contract!((16..=MAX_DIM).contains(&dim) && dim.is_multiple_of(16));
}
