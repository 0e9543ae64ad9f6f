//! Registers of NEON, the baseline of 64-bit ARM.

use super::{Integers, Registers};
use crate::{Float, Rows};
use core::arch::aarch64::*;
use core::arch::asm;

/// Registers of NEON. With `DOT` they use dot products of bytes; name that type only on a CPU that
/// has them.
pub(crate) struct Neon<const DOT: bool>;

/// Calls intrinsics in trait methods, which cannot carry `#[target_feature]`.
macro_rules! neon {
    ($($body:tt)*) => {{
        // SAFETY: NEON is part of every aarch64 target with floats. Loads and stores take arrays of
        // their size.
        unsafe { $($body)* }
    }};
}
pub(crate) use neon;

/// Reinterprets a register as words.
fn words(x: uint8x16_t) -> int16x8_t {
    neon!(vreinterpretq_s16_u8(x))
}

/// Reinterprets a register as sums.
fn sums(x: uint8x16_t) -> int32x4_t {
    neon!(vreinterpretq_s32_u8(x))
}

/// Reinterprets a register as floats.
fn floats(x: uint8x16_t) -> float32x4_t {
    neon!(vreinterpretq_f32_u8(x))
}

/// Adds a row of 16 words. Weight LANE of `lower` is for the first eight, and of `upper` for the others.
#[inline(always)]
fn products<const LANE: i32>(
    [a, b, c, d]: [int32x4_t; 4],
    low: int16x8_t,
    high: int16x8_t,
    lower: int16x4_t,
    upper: int16x4_t,
) -> [int32x4_t; 4] {
    neon!([
        vmlal_lane_s16::<LANE>(a, vget_low_s16(low), lower),
        vmlal_high_lane_s16::<LANE>(b, low, lower),
        vmlal_lane_s16::<LANE>(c, vget_low_s16(high), upper),
        vmlal_high_lane_s16::<LANE>(d, high, upper),
    ])
}

impl<const DOT: bool> Integers for Neon<DOT> {
    type V = uint8x16_t;
    const LANES: usize = 1;

    methods! { Self::V;
        and(a, b) = neon!(vandq_u8(a, b));
        or(a, b) = neon!(vorrq_u8(a, b));
        select(mask, a, b) = neon!(vbslq_u8(mask, a, b));
        sub_bytes(a, b) = neon!(vsubq_u8(a, b));
        multiply_words(a, b) = neon!(vreinterpretq_u8_s16(vmulq_s16(words(a), words(b))));
        upper_bytes(a, b) = neon!(vuzp2q_u8(a, b));
        lookup(table, index) = neon!(vqtbl1q_u8(table, index));
    }

    methods! {
        load(bytes: &[u8; 16]) -> Self::V = neon!(vld1q_u8(bytes.as_ptr()));
        load_words(words: &[i16; 8]) -> Self::V = neon!(vreinterpretq_u8_s16(vld1q_s16(words.as_ptr())));
        splat(byte: u8) -> Self::V = neon!(vdupq_n_u8(byte));
        splat_word(word: u16) -> Self::V = neon!(vreinterpretq_u8_u16(vdupq_n_u16(word)));
        shift_bytes_right(x: Self::V, bits: u32) -> Self::V = neon!(vshlq_u8(x, vdupq_n_s8(-(bits as i8))));
    }

    #[inline(always)]
    unsafe fn load_pointers([bytes, _]: [*const u8; 2]) -> Self::V {
        // SAFETY: the caller promises 16 readable bytes. Every aarch64 target has NEON.
        unsafe { vld1q_u8(bytes) }
    }

    #[inline(always)]
    fn splat_pairs([words, _]: [u32; 2]) -> Self::V {
        neon!(vreinterpretq_u8_u32(vdupq_n_u32(words)))
    }

    #[inline(always)]
    fn shift_words_right<const BITS: i32>(x: Self::V) -> Self::V {
        neon!(vreinterpretq_u8_u16(vshrq_n_u16::<BITS>(vreinterpretq_u16_u8(x))))
    }

    #[inline(always)]
    fn multiply_fractions(low: Self::V, high: Self::V, factor: u16) -> Self::V {
        // Eight bits of a fraction are enough if it is rounded up by three quarters.
        neon!({
            let up = |fractions| vreinterpretq_u8_s16(vaddq_s16(words(fractions), vdupq_n_s16(192)));
            let (a, b) = (Self::upper_bytes(up(low), up(high)), Self::splat(factor as u8));
            let low = vmull_u8(vget_low_u8(a), vget_low_u8(b));
            vuzp2q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(vmull_high_u8(a, b)))
        })
    }

    #[inline(always)]
    fn interleave(low: Self::V, high: Self::V) -> [Self::V; 2] {
        neon!([vzip1q_u8(low, high), vzip2q_u8(low, high)])
    }

    #[inline(always)]
    fn extend(bytes: Self::V) -> [Self::V; 2] {
        neon!({
            let bytes = vreinterpretq_s8_u8(bytes);
            [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)].map(|words| vreinterpretq_u8_s16(words))
        })
    }

    #[inline(always)]
    fn lookup_32([a, b]: [Self::V; 2], index: Self::V) -> Self::V {
        neon!(vqtbl2q_u8(uint8x16x2_t(a, b), index))
    }

    #[inline(always)]
    fn lookup_64(&[a, b, c, d]: &[Self::V; 4], index: Self::V) -> Self::V {
        neon!(vqtbl4q_u8(uint8x16x4_t(a, b, c, d), index))
    }

    #[inline(always)]
    fn dot_bytes(total: Self::V, a: Self::V, b: Self::V) -> Self::V {
        if DOT {
            let mut total = total;
            // SAFETY: `Neon<true>` is only used where this instruction was detected. It only uses
            // registers.
            unsafe {
                asm!(
                    ".arch_extension dotprod",
                    "sdot {total:v}.4s, {a:v}.16b, {b:v}.16b",
                    total = inout(vreg) total, a = in(vreg) a, b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            return total;
        }
        // The sum of two products of ±127 fits a word.
        neon!({
            let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
            let products = vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), a, b);
            vreinterpretq_u8_s32(vpadalq_s16(sums(total), products))
        })
    }

    #[inline(always)]
    fn dot_words(total: Self::V, a: Self::V, b: Self::V) -> Self::V {
        neon!({
            let (a, b) = (words(a), words(b));
            let total = vmlal_s16(sums(total), vget_low_s16(a), vget_low_s16(b));
            vreinterpretq_u8_s32(vmlal_high_s16(total, a, b))
        })
    }

    #[inline(always)]
    fn add_weighted([low, high]: [Self::V; 2], a: Self::V, b: Self::V, weights: Self::V) -> [Self::V; 2] {
        neon!({
            let (a, b, weights) = (words(a), words(b), words(weights));
            let low = vmlal_laneq_s16::<0>(sums(low), vget_low_s16(a), weights);
            let low = vmlal_laneq_s16::<1>(low, vget_low_s16(b), weights);
            let high = vmlal_high_laneq_s16::<0>(sums(high), a, weights);
            let high = vmlal_high_laneq_s16::<1>(high, b, weights);
            [vreinterpretq_u8_s32(low), vreinterpretq_u8_s32(high)]
        })
    }

    #[inline(always)]
    fn sum_four([a, b, c, d]: [Self::V; 4]) -> [[i32; 4]; 2] {
        let mut out = [[0; 4]; 2];
        neon!({
            let (ab, cd) = (vpaddq_s32(sums(a), sums(b)), vpaddq_s32(sums(c), sums(d)));
            vst1q_s32(out[0].as_mut_ptr(), vpaddq_s32(ab, cd));
        });
        out
    }

    #[inline(always)]
    fn read_scales<const N: usize>(rows: &Rows, first: usize) -> [f32; N] {
        match rows.halves::<N>(first) {
            Some(halves) => {
                let mut scales = [0.0; N];
                Self::decode_floats(Float::F16, halves.map(u16::to_le_bytes).as_flattened(), &mut scales);
                scales
            }
            None => {
                let mut scales = [0.0; N];
                rows.read_scales(first, &mut scales);
                scales
            }
        }
    }

    #[inline(always)]
    fn add_lanes(x: Self::V) -> [i32; 4] {
        let mut out = [0; 4];
        Self::store_sums(&mut out, x);
        out
    }

    const ROW_DOTS: bool = DOT;

    // With dot products: the upper bytes of four weights, their lower bytes, and the same of the upper halves.
    const WEIGHTS: [[u8; 16]; 2] = if DOT {
        [
            [1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7, 0, 2, 4, 6],
            [1, 5, 9, 13, 0, 4, 8, 12, 3, 7, 11, 15, 2, 6, 10, 14],
        ]
    } else {
        [
            [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7],
            [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15],
        ]
    };

    #[inline(always)]
    fn weave(of: [Self::V; 4]) -> [Self::V; 4] {
        if !DOT {
            return of;
        }
        let [a, b, c, d] = of;
        let ([ac, upper_ac], [bd, upper_bd]) = (Self::interleave(a, c), Self::interleave(b, d));
        let ([a, b], [c, d]) = (Self::interleave(ac, bd), Self::interleave(upper_ac, upper_bd));
        [a, b, c, d]
    }

    #[inline(always)]
    fn add_woven<const J: usize>(total: &mut [Self::V; 8], bytes: Self::V, weights: Self::V) {
        if DOT {
            // SAFETY: `Neon<true>` is only used where these instructions were detected. They only use
            // registers.
            unsafe {
                asm!(
                    ".arch_extension dotprod",
                    "udot {high:v}.4s, {a:v}.16b, {w:v}.4b[{upper}]",
                    "udot {low:v}.4s, {a:v}.16b, {w:v}.4b[{lower}]",
                    high = inout(vreg) total[J], low = inout(vreg) total[J + 4],
                    a = in(vreg) bytes, w = in(vreg) weights,
                    upper = const J / 2 * 2, lower = const J / 2 * 2 + 1,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            return;
        }
        neon!({
            let (bytes, weights) = (vreinterpretq_s8_u8(bytes), words(weights));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            let (lower, upper) = (vget_low_s16(weights), vget_high_s16(weights));
            let [a, b, c, d] = [sums(total[0]), sums(total[1]), sums(total[2]), sums(total[3])];
            let products = match J {
                0 => products::<0>([a, b, c, d], low, high, lower, upper),
                1 => products::<1>([a, b, c, d], low, high, lower, upper),
                2 => products::<2>([a, b, c, d], low, high, lower, upper),
                _ => products::<3>([a, b, c, d], low, high, lower, upper),
            };
            for (total, sum) in total.iter_mut().zip(products) {
                *total = vreinterpretq_u8_s32(sum);
            }
        });
    }
}

impl<const DOT: bool> Registers for Neon<DOT> {
    const TABLE: usize = 64;

    methods! { Self::V;
        min_bytes(a, b) = neon!(vminq_u8(a, b));
        multiply_floats(a, b) = neon!(vreinterpretq_u8_f32(vmulq_f32(floats(a), floats(b))));
        add_floats(a, b) = neon!(vreinterpretq_u8_f32(vaddq_f32(floats(a), floats(b))));
        sub_floats(a, b) = neon!(vreinterpretq_u8_f32(vsubq_f32(floats(a), floats(b))));
        xor(a, b) = neon!(veorq_u8(a, b));
        min_floats(a, b) = neon!(vreinterpretq_u8_f32(vminq_f32(floats(a), floats(b))));
        greater(a, b) = neon!(vreinterpretq_u8_u32(vcgtq_f32(floats(a), floats(b))));
        divide_floats(a, b) = neon!(vreinterpretq_u8_f32(vdivq_f32(floats(a), floats(b))));
        sqrt_floats(x) = neon!(vreinterpretq_u8_f32(vsqrtq_f32(floats(x))));
        add_ints(a, b) = neon!(vreinterpretq_u8_s32(vaddq_s32(sums(a), sums(b))));
        multiply_ints(a, b) = neon!(vreinterpretq_u8_s32(vmulq_s32(sums(a), sums(b))));
        min_ints(a, b) = neon!(vreinterpretq_u8_s32(vminq_s32(sums(a), sums(b))));
        max_ints(a, b) = neon!(vreinterpretq_u8_s32(vmaxq_s32(sums(a), sums(b))));
        signs(x) = neon!(vreinterpretq_u8_s32(vshrq_n_s32::<31>(sums(x))));
        max_floats(a, b) = neon!(vreinterpretq_u8_f32(vmaxq_f32(floats(a), floats(b))));
        equal(a, b) = neon!(vreinterpretq_u8_u32(vceqq_f32(floats(a), floats(b))));
    }

    methods! {
        load_floats(floats: &[f32; 4]) -> Self::V = neon!(vreinterpretq_u8_f32(vld1q_f32(floats.as_ptr())));
        load_pairs(low: &[f32; 2], high: &[f32; 2]) -> Self::V =
            neon!(vreinterpretq_u8_f32(vcombine_f32(vld1_f32(low.as_ptr()), vld1_f32(high.as_ptr()))));
        store(bytes: &mut [u8; 16], x: Self::V) = neon!(vst1q_u8(bytes.as_mut_ptr(), x));
        store_words(out: &mut [i16; 8], x: Self::V) = neon!(vst1q_s16(out.as_mut_ptr(), words(x)));
        store_sums(out: &mut [i32; 4], x: Self::V) = neon!(vst1q_s32(out.as_mut_ptr(), sums(x)));
        store_floats(out: &mut [f32; 4], x: Self::V) = neon!(vst1q_f32(out.as_mut_ptr(), floats(x)));
        sum(x: Self::V) -> i32 = neon!(vaddvq_s32(sums(x)));
        splat_float(x: f32) -> Self::V = neon!(vreinterpretq_u8_f32(vdupq_n_f32(x)));
    }

    #[inline(always)]
    fn lookup_within<const N: usize>(table: &[Self::V; 16], index: Self::V) -> Self::V {
        match N {
            1 => return Self::lookup(table[0], index),
            2 => return neon!(vqtbl2q_u8(uint8x16x2_t(table[0], table[1]), index)),
            _ => {}
        }
        let (blocks, _) = table[..N].as_chunks::<4>();
        let mut found = Self::lookup_64(&blocks[0], index);
        let mut index = index;
        for &[a, b, c, d] in &blocks[1..] {
            // `vqtbx` leaves a byte as it is if the index is outside of its four registers.
            index = Self::sub_bytes(index, Self::splat(64));
            found = neon!(vqtbx4q_u8(found, uint8x16x4_t(a, b, c, d), index));
        }
        found
    }

    #[inline(always)]
    fn load_halves(low: &[u8; 8], high: &[u8; 8]) -> Self::V {
        neon!(vcombine_u8(vld1_u8(low.as_ptr()), vld1_u8(high.as_ptr())))
    }

    #[inline(always)]
    fn deal_halves_2(low: &[u8; 16], high: &[u8; 16]) -> [Self::V; 2] {
        let (a, b) = (Self::load(low), Self::load(high));
        neon!([vuzp1q_u8(a, b), vuzp2q_u8(a, b)])
    }

    #[inline(always)]
    fn deal_halves_3(low: &[u8; 24], high: &[u8; 24]) -> [Self::V; 3] {
        neon!({
            let (low, high) = (vld3_u8(low.as_ptr()), vld3_u8(high.as_ptr()));
            [vcombine_u8(low.0, high.0), vcombine_u8(low.1, high.1), vcombine_u8(low.2, high.2)]
        })
    }

    #[inline(always)]
    fn sum_halves(a: Self::V, b: Self::V) -> [i32; 4] {
        Self::add_lanes(neon!(vreinterpretq_u8_s32(vpaddq_s32(sums(a), sums(b)))))
    }

    const INSERTS: bool = true;

    #[inline(always)]
    fn shift_bytes_left(x: Self::V, bits: u32) -> Self::V {
        neon!(vshlq_u8(x, vdupq_n_s8(bits as i8)))
    }

    #[inline(always)]
    fn insert<const BITS: i32>(lower: Self::V, upper: Self::V) -> Self::V {
        neon!(vsliq_n_u8::<BITS>(lower, upper))
    }

    #[inline(always)]
    fn deal_2(bytes: &[u8; 32]) -> [Self::V; 2] {
        neon!({
            let uint8x16x2_t(a, b) = vld2q_u8(bytes.as_ptr());
            [a, b]
        })
    }

    #[inline(always)]
    fn deal_3(bytes: &[u8; 48]) -> [Self::V; 3] {
        neon!({
            let uint8x16x3_t(a, b, c) = vld3q_u8(bytes.as_ptr());
            [a, b, c]
        })
    }

    #[inline(always)]
    fn deal_4(bytes: &[u8; 64]) -> [Self::V; 4] {
        neon!({
            let uint8x16x4_t(a, b, c, d) = vld4q_u8(bytes.as_ptr());
            [a, b, c, d]
        })
    }

    #[inline(always)]
    fn count_at_least(counts: Self::V, x: Self::V, threshold: Self::V) -> Self::V {
        // A mask is -1, so subtracting it adds 1.
        neon!({
            let mask = vreinterpretq_s32_u32(vcgeq_f32(floats(x), floats(threshold)));
            vreinterpretq_u8_s32(vsubq_s32(sums(counts), mask))
        })
    }

    #[inline(always)]
    fn unzip_floats(a: Self::V, b: Self::V) -> [Self::V; 2] {
        neon!({
            let (a, b) = (floats(a), floats(b));
            [vreinterpretq_u8_f32(vuzp1q_f32(a, b)), vreinterpretq_u8_f32(vuzp2q_f32(a, b))]
        })
    }

    #[inline(always)]
    fn decode_floats(format: Float, bytes: &[u8], out: &mut [f32]) {
        if format != Float::F16 {
            return crate::floats::decode_floats(format, bytes, out);
        }
        let ((chunks, tail), (out, out_tail)) = (bytes.as_chunks::<16>(), out.as_chunks_mut::<8>());
        for (bytes, out) in chunks.iter().zip(out) {
            let halves = Self::load(bytes);
            let (low, high): (uint8x16_t, Self::V);
            // SAFETY: both instructions are part of base NEON and only use registers. Their
            // intrinsics are not stable.
            unsafe {
                asm!(
                    "fcvtl {a:v}.4s, {h:v}.4h",
                    "fcvtl2 {b:v}.4s, {h:v}.8h",
                    h = in(vreg) halves, a = out(vreg) low, b = lateout(vreg) high,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            let (a, b) = out.split_at_mut(4);
            for (place, floats) in [a, b].into_iter().zip([low, high]) {
                if let Some(place) = place.first_chunk_mut() {
                    Self::store_floats(place, floats);
                }
            }
        }
        crate::floats::decode_floats(format, tail, out_tail);
    }

    /// NEON converts f16, but the intrinsics are not stable. Only NaN differs from the
    /// specification.
    #[inline(always)]
    fn encode_floats(format: Float, x: &[f32], bytes: &mut [u8]) {
        if format != Float::F16 {
            return crate::floats::encode_floats(format, x, bytes);
        }
        let ((x, x_tail), (chunks, tail)) = (x.as_chunks::<8>(), bytes.as_chunks_mut::<16>());
        for (x, bytes) in x.iter().zip(chunks) {
            let half = |i: usize| <Self as Registers>::load_floats(x[i..].first_chunk().unwrap_or(&[0.0; 4]));
            let (low, high) = (half(0), half(4));
            let narrow: uint8x16_t;
            // SAFETY: both instructions are part of base NEON and only use registers. They round to
            // nearest even, like Rust.
            unsafe {
                asm!(
                    "fcvtn {n:v}.4h, {a:v}.4s",
                    "fcvtn2 {n:v}.8h, {b:v}.4s",
                    n = out(vreg) narrow, a = in(vreg) low, b = in(vreg) high,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            <Self as Registers>::store(bytes, narrow);
        }
        crate::floats::encode_floats(format, x_tail, tail);
    }

    #[inline(always)]
    fn dot_quads(a: Self::V, b: Self::V) -> Self::V {
        if DOT {
            return Self::dot_bytes(Self::splat(0), a, b);
        }
        // SAFETY: NEON is part of every aarch64 target with floats.
        unsafe {
            // The sum of two products of ±127 fits a word.
            let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
            let pairs = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
            vreinterpretq_u8_s32(vpaddlq_s16(pairs))
        }
    }

    #[inline(always)]
    fn to_floats(x: Self::V) -> Self::V {
        // SAFETY: NEON is part of every aarch64 target with floats.
        unsafe { vreinterpretq_u8_f32(vcvtq_f32_s32(vreinterpretq_s32_u8(x))) }
    }

    #[inline(always)]
    fn load_triplets(x: &[f32; 12]) -> [Self::V; 3] {
        neon!({
            let float32x4x3_t(x, y, z) = vld3q_f32(x.as_ptr());
            [x, y, z].map(|c| vreinterpretq_u8_f32(c))
        })
    }

    #[inline(always)]
    fn load_four(words: [u32; 4]) -> Self::V {
        // SAFETY: NEON is part of every aarch64 target with floats. `words` has 16 bytes.
        unsafe { vreinterpretq_u8_u32(vld1q_u32(words.as_ptr())) }
    }
}
