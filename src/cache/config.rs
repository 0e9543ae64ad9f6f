//! What a cache keeps and how: one layer's configuration, and a model's.

use crate::codebook::WIDTHS;
use crate::codec::float::F16Spec;
use crate::codec::graded::GradedSpec;
use crate::codec::trellis::TrellisSpec;
use crate::codec::turboquant::TurboQuantSpec;
use crate::spec::builders;
use crate::{CodecSpec, Error};

/// Says what is subtracted from keys before they are encoded.
///
/// One vector added to all keys of a head changes every logit of a query by the same amount, and softmax does not see that.
/// So a centre costs bits, but no accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Center {
    /// Nothing.
    Off,
    /// One centre a head: the mean of the first 128 keys (or of as many as there are when the first page closes).
    Prefix,
    /// Each page's own mean, 16/(tokens of a page) bits a value.
    #[default]
    Page,
}

/// Configures the cache of one attention layer. Set fields directly, or use the builder method of the same name.
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
    /// The layer's number, from 0: layers are rotated differently.
    pub layer: u32,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Query heads, a multiple of the key/value heads. Where it is known, attention counts the queries of a block, and refuses
    /// queries of another number of heads. Without it, a block of queries whose [`queries`](crate::Attend::queries) was
    /// forgotten is taken for more heads.
    /// Snapshots do not hold it; see `KvCache::set_query_heads`.
    pub query_heads: Option<usize>,
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// The codec of keys.
    pub keys: CodecSpec,
    /// The codec of values.
    pub values: CodecSpec,
    /// Tokens of a page: 64, 128 or 256.
    pub page: usize,
    /// The first tokens, kept exact for ever: they get most of the attention.
    pub sink_tokens: usize,
    /// At least this many of the newest tokens are kept exact in f16; up to a page more while that fills.
    pub recent_window: usize,
    /// What is subtracted from keys. Keys in `f16`, `bf16` or `f32` are stored as they are, whatever this says.
    pub center: Center,
    /// Whether keys are divided, and queries multiplied, by a diagonal that makes the channels' errors count alike: true
    /// by default. A head whose channels differ by no more than chance keeps a diagonal of ones, which changes no bit;
    /// `docs/formats.md` has the rule. It costs 2 bytes a channel, once.
    pub balance: bool,
    /// Queries see this many tokens, their own included, and pages that none will see again are dropped.
    pub sliding_window: Option<usize>,
    /// So many tokens can be taken back by [`truncate`](crate::cache::Layer::truncate) without a trace: the layer then has the
    /// bits of one that never had them, and no token that a sliding window shows is gone. 64 by default; rejected
    /// drafts are what it is for. Counted from the furthest position that the layer has reached. It costs exact rows, up
    /// to this many tokens and a page more; 0 costs none.
    pub max_rollback: usize,
    /// Tokens that the layer holds at most, in sinks, pages and window. A sliding layer that is to take any number of
    /// tokens wants sinks + page + the larger of `sliding_window + max_rollback` and `recent_window`.
    pub capacity: usize,
}

impl LayerConfig {
    /// Creates the default configuration: pages of 64 tokens, 4 sinks, 64 recent tokens, rollbacks of 64 tokens; keys centred
    /// page by page and balanced.
    ///
    /// `head_dim` is the width of keys and values, and `capacity` counts tokens. The codecs are those that every face of the
    /// library takes when none are named:
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
            page: 64,
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

    /// Returns the bits that a value in a page takes, keys and values together, with everything counted. A long context tends
    /// to this rate. 0 for an impossible configuration.
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

    /// Values of a page, keys and values.
    pub(crate) const fn page_values(&self) -> usize {
        self.kv_heads.saturating_mul(self.page).saturating_mul(self.key_dim.saturating_add(self.value_dim))
    }

    /// Keys are exact: nothing to centre or balance.
    pub(crate) const fn has_float_keys(&self) -> bool {
        matches!(self.keys, CodecSpec::F16(_) | CodecSpec::Bf16(_) | CodecSpec::F32(_))
    }

    pub(crate) const fn centers(&self) -> Center {
        if self.has_float_keys() { Center::Off } else { self.center }
    }

    pub(crate) const fn balances(&self) -> bool {
        self.balance && !self.has_float_keys()
    }

    /// `Ok` if a cache can be built like this, its codecs aside.
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
            return refuse("pages have 64, 128 or 256 tokens");
        }
        if self.kv_heads == 0 || self.kv_heads > 1 << 16 {
            return refuse("a layer has 1 to 65,536 key/value heads");
        }
        if let Some(queries) = self.query_heads
            && (queries == 0 || !queries.is_multiple_of(self.kv_heads))
        {
            return Err(Error::Heads { queries, kv_heads: self.kv_heads });
        }
        if self.sink_tokens > 1 << 16
            || self.recent_window > 1 << 24
            || self.max_rollback > 1 << 24
            || self.capacity as u64 > 1 << 40
        {
            return refuse(
                "at most 65,536 sinks, 2^24 recent tokens, rollbacks of 2^24 and a capacity of 2^40 tokens",
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
            return refuse("a sliding window of 0 tokens sees nothing");
        }
        // In 64 bits, before `Layout` computes with those of the machine: a page's length is stored in 32.
        let (heads, width) = (self.kv_heads as u64, (self.key_dim + self.value_dim) as u64);
        let exact = (self.sink_tokens + self.recent_window + self.max_rollback + 2 * self.page) as u64;
        let paged = self.keys.page_bytes_max(self.key_dim, self.page) as u64
            + self.values.page_bytes_max(self.value_dim, self.page) as u64;
        let front = heads * (exact + 3) * 2 * width;
        if heads * (paged + 2 * width + 8) > (1 << 31) - 64 || front > isize::MAX as u64 {
            return refuse("a page takes less than 2 GiB, and the exact tokens fit the machine's memory");
        }
        Ok(())
    }
}

/// Keys and values.
type Pair = (CodecSpec, CodecSpec);

/// Keys and values of widths that have grades, measured on whole models; [`CacheConfig::for_bits`] has the table.
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

/// Keys of the other widths.
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

/// The codecs of keys and values where none are named; [`LayerConfig::new`] has the table.
const fn recommended(head_dim: usize) -> Pair {
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

/// Names other codecs for some layers of a cache: [`CacheConfig::finer`](field@CacheConfig::finer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Finer {
    /// How many layers, evenly spread over those that are not kept in f16.
    pub layers: usize,
    /// Their codec of keys.
    pub keys: CodecSpec,
    /// Their codec of values.
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
    /// Attention layers.
    pub layers: usize,
    /// The first and the last so many layers are kept in f16.
    pub boundary_layers: usize,
    /// What all layers share; its number is ignored.
    pub each: LayerConfig,
    /// Layers that have other codecs, for a budget between two rates.
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

    /// Returns the bits that a value in a page takes, as the mean of all layers: [`LayerConfig::page_bits`].
    #[must_use]
    pub fn page_bits(&self) -> f64 {
        let bits = self.layers().map(|layer| layer.page_bits());
        bits.sum::<f64>() / self.layers.max(1) as f64
    }

    /// Chooses the most accurate codecs whose pages take at most `bits` bits a value, as the mean of all layers.
    ///
    /// The choice follows measurements on whole models. Keys get bits before values: with equal bits, 3-bit keys and 2-bit
    /// values have half the divergence of the reverse. [`finer`](field@Self::finer) layers use up what lies between two rows:
    ///
    /// | keys / values | bits in pages, D = 64 | KL from f16: SmolLM2-135M, Qwen2.5-0.5B |
    /// |---|---|---|
    /// | `trellis:m=2` / `trellis:m=2` | 2.14 | .075, .063 |
    /// | `graded:bits=2` / `trellis:m=2` | 2.20 | .038, .032 |
    /// | `graded` / `trellis:m=2` | 2.70 | .016, .016 |
    /// | `graded` / `trellis` | 3.20 | .0057, .0055 |
    /// | `graded:bits=4` / `trellis` | 3.70 | .0025, .0037 |
    /// | `graded:bits=4` / `trellis:m=8` | 4.20 | .0011, .0017 |
    ///
    /// (Nats, WikiText-2, over the positions that read pages.) Above these: `turboquant:bits=6` for both, `bits=8`, `f16`. At
    /// widths without grades (32, 80, 96, 112, 576) keys are `trellis` of as many bits.
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
    /// [`Error::Unsupported`] where no codec takes so few, and for an impossible configuration.
    pub fn for_bits(self, bits: f64) -> Result<Self, Error> {
        let total = bits * self.layers as f64 * self.each.page_values() as f64 / 8.0;
        self.within(total as usize, LayerConfig::page_bytes, |_| Error::Unsupported {
            why: "no codec of a cache takes so few bits: from 2.1 at a width of 128, 2.3 at 32",
        })
    }

    /// Chooses codecs as [`for_bits`](Self::for_bits) does, so that a full cache takes at most `total` bytes.
    ///
    /// Everything counts, also windows: it is the sum of the layers' [`required_bytes`](LayerConfig::required_bytes).
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
    /// [`Error::Length`] where not even the smallest fits, with the bytes that it takes; [`Error::Unsupported`] for an
    /// impossible configuration.
    pub fn for_bytes(self, total: usize) -> Result<Self, Error> {
        self.within(total, LayerConfig::required_bytes, |least| Error::Length {
            what: "bytes of the cache, at least",
            expected: least,
            actual: total,
        })
    }

    /// The most accurate codecs of which all layers together cost at most `total`; an error by what the smallest cost.
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

    /// Returns the configuration of each layer. You may change them before you create a cache.
    pub fn layers(&self) -> impl Iterator<Item = LayerConfig> + '_ {
        let inner = self.layers.saturating_sub(self.boundary_layers.saturating_mul(2));
        (0..self.layers).map(move |layer| {
            let mut config = LayerConfig { layer: layer as u32, ..self.each };
            if layer < self.boundary_layers || layer + self.boundary_layers >= self.layers {
                config.keys = CodecSpec::F16(Default::default());
                config.values = config.keys;
            } else if let Some(Finer { layers, keys, values }) = self.finer {
                // Of n layers after the i-th, a share of i/n has been given out.
                let given = |i: usize| i as u128 * layers as u128 / inner as u128;
                if given(layer - self.boundary_layers + 1) > given(layer - self.boundary_layers) {
                    config = config.keys(keys).values(values);
                }
            }
            config
        })
    }
}
