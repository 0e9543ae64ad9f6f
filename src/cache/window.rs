//! How tokens come in and leave: the exact window, closing pages, truncation, eviction.

use super::center::{self, Spread};
use super::page::{HEADER, Layout, Storage};

use super::tensor::{LIMIT, Tensor};
use super::{Center, Layer, State};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::{Codec, MAX_BLOCK_BYTES, SURE_NORM, check_values};
use core::ops::Range;
use octaplex_arch::{Float, MAX_DIM};

/// What an append will do.
struct Plan {
    /// Tokens given.
    count: usize,
    /// The position after the last.
    next: usize,
    /// Pages that close.
    closing: usize,
    /// How many of these no query will see, so that they are not even encoded.
    skipped: usize,
    /// Pages that no query will see any more.
    evicted: usize,
}

/// Keys or values.
#[derive(Clone, Copy)]
struct Side<'a> {
    input: Tensor<'a>,
    dim: usize,
    window: fn(&Layout, usize, usize, usize) -> Range<usize>,
}

/// The exact window, and what is being appended to it.
struct Window<'a> {
    layout: &'a Layout,
    state: &'a State,
    backend: Kernels,
    front: &'a [u8],
}

impl Window<'_> {
    /// Rows of tokens from position `start` on, from the window and from what is being appended.
    fn gather(&self, side: Side, head: usize, start: usize, rows: &mut [f32]) {
        let (layout, state, dim) = (self.layout, self.state, side.dim);
        let count = rows.len() / dim;
        let old = state.next.saturating_sub(start).min(count);
        let (from_window, from_input) = rows.split_at_mut(old * dim);
        if old > 0 {
            let place = (state.place + start - state.start) % layout.ring;
            let bytes = &self.front[(side.window)(layout, head, place, old)];
            self.backend.decode_floats(Float::F16, bytes, from_window);
        }
        let tokens = side.input.len() / (layout.heads * dim);
        let first = (start + old).saturating_sub(state.next);
        side.input.read(self.backend, (head * tokens + first) * dim, dim, from_input);
    }
}

/// Encodes a page that closes.
struct Encoder<'a> {
    window: Window<'a>,
    codecs: (&'a dyn Codec, &'a dyn Codec),
    input: (Side<'a>, Side<'a>),
    /// Position of its first token.
    start: usize,
}

impl Encoder<'_> {
    /// All heads; with the feature `rayon`, at once where `rows` has room for that.
    fn encode(
        &self,
        page: &mut [u8],
        balances: &[f32],
        prefixes: &[f32],
        rows: &mut [f32],
    ) -> Result<(), Error> {
        let layout = self.window.layout;
        let (header, heads) = page.split_at_mut(HEADER);
        header.fill(0);
        header[..8].copy_from_slice(&(self.start as u64).to_le_bytes());
        let encode = |head: usize, page: &mut [u8], rows: &mut [f32]| {
            let at = head * layout.key_dim..(head + 1) * layout.key_dim;
            self.encode_head(head, page, &balances[at.clone()], &prefixes[at], rows)
        };
        let one = layout.page_of_rows();
        #[cfg(feature = "rayon")]
        if layout.heads > 1 && rows.len() >= layout.heads * one {
            use rayon::prelude::*;
            let heads = heads.par_chunks_mut(layout.head_page).zip(rows.par_chunks_mut(one)).enumerate();
            heads.try_for_each(|(head, (page, rows))| encode(head, page, rows))?;
            layout.pack(page);
            return Ok(());
        }
        let mut heads = heads.chunks_exact_mut(layout.head_page).enumerate();
        heads.try_for_each(|(head, page)| encode(head, page, &mut rows[..one]))?;
        layout.pack(page);
        Ok(())
    }

    fn encode_head(
        &self,
        head: usize,
        page: &mut [u8],
        balance: &[f32],
        prefix: &[f32],
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let Window { layout, backend, .. } = self.window;
        let (centre, blocks) = page.split_at_mut(layout.centre_bytes);
        let (lengths, blocks) = blocks.split_at_mut(if layout.varies { 8 } else { 0 });
        let (key_blocks, value_blocks) = blocks.split_at_mut(layout.key_page);
        let rows = &mut scratch[..layout.page * layout.key_dim];
        self.window.gather(self.input.0, head, self.start, rows);
        if !layout.balance(head).is_empty() {
            center::divide(rows, balance);
        }
        if !layout.prefix(head).is_empty() {
            for row in rows.chunks_exact_mut(layout.key_dim) {
                row.iter_mut().zip(prefix).for_each(|(x, c)| *x -= c);
            }
        }
        if !centre.is_empty() {
            center::store_mean(rows, layout.key_dim, centre)?;
            center::subtract(backend, rows, centre);
        }
        let keys = self.codecs.0.encode_page(rows, key_blocks)?;
        let rows = &mut scratch[..layout.page * layout.value_dim];
        self.window.gather(self.input.1, head, self.start, rows);
        let values = self.codecs.1.encode_page(rows, value_blocks)?;
        for (length, bytes) in [keys, values].into_iter().zip(lengths.as_chunks_mut::<4>().0) {
            *bytes = (length as u32).to_le_bytes();
        }
        Ok(())
    }
}

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    /// Adds tokens: keys and values in any float type, \[kv_heads]\[tokens]\[width]. Tokens appended one by one or
    /// many at a time give the same cache. `scratch` has [`scratch_len`](crate::LayerConfig::scratch_len) values.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::NonFinite`]; [`Error::Overflow`] for values that f16 cannot hold, or rows whose norm
    /// the codec cannot (where keys are centred, twice their norm: it ends below 32,752 for most); [`Error::Length`].
    /// The cache is then as it was.
    pub fn append<'a>(
        &mut self,
        keys: impl Into<Tensor<'a>>,
        values: impl Into<Tensor<'a>>,
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let layout = self.layout;
        let window = |side| match side {
            crate::Role::Keys => Layout::window_keys,
            crate::Role::Values => Layout::window_values,
        };
        let keys = Side { input: keys.into(), dim: layout.key_dim, window: window(crate::Role::Keys) };
        let values =
            Side { input: values.into(), dim: layout.value_dim, window: window(crate::Role::Values) };
        let count = keys.input.len() / (layout.heads * layout.key_dim);
        Error::expect_length("values of keys", count * layout.heads * layout.key_dim, keys.input.len())?;
        Error::expect_length(
            "values of values",
            count * layout.heads * layout.value_dim,
            values.input.len(),
        )?;
        if count == 0 {
            return Ok(());
        }
        keys.input.check()?;
        values.input.check()?;
        let plan = self.plan(count)?;
        self.try_rows(keys, &self.keys, self.config.centers() != Center::Off, Layout::balance)?;
        self.try_rows(values, &self.values, false, |_, _| 0..0)?;
        if plan.closing > 0 {
            self.close(&plan, keys, values, scratch)?;
        } else if plan.evicted > 0 {
            self.store.remove(0..plan.evicted);
        }
        self.write(&plan, keys, Layout::sink_keys);
        self.write(&plan, values, Layout::sink_values);
        let state = &mut self.state;
        state.next = plan.next;
        state.start += plan.closing * layout.page;
        state.place = (state.place + plan.closing * layout.page) % layout.ring;
        state.evicted += (plan.skipped + plan.evicted) * layout.page;
        Ok(())
    }

    fn window(&self) -> Window<'_> {
        Window { layout: &self.layout, state: &self.state, backend: self.backend, front: self.store.front() }
    }

    fn plan(&self, count: usize) -> Result<Plan, Error> {
        let (layout, state, page) = (&self.layout, &self.state, self.layout.page);
        let next = state.next + count;
        let window = next.saturating_sub(state.start);
        let recent = self.config.recent_window;
        let closing = if window >= recent + page { (window - recent) / page } else { 0 };
        // Queries from now on see positions from here on.
        let visible = self.config.sliding_window.map_or(0, |window| next.saturating_sub(window));
        let unseen = |start: usize| start + page <= visible;
        let skipped = (0..closing).take_while(|i| unseen(state.start + i * page)).count();
        let pages = self.store.pages();
        let evicted = (0..pages).take_while(|&i| unseen(self.page_position(i))).count();
        let tokens =
            next.min(layout.sinks) + (pages - evicted + closing - skipped) * page + window - closing * page;
        if tokens > self.config.capacity {
            return Err(Error::Full { capacity: self.config.capacity, needed: tokens });
        }
        Ok(Plan { count, next, closing, skipped, evicted })
    }

    /// Refuses rows that their codec cannot encode now, when they come, and not when their page closes. Centred rows
    /// are tried twice as long: a page's mean may point the other way. (A page may still refuse, near the end of f16,
    /// where its codec fits a difference of rows much worse than the rows.)
    fn try_rows(
        &self,
        side: Side,
        codec: &dyn Codec,
        centred: bool,
        balance_at: fn(&Layout, usize) -> Range<usize>,
    ) -> Result<(), Error> {
        let (mut row, mut block, mut balance) = ([0.0; MAX_DIM], [0; MAX_BLOCK_BYTES], [0.0; MAX_DIM]);
        let (row, balance) = (&mut row[..side.dim], &mut balance[..side.dim]);
        let sure = if centred { 0.5 * SURE_NORM } else { SURE_NORM };
        let tokens = side.input.len() / (self.layout.heads * side.dim);
        for head in 0..self.layout.heads {
            let memory = &self.store.front()[balance_at(&self.layout, head)];
            let balanced = center::is_decided(memory);
            let mut least = 1.0;
            if balanced {
                center::read_balance(self.backend, memory, balance);
                least = self.backend.min_max(balance).0;
            }
            for token in head * tokens..(head + 1) * tokens {
                side.input.read(self.backend, token * side.dim, side.dim, row);
                if self.backend.dot(row, row) < sure * sure * (least * least) {
                    continue;
                }
                if balanced {
                    center::divide(row, balance);
                }
                if self.backend.dot(row, row) >= sure * sure {
                    row.iter_mut().for_each(|x| *x *= if centred { 2.0 } else { 1.0 });
                    codec.encode(row, &mut block[..codec.block_bytes()])?;
                }
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
        let mut opened = [false; 2];
        for head in 0..layout.heads {
            let at = head * layout.key_dim..(head + 1) * layout.key_dim;
            opened = self.decide(plan, keys, head, &mut balances[at.clone()], &mut prefixes[at], rows)?;
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
                let encoder =
                    Encoder { window, codecs: (&self.keys, &self.values), input: (keys, values), start };
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
        for head in 0..layout.heads {
            let at = head * layout.key_dim..(head + 1) * layout.key_dim;
            if opened[0] && !center::is_decided(&self.store.front()[layout.balance(head)]) {
                let memory = &mut self.store.front_mut()[layout.balance(head)];
                center::decide(self.backend, memory, &balances[at.clone()]);
            }
            if opened[1] {
                let memory = &mut self.store.front_mut()[layout.prefix(head)];
                self.backend.encode_floats(Float::F16, &prefixes[at], memory);
                self.state.has_prefix = true;
            }
        }
        Ok(())
    }

    /// Reads a head's balance and prefix centre, or finds them from the keys that are there when the first page
    /// closes; says whether each is used.
    fn decide(
        &self,
        plan: &Plan,
        keys: Side,
        head: usize,
        balance: &mut [f32],
        prefix: &mut [f32],
        rows: &mut [f32],
    ) -> Result<[bool; 2], Error> {
        let (layout, state, dim) = (&self.layout, &self.state, self.layout.key_dim);
        let front = self.store.front();
        let memory = &front[layout.balance(head)];
        let present = (plan.next - state.start).min(self.config.recent_window + layout.page);
        if center::is_decided(memory) {
            center::read_balance(self.backend, memory, balance);
        } else if !memory.is_empty() {
            let mut spread = Spread::new();
            for from in (0..present).step_by(layout.page) {
                let rows = &mut rows[..(present - from).min(layout.page) * dim];
                self.window().gather(keys, head, state.start + from, rows);
                spread.add(rows, dim);
            }
            spread.balance(center::mean_squares(memory, state.queries), balance);
        }
        let memory = &front[layout.prefix(head)];
        if state.has_prefix {
            self.backend.decode_floats(Float::F16, memory, prefix);
        } else if !memory.is_empty() {
            let mut sums = [0.0f32; MAX_DIM];
            let count = present.min(128);
            for token in 0..count {
                let row = &mut rows[..dim];
                self.window().gather(keys, head, state.start + token, row);
                if !layout.balance(head).is_empty() {
                    center::divide(row, balance);
                }
                sums.iter_mut().zip(&*row).for_each(|(sum, x)| *sum += x);
            }
            let mut bytes = [0; 2 * MAX_DIM];
            sums.iter_mut().for_each(|sum| *sum /= count as f32);
            center::store_mean(&sums[..dim], dim, &mut bytes[..2 * dim])?;
            self.backend.decode_floats(Float::F16, &bytes[..2 * dim], prefix);
        }
        Ok([!layout.balance(head).is_empty(), !layout.prefix(head).is_empty() && !state.has_prefix])
    }

    /// Writes what stays exact: sinks, and the tokens of the window.
    fn write(&mut self, plan: &Plan, side: Side, sinks: fn(&Layout, usize, usize, usize) -> Range<usize>) {
        let (layout, state, dim) = (self.layout, self.state, side.dim);
        let front = self.store.front_mut();
        let start = state.start + plan.closing * layout.page;
        for head in 0..layout.heads {
            let row = |token: usize| (head * plan.count + token - state.next) * dim;
            for token in state.next..plan.next.min(layout.sinks) {
                side.input.write(self.backend, row(token), &mut front[sinks(&layout, head, token, 1)]);
            }
            for token in state.next.max(start)..plan.next {
                let place = (state.place + token - state.start) % layout.ring;
                let bytes = &mut front[(side.window)(&layout, head, place, 1)];
                side.input.write(self.backend, row(token), bytes);
            }
        }
    }

    /// Adds the queries, \[query heads]\[queries]\[width], to what the balance will be decided from. Until the first
    /// page closes; later, or without `balance`, it does nothing.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::NonFinite`].
    pub fn observe(&mut self, queries: &[f32]) -> Result<(), Error> {
        let layout = self.layout;
        let per_head = queries.len() / (layout.heads * layout.key_dim) * layout.key_dim;
        Error::expect_length("values of queries", per_head * layout.heads, queries.len())?;
        check_values(queries, f32::INFINITY)?;
        let mut open = false;
        for (head, queries) in queries.chunks_exact(per_head.max(1)).enumerate() {
            let memory = &mut self.store.front_mut()[layout.balance(head)];
            if !memory.is_empty() && !center::is_decided(memory) {
                center::observe(memory, queries, layout.key_dim);
                open = true;
            }
        }
        self.state.queries += if open { (per_head / layout.key_dim) as u64 } else { 0 };
        Ok(())
    }

    /// Decides a head's balance now, from these keys and queries (\[tokens]\[width] each; no queries: from the keys
    /// alone).
    ///
    /// # Errors
    /// [`Error::Unsupported`] without `balance`, or once it is decided; [`Error::Length`], [`Error::NonFinite`].
    pub fn calibrate(&mut self, head: usize, keys: &[f32], queries: &[f32]) -> Result<(), Error> {
        let (layout, dim) = (self.layout, self.layout.key_dim);
        let refuse = |why| Err(Error::Unsupported { why });
        if head >= layout.heads {
            return refuse("the layer has fewer heads");
        }
        let memory = layout.balance(head);
        if memory.is_empty() {
            return refuse("this cache does not balance keys; set balance in its configuration");
        }
        if center::is_decided(&self.store.front()[memory.clone()]) || self.store.pages() > 0 {
            return refuse(
                "the balance is decided: keys are encoded with it; calibrate before the first page closes",
            );
        }
        for rows in [keys, queries] {
            Error::expect_length("values, a multiple of the width", rows.len() / dim * dim, rows.len())?;
            check_values(rows, LIMIT)?;
        }
        let mut spread = Spread::new();
        keys.chunks(layout.page * dim).for_each(|page| spread.add(page, dim));
        let mut means = [0.0f64; MAX_DIM];
        for query in queries.chunks_exact(dim) {
            means.iter_mut().zip(query).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
        }
        let count = queries.len() / dim;
        let means = means.iter().map(|sum| if count == 0 { 1.0 } else { sum / count as f64 });
        let mut balance = [0.0; MAX_DIM];
        spread.balance(means, &mut balance[..dim]);
        center::decide(self.backend, &mut self.store.front_mut()[memory], &balance[..dim]);
        Ok(())
    }

    /// Forgets the tokens from `position` on, as after rejected speculation. Exact within the exact window; further
    /// back, the page that is cut is decoded into the window (and encoded a second time when it closes again), and
    /// [`Stats::decoded_tokens`](crate::Stats) counts these tokens. Beyond the end, nothing happens.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if that page cannot be decoded; the cache is then as it was.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        let (layout, state) = (self.layout, self.state);
        if position >= state.next {
            return Ok(());
        }
        if position >= state.start {
            self.state.next = position;
            return Ok(());
        }
        let pages = self.store.pages();
        let kept = (0..pages).take_while(|&i| self.page_position(i) + layout.page <= position).count();
        let cut = kept < pages && self.page_position(kept) < position;
        let start = if cut { self.page_position(kept) } else { position.max(layout.sinks) };
        let count = if cut { position - start } else { 0 };
        // Everything is decoded once before the first byte of the window changes.
        for write in [false, true] {
            for (head, token) in (0..layout.heads).flat_map(|head| (0..count).map(move |token| (head, token)))
            {
                self.restore(kept, head, token, write)?;
            }
        }
        self.store.remove(kept..pages);
        self.state = State { next: position, start, place: 0, decoded: state.decoded + count, ..state };
        Ok(())
    }

    /// What the cache has for token `number` of [`positions`](Self::positions): a key and a value, decoded. Attention
    /// needs no such copy; this is for tools.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for heads and tokens that are not there, [`Error::Length`], [`Error::Corrupt`].
    pub fn decode(
        &self,
        head: usize,
        number: usize,
        key: &mut [f32],
        value: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, state) = (&self.layout, &self.state);
        Error::expect_length("values of a key", layout.key_dim, key.len())?;
        Error::expect_length("values of a value", layout.value_dim, value.len())?;
        let sinks = state.next.min(layout.sinks);
        let paged = self.store.pages() * layout.page;
        if head >= layout.heads || number >= self.tokens() {
            return Err(Error::Unsupported { why: "the layer has fewer heads or tokens" });
        }
        let [keys, values] = match number {
            _ if number < sinks => [layout.sink_keys(head, number, 1), layout.sink_values(head, number, 1)],
            _ if number < sinks + paged => {
                let token = number - sinks;
                return self.decode_paged(token / layout.page, head, token % layout.page, key, value);
            }
            _ => {
                let place = (state.place + number - sinks - paged) % layout.ring;
                [layout.window_keys(head, place, 1), layout.window_values(head, place, 1)]
            }
        };
        self.backend.decode_floats(Float::F16, &self.store.front()[keys], key);
        self.backend.decode_floats(Float::F16, &self.store.front()[values], value);
        Ok(())
    }

    fn decode_paged(
        &self,
        page: usize,
        head: usize,
        token: usize,
        key: &mut [f32],
        value: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, backend) = (&self.layout, self.backend);
        let (centre, keys, values) = layout.head(self.store.page(page), head);
        let mut other = [0.0; MAX_DIM];
        let other = &mut other[..layout.key_dim];
        decode(&self.keys, keys, token, layout.page, key)?;
        decode(&self.values, values, token, layout.page, value)?;
        for centre in [centre, &self.store.front()[layout.prefix(head)]] {
            if !centre.is_empty() {
                backend.decode_floats(Float::F16, centre, other);
                key.iter_mut().zip(&*other).for_each(|(x, c)| *x += c);
            }
        }
        let memory = &self.store.front()[layout.balance(head)];
        if !memory.is_empty() {
            center::read_balance(backend, memory, other);
            center::multiply(key, other);
        }
        Ok(())
    }

    /// Decodes a token of a page into the window.
    fn restore(&mut self, page: usize, head: usize, token: usize, write: bool) -> Result<(), Error> {
        let (layout, backend) = (self.layout, self.backend);
        let (mut key, mut value) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (key, value) = (&mut key[..layout.key_dim], &mut value[..layout.value_dim]);
        self.decode_paged(page, head, token, key, value)?;
        for x in key.iter_mut().chain(value.iter_mut()) {
            *x = x.clamp(-65504.0, 65504.0);
        }
        if write {
            let front = self.store.front_mut();
            backend.encode_floats(Float::F16, key, &mut front[layout.window_keys(head, token, 1)]);
            backend.encode_floats(Float::F16, value, &mut front[layout.window_values(head, token, 1)]);
        }
        Ok(())
    }

    /// Drops the whole pages that lie within the positions, and returns how many tokens that were. Sinks and the exact
    /// window stay; the other tokens keep their positions.
    pub fn evict(&mut self, positions: Range<usize>) -> usize {
        let page = self.layout.page;
        let inside = |&i: &usize| {
            let start = self.page_position(i);
            positions.start <= start && start + page <= positions.end
        };
        let first = (0..self.store.pages()).position(|i| inside(&i)).unwrap_or(0);
        let count = (first..self.store.pages()).take_while(inside).count();
        self.store.remove(first..first + count);
        self.state.evicted += count * page;
        count * page
    }

    /// Forgets everything, the balance included.
    pub fn clear(&mut self) {
        self.store.remove(0..self.store.pages());
        self.store.front_mut().fill(0);
        self.state = State::new(&self.layout);
    }
}

/// Decodes one token of a page. Where pages are more than their blocks, as a sum with one weight that is not 0.
fn decode(codec: &dyn Codec, page: &[u8], token: usize, tokens: usize, row: &mut [f32]) -> Result<(), Error> {
    let block = codec.block_bytes();
    if page.len() == tokens * block {
        return codec.decode(&page[token * block..][..block], row);
    }
    let mut weights = [0.0; 256];
    weights[token] = 1.0;
    codec.accumulate(&weights[..tokens], page, row)?;
    codec.finish(row);
    Ok(())
}
