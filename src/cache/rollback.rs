//! Removes tokens from a layer: rollback and eviction. Also decodes single tokens.
//!
//! A rollback to a position whose row is in the ring opens pages again, bit for bit:
//!
//! ```text
//!  before   sinks │ page │ page │ page │ page │ window │
//!                        kept                 start    next
//!  after    sinks │ page │ page │ window │
//!                        kept   start    position
//! ```
//!
//! Further back, the rows are gone. If the position lies in a page, the page's first tokens are decoded into the ring:
//!
//! ```text
//!  before   sinks │ page │ page │ page │ page │ window │
//!                                      kept   start    next
//!  after    sinks │ page │ page │ decoded rows │
//!                               kept, start    position
//! ```
//!
//! Eviction removes whole pages. The other tokens keep their positions, so a gap remains:
//!
//! ```text
//!  before   sinks │ page │ page │ page │ page │ window │
//!                     ◄── positions ──────►
//!  after    sinks │ page │             │ page │ window │
//! ```

use super::decode::Decoder;
use super::storage::Storage;
use super::window::Standing;
use super::{Layer, State};
use crate::Error;
use crate::codec::{Codec, in_page};
use core::ops::Range;
use octaplex_arch::{Float, MAX_DIM};

/// Describes a layer after a rollback.
pub(crate) struct Cut {
    /// Position of the window's first token.
    pub(crate) start: usize,
    /// Number of pages.
    pub(crate) pages: usize,
    /// Number of tokens of the next page that are decoded into the window.
    pub(crate) decoded: usize,
}

impl Standing<'_> {
    /// Plans a rollback to `position`. Returns `None` if there is nothing to remove.
    ///
    /// # Errors
    /// [`Error::Dropped`] if the sliding window then needs tokens that were dropped.
    pub(crate) fn cut(&self, position: usize) -> Result<Option<Cut>, Error> {
        let (config, state, sinks) = (self.config, self.state, self.config.sink_tokens);
        if position >= state.next {
            return Ok(None);
        }
        if let Some(window) = config.sliding_window
            && position > sinks
        {
            let held = state.floor.min(state.kept);
            let visible = position.saturating_sub(window).max(sinks);
            State::check_held(visible, held, state.next - position)?;
        }
        let pages = |until: usize| (0..self.pages).take_while(|&i| (self.position)(i) < until).count();
        if position >= state.kept {
            let start = state.kept + config.closed(state.kept, position) * config.page;
            return Ok(Some(Cut { start, pages: pages(start), decoded: 0 }));
        }
        let whole = pages((position + 1).saturating_sub(config.page));
        if whole == self.pages || (self.position)(whole) >= position {
            return Ok(Some(Cut { start: position.max(sinks), pages: whole, decoded: 0 }));
        }
        let start = (self.position)(whole);
        Ok(Some(Cut { start, pages: whole, decoded: position - start }))
    }

    /// Returns the pages that lie entirely within `positions`, and the position after the last of them.
    pub(crate) fn within(&self, positions: Range<usize>) -> (Range<usize>, usize) {
        let page = self.config.page;
        let inside = |&i: &usize| {
            let start = (self.position)(i);
            positions.start <= start && start + page <= positions.end
        };
        let first = (0..self.pages).position(|i| inside(&i)).unwrap_or(0);
        let count = (first..self.pages).take_while(inside).count();
        let end = if count > 0 { (self.position)(first + count - 1) + page } else { 0 };
        (first..first + count, end)
    }
}

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    /// Removes the tokens from `position` on, for example rejected drafts.
    ///
    /// A position at or after the end changes nothing. The distance to the furthest position that the layer has reached
    /// decides what remains:
    ///
    /// * Up to [`max_rollback`](crate::LayerConfig::max_rollback) tokens: the layer is then bit-exact with one that
    ///   never had the removed tokens. Pages that closed meanwhile open again.
    /// * Further back: exact tokens stay exact. If `position` lies in a page, the page's first tokens are decoded
    ///   into the window. They are encoded a second time when the page closes again.
    ///   [`Stats::decoded_tokens`](crate::Stats) counts them.
    ///
    /// ```
    /// use octaplex::{Backend, Error, LayerConfig, cache::SharedLayer};
    ///
    /// let config = LayerConfig::new(1, 64, 1000).max_rollback(16);
    /// let mut layer = SharedLayer::on_heap(&config, Backend::detect())?;
    /// let mut scratch = vec![0.0; config.scratch_len(1)];
    /// layer.append(&[0.5; 300 * 64], &[0.25; 300 * 64], &mut scratch)?;
    /// layer.truncate(290)?; // ten rejected drafts
    /// assert_eq!((layer.next_position(), layer.stats().decoded_tokens), (290, 0));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Dropped`] if a sliding window then needs tokens that were dropped. Only rollbacks longer than
    ///   `max_rollback` can return it.
    /// * [`Error::Corrupt`] if a page that is cut cannot be decoded.
    ///
    /// The layer is then as it was.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        let Some(cut) = self.check_truncate(position)? else { return Ok(()) };
        for token in 0..cut.decoded {
            self.restore(cut.pages, token)?;
        }
        self.store.remove(cut.pages..self.store.pages());
        self.state = self.state.cut(position, &cut);
        if !self.state.has_closed(&self.layout) {
            self.forget_first_page();
        }
        Ok(())
    }

    /// Plans a [`truncate`](Self::truncate), and returns its errors. `None` if there is nothing to remove.
    ///
    /// It decodes the tokens that `truncate` will decode, so that `truncate` itself cannot fail later.
    pub(crate) fn check_truncate(&self, position: usize) -> Result<Option<Cut>, Error> {
        let layout = &self.layout;
        let Some(cut) = self.standing(|standing| standing.cut(position))? else { return Ok(None) };
        let (mut key, mut value) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        for (head, token) in
            (0..layout.heads).flat_map(|head| (0..cut.decoded).map(move |token| (head, token)))
        {
            let (key, value) = (&mut key[..layout.key_dim], &mut value[..layout.value_dim]);
            self.decode_paged(cut.pages, head, token, key, value)?;
        }
        Ok(Some(cut))
    }

    /// Clears the balance and the prefix centre, which the next first page decides again. A calibrated balance stays.
    fn forget_first_page(&mut self) {
        let layout = self.layout;
        for head in 0..layout.heads {
            if !self.state.calibrated {
                self.store.front_mut()[layout.balance(head)].fill(0);
            }
            self.store.front_mut()[layout.prefix(head)].fill(0);
        }
    }

    /// Decodes the key and the value of token `number` of [`positions`](Self::positions), for one key/value head.
    ///
    /// This is for tools. Attention needs no decoded copy.
    ///
    /// # Errors
    /// * [`Error::Missing`] for a head or a token that is out of range.
    /// * [`Error::Length`] unless `key` has the width of a key and `value` that of a value.
    /// * [`Error::Corrupt`] if the page is damaged.
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
        for (what, number, count) in [("head", head, layout.heads), ("token", number, self.tokens())] {
            if number >= count {
                return Err(Error::Missing { what, number, count });
            }
        }
        let [keys, values] = match number {
            _ if number < sinks => [layout.sink_keys(head, number, 1), layout.sink_values(head, number, 1)],
            _ if number < sinks + paged => {
                let token = number - sinks;
                return self.decode_paged(token / layout.page, head, token % layout.page, key, value);
            }
            _ => {
                let place = state.place_of(layout, state.start + number - sinks - paged);
                [layout.window_keys(head, place, 1), layout.window_values(head, place, 1)]
            }
        };
        self.backend.decode_floats(Float::F16, &self.store.front()[keys], key);
        self.backend.decode_floats(Float::F16, &self.store.front()[values], value);
        Ok(())
    }

    /// Decodes a token of a page, for one head.
    fn decode_paged(
        &self,
        page: usize,
        head: usize,
        token: usize,
        key: &mut [f32],
        value: &mut [f32],
    ) -> Result<(), Error> {
        let layout = &self.layout;
        let decoder = Decoder { layout, backend: self.backend, codecs: (&self.keys, &self.values) };
        let front = self.store.front();
        let decided = (&front[layout.balance(head)], &front[layout.prefix(head)]);
        let head = layout.head(self.store.page(page), head);
        let decoded = decoder.decode(&head, decided, token..token + 1, key, value);
        decoded.map_err(|error| in_page(error, page, layout.page))
    }

    /// Decodes a token of a page into the ring. The page's first token goes to place 0.
    fn restore(&mut self, page: usize, token: usize) -> Result<(), Error> {
        let (layout, backend) = (self.layout, self.backend);
        let (mut key, mut value) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (key, value) = (&mut key[..layout.key_dim], &mut value[..layout.value_dim]);
        for head in 0..layout.heads {
            self.decode_paged(page, head, token, key, value)?;
            for x in key.iter_mut().chain(value.iter_mut()) {
                *x = x.clamp(-65504.0, 65504.0);
            }
            let front = self.store.front_mut();
            backend.encode_floats(Float::F16, key, &mut front[layout.window_keys(head, token, 1)]);
            backend.encode_floats(Float::F16, value, &mut front[layout.window_values(head, token, 1)]);
        }
        Ok(())
    }

    /// Drops the whole pages that lie within `positions`, and returns the number of tokens dropped.
    ///
    /// Sinks and the window stay, and the other tokens keep their positions. A rollback neither restores dropped tokens
    /// nor opens a page before them again.
    ///
    /// Use it to free capacity in a long conversation (a context shift): evict the oldest range and go on counting. Keys
    /// carry the rotary embedding of their positions, so positions are not renumbered. Attention skips the gap. That is
    /// correct because only differences of positions matter to a rotary embedding. If an engine must renumber, clear
    /// the layer and append keys of the new positions.
    ///
    /// ```
    /// use octaplex::{Backend, Error, LayerConfig, cache::SharedLayer};
    ///
    /// let config = LayerConfig::new(1, 64, 1000);
    /// let mut layer = SharedLayer::on_heap(&config, Backend::detect())?;
    /// let mut scratch = vec![0.0; config.scratch_len(1)];
    /// layer.append(&[0.5; 400 * 64], &[0.25; 400 * 64], &mut scratch)?;
    /// assert_eq!(layer.evict(0..200), 192); // three pages of 64 tokens, behind four sinks
    /// assert_eq!((layer.tokens(), layer.next_position()), (208, 400));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn evict(&mut self, positions: Range<usize>) -> usize {
        let (pages, end) = self.standing(|standing| standing.within(positions));
        let tokens = pages.len() * self.layout.page;
        self.state = self.state.evict(tokens, end, &self.layout);
        self.store.remove(pages);
        tokens
    }

    /// Removes all tokens, and forgets the balance.
    pub fn clear(&mut self) {
        self.store.remove(0..self.store.pages());
        self.store.front_mut().fill(0);
        self.state = State::new(&self.layout);
    }
}
