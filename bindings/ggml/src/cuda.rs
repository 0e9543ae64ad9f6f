//! Caches on GPUs: this library wraps the host's own CUDA devices in place.
//!
//! `CUDA0` stays `CUDA0`. Weights, placement, copies and all operations but those on the cache stay CUDA's own.
//!
//! ```text
//! host                            wrap.rs
//! size of a cache, its buffer ->  told.rs    a compressed size, and a buffer of CUDA's with functions of ours
//! writes inputs               ->  inputs.rs  notes cells and masks; then CUDA's function
//! computes a graph            ->  cut.rs     hands parts without the cache on, and computes those on it:
//!                                 cells.rs     a few tokens: on compressed pages
//!                                              others: CUDA's own operations on rows that are opened to f16
//! ```
//!
//! A cache that cannot be compressed becomes an f16 buffer of CUDA's own (`cache.rs`). Then its operations are CUDA's again.

mod cache;
mod cells;
mod cut;
mod inputs;
mod registry;
mod seam;
mod told;
mod wrap;

pub(crate) use wrap::attach;

use core::ffi::c_int;

/// The kind of an operation, by its number. Numbers differ between versions, and names do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// It only creates a view.
    Nothing,
    SetRows,
    Attend,
    Rope,
    /// It copies a mask to another type.
    Copy,
    Other,
}

fn op_of(name: &[u8]) -> Op {
    match name {
        b"NONE" | b"VIEW" | b"RESHAPE" | b"PERMUTE" | b"TRANSPOSE" => Op::Nothing,
        b"SET_ROWS" => Op::SetRows,
        b"FLASH_ATTN_EXT" => Op::Attend,
        b"ROPE" => Op::Rope,
        b"CPY" | b"CONT" => Op::Copy,
        _ => Op::Other,
    }
}

/// The statuses of `graph_compute`.
type Status = c_int;
