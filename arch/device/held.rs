//! Buffers that a layer on the GPU owns. `Paged` holds them; the files that use them add their methods to it.

use super::driver::{Buffer, Kernels};
use alloc::vec::Vec;
use std::sync::Mutex;

/// What stays where it is from the beginning.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) pool: Buffer<u8>,
    pub(super) table: Buffer<u32>,
    pub(super) sequences: Buffer<u32>,
    pub(super) exact: Buffer<u16>,
    pub(super) fronts: Buffer<f32>,
    /// What fields of keys stand for, and codes that are looked up in shared memory: keys', then values'.
    pub(super) entries: Buffer<u32>,
    /// Outliers of pages: pieces of memory that come one by one, and stay where they are.
    pub(super) outliers: Mutex<Vec<Buffer<u32>>>,
}

/// What a step works in.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) query_heads: usize,
    pub(super) splits: usize,
    pub(super) exact_splits: usize,
    /// Whether most blocks of threads have several rounds of slots.
    pub(super) several: bool,
    /// Whether blocks of threads take exact tokens beside pages, or some those alone.
    pub(super) together: bool,
    pub(super) queries: Buffer<f32>,
    pub(super) output: Buffer<f32>,
    pub(super) sink_logits: Buffer<f32>,
    pub(super) parts: Buffer<f32>,
    pub(super) sums: Buffer<f32>,
}

/// Rows on the GPU.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) rows: Buffer<u16>,
    pub(super) slots: Buffer<u32>,
    pub(super) front: Buffer<f32>,
    pub(super) refused: Buffer<u32>,
}

/// What looks at rows on the GPU.
#[derive(Debug)]
pub(super) struct Taking {
    pub(super) kernels: Kernels,
    pub(super) doubtful: Buffer<u32>,
    /// Of each sequence, why it takes no more steps: 0 where it does.
    pub(super) flags: Buffer<u32>,
}

/// Biases of all sequences on the GPU.
#[derive(Debug)]
pub(super) struct Biases {
    pub(super) values: Buffer<f32>,
    /// Of each sequence, where its first value is.
    pub(super) starts: Buffer<u64>,
    /// Positions of each of these sequences when they were set.
    pub(super) positions: Vec<u64>,
    /// 1, or one for each query head.
    pub(super) rows: usize,
}
