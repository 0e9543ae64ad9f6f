//! Blocks of 32 queries with AMX's tiles. The operands of `vpdpbusd` already have the layout of
//! tiles: four bytes of a row (or of four rows) side by side.

use super::accumulate::{ByteWeights, Tile, add_sums, join};
use super::sums::{Columns, QUERIES, finish};
use super::unpack::{CHUNK, MAX_CHUNKS};
use crate::codes::scalar::PAGE;
use crate::registers::amx::{Configured, Pairs, Products, TILE_ROWS};
use crate::registers::avx512::{scales, store_first, store_ps};
use crate::rows::{Block, Blocks, ROWS};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Two tiles have a row for each query, and a block has as many rows as a tile.
const _: () = assert!(QUERIES == 2 * TILE_ROWS && ROWS == TILE_ROWS);

/// Memory for products.
const NONE: Products = [const { MaybeUninit::uninit() }; ROWS];

/// Queries in the form in which tiles multiply them with [`Columns`].
pub(crate) struct TileQueries {
    /// A register for each chunk and each query. The first `len` of the first `chunks` are set.
    values: [[MaybeUninit<__m512i>; QUERIES]; MAX_CHUNKS],
    /// The amount that the offset of the centroids adds to each sum, and the factor. Set for the first `len`.
    ends: [MaybeUninit<(__m512i, __m512)>; QUERIES],
    len: usize,
    chunks: usize,
}

impl TileQueries {
    /// Creates an empty list for rows of `chunks` chunks.
    #[inline]
    pub(crate) fn new(chunks: usize) -> Self {
        assert!((1..=MAX_CHUNKS).contains(&chunks));
        Self {
            values: [const { [const { MaybeUninit::uninit() }; QUERIES] }; MAX_CHUNKS],
            ends: [const { MaybeUninit::uninit() }; QUERIES],
            len: 0,
            chunks,
        }
    }

    /// Appends a query.
    #[inline]
    pub(crate) fn push(&mut self, values: &[__m512i; MAX_CHUNKS], excess: __m512i, factor: __m512) {
        for (slots, values) in self.values[..self.chunks].iter_mut().zip(values) {
            slots[self.len].write(*values);
        }
        self.ends[self.len].write((excess, factor));
        self.len += 1;
    }

    /// Scores `count` rows, laid out \[query]\[row]. `decode` sets the columns of a block, as many
    /// as there are chunks.
    ///
    /// # Safety
    /// `decode` must set all columns that it receives.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) unsafe fn score(
        &self,
        configured: &Configured,
        blocks: &Blocks,
        count: usize,
        scores: &mut [f32],
        decode: &dyn Fn(&Block, &mut [MaybeUninit<Columns>]),
    ) {
        assert_eq!(self.len, QUERIES);
        let mut columns = [const { MaybeUninit::<Columns>::uninit() }; 2 * MAX_CHUNKS];
        let columns = &mut columns[..2 * self.chunks];
        let (mut sums, last) = ([NONE; 2], count.div_ceil(ROWS).div_ceil(2));
        // Sums are stored while the next blocks are looked up.
        for pair in 0..=last {
            if pair < last {
                for (block, columns) in (2 * pair..).zip(columns.chunks_exact_mut(self.chunks)) {
                    // Behind an odd last block, the block repeats.
                    let block = if block * ROWS < count { block } else { block - 1 };
                    blocks.prefetch(block);
                    decode(&blocks.get(block), columns);
                }
                let (tile, queries) = (size_of::<Columns>(), size_of::<[__m512i; QUERIES]>());
                let a = Pairs {
                    at: self.values.as_ptr().cast(),
                    second: queries / 2,
                    stride: CHUNK,
                    step: queries,
                };
                let b = Pairs {
                    at: columns.as_ptr().cast(),
                    second: self.chunks * tile,
                    stride: CHUNK,
                    step: tile,
                };
                // SAFETY: every query was pushed with `chunks` chunks, and the caller vouches for
                // `decode`.
                unsafe { configured.signed(a, b, self.chunks, &mut sums[pair % 2]) }
            }
            if pair > 0 {
                self.end(&sums[(pair - 1) % 2], blocks, 2 * pair - 2, count, scores);
            }
        }
    }

    /// Writes the scores of a block and the next one from their sums.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn end(&self, sums: &Products, blocks: &Blocks, block: usize, count: usize, scores: &mut [f32]) {
        let rows = block * ROWS..count.min((block + 2) * ROWS);
        let next = if rows.len() > ROWS { block + 1 } else { block };
        let scales = [scales(&blocks.get(block)), scales(&blocks.get(next))];
        let mut at = rows.start;
        for which in 0..2 {
            for (sums, end) in sums.iter().zip(&self.ends[which * ROWS..]) {
                // SAFETY: `score` stored tiles there, and all queries were pushed.
                let (sums, (excess, factor)) = unsafe { (sums.assume_init_ref()[which], end.assume_init()) };
                // Not by `map`, which LLVM does not inline here.
                let end = |sums, scales| finish(sums, excess, factor, scales);
                let found = [end(sums[0], scales[0]), end(sums[1], scales[1])];
                let scores = scores.get_mut(at..at + rows.len()).unwrap_or_default();
                at += count;
                match scores.first_chunk_mut::<{ 2 * ROWS }>() {
                    Some(scores) => {
                        for (scores, found) in scores.as_chunks_mut().0.iter_mut().zip(found) {
                            store_ps(scores, found);
                        }
                    }
                    None => {
                        for (scores, found) in scores.chunks_mut(ROWS).zip(found) {
                            store_first(found, scores);
                        }
                    }
                }
            }
        }
    }
}

impl Tile {
    /// Adds the sums of [`QUERIES`] queries, as [`Tile::add`] does.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn add_tiles(
        &mut self,
        configured: &Configured,
        ints: &[ByteWeights; QUERIES],
        scale: f32,
        first: usize,
        acc: &mut [f32],
        width: usize,
    ) {
        let plain = self.plain(ints);
        let (fours, count) = self.filled();
        assert!(ints.iter().all(|ints| ints.tiles() == count));
        let mut sums = [NONE; 2];
        // Sixteen queries and 32 coordinates at a time. Sums are stored while the next are
        // multiplied.
        for part in 0..=4 {
            if part < 4 {
                let (low, stride) = (ints[part / 2 * ROWS..].as_ptr().cast(), size_of::<ByteWeights>());
                let a = Pairs { at: low, second: PAGE, stride, step: CHUNK };
                let b = Pairs {
                    at: fours[part % 2 * 2..].as_ptr().cast(),
                    second: 64,
                    stride: 256,
                    step: 16 * 256,
                };
                // SAFETY: `set` has set the bytes of all weights, and `filled` those of the rows,
                // both in whole tiles.
                unsafe { configured.unsigned(a, b, count, &mut sums[part % 2]) }
            }
            let Some(part) = part.checked_sub(1) else { continue };
            let (queries, k) = (part / 2 * ROWS, part % 2 * 2);
            let from = first + 16 * k;
            let wide = width.saturating_sub(from).min(2 * ROWS);
            let mut at = queries * width + from;
            for (sums, ints) in sums[part % 2].iter().zip(&ints[queries..]) {
                let acc = acc.get_mut(at..at + wide).unwrap_or_default();
                at += width;
                if ints.unit == 0.0 {
                    continue;
                }
                // SAFETY: the products were stored there in the pass before.
                let [low, high] = unsafe { sums.assume_init_ref() };
                let mut sums = [join(low[0], high[0]), join(low[1], high[1])];
                ints.without_offset(&mut sums, &plain[k..k + 2]);
                add_sums(acc, sums, ints.unit * scale);
            }
        }
    }
}
