//! The builder of a model's cache.

use super::{CacheConfig, Choice, KvCache, LayerConfig};
use crate::{Backend, CodecSpec, Error, Profile};
use core::convert::Infallible;

/// Builds a [`KvCache`] whose layers are alike.
///
/// [`KvCache::builder`] creates the builder and has an example. [`build`](Self::build) creates the cache. Only `build`
/// returns errors, also those of specs that other methods were given.
#[derive(Clone, Debug)]
#[must_use = "a builder creates no cache until `build`"]
pub struct KvCacheBuilder {
    config: CacheConfig,
    choice: Choice,
    backend: Option<Backend>,
    /// The first error of a spec.
    error: Option<Error>,
}

impl KvCache {
    /// Creates a builder for a cache of `layers` attention layers, each with `kv_heads` key/value heads of `head_dim`
    /// values.
    ///
    /// `capacity` is the largest number of tokens. Memory grows with the tokens up to this number.
    ///
    /// The default is `graded` keys and `trellis` values, at 3.1 to 3.2 bits a value. [`LayerConfig::new`] lists the
    /// defaults of all widths. A cache holds one sequence.
    ///
    /// ```
    /// use octaplex::{Error, KvCache};
    ///
    /// let mut cache = KvCache::builder(2, 8, 128, 32_768).build()?; // layers, key/value heads, width, tokens
    /// let prompt = vec![0.5; 8 * 100 * 128]; // [heads][tokens][width]
    /// cache.append(0, &prompt, &prompt)?;
    /// let mut output = vec![0.0; 32 * 128]; // 32 query heads
    /// cache.attend(0, &vec![0.1; 32 * 128], &mut output)?;
    /// assert_eq!(cache.stats().tokens, 100);
    ///
    /// let named = KvCache::builder(2, 8, 128, 4096).keys("trellis").values("turboquant:bits=4").build()?;
    /// assert_eq!(named.layers()[1].config().values.to_string(), "turboquant");
    /// # Ok::<(), Error>(())
    /// ```
    pub const fn builder(layers: usize, kv_heads: usize, head_dim: usize, capacity: usize) -> KvCacheBuilder {
        let config = CacheConfig::new(layers, kv_heads, head_dim, capacity);
        let choice = Choice { keys: None, values: None, bits: None, profile: None };
        KvCacheBuilder { config, choice, backend: None, error: None }
    }
}

impl KvCacheBuilder {
    /// Chooses the most accurate codecs whose pages take at most `bits` bits a value, norms and centres included.
    ///
    /// `bits` must be at least 2.1 at a width of 128, and 2.3 at a width of 32. [`CacheConfig::for_bits`] has the table
    /// of codecs.
    pub const fn bits(mut self, bits: f64) -> Self {
        self.choice.bits = Some(bits);
        self
    }

    /// Spends the [`bits`](Self::bits) where the profile's model needs them.
    ///
    /// The profile chooses codecs for the keys and the values of each layer. Its smallest codecs set the least `bits`,
    /// about 1.2. [`Profile`] has an example.
    pub fn profile(mut self, profile: &Profile) -> Self {
        self.choice.profile = Some(profile.clone());
        self
    }

    /// Sets the codec of keys: a spec, or its text such as `"trellis:bits=2"`.
    pub fn keys<E: Into<Error>>(mut self, spec: impl TryInto<CodecSpec, Error = E>) -> Self {
        self.choice.keys = self.spec(spec.try_into());
        self
    }

    /// Sets the codec of values: a spec, or its text.
    pub fn values<E: Into<Error>>(mut self, spec: impl TryInto<CodecSpec, Error = E>) -> Self {
        self.choice.values = self.spec(spec.try_into());
        self
    }

    /// Returns the spec, or keeps its error for [`build`](Self::build).
    fn spec<E: Into<Error>>(&mut self, spec: Result<CodecSpec, E>) -> Option<CodecSpec> {
        spec.map_err(|error| self.error.get_or_insert(error.into())).ok()
    }

    /// Sets the width of a value. By default it is the width of a key.
    pub const fn value_dim(mut self, value_dim: usize) -> Self {
        self.config.each.value_dim = value_dim;
        self
    }

    /// Sets the number of query heads of a layer, a multiple of the key/value heads.
    ///
    /// Attention then accepts any number of queries a head and counts them. Without this number, it takes all rows as
    /// one query for each head, unless [`Attend::queries`](crate::Attend::queries) says otherwise.
    pub const fn query_heads(mut self, query_heads: usize) -> Self {
        self.config.each.query_heads = Some(query_heads);
        self
    }

    /// Lets queries of every layer see only the newest `tokens` tokens. Pages that no query can see are dropped.
    pub const fn sliding_window(mut self, tokens: usize) -> Self {
        self.config.each.sliding_window = Some(tokens);
        self
    }

    /// Changes anything else that all layers share.
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

    /// Sets the backend. The default is the fastest one of this CPU.
    pub const fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Creates the cache, without tokens.
    ///
    /// # Errors
    /// * The error of the first invalid spec.
    /// * Errors of [`CacheConfig::choose`] and [`KvCache::new`].
    pub fn build(self) -> Result<KvCache, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        KvCache::new(self.config.choose(&self.choice)?, self.backend.unwrap_or_else(Backend::detect))
    }
}

/// Lets the builder's methods take a [`CodecSpec`], whose conversion to itself cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
