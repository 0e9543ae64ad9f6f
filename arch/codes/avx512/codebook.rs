//! From packed codes to centroids, for codebooks that fit registers.

use super::sums::Columns;
use super::unpack::{CHUNK, Chunk, MAX_CHUNKS, Masked, Place, SHIFT, SPREAD, Unpack};
use crate::Packing;
use crate::registers::avx512::{IDENTITY, interleave, load, load_words, narrow, places, transpose};
use crate::rows::{Block, ROWS};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// A codebook of up to 16 bytes, and the constants that unpack its codes. Packed codes go in, 64
/// centroids come out.
pub(crate) struct Bytes {
    unpack: Unpack,
    /// The centroids, repeated as often as they fit.
    table: __m512i,
    /// For a field of two codes, the centroid of the upper code.
    upper: __m512i,
    kind: u8,
    /// For each chunk, or pair of chunks, where its raw bits lie in a row. The first `count` are
    /// set. Setting all would take longer than scoring a row, and a call scores only some dozen
    /// rows.
    raw: [MaybeUninit<Place>; MAX_CHUNKS],
    /// The places of the digits of each chunk. They are set only if codes have digits: setting them always costs
    /// a fifth of a page's time. Words are stored one by one and loaded as registers, and such loads
    /// wait for the stores.
    chunks: [MaybeUninit<Chunk>; MAX_CHUNKS],
    count: usize,
}

/// The forms of a row, and the order in which its centroids come. A `match` outside of all loops
/// chooses one.
pub(crate) mod kind {
    /// 4 bits: 64 bytes are 128 codes. The first register of a pair takes the low halves (even
    /// coordinates), the second the high halves (odd ones). No bytes have to be moved.
    pub(crate) const NIBBLES: u8 = 0;
    /// 1 to 3 bits: each byte gets a field of two codes. It is an index of at most six bits, all
    /// that `vpermb` uses. One table has the centroid of the lower code, another that of the upper
    /// code. The order is that of nibbles.
    pub(crate) const PAIRS: u8 = 1;
    /// Only a raw plane, coordinates in order.
    pub(crate) const RAW: u8 = 2;
    /// Digit groups of a byte.
    pub(crate) const BYTES: u8 = 3;
    /// Digit groups of a byte, and no raw plane.
    pub(crate) const TERNARY: u8 = 4;
    /// Digit groups of seven bits.
    pub(crate) const SEVENS: u8 = 5;
}

impl Bytes {
    /// Prepares a codebook. `flip` is xored onto each centroid: 0x80 adds 128, which makes operands
    /// unsigned.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(packing: Packing, dim: usize, centroids: &[i16], flip: u8) -> Self {
        let mut table = [0u8; 64];
        for (entry, centroid) in table[..16].iter_mut().zip(centroids) {
            *entry = *centroid as u8 ^ flip;
        }
        // If the number of levels is a power of two, entry i is centroid i mod levels. Then
        // `Unpack::raw` is a valid index.
        let period = if packing.radix() == 1 { packing.levels() as u8 } else { 16 };
        let level = _mm512_set1_epi8((period - 1) as i8);
        let index = _mm512_and_si512(load(&IDENTITY), level);
        let bits = _mm_cvtsi32_si128(packing.raw_bits() as i32);
        let upper_index = _mm512_and_si512(_mm512_srl_epi16(load(&IDENTITY), bits), level);
        // Registers come in pairs, even if the last one is half empty: pairs take fewer
        // instructions than one in order.
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

    /// Returns the form of a row, of [`kind`].
    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    /// Returns the number of registers of a row.
    pub(crate) fn chunks(&self) -> usize {
        self.count
    }

    /// Returns where the raw bits of a chunk lie.
    #[inline]
    fn raw(&self, c: usize) -> &Place {
        // SAFETY: `new` set the first `count`.
        unsafe { self.raw[..self.count][c].assume_init_ref() }
    }

    /// Returns where the digits of a chunk lie.
    #[inline]
    fn chunk(&self, c: usize) -> &Chunk {
        assert!(self.unpack.packing.radix() > 1);
        // SAFETY: `new` set the first `count` if the packing has digits.
        unsafe { self.chunks[..self.count][c].assume_init_ref() }
    }

    /// Returns the centroids of four rows of a block, 64 from chunk `c` on. Kinds that come in
    /// pairs return those of the next chunk too.
    ///
    /// Four rows hide each other's latency, and leave registers for the caller. With sixteen rows
    /// LLVM spills half of them. Here are loops, because LLVM does not always inline a closure into
    /// `map`.
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

    /// Returns the same with the bytes of the four rows side by side, as [`interleave`] orders
    /// them.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn interleaved<const KIND: u8>(
        &self,
        block: &Block,
        c: usize,
        first: usize,
    ) -> [[__m512i; 4]; 2] {
        if step(KIND) == 2 {
            // Two codes in a byte are interleaved before they are looked up: half the work.
            let raw = Masked::new(block, self.raw(c));
            return self.halves::<KIND>(interleave(self.four_fields::<KIND>(&raw, first)));
        }
        let [centroids, unused] = self.four::<KIND>(block, c, first);
        [interleave(centroids), unused]
    }

    /// Returns the same in order: register k has the coordinates from 16·k on, over both chunks for
    /// kinds that come in pairs. All queries share these shuffles, and then need none for their
    /// sums.
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

    /// Returns the centroids of sixteen rows, transposed: register j has bytes 4·j … of each row, a
    /// row a lane.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn transposed<const KIND: u8>(&self, block: &Block, c: usize) -> [[__m512i; ROWS]; 2] {
        let zero = [_mm512_setzero_si512(); ROWS];
        let mut rows = zero;
        if step(KIND) == 2 {
            // Two codes in a byte are transposed before they are looked up: half the work.
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

    /// Writes the transposed centroids of as many chunks as `columns` has.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn columns<const KIND: u8>(&self, block: &Block, columns: &mut [MaybeUninit<Columns>]) {
        for (c, columns) in columns.chunks_mut(step(KIND)).enumerate() {
            for (columns, found) in columns.iter_mut().zip(self.transposed::<KIND>(block, c * step(KIND))) {
                columns.write(found);
            }
        }
    }

    /// Returns a field of two codes in each byte of row `r`. Above it are bits of other fields.
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

    /// Returns the fields of four rows.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn four_fields<const KIND: u8>(&self, raw: &Masked, first: usize) -> [__m512i; 4] {
        let mut fields = [_mm512_setzero_si512(); 4];
        for (i, fields) in fields.iter_mut().enumerate() {
            *fields = self.fields::<KIND>(raw, first + i);
        }
        fields
    }

    /// Looks up the centroids of the lower and of the upper codes. Tables are repeated, so no index
    /// needs a mask.
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

    /// Looks up the fields of four rows.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn halves<const KIND: u8>(&self, fields: [__m512i; 4]) -> [[__m512i; 4]; 2] {
        let mut halves = [fields; 2];
        for (i, fields) in fields.into_iter().enumerate() {
            [halves[0][i], halves[1][i]] = self.half::<KIND>(fields);
        }
        halves
    }

    /// Looks up the codes of four rows.
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

/// Permutes the bytes of four rows.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn permute(order: __m512i, mut four: [__m512i; 4]) -> [__m512i; 4] {
    for x in &mut four {
        *x = _mm512_permutexvar_epi8(order, *x);
    }
    four
}

/// For each position, the byte that [`interleave`] must find there so that its registers are in
/// order.
pub(crate) static FOURS: [u8; 64] = places!(i => 16 * (i / 4 % 4) + 4 * (i / 16) + i % 4);

/// The same for bytes of two coordinates. Their registers are then mixed by dwords.
static HALVES: [u8; 64] = places!(i => 16 * (i / 4 % 4) + 2 * (i / 16) + i % 2 + 8 * (i % 4 / 2));

/// Returns how many chunks a kind of row returns at a time.
pub(crate) const fn step(kind: u8) -> usize {
    if kind == kind::NIBBLES || kind == kind::PAIRS { 2 } else { 1 }
}

/// A codebook of up to 256 words.
///
/// Low and high bytes are looked up separately, 64 codes at a time, and `vpunpck` joins them. With
/// 256 centroids this takes half as many lookups as a table of words.
pub(crate) struct Words {
    planes: [[__m512i; 4]; 2],
    len: usize,
    /// If the centroids are the codes minus a constant (0 or half their number), that constant.
    /// Then nothing is looked up.
    pub(crate) offset: Option<u8>,
}

impl Words {
    /// Prepares a codebook.
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
        let are_codes_minus =
            |offset: i16| centroids.iter().zip(0..).all(|(centroid, code)| *centroid == code - offset);
        let offset = [0, centroids.len() as i16 / 2].into_iter().find(|offset| are_codes_minus(*offset));
        Self { planes, len: centroids.len(), offset: offset.map(|offset| offset as u8) }
    }

    /// Returns the centroids of 64 codes below the length, in order. `OFFSET` says that centroids
    /// are codes minus the offset.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn lookup<const OFFSET: bool>(&self, codes: __m512i) -> [__m512i; 2] {
        // `vpunpck` works in lanes of 128 bits. With the quadwords distributed first, its results
        // are in order.
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
