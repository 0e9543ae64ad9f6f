//! Rows of tokens on the GPU: exact ones, which stay in a ring, and those that a caller has there; and steps on a caller's queries.

use super::compile::{Numbers, Source, load};
use super::driver::{Buffer, CallerStream};
use super::failure::Failure;
use super::given::{DeviceRows, DeviceSlice, Input, Rows};
use super::held::Taking;
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
/// Rows of a block of threads.
const EACH: usize = THREADS / 32;

impl Paged {
    fn taking(&mut self) -> Result<Arc<Taking>, Failure> {
        if let Some(taking) = &self.taking {
            return Ok(taking.clone());
        }
        let kernels = load(&self.device, Source::Rows, &self.target, &Numbers::default(), &NAMES)?;
        let flags = Buffer::new(&self.device, self.shape.sequences)?;
        let taking = Arc::new(Taking { kernels, doubtful: Buffer::new(&self.device, 1)?, flags });
        // Steps read these zeros on streams of the caller's.
        self.device.synchronize()?;
        self.taking = Some(taking.clone());
        Ok(taking)
    }

    /// Launches a kernel on some tokens of these.
    ///
    /// # Safety
    /// At the addresses that are not zero there is room for what the kernel writes of these tokens.
    unsafe fn launch_rows(
        &self,
        taking: &Taking,
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
            doubtful: taking.doubtful.address(),
            token_stride: rows.token_stride as u64,
            head_stride: rows.head_stride as u64,
            first: tokens.start as u32,
            count: tokens.len() as u32,
            kv_heads: heads as u32,
            dim: dim as u32,
            float: rows.keys.number(),
            bounds,
        };
        let grid = [(tokens.len() * heads * 2).div_ceil(EACH), 1, 1];
        // SAFETY: a Given is what these kernels take; rows lie within what was promised of the caller's memory, as asserted above,
        // and what is written there is room for, says the caller.
        unsafe { taking.kernels.launch(self.device.stream(), kernel, grid, THREADS, false, &given) }
    }

    /// Whether a caller's rows are surely fit: values that f16 holds, and squares of norms of keys and of values below these bounds.
    ///
    /// # Errors
    /// What compiling and the driver refuse.
    ///
    /// # Panics
    /// For rows beyond their memory.
    pub fn check_rows(&mut self, rows: &DeviceRows, bounds: [f32; 2]) -> Result<bool, Failure> {
        let taking = self.taking()?;
        // SAFETY: this kernel writes to neither.
        unsafe { self.launch_rows(&taking, CHECK, rows, 0..rows.tokens, (0, 0, bounds)) }?;
        let mut doubtful = [0];
        taking.doubtful.read(0, &mut doubtful)?;
        if doubtful[0] != 0 {
            taking.doubtful.write(0, &[0])?;
        }
        Ok(doubtful[0] == 0)
    }

    /// Asks a caller's stream to give each of some sequences one token, whose rows are those of as many tokens here. Squares of norms are below
    /// these bounds and the window has room for so many tokens, or the sequence stops: [`stepped`](Self::stepped) says so. Unless the
    /// stream is captured, this comes after what has been asked here, and what is asked here next comes after it.
    ///
    /// # Errors
    /// What compiling and the driver refuse; `false` for a captured stream before the kernels are there.
    ///
    /// # Panics
    /// For rows beyond their memory, another number of tokens, and sequences that there are not.
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
        if captured && self.taking.is_none() {
            return Ok(false);
        }
        let (taking, held) = (self.taking()?, self.held_of(&of));
        let steps = Steps {
            sides: [rows.keys.address(), rows.values.address()],
            exact: held.exact,
            sequences: held.sequences,
            flags: taking.flags.address() + 4 * of.start as u64,
            token_stride: rows.token_stride as u64,
            head_stride: rows.head_stride as u64,
            exact_stride: shape.exact_places() as u32,
            ring: shape.ring as u32,
            most: window as u32,
            kv_heads: shape.kv_heads as u32,
            dim: shape.dim as u32,
            float: rows.keys.number(),
            bounds,
        };
        if !captured {
            self.before(caller)?;
        }
        // SAFETY: Steps is what this kernel takes; rows lie within what was promised of the caller's memory and places within the ring,
        // as asserted above; sequences' words were checked when they were written, and the kernel keeps to the window's bound.
        unsafe {
            taking.kernels.launch(caller.stream(), STEP, [of.len(), 1, 1], STEP_THREADS, false, &steps)?;
        }
        if !captured {
            self.after(caller)?;
        }
        Ok(true)
    }

    /// Of each sequence the position of its next token, as the GPU has counted it, and why it has stopped: 0 where it has not.
    /// What stopped goes on.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn stepped(&mut self) -> Result<Vec<(u64, u32)>, Failure> {
        let Some(taking) = self.taking.clone() else {
            return Ok(self.positions.iter().map(|next| (*next, 0)).collect());
        };
        let count = self.shape.sequences;
        let (mut words, mut flags) = (vec![0; 8 * count], vec![0; count]);
        self.held.sequences.read(0, &mut words)?;
        taking.flags.read(0, &mut flags)?;
        if flags.iter().any(|flag| *flag != 0) {
            taking.flags.write(0, &vec![0; count])?;
        }
        let next = |words: &[u32]| u64::from(words[4]) | u64::from(words[5]) << 32;
        Ok(words.chunks_exact(8).map(next).zip(flags).collect())
    }

    /// The GPU has counted so far by itself.
    ///
    /// # Panics
    /// For a sequence that there is not.
    pub fn count(&mut self, sequence: usize, next: u64) {
        self.positions[sequence] = next;
    }

    /// A caller's keys and values, \[kv heads]\[tokens]\[width], on the host.
    ///
    /// # Errors
    /// What compiling and the driver refuse, [`Failure::Memory`].
    ///
    /// # Panics
    /// For rows beyond their memory.
    pub fn widen(&mut self, rows: &DeviceRows) -> Result<[Vec<f32>; 2], Failure> {
        let taking = self.taking()?;
        let each = rows.tokens * self.shape.kv_heads * self.shape.dim;
        let wide: Buffer<f32> = Buffer::new(&self.device, 2 * each)?;
        // SAFETY: all keys, then all values, in f32.
        unsafe { self.launch_rows(&taking, WIDEN, rows, 0..rows.tokens, (0, wide.address(), [0.0; 2])) }?;
        let mut sides = [vec![0.0; each], vec![0.0; each]];
        for (number, side) in sides.iter_mut().enumerate() {
            wide.read(number * each, side)?;
        }
        Ok(sides)
    }

    /// Rows of some tokens that come to a place among others of f16.
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
                let taking = self.taking()?;
                let address = to.address() + (at * each * 2) as u64;
                // SAFETY: asserted above: so many tokens' values, in f16.
                unsafe { self.launch_rows(&taking, TAKE, rows, tokens, (address, 0, [0.0; 2])) }
            }
        }
    }

    /// Puts tokens that come to a place among a sequence's exact ones: the ring, then sinks.
    ///
    /// # Errors
    /// What compiling and the driver refuse.
    ///
    /// # Panics
    /// For places and tokens that there are not.
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

    /// Rows of a sequence's exact tokens, \[places]\[kv heads]\[keys, values]\[width]: what was [stored](Self::store) there.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Panics
    /// For places that there are not.
    pub fn load(&self, sequence: usize, places: Range<usize>) -> Result<Vec<u16>, Failure> {
        let (all, each) = (self.shape.exact_places(), self.shape.token_values());
        assert!(sequence < self.shape.sequences && places.end <= all);
        let mut rows = vec![0; places.len() * each];
        self.held.exact.read((sequence * all + places.start) * each, &mut rows)?;
        Ok(rows)
    }

    /// Makes the exact tokens of a sequence those of another one.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Panics
    /// For sequences that there are not.
    pub fn copy_exact(&mut self, from: usize, to: usize) -> Result<(), Failure> {
        let values = self.shape.exact_places() * self.shape.token_values();
        assert!(from < self.shape.sequences && to < self.shape.sequences);
        if from == to {
            return Ok(());
        }
        self.held.exact.copy(to * values, &self.held.exact, from * values, values)
    }

    /// Puts some of these rows, by their number, at the beginning of a buffer.
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

    /// Some of these rows on the host.
    ///
    /// # Errors
    /// What compiling and the driver refuse, [`Failure::Memory`].
    ///
    /// # Panics
    /// For tokens that there are not.
    pub fn read_rows(&mut self, rows: &Rows, tokens: Range<usize>) -> Result<Vec<u16>, Failure> {
        let mut values = vec![0; tokens.len() * self.shape.token_values()];
        let buffer = Buffer::new(&self.device, values.len())?;
        self.gather(&buffer, rows, tokens)?;
        buffer.read(0, &mut values)?;
        Ok(values)
    }

    /// Whether what a caller's stream is asked goes into a graph.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn is_captured(&self, caller: CallerStream) -> Result<bool, Failure> {
        caller.is_captured(&self.device)
    }

    /// What is asked from now on comes after what a caller's stream has been asked.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn after(&mut self, caller: CallerStream) -> Result<(), Failure> {
        self.event.after(caller)
    }

    /// What a caller's stream is asked from now on comes after what has been asked here.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn before(&mut self, caller: CallerStream) -> Result<(), Failure> {
        self.event.before(caller)
    }

    /// Asks a caller's stream for a step of some sequences on queries that lie on the GPU, \[sequences]\[query heads]\[width]. Unless it is captured, the step comes
    /// after what has been asked here, and what is asked here next comes after it.
    ///
    /// # Errors
    /// What compiling and the driver refuse.
    ///
    /// # Panics
    /// For other lengths, addresses that are not multiples of 16, and without [`reserve`](Self::reserve).
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
        // A captured stream and another cannot wait for each other but as parts of one graph.
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
