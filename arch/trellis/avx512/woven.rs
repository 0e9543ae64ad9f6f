//! Sums of codes of two bits, where an index has six bits: four coordinates share a byte.
//!
//! Four coordinates with three path bits in front of them take seven path bits, and their codes take
//! eight bits. So bytes of both are all that lookups need, and the bytes of four rows can be put side
//! by side before they are looked up, for all four at once:
//!
//! ```text
//! path byte    p₃ p₂ p₁ p₀ p₋₁ p₋₂ p₋₃ p₋₄         coordinate 4k: p₀
//! code byte    c₃ c₃ c₂ c₂ c₁ c₁ c₀ c₀
//!
//! coordinate   path       codes      index
//! 4k           << 1       as it is   window │ code          codes lie below the window
//! 4k + 1       as it is   >> 2       window │ code
//! 4k + 2       >> 3       as it is   code │ window          or above it
//! 4k + 3       >> 4       >> 2       code │ window
//!
//! registers    dword j has bytes j of four rows; lookup i has coordinates 4j + i
//! ```
//!
//! Shifts of words move bits into the next byte, but not to where an index has its bits: `vpermb`
//! takes the lowest six.

use super::lanes::{Order, Places, tables};
use super::lookup::{SMALL, find};
use crate::codes::avx512::accumulate::Sums;
use crate::codes::avx512::unpack::CHUNK;
use crate::registers::avx512::{load, load_array, load_codes, places};
use crate::rows::{Block, Window};
use crate::trellis::layout::TrellisCodebook;
use core::arch::x86_64::*;

/// Returns whether rows have a kernel here.
pub(super) fn takes(book: &TrellisCodebook, dim: usize) -> bool {
    book.levels() == 4 && book.history() <= 3 && dim.is_multiple_of(CHUNK)
}

/// The order of sums.
pub(super) static ORDER: Order = Order::new(places!(i => 4 * (i % 16) + i / 16));

/// Looks up four coordinates in bytes of path bits and of codes.
pub(super) struct Fours {
    /// The centroids for indices with the window above the code, and with the code above the window.
    tables: [__m512i; 2],
}

/// The codes and windows of these indices, as code << 4 | window.
static INDICES: [Places; 2] = [places!(i => (i & 3) << 4 | i >> 2), places!(i => i)];

/// Returns the centroids of a codebook with up to three path bits in front of a window's own, in the
/// order of `indices`, as code << 4 | window. A shorter history is the upper bits of a window.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn table(book: &TrellisCodebook, kind: usize, flip: i8, indices: &Places) -> __m512i {
    let mut centroids = [_mm512_setzero_si512(); 2];
    tables(book, flip, &mut centroids);
    let spare = 3 - book.history();
    let down = _mm512_srl_epi16(load(indices), _mm_cvtsi32_si128(spare as i32));
    find(kind, &centroids, _mm512_and_si512(down, _mm512_set1_epi8((0xff_u8 >> spare) as i8)))
}

impl Fours {
    /// Prepares a codebook that [`takes`] accepts. Centroids are xored with `flip`.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new(book: &TrellisCodebook, flip: i8) -> Self {
        Self { tables: [table(book, SMALL, flip, &INDICES[0]), table(book, SMALL, flip, &INDICES[1])] }
    }

    /// Returns the centroids of the four coordinates of each byte.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn centroids(&self, path: __m512i, codes: __m512i) -> [__m512i; 4] {
        let (above, below) = (_mm512_set1_epi8(0x3c), _mm512_set1_epi8(0xf));
        let later = _mm512_srli_epi16::<2>(codes);
        let index = |window, path, codes| _mm512_ternarylogic_epi64::<0xca>(window, path, codes);
        [
            _mm512_permutexvar_epi8(index(above, _mm512_slli_epi16::<1>(path), codes), self.tables[0]),
            _mm512_permutexvar_epi8(index(above, path, later), self.tables[0]),
            _mm512_permutexvar_epi8(index(below, _mm512_srli_epi16::<3>(path), codes), self.tables[1]),
            _mm512_permutexvar_epi8(index(below, _mm512_srli_epi16::<4>(path), later), self.tables[1]),
        ]
    }
}

/// The constants that find the centroids of four rows, side by side.
pub(super) struct Woven {
    fours: Fours,
    path_bytes: __m512i,
    path_shifts: __m512i,
    code_bytes: __m512i,
    /// The first byte of the codes.
    codes: usize,
}

/// For each quadword, bytes k - 1 and k of each row's sixteen.
static PATH_BYTES: Places = places!(i => (16 * (i % 8 / 2) + i / 8 + i % 2 + 63) % 64);
/// The start of the bits of each byte in its quadword: from the middle of byte k - 1 on, and from byte
/// k on.
static PATH_SHIFTS: Places = places!(i => 16 * (i % 4) + 4 + 4 * (i / 4 % 2));
/// Byte k of each row.
static CODE_BYTES: Places = places!(i => 16 * (i % 4) + i / 4);

impl Woven {
    /// Prepares a codebook and a width.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new(book: &TrellisCodebook, dim: usize) -> Self {
        Self {
            fours: Fours::new(book, 0),
            path_bytes: load(&PATH_BYTES),
            path_shifts: load(&PATH_SHIFTS),
            code_bytes: load(&CODE_BYTES),
            codes: 2 + TrellisCodebook::path_bytes(dim),
        }
    }

    /// Prepares coordinates 64·chunk and so on of a block.
    ///
    /// # Safety
    /// The CPU has AVX-512. The function does not enable it, so that it can be inlined always.
    #[inline(always)]
    pub(super) unsafe fn chunk<'a>(&self, block: &Block<'a>, chunk: usize) -> WovenChunk<'a> {
        // In front of the first chunk are zeros, in front of others a byte more.
        let before = usize::from(chunk > 0);
        let (path, codes) = (2 + 8 * chunk - before, self.codes + 16 * chunk);
        WovenChunk {
            path: block.window(path, path + 16),
            codes: block.window(codes, codes + 16),
            // SAFETY: the caller vouches for AVX-512.
            bytes: unsafe { _mm512_add_epi8(self.path_bytes, _mm512_set1_epi8(before as i8)) },
            mask: if chunk == 0 { !0x55 } else { !0 },
        }
    }

    /// Returns the centroids of four rows from `first` on.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn fours(&self, chunk: &WovenChunk, first: usize) -> Sums {
        let path = _mm512_maskz_permutexvar_epi8(chunk.mask, chunk.bytes, sixteens(&chunk.path, first));
        let path = _mm512_multishift_epi64_epi8(self.path_shifts, path);
        let codes = _mm512_permutexvar_epi8(self.code_bytes, sixteens(&chunk.codes, first));
        self.fours.centroids(path, codes)
    }
}

/// The places of the path bits and the codes of 64 coordinates.
pub(super) struct WovenChunk<'a> {
    path: Window<'a>,
    codes: Window<'a>,
    /// The bytes of the path plane for each quadword, and those that exist.
    bytes: __m512i,
    mask: u64,
}

/// Loads sixteen bytes of each of the four rows from `r` on.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn sixteens(window: &Window, r: usize) -> __m512i {
    let rows = load_array::<16>(window.first(r));
    let rows = _mm512_inserti32x4::<1>(rows, load_codes(window.first(r + 1)));
    let rows = _mm512_inserti32x4::<2>(rows, load_codes(window.first(r + 2)));
    _mm512_inserti32x4::<3>(rows, load_codes(window.first(r + 3)))
}
