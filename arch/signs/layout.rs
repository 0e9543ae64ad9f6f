//! The layout of planes of signs.

use crate::floats::Float;
use crate::floats::f16_to_f32;

/// Sign planes inside rows of bytes.
///
/// ```text
/// row     … │ f16 scale │ plane, 1 bit a coordinate │ …      least significant bit first, 1 = not negative
///           at
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SignRows<'a> {
    /// All rows, `stride` bytes each.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Signs in a row, a multiple of 8.
    pub dim: usize,
    /// The offset of the f16 scale in a row. Its plane follows.
    pub at: usize,
    /// The type of a float at the front of the row (`F16` or `F32`) that multiplies the scale, if
    /// there is one.
    pub outer: Option<Float>,
}

impl<'a> SignRows<'a> {
    /// Returns the number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// Iterates over the bytes of the rows.
    #[inline(always)]
    pub(crate) fn iter(&self) -> core::slice::ChunksExact<'a, u8> {
        self.bytes.chunks_exact(self.stride)
    }

    /// Returns the plane of a row.
    #[inline(always)]
    pub(crate) fn plane<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        &row[self.at + 2..][..self.dim / 8]
    }

    /// Returns the scale of a row times its outer factor. Both must be finite.
    #[inline(always)]
    pub(crate) fn scale(&self, row: &[u8]) -> f32 {
        let scale = f16_to_f32(u16::from_le_bytes([row[self.at], row[self.at + 1]]));
        match self.outer {
            None => scale,
            Some(Float::F32) => f32::from_le_bytes([row[0], row[1], row[2], row[3]]) * scale,
            Some(_) => f16_to_f32(u16::from_le_bytes([row[0], row[1]])) * scale,
        }
    }
}

/// A query for sign planes. Coordinate `i` is about `values[i] as f32 * scale`.
#[derive(Clone, Copy, Debug)]
pub struct SignQuery<'a> {
    /// The integers of the query, at most ±127.
    pub values: &'a [i8],
    /// The value of one integer step.
    pub scale: f32,
}
