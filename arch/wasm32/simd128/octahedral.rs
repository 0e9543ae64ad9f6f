//! Triplets as octahedral directions and radii.

use super::{Simd128, load};
use crate::lanes::Triplets;
use crate::{IntQuery, Octahedral, Search};
use core::arch::wasm32::*;

forward_to_lanes! {
    Simd128;
    octahedral_encode(layout: &Octahedral, search: Search, x: &[f32], scale: f32, stream: &mut [u8]);
    score_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[IntQuery], scores: &mut [f32]);
    octahedral_decode(layout: &Octahedral, stream: &[u8], scale: f32, out: &mut [f32]);
    accumulate_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}

forward_to_scalar! {
    score_octahedral_floats(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
}

impl Triplets for Simd128 {
    #[inline(always)]
    fn dot_quads(a: v128, b: v128) -> v128 {
        // Sums of two products.
        let low = i32x4_dot_i16x8(i16x8_extend_low_i8x16(a), i16x8_extend_low_i8x16(b));
        let high = i32x4_dot_i16x8(i16x8_extend_high_i8x16(a), i16x8_extend_high_i8x16(b));
        i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(low, high), i32x4_shuffle::<1, 3, 5, 7>(low, high))
    }

    #[inline(always)]
    fn to_floats(x: v128) -> v128 {
        f32x4_convert_i32x4(x)
    }

    #[inline(always)]
    fn load_triplets(x: &[f32; 12]) -> [v128; 3] {
        // x y z x, y z x y, z x y z.
        let [a, b, c] = [0, 4, 8].map(|k| load::<[f32; 4]>(x[k..].first_chunk().unwrap_or(&[0.0; 4])));
        let xs = i32x4_shuffle::<0, 3, 6, 6>(a, b);
        let ys = i32x4_shuffle::<1, 4, 7, 7>(a, b);
        let zs = i32x4_shuffle::<2, 5, 5, 5>(a, b);
        [
            i32x4_shuffle::<0, 1, 2, 5>(xs, c),
            i32x4_shuffle::<0, 1, 2, 6>(ys, c),
            i32x4_shuffle::<0, 1, 4, 7>(zs, c),
        ]
    }

    #[inline(always)]
    fn xor(a: v128, b: v128) -> v128 {
        v128_xor(a, b)
    }

    #[inline(always)]
    fn min_floats(a: v128, b: v128) -> v128 {
        f32x4_pmin(a, b)
    }

    #[inline(always)]
    fn greater(a: v128, b: v128) -> v128 {
        f32x4_gt(a, b)
    }

    #[inline(always)]
    fn divide_floats(a: v128, b: v128) -> v128 {
        f32x4_div(a, b)
    }

    #[inline(always)]
    fn sqrt_floats(x: v128) -> v128 {
        f32x4_sqrt(x)
    }

    #[inline(always)]
    fn add_ints(a: v128, b: v128) -> v128 {
        i32x4_add(a, b)
    }

    #[inline(always)]
    fn multiply_ints(a: v128, b: v128) -> v128 {
        i32x4_mul(a, b)
    }

    #[inline(always)]
    fn min_ints(a: v128, b: v128) -> v128 {
        i32x4_min(a, b)
    }

    #[inline(always)]
    fn max_ints(a: v128, b: v128) -> v128 {
        i32x4_max(a, b)
    }

    #[inline(always)]
    fn signs(x: v128) -> v128 {
        i32x4_shr(x, 31)
    }
}
