//! Scores and sums of a head's pages: what a cache asks of a codec beyond its trait.

use super::norms;
use super::page::{BATCH, Head, Side};
use super::view::View;
use crate::Error;
use crate::codec::planes::CentreCode;
use crate::codec::scratch::{bytes_of, with_scratch, words_for};
use crate::codec::{Codec, at_row, count_rows};
use octaplex_arch::Rows;

/// Prepares at most eight queries once, and scores the pages of a head, one after the other: scores are laid out
/// \[page]\[query]\[token]. They lack what the page's centre adds to them, which is in `offsets`, \[query]\[page].
///
/// Prepared queries live on the stack: preparing is cheap beside thousands of scores.
///
/// # Errors
/// As [`Codec::prepare_query`] and [`Codec::score`]; a corrupt block is counted within its page.
pub(crate) fn score_pages(
    view: &View,
    queries: &[f32],
    prefix: &[u8],
    pages: &mut dyn Iterator<Item = Head>,
    scores: &mut [f32],
    offsets: &mut [f32],
) -> Result<(), Error> {
    let (codec, layout, len) = (view.keys, view.layout, view.keys.query_len());
    let count = count_rows(queries, layout.key_dim)?;
    let (each, centre) = (offsets.len() / count.max(1), layout.centre_bytes);
    let mut base = [0.0; BATCH];
    view.offsets(queries, prefix, &mut base);
    with_scratch(count * len, |words| {
        for (row, (q, words)) in
            queries.chunks_exact(layout.key_dim).zip(words.chunks_exact_mut(len)).enumerate()
        {
            codec.prepare_query(q, words).map_err(|error| at_row(error, row, layout.key_dim))?;
        }
        let mut prepared: [&[f32]; BATCH] = [&[]; BATCH];
        prepared.iter_mut().zip(words.chunks_exact(len)).for_each(|(slot, words)| *slot = words);
        let prepared = &prepared[..count];
        let planes = layout.keys.planes(codec);
        let coded = if planes.is_some() { each * centre } else { 0 };
        with_scratch(words_for(coded) + offsets.len(), |memory| {
            let (ours, memory) = memory.split_at_mut(offsets.len());
            let centres = bytes_of(memory, coded);
            for (index, (head, scores)) in
                (&mut *pages).zip(scores.chunks_exact_mut(count * layout.page)).enumerate()
            {
                score_page(codec, &layout.keys, prepared, &head, scores)?;
                if coded > 0 {
                    centres[index * centre..][..centre].copy_from_slice(head.centre);
                } else if centre > 0 {
                    view.offsets(queries, head.centre, &mut base);
                }
                offsets[index..].iter_mut().step_by(each).zip(&base).for_each(|(slot, base)| *slot = *base);
            }
            if let (1.., Some(planes)) = (coded, planes) {
                CentreCode::new(planes).score(prepared, centres, ours)?;
                offsets.iter_mut().zip(ours).for_each(|(offset, ours)| *offset += *ours);
            }
            Ok(())
        })
    })
}

/// Rows of planes and their norms.
fn rows_of<'a>(bytes: &'a [u8], side: &Side, dim: usize, norms: &'a [f32]) -> Rows<'a> {
    Rows { bytes, stride: side.row, len: side.row + 2, dim, scales: Some(norms) }
}

fn score_page(
    codec: &dyn Codec,
    side: &Side,
    queries: &[&[f32]],
    head: &Head,
    scores: &mut [f32],
) -> Result<(), Error> {
    let Some(planes) = side.planes(codec) else {
        return codec.score(queries, head.keys, scores);
    };
    with_scratch(scores.len() / queries.len().max(1), |norms| {
        norms::decode(planes.backend(), head.key_norms, norms)?;
        planes.score_rows(&planes.format(), queries, &rows_of(head.keys, side, codec.dim(), norms), scores)
    })
}

/// Adds a head's values of a page, weights laid out \[query]\[token].
pub(crate) fn accumulate_page(
    codec: &dyn Codec,
    side: &Side,
    weights: &[f32],
    head: &Head,
    acc: &mut [f32],
) -> Result<(), Error> {
    let Some(planes) = side.planes(codec) else {
        return codec.accumulate(weights, head.values, acc);
    };
    with_scratch(weights.len() * codec.dim() / acc.len().max(1), |norms| {
        norms::decode(planes.backend(), head.value_norms, norms)?;
        planes.accumulate_rows(weights, &rows_of(head.values, side, codec.dim(), norms), acc);
        Ok(())
    })
}

/// Decodes token number `token` of a page of `tokens`, from its rows and their norms. Where pages are more than their
/// blocks, as a sum with one weight that is not 0.
pub(crate) fn decode_token(
    codec: &dyn Codec,
    side: &Side,
    (bytes, norms): (&[u8], &[u8]),
    (token, tokens): (usize, usize),
    x: &mut [f32],
) -> Result<(), Error> {
    if let Some(planes) = side.planes(codec) {
        return with_scratch(tokens, |each| {
            norms::decode(planes.backend(), norms, each)?;
            planes.decode_rotated(&bytes[token * side.row..][..side.row + 2], each[token], x)?;
            planes.rotation().inverse(planes.backend(), x);
            Ok(())
        });
    }
    if bytes.len() == tokens * side.row {
        let decoded = codec.decode(&bytes[token * side.row..][..side.row], x);
        return decoded.map_err(|error| super::page::in_page(error, token, 1));
    }
    let mut weights = [0.0; norms::MAX_TOKENS];
    weights[token] = 1.0;
    x.fill(0.0);
    codec.accumulate(&weights[..tokens], bytes, x)?;
    codec.finish(x);
    Ok(())
}
