//! Errors of vectors.

use crate::{Error, check_rows, expect};

/// Distortion and cosine of vectors, added up one slice of rows at a time.
///
/// ```
/// let mut errors = octaplex_metrics::VectorErrors::default();
/// errors.add(&[3.0, 4.0, 0.0, 5.0], &[3.0, 4.0, 0.0, 4.0], 2)?;
/// assert_eq!((errors.distortion(), errors.cosine()), (1.0 / 50.0, 1.0));
/// # Ok::<(), octaplex_metrics::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct VectorErrors {
    noise: f64,
    energy: f64,
    cosines: f64,
    vectors: usize,
}

impl VectorErrors {
    /// Adds rows of `dim` values and their decoded rows.
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the same number of whole rows, [`Error::NonFinite`] for a NaN or an infinity.
    pub fn add(&mut self, exact: &[f32], decoded: &[f32], dim: usize) -> Result<(), Error> {
        check_rows("exact vectors", exact, dim)?;
        expect("decoded vectors", exact.len(), decoded.len())?;
        check_rows("decoded vectors", decoded, dim)?;
        for (x, y) in exact.chunks_exact(dim).zip(decoded.chunks_exact(dim)) {
            let (xx, yy, xy) = (dot(x, x), dot(y, y), dot(x, y));
            self.noise += x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum::<f64>();
            self.energy += xx;
            self.cosines += if xx == 0.0 && yy == 0.0 { 1.0 } else { xy / (xx * yy).sqrt().max(1e-300) };
            self.vectors += 1;
        }
        Ok(())
    }

    /// Returns the number of added vectors.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.vectors
    }

    /// Returns Σ‖x-x̂‖² / Σ‖x‖². If all x are 0, it is Σ‖x̂‖².
    #[must_use]
    pub fn distortion(&self) -> f64 {
        if self.energy > 0.0 { self.noise / self.energy } else { self.noise }
    }

    /// Returns the mean over vectors of x·x̂ / (‖x‖‖x̂‖). It is 1 if both are 0, and 0 if one is.
    #[must_use]
    pub fn cosine(&self) -> f64 {
        self.cosines / self.vectors.max(1) as f64
    }
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Returns Σ‖o-ô‖² / Σ‖o‖² over rows, the error of attention's output. Rows or values without a partner are not counted. If all
/// o are 0, the result is huge or 0.
///
/// ```
/// let error = octaplex_metrics::relative_error(&[vec![3.0, 4.0]], &[vec![3.0, 3.0]]);
/// assert_eq!(error, 1.0 / 25.0);
/// ```
#[must_use]
pub fn relative_error(exact: &[Vec<f64>], outputs: &[Vec<f64>]) -> f64 {
    let (exact, outputs) = (exact.iter().flatten(), outputs.iter().flatten());
    let (noise, energy) = exact
        .zip(outputs)
        .fold((0.0, 0.0), |(noise, energy), (a, b)| (noise + (a - b) * (a - b), energy + a * a));
    noise / energy.max(1e-300)
}
