//! Rows of codes, for AVX2: `vpshufb` looks up sixteen bytes, shifts of bytes are multiplications of words, and
//! `vpmaddubsw` with `vpmaddwd` adds four products of bytes.

mod accumulate;
pub(crate) mod codebook;
mod pack;
mod quantize;
mod score;
pub(crate) mod unpack;

pub(crate) use accumulate::accumulate_codes;
pub(crate) use pack::{pack, unpack};
pub(crate) use quantize::{lookup, quantize};
pub(crate) use score::score_codes;
