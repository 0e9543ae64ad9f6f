//! `name:key=value,key=value`: what a block's bytes mean, as text and as a value; and codecs chosen at run time.
//!
//! The list of codecs stands once, in the `codecs!` call at the end of this file.

use crate::codec::{self, Codec, Query};
use crate::{Backend, Error, Stream};
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;
use octaplex_arch::Packing;

/// The largest block of any codec: f32 at the widest width.
pub(crate) const MAX_BLOCK_BYTES: usize = 4 * octaplex_arch::MAX_DIM;

/// A key of a codec's spec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The values it takes, in words.
    pub values: &'static str,
    /// How many keys say the same thing in another way: those that come before the `excludes_not` just before it.
    excludes: usize,
    excludes_not: usize,
}

impl Key {
    pub(crate) const fn new(name: &'static str, values: &'static str) -> Self {
        Self { name, values, excludes: 0, excludes_not: 0 }
    }

    /// The same key, excluding the `count` keys before it.
    pub(crate) const fn excludes(self, count: usize) -> Self {
        Self { excludes: count, ..self }
    }

    /// The same key, excluding `count` keys before it, after skipping `skipped` of them.
    pub(crate) const fn excludes_but(self, count: usize, skipped: usize) -> Self {
        Self { excludes: count, excludes_not: skipped, ..self }
    }

    /// Whether this key excludes the one `distance` keys before it.
    const fn is_excluding(&self, distance: usize) -> bool {
        distance > self.excludes_not && distance - self.excludes_not <= self.excludes
    }

    pub(crate) const fn error(self, at: usize) -> Error {
        Error::Value { at, key: self.name, allowed: self.values }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.values)
    }
}

/// A key's value, for printing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// The key does not apply here.
    Absent,
    Int(u64),
    Word(&'static str),
}

impl Value {
    /// The name of `value` in a list of names.
    pub(crate) fn word<T: PartialEq>(value: T, names: &[(&'static str, T)]) -> Self {
        names.iter().find(|(_, v)| *v == value).map_or(Self::Absent, |(name, _)| Self::Word(name))
    }

    pub(crate) fn flag(value: bool) -> Self {
        Self::Word(if value { "true" } else { "false" })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => Ok(()),
            Self::Int(value) => write!(f, "{value}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// A whole number in a range, in plain digits.
pub(crate) fn parse_int(text: &str, range: RangeInclusive<u64>) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|value| digits && range.contains(value))
}

/// The meaning of a word in a list of names.
pub(crate) fn one_of<T: Copy>(text: &str, names: &[(&'static str, T)]) -> Option<T> {
    names.iter().find(|(name, _)| *name == text).map(|&(_, value)| value)
}

/// `true` or `false`.
pub(crate) fn parse_flag(text: &str) -> Option<bool> {
    text.parse().ok()
}

/// What a codec's spec type gives to the machinery here.
pub(crate) trait Spec: Copy + Default {
    const NAME: &'static str;
    /// What the codec is, in a few words.
    const SUMMARY: &'static str;
    /// In the order in which they are printed.
    const KEYS: &'static [Key];
    /// Sets key number `key`; `None` for an impossible value.
    fn set(&mut self, key: usize, value: &str) -> Option<()>;
    /// The value of key number `key`.
    fn get(&self, key: usize) -> Value;
    /// Whether a spec without key number `key` says the same.
    fn is_default(&self, key: usize) -> bool {
        self.get(key) == Self::default().get(key)
    }
    /// The spec once all keys are set, for defaults that depend on other keys; bit i of `given` says that key number i
    /// was given.
    fn complete(self, _given: u32) -> Self {
        self
    }
    /// Calls `line` with the bytes and the meaning of each part of a block, in order.
    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str));
}

/// The lines of a block's code planes.
pub(crate) fn describe_planes(packing: Packing, dim: usize, line: &mut dyn FnMut(usize, &str)) {
    let raw = packing.raw_bytes(dim);
    if raw > 0 {
        line(
            raw,
            [
                "",
                "raw plane, 1 bit a code",
                "raw plane, 2 bits a code",
                "raw plane, 3 bits a code",
                "raw plane, 4 bits a code",
                "raw plane, 5 bits a code",
                "raw plane, 6 bits a code",
                "raw plane, 7 bits a code",
                "raw plane, 8 bits a code",
            ][packing.raw_bits() as usize],
        );
    }
    match packing.radix() {
        3 => line(packing.bytes(dim) - raw, "base-3 digits, five to a byte"),
        5 => line(packing.bytes(dim) - raw, "base-5 digits, three to 7 bits"),
        9 => line(packing.bytes(dim) - raw, "base-9 digits, two to 7 bits"),
        _ => {}
    }
}

/// Parses `key=value,key=value`, which starts at byte `at` of the spec, after the keys that an alias stands for.
fn parse_keys<S: Spec>(alias: Option<&str>, text: Option<&str>, at: usize) -> Result<S, Error> {
    let mut spec = S::default();
    let mut given = 0u32;
    let mut next = at;
    let own = text.into_iter().flat_map(|text| text.split(',')).map(|part| {
        let at = next;
        next += part.len() + 1;
        (at, part)
    });
    for (at, part) in alias.into_iter().flat_map(|keys| keys.split(',')).map(|part| (0, part)).chain(own) {
        let name = part.split('=').next().unwrap_or(part);
        let unknown = Error::UnknownKey { at, codec: S::NAME, allowed: S::KEYS };
        let index = S::KEYS.iter().position(|key| key.name == name).ok_or(unknown)?;
        let key = S::KEYS[index];
        let value = part[name.len()..].strip_prefix('=').unwrap_or("");
        for (other, earlier) in S::KEYS.iter().enumerate().filter(|(other, _)| given & (1 << other) != 0) {
            let (low, high) = (index.min(other), index.max(other));
            if low == high || S::KEYS[high].is_excluding(high - low) {
                return Err(Error::Conflict { at, key: key.name, with: earlier.name });
            }
        }
        spec.set(index, value).ok_or(key.error((at + name.len() + 1).min(at + part.len())))?;
        given |= 1 << index;
    }
    Ok(if given == 0 { spec } else { spec.complete(given) })
}

/// Prints the keys that differ from the default; with `all`, every key that applies.
fn print_keys<S: Spec>(spec: &S, all: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(S::NAME)?;
    let mut separator = ':';
    for (index, key) in S::KEYS.iter().enumerate() {
        let value = spec.get(index);
        if value != Value::Absent && (all || !spec.is_default(index)) {
            write!(f, "{separator}{}={value}", key.name)?;
            separator = ',';
        }
    }
    Ok(())
}

/// A codec in the list of all codecs.
#[derive(Clone, Copy, Debug)]
pub struct CodecInfo {
    /// Its name in specs.
    pub name: &'static str,
    /// What it is, in a few words.
    pub summary: &'static str,
    /// The keys of its spec.
    pub keys: &'static [Key],
}

macro_rules! codecs {
    ($($(#[$meta:meta])* $variant:ident: $spec:ty => $codec:ty;)*) => {
        /// Which codec, with all its parameters: what the bytes of a block mean.
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

        /// Every codec, in the order of the documentation.
        pub(crate) const CODECS: &[CodecInfo] = &[
            $(CodecInfo {
                name: <$spec as Spec>::NAME,
                summary: <$spec as Spec>::SUMMARY,
                keys: <$spec as Spec>::KEYS,
            },)*
        ];

        impl CodecSpec {
            /// Bytes of a block of `dim` values; sizes static buffers. 0 for parameters that no codec is built from,
            /// and beyond a width of 2²⁰.
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
                Err(Error::UnknownCodec { at: 0 })
            }
        }

        /// Any codec, chosen at run time: one match a page, not a token.
        #[derive(Clone, Debug)]
        #[allow(clippy::large_enum_variant)] // boxes need an allocator
        #[non_exhaustive]
        pub enum AnyCodec<const D: usize> {
            $($(#[$meta])* $variant($codec),)*
        }

        impl<const D: usize> AnyCodec<D> {
            /// The codec of a spec, for one head.
            ///
            /// # Errors
            /// [`Error::Width`] unless `D` is one of [`codebook::WIDTHS`](crate::codebook::WIDTHS), and what the
            /// codec's own constructor refuses.
            pub fn build(spec: CodecSpec, backend: Backend, stream: Stream) -> Result<Self, Error> {
                if !crate::codebook::WIDTHS.contains(&D) {
                    return Err(Error::Width { actual: D });
                }
                Ok(match spec {
                    $(CodecSpec::$variant(spec) => Self::$variant(<$codec>::build(spec, backend, stream)?),)*
                })
            }
        }

        impl<const D: usize> Codec<D> for AnyCodec<D> {
            fn spec(&self) -> CodecSpec {
                match self { $(Self::$variant(codec) => codec.spec(),)* }
            }
            fn block_bytes(&self) -> usize {
                match self { $(Self::$variant(codec) => codec.block_bytes(),)* }
            }
            fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
                match self { $(Self::$variant(codec) => codec.encode(x, block),)* }
            }
            fn page_bytes_max(&self, tokens: usize) -> usize {
                match self { $(Self::$variant(codec) => codec.page_bytes_max(tokens),)* }
            }
            fn encode_page(&self, xs: &[[f32; D]], page: &mut [u8]) -> Result<usize, Error> {
                match self { $(Self::$variant(codec) => codec.encode_page(xs, page),)* }
            }
            fn first_page(&self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
                match self { $(Self::$variant(codec) => codec.first_page(bytes, tokens),)* }
            }
            fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error> {
                match self { $(Self::$variant(codec) => codec.decode(block, x),)* }
            }
            fn decode_page(&self, page: &[u8], xs: &mut [[f32; D]]) -> Result<(), Error> {
                match self { $(Self::$variant(codec) => codec.decode_page(page, xs),)* }
            }
            fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error> {
                match self { $(Self::$variant(codec) => codec.prepare_query(q),)* }
            }
            fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
                match self { $(Self::$variant(codec) => codec.score(queries, blocks, scores),)* }
            }
            fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
                match self { $(Self::$variant(codec) => codec.accumulate(weights, blocks, acc),)* }
            }
            fn finish(&self, acc: &mut [f32; D]) {
                match self { $(Self::$variant(codec) => codec.finish(acc),)* }
            }
        }
    };
}

/// Other names: (name, codec, keys). They take that codec's other keys as well.
const ALIASES: &[(&str, &str, &str)] = &[("int8", "int", "bits=8")];

impl CodecSpec {
    /// Names for specs that people know under them: (name, codec, keys).
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

    /// Every codec's name, summary and keys.
    #[must_use]
    pub const fn all() -> &'static [CodecInfo] {
        CODECS
    }

    /// The most bytes that a page of `tokens` vectors of `dim` values takes; sizes static buffers. Most codecs always
    /// take that many, [`block_bytes`](Self::block_bytes) each.
    #[must_use]
    pub const fn page_bytes_max(&self, dim: usize, tokens: usize) -> usize {
        let has_outliers = match self {
            Self::Hqmq(spec) => spec.med > 0,
            Self::Int(spec) => spec.med > 0,
            _ => false,
        };
        let outliers = if has_outliers { codec::outliers::bytes_max(dim.div_ceil(4), tokens) } else { 0 };
        tokens * self.block_bytes(dim) + outliers
    }

    /// Bits per value, everything stored counted: 8 · [`block_bytes`](Self::block_bytes) / `dim`. Where a page has a
    /// list of exact values behind its blocks (`med`), its bytes depend on the data and come on top.
    #[must_use]
    pub fn bits_per_value(&self, dim: usize) -> f64 {
        8.0 * self.block_bytes(dim) as f64 / dim as f64
    }

    /// The spec with every key written out, for people; [`Display`](fmt::Display) prints the shortest form.
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

/// The shortest text that parses back: keys that differ from the default, in the documented order.
impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(false, f)
    }
}

codecs! {
    /// Random rotation and a trellis code.
    Trellis: codec::trellis::TrellisSpec => codec::trellis::Trellis<D>;
    /// Random rotation and a Lloyd-Max scalar quantiser.
    TurboQuant: codec::turboquant::TurboQuantSpec => codec::turboquant::TurboQuant<D>;
    /// TurboQuant with one bit less and a sign sketch of the residual.
    TurboQuantQjl: codec::turboquant_qjl::TurboQuantQjlSpec => codec::turboquant_qjl::TurboQuantQjl<D>;
    /// The signs of a sketch.
    Qjl: codec::qjl::QjlSpec => codec::qjl::Qjl<D>;
    /// Random rotation; triplets as an octahedral direction and a radius.
    Octopus: codec::octopus::OctopusSpec => codec::octopus::Octopus<D>;
    /// OCTOPUS and a sign sketch of the residual.
    OctopusQjl: codec::octopus_qjl::OctopusQjlSpec => codec::octopus_qjl::OctopusQjl<D>;
    /// Random rotation and polar coordinates.
    PolarQuant: codec::polarquant::PolarQuantSpec => codec::polarquant::PolarQuant<D>;
    /// Chunks of four values as a radius and a product of quaternions.
    Hqmq: codec::hqmq::HqmqSpec => codec::hqmq::Hqmq<D>;
    /// The 14-byte block of a llama.cpp fork.
    Tq3: codec::tq3_0::Tq3Spec => codec::tq3_0::Tq3<D>;
    /// The HQMQ paper's ablation: sums of two random directions.
    Additive: codec::additive::AdditiveSpec => codec::additive::Additive<D>;
    /// Plain integers with a scale for each token or group.
    Int: codec::int::IntSpec => codec::int::Int<D>;
    /// ggml's block of 8-bit integers.
    Q8_0: codec::ggml::Q8_0Spec => codec::ggml::Ggml<D>;
    /// ggml's block of 5-bit integers.
    Q5_0: codec::ggml::Q5_0Spec => codec::ggml::Ggml<D>;
    /// ggml's block of 4-bit integers.
    Q4_0: codec::ggml::Q4_0Spec => codec::ggml::Ggml<D>;
    /// ggml's block of 16 uneven levels.
    Iq4Nl: codec::ggml::Iq4NlSpec => codec::ggml::Ggml<D>;
    /// 8-bit floats.
    Fp8: codec::fp8::Fp8Spec => codec::fp8::Fp8<D>;
    /// IEEE binary16.
    F16: codec::float::F16Spec => codec::float::FloatRows<D, codec::float::F16Spec>;
    /// bfloat16.
    Bf16: codec::float::Bf16Spec => codec::float::FloatRows<D, codec::float::Bf16Spec>;
    /// IEEE binary32.
    F32: codec::float::F32Spec => codec::float::FloatRows<D, codec::float::F32Spec>;
}
