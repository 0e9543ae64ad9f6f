//! Buffers and kernels that a layer on the GPU owns. `Paged` holds them; its methods are in the files that use the
//! buffers.

use super::driver::{Buffer, Kernels};
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::Mutex;

/// Buffers that keep their addresses for the life of a layer, except the pool.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) pool: Buffer<u8>,
    pub(super) table: Buffer<u32>,
    pub(super) sequences: Buffer<u32>,
    pub(super) exact: Buffer<u16>,
    pub(super) fronts: Buffer<f32>,
    /// The values of the fields of keys, and codes that kernels look up in shared memory: of keys, then of
    /// values.
    pub(super) entries: Buffer<u32>,
    /// Outliers of pages: pieces of memory, which are added one by one and do not move.
    pub(super) outliers: Mutex<Vec<Buffer<u32>>>,
}

/// Buffers of a decode step.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) query_heads: usize,
    pub(super) splits: usize,
    pub(super) exact_splits: usize,
    /// Whether most blocks of threads take several rounds of slots.
    pub(super) several: bool,
    /// Whether the blocks of threads that take pages take exact tokens too. Otherwise some blocks take
    /// exact tokens alone.
    pub(super) together: bool,
    pub(super) queries: Buffer<f32>,
    pub(super) output: Buffer<f32>,
    pub(super) sink_logits: Buffer<f32>,
    pub(super) parts: Buffer<f32>,
    pub(super) sums: Buffer<f32>,
}

/// Rows on the GPU that become pages.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) rows: Buffer<u16>,
    pub(super) slots: Buffer<u32>,
    pub(super) front: Buffer<f32>,
    pub(super) refused: Buffer<u32>,
}

/// A kernel that encodes a part of each row.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) kernels: Arc<Kernels>,
    pub(super) kernel: usize,
    pub(super) part: Part,
}

/// The part of each row that a kernel encodes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Keys,
    Values,
    /// A half of the channels of keys, by number.
    Half(usize),
}

/// The kernels on callers' rows, and their results.
#[derive(Debug)]
pub(super) struct RowKernels {
    pub(super) kernels: Kernels,
    pub(super) doubtful: Buffer<u32>,
    /// For each sequence, why it takes no more steps; 0 if it does.
    pub(super) flags: Buffer<u32>,
}

/// Biases of some sequences on the GPU.
#[derive(Debug)]
pub(super) struct Biases {
    pub(super) values: Buffer<f32>,
    /// The first value of each sequence.
    pub(super) starts: Buffer<u64>,
    /// Positions of each sequence when the biases were written.
    pub(super) positions: Vec<u64>,
    /// 1, or one row for each query head.
    pub(super) rows: usize,
}
