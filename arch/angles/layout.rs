//! The layout of rows of angles: polar coordinates, level by level.

use crate::codes::layout::Packing;
use core::ops::Range;

/// A codebook of angles.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    /// Bits of a code.
    pub bits: u8,
    /// The cosine and the sine of each of the 2^bits codes.
    pub directions: &'a [[f32; 2]],
    /// The tangents of the thresholds between neighbouring directions, ascending. On the first
    /// level they cover the first quadrant only (none for one and two bits). On the others there
    /// are 2^bits - 1.
    pub tangents: &'a [f32],
}

/// A tree of polar coordinates.
///
/// Level 1 turns neighbouring coordinates (2i, 2i+1) into a radius and an angle in [0, 2π). Each
/// further level turns neighbouring radii into a radius and an angle in [0, π/2]. The radii that
/// remain are the roots.
///
/// ```text
/// dim = 8, two levels    x₀ x₁   x₂ x₃   x₄ x₅   x₆ x₇
/// level 1, angles          a₀      a₁      a₂      a₃
/// level 2, angles              b₀              b₁
/// roots                        r₀              r₁
/// row                    r₀ r₁ (f16) │ a₀ a₁ a₂ a₃ b₀ b₁
/// ```
///
/// The codes of a row form one bit stream for each run of levels with equal bits.
#[derive(Clone, Copy, Debug)]
pub struct AngleTree<'a> {
    /// Coordinates of a row, a multiple of 2^levels.
    pub dim: usize,
    /// The codebooks of the levels, level 1 first.
    pub levels: &'a [Angles<'a>],
}

impl<'a> AngleTree<'a> {
    /// Returns the number of roots.
    #[must_use]
    pub const fn roots(&self) -> usize {
        self.dim >> self.levels.len()
    }

    /// Returns the number of codes.
    #[must_use]
    pub const fn codes(&self) -> usize {
        self.dim - self.roots()
    }

    /// Returns the bit streams: the number of codes, and how they are packed.
    pub fn streams(&self) -> impl Iterator<Item = (usize, Packing)> + use<'a> {
        let mut nodes = self.dim;
        self.levels.chunk_by(|a, b| a.bits == b.bits).map(move |run| {
            let above = nodes >> run.len();
            let codes = nodes - above;
            nodes = above;
            (codes, Packing::bits(run[0].bits))
        })
    }

    /// Returns the streams of a row: which codes they have, how these are packed, and the bytes.
    ///
    /// Kernels loop over the streams themselves. A function that gets `unpack` as an argument would
    /// compile it without the kernel's instructions.
    pub(crate) fn planes<'b>(
        &self,
        row: &'b [u8],
    ) -> impl Iterator<Item = (Range<usize>, Packing, &'b [u8])> {
        let (mut at, mut done) = (2 * self.roots(), 0);
        self.streams().map(move |(count, packing)| {
            let bytes = packing.bytes(count);
            let plane = (done..done + count, packing, &row[at..at + bytes]);
            (at, done) = (at + bytes, done + count);
            plane
        })
    }

    /// Returns the bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        2 * self.roots() + self.streams().map(|(codes, packing)| packing.bytes(codes)).sum::<usize>()
    }
}
