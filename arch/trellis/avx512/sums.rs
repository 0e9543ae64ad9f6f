//! Weighted sums of trellis codes.
//!
//! Four rows are looked up together, with their bytes side by side. The integers of a run have the
//! order of these lookups. The sums in f32 are brought into the same order before the first page
//! of a call, and back after the last:
//!
//! ```text
//! sums     coordinates 0 1 2 3 …  ─►  order of the lookups  + page + page + …  ─►  0 1 2 3 …
//! ```

use super::lanes::{FOURS, Order};
use super::lookup::{GENERAL, Large, Lookup, for_kind, order};
use super::woven::{Woven, WovenChunk};
use super::{lanes, woven};
use crate::Rows;
use crate::codes::avx512::accumulate::{
    ByteWeights, RunScales, Sums, Tile, add_sums, byte_weights, configure, four, join, run_scales,
};
use crate::codes::avx512::sums::PASS;
use crate::codes::avx512::unpack::CHUNK;
use crate::codes::scalar::PAGE;
use crate::registers::amx::Tiles;
use crate::registers::avx512::{interleave, load, load_codes, load_ps, store_ps};
use crate::rows::{Block, Blocks, ROWS, each_page};
use crate::trellis::layout::TrellisCodebook;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

/// Implements `scalar::accumulate_trellis`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_trellis(
    tiles: Option<Tiles>,
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let Some(&Rows { dim, .. }) = pages.first() else { return };
    let sum = Sum { tiles, pages, scale, weights };
    if woven::takes(book, dim) {
        return sum.with(&Woven::new(book, dim), Some(&woven::ORDER), acc);
    }
    let (mut large, mut unpack) = (Large::EMPTY, None);
    let lookup = &Lookup::new(book, dim, 0, &mut large, &mut unpack);
    for_kind!(lookup, sum_of_kind(&sum, acc));
}

/// Adds pages of one kind. The general path has coordinates in order, because its last register may
/// be partly filled.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sum_of_kind<const KIND: usize, const RAW: usize>(lookup: &Lookup, sum: &Sum, acc: &mut [f32]) {
    let order = if KIND == GENERAL { None } else { Some(&lanes::ORDERS[order(KIND, RAW)]) };
    sum.with(&OfKind::<KIND, RAW> { lookup, in_order: load(&FOURS) }, order, acc);
}

/// Looks up the bytes of four rows, side by side.
trait FourRows {
    /// A chunk of a block.
    type Chunk<'a>;

    /// Prepares a chunk of a block.
    ///
    /// # Safety
    /// The CPU has AVX-512.
    unsafe fn chunk<'a>(&self, block: &Block<'a>, chunk: usize) -> Self::Chunk<'a>;

    /// Looks up rows `first` to `first + 4`.
    ///
    /// # Safety
    /// The CPU has AVX-512.
    unsafe fn look_up(&self, chunk: &Self::Chunk<'_>, first: usize) -> Sums;
}

impl FourRows for Woven {
    type Chunk<'a> = WovenChunk<'a>;

    #[inline(always)]
    unsafe fn chunk<'a>(&self, block: &Block<'a>, chunk: usize) -> WovenChunk<'a> {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { Self::chunk(self, block, chunk) }
    }

    #[inline(always)]
    unsafe fn look_up(&self, chunk: &WovenChunk, first: usize) -> Sums {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { self.fours(chunk, first) }
    }
}

/// A lookup of one kind.
struct OfKind<'a, const KIND: usize, const RAW: usize> {
    lookup: &'a Lookup<'a>,
    in_order: __m512i,
}

impl<const KIND: usize, const RAW: usize> FourRows for OfKind<'_, KIND, RAW> {
    type Chunk<'a> = (Block<'a>, usize);

    #[inline(always)]
    unsafe fn chunk<'a>(&self, block: &Block<'a>, chunk: usize) -> (Block<'a>, usize) {
        (*block, chunk)
    }

    #[inline(always)]
    unsafe fn look_up(&self, (block, chunk): &(Block, usize), first: usize) -> Sums {
        // SAFETY: the caller vouches for AVX-512.
        unsafe {
            let mut centroids = self.lookup.centroids::<KIND, RAW>(block, *chunk, first);
            if KIND == GENERAL {
                for centroids in &mut centroids {
                    *centroids = _mm512_permutexvar_epi8(self.in_order, *centroids);
                }
            }
            interleave(centroids)
        }
    }
}

/// The state with which pages are added.
struct Sum<'a> {
    tiles: Option<Tiles>,
    pages: &'a [Rows<'a>],
    scale: f32,
    weights: &'a [f32],
}

/// Sums a chunk of a run for one query.
type One<'a> = &'a dyn Fn(&Blocks, Range<usize>, usize, &ByteWeights) -> Sums;
/// Fills a tile with a chunk of a run.
type Fill<'a> = &'a dyn Fn(&Blocks, Range<usize>, usize, &mut Tile);

impl Sum<'_> {
    /// Adds all pages, with sums in this order.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn with<L: FourRows>(&self, lookup: &L, order: Option<&Order>, acc: &mut [f32]) {
        let one: One = &|blocks, run, chunk, ints| sum_one(lookup, blocks, run, chunk, ints);
        let fill: Fill = &|blocks, run, chunk, tile| fill(lookup, blocks, run, chunk, tile);
        if let Some(order) = order {
            reorder(acc, &order.there);
        }
        self.add(one, fill, acc);
        if let Some(order) = order {
            reorder(acc, &order.back);
        }
    }

    /// Adds all pages, run by run. It is compiled once for all kinds.
    #[inline(never)]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn add(&self, one: One, fill: Fill, acc: &mut [f32]) {
        let Some(&Rows { dim, .. }) = self.pages.first() else { return };
        let (queries, mut tile) = (acc.len() / dim, Tile::new());
        let configured = configure(self.tiles, queries);
        for (rows, weights) in each_page(self.pages, queries, self.weights) {
            let (count, mut padded) = (rows.count(), None);
            let blocks = &Blocks::new(rows, &mut padded);
            for run in (0..count).step_by(PAGE) {
                let run = run..count.min(run + PAGE);
                let mut scales = RunScales::EMPTY;
                let scales = run_scales(blocks, run.start / ROWS..run.end.div_ceil(ROWS), &mut scales);
                for (weights, acc) in weights.chunks(PASS * count).zip(acc.chunks_mut(PASS * dim)) {
                    let mut ints = [const { MaybeUninit::uninit() }; PASS];
                    let weights = weights.chunks_exact(count).map(|weights| &weights[run.clone()]);
                    let ints = byte_weights(weights, scales, &mut ints);
                    if let [ints @ ByteWeights { offset: 0, .. }] = ints {
                        // Lookups are used at once and never stored, which is a fifth faster.
                        for (chunk, acc) in acc.chunks_mut(CHUNK).enumerate() {
                            let sums = one(blocks, run.clone(), chunk, ints);
                            if ints.unit != 0.0 {
                                add_sums(acc, sums, ints.unit * self.scale);
                            }
                        }
                        continue;
                    }
                    for chunk in 0..dim.div_ceil(CHUNK) {
                        tile.clear();
                        fill(blocks, run.clone(), chunk, &mut tile);
                        tile.add(&configured, ints, self.scale, chunk * CHUNK, acc, dim);
                    }
                }
            }
        }
    }
}

/// Returns the sums of a chunk for one query without negative weights.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sum_one<L: FourRows>(
    lookup: &L,
    blocks: &Blocks,
    run: Range<usize>,
    chunk: usize,
    ints: &ByteWeights,
) -> Sums {
    let mut low = [_mm512_setzero_si512(); 4];
    let mut high = low;
    let weights = ints.low().as_chunks::<4>().0.iter().zip(ints.high().as_chunks::<4>().0);
    for (block, (l, h)) in (run.start / ROWS..).zip(weights) {
        if chunk == 0 {
            blocks.prefetch(block);
        }
        // SAFETY: this function enables AVX-512.
        let rows = unsafe { lookup.chunk(&blocks.get(block), chunk) };
        for i in 0..4 {
            // SAFETY: as above.
            let centroids = unsafe { lookup.look_up(&rows, 4 * i) };
            let (l, h) = (four(&l[i]), four(&h[i]));
            for k in 0..4 {
                low[k] = _mm512_dpbusd_epi32(low[k], l, centroids[k]);
                high[k] = _mm512_dpbusd_epi32(high[k], h, centroids[k]);
            }
        }
    }
    [join(low[0], high[0]), join(low[1], high[1]), join(low[2], high[2]), join(low[3], high[3])]
}

/// Looks up a chunk of a run.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn fill<L: FourRows>(lookup: &L, blocks: &Blocks, run: Range<usize>, chunk: usize, tile: &mut Tile) {
    for block in run.start / ROWS..run.end.div_ceil(ROWS) {
        if chunk == 0 {
            blocks.prefetch(block);
        }
        // SAFETY: this function enables AVX-512.
        let rows = unsafe { lookup.chunk(&blocks.get(block), chunk) };
        for i in 0..4 {
            // SAFETY: as above.
            tile.push(unsafe { lookup.look_up(&rows, 4 * i) });
        }
    }
}

/// Permutes each 64 sums: `index` says where each comes from.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn reorder(acc: &mut [f32], index: &[u8; CHUNK]) {
    for acc in acc.as_chunks_mut::<CHUNK>().0 {
        let mut old = [_mm512_setzero_ps(); 4];
        for (old, acc) in old.iter_mut().zip(acc.as_chunks().0) {
            *old = load_ps(acc);
        }
        for (acc, index) in acc.as_chunks_mut().0.iter_mut().zip(index.as_chunks::<16>().0) {
            let index = _mm512_cvtepu8_epi32(load_codes(index));
            let low = _mm512_permutex2var_ps(old[0], index, old[1]);
            let high = _mm512_permutex2var_ps(old[2], index, old[3]);
            let upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
            store_ps(acc, _mm512_mask_blend_ps(upper, low, high));
        }
    }
}
