//! Codebooks that codecs share: Lloyd-Max quantisers for one coordinate of a random unit vector.
//!
//! A vector that is normalised and then rotated at random is uniform on the unit sphere, whatever
//! the data were. Each of its `dim` coordinates has the density `f(x) ∝ (1 - x²)^((dim - 3) / 2)`
//! on `[-1, 1]`. So one scalar quantiser for each pair `(dim, levels)` serves every coordinate of
//! every vector, and can be computed in advance. These codebooks minimise the mean squared error on
//! exactly that density. For a finite `dim` they are a little narrower than the Gaussian one.
//!
//! Centroids are stored as integers and share one scale. Decoders add products of centroids in
//! integer arithmetic, and multiply by the scale once. Up to 16 levels the largest magnitude is
//! 127, so that a centroid fits an `i8`. From 32 levels on it is 2047. Thresholds are the midpoints
//! of the *rounded* centroids, so encoding always picks the nearest value that decoding can return.
//!
//! The test `tests/codebooks.rs` writes the tables, and proves that they are current.
//!
//! ```
//! use octaplex::codebook::lloyd_max;
//!
//! let book = lloyd_max(128, 4).expect("a listed width and level count");
//! let mut buffer = [0.0; 255];
//! let count = book.thresholds(&mut buffer);
//! // The code of a value is the number of thresholds that do not exceed it.
//! let code = buffer[..count].iter().filter(|&&t| t <= 0.05).count();
//! assert_eq!(code, 2);
//! assert!((book.value(code) - 0.0397).abs() < 1e-3);
//! ```

pub(crate) mod angles;
pub(crate) mod octahedral;
mod octahedral_tables;
pub(crate) mod quaternions;
mod tables;
#[allow(clippy::excessive_precision, reason = "f32 as f64 prints it")]
mod trellis;

use octaplex_arch::TrellisCodebook;

pub use octahedral::{octahedral_coordinates, triplet_radii};

/// Vector widths that have codebooks, in ascending order.
pub const WIDTHS: [usize; 11] = [32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576];

/// Numbers of levels that have codebooks, in ascending order.
pub const LEVELS: [usize; 13] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 32, 64, 128, 256];

/// The values of a scalar quantiser: integer centroids times one scale.
///
/// Centroids are strictly increasing and antisymmetric (`centroids[k] == -centroids[levels - 1 -
/// k]`). An odd number of levels has a centroid at zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codebook {
    centroids: &'static [i16],
    scale: f32,
}

impl Codebook {
    /// Returns the integer centroids, indexed by code.
    #[must_use]
    pub const fn centroids(&self) -> &'static [i16] {
        self.centroids
    }

    /// Returns the value of one integer step.
    #[must_use]
    pub const fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns the number of codes.
    #[must_use]
    pub const fn levels(&self) -> usize {
        self.centroids.len()
    }

    /// Returns the value that `code` stands for: its centroid times the scale.
    ///
    /// # Panics
    /// If `code` is not below [`levels`](Self::levels).
    #[must_use]
    pub fn value(&self, code: usize) -> f32 {
        f32::from(self.centroids[code]) * self.scale
    }

    /// Writes the thresholds to the front of `out` in ascending order, and returns their number,
    /// `levels - 1`.
    ///
    /// Threshold `k` is the midpoint of centroids `k` and `k + 1` times the scale. The midpoint is
    /// exact, so only the last product rounds. A value on a threshold belongs to the upper cell:
    /// the code of `x` is the number of thresholds `t` with `t <= x`. The rest of `out` does not
    /// change.
    pub fn thresholds(&self, out: &mut [f32; 255]) -> usize {
        for (threshold, pair) in out.iter_mut().zip(self.centroids.windows(2)) {
            *threshold = f32::from(pair[0] + pair[1]) * 0.5 * self.scale;
        }
        self.levels() - 1
    }
}

/// Returns the Lloyd-Max codebook for one coordinate of a uniform unit vector in `dim` dimensions.
///
/// `None` unless `dim` is one of [`WIDTHS`] and `levels` one of [`LEVELS`].
#[must_use]
#[inline]
pub fn lloyd_max(dim: usize, levels: usize) -> Option<Codebook> {
    // One table for each width: a program with a constant width links that table alone.
    macro_rules! of_width {
        ($($width:literal: $row:literal),*) => {{
            const { assert!(matches!(WIDTHS, [$($width),*])) };
            match dim {
                $($width => &const { tables::LLOYD_MAX[$row] },)*
                _ => return None,
            }
        }};
    }
    let row: &[Codebook; LEVELS.len()] = of_width!(
        32: 0, 64: 1, 80: 2, 96: 3, 112: 4, 128: 5, 160: 6, 192: 7, 256: 8, 512: 9, 576: 10
    );
    Some(row[LEVELS.iter().position(|&count| count == levels)?])
}

/// Numbers of states that trellis codebooks have, in ascending order.
pub const TRELLIS_STATES: [usize; 5] = [4, 8, 16, 32, 64];

/// Numbers of centroids that a window of a trellis codebook chooses from, in ascending order.
pub const TRELLIS_LEVELS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// The centroids of a trellis code, for every width.
///
/// Centroids are integers from -127 to 127. `kappa` integer steps make one standard deviation of a
/// coordinate. `cargo run --release --example train_trellis` writes the tables, and
/// `docs/trellis.md` explains how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrellisBook {
    codebook: TrellisCodebook<'static>,
    kappa: f32,
}

impl TrellisBook {
    /// Returns the centroids by window and code, as kernels take them.
    #[must_use]
    pub const fn codebook(&self) -> &TrellisCodebook<'static> {
        &self.codebook
    }

    /// Returns how many integer steps make one standard deviation.
    #[must_use]
    pub const fn kappa(&self) -> f32 {
        self.kappa
    }
}

const fn trellis_book(history: u32, levels: usize, kappa: f32, centroids: &'static [i8]) -> TrellisBook {
    TrellisBook { codebook: TrellisCodebook::new(history, levels, centroids), kappa }
}

/// Returns the trellis codebook of `states` states with `levels` centroids a window.
///
/// `None` unless they are one of [`TRELLIS_STATES`] and one of [`TRELLIS_LEVELS`].
///
/// ```
/// let book = octaplex::codebook::trellis(8, 4).expect("listed numbers");
/// assert_eq!(book.codebook().centroids().len(), 16 * 4); // a window is 4 bits: 3 of the state, and the newest
/// ```
#[must_use]
pub fn trellis(states: usize, levels: usize) -> Option<TrellisBook> {
    trellis::TRELLIS
        .iter()
        .find(|book| book.codebook.states() == states && book.codebook.levels() == levels)
        .copied()
}
