//! A view of a layer, without its types, for attention and its two products. Also their scratch memory.

use super::Layer;
use super::layout::{BATCH, Head, Layout};
use super::storage::Storage;
use crate::backend::Kernels;
use crate::codec::Codec;
use crate::codec::scratch::MAX_SCRATCH;
use crate::page::{read_balance, score_floats};
use core::ops::Range;
use octaplex_arch::MAX_DIM;

/// The limit of queries, and of queries times the scale: 2⁵⁰.
///
/// Below it, no logit leaves the range of f32, whatever bytes the pages contain:
///
/// | number | below |
/// |---|---|
/// | values of a query, times the balance (2⁸) | 2⁵⁸ |
/// | norm of the query, at most √576 times that | 2⁶³ |
/// | score with a row of f32 norm (2⁵⁸), or with a sketch 2⁵ times as long | 2¹²⁷ |
pub(crate) const MAX_QUERY: f32 = 1_125_899_906_842_624.0;

/// A layer whose codecs and storage are trait objects.
pub(crate) struct View<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) backend: Kernels,
    pub(crate) keys: &'a dyn Codec,
    pub(crate) values: &'a dyn Codec,
    pub(crate) store: &'a dyn Storage,
    /// Number of sinks.
    pub(crate) sinks: usize,
    /// Number of tokens in the window.
    pub(crate) window: usize,
    /// Position of the window's first token.
    pub(crate) start: usize,
    /// Place of the window's first row in the ring.
    pub(crate) place: usize,
    /// Whether keys are divided by a balance that is decided.
    pub(crate) balanced: bool,
}

/// Consecutive exact tokens: the position of the first, and their f16 rows.
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

    /// Returns the number of queries that share a pass. Prepared queries must fit the stack.
    pub(crate) fn batch(&self) -> usize {
        (MAX_SCRATCH / self.keys.query_len().max(1)).clamp(1, BATCH)
    }

    /// Returns the number of exact tokens.
    pub(crate) fn exact(&self) -> usize {
        self.sinks + self.window
    }

    /// Returns the exact tokens with these numbers, as three runs. Sinks come first, then the window.
    ///
    /// The window may wrap around the end of its ring, so it has two runs:
    ///
    /// ```text
    ///  numbers   │ sinks │ window, first run │ second run │
    ///  ring      │ second run │ not in the window │ window, first run │
    ///            0                                place               ring
    /// ```
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

    /// Writes the queries to `balanced`, multiplied by the balance as the keys of pages are divided by it.
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

    /// Computes the product q·centre of each query.
    pub(crate) fn offsets(&self, queries: &[f32], centre: &[u8], offsets: &mut [f32; BATCH]) {
        offsets.fill(0.0);
        score_floats(self.backend, queries, self.layout.key_dim, centre, offsets.iter_mut());
    }
}

/// The scratch memory of one unit of attention. [`Layout::unit_scratch`] computes its size.
pub(crate) struct Scratch<'a> {
    /// Queries times the balance, \[row]\[key width].
    pub(crate) balanced: &'a mut [f32],
    /// Scores of a part's pages, and the products with their centres.
    pub(crate) scores: &'a mut [f32],
    /// Scores of exact tokens.
    pub(crate) runs: &'a mut [f32],
    /// Weighted sums of one part, \[row]\[value width].
    pub(crate) part: &'a mut [f32],
    /// Weighted sums of all pages, \[row]\[value width].
    pub(crate) paged: &'a mut [f32],
    /// Weighted sums of all exact tokens, \[row]\[value width].
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
