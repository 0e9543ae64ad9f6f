//! Attention of blocks of queries, and of queries before the newest token.

use super::{Error, Layer, refuse};
use crate::Attend;
use crate::codec::check_values;
use alloc::vec::Vec;
use core::ops::Range;
use octaplex_device::{Attention, CallerStream, DeviceSlice, Queries, QueryBlock};

impl Layer {
    /// Checks queries of some sequences, \[sequences]\[query heads]\[queries]\[width], and returns what
    /// their kernels need to know: the options, the block, and the most tiles that a sequence has.
    fn asked<'a>(
        &self,
        queries: Queries<'a>,
        options: &Attend<'a>,
        of: Range<usize>,
    ) -> Result<(Attention, QueryBlock<'a>), Error> {
        let attention = self.attention(options)?;
        let (dim, kv_heads, count) = (self.config.key_dim, self.config.kv_heads, of.len());
        let each = options.queries.unwrap_or(1);
        if each == 0 {
            return Err(crate::Error::Unsupported { why: "a block needs at least 1 query a head" }.into());
        }
        if each > 1 << 20 {
            return refuse("a block on a GPU has at most 2^20 queries a head");
        }
        let row = count * each * dim;
        let query_heads = queries.len() / row;
        self.check_query_heads(query_heads)?;
        if query_heads == 0 || !query_heads.is_multiple_of(kv_heads) {
            return Err(crate::Error::Heads { queries: query_heads, kv_heads }.into());
        }
        if query_heads > 1 << 10 {
            return refuse("a block on a GPU has at most 1,024 query heads");
        }
        crate::Error::expect_length("values of queries", query_heads * row, queries.len())?;
        self.check_queries(queries, options, of.clone())?;
        if attention.sink_logits {
            crate::Error::expect_length("sink logits", query_heads, options.sink_logits.len())?;
            check_values(options.sink_logits, f32::INFINITY)?;
        }
        // A query must not ask for tokens that a sliding window has dropped.
        for held in self.sequences[of.clone()].iter().filter(|held| held.state.next > 0) {
            let next = held.state.next;
            if options.position.is_none() && each > next {
                let what = crate::attention::MOST_QUERIES;
                return Err(crate::Error::Length { what, expected: next, actual: each }.into());
            }
            if let Some(window) = options.window.or(self.config.sliding_window) {
                let position = options.position.unwrap_or_else(|| next - each);
                held.state.check_block(position..position.saturating_add(each), window, &self.config)?;
            }
        }
        // Kernels take 64 tokens at a time. A tile has tokens of one kind: of pages, of sinks or of the window.
        let tiles = self.sequences[of.clone()].iter().map(|held| {
            let Sizes { pages, sinks, window } = Sizes::of(held);
            pages * self.config.page / 64 + sinks.div_ceil(64) + window.div_ceil(64)
        });
        let tiles = tiles.max().unwrap_or(0);
        // Kernels count in 63 bits. A query this far after the newest token sees all tokens that no window
        // hides.
        let position = options.position.map(|position| (position as u64).min(1 << 62));
        let sink_logits = options.sink_logits;
        let of = (of.start, of.len());
        Ok((attention, QueryBlock { of, queries, query_heads, each, position, sink_logits, tiles }))
    }

    /// Attends over all sequences with a block of queries in the host's memory.
    pub(super) fn attend_block(
        &mut self,
        queries: &[f32],
        options: &Attend,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let all = 0..self.sequences.len();
        let (attention, asked) = self.asked(Queries::Host(queries), options, all.clone())?;
        crate::Error::expect_length("values of the output", queries.len(), output.len())?;
        self.set_bias(options, asked.query_heads, all)?;
        Ok(self.paged.attend_block(&attention, &asked, output)?)
    }

    /// Attends over a range of sequences with queries in the GPU's memory, on the caller's stream.
    pub(super) fn attend_block_on(
        &mut self,
        of: Range<usize>,
        queries: DeviceSlice,
        options: &Attend,
        output: DeviceSlice,
        stream: CallerStream,
    ) -> Result<(), Error> {
        let (attention, asked) = self.asked(Queries::Device(queries), options, of.clone())?;
        self.set_bias(options, asked.query_heads, of)?;
        Ok(self.paged.attend_block_on(&attention, &asked, output, stream)?)
    }

    /// Measures `times` runs of the kernels of [`attend`](Self::attend) on a block, in microseconds of the
    /// GPU's clock.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend).
    pub fn time_block(&mut self, queries: &[f32], options: &Attend, times: usize) -> Result<Vec<f32>, Error> {
        let all = 0..self.sequences.len();
        let (attention, asked) = self.asked(Queries::Host(queries), options, all.clone())?;
        self.set_bias(options, asked.query_heads, all)?;
        Ok(self.paged.time_block(&attention, &asked, times)?)
    }
}

/// The numbers of pages of a sequence, and of exact tokens as sinks and in its recent window.
struct Sizes {
    pages: usize,
    sinks: usize,
    window: usize,
}

impl Sizes {
    fn of(held: &super::Held) -> Self {
        let sequence = &held.sequence;
        Self { pages: sequence.pages.len(), sinks: sequence.sinks, window: sequence.exact - sequence.sinks }
    }
}
