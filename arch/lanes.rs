//! Kernels for registers of 128 bits: one text for NEON and SIMD128, which differ in how some steps are spelled.
//!
//! The table look-up of 16 bytes carries it: a codebook of up to 16 centroids is one register. Integer sums are exact
//! in any order, so scores and weighted sums take coordinates as they come out of the bytes.

mod accumulate;
mod blocks;
mod codes;
mod composed;
mod octahedral;
mod octahedral_encode;
mod quaternion;
mod score;
mod signs;
mod vector;
mod window_eights;
mod windows;

pub(crate) use accumulate::accumulate_codes;
pub(crate) use blocks::{accumulate_blocks, decode_blocks, score_blocks};
pub(crate) use composed::{
    accumulate_affine, accumulate_angles, accumulate_floats, decode_affine, decode_angles, decode_floats,
    score_affine, score_angles, score_floats,
};
pub(crate) use octahedral::{Triplets, accumulate_octahedral, octahedral_decode, score_octahedral};
pub(crate) use octahedral_encode::octahedral_encode;
pub(crate) use quaternion::{
    Quaternions, accumulate_quaternions, decode_quaternions, quaternion_encode, score_quaternions,
};
pub(crate) use score::score_codes;
pub(crate) use signs::score_signs;
pub(crate) use windows::{accumulate_windows, decode_windows, score_windows, viterbi_encode};

pub(crate) use vector::{dot, lookup, pack, quantize, rotate, rotate_inverse, unpack};

use crate::{Float, scalar};

/// What an instruction set must offer. Words are of 16 bits; all is little-endian.
pub(crate) trait Lanes {
    /// A register.
    type V: Copy;
    /// Words in a table that are looked up faster than loaded one by one.
    const TABLE: usize;

    fn load(bytes: &[u8; 16]) -> Self::V;
    /// # Safety
    /// 16 bytes can be read there.
    unsafe fn load_pointer(bytes: *const u8) -> Self::V;
    fn load_words(words: &[i16; 8]) -> Self::V;
    fn load_floats(floats: &[f32; 4]) -> Self::V;
    fn store_floats(floats: &mut [f32; 4], x: Self::V);
    fn store(bytes: &mut [u8; 16], x: Self::V);
    fn store_words(words: &mut [i16; 8], x: Self::V);
    fn store_sums(sums: &mut [i32; 4], x: Self::V);
    fn splat(byte: u8) -> Self::V;
    fn splat_word(word: u16) -> Self::V;
    /// The same two words four times, the lower one first.
    fn splat_pair(words: u32) -> Self::V;

    fn and(a: Self::V, b: Self::V) -> Self::V;
    fn or(a: Self::V, b: Self::V) -> Self::V;
    /// Bits of `a` where the mask has ones, of `b` elsewhere.
    fn select(mask: Self::V, a: Self::V, b: Self::V) -> Self::V;
    fn min_bytes(a: Self::V, b: Self::V) -> Self::V;
    fn sub_bytes(a: Self::V, b: Self::V) -> Self::V;
    fn shift_bytes_right(x: Self::V, bits: u32) -> Self::V;
    fn add_words(a: Self::V, b: Self::V) -> Self::V;
    fn multiply_words(a: Self::V, b: Self::V) -> Self::V;
    fn shift_words_right<const BITS: i32>(x: Self::V) -> Self::V;
    /// The upper bytes of the 16-bit products of unsigned bytes.
    fn multiply_bytes_high(a: Self::V, b: Self::V) -> Self::V;
    /// The upper bytes of 16 words.
    fn upper_bytes(a: Self::V, b: Self::V) -> Self::V;
    /// Words of a lower byte from `low` and an upper byte from `high`.
    fn interleave(low: Self::V, high: Self::V) -> [Self::V; 2];
    /// Signed bytes to words.
    fn extend(bytes: Self::V) -> [Self::V; 2];

    /// Bytes of the table, 0 for an index above 15.
    fn lookup(table: Self::V, index: Self::V) -> Self::V;
    /// Bytes of the table, 0 for an index above 63.
    fn lookup_64(table: &[Self::V; 4], index: Self::V) -> Self::V;
    /// Bytes of the first N registers (1, 2, 4, 8 or 16) of a table, for an index within them.
    fn lookup_within<const N: usize>(table: &[Self::V; 16], index: Self::V) -> Self::V;
    /// Bytes dealt out to registers one by one.
    fn deal_2(bytes: &[u8; 32]) -> [Self::V; 2];
    fn deal_3(bytes: &[u8; 48]) -> [Self::V; 3];
    fn deal_4(bytes: &[u8; 64]) -> [Self::V; 4];

    /// Adds 16 products of signed bytes, within ±127, to four `i32`.
    fn dot_bytes(sums: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Adds 8 products of words to four `i32`.
    fn dot_words(sums: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Adds, to eight `i32`, words of `a` times the first weight and words of `b` times the second one.
    fn add_weighted(sums: [Self::V; 2], a: Self::V, b: Self::V, weights: Self::V) -> [Self::V; 2];
    /// The sum of four `i32`.
    fn sum(x: Self::V) -> i32;

    fn splat_float(x: f32) -> Self::V;
    fn multiply_floats(a: Self::V, b: Self::V) -> Self::V;
    /// Counts, in four `i32`, where `x` ≥ `threshold`.
    fn count_at_least(counts: Self::V, x: Self::V, threshold: Self::V) -> Self::V;
    fn add_floats(a: Self::V, b: Self::V) -> Self::V;
    fn sub_floats(a: Self::V, b: Self::V) -> Self::V;
    /// Elements 0 and 2 of `a` and of `b`, elements 1 and 3 of both.
    fn unzip_floats(a: Self::V, b: Self::V) -> [Self::V; 2];

    /// Little-endian floats.
    #[inline(always)]
    fn decode_floats(format: Float, bytes: &[u8], out: &mut [f32]) {
        scalar::decode_floats(format, bytes, out);
    }
}
