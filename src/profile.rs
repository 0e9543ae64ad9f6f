//! Which layers of a model may lose more than others: a file, from which codecs follow for any number of bits.

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
/// `octaplex calibrate` measures a model once and writes its profile, a small text. [`Calibration`] does the same for programs
/// that run a model themselves. The profile then chooses codecs for any number of bits:
/// [`KvCache::builder(..).profile(&profile).bits(2.2)`](crate::cache::KvCacheBuilder::profile). The choice is the same on
/// every machine.
///
/// The model behind it is a sum. A layer's keys, and its values, have a *sensitivity*: the divergence (KL, in nats) of the
/// next token where they alone have the codec whose factor is 1. Another codec multiplies it by its *factor*.
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
    /// Widths of keys and of values.
    dims: [usize; 2],
    /// Codecs of keys and of values, with their factors.
    curves: [Vec<(CodecSpec, Decimal)>; 2],
    /// Sensitivities of each layer's keys and values.
    layers: Vec<[Decimal; 2]>,
}

/// A number from 0 to 10,000, in billionths: sums and products of integers are the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal(u64);

impl Decimal {
    const ONE: u64 = 1_000_000_000;
    const END: u64 = 10_000 * Self::ONE;

    fn new(value: f64) -> Option<Self> {
        let billionths = value * Self::ONE as f64 + 0.5;
        // Not a number fails as well.
        (value >= 0.0 && billionths < Self::END as f64).then_some(Self(billionths as u64))
    }

    const fn value(self) -> f64 {
        self.0 as f64 / Self::ONE as f64
    }
}

impl Profile {
    /// The most layers of a cache.
    const MOST_LAYERS: usize = 1 << 16;
    /// The most codecs of a role.
    const MOST_CODECS: usize = 64;

    /// Creates a profile from what was measured: the factors of codecs for keys and for values, and the sensitivities of each
    /// layer's keys and values.
    ///
    /// Of `shape`, only the key/value heads and the widths count. Numbers are rounded to billionths.
    ///
    /// # Errors
    /// [`Error::Profile`] for numbers outside 0..10,000, for no or too many layers or codecs, for a name with control
    /// characters or more than 200 bytes, and for codecs that this build lacks or that do not fit the width.
    pub fn new(
        model: &str,
        shape: &LayerConfig,
        keys: &[(CodecSpec, f64)],
        values: &[(CodecSpec, f64)],
        layers: &[[f64; 2]],
    ) -> Result<Self, Error> {
        let decimal = |value| Decimal::new(value).ok_or(refused("its numbers are from 0 to 10,000"));
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

    fn check(&self) -> Result<(), &'static str> {
        if self.model.len() > 200
            || self.model.trim() != self.model
            || self.model.chars().any(char::is_control)
        {
            return Err(
                "the model's name has at most 200 bytes, no control characters and no spaces around it",
            );
        }
        if !(1..=1 << 16).contains(&self.kv_heads) || !self.dims.iter().all(|dim| WIDTHS.contains(dim)) {
            return Err("it is of a shape that no cache has");
        }
        if !(1..=Self::MOST_LAYERS).contains(&self.layers.len()) {
            return Err("a profile has 1 to 65,536 layers");
        }
        for (curve, &dim) in self.curves.iter().zip(&self.dims) {
            if !(1..=Self::MOST_CODECS).contains(&curve.len()) {
                return Err("a profile has 1 to 64 codecs of keys, and as many of values");
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

    /// Returns the divergence that the profile expects of these layers, in nats: the sum of their sensitivities times the
    /// factors of their codecs. `None` where a codec or a number of layers is not the profile's.
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

/// Below 2⁸⁸, as both are below 2⁴⁴.
fn product(a: Decimal, b: Decimal) -> u128 {
    u128::from(a.0) * u128::from(b.0)
}

const fn refused(why: &'static str) -> Error {
    Error::Profile { line: 0, why }
}

fn check_codec(spec: CodecSpec, dim: usize) -> Result<(), &'static str> {
    if spec.check_built().is_err() {
        return Err("this build has no such codec: it needs the codec's feature");
    }
    match spec.block_bytes(dim) {
        0 => Err("there is no such codec at the profile's width"),
        bytes if spec.page_bytes_max(dim, 64) != 64 * bytes => {
            Err("a codec that keeps outliers has no fixed size, and cannot be in a profile")
        }
        _ => Ok(()),
    }
}
