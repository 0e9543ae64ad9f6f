//! The codec `polarquant`: a random rotation, then polar coordinates level by level, with angles
//! from fixed codebooks.
//!
//! The method is PolarQuant (Han, Kacham, Karbasi, Mirrokni, Zandieh). Deviations: the rotation is
//! a seeded Walsh-Hadamard transform, and no trigonometric function is evaluated. Codes come from
//! comparisons with tangents. Values and scores come from trees of products with tabulated cosines
//! and sines.
//!
//! `depth=full` recurses to one radius, the norm. `depth=4` is the published form: four levels with
//! angles of 4, 2, 2, 2 bits, and a radius for each 16 coordinates.
//!
//! ```text
//! block   depth=full   f16 norm │ codes of all levels in one stream, level 1 first
//!         depth=4      f16 radii │ 4-bit codes of level 1 │ 2-bit codes of levels 2, 3, 4
//! ```

use super::query::{Body, QueryFormat};
use super::scratch::{bytes_of, with_scratch, words_for};
use super::{Codec, SMALLEST_NORM, check_accumulate, check_block, check_scales, check_score, norm, to_f16};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::codebook::angles::{LEVELS, angles};
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::random::Purpose;
use crate::rotation::Rotation;
use crate::spec::{Key, Sample, Spec, Value, builders, one_of, parse_int};
use crate::{Backend, Error};
use octaplex_arch::{AngleTree, Angles};

/// The depth of the recursion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Depth {
    /// To one radius. For widths that are powers of two.
    #[default]
    Full,
    /// Four levels, with angles of 4, 2, 2, 2 bits. For widths that 16 divides.
    Four,
}

impl Depth {
    const NAMES: [(&'static str, Self); 2] = [("full", Self::Full), ("4", Self::Four)];
}

/// Parameters of [`PolarQuant`]: `polarquant:bits=4,depth=full,rounds=1,seed=0`.
///
/// A block has an f16 radius for each tree: one tree, or with `depth=4` one for every 16 values.
/// Then come the codes of the angles, one less in a tree than it has values. That is 1.125 to
/// 8.0625 bits a value at D = 128.
///
/// ```
/// use octaplex::codecs::{Depth, PolarQuantSpec};
/// use octaplex::CodecSpec;
///
/// let spec = PolarQuantSpec::new(4);
/// assert_eq!(CodecSpec::from(spec).to_string(), "polarquant");
/// assert_eq!(spec.block_bytes(128), 2 + 64);
/// assert_eq!(spec.depth(Depth::Four).block_bytes(128), 62); // 3.875 bits a value
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PolarQuantSpec {
    /// Bits of an angle, 1 to 8. With [`Depth::Four`] it must be 4, the bits of level 1.
    pub bits: u8,
    /// The depth of the recursion.
    pub depth: Depth,
    /// Rounds of signs and Hadamard transform, 1 to 3.
    pub rounds: u8,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for PolarQuantSpec {
    fn default() -> Self {
        Self::new(4)
    }
}

impl PolarQuantSpec {
    /// Creates parameters with `bits` bits an angle, 1 to 8. Others are defaults.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        Self { bits, depth: Depth::Full, rounds: 1, seed: 0 }
    }

    builders! {
        depth: Depth;
        rounds: u8;
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values. 0 for an impossible combination.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.depth {
            Depth::Full if dim.is_power_of_two() && dim > 1 && self.bits >= 1 && self.bits <= 8 => {
                2 + ((dim - 1) * self.bits as usize).div_ceil(8)
            }
            // For every 16 values: a radius of two bytes, 8 codes of 4 bits, and 7 codes of 2 bits.
            Depth::Four if dim.is_multiple_of(16) && self.bits == Self::FOUR_BITS[0] => {
                dim / 16 * 6 + (dim / 16 * 14).div_ceil(8)
            }
            _ => 0,
        }
    }

    /// Bits of an angle on each level of `depth=4`.
    const FOUR_BITS: [u8; 4] = [4, 2, 2, 2];
}

const BITS: Key = Key::new("bits", "1..=8");
const ROUNDS: Key = Key::new("rounds", "1..=3");

impl Spec for PolarQuantSpec {
    const NAME: &'static str = "polarquant";
    const SAMPLES: &'static [Sample] = &[
        ("polarquant", 64),
        ("polarquant:bits=1", 32),
        ("polarquant:bits=2", 128),
        ("polarquant:bits=3,seed=4", 64),
        ("polarquant:bits=5,rounds=3", 64),
        ("polarquant:bits=8", 128),
        ("polarquant:depth=4", 160),
        ("polarquant:depth=4,rounds=2", 80),
    ];
    const SUMMARY: &'static str = "random rotation and polar coordinates, angles from fixed codebooks";
    const KEYS: &'static [Key] = &[BITS, Key::new("depth", "full, 4"), ROUNDS, Key::new("seed", "0..2^64")];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.bits = parse_int(value, 1..=8)? as u8,
            1 => self.depth = one_of(value, &Depth::NAMES)?,
            2 => self.rounds = parse_int(value, 1..=3)? as u8,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Int(self.bits.into()),
            1 => Value::word(self.depth, &Depth::NAMES),
            2 => Value::Int(self.rounds.into()),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        let bytes = self.block_bytes(dim);
        match (bytes, self.depth) {
            (0, _) => {}
            (_, Depth::Full) => {
                line(2, "f16 norm");
                line(bytes - 2, "codes of the angles, level 1 first");
            }
            (_, Depth::Four) => {
                line(dim / 8, "f16 radius of each 16 values");
                line(dim / 4, "4-bit codes of level 1");
                line(bytes - dim / 8 - dim / 4, "2-bit codes of levels 2, 3 and 4");
            }
        }
    }
}

/// PolarQuant for vectors of `D` values. [`PolarQuantSpec`] has the parameters. The state is 2.3
/// KiB of signs.
///
/// Encoding, decoding and preparing a query take O(D log D), scoring O(D) in f32. The method is
/// PolarQuant (Han, Kacham, Karbasi, Mirrokni, Zandieh) with a seeded Walsh-Hadamard rotation and
/// without trigonometry. `docs/polarquant.md` lists every deviation.
///
/// ```
/// use octaplex::codecs::PolarQuant;
/// use octaplex::Error;
///
/// let codec = PolarQuant::<64>::new(4)?;
/// let (mut block, mut decoded) = (vec![0; codec.block_bytes()], [0.0; 64]);
/// codec.encode(&[0.5; 64], &mut block)?;
/// codec.decode(&block, &mut decoded)?;
/// assert!(decoded.iter().all(|x| (x - 0.5).abs() < 0.4));
/// # Ok::<(), Error>(())
/// ```
pub type PolarQuant<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: PolarQuantSpec,
    backend: Kernels,
    rotation: Rotation,
    levels: [Angles<'static>; LEVELS],
    /// The number of levels in use.
    depth: usize,
}

impl<const D: usize> PolarQuant<D> {
    /// Creates a codec with full recursion and `bits` bits an angle, other parameters by default,
    /// on the fastest backend of this CPU.
    ///
    /// # Errors
    /// As [`build`](Typed::build). [`Error::Unsupported`] unless `D` is a power of two.
    pub fn new(bits: u8) -> Result<Self, Error> {
        Self::build(PolarQuantSpec::new(bits), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// * [`Error::Width`] unless `dim` is one of [`WIDTHS`].
    /// * [`Error::Value`] for bits or rounds out of range.
    /// * [`Error::Unsupported`] for full depth unless the width is a power of two, and for
    ///   `depth=4` unless 16 divides it and the bits are 4.
    pub(crate) fn build(
        spec: PolarQuantSpec,
        dim: usize,
        backend: Backend,
        head: HeadId,
    ) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        if !(1..=8).contains(&spec.bits) {
            return Err(BITS.error(0));
        }
        if !(1..=3).contains(&spec.rounds) {
            return Err(ROUNDS.error(0));
        }
        let depth = match spec.depth {
            Depth::Full if !dim.is_power_of_two() => {
                return Err(Error::Unsupported {
                    why: "depth=full needs a width that is a power of two; use depth=4",
                });
            }
            Depth::Full => dim.trailing_zeros() as usize,
            Depth::Four if spec.bits != PolarQuantSpec::FOUR_BITS[0] => {
                return Err(Error::Unsupported {
                    why: "depth=4 has angles of 4, 2, 2, 2 bits; leave bits out",
                });
            }
            Depth::Four if !dim.is_multiple_of(16) => {
                return Err(Error::Unsupported { why: "depth=4 needs a width that 16 divides" });
            }
            Depth::Four => PolarQuantSpec::FOUR_BITS.len(),
        };
        let mut levels = [angles(1, spec.bits); LEVELS];
        for (level, slot) in levels.iter_mut().enumerate().take(depth) {
            let bits = match spec.depth {
                Depth::Full => spec.bits,
                Depth::Four => PolarQuantSpec::FOUR_BITS[level],
            };
            *slot = angles(level + 1, bits);
        }
        let rotation = Rotation::wht(dim, spec.rounds, spec.seed, Purpose::RotationSigns, head)?;
        Ok(Self { spec, backend: backend.kernels(), rotation, levels, depth })
    }

    fn tree(&self) -> AngleTree<'_> {
        AngleTree { dim: self.dim(), levels: &self.levels[..self.depth] }
    }

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim(), Body::Float)
    }

    fn check_scales(&self, blocks: &[u8]) -> Result<(), Error> {
        check_scales(blocks, self.block_bytes(), self.tree().roots())
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.rotation.dim()
    }

    fn block_bytes(&self) -> usize {
        self.spec.block_bytes(self.dim())
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        let dim = self.dim();
        check_block(dim, x, self.block_bytes(), block)?;
        let norm = norm(self.backend, x)?;
        let tree = self.tree();
        let mut head = [0; 2 * octaplex_arch::MAX_DIM / 16];
        let head = &mut head[..2 * tree.roots()];
        with_scratch(dim + words_for(dim), |memory| {
            let (radii, codes) = memory.split_at_mut(dim);
            let codes = &mut bytes_of(codes, dim)[..tree.codes()];
            if norm >= SMALLEST_NORM {
                radii.copy_from_slice(x);
                self.rotation.forward(self.backend, radii);
                self.backend.quantize_angles(&tree, radii, codes);
                if self.spec.depth == Depth::Full {
                    radii[0] = norm;
                }
                for (radius, head) in radii.iter().zip(head.as_chunks_mut::<2>().0) {
                    *head = to_f16(*radius)?.to_le_bytes();
                }
            }
            if head.iter().all(|byte| *byte == 0) {
                block.fill(0);
                return Ok(());
            }
            let (scales, mut planes) = block.split_at_mut(head.len());
            scales.copy_from_slice(head);
            let mut codes = &codes[..];
            for (count, packing) in tree.streams() {
                let (plane, rest) = planes.split_at_mut(packing.bytes(count));
                self.backend.pack(packing, &codes[..count], plane);
                (codes, planes) = (&codes[count..], rest);
            }
            Ok(())
        })
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.check_scales(block)?;
        self.backend.decode_angles(&self.tree(), block, x);
        self.rotation.inverse(self.backend, x);
        Ok(())
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        self.format().check_prepare(q, query)?;
        self.format().write_rotated(self.backend, &self.rotation, q, query);
        Ok(())
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        check_score(queries, blocks, self.block_bytes(), scores)?;
        self.check_scales(blocks)?;
        self.format().in_float_batches(queries, scores, |queries, scores| {
            self.backend.score_angles(&self.tree(), blocks, queries, scores);
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc, self.dim())?;
        self.check_scales(blocks)?;
        self.backend.accumulate_angles(&self.tree(), blocks, weights, acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32]) {
        self.rotation.inverse_rows(self.backend, acc);
    }
}
