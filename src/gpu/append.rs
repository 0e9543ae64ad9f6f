//! Appends, truncates and evicts tokens on the GPU.
//!
//! The plan is that of `cache/window.rs` and `cache/rollback.rs`; kernels encode the pages.
//!
//! ```text
//! before   sinks │ closed pages │ ring in f16: ▒▒▒▒▒▒▒▒ window │ new tokens
//! after    sinks │ closed pages │ page │ ring in f16: window        │
//!                                 └ its rows, ▒, leave the ring once the window holds a page too much
//! ```

use super::{Error, Held, Layer, open_front, refuse, sequence_of, tables};
use crate::cache::encode::Encoder;
use crate::cache::layout::Layout;
use crate::cache::window::{Plan, try_row};
use crate::cache::{Center, State};
use crate::page::{CENTRED, Deciding, counted};
use crate::random::Role;
use crate::rows::Floats;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use octaplex_arch::{Float, MAX_DIM};
use octaplex_device::{Input, InvalidRow, ROW_BYTES_AT_ONCE, Rows};

impl Layer {
    /// Appends tokens to a sequence: keys and values, \[kv_heads]\[tokens]\[width], in any float type.
    ///
    /// The sequence is then bit-exact with [`Layer::append`](crate::cache::Layer::append) of the same
    /// tokens, however they are divided into calls. The newest tokens stay exact in f16. The GPU encodes
    /// the pages that close.
    ///
    /// The CPU checks the values. When the first page closes, it also decides balance and prefix centre. It
    /// encodes pages with outliers, and pages of `trellis` with several scales.
    ///
    /// A token that closes no page costs two small copies. The first page that closes compiles kernels and
    /// allocates memory for the rows of one page. Several pages at once, as in a prompt, allocate memory
    /// during the call.
    ///
    /// ```no_run
    /// use octaplex::{LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(2, 128, 4096), 1, 4096)?;
    /// layer.append(0, &[0.5; 2 * 300 * 128], &[0.5; 2 * 300 * 128])?; // 300 tokens of 2 heads
    /// assert_eq!(layer.tokens(0)?, 300);
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// * The errors of [`Layer::append`](crate::cache::Layer::append).
    /// * [`Error::Full`] if there are not enough free pages. Pages that leave a sliding window count as
    ///   taken during the call.
    /// * [`Error::Device`]; then [clear](Self::clear) the sequence.
    ///
    /// After other errors the layer is as it was.
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

    /// Adds `count` checked tokens.
    pub(super) fn add(&mut self, sequence: usize, input: Input, count: usize) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let plan = self.plan(&self.sequences[sequence], count)?;
        self.take(sequence, &plan, input)
    }

    /// Measures `times` runs of the kernels that encode the whole pages of these tokens, in microseconds of
    /// the GPU's clock.
    ///
    /// The tokens lie on the GPU in f16, and are encoded like the first of a sequence after its sinks.
    /// Sequences do not change.
    ///
    /// # Errors
    /// * The errors of [`append`](Self::append).
    /// * [`Error::Full`] if there are not enough free pages.
    /// * [`Error::Unsupported`] for less than a page, for more than 128 MiB, and for codecs whose pages the
    ///   CPU encodes.
    pub fn time_append(&mut self, keys: &[f32], values: &[f32], times: usize) -> Result<Vec<f32>, Error> {
        let rows = self.incoming(0, [keys.into(), values.into()])?;
        if !tables::are_encoded(&self.config) {
            return refuse("the CPU encodes pages of these codecs: there is no kernel to measure");
        }
        let (page, each) = (self.config.page, self.paged.token_values());
        let pages = rows.len() / each / page;
        if pages == 0 || pages > 1 && 2 * pages * page * each > ROW_BYTES_AT_ONCE {
            return refuse("time_append takes at least one page, and at most 128 MiB of rows");
        }
        let (input, new, front) = (Input::Host(&rows), 0..pages * page, &open_front(&self.layout));
        let places = self.free(pages)?;
        let rows = Rows { sequence: 0, held: [0..0, 0..0], input, new, position: 0, front };
        Ok(self.paged.time_encoding(&places, &rows, times)?)
    }

    /// Checks rows and returns them in f16 as a sequence stores them: \[tokens]\[kv heads]\[keys,
    /// values]\[width].
    fn incoming(&self, sequence: usize, sides: [Floats; 2]) -> Result<Vec<u16>, Error> {
        self.sequence(sequence)?;
        let (held, heads, dim) = (&self.sequences[sequence], self.config.kv_heads, self.config.key_dim);
        let count = sides[0].len() / (heads * dim);
        for (what, side, each) in [("keys", sides[0], None), ("values", sides[1], Some(count))] {
            if side.len() != count * heads * dim {
                return Err(crate::Error::Rows { what, heads, width: dim, each, actual: side.len() }.into());
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

    /// Stores rows of consecutive positions in a sequence's ring. They start at token `first` of the input.
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

    /// Describes rows of consecutive positions: first those that the sequence holds, then those of new
    /// tokens.
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

    /// Adds new tokens by a plan.
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
                return refuse(
                    "the sequence needs more pages than its table has: create the layer with more tokens",
                );
            }
            places = self.free(plan.closing - plan.skipped)?;
            let rows = self.rows(number, first..first + places.len() * page, input, &decided);
            self.encode(&places, &rows)?;
            front = Some(decided);
        }
        // No error can follow. So rows may overwrite those that no rollback restores.
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

    /// Encodes pages on the GPU, or on the CPU where no kernel exists.
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

    fn page_error(&self, invalid: InvalidRow, first: usize) -> crate::Error {
        crate::Error::Page {
            layer: self.config.layer,
            what: if invalid.key { "keys" } else { "values" },
            head: invalid.head,
            position: first + invalid.page * self.config.page,
            row: invalid.row,
        }
    }

    /// Returns balances and prefix centres. The keys of a full window decide them when the first page
    /// closes.
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
        let mut keys = vec![0.0; layout.page * dim];
        for (head, front) in front.chunks_exact_mut(2 * dim).enumerate() {
            let (balance, prefix) = front.split_at_mut(dim);
            let mut read = |page: usize, keys: &mut [f32]| {
                let tokens = rows.chunks_exact(each).skip(page * layout.page);
                let read = keys.chunks_exact_mut(dim).zip(tokens).map(|(key, token)| {
                    let halves = &token[head * 2 * dim..][..dim];
                    key.iter_mut()
                        .zip(halves)
                        .for_each(|(x, half)| *x = half::f16::from_bits(*half).to_f32());
                });
                read.count() * dim
            };
            let (backend, kind, pages) = (self.backend, layout.balance, full.div_ceil(layout.page));
            let mut deciding = Deciding { backend, kind, pages, rows: &mut keys, read: &mut read };
            if !calibrated {
                deciding.balance(&[], balance);
            }
            if !layout.prefix(head).is_empty() {
                deciding.centre(counted(full, layout.page).min(CENTRED), balance, prefix).map_err(|_| {
                    self.page_error(InvalidRow { page: 0, head, key: true, row: None }, start)
                })?;
            }
        }
        Ok(front)
    }

    /// Removes a sequence's tokens from `position` on, as
    /// [`Layer::truncate`](crate::cache::Layer::truncate) does. Speculative decoding removes rejected
    /// drafts like this.
    ///
    /// Within [`max_rollback`](crate::LayerConfig::max_rollback) tokens of the furthest position, pages
    /// that have closed since open again. Further back, the host decodes the page that is cut. Its first
    /// tokens then lie in the exact window.
    ///
    /// ```no_run
    /// use octaplex::{LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(1, 64, 4096), 1, 4096)?;
    /// layer.append(0, &[0.5; 304 * 64], &[0.5; 304 * 64])?; // 300 tokens and four drafts
    /// layer.truncate(0, 302)?; // two drafts were rejected
    /// assert_eq!(layer.next_position(0)?, 302);
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`crate::Error::Dropped`] and [`crate::Error::Corrupt`], as on the CPU; [`crate::Error::Missing`].
    /// * [`Error::Device`]; then [clear](Self::clear) the sequence.
    ///
    /// After other errors the layer is as it was.
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
            // The next page that closes first decides balance and prefix centre anew.
            let (dim, empty) = (self.config.key_dim, open_front(&self.layout));
            let from = if state.calibrated { dim } else { 0 };
            for (front, empty) in held.front.chunks_exact_mut(2 * dim).zip(empty.chunks_exact(2 * dim)) {
                front[from..].copy_from_slice(&empty[from..]);
            }
        }
        held.enter(&self.layout, state);
        self.place(sequence, held)
    }

    /// Drops a sequence's whole pages between the positions, as
    /// [`Layer::evict`](crate::cache::Layer::evict) does, and returns the number of their tokens.
    ///
    /// Sinks and the exact window stay. The other tokens keep their positions, and steps skip the gap,
    /// captured steps too. Pages that no other sequence holds become free.
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

/// Returns where a ring has the rows of consecutive positions: up to its end, then from its start.
///
/// ```text
/// positions │ 8 9 4 5 6 7 │      positions 6..10 lie at places 4..6 and 0..2
/// places      0 1 2 3 4 5
/// ```
pub(super) fn places_of(layout: &Layout, state: &State, positions: Range<usize>) -> [Range<usize>; 2] {
    if positions.is_empty() {
        return [0..0, 0..0];
    }
    let (first, count) = (state.place_of(layout, positions.start), positions.len());
    let before = count.min(layout.ring - first);
    [first..first + before, 0..count - before]
}
