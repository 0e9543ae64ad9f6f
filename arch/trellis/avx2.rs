//! Trellis codes with AVX2: rows of centroids, 32 at a time.
//!
//! The window of a coordinate is taken from a word with the byte of its path bit and the byte
//! before. A multiplication moves the window to the top of the word, and a shift moves it down:
//!
//! ```text
//! path plane     byte k: bits of coordinates 8k … 8k+7        byte k-1: of the eight before
//! word           b₇ b₆ b₅ b₄ b₃ b₂ b₁ b₀ a₇ a₆ a₅ a₄ a₃ a₂ a₁ a₀
//! coordinate 1                     └─────────┘      its window of 4 bits, newest on top
//! · 2⁶           b₁ b₀ a₇ a₆ …                      then >> 12
//! ```
//!
//! Codes are unpacked as in `codes`. Tables of up to 256 entries are looked up with `vpshufb`,
//! sixteen entries each, and a tree of blends. Larger tables are read one by one. Common shapes
//! have faster kernels in `lanes.rs`.
//!
//! On Intel Sapphire Rapids with rows of 128 coordinates, scores take 0.1 to 0.75 of the time of
//! `wide.rs`, and sums 0.25 to 0.8. Decoding took 1.1 to 2.6 times as long, so `wide.rs` decodes.

pub(super) mod lanes;
mod search;
mod unpack;

pub(crate) use search::viterbi_encode;

use super::layout::TrellisCodebook;
use super::scalar;
use crate::codes::avx2::many::Buffer;
use crate::codes::scalar::{PAGE, finish_sums, weight_limit};
use crate::registers::Integers;
use crate::registers::avx2::{Ymm, load, scales_of_eight, store_first};
use crate::rows::{Block, Blocks, ROWS, each_page_mut_of, each_page_of};
use crate::{IntQuery, MAX_DIM, Rows};
use core::arch::x86_64::*;
use core::ops::Range;
use lanes::QUERIES;
use unpack::{CHUNK, LOAD, Unpack, kind};

/// Chunks of the widest row.
const CHUNKS: usize = MAX_DIM / CHUNK;
/// The largest table that is looked up in registers.
const TABLE: usize = 256;

/// The constants that find the centroids of a row.
struct Lookup<'a> {
    book: &'a TrellisCodebook<'a>,
    /// Registers of a row.
    chunks: usize,
    /// `None` if there is only one code.
    unpack: Option<Unpack>,
    /// The centroids, sixteen to a register and the same in both lanes. Unused if there are more than
    /// [`TABLE`].
    table: [__m256i; TABLE / 16],
    /// The shift that moves a window from the top of its word to the bottom.
    down: __m128i,
    /// The start of the last load that ends within the row.
    last_load: usize,
}

/// Calls a function for the kind of codes.
macro_rules! for_kind {
    ($lookup:expr, $function:ident$(<$queries:ident>)?($($argument:expr),*)) => {
        match $lookup.kind() {
            NONE => $function::<NONE $(, $queries)?>($lookup, $($argument),*),
            kind::BYTES => $function::<{ kind::BYTES } $(, $queries)?>($lookup, $($argument),*),
            _ => $function::<{ kind::STREAM } $(, $queries)?>($lookup, $($argument),*),
        }
    };
}

/// The number of queries of a call with one.
const ONE: usize = 1;

/// The kind of rows with no codes at all.
const NONE: u8 = 255;

/// Implements `scalar::score_trellis`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn score_trellis<L: Integers<V = __m256i>>(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let Some(Rows { dim, len, .. }) = pages.first() else { return };
    if lanes::score::<L>(book, *dim, pages, scale, queries, scores) {
        return;
    }
    if *len < LOAD {
        pages.iter().for_each(|rows| rows.prefetch_some(0, PAGE));
        return scalar::score_trellis(book, pages, scale, queries, scores);
    }
    let lookup = &Lookup::new(book, *dim);
    for first in (0..queries.len()).step_by(QUERIES) {
        let some = first..queries.len().min(first + QUERIES);
        if some.len() == 1 {
            for_kind!(lookup, score<ONE>(pages, scale, queries, some, scores));
        } else {
            for_kind!(lookup, score<QUERIES>(pages, scale, queries, some, scores));
        }
    }
}

/// Scores pages with up to Q of the queries. `vpmaddubsw` needs an unsigned operand, so it gets the query's
/// magnitudes, and centroids get the signs. Both are at most 127, so sums of two products stay
/// below 2¹⁵.
#[target_feature(enable = "avx2,fma,f16c")]
fn score<const KIND: u8, const Q: usize>(
    lookup: &Lookup,
    pages: &[Rows],
    scale: f32,
    all: &[IntQuery],
    some: Range<usize>,
    scores: &mut [f32],
) {
    let queries = &all[some.clone()];
    let zero = _mm256_setzero_si256();
    let used = if Q == 1 { 1 } else { queries.len() };
    let mut values = [[[zero; 2]; CHUNKS]; Q];
    for (query, values) in queries.iter().zip(&mut values) {
        for (ints, values) in query.values.chunks(CHUNK).zip(values) {
            let mut bytes = [0i8; CHUNK];
            for (byte, int) in bytes.iter_mut().zip(ints) {
                *byte = *int as i8;
            }
            let signed = load(&bytes);
            *values = [_mm256_abs_epi8(signed), signed];
        }
    }
    let ones = _mm256_set1_epi16(1);
    for (rows, scores) in each_page_mut_of(pages, all.len(), some, scores) {
        let mut padded = None;
        let (blocks, count) = (Blocks::new(rows, &mut padded), rows.count());
        for first in (0..count).step_by(ROWS) {
            blocks.prefetch_apart(first / ROWS);
            let block = blocks.get(first / ROWS);
            let mut totals = [[0i32; ROWS]; Q];
            for four in 0..ROWS / 4 {
                let mut sums = [[zero; 4]; Q];
                for c in 0..lookup.chunks {
                    for r in 0..4 {
                        let centroids = lookup.centroids::<KIND>(&block, c, 4 * four + r);
                        for (values, sums) in values[..used].iter().zip(&mut sums) {
                            let [magnitudes, signed] = values[c];
                            let products =
                                _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(centroids, signed));
                            sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(products, ones));
                        }
                    }
                }
                for ([a, b, c, d], totals) in sums[..used].iter().zip(&mut totals) {
                    let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(*a, *b), _mm256_hadd_epi32(*c, *d));
                    let sums =
                        _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
                    let totals = &mut totals.as_chunks_mut::<4>().0[four];
                    // SAFETY: the array has four integers.
                    unsafe { _mm_storeu_si128(totals.as_mut_ptr().cast(), sums) };
                }
            }
            let rows = ROWS.min(count - first);
            for (q, query) in queries.iter().enumerate() {
                let factor = _mm256_set1_ps(query.scale * scale);
                let scores = &mut scores[q * count + first..][..rows];
                for (half, scores) in scores.chunks_mut(8).enumerate() {
                    let totals = &totals[q].as_chunks::<8>().0[half];
                    // SAFETY: the array has eight integers.
                    let sums = unsafe { _mm256_loadu_si256(totals.as_ptr().cast()) };
                    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), factor);
                    store_first(scores, _mm256_mul_ps(scaled, scales_of_eight(&block, 8 * half)));
                }
            }
        }
    }
}

/// Implements `scalar::accumulate_trellis`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn accumulate_trellis<L: Integers<V = __m256i>>(
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let Some(Rows { dim, len, .. }) = pages.first() else { return };
    if lanes::accumulate::<L>(book, *dim, pages, scale, weights, acc) {
        return;
    }
    if *len < LOAD {
        pages.iter().for_each(|rows| rows.prefetch_some(0, PAGE));
        return scalar::accumulate_trellis(book, pages, scale, weights, acc);
    }
    let (lookup, queries) = (&Lookup::new(book, *dim), acc.len() / dim);
    let mut memory = Memory::EMPTY;
    let mut ints = Ints::new(&mut memory, queries.min(QUERIES));
    for (i, acc) in acc.chunks_mut(QUERIES * dim).enumerate() {
        let some = i * QUERIES..queries.min((i + 1) * QUERIES);
        for (page, weights) in each_page_of(pages, queries, some, weights) {
            for (p, rows) in page.pages(PAGE).enumerate() {
                if ints.quantize(book, &rows, scale, weights, (p * PAGE, page.count())) {
                    for_kind!(lookup, sum_page(&rows, ints.ints, ints.units, acc));
                }
            }
        }
    }
}

/// Memory for [`Ints`].
struct Memory {
    ints: Buffer<[i16; PAGE], QUERIES>,
    units: Buffer<Option<f32>, QUERIES>,
    products: [f32; PAGE],
}

impl Memory {
    const EMPTY: Self = Self { ints: Buffer::EMPTY, units: Buffer::EMPTY, products: [0.0; PAGE] };
}

/// The integer weights of up to 256 rows, for up to eight queries.
struct Ints<'a> {
    /// Behind the last row, up to the end of its block, they are 0.
    ints: &'a mut [[i16; PAGE]],
    /// The value of one integer step of a query. `None` if it adds nothing.
    units: &'a mut [Option<f32>],
    products: &'a mut [f32; PAGE],
}

impl<'a> Ints<'a> {
    /// Prepares `memory` for this many queries.
    fn new(memory: &'a mut Memory, queries: usize) -> Self {
        let Memory { ints, units, products } = memory;
        Self { ints: ints.first(queries, [0; PAGE]), units: units.first(queries, None), products }
    }

    /// Quantises the weights of rows that begin at row `first` of a page of `count`. Returns whether
    /// any query adds something.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn quantize(
        &mut self,
        book: &TrellisCodebook,
        rows: &Rows,
        scale: f32,
        weights: &[f32],
        (first, count): (usize, usize),
    ) -> bool {
        let (limit, ours) = (weight_limit(book.levels()), rows.count());
        let mut any = false;
        for ((weights, ints), unit) in weights.chunks_exact(count).zip(&mut *self.ints).zip(&mut *self.units)
        {
            let value = Ymm::quantize_weights(rows, &weights[first..][..ours], limit, self.products, ints);
            ints[ours..ours.next_multiple_of(ROWS)].fill(0);
            *unit = value.map(|value| value * scale);
            any |= value.is_some();
        }
        any
    }
}

/// Adds up to 256 rows for up to eight queries.
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_page<const KIND: u8>(
    lookup: &Lookup,
    rows: &Rows,
    ints: &[[i16; PAGE]],
    units: &[Option<f32>],
    acc: &mut [f32],
) {
    let queries = acc.len() / rows.dim;
    let zero = _mm256_setzero_si256();
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    for chunk in 0..lookup.chunks {
        // Coordinates 0..4 and 8..12, then 4..8 and 12..16 of the chunk's lower half; then the same
        // of the upper half.
        let mut sums = [[zero; 4]; QUERIES];
        for first in (0..rows.count()).step_by(ROWS) {
            if chunk == 0 {
                blocks.prefetch_apart(first / ROWS);
            }
            let block = blocks.get(first / ROWS);
            let mut pairs = [[zero; 4]; ROWS / 2];
            for (i, pair) in pairs.iter_mut().enumerate() {
                let a = lookup.centroids::<KIND>(&block, chunk, 2 * i);
                let b = lookup.centroids::<KIND>(&block, chunk, 2 * i + 1);
                *pair = interleave(a, b);
            }
            for ((sums, ints), unit) in sums[..queries].iter_mut().zip(ints).zip(units) {
                if unit.is_none() {
                    continue;
                }
                for (pair, weights) in pairs.iter().zip(ints[first..].as_chunks::<2>().0) {
                    let weights = i32::from(weights[1]) << 16 | i32::from(weights[0] as u16);
                    let weights = _mm256_set1_epi32(weights);
                    for (sum, values) in sums.iter_mut().zip(pair) {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*values, weights));
                    }
                }
            }
        }
        for ((sums, unit), acc) in sums.iter().zip(units).zip(acc.chunks_exact_mut(rows.dim)) {
            if let Some(unit) = unit {
                let acc = &mut acc[chunk * CHUNK..];
                let width = acc.len().min(CHUNK);
                let mut lanes = [[0i32; 4]; CHUNK / 4];
                for (lanes, sum) in lanes.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                    // SAFETY: the arrays have eight integers.
                    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), *sum) };
                }
                let order = [0, 2, 1, 3, 4, 6, 5, 7].map(|lane| lanes[lane]);
                finish_sums(&order.as_flattened()[..width], *unit, &mut acc[..width]);
            }
        }
    }
}

/// Returns the words of two rows of bytes, alternating.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn interleave(a: __m256i, b: __m256i) -> [__m256i; 4] {
    let halves = |x| {
        let upper = _mm256_extracti128_si256::<1>(x);
        [_mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)), _mm256_cvtepi8_epi16(upper)]
    };
    let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
    [
        _mm256_unpacklo_epi16(a0, b0),
        _mm256_unpackhi_epi16(a0, b0),
        _mm256_unpacklo_epi16(a1, b1),
        _mm256_unpackhi_epi16(a1, b1),
    ]
}

/// For coordinates 0..8 and 16..24 of a chunk, and then for the others: the two bytes of the word
/// with the path bits, counted from the byte before the chunk.
static SPREAD: [[u8; CHUNK]; 2] = {
    let mut spread = [[0; CHUNK]; 2];
    let mut i = 0;
    while i < 2 * CHUNK {
        let (half, lane, place) = (i / CHUNK, i / 16 % 2, i % 16);
        spread[half][i % CHUNK] = (2 * lane + half + place % 2) as u8;
        i += 1;
    }
    spread
};

/// The factors that move the path bit of coordinate i to the top of its word.
static UP: [u16; 16] = [128, 64, 32, 16, 8, 4, 2, 1, 128, 64, 32, 16, 8, 4, 2, 1];

impl<'a> Lookup<'a> {
    /// Prepares a codebook and a width. Rows must have at least `LOAD` bytes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(book: &'a TrellisCodebook<'a>, dim: usize) -> Self {
        let head = 2 + TrellisCodebook::path_bytes(dim);
        let mut table = [_mm256_setzero_si256(); TABLE / 16];
        if book.centroids().len() <= TABLE {
            for (table, centroids) in table.iter_mut().zip(book.centroids().chunks(16)) {
                let mut bytes = [0; CHUNK];
                for (i, centroid) in centroids.iter().enumerate() {
                    (bytes[i], bytes[16 + i]) = (*centroid, *centroid);
                }
                *table = load(&bytes);
            }
        }
        Self {
            book,
            chunks: dim / CHUNK + usize::from(!dim.is_multiple_of(CHUNK)),
            unpack: book.packing().map(|packing| Unpack::new(packing, dim, head)),
            table,
            down: _mm_cvtsi32_si128(15 - book.history() as i32),
            last_load: book.row_bytes(dim) - LOAD,
        }
    }

    /// Returns the kind of codes.
    fn kind(&self) -> u8 {
        self.unpack.as_ref().map_or(NONE, Unpack::kind)
    }

    /// Returns the centroids from 32·chunk on of row `r`, in order. Behind the end of the row they
    /// are unspecified.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn centroids<const KIND: u8>(&self, block: &Block, chunk: usize, r: usize) -> __m256i {
        let windows = self.windows(block, chunk, r);
        let codes = match &self.unpack {
            Some(unpack) if KIND != NONE => unpack.codes::<KIND>(&unpack.windows::<KIND>(block, chunk), r),
            _ => _mm256_setzero_si256(),
        };
        if self.book.centroids().len() > TABLE {
            return self.look_up_each(windows, codes);
        }
        // An index has eight bits, so that a shift of words moves none into the next byte.
        let above = _mm256_sll_epi16(codes, _mm_cvtsi32_si128(self.book.history() as i32 + 1));
        let index = _mm256_or_si256(windows, above);
        let sixteens = self.book.centroids().len().div_ceil(16);
        if sixteens <= 4 {
            self.look_up::<4>(index)
        } else if sixteens <= 8 {
            self.look_up::<8>(index)
        } else {
            self.look_up::<16>(index)
        }
    }

    /// Returns the windows of 32 coordinates.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn windows(&self, block: &Block, chunk: usize, r: usize) -> __m256i {
        let start = 4 * chunk + 1;
        let at = start.min(self.last_load);
        let path: &[u8; LOAD] = block.window(at, at + LOAD).first(r);
        // SAFETY: the array has sixteen bytes.
        let mut path = unsafe { _mm_loadu_si128(path.as_ptr().cast()) };
        if chunk == 0 {
            // The path plane begins with byte 2. In front of it are zeros.
            let keep = _mm_cmpgt_epi8(
                _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                _mm_set1_epi8(1 - at as i8),
            );
            path = _mm_and_si128(path, keep);
        }
        let path = _mm256_broadcastsi128_si256(path);
        let late = _mm256_set1_epi8((start - at) as i8);
        let words = |half: usize| {
            let bytes = _mm256_shuffle_epi8(path, _mm256_add_epi8(load(&SPREAD[half]), late));
            _mm256_srl_epi16(_mm256_mullo_epi16(bytes, load(&UP)), self.down)
        };
        _mm256_packus_epi16(words(0), words(1))
    }

    /// Looks up indices in a table of N registers. Blends choose by the index's bits from 4 up, the
    /// lowest first.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn look_up<const N: usize>(&self, index: __m256i) -> __m256i {
        let low = _mm256_and_si256(index, _mm256_set1_epi8(15));
        let mut found = [_mm256_setzero_si256(); 16];
        for (found, table) in found[..N].iter_mut().zip(&self.table) {
            *found = _mm256_shuffle_epi8(*table, low);
        }
        let bits = [
            _mm256_slli_epi16::<3>(index),
            _mm256_slli_epi16::<2>(index),
            _mm256_slli_epi16::<1>(index),
            index,
        ];
        let mut left = N;
        for bit in bits {
            if left > 1 {
                left /= 2;
                for i in 0..left {
                    found[i] = _mm256_blendv_epi8(found[2 * i], found[2 * i + 1], bit);
                }
            }
        }
        found[0]
    }

    /// Reads centroids one by one, for larger tables.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn look_up_each(&self, windows: __m256i, codes: __m256i) -> __m256i {
        let (mut window, mut code, mut found) = ([0u8; CHUNK], [0u8; CHUNK], [0i8; CHUNK]);
        // SAFETY: the arrays have 32 bytes.
        unsafe {
            _mm256_storeu_si256(window.as_mut_ptr().cast(), windows);
            _mm256_storeu_si256(code.as_mut_ptr().cast(), codes);
        }
        for i in 0..CHUNK {
            let index = usize::from(code[i]) << (self.book.history() + 1) | usize::from(window[i]);
            found[i] = self.book.centroids().get(index).copied().unwrap_or(0);
        }
        load(&found)
    }
}
