//! Operations of the host's on a cache: which cells they write, and whether kernels of this library can serve them.

use super::*;

impl Cells {
    /// Returns the cells that `SET_ROWS` writes.
    pub(super) fn cells_of(
        &self,
        seam: &Seam,
        op: &Tensor,
        layer: usize,
        wait: &dyn Fn(),
    ) -> Result<Vec<usize>, String> {
        let other = || "llama.cpp writes it in another layout, without flash attention".to_owned();
        let (rows, indices) = (source(op, 0).ok_or_else(other)?, source(op, 1).ok_or_else(other)?);
        let offset = op.view_offset();
        let row = 2 * self.width(layer);
        let whole = size(rows, 0) == self.width(layer) && size(rows, 2) == 1 && size(rows, 3) == 1;
        let plain = rows.kind == F32 && rows.nb[0] == 4 && rows.nb[1].is_multiple_of(4);
        if !whole || !plain || !offset.is_multiple_of(row) || size(indices, 0) < size(rows, 1) {
            return Err(other());
        }
        if ![I64, I32].contains(&indices.kind) || size(op, 0) != self.width(layer) {
            return Err(other());
        }
        let noted = lock(&seam.inputs).cells(indices);
        let cells = match noted {
            Some(cells) => cells,
            None => {
                wait();
                read_cells(indices).ok_or_else(other)?
            }
        };
        let first = offset / row;
        let cells = cells.into_iter().take(size(rows, 1));
        let cells: Option<Vec<usize>> =
            cells.map(|cell| usize::try_from(cell).ok()?.checked_add(first)).collect();
        cells.filter(|cells| cells.iter().all(|cell| *cell < self.book.cells())).ok_or_else(other)
    }

    /// Returns the layer of an attention on keys and values of one layer.
    pub(super) fn attended(&self, op: &Tensor) -> Option<usize> {
        let (keys, values) = (source(op, 1)?, source(op, 2)?);
        let ((layer, 0), (same, 1)) = (self.side_of(keys)?, self.side_of(values)?) else { return None };
        let config = self.layers[layer].layer.config();
        let fits = |side: &Tensor| {
            size(side, 0) == config.key_dim
                && size(side, 2) == config.kv_heads
                && side.nb[1] == 2 * self.width(layer)
        };
        (layer == same && fits(keys) && fits(values)).then_some(layer)
    }

    /// Returns whether kernels attend on compressed pages.
    pub(super) fn is_few(&self, op: &Tensor, layer: usize) -> bool {
        let [Some(queries), Some(keys)] = [0, 1].map(|number| source(op, number)) else { return false };
        let dim = self.layers[layer].layer.config().key_dim;
        let (heads, count, streams) = (self.layers[layer].query_heads, size(queries, 1), size(queries, 3));
        let stream_bytes = 2 * self.width(layer) * self.stream_cells;
        let offset = keys.view_offset();
        let row = 4 * dim * heads;
        let of_queries = queries.kind == F32
            && queries.nb[0] == 4
            && queries.nb[2] == 4 * dim
            && (queries.nb[1] == row || count == 1)
            && (queries.data as usize).is_multiple_of(16)
            && (streams == 1 || queries.nb[3].is_multiple_of(16));
        let of_output = op.kind == F32
            && op.nb[0] == 4
            && op.nb[1] == 4 * dim
            && op.nb[2] == row
            && (op.data as usize).is_multiple_of(16)
            && (streams == 1 || op.nb[3].is_multiple_of(16));
        let of_mask = source(op, 3).is_none_or(|mask| {
            mask.kind == F16 && size(mask, 2) == 1 && mask.nb[0] == 2 && size(mask, 0) >= size(keys, 1)
        });
        let of_sinks = source(op, 4).is_none_or(|sinks| sinks.kind == F32 && size(sinks, 0) == heads);
        let of_streams = offset.is_multiple_of(stream_bytes)
            && offset / stream_bytes + streams <= self.tables.len()
            && (streams == 1 || keys.nb[3] == stream_bytes)
            && size(keys, 1) <= self.stream_cells;
        let flat = op.float(1) == 0.0 && size(queries, 2) == heads && (1..=MOST_QUERIES).contains(&count);
        of_queries && of_output && of_mask && of_sinks && of_streams && flat
    }

    /// Notes what an attention sees. Returns false if another one sees a stream differently.
    pub(super) fn sees(&self, op: &Tensor, layer: usize, seen: &mut [Option<usize>]) -> bool {
        let (Some(queries), Some(keys)) = (source(op, 0), source(op, 1)) else { return false };
        let offset = keys.view_offset();
        let first = offset / (2 * self.width(layer) * self.stream_cells);
        let count = size(keys, 1);
        (first..first + size(queries, 3)).all(|stream| *seen[stream].get_or_insert(count) == count)
    }
}

/// Reads cells from the GPU.
fn read_cells(indices: &Tensor) -> Option<Vec<i64>> {
    let each = if indices.kind == I64 { 8 } else { 4 };
    let mut bytes = vec![0; size(indices, 0) * each];
    // SAFETY: the tensor is the host's, in a buffer of its own, whose function reads it.
    unsafe {
        let buffer = indices.root().buffer;
        ((*buffer).interface.get_tensor)(buffer, indices, bytes.as_mut_ptr().cast(), 0, bytes.len());
    }
    Some(match indices.kind {
        I64 => bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
    })
}
