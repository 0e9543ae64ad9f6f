//! Rows of codes with AVX-512. Centroids of up to 16 levels are looked up as bytes, those of more
//! levels as words.

pub(crate) mod accumulate;
pub(crate) mod codebook;
mod pack;
pub(crate) mod pairs;
mod quantize;
pub(crate) mod score;
pub(crate) mod sums;
pub(crate) mod tiles;
pub(crate) mod unpack;
mod words;

use super::layout::Codebook;
use crate::registers::amx::Tiles;
use crate::{IntQuery, Rows};
pub(crate) use pack::{pack, unpack};
pub(crate) use quantize::{lookup, lookup_packed, quantize};

/// Implements `scalar::score_codes`. `tiles` is `Some` with AMX.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_codes(
    tiles: Option<Tiles>,
    book: &Codebook,
    pages: &[Rows],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if book.centroids.len() > 16 {
        words::score_codes(book, pages, queries, scores)
    } else {
        score::score_codes(tiles, book, pages, queries, scores)
    }
}

/// Implements `scalar::accumulate_codes`. `tiles` is `Some` with AMX.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_codes(
    tiles: Option<Tiles>,
    book: &Codebook,
    pages: &[Rows],
    weights: &[f32],
    acc: &mut [f32],
) {
    if book.centroids.len() > 16 {
        words::accumulate_codes(book, pages, weights, acc)
    } else {
        accumulate::accumulate_codes(tiles, book, pages, weights, acc)
    }
}
