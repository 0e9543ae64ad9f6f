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
use super::{
    Codec, MAX_VALUE, check_block, check_scales_at, check_values_by, encode_blocks_by, read_f16, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::codec::typed::{Typed, forward_codec};
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value, one_of};
use crate::{Backend, Error};
use core::marker::PhantomData;
use octaplex_arch::Scaled;

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

    /// Returns the layout of integers that kernels quantise and decode. `iq4_nl` has uneven levels.
    const fn integers(self) -> Option<Scaled> {
        match self {
            Self::Q8_0 => Some(Scaled::Bytes),
            Self::Q5_0 => Some(Scaled::Fives),
            Self::Q4_0 => Some(Scaled::Nibbles),
            Self::Iq4Nl => None,
        }
    }

    /// Quantises a row of finite values into whole blocks.
    ///
    /// # Errors
    /// [`Error::Overflow`] for a scale beyond f16.
    fn quantize_row(self, backend: Kernels, x: &[f32], row: &mut [u8]) -> Result<(), Error> {
        if let Some(layout) = self.integers() {
            return if backend.quantize_scaled(layout, x, row) { Ok(()) } else { Err(Error::Overflow) };
        }
        for (x, block) in x.as_chunks().0.iter().zip(row.chunks_exact_mut(self.bytes())) {
            let (scale, codes) = quantize_iq4_nl(x);
            let (head, nibbles) = block.split_at_mut(2);
            head.copy_from_slice(&to_f16(scale)?.to_le_bytes());
            for (j, byte) in nibbles.iter_mut().enumerate() {
                *byte = codes[j] | codes[j + VALUES / 2] << 4;
            }
        }
        Ok(())
    }

    /// Decodes whole blocks.
    fn dequantize(self, backend: Kernels, blocks: &[u8], x: &mut [f32]) {
        if let Some(layout) = self.integers() {
            return backend.decode_scaled(layout, blocks, x);
        }
        for (block, x) in blocks.chunks_exact(self.bytes()).zip(x.chunks_exact_mut(VALUES)) {
            let scale = read_f16(block).to_f32();
            let (low, high) = x.split_at_mut(VALUES / 2);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[2..]) {
                *low = f32::from(IQ4_NL[usize::from(byte & 15)]) * scale;
                *high = f32::from(IQ4_NL[usize::from(byte >> 4)]) * scale;
            }
        }
    }

    /// Checks that every scale is finite.
    fn check(self, rows: &[u8], blocks_of_a_row: usize) -> Result<(), Error> {
        match check_scales_at(rows, self.bytes(), [0]) {
            Err(Error::Corrupt { block }) => Err(Error::Corrupt { block: block / blocks_of_a_row }),
            other => other,
        }
    }
}

/// Quantises for `iq4_nl`. Returns the scale and the codes.
///
/// Codes are chosen with the scale that maps the largest value to the table's first entry. The
/// stored scale is then the best one for these codes, by least squares weighted with x².
fn quantize_iq4_nl(x: &[f32; VALUES]) -> (f32, [u8; VALUES]) {
    let mut codes = [0; VALUES];
    // The value with the largest magnitude, the first among equals.
    let largest = x.iter().fold(0.0, |largest: f32, x| if x.abs() > largest.abs() { *x } else { largest });
    if largest.abs() < SMALLEST_IQ4_NL {
        return (0.0, codes);
    }
    let inverse = 1.0 / (largest / f32::from(IQ4_NL[0]));
    let (mut products, mut squares) = (0.0, 0.0);
    for (x, code) in x.iter().zip(&mut codes) {
        let twice = 2.0 * (x * inverse);
        // Thresholds lie half way between neighbours. A value on a threshold gets the higher code.
        *code =
            IQ4_NL.windows(2).filter(|pair| twice >= f32::from(pair[0]) + f32::from(pair[1])).count() as u8;
        let value = f32::from(IQ4_NL[usize::from(*code)]);
        let weight = x * x;
        products += weight * value * x;
        squares += weight * value * value;
    }
    (products / squares, codes)
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
/// The bytes equal ggml's. Scores and outputs are computed on decoded rows, which is four to ten
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

    /// Encodes a vector. After an error the block is unspecified.
    fn encode_over(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        let backend = self.backend.among_plain_code();
        check_values_by(backend, x, MAX_VALUE)?;
        if self.rotate == GgmlRotation::None {
            return self.kind.quantize_row(backend, x, block);
        }
        with_scratch(self.dim, |z| {
            z.copy_from_slice(x);
            self.rotate.apply(backend, z);
            self.kind.quantize_row(backend, z, block)
        })
    }
}

impl Decoded for Rows {
    fn backend(&self) -> Kernels {
        self.backend
    }

    fn check(&self, blocks: &[u8]) -> Result<(), Error> {
        self.kind.check(blocks, self.dim / VALUES)
    }

    fn decode_rows(&self, blocks: &[u8], x: &mut [f32]) {
        self.kind.dequantize(self.backend, blocks, x);
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
        with_scratch(words_for(block.len()), |row| {
            // Encode into scratch memory, so that an error leaves the block as it was.
            let row = bytes_of(row, block.len());
            self.encode_over(x, row)?;
            block.copy_from_slice(row);
            Ok(())
        })
    }

    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        encode_blocks_by(self, Some(self.backend), rows, page, |x, block| self.encode_over(x, block))
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        self.check(block)?;
        self.kind.dequantize(self.backend, block, x);
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
