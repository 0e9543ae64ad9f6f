//! Rotations: signs and a Walsh-Hadamard transform, all in registers.

use super::{load_ps, store_ps};
use crate::scalar;
use core::arch::x86_64::*;

/// x ← scale · H·(s∘x).
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn rotate(x: &mut [f32], signs: &[u32], scale: f32) {
    match x.len() {
        16 => sylvester::<1, false>(x, signs, scale),
        32 => sylvester::<2, false>(x, signs, scale),
        64 => sylvester::<4, false>(x, signs, scale),
        128 => sylvester::<8, false>(x, signs, scale),
        256 => sylvester::<16, false>(x, signs, scale),
        _ => scalar::rotate(x, signs, scale),
    }
}

/// x ← s∘(scale · Hᵀx).
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn rotate_inverse(x: &mut [f32], signs: &[u32], scale: f32) {
    match x.len() {
        16 => sylvester::<1, true>(x, signs, scale),
        32 => sylvester::<2, true>(x, signs, scale),
        64 => sylvester::<4, true>(x, signs, scale),
        128 => sylvester::<8, true>(x, signs, scale),
        256 => sylvester::<16, true>(x, signs, scale),
        _ => scalar::rotate_inverse(x, signs, scale),
    }
}

/// 16·N coordinates in N registers: steps 1, 2, 4 and 8 inside each register, the others between registers.
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

#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn flip(x: __m512, signs: &[u32; 16]) -> __m512 {
    _mm512_xor_ps(x, _mm512_castsi512_ps(super::load(signs)))
}

/// Butterflies of step 1, 2, 4 and 8. With y = x of the partner lane, the lower lane needs x + y and the upper one
/// y - x: both are ±x + y. The product is exact, so the fused operation rounds once, like the addition alone, and
/// it takes the place of a sign flip and an addition.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn in_register(x: __m512) -> __m512 {
    let sign = |upper| _mm512_mask_blend_ps(upper, _mm512_set1_ps(1.0), _mm512_set1_ps(-1.0));
    let x = _mm512_fmadd_ps(x, sign(0xaaaa), _mm512_permute_ps::<0b10_11_00_01>(x));
    let x = _mm512_fmadd_ps(x, sign(0xcccc), _mm512_permute_ps::<0b01_00_11_10>(x));
    let x = _mm512_fmadd_ps(x, sign(0xf0f0), _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
    _mm512_fmadd_ps(x, sign(0xff00), _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x))
}

/// Butterflies of step 1, 2, 4 … registers.
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
