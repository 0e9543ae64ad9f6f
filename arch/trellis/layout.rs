//! The layout of rows of trellis codes, and their codebooks.

use crate::Packing;

/// The largest number of states of a path search.
pub(crate) const MAX_STATES: usize = 64;

/// The largest number of codes.
pub(crate) const MAX_LEVELS: usize = 16;

/// Centroids that depend on a code and on a window of `history + 1` path bits.
///
/// The window has the path bit of the current coordinate and those of the `history` coordinates
/// before it (zeros before the first). Its highest bit is the current coordinate's:
///
/// ```text
/// path plane    bit t of a little-endian bit stream belongs to coordinate t
/// window of t   p_t  p_(t-1)  …  p_(t-history)          read from the plane as an integer: bits t-history … t
/// index         code · 2^(history+1) + window
///
/// row           f16 scale │ path plane │ code planes (if there is more than one code), see [`Packing`]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrellisCodebook<'a> {
    history: u32,
    levels: usize,
    centroids: &'a [i8],
}

impl<'a> TrellisCodebook<'a> {
    /// Creates a codebook. `centroids[code << (history + 1) | window]` must ascend in the code, for
    /// each window.
    ///
    /// # Panics
    /// Unless `history` is 2 to 6, `levels` is 1, 2, 3, 4, 6, 8, 12 or 16, there are `levels ·
    /// 2^(history + 1)` centroids, and they are at least -127 and ascend. Equal ones may follow
    /// each other.
    #[must_use]
    pub const fn new(history: u32, levels: usize, centroids: &'a [i8]) -> Self {
        assert!(history >= 2 && history <= 6);
        assert!(matches!(levels, 1 | 2 | 3 | 4 | 6 | 8 | 12 | MAX_LEVELS));
        assert!(centroids.len() == levels << (history + 1));
        let windows = 2 << history;
        let mut i = 0;
        while i < centroids.len() {
            assert!(centroids[i] >= -127);
            assert!(i < windows || centroids[i] >= centroids[i - windows]);
            i += 1;
        }
        Self { history, levels, centroids }
    }

    /// Returns the number of path bits in a window besides the current one.
    #[must_use]
    pub const fn history(&self) -> u32 {
        self.history
    }

    /// Returns the number of states of the path search, 2^history.
    #[must_use]
    pub const fn states(&self) -> usize {
        1 << self.history
    }

    /// Returns the number of windows, twice the number of states.
    #[must_use]
    pub const fn windows(&self) -> usize {
        2 << self.history
    }

    /// Returns the number of codes of a window.
    #[must_use]
    pub const fn levels(&self) -> usize {
        self.levels
    }

    /// Returns the centroids. Their index is `code << (history + 1) | window`.
    #[must_use]
    pub const fn centroids(&self) -> &'a [i8] {
        self.centroids
    }

    /// Returns how codes are packed, or `None` if there is only one code.
    #[must_use]
    pub const fn packing(&self) -> Option<Packing> {
        Packing::for_levels(self.levels)
    }

    /// Returns the bytes of the path plane.
    #[must_use]
    pub const fn path_bytes(dim: usize) -> usize {
        dim.div_ceil(8)
    }

    /// Returns the bytes of a row: scale, path plane, code planes.
    #[must_use]
    pub const fn row_bytes(&self, dim: usize) -> usize {
        2 + Self::path_bytes(dim)
            + match self.packing() {
                Some(packing) => packing.bytes(dim),
                None => 0,
            }
    }

    /// Splits a row into its path plane and its code planes.
    #[inline(always)]
    pub(crate) fn planes<'r>(&self, dim: usize, row: &'r [u8]) -> (&'r [u8], &'r [u8]) {
        row[2..].split_at(Self::path_bytes(dim))
    }

    /// Converts from the search's numbering to windows, by reversing the order of the bits. `bits`
    /// = state << 1 | new path bit, so the *newest* bit is lowest.
    #[inline(always)]
    pub(crate) fn window(&self, bits: usize) -> usize {
        bits.reverse_bits() >> (usize::BITS - self.history - 1)
    }
}

/// The fit of a row's centroids to its vector, in integer steps of the codebook.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// Σ y·centroid, summed in 16 lanes and then by halves.
    pub correlation: f32,
    /// Σ centroid², which is exact.
    pub energy: f32,
}
