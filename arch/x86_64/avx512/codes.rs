//! From packed codes to codes and centroids, 64 at a time.

use super::{load, load_bytes};
use crate::{MAX_DIM, Packing, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use core::ops::Range;

/// Codes in a register of bytes.
pub(super) const CHUNK: usize = 64;

/// Chunks of the widest vector.
pub(super) const MAX_CHUNKS: usize = MAX_DIM / CHUNK;

/// Takes 64 codes at a time from rows of one shape.
///
/// For the raw plane, codes of b bits: eight codes are exactly b bytes. `vpermb` puts b bytes into each quadword and
/// `vpmultishiftqb` takes the byte at bit b·j of it for code j. Its upper bits belong to the next codes.
pub(super) struct Unpack {
    packing: Packing,
    /// Where the planes start in a row, and the digit plane, and where that ends.
    raw_start: usize,
    digit_start: usize,
    end: usize,
    spread: __m512i,
    shift: __m512i,
    /// Bits of a byte that come from the raw plane.
    raw_mask: __m512i,
    /// Valid bits of the digit plane's last byte.
    last_mask: u8,
}

/// The bytes of a row that hold 64 codes. Loops run over the rows of a chunk, so all this stays in registers.
pub(super) struct Chunk {
    raw: Range<usize>,
    digits: Range<usize>,
    /// The digit plane's last byte if it is among `digits`.
    last: u32,
    table: usize,
}

impl Unpack {
    /// The planes start at `head` in a row.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new(packing: Packing, dim: usize, head: usize) -> Self {
        let bits = packing.raw_bits() as usize;
        let (group, width) = packing.digit_group();
        let digit_bits = match dim % group {
            0 => dim / group * width as usize,
            rest => dim / group * width as usize + packing.short_group_bits(rest) as usize,
        };
        let digit_bytes = digit_bits.div_ceil(8);
        let digit_start = head + packing.raw_bytes(dim);
        Self {
            packing,
            raw_start: head,
            digit_start,
            end: digit_start + digit_bytes,
            spread: load(&SPREAD[bits]),
            shift: load(&SHIFT[bits]),
            raw_mask: _mm512_set1_epi8(((1u32 << bits) - 1) as i8),
            last_mask: 0xff >> (8 * digit_bytes - digit_bits),
        }
    }

    /// Codes 64·`chunk` … of a row.
    #[inline]
    pub(super) fn chunk(&self, chunk: usize) -> Chunk {
        let step = 8 * self.packing.raw_bits() as usize;
        let start = self.raw_start + chunk * step;
        let raw = start..self.digit_start.min(start + step);
        if self.packing.radix() == 1 {
            return Chunk { raw, digits: 0..0, last: 0, table: 0 };
        }
        let start = self.digit_start + self.tables()[chunk].first;
        let last = self.end - 1 - start;
        Chunk {
            raw,
            digits: start..self.end.min(start + 32),
            last: if last < 32 { 1 << last } else { 0 },
            table: chunk,
        }
    }

    #[inline]
    fn tables(&self) -> &'static [DigitChunk; MAX_CHUNKS] {
        match self.packing.radix() {
            3 => &DIGITS[0],
            5 => &DIGITS[1],
            _ => &DIGITS[2],
        }
    }

    /// 64 codes; beyond the end of a row anything below `levels`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn codes(&self, row: &[u8], chunk: &Chunk) -> __m512i {
        match self.packing.radix() {
            1 => _mm512_and_si512(self.raw(row, chunk), self.raw_mask),
            3 => self.mixed::<8>(row, chunk),
            _ => self.mixed::<7>(row, chunk),
        }
    }

    /// The raw plane's bits of 64 codes; above them, bits of their neighbours.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn raw(&self, row: &[u8], chunk: &Chunk) -> __m512i {
        let bytes = load_bytes(&row[chunk.raw.clone()]);
        _mm512_multishift_epi64_epi8(self.shift, _mm512_permutexvar_epi8(self.spread, bytes))
    }

    /// Codes of radix · 2ⁿ levels whose digit groups have `WIDTH` bits.
    ///
    /// A digit comes without a division: v·⌈2¹⁶/rⁿ⌉ is the fraction 0.d₍ₙ₋₁₎…d₀ in base r with 16 bits, exact enough for n
    /// digits; a multiplication by r^(n-1-k) modulo 2¹⁶ shifts digit k behind the point (both are one constant), and
    /// one by r · 2^raw takes it, already in its place above the raw bits.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn mixed<const WIDTH: u32>(&self, row: &[u8], chunk: &Chunk) -> __m512i {
        let table = &self.tables()[chunk.table];
        let bytes = _mm512_castsi512_si256(load_bytes(&row[chunk.digits.clone()]));
        let last = (row[self.end - 1] & self.last_mask) as i8;
        let bytes = _mm512_castsi256_si512(_mm256_mask_set1_epi8(bytes, chunk.last, last));
        let take = _mm512_set1_epi16((self.packing.radix() << self.packing.raw_bits()) as i16);
        let mut words = [_mm512_setzero_si512(); 2];
        for (half, words) in words.iter_mut().enumerate() {
            let spread = load(&table.spread[half]);
            let group = if WIDTH == 8 {
                _mm512_maskz_permutexvar_epi8(0x5555_5555_5555_5555, spread, bytes)
            } else {
                let quads = _mm512_permutexvar_epi8(spread, bytes);
                let shifted = _mm512_multishift_epi64_epi8(load(&table.shift[half]), quads);
                _mm512_and_si512(shifted, _mm512_set1_epi16(0x7f))
            };
            let fraction = _mm512_mullo_epi16(group, load(&table.factor[half]));
            *words = _mm512_mulhi_epu16(fraction, take);
        }
        let digits = _mm512_packus_epi16(words[0], words[1]);
        if self.packing.raw_bits() == 0 {
            return digits;
        }
        // raw_mask ? raw : digits
        _mm512_ternarylogic_epi64::<0xca>(self.raw_mask, self.raw(row, chunk), digits)
    }
}

/// The quadwords' bytes for codes of 0 to 8 bits.
static SPREAD: [[u8; 64]; 9] = {
    let mut table = [[0; 64]; 9];
    let mut bits = 0;
    while bits < 9 {
        let mut i = 0;
        while i < 64 {
            table[bits][i] = (bits * (i / 8) + i % 8) as u8 & 63;
            i += 1;
        }
        bits += 1;
    }
    table
};

/// The bit offsets of the eight codes in their quadword.
static SHIFT: [[u8; 64]; 9] = {
    let mut table = [[0; 64]; 9];
    let mut bits = 0;
    while bits < 9 {
        let mut i = 0;
        while i < 64 {
            table[bits][i] = (bits * (i % 8)) as u8;
            i += 1;
        }
        bits += 1;
    }
    table
};

/// Where the digits of 64 codes are, in two registers of words that `vpackuswb` brings into natural order.
#[derive(Clone, Copy)]
struct DigitChunk {
    /// First byte of the plane that this chunk needs.
    first: usize,
    spread: [[u8; 64]; 2],
    shift: [[u8; 64]; 2],
    factor: [[u16; 32]; 2],
}

const fn digit_chunk(packing: Packing, chunk: usize) -> DigitChunk {
    let radix = packing.radix();
    let (group, width) = packing.digit_group();
    let width = width as usize;
    let first = chunk * CHUNK / group * width / 8;
    let mut table = DigitChunk { first, spread: [[0; 64]; 2], shift: [[0; 64]; 2], factor: [[0; 32]; 2] };
    let mut i = 0;
    while i < CHUNK {
        // packus: words of lane l of the first register, then of the second.
        let (half, word) = (i / 8 % 2, i / 16 * 8 + i % 8);
        let code = chunk * CHUNK + i;
        let bit = code / group * width - 8 * first;
        // Four codes share a quadword; it starts with the first one's byte.
        let first_of_four = (code - code % 4) / group * width - 8 * first;
        let base = first_of_four / 8;
        if width == 8 {
            table.spread[half][2 * word] = (bit / 8) as u8;
        } else {
            let mut byte = 0;
            while byte < 8 {
                table.spread[half][word / 4 * 8 + byte] = (base + byte) as u8;
                byte += 1;
            }
            table.shift[half][2 * word] = (bit - 8 * base) as u8;
        }
        let unit = 65536u32.div_ceil(radix.pow(group as u32));
        table.factor[half][word] = (unit * radix.pow((group - 1 - code % group) as u32)) as u16;
        i += 1;
    }
    table
}

const fn digit_chunks(levels: usize) -> [DigitChunk; MAX_CHUNKS] {
    let Some(packing) = Packing::for_levels(levels) else { unreachable!() };
    let mut chunks = [digit_chunk(packing, 0); MAX_CHUNKS];
    let mut chunk = 1;
    while chunk < MAX_CHUNKS {
        chunks[chunk] = digit_chunk(packing, chunk);
        chunk += 1;
    }
    chunks
}

/// Radix 3, 5 and 9.
static DIGITS: [[DigitChunk; MAX_CHUNKS]; 3] = [digit_chunks(3), digit_chunks(5), digit_chunks(9)];

/// 0, 1, 2 …
static IDENTITY: [u8; 64] = {
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        table[i] = i as u8;
        i += 1;
    }
    table
};

/// A codebook of up to 16 bytes and the way to it: packed codes in, 64 centroids out.
pub(super) struct Bytes {
    unpack: Unpack,
    table: __m512i,
    order: Order,
}

/// How the bytes of 64 lanes relate to coordinates.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    Natural,
    /// 128 codes of 4 bits fill a register; the first of a pair of chunks has its low halves (even coordinates), the
    /// second its high ones. No shuffle is needed then.
    Nibbles,
}

impl Bytes {
    /// `flip` is xored onto each centroid: 0x80 adds 128, for unsigned operands.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new(packing: Packing, dim: usize, centroids: &[i16], flip: u8) -> Self {
        let mut table = [0u8; 64];
        for (entry, centroid) in table[..16].iter_mut().zip(centroids) {
            *entry = *centroid as u8 ^ flip;
        }
        // Entry i is centroid i mod levels where that is a power of two, so `Unpack::raw` will do for an index.
        let period = if packing.radix() == 1 { packing.levels() as u8 } else { 16 };
        let index = _mm512_and_si512(load(&IDENTITY), _mm512_set1_epi8((period - 1) as i8));
        let order = if packing == Packing::bits(4) && (dim - 1) % 128 >= CHUNK {
            Order::Nibbles
        } else {
            Order::Natural
        };
        Self {
            unpack: Unpack::new(packing, dim, 2),
            table: _mm512_permutexvar_epi8(index, load(&table)),
            order,
        }
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    /// Looks up all codes of up to 16 rows: `out[chunk][row]`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn expand(&self, rows: &Rows, out: &mut [[MaybeUninit<__m512i>; 16]]) {
        let unpack = &self.unpack;
        let lookup = |index| _mm512_permutexvar_epi8(index, self.table);
        if self.order == Order::Nibbles {
            for (pair, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let bytes = unpack.raw_start + 64 * pair..unpack.end.min(unpack.raw_start + 64 * (pair + 1));
                for (r, row) in rows.iter().take(16).enumerate() {
                    let codes = load_bytes(&row[bytes.clone()]);
                    out[0][r].write(lookup(codes));
                    out[1][r].write(lookup(_mm512_srli_epi16::<4>(codes)));
                }
            }
            return;
        }
        for (chunk, out) in out.iter_mut().enumerate() {
            let chunk = unpack.chunk(chunk);
            let rows = rows.iter().zip(out);
            match unpack.packing.radix() {
                1 => rows.for_each(|(row, out)| _ = out.write(lookup(unpack.raw(row, &chunk)))),
                3 => rows.for_each(|(row, out)| _ = out.write(lookup(unpack.mixed::<8>(row, &chunk)))),
                _ => rows.for_each(|(row, out)| _ = out.write(lookup(unpack.mixed::<7>(row, &chunk)))),
            }
        }
    }
}
