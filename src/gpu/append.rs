//! Tokens that come and go on the GPU: as `cache/window.rs` and `cache/rollback.rs` have it, pages encoded by kernels.

use super::{Error, Held, Layer, open_front, refuse, sequence_of, tables};
use crate::cache::encode::Encoder;
use crate::cache::layout::Layout;
use crate::cache::window::{Plan, rows_error, try_row};
use crate::cache::{Center, State};
use crate::page::{Spread, store_mean};
use crate::random::Role;
use crate::rows::Floats;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use octaplex_arch::device::{AT_ONCE, Input, Refused, Rows};
use octaplex_arch::{Float, MAX_DIM};

impl Layer {
    /// Adds tokens to a sequence: keys and values, \[kv_heads]\[tokens]\[width], in any float type. It is then what
    /// [`Layer::append`](crate::cache::Layer::append) makes of the same tokens, in whatever pieces they come: the newest tokens exact in f16,
    /// pages that close encoded on the GPU, the same bytes. Balance and prefix centre are decided on the CPU, when the first
    /// page closes; so are values that cannot be held refused. Pages of `trellis` of several scales, and pages with outliers, are encoded
    /// there as well, and brought to the GPU.
    ///
    /// A token that closes no page is two small copies; the first page that closes compiles kernels and allocates rows of one page,
    /// a prompt's pages allocate theirs for the while.
    ///
    /// # Errors
    /// What [`Layer::append`](crate::cache::Layer::append) refuses; [`Error::Full`] where there is no room for the pages that close (beside
    /// those that leave a sliding window). The layer is then as it was; after
    /// [`Error::Device`] the sequence is to be [cleared](Self::clear).
    pub fn append<'a>(
        &mut self,
        sequence: usize,
        keys: impl Into<Floats<'a>>,
        values: impl Into<Floats<'a>>,
    ) -> Result<(), Error> {
        self.settle()?;
        let rows = self.incoming(sequence, [keys.into(), values.into()])?;
        self.add(sequence, Input::Host(&rows), rows.len() / self.paged.token_values())
    }

    /// Adds so many tokens, which are fit.
    pub(super) fn add(&mut self, sequence: usize, input: Input, count: usize) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let plan = self.plan(&self.sequences[sequence], count)?;
        self.take(sequence, &plan, input)
    }

    /// Microseconds on the GPU's clock of each of `times` runs of the kernels that encode the whole pages of these tokens, in f16
    /// on the GPU, as if they were a sequence's first (sinks aside). The sequences stay as they are.
    ///
    /// # Errors
    /// As [`append`](Self::append); [`Error::Full`] where there is no room for the pages; [`Error::Unsupported`] for less than a page,
    /// more than 128 MiB, and codecs whose pages the CPU encodes.
    pub fn time_append(&mut self, keys: &[f32], values: &[f32], times: usize) -> Result<Vec<f32>, Error> {
        let rows = self.incoming(0, [keys.into(), values.into()])?;
        if !tables::are_encoded(&self.config) {
            return refuse("the CPU encodes pages of these codecs");
        }
        let (page, each) = (self.config.page, self.paged.token_values());
        let pages = rows.len() / each / page;
        if pages == 0 || pages > 1 && 2 * pages * page * each > AT_ONCE {
            return refuse("time_append takes one page at least, and 128 MiB of rows at most");
        }
        let (input, new, front) = (Input::Host(&rows), 0..pages * page, &open_front(&self.layout));
        let places = self.free(pages)?;
        let rows = Rows { sequence: 0, held: [0..0, 0..0], input, new, position: 0, front };
        Ok(self.paged.time_encoding(&places, &rows, times)?)
    }

    /// Rows as a sequence has them, checked: \[tokens]\[kv heads]\[keys, values]\[width] in f16.
    fn incoming(&self, sequence: usize, sides: [Floats; 2]) -> Result<Vec<u16>, Error> {
        self.sequence(sequence)?;
        let (held, heads, dim) = (&self.sequences[sequence], self.config.kv_heads, self.config.key_dim);
        let count = sides[0].len() / (heads * dim);
        for (what, side, each) in [("keys", sides[0], None), ("values", sides[1], Some(count))] {
            if side.len() != count * heads * dim {
                return Err(rows_error(what, heads, dim, each, side.len()).into());
            }
        }
        let refused = |what, at: usize, finite: Option<bool>| {
            let (head, row) = (at / (count * dim), at / dim % count);
            let channel = finite.map(|_| at % dim);
            let (layer, finite) = (self.config.layer, finite.unwrap_or(true));
            Error::from(crate::Error::Row { layer, what, head, row, channel, finite })
        };
        for (what, side) in [("keys", sides[0]), ("values", sides[1])] {
            if let Some((at, finite)) = side.first_unfit() {
                return Err(refused(what, at, Some(finite)));
            }
        }
        let centred = self.config.centers() != Center::Off;
        let mut rows = vec![0; count * heads * 2 * dim];
        let (mut bytes, mut row) = ([0; 2 * MAX_DIM], [0.0; MAX_DIM]);
        let (bytes, row) = (&mut bytes[..2 * dim], &mut row[..dim]);
        for (head, balance) in held.balances(dim).enumerate() {
            for (of, (what, side)) in [("keys", sides[0]), ("values", sides[1])].into_iter().enumerate() {
                let by = (of == 0).then_some(balance);
                for token in 0..count {
                    let at = (head * count + token) * dim;
                    side.write(self.backend, at, bytes);
                    self.backend.decode_floats(Float::F16, bytes, row);
                    try_row(self.backend, &self.codecs[of], row, by, centred && of == 0)
                        .map_err(|_| refused(what, at, None))?;
                    let place = &mut rows[((token * heads + head) * 2 + of) * dim..][..dim];
                    let halves = bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
                    place.iter_mut().zip(halves).for_each(|(place, half)| *place = half);
                }
            }
        }
        Ok(rows)
    }

    pub(super) fn plan(&self, held: &Held, count: usize) -> Result<Plan, Error> {
        Ok(held.standing(&self.config, |standing| standing.plan(count))?)
    }

    /// Puts rows of positions into a sequence's ring, as a state has it, from token `first` of the input on.
    pub(super) fn store_from(
        &mut self,
        number: usize,
        state: &State,
        positions: Range<usize>,
        input: Input,
        first: usize,
    ) -> Result<(), Error> {
        let mut first = first;
        for places in
            places_of(&self.layout, state, positions).into_iter().filter(|places| !places.is_empty())
        {
            self.paged.store(number, places.start, input, first..first + places.len())?;
            first += places.len();
        }
        Ok(())
    }

    /// Rows of positions that follow each other: those that the sequence holds, then those of tokens that come.
    fn rows<'a>(
        &self,
        number: usize,
        positions: Range<usize>,
        input: Input<'a>,
        front: &'a [f32],
    ) -> Rows<'a> {
        let (state, start) = (&self.sequences[number].state, positions.start);
        let next = state.next;
        let [old, new] = [start.min(next)..positions.end.min(next), start.max(next)..positions.end.max(next)];
        let new = new.start - next..new.end - next;
        Rows {
            sequence: number,
            held: places_of(&self.layout, state, old),
            input,
            new,
            position: start as u64,
            front,
        }
    }

    /// Takes the tokens that come.
    pub(super) fn take(&mut self, number: usize, plan: &Plan, input: Input) -> Result<(), Error> {
        let page = self.config.page;
        let (before, sinks) = (self.sequences[number].state, plan.next.min(self.layout.sinks));
        let old = before.next;
        let (mut places, mut front) = (Vec::new(), None);
        let first = before.start + plan.skipped * page;
        if plan.closing > 0 {
            let decided = self.decide(number, input)?;
            let held = self.sequences[number].sequence.pages.len() - plan.evicted;
            if held + plan.closing - plan.skipped > self.pages_each {
                return refuse("a sequence has more pages than its table: make the layer with more tokens");
            }
            places = self.free(plan.closing - plan.skipped)?;
            let rows = self.rows(number, first..first + places.len() * page, input, &decided);
            self.encode(&places, &rows)?;
            front = Some(decided);
        }
        // Nothing is refused any more: rows may take the places of those that no rollback brings back.
        if old < sinks {
            self.paged.store(number, self.layout.ring + old, input, 0..sinks - old)?;
        }
        let kept = old.max(plan.kept).min(plan.next);
        self.store_from(
            number,
            &before,
            kept.max(sinks)..plan.next.max(sinks),
            input,
            kept.max(sinks) - old,
        )?;
        let state = before.after(plan, &self.layout);
        let held = &mut self.sequences[number];
        if plan.closing == 0 && plan.evicted == 0 {
            let sequence = sequence_of(&self.layout, &state, held.sequence.pages.clone());
            self.paged.extend(number, &sequence)?;
            (held.sequence, held.state) = (sequence, state);
            return Ok(());
        }
        let mut held = held.clone();
        held.sequence.pages.drain(..plan.evicted);
        held.sequence.pages.extend(&places);
        held.positions.drain(..plan.evicted);
        held.positions.extend((0..places.len()).map(|index| first + index * page));
        held.front = front.unwrap_or(held.front);
        held.enter(&self.layout, state);
        self.place(number, held)
    }

    /// Encodes pages on the GPU, or, where its kernels do not, here.
    fn encode(&mut self, places: &[u32], rows: &Rows) -> Result<(), Error> {
        let (page, first) = (self.config.page, rows.position as usize);
        if tables::are_encoded(&self.config) {
            return match self.paged.encode(places, rows)? {
                Some(refused) => Err(self.page_error(refused, first).into()),
                None => Ok(()),
            };
        }
        let (layout, dim, each) = (self.layout, self.config.key_dim, self.paged.token_values());
        let of_front = |which| {
            let heads = rows.front.chunks_exact(2 * dim);
            heads.flat_map(move |front| front[which * dim..][..dim].iter().copied()).collect::<Vec<_>>()
        };
        let [balances, prefixes] = [0, 1].map(of_front);
        let (mut scratch, mut bytes) = (vec![0.0; layout.encode_scratch()], vec![0; layout.page_bytes]);
        for (index, place) in places.iter().enumerate() {
            let values = self.paged.read_rows(rows, index * page..(index + 1) * page)?;
            let gather = |role, head: usize, out: &mut [f32]| {
                let at = (head * 2 + usize::from(matches!(role, Role::Values))) * dim;
                for (out, token) in out.chunks_exact_mut(dim).zip(values.chunks_exact(each)) {
                    let halves = token[at..at + dim].iter().map(|half| half::f16::from_bits(*half).to_f32());
                    out.iter_mut().zip(halves).for_each(|(x, half)| *x = half);
                }
            };
            let encoder = Encoder {
                layer: self.config.layer,
                layout: &layout,
                backend: self.backend,
                codecs: (&*self.codecs[0], &*self.codecs[1]),
                gather: &gather,
                start: first + index * page,
            };
            encoder.encode(&mut bytes, &balances, &prefixes, &mut scratch)?;
            let (mut taken, mut lists) = (Vec::new(), Vec::new());
            self.apart.take(&bytes[..layout.page_length(&bytes)], &mut taken, &mut lists)?;
            self.paged.upload(&[*place], &taken, &lists)?;
        }
        Ok(())
    }

    fn page_error(&self, refused: Refused, first: usize) -> crate::Error {
        crate::Error::Page {
            layer: self.config.layer,
            what: if refused.key { "keys" } else { "values" },
            head: refused.head,
            position: first + refused.page * self.config.page,
            row: refused.row,
        }
    }

    /// Balances and prefix centres; found from the keys that fill the window when the first page closes.
    fn decide(&mut self, number: usize, input: Input) -> Result<Vec<f32>, Error> {
        let (dim, each) = (self.config.key_dim, self.paged.token_values());
        let mut front = self.sequences[number].front.clone();
        let State { start, calibrated, .. } = self.sequences[number].state;
        if start > self.layout.sinks {
            return Ok(front);
        }
        let full = self.config.recent_window + self.layout.page;
        let rows = self.rows(number, start..start + full, input, &[]);
        let rows = self.paged.read_rows(&rows, 0..full)?;
        let layout = &self.layout;
        let mut keys = vec![0.0; full * dim];
        for (head, front) in front.chunks_exact_mut(2 * dim).enumerate() {
            let (balance, prefix) = front.split_at_mut(dim);
            for (token, key) in keys.chunks_exact_mut(dim).enumerate() {
                let at = token * each + head * 2 * dim;
                for (x, half) in key.iter_mut().zip(&rows[at..at + dim]) {
                    *x = half::f16::from_bits(*half).to_f32();
                }
            }
            if !layout.balance.is_none() && !calibrated {
                let mut spread = Spread::new();
                keys.chunks(layout.page * dim).for_each(|page| spread.add(page, dim));
                layout.balance.decide(self.backend, &spread, &[], balance);
            }
            if layout.prefix(head).is_empty() {
                continue;
            }
            let count = full.min(128);
            let mut bytes = [0; 2 * MAX_DIM];
            layout.balance.apply(&mut keys[..count * dim], balance);
            store_mean(&keys[..count * dim], dim, &mut bytes[..2 * dim])
                .map_err(|_| self.page_error(Refused { page: 0, head, key: true, row: None }, start))?;
            self.backend.decode_floats(Float::F16, &bytes[..2 * dim], prefix);
        }
        Ok(front)
    }

    /// Forgets a sequence's tokens from `position` on, as [`Layer::truncate`](crate::cache::Layer::truncate) does: rejected drafts. Up to
    /// [`max_rollback`](crate::LayerConfig::max_rollback) tokens behind the furthest position pages that closed meanwhile open again;
    /// further back, a page that is cut is brought to the host, and its first tokens are decoded there into the exact window.
    ///
    /// # Errors
    /// [`crate::Error::Dropped`], [`crate::Error::Corrupt`] as there; [`crate::Error::Missing`]. The layer is then as it was; after
    /// [`Error::Device`] the sequence is to be [cleared](Self::clear).
    pub fn truncate(&mut self, sequence: usize, position: usize) -> Result<(), Error> {
        self.sequence(sequence)?;
        self.settle()?;
        let mut held = self.sequences[sequence].clone();
        let Some(cut) = held.standing(&self.config, |standing| standing.cut(position))? else {
            return Ok(());
        };
        if cut.decoded > 0 {
            let mut layer = self.download_some(sequence, cut.pages..cut.pages + 1)?;
            layer.truncate(position)?;
            self.upload_exact(sequence, &layer)?;
        }
        held.positions.truncate(cut.pages);
        held.sequence.pages.truncate(cut.pages);
        let state = held.state.cut(position, &cut);
        if !state.has_closed(&self.layout) {
            // What the first page that closes decides is open again.
            let (dim, empty) = (self.config.key_dim, open_front(&self.layout));
            let from = if state.calibrated { dim } else { 0 };
            for (front, empty) in held.front.chunks_exact_mut(2 * dim).zip(empty.chunks_exact(2 * dim)) {
                front[from..].copy_from_slice(&empty[from..]);
            }
        }
        held.enter(&self.layout, state);
        self.place(sequence, held)
    }

    /// Drops a sequence's whole pages that lie within the positions, as [`Layer::evict`](crate::cache::Layer::evict) does, and returns how many
    /// tokens that were. Sinks and the exact window stay; the other tokens keep their positions, and steps, captured ones as well, skip
    /// the gap. Pages that another sequence has stay its own; those that none has any more are free.
    ///
    /// ```no_run
    /// use octaplex::{LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(1, 64, 4096), 1, 4096)?;
    /// layer.append(0, &[0.5; 1000 * 64], &[0.5; 1000 * 64])?;
    /// assert_eq!(layer.evict(0, 100..500)?, 5 * 64); // whole pages of 64, from position 4 on
    /// assert_eq!(layer.tokens(0)?, 1000 - 5 * 64);
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Missing`], [`Error::Device`].
    pub fn evict(&mut self, sequence: usize, positions: Range<usize>) -> Result<usize, Error> {
        self.sequence(sequence)?;
        self.settle()?;
        let mut held = self.sequences[sequence].clone();
        let (pages, end) = held.standing(&self.config, |standing| standing.within(positions));
        let tokens = pages.len() * self.config.page;
        if tokens == 0 {
            return Ok(0);
        }
        held.positions.drain(pages.clone());
        held.sequence.pages.drain(pages);
        let state = held.state.evict(tokens, end, &self.layout);
        held.enter(&self.layout, state);
        self.place(sequence, held)?;
        Ok(tokens)
    }
}

/// Where a ring has the rows of positions that follow each other, those of a state.
pub(super) fn places_of(layout: &Layout, state: &State, positions: Range<usize>) -> [Range<usize>; 2] {
    if positions.is_empty() {
        return [0..0, 0..0];
    }
    let (first, count) = (state.place_of(layout, positions.start), positions.len());
    let before = count.min(layout.ring - first);
    [first..first + before, 0..count - before]
}
