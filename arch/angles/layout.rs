//! Rows of angles: polar coordinates, level by level.

use crate::codes::layout::Packing;
use core::ops::Range;

/// A codebook of angles.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    /// Bits of a code.
    pub bits: u8,
    /// The cosine and the sine that each of 2^bits codes stands for.
    pub directions: &'a [[f32; 2]],
    /// Tangents between neighbouring directions, ascending: on the first level those inside the first quadrant (none
    /// for one and two bits), on the others 2^bits - 1.
    pub tangents: &'a [f32],
}

/// A tree of polar coordinates. Level 1 turns neighbouring coordinates (2i, 2i+1) into a radius and an angle in [0, 2π),
/// each further level neighbouring radii into a radius and an angle in [0, π/2]; what is left are the roots.
///
/// A row: the roots as f16, then the codes, level after level: one bit stream for each run of levels with equal bits.
#[derive(Clone, Copy, Debug)]
pub struct AngleTree<'a> {
    /// Coordinates of a row, a multiple of 2^levels.
    pub dim: usize,
    /// The levels, first one first.
    pub levels: &'a [Angles<'a>],
}

impl<'a> AngleTree<'a> {
    /// Number of roots.
    #[must_use]
    pub const fn roots(&self) -> usize {
        self.dim >> self.levels.len()
    }

    /// Number of codes.
    #[must_use]
    pub const fn codes(&self) -> usize {
        self.dim - self.roots()
    }

    /// The bit streams: (codes, how they are packed).
    pub fn streams(&self) -> impl Iterator<Item = (usize, Packing)> + use<'a> {
        let mut nodes = self.dim;
        self.levels.chunk_by(|a, b| a.bits == b.bits).map(move |run| {
            let above = nodes >> run.len();
            let codes = nodes - above;
            nodes = above;
            (codes, Packing::bits(run[0].bits))
        })
    }

    /// A row's streams: which codes they are, how they are packed, their bytes. (Kernels have a loop over them: what unpacks, handed over
    /// as a function, is compiled without the kernel's instructions.)
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

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        2 * self.roots() + self.streams().map(|(codes, packing)| packing.bytes(codes)).sum::<usize>()
    }
}
