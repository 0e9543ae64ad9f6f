#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod codebook;
mod codec;
#[cfg(feature = "alloc")]
mod dynamic;
mod error;
mod rotation;
mod spec;
mod stream;

pub use codec::float::{Bf16Spec, F16Spec, F32Spec, FloatRows};
pub use codec::int::{Int, IntSpec};
pub use codec::octopus::{NormFormat, Octopus, OctopusSpec, Rounding, Tail};
pub use codec::turboquant::{Gain, RotationKind, TurboQuant, TurboQuantSpec};
pub use codec::{Codec, Query};
#[cfg(feature = "alloc")]
pub use dynamic::DynCodec;
pub use error::Error;
pub use octaplex_arch::{Backend, MAX_WEIGHT};
pub use spec::{AnyCodec, CodecSpec, Key};
pub use stream::{Role, Stream};
