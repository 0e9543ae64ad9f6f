//! Kernels for 64-bit ARM.

pub(crate) mod dotprod;
pub(crate) mod neon;
