//! The path search with SIMD128: the operations of `search.rs`.

use super::Floats;
use crate::registers::simd128::{Simd128, load, store};
use core::arch::wasm32::*;

impl Floats for Simd128 {
    type F = v128;
    const WIDTH: usize = 4;

    methods! { v128;
        add(a, b) = f32x4_add(a, b);
        distance_key(y, centroid) = f32x4_abs(f32x4_sub(y, centroid));
        squared(key) = f32x4_mul(key, key);
        upper(x) = i32x4_shuffle::<2, 3, 0, 1>(x, x);
    }

    #[inline(always)]
    fn splat(x: f32) -> v128 {
        f32x4_splat(x)
    }

    #[inline(always)]
    fn load(x: &[f32]) -> v128 {
        load::<[f32; 4]>(x.first_chunk().unwrap_or(&[0.0; 4]))
    }

    #[inline(always)]
    fn store(out: &mut [f32], x: v128) {
        if let Some(out) = out.first_chunk_mut::<4>() {
            store(out, x);
        }
    }

    #[inline(always)]
    fn store_bits(out: &mut [u32], x: v128) {
        let mut bits = [0i32; 4];
        store(&mut bits, x);
        for (out, bits) in out.iter_mut().zip(bits) {
            *out = bits as u32;
        }
    }

    /// Returns b < a ? b : a, which is one instruction of x86. `f32x4.min` must handle NaN.
    #[inline(always)]
    fn min(a: v128, b: v128) -> v128 {
        f32x4_pmin(a, b)
    }

    #[inline(always)]
    fn mark_less(bits: v128, bit: u32, a: v128, b: v128) -> v128 {
        v128_or(bits, v128_and(f32x4_lt(a, b), u32x4_splat(bit)))
    }

    #[inline(always)]
    fn less(a: v128, b: v128) -> u64 {
        u64::from(u32x4_bitmask(f32x4_lt(a, b)))
    }

    #[inline(always)]
    fn twice(x: v128) -> [v128; 2] {
        [i32x4_shuffle::<0, 0, 1, 1>(x, x), i32x4_shuffle::<2, 2, 3, 3>(x, x)]
    }
}
