//! Kernels for AVX-512 (F, BW, DQ, VL, VBMI, VNNI).
//!
//! Three instructions carry most of this backend. `vpermb` looks 64 bytes up in a table of 64 bytes: every codebook of
//! up to 16 centroids fits one register, with room to repeat it so that stray high bits of an index do no harm.
//! `vpmultishiftqb` takes eight bytes from any bit offsets of a quadword: with codes of b bits, b bytes become
//! eight codes. `vpdpbusd` adds four products of bytes to each of 16 `i32`. Integer sums are exact in any order,
//! so scores and weighted sums are free to use whatever lane order is fastest; `f32` sums are not, and follow
//! `scalar.rs` lane by lane.
//!
//! Port reasoning below is for Zen 5, where the numbers were taken: two shuffles, two multiplications and two loads
//! of 64 bytes a cycle, one store of 64 bytes, four simple operations in all.

// AVX-512VBMI implies F and BW, and F implies AVX2, FMA and F16C.

mod codes;
mod octahedral;
mod score;

pub(crate) use octahedral::{accumulate_octahedral, octahedral_decode, octahedral_encode, score_octahedral};
pub(crate) use score::score_codes;

use crate::{Affine, Float, Octahedral, Packing, Rows};
use core::arch::x86_64::*;

forward_to_scalar! {
    enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni";
    dot(a: &[f32], b: &[f32]) -> f32;
    max_abs(x: &[f32]) -> f32;
    min_max(x: &[f32]) -> (f32, f32);
    rotate(x: &mut [f32], signs: &[u32], scale: f32);
    rotate_inverse(x: &mut [f32], signs: &[u32], scale: f32);
    multiply_columns(columns: &[f32], x: &[f32], y: &mut [f32]);
    quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]);
    lookup(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]);
    pack(packing: Packing, codes: &[u8], bytes: &mut [u8]);
    unpack(packing: Packing, bytes: &[u8], codes: &mut [u8]);
    quantize_query(x: &[f32], limit: i16, out: &mut [i16]) -> f32;
    accumulate_codes(rows: &Rows, centroids: &[i16], scale: f32, weights: &[f32], acc: &mut [f32]);
    decode_floats(format: Float, bytes: &[u8], out: &mut [f32]);
    encode_floats(format: Float, x: &[f32], bytes: &mut [u8]);
    score_floats(format: Float, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_floats(format: Float, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
    quantize_affine(x: &[f32], zero: f32, scale: f32, offset: i32, range: (i32, i32), codes: &mut [u8]);
    decode_affine(layout: &Affine, row: &[u8], out: &mut [f32]);
    score_affine(layout: &Affine, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_affine(layout: &Affine, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
    score_octahedral_floats(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
}

/// The first up to 64 bytes of a slice, zeros behind them.
#[inline]
#[target_feature(enable = "avx512bw")]
fn load_bytes(bytes: &[u8]) -> __m512i {
    let mask = if bytes.len() < 64 { (1 << bytes.len()) - 1 } else { !0 };
    // SAFETY: a masked load touches no byte whose mask bit is clear, and the mask has `bytes.len()` bits at most.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load<T: Lanes>(values: &T) -> __m512i {
    // SAFETY: `Lanes` are plain numbers of 64 bytes in all.
    unsafe { _mm512_loadu_si512(core::ptr::from_ref(values).cast()) }
}

/// Arrays that fill a register.
trait Lanes {}
impl Lanes for [u8; 64] {}
impl Lanes for [i16; 32] {}
impl Lanes for [u16; 32] {}
impl Lanes for [i32; 16] {}
impl Lanes for [u32; 16] {}
