//! Vectors of plain floats: sums, extremes, rotations, softmax, and floats in bytes.

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
    /// Σ aᵢ·bᵢ in 16 lanes, then by halves.
    #[must_use]
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        contract!(a.len() == b.len());
        dispatch!(self, avx2: avx2, avx512: avx512, registers: wide; dot(a: &[f32], b: &[f32]) -> f32)
    }

    /// √x, rounded to nearest, NaN below zero.
    #[must_use]
    pub fn sqrt(self, x: f32) -> f32 {
        dispatch!(self, avx2: scalar, avx512: scalar, registers: scalar; sqrt(x: f32) -> f32)
    }

    /// y ← y + x.
    pub fn add(self, x: &[f32], y: &mut [f32]) {
        contract!(x.len() == y.len());
        dispatch!(self, avx2: scalar, avx512: avx512, registers: scalar; add(x: &[f32], y: &mut [f32]))
    }

    /// The largest magnitude; 0 for an empty slice.
    #[must_use]
    pub fn max_abs(self, x: &[f32]) -> f32 {
        dispatch!(self, avx2: scalar, avx512: avx512, registers: scalar; max_abs(x: &[f32]) -> f32)
    }

    /// The smallest and the largest value; (∞, -∞) for an empty slice.
    #[must_use]
    pub fn min_max(self, x: &[f32]) -> (f32, f32) {
        dispatch!(self, avx2: avx2, avx512: avx512, registers: scalar; min_max(x: &[f32]) -> (f32, f32))
    }

    /// x ← scale · H·(signs∘x); `signs` are masks, 0 or the sign bit. The width has a [`hadamard::base`].
    pub fn rotate(self, x: &mut [f32], signs: &[u32], scale: f32) {
        contract!(x.len() == signs.len());
        contract!(hadamard::base(x.len()).is_some());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            rotate(x: &mut [f32], signs: &[u32], scale: f32)
        )
    }

    /// x ← signs∘(scale · Hᵀx).
    pub fn rotate_inverse(self, x: &mut [f32], signs: &[u32], scale: f32) {
        contract!(x.len() == signs.len());
        contract!(hadamard::base(x.len()).is_some());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            rotate_inverse(x: &mut [f32], signs: &[u32], scale: f32)
        )
    }

    /// y = Σⱼ xⱼ·columnⱼ of a dense matrix, stored column by column.
    pub fn multiply_columns(self, columns: &[f32], x: &[f32], y: &mut [f32]) {
        contract!(columns.len() == x.len() * y.len());
        contract!(x.len() == y.len());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: scalar;
            multiply_columns(columns: &[f32], x: &[f32], y: &mut [f32])
        )
    }

    /// out = rint(x · limit/max|x|); returns the value of one unit, max|x|/limit.
    pub fn quantize_query(self, x: &[f32], limit: i16, out: &mut [i16]) -> f32 {
        contract!(x.len() == out.len());
        contract!(limit > 0);
        dispatch!(
            self, avx2: scalar, avx512: avx512, registers: scalar;
            quantize_query(x: &[f32], limit: i16, out: &mut [i16]) -> f32
        )
    }

    /// Reads little-endian floats; finite ones exactly, others to unspecified values.
    pub fn decode_floats(self, format: Float, bytes: &[u8], out: &mut [f32]) {
        contract!(bytes.len() == out.len() * format.bytes());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            decode_floats(format: Float, bytes: &[u8], out: &mut [f32])
        )
    }

    /// The largest bits of little-endian floats without their signs: all are finite if this is below infinity's.
    #[must_use]
    pub fn largest_bits(self, format: Float, bytes: &[u8]) -> u32 {
        contract!(bytes.len().is_multiple_of(format.bytes()));
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            largest_bits(format: Float, bytes: &[u8]) -> u32
        )
    }

    /// Writes little-endian floats, rounded to nearest even.
    pub fn encode_floats(self, format: Float, x: &[f32], bytes: &mut [u8]) {
        contract!(bytes.len() == x.len() * format.bytes());
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            encode_floats(format: Float, x: &[f32], bytes: &mut [u8])
        )
    }

    /// score\[query]\[row] = [`dot`](Self::dot) of the query and the row of `dim` floats.
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

    /// acc\[query] += Σ weight·row, rows ascending; weights are \[query]\[row].
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

    /// x ← (x + `offset`)·`scale`; returns the largest result, -∞ for none.
    #[must_use]
    pub fn scale_logits(self, x: &mut [f32], offset: f32, scale: f32) -> f32 {
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            scale_logits(x: &mut [f32], offset: f32, scale: f32) -> f32
        )
    }

    /// x ← `cap`·tanh(x/`cap`), absolute error below 2·10⁻⁷·`cap`. The cap is positive.
    pub fn soft_cap(self, x: &mut [f32], cap: f32) {
        contract!(cap > 0.0);
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            soft_cap(x: &mut [f32], cap: f32)
        )
    }

    /// x ← e^(x - `max`), relative error below 1.5·10⁻⁷, 0 from -87 down; returns the sum, 16 lanes, then by halves.
    /// No x is above `max`; -∞ gives 0.
    #[must_use]
    pub fn exp_weights(self, x: &mut [f32], max: f32) -> f32 {
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            exp_weights(x: &mut [f32], max: f32) -> f32
        )
    }

    /// Asks for bytes that will be read soon; it changes nothing but time.
    pub fn prefetch(self, bytes: &[u8]) {
        prefetch(bytes);
    }

    /// Benchmark baseline, not bit-exact: scores a page of f16 rows, row by row, as an uncompressed cache would, with
    /// fused multiply-adds where the CPU has them.
    #[doc(hidden)]
    pub fn f16_dot_fma(self, query: &[f32], bytes: &[u8], scores: &mut [f32]) {
        check_widths(query.len(), 2 * query.len(), bytes, &[]);
        contract!(scores.len() == bytes.len() / (2 * query.len()));
        match self.isa {
            // SAFETY: as in `dispatch!`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => unsafe { baseline::f16_dot_fma_avx2(query, bytes, scores) },
            // SAFETY: as in `dispatch!`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { baseline::f16_dot_fma_avx512(query, bytes, scores) },
            _ => self.score_floats(Float::F16, query.len(), bytes, &[query], scores),
        }
    }
}
