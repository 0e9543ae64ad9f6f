//! Chunks as products of quaternions: lanes are chunks when encoding and decoding, rows when scoring.

mod pack;
mod score;
mod search;
mod unpack;

pub(crate) use pack::pack_chunks;
pub(crate) use score::score_quaternions;
pub(crate) use search::{chunk_norms, quaternion_encode};
pub(crate) use unpack::{accumulate_quaternions, decode_quaternions};
