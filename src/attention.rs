//! Attention on a layer: the options of a call, their checks, and which thread attends for which head.
//!
//! `unit.rs` does the work for some query rows of a head.

mod totals;
mod unit;

pub(crate) use totals::Total;

use crate::Error;
use crate::cache::Layer;
use crate::cache::storage::Storage;
use crate::cache::view::MAX_QUERY;
use crate::codec::Codec;
use crate::math::inverse_sqrt;
use crate::spec::builders;
use core::ops::Range;
#[cfg(feature = "rayon")]
use unit::PARALLEL_FROM;
use unit::{Resolved, Unit};

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
    /// sliding window, or all positions. A number above the layer's window makes the result depend
    /// on which older tokens the layer still has: do not pass one.
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

/// Names the number of queries in the error of a block that has more of them than the cache has tokens.
pub(crate) const MOST_QUERIES: &str = "queries of a head, at most one for each token that was appended";

/// Scales and soft caps stay below this, 2⁴⁰.
const MAX_SCALE: f32 = 1_099_511_627_776.0;
/// Biases stay below this, 2¹²⁶, so that adding one to a logit cannot overflow.
pub(crate) const MAX_BIAS: f32 = 8.507_059e37;

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
    ///   than `max_rollback`: the layer has dropped tokens that the block would see. Append and
    ///   attend to such a prompt in blocks of at most `max_rollback + 1` tokens.
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
        let (what, width, actual) = ("queries", layout.key_dim, queries.len());
        let query_heads = actual / block.saturating_mul(width);
        let is_whole = actual.is_multiple_of(block.saturating_mul(width));
        if let Some(all) = self.config.query_heads {
            let heads = all / self.config.kv_heads * heads;
            if !is_whole || query_heads != heads {
                return Err(Error::Rows { what, heads, width, each: options.queries, actual });
            }
        }
        if !is_whole {
            return Err(Error::Rows { what, heads: block, width, each: None, actual });
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
            None => return Err(Error::Length { what: MOST_QUERIES, expected: next, actual: queries }),
        };
        let window = options.window.or(self.config.sliding_window);
        if let Some(window) = window {
            let block = position..position.saturating_add(queries);
            self.state.check_block(block, window, &self.config)?;
        }
        let scale = options.scale.unwrap_or_else(|| inverse_sqrt(self.config.key_dim));
        Ok(Resolved { options: Attend { window, ..*options }, scale, group, queries, position, next })
    }
}
