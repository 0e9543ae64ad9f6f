//! The codec `hqmq`: each chunk of four values is a radius and the product of a Hurwitz unit with a
//! member of a set.
//!
//! The method is Hurwitz Quaternion Multiplicative Quantization (Swain, Han, Weidele, Martino, Cox,
//! Torralba), Algorithm 1 and appendix U.1. Deviations:
//!
//! * Unit quaternions come from Marsaglia's method instead of normalised Gaussians.
//! * A radius code of 0 always has direction code 0.
//! * Sets that are optimised under the group's symmetry are offered in addition to random ones.
//! * Indices are packed in mixed radix.
//! * Med3x takes a page as its batch.
//!
//! ```text
//! block   f16 scale, the largest chunk norm │ raw plane │ digit plane │ radius codes │ flags (with `med`)
//!                                             └─ direction codes ──┘
//! ```
//!
//! `docs/hqmq.md` has the details.

mod set;

use super::outliers::{Chunked, LONE_BLOCK, Outliers, WithChunks};
use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{
    Codec, check_accumulate, check_block, check_scales, check_score, check_values, count_rows, decode_blocks,
    encode_blocks, first_blocks, score_checked, to_f16,
};
use crate::backend::Kernels;
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::random::Purpose;
use crate::rotation::Rotation;
use crate::spec::{Key, Sample, Spec, Value, builders, one_of, parse_flag, parse_int};
use crate::{Backend, Error};
use octaplex_arch::MAX_DIM;
#[cfg(feature = "gpu")]
use octaplex_arch::quaternion::QuaternionSet;
use octaplex_arch::quaternion::{ChunkLayout, RadiusSteps};
use set::Set;

/// The origin of the members of the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Secondary {
    /// Random unit quaternions, different for each seed, layer, head and role.
    #[default]
    Random,
    /// A set trained once for the uniform density on the sphere, the same everywhere. It has 24,
    /// 48, 96 or 192 members.
    Optimised,
}

impl Secondary {
    const NAMES: [(&'static str, Self); 2] = [("random", Self::Random), ("optimised", Self::Optimised)];
}

/// The packing of direction codes into bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChunkPacking {
    /// Mixed radix: at most 0.02 bits above the fractional log2(24·S) a code. For S = 3·2ⁿ, where
    /// it is the default of specs.
    #[default]
    Radix,
    /// ⌈log2 24·S⌉ bits a code, for any S. The default of specs for other S.
    Index,
}

impl ChunkPacking {
    const NAMES: [(&'static str, Self); 2] = [("radix", Self::Radix), ("index", Self::Index)];

    /// Returns the packing of a spec that does not name one.
    const fn default_for(members: u8) -> Self {
        match members.is_multiple_of(3) && (members / 3).is_power_of_two() {
            true => Self::Radix,
            false => Self::Index,
        }
    }

    /// Returns whether this packing supports a set of `members` members.
    const fn fits(self, members: u8) -> bool {
        matches!(self, Self::Index) || matches!(Self::default_for(members), Self::Radix)
    }
}

/// Parameters of [`Hqmq`]:
/// `hqmq:s=96,r=4,secondary=random,packing=radix,med=0,rotate=false,seed=0`.
///
/// A block holds an f16 scale, then a radius code and a direction code for each chunk of four
/// values. That is 1.875 to 4.875 bits a value at D = 128, without outliers.
///
/// ```
/// use octaplex::codecs::HqmqSpec;
/// use octaplex::CodecSpec;
///
/// let spec = HqmqSpec::new(24, 3);
/// assert_eq!(CodecSpec::from(spec).to_string(), "hqmq:s=24,r=3");
/// assert_eq!(spec.block_bytes(128), 51);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HqmqSpec {
    /// Members of the set, S: 1 to 255.
    pub members: u8,
    /// Bits of a radius code, 2 to 6.
    pub radius_bits: u8,
    /// The origin of the members.
    pub secondary: Secondary,
    /// The packing of direction codes. `Radix` needs S = 3·2ⁿ, and is the default of specs there.
    /// Elsewhere their default is `Index`.
    pub packing: ChunkPacking,
    /// Chunks whose norm is above `med` times the page's median stay exact. 0 for none.
    pub med: u8,
    /// Whether vectors are first rotated by one round of seeded signs and Hadamard transform.
    pub rotate: bool,
    /// Seed of the set and the rotation.
    pub seed: u64,
}

impl Default for HqmqSpec {
    fn default() -> Self {
        Self::new(96, 4)
    }
}

impl HqmqSpec {
    /// Creates parameters with a set of `members` members, 1 to 255, and radius codes of
    /// `radius_bits` bits, 2 to 6. Others are defaults; the packing's default depends on `members`.
    #[must_use]
    pub const fn new(members: u8, radius_bits: u8) -> Self {
        Self {
            members,
            radius_bits,
            secondary: Secondary::Random,
            packing: ChunkPacking::default_for(members),
            med: 0,
            rotate: false,
            seed: 0,
        }
    }

    builders! {
        secondary: Secondary;
        packing: ChunkPacking;
        med: u8;
        rotate: bool;
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values with its flags. Outliers of a page come on top.
    /// 0 for parameters that no codec can have.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.chunk_layout(dim) {
            Some(layout) => layout.row_bytes(),
            None => 0,
        }
    }

    /// Returns the largest number of bytes of a random set and its index on the heap.
    #[cfg(feature = "alloc")]
    pub(crate) const fn set_bytes(&self) -> usize {
        match self.secondary {
            Secondary::Random => set::random_bytes(self.members),
            Secondary::Optimised => 0,
        }
    }

    /// Returns the layout of a row, or `None` if the parameters are invalid.
    pub(crate) const fn chunk_layout(&self, dim: usize) -> Option<ChunkLayout> {
        let in_range = self.members >= 1 && self.radius_bits >= 2 && self.radius_bits <= 6;
        let has_set =
            matches!(self.secondary, Secondary::Random) || matches!(self.members, 24 | 48 | 96 | 192);
        if !in_range || !has_set || !self.packing.fits(self.members) || dim == 0 || dim > MAX_DIM {
            return None;
        }
        Some(ChunkLayout {
            chunks: dim.div_ceil(4),
            members: self.members,
            radius_bits: self.radius_bits,
            radix: matches!(self.packing, ChunkPacking::Radix),
            flags: self.med > 0,
        })
    }
}

const NO_SUCH_SET: &str = "secondary=optimised has sets of s=24, 48, 96 and 192; use secondary=random";
const NO_RADIX: &str = "packing=radix is for s=3, 6, 12, 24, 48, 96 and 192; use packing=index";

const MEMBERS: Key = Key::new("s", "1..=255");
const RADIUS: Key = Key::new("r", "2..=6");
const PACKING: Key = Key::new("packing", "radix, index");
/// The position of `packing` among the keys.
const PACKING_INDEX: usize = 3;

impl Spec for HqmqSpec {
    const NAME: &'static str = "hqmq";
    const SAMPLES: &'static [Sample] = &[
        ("hqmq", 128),
        ("hqmq:s=1,r=2", 64),
        ("hqmq:s=24,r=3,rotate=true,seed=5", 80),
        ("hqmq:s=48,secondary=optimised", 64),
        ("hqmq:r=5,packing=index", 96),
        ("hqmq:s=192,r=6,secondary=optimised", 64),
        ("hqmq:s=255,r=6", 112),
        ("hqmq:r=6,med=3", 128),
    ];
    const SUMMARY: &'static str = "chunks of four values as a radius and a product of quaternions";
    const KEYS: &'static [Key] = &[
        MEMBERS,
        RADIUS,
        Key::new("secondary", "random, optimised"),
        PACKING,
        Key::new("med", "0..=255"),
        Key::new("rotate", "false, true"),
        Key::new("seed", "0..2^64"),
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.members = parse_int(value, 1..=255)? as u8,
            1 => self.radius_bits = parse_int(value, 2..=6)? as u8,
            2 => self.secondary = one_of(value, &Secondary::NAMES)?,
            PACKING_INDEX => self.packing = one_of(value, &ChunkPacking::NAMES)?,
            4 => self.med = parse_int(value, 0..=255)? as u8,
            5 => self.rotate = parse_flag(value)?,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Int(self.members.into()),
            1 => Value::Int(self.radius_bits.into()),
            2 => Value::word(self.secondary, &Secondary::NAMES),
            PACKING_INDEX => Value::word(self.packing, &ChunkPacking::NAMES),
            4 => Value::Int(self.med.into()),
            5 => Value::flag(self.rotate),
            _ => Value::Int(self.seed),
        }
    }

    fn is_default(&self, key: usize) -> bool {
        match key {
            PACKING_INDEX => self.packing == ChunkPacking::default_for(self.members),
            _ => self.get(key) == Self::default().get(key),
        }
    }

    fn complete(mut self, given: u32) -> Self {
        if given & (1 << PACKING_INDEX) == 0 {
            self.packing = ChunkPacking::default_for(self.members);
        }
        self
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        let Some(layout) = self.chunk_layout(dim) else { return };
        line(2, "f16 scale, the largest chunk norm");
        line(layout.digits_at() - 2, "raw plane of the direction codes");
        if layout.radix {
            line(
                layout.radii_at() - layout.digits_at(),
                "base-9 digits as two base-3 digits, five to a byte",
            );
        }
        line(layout.flags_at() - layout.radii_at(), "plane of the radius codes");
        if layout.flags {
            line(
                layout.row_bytes() - layout.flags_at(),
                "flags, 1 bit a chunk; 8 bytes an outlier behind the page",
            );
        }
    }
}

/// HQMQ for vectors of `D` values. [`HqmqSpec`] has the parameters.
///
/// The state has 2.3 KiB of signs. An optimised set and its index are static. A random set takes 5
/// KB on the heap. From S = 16 on it also has an index of 20 to 27 KB, built in less than a
/// millisecond. Without `alloc`, this value contains the 5 KB, and random sets have no index.
///
/// Decoding and scoring take O(D). Encoding takes O(D) with an index, and O(D·S) without.
/// `docs/hqmq.md` has the format. The method is Algorithm 1 of HQMQ (Swain, Han, Weidele, Martino,
/// Cox, Torralba).
///
/// `D` may be any width up to 576. If it is not divisible by four, the last chunk is padded with
/// zeros, which cost bits (6.7% at 45). `rotate=true` needs a width with a Hadamard matrix.
///
/// ```
/// use octaplex::codecs::{Hqmq, HqmqSpec, HeadId};
/// use octaplex::{Backend, Error};
///
/// let codec = Hqmq::<45>::build(HqmqSpec::new(24, 3), Backend::detect(), HeadId::default())?;
/// assert_eq!(codec.block_bytes(), 2 + 9 + 5 + 5); // 12 chunks: raw plane, digits, radii
/// let x = [1.0; 45];
/// let (mut block, mut decoded) = ([0; 21], [0.0; 45]);
/// codec.encode(&x, &mut block)?;
/// codec.decode(&block, &mut decoded)?;
/// assert!(decoded.iter().all(|value| (value - 1.0).abs() < 0.6));
/// # Ok::<(), Error>(())
/// ```
pub type Hqmq<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: HqmqSpec,
    backend: Kernels,
    rotation: Rotation,
    layout: ChunkLayout,
    set: Set,
}

/// Chunks of the widest vector.
const MAX_CHUNKS: usize = MAX_DIM / 4;

/// Pages longer than this many bytes have their scales checked before their scores.
///
/// Scoring reads 64 rows in parallel, more streams than a CPU's prefetcher follows. Checking the
/// scales first reads the page in order, which brings it into the cache. On Zen 4 with 4,096 rows a
/// score then takes 15.0 ns instead of 16.9 from memory, but 12.9 instead of 12.5 from the cache.
const LONG: usize = 1 << 16;

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// * [`Error::Value`] for numbers out of range.
    /// * [`Error::Unsupported`] for an optimised set of another size, and for mixed radix unless S
    ///   is 3·2ⁿ.
    /// * [`Error::Width`] for widths above 576, and with `rotate` for those without a Hadamard
    ///   matrix.
    pub(crate) fn build(spec: HqmqSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        if dim == 0 || dim > MAX_DIM {
            return Err(Error::Width { actual: dim });
        }
        if spec.members == 0 {
            return Err(MEMBERS.error(0));
        }
        if !(2..=6).contains(&spec.radius_bits) {
            return Err(RADIUS.error(0));
        }
        if !spec.packing.fits(spec.members) {
            return Err(Error::Unsupported { why: NO_RADIX });
        }
        let layout = spec.chunk_layout(dim).ok_or(Error::Unsupported { why: NO_SUCH_SET })?;
        let rotation = match spec.rotate {
            true => Rotation::wht(dim, 1, spec.seed, Purpose::RotationSigns, head)?,
            false => Rotation::identity(dim),
        };
        let set = Set::new(&spec, head)?;
        Ok(Self { spec, backend: backend.kernels(), rotation, layout, set })
    }

    /// Returns the layout of a row, the set, and the signs of the rotation (all zero without one).
    #[cfg(feature = "gpu")]
    pub(crate) fn shape(&self) -> (&ChunkLayout, QuaternionSet<'_>, &[u32]) {
        (&self.layout, self.set.view(), self.rotation.signs())
    }

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim(), Body::Float)
    }

    /// Returns the number of values of a vector padded to whole chunks.
    fn padded(&self) -> usize {
        4 * self.layout.chunks
    }

    /// Returns where blocks have their flags, if outliers are kept.
    fn outliers(&self) -> Option<Outliers> {
        let ChunkLayout { chunks, flags, .. } = self.layout;
        let (block_bytes, flags_at) = (self.layout.row_bytes(), self.layout.flags_at());
        flags.then_some(Outliers { block_bytes, flags_at, chunks })
    }

    /// Decodes a block into the codec's basis.
    fn decode_block(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        let (layout, set) = (&self.layout, &self.set.view());
        if x.len() == self.padded() {
            self.backend.decode_quaternions(layout, set, block, x);
            return Ok(());
        }
        with_scratch(self.padded(), |padded| {
            self.backend.decode_quaternions(layout, set, block, padded);
            x.copy_from_slice(&padded[..x.len()]);
            Ok(())
        })
    }

    fn score_blocks(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let (layout, set, format) = (&self.layout, &self.set.view(), self.format());
        let check = || check_scales(blocks, self.block_bytes(), 1);
        let telling = self.backend.blocks_tell_scales() && blocks.len() <= LONG;
        score_checked(telling, queries, scores, check, |scores| {
            if self.dim() == self.padded() {
                return format.in_float_batches(queries, scores, |queries, scores| {
                    self.backend.score_quaternions(layout, set, blocks, queries, scores);
                });
            }
            format.check(queries)?;
            let rows = scores.len() / queries.len().max(1);
            with_scratch(self.padded(), |padded| {
                for (query, scores) in queries.iter().zip(scores.chunks_mut(rows.max(1))) {
                    padded[..self.dim()].copy_from_slice(&query[1..]);
                    self.backend.score_quaternions(layout, set, blocks, &[padded], scores);
                }
                Ok(())
            })
        })
    }

    fn accumulate_blocks(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let (dim, bytes) = (self.dim(), self.block_bytes());
        check_accumulate(weights, blocks, bytes, acc, dim)?;
        check_scales(blocks, bytes, 1)?;
        let (layout, set) = (&self.layout, &self.set.view());
        if dim == self.padded() {
            self.backend.accumulate_quaternions(layout, set, blocks, weights, acc);
            return Ok(());
        }
        let rows = (blocks.len() / bytes).max(1);
        with_scratch(self.padded(), |padded| {
            for (weights, acc) in weights.chunks(rows).zip(acc.chunks_exact_mut(dim)) {
                padded.fill(0.0);
                padded[..dim].copy_from_slice(acc);
                self.backend.accumulate_quaternions(layout, set, blocks, weights, padded);
                acc.copy_from_slice(&padded[..dim]);
            }
            Ok(())
        })
    }
}

impl Chunked for Core {
    fn with_chunks(&self, x: &[f32], f: WithChunks<'_>) -> Result<(), Error> {
        let (dim, padded) = (self.dim(), self.padded());
        with_scratch(padded + self.layout.chunks, |memory| {
            let (z, norms) = memory.split_at_mut(padded);
            z[..dim].copy_from_slice(x);
            self.rotation.forward(self.backend, &mut z[..dim]);
            self.backend.chunk_norms(z, norms);
            if norms.iter().fold(true, |finite, norm| finite & norm.is_finite()) {
                return f(z, norms);
            }
            check_values(x, f32::MAX)?;
            Err(Error::Overflow)
        })
    }

    fn write(&self, values: &[f32], norms: &[f32], block: &mut [u8]) -> Result<(), Error> {
        let scale = to_f16(self.backend.max_abs(norms))?;
        if scale.to_bits() == 0 {
            block[..self.layout.flags_at()].fill(0);
            return Ok(());
        }
        let limit = self.layout.radius_limit();
        let (mut codes, mut radii) = ([0; MAX_CHUNKS], [0; MAX_CHUNKS]);
        let (codes, radii) = (&mut codes[..norms.len()], &mut radii[..norms.len()]);
        let steps = RadiusSteps { factor: f32::from(limit) / scale.to_f32(), limit };
        self.backend.encode_quaternions(&self.set.view(), values, norms, steps, codes, radii);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        self.backend.pack_chunks(&self.layout, codes, radii, block);
        Ok(())
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.rotation.dim()
    }

    fn block_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.with_chunks(x, &mut |values, norms| self.write(values, norms, block))?;
        block[self.layout.flags_at()..].fill(0);
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        if block[self.layout.flags_at()..].iter().any(|flags| *flags != 0) {
            return Err(Error::Unsupported { why: LONE_BLOCK });
        }
        check_scales(block, block.len(), 1)?;
        self.decode_block(block, x)?;
        self.rotation.inverse(self.backend, x);
        Ok(())
    }

    fn page_bytes_max(&self, tokens: usize) -> usize {
        match self.outliers() {
            Some(outliers) => outliers.page_bytes_max(tokens),
            None => tokens * self.block_bytes(),
        }
    }

    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        match self.outliers() {
            Some(outliers) => outliers.encode_page(self, self.spec.med, rows, page),
            None => encode_blocks(self, rows, page),
        }
    }

    fn first_page(&self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
        match self.outliers() {
            Some(outliers) => outliers.first_page(bytes, tokens),
            None => first_blocks(bytes, self.block_bytes(), tokens),
        }
    }

    fn decode_page(&self, page: &[u8], rows: &mut [f32]) -> Result<(), Error> {
        let Some(outliers) = self.outliers() else { return decode_blocks(self, page, rows) };
        let dim = self.dim();
        let page = outliers.split(page, count_rows(rows, dim)?)?;
        check_scales(page.blocks, self.block_bytes(), 1)?;
        let blocks = page.blocks.chunks_exact(self.block_bytes());
        blocks.zip(rows.chunks_exact_mut(dim)).try_for_each(|(block, x)| self.decode_block(block, x))?;
        page.add_to(dim, rows);
        self.rotation.inverse_rows(self.backend, rows);
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
        let Some(outliers) = self.outliers() else {
            check_score(queries, blocks, self.block_bytes(), scores)?;
            return self.score_blocks(queries, blocks, scores);
        };
        let page = outliers.split_for(blocks, "scores", scores.len(), queries.len())?;
        self.score_blocks(queries, page.blocks, scores)?;
        self.format().in_float_batches(queries, scores, |queries, scores| page.add_scores(queries, scores))
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let Some(outliers) = self.outliers() else { return self.accumulate_blocks(weights, blocks, acc) };
        let dim = self.dim();
        let page = outliers.split_for(blocks, "weights", weights.len(), count_rows(acc, dim)?)?;
        self.accumulate_blocks(weights, page.blocks, acc)?;
        page.accumulate(weights, dim, acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32]) {
        self.rotation.inverse_rows(self.backend, acc);
    }
}
