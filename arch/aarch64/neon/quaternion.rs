//! Chunks as products of quaternions.

use super::Neon;
use crate::lanes::Quaternions;
use crate::quaternion::{ChunkLayout, QuaternionSet, RadiusSteps};
use core::arch::aarch64::*;

forward_to_lanes! {
    Neon<false>;
    quaternion_encode(set: &QuaternionSet, x: &[f32], norms: &[f32], steps: RadiusSteps, codes: &mut [u16], radii: &mut [u8]);
    decode_quaternions(layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]);
    score_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}

forward_to_scalar! {
    chunk_norms(x: &[f32], norms: &mut [f32]);
    pack_chunks(layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]);
}

/// Intrinsics on floats, whose result is bytes again.
macro_rules! on_floats {
    ($convert:ident, $operation:ident($a:ident, $b:ident)) => {
        // SAFETY: NEON is part of every aarch64 target with floats.
        unsafe { $convert($operation(vreinterpretq_f32_u8($a), vreinterpretq_f32_u8($b))) }
    };
}

impl<const DOT: bool> Quaternions for Neon<DOT> {
    #[inline(always)]
    fn max_floats(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        on_floats!(vreinterpretq_u8_f32, vmaxq_f32(a, b))
    }

    #[inline(always)]
    fn equal(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        on_floats!(vreinterpretq_u8_u32, vceqq_f32(a, b))
    }

    #[inline(always)]
    fn load_four(words: [u32; 4]) -> uint8x16_t {
        // SAFETY: NEON is part of every aarch64 target with floats; `words` are 16 bytes.
        unsafe { vreinterpretq_u8_u32(vld1q_u32(words.as_ptr())) }
    }
}
