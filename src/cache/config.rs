//! The configurations of one layer's cache and of a model's cache.

use crate::codebook::WIDTHS;
use crate::codec::float::F16Spec;
use crate::codec::graded::GradedSpec;
use crate::codec::trellis::TrellisSpec;
use crate::codec::turboquant::TurboQuantSpec;
use crate::page::PAGE;
use crate::spec::builders;
use crate::{CodecSpec, Error};

/// Chooses the centre that is subtracted from keys before they are encoded.
///
/// A vector added to all keys of a head changes every logit of a query by the same amount. Softmax ignores that. So a
/// centre costs bits, but no accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Center {
    /// Nothing.
    Off,
    /// One centre a head: the mean of its first 128 keys, or of fewer if the first page closes earlier.
    Prefix,
    /// One centre a head and page: the mean of the page's keys. In pages of 64 tokens it costs 0.08 bits a value of
    /// the keys if pages are lean, as with `trellis`, `graded` and `turboquant`. With other codecs it costs 0.25.
    #[default]
    Page,
}

/// Configures the cache of one attention layer.
///
/// Set fields directly, or use the builder method of the same name.
///
/// ```
/// use octaplex::LayerConfig;
///
/// let config = LayerConfig::new(8, 128, 32_768).keys("trellis".parse()?).sliding_window(4096);
/// assert_eq!(config.sliding_window, Some(4096));
/// # Ok::<(), octaplex::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LayerConfig {
    /// The layer's number, from 0. Layers with different numbers are rotated differently.
    ///
    /// `KvCache::new` numbers layers by their place if all have the number 0. If you create layers one by one, number
    /// them yourself.
    pub layer: u32,
    /// Number of key/value heads.
    pub kv_heads: usize,
    /// Number of query heads, a multiple of the key/value heads.
    ///
    /// With this number, attention counts the queries of a block, and returns an error for another number of heads.
    /// Without it, a block without [`queries`](crate::Attend::queries) counts as more heads. Snapshots do not hold this
    /// number; see `KvCache::set_query_heads`.
    pub query_heads: Option<usize>,
    /// Values of a key.
    pub key_dim: usize,
    /// Values of a value vector.
    pub value_dim: usize,
    /// The codec of keys.
    pub keys: CodecSpec,
    /// The codec of values.
    pub values: CodecSpec,
    /// Tokens of a page: 64, 128 or 256.
    pub page: usize,
    /// Number of first tokens that stay in f16 for ever. They get most of the attention.
    pub sink_tokens: usize,
    /// Number of newest tokens that stay in f16. There are up to a page more, until that page closes.
    pub recent_window: usize,
    /// The centre that is subtracted from keys. Keys in `f16`, `bf16` or `f32` are stored unchanged in any case.
    pub center: Center,
    /// Whether keys are divided by a balance, one factor for each channel, and queries multiplied. True by default.
    ///
    /// It makes the errors of all channels count alike. A head with similar channels keeps factors of 1, which change
    /// no bit; `docs/formats.md` has the rule. It costs 2 bytes a channel, once.
    pub balance: bool,
    /// Number of tokens that a query sees, its own included. Pages that no query can see any more are dropped.
    pub sliding_window: Option<usize>,
    /// Number of tokens that [`truncate`](crate::cache::Layer::truncate) can take back without a trace. 64 by default.
    ///
    /// After such a rollback, the layer is bit-exact with a layer that never had these tokens. It still has all tokens
    /// that its sliding window shows. This is for rejected drafts. The tokens are counted from the furthest position
    /// that the layer has reached. The rows of up to this many tokens and a page more stay in f16; 0 costs nothing.
    pub max_rollback: usize,
    /// Number of tokens that the layer can hold, in sinks, pages and window.
    ///
    /// A layer with a sliding window needs sinks + page + the larger of `sliding_window + max_rollback` and
    /// `recent_window`. It then takes any number of tokens.
    pub capacity: usize,
}

impl LayerConfig {
    /// Creates the default configuration: pages of 64 tokens, 4 sinks, 64 recent tokens, rollbacks of 64 tokens.
    ///
    /// Keys are balanced, and centred page by page. `head_dim` is the width of keys and values, and `capacity` counts
    /// tokens. These codecs are the defaults of the library and of all bindings:
    ///
    /// | | keys | values |
    /// |---|---|---|
    /// | widths 64, 128, 160, 192, 256, 512 | `graded` | `trellis` |
    /// | other widths | `trellis` | `trellis` |
    /// | builds without the feature `trellis` | `turboquant` | `turboquant` |
    ///
    /// ```
    /// use octaplex::LayerConfig;
    ///
    /// let specs = |config: LayerConfig| (config.keys.to_string(), config.values.to_string());
    /// # if cfg!(feature = "trellis") {
    /// assert_eq!(specs(LayerConfig::new(8, 128, 4096)), ("graded".into(), "trellis".into()));
    /// assert_eq!(specs(LayerConfig::new(8, 80, 4096)), ("trellis".into(), "trellis".into()));
    /// # }
    /// ```
    #[must_use]
    pub const fn new(kv_heads: usize, head_dim: usize, capacity: usize) -> Self {
        let (keys, values) = recommended(head_dim);
        Self {
            layer: 0,
            kv_heads,
            query_heads: None,
            key_dim: head_dim,
            value_dim: head_dim,
            keys,
            values,
            page: PAGE,
            sink_tokens: 4,
            recent_window: 64,
            center: Center::Page,
            balance: true,
            sliding_window: None,
            max_rollback: 64,
            capacity,
        }
    }

    builders! {
        layer: u32;
        kv_heads: usize;
        query_heads: usize => Some;
        key_dim: usize;
        value_dim: usize;
        keys: CodecSpec;
        values: CodecSpec;
        page: usize;
        sink_tokens: usize;
        recent_window: usize;
        center: Center;
        balance: bool;
        sliding_window: usize => Some;
        max_rollback: usize;
        capacity: usize;
    }

    /// Returns the bits a value in pages, keys and values together, with headers, norms and centres.
    ///
    /// A long context approaches this rate. The result is 0 for an impossible configuration.
    ///
    /// ```
    /// use octaplex::{Error, LayerConfig};
    ///
    /// let config = LayerConfig::new(8, 128, 4096).keys("trellis".parse()?).values("trellis".parse()?);
    /// assert_eq!((1000.0 * config.page_bits()).round(), 3090.0);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn page_bits(&self) -> f64 {
        8.0 * self.page_bytes() as f64 / self.page_values().max(1) as f64
    }

    pub(crate) fn page_bytes(&self) -> usize {
        let mut bytes = 0;
        self.page_layout(|part, _| bytes += part);
        bytes
    }

    /// Returns the number of values in a page, keys and values together.
    pub(crate) const fn page_values(&self) -> usize {
        self.kv_heads.saturating_mul(self.page).saturating_mul(self.key_dim.saturating_add(self.value_dim))
    }

    /// Returns whether keys are stored as floats. Such keys are neither centred nor balanced.
    pub(crate) const fn has_float_keys(&self) -> bool {
        matches!(self.keys, CodecSpec::F16(_) | CodecSpec::Bf16(_) | CodecSpec::F32(_))
    }

    pub(crate) const fn centers(&self) -> Center {
        if self.has_float_keys() { Center::Off } else { self.center }
    }

    pub(crate) const fn balances(&self) -> bool {
        self.balance && !self.has_float_keys()
    }

    /// Checks everything except the codecs.
    pub(crate) const fn check(&self) -> Result<(), Error> {
        const fn refuse(why: &'static str) -> Result<(), Error> {
            Err(Error::Unsupported { why })
        }
        if !is_width(self.key_dim) {
            return Err(Error::Width { actual: self.key_dim });
        }
        if !is_width(self.value_dim) {
            return Err(Error::Width { actual: self.value_dim });
        }
        if !matches!(self.page, 64 | 128 | 256) {
            return refuse("a page must have 64, 128 or 256 tokens");
        }
        if self.kv_heads == 0 || self.kv_heads > 1 << 16 {
            return refuse("a layer must have 1 to 65,536 key/value heads");
        }
        if let Some(queries) = self.query_heads
            && (queries == 0 || !queries.is_multiple_of(self.kv_heads))
        {
            return Err(Error::Heads { queries, kv_heads: self.kv_heads });
        }
        if matches!(self.query_heads, Some(heads) if heads > 1 << 24) {
            return refuse("a layer must have at most 2^24 query heads");
        }
        if self.sink_tokens > 1 << 16
            || self.recent_window > 1 << 24
            || self.max_rollback > 1 << 24
            || self.capacity as u64 > 1 << 40
        {
            return refuse(
                "a configuration is too large: at most 65,536 sinks, 2^24 recent tokens, rollbacks of 2^24 tokens, and a \
                 capacity of 2^40 tokens",
            );
        }
        if self.capacity < self.sink_tokens + self.recent_window + self.page {
            return Err(Error::Capacity {
                capacity: self.capacity,
                sinks: self.sink_tokens,
                window: self.recent_window,
                page: self.page,
            });
        }
        if matches!(self.sliding_window, Some(0)) {
            return refuse("a sliding window must have at least one token");
        }
        // `Layout` computes in usize, so nothing may overflow there: check in 64 bits. Pages store lengths in 32 bits.
        let (heads, width) = (self.kv_heads as u64, (self.key_dim + self.value_dim) as u64);
        let exact = (self.sink_tokens + self.recent_window + self.max_rollback + 2 * self.page) as u64;
        let paged = self.keys.page_bytes_max(self.key_dim, self.page) as u64
            + self.values.page_bytes_max(self.value_dim, self.page) as u64;
        let front = heads * (exact + 3) * 2 * width;
        if heads * (paged + 2 * width + 8) > (1 << 31) - 64 || front > isize::MAX as u64 {
            return refuse(
                "a page must take less than 2 GiB, and the exact tokens must fit the machine's memory",
            );
        }
        Ok(())
    }
}

/// The largest number of layers of a cache.
pub(crate) const MAX_LAYERS: usize = 1 << 16;

/// The codecs of keys and of values.
type Pair = (CodecSpec, CodecSpec);

/// The codecs at widths that `graded` supports, most accurate first. [`CacheConfig::for_bits`] has the measurements.
const MOST_ACCURATE_FIRST: [Pair; 9] = [
    (CodecSpec::F16(F16Spec), CodecSpec::F16(F16Spec)),
    (turboquant(8), turboquant(8)),
    (turboquant(6), turboquant(6)),
    (graded(16, 4), trellis(8)),
    (graded(16, 4), trellis(4)),
    (graded(8, 2), trellis(4)),
    (graded(8, 2), trellis(2)),
    (graded(4, 1), trellis(2)),
    (trellis(2), trellis(2)),
];

/// The codecs at all other widths, most accurate first.
const WITHOUT_GRADES: [Pair; 8] = [
    MOST_ACCURATE_FIRST[0],
    MOST_ACCURATE_FIRST[1],
    MOST_ACCURATE_FIRST[2],
    (trellis(8), trellis(8)),
    (trellis(8), trellis(4)),
    (trellis(4), trellis(4)),
    (trellis(4), trellis(2)),
    (trellis(2), trellis(2)),
];

/// Returns the default codecs of keys and values. [`LayerConfig::new`] has the table.
pub(crate) const fn recommended(head_dim: usize) -> Pair {
    if !cfg!(feature = "trellis") {
        return (turboquant(4), turboquant(4));
    }
    let keys = GradedSpec::new(8, 2);
    let has_grades = keys.block_bytes(head_dim) > 0;
    (if has_grades { CodecSpec::Graded(keys) } else { trellis(4) }, trellis(4))
}

const fn graded(fine: u8, coarse: u8) -> CodecSpec {
    CodecSpec::Graded(GradedSpec::new(fine, coarse))
}

const fn turboquant(bits: u8) -> CodecSpec {
    CodecSpec::TurboQuant(TurboQuantSpec::new(bits))
}

const fn trellis(m: u8) -> CodecSpec {
    CodecSpec::Trellis(TrellisSpec::new(m, 8))
}

const fn is_width(dim: usize) -> bool {
    let mut i = 0;
    while i < WIDTHS.len() {
        if WIDTHS[i] == dim {
            return true;
        }
        i += 1;
    }
    false
}

/// Names more accurate codecs for some layers of a cache: [`CacheConfig::finer`](field@CacheConfig::finer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Finer {
    /// Number of layers. They are spread evenly over the layers that are not kept in f16.
    pub layers: usize,
    /// The codec of these layers' keys.
    pub keys: CodecSpec,
    /// The codec of these layers' values.
    pub values: CodecSpec,
}

/// Configures the cache of a whole model. [`layers`](Self::layers) turns it into one [`LayerConfig`] for each layer.
///
/// ```
/// use octaplex::{CacheConfig, Error, LayerConfig};
///
/// // Four layers of 2 key/value heads of width 64, for 1,000 tokens; the first and the last in f16.
/// let each = LayerConfig::new(2, 64, 1000).keys("trellis".parse()?).values("trellis".parse()?);
/// let config = CacheConfig::new(4, 2, 64, 1000).each(each).boundary_layers(1);
/// let specs: Vec<String> = config.layers().map(|layer| layer.keys.to_string()).collect();
/// assert_eq!(specs, ["f16", "trellis", "trellis", "f16"]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CacheConfig {
    /// Number of attention layers.
    pub layers: usize,
    /// Number of layers at each end, the first ones and the last ones, that are kept in f16.
    pub boundary_layers: usize,
    /// The configuration that all layers share. Its layer number is ignored.
    pub each: LayerConfig,
    /// More accurate codecs for some layers, for a budget between two rates.
    pub finer: Option<Finer>,
}

impl CacheConfig {
    /// Creates a configuration with [`LayerConfig::new`] in every layer.
    #[must_use]
    pub const fn new(layers: usize, kv_heads: usize, head_dim: usize, capacity: usize) -> Self {
        let each = LayerConfig::new(kv_heads, head_dim, capacity);
        Self { layers, boundary_layers: 0, each, finer: None }
    }

    builders! {
        boundary_layers: usize;
        each: LayerConfig;
        finer: Finer => Some;
    }

    /// Returns the mean of [`LayerConfig::page_bits`] over all layers: the bits a value in pages.
    ///
    /// The result is 0 for more than 65,536 layers.
    #[must_use]
    pub fn page_bits(&self) -> f64 {
        if self.layers > MAX_LAYERS {
            return 0.0;
        }
        let bits = self.layers().map(|layer| layer.page_bits());
        bits.sum::<f64>() / self.layers.max(1) as f64
    }

    /// Chooses the most accurate codecs whose pages take at most `bits` bits a value, as the mean of all layers.
    ///
    /// The choice follows measurements on whole models. Keys get bits before values, because 3-bit keys and 2-bit
    /// values have half the divergence of the reverse. [`finer`](field@Self::finer) layers spend the bits between two
    /// rows:
    ///
    /// | keys / values | bits in pages, D = 64 | KL from f16: SmolLM2-135M, Qwen2.5-0.5B |
    /// |---|---|---|
    /// | `trellis:m=2` / `trellis:m=2` | 2.14 | 0.075, 0.063 |
    /// | `graded:bits=2` / `trellis:m=2` | 2.20 | 0.038, 0.032 |
    /// | `graded` / `trellis:m=2` | 2.70 | 0.016, 0.016 |
    /// | `graded` / `trellis` | 3.20 | 0.0057, 0.0055 |
    /// | `graded:bits=4` / `trellis` | 3.70 | 0.0025, 0.0037 |
    /// | `graded:bits=4` / `trellis:m=8` | 4.20 | 0.0011, 0.0017 |
    ///
    /// KL is in nats, on WikiText-2, over the positions that read pages. The next rows are `turboquant:bits=6` for
    /// both, then `turboquant:bits=8`, then `f16`. At the widths 32, 80, 96, 112 and 576, keys are `trellis` of the
    /// same bits, because `graded` does not support these widths.
    ///
    /// ```
    /// use octaplex::{CacheConfig, Error};
    ///
    /// let config = CacheConfig::new(24, 8, 128, 4096).for_bits(2.75)?;
    /// let texts = |keys: octaplex::CodecSpec, values: octaplex::CodecSpec| (keys.to_string(), values.to_string());
    /// assert_eq!(texts(config.each.keys, config.each.values), ("graded".into(), "trellis:m=2".into()));
    /// let finer = config.finer.map(|finer| (finer.layers, texts(finer.keys, finer.values)));
    /// assert_eq!(finer, Some((6, ("graded".into(), "trellis".into()))));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if even the smallest codecs take more bits, or if the configuration is impossible.
    pub fn for_bits(self, bits: f64) -> Result<Self, Error> {
        let total = bits * self.layers as f64 * self.each.page_values() as f64 / 8.0;
        self.within(total as usize, LayerConfig::page_bytes, |_| Error::Unsupported {
            why: "bits is too small for the codecs: give at least 2.1 at a width of 128, or 2.3 at 32",
        })
    }

    /// Chooses codecs as [`for_bits`](Self::for_bits) does, so that a full cache takes at most `total` bytes.
    ///
    /// `total` is the sum of the layers' [`required_bytes`](LayerConfig::required_bytes), so windows count too.
    ///
    /// ```
    /// use octaplex::{CacheConfig, Error};
    ///
    /// // 24 layers of 2 heads of width 64, for 32,768 tokens, in 100 MB.
    /// let config = CacheConfig::new(24, 2, 64, 32_768).for_bytes(100_000_000)?;
    /// assert_eq!(config.each.keys.to_string(), "graded:fine=16,coarse=4");
    /// assert_eq!(config.each.values.to_string(), "trellis");
    /// let bytes: usize = config.layers().map(|layer| layer.required_bytes()).sum();
    /// assert!(bytes <= 100_000_000 && bytes > 98_000_000);
    /// assert!(CacheConfig::new(24, 2, 64, 32_768).for_bytes(50_000_000).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Length`] if even the smallest codecs take more bytes. It says how many they take.
    /// * [`Error::Unsupported`] for an impossible configuration.
    pub fn for_bytes(self, total: usize) -> Result<Self, Error> {
        self.within(total, LayerConfig::required_bytes, |least| Error::Length {
            what: "bytes of the cache, at least",
            expected: least,
            actual: total,
        })
    }

    /// Chooses the most accurate codecs with which all layers together cost at most `total`.
    ///
    /// If there are none, returns `too_little` of the cost of the smallest codecs.
    fn within(
        self,
        total: usize,
        cost: impl Fn(&LayerConfig) -> usize,
        too_little: impl Fn(usize) -> Error,
    ) -> Result<Self, Error> {
        self.each.check()?;
        let with = |(keys, values)| self.each.keys(keys).values(values);
        let exact = self.boundary_layers.saturating_mul(2).min(self.layers);
        let of_exact = cost(&with(MOST_ACCURATE_FIRST[0])).saturating_mul(exact);
        let (mut least, mut richer) = (0, None);
        let has_grades = GradedSpec::default().block_bytes(self.each.key_dim) > 0;
        for &codecs in if has_grades { &MOST_ACCURATE_FIRST[..] } else { &WITHOUT_GRADES } {
            let each = cost(&with(codecs));
            least = each.saturating_mul(self.layers - exact).saturating_add(of_exact);
            if least <= total {
                let finer = richer.and_then(|((keys, values), richer): (Pair, usize)| {
                    let layers = (total - least).checked_div(richer.saturating_sub(each))?;
                    (layers > 0).then_some(Finer { layers, keys, values })
                });
                return Ok(Self { each: with(codecs), finer, ..self });
            }
            richer = Some((codecs, each));
        }
        Err(too_little(least))
    }

    /// Returns the configuration of each layer, in order. You can change them before you create a cache.
    pub fn layers(&self) -> impl Iterator<Item = LayerConfig> + '_ {
        let inner = self.layers.saturating_sub(self.boundary_layers.saturating_mul(2));
        (0..self.layers).map(move |layer| {
            let mut config = LayerConfig { layer: layer as u32, ..self.each };
            if layer < self.boundary_layers || self.layers - layer <= self.boundary_layers {
                config.keys = CodecSpec::F16(Default::default());
                config.values = config.keys;
            } else if let Some(Finer { layers, keys, values }) = self.finer {
                // Spread evenly: of the first i inner layers, floor(i * layers / inner) are finer.
                let finer_among = |i: usize| i as u128 * layers as u128 / inner as u128;
                if finer_among(layer - self.boundary_layers + 1) > finer_among(layer - self.boundary_layers) {
                    config = config.keys(keys).values(values);
                }
            }
            config
        })
    }
}
