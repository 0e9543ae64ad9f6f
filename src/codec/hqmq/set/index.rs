//! Builds the index: which members can win in each cell of the grid.
//!
//! In the coordinates g = (x, y, z)/w, the inner product with a codeword c is w·(c₀ + c₁g₁ + c₂g₂ + c₃g₃): one codeword
//! beats another in a whole box exactly if it does in its eight corners. Boxes are halved from the cube down to the
//! cells, and each hands those codewords on that no single other one beats everywhere in it. 24·S codewords at the
//! root, a handful in a cell.

use alloc::{vec, vec::Vec};
use octaplex_arch::quaternion::{INDEX_CELLS, INDEX_GRID, INDEX_PADDING, QuaternionIndexTables, UNITS};

/// What f32 arithmetic here and in the kernels gets wrong, and twenty times that: all numbers are about 1.
const MARGIN: f32 = 2e-5;

/// A product of a unit and member `s`.
#[derive(Clone, Copy)]
struct Codeword {
    q: [f32; 4],
    s: u8,
}

impl Codeword {
    fn at(&self, g: [f32; 3]) -> f32 {
        self.q[0] + (self.q[1] * g[0] + self.q[2] * g[1] + self.q[3] * g[2])
    }
}

/// A cube around `center`.
#[derive(Clone, Copy)]
struct Cell {
    center: [f32; 3],
    half: f32,
}

impl Cell {
    /// Whether any of it is in the octahedron |g₁|+|g₂|+|g₃| ≤ 1.
    fn is_needed(&self) -> bool {
        self.center.iter().map(|c| (c.abs() - self.half).max(0.0)).sum::<f32>() <= 1.0 + 4.0 * MARGIN
    }

    /// Whether `winner` beats `other` in all of it.
    fn is_won(&self, winner: &Codeword, other: &Codeword) -> bool {
        let d: [f32; 4] = core::array::from_fn(|c| winner.q[c] - other.q[c]);
        let slope = d[1].abs() + d[2].abs() + d[3].abs();
        Codeword { q: d, s: 0 }.at(self.center) - (self.half + MARGIN) * slope > MARGIN
    }

    /// Copies those codewords to `kept` that no other one beats in all of the cell.
    fn filter(&self, codewords: &[Codeword], kept: &mut Vec<Codeword>) {
        kept.clear();
        let mut best = (f32::MIN, 0);
        for (i, codeword) in codewords.iter().enumerate() {
            let value = codeword.at(self.center);
            if value > best.0 {
                best = (value, i);
            }
        }
        let best = &codewords[best.1];
        kept.extend(codewords.iter().filter(|codeword| !self.is_won(best, codeword)));
        if kept.len() <= 48 {
            let rivals = kept.clone();
            kept.retain(|codeword| !rivals.iter().any(|rival| self.is_won(rival, codeword)));
        }
    }
}

/// O(24·S) a box at the top, less below; a few hundred microseconds.
pub(super) fn build(members: &[[f32; 4]]) -> Option<QuaternionIndexTables> {
    let mut codewords = Vec::with_capacity(24 * members.len());
    for unit in &UNITS {
        for (s, member) in members.iter().enumerate() {
            codewords.push(Codeword { q: product(unit, member), s: s as u8 });
        }
    }
    let everything = members.len() as u32;
    let mut cells = vec![everything; INDEX_CELLS].into_boxed_slice();
    let mut lists: Vec<u8> = (0..members.len()).map(|s| s as u8).collect();
    let mut levels: [Vec<Codeword>; 5] = Default::default();
    descend(&codewords, Cell { center: [0.0; 3], half: 1.0 }, [0; 3], &mut levels, &mut |at, codewords| {
        let start = lists.len();
        lists.extend(codewords.iter().map(|codeword| codeword.s));
        lists[start..].sort_unstable();
        let mut end = start;
        for i in start..lists.len() {
            if i == start || lists[i] != lists[end - 1] {
                lists[end] = lists[i];
                end += 1;
            }
        }
        lists.truncate(end);
        let cell = (at[0] * INDEX_GRID + at[1]) * INDEX_GRID + at[2];
        cells[cell] = (start << 8 | (end - start)) as u32;
    });
    #[cfg(test)]
    stats(&cells, lists.len());
    lists.extend([0; INDEX_PADDING]);
    Some(QuaternionIndexTables::new(members.len(), cells.try_into().ok()?, lists.into_boxed_slice()))
}

/// Filters codewords down through the boxes; `at` counts in boxes of the current size.
fn descend(
    codewords: &[Codeword],
    cell: Cell,
    at: [usize; 3],
    levels: &mut [Vec<Codeword>],
    leaf: &mut impl FnMut([usize; 3], &[Codeword]),
) {
    if cell.half <= 1.0 / INDEX_GRID as f32 {
        return leaf(at, codewords);
    }
    let Some((kept, levels)) = levels.split_first_mut() else { return };
    let half = cell.half / 2.0;
    for octant in 0..8 {
        let up = [octant >> 2 & 1, octant >> 1 & 1, octant & 1];
        let center = core::array::from_fn(|i| cell.center[i] + if up[i] == 1 { half } else { -half });
        let child = Cell { center, half };
        if child.is_needed() {
            child.filter(codewords, kept);
            descend(kept, child, core::array::from_fn(|i| 2 * at[i] + up[i]), levels, leaf);
        }
    }
}

fn product(unit: &[f32; 4], q: &[f32; 4]) -> [f32; 4] {
    let ([a, b, c, d], [w, x, y, z]) = (*unit, *q);
    [
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y + c * w + d * x - b * z,
        a * z + d * w + b * y - c * x,
    ]
}

#[cfg(test)]
fn stats(cells: &[u32], total: usize) {
    extern crate std;
    let used: Vec<u32> = cells.iter().filter(|c| **c >> 8 > 0).map(|c| c & 255).collect();
    let sum: u32 = used.iter().sum();
    // expected maximum of 16 draws
    let mut sorted = used.clone();
    sorted.sort_unstable();
    let n = sorted.len() as f64;
    let mut e = 0.0;
    for (i, v) in sorted.iter().enumerate() {
        e += f64::from(*v) * (((i + 1) as f64 / n).powi(16) - (i as f64 / n).powi(16));
    }
    std::println!(
        "cells {} mean {:.2} max {} max16 {e:.2} lists {total}",
        used.len(),
        f64::from(sum) / n,
        sorted.last().unwrap()
    );
}
#[test]
fn t() {
    extern crate std;
    for s in [16, 24, 48, 96, 192, 255] {
        let spec = crate::HqmqSpec { members: s, packing: crate::ChunkPacking::Index, ..Default::default() };
        std::println!("S {s}");
        let _ = crate::Hqmq::<64>::build(spec, crate::Backend::detect(), crate::Stream::default());
    }
}
