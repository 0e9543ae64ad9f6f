//! Triplets as octahedral directions and radii.

use super::Simd128;
use crate::lanes::Triplets;
use crate::{IntQuery, Octahedral, Search};
use core::arch::wasm32::*;

forward_to_lanes! {
    Simd128;
    score_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[IntQuery], scores: &mut [f32]);
}

forward_to_scalar! {
    octahedral_encode(layout: &Octahedral, search: Search, x: &[f32], scale: f32, stream: &mut [u8]);
    octahedral_decode(layout: &Octahedral, stream: &[u8], scale: f32, out: &mut [f32]);
    score_octahedral_floats(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
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
}
