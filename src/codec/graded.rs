//! The codec `graded`: two trellis codes, with more bits for the first half of the channels than
//! for the second.
//!
//! The error of a score is a sum over channels: the power of the query there, times the error of
//! the key there. A rotation spreads the error of a code evenly over the channels that it mixes. So
//! it pays to sort a head's channels by the power of the queries times the deviation of the keys,
//! and to code two halves at their own rates. This is reverse water-filling (T. M. Cover and J. A.
//! Thomas, "Elements of Information Theory", 2006, section 10.3.3), for an error that queries
//! weigh. A [cache] sorts the channels of each head once, when it decides the balance. The codec
//! takes the channels in the order it gets them.
//!
//! ```text
//! block   trellis:m=fine of the first D/2 values │ trellis:m=coarse of the other D/2
//!         f16 norm, planes                       │ f16 norm, planes
//! ```
//!
//! The same rotation, of half the width, turns both halves.
//!
//! [cache]: crate::LayerConfig::keys

use super::planes::{Pages, Rotated, rows_of};
use super::scratch::{bytes_of, with_scratch, words_for};
use super::trellis::{self, TrellisSpec, listed};
use super::{Codec, check_accumulate, check_block, check_scales_at, check_score, count_rows, encode_blocks};
use crate::codebook::{TRELLIS_LEVELS, TRELLIS_STATES, WIDTHS};
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value, builders, parse_int};
use crate::{Backend, Error};

/// Parameters of [`Graded`]: `graded:fine=8,coarse=2,states=8,seed=0`.
///
/// `bits=b` is short for fine = 2^b, coarse = 2^(b-2). One half of the channels then takes b + 1
/// bits a value, the other b - 1.
///
/// This codec is for keys. Half of the width must be one of [`WIDTHS`]: 64, 128, 160, 192, 256,
/// 512.
///
/// ```
/// use octaplex::codecs::GradedSpec;
/// use octaplex::CodecSpec;
///
/// let spec = GradedSpec::new(8, 2);
/// assert_eq!(CodecSpec::from(spec), "graded:bits=3".parse()?);
/// assert_eq!(spec.block_bytes(128), (2 + 64 * 4 / 8) + (2 + 64 * 2 / 8));
/// # Ok::<(), octaplex::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GradedSpec {
    /// Centroids of the first half's code, as [`TrellisSpec::m`]: 1 + log2 `fine` bits a value.
    pub fine: u8,
    /// Centroids of the second half's code.
    pub coarse: u8,
    /// States of both codes.
    pub states: u8,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for GradedSpec {
    fn default() -> Self {
        Self::new(8, 2)
    }
}

impl GradedSpec {
    /// Creates parameters with `fine` centroids for the first half and `coarse` for the second.
    /// Others are defaults.
    #[must_use]
    pub const fn new(fine: u8, coarse: u8) -> Self {
        Self { fine, coarse, states: 8, seed: 0 }
    }

    builders! {
        seed: u64;
    }

    /// Returns the parameters of both trellis codes: of the first and of the second half of the
    /// channels.
    pub(crate) const fn halves(&self) -> [TrellisSpec; 2] {
        [
            TrellisSpec::new(self.fine, self.states).seed(self.seed),
            TrellisSpec::new(self.coarse, self.states).seed(self.seed),
        ]
    }

    /// Returns the bytes of a block of `dim` values. 0 for parameters and widths that no codec
    /// can have.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.plane_bytes(dim) {
            [0, _] | [_, 0] => 0,
            [fine, coarse] => fine + coarse + 4,
        }
    }

    /// Returns the bytes of each half without its norm.
    pub(crate) const fn plane_bytes(&self, dim: usize) -> [usize; 2] {
        let mut bytes = [0; 2];
        let mut i = 0;
        while i < WIDTHS.len() {
            if 2 * WIDTHS[i] == dim {
                let [fine, coarse] = self.halves();
                bytes = [
                    fine.block_bytes(dim / 2).saturating_sub(2),
                    coarse.block_bytes(dim / 2).saturating_sub(2),
                ];
            }
            i += 1;
        }
        bytes
    }
}

const BITS: Key = Key::new("bits", "2..=4");
const FINE: Key = Key::new("fine", "1, 2, 3, 4, 6, 8, 12, 16").excludes(&["bits"]);
const COARSE: Key = Key::new("coarse", "1, 2, 3, 4, 6, 8, 12, 16").excludes(&["bits"]);

impl Spec for GradedSpec {
    const NAME: &'static str = "graded";
    const SAMPLES: &'static [Sample] =
        &[("graded", 128), ("graded:fine=4,coarse=1", 64), ("graded:fine=16,coarse=3,states=16,seed=7", 256)];
    const SUMMARY: &'static str =
        "two trellis codes, more bits for the channels that queries weigh most; for keys";
    const KEYS: &'static [Key] =
        &[BITS, FINE, COARSE, Key::new("states", "4, 8, 16, 32, 64"), Key::new("seed", "0..2^64")];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => {
                let bits = parse_int(value, 2..=4)?;
                (self.fine, self.coarse) = (1 << bits, 1 << (bits - 2));
            }
            1 => self.fine = listed(value, &TRELLIS_LEVELS)?,
            2 => self.coarse = listed(value, &TRELLIS_LEVELS)?,
            3 => self.states = listed(value, &TRELLIS_STATES)?,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Absent, // always printed as `fine` and `coarse`
            1 => Value::Int(self.fine.into()),
            2 => Value::Int(self.coarse.into()),
            3 => Value::Int(self.states.into()),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if self.block_bytes(dim) > 0 {
            self.halves().iter().for_each(|half| half.layout(dim / 2, line));
        }
    }
}

/// Two trellis codes for vectors of `D` values. [`GradedSpec`] has the parameters.
///
/// It costs as much as two [`Trellis`](crate::codecs::Trellis) codecs of half the width.
///
/// ```
/// use octaplex::codecs::Graded;
/// use octaplex::Error;
///
/// let codec = Graded::<128>::new(8, 2)?; // 4 bits a value for the first 64, 2 for the others
/// let key: [f32; 128] = core::array::from_fn(|i| ((i * i) % 17) as f32 - 8.0);
/// let (mut block, mut decoded) = ([0; 52], [0.0; 128]);
/// codec.encode(&key, &mut block)?;
/// codec.decode(&block, &mut decoded)?;
/// let error = |range: core::ops::Range<usize>| range.map(|i| (key[i] - decoded[i]).powi(2)).sum::<f32>();
/// assert!(error(0..64) < 0.2 * error(64..128));
/// # Ok::<(), Error>(())
/// ```
pub type Graded<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    fine: trellis::Core,
    coarse: trellis::Core,
}

/// Rows that are scored at a time.
const ROWS: usize = 64;
/// Queries that are scored at a time.
const QUERIES: usize = 8;
/// Rows that are encoded at a time.
const ENCODED: usize = 16;

impl<const D: usize> Graded<D> {
    /// Creates a codec with `fine` and `coarse` centroids, other parameters by default, on the
    /// fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless both are 1, 2, 3, 4, 6, 8, 12 or 16; [`Error::Width`] unless D/2 is
    /// one of [`WIDTHS`].
    pub fn new(fine: u8, coarse: u8) -> Result<Self, Error> {
        Self::build(GradedSpec::new(fine, coarse), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for parameters that are not listed; [`Error::Width`] unless half of `dim`
    /// is one of [`WIDTHS`].
    pub(crate) fn build(spec: GradedSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        if !dim.is_multiple_of(2) || !WIDTHS.contains(&(dim / 2)) {
            return Err(Error::Width { actual: dim });
        }
        for (key, m) in [(FINE, spec.fine), (COARSE, spec.coarse)] {
            if !TRELLIS_LEVELS.contains(&m.into()) {
                return Err(key.error(0));
            }
        }
        let [fine, coarse] = spec.halves().map(|half| trellis::Core::build(half, dim / 2, backend, head));
        Ok(Self { fine: fine?, coarse: coarse? })
    }

    fn halves(&self) -> [&trellis::Core; 2] {
        [&self.fine, &self.coarse]
    }

    /// Returns the offset of the second half's block.
    fn middle(&self) -> usize {
        self.fine.block_bytes()
    }

    /// Checks that both norms of every block are finite.
    fn check_norms(&self, blocks: &[u8]) -> Result<(), Error> {
        check_scales_at(blocks, self.block_bytes(), [0, self.middle()])
    }

    /// Returns the rows of each half in consecutive blocks.
    fn rows<'a>(&self, blocks: &'a [u8]) -> [octaplex_arch::Rows<'a>; 2] {
        let (bytes, middle, half) = (self.block_bytes(), self.middle(), self.dim() / 2);
        let end = blocks.len() - self.coarse.block_bytes();
        [
            rows_of(&blocks[..end], bytes, middle, half),
            rows_of(&blocks[middle..], bytes, bytes - middle, half),
        ]
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        2 * self.fine.dim()
    }

    fn block_bytes(&self) -> usize {
        self.fine.block_bytes() + self.coarse.block_bytes()
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        let mut scratch = [0; super::MAX_BLOCK_BYTES];
        let scratch = &mut scratch[..block.len()];
        let (first, second) = scratch.split_at_mut(self.middle());
        let (fine, coarse) = x.split_at(x.len() / 2);
        self.fine.encode(fine, first)?;
        self.coarse.encode(coarse, second).map_err(|error| super::at_row(error, 1, fine.len()))?;
        block.copy_from_slice(scratch);
        Ok(())
    }

    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        let (dim, bytes, half) = (self.dim(), self.block_bytes(), self.dim() / 2);
        Error::expect_length("bytes of blocks", count_rows(rows, dim)? * bytes, page.len())?;
        if !rows.chunks_exact(dim).all(|x| super::surely_encodable(Some(self.fine.backend()), x)) {
            return encode_blocks(self, rows, page);
        }
        // Gather rows of half the width, encode them, then interleave the blocks of both halves:
        // sixteen rows at a time.
        with_scratch(ENCODED * half, |side| {
            with_scratch(words_for(ENCODED * bytes), |blocks| {
                for (rows, page) in rows.chunks(ENCODED * dim).zip(page.chunks_mut(ENCODED * bytes)) {
                    let (count, mut at) = (rows.len() / dim, 0);
                    for (number, codec) in self.halves().into_iter().enumerate() {
                        let (each, side) = (codec.block_bytes(), &mut side[..count * half]);
                        for (side, row) in side.chunks_exact_mut(half).zip(rows.chunks_exact(dim)) {
                            side.copy_from_slice(&row[number * half..][..half]);
                        }
                        let blocks = bytes_of(blocks, count * each);
                        codec.encode_page(side, blocks)?;
                        for (block, half) in page.chunks_exact_mut(bytes).zip(blocks.chunks_exact(each)) {
                            block[at..at + each].copy_from_slice(half);
                        }
                        at += each;
                    }
                }
                Ok(())
            })
        })?;
        Ok(page.len())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.check_norms(block)?;
        let (first, second) = block.split_at(self.middle());
        let (fine, coarse) = x.split_at_mut(x.len() / 2);
        self.fine.decode(first, fine)?;
        self.coarse.decode(second, coarse)
    }

    fn query_len(&self) -> usize {
        2 * self.fine.query_len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        Error::expect_length("values of a query", self.dim(), q.len())?;
        Error::expect_length("words of a prepared query", self.query_len(), query.len())?;
        super::check_values(q, super::MAX_VALUE)?;
        let halves = q.chunks_exact(q.len() / 2).zip(query.chunks_exact_mut(self.fine.query_len()));
        halves.zip(self.halves()).try_for_each(|((q, query), codec)| codec.prepare_query(q, query))
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let count = check_score(queries, blocks, self.block_bytes(), scores)?;
        self.check_norms(blocks)?;
        let words = self.fine.query_len();
        // Check all queries first: an error in a later batch must not leave scores of an earlier
        // one written.
        for query in queries {
            Error::expect_length("words of a prepared query", self.query_len(), query.len())?;
            let (first, second) = query.split_at(words);
            self.fine.format().check(&[first, second])?;
        }
        with_scratch(2 * QUERIES * ROWS, |memory| {
            for (batch, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut((QUERIES * count).max(1))) {
                for (run, blocks) in blocks.chunks(ROWS * self.block_bytes()).enumerate() {
                    let rows = blocks.len() / self.block_bytes();
                    let (fine, coarse) = memory[..2 * batch.len() * rows].split_at_mut(batch.len() * rows);
                    let halves = self.halves().into_iter().zip(self.rows(blocks));
                    for (number, ((codec, half), found)) in halves.zip([&mut *fine, &mut *coarse]).enumerate()
                    {
                        let mut prepared: [&[f32]; QUERIES] = [&[]; QUERIES];
                        prepared
                            .iter_mut()
                            .zip(batch)
                            .for_each(|(slot, query)| *slot = &query[number * words..][..words]);
                        codec.score_rows(&codec.format(), &prepared[..batch.len()], &[half], found)?;
                    }
                    let found = fine.chunks_exact(rows).zip(coarse.chunks_exact(rows));
                    for (scores, (fine, coarse)) in scores.chunks_exact_mut(count).zip(found) {
                        let scores = &mut scores[run * ROWS..][..rows];
                        scores
                            .iter_mut()
                            .zip(fine.iter().zip(coarse))
                            .for_each(|(score, (a, b))| *score = a + b);
                    }
                }
            }
            Ok(())
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let dim = self.dim();
        let count = check_accumulate(weights, blocks, self.block_bytes(), acc, dim)?;
        self.check_norms(blocks)?;
        if count > 0 {
            for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
                let halves = self.halves().into_iter().zip(self.rows(blocks));
                for ((codec, rows), acc) in halves.zip(acc.chunks_exact_mut(dim / 2)) {
                    codec.accumulate_rows(weights, &[rows], acc);
                }
            }
        }
        Ok(())
    }

    fn finish(&self, acc: &mut [f32]) {
        for row in acc.chunks_exact_mut(self.dim()) {
            for (codec, half) in self.halves().into_iter().zip(row.chunks_exact_mut(self.fine.dim())) {
                codec.finish(half);
            }
        }
    }

    fn pages(&self) -> Pages<'_> {
        Pages::Graded([&self.fine, &self.coarse])
    }
}
