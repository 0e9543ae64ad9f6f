//! The best products of quaternions with AVX-512. Lanes are chunks.

/// Evaluates an expression for each of four registers. Closures of `array::map` are not always
/// inlined into functions with target features; this closure is.
macro_rules! each {
    ($each:pat in $array:expr => $value:expr) => {{
        let ([a, b, c, d], value) = ($array, |$each| $value);
        [value(a), value(b), value(c), value(d)]
    }};
}

mod search;

pub(crate) use search::encode_quaternions;

use crate::quaternions::layout::QuaternionSet;
use crate::registers::Elementwise;
use crate::registers::avx512::{Zmm, first, load, store_codes, table};
use core::arch::x86_64::*;

/// Components of 16 quaternions.
type Planes = [__m512; 4];

/// Loads up to 16 chunks, then zeros.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn load_chunks(x: &[f32]) -> Planes {
    let part = |i: usize| {
        let mask = first(x.len().saturating_sub(16 * i)) as u16;
        // SAFETY: a masked load does not touch values whose mask bit is clear. The others are
        // inside `x`.
        unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr().wrapping_add(16 * i)) }
    };
    transpose([part(0), part(1), part(2), part(3)])
}

/// Splits 16 consecutive quaternions into components.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn transpose(rows: [__m512; 4]) -> Planes {
    static PICKS: [[u32; 16]; 4] =
        table!(4; component => table!(16; lane => (component + 4 * (lane % 8)) as u32));
    let plane = |picks: &[u32; 16]| {
        let picks = load(picks);
        let low = _mm512_permutex2var_ps(rows[0], picks, rows[1]);
        let high = _mm512_permutex2var_ps(rows[2], picks, rows[3]);
        _mm512_mask_mov_ps(low, 0xff00, high)
    };
    [plane(&PICKS[0]), plane(&PICKS[1]), plane(&PICKS[2]), plane(&PICKS[3])]
}

/// Returns the low byte of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn to_bytes(lanes: __m512i) -> [u8; 16] {
    let mut array = [0; 16];
    store_codes(&mut array, _mm512_cvtepi32_epi8(lanes));
    array
}

/// Loads the components of 16 members, each below the set's length.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn members_at(set: &QuaternionSet, members: &[u8; 16]) -> [__m512i; 4] {
    let mut quads = [&set.members[0]; 16];
    for (quad, member) in quads.iter_mut().zip(members) {
        debug_assert!(usize::from(*member) < set.members.len());
        // SAFETY: members of lists are below the set's length: `QuaternionIndex::new` checked them.
        *quad = unsafe { set.members.get_unchecked(usize::from(*member)) };
    }
    Zmm::quads(&quads)
}
