//! Rows in blocks of sixteen.

use crate::{MAX_DIM, Rows};

/// Rows in a block: the block's sums fill a register, one `i32` each.
pub(crate) const ROWS: usize = 16;

/// Sixteen rows of one shape, at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
    stride: usize,
}

impl<'a> Block<'a> {
    /// `ROWS` rows of `stride` bytes.
    pub(crate) fn of(bytes: &'a [u8], stride: usize) -> Self {
        Self { bytes, stride }
    }

    /// One row, in the place of all of them.
    pub(crate) fn one(row: &'a [u8]) -> Self {
        Self { bytes: row, stride: 0 }
    }

    /// The same, where the distance is known: then the rows' addresses are constants.
    #[inline]
    pub(crate) fn apart(self, stride: usize) -> Self {
        assert!(self.stride == stride);
        Self { stride, ..self }
    }

    /// Bytes `start` to `end` of each row, and whatever follows: a pointer to the first row's, valid to `end` for each
    /// of `ROWS` rows, `stride` bytes apart.
    #[inline]
    pub(crate) fn window(&self, start: usize, end: usize) -> Window<'a> {
        assert!(start <= end && (ROWS - 1) * self.stride + end <= self.bytes.len());
        Window { bytes: &self.bytes[start..], stride: self.stride, length: end - start }
    }
}

/// Rows in blocks; behind the last full one, a copy of the rest with zero rows to fill it.
pub(crate) struct Blocks<'a> {
    rows: Rows<'a>,
    tail: Block<'a>,
}

/// Room for a block of the longest rows.
pub(crate) struct Padded([u8; ROWS * (2 + MAX_DIM)]);

impl Padded {
    const ZEROS: Self = Self([0; ROWS * (2 + MAX_DIM)]);
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(rows: &Rows<'a>, padded: &'a mut Option<Padded>) -> Self {
        Self::with(rows, 2 + rows.packing.bytes(rows.dim), padded)
    }

    /// Of each row, the first `stride` bytes matter.
    pub(crate) fn with(rows: &Rows<'a>, stride: usize, padded: &'a mut Option<Padded>) -> Self {
        let full = rows.count() / ROWS * ROWS * rows.stride;
        let rest = &rows.bytes[full..];
        if rest.is_empty() {
            return Self { rows: *rows, tail: Block { bytes: &[], stride: 0 } };
        }
        let bytes = &mut padded.insert(Padded::ZEROS).0[..ROWS * stride];
        for (copy, row) in bytes.chunks_exact_mut(stride).zip(rest.chunks_exact(rows.stride)) {
            copy.copy_from_slice(&row[..stride]);
        }
        Self { rows: *rows, tail: Block { bytes, stride } }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Block<'a> {
        let stride = self.rows.stride;
        match self.rows.bytes.get(index * ROWS * stride..(index + 1) * ROWS * stride) {
            Some(bytes) => Block { bytes, stride },
            None => self.tail,
        }
    }
}

/// The same bytes of each row of a block, checked once for all rows, so that loops over them have no branches and
/// unroll.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a> {
    bytes: &'a [u8],
    stride: usize,
    length: usize,
}

impl<'a> Window<'a> {
    /// `length` bytes of row `r` can be read from here.
    #[inline]
    pub(crate) fn row(&self, r: usize) -> *const u8 {
        assert!(r < ROWS);
        // SAFETY: `Block::window` checked that the bytes are there for each of `ROWS` rows.
        unsafe { self.bytes.as_ptr().add(r * self.stride) }
    }

    /// Sixteen bytes whose word `r % 8` is the f16 at the start of row `r`'s window.
    #[inline]
    pub(crate) fn word_in_place(&self, r: usize) -> &'a [u8; 16] {
        assert!(r < ROWS && self.length >= 2 && self.stride >= 2);
        // SAFETY: the rows before have two bytes each, and so have those behind, up to the window of the last, of which
        // `Block::window` checked two.
        unsafe { &*self.bytes.as_ptr().add(r * self.stride - 2 * (r % 8)).cast::<[u8; 16]>() }
    }

    /// The f16 at the start of the window.
    #[inline]
    pub(crate) fn word(&self, r: usize) -> i16 {
        assert!(self.length >= 2);
        // SAFETY: two bytes are there.
        unsafe { self.row(r).cast::<i16>().read_unaligned() }
    }

    /// The first `N` bytes of the window.
    #[inline]
    pub(crate) fn first<const N: usize>(&self, r: usize) -> &'a [u8; N] {
        assert!(self.length >= N);
        // SAFETY: so many bytes are there, as long as the rows are borrowed.
        unsafe { &*self.row(r).cast::<[u8; N]>() }
    }

    /// The first eight bytes of the window.
    #[inline]
    pub(crate) fn quad(&self, r: usize) -> u64 {
        assert!(self.length >= 8);
        // SAFETY: eight bytes are there.
        unsafe { self.row(r).cast::<u64>().read_unaligned() }
    }
}
