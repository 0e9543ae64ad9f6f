//! Rotations with AVX-512: signs and a Walsh-Hadamard transform, all in registers.

use crate::registers;
use crate::registers::avx512::{first, load_ps, store_ps};
use crate::vectors::hadamard::{H12, H20, H28, Signs};
use crate::vectors::scalar;
use core::arch::x86_64::*;

/// Implements `scalar::rotate`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn rotate(x: &mut [f32], signs: &[u32], scale: f32) {
    turn::<false>(x, signs, scale);
}

/// Implements `scalar::rotate_inverse`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn rotate_inverse(x: &mut [f32], signs: &[u32], scale: f32) {
    turn::<true>(x, signs, scale);
}

/// Chooses the number of registers for a width. Widths without a case run the specification.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn turn<const INVERSE: bool>(x: &mut [f32], signs: &[u32], scale: f32) {
    match x.len() {
        16 => sylvester::<1, INVERSE>(x, signs, scale),
        32 => sylvester::<2, INVERSE>(x, signs, scale),
        64 => sylvester::<4, INVERSE>(x, signs, scale),
        128 => sylvester::<8, INVERSE>(x, signs, scale),
        256 => sylvester::<16, INVERSE>(x, signs, scale),
        48 => based::<12, 4, INVERSE>(&H12, x, signs, scale),
        96 => based::<12, 8, INVERSE>(&H12, x, signs, scale),
        192 => based::<12, 16, INVERSE>(&H12, x, signs, scale),
        80 => based::<20, 4, INVERSE>(&H20, x, signs, scale),
        160 => based::<20, 8, INVERSE>(&H20, x, signs, scale),
        112 => based::<28, 4, INVERSE>(&H28, x, signs, scale),
        224 => based::<28, 8, INVERSE>(&H28, x, signs, scale),
        _ if INVERSE => scalar::rotate_inverse(x, signs, scale),
        _ => scalar::rotate(x, signs, scale),
    }
}

/// Rotates 16·N coordinates in N registers. Steps 1, 2, 4 and 8 are within each register, the
/// others between registers.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sylvester<const N: usize, const INVERSE: bool>(x: &mut [f32], signs: &[u32], scale: f32) {
    let x = &mut x.as_chunks_mut::<16>().0[..N];
    let signs = &signs.as_chunks::<16>().0[..N];
    let mut v = [_mm512_setzero_ps(); N];
    for i in 0..N {
        v[i] = load_ps(&x[i]);
        if !INVERSE {
            v[i] = flip(v[i], &signs[i]);
        }
        v[i] = in_register(v[i]);
    }
    between_registers(&mut v);
    for i in 0..N {
        v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(scale));
        if INVERSE {
            v[i] = flip(v[i], &signs[i]);
        }
        store_ps(&mut x[i], v[i]);
    }
}

/// Applies sign masks.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn flip(x: __m512, signs: &[u32; 16]) -> __m512 {
    _mm512_xor_ps(x, _mm512_castsi512_ps(registers::avx512::load(signs)))
}

/// Does the butterflies of steps 1, 2, 4 and 8 within a register.
///
/// With y = x of the partner lane, the lower lane needs x + y and the upper lane y - x. Both are ±x
/// + y:
///
/// ```text
/// x          a     b     c     d
/// partner    b     a     d     c          step 1
/// ±x + y     a+b   a-b   c+d   c-d        factors + - + -
/// ```
///
/// The product with ±1 is exact, so the fused operation rounds once, like an addition. It replaces
/// a sign flip and an addition.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn in_register(x: __m512) -> __m512 {
    let sign = |upper| _mm512_mask_blend_ps(upper, _mm512_set1_ps(1.0), _mm512_set1_ps(-1.0));
    let x = _mm512_fmadd_ps(x, sign(0xaaaa), _mm512_permute_ps::<0b10_11_00_01>(x));
    let x = _mm512_fmadd_ps(x, sign(0xcccc), _mm512_permute_ps::<0b01_00_11_10>(x));
    let x = _mm512_fmadd_ps(x, sign(0xf0f0), _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
    _mm512_fmadd_ps(x, sign(0xff00), _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x))
}

/// Does the butterflies of steps 1, 2, 4 … between registers.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn between_registers<const N: usize>(v: &mut [__m512; N]) {
    let mut step = 1;
    while step < N {
        for i in 0..N {
            if i & step == 0 {
                (v[i], v[i + step]) = (_mm512_add_ps(v[i], v[i + step]), _mm512_sub_ps(v[i], v[i + step]));
            }
        }
        step *= 2;
    }
}

/// Multiplies N runs of B coordinates by a matrix of order B, each run in one register (or two).
/// Then it does the butterflies between the runs.
///
/// A column times a coordinate is exact, so it may be fused with its addition. One instruction with
/// a broadcast operand then replaces three.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn based<const B: usize, const N: usize, const INVERSE: bool>(
    matrices: &[Signs<B>; 2],
    x: &mut [f32],
    signs: &[u32],
    scale: f32,
) {
    if !INVERSE {
        scalar::apply_signs(x, signs);
    }
    let zero = _mm512_setzero_ps();
    let one = |masks: &[u32]| _mm512_xor_ps(_mm512_set1_ps(1.0), _mm512_castsi512_ps(load_u32(masks)));
    let runs = &x.as_chunks::<B>().0[..N];
    let (mut lower, mut upper) = ([zero; N], [zero; N]);
    for (c, masks) in matrices[usize::from(INVERSE)].masks.iter().enumerate() {
        let column = [one(&masks[..B.min(16)]), one(&masks[B.min(16)..])];
        for i in 0..N {
            let coordinate = _mm512_set1_ps(runs[i][c]);
            // A sum begins with ±x. Beginning with 0 ± x would differ for zeros.
            if c == 0 {
                lower[i] = _mm512_mul_ps(coordinate, column[0]);
                upper[i] = _mm512_mul_ps(coordinate, column[1]);
            } else {
                lower[i] = _mm512_fmadd_ps(coordinate, column[0], lower[i]);
                upper[i] = _mm512_fmadd_ps(coordinate, column[1], upper[i]);
            }
        }
    }
    between_registers(&mut lower);
    if B > 16 {
        between_registers(&mut upper);
    }
    let out = x.as_chunks_mut::<B>().0.iter_mut().zip(signs.as_chunks::<B>().0);
    for ((x, signs), (lower, upper)) in out.zip(lower.into_iter().zip(upper)) {
        let finish = |x: &mut [f32], signs: &[u32], v| {
            let v = _mm512_mul_ps(v, _mm512_set1_ps(scale));
            let signs = if INVERSE { _mm512_castsi512_ps(load_u32(signs)) } else { zero };
            store_lanes(x, _mm512_xor_ps(v, signs));
        };
        finish(&mut x[..B.min(16)], &signs[..B.min(16)], lower);
        if B > 16 {
            finish(&mut x[16..], &signs[16..], upper);
        }
    }
}

/// Loads up to 16 words, with zeros behind them.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_u32(words: &[u32]) -> __m512i {
    // SAFETY: a masked load touches nothing whose mask bit is clear, and the mask has `words.len()` bits at most.
    unsafe { _mm512_maskz_loadu_epi32(first(words.len()) as u16, words.as_ptr().cast()) }
}

/// Stores the first 4, 12 or 16 lanes, without a masked store: a load cannot take its bytes from a
/// masked store that is in progress, and loads follow every rotation.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn store_lanes(x: &mut [f32], v: __m512) {
    if let Some(x) = x.first_chunk_mut() {
        return store_ps(x, v);
    }
    let mut last = _mm512_castps512_ps128(v);
    if x.len() == 12 {
        // SAFETY: of twelve values, eight are written.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), _mm512_castps512_ps256(v)) }
        last = _mm512_extractf32x4_ps::<2>(v);
    }
    if let Some(x) = x.last_chunk_mut::<4>() {
        // SAFETY: the array holds the 16 bytes that are written.
        unsafe { _mm_storeu_ps(x.as_mut_ptr(), last) }
    }
}
