//! Rows in blocks of sixteen.

use super::each_page_mut;
use crate::{MAX_DIM, Rows};
use core::ops::Range;

/// Rows in a block. Their sums, one `i32` each, fill a register.
pub(crate) const ROWS: usize = 16;

/// Sixteen rows at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
    stride: usize,
    /// The scales of the rows that exist, if they are not in the rows.
    pub(crate) scales: Option<&'a [f32]>,
}

impl<'a> Block<'a> {
    /// Describes one row, repeated for all rows of a block.
    pub(crate) fn one(row: &'a [u8]) -> Self {
        Self { bytes: row, stride: 0, scales: None }
    }

    /// Returns bytes `start` to `end` of each row. Checks once that all `ROWS` rows have them.
    #[inline]
    pub(crate) fn window(&self, start: usize, end: usize) -> Window<'a> {
        assert!(start <= end && (ROWS - 1) * self.stride + end <= self.bytes.len());
        Window { bytes: &self.bytes[start..], stride: self.stride, length: end - start }
    }
}

/// Rows in blocks. Behind the last full block, the remaining rows are copied, with zero rows to
/// fill the block.
pub(crate) struct Blocks<'a> {
    rows: Rows<'a>,
    tail: &'a [u8],
}

/// Memory for a block of the longest rows.
pub(crate) struct Padded([u8; ROWS * (2 + MAX_DIM)]);

impl Padded {
    const ZEROS: Self = Self([0; ROWS * (2 + MAX_DIM)]);
}

impl<'a> Blocks<'a> {
    /// Splits rows into blocks. `padded` is memory for the last one.
    pub(crate) fn new(rows: &Rows<'a>, padded: &'a mut Option<Padded>) -> Self {
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
    pub(crate) fn get(&self, index: usize) -> Block<'a> {
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
pub(crate) struct Window<'a> {
    bytes: &'a [u8],
    stride: usize,
    length: usize,
}

impl<'a> Window<'a> {
    /// Returns a pointer to row `r`, from which `length` bytes can be read.
    #[inline]
    pub(crate) fn row(&self, r: usize) -> *const u8 {
        assert!(r < ROWS);
        // SAFETY: `Block::window` checked these bytes for each of `ROWS` rows.
        unsafe { self.bytes.as_ptr().add(r * self.stride) }
    }

    /// Returns sixteen bytes whose word `r % 8` is the f16 at the front of row `r`'s window.
    #[inline]
    pub(crate) fn word_in_place(&self, r: usize) -> &'a [u8; 16] {
        assert!(r < ROWS && self.length >= 2 && self.stride >= 2);
        // SAFETY: the bytes before belong to up to seven earlier rows of at least two bytes each.
        // The bytes behind lie before the end of the last row's window, where `Block::window`
        // checked two bytes.
        unsafe { &*self.bytes.as_ptr().add(r * self.stride - 2 * (r % 8)).cast::<[u8; 16]>() }
    }

    /// Returns the f16 at the front of a row's window.
    #[inline]
    pub(crate) fn word(&self, r: usize) -> i16 {
        assert!(self.length >= 2);
        // SAFETY: the window has two bytes.
        unsafe { self.row(r).cast::<i16>().read_unaligned() }
    }

    /// Returns the first `N` bytes of a row's window.
    #[inline]
    pub(crate) fn first<const N: usize>(&self, r: usize) -> &'a [u8; N] {
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
    pub(crate) fn quad(&self, r: usize) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
    use std::vec;

    /// Returns whether a call fails with an assertion: an overflow would panic in tests only. Under
    /// Miri, which is slow, panics are not printed.
    fn refused(call: &dyn Fn()) -> bool {
        if cfg!(miri) {
            set_hook(std::boxed::Box::new(|_| {}));
        }
        let outcome = catch_unwind(AssertUnwindSafe(call));
        if cfg!(miri) {
            drop(take_hook());
        }
        outcome.is_err_and(|panic| {
            panic.downcast_ref::<&str>().is_some_and(|words| words.starts_with("assertion"))
        })
    }

    /// Everything that a window lets kernels read lies within the bytes, which are exactly as many
    /// as its check requires.
    #[test]
    fn windows_lie_in_the_bytes() {
        let step = if cfg!(miri) { 13 } else { 1 };
        for stride in (0..=70).step_by(step) {
            for start in 0..=8 {
                for length in (0..=64).step_by(step) {
                    let bytes = vec![0; (ROWS - 1) * stride + start + length];
                    let window = Block { bytes: &bytes, stride, scales: None }.window(start, start + length);
                    let place = |pointer: *const u8| pointer as usize - bytes.as_ptr() as usize;
                    for r in 0..ROWS {
                        let row = place(window.row(r));
                        assert_eq!(row, start + r * stride);
                        assert!(row + length <= bytes.len(), "row {r} of {length} bytes every {stride}");
                        if length >= 2 && stride >= 2 {
                            let word = place(window.word_in_place(r).as_ptr());
                            assert!(word + 16 <= bytes.len(), "word {r} from {start} every {stride}");
                            assert_eq!(word + 2 * (r % 8), row);
                        }
                    }
                }
            }
        }
    }

    /// A window that ends behind the last row is refused.
    #[test]
    fn windows_behind_the_bytes_are_refused() {
        for stride in [0, 1, 2, 5, 70] {
            let bytes = vec![0; (ROWS - 1) * stride + 7];
            let refuses = |start, end| {
                refused(&|| _ = Block { bytes: &bytes, stride, scales: None }.window(start, end))
            };
            assert!(!refuses(3, 7) && refuses(3, 8) && refuses(7, 6));
        }
    }

    /// Reads longer than the window are refused, and so are words whose neighbours lie outside the
    /// later rows.
    #[test]
    fn reads_longer_than_their_window_are_refused() {
        let bytes = [0; 256];
        for (stride, length) in (0..=3).flat_map(|stride| (0..=9).map(move |length| (stride, length))) {
            let window = Block { bytes: &bytes, stride, scales: None }.window(64, 64 + length);
            let case = std::format!("{length} bytes every {stride}");
            assert_eq!(refused(&|| _ = window.word(1)), length < 2, "{case}");
            assert_eq!(refused(&|| _ = window.first::<3>(1)), length < 3, "{case}");
            assert_eq!(refused(&|| _ = window.quad(1)), length < 8, "{case}");
            assert_eq!(refused(&|| _ = window.word_in_place(8)), length < 2 || stride < 2, "{case}");
            assert!(refused(&|| _ = window.row(ROWS)) && refused(&|| _ = window.word_in_place(ROWS)));
        }
    }

    /// Blocks are the rows in order, for every number and distance of rows. Behind the last row are
    /// zeros.
    #[test]
    fn blocks_are_the_rows() {
        for len in 2..=if cfg!(miri) { 3 } else { 20 } {
            for stride in (len - 2).max(1)..=len + 3 {
                for count in 0..=40usize {
                    let end = if count == 0 { 0 } else { (count - 1) * stride + len };
                    let bytes: vec::Vec<u8> = (0..end).map(|i| (i * 29 % 251) as u8).collect();
                    let rows = Rows { bytes: &bytes, stride, len, dim: 8, scales: None, ahead: &[] };
                    assert_eq!(rows.count(), count);
                    let mut padded = None;
                    let blocks = Blocks::new(&rows, &mut padded);
                    for r in 0..count.next_multiple_of(ROWS) {
                        let block = blocks.get(r / ROWS);
                        for at in 0..=len - 2 {
                            let found = block.window(at, at + 2).first::<2>(r % ROWS);
                            if r < count {
                                assert_eq!(
                                    found,
                                    &rows.row(r)[at..at + 2],
                                    "{count} rows of {len} every {stride}"
                                );
                            } else if stride >= len {
                                assert_eq!(found, &[0; 2], "behind {count} rows of {len} every {stride}");
                            }
                        }
                    }
                }
            }
        }
    }
}
