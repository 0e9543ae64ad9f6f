//! Products on blocks of codecs that have no kernels: rows are decoded into f32 once, for all
//! queries and outputs of a call.
//!
//! Such formats serve for comparison and exchange. They are not meant to be fast.

use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{Codec, check_accumulate, check_score};
use crate::Error;
use crate::backend::Kernels;
use octaplex_arch::Float;

/// Rows that are decoded together: few on microcontrollers, whose stacks are small.
const ROWS: usize = if cfg!(target_os = "none") { 1 } else { 8 };

/// A codec whose products decode rows.
pub(super) trait Decoded: Codec {
    fn backend(&self) -> Kernels;

    /// Checks that every block can be decoded.
    fn check(&self, blocks: &[u8]) -> Result<(), Error>;

    /// Decodes checked blocks, in the basis of prepared queries.
    fn decode_rows(&self, blocks: &[u8], x: &mut [f32]);

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
    let dim = codec.dim();
    let count = check_score(queries, blocks, codec.block_bytes(), scores)?;
    codec.format().check(queries)?;
    each_rows(codec, blocks, |first, rows| {
        let backend = codec.backend().among_plain_code();
        for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
            for (row, score) in rows.chunks_exact(dim).zip(&mut scores[first..]) {
                *score = backend.dot(&query[1..][..dim], row);
            }
        }
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
    let dim = codec.dim();
    let count = check_accumulate(weights, blocks, codec.block_bytes(), acc, dim)?;
    each_rows(codec, blocks, |first, rows| {
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
            let weights = &weights[first..][..rows.len() / dim];
            if cfg!(target_arch = "x86_64") {
                let rows: &[u8] = bytemuck::cast_slice(rows);
                codec.backend().accumulate_floats(Float::F32, dim, rows, weights, acc);
                continue;
            }
            // Elsewhere the compiler's code for this loop is as fast.
            for (row, weight) in rows.chunks_exact(dim).zip(weights) {
                acc.iter_mut().zip(row).for_each(|(acc, x)| *acc += weight * x);
            }
        }
    })
}

/// Checks all blocks, then calls `f` with the number of the first of some rows, and these rows.
fn each_rows(codec: &impl Decoded, blocks: &[u8], mut f: impl FnMut(usize, &[f32])) -> Result<(), Error> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    codec.check(blocks)?;
    with_scratch(dim * ROWS.min(blocks.len() / bytes), |memory| {
        for (i, blocks) in blocks.chunks(ROWS * bytes).enumerate() {
            let rows = &mut memory[..blocks.len() / bytes * dim];
            codec.decode_rows(blocks, rows);
            f(i * ROWS, rows);
        }
        Ok(())
    })
}
