//! Trellis codes in plain Rust. See [`codes::portable`](crate::codes::portable).

use crate::codes::portable::{accumulate_rows, score_rows, word};
use crate::codes::scalar::{unpack, weight_limit};
use crate::rows::{each_page, each_page_mut};
use crate::{IntQuery, MAX_DIM, Rows, TrellisCodebook};

/// Implements [`scalar::score_trellis`](super::scalar::score_trellis).
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
fn score_page(book: &TrellisCodebook, rows: &Rows, scale: f32, queries: &[IntQuery], scores: &mut [f32]) {
    score_rows(rows, scale, queries, scores, |row, out| read(book, rows.dim, row, 0, out));
}

/// Implements [`scalar::accumulate_trellis`](super::scalar::accumulate_trellis).
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
fn accumulate_page(book: &TrellisCodebook, rows: &Rows, scale: f32, weights: &[f32], acc: &mut [f32]) {
    accumulate_rows(rows, weight_limit(book.levels()), scale, weights, acc, |row, start, out| {
        read(book, rows.dim, row, start, out);
    });
}

/// Reads the centroids of a row from coordinate `start` on, a multiple of eight.
fn read(book: &TrellisCodebook, dim: usize, row: &[u8], start: usize, out: &mut [i16]) {
    let (path, planes) = book.planes(dim, row);
    match book.levels() {
        1 => read_bits::<0>(book, path, planes, start, out),
        2 => read_bits::<1>(book, path, planes, start, out),
        4 => read_bits::<2>(book, path, planes, start, out),
        8 => read_bits::<3>(book, path, planes, start, out),
        16 => read_bits::<4>(book, path, planes, start, out),
        _ => {
            let mut codes = [0; MAX_DIM];
            if let Some(packing) = book.packing() {
                unpack(packing, planes, &mut codes[..dim]);
            }
            let codes = codes[start..].as_chunks::<8>().0;
            eights(book, path, start, out, codes.iter(), |codes, i| {
                usize::from(codes[i]) << (book.history() + 1)
            });
        }
    }
}

/// Reads centroids of codes with `BITS` raw bits.
#[inline(always)]
fn read_bits<const BITS: usize>(
    book: &TrellisCodebook,
    path: &[u8],
    planes: &[u8],
    start: usize,
    out: &mut [i16],
) {
    let mask = ((1usize << BITS) - 1) << (book.history() + 1);
    let codes = (start / 8..).map(|i| word(&planes[i * BITS..][..BITS]) << (book.history() + 1));
    eights(book, path, start, out, codes, |codes, i| (codes >> (BITS * i)) as usize & mask);
}

/// Reads eight coordinates at a time: those of a byte of the path plane. `codes` returns their codes,
/// and `code` the code of one coordinate, above the bits of the window.
///
/// ```text
/// byte, before         b₇ b₆ b₅ b₄ b₃ b₂ b₁ b₀ a₇ a₆ a₅ a₄ …     b: this byte, a: the byte before it
/// >> (8 - history)               … b₃ b₂ b₁ b₀ a₇ a₆ a₅          with 8 states: history = 3
/// coordinate 1                           └─────────┘             >> 1, then the mask: newest bit on top
/// ```
#[inline(always)]
fn eights<T>(
    book: &TrellisCodebook,
    path: &[u8],
    start: usize,
    out: &mut [i16],
    codes: impl Iterator<Item = T>,
    code: impl Fn(&T, usize) -> usize,
) {
    let (history, mask) = (book.history(), book.windows() - 1);
    let mut before = if start == 0 { 0 } else { path[start / 8 - 1] };
    for ((out, &byte), codes) in out.as_chunks_mut::<8>().0.iter_mut().zip(&path[start / 8..]).zip(codes) {
        let bits = (usize::from(byte) << 8 | usize::from(before)) >> (8 - history);
        before = byte;
        for (i, out) in out.iter_mut().enumerate() {
            *out = i16::from(book.centroids()[code(&codes, i) | bits >> i & mask]);
        }
    }
}
