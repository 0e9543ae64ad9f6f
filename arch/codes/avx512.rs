//! Rows of codes, for AVX-512. Centroids of up to 16 levels are looked up as bytes, those of more as words.

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

use crate::registers::amx::Tiles;
use crate::{IntQuery, Packing, Rows};
pub(crate) use pack::{pack, unpack};
pub(crate) use quantize::{lookup, lookup_packed, quantize};

/// See `scalar::score_codes`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_codes(
    tiles: Option<Tiles>,
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if centroids.len() > 16 {
        words::score_codes(packing, rows, centroids, scale, queries, scores)
    } else {
        score::score_codes(tiles, packing, rows, centroids, scale, queries, scores)
    }
}

/// See `scalar::accumulate_codes`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_codes(
    tiles: Option<Tiles>,
    packing: Packing,
    rows: &Rows,
    centroids: &[i16],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    if centroids.len() > 16 {
        words::accumulate_codes(packing, rows, centroids, scale, weights, acc)
    } else {
        accumulate::accumulate_codes(tiles, packing, rows, centroids, scale, weights, acc)
    }
}
