//! The path search with AVX-512.
//!
//! ```text
//! many vectors   a lane is a vector; states are in memory (eight of them in registers, up to m = 4)
//! few vectors    a lane is a window; vectors are searched one by one
//! ```
//!
//! `search.rs` with registers of sixteen lanes takes as long for pages from m = 4 on (0.8 to 1.1).
//! For a single vector of few states it takes up to 2.3 times as long (128 coordinates, Intel
//! Sapphire Rapids). Here the compiler knows the number of registers.
//!
//! Both find the error of the nearest centroid without its code. Rounding is monotone, so the
//! rounded square of the smallest difference y - centroid is the smallest square, and it belongs to
//! the nearest centroid. Codes are chosen when the path is known. Costs are not negative, so
//! comparing their bits as integers compares them. On Zen 5 that uses ports that float operations
//! leave free.

use crate::floats::{LANES, halve};
use crate::registers::amx::Tiles;
use crate::registers::avx512::{load_ps, store_codes, transpose};
use crate::trellis::layout::{Fit, MAX_LEVELS, MAX_STATES, TrellisCodebook};
use crate::trellis::search::{for_levels, read_ways};
use crate::{MAX_DIM, codes, registers};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Vectors that a search takes at a time.
const BATCH: usize = 16;

/// The number of vectors from which on one vector a lane is faster than one window a lane.
const BATCH_FROM: usize = 6;

/// Selects the number of smaller magnitude, and clears its sign.
const SMALLER: i32 = 0b1010;

/// Coordinates whose path bits share a word.
const WORD: usize = 16;

/// Implements `scalar::viterbi_encode`.
///
/// The stack has 80 KiB. A search of `dim` coordinates and up to 32 states touches 64·dim bytes and
/// 8 KiB of it. `tiles` only tell that the CPU is Intel's: Sapphire Rapids or a later one. The search
/// does not use them.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn viterbi_encode(
    tiles: Option<Tiles>,
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
) {
    let has_tiles = tiles.is_some();
    for_levels!(book, M => encode::<M>(has_tiles, book, dim, z, scales, bytes, fits))
}

/// Encodes vectors with M levels: finds their paths, chooses codes, and writes the planes of the
/// rows.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn encode<const M: usize>(
    has_tiles: bool,
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
) {
    let mut buffer = Centroids::BUFFER;
    let columns = Centroids::new(book, |window| window, &mut buffer);
    let row_bytes = book.row_bytes(dim);
    let batches = z.chunks(BATCH * dim).zip(scales.chunks(BATCH)).zip(bytes.chunks_mut(BATCH * row_bytes));
    for (((z, scales), bytes), fits) in batches.zip(fits.chunks_mut(BATCH)) {
        let mut paths = [[0u16; MAX_DIM / WORD]; BATCH];
        if scales.len() >= BATCH_FROM {
            // See `error`.
            match (book.states(), has_tiles) {
                (8, true) if M <= 4 => search_eight::<M, false>(book, dim, z, scales, &mut paths),
                (8, false) if M <= 4 => search_eight::<M, true>(book, dim, z, scales, &mut paths),
                (_, true) => search_many::<M, false>(book, dim, z, scales, &mut paths),
                (_, false) => search_many::<M, true>(book, dim, z, scales, &mut paths),
            }
        } else {
            search_few(book, dim, z, scales, &mut paths);
        }
        let rows = z.chunks_exact(dim).zip(scales).zip(&paths).zip(bytes.chunks_exact_mut(row_bytes));
        for ((((z, scale), path), row), fit) in rows.zip(fits) {
            *fit = columns.write_row::<M>(book, z, *scale, path, row);
        }
    }
}

/// Memory for the centroids of the largest codebook.
type Buffer = [MaybeUninit<__m512>; MAX_LEVELS * 2 * MAX_STATES / 16];

/// The centroids as floats, code by code, with windows in a given order.
struct Centroids<'a> {
    all: &'a [__m512],
    /// Registers of a column. Eight windows take half of one.
    registers: usize,
}

impl<'a> Centroids<'a> {
    const BUFFER: Buffer = [MaybeUninit::uninit(); MAX_LEVELS * 2 * MAX_STATES / 16];

    /// Loads the centroids of a codebook.
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(book: &TrellisCodebook, order: impl Fn(usize) -> usize, buffer: &'a mut Buffer) -> Self {
        let windows = book.windows();
        let registers = windows.div_ceil(16);
        let buffer = &mut buffer[..book.levels() * registers];
        for (column, centroids) in
            buffer.chunks_exact_mut(registers).zip(book.centroids().chunks_exact(windows))
        {
            for (g, register) in column.iter_mut().enumerate() {
                let mut values = [0.0; 16];
                for (i, value) in values[..windows.min(16)].iter_mut().enumerate() {
                    *value = f32::from(centroids[order(16 * g + i)]);
                }
                register.write(load_ps(&values));
            }
        }
        // SAFETY: the loop above has written each register, because there are as many columns of
        // centroids.
        let all = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast(), buffer.len()) };
        Self { all, registers }
    }

    /// Looks up the entry of a column for each window of a register.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn look_up(column: &[__m512], windows: __m512i) -> __m512 {
        if let [column] = column {
            return _mm512_permutexvar_ps(windows, *column);
        }
        let mut found = _mm512_permutex2var_ps(column[0], windows, column[1]);
        // Not `enumerate().take().skip()`, which LLVM calls for each item.
        for i in 1..column.len() / 2 {
            let block = _mm512_srli_epi32::<5>(windows);
            let here = _mm512_cmpeq_epi32_mask(block, _mm512_set1_epi32(i as i32));
            let other = _mm512_permutex2var_ps(column[2 * i], windows, column[2 * i + 1]);
            found = _mm512_mask_mov_ps(found, here, other);
        }
        found
    }

    /// Writes a path and the codes that belong to it, as `scalar::choose_codes` does.
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn write_row<const M: usize>(
        &self,
        book: &TrellisCodebook,
        z: &[f32],
        scale: f32,
        path: &[u16; MAX_DIM / WORD],
        row: &mut [u8],
    ) -> Fit {
        let (path_plane, planes) = row[2..].split_at_mut(TrellisCodebook::path_bytes(z.len()));
        let mut codes = [0; MAX_DIM];
        let history = book.history() as i32;
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let shifts = _mm512_add_epi32(lanes, _mm512_set1_epi32(WORD as i32 - history));
        let window_mask = _mm512_set1_epi32((2 << history) - 1);
        let scale = _mm512_set1_ps(scale);
        let mut before = 0;
        let (mut correlation, mut energy) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        let words = path_plane.as_chunks_mut::<2>().0.iter_mut().zip(path);
        for ((plane, word), (z, codes)) in
            words.zip(z.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0))
        {
            *plane = word.to_le_bytes();
            let bits = u32::from(*word) << WORD | u32::from(before);
            before = *word;
            let windows = _mm512_srlv_epi32(_mm512_set1_epi32(bits as i32), shifts);
            let windows = _mm512_and_si512(windows, window_mask);
            let y = _mm512_mul_ps(load_ps(z), scale);
            let twice = _mm512_add_ps(y, y);
            let mut centroid = Self::look_up(&self.all[..self.registers], windows);
            let mut lower = centroid;
            let mut code = _mm512_setzero_si512();
            for k in 1..M {
                let upper = Self::look_up(&self.all[k * self.registers..][..self.registers], windows);
                let above = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(twice, _mm512_add_ps(lower, upper));
                centroid = _mm512_mask_mov_ps(centroid, above, upper);
                code = _mm512_mask_mov_epi32(code, above, _mm512_set1_epi32(k as i32));
                lower = upper;
            }
            correlation = _mm512_add_ps(correlation, _mm512_mul_ps(y, centroid));
            energy = _mm512_add_ps(energy, _mm512_mul_ps(centroid, centroid));
            store_codes(codes, _mm512_cvtepi32_epi8(code));
        }
        if let Some(packing) = book.packing() {
            codes::avx512::pack(packing, &codes[..z.len()], planes);
        }
        // Sums of integers below 2²⁴ are exact in any order.
        Fit { correlation: halve(store(correlation)), energy: halve(store(energy)) }
    }
}

/// Returns the square of y's distance to the nearest of a window's centroids.
///
/// `vrangeps` keeps the smaller of two differences. It takes one operation a centroid less than a
/// square and an integer minimum. On AMD it uses one of the ports that differences need. With
/// `HALF`, every second centroid is squared instead, so that all ports are busy. On Zen 4, pages of
/// m = 2, 4, 8, 16 then take 0.95, 0.89, 0.86 and 0.83 of the time. By the ports that llvm-mca
/// knows of Intel's CPUs they would take 1.14, 1.20 and 1.22 with m = 2, 4, 8, and with squares
/// alone 1.14, 1.30 and 1.39.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn error<const M: usize, const HALF: bool>(y: __m512, centroids: &[f32; M]) -> __m512 {
    let difference = |centroid: f32| _mm512_sub_ps(y, _mm512_set1_ps(centroid));
    let square = |x: __m512| _mm512_castps_si512(_mm512_mul_ps(x, x));
    let mut least = difference(centroids[0]);
    for (k, centroid) in centroids.iter().enumerate().skip(1) {
        if !HALF || k % 2 == 0 {
            least = _mm512_range_ps::<SMALLER>(least, difference(*centroid));
        }
    }
    let mut least = square(least);
    if HALF {
        for centroid in centroids.iter().skip(1).step_by(2) {
            least = _mm512_min_epu32(least, square(difference(*centroid)));
        }
    }
    _mm512_castsi512_ps(least)
}

/// Returns the first state of the least cost, in each lane.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn cheapest(costs: &[__m512]) -> __m512i {
    let (mut least, mut state) = (costs[0], _mm512_setzero_si512());
    for (n, cost) in costs.iter().enumerate().skip(1) {
        let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(*cost, least);
        least = _mm512_mask_mov_ps(least, less, *cost);
        state = _mm512_mask_mov_epi32(state, less, _mm512_set1_epi32(n as i32));
    }
    state
}

/// Writes a word of each path.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn write_words(bits: __m512i, word: usize, paths: &mut [[u16; MAX_DIM / WORD]; BATCH]) {
    let mut words = [0u16; BATCH];
    // SAFETY: the array has 32 bytes.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(bits)) };
    for (path, bits) in paths.iter_mut().zip(words) {
        path[word] = bits;
    }
}

/// Finds the paths of up to 16 vectors with eight states, as [`search_many`] does.
///
/// Costs stay in registers. The results of comparisons are stored as masks, a bit for each vector,
/// from which the way back looks up those of its state. That saves eight operations a coordinate
/// (with m = 4, 160 instead of 168), and no sum of bits waits for the one before. On Sapphire
/// Rapids, encoding pages takes 0.89 of the time with m = 4, and 0.78 to 0.88 with m = 2. With m =
/// 8 it takes 1.00 to 1.04 of it, and with sixteen states 0.99.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn search_eight<const M: usize, const HALF: bool>(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    paths: &mut [[u16; MAX_DIM / WORD]; BATCH],
) {
    const S: usize = 8;
    let mut ways = [[[0.0; M]; 2]; S];
    read_ways(book, &mut ways);
    let mut decisions = [const { MaybeUninit::<[u16; S]>::uninit() }; MAX_DIM];
    let decisions = &mut decisions[..dim];
    let mut costs = [_mm512_set1_ps(f32::INFINITY); S];
    costs[0] = _mm512_setzero_ps();
    for (t, decisions) in decisions.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let ys = columns_of(dim, 16 * t, z, scales);
        for (y, decisions) in ys.into_iter().zip(decisions) {
            let (y, old, mut masks) = (_mm512_castsi512_ps(y), costs, [0; S]);
            for (n, [low, high]) in ways.iter().enumerate() {
                let low = _mm512_castps_si512(_mm512_add_ps(old[n / 2], error::<M, HALF>(y, low)));
                let high = _mm512_castps_si512(_mm512_add_ps(old[n / 2 + S / 2], error::<M, HALF>(y, high)));
                masks[n] = _mm512_cmplt_epu32_mask(high, low);
                costs[n] = _mm512_castsi512_ps(_mm512_min_epu32(high, low));
            }
            decisions.write(masks);
        }
    }
    let mut state = cheapest(&costs);
    let (one, top) = (_mm512_set1_epi32(1), _mm512_set1_epi32(S as i32 / 2));
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let vectors = _mm512_sllv_epi32(one, lanes);
    for (word, decisions) in decisions.as_chunks::<WORD>().0.iter().enumerate().rev() {
        let mut bits = _mm512_setzero_si512();
        for decision in decisions.iter().rev() {
            bits = _mm512_or_si512(_mm512_add_epi32(bits, bits), _mm512_and_si512(state, one));
            // SAFETY: the loop above has written each element.
            let masks: &[u16; S] = unsafe { decision.assume_init_ref() };
            // SAFETY: the array has 16 bytes.
            let masks = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(masks.as_ptr().cast()) });
            let masks = _mm512_castsi256_si512(masks);
            let taken = _mm512_test_epi32_mask(_mm512_permutexvar_epi32(state, masks), vectors);
            state = _mm512_srli_epi32::<1>(state);
            state = _mm512_mask_or_epi32(state, taken, state, top);
        }
        write_words(bits, word, paths);
    }
}

/// Finds the paths of up to 16 vectors, one a lane.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn search_many<const M: usize, const HALF: bool>(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    paths: &mut [[u16; MAX_DIM / WORD]; BATCH],
) {
    let states = book.states();
    let mut ways = [[[0.0; M]; 2]; MAX_STATES];
    read_ways(book, &mut ways[..states]);
    let ways = &ways[..states];
    let mut decisions = [const { MaybeUninit::<[__m512i; 2]>::uninit() }; MAX_DIM];
    let decisions = &mut decisions[..dim];
    let mut old = [_mm512_set1_ps(f32::INFINITY); MAX_STATES];
    old[0] = _mm512_setzero_ps();
    let mut new = old;
    for (t, decisions) in decisions.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let ys = columns_of(dim, 16 * t, z, scales);
        for (ys, decisions) in ys.as_chunks::<2>().0.iter().zip(decisions.as_chunks_mut::<2>().0) {
            decisions[0].write(step::<M, HALF>(_mm512_castsi512_ps(ys[0]), ways, &old, &mut new));
            decisions[1].write(step::<M, HALF>(_mm512_castsi512_ps(ys[1]), ways, &new, &mut old));
        }
    }
    let mut state = cheapest(&old[..states]);
    let one = _mm512_set1_epi32(1);
    let top = _mm_cvtsi32_si128(book.history() as i32 - 1);
    for (word, decisions) in decisions.as_chunks::<WORD>().0.iter().enumerate().rev() {
        let mut bits = _mm512_setzero_si512();
        for decision in decisions.iter().rev() {
            bits = _mm512_or_si512(_mm512_add_epi32(bits, bits), _mm512_and_si512(state, one));
            // SAFETY: the loop above has written each element.
            let [low, high] = unsafe { decision.assume_init() };
            // Shifts by 32 and more give 0, so the two halves of 64 decisions do not interfere.
            let taken = _mm512_or_si512(
                _mm512_srlv_epi32(low, state),
                _mm512_srlv_epi32(high, _mm512_sub_epi32(state, _mm512_set1_epi32(32))),
            );
            let from = _mm512_sll_epi32(_mm512_and_si512(taken, one), top);
            state = _mm512_or_si512(_mm512_srli_epi32::<1>(state), from);
        }
        write_words(bits, word, paths);
    }
}

/// Searches one coordinate: computes the new costs, and sets a bit for each state where the higher
/// old state won.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn step<const M: usize, const HALF: bool>(
    y: __m512,
    ways: &[[[f32; M]; 2]],
    old: &[__m512; MAX_STATES],
    new: &mut [__m512; MAX_STATES],
) -> [__m512i; 2] {
    let mut decisions = [_mm512_setzero_si512(); 2];
    let half = ways.len() / 2;
    for (i, ways) in ways.as_chunks::<2>().0.iter().enumerate() {
        let (low, high) = (old[i % MAX_STATES], old[(i + half) % MAX_STATES]);
        for (j, [by_low, by_high]) in ways.iter().enumerate() {
            let n = 2 * i + j;
            let low = _mm512_castps_si512(_mm512_add_ps(low, error::<M, HALF>(y, by_low)));
            let high = _mm512_castps_si512(_mm512_add_ps(high, error::<M, HALF>(y, by_high)));
            let taken = _mm512_cmplt_epu32_mask(high, low);
            new[n % MAX_STATES] = _mm512_castsi512_ps(_mm512_min_epu32(high, low));
            let decisions = &mut decisions[n / 32 % 2];
            *decisions =
                _mm512_mask_or_epi32(*decisions, taken, *decisions, _mm512_set1_epi32(1 << (n % 32)));
        }
    }
    decisions
}

/// Computes the bits of y = z·scale for coordinates start..start + 16: a register each, one vector
/// a lane. Lanes without a vector repeat the last one.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn columns_of(dim: usize, start: usize, z: &[f32], scales: &[f32]) -> [__m512i; 16] {
    let mut y = [_mm512_setzero_si512(); 16];
    for (v, y) in y.iter_mut().enumerate() {
        let v = v.min(scales.len() - 1);
        let z = z[v * dim + start..].first_chunk().unwrap_or(&[0.0; 16]);
        *y = _mm512_castps_si512(_mm512_mul_ps(load_ps(z), _mm512_set1_ps(scales[v])));
    }
    transpose(&y)
}

/// Finds the paths of vectors one by one.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn search_few(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    paths: &mut [[u16; MAX_DIM / WORD]; BATCH],
) {
    let mut buffer = Centroids::BUFFER;
    let columns = Centroids::new(book, |window| book.window(window), &mut buffer);
    match columns.registers {
        1 => search_one::<1>(book, &columns, dim, z, scales, paths),
        2 => search_one::<2>(book, &columns, dim, z, scales, paths),
        4 => search_one::<4>(book, &columns, dim, z, scales, paths),
        _ => search_one::<8>(book, &columns, dim, z, scales, paths),
    }
}

/// Finds the paths of vectors one by one, with `R` registers of windows. Windows are the old
/// states, twice each.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn search_one<const R: usize>(
    book: &TrellisCodebook,
    columns: &Centroids,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    paths: &mut [[u16; MAX_DIM / WORD]; BATCH],
) {
    let states = book.states();
    let (columns, _) = columns.all.as_chunks::<R>();
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let old_states =
        [0, 8].map(|first| _mm512_add_epi32(_mm512_srli_epi32::<1>(lanes), _mm512_set1_epi32(first)));
    // With up to 8 states, both ways into a state are in one register.
    let upper = _mm512_add_epi32(lanes, _mm512_set1_epi32(states as i32));
    for ((z, scale), path) in z.chunks_exact(dim).zip(scales).zip(paths) {
        // Setting all of them to zero would take a thirtieth of the search's time.
        let mut decisions = [const { MaybeUninit::<u64>::uninit() }; MAX_DIM];
        let decisions = &mut decisions[..dim];
        let mut costs = [_mm512_set1_ps(f32::INFINITY); R];
        costs[0] = _mm512_mask_mov_ps(costs[0], 1, _mm512_setzero_ps());
        for (z, decisions) in z.iter().zip(decisions.iter_mut()) {
            let y = _mm512_set1_ps(z * scale);
            let mut ways = [_mm512_setzero_si512(); R];
            for (g, way) in ways.iter_mut().enumerate() {
                let mut least = _mm512_sub_ps(y, columns[0][g]);
                for column in &columns[1..] {
                    least = _mm512_range_ps::<SMALLER>(least, _mm512_sub_ps(y, column[g]));
                }
                let cost = _mm512_permutexvar_ps(old_states[g % 2], costs[g / 2]);
                *way = _mm512_castps_si512(_mm512_add_ps(cost, _mm512_mul_ps(least, least)));
            }
            let mut taken = 0;
            for i in 0..R.div_ceil(2) {
                let low = ways[i];
                let high = if R == 1 { _mm512_permutexvar_epi32(upper, low) } else { ways[i + R / 2] };
                taken |= u64::from(_mm512_cmplt_epu32_mask(high, low)) << (16 * i);
                costs[i] = _mm512_castsi512_ps(_mm512_min_epu32(high, low));
            }
            decisions.write(taken);
        }
        let (mut least, mut state) = (f32::INFINITY, 0);
        for (g, costs) in costs[..R.div_ceil(2)].iter().enumerate() {
            for (i, cost) in store(*costs)[..states.min(16)].iter().enumerate() {
                if *cost < least {
                    (least, state) = (*cost, 16 * g + i);
                }
            }
        }
        for (path, decisions) in path.iter_mut().zip(decisions.as_chunks::<WORD>().0).rev() {
            for decisions in decisions.iter().rev() {
                *path = *path << 1 | (state & 1) as u16;
                // SAFETY: the loop above has written each element.
                let high = (unsafe { decisions.assume_init() } >> state & 1) as usize;
                state = state >> 1 | high << (book.history() - 1);
            }
        }
    }
}

/// Stores 16 floats.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn store(x: __m512) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    registers::avx512::store_ps(&mut out, x);
    out
}
