//! Kernels for vectors of plain floats: sums, extremes, rotations, softmax, and conversions.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod baseline;
pub mod hadamard;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::prefetch::prefetch;
use crate::{Backend, Float, check_widths};

impl Backend {
    /// Returns Σ aᵢ·bᵢ, summed in 16 lanes and then by halves.
    ///
    /// # Panics
    /// If lengths differ.
    #[must_use]
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        contract!(a.len() == b.len());
        dispatch!(self, avx2: avx2, avx512: avx512, registers: wide; dot(a: &[f32], b: &[f32]) -> f32)
    }

    /// Returns √x, rounded to nearest. NaN below zero.
    #[must_use]
    pub fn sqrt(self, x: f32) -> f32 {
        dispatch!(self, avx2: scalar, avx512: scalar, registers: scalar; sqrt(x: f32) -> f32)
    }

    /// Adds `x` to `y`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add(self, x: &[f32], y: &mut [f32]) {
        contract!(x.len() == y.len());
        dispatch!(self, avx2: scalar, avx512: avx512, registers: scalar; add(x: &[f32], y: &mut [f32]))
    }

    /// Returns the largest magnitude, 0 for an empty slice.
    #[must_use]
    pub fn max_abs(self, x: &[f32]) -> f32 {
        dispatch!(self, avx2: scalar, avx512: avx512, registers: scalar; max_abs(x: &[f32]) -> f32)
    }

    /// Returns the smallest and the largest value, (∞, -∞) for an empty slice.
    #[must_use]
    pub fn min_max(self, x: &[f32]) -> (f32, f32) {
        dispatch!(self, avx2: avx2, avx512: avx512, registers: scalar; min_max(x: &[f32]) -> (f32, f32))
    }

    /// Rotates in place: x ← scale · H·(signs∘x).
    ///
    /// `signs` are masks, 0 or the sign bit. The width must have a [`hadamard::base`].
    ///
    /// # Panics
    /// If lengths differ, or the width has no base.
    pub fn rotate(self, x: &mut [f32], signs: &[u32], scale: f32) {
        contract!(x.len() == signs.len());
        contract!(hadamard::base(x.len()).is_some());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            rotate(x: &mut [f32], signs: &[u32], scale: f32)
        )
    }

    /// Rotates back in place: x ← signs∘(scale · Hᵀx).
    ///
    /// # Panics
    /// If lengths differ, or the width has no base.
    pub fn rotate_inverse(self, x: &mut [f32], signs: &[u32], scale: f32) {
        contract!(x.len() == signs.len());
        contract!(hadamard::base(x.len()).is_some());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            rotate_inverse(x: &mut [f32], signs: &[u32], scale: f32)
        )
    }

    /// Multiplies a square matrix, stored column by column, by a vector: y = Σⱼ xⱼ·columnⱼ.
    ///
    /// # Panics
    /// If `columns` is not as long as the square of the width, or lengths differ.
    pub fn multiply_columns(self, columns: &[f32], x: &[f32], y: &mut [f32]) {
        contract!(columns.len() == x.len() * y.len());
        contract!(x.len() == y.len());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: scalar;
            multiply_columns(columns: &[f32], x: &[f32], y: &mut [f32])
        )
    }

    /// Quantises a query: out = rint(x · limit/max|x|). Returns the value of one integer step,
    /// max|x|/limit.
    ///
    /// # Panics
    /// If lengths differ, or `limit` is not positive.
    pub fn quantize_query(self, x: &[f32], limit: i16, out: &mut [i16]) -> f32 {
        contract!(x.len() == out.len());
        contract!(limit > 0);
        dispatch!(
            self, avx2: scalar, avx512: avx512, registers: scalar;
            quantize_query(x: &[f32], limit: i16, out: &mut [i16]) -> f32
        )
    }

    /// Reads little-endian floats exactly. A NaN gives a NaN whose other bits are unspecified.
    ///
    /// # Panics
    /// If `bytes` does not have as many floats as `out`.
    pub fn decode_floats(self, format: Float, bytes: &[u8], out: &mut [f32]) {
        contract!(bytes.len() == out.len() * format.bytes());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            decode_floats(format: Float, bytes: &[u8], out: &mut [f32])
        )
    }

    /// Returns the largest bits of little-endian floats without their signs. All are finite if the
    /// result is below the bits of infinity.
    ///
    /// # Panics
    /// If `bytes` is not whole floats.
    #[must_use]
    pub fn largest_bits(self, format: Float, bytes: &[u8]) -> u32 {
        contract!(bytes.len().is_multiple_of(format.bytes()));
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            largest_bits(format: Float, bytes: &[u8]) -> u32
        )
    }

    /// Writes little-endian floats, rounded to nearest even.
    ///
    /// # Panics
    /// If `bytes` does not have as many floats as `x`.
    pub fn encode_floats(self, format: Float, x: &[f32], bytes: &mut [u8]) {
        contract!(bytes.len() == x.len() * format.bytes());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            encode_floats(format: Float, x: &[f32], bytes: &mut [u8])
        )
    }

    /// Scores every query with every row of `dim` floats, laid out \[query]\[row]:
    /// [`dot`](Self::dot) of the two.
    ///
    /// # Panics
    /// If `bytes` is not whole rows, or queries or scores do not fit them.
    pub fn score_floats(
        self,
        format: Float,
        dim: usize,
        bytes: &[u8],
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        check_widths(dim, dim * format.bytes(), bytes, queries);
        contract!(scores.len() == queries.len() * (bytes.len() / (dim * format.bytes())));
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            score_floats(format: Float, dim: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32])
        )
    }

    /// Adds Σ weight·row to `acc`, laid out \[query]\[dim], rows in ascending order. Weights are
    /// laid out \[query]\[row].
    ///
    /// # Panics
    /// If `bytes` is not whole rows, or `acc` and weights do not fit them.
    pub fn accumulate_floats(
        self,
        format: Float,
        dim: usize,
        bytes: &[u8],
        weights: &[f32],
        acc: &mut [f32],
    ) {
        check_widths(dim, dim * format.bytes(), bytes, &[]);
        contract!(acc.len().is_multiple_of(dim));
        contract!(weights.len() == acc.len() / dim * (bytes.len() / (dim * format.bytes())));
        if !bytes.is_empty() {
            dispatch!(
                self, avx2: avx2, avx512: avx512, registers: wide;
                accumulate_floats(format: Float, dim: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32])
            )
        }
    }

    /// Scales logits in place: x ← (x + `offset`)·`scale`. Returns the largest result, -∞ for none.
    #[must_use]
    pub fn scale_logits(self, x: &mut [f32], offset: f32, scale: f32) -> f32 {
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: scalar;
            scale_logits(x: &mut [f32], offset: f32, scale: f32) -> f32
        )
    }

    /// Applies a soft cap: x ← `cap`·tanh(x/`cap`), with an absolute error below 2·10⁻⁷·`cap`. The
    /// cap must be positive.
    ///
    /// # Panics
    /// If `cap` is not positive.
    pub fn soft_cap(self, x: &mut [f32], cap: f32) {
        contract!(cap > 0.0);
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            soft_cap(x: &mut [f32], cap: f32)
        )
    }

    /// Turns logits into weights: x ← e^(x - `max`). Returns their sum, added in 16 lanes and then
    /// by halves.
    ///
    /// The relative error is below 1.5·10⁻⁷. From -87 down the weight is 0, also for -∞. No x may
    /// be above `max`.
    #[must_use]
    pub fn exp_weights(self, x: &mut [f32], max: f32) -> f32 {
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            exp_weights(x: &mut [f32], max: f32) -> f32
        )
    }

    /// Prefetches bytes that will be read soon. It changes nothing but time.
    pub fn prefetch(self, bytes: &[u8]) {
        prefetch(bytes);
    }

    /// Scores a page of f16 rows, row by row, as an uncompressed cache would. For benchmarks only:
    /// it fuses multiply-adds where the CPU can, so it is not bit-exact.
    #[doc(hidden)]
    pub fn f16_dot_fma(self, query: &[f32], bytes: &[u8], scores: &mut [f32]) {
        check_widths(query.len(), 2 * query.len(), bytes, &[]);
        contract!(scores.len() == bytes.len() / (2 * query.len()));
        match self.isa {
            // SAFETY: `detect.rs` creates tokens of these two only after it has found AVX2, FMA and F16C.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => unsafe { baseline::f16_dot_fma_avx2(query, bytes, scores) },
            // SAFETY: `detect.rs` creates tokens of these two only after it has found AVX-512.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { baseline::f16_dot_fma_avx512(query, bytes, scores) },
            _ => self.score_floats(Float::F16, query.len(), bytes, &[query], scores),
        }
    }
}
