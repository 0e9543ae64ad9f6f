//! All codecs: one type for each, and [`AnyCodec`] for any spec.
//!
//! * [`CodecSpec`] names a codec with its parameters, and parses and prints this name: `"turboquant:bits=3"`.
//! * [`TurboQuant`], [`Trellis`] and the others are codecs whose width the compiler knows.
//! * [`AnyCodec`] is a codec that is chosen at run time, without a heap. `CodecSpec::build_dyn` puts one on the heap.
//! * [`Codec`] is the trait that all of them implement. Implement it to use your own codec in a cache.
//! * [`HeadId`] names the layer and the head that a codec serves, because they are rotated differently.
//!
//! ```
//! use octaplex::Error;
//! use octaplex::codecs::TurboQuant;
//!
//! let codec = TurboQuant::<64>::new(4)?; // 4 bits, on the fastest instructions of this CPU
//! let mut block = vec![0; codec.block_bytes()];
//! codec.encode(&[0.5; 64], &mut block)?;
//! let mut decoded = [0.0; 64];
//! codec.decode(&block, &mut decoded)?;
//! assert!(decoded.iter().all(|x| (x - 0.5).abs() < 0.25));
//! # Ok::<(), Error>(())
//! ```
// The list of all codecs is `codecs!` at the end of this file.

pub use crate::codec::additive::{Additive, AdditiveSpec};
pub use crate::codec::float::{Bf16Spec, F16Spec, F32Spec, FloatRows};
pub use crate::codec::fp8::{Fp8, Fp8Scale, Fp8Spec};
pub use crate::codec::ggml::{Ggml, GgmlRotation, Iq4NlSpec, Q4_0Spec, Q5_0Spec, Q8_0Spec};
pub use crate::codec::graded::{Graded, GradedSpec};
pub use crate::codec::hqmq::{ChunkPacking, Hqmq, HqmqSpec, Secondary};
pub use crate::codec::int::{Int, IntSpec};
pub use crate::codec::octopus::{NormFormat, Octopus, OctopusSpec, Rounding, Tail};
pub use crate::codec::octopus_qjl::{OctopusQjl, OctopusQjlSpec};
pub use crate::codec::polarquant::{Depth, PolarQuant, PolarQuantSpec};
pub use crate::codec::qjl::{Qjl, QjlSpec};
pub use crate::codec::sketch::{SketchKind, SketchSpec};
pub use crate::codec::tq3_0::{Tq3, Tq3Spec, Tq3Variant};
pub use crate::codec::trellis::{Trellis, TrellisSpec};
pub use crate::codec::turboquant::{Gain, RotationKind, TurboQuant, TurboQuantSpec};
pub use crate::codec::turboquant_qjl::{TurboQuantQjl, TurboQuantQjlSpec};
pub use crate::codec::typed::{Query, Typed};
pub use crate::codec::{CentreCode, Codec, Pages, PlanePages, PlaneRows, Planes};
pub use crate::page::PAGE;
pub use crate::random::{HeadId, Role};
pub use crate::spec::{CodecInfo, Key};
pub use octaplex_arch::MAX_WEIGHT;

use crate::codebook::WIDTHS;
use crate::codec::planes::LEAD;
use crate::codec::typed::forward_codec;
use crate::codec::{
    additive, float, fp8, ggml, graded, hqmq, int, octopus, octopus_qjl, outliers, polarquant, qjl, tq3_0,
    trellis, turboquant, turboquant_qjl,
};
use crate::spec::{Spec, as_text, parse_keys, print_keys};
use crate::{Backend, Error};
use core::fmt;
use core::str::FromStr;

macro_rules! codecs {
    ($($(#[$meta:meta])* $([$feature:literal])? $variant:ident: $spec:ty => $codec:ty;)*) => {
        /// Names a codec and its parameters. Together they define what the bytes of a block mean.
        ///
        /// ```
        /// use octaplex::CodecSpec;
        /// let spec: CodecSpec = "turboquant:bits=3,seed=7".parse()?;
        /// assert_eq!(spec.block_bytes(128), 50);
        /// assert_eq!(spec.to_string(), "turboquant:bits=3,seed=7");
        /// assert!("turboquant:bits=9".parse::<CodecSpec>().is_err());
        /// # Ok::<(), octaplex::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CodecSpec {
            $($(#[$meta])* $variant($spec),)*
        }

        /// All codecs, in the order of the documentation.
        pub(crate) const CODECS: &[CodecInfo] = &[
            $(CodecInfo {
                name: <$spec as Spec>::NAME,
                summary: <$spec as Spec>::SUMMARY,
                keys: <$spec as Spec>::KEYS,
                samples: <$spec as Spec>::SAMPLES,
            },)*
        ];

        impl CodecSpec {
            /// Returns the bytes of a block of `dim` values, to size static buffers.
            ///
            /// The result is 0 if no codec has these parameters, and for widths above 2²⁰.
            #[must_use]
            pub const fn block_bytes(&self, dim: usize) -> usize {
                if dim > 1 << 20 {
                    return 0;
                }
                match self { $(Self::$variant(spec) => spec.block_bytes(dim),)* }
            }

            /// Calls `line` with the bytes and the meaning of each part of a block, in order.
            pub fn layout(&self, dim: usize, mut line: impl FnMut(usize, &str)) {
                match self { $(Self::$variant(spec) => spec.layout(dim, &mut line),)* }
            }

            /// Returns the codec's index in [`CODECS`].
            const fn number(&self) -> usize {
                enum Number { $($variant),* }
                match self { $(Self::$variant(_) => Number::$variant as usize,)* }
            }

            fn print(&self, all: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$variant(spec) => print_keys(spec, all, f),)* }
            }
        }

        impl FromStr for CodecSpec {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let (given, keys) = match text.split_once(':') {
                    Some((name, keys)) => (name, Some(keys)),
                    None => (text, None),
                };
                let (name, alias) = match ALIASES.iter().find(|(alias, ..)| *alias == given) {
                    Some((_, name, keys)) => (*name, Some(*keys)),
                    None => (given, None),
                };
                $(if name == <$spec as Spec>::NAME {
                    return Ok(Self::$variant(parse_keys(alias, keys, given.len() + 1)?));
                })*
                Err(Error::UnknownCodec { at: 0, allowed: CODECS })
            }
        }

        $(
            impl From<$spec> for CodecSpec {
                fn from(spec: $spec) -> Self {
                    Self::$variant(spec)
                }
            }

            impl Build for $codec {
                type Spec = $spec;

                fn build(spec: $spec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
                    <$codec>::build(spec, dim, backend, head)
                }

                fn from_spec(
                    spec: CodecSpec,
                    dim: usize,
                    backend: Backend,
                    head: HeadId,
                ) -> Result<Self, Error> {
                    match spec {
                        CodecSpec::$variant(spec) => <$codec>::build(spec, dim, backend, head),
                        _ => Err(ANOTHER_CODEC),
                    }
                }
            }
        )*

        /// Holds a codec of any kind and width that is chosen at run time, without a heap.
        ///
        /// Each call has one match, for a whole page. This type links all codecs. If you know the codec at compile
        /// time, use its own type instead.
        ///
        /// ```
        /// use octaplex::codecs::{AnyCodec, Codec, HeadId};
        /// use octaplex::{Backend, Error};
        ///
        /// let codec = AnyCodec::build("int:bits=8".parse()?, 96, Backend::detect(), HeadId::default())?;
        /// let mut block = [0; 98];
        /// codec.encode(&[0.5; 96], &mut block)?;
        /// # Ok::<(), Error>(())
        /// ```
        #[derive(Clone, Debug)]
        #[allow(clippy::large_enum_variant)] // boxes need an allocator
        #[non_exhaustive]
        pub enum AnyCodec {
            $(#[cfg(all($(feature = $feature)?))] $(#[$meta])* #[doc(hidden)] $variant($codec),)*
        }

        impl AnyCodec {
            /// Builds the codec of a spec, for vectors of `dim` values of one head.
            ///
            /// # Errors
            /// * [`Error::Width`] unless `dim` is one of [`WIDTHS`].
            /// * [`Error::Unsupported`] if this build lacks the codec.
            /// * Errors of the codec's own constructor.
            pub fn build(spec: CodecSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
                if !WIDTHS.contains(&dim) {
                    return Err(Error::Width { actual: dim });
                }
                spec.check_built()?;
                match spec {
                    $(#[cfg(all($(feature = $feature)?))] CodecSpec::$variant(spec) => {
                        <$codec>::build(spec, dim, backend, head).map(Self::$variant)
                    })*
                    #[allow(unreachable_patterns, reason = "a build with all codecs has no other pattern")]
                    _ => Err(ANOTHER_CODEC),
                }
            }

            fn as_codec(&self) -> &dyn Codec {
                match self { $(#[cfg(all($(feature = $feature)?))] Self::$variant(codec) => codec,)* }
            }
        }

        impl CodecSpec {
            /// Returns the error text for a build without this codec.
            const fn absent(&self) -> &'static str {
                const ABSENT: [&str; CODECS.len()] =
                    [$(concat!("this build lacks the codec: enable octaplex's feature " $(, "`", $feature, "`")?)),*];
                ABSENT[self.number()]
            }

            /// Returns whether this build can create the codec from a spec.
            ///
            /// That depends on the features of this crate. Types such as [`TurboQuant`](crate::codecs::TurboQuant)
            /// exist in every build.
            ///
            /// ```
            /// # use octaplex::CodecSpec;
            /// assert_eq!("trellis".parse::<CodecSpec>()?.is_built(), cfg!(feature = "trellis"));
            /// # Ok::<(), octaplex::Error>(())
            /// ```
            #[must_use]
            pub const fn is_built(&self) -> bool {
                const BUILT: [bool; CODECS.len()] = [$(cfg!(all($(feature = $feature)?))),*];
                BUILT[self.number()]
            }
        }

        #[cfg(feature = "alloc")]
        impl CodecSpec {
            /// Returns the size of the codec's type, without its memory on the heap.
            fn core_bytes(&self) -> usize {
                match self { $(Self::$variant(_) => size_of::<$codec>(),)* }
            }

            /// Builds the codec of this spec on the heap, for vectors of `dim` values.
            ///
            /// It takes no more memory than this codec needs. [`dyn Codec`](trait.Codec.html) has methods for vectors
            /// of rows.
            ///
            /// ```
            /// use octaplex::codecs::{Codec, HeadId};
            /// use octaplex::{Backend, CodecSpec, Error};
            ///
            /// let spec: CodecSpec = "int:bits=8".parse()?;
            /// let codec = spec.build_dyn(96, Backend::detect(), HeadId::default())?;
            /// assert_eq!(codec.block_bytes(), spec.block_bytes(96));
            /// # Ok::<(), Error>(())
            /// ```
            ///
            /// # Errors
            /// Errors of [`AnyCodec::build`].
            pub fn build_dyn(
                self,
                dim: usize,
                backend: Backend,
                head: HeadId,
            ) -> Result<alloc::boxed::Box<dyn Codec>, Error> {
                if !WIDTHS.contains(&dim) {
                    return Err(Error::Width { actual: dim });
                }
                self.check_built()?;
                match self {
                    $(#[cfg(all($(feature = $feature)?))] Self::$variant(spec) => {
                        Ok(alloc::boxed::Box::new(<$codec>::build(spec, dim, backend, head)?))
                    })*
                    #[allow(unreachable_patterns, reason = "a build with all codecs has no other pattern")]
                    _ => Err(ANOTHER_CODEC),
                }
            }
        }
    };
}

forward_codec!(() AnyCodec, self => self.as_codec());

impl Build for AnyCodec {
    type Spec = CodecSpec;

    fn build(spec: CodecSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        Self::build(spec, dim, backend, head)
    }

    fn from_spec(spec: CodecSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        Self::build(spec, dim, backend, head)
    }
}

/// Builds a codec from a spec. [`LayerCache::new`](crate::cache::LayerCache::new) requires it of its codecs' types.
pub trait Build: Codec + Sized {
    /// The codec's own spec.
    type Spec;

    /// Builds the codec for vectors of `dim` values of one head.
    ///
    /// # Errors
    /// Errors of the codec's constructor.
    fn build(spec: Self::Spec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error>;

    /// Builds the codec from a spec that may name any codec.
    ///
    /// # Errors
    /// * [`Error::Unsupported`] if the spec names another codec than this type.
    /// * Errors of [`build`](Self::build).
    fn from_spec(spec: CodecSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error>;
}

const ANOTHER_CODEC: Error = Error::Unsupported {
    why: "the spec names another codec than the type: set keys and values of the configuration, or use AnyCodec",
};

impl<C: Build, const D: usize> Typed<C, D> {
    /// Builds the codec of a spec, for one head.
    ///
    /// [`HeadId`] has an example.
    ///
    /// # Errors
    /// * [`Error::Width`] if the codec does not support the width `D`. Most codecs support those of
    ///   [`codebook::WIDTHS`](crate::codebook::WIDTHS).
    /// * [`Error::Value`] if a number of the spec is outside its range.
    /// * [`Error::Unsupported`] for combinations that the codec does not support at this width.
    pub fn build(spec: C::Spec, backend: Backend, head: HeadId) -> Result<Self, Error> {
        Self::new_with(C::build(spec, D, backend, head)?)
    }
}

impl<C: Build, const D: usize> Build for Typed<C, D> {
    type Spec = C::Spec;

    fn build(spec: C::Spec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        if dim != D {
            return Err(Error::Width { actual: dim });
        }
        Self::new_with(C::build(spec, D, backend, head)?) // D, not dim: the compiler drops code for other widths
    }

    fn from_spec(spec: CodecSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        if dim != D {
            return Err(Error::Width { actual: dim });
        }
        Self::new_with(C::from_spec(spec, D, backend, head)?)
    }
}

/// Other names of specs: (name, codec, keys). A spec with such a name can have the codec's other keys as well.
const ALIASES: &[(&str, &str, &str)] = &[("int8", "int", "bits=8")];

impl CodecSpec {
    /// Returns other common names of specs: (name, codec, keys).
    ///
    /// ```
    /// use octaplex::CodecSpec;
    /// assert!(CodecSpec::aliases().contains(&("int8", "int", "bits=8")));
    /// assert_eq!("int8:group=32".parse::<CodecSpec>()?, "int:bits=8,group=32".parse()?);
    /// # Ok::<(), octaplex::Error>(())
    /// ```
    #[must_use]
    pub const fn aliases() -> &'static [(&'static str, &'static str, &'static str)] {
        ALIASES
    }

    /// Returns the name, summary and keys of every codec. [`CodecInfo`] has an example.
    #[must_use]
    pub const fn all() -> &'static [CodecInfo] {
        CODECS
    }

    /// Returns the largest number of bytes of a page of `tokens` vectors of `dim` values, to size static buffers.
    ///
    /// A page of most codecs always takes exactly this many: `tokens` times [`block_bytes`](Self::block_bytes). Pages
    /// with outliers (`med`) vary in size.
    #[must_use]
    pub const fn page_bytes_max(&self, dim: usize, tokens: usize) -> usize {
        let has_outliers = match self {
            Self::Hqmq(spec) => spec.med > 0,
            Self::Int(spec) => spec.med > 0,
            _ => false,
        };
        let outliers = if has_outliers { outliers::bytes_max(dim.div_ceil(4), tokens) } else { 0 };
        tokens.saturating_mul(self.block_bytes(dim)).saturating_add(outliers)
    }

    /// Returns the largest number of bytes of a codec of this spec: its type, and matrices, sets and books on the heap.
    #[cfg(feature = "alloc")]
    pub(crate) fn memory_bytes(&self, dim: usize) -> usize {
        use crate::codec::sketch::{SketchKind::Gauss, SketchSpec};
        use crate::rotation::RotationKind::{self, Haar};
        // A dense matrix and its transpose have 2·D² values in f32.
        let matrix = |is_dense: bool| if is_dense { 8 * dim * dim } else { 0 };
        let rotation = |kind: RotationKind| matrix(kind == Haar);
        let sketch = |spec: SketchSpec| matrix(spec.kind == Gauss);
        let on_heap = match self {
            Self::TurboQuant(spec) => rotation(spec.rotation),
            Self::TurboQuantQjl(spec) => rotation(spec.rotation) + sketch(spec.sketch),
            Self::Qjl(spec) => sketch(spec.sketch),
            Self::OctopusQjl(spec) => sketch(spec.sketch),
            Self::Hqmq(spec) => spec.set_bytes(),
            Self::Additive(spec) => spec.book_bytes(),
            _ => 0,
        };
        self.core_bytes() + on_heap
    }

    /// Returns the bytes of a block's planes, without the norm. A graded block has two: the fine half and the coarse
    /// one.
    ///
    /// The result is 0 for codecs whose pages consist of blocks.
    pub(crate) const fn plane_bytes(&self, dim: usize) -> [usize; 2] {
        let planes = match self {
            Self::TurboQuant(spec) => spec.block_bytes(dim).saturating_sub(LEAD),
            Self::Trellis(spec) => spec.block_bytes(dim).saturating_sub(LEAD),
            Self::Octopus(spec) => spec.plane_bytes(dim),
            Self::Graded(spec) => return spec.plane_bytes(dim),
            _ => 0,
        };
        [planes, 0]
    }

    /// Checks that this build has the codec.
    pub(crate) fn check_built(&self) -> Result<(), Error> {
        if self.is_built() { Ok(()) } else { Err(Error::Unsupported { why: self.absent() }) }
    }

    /// Returns the bits a value of a block, norms and scales included: 8 · [`block_bytes`](Self::block_bytes) / `dim`.
    ///
    /// Pages with outliers (`med`) take more. Their list of exact values depends on the data, and is not included.
    #[must_use]
    pub fn bits_per_value(&self, dim: usize) -> f64 {
        8.0 * self.block_bytes(dim) as f64 / dim as f64
    }

    /// Returns the spec with every key written out, for people. [`Display`](fmt::Display) prints the shortest form.
    ///
    /// ```
    /// # use octaplex::CodecSpec;
    /// let spec: CodecSpec = "int:bits=8".parse()?;
    /// assert!(spec.full().to_string().starts_with("int:bits=8,"));
    /// # Ok::<(), octaplex::Error>(())
    /// ```
    #[must_use]
    pub fn full(&self) -> impl fmt::Display {
        struct Full(CodecSpec);
        impl fmt::Display for Full {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.print(true, f)
            }
        }
        Full(*self)
    }
}

/// Prints the shortest text that parses to this spec: the keys that differ from the default, in the documented order.
impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(false, f)
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests;

codecs! {
    /// Random rotation and a trellis code.
    ["trellis"] Trellis: trellis::TrellisSpec => trellis::Core;
    /// Two trellis codes: more bits for one half of the channels than for the other.
    ["trellis"] Graded: graded::GradedSpec => graded::Core;
    /// Random rotation and a Lloyd-Max scalar quantiser.
    ["turboquant"] TurboQuant: turboquant::TurboQuantSpec => turboquant::Core;
    /// TurboQuant with one bit less and a sign sketch of the residual.
    ["sketches"] TurboQuantQjl: turboquant_qjl::TurboQuantQjlSpec => turboquant_qjl::Core;
    /// The signs of a sketch.
    ["sketches"] Qjl: qjl::QjlSpec => qjl::Core;
    /// Random rotation; triplets as an octahedral direction and a radius.
    ["octopus"] Octopus: octopus::OctopusSpec => octopus::Core;
    /// OCTOPUS and a sign sketch of the residual.
    ["sketches"] OctopusQjl: octopus_qjl::OctopusQjlSpec => octopus_qjl::Core;
    /// Random rotation and polar coordinates.
    ["polarquant"] PolarQuant: polarquant::PolarQuantSpec => polarquant::Core;
    /// Chunks of four values as a radius and a product of quaternions.
    ["quaternions"] Hqmq: hqmq::HqmqSpec => hqmq::Core;
    /// The 14-byte block of a llama.cpp fork.
    ["ggml"] Tq3: tq3_0::Tq3Spec => tq3_0::Core;
    /// The HQMQ paper's ablation: sums of two random directions.
    ["quaternions"] Additive: additive::AdditiveSpec => additive::Core;
    /// Plain integers with a scale for each token or group.
    ["integers"] Int: int::IntSpec => int::Core;
    /// ggml's block of 8-bit integers.
    ["ggml"] Q8_0: ggml::Q8_0Spec => ggml::Core<ggml::Q8_0Spec>;
    /// ggml's block of 5-bit integers.
    ["ggml"] Q5_0: ggml::Q5_0Spec => ggml::Core<ggml::Q5_0Spec>;
    /// ggml's block of 4-bit integers.
    ["ggml"] Q4_0: ggml::Q4_0Spec => ggml::Core<ggml::Q4_0Spec>;
    /// ggml's block of 16 uneven levels.
    ["ggml"] Iq4Nl: ggml::Iq4NlSpec => ggml::Core<ggml::Iq4NlSpec>;
    /// 8-bit floats.
    ["fp8"] Fp8: fp8::Fp8Spec => fp8::Core;
    /// IEEE binary16.
    F16: float::F16Spec => float::Core<float::F16Spec>;
    /// bfloat16.
    Bf16: float::Bf16Spec => float::Core<float::Bf16Spec>;
    /// IEEE binary32.
    F32: float::F32Spec => float::Core<float::F32Spec>;
}

as_text!(CodecSpec, "the spec of a codec, such as \"trellis\" or \"turboquant:bits=3\"");
