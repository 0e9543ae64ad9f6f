//! The trellis codec: a random rotation, then a code in which the centroids of a coordinate depend on one *path bit* of
//! its own and on those of the coordinates before it, so that a search over the whole vector (Viterbi's algorithm)
//! finds a better row than a quantiser of single coordinates can: within 2 dB of the Shannon bound at 2 and 3 bits,
//! where the best scalar quantiser is 3.5 to 4.5 dB away.
//!
//! The format to the bit, the encoder and the rates are in `docs/trellis.md`. The code is a feed-forward trellis-coded
//! quantiser: M. W. Marcellin and T. R. Fischer, "Trellis coded quantization of memoryless and Gauss-Markov
//! sources", IEEE Transactions on Communications 38(1), 1990; its tables are trained for the unit sphere.

use super::turboquant::ROUNDS;
use super::{
    Codec, MAX_VALUE, Query, SMALLEST_NORM, at_row, check_accumulate, check_scales, check_values,
    count_blocks, norm, read_f16, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::{TRELLIS_LEVELS, TRELLIS_STATES, TrellisBook, WIDTHS, trellis};
use crate::rotation::Rotation;
use crate::spec::{Key, Spec, Value, describe_planes, one_of, parse_int};
use crate::{Backend, CodecSpec, Error, Gain, Stream};
use octaplex_arch::{Fit, MAX_DIM, Packing, WindowCodebook};

/// `trellis:m=4,states=8,gain=mse,rounds=1,seed=0`
///
/// A value takes 1 + log2 m bits, and a block two bytes more for its norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrellisSpec {
    /// Centroids that a coordinate chooses from once its path is known: 1, 2, 3, 4, 6, 8, 12 or 16.
    pub m: u8,
    /// States of the path: 4, 8, 16, 32 or 64. More are slower to encode, not to score, and better.
    pub states: u8,
    /// What the stored norm is.
    pub gain: Gain,
    /// Rounds of signs and Hadamard transform, 1 to 3.
    pub rounds: u8,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for TrellisSpec {
    fn default() -> Self {
        Self { m: 4, states: 8, gain: Gain::Mse, rounds: 1, seed: 0 }
    }
}

impl TrellisSpec {
    /// Bytes of a block of `dim` values; 0 for an `m` that no codec is built from.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        let path = 2 + WindowCodebook::path_bytes(dim);
        match (self.m, Packing::for_levels(self.m as usize)) {
            (1, _) => path,
            (2 | 3 | 4 | 6 | 8 | 12 | 16, Some(packing)) => path + packing.bytes(dim),
            _ => 0,
        }
    }
}

const M: Key = Key::new("m", "1, 2, 3, 4, 6, 8, 12, 16");
const STATES: Key = Key::new("states", "4, 8, 16, 32, 64");

/// One of the listed numbers, in plain digits.
fn listed(text: &str, numbers: &[usize]) -> Option<u8> {
    let number = parse_int(text, 0..=255)? as u8;
    numbers.contains(&usize::from(number)).then_some(number)
}

impl Spec for TrellisSpec {
    const NAME: &'static str = "trellis";
    const SUMMARY: &'static str = "random rotation and a trellis code";
    const KEYS: &'static [Key] =
        &[M, STATES, Key::new("gain", "mse, norm, unbiased"), ROUNDS, Key::new("seed", "0..2^64")];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.m = listed(value, &TRELLIS_LEVELS)?,
            1 => self.states = listed(value, &TRELLIS_STATES)?,
            2 => self.gain = one_of(value, &Gain::NAMES)?,
            3 => self.rounds = parse_int(value, 1..=3)? as u8,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Int(self.m.into()),
            1 => Value::Int(self.states.into()),
            2 => Value::word(self.gain, &Gain::NAMES),
            3 => Value::Int(self.rounds.into()),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if self.block_bytes(dim) == 0 {
            return;
        }
        line(2, "f16 norm with its gain");
        line(WindowCodebook::path_bytes(dim), "path plane, 1 bit a value");
        if let Some(packing) = Packing::for_levels(self.m.into()) {
            describe_planes(packing, dim, line);
        }
    }
}

/// The codec of a [`TrellisSpec`]. State: 4·D bytes of signs and some words; the tables are static.
///
/// [`encode`](Codec::encode) takes 8·D + 2 KiB of stack at most beside its input and output (5.6 KiB in all on a
/// machine without SIMD, whatever `D` is); [`encode_page`](Codec::encode_page) works on 16 vectors at a time, on
/// 64·D bytes of stack and the search's decisions (64·D bytes up to 32 states, 128·D for 64).
///
/// ```
/// use octaplex::{Codec, Error, Trellis};
///
/// let codec = Trellis::<128>::new(4, 8)?; // 3 bits a value, 8 states
/// let key: [f32; 128] = core::array::from_fn(|i| ((i * i) % 17) as f32 - 8.0);
/// let mut block = [0; 50];
/// codec.encode(&key, &mut block)?;
///
/// let mut decoded = [0.0; 128];
/// codec.decode(&block, &mut decoded)?;
/// let square = |x: f32| x * x;
/// let residual: f32 = key.iter().zip(&decoded).map(|(a, b)| square(a - b)).sum();
/// assert!(residual < 0.03 * key.iter().map(|&x| square(x)).sum::<f32>());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trellis<const D: usize> {
    spec: TrellisSpec,
    backend: Kernels,
    rotation: Rotation<D>,
    book: TrellisBook,
    /// Value of one integer step in a coordinate of a rotated unit vector, 1/(κ√D).
    unit: f32,
}

/// The largest integer of a query.
const QUERY_LIMIT: i16 = 127;

/// Vectors that a page's encoder takes at a time.
const BATCH: usize = 16;

/// The largest block: 4 bits and the path bit of the widest vectors.
const MAX_TRELLIS_BYTES: usize = 2 + MAX_DIM * 5 / 8;

impl<const D: usize> Trellis<D> {
    /// 1 + log2 `m` bits a value, everything else by default, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `m` is 1, 2, 3, 4, 6, 8, 12 or 16 and `states` 4, 8, 16, 32 or 64, [`Error::Width`]
    /// unless `D` is one of [`WIDTHS`].
    pub fn new(m: u8, states: u8) -> Result<Self, Error> {
        let spec = TrellisSpec { m, states, ..Default::default() };
        Self::build(spec, Backend::detect(), Stream::default())
    }

    /// The codec of a spec, for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for `m`, states or rounds outside their lists, [`Error::Width`] unless `D` is one of
    /// [`WIDTHS`].
    pub fn build(spec: TrellisSpec, backend: Backend, stream: Stream) -> Result<Self, Error> {
        if !WIDTHS.contains(&D) {
            return Err(Error::Width { actual: D });
        }
        if !TRELLIS_LEVELS.contains(&spec.m.into()) {
            return Err(M.error(0));
        }
        let book = trellis(spec.states.into(), spec.m.into()).ok_or(STATES.error(0))?;
        if !(1..=3).contains(&spec.rounds) {
            return Err(ROUNDS.error(0));
        }
        let rotation = Rotation::wht(spec.rounds, spec.seed, stream)?;
        let unit = (1.0 / (f64::from(book.kappa()) * libm::sqrt(D as f64))) as f32;
        Ok(Self { spec, backend: backend.kernels(), rotation, book, unit })
    }

    /// What the norm field of a block says.
    fn stored_norm(&self, norm: f32, fit: Fit) -> f32 {
        let unit = self.unit * self.unit;
        self.spec.gain.stored(norm, fit.correlation * unit, fit.energy * unit)
    }

    /// What y = z·scale needs to have `kappa` integer steps to a standard deviation.
    fn scale(&self, norm: f32) -> f32 {
        if norm < SMALLEST_NORM { 0.0 } else { self.book.kappa() / norm }
    }

    /// Encodes up to [`BATCH`] vectors, whose blocks cannot overflow.
    fn encode_batch(&self, xs: &[[f32; D]], blocks: &mut [u8]) -> Result<(), Error> {
        let count = xs.len();
        let mut z = [[0.0; D]; BATCH];
        let (mut norms, mut scales, mut fits) = ([0.0; BATCH], [0.0; BATCH], [Fit::default(); BATCH]);
        for (v, x) in xs.iter().enumerate() {
            norms[v] = norm(self.backend, x)?;
            scales[v] = self.scale(norms[v]);
            z[v] = *x;
            self.rotation.forward_unscaled(self.backend, &mut z[v]);
        }
        let (z, fits) = (z[..count].as_flattened(), &mut fits[..count]);
        self.backend.viterbi_encode(self.book.windows(), D, z, &scales[..count], blocks, fits);
        for (v, block) in blocks.chunks_exact_mut(self.block_bytes()).enumerate() {
            let stored = to_f16(self.stored_norm(norms[v], fits[v]))?;
            finish_block(norms[v], stored, block);
        }
        Ok(())
    }
}

/// Writes the norm of a block whose planes are written; zero where nothing is left.
fn finish_block(norm: f32, stored: half::f16, block: &mut [u8]) {
    if norm < SMALLEST_NORM || stored.to_bits() == 0 {
        block.fill(0);
    } else {
        block[..2].copy_from_slice(&stored.to_le_bytes());
    }
}

/// Vectors below this norm are encodable with any gain: an f16 holds 65504, and no gain
/// comes near 64 (a code of unit vectors is never as short as 1/64).
const SURE_NORM: f32 = 1024.0;

impl<const D: usize> Codec<D> for Trellis<D> {
    fn spec(&self) -> CodecSpec {
        CodecSpec::Trellis(self.spec)
    }

    fn block_bytes(&self) -> usize {
        self.spec.block_bytes(D)
    }

    fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        let bytes = self.block_bytes();
        Error::expect_length("bytes of a block", bytes, block.len())?;
        let norm = norm(self.backend, x)?;
        let mut z = *x;
        self.rotation.forward_unscaled(self.backend, &mut z);
        let mut scratch = [0; MAX_TRELLIS_BYTES];
        let mut fit = [Fit::default()];
        let scale = [self.scale(norm)];
        self.backend.viterbi_encode(self.book.windows(), D, &z, &scale, &mut scratch[..bytes], &mut fit);
        let stored = to_f16(self.stored_norm(norm, fit[0]))?;
        finish_block(norm, stored, &mut scratch[..bytes]);
        block.copy_from_slice(&scratch[..bytes]);
        Ok(())
    }

    fn encode_page(&self, xs: &[[f32; D]], blocks: &mut [u8]) -> Result<usize, Error> {
        let bytes = self.block_bytes();
        Error::expect_length("bytes of blocks", xs.len() * bytes, blocks.len())?;
        // All or none: a first pass proves that nothing can fail, by the norms alone if they are small.
        for (row, x) in xs.iter().enumerate() {
            if !norm(self.backend, x).is_ok_and(|norm| norm < SURE_NORM) {
                self.encode(x, &mut [0; MAX_TRELLIS_BYTES][..bytes])
                    .map_err(|error| at_row(error, row, D))?;
            }
        }
        let batches = xs.chunks(BATCH).zip(blocks.chunks_mut(BATCH * bytes));
        batches.into_iter().try_for_each(|(xs, blocks)| self.encode_batch(xs, blocks))?;
        Ok(xs.len() * bytes)
    }

    fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        check_scales(block, block.len(), 1)?;
        let norm = read_f16(block).to_f32();
        self.backend.decode_windows(self.book.windows(), block, norm * self.unit, x);
        self.rotation.inverse(self.backend, x);
        Ok(())
    }

    fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error> {
        check_values(q, MAX_VALUE)?;
        let mut rotated = *q;
        self.rotation.forward(self.backend, &mut rotated);
        Ok(Query::int(rotated, QUERY_LIMIT, self.backend))
    }

    fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let count = count_blocks(blocks, self.block_bytes())?;
        Error::expect_length("scores", queries.len() * count, scores.len())?;
        check_scales(blocks, self.block_bytes(), 1)?;
        Query::in_int_batches(queries, QUERY_LIMIT, scores, |queries, scores| {
            self.backend.score_windows(self.book.windows(), D, blocks, self.unit, queries, scores);
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc.len())?;
        check_scales(blocks, self.block_bytes(), 1)?;
        let (book, acc) = (self.book.windows(), acc.as_flattened_mut());
        self.backend.accumulate_windows(book, D, blocks, self.unit, weights, acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32; D]) {
        self.rotation.inverse(self.backend, acc);
    }
}
