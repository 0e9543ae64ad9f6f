//! Exact rows: the first cells of streams and sequences.

use super::page::{Body, cells_of};
use super::{CellAttend, CellConfig, CellPages, PAGE, Tasks};
use crate::Error;
use alloc::vec::Vec;

/// Cells for each sequence whose first cells may be exact, and the least number of such sequences.
const CELLS_OF_SEQUENCE: usize = 2048;
const SEQUENCES: usize = 4;

impl CellConfig {
    /// Returns how many rows of closed pages may be exact besides the first of each stream: the first
    /// cells of one sequence for each 2,048 cells, and of at least 4 sequences.
    pub(super) fn shown_rows(&self) -> usize {
        shown_rows(self.sinks, self.cells.saturating_mul(self.streams))
    }
}

/// As [`CellConfig::shown_rows`], for `sinks` first cells of each sequence among `cells`.
pub(crate) fn shown_rows(sinks: usize, cells: usize) -> usize {
    sinks.saturating_mul((cells / CELLS_OF_SEQUENCE).max(SEQUENCES))
}

impl CellPages {
    /// Finds the first cells of sequences in the mask of a batch. Their rows stay exact when their page
    /// closes.
    ///
    /// A query that sees at most [`sinks`](CellConfig::sinks) cells is at the start of its sequence, so
    /// these cells are the first of it. Rows of [`write_rows`](Self::write_rows) come without such a
    /// query. For these, the first cells that any query sees count.
    ///
    /// Call it once a batch, with the mask of all its queries, before [`settle`](Self::settle). The
    /// number of exact rows is limited: one sequence for each 2,048 cells, and at least 4. Beyond that,
    /// the cells that no query saw for the longest time are coded.
    ///
    /// # Errors
    /// As [`CellAttend::attend`].
    pub fn observe(&mut self, options: &CellAttend) -> Result<(), Error> {
        options.check_cells(self)?;
        let sinks = self.config.sinks;
        let Some(mask) = options.mask.filter(|_| sinks > 0 && !self.is_exact()) else { return Ok(()) };
        let mut first = Vec::with_capacity(sinks + 1);
        for query in 0..options.queries {
            first.clear();
            first.extend(mask.visible(query, options.cells).take(sinks + 1).map(|cell| options.first + cell));
            let starts = first.len() <= sinks;
            for &cell in first.iter().take(sinks) {
                if starts || self.pages[cell / PAGE].restored >> (cell % PAGE) & 1 == 1 {
                    self.mark(cell);
                }
            }
        }
        let (seen, hidden) = self.shown.iter().partition(|page| self.sees(options, **page));
        (self.shown, first) = (hidden, seen);
        self.shown.append(&mut first);
        Ok(())
    }

    /// Returns whether any query sees a first cell of a page.
    fn sees(&self, options: &CellAttend, page: usize) -> bool {
        let cells = cells_of(self.pages[page].first).map(|cell| page * PAGE + cell);
        let cells = cells.filter_map(|cell| cell.checked_sub(options.first));
        let mut cells = cells.filter(|cell| *cell < options.cells);
        cells.any(|cell| {
            (0..options.queries).any(|query| options.mask.is_none_or(|mask| mask.sees(query, cell)))
        })
    }

    /// Marks a cell of an open page as the first of a sequence, unless its page has too many.
    pub(super) fn mark(&mut self, cell: usize) {
        let (index, bit) = (cell / PAGE, 1 << (cell % PAGE));
        // Half of a page is left to decide the balance.
        let most = self.config.shown_rows().min(PAGE / 2) as u32;
        let place = self.fixed(index);
        let page = &mut self.pages[index];
        if matches!(page.body, Body::Open(_)) && place & bit == 0 && page.first.count_ones() < most {
            page.first |= bit;
        }
    }

    /// Returns the cells of a page that are exact by their place: the first of a stream.
    pub(super) fn fixed(&self, index: usize) -> u64 {
        let first = (index * PAGE).is_multiple_of(self.config.cells);
        let sinks = if first { self.config.sinks as u32 } else { 0 };
        !u64::MAX.checked_shl(sinks).unwrap_or(0)
    }

    /// Returns the cells of a page that stay exact.
    pub(super) fn exact_of(&self, index: usize) -> u64 {
        self.fixed(index) | self.pages[index].first
    }

    /// Limits how many rows of closed pages are exact because a mask showed them.
    pub(super) fn limit_shown(&mut self, tasks: &Tasks) {
        let rows = |page: &usize| self.pages[*page].first.count_ones() as usize;
        let mut count = self.shown.iter().map(rows).sum::<usize>();
        while count > self.config.shown_rows() && !self.shown.is_empty() {
            let index = self.shown.remove(0);
            count -= self.pages[index].first.count_ones() as usize;
            if self.reopen(index).is_ok() {
                self.pages[index].first = 0;
                self.close_decided(&[index], tasks);
            }
        }
    }
}
