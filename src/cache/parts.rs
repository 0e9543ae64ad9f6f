//! The two products of attention on a layer, for engines with their own softmax.

use super::Layer;
use super::layout::{BATCH, SPLIT};
use super::rows::score_pages;
use super::storage::Storage;
use super::view::{MAX_QUERY, Scratch};
use crate::Error;
use crate::codec::{Codec, in_page};
use crate::page::Run;
use octaplex_arch::Float;
use octaplex_arch::MAX_WEIGHT;

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    /// Returns the number of tokens in a row of [`scores`](Self::scores): sinks, pages, window, in this order.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.view().exact() + self.store.pages() * self.layout.page
    }

    /// Computes the scores q·k̂ of one key/value head, for engines with their own softmax.
    ///
    /// `queries` are \[queries]\[key width] and `scores` are \[queries]\[[`tokens`](Self::tokens)]. Scores are neither
    /// scaled nor masked. `scratch` has as many values as [`scratch_len`](crate::LayerConfig::scratch_len) returns
    /// for queries · key/value heads.
    ///
    /// ```
    /// use octaplex::{Backend, Error, LayerConfig, cache::SharedLayer};
    ///
    /// let config = LayerConfig::new(1, 64, 1000);
    /// let mut layer = SharedLayer::on_heap(&config, Backend::detect())?;
    /// let mut scratch = vec![0.0; config.scratch_len(1)];
    /// layer.append(&[0.5; 2 * 64], &[0.25; 2 * 64], &mut scratch)?;
    /// let mut weights = [0.0; 2];
    /// layer.scores(0, &[1.0; 64], &mut weights, &mut scratch)?;
    /// assert_eq!(weights, [32.0; 2]);
    /// weights = [0.5; 2]; // the engine's softmax
    /// let mut output = [0.0; 64];
    /// layer.accumulate(0, &weights, &mut output, &mut scratch)?;
    /// assert_eq!(output, [0.25; 64]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Row`] for queries that are not below 2⁵⁰.
    /// * [`Error::Missing`] for a head that is out of range.
    /// * [`Error::Length`] for slices of the wrong length.
    /// * [`Error::Corrupt`] for damaged pages. Its block is counted over all pages.
    pub fn scores(
        &self,
        head: usize,
        queries: &[f32],
        scores: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, tokens) = (&self.layout, self.tokens());
        let count = queries.len() / layout.key_dim;
        self.check_part(head, count, layout.key_dim, queries, scratch)?;
        Error::expect_length("scores", count * tokens, scores.len())?;
        self.check_rows_of(head, "queries", layout.key_dim, queries, MAX_QUERY)?;
        let batch = self.view().batch();
        let batches = queries.chunks(batch * layout.key_dim);
        for (queries, scores) in batches.zip(scores.chunks_mut((batch * tokens).max(1))) {
            self.score_batch(head, queries, scores, scratch)?;
        }
        Ok(())
    }

    fn score_batch(
        &self,
        head: usize,
        queries: &[f32],
        scores: &mut [f32],
        memory: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, view, tokens) = (&self.layout, self.view(), self.tokens());
        let rows = queries.len() / layout.key_dim;
        let scratch = Scratch::new(layout, rows, memory);
        view.balanced(head, queries, scratch.balanced);
        let prefix = &self.store.front()[layout.prefix(head)];
        let mut at = view.sinks;
        for (index, page) in view.pages(0..self.store.pages()) {
            let mut offsets = [0.0; BATCH];
            let part = &mut scratch.scores[..rows * layout.page];
            let mut keys = core::iter::once(view.head(page, head).keys);
            let scored = score_pages(&view, scratch.balanced, prefix, &mut keys, part, &mut offsets[..rows]);
            scored.map_err(|error| in_page(error, index, layout.page))?;
            for (row, part) in part.chunks_exact_mut(layout.page).enumerate() {
                let _ = self.backend.scale_logits(part, offsets[row], 1.0);
                scores[row * tokens + at..][..layout.page].copy_from_slice(part);
            }
            at += layout.page;
        }
        let mut each: [&[f32]; BATCH] = [&[]; BATCH];
        each.iter_mut().zip(queries.chunks_exact(layout.key_dim)).for_each(|(slot, query)| *slot = query);
        for first in (0..view.exact()).step_by(SPLIT) {
            let numbers = first..view.exact().min(first + SPLIT);
            let mut number = first;
            for run in view.runs(head, numbers) {
                let len = run.keys.len() / (2 * layout.key_dim);
                let part = &mut scratch.runs[..rows * len];
                self.backend.score_floats(Float::F16, layout.key_dim, run.keys, &each[..rows], part);
                // In a row of scores, sinks stand before the pages and the window after them.
                let at = if number < view.sinks { number } else { at + number - view.sinks };
                for (row, part) in part.chunks_exact(len.max(1)).enumerate() {
                    scores[row * tokens + at..][..len].copy_from_slice(part);
                }
                number += len;
            }
        }
        Ok(())
    }

    /// Computes the sum Σ weight·v̂ of one key/value head, for engines with their own softmax.
    ///
    /// `weights` are \[outputs]\[[`tokens`](Self::tokens)] and `output` is \[outputs]\[value width].
    /// [`scores`](Self::scores) has an example.
    ///
    /// # Errors
    /// * [`Error::Row`] for weights above [`MAX_WEIGHT`].
    /// * [`Error::Missing`] for a head that is out of range.
    /// * [`Error::Length`] for slices of the wrong length.
    /// * [`Error::Corrupt`] for damaged pages. Its block is counted over all pages.
    pub fn accumulate(
        &self,
        head: usize,
        weights: &[f32],
        output: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, view, tokens) = (&self.layout, self.view(), self.tokens());
        let count = output.len() / layout.value_dim;
        self.check_part(head, count, layout.value_dim, output, scratch)?;
        Error::expect_length("weights", count * tokens, weights.len())?;
        self.check_rows_of(head, "weights", tokens, weights, MAX_WEIGHT.next_up())?;
        if tokens == 0 {
            output.fill(0.0);
        }
        let rows = weights.chunks_exact(tokens.max(1));
        for (weights, output) in rows.zip(output.chunks_exact_mut(layout.value_dim)) {
            let scratch = Scratch::new(layout, 1, scratch);
            let (sinks, rest) = weights.split_at(view.sinks);
            let (paged, window) = rest.split_at(self.store.pages() * layout.page);
            scratch.paged.fill(0.0);
            let (format, mut run) = (layout.values.of(view.values, view.backend), Run::default());
            for index in 0..self.store.pages() {
                if run.push(index, view.head(self.store.page(index), head).values) {
                    run.accumulate(&*format, (1, layout.page), paged, scratch.paged)?;
                }
            }
            run.accumulate(&*format, (1, layout.page), paged, scratch.paged)?;
            view.values.finish(scratch.paged);
            scratch.exact.fill(0.0);
            let runs = view.runs(head, 0..view.exact());
            let (before, after) = window.split_at(runs[1].values.len() / (2 * layout.value_dim));
            for (run, weights) in runs.iter().zip([sinks, before, after]) {
                let (dim, exact) = (layout.value_dim, &mut *scratch.exact);
                self.backend.accumulate_floats(Float::F16, dim, run.values, weights, exact);
            }
            for ((output, paged), exact) in output.iter_mut().zip(&*scratch.paged).zip(&*scratch.exact) {
                *output = paged + exact;
            }
        }
        Ok(())
    }

    /// Checks that all values of a head's rows are below `limit` in magnitude.
    fn check_rows_of(
        &self,
        of: usize,
        what: &'static str,
        width: usize,
        rows: &[f32],
        limit: f32,
    ) -> Result<(), Error> {
        let count = rows.len() / width.max(1);
        self.check_rows(what, (count, width), rows, limit).map_err(|error| match error {
            Error::Row { layer, what, row, channel, finite, .. } => {
                Error::Row { layer, what, head: of, row, channel, finite }
            }
            other => other,
        })
    }

    /// Checks the head and the lengths of [`scores`](Self::scores) and [`accumulate`](Self::accumulate).
    fn check_part(
        &self,
        head: usize,
        count: usize,
        dim: usize,
        rows: &[f32],
        scratch: &[f32],
    ) -> Result<(), Error> {
        if head >= self.config.kv_heads {
            return Err(Error::Missing { what: "head", number: head, count: self.config.kv_heads });
        }
        Error::expect_length("values of rows", count * dim, rows.len())?;
        let expected = self.layout.unit_scratch(count.max(1));
        if scratch.len() < expected {
            return Err(Error::Length { what: "values of scratch", expected, actual: scratch.len() });
        }
        Ok(())
    }
}
