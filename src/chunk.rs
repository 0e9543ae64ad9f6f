//! Chunks: the keys and values of all layers for some tokens, as one blob that describes itself.
//!
//! Stores of caches hold chunks: a number of tokens of a number of layers, in a tensor of one of two layouts. A blob has the
//! pages of a cache, the last one as long as the tokens make it; what a cache decides over time (balance, prefix centre) is
//! decided from the chunk's own keys. `docs/formats.md` has the table.
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
use crate::spec::builders;
use crate::stream::Role;
use crate::{Backend, CodecSpec, Error, LayerConfig};
use alloc::{boxed::Box, vec, vec::Vec};
use blob::Plan;

/// Says how keys and values lie in a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChunkLayout {
    /// \[2]\[layers]\[tokens]\[heads · width]: keys of all layers, then values.
    #[default]
    Split,
    /// \[1]\[layers]\[tokens]\[heads · 2 · width]: for each head a key, then its value.
    Fused,
}

/// Names the type of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

/// Configures a [`ChunkCodec`]: the shape of the tensor, and how it is encoded. Fields that
/// [`LayerConfig`] has too mean the same.
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
    /// Layers of the stack.
    pub layers: usize,
    /// The number of the first: layers are rotated differently. 0, but for a part of a model's layers.
    pub first_layer: u32,
    /// Key/value heads of a layer.
    pub kv_heads: usize,
    /// Width of a key and of a value.
    pub head_dim: usize,
    /// The codec of keys.
    pub keys: CodecSpec,
    /// The codec of values.
    pub values: CodecSpec,
    /// Tokens of a page: 64, 128 or 256.
    pub page: usize,
    /// What is subtracted from keys; a prefix centre is the mean of all keys of the chunk.
    pub center: Center,
    /// Whether keys are divided by a diagonal, decided from all keys of the chunk.
    pub balance: bool,
    /// How the tensor lies in memory.
    pub layout: ChunkLayout,
}

impl ChunkConfig {
    /// Creates the default configuration: the codecs of [`LayerConfig::new`], pages of 64 tokens, keys centred page by page and
    /// balanced, keys and values apart.
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

    /// Layer `index` of the stack, as a cache has it that keeps nothing exact.
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

    fn check(&self) -> Result<(), Error> {
        if !(1..=1 << 16).contains(&self.layers) || u64::from(self.first_layer) + self.layers as u64 > 1 << 32
        {
            let why = "a chunk has 1 to 65,536 layers, whose numbers are below 2^32";
            return Err(Error::Unsupported { why });
        }
        self.layer(0).check()
    }

    /// Bytes that a [`ChunkCodec`] takes at most: two codecs a layer.
    fn codec_bytes(&self) -> usize {
        let codecs = self.keys.memory_bytes(self.head_dim) + self.values.memory_bytes(self.head_dim);
        self.layers.saturating_mul(codecs + size_of::<[Box<dyn Codec>; 2]>())
    }

    /// Values of a row of the tensor: a token of a layer, keys alone unless they are fused with values.
    fn row(&self) -> usize {
        self.kv_heads * self.stride()
    }

    /// Values from a head's row to the next head's.
    fn stride(&self) -> usize {
        match self.layout {
            ChunkLayout::Split => self.head_dim,
            ChunkLayout::Fused => 2 * self.head_dim,
        }
    }

    /// Where the row of a head begins in the tensor.
    fn place(&self, tokens: usize, role: Role, layer: usize, head: usize, token: usize) -> usize {
        let values = usize::from(role == Role::Values);
        let (plane, within) = match self.layout {
            ChunkLayout::Split => (values * self.layers + layer, 0),
            ChunkLayout::Fused => (layer, values * self.head_dim),
        };
        (plane * tokens + token) * self.row() + head * self.stride() + within
    }
}

/// Encodes chunks and decodes them: the codecs of every layer, and nothing that changes, so that one serves all threads. The same
/// values give the same bytes, on every machine and for every number of threads (layers at once with the feature `rayon`).
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
    /// Of keys and values, a layer each.
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
    /// [`Error::Unsupported`] and [`Error::Width`] for impossible configurations, and what the codecs' constructors refuse.
    pub fn new(config: ChunkConfig, backend: Backend) -> Result<Self, Error> {
        config.check()?;
        let build = |index: usize| {
            let layer = config.layer(index);
            let keys = layer.keys.build_dyn(layer.key_dim, backend, layer.stream(Role::Keys))?;
            Ok([keys, layer.values.build_dyn(layer.value_dim, backend, layer.stream(Role::Values))?])
        };
        let codecs = (0..config.layers).map(build).collect::<Result<_, Error>>()?;
        Ok(Self { config, backend: backend.kernels(), codecs })
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &ChunkConfig {
        &self.config
    }

    /// Returns the most bytes that a blob of `tokens` tokens takes. Except for codecs that keep outliers (`med`), a blob always
    /// takes this many.
    #[must_use]
    pub fn max_bytes(&self, tokens: usize) -> usize {
        Plan::new(&self.config, tokens).most()
    }

    fn codecs(&self, layer: usize) -> (&dyn Codec, &dyn Codec) {
        let [keys, values] = &self.codecs[layer];
        (&**keys, &**values)
    }
}
