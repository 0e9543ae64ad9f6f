//! How tokens come in: the exact window, and pages that close behind it.

use super::encode::{Encoder, page_error};
use super::layout::Layout;
use super::storage::Storage;
use super::{Center, Layer, LayerConfig, MAX_POSITION, State};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::{Codec, MAX_BLOCK_BYTES, SURE_NORM};
use crate::page::{Spread, divide, read_balance, store_mean};
use crate::random::Role;
use crate::rows::{Grid, LIMIT, Rows};
use core::ops::Range;
use octaplex_arch::{Float, MAX_DIM};

/// What an append will do.
pub(crate) struct Plan {
    /// Tokens given.
    pub(crate) count: usize,
    /// The position after the last.
    pub(crate) next: usize,
    /// Pages that close.
    pub(crate) closing: usize,
    /// How many of these no query will see, also after the longest rollback, so that they are not even encoded.
    pub(crate) skipped: usize,
    /// Pages that no query will see any more, also after the longest rollback.
    pub(crate) evicted: usize,
    /// The position before which nothing will be seen any more.
    pub(crate) floor: usize,
    /// The first position whose row stays in the ring.
    pub(crate) kept: usize,
}

/// Where a layer stands before tokens come or go, on the CPU or on a GPU.
pub(crate) struct Standing<'a> {
    pub(crate) config: &'a LayerConfig,
    pub(crate) state: &'a State,
    pub(crate) pages: usize,
    /// The first position of a page.
    pub(crate) position: &'a dyn Fn(usize) -> usize,
}

/// Keys or values.
#[derive(Clone, Copy)]
struct Side<'a> {
    input: Grid<'a>,
    window: fn(&Layout, usize, usize, usize) -> Range<usize>,
}

/// The exact window, and what is being appended to it.
struct Window<'a> {
    layout: &'a Layout,
    state: &'a State,
    backend: Kernels,
    front: &'a [u8],
}

impl Standing<'_> {
    /// What appending so many tokens does.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn plan(&self, count: usize) -> Result<Plan, Error> {
        let (config, state, page) = (self.config, self.state, self.config.page);
        let next = state.next.saturating_add(count);
        if next > MAX_POSITION {
            return Err(Error::Full { capacity: MAX_POSITION, needed: next });
        }
        // The layer may go back to here, and no further: these pages are closed for good.
        let back = next.saturating_sub(config.max_rollback);
        let kept = state.kept + config.closed(state.kept, back) * page;
        let [closing, skipped, evicted, held] = self.counts(next);
        // What comes one by one is never more than the capacity: nor is it at once, where there would be most, before a page is
        // dropped that no query sees any longer, or one that none would see is closed.
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

    /// What adding so many closed pages does, the first of them at `start`, when the window is empty. Pages that the sliding
    /// window no longer shows then are dropped, new ones as well.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn plan_pages(&self, start: usize, closing: usize) -> Result<Plan, Error> {
        let (config, page) = (self.config, self.config.page);
        let count = closing.saturating_mul(page);
        let next = start.saturating_add(count);
        if next > MAX_POSITION {
            return Err(Error::Full { capacity: MAX_POSITION, needed: next });
        }
        let [skipped, evicted] = self.unseen(next, start, closing);
        // Memory for pages is what sinks and the exact window leave.
        let pages = self.pages - evicted + closing - skipped;
        let exact = config.sink_tokens + config.recent_window;
        let needed = pages.saturating_mul(page).saturating_add(exact);
        if needed > config.capacity {
            return Err(Error::Full { capacity: config.capacity, needed });
        }
        let floor = self.floor(start, skipped, evicted);
        Ok(Plan { count, next, closing, skipped, evicted, floor, kept: next })
    }

    /// The position before which nothing is seen any more, without so many new pages, from `start` on, and so many old ones.
    fn floor(&self, start: usize, skipped: usize, evicted: usize) -> usize {
        match (skipped, evicted) {
            (0, 0) => self.state.floor,
            (0, _) => (self.position)(evicted - 1) + self.config.page,
            _ => start + skipped * self.config.page,
        }
    }

    /// When the next position is `next`: pages that no query will see any more, also after the longest rollback. Of so many new
    /// ones from `start` on, and of the old ones.
    fn unseen(&self, next: usize, start: usize, closing: usize) -> [usize; 2] {
        let (config, page) = (self.config, self.config.page);
        // Queries from then on see positions from here on.
        let visible = config
            .sliding_window
            .map_or(0, |window| next.saturating_sub(config.max_rollback).saturating_sub(window));
        let unseen = |start: usize| start + page <= visible;
        let skipped = (0..closing).take_while(|i| unseen(start + i * page)).count();
        let evicted = (0..self.pages).take_while(|&i| unseen((self.position)(i))).count();
        [skipped, evicted]
    }

    /// When the next position is `next`: pages that close, those of them that no query will see, old ones that none will, and
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
    /// Rows of tokens from position `start` on, from the window and from what is being appended.
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
    /// Adds tokens. Keys and values are \[kv_heads]\[tokens]\[width], in f32, f16 or bf16; [`Rows`] gives other orders.
    ///
    /// Tokens appended one by one or many at a time give the same bytes. `scratch` has
    /// [`scratch_len`](crate::LayerConfig::scratch_len) values.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Row`] for values that f16 cannot hold, or rows whose norm the codec cannot (where keys
    /// are centred, twice their norm: it ends below 32,752 for most); [`Error::Page`] where a page that closes holds such
    /// rows close to that end; [`Error::Rows`]; [`Error::Length`] for scratch.
    /// The cache is then as it was.
    pub fn append<'a>(
        &mut self,
        keys: impl Into<Rows<'a>>,
        values: impl Into<Rows<'a>>,
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let layout = self.layout;
        let window = |side| match side {
            Role::Keys => Layout::window_keys,
            Role::Values => Layout::window_values,
        };
        let heads = layout.heads;
        let keys = keys.into().grid("keys", (heads, layout.key_dim), None)?;
        let count = keys.tokens();
        let values = values.into().grid("values", (heads, layout.value_dim), Some(count))?;
        let keys = Side { input: keys, window: window(Role::Keys) };
        let values = Side { input: values, window: window(Role::Values) };
        if count == 0 {
            return Ok(());
        }
        for (what, side) in [("keys", keys), ("values", values)] {
            if let Some((at, finite)) = side.input.first_unfit() {
                return Err(self.row_error(what, (count, side.input.width), at, Some(finite)));
            }
        }
        let plan = self.standing(|standing| standing.plan(count))?;
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

    /// Refuses rows that their codec cannot encode now, when they come, and not when their page closes. Centred rows
    /// are tried twice as long: a page's mean may point the other way. (A page may still refuse, near the end of f16,
    /// where its codec fits a difference of rows much worse than the rows.)
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
                // Most rows are far from the bound: f16, which adds less than a hundredth to a square, need not be asked.
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

    /// Encodes the pages that close, behind the others, and then makes them part of the cache.
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
        // Where the new pages have no room beside those they replace, they are encoded twice: the first time to see
        // that nothing is refused.
        let fits = pages <= self.store.free();
        for dry in [true, false] {
            if dry && fits {
                continue;
            }
            if !dry && !fits {
                self.store.remove(0..plan.evicted);
            }
            for index in 0..pages {
                let start = self.state.start + (plan.skipped + index) * layout.page;
                let (front, page) = self.store.front_and_draft(if dry { 0 } else { index });
                let (backend, state) = (self.backend, &self.state);
                let window = Window { layout: &layout, state, backend, front };
                let layer = self.config.layer;
                let codecs: (&dyn Codec, &dyn Codec) = (&self.keys, &self.values);
                let gather = |role, head, rows: &mut [f32]| match role {
                    Role::Keys => window.gather(keys, head, start, rows),
                    Role::Values => window.gather(values, head, start, rows),
                };
                let encoder = Encoder { layer, layout: &layout, backend, codecs, gather: &gather, start };
                let encoded = encoder.encode(page, balances, prefixes, rows);
                if let Err(error) = encoded {
                    self.store.commit(0);
                    return Err(error);
                }
            }
        }
        if fits {
            self.store.remove(0..plan.evicted);
        }
        self.store.commit(pages);
        // What was decided before is written again, with the same bytes.
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

    /// Reads a head's balance and prefix centre, or finds them from the keys that fill the window when the first page
    /// closes: the same ones, whether they come one by one or in a prompt with thousands behind them.
    fn decide(
        &self,
        keys: Side,
        head: usize,
        balance: &mut [f32],
        prefix: &mut [f32],
        rows: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, state, dim) = (&self.layout, &self.state, self.layout.key_dim);
        let front = self.store.front();
        let (decided, full) = (state.has_closed(layout), self.config.recent_window + layout.page);
        let memory = &front[layout.balance(head)];
        if memory.is_empty() {
            balance.fill(1.0);
        } else if self.is_balanced() {
            read_balance(self.backend, memory, balance);
        } else {
            let mut spread = Spread::new();
            for from in (0..full).step_by(layout.page) {
                let rows = &mut rows[..(full - from).min(layout.page) * dim];
                self.window().gather(keys, head, state.start + from, rows);
                spread.add(rows, dim);
            }
            layout.balance.decide(self.backend, &spread, &[], balance);
        }
        let memory = &front[layout.prefix(head)];
        if !memory.is_empty() && decided {
            self.backend.decode_floats(Float::F16, memory, prefix);
        } else if !memory.is_empty() {
            let mut sums = [0.0f32; MAX_DIM];
            let count = full.min(128);
            for token in 0..count {
                let row = &mut rows[..dim];
                self.window().gather(keys, head, state.start + token, row);
                layout.balance.apply(row, balance);
                sums.iter_mut().zip(&*row).for_each(|(sum, x)| *sum += x);
            }
            let mut bytes = [0; 2 * MAX_DIM];
            sums.iter_mut().for_each(|sum| *sum /= count as f32);
            let stored = store_mean(&sums[..dim], dim, &mut bytes[..2 * dim]);
            let at = (state.start, None);
            stored.map_err(|error| page_error(error, self.config.layer, "keys", head, at))?;
            self.backend.decode_floats(Float::F16, &bytes[..2 * dim], prefix);
        }
        Ok(())
    }

    /// Writes what stays exact: sinks, the tokens of the window, and those that a rollback may bring back to it.
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

    /// Whether keys are divided by a balance that is decided.
    pub(crate) fn is_balanced(&self) -> bool {
        !self.layout.balance.is_none() && (self.state.calibrated || self.state.has_closed(&self.layout))
    }

    /// Decides the balance of all heads from keys, \[kv_heads]\[tokens]\[width], and the queries that will meet such keys,
    /// \[query heads]\[queries]\[width]: a prompt's, before they are appended. Without it the first page that closes decides it
    /// from keys alone. Queries are worth it: they say which channels' errors count (`center.rs` has figures). Fewer than 32:
    /// as from keys alone, but of these keys.
    ///
    /// Rollbacks leave this decision alone; [`clear`](Self::clear) forgets it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] in a layer that does not balance keys, or once a page has closed;
    /// [`Error::Rows`], [`Error::Row`]. The layer is then as it was.
    pub fn calibrate(&mut self, keys: &[f32], queries: &[f32]) -> Result<(), Error> {
        let (layout, dim) = (self.layout, self.layout.key_dim);
        let refuse = |why| Err(Error::Unsupported { why });
        if layout.balance.is_none() {
            return refuse(
                "this layer does not balance keys: set balance, and a codec that is not plain floats",
            );
        }
        if self.state.has_closed(&layout) {
            return refuse(
                "the balance is decided: keys are encoded with it; calibrate before the first page closes",
            );
        }
        let mut each = [0; 2];
        for ((what, rows), each) in [("keys", keys), ("queries", queries)].into_iter().zip(&mut each) {
            *each = rows.len() / layout.heads;
            if !each.is_multiple_of(dim) || *each * layout.heads != rows.len() {
                return Err(rows_error(what, layout.heads, dim, None, rows.len()));
            }
            self.check_rows(what, (*each / dim, dim), rows, LIMIT)?;
        }
        for head in 0..layout.heads {
            let [keys, queries] =
                [(keys, each[0]), (queries, each[1])].map(|(rows, each)| &rows[head * each..][..each]);
            let mut spread = Spread::new();
            keys.chunks(layout.page * dim).for_each(|page| spread.add(page, dim));
            let mut balance = [0.0; MAX_DIM];
            layout.balance.decide(self.backend, &spread, queries, &mut balance[..dim]);
            let memory = &mut self.store.front_mut()[layout.balance(head)];
            self.backend.encode_floats(Float::F16, &balance[..dim], memory);
        }
        self.state.calibrated = true;
        Ok(())
    }
}

/// Below such a square, a row can be encoded that is divided by a balance of at least so much.
pub(crate) fn surely_short(centred: bool, least: f32) -> f32 {
    let sure = if centred { 0.5 * SURE_NORM } else { SURE_NORM };
    sure * sure * (least * least)
}

/// Refuses a row that its codec cannot encode, divided by its balance, of which the least magnitude is given; the row changes.
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

/// Rows of all heads whose number is wrong.
pub(crate) fn rows_error(
    what: &'static str,
    heads: usize,
    width: usize,
    each: Option<usize>,
    actual: usize,
) -> Error {
    Error::Rows { what, heads, width, each, actual }
}
