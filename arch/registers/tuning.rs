//! Choices between several ways to the same bits. The register traits say what registers can do;
//! this file says what their cores do fast.

#[cfg(target_arch = "x86_64")]
use super::avx2::{Avx2, Vnni, Ymm};
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use super::simd128::Simd128;

/// Choices for scores of rows of codes. All are off unless a register type turns them on.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "`DEAR_CHOICES` is asked for x86-64 alone")
)]
pub(crate) trait Tuning {
    /// `dot_signed` spends an instruction on signs. A symmetric codebook can avoid it: a code with
    /// all bits inverted stands for the centroid with the other sign.
    const FLIPS: bool = false;
    /// Take codes of three bits from threes of bytes with `thirds`, instead of one by one.
    const THREES: bool = false;
    /// Choosing bytes by the top bits of others (`vpblendvb`) takes three operations, not one or
    /// two.
    const DEAR_CHOICES: bool = false;
    /// There are enough registers for the sums, codes and indices of eight rows at a time, not only
    /// of four.
    const EIGHT_ROWS: bool = false;
    /// Four units of eight rows are worth an unrolled loop.
    const FOUR_UNITS: bool = false;
}

#[cfg(target_arch = "x86_64")]
impl Tuning for Avx2 {
    const FLIPS: bool = true;
}

#[cfg(target_arch = "x86_64")]
impl Tuning for Ymm {
    const FLIPS: bool = true;
    const THREES: bool = true;
}

/// Cores with AVX-VNNI. Intel's from Alder Lake on take three operations for `vpblendvb`. Earlier
/// ones take two, AMD's one.
#[cfg(target_arch = "x86_64")]
impl Tuning for Vnni {
    const THREES: bool = true;
    const DEAR_CHOICES: bool = true;
}

#[cfg(target_arch = "aarch64")]
impl<const DOT: bool> Tuning for Neon<DOT> {
    const EIGHT_ROWS: bool = true;
    /// Without dot products, products take registers. What four units share then does not stay in
    /// registers: by the Neoverse N1's model, eight rows of 2 and 3 bits take 45.9 and 76.6 cycles
    /// instead of 30.7 and 72.2.
    const FOUR_UNITS: bool = DOT;
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
impl Tuning for Simd128 {}
