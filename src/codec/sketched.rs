//! A coarse codec with a sign sketch of its residual, which makes scores unbiased. `turboquant-qjl`
//! and `octopus-qjl` are such codecs.
//!
//! ```text
//! block   block of the coarse codec │ f16 norm of the residual │ sign plane
//! score   coarse score              + estimate of <q, residual>
//! decode  coarse vector             + the sketch's reconstruction
//! ```

use super::planes::{Rotated, rows_of};
use super::query::QueryFormat;
use super::scratch::with_scratch;
use super::{Codec, check_accumulate, check_block, check_score, read_f16, score_checked, to_f16};
use crate::Error;
use crate::codec::sketch::{Sketch, SketchSpec};
use octaplex_arch::{Float, Rows, SignRows};

/// The interface of a coarse codec to the sketch. Rows begin with its blocks, and are longer.
pub(crate) trait Coarse: Rotated {
    /// A bound on the upper byte of residual norms, without the sign. These bytes are ordered as
    /// the magnitudes of the f16.
    const RESIDUALS_BELOW: u8;

    /// Returns the type of the norm at the front of a block.
    fn norm_format(&self) -> Float;

    /// Encodes a vector, and writes its residual in the rotated basis if requested. Returns `true`
    /// for a block of zeros, whose residual is not written.
    ///
    /// The residual is relative to a norm; each codec says to which one.
    fn encode_with_residual(
        &self,
        x: &[f32],
        block: &mut [u8],
        residual: Option<&mut [f32]>,
    ) -> Result<bool, Error>;
}

/// A codec with a sketch, at a width known at run time.
#[derive(Clone, Debug)]
pub struct Sketched<C> {
    coarse: C,
    sketch: Sketch,
    /// The offset of the residual's norm in a block.
    residual_at: usize,
}

#[allow(private_bounds)] // the interface to a sketch is private to this library
impl<C: Coarse> Sketched<C> {
    pub(super) fn new(coarse: C, sketch: Sketch) -> Self {
        let residual_at = coarse.block_bytes();
        Self { coarse, sketch, residual_at }
    }

    fn format(&self) -> QueryFormat {
        self.coarse.format().sketched()
    }

    /// Returns the sketches in blocks as the kernels take them.
    fn signs<'a>(&self, blocks: &'a [u8]) -> SignRows<'a> {
        SignRows {
            bytes: blocks,
            stride: self.block_bytes(),
            dim: self.dim(),
            at: self.residual_at,
            outer: Some(self.coarse.norm_format()),
        }
    }

    /// Returns the coarse blocks as the kernels take them.
    fn rows<'a>(&self, blocks: &'a [u8]) -> Rows<'a> {
        rows_of(blocks, self.block_bytes(), self.residual_at, self.dim())
    }

    /// Returns whether the residual norm of a block is one that encoding writes.
    fn residual_fits(&self, block: &[u8]) -> bool {
        block[self.residual_at + 1] & 0x7f < C::RESIDUALS_BELOW
    }

    fn residuals_fit(&self, blocks: &[u8]) -> bool {
        blocks.chunks_exact(self.block_bytes()).fold(true, |all, block| all & self.residual_fits(block))
    }

    /// Checks both norms of every block.
    fn check_norms(&self, blocks: &[u8]) -> Result<(), Error> {
        let norms = self.coarse.check_norms(blocks, self.block_bytes());
        if self.residuals_fit(blocks) {
            return norms;
        }
        // Report the first wrong block, whichever of its norms is wrong.
        let first = blocks.chunks_exact(self.block_bytes()).position(|block| !self.residual_fits(block));
        match (norms, first.unwrap_or(0)) {
            (Err(Error::Corrupt { block }), first) => Err(Error::Corrupt { block: block.min(first) }),
            (_, block) => Err(Error::Corrupt { block }),
        }
    }
}

impl<C: Coarse> Codec for Sketched<C> {
    fn dim(&self) -> usize {
        self.coarse.dim()
    }

    fn block_bytes(&self) -> usize {
        self.residual_at + 2 + SketchSpec::bytes(self.dim())
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        let backend = self.coarse.backend();
        let (coarse, fine) = block.split_at_mut(self.residual_at);
        with_scratch(self.dim(), |residual| {
            let zero = self.coarse.encode_with_residual(x, coarse, Some(residual))?;
            let norm = to_f16(backend.sqrt(backend.dot(residual, residual)))?;
            if zero || norm.to_bits() == 0 {
                fine.fill(0);
                return Ok(());
            }
            let (head, plane) = fine.split_at_mut(2);
            head.copy_from_slice(&norm.to_le_bytes());
            self.sketch.encode(residual, plane);
            Ok(())
        })
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.check_norms(block)?;
        let (coarse, fine) = block.split_at(self.residual_at);
        let norm = self.coarse.read_norm(coarse);
        with_scratch(self.dim(), |residual| {
            self.sketch.decode(&fine[2..], norm * read_f16(fine).to_f32(), residual);
            self.coarse.decode_rotated(coarse, norm, x)?;
            self.coarse.backend().add(residual, x);
            self.coarse.finish(x);
            Ok(())
        })
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        let (format, basis) = (self.format(), (self.coarse.rotation(), self.coarse.backend()));
        format.prepare(basis, q, query, |rotated, query| self.sketch.prepare(&format, rotated, query))
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        check_score(queries, blocks, self.block_bytes(), scores)?;
        let format = self.format();
        format.check(queries)?;
        let telling = self.coarse.scores_tell_norms() && self.residuals_fit(blocks);
        score_checked(
            telling,
            queries,
            scores,
            || self.check_norms(blocks),
            |scores| {
                self.coarse.score_rows(&format, queries, &[self.rows(blocks)], scores)?;
                self.sketch.score(&format, queries, &self.signs(blocks), scores)
            },
        )
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc, self.dim())?;
        self.check_norms(blocks)?;
        self.coarse.accumulate_rows(weights, &[self.rows(blocks)], acc);
        self.sketch.accumulate(weights, &self.signs(blocks), acc)
    }

    fn finish(&self, acc: &mut [f32]) {
        self.coarse.finish(acc);
    }
}
