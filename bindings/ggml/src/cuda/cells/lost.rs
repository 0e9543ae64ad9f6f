//! Rows that f16 or a codec cannot hold: their cells are lost until the host writes them again.
//!
//! The GPU notes such cells. After a graph in which pages close, the host reads the list when it waits for the GPU, or before
//! its next graph: a read behind each graph would keep it from preparing the next batch meanwhile. Graphs fail as long as a
//! mask shows a lost cell, and other sequences go on. A graph that writes rows that are not finite gives what CUDA's f16 gives:
//! NaN, in a large batch for all its sequences.

use super::*;

pub(in crate::cuda) const WHY: &str = "a sequence has keys or values that are not finite in f16, or too large for the codec: remove \
                              it, or set OCTAPLEX_BITS=16, which leaves the cache to CUDA";

impl Cells {
    /// Forgets rows that the GPU refused. Returns whether there were some since the last call.
    pub(in crate::cuda) fn forget_lost(&mut self) -> Result<bool, String> {
        if !self.unread {
            return Ok(false);
        }
        let lost = self.plan.take_lost().map_err(failed)?;
        if !lost.is_empty() {
            self.book.lose(&lost); // `place` follows
            // CUDA's attention would multiply a weight of 0 with what lies behind a mask.
            self.scratch.zero().map_err(failed)?;
        }
        self.unread = false;
        self.few.clear();
        Ok(!lost.is_empty())
    }

    /// The same before cells are written. If a batch of a few tokens has written them before, the list may still
    /// name them.
    pub(super) fn forget_before(&mut self, cells: &[usize]) -> Result<(), String> {
        self.unread |= !self.few.is_empty() && cells.iter().any(|cell| self.few.contains(cell));
        self.forget_lost().map(drop)
    }

    /// Fails if a mask of the graph shows a lost cell that the graph does not write.
    pub(super) fn check_masks(
        &self,
        seam: &Seam,
        nodes: &[*mut Tensor],
        ops: &[usize],
        wait: &dyn Fn(),
    ) -> Result<(), String> {
        let lost = self.book.lost();
        if lost.is_empty() {
            return Ok(());
        }
        wait();
        let mut checked: Vec<(*const Tensor, usize)> = Vec::new();
        for node in ops {
            // SAFETY: nodes of a graph are tensors.
            let op = unsafe { &*nodes[*node] };
            let (Op::Attend, Some(layer)) = (seam.op(op), self.attended(op)) else { continue };
            let Some(keys) = source(op, 1) else { continue };
            let offset = keys.view_offset();
            let first = offset / (2 * self.width(layer));
            let origin = source(op, 3).map(|mask| origin_of(seam, mask));
            if checked.contains(&(origin.unwrap_or(core::ptr::null()), first)) {
                continue;
            }
            checked.push((origin.unwrap_or(core::ptr::null()), first));
            let streams = size(keys, 3).max(1);
            // SAFETY: `origin_of` returns a tensor of the host's.
            let shown = origin.map(|origin| unsafe { &*origin }).and_then(read_mask);
            for cell in &lost {
                let (stream, at) = (cell / self.stream_cells, cell % self.stream_cells);
                let Some(stream) =
                    stream.checked_sub(first / self.stream_cells).filter(|stream| *stream < streams)
                else {
                    continue;
                };
                let is_seen =
                    at < size(keys, 1) && shown.as_ref().is_none_or(|shown| shown.shows(stream, at));
                if is_seen && !self.is_written(seam, nodes, ops, *cell, wait) {
                    return Err(WHY.into());
                }
            }
        }
        Ok(())
    }

    /// Returns whether the graph writes a cell.
    fn is_written(
        &self,
        seam: &Seam,
        nodes: &[*mut Tensor],
        ops: &[usize],
        cell: usize,
        wait: &dyn Fn(),
    ) -> bool {
        ops.iter().any(|node| {
            // SAFETY: nodes of a graph are tensors.
            let op = unsafe { &*nodes[*node] };
            let (Op::SetRows, Some((layer, _))) = (seam.op(op), self.side_of(op)) else { return false };
            self.cells_of(seam, op, layer, wait).is_ok_and(|cells| cells.contains(&cell))
        })
    }
}

/// A mask, \[streams\]\[queries\]\[cells].
struct Mask {
    cells: usize,
    queries: usize,
    streams: usize,
    each: usize,
    bytes: Vec<u8>,
}

impl Mask {
    /// Returns whether a query of a stream sees a cell.
    fn shows(&self, stream: usize, cell: usize) -> bool {
        let stream = stream % self.streams.max(1);
        cell < self.cells
            && (0..self.queries).any(|query| {
                let at = ((stream * self.queries + query) * self.cells + cell) * self.each;
                match self.bytes.get(at..at + self.each) {
                    Some(&[a, b]) => u16::from_le_bytes([a, b]) != 0xFC00,
                    Some(&[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]) != f32::NEG_INFINITY,
                    _ => true,
                }
            })
    }
}

/// Reads a mask from the GPU. `None` stands for one that shows all.
fn read_mask(mask: &Tensor) -> Option<Mask> {
    let each = match mask.kind {
        F32 => 4,
        F16 => 2,
        _ => return None,
    };
    let (cells, queries, streams) = (size(mask, 0), size(mask, 1), size(mask, 2) * size(mask, 3));
    let mut bytes = vec![0; cells * queries * streams * each];
    let packed = mask.nb[1] == each * cells && mask.nb[3] * size(mask, 3) == bytes.len();
    let buffer = mask.root().buffer;
    if buffer.is_null() || !packed {
        return None;
    }
    // SAFETY: the tensor is the host's, in a buffer of its own, whose function reads it.
    unsafe { ((*buffer).interface.get_tensor)(buffer, mask, bytes.as_mut_ptr().cast(), 0, bytes.len()) };
    Some(Mask { cells, queries, streams, each, bytes })
}
