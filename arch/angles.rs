//! Kernels for trees of polar coordinates.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod layout;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::{AngleTree, Backend, MAX_DIM, check_widths};

impl Backend {
    /// Quantises coordinates: writes the codes of level 1, then of level 2, and so on. The first
    /// values of `x` become the roots' radii; the others are undefined.
    ///
    /// # Panics
    /// If the tree is not valid, or lengths are not its width and number of codes.
    pub fn quantize_angles(self, tree: &AngleTree, x: &mut [f32], codes: &mut [u8]) {
        check_tree(tree);
        contract!((x.len(), codes.len()) == (tree.dim, tree.codes()));
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            quantize_angles(tree: &AngleTree, x: &mut [f32], codes: &mut [u8])
        )
    }

    /// Decodes a row with finite roots. Any other bytes are allowed.
    ///
    /// # Panics
    /// If the tree is not valid, or lengths are not its row length and width.
    pub fn decode_angles(self, tree: &AngleTree, row: &[u8], out: &mut [f32]) {
        check_tree(tree);
        contract!((row.len(), out.len()) == (tree.row_bytes(), tree.dim));
        dispatch!(
            self, avx2: wide, avx512: wide, registers: wide;
            decode_angles(tree: &AngleTree, row: &[u8], out: &mut [f32])
        )
    }

    /// Scores every query with every row, laid out \[query]\[row], as a tree of products.
    ///
    /// # Panics
    /// If the tree is not valid, or rows, queries or scores do not fit it.
    pub fn score_angles(self, tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
        check_tree(tree);
        check_widths(tree.dim, tree.row_bytes(), bytes, queries);
        contract!(scores.len() == queries.len() * (bytes.len() / tree.row_bytes()));
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: wide;
            score_angles(tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32])
        )
    }

    /// Adds Σ weight·decoded row to `acc`, laid out \[query]\[dim], rows in ascending order.
    /// Weights are laid out \[query]\[row].
    ///
    /// # Panics
    /// If the tree is not valid, or rows, `acc` or weights do not fit it.
    pub fn accumulate_angles(self, tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
        check_tree(tree);
        check_widths(tree.dim, tree.row_bytes(), bytes, &[]);
        contract!(acc.len().is_multiple_of(tree.dim));
        contract!(weights.len() == acc.len() / tree.dim * (bytes.len() / tree.row_bytes()));
        if !bytes.is_empty() {
            dispatch!(
                self, avx2: avx2, avx512: avx2, registers: wide;
                accumulate_angles(tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32])
            )
        }
    }
}

/// Checks the shape of a tree: at most 9 levels, and codebooks of the right lengths.
fn check_tree(tree: &AngleTree) {
    contract!((1..=9).contains(&tree.levels.len()) && tree.dim <= MAX_DIM);
    contract!(tree.roots() > 0 && tree.dim.is_multiple_of(1 << tree.levels.len()));
    for (level, angles) in tree.levels.iter().enumerate() {
        contract!((1..=8).contains(&angles.bits));
        let codes = 1 << angles.bits;
        contract!(angles.directions.len() == codes);
        contract!(angles.tangents.len() == if level == 0 { (codes / 4).max(1) } else { codes } - 1);
    }
}
