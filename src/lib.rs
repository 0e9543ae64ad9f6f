// The README's examples are tests, and one of them needs a heap.
#![cfg_attr(feature = "alloc", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "alloc"),
    doc = "The compressed key/value cache of transformer attention: see README.md."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod attention;
mod backend;
pub mod cache;
#[cfg(feature = "alloc")]
pub mod cells;
#[cfg(feature = "alloc")]
pub mod chunk;
pub mod codebook;
mod codec;
pub mod codecs;
#[cfg(feature = "alloc")]
mod dynamic;
mod error;
#[cfg(feature = "gpu")]
pub mod gpu;
mod math;
mod page;
mod rotation;
mod rows;
mod sketch;
mod spec;
mod stream;
mod typed;
pub mod verify;

pub use attention::Attend;
pub use backend::Backend;
#[cfg(feature = "alloc")]
pub use cache::KvCache;
pub use cache::{CacheConfig, LayerConfig, Stats};
pub use codecs::CodecSpec;
pub use error::Error;
/// Half-precision floats, which caches take and codecs store; the crate `half`'s.
pub use half::{bf16, f16};
pub use octaplex_arch::with_default_floats;
pub use rows::{Floats, FloatsMut, Rows, RowsMut};
