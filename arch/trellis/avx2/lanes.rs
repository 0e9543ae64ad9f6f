//! Scores and weighted sums of trellis codes for common shapes: rows of 128, 64 and 32 coordinates,
//! up to 8 states (16 for 128), and codes of 0 to 3 bits.
//!
//! Rows r and r + 4 share a register, or four rows of 64, or eight of 32. Each byte has eight
//! neighbouring coordinates, one for each of eight lookups, in the order of the path plane. (With
//! codes of two bits it has four, in the order of their plane.)
//!
//! ```text
//! register     │ row r: 16 path bytes │ row r + 4: 16 path bytes │
//! byte k         coordinates 8k … 8k+7: lookup i takes coordinate i of every byte
//!
//! index          the window's four newest bits, by a shift and a mask: for `vpshufb`
//! tables         a fifth window bit and the code's bits choose among tables: each is moved to the top of its
//!                byte, where `vpblendvb` looks
//! ```
//!
//! Queries are put into this order once a call, and sums stay in it from the first page to the last.
//!
//! On Intel Sapphire Rapids, a row of 128 and a query take 8.4 ns with 64 centroids and 14 ns with
//! 128. The general kernels of `avx2.rs` take 32 and 35 ns. A whole attention step (8 states, m =
//! 4, keys and values) takes half of their time at width 64. At width 32 it takes a tenth, because
//! `avx2.rs` leaves short rows to the specification.

mod look_up;
mod many;
mod planes;

use super::{Ints, Memory};
use crate::codes::avx2::many::{Buffer, taken};
use crate::codes::scalar::PAGE;
use crate::registers::Integers;
use crate::registers::avx2::{load_ps, scales_of_eight, store_first, store_ps};
use crate::rows::{Blocks, ROWS, each_page_mut_of, each_page_of, give_back, take_order};
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use core::ops::Range;
use look_up::{centroids, look_up, tables};
use many::{score_tiles, sum_tiles};
use planes::all_planes;

/// Coordinates of a lane: of one row, of two or of four.
const LANE: usize = 128;
/// The widths at which two or four rows share a lane.
const HALF: usize = LANE / 2;
const QUARTER: usize = LANE / 4;
/// The number of queries from which on tiles are faster, for scores and for sums.
const MANY: [usize; 2] = [16, 8];
/// Queries that share a pass over the rows.
pub(crate) const QUERIES: usize = 8;
/// Registers of a pair of rows.
const EACH: usize = 8;
/// The most tables: three bits of a code, and one of the window.
const TABLES: usize = 16;

/// A query in the order of the lookups: magnitudes, and the values whose signs move to the
/// centroids.
type Values = [[__m256i; 2]; EACH];

/// Calls a function for the number of bits of a code.
macro_rules! for_codes {
    ($book:expr, $function:ident::<$lanes:ident, $five:literal, $dim:ident>($($argument:expr),*)) => {
        match $book.levels() {
            1 => $function::<$lanes, 0, $five, $dim>($($argument),*),
            2 => $function::<$lanes, 1, $five, $dim>($($argument),*),
            4 => $function::<$lanes, 2, $five, $dim>($($argument),*),
            8 => $function::<$lanes, 3, $five, $dim>($($argument),*),
            _ => return false,
        }
    };
}

/// Calls a function for a shape. Returns whether there is one.
macro_rules! for_shape {
    ($book:expr, $dim:expr, $function:ident::<$lanes:ident>($($argument:expr),*)) => {{
        match ($dim, $book.states()) {
            (LANE, ..=8) => for_codes!($book, $function::<$lanes, false, LANE>($book, $($argument),*)),
            (LANE, 16) => for_codes!($book, $function::<$lanes, true, LANE>($book, $($argument),*)),
            (HALF, ..=8) => for_codes!($book, $function::<$lanes, false, HALF>($book, $($argument),*)),
            (QUARTER, ..=8) => for_codes!($book, $function::<$lanes, false, QUARTER>($book, $($argument),*)),
            _ => return false,
        }
        true
    }};
}

/// Scores queries if there is a kernel for the shape. Returns whether there is.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score<L: Integers<V = __m256i>>(
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) -> bool {
    for_shape!(book, dim, score_as::<L>(pages, scale, queries, scores))
}

/// Adds weighted rows if there is a kernel for the shape. Returns whether there is.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate<L: Integers<V = __m256i>>(
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) -> bool {
    for_shape!(book, dim, sum_as::<L>(pages, scale, weights, acc))
}

/// Scores codes of `BITS` bits. Windows have five bits if `FIVE`, otherwise up to four.
#[target_feature(enable = "avx2,fma,f16c")]
fn score_as<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let tables = tables::<L, BITS, FIVE>(book, L::BIAS);
    let many = taken(queries.len(), MANY[0]);
    if many > 0 {
        score_tiles::<L, BITS, FIVE, DIM>(&tables, pages, scale, (queries, many), scores);
    }
    for first in (many..queries.len()).step_by(QUERIES) {
        let some = first..queries.len().min(first + QUERIES);
        if some.len() == 1 {
            score_one::<L, BITS, FIVE, DIM>(&tables, pages, scale, (queries, some), scores);
        } else {
            score_some::<L, BITS, FIVE, DIM>(&tables, pages, scale, (queries, some), scores);
        }
    }
}

/// Scores pages with one query.
#[target_feature(enable = "avx2,fma,f16c")]
fn score_one<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    tables: &[__m256i; TABLES],
    pages: &[Rows],
    scale: f32,
    (queries, some): (&[IntQuery], Range<usize>),
    scores: &mut [f32],
) {
    let query = &queries[some.start];
    let (values, start) = (values::<BITS, DIM>(query), start::<L, BITS, DIM>(query));
    for (rows, scores) in each_page_mut_of(pages, queries.len(), some, scores) {
        let mut padded = None;
        let blocks = Blocks::new(rows, &mut padded);
        for (i, scores) in scores.chunks_mut(8).enumerate() {
            let (block, r) = (blocks.get(i / (ROWS / 8)), i % (ROWS / 8) * 8);
            if r == 0 {
                blocks.prefetch_apart(i / (ROWS / 8));
            }
            // Before the lookups: behind this branch, LLVM would leave them apart from their shifts.
            let scales = scales_of_eight(&block, r);
            // Load all planes first: from memory to a window takes as long as the lookups of a pair.
            let planes = all_planes::<BITS, DIM>(&block, r);
            let mut sums = [_mm256_setzero_si256(); 4];
            for (i, planes) in planes[..DIM / 32].iter().enumerate() {
                add::<L, BITS, DIM>(
                    i,
                    &centroids::<L, BITS, FIVE>(tables, planes),
                    &values,
                    start,
                    &mut sums,
                );
            }
            finish::<BITS, DIM>(sums, query.scale * scale, scales, scores);
        }
    }
}

/// Scores pages with several queries, which share the lookups.
#[target_feature(enable = "avx2,fma,f16c")]
fn score_some<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    tables: &[__m256i; TABLES],
    pages: &[Rows],
    scale: f32,
    (all, some): (&[IntQuery], Range<usize>),
    scores: &mut [f32],
) {
    let queries = &all[some.clone()];
    let zero = _mm256_setzero_si256();
    let (mut values_of, mut sums) = (Buffer::<_, QUERIES>::EMPTY, Buffer::<_, QUERIES>::EMPTY);
    let values_of = values_of.first(queries.len(), ([[zero; 2]; EACH], zero));
    let sums = sums.first(queries.len(), [zero; 4]);
    for (values_of, query) in values_of.iter_mut().zip(queries) {
        *values_of = (values::<BITS, DIM>(query), start::<L, BITS, DIM>(query));
    }
    for (rows, scores) in each_page_mut_of(pages, all.len(), some, scores) {
        let mut padded = None;
        let (blocks, count) = (Blocks::new(rows, &mut padded), rows.count());
        for first in (0..count).step_by(8) {
            let (block, r) = (blocks.get(first / ROWS), first % ROWS);
            if r == 0 {
                blocks.prefetch_apart(first / ROWS);
            }
            for (i, planes) in all_planes::<BITS, DIM>(&block, r)[..DIM / 32].iter().enumerate() {
                let found = centroids::<L, BITS, FIVE>(tables, planes);
                for (sums, (values, start)) in sums.iter_mut().zip(&*values_of) {
                    add::<L, BITS, DIM>(i, &found, values, *start, sums);
                }
            }
            let scales = scales_of_eight(&block, r);
            for ((sums, query), scores) in sums.iter().zip(queries).zip(scores.chunks_exact_mut(count)) {
                let end = count.min(first + 8);
                finish::<BITS, DIM>(*sums, query.scale * scale, scales, &mut scores[first..end]);
            }
        }
    }
}

/// Adds rows of one shape. Sums of pages are floats in the order of the lookups until the last
/// page.
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_as<L: Integers<V = __m256i>, const BITS: usize, const FIVE: bool, const DIM: usize>(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let all = acc.len() / DIM;
    let many = taken(all, MANY[1]);
    if many > 0 {
        sum_tiles::<L, BITS, FIVE, DIM>(book, pages, scale, weights, (all, many), acc);
    }
    if many == all {
        return;
    }
    let tables = tables::<L, BITS, FIVE>(book, BIAS as u8);
    let (queries, acc, zero) = (all - many, &mut acc[many * DIM..], _mm256_setzero_si256());
    let mut memory = Memory::EMPTY;
    let mut ints = Ints::new(&mut memory, queries);
    let mut buffers = (Buffer::<_, QUERIES>::EMPTY, Buffer::<_, QUERIES>::EMPTY, Buffer::<_, QUERIES>::EMPTY);
    // Of each query: for each lookup, the even bytes of a lane, then the others; weights; and floats.
    let sums = buffers.0.first(queries, [[zero; 2]; EACH]);
    let of_rows = buffers.1.first(queries, ([zero; 4], zero));
    let totals = buffers.2.first(queries, [[0.0; 8]; LANE / 8]);
    let order = const { &order::<BITS, DIM>() };
    for (totals, acc) in totals.iter_mut().zip(acc.chunks_exact(DIM)) {
        take_order(&order[..DIM], acc, totals.as_flattened_mut());
    }
    for (page, weights) in each_page_of(pages, all, many..all, weights) {
        for (p, rows) in page.pages(PAGE).enumerate() {
            if !ints.quantize(book, &rows, scale, weights, (p * PAGE, page.count())) {
                continue;
            }
            sums.fill([[zero; 2]; EACH]);
            of_rows.iter_mut().for_each(|(_, total)| *total = zero);
            let mut padded = None;
            let blocks = Blocks::new(&rows, &mut padded);
            for first in (0..rows.count()).step_by(8) {
                let (block, r) = (blocks.get(first / ROWS), first % ROWS);
                if r == 0 {
                    blocks.prefetch_apart(first / ROWS);
                }
                let mut planes = all_planes::<BITS, DIM>(&block, r);
                planes[..DIM / 32].iter_mut().for_each(|planes| *planes = weave(*planes));
                for ((pairs, total), ints) in of_rows.iter_mut().zip(&*ints.ints) {
                    *pairs = weights_of::<BITS, DIM>(&ints[first..], total);
                }
                let planes = &planes[..DIM / 32];
                add_lookup::<L, BITS, FIVE, DIM, 0>(&tables, planes, of_rows, sums);
                add_lookup::<L, BITS, FIVE, DIM, 1>(&tables, planes, of_rows, sums);
                add_lookup::<L, BITS, FIVE, DIM, 2>(&tables, planes, of_rows, sums);
                add_lookup::<L, BITS, FIVE, DIM, 3>(&tables, planes, of_rows, sums);
                add_lookup::<L, BITS, FIVE, DIM, 4>(&tables, planes, of_rows, sums);
                add_lookup::<L, BITS, FIVE, DIM, 5>(&tables, planes, of_rows, sums);
                add_lookup::<L, BITS, FIVE, DIM, 6>(&tables, planes, of_rows, sums);
                add_lookup::<L, BITS, FIVE, DIM, 7>(&tables, planes, of_rows, sums);
            }
            let each = sums.iter().zip(&*of_rows).zip(&*ints.units).zip(&mut *totals);
            for (((sums, (_, total)), unit), totals) in each {
                let Some(unit) = unit else { continue };
                let (unit, bias) = (_mm256_set1_ps(*unit), bias(*total));
                for (sum, total) in fold::<BITS, DIM>(sums)[..DIM / 8].iter().zip(totals) {
                    let sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(*sum, bias));
                    store_ps(total, _mm256_add_ps(load_ps(total), _mm256_mul_ps(sum, unit)));
                }
            }
        }
    }
    for (totals, acc) in totals.iter().zip(acc.chunks_exact_mut(DIM)) {
        give_back(&order[..DIM], totals.as_flattened(), acc);
    }
}

/// Adds the `K`-th lookup of eight rows, whose planes are woven, to the sums of each query. Each lookup
/// is added at once: all eight together do not fit in registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_lookup<
    L: Integers<V = __m256i>,
    const BITS: usize,
    const FIVE: bool,
    const DIM: usize,
    const K: usize,
>(
    tables: &[__m256i; TABLES],
    planes: &[[__m256i; 5]],
    of_rows: &[([__m256i; 4], __m256i)],
    sums: &mut [[[__m256i; 2]; EACH]],
) {
    let group = K / (EACH / GROUPS);
    let mut words = [[_mm256_setzero_si256(); 2]; 4];
    for (words, planes) in words.iter_mut().zip(planes) {
        let found = look_up::<L, BITS, FIVE, K>(tables, planes);
        *words = [_mm256_and_si256(found, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(found)];
    }
    for (sums, (pairs, _)) in sums.iter_mut().zip(of_rows) {
        // Variables of their own: in memory each addition would be stored.
        let [mut even, mut odd] = sums[K];
        for (i, [low, high]) in words[..DIM / 32].iter().enumerate() {
            let pair = pairs[pair::<BITS, DIM>(i, group)];
            even = L::dot_words(even, *low, pair);
            odd = L::dot_words(odd, *high, pair);
        }
        sums[K] = [even, odd];
    }
}

/// The offset of centroids, so that sums of rows have unsigned bytes.
const BIAS: i16 = 128;

/// Groups of lookups that may belong to other rows of a lane, with codes of two bits.
const GROUPS: usize = 2;

/// Weaves rows of planes, so that lookups are words of two rows after a mask or a shift.
///
/// ```text
/// plane, lookup    row r: 0 1 2 3 … │ row r + 4: 0 1 2 3 …        bytes
/// woven            r: 0 1, r + 4: 0 1 │ 2 3, 2 3 │ …              bytes 0 to 7 of both in the lower lane
/// even bytes       r: 0 │ r + 4: 0 ││ r: 2 │ r + 4: 2 ││ …        words, by a mask; odd bytes by a shift
/// ```
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weave(mut planes: [__m256i; 5]) -> [__m256i; 5] {
    let pairs = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    for plane in &mut planes {
        let quads = _mm256_permute4x64_epi64::<0b11_01_10_00>(*plane);
        *plane = _mm256_shuffle_epi8(quads, _mm256_broadcastsi128_si256(pairs));
    }
    planes
}

/// Returns the weights of eight rows as woven lookups need them, for each [`pair`]. Adds the sums of
/// rows r and r + 4 to `total`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights_of<const BITS: usize, const DIM: usize>(ints: &[i16], total: &mut __m256i) -> [__m256i; 4] {
    let Some(ints) = ints.first_chunk::<8>() else { return [_mm256_setzero_si256(); 4] };
    // SAFETY: the array has eight words.
    let ints = unsafe { _mm_loadu_si128(ints.as_ptr().cast()) };
    let pairs = _mm256_broadcastsi128_si256(_mm_unpacklo_epi16(ints, _mm_bsrli_si128::<8>(ints)));
    *total = _mm256_add_epi32(*total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    let mut weights = [pairs; 4];
    for (i, weights) in weights[..=pair::<BITS, DIM>(DIM / 32 - 1, GROUPS - 1)].iter_mut().enumerate() {
        *weights = _mm256_permutevar8x32_epi32(pairs, load_dwords(&const { dwords::<BITS, DIM>() }[i]));
    }
    weights
}

/// Returns which result of [`weights_of`] belongs to planes number `i` and a group of lookups.
const fn pair<const BITS: usize, const DIM: usize>(i: usize, group: usize) -> usize {
    if BITS == 2 && DIM < LANE { 2 * i + group } else { i }
}

/// Returns the number of the row, of the first four, for each dword of each result of [`weights_of`].
const fn dwords<const BITS: usize, const DIM: usize>() -> [[i32; 8]; 4] {
    let mut rows = [[0; 8]; 4];
    let mut group = 0;
    while group < 2 {
        let mut at = 0;
        while at < DIM / 32 * 8 {
            let (i, dword) = (at / 8, at % 8);
            let in_lane = row_of_lane::<BITS, DIM>(group * EACH / 2, dword / 4 * 8 + dword % 4 * 2);
            rows[pair::<BITS, DIM>(i, group)][dword] = (i * (LANE / DIM) + in_lane) as i32;
            at += 1;
        }
        group += 1;
    }
    rows
}

/// Returns what the bias adds to each sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bias(total: __m256i) -> __m256i {
    let pairs = _mm256_add_epi32(total, _mm256_shuffle_epi32::<0b10_11_00_01>(total));
    let all = _mm256_add_epi32(pairs, _mm256_shuffle_epi32::<0b01_00_11_10>(pairs));
    _mm256_mullo_epi32(all, _mm256_set1_epi32(BIAS.into()))
}

/// Adds the sums of rows that share a lane. Returns `DIM / 8` registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold<const BITS: usize, const DIM: usize>(sums: &[[__m256i; 2]; EACH]) -> [__m256i; LANE / 8] {
    let mut folded = [_mm256_setzero_si256(); LANE / 8];
    folded.copy_from_slice(sums.as_flattened());
    let both = |a, b| {
        let lower = _mm256_permute2x128_si256::<0x20>(a, b);
        _mm256_add_epi32(lower, _mm256_permute2x128_si256::<0x31>(a, b))
    };
    if BITS == 2 && DIM < LANE {
        // Lookups 4 to 7 are those of the next rows.
        for i in 0..EACH {
            folded[i] = _mm256_add_epi32(folded[i], folded[i + EACH]);
        }
    } else if DIM < LANE {
        // The upper lane has the next rows.
        for i in 0..EACH {
            folded[i] = both(folded[2 * i], folded[2 * i + 1]);
        }
    }
    if BITS == 2 && DIM == QUARTER {
        for i in 0..EACH / 2 {
            folded[i] = both(folded[2 * i], folded[2 * i + 1]);
        }
    } else if DIM == QUARTER {
        // Dwords 0 and 1 of a lane are one row, 2 and 3 the next.
        for i in 0..EACH / 2 {
            let (a, b) = (folded[2 * i], folded[2 * i + 1]);
            folded[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        }
    }
    folded
}

/// Returns the coordinates of the result of [`fold`]. `DIM` of them are used.
const fn order<const BITS: usize, const DIM: usize>() -> [u16; LANE] {
    let mut order = [0; LANE];
    let mut at = 0;
    while at < LANE {
        let (register, lane, dword) = (at / 8, at / 4 % 2, at % 4);
        // The register's first sum before folding, and the dword in it.
        let (sum, dword) = if DIM == LANE || BITS == 2 && DIM == HALF {
            (register, 4 * lane + dword)
        } else if DIM == HALF || BITS == 2 {
            (2 * register + lane, dword)
        } else {
            (2 * (2 * register + dword / 2) + lane, dword % 2)
        };
        let byte = dword / 4 * 8 + dword % 4 * 2 + sum % 2;
        order[at] = coordinate::<BITS, DIM>(sum / 2 % EACH, byte) as u16;
        at += 1;
    }
    order
}

/// Transposes four rows of four dwords in each half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (low_ac, high_ac) = (_mm256_unpacklo_epi32(a, c), _mm256_unpackhi_epi32(a, c));
    let (low_bd, high_bd) = (_mm256_unpacklo_epi32(b, d), _mm256_unpackhi_epi32(b, d));
    [
        _mm256_unpacklo_epi32(low_ac, low_bd),
        _mm256_unpackhi_epi32(low_ac, low_bd),
        _mm256_unpacklo_epi32(high_ac, high_bd),
        _mm256_unpackhi_epi32(high_ac, high_bd),
    ]
}

/// Returns which coordinate the `k`-th lookup finds for byte `i` of a lane.
const fn coordinate<const BITS: usize, const DIM: usize>(k: usize, i: usize) -> usize {
    let in_lane = if BITS == 2 { k / 4 * 64 + i * 4 + k % 4 } else { i * 8 + k };
    in_lane % DIM
}

/// Returns which of a lane's rows the `k`-th lookup finds for byte `i`.
const fn row_of_lane<const BITS: usize, const DIM: usize>(k: usize, i: usize) -> usize {
    let in_lane = if BITS == 2 { k / 4 * 64 + i * 4 } else { i * 8 };
    in_lane / DIM
}

/// Adds the products of lookups number `i` of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<L: Integers<V = __m256i>, const BITS: usize, const DIM: usize>(
    i: usize,
    found: &[__m256i; EACH],
    values: &Values,
    start: __m256i,
    sums: &mut [__m256i; 4],
) {
    if DIM < LANE && BITS == 2 {
        sums[2 * i] = dot::<L>(start, &found[..4], &values[..4]);
        sums[2 * i + 1] = dot::<L>(start, &found[4..], &values[4..]);
    } else {
        sums[i] = dot::<L>(start, found, values);
    }
}

/// Returns the number of `i32` partial sums that [`finish`] adds up for one row's score: 1, 2 or 4.
const fn partial_sums<const BITS: usize, const DIM: usize>() -> usize {
    if BITS == 2 && DIM < LANE { DIM / 16 } else { DIM / 32 }
}

/// Returns (f32(sum) · factor) · row scale of eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<const BITS: usize, const DIM: usize>(
    [a, b, c, d]: [__m256i; 4],
    factor: f32,
    scales: __m256,
    scores: &mut [f32],
) {
    let sums = match partial_sums::<BITS, DIM>() {
        1 => a,
        2 => {
            let a = _mm256_shuffle_epi32::<0b11_01_10_00>(a);
            let b = _mm256_shuffle_epi32::<0b11_01_10_00>(b);
            _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
        }
        _ => add_pairs(add_pairs(a, c), add_pairs(b, d)),
    };
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(factor));
    store_first(scores, _mm256_mul_ps(scaled, scales));
}

/// Adds lanes i and i + 2 of each half, alternating between a and b. `vphaddd` takes four times as
/// long on Zen 5.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_pairs(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
}

/// Puts a query into the order of the lookups.
///
/// Interleaving the bytes of registers that are half of all apart moves the uppermost bit of a byte's
/// number to the bottom. Four times, with eight registers, byte 8i + k comes to register k, place i:
///
/// ```text
/// number of a byte    r₂ r₁ r₀ │ b₃ b₂ b₁ b₀       register │ place
/// after four rounds   b₂ b₁ b₀ │ r₂ r₁ r₀ b₃       with codes of two bits, r₂ stays: two groups of four registers
/// ```
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn values<const BITS: usize, const DIM: usize>(query: &IntQuery) -> Values {
    let sixteens = query.values.as_chunks::<16>().0;
    let mut bytes = [_mm_setzero_si128(); EACH];
    for (i, bytes) in bytes.iter_mut().enumerate() {
        let words = sixteens[i % (DIM / 16)].as_ptr();
        // SAFETY: the array has sixteen words.
        *bytes =
            unsafe { _mm_packs_epi16(_mm_loadu_si128(words.cast()), _mm_loadu_si128(words.add(8).cast())) };
    }
    let group = if BITS == 2 { EACH / 2 } else { EACH };
    for _ in 0..4 {
        let from = bytes;
        for (i, pair) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            let first = 2 * i / group * group + i % (group / 2);
            let (a, b) = (from[first], from[first + group / 2]);
            *pair = [_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)];
        }
    }
    let mut values = [[_mm256_setzero_si256(); 2]; EACH];
    for (values, bytes) in values.iter_mut().zip(bytes) {
        let both = _mm256_broadcastsi128_si256(bytes);
        *values = [_mm256_abs_epi8(both), both];
    }
    values
}

/// Returns the value with which each sum begins: it cancels what the centroids' bias adds to a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn start<L: Integers<V = __m256i>, const BITS: usize, const DIM: usize>(query: &IntQuery) -> __m256i {
    let sum = query.values.iter().map(|value| i32::from(*value)).sum::<i32>();
    _mm256_set1_epi32(-i32::from(L::BIAS) / partial_sums::<BITS, DIM>() as i32 * sum)
}

/// Loads eight dwords.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_dwords(dwords: &[i32; 8]) -> __m256i {
    // SAFETY: the array has eight dwords.
    unsafe { _mm256_loadu_si256(dwords.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<L: Integers<V = __m256i>>(
    mut sum: __m256i,
    centroids: &[__m256i],
    values: &[[__m256i; 2]],
) -> __m256i {
    for (centroids, [magnitudes, signed]) in centroids.iter().zip(values) {
        sum = L::dot_signed(sum, *centroids, *magnitudes, *signed);
    }
    sum
}
