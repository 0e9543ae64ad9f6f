//! Chunks as products of quaternions, for SIMD128.

use crate::quaternion::{ChunkLayout, QuaternionSet, RadiusSteps};

forward_to_scalar! {
    chunk_norms(x: &[f32], norms: &mut [f32]);
    quaternion_encode(set: &QuaternionSet, x: &[f32], norms: &[f32], steps: RadiusSteps, codes: &mut [u16], radii: &mut [u8]);
    pack_chunks(layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]);
    decode_quaternions(layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]);
    score_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}
