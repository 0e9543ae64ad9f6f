//! Builds the index of a set: which members can win in each cell of a grid.
//!
//! Let g = (x, y, z)/w be the coordinates of a direction. Its inner product with a codeword c is
//! w·(c₀ + c₁g₁ + c₂g₂ + c₃g₃), which is linear in g. So one codeword beats another in a whole box
//! exactly if it does so in all eight corners.
//!
//! ```text
//! cube [-1, 1]³  ─►  8 boxes  ─►  64  ─►  512  ─►  4096 cells
//! 12·S codewords     each box keeps the codewords      a handful
//!                    that no other one beats in it
//! ```

use alloc::{boxed::Box, vec, vec::Vec};
use octaplex_arch::quaternion::{INDEX_CELLS, INDEX_GRID, INDEX_PADDING, QuaternionIndexTables, UNITS};

/// A bound for rounding errors here and in the kernels, times twenty. All numbers are about 1.
const MARGIN: f32 = 2e-5;

/// Products of a unit and a member, by component, and the number of the member.
#[derive(Default)]
struct Codewords {
    q: [Vec<f32>; 4],
    s: Vec<u8>,
}

impl Codewords {
    fn push(&mut self, q: [f32; 4], s: u8) {
        self.q.iter_mut().zip(q).for_each(|(components, c)| components.push(c));
        self.s.push(s);
    }

    fn clear(&mut self) {
        self.q.iter_mut().for_each(Vec::clear);
        self.s.clear();
    }
}

/// A cube around `center` with half edges of length `half`.
#[derive(Clone, Copy)]
struct Cell {
    center: [f32; 3],
    half: f32,
}

impl Cell {
    /// Returns whether the cell touches the octahedron |g₁|+|g₂|+|g₃| ≤ 1, where all directions lie
    /// after a unit is taken out.
    fn is_needed(&self) -> bool {
        self.center.iter().map(|c| (c.abs() - self.half).max(0.0)).sum::<f32>() <= 1.0 + 4.0 * MARGIN
    }

    /// Copies to `kept` those codewords that are not beaten in the whole cell by a single other
    /// one.
    ///
    /// The best codeword at the centre is tried as the winner. With at most 64 codewords, so are
    /// all others that are not beaten yet.
    fn filter(&self, codewords: &Codewords, scratch: &mut Scratch, kept: &mut Codewords) {
        let Codewords { q: [a, b, c, d], s } = codewords;
        let ([x, y, z], Scratch { values, won, indices }) = (self.center, scratch);
        values.clear();
        values
            .extend(a.iter().zip(b).zip(c.iter().zip(d)).map(|((a, b), (c, d))| a + (b * x + c * y + d * z)));
        let (mut best, mut most) = (0, f32::NEG_INFINITY);
        for (i, value) in values.iter().enumerate() {
            if *value > most {
                (best, most) = (i, *value);
            }
        }
        won.clear();
        won.resize(s.len(), 0);
        self.mark_won(best, codewords, values, won);
        if s.len() <= 64 {
            for i in 0..s.len() {
                // Skip codewords that are beaten: whatever they beat, their own winner beats too.
                if won[i] == 0 && i != best {
                    self.mark_won(i, codewords, values, won);
                }
            }
        }
        // Collect indices without branches. A branch predictor would be wrong every second time.
        indices.resize(s.len().max(indices.len()), 0);
        let mut count = 0;
        for (i, won) in (0..).zip(won.iter()) {
            indices[count] = i;
            count += usize::from(*won == 0);
        }
        kept.clear();
        let indices = &indices[..count];
        for (to, from) in kept.q.iter_mut().zip(&codewords.q) {
            to.extend(indices.iter().map(|i| from[*i as usize]));
        }
        kept.s.extend(indices.iter().map(|i| s[*i as usize]));
    }

    /// Marks the codewords that `winner` beats in the whole cell. Written without branches, so that
    /// the compiler vectorises it.
    fn mark_won(&self, winner: usize, codewords: &Codewords, values: &[f32], won: &mut [u32]) {
        let [_, b, c, d] = &codewords.q;
        let (reach, value) = (self.half + MARGIN, values[winner] - MARGIN);
        let [x, y, z] = [b[winner], c[winner], d[winner]];
        let others = b.iter().zip(c).zip(d.iter().zip(values));
        for (((b, c), (d, other)), won) in others.zip(won) {
            let slope = (x - b).abs() + (y - c).abs() + (z - d).abs();
            *won |= u32::from(value - other > reach * slope);
        }
    }
}

/// Buffers of [`Cell::filter`]: the inner products at the cell's centre for w = 1, and which
/// codewords are beaten.
#[derive(Default)]
struct Scratch {
    values: Vec<f32>,
    won: Vec<u32>,
    /// Indices of the codewords that are kept.
    indices: Vec<u16>,
}

/// Builds the index of a set in a few hundred microseconds. The top boxes take O(S) each, those
/// below less.
pub(super) fn build(members: &[[f32; 4]]) -> Option<QuaternionIndexTables> {
    let (cells, lists) = tables(members);
    Some(QuaternionIndexTables::new(members.len(), cells.try_into().ok()?, lists.into_boxed_slice()))
}

/// Returns cells and lists as [`QuaternionIndexTables::new`] takes them.
pub(super) fn tables(members: &[[f32; 4]]) -> (Box<[u32]>, Vec<u8>) {
    let mut codewords = Codewords::default();
    for (s, member) in members.iter().enumerate() {
        for unit in &UNITS {
            // Codewords on the far side cannot win: the octahedron is within 45° of 1, and already
            // the units come within 45° of every direction.
            let q = product(unit, member);
            if q[0] > -MARGIN {
                codewords.push(q, s as u8);
            }
        }
    }
    let everything = members.len() as u32;
    let mut cells = vec![everything; INDEX_CELLS].into_boxed_slice();
    let mut lists: Vec<u8> = (0..members.len()).map(|s| s as u8).collect();
    let mut levels: [Codewords; 5] = Default::default();
    let root = Cell { center: [0.0; 3], half: 1.0 };
    descend(&codewords, root, [0; 3], &mut Scratch::default(), &mut levels, &mut |at, codewords| {
        let start = lists.len();
        lists.extend(&codewords.s);
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
    lists.extend([0; INDEX_PADDING]);
    (cells, lists)
}

/// Filters codewords down through the boxes, and calls `leaf` for each cell. `at` counts in boxes
/// of the current size.
fn descend(
    codewords: &Codewords,
    cell: Cell,
    at: [usize; 3],
    scratch: &mut Scratch,
    levels: &mut [Codewords],
    leaf: &mut impl FnMut([usize; 3], &Codewords),
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
            child.filter(codewords, scratch, kept);
            descend(kept, child, core::array::from_fn(|i| 2 * at[i] + up[i]), scratch, levels, leaf);
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
