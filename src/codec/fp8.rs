//! The codec `fp8`: one byte a value in the format E4M3, as in the 8-bit cache of GPU engines.
//!
//! E4M3 is OCP's 8-bit float "fn". It has no infinities, and magnitudes go up to 448.
//!
//! ```text
//! bit     7      6 … 3       2 … 0
//!         sign │ exponent  │ mantissa       value = ±2^(exponent - 7)·(1 + mantissa/8)
//!                                          exponent 0: ±2^-6·mantissa/8;  0x7f and 0xff: NaN
//! ```
//!
//! * `scale=tensor` stores values as they are. vLLM's `--kv-cache-dtype fp8` does so without
//!   calibration (all scales 1).
//! * `scale=token` stores an f32 scale, largest magnitude/448, in front of each head's row. vLLM's
//!   `fp8_per_token_head` does so.
//!
//! Values are rounded to nearest even. Finite magnitudes above 448 become 448, as GPU instructions
//! do it. There are three deviations from vLLM. Input that is not finite is refused. Codes are
//! x/scale with a true division. A row of zeros has scale 0.

use super::decoded::{self, Decoded};
use super::{Codec, MAX_VALUE, check_block, check_values};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value, one_of};
use crate::{Backend, Error};

/// The largest value.
const LARGEST: f32 = 448.0;

/// The values of all codes. The entries of 0x7f and 0xff (NaN) are never read.
const VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
        // 2^(exponent - 7)·(1 + mantissa/8), or 2^-6·mantissa/8.
        let magnitude = match exponent {
            0 => mantissa as f32 / 512.0,
            _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
        };
        values[code] = if code < 128 { magnitude } else { -magnitude };
        code += 1;
    }
    values
};

/// Returns the code of the nearest value, ties to even. Magnitudes above 448 become 448.
fn code(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let magnitude = x.abs().min(LARGEST);
    let code = if magnitude < 1.0 / 64.0 {
        // Below 2⁻⁶ values are multiples of 2⁻⁹. Adding 2²³ rounds to an integer and leaves it in
        // the mantissa.
        (magnitude * 512.0 + 8_388_608.0).to_bits()
    } else {
        let bits = magnitude.to_bits();
        ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)
    };
    sign | code as u8
}

/// The values that share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fp8Scale {
    /// No scale: values are stored as they are.
    #[default]
    Tensor,
    /// Each token of each head has its own scale, in f32.
    Token,
}

impl Fp8Scale {
    const NAMES: [(&'static str, Self); 2] = [("tensor", Self::Tensor), ("token", Self::Token)];
}

/// Parameters of [`Fp8`]: `fp8:scale=tensor`. A value takes one byte.
///
/// ```
/// let spec: octaplex::CodecSpec = "fp8:scale=token".parse()?;
/// assert_eq!(spec.bits_per_value(128), 8.25);
/// # Ok::<(), octaplex::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Fp8Spec {
    /// The values that share a scale.
    pub scale: Fp8Scale,
}

impl Fp8Spec {
    /// Creates the default parameters, without a scale.
    #[must_use]
    pub const fn new() -> Self {
        Self { scale: Fp8Scale::Tensor }
    }

    /// Returns these parameters with another choice of scales.
    #[must_use]
    pub const fn scale(self, scale: Fp8Scale) -> Self {
        Self { scale }
    }

    /// Returns the bytes of a block of `dim` values.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        self.scale_bytes() + dim
    }

    const fn scale_bytes(&self) -> usize {
        match self.scale {
            Fp8Scale::Tensor => 0,
            Fp8Scale::Token => 4,
        }
    }

    /// Encodes a row of finite values below 2⁵⁸. `largest` is their largest magnitude.
    fn encode(self, largest: f32, x: &[f32], row: &mut [u8]) {
        let (head, codes) = row.split_at_mut(self.scale_bytes());
        let scale = match self.scale {
            Fp8Scale::Tensor => 1.0,
            Fp8Scale::Token => largest / LARGEST,
        };
        if self.scale == Fp8Scale::Token {
            head.copy_from_slice(&scale.to_le_bytes());
        }
        // The scale is 0 for zeros and for values so small that it underflows: avoid 0/0.
        let divisor = if scale > 0.0 { scale } else { 1.0 };
        codes.iter_mut().zip(x).for_each(|(byte, x)| *byte = code(x / divisor));
    }

    fn decode(self, row: &[u8], x: &mut [f32]) {
        let (head, codes) = row.split_at(self.scale_bytes());
        let scale = head.first_chunk().map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
        x.iter_mut().zip(codes).for_each(|(x, code)| *x = VALUES[usize::from(*code)] * scale);
    }

    /// Checks that no value is NaN, and that every scale keeps values below 2⁵⁸.
    fn check(self, rows: &[u8], dim: usize) -> Result<(), Error> {
        let is_sound = |row: &[u8]| {
            let (head, codes) = row.split_at(self.scale_bytes());
            let scale = head.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            // Without the sign, the bits of floats are ordered as their values, and NaN comes last.
            scale & 0x7fff_ffff <= (MAX_VALUE / LARGEST).to_bits()
                && codes.iter().fold(true, |sound, code| sound & (code & 0x7f != 0x7f))
        };
        match rows.chunks_exact(self.block_bytes(dim)).position(|row| !is_sound(row)) {
            Some(block) => Err(Error::Corrupt { block }),
            None => Ok(()),
        }
    }
}

impl Spec for Fp8Spec {
    const NAME: &'static str = "fp8";
    const SAMPLES: &'static [Sample] = &[("fp8", 80), ("fp8:scale=token", 128)];
    const SUMMARY: &'static str = "8-bit floats, E4M3, values up to 448";
    const KEYS: &'static [Key] = &[Key::new("scale", "tensor, token")];

    fn set(&mut self, _key: usize, value: &str) -> Option<()> {
        self.scale = one_of(value, &Fp8Scale::NAMES)?;
        Some(())
    }

    fn get(&self, _key: usize) -> Value {
        Value::word(self.scale, &Fp8Scale::NAMES)
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if self.scale == Fp8Scale::Token {
            line(4, "f32 scale");
        }
        line(dim, "E4M3 values");
    }
}

/// Vectors of `D` 8-bit floats. [`Fp8Spec`] has the parameters.
///
/// Scores and outputs are computed on decoded rows. That is about ten times slower than codecs with
/// kernels.
///
/// ```
/// use octaplex::codecs::{Fp8, Fp8Scale, Fp8Spec, HeadId};
/// use octaplex::{Backend, Error};
///
/// let spec = Fp8Spec::new().scale(Fp8Scale::Token);
/// let codec = Fp8::<32>::build(spec, Backend::detect(), HeadId::default())?;
/// let (mut block, mut x) = ([0; 36], [0.0; 32]);
/// codec.encode(&[7.0; 32], &mut block)?;
/// codec.decode(&block, &mut x)?;
/// assert_eq!(x, [7.0; 32]); // 448/64, a scale of 2⁻⁶
/// # Ok::<(), Error>(())
/// ```
pub type Fp8<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: Fp8Spec,
    backend: Kernels,
    dim: usize,
}

impl Core {
    /// Builds the codec of a spec. Nothing is random, so the head has no effect.
    ///
    /// # Errors
    /// [`Error::Width`] unless `dim` is one of [`WIDTHS`].
    pub(crate) fn build(spec: Fp8Spec, dim: usize, backend: Backend, _head: HeadId) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        Ok(Self { spec, backend: backend.kernels(), dim })
    }
}

impl Decoded for Core {
    fn backend(&self) -> Kernels {
        self.backend
    }

    fn check(&self, blocks: &[u8]) -> Result<(), Error> {
        self.spec.check(blocks, self.dim)
    }

    fn decode_rows(&self, blocks: &[u8], x: &mut [f32]) {
        let blocks = blocks.chunks_exact(self.block_bytes());
        blocks.zip(x.chunks_exact_mut(self.dim)).for_each(|(block, x)| self.spec.decode(block, x));
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.dim
    }

    fn block_bytes(&self) -> usize {
        self.spec.block_bytes(self.dim)
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        check_values(x, MAX_VALUE)?;
        let largest =
            if self.spec.scale == Fp8Scale::Token { self.backend.among_plain_code().max_abs(x) } else { 0.0 };
        self.spec.encode(largest, x, block);
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        self.check(block)?;
        self.spec.decode(block, x);
        Ok(())
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
        decoded::score(self, queries, blocks, scores)
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        decoded::accumulate(self, weights, blocks, acc)
    }
}
