//! The additive codec: each chunk of four values is a radius and the sum of two random unit
//! quaternions.
//!
//! This is the ablation of the HQMQ paper (appendix Q), "additive VQ with random fixed codebooks".
//! It is a baseline to check the paper's claim with. It is slow, and worse than HQMQ.
//!
//! The paper defines it as c ≈ c₁\[i] + c₂\[j] and no further. Here both books hold k unit
//! quaternions, from the random stream of HQMQ's sets (sub-blocks 1 and 2). The pair (i, j) is the one
//! whose sum is nearest to the chunk's direction u. That is the largest <u-a, b> + <u, a>, and the
//! lowest code i·k + j among equals. Radii are those of HQMQ.
//!
//! ```text
//! block   f16 scale │ direction codes, ⌈log2 k²⌉ bits each │ radius codes, r bits each
//! ```

use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{
    Codec, check_accumulate, check_block, check_scales, check_score, check_values, read_f16, to_f16,
};
use crate::backend::Kernels;
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::random::Purpose;
use crate::spec::{Key, Sample, Spec, Value, builders, parse_int};
use crate::{Backend, Error};
#[cfg(feature = "alloc")]
use alloc::boxed::Box;
use octaplex_arch::MAX_DIM;

/// Parameters of [`Additive`]: `additive:k=16,r=4,seed=0`.
///
/// A block holds a radius code and one entry of each book for every chunk of four values. That is
/// 2.63 to 6.63 bits a value at D = 128.
///
/// ```
/// use octaplex::codecs::AdditiveSpec;
/// use octaplex::CodecSpec;
///
/// let spec = AdditiveSpec::new(16, 4);
/// assert_eq!(CodecSpec::from(spec).to_string(), "additive");
/// assert_eq!(CodecSpec::from(spec).bits_per_value(128), 3.125);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AdditiveSpec {
    /// Entries of each book, 16 to 1024.
    pub entries: u16,
    /// Bits of a radius code, 2 to 6.
    pub radius_bits: u8,
    /// Seed of the books.
    pub seed: u64,
}

impl Default for AdditiveSpec {
    fn default() -> Self {
        Self::new(16, 4)
    }
}

impl AdditiveSpec {
    /// Creates parameters with books of `entries` entries, 16 to 1024, and radius codes of
    /// `radius_bits` bits, 2 to 6.
    #[must_use]
    pub const fn new(entries: u16, radius_bits: u8) -> Self {
        Self { entries, radius_bits, seed: 0 }
    }

    builders! {
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values. 0 for parameters that no codec can
    /// have.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        if !self.is_valid() || dim == 0 || dim > MAX_DIM {
            return 0;
        }
        self.radii_at(dim) + (dim.div_ceil(4) * self.radius_bits as usize).div_ceil(8)
    }

    /// Returns the bytes of both books on the heap.
    #[cfg(feature = "alloc")]
    pub(crate) const fn book_bytes(&self) -> usize {
        2 * self.entries as usize * size_of::<[f32; 4]>()
    }

    /// Returns whether all numbers are in range.
    const fn is_valid(&self) -> bool {
        self.entries >= 16 && self.entries <= 1024 && self.radius_bits >= 2 && self.radius_bits <= 6
    }

    /// Returns the bits of a code for a pair of entries.
    const fn code_bits(&self) -> u32 {
        let codes = self.entries as u32 * self.entries as u32;
        u32::BITS - (codes - 1).leading_zeros()
    }

    /// Returns the offset of the radius codes in a block.
    const fn radii_at(&self, dim: usize) -> usize {
        2 + (dim.div_ceil(4) * self.code_bits() as usize).div_ceil(8)
    }
}

const ENTRIES: Key = Key::new("k", "16..=1024");
const RADIUS: Key = Key::new("r", "2..=6");

impl Spec for AdditiveSpec {
    const NAME: &'static str = "additive";
    const SAMPLES: &'static [Sample] = &[("additive", 64), ("additive:k=17,r=2,seed=3", 80)];
    const SUMMARY: &'static str =
        "chunks of four values as a radius and a sum of two random directions; a baseline";
    const KEYS: &'static [Key] = &[ENTRIES, RADIUS, Key::new("seed", "0..2^64")];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.entries = parse_int(value, 16..=1024)? as u16,
            1 => self.radius_bits = parse_int(value, 2..=6)? as u8,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Int(self.entries.into()),
            1 => Value::Int(self.radius_bits.into()),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if self.block_bytes(dim) > 0 {
            line(2, "f16 scale, the largest chunk norm");
            line(self.radii_at(dim) - 2, "plane of the direction codes");
            line(self.block_bytes(dim) - self.radii_at(dim), "plane of the radius codes");
        }
    }
}

/// Both books, one after the other.
#[cfg(feature = "alloc")]
type Books = Box<[[f32; 4]]>;
/// Both books of up to 64 entries, one after the other.
#[cfg(not(feature = "alloc"))]
type Books = [[f32; 4]; 128];

/// Sums of two random directions, for vectors of `D` values. `D` must be divisible by four and at
/// most 576. [`AdditiveSpec`] has the parameters.
///
/// Encoding a vector takes O(D·k²), or 50 ms at k = 1024. The state takes 32·k bytes. Without
/// `alloc`, k is at most 64.
///
/// The method is the HQMQ paper's ablation (appendix Q), which says no more than c ≈ c₁\[i] +
/// c₂\[j]. `docs/hqmq.md` describes what this library adds.
///
/// ```
/// use octaplex::codecs::{Additive, AdditiveSpec, HeadId};
/// use octaplex::{Backend, Error};
///
/// let codec = Additive::<32>::build(AdditiveSpec::default(), Backend::detect(), HeadId::default())?;
/// let mut block = [0; 14];
/// codec.encode(&[0.5; 32], &mut block)?;
/// # Ok::<(), Error>(())
/// ```
pub type Additive<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: AdditiveSpec,
    dim: usize,
    backend: Kernels,
    books: Books,
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for numbers out of range; [`Error::Width`] unless `dim` is divisible by
    /// four and at most 576; [`Error::Unsupported`] for more than 64 entries without `alloc`.
    pub(crate) fn build(
        spec: AdditiveSpec,
        dim: usize,
        backend: Backend,
        head: HeadId,
    ) -> Result<Self, Error> {
        if dim == 0 || dim > MAX_DIM || !dim.is_multiple_of(4) {
            return Err(Error::Width { actual: dim });
        }
        if !(16..=1024).contains(&spec.entries) {
            return Err(ENTRIES.error(0));
        }
        if !(2..=6).contains(&spec.radius_bits) {
            return Err(RADIUS.error(0));
        }
        let entries = usize::from(spec.entries);
        #[cfg(feature = "alloc")]
        let mut books: Books = alloc::vec![[0.0; 4]; 2 * entries].into_boxed_slice();
        #[cfg(not(feature = "alloc"))]
        let mut books: Books = [[0.0; 4]; 128];
        if books.len() < 2 * entries {
            return Err(Error::Unsupported { why: "books of more than 64 entries need the feature alloc" });
        }
        for (book, sub_block) in books.chunks_exact_mut(entries).zip([1, 2]) {
            let mut random = head.random(spec.seed, Purpose::Quaternions, sub_block);
            book.fill_with(|| random.unit_quaternion());
        }
        Ok(Self { spec, dim, backend: backend.kernels(), books })
    }

    /// Returns the first and the second book.
    fn books(&self) -> (&[[f32; 4]], &[[f32; 4]]) {
        let entries = usize::from(self.spec.entries);
        (&self.books[..entries], &self.books[entries..2 * entries])
    }

    /// Returns the code of the pair whose sum is nearest to a direction.
    fn nearest(&self, u: [f32; 4]) -> u32 {
        let (first, second) = self.books();
        let (mut best, mut code) = (f32::NEG_INFINITY, 0);
        for (i, a) in first.iter().enumerate() {
            let rest: [f32; 4] = core::array::from_fn(|c| u[c] - a[c]);
            let start = inner(u, *a);
            for (j, b) in second.iter().enumerate() {
                let value = inner(rest, *b) + start;
                if value > best {
                    (best, code) = (value, i * second.len() + j);
                }
            }
        }
        code as u32
    }

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim, Body::Float)
    }

    /// Decodes a block whose scale is finite.
    fn decode_block(&self, block: &[u8], x: &mut [f32]) {
        let (first, second) = self.books();
        let limit = (1u32 << self.spec.radius_bits) - 1;
        let unit = read_f16(block).to_f32() / limit as f32;
        for (c, x) in x.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let code = bits(&block[2..], c * self.spec.code_bits() as usize, self.spec.code_bits());
            let at = c * usize::from(self.spec.radius_bits);
            let radius =
                bits(&block[self.spec.radii_at(self.dim)..], at, self.spec.radius_bits.into()) as f32 * unit;
            // No encoder writes codes beyond the last pair. They decode as the last pair.
            let code = (code as usize).min(first.len() * second.len() - 1);
            let (a, b) = (first[code / second.len()], second[code % second.len()]);
            *x = core::array::from_fn(|i| radius * (a[i] + b[i]));
        }
    }
}

fn inner(a: [f32; 4], b: [f32; 4]) -> f32 {
    (a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3])
}

/// Reads `width` bits at bit `at` of a little-endian bit stream.
fn bits(plane: &[u8], at: usize, width: u32) -> u32 {
    let mut word = [0; 4];
    for (to, from) in word.iter_mut().zip(&plane[at / 8..]) {
        *to = *from;
    }
    (u32::from_le_bytes(word) >> (at % 8)) & ((1 << width) - 1)
}

/// Writes bits where [`bits`] reads them. They must be zero before.
fn put_bits(plane: &mut [u8], at: usize, value: u32) {
    for (to, from) in plane[at / 8..].iter_mut().zip((value << (at % 8)).to_le_bytes()) {
        *to |= from;
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
        with_scratch(self.dim / 4, |norms| {
            self.backend.chunk_norms(x, norms);
            if !norms.iter().all(|norm| norm.is_finite()) {
                check_values(x, f32::MAX)?;
                return Err(Error::Overflow);
            }
            let scale = to_f16(self.backend.max_abs(norms))?;
            block.fill(0);
            if scale.to_bits() == 0 {
                return Ok(());
            }
            let limit = ((1u32 << self.spec.radius_bits) - 1) as f32;
            let factor = limit / scale.to_f32();
            let (codes, radii) = block.split_at_mut(self.spec.radii_at(self.dim));
            codes[..2].copy_from_slice(&scale.to_le_bytes());
            for (c, (chunk, norm)) in x.as_chunks::<4>().0.iter().zip(norms).enumerate() {
                let steps = *norm * factor + 0.5;
                let radius = if steps < limit { steps as u32 } else { limit as u32 };
                if radius > 0 {
                    let code = self.nearest(chunk.map(|x| x / *norm));
                    put_bits(&mut codes[2..], c * self.spec.code_bits() as usize, code);
                    put_bits(radii, c * usize::from(self.spec.radius_bits), radius);
                }
            }
            Ok(())
        })
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        check_scales(block, block.len(), 1)?;
        self.decode_block(block, x);
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
        let count = check_score(queries, blocks, self.block_bytes(), scores)?;
        check_scales(blocks, self.block_bytes(), 1)?;
        self.format().check(queries)?;
        with_scratch(self.dim, |x| {
            for (row, block) in blocks.chunks_exact(self.block_bytes()).enumerate() {
                self.decode_block(block, x);
                for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
                    scores[row] = self.backend.dot(&query[1..], x);
                }
            }
            Ok(())
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let count = check_accumulate(weights, blocks, self.block_bytes(), acc, self.dim)?;
        check_scales(blocks, self.block_bytes(), 1)?;
        with_scratch(self.dim, |x| {
            for (row, block) in blocks.chunks_exact(self.block_bytes()).enumerate() {
                self.decode_block(block, x);
                for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(self.dim)) {
                    acc.iter_mut().zip(&*x).for_each(|(acc, x)| *acc += weights[row] * *x);
                }
            }
            Ok(())
        })
    }
}
