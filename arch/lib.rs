//! Kernels of [octaplex](https://docs.rs/octaplex) for CPUs. **No stability promise; use
//! `octaplex`.**
//!
//! [`Backend`] is a token. Only detection creates one, so holding it proves that the CPU has the
//! instructions. Each kernel is one safe method. The method checks lengths, then calls the function
//! of the backend. A wrong length is a programming error and panics. Where only the specification
//! runs (microcontrollers), only debug builds check.
//!
//! A folder has one shape of bytes, and all kernels that work on it:
//!
//! ```text
//! SHAPE.rs            methods of `Backend`: length checks, and which implementation runs on which backend
//! SHAPE/layout.rs     where codes and scales lie
//! SHAPE/scalar.rs     the specification: every other implementation equals it bit for bit on finite inputs
//! SHAPE/portable.rs   plain Rust, where the specification is slow: for CPUs without vectors, and for LLVM to vectorise
//! SHAPE/wide.rs       one implementation for `registers` of any instruction set
//! SHAPE/avx2.rs, avx512.rs    implementations for one instruction set, where they are faster
//! ```
#![no_std]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

// Caches on the heap share pages through `Arc`, which needs compare-and-swap. Cargo builds this
// crate before `octaplex`, so this is the only error that users see.
#[cfg(all(feature = "alloc", not(target_has_atomic = "ptr")))]
compile_error!(
    "octaplex's feature `alloc` needs atomic compare-and-swap, which this target lacks (RP2040 and ESP32-C3, among others). \
     Write `octaplex = { ..., default-features = false }`, and keep a `LayerCache` in a `static` or in a buffer of your own."
);

/// Whether wrong lengths and shapes panic. SAFETY comments rely on it.
///
/// Microcontrollers run only the specification, which is safe code whatever the lengths. Their
/// release builds skip the checks, so that no panic is linked for them.
const CHECKED: bool = cfg!(any(
    debug_assertions,
    not(target_os = "none"),
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_feature = "simd128"
));

/// Asserts a condition that callers must have established.
///
/// Methods of [`Backend`] check lengths and shapes with it, and the unsafe code of kernels relies on
/// these checks. So, unlike `debug_assert!`, it also runs in release builds. Only builds without such
/// kernels skip it, see [`CHECKED`].
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
#[doc(hidden)]
pub mod internals;
mod quaternions;
mod scaled;
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
pub use floats::{Float, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use quaternions::layout as quaternion;
pub use rows::{MAX_PAGES, Rows};
pub use scaled::layout::Scaled;
pub use signs::layout::{SignQuery, SignRows};
pub use trellis::layout::{Fit, TrellisCodebook};
pub use triplets::layout::{Search, TripletLayout};
pub use vectors::hadamard;

/// The widest vector that kernels with internal buffers take.
pub const MAX_DIM: usize = 576;

/// The largest weight, in magnitude, that accumulating kernels take: no product or sum leaves `f32`'s range.
pub const MAX_WEIGHT: f32 = 4_294_967_296.0;

/// Checks the width, that the bytes are whole rows, and that every query has the width.
fn check_widths(dim: usize, row_bytes: usize, bytes: &[u8], queries: &[&[f32]]) {
    contract!((1..=MAX_DIM).contains(&dim));
    contract!(bytes.len().is_multiple_of(row_bytes));
    contract!(queries.iter().all(|query| query.len() == dim));
}
