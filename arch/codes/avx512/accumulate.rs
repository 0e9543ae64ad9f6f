//! Weighted sums of packed rows, for codebooks of up to 16 levels.
//!
//! Weights of the specification are integers of 16 bits, and these centroids have 8 bits. A weight
//! splits into an upper and a lower byte. `vpdpbusd` then adds the products of four rows at once:
//!
//! ```text
//! four rows, one coordinate    │a₀│b₀│c₀│d₀│ · │wa│wb│wc│wd│ lower bytes  ─► sum of lower products
//!                              │a₀│b₀│c₀│d₀│ · │wa│wb│wc│wd│ upper bytes  ─► sum of upper products
//! end of a run of rows         sum = lower + upper · 256             exact in any order
//! ```
//!
//! For this the bytes of four rows must lie side by side, coordinate by coordinate. That takes
//! eight unpack instructions for a register of each of the four rows, which all queries share.
//! Several queries also share the instructions that put coordinates in order. They take about 5% of
//! a block's attention on Sapphire Rapids, and nothing with two queries.

use super::codebook::{Bytes, kind, step};
use super::sums::{PASS, QUERIES};
use super::unpack::CHUNK;
use crate::Rows;
use crate::codes::avx2::many::Buffer;
use crate::codes::layout::Codebook;
use crate::codes::scalar;
use crate::codes::scalar::{PAGE, weight_limit};
use crate::registers::amx::{Configured, Tiles};
use crate::registers::avx512::{
    in_order, load_ps, load_tail, rint, scales, store_codes, store_ps, store_tail,
};
use crate::rows::{Blocks, ROWS, each_page};
use core::arch::x86_64::*;
use core::array;
use core::mem::MaybeUninit;
use core::ops::Range;

/// Implements `scalar::accumulate_codes` for codebooks of up to 16 levels.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_codes(
    tiles: Option<Tiles>,
    book: &Codebook,
    pages: &[Rows],
    weights: &[f32],
    acc: &mut [f32],
) {
    let Codebook { packing, centroids, scale } = *book;
    let Some(&Rows { dim, .. }) = pages.first() else { return };
    let bytes = Bytes::new(packing, dim, centroids, 0);
    match bytes.kind() {
        kind::NIBBLES => accumulate_bytes::<{ kind::NIBBLES }>(tiles, &bytes, pages, scale, weights, acc),
        kind::PAIRS => accumulate_bytes::<{ kind::PAIRS }>(tiles, &bytes, pages, scale, weights, acc),
        kind::RAW => accumulate_bytes::<{ kind::RAW }>(tiles, &bytes, pages, scale, weights, acc),
        kind::BYTES => accumulate_bytes::<{ kind::BYTES }>(tiles, &bytes, pages, scale, weights, acc),
        kind::TERNARY => accumulate_bytes::<{ kind::TERNARY }>(tiles, &bytes, pages, scale, weights, acc),
        _ => accumulate_bytes::<{ kind::SEVENS }>(tiles, &bytes, pages, scale, weights, acc),
    }
}

/// The weights of one query for a run, as the bytes that `vpdpbusd` multiplies.
#[repr(C, align(64))]
pub(crate) struct ByteWeights {
    /// The lower bytes of weight + offset. Behind the end of a run they belong to rows of zero
    /// bytes, which `plain` counts too.
    low: [MaybeUninit<[u8; 16]>; PAGE / 16],
    high: [MaybeUninit<[u8; 16]>; PAGE / 16],
    /// The number of sixteens that are set.
    used: usize,
    /// The offset that makes all weights unsigned: 0 if they are, 2¹⁵ if not.
    pub(crate) offset: i32,
    /// The value of one integer step, 0 if the run adds nothing.
    pub(crate) unit: f32,
}

impl ByteWeights {
    /// Returns empty weights. Their bytes are not even set to zero.
    #[inline]
    pub(crate) fn none(memory: &mut MaybeUninit<Self>) -> &mut Self {
        let memory = memory.as_mut_ptr();
        // SAFETY: the memory holds all fields. These three are set here, and the others may stay
        // uninitialised.
        unsafe {
            (&raw mut (*memory).used).write(0);
            (&raw mut (*memory).offset).write(0);
            (&raw mut (*memory).unit).write(0.0);
            &mut *memory
        }
    }

    /// Returns the number of tiles of 64 rows.
    #[inline]
    pub(crate) fn tiles(&self) -> usize {
        self.used.div_ceil(4)
    }

    /// Returns the lower bytes, four rows at a time.
    #[inline]
    pub(crate) fn low(&self) -> &[[u8; 4]] {
        // SAFETY: only `set` increases `used`, after it has set `used` groups of 16 weights, each
        // four times four.
        unsafe { core::slice::from_raw_parts(self.low[..self.used].as_ptr().cast(), 4 * self.used) }
    }

    /// Returns the upper bytes, four rows at a time.
    #[inline]
    pub(crate) fn high(&self) -> &[[u8; 4]] {
        // SAFETY: `set` writes the upper bytes of as many groups as the lower ones, see `low`.
        unsafe { core::slice::from_raw_parts(self.high[..self.used].as_ptr().cast(), 4 * self.used) }
    }

    /// Quantises weights, and splits them into bytes.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn set(&mut self, weights: &[f32], scales: &[__m512]) {
        let ints = IntWeights::new(weights, scales, weight_limit(16));
        self.unit = ints.unit;
        self.offset = if ints.negative { 0x8000 } else { 0 };
        let offset = _mm512_set1_epi32(self.offset);
        self.used = weights.len().div_ceil(16);
        let mut places = self.low.iter_mut().zip(&mut self.high);
        ints.each(|ints| {
            if let Some((low, high)) = places.next() {
                let upper = _mm512_srli_epi32::<8>(_mm512_add_epi32(ints, offset));
                store_codes(low.write([0; 16]), _mm512_cvtepi32_epi8(ints));
                store_codes(high.write([0; 16]), _mm512_cvtepi32_epi8(upper));
            }
        });
        // Tiles take 64 weights at a time.
        for i in self.used..self.used.next_multiple_of(4) {
            (self.low[i], self.high[i]) = (MaybeUninit::new([0; 16]), MaybeUninit::new([0; 16]));
        }
    }
}

/// Quantises weights as `scalar::quantize_weights` does, 16 at a time.
pub(crate) struct IntWeights<'a> {
    weights: &'a [f32],
    scales: &'a [__m512],
    factor: __m512,
    /// The value of one integer step, 0 if the run adds nothing.
    pub(crate) unit: f32,
    /// Whether any weight may be negative.
    negative: bool,
}

impl<'a> IntWeights<'a> {
    /// Finds the largest product of weight and row scale.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(weights: &'a [f32], scales: &'a [__m512], limit: i16) -> Self {
        let factor = _mm512_setzero_ps();
        let mut ints = Self { weights, scales, factor, unit: 0.0, negative: false };
        let (mut max, mut any) = (factor, factor);
        ints.products(|product| {
            max = _mm512_max_ps(_mm512_abs_ps(product), max);
            any = _mm512_or_ps(any, product);
        });
        let max = f32::from_bits(_mm512_reduce_max_epu32(_mm512_castps_si512(max)));
        if max >= scalar::SMALLEST_WEIGHT {
            ints.negative = _mm512_movepi32_mask(_mm512_castps_si512(any)) != 0;
            ints.factor = _mm512_set1_ps(f32::from(limit) / max);
            ints.unit = max / f32::from(limit);
        }
        ints
    }

    /// Calls `each` with the products of weights and row scales, sixteen at a time. Behind the end
    /// weights are 0, and scales are finite.
    ///
    /// Whole sixteens have a loop without branches: it runs for every query and page.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn products(&self, mut each: impl FnMut(__m512)) {
        let (whole, tail) = self.weights.as_chunks();
        for (weights, scales) in whole.iter().zip(self.scales) {
            each(_mm512_mul_ps(load_ps(weights), *scales));
        }
        if let (false, Some(scales)) = (tail.is_empty(), self.scales.get(whole.len())) {
            each(_mm512_mul_ps(load_tail(tail), *scales));
        }
    }

    /// Calls `each` with the integers, sixteen at a time.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn each(&self, mut each: impl FnMut(__m512i)) {
        self.products(|product| each(_mm512_cvtps_epi32(rint(_mm512_mul_ps(product, self.factor)))));
    }
}

/// Memory for the scales of a run.
pub(crate) type RunScales = Buffer<__m512, { PAGE / 16 }>;

/// Returns the scales of a run of rows, given as blocks.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn run_scales<'a>(blocks: &Blocks, run: Range<usize>, memory: &'a mut RunScales) -> &'a [__m512] {
    let all = memory.first(run.len(), _mm512_setzero_ps());
    for (sixteen, block) in all.iter_mut().zip(run) {
        *sixteen = scales(&blocks.get(block));
    }
    all
}

/// The sums of 64 coordinates. With one query they are in the order of the interleaved bytes, with
/// more in order of coordinates.
pub(crate) type Sums = [__m512i; 4];

/// Adds weighted pages, run by run. A single query without negative weights has its own loop.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate_bytes<const KIND: u8>(
    tiles: Option<Tiles>,
    bytes: &Bytes,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let dim = pages.first().map_or(1, |rows| rows.dim);
    let queries = acc.len() / dim;
    let configured = configure(tiles, queries);
    for (rows, weights) in each_page(pages, queries, weights) {
        let (count, mut padded) = (rows.count(), None);
        let blocks = Blocks::new(rows, &mut padded);
        for run in (0..count).step_by(PAGE) {
            let run = run..count.min(run + PAGE);
            let mut scales = RunScales::EMPTY;
            let scales = run_scales(&blocks, run.start / ROWS..run.end.div_ceil(ROWS), &mut scales);
            if queries == 1 {
                let mut ints = MaybeUninit::uninit();
                let ints = ByteWeights::none(&mut ints);
                ints.set(&weights[run.clone()], scales);
                if ints.offset == 0 {
                    accumulate_one::<KIND>(bytes, &blocks, run, ints, scale, acc);
                    continue;
                }
            }
            for (weights, acc) in weights.chunks(PASS * count).zip(acc.chunks_mut(PASS * dim)) {
                let weights = (weights, count, scales);
                accumulate_many::<KIND>(&configured, bytes, &blocks, run.clone(), weights, scale, acc);
            }
        }
    }
}

/// Adds a run for up to [`PASS`] queries. `weights` are those of all `count` rows.
///
/// Each chunk of coordinates is decoded once, and then multiplied with the weights of all queries.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate_many<const KIND: u8>(
    configured: &Option<Configured>,
    bytes: &Bytes,
    blocks: &Blocks,
    run: Range<usize>,
    (weights, count, scales): (&[f32], usize, &[__m512]),
    scale: f32,
    acc: &mut [f32],
) {
    let mut ints = [const { MaybeUninit::uninit() }; PASS];
    let ints =
        byte_weights(weights.chunks_exact(count).map(|weights| &weights[run.clone()]), scales, &mut ints);
    let width = acc.len() / ints.len();
    let mut decoded = [const { Tile::new() }; 2];
    for c in (0..bytes.chunks()).step_by(step(KIND)) {
        for tile in &mut decoded {
            tile.clear();
        }
        for block in run.start / ROWS..run.end.div_ceil(ROWS) {
            if c == 0 {
                blocks.prefetch(block);
            }
            let block = blocks.get(block);
            for first in [0, 4, 8, 12] {
                let centroids = bytes.ordered::<KIND>(&block, c, first);
                for (tile, centroids) in decoded.iter_mut().zip(centroids).take(step(KIND)) {
                    tile.push(centroids);
                }
            }
        }
        // The last chunk of a pair may lie behind the end.
        for (first, tile) in (c * CHUNK..width).step_by(CHUNK).zip(&mut decoded).take(step(KIND)) {
            tile.add(configured, ints, scale, first, acc, width);
        }
    }
}

/// Configures AMX tiles if there are any and the queries fill a block.
#[inline]
pub(crate) fn configure(tiles: Option<Tiles>, queries: usize) -> Option<Configured> {
    tiles.filter(|_| queries >= QUERIES).map(Tiles::configure)
}

/// Quantises the weights of a run, query after query.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn byte_weights<'a, 'w>(
    weights: impl Iterator<Item = &'w [f32]>,
    scales: &[__m512],
    memory: &'a mut [MaybeUninit<ByteWeights>; PASS],
) -> &'a [ByteWeights] {
    let mut used = 0;
    for (weights, ints) in weights.zip(&mut *memory) {
        ByteWeights::none(ints).set(weights, scales);
        used += 1;
    }
    // SAFETY: the loop above has written `used` elements.
    unsafe { core::slice::from_raw_parts(memory.as_ptr().cast(), used) }
}

impl ByteWeights {
    /// Subtracts from sums what the offset added, if there is one: the offset times the sums of the
    /// centroids themselves.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn without_offset(&self, sums: &mut [__m512i], plain: &[__m512i]) {
        if self.offset != 0 {
            let offset = _mm512_set1_epi32(self.offset);
            for (sum, plain) in sums.iter_mut().zip(plain) {
                *sum = _mm512_sub_epi32(*sum, _mm512_mullo_epi32(*plain, offset));
            }
        }
    }
}

/// Joins a sum with the lower bytes and one with the upper bytes of the weights.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn join(low: __m512i, high: __m512i) -> __m512i {
    _mm512_add_epi32(low, _mm512_slli_epi32::<8>(high))
}

/// The centroids of 64 coordinates in a run, four rows side by side. They are decoded once for all
/// queries.
pub(crate) struct Tile {
    /// The first `used` are set.
    fours: [MaybeUninit<Sums>; PAGE / 4],
    used: usize,
}

impl Tile {
    pub(crate) const fn new() -> Self {
        Self { fours: [const { MaybeUninit::uninit() }; PAGE / 4], used: 0 }
    }

    /// Removes all rows.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Appends four rows.
    #[inline]
    pub(crate) fn push(&mut self, centroids: Sums) {
        self.fours[self.used].write(centroids);
        self.used += 1;
    }

    /// Appends rows of zeros until whole tiles of sixteen fours are full. Returns the registers,
    /// and the number of tiles.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn filled(&mut self) -> (&[__m512i], usize) {
        while !self.used.is_multiple_of(ROWS) {
            self.push([_mm512_setzero_si512(); 4]);
        }
        (self.fours().as_flattened(), self.used / ROWS)
    }

    /// Returns the rows, four at a time.
    #[inline]
    fn fours(&self) -> &[Sums] {
        // SAFETY: only `push` increases `used`, after it has set the new element.
        unsafe { core::slice::from_raw_parts(self.fours[..self.used].as_ptr().cast(), self.used) }
    }

    /// Returns the sums of the centroids themselves, if any weights have an offset. Otherwise
    /// zeros.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn plain(&self, ints: &[ByteWeights]) -> Sums {
        let mut plain = [_mm512_setzero_si512(); 4];
        if ints.iter().any(|ints| ints.offset != 0) {
            for centroids in self.fours() {
                for (plain, centroids) in plain.iter_mut().zip(centroids) {
                    *plain = _mm512_dpbusd_epi32(*plain, _mm512_set1_epi8(1), *centroids);
                }
            }
        }
        plain
    }

    /// Adds the sums of all queries, \[query]\[`width`], from coordinate `first` on.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn add(
        &mut self,
        configured: &Option<Configured>,
        ints: &[ByteWeights],
        scale: f32,
        first: usize,
        acc: &mut [f32],
        width: usize,
    ) {
        // Blocks of queries go to the tiles, the others come first: tiles append rows.
        let tiled = if configured.is_some() { ints.len() / QUERIES * QUERIES } else { 0 };
        let (blocks, ints) = ints.split_at(tiled);
        let (block_acc, acc) = acc.split_at_mut(tiled * width);
        let plain = self.plain(ints);
        let end = |acc: &mut [f32], ints: &ByteWeights, sums: Sums| {
            if ints.unit != 0.0 {
                add_sums(&mut acc[first..], sums, ints.unit * scale);
            }
        };
        let (pairs, last) = ints.as_chunks::<2>();
        let (pair_acc, last_acc) = acc.split_at_mut(2 * width * pairs.len());
        for (ints, acc) in pairs.iter().zip(pair_acc.chunks_exact_mut(2 * width)) {
            let [a, b] = self.products(&plain, ints);
            let (of_a, of_b) = acc.split_at_mut(width);
            end(of_a, &ints[0], a);
            end(of_b, &ints[1], b);
        }
        if let [ints] = last {
            let [sums] = self.products(&plain, array::from_ref(ints));
            end(last_acc, ints, sums);
        }
        if let Some(configured) = configured {
            let blocks = blocks.as_chunks::<QUERIES>().0.iter();
            for (ints, acc) in blocks.zip(block_acc.chunks_exact_mut(QUERIES * width)) {
                self.add_tiles(configured, ints, scale, first, acc, width);
            }
        }
    }

    /// Multiplies the rows with the weights of `N` queries. Two queries share the load of each
    /// centroid, and hide each other's latency.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn products<const N: usize>(&self, plain: &Sums, ints: &[ByteWeights; N]) -> [Sums; N] {
        let zero = [_mm512_setzero_si512(); 4];
        let mut totals = [[zero; 2]; N];
        let bytes: [_; N] = array::from_fn(|n| (ints[n].low(), ints[n].high()));
        for (i, centroids) in self.fours().iter().enumerate() {
            for ([low, high], (l, h)) in totals.iter_mut().zip(bytes) {
                let (l, h) = (four(&l[i]), four(&h[i]));
                for k in 0..4 {
                    low[k] = _mm512_dpbusd_epi32(low[k], l, centroids[k]);
                    high[k] = _mm512_dpbusd_epi32(high[k], h, centroids[k]);
                }
            }
        }
        let mut sums = [zero; N];
        for ((sums, totals), ints) in sums.iter_mut().zip(totals).zip(ints) {
            let [low, high] = totals;
            *sums = array::from_fn(|k| join(low[k], high[k]));
            ints.without_offset(sums, plain);
        }
        sums
    }
}

/// Adds a run for one query without negative weights. Its sums stay in registers.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn accumulate_one<const KIND: u8>(
    bytes: &Bytes,
    blocks: &Blocks,
    run: Range<usize>,
    ints: &ByteWeights,
    scale: f32,
    acc: &mut [f32],
) {
    if ints.unit == 0.0 {
        return;
    }
    let zero = [_mm512_setzero_si512(); 4];
    for c in (0..bytes.chunks()).step_by(step(KIND)) {
        let (mut low, mut high) = ([zero; 2], [zero; 2]);
        let mut weights = ints.low().iter().zip(ints.high());
        for block in run.start / ROWS..run.end.div_ceil(ROWS) {
            if c == 0 {
                blocks.prefetch(block);
            }
            let block = blocks.get(block);
            for (first, (l, h)) in [0, 4, 8, 12].into_iter().zip(&mut weights) {
                let centroids = bytes.interleaved::<KIND>(&block, c, first);
                let (l, h) = (four(l), four(h));
                for k in 0..step(KIND) {
                    for i in 0..4 {
                        low[k][i] = _mm512_dpbusd_epi32(low[k][i], l, centroids[k][i]);
                        high[k][i] = _mm512_dpbusd_epi32(high[k][i], h, centroids[k][i]);
                    }
                }
            }
        }
        let mut totals = [zero; 2];
        for k in 0..step(KIND) {
            for i in 0..4 {
                totals[k][i] = join(low[k][i], high[k][i]);
            }
        }
        finish::<KIND>(&mut totals[..step(KIND)], ints.unit * scale, &mut acc[c * CHUNK..]);
    }
}

/// Returns four bytes, sixteen times.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn four(bytes: &[u8; 4]) -> __m512i {
    _mm512_set1_epi32(i32::from_le_bytes(*bytes))
}

/// Adds sum·factor to up to 16 coordinates.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn add(acc: &mut [f32], sum: __m512i, factor: f32) {
    let product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor));
    match acc.first_chunk_mut() {
        Some(acc) => store_ps(acc, _mm512_add_ps(load_ps(acc), product)),
        None => store_tail(acc, _mm512_add_ps(load_tail(acc), product)),
    }
}

/// Adds sum·factor to up to 16·N coordinates in order. Without branches if there are that many.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn add_sums<const N: usize>(acc: &mut [f32], sums: [__m512i; N], factor: f32) {
    match acc.as_chunks_mut().0.first_chunk_mut::<N>() {
        Some(acc) => {
            for (sum, acc) in sums.into_iter().zip(acc) {
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor));
                store_ps(acc, _mm512_add_ps(load_ps(acc), product));
            }
        }
        None => {
            for (sum, acc) in sums.into_iter().zip(acc.chunks_mut(16)) {
                add(acc, sum, factor);
            }
        }
    }
}

/// Brings sums into the order of the coordinates, and adds sum·factor.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn finish<const KIND: u8>(sums: &mut [Sums], factor: f32, acc: &mut [f32]) {
    for sums in sums.iter_mut() {
        *sums = in_order(*sums);
    }
    let add = |acc: &mut [f32], sum: __m512i| add(acc, sum, factor);
    if step(KIND) == 2 {
        for (pair, acc) in sums.as_chunks::<2>().0.iter().zip(acc.chunks_mut(128)) {
            for (i, acc) in acc.chunks_mut(32).enumerate() {
                let (x, y) = (pair[0][i], pair[1][i]);
                let index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                let further = _mm512_add_epi32(index, _mm512_set1_epi32(8));
                let (low, high) = acc.split_at_mut(acc.len().min(16));
                add(low, _mm512_permutex2var_epi32(x, index, y));
                if !high.is_empty() {
                    add(high, _mm512_permutex2var_epi32(x, further, y));
                }
            }
        }
    } else {
        for (sums, acc) in sums.iter().zip(acc.chunks_mut(64)) {
            for (sum, acc) in sums.iter().zip(acc.chunks_mut(16)) {
                add(acc, *sum);
            }
        }
    }
}
