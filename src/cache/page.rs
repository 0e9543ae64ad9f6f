//! Where everything lies: the one place that computes sizes.
//!
//! ```text
//! front   head 0: sinks K, sinks V, ring K, ring V (f16 rows), balance, prefix centre;  head 1: …
//! page    header (16 bytes: position u64, length u32, zeros)
//!         head 0: centre f16, key blocks, value blocks;  head 1: …
//! ```
//!
//! Codecs whose pages have no fixed size (`med` in specs) add two lengths, u32 each, behind the centre.
//!
//! A page is written once, when it closes, and never changed: forks share it.

use super::config::{Center, LayerConfig};
use crate::Error;
use core::ops::Range;

/// Bytes before the heads of a page. Position u64, length of the page u32; then zeros, kept for keys whose channels have rates of their own.
pub(crate) const HEADER: usize = 16;

/// Tokens that have one maximum, one sum and one output: the unit of work of attention. Parts are combined in order,
/// so this number is part of what results mean.
pub(crate) const SPLIT: usize = 4096;

/// Queries that share one pass over the keys.
pub(crate) const BATCH: usize = 8;

/// Sizes in bytes, counts in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Tokens of a page.
    pub(crate) page: usize,
    pub(crate) sinks: usize,
    /// Tokens of the exact window, at most.
    window: usize,
    /// Places for the exact window, and for the rows of closed pages that a rollback may open again: a whole number of
    /// pages, so that no page wraps.
    pub(crate) ring: usize,
    /// Page slots in caller-given memory.
    pub(crate) slots: usize,
    /// Bytes that a page's keys and values take at most, and always unless `varies`.
    pub(crate) key_page: usize,
    pub(crate) value_page: usize,
    pub(crate) varies: bool,
    pub(crate) centre_bytes: usize,
    balance_bytes: usize,
    prefix_bytes: usize,
    pub(crate) head_page: usize,
    pub(crate) page_bytes: usize,
    head_front: usize,
    pub(crate) front_bytes: usize,
}

impl Layout {
    pub(crate) const fn new(config: &LayerConfig) -> Self {
        let LayerConfig { key_dim, value_dim, page, keys, values, .. } = config;
        Self::with_codecs(
            config,
            (keys.block_bytes(*key_dim), keys.page_bytes_max(*key_dim, *page)),
            (values.block_bytes(*value_dim), values.page_bytes_max(*value_dim, *page)),
        )
    }

    /// For codecs whose blocks and pages take so many bytes.
    pub(crate) const fn with_codecs(
        config: &LayerConfig,
        (key_block, key_page): (usize, usize),
        (value_block, value_page): (usize, usize),
    ) -> Self {
        let LayerConfig { kv_heads: heads, key_dim, value_dim, page, sink_tokens: sinks, .. } = *config;
        let ring = (config.recent_window + config.max_rollback).div_ceil(page) * page + page;
        let centre_bytes = if matches!(config.centers(), Center::Page) { 2 * key_dim } else { 0 };
        let prefix_bytes = if matches!(config.centers(), Center::Prefix) { 2 * key_dim } else { 0 };
        let balance_bytes = if config.balances() { 2 * key_dim } else { 0 };
        let varies = key_page > page * key_block || value_page > page * value_block;
        let head_page = centre_bytes + if varies { 8 } else { 0 } + key_page + value_page;
        let head_front = (sinks + ring) * 2 * (key_dim + value_dim) + balance_bytes + prefix_bytes;
        let paged = config.capacity.saturating_sub(sinks + config.recent_window) / page;
        let slots = match config.sliding_window {
            // What the window shows after the longest rollback; and a spare one, to see whether pages can be encoded
            // before the oldest give up theirs.
            Some(window) => {
                let seen = window.saturating_add(config.max_rollback).div_ceil(page) + 1;
                if seen < paged { seen + 1 } else { paged + 1 }
            }
            None => paged,
        };
        Self {
            heads,
            key_dim,
            value_dim,
            page,
            sinks,
            window: config.recent_window + page,
            ring,
            slots,
            key_page,
            value_page,
            varies,
            centre_bytes,
            balance_bytes,
            prefix_bytes,
            head_page,
            page_bytes: HEADER + heads * head_page,
            head_front,
            front_bytes: heads * head_front,
        }
    }

    /// Bytes of a full cache in the caller's memory.
    pub(crate) const fn fixed_bytes(&self) -> usize {
        self.slots.saturating_mul(self.page_bytes).saturating_add(self.front_bytes)
    }

    /// Pages that a layer may hold: a sliding window's spare slot stays free.
    pub(crate) const fn most_pages(&self, config: &LayerConfig) -> usize {
        self.slots - config.sliding_window.is_some() as usize
    }

    /// Values that one unit of attention works in.
    pub(crate) const fn unit_scratch(&self, rows: usize) -> usize {
        let rows = if rows < BATCH { rows } else { BATCH };
        rows * (self.key_dim + 3 * self.value_dim + self.score_tokens() + self.exact_tokens())
    }

    /// Values of a part's result, and those that working on one takes, beyond a unit's own.
    #[cfg(feature = "rayon")]
    pub(crate) const fn part_scratch(&self, rows: usize) -> (usize, usize) {
        (2 * BATCH + rows * self.value_dim, rows * self.score_tokens())
    }

    /// Tokens whose scores are held at once.
    pub(crate) const fn score_tokens(&self) -> usize {
        let pages = self.slots * self.page;
        let most = if pages > self.exact_tokens() { pages } else { self.exact_tokens() };
        if most < SPLIT { most } else { SPLIT }
    }

    /// Exact tokens whose scores are held at once.
    pub(crate) const fn exact_tokens(&self) -> usize {
        let tokens = self.sinks + self.window;
        if tokens < SPLIT { tokens } else { SPLIT }
    }

    /// Values that appending works in: a balance and a prefix centre for each head, and a page of rows.
    pub(crate) const fn append_scratch(&self) -> usize {
        self.heads * 2 * self.key_dim + self.page_of_rows()
    }

    pub(crate) const fn page_of_rows(&self) -> usize {
        self.page * if self.key_dim > self.value_dim { self.key_dim } else { self.value_dim }
    }

    /// Of one head, within the front.
    fn front(&self, head: usize, from: usize, len: usize) -> Range<usize> {
        let start = head * self.head_front + from;
        start..start + len
    }

    /// `count` sinks' keys.
    pub(crate) fn sink_keys(&self, head: usize, token: usize, count: usize) -> Range<usize> {
        self.front(head, 2 * token * self.key_dim, 2 * count * self.key_dim)
    }

    pub(crate) fn sink_values(&self, head: usize, token: usize, count: usize) -> Range<usize> {
        let from = 2 * (self.sinks * self.key_dim + token * self.value_dim);
        self.front(head, from, 2 * count * self.value_dim)
    }

    /// The window's keys in places `place..place + count`.
    pub(crate) fn window_keys(&self, head: usize, place: usize, count: usize) -> Range<usize> {
        let from = 2 * (self.sinks * (self.key_dim + self.value_dim) + place * self.key_dim);
        self.front(head, from, 2 * count * self.key_dim)
    }

    pub(crate) fn window_values(&self, head: usize, place: usize, count: usize) -> Range<usize> {
        let before = self.sinks * (self.key_dim + self.value_dim) + self.ring * self.key_dim;
        self.front(head, 2 * (before + place * self.value_dim), 2 * count * self.value_dim)
    }

    /// The balance in f16; empty where keys are not balanced.
    pub(crate) fn balance(&self, head: usize) -> Range<usize> {
        let from = self.head_front - self.balance_bytes - self.prefix_bytes;
        self.front(head, from, self.balance_bytes)
    }

    /// The centre of all pages; empty where there is none.
    pub(crate) fn prefix(&self, head: usize) -> Range<usize> {
        self.front(head, self.head_front - self.prefix_bytes, self.prefix_bytes)
    }

    /// A head of a page: centre, keys, values. Lengths in it have been checked.
    pub(crate) fn head<'a>(&self, page: &'a [u8], head: usize) -> (&'a [u8], &'a [u8], &'a [u8]) {
        let mut rest = &page[HEADER..];
        if !self.varies {
            rest = &rest[head * self.head_page..];
            let (centre, rest) = rest.split_at(self.centre_bytes);
            return (centre, &rest[..self.key_page], &rest[self.key_page..][..self.value_page]);
        }
        let mut left = head;
        loop {
            let (centre, tail) = rest.split_at(self.centre_bytes);
            let (keys, values) = (read_u32(tail), read_u32(&tail[4..]));
            let (blocks, tail) = tail[8..].split_at(keys + values);
            if left == 0 {
                let (keys, values) = blocks.split_at(keys);
                return (centre, keys, values);
            }
            (rest, left) = (tail, left - 1);
        }
    }

    /// Whether the lengths in a page add up to its own.
    pub(crate) fn is_sound(&self, page: &[u8]) -> bool {
        if page.len() < HEADER || read_u32(&page[8..]) != page.len() {
            return false;
        }
        if !self.varies {
            return page.len() == self.page_bytes;
        }
        let mut rest = &page[HEADER..];
        for _ in 0..self.heads {
            let Some(lengths) = rest.get(self.centre_bytes..self.centre_bytes + 8) else { return false };
            let (keys, values) = (read_u32(lengths), read_u32(&lengths[4..]));
            let start = self.centre_bytes + 8;
            if keys > self.key_page || values > self.value_page || start + keys + values > rest.len() {
                return false;
            }
            rest = &rest[start + keys + values..];
        }
        rest.is_empty()
    }

    /// Moves the heads of a page, each as long as it can be, together, and says in its header how long it is.
    pub(crate) fn pack(&self, page: &mut [u8]) {
        let mut end = HEADER;
        for head in 0..self.heads {
            let start = HEADER + head * self.head_page;
            if !self.varies {
                end = start + self.head_page;
                continue;
            }
            let lengths = start + self.centre_bytes;
            let (keys, values) = (read_u32(&page[lengths..]), read_u32(&page[lengths + 4..]));
            let key_end = lengths + 8 + keys;
            page.copy_within(start..key_end, end);
            end += key_end - start;
            let values_at = lengths + 8 + self.key_page;
            page.copy_within(values_at..values_at + values, end);
            end += values;
        }
        page[8..12].copy_from_slice(&(end as u32).to_le_bytes());
    }
}

impl LayerConfig {
    /// Bytes that [`LayerCache`](crate::LayerCache) needs for a full cache; 0 for an impossible configuration, which
    /// its constructor refuses with the reason. Every size is computed in `Layout`, from block sizes that specs know at
    /// compile time.
    #[must_use]
    pub const fn required_bytes(&self) -> usize {
        if !self.is_possible() {
            return 0;
        }
        let layout = Layout::new(self);
        layout.slots.saturating_mul(layout.page_bytes).saturating_add(layout.front_bytes)
    }

    /// Values of scratch memory that appending and attending with `queries` rows (query heads x queries of a block)
    /// need; 0 for an impossible configuration.
    #[must_use]
    pub const fn scratch_len(&self, queries: usize) -> usize {
        if !self.is_possible() {
            return 0;
        }
        let layout = Layout::new(self);
        let rows = queries.div_ceil(self.kv_heads);
        let (attend, append) = (layout.unit_scratch(rows), layout.append_scratch());
        if attend > append { attend } else { append }
    }

    /// The same for `threads` threads: over heads, and over parts of 4,096 tokens.
    #[cfg(feature = "rayon")]
    #[must_use]
    pub const fn parallel_scratch_len(&self, queries: usize, threads: usize) -> usize {
        if !self.is_possible() {
            return 0;
        }
        let layout = Layout::new(self);
        let rows = queries.div_ceil(self.kv_heads);
        let rows = if rows < BATCH { rows } else { BATCH };
        let (result, worker) = layout.part_scratch(rows);
        let parts = (layout.slots * layout.page).div_ceil(SPLIT);
        let head = layout.unit_scratch(rows) + parts * result + threads * worker;
        let (attend, append) =
            (self.kv_heads * head, layout.append_scratch() + self.kv_heads * layout.page_of_rows());
        if attend > append { attend } else { append }
    }

    /// Whether sizes can be computed.
    const fn is_possible(&self) -> bool {
        self.check().is_ok()
            && self.keys.block_bytes(self.key_dim) > 0
            && self.values.block_bytes(self.value_dim) > 0
    }
}

/// The same error, its block counted over all pages of so many tokens.
pub(crate) fn in_page(error: Error, page: usize, tokens: usize) -> Error {
    match error {
        Error::Corrupt { block } => Error::Corrupt { block: page * tokens + block },
        other => other,
    }
}

/// The length that a page says it has.
pub(crate) fn page_length(page: &[u8]) -> usize {
    read_u32(&page[8..])
}

fn read_u32(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}
