//! Triplets as octahedral directions and radii.

use super::{Neon, floats, neon, sums};
use crate::lanes::Triplets;
use crate::{IntQuery, Octahedral, Search};
use core::arch::aarch64::*;
use core::arch::asm;

forward_to_lanes! {
    Neon<false>;
    octahedral_encode(layout: &Octahedral, search: Search, x: &[f32], scale: f32, stream: &mut [u8]);
    score_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[IntQuery], scores: &mut [f32]);
    octahedral_decode(layout: &Octahedral, stream: &[u8], scale: f32, out: &mut [f32]);
    accumulate_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}

forward_to_scalar! {
    score_octahedral_floats(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
}

impl<const DOT: bool> Triplets for Neon<DOT> {
    #[inline(always)]
    fn dot_quads(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        if DOT {
            let mut total: uint8x16_t;
            // SAFETY: NEON is there; whoever names `Neon<true>` has asked the CPU for `sdot`, which only works on
            // registers.
            unsafe {
                total = vdupq_n_u8(0);
                asm!(
                    ".arch_extension dotprod",
                    "sdot {total:v}.4s, {a:v}.16b, {b:v}.16b",
                    total = inout(vreg) total, a = in(vreg) a, b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            return total;
        }
        // SAFETY: NEON is part of every aarch64 target with floats.
        unsafe {
            // Two products of ±127 fit a word.
            let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
            let pairs = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
            vreinterpretq_u8_s32(vpaddlq_s16(pairs))
        }
    }

    #[inline(always)]
    fn to_floats(x: uint8x16_t) -> uint8x16_t {
        // SAFETY: NEON is part of every aarch64 target with floats.
        unsafe { vreinterpretq_u8_f32(vcvtq_f32_s32(vreinterpretq_s32_u8(x))) }
    }

    #[inline(always)]
    fn load_triplets(x: &[f32; 12]) -> [uint8x16_t; 3] {
        neon!({
            let float32x4x3_t(x, y, z) = vld3q_f32(x.as_ptr());
            [x, y, z].map(|c| vreinterpretq_u8_f32(c))
        })
    }

    #[inline(always)]
    fn xor(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(veorq_u8(a, b))
    }

    #[inline(always)]
    fn min_floats(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_f32(vminq_f32(floats(a), floats(b))))
    }

    #[inline(always)]
    fn greater(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_u32(vcgtq_f32(floats(a), floats(b))))
    }

    #[inline(always)]
    fn divide_floats(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_f32(vdivq_f32(floats(a), floats(b))))
    }

    #[inline(always)]
    fn sqrt_floats(x: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_f32(vsqrtq_f32(floats(x))))
    }

    #[inline(always)]
    fn add_ints(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_s32(vaddq_s32(sums(a), sums(b))))
    }

    #[inline(always)]
    fn multiply_ints(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_s32(vmulq_s32(sums(a), sums(b))))
    }

    #[inline(always)]
    fn min_ints(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_s32(vminq_s32(sums(a), sums(b))))
    }

    #[inline(always)]
    fn max_ints(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_s32(vmaxq_s32(sums(a), sums(b))))
    }

    #[inline(always)]
    fn signs(x: uint8x16_t) -> uint8x16_t {
        neon!(vreinterpretq_u8_s32(vshrq_n_s32::<31>(sums(x))))
    }
}
