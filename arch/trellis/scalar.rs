//! The specification of trellis codes: the path search (Viterbi's algorithm), decoding, scores,
//! sums.

use super::layout::{Fit, MAX_STATES, TrellisCodebook};
use crate::codes::scalar::{PAGE, finish_sums, pack, quantize_weights, unpack, weight_limit};
use crate::floats::{LANES, halve};
use crate::rows::{each_page, each_page_mut};
use crate::{IntQuery, MAX_DIM, Rows};

/// Reads the centroids of a row, one for each coordinate.
#[inline(always)]
pub(crate) fn row_centroids(book: &TrellisCodebook, row: &[u8], out: &mut [i8]) {
    let dim = out.len();
    let (path, planes) = book.planes(dim, row);
    let mut codes = [0; MAX_DIM];
    if let Some(packing) = book.packing() {
        unpack(packing, planes, &mut codes[..dim]);
    }
    let mut window = 0;
    for (t, (out, code)) in out.iter_mut().zip(codes).enumerate() {
        let bit = usize::from(path[t / 8] >> (t % 8) & 1);
        window = window >> 1 | bit << book.history();
        *out = book.centroids()[usize::from(code) << (book.history() + 1) | window];
    }
}

/// Decodes a row: out = scale · centroid.
#[inline(always)]
pub(crate) fn decode_trellis(book: &TrellisCodebook, row: &[u8], scale: f32, out: &mut [f32]) {
    let mut centroids = [0; MAX_DIM];
    let centroids = &mut centroids[..out.len()];
    row_centroids(book, row, centroids);
    for (out, centroid) in out.iter_mut().zip(centroids) {
        *out = f32::from(*centroid) * scale;
    }
}

/// Scores rows, laid out \[query]\[row]: (f32(Σ q·c) · (query scale · table scale)) · row scale.
/// The sum is an exact integer.
#[inline(always)]
pub(crate) fn score_trellis(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    for (rows, scores) in each_page_mut(pages, queries.len(), scores) {
        score_page(book, rows, scale, queries, scores);
    }
}

/// Scores a page.
#[inline(always)]
fn score_page(book: &TrellisCodebook, rows: &Rows, scale: f32, queries: &[IntQuery], scores: &mut [f32]) {
    let (count, dim) = (rows.count(), rows.dim);
    let mut centroids = [0; MAX_DIM];
    let centroids = &mut centroids[..dim];
    for (r, row) in rows.iter().enumerate() {
        row_centroids(book, row, centroids);
        for (q, query) in queries.iter().enumerate() {
            let mut sum = 0i32;
            for (centroid, value) in centroids.iter().zip(query.values) {
                sum += i32::from(*value) * i32::from(*centroid);
            }
            scores[q * count + r] = (sum as f32 * (query.scale * scale)) * rows.scale(r);
        }
    }
}

/// Adds Σ weight·row scale·table scale·centroid to `acc`, as
/// [`accumulate_codes`](crate::codes::scalar::accumulate_codes) does for codebooks of up to 16
/// centroids.
#[inline(always)]
pub(crate) fn accumulate_trellis(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let queries = pages.first().map_or(0, |rows| acc.len() / rows.dim);
    for (rows, weights) in each_page(pages, queries, weights) {
        accumulate_page(book, rows, scale, weights, acc);
    }
}

/// Adds a page.
#[inline(always)]
fn accumulate_page(book: &TrellisCodebook, rows: &Rows, scale: f32, weights: &[f32], acc: &mut [f32]) {
    let (count, dim) = (rows.count(), rows.dim);
    let mut centroids = [0; MAX_DIM];
    let centroids = &mut centroids[..dim];
    for (weights, acc) in weights.chunks_exact(count.max(1)).zip(acc.chunks_exact_mut(dim)) {
        for (page, weights) in rows.pages(PAGE).zip(weights.chunks(PAGE)) {
            let mut ints = [0; PAGE];
            let Some(unit) = quantize_weights(&page, weights, weight_limit(book.levels()), &mut ints) else {
                continue;
            };
            let mut sums = [0i32; MAX_DIM];
            for (row, weight) in page.iter().zip(ints) {
                row_centroids(book, row, centroids);
                for (sum, centroid) in sums.iter_mut().zip(centroids.iter()) {
                    *sum += i32::from(weight) * i32::from(*centroid);
                }
            }
            finish_sums(&sums[..dim], unit * scale, acc);
        }
    }
}

/// Finds the best path of each vector z. With y = z·scale, these are the path bits and codes whose
/// centroids have the least Σ(y - centroid)² of all paths. Writes them to the planes of the row,
/// whose first two bytes do not change, and returns the [`Fit`].
///
/// Bit 0 of a state is the newest path bit. Two old states lead to each new state, and one path bit
/// leads out of each:
///
/// ```text
/// bits = old state << 1 | new bit
///
/// old state         n >> 1        n >> 1 | top bit
///                       ╲           ╱
/// new state               n                               cost = min(cost + error) of the two
/// ```
///
/// For each window, the code is the number of k with 2y ≥ centroid k + centroid k+1. Its error is e
/// = (y - centroid)², and the new cost is cost + e. Each operation rounds to f32. The search begins
/// in state 0. The way from the higher old state wins only if it is strictly cheaper. At the end,
/// the lowest of the cheapest states wins.
///
/// The stack has 4.5 KiB of decisions, 0.5 KiB of costs and 576 bytes of codes, for every width.
#[inline(always)]
pub(crate) fn viterbi_encode(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
) {
    let rows = bytes.chunks_exact_mut(book.row_bytes(dim));
    for (((z, scale), row), fit) in z.chunks_exact(dim).zip(scales).zip(rows).zip(fits) {
        let mut decisions = [0; MAX_DIM];
        let state = search(book, z, *scale, &mut decisions);
        let path = &mut row[2..2 + TrellisCodebook::path_bytes(dim)];
        trace_back(book, state, &decisions[..dim], path);
        *fit = choose_codes(book, z, *scale, row);
    }
}

/// Fills the decisions, and returns the best last state. Bit n of step t is set if the way into
/// state n came from the higher old state.
#[inline(always)]
fn search(book: &TrellisCodebook, z: &[f32], scale: f32, decisions: &mut [u64; MAX_DIM]) -> usize {
    let states = book.states();
    let mut costs = [f32::INFINITY; MAX_STATES];
    costs[0] = 0.0;
    for (z, decisions) in z.iter().zip(decisions) {
        let y = z * scale;
        let mut next = [f32::INFINITY; MAX_STATES];
        for (n, next) in next[..states].iter_mut().enumerate() {
            let low = costs[n >> 1] + nearest(book, book.window(n), y).1;
            let high = costs[n >> 1 | states >> 1] + nearest(book, book.window(n | states), y).1;
            *next = if high < low { high } else { low };
            *decisions |= u64::from(high < low) << n;
        }
        costs = next;
    }
    let mut best = 0;
    for state in 1..states {
        if costs[state] < costs[best] {
            best = state;
        }
    }
    best
}

/// Returns the code of `y` in a window, and its squared error.
#[inline(always)]
pub(crate) fn nearest(book: &TrellisCodebook, window: usize, y: f32) -> (u8, f32) {
    let centroid = |code: usize| f32::from(book.centroids()[code * book.windows() + window]);
    let mut code = 0;
    while code + 1 < book.levels() && y + y >= centroid(code) + centroid(code + 1) {
        code += 1;
    }
    let error = y - centroid(code);
    (code as u8, error * error)
}

/// Writes the path bits of the path that ends in `state`.
#[inline(always)]
fn trace_back(book: &TrellisCodebook, mut state: usize, decisions: &[u64], path: &mut [u8]) {
    path.fill(0);
    for (t, decisions) in decisions.iter().enumerate().rev() {
        path[t / 8] |= ((state & 1) as u8) << (t % 8);
        let high = (decisions >> state & 1) as usize;
        state = state >> 1 | high << (book.history() - 1);
    }
}

/// Writes the codes of a row whose path plane is known, and sums the fit.
#[inline(always)]
pub(crate) fn choose_codes(book: &TrellisCodebook, z: &[f32], scale: f32, row: &mut [u8]) -> Fit {
    let (path, planes) = row[2..].split_at_mut(TrellisCodebook::path_bytes(z.len()));
    let mut codes = [0; MAX_DIM];
    let mut correlation = [0.0; LANES];
    let (mut window, mut energy) = (0, 0i32);
    for (t, (z, slot)) in z.iter().zip(&mut codes).enumerate() {
        let bit = usize::from(path[t / 8] >> (t % 8) & 1);
        window = window >> 1 | bit << book.history();
        let y = z * scale;
        let code = nearest(book, window, y).0;
        let centroid = book.centroids()[usize::from(code) * book.windows() + window];
        *slot = code;
        correlation[t % LANES] += y * f32::from(centroid);
        energy += i32::from(centroid) * i32::from(centroid);
    }
    if let Some(packing) = book.packing() {
        pack(packing, &codes[..z.len()], planes);
    }
    Fit { correlation: halve(correlation), energy: energy as f32 }
}
