//! CPU kernels of [octaplex](https://docs.rs/octaplex). **No stability promise; use `octaplex`.**
//!
//! [`Backend`] is a token: it can only be obtained from detection, so holding one proves that the CPU has its
//! instructions. Each kernel is one safe method; the methods check lengths (a wrong one is a programming error and
//! panics; on boards that run the specification alone, in debug builds) and jump to the backend's function.
//!
//! A folder is a shape of bytes and all that is computed on it. `layout.rs` is the shape, `scalar.rs` the specification:
//! every other text equals it bit for bit on finite inputs. `portable.rs` is plain Rust where the specification is slow:
//! for LLVM to vectorise, and for CPUs without vectors. `wide.rs` is written once for `registers` of any
//! instruction set; `avx2.rs` and `avx512.rs` are written for one, where that is faster. The folder's own file has the
//! methods of [`Backend`]: the contract, and which text each backend runs.
#![no_std]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

// Caches on the heap share pages by `Arc`, which needs compare-and-swap. Cargo builds this crate before `octaplex`, so that this is the only error.
#[cfg(all(feature = "alloc", not(target_has_atomic = "ptr")))]
compile_error!(
    "octaplex's feature `alloc` needs atomic compare-and-swap, which this target lacks (RP2040 and ESP32-C3, among others). \
     Write `octaplex = { ..., default-features = false }`, and keep a `LayerCache` in a `static` or in a buffer of your own."
);

/// Whether a wrong length or shape panics, as SAFETY comments rely on it. Boards without kernels of their own run the specification, where no
/// memory depends on one: their release builds link no panic for it.
const CHECKED: bool = cfg!(any(
    debug_assertions,
    not(target_os = "none"),
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_feature = "simd128"
));

/// What callers have checked.
macro_rules! contract {
    ($condition:expr) => {
        if $crate::CHECKED {
            assert!($condition);
        }
    };
}

#[macro_use]
mod dispatch;
mod detect;
mod environment;
mod floats;
mod prefetch;
#[macro_use]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
mod registers;
mod rows;

mod affine;
mod angles;
mod blocks;
mod codes;
#[cfg(feature = "gpu")]
pub mod device;
mod quaternions;
mod signs;
mod trellis;
mod triplets;
mod vectors;

pub use affine::layout::Affine;
pub use angles::layout::{AngleTree, Angles};
pub use blocks::layout::{BLOCK_BYTES, BLOCK_VALUES, BlockBook};
pub use codes::layout::{IntQuery, Packing};
pub use detect::Backend;
pub use environment::with_default_floats;
pub use floats::Float;
pub use quaternions::layout as quaternion;
pub use rows::Rows;
pub use signs::layout::{SignQuery, SignRows};
pub use trellis::layout::{Fit, TrellisCodebook};
pub use triplets::layout::{Search, TripletLayout};
pub use vectors::hadamard;

/// The widest vector that kernels with internal buffers take.
pub const MAX_DIM: usize = 576;

/// The largest weight, in magnitude, that accumulating kernels take: no product or sum leaves `f32`'s range.
pub const MAX_WEIGHT: f32 = 4_294_967_296.0;

fn check_widths(dim: usize, row_bytes: usize, bytes: &[u8], queries: &[&[f32]]) {
    contract!((1..=MAX_DIM).contains(&dim));
    contract!(bytes.len().is_multiple_of(row_bytes));
    contract!(queries.iter().all(|query| query.len() == dim));
}
