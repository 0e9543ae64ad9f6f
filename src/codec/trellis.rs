//! The codec `trellis`: a random rotation, then a trellis code.
//!
//! Each coordinate has a *path bit*. The last few path bits, those of this coordinate and the ones
//! before it, are its *window*. The window selects a small set of centroids, and a code selects one
//! of the set:
//!
//! ```text
//! coordinate     …   i-3  i-2  i-1   i   …
//! path bits      …    1    0    1    1   …       8 states = 3 bits of history
//!                    └─── window ────┘           4 bits: one of 16 sets of m centroids
//! code           …                   c   …       log2 m bits: one centroid of that set
//! ```
//!
//! So a bit changes the choice of several coordinates, and Viterbi's algorithm searches the best
//! path for the whole vector. At 2 and 3 bits that is about 2 dB from the Shannon bound. The best
//! scalar quantiser is 3.5 to 4.5 dB away.
//!
//! `docs/trellis.md` defines the format to the bit, the encoder and the rates. The code is a
//! feed-forward trellis-coded quantiser: M. W. Marcellin and T. R. Fischer, "Trellis coded
//! quantization of memoryless and Gauss-Markov sources", IEEE Transactions on Communications 38(1),
//! 1990. Its tables are trained for the unit sphere.

use super::planes::{CentreCode, Pages, Rotated, rotated_blocks, take_planes};
use super::query::{Body, QueryFormat};
use super::scratch::{bytes_of, with_scratch, words_for};
use super::turboquant::ROUNDS;
use super::{Codec, SMALLEST_NORM, at_row, check_block, count_rows, norm, surely_encodable, to_f16};
use crate::backend::Kernels;
use crate::codebook::{Codebook, TRELLIS_LEVELS, TRELLIS_STATES, TrellisBook, WIDTHS, trellis};
use crate::codec::turboquant::Gain;
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::random::Purpose;
use crate::rotation::Rotation;
use crate::spec::{Key, Sample, Spec, Value, builders, describe_planes, one_of, parse_int};
use crate::{Backend, Error};
use octaplex_arch::{Fit, MAX_DIM, Packing, Rows, TrellisCodebook};

/// Parameters of [`Trellis`]: `trellis:m=4,states=8,gain=mse,scales=1,rounds=1,seed=0`.
///
/// A value takes 1 + log2 m bits, and a block two bytes more for its norm. `bits=b` is short for m
/// = 2^(b-1).
///
/// ```
/// use octaplex::codecs::TrellisSpec;
/// use octaplex::CodecSpec;
///
/// let spec = TrellisSpec::new(4, 8);
/// assert_eq!(CodecSpec::from(spec), "trellis:bits=3".parse()?);
/// assert_eq!(spec.block_bytes(128), 2 + 128 * 3 / 8);
/// # Ok::<(), octaplex::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TrellisSpec {
    /// Centroids that a coordinate chooses from once its path is known: 1, 2, 3, 4, 6, 8, 12 or 16.
    pub m: u8,
    /// States of the path: 4, 8, 16, 32 or 64. More states give a smaller error, slower encoding
    /// and slower scores (`docs/trellis.md`).
    pub states: u8,
    /// The kind of norm to store.
    pub gain: Gain,
    /// The number of scales that the encoder tries for a vector: 1, 3 or 5. It keeps the one with
    /// the least error.
    ///
    /// Three scales take about 2.5 times as long, five about 4 times (`docs/trellis.md`). Readers
    /// need not know the number.
    pub scales: u8,
    /// Rounds of signs and Hadamard transform, 1 to 3.
    pub rounds: u8,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for TrellisSpec {
    fn default() -> Self {
        Self::new(4, 8)
    }
}

impl TrellisSpec {
    /// Creates parameters with `m` centroids, 1 + log2 `m` bits a value, and `states` states.
    /// Others are defaults.
    #[must_use]
    pub const fn new(m: u8, states: u8) -> Self {
        Self { m, states, gain: Gain::Mse, scales: 1, rounds: 1, seed: 0 }
    }

    /// Creates parameters with `bits` bits a value, 1 to 5. Others are defaults.
    #[must_use]
    pub const fn bits(bits: u8) -> Self {
        Self::new(if bits >= 1 && bits <= 5 { 1 << (bits - 1) } else { 0 }, 8)
    }

    builders! {
        gain: Gain;
        scales: u8;
        rounds: u8;
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values. 0 for an `m` that no codec can have.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        let path = 2 + TrellisCodebook::path_bytes(dim);
        match (self.m, Packing::for_levels(self.m as usize)) {
            (1, _) => path,
            (2 | 3 | 4 | 6 | 8 | 12 | 16, Some(packing)) => path + packing.bytes(dim),
            _ => 0,
        }
    }
}

/// Another name for `m` = 2^(bits-1).
const BITS: Key = Key::new("bits", "1..=5");
const M: Key = Key::new("m", "1, 2, 3, 4, 6, 8, 12, 16").excludes(&["bits"]);
const STATES: Key = Key::new("states", "4, 8, 16, 32, 64");
const SCALES: Key = Key::new("scales", "1, 3, 5");

/// Parses one of the listed numbers, in plain digits.
pub(super) fn listed(text: &str, numbers: &[usize]) -> Option<u8> {
    let number = parse_int(text, 0..=255)? as u8;
    numbers.contains(&usize::from(number)).then_some(number)
}

impl Spec for TrellisSpec {
    const NAME: &'static str = "trellis";
    const SAMPLES: &'static [Sample] = &[
        ("trellis", 64),
        ("trellis:m=1", 32),
        ("trellis:m=2,states=4", 96),
        ("trellis:m=3,states=16,gain=norm", 96),
        ("trellis:states=32", 128),
        ("trellis:m=6,gain=unbiased", 80),
        ("trellis:m=8", 128),
        ("trellis:m=12,rounds=2,seed=7", 64),
        ("trellis:m=16,states=64", 64),
    ];
    const SUMMARY: &'static str = "random rotation and a trellis code";
    const KEYS: &'static [Key] = &[
        BITS,
        M,
        STATES,
        Key::new("gain", "mse, norm, unbiased"),
        SCALES,
        ROUNDS,
        Key::new("seed", "0..2^64"),
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.m = 1 << (parse_int(value, 1..=5)? - 1),
            1 => self.m = listed(value, &TRELLIS_LEVELS)?,
            2 => self.states = listed(value, &TRELLIS_STATES)?,
            3 => self.gain = one_of(value, &Gain::NAMES)?,
            4 => self.scales = listed(value, &[1, 3, 5])?,
            5 => self.rounds = parse_int(value, 1..=3)? as u8,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Absent, // always printed as `m`
            1 => Value::Int(self.m.into()),
            2 => Value::Int(self.states.into()),
            3 => Value::word(self.gain, &Gain::NAMES),
            4 => Value::Int(self.scales.into()),
            5 => Value::Int(self.rounds.into()),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if self.block_bytes(dim) == 0 {
            return;
        }
        line(2, "f16 norm with its gain");
        line(TrellisCodebook::path_bytes(dim), "path plane, 1 bit a value");
        if let Some(packing) = Packing::for_levels(self.m.into()) {
            describe_planes(packing, dim, line);
        }
    }
}

/// The trellis codec for vectors of `D` values. [`TrellisSpec`] has the parameters. The state is
/// 2.3 KiB of signs and some words; the tables are static.
///
/// Encoding takes O(D log D + D·states), decoding O(D log D), scoring O(D) in integers.
///
/// [`encode`](Typed::encode) takes at most 8·D + 512·m bytes of stack on top of its input and output.
/// With m = 4 and without SIMD that is 5.6 KiB in all. [`encode_page`](Typed::encode_page) encodes
/// 16 vectors at a time. It takes 64·D bytes of stack, and the same for the search's decisions
/// (128·D with 64 states).
///
/// ```
/// use octaplex::codecs::Trellis;
/// use octaplex::Error;
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
pub type Trellis<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: TrellisSpec,
    backend: Kernels,
    rotation: Rotation,
    centre: Codebook,
    book: TrellisBook,
    /// The value of one integer step in a coordinate of a rotated unit vector, 1/(κ√dim).
    unit: f32,
}

/// The largest magnitude of a query's integers.
const QUERY_LIMIT: i16 = 127;

/// Vectors that are encoded at a time.
const BATCH: usize = 16;

/// Factors of a vector's scale, in the order in which they are tried. The first among equals is
/// kept. Factors nearer to 1 (0.04 or 0.06 in place of 0.08) gain less.
const FACTORS: [f32; 5] = [1.0, 0.92, 1.08, 0.84, 1.16];

/// The largest block: 4 bits and the path bit for each value of the widest vectors.
const MAX_TRELLIS_BYTES: usize = 2 + MAX_DIM * 5 / 8;

impl<const D: usize> Trellis<D> {
    /// Creates a codec with 1 + log2 `m` bits a value, other parameters by default, on the fastest
    /// backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `m` is 1, 2, 3, 4, 6, 8, 12 or 16 and `states` is 4, 8, 16, 32 or
    /// 64; [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn new(m: u8, states: u8) -> Result<Self, Error> {
        Self::build(TrellisSpec::new(m, states), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for `m`, states, scales or rounds that are not listed; [`Error::Width`]
    /// unless `dim` is one of [`WIDTHS`].
    pub(crate) fn build(
        spec: TrellisSpec,
        dim: usize,
        backend: Backend,
        head: HeadId,
    ) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        if !TRELLIS_LEVELS.contains(&spec.m.into()) {
            return Err(M.error(0));
        }
        let book = trellis(spec.states.into(), spec.m.into()).ok_or(STATES.error(0))?;
        if !(1..=3).contains(&spec.rounds) {
            return Err(ROUNDS.error(0));
        }
        if ![1, 3, 5].contains(&spec.scales) {
            return Err(SCALES.error(0));
        }
        let rotation = Rotation::wht(dim, spec.rounds, spec.seed, Purpose::RotationSigns, head)?;
        let unit = (1.0 / (f64::from(book.kappa()) * libm::sqrt(dim as f64))) as f32;
        let centre = CentreCode::codebook(dim)?;
        Ok(Self { spec, backend: backend.kernels(), rotation, centre, book, unit })
    }

    /// Returns the value of a block's norm field.
    fn stored_norm(&self, norm: f32, fit: Fit) -> f32 {
        let unit = self.unit * self.unit;
        self.spec.gain.stored(norm, fit.correlation * unit, fit.energy * unit)
    }

    /// Returns the factor that brings a rotated vector to `kappa` integer steps a standard
    /// deviation.
    ///
    /// The rotation leaves out its factor 1/√dim, so a coordinate's deviation is the vector's norm.
    fn scale(&self, norm: f32) -> f32 {
        if norm < SMALLEST_NORM { 0.0 } else { self.book.kappa() / norm }
    }

    /// Encodes up to [`BATCH`] vectors whose blocks cannot overflow. `z` is memory for them.
    fn encode_batch(&self, rows: &[f32], z: &mut [f32], blocks: &mut [u8]) -> Result<(), Error> {
        let dim = self.dim();
        let (mut norms, mut scales, mut fits) = ([0.0; BATCH], [0.0; BATCH], [Fit::default(); BATCH]);
        let (count, z) = (rows.len() / dim, &mut z[..rows.len()]);
        // Rotate all vectors, and search their paths at the usual scale.
        z.copy_from_slice(rows);
        for (v, z) in z.chunks_exact_mut(dim).enumerate() {
            norms[v] = norm(self.backend, z).map_err(|error| at_row(error, v, dim))?;
            scales[v] = self.scale(norms[v]);
            self.rotation.forward_unscaled(self.backend, z);
        }
        let fits = &mut fits[..count];
        self.backend.viterbi_encode(self.book.codebook(), dim, z, &scales[..count], blocks, fits);
        let bytes = blocks.len();
        // Search again at the other scales, and keep for each vector the path that explains most of it. A fit is
        // measured on the scaled vector, so its correlation is divided by the factor.
        with_scratch(if self.spec.scales > 1 { words_for(bytes) } else { 0 }, |memory| {
            for factor in &FACTORS[1..self.spec.scales.into()] {
                let (others, mut other_fits) = (bytes_of(memory, bytes), [Fit::default(); BATCH]);
                let (scaled, other_fits) = (scales.map(|scale| scale * factor), &mut other_fits[..count]);
                let book = self.book.codebook();
                self.backend.viterbi_encode(book, dim, z, &scaled[..count], others, other_fits);
                let blocks = blocks.chunks_exact_mut(bytes / count).zip(others.chunks_exact(bytes / count));
                for ((block, other), (fit, found)) in blocks.zip(fits.iter_mut().zip(other_fits)) {
                    found.correlation /= factor;
                    if explained(found) > explained(fit) {
                        *fit = *found;
                        block.copy_from_slice(other);
                    }
                }
            }
            Ok(())
        })?;
        for (v, block) in blocks.chunks_exact_mut(self.block_bytes()).enumerate() {
            let stored = to_f16(self.stored_norm(norms[v], fits[v]))?;
            finish_block(norms[v], stored, block);
        }
        Ok(())
    }
}

/// Returns how much of a vector's square a code explains at its best length: <y, q>²/<q, q>.
fn explained(fit: &Fit) -> f32 {
    if fit.energy > 0.0 { fit.correlation * fit.correlation / fit.energy } else { 0.0 }
}

/// Writes the norm of a block whose planes are written. If the norm is zero, so is the whole block.
fn finish_block(norm: f32, stored: half::f16, block: &mut [u8]) {
    if norm < SMALLEST_NORM || stored.to_bits() == 0 {
        block.fill(0);
    } else {
        block[..2].copy_from_slice(&stored.to_le_bytes());
    }
}

impl Rotated for Core {
    fn backend(&self) -> Kernels {
        self.backend
    }

    fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    fn centre_codebook(&self) -> Codebook {
        self.centre
    }

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim(), Body::Int(QUERY_LIMIT))
    }

    /// Encodes batches of blocks, as kernels write them, and then takes their planes.
    fn encode_rotated(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error> {
        let (dim, bytes) = (self.dim(), self.block_bytes());
        let most = norms.len().min(BATCH);
        with_scratch(most * dim, |z| {
            with_scratch(words_for(most * bytes), |blocks| {
                let batches = rows.chunks(BATCH * dim).zip(planes.chunks_mut(BATCH * (bytes - 2)));
                for (batch, ((rows, planes), norms)) in batches.zip(norms.chunks_mut(BATCH)).enumerate() {
                    let blocks = bytes_of(blocks, norms.len() * bytes);
                    let encoded = self.encode_batch(rows, z, blocks);
                    encoded.map_err(|error| at_row(error, batch, BATCH * dim))?;
                    take_planes(blocks, bytes, planes, norms);
                }
                Ok(())
            })
        })
    }

    fn decode_rotated(&self, row: &[u8], norm: f32, x: &mut [f32]) -> Result<(), Error> {
        self.backend.decode_trellis(self.book.codebook(), row, norm * self.unit, x);
        Ok(())
    }

    fn score_rows(
        &self,
        format: &QueryFormat,
        queries: &[&[f32]],
        pages: &[Rows],
        scores: &mut [f32],
    ) -> Result<(), Error> {
        format.in_int_batches(queries, scores, |queries, scores| {
            self.backend.score_trellis(self.book.codebook(), pages, self.unit, queries, scores);
        })
    }

    fn accumulate_rows(&self, weights: &[f32], pages: &[Rows], acc: &mut [f32]) {
        self.backend.accumulate_trellis(self.book.codebook(), pages, self.unit, weights, acc);
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
        let (dim, bytes) = (self.dim(), self.block_bytes());
        check_block(dim, x, bytes, block)?;
        let mut scratch = [0; MAX_TRELLIS_BYTES];
        let scratch = &mut scratch[..bytes];
        with_scratch(dim, |z| self.encode_batch(x, z, scratch))?;
        block.copy_from_slice(scratch);
        Ok(())
    }

    fn encode_page(&self, rows: &[f32], blocks: &mut [u8]) -> Result<usize, Error> {
        let (dim, bytes) = (self.dim(), self.block_bytes());
        let count = count_rows(rows, dim)?;
        Error::expect_length("bytes of blocks", count * bytes, blocks.len())?;
        // All rows or none. A first pass proves that nothing can fail; small norms alone are proof.
        for (row, x) in rows.chunks_exact(dim).enumerate() {
            if !surely_encodable(Some(self.backend), x) {
                self.encode(x, &mut [0; MAX_TRELLIS_BYTES][..bytes])
                    .map_err(|error| at_row(error, row, dim))?;
            }
        }
        with_scratch(count.min(BATCH) * dim, |z| {
            let mut batches = rows.chunks(BATCH * dim).zip(blocks.chunks_mut(BATCH * bytes));
            batches.try_for_each(|(rows, blocks)| self.encode_batch(rows, z, blocks))
        })?;
        Ok(count * bytes)
    }

    rotated_blocks!();

    fn pages(&self) -> Pages<'_> {
        Pages::Lean(self)
    }
}
