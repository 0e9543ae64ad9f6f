//! Trees of polar coordinates for registers, four nodes at a time. A register holds the cosines and
//! sines of two nodes, in the order of the tables.
//!
//! ```text
//! register     cos₀ sin₀ cos₁ sin₁
//! radii          r₀   r₀   r₁   r₁         decoding: a lookup repeats each radius, then one multiplication
//! ```

use super::scalar::{root, weigh_roots};
use crate::codes::wide::unpack;
use crate::registers::{Registers, add_row, order};
use crate::{AngleTree, Angles, MAX_DIM};

/// Codes of the widest row, and those that are read beyond them.
const MAX_CODES: usize = MAX_DIM + 3;

/// The largest number of levels. Each has up to three nodes to fill a register.
const MAX_LEVELS: usize = 9;

/// Looks up the directions of four nodes.
#[inline(always)]
fn directions<L: Registers>(angles: &Angles, codes: &[u8; 4]) -> [L::V; 2] {
    // Codes are below the table's length. The mask shows it to the compiler. It also keeps codes of
    // the next level, which fill up the last four, within the table.
    let at = |i: usize| &angles.directions[usize::from(codes[i]) & (angles.directions.len() - 1)];
    [L::load_pairs(at(0), at(1)), L::load_pairs(at(2), at(3))]
}

/// Implements `scalar::decode_angles`.
#[inline(always)]
pub(crate) fn decode_angles<L: Registers>(tree: &AngleTree, row: &[u8], out: &mut [f32]) {
    let mut codes = [0; MAX_DIM];
    for (nodes, packing, bytes) in tree.planes(row) {
        unpack::<L>(packing, bytes, &mut codes[nodes]);
    }
    let (mut nodes, mut done) = (tree.roots(), tree.codes());
    for (index, out) in out[..nodes].iter_mut().enumerate() {
        *out = root(row, index);
    }
    let twice = [order([0, 0, 1, 1]), order([2, 2, 3, 3])].map(|order| L::load(&order));
    for angles in tree.levels.iter().rev() {
        done -= nodes;
        let (fours, rest) = codes[done..done + nodes].as_chunks::<4>();
        // From the last node on, because a product may overwrite radii that were already read.
        for (i, code) in (4 * fours.len()..nodes).zip(rest).rev() {
            let [cos, sin] = angles.directions[usize::from(*code)];
            (out[2 * i], out[2 * i + 1]) = (out[i] * cos, out[i] * sin);
        }
        let out = out.as_chunks_mut().0;
        for (k, codes) in fours.iter().enumerate().rev() {
            let radii = L::load_floats(&out[k]);
            for (i, direction) in directions::<L>(angles, codes).into_iter().enumerate() {
                L::store_floats(
                    &mut out[2 * k + i],
                    L::multiply_floats(L::lookup(radii, twice[i]), direction),
                );
            }
        }
        nodes *= 2;
    }
}

/// Implements `scalar::score_angles`. Directions are looked up once for all queries.
#[inline(always)]
pub(crate) fn score_angles<L: Registers>(
    tree: &AngleTree,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = bytes.len() / tree.row_bytes();
    let (mut codes, mut sums) = ([0; MAX_CODES], [[0.0; 4]; MAX_DIM / 4 + 1]);
    // Two registers for every four nodes, level by level.
    let mut looked_up = [[L::splat(0); 2]; MAX_DIM / 4 + MAX_LEVELS];
    for (r, row) in bytes.chunks_exact(tree.row_bytes()).enumerate() {
        for (nodes, packing, bytes) in tree.planes(row) {
            unpack::<L>(packing, bytes, &mut codes[nodes]);
        }
        let (mut nodes, mut codes, mut free) = (tree.dim / 2, &codes[..], &mut looked_up[..]);
        for angles in tree.levels {
            let (places, rest) = free.split_at_mut(nodes.div_ceil(4));
            for (place, codes) in places.iter_mut().zip(codes.as_chunks().0) {
                *place = directions::<L>(angles, codes);
            }
            (codes, nodes, free) = (&codes[nodes..], nodes / 2, rest);
        }
        for (q, query) in queries.iter().enumerate() {
            sums.as_flattened_mut()[..tree.dim].copy_from_slice(query);
            let (mut nodes, mut rest) = (tree.dim / 2, &looked_up[..]);
            for _ in tree.levels {
                let (level, above) = rest.split_at(nodes.div_ceil(4));
                for (k, [first, second]) in level.iter().enumerate() {
                    let first = L::multiply_floats(L::load_floats(&sums[2 * k]), *first);
                    let second = L::multiply_floats(L::load_floats(&sums[2 * k + 1]), *second);
                    let [cosines, sines] = L::unzip_floats(first, second);
                    L::store_floats(&mut sums[k], L::add_floats(cosines, sines));
                }
                (nodes, rest) = (nodes / 2, above);
            }
            scores[q * count + r] = weigh_roots(tree, row, sums.as_flattened());
        }
    }
}

/// Implements `scalar::accumulate_angles`.
#[inline(always)]
pub(crate) fn accumulate_angles<L: Registers>(
    tree: &AngleTree,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let count = bytes.len() / tree.row_bytes();
    let mut values = [0.0; MAX_DIM];
    let values = &mut values[..tree.dim];
    for (r, row) in bytes.chunks_exact(tree.row_bytes()).enumerate() {
        decode_angles::<L>(tree, row, values);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(tree.dim)) {
            add_row::<L>(weights[r], values, acc);
        }
    }
}
