//! Chooses the codecs of a cache, for the builder and for the bindings.

use super::config::MAX_LAYERS;
use super::{CacheConfig, LayerConfig};
use crate::{CodecSpec, Error, Profile};
use alloc::vec::Vec;

/// Chooses the codecs of a cache: by name, for a number of bits, or by a model's profile.
///
/// The default, with nothing set, keeps the codecs of the configuration.
///
/// | set | codecs |
/// |---|---|
/// | `keys`, `values` or both | those, in every layer |
/// | `bits` | those of [`CacheConfig::for_bits`] |
/// | `bits` and `profile` | those of [`Profile::solve`], for each layer its own |
///
/// ```
/// use octaplex::cache::Choice;
/// use octaplex::{CacheConfig, Error};
///
/// let config = CacheConfig::new(4, 2, 64, 1000);
/// let layers = config.choose(&Choice { bits: Some(2.3), ..Choice::default() })?;
/// assert_eq!(layers[0].values.to_string(), "trellis:m=2");
/// let both = Choice { bits: Some(2.3), keys: Some("trellis".parse()?), ..Choice::default() };
/// assert!(config.choose(&both).is_err());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The codec of keys.
    pub keys: Option<CodecSpec>,
    /// The codec of values.
    pub values: Option<CodecSpec>,
    /// The most bits a value in pages, keys and values together.
    pub bits: Option<f64>,
    /// The model's profile, which spends the bits.
    pub profile: Option<Profile>,
}

impl CacheConfig {
    /// Returns the configuration of each layer, with the codecs of a [`Choice`].
    ///
    /// # Errors
    /// * [`Error::Unsupported`] for bits or a profile together with codecs, and for a profile without bits.
    /// * Errors of [`for_bits`](Self::for_bits) and [`Profile::solve`].
    pub fn choose(&self, choice: &Choice) -> Result<Vec<LayerConfig>, Error> {
        if let Choice { keys: None, values: None, bits: Some(bits), profile: Some(profile) } = choice {
            return profile.solve(self, *bits);
        }
        // More layers than a cache can have are refused where it is made.
        Ok(self.with_codecs(choice)?.layers().take(MAX_LAYERS + 1).collect())
    }

    /// Returns the configuration with the codecs of a [`Choice`] without a profile. It allocates nothing.
    ///
    /// # Errors
    /// As [`choose`](Self::choose), and [`Error::Unsupported`] for a profile, whose layers differ.
    pub fn with_codecs(self, choice: &Choice) -> Result<Self, Error> {
        let Choice { keys, values, bits, profile } = choice;
        let refuse = |why| Err(Error::Unsupported { why });
        match (bits, profile, keys.or(*values)) {
            (None, Some(_), Some(_)) => refuse(
                "a profile chooses the codecs of keys and values: give either a profile or codecs, not both",
            ),
            (Some(_), _, Some(_)) => {
                refuse("bits chooses the codecs of keys and values: give either bits or codecs, not both")
            }
            (None, Some(_), None) => refuse("a profile spends bits: set bits as well"),
            (Some(_), Some(_), None) => refuse("a profile chooses codecs for each layer: choose all layers"),
            (Some(bits), None, None) => self.for_bits(*bits),
            (None, None, _) => {
                let each = self.each.keys(keys.unwrap_or(self.each.keys));
                Ok(self.each(each.values(values.unwrap_or(each.values))))
            }
        }
    }
}
