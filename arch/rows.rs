//! Rows of bytes at equal distances: what most kernels read.

#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::*;

use crate::MAX_DIM;
use crate::vectors::scalar::{f16_to_f32, row_scale};

/// Rows of a scale and planes, one every `stride` bytes.
///
/// A row has `len` bytes: an f16, and its planes. Where scales are given apart, planes need no gaps between them: `stride` is
/// then `len` - 2, and the place of a row's f16 is the end of the row before it, which nobody looks at.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// All rows, up to the end of the last one or of its `stride`.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of a row, the place of its f16 included.
    pub len: usize,
    /// Coordinates of a row.
    pub dim: usize,
    /// The scales, where they are not in the rows.
    pub scales: Option<&'a [f32]>,
}

impl<'a> Rows<'a> {
    /// Number of rows.
    #[must_use]
    #[inline(always)]
    pub const fn count(&self) -> usize {
        if self.bytes.len() < self.len { 0 } else { (self.bytes.len() - self.len) / self.stride + 1 }
    }

    /// Panics unless the bytes are whole rows of `len` bytes.
    #[track_caller]
    pub(crate) fn check(&self, len: usize) {
        assert!((1..=MAX_DIM).contains(&self.dim));
        assert_eq!(self.len, len);
        // Kernels multiply strides by numbers of rows in 32 bits.
        assert!(self.stride <= 1 << 16 && self.stride + if self.scales.is_some() { 2 } else { 0 } >= len);
        let (count, bytes) = (self.count(), self.bytes.len());
        assert!(bytes == count * self.stride || bytes + self.stride == count * self.stride + len);
        assert!(self.scales.is_none_or(|scales| scales.len() == count));
    }

    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> &'a [u8] {
        &self.bytes[r * self.stride..][..self.len]
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let rows = *self;
        (0..rows.count()).map(move |r| rows.row(r))
    }

    /// The scale of a row.
    #[inline(always)]
    pub(crate) fn scale(&self, r: usize) -> f32 {
        self.scales.map_or_else(|| row_scale(self.row(r)), |scales| scales[r])
    }

    /// The scales of the rows from `first` on; what is left behind the last row stays.
    #[inline(always)]
    pub(crate) fn read_scales<const N: usize>(&self, first: usize, out: &mut [f32; N]) {
        let count = N.min(self.count() - first);
        if let Some(scales) = self.scales {
            return out[..count].copy_from_slice(&scales[first..first + count]);
        }
        let mut halves = [0; N];
        // Once for all: a check a row would take as long as a tenth of a score.
        assert!(count == 0 || (first + count - 1) * self.stride + 2 <= self.bytes.len());
        for (half, r) in halves[..count].iter_mut().zip(first..) {
            // SAFETY: so many bytes are there, up to the last of these rows and two of its own.
            *half = u16::from_le_bytes(unsafe {
                self.bytes.as_ptr().add(r * self.stride).cast::<[u8; 2]>().read()
            });
        }
        for (out, half) in out[..count].iter_mut().zip(halves) {
            *out = f16_to_f32(half);
        }
    }

    /// At most `count` rows from `first` on.
    #[inline(always)]
    pub(crate) fn some(&self, first: usize, count: usize) -> Self {
        let count = count.min(self.count() - first);
        let start = first * self.stride;
        let bytes =
            &self.bytes[start..start + if count > 0 { (count - 1) * self.stride + self.len } else { 0 }];
        Self { bytes, scales: self.scales.map(|scales| &scales[first..first + count]), ..*self }
    }

    /// Runs of at most `count` rows.
    #[inline(always)]
    pub(crate) fn pages(self, count: usize) -> impl Iterator<Item = Rows<'a>> {
        (0..self.count()).step_by(count).map(move |first| self.some(first, count))
    }
}
