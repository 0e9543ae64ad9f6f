//! TurboQuant, MSE form: norm, random rotation, one Lloyd-Max scalar quantiser for every coordinate.
//!
//! TurboQuant (Zandieh, Daliri, Hadian, Mirrokni), Algorithm 1. Deviations: the rotation is a seeded Walsh-Hadamard
//! transform by default (`rotation=haar` is the published dense one); the norm is f16, and by default carries the
//! least-squares gain; codebooks of 3, 5, 6, 10 and 12 levels stand beside the powers of two; centroids are integers
//! (±127 up to 16 levels, ±2047 above), so that scores and outputs are exact integer sums.
//!
//! A block: f16 norm, raw plane of codes, digit plane (levels that are no power of two).

use super::{
    Codec, MAX_VALUE, Query, SMALLEST_NORM, check_accumulate, check_scales, check_values, count_blocks, norm,
    read_f16, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::{Codebook, WIDTHS, lloyd_max};
use crate::rotation::Rotation;
use crate::spec::{Key, Spec, Value, one_of, parse_int};
use crate::{Backend, CodecSpec, Error, Stream};
use octaplex_arch::{Packing, Rows};

pub use crate::rotation::RotationKind;

/// Which number a block stores as its norm; none costs a bit more than another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gain {
    /// ‖x‖·<u,q>/<q,q>: the least distortion.
    #[default]
    Mse,
    /// ‖x‖, as published: scores are too small by about the distortion.
    Norm,
    /// ‖x‖/<u,q>: E\[q·k̂] = q·k, at the distortion d/(1-d). With <u,q> < 1/8 it falls back to `Norm`.
    Unbiased,
}

impl Gain {
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("mse", Self::Mse), ("norm", Self::Norm), ("unbiased", Self::Unbiased)];

    /// What is stored for norm ‖x‖, correlation <u,q> and energy <q,q> of the unit-norm vector and its code.
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

/// `turboquant:bits=4,levels=…,gain=mse,rounds=1,rotation=wht,seed=0`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TurboQuantSpec {
    /// Centroids of the codebook: 2, 4, 8 … 256, or 3, 5, 6, 10, 12.
    pub levels: u16,
    /// What the stored norm is.
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
        Self { levels: 16, gain: Gain::Mse, rounds: 1, rotation: RotationKind::Wht, seed: 0 }
    }
}

impl TurboQuantSpec {
    /// Bytes of a block of `dim` values; 0 for an impossible number of levels.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.packing() {
            Some(packing) => 2 + packing.bytes(dim),
            None => 0,
        }
    }

    /// How codes are packed; `None` for levels without a codebook.
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
const LEVELS: Key = Key::new("levels", "3, 5, 6, 10, 12").excludes(1);
pub(crate) const ROUNDS: Key = Key::new("rounds", "1..=3");

impl Spec for TurboQuantSpec {
    const NAME: &'static str = "turboquant";
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

/// The codec; see the [module's words](TurboQuantSpec) for its keys. State: 4·D bytes of signs and 1 KiB of
/// thresholds (and 8·D² bytes with `rotation=haar`).
#[derive(Clone, Debug)]
pub struct TurboQuant<const D: usize> {
    spec: TurboQuantSpec,
    backend: Kernels,
    rotation: Rotation<D>,
    codebook: Codebook,
    packing: Packing,
    thresholds: [f32; 255],
}

/// A vector on its way into a block.
struct Quantized<const D: usize> {
    norm: f32,
    /// Rotated, not normalised.
    z: [f32; D],
    codes: [u8; D],
}

impl<const D: usize> TurboQuant<D> {
    /// `bits` bits a value, everything else by default, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 1 to 8, [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn new(bits: u8) -> Result<Self, Error> {
        let levels = 1u16.checked_shl(bits.into()).unwrap_or(0);
        Self::build(TurboQuantSpec { levels, ..Default::default() }, Backend::detect(), Stream::default())
    }

    /// The codec of a spec, for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for levels or rounds outside their range, [`Error::Width`] unless `D` is one of [`WIDTHS`],
    /// [`Error::Unsupported`] for a dense rotation of several rounds, or without `alloc`.
    pub fn build(spec: TurboQuantSpec, backend: Backend, stream: Stream) -> Result<Self, Error> {
        if !WIDTHS.contains(&D) {
            return Err(Error::Width { actual: D });
        }
        let levels = usize::from(spec.levels);
        let (Some(codebook), Some(packing)) = (lloyd_max(D, levels), spec.packing()) else {
            return Err(BITS.error(0));
        };
        if !(1..=3).contains(&spec.rounds) {
            return Err(ROUNDS.error(0));
        }
        let rotation = match spec.rotation {
            RotationKind::Wht => Rotation::wht(spec.rounds, spec.seed, stream)?,
            RotationKind::Haar if spec.rounds != 1 => {
                return Err(Error::Unsupported {
                    why: "rotation=haar is one dense rotation; leave rounds out",
                });
            }
            RotationKind::Haar => Rotation::haar(spec.seed, stream)?,
        };
        let mut thresholds = [0.0; 255];
        codebook.thresholds(&mut thresholds);
        Ok(Self { spec, backend: backend.kernels(), rotation, codebook, packing, thresholds })
    }

    pub(super) fn backend(&self) -> Kernels {
        self.backend
    }

    fn rows<'a>(&self, blocks: &'a [u8], stride: usize) -> Rows<'a> {
        Rows { bytes: blocks, stride, dim: D, packing: self.packing }
    }

    /// Encodes, and gives the unit vector's residual in the rotated basis; `true` for a block of zeros, whose
    /// residual is left alone.
    pub(super) fn encode_with_residual(
        &self,
        x: &[f32; D],
        block: &mut [u8],
        residual: &mut [f32; D],
    ) -> Result<bool, Error> {
        let Some(Quantized { norm, z, codes }) = self.quantize(x)? else {
            block.fill(0);
            return Ok(true);
        };
        let mut centroids = [0.0; D];
        self.backend.lookup(&codes, self.codebook.centroids(), self.codebook.scale(), &mut centroids);
        let inverse = 1.0 / norm;
        for ((residual, z), centroid) in residual.iter_mut().zip(z).zip(centroids) {
            *residual = z * inverse - centroid;
        }
        self.write(self.stored_norm(norm, &z, &codes), &codes, block)
    }

    /// Norm, rotated vector and codes; `None` for a vector so small that its block is zeros.
    fn quantize(&self, x: &[f32; D]) -> Result<Option<Quantized<D>>, Error> {
        let norm = norm(self.backend, x)?;
        if norm < SMALLEST_NORM {
            return Ok(None);
        }
        let mut z = *x;
        self.rotation.forward(self.backend, &mut z);
        let mut codes = [0; D];
        let thresholds = &self.thresholds[..self.codebook.levels() - 1];
        self.backend.quantize(&z, 1.0 / norm, thresholds, &mut codes);
        Ok(Some(Quantized { norm, z, codes }))
    }

    /// Writes a block; `true` if its norm rounds to zero, and all of it is zeros.
    fn write(&self, norm: f32, codes: &[u8; D], block: &mut [u8]) -> Result<bool, Error> {
        let stored = to_f16(norm)?;
        let (head, planes) = block.split_at_mut(2);
        head.copy_from_slice(&stored.to_le_bytes());
        let zero = stored.to_bits() == 0;
        if zero {
            planes.fill(0);
        } else {
            self.backend.pack(self.packing, codes, planes);
        }
        Ok(zero)
    }

    /// Decodes a block with a finite norm, in the rotated basis.
    pub(super) fn decode_rotated(&self, block: &[u8], x: &mut [f32; D]) {
        let mut codes = [0; D];
        self.backend.unpack(self.packing, &block[2..], &mut codes);
        let norm = read_f16(block).to_f32();
        self.backend.lookup(&codes, self.codebook.centroids(), norm * self.codebook.scale(), x);
    }

    /// Scores rows that begin with a block.
    pub(super) fn score_rows(
        &self,
        queries: &[Query<D>],
        rows: &[u8],
        stride: usize,
        scores: &mut [f32],
    ) -> Result<(), Error> {
        let (centroids, scale) = (self.codebook.centroids(), self.codebook.scale());
        Query::in_int_batches(queries, self.query_limit(), scores, |queries, scores| {
            self.backend.score_codes(&self.rows(rows, stride), centroids, scale, queries, scores);
        })
    }

    /// Accumulates rows that begin with a block.
    pub(super) fn accumulate_rows(&self, weights: &[f32], rows: &[u8], stride: usize, acc: &mut [[f32; D]]) {
        let (rows, scale) = (self.rows(rows, stride), self.codebook.scale());
        let centroids = self.codebook.centroids();
        self.backend.accumulate_codes(&rows, centroids, scale, weights, acc.as_flattened_mut());
    }

    /// The largest integer of a query: with it, sums over the widest vector fit an i32.
    fn query_limit(&self) -> i16 {
        if self.codebook.levels() <= 16 { 127 } else { 1023 }
    }

    /// What the norm field of a block says for rotated `z` with these codes.
    fn stored_norm(&self, norm: f32, z: &[f32; D], codes: &[u8; D]) -> f32 {
        if self.spec.gain == Gain::Norm {
            return norm;
        }
        let mut centroids = [0.0; D];
        self.backend.lookup(codes, self.codebook.centroids(), 1.0, &mut centroids);
        let scale = self.codebook.scale();
        let correlation = self.backend.dot(z, &centroids) / norm * scale;
        let energy = self.backend.dot(&centroids, &centroids) * scale * scale;
        self.spec.gain.stored(norm, correlation, energy)
    }
}

impl<const D: usize> Codec<D> for TurboQuant<D> {
    fn spec(&self) -> CodecSpec {
        CodecSpec::TurboQuant(self.spec)
    }

    fn block_bytes(&self) -> usize {
        2 + self.packing.bytes(D)
    }

    fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        match self.quantize(x)? {
            Some(Quantized { norm, z, codes }) => {
                self.write(self.stored_norm(norm, &z, &codes), &codes, block)?
            }
            None => {
                block.fill(0);
                true
            }
        };
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        check_scales(block, block.len(), 1)?;
        self.decode_rotated(block, x);
        self.rotation.inverse(self.backend, x);
        Ok(())
    }

    fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error> {
        check_values(q, MAX_VALUE)?;
        let mut rotated = *q;
        self.rotation.forward(self.backend, &mut rotated);
        Ok(Query::int(rotated, self.query_limit(), self.backend))
    }

    fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let count = count_blocks(blocks, self.block_bytes())?;
        Error::expect_length("scores", queries.len().saturating_mul(count), scores.len())?;
        check_scales(blocks, self.block_bytes(), 1)?;
        self.score_rows(queries, blocks, self.block_bytes(), scores)
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc.len())?;
        check_scales(blocks, self.block_bytes(), 1)?;
        self.accumulate_rows(weights, blocks, self.block_bytes(), acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32; D]) {
        self.rotation.inverse(self.backend, acc);
    }
}
