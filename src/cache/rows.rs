//! Scores and weighted sums over the pages of a head. Queries are prepared once for many pages.

use super::layout::BATCH;
use super::view::View;
use crate::Error;
use crate::codec::scratch::with_scratch;
use crate::codec::{at_row, count_rows};
use crate::page::{Part, Queries};

/// Prepares at most [`BATCH`] queries once, and scores the keys of a head's pages with them.
///
/// `scores` are \[page]\[query]\[token], without the products of queries and centres. These products are in `offsets`,
/// \[query]\[page].
///
/// Prepared queries live on the stack. To prepare them again for each part is cheap compared with thousands of scores.
///
/// # Errors
/// Errors of [`Codec::prepare_query`](crate::codecs::Codec::prepare_query) and
/// [`Codec::score`](crate::codecs::Codec::score). A corrupt block is counted over all pages.
pub(crate) fn score_pages(
    view: &View,
    queries: &[f32],
    prefix: &[u8],
    pages: &mut dyn Iterator<Item = Part>,
    scores: &mut [f32],
    offsets: &mut [f32],
) -> Result<(), Error> {
    let (codec, layout, len) = (view.keys, view.layout, view.keys.query_len());
    let count = count_rows(queries, layout.key_dim)?;
    let each = offsets.len() / count.max(1);
    let mut base = [0.0; BATCH];
    view.offsets(queries, prefix, &mut base);
    offsets.chunks_exact_mut(each.max(1)).zip(&base).for_each(|(offsets, base)| offsets.fill(*base));
    with_scratch(count * len, |words| {
        for (row, (q, words)) in
            queries.chunks_exact(layout.key_dim).zip(words.chunks_exact_mut(len)).enumerate()
        {
            codec.prepare_query(q, words).map_err(|error| at_row(error, row, layout.key_dim))?;
        }
        let mut prepared: [&[f32]; BATCH] = [&[]; BATCH];
        prepared.iter_mut().zip(words.chunks_exact(len)).for_each(|(slot, words)| *slot = words);
        let queries = Queries { rows: queries, prepared: &prepared[..count] };
        layout.keys.of(codec, view.backend).score(&queries, pages, scores, offsets)
    })
}
