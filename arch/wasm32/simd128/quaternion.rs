//! Chunks as products of quaternions.

use super::Simd128;
use crate::lanes::Quaternions;
use crate::quaternion::{ChunkLayout, QuaternionSet, RadiusSteps};
use core::arch::wasm32::*;

forward_to_lanes! {
    Simd128;
    quaternion_encode(set: &QuaternionSet, x: &[f32], norms: &[f32], steps: RadiusSteps, codes: &mut [u16], radii: &mut [u8]);
    decode_quaternions(layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]);
    score_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}

forward_to_scalar! {
    chunk_norms(x: &[f32], norms: &mut [f32]);
    pack_chunks(layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]);
}

impl Quaternions for Simd128 {
    #[inline(always)]
    fn max_floats(a: v128, b: v128) -> v128 {
        f32x4_pmax(a, b)
    }

    #[inline(always)]
    fn equal(a: v128, b: v128) -> v128 {
        f32x4_eq(a, b)
    }

    #[inline(always)]
    fn load_four([a, b, c, d]: [u32; 4]) -> v128 {
        u32x4(a, b, c, d)
    }
}
