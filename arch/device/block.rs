//! Attention of blocks of queries on a GPU.
//!
//! ```text
//! measure   the largest key of each head ──► scales           ask      queries ──► f16, rotated
//!                                      ┌────────────────── for each group of tiles ──────────────┐
//! unfold    pages, exact tokens ──► tiles of 64 tokens in f16     block   tiles × queries ──► parts
//! finish    parts ──► output
//! ```

use super::compile::{PORTABLE, Source, load};
use super::driver::{Buffer, CallerStream, Kernels, time};
use super::failure::Failure;
use super::inputs::DeviceSlice;
use super::layout::{Block, WIDTHS};
use super::paged::{Attention, Paged};
use alloc::sync::Arc;
use alloc::vec::Vec;

const NAMES: [&core::ffi::CStr; 5] = [c"measure", c"ask", c"unfold", c"block", c"finish"];
const MEASURE: usize = 0;
const ASK: usize = 1;
const UNFOLD: usize = 2;
const BLOCK: usize = 3;
const FINISH: usize = 4;

/// Rows of queries that a block of threads takes.
const ROWS: usize = 128;
/// Tokens of a tile, and the maximum of tiles at a time.
const TILE: usize = 64;
const TILES_AT_ONCE: usize = 512;
/// Bytes of decoded tokens in f16 at a time, if they are more than one tile of all heads.
const TOKEN_BYTES: usize = 1 << 28;

/// Queries and where they are.
#[derive(Clone, Copy, Debug)]
pub enum Queries<'a> {
    /// On the host.
    Host(&'a [f32]),
    /// On the GPU.
    Device(DeviceSlice),
}

impl Queries<'_> {
    /// Returns the number of floats.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(queries) => queries.len(),
            Self::Device(queries) => queries.len(),
        }
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A block of queries of some sequences.
#[derive(Clone, Copy, Debug)]
pub struct QueryBlock<'a> {
    /// The first sequence, and their number.
    pub of: (usize, usize),
    /// \[sequences]\[query heads]\[queries]\[width].
    pub queries: Queries<'a>,
    /// Query heads of each sequence.
    pub query_heads: usize,
    /// Queries of each head, at consecutive positions.
    pub each: usize,
    /// Position of the first query. With `None` the last query is at the sequence's newest token.
    pub position: Option<u64>,
    /// A logit of each query head, if attention uses them.
    pub sink_logits: &'a [f32],
    /// The largest number of tiles of a sequence: of pages, sinks and window, 64 tokens each.
    pub tiles: usize,
}

/// The buffers of one call.
struct Work {
    queries: Buffer<f32>,
    output: Buffer<f32>,
    sink_logits: Buffer<f32>,
    tokens: Buffer<u8>,
    tiles: Buffer<u32>,
    query_rows: Buffer<u16>,
    units: Buffer<f32>,
    scales: Buffer<f32>,
    means: Buffer<f32>,
    parts: Buffer<f32>,
    sums: Buffer<f32>,
    padded: usize,
    splits: usize,
    at_once: usize,
}

impl Paged {
    fn block_kernels(&mut self, options: usize) -> Result<Arc<Kernels>, Failure> {
        assert!(WIDTHS.contains(&self.shape.dim));
        if let Some(kernels) = &self.blocks[options] {
            return Ok(kernels.clone());
        }
        let mut numbers = self.numbers();
        numbers.whole.push(("OPTIONS", options as u32));
        // Only Hopper has matrix products of four warps; its target for them is `sm_90a`.
        let of_hopper = self.target == "sm_90";
        let target = if of_hopper { "sm_90a" } else { &self.target };
        let mut kernels = load(&self.device, Source::Block, target, &numbers, &NAMES)?;
        kernels.share(BLOCK, shared_bytes(self.row(), &self.target))?;
        let kernels = Arc::new(kernels);
        self.blocks[options] = Some(kernels.clone());
        Ok(kernels)
    }

    /// Returns the bytes of a tile's keys and values in f16.
    fn tile_bytes(&self) -> usize {
        2 * TILE * self.row() * 2
    }

    fn sides(&self) -> usize {
        sides(self.row())
    }

    /// Returns the coordinates of a row in matrix products.
    fn row(&self) -> usize {
        self.shape.dim.next_multiple_of(64)
    }

    fn block_work(&self, request: &QueryBlock) -> Result<Work, Failure> {
        let (shape, device) = (&self.shape, &self.device);
        let of_host = match request.queries {
            Queries::Host(queries) => queries,
            Queries::Device(_) => &[],
        };
        let units = request.of.1 * shape.kv_heads;
        let padded = (request.each * request.query_heads / shape.kv_heads).next_multiple_of(ROWS);
        let fitting = (TOKEN_BYTES / self.tile_bytes() / units).max(1);
        let at_once = request.tiles.clamp(1, TILES_AT_ONCE.min(fitting));
        let splits = splits(padded / ROWS * units * self.sides(), device.multiprocessors(), at_once);
        let rows = units * padded;
        let work = Work {
            queries: Buffer::new(device, of_host.len())?,
            output: Buffer::new(device, of_host.len())?,
            sink_logits: Buffer::new(device, request.sink_logits.len())?,
            tokens: Buffer::new(device, units * at_once * self.tile_bytes())?,
            tiles: Buffer::new(device, request.of.1 * at_once * 4)?,
            query_rows: Buffer::new(device, rows * self.row())?,
            units: Buffer::new(device, 2 * rows)?,
            scales: Buffer::new(device, 2 * units)?,
            means: Buffer::new(device, units * shape.dim)?,
            parts: Buffer::new(device, splits * rows * self.row())?,
            sums: Buffer::new(device, 2 * self.sides() * splits * rows)?,
            padded,
            splits,
            at_once,
        };
        work.queries.write(0, of_host)?;
        work.sink_logits.write(0, request.sink_logits)?;
        Ok(work)
    }

    /// Computes attention of a block of queries. `output` has the shape of the queries. The call allocates
    /// its memory and frees it.
    ///
    /// # Errors
    /// [`Failure::Memory`]; errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics for lengths that contradict the [`Shape`](super::Shape).
    pub fn attend_block(
        &mut self,
        attention: &Attention,
        request: &QueryBlock,
        output: &mut [f32],
    ) -> Result<(), Failure> {
        assert_eq!(request.queries.len(), output.len());
        let kernels = self.block_kernels(attention.options())?;
        let work = self.block_work(request)?;
        self.launch_block(&kernels, &work, attention, request, None)?;
        work.output.read(0, output)
    }

    /// Computes the same for queries on the GPU, in the order of a caller's stream, and waits.
    ///
    /// # Errors
    /// The errors of [`attend_block`](Self::attend_block).
    ///
    /// # Panics
    /// As [`attend_block`](Self::attend_block), and for addresses that are not multiples of 16.
    pub fn attend_block_on(
        &mut self,
        attention: &Attention,
        request: &QueryBlock,
        output: DeviceSlice,
        caller: CallerStream,
    ) -> Result<(), Failure> {
        assert!(request.queries.len() == output.len() && output.is_aligned());
        let kernels = self.block_kernels(attention.options())?;
        let work = self.block_work(request)?;
        self.after(caller)?;
        let done = self.launch_block(&kernels, &work, attention, request, Some(output));
        let ordered = self.before(caller);
        done.and(ordered)?;
        self.device.synchronize()
    }

    /// Measures `times` runs of the kernels, in microseconds of the GPU's clock.
    ///
    /// # Errors
    /// The errors of [`attend_block`](Self::attend_block).
    ///
    /// # Panics
    /// As [`attend_block`](Self::attend_block).
    pub fn time_block(
        &mut self,
        attention: &Attention,
        request: &QueryBlock,
        times: usize,
    ) -> Result<Vec<f32>, Failure> {
        let kernels = self.block_kernels(attention.options())?;
        let work = self.block_work(request)?;
        time(&self.device, times, || self.launch_block(&kernels, &work, attention, request, None))
    }

    fn launch_block(
        &self,
        kernels: &Kernels,
        work: &Work,
        attention: &Attention,
        request: &QueryBlock,
        output: Option<DeviceSlice>,
    ) -> Result<(), Failure> {
        let (queries, query_type) = match request.queries {
            Queries::Host(_) => (work.queries.address(), 0),
            Queries::Device(queries) => {
                assert!(queries.is_aligned());
                (queries.address(), queries.number())
            }
        };
        let shape = &self.shape;
        let (heads, sequences) = (shape.kv_heads, request.of.1);
        let of = request.of.0..request.of.0 + sequences;
        let held = self.held_of(&of);
        assert!(request.query_heads.is_multiple_of(heads) && request.query_heads > 0);
        assert_eq!(request.queries.len(), sequences * request.query_heads * request.each * shape.dim);
        assert!(request.tiles > 0 && work.padded < 1 << 31);
        assert!(!attention.sink_logits || request.sink_logits.len() == request.query_heads);
        let log2e = core::f32::consts::LOG2_E;
        let params = Block {
            queries,
            output: output.map_or(work.output.address(), |output| output.address()),
            pool: held.pool,
            table: held.table,
            sequences: held.sequences,
            exact: held.exact,
            fronts: held.fronts,
            sink_logits: if attention.sink_logits { work.sink_logits.address() } else { 0 },
            tokens: work.tokens.address(),
            tiles: work.tiles.address(),
            query_rows: work.query_rows.address(),
            units: work.units.address(),
            scales: work.scales.address(),
            means: work.means.address(),
            parts: work.parts.address(),
            sums: work.sums.address(),
            entries: held.entries,
            window: attention.window,
            position: request.position.unwrap_or(u64::MAX),
            query_heads: request.query_heads as u32,
            kv_heads: heads as u32,
            table_stride: (shape.pages_each * shape.slots_of_page()) as u32,
            exact_stride: shape.exact_places() as u32,
            ring: shape.ring as u32,
            query_type,
            output_type: output.map_or(0, |output| output.number()),
            queries_each: request.each as u32,
            padded: work.padded as u32,
            splits: work.splits as u32,
            first_tile: 0,
            keep_sinks: attention.keep_sinks.into(),
            key_rounds: self.keys.rounds,
            value_rounds: self.values.rounds,
            at_once: work.at_once as u32,
            logit_unit: attention.scale * log2e,
            key_unit: self.keys.key_unit(),
            centre_unit: self.centre_unit,
            value_unit: self.values.unit,
            soft_cap: attention.soft_cap * log2e,
            key_signs: self.keys.signs,
            value_signs: self.values.signs,
            key_centroids: self.keys.centroids,
            value_centroids: self.values.centroids,
            bias: self.bias(attention, request.query_heads, &of),
            coarse_centroids: self.keys.halves.as_ref().map_or([0.0; 128], |halves| halves[1].centroids),
            coarse_unit: self.keys.coarse_unit(),
        };
        let launch = |kernel: usize, width: usize, threads: usize, first_tile: usize| {
            let params = Block { first_tile: first_tile as u32, ..params };
            let grid = if kernel == MEASURE { [heads, sequences, 1] } else { [width, heads, sequences] };
            // SAFETY: these kernels take a Block. Tables and sequences were checked when written, biases
            // above. `block_work` sized the buffers for these queries and this shape. Freeing them waits
            // for the kernels.
            unsafe { kernels.launch(self.device.stream(), kernel, grid, threads, false, &params) }
        };
        launch(MEASURE, 0, 256, 0)?;
        launch(ASK, work.padded / 4, 128, 0)?;
        for first in (0..request.tiles).step_by(work.at_once) {
            launch(UNFOLD, work.at_once.min(request.tiles - first), 128, first)?;
            launch(BLOCK, work.padded / ROWS * work.splits * self.sides(), 256, first)?;
        }
        launch(FINISH, work.padded / 4, 128, 0)
    }
}

/// Returns the number of blocks of threads that share the columns of a row.
fn sides(row: usize) -> usize {
    if row > 128 { 2 } else { 1 }
}

/// Returns the bytes of shared memory of one block: two tiles at a time, aligned to 1,024.
fn shared_bytes(row: usize, target: &str) -> usize {
    let keys = 2 * TILE * row * 2;
    let values = keys / sides(row);
    let stages = match target {
        "sm_90" if row > 192 => 2 * (keys + values),
        "sm_90" => 3 * (keys + values),
        // A tile of keys, the next tile of keys, then values: all in the same place.
        _ if target == PORTABLE || target.starts_with("gfx") => values.max(keys / 2),
        // With two sides, values overwrite keys.
        _ if sides(row) > 1 => keys,
        _ => keys + values,
    };
    stages + 1024
}

/// Returns into how many parts a sequence's tiles are split. Then the blocks of threads, one on each
/// multiprocessor, end close together.
fn splits(blocks: usize, multiprocessors: usize, tiles: usize) -> usize {
    // Time in thousandths of a pass over all tiles. Each split adds some for its own sums.
    let rounds = |splits: usize| {
        let taken = (blocks * splits).div_ceil(multiprocessors) * 1000;
        taken / splits + 30 * splits
    };
    let most = (multiprocessors / blocks).clamp(3, 64).min(tiles.div_ceil(4));
    (1..=most).min_by_key(|splits| rounds(*splits)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own shared memory: the list of tiles with one entry more, and their number. Entries are
    /// largest with biases.
    const OWN: usize = 16 * (TILES_AT_ONCE + 1) + 4;

    #[test]
    fn blocks_of_queries_fit_the_shared_memory_of_gpus() {
        let rows = WIDTHS.map(|dim| dim.next_multiple_of(64));
        let most = |target| rows.iter().map(|row| shared_bytes(*row, target) + OWN).max();
        assert!(rows.contains(&64) && rows.contains(&256));
        // Shared memory of AMD GPUs, of compute capability 8.6, and of Hopper.
        for (target, gives) in
            [("gfx90a:sramecc+:xnack-", 65_536), (PORTABLE, 65_536), ("sm_86", 101_376), ("sm_90", 232_448)]
        {
            assert!(
                most(target).is_some_and(|most| most <= gives),
                "{target}: {most:?} of {gives}",
                most = most(target)
            );
        }
        // As in the kernels' source.
        assert_eq!(
            rows.map(|row| shared_bytes(row, "sm_80") - 1024),
            [32, 64, 64, 64, 48, 64].map(|k| k << 10)
        );
        assert_eq!(
            rows.map(|row| shared_bytes(row, "sm_90") - 1024),
            [96, 192, 192, 192, 216, 192].map(|k| k << 10)
        );
        assert_eq!(
            rows.map(|row| shared_bytes(row, "gfx1100") - 1024),
            [16, 32, 32, 32, 24, 32].map(|k| k << 10)
        );
    }
}
