//! Rows of tokens on the GPU: exact rows in a ring, and rows in a caller's memory. Steps on a caller's
//! queries.

use super::compile::{Numbers, Source, load};
use super::driver::{Buffer, CallerStream};
use super::failure::Failure;
use super::held::RowKernels;
use super::inputs::{DeviceRows, DeviceSlice, Input, Rows};
use super::layout::{Given, Steps};
use super::paged::{Attention, Paged};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

const NAMES: [&core::ffi::CStr; 4] = [c"check", c"take", c"widen", c"step"];
const CHECK: usize = 0;
const TAKE: usize = 1;
const WIDEN: usize = 2;
const STEP: usize = 3;
const STEP_THREADS: usize = 256;
const THREADS: usize = 128;
/// Rows that a block of threads takes, one for each warp.
const EACH: usize = THREADS / 32;

impl Paged {
    fn row_kernels(&mut self) -> Result<Arc<RowKernels>, Failure> {
        if let Some(row_kernels) = &self.row_kernels {
            return Ok(row_kernels.clone());
        }
        let kernels = load(&self.device, Source::Rows, &self.target, &Numbers::default(), &NAMES)?;
        let flags = Buffer::new(&self.device, self.shape.sequences)?;
        let row_kernels = Arc::new(RowKernels { kernels, doubtful: Buffer::new(&self.device, 1)?, flags });
        // Steps read these zeros on a caller's streams.
        self.device.synchronize()?;
        self.row_kernels = Some(row_kernels.clone());
        Ok(row_kernels)
    }

    /// Launches a kernel on some of these tokens.
    ///
    /// # Safety
    /// At each address that is not zero there is space for what the kernel writes.
    unsafe fn launch_rows(
        &self,
        row_kernels: &RowKernels,
        kernel: usize,
        rows: &DeviceRows,
        tokens: Range<usize>,
        (to, wide, bounds): (u64, u64, [f32; 2]),
    ) -> Result<(), Failure> {
        let (heads, dim) = (self.shape.kv_heads, self.shape.dim);
        assert!(tokens.end <= rows.tokens && rows.fits(heads, dim) && tokens.end < 1 << 31);
        if tokens.is_empty() {
            return Ok(());
        }
        let given = Given {
            sides: [rows.keys.address(), rows.values.address()],
            rows: to,
            wide,
            doubtful: row_kernels.doubtful.address(),
            token_stride: rows.token_stride as u64,
            head_stride: rows.head_stride as u64,
            first: tokens.start as u32,
            count: tokens.len() as u32,
            kv_heads: heads as u32,
            dim: dim as u32,
            floats: rows.keys.number(),
            bounds,
        };
        let grid = [(tokens.len() * heads * 2).div_ceil(EACH), 1, 1];
        // SAFETY: these kernels take a Given. Rows lie within the memory that the caller described, as
        // asserted above. The caller promises the space for what kernels write.
        unsafe { row_kernels.kernels.launch(self.device.stream(), kernel, grid, THREADS, false, &given) }
    }

    /// Returns whether a codec surely accepts a caller's rows: f16 holds the values, and the squared norms
    /// of keys and of values are below `bounds`.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics for rows beyond their memory.
    pub fn check_rows(&mut self, rows: &DeviceRows, bounds: [f32; 2]) -> Result<bool, Failure> {
        let row_kernels = self.row_kernels()?;
        // SAFETY: this kernel writes to neither address.
        unsafe { self.launch_rows(&row_kernels, CHECK, rows, 0..rows.tokens, (0, 0, bounds)) }?;
        let mut doubtful = [0];
        row_kernels.doubtful.read(0, &mut doubtful)?;
        if doubtful[0] != 0 {
            row_kernels.doubtful.write(0, &[0])?;
        }
        Ok(doubtful[0] == 0)
    }

    /// Adds one token to each of some sequences, on a caller's stream. Token i of `rows` belongs to the
    /// i-th sequence.
    ///
    /// A sequence stops if a squared norm is not below `bounds`, or if its window already has `window`
    /// tokens. [`stepped`](Self::stepped) returns that. Unless the stream is captured, the step runs after
    /// earlier work of this layer and before later work.
    ///
    /// It returns `false` for a captured stream before the kernels are loaded.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics for rows beyond their memory, for another number of tokens, and for sequences that do not
    /// exist.
    pub fn step_rows(
        &mut self,
        of: Range<usize>,
        rows: &DeviceRows,
        bounds: [f32; 2],
        window: usize,
        caller: CallerStream,
    ) -> Result<bool, Failure> {
        let shape = self.shape;
        assert!(rows.tokens == of.len() && rows.fits(shape.kv_heads, shape.dim));
        assert!(window <= shape.ring && window <= shape.exact - shape.sinks);
        let captured = self.is_captured(caller)?;
        if captured && self.row_kernels.is_none() {
            return Ok(false);
        }
        let (row_kernels, held) = (self.row_kernels()?, self.held_of(&of));
        let steps = Steps {
            sides: [rows.keys.address(), rows.values.address()],
            exact: held.exact,
            sequences: held.sequences,
            flags: row_kernels.flags.address() + 4 * of.start as u64,
            token_stride: rows.token_stride as u64,
            head_stride: rows.head_stride as u64,
            exact_stride: shape.exact_places() as u32,
            ring: shape.ring as u32,
            most: window as u32,
            kv_heads: shape.kv_heads as u32,
            dim: shape.dim as u32,
            floats: rows.keys.number(),
            bounds,
        };
        if !captured {
            self.before(caller)?;
        }
        // SAFETY: this kernel takes a Steps. Rows lie within the memory that the caller described, and
        // places within the ring, as asserted above. Sequences' words were checked when written, and the
        // kernel obeys the window's bound.
        unsafe {
            row_kernels.kernels.launch(
                caller.stream(),
                STEP,
                [of.len(), 1, 1],
                STEP_THREADS,
                false,
                &steps,
            )?;
        }
        if !captured {
            self.after(caller)?;
        }
        Ok(true)
    }

    /// Returns, for each sequence, the position of its next token as the GPU counts it, and why it has
    /// stopped: 0 if it has not. Stopped sequences can continue.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn stepped(&mut self) -> Result<Vec<(u64, u32)>, Failure> {
        let Some(row_kernels) = self.row_kernels.clone() else {
            return Ok(self.positions.iter().map(|next| (*next, 0)).collect());
        };
        let count = self.shape.sequences;
        let (mut words, mut flags) = (vec![0; 8 * count], vec![0; count]);
        self.held.sequences.read(0, &mut words)?;
        row_kernels.flags.read(0, &mut flags)?;
        if flags.iter().any(|flag| *flag != 0) {
            row_kernels.flags.write(0, &vec![0; count])?;
        }
        let next = |words: &[u32]| u64::from(words[4]) | u64::from(words[5]) << 32;
        Ok(words.chunks_exact(8).map(next).zip(flags).collect())
    }

    /// Sets the position of a sequence's next token, which the GPU has counted.
    ///
    /// # Panics
    /// Panics for a sequence that does not exist.
    pub fn count(&mut self, sequence: usize, next: u64) {
        self.positions[sequence] = next;
    }

    /// Copies a caller's keys and values to the host in f32, \[kv heads]\[tokens]\[width].
    ///
    /// # Errors
    /// Errors of the compiler and the driver; [`Failure::Memory`].
    ///
    /// # Panics
    /// Panics for rows beyond their memory.
    pub fn widen(&mut self, rows: &DeviceRows) -> Result<[Vec<f32>; 2], Failure> {
        let row_kernels = self.row_kernels()?;
        let each = rows.tokens * self.shape.kv_heads * self.shape.dim;
        let wide: Buffer<f32> = Buffer::new(&self.device, 2 * each)?;
        // SAFETY: the buffer holds all keys, then all values, in f32.
        unsafe {
            self.launch_rows(&row_kernels, WIDEN, rows, 0..rows.tokens, (0, wide.address(), [0.0; 2]))
        }?;
        let mut sides = [vec![0.0; each], vec![0.0; each]];
        for (number, side) in sides.iter_mut().enumerate() {
            wide.read(number * each, side)?;
        }
        Ok(sides)
    }

    /// Copies rows of some new tokens to a place among others in f16.
    fn bring(
        &mut self,
        to: &Buffer<u16>,
        at: usize,
        input: Input,
        tokens: Range<usize>,
    ) -> Result<(), Failure> {
        let each = self.shape.token_values();
        match input {
            Input::Host(rows) => to.write(at * each, &rows[tokens.start * each..tokens.end * each]),
            Input::Device(rows) => {
                assert!((at + tokens.len()) * each <= to.len());
                let row_kernels = self.row_kernels()?;
                let address = to.address() + (at * each * 2) as u64;
                // SAFETY: the assertion above proves the space for these tokens in f16.
                unsafe { self.launch_rows(&row_kernels, TAKE, rows, tokens, (address, 0, [0.0; 2])) }
            }
        }
    }

    /// Copies new tokens to places of a sequence's exact tokens: the ring, then sinks.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics for places and tokens that do not exist.
    pub fn store(
        &mut self,
        sequence: usize,
        place: usize,
        input: Input,
        tokens: Range<usize>,
    ) -> Result<(), Failure> {
        let places = self.shape.exact_places();
        assert!(sequence < self.shape.sequences && place + tokens.len() <= places);
        let held = self.held.clone();
        self.bring(&held.exact, sequence * places + place, input, tokens)
    }

    /// Reads rows of a sequence's exact tokens, \[places]\[kv heads]\[keys, values]\[width], as
    /// [`store`](Self::store) wrote them.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for places that do not exist.
    pub fn load(&self, sequence: usize, places: Range<usize>) -> Result<Vec<u16>, Failure> {
        let (all, each) = (self.shape.exact_places(), self.shape.token_values());
        assert!(sequence < self.shape.sequences && places.end <= all);
        let mut rows = vec![0; places.len() * each];
        self.held.exact.read((sequence * all + places.start) * each, &mut rows)?;
        Ok(rows)
    }

    /// Copies the exact tokens of sequence `from` to sequence `to`.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for sequences that do not exist.
    pub fn copy_exact(&mut self, from: usize, to: usize) -> Result<(), Failure> {
        let values = self.shape.exact_places() * self.shape.token_values();
        assert!(from < self.shape.sequences && to < self.shape.sequences);
        if from == to {
            return Ok(());
        }
        self.held.exact.copy(to * values, &self.held.exact, from * values, values)
    }

    /// Copies some of these rows, by number, to the beginning of a buffer.
    pub(super) fn gather(
        &mut self,
        to: &Buffer<u16>,
        rows: &Rows,
        tokens: Range<usize>,
    ) -> Result<(), Failure> {
        let (each, places) = (self.shape.token_values(), self.shape.exact_places());
        assert!(tokens.end <= rows.tokens() && rows.sequence < self.shape.sequences);
        let (mut before, mut at) = (0, 0);
        let mut mine = |count: usize| {
            let some = tokens.start.max(before)..tokens.end.min(before + count);
            let some = (some.start < some.end).then(|| some.start - before..some.end - before);
            before += count;
            let place = at;
            at += some.as_ref().map_or(0, Range::len);
            some.map(|some| (some, place))
        };
        for held in &rows.held {
            assert!(held.end <= places);
            let Some((some, place)) = mine(held.len()) else { continue };
            let from = rows.sequence * places + held.start + some.start;
            to.copy(place * each, &self.held.exact, from * each, some.len() * each)?;
        }
        if let Some((some, place)) = mine(rows.new.len()) {
            let first = rows.new.start;
            self.bring(to, place, rows.input, first + some.start..first + some.end)?;
        }
        Ok(())
    }

    /// Copies some of these rows to the host.
    ///
    /// # Errors
    /// Errors of the compiler and the driver; [`Failure::Memory`].
    ///
    /// # Panics
    /// Panics for tokens that do not exist.
    pub fn read_rows(&mut self, rows: &Rows, tokens: Range<usize>) -> Result<Vec<u16>, Failure> {
        let mut values = vec![0; tokens.len() * self.shape.token_values()];
        let buffer = Buffer::new(&self.device, values.len())?;
        self.gather(&buffer, rows, tokens)?;
        buffer.read(0, &mut values)?;
        Ok(values)
    }

    /// Returns whether work on a caller's stream goes into a graph.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn is_captured(&self, caller: CallerStream) -> Result<bool, Failure> {
        caller.is_captured(&self.device)
    }

    /// Orders later work of this layer after all earlier work of a caller's stream.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn after(&mut self, caller: CallerStream) -> Result<(), Failure> {
        self.event.after(caller)
    }

    /// Orders later work of a caller's stream after all earlier work of this layer.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn before(&mut self, caller: CallerStream) -> Result<(), Failure> {
        self.event.before(caller)
    }

    /// Runs a decode step of some sequences on a caller's stream, on queries on the GPU,
    /// \[sequences]\[query heads]\[width].
    ///
    /// Unless the stream is captured, the step runs after earlier work of this layer and before later work.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics for other lengths, for addresses that are not multiples of 16, and without
    /// [`reserve`](Self::reserve).
    pub fn attend_on(
        &mut self,
        attention: &Attention,
        queries: DeviceSlice,
        output: DeviceSlice,
        caller: CallerStream,
        of: Range<usize>,
    ) -> Result<(), Failure> {
        let kernels = self.kernels(attention.options())?;
        let each = self.work().query_heads * self.shape.dim;
        assert!(queries.len() == of.len() * each && queries.len() == output.len());
        assert!(queries.is_aligned() && output.is_aligned());
        // A captured stream cannot wait for a stream outside of its graph.
        let alone = self.is_captured(caller)?;
        if !alone {
            self.before(caller)?;
        }
        let asked = self.step_on(caller.stream(), &kernels, attention, Some([queries, output]), of);
        if alone {
            return asked;
        }
        let ordered = self.after(caller);
        asked.and(ordered)
    }
}
