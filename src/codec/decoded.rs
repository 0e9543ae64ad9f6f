//! Products on blocks that have no kernel of their own: each row is decoded into plain f32 once, for all queries and
//! outputs of the call. For formats that are here to be compared with and exchanged, not to be fast.

use super::{Query, check_accumulate, count_blocks};
use crate::Error;
use crate::backend::Kernels;

/// Scores q·x of every query with every block, \[query]\[block]; `decode` writes a block's values in the basis of the
/// queries, after `check` has passed the blocks.
///
/// # Errors
/// [`Error::Length`], and what `check` says.
pub(crate) fn score<const D: usize>(
    backend: Kernels,
    block_bytes: usize,
    queries: &[Query<D>],
    blocks: &[u8],
    scores: &mut [f32],
    check: impl Fn(&[u8]) -> Result<(), Error>,
    decode: impl Fn(&[u8], &mut [f32]),
) -> Result<(), Error> {
    let count = count_blocks(blocks, block_bytes)?;
    Error::expect_length("scores", queries.len().saturating_mul(count), scores.len())?;
    check(blocks)?;
    let mut row = [0.0; D];
    for (r, block) in blocks.chunks_exact(block_bytes).enumerate() {
        decode(block, &mut row);
        for (q, query) in queries.iter().enumerate() {
            scores[q * count + r] = backend.dot(&query.rotated, &row);
        }
    }
    Ok(())
}

/// acc\[query] += Σ weight·x over the blocks, ascending; a multiplication and an addition a value, not fused.
///
/// # Errors
/// As [`check_accumulate`], and what `check` says.
pub(crate) fn accumulate<const D: usize>(
    block_bytes: usize,
    weights: &[f32],
    blocks: &[u8],
    acc: &mut [[f32; D]],
    check: impl Fn(&[u8]) -> Result<(), Error>,
    decode: impl Fn(&[u8], &mut [f32]),
) -> Result<(), Error> {
    let count = check_accumulate(weights, blocks, block_bytes, acc.len())?;
    check(blocks)?;
    let mut row = [0.0; D];
    for (r, block) in blocks.chunks_exact(block_bytes).enumerate() {
        decode(block, &mut row);
        for (q, acc) in acc.iter_mut().enumerate() {
            let weight = weights[q * count + r];
            acc.iter_mut().zip(&row).for_each(|(acc, x)| *acc += weight * x);
        }
    }
    Ok(())
}
