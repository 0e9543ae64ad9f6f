//! From packed codes to centroids: codebooks that fit registers.

use super::sums::Columns;
use super::unpack::{CHUNK, Chunk, MAX_CHUNKS, Masked, Place, SHIFT, SPREAD, Unpack};
use crate::Packing;
use crate::registers::avx512::{IDENTITY, interleave, load, load_words, narrow, places, transpose};
use crate::rows::{Block, ROWS};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// A codebook of up to 16 bytes and the way to it: packed codes in, 64 centroids out.
pub(crate) struct Bytes {
    unpack: Unpack,
    table: __m512i,
    /// For a field of two codes, the upper one's centroid.
    upper: __m512i,
    kind: u8,
    /// Where a row has the raw bits of chunks, and of pairs of them where they come in pairs. The first `count` are set. (A call
    /// scores a page of some dozen rows; setting all would take longer than a row.)
    raw: [MaybeUninit<Place>; MAX_CHUNKS],
    /// The same where codes have digits. (Where not, to set these would take a fifth of a page's time: they are written in
    /// words and moved in registers, which waits for memory.)
    chunks: [MaybeUninit<Chunk>; MAX_CHUNKS],
    count: usize,
}

/// What a row looks like, and in which order its centroids come: for the one match outside of all loops.
pub(crate) mod kind {
    /// 4 bits: 64 bytes are 128 codes. The first register of a pair has the low halves (even coordinates), the second
    /// the high ones, and nothing needs to be spread.
    pub(crate) const NIBBLES: u8 = 0;
    /// 1 to 3 bits: a byte gets a field of two codes, which is an index of at most six bits, all that `vpermb` looks
    /// at; one table has the lower code's centroids, the other the upper one's. The order is that of nibbles.
    pub(crate) const PAIRS: u8 = 1;
    /// A raw plane and nothing else, coordinates in order.
    pub(crate) const RAW: u8 = 2;
    /// Digit groups of a byte.
    pub(crate) const BYTES: u8 = 3;
    /// Digit groups of a byte and no raw plane.
    pub(crate) const TERNARY: u8 = 4;
    /// Digit groups of seven bits.
    pub(crate) const SEVENS: u8 = 5;
}

impl Bytes {
    /// `flip` is xored onto each centroid: 0x80 adds 128, for unsigned operands.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(packing: Packing, dim: usize, centroids: &[i16], flip: u8) -> Self {
        let mut table = [0u8; 64];
        for (entry, centroid) in table[..16].iter_mut().zip(centroids) {
            *entry = *centroid as u8 ^ flip;
        }
        // Entry i is centroid i mod levels where that is a power of two, so `Unpack::raw` will do for an index.
        let period = if packing.radix() == 1 { packing.levels() as u8 } else { 16 };
        let level = _mm512_set1_epi8((period - 1) as i8);
        let index = _mm512_and_si512(load(&IDENTITY), level);
        let bits = _mm_cvtsi32_si128(packing.raw_bits() as i32);
        let upper_index = _mm512_and_si512(_mm512_srl_epi16(load(&IDENTITY), bits), level);
        // Pairs of registers, even if the last one is half empty: they take fewer instructions than one in order.
        let pairs = dim.div_ceil(2 * CHUNK) * 2 <= MAX_CHUNKS;
        let kind = match (packing.radix(), packing.raw_bits()) {
            (1, 4) if pairs => kind::NIBBLES,
            (1, 1..=3) if pairs => kind::PAIRS,
            (1, _) => kind::RAW,
            (3, 0) => kind::TERNARY,
            (3, _) => kind::BYTES,
            _ => kind::SEVENS,
        };
        let mut unpack = Unpack::new(packing, dim, 2);
        let mut raw = [const { MaybeUninit::uninit() }; MAX_CHUNKS];
        let mut chunks = [const { MaybeUninit::uninit() }; MAX_CHUNKS];
        let pair = step(kind) == 2;
        let count = if pair { dim.div_ceil(2 * CHUNK) * 2 } else { dim.div_ceil(CHUNK) };
        let bytes = 8 * packing.raw_bits() as usize;
        for (i, slot) in raw[..count].iter_mut().enumerate() {
            let start = unpack.raw_start + i * bytes;
            slot.write(Place::new(start, unpack.digit_start.min(start + step(kind) * bytes)));
        }
        if packing.radix() > 1 {
            for (i, slot) in chunks[..count].iter_mut().enumerate() {
                slot.write(unpack.chunk(i));
            }
        }
        if pair {
            let field = 2 * packing.raw_bits() as usize;
            (unpack.spread, unpack.shift) = (load(&SPREAD[field]), load(&SHIFT[field]));
        }
        let upper = _mm512_permutexvar_epi8(upper_index, load(&table));
        let table = _mm512_permutexvar_epi8(index, load(&table));
        Self { unpack, table, upper, kind, raw, chunks, count }
    }

    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    /// Registers a row.
    pub(crate) fn chunks(&self) -> usize {
        self.count
    }

    #[inline]
    fn raw(&self, c: usize) -> &Place {
        // SAFETY: `new` set the first `count`.
        unsafe { self.raw[..self.count][c].assume_init_ref() }
    }

    #[inline]
    fn chunk(&self, c: usize) -> &Chunk {
        assert!(self.unpack.packing.radix() > 1);
        // SAFETY: `new` set the first `count`, as there are digits.
        unsafe { self.chunks[..self.count][c].assume_init_ref() }
    }

    /// The centroids of four rows of a block, 64 from chunk `c` on; for kinds that come in pairs, those of the next
    /// chunk as well. Four rows hide the latencies of one another and leave registers for the caller; of sixteen,
    /// LLVM spills half. Loops here, since LLVM does not always inline a closure into `map`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn four<const KIND: u8>(&self, block: &Block, c: usize, first: usize) -> [[__m512i; 4]; 2] {
        let unpack = &self.unpack;
        let rows = [first, first + 1, first + 2, first + 3];
        let raw = Masked::new(block, self.raw(c));
        match KIND {
            kind::NIBBLES | kind::PAIRS => self.halves::<KIND>(self.four_fields::<KIND>(&raw, first)),
            kind::RAW => {
                let mut index = [_mm512_setzero_si512(); 4];
                for (index, r) in index.iter_mut().zip(rows) {
                    *index = unpack.raw(&raw, r);
                }
                [self.lookup(index), index]
            }
            _ => {
                let chunk = self.chunk(c);
                let digits = Masked::new(block, &chunk.digits);
                let mut index = [_mm512_setzero_si512(); 4];
                for (index, r) in index.iter_mut().zip(rows) {
                    *index = match KIND {
                        kind::TERNARY => unpack.digits::<8>(chunk, &digits, r),
                        kind::BYTES => unpack.mixed::<8>(chunk, &raw, &digits, r),
                        _ => unpack.mixed::<7>(chunk, &raw, &digits, r),
                    };
                }
                [self.lookup(index), index]
            }
        }
    }

    /// The same, the four rows' bytes side by side: see [`interleave`].
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn interleaved<const KIND: u8>(
        &self,
        block: &Block,
        c: usize,
        first: usize,
    ) -> [[__m512i; 4]; 2] {
        if step(KIND) == 2 {
            // Two codes to a byte: interleaved as they are, half the work.
            let raw = Masked::new(block, self.raw(c));
            return self.halves::<KIND>(interleave(self.four_fields::<KIND>(&raw, first)));
        }
        let [centroids, unused] = self.four::<KIND>(block, c, first);
        [interleave(centroids), unused]
    }

    /// The same with register k's coordinates 16·k …, for kinds that come in pairs over both chunks: what shuffles here is shared by
    /// all queries, whose sums then need none.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn ordered<const KIND: u8>(&self, block: &Block, c: usize, first: usize) -> [[__m512i; 4]; 2] {
        if step(KIND) == 2 {
            let (raw, order) = (Masked::new(block, self.raw(c)), load(&HALVES));
            let fields = permute(order, self.four_fields::<KIND>(&raw, first));
            let [even, odd] = self.halves::<KIND>(interleave(fields));
            let lower = |k| _mm512_unpacklo_epi32(even[k], odd[k]);
            let upper = |k| _mm512_unpackhi_epi32(even[k], odd[k]);
            return [[lower(0), upper(0), lower(1), upper(1)], [lower(2), upper(2), lower(3), upper(3)]];
        }
        let ([centroids, unused], order) = (self.four::<KIND>(block, c, first), load(&FOURS));
        [interleave(permute(order, centroids)), unused]
    }

    /// The centroids of sixteen rows, transposed: register j has bytes 4·j … of each row, a row a lane.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn transposed<const KIND: u8>(&self, block: &Block, c: usize) -> [[__m512i; ROWS]; 2] {
        let zero = [_mm512_setzero_si512(); ROWS];
        let mut rows = zero;
        if step(KIND) == 2 {
            // Two codes to a byte: transposed as they are, half the work.
            let raw = Masked::new(block, self.raw(c));
            for (r, row) in rows.iter_mut().enumerate() {
                *row = self.fields::<KIND>(&raw, r);
            }
            let (mut low, mut high) = (zero, zero);
            for ((fields, low), high) in transpose(&rows).iter().zip(&mut low).zip(&mut high) {
                [*low, *high] = self.half::<KIND>(*fields);
            }
            return [low, high];
        }
        for first in (0..ROWS).step_by(4) {
            rows[first..first + 4].copy_from_slice(&self.four::<KIND>(block, c, first)[0]);
        }
        [transpose(&rows), zero]
    }

    /// The same of as many chunks as `columns` has, each of which is written.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn columns<const KIND: u8>(&self, block: &Block, columns: &mut [MaybeUninit<Columns>]) {
        for (c, columns) in columns.chunks_mut(step(KIND)).enumerate() {
            for (columns, found) in columns.iter_mut().zip(self.transposed::<KIND>(block, c * step(KIND))) {
                columns.write(found);
            }
        }
    }

    /// A field of two codes in each byte of row `r`; above it, bits of other fields.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn fields<const KIND: u8>(&self, raw: &Masked, r: usize) -> __m512i {
        if KIND == kind::NIBBLES {
            return raw.load(r);
        }
        _mm512_multishift_epi64_epi8(
            self.unpack.shift,
            _mm512_permutexvar_epi8(self.unpack.spread, raw.load(r)),
        )
    }

    /// Those of four rows.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn four_fields<const KIND: u8>(&self, raw: &Masked, first: usize) -> [__m512i; 4] {
        let mut fields = [_mm512_setzero_si512(); 4];
        for (i, fields) in fields.iter_mut().enumerate() {
            *fields = self.fields::<KIND>(raw, first + i);
        }
        fields
    }

    /// The centroids of the lower and of the upper codes. Tables are repeated, so no index needs a mask.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn half<const KIND: u8>(&self, fields: __m512i) -> [__m512i; 2] {
        let lower = _mm512_permutexvar_epi8(fields, self.table);
        let upper = if KIND == kind::NIBBLES {
            _mm512_permutexvar_epi8(_mm512_srli_epi16::<4>(fields), self.table)
        } else {
            _mm512_permutexvar_epi8(fields, self.upper)
        };
        [lower, upper]
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn halves<const KIND: u8>(&self, fields: [__m512i; 4]) -> [[__m512i; 4]; 2] {
        let mut halves = [fields; 2];
        for (i, fields) in fields.into_iter().enumerate() {
            [halves[0][i], halves[1][i]] = self.half::<KIND>(fields);
        }
        halves
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn lookup(&self, index: [__m512i; 4]) -> [__m512i; 4] {
        let mut found = index;
        for found in &mut found {
            *found = _mm512_permutexvar_epi8(*found, self.table);
        }
        found
    }
}

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn permute(order: __m512i, mut four: [__m512i; 4]) -> [__m512i; 4] {
    for x in &mut four {
        *x = _mm512_permutexvar_epi8(order, *x);
    }
    four
}

/// The byte that [`interleave`] is to find in each place, so that its registers have them in order.
pub(crate) static FOURS: [u8; 64] = places!(i => 16 * (i / 4 % 4) + 4 * (i / 16) + i % 4);

/// The same for bytes of two coordinates, whose registers are then mixed by dwords.
static HALVES: [u8; 64] = places!(i => 16 * (i / 4 % 4) + 2 * (i / 16) + i % 2 + 8 * (i % 4 / 2));

/// Chunks that a kind of row gives at a time.
pub(crate) const fn step(kind: u8) -> usize {
    if kind == kind::NIBBLES || kind == kind::PAIRS { 2 } else { 1 }
}

/// A codebook of up to 256 words.
///
/// Its low and its high bytes are looked up apart, 64 codes at a time, and `vpunpck` joins them: for 256 centroids
/// that takes half the look-ups of a table of words.
pub(crate) struct Words {
    planes: [[__m512i; 4]; 2],
    len: usize,
    /// Where centroids are the codes themselves, less half their number or nothing, that: nothing is looked up then.
    pub(crate) offset: Option<u8>,
}

impl Words {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(centroids: &[i16]) -> Self {
        let mut planes = [[_mm512_setzero_si512(); 4]; 2];
        for (i, chunk) in centroids.chunks(64).enumerate() {
            let (low, high) = chunk.split_at(chunk.len().min(32));
            let (low, high) = (load_words(low), load_words(high));
            planes[0][i] = narrow(low, high);
            planes[1][i] = narrow(_mm512_srli_epi16::<8>(low), _mm512_srli_epi16::<8>(high));
        }
        let is_code_less =
            |offset: i16| centroids.iter().zip(0..).all(|(centroid, code)| *centroid == code - offset);
        let offset = [0, centroids.len() as i16 / 2].into_iter().find(|offset| is_code_less(*offset));
        Self { planes, len: centroids.len(), offset: offset.map(|offset| offset as u8) }
    }

    /// The centroids of 64 codes below the length, in order; with `OFFSET`, where there is one.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn lookup<const OFFSET: bool>(&self, codes: __m512i) -> [__m512i; 2] {
        // `vpunpck` works in lanes of 128 bits; with the quadwords dealt out first, its results are in order.
        let codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
        if OFFSET {
            let (zero, offset) = (_mm512_setzero_si512(), _mm512_set1_epi16(self.offset.unwrap_or(0).into()));
            let words = [_mm512_unpacklo_epi8(codes, zero), _mm512_unpackhi_epi8(codes, zero)];
            return [_mm512_sub_epi16(words[0], offset), _mm512_sub_epi16(words[1], offset)];
        }
        let bytes = |t: &[__m512i; 4]| {
            if self.len <= 64 {
                return _mm512_permutexvar_epi8(codes, t[0]);
            }
            let lower = _mm512_permutex2var_epi8(t[0], codes, t[1]);
            if self.len <= 128 {
                return lower;
            }
            let upper = _mm512_permutex2var_epi8(t[2], codes, t[3]);
            _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), lower, upper)
        };
        let (low, high) = (bytes(&self.planes[0]), bytes(&self.planes[1]));
        [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
    }
}
