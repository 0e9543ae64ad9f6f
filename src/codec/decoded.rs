//! Products on blocks of codecs that have no kernels: each row is decoded into f32 once, for all
//! queries and outputs of a call.
//!
//! Such formats serve for comparison and exchange. They are not meant to be fast.

use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{Codec, check_accumulate, check_score};
use crate::Error;
use crate::backend::Kernels;

/// A codec whose products decode rows.
pub(super) trait Decoded: Codec {
    fn backend(&self) -> Kernels;

    /// The number of queries up to which most of the time goes into plain code, not kernels. The
    /// backend is chosen accordingly.
    fn few(&self) -> usize {
        1
    }

    /// Checks that every block can be decoded.
    fn check(&self, blocks: &[u8]) -> Result<(), Error>;

    /// Decodes a checked block, in the basis of prepared queries.
    fn decode_row(&self, block: &[u8], x: &mut [f32]);

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim(), Body::Float)
    }
}

/// Implements [`Codec::score`].
pub(super) fn score(
    codec: &impl Decoded,
    queries: &[&[f32]],
    blocks: &[u8],
    scores: &mut [f32],
) -> Result<(), Error> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let count = check_score(queries, blocks, bytes, scores)?;
    codec.format().check(queries)?;
    codec.check(blocks)?;
    let few = queries.len() <= codec.few();
    let backend = if few { codec.backend().among_plain_code() } else { codec.backend() };
    with_scratch(dim, |row| {
        for (r, block) in blocks.chunks_exact(bytes).enumerate() {
            codec.decode_row(block, row);
            for (q, query) in queries.iter().enumerate() {
                scores[q * count + r] = backend.dot(&query[1..][..dim], row);
            }
        }
        Ok(())
    })
}

/// Implements [`Codec::accumulate`]: blocks in ascending order, with a multiplication and an
/// addition a value, not fused.
pub(super) fn accumulate(
    codec: &impl Decoded,
    weights: &[f32],
    blocks: &[u8],
    acc: &mut [f32],
) -> Result<(), Error> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    let count = check_accumulate(weights, blocks, bytes, acc, dim)?;
    codec.check(blocks)?;
    with_scratch(dim, |row| {
        for (r, block) in blocks.chunks_exact(bytes).enumerate() {
            codec.decode_row(block, row);
            for (q, acc) in acc.chunks_exact_mut(dim).enumerate() {
                let weight = weights[q * count + r];
                acc.iter_mut().zip(&*row).for_each(|(acc, x)| *acc += weight * x);
            }
        }
        Ok(())
    })
}
