//! The layout of a layer's memory. This is the one place that computes sizes.
//!
//! ```text
//! front   head 0: sinks K, sinks V, ring K, ring V (f16 rows), balance, prefix centre;  head 1: …
//! page    header: position u64; length of the page u64, if pages vary in size
//!         head 0: rows of keys, rows of values;  head 1: …
//!         head 0: centre, norms of keys, norms of values, lengths;  head 1: …
//! ```
//!
//! [`Shape`] defines what the parts of a page contain. The lengths of a head's keys and values, u32 each, exist only if
//! pages vary in size. They do with codecs that keep outliers (`med` in specs).
//!
//! A page is written once, when it closes, and never changes, so forks share it.

use super::config::{Center, LayerConfig};
use crate::codec::query::QUERY_BATCH;
use crate::page::{Balance, Part, PartMut, Shape, Sizes};
use crate::random::Role;
use core::ops::Range;

/// Bytes of the position or the length in a page's header, u64.
const POSITION: usize = 8;

/// Tokens of a part, the unit of work of attention. A part has one maximum, one sum and one output.
///
/// Parts are combined in order, so results depend on this number.
pub(crate) const SPLIT: usize = 4096;

/// The largest number of queries that share one pass over the pages.
///
/// With this number of products for each row, unpacking a page costs little, and the scores of a part fit a second-level
/// cache. The number is smaller on bare metal, which has a small stack and short prompts.
pub(crate) const BATCH: usize = QUERY_BATCH;

/// A head of a page.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) keys: Part<'a>,
    pub(crate) values: Part<'a>,
}

/// A head of a page that is being written.
pub(crate) struct HeadMut<'a> {
    pub(crate) keys: PartMut<'a>,
    pub(crate) values: PartMut<'a>,
    /// The lengths of keys and values. Empty if pages do not vary in size.
    pub(crate) lengths: &'a mut [u8],
}

/// Removes the first `length` bytes from the slice, and returns them.
fn split_off<'a>(bytes: &mut &'a mut [u8], length: usize) -> &'a mut [u8] {
    let (taken, rest) = core::mem::take(bytes).split_at_mut(length);
    *bytes = rest;
    taken
}

/// Says where everything in a layer's memory lies. Sizes are in bytes, and counts in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Tokens of a page.
    pub(crate) page: usize,
    pub(crate) sinks: usize,
    /// Largest number of tokens in the window.
    window: usize,
    /// Rows that the ring can hold: the window, and closed pages that a rollback may open again. It is a whole number
    /// of pages, so that no page wraps around the end.
    pub(crate) ring: usize,
    /// Number of page slots in the caller's memory.
    pub(crate) slots: usize,
    pub(crate) keys: Shape,
    pub(crate) values: Shape,
    /// Whether pages vary in size.
    varies: bool,
    /// Bytes before the rows of a page.
    pub(crate) header: usize,
    pub(crate) centre_bytes: usize,
    /// The balance by which keys are divided before they are encoded.
    pub(crate) balance: Balance,
    prefix_bytes: usize,
    /// Bytes of a page's head after the rows: centre, norms, lengths.
    extra: usize,
    /// Largest number of bytes of a page.
    pub(crate) page_bytes: usize,
    /// Bytes of a head in the front.
    head_front: usize,
    pub(crate) front_bytes: usize,
}

impl Layout {
    pub(crate) const fn new(config: &LayerConfig) -> Self {
        let LayerConfig { key_dim, value_dim, page, keys, values, .. } = config;
        let keys = Sizes::of_spec(keys, *key_dim, *page);
        Self::with_codecs(config, &keys, &Sizes::of_spec(values, *value_dim, *page))
    }

    /// Computes the layout for codecs whose blocks and pages have these sizes.
    pub(crate) const fn with_codecs(config: &LayerConfig, key_sizes: &Sizes, value_sizes: &Sizes) -> Self {
        let LayerConfig { kv_heads: heads, key_dim, value_dim, page, sink_tokens: sinks, .. } = *config;
        let keys = Shape::new(key_sizes, Role::Keys, key_dim, page);
        let values = Shape::new(value_sizes, Role::Values, value_dim, page);
        let ring = (config.recent_window + config.max_rollback).div_ceil(page) * page + page;
        let [centre_bytes, prefix_bytes] = match config.centers() {
            Center::Off => [0, 0],
            Center::Prefix => [0, 2 * key_dim],
            Center::Page => keys.centre_bytes(),
        };
        let balance = Balance::new(config.balances(), keys.sorts());
        let varies = keys.varies() || values.varies();
        let header = if varies { 2 * POSITION } else { POSITION };
        let extra = centre_bytes + keys.norms + values.norms + if varies { 8 } else { 0 };
        let head_front = (sinks + ring) * 2 * (key_dim + value_dim) + balance.bytes(key_dim) + prefix_bytes;
        let paged = config.capacity.saturating_sub(sinks + config.recent_window) / page;
        let slots = match config.sliding_window {
            // The pages that the window shows after the longest rollback. A spare slot allows to check that a new page
            // can be encoded before the oldest one gives up its slot.
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
            balance,
            prefix_bytes,
            extra,
            page_bytes: header + heads * (keys.rows + values.rows + extra),
            head_front,
            front_bytes: heads * head_front,
        }
    }

    /// Returns the bytes of a full cache in the caller's memory.
    pub(crate) const fn fixed_bytes(&self) -> usize {
        self.slots.saturating_mul(self.page_bytes).saturating_add(self.front_bytes)
    }

    /// Returns the largest number of pages of a layer. The spare slot of a sliding window stays free.
    pub(crate) const fn most_pages(&self, config: &LayerConfig) -> usize {
        self.slots - config.sliding_window.is_some() as usize
    }

    /// Returns the values of scratch memory for one unit of attention: a key/value head and up to [`BATCH`] rows.
    pub(crate) const fn unit_scratch(&self, rows: usize) -> usize {
        let rows = if rows < BATCH { rows } else { BATCH };
        rows * (self.key_dim + 3 * self.value_dim + self.score_values() + self.exact_tokens())
    }

    /// Returns the values of a part's result, and the extra values of scratch memory for a thread that computes parts.
    #[cfg(feature = "rayon")]
    pub(crate) const fn part_scratch(&self, rows: usize) -> (usize, usize) {
        (2 * BATCH + rows * self.value_dim, rows * self.score_values())
    }

    /// Returns the number of tokens whose scores are held at once.
    pub(crate) const fn score_tokens(&self) -> usize {
        let pages = self.slots * self.page;
        let most = if pages > self.exact_tokens() { pages } else { self.exact_tokens() };
        if most < SPLIT { most } else { SPLIT }
    }

    /// Returns the values a query for the scores that are held at once, and for the product with each page's centre.
    pub(crate) const fn score_values(&self) -> usize {
        self.score_tokens() + self.score_tokens().div_ceil(self.page)
    }

    /// Returns the number of exact tokens whose scores are held at once.
    pub(crate) const fn exact_tokens(&self) -> usize {
        let tokens = self.sinks + self.window;
        if tokens < SPLIT { tokens } else { SPLIT }
    }

    /// Returns the values of scratch memory for an append: a balance and a prefix centre for each head, and a page of
    /// rows.
    pub(crate) const fn append_scratch(&self) -> usize {
        self.heads * 2 * self.key_dim + self.encode_scratch()
    }

    /// Returns the values of scratch memory to encode a head of a page: its rows.
    pub(crate) const fn encode_scratch(&self) -> usize {
        self.page * if self.key_dim > self.value_dim { self.key_dim } else { self.value_dim }
    }

    /// Returns `len` bytes from byte `from` of a head, as a range of the front.
    fn front(&self, head: usize, from: usize, len: usize) -> Range<usize> {
        let start = head * self.head_front + from;
        start..start + len
    }

    /// Returns the range of the keys of `count` sinks.
    pub(crate) fn sink_keys(&self, head: usize, token: usize, count: usize) -> Range<usize> {
        self.front(head, 2 * token * self.key_dim, 2 * count * self.key_dim)
    }

    /// Returns the range of the values of `count` sinks.
    pub(crate) fn sink_values(&self, head: usize, token: usize, count: usize) -> Range<usize> {
        let from = 2 * (self.sinks * self.key_dim + token * self.value_dim);
        self.front(head, from, 2 * count * self.value_dim)
    }

    /// Returns the range of the keys in places `place..place + count` of the ring.
    pub(crate) fn window_keys(&self, head: usize, place: usize, count: usize) -> Range<usize> {
        let from = 2 * (self.sinks * (self.key_dim + self.value_dim) + place * self.key_dim);
        self.front(head, from, 2 * count * self.key_dim)
    }

    /// Returns the range of the values in places `place..place + count` of the ring.
    pub(crate) fn window_values(&self, head: usize, place: usize, count: usize) -> Range<usize> {
        let before = self.sinks * (self.key_dim + self.value_dim) + self.ring * self.key_dim;
        self.front(head, 2 * (before + place * self.value_dim), 2 * count * self.value_dim)
    }

    /// Returns the range of a head's balance in f16. Empty if the layer has none.
    pub(crate) fn balance(&self, head: usize) -> Range<usize> {
        let bytes = self.balance.bytes(self.key_dim);
        self.front(head, self.head_front - bytes - self.prefix_bytes, bytes)
    }

    /// Returns the range of a head's prefix centre in f16. Empty if the layer has none.
    pub(crate) fn prefix(&self, head: usize) -> Range<usize> {
        self.front(head, self.head_front - self.prefix_bytes, self.prefix_bytes)
    }

    /// Returns the parts of a page's head. [`is_sound`](Self::is_sound) has checked the page.
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
        let (centre, norms) = extra.split_at(self.centre_bytes);
        let (key_norms, norms) = norms.split_at(self.keys.norms);
        let (middle, end) = (start + keys, start + keys + values);
        let part = |rows, centre, norms| Part { rows, centre, norms, ahead: &[] };
        Head {
            keys: part(&page[start - self.keys.lead()..middle], centre, key_norms),
            values: part(&page[middle - self.values.lead()..end], &[], &norms[..self.values.norms]),
        }
    }

    /// Returns the bytes of a head's keys and of its values.
    fn lengths(&self, extra: &[u8]) -> [usize; 2] {
        match extra[extra.len() - if self.varies { 8 } else { 0 }..].as_chunks::<4>().0 {
            [keys, values] => [keys, values].map(|length| u32::from_le_bytes(*length) as usize),
            _ => [self.keys.rows, self.values.rows],
        }
    }

    /// Returns whether the lengths of all heads add up to the length of the page.
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

    /// Returns the heads of a page for writing. Each has its largest size; [`pack`](Self::pack) closes the gaps.
    pub(crate) fn heads_mut<'a>(&self, page: &'a mut [u8]) -> impl Iterator<Item = HeadMut<'a>> + use<'a> {
        let layout = *self;
        let rest = &mut page[layout.header..layout.page_bytes];
        let (mut rows, mut extras) = rest.split_at_mut(layout.heads * layout.head_rows());
        (0..layout.heads).map(move |_| {
            let mut take = |length| split_off(&mut rows, length);
            let (keys, values) = (take(layout.keys.rows), take(layout.values.rows));
            let mut take = |length| split_off(&mut extras, length);
            let (centre, norms) = (take(layout.centre_bytes), take(layout.keys.norms));
            HeadMut {
                keys: PartMut { rows: keys, centre, norms },
                values: PartMut { rows: values, centre: &mut [], norms: take(layout.values.norms) },
                lengths: take(if layout.varies { 8 } else { 0 }),
            }
        })
    }

    const fn head_rows(&self) -> usize {
        self.keys.rows + self.values.rows
    }

    /// Closes the gaps between the parts of a page, and writes its length into the header.
    ///
    /// ```text
    ///  before   header │ K0 ░░│ V0 ░│ K1 ░│ V1 ░░│ extras        K0: rows of head 0's keys, ░: unused
    ///  after    header │ K0│ V0│ K1│ V1│ extras
    /// ```
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

    /// Returns the length of a page. If pages vary in size, its header says the length.
    ///
    /// The header may be damaged. A length that this machine cannot address becomes `usize::MAX`.
    pub(crate) fn page_length(&self, page: &[u8]) -> usize {
        match page[POSITION..].first_chunk() {
            Some(length) if self.varies => usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX),
            _ => self.page_bytes,
        }
    }
}

impl LayerConfig {
    /// Returns the bytes that a full [`LayerCache`](crate::cache::LayerCache) needs, also at compile time.
    ///
    /// The result is 0 for an impossible configuration. The constructor then returns an error with the reason.
    ///
    /// ```
    /// use octaplex::{CodecSpec, LayerConfig, codecs::TurboQuantSpec};
    ///
    /// const FOUR_BITS: CodecSpec = CodecSpec::TurboQuant(TurboQuantSpec::new(4));
    /// const CONFIG: LayerConfig = LayerConfig::new(1, 64, 1000).keys(FOUR_BITS).values(FOUR_BITS);
    /// static MEMORY: [u8; CONFIG.required_bytes()] = [0; CONFIG.required_bytes()];
    /// assert!(MEMORY.len() > 1000 * 64); // 2 * 64 values of 4 bits for each of 1,000 tokens, and the exact window
    /// ```
    #[must_use]
    pub const fn required_bytes(&self) -> usize {
        if !self.is_possible() {
            return 0;
        }
        let layout = Layout::new(self);
        layout.fixed_bytes()
    }

    /// Returns the bytes of an empty layer. 0 for an impossible configuration.
    #[cfg(feature = "alloc")]
    pub(crate) const fn front_bytes(&self) -> usize {
        if self.is_possible() { Layout::new(self).front_bytes } else { 0 }
    }

    /// Returns the values of scratch memory that append and attention need for `queries` rows.
    ///
    /// `queries` is the number of query heads times the queries of a block. The result is 0 for an impossible
    /// configuration. [`LayerCache`](crate::cache::LayerCache) has an example.
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

    /// Returns the values of scratch memory that append and attention need to run on `threads` threads.
    ///
    /// `queries` is as in [`scratch_len`](Self::scratch_len). Threads share the heads, and the parts of 4,096 tokens.
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
        let parts = parts.saturating_mul(result).saturating_add(threads.saturating_mul(worker));
        let head = layout.unit_scratch(rows).saturating_add(parts);
        let encode = self.kv_heads.saturating_mul(layout.encode_scratch());
        let (attend, append) =
            (self.kv_heads.saturating_mul(head), layout.append_scratch().saturating_add(encode));
        if attend > append { attend } else { append }
    }

    /// Calls `line` with the bytes and the meaning of each part of a page, in order.
    ///
    /// `docs/formats.md` has the same as a table. If parts vary in size, `line` gets the largest size.
    ///
    /// ```
    /// use octaplex::{Error, LayerConfig};
    ///
    /// let mut bytes = 0;
    /// let config = LayerConfig::new(1, 128, 1000).keys("turboquant".parse()?).values("turboquant".parse()?);
    /// config.page_layout(|part, _| bytes += part);
    /// assert_eq!(bytes, 8 + 2 * 64 * 64 + 82 + 2 * 51); // position, 4 bits a value, centre, norms: 4.13 bits in all
    /// # Ok::<(), Error>(())
    /// ```
    pub fn page_layout(&self, mut line: impl FnMut(usize, &str)) {
        if !self.is_possible() {
            return;
        }
        let Layout { keys, values, varies, centre_bytes, heads, .. } = Layout::new(self);
        let mut line = |bytes: usize, what: &str| {
            if bytes > 0 {
                line(bytes, what);
            }
        };
        line(POSITION, "position of the first token, u64");
        line(if varies { POSITION } else { 0 }, "length of the page in bytes, u64");
        for _ in 0..heads {
            keys.describe_rows(Role::Keys, &mut line);
            values.describe_rows(Role::Values, &mut line);
        }
        for _ in 0..heads {
            keys.describe_centre(centre_bytes, &mut line);
            keys.describe_norms(Role::Keys, &mut line);
            values.describe_norms(Role::Values, &mut line);
            line(if varies { 8 } else { 0 }, "bytes of the keys, bytes of the values: u32 each");
        }
    }

    /// Returns whether the configuration is possible, so that sizes can be computed.
    const fn is_possible(&self) -> bool {
        self.check().is_ok()
            && self.keys.block_bytes(self.key_dim) > 0
            && self.values.block_bytes(self.value_dim) > 0
    }
}

#[cfg(test)]
mod tests;
