//! The values that the host writes into a graph's inputs: the cells of `SET_ROWS`, and the queries at which a mask starts sequences. So
//! both are known before the graph runs, without a wait for the GPU.

use crate::abi::{F16, F32, I32, I64, Tensor, size};
use octaplex::f16;
use std::collections::HashMap;

/// The longest list of cells that is noted. Longer ones are read from the GPU.
const MOST: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Inputs {
    cells: HashMap<usize, Vec<i64>>,
    /// For each mask, the cells of queries that see only a few: stream and cell.
    first: HashMap<usize, Vec<(usize, usize)>>,
}

impl Inputs {
    /// Notes what the host writes to a tensor. Part of a tensor makes it unknown.
    pub(super) fn note(
        &mut self,
        tensor: *const Tensor,
        about: &Tensor,
        offset: usize,
        bytes: &[u8],
        sinks: usize,
    ) {
        let key = tensor as usize;
        let count = (0..4).map(|axis| size(about, axis)).product::<usize>();
        match about.kind {
            I64 | I32 => {
                let each = if about.kind == I64 { 8 } else { 4 };
                if offset != 0 || bytes.len() != count * each || count > MOST {
                    self.cells.remove(&key);
                    return;
                }
                let cells = match about.kind {
                    I64 => bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
                    _ => bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
                };
                self.cells.insert(key, cells);
            }
            F32 | F16 if offset == 0 && size(about, 0) >= 64 && sinks > 0 => {
                let each = if about.kind == F32 { 4 } else { 2 };
                if bytes.len() != count * each {
                    return;
                }
                self.first.insert(key, starts(about, bytes, each, sinks));
            }
            _ => {}
        }
        if self.cells.len() + self.first.len() > MOST {
            (self.cells, self.first) = Default::default();
        }
    }

    /// Returns the cells that were written to a tensor since the last graph that used it.
    pub(super) fn cells(&self, tensor: *const Tensor) -> Option<Vec<i64>> {
        self.cells.get(&(tensor as usize)).cloned()
    }

    /// Returns the first cells of sequences in a mask.
    pub(super) fn first(&self, tensor: *const Tensor) -> &[(usize, usize)] {
        self.first.get(&(tensor as usize)).map_or(&[], Vec::as_slice)
    }

    /// Forgets inputs that a graph has used.
    pub(super) fn used(&mut self, tensor: *const Tensor) {
        self.cells.remove(&(tensor as usize));
        self.first.remove(&(tensor as usize));
    }
}

/// Finds the queries that see at most `sinks` cells, and what they see.
fn starts(about: &Tensor, bytes: &[u8], each: usize, sinks: usize) -> Vec<(usize, usize)> {
    let (cells, rows) = (size(about, 0), size(about, 1) * size(about, 2));
    let is_seen = |value: &[u8]| match *value {
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]) > f32::NEG_INFINITY,
        [a, b] => f16::from_le_bytes([a, b]) > f16::NEG_INFINITY,
        _ => false,
    };
    let mut all = Vec::new();
    for (number, row) in bytes.chunks_exact(cells * each).enumerate() {
        let seen =
            row.chunks_exact(each).enumerate().filter(|(_, value)| is_seen(value)).map(|(cell, _)| cell);
        let seen: Vec<usize> = seen.take(sinks + 1).collect();
        if seen.len() <= sinks {
            all.extend(seen.into_iter().map(|cell| (number / rows.max(1), cell)));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}
