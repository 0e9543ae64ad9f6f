//! NEON with the dot-product instructions of ARMv8.2: scores; everything else is NEON's.

pub(crate) use super::neon::*;
