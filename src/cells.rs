//! Pages of cells, which are written at any index and in any order. For engines that place tokens
//! themselves.
//!
//! [`KvCache`](crate::KvCache) knows tokens by their position and appends them. Engines such as
//! llama.cpp have *cells* instead. A token takes any free cell, and the engine frees and rewrites
//! cells without notice. A mask says which query sees which cell.
//!
//! ```text
//! page     64 consecutive cells of all heads, no matter whose tokens they hold
//! empty    nothing was written
//! open     f16 rows, [head][cell][width]: recently written
//! closed   coded, as in the pages of a cache (page.rs); reopened when one of its cells is written
//! exact    f16 rows of a sequence's first cells, stored with their closed page: they get most of the attention
//! ```
//!
//! The first cells of a stream are exact. Where several sequences share a stream,
//! [`CellPages::observe`] finds the first cells of the others: a mask shows them.
//!
//! [`CellPages::settle`] closes pages, those with the oldest last write first. Call it after the
//! attention of the batch that filled them, so that a batch sees its own tokens exactly. Which
//! pages are coded thus depends on how tokens are batched. The bytes of a coded page do not.

mod attend;
mod close;
mod first;
mod page;

pub use crate::page::PAGE;
pub use attend::{CellAttend, CellMask, Partial};

use crate::backend::Kernels;
use crate::codecs::AnyCodec;
use crate::random::{HeadId, Role};
use crate::spec::builders;
use crate::{Backend, CodecSpec, Error};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use close::Basis;
use core::ops::Range;
#[cfg(feature = "gpu")]
pub(crate) use first::shown_rows;
use half::f16;
use page::{Body, Page};

/// Runs tasks 0..n in any order and on any threads, and returns when all have run.
pub type Tasks<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// Runs tasks one after the other on the caller's thread. The simplest [`Tasks`].
pub fn in_order(count: usize, task: &(dyn Fn(usize) + Sync)) {
    (0..count).for_each(task);
}

/// Configures [`CellPages`]: the keys, or the values, of one layer.
///
/// Start with [`new`](Self::new). Then set fields directly, or use the builder method of the same
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CellConfig {
    /// Keys or values.
    pub role: Role,
    /// The number of the layer, from 0. Each layer has its own rotation.
    pub layer: u32,
    /// The number of key/value heads.
    pub heads: usize,
    /// Width of a row of one head.
    pub dim: usize,
    /// Cells in a stream, a multiple of 64.
    pub cells: usize,
    /// The number of streams. They follow each other: cell `c` of stream `s` has the number `s *
    /// cells + c`.
    pub streams: usize,
    /// The codec of closed pages. With `f16`, pages never close.
    pub codec: CodecSpec,
    /// First cells of each stream and of each sequence that stay exact, at most 64.
    pub sinks: usize,
    /// Pages that stay open, at least 1. One more than there are streams keeps the newest 64 to 127
    /// tokens of each stream exact.
    pub open_pages: usize,
    /// Whether keys are divided, and queries multiplied, by a balance: one factor for each channel,
    /// so that the errors of all channels count alike.
    pub balance: bool,
}

impl CellConfig {
    /// Creates the default configuration: one stream, 4 sinks, 2 open pages, balanced keys, and the codec that
    /// [`LayerConfig::new`](crate::LayerConfig::new) takes.
    #[must_use]
    pub const fn new(role: Role, heads: usize, dim: usize, cells: usize) -> Self {
        let (keys, values) = crate::cache::recommended(dim);
        let codec = match role {
            Role::Keys => keys,
            Role::Values => values,
        };
        Self { role, layer: 0, heads, dim, cells, streams: 1, codec, sinks: 4, open_pages: 2, balance: true }
    }

    builders! {
        role: Role;
        layer: u32;
        heads: usize;
        dim: usize;
        cells: usize;
        streams: usize;
        codec: CodecSpec;
        sinks: usize;
        open_pages: usize;
        balance: bool;
    }

    /// Returns the number of values in a row of all heads.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.heads.saturating_mul(self.dim)
    }

    /// Returns the bytes of a closed page without its exact rows. With a width that
    /// [`CellPages::new`] refuses it is `usize::MAX`.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        if !crate::codebook::WIDTHS.contains(&self.dim) {
            return usize::MAX;
        }
        self.heads.saturating_mul(Basis::bytes_of_head(self))
    }

    /// Returns the bytes of a full cache: all pages closed except those that stay open.
    #[must_use]
    pub fn required_bytes(&self) -> usize {
        let (pages, width) = (self.streams.saturating_mul(self.cells / PAGE), self.width());
        let row = width.saturating_mul(2);
        if matches!(self.codec, CodecSpec::F16(_)) {
            return row.saturating_mul(PAGE).saturating_mul(pages);
        }
        let open = self.open_pages.min(pages);
        let sinks = self.streams.saturating_mul(self.sinks).saturating_add(self.shown_rows());
        let exact = open.saturating_mul(PAGE).saturating_add(sinks);
        (pages - open).saturating_mul(self.page_bytes()).saturating_add(row.saturating_mul(exact))
    }

    /// Checks that all numbers are in range.
    fn check(&self) -> Result<(), Error> {
        let refuse = |why| Err(Error::Unsupported { why });
        if !crate::codebook::WIDTHS.contains(&self.dim) {
            return Err(Error::Width { actual: self.dim });
        }
        if self.heads == 0 || self.heads > 1 << 16 {
            return refuse("a layer has 1 to 65,536 key/value heads");
        }
        if self.cells == 0 || !self.cells.is_multiple_of(PAGE) || self.cells as u64 > 1 << 32 {
            return refuse("a stream has 64 to 2^32 cells, a multiple of 64");
        }
        if self.streams == 0 || self.streams > 1 << 16 {
            return refuse("a cache has 1 to 65,536 streams");
        }
        if self.cells.checked_mul(self.streams).is_none() {
            return refuse("the cells of all streams are more than this machine can number");
        }
        if self.sinks > PAGE || self.open_pages == 0 {
            return refuse("at most 64 sinks, and at least 1 open page");
        }
        if u32::try_from(self.page_bytes()).map_or(true, |bytes| bytes == u32::MAX) {
            return refuse(
                "the heads of a page have less than 4 GiB together: use fewer heads or another codec",
            );
        }
        Ok(())
    }
}

/// The keys, or the values, of one layer in cells, which are written in any order.
///
/// ```
/// use octaplex::cells::{CellAttend, CellConfig, CellPages, Partial, in_order};
/// use octaplex::codecs::Role;
/// use octaplex::{Backend, Error};
///
/// let config = |role| CellConfig::new(role, 1, 64, 256);
/// let mut keys = CellPages::new(&config(Role::Keys), Backend::detect())?;
/// let mut values = CellPages::new(&config(Role::Values), Backend::detect())?;
/// let rows = [0.5; 3 * 64];
/// keys.set_rows(&[7, 100, 3], &rows)?; // cells in any order
/// values.set_rows(&[7, 100, 3], &rows)?;
///
/// let mut mask = [octaplex::f16::NEG_INFINITY; 256]; // a query that sees cells 3 and 7
/// (mask[3], mask[7]) = (octaplex::f16::ZERO, octaplex::f16::ZERO);
/// let options = CellAttend::new(0, 256).mask(&mask, 256);
/// let (mut part, mut output) = (Partial::default(), [0.0; 64]);
/// options.attend(&keys, &values, 0, &[0.1; 64], 0..4, &mut part)?;
/// Partial::merge(&[part], &values, &[], &mut output)?;
/// assert!((output[0] - 0.5).abs() < 1e-6);
///
/// keys.observe(&options)?; // what the query sees are the first cells of a sequence: they stay exact
/// values.observe(&options)?;
/// keys.settle(&[], &in_order)?; // closes pages beyond those that stay open
/// values.settle(&[], &in_order)?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CellPages {
    config: CellConfig,
    backend: Kernels,
    codec: AnyCodec,
    pages: Vec<Page>,
    /// Indices of open pages that may close, by last write, with the newest at the end.
    open: Vec<usize>,
    /// Indices of closed pages with exact rows because a mask showed them. Those that a query saw
    /// last are at the end.
    shown: Vec<usize>,
    basis: Basis,
    counts: CellCounts,
}

/// Counts what happened to the pages of a [`CellPages`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellCounts {
    /// Times that a page closed.
    pub closed: usize,
    /// Times that a closed page was reopened by a write.
    pub reopened: usize,
    /// Times that a page could not close, because its codec could not hold a row. It stays exact.
    pub refused: usize,
}

impl CellPages {
    /// Creates cells without rows.
    ///
    /// # Errors
    /// [`Error::Width`]; [`Error::Unsupported`]; [`Error::Memory`]; errors of the codec's constructor.
    pub fn new(config: &CellConfig, backend: Backend) -> Result<Self, Error> {
        config.check()?;
        let head = HeadId { layer: config.layer, head: 0, role: config.role };
        let codec = AnyCodec::build(config.codec, config.dim, backend, head)?;
        let (mut pages, count) = (Vec::new(), config.streams * (config.cells / PAGE));
        page::reserve(&mut pages, "pages of cells", count)?;
        pages.resize(count, Page::default());
        Ok(Self {
            config: *config,
            backend: backend.kernels(),
            basis: Basis::new(config),
            codec,
            pages,
            open: Vec::new(),
            shown: Vec::new(),
            counts: CellCounts::default(),
        })
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &CellConfig {
        &self.config
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn counts(&self) -> CellCounts {
        self.counts
    }

    /// Returns whether no row was written since the beginning or the last [`clear`](Self::clear).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.iter().all(|page| page.written == 0)
    }

    /// Returns the number of open pages that may close.
    #[must_use]
    pub fn open_pages(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of cells of all streams.
    #[must_use]
    pub const fn cells(&self) -> usize {
        self.config.cells * self.config.streams
    }

    /// Returns whether all rows stay in f16.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        matches!(self.config.codec, CodecSpec::F16(_))
    }

    /// Returns the bytes of all rows. A page that several indices share is counted each time.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let kept = |page: &Page| page.centres.as_ref().map_or(0, |centres| centres.len());
        let pages = self.pages.iter().map(|page| page.body.bytes().0 + kept(page)).sum::<usize>();
        pages + self.basis.bytes()
    }

    /// Writes rows, \[cells]\[heads]\[width], rounded to f16. If a cell is listed twice, the last
    /// row counts.
    ///
    /// # Errors
    /// [`Error::Missing`] for a cell out of range; [`Error::Length`]; [`Error::Memory`];
    /// [`Error::Corrupt`] if a closed page cannot be read. Nothing is written then.
    pub fn set_rows(&mut self, cells: &[usize], rows: &[f32]) -> Result<(), Error> {
        let (width, dim, backend) = (self.config.width(), self.config.dim, self.backend);
        self.check(cells.iter().copied(), cells.len(), rows.len())?;
        cells.iter().try_for_each(|cell| self.open(cell / PAGE))?;
        for (cell, row) in cells.iter().zip(rows.chunks_exact(width)) {
            self.write(*cell, |rows, cell| page::write_row(backend, rows, dim, cell, row));
        }
        Ok(())
    }

    /// Writes rows of consecutive cells, \[cells]\[heads]\[width], bit-exact: those that
    /// [`read_rows`](Self::read_rows) returned.
    ///
    /// # Errors
    /// As [`set_rows`](Self::set_rows).
    pub fn write_rows(&mut self, first: usize, rows: &[f16]) -> Result<(), Error> {
        let (width, dim, backend) = (self.config.width(), self.config.dim, self.backend);
        let cells = self.range(first, rows.len() / width)?;
        Error::expect_length("values of rows", cells.len() * width, rows.len())?;
        cells.clone().try_for_each(|cell| self.open(cell / PAGE))?;
        let mut bytes = Vec::with_capacity(2 * width);
        for (cell, row) in cells.zip(rows.chunks_exact(width)) {
            bytes.clear();
            row.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
            self.write(cell, |rows, cell| page::copy_row(backend, rows, dim, cell, &bytes));
            self.pages[cell / PAGE].restored |= 1 << (cell % PAGE);
        }
        Ok(())
    }

    /// Reads rows, \[cells]\[heads]\[width]. Rows of closed pages are decoded. Cells that were
    /// never written give zeros.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Length`], [`Error::Corrupt`].
    pub fn read_rows(&self, cells: Range<usize>, rows: &mut [f16]) -> Result<(), Error> {
        let (width, dim) = (self.config.width(), self.config.dim);
        self.check(cells.clone().last().into_iter(), cells.len(), rows.len())?;
        rows.fill(f16::ZERO);
        let mut row = vec![0; 2 * width];
        let mut of_page = (usize::MAX, None);
        for (cell, out) in cells.zip(rows.chunks_exact_mut(width)) {
            let (index, in_page) = (cell / PAGE, cell % PAGE);
            if self.pages[index].written >> in_page & 1 == 0 {
                continue;
            }
            if of_page.0 != index {
                of_page = (index, self.rows_of(index)?);
            }
            let Some(rows) = &of_page.1 else { continue };
            page::read_row(rows, dim, in_page, &mut row);
            for (x, b) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *x = f16::from_le_bytes(*b);
            }
        }
        Ok(())
    }

    /// Copies cells to other cells, which must not overlap them.
    ///
    /// Whole pages are shared until one of the two is written. From other pages, only cells that
    /// were written are copied. Copies of exact cells are exact.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Unsupported`] for ranges that overlap: nothing is copied then.
    /// [`Error::Memory`] and [`Error::Corrupt`]: some cells may be copied then.
    pub fn copy_cells(&mut self, from: Range<usize>, to: usize) -> Result<(), Error> {
        let (count, width) = (from.len(), self.config.width());
        if count == 0 || from.start == to {
            return Ok(());
        }
        let target = self.range(to, count)?;
        self.range(from.start, count)?;
        if from.start < target.end && to < from.end {
            return Err(Error::Unsupported { why: "cells are copied to cells that do not overlap them" });
        }
        let mut done = 0;
        while done < count {
            let (source, target) = (from.start + done, to + done);
            let len = (PAGE - source % PAGE).min(PAGE - target % PAGE).min(count - done);
            let exact = self.exact_of(source / PAGE);
            if len == PAGE {
                self.share(source / PAGE, target / PAGE);
            } else {
                let mut rows = vec![f16::ZERO; len * width];
                let written = self.pages[source / PAGE].written;
                self.read_rows(source..source + len, &mut rows)?;
                for (n, row) in rows.chunks_exact(width).enumerate() {
                    let bit = (source + n) % PAGE;
                    if written >> bit & 1 == 1 {
                        self.write_rows(target + n, row)?;
                        if exact >> bit & 1 == 1 {
                            self.mark(target + n);
                        }
                    }
                }
            }
            done += len;
        }
        self.limit_shown(&in_order);
        Ok(())
    }

    /// Makes a page share the rows of another.
    fn share(&mut self, source: usize, target: usize) {
        let first = self.exact_of(source) & !self.fixed(target);
        let page = Page { centres: None, first, ..self.pages[source].clone() };
        self.forget(target);
        self.shown.retain(|shown| *shown != target);
        match page.body {
            Body::Open(_) if !self.is_exact() => self.open.push(target),
            Body::Closed(_) if first != 0 => self.shown.push(target),
            _ => {}
        }
        self.pages[target] = page;
    }

    /// Changes written rows page by page, for example to shift their positions.
    ///
    /// `map` receives the number of the first cell, and rows from there on,
    /// \[cells]\[heads]\[width]. A page that was closed closes again, around a new centre. Exact cells
    /// stay exact.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Memory`] and [`Error::Corrupt`]: some pages may be mapped then.
    pub fn map_rows(
        &mut self,
        cells: Range<usize>,
        map: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), Error> {
        self.check(cells.clone().last().into_iter(), 0, 0)?;
        let (width, dim, backend) = (self.config.width(), self.config.dim, self.backend);
        let mut first = cells.start;
        while first < cells.end {
            let last = (first / PAGE * PAGE + PAGE).min(cells.end);
            let (index, len) = (first / PAGE, last - first);
            let written = self.pages[index].written;
            // If no cell of the range was written, the page stays as it is.
            if (first..last).any(|cell| written >> (cell % PAGE) & 1 == 1) {
                let closed = matches!(self.pages[index].body, Body::Closed(_));
                let mut halves = vec![f16::ZERO; len * width];
                self.read_rows(first..last, &mut halves)?;
                let mut rows: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
                self.open(index)?;
                map(first, &mut rows);
                let page = &self.pages[index];
                let (shown, restored) = (page.first, page.restored);
                for (cell, row) in (first..last).zip(rows.chunks_exact(width)) {
                    if written >> (cell % PAGE) & 1 == 1 {
                        self.write(cell, |rows, cell| page::write_row(backend, rows, dim, cell, row));
                    }
                }
                let page = &mut self.pages[index];
                (page.first, page.restored, page.centres) = (shown, restored, None);
                if closed {
                    self.close(&[index], &[], &in_order);
                }
            }
            first = last;
        }
        Ok(())
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.pages.fill(Page::default());
        self.open.clear();
        self.shown.clear();
        self.basis.clear();
    }

    /// Closes open pages beyond [`open_pages`](CellConfig::open_pages), those with the oldest last
    /// write first.
    ///
    /// `queries`, \[heads]\[rows]\[width], are samples of the queries that keys will meet, for
    /// example those of this batch. When the first pages close, they decide the balance of keys.
    /// Without queries the keys decide alone. The first pages close only when the open pages have 48
    /// rows more than there are open pages: a page of n keys has n - 1 independent deviations from its
    /// mean. Values ignore `queries`. `tasks` runs the encoding of several heads at once.
    ///
    /// # Errors
    /// [`Error::Rows`] if the queries are not whole rows of all heads.
    pub fn settle(&mut self, queries: &[f32], tasks: &Tasks) -> Result<(), Error> {
        let width = self.config.width();
        if !queries.len().is_multiple_of(width) {
            let (heads, actual) = (self.config.heads, queries.len());
            return Err(Error::Rows { what: "queries", heads, width: self.config.dim, each: None, actual });
        }
        let over = self.open.len().saturating_sub(self.config.open_pages);
        if self.is_exact() || over == 0 || !self.can_decide() {
            return Ok(());
        }
        let pages: Vec<usize> = self.open[..over].to_vec();
        self.close(&pages, queries, tasks);
        Ok(())
    }

    /// Returns whether the next [`settle`](Self::settle) closes pages.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        !self.is_exact() && self.open.len() > self.config.open_pages && self.can_decide()
    }

    /// Returns whether the next page that closes decides the balance of keys, and so has a use for
    /// queries.
    #[must_use]
    pub fn wants_queries(&self) -> bool {
        !self.is_exact() && self.basis.is_undecided()
    }

    /// Checks that all cells exist, and that `rows` rows have `values` values.
    fn check(&self, mut cells: impl Iterator<Item = usize>, rows: usize, values: usize) -> Result<(), Error> {
        Error::expect_length("values of rows", rows.saturating_mul(self.config.width()), values)?;
        match cells.find(|cell| *cell >= self.cells()) {
            Some(number) => Err(Error::Missing { what: "cell", number, count: self.cells() }),
            None => Ok(()),
        }
    }

    /// Checks that `count` cells from `first` on exist, and returns their range.
    fn range(&self, first: usize, count: usize) -> Result<Range<usize>, Error> {
        let end = first.checked_add(count).filter(|end| *end <= self.cells());
        let missing = || {
            let number = first.saturating_add(count.saturating_sub(1));
            Error::Missing { what: "cell", number, count: self.cells() }
        };
        end.map(|end| first..end).ok_or_else(missing)
    }

    /// Takes a page off the list of open ones.
    fn forget(&mut self, index: usize) {
        self.open.retain(|open| *open != index);
    }

    /// Opens a page for [`write`](Self::write), and makes it the newest.
    fn open(&mut self, index: usize) -> Result<(), Error> {
        match &mut self.pages[index].body {
            Body::Closed(_) => {
                self.reopen(index)?;
                self.counts.reopened += 1;
            }
            body @ Body::Empty => *body = Body::Open(Arc::new(page::zeros(self.config.width())?)),
            Body::Open(rows) => {
                if Arc::get_mut(rows).is_none() {
                    *rows = Arc::new(page::copy(rows)?);
                }
            }
        }
        if self.open.last() != Some(&index) && !self.is_exact() {
            self.forget(index);
            self.open.push(index);
        }
        Ok(())
    }

    /// Writes a cell of an open page.
    ///
    /// `write` receives the rows of the page and the cell's index in it. It returns whether the row
    /// is finite.
    fn write(&mut self, cell: usize, write: impl FnOnce(&mut [u8], usize) -> bool) {
        let bit = 1 << (cell % PAGE);
        let page = &mut self.pages[cell / PAGE];
        if let Body::Open(rows) = &mut page.body
            && let Some(rows) = Arc::get_mut(rows)
        {
            let finite = write(rows, cell % PAGE);
            page.wild = if finite { page.wild & !bit } else { page.wild | bit };
        }
        page.written |= bit;
        page.fresh |= bit;
        page.first &= !bit;
        page.restored &= !bit;
        if page.fresh == u64::MAX {
            page.centres = None;
        }
    }

    /// Returns the rows of a page in f16, \[head]\[cell]\[width], or `None` for an empty page.
    fn rows_of(&self, index: usize) -> Result<Option<Arc<Vec<u8>>>, Error> {
        match &self.pages[index].body {
            Body::Empty => Ok(None),
            Body::Open(rows) => Ok(Some(rows.clone())),
            Body::Closed(closed) => self.decoded(closed).map(|rows| Some(Arc::new(rows))),
        }
    }
}
