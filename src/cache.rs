//! Caches of one attention layer and of a whole model: compressed keys and values, and attention on them.
//!
//! A [`Layer`] holds the tokens of all key/value heads of one attention layer. [`LayerCache`] is a layer in memory that
//! you bring. `SharedLayer` is a layer on the heap. The life of a token:
//!
//! ```text
//!  append ─┬─► sinks          the first 4 tokens, f16, for ever
//!          │
//!          └─► window         the newest tokens, f16, exact: at least recent_window of them
//!                │            and up to a page more
//!                │ the window holds a page more than it must: the oldest page closes
//!                ▼
//!              divide by the balance ─► subtract the page's mean ─► encode_page
//!                │
//!                ▼
//!              page           header │ per head: keys, values │ per head: centre, norms
//!                │            never changed again: forks share it, snapshots copy it, evict drops it
//!                ▼
//!  attend ◄─── score = q·centre + q·k̂ on the bytes; softmax; sums of v̂ on the bytes
//! ```
//!
//! `max_rollback` tokens can be taken back without a trace: the rows of the newest closed pages stay in f16 for that.
//! Positions never change, because keys carry their rotary embedding.

#[cfg(feature = "alloc")]
mod builder;
#[cfg(feature = "alloc")]
mod choice;
pub(crate) mod config;
pub(crate) mod decode;
pub(crate) mod encode;
#[cfg(feature = "alloc")]
mod layers;
pub(crate) mod layout;
mod parts;
mod rollback;
pub(crate) mod rows;
pub(crate) mod snapshot;
pub(crate) mod storage;
pub(crate) mod view;
pub(crate) mod window;

#[cfg(feature = "alloc")]
pub(crate) use config::recommended;
pub use config::{CacheConfig, Center, Finer, LayerConfig};
pub use storage::{Fixed, Storage};

use crate::backend::Kernels;
use crate::codec::{Codec, MAX_BLOCK_BYTES, check_values};
use crate::codecs::Build;
use crate::page::Sizes;
use crate::random::{HeadId, Role};
use crate::{Backend, Error};
use core::ops::Range;
use layout::Layout;
use rollback::Cut;
use window::{Plan, Standing};

#[cfg(feature = "alloc")]
pub use {
    builder::KvCacheBuilder,
    choice::Choice,
    layers::{KvCache, SharedLayer},
    storage::Shared,
};

/// Holds one attention layer in bytes that you bring (`&mut [u8]`, an array, a `Vec`), without an allocator.
///
/// `K` and `V` are the codecs of keys and values. With types such as [`TurboQuant<D>`](crate::codecs::TurboQuant), the
/// program links no other codec. With [`AnyCodec`](crate::codecs::AnyCodec), the configuration chooses the codec at run
/// time.
///
/// ```
/// use octaplex::cache::LayerCache;
/// use octaplex::codecs::TurboQuant;
/// use octaplex::{Backend, Error, LayerConfig};
///
/// // One head of width 64, 1,000 tokens.
/// let config = LayerConfig::new(1, 64, 1000).keys("turboquant".parse()?).values("turboquant".parse()?);
/// let mut memory = vec![0; config.required_bytes()];
/// let mut scratch = vec![0.0; config.scratch_len(1)];
/// type Codec = TurboQuant<64>;
/// let mut cache = LayerCache::<Codec, Codec, _>::new(&config, Backend::detect(), &mut memory)?;
/// for token in 0..300 {
///     let row = [token as f32 / 300.0; 64];
///     cache.append(&row, &row, &mut scratch)?;
/// }
/// let mut output = [0.0; 64];
/// cache.attend(&[0.1; 64], &mut output, &mut scratch)?;
/// assert_eq!(cache.stats().tokens, 300);
/// # Ok::<(), Error>(())
/// ```
pub type LayerCache<K, V, S> = Layer<K, V, Fixed<S>>;

/// Holds the keys and values of one attention layer.
///
/// [`LayerCache`] is a layer in the caller's memory and has an example. `SharedLayer` is a layer on the heap. `KvCache`
/// holds all layers of a model.
#[derive(Clone, Debug)]
pub struct Layer<K, V, S> {
    pub(crate) config: LayerConfig,
    pub(crate) layout: Layout,
    pub(crate) state: State,
    pub(crate) backend: Kernels,
    pub(crate) keys: K,
    pub(crate) values: V,
    /// Whether the caller brought the codecs; then the configuration's specs do not name them.
    pub(crate) own_codecs: bool,
    pub(crate) store: S,
}

/// Says where a layer's tokens are.
///
/// A ring in f16 holds the window. It also holds the rows of the newest closed pages, because a rollback of
/// `max_rollback` tokens may open these pages again:
///
/// ```text
///  positions   sinks │ pages ……………………………… │ pages whose rows are in the ring │ window          │
///              0       sinks                 kept                              start             next
///              ◄── floor: dropped behind a sliding window
/// ```
///
/// `start` follows from `kept` and `next` alone (`LayerConfig::closed`). So a rollback to a position finds the same
/// pages closed as when the layer first reached it. The first page that closes decides the balance and the prefix
/// centre. If a rollback opens that page again, both are undecided again, except for a calibrated balance. Positions
/// never change, because keys carry their rotary embedding.
///
/// In memory, the ring has a whole number of pages, so a page never wraps around its end. `place` is where the row of
/// `kept` lies:
///
/// ```text
///  ring        │ window: newest rows │ free │ rows of closed pages │ window: oldest rows │
///              0                     │      place                  place_of(start)       ring
///                                    place_of(next): the next row goes here
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Position of the next token.
    pub(crate) next: usize,
    /// Position of the window's first token.
    pub(crate) start: usize,
    /// Position of the first token whose row is in the ring.
    pub(crate) kept: usize,
    /// Index in the ring of the row of `kept`.
    pub(crate) place: usize,
    /// Tokens before this position were dropped behind the sliding window, except sinks.
    pub(crate) floor: usize,
    /// Number of tokens evicted so far.
    pub(crate) evicted: usize,
    /// Number of tokens that rollbacks decoded into the window so far.
    pub(crate) decoded: usize,
    /// Whether [`Layer::calibrate`] decided the balance. Rollbacks then keep it.
    pub(crate) calibrated: bool,
}

impl State {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            next: 0,
            start: layout.sinks,
            kept: layout.sinks,
            place: 0,
            floor: 0,
            evicted: 0,
            decoded: 0,
            calibrated: false,
        }
    }

    /// Returns the index in the ring of the row of a position, which is `kept` or later.
    pub(crate) fn place_of(&self, layout: &Layout, position: usize) -> usize {
        (self.place + position - self.kept) % layout.ring
    }

    /// Returns whether a page has closed. The first one decides the balance and the prefix centre.
    pub(crate) fn has_closed(&self, layout: &Layout) -> bool {
        self.start > layout.sinks
    }

    /// Returns the number of tokens in the window.
    pub(crate) fn window(&self) -> usize {
        self.next.saturating_sub(self.start)
    }

    /// Returns the number of tokens whose rows are in the ring.
    pub(crate) fn in_ring(&self) -> usize {
        self.next.saturating_sub(self.kept)
    }

    /// Returns the state after an append.
    pub(crate) fn after(&self, plan: &Plan, layout: &Layout) -> Self {
        let evicted = (plan.skipped + plan.evicted) * layout.page;
        Self {
            next: plan.next,
            start: self.start + plan.closing * layout.page,
            kept: plan.kept,
            place: self.place_of(layout, plan.kept),
            floor: plan.floor,
            evicted: (self.evicted + evicted).min(MAX_POSITION),
            ..*self
        }
    }

    /// Returns the state after closed pages were added to a layer whose window is empty. Their rows are not in the
    /// ring.
    pub(crate) fn adopted(&self, plan: &Plan, layout: &Layout) -> Self {
        let evicted = (plan.skipped + plan.evicted) * layout.page;
        Self {
            next: plan.next,
            start: plan.next,
            kept: plan.kept,
            floor: plan.floor,
            evicted: (self.evicted + evicted).min(MAX_POSITION),
            ..*self
        }
    }

    /// Returns the state after a rollback to a position.
    pub(crate) fn cut(&self, position: usize, cut: &Cut) -> Self {
        let (kept, place) = if cut.start < self.kept { (cut.start, 0) } else { (self.kept, self.place) };
        Self {
            next: position,
            start: cut.start,
            kept,
            place,
            floor: self.floor.min(cut.start),
            decoded: (self.decoded + cut.decoded).min(MAX_POSITION),
            ..*self
        }
    }

    /// Returns the state after pages of `tokens` tokens were evicted. The last one ends at position `end`.
    ///
    /// No rollback opens a page before `end` again.
    pub(crate) fn evict(&self, tokens: usize, end: usize, layout: &Layout) -> Self {
        let kept = self.kept.max(end);
        let evicted = (self.evicted + tokens).min(MAX_POSITION);
        Self { kept, place: self.place_of(layout, kept), evicted, ..*self }
    }

    /// Checks that a sliding window has dropped no token that a block of queries sees, at these positions.
    ///
    /// The first query sees the oldest tokens. Sinks are never dropped, so queries at their positions see all.
    pub(crate) fn check_block(
        &self,
        block: Range<usize>,
        window: usize,
        config: &LayerConfig,
    ) -> Result<(), Error> {
        let (first, sinks) = (block.start.max(config.sink_tokens), config.sink_tokens);
        let Some(sliding) = config.sliding_window.filter(|_| block.end > first) else { return Ok(()) };
        let end = first.saturating_add(1);
        let visible = end.saturating_sub(window.min(sliding)).max(sinks);
        Self::check_held(visible, self.floor.min(self.start), self.next.saturating_sub(end))
    }

    /// Checks that all tokens from position `visible` on are held, where tokens before `held` were dropped behind a
    /// sliding window.
    ///
    /// A `max_rollback` of `back` tokens would have kept them.
    pub(crate) fn check_held(visible: usize, held: usize, back: usize) -> Result<(), Error> {
        if visible < held { Err(Error::Dropped { visible, held, max_rollback: back }) } else { Ok(()) }
    }
}

/// The largest position and the largest count of tokens.
///
/// Sums of a few of them do not overflow. A state that was loaded can always be saved and loaded again.
pub(crate) const MAX_POSITION: usize = usize::MAX / 4;

/// Counts the tokens of a cache and the bytes in use.
///
/// ```
/// use octaplex::cache::LayerCache;
/// use octaplex::codecs::TurboQuant;
/// use octaplex::{Backend, Error, LayerConfig};
///
/// let config = LayerConfig::new(2, 64, 1000).keys("turboquant".parse()?).values("turboquant".parse()?);
/// let (mut memory, mut scratch) = (vec![0; config.required_bytes()], vec![0.0; config.scratch_len(2)]);
/// let mut cache = LayerCache::<TurboQuant<64>, TurboQuant<64>, _>::new(&config, Backend::detect(), &mut memory)?;
/// let rows = [0.5; 2 * 300 * 64]; // [heads][tokens][width]
/// cache.append(&rows, &rows, &mut scratch)?;
/// let stats = cache.stats();
/// assert_eq!((stats.tokens, stats.next_position), (300, 300));
/// assert_eq!(stats.paged_tokens, 192); // three pages of 64; the newest 104 are exact, and the 4 sinks
/// assert_eq!(stats.values, 300 * 2 * (64 + 64));
/// assert!(stats.bits_per_value() < 16.0);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens that attention can see: sinks, pages and exact window.
    pub tokens: usize,
    /// Tokens in pages; they are among `tokens`.
    pub paged_tokens: usize,
    /// Tokens with an exact row: sinks, the window, and tokens of closed pages that a rollback may open again.
    pub exact_tokens: usize,
    /// The position of the next token.
    pub next_position: usize,
    /// Tokens that were dropped by eviction or behind a sliding window.
    pub evicted_tokens: usize,
    /// Tokens that [`truncate`](Layer::truncate) decoded back into the window.
    pub decoded_tokens: usize,
    /// Bytes in use: the rows of `exact_tokens`, pages with their centres and headers, and the balance.
    pub bytes: usize,
    /// Bytes in pages; they are among `bytes`. In a long context they are almost all of it.
    pub paged_bytes: usize,
    /// Bytes in pages that another fork holds as well; they are among `paged_bytes`.
    pub shared_bytes: usize,
    /// Values that `bytes` encode: tokens · heads · (key width + value width).
    pub values: usize,
    /// Heads whose keys are balanced, because their channels differ by more than chance. 0 until the balance is
    /// decided.
    pub balanced_heads: usize,
}

impl Stats {
    /// Returns the bytes that no other fork holds. Dropping this fork alone frees them.
    #[must_use]
    pub fn own_bytes(&self) -> usize {
        self.bytes - self.shared_bytes
    }

    /// Returns the bits a value: all bytes in use, shared pages in full, divided by the number of values.
    #[must_use]
    pub fn bits_per_value(&self) -> f64 {
        8.0 * self.bytes as f64 / self.values.max(1) as f64
    }
}

/// Combines the statistics of several layers or sequences.
///
/// A token that is in every layer counts once. So each count of tokens, and the next position, is the largest of all
/// layers. Bytes, values and balanced heads are added up.
impl core::iter::Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(stats: I) -> Self {
        stats.fold(Self::default(), |all, one| Self {
            tokens: all.tokens.max(one.tokens),
            paged_tokens: all.paged_tokens.max(one.paged_tokens),
            exact_tokens: all.exact_tokens.max(one.exact_tokens),
            next_position: all.next_position.max(one.next_position),
            evicted_tokens: all.evicted_tokens.max(one.evicted_tokens),
            decoded_tokens: all.decoded_tokens.max(one.decoded_tokens),
            bytes: all.bytes + one.bytes,
            paged_bytes: all.paged_bytes + one.paged_bytes,
            shared_bytes: all.shared_bytes + one.shared_bytes,
            values: all.values + one.values,
            balanced_heads: all.balanced_heads + one.balanced_heads,
        })
    }
}

impl<K: Build, V: Build, S: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> LayerCache<K, V, S> {
    /// Creates an empty cache in `bytes`, with the codecs of the configuration.
    ///
    /// `bytes` has [`required_bytes`](LayerConfig::required_bytes) bytes or more, with any content. [`LayerCache`] has
    /// an example.
    ///
    /// # Errors
    /// * [`Error::Width`] if a width of the configuration differs from that of the codec's type.
    /// * [`Error::Unsupported`] if the configuration names another codec than the type, or is impossible.
    /// * [`Error::Length`] if `bytes` is too short.
    /// * Errors of the codecs' constructors.
    pub fn new(config: &LayerConfig, backend: Backend, bytes: S) -> Result<Self, Error> {
        config.check()?;
        let keys = K::from_spec(config.keys, config.key_dim, backend, config.head_id(Role::Keys))?;
        let values = V::from_spec(config.values, config.value_dim, backend, config.head_id(Role::Values))?;
        Self::in_bytes(config, Layout::new(config), keys, values, backend, bytes)
    }
}

impl<K: Codec, V: Codec, S: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> LayerCache<K, V, S> {
    /// Creates an empty cache with your own codecs, which all heads share. The configuration's codecs are ignored.
    ///
    /// `bytes` has [`required_bytes_with`](LayerConfig::required_bytes_with) bytes or more. Snapshots name codecs by
    /// their specs, and these codecs have none. So a snapshot of such a cache cannot be loaded.
    ///
    /// # Errors
    /// * [`Error::Width`] if a codec's width is not that of the configuration.
    /// * [`Error::Unsupported`] for an impossible configuration, blocks of 0 or more than 2,304 bytes, or prepared
    ///   queries of more than two words a value.
    /// * [`Error::Length`] if `bytes` is too short.
    pub fn with_codecs(
        config: &LayerConfig,
        keys: K,
        values: V,
        backend: Backend,
        bytes: S,
    ) -> Result<Self, Error> {
        let layout = config.layout_with(&keys, &values)?;
        let mut layer = Self::in_bytes(config, layout, keys, values, backend, bytes)?;
        layer.own_codecs = true;
        Ok(layer)
    }

    fn in_bytes(
        config: &LayerConfig,
        layout: Layout,
        keys: K,
        values: V,
        backend: Backend,
        bytes: S,
    ) -> Result<Self, Error> {
        let (expected, actual) = (layout.fixed_bytes(), bytes.as_ref().len());
        if actual < expected {
            return Err(Error::Length { what: "bytes of the cache", expected, actual });
        }
        let mut layer = Layer {
            config: *config,
            layout,
            state: State::new(&layout),
            backend: backend.kernels(),
            keys,
            values,
            own_codecs: false,
            store: Fixed::new(&layout, bytes),
        };
        layer.clear();
        Ok(layer)
    }
}

impl LayerConfig {
    /// Returns how many pages have closed of a window that began at `from`, when the next token is at `next`.
    ///
    /// This function alone decides which tokens are exact, so appends and rollbacks agree:
    ///
    /// ```text
    ///  from                                        next
    ///   │ page │ page │ less than a page │ recent_window │
    ///   ◄─── closed ──►◄──────────── window ────────────►
    /// ```
    pub(crate) const fn closed(&self, from: usize, next: usize) -> usize {
        next.saturating_sub(from + self.recent_window) / self.page
    }

    /// Returns which head the codec of the layer's keys or values serves. One codec serves all heads, so they are rotated
    /// alike.
    pub(crate) fn head_id(&self, role: Role) -> HeadId {
        HeadId { layer: self.layer, head: 0, role }
    }

    /// Returns the bytes that a full [`LayerCache`] with these codecs needs.
    ///
    /// # Errors
    /// [`Error::Width`] and [`Error::Unsupported`], as [`LayerCache::with_codecs`].
    pub fn required_bytes_with(&self, keys: &dyn Codec, values: &dyn Codec) -> Result<usize, Error> {
        Ok(self.layout_with(keys, values)?.fixed_bytes())
    }

    /// Returns the layout with codecs that the configuration does not name.
    pub(crate) fn layout_with(&self, keys: &dyn Codec, values: &dyn Codec) -> Result<Layout, Error> {
        self.check()?;
        for (codec, dim) in [(keys, self.key_dim), (values, self.value_dim)] {
            if codec.dim() != dim {
                return Err(Error::Width { actual: codec.dim() });
            }
            if !(1..=MAX_BLOCK_BYTES).contains(&codec.block_bytes()) || codec.query_len() > 2 * dim {
                let why = "a codec's blocks take 1 to 2,304 bytes, and its prepared queries at most two words a value";
                return Err(Error::Unsupported { why });
            }
        }
        let sizes = [keys, values].map(|codec| Sizes::of_codec(codec, self.page));
        Ok(Layout::with_codecs(self, &sizes[0], &sizes[1]))
    }
}

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    /// Returns the configuration that the layer was created with.
    #[must_use]
    pub fn config(&self) -> &LayerConfig {
        &self.config
    }

    /// Returns the position of the next token, counted from 0.
    #[must_use]
    pub fn next_position(&self) -> usize {
        self.state.next
    }

    /// Sets the number of query heads of the layer.
    ///
    /// Use it after loading a snapshot, because snapshots do not hold [`query_heads`](field@LayerConfig::query_heads).
    /// `KvCache::set_query_heads` sets it in all layers.
    ///
    /// ```
    /// use octaplex::{Backend, Error, KvCache, LayerConfig};
    ///
    /// let mut cache = KvCache::new([LayerConfig::new(2, 64, 1000).query_heads(8)], Backend::detect())?;
    /// cache.append(0, &[0.5; 2 * 10 * 64], &[0.5; 2 * 10 * 64])?;
    /// let mut loaded = KvCache::load(&cache.save(), Backend::detect())?;
    /// loaded.layer_mut(0)?.set_query_heads(8)?;
    /// let (queries, mut output) = ([0.1; 8 * 5 * 64], [0.0; 8 * 5 * 64]); // eight heads, five queries each
    /// loaded.attend(0, &queries, &mut output)?; // not 40 heads
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Heads`] unless `query_heads` is a positive multiple of the key/value heads.
    pub fn set_query_heads(&mut self, query_heads: usize) -> Result<(), Error> {
        let config = self.config.query_heads(query_heads);
        config.check()?;
        self.config = config;
        Ok(())
    }

    /// Returns the positions of the tokens that the cache holds, in ascending order: sinks, pages, window.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        let (state, page) = (&self.state, self.layout.page);
        let pages = (0..self.store.pages()).flat_map(move |index| {
            let start = self.page_position(index);
            start..start + page
        });
        (0..state.next.min(self.layout.sinks)).chain(pages).chain(state.start..state.next.max(state.start))
    }

    /// Counts what the cache holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (layout, state) = (&self.layout, &self.state);
        let pages = self.store.pages();
        let sinks = state.next.min(layout.sinks);
        let exact = sinks + state.window();
        let width = layout.key_dim + layout.value_dim;
        let side = |range: Range<usize>| if range.is_empty() { 0 } else { 2 * layout.heads * layout.key_dim };
        let tokens = exact + pages * layout.page;
        let paged_bytes = (0..pages).map(|index| layout.page_length(self.store.page(index))).sum::<usize>();
        Stats {
            tokens,
            paged_tokens: pages * layout.page,
            exact_tokens: sinks + state.in_ring(),
            next_position: state.next,
            evicted_tokens: state.evicted,
            decoded_tokens: state.decoded,
            bytes: (sinks + state.in_ring()) * layout.heads * 2 * width
                + paged_bytes
                + side(layout.balance(0))
                + side(layout.prefix(0)),
            paged_bytes,
            shared_bytes: (0..pages)
                .filter(|index| self.store.is_shared(*index))
                .map(|index| layout.page_length(self.store.page(index)))
                .sum(),
            values: tokens * layout.heads * width,
            balanced_heads: (0..layout.heads).filter(|head| self.has_balance(*head)).count(),
        }
    }

    /// Returns whether a head's balance is decided and not all ones.
    fn has_balance(&self, head: usize) -> bool {
        let balance = self.store.front()[self.layout.balance(head)].as_chunks::<2>().0;
        // 0x3c00 is 1.0 in f16. The sign bit marks the half of a graded codec. Zeros mean: not decided.
        balance.iter().any(|bytes| ![0, 0x3c00].contains(&(u16::from_le_bytes(*bytes) & 0x7fff)))
    }

    /// Checks that all values of \[heads]\[rows]\[width] are below `limit` in magnitude. The error names the first that
    /// is not.
    pub(crate) fn check_rows(
        &self,
        what: &'static str,
        (rows, width): (usize, usize),
        values: &[f32],
        limit: f32,
    ) -> Result<(), Error> {
        if check_values(values, limit).is_ok() {
            return Ok(());
        }
        let found = values.iter().position(|x| x.is_nan() || x.abs() >= limit);
        let at = found.unwrap_or(0);
        Err(self.row_error(what, (rows, width), at, values.get(at).map(|x| x.is_finite())))
    }

    /// Returns the error of value `at` of \[heads]\[rows]\[width], or of the norm of its row.
    ///
    /// `value` says whether the value is finite; `None` means that the norm is at fault.
    pub(crate) fn row_error(
        &self,
        what: &'static str,
        (rows, width): (usize, usize),
        at: usize,
        value: Option<bool>,
    ) -> Error {
        Error::Row {
            layer: self.config.layer,
            what,
            head: at / (rows * width).max(1),
            row: at / width % rows.max(1),
            channel: value.map(|_| at % width),
            finite: value.unwrap_or(true),
        }
    }

    /// Returns the position of a page's first token.
    pub(crate) fn page_position(&self, index: usize) -> usize {
        position(self.store.page(index))
    }

    /// Calls `ask` with the layer's tokens, to plan a change.
    pub(crate) fn standing<T>(&self, ask: impl FnOnce(&Standing) -> T) -> T {
        let position = &|index| self.page_position(index);
        ask(&Standing { config: &self.config, state: &self.state, pages: self.store.pages(), position })
    }
}

/// Reads the position of a page's first token from its header.
pub(crate) fn position(page: &[u8]) -> usize {
    let bytes = page.first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(bytes) as usize
}
