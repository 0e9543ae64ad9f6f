//! Scores and weighted sums of trellis codes for rows of 128 coordinates, up to 16 states and codes of at most three bits:
//! on an Intel Sapphire Rapids, 8.4 ns a row and query for 64 centroids and 14 for 128, which take `avx2.rs` 32 and 35.
//!
//! Rows r and r + 4 share a register, and each byte of it has eight neighbouring coordinates, one for each of eight look-ups,
//! as the path plane has them; or four, where codes have two bits and their plane has them so. The window's four newest
//! bits, a shift and a mask away, are an index of `vpshufb`; a fifth bit and those of the code choose among tables: each is
//! brought to the top of its byte, where `vpblendvb` asks for it. It is the query that is put into that order, once a page.

use crate::codes::scalar::{PAGE, finish_sums};
use crate::registers::avx2::{load, scales_of_eight, store_first};
use crate::rows::{Block, Blocks, ROWS};
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, Rows};
use core::arch::asm;
use core::arch::x86_64::*;

/// Coordinates of a row.
const DIM: usize = 128;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;
/// Queries that share a pass over the rows.
pub(crate) const QUERIES: usize = 8;
/// Registers of a pair of rows.
const EACH: usize = 8;
/// The most tables: three bits of a code, and one of the window.
const TABLES: usize = 16;

/// A query in the look-ups' order: magnitudes, and the values whose signs go to the centroids.
type Values = [[__m256i; 2]; EACH];

/// Runs a function for a shape, if it is of these.
macro_rules! for_shape {
    ($book:expr, $rows:expr, $function:ident($($argument:expr),*)) => {{
        match ($rows.dim, $book.levels(), $book.states()) {
            (DIM, 1, ..=8) => $function::<0, false>($book, $rows, $($argument),*),
            (DIM, 2, ..=8) => $function::<1, false>($book, $rows, $($argument),*),
            (DIM, 4, ..=8) => $function::<2, false>($book, $rows, $($argument),*),
            (DIM, 8, ..=8) => $function::<3, false>($book, $rows, $($argument),*),
            (DIM, 1, 16) => $function::<0, true>($book, $rows, $($argument),*),
            (DIM, 2, 16) => $function::<1, true>($book, $rows, $($argument),*),
            (DIM, 4, 16) => $function::<2, true>($book, $rows, $($argument),*),
            (DIM, 8, 16) => $function::<3, true>($book, $rows, $($argument),*),
            _ => return false,
        }
        true
    }};
}

/// Scores queries if the shape is of these; `false` if not.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) -> bool {
    for_shape!(book, rows, score_as(scale, queries, scores))
}

/// Sums up to eight queries over up to 256 rows if the shape is of these; `false` if not.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sum_page(
    book: &TrellisCodebook,
    rows: &Rows,
    ints: &[[i16; PAGE]; QUERIES],
    units: &[Option<f32>; QUERIES],
    acc: &mut [f32],
) -> bool {
    for_shape!(book, rows, sum_as(ints, units, acc))
}

/// Codes of `BITS` bits, windows of five bits if `FIVE`, of up to four if not.
#[target_feature(enable = "avx2,fma,f16c")]
fn score_as<const BITS: usize, const FIVE: bool>(
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let tables = tables::<BITS, FIVE>(book);
    let count = rows.count();
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        if let [query] = queries {
            score_one::<BITS, FIVE>(&tables, &blocks, scale, query, scores);
        } else {
            score_some::<BITS, FIVE>(&tables, &blocks, scale, queries, scores);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn score_one<const BITS: usize, const FIVE: bool>(
    tables: &[__m256i; TABLES],
    blocks: &Blocks,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let values = values::<BITS>(query);
    for (i, scores) in scores.chunks_mut(8).enumerate() {
        let (block, r) = (blocks.get(i / (ROWS / 8)), i % (ROWS / 8) * 8);
        // All planes come first: their way from memory to a window is as long as a pair's look-ups take.
        let planes = four_planes::<BITS>(&block, r);
        let mut sums = [_mm256_setzero_si256(); 4];
        for (sum, planes) in sums.iter_mut().zip(&planes) {
            *sum = dot(&centroids::<BITS, FIVE>(tables, planes), &values);
        }
        finish(sums, query.scale * scale, scales_of_eight(&block, r), scores);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn score_some<const BITS: usize, const FIVE: bool>(
    tables: &[__m256i; TABLES],
    blocks: &Blocks,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let mut all = [[[_mm256_setzero_si256(); 2]; EACH]; QUERIES];
    for (all, query) in all.iter_mut().zip(queries) {
        *all = values::<BITS>(query);
    }
    let all = &all[..queries.len()];
    let count = scores.len() / queries.len();
    for first in (0..count).step_by(8) {
        let (block, r) = (blocks.get(first / ROWS), first % ROWS);
        let mut sums = [[_mm256_setzero_si256(); 4]; QUERIES];
        for (i, planes) in four_planes::<BITS>(&block, r).iter().enumerate() {
            let found = centroids::<BITS, FIVE>(tables, planes);
            for (sums, values) in sums.iter_mut().zip(all) {
                sums[i] = dot(&found, values);
            }
        }
        let scales = scales_of_eight(&block, r);
        for ((sums, query), scores) in sums.into_iter().zip(queries).zip(scores.chunks_exact_mut(count)) {
            let end = count.min(first + 8);
            finish(sums, query.scale * scale, scales, &mut scores[first..end]);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn sum_as<const BITS: usize, const FIVE: bool>(
    book: &TrellisCodebook,
    rows: &Rows,
    ints: &[[i16; PAGE]; QUERIES],
    units: &[Option<f32>; QUERIES],
    acc: &mut [f32],
) {
    let tables = tables::<BITS, FIVE>(book);
    let zero = _mm256_setzero_si256();
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    let queries = acc.len() / DIM;
    // Of each look-up, bytes 0 to 8 of a row, the others.
    let mut sums = [[[zero; 2]; EACH]; QUERIES];
    for first in (0..rows.count()).step_by(8) {
        let (block, r) = (blocks.get(first / ROWS), first % ROWS);
        let mut pairs = [[[zero; 2]; EACH]; 4];
        for (pairs, planes) in pairs.iter_mut().zip(&four_planes::<BITS>(&block, r)) {
            for (pair, found) in pairs.iter_mut().zip(centroids::<BITS, FIVE>(&tables, planes)) {
                let (a, b) = (_mm256_castsi256_si128(found), _mm256_extracti128_si256::<1>(found));
                *pair = [
                    _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)),
                    _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)),
                ];
            }
        }
        for ((sums, ints), unit) in sums[..queries].iter_mut().zip(ints).zip(units) {
            if unit.is_none() {
                continue;
            }
            let mut weights = [zero; 4];
            for (i, weights) in weights.iter_mut().enumerate() {
                let (a, b) = (ints[first + i], ints[first + i + 4]);
                *weights = _mm256_set1_epi32(i32::from(b) << 16 | i32::from(a as u16));
            }
            for (k, sums) in sums.iter_mut().enumerate() {
                for (half, sum) in sums.iter_mut().enumerate() {
                    for (pairs, weights) in pairs.iter().zip(weights) {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs[k][half], weights));
                    }
                }
            }
        }
    }
    for ((sums, unit), acc) in sums.iter().zip(units).zip(acc.chunks_exact_mut(DIM)) {
        let Some(unit) = unit else { continue };
        let mut in_order = [0; DIM];
        for (k, sums) in sums.iter().enumerate() {
            let mut lanes = [0; 16];
            for (lanes, sum) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
                // SAFETY: the array has eight integers.
                unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), *sum) };
            }
            for (i, sum) in lanes.into_iter().enumerate() {
                in_order[coordinate::<BITS>(k, i)] = sum;
            }
        }
        finish_sums(&in_order, *unit, acc);
    }
}

/// Which coordinate the `k`-th look-up finds for byte `i` of a row.
fn coordinate<const BITS: usize>(k: usize, i: usize) -> usize {
    if BITS == 2 { k / 4 * 64 + i * 4 + k % 4 } else { i * 8 + k }
}

/// (f32(sum) · factor) · row scale of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish([a, b, c, d]: [__m256i; 4], factor: f32, scales: __m256, scores: &mut [f32]) {
    let sums = add_pairs(add_pairs(a, c), add_pairs(b, d));
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(factor));
    store_first(scores, _mm256_mul_ps(scaled, scales));
}

/// Lanes i and i + 2 of each half, of a and b alternating; on Zen 5, `vphaddd` takes four times as long.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_pairs(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
}

/// The centroids by the four newest bits of a window, of which a shorter history has fewer: a table for each code and, if
/// `FIVE`, for each oldest bit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tables<const BITS: usize, const FIVE: bool>(book: &TrellisCodebook) -> [__m256i; TABLES] {
    let mut tables = [_mm256_setzero_si256(); TABLES];
    for (n, table) in tables[..1 << (BITS + FIVE as usize)].iter_mut().enumerate() {
        let mut bytes = [0i8; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let (code, window) =
                if FIVE { (n / 2, i % 16 * 2 + n % 2) } else { (n, (i % 16) >> (3 - book.history())) };
            *byte = book.centroids()[code * book.windows() + window];
        }
        *table = load(&bytes);
    }
    tables
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values<const BITS: usize>(query: &IntQuery) -> Values {
    let mut values = [[_mm256_setzero_si256(); 2]; EACH];
    for (k, values) in values.iter_mut().enumerate() {
        let mut bytes = [0i8; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = query.values[coordinate::<BITS>(k, i % 16)] as i8;
        }
        *values = [_mm256_abs_epi8(load(&bytes)), load(&bytes)];
    }
    values
}

/// `vpmaddubsw` wants an unsigned operand: it gets the query's magnitudes, and the centroids their signs. Sums of two
/// products stay below 2¹⁵, as both are at most 127.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot(centroids: &[__m256i; EACH], values: &Values) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for (centroids, [magnitudes, signed]) in centroids.iter().zip(values) {
        let products = _mm256_maddubs_epi16(*magnitudes, _mm256_sign_epi8(*centroids, *signed));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
    }
    sum
}

/// Rows `r` to `r + 8`, the first with the fifth and so on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_planes<const BITS: usize>(block: &Block, r: usize) -> [[__m256i; 5]; 4] {
    [
        planes::<BITS>(block, r),
        planes::<BITS>(block, r + 1),
        planes::<BITS>(block, r + 2),
        planes::<BITS>(block, r + 3),
    ]
}

/// Rows `r` and `r + 4`: two registers with the windows (see [`look_up`]), then those with the codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn planes<const BITS: usize>(block: &Block, r: usize) -> [__m256i; 5] {
    let window = block.window(2, 2 + PATH);
    let [a, b] = [load_16(window.first(r)), load_16(window.first(r + 4))];
    let path = _mm256_set_m128i(b, a);
    // Half of a byte, and half of the one before.
    let carry = _mm256_srli_epi64::<60>(_mm256_bslli_epi128::<8>(path));
    let inner = _mm256_or_si256(_mm256_slli_epi64::<4>(path), carry);
    let codes = |i: usize| two(block, 2 + PATH + 16 * i, r);
    match BITS {
        0 => [inner, path, path, path, path],
        1 => [inner, path, codes(0), path, path],
        2 => {
            let (low, high) = (_mm256_unpacklo_epi8(inner, path), _mm256_unpackhi_epi8(inner, path));
            [low, high, codes(0), codes(1), path]
        }
        _ => {
            // Every third byte: those of one remainder lie at other places in each sixteen.
            let sixteens = [codes(0), codes(1), codes(2)];
            let [a, b, c] = [0, 1, 2].map(|first| {
                let two = _mm256_blendv_epi8(sixteens[0], sixteens[1], load(&THIRDS[(first + 2) % 3]));
                let three = _mm256_blendv_epi8(two, sixteens[2], load(&THIRDS[(first + 1) % 3]));
                _mm256_shuffle_epi8(three, load(&EVERY_THIRD[first]))
            });
            [inner, path, a, b, c]
        }
    }
}

/// By remainder of three, the bytes of a lane with it.
static THIRDS: [[u8; 32]; 3] = {
    let mut masks = [[0; 32]; 3];
    let mut i = 0;
    while i < 32 {
        masks[i % 16 % 3][i] = 0xff;
        i += 1;
    }
    masks
};

/// Places 0, 3, 6, … of 48 bytes modulo 16, and those from 1 and 2 on.
static EVERY_THIRD: [[u8; 32]; 3] = {
    let mut places = [[0; 32]; 3];
    let mut i = 0;
    while i < 96 {
        places[i / 32][i % 32] = ((3 * (i % 16) + i / 32) % 16) as u8;
        i += 1;
    }
    places
};

/// What each of the eight look-ups finds.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn centroids<const BITS: usize, const FIVE: bool>(
    tables: &[__m256i; TABLES],
    planes: &[__m256i; 5],
) -> [__m256i; EACH] {
    [
        look_up::<BITS, FIVE, 0>(tables, planes),
        look_up::<BITS, FIVE, 1>(tables, planes),
        look_up::<BITS, FIVE, 2>(tables, planes),
        look_up::<BITS, FIVE, 3>(tables, planes),
        look_up::<BITS, FIVE, 4>(tables, planes),
        look_up::<BITS, FIVE, 5>(tables, planes),
        look_up::<BITS, FIVE, 6>(tables, planes),
        look_up::<BITS, FIVE, 7>(tables, planes),
    ]
}

/// Of each byte, the `K`-th coordinate; with two-bit codes the `K % 4`-th of their `K / 4`-th register.
///
/// Bytes of the first register with windows have the four bits before the byte's coordinates and four of theirs, those
/// of the second the last four of eight and four more, or, with two-bit codes, both alternate: in all of them the
/// window of coordinate `K % 4` begins at bit `K % 4 + 1`, and has one bit more before that.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up<const BITS: usize, const FIVE: bool, const K: usize>(
    tables: &[__m256i; TABLES],
    planes: &[__m256i; 5],
) -> __m256i {
    let windows = planes[K / 4];
    let index = match K % 4 {
        0 => _mm256_srli_epi16::<1>(windows),
        1 => _mm256_srli_epi16::<2>(windows),
        2 => _mm256_srli_epi16::<3>(windows),
        _ => _mm256_srli_epi16::<4>(windows),
    };
    let mut chosen = [windows; 4];
    let mut used = 0;
    if FIVE {
        chosen[0] = on_top(windows, K % 4);
        used = 1;
    }
    for bit in 0..BITS {
        let (plane, bit) = if BITS == 2 { (K / 4, K % 4 * 2 + bit) } else { (0, K * BITS + bit) };
        chosen[used] = on_top(planes[2 + plane + bit / 8], bit % 8);
        used += 1;
    }
    match used {
        0 => choose::<1, false>(tables, index, chosen),
        1 => choose::<2, false>(tables, index, chosen),
        2 => choose::<4, false>(tables, index, chosen),
        // On Zen 5, `vpshufb` and `vpblendvb` share two of four ports: with many tables, some look-ups do without half
        // of the latter.
        3 if K.is_multiple_of(4) => choose::<8, false>(tables, index, chosen),
        3 => choose::<8, true>(tables, index, chosen),
        _ => choose::<16, true>(tables, index, chosen),
    }
}

/// An entry of `N` tables: by the index' lowest four bits, and by the tops of other bytes, the lowest of the table's number
/// first. With `SPLIT`, the index gets the last of these for its top: `vpshufb` gives zero where it is set, so the upper half
/// of the tables is asked with the inverse, and one of the two finds something.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn choose<const N: usize, const SPLIT: bool>(
    tables: &[__m256i; TABLES],
    index: __m256i,
    tops: [__m256i; 4],
) -> __m256i {
    let mut found = [index; TABLES];
    let mut left = N;
    if SPLIT {
        left /= 2;
        let top = tops[N.ilog2() as usize - 1];
        let low_bits = _mm256_set1_epi8(0x7f);
        let below = _mm256_xor_si256(_mm256_and_si256(_mm256_xor_si256(index, top), low_bits), top);
        let above = _mm256_xor_si256(below, _mm256_set1_epi8(-128));
        for i in 0..left {
            let lower = _mm256_shuffle_epi8(tables[i], below);
            found[i] = _mm256_or_si256(lower, _mm256_shuffle_epi8(tables[i + left], above));
        }
    } else {
        let index = _mm256_and_si256(index, _mm256_set1_epi8(15));
        for i in 0..N {
            found[i] = _mm256_shuffle_epi8(tables[i], index);
        }
    }
    for top in tops {
        if left > 1 {
            left /= 2;
            for i in 0..left {
                found[i] = _mm256_blendv_epi8(found[2 * i], found[2 * i + 1], top);
            }
        }
    }
    found[0]
}

/// A bit of each byte on its top.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn on_top(bytes: __m256i, bit: usize) -> __m256i {
    match bit {
        0 => shift_left::<7>(bytes),
        1 => shift_left::<6>(bytes),
        2 => shift_left::<5>(bytes),
        3 => shift_left::<4>(bytes),
        4 => shift_left::<3>(bytes),
        5 => shift_left::<2>(bytes),
        6 => twice(bytes),
        _ => bytes,
    }
}

/// Bytes, doubled; see [`shift_left`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn twice(bytes: __m256i) -> __m256i {
    let sums;
    // SAFETY: AVX2, which this function enables, has the instruction; it touches registers only.
    unsafe {
        asm!(
            "vpaddb {}, {}, {}",
            out(ymm_reg) sums, in(ymm_reg) bytes, in(ymm_reg) bytes,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Words, shifted. By name, as LLVM knows that `vpblendvb` asks for one bit, and makes a mask and a comparison of the
/// shift that brings it to the top.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift_left<const BITS: usize>(words: __m256i) -> __m256i {
    let shifted;
    // SAFETY: AVX2, which this function enables, has the instruction; it touches registers only.
    unsafe {
        asm!(
            "vpsllw {}, {}, {}",
            out(ymm_reg) shifted, in(ymm_reg) words, const BITS,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    shifted
}

/// Sixteen bytes of row `r`, sixteen of row `r + 4`, from byte 16 of a row on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two(block: &Block, start: usize, r: usize) -> __m256i {
    let below = load_16(block.window(start, start + 16).first(r));
    // The upper lane has its place already, sixteen bytes behind the row's.
    let above: &[u8; 32] = block.window(start - 16, start + 16).first(r + 4);
    _mm256_blend_epi32::<0b1111_0000>(_mm256_castsi128_si256(below), load(above))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array has 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
