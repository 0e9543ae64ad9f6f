//! Lists the measurements that a profile needs, and computes the profile from their results.
//!
//! Each role, keys and values, needs two lists of divergences:
//!
//! ```text
//! all layers     a divergence for each codec of the role        ─► factors = divergence / that of the reference
//! one layer      a divergence for each layer, reference codec   ─► shares of the layers
//! sensitivity    share of the layer · divergence of all layers with the reference
//! ```

use super::Profile;
use crate::codecs::Role;
use crate::{CodecSpec, Error, LayerConfig};
use alloc::vec::Vec;

/// The codecs of keys that a profile chooses from, at widths that `graded` supports. Smallest first.
const GRADED: &[&str] = &[
    "trellis:m=1",
    "graded:fine=2,coarse=1",
    "graded:bits=2",
    "graded:fine=4,coarse=2",
    "graded:bits=3",
    "graded:fine=8,coarse=4",
    "graded:bits=4",
    "turboquant:bits=6",
    "turboquant:bits=8",
];
/// The codecs of values, and of keys at all other widths. Smallest first.
const TRELLIS: &[&str] = &[
    "trellis:m=1",
    "trellis:m=2",
    "trellis:m=3",
    "trellis:m=4",
    "trellis:m=6",
    "trellis:m=8",
    "turboquant:bits=6",
    "turboquant:bits=8",
];
/// The codec of 2 bits in each list above. Its factor is 1.
const REFERENCES: [&str; 2] = ["graded:bits=2", "trellis:m=2"];

const ROLES: [Role; 2] = [Role::Keys, Role::Values];

/// One measurement of a [`Calibration`]: the divergence of the next token with this codec. Everything else is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Whether keys or values are compressed.
    pub role: Role,
    /// Their codec.
    pub codec: CodecSpec,
    /// The only layer that is compressed; `None` for all layers.
    pub layer: Option<usize>,
}

/// Lists what to measure in a model for its [`Profile`], and creates the profile from the results.
///
/// Use it where `octaplex calibrate` does not read your model. Run the model on a text once for each [case](Self::cases). The
/// result is the mean divergence (KL, in nats) of the next token from the model with exact attention. Count the positions
/// whose queries read pages.
///
/// ```
/// use octaplex::{LayerConfig, profile::Calibration};
///
/// let calibration = Calibration::new(2, &LayerConfig::new(8, 128, 0))?;
/// let measured: Vec<f64> = calibration
///     .cases()
///     .map(|case| if case.layer == Some(0) { 0.03 } else { 0.01 }) // your model runs here
///     .collect();
/// let profile = calibration.profile("two layers", &measured)?;
/// // Both layers together lose 0.01. The first has three quarters of it.
/// assert_eq!(profile.sensitivities().next(), Some([0.0075, 0.0075]));
/// # Ok::<(), octaplex::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Calibration {
    layers: usize,
    shape: LayerConfig,
    /// The codecs of keys and of values.
    curves: [Vec<CodecSpec>; 2],
    /// The codecs with factor 1, of keys and of values.
    references: [CodecSpec; 2],
}

impl Calibration {
    /// Creates the calibration of a model with `layers` layers of this shape.
    ///
    /// `shape` gives the key/value heads and the widths. Its other fields do not matter.
    ///
    /// # Errors
    /// [`Error::Profile`] for a shape or a number of layers that no profile has, and for a build that lacks a codec.
    pub fn new(layers: usize, shape: &LayerConfig) -> Result<Self, Error> {
        let parse = |specs: &[&str]| specs.iter().map(|spec| spec.parse()).collect::<Result<Vec<_>, Error>>();
        let graded = REFERENCES[0].parse::<CodecSpec>()?.block_bytes(shape.key_dim) > 0;
        let curves = [parse(if graded { GRADED } else { TRELLIS })?, parse(TRELLIS)?];
        let references = [REFERENCES[usize::from(!graded)].parse()?, REFERENCES[1].parse()?];
        // A larger number would be refused too, after a larger allocation.
        let layers = layers.min(Profile::MAX_LAYERS + 1);
        let calibration = Self { layers, shape: *shape, curves, references };
        // A profile of zeros returns the errors now, before the caller measures anything.
        calibration.profile("", &alloc::vec![0.0; calibration.cases().count()])?;
        Ok(calibration)
    }

    /// Returns the measurements in the order in which [`profile`](Self::profile) takes their results.
    pub fn cases(&self) -> impl Iterator<Item = Case> + '_ {
        (0..2).flat_map(move |number| {
            let role = ROLES[number];
            let together = self.curves[number].iter().map(move |&codec| Case { role, codec, layer: None });
            let codec = self.references[number];
            together.chain((0..self.layers).map(move |layer| Case { role, codec, layer: Some(layer) }))
        })
    }

    /// Creates the profile of `model` from the divergences of the [cases](Self::cases).
    ///
    /// # Errors
    /// [`Error::Length`] if the number of divergences differs from that of the cases, and the errors of
    /// [`Profile::new`].
    pub fn profile(&self, model: &str, divergences: &[f64]) -> Result<Profile, Error> {
        Error::expect_length("divergences", self.cases().count(), divergences.len())?;
        let mut divergences = divergences.iter().copied();
        let mut sensitivities = alloc::vec![[0.0; 2]; self.layers];
        let mut curves = [Vec::new(), Vec::new()];
        for role in 0..2 {
            let of_curve: Vec<f64> = divergences.by_ref().take(self.curves[role].len()).collect();
            let specs = self.curves[role].iter();
            let together = specs.zip(&of_curve).find(|(spec, _)| **spec == self.references[role]);
            let together = together.map_or(0.0, |(_, kl)| *kl);
            let alone: Vec<f64> = divergences.by_ref().take(self.layers).collect();
            let sum: f64 = alone.iter().sum();
            // Compressing all layers at once costs a little more or less than the sum of the single layers. Scale the
            // sensitivities so that they add up to the measured divergence, and keep their proportions.
            let correction = if sum > 0.0 { together / sum } else { 0.0 };
            sensitivities.iter_mut().zip(alone).for_each(|(layer, kl)| layer[role] = kl * correction);
            let factor = |kl: &f64| if together > 0.0 { kl / together } else { 0.0 };
            curves[role] = self.curves[role].iter().copied().zip(of_curve.iter().map(factor)).collect();
        }
        Profile::new(model, &self.shape, &curves[0], &curves[1], &sensitivities)
    }
}
