//! Attention on a layer: an online softmax over sinks, pages and the exact window.
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

mod totals;

pub(crate) use totals::Total;

use crate::Error;
use crate::backend::Kernels;
use crate::cache::layout::{BATCH, SPLIT};
use crate::cache::rows::score_pages;
use crate::cache::storage::Storage;
use crate::cache::view::{MAX_QUERY, Scratch, View};
use crate::cache::{Layer, State, position};
use crate::codec::Codec;
use crate::math::inverse_sqrt;
use crate::page::{Run, in_page};
use crate::spec::builders;
use core::ops::Range;
use octaplex_arch::Float;

/// Options of attention. The default is causal, scaled by 1/√width, and sees every token.
///
/// Set fields directly, or use the builder method of the same name:
/// `Attend::default().queries(8).soft_cap(50.0)`.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Attend<'a> {
    /// Queries of each query head. The default follows from the length of the input if the layer
    /// knows its [`query_heads`](field@crate::LayerConfig::query_heads), and is 1 otherwise.
    pub queries: Option<usize>,
    /// Factor of the logits: logit = scale · q·k. The default is 1/√(key width). It must be below
    /// 2⁴⁰ in magnitude.
    pub scale: Option<f32>,
    /// Soft cap, applied before the bias: logit = cap · tanh(logit/cap). From 10⁻⁶ to 2⁴⁰.
    pub soft_cap: Option<f32>,
    /// The number of positions that a query sees, its own included. The default is the layer's
    /// sliding window, or all positions.
    pub window: Option<usize>,
    /// Whether queries see the sinks even if these are outside the window.
    pub keep_sinks: bool,
    /// A learned logit for each query head, which takes weight and adds nothing to the output.
    /// Empty for none.
    pub sink_logits: &'a [f32],
    /// Values to add to the logits: \[positions], or \[query heads]\[positions]. -∞ hides a token.
    /// Others must be below 2¹²⁶.
    pub bias: &'a [f32],
    /// Position of the first query. Queries of a block have consecutive positions, and see no later
    /// token.
    ///
    /// By default the block is at the end: its last query has the position of the newest token.
    pub position: Option<usize>,
    /// The key/value head whose query heads come first in the input.
    ///
    /// With `heads`, several threads can share the heads of one token, each in its own call.
    /// `sink_logits` and `bias` still cover all query heads, and [`Layer::attend`] needs the
    /// scratch memory of a call for all heads. Errors count heads from this one.
    pub first_head: usize,
    /// The number of key/value heads whose queries are passed. The default is all from `first_head`
    /// on.
    pub heads: Option<usize>,
}

impl<'a> Attend<'a> {
    builders! {
        queries: usize => Some;
        scale: f32 => Some;
        soft_cap: f32 => Some;
        window: usize => Some;
        keep_sinks: bool;
        sink_logits: &'a [f32];
        bias: &'a [f32];
        position: usize => Some;
        first_head: usize;
        heads: usize => Some;
    }

    /// Returns the key/value heads of a call on a layer with `count` of them.
    pub(crate) fn heads_of(&self, count: usize) -> Result<Range<usize>, Error> {
        let heads = self.heads.unwrap_or(count.saturating_sub(self.first_head));
        let last = self.first_head.saturating_add(heads.saturating_sub(1));
        if last >= count {
            return Err(Error::Missing { what: "key/value head", number: last, count });
        }
        if heads == 0 {
            return Err(Error::Unsupported { why: "a call has queries of at least 1 key/value head" });
        }
        Ok(self.first_head..last + 1)
    }
}

/// Scales and soft caps stay below this, 2⁴⁰.
const MAX_SCALE: f32 = 1_099_511_627_776.0;
/// Biases stay below this, 2¹²⁶, so that adding one to a logit cannot overflow.
pub(crate) const MAX_BIAS: f32 = 8.507_059e37;

/// Pairs of token and query from which on waking threads pays off. A pair takes a few nanoseconds.
#[cfg(feature = "rayon")]
const PARALLEL_FROM: usize = 16_384;

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
struct Unit<'a> {
    view: &'a View<'a>,
    options: &'a Resolved<'a>,
    head: usize,
    /// Index of the first row among all rows of this head. Rows are laid out \[query head]\[query].
    row: usize,
    queries: &'a [f32],
}

/// Options with every default filled in.
struct Resolved<'a> {
    options: Attend<'a>,
    scale: f32,
    /// Query heads that share a key/value head, and queries of a block.
    group: usize,
    queries: usize,
    /// Position of the first query of the block.
    position: usize,
    /// The position after the newest token.
    next: usize,
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
    fn attend(&self, output: &mut [f32], memory: &mut [f32]) -> Result<(), Error> {
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

/// Checks that scale, soft cap and window are in range.
pub(crate) fn check_options(options: &Attend) -> Result<(), Error> {
    let refuse = |why| Err(Error::Unsupported { why });
    if options.scale.is_some_and(|scale| scale.is_nan() || scale.abs() >= MAX_SCALE) {
        return refuse("the scale of logits is a number below 2^40 in magnitude");
    }
    if options.soft_cap.is_some_and(|cap| !(1e-6..MAX_SCALE).contains(&cap)) {
        return refuse("soft caps are from 1e-6 to 2^40");
    }
    if options.window == Some(0) {
        return refuse("a window of 0 tokens sees nothing");
    }
    Ok(())
}

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    /// Computes attention of one query for each query head, or of a block of queries.
    ///
    /// `queries` are \[query heads]\[queries]\[key width], and `output` is \[query
    /// heads]\[queries]\[value width]. Both cover all heads, or those from
    /// [`first_head`](Attend::first_head) on. Query head h uses key/value head h / (query heads /
    /// key/value heads). Query heads that share one take a single pass over its bytes.
    ///
    /// `scratch` needs [`scratch_len`](crate::LayerConfig::scratch_len) values. With the feature
    /// `rayon`, more of it (`LayerConfig::parallel_scratch_len`) allows more threads.
    ///
    /// The output has the same bits on every machine, for every number of threads, and for every
    /// number of queries in a call.
    ///
    /// # Errors
    /// * [`Error::Empty`] for a layer without tokens.
    /// * [`Error::Dropped`] if the layer has a sliding window and the block begins further back
    ///   than `max_rollback`: the layer has dropped tokens that the block would see.
    /// * [`Error::Row`] for queries of 2⁵⁰ and more (divided by the scale if that is above 1), for
    ///   biases of 2¹²⁶ and more, and for sink logits that are not finite.
    /// * [`Error::Rows`], [`Error::Heads`] and [`Error::Length`] for inputs that do not fit the
    ///   layer.
    /// * [`Error::Missing`] for heads out of range.
    /// * [`Error::Unsupported`] for other options out of range.
    /// * [`Error::Corrupt`] for blocks that no codec wrote.
    ///
    /// After an error the output is unspecified, and the cache is as it was.
    pub fn attend(&self, queries: &[f32], output: &mut [f32], scratch: &mut [f32]) -> Result<(), Error> {
        self.attend_with(queries, &Attend::default(), output, scratch)
    }

    /// Computes attention with options; see [`attend`](Self::attend).
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn attend_with(
        &self,
        queries: &[f32],
        options: &Attend,
        output: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, view) = (&self.layout, self.view());
        let Range { start: first, end } = options.heads_of(self.config.kv_heads)?;
        let heads = end - first;
        let block = self.block(options, heads, queries.len() / layout.key_dim);
        if block == 0 {
            return Err(Error::Unsupported { why: "a block has at least 1 query a head" });
        }
        let query_heads = queries.len() / block.saturating_mul(layout.key_dim);
        if !queries.len().is_multiple_of(block.saturating_mul(layout.key_dim)) {
            let (what, width, actual) = ("queries", layout.key_dim, queries.len());
            return Err(Error::Rows { what, heads: block, width, each: None, actual });
        }
        if let Some(all) = self.config.query_heads {
            let (what, width, heads) = ("queries", layout.key_dim, all / self.config.kv_heads * heads);
            if query_heads != heads {
                let (each, actual) = (options.queries, queries.len());
                return Err(Error::Rows { what, heads, width, each, actual });
            }
        }
        if !query_heads.is_multiple_of(heads) {
            return Err(Error::Heads { queries: query_heads, kv_heads: heads });
        }
        if output.len() != query_heads * block * layout.value_dim {
            let (what, width, actual) = ("output", layout.value_dim, output.len());
            return Err(Error::Rows { what, heads: query_heads, width, each: Some(block), actual });
        }
        let per_head = query_heads / heads * block;
        if per_head == 0 {
            return Ok(());
        }
        if view.exact() + self.store.pages() == 0 {
            self.check_rows("queries", (block, layout.key_dim), queries, MAX_QUERY)?;
            return Err(Error::Empty);
        }
        let resolved = self.resolve(options, block, per_head)?;
        let scale = resolved.scale.abs();
        let limit = if scale > 1.0 { MAX_QUERY / scale } else { MAX_QUERY };
        self.check_rows("queries", (block, layout.key_dim), queries, limit)?;
        let needed = layout.unit_scratch(per_head);
        if scratch.len() < needed {
            return Err(Error::Length { what: "values of scratch", expected: needed, actual: scratch.len() });
        }
        let attend_head = |head: usize, queries: &[f32], output: &mut [f32], memory: &mut [f32]| {
            let most = view.batch();
            let batches = queries.chunks(most * layout.key_dim).enumerate();
            let mut batches = batches.zip(output.chunks_mut(most * layout.value_dim));
            batches.try_for_each(|((batch, queries), output)| {
                let unit =
                    Unit { view: &view, options: &resolved, head: first + head, row: batch * most, queries };
                unit.attend(output, memory)
            })
        };
        let (query_len, output_len) = (per_head * layout.key_dim, per_head * layout.value_dim);
        #[cfg(feature = "rayon")]
        if scratch.len() / heads >= needed && self.tokens() * per_head * heads >= PARALLEL_FROM {
            use rayon::prelude::*;
            let memory = scratch.len() / heads;
            return queries
                .par_chunks(query_len)
                .zip(output.par_chunks_mut(output_len))
                .zip(scratch.par_chunks_mut(memory))
                .enumerate()
                .try_for_each(|(head, ((queries, output), memory))| {
                    attend_head(head, queries, output, memory)
                });
        }
        let mut each = queries.chunks(query_len).zip(output.chunks_mut(output_len)).enumerate();
        each.try_for_each(|(head, (queries, output))| attend_head(head, queries, output, scratch))
    }

    /// Returns the queries of each query head: from the options, or from the number of rows if the
    /// layer knows its query heads, or 1.
    pub(crate) fn block(&self, options: &Attend, heads: usize, rows: usize) -> usize {
        let per_head = |all: usize| rows / (all / self.config.kv_heads * heads).max(1);
        options.queries.unwrap_or_else(|| self.config.query_heads.map_or(1, per_head).max(1))
    }

    /// Checks the options, and fills in their defaults.
    fn resolve<'a>(
        &self,
        options: &Attend<'a>,
        queries: usize,
        per_head: usize,
    ) -> Result<Resolved<'a>, Error> {
        let next = self.state.next;
        let group = per_head / queries;
        let query_heads = group * self.config.kv_heads;
        check_options(options)?;
        if !options.sink_logits.is_empty() {
            Error::expect_length("sink logits", query_heads, options.sink_logits.len())?;
            self.check_rows("sink logits", (1, 1), options.sink_logits, f32::INFINITY)?;
        }
        if !options.bias.is_empty() && options.bias.len() != next {
            Error::expect_length("bias values", query_heads.saturating_mul(next), options.bias.len())?;
        }
        if let Some(at) = options.bias.iter().position(|x| x.is_nan() || *x >= MAX_BIAS) {
            return Err(self.row_error("bias", (1, next), at, Some(options.bias[at].is_finite())));
        }
        let position = match options.position {
            Some(position) => position,
            None if queries <= next => next - queries,
            None => return Err(Error::Length { what: "queries, at most", expected: next, actual: queries }),
        };
        let window = options.window.or(self.config.sliding_window);
        let end = position.saturating_add(1);
        if let (Some(window), Some(sliding)) = (window, self.config.sliding_window)
            && end > self.layout.sinks
        {
            let visible = end.saturating_sub(window.min(sliding)).max(self.layout.sinks);
            State::check_held(visible, self.state.floor.min(self.state.start), next.saturating_sub(end))?;
        }
        let scale = options.scale.unwrap_or_else(|| inverse_sqrt(self.config.key_dim));
        Ok(Resolved { options: Attend { window, ..*options }, scale, group, queries, position, next })
    }
}
