//! Appends tokens: to the window, and to pages that close behind it.
//!
//! An append is planned first, then pages are encoded, and only then the layer changes:
//!
//! ```text
//!  before   sinks │ page A │ page B │ window            │
//!                          kept     start               next
//!  append                                               │ count tokens│
//!  after    sinks │        │ page B │ page C │ page D │ window       │
//!                          floor             kept     start          next
//! ```
//!
//! Pages C and D close. Their rows come from the ring and from the appended tokens. Page A is evicted, because it is
//! behind the sliding window. If a long append moves the sliding window past pages that would close, these pages are
//! skipped: they are not even encoded.

use super::encode::{Encoder, page_error};
use super::layout::Layout;
use super::storage::Storage;
use super::{Center, Layer, LayerConfig, MAX_POSITION, State};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::{Codec, MAX_BLOCK_BYTES, SURE_NORM};
use crate::page::{CENTRED, Deciding, Spread, counted, divide, read_balance};
use crate::random::Role;
use crate::rows::{Grid, LIMIT, Rows};
use core::ops::Range;
use octaplex_arch::{Float, MAX_DIM};

/// Says what an append will change.
pub(crate) struct Plan {
    /// Number of appended tokens.
    pub(crate) count: usize,
    /// Position after the last appended token.
    pub(crate) next: usize,
    /// Number of pages that close.
    pub(crate) closing: usize,
    /// Number of closing pages that no query will see, even after the longest rollback. They are not encoded.
    pub(crate) skipped: usize,
    /// Number of old pages that no query will see any more, even after the longest rollback.
    pub(crate) evicted: usize,
    /// Position before which all tokens are dropped, sinks aside.
    pub(crate) floor: usize,
    /// Position of the first token whose row stays in the ring.
    pub(crate) kept: usize,
}

/// Describes a layer's tokens before a change, on the CPU or on a GPU. Its methods plan the change.
pub(crate) struct Standing<'a> {
    pub(crate) config: &'a LayerConfig,
    pub(crate) state: &'a State,
    /// Number of pages.
    pub(crate) pages: usize,
    /// Returns the position of a page's first token.
    pub(crate) position: &'a dyn Fn(usize) -> usize,
}

/// The appended keys or values, and where they lie in the ring.
#[derive(Clone, Copy)]
struct Side<'a> {
    input: Grid<'a>,
    window: fn(&Layout, usize, usize, usize) -> Range<usize>,
}

/// The window, to which rows are being appended.
struct Window<'a> {
    layout: &'a Layout,
    state: &'a State,
    backend: Kernels,
    front: &'a [u8],
}

impl Standing<'_> {
    /// Plans to append `count` tokens.
    ///
    /// # Errors
    /// [`Error::Full`] if the capacity is too small.
    pub(crate) fn plan(&self, count: usize) -> Result<Plan, Error> {
        let (config, state, page) = (self.config, self.state, self.config.page);
        let next = state.next.saturating_add(count);
        if next > MAX_POSITION {
            return Err(Error::Full { capacity: MAX_POSITION, needed: next });
        }
        // A bit-exact rollback reaches back to here. Pages that are closed there never open again.
        let back = next.saturating_sub(config.max_rollback);
        let kept = state.kept + config.closed(state.kept, back) * page;
        let [closing, skipped, evicted, held] = self.counts(next);
        // Tokens appended one by one would hold the most tokens just before the last page is dropped, and just before
        // the last page closes. An append of all of them must fail if one of these peaks exceeds the capacity:
        //
        //  held      ╱│  ╱│  ╱                  `peak`: the last position before a drop, at or before `next`
        //           ╱ │ ╱ │ ╱
        //          ╱  │╱  │╱
        //  position   │   │  next               drops are a page apart, because pages are dropped and closed whole
        let behind = config.sliding_window.map_or(0, |window| config.max_rollback.saturating_add(window));
        let peaks = [behind, config.recent_window].map(|behind| {
            let past = next.saturating_sub(state.start).saturating_sub(behind) % page;
            next.saturating_sub(past + 1)
        });
        let peaks = peaks.into_iter().filter(|peak| *peak > state.next).map(|peak| self.counts(peak)[3]);
        let needed = peaks.fold(held, usize::max);
        if needed > config.capacity {
            return Err(Error::Full { capacity: config.capacity, needed });
        }
        let floor = self.floor(state.start, skipped, evicted);
        Ok(Plan { count, next, closing, skipped, evicted, floor, kept })
    }

    /// Plans to add `closing` closed pages, the first of them at position `start`. The window is empty.
    ///
    /// Pages that the sliding window then no longer shows are dropped, new ones as well.
    ///
    /// # Errors
    /// [`Error::Full`] if the capacity is too small.
    pub(crate) fn plan_pages(&self, start: usize, closing: usize) -> Result<Plan, Error> {
        let (config, page) = (self.config, self.config.page);
        let count = closing.saturating_mul(page);
        let next = start.saturating_add(count);
        if next > MAX_POSITION {
            return Err(Error::Full { capacity: MAX_POSITION, needed: next });
        }
        let [skipped, evicted] = self.unseen(next, start, closing);
        // Pages may use the capacity that sinks and the recent window do not reserve.
        let pages = self.pages - evicted + closing - skipped;
        let exact = config.sink_tokens + config.recent_window;
        let needed = pages.saturating_mul(page).saturating_add(exact);
        if needed > config.capacity {
            return Err(Error::Full { capacity: config.capacity, needed });
        }
        let floor = self.floor(start, skipped, evicted);
        Ok(Plan { count, next, closing, skipped, evicted, floor, kept: next })
    }

    /// Returns the position before which all tokens are dropped, if `skipped` new pages from position `start` on and
    /// `evicted` old pages are.
    fn floor(&self, start: usize, skipped: usize, evicted: usize) -> usize {
        match (skipped, evicted) {
            (0, 0) => self.state.floor,
            (0, _) => (self.position)(evicted - 1) + self.config.page,
            _ => start + skipped * self.config.page,
        }
    }

    /// Counts the pages that no query sees once the next position is `next`, even after the longest rollback.
    ///
    /// Returns their number among `closing` new pages from position `start` on, and among the old pages.
    fn unseen(&self, next: usize, start: usize, closing: usize) -> [usize; 2] {
        let (config, page) = (self.config, self.config.page);
        // Queries see no position before this one.
        let visible = config
            .sliding_window
            .map_or(0, |window| next.saturating_sub(config.max_rollback).saturating_sub(window));
        let skipped = closing.min(visible.saturating_sub(start) / page);
        let evicted = (0..self.pages).take_while(|&i| (self.position)(i) + page <= visible).count();
        [skipped, evicted]
    }

    /// Counts what an append up to position `next` changes.
    ///
    /// Returns four numbers: pages that close, closing pages that no query sees, old pages that no query sees, and
    /// tokens that the layer then holds.
    fn counts(&self, next: usize) -> [usize; 4] {
        let (config, page, start) = (self.config, self.config.page, self.state.start);
        let window = next.saturating_sub(start);
        let closing = config.closed(start, next);
        let [skipped, evicted] = self.unseen(next, start, closing);
        let pages = self.pages - evicted + closing - skipped;
        let held = next.min(config.sink_tokens) + pages * page + window - closing * page;
        [closing, skipped, evicted, held]
    }
}

impl Window<'_> {
    /// Copies the rows from position `start` on, first from the ring and then from the appended rows.
    ///
    /// ```text
    ///            start            state.next
    ///  ring   ……│ old rows       │
    ///  input                     │ appended rows ……
    ///  rows     │ from_window    │ from_input │
    /// ```
    fn gather(&self, side: Side, head: usize, start: usize, rows: &mut [f32]) {
        let (layout, state, dim) = (self.layout, self.state, side.input.width);
        let count = rows.len() / dim;
        let old = state.next.saturating_sub(start).min(count);
        let (from_window, from_input) = rows.split_at_mut(old * dim);
        if old > 0 {
            let place = state.place_of(layout, start);
            let bytes = &self.front[(side.window)(layout, head, place, old)];
            self.backend.decode_floats(Float::F16, bytes, from_window);
        }
        let first = (start + old).saturating_sub(state.next);
        side.input.read(self.backend, head, first, from_input);
    }
}

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    /// Appends tokens.
    ///
    /// Keys and values are \[kv_heads]\[tokens]\[width], in f32, f16 or bf16. Keys come after the rotary embedding.
    /// [`Rows`] describes other orders. Tokens appended one by one or many at a time give the same bytes. `scratch` has
    /// as many values as [`scratch_len`](crate::LayerConfig::scratch_len) returns.
    /// [`LayerCache`](crate::cache::LayerCache) has an example.
    ///
    /// # Errors
    /// * [`Error::Full`] if the tokens do not fit the capacity.
    /// * [`Error::Row`] for values that f16 cannot hold, and for rows whose norm the codec cannot hold. Where keys are
    ///   centred, the codec must hold twice the norm, so most codecs need norms below 32,752.
    /// * [`Error::Page`] if a page that closes cannot be encoded, because its rows are close to these limits.
    /// * [`Error::Rows`] for keys or values of the wrong length.
    /// * [`Error::Length`] if `scratch` is too short.
    /// * [`Error::Memory`] if the machine has too little memory for the pages that close.
    ///
    /// The layer is then as it was.
    pub fn append<'a>(
        &mut self,
        keys: impl Into<Rows<'a>>,
        values: impl Into<Rows<'a>>,
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let layout = self.layout;
        let heads = layout.heads;
        let keys = keys.into().grid("keys", (heads, layout.key_dim), None)?;
        let count = keys.tokens();
        let values = values.into().grid("values", (heads, layout.value_dim), Some(count))?;
        let keys = Side { input: keys, window: Layout::window_keys };
        let values = Side { input: values, window: Layout::window_values };
        if count == 0 {
            return Ok(());
        }
        // Strided rows may claim any number of tokens. So compare it with the capacity before looking at the values.
        let plan = self.standing(|standing| standing.plan(count))?;
        for (what, side) in [("keys", keys), ("values", values)] {
            side.input.check_count(what)?;
            if let Some((at, finite)) = side.input.first_unfit() {
                return Err(self.row_error(what, (count, side.input.width), at, Some(finite)));
            }
        }
        self.try_rows("keys", keys, &self.keys, self.config.centers() != Center::Off, Layout::balance)?;
        self.try_rows("values", values, &self.values, false, |_, _| 0..0)?;
        if plan.closing > 0 {
            self.close(&plan, keys, values, scratch)?;
        } else if plan.evicted > 0 {
            self.store.remove(0..plan.evicted);
        }
        self.write(&plan, keys, Layout::sink_keys);
        self.write(&plan, values, Layout::sink_values);
        self.state = self.state.after(&plan, &layout);
        Ok(())
    }

    fn window(&self) -> Window<'_> {
        Window { layout: &self.layout, state: &self.state, backend: self.backend, front: self.store.front() }
    }

    /// Checks that the codec can encode all appended rows. So an error comes with the append, not when the page closes.
    ///
    /// Centred rows are checked at twice their length, because a page's mean may point the other way. A page may still
    /// fail near the end of f16, if its codec fits a difference of rows much worse than the rows.
    fn try_rows(
        &self,
        what: &'static str,
        side: Side,
        codec: &dyn Codec,
        centred: bool,
        balance_at: fn(&Layout, usize) -> Range<usize>,
    ) -> Result<(), Error> {
        let (mut row, mut balance) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (dim, tokens) = (side.input.width, side.input.tokens());
        let (row, balance) = (&mut row[..dim], &mut balance[..dim]);
        for head in 0..self.layout.heads {
            let memory = &self.store.front()[balance_at(&self.layout, head)];
            let balanced = !memory.is_empty() && self.is_balanced();
            let mut least = 1.0;
            if balanced {
                read_balance(self.backend, memory, balance);
                least = balance.iter().fold(f32::INFINITY, |least, s| least.min(s.abs()));
            }
            let bound = surely_short(centred, least);
            for token in 0..tokens {
                // Most rows are far from the bound. Rounding to f16 adds less than a hundredth to the square, so skip
                // it.
                if let Some(raw) = side.input.f32_row(head, token)
                    && self.backend.dot(raw, raw) < 0.99 * bound
                {
                    continue;
                }
                side.input.read(self.backend, head, token, row);
                let by = balanced.then_some((&*balance, least));
                let tried = try_row(self.backend, codec, row, by, centred);
                let at = (head * tokens + token) * dim;
                tried.map_err(|_| self.row_error(what, (tokens, dim), at, None))?;
            }
        }
        Ok(())
    }

    /// Encodes the pages that close, then adds them to the layer and drops the evicted ones.
    ///
    /// The layer does not change if a page cannot be encoded.
    fn close(&mut self, plan: &Plan, keys: Side, values: Side, scratch: &mut [f32]) -> Result<(), Error> {
        let layout = self.layout;
        let needed = layout.append_scratch();
        if scratch.len() < needed {
            return Err(Error::Length { what: "values of scratch", expected: needed, actual: scratch.len() });
        }
        let (balances, scratch) = scratch.split_at_mut(layout.heads * layout.key_dim);
        let (prefixes, rows) = scratch.split_at_mut(layout.heads * layout.key_dim);
        for head in 0..layout.heads {
            let at = head * layout.key_dim..(head + 1) * layout.key_dim;
            self.decide(keys, head, &mut balances[at.clone()], &mut prefixes[at], rows)?;
        }
        let pages = plan.closing - plan.skipped;
        // If memory cannot hold both the new pages and the pages that they replace, encode each page twice: first into
        // the spare slot, to find errors, and then, once the old pages are gone, into its own slot.
        //
        //              dry run                      real run
        //  fits        none                         encode all, then drop the old pages
        //  does not    all into the spare slot      drop the old pages, then encode all
        let fits = pages <= self.store.free();
        self.store.reserve(pages)?;
        let first = self.state.start + plan.skipped * layout.page;
        let mut encode = |layer: &mut Self, spare| {
            let encoded = (0..pages).try_for_each(|index| {
                let (start, slot) = (first + index * layout.page, if spare { 0 } else { index });
                layer.encode_page((start, slot), [keys, values], (balances, prefixes), rows)
            });
            encoded.inspect_err(|_| layer.store.commit(0))
        };
        if !fits {
            encode(self, true)?;
            self.store.remove(0..plan.evicted);
        }
        encode(self, false)?;
        if fits {
            self.store.remove(0..plan.evicted);
        }
        self.store.commit(pages);
        // If they were decided before, this writes the same bytes again.
        for head in 0..layout.heads {
            let at = head * layout.key_dim..(head + 1) * layout.key_dim;
            for (place, values) in [(layout.balance(head), &*balances), (layout.prefix(head), &*prefixes)] {
                if !place.is_empty() {
                    let memory = &mut self.store.front_mut()[place];
                    self.backend.encode_floats(Float::F16, &values[at.clone()], memory);
                }
            }
        }
        Ok(())
    }

    /// Encodes the page of tokens from `start` on into a slot of drafts.
    fn encode_page(
        &mut self,
        (start, slot): (usize, usize),
        [keys, values]: [Side; 2],
        (balances, prefixes): (&[f32], &[f32]),
        rows: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, backend) = (self.layout, self.backend);
        let (front, page) = self.store.front_and_draft(slot);
        let window = Window { layout: &layout, state: &self.state, backend, front };
        let gather = |role, head, rows: &mut [f32]| match role {
            Role::Keys => window.gather(keys, head, start, rows),
            Role::Values => window.gather(values, head, start, rows),
        };
        let codecs: (&dyn Codec, &dyn Codec) = (&self.keys, &self.values);
        let encoder =
            Encoder { layer: self.config.layer, layout: &layout, backend, codecs, gather: &gather, start };
        encoder.encode(page, balances, prefixes, rows)
    }

    /// Reads a head's balance and prefix centre. When the first page closes, computes them instead.
    ///
    /// The balance is computed from the first recent_window + page keys, and the centre from at most [`CENTRED`] of them. These
    /// fill the window when the first page closes, even if an append has thousands of tokens more. So the result does
    /// not depend on how many tokens a call appends.
    fn decide(
        &self,
        keys: Side,
        head: usize,
        balance: &mut [f32],
        prefix: &mut [f32],
        rows: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, front, start) = (&self.layout, self.store.front(), self.state.start);
        let (page, full) = (layout.page, self.config.recent_window + layout.page);
        let mut read = |index: usize, rows: &mut [f32]| {
            let len = (full - index * page).min(page) * layout.key_dim;
            self.window().gather(keys, head, start + index * page, &mut rows[..len]);
            len
        };
        let (backend, kind, pages) = (self.backend, layout.balance, full.div_ceil(page));
        let mut deciding = Deciding { backend, kind, pages, rows, read: &mut read };
        if self.is_balanced() {
            read_balance(backend, &front[layout.balance(head)], balance);
        } else {
            balance.fill(1.0);
            deciding.balance(&[], balance);
        }
        let memory = &front[layout.prefix(head)];
        if memory.is_empty() {
            return Ok(());
        }
        if self.state.has_closed(layout) {
            backend.decode_floats(Float::F16, memory, prefix);
            return Ok(());
        }
        let decided = deciding.centre(counted(full, page).min(CENTRED), balance, prefix);
        decided.map_err(|error| page_error(error, self.config.layer, "keys", head, (start, None)))
    }

    /// Writes the rows that stay exact: sinks, the window, and rows of closed pages that a rollback may open again.
    fn write(&mut self, plan: &Plan, side: Side, sinks: fn(&Layout, usize, usize, usize) -> Range<usize>) {
        let (layout, state) = (self.layout, self.state);
        let front = self.store.front_mut();
        for head in 0..layout.heads {
            for token in state.next..plan.next.min(layout.sinks) {
                let bytes = &mut front[sinks(&layout, head, token, 1)];
                side.input.write(self.backend, head, token - state.next, bytes);
            }
            for token in state.next.max(plan.kept)..plan.next {
                let place = state.place_of(&layout, token);
                let bytes = &mut front[(side.window)(&layout, head, place, 1)];
                side.input.write(self.backend, head, token - state.next, bytes);
            }
        }
    }

    /// Returns whether keys are divided by a balance that is decided.
    pub(crate) fn is_balanced(&self) -> bool {
        !self.layout.balance.is_none() && (self.state.calibrated || self.state.has_closed(&self.layout))
    }

    /// Decides the balance of all heads from keys and queries of a prompt, before they are appended.
    ///
    /// `keys` are \[kv_heads]\[tokens]\[key width] and `queries` are \[query heads]\[queries]\[key width]. Without this
    /// call, the first page that closes decides the balance from keys alone. Queries make results more accurate,
    /// because they show which channels' errors count (`src/page/balance.rs` has a table). With fewer than 32 queries,
    /// only `keys` count.
    ///
    /// Rollbacks keep this decision, and [`clear`](Self::clear) forgets it.
    ///
    /// ```
    /// use octaplex::{Backend, Error, LayerConfig, cache::SharedLayer};
    ///
    /// let config = LayerConfig::new(1, 64, 1000);
    /// let mut layer = SharedLayer::on_heap(&config, Backend::detect())?;
    /// // 100 keys and 100 queries. The first channel of the keys has large values.
    /// let row = |i: usize| (i % 7) as f32 - 3.0;
    /// let keys: Vec<f32> = (0..100 * 64).map(|i| if i % 64 == 0 { 50.0 * row(i / 64) } else { row(i) }).collect();
    /// let queries: Vec<f32> = (0..100 * 64).map(row).collect();
    /// layer.calibrate(&keys, &queries)?;
    /// assert_eq!(layer.stats().balanced_heads, 1);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Unsupported`] if the layer does not balance keys, or if a page has closed.
    /// * [`Error::Rows`] for keys or queries of the wrong length.
    /// * [`Error::Row`] for values that f16 cannot hold.
    ///
    /// The layer is then as it was.
    pub fn calibrate(&mut self, keys: &[f32], queries: &[f32]) -> Result<(), Error> {
        let (layout, dim) = (self.layout, self.layout.key_dim);
        let refuse = |why| Err(Error::Unsupported { why });
        if layout.balance.is_none() {
            return refuse(
                "this layer does not balance keys: set balance to true, and choose a codec other than f16, bf16 and f32",
            );
        }
        if self.state.has_closed(&layout) {
            return refuse(
                "the balance is already decided, and keys are encoded with it: calibrate before the first page closes",
            );
        }
        let mut each = [0; 2];
        for ((what, rows), each) in [("keys", keys), ("queries", queries)].into_iter().zip(&mut each) {
            *each = rows.len() / layout.heads;
            if !each.is_multiple_of(dim) || *each * layout.heads != rows.len() {
                return Err(Error::Rows {
                    what,
                    heads: layout.heads,
                    width: dim,
                    each: None,
                    actual: rows.len(),
                });
            }
            self.check_rows(what, (*each / dim, dim), rows, LIMIT)?;
        }
        for head in 0..layout.heads {
            let [keys, queries] =
                [(keys, each[0]), (queries, each[1])].map(|(rows, each)| &rows[head * each..][..each]);
            let mut spread = Spread::new();
            keys.chunks(layout.page * dim).for_each(|page| spread.add(page, dim));
            let mut balance = [0.0; MAX_DIM];
            spread.decide(self.backend, layout.balance, queries, &mut balance[..dim]);
            let memory = &mut self.store.front_mut()[layout.balance(head)];
            self.backend.encode_floats(Float::F16, &balance[..dim], memory);
        }
        self.state.calibrated = true;
        Ok(())
    }
}

/// Returns a bound on the square of a row's norm, below which every codec can encode the row.
///
/// The row is divided by a balance whose magnitudes are at least `least`.
pub(crate) fn surely_short(centred: bool, least: f32) -> f32 {
    let sure = if centred { 0.5 * SURE_NORM } else { SURE_NORM };
    sure * sure * (least * least)
}

/// Checks that the codec can encode a row, which is first divided by its balance. The row changes.
///
/// `balance` is the balance and its least magnitude.
pub(crate) fn try_row(
    backend: Kernels,
    codec: &dyn Codec,
    row: &mut [f32],
    balance: Option<(&[f32], f32)>,
    centred: bool,
) -> Result<(), Error> {
    if backend.dot(row, row) < surely_short(centred, balance.map_or(1.0, |(_, least)| least)) {
        return Ok(());
    }
    if let Some((balance, _)) = balance {
        divide(row, balance);
    }
    if backend.dot(row, row) >= surely_short(centred, 1.0) {
        row.iter_mut().for_each(|x| *x *= if centred { 2.0 } else { 1.0 });
        codec.encode(row, &mut [0; MAX_BLOCK_BYTES][..codec.block_bytes()])?;
    }
    Ok(())
}
