//! Chooses the page format, and computes how many bytes each part of a page takes. No other code
//! decides this.

use super::Part;
use super::norms::{self, NORM_BITS};
use crate::CodecSpec;
use crate::codec::Codec;
use crate::codec::planes::{LEAD, Pages, centre_bytes};
use crate::random::Role;
use core::ops::Range;

/// The format and the sizes, in bytes, of one side of a head: its keys or its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) dim: usize,
    pub(crate) tokens: usize,
    /// A row as a block.
    block: usize,
    /// A row as planes, a size for each half of the channels. A second size of 0 means one half;
    /// two zeros mean blocks.
    planes: [usize; 2],
    /// All rows of a page at most. Only outliers make a page shorter.
    pub(crate) rows: usize,
    /// The norms of all rows. 0 if the rows contain them.
    pub(crate) norms: usize,
    /// The centre that the format would store: coded in the codec's basis, or f16.
    centre: usize,
}

/// The sizes that a codec reports, in bytes: of a block, of a page of blocks, and of the planes of
/// each half of the channels.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) block: usize,
    pub(crate) page: usize,
    pub(crate) planes: [usize; 2],
    /// Whether the codec can code a page's centre in its own basis.
    pub(crate) codes_centre: bool,
}

impl Sizes {
    /// Computes the sizes from a spec, before the codec is built. Every codec of the list with lean
    /// pages codes centres; a test compares both sizes.
    pub(crate) const fn of_spec(spec: &CodecSpec, dim: usize, tokens: usize) -> Self {
        let (block, page) = (spec.block_bytes(dim), spec.page_bytes_max(dim, tokens));
        Self { block, page, planes: spec.plane_bytes(dim), codes_centre: true }
    }

    /// Asks a codec for its sizes. It may be your own.
    pub(crate) fn of_codec(codec: &dyn Codec, tokens: usize) -> Self {
        let (block, page) = (codec.block_bytes(), codec.page_bytes_max(tokens));
        let (planes, codes_centre) = match codec.pages() {
            Pages::Blocks => ([0, 0], false),
            Pages::Lean(planes) => ([planes.plane_bytes(), 0], planes.centre().is_some()),
            Pages::Graded([fine, coarse]) => ([fine.plane_bytes(), coarse.plane_bytes()], true),
        };
        Self { block, page, planes, codes_centre }
    }
}

/// Returns whether rows of `planes` bytes use the lean format: if they take at most 4.5 bits a
/// value.
///
/// Finer codes keep their exact norms. With `trellis:m=16`, norms of 6 bits would raise attention's
/// divergence by 25%. The bits that they save buy as much elsewhere.
const fn is_lean(planes: usize, dim: usize) -> bool {
    0 < planes && 16 * planes <= 9 * dim
}

impl Shape {
    /// Chooses the format for keys or values of a width.
    pub(crate) const fn new(sizes: &Sizes, role: Role, dim: usize, tokens: usize) -> Self {
        let [fine, coarse] = sizes.planes;
        // Channels of values are not sorted, so a codec of two halves stores them as blocks.
        let halves = matches!(role, Role::Values) && coarse > 0;
        if halves || !is_lean(fine + coarse, dim) {
            let (block, rows) = (sizes.block, sizes.page);
            return Self { dim, tokens, block, planes: [0, 0], rows, norms: 0, centre: 2 * dim };
        }
        let (count, half) = if coarse > 0 { (2, dim / 2) } else { (1, dim) };
        Self {
            dim,
            tokens,
            block: sizes.block,
            planes: sizes.planes,
            rows: tokens * (fine + coarse),
            norms: count * norms::bytes(tokens),
            centre: if sizes.codes_centre { count * centre_bytes(half) } else { 2 * dim },
        }
    }

    /// Returns whether norms lie apart from the rows.
    pub(super) const fn is_lean(&self) -> bool {
        self.planes[0] > 0
    }

    /// Returns how many halves of the channels are coded apart: 2 if one is coded more finely,
    /// otherwise 1.
    pub(super) const fn halves(&self) -> usize {
        if self.planes[1] > 0 { 2 } else { 1 }
    }

    /// Returns the bytes of a row's planes, for each half.
    pub(super) const fn planes(&self) -> [usize; 2] {
        self.planes
    }

    /// Returns the bytes of a row as a block.
    pub(super) const fn block(&self) -> usize {
        self.block
    }

    /// Returns the bytes of a page's own centre, and those of the prefix centre that it is relative
    /// to.
    pub(crate) const fn centre_bytes(&self) -> [usize; 2] {
        [self.centre, if self.is_lean() { 2 * self.dim } else { 0 }]
    }

    /// Returns how many bytes in front of the rows a reader must include.
    pub(crate) const fn lead(&self) -> usize {
        if self.is_lean() { LEAD } else { 0 }
    }

    /// Returns the least number of bytes that all rows take.
    #[cfg(feature = "alloc")]
    pub(crate) const fn least(&self) -> usize {
        if self.is_lean() { self.rows } else { self.tokens * self.block }
    }

    /// Returns whether channels must be sorted.
    pub(crate) const fn sorts(&self) -> bool {
        self.halves() > 1
    }

    /// Returns whether the number of bytes depends on the data.
    pub(crate) const fn varies(&self) -> bool {
        !self.is_lean() && self.rows > self.tokens * self.block
    }

    /// Returns the channels that are coded together: all, or half of them.
    #[cfg(feature = "gpu")]
    pub(crate) const fn coded_width(&self) -> usize {
        self.dim / self.halves()
    }

    /// Returns the largest norm of a page's rows, of each half; none where norms are in the rows.
    #[cfg(feature = "gpu")]
    pub(crate) fn largest_norms<'a>(&self, part: &Part<'a>) -> impl Iterator<Item = &'a [u8; 2]> {
        let (shape, norms) = (*self, part.norms);
        (0..self.halves()).filter_map(move |half| norms[shape.of_half(norms.len(), half)].first_chunk())
    }

    /// Returns the bytes of one half, if all halves together have `whole` bytes.
    pub(super) const fn of_half(&self, whole: usize, half: usize) -> Range<usize> {
        let each = whole / self.halves();
        half * each..(half + 1) * each
    }

    /// Returns whether all scales in untrusted bytes are finite.
    pub(crate) fn is_sound(&self, part: &Part) -> bool {
        let scales = |bytes: &[u8]| {
            (0..self.halves()).all(|half| {
                let first = self.of_half(bytes.len(), half).start;
                bytes[first..].first_chunk::<2>().is_none_or(|scale| is_finite_f16(scale))
            })
        };
        let is_coded = part.centre.len() != 2 * self.dim;
        scales(part.norms) && if is_coded { scales(part.centre) } else { is_finite_f16(part.centre) }
    }

    /// Calls `line` with the size and the description of each section of the rows.
    pub(crate) fn describe_rows(&self, role: Role, line: &mut dyn FnMut(usize, &str)) {
        let (keys, [fine, coarse]) = (matches!(role, Role::Keys), self.planes);
        match (self.is_lean(), self.halves()) {
            (false, _) => line(self.rows, if keys { "keys: blocks" } else { "values: blocks" }),
            (_, 1) => line(self.rows, if keys { "keys: planes" } else { "values: planes" }),
            _ => {
                line(self.tokens * fine, "keys: planes of the fine half");
                line(self.tokens * coarse, "keys: planes of the coarse half");
            }
        }
    }

    /// Calls `line` with the size and the description of a centre of `bytes` bytes.
    pub(crate) fn describe_centre(&self, bytes: usize, line: &mut dyn FnMut(usize, &str)) {
        match (bytes == 2 * self.dim, self.halves()) {
            (true, _) => line(bytes, "centre of the keys: f16"),
            (_, 1) => line(bytes, "centre of the keys: f16 norm, codes of 5 bits"),
            _ => {
                line(bytes / 2, "centre of the keys: f16 norm, codes of 5 bits");
                line(bytes / 2, "centre of their coarse half: f16 norm, codes of 5 bits");
            }
        }
    }

    /// Calls `line` with the size and the description of the norms.
    pub(crate) fn describe_norms(&self, role: Role, line: &mut dyn FnMut(usize, &str)) {
        const { assert!(NORM_BITS == 6) };
        match (role, self.halves()) {
            _ if self.norms == 0 => {}
            (Role::Values, _) => {
                line(self.norms, "norms of the values: f16 largest, u8 octaves, codes of 6 bits");
            }
            (_, 1) => line(self.norms, "norms of the keys: f16 largest, u8 octaves, codes of 6 bits"),
            _ => {
                line(self.norms / 2, "norms of the keys: f16 largest, u8 octaves, codes of 6 bits");
                line(self.norms / 2, "norms of their coarse half: f16 largest, u8 octaves, codes of 6 bits");
            }
        }
    }
}

/// Returns whether every f16 is finite. An exponent of all ones would be infinity or NaN.
pub(crate) fn is_finite_f16(bytes: &[u8]) -> bool {
    bytes.as_chunks::<2>().0.iter().fold(true, |finite, b| finite & (b[1] & 0x7c != 0x7c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fine_codes_keep_their_blocks() {
        assert_eq!([0, 1, 72, 73].map(|planes| is_lean(planes, 128)), [false, true, true, false]);
    }
}
