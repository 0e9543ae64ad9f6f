//! The path search of `scalar::viterbi_encode`, for registers of floats of any width.
//!
//! ```text
//! many vectors   a lane is a vector; two registers of vectors share the load of a centroid
//! few vectors    a lane is a window; vectors are searched one by one
//! ```
//!
//! Both find the error of the nearest centroid without its code. Rounding is monotone, so the least
//! rounded error is the rounded error of the nearest centroid. Codes are chosen when the path is
//! known.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;

use super::layout::{Fit, MAX_STATES, TrellisCodebook};
use crate::MAX_DIM;
use crate::floats::{LANES, halve};
use core::mem::MaybeUninit;

/// The operations that an instruction set must offer. Costs are never negative or NaN.
pub(crate) trait Floats: Sized {
    /// A register of floats, or of integers.
    type F: Copy;
    /// The number of lanes, 4 or 8.
    const WIDTH: usize;

    fn splat(x: f32) -> Self::F;
    /// Loads the first floats of a slice that is at least a register long.
    fn load(x: &[f32]) -> Self::F;
    fn store(out: &mut [f32], x: Self::F);
    /// Stores the bits of the lanes.
    fn store_bits(out: &mut [u32], x: Self::F);
    fn add(a: Self::F, b: Self::F) -> Self::F;
    /// Returns a value that grows with |y - centroid|: the distance, or its square where that is as
    /// cheap.
    fn distance_key(y: Self::F, centroid: Self::F) -> Self::F;
    /// Turns a [`distance_key`](Self::distance_key) into the squared distance.
    fn squared(key: Self::F) -> Self::F;
    fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Sets `bit` in the lanes of `bits` where a < b.
    fn mark_less(bits: Self::F, bit: u32, a: Self::F, b: Self::F) -> Self::F;
    /// Returns a bit for each lane where a < b, the first lane lowest.
    fn less(a: Self::F, b: Self::F) -> u64;
    /// Repeats each lane twice: first the lower half, then the upper half.
    fn twice(x: Self::F) -> [Self::F; 2];
    /// Moves the upper half of the lanes to the lower half.
    fn upper(x: Self::F) -> Self::F;

    /// The number of coordinates that [`columns`](Self::columns) reads at a time: 2, 4 or 8.
    const COLUMNS: usize = 2;

    /// Computes y = z·scale from coordinate `start` on, one vector a lane. Lanes without a vector
    /// repeat the last one.
    #[inline(always)]
    fn columns(y: &mut Columns<Self>, dim: usize, start: usize, z: &[f32], scales: &[f32]) {
        let mut lanes = [[0.0; 16]; 2];
        for v in 0..REGISTERS * Self::WIDTH {
            let from = v.min(scales.len() - 1);
            let pair = &z[from * dim + start..][..2];
            (lanes[0][v % 16], lanes[1][v % 16]) = (pair[0] * scales[from], pair[1] * scales[from]);
        }
        for (y, lanes) in y.iter_mut().zip(lanes) {
            *y = [Self::load(&lanes), Self::load(&lanes[Self::WIDTH..])];
        }
    }

    /// Returns the lowest of each lane's cheapest states.
    #[inline(always)]
    fn cheapest(costs: &[[Self::F; REGISTERS]]) -> [u32; 16] {
        let mut lanes = [[0.0; 16]; MAX_STATES];
        for (lanes, registers) in lanes.iter_mut().zip(costs) {
            Self::store(lanes, registers[0]);
            Self::store(&mut lanes[Self::WIDTH..], registers[1]);
        }
        let mut state = [0u32; 16];
        for lane in 0..REGISTERS * Self::WIDTH {
            for n in 1..costs.len() {
                if lanes[n][lane] < lanes[state[lane] as usize % MAX_STATES][lane] {
                    state[lane] = n as u32;
                }
            }
        }
        state
    }

    /// Walks back over the decisions of one word, from the states after it to those before it.
    /// Returns the path bits of each lane, the first lowest. Bit `top` of a state is the oldest.
    #[inline(always)]
    fn trace_back(decisions: &[Decisions<Self>; WORD], top: u32, state: &mut [u32; 16]) -> [u32; 16] {
        let mut words = [0u32; 16];
        for decision in decisions.iter().rev() {
            let mut halves = [[0u32; 16]; 2];
            for (r, registers) in decision.iter().enumerate() {
                Self::store_bits(&mut halves[0][r * Self::WIDTH..], registers[0]);
                if top > 4 {
                    Self::store_bits(&mut halves[1][r * Self::WIDTH..], registers[1]);
                }
            }
            for lane in 0..REGISTERS * Self::WIDTH {
                words[lane] = words[lane] << 1 | state[lane] & 1;
                let half = if state[lane] < 32 { halves[0][lane] } else { halves[1][lane] };
                state[lane] = state[lane] >> 1 | (half >> (state[lane] & 31) & 1) << top;
            }
        }
        words
    }

    /// Chooses the codes that belong to a path, as `scalar::choose_codes` does.
    #[inline(always)]
    fn choose<const M: usize>(
        ways: &Ways<M>,
        book: &TrellisCodebook,
        z: &[f32],
        scale: f32,
        path: &Path,
        codes: &mut [u8; MAX_DIM],
    ) -> Fit {
        ways.choose(book, z, scale, path, codes)
    }
}

/// Registers of vectors that a search takes at a time.
pub(crate) const REGISTERS: usize = 2;

/// Coordinates whose path bits share a word.
pub(crate) const WORD: usize = 16;

/// The path bits of a row.
pub(crate) type Path = [u16; MAX_DIM / WORD];

/// Registers for up to eight coordinates.
pub(crate) type Columns<T> = [[<T as Floats>::F; REGISTERS]; 8];

/// Evaluates a call with `$levels` as a constant: the number of codes of a codebook.
macro_rules! for_levels {
    ($book:expr, $levels:ident => $call:expr) => {
        match $book.levels() {
            1 => {
                const $levels: usize = 1;
                $call
            }
            2 => {
                const $levels: usize = 2;
                $call
            }
            3 => {
                const $levels: usize = 3;
                $call
            }
            4 => {
                const $levels: usize = 4;
                $call
            }
            6 => {
                const $levels: usize = 6;
                $call
            }
            8 => {
                const $levels: usize = 8;
                $call
            }
            12 => {
                const $levels: usize = 12;
                $call
            }
            _ => {
                const $levels: usize = crate::trellis::layout::MAX_LEVELS;
                $call
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use for_levels;

/// Implements `scalar::viterbi_encode`.
///
/// With many vectors the stack has 16 bytes for each lane and coordinate, for the decisions of
/// [`MAX_DIM`] coordinates. Up to 32 states touch half of what their `dim` needs. Up to 10 KiB come
/// on top. AVX2 adds 8 KiB for tables of words.
#[inline(always)]
pub(crate) fn viterbi_encode<T: Floats>(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
    pack: impl Fn(&[u8], &mut [u8]),
) {
    for_levels!(book, M => encode::<T, M>(book, dim, z, scales, bytes, fits, pack))
}

/// Encodes vectors in batches: finds their paths, chooses codes, and writes the planes of the rows.
#[inline(always)]
fn encode<T: Floats, const M: usize>(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
    pack: impl Fn(&[u8], &mut [u8]),
) {
    let batch = REGISTERS * T::WIDTH;
    let ways = Ways::<M>::new(book);
    let row_bytes = book.row_bytes(dim);
    let batches = z.chunks(batch * dim).zip(scales.chunks(batch)).zip(bytes.chunks_mut(batch * row_bytes));
    for (((z, scales), bytes), fits) in batches.zip(fits.chunks_mut(batch)) {
        let mut paths = [[0; MAX_DIM / WORD]; 16];
        // Searching half a batch by lanes takes about as long as searching its vectors one by one.
        if scales.len() > batch / 2 {
            search_many::<T, M>(book, dim, z, scales, &ways, &mut paths[..batch]);
        } else {
            search_one::<T, M>(book, dim, z, scales, &ways, &mut paths);
        }
        let vectors = z.chunks_exact(dim).zip(scales).zip(&paths).zip(bytes.chunks_exact_mut(row_bytes));
        for ((((z, scale), path), row), fit) in vectors.zip(fits) {
            let (plane, planes) = row[2..].split_at_mut(TrellisCodebook::path_bytes(dim));
            for (plane, word) in plane.as_chunks_mut::<2>().0.iter_mut().zip(path) {
                *plane = word.to_le_bytes();
            }
            let mut codes = [0u8; MAX_DIM];
            *fit = T::choose(&ways, book, z, *scale, path, &mut codes);
            if M > 1 {
                pack(&codes[..dim], planes);
            }
        }
    }
}

/// The centroids of each window. `ways[n][0]` leads into state n from old state n>>1, `ways[n][1]`
/// from the higher one.
pub(crate) struct Ways<const M: usize>([[[f32; M]; 2]; MAX_STATES]);

impl<const M: usize> Ways<M> {
    /// Sorts the centroids of a codebook by window.
    #[inline(always)]
    fn new(book: &TrellisCodebook) -> Self {
        let mut ways = [[[0.0; M]; 2]; MAX_STATES];
        read_ways(book, &mut ways[..book.states()]);
        Self(ways)
    }

    /// Chooses the codes that belong to a path, as `scalar::choose_codes` does.
    #[inline(always)]
    fn choose(
        &self,
        book: &TrellisCodebook,
        z: &[f32],
        scale: f32,
        path: &Path,
        codes: &mut [u8; MAX_DIM],
    ) -> Fit {
        let (mut correlation, mut energy) = ([0.0; LANES], [0.0; LANES]);
        let mut bits = 0;
        let vectors = z.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0);
        for (word, (z, codes)) in path.iter().zip(vectors) {
            let mut centroids = [0.0; 16];
            for (i, (z, code)) in z.iter().zip(codes).enumerate() {
                // The state with the new bit lowest, and the bit that leaves it.
                bits = bits << 1 | usize::from(word >> i & 1);
                let state = bits & (book.states() - 1);
                let way = &self.0[state % MAX_STATES][bits >> book.history() & 1];
                let y = z * scale;
                let mut count = 0;
                for pair in way.windows(2) {
                    count += u8::from(y + y >= pair[0] + pair[1]);
                }
                *code = count;
                centroids[i] = way[usize::from(count) % M];
            }
            for i in 0..LANES {
                correlation[i] += z[i] * scale * centroids[i];
                energy[i] += centroids[i] * centroids[i];
            }
        }
        // Sums of integers below 2²⁴ are exact in any order.
        Fit { correlation: halve(correlation), energy: halve(energy) }
    }
}

/// Reads the centroids of the two ways into each state: `ways` has an element for each of them.
#[inline(always)]
pub(super) fn read_ways<const M: usize>(book: &TrellisCodebook, ways: &mut [[[f32; M]; 2]]) {
    for (n, ways) in ways.iter_mut().enumerate() {
        for (way, window) in ways.iter_mut().zip([n, n | book.states()]) {
            for (k, centroid) in way.iter_mut().enumerate() {
                *centroid = f32::from(book.centroids()[k * book.windows() + book.window(window)]);
            }
        }
    }
}

/// Returns the squared distances of two registers to the nearest of a window's centroids.
#[inline(always)]
fn errors<T: Floats, const M: usize>(y: &[T::F; REGISTERS], centroids: &[f32; M]) -> [T::F; REGISTERS] {
    let first = T::splat(centroids[0]);
    let mut least = [T::distance_key(y[0], first), T::distance_key(y[1], first)];
    for centroid in &centroids[1..] {
        let centroid = T::splat(*centroid);
        least = [
            T::min(least[0], T::distance_key(y[0], centroid)),
            T::min(least[1], T::distance_key(y[1], centroid)),
        ];
    }
    [T::squared(least[0]), T::squared(least[1])]
}

/// A register for each register of vectors, and for each 32 states.
pub(crate) type Decisions<T> = [[<T as Floats>::F; 2]; REGISTERS];

/// Finds the paths of up to two registers of vectors.
#[inline(always)]
fn search_many<T: Floats, const M: usize>(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    ways: &Ways<M>,
    paths: &mut [Path],
) {
    let states = book.states();
    let ways = &ways.0[..states];
    const { assert!(16 % T::COLUMNS == 0 && T::COLUMNS % 2 == 0 && T::COLUMNS <= 8) };
    let mut decisions = [const { MaybeUninit::<Decisions<T>>::uninit() }; MAX_DIM];
    let decisions = &mut decisions[..dim];
    let mut old = [[T::splat(f32::INFINITY); REGISTERS]; MAX_STATES];
    old[0] = [T::splat(0.0); REGISTERS];
    let mut new = old;
    let mut y = [[T::splat(0.0); REGISTERS]; 8];
    for (t, decisions) in decisions.chunks_exact_mut(T::COLUMNS).enumerate() {
        T::columns(&mut y, dim, t * T::COLUMNS, z, scales);
        for (y, decisions) in y.as_chunks::<2>().0.iter().zip(decisions.as_chunks_mut::<2>().0) {
            decisions[0].write(step::<T, M>(&y[0], ways, &old, &mut new));
            decisions[1].write(step::<T, M>(&y[1], ways, &new, &mut old));
        }
    }
    // SAFETY: the loop above has written each element. `dim` is a multiple of 16, and the assertion
    // says that chunks of `COLUMNS` cover it and consist of pairs.
    let decisions = unsafe { core::slice::from_raw_parts(decisions.as_ptr().cast::<Decisions<T>>(), dim) };
    let mut state = T::cheapest(&old[..states]);
    for (word, decisions) in decisions.as_chunks::<WORD>().0.iter().enumerate().rev() {
        let words = T::trace_back(decisions, book.history() - 1, &mut state);
        for (path, bits) in paths.iter_mut().zip(words) {
            path[word] = bits as u16;
        }
    }
}

/// Searches one coordinate: computes the new costs, and sets a bit for each state where the higher
/// old state won.
///
/// ```text
/// old states     i            i + half       over window n: error of the lower way
///                 ╲          ╱               over window n + states: error of the higher way
/// new states n    2i, 2i + 1                 decision bit n is set if the higher way is cheaper
/// ```
#[inline(always)]
fn step<T: Floats, const M: usize>(
    y: &[T::F; REGISTERS],
    ways: &[[[f32; M]; 2]],
    old: &[[T::F; REGISTERS]; MAX_STATES],
    new: &mut [[T::F; REGISTERS]; MAX_STATES],
) -> Decisions<T> {
    let mut decisions = [[T::splat(0.0); 2]; REGISTERS];
    let half = ways.len() / 2;
    for (i, ways) in ways.as_chunks::<2>().0.iter().enumerate() {
        let (low, high) = (old[i % MAX_STATES], old[(i + half) % MAX_STATES]);
        for (j, [by_low, by_high]) in ways.iter().enumerate() {
            let n = 2 * i + j;
            let (by_low, by_high) = (errors::<T, M>(y, by_low), errors::<T, M>(y, by_high));
            for r in 0..REGISTERS {
                let low = T::add(low[r], by_low[r]);
                let high = T::add(high[r], by_high[r]);
                new[n % MAX_STATES][r] = T::min(high, low);
                let bits = &mut decisions[r][n / 32 % 2];
                *bits = T::mark_less(*bits, 1 << (n % 32), high, low);
            }
        }
    }
    decisions
}

/// The most registers of windows: 128 windows in fours.
const WINDOW_REGISTERS: usize = 2 * MAX_STATES / 4;

/// Finds the paths of vectors one by one.
///
/// Each old state has two windows, one for each new bit, so costs are repeated:
///
/// ```text
/// costs        │ s₀ s₁ s₂ s₃ … │              a lane for each state
/// twice        │ s₀ s₀ s₁ s₁ … │ … │          a lane for each window: window w leaves state w / 2
/// + errors     of each window's nearest centroid
/// new costs    min(lane n, lane n + states)   the two windows that lead to state n
/// ```
#[inline(always)]
fn search_one<T: Floats, const M: usize>(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    ways: &Ways<M>,
    paths: &mut [Path],
) {
    let states = book.states();
    let mut columns = [[0.0; 2 * MAX_STATES]; M];
    for (k, column) in columns.iter_mut().enumerate() {
        for (n, [low, high]) in ways.0[..states].iter().enumerate() {
            (column[n], column[n + states]) = (low[k], high[k]);
        }
    }
    let registers = (2 * states).div_ceil(T::WIDTH);
    for ((z, scale), path) in z.chunks_exact(dim).zip(scales).zip(paths) {
        let mut decisions = [0u64; MAX_DIM];
        let decisions = &mut decisions[..dim];
        let mut start = [f32::INFINITY; 8];
        start[0] = 0.0;
        let mut costs = [T::splat(f32::INFINITY); WINDOW_REGISTERS / 2];
        costs[0] = T::load(&start);
        for (z, decisions) in z.iter().zip(decisions.iter_mut()) {
            let y = T::splat(z * scale);
            let mut ways = [T::splat(0.0); WINDOW_REGISTERS];
            let (pairs, _) = ways[..registers.next_multiple_of(2)].as_chunks_mut::<2>();
            for (g, pair) in pairs.iter_mut().enumerate() {
                let old = T::twice(costs[g]);
                for (half, (way, old)) in pair.iter_mut().zip(old).enumerate() {
                    let first = (2 * g + half) * T::WIDTH;
                    let mut least = T::distance_key(y, T::load(&columns[0][first..]));
                    for column in &columns[1..] {
                        least = T::min(least, T::distance_key(y, T::load(&column[first..])));
                    }
                    *way = T::add(old, T::squared(least));
                }
            }
            if states < T::WIDTH {
                let high = T::upper(ways[0]);
                *decisions = T::less(high, ways[0]);
                costs[0] = T::min(high, ways[0]);
                continue;
            }
            for (i, costs) in costs[..registers / 2].iter_mut().enumerate() {
                let (low, high) = (ways[i], ways[i + registers / 2]);
                *decisions |= T::less(high, low) << (T::WIDTH * i);
                *costs = T::min(high, low);
            }
        }
        let (mut least, mut state) = (f32::INFINITY, 0);
        for (g, costs) in costs[..registers.div_ceil(2)].iter().enumerate() {
            let mut lanes = [0.0; 8];
            T::store(&mut lanes, *costs);
            for (i, cost) in lanes[..T::WIDTH.min(states)].iter().enumerate() {
                if *cost < least {
                    (least, state) = (*cost, g * T::WIDTH + i);
                }
            }
        }
        for (path, decisions) in path.iter_mut().zip(decisions.as_chunks::<WORD>().0).rev() {
            for decisions in decisions.iter().rev() {
                *path = *path << 1 | (state & 1) as u16;
                let high = (decisions >> state & 1) as usize;
                state = state >> 1 | high << (book.history() - 1);
            }
        }
    }
}
