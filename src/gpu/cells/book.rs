//! Bookkeeping on the host: open pages, closed pages, and rows that stay exact.

use crate::cells::shown_rows;
use crate::page::PAGE;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Body {
    #[default]
    Empty,
    /// f16 rows in 64 places from this one on, or only in a caller's area.
    Open(Option<u32>),
    Closed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    body: Body,
    /// Cells that were ever written.
    written: u64,
    /// Cells that a mask showed to be the first of a sequence.
    first: u64,
    /// Cells of a closed page that lie in places of their own.
    exact: u64,
    /// Cells whose rows were refused, until they are written again.
    lost: u64,
}

/// The work of a change of pages: for each layer, rows to copy and pages to encode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Pages that close, each with the cells that are coded.
    pub close: Vec<(u32, u64)>,
    /// Rows to copy: a cell and its place.
    pub stash: Vec<[u32; 2]>,
    /// Pages that were open before, each with the cells that are coded. They decide the balance.
    pub sample: Vec<(u32, u64)>,
}

/// The pages of a cache: of all its streams, one after the other.
///
/// ```
/// use octaplex::gpu::cells::Book;
///
/// let mut book = Book::new(16, 1, 4, 2); // 16 pages of 64 cells, one stream, 4 sinks, 2 open pages
/// assert!(book.write(&[0, 1, 2]));
/// assert_eq!(book.places().0[0], 0); // page 0 lies in places 0 to 63
/// assert!(book.settle(&[]).is_none()); // nothing closes yet
/// let cells: Vec<usize> = (0..1000).collect();
/// assert!(!book.write(&cells)); // more pages than there are places: use an area
/// let settled = book.rewrite(&cells, &[]);
/// assert_eq!(settled.close.len(), 14);
/// assert_eq!(settled.close[0], (0, !0xf)); // the first four cells stay exact
/// ```
#[derive(Clone, Debug)]
pub struct Book {
    stream_pages: usize,
    sinks: usize,
    open_pages: usize,
    pages: Vec<Page>,
    /// Open pages by last write, the newest at the end.
    open: Vec<u32>,
    /// Places of 64 rows that are free.
    free: Vec<u32>,
    /// The cell in each place of a single row.
    rows: Vec<Option<u32>>,
    first_row: u32,
}

impl Book {
    /// Creates empty pages: `streams` streams of `stream_pages` pages. The first `sinks` cells of a stream, at most 64, stay
    /// exact, and so do at least the newest `open_pages` pages.
    #[must_use]
    pub fn new(stream_pages: usize, streams: usize, sinks: usize, open_pages: usize) -> Self {
        let (pages, sinks) = (stream_pages * streams, sinks.min(PAGE));
        let groups = (open_pages + streams.clamp(2, 16)).min(pages);
        let shown = shown_rows(sinks, pages * PAGE);
        let first_row = (groups * PAGE) as u32;
        Self {
            stream_pages,
            sinks,
            open_pages: open_pages.max(1),
            pages: vec![Page::default(); pages],
            open: Vec::new(),
            free: (0..groups as u32).rev().map(|group| group * PAGE as u32).collect(),
            rows: vec![None; streams * sinks + shown],
            first_row,
        }
    }

    /// Returns the number of places that layers need.
    #[must_use]
    pub fn exact(&self) -> usize {
        self.first_row as usize + self.rows.len()
    }

    /// Returns the number of cells of all streams.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        let streams = self.pages.len() / self.stream_pages.max(1);
        let open = self.open_pages;
        *self = Self::new(self.stream_pages, streams, self.sinks, open);
    }

    fn fixed(&self, page: usize) -> u64 {
        let sinks = if page.is_multiple_of(self.stream_pages) { self.sinks as u32 } else { 0 };
        !u64::MAX.checked_shl(sinks).unwrap_or(0)
    }

    /// Notes cells that are about to be written in places. Returns false, and changes nothing, if some of them lie in closed
    /// pages or if places are missing: then their rows go to an area, and [`rewrite`](Self::rewrite) follows.
    pub fn write(&mut self, cells: &[usize]) -> bool {
        let mut touched: Vec<usize> = cells.iter().map(|cell| cell / PAGE).collect();
        touched.sort_unstable();
        touched.dedup();
        let fresh = |page: &&usize| self.pages.get(**page).is_some_and(|page| page.body == Body::Empty);
        let held = |page: &&usize| {
            self.pages.get(**page).is_some_and(|page| matches!(page.body, Body::Open(Some(_))))
        };
        let missing = touched.iter().filter(fresh).count();
        if missing + touched.iter().filter(held).count() < touched.len() || missing > self.free.len() {
            return false;
        }
        for page in touched {
            if self.pages[page].body == Body::Empty {
                self.pages[page].body = Body::Open(self.free.pop());
            }
            self.renew(page as u32);
        }
        self.note(cells);
        true
    }

    /// Makes a page the newest of the open ones.
    fn renew(&mut self, page: u32) {
        if self.open.last() != Some(&page) {
            self.open.retain(|open| *open != page);
            self.open.push(page);
        }
    }

    fn note(&mut self, cells: &[usize]) {
        for cell in cells {
            let (page, bit) = (&mut self.pages[cell / PAGE], 1 << (cell % PAGE));
            page.written |= bit;
            page.first &= !bit;
            page.lost &= !bit;
        }
    }

    /// Notes cells that were written in an area, and returns what follows. Layers copy and encode it after the attention of
    /// the batch. `first` are the first cells of a sequence, as for [`mark`](Self::mark). Cells beyond the last are left out.
    pub fn rewrite(&mut self, cells: &[usize], first: &[usize]) -> Settled {
        let cells: Vec<usize> = cells.iter().copied().filter(|cell| *cell < self.cells()).collect();
        self.note(&cells);
        let mut touched: Vec<u32> = cells.iter().map(|cell| (cell / PAGE) as u32).collect();
        touched.dedup();
        self.changed(&touched, first)
    }

    /// Returns what follows after rows of all written cells changed in an area.
    pub fn change_all(&mut self) -> Settled {
        let open = self.open.clone();
        let mut all: Vec<u32> = (0..self.pages.len() as u32).filter(|page| !open.contains(page)).collect();
        all.retain(|page| self.pages[*page as usize].written != 0);
        all.extend(open);
        self.changed(&all, &[])
    }

    fn changed(&mut self, touched: &[u32], first: &[usize]) -> Settled {
        for &page in touched {
            match self.pages[page as usize].body {
                Body::Closed => {
                    self.release_rows(page);
                    self.pages[page as usize].body = Body::Open(None);
                }
                Body::Empty => self.pages[page as usize].body = Body::Open(None),
                Body::Open(_) => {}
            }
            self.renew(page);
        }
        self.mark(first);
        self.settle_with(touched)
    }

    /// Closes pages beyond those that stay open. Returns what follows, or `None` if nothing closes. Layers bring the rows of
    /// all places to an area first.
    pub fn settle(&mut self, keep: &[u32]) -> Option<Settled> {
        self.closes().then(|| self.settle_with(keep))
    }

    fn settle_with(&mut self, changed: &[u32]) -> Settled {
        let mut settled = Settled::default();
        let over = self.open.len().saturating_sub(self.open_pages);
        if over > 0 {
            let coded = |page: &u32| {
                let number = *page as usize;
                (*page, self.pages[number].written & !(self.fixed(number) | self.pages[number].first))
            };
            settled.sample = self.open.iter().map(coded).collect();
        }
        for page in self.open.drain(..over).collect::<Vec<_>>() {
            let number = page as usize;
            if let Body::Open(Some(place)) = self.pages[number].body {
                self.free.push(place);
            }
            let exact = (self.fixed(number) | self.pages[number].first) & self.pages[number].written;
            let exact = self.keep_rows(page, exact, &mut settled.stash);
            let page_of = &mut self.pages[number];
            (page_of.body, page_of.exact) = (Body::Closed, exact);
            settled.close.push((page, page_of.written & !exact));
        }
        for page in self.open.clone() {
            let number = page as usize;
            let Body::Open(place) = self.pages[number].body else { continue };
            if place.is_some() && !changed.contains(&page) {
                continue;
            }
            let Some(place) = place.or_else(|| self.free.pop()) else { continue };
            self.pages[number].body = Body::Open(Some(place));
            let written = self.pages[number].written;
            let cells = (0..PAGE as u32).filter(|cell| written >> cell & 1 == 1);
            settled.stash.extend(cells.map(|cell| [page * PAGE as u32 + cell, place + cell]));
        }
        settled
    }

    /// Returns whether [`settle`](Self::settle) closes pages.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.open.len() > self.open_pages
    }

    /// Gives exact cells of a closing page places of their own. Returns those that have one.
    fn keep_rows(&mut self, page: u32, exact: u64, stash: &mut Vec<[u32; 2]>) -> u64 {
        let mut kept = 0;
        for cell in (0..PAGE as u32).filter(|cell| exact >> cell & 1 == 1) {
            let Some(row) = self.rows.iter().position(Option::is_none) else { break };
            let number = page * PAGE as u32 + cell;
            self.rows[row] = Some(number);
            stash.push([number, self.first_row + row as u32]);
            kept |= 1 << cell;
        }
        kept
    }

    fn release_rows(&mut self, page: u32) {
        let own = |cell: &Option<u32>| cell.is_some_and(|cell| cell / PAGE as u32 == page);
        self.rows.iter_mut().filter(|cell| own(cell)).for_each(|cell| *cell = None);
        self.pages[page as usize].exact = 0;
    }

    /// Forgets rows that could not be held, as [`CellPlan::take_lost`](super::CellPlan::take_lost) returns them. They are lost
    /// until their cells are written again. A page all of whose bits are set is one that a codec refused. Its exact cells stay.
    pub fn lose(&mut self, pages: &[(u32, u64)]) {
        for &(number, cells) in pages {
            let Some(page) = self.pages.get_mut(number as usize) else { continue };
            let lost = page.written & if cells == u64::MAX { !page.exact } else { cells };
            page.lost |= lost;
            page.written &= !lost;
            page.first &= !lost;
            page.exact &= !lost;
            let gone = |cell: u32| cell / PAGE as u32 == number && lost >> (cell % PAGE as u32) & 1 == 1;
            self.rows.iter_mut().filter(|cell| cell.is_some_and(gone)).for_each(|cell| *cell = None);
            if page.written == 0 {
                if let Body::Open(Some(place)) = page.body {
                    self.free.push(place);
                }
                page.body = Body::Empty;
                self.open.retain(|open| *open != number);
            }
        }
    }

    /// Returns the lost cells.
    #[must_use]
    pub fn lost(&self) -> Vec<usize> {
        let pages = self.pages.iter().enumerate().filter(|(_, page)| page.lost != 0);
        let cells_of = |(number, page): (usize, &Page)| {
            let lost = page.lost;
            (0..PAGE).filter(move |cell| lost >> cell & 1 == 1).map(move |cell| number * PAGE + cell)
        };
        pages.flat_map(cells_of).collect()
    }

    /// Marks first cells of sequences, if their pages are open: they stay exact.
    pub fn mark(&mut self, cells: &[usize]) {
        for &cell in cells {
            let Some(page) = self.pages.get_mut(cell / PAGE) else { continue };
            // Half of a page is left to decide the balance.
            if matches!(page.body, Body::Open(_)) && page.first.count_ones() < PAGE as u32 / 2 {
                page.first |= 1 << (cell % PAGE);
            }
        }
    }

    /// Returns the number of first cells that stay exact.
    #[must_use]
    pub fn sinks(&self) -> usize {
        self.sinks
    }

    /// Returns what [`CellPlan::set_places`](super::CellPlan::set_places) takes.
    #[must_use]
    pub fn places(&self) -> (Vec<u32>, Vec<u32>, Vec<u64>) {
        self.places_of(|page| page.written)
    }

    /// Returns what [`places`](Self::places) returns, as if all cells of open pages were written. It stays the same while a page
    /// fills. A mask must hide the others.
    #[must_use]
    pub fn filled_places(&self) -> (Vec<u32>, Vec<u32>, Vec<u64>) {
        self.places_of(|page| if page.body == Body::Closed { page.written } else { u64::MAX })
    }

    fn places_of(&self, written: impl Fn(&Page) -> u64) -> (Vec<u32>, Vec<u32>, Vec<u64>) {
        let mut cell_of = vec![u32::MAX; self.exact()];
        let mut places = vec![u32::MAX; self.pages.len()];
        for (number, page) in self.pages.iter().enumerate() {
            let Body::Open(Some(place)) = page.body else { continue };
            places[number] = place;
            for cell in (0..PAGE).filter(|cell| written(page) >> cell & 1 == 1) {
                cell_of[place as usize + cell] = (number * PAGE + cell) as u32;
            }
        }
        for (row, cell) in self.rows.iter().enumerate() {
            cell_of[self.first_row as usize + row] = cell.unwrap_or(u32::MAX);
        }
        let hidden = self.pages.iter().map(|page| page.exact | !written(page)).collect();
        (places, cell_of, hidden)
    }

    /// Returns the closed pages among the first `pages` of a stream.
    #[must_use]
    pub fn closed(&self, stream: usize, pages: usize) -> Vec<u32> {
        let first = stream * self.stream_pages;
        let own = first..first + pages.min(self.stream_pages);
        own.filter(|page| self.pages.get(*page).is_some_and(|page| page.body == Body::Closed))
            .map(|page| page as u32)
            .collect()
    }

    /// Returns all closed pages between two cells.
    #[must_use]
    pub fn closed_in(&self, cells: core::ops::Range<usize>) -> Vec<u32> {
        let own = cells.start / PAGE..cells.end.div_ceil(PAGE).min(self.pages.len());
        own.filter(|page| self.pages[*page].body == Body::Closed).map(|page| page as u32).collect()
    }

    /// Returns whether any cell was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.iter().all(|page| page.written == 0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    /// Every written cell is in exactly one place: its own row, its open page, or the slot of its closed page.
    fn check(book: &Book) {
        let (places, cell_of, hidden) = book.places();
        for cell in 0..book.cells() {
            let (page, bit) = (cell / PAGE, cell % PAGE);
            let in_places = cell_of.iter().filter(|of| **of == cell as u32).count();
            let closed = book.closed_in(cell..cell + 1) == [page as u32];
            let in_slot = usize::from(closed && hidden[page] >> bit & 1 == 0);
            assert_eq!(
                in_places + in_slot,
                usize::from(book.pages[page].written >> bit & 1 == 1),
                "cell {cell}"
            );
            assert!(!closed || places[page] == u32::MAX);
        }
        let used = places.iter().filter(|place| **place != u32::MAX).count();
        let groups = book.first_row as usize / PAGE;
        assert_eq!(used + book.free.len(), groups);
    }

    #[test]
    fn every_cell_is_in_one_place() {
        let mut book = Book::new(8, 2, 4, 2);
        let mut state = 1u32;
        for round in 0..400 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (first, count) = (
                (state >> 8) as usize % book.cells(),
                1 + (state >> 24) as usize % if round % 3 == 0 { 300 } else { 5 },
            );
            let cells: Vec<usize> = (first..first + count).map(|cell| cell % book.cells()).collect();
            if !book.write(&cells) {
                book.rewrite(&cells, &[]);
            }
            check(&book);
            book.mark(&cells[..1]);
            if let Some(settled) = book.settle(&[]) {
                assert!(settled.close.iter().all(|(page, _)| book.closed_in(0..book.cells()).contains(page)));
            }
            check(&book);
            if round % 50 == 49 {
                book.change_all();
                check(&book);
            }
        }
        book.clear();
        assert!(book.is_empty());
        check(&book);
    }

    #[test]
    fn lost_cells_come_back_when_they_are_written() {
        let mut book = Book::new(8, 1, 4, 1);
        book.write(&(0..70).collect::<Vec<_>>());
        let settled = book.settle(&[]).unwrap();
        assert_eq!(settled.close, [(0, !0xf)]);
        book.lose(&[(1, 0b11)]);
        assert_eq!(book.lost(), [64, 65]);
        check(&book);
        // A codec refuses page 0: its exact cells stay.
        book.lose(&[(0, !0)]);
        assert_eq!(book.lost().len(), 62);
        assert_eq!(book.places().1.iter().filter(|cell| **cell < 64).count(), 4);
        check(&book);
        // All of an open page: its places are free, and it is empty.
        book.lose(&[(1, 0b11_1111), (7, 1)]);
        assert_eq!((book.lost().len(), book.open.len()), (66, 0));
        check(&book);
        assert!(book.write(&[64, 65]));
        assert_eq!(book.lost().len(), 64);
        book.rewrite(&(0..64).collect::<Vec<_>>(), &[]);
        assert_eq!(book.lost(), [66, 67, 68, 69]);
        check(&book);
        book.clear();
        assert!(book.lost().is_empty());
    }

    #[test]
    fn first_cells_stay_exact() {
        let mut book = Book::new(8, 1, 4, 1);
        let cells: Vec<usize> = (0..64).collect();
        book.write(&cells);
        book.write(&[200, 201, 202, 203, 204]);
        book.mark(&[200, 201, 202, 203]);
        let settled = book.settle(&[]).unwrap();
        assert_eq!(settled.close, [(0, !0xf)]);
        book.write(&(450..460).collect::<Vec<_>>());
        let settled = book.settle(&[]).unwrap();
        assert_eq!(settled.close, [(3, 1 << 12)]);
        assert_eq!(settled.stash.iter().map(|pair| pair[0]).collect::<Vec<_>>(), [200, 201, 202, 203]);
        // A page that is written again gives its rows back.
        assert!(!book.write(&[3]));
        book.rewrite(&[3], &[]);
        check(&book);
        assert_eq!(book.places().1.iter().filter(|cell| **cell < 64).count(), 64);
    }
}
