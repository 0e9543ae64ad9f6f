//! Random rotations. They spread a vector's energy evenly, so that one scalar codebook fits every
//! coordinate.
//!
//! `wht` is R = (H·diag(s)/√D)^rounds. The signs s are seeded, and the same in every round. H is
//! the Hadamard matrix Sylvester ⊗ base, with a base of order 1, 12, 20, 28 or 12·12. So no width
//! is padded. A rotation takes O(D log D). The state is 2.3 KiB at any width: it stores sign masks
//! of 32 bits as kernels take them, because expanding single bits each time would cost more.
//!
//! ```text
//! one round, D = 4      signs    neighbours        two apart    scale
//!
//!                  x₀ ─ · s₀ ── a₀ = x₀ + x₁ ─── a₀ + a₂ ── · 1/√D
//!                  x₁ ─ · s₁ ── a₁ = x₀ - x₁ ─── a₁ + a₃ ── · 1/√D
//!                  x₂ ─ · s₂ ── a₂ = x₂ + x₃ ─── a₀ - a₂ ── · 1/√D
//!                  x₃ ─ · s₃ ── a₃ = x₂ - x₃ ─── a₁ - a₃ ── · 1/√D
//! ```
//!
//! `haar` is a dense orthogonal matrix, uniform over the orthogonal group. It is the Q of a
//! Gaussian matrix by Householder reflections, with columns signed by the diagonal of R. A rotation
//! takes O(D²), the state 8·D² bytes, and building it O(D³).

use crate::Error;
use crate::backend::Kernels;
use crate::math::inverse_sqrt;
use crate::random::{HeadId, Purpose};
#[cfg(feature = "alloc")]
use alloc::{boxed::Box, vec, vec::Vec};
use octaplex_arch::MAX_DIM;

/// A family of rotations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RotationKind {
    /// Seeded signs and the Walsh-Hadamard transform.
    #[default]
    Wht,
    /// A dense random orthogonal matrix; needs the feature `alloc`.
    Haar,
}

/// A rotation of `dim`-dimensional space.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    /// Sign masks, `dim` of them in use. All zero for `haar`.
    signs: [u32; MAX_DIM],
    dim: usize,
    /// The number of rounds. 0 leaves vectors as they are.
    rounds: u8,
    /// 1/√dim.
    scale: f32,
    #[cfg(feature = "alloc")]
    dense: Option<Dense>,
}

impl Rotation {
    /// Creates the rotation that changes nothing.
    pub(crate) fn identity(dim: usize) -> Self {
        Self {
            signs: [0; MAX_DIM],
            dim,
            rounds: 0,
            scale: 1.0,
            #[cfg(feature = "alloc")]
            dense: None,
        }
    }

    /// Creates a rotation of `rounds` rounds of seeded signs and the Walsh-Hadamard transform.
    ///
    /// # Errors
    /// [`Error::Width`] if there is no Hadamard matrix of order `dim`.
    pub(crate) fn wht(
        dim: usize,
        rounds: u8,
        seed: u64,
        purpose: Purpose,
        head: HeadId,
    ) -> Result<Self, Error> {
        if dim > MAX_DIM || octaplex_arch::hadamard::base(dim).is_none() {
            return Err(Error::Width { actual: dim });
        }
        let mut rotation = Self { rounds, scale: inverse_sqrt(dim), ..Self::identity(dim) };
        head.random(seed, purpose, 0).fill_sign_masks(&mut rotation.signs[..dim]);
        Ok(rotation)
    }

    /// Creates a dense random rotation.
    #[cfg(feature = "alloc")]
    pub(crate) fn haar(dim: usize, seed: u64, head: HeadId) -> Result<Self, Error> {
        Ok(Self { dense: Some(Dense::haar(dim, seed, head)), ..Self::identity(dim) })
    }

    #[cfg(not(feature = "alloc"))]
    pub(crate) fn haar(_dim: usize, _seed: u64, _head: HeadId) -> Result<Self, Error> {
        Err(Error::Unsupported { why: "rotation=haar needs the feature alloc; use rotation=wht" })
    }

    /// Returns the width.
    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the sign masks: 0, or the sign bit of an f32.
    pub(crate) fn signs(&self) -> &[u32] {
        &self.signs[..self.dim]
    }

    /// Rotates a vector in place: x ← R·x.
    pub(crate) fn forward(&self, backend: Kernels, x: &mut [f32]) {
        #[cfg(feature = "alloc")]
        if let Some(dense) = &self.dense {
            return multiply_columns(backend, &dense.columns, x);
        }
        for _ in 0..self.rounds {
            backend.rotate(x, self.signs(), self.scale);
        }
    }

    /// Rotates a vector in place without the last scaling: x ← √dim·R·x. For `wht` only.
    ///
    /// A codec that divides by the norm afterwards folds the factor 1/√dim into that.
    pub(crate) fn forward_unscaled(&self, backend: Kernels, x: &mut [f32]) {
        for round in 1..=self.rounds {
            let scale = if round == self.rounds { 1.0 } else { self.scale };
            backend.rotate(x, self.signs(), scale);
        }
    }

    /// Rotates a vector back in place: x ← R⁻¹·x.
    pub(crate) fn inverse(&self, backend: Kernels, x: &mut [f32]) {
        #[cfg(feature = "alloc")]
        if let Some(dense) = &self.dense {
            return multiply_columns(backend, &dense.rows, x);
        }
        for _ in 0..self.rounds {
            backend.rotate_inverse(x, self.signs(), self.scale);
        }
    }

    /// Rotates every whole row back in place.
    pub(crate) fn inverse_rows(&self, backend: Kernels, rows: &mut [f32]) {
        rows.chunks_exact_mut(self.dim).for_each(|x| self.inverse(backend, x));
    }
}

/// Multiplies a vector by a matrix that is stored column by column: x ← M·x.
#[cfg(feature = "alloc")]
pub(crate) fn multiply_columns(backend: Kernels, columns: &[f32], x: &mut [f32]) {
    let mut input = [0.0; MAX_DIM];
    let input = &mut input[..x.len()];
    input.copy_from_slice(x);
    backend.multiply_columns(columns, input, x);
}

/// Q and its transpose, rounded to f32. `columns` holds Q column by column. `rows` holds it row by
/// row, which is Qᵀ column by column.
#[cfg(feature = "alloc")]
#[derive(Clone, Debug)]
struct Dense {
    columns: Box<[f32]>,
    rows: Box<[f32]>,
}

#[cfg(feature = "alloc")]
impl Dense {
    /// Computes Q by Householder reflections, in f64 and with all sums in index order.
    ///
    /// For each column k: x = A[k.., k], α = -sgn(x₀)·‖x‖, v = x - α·e₀, β = 2/v·v, A ← A -
    /// βv(vᵀA), Q ← Q - β(Qv)vᵀ. At the end, column k of Q is multiplied by sgn(R_kk), which makes
    /// Q uniform.
    fn haar(dim: usize, seed: u64, head: HeadId) -> Self {
        let mut random = head.random(seed, Purpose::RotationMatrix, 0);
        let mut a: Vec<f64> = Vec::with_capacity(dim * dim);
        while a.len() < dim * dim {
            a.extend(random.gaussian_pair());
        }
        let mut q = vec![0.0; dim * dim];
        for k in 0..dim {
            q[k * dim + k] = 1.0;
        }
        let mut v = vec![0.0; dim];
        let mut products = vec![0.0; dim];
        for k in 0..dim {
            let v = &mut v[k..];
            for (i, v) in v.iter_mut().enumerate() {
                *v = a[(k + i) * dim + k];
            }
            let norm = libm::sqrt(v.iter().map(|x| x * x).sum());
            v[0] += if v[0] < 0.0 { -norm } else { norm };
            let beta = 2.0 / v.iter().map(|x| x * x).sum::<f64>();
            if !beta.is_finite() {
                continue; // a zero column: nothing to reflect
            }
            products.fill(0.0);
            for (i, v) in v.iter().enumerate() {
                for (product, a) in products.iter_mut().zip(&a[(k + i) * dim..][..dim]) {
                    *product += v * a;
                }
            }
            for (i, v) in v.iter().enumerate() {
                for (a, product) in a[(k + i) * dim..][..dim].iter_mut().zip(&products) {
                    *a -= beta * v * product;
                }
            }
            for row in q.chunks_exact_mut(dim) {
                let product: f64 = row[k..].iter().zip(v.iter()).map(|(q, v)| q * v).sum();
                for (q, v) in row[k..].iter_mut().zip(v.iter()) {
                    *q -= beta * product * v;
                }
            }
        }
        let signed = |row: usize, column: usize| {
            let sign = if a[column * dim + column] < 0.0 { -1.0 } else { 1.0 };
            (q[row * dim + column] * sign) as f32
        };
        let columns = (0..dim * dim).map(|i| signed(i % dim, i / dim)).collect();
        let rows = (0..dim * dim).map(|i| signed(i / dim, i % dim)).collect();
        Self { columns, rows }
    }
}
