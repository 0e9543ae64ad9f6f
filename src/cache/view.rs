//! A layer as attention and its two products read it, whatever its types; and the memory that they work in.

use super::Layer;
use super::layout::{BATCH, Head, Layout};
use super::storage::Storage;
use crate::backend::Kernels;
use crate::codec::Codec;
use crate::codec::scratch::MAX_SCRATCH;
use crate::page::{read_balance, score_floats};
use core::ops::Range;
use octaplex_arch::MAX_DIM;

/// What queries, and queries times the scale, stay below (2⁵⁰), so that no logit leaves f32's range, whatever bytes the
/// pages hold:
///
/// | number | below |
/// |---|---|
/// | a query's values, times the balance (2⁸) | 2⁵⁸ |
/// | its norm, at most √576 times that | 2⁶³ |
/// | its score with a row of f32 norm (2⁵⁸), or a sketch 2⁵ times as long | 2¹²⁷ |
pub(crate) const MAX_QUERY: f32 = 1_125_899_906_842_624.0;

/// A layer, whatever its types.
pub(crate) struct View<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) backend: Kernels,
    pub(crate) keys: &'a dyn Codec,
    pub(crate) values: &'a dyn Codec,
    pub(crate) store: &'a dyn Storage,
    /// Tokens in the sinks and in the window, and where that begins.
    pub(crate) sinks: usize,
    pub(crate) window: usize,
    pub(crate) start: usize,
    pub(crate) place: usize,
    pub(crate) balanced: bool,
}

/// Some exact tokens: their first position, and rows.
pub(crate) struct Run<'a> {
    pub(crate) position: usize,
    pub(crate) keys: &'a [u8],
    pub(crate) values: &'a [u8],
}

impl<'a> View<'a> {
    pub(crate) fn pages(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let store = self.store;
        range.map(move |index| (index, store.page(index)))
    }

    pub(crate) fn head(&self, page: &'a [u8], head: usize) -> Head<'a> {
        self.layout.head(page, head)
    }

    /// Queries that share a pass: as many as fit the stack when they are prepared.
    pub(crate) fn batch(&self) -> usize {
        (MAX_SCRATCH / self.keys.query_len().max(1)).clamp(1, BATCH)
    }

    pub(crate) fn exact(&self) -> usize {
        self.sinks + self.window
    }

    /// Exact tokens, by their number: sinks, then the window, which may go round the end of its ring.
    pub(crate) fn runs(&self, head: usize, numbers: Range<usize>) -> [Run<'a>; 3] {
        let (layout, front) = (self.layout, self.store.front());
        let sinks = numbers.start.min(self.sinks)..numbers.end.min(self.sinks);
        let window = numbers.start.max(self.sinks) - self.sinks..numbers.end.max(self.sinks) - self.sinks;
        let place = (self.place + window.start) % layout.ring;
        let first = window.len().min(layout.ring - place);
        let run = |position, keys: Range<usize>, values: Range<usize>| Run {
            position,
            keys: &front[keys],
            values: &front[values],
        };
        let position = self.start + window.start;
        [
            run(
                sinks.start,
                layout.sink_keys(head, sinks.start, sinks.len()),
                layout.sink_values(head, sinks.start, sinks.len()),
            ),
            run(position, layout.window_keys(head, place, first), layout.window_values(head, place, first)),
            run(
                position + first,
                layout.window_keys(head, 0, window.len() - first),
                layout.window_values(head, 0, window.len() - first),
            ),
        ]
    }

    /// Queries in the domain of the pages' keys: multiplied by the balance.
    pub(crate) fn balanced(&self, head: usize, queries: &[f32], balanced: &mut [f32]) {
        balanced.copy_from_slice(queries);
        let memory = &self.store.front()[self.layout.balance(head)];
        if self.balanced {
            let mut balance = [0.0; MAX_DIM];
            let balance = &mut balance[..self.layout.key_dim];
            read_balance(self.backend, memory, balance);
            self.layout.balance.apply_to_queries(balanced, balance);
        }
    }

    /// q·centre of each query.
    pub(crate) fn offsets(&self, queries: &[f32], centre: &[u8], offsets: &mut [f32; BATCH]) {
        offsets.fill(0.0);
        score_floats(self.backend, queries, self.layout.key_dim, centre, offsets.iter_mut());
    }
}

/// The memory of one unit.
pub(crate) struct Scratch<'a> {
    pub(crate) balanced: &'a mut [f32],
    pub(crate) scores: &'a mut [f32],
    pub(crate) runs: &'a mut [f32],
    pub(crate) part: &'a mut [f32],
    pub(crate) paged: &'a mut [f32],
    pub(crate) exact: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    pub(crate) fn new(layout: &Layout, rows: usize, memory: &'a mut [f32]) -> Self {
        let (balanced, memory) = memory.split_at_mut(rows * layout.key_dim);
        let (scores, memory) = memory.split_at_mut(rows * layout.score_values());
        let (runs, memory) = memory.split_at_mut(rows * layout.exact_tokens());
        let (part, memory) = memory.split_at_mut(rows * layout.value_dim);
        let (paged, memory) = memory.split_at_mut(rows * layout.value_dim);
        Self { balanced, scores, runs, part, paged, exact: &mut memory[..rows * layout.value_dim] }
    }
}

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    pub(crate) fn view(&self) -> View<'_> {
        View {
            layout: &self.layout,
            backend: self.backend,
            keys: &self.keys,
            values: &self.values,
            store: &self.store,
            sinks: self.state.next.min(self.layout.sinks),
            window: self.state.window(),
            start: self.state.start,
            place: self.state.place_of(&self.layout, self.state.start),
            balanced: self.is_balanced(),
        }
    }
}
