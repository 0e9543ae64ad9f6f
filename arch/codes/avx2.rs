//! Rows of codes, for AVX2, where it beats the text for registers on a Sapphire Rapids: quantising (1.4 times with 8 levels,
//! 2 to 6 with more), looking up (1.3 to 2 times), packing bits (2 times), scores and sums of
//! many queries (1.1 to 2 times).

pub(crate) mod many;
mod pack;
mod quantize;

pub(crate) use many::{accumulate_codes, score_codes};
pub(crate) use pack::pack;
pub(crate) use quantize::{lookup, quantize};
