//! The work of attention for some query rows of a head: an online softmax over sinks, pages and the exact window.
//!
//! Tokens are cut into *parts*. A part has the pages of [`SPLIT`] positions, or as many exact
//! tokens, sinks first.
//!
//! ```text
//! positions   sinks │ part 0            │ part 1            │ …         │ exact window
//!             f16   │ page page … page  │ page page … page  │ page …    │ f16
//!                     └─ (m, l, Σ·v̂) ──+── (m, l, Σ·v̂) ──+── …  ─► finish ─► + exact parts ─► output
//! ```
//!
//! For each query a part gives the largest logit m, the sum l of exp(logit - m), and the output Σ
//! exp(logit - m)·v̂. Parts are added in order. Pages add up in the basis of their codec, exact
//! tokens apart from them, and both at the end.
//!
//! The position of a page decides its part. So a part does not depend on threads, on how many
//! queries share a pass, or on dropped pages that no query sees. Hence the results are the same
//! bits in all these cases, on every machine.

use super::{Attend, Total};
use crate::Error;
use crate::backend::Kernels;
use crate::cache::layout::{BATCH, SPLIT};
use crate::cache::position;
use crate::cache::rows::score_pages;
use crate::cache::view::{Scratch, View};
use crate::codec::in_page;
use crate::page::Run;
use core::ops::Range;
use octaplex_arch::Float;

/// Pairs of token and query from which on waking threads pays off. A pair takes a few nanoseconds.
#[cfg(feature = "rayon")]
pub(super) const PARALLEL_FROM: usize = 16_384;

/// Softmax totals for each query of a batch.
type Totals = [Total; BATCH];

/// The number of f32 that [`Totals`] take in scratch memory.
#[cfg(feature = "rayon")]
const TOTALS: usize = 2 * BATCH;

/// Stores totals in scratch memory as pairs (max, sum).
#[cfg(feature = "rayon")]
fn write_totals(totals: &Totals, memory: &mut [f32]) {
    let pairs = memory.as_chunks_mut().0.iter_mut();
    pairs.zip(totals).for_each(|(pair, total)| *pair = [total.max, total.sum]);
}

/// Reads totals from scratch memory, and returns the output that follows them.
#[cfg(feature = "rayon")]
fn read_totals(memory: &[f32]) -> (Totals, &[f32]) {
    let mut totals = [Total::EMPTY; BATCH];
    let (pairs, output) = memory.split_at(TOTALS);
    totals.iter_mut().zip(pairs.as_chunks().0).for_each(|(total, [max, sum])| {
        *total = Total { max: *max, sum: *sum };
    });
    (totals, output)
}

/// Adds the totals and outputs of another part to the first.
fn add_part(
    backend: Kernels,
    dim: usize,
    (totals, acc): (&mut Totals, &mut [f32]),
    (others, other_acc): (&Totals, &[f32]),
) {
    let rows = acc.chunks_exact_mut(dim).zip(other_acc.chunks_exact(dim));
    for ((total, other), sums) in totals.iter_mut().zip(others).zip(rows) {
        total.add(backend, *other, [sums]);
    }
}

/// The work of one pass over a key/value head: at most [`BATCH`] of its query rows.
#[derive(Clone, Copy)]
pub(super) struct Unit<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) options: &'a Resolved<'a>,
    pub(super) head: usize,
    /// Index of the first row among all rows of this head. Rows are laid out \[query head]\[query].
    pub(super) row: usize,
    pub(super) queries: &'a [f32],
}

/// Options with every default filled in.
pub(super) struct Resolved<'a> {
    pub(super) options: Attend<'a>,
    pub(super) scale: f32,
    /// Query heads that share a key/value head, and queries of a block.
    pub(super) group: usize,
    pub(super) queries: usize,
    /// Position of the first query of the block.
    pub(super) position: usize,
    /// The position after the newest token.
    pub(super) next: usize,
}

impl Unit<'_> {
    fn rows(&self) -> usize {
        self.queries.len() / self.view.layout.key_dim
    }

    /// Returns the positions that a row sees without the exception for sinks.
    fn visible(&self, row: usize) -> Range<usize> {
        // A division would take as long as some tokens. One query and the first head need none.
        let (queries, mut query) = (self.options.queries, self.row + row);
        if query >= queries {
            query = if queries == 1 { 0 } else { query % queries };
        }
        let position = self.options.position.saturating_add(query);
        let end = position.saturating_add(1);
        self.options.options.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Returns whether any row of this unit sees any of these positions.
    fn sees(&self, positions: Range<usize>) -> bool {
        (0..self.rows()).any(|row| {
            let visible = self.visible(row);
            visible.start < positions.end && positions.start < visible.end
        })
    }

    /// Turns scores of consecutive positions into logits, and returns the largest logit that is
    /// visible.
    ///
    /// It applies scale, soft cap and bias in this order, and sets hidden tokens to -∞. `offset` is
    /// what a page's centre adds to all of its scores.
    fn logits(&self, row: usize, offset: f32, first: usize, is_sink: bool, x: &mut [f32]) -> f32 {
        let Resolved { options, scale, .. } = self.options;
        let backend = self.view.backend;
        let max = backend.scale_logits(x, offset, *scale);
        let visible = self.visible(row);
        let start = if is_sink && options.keep_sinks { 0 } else { visible.start };
        let all = start <= first && first + x.len() <= visible.end;
        if all && options.soft_cap.is_none() && options.bias.is_empty() {
            return max;
        }
        if let Some(cap) = options.soft_cap {
            backend.soft_cap(x, cap);
        }
        if !options.bias.is_empty() {
            let head = if options.bias.len() == self.options.next {
                0
            } else {
                self.head * self.options.group + (self.row + row) / self.options.queries
            };
            let bias = &options.bias[head * self.options.next + first..];
            x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        let hidden = start.saturating_sub(first).min(x.len());
        let end = visible.end.saturating_sub(first).clamp(hidden, x.len());
        x[..hidden].fill(f32::NEG_INFINITY);
        x[end..].fill(f32::NEG_INFINITY);
        backend.min_max(&x[hidden..end]).1
    }

    /// Attends to the pages of one part. Writes weighted sums to `part`, in the codec's basis, and
    /// returns the totals.
    ///
    /// There are two passes: the first scores all pages, which finds the largest logit. The second
    /// turns logits into weights and accumulates values.
    fn pages(
        &self,
        range: Range<usize>,
        balanced: &[f32],
        all_scores: &mut [f32],
        part: &mut [f32],
    ) -> Result<Totals, Error> {
        let (view, layout, rows) = (self.view, self.view.layout, self.rows());
        // A bit for each page that is seen: a part has at most 64.
        let (first, mut bits) = (range.start, 0u64);
        for (index, page) in view.pages(range.clone()) {
            let start = position(page);
            bits |= u64::from(self.sees(start..start + layout.page)) << ((index - first) % 64);
        }
        let seen = || view.pages(range.clone()).filter(|(index, _)| bits >> ((index - first) % 64) & 1 == 1);
        let mut totals = [Total::EMPTY; BATCH];
        let per_page = rows * layout.page;
        let mut pages = seen().map(|(_, page)| (page, view.head(page, self.head).keys)).peekable();
        let mut keys = core::iter::from_fn(|| {
            let (_, mut keys) = pages.next()?;
            // Prefetch the next page: pages lie apart in memory, and a page takes about as long to
            // read as to score.
            if let Some((page, next)) = pages.peek() {
                [&page[..layout.header], next.centre, next.norms]
                    .iter()
                    .for_each(|bytes| view.backend.prefetch(bytes));
                keys.ahead = next.rows;
            }
            Some(keys)
        });
        let prefix = &view.store.front()[layout.prefix(self.head)];
        let count = range.len();
        let (offsets, all_scores) = all_scores.split_at_mut(rows * count);
        let result = score_pages(view, balanced, prefix, &mut keys, all_scores, offsets);
        // Pages that are seen follow each other, so a block counted over all of them is found from the first.
        let first = seen().next().map_or(0, |(index, _)| index);
        let counted = |error| in_page(error, first, layout.page);
        result.map_err(counted)?;
        for (number, ((_, page), scores)) in seen().zip(all_scores.chunks_exact_mut(per_page)).enumerate() {
            for (row, scores) in scores.chunks_exact_mut(layout.page).enumerate() {
                let offset = offsets[row * count + number];
                let max = self.logits(row, offset, position(page), false, scores);
                totals[row].raise(max);
            }
        }
        part.fill(0.0);
        let (format, mut run) = (layout.values.of(view.values, view.backend), Run::default());
        let mut pages = seen().map(|(_, page)| view.head(page, self.head).values).peekable();
        let mut number = 0;
        while let Some(mut values) = pages.next() {
            let weights = &mut all_scores[number * per_page..][..per_page];
            let mut any = false;
            for (row, weights) in weights.chunks_exact_mut(layout.page).enumerate() {
                any |= totals[row].weigh(view.backend, weights);
            }
            if let Some(next) = pages.peek() {
                view.backend.prefetch(next.norms);
                values.ahead = next.rows;
            }
            // A page without weight ends the run.
            if !any || run.push(number, values) {
                run.accumulate(&*format, (rows, layout.page), all_scores, part).map_err(counted)?;
            }
            number += 1;
        }
        run.accumulate(&*format, (rows, layout.page), all_scores, part).map_err(counted)?;
        Ok(totals)
    }

    /// Attends to exact tokens with these numbers (sinks first). Writes weighted sums to
    /// `scratch.part`, and returns the totals.
    fn exact(&self, numbers: Range<usize>, scratch: &mut Scratch) -> Totals {
        let (view, layout, rows) = (self.view, self.view.layout, self.rows());
        let (backend, count) = (view.backend, numbers.len());
        let runs = view.runs(self.head, numbers);
        let mut queries: [&[f32]; BATCH] = [&[]; BATCH];
        let each = self.queries.chunks_exact(layout.key_dim);
        queries.iter_mut().zip(each).for_each(|(slot, query)| *slot = query);
        let scores = &mut scratch.scores[..rows * count];
        let mut totals = [Total::EMPTY; BATCH];
        let mut from = 0;
        for (number, run) in runs.iter().enumerate() {
            let len = run.keys.len() / (2 * layout.key_dim);
            let part = &mut scratch.runs[..rows * len];
            backend.score_floats(Float::F16, layout.key_dim, run.keys, &queries[..rows], part);
            for (row, part) in part.chunks_exact_mut(len.max(1)).enumerate() {
                let max = self.logits(row, 0.0, run.position, number == 0, part);
                totals[row].raise(max);
                scores[row * count + from..][..len].copy_from_slice(part);
            }
            from += len;
        }
        for (row, weights) in scores.chunks_exact_mut(count).enumerate() {
            totals[row].weigh(backend, weights);
        }
        scratch.part.fill(0.0);
        let mut from = 0;
        for run in &runs {
            let len = run.keys.len() / (2 * layout.key_dim);
            let part = &mut scratch.runs[..rows * len];
            for (row, part) in part.chunks_exact_mut(len.max(1)).enumerate() {
                part.copy_from_slice(&scores[row * count + from..][..len]);
            }
            backend.accumulate_floats(Float::F16, layout.value_dim, run.values, part, scratch.part);
            from += len;
        }
        totals
    }

    /// Returns the page indices of each part, in order. Dropped pages leave a part shorter, or out.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let (store, sinks) = (self.view.store, self.view.layout.sinks);
        let part = move |index: usize| position(store.page(index)).saturating_sub(sinks) / SPLIT;
        let mut next = 0;
        core::iter::from_fn(move || {
            let first = next;
            while next < store.pages() && part(next) == part(first) {
                next += 1;
            }
            (next > first).then_some(first..next)
        })
    }

    /// Attends to everything with this unit's queries, and writes the outputs.
    pub(super) fn attend(&self, output: &mut [f32], memory: &mut [f32]) -> Result<(), Error> {
        let (view, layout) = (self.view, self.view.layout);
        let (memory, more) = memory.split_at_mut(layout.unit_scratch(self.rows()));
        let mut scratch = Scratch::new(layout, self.rows(), memory);
        view.balanced(self.head, self.queries, scratch.balanced);
        let mut paged = [Total::EMPTY; BATCH];
        scratch.paged.fill(0.0);
        #[cfg(not(feature = "rayon"))]
        let _ = more;
        #[cfg(feature = "rayon")]
        {
            let (result, worker) = layout.part_scratch(self.rows());
            let work = view.store.pages() * layout.page * self.rows();
            let parts = self.parts().count();
            if parts > 1 && work >= PARALLEL_FROM && more.len() >= parts * result + 2 * worker {
                let (results, work) = more.split_at_mut(parts * result);
                self.parallel_parts(scratch.balanced, (results, result), (work, worker))?;
                for result in results.chunks_exact(result) {
                    let (totals, part) = read_totals(result);
                    let sum = (&mut paged, &mut *scratch.paged);
                    add_part(view.backend, layout.value_dim, sum, (&totals, part));
                }
                self.finish(paged, output, &mut scratch);
                return Ok(());
            }
        }
        for range in self.parts() {
            let totals = self.pages(range, scratch.balanced, scratch.scores, scratch.part)?;
            let sum = (&mut paged, &mut *scratch.paged);
            add_part(view.backend, layout.value_dim, sum, (&totals, scratch.part));
        }
        self.finish(paged, output, &mut scratch);
        Ok(())
    }

    /// Computes every part of the pages into its own slot of `results`. As many run at once as
    /// `work` has memory for.
    #[cfg(feature = "rayon")]
    fn parallel_parts(
        &self,
        balanced: &[f32],
        (results, result): (&mut [f32], usize),
        (work, worker): (&mut [f32], usize),
    ) -> Result<(), Error> {
        use rayon::prelude::*;
        let parts = results.len() / result;
        let each = parts.div_ceil(work.len() / worker);
        let groups = results.par_chunks_mut(each * result).zip(work.par_chunks_mut(worker)).enumerate();
        groups.into_par_iter().try_for_each(|(group, (results, scores))| {
            let ranges = self.parts().skip(group * each);
            for (result, range) in results.chunks_exact_mut(result).zip(ranges) {
                let (totals, part) = result.split_at_mut(TOTALS);
                write_totals(&self.pages(range, balanced, scores, part)?, totals);
            }
            Ok(())
        })
    }

    /// Adds the exact tokens to the sum of the pages in `scratch.paged`, and writes the outputs.
    ///
    /// The page sums leave the codec's basis here, once for each query and not once a token.
    fn finish(&self, mut totals: Totals, output: &mut [f32], scratch: &mut Scratch) {
        let (view, layout, dim) = (self.view, self.view.layout, self.view.layout.value_dim);
        view.values.finish(scratch.paged);
        let mut exact = [Total::EMPTY; BATCH];
        scratch.exact.fill(0.0);
        for first in (0..view.exact()).step_by(SPLIT) {
            let part = self.exact(first..view.exact().min(first + layout.exact_tokens()), scratch);
            add_part(view.backend, dim, (&mut exact, &mut *scratch.exact), (&part, scratch.part));
        }
        add_part(view.backend, dim, (&mut totals, &mut *scratch.paged), (&exact, scratch.exact));
        for (row, (output, sum)) in
            output.chunks_exact_mut(dim).zip(scratch.paged.chunks_exact(dim)).enumerate()
        {
            let head = self.head * self.options.group + (self.row + row) / self.options.queries;
            let sink = self.options.options.sink_logits.get(head);
            let scale = totals[row].scale(view.backend, sink.copied());
            output.iter_mut().zip(sum).for_each(|(output, sum)| *output = sum * scale);
        }
    }
}
