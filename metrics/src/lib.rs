//! Measures how close compressed keys and values are to exact vectors, exact scores and exact attention.
//!
//! Everything is computed in `f64` from `f32` rows, \[token]\[width] in one slice. [`VectorErrors`] compares vectors,
//! [`ExactHead`] is the exact attention of one query head, and [`AttentionErrors`] adds up the errors of compression.
//!
//! ```
//! use octaplex_metrics::{AttentionErrors, ExactHead, VectorErrors};
//!
//! // Two tokens of width 2, and the query of the second.
//! let (keys, values, query) = ([1.0, 0.0, 0.0, 1.0], [2.0, 0.0, 0.0, 2.0], [1.0, 1.0]);
//! let exact = ExactHead::new(&query, &[1], &keys, &values, 2)?;
//! assert!((exact.weights(0)[0] - 0.5).abs() < 1e-15); // both tokens alike
//! assert!((exact.outputs()[0][1] - 1.0).abs() < 1e-15);
//!
//! // Decoded keys of any codec, and their scores.
//! let decoded = [1.1, 0.0, 0.0, 0.9];
//! let mut vectors = VectorErrors::default();
//! vectors.add(&keys, &decoded, 2)?;
//! assert!((vectors.distortion() - 0.01).abs() < 1e-6);
//!
//! let mut attention = AttentionErrors::default();
//! attention.add_keys(&exact, &[1.1, 0.9], &values, [0])?;
//! assert!((attention.score_error() - 0.1).abs() < 1e-6);
//! assert!(attention.kl() > 0.0 && attention.kl() < 0.01);
//! # Ok::<(), octaplex_metrics::Error>(())
//! ```
#![forbid(unsafe_code)]

mod attention;
mod vectors;

pub use attention::{AttentionErrors, ExactHead, kl_divergence, softmax};
pub use vectors::{VectorErrors, relative_error};

/// An error of the arguments. Nothing was added then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A slice of the wrong length.
    Length {
        /// The name of the slice.
        what: &'static str,
        /// The expected length, or a number that must divide the length.
        expected: usize,
        /// The length of the slice.
        actual: usize,
    },
    /// A NaN or an infinity.
    NonFinite {
        /// The name of the slice.
        what: &'static str,
        /// The index of the value.
        index: usize,
    },
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length { what, expected, actual } => {
                write!(f, "{what}: expected {expected} (or a multiple), got {actual}")
            }
            Self::NonFinite { what, index } => write!(f, "{what}: value {index} is NaN or infinite"),
        }
    }
}

impl core::error::Error for Error {}

/// Fails unless `actual` equals `expected`.
fn expect(what: &'static str, expected: usize, actual: usize) -> Result<(), Error> {
    if expected == actual { Ok(()) } else { Err(Error::Length { what, expected, actual }) }
}

/// Fails unless `values` are rows of `dim`, all finite.
fn check_rows(what: &'static str, values: &[f32], dim: usize) -> Result<(), Error> {
    if dim == 0 || !values.len().is_multiple_of(dim) {
        return Err(Error::Length { what, expected: dim, actual: values.len() });
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Error::NonFinite { what, index }),
        None => Ok(()),
    }
}
