//! Scores of a head's pages: what a cache asks of a codec beyond its trait.

use super::page::BATCH;
use crate::Error;
use crate::codec::scratch::with_scratch;
use crate::codec::{Codec, at_row, count_rows};

/// Prepares at most eight queries once, and scores the pages of `tokens` each, one after the other: scores are laid out
/// \[page]\[query]\[block].
///
/// Prepared queries live on the stack: preparing is cheap beside thousands of scores.
///
/// # Errors
/// As [`Codec::prepare_query`] and [`Codec::score`].
pub(crate) fn score_pages(
    codec: &dyn Codec,
    queries: &[f32],
    tokens: usize,
    pages: &mut dyn Iterator<Item = &[u8]>,
    scores: &mut [f32],
) -> Result<(), Error> {
    let (dim, len) = (codec.dim(), codec.query_len());
    let count = count_rows(queries, dim)?;
    with_scratch(count * len, |words| {
        for (row, (q, words)) in queries.chunks_exact(dim).zip(words.chunks_exact_mut(len)).enumerate() {
            codec.prepare_query(q, words).map_err(|error| at_row(error, row, dim))?;
        }
        let mut prepared: [&[f32]; BATCH] = [&[]; BATCH];
        prepared.iter_mut().zip(words.chunks_exact(len)).for_each(|(slot, words)| *slot = words);
        for (blocks, scores) in (&mut *pages).zip(scores.chunks_exact_mut(count * tokens)) {
            codec.score(&prepared[..count], blocks, scores)?;
        }
        Ok(())
    })
}
