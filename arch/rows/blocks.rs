//! Rows in blocks of sixteen.

use super::each_page_mut;
use crate::{MAX_DIM, Rows};
use core::ops::Range;

/// Rows in a block. Their sums, one `i32` each, fill a register.
pub const ROWS: usize = 16;

/// Sixteen rows at equal distances.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    bytes: &'a [u8],
    stride: usize,
    /// The scales of the rows that exist, if they are not in the rows.
    pub(crate) scales: Option<&'a [f32]>,
}

impl<'a> Block<'a> {
    /// Describes sixteen rows, one every `stride` bytes, with their scales in the rows.
    #[must_use]
    pub const fn new(bytes: &'a [u8], stride: usize) -> Self {
        Self { bytes, stride, scales: None }
    }

    /// Describes one row, repeated for all rows of a block.
    pub(crate) fn one(row: &'a [u8]) -> Self {
        Self { bytes: row, stride: 0, scales: None }
    }

    /// Returns bytes `start` to `end` of each row. Checks once that all `ROWS` rows have them.
    #[inline]
    pub fn window(&self, start: usize, end: usize) -> Window<'a> {
        assert!(start <= end && (ROWS - 1) * self.stride + end <= self.bytes.len());
        Window { bytes: &self.bytes[start..], stride: self.stride, length: end - start }
    }
}

/// Rows in blocks. Behind the last full block, the remaining rows are copied, with zero rows to
/// fill the block.
pub struct Blocks<'a> {
    rows: Rows<'a>,
    tail: &'a [u8],
}

/// Memory for a block of the longest rows.
pub struct Padded([u8; ROWS * (2 + MAX_DIM)]);

impl Padded {
    const ZEROS: Self = Self([0; ROWS * (2 + MAX_DIM)]);
}

impl<'a> Blocks<'a> {
    /// Splits rows into blocks. `padded` is memory for the last one.
    pub fn new(rows: &Rows<'a>, padded: &'a mut Option<Padded>) -> Self {
        let (count, len) = (rows.count(), rows.len);
        let full = count / ROWS * ROWS;
        if full == count {
            return Self { rows: *rows, tail: &[] };
        }
        // The copy leaves out the bytes between rows.
        let stride = rows.stride.min(len);
        let bytes = &mut padded.insert(Padded::ZEROS).0[..(ROWS - 1) * stride + len];
        for (i, r) in (full..count).enumerate() {
            bytes[i * stride..][..len].copy_from_slice(rows.row(r));
        }
        Self { rows: *rows, tail: bytes }
    }

    /// Returns the block with this index.
    #[inline]
    pub fn get(&self, index: usize) -> Block<'a> {
        let Rows { bytes, stride, len, scales, .. } = self.rows;
        let start = index * ROWS * stride;
        let (bytes, stride) = match bytes.get(start..start + (ROWS - 1) * stride + len) {
            Some(bytes) => (bytes, stride),
            None => (self.tail, stride.min(len)),
        };
        let scales = scales.map(|scales| &scales[index * ROWS..scales.len().min((index + 1) * ROWS)]);
        Block { bytes, stride, scales }
    }

    /// Prefetches one block of `ahead`. All blocks at once would wait for one another.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize) {
        self.rows.prefetch_some(index * ROWS, ROWS);
    }

    /// Prefetches like [`prefetch`](Self::prefetch), but in a separate function, for loops that need all
    /// registers.
    #[inline(always)]
    pub(crate) fn prefetch_apart(&self, index: usize) {
        #[cold]
        #[inline(never)]
        fn apart(rows: &Rows, index: usize) {
            rows.prefetch_some(index * ROWS, ROWS);
        }
        if !self.rows.ahead.is_empty() {
            apart(&self.rows, index);
        }
    }
}

/// A range of bytes of each row of a block. It was checked once for all rows, so that loops over
/// them have no branches and unroll.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    bytes: &'a [u8],
    stride: usize,
    length: usize,
}

impl<'a> Window<'a> {
    /// Returns a pointer to row `r`, from which `length` bytes can be read.
    #[inline]
    pub fn row(&self, r: usize) -> *const u8 {
        assert!(r < ROWS);
        // SAFETY: `Block::window` checked these bytes for each of `ROWS` rows.
        unsafe { self.bytes.as_ptr().add(r * self.stride) }
    }

    /// Returns sixteen bytes whose word `r % 8` is the f16 at the front of row `r`'s window.
    #[inline]
    pub fn word_in_place(&self, r: usize) -> &'a [u8; 16] {
        assert!(r < ROWS && self.length >= 2 && self.stride >= 2);
        // SAFETY: the bytes before belong to up to seven earlier rows of at least two bytes each.
        // The bytes behind lie before the end of the last row's window, where `Block::window`
        // checked two bytes.
        unsafe { &*self.bytes.as_ptr().add(r * self.stride - 2 * (r % 8)).cast::<[u8; 16]>() }
    }

    /// Returns the f16 at the front of a row's window.
    #[inline]
    pub fn word(&self, r: usize) -> i16 {
        assert!(self.length >= 2);
        // SAFETY: the window has two bytes.
        unsafe { self.row(r).cast::<i16>().read_unaligned() }
    }

    /// Returns the first `N` bytes of a row's window.
    #[inline]
    pub fn first<const N: usize>(&self, r: usize) -> &'a [u8; N] {
        assert!(self.length >= N);
        // SAFETY: the window has `N` bytes, which stay borrowed as long as the rows.
        unsafe { &*self.row(r).cast::<[u8; N]>() }
    }

    /// Returns the windows of rows from `r` on, 64 bytes, if windows follow each other without gaps.
    #[inline]
    pub(crate) fn together(&self, r: usize) -> Option<&'a [u8; 64]> {
        assert!(r * self.length + 64 <= ROWS * self.length);
        // SAFETY: windows that follow each other are `ROWS` times `length` bytes, and the assertion
        // checks that these 64 end there.
        (self.stride == self.length).then(|| unsafe { &*self.row(r).cast::<[u8; 64]>() })
    }

    /// Returns the first eight bytes of a row's window.
    #[inline]
    pub fn quad(&self, r: usize) -> u64 {
        assert!(self.length >= 8);
        // SAFETY: the window has eight bytes.
        unsafe { self.row(r).cast::<u64>().read_unaligned() }
    }
}

/// Returns each page with the scores of some of all queries. Scores are laid out
/// \[page]\[query]\[row].
#[inline(always)]
pub(crate) fn each_part_mut<'r, 'a, 's>(
    pages: &'r [Rows<'a>],
    queries: usize,
    some: Range<usize>,
    scores: &'s mut [f32],
) -> impl Iterator<Item = (&'r Rows<'a>, &'s mut [f32])> {
    each_page_mut(pages, queries, scores).map(move |(rows, scores)| {
        let count = rows.count();
        (rows, &mut scores[some.start * count..some.end * count])
    })
}
