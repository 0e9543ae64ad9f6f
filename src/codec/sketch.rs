//! Sign sketches (QJL): one bit for each coordinate of a transformed vector.
//!
//! They give an unbiased estimate of the vector's product with a query. The query passes through
//! the same transform, but keeps its values. For a vector r, a transform T and s = sgn(T·r), the
//! estimate of <q, r> is c·‖r‖·<T·q, s>.
//!
//! The constant c belongs to the transform, and the two are not interchangeable:
//!
//! * `gauss`, a dense matrix of independent N(0,1) numbers: √(π/2)/D.
//! * `wht`, a random orthonormal matrix: √π·Γ((D+1)/2)/(D·Γ(D/2)). Its reciprocal over D is E|y₀|
//!   of a uniform unit vector.
//!
//! One Hadamard round is not enough. It maps a one-hot vector to D equal magnitudes, which a random
//! rotation does not: the estimates of <r, r> then are 1.2533 times too large. So the default is
//! two rounds.

use crate::backend::Kernels;
use crate::codec::query::QueryFormat;
use crate::codec::scratch::with_scratch;
use crate::random::HeadId;
use crate::random::Purpose;
use crate::rotation::Rotation;
#[cfg(feature = "alloc")]
use crate::rotation::multiply_columns;
use crate::spec::{Key, Value, one_of, parse_int};
use crate::{Backend, Error};
#[cfg(feature = "alloc")]
use alloc::{boxed::Box, vec::Vec};
use octaplex_arch::{MAX_DIM, SignRows};

/// A family of sketches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SketchKind {
    /// Seeded signs and the Walsh-Hadamard transform: orthonormal, O(D log D).
    #[default]
    Wht,
    /// A dense matrix of independent N(0,1) numbers, as published; needs the feature `alloc`, O(D²).
    Gauss,
}

/// The parameters of a sketch, as in `sketch=wht,sketch_rounds=2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SketchSpec {
    /// The family of the transform.
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
    /// Creates the default: `wht` with two rounds.
    #[must_use]
    pub const fn new() -> Self {
        Self { kind: SketchKind::Wht, rounds: 2 }
    }

    /// Returns these parameters with another family.
    #[must_use]
    pub const fn kind(self, kind: SketchKind) -> Self {
        Self { kind, ..self }
    }

    /// Returns these parameters with 1 to 3 rounds of signs and Hadamard transform.
    #[must_use]
    pub const fn rounds(self, rounds: u8) -> Self {
        Self { rounds, ..self }
    }

    const NAMES: [(&'static str, SketchKind); 2] = [("wht", SketchKind::Wht), ("gauss", SketchKind::Gauss)];
    const ROUNDS: Key = Key::new("sketch_rounds", "1..=3");

    /// The two keys of a spec, in the order in which they are printed.
    pub(crate) const KEYS: [Key; 2] = [Key::new("sketch", "wht, gauss"), Self::ROUNDS];

    /// Sets key 0 or 1 of [`KEYS`](Self::KEYS). Returns `None` if the value is invalid.
    pub(crate) fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.kind = one_of(value, &Self::NAMES)?,
            _ => self.rounds = parse_int(value, 1..=3)? as u8,
        }
        Some(())
    }

    /// Returns the value of key 0 or 1.
    pub(crate) fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::word(self.kind, &Self::NAMES),
            _ => Value::Int(self.rounds.into()),
        }
    }

    /// Returns the bytes of a sign plane.
    pub(crate) const fn bytes(dim: usize) -> usize {
        dim / 8
    }
}

/// The transform T of a head, and its constant.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    backend: Kernels,
    transform: Transform,
    /// The constant c of the estimate.
    scale: f32,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // boxes need an allocator
enum Transform {
    Wht(Rotation),
    /// The dense matrix S, column by column and row by row: one for T, the other for Tᵀ.
    #[cfg(feature = "alloc")]
    Gauss {
        columns: Box<[f32]>,
        rows: Box<[f32]>,
    },
}

impl Sketch {
    /// Builds the transform of one head.
    ///
    /// # Errors
    /// [`Error::Value`] for rounds outside 1 to 3; [`Error::Width`] if there is no Hadamard matrix
    /// of the width; [`Error::Unsupported`] for a dense sketch of several rounds, or without
    /// `alloc`.
    pub(crate) fn build(
        spec: SketchSpec,
        dim: usize,
        seed: u64,
        backend: Backend,
        head: HeadId,
    ) -> Result<Self, Error> {
        if !(1..=3).contains(&spec.rounds) {
            return Err(SketchSpec::ROUNDS.error(0));
        }
        match spec.kind {
            SketchKind::Wht => {
                let rotation = Rotation::wht(dim, spec.rounds, seed, Purpose::SketchSigns, head)?;
                let scale = orthonormal_scale(dim) as f32;
                Ok(Self { backend: backend.kernels(), transform: Transform::Wht(rotation), scale })
            }
            SketchKind::Gauss if spec.rounds != SketchSpec::default().rounds => {
                Err(Error::Unsupported { why: "sketch=gauss is one dense matrix; leave sketch_rounds out" })
            }
            #[cfg(feature = "alloc")]
            SketchKind::Gauss => {
                let transform = gaussian(dim, seed, head);
                let scale = libm::sqrt(core::f64::consts::FRAC_PI_2) / dim as f64;
                Ok(Self { backend: backend.kernels(), transform, scale: scale as f32 })
            }
            #[cfg(not(feature = "alloc"))]
            SketchKind::Gauss => {
                Err(Error::Unsupported { why: "sketch=gauss needs the feature alloc; use sketch=wht" })
            }
        }
    }

    /// Transforms a vector in place: x ← T·x.
    fn forward(&self, x: &mut [f32]) {
        match &self.transform {
            Transform::Wht(rotation) => rotation.forward(self.backend, x),
            #[cfg(feature = "alloc")]
            Transform::Gauss { columns, .. } => multiply_columns(self.backend, columns, x),
        }
    }

    /// Applies the transpose in place: x ← Tᵀ·x.
    pub(crate) fn transposed(&self, x: &mut [f32]) {
        match &self.transform {
            Transform::Wht(rotation) => rotation.inverse(self.backend, x),
            #[cfg(feature = "alloc")]
            Transform::Gauss { rows, .. } => multiply_columns(self.backend, rows, x),
        }
    }

    /// Writes the sign plane of `residual`, and leaves the transformed vector in `residual`.
    pub(crate) fn encode(&self, residual: &mut [f32], plane: &mut [u8]) {
        self.forward(residual);
        self.backend.pack_signs(residual, plane);
    }

    /// Decodes c·norm·Tᵀs. Its product with a query is the estimate.
    pub(crate) fn decode(&self, plane: &[u8], norm: f32, x: &mut [f32]) {
        self.backend.unpack_signs(plane, norm * self.scale, x);
        self.transposed(x);
    }

    /// Sketches a query into its prepared words. `basis` is the query in the basis of the sketched
    /// vectors; its transform replaces it.
    pub(crate) fn prepare(&self, format: &QueryFormat, basis: &mut [f32], query: &mut [f32]) {
        self.forward(basis);
        let (scale, values) = format.sketch_mut(query);
        let mut ints = [0; MAX_DIM];
        let ints = &mut ints[..basis.len()];
        *scale = self.backend.quantize_query(basis, 127, ints);
        values.iter_mut().zip(ints).for_each(|(value, int)| *value = *int as i8);
    }

    /// Adds the estimates to `scores`, laid out \[query]\[row].
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

    /// Adds Σ weight·c·row scale·s to `acc`, laid out \[query]\[dim], *in the basis of the sketch*.
    /// [`transposed`](Self::transposed) brings the sums back.
    pub(crate) fn accumulate_sketched(&self, weights: &[f32], rows: &SignRows, acc: &mut [f32]) {
        self.backend.accumulate_signs(rows, self.scale, weights, acc);
    }

    /// Adds the same sums in the basis of the sketched vectors. It takes one transform for each
    /// query.
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

/// Returns √π·Γ((D+1)/2)/(D·Γ(D/2)) for an even D. It starts from Γ(3/2)/Γ(1) = √π/2 and applies
/// Γ(x+1) = xΓ(x).
fn orthonormal_scale(dim: usize) -> f64 {
    let mut scale = core::f64::consts::FRAC_PI_2;
    let mut k = 4;
    while k <= dim {
        scale *= (k - 1) as f64 / (k - 2) as f64;
        k += 2;
    }
    scale / dim as f64
}

/// Draws the D×D matrix S row by row, rounded to f32.
#[cfg(feature = "alloc")]
fn gaussian(dim: usize, seed: u64, head: HeadId) -> Transform {
    let mut random = head.random(seed, Purpose::SketchMatrix, 0);
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
