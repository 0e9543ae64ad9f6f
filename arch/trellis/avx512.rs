//! Trellis codes with AVX-512: rows of centroids, 64 at a time, by bit extraction and byte lookups.
//!
//! A quadword contains the path bits of 64 coordinates. Broadcast to all lanes, it gives the
//! windows of all 64 in one `vpmultishiftqb`. That takes any eight neighbouring bits of a quadword
//! for each byte:
//!
//! ```text
//! quadword     p₆₃ … p₄ p₃ p₂ p₁ p₀              path bits, coordinate 0 lowest
//! byte t       bits t-3 … t+4                     window of coordinate t in the low 4 bits, others above
//!
//! index        │ code │ window │                  the window is masked in, the code lies above it
//! table        in one register (`vpermb`), in two or four (`vpermi2b`)
//! ```
//!
//! Only the first eight coordinates need the byte before, so their lane is shifted by a byte. Codes
//! of 1, 2 or 4 bits come from a broadcast of their 8, 16 or 32 bytes in the same way.
//!
//! Each lane takes eight coordinates that its own quadword contains, so scores shuffle no bytes.
//! Instead the query is put into the order of the lanes, once a call. Sums stay in
//! that order over all pages of a call.
//!
//! Scores of a single query are faster in `score_one.rs` (rows of 128 and more coordinates), all scores
//! of rows of 32 and 64 in `narrow.rs`, and sums of four codes in `woven.rs`. The path search is in
//! `search.rs`.

mod lanes;
mod lookup;
mod narrow;
mod score_one;
mod search;
mod sums;
mod woven;

pub(crate) use search::viterbi_encode;
pub(crate) use sums::accumulate_trellis;

use super::layout::TrellisCodebook;
use crate::codes::avx512::score::{ByteQuery, score_blocks};
use crate::codes::avx512::sums::finish;
use crate::codes::avx512::unpack::CHUNK;
use crate::registers::amx::Tiles;
use crate::registers::avx512::{self, add_four, add_lanes, load, scales, store_first};
use crate::rows::{Block, Blocks, ROWS, each_page_mut};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use lanes::LANES;
use lookup::{Large, Lookup, for_kind, order};

/// Adds 128 to centroids by xor, so that they are unsigned operands.
const BIAS: i8 = -128;

/// Implements `scalar::decode_trellis`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn decode_trellis(book: &TrellisCodebook, row: &[u8], scale: f32, out: &mut [f32]) {
    let (mut large, mut unpack) = (Large::EMPTY, None);
    let lookup = &Lookup::new(book, out.len(), 0, &mut large, &mut unpack);
    for_kind!(lookup, decode(row, scale, out));
}

/// Decodes a row.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn decode<const KIND: usize, const RAW: usize>(lookup: &Lookup, row: &[u8], scale: f32, out: &mut [f32]) {
    let (scale, lanes) = (_mm512_set1_ps(scale), load(&LANES[order(KIND, RAW)]));
    let block = Block::one(row);
    for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
        let [centroids, ..] = lookup.centroids::<KIND, RAW>(&block, chunk, 0);
        let mut rest = _mm512_permutexvar_epi64(lanes, centroids);
        for out in out.as_chunks_mut::<16>().0 {
            let values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_castsi512_si128(rest)));
            avx512::store_ps(out, _mm512_mul_ps(values, scale));
            rest = _mm512_shuffle_i64x2::<0b11_11_10_01>(rest, rest);
        }
    }
}

/// Implements `scalar::score_trellis`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_trellis(
    tiles: Option<Tiles>,
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let Some(&Rows { dim, .. }) = pages.first() else { return };
    if narrow::score(tiles, book, dim, pages, scale, queries, scores) {
        return;
    }
    if let [query] = queries
        && score_one::score(book, dim, pages, scale, query, scores)
    {
        return;
    }
    let (mut large, mut unpack) = (Large::EMPTY, None);
    let lookup = &Lookup::new(book, dim, BIAS, &mut large, &mut unpack);
    for_kind!(lookup, score(tiles, pages, scale, queries, scores));
}

/// Scores pages of one kind.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score<const KIND: usize, const RAW: usize>(
    lookup: &Lookup,
    tiles: Option<Tiles>,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if let [query] = queries {
        return score_single::<KIND, RAW>(lookup, pages, scale, query, scores);
    }
    let prepare = |query: &IntQuery, bytes: &mut ByteQuery| lookup.query(query, scale, bytes);
    let look_up = |block: &Block, columns: &mut [_]| lookup.columns::<KIND, RAW>(block, columns);
    // SAFETY: `columns` sets all of its output.
    unsafe { score_blocks(tiles, lookup.columns, pages, queries, scores, &prepare, &look_up) }
}

/// Scores rows with one query. It is a function of its own: inside the one with all kinds, the compiler
/// would keep its pointers in memory.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_single<const KIND: usize, const RAW: usize>(
    lookup: &Lookup,
    pages: &[Rows],
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let mut bytes = ByteQuery::zeros();
    lookup.query(query, scale, &mut bytes);
    for (rows, scores) in each_page_mut(pages, 1, scores) {
        let mut padded = None;
        score_rows::<KIND, RAW>(lookup, &Blocks::new(rows, &mut padded), &bytes, scores);
    }
}

/// Scores a page with one query.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_rows<const KIND: usize, const RAW: usize>(
    lookup: &Lookup,
    blocks: &Blocks,
    query: &ByteQuery,
    scores: &mut [f32],
) {
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        blocks.prefetch(i);
        let block = blocks.get(i);
        let mut fours = [_mm512_setzero_si512(); ROWS / 4];
        for (i, four) in fours.iter_mut().enumerate() {
            let mut sums = [_mm512_setzero_si512(); 4];
            for (chunk, values) in query.values[..lookup.chunks].iter().enumerate() {
                let centroids = lookup.centroids::<KIND, RAW>(&block, chunk, 4 * i);
                for (sum, centroids) in sums.iter_mut().zip(centroids) {
                    *sum = _mm512_dpbusd_epi32(*sum, centroids, *values);
                }
            }
            *four = add_four(sums);
        }
        let sums = add_lanes(fours);
        store_first(finish(sums, query.excess, query.factor, scales(&block)), scores);
    }
}
