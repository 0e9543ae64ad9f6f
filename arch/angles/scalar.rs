//! Trees of polar coordinates: encoding by comparisons, decoding and scoring as products from tables.

use crate::codes::scalar::unpack;
use crate::vectors::scalar::f16_to_f32;
use crate::{AngleTree, Angles, MAX_DIM, Packing};

/// x\[..roots] ← the roots' radii; codes of level 1, then level 2, …
#[inline(always)]
pub(crate) fn quantize_angles(tree: &AngleTree, x: &mut [f32], codes: &mut [u8]) {
    let (mut nodes, mut done) = (tree.dim / 2, 0);
    for (level, angles) in tree.levels.iter().enumerate() {
        let codes = &mut codes[done..done + nodes];
        if level == 0 {
            first_codes(angles, &x[..2 * nodes], codes);
        } else {
            further_codes(angles, &x[..2 * nodes], codes);
        }
        for i in 0..nodes {
            let (a, b) = (x[2 * i], x[2 * i + 1]);
            x[i] = libm::sqrtf(a * a + b * b);
        }
        done += nodes;
        nodes /= 2;
    }
}

/// The quadrant, counted from the positive first axis, and within it the tangents t with b ≥ a·t, where (a, b) is the
/// pair turned into the first quadrant. An axis belongs to the quadrant that it begins; (0, 0) to the first, in its last sector.
#[inline(always)]
fn first_codes(angles: &Angles, x: &[f32], codes: &mut [u8]) {
    for (pair, code) in x.as_chunks::<2>().0.iter().zip(codes) {
        let [x, y] = *pair;
        let upper = if x <= 0.0 && y > 0.0 { 1 } else { 0 };
        let lower = if x < 0.0 { 2 } else { 3 };
        let quadrant = if y < 0.0 || (y <= 0.0 && x < 0.0) { lower } else { upper };
        // In the second quadrant (y, -x), in the third (-x, -y), in the fourth (-y, x).
        let (a, b) = if quadrant % 2 == 0 { (x.abs(), y.abs()) } else { (y.abs(), x.abs()) };
        let mut within = 0;
        for tangent in angles.tangents {
            within += u32::from(b >= a * tangent);
        }
        *code = match angles.bits {
            1 => (quadrant >> 1) as u8,
            bits => (quadrant << (bits - 2) | within) as u8,
        };
    }
}

/// The tangents t with b ≥ a·t.
#[inline(always)]
fn further_codes(angles: &Angles, x: &[f32], codes: &mut [u8]) {
    for (pair, code) in x.as_chunks::<2>().0.iter().zip(codes) {
        let [a, b] = *pair;
        let mut count = 0;
        for tangent in angles.tangents {
            count += u32::from(b >= a * tangent);
        }
        *code = count as u8;
    }
}

/// Codes of all levels.
#[inline(always)]
fn unpack_angles(unpack: impl Fn(Packing, &[u8], &mut [u8]), tree: &AngleTree, row: &[u8], codes: &mut [u8]) {
    let (mut at, mut done) = (2 * tree.roots(), 0);
    for (count, packing) in tree.streams() {
        let bytes = packing.bytes(count);
        unpack(packing, &row[at..at + bytes], &mut codes[done..done + count]);
        (at, done) = (at + bytes, done + count);
    }
}

/// Cosines and sines of all codes.
#[inline(always)]
fn look_up_angles(tree: &AngleTree, codes: &[u8], cos: &mut [f32], sin: &mut [f32]) {
    let (mut nodes, mut done) = (tree.dim / 2, 0);
    for angles in tree.levels {
        for i in done..done + nodes {
            let code = usize::from(codes[i]);
            (cos[i], sin[i]) = (angles.cos[code], angles.sin[code]);
        }
        (nodes, done) = (nodes / 2, done + nodes);
    }
}

#[inline(always)]
fn root(row: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([row[2 * index], row[2 * index + 1]]))
}

/// From the roots down: r → (r·cos, r·sin).
#[inline(always)]
pub(crate) fn decode_angles(tree: &AngleTree, row: &[u8], out: &mut [f32]) {
    decode_angles_with(unpack, tree, row, out);
}

#[inline(always)]
pub(crate) fn decode_angles_with(
    unpack: impl Fn(Packing, &[u8], &mut [u8]),
    tree: &AngleTree,
    row: &[u8],
    out: &mut [f32],
) {
    let mut codes = [0; MAX_DIM];
    let (mut cos, mut sin) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
    unpack_angles(&unpack, tree, row, &mut codes);
    look_up_angles(tree, &codes, &mut cos, &mut sin);
    let mut nodes = tree.roots();
    for (index, out) in out[..nodes].iter_mut().enumerate() {
        *out = root(row, index);
    }
    let mut done = tree.codes();
    while nodes < tree.dim {
        done -= nodes;
        for i in (0..nodes).rev() {
            let radius = out[i];
            out[2 * i] = radius * cos[done + i];
            out[2 * i + 1] = radius * sin[done + i];
        }
        nodes *= 2;
    }
}

/// score\[query]\[row], from the query's coordinates up: (a, b) → a·cos + b·sin; then Σ root·radius, ascending from the
/// first product.
#[inline(always)]
pub(crate) fn score_angles(tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
    score_angles_with(unpack, tree, bytes, queries, scores);
}

#[inline(always)]
pub(crate) fn score_angles_with(
    unpack: impl Fn(Packing, &[u8], &mut [u8]),
    tree: &AngleTree,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let row_bytes = tree.row_bytes();
    let count = bytes.len() / row_bytes;
    let mut codes = [0; MAX_DIM];
    let (mut cos, mut sin) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
    for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
        unpack_angles(&unpack, tree, row, &mut codes);
        look_up_angles(tree, &codes, &mut cos, &mut sin);
        for (q, query) in queries.iter().enumerate() {
            let mut sums = [0.0; MAX_DIM / 2];
            let mut nodes = tree.dim / 2;
            combine(query, &cos[..nodes], &sin[..nodes], &mut sums);
            let mut done = nodes;
            for _ in 1..tree.levels.len() {
                nodes /= 2;
                let below = sums;
                combine(&below[..2 * nodes], &cos[done..done + nodes], &sin[done..done + nodes], &mut sums);
                done += nodes;
            }
            let mut score = root(row, 0) * sums[0];
            for (index, sum) in sums.iter().enumerate().take(tree.roots()).skip(1) {
                score += root(row, index) * sum;
            }
            scores[q * count + r] = score;
        }
    }
}

#[inline(always)]
fn combine(x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    for (((pair, cos), sin), out) in x.as_chunks::<2>().0.iter().zip(cos).zip(sin).zip(out) {
        *out = pair[0] * cos + pair[1] * sin;
    }
}

/// acc\[query] += Σ weight·decoded row, rows ascending.
#[inline(always)]
pub(crate) fn accumulate_angles(tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
    accumulate_angles_with(unpack, tree, bytes, weights, acc);
}

#[inline(always)]
pub(crate) fn accumulate_angles_with(
    unpack: impl Fn(Packing, &[u8], &mut [u8]),
    tree: &AngleTree,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let row_bytes = tree.row_bytes();
    let count = bytes.len() / row_bytes;
    let mut values = [0.0; MAX_DIM];
    let values = &mut values[..tree.dim];
    for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
        decode_angles_with(&unpack, tree, row, values);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(tree.dim)) {
            for (acc, x) in acc.iter_mut().zip(values.iter()) {
                *acc += weights[r] * x;
            }
        }
    }
}
