//! Chunks as products of quaternions: lanes are chunks when encoding and decoding, rows when scoring.

mod search;

pub(crate) use search::{chunk_norms, quaternion_encode};

use crate::quaternion::{ChunkLayout, QuaternionSet};

forward_to_scalar! {
    enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni";
    pack_chunks(layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]);
    decode_quaternions(layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]);
    score_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}
