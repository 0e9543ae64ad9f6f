//! Codebooks whose centroids depend on a window of path bits, and rows of such codes.

use crate::Packing;

/// The most states a path search keeps apart.
pub(crate) const MAX_STATES: usize = 64;

/// The most codes.
pub(crate) const MAX_LEVELS: usize = 16;

/// Centroids that depend on a code and on a window of `history + 1` path bits: the current coordinate's and those of
/// the `history` coordinates before it (zeros before the first).
///
/// A row of `dim` coordinates is an f16 scale, the *path plane* (bit `t` of a little-endian bit stream belongs to
/// coordinate `t`), and the planes of the codes, if there is more than one, as [`Packing`] says. A window is
/// `history + 1` bits of the path plane, read upwards: its highest bit is the current coordinate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrellisCodebook<'a> {
    history: u32,
    levels: usize,
    centroids: &'a [i8],
}

impl<'a> TrellisCodebook<'a> {
    /// `centroids[code << (history + 1) | window]`, for each window ascending in the code.
    ///
    /// # Panics
    /// Unless `history` is 2 to 6, `levels` 1, 2, 3, 4, 6, 8, 12 or 16, the length
    /// `levels · 2^(history + 1)`, and the centroids are at least -127 and ascend (equal ones may follow each other).
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

    /// Path bits that a window holds besides the current one.
    #[must_use]
    pub const fn history(&self) -> u32 {
        self.history
    }

    /// States of the path search, 2^history.
    #[must_use]
    pub const fn states(&self) -> usize {
        1 << self.history
    }

    /// Number of windows, twice as many.
    #[must_use]
    pub const fn windows(&self) -> usize {
        2 << self.history
    }

    /// Codes of a window.
    #[must_use]
    pub const fn levels(&self) -> usize {
        self.levels
    }

    /// `code << (history + 1) | window` is the index.
    #[must_use]
    pub const fn centroids(&self) -> &'a [i8] {
        self.centroids
    }

    /// How codes are packed; `None` where there is only one.
    #[must_use]
    pub const fn packing(&self) -> Option<Packing> {
        Packing::for_levels(self.levels)
    }

    /// Bytes of the path plane.
    #[must_use]
    pub const fn path_bytes(dim: usize) -> usize {
        dim.div_ceil(8)
    }

    /// Bytes of a row: scale, path plane, code planes.
    #[must_use]
    pub const fn row_bytes(&self, dim: usize) -> usize {
        2 + Self::path_bytes(dim)
            + match self.packing() {
                Some(packing) => packing.bytes(dim),
                None => 0,
            }
    }

    /// The path plane and the code planes of a row.
    #[inline(always)]
    pub(crate) fn planes<'r>(&self, dim: usize, row: &'r [u8]) -> (&'r [u8], &'r [u8]) {
        row[2..].split_at(Self::path_bytes(dim))
    }

    /// The window of a state and a new path bit, `bits` = state << 1 | bit with the *newest* bit lowest, as the search
    /// numbers them: the order of bits reversed.
    #[inline(always)]
    pub(crate) fn window(&self, bits: usize) -> usize {
        bits.reverse_bits() >> (usize::BITS - self.history - 1)
    }
}

/// How well a row's centroids fit its vector, in units of the codebook's integers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// Σ y·centroid, summed in 16 lanes, then by halves.
    pub correlation: f32,
    /// Σ centroid², exact.
    pub energy: f32,
}
