//! Rows of codes, for AVX-512.

pub(crate) mod accumulate;
pub(crate) mod codebook;
mod pack;
mod quantize;
pub(crate) mod score;
pub(crate) mod unpack;
mod words;

pub(crate) use accumulate::accumulate_codes;
pub(crate) use pack::{pack, unpack};
pub(crate) use quantize::{lookup, quantize};
pub(crate) use score::score_codes;
