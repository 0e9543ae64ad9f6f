//! Windowed codebooks, and the path search.

use super::{Simd128, load, store};
use crate::search::Floats;
use crate::{Fit, IntQuery, WindowCodebook};
use core::arch::wasm32::*;

forward_to_lanes! {
    Simd128;
    decode_windows(book: &WindowCodebook, row: &[u8], scale: f32, out: &mut [f32]);
    score_windows(book: &WindowCodebook, dim: usize, bytes: &[u8], scale: f32, queries: &[IntQuery], scores: &mut [f32]);
    accumulate_windows(book: &WindowCodebook, dim: usize, bytes: &[u8], scale: f32, weights: &[f32], acc: &mut [f32]);
    viterbi_encode(book: &WindowCodebook, dim: usize, z: &[f32], scales: &[f32], bytes: &mut [u8], fits: &mut [Fit]);
}

impl Floats for Simd128 {
    type F = v128;
    const WIDTH: usize = 4;

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

    #[inline(always)]
    fn add(a: v128, b: v128) -> v128 {
        f32x4_add(a, b)
    }

    #[inline(always)]
    fn error(y: v128, centroid: v128) -> v128 {
        f32x4_abs(f32x4_sub(y, centroid))
    }

    #[inline(always)]
    fn square(error: v128) -> v128 {
        f32x4_mul(error, error)
    }

    /// b < a ? b : a, one instruction of x86 (`f32x4.min` has to look after NaN).
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

    #[inline(always)]
    fn upper(x: v128) -> v128 {
        i32x4_shuffle::<2, 3, 0, 1>(x, x)
    }
}
