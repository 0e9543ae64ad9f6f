//! Scores and sums of a head's pages: what a cache asks of a codec beyond its trait.

use super::norms;
use super::page::{BATCH, Grade, Head};
use super::view::View;
use crate::Error;
use crate::codec::planes::CentreCode;
use crate::codec::query::each_batch;
use crate::codec::scratch::{MAX_SCRATCH, bytes_of, with_scratch, words_for};
use crate::codec::{at_row, count_rows};
use octaplex_arch::Rows;

/// Prepares at most [`BATCH`] queries once, and scores the pages of a head, one after the other: scores are laid out
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
        let mut grades = layout.keys.grades(codec).map(|grade| (grade.queries(prepared), grade));
        let grades: [_; 2] = core::array::from_fn(|_| grades.next());
        let coded = if layout.keys.is_lean() { each * centre } else { 0 };
        with_scratch(words_for(coded) + offsets.len(), |memory| {
            let (ours, memory) = memory.split_at_mut(offsets.len());
            let centres = bytes_of(memory, coded);
            for (index, (head, scores)) in
                (&mut *pages).zip(scores.chunks_exact_mut(count * layout.page)).enumerate()
            {
                match grades {
                    [None, _] => {
                        view.backend.prefetch(head.ahead);
                        codec.score(prepared, head.keys, scores)?;
                    }
                    _ => score_page(&grades, count, &head, scores)?,
                }
                if coded > 0 {
                    centres[index * centre..][..centre].copy_from_slice(head.centre);
                } else if centre > 0 {
                    view.offsets(queries, head.centre, &mut base);
                }
                offsets[index..].iter_mut().step_by(each).zip(&base).for_each(|(slot, base)| *slot = *base);
            }
            for (queries, grade) in grades.iter().flatten().filter(|_| coded > 0) {
                let last = coded - centre + grade.centre.end;
                let centres = &centres[grade.centre.start..last];
                CentreCode::new(grade.planes).score(&queries[..count], centres, centre, ours)?;
                offsets.iter_mut().zip(&*ours).for_each(|(offset, ours)| *offset += *ours);
            }
            Ok(())
        })
    })
}

/// What a grade needs of prepared queries.
type Queries<'q> = [&'q [f32]; BATCH];

impl Grade<'_> {
    fn queries<'q>(&self, prepared: &[&'q [f32]]) -> Queries<'q> {
        let mut queries: Queries = [&[]; BATCH];
        queries.iter_mut().zip(prepared).for_each(|(slot, words)| *slot = &words[self.words.clone()]);
        queries
    }

    /// Rows and their norms, and what comes next.
    fn rows<'r>(&self, bytes: &'r [u8], norms: &'r [f32], ahead: &'r [u8]) -> Rows<'r> {
        let (stride, dim) = (self.row, self.planes.dim());
        let ahead = ahead.get(self.rows.clone()).unwrap_or_default();
        Rows { bytes: &bytes[self.rows.clone()], stride, len: stride + 2, dim, scales: Some(norms), ahead }
    }
}

/// A page's rows of planes: those of one grade, or the sums of those of two.
fn score_page(
    grades: &[Option<(Queries, Grade)>; 2],
    count: usize,
    head: &Head,
    scores: &mut [f32],
) -> Result<(), Error> {
    let tokens = scores.len() / count.max(1);
    for (index, (queries, grade)) in grades.iter().flatten().enumerate() {
        let (planes, queries) = (grade.planes, &queries[..count]);
        // As many queries of the second grade as there is room for on the stack.
        let batch = (MAX_SCRATCH / tokens.max(1) - 1).min(count);
        with_scratch(tokens * if index > 0 { 1 + batch } else { 1 }, |memory| {
            let (norms, more) = memory.split_at_mut(tokens);
            norms::decode(planes.backend(), &head.key_norms[grade.norms.clone()], norms)?;
            let rows = grade.rows(head.keys, norms, head.ahead);
            if index == 0 {
                return planes.score_rows(&planes.format(), queries, &rows, scores);
            }
            let mut scored = Ok(());
            each_batch(batch.max(1), queries, scores, |queries, scores| {
                let more = &mut more[..scores.len()];
                scored = scored.and_then(|()| planes.score_rows(&planes.format(), queries, &rows, more));
                scores.iter_mut().zip(more).for_each(|(score, more)| *score += *more);
            });
            scored
        })?;
    }
    Ok(())
}

/// Adds a head's values of a page, weights laid out \[query]\[token].
pub(crate) fn accumulate_page(
    view: &View,
    weights: &[f32],
    head: &Head,
    acc: &mut [f32],
) -> Result<(), Error> {
    let codec = view.values;
    let Some(grade) = view.layout.values.grades(codec).next() else {
        view.backend.prefetch(head.ahead);
        return codec.accumulate(weights, head.values, acc);
    };
    let planes = grade.planes;
    with_scratch(weights.len() * codec.dim() / acc.len().max(1), |norms| {
        norms::decode(planes.backend(), head.value_norms, norms)?;
        planes.accumulate_rows(weights, &grade.rows(head.values, norms, head.ahead), acc);
        Ok(())
    })
}
