//! Planes of signs.

use crate::floats::Float;
use crate::floats::f16_to_f32;

/// Sign planes inside rows of bytes. A plane is one bit a coordinate, least significant bit first, 1 = not
/// negative; the f16 in front of it is its scale.
#[derive(Clone, Copy, Debug)]
pub struct SignRows<'a> {
    /// All rows, `stride` bytes each.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Signs in a row, a multiple of 8.
    pub dim: usize,
    /// Where in a row the f16 scale is; its plane follows.
    pub at: usize,
    /// A float at the head of the row (`F16` or `F32`) that multiplies the scale.
    pub outer: Option<Float>,
}

impl<'a> SignRows<'a> {
    /// Number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.stride
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> core::slice::ChunksExact<'a, u8> {
        self.bytes.chunks_exact(self.stride)
    }

    #[inline(always)]
    pub(crate) fn plane<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        &row[self.at + 2..][..self.dim / 8]
    }

    /// The row's scale with its outer factor; finite scales only.
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

/// A query for sign planes: the `i`-th coordinate is about `values[i] as f32 * scale`.
#[derive(Clone, Copy, Debug)]
pub struct SignQuery<'a> {
    /// At most ±127.
    pub values: &'a [i8],
    /// Value of one unit.
    pub scale: f32,
}
