//! Extracts eight fields of a bit stream, one into each dword of a register.
//!
//! ```text
//! stream     │ field 0 │ field 1 │ field 2 │ …        fields of `bits` bits, eight in `bits` bytes
//! shuffle    the four bytes in which each field begins, to its dword
//! shift      each dword right by the field's first bit in them, then a mask
//! ```

use super::load;
use core::arch::x86_64::*;

/// Extracts fields of one width, at most 16 bits, out of rows.
pub(crate) struct Fields {
    /// For each dword, the four bytes in which its field begins, and the field's first bit in them.
    bytes: __m256i,
    shifts: __m256i,
    mask: __m256i,
}

impl Fields {
    /// Prepares the constants for fields of `bits` bits.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn new(bits: usize) -> Self {
        let [bytes, shifts] = &PLACES[bits];
        Self { bytes: load(bytes), shifts: load(shifts), mask: _mm256_set1_epi32((1 << bits) - 1) }
    }

    /// Returns eight fields from byte `at` on. Behind the last byte they are zeros.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn get(&self, bytes: &[u8], at: usize) -> __m256i {
        self.of(load_from(bytes, at))
    }

    /// Returns eight fields from the first of sixteen bytes on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn of(&self, sixteen: __m128i) -> __m256i {
        let windows = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), self.bytes);
        _mm256_and_si256(_mm256_srlv_epi32(windows, self.shifts), self.mask)
    }
}

/// Loads sixteen bytes as [`load_from`] does, without a check if `READY`.
///
/// # Safety
/// With `READY`, sixteen bytes can be read from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn load_some<const READY: bool>(bytes: &[u8], at: usize) -> __m128i {
    if READY {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: the caller promises it.
        unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) }
    } else {
        load_from(bytes, at)
    }
}

/// For fields of each number of bits, and for each dword: the positions of four bytes, and the
/// field's first bit in them.
static PLACES: [[[u8; 32]; 2]; 17] = {
    let mut places = [[[0; 32]; 2]; 17];
    let mut i = 0;
    while i < 17 * 32 {
        let (bits, byte) = (i / 32, i % 32);
        let first = byte / 4 * bits;
        let at = first / 8 + byte % 4;
        places[bits][0][byte] = if at < 16 { at as u8 } else { 0xff };
        places[bits][1][byte] = if byte % 4 == 0 { first as u8 % 8 } else { 0 };
        i += 1;
    }
    places
};

/// Loads sixteen bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array holds the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Loads sixteen bytes from `at` on, with zeros behind the last byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_from(bytes: &[u8], at: usize) -> __m128i {
    if let Some(sixteen) = bytes[at..].first_chunk() {
        return load_16(sixteen);
    }
    let missing = at + 16 - bytes.len();
    match (bytes.last_chunk(), DOWN[missing.min(16)..].first_chunk()) {
        (Some(last), Some(down)) => _mm_shuffle_epi8(load_16(last), load_16(down)),
        _ => {
            let mut filled = [0; 16];
            filled[..bytes.len() - at].copy_from_slice(&bytes[at..]);
            load_16(&filled)
        }
    }
}

/// From index n on, it is a shuffle that moves bytes n places down.
static DOWN: [u8; 32] = {
    let mut down = [0xff; 32];
    let mut i = 0;
    while i < 16 {
        down[i] = i as u8;
        i += 1;
    }
    down
};

/// Returns the f16 at byte `at` of eight rows of `len` bytes, from row `first` on. Behind the last
/// row, it repeats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn halves_of_eight(bytes: &[u8], len: usize, first: usize, at: usize) -> __m256 {
    let last = bytes.len() / len - 1;
    // Assembled in general registers, which have nothing else to do here.
    let mut quads = [0; 2];
    for (i, quad) in quads.iter_mut().enumerate() {
        for r in 0..4 {
            let row = &bytes[(first + 4 * i + r).min(last) * len + at..];
            *quad |= i64::from(u16::from_le_bytes([row[0], row[1]])) << (16 * r);
        }
    }
    _mm256_cvtph_ps(_mm_set_epi64x(quads[1], quads[0]))
}

/// Transposes 8 × 8 dwords.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn transpose(x: &[__m256; 8]) -> [__m256; 8] {
    let mut fours = [_mm256_setzero_ps(); 8];
    for (x, fours) in x.as_chunks::<4>().0.iter().zip(fours.as_chunks_mut::<4>().0) {
        let [a, b, c, d] = *x;
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        *fours = [
            _mm256_shuffle_ps::<0x44>(ab, cd),
            _mm256_shuffle_ps::<0xee>(ab, cd),
            _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
            _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
        ];
    }
    let mut turned = fours;
    for i in 0..4 {
        turned[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]);
        turned[4 + i] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]);
    }
    turned
}
