//! Pages of one layer on a GPU, for several sequences, and decode attention on them.
//!
//! ```text
//! attend    blocks of threads: [splits, units, sequences]   a unit is a key/value head and at most 8 query heads
//!           split 0 │ split 1 │ … │ exact tokens            each writes weighted sums of its tokens
//! combine   blocks of threads: [query heads, sequences]     adds the parts, rotates back, writes the output
//! ```

use super::compile::{Job, Numbers, Source, load};
use super::driver::{Buffer, Device, Event, Kernels, Stream};
use super::failure::{Failure, Vendor};
use super::held::{Biases, Encoder, Held, Incoming, RowKernels, Work};
use super::inputs::DeviceSlice;
use super::layout::{Params, SLOT_TOKENS, Sequence, Shape, WIDTHS, words_of};
use super::lists::{LIST_WORDS, Lists};
use super::tables::{CodeShape, Tables};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use std::env;
use std::sync::Mutex;

/// Query heads that share a look-up.
pub(super) const HEADS: usize = 8;
/// Exact tokens that a block of threads takes.
pub(super) const EXACT_TOKENS: usize = 32;
/// Slots of 64 tokens whose sum fits 32 bits: 255 · 128 for each token, and 2³⁰ that rounding adds before a
/// shift.
pub(super) const MOST_SLOTS: usize = 512;
const _: () = assert!(MOST_SLOTS * 64 * 255 * 128 + (1 << 30) < 1 << 31);
/// Blocks of threads on a multiprocessor, up to a width of 128 and beyond it.
pub(super) const RESIDENT: usize = 4;
pub(super) const RESIDENT_WIDE: usize = 2;
/// Slots that a block of threads takes at once, one for each warp.
pub(super) const WARPS: usize = 4;
pub(super) const THREADS: usize = 128;
pub(super) const COMBINE_THREADS: usize = 512;
/// For a small number of splits, at most `FEW`.
pub(super) const COMBINE_FEW_THREADS: usize = 160;
pub(super) const FEW: usize = 45;
/// Pages that are copied at once.
pub(super) const CROSSING: usize = 64;

/// The kernels of an image, by number.
const NAMES: [&core::ffi::CStr; 5] = [c"upload", c"download", c"attend", c"combine", c"combine_few"];
pub(super) const ATTEND: usize = 2;
pub(super) const COMBINE: usize = 3;
pub(super) const COMBINE_FEW: usize = 4;

/// Options of attention. A captured step keeps them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// logit = scale · q·k.
    pub scale: f32,
    /// logit = cap · tanh(logit/cap); 0 switches it off.
    pub soft_cap: f32,
    /// Visible positions; 0 for all.
    pub window: u64,
    /// Whether sinks outside of the window are visible.
    pub keep_sinks: bool,
    /// Whether to use the sink logits.
    pub sink_logits: bool,
    /// Whether to add the biases that were last [set](Paged::set_bias).
    pub biased: bool,
}

impl Attention {
    /// Returns which kernels to compile: 0 for plain ones, 1 for a cap or a window, 2 for biases.
    pub(super) fn options(&self) -> usize {
        let some = self.soft_cap != 0.0 || self.window != 0;
        if self.biased { 2 } else { some.into() }
    }
}

/// Addresses of what sequences hold.
pub(super) struct Addresses {
    pub(super) pool: u64,
    pub(super) table: u64,
    pub(super) sequences: u64,
    pub(super) exact: u64,
    pub(super) fronts: u64,
    pub(super) entries: u64,
}

/// Pages of one layer on a GPU.
#[derive(Debug)]
pub struct Paged {
    pub(super) device: Device,
    pub(super) target: String,
    pub(super) shape: Shape,
    pub(super) keys: Tables,
    pub(super) values: Tables,
    pub(super) centre_unit: f32,
    pub(super) steps: Buffer<u16>,
    pub(super) book: Buffer<i16>,
    pub(super) book_thresholds: Buffer<f32>,
    /// The tables of encoding where cells do not suffice: triplets and codes of keys, then of values.
    pub(super) search: Buffer<u32>,
    pub(super) crossing: Buffer<u8>,
    pub(super) crossing_slots: Buffer<u32>,
    pub(super) crossing_lists: Buffer<u32>,
    pub(super) lists: Lists,
    pub(super) held: Arc<Held>,
    /// Kernels of decode steps, by [`Attention::options`].
    pub(super) kernels: [Option<Arc<Kernels>>; 3],
    work: Option<Arc<Work>>,
    /// Kernels of blocks of queries, likewise.
    pub(super) blocks: [Option<Arc<Kernels>>; 3],
    pub(super) bias: Option<Biases>,
    /// The position of each sequence's next token.
    pub(super) positions: Vec<u64>,
    pub(super) encoders: Option<Arc<[Encoder]>>,
    pub(super) incoming: Option<Arc<Incoming>>,
    pub(super) row_kernels: Option<Arc<RowKernels>>,
    /// Orders this layer's work with that of a caller's stream.
    pub(super) event: Event,
}

impl Paged {
    /// Allocates a layer. `steps` are the values of the four scales of norms, 64 each. `book` has the 32
    /// centroids of a centre, with their thresholds, and what an integer is worth.
    ///
    /// # Errors
    /// [`Failure::Memory`], [`Failure::SharedMemory`]; errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics for sizes that [`Shape`] excludes.
    pub fn new(
        device: &Device,
        shape: Shape,
        (keys, values): (Tables, Tables),
        steps: &[u16; 256],
        (book, thresholds, centre_unit): (&[i16; 32], &[f32; 31], f32),
    ) -> Result<Self, Failure> {
        assert!(WIDTHS.contains(&shape.dim) && matches!(shape.page_tokens, 64 | 128 | 256));
        assert!(shape.kv_heads > 0 && shape.sequences > 0 && shape.sequences < 1 << 16);
        assert!(shape.sinks <= shape.exact && shape.exact - shape.sinks <= shape.ring);
        device.has_shared(step_bytes(&shape, &keys, &values))?;
        let slots = shape.pages.saturating_mul(shape.slots_of_page());
        assert!(slots < 1 << 31 && shape.pages_each.saturating_mul(shape.slots_of_page()) < 1 << 31);
        let pool =
            slots.saturating_mul(shape.kv_heads).saturating_mul(shape.slot_bytes(keys.shape, values.shape));
        let table = shape.sequences.saturating_mul(shape.pages_each * shape.slots_of_page());
        let exact = shape.exact_places().saturating_mul(shape.sequences).saturating_mul(shape.token_values());
        let held = Held {
            pool: Buffer::new(device, pool)?,
            table: Buffer::new(device, table)?,
            sequences: Buffer::new(device, shape.sequences * 8)?,
            exact: Buffer::new(device, exact)?,
            fronts: Buffer::new(device, shape.sequences * shape.front_values())?,
            entries: Buffer::new(device, keys.entries.len() + values.entries.len())?,
            outliers: Mutex::default(),
        };
        let page_bytes = shape.page_bytes(keys.shape, values.shape);
        let search = keys.search.len() + values.search.len();
        let slots = CROSSING * shape.slots_of_page();
        let lists = if shape.outliers_number() > 0 { slots * shape.kv_heads * LIST_WORDS } else { 0 };
        let mut paged = Self {
            device: device.clone(),
            target: target(device),
            shape,
            keys,
            values,
            centre_unit,
            steps: Buffer::new(device, 256)?,
            book: Buffer::new(device, 32)?,
            book_thresholds: Buffer::new(device, 31)?,
            search: Buffer::new(device, search)?,
            crossing: Buffer::new(device, CROSSING * page_bytes)?,
            crossing_slots: Buffer::new(device, slots)?,
            crossing_lists: Buffer::new(device, lists)?,
            lists: Lists::new(&shape),
            held: Arc::new(held),
            kernels: [None, None, None],
            work: None,
            blocks: [None, None, None],
            bias: None,
            positions: alloc::vec![0; shape.sequences],
            encoders: None,
            incoming: None,
            row_kernels: None,
            event: Event::new(device)?,
        };
        paged.steps.write(0, steps)?;
        paged.held.entries.write(0, &paged.keys.entries)?;
        paged.held.entries.write(paged.keys.entries.len(), &paged.values.entries)?;
        paged.search.write(0, &paged.keys.search)?;
        paged.search.write(paged.keys.search.len(), &paged.values.search)?;
        paged.book.write(0, book)?;
        paged.book_thresholds.write(0, thresholds)?;
        paged.add_outliers(0)?;
        Ok(paged)
    }

    /// Returns the bytes of a page on the CPU.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.shape.page_bytes(self.keys.shape, self.values.shape)
    }

    /// Returns the bytes of a page on the GPU.
    #[must_use]
    pub fn gpu_page_bytes(&self) -> usize {
        self.shape.slots_of_page()
            * self.shape.kv_heads
            * self.shape.slot_bytes(self.keys.shape, self.values.shape)
    }

    /// Returns the values of the exact rows of a token: \[kv heads]\[keys, values]\[width].
    #[must_use]
    pub fn token_values(&self) -> usize {
        self.shape.token_values()
    }

    /// Returns what [`kernels`](Self::kernels) compiles.
    pub(super) fn attend_job(&self, options: usize) -> Job {
        let mut numbers = self.numbers();
        numbers.whole.push(("OPTIONS", options as u32));
        Job { source: Source::Attend, target: self.target.clone(), numbers }
    }

    /// Returns the kernels, and compiles them at their first use.
    pub(super) fn kernels(&mut self, options: usize) -> Result<Arc<Kernels>, Failure> {
        if let Some(kernels) = &self.kernels[options] {
            return Ok(kernels.clone());
        }
        let job = self.attend_job(options);
        let mut kernels = load(&self.device, job.source, &job.target, &job.numbers, &NAMES)?;
        kernels.share(ATTEND, step_bytes(&self.shape, &self.keys, &self.values))?;
        let kernels = Arc::new(kernels);
        self.kernels[options] = Some(kernels.clone());
        Ok(kernels)
    }

    /// Returns the addresses of what sequences `of` hold. Kernels count sequences from the first of these.
    pub(super) fn held_of(&self, of: &Range<usize>) -> Addresses {
        let (shape, held, first) = (&self.shape, &self.held, of.start as u64);
        assert!(of.start < of.end && of.end <= shape.sequences, "{of:?} of {} sequences", shape.sequences);
        let slots = (shape.pages_each * shape.slots_of_page()) as u64;
        let exact = (shape.exact_places() * shape.token_values()) as u64;
        Addresses {
            pool: held.pool.address(),
            table: held.table.address() + 4 * first * slots,
            sequences: held.sequences.address() + 4 * 8 * first,
            exact: held.exact.address() + 2 * first * exact,
            fronts: held.fronts.address() + 4 * first * shape.front_values() as u64,
            entries: held.entries.address(),
        }
    }

    /// Returns the numbers that all kernels are compiled with.
    pub(super) fn numbers(&self) -> Numbers {
        let (shape, keys, values) = (&self.shape, self.keys.shape, self.values.shape);
        let whole = vec![
            ("DIM", shape.dim as u32),
            ("KEYS", keys.number()),
            ("VALUES", values.number()),
            ("CENTRES", shape.centres.into()),
            ("TRIPLETS", keys.triplets()),
            ("OUTLIERS", shape.outliers_number()),
            ("COARSE_AT", shape.coarse_at(keys, values) as u32),
            ("KEY_BYTES", shape.key_part(keys, values) as u32),
        ];
        let of_values = if matches!(values, CodeShape::Groups(_)) { 0 } else { 2 * SLOT_TOKENS as u32 };
        let half = |half: CodeShape, value_steps: u32| {
            vec![
                ("DIM", shape.dim as u32 / 2),
                ("KEYS", half.number()),
                ("VALUES", half.number()),
                ("OUTLIERS", 0),
                ("COARSE_AT", 0),
                ("OF_HALF", 1),
                ("VALUE_STEPS", value_steps),
            ]
        };
        let halves = keys.halves().map(|[fine, coarse]| [half(fine, of_values), half(coarse, 0)]);
        Numbers { whole, halves }
    }

    /// Returns the consecutive slots of a page.
    pub(super) fn slots_of(&self, page: u32) -> Range<u32> {
        assert!((page as usize) < self.shape.pages, "page {page} of {}", self.shape.pages);
        let each = self.shape.slots_of_page() as u32;
        page * each..(page + 1) * each
    }

    /// Sets what a sequence holds, except exact tokens, which [`store`](Self::store) writes. `front` is
    /// \[kv heads]\[balance, prefix centre]\[width].
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for numbers beyond the [`Shape`], and for other lengths.
    pub fn set(&mut self, number: usize, sequence: &Sequence, front: &[f32]) -> Result<(), Failure> {
        let shape = self.shape;
        assert_eq!(front.len(), shape.front_values());
        assert!(number < shape.sequences && sequence.pages.len() <= shape.pages_each);
        let slots: Vec<u32> = sequence.pages.iter().flat_map(|page| self.slots_of(*page)).collect();
        self.held.table.write(number * shape.pages_each * shape.slots_of_page(), &slots)?;
        self.held.fronts.write(number * front.len(), front)?;
        self.extend(number, sequence)
    }

    /// Sets what a sequence holds after only exact tokens were added.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for numbers beyond the [`Shape`], and for other lengths.
    pub fn extend(&mut self, number: usize, sequence: &Sequence) -> Result<(), Failure> {
        let shape = self.shape;
        assert!(number < shape.sequences && sequence.exact <= shape.exact && sequence.sinks <= shape.sinks);
        assert!(sequence.place < shape.ring && sequence.exact - sequence.sinks <= shape.ring);
        let slots = sequence.pages.len() * shape.slots_of_page();
        self.held.sequences.write(8 * number, &words_of(sequence, slots))?;
        self.positions[number] = sequence.next;
        Ok(())
    }

    /// Allocates the memory of steps with `query_heads` query heads. `splits` parts of a sequence's pages
    /// run in parallel; `None` chooses as many as fill the GPU.
    ///
    /// # Errors
    /// [`Failure::Memory`].
    ///
    /// # Panics
    /// Panics unless `query_heads` is a multiple of the key/value heads.
    pub fn reserve(&mut self, query_heads: usize, splits: Option<usize>) -> Result<(), Failure> {
        if self.work.as_ref().is_some_and(|work| work.query_heads == query_heads) && splits.is_none() {
            return Ok(());
        }
        let shape = &self.shape;
        assert!(query_heads > 0 && query_heads.is_multiple_of(shape.kv_heads) && query_heads < 1 << 16);
        let units = shape.kv_heads * (query_heads / shape.kv_heads).div_ceil(HEADS);
        assert!(units < 1 << 16);
        let all = units * shape.sequences;
        let exact_splits = shape.exact.div_ceil(EXACT_TOKENS);
        let each = if shape.dim > 128 { RESIDENT_WIDE } else { RESIDENT };
        let resident = each * self.device.multiprocessors();
        let once = resident / all;
        // With many units, splits are few. Four rounds of blocks of threads then end closer together than
        // one.
        let filling = if once < 32 { (4 * resident / all).max(1) } else { once };
        let slots = shape.pages_each * shape.slots_of_page();
        let splits = splits.unwrap_or(filling).min(slots.div_ceil(4)).max(slots.div_ceil(MOST_SLOTS)).max(1);
        // Separate blocks of threads for exact tokens end soonest, if no other block waits for a place
        // because of them.
        let together = all * (splits + exact_splits) > resident && exact_splits <= splits;
        let rows = all * (splits + exact_splits) * HEADS;
        let vectors = shape.sequences * query_heads * shape.dim;
        let work = Work {
            query_heads,
            splits,
            exact_splits,
            several: slots.div_ceil(WARPS) > splits,
            together,
            queries: Buffer::new(&self.device, vectors)?,
            output: Buffer::new(&self.device, vectors)?,
            sink_logits: Buffer::new(&self.device, query_heads)?,
            parts: Buffer::new(&self.device, rows * shape.dim)?,
            sums: Buffer::new(&self.device, 2 * rows)?,
        };
        // The device's stream zeroes the buffers, and a captured step runs on another stream. After an
        // error the old memory stays.
        self.device.synchronize()?;
        self.work = Some(Arc::new(work));
        Ok(())
    }

    /// Compiles the kernels of such a step.
    ///
    /// # Errors
    /// Errors of the compiler.
    pub fn prepare(&mut self, attention: &Attention) -> Result<(), Failure> {
        self.kernels(attention.options()).map(drop)
    }

    pub(super) fn work(&self) -> &Arc<Work> {
        match &self.work {
            Some(work) => work,
            None => unreachable!("steps come after `reserve`"),
        }
    }

    /// Copies the queries of the next step to the GPU, \[sequences]\[query heads]\[width].
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for another length, and without [`reserve`](Self::reserve).
    pub fn set_queries(&mut self, queries: &[f32]) -> Result<(), Failure> {
        assert_eq!(queries.len(), self.work().queries.len());
        self.work().queries.write(0, queries)
    }

    /// Copies the sink logits of all query heads to the GPU.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for another length, and without [`reserve`](Self::reserve).
    pub fn set_sink_logits(&mut self, logits: &[f32]) -> Result<(), Failure> {
        assert_eq!(logits.len(), self.work().query_heads);
        self.work().sink_logits.write(0, logits)
    }

    /// Reads the last step's output, \[sequences]\[query heads]\[width].
    ///
    /// # Errors
    /// Errors of the driver, also of earlier kernels.
    ///
    /// # Panics
    /// Panics for another length, and without [`reserve`](Self::reserve).
    pub fn output(&self, output: &mut [f32]) -> Result<(), Failure> {
        assert_eq!(output.len(), self.work().output.len());
        self.work().output.read(0, output)
    }

    /// Runs a step on the queries that were last set.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics without [`reserve`](Self::reserve), and for biases that were not [set](Self::set_bias) for
    /// these positions.
    pub fn attend(&mut self, attention: &Attention) -> Result<(), Failure> {
        let kernels = self.kernels(attention.options())?;
        self.step(self.device.stream(), &kernels, attention)
    }

    pub(super) fn step(
        &self,
        stream: Stream,
        kernels: &Kernels,
        attention: &Attention,
    ) -> Result<(), Failure> {
        self.step_on(stream, kernels, attention, None, 0..self.shape.sequences)
    }

    /// Runs a step of sequences `of`, on a caller's queries and output, or on the queries that were last
    /// set.
    pub(super) fn step_on(
        &self,
        stream: Stream,
        kernels: &Kernels,
        attention: &Attention,
        callers: Option<[DeviceSlice; 2]>,
        of: Range<usize>,
    ) -> Result<(), Failure> {
        let (shape, work) = (&self.shape, self.work());
        let held = self.held_of(&of);
        let log2e = core::f32::consts::LOG2_E;
        let params = Params {
            queries: callers.map_or(work.queries.address(), |[queries, _]| queries.address()),
            output: callers.map_or(work.output.address(), |[_, output]| output.address()),
            pool: held.pool,
            table: held.table,
            sequences: held.sequences,
            exact: held.exact,
            fronts: held.fronts,
            sink_logits: if attention.sink_logits { work.sink_logits.address() } else { 0 },
            parts: work.parts.address(),
            sums: work.sums.address(),
            entries: held.entries,
            window: attention.window,
            query_heads: work.query_heads as u32,
            kv_heads: shape.kv_heads as u32,
            table_stride: (shape.pages_each * shape.slots_of_page()) as u32,
            exact_stride: shape.exact_places() as u32,
            splits: work.splits as u32,
            exact_splits: work.exact_splits as u32,
            keep_sinks: attention.keep_sinks.into(),
            key_rounds: self.keys.rounds,
            value_rounds: self.values.rounds,
            several: work.several.into(),
            ring: shape.ring as u32,
            query_type: callers.map_or(0, |[queries, _]| queries.number()),
            output_type: callers.map_or(0, |[_, output]| output.number()),
            zero: 0,
            together: work.together.into(),
            one_front: 0,
            logit_unit: attention.scale * log2e,
            key_unit: self.keys.key_unit(),
            centre_unit: self.centre_unit,
            value_unit: self.values.unit,
            soft_cap: attention.soft_cap * log2e,
            key_signs: self.keys.signs,
            value_signs: self.values.signs,
            key_table: self.keys.words,
            value_table: self.values.words,
            bias: self.bias(attention, work.query_heads, &of),
            coarse_table: self.keys.halves.as_ref().map_or([0; 32], |halves| halves[1].words),
            coarse_unit: self.keys.coarse_unit(),
        };
        let units = shape.kv_heads * (work.query_heads / shape.kv_heads).div_ceil(HEADS);
        let own = if work.together { 0 } else { work.exact_splits };
        let grid = [own + work.splits, units, of.len()];
        let few = work.splits + work.exact_splits <= FEW;
        let (combine, threads) =
            if few { (COMBINE_FEW, COMBINE_FEW_THREADS) } else { (COMBINE, COMBINE_THREADS) };
        let early = self.starts_early();
        // SAFETY: both kernels take a Params. Tables and sequences were checked when written, biases above.
        // Shape and work sized the buffers. `self` keeps them, or the captured step does; for a caller's
        // graph, the promise of `CallerStream::new` holds.
        unsafe {
            kernels.launch(stream, ATTEND, grid, THREADS, early, &params)?;
            kernels.launch(stream, combine, [work.query_heads, of.len(), 1], threads, early, &params)
        }
    }

    /// Returns whether kernels wait themselves for the kernel before them, as those for sm_90 and later do.
    pub(super) fn starts_early(&self) -> bool {
        let digits = self.target.trim_start_matches(|c: char| !c.is_ascii_digit());
        let number = digits.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>();
        number.is_ok_and(|number| number >= 90)
    }

    /// Grows the pool to `pages` pages. Pages keep their places in the pool, which moves.
    ///
    /// It returns `false` while a captured [`Step`](super::Step) uses the pool.
    ///
    /// # Errors
    /// [`Failure::Memory`] and errors of the driver. Nothing has changed then.
    ///
    /// # Panics
    /// Panics for fewer pages than before, and for 2³¹ slots or more.
    pub fn grow(&mut self, pages: usize) -> Result<bool, Failure> {
        let slots = pages.saturating_mul(self.shape.slots_of_page());
        assert!(pages >= self.shape.pages && slots < 1 << 31);
        let bytes = pages.saturating_mul(self.gpu_page_bytes());
        let Some(held) = Arc::get_mut(&mut self.held) else { return Ok(false) };
        let pool = Buffer::new(&self.device, bytes)?;
        pool.copy(0, &held.pool, 0, held.pool.len())?;
        // The old pool is freed below, after all work that reads it on any stream.
        self.device.synchronize()?;
        held.pool = pool;
        self.shape.pages = pages;
        self.lists.grow(pages);
        Ok(true)
    }
}

/// Returns the bytes of shared memory that a step needs for a block of threads, in addition to the kernel's
/// own.
fn step_bytes(shape: &Shape, keys: &Tables, values: &Tables) -> usize {
    let of_keys = (WARPS * shape.key_part(keys.shape, values.shape)).next_multiple_of(128);
    // Exact tokens come before values in the same place: rows with 16 bytes between them, and queries.
    let exact = 4 * (EXACT_TOKENS * (shape.dim + 4) + HEADS * shape.dim);
    let of_values = exact.max(WARPS * shape.value_part(values.shape));
    let fields = if keys.shape.triplets() > 0 { 4 * keys.entries.len() } else { 0 };
    of_keys + of_values.next_multiple_of(16) + exactly_bytes(shape) + fields
}

/// Returns the part of these bytes for outliers: weights, rows of queries and of sums, and descriptions of
/// slots.
fn exactly_bytes(shape: &Shape) -> usize {
    let rows = shape.outliers.iter().filter(|exact| **exact).count();
    let weights = WARPS * HEADS * (SLOT_TOKENS + 4);
    let all = 4 * (weights + rows * HEADS * (shape.dim + 4) + WARPS * LIST_WORDS);
    if rows > 0 { all } else { 0 }
}

/// Returns the target of the kernels: the GPU's architecture, or `OCTAPLEX_CUDA_TARGET`.
///
/// `compute_80` is PTX without bulk copies, which the driver compiles. `portable` is such PTX without
/// matrix products.
fn target(device: &Device) -> String {
    let said = || env::var("OCTAPLEX_CUDA_TARGET").ok();
    let said = if device.vendor() == Vendor::Nvidia { said() } else { None };
    said.unwrap_or_else(|| device.architecture().into())
}
