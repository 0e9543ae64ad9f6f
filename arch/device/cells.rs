//! Pages of cells on the GPU: rows that a caller writes in any order, under a caller's mask.
//!
//! ```text
//! place    64 of them hold an open page in f16; others hold single exact rows of closed pages
//! slot     a closed page; a page has the slot of its own number
//!
//! write    a caller's rows ──► places                attend   slots and places × a caller's queries ──► output
//! open     slots ──► an area in f16                  encode   pages of an area ──► slots
//! recall   places ──► area                           stash    area ──► places
//! ```
//!
//! Layers of one cache have the same pages in the same places, so they share a [`CellPlan`].

mod plan;
mod scratch;

pub use plan::CellPlan;
pub use scratch::Scratch;

use super::compile::{Job, Numbers, Source, compile_all, load};
use super::driver::{Buffer, Device, Kernels};
use super::encode::Encoded;
use super::failure::Failure;
use super::held::Work;
use super::layout::{Bias, Block, CellRows, Open, Params, SLOT_TOKENS, Shape, words_of};
use super::layout::{Sequence, WIDTHS};
use super::paged::{
    ATTEND, COMBINE, COMBINE_FEW, COMBINE_FEW_THREADS, COMBINE_THREADS, EXACT_TOKENS, FEW, HEADS, MOST_SLOTS,
    Paged, RESIDENT, RESIDENT_WIDE, THREADS, WARPS,
};
use super::tables::Tables;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The largest number of queries of each head that [`CellPool::attend`] takes.
pub const MOST_QUERIES: usize = 16;

/// Pages that are encoded at once.
const PAGES_AT_ONCE: usize = 32;

const ROW_NAMES: [&core::ffi::CStr; 5] = [c"write", c"show", c"stash", c"recall", c"gather"];
const WRITE: usize = 0;
const SHOW: usize = 1;
const STASH: usize = 2;
const RECALL: usize = 3;
const GATHER: usize = 4;

/// An address on the GPU in a caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(u64);

impl Address {
    /// No memory.
    pub const NONE: Self = Self(0);

    /// Wraps an address.
    ///
    /// # Safety
    /// * All that the call with this address reads or writes lies there, in the primary context of the GPU of the call's
    ///   layer, at a multiple of 16 bytes.
    /// * It stays there until the device has done the work of the call. Others write what is read, or use what is written,
    ///   only in an order with this work that events define.
    #[must_use]
    pub const unsafe fn new(address: u64) -> Self {
        Self(address)
    }

    /// Returns the address `bytes` bytes behind.
    #[must_use]
    pub const fn behind(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes as u64))
    }
}

/// Rows of all cells in f16: keys, and values, \[cells\]\[kv heads\]\[width].
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// The address of the first cell's key.
    pub keys: Address,
    /// The address of its value.
    pub values: Address,
    /// The number of cells, a multiple of 64.
    pub cells: usize,
}

/// Rows that a caller writes to cells of open pages.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Keys, and values: the address of f32 rows, and floats from a row to the next. A side may be left out.
    pub rows: [Option<(Address, usize)>; 2],
    /// The address of the cells' numbers, from `first` on.
    pub indices: Address,
    /// Whether these have 64 bits, or 32.
    pub wide: bool,
    /// The number of rows.
    pub count: usize,
    /// The cell that the numbers count from.
    pub first: usize,
}

/// The computation of [`CellPool::attend`].
#[derive(Clone, Copy, Debug)]
pub struct CellAttention {
    /// The stream.
    pub stream: usize,
    /// The address of f32 queries, \[queries\]\[query heads\]\[width].
    pub queries: Address,
    /// The address of the f32 output, likewise.
    pub output: Address,
    /// Queries of each head, at most [`MOST_QUERIES`].
    pub count: usize,
    /// logit = scale · q·k.
    pub scale: f32,
    /// logit = cap · tanh(logit/cap); 0 switches it off.
    pub soft_cap: f32,
    /// The address of a logit for each query head, or [`Address::NONE`].
    pub sink_logits: Address,
}

/// Keys and values of one layer in cells.
#[derive(Debug)]
pub struct CellPool {
    paged: Paged,
    query_heads: usize,
    work: Option<Arc<Work>>,
    incoming: Option<Arc<Buffer<u16>>>,
    open: Option<Arc<Kernels>>,
    mean: Arc<Buffer<f32>>,
    numbers: Numbers,
}

/// Returns the shape of a pool: one sequence, whose exact rows are places.
fn shape_of((dim, kv_heads, centres): (usize, usize, bool), (pages, exact): (usize, usize)) -> Shape {
    Shape {
        dim,
        kv_heads,
        page_tokens: SLOT_TOKENS,
        centres,
        sequences: 1,
        pages,
        pages_each: pages,
        exact,
        sinks: 0,
        ring: exact,
        outliers: [false; 2],
    }
}

impl CellPool {
    /// Allocates slots for `pages` pages and `exact` places, with keys and values of width `dim`.
    ///
    /// # Errors
    /// [`Failure::Memory`], [`Failure::SharedMemory`]; errors of the driver.
    ///
    /// # Panics
    /// Panics for sizes that [`Shape`] excludes.
    pub fn new(
        device: &Device,
        (dim, kv_heads, centres): (usize, usize, bool),
        (pages, exact): (usize, usize),
        tables: (Tables, Tables),
        steps: &[u16; 256],
        centre: (&[i16; 32], &[f32; 31], f32),
    ) -> Result<Self, Failure> {
        let shape = shape_of((dim, kv_heads, centres), (pages, exact));
        assert!(WIDTHS.contains(&dim));
        let paged = Paged::new(device, shape, tables, steps, centre)?;
        let numbers = paged.numbers();
        let mean = Arc::new(Buffer::new(device, dim)?);
        Ok(Self { paged, query_heads: 0, work: None, incoming: None, open: None, mean, numbers })
    }

    /// Returns the bytes of slots and places of such a layer.
    #[must_use]
    pub fn bytes_of(
        (dim, kv_heads, centres): (usize, usize, bool),
        (pages, exact): (usize, usize),
        tables: &(Tables, Tables),
    ) -> usize {
        let shape = shape_of((dim, kv_heads, centres), (pages, exact));
        let slots =
            pages.saturating_mul(kv_heads).saturating_mul(shape.slot_bytes(tables.0.shape, tables.1.shape));
        slots.saturating_add(exact.saturating_mul(2 * shape.token_values()))
    }

    /// Returns the bytes of this layer's slots and places.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let shape = &self.paged.shape;
        shape.pages * self.paged.gpu_page_bytes() + 2 * shape.exact * shape.token_values()
    }

    /// Compiles kernels, and allocates memory, for steps of `query_heads` query heads. Takes both from a layer with equal
    /// codecs if there is one. Later calls neither compile nor allocate.
    ///
    /// # Errors
    /// [`Failure::Memory`]; errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics unless `query_heads` is a multiple of the key/value heads.
    pub fn prepare(&mut self, query_heads: usize, like: &[&Self]) -> Result<(), Failure> {
        let heads = self.paged.shape.kv_heads;
        assert!(query_heads > 0 && query_heads.is_multiple_of(heads) && query_heads < 1 << 16);
        let same = |other: &&&Self| {
            other.numbers.whole == self.numbers.whole && other.numbers.halves == self.numbers.halves
        };
        if let Some(other) = like.iter().find(same) {
            self.paged.kernels = other.paged.kernels.clone();
            self.paged.encoders = other.paged.encoders.clone();
            self.open = other.open.clone();
        }
        if let Some(other) = like.iter().find(|other| other.paged.shape == self.paged.shape) {
            self.incoming = other.incoming.clone();
            self.work = other.work.clone().filter(|work| work.query_heads == query_heads);
        }
        self.paged.kernels(2)?;
        self.paged.encoders()?;
        if self.open.is_none() {
            let job = self.open_job();
            let mut kernels = load(&self.paged.device, job.source, &job.target, &job.numbers, &[c"open"])?;
            kernels.share(0, 4 * SLOT_TOKENS * self.paged.shape.dim.next_multiple_of(64))?;
            self.open = Some(Arc::new(kernels));
        }
        if self.incoming.is_none() {
            let values = SLOT_TOKENS * self.paged.shape.token_values();
            self.incoming = Some(Arc::new(Buffer::new(&self.paged.device, PAGES_AT_ONCE * values)?));
        }
        if self.work.is_none() {
            self.work = Some(Arc::new(self.work_for(query_heads)?));
        }
        self.query_heads = query_heads;
        self.paged.device.synchronize()
    }

    fn open_job(&self) -> Job {
        let mut numbers = self.numbers.clone();
        numbers.whole.push(("OPTIONS", 0));
        Job { source: Source::Open, target: self.paged.target.clone(), numbers }
    }

    /// Compiles the kernels of these pools and of their plan, as far as they are missing, side by side.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub fn compile(device: &Device, pools: &[&Self]) -> Result<(), Failure> {
        let mut jobs = vec![plan::job(device)];
        for pool in pools {
            jobs.extend([pool.paged.attend_job(2), pool.open_job()]);
            jobs.extend(pool.paged.encoder_jobs());
        }
        compile_all(&jobs)
    }

    /// Allocates the memory of a step with as many splits as fill the GPU with one query.
    fn work_for(&self, query_heads: usize) -> Result<Work, Failure> {
        let (shape, device) = (&self.paged.shape, &self.paged.device);
        let units = shape.kv_heads * (query_heads / shape.kv_heads).div_ceil(HEADS);
        let exact_splits = shape.exact.div_ceil(EXACT_TOKENS);
        let resident = if shape.dim > 128 { RESIDENT_WIDE } else { RESIDENT } * device.multiprocessors();
        let once = (resident / units).max(1);
        let filling = if once < 32 { (4 * resident / units).max(1) } else { once };
        let splits = filling.min(shape.pages.div_ceil(4)).max(shape.pages.div_ceil(MOST_SLOTS)).max(1);
        let together = units * (splits + exact_splits) > resident && exact_splits <= splits;
        let rows = MOST_QUERIES * units * (splits + exact_splits) * HEADS;
        Ok(Work {
            query_heads,
            splits,
            exact_splits,
            several: shape.pages.div_ceil(WARPS) > splits,
            together,
            queries: Buffer::new(device, 0)?,
            output: Buffer::new(device, 0)?,
            sink_logits: Buffer::new(device, 0)?,
            parts: Buffer::new(device, rows * shape.dim)?,
            sums: Buffer::new(device, 2 * rows)?,
        })
    }

    /// Writes balance and prefix centre of each head, \[kv heads\]\[balance, prefix centre\]\[width].
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for another length.
    pub fn set_front(&self, front: &[f32]) -> Result<(), Failure> {
        assert_eq!(front.len(), self.paged.shape.front_values());
        self.paged.held.fronts.write(0, front)
    }

    /// Writes a caller's rows to cells of open pages. Rows of other cells are left out.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn write(&self, plan: &CellPlan, write: &Write) -> Result<(), Failure> {
        let cells = plan.places.len() * SLOT_TOKENS;
        assert!(write.first <= cells && write.count < 1 << 31 && plan.exact <= self.paged.shape.exact);
        let [keys, values] = write.rows;
        let given = [keys, values].map(|side| side.unwrap_or((Address::NONE, 0)));
        let rows = CellRows {
            rows: given.map(|(rows, _)| rows.0),
            indices: write.indices.0,
            places: plan.places.address(),
            row_stride: given.map(|(_, stride)| stride as u64),
            first: write.first as u64,
            cells: (cells - write.first) as u64,
            side: keys.is_none().into(),
            wide: write.wide.into(),
            lost: plan.lost.address(),
            ..self.rows()
        };
        let (shape, sides) = (&self.paged.shape, keys.iter().chain(&values).count());
        let parts = (shape.kv_heads * shape.dim).div_ceil(THREADS);
        plan.launch(WRITE, [write.count, sides, parts], THREADS, &rows)
    }

    fn rows(&self) -> CellRows {
        CellRows {
            exact: self.paged.held.exact.address(),
            kv_heads: self.paged.shape.kv_heads as u32,
            dim: self.paged.shape.dim as u32,
            ..CellRows::default()
        }
    }

    fn within(&self, plan: &CellPlan, area: &Area) -> CellRows {
        let cells = self.paged.shape.pages * SLOT_TOKENS;
        assert!(area.cells == cells && plan.places.len() == self.paged.shape.pages);
        assert!(plan.exact == self.paged.shape.exact);
        CellRows {
            scratch: [area.keys.0, area.values.0],
            cells: cells as u64,
            seen: cells as u64,
            lost: plan.lost.address(),
            ..self.rows()
        }
    }

    /// Decodes the pages that [`CellPlan::set_opening`] named, and copies the rows in places, to an area. Cells of other pages
    /// stay as they are.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for an area that is not of all cells, and before [`prepare`](Self::prepare).
    pub fn open(&self, plan: &CellPlan, area: &Area) -> Result<(), Failure> {
        let (shape, held) = (&self.paged.shape, &self.paged.held);
        let rows = self.within(plan, area);
        let Some(kernels) = &self.open else { unreachable!("`prepare` comes first") };
        if plan.counts[0] > 0 {
            let open = Open {
                keys: area.keys.0,
                values: area.values.0,
                block: self.block(held.pool.address(), plan.opening.address(), held.fronts.address()),
            };
            let grid = [plan.counts[0], shape.kv_heads, 1];
            // SAFETY: the kernel takes an Open. Pages are below the pool's, and in the area that the caller promises.
            unsafe { kernels.launch(self.paged.device.stream(), 0, grid, THREADS, false, &open) }?;
        }
        let rows = CellRows { cell_of: plan.cell_of.address(), ..rows };
        plan.launch(RECALL, [plan.exact, 1, 1], THREADS, &rows)
    }

    fn block(&self, pool: u64, table: u64, fronts: u64) -> Block {
        let (keys, values) = (&self.paged.keys, &self.paged.values);
        Block {
            queries: 0,
            output: 0,
            pool,
            table,
            sequences: 0,
            exact: 0,
            fronts,
            sink_logits: 0,
            tokens: 0,
            tiles: 0,
            query_rows: 0,
            units: 0,
            scales: 0,
            means: self.mean.address(),
            parts: 0,
            sums: 0,
            entries: self.paged.held.entries.address(),
            window: 0,
            position: 0,
            query_heads: 0,
            kv_heads: self.paged.shape.kv_heads as u32,
            table_stride: 0,
            exact_stride: 0,
            queries_each: 0,
            padded: 0,
            splits: 0,
            first_tile: 0,
            keep_sinks: 0,
            key_rounds: keys.rounds,
            value_rounds: values.rounds,
            at_once: 0,
            ring: 0,
            query_type: 0,
            output_type: 0,
            logit_unit: 0.0,
            key_unit: keys.key_unit(),
            centre_unit: self.paged.centre_unit,
            value_unit: values.unit,
            soft_cap: 0.0,
            key_signs: keys.signs,
            value_signs: values.signs,
            key_centroids: keys.centroids,
            value_centroids: values.centroids,
            bias: Bias { values: 0, starts: 0, of_heads: 0 },
            coarse_centroids: keys.halves.as_ref().map_or([0.0; 128], |halves| halves[1].centroids),
            coarse_unit: keys.coarse_unit(),
        }
    }

    /// Copies rows of an area to places, and encodes pages of it, as [`CellPlan::set_closing`] said.
    ///
    /// # Errors
    /// Errors of the driver. [`CellPlan::take_lost`] says which rows could not be held.
    ///
    /// # Panics
    /// Panics for an area that is not of all cells, and before [`prepare`](Self::prepare).
    pub fn close(&mut self, plan: &CellPlan, area: &Area) -> Result<(), Failure> {
        let (shape, rows) = (self.paged.shape, self.within(plan, area));
        let Some(incoming) = self.incoming.clone() else { unreachable!("`prepare` comes first") };
        let stash = CellRows { cell_of: plan.stash.address(), ..rows };
        plan.launch(STASH, [plan.counts[1], 1, 1], THREADS, &stash)?;
        let encoders = self.paged.encoders()?;
        for first in (0..plan.counts[2]).step_by(PAGES_AT_ONCE) {
            let (count, at) = (PAGES_AT_ONCE.min(plan.counts[2] - first), first as u64);
            let gather = CellRows {
                pages: plan.closing.address() + 4 * at,
                coded: plan.coded.address() + 8 * at,
                out: incoming.address(),
                ..rows
            };
            plan.launch(GATHER, [count, shape.kv_heads, 2], THREADS, &gather)?;
            let from = Encoded {
                rows: incoming.address(),
                slots: plan.slots.address() + 4 * at,
                front: self.paged.held.fronts.address(),
                refused: plan.refused.address(),
                lost: plan.lost.address(),
                position: u64::MAX,
            };
            // SAFETY: `set_closing` checked the pages, and `prepare` sized `incoming` for them. Both outlive the kernels:
            // freeing waits for them.
            unsafe { self.paged.launch_encoders_on(&encoders, &from, count) }?;
        }
        Ok(())
    }

    /// Computes attention on the pages that [`CellPlan::set_table`] named and on all places, with the biases of the last
    /// [`CellPlan::show`].
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for too many queries, and before [`prepare`](Self::prepare).
    pub fn attend(&mut self, plan: &CellPlan, attention: &CellAttention) -> Result<(), Failure> {
        let kernels = self.paged.kernels(2)?;
        let (shape, held) = (&self.paged.shape, &self.paged.held);
        let Some(work) = &self.work else { unreachable!("`prepare` comes first") };
        assert!(attention.stream < plan.streams && attention.count <= MOST_QUERIES);
        assert!(plan.exact == shape.exact && plan.places.len() == shape.pages);
        let (keys, values, log2e) = (&self.paged.keys, &self.paged.values, core::f32::consts::LOG2_E);
        let row = attention.stream * MOST_QUERIES;
        let params = Params {
            queries: attention.queries.0,
            output: attention.output.0,
            pool: held.pool.address(),
            table: plan.table.address() + 4 * (attention.stream * plan.stream_pages) as u64,
            sequences: plan.words.address() + 4 * 8 * row as u64,
            exact: held.exact.address(),
            fronts: held.fronts.address(),
            sink_logits: attention.sink_logits.0,
            parts: work.parts.address(),
            sums: work.sums.address(),
            entries: held.entries.address(),
            window: 0,
            query_heads: work.query_heads as u32,
            kv_heads: shape.kv_heads as u32,
            table_stride: 0,
            exact_stride: 0,
            splits: work.splits as u32,
            exact_splits: work.exact_splits as u32,
            keep_sinks: 0,
            key_rounds: keys.rounds,
            value_rounds: values.rounds,
            several: work.several.into(),
            ring: shape.ring as u32,
            query_type: 0,
            output_type: 0,
            zero: 0,
            together: work.together.into(),
            one_front: 1,
            logit_unit: attention.scale * log2e,
            key_unit: keys.key_unit(),
            centre_unit: self.paged.centre_unit,
            value_unit: values.unit,
            soft_cap: attention.soft_cap * log2e,
            key_signs: keys.signs,
            value_signs: values.signs,
            key_table: keys.words,
            value_table: values.words,
            bias: Bias {
                values: plan.bias.address(),
                starts: plan.starts.address() + 8 * row as u64,
                of_heads: 0,
            },
            coarse_table: keys.halves.as_ref().map_or([0; 32], |halves| halves[1].words),
            coarse_unit: keys.coarse_unit(),
        };
        let units = shape.kv_heads * (work.query_heads / shape.kv_heads).div_ceil(HEADS);
        let own = if work.together { 0 } else { work.exact_splits };
        let grid = [own + work.splits, units, attention.count];
        let few = work.splits + work.exact_splits <= FEW;
        let (combine, threads) =
            if few { (COMBINE_FEW, COMBINE_FEW_THREADS) } else { (COMBINE, COMBINE_THREADS) };
        let (early, stream) = (self.paged.starts_early(), self.paged.device.stream());
        // SAFETY: both kernels take a Params. The plan checked tables and places when they were written, and `work_for`
        // sized parts and sums for these splits. The caller promises queries, output and sink logits.
        unsafe {
            kernels.launch(stream, ATTEND, grid, THREADS, early, &params)?;
            kernels.launch(stream, combine, [work.query_heads, attention.count, 1], threads, early, &params)
        }
    }

    /// Sets all rows in places to zeros.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn zero_places(&self) -> Result<(), Failure> {
        self.paged.held.exact.zero()
    }

    /// Copies rows of an area to the host: f16 of these cells, keys or values.
    ///
    /// # Errors
    /// Errors of the driver, also of earlier kernels.
    ///
    /// # Panics
    /// Panics for cells outside of the area.
    pub fn read(&self, area: &Area, values: bool, cells: Range<usize>) -> Result<Vec<u8>, Failure> {
        assert!(cells.start <= cells.end && cells.end <= area.cells);
        let row = 2 * self.paged.shape.kv_heads * self.paged.shape.dim;
        let mut bytes = vec![0; cells.len() * row];
        let from = if values { area.values } else { area.keys }.behind(cells.start * row);
        // SAFETY: the caller promises the area, which has these cells.
        unsafe { self.paged.device.read_at(from.0, &mut bytes) }?;
        Ok(bytes)
    }

    /// Copies rows of consecutive cells from the host to an area.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for bytes beyond the area.
    pub fn bring(&self, area: &Area, values: bool, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let row = 2 * self.paged.shape.kv_heads * self.paged.shape.dim;
        assert!(at.saturating_add(bytes.len()) <= area.cells * row);
        let to = if values { area.values } else { area.keys }.behind(at);
        // SAFETY: the caller promises the area, which has these bytes.
        unsafe { self.paged.device.write_at(to.0, bytes) }
    }
}
