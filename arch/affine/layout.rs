//! The layout of rows of integers with a scale, and perhaps a zero, for each group.

use crate::codes::layout::Packing;
use crate::floats::f16_to_f32;

/// Rows of integers with a scale (and a zero) for each group. Scales and zeros are f16.
///
/// ```text
/// symmetric     scale │ scale │ … │ one stream of codes
/// asymmetric    scale │ zero │ scale │ zero │ … │ one stream of codes
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    /// Codes in a row.
    pub dim: usize,
    /// Codes that share a scale. It divides `dim`, and is a multiple of 16.
    pub group: usize,
    /// Bits of a code, 2 to 8.
    pub bits: u8,
    /// Whether each group has a zero in addition to its scale.
    pub asymmetric: bool,
    /// The code of the integer 0.
    pub offset: i32,
}

impl Affine {
    /// Returns the number of groups.
    #[must_use]
    pub const fn groups(&self) -> usize {
        self.dim / self.group
    }

    /// Returns how the codes are packed.
    #[must_use]
    pub const fn packing(&self) -> Packing {
        Packing::bits(self.bits)
    }

    /// Returns the bytes of the scales and zeros.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        self.groups() * if self.asymmetric { 4 } else { 2 }
    }

    /// Returns the bytes of a row.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.header_bytes() + self.packing().bytes(self.dim)
    }

    /// Returns the codes of a row.
    #[inline(always)]
    pub(crate) fn codes<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        &row[self.header_bytes()..self.row_bytes()]
    }

    /// Returns the scale and the zero of a group. The zero of symmetric rows is 0.
    #[inline(always)]
    pub(crate) fn scale_and_zero(&self, row: &[u8], group: usize) -> (f32, f32) {
        let f16_at = |i: usize| f16_to_f32(u16::from_le_bytes([row[2 * i], row[2 * i + 1]]));
        if self.asymmetric { (f16_at(2 * group), f16_at(2 * group + 1)) } else { (f16_at(group), 0.0) }
    }
}
