//! Tokens that come and go on the card: as `cache/window.rs` and `cache/rollback.rs` have it, pages encoded by kernels.

use super::{Error, Held, Layer, refuse};
use crate::cache::center::{self, Diagonal, Spread};
use crate::cache::window::{Plan, Standing, rows_error, try_row};
use crate::cache::{Center, State};
use crate::{CodecSpec, Tensor};
use alloc::vec;
use alloc::vec::Vec;
use octaplex_arch::device::{AT_ONCE, Refused, Rows, Sequence};
use octaplex_arch::{Float, MAX_DIM};

impl Layer {
    /// Adds tokens to a sequence: keys and values, \[kv_heads]\[tokens]\[width], in any float type. It is then what
    /// [`Layer::append`](crate::Layer::append) makes of the same tokens, in whatever pieces they come: the newest tokens exact in f16,
    /// pages that close encoded on the card, the same bytes. Balance and prefix centre are decided on the CPU, when the first
    /// page closes; so are values that cannot be held refused.
    ///
    /// A token that closes no page is two small copies; the first page that closes compiles kernels and allocates rows of one page,
    /// a prompt's pages allocate theirs for the while.
    ///
    /// # Errors
    /// What [`Layer::append`](crate::Layer::append) refuses; [`Error::Full`] where there is no room for the pages that close (beside
    /// those that leave a sliding window); [`Error::Unsupported`] for `trellis` of several scales. The layer is then as it was; after
    /// [`Error::Card`] the sequence is to be [cleared](Self::clear).
    pub fn append<'a>(
        &mut self,
        sequence: usize,
        keys: impl Into<Tensor<'a>>,
        values: impl Into<Tensor<'a>>,
    ) -> Result<(), Error> {
        let rows = self.incoming(sequence, [keys.into(), values.into()])?;
        let count = rows.len() / self.paged.token_values();
        if count == 0 {
            return Ok(());
        }
        let plan = self.plan(&self.sequences[sequence], count)?;
        self.check_scales()?;
        let held = &mut self.sequences[sequence];
        let before = held.rows.len();
        held.rows.extend(&rows);
        let done = self.take(sequence, &plan, before);
        if done.is_err() {
            self.sequences[sequence].rows.truncate(before);
        }
        done
    }

    /// Microseconds on the card's clock of each of `times` runs of the kernels that encode the whole pages of these tokens, in f16
    /// on the card, as if they were a sequence's first (sinks aside). The sequences stay as they are.
    ///
    /// # Errors
    /// As [`append`](Self::append); [`Error::Full`] where there is no room for the pages; [`Error::Unsupported`] for less than a page
    /// and more than 128 MiB.
    pub fn time_append(&mut self, keys: &[f32], values: &[f32], times: usize) -> Result<Vec<f32>, Error> {
        let rows = self.incoming(0, [keys.into(), values.into()])?;
        self.check_scales()?;
        let held = Held { rows, kept: 0, ..Held::empty(&self.config) };
        let pages = held.rows.len() / self.paged.token_values() / self.config.page;
        let rows = &held.rows[..pages * self.config.page * self.paged.token_values()];
        if pages == 0 || pages > 1 && size_of_val(rows) > AT_ONCE {
            return refuse("time_append takes one page at least, and 128 MiB of rows at most");
        }
        let rows = Rows { rows, position: 0, front: &held.front };
        Ok(self.paged.time_encoding(&self.free(pages)?, rows, times)?)
    }

    /// The kernels search a trellis with one scale; pages of several are read like others.
    fn check_scales(&self) -> Result<(), Error> {
        let several = |spec| matches!(spec, CodecSpec::Trellis(trellis) if trellis.scales != 1);
        if several(self.config.keys) || several(self.config.values) {
            return refuse("on a card, `trellis` encodes with scales=1: append on the CPU, and upload");
        }
        Ok(())
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

    fn plan(&self, held: &Held, count: usize) -> Result<Plan, Error> {
        let (config, next, start) = (&self.config, held.next(), held.start());
        let &Held { kept, floor, ref positions, .. } = held;
        let (pages, position) = (positions.len(), &|index: usize| positions[index]);
        Ok(Standing { config, next, start, kept, floor, pages, position }.plan(count)?)
    }

    /// Takes the rows that a sequence has been given, the new ones from value `new` on.
    fn take(&mut self, number: usize, plan: &Plan, new: usize) -> Result<(), Error> {
        let (page, each) = (self.config.page, self.paged.token_values());
        let held = &self.sequences[number];
        let sinks = plan.next.min(self.layout.sinks);
        let start = held.start() + plan.closing * page;
        let mut sequence = Sequence {
            exact: sinks + plan.next.saturating_sub(start),
            sinks,
            next: plan.next as u64,
            window_start: start as u64,
            ..held.sequence.clone()
        };
        if plan.closing == 0 && plan.evicted == 0 {
            self.paged.extend(number, &sequence, &held.rows[new..])?;
            let held = &mut self.sequences[number];
            (held.sequence, held.floor) = (sequence, plan.floor);
            self.forget_rows(number, plan.kept);
            return Ok(());
        }
        let front = if plan.closing > 0 { self.decide(held)? } else { held.front.clone() };
        let places = self.free(plan.closing - plan.skipped)?;
        let first = held.start() + plan.skipped * page;
        let at = (sinks + first.saturating_sub(held.kept)) * each;
        let rows = &held.rows[at..at + places.len() * page * each];
        if let Some(refused) =
            self.paged.encode(&places, Rows { rows, position: first as u64, front: &front })?
        {
            return Err(self.page_error(refused, first).into());
        }
        sequence.pages.drain(..plan.evicted);
        sequence.pages.extend(&places);
        let (before, rest) = held.rows.split_at(sinks * each);
        let window = &rest[((start - held.kept) * each).min(rest.len())..];
        self.paged.set(number, &sequence, [before, window], &front)?;
        let held = &mut self.sequences[number];
        held.sequence.pages[..plan.evicted].iter().for_each(|page| self.owners[*page as usize] -= 1);
        places.iter().for_each(|page| self.owners[*page as usize] += 1);
        held.positions.drain(..plan.evicted);
        held.positions.extend((0..places.len()).map(|index| first + index * page));
        (held.sequence, held.front, held.floor) = (sequence, front, plan.floor);
        self.forget_rows(number, plan.kept);
        Ok(())
    }

    /// Forgets rows before position `kept` that no rollback brings back.
    fn forget_rows(&mut self, number: usize, kept: usize) {
        let each = self.paged.token_values();
        let held = &mut self.sequences[number];
        let sinks = held.sequence.sinks * each;
        held.rows.drain(sinks..sinks + (kept - held.kept) * each);
        held.kept = kept;
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
    fn decide(&self, held: &Held) -> Result<Vec<f32>, Error> {
        let (layout, dim, each) = (&self.layout, self.config.key_dim, self.paged.token_values());
        let mut front = held.front.clone();
        if held.start() > layout.sinks {
            return Ok(front);
        }
        let full = self.config.recent_window + layout.page;
        let mut keys = vec![0.0; full * dim];
        for (head, front) in front.chunks_exact_mut(2 * dim).enumerate() {
            let (balance, prefix) = front.split_at_mut(dim);
            for (token, key) in keys.chunks_exact_mut(dim).enumerate() {
                let at = (layout.sinks + held.start() - held.kept + token) * each + head * 2 * dim;
                for (x, half) in key.iter_mut().zip(&held.rows[at..at + dim]) {
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
    /// [`max_rollback`](LayerConfig::max_rollback) tokens behind the furthest position pages that closed meanwhile open again.
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
        let rows = exact_sinks + position.saturating_sub(held.kept);
        held.rows.truncate(rows * self.paged.token_values());
        held.sequence = Sequence {
            exact: exact_sinks + position.saturating_sub(start),
            sinks: exact_sinks,
            next: position as u64,
            window_start: start as u64,
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
