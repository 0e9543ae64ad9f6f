//! Kernels for AVX2.

mod softmax;

pub(crate) use softmax::*;

use crate::{Affine, Float, IntQuery, Packing, Rows};

forward_to_scalar! {
    enable = "avx2,fma,f16c";
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
    score_codes(rows: &Rows, centroids: &[i16], scale: f32, queries: &[IntQuery], scores: &mut [f32]);
    accumulate_codes(rows: &Rows, centroids: &[i16], scale: f32, weights: &[f32], acc: &mut [f32]);
    decode_floats(format: Float, bytes: &[u8], out: &mut [f32]);
    encode_floats(format: Float, x: &[f32], bytes: &mut [u8]);
    score_floats(format: Float, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_floats(format: Float, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
    quantize_affine(x: &[f32], zero: f32, scale: f32, offset: i32, range: (i32, i32), codes: &mut [u8]);
    decode_affine(layout: &Affine, row: &[u8], out: &mut [f32]);
    score_affine(layout: &Affine, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_affine(layout: &Affine, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}
