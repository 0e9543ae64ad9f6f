//! Tokens that a GPU appends and counts by itself, one a sequence: nobody waits, so that a graph can do it.

use super::engine::check_rows;
use super::{Error, Layer, refuse, sequence_of};
use core::ops::Range;
use octaplex_arch::device::{CallerStream, DeviceRows, Input};

/// Whether the GPU may hold tokens that the host does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    Never,
    /// Until the host asks.
    Some,
    /// A captured step may be launched at any time.
    Captured,
}

impl Layer {
    /// Adds one token to each of some sequences, which follow each other, and waits for nothing: token i of `rows` is the one of sequence i of
    /// these. The GPU checks the rows, stores them and counts them. Attention on the same stream sees them.
    ///
    /// Pages do not close meanwhile: after [`steps_left`](Self::steps_left) such calls [`settle_on`](Self::settle_on) closes them. It also says what was
    /// wrong. A sequence that was given a row that is not finite, or larger than [`append_on`](Self::append_on) takes without a look, keeps
    /// the tokens before it and takes no more until then.
    ///
    /// A call can be captured into a graph of the caller's, which is launched again and again, as [`attend_on`](Self::attend_on) says; the layer
    /// then [has room](Self::grow) for all that is to come, since its pages must not move. Other calls settle first.
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
    /// [`crate::Error::Missing`], [`crate::Error::Length`] for rows beyond their memory; [`Error::Unsupported`] for sequences with fewer tokens
    /// than sinks, without a step left, for another number of tokens than sequences, and for a captured stream before the layer was given a
    /// token from the GPU; [`Error::Device`].
    pub fn append_step_on(
        &mut self,
        sequences: Range<usize>,
        rows: &DeviceRows,
        stream: CallerStream,
    ) -> Result<(), Error> {
        if sequences.is_empty() {
            return refuse("a call is for at least one sequence");
        }
        self.sequence(sequences.end - 1)?;
        check_rows(rows, self.config.kv_heads, self.config.key_dim)?;
        if rows.tokens != sequences.len() {
            return refuse("a step has one token of each sequence");
        }
        let captured = self.paged.is_captured(stream)?;
        if self.sequences[sequences.clone()].iter().any(|held| held.state.next < self.layout.sinks) {
            return refuse("steps come after the sink tokens: append those by append_on");
        }
        if self.steps_left(sequences.clone()) == 0 {
            return refuse("no step is left before a page closes: call settle_on");
        }
        let bounds = self.bounds(sequences.clone());
        let full = self.config.recent_window + self.config.page;
        if !self.paged.step_rows(sequences.clone(), rows, bounds, full, stream)? {
            return refuse(
                "append a token from the GPU before a stream is captured: kernels are loaded then",
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

    /// How many tokens each of some sequences takes by [`append_step_on`](Self::append_step_on) until pages have to close. What a
    /// captured graph has appended since the last [`settle_on`](Self::settle_on) is not known here.
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

    /// Learns what [`append_step_on`](Self::append_step_on) has appended, and closes pages that are full. Comes after what the
    /// stream has been asked so far, and waits for it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where a sequence was given a token that it did not take; [`Error::Full`] where pages have no room. What the
    /// sequences took they hold. [`Error::Device`].
    pub fn settle_on(&mut self, stream: CallerStream) -> Result<(), Error> {
        if self.stepped == Stepped::Never {
            return Ok(());
        }
        self.paged.after(stream)?;
        self.settle()?;
        Ok(self.paged.before(stream)?)
    }

    /// The same of what is done: streams were waited for, or put in order by the calls.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        self.settle_without(None)
    }

    /// The same; what is wrong with one sequence does not matter.
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
                "a step brought a token that is not finite, or too large: its sequence holds those before it; append it by append_on",
            ),
            _ => refuse(
                "a step came when its sequence had no room before a page closes: call settle_on more often",
            ),
        }
    }
}
