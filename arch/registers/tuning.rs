//! Which of several ways to the same bits a kernel takes. What registers can do is in their traits; what their cores do fast is here.

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
    /// `dot_signed` spends an instruction on signs. A symmetric codebook can do without: its codes with all bits flipped stand
    /// for the centroids with the other sign.
    const FLIPS: bool = false;
    /// Codes of three bits are taken from threes of bytes, by `thirds`, and not one by one.
    const THREES: bool = false;
    /// To choose between bytes by the tops of others (`vpblendvb`) is three operations, not one or two.
    const DEAR_CHOICES: bool = false;
    /// There are registers for the sums, codes and indices of eight rows at a time, and not of four.
    const EIGHT_ROWS: bool = false;
    /// Four units of eight rows are worth a loop that is written out.
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

/// Cores with AVX-VNNI: of Intel's those from Alder Lake on, whose `vpblendvb` is three operations. Those before have two,
/// AMD's one.
#[cfg(target_arch = "x86_64")]
impl Tuning for Vnni {
    const THREES: bool = true;
    const DEAR_CHOICES: bool = true;
}

#[cfg(target_arch = "aarch64")]
impl<const DOT: bool> Tuning for Neon<DOT> {
    const EIGHT_ROWS: bool = true;
    /// Without dot products, products take registers: what four units share does not stay in any, and eight rows of 2 and 3 bits took
    /// more cycles than four (45.9 instead of 30.7 and 76.6 instead of 72.2 by the Neoverse N1's model).
    const FOUR_UNITS: bool = DOT;
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
impl Tuning for Simd128 {}
