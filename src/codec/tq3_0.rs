//! The codec `tq3_0`: the 14-byte block of 32 values of the llama.cpp fork of that name, byte for
//! byte.
//!
//! A row is its blocks one after the other, as in llama.cpp.
//!
//! ```text
//! block   8 bytes, codes of 2 bits │ 4 bytes, a bit plane │ f16 scale
//! ```
//!
//! Each 32 values are multiplied by fixed signs and transformed (Walsh-Hadamard, orthonormal). The
//! scale is their largest magnitude over the largest centroid.
//!
//! The bytes do not say what the plane means, and builds of the fork disagree. In `original`, codes
//! have 2 bits, and the plane has signs of residuals that no decoder reads. In `3bit`, the later
//! meaning, the plane has the high bits of the codes.
//!
//! Deviations: input that is not finite is refused, and so is a scale beyond f16.

use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{
    Codec, MAX_VALUE, check_accumulate, check_block, check_score, check_values, score_checked, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value, one_of};
use crate::{Backend, Error};
use octaplex_arch::{BLOCK_BYTES, BLOCK_VALUES, BlockBook};

/// The meaning of the bit plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tq3Variant {
    /// Signs of the residuals, which no decoder reads. So it is a 2-bit code at 3.5 bits a value.
    #[default]
    Original,
    /// The high bits of 3-bit codes.
    ThreeBit,
}

impl Tq3Variant {
    const NAMES: [(&'static str, Self); 2] = [("original", Self::Original), ("3bit", Self::ThreeBit)];

    pub(crate) const fn book(self) -> BlockBook {
        match self {
            Self::Original => BlockBook::TwoBits {
                centroids: [-1.510, -0.4528, 0.4528, 1.510],
                thresholds: [-0.9814, 0.0, 0.9814],
            },
            Self::ThreeBit => BlockBook::ThreeBits {
                centroids: [-2.1573, -1.3336, -0.7434, -0.2428, 0.2428, 0.7434, 1.3336, 2.1573],
                thresholds: [-1.7455, -1.0385, -0.4931, 0.0, 0.4931, 1.0385, 1.7455],
            },
        }
    }
}

/// Parameters of [`Tq3`]: `tq3_0:variant=original`.
///
/// A block takes 14 bytes for every 32 values, or 3.5 bits a value. 32 must divide the width.
///
/// ```
/// use octaplex::codecs::{Tq3Spec, Tq3Variant};
/// use octaplex::CodecSpec;
///
/// let spec = Tq3Spec::new(Tq3Variant::ThreeBit);
/// assert_eq!(CodecSpec::from(spec).to_string(), "tq3_0:variant=3bit");
/// assert_eq!(spec.block_bytes(128), 4 * 14);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Tq3Spec {
    /// The meaning of the bit plane.
    pub variant: Tq3Variant,
}

impl Tq3Spec {
    /// Creates parameters with one of the two meanings.
    #[must_use]
    pub const fn new(variant: Tq3Variant) -> Self {
        Self { variant }
    }

    /// Returns the bytes of a block of `dim` values. 0 unless 32 divides `dim`.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        if dim.is_multiple_of(BLOCK_VALUES) { dim / BLOCK_VALUES * BLOCK_BYTES } else { 0 }
    }
}

impl Spec for Tq3Spec {
    const NAME: &'static str = "tq3_0";
    const SAMPLES: &'static [Sample] = &[("tq3_0", 128), ("tq3_0:variant=3bit", 96)];
    const SUMMARY: &'static str = "the 14-byte block of 32 values of a llama.cpp fork";
    const KEYS: &'static [Key] = &[Key::new("variant", "original, 3bit")];

    fn set(&mut self, _key: usize, value: &str) -> Option<()> {
        self.variant = one_of(value, &Tq3Variant::NAMES)?;
        Some(())
    }

    fn get(&self, _key: usize) -> Value {
        Value::word(self.variant, &Tq3Variant::NAMES)
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        let plane = match self.variant {
            Tq3Variant::Original => "signs of the residuals, which no decoder reads",
            Tq3Variant::ThreeBit => "high bits of the codes",
        };
        for _ in 0..self.block_bytes(dim) / BLOCK_BYTES {
            line(8, "2 bits a code");
            line(4, plane);
            line(2, "f16 scale");
        }
    }
}

/// The fixed signs, as masks.
pub(crate) const SIGNS: [u32; BLOCK_VALUES] = {
    let text = b"+-++--+-++-+-+--+--++-+--+++--+-";
    let mut signs = [0; BLOCK_VALUES];
    let mut j = 0;
    while j < BLOCK_VALUES {
        signs[j] = ((text[j] == b'-') as u32) << 31;
        j += 1;
    }
    signs
};

/// 1/√32.
const SCALE: f32 = 0.176_776_69;

/// TQ3_0 for vectors of `D` values, divisible by 32. [`Tq3Spec`] has the parameters.
///
/// The codec has no state, and all methods take O(D).
///
/// ```
/// use octaplex::codecs::Tq3;
/// use octaplex::Error;
///
/// let codec = Tq3::<64>::new()?;
/// let mut blocks = [0; 28];
/// codec.encode(&[0.5; 64], &mut blocks)?;
/// # Ok::<(), Error>(())
/// ```
pub type Tq3<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    dim: usize,
    backend: Kernels,
    book: BlockBook,
}

impl<const D: usize> Tq3<D> {
    /// Creates a codec of the original variant, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Width`] unless `D` is one of [`WIDTHS`]; [`Error::Unsupported`] unless 32 divides
    /// it.
    pub fn new() -> Result<Self, Error> {
        Self::build(Tq3Spec::default(), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec. Nothing is random, so the head has no effect.
    ///
    /// # Errors
    /// [`Error::Width`] unless `dim` is one of [`WIDTHS`]; [`Error::Unsupported`] unless 32 divides
    /// it.
    pub(crate) fn build(spec: Tq3Spec, dim: usize, backend: Backend, _head: HeadId) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        if !dim.is_multiple_of(BLOCK_VALUES) {
            return Err(Error::Unsupported { why: "tq3_0 needs a width that 32 divides" });
        }
        Ok(Self { dim, backend: backend.kernels(), book: spec.variant.book() })
    }

    fn rotate(&self, x: &mut [f32]) {
        for x in x.as_chunks_mut::<BLOCK_VALUES>().0 {
            self.backend.rotate(x, &SIGNS, SCALE);
        }
    }

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim, Body::Float)
    }

    /// Checks that every scale is finite.
    fn check_scales(&self, blocks: &[u8]) -> Result<(), Error> {
        if self.backend.blocks_are_finite(blocks) {
            return Ok(());
        }
        let at = blocks
            .as_chunks::<BLOCK_BYTES>()
            .0
            .iter()
            .position(|block| block[13] & 0x7c == 0x7c)
            .unwrap_or(0);
        Err(Error::Corrupt { block: at / (self.dim / BLOCK_VALUES) })
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.dim
    }

    fn block_bytes(&self) -> usize {
        self.dim / BLOCK_VALUES * BLOCK_BYTES
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        check_values(x, MAX_VALUE)?;
        with_scratch(self.dim, |z| {
            z.copy_from_slice(x);
            self.rotate(z);
            to_f16(self.backend.max_abs(z) / self.book.largest())?;
            self.backend.quantize_blocks(&self.book, z, block);
            Ok(())
        })
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        self.check_scales(block)?;
        self.backend.decode_blocks(&self.book, block, x);
        self.finish(x);
        Ok(())
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        self.format().check_prepare(q, query)?;
        self.format().write(self.backend, q, query);
        self.rotate(&mut query[1..]);
        Ok(())
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        check_score(queries, blocks, self.block_bytes(), scores)?;
        self.format().check(queries)?;
        let (telling, check) = (self.backend.blocks_tell_scales(), || self.check_scales(blocks));
        score_checked(telling, queries, scores, check, |scores| {
            self.format().in_float_batches(queries, scores, |queries, scores| {
                self.backend.score_blocks(&self.book, self.dim, blocks, queries, scores);
            })
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc, self.dim)?;
        self.check_scales(blocks)?;
        self.backend.accumulate_blocks(&self.book, self.dim, blocks, weights, acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32]) {
        for acc in acc.as_chunks_mut::<BLOCK_VALUES>().0 {
            self.backend.rotate_inverse(acc, &SIGNS, SCALE);
        }
    }
}
