//! The codecs `q8_0`, `q5_0`, `q4_0` and `iq4_nl`: ggml's blocks of 32 values, byte for byte.
//!
//! llama.cpp keeps them in its cache (`--cache-type-k`, `--cache-type-v`). A row is its blocks one
//! after the other.
//!
//! ```text
//! q8_0     f16 d │ 32 codes of 8 bits                                    value = d · code
//! q5_0     f16 d │ fifth bits, u32 │ 16 bytes of two codes               value = d · (code - 16)
//! q4_0     f16 d │ 16 bytes of two codes                                 value = d · (code - 8)
//! iq4_nl   f16 d │ 16 bytes of two codes                                 value = d · TABLE[code]
//!
//! byte j   ┌─────────┬─────────┐
//!          │ j + 16  │    j    │    value j in the low half, value j + 16 in the high half
//!          └─────────┴─────────┘
//! ```
//!
//! The quantisers are ggml's reference functions (`quantize_row_q4_0_ref` and the like). `iq4_nl`
//! finds its scale by weighted least squares, without the search over 15 scales, which ggml leaves
//! out for rows too. Each operation is rounded once. A compiler that fuses multiplications and
//! additions gives other codes where a value lies on a threshold.
//!
//! `rotate` is llama.cpp's own rotation of quantised caches. It is an orthonormal Walsh-Hadamard
//! transform in Sylvester's order, without signs, of blocks of values. For keys a block is the
//! largest power of two, at least 64, that divides the width. For values it is 64. By default
//! llama.cpp rotates keys and values of every width that 64 divides.
//!
//! Deviations from ggml:
//!
//! * Input that is not finite is refused, and so is a scale beyond f16.
//! * A block whose reciprocal scale overflows f32 is stored as zeros.
//! * A zero block of `iq4_nl` has codes 0. In ggml the codes are uninitialised memory.

use super::decoded::{self, Decoded};
use super::scratch::{bytes_of, with_scratch, words_for};
use super::{Codec, MAX_VALUE, check_block, check_values, read_f16, to_f16};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value, one_of};
use crate::typed::{Typed, forward_codec};
use crate::{Backend, Error};
use core::marker::PhantomData;

/// Values in a block.
const VALUES: usize = 32;

/// The values of the codes of `iq4_nl`, in units of the scale.
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Blocks of `iq4_nl` with all magnitudes below this are stored as zeros.
const SMALLEST_IQ4_NL: f32 = 1e-15;

/// The four layouts of a block of 32 values.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    Q8_0,
    Q5_0,
    Q4_0,
    Iq4Nl,
}

impl BlockType {
    /// Returns the bytes of a block.
    const fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q5_0 => 22,
            Self::Q4_0 | Self::Iq4Nl => 18,
        }
    }

    /// Quantises 32 finite values into a block.
    ///
    /// # Errors
    /// [`Error::Overflow`] for a scale beyond f16.
    fn quantize(self, x: &[f32; VALUES], block: &mut [u8]) -> Result<(), Error> {
        let largest = largest(x);
        let mut codes = [0; VALUES];
        let scale = match self {
            Self::Q8_0 => {
                let scale = largest.abs() / 127.0;
                let inverse = inverse(scale);
                codes = x.map(|x| round_half_away(x * inverse) as u8);
                scale
            }
            Self::Q5_0 => quantize_offset(x, largest, 16, &mut codes),
            Self::Q4_0 => quantize_offset(x, largest, 8, &mut codes),
            Self::Iq4Nl => quantize_iq4_nl(x, largest, &mut codes),
        };
        block[..2].copy_from_slice(&to_f16(scale)?.to_le_bytes());
        if self == Self::Q8_0 {
            block[2..].copy_from_slice(&codes);
            return Ok(());
        }
        let (head, nibbles) = block.split_at_mut(self.bytes() - VALUES / 2);
        if self == Self::Q5_0 {
            let fifths = codes.iter().enumerate().fold(0, |bits, (j, code)| bits | u32::from(code >> 4) << j);
            head[2..].copy_from_slice(&fifths.to_le_bytes());
        }
        for (j, byte) in nibbles.iter_mut().enumerate() {
            *byte = codes[j] & 15 | codes[j + VALUES / 2] << 4;
        }
        Ok(())
    }

    /// Decodes a block.
    fn dequantize(self, block: &[u8], x: &mut [f32]) {
        let scale = read_f16(block).to_f32();
        if self == Self::Q8_0 {
            x.iter_mut().zip(&block[2..]).for_each(|(x, code)| *x = f32::from(*code as i8) * scale);
            return;
        }
        let (head, nibbles) = block.split_at(self.bytes() - VALUES / 2);
        let (low, high) = x.split_at_mut(VALUES / 2);
        let mut fifths = [0; VALUES];
        for (fifths, byte) in fifths.as_chunks_mut::<8>().0.iter_mut().zip(&head[2..]) {
            for (j, fifth) in fifths.iter_mut().enumerate() {
                *fifth = if byte & 1 << j == 0 { 0 } else { 16 };
            }
        }
        let value = |code: u8, j: usize| match self {
            Self::Iq4Nl => IQ4_NL[usize::from(code)].into(),
            Self::Q5_0 => f32::from((code | fifths[j]) as i8 - 16),
            _ => f32::from(code as i8 - 8),
        };
        for (j, ((low, high), byte)) in low.iter_mut().zip(high).zip(nibbles).enumerate() {
            *low = value(byte & 15, j) * scale;
            *high = value(byte >> 4, j + VALUES / 2) * scale;
        }
    }

    /// Quantises a row of whole blocks.
    fn quantize_row(self, x: &[f32], row: &mut [u8]) -> Result<(), Error> {
        let blocks = row.chunks_exact_mut(self.bytes());
        x.as_chunks().0.iter().zip(blocks).try_for_each(|(x, block)| self.quantize(x, block))
    }

    /// Decodes a row of whole blocks.
    fn dequantize_row(self, row: &[u8], x: &mut [f32]) {
        let blocks = row.chunks_exact(self.bytes());
        blocks.zip(x.chunks_exact_mut(VALUES)).for_each(|(block, x)| self.dequantize(block, x));
    }

    /// Checks that every scale is finite.
    fn check(self, rows: &[u8], blocks_of_a_row: usize) -> Result<(), Error> {
        let mut blocks = rows.chunks_exact(self.bytes());
        match blocks.position(|block| !read_f16(block).is_finite()) {
            Some(at) => Err(Error::Corrupt { block: at / blocks_of_a_row }),
            None => Ok(()),
        }
    }
}

/// Returns the value with the largest magnitude, the first among equals. The sign matters: see
/// [`quantize_offset`].
fn largest(x: &[f32; VALUES]) -> f32 {
    x.iter().fold(0.0, |largest: f32, x| if x.abs() > largest.abs() { *x } else { largest })
}

/// Returns 1/scale, or 0 if that overflows f32.
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Rounds to the nearest integer, and halves away from zero, for magnitudes up to 127.5.
fn round_half_away(x: f32) -> i8 {
    let whole = x as i32;
    let rest = x - whole as f32;
    (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8
}

/// Quantises for `q4_0` and `q5_0`, and returns the scale. The value with the largest magnitude
/// gets code 0, the lowest integer.
fn quantize_offset(x: &[f32; VALUES], largest: f32, offset: u8, codes: &mut [u8; VALUES]) -> f32 {
    let scale = largest / -f32::from(offset);
    let inverse = inverse(scale);
    *codes = x.map(|x| ((x * inverse + (f32::from(offset) + 0.5)) as u8).min(2 * offset - 1));
    scale
}

/// Quantises for `iq4_nl`, and returns the scale.
///
/// Codes are chosen with the scale that maps the largest value to the table's first entry. The
/// stored scale is then the best one for these codes, by least squares weighted with x².
fn quantize_iq4_nl(x: &[f32; VALUES], largest: f32, codes: &mut [u8; VALUES]) -> f32 {
    if largest.abs() < SMALLEST_IQ4_NL {
        return 0.0;
    }
    let inverse = 1.0 / (largest / f32::from(IQ4_NL[0]));
    let (mut products, mut squares) = (0.0, 0.0);
    for (x, code) in x.iter().zip(codes) {
        let twice = 2.0 * (x * inverse);
        // Thresholds lie half way between neighbours. A value on a threshold gets the higher code.
        *code =
            IQ4_NL.windows(2).filter(|pair| twice >= f32::from(pair[0]) + f32::from(pair[1])).count() as u8;
        let value = f32::from(IQ4_NL[usize::from(*code)]);
        let weight = x * x;
        products += weight * value * x;
        squares += weight * value * value;
    }
    products / squares
}

/// llama.cpp's rotation of quantised caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GgmlRotation {
    /// No rotation.
    #[default]
    None,
    /// The rotation of keys: blocks of the largest power of two, at least 64, that divides the
    /// width.
    Keys,
    /// The rotation of values: blocks of 64.
    Values,
}

impl GgmlRotation {
    const NAMES: [(&'static str, Self); 3] =
        [("none", Self::None), ("keys", Self::Keys), ("values", Self::Values)];

    /// Returns how many values are transformed together. 0 for no rotation.
    const fn width(self, dim: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Keys => 1 << dim.trailing_zeros(),
            Self::Values => 64,
        }
    }

    /// Transforms a row in place. The transform is its own inverse.
    fn apply(self, backend: Kernels, x: &mut [f32]) {
        const NO_SIGNS: [u32; octaplex_arch::MAX_DIM] = [0; octaplex_arch::MAX_DIM];
        let width = self.width(x.len());
        if width == 0 {
            return;
        }
        // 1/√width. It is a power of two if the width is a square, otherwise that times 1/√2.
        let half = 1.0 / (1_u32 << (width.ilog2() / 2)) as f32;
        let scale =
            if width.ilog2().is_multiple_of(2) { half } else { half * core::f32::consts::FRAC_1_SQRT_2 };
        for x in x.chunks_exact_mut(width) {
            backend.rotate(x, &NO_SIGNS[..width], scale);
        }
    }
}

/// One of the four formats of this file.
pub trait Format: Copy + Default + Send + Sync + core::fmt::Debug {
    /// The layout of its blocks.
    #[doc(hidden)]
    const BLOCK: BlockType;

    /// Returns its rotation.
    #[doc(hidden)]
    fn rotation(self) -> GgmlRotation;
}

macro_rules! format {
    ($spec:ident, $kind:ident, $name:literal, $samples:expr, $summary:literal, $example:literal) => {
        #[doc = concat!("`", $name, ":rotate=none`: ", $summary, ".")]
        ///
        /// ```
        #[doc = concat!("let spec: octaplex::CodecSpec = \"", $name, ":rotate=keys\".parse()?;")]
        #[doc = concat!("assert_eq!(spec.bits_per_value(128), ", $example, ");")]
        /// # Ok::<(), octaplex::Error>(())
        ///
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub struct $spec {
            /// llama.cpp's rotation.
            pub rotate: GgmlRotation,
        }

        impl $spec {
            /// Creates parameters without rotation.
            #[must_use]
            pub const fn new() -> Self {
                Self { rotate: GgmlRotation::None }
            }

            /// Returns these parameters with llama.cpp's rotation.
            #[must_use]
            pub const fn rotate(self, rotate: GgmlRotation) -> Self {
                Self { rotate }
            }

            /// Returns the bytes of a block of `dim` values. 0 unless 32 divides `dim`.
            #[must_use]
            pub const fn block_bytes(&self, dim: usize) -> usize {
                if dim.is_multiple_of(VALUES) { dim / VALUES * BlockType::$kind.bytes() } else { 0 }
            }
        }

        impl Format for $spec {
            const BLOCK: BlockType = BlockType::$kind;

            fn rotation(self) -> GgmlRotation {
                self.rotate
            }
        }

        impl Spec for $spec {
            const NAME: &'static str = $name;
            const SUMMARY: &'static str = $summary;
            const SAMPLES: &'static [Sample] = $samples;
            const KEYS: &'static [Key] = &[Key::new("rotate", "none, keys, values")];

            fn set(&mut self, _key: usize, value: &str) -> Option<()> {
                self.rotate = one_of(value, &GgmlRotation::NAMES)?;
                Some(())
            }

            fn get(&self, _key: usize) -> Value {
                Value::word(self.rotate, &GgmlRotation::NAMES)
            }

            fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
                for _ in 0..self.block_bytes(dim) / BlockType::$kind.bytes() {
                    line(2, "f16 scale");
                    if BlockType::$kind == BlockType::Q5_0 {
                        line(4, "fifth bits of the codes");
                    }
                    match BlockType::$kind {
                        BlockType::Q8_0 => line(32, "codes, 8 bits each, two's complement"),
                        _ => line(16, "codes, 4 bits each: value j low, value j + 16 high"),
                    }
                }
            }
        }
    };
}

format!(
    Q8_0Spec,
    Q8_0,
    "q8_0",
    &[("q8_0", 64), ("q8_0:rotate=keys", 128)],
    "ggml's 34-byte block of 32 values: 8 bits and an f16 scale",
    "8.5"
);
format!(
    Q5_0Spec,
    Q5_0,
    "q5_0",
    &[("q5_0", 96), ("q5_0:rotate=values", 64)],
    "ggml's 22-byte block of 32 values: 5 bits and an f16 scale",
    "5.5"
);
format!(
    Q4_0Spec,
    Q4_0,
    "q4_0",
    &[("q4_0", 128), ("q4_0:rotate=keys", 192), ("q4_0:rotate=values", 64)],
    "ggml's 18-byte block of 32 values: 4 bits and an f16 scale",
    "4.5"
);
format!(
    Iq4NlSpec,
    Iq4Nl,
    "iq4_nl",
    &[("iq4_nl", 64), ("iq4_nl:rotate=keys", 128)],
    "ggml's 18-byte block of 32 values: 16 uneven levels and an f16 scale",
    "4.5"
);

/// Rows of ggml's blocks in the format `F`: [`Q8_0Spec`], [`Q5_0Spec`], [`Q4_0Spec`] or
/// [`Iq4NlSpec`].
///
/// The bytes equal ggml's. Scores and outputs are computed on decoded rows, which is about ten
/// times slower than codecs with kernels.
///
/// ```
/// use octaplex::codecs::{Ggml, Q4_0Spec, HeadId};
/// use octaplex::{Backend, Error};
///
/// let codec = Ggml::<32, Q4_0Spec>::build(Q4_0Spec::new(), Backend::detect(), HeadId::default())?;
/// let mut block = [0; 18];
/// codec.encode(&[-8.0; 32], &mut block)?;
/// assert_eq!(block, [0, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // the scale 1, and -8 is code 0
/// # Ok::<(), Error>(())
/// ```
pub type Ggml<const D: usize, F> = Typed<Core<F>, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core<F> {
    rows: Rows,
    format: PhantomData<F>,
}

impl<F: Format> Core<F> {
    /// Builds the codec of a spec. Nothing is random, so the head has no effect.
    ///
    /// # Errors
    /// [`Error::Width`] unless `dim` is one of [`WIDTHS`]; [`Error::Unsupported`] unless 32 divides
    /// it, or 64 with `rotate`.
    pub(crate) fn build(spec: F, dim: usize, backend: Backend, _head: HeadId) -> Result<Self, Error> {
        let rows = Rows::build(F::BLOCK, spec.rotation(), dim, backend)?;
        Ok(Self { rows, format: PhantomData })
    }
}

forward_codec!((F: Format) Core<F>, self => self.rows);

/// The implementation of all four formats. The format is a run-time value, so the code is compiled
/// once.
#[derive(Clone, Debug)]
struct Rows {
    kind: BlockType,
    rotate: GgmlRotation,
    dim: usize,
    backend: Kernels,
}

impl Rows {
    fn build(kind: BlockType, rotate: GgmlRotation, dim: usize, backend: Backend) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        if !dim.is_multiple_of(VALUES) {
            return Err(Error::Unsupported { why: "ggml's blocks need a width that 32 divides" });
        }
        if rotate != GgmlRotation::None && !dim.is_multiple_of(64) {
            return Err(Error::Unsupported {
                why: "llama.cpp rotates no width that 64 does not divide; leave rotate out",
            });
        }
        Ok(Self { kind, rotate, dim, backend: backend.kernels() })
    }

    fn rotate(&self, x: &mut [f32]) {
        self.rotate.apply(self.backend, x);
    }
}

impl Decoded for Rows {
    fn backend(&self) -> Kernels {
        self.backend
    }

    fn few(&self) -> usize {
        // Rows of `q5_0` take twice as long to decode as those of the others.
        if self.kind == BlockType::Q5_0 { 8 } else { 1 }
    }

    fn check(&self, blocks: &[u8]) -> Result<(), Error> {
        self.kind.check(blocks, self.dim / VALUES)
    }

    fn decode_row(&self, block: &[u8], x: &mut [f32]) {
        self.kind.dequantize_row(block, x);
    }
}

impl Codec for Rows {
    fn dim(&self) -> usize {
        self.dim
    }

    fn block_bytes(&self) -> usize {
        self.dim / VALUES * self.kind.bytes()
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        check_values(x, MAX_VALUE)?;
        with_scratch(self.dim + words_for(block.len()), |memory| {
            let (z, row) = memory.split_at_mut(self.dim);
            z.copy_from_slice(x);
            self.rotate.apply(self.backend.among_plain_code(), z);
            // Encode into scratch memory, so that an error leaves the block as it was.
            let row = bytes_of(row, block.len());
            self.kind.quantize_row(z, row)?;
            block.copy_from_slice(row);
            Ok(())
        })
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        self.check(block)?;
        self.decode_row(block, x);
        self.rotate(x);
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
        decoded::score(self, queries, blocks, scores)
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        decoded::accumulate(self, weights, blocks, acc)
    }

    fn finish(&self, acc: &mut [f32]) {
        acc.chunks_exact_mut(self.dim).for_each(|row| self.rotate(row));
    }
}
