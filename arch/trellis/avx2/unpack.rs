//! From packed codes to bytes, 32 codes at a time, with AVX2.

use crate::registers::avx2::{load, upper_products};
use crate::rows::{Block, Window};
use crate::{MAX_DIM, Packing};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Codes in a register of bytes.
pub(super) const CHUNK: usize = 32;

/// Registers of the widest vector.
const CHUNKS: usize = MAX_DIM / CHUNK;

/// Bytes of a load. Shorter rows are left to the specification, so that a load can always be moved
/// back to the end of its row.
pub(super) const LOAD: usize = 16;

/// The forms of a row. A `match` outside of all loops chooses one. Coordinates come in order.
pub(super) mod kind {
    /// Only bits.
    pub(crate) const STREAM: u8 = 0;
    /// Bits, and base-3 digits: five to a byte.
    pub(crate) const BYTES: u8 = 8;
}

/// Unpacks codes from rows of one shape.
///
/// AVX2 has no variable shifts of bytes or words. So `vpshufb` brings the two bytes with a code to
/// a word, `vpmullw` moves the code to the top, and a plain shift moves it down:
///
/// ```text
/// word      byte 1                 byte 0              3 bits, code 2 at bits 6 to 8
///           . . . . . . . c₂      c₂ c₂ . . . . . .
/// · 2⁷      c₂ c₂ c₂ . . .                             then >> 13
/// ```
pub(super) struct Unpack {
    kind: u8,
    packing: Packing,
    /// 2^(16 - bits - first bit) for the word of each code.
    up: __m256i,
    down: __m128i,
    low_bits: __m256i,
    /// radix · 2^raw in each word.
    take: __m256i,
    head: usize,
    digit_start: usize,
    /// The start of the last load of a row.
    last_load: usize,
    /// The valid bits of a row's last byte.
    last_mask: u8,
    /// The number of `places` that are set.
    set: usize,
    places: [MaybeUninit<Place>; CHUNKS],
}

/// The location of 32 codes: the loads of the two lanes, and the bytes of their words. There are
/// two registers of words, which `vpackuswb` brings into order.
#[derive(Clone, Copy)]
pub(super) struct Place {
    raw: [usize; 2],
    raw_spread: [__m256i; 2],
    digits: [usize; 2],
    digit_spread: [__m256i; 2],
    /// The valid bits of the digit plane.
    valid: __m256i,
    table: &'static DigitChunk,
}

/// A location in each row of a block.
pub(super) struct Windows<'a> {
    place: &'a Place,
    raw: [Window<'a>; 2],
    digits: [Window<'a>; 2],
}

impl<'a> Windows<'a> {
    /// Checks the location once for all rows of the block.
    #[inline]
    pub(super) fn at<const KIND: u8>(place: &'a Place, block: &Block<'a>) -> Self {
        // Not with `map`, which is not always inlined, and then takes as long as four rows.
        let two = |[a, b]: [usize; 2]| [block.window(a, a + LOAD), block.window(b, b + LOAD)];
        let raw = two(place.raw);
        Self { place, raw, digits: if KIND == kind::BYTES { two(place.digits) } else { raw } }
    }
}

impl Unpack {
    /// Prepares rows whose planes begin at `head` and end with the row. The radix of `packing` must
    /// be 1 or 3, as for every [`TrellisCodebook`](crate::TrellisCodebook).
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn new(packing: Packing, dim: usize, head: usize) -> Self {
        assert!(packing.radix() == 1 || packing.radix() == 3);
        let kind = if packing.radix() == 1 { kind::STREAM } else { kind::BYTES };
        let bits = packing.raw_bits() as usize;
        let (digit_start, last_mask) = digit_plane(packing, dim, head);
        let mut unpack = Self {
            kind,
            packing,
            up: load(&UP[bits]),
            down: _mm_cvtsi32_si128(16 - bits as i32),
            low_bits: _mm256_set1_epi16((1i16 << bits).wrapping_sub(1)),
            take: _mm256_set1_epi16((packing.radix() << bits) as i16),
            head,
            digit_start,
            last_load: head + packing.bytes(dim) - LOAD,
            last_mask,
            set: 0,
            places: [MaybeUninit::uninit(); CHUNKS],
        };
        while unpack.set < dim.div_ceil(CHUNK) {
            unpack.places[unpack.set].write(unpack.place(unpack.set));
            unpack.set += 1;
        }
        unpack
    }

    /// Returns the location of the `i`-th load (or pair of loads) of a row.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn place(&self, i: usize) -> Place {
        let zero = _mm256_setzero_si256();
        let mut place = Place {
            raw: [0; 2],
            raw_spread: [zero; 2],
            digits: [0; 2],
            digit_spread: [zero; 2],
            valid: zero,
            table: &DIGITS[0],
        };
        // Loads that would end behind the row are moved back to its end, and their indices grow by
        // as much.
        let fit = |starts: [usize; 2], spread: &[[u8; 32]; 2]| {
            let loads = starts.map(|start| start.min(self.last_load));
            let late = |lane: usize| _mm_set1_epi8((starts[lane] - loads[lane]).min(64) as i8);
            let late = _mm256_set_m128i(late(1), late(0));
            // From 16 on, indices are behind the row and must give zeros. `vpshufb` does so if the
            // uppermost bit is set.
            let grown = |spread| {
                let index = _mm256_add_epi8(load(spread), late);
                _mm256_adds_epu8(index, _mm256_set1_epi8(0x70))
            };
            (loads, [grown(&spread[0]), grown(&spread[1])])
        };
        let bits = self.packing.raw_bits() as usize;
        let starts = [0, 1].map(|lane| self.head + 2 * bits * (2 * i + lane));
        (place.raw, place.raw_spread) = fit(starts, &SPREAD[bits]);
        if self.kind == kind::STREAM {
            return place;
        }
        place.table = &DIGITS[i];
        let starts = place.table.first.map(|first| self.digit_start + first);
        (place.digits, place.digit_spread) = fit(starts, &place.table.spread);
        // The padding of the plane's last byte is in a row's last load, where it is the last byte.
        let valid = |lane: usize| {
            let last = if place.digits[lane] == self.last_load { self.last_mask } else { 0xff };
            _mm_insert_epi8::<15>(_mm_set1_epi8(-1), i32::from(last))
        };
        place.valid = _mm256_set_m128i(valid(1), valid(0));
        place
    }

    /// Returns the form of a row.
    pub(super) fn kind(&self) -> u8 {
        self.kind
    }

    /// Returns the load of register `c`, for each row of a block.
    #[inline]
    pub(super) fn windows<'a, const KIND: u8>(&'a self, block: &Block<'a>, c: usize) -> Windows<'a> {
        let place = &self.places[..self.set][c];
        // SAFETY: `new` has written the first `set` elements: it adds 1 to `set` after each.
        Windows::at::<KIND>(unsafe { place.assume_init_ref() }, block)
    }

    /// Returns the codes of row `r`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn codes<const KIND: u8>(&self, windows: &Windows, r: usize) -> __m256i {
        let place = windows.place;
        let two = |windows: &[Window; 2]| _mm256_set_m128i(load_16(&windows[1], r), load_16(&windows[0], r));
        let raw = two(&windows.raw);
        let raw = |half: usize| {
            let words = _mm256_mullo_epi16(_mm256_shuffle_epi8(raw, place.raw_spread[half]), self.up);
            _mm256_srl_epi16(words, self.down)
        };
        if KIND == kind::STREAM {
            return _mm256_packus_epi16(raw(0), raw(1));
        }
        // Digits are found as in the AVX-512 kernels: as a fraction, with one multiplication that
        // moves the digit behind the point and one that extracts it.
        let bytes = _mm256_and_si256(two(&windows.digits), place.valid);
        let digit = |half: usize| {
            let group = _mm256_shuffle_epi8(bytes, place.digit_spread[half]);
            let group = _mm256_and_si256(group, _mm256_set1_epi16(0xff));
            upper_products(_mm256_mullo_epi16(group, load(&place.table.factor[half])), self.take)
        };
        let word = |half| {
            if self.packing.raw_bits() == 0 {
                return digit(half);
            }
            _mm256_or_si256(_mm256_andnot_si256(self.low_bits, digit(half)), raw(half))
        };
        _mm256_packus_epi16(word(0), word(1))
    }
}

/// Returns where the digit plane begins, and the valid bits of its last byte.
fn digit_plane(packing: Packing, dim: usize, head: usize) -> (usize, u8) {
    let bits = packing.digit_bits(dim);
    (head + packing.raw_bytes(dim), 0xff >> (8 * bits.div_ceil(8) - bits))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_16(window: &Window, r: usize) -> __m128i {
    // SAFETY: windows from `Unpack::windows` have `LOAD` bytes.
    unsafe { _mm_loadu_si128(window.row(r).cast()) }
}

/// For codes of 0 to 8 bits, the two bytes of each code's word, counted from the first of a lane's
/// sixteen codes.
static SPREAD: [[[u8; 32]; 2]; 9] = {
    let mut table = [[[0; 32]; 2]; 9];
    let mut bits = 0;
    while bits < 9 {
        let mut i = 0;
        while i < 32 {
            table[bits][0][i] = (bits * (i % 16 / 2) / 8 + i % 2) as u8;
            table[bits][1][i] = (bits * (i % 16 / 2 + 8) / 8 + i % 2) as u8;
            i += 1;
        }
        bits += 1;
    }
    table
};

/// The factors that move each code to the top of its word.
static UP: [[u16; 16]; 9] = {
    let mut table = [[0; 16]; 9];
    let mut bits = 1;
    while bits < 9 {
        let mut i = 0;
        while i < 16 {
            table[bits][i] = 1 << (16 - bits - bits * (i % 8) % 8);
            i += 1;
        }
        bits += 1;
    }
    table
};

/// The location of the digits of 32 codes.
#[derive(Clone, Copy)]
struct DigitChunk {
    /// The first byte of each lane's codes.
    first: [usize; 2],
    spread: [[u8; 32]; 2],
    factor: [[u16; 16]; 2],
}

/// Computes the location of a chunk's digits.
const fn digit_chunk(chunk: usize) -> DigitChunk {
    let mut table = DigitChunk { first: [0; 2], spread: [[0; 32]; 2], factor: [[0; 16]; 2] };
    let mut i = 0;
    while i < CHUNK {
        let (lane, half, word) = (i / 16, i / 8 % 2, i / 16 * 8 + i % 8);
        let code = chunk * CHUNK + i;
        if i % 16 == 0 {
            table.first[lane] = code / GROUP;
        }
        let byte = code / GROUP - table.first[lane];
        table.spread[half][2 * word] = byte as u8;
        table.spread[half][2 * word + 1] = (byte + 1) as u8;
        let unit = 65536u32.div_ceil(RADIX.pow(GROUP as u32));
        table.factor[half][word] = (unit * RADIX.pow((GROUP - 1 - code % GROUP) as u32)) as u16;
        i += 1;
    }
    table
}

/// The base of the digits.
const RADIX: u32 = 3;

/// Digits in a byte.
const GROUP: usize = 5;

/// The locations of the digits of all chunks.
static DIGITS: [DigitChunk; CHUNKS] = {
    let mut chunks = [digit_chunk(0); CHUNKS];
    let mut chunk = 1;
    while chunk < CHUNKS {
        chunks[chunk] = digit_chunk(chunk);
        chunk += 1;
    }
    chunks
};
