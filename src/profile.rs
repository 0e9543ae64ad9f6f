//! Profiles: how much each layer of a model may lose, and the codecs that follow for any number of bits.
//!
//! ```text
//! calibration.rs   which divergences to measure in a model ─► Profile
//! text.rs          Profile ◄─► the text of a profile, which files hold
//! solve.rs         Profile, bits ─► a codec for the keys and the values of each layer
//! ```

mod calibration;
mod solve;
mod text;

pub use calibration::{Calibration, Case};

use crate::codebook::WIDTHS;
use crate::{CodecSpec, Error, LayerConfig};
use alloc::string::String;
use alloc::vec::Vec;

/// Says how much each layer of a model may lose, so that a cache spends its bits where they count.
///
/// `octaplex calibrate` measures a model once and writes its profile, a small text file. [`Calibration`] does the same
/// for programs that run a model themselves. The profile then chooses codecs for any number of bits:
/// [`KvCache::builder(..).profile(&profile).bits(2.2)`](crate::cache::KvCacheBuilder::profile). The choice is the same
/// on every machine.
///
/// A profile estimates the divergence of the next token (KL, in nats) as a sum over the keys and the values of all
/// layers. Each term is a *sensitivity* times a *factor*. The sensitivity is the divergence if only these keys or
/// values are compressed, with the codec whose factor is 1. The factor compares another codec with it.
///
/// ```
/// use octaplex::{Error, KvCache, LayerConfig, Profile};
///
/// let keys = [("trellis:m=2".parse()?, 1.0), ("trellis:m=8".parse()?, 0.05)]; // codecs and their factors
/// let sensitivities = [[0.01, 0.03], [0.0001, 0.002]]; // of each layer's keys and values
/// let profile = Profile::new("two layers", &LayerConfig::new(8, 128, 0), &keys, &keys, &sensitivities)?;
/// assert_eq!(profile.to_string().parse::<Profile>()?, profile);
///
/// let cache = KvCache::builder(2, 8, 128, 4096).profile(&profile).bits(3.6).build()?;
/// let keys: Vec<String> = cache.layers().iter().map(|layer| layer.config().keys.to_string()).collect();
/// assert_eq!(keys, ["trellis:m=8", "trellis:m=2"]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    model: String,
    kv_heads: usize,
    /// The widths of keys and of values.
    dims: [usize; 2],
    /// The codecs of keys and of values, with their factors.
    curves: [Vec<(CodecSpec, Decimal)>; 2],
    /// The sensitivities of each layer's keys and values.
    layers: Vec<[Decimal; 2]>,
}

/// A number from 0 to 10,000 (excluded), in billionths. Sums and products of integers are the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal(u64);

impl Decimal {
    const ONE: u64 = 1_000_000_000;
    const END: u64 = 10_000 * Self::ONE;

    fn new(value: f64) -> Option<Self> {
        let billionths = value * Self::ONE as f64 + 0.5;
        // NaN fails this test too.
        (value >= 0.0 && billionths < Self::END as f64).then_some(Self(billionths as u64))
    }

    const fn value(self) -> f64 {
        self.0 as f64 / Self::ONE as f64
    }
}

impl Profile {
    /// The largest number of layers.
    const MAX_LAYERS: usize = 1 << 16;
    /// The largest number of codecs of keys, and of codecs of values.
    const MAX_CODECS: usize = 64;

    /// Creates a profile from measurements.
    ///
    /// `keys` and `values` are the codecs with their factors, and `layers` the sensitivities of each layer's keys and
    /// values, in nats. `shape` gives the key/value heads and the widths; its other fields do not matter. Numbers are
    /// rounded to billionths.
    ///
    /// # Errors
    /// [`Error::Profile`] in these cases:
    /// * a number is outside 0..10,000
    /// * there are no or more than 65,536 layers, or no or more than 64 codecs of keys or of values
    /// * the name has control characters, spaces around it, or more than 200 bytes
    /// * the shape is impossible
    /// * this build lacks a codec, or the codec does not fit the width or keeps outliers
    pub fn new(
        model: &str,
        shape: &LayerConfig,
        keys: &[(CodecSpec, f64)],
        values: &[(CodecSpec, f64)],
        layers: &[[f64; 2]],
    ) -> Result<Self, Error> {
        let decimal =
            |value| Decimal::new(value).ok_or(refused("factors and sensitivities must be from 0 to 10,000"));
        let curve = |curve: &[(CodecSpec, f64)]| {
            let curve = curve.iter().map(|&(spec, factor)| Ok((spec, decimal(factor)?)));
            curve.collect::<Result<Vec<_>, Error>>()
        };
        let layers = layers.iter().map(|&[keys, values]| Ok([decimal(keys)?, decimal(values)?]));
        let profile = Self {
            model: model.into(),
            kv_heads: shape.kv_heads,
            dims: [shape.key_dim, shape.value_dim],
            curves: [curve(keys)?, curve(values)?],
            layers: layers.collect::<Result<_, Error>>()?,
        };
        profile.check().map_err(refused)?;
        Ok(profile)
    }

    /// Checks everything except the numbers.
    fn check(&self) -> Result<(), &'static str> {
        if self.model.len() > 200
            || self.model.trim() != self.model
            || self.model.chars().any(char::is_control)
        {
            return Err(
                "the model's name must have at most 200 bytes, no control characters and no spaces around it",
            );
        }
        if !(1..=1 << 16).contains(&self.kv_heads) || !self.dims.iter().all(|dim| WIDTHS.contains(dim)) {
            return Err("no cache has these key/value heads and widths");
        }
        if !(1..=Self::MAX_LAYERS).contains(&self.layers.len()) {
            return Err("a profile must have 1 to 65,536 layers");
        }
        for (curve, &dim) in self.curves.iter().zip(&self.dims) {
            if !(1..=Self::MAX_CODECS).contains(&curve.len()) {
                return Err("a profile must have 1 to 64 codecs of keys, and 1 to 64 codecs of values");
            }
            curve.iter().try_for_each(|(spec, _)| check_codec(*spec, dim))?;
        }
        Ok(())
    }

    /// Returns the name of the model that was measured.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the number of layers.
    #[must_use]
    pub const fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns the number of key/value heads of a layer.
    #[must_use]
    pub const fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Returns the width of a key.
    #[must_use]
    pub const fn key_dim(&self) -> usize {
        self.dims[0]
    }

    /// Returns the width of a value.
    #[must_use]
    pub const fn value_dim(&self) -> usize {
        self.dims[1]
    }

    /// Returns the sensitivities of each layer's keys and values, in nats.
    pub fn sensitivities(&self) -> impl Iterator<Item = [f64; 2]> + '_ {
        self.layers.iter().map(|layer| layer.map(Decimal::value))
    }

    /// Returns the divergence that the profile expects of these layers, in nats.
    ///
    /// It is the sum of the layers' sensitivities times the factors of their codecs. `f16` adds nothing. Returns `None`
    /// if the profile lacks one of the codecs, or has another number of layers.
    ///
    /// ```
    /// use octaplex::{CacheConfig, Error, LayerConfig, Profile};
    ///
    /// let codecs = [("trellis:m=2".parse()?, 1.0), ("trellis:m=8".parse()?, 0.125)];
    /// let profile = Profile::new("", &LayerConfig::new(8, 128, 0), &codecs, &codecs, &[[0.5, 0.25]])?;
    /// let layers = profile.solve(&CacheConfig::new(1, 8, 128, 4096), 4.2)?;
    /// assert_eq!(profile.divergence(&layers), Some(0.09375)); // 0.125 * (0.5 + 0.25)
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn divergence(&self, layers: &[LayerConfig]) -> Option<f64> {
        if layers.len() != self.layers.len() {
            return None;
        }
        let mut sum = 0u128;
        for (config, sensitivities) in layers.iter().zip(&self.layers) {
            for (role, spec) in [config.keys, config.values].into_iter().enumerate() {
                if !matches!(spec, CodecSpec::F16(_)) {
                    let factor = self.curves[role].iter().find(|(codec, _)| *codec == spec)?.1;
                    sum += product(sensitivities[role], factor);
                }
            }
        }
        Some(sum as f64 / (Decimal::ONE as f64 * Decimal::ONE as f64))
    }
}

/// Returns the product, below 2⁸⁸ as both numbers are below 2⁴⁴.
fn product(a: Decimal, b: Decimal) -> u128 {
    u128::from(a.0) * u128::from(b.0)
}

const fn refused(why: &'static str) -> Error {
    Error::Profile { line: 0, why }
}

/// Checks that this build has the codec, at this width, and that its blocks have a fixed size.
fn check_codec(spec: CodecSpec, dim: usize) -> Result<(), &'static str> {
    if spec.check_built().is_err() {
        return Err("this build has no such codec: enable the codec's feature");
    }
    match spec.block_bytes(dim) {
        0 => Err("the codec does not support the profile's width"),
        bytes if spec.page_bytes_max(dim, 64) != 64 * bytes => {
            Err("a codec that keeps outliers has no fixed size and cannot be in a profile")
        }
        _ => Ok(()),
    }
}
