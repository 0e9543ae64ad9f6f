//! Registers of WebAssembly SIMD128.

use super::{Integers, Registers};
use crate::Rows;
use core::arch::wasm32::*;

/// Registers of SIMD128.
pub(crate) struct Simd128;

/// Loads a register.
pub(crate) fn load<T: Lanes16>(array: &T) -> v128 {
    // SAFETY: `Lanes16` are plain numbers of 16 bytes in all.
    unsafe { v128_load(core::ptr::from_ref(array).cast()) }
}

/// Stores a register.
pub(crate) fn store<T: Lanes16>(array: &mut T, x: v128) {
    // SAFETY: `Lanes16` are plain numbers of 16 bytes in all, and any bits are such numbers.
    unsafe { v128_store(core::ptr::from_mut(array).cast(), x) }
}

/// Arrays that fill a register.
pub(crate) trait Lanes16 {}
impl Lanes16 for [u8; 16] {}
impl Lanes16 for [i16; 8] {}
impl Lanes16 for [i32; 4] {}
impl Lanes16 for [f32; 4] {}

impl Simd128 {
    /// Returns the bytes at even positions of two registers.
    #[inline(always)]
    fn even_bytes(a: v128, b: v128) -> v128 {
        u8x16_shuffle::<0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30>(a, b)
    }
}

impl Integers for Simd128 {
    type V = v128;
    const LANES: usize = 1;

    methods! { v128;
        and(a, b) = v128_and(a, b);
        or(a, b) = v128_or(a, b);
        select(mask, a, b) = v128_bitselect(a, b, mask);
        sub_bytes(a, b) = u8x16_sub(a, b);
        multiply_words(a, b) = i16x8_mul(a, b);
        upper_bytes(a, b) = u8x16_shuffle::<1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31>(a, b);
        lookup(table, index) = u8x16_swizzle(table, index);
        dot_words(sums, a, b) = i32x4_add(sums, i32x4_dot_i16x8(a, b));
    }

    methods! {
        load(bytes: &[u8; 16]) -> v128 = load(bytes);
        load_words(words: &[i16; 8]) -> v128 = load(words);
        splat(byte: u8) -> v128 = u8x16_splat(byte);
        splat_word(word: u16) -> v128 = u16x8_splat(word);
        shift_bytes_right(x: v128, bits: u32) -> v128 = u8x16_shr(x, bits);
        extend(bytes: v128) -> [v128; 2] = [i16x8_extend_low_i8x16(bytes), i16x8_extend_high_i8x16(bytes)];
    }

    #[inline(always)]
    unsafe fn load_pointers([bytes, _]: [*const u8; 2]) -> v128 {
        // SAFETY: the caller promises it.
        unsafe { v128_load(bytes.cast()) }
    }

    #[inline(always)]
    fn splat_pairs([words, _]: [u32; 2]) -> v128 {
        u32x4_splat(words)
    }

    #[inline(always)]
    fn shift_words_right<const BITS: i32>(x: v128) -> v128 {
        u16x8_shr(x, BITS as u32)
    }

    #[inline(always)]
    fn multiply_fractions(low: v128, high: v128, factor: u16) -> v128 {
        // Eight bits of a fraction are enough if it is rounded up by three quarters.
        let up = u16x8_splat(192);
        let (a, b) = (Self::upper_bytes(i16x8_add(low, up), i16x8_add(high, up)), u8x16_splat(factor as u8));
        Self::upper_bytes(u16x8_extmul_low_u8x16(a, b), u16x8_extmul_high_u8x16(a, b))
    }

    #[inline(always)]
    fn interleave(low: v128, high: v128) -> [v128; 2] {
        [
            u8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(low, high),
            u8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(low, high),
        ]
    }

    #[inline(always)]
    fn lookup_32([a, b]: [v128; 2], index: v128) -> v128 {
        v128_or(u8x16_swizzle(a, index), u8x16_swizzle(b, u8x16_sub(index, u8x16_splat(16))))
    }

    #[inline(always)]
    fn lookup_64(&[a, b, c, d]: &[v128; 4], index: v128) -> v128 {
        let from = |start| u8x16_sub(index, u8x16_splat(start));
        let low = v128_or(u8x16_swizzle(a, index), u8x16_swizzle(b, from(16)));
        v128_or(low, v128_or(u8x16_swizzle(c, from(32)), u8x16_swizzle(d, from(48))))
    }

    /// Extends the bytes at even positions to words.
    #[inline(always)]
    fn magnitudes(signed: v128) -> v128 {
        i16x8_shr(i16x8_shl(signed, 8), 8)
    }

    /// Extending unsigned bytes takes one instruction for every second byte. Signed bytes take two
    /// or three on x86-64.
    const BIAS: u8 = 128;
    #[inline(always)]
    fn dot_signed(sums: v128, a: v128, magnitudes: v128, signed: v128) -> v128 {
        let even = i32x4_dot_i16x8(v128_and(a, u16x8_splat(0xff)), magnitudes);
        let odd = i32x4_dot_i16x8(u16x8_shr(a, 8), i16x8_shr(signed, 8));
        i32x4_add(sums, i32x4_add(even, odd))
    }

    #[inline(always)]
    fn dot_bytes(sums: v128, a: v128, b: v128) -> v128 {
        let ([a, b], [c, d]) = (Self::extend(a), Self::extend(b));
        i32x4_add(sums, i32x4_add(i32x4_dot_i16x8(a, c), i32x4_dot_i16x8(b, d)))
    }

    #[inline(always)]
    fn add_weighted([low, high]: [v128; 2], a: v128, b: v128, weights: v128) -> [v128; 2] {
        let pairs_low = i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(a, b);
        let pairs_high = i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(a, b);
        [
            i32x4_add(low, i32x4_dot_i16x8(pairs_low, weights)),
            i32x4_add(high, i32x4_dot_i16x8(pairs_high, weights)),
        ]
    }

    #[inline(always)]
    fn sum_four([a, b, c, d]: [v128; 4]) -> [[i32; 4]; 2] {
        let pairs = |x, y| i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(x, y), i32x4_shuffle::<1, 3, 5, 7>(x, y));
        [Self::add_lanes(pairs(pairs(a, b), pairs(c, d))), [0; 4]]
    }

    #[inline(always)]
    fn read_scales<const N: usize>(rows: &Rows, first: usize) -> [f32; N] {
        let mut scales = [0.0; N];
        let Some(halves) = rows.halves::<N>(first) else {
            rows.read_scales(first, &mut scales);
            return scales;
        };
        let halves = halves.as_chunks().0;
        for (i, out) in scales.as_chunks_mut().0.iter_mut().enumerate() {
            let [a, b, c, d, e, f, g, h] = halves[i / 2];
            let halves = u16x8(a, b, c, d, e, f, g, h);
            let bits =
                if i % 2 == 0 { u32x4_extend_low_u16x8(halves) } else { u32x4_extend_high_u16x8(halves) };
            // The same operations as in `f16_to_f32`.
            let magnitude = u32x4_shl(v128_and(bits, u32x4_splat(0x7fff)), 13);
            let value = f32x4_mul(magnitude, f32x4_splat(f32::from_bits((112 + 127) << 23)));
            let ones = u32x4_ge(magnitude, u32x4_splat(0x7c00 << 13));
            let value = v128_or(value, v128_and(ones, u32x4_splat(0x7f80_0000)));
            store(out, v128_or(value, u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16)));
        }
        scales
    }

    #[inline(always)]
    fn add_lanes(x: v128) -> [i32; 4] {
        let mut out = [0; 4];
        store(&mut out, x);
        out
    }
}

impl Registers for Simd128 {
    const TABLE: usize = 16;

    methods! { v128;
        min_bytes(a, b) = u8x16_min(a, b);
        multiply_floats(a, b) = f32x4_mul(a, b);
        add_floats(a, b) = f32x4_add(a, b);
        sub_floats(a, b) = f32x4_sub(a, b);
        to_floats(x) = f32x4_convert_i32x4(x);
        xor(a, b) = v128_xor(a, b);
        min_floats(a, b) = f32x4_pmin(a, b);
        greater(a, b) = f32x4_gt(a, b);
        divide_floats(a, b) = f32x4_div(a, b);
        sqrt_floats(x) = f32x4_sqrt(x);
        add_ints(a, b) = i32x4_add(a, b);
        multiply_ints(a, b) = i32x4_mul(a, b);
        min_ints(a, b) = i32x4_min(a, b);
        max_ints(a, b) = i32x4_max(a, b);
        signs(x) = i32x4_shr(x, 31);
        max_floats(a, b) = f32x4_pmax(a, b);
        equal(a, b) = f32x4_eq(a, b);
    }

    methods! {
        load_floats(floats: &[f32; 4]) -> v128 = load(floats);
        load_pairs(low: &[f32; 2], high: &[f32; 2]) -> v128 = {
            // SAFETY: the arrays hold the eight bytes that are read.
            unsafe { v128_load64_lane::<1>(v128_load64_zero(low.as_ptr().cast()), high.as_ptr().cast()) }
        };
        store(bytes: &mut [u8; 16], x: v128) = store(bytes, x);
        store_words(words: &mut [i16; 8], x: v128) = store(words, x);
        store_sums(sums: &mut [i32; 4], x: v128) = store(sums, x);
        store_floats(floats: &mut [f32; 4], x: v128) = store(floats, x);
        splat_float(x: f32) -> v128 = f32x4_splat(x);
    }

    #[inline(always)]
    fn lookup_within<const N: usize>(table: &[v128; 16], index: v128) -> v128 {
        // Not a loop, because it would not be unrolled.
        let part = |i: usize| u8x16_swizzle(table[i], u8x16_sub(index, u8x16_splat(16 * i as u8)));
        let parts = |i: usize| v128_or(v128_or(part(i), part(i + 1)), v128_or(part(i + 2), part(i + 3)));
        match N {
            1 => u8x16_swizzle(table[0], index),
            2 => v128_or(part(0), part(1)),
            4 => parts(0),
            8 => v128_or(parts(0), parts(4)),
            _ => v128_or(v128_or(parts(0), parts(4)), v128_or(parts(8), parts(12))),
        }
    }

    #[inline(always)]
    fn load_halves(low: &[u8; 8], high: &[u8; 8]) -> v128 {
        // SAFETY: the arrays hold the eight bytes that are read.
        unsafe { v128_load64_lane::<1>(v128_load64_zero(low.as_ptr().cast()), high.as_ptr().cast()) }
    }

    #[inline(always)]
    fn deal_halves_2(low: &[u8; 16], high: &[u8; 16]) -> [v128; 2] {
        let (a, b) = (load(low), load(high));
        [Self::even_bytes(a, b), Self::upper_bytes(a, b)]
    }

    #[inline(always)]
    fn deal_2(bytes: &[u8; 32]) -> [v128; 2] {
        let (parts, _) = bytes.as_chunks::<16>();
        let [a, b] = [0, 1].map(|i| load(&parts[i]));
        [Self::even_bytes(a, b), Self::upper_bytes(a, b)]
    }

    #[inline(always)]
    fn deal_3(bytes: &[u8; 48]) -> [v128; 3] {
        let (parts, _) = bytes.as_chunks::<16>();
        let [a, b, c] = [0, 1, 2].map(|i| load(&parts[i]));
        // First from the first two registers, then from the third.
        let x = u8x16_shuffle::<0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0>(a, b);
        let y = u8x16_shuffle::<1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0>(a, b);
        let z = u8x16_shuffle::<2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0>(a, b);
        [
            u8x16_shuffle::<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29>(x, c),
            u8x16_shuffle::<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30>(y, c),
            u8x16_shuffle::<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31>(z, c),
        ]
    }

    #[inline(always)]
    fn deal_4(bytes: &[u8; 64]) -> [v128; 4] {
        let (parts, _) = bytes.as_chunks::<16>();
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| load(&parts[i]));
        let (low, high) = (Self::even_bytes(a, b), Self::even_bytes(c, d));
        let (low_odd, high_odd) = (Self::upper_bytes(a, b), Self::upper_bytes(c, d));
        [
            Self::even_bytes(low, high),
            Self::even_bytes(low_odd, high_odd),
            Self::upper_bytes(low, high),
            Self::upper_bytes(low_odd, high_odd),
        ]
    }

    #[inline(always)]
    fn sum(x: v128) -> i32 {
        let x = i32x4_add(x, i32x4_shuffle::<2, 3, 0, 1>(x, x));
        i32x4_extract_lane::<0>(x) + i32x4_extract_lane::<1>(x)
    }

    #[inline(always)]
    fn count_at_least(counts: v128, x: v128, threshold: v128) -> v128 {
        // A mask is -1, so subtracting it adds 1.
        i32x4_sub(counts, f32x4_ge(x, threshold))
    }

    #[inline(always)]
    fn unzip_floats(a: v128, b: v128) -> [v128; 2] {
        [i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b)]
    }

    #[inline(always)]
    fn dot_quads(a: v128, b: v128) -> v128 {
        // Sums of two products, then of two such sums.
        let low = i32x4_dot_i16x8(i16x8_extend_low_i8x16(a), i16x8_extend_low_i8x16(b));
        let high = i32x4_dot_i16x8(i16x8_extend_high_i8x16(a), i16x8_extend_high_i8x16(b));
        i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(low, high), i32x4_shuffle::<1, 3, 5, 7>(low, high))
    }

    #[inline(always)]
    fn load_triplets(x: &[f32; 12]) -> [v128; 3] {
        // The three registers hold x y z x, y z x y and z x y z.
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
    fn load_four([a, b, c, d]: [u32; 4]) -> v128 {
        u32x4(a, b, c, d)
    }
}
