//! Pages: how the keys, or the values, of one head lie in bytes.
//!
//! A page holds the keys and values of 64, 128 or 256 consecutive tokens. Two types hide the
//! formats from the cache, from snapshots and from chunks:
//!
//! * [`Shape`] chooses the format and computes how many bytes each part takes. Nothing else decides
//!   that.
//! * [`PageFormat`] reads and writes these bytes.
//!
//! ```text
//! blocks   rows    │ block of token 0 │ block of token 1 │ …     (then a list, if the codec keeps outliers)
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
//! Keys pass through [`Balance`] before they reach any format. It divides channels by their scale.
//! If the format codes some channels more finely, it also sorts them.

mod balance;
mod blocks;
mod lean;
mod norms;
mod shape;

pub(crate) use balance::{
    Balance, CENTRED, Deciding, Spread, add_floats, counted, divide, read_balance, subtract,
};
#[cfg(feature = "alloc")]
pub(crate) use balance::{DEVIATIONS, FEW, store_mean, tame};
pub(crate) use blocks::score_floats;
pub(crate) use norms::MAX_TOKENS;
#[cfg(feature = "gpu")]
pub(crate) use norms::scales;
pub(crate) use shape::{Shape, Sizes, is_finite_f16};

use crate::Error;
use crate::backend::Kernels;
use crate::codec::{Codec, in_page};
use blocks::Blocks;
use core::ops::{Deref, Range};
use heapless::Vec;
use lean::Lean;
use octaplex_arch::MAX_PAGES;

/// Tokens of a page in the default configuration of caches and chunks, rows of a page of
/// `Codec::encode_rows`, and cells of a page of `cells`.
pub const PAGE: usize = 64;

/// The bytes of one side of a head: its keys or its values.
#[derive(Clone, Copy, Default)]
pub(crate) struct Part<'a> {
    /// The rows, after [`Shape::lead`] bytes that belong to something else.
    pub(crate) rows: &'a [u8],
    /// The encoded mean that was subtracted from every row. Empty if none was.
    pub(crate) centre: &'a [u8],
    /// The norms of all rows. Empty if the rows contain them.
    pub(crate) norms: &'a [u8],
    /// Rows that will be read next, to prefetch. Empty if unknown.
    pub(crate) ahead: &'a [u8],
}

/// The bytes of one side of a head, for writing. Unlike [`Part`], no bytes stand in front of the
/// rows.
pub(crate) struct PartMut<'a> {
    pub(crate) rows: &'a mut [u8],
    pub(crate) centre: &'a mut [u8],
    pub(crate) norms: &'a mut [u8],
}

/// Queries of one call, in two forms.
pub(crate) struct Queries<'a> {
    /// The queries in the basis of the stored keys, row after row. Products with centres need them.
    pub(crate) rows: &'a [f32],
    /// The same queries as the codec prepared them.
    pub(crate) prepared: &'a [&'a [f32]],
}

impl Queries<'_> {
    /// Adds q·centre of one page to `offsets`, laid out \[query]\[page]. `centre` is in f16, or
    /// empty.
    fn score_centre(&self, backend: Kernels, dim: usize, page: usize, centre: &[u8], offsets: &mut [f32]) {
        let pages = offsets.len() / self.prepared.len().max(1);
        score_floats(backend, self.rows, dim, centre, offsets[page..].iter_mut().step_by(pages));
    }
}

/// Reads and writes one side of a head of a page.
///
/// Preparing queries and finishing sums do not depend on the page, so the codec does these itself.
pub(crate) trait PageFormat {
    /// Stores the mean of a page's rows in `centre`, and subtracts the stored value from the rows.
    /// Subtracting what was stored, not the exact mean, keeps its rounding error out of the result.
    fn take_centre(&self, rows: &mut [f32], centre: &mut [u8]) -> Result<(), Error>;

    /// Decodes the mean that [`take_centre`](Self::take_centre) stored.
    #[cfg_attr(not(feature = "alloc"), allow(dead_code, reason = "cells read centres"))]
    fn read_centre(&self, bytes: &[u8], centre: &mut [f32]) -> Result<(), Error>;

    /// Encodes rows from which the centre was subtracted, and returns the number of bytes of the
    /// rows.
    ///
    /// After an error the part may hold anything.
    fn encode(&self, rows: &[f32], part: &mut PartMut) -> Result<usize, Error>;

    /// Decodes the given tokens of a page, and adds the centre.
    ///
    /// # Errors
    /// [`Error::Corrupt`], with the block counted within the page.
    fn decode(&self, part: &Part, tokens: Range<usize>, x: &mut [f32]) -> Result<(), Error>;

    /// Scores pages one after the other, laid out \[page]\[query]\[token].
    ///
    /// The scores lack q·centre, which is the same for all tokens of a page. It is added to
    /// `offsets`, laid out \[query]\[page].
    ///
    /// # Errors
    /// As [`Codec::score`], with a corrupt block counted over all pages.
    fn score(
        &self,
        queries: &Queries,
        parts: &mut dyn Iterator<Item = Part>,
        scores: &mut [f32],
        offsets: &mut [f32],
    ) -> Result<(), Error>;

    /// Adds the weighted rows of pages to `acc`, one page after the other, in the codec's basis.
    /// Weights are laid out \[page]\[query]\[token].
    ///
    /// # Errors
    /// As [`Codec::accumulate`], with a corrupt block counted over all pages.
    fn accumulate(&self, weights: &[f32], parts: &[Part], acc: &mut [f32]) -> Result<(), Error>;
}

/// Pages that follow each other, to accumulate in one call. They are counted by the caller.
#[derive(Default)]
pub(crate) struct Run<'a> {
    parts: Vec<Part<'a>, MAX_PAGES>,
    first: usize,
}

impl<'a> Run<'a> {
    /// Adds page `number`, which follows the last one. Returns whether the run is then full.
    pub(crate) fn push(&mut self, number: usize, part: Part<'a>) -> bool {
        if self.parts.is_empty() {
            self.first = number;
        }
        let _ = self.parts.push(part); // the caller empties a full run
        self.parts.is_full()
    }

    /// Adds the weighted rows of the run to `acc`, and empties the run. `weights` are those of all
    /// pages that the caller counts, each with `queries` times `tokens`.
    pub(crate) fn accumulate(
        &mut self,
        format: &dyn PageFormat,
        (queries, tokens): (usize, usize),
        weights: &[f32],
        acc: &mut [f32],
    ) -> Result<(), Error> {
        let (first, len) = (self.first, self.parts.len());
        if len == 0 {
            return Ok(());
        }
        let weights = &weights[first * queries * tokens..][..len * queries * tokens];
        let added = format.accumulate(weights, &self.parts, acc);
        self.parts.clear();
        added.map_err(|error| in_page(error, first, tokens))
    }
}

/// The page format that belongs to a shape and a codec.
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

impl Shape {
    /// Returns the format of this shape for a codec and a backend.
    pub(crate) fn of<'a>(&self, codec: &'a dyn Codec, backend: Kernels) -> Format<'a> {
        match Lean::new(codec, self, backend) {
            Some(lean) => Format::Lean(lean),
            None => Format::Blocks(Blocks::new(codec, self, backend)),
        }
    }
}
