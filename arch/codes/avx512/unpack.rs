//! From packed codes to bytes, 64 codes at a time, with AVX-512.

use crate::registers::avx512::{load, mulhi, places, table};
use crate::rows::{Block, Window};
use crate::{MAX_DIM, Packing};
use core::arch::x86_64::*;

/// Codes in a register of bytes.
pub(crate) const CHUNK: usize = 64;

/// A range of up to 64 bytes in a row.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    start: usize,
    end: usize,
    /// A bit for each byte from `start` to `end`.
    mask: u64,
}

impl Place {
    /// Creates a range of at most 64 bytes. It is empty if `end` comes before `start`.
    pub(crate) const fn new(start: usize, end: usize) -> Self {
        let length = end.saturating_sub(start);
        match length {
            0 => Self { start: 0, end: 0, mask: 0 },
            1..64 => Self { start, end, mask: (1 << length) - 1 },
            _ => Self { start, end: start + 64, mask: !0 },
        }
    }
}

/// The same range in each row of a block.
pub(crate) struct Masked<'a> {
    window: Window<'a>,
    mask: u64,
}

impl<'a> Masked<'a> {
    /// Checks the range once for all rows of the block.
    #[inline]
    pub(crate) fn new(block: &Block<'a>, place: &Place) -> Self {
        let window = block.window(place.start, place.end);
        Self { window, mask: place.mask }
    }

    /// Loads the bytes, with zeros behind them.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn load(&self, r: usize) -> __m512i {
        // SAFETY: the mask from `Place::new` has one bit for each byte of the window.
        unsafe { _mm512_maskz_loadu_epi8(self.mask, self.window.row(r).cast()) }
    }

    /// Loads the first 32 bytes, with zeros behind them. A narrower load crosses fewer cache lines.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn load_half(&self, r: usize) -> __m512i {
        // SAFETY: the lower half of the mask has one bit for each byte of the window up to the 32nd.
        unsafe {
            _mm512_zextsi256_si512(_mm256_maskz_loadu_epi8(self.mask as u32, self.window.row(r).cast()))
        }
    }
}

/// Chunks of the widest vector.
pub(crate) const MAX_CHUNKS: usize = MAX_DIM / CHUNK;

/// Unpacks 64 codes at a time from rows of one shape.
///
/// In the raw plane, eight codes of b bits are exactly b bytes. `vpermb` brings b bytes to each
/// quadword, and `vpmultishiftqb` takes the byte at bit b·j for code j. Its upper bits belong to
/// the next codes.
///
/// ```text
/// 3 bits    bytes 0..3 of a quadword     codes at bits 0  3  6  9 12 15 18 21
/// 5 bits    bytes 0..5                   codes at bits 0  5 10 15 20 25 30 35
/// 6 bits    bytes 0..6                   codes at bits 0  6 12 18 24 30 36 42
///
/// 6 bits    c₃c₃c₃c₃c₃c₃c₂c₂ c₂c₂c₂c₂c₁c₁c₁c₁ c₁c₁c₀c₀c₀c₀c₀c₀     three bytes, four codes
/// byte 1      the eight bits from bit 6 on: c₂c₂c₁c₁c₁c₁c₁c₁      then a mask of 6 bits
/// ```
pub(crate) struct Unpack {
    pub(crate) packing: Packing,
    /// Offsets in a row: of the raw plane, of the digit plane, and of its end.
    pub(crate) raw_start: usize,
    pub(crate) digit_start: usize,
    pub(crate) end: usize,
    pub(crate) spread: __m512i,
    pub(crate) shift: __m512i,
    /// The bits of a byte that come from the raw plane.
    pub(crate) raw_mask: __m512i,
    /// radix · 2^raw in each word.
    take: __m512i,
    /// The valid bits of the digit plane's last byte.
    last_mask: u8,
}

/// Unpacks a single plane of raw bits, as [`Unpack`] does. It is three registers, which are
/// prepared faster than a single row is unpacked.
pub(crate) struct Raw {
    spread: __m512i,
    shift: __m512i,
    mask: __m512i,
}

impl Raw {
    /// Prepares codes of `bits` bits.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(bits: u32) -> Self {
        let (spread, shift) = (load(&SPREAD[bits as usize]), load(&SHIFT[bits as usize]));
        Self { spread, shift, mask: _mm512_set1_epi8(((1u32 << bits) - 1) as i8) }
    }

    /// Returns the 64 codes in these bytes.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn codes(&self, bytes: __m512i) -> __m512i {
        let quads = _mm512_permutexvar_epi8(self.spread, bytes);
        _mm512_and_si512(_mm512_multishift_epi64_epi8(self.shift, quads), self.mask)
    }
}

/// The location of 64 codes in a row, and the constants for their digits.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) raw: Place,
    pub(crate) digits: Place,
    table: &'static DigitChunk,
    /// The valid bits of `digits`.
    valid: __m512i,
}

impl Unpack {
    /// Prepares rows whose planes begin at offset `head`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn new(packing: Packing, dim: usize, head: usize) -> Self {
        let bits = packing.raw_bits() as usize;
        let digit_bits = packing.digit_bits(dim);
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
            take: _mm512_set1_epi16((packing.radix() << packing.raw_bits()) as i16),
            last_mask: 0xff >> (8 * digit_bytes - digit_bits),
        }
    }

    /// Returns the location of the codes from 64·`chunk` on.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn chunk(&self, chunk: usize) -> Chunk {
        let step = 8 * self.packing.raw_bits() as usize;
        let start = self.raw_start + chunk * step;
        let raw = Place::new(start, self.digit_start.min(start + step));
        let table = match self.packing.radix() {
            3 => &DIGITS[0][chunk],
            5 => &DIGITS[1][chunk],
            _ => &DIGITS[2][chunk],
        };
        let start = self.digit_start + table.first;
        let ones = _mm512_set1_epi8(-1);
        let last =
            if (start..start + 64).contains(&(self.end - 1)) { 1 << (self.end - 1 - start) } else { 0 };
        let valid = _mm512_mask_set1_epi8(ones, last, self.last_mask as i8);
        Chunk { raw, digits: Place::new(start, self.end), table, valid }
    }

    /// Returns 64 codes of row `r`. Behind the end of the row they are anything below `levels`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn codes(&self, chunk: &Chunk, block: &Block, r: usize) -> __m512i {
        let bytes = Masked::new(block, &chunk.raw).load(r);
        let raw = _mm512_multishift_epi64_epi8(self.shift, _mm512_permutexvar_epi8(self.spread, bytes));
        let digits = match self.packing.radix() {
            1 => return _mm512_and_si512(raw, self.raw_mask),
            3 => self.digits::<8>(chunk, &Masked::new(block, &chunk.digits), r),
            _ => self.digits::<7>(chunk, &Masked::new(block, &chunk.digits), r),
        };
        self.join(raw, digits)
    }

    /// Joins raw bits and digits.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn join(&self, raw: __m512i, digits: __m512i) -> __m512i {
        // raw_mask ? raw : digits
        _mm512_ternarylogic_epi64::<0xca>(self.raw_mask, raw, digits)
    }

    /// Returns the raw bits of 64 codes, at most four each. Above them are bits of their
    /// neighbours.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn raw(&self, raw: &Masked, r: usize) -> __m512i {
        _mm512_multishift_epi64_epi8(self.shift, _mm512_permutexvar_epi8(self.spread, raw.load_half(r)))
    }

    /// Returns the digits of 64 codes above the raw bits, in groups of `WIDTH` bits. Below them are
    /// fractions.
    ///
    /// Digits are found without division, in words of 16 bits after the binary point. Let v be a
    /// group of n digits in base r:
    ///
    /// ```text
    /// v · ⌈2¹⁶/rⁿ⌉          the fraction 0.d₍ₙ₋₁₎ … d₁d₀ in base r, exact enough for n digits
    /// · r^(n-1-k)           moves digit k behind the point; what lies in front of it overflows
    /// · r · 2^raw           its integer part is digit k, already above the raw bits
    /// ```
    ///
    /// The first two factors are one constant.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn digits<const WIDTH: u32>(&self, chunk: &Chunk, digits: &Masked, r: usize) -> __m512i {
        let table = chunk.table;
        let bytes = _mm512_and_si512(digits.load_half(r), chunk.valid);
        let digit = |half: usize| {
            let spread = load(&table.spread[half]);
            let group = if WIDTH == 8 {
                _mm512_maskz_permutexvar_epi8(0x5555_5555_5555_5555, spread, bytes)
            } else {
                let quads = _mm512_permutexvar_epi8(spread, bytes);
                let shifted = _mm512_multishift_epi64_epi8(load(&table.shift[half]), quads);
                _mm512_and_si512(shifted, _mm512_set1_epi16(0x7f))
            };
            mulhi(_mm512_mullo_epi16(group, load(&table.factor[half])), self.take)
        };
        _mm512_packus_epi16(digit(0), digit(1))
    }

    /// Returns raw bits and digits of 64 codes, joined.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(crate) fn mixed<const WIDTH: u32>(
        &self,
        chunk: &Chunk,
        raw: &Masked,
        digits: &Masked,
        r: usize,
    ) -> __m512i {
        self.join(self.raw(raw, r), self.digits::<WIDTH>(chunk, digits, r))
    }
}

/// The byte indices of quadwords, for codes of 0 to 8 bits.
pub(crate) static SPREAD: [[u8; 64]; 9] = table!(9; bits => places!(i => (bits * (i / 8) + i % 8) & 63));

/// The bit offsets of eight codes in their quadword.
pub(crate) static SHIFT: [[u8; 64]; 9] = table!(9; bits => places!(i => bits * (i % 8)));

/// The location of the digits of 64 codes, in two registers of words that `vpackuswb` brings into
/// order.
#[derive(Clone, Copy)]
struct DigitChunk {
    /// The first byte of the plane that this chunk needs.
    first: usize,
    spread: [[u8; 64]; 2],
    shift: [[u8; 64]; 2],
    factor: [[u16; 32]; 2],
}

/// Computes the location of a chunk's digits.
const fn digit_chunk(packing: Packing, chunk: usize) -> DigitChunk {
    let radix = packing.radix();
    let (group, width) = packing.digit_group();
    let width = width as usize;
    let first = chunk * CHUNK / group * width / 8;
    let mut table = DigitChunk { first, spread: [[0; 64]; 2], shift: [[0; 64]; 2], factor: [[0; 32]; 2] };
    let mut i = 0;
    while i < CHUNK {
        // packus takes words of lane l of the first register, then of the second.
        let (half, word) = (i / 8 % 2, i / 16 * 8 + i % 8);
        let code = chunk * CHUNK + i;
        let bit = code / group * width - 8 * first;
        // Four codes share a quadword, which begins with the first one's byte.
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

/// Computes the locations for all chunks.
const fn digit_chunks(levels: usize) -> [DigitChunk; MAX_CHUNKS] {
    let Some(packing) = Packing::for_levels(levels) else { unreachable!() };
    table!(MAX_CHUNKS; chunk => digit_chunk(packing, chunk))
}

/// The tables for radix 3, 5 and 9.
static DIGITS: [[DigitChunk; MAX_CHUNKS]; 3] = [digit_chunks(3), digit_chunks(5), digit_chunks(9)];
