//! Loads the bytes of eight rows into the lanes where their coordinates are looked up.

use super::{HALF, LANE, QUARTER, transpose};
use crate::registers::avx2::load;
use crate::rows::Block;
use core::arch::x86_64::*;

/// Loads rows `r` to `r + 8`, the first with the fifth and so on, as four results of [`planes`]
/// (two or one for shorter rows). Rows behind the last one are undefined.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn all_planes<const BITS: usize, const DIM: usize>(block: &Block, r: usize) -> [[__m256i; 5]; 4] {
    if DIM == QUARTER {
        return [planes_of_quarter::<BITS>(block, r); 4];
    }
    if DIM == HALF {
        let [first, second] = [planes_of_half::<BITS>(block, r), planes_of_half::<BITS>(block, r + 2)];
        return [first, second, first, second];
    }
    [
        planes::<BITS>(block, r),
        planes::<BITS>(block, r + 1),
        planes::<BITS>(block, r + 2),
        planes::<BITS>(block, r + 3),
    ]
}

/// Loads rows `r` and `r + 4`: two registers with the windows (see [`look_up`]), then those with
/// the codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn planes<const BITS: usize>(block: &Block, r: usize) -> [__m256i; 5] {
    const PATH: usize = LANE / 8;
    let path = sixteens(block, 2, r);
    // The inner halves of each byte and the one before it.
    let carry = _mm256_srli_epi64::<60>(_mm256_bslli_epi128::<8>(path));
    let inner = _mm256_or_si256(_mm256_slli_epi64::<4>(path), carry);
    let codes = |i: usize| two(block, 2 + PATH + 16 * i, r);
    match BITS {
        0 => in_order::<0>(inner, path, []),
        1 => in_order::<1>(inner, path, [codes(0)]),
        2 => in_order::<2>(inner, path, [codes(0), codes(1)]),
        _ => in_order::<3>(inner, path, [codes(0), codes(1), codes(2)]),
    }
}

/// Loads four rows of 64: `r` and `r + 1` into the lower lane, `r + 4` and `r + 5` into the upper
/// one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn planes_of_half<const BITS: usize>(block: &Block, r: usize) -> [__m256i; 5] {
    const CODES: usize = 2 + HALF / 8;
    let path = eights(quads(block, [2, 2], r));
    let inner = _mm256_slli_epi64::<4>(path);
    match BITS {
        0 => in_order::<0>(inner, path, []),
        1 => in_order::<1>(inner, path, [eights(quads(block, [CODES, CODES], r))]),
        2 => in_order::<2>(inner, path, [sixteens(block, CODES, r), sixteens(block, CODES, r + 1)]),
        _ => {
            let middle = eights(quads(block, [CODES + 16, CODES], r));
            in_order::<3>(inner, path, [sixteens(block, CODES, r), middle, sixteens(block, CODES + 8, r + 1)])
        }
    }
}

/// Loads eight rows of 32: `r` to `r + 4` into the lower lane, the next four into the upper one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn planes_of_quarter<const BITS: usize>(block: &Block, r: usize) -> [__m256i; 5] {
    const CODES: usize = 2 + QUARTER / 8;
    match BITS {
        0 => {
            let path = fours(block, 2, r);
            in_order::<0>(_mm256_slli_epi32::<4>(path), path, [])
        }
        1 => {
            let a = _mm256_castsi256_ps(eights(quads(block, [2, 2], r)));
            let b = _mm256_castsi256_ps(eights(quads(block, [2, 2], r + 2)));
            let path = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let codes = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            in_order::<1>(_mm256_slli_epi32::<4>(path), path, [codes])
        }
        2 => {
            let (path, second) = (fours(block, 2, r), eights(quads(block, [CODES, CODES], r + 2)));
            let codes = [eights(quads(block, [CODES, CODES], r)), second];
            in_order::<2>(_mm256_slli_epi32::<4>(path), path, codes)
        }
        _ => {
            // A row is four dwords: its path, then its codes.
            let rows = [sixteens(block, 2, r), sixteens(block, 2, r + 1)];
            let [path, a, b, c] =
                transpose([rows[0], rows[1], sixteens(block, 2, r + 2), sixteens(block, 2, r + 3)]);
            let inner = _mm256_slli_epi32::<4>(path);
            let [third, fourth, fifth] = every_third([a, b, c]);
            [inner, path, third, fourth, fifth]
        }
    }
}

/// Collects bytes 0, 3, 6 and 9 of each row, and those from 1 and from 2 on. A row's bytes are dwords of
/// three registers.
///
/// ```text
/// byte of a row    a │ 0 1 2 3    b │ 4 5 6 7    c │ 8 9 10 11
/// 0, 3, 6, 9           ×     ×            ×              ×          by place: 0 and 3 from a, 2 from b, 1 from c
/// ```
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn every_third([a, b, c]: [__m256i; 3]) -> [__m256i; 3] {
    let middle = _mm256_set1_epi32(0xff00);
    let outer = _mm256_set1_epi32(0xff00_00ff_u32 as i32);
    let first = _mm256_blendv_epi8(_mm256_blendv_epi8(b, c, middle), a, outer);
    let second = _mm256_blendv_epi8(_mm256_blendv_epi8(c, a, middle), b, outer);
    let third = _mm256_blendv_epi8(_mm256_blendv_epi8(a, b, middle), c, outer);
    [
        _mm256_shuffle_epi8(first, load(&IN_DWORDS[0])),
        _mm256_shuffle_epi8(second, load(&IN_DWORDS[1])),
        _mm256_shuffle_epi8(third, load(&IN_DWORDS[2])),
    ]
}

/// The order of the bytes that [`every_third`] has mixed.
static IN_DWORDS: [[u8; 32]; 3] = [in_dwords([0, 3, 2, 1]), in_dwords([1, 0, 3, 2]), in_dwords([2, 1, 0, 3])];

/// Repeats an order of four bytes for each dword of both lanes.
const fn in_dwords(order: [u8; 4]) -> [u8; 32] {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 32 {
        places[i] = (i % 16 / 4 * 4) as u8 + order[i % 4];
        i += 1;
    }
    places
}

/// Distributes paths and codes as [`planes`] returns them: as they are, alternating, or every third
/// byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_order<const BITS: usize>(inner: __m256i, path: __m256i, codes: [__m256i; BITS]) -> [__m256i; 5] {
    match codes[..] {
        [] => [inner, path, path, path, path],
        [codes] => [inner, path, codes, path, path],
        [first, second] => {
            let (low, high) = (_mm256_unpacklo_epi8(inner, path), _mm256_unpackhi_epi8(inner, path));
            [low, high, first, second, path]
        }
        _ => {
            // The bytes of one remainder lie at different positions in each sixteen.
            let mut planes = [inner, path, path, path, path];
            for (first, plane) in planes[2..].iter_mut().enumerate() {
                let two = _mm256_blendv_epi8(codes[0], codes[1], load(&THIRDS[(first + 2) % 3]));
                let three = _mm256_blendv_epi8(two, codes[2], load(&THIRDS[(first + 1) % 3]));
                *plane = _mm256_shuffle_epi8(three, load(&EVERY_THIRD[first]));
            }
            planes
        }
    }
}

/// For each remainder of three, a mask of the bytes of a lane with it.
static THIRDS: [[u8; 32]; 3] = {
    let mut masks = [[0; 32]; 3];
    let mut i = 0;
    while i < 32 {
        masks[i % 16 % 3][i] = 0xff;
        i += 1;
    }
    masks
};

/// Positions 0, 3, 6, … of 48 bytes modulo 16, and those from 1 and from 2 on.
static EVERY_THIRD: [[u8; 32]; 3] = {
    let mut places = [[0; 32]; 3];
    let mut i = 0;
    while i < 96 {
        places[i / 32][i % 32] = ((3 * (i % 16) + i / 32) % 16) as u8;
        i += 1;
    }
    places
};

/// Loads sixteen bytes of row `r` and sixteen of row `r + 4`, from a byte at 16 or later in a row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two(block: &Block, start: usize, r: usize) -> __m256i {
    let below = load_16(block.window(start, start + 16).first(r));
    // Loaded sixteen bytes earlier, the upper lane is already in its place.
    let above: &[u8; 32] = block.window(start - 16, start + 16).first(r + 4);
    _mm256_blend_epi32::<0b1111_0000>(_mm256_castsi128_si256(below), load(above))
}

/// Loads the same, from any byte on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteens(block: &Block, start: usize, r: usize) -> __m256i {
    let window = block.window(start, start + 16);
    _mm256_set_m128i(load_16(window.first(r + 4)), load_16(window.first(r)))
}

/// Loads eight bytes each of rows `r` and `r + 1`, and of rows `r + 4` and `r + 5`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eights([a, b, c, d]: [i64; 4]) -> __m256i {
    _mm256_set_epi64x(d, c, b, a)
}

/// Reads them. It is always inlined, which functions with target features are not: a call in the
/// loop would take as long as the lookups of a row.
#[inline(always)]
fn quads(block: &Block, [first, second]: [usize; 2], r: usize) -> [i64; 4] {
    let (a, b) = (block.window(first, first + 8), block.window(second, second + 8));
    [a.quad(r) as i64, b.quad(r + 1) as i64, a.quad(r + 4) as i64, b.quad(r + 5) as i64]
}

/// Loads four bytes of rows `r` to `r + 4`, and of the next four.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fours(block: &Block, start: usize, r: usize) -> __m256i {
    let window = block.window(start, start + 4);
    let four = |i: usize| i32::from_le_bytes(*window.first(r + i));
    _mm256_setr_epi32(four(0), four(1), four(2), four(3), four(4), four(5), four(6), four(7))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array has 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
