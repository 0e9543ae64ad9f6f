//! Pages of cells as they are stored: empty, f16 rows, or coded.

use super::PAGE;
use crate::Error;
use alloc::sync::Arc;
use alloc::vec::Vec;
use octaplex_arch::{Backend as Kernels, Float};

/// A page of 64 cells, with a bit for each cell in its masks.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// Cells that were ever written.
    pub(super) written: u64,
    /// Cells that were written since the page was last opened.
    pub(super) fresh: u64,
    /// Cells whose row has an infinity or a NaN. A weight of 0 does not remove these from a sum.
    pub(super) wild: u64,
    /// Cells that a mask showed to be the first of a sequence. They stay exact when the page closes.
    pub(super) first: u64,
    /// Cells whose row came from `write_rows` since the page was last opened. The queries that
    /// would show which of them are first came before.
    pub(super) restored: u64,
    pub(super) body: Body,
    /// The centres of a reopened page, one a head. The page closes around them again, so that rows
    /// that nobody rewrote get the codes they had.
    pub(super) centres: Option<Arc<[u8]>>,
}

/// The rows of a page. Copied pages share them until one is written.
#[derive(Clone, Debug, Default)]
pub(super) enum Body {
    #[default]
    Empty,
    /// f16 rows, \[head]\[cell]\[width].
    Open(Arc<Vec<u8>>),
    Closed(Arc<Closed>),
}

impl Body {
    /// Returns the bytes, and whether another page shares them.
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
    /// The parts of all heads, one after the other.
    pub(super) parts: Vec<u8>,
    /// The end of each head in `parts`.
    pub(super) ends: Vec<u32>,
    /// Cells that are exact, a bit each.
    pub(super) cells: u64,
    /// Their rows in f16, \[head]\[cell]\[width].
    pub(super) exact: Vec<u8>,
}

impl Closed {
    fn bytes(&self) -> usize {
        self.parts.len() + 4 * self.ends.len() + self.exact.len()
    }

    /// Returns the part of a head, and `lead` bytes in front of it.
    pub(super) fn part(&self, head: usize, lead: usize) -> &[u8] {
        let start = head.checked_sub(1).map_or(lead, |before| self.ends[before] as usize);
        &self.parts[start - lead..self.ends[head] as usize]
    }

    /// Returns the exact rows of a head.
    pub(super) fn exact(&self, head: usize) -> &[u8] {
        let each = self.exact.len() / self.ends.len();
        &self.exact[head * each..][..each]
    }
}

/// Returns the cells of a mask, in order.
pub(super) fn cells_of(mask: u64) -> impl Iterator<Item = usize> {
    (0..PAGE).filter(move |cell| mask >> cell & 1 == 1)
}

/// The bits of infinity in f16. Larger magnitudes are NaN.
const INFINITY: u32 = 0x7c00;

/// Creates the rows of an open page, all zero.
///
/// # Errors
/// [`Error::Memory`].
pub(super) fn zeros(width: usize) -> Result<Vec<u8>, Error> {
    let (mut rows, bytes) = (Vec::new(), width.saturating_mul(2 * PAGE));
    reserve(&mut rows, "a page of cells", bytes)?;
    rows.resize(bytes, 0);
    Ok(rows)
}

/// Copies the rows of an open page.
///
/// # Errors
/// [`Error::Memory`].
pub(super) fn copy(from: &[u8]) -> Result<Vec<u8>, Error> {
    let mut rows = Vec::new();
    reserve(&mut rows, "a page of cells", from.len())?;
    rows.extend_from_slice(from);
    Ok(rows)
}

/// Reserves memory for exactly `count` values.
///
/// # Errors
/// [`Error::Memory`].
pub(super) fn reserve<T>(values: &mut Vec<T>, what: &'static str, count: usize) -> Result<(), Error> {
    let bytes = count.saturating_mul(size_of::<T>());
    values.try_reserve_exact(count).map_err(|_| Error::Memory { what, bytes })
}

/// Writes one row of all heads into an open page. Returns whether all of its values are finite in
/// f16.
pub(super) fn write_row(backend: Kernels, rows: &mut [u8], dim: usize, cell: usize, row: &[f32]) -> bool {
    let mut largest = 0;
    for (head, row) in rows.chunks_exact_mut(2 * PAGE * dim).zip(row.chunks_exact(dim)) {
        let bytes = &mut head[2 * cell * dim..][..2 * dim];
        backend.encode_floats(Float::F16, row, bytes);
        largest = backend.largest_bits(Float::F16, bytes).max(largest);
    }
    largest < INFINITY
}

/// Writes one row of f16 bytes, and returns whether all values are finite.
pub(super) fn copy_row(backend: Kernels, rows: &mut [u8], dim: usize, cell: usize, row: &[u8]) -> bool {
    for (head, row) in rows.chunks_exact_mut(2 * PAGE * dim).zip(row.chunks_exact(2 * dim)) {
        head[2 * cell * dim..][..2 * dim].copy_from_slice(row);
    }
    backend.largest_bits(Float::F16, row) < INFINITY
}

/// Reads one row of all heads from an open page.
pub(super) fn read_row(rows: &[u8], dim: usize, cell: usize, row: &mut [u8]) {
    for (head, row) in rows.chunks_exact(2 * PAGE * dim).zip(row.chunks_exact_mut(2 * dim)) {
        row.copy_from_slice(&head[2 * cell * dim..][..2 * dim]);
    }
}
