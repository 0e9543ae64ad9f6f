//! Chunks: the keys and values of all layers for some tokens, as one self-describing blob.
//!
//! Stores of caches hold chunks. A chunk is a tensor of some tokens of some layers, in one of two
//! layouts. A blob consists of cache pages. Its last page is as short as the number of tokens
//! requires. A cache decides balance and prefix centre over time; a chunk decides both from its own
//! keys. `docs/formats.md` has the table.
//!
//! ```text
//! encode   tensor ─► rows of a head ─► balance, prefix centre ─► pages (cache/encode.rs) ─► blob     a layer at a time
//! decode   blob ─► everything checked ─► rows of a page and head (cache/decode.rs) ─► tensor
//! append   blob ─► everything checked ─► closed pages of a `KvCache`, as they are
//! ```

mod append;
mod blob;
mod decode;
mod encode;

pub use blob::ChunkInfo;

use crate::backend::Kernels;
use crate::cache::Center;
use crate::codec::Codec;
use crate::random::Role;
use crate::spec::builders;
use crate::{Backend, CodecSpec, Error, LayerConfig};
use alloc::{boxed::Box, vec, vec::Vec};
use blob::Plan;

/// The layout of keys and values in a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChunkLayout {
    /// \[2]\[layers]\[tokens]\[heads · width]: keys of all layers, then values.
    #[default]
    Split,
    /// \[1]\[layers]\[tokens]\[heads · 2 · width]: for each head a key, then its value.
    Fused,
}

/// The type of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

/// Configures a [`ChunkCodec`]: the shape of the tensor, and how it is encoded.
///
/// Fields that [`LayerConfig`] has too have the same meaning.
///
/// ```
/// use octaplex::chunk::{ChunkConfig, ChunkLayout};
/// use octaplex::Error;
///
/// let config = ChunkConfig::new(32, 8, 128).keys("trellis".parse()?).layout(ChunkLayout::Fused);
/// assert_eq!((config.layers, config.page), (32, 64));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ChunkConfig {
    /// The number of layers.
    pub layers: usize,
    /// The number of the first layer, which selects its rotation. It is 0, except for a part of a
    /// model's layers.
    pub first_layer: u32,
    /// Key/value heads in a layer.
    pub kv_heads: usize,
    /// Width of a key and of a value.
    pub head_dim: usize,
    /// The codec of keys.
    pub keys: CodecSpec,
    /// The codec of values.
    pub values: CodecSpec,
    /// Tokens in a page: 64, 128 or 256.
    pub page: usize,
    /// The centre that is subtracted from keys. A prefix centre is the mean of all keys of the chunk.
    pub center: Center,
    /// Whether keys are divided by a balance, one factor for each channel, decided from all keys of the chunk.
    pub balance: bool,
    /// The layout of the tensor.
    pub layout: ChunkLayout,
}

impl ChunkConfig {
    /// Creates the default configuration: the codecs of [`LayerConfig::new`], pages of 64 tokens,
    /// keys centred page by page and balanced, keys and values apart.
    #[must_use]
    pub const fn new(layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        let LayerConfig { keys, values, page, center, balance, .. } = LayerConfig::new(kv_heads, head_dim, 0);
        let layout = ChunkLayout::Split;
        Self { layers, first_layer: 0, kv_heads, head_dim, keys, values, page, center, balance, layout }
    }

    builders! {
        first_layer: u32;
        keys: CodecSpec;
        values: CodecSpec;
        page: usize;
        center: Center;
        balance: bool;
        layout: ChunkLayout;
    }

    /// Returns the cache configuration of layer `index` that keeps nothing exact.
    fn layer(&self, index: usize) -> LayerConfig {
        LayerConfig::new(self.kv_heads, self.head_dim, self.page)
            .layer(self.first_layer.saturating_add(index as u32))
            .keys(self.keys)
            .values(self.values)
            .page(self.page)
            .sink_tokens(0)
            .recent_window(0)
            .max_rollback(0)
            .center(self.center)
            .balance(self.balance)
    }

    /// Checks that all numbers are in range.
    fn check(&self) -> Result<(), Error> {
        if !(1..=1 << 16).contains(&self.layers) || u64::from(self.first_layer) + self.layers as u64 > 1 << 32
        {
            let why = "a chunk has 1 to 65,536 layers, whose numbers are below 2^32";
            return Err(Error::Unsupported { why });
        }
        self.layer(0).check()
    }

    /// Returns the memory of a [`ChunkCodec`] at most, in bytes. It has two codecs for each layer.
    fn codec_bytes(&self) -> usize {
        let codecs = self.keys.memory_bytes(self.head_dim) + self.values.memory_bytes(self.head_dim);
        self.layers.saturating_mul(codecs + size_of::<[Box<dyn Codec>; 2]>())
    }

    /// Returns the values from one token to the next: those of all heads, and keys with values if
    /// they are fused.
    fn row(&self) -> usize {
        self.kv_heads * self.stride()
    }

    /// Returns the values from one head to the next.
    fn stride(&self) -> usize {
        match self.layout {
            ChunkLayout::Split => self.head_dim,
            ChunkLayout::Fused => 2 * self.head_dim,
        }
    }

    /// Returns the index in the tensor at which the row of a head begins.
    fn place(&self, tokens: usize, role: Role, layer: usize, head: usize, token: usize) -> usize {
        let values = usize::from(role == Role::Values);
        let (plane, within) = match self.layout {
            ChunkLayout::Split => (values * self.layers + layer, 0),
            ChunkLayout::Fused => (layer, values * self.head_dim),
        };
        (plane * tokens + token) * self.row() + head * self.stride() + within
    }
}

/// Encodes and decodes chunks.
///
/// It holds the codecs of every layer and never changes, so one serves all threads. The same values
/// give the same bytes, on every machine and for every number of threads. With the feature `rayon`,
/// layers are encoded in parallel.
///
/// ```
/// use octaplex::chunk::{ChunkCodec, ChunkConfig, ChunkInfo};
/// use octaplex::{Backend, Error, bf16};
///
/// // Two layers of 8 heads of width 128, 100 tokens: [2][layers][tokens][heads · width].
/// let config = ChunkConfig::new(2, 8, 128).keys("trellis".parse()?).values("trellis".parse()?);
/// let codec = ChunkCodec::new(config, Backend::detect())?;
/// let tensor: Vec<bf16> = (0..2 * 2 * 100 * 8 * 128).map(|i| bf16::from_f32((i % 257) as f32 / 64.0)).collect();
/// let blob = codec.encode(&tensor[..])?;
/// assert!(blob.len() <= codec.max_bytes(100) && blob.len() * 4 < tensor.len() * 2);
///
/// // Elsewhere: the blob says what it is.
/// let info = ChunkInfo::read(&blob)?;
/// let codec = ChunkCodec::new(info.config, Backend::detect())?;
/// let mut decoded = vec![bf16::ZERO; info.values()];
/// codec.decode(&blob, &mut decoded[..])?;
/// assert_eq!(info.tokens, 100);
/// # Ok::<(), Error>(())
/// ```
pub struct ChunkCodec {
    config: ChunkConfig,
    backend: Kernels,
    /// The codecs of keys and values, for each layer.
    codecs: Vec<[Box<dyn Codec>; 2]>,
}

impl core::fmt::Debug for ChunkCodec {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ChunkCodec").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ChunkCodec {
    /// Creates the codecs of all layers.
    ///
    /// # Errors
    /// [`Error::Unsupported`] and [`Error::Width`] for impossible configurations; errors of the
    /// codecs' constructors.
    pub fn new(config: ChunkConfig, backend: Backend) -> Result<Self, Error> {
        config.check()?;
        let build = |index: usize| {
            let layer = config.layer(index);
            let keys = layer.keys.build_dyn(layer.key_dim, backend, layer.head_id(Role::Keys))?;
            Ok([keys, layer.values.build_dyn(layer.value_dim, backend, layer.head_id(Role::Values))?])
        };
        let codecs = (0..config.layers).map(build).collect::<Result<_, Error>>()?;
        Ok(Self { config, backend: backend.kernels(), codecs })
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &ChunkConfig {
        &self.config
    }

    /// Returns the largest number of bytes of a blob with `tokens` tokens. Except with codecs that
    /// keep outliers (`med`), a blob always takes this many.
    #[must_use]
    pub fn max_bytes(&self, tokens: usize) -> usize {
        Plan::new(&self.config, tokens).most()
    }

    /// Returns the codecs of keys and of values of a layer.
    fn codecs(&self, layer: usize) -> (&dyn Codec, &dyn Codec) {
        let [keys, values] = &self.codecs[layer];
        (&**keys, &**values)
    }
}
