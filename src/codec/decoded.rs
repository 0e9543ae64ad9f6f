//! Products on blocks that have no kernel of their own: each row is decoded into plain f32 once, for all queries and
//! outputs of the call. For formats that are here to be compared with and exchanged, not to be fast.

use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{Codec, check_accumulate, check_score};
use crate::Error;
use crate::backend::Kernels;

/// A codec whose rows are decoded to be read.
pub(super) trait Decoded: Codec {
    fn backend(&self) -> Kernels;

    /// Queries up to which products spend most of their time among plain code.
    fn few(&self) -> usize {
        1
    }

    /// `Ok` if every block can be decoded.
    fn check(&self, blocks: &[u8]) -> Result<(), Error>;

    /// Writes the values of a sound block, in the basis of prepared queries.
    fn decode_row(&self, block: &[u8], x: &mut [f32]);

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim(), Body::Float)
    }
}

/// [`Codec::score`].
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

/// [`Codec::accumulate`], blocks in ascending order; a multiplication and an addition a value, not fused.
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
