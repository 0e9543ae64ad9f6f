//! Tokens that come and go on the card: as `cache/window.rs` and `cache/rollback.rs` have it, pages encoded by kernels.

use super::{Error, Held, Layer, refuse, tables};
use crate::cache::center::{self, Diagonal, Spread};
use crate::cache::encode::Encoder;
use crate::cache::window::{Plan, Standing, rows_error, try_row};
use crate::cache::{Center, State};
use crate::{Role, Tensor};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use octaplex_arch::device::{AT_ONCE, Input, Refused, Rows, Sequence};
use octaplex_arch::{Float, MAX_DIM};

impl Layer {
    /// Adds tokens to a sequence: keys and values, \[kv_heads]\[tokens]\[width], in any float type. It is then what
    /// [`Layer::append`](crate::Layer::append) makes of the same tokens, in whatever pieces they come: the newest tokens exact in f16,
    /// pages that close encoded on the card, the same bytes. Balance and prefix centre are decided on the CPU, when the first
    /// page closes; so are values that cannot be held refused. Pages of `trellis` of several scales are encoded there as well, and brought
    /// to the card.
    ///
    /// A token that closes no page is two small copies; the first page that closes compiles kernels and allocates rows of one page,
    /// a prompt's pages allocate theirs for the while.
    ///
    /// # Errors
    /// What [`Layer::append`](crate::Layer::append) refuses; [`Error::Full`] where there is no room for the pages that close (beside
    /// those that leave a sliding window). The layer is then as it was; after
    /// [`Error::Card`] the sequence is to be [cleared](Self::clear).
    pub fn append<'a>(
        &mut self,
        sequence: usize,
        keys: impl Into<Tensor<'a>>,
        values: impl Into<Tensor<'a>>,
    ) -> Result<(), Error> {
        let rows = self.incoming(sequence, [keys.into(), values.into()])?;
        self.add(sequence, Input::Host(&rows), rows.len() / self.paged.token_values())
    }

    /// Adds so many tokens, which are fit.
    pub(super) fn add(&mut self, sequence: usize, input: Input, count: usize) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let plan = self.plan(&self.sequences[sequence], count)?;
        self.take(sequence, &plan, input)
    }

    /// Microseconds on the card's clock of each of `times` runs of the kernels that encode the whole pages of these tokens, in f16
    /// on the card, as if they were a sequence's first (sinks aside). The sequences stay as they are.
    ///
    /// # Errors
    /// As [`append`](Self::append); [`Error::Full`] where there is no room for the pages; [`Error::Unsupported`] for less than a page,
    /// more than 128 MiB, and codecs whose pages the CPU encodes.
    pub fn time_append(&mut self, keys: &[f32], values: &[f32], times: usize) -> Result<Vec<f32>, Error> {
        let rows = self.incoming(0, [keys.into(), values.into()])?;
        if !tables::are_encoded(&self.config) {
            return refuse("the CPU encodes pages of these codecs");
        }
        let (page, each) = (self.config.page, self.paged.token_values());
        let pages = rows.len() / each / page;
        if pages == 0 || pages > 1 && 2 * pages * page * each > AT_ONCE {
            return refuse("time_append takes one page at least, and 128 MiB of rows at most");
        }
        let (input, new, front) = (Input::Host(&rows), 0..pages * page, &Held::empty(&self.config).front);
        let rows = Rows { sequence: 0, held: [0..0, 0..0], input, new, position: 0, front };
        Ok(self.paged.time_encoding(&self.free(pages)?, &rows, times)?)
    }

    /// Rows as a sequence has them, checked: \[tokens]\[kv heads]\[keys, values]\[width] in f16.
    fn incoming(&self, sequence: usize, sides: [Tensor; 2]) -> Result<Vec<u16>, Error> {
        self.sequence(sequence)?;
        let (held, heads, dim) = (&self.sequences[sequence], self.config.kv_heads, self.config.key_dim);
        let count = sides[0].len() / (heads * dim);
        for (what, side, each) in [("keys", sides[0], None), ("values", sides[1], Some(count))] {
            if side.len() != count * heads * dim {
                return Err(rows_error(what, heads, dim, each, side.len()).into());
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
        let balanced = self.layout.balances() && (held.calibrated || held.start() > self.layout.sinks);
        let centred = self.config.centers() != Center::Off;
        let mut rows = vec![0; count * heads * 2 * dim];
        let (mut bytes, mut row) = ([0; 2 * MAX_DIM], [0.0; MAX_DIM]);
        let (bytes, row) = (&mut bytes[..2 * dim], &mut row[..dim]);
        for head in 0..heads {
            let balance = &held.front[head * 2 * dim..][..dim];
            let least = balance.iter().fold(f32::INFINITY, |least, s| least.min(s.abs()));
            for (of, (what, side)) in [("keys", sides[0]), ("values", sides[1])].into_iter().enumerate() {
                let by = (balanced && of == 0).then_some((balance, least));
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
        let (config, next, start) = (&self.config, held.next(), held.start());
        let &Held { kept, floor, ref positions, .. } = held;
        let (pages, position) = (positions.len(), &|index: usize| positions[index]);
        Ok(Standing { config, next, start, kept, floor, pages, position }.plan(count)?)
    }

    /// Where the ring has the row of a position.
    pub(super) fn place_of(&self, position: usize) -> usize {
        position.saturating_sub(self.layout.sinks) % self.layout.ring
    }

    /// Where it has those of positions that follow each other.
    fn places_of(&self, positions: Range<usize>) -> [Range<usize>; 2] {
        let (first, count) = (self.place_of(positions.start), positions.len());
        let before = count.min(self.layout.ring - first);
        [first..first + before, 0..count - before]
    }

    /// Puts rows of positions into a sequence's ring, from token `first` of the input on.
    pub(super) fn store_from(
        &mut self,
        number: usize,
        positions: Range<usize>,
        input: Input,
        first: usize,
    ) -> Result<(), Error> {
        let mut first = first;
        for places in self.places_of(positions).into_iter().filter(|places| !places.is_empty()) {
            self.paged.store(number, places.start, input, first..first + places.len())?;
            first += places.len();
        }
        Ok(())
    }

    /// Rows of positions that follow each other: those that the sequence holds, then those of tokens that come.
    fn rows<'a>(
        &self,
        number: usize,
        positions: Range<usize>,
        input: Input<'a>,
        front: &'a [f32],
    ) -> Rows<'a> {
        let (next, start) = (self.sequences[number].next(), positions.start);
        let [old, new] = [start.min(next)..positions.end.min(next), start.max(next)..positions.end.max(next)];
        let new = new.start - next..new.end - next;
        Rows { sequence: number, held: self.places_of(old), input, new, position: start as u64, front }
    }

    /// Takes the tokens that come.
    fn take(&mut self, number: usize, plan: &Plan, input: Input) -> Result<(), Error> {
        let page = self.config.page;
        let held = &self.sequences[number];
        let (old, start) = (held.next(), held.start() + plan.closing * page);
        let sinks = plan.next.min(self.layout.sinks);
        let mut sequence = Sequence {
            exact: sinks + plan.next.saturating_sub(start),
            sinks,
            next: plan.next as u64,
            window_start: start as u64,
            place: self.place_of(start),
            ..held.sequence.clone()
        };
        let (mut places, mut front) = (Vec::new(), None);
        let first = held.start() + plan.skipped * page;
        if plan.closing > 0 {
            let decided = self.decide(number, input)?;
            places = self.free(plan.closing - plan.skipped)?;
            let rows = self.rows(number, first..first + places.len() * page, input, &decided);
            self.encode(&places, &rows)?;
            front = Some(decided);
        }
        // Nothing is refused any more: rows may take the places of those that no rollback brings back.
        if old < sinks {
            self.paged.store(number, self.layout.ring + old, input, 0..sinks - old)?;
        }
        let kept = old.max(plan.kept).min(plan.next);
        self.store_from(number, kept.max(sinks)..plan.next.max(sinks), input, kept.max(sinks) - old)?;
        let held = &mut self.sequences[number];
        if plan.closing == 0 && plan.evicted == 0 {
            self.paged.extend(number, &sequence)?;
        } else {
            sequence.pages.drain(..plan.evicted);
            sequence.pages.extend(&places);
            let front = front.unwrap_or_else(|| held.front.clone());
            self.paged.set(number, &sequence, &front)?;
            held.sequence.pages[..plan.evicted].iter().for_each(|page| self.owners[*page as usize] -= 1);
            places.iter().for_each(|page| self.owners[*page as usize] += 1);
            held.positions.drain(..plan.evicted);
            held.positions.extend((0..places.len()).map(|index| first + index * page));
            held.front = front;
        }
        (held.sequence, held.floor, held.kept) = (sequence, plan.floor, plan.kept);
        Ok(())
    }

    /// Encodes pages on the card, or, where its kernels do not, here.
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
            self.paged.upload(&[*place], &bytes)?;
        }
        Ok(())
    }

    fn page_error(&self, refused: Refused, first: usize) -> crate::Error {
        crate::Error::Page {
            layer: self.config.layer,
            what: if refused.key { "keys" } else { "values" },
            head: refused.head,
            position: first + refused.page * self.config.page,
            row: refused.row,
        }
    }

    /// Balances and prefix centres; found from the keys that fill the window when the first page closes.
    fn decide(&mut self, number: usize, input: Input) -> Result<Vec<f32>, Error> {
        let (dim, each) = (self.config.key_dim, self.paged.token_values());
        let mut front = self.sequences[number].front.clone();
        let start = self.sequences[number].start();
        if start > self.layout.sinks {
            return Ok(front);
        }
        let full = self.config.recent_window + self.layout.page;
        let rows = self.rows(number, start..start + full, input, &[]);
        let rows = self.paged.read_rows(&rows, 0..full)?;
        let (layout, held) = (&self.layout, &self.sequences[number]);
        let mut keys = vec![0.0; full * dim];
        for (head, front) in front.chunks_exact_mut(2 * dim).enumerate() {
            let (balance, prefix) = front.split_at_mut(dim);
            for (token, key) in keys.chunks_exact_mut(dim).enumerate() {
                let at = token * each + head * 2 * dim;
                for (x, half) in key.iter_mut().zip(&rows[at..at + dim]) {
                    *x = half::f16::from_bits(*half).to_f32();
                }
            }
            if layout.balances() && !held.calibrated {
                let mut spread = Spread::new();
                keys.chunks(layout.page * dim).for_each(|page| spread.add(page, dim));
                spread.decide(self.backend, Diagonal { balances: true, grades: false }, &[], balance);
            }
            if layout.prefix(head).is_empty() {
                continue;
            }
            let count = full.min(128);
            let mut bytes = [0; 2 * MAX_DIM];
            center::divide(&mut keys[..count * dim], balance);
            center::store_mean(&keys[..count * dim], dim, &mut bytes[..2 * dim]).map_err(|_| {
                self.page_error(Refused { page: 0, head, key: true, row: None }, held.start())
            })?;
            self.backend.decode_floats(Float::F16, &bytes[..2 * dim], prefix);
        }
        Ok(front)
    }

    /// Forgets a sequence's tokens from `position` on, as [`Layer::truncate`](crate::Layer::truncate) does: rejected drafts. Up to
    /// [`max_rollback`](crate::LayerConfig::max_rollback) tokens behind the furthest position pages that closed meanwhile open again.
    ///
    /// # Errors
    /// [`Error::Unsupported`] further back, where pages are closed for good: fork a sequence before what may be taken back.
    /// [`crate::Error::Dropped`], [`crate::Error::Missing`], [`Error::Card`]. The layer is then as it was.
    pub fn truncate(&mut self, sequence: usize, position: usize) -> Result<(), Error> {
        self.sequence(sequence)?;
        let (held, sinks, page) = (&self.sequences[sequence], self.layout.sinks, self.config.page);
        if position >= held.next() {
            return Ok(());
        }
        if position < held.kept && !held.positions.is_empty() {
            return refuse("on a card, tokens of pages that are closed for good are not taken back");
        }
        if let Some(window) = self.config.sliding_window
            && position > sinks
        {
            let visible = position.saturating_sub(window).max(sinks);
            State::check_held(visible, held.floor.min(held.kept), held.next() - position)?;
        }
        let mut held = held.clone();
        held.kept = held.kept.min(position.max(sinks));
        let start = held.kept + self.config.closed(held.kept, position) * page;
        let pages = held.positions.iter().take_while(|first| **first < start).count();
        held.positions.truncate(pages);
        held.sequence.pages.truncate(pages);
        let exact_sinks = position.min(sinks);
        held.sequence = Sequence {
            exact: exact_sinks + position.saturating_sub(start),
            sinks: exact_sinks,
            next: position as u64,
            window_start: start as u64,
            place: self.place_of(start),
            ..held.sequence
        };
        held.floor = held.floor.min(start);
        if start == sinks {
            let empty = Held::empty(&self.config).front;
            for (front, empty) in held
                .front
                .chunks_exact_mut(self.config.key_dim)
                .zip(empty.chunks_exact(self.config.key_dim))
                .skip(usize::from(held.calibrated))
                .step_by(1 + usize::from(held.calibrated))
            {
                front.copy_from_slice(empty);
            }
        }
        self.place(sequence, held)
    }
}
