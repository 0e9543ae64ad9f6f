//! The path search with NEON: the operations of `search.rs`.

use super::Floats;
use crate::registers::neon::{Neon, neon};
use core::arch::aarch64::*;

impl<const DOT: bool> Floats for Neon<DOT> {
    type F = float32x4_t;
    const WIDTH: usize = 4;

    methods! { float32x4_t;
        add(a, b) = neon!(vaddq_f32(a, b));
        squared(key) = neon!(vmulq_f32(key, key));
        min(a, b) = neon!(vminq_f32(a, b));
        upper(x) = neon!(vextq_f32::<2>(x, x));
    }

    #[inline(always)]
    fn splat(x: f32) -> float32x4_t {
        neon!(vdupq_n_f32(x))
    }

    #[inline(always)]
    fn load(x: &[f32]) -> float32x4_t {
        let x = &x[..4];
        neon!(vld1q_f32(x.as_ptr()))
    }

    #[inline(always)]
    fn store(out: &mut [f32], x: float32x4_t) {
        let out = &mut out[..4];
        neon!(vst1q_f32(out.as_mut_ptr(), x))
    }

    #[inline(always)]
    fn store_bits(out: &mut [u32], x: float32x4_t) {
        let out = &mut out[..4];
        neon!(vst1q_u32(out.as_mut_ptr(), vreinterpretq_u32_f32(x)))
    }

    /// Returns the distance, which takes one instruction.
    #[inline(always)]
    fn distance_key(y: float32x4_t, centroid: float32x4_t) -> float32x4_t {
        neon!(vabdq_f32(y, centroid))
    }

    #[inline(always)]
    fn mark_less(bits: float32x4_t, bit: u32, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        neon!({
            let marked = vandq_u32(vcltq_f32(a, b), vdupq_n_u32(bit));
            vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(bits), marked))
        })
    }

    #[inline(always)]
    fn less(a: float32x4_t, b: float32x4_t) -> u64 {
        let bits = [1, 2, 4, 8];
        neon!(vaddvq_u32(vandq_u32(vcltq_f32(a, b), vld1q_u32(bits.as_ptr())))).into()
    }

    #[inline(always)]
    fn twice(x: float32x4_t) -> [float32x4_t; 2] {
        neon!([vzip1q_f32(x, x), vzip2q_f32(x, x)])
    }
}
