//! Octaplex compresses the key/value cache of transformer attention to 1-8 bits a value, and computes attention on the
//! compressed bytes, without a decoded copy. Results are bit-exact on every CPU.
//!
//! # A cache
//!
//! [`KvCache`] holds the keys and values of one sequence, in all layers of a model. For a batch, create one cache for
//! each sequence. It needs the feature `alloc`, which is on by default.
//!
//! ```
//! use octaplex::{Error, KvCache};
//!
//! let (kv_heads, query_heads, width, tokens) = (8, 32, 128, 1000);
//! // One sequence: two layers of up to 32,768 tokens.
//! let mut cache = KvCache::builder(2, kv_heads, width, 32_768).query_heads(query_heads).build()?;
//!
//! let prompt = vec![0.5; kv_heads * tokens * width]; // [heads][tokens][width], in f32, f16 or bf16
//! cache.append(0, &prompt, &prompt)?; // layer 0; keys come after the rotary embedding
//! assert_eq!(cache.stats().paged_tokens, 896); // compressed; the other 104 are still in f16
//!
//! let mut output = vec![0.0; query_heads * width];
//! cache.attend(0, &vec![0.1; query_heads * width], &mut output)?; // the newest token's queries
//! # Ok::<(), Error>(())
//! ```
//!
//! * [`Rows`] and [`RowsMut`] describe other orders, such as \[tokens]\[heads]\[width], and strides.
//! * [`Attend`] has the options of attention: blocks of queries, soft caps, windows, biases, sink logits.
//! * [`KvCache::truncate`] takes tokens back, [`KvCache::evict`] drops old ones, [`KvCache::fork`] shares pages.
//! * `KvCache::save` and `KvCache::load` keep a cache in bytes.
//! * [`CacheConfig`] and [`LayerConfig`] configure everything else, layer by layer.
//! * `Profile` says how much each layer of a model may lose, so that a number of bits is spent where it counts.
//!
//! # Choosing codecs
//!
//! Each codec has a name and parameters, its *spec*. [`CodecSpec`] parses and prints it.
//!
//! | you want | keys | values | bits a value |
//! |---|---|---|---|
//! | the default | `graded` | `trellis` | 3.1 to 3.2 |
//! | output close to f16 | `graded:bits=4` | `trellis:bits=4` | 4.1 to 4.2 |
//! | the smallest useful cache | `graded:bits=2` | `trellis:bits=2` | 2.1 to 2.2 |
//! | fast encoding | `turboquant` | `turboquant` | 4.1 |
//!
//! Bits are those of pages: the smaller figure at widths of 128 and more, the larger at 64. The exact tokens come on
//! top. Printed specs have the number of centroids instead of bits: `trellis:m=2`, `trellis:m=8`.
//!
//! `KvCache::builder(..).bits(2.5)` chooses codecs for a budget, and `.keys("trellis").values("turboquant:bits=3")`
//! names them. The [list of codecs][list] has all of them, and [Choosing a codec][choosing] compares them.
//!
//! # Modules
//!
//! | module | what it contains |
//! |---|---|
//! | [`cache`] | one layer: on the heap, or in memory that you bring, without an allocator |
//! | [`codecs`] | each codec by itself, codecs known at compile time, the trait [`Codec`](codecs::Codec) for your own |
//! | `chunk` | keys and values of all layers as one blob, for stores and networks |
//! | `cells` | pages of cells that are written in any order, for engines such as llama.cpp |
//! | `gpu` | caches on NVIDIA and AMD GPUs (features `cuda` and `hip`) |
//! | [`verify`] | checksums of all codecs, to compare machines |
//! | [`codebook`] | the tables that codecs share |
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `alloc` (default) | everything that needs a heap: `KvCache`, chunks, cells, profiles |
//! | `codecs` (default) | all codecs; `trellis`, `turboquant` and other families alone make small programs |
//! | `std` | detection of ARM's dot-product instructions at run time, faster checksums |
//! | `rayon` | threads |
//! | `serde` | serialises specs, profiles and configurations |
//! | `cuda`, `hip` | the module `gpu` |
//!
//! # Without a heap
//!
//! With `default-features = false` the library has no allocator. A [`LayerCache`](cache::LayerCache) lives in bytes
//! that you bring, and [`LayerConfig::required_bytes`] gives their number at compile time.
//!
//! ```
//! use octaplex::cache::LayerCache;
//! use octaplex::codecs::{TurboQuant, TurboQuantSpec};
//! use octaplex::{Backend, CodecSpec, Error, LayerConfig};
//!
//! const FOUR_BITS: CodecSpec = CodecSpec::TurboQuant(TurboQuantSpec::new(4));
//! const CONFIG: LayerConfig = LayerConfig::new(1, 64, 1000).keys(FOUR_BITS).values(FOUR_BITS); // heads, width, tokens
//! let mut memory = [0; CONFIG.required_bytes()];
//! let mut scratch = [0.0; CONFIG.scratch_len(1)];
//! type Codec = TurboQuant<64>;
//! let mut cache = LayerCache::<Codec, Codec, _>::new(&CONFIG, Backend::detect(), &mut memory[..])?;
//! cache.append(&[0.5; 64], &[0.25; 64], &mut scratch)?;
//! let mut output = [0.0; 64];
//! cache.attend(&[1.0; 64], &mut output, &mut scratch)?;
//! assert_eq!(output, [0.25; 64]);
//! # Ok::<(), Error>(())
//! ```
//!
//! # Errors, panics and threads
//!
//! Malformed bytes and impossible arguments return an [`Error`] and do not panic. The cache is then as it was. Results
//! do not depend on the number of threads or on the CPU. They need the default floating-point environment; see
//! [`with_default_floats`].
//!
//! [list]: https://github.com/octaplex/octaplex/blob/main/docs/codecs.md
//! [choosing]: https://github.com/octaplex/octaplex/blob/main/docs/choosing.md
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod attention;
mod backend;
pub mod cache;
#[cfg(feature = "alloc")]
pub mod cells;
#[cfg(feature = "alloc")]
pub mod chunk;
pub mod codebook;
mod codec;
pub mod codecs;
#[cfg(feature = "alloc")]
mod dynamic;
mod error;
#[cfg(feature = "gpu")]
pub mod gpu;
mod math;
mod page;
#[cfg(feature = "alloc")]
pub mod profile;
mod random;
mod rotation;
mod rows;
mod spec;
pub mod verify;

pub use attention::Attend;
pub use backend::Backend;
#[cfg(feature = "alloc")]
#[doc(inline)]
pub use cache::KvCache;
#[doc(inline)]
pub use cache::{CacheConfig, LayerConfig, Stats};
#[doc(inline)]
pub use codecs::CodecSpec;
pub use error::{Error, ErrorKind};
/// Half-precision floats of the crate `half`. Caches take them, and codecs store them.
pub use half::{bf16, f16};
pub use octaplex_arch::with_default_floats;
#[cfg(feature = "alloc")]
#[doc(inline)]
pub use profile::Profile;
pub use rows::{Floats, Rows};
#[cfg(feature = "alloc")]
pub use rows::{FloatsMut, RowsMut};

/// Runs the README's examples as tests.
#[cfg(all(doctest, feature = "alloc"))]
#[doc = include_str!("../README.md")]
struct Readme;
