// The README's examples are tests, and one of them needs a heap.
#![cfg_attr(feature = "alloc", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "alloc"),
    doc = "The compressed key/value cache of transformer attention: see README.md."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod attention;
mod backend;
mod cache;
#[cfg(feature = "alloc")]
mod cells;
#[cfg(feature = "alloc")]
mod chunk;
pub mod codebook;
mod codec;
mod codecs;
#[cfg(feature = "alloc")]
mod dynamic;
mod error;
#[cfg(feature = "gpu")]
pub mod gpu;
mod math;
mod page;
mod rotation;
mod sketch;
mod spec;
mod stream;
mod typed;
pub mod verify;

pub use attention::Attend;
pub use backend::Backend;
pub use cache::{CacheConfig, Center, Finer, Fixed, Layer, LayerCache, LayerConfig, Stats, Storage, Tensor};
#[cfg(feature = "alloc")]
pub use cache::{KvCache, KvCacheBuilder, Shared, SharedLayer};
#[cfg(feature = "alloc")]
pub use cells::{CellAttend, CellConfig, CellCounts, CellMask, CellPages, Partial, Tasks, in_order};
#[cfg(feature = "alloc")]
pub use chunk::{ChunkCodec, ChunkConfig, ChunkInfo, ChunkLayout, Dtype, TensorMut};
pub use codec::additive::{Additive, AdditiveSpec};
pub use codec::float::{Bf16Spec, F16Spec, F32Spec, FloatRows};
pub use codec::fp8::{Fp8, Fp8Scale, Fp8Spec};
pub use codec::ggml::{Ggml, GgmlRotation, Iq4NlSpec, Q4_0Spec, Q5_0Spec, Q8_0Spec};
pub use codec::graded::{Graded, GradedSpec};
pub use codec::hqmq::{ChunkPacking, Hqmq, HqmqSpec, Secondary};
pub use codec::int::{Int, IntSpec};
pub use codec::octopus::{NormFormat, Octopus, OctopusSpec, Rounding, Tail};
pub use codec::octopus_qjl::{OctopusQjl, OctopusQjlSpec};
pub use codec::polarquant::{Depth, PolarQuant, PolarQuantSpec};
pub use codec::qjl::{Qjl, QjlSpec};
pub use codec::tq3_0::{Tq3, Tq3Spec, Tq3Variant};
pub use codec::trellis::{Trellis, TrellisSpec};
pub use codec::turboquant::{Gain, RotationKind, TurboQuant, TurboQuantSpec};
pub use codec::turboquant_qjl::{TurboQuantQjl, TurboQuantQjlSpec};
pub use codec::{CentreCode, Codec, Pages, PlaneRows, Planes};
pub use codecs::{AnyCodec, Build, CodecSpec};
pub use error::Error;
/// Half-precision floats, which caches take and codecs store; the crate `half`'s.
pub use half::{bf16, f16};
pub use octaplex_arch::{MAX_WEIGHT, with_default_floats};
pub use sketch::{SketchKind, SketchSpec};
pub use spec::{CodecInfo, Key};
pub use stream::{Role, Stream};
pub use typed::{Query, Typed};
