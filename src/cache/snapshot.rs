//! Snapshots: a layer as bytes. `docs/formats.md` defines every byte.
//!
//! Everything is little-endian. A CRC-32 follows each section: header, exact tokens, every page.
//!
//! ```text
//!  layer   "octalayr" version configuration state pages │ CRC │ exact tokens │ CRC │ page │ CRC │ page │ CRC │ …
//!
//!  exact tokens, for each head:
//!          sinks K │ sinks V │ ring K │ ring V │ balance │ prefix centre
//!                              from `kept` to `next`, so bytes do not depend on where the ring begins
//!
//!  cache   "octacach" version layers │ length │ layer 0 │ length │ layer 1 │ …
//!  page    "octapage" version fingerprint │ balances and prefix centres │ page │ CRC
//! ```
//!
//! Loading trusts no length, and checks everything before the cache changes.

use super::layout::{Head, Layout};
use super::storage::Storage;
use super::window::Plan;
use super::{Center, Layer, LayerConfig, MAX_POSITION, State, position};
use crate::codec::Codec;
use crate::page::{Balance, is_finite_f16};
use crate::{CodecSpec, Error};
use core::fmt::{self, Write};
use core::ops::Range;

#[cfg(feature = "alloc")]
mod heap;
#[cfg(feature = "alloc")]
pub(crate) use heap::check_snapshot_memory;
#[cfg(feature = "std")]
mod stream;

const LAYER: &[u8; 8] = b"octalayr";
/// Marks a layer whose codecs have no spec. No function loads it.
const OWN_CODECS: &[u8; 8] = b"octaown\0";
const PAGE: &[u8; 8] = b"octapage";
const VERSION: u32 = 3;

/// The error of a page whose balance or prefix centre differs from that of the cache.
pub(crate) const OTHER_BALANCE: &str =
    "the balance or the prefix centre of the page differs from this layer's";

/// Returns the error of a snapshot: the byte offset, and what is wrong there.
pub(crate) fn damaged<T>(at: usize, why: &'static str) -> Result<T, Error> {
    Err(Error::Snapshot { at, why })
}

/// Writes pieces by calling `write`, and computes the checksum of the section.
pub(crate) struct Writer<'a> {
    write: &'a mut dyn FnMut(&[u8]),
    crc: crc32fast::Hasher,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(write: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { write, crc: crc32fast::Hasher::new() }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        (self.write)(bytes);
        self.crc.update(bytes);
    }

    pub(crate) fn u32(&mut self, value: usize) {
        self.bytes(&(value as u32).to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: usize) {
        self.bytes(&(value as u64).to_le_bytes());
    }

    /// Ends a section: writes its checksum.
    pub(crate) fn checksum(&mut self) {
        let crc = core::mem::take(&mut self.crc).finalize();
        (self.write)(&crc.to_le_bytes());
    }
}

/// Reads untrusted bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    pub(crate) at: usize,
    /// Offset of the section's first byte.
    section: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, section: 0 }
    }

    /// Skips `count` bytes, and begins a section after them.
    #[cfg(feature = "alloc")]
    pub(crate) fn skip(&mut self, count: usize) -> Result<(), Error> {
        self.take(count)?;
        self.section = self.at;
        Ok(())
    }

    /// Returns the next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return damaged(self.at, "the bytes are cut off here") };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.take(N)?.first_chunk().copied().unwrap_or([0; N]))
    }

    pub(crate) fn u32(&mut self) -> Result<usize, Error> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    /// Reads a number that is at most [`MAX_POSITION`].
    pub(crate) fn u64(&mut self) -> Result<usize, Error> {
        let at = self.at;
        match usize::try_from(u64::from_le_bytes(self.array()?)) {
            Ok(value) if value <= MAX_POSITION => Ok(value),
            _ => damaged(at, "the number is too large for this machine"),
        }
    }

    /// Ends a section: reads its checksum and compares it with the bytes.
    pub(crate) fn checksum(&mut self) -> Result<(), Error> {
        let computed = crc32fast::hash(&self.bytes[self.section..self.at]);
        let at = self.at;
        if u32::from_le_bytes(self.array()?) != computed {
            return damaged(at, "the checksum does not match the bytes before it");
        }
        self.section = self.at;
        Ok(())
    }

    /// Reads a spec as text, after its length.
    pub(crate) fn spec(&mut self) -> Result<CodecSpec, Error> {
        let length = self.u32()?;
        let at = self.at;
        let text = self.take(length.min(4096))?;
        match core::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
            Some(spec) => Ok(spec),
            None => damaged(at, "this version does not know the codec"),
        }
    }
}

/// A buffer on the stack for the text of a spec.
struct Text {
    bytes: [u8; 256],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Writes a spec as text, after its length.
pub(crate) fn write_spec(writer: &mut Writer, spec: CodecSpec) {
    let mut text = Text { bytes: [0; 256], len: 0 };
    // This cannot fail: the longest spec has half as many characters.
    let _ = write!(text, "{spec}");
    writer.u32(text.len);
    writer.bytes(&text.bytes[..text.len]);
}

impl LayerConfig {
    fn write(&self, writer: &mut Writer) {
        writer.u32(self.layer as usize);
        for number in [self.kv_heads, self.key_dim, self.value_dim, self.page, self.sink_tokens] {
            writer.u32(number);
        }
        writer.u32(self.recent_window);
        writer.u32(self.max_rollback);
        writer.bytes(&[self.center as u8, u8::from(self.balance), 0, 0]);
        writer.u64(self.sliding_window.unwrap_or(0));
        writer.u64(self.capacity);
        write_spec(writer, self.keys);
        write_spec(writer, self.values);
    }

    fn read(reader: &mut Reader) -> Result<Self, Error> {
        let layer = reader.u32()? as u32;
        let [kv_heads, key_dim, value_dim, page] =
            [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
        let [sink_tokens, recent_window, max_rollback] = [reader.u32()?, reader.u32()?, reader.u32()?];
        let at = reader.at;
        let (center, balance) = match reader.array()? {
            [center @ 0..3, balance @ 0..2, 0, 0] => {
                ([Center::Off, Center::Prefix, Center::Page][usize::from(center)], balance == 1)
            }
            _ => return damaged(at, "the centre or the balance is of an unknown kind"),
        };
        let sliding_window = Some(reader.u64()?).filter(|window| *window > 0);
        let capacity = reader.u64()?;
        let (keys, values) = (reader.spec()?, reader.spec()?);
        let config = Self {
            layer,
            kv_heads,
            query_heads: None,
            key_dim,
            value_dim,
            keys,
            values,
            page,
            sink_tokens,
            recent_window,
            center,
            balance,
            sliding_window,
            max_rollback,
            capacity,
        };
        config.check()?;
        Ok(config)
    }
}

impl State {
    fn write(&self, writer: &mut Writer) {
        for number in [self.next, self.start, self.kept, self.place, self.floor, self.evicted, self.decoded] {
            writer.u64(number);
        }
        writer.u32(usize::from(self.calibrated));
    }

    /// Reads a state, and checks that a layer of this configuration can be in it.
    fn read(reader: &mut Reader, layout: &Layout, config: &LayerConfig) -> Result<Self, Error> {
        let at = reader.at;
        let [next, start, kept, place] = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
        let [floor, evicted, decoded] = [reader.u64()?, reader.u64()?, reader.u64()?];
        let calibrated = reader.u32()?;
        let state = Self { next, start, kept, place, floor, evicted, decoded, calibrated: calibrated == 1 };
        let places =
            state.in_ring() <= layout.ring && place < layout.ring && place.is_multiple_of(layout.page);
        let begins = kept >= layout.sinks && kept <= next.max(layout.sinks);
        let follows = start == kept.saturating_add(config.closed(kept, next).saturating_mul(layout.page));
        if !places
            || !begins
            || !follows
            || floor > start
            || calibrated > usize::from(!layout.balance.is_none())
        {
            return damaged(at, "no layer of this configuration can be in this state");
        }
        Ok(state)
    }
}

/// Calls `piece` with each piece of the front that a snapshot stores, in order, and with what it may contain.
///
/// The rows of the ring come in the order of their positions, so that bytes do not depend on where the ring begins:
///
/// ```text
///  ring       │ second piece │ free │ first piece │
///             0                     place         ring
///  snapshot   │ first piece │ second piece │
/// ```
fn front_pieces(layout: &Layout, state: &State, mut piece: impl FnMut(Range<usize>, Piece)) {
    let sinks = state.next.min(layout.sinks);
    let window = state.in_ring();
    let first = window.min(layout.ring - state.place);
    let balance = Piece::Balance(layout.balance);
    for head in 0..layout.heads {
        piece(layout.sink_keys(head, 0, sinks), Piece::Floats);
        piece(layout.sink_values(head, 0, sinks), Piece::Floats);
        piece(layout.window_keys(head, state.place, first), Piece::Floats);
        piece(layout.window_keys(head, 0, window - first), Piece::Floats);
        piece(layout.window_values(head, state.place, first), Piece::Floats);
        piece(layout.window_values(head, 0, window - first), Piece::Floats);
        let closed = state.has_closed(layout);
        piece(layout.balance(head), if closed || state.calibrated { balance } else { Piece::Undecided });
        piece(layout.prefix(head), if closed { Piece::Floats } else { Piece::Undecided });
    }
}

/// Says what a piece of the front may contain.
#[derive(Clone, Copy)]
pub(crate) enum Piece {
    /// Finite f16 values.
    Floats,
    /// A head's balance.
    Balance(Balance),
    /// Zeros, because it is not decided yet.
    Undecided,
}

impl Piece {
    /// Returns whether the bytes are valid for this piece.
    pub(crate) fn is_sound(self, bytes: &[u8]) -> bool {
        match self {
            Self::Floats => is_finite_f16(bytes),
            Self::Balance(balance) => balance.is_sound(bytes),
            Self::Undecided => bytes.iter().all(|byte| *byte == 0),
        }
    }
}

impl<K: Codec, V: Codec, S: Storage> Layer<K, V, S> {
    /// Writes a snapshot by calling `write` with its pieces, in order.
    ///
    /// Snapshots of layers with your own codecs cannot be loaded, because they do not identify the codec.
    ///
    /// ```
    /// use octaplex::{Backend, Error, LayerConfig, cache::SharedLayer};
    ///
    /// let config = LayerConfig::new(1, 64, 1000);
    /// let mut layer = SharedLayer::on_heap(&config, Backend::detect())?;
    /// layer.append(&[0.5; 64], &[0.25; 64], &mut vec![0.0; config.scratch_len(1)])?;
    /// let mut snapshot = Vec::new();
    /// layer.save(&mut |piece| snapshot.extend_from_slice(piece));
    /// let mut other = SharedLayer::on_heap(&config, Backend::detect())?;
    /// other.load(&snapshot)?;
    /// assert_eq!(other.tokens(), 1);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn save(&self, write: &mut dyn FnMut(&[u8])) {
        let mut writer = Writer::new(write);
        writer.bytes(if self.own_codecs { OWN_CODECS } else { LAYER });
        writer.u32(VERSION as usize);
        self.config.write(&mut writer);
        self.state.write(&mut writer);
        writer.u64(self.store.pages());
        writer.checksum();
        front_pieces(&self.layout, &self.state, |piece, _| writer.bytes(&self.store.front()[piece]));
        writer.checksum();
        for index in 0..self.store.pages() {
            let page = self.store.page(index);
            writer.bytes(&page[..self.layout.page_length(page)]);
            writer.checksum();
        }
    }

    /// Loads a snapshot of a layer with the same configuration, in place of the present tokens.
    ///
    /// The capacity may differ. A snapshot does not contain the number of query heads, so this layer keeps its own.
    /// [`save`](Self::save) has an example.
    ///
    /// # Errors
    /// * [`Error::Snapshot`] for bytes that are damaged, cut off, or no snapshot of such a layer.
    /// * [`Error::Width`], [`Error::Capacity`] and [`Error::Unsupported`] if the header has an impossible
    ///   configuration. It is checked before the checksum, so damaged bytes can return these too.
    /// * [`Error::Full`] if the tokens do not fit the capacity.
    /// * [`Error::Unsupported`] if this layer has your own codecs.
    ///
    /// The layer is then as it was.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.read(bytes, false)?;
        self.clear();
        self.read(bytes, true)
    }

    /// Checks that the configuration names the codecs.
    pub(crate) fn check_codecs(&self) -> Result<(), Error> {
        if self.own_codecs {
            return Err(Error::Unsupported {
                why: "a layer with your own codecs loads no snapshots and sends no pages, because the codecs have no specs",
            });
        }
        Ok(())
    }

    /// Checks a snapshot. With `apply`, it also copies the snapshot's tokens into an empty layer.
    fn read(&mut self, bytes: &[u8], apply: bool) -> Result<(), Error> {
        self.check_codecs()?;
        let layout = self.layout;
        let mut reader = Reader::new(bytes);
        let config = read_header(&mut reader)?;
        let LayerConfig { capacity, query_heads, .. } = self.config;
        if (LayerConfig { capacity, query_heads, ..config }) != self.config {
            return damaged(12, "the snapshot is of a layer with another configuration");
        }
        let state = State::read(&mut reader, &layout, &self.config)?;
        let pages = reader.u64()?;
        reader.checksum()?;
        let exact = state.next.min(layout.sinks) + state.window();
        let tokens = pages.saturating_mul(layout.page).saturating_add(exact);
        if tokens > self.config.capacity || pages > layout.most_pages(&self.config) {
            return Err(Error::Full { capacity: self.config.capacity, needed: tokens });
        }
        let mut found = Ok(());
        front_pieces(&layout, &state, |piece, kind| {
            if found.is_ok() {
                found = self.read_piece(&mut reader, piece, kind, apply);
            }
        });
        found?;
        reader.checksum()?;
        let mut end = layout.sinks;
        for index in 0..pages {
            let at = reader.at;
            let page = read_page(&mut reader, &layout)?;
            reader.checksum()?;
            if position(page) < end || position(page) + layout.page > state.start {
                return damaged(at, "the page is out of order");
            }
            end = position(page) + layout.page;
            if apply {
                let (_, draft) = self.store.front_and_draft(index);
                draft[..page.len()].copy_from_slice(page);
            }
        }
        if reader.at != bytes.len() {
            return damaged(reader.at, "more bytes behind the end");
        }
        if apply {
            self.store.commit(pages);
            self.state = state;
            return Ok(());
        }
        // Before the layer changes.
        self.store.reserve(pages)
    }

    /// Checks a piece of the front. With `apply`, it also copies the piece.
    fn read_piece(
        &mut self,
        reader: &mut Reader,
        piece: Range<usize>,
        kind: Piece,
        apply: bool,
    ) -> Result<(), Error> {
        let at = reader.at;
        let bytes = reader.take(piece.len())?;
        if !kind.is_sound(bytes) {
            return damaged(at, "a value is not finite, or a balance is invalid");
        }
        if apply {
            self.store.front_mut()[piece].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Returns a checksum of the part of the configuration that the bytes of pages depend on: codecs and shape.
    fn fingerprint(&self) -> u32 {
        let mut ignore = |_: &[u8]| {};
        let mut writer = Writer::new(&mut ignore);
        let shape =
            LayerConfig { sink_tokens: 0, recent_window: 0, max_rollback: 0, capacity: 0, ..self.config };
        LayerConfig { sliding_window: None, ..shape }.write(&mut writer);
        writer.crc.finalize()
    }

    /// Writes one page by calling `write` with its pieces, for another cache.
    ///
    /// The other cache must have the same configuration. Only sinks, windows, rollback and capacity may differ. The
    /// bytes include the balance and the prefix centre of the page. There are `stats().paged_tokens / page` pages.
    ///
    /// # Errors
    /// * [`Error::Missing`] for a page that is out of range.
    /// * [`Error::Unsupported`] if this layer has your own codecs.
    pub fn save_page(&self, index: usize, write: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        self.check_codecs()?;
        if index >= self.store.pages() {
            return Err(Error::Missing { what: "page", number: index, count: self.store.pages() });
        }
        let page = self.store.page(index);
        let mut writer = Writer::new(write);
        writer.bytes(PAGE);
        writer.u32(VERSION as usize);
        writer.u32(self.fingerprint() as usize);
        for (piece, _) in self.layout.decided_pieces().flatten() {
            writer.bytes(&self.store.front()[piece]);
        }
        writer.bytes(&page[..self.layout.page_length(page)]);
        writer.checksum();
        Ok(())
    }

    /// Adds a page from [`save_page`](Self::save_page) after the other pages.
    ///
    /// The window must be empty, and the page must not begin before the window's position. The next token follows the
    /// page. A layer without closed pages takes over the page's balance and prefix centre. Any other layer must have
    /// the same ones, and so must a layer with a calibrated balance.
    ///
    /// A rollback into the page decodes it. Pages that a sliding window no longer shows are dropped, as in an append.
    ///
    /// # Errors
    /// * [`Error::Snapshot`] for damaged bytes, and for a page that does not fit this layer or its tokens.
    /// * [`Error::Full`] if the page does not fit the capacity.
    /// * [`Error::Unsupported`] if this layer has your own codecs.
    ///
    /// The layer is then as it was.
    pub fn load_page(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.check_codecs()?;
        let layout = self.layout;
        let mut reader = Reader::new(bytes);
        if reader.array()? != *PAGE || reader.u32()? != VERSION as usize {
            return damaged(0, "this is no page, or a page of another version");
        }
        if reader.u32()? != self.fingerprint() as usize {
            return damaged(12, "the page is of a layer with another configuration");
        }
        let front = reader.at;
        self.check_decided(&mut reader)?;
        let page = read_page(&mut reader, &layout)?;
        reader.checksum()?;
        if reader.at != bytes.len() {
            return damaged(reader.at, "more bytes behind the end");
        }
        if position(page) < self.state.start {
            return damaged(front, "the page does not follow this layer's tokens");
        }
        let plan = self.check_follows(front, position(page), 1)?;
        reader.at = front;
        self.adopt(&mut reader, [page].into_iter(), &plan)
    }

    /// Reads each head's balance and prefix centre, and checks that this layer has the same or has not decided.
    pub(crate) fn check_decided(&self, reader: &mut Reader) -> Result<(), Error> {
        let (balanced, closed) = (self.is_balanced(), self.state.has_closed(&self.layout));
        for [(balance, kind), (prefix, floats)] in self.layout.decided_pieces() {
            for (piece, kind, decided) in [(balance, kind, balanced), (prefix, floats, closed)] {
                let (at, bytes) = (reader.at, reader.take(piece.len())?);
                if !kind.is_sound(bytes) || decided && bytes != &self.store.front()[piece] {
                    return damaged(at, OTHER_BALANCE);
                }
            }
        }
        Ok(())
    }

    /// Plans to add `pages` pages, the first of them at position `start`. The window must be empty.
    pub(crate) fn check_follows(&self, at: usize, start: usize, pages: usize) -> Result<Plan, Error> {
        if self.state.next != self.state.start {
            return damaged(at, "the page does not follow this layer's tokens");
        }
        self.standing(|standing| standing.plan_pages(start, pages))
    }

    /// Adds checked pages, and the balance and the prefix centre that they were encoded with.
    ///
    /// Pages get the positions that the plan gives them, whatever positions their bytes contain.
    pub(crate) fn adopt<'a>(
        &mut self,
        decided: &mut Reader,
        pages: impl Iterator<Item = &'a [u8]>,
        plan: &Plan,
    ) -> Result<(), Error> {
        self.store.reserve(plan.closing - plan.skipped)?;
        for (piece, _) in self.layout.decided_pieces().flatten() {
            let bytes = decided.take(piece.len())?;
            self.store.front_mut()[piece].copy_from_slice(bytes);
        }
        self.store.remove(0..plan.evicted);
        let start = plan.next - plan.count;
        for (draft, page) in pages.skip(plan.skipped).enumerate() {
            let position = start + (plan.skipped + draft) * self.layout.page;
            let (_, draft) = self.store.front_and_draft(draft);
            draft[..page.len()].copy_from_slice(page);
            draft[..8].copy_from_slice(&(position as u64).to_le_bytes());
        }
        self.store.commit(plan.closing - plan.skipped);
        self.state = self.state.adopted(plan, &self.layout);
        Ok(())
    }
}

impl Layout {
    /// Returns the range of each head's balance and of its prefix centre, and what they may contain.
    pub(crate) fn decided_pieces(self) -> impl Iterator<Item = [(Range<usize>, Piece); 2]> {
        let balance = Piece::Balance(self.balance);
        (0..self.heads).map(move |head| [(self.balance(head), balance), (self.prefix(head), Piece::Floats)])
    }
}

/// Reads the magic, the version and the configuration.
fn read_header(reader: &mut Reader) -> Result<LayerConfig, Error> {
    if reader.array()? != *LAYER {
        return damaged(0, "this is no snapshot of a layer");
    }
    if reader.u32()? != VERSION as usize {
        return damaged(8, "the snapshot is of another version");
    }
    LayerConfig::read(reader)
}

/// Reads the first section: the configuration, the state, and the number of pages.
#[cfg(feature = "std")]
fn read_outline(reader: &mut Reader) -> Result<(LayerConfig, State, usize), Error> {
    let config = read_header(reader)?;
    let state = State::read(reader, &Layout::new(&config), &config)?;
    let pages = reader.u64()?;
    reader.checksum()?;
    Ok((config, state, pages))
}

/// Reads a page, and checks its position, lengths, centres and norms.
pub(crate) fn read_page<'a>(reader: &mut Reader<'a>, layout: &Layout) -> Result<&'a [u8], Error> {
    let at = reader.at;
    let head = reader.take(layout.header)?;
    let length = layout.page_length(head);
    reader.at = at;
    let page = reader.take(length)?;
    let position = u64::from_le_bytes(page.first_chunk().copied().unwrap_or_default());
    // A page ends at or before the largest position.
    if position > (MAX_POSITION - layout.page) as u64 || !layout.is_sound(page) {
        return damaged(at, "the lengths of the page do not add up");
    }
    for head in 0..layout.heads {
        let Head { keys, values } = layout.head(page, head);
        if !layout.keys.is_sound(&keys) || !layout.values.is_sound(&values) {
            return damaged(at, "a centre or a norm is not finite");
        }
    }
    Ok(page)
}
