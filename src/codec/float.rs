//! The codecs `f16`, `bf16` and `f32`: plain floats without rotation or scale.
//!
//! Scores and outputs are in f32, with sums in the fixed order of this library.

use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{
    Codec, MAX_VALUE, check_accumulate, check_block, check_score, check_values_by, encode_blocks_by,
    score_checked,
};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value};
use crate::{Backend, Error};
use core::marker::PhantomData;
use octaplex_arch::Float;

/// A float format: which codec of this file it is.
pub trait Format: Copy + Default + Send + Sync + core::fmt::Debug {
    /// The stored format.
    #[doc(hidden)]
    const FLOAT: Float;
}

macro_rules! format {
    ($spec:ident, $variant:ident, $width:literal, $name:literal, $summary:literal, $part:literal) => {
        #[doc = concat!("`", $name, "`: ", $summary, ".")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $spec;

        impl $spec {
            /// Returns the bytes of a block of `dim` values.
            #[must_use]
            pub const fn block_bytes(&self, dim: usize) -> usize {
                dim * Self::FLOAT.bytes()
            }
        }

        impl Format for $spec {
            const FLOAT: Float = Float::$variant;
        }

        impl Spec for $spec {
            const NAME: &'static str = $name;
            const SAMPLES: &'static [Sample] = &[($name, $width)];
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

format!(F16Spec, F16, 128, "f16", "IEEE binary16, values below 65520", "f16 values");
format!(Bf16Spec, Bf16, 64, "bf16", "bfloat16, values that round to less than 2^58", "bf16 values");
format!(F32Spec, F32, 64, "f32", "IEEE binary32, values below 2^58", "f32 values");

/// Vectors of `D` floats in the format `F`: [`F16Spec`], [`Bf16Spec`] or [`F32Spec`].
///
/// The codec has no state, and all methods take O(D).
pub type FloatRows<const D: usize, F> = Typed<Core<F>, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core<F> {
    backend: Kernels,
    dim: usize,
    format: PhantomData<F>,
}

impl<F: Format> Core<F> {
    /// Builds the codec. Nothing is random, so the head has no effect.
    ///
    /// # Errors
    /// [`Error::Width`] unless `dim` is one of [`WIDTHS`].
    pub(crate) fn build(_spec: F, dim: usize, backend: Backend, _head: HeadId) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        Ok(Self { backend: backend.kernels(), dim, format: PhantomData })
    }

    /// The magnitude from which on values are refused. f16 rounds 65520 to infinity, and bf16
    /// rounds its limit to 2⁵⁸.
    const LIMIT: f32 = match F::FLOAT {
        Float::F16 => 65520.0,
        Float::Bf16 => MAX_VALUE * (1.0 - 1.0 / 512.0),
        Float::F32 => MAX_VALUE,
    };

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim, Body::Float)
    }

    /// Checks by the exponents that every stored value is finite, and below 2⁵⁸.
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

impl<F: Format> Codec for Core<F> {
    fn dim(&self) -> usize {
        self.dim
    }

    fn block_bytes(&self) -> usize {
        self.dim * F::FLOAT.bytes()
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        check_values_by(self.backend.among_plain_code(), x, Self::LIMIT)?;
        self.backend.encode_floats(F::FLOAT, x, block);
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        self.check(block)?;
        self.backend.decode_floats(F::FLOAT, block, x);
        Ok(())
    }

    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        encode_blocks_by(self, Some(self.backend), rows, page, |x, block| self.encode(x, block))
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        self.format().check_prepare(q, query)?;
        self.format().write(self.backend, q, query);
        Ok(())
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        check_score(queries, blocks, self.block_bytes(), scores)?;
        self.format().check(queries)?;
        let (check, telling) =
            (|| self.check(blocks), F::FLOAT == Float::F16 && self.backend.blocks_tell_scales());
        score_checked(telling, queries, scores, check, |scores| {
            self.format().in_float_batches(queries, scores, |queries, scores| {
                self.backend.score_floats(F::FLOAT, self.dim, blocks, queries, scores);
            })
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc, self.dim)?;
        let add = |acc: &mut [f32]| self.backend.accumulate_floats(F::FLOAT, self.dim, blocks, weights, acc);
        if F::FLOAT != Float::F16 || acc.len() != self.dim || cfg!(target_os = "none") {
            self.check(blocks)?;
            add(acc);
            return Ok(());
        }
        // One sum of f16 rows tells whether all of their values are finite, so that rows are read once.
        with_scratch(self.dim, |before| {
            before.copy_from_slice(acc);
            add(acc);
            if acc.iter().fold(true, |finite, sum| finite & sum.is_finite()) {
                return Ok(());
            }
            self.check(blocks).inspect_err(|_| acc.copy_from_slice(before))
        })
    }
}
