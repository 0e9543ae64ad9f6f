//! Sign sketches (QJL): one bit a coordinate of a transformed vector, and an unbiased estimate of its product with
//! a query that was transformed the same way but kept its values.
//!
//! With a vector r, a transform T and s = sgn(T·r), the estimate of <q, r> is c·‖r‖·<T·q, s>. The constant belongs to
//! the transform: √(π/2)/D for a dense matrix of independent N(0,1) numbers (`gauss`), √π·Γ((D+1)/2)/(D·Γ(D/2)) for a
//! random orthonormal one (`wht`; E|y₀| of a uniform unit vector is its reciprocal over D). They are not
//! interchangeable.
//!
//! One Hadamard round maps a one-hot vector to D equal magnitudes, which is not what a random rotation does: its
//! estimates of <r, r> come out 1.2533 times too large. Two rounds are the default.

use crate::backend::Kernels;
use crate::codec::query::QueryFormat;
use crate::codec::scratch::with_scratch;
use crate::rotation::Rotation;
#[cfg(feature = "alloc")]
use crate::rotation::multiply_columns;
use crate::spec::{Key, Value, one_of, parse_int};
use crate::stream::Purpose;
use crate::stream::Stream;
use crate::{Backend, Error};
#[cfg(feature = "alloc")]
use alloc::{boxed::Box, vec::Vec};
use octaplex_arch::{MAX_DIM, SignRows};

/// Which family of sketches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SketchKind {
    /// Seeded signs and the Walsh-Hadamard transform: orthonormal, O(D log D).
    #[default]
    Wht,
    /// A dense matrix of independent N(0,1) numbers, as published; needs the feature `alloc`, O(D²).
    Gauss,
}

/// `sketch=wht,sketch_rounds=2`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SketchSpec {
    /// The family.
    pub kind: SketchKind,
    /// Rounds of signs and Hadamard transform, 1 to 3.
    pub rounds: u8,
}

impl Default for SketchSpec {
    fn default() -> Self {
        Self::new()
    }
}

impl SketchSpec {
    /// Everything by default.
    #[must_use]
    pub const fn new() -> Self {
        Self { kind: SketchKind::Wht, rounds: 2 }
    }

    /// The same of another family.
    #[must_use]
    pub const fn kind(self, kind: SketchKind) -> Self {
        Self { kind, ..self }
    }

    /// The same with 1 to 3 rounds of signs and Hadamard transform.
    #[must_use]
    pub const fn rounds(self, rounds: u8) -> Self {
        Self { rounds, ..self }
    }

    const NAMES: [(&'static str, SketchKind); 2] = [("wht", SketchKind::Wht), ("gauss", SketchKind::Gauss)];
    const ROUNDS: Key = Key::new("sketch_rounds", "1..=3");

    /// The two keys, in the order of printing.
    pub(crate) const KEYS: [Key; 2] = [Key::new("sketch", "wht, gauss"), Self::ROUNDS];

    /// Sets key 0 or 1 of [`KEYS`](Self::KEYS).
    pub(crate) fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.kind = one_of(value, &Self::NAMES)?,
            _ => self.rounds = parse_int(value, 1..=3)? as u8,
        }
        Some(())
    }

    pub(crate) fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::word(self.kind, &Self::NAMES),
            _ => Value::Int(self.rounds.into()),
        }
    }

    /// Bytes of a sign plane.
    pub(crate) const fn bytes(dim: usize) -> usize {
        dim / 8
    }
}

/// The transform T and its constant.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    backend: Kernels,
    transform: Transform,
    /// c, for vectors given by their norm.
    scale: f32,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // boxes need an allocator
enum Transform {
    Wht(Rotation),
    /// S column by column, and row by row.
    #[cfg(feature = "alloc")]
    Gauss {
        columns: Box<[f32]>,
        rows: Box<[f32]>,
    },
}

impl Sketch {
    /// # Errors
    /// [`Error::Value`] for rounds outside 1 to 3; [`Error::Width`] where no Hadamard matrix is offered;
    /// [`Error::Unsupported`] for a dense sketch of several rounds, or without `alloc`.
    pub(crate) fn build(
        spec: SketchSpec,
        dim: usize,
        seed: u64,
        backend: Backend,
        stream: Stream,
    ) -> Result<Self, Error> {
        if !(1..=3).contains(&spec.rounds) {
            return Err(SketchSpec::ROUNDS.error(0));
        }
        match spec.kind {
            SketchKind::Wht => {
                let rotation = Rotation::wht(dim, spec.rounds, seed, Purpose::SketchSigns, stream)?;
                let scale = orthonormal_scale(dim) as f32;
                Ok(Self { backend: backend.kernels(), transform: Transform::Wht(rotation), scale })
            }
            SketchKind::Gauss if spec.rounds != SketchSpec::default().rounds => {
                Err(Error::Unsupported { why: "sketch=gauss is one dense matrix; leave sketch_rounds out" })
            }
            #[cfg(feature = "alloc")]
            SketchKind::Gauss => {
                let transform = gaussian(dim, seed, stream);
                let scale = libm::sqrt(core::f64::consts::FRAC_PI_2) / dim as f64;
                Ok(Self { backend: backend.kernels(), transform, scale: scale as f32 })
            }
            #[cfg(not(feature = "alloc"))]
            SketchKind::Gauss => {
                Err(Error::Unsupported { why: "sketch=gauss needs the feature alloc; use sketch=wht" })
            }
        }
    }

    /// x ← T·x.
    fn forward(&self, x: &mut [f32]) {
        match &self.transform {
            Transform::Wht(rotation) => rotation.forward(self.backend, x),
            #[cfg(feature = "alloc")]
            Transform::Gauss { columns, .. } => multiply_columns(self.backend, columns, x),
        }
    }

    /// x ← Tᵀ·x.
    pub(crate) fn transposed(&self, x: &mut [f32]) {
        match &self.transform {
            Transform::Wht(rotation) => rotation.inverse(self.backend, x),
            #[cfg(feature = "alloc")]
            Transform::Gauss { rows, .. } => multiply_columns(self.backend, rows, x),
        }
    }

    /// Writes the sign plane of `residual`, and leaves its transform there.
    pub(crate) fn encode(&self, residual: &mut [f32], plane: &mut [u8]) {
        self.forward(residual);
        self.backend.pack_signs(residual, plane);
    }

    /// c·norm·Tᵀs, the reconstruction whose products with a query are the estimates.
    pub(crate) fn decode(&self, plane: &[u8], norm: f32, x: &mut [f32]) {
        self.backend.unpack_signs(plane, norm * self.scale, x);
        self.transposed(x);
    }

    /// Sketches the query, given in the basis in which vectors are sketched; leaves its transform there.
    pub(crate) fn prepare(&self, format: &QueryFormat, basis: &mut [f32], query: &mut [f32]) {
        self.forward(basis);
        let (scale, values) = format.sketch_mut(query);
        let mut ints = [0; MAX_DIM];
        let ints = &mut ints[..basis.len()];
        *scale = self.backend.quantize_query(basis, 127, ints);
        values.iter_mut().zip(ints).for_each(|(value, int)| *value = *int as i8);
    }

    /// Adds the estimates to `scores`, \[query]\[row].
    pub(crate) fn score(
        &self,
        format: &QueryFormat,
        queries: &[&[f32]],
        rows: &SignRows,
        scores: &mut [f32],
    ) -> Result<(), Error> {
        format.in_sketch_batches(queries, scores, |queries, scores| {
            self.backend.score_signs(rows, self.scale, queries, scores);
        })
    }

    /// acc\[query] += Σ weight·c·row scale·s, *in the sketch's basis*: [`transposed`](Self::transposed) brings it back.
    pub(crate) fn accumulate_sketched(&self, weights: &[f32], rows: &SignRows, acc: &mut [f32]) {
        self.backend.accumulate_signs(rows, self.scale, weights, acc);
    }

    /// The same in the basis in which vectors are sketched: one transform a call and query.
    pub(crate) fn accumulate(&self, weights: &[f32], rows: &SignRows, acc: &mut [f32]) -> Result<(), Error> {
        let count = rows.count();
        let dim = rows.dim;
        with_scratch(dim, |sum| {
            for (acc, weights) in acc.chunks_exact_mut(dim).zip(weights.chunks_exact(count.max(1))) {
                sum.fill(0.0);
                self.accumulate_sketched(weights, rows, sum);
                self.transposed(sum);
                acc.iter_mut().zip(&*sum).for_each(|(acc, sum)| *acc += *sum);
            }
            Ok(())
        })
    }
}

/// √π·Γ((D+1)/2)/(D·Γ(D/2)) for an even D, by Γ(x+1) = xΓ(x) from Γ(3/2)/Γ(1) = √π/2.
fn orthonormal_scale(dim: usize) -> f64 {
    let mut scale = core::f64::consts::FRAC_PI_2;
    let mut k = 4;
    while k <= dim {
        scale *= (k - 1) as f64 / (k - 2) as f64;
        k += 2;
    }
    scale / dim as f64
}

/// S, D×D, row-major from its stream, rounded to f32.
#[cfg(feature = "alloc")]
fn gaussian(dim: usize, seed: u64, stream: Stream) -> Transform {
    let mut random = stream.random(seed, Purpose::SketchMatrix, 0);
    let mut matrix: Vec<f32> = Vec::with_capacity(dim * dim);
    while matrix.len() < dim * dim {
        matrix.extend(random.gaussian_pair().map(|x| x as f32));
    }
    let columns = (0..dim * dim).map(|i| matrix[i % dim * dim + i / dim]).collect();
    Transform::Gauss { columns, rows: matrix.into_boxed_slice() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orthonormal_scale_is_that_of_the_gamma_function() {
        for dim in crate::codebook::WIDTHS {
            let d = dim as f64;
            let log_ratio = libm::lgamma((d + 1.0) / 2.0) - libm::lgamma(d / 2.0);
            let expected = libm::sqrt(core::f64::consts::PI) * libm::exp(log_ratio) / d;
            assert!((orthonormal_scale(dim) / expected - 1.0).abs() < 1e-11, "{dim}");
            let simple = libm::sqrt(core::f64::consts::FRAC_PI_2 / d);
            assert!((simple / expected - 1.0 - 0.25 / d).abs() < 0.1 / d / d, "{dim}");
        }
    }
}
