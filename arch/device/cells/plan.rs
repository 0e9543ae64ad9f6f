//! The places of the pages of a cache.

use super::*;

/// The places of the pages of a cache. All layers share it.
///
/// Addresses stay the same for its life, so that captured graphs read what was last written.
#[derive(Debug)]
pub struct CellPlan {
    pub(super) device: Device,
    pub(super) kernels: Arc<Kernels>,
    pub(super) stream_pages: usize,
    pub(super) streams: usize,
    pub(super) exact: usize,
    pub(super) places: Buffer<u32>,
    pub(super) cell_of: Buffer<u32>,
    pub(super) hidden: Buffer<u64>,
    /// The contents of `places`, `cell_of` and `hidden`.
    placed: (Vec<u32>, Vec<u32>, Vec<u64>),
    pub(super) table: Buffer<u32>,
    pub(super) words: Buffer<u32>,
    pub(super) starts: Buffer<u64>,
    pub(super) bias: Buffer<f32>,
    pub(super) opening: Buffer<u32>,
    pub(super) stash: Buffer<u32>,
    pub(super) closing: Buffer<u32>,
    pub(super) slots: Buffer<u32>,
    pub(super) coded: Buffer<u64>,
    pub(super) refused: Buffer<u32>,
    /// Two words for each page: its cells that were refused.
    pub(super) lost: Buffer<u32>,
    /// The lengths of these lists: pages to open, pairs, pages to close.
    pub(super) counts: [usize; 3],
}

/// Returns what a plan's kernels are compiled from.
pub(super) fn job(device: &Device) -> Job {
    Job { source: Source::Cells, target: device.architecture().into(), numbers: Numbers::default() }
}

impl CellPlan {
    /// Allocates the plan of `streams` streams of `stream_pages` pages, with `exact` places.
    ///
    /// # Errors
    /// [`Failure::Memory`]; errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics without pages or places, and for 2³¹ cells or more.
    pub fn new(device: &Device, stream_pages: usize, streams: usize, exact: usize) -> Result<Self, Failure> {
        let pages = stream_pages.saturating_mul(streams);
        assert!(pages > 0 && exact > 0 && pages.saturating_mul(SLOT_TOKENS).saturating_add(exact) < 1 << 31);
        let job = job(device);
        let kernels = Arc::new(load(device, job.source, &job.target, &job.numbers, &ROW_NAMES)?);
        let row = stream_pages * SLOT_TOKENS + exact;
        let plan = Self {
            kernels,
            stream_pages,
            streams,
            exact,
            places: Buffer::new(device, pages)?,
            cell_of: Buffer::new(device, exact)?,
            hidden: Buffer::new(device, pages)?,
            placed: Default::default(),
            table: Buffer::new(device, pages)?,
            words: Buffer::new(device, streams * MOST_QUERIES * 8)?,
            starts: Buffer::new(device, streams * MOST_QUERIES)?,
            bias: Buffer::new(device, MOST_QUERIES * row)?,
            opening: Buffer::new(device, pages)?,
            stash: Buffer::new(device, 2 * exact)?,
            closing: Buffer::new(device, pages)?,
            slots: Buffer::new(device, pages)?,
            coded: Buffer::new(device, pages)?,
            refused: Buffer::new(device, 1)?,
            lost: Buffer::new(device, 2 * pages)?,
            counts: [0; 3],
            device: device.clone(),
        };
        let starts: Vec<u64> = (0..streams * MOST_QUERIES)
            .map(|at| {
                let (stream, query) = (at / MOST_QUERIES, at % MOST_QUERIES);
                // The bias of a stream's first cell comes first.
                ((query * row) as u64).wrapping_sub((stream * stream_pages * SLOT_TOKENS) as u64)
            })
            .collect();
        plan.starts.write(0, &starts)?;
        plan.refused.write(0, &[u32::MAX])?;
        plan.lost.zero()?;
        Ok(plan)
    }

    /// Writes where pages are: the first place of each open page, or `u32::MAX`; the cell in each place, or
    /// `u32::MAX`; and the cells of each page that its slot must not show. Copies only what has changed.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for other lengths, and for places beyond the last.
    pub fn set_places(
        &mut self,
        (places, cell_of, hidden): (Vec<u32>, Vec<u32>, Vec<u64>),
    ) -> Result<(), Failure> {
        assert!(
            places.len() == self.places.len()
                && cell_of.len() == self.exact
                && hidden.len() == self.hidden.len()
        );
        let fits = |place: &u32| *place == u32::MAX || *place as usize + SLOT_TOKENS <= self.exact;
        let cells = self.places.len() * SLOT_TOKENS;
        assert!(
            places.iter().all(fits)
                && cell_of.iter().all(|cell| *cell == u32::MAX || (*cell as usize) < cells)
        );
        let old = core::mem::take(&mut self.placed);
        if old.0 != places {
            self.places.write(0, &places)?;
        }
        if old.1 != cell_of {
            self.cell_of.write(0, &cell_of)?;
        }
        if old.2 != hidden {
            self.hidden.write(0, &hidden)?;
        }
        self.placed = (places, cell_of, hidden);
        Ok(())
    }

    /// Writes which closed pages of a stream attention reads.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for a page that is not the stream's.
    pub fn set_table(&self, stream: usize, pages: &[u32]) -> Result<(), Failure> {
        let own = stream * self.stream_pages..(stream + 1) * self.stream_pages;
        assert!(stream < self.streams && pages.iter().all(|page| own.contains(&(*page as usize))));
        assert!(pages.len() <= self.stream_pages);
        self.table.write(own.start, pages)?;
        let window_start = (own.end * SLOT_TOKENS) as u64;
        let sequence = Sequence {
            exact: self.exact,
            next: window_start + self.exact as u64,
            window_start,
            ..Sequence::default()
        };
        let words = words_of(&sequence, pages.len()).repeat(MOST_QUERIES);
        self.words.write(stream * MOST_QUERIES * 8, &words)
    }

    /// Writes which pages [`CellPool::open`] decodes.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for pages beyond the last.
    pub fn set_opening(&mut self, pages: &[u32]) -> Result<(), Failure> {
        assert!(pages.iter().all(|page| (*page as usize) < self.places.len()));
        self.counts[0] = pages.len();
        if pages.is_empty() { Ok(()) } else { self.opening.write(0, pages) }
    }

    /// Writes what [`CellPool::close`] does: rows to copy, each a cell and its place, and pages to encode, each with the cells
    /// that count.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for cells, places and pages beyond the last.
    pub fn set_closing(&mut self, stash: &[[u32; 2]], close: &[(u32, u64)]) -> Result<(), Failure> {
        let pages = self.places.len();
        let fits =
            |pair: &[u32; 2]| (pair[0] as usize) < pages * SLOT_TOKENS && (pair[1] as usize) < self.exact;
        assert!(stash.len() <= self.exact && stash.iter().all(fits));
        assert!(close.len() <= pages && close.iter().all(|(page, _)| (*page as usize) < pages));
        (self.counts[1], self.counts[2]) = (stash.len(), close.len());
        if !stash.is_empty() {
            self.stash.write(0, stash.as_flattened())?;
        }
        if !close.is_empty() {
            self.closing
                .write(0, &close.iter().map(|(page, _)| page * SLOT_TOKENS as u32).collect::<Vec<_>>())?;
            self.slots.write(0, &close.iter().map(|(page, _)| *page).collect::<Vec<_>>())?;
            self.coded.write(0, &close.iter().map(|(_, coded)| *coded).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Returns the cells that were refused since the last call, as pages with a bit for each cell: their values are not finite
    /// in f16, or a codec could not hold a row of their page.
    ///
    /// # Errors
    /// Errors of the driver, also of earlier kernels.
    pub fn take_lost(&self) -> Result<Vec<(u32, u64)>, Failure> {
        let mut words = alloc::vec![0; self.lost.len()];
        self.lost.read(0, &mut words)?;
        let pages = words.as_chunks::<2>().0.iter().enumerate();
        let lost: Vec<(u32, u64)> = pages
            .map(|(page, [low, high])| (page as u32, u64::from(*low) | u64::from(*high) << 32))
            .filter(|(_, cells)| *cells != 0)
            .collect();
        if !lost.is_empty() {
            self.lost.zero()?;
        }
        Ok(lost)
    }

    pub(super) fn row(&self) -> usize {
        self.stream_pages * SLOT_TOKENS + self.exact
    }

    pub(super) fn launch(
        &self,
        kernel: usize,
        grid: [usize; 3],
        threads: usize,
        rows: &CellRows,
    ) -> Result<(), Failure> {
        if grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: these kernels take a CellRows. The methods that call this one checked its sizes, and their callers
        // promise the callers' memory.
        unsafe { self.kernels.launch(self.device.stream(), kernel, grid, threads, false, rows) }
    }

    /// Turns a caller's mask into what [`CellPool::attend`] adds to the logits of a stream: f16 \[queries\]\[`stride`],
    /// from the stream's first cell on. [`Address::NONE`] stands for a mask of zeros.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for more than [`MOST_QUERIES`] queries, and for cells beyond the stream's.
    pub fn show(
        &self,
        stream: usize,
        mask: Address,
        stride: usize,
        queries: usize,
        seen: usize,
    ) -> Result<(), Failure> {
        assert!(stream < self.streams && queries <= MOST_QUERIES && seen <= self.stream_pages * SLOT_TOKENS);
        let rows = CellRows {
            cell_of: self.cell_of.address(),
            mask: mask.0,
            hidden: self.hidden.address(),
            bias: self.bias.address(),
            mask_stride: stride as u64,
            bias_stride: self.row() as u64,
            first: (stream * self.stream_pages * SLOT_TOKENS) as u64,
            cells: (self.stream_pages * SLOT_TOKENS) as u64,
            seen: seen as u64,
            count: self.exact as u32,
            ..CellRows::default()
        };
        let positions = seen.next_multiple_of(SLOT_TOKENS) + self.exact;
        self.launch(SHOW, [positions.div_ceil(256), queries, 1], 256, &rows)
    }
}
