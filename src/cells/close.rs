//! Closes and reopens pages of cells.

use super::page::{Body, Closed, cells_of};
use super::{CellConfig, CellPages, PAGE, Tasks, page};
use crate::backend::Kernels;
use crate::cache::view::MAX_QUERY;
use crate::page::{Balance, DEVIATIONS, Deciding, FEW, Part, PartMut, Shape, Sizes};
use crate::page::{add_floats, read_balance, subtract};
use crate::random::Role;
use crate::{CodecSpec, Error};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use crossbeam_queue::ArrayQueue;
use octaplex_arch::{Float, MAX_DIM};

/// The largest f16.
const MAX_F16: f32 = 65504.0;

/// The steps that keys pass through before they are coded: page format, balance, prefix centre.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    pub(super) shape: Shape,
    pub(super) balance: Balance,
    /// Bytes of a page's own centre. 0 if there is none.
    centre: usize,
    /// Balances and prefix centres, \[head]\[width] in f16. Empty before they are decided, and
    /// where there are none.
    balances: Vec<u8>,
    prefixes: Vec<u8>,
    decided: bool,
}

impl Basis {
    /// Creates the basis of a configuration, undecided for keys.
    pub(super) fn new(config: &CellConfig) -> Self {
        let sizes = Sizes::of_spec(&config.codec, config.dim, PAGE);
        let shape = Shape::new(&sizes, config.role, config.dim, PAGE);
        let floats = matches!(config.codec, CodecSpec::F16(_) | CodecSpec::Bf16(_) | CodecSpec::F32(_));
        let prepares = config.role == Role::Keys && !floats;
        Self {
            balance: Balance::new(prepares && config.balance, prepares && shape.sorts()),
            centre: if prepares { shape.centre_bytes()[0] } else { 0 },
            shape,
            balances: Vec::new(),
            prefixes: Vec::new(),
            decided: !prepares,
        }
    }

    /// Returns the bytes of a head of a closed page, at most.
    pub(super) fn bytes_of_head(config: &CellConfig) -> usize {
        let basis = Self::new(config);
        basis.shape.rows + basis.centre + basis.shape.norms
    }

    pub(super) fn bytes(&self) -> usize {
        self.balances.len() + self.prefixes.len()
    }

    pub(super) fn is_undecided(&self) -> bool {
        !self.decided
    }

    pub(super) fn clear(&mut self) {
        self.balances.clear();
        self.prefixes.clear();
        self.decided = self.centre == 0;
    }

    /// Selects a head's part of balances or prefix centres.
    fn of_head<'a>(&self, bytes: &'a [u8], head: usize) -> &'a [u8] {
        let each = 2 * self.shape.dim;
        if bytes.is_empty() { &[] } else { &bytes[head * each..][..each] }
    }

    pub(super) fn prefix(&self, head: usize) -> &[u8] {
        self.of_head(&self.prefixes, head)
    }

    /// Calls `f` with the balance of a head, if keys have one.
    fn with_balance(&self, backend: Kernels, head: usize, f: impl FnOnce(&[f32])) {
        let bytes = self.of_head(&self.balances, head);
        if !bytes.is_empty() {
            let mut balance = [0.0; MAX_DIM];
            let balance = &mut balance[..self.shape.dim];
            read_balance(backend, bytes, balance);
            f(balance);
        }
    }

    /// Brings queries into the basis of closed pages.
    pub(super) fn apply_to_queries(&self, backend: Kernels, head: usize, queries: &mut [f32]) {
        self.with_balance(backend, head, |balance| self.balance.apply_to_queries(queries, balance));
    }

    /// Splits the bytes of a head of a closed page into rows, centre and norms.
    pub(super) fn part<'a>(&self, closed: &'a Closed, head: usize) -> Part<'a> {
        let bytes = closed.part(head, self.shape.lead());
        let (bytes, norms) = bytes.split_at(bytes.len() - self.shape.norms);
        let (rows, centre) = bytes.split_at(bytes.len() - self.centre);
        Part { rows, centre, norms, ahead: &[] }
    }
}

impl CellPages {
    /// Returns the cells that decide a page's centre and are coded: those written, without the exact
    /// ones.
    fn coded(&self, index: usize) -> u64 {
        self.pages[index].written & !self.exact_of(index)
    }

    /// Returns the cells of an open page that decide the balance: those that are coded and finite.
    fn sample_of(&self, index: usize) -> u64 {
        self.coded(index) & !self.pages[index].wild
    }

    /// Returns whether there are enough rows to decide the balance.
    ///
    /// Deviations are taken around a page's own mean, so each page counts one row less than it has.
    /// Many pages of one row each would say nothing about how channels differ.
    pub(super) fn can_decide(&self) -> bool {
        !self.basis.is_undecided() || self.decides_with(0)
    }

    /// Returns whether the open pages of at least `least` rows are enough to decide the balance.
    fn decides_with(&self, least: usize) -> bool {
        let rows = self.open.iter().map(|index| self.sample_of(*index).count_ones() as usize);
        rows.filter(|rows| *rows >= least).map(|rows| rows.saturating_sub(1)).sum::<usize>() >= DEVIATIONS
    }

    /// Closes pages. A page that its codec refuses stays open, and exact.
    ///
    /// If there are then too many exact rows, the pages whose first cells no query saw for the longest
    /// time give up theirs.
    pub(super) fn close(&mut self, pages: &[usize], queries: &[f32], tasks: &Tasks) {
        if self.basis.is_undecided() {
            self.decide(queries);
        }
        self.close_decided(pages, tasks);
        self.limit_shown(tasks);
    }

    pub(super) fn close_decided(&mut self, pages: &[usize], tasks: &Tasks) {
        let heads = self.config.heads;
        let results = ArrayQueue::new((pages.len() * heads).max(1));
        let this = &*self;
        tasks(pages.len() * heads, &|task: usize| {
            let _ = results.push((task, this.encode_head(pages[task / heads], task % heads)));
        });
        let mut parts: Vec<Option<Vec<u8>>> = vec![None; pages.len() * heads];
        core::iter::from_fn(|| results.pop()).for_each(|(task, part)| parts[task] = part.ok());
        for (&index, parts) in pages.iter().zip(parts.chunks(heads)) {
            self.forget(index);
            if let Ok(closed) = self.closed(index, parts) {
                let page = &mut self.pages[index];
                (page.body, page.centres) = (Body::Closed(Arc::new(closed)), None);
                (page.fresh, page.restored) = (0, 0);
                if page.first != 0 {
                    self.shown.push(index);
                }
                self.counts.closed += 1;
            } else {
                // A row is too large for the codec, or not finite, or memory is short. Keep the page exact.
                self.counts.refused += 1;
            }
        }
    }

    /// Puts a closed page together: the parts of its heads, and its exact rows.
    fn closed(&self, index: usize, parts: &[Option<Vec<u8>>]) -> Result<Closed, Error> {
        let (mut all, mut ends, mut exact) = (Vec::new(), Vec::with_capacity(parts.len()), Vec::new());
        let (lead, cells, dim) = (self.basis.shape.lead(), self.exact_of(index), self.config.dim);
        let len = parts.iter().flatten().map(Vec::len).sum::<usize>();
        page::reserve(&mut all, "a closed page of cells", lead + len)?;
        all.resize(lead, 0);
        for part in parts {
            all.extend(part.as_ref().ok_or(Error::Overflow)?);
            ends.push(all.len() as u32);
        }
        let Body::Open(rows) = &self.pages[index].body else { return Err(Error::Empty) };
        let count = cells.count_ones() as usize * self.config.width();
        page::reserve(&mut exact, "exact rows of a page of cells", 2 * count)?;
        for head in rows.chunks_exact(2 * PAGE * dim) {
            cells_of(cells).for_each(|cell| exact.extend(&head[2 * cell * dim..][..2 * dim]));
        }
        Ok(Closed { parts: all, ends, cells, exact })
    }

    /// Decodes a head's rows of an open page. Cells that are not coded get the mean of the others,
    /// so that they do not move the centre.
    fn gather(&self, index: usize, head: usize, rows: &mut [f32]) {
        let (dim, page) = (self.config.dim, &self.pages[index]);
        let Body::Open(bytes) = &page.body else { return };
        self.backend.decode_floats(Float::F16, &bytes[2 * head * PAGE * dim..][..2 * PAGE * dim], rows);
        let coded = self.coded(index);
        let mut mean = [0.0f32; MAX_DIM];
        let mean = &mut mean[..dim];
        for (cell, row) in rows.chunks_exact(dim).enumerate() {
            if coded >> cell & 1 == 1 {
                mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }
        let count = coded.count_ones().max(1) as f32;
        mean.iter_mut().for_each(|sum| *sum /= count);
        for (cell, row) in rows.chunks_exact_mut(dim).enumerate() {
            if coded >> cell & 1 == 0 {
                row.copy_from_slice(mean);
            }
        }
    }

    /// Decides the balance and the prefix centre of each head from the rows of all open pages.
    fn decide(&mut self, queries: &[f32]) {
        let (dim, heads, backend) = (self.config.dim, self.config.heads, self.backend);
        let mut memory = vec![0.0; PAGE * dim];
        let per_head = queries.len() / heads;
        // Squares of larger values, or NaN, would decide for good.
        let is_usual = |query: &&[f32]| query.iter().all(|x| x.abs() <= MAX_QUERY);
        let mut balances = vec![1.0f32; heads * dim];
        let mut prefixes = vec![0.0f32; heads * self.basis.shape.centre_bytes()[1] / 2];
        // Too few rows show no outlying value, so their pages count only where the others are not enough.
        let least = if self.decides_with(FEW) { FEW } else { 0 };
        for head in 0..heads {
            let balance = &mut balances[head * dim..][..dim];
            let mut read = |page: usize, rows: &mut [f32]| {
                self.gather(self.open[page], head, rows);
                // Leave out the rows that `gather` filled with the mean: they would make deviations
                // too small. A row that is not finite would make them NaN, for good.
                let (sample, mut len) = (self.sample_of(self.open[page]), 0);
                for cell in cells_of(sample) {
                    rows.copy_within(cell * dim..(cell + 1) * dim, len);
                    len += dim;
                }
                if len < least * dim { 0 } else { len }
            };
            let (kind, pages) = (self.basis.balance, self.open.len());
            let mut deciding = Deciding { backend, kind, pages, rows: &mut memory, read: &mut read };
            let queries = queries[head * per_head..][..per_head].chunks_exact(dim).filter(is_usual);
            deciding.balance(&queries.collect::<Vec<_>>().concat(), balance);
            // A centre that f16 cannot hold stays zero.
            if !prefixes.is_empty() {
                let _ = deciding.centre(usize::MAX, balance, &mut prefixes[head * dim..][..dim]);
            }
        }
        if !self.basis.balance.is_none() {
            self.basis.balances = vec![0; 2 * heads * dim];
            backend.encode_floats(Float::F16, &balances, &mut self.basis.balances);
        }
        self.basis.prefixes = vec![0; 2 * prefixes.len()];
        backend.encode_floats(Float::F16, &prefixes, &mut self.basis.prefixes);
        self.basis.decided = true;
    }

    /// Encodes one head of an open page: rows, centre, norms.
    fn encode_head(&self, index: usize, head: usize) -> Result<Vec<u8>, Error> {
        let (basis, dim, page) = (&self.basis, self.config.dim, &self.pages[index]);
        let format = basis.shape.of(&self.codec, self.backend);
        let coded = self.coded(index);
        if let Some(index) = cells_of(coded & page.wild).next() {
            return Err(Error::NonFinite { index });
        }
        let mut rows = vec![0.0; PAGE * dim];
        self.gather(index, head, &mut rows);
        basis.with_balance(self.backend, head, |balance| basis.balance.apply(&mut rows, balance));
        let mut centre = [0.0; MAX_DIM];
        let centre = &mut centre[..dim];
        if !basis.prefix(head).is_empty() {
            self.backend.decode_floats(Float::F16, basis.prefix(head), centre);
            subtract(&mut rows, centre);
        }
        let mut part = vec![0; basis.shape.rows + basis.centre + basis.shape.norms];
        let (of_rows, rest) = part.split_at_mut(basis.shape.rows);
        let (of_centre, of_norms) = rest.split_at_mut(basis.centre);
        match &page.centres {
            _ if of_centre.is_empty() => {}
            None => format.take_centre(&mut rows, of_centre)?,
            Some(centres) => {
                of_centre.copy_from_slice(&centres[head * basis.centre..][..basis.centre]);
                format.read_centre(of_centre, centre)?;
                subtract(&mut rows, centre);
            }
        }
        let missing = rows.chunks_exact_mut(dim).enumerate().filter(|(cell, _)| coded >> cell & 1 == 0);
        missing.for_each(|(_, row)| row.fill(0.0));
        let mut out = PartMut { rows: of_rows, centre: of_centre, norms: of_norms };
        let used = format.encode(&rows, &mut out)?;
        part.drain(used..basis.shape.rows);
        Ok(part)
    }

    /// Reopens a closed page. Its rows become those that it decodes to, in f16.
    pub(super) fn reopen(&mut self, index: usize) -> Result<(), Error> {
        let Body::Closed(closed) = &self.pages[index].body else { return Ok(()) };
        let (rows, basis) = (Arc::new(self.decoded(closed)?), &self.basis);
        let centres = (0..self.config.heads).flat_map(|head| basis.part(closed, head).centre);
        let centres = (basis.centre > 0).then(|| centres.copied().collect());
        let page = &mut self.pages[index];
        (page.body, page.centres, page.fresh) = (Body::Open(rows), centres, 0);
        self.shown.retain(|shown| *shown != index);
        Ok(())
    }

    /// Returns the rows of a closed page in f16, \[head]\[cell]\[width].
    pub(super) fn decoded(&self, closed: &Closed) -> Result<Vec<u8>, Error> {
        let dim = self.config.dim;
        let mut all = page::zeros(self.config.width())?;
        let mut rows = vec![0.0; PAGE * dim];
        for (head, bytes) in all.chunks_exact_mut(2 * PAGE * dim).enumerate() {
            self.decode_head(closed, head, &mut rows)?;
            // Errors of the codec may lead a large value beyond f16.
            rows.iter_mut().for_each(|x| *x = x.clamp(-MAX_F16, MAX_F16));
            self.backend.encode_floats(Float::F16, &rows, bytes);
            for (cell, row) in cells_of(closed.cells).zip(closed.exact(head).chunks_exact(2 * dim)) {
                bytes[2 * cell * dim..][..2 * dim].copy_from_slice(row);
            }
        }
        Ok(all)
    }

    /// Decodes a head of a closed page into f32 rows, in the basis of the input.
    fn decode_head(&self, closed: &Closed, head: usize, rows: &mut [f32]) -> Result<(), Error> {
        let (basis, backend) = (&self.basis, self.backend);
        let format = basis.shape.of(&self.codec, backend);
        format.decode(&basis.part(closed, head), 0..PAGE, rows)?;
        add_floats(backend, rows, self.config.dim, basis.prefix(head));
        basis.with_balance(backend, head, |balance| basis.balance.undo(rows, balance));
        Ok(())
    }
}
