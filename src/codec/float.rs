//! Plain floats: `f16`, `bf16`, `f32`. No rotation, no scale; scores and outputs in f32 with the fixed order of sums.

use super::{Codec, MAX_VALUE, Query, check_accumulate, check_values, count_blocks};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::spec::{Key, Spec, Value};
use crate::{Backend, CodecSpec, Error, Stream};
use core::marker::PhantomData;
use octaplex_arch::Float;

/// What distinguishes the three formats.
pub trait Format: Copy + Default + Send + Sync + core::fmt::Debug {
    /// The stored format.
    #[doc(hidden)]
    const FLOAT: Float;
    /// Its spec.
    #[doc(hidden)]
    fn spec(self) -> CodecSpec;
}

macro_rules! format {
    ($spec:ident, $variant:ident, $name:literal, $summary:literal, $part:literal) => {
        #[doc = concat!("`", $name, "`: ", $summary, ".")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $spec;

        impl $spec {
            /// Bytes of a block of `dim` values.
            #[must_use]
            pub const fn block_bytes(&self, dim: usize) -> usize {
                dim * Self::FLOAT.bytes()
            }
        }

        impl Format for $spec {
            const FLOAT: Float = Float::$variant;
            fn spec(self) -> CodecSpec {
                CodecSpec::$variant(self)
            }
        }

        impl Spec for $spec {
            const NAME: &'static str = $name;
            const SUMMARY: &'static str = $summary;
            const KEYS: &'static [Key] = &[];
            fn set(&mut self, _key: usize, _value: &str) -> Option<()> {
                None
            }
            fn get(&self, _key: usize) -> Value {
                Value::Absent
            }
            fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
                line(self.block_bytes(dim), $part);
            }
        }
    };
}

format!(F16Spec, F16, "f16", "IEEE binary16, values below 65520", "f16 values");
format!(Bf16Spec, Bf16, "bf16", "bfloat16, values that round to less than 2^58", "bf16 values");
format!(F32Spec, F32, "f32", "IEEE binary32, values below 2^58", "f32 values");

/// Rows of floats in the format `F`: [`F16Spec`], [`Bf16Spec`] or [`F32Spec`].
#[derive(Clone, Debug)]
pub struct FloatRows<const D: usize, F> {
    backend: Kernels,
    format: PhantomData<F>,
}

impl<const D: usize, F: Format> FloatRows<D, F> {
    /// The codec; nothing is random here, so the stream changes nothing.
    ///
    /// # Errors
    /// [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn build(_spec: F, backend: Backend, _stream: Stream) -> Result<Self, Error> {
        if !WIDTHS.contains(&D) {
            return Err(Error::Width { actual: D });
        }
        Ok(Self { backend: backend.kernels(), format: PhantomData })
    }

    /// The magnitude from which values are refused: f16 rounds 65520 to infinity, bf16 this much to 2⁵⁸.
    const LIMIT: f32 = match F::FLOAT {
        Float::F16 => 65520.0,
        Float::Bf16 => MAX_VALUE * (1.0 - 1.0 / 512.0),
        Float::F32 => MAX_VALUE,
    };

    /// `Ok` if every stored value is finite (and below 2⁵⁸), by its exponent.
    fn check(&self, blocks: &[u8]) -> Result<(), Error> {
        const LIMIT: u32 = MAX_VALUE.to_bits();
        let limit = match F::FLOAT {
            Float::F16 => 0x7c00,
            Float::Bf16 => LIMIT >> 16,
            Float::F32 => LIMIT,
        };
        let is_sound = |bytes: &[u8]| self.backend.largest_bits(F::FLOAT, bytes) < limit;
        if is_sound(blocks) {
            return Ok(());
        }
        match blocks.chunks_exact(self.block_bytes()).position(|block| !is_sound(block)) {
            Some(block) => Err(Error::Corrupt { block }),
            None => Ok(()),
        }
    }
}

impl<const D: usize, F: Format> Codec<D> for FloatRows<D, F> {
    fn spec(&self) -> CodecSpec {
        F::default().spec()
    }

    fn block_bytes(&self) -> usize {
        D * F::FLOAT.bytes()
    }

    fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        check_values(x, Self::LIMIT)?;
        self.backend.encode_floats(F::FLOAT, x, block);
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        self.check(block)?;
        self.backend.decode_floats(F::FLOAT, block, x);
        Ok(())
    }

    fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error> {
        check_values(q, MAX_VALUE)?;
        Ok(Query::float(*q))
    }

    fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let count = count_blocks(blocks, self.block_bytes())?;
        Error::expect_length("scores", queries.len().saturating_mul(count), scores.len())?;
        self.check(blocks)?;
        Query::in_float_batches(queries, scores, |queries, scores| {
            self.backend.score_floats(F::FLOAT, D, blocks, queries, scores);
        });
        Ok(())
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc.len())?;
        self.check(blocks)?;
        self.backend.accumulate_floats(F::FLOAT, D, blocks, weights, acc.as_flattened_mut());
        Ok(())
    }

    fn finish(&self, _acc: &mut [f32; D]) {}
}
