//! Tokens that a GPU appends and counts by itself, one for each sequence. The call does not wait, so a
//! graph can contain it.
//!
//! ```text
//! GPU     step   step   step   step …               ring and counter grow; pages stay open
//! host                                  settle      reads the counters, closes full pages
//! ```

use super::engine::check_rows;
use super::{Error, Layer, refuse, sequence_of};
use core::ops::Range;
use octaplex_device::{CallerStream, DeviceRows, Input};

/// Says whether the GPU may hold tokens that the host does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    /// It does not.
    Never,
    /// Until the host reads the counters.
    Some,
    /// A graph with a captured step may run at any time.
    Captured,
}

impl Layer {
    /// Appends one token to each of some consecutive sequences, without waiting.
    ///
    /// Token i of `rows` belongs to the i-th of these sequences. The GPU checks, stores and counts the
    /// rows. Attention on the same stream sees them.
    ///
    /// Pages do not close meanwhile. Call [`settle_on`](Self::settle_on) after at most
    /// [`steps_left`](Self::steps_left) calls: it closes pages and returns the errors of steps. If a row is
    /// not finite, or larger than [`append_on`](Self::append_on) surely accepts, its sequence keeps the
    /// tokens before it and accepts no more until then.
    ///
    /// A call can be captured in the caller's graph and launched again and again, as
    /// [`attend_on`](Self::attend_on) describes. Pages must not move then, so [`grow`](Self::grow) the
    /// layer for all coming tokens first. Other calls settle first.
    ///
    /// ```no_run
    /// use octaplex::gpu::{CallerStream, DeviceRows, DeviceSlice, Layer};
    /// use octaplex::Attend;
    ///
    /// # fn step(layer: &mut Layer, rows: &DeviceRows, q: DeviceSlice, out: DeviceSlice, stream: CallerStream) -> Result<(), octaplex::gpu::Error> {
    /// if layer.steps_left(0..8) == 0 {
    ///     layer.settle_on(stream)?;
    /// }
    /// layer.append_step_on(0..8, rows, stream)?; // eight sequences, a token each
    /// layer.attend_sequences_on(0..8, q, &Attend::default(), out, stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// * [`crate::Error::Missing`]; [`crate::Error::Length`] if the rows exceed their memory.
    /// * [`Error::Unsupported`] for sequences that have fewer tokens than sinks, or no step left.
    /// * [`Error::Unsupported`] for another number of tokens than sequences.
    /// * [`Error::Unsupported`] for a captured stream before the first token from the GPU.
    /// * [`Error::Device`].
    pub fn append_step_on(
        &mut self,
        sequences: Range<usize>,
        rows: &DeviceRows,
        stream: CallerStream,
    ) -> Result<(), Error> {
        if sequences.is_empty() {
            return refuse("the range of sequences is empty: a call needs at least one");
        }
        self.sequence(sequences.end - 1)?;
        check_rows(rows, self.config.kv_heads, self.config.key_dim)?;
        if rows.tokens != sequences.len() {
            return refuse("a step takes exactly one token for each sequence");
        }
        let captured = self.paged.is_captured(stream)?;
        if self.sequences[sequences.clone()].iter().any(|held| held.state.next < self.layout.sinks) {
            return refuse("a step needs all sink tokens: append those with append_on first");
        }
        if self.steps_left(sequences.clone()) == 0 {
            return refuse("no step is left before a page closes: call settle_on");
        }
        let bounds = self.bounds(sequences.clone());
        let full = self.config.recent_window + self.config.page;
        if !self.paged.step_rows(sequences.clone(), rows, bounds, full, stream)? {
            return refuse(
                "kernels are not loaded yet: append a token from the GPU before the stream is captured",
            );
        }
        if captured {
            self.stepped = Stepped::Captured;
        } else {
            self.pending[sequences].iter_mut().for_each(|count| *count += 1);
            if self.stepped == Stepped::Never {
                self.stepped = Stepped::Some;
            }
        }
        Ok(())
    }

    /// Returns how many tokens [`append_step_on`](Self::append_step_on) can add to each of these sequences
    /// before pages must close.
    ///
    /// The host does not know what a captured graph has appended since the last
    /// [`settle_on`](Self::settle_on).
    ///
    /// # Panics
    /// If the layer does not have one of the sequences.
    #[must_use]
    pub fn steps_left(&self, sequences: Range<usize>) -> usize {
        let full = self.config.recent_window + self.config.page;
        let left = |number: usize| {
            let (held, pending) = (&self.sequences[number], self.pending[number]);
            let room = full.saturating_sub(held.state.window() + pending);
            let takes = |count: &usize| self.plan(held, pending + count).is_ok();
            (0..=room).rev().find(takes).unwrap_or(0)
        };
        sequences.map(left).min().unwrap_or(0)
    }

    /// Reads what [`append_step_on`](Self::append_step_on) has appended, and closes full pages. It runs
    /// after all earlier work on the stream, and waits for it.
    ///
    /// # Errors
    /// * [`Error::Unsupported`] if a sequence did not accept a token.
    /// * [`Error::Full`] if there are not enough free pages.
    /// * [`Error::Device`].
    ///
    /// Sequences hold all tokens that they accepted.
    pub fn settle_on(&mut self, stream: CallerStream) -> Result<(), Error> {
        if self.stepped == Stepped::Never {
            return Ok(());
        }
        self.paged.after(stream)?;
        self.settle()?;
        Ok(self.paged.before(stream)?)
    }

    /// Settles work that is done: the caller has waited for streams, or ordered them.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        self.settle_without(None)
    }

    /// Settles all sequences. An error of sequence `without` does not count.
    pub(super) fn settle_without(&mut self, without: Option<usize>) -> Result<(), Error> {
        if self.stepped == Stepped::Never {
            return Ok(());
        }
        let (stepped, mut stopped) = (self.paged.stepped()?, 0);
        for (number, (next, flag)) in stepped.into_iter().enumerate() {
            let held = &mut self.sequences[number];
            let count = (next as usize).saturating_sub(held.state.next);
            self.pending[number] = 0;
            if count > 0 {
                held.state.next += count;
                held.sequence =
                    sequence_of(&self.layout, &held.state, core::mem::take(&mut held.sequence.pages));
                self.paged.count(number, next);
            }
            if without != Some(number) {
                stopped = stopped.max(flag);
            }
        }
        for number in (0..self.sequences.len()).filter(|number| without != Some(*number)) {
            let plan = self.plan(&self.sequences[number], 0)?;
            if plan.closing > 0 || plan.evicted > 0 {
                self.take(number, &plan, Input::Host(&[]))?;
            } else {
                self.sequences[number].state = self.sequences[number].state.after(&plan, &self.layout);
            }
        }
        if self.stepped == Stepped::Some {
            self.stepped = Stepped::Never;
        }
        match stopped {
            0 => Ok(()),
            1 => refuse(
                "a step's token was not finite, or too large: its sequence holds the tokens before it; append it with append_on",
            ),
            _ => refuse("the ring had no space for a token until a page closes: call settle_on more often"),
        }
    }
}
