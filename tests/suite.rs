//! All tests of the library in one binary, so that codecs are compiled once for all of them: `cargo test --test suite golden`
//! runs one file's.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod allocation;
mod angles;
mod architecture;
mod backends;
mod cache;
mod cells;
mod choosing;
mod chunk;
mod codebooks;
mod common;
mod constants;
mod distortion;
mod fp8;
#[cfg(feature = "alloc")]
mod fuzz_bodies;
mod fuzz_replay;
mod ggml;
mod golden;
mod hqmq;
mod lloyd;
#[cfg(feature = "alloc")]
mod model;
mod octahedral_codebooks;
mod octopus;
mod oracle;
mod outliers;
mod own_codec;
mod own_planes;
mod polarquant;
mod profile;
mod properties;
mod proportion;
mod qjl;
mod quaternions;
mod rates;
mod reference;
mod rotation;
mod sliding;
mod small;
mod snapshot;
mod soak;
mod spec;
mod tq3_0;
mod trellis;
mod untrusted;
mod verify;
