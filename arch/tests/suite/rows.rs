//! Rows of hostile bytes with finite scales, in all positions that rows may have.

use super::paint::{Painter, Style};
use crate::buffer::Buffer;
use alloc::vec;
use alloc::vec::Vec;
use octaplex_arch::{Float, Rows};

/// Rows of `len` bytes. Scales are inside them or separate.
pub(super) struct Painted {
    pub(super) bytes: Buffer<u8>,
    stride: usize,
    len: usize,
    dim: usize,
    scales: Option<Buffer<f32>>,
}

impl Painted {
    /// Creates rows with scales of a format. Some f16 scales are separate.
    pub(super) fn new(painter: &mut Painter, (len, dim): (usize, usize), scale: Float, count: usize) -> Self {
        let way = painter.below(if scale == Float::F16 { 6 } else { 4 });
        let stride = [len, len + 1, len + 6, len + 37, len - 2, len - 2][way];
        let apart = way >= 4;
        // With separate scales, the bytes end exactly at the end of the last row.
        let size = if apart && count > 0 { (count - 1) * stride + len } else { stride * count };
        let mut bytes = painter.bytes(size);
        // Positive, as encoders write them, or of both signs.
        let positive = painter.below(2) == 0;
        for r in 0..count {
            let row = &mut bytes[r * stride..][..len];
            let head = scale.bytes();
            match scale {
                _ if apart => {}
                Float::F32 => row[..4].copy_from_slice(&painter.floats(Style::Wide, 1)[0].to_le_bytes()),
                _ => row[..2].copy_from_slice(&painter.finite_f16()),
            }
            if positive && !apart {
                row[head - 1] &= 0x7f;
            }
            match painter.below(8) {
                0 => row[head..].fill(0xff),
                1 if !apart => row[..head].fill(0),
                _ => {}
            }
        }
        let mut scales = apart.then(|| painter.floats(Style::Random, count));
        if positive {
            scales.iter_mut().flat_map(|scales| scales.iter_mut()).for_each(|scale| *scale = scale.abs());
        }
        Self { bytes, stride, len, dim, scales }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        let Self { bytes, stride, len, dim, scales } = self;
        Rows {
            bytes,
            stride: *stride,
            len: *len,
            dim: *dim,
            scales: scales.as_deref(),
            ahead: &bytes[..bytes.len() * (dim % 4) / 3],
        }
    }

    /// Sets the weights of one page to zero, or those of no page. Weights are \[page]\[query]\[row].
    pub(super) fn leave_out_a_page(&self, painter: &mut Painter, weights: &mut [f32]) {
        let counts: Vec<usize> = self.pages().iter().map(Rows::count).collect();
        let queries = weights.len() / counts.iter().sum::<usize>().max(1);
        let page = painter.below(2 * counts.len());
        let start = queries * counts.iter().take(page).sum::<usize>();
        let end = queries * counts.iter().take(page + 1).sum::<usize>();
        weights[start..end].fill(0.0);
    }

    /// Returns the rows as pages: one, or some rows in each of three.
    pub(super) fn pages(&self) -> Vec<Rows<'_>> {
        let rows = self.rows();
        let count = rows.count();
        let cuts = if count < 3 { vec![0, count] } else { vec![0, count / 3, count - 1, count] };
        let page = |range: &[usize]| {
            let [start, end] = [range[0], range[1]];
            let last = if end == count { rows.bytes.len() } else { (end - 1) * rows.stride + rows.len };
            Rows {
                bytes: &rows.bytes[start * rows.stride..last],
                scales: rows.scales.map(|scales| &scales[start..end]),
                ..rows
            }
        };
        if self.dim.is_multiple_of(3) { vec![rows] } else { cuts.windows(2).map(page).collect() }
    }
}
