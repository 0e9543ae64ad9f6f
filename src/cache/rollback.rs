//! How tokens leave: rollback, eviction, and what pages decode to.

use super::decode::Decoder;
use super::storage::Storage;
use super::window::Standing;
use super::{Layer, State};
use crate::Error;
use crate::codec::Codec;
use crate::page::in_page;
use core::ops::Range;
use octaplex_arch::{Float, MAX_DIM};

/// What a rollback leaves.
pub(crate) struct Cut {
    /// The window's first position.
    pub(crate) start: usize,
    /// Pages.
    pub(crate) pages: usize,
    /// Tokens of the page behind them, which are decoded into the window.
    pub(crate) decoded: usize,
}

impl Standing<'_> {
    /// What going back to a position does; `None` for nothing.
    ///
    /// # Errors
    /// [`Error::Dropped`].
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

    /// The whole pages that lie within the positions, and the position behind them.
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
    /// Forgets the tokens from `position` on, for example rejected drafts. Beyond the end, nothing happens.
    ///
    /// Up to [`max_rollback`](crate::LayerConfig::max_rollback) tokens behind the furthest position that the layer has
    /// reached, it is then the layer that never had them: the same bits come from [`attend`](Self::attend), now and
    /// later, because pages that closed meanwhile open again. Further back, what is exact stays so, but where a page that
    /// is closed for good is cut, its first tokens are decoded into the window (and encoded a second time when it
    /// closes again); [`Stats::decoded_tokens`](crate::Stats) counts these.
    ///
    /// # Errors
    /// [`Error::Dropped`] if the layer has a sliding window that would show tokens it has dropped: a rollback longer than
    /// `max_rollback` only. [`Error::Corrupt`] if a page that is cut cannot be decoded. The layer is then as it was.
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

    /// What [`truncate`](Self::truncate) will do, or refuses: whatever can fail is tried here. `None` for nothing.
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

    /// No page has closed any more: what the first one decides is open again.
    fn forget_first_page(&mut self) {
        let layout = self.layout;
        for head in 0..layout.heads {
            if !self.state.calibrated {
                self.store.front_mut()[layout.balance(head)].fill(0);
            }
            self.store.front_mut()[layout.prefix(head)].fill(0);
        }
    }

    /// Decodes the key and the value of token `number` of [`positions`](Self::positions).
    ///
    /// This is for tools. Attention needs no decoded copy.
    ///
    /// # Errors
    /// [`Error::Missing`] for heads and tokens that are not there, [`Error::Length`], [`Error::Corrupt`].
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

    /// Decodes a token of a page into the ring, whose first place is that of the page's first token.
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

    /// Drops the whole pages that lie within the positions, and returns the number of tokens dropped.
    ///
    /// Sinks and the exact window stay, and the other tokens keep their positions. No rollback brings dropped tokens back, or
    /// opens a page before them again.
    ///
    /// This is also how to make room in a long conversation (a context shift). Keys carry the rotary embedding of their
    /// positions, so positions are not renumbered: evict the oldest range and go on counting. Attention skips the gap, and
    /// only differences of positions matter to a rotary embedding. An engine that must renumber clears the layer and
    /// appends keys of the new positions.
    pub fn evict(&mut self, positions: Range<usize>) -> usize {
        let (pages, end) = self.standing(|standing| standing.within(positions));
        let tokens = pages.len() * self.layout.page;
        self.state = self.state.evict(tokens, end, &self.layout);
        self.store.remove(pages);
        tokens
    }

    /// Forgets all tokens, and the balance.
    pub fn clear(&mut self) {
        self.store.remove(0..self.store.pages());
        self.store.front_mut().fill(0);
        self.state = State::new(&self.layout);
    }
}
