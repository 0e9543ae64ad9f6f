//! Pages of cells as they are kept: nothing, f16 rows, or coded.

use super::PAGE;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use octaplex_arch::{Backend as Kernels, Float};

/// A page.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// A bit for each cell that was ever written.
    pub(super) written: u64,
    /// A bit for each cell that was written since the page opened.
    pub(super) fresh: u64,
    /// A bit for each cell whose row has an infinity or a NaN: a weight of 0 does not make it vanish.
    pub(super) wild: u64,
    pub(super) body: Body,
    /// Centres of a page that was opened again, one a head: it closes around them, so that rows that nobody wrote get the
    /// codes that they had.
    pub(super) centres: Option<Arc<[u8]>>,
}

/// The rows of a page. Pages that were copied share them until one is written.
#[derive(Clone, Debug, Default)]
pub(super) enum Body {
    #[default]
    Empty,
    /// f16 rows, \[head]\[cell]\[width].
    Open(Arc<[u8]>),
    Closed(Arc<Closed>),
}

impl Body {
    /// Bytes, and whether another page holds them as well.
    pub(super) fn bytes(&self) -> (usize, bool) {
        match self {
            Self::Empty => (0, false),
            Self::Open(rows) => (rows.len(), Arc::strong_count(rows) > 1),
            Self::Closed(closed) => (closed.bytes(), Arc::strong_count(closed) > 1),
        }
    }
}

/// A coded page.
#[derive(Debug)]
pub(super) struct Closed {
    /// The parts of all heads, one behind the other.
    pub(super) parts: Vec<u8>,
    /// Where in `parts` each head ends.
    pub(super) ends: Vec<u32>,
    /// The first cells' rows in f16, \[head]\[cell]\[width].
    pub(super) exact: Vec<u8>,
}

impl Closed {
    fn bytes(&self) -> usize {
        self.parts.len() + 4 * self.ends.len() + self.exact.len()
    }

    /// The part of a head, and `lead` bytes in front of it.
    pub(super) fn part(&self, head: usize, lead: usize) -> &[u8] {
        let start = head.checked_sub(1).map_or(lead, |before| self.ends[before] as usize);
        &self.parts[start - lead..self.ends[head] as usize]
    }
}

/// The bits of infinity in f16.
const INFINITY: u32 = 0x7c00;

/// An open page of zeros.
pub(super) fn zeros(width: usize) -> Arc<[u8]> {
    Arc::from(vec![0; 2 * PAGE * width])
}

/// One row of all heads into an open page. Returns whether all its values are finite in f16.
pub(super) fn write_row(backend: Kernels, rows: &mut [u8], dim: usize, cell: usize, row: &[f32]) -> bool {
    let mut largest = 0;
    for (head, row) in rows.chunks_exact_mut(2 * PAGE * dim).zip(row.chunks_exact(dim)) {
        let bytes = &mut head[2 * cell * dim..][..2 * dim];
        backend.encode_floats(Float::F16, row, bytes);
        largest = backend.largest_bits(Float::F16, bytes).max(largest);
    }
    largest < INFINITY
}

/// The same from f16.
pub(super) fn copy_row(backend: Kernels, rows: &mut [u8], dim: usize, cell: usize, row: &[u8]) -> bool {
    for (head, row) in rows.chunks_exact_mut(2 * PAGE * dim).zip(row.chunks_exact(2 * dim)) {
        head[2 * cell * dim..][..2 * dim].copy_from_slice(row);
    }
    backend.largest_bits(Float::F16, row) < INFINITY
}

/// One row of all heads out of an open page.
pub(super) fn read_row(rows: &[u8], dim: usize, cell: usize, row: &mut [u8]) {
    for (head, row) in rows.chunks_exact(2 * PAGE * dim).zip(row.chunks_exact_mut(2 * dim)) {
        row.copy_from_slice(&head[2 * cell * dim..][..2 * dim]);
    }
}
