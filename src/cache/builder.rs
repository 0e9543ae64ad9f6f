//! A model's cache in a few words.

use super::{CacheConfig, KvCache, LayerConfig};
use crate::{Backend, CodecSpec, Error, Profile};
use core::convert::Infallible;

/// Makes a [`KvCache`] whose layers are alike: [`KvCache::builder`] begins, [`build`](Self::build) ends. Whatever is wrong with
/// what was asked for is an error of `build`.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct KvCacheBuilder {
    config: CacheConfig,
    bits: Option<f64>,
    profile: Option<Profile>,
    keys: Option<CodecSpec>,
    values: Option<CodecSpec>,
    backend: Option<Backend>,
    /// The first thing that was wrong.
    error: Option<Error>,
}

impl KvCache {
    /// Begins a cache for a model of `layers` attention layers, each with `kv_heads` key/value heads of `head_dim` values, and
    /// room for `capacity` tokens. Memory grows with the tokens that come; `capacity` is where it ends.
    ///
    /// The default is `graded` keys and `trellis` values, 3.2 bits a value; [`LayerConfig::new`] says which codecs take their
    /// place at other widths.
    ///
    /// ```
    /// use octaplex::{Error, KvCache};
    ///
    /// let mut cache = KvCache::builder(2, 8, 128, 32_768).build()?; // layers, key/value heads, width, tokens
    /// let prompt = vec![0.5; 8 * 100 * 128]; // [heads][tokens][width]
    /// cache.append(0, &prompt, &prompt)?;
    /// let mut output = vec![0.0; 32 * 128]; // 32 query heads
    /// cache.attend(0, &vec![0.1; 32 * 128], &mut output)?;
    /// assert!(output.iter().all(|x| (x - 0.5).abs() < 0.15));
    ///
    /// let named = KvCache::builder(2, 8, 128, 4096).keys("trellis").values("turboquant:bits=4").build()?;
    /// assert_eq!(named.layers()[1].config().values.to_string(), "turboquant");
    /// # Ok::<(), Error>(())
    /// ```
    pub const fn builder(layers: usize, kv_heads: usize, head_dim: usize, capacity: usize) -> KvCacheBuilder {
        let config = CacheConfig::new(layers, kv_heads, head_dim, capacity);
        KvCacheBuilder {
            config,
            bits: None,
            profile: None,
            keys: None,
            values: None,
            backend: None,
            error: None,
        }
    }
}

impl KvCacheBuilder {
    /// The most accurate codecs whose pages take at most so many bits a value, everything counted:
    /// [`CacheConfig::for_bits`]. From 2.1 at a width of 128, 2.3 at 32.
    pub const fn bits(mut self, bits: f64) -> Self {
        self.bits = Some(bits);
        self
    }

    /// Spends the [`bits`](Self::bits) where the profile's model needs them: each layer's keys and values have codecs of their
    /// own. The profile's smallest codecs decide how few bits there may be: about 1.2.
    pub fn profile(mut self, profile: &Profile) -> Self {
        self.profile = Some(profile.clone());
        self
    }

    /// The codec of keys: a spec, or its text such as `"trellis:m=2"`.
    pub fn keys<E: Into<Error>>(mut self, spec: impl TryInto<CodecSpec, Error = E>) -> Self {
        self.keys = self.taken(spec.try_into());
        self
    }

    /// The codec of values.
    pub fn values<E: Into<Error>>(mut self, spec: impl TryInto<CodecSpec, Error = E>) -> Self {
        self.values = self.taken(spec.try_into());
        self
    }

    fn taken<E: Into<Error>>(&mut self, spec: Result<CodecSpec, E>) -> Option<CodecSpec> {
        spec.map_err(|error| self.error.get_or_insert(error.into())).ok()
    }

    /// Width of a value, where it is not that of a key.
    pub const fn value_dim(mut self, value_dim: usize) -> Self {
        self.config.each.value_dim = value_dim;
        self
    }

    /// Query heads of a layer, a multiple of the key/value heads. Attention then takes any number of queries a head and counts
    /// them. Without it, a call without [`Attend::queries`](crate::Attend::queries) takes one query for each head.
    pub const fn query_heads(mut self, query_heads: usize) -> Self {
        self.config.each.query_heads = Some(query_heads);
        self
    }

    /// Every layer sees this many tokens back, and drops pages that nothing sees any more.
    pub const fn sliding_window(mut self, tokens: usize) -> Self {
        self.config.each.sliding_window = Some(tokens);
        self
    }

    /// Anything else that layers share, by a change of their configuration.
    ///
    /// ```
    /// # use octaplex::{Error, KvCache};
    /// let cache = KvCache::builder(2, 8, 128, 4096).layer(|layer| layer.max_rollback(256).recent_window(128)).build()?;
    /// assert_eq!(cache.layers()[0].config().recent_window, 128);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn layer(mut self, change: impl FnOnce(LayerConfig) -> LayerConfig) -> Self {
        self.config.each = change(self.config.each);
        self
    }

    /// The instructions to run on; by default the fastest of this CPU.
    pub const fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// The cache, empty.
    ///
    /// # Errors
    /// What a text of a spec has wrong; [`Error::Unsupported`] for bits or a profile together with codecs; as
    /// [`CacheConfig::for_bits`] and [`Profile::solve`]; what [`KvCache::new`] refuses.
    pub fn build(self) -> Result<KvCache, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let backend = self.backend.unwrap_or_else(Backend::detect);
        if let Some(profile) = self.profile {
            if self.keys.is_some() || self.values.is_some() {
                let why =
                    "a profile chooses the codecs of keys and values: give a profile, or codecs, not both";
                return Err(Error::Unsupported { why });
            }
            let why = "a profile spends bits: say how many with bits";
            let bits = self.bits.ok_or(Error::Unsupported { why })?;
            return KvCache::new(profile.solve(&self.config, bits)?, backend);
        }
        let config = match (self.bits, self.keys, self.values) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                let why = "bits chooses the codecs of keys and values: give bits, or codecs, not both";
                return Err(Error::Unsupported { why });
            }
            (Some(bits), None, None) => self.config.for_bits(bits)?,
            (None, keys, values) => {
                let default = self.config.each;
                let each =
                    default.keys(keys.unwrap_or(default.keys)).values(values.unwrap_or(default.values));
                self.config.each(each)
            }
        };
        KvCache::new(config.layers(), backend)
    }
}

/// A spec needs no reading.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
