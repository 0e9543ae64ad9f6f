//! The codec `turboquant`, MSE form: norm, random rotation, one Lloyd-Max scalar quantiser for
//! every coordinate.
//!
//! The method is TurboQuant (Zandieh, Daliri, Hadian, Mirrokni), Algorithm 1. Deviations:
//!
//! * The rotation is a seeded Walsh-Hadamard transform by default. `rotation=haar` is the published
//!   dense one.
//! * The norm is f16, and by default carries the least-squares gain.
//! * Codebooks of 3, 5, 6, 10 and 12 levels are offered as well as powers of two.
//! * Centroids are integers (±127 up to 16 levels, ±2047 above), so that scores and outputs are
//!   exact integer sums.
//!
//! ```text
//! block   f16 norm │ raw plane of codes │ digit plane (if the levels are no power of two)
//! ```

use super::planes::{CentreCode, Pages, Rotated, rotated_blocks};
use super::query::{Body, QueryFormat};
use super::scratch::{bytes_of, with_scratch, words_for};
use super::sketched::Coarse;
use super::{Codec, SMALLEST_NORM, at_row, check_block, encode_blocks_by, norm, to_f16};
use crate::backend::Kernels;
use crate::codebook::{Codebook, WIDTHS, lloyd_max};
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::random::Purpose;
use crate::rotation::Rotation;
use crate::spec::{Key, Sample, Spec, Value, builders, one_of, parse_int};
use crate::{Backend, Error};
use half::f16;
use octaplex_arch::{Float, Packing, Rows};

pub use crate::rotation::RotationKind;

/// The number that a block stores as its norm. All take the same two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gain {
    /// ‖x‖·<u,q>/<q,q>, which gives the least distortion.
    #[default]
    Mse,
    /// ‖x‖, as published. Scores are too small by about the distortion.
    Norm,
    /// ‖x‖/<u,q>, which makes E\[q·k̂] = q·k at the distortion d/(1-d). If <u,q> < 1/8 it falls
    /// back to `Norm`.
    Unbiased,
}

impl Gain {
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("mse", Self::Mse), ("norm", Self::Norm), ("unbiased", Self::Unbiased)];

    /// Returns the norm to store, from the norm ‖x‖, the correlation <u,q> and the energy <q,q>.
    /// Here u is the unit vector, and q its code.
    pub(crate) fn stored(self, norm: f32, correlation: f32, energy: f32) -> f32 {
        match self {
            Self::Mse if energy > 0.0 => norm * (correlation / energy),
            Self::Unbiased if correlation >= 0.125 => norm / correlation,
            _ => norm,
        }
    }
}

impl RotationKind {
    pub(crate) const NAMES: [(&'static str, Self); 2] = [("wht", Self::Wht), ("haar", Self::Haar)];
}

/// Parameters of [`TurboQuant`]:
/// `turboquant:bits=4,levels=…,gain=mse,rounds=1,rotation=wht,seed=0`.
///
/// A block of D values has an f16 norm and ⌈D·bits/8⌉ bytes of codes. Levels that are no power of
/// two take slightly more than log2(levels) bits. That is 1.125 to 8.125 bits a value at D = 128.
///
/// ```
/// use octaplex::codecs::TurboQuantSpec;
/// use octaplex::CodecSpec;
///
/// let spec = TurboQuantSpec::new(3).seed(7);
/// assert_eq!(CodecSpec::from(spec).to_string(), "turboquant:bits=3,seed=7");
/// assert_eq!(spec.block_bytes(128), 2 + 128 * 3 / 8);
/// assert_eq!(TurboQuantSpec::new(4).levels(12).block_bytes(128), 60); // 3.75 bits a value
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TurboQuantSpec {
    /// Centroids of the codebook: 2, 4, 8 … 256, or 3, 5, 6, 10, 12.
    pub levels: u16,
    /// The kind of norm to store.
    pub gain: Gain,
    /// Rounds of signs and Hadamard transform, 1 to 3.
    pub rounds: u8,
    /// The family of rotations.
    pub rotation: RotationKind,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for TurboQuantSpec {
    fn default() -> Self {
        Self::new(4)
    }
}

impl TurboQuantSpec {
    /// Creates parameters with `bits` bits a value, 1 to 8. Others are defaults.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        let levels = if bits < 16 { 1 << bits } else { 0 };
        Self { levels, gain: Gain::Mse, rounds: 1, rotation: RotationKind::Wht, seed: 0 }
    }

    builders! {
        levels: u16;
        gain: Gain;
        rounds: u8;
        rotation: RotationKind;
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values. 0 for an impossible number of levels.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.packing() {
            Some(packing) => 2 + packing.bytes(dim),
            None => 0,
        }
    }

    /// Returns how codes are packed, or `None` for levels without a codebook.
    const fn packing(&self) -> Option<Packing> {
        match self.levels {
            2 | 3 | 4 | 5 | 6 | 8 | 10 | 12 | 16 | 32 | 64 | 128 | 256 => {
                Packing::for_levels(self.levels as usize)
            }
            _ => None,
        }
    }
}

const BITS: Key = Key::new("bits", "1..=8");
const LEVELS: Key = Key::new("levels", "3, 5, 6, 10, 12").excludes(&["bits"]);
pub(crate) const ROUNDS: Key = Key::new("rounds", "1..=3");

impl Spec for TurboQuantSpec {
    const NAME: &'static str = "turboquant";
    const SAMPLES: &'static [Sample] = &[
        ("turboquant", 128),
        ("turboquant:bits=1", 112),
        ("turboquant:bits=2", 80),
        ("turboquant:bits=3", 192),
        ("turboquant:bits=5", 64),
        ("turboquant:bits=6", 80),
        ("turboquant:bits=7", 160),
        ("turboquant:bits=8", 576),
        ("turboquant:levels=3", 64),
        ("turboquant:levels=5", 80),
        ("turboquant:levels=6", 96),
        ("turboquant:levels=10", 32),
        ("turboquant:levels=12", 112),
        ("turboquant:bits=3,gain=norm", 64),
        ("turboquant:bits=2,gain=unbiased", 256),
        ("turboquant:levels=6,rounds=3,seed=18446744073709551615", 96),
    ];
    const SUMMARY: &'static str = "random rotation and a Lloyd-Max scalar quantiser";
    const KEYS: &'static [Key] = &[
        BITS,
        LEVELS,
        Key::new("gain", "mse, norm, unbiased"),
        ROUNDS,
        Key::new("rotation", "wht, haar"),
        Key::new("seed", "0..2^64"),
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.levels = 1 << parse_int(value, 1..=8)?,
            1 => {
                self.levels = [3, 5, 6, 10, 12]
                    .into_iter()
                    .find(|&levels| parse_int(value, 0..=12) == Some(u64::from(levels)))?
            }
            2 => self.gain = one_of(value, &Gain::NAMES)?,
            3 => self.rounds = parse_int(value, 1..=3)? as u8,
            4 => self.rotation = one_of(value, &RotationKind::NAMES)?,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        let whole = self.levels.is_power_of_two();
        match key {
            0 if whole => Value::Int(self.levels.trailing_zeros().into()),
            1 if !whole => Value::Int(self.levels.into()),
            0 | 1 => Value::Absent,
            2 => Value::word(self.gain, &Gain::NAMES),
            3 => Value::Int(self.rounds.into()),
            4 => Value::word(self.rotation, &RotationKind::NAMES),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        let Some(packing) = self.packing() else { return };
        line(2, "f16 norm with its gain");
        crate::spec::describe_planes(packing, dim, line);
    }
}

/// TurboQuant for vectors of `D` values. [`TurboQuantSpec`] has the parameters. The state is 2.3
/// KiB of signs and 1 KiB of thresholds, and 8·D² bytes more with `rotation=haar`.
///
/// Encoding and decoding take O(D log D), or O(D²) with `haar`. Scoring takes O(D) in integers. The
/// method is TurboQuant's MSE form (Zandieh, Daliri, Hadian, Mirrokni, Algorithm 1) with a seeded
/// Walsh-Hadamard rotation, an f16 norm that carries the least-squares gain, and integer centroids.
/// `docs/formats.md` lists every deviation.
///
/// ```
/// use octaplex::codecs::TurboQuant;
/// use octaplex::Error;
///
/// let codec = TurboQuant::<64>::new(3)?;
/// let (key, query) = ([0.5; 64], [0.25; 64]);
/// let mut block = [0; 26];
/// codec.encode(&key, &mut block)?;
///
/// let mut score = [0.0];
/// codec.score(&[codec.prepare_query(&query)?], &block, &mut score)?;
/// assert!((score[0] - 8.0).abs() < 0.5); // 64 · 0.5 · 0.25
/// # Ok::<(), Error>(())
/// ```
pub type TurboQuant<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: TurboQuantSpec,
    backend: Kernels,
    rotation: Rotation,
    centre: Codebook,
    codebook: Codebook,
    packing: Packing,
    thresholds: [f32; 255],
}

impl<const D: usize> TurboQuant<D> {
    /// Creates a codec with `bits` bits a value, other parameters by default, on the fastest
    /// backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 1 to 8; [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn new(bits: u8) -> Result<Self, Error> {
        Self::build(TurboQuantSpec::new(bits), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for levels or rounds out of range; [`Error::Width`] unless `dim` is one of
    /// [`WIDTHS`]; [`Error::Unsupported`] for a dense rotation of several rounds, or without
    /// `alloc`.
    pub(crate) fn build(
        spec: TurboQuantSpec,
        dim: usize,
        backend: Backend,
        head: HeadId,
    ) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        let levels = usize::from(spec.levels);
        let (Some(codebook), Some(packing)) = (lloyd_max(dim, levels), spec.packing()) else {
            return Err(BITS.error(0));
        };
        if !(1..=3).contains(&spec.rounds) {
            return Err(ROUNDS.error(0));
        }
        let rotation = match spec.rotation {
            RotationKind::Wht => Rotation::wht(dim, spec.rounds, spec.seed, Purpose::RotationSigns, head)?,
            RotationKind::Haar if spec.rounds != 1 => {
                return Err(Error::Unsupported {
                    why: "rotation=haar is one dense rotation; leave rounds out",
                });
            }
            RotationKind::Haar => Rotation::haar(dim, spec.seed, head)?,
        };
        let mut thresholds = [0.0; 255];
        codebook.thresholds(&mut thresholds);
        let centre = CentreCode::codebook(dim)?;
        Ok(Self { spec, backend: backend.kernels(), rotation, centre, codebook, packing, thresholds })
    }

    /// Returns the words of scratch memory that encoding a row takes.
    fn words(&self) -> usize {
        2 * self.rotation.dim() + words_for(self.rotation.dim())
    }

    /// Encodes a row into planes, and returns the norm to store. `memory` may hold anything.
    ///
    /// If requested, it writes the residual; see [`Coarse::encode_with_residual`].
    fn encode_row(
        &self,
        memory: &mut [f32],
        x: &[f32],
        planes: &mut [u8],
        residual: Option<&mut [f32]>,
    ) -> Result<f16, Error> {
        let (dim, backend) = (self.rotation.dim(), self.backend);
        let norm = norm(backend, x)?;
        if norm < SMALLEST_NORM {
            planes.fill(0);
            return Ok(f16::ZERO);
        }
        let (z, memory) = memory.split_at_mut(dim);
        let (centroids, codes) = memory.split_at_mut(dim);
        let codes = bytes_of(codes, dim);
        z.copy_from_slice(x);
        self.rotation.forward(backend, z);
        let thresholds = &self.thresholds[..self.codebook.levels() - 1];
        backend.quantize(z, 1.0 / norm, thresholds, codes);
        let stored = to_f16(self.stored_norm(norm, z, codes, centroids))?;
        if stored.to_bits() == 0 {
            planes.fill(0);
        } else {
            backend.pack(self.packing, codes, planes);
        }
        if let Some(residual) = residual {
            let (book, scale) = (self.codebook.centroids(), self.codebook.scale());
            backend.lookup(codes, book, scale, centroids);
            let inverse = 1.0 / norm;
            for ((residual, z), centroid) in residual.iter_mut().zip(z).zip(centroids) {
                *residual = *z * inverse - *centroid;
            }
        }
        Ok(stored)
    }

    /// Encodes a row into a block. Returns `true` for a block of zeros.
    fn encode_block(
        &self,
        memory: &mut [f32],
        x: &[f32],
        block: &mut [u8],
        residual: Option<&mut [f32]>,
    ) -> Result<bool, Error> {
        let (head, planes) = block.split_at_mut(2);
        let norm = self.encode_row(memory, x, planes, residual)?;
        head.copy_from_slice(&norm.to_le_bytes());
        Ok(norm.to_bits() == 0)
    }

    /// Returns the norm to store for the rotated vector `z` with these codes. Their centroids go to
    /// `centroids`.
    fn stored_norm(&self, norm: f32, z: &[f32], codes: &[u8], centroids: &mut [f32]) -> f32 {
        if self.spec.gain == Gain::Norm {
            return norm;
        }
        self.backend.lookup(codes, self.codebook.centroids(), 1.0, centroids);
        let scale = self.codebook.scale();
        let correlation = self.backend.dot(z, centroids) / norm * scale;
        let energy = self.backend.dot(centroids, centroids) * scale * scale;
        self.spec.gain.stored(norm, correlation, energy)
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

    /// Limits the query's integers, so that sums over the widest vector fit an i32.
    fn format(&self) -> QueryFormat {
        let limit = if self.codebook.levels() <= 16 { 127 } else { 1023 };
        QueryFormat::new(self.dim(), Body::Int(limit))
    }

    fn encode_rotated(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error> {
        let (dim, bytes) = (self.dim(), self.block_bytes() - 2);
        with_scratch(self.words(), |memory| {
            let rows = rows.chunks_exact(dim).zip(planes.chunks_exact_mut(bytes));
            for (row, ((x, planes), norm)) in rows.zip(&mut *norms).enumerate() {
                let encoded = self.encode_row(memory, x, planes, None);
                *norm = encoded.map_err(|error| at_row(error, row, dim))?.to_f32();
            }
            Ok(())
        })
    }

    fn decode_rotated(&self, row: &[u8], norm: f32, x: &mut [f32]) -> Result<(), Error> {
        let (centroids, scale) = (self.codebook.centroids(), norm * self.codebook.scale());
        self.backend.lookup_packed(self.packing, row.get(2..).unwrap_or_default(), centroids, scale, x);
        Ok(())
    }

    fn score_rows(
        &self,
        format: &QueryFormat,
        queries: &[&[f32]],
        pages: &[Rows],
        scores: &mut [f32],
    ) -> Result<(), Error> {
        let (centroids, scale) = (self.codebook.centroids(), self.codebook.scale());
        format.in_int_batches(queries, scores, |queries, scores| {
            self.backend.score_codes(self.packing, pages, centroids, scale, queries, scores);
        })
    }

    fn accumulate_rows(&self, weights: &[f32], pages: &[Rows], acc: &mut [f32]) {
        let (centroids, scale) = (self.codebook.centroids(), self.codebook.scale());
        self.backend.accumulate_codes(self.packing, pages, centroids, scale, weights, acc);
    }
}

impl Coarse for Core {
    /// All finite norms are allowed: 0x7c00 is infinity in f16.
    const RESIDUALS_BELOW: u8 = 0x7c;

    fn norm_format(&self) -> Float {
        Float::F16
    }

    /// The residual is relative to the vector's norm.
    fn encode_with_residual(
        &self,
        x: &[f32],
        block: &mut [u8],
        mut residual: Option<&mut [f32]>,
    ) -> Result<bool, Error> {
        let mut zero = false;
        with_scratch(self.words(), |memory| {
            zero = self.encode_block(memory, x, block, residual.as_deref_mut())?;
            Ok(())
        })?;
        Ok(zero)
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.rotation.dim()
    }

    fn block_bytes(&self) -> usize {
        2 + self.packing.bytes(self.dim())
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.encode_with_residual(x, block, None).map(drop)
    }

    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        let mut bytes = 0;
        with_scratch(self.words(), |memory| {
            bytes = encode_blocks_by(self, Some(self.backend), rows, page, |x, block| {
                self.encode_block(memory, x, block, None).map(drop)
            })?;
            Ok(())
        })?;
        Ok(bytes)
    }

    rotated_blocks!();

    fn pages(&self) -> Pages<'_> {
        Pages::Lean(self)
    }
}
