//! Where everything lies: the one place that computes sizes.
//!
//! ```text
//! front   head 0: sinks K, sinks V, ring K, ring V (f16 rows), balance, prefix centre;  head 1: …
//! page    header: position u64; length of the page u64, where pages have no fixed one
//!         head 0: keys, values;  head 1: …
//!         head 0: centre, norms of keys, norms of values, lengths;  head 1: …
//! ```
//!
//! Keys and values of codecs that are a norm and planes ([`Planes`](crate::codec::planes::Planes)) are *lean*: rows of planes
//! without gaps, 64 to a whole number of cache lines, their norms together (`norms.rs`); a centre is then what `planes.rs`
//! makes of its difference from the prefix centre. Others are blocks as they are, their centre in f16. Lengths of keys and
//! values, u32 each, are there for codecs whose pages have no fixed size (`med` in specs).
//!
//! A page is written once, when it closes, and never changed: forks share it.

use super::config::{Center, LayerConfig};
use super::norms::{norm_bits, norm_bytes};
use crate::codec::Codec;
use crate::codec::planes::{Planes, centre_bytes};
use crate::codec::query::QUERY_BATCH;
use crate::codec::scratch::words_for;
use crate::{CodecSpec, Error};
use core::ops::Range;

/// Bytes before the rows of a page: its position, u64.
const POSITION: usize = 8;

/// Of a row of planes, what lies before it: the place that a block has for its norm.
const BEFORE: usize = 2;

/// Tokens that have one maximum, one sum and one output: the unit of work of attention. Parts are combined in order,
/// so this number is part of what results mean.
pub(crate) const SPLIT: usize = 4096;

/// Queries that share one pass over the pages, at most: what unpacking a page takes is little beside so many products with it, and
/// the scores of a part fit a second-level cache. Boards have neither the stack nor prompts to gain by it.
pub(crate) const BATCH: usize = QUERY_BATCH;

/// Keys or values of a page. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    tokens: usize,
    /// A row that is a block.
    pub(crate) block: usize,
    /// Planes of a row of each grade; nothing of blocks.
    planes: [usize; 2],
    /// All rows at most, and always unless `varies`.
    pub(crate) rows: usize,
    /// All norms beside planes.
    pub(crate) norms: usize,
}

/// Rows of planes: all that a codec has of a page, or those of half the channels.
pub(crate) struct Grade<'a> {
    pub(crate) planes: &'a dyn Planes,
    pub(crate) channels: Range<usize>,
    /// Words of a prepared query.
    pub(crate) words: Range<usize>,
    /// Bytes of a row.
    pub(crate) row: usize,
    /// The bytes of all rows in [`Head::keys`], [`BEFORE`] them included.
    pub(crate) rows: Range<usize>,
    /// In [`Head::key_norms`].
    pub(crate) norms: Range<usize>,
    /// In [`Head::centre`].
    pub(crate) centre: Range<usize>,
}

impl Side {
    /// Whether rows are planes, their norms together.
    pub(crate) const fn is_lean(&self) -> bool {
        self.norms > 0
    }

    /// Whether the first half of the channels has planes of its own.
    const fn is_graded(&self) -> bool {
        self.planes[1] > 0
    }

    /// The rows as grades of planes; none where they are blocks.
    pub(crate) fn grades<'a>(&self, codec: &'a dyn Codec) -> impl Iterator<Item = Grade<'a>> + use<'a> {
        let (side, count) = (*self, 1 + usize::from(self.is_graded()));
        let all = codec.planes().into_iter().flatten().enumerate();
        let mut words = 0;
        all.take(if side.is_lean() { count } else { 0 }).map(move |(index, planes)| {
            let (dim, row, norms) = (planes.dim(), side.planes[index], side.norms / count);
            let (before, len) = (index * side.planes[0], planes.query_len());
            words += len;
            Grade {
                planes,
                channels: index * dim..(index + 1) * dim,
                words: words - len..words,
                row,
                rows: before * side.tokens..(before + row) * side.tokens + BEFORE,
                norms: index * norms..(index + 1) * norms,
                centre: index * centre_bytes(dim)..(index + 1) * centre_bytes(dim),
            }
        })
    }
}

/// What a codec says of its blocks: bytes of one, of a page of them, and of the planes of each grade, if a cache takes them apart.
pub(crate) struct Sizes {
    pub(crate) block: usize,
    pub(crate) page: usize,
    pub(crate) planes: [usize; 2],
}

impl Sizes {
    const fn of(spec: &CodecSpec, dim: usize, tokens: usize) -> Self {
        let (block, page) = (spec.block_bytes(dim), spec.page_bytes_max(dim, tokens));
        Self { block, page, planes: spec.plane_bytes(dim) }
    }

    const fn side(&self, dim: usize, tokens: usize) -> Side {
        let [fine, coarse] = self.planes;
        let (bits, row) = (norm_bits(fine + coarse, dim), fine + coarse);
        if bits == 0 {
            return Side { tokens, block: self.block, planes: [0, 0], rows: self.page, norms: 0 };
        }
        let norms = norm_bytes(bits, tokens) * if coarse > 0 { 2 } else { 1 };
        Side { tokens, block: self.block, planes: self.planes, rows: tokens * row, norms }
    }

    /// Of values, whose channels have no order: two grades are a block.
    const fn of_values(&self) -> Self {
        let planes = if self.planes[1] > 0 { [0, 0] } else { self.planes };
        Self { planes, ..*self }
    }
}

/// A head of a page. Rows of planes begin with the [`BEFORE`] bytes before the first.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) keys: &'a [u8],
    pub(crate) values: &'a [u8],
    pub(crate) centre: &'a [u8],
    pub(crate) key_norms: &'a [u8],
    pub(crate) value_norms: &'a [u8],
    /// Keys or values that are read after these, if that is known.
    pub(crate) ahead: &'a [u8],
}

/// A head of a page that is being written.
pub(crate) struct HeadMut<'a> {
    pub(crate) keys: &'a mut [u8],
    pub(crate) values: &'a mut [u8],
    pub(crate) centre: &'a mut [u8],
    pub(crate) key_norms: &'a mut [u8],
    pub(crate) value_norms: &'a mut [u8],
    /// Of keys and values, where they vary.
    pub(crate) lengths: &'a mut [u8],
}

/// The first `length` bytes, which the slice then lacks.
fn split_off<'a>(bytes: &mut &'a mut [u8], length: usize) -> &'a mut [u8] {
    let (taken, rest) = core::mem::take(bytes).split_at_mut(length);
    *bytes = rest;
    taken
}

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
    pub(crate) keys: Side,
    pub(crate) values: Side,
    varies: bool,
    /// Bytes before the rows of a page.
    pub(crate) header: usize,
    pub(crate) centre_bytes: usize,
    balance_bytes: usize,
    prefix_bytes: usize,
    /// What a head has beside its rows.
    extra: usize,
    /// Bytes of the longer page of blocks, of which rows of planes are made.
    blocks: usize,
    pub(crate) page_bytes: usize,
    head_front: usize,
    pub(crate) front_bytes: usize,
}

impl Layout {
    pub(crate) const fn new(config: &LayerConfig) -> Self {
        let LayerConfig { key_dim, value_dim, page, keys, values, .. } = config;
        Self::with_codecs(config, &Sizes::of(keys, *key_dim, *page), &Sizes::of(values, *value_dim, *page))
    }

    /// For codecs of such blocks and pages.
    pub(crate) const fn with_codecs(config: &LayerConfig, key_sizes: &Sizes, value_sizes: &Sizes) -> Self {
        let LayerConfig { kv_heads: heads, key_dim, value_dim, page, sink_tokens: sinks, .. } = *config;
        let (keys, values) = (key_sizes.side(key_dim, page), value_sizes.of_values().side(value_dim, page));
        let (lean, graded) = (keys.is_lean(), keys.is_graded());
        let ring = (config.recent_window + config.max_rollback).div_ceil(page) * page + page;
        let (centre_bytes, prefix_bytes) = match config.centers() {
            Center::Off => (0, 0),
            Center::Prefix => (0, 2 * key_dim),
            Center::Page if graded => (2 * centre_bytes(key_dim / 2), 2 * key_dim),
            Center::Page if lean => (centre_bytes(key_dim), 2 * key_dim),
            Center::Page => (2 * key_dim, 0),
        };
        let balance_bytes = if config.balances() || graded { 2 * key_dim } else { 0 };
        let varies = key_sizes.page > page * key_sizes.block || value_sizes.page > page * value_sizes.block;
        let header = if varies { 2 * POSITION } else { POSITION };
        let extra = centre_bytes + keys.norms + values.norms + if varies { 8 } else { 0 };
        let blocks = match (lean, values.is_lean()) {
            (true, true) if key_sizes.page > value_sizes.page => key_sizes.page,
            (true, false) => key_sizes.page,
            (_, true) => value_sizes.page,
            (false, false) => 0,
        };
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
            keys,
            values,
            varies,
            header,
            centre_bytes,
            balance_bytes,
            prefix_bytes,
            extra,
            blocks,
            page_bytes: header + heads * (keys.rows + values.rows + extra),
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
        rows * (self.key_dim + 3 * self.value_dim + self.score_values() + self.exact_tokens())
    }

    /// Values of a part's result, and those that working on one takes, beyond a unit's own.
    #[cfg(feature = "rayon")]
    pub(crate) const fn part_scratch(&self, rows: usize) -> (usize, usize) {
        (2 * BATCH + rows * self.value_dim, rows * self.score_values())
    }

    /// Tokens whose scores are held at once.
    pub(crate) const fn score_tokens(&self) -> usize {
        let pages = self.slots * self.page;
        let most = if pages > self.exact_tokens() { pages } else { self.exact_tokens() };
        if most < SPLIT { most } else { SPLIT }
    }

    /// Values a query for the scores that are held at once, and for what each page's centre adds to them.
    pub(crate) const fn score_values(&self) -> usize {
        self.score_tokens() + self.score_tokens().div_ceil(self.page)
    }

    /// Exact tokens whose scores are held at once.
    pub(crate) const fn exact_tokens(&self) -> usize {
        let tokens = self.sinks + self.window;
        if tokens < SPLIT { tokens } else { SPLIT }
    }

    /// Values that appending works in: a balance and a prefix centre for each head, and a page of rows.
    pub(crate) const fn append_scratch(&self) -> usize {
        self.heads * 2 * self.key_dim + self.encode_scratch()
    }

    /// Values that encoding a head of a page works in: its rows, and the blocks of rows of planes.
    pub(crate) const fn encode_scratch(&self) -> usize {
        self.page_of_rows() + words_for(self.blocks)
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

    /// Whether keys are balanced or graded.
    pub(crate) const fn balances(&self) -> bool {
        self.balance_bytes > 0
    }

    /// Whether the sign of a balance says to which grade its channel belongs.
    pub(crate) const fn is_graded(&self) -> bool {
        self.keys.is_graded()
    }

    /// The balance in f16; empty where keys are neither balanced nor graded.
    pub(crate) fn balance(&self, head: usize) -> Range<usize> {
        let from = self.head_front - self.balance_bytes - self.prefix_bytes;
        self.front(head, from, self.balance_bytes)
    }

    /// The centre of all pages; empty where there is none.
    pub(crate) fn prefix(&self, head: usize) -> Range<usize> {
        self.front(head, self.head_front - self.prefix_bytes, self.prefix_bytes)
    }

    /// A head of a page whose lengths have been checked.
    pub(crate) fn head<'a>(&self, page: &'a [u8], head: usize) -> Head<'a> {
        let extras = self.page_length(page) - self.heads * self.extra;
        let extra = &page[extras + head * self.extra..][..self.extra];
        let (mut start, [keys, values]) = (self.header, self.lengths(extra));
        if self.varies {
            for before in page[extras..].chunks_exact(self.extra).take(head) {
                start += self.lengths(before).iter().sum::<usize>();
            }
        } else {
            start += head * (keys + values);
        }
        let before = |side: &Side| if side.is_lean() { BEFORE } else { 0 };
        let (centre, norms) = extra.split_at(self.centre_bytes);
        let (key_norms, norms) = norms.split_at(self.keys.norms);
        let (middle, end) = (start + keys, start + keys + values);
        Head {
            keys: &page[start - before(&self.keys)..middle],
            values: &page[middle - before(&self.values)..end],
            centre,
            key_norms,
            value_norms: &norms[..self.values.norms],
            ahead: &[],
        }
    }

    /// Bytes of a head's keys and of its values.
    fn lengths(&self, extra: &[u8]) -> [usize; 2] {
        match extra[extra.len() - if self.varies { 8 } else { 0 }..].as_chunks::<4>().0 {
            [keys, values] => [keys, values].map(|length| u32::from_le_bytes(*length) as usize),
            _ => [self.keys.rows, self.values.rows],
        }
    }

    /// Whether the lengths in a page add up to its own.
    pub(crate) fn is_sound(&self, page: &[u8]) -> bool {
        if page.len() < self.header || self.page_length(page) != page.len() {
            return false;
        }
        if !self.varies {
            return true;
        }
        let Some(extras) = page.len().checked_sub(self.heads * self.extra) else { return false };
        let mut end = self.header;
        for extra in page[extras..].chunks_exact(self.extra) {
            let [keys, values] = self.lengths(extra);
            if keys > self.keys.rows || values > self.values.rows {
                return false;
            }
            end += keys + values;
        }
        end == extras
    }

    /// The heads of a page that is being written, each with room for all that it can be.
    pub(crate) fn heads_mut<'a>(&self, page: &'a mut [u8]) -> impl Iterator<Item = HeadMut<'a>> + use<'a> {
        let layout = *self;
        let rest = &mut page[layout.header..layout.page_bytes];
        let (mut rows, mut extras) = rest.split_at_mut(layout.heads * layout.head_rows());
        (0..layout.heads).map(move |_| {
            let mut take = |length| split_off(&mut rows, length);
            let (keys, values) = (take(layout.keys.rows), take(layout.values.rows));
            let mut take = |length| split_off(&mut extras, length);
            HeadMut {
                keys,
                values,
                centre: take(layout.centre_bytes),
                key_norms: take(layout.keys.norms),
                value_norms: take(layout.values.norms),
                lengths: take(if layout.varies { 8 } else { 0 }),
            }
        })
    }

    const fn head_rows(&self) -> usize {
        self.keys.rows + self.values.rows
    }

    /// Moves the parts of a page, each with room for all that it can be, together, and says in its header how long it is.
    pub(crate) fn pack(&self, page: &mut [u8]) {
        if self.varies {
            let mut end = self.header;
            let extras = self.header + self.heads * self.head_rows();
            for head in 0..self.heads {
                let start = self.header + head * self.head_rows();
                let lengths = self.lengths(&page[extras + head * self.extra..][..self.extra]);
                for (start, length) in [start, start + self.keys.rows].into_iter().zip(lengths) {
                    page.copy_within(start..start + length, end);
                    end += length;
                }
            }
            page.copy_within(extras..self.page_bytes, end);
            end += self.heads * self.extra;
            page[POSITION..self.header].copy_from_slice(&(end as u64).to_le_bytes());
        }
    }

    /// The length of a page, as it says itself where it varies; beyond all lengths where the machine cannot hold it.
    pub(crate) fn page_length(&self, page: &[u8]) -> usize {
        match page[POSITION..].first_chunk() {
            Some(length) if self.varies => usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX),
            _ => self.page_bytes,
        }
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

    /// Bytes that an empty layer takes; 0 for an impossible configuration.
    #[cfg(feature = "alloc")]
    pub(crate) const fn front_bytes(&self) -> usize {
        if self.is_possible() { Layout::new(self).front_bytes } else { 0 }
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
            (self.kv_heads * head, layout.append_scratch() + self.kv_heads * layout.encode_scratch());
        if attend > append { attend } else { append }
    }

    /// Calls `line` with the bytes and the meaning of each part of a page, in order: what `docs/formats.md` has a table of. Bytes
    /// are the most where they vary.
    ///
    /// ```
    /// use octaplex::LayerConfig;
    ///
    /// let mut bytes = 0;
    /// LayerConfig::new(1, 128, 1000).page_layout(|part, _| bytes += part);
    /// assert_eq!(bytes, 8 + 2 * 64 * 64 + 82 + 2 * 51); // position, 4 bits a value, centre, norms: 4.13 bits in all
    /// ```
    pub fn page_layout(&self, mut line: impl FnMut(usize, &str)) {
        if !self.is_possible() {
            return;
        }
        let Layout { keys, values, varies, centre_bytes, heads, page, .. } = Layout::new(self);
        line(POSITION, "position of the first token, u64");
        if varies {
            line(POSITION, "length of the page in bytes, u64");
        }
        for _ in 0..heads {
            match keys.planes {
                [0, _] => line(keys.rows, "keys: blocks"),
                [all, 0] => line(page * all, "keys: planes"),
                [fine, coarse] => {
                    line(page * fine, "keys: planes of the fine half");
                    line(page * coarse, "keys: planes of the coarse half");
                }
            }
            line(values.rows, if values.is_lean() { "values: planes" } else { "values: blocks" });
        }
        for _ in 0..heads {
            let halves = if keys.is_graded() { 2 } else { 1 };
            let coded = [
                "centre of the keys: f16 norm, codes of 5 bits",
                "centre of their coarse half: f16 norm, codes of 5 bits",
            ];
            let norms = [
                "norms of the keys: f16 largest, u8 octaves, codes of 6 bits",
                "norms of their coarse half: f16 largest, u8 octaves, codes of 6 bits",
            ];
            let floats = ["centre of the keys: f16", ""];
            let centres = if keys.is_lean() { coded } else { floats };
            let halves = |bytes, words: [&'static str; 2]| {
                words.into_iter().take(halves).map(move |words| (bytes / halves, words))
            };
            let parts = halves(centre_bytes, centres).chain(halves(keys.norms, norms)).chain([
                (values.norms, "norms of the values: f16 largest, u8 octaves, codes of 6 bits"),
                (if varies { 8 } else { 0 }, "bytes of the keys, bytes of the values: u32 each"),
            ]);
            parts.filter(|(bytes, _)| *bytes > 0).for_each(|(bytes, what)| line(bytes, what));
        }
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

#[cfg(test)]
mod tests;
