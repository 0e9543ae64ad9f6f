//! The path search with AVX2: the operations of `search.rs`, and what surrounds them.
//!
//! Columns of vectors, the walk back and the choice of codes are vectorised here too. Element by
//! element, as in `search.rs`, the branches are unpredictable. On an Intel Sapphire Rapids, pages
//! of 128 coordinates and 8 states then take 1.2 to 2.4 times as long, single vectors up to 1.3
//! times.

use crate::floats::{LANES, halve};
use crate::registers::avx2::{Avx2, load_ps, store_ps};
use crate::trellis::layout::MAX_STATES;
use crate::trellis::search;
use crate::trellis::search::{Columns, Decisions, Floats, Path, REGISTERS, WORD, Ways};
use crate::{Fit, MAX_DIM, TrellisCodebook, codes};
use core::arch::x86_64::*;

/// Implements `scalar::viterbi_encode`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn viterbi_encode(
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    bytes: &mut [u8],
    fits: &mut [Fit],
) {
    let packing = book.packing();
    search::viterbi_encode::<Avx2>(book, dim, z, scales, bytes, fits, |codes, planes| {
        if let Some(packing) = packing {
            codes::avx2::pack(packing, codes, planes);
        }
    });
}

/// Intrinsics in a place that cannot carry `#[target_feature]`, a trait.
macro_rules! avx2 {
    ($($body:tt)*) => {{
        // SAFETY: `Avx2` is only used where AVX2 was detected. Loads and stores take as many
        // elements as a register has.
        unsafe { $($body)* }
    }};
}

impl Floats for Avx2 {
    type F = __m256;
    const WIDTH: usize = 8;

    #[inline(always)]
    fn splat(x: f32) -> __m256 {
        avx2!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(x: &[f32]) -> __m256 {
        let x = &x[..8];
        avx2!(_mm256_loadu_ps(x.as_ptr()))
    }

    #[inline(always)]
    fn store(out: &mut [f32], x: __m256) {
        let out = &mut out[..8];
        avx2!(_mm256_storeu_ps(out.as_mut_ptr(), x))
    }

    #[inline(always)]
    fn store_bits(out: &mut [u32], x: __m256) {
        let out = &mut out[..8];
        avx2!(_mm256_storeu_ps(out.as_mut_ptr().cast(), x))
    }

    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_add_ps(a, b))
    }

    /// Returns the square: a multiplication costs as much as the mask of an absolute value.
    #[inline(always)]
    fn distance_key(y: __m256, centroid: __m256) -> __m256 {
        avx2!({
            let difference = _mm256_sub_ps(y, centroid);
            _mm256_mul_ps(difference, difference)
        })
    }

    #[inline(always)]
    fn squared(key: __m256) -> __m256 {
        key
    }

    /// Compares the bits, which are ordered as the floats, on ports that float operations leave
    /// free (Zen 5).
    #[inline(always)]
    fn min(a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_castsi256_ps(_mm256_min_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b))))
    }

    #[inline(always)]
    fn mark_less(bits: __m256, bit: u32, a: __m256, b: __m256) -> __m256 {
        avx2!({
            let less = _mm256_cmpgt_epi32(_mm256_castps_si256(b), _mm256_castps_si256(a));
            let marked = _mm256_and_si256(less, _mm256_set1_epi32(bit as i32));
            _mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(bits), marked))
        })
    }

    #[inline(always)]
    fn less(a: __m256, b: __m256) -> u64 {
        avx2!({
            let less = _mm256_cmpgt_epi32(_mm256_castps_si256(b), _mm256_castps_si256(a));
            _mm256_movemask_ps(_mm256_castsi256_ps(less)) as u64
        })
    }

    #[inline(always)]
    fn twice(x: __m256) -> [__m256; 2] {
        avx2!([
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)),
        ])
    }

    #[inline(always)]
    fn upper(x: __m256) -> __m256 {
        avx2!(_mm256_permute2f128_ps::<1>(x, x))
    }

    const COLUMNS: usize = 8;

    #[inline(always)]
    fn columns(y: &mut Columns<Self>, dim: usize, start: usize, z: &[f32], scales: &[f32]) {
        avx2!(columns(y, dim, start, z, scales))
    }

    #[inline(always)]
    fn cheapest(costs: &[[__m256; REGISTERS]]) -> [u32; 16] {
        avx2!(cheapest(costs))
    }

    #[inline(always)]
    fn trace_back(decisions: &[Decisions<Self>; WORD], top: u32, state: &mut [u32; 16]) -> [u32; 16] {
        avx2!(trace_back(decisions, top, state))
    }

    #[inline(always)]
    fn choose<const M: usize>(
        _: &Ways<M>,
        book: &TrellisCodebook,
        z: &[f32],
        scale: f32,
        path: &Path,
        codes: &mut [u8; MAX_DIM],
    ) -> Fit {
        avx2!(choose::<M>(book, z, scale, path, codes))
    }
}

/// Implements `Floats::columns`: eight coordinates of sixteen vectors, transposed eight by eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn columns(y: &mut Columns<Avx2>, dim: usize, start: usize, z: &[f32], scales: &[f32]) {
    for r in 0..REGISTERS {
        let mut x = [_mm256_setzero_ps(); 8];
        for (v, x) in x.iter_mut().enumerate() {
            let v = (8 * r + v).min(scales.len() - 1);
            let z = z[v * dim + start..].first_chunk().unwrap_or(&[0.0; 8]);
            *x = _mm256_mul_ps(load_ps(z), _mm256_set1_ps(scales[v]));
        }
        let mut pairs = x;
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
        }
        for i in 0..2 {
            for j in 0..2 {
                let (a, b) = (pairs[4 * i + j], pairs[4 * i + j + 2]);
                x[4 * i + 2 * j] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                x[4 * i + 2 * j + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for i in 0..4 {
            y[i][r] = _mm256_permute2f128_ps::<0x20>(x[i], x[i + 4]);
            y[i + 4][r] = _mm256_permute2f128_ps::<0x31>(x[i], x[i + 4]);
        }
    }
}

/// Implements `Floats::cheapest`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn cheapest(costs: &[[__m256; REGISTERS]]) -> [u32; 16] {
    let mut states = [0; 16];
    for (r, states) in states.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (mut least, mut state) = (costs[0][r], _mm256_setzero_si256());
        for (n, costs) in costs.iter().enumerate().skip(1) {
            let less = _mm256_cmp_ps::<_CMP_LT_OQ>(costs[r], least);
            least = _mm256_blendv_ps(least, costs[r], less);
            state = _mm256_blendv_epi8(state, _mm256_set1_epi32(n as i32), _mm256_castps_si256(less));
        }
        store(states, state);
    }
    states
}

/// Implements `Floats::trace_back`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn trace_back(decisions: &[Decisions<Avx2>; WORD], top: u32, states: &mut [u32; 16]) -> [u32; 16] {
    let (one, top) = (_mm256_set1_epi32(1), _mm_cvtsi32_si128(top as i32));
    let mut words = [0; 16];
    let lanes = states.as_chunks_mut::<8>().0.iter_mut().zip(words.as_chunks_mut::<8>().0);
    for (r, (states, words)) in lanes.enumerate() {
        // SAFETY: the array has eight integers.
        let mut state = unsafe { _mm256_loadu_si256(states.as_ptr().cast()) };
        let mut bits = _mm256_setzero_si256();
        for decision in decisions.iter().rev() {
            bits = _mm256_or_si256(_mm256_add_epi32(bits, bits), _mm256_and_si256(state, one));
            let [low, high] = [_mm256_castps_si256(decision[r][0]), _mm256_castps_si256(decision[r][1])];
            // Shifts by 32 and more give 0, so the two halves of 64 decisions do not interfere.
            let taken = _mm256_or_si256(
                _mm256_srlv_epi32(low, state),
                _mm256_srlv_epi32(high, _mm256_sub_epi32(state, _mm256_set1_epi32(32))),
            );
            let from = _mm256_sll_epi32(_mm256_and_si256(taken, one), top);
            state = _mm256_or_si256(_mm256_srli_epi32::<1>(state), from);
        }
        store(states, state);
        store(words, bits);
    }
    words
}

/// Registers of eight words for a table of all windows.
const TABLE: usize = 2 * MAX_STATES / 8;

/// Implements `Floats::choose`, for sixteen coordinates at a time, in words. 2y reaches the sum of
/// two centroids, an integer, exactly if its floor does. `vpshufb` looks up eight words.
#[target_feature(enable = "avx2,fma,f16c")]
fn choose<const M: usize>(
    book: &TrellisCodebook,
    z: &[f32],
    scale: f32,
    path: &Path,
    codes: &mut [u8; MAX_DIM],
) -> Fit {
    match book.windows() {
        8 => choose_from::<M, 1>(book, z, scale, path, codes),
        16 => choose_from::<M, 2>(book, z, scale, path, codes),
        32 => choose_from::<M, 4>(book, z, scale, path, codes),
        64 => choose_from::<M, 8>(book, z, scale, path, codes),
        _ => choose_from::<M, TABLE>(book, z, scale, path, codes),
    }
}

/// Chooses codes with tables of N registers.
#[target_feature(enable = "avx2,fma,f16c")]
fn choose_from<const M: usize, const N: usize>(
    book: &TrellisCodebook,
    z: &[f32],
    scale: f32,
    path: &Path,
    codes: &mut [u8; MAX_DIM],
) -> Fit {
    // For each window: the first centroids, and the sums of each centroid and the one before.
    let mut tables = [[_mm256_setzero_si256(); N]; M];
    for (k, table) in tables.iter_mut().enumerate() {
        for (n, words) in table.iter_mut().enumerate() {
            *words = eight_words(&book.centroids()[k * book.windows() + 8 * n..]);
            if k > 0 {
                let before = eight_words(&book.centroids()[(k - 1) * book.windows() + 8 * n..]);
                *words = _mm256_add_epi16(*words, before);
            }
        }
    }
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11);
    let first = WORD as i32 - book.history() as i32;
    let shifts = [first, first + 4].map(|first| _mm256_add_epi32(lanes, _mm256_set1_epi32(first)));
    let window_mask = _mm256_set1_epi32(book.windows() as i32 - 1);
    let (scale, zero) = (_mm256_set1_ps(scale), _mm256_setzero_ps());
    let (mut correlation, mut energy) = ([zero; 2], _mm256_setzero_si256());
    let mut before = 0;
    let vectors = z.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0);
    for (word, (z, codes)) in path.iter().zip(vectors) {
        let bits = u32::from(*word) << WORD | u32::from(before);
        before = *word;
        let bits = _mm256_set1_epi32(bits as i32);
        // Coordinates 0..4 and 8..12, then the others: `vpackusdw` puts them in order.
        let windows = Windows::new(_mm256_packus_epi32(
            _mm256_and_si256(_mm256_srlv_epi32(bits, shifts[0]), window_mask),
            _mm256_and_si256(_mm256_srlv_epi32(bits, shifts[1]), window_mask),
        ));
        let z = z.as_chunks::<8>().0;
        let y = [_mm256_mul_ps(load_ps(&z[0]), scale), _mm256_mul_ps(load_ps(&z[1]), scale)];
        let twice = _mm256_packs_epi32(floor_of_twice(y[0]), floor_of_twice(y[1]));
        let twice = _mm256_permute4x64_epi64::<0b11_01_10_00>(twice);
        let mut centroid = windows.look_up(&tables[0]);
        let (mut lower, mut code) = (centroid, _mm256_setzero_si256());
        for table in &tables[1..] {
            let sum = windows.look_up(table);
            let upper = _mm256_sub_epi16(sum, lower);
            let below = _mm256_cmpgt_epi16(sum, twice);
            centroid = _mm256_blendv_epi8(upper, centroid, below);
            code = _mm256_add_epi16(code, _mm256_add_epi16(below, _mm256_set1_epi16(1)));
            lower = upper;
        }
        energy = _mm256_add_epi32(energy, _mm256_madd_epi16(centroid, centroid));
        let halves = [_mm256_castsi256_si128(centroid), _mm256_extracti128_si256::<1>(centroid)];
        for i in 0..2 {
            let centroids = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(halves[i]));
            correlation[i] = _mm256_add_ps(correlation[i], _mm256_mul_ps(y[i], centroids));
        }
        let code = _mm_packus_epi16(_mm256_castsi256_si128(code), _mm256_extracti128_si256::<1>(code));
        // SAFETY: the array has sixteen bytes.
        unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), code) };
    }
    let mut lanes = [0.0; LANES];
    for (lanes, sums) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(correlation) {
        store_ps(lanes, sums);
    }
    let mut sums = [0; 8];
    store(&mut sums, energy);
    // The energy is a sum of integers that stays below 2²⁴.
    Fit { correlation: halve(lanes), energy: sums.iter().sum::<u32>() as f32 }
}

/// The windows of sixteen coordinates, for lookups of words.
struct Windows {
    /// The two bytes of a word in a register of eight.
    index: __m256i,
    /// For bits 3, 4, … of the windows, the words where they are set.
    bits: [__m256i; 4],
}

impl Windows {
    /// Prepares the indices of sixteen windows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(windows: __m256i) -> Self {
        let eighth = _mm256_and_si256(windows, _mm256_set1_epi16(7));
        let twice = _mm256_mullo_epi16(eighth, _mm256_set1_epi16(0x0202));
        Self {
            index: _mm256_add_epi16(twice, _mm256_set1_epi16(0x0100)),
            bits: [
                _mm256_srai_epi16::<15>(_mm256_slli_epi16::<12>(windows)),
                _mm256_srai_epi16::<15>(_mm256_slli_epi16::<11>(windows)),
                _mm256_srai_epi16::<15>(_mm256_slli_epi16::<10>(windows)),
                _mm256_srai_epi16::<15>(_mm256_slli_epi16::<9>(windows)),
            ],
        }
    }

    /// Looks up words in a table of N registers.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn look_up<const N: usize>(&self, table: &[__m256i; N]) -> __m256i {
        let mut found = [_mm256_setzero_si256(); N];
        for i in 0..N {
            found[i] = _mm256_shuffle_epi8(table[i], self.index);
        }
        let mut left = N;
        for bit in self.bits {
            if left > 1 {
                left /= 2;
                for i in 0..left {
                    found[i] = _mm256_blendv_epi8(found[2 * i], found[2 * i + 1], bit);
                }
            }
        }
        found[0]
    }
}

/// Loads eight bytes as words, into both lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight_words(bytes: &[i8]) -> __m256i {
    let bytes = &bytes[..8];
    // SAFETY: the slice has eight bytes.
    let bytes = unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) };
    _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(bytes))
}

/// Returns the floor of 2y, limited to values that a sum of two centroids can reach or exceed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floor_of_twice(y: __m256) -> __m256i {
    let twice = _mm256_max_ps(_mm256_add_ps(y, y), _mm256_set1_ps(-1000.0));
    _mm256_cvttps_epi32(_mm256_floor_ps(_mm256_min_ps(twice, _mm256_set1_ps(1000.0))))
}

/// Stores eight integers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(out: &mut [u32; 8], x: __m256i) {
    // SAFETY: the array has eight integers.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) }
}
