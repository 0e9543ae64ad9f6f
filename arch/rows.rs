//! Rows of bytes at equal distances: what most kernels read.

#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::*;

use crate::floats::{f16_to_f32, row_scale};
use crate::prefetch::{AHEAD, LONG, prefetch};
use crate::{Backend, CHECKED, MAX_DIM};

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
    /// Bytes that will be read next, as rows like these, or none: memory is asked for them while these are worked on.
    pub ahead: &'a [u8],
}

impl<'a> Rows<'a> {
    /// Number of rows.
    #[must_use]
    #[inline(always)]
    pub const fn count(&self) -> usize {
        if self.bytes.len() < self.len || (!CHECKED && self.stride == 0) {
            return 0;
        }
        (self.bytes.len() - self.len) / self.stride + 1
    }

    /// Panics unless the bytes are whole rows of `len` bytes.
    #[track_caller]
    pub(crate) fn check(&self, len: usize) {
        contract!((1..=MAX_DIM).contains(&self.dim));
        contract!(self.len == len);
        // Kernels multiply strides by numbers of rows in 32 bits.
        contract!(self.stride <= 1 << 16 && self.stride + if self.scales.is_some() { 2 } else { 0 } >= len);
        let (count, bytes) = (self.count(), self.bytes.len());
        contract!(bytes == count * self.stride || bytes + self.stride == count * self.stride + len);
        contract!(self.scales.is_none_or(|scales| scales.len() == count));
    }

    /// Asks memory for all that comes next, at the beginning of a kernel that does not ask for it block by block. Others go on with
    /// what this gives: where nothing comes next and there are more rows than a cache holds, later ones of their own.
    #[inline(always)]
    pub(crate) fn ask(&self, backend: Backend) -> Self {
        let mut rows = *self;
        if !backend.asks_by_blocks() {
            prefetch(self.ahead);
        } else if self.ahead.is_empty() && self.bytes.len() > LONG {
            rows.ahead = &self.bytes[AHEAD..];
        }
        rows
    }

    /// Asks memory for `count` rows from `first` on among those that come next.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128")),
        allow(dead_code, reason = "what asks so is written for registers")
    )]
    #[inline(always)]
    pub(crate) fn ask_some(&self, first: usize, count: usize) {
        let start = self.ahead.len().min(first * self.stride);
        prefetch(&self.ahead[start..self.ahead.len().min(start + count * self.stride)]);
    }

    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> &'a [u8] {
        if CHECKED {
            return &self.bytes[r * self.stride..][..self.len];
        }
        self.bytes.get(r * self.stride..).and_then(|bytes| bytes.get(..self.len)).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let rows = *self;
        (0..rows.count()).map(move |r| rows.row(r))
    }

    /// The scale of a row.
    #[inline(always)]
    pub(crate) fn scale(&self, r: usize) -> f32 {
        self.scales.map_or_else(
            || row_scale(self.row(r)),
            |scales| if CHECKED { scales[r] } else { scales.get(r).copied().unwrap_or(0.0) },
        )
    }

    /// The scales of the rows from `first` on; what is left behind the last row stays.
    #[inline(always)]
    pub(crate) fn read_scales<const N: usize>(&self, first: usize, out: &mut [f32; N]) {
        let count = N.min(self.count() - first);
        if let Some(scales) = self.scales {
            let scales = scales.get(first..first + count);
            contract!(scales.is_some());
            return out[..count].copy_from_slice(scales.unwrap_or(&[0.0; N][..count]));
        }
        let mut halves = [0; N];
        // Once for all: a check a row would take as long as a tenth of a score.
        let whole = count == 0 || (first + count - 1) * self.stride + 2 <= self.bytes.len();
        contract!(whole);
        let count = if whole { count } else { 0 };
        for (half, r) in halves[..count].iter_mut().zip(first..) {
            // SAFETY: they are whole: so many bytes are there, up to the last of these rows and two of its own.
            *half = u16::from_le_bytes(unsafe {
                self.bytes.as_ptr().add(r * self.stride).cast::<[u8; 2]>().read()
            });
        }
        for (out, half) in out[..count].iter_mut().zip(halves) {
            // Exponents of all ones stay that: no score is finite then, as `Backend::codes_tell_scales` promises.
            let ones = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
            *out = f32::from_bits(f16_to_f32(half).to_bits() | ones);
        }
    }

    /// The f16 of N rows from `first` on, where so many are left and have theirs in them.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
    #[inline(always)]
    pub(crate) fn halves<const N: usize>(&self, first: usize) -> Option<[u16; N]> {
        if self.scales.is_some() || (first + N - 1) * self.stride + 2 > self.bytes.len() {
            return None;
        }
        let mut halves = [0; N];
        // SAFETY: the last one's ends in the bytes.
        let start = unsafe { self.bytes.as_ptr().add(first * self.stride) };
        for (r, half) in halves.iter_mut().enumerate() {
            // SAFETY: as above.
            *half = u16::from_le_bytes(unsafe { start.add(r * self.stride).cast::<[u8; 2]>().read() });
        }
        Some(halves)
    }

    /// At most `count` rows from `first` on.
    #[inline(always)]
    pub(crate) fn some(&self, first: usize, count: usize) -> Self {
        let count = count.min(self.count() - first);
        let start = first * self.stride;
        let end = start + if count > 0 { (count - 1) * self.stride + self.len } else { 0 };
        let bytes = self.bytes.get(start..end);
        let scales = self.scales.map(|scales| scales.get(first..first + count).unwrap_or_default());
        contract!(scales.is_none_or(|scales| scales.len() == count));
        Self {
            bytes: bytes.unwrap_or_default(),
            scales,
            ahead: self.ahead.get(start..).unwrap_or_default(),
            ..*self
        }
    }

    /// Runs of at most `count` rows.
    #[inline(always)]
    pub(crate) fn pages(self, count: usize) -> impl Iterator<Item = Rows<'a>> {
        (0..self.count()).step_by(count).map(move |first| self.some(first, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    /// Scales that end behind the bytes are not read, be there more memory or not.
    #[test]
    fn scales_behind_the_bytes_are_refused() {
        for (length, fits) in [(3, false), (4, true)] {
            let bytes = &[0; 8][..length];
            let rows = Rows { bytes, stride: 2, len: 1, dim: 8, scales: None, ahead: &[] };
            assert_eq!(rows.count(), 2);
            let read = std::panic::catch_unwind(|| rows.read_scales(0, &mut [0.0; 2]));
            assert_eq!(read.is_ok(), fits, "{length} bytes");
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
            assert_eq!(rows.halves::<2>(0).is_some(), fits, "{length} bytes");
        }
    }

    /// Scales that lie apart are as many as the rows.
    #[test]
    fn too_few_scales_are_refused() {
        for (count, fits) in [(1, false), (2, true)] {
            let scales = Some(&[0.0; 2][..count]);
            let rows = Rows { bytes: &[0; 4], stride: 2, len: 2, dim: 8, scales, ahead: &[] };
            assert_eq!(rows.count(), 2);
            let read = std::panic::catch_unwind(|| rows.read_scales(0, &mut [0.0; 2]));
            assert_eq!(read.is_ok(), fits, "{count} scales");
            let some = std::panic::catch_unwind(|| rows.some(0, 2).count());
            assert_eq!(some.is_ok(), fits, "{count} scales");
        }
    }

    /// Long rows ask for their own later ones, short ones and those that something comes behind do not.
    #[test]
    fn long_rows_are_asked_for() {
        let bytes = vec![0; 66 * (LONG / 66 + 1)];
        let of = |bytes, ahead| Rows { bytes, stride: 66, len: 66, dim: 128, scales: None, ahead };
        for backend in Backend::available() {
            let asked = |bytes, ahead| of(bytes, ahead).ask(backend).ahead;
            let own: &[u8] = if backend.asks_by_blocks() { &bytes[AHEAD..] } else { &[] };
            assert_eq!(asked(&bytes, &[]).len(), own.len());
            assert!(asked(&bytes[..66 * (LONG / 66)], &[]).is_empty());
            assert_eq!(asked(&bytes, &bytes[..9]).len(), 9);
            let later = of(&bytes, &bytes[AHEAD..]).some(2, 3).ahead;
            assert_eq!(later.as_ptr(), bytes[AHEAD + 2 * 66..].as_ptr());
        }
    }
}
