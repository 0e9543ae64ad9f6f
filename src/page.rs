//! What a page is made of: how the keys, or the values, of one head lie in bytes.
//!
//! A page holds the keys and values of 64, 128 or 256 consecutive tokens. [`Shape`] says how many bytes each side of a
//! head takes, and is the one place that decides between the formats. [`PageFormat`] reads and writes these bytes. The
//! cache, snapshots and chunks know pages through these two alone.
//!
//! ```text
//! blocks   rows    │ block of token 0 │ block of token 1 │ …                (then a list, for codecs that keep outliers)
//!          centre  │ mean of the keys, f16
//!
//! lean     rows    │ planes of token 0 │ planes of token 1 │ …
//!          centre  │ difference of the mean from the prefix centre, f16 norm and 5 bits a value
//!          norms   │ f16 largest │ octaves │ 6 bits a token
//!
//! graded   rows    │ planes of the fine half, all tokens │ planes of the coarse half, all tokens
//!          centre  │ of the fine half │ of the coarse half
//!          norms   │ of the fine half │ of the coarse half
//! ```
//!
//! [`Balance`] is what keys pass through before they reach any format: their channels are divided, and sorted where a
//! format codes some channels more finely.

mod balance;
mod blocks;
mod lean;
mod norms;
mod shape;

pub(crate) use balance::{Balance, Spread, add_floats, divide, read_balance, store_mean, subtract};
pub(crate) use blocks::score_floats;
pub(crate) use norms::MAX_TOKENS;
#[cfg(feature = "gpu")]
pub(crate) use norms::scales;
pub(crate) use shape::{Shape, Sizes, is_finite_f16};

use crate::Error;
use crate::backend::Kernels;
use crate::codec::Codec;
use blocks::Blocks;
use core::ops::{Deref, Range};
use lean::Lean;

/// The bytes of one side of a head: its keys or its values.
#[derive(Clone, Copy, Default)]
pub(crate) struct Part<'a> {
    /// Rows, behind [`Shape::lead`] bytes that are not theirs.
    pub(crate) rows: &'a [u8],
    /// What was taken from every row; empty where nothing was.
    pub(crate) centre: &'a [u8],
    /// The norms of all rows, where they are not in the rows.
    pub(crate) norms: &'a [u8],
    /// Rows that are read after these, if that is known.
    pub(crate) ahead: &'a [u8],
}

/// The same, to be written. Rows have no bytes in front of them.
pub(crate) struct PartMut<'a> {
    pub(crate) rows: &'a mut [u8],
    pub(crate) centre: &'a mut [u8],
    pub(crate) norms: &'a mut [u8],
}

/// Queries in the basis of the pages' keys, and prepared by their codec.
pub(crate) struct Queries<'a> {
    pub(crate) rows: &'a [f32],
    pub(crate) prepared: &'a [&'a [f32]],
}

impl Queries<'_> {
    /// Adds to offsets, \[query]\[page], what the centre of one page gives: a centre in f16, or none.
    fn score_centre(&self, backend: Kernels, dim: usize, page: usize, centre: &[u8], offsets: &mut [f32]) {
        let pages = offsets.len() / self.prepared.len().max(1);
        score_floats(backend, self.rows, dim, centre, offsets[page..].iter_mut().step_by(pages));
    }
}

/// Reads and writes one side of a head of a page.
///
/// Preparing a query and finishing a sum are the codec's own: they do not depend on a page.
pub(crate) trait PageFormat {
    /// Stores the mean of a page's rows, and subtracts what was stored from them.
    fn take_centre(&self, rows: &mut [f32], centre: &mut [u8]) -> Result<(), Error>;

    /// Reads what [`take_centre`](Self::take_centre) has stored.
    #[cfg_attr(not(feature = "alloc"), allow(dead_code, reason = "cells read centres"))]
    fn read_centre(&self, bytes: &[u8], centre: &mut [f32]) -> Result<(), Error>;

    /// Encodes rows from which the centre has been taken. Returns how many bytes the rows take. After an error the part may
    /// hold anything.
    fn encode(&self, rows: &[f32], part: &mut PartMut) -> Result<usize, Error>;

    /// Decodes tokens of a page, and adds the centre.
    ///
    /// # Errors
    /// [`Error::Corrupt`], whose block is counted within the page.
    fn decode(&self, part: &Part, tokens: Range<usize>, x: &mut [f32]) -> Result<(), Error>;

    /// Scores pages one after the other: scores are laid out \[page]\[query]\[token]. They lack what a page's centre adds
    /// to all its tokens. That is added to `offsets`, \[query]\[page].
    ///
    /// # Errors
    /// As [`Codec::score`]; a corrupt block is counted within its page.
    fn score(
        &self,
        queries: &Queries,
        parts: &mut dyn Iterator<Item = Part>,
        scores: &mut [f32],
        offsets: &mut [f32],
    ) -> Result<(), Error>;

    /// Adds a page's rows in the codec's basis, weights laid out \[query]\[token].
    fn accumulate(&self, weights: &[f32], part: &Part, acc: &mut [f32]) -> Result<(), Error>;
}

/// The format that a shape stands for, of one codec.
#[allow(clippy::large_enum_variant, reason = "it lives on the stack, for one call")]
pub(crate) enum Format<'a> {
    Blocks(Blocks<'a>),
    Lean(Lean<'a>),
}

impl<'a> Deref for Format<'a> {
    type Target = dyn PageFormat + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Blocks(format) => format,
            Self::Lean(format) => format,
        }
    }
}

/// The same error, its block counted over all pages of so many tokens.
pub(crate) fn in_page(error: Error, page: usize, tokens: usize) -> Error {
    match error {
        Error::Corrupt { block } => Error::Corrupt { block: page * tokens + block },
        other => other,
    }
}

impl Shape {
    /// The format of this shape for a codec, on a backend's kernels.
    pub(crate) fn of<'a>(&self, codec: &'a dyn Codec, backend: Kernels) -> Format<'a> {
        match Lean::new(codec, self, backend) {
            Some(lean) => Format::Lean(lean),
            None => Format::Blocks(Blocks::new(codec, self, backend)),
        }
    }
}
