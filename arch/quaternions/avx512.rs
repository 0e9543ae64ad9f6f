//! Chunks as products of quaternions: lanes are chunks when encoding and decoding, rows when scoring.

/// An expression for each of an array's four registers. A closure is inlined where it is called here, but not always into
/// `array::map`, which is not compiled for this instruction set.
macro_rules! each {
    ($each:pat in $array:expr => $value:expr) => {{
        let ([a, b, c, d], value) = ($array, |$each| $value);
        [value(a), value(b), value(c), value(d)]
    }};
}

mod pack;
mod score;
mod search;
mod unpack;

pub(crate) use pack::pack_chunks;
pub(crate) use score::score_quaternions;
pub(crate) use search::{chunk_norms, encode_quaternions};
pub(crate) use unpack::{accumulate_quaternions, decode_quaternions};
