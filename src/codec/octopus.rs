//! OCTOPUS: norm, random rotation, triplets of coordinates as an octahedral direction and a radius.
//!
//! OCTOPUS (Boss, Voleti, Donné, Vainer), Algorithm 1. Deviations: the norm is f16 by default and carries the
//! least-squares gain (`norm=f32,gain=norm` is the published one); codebooks come from the closed-form marginals, not
//! from samples; `local2` tries the centroids that bracket a coordinate, four candidates instead of the published nine
//! with the same choices; coordinates left over by D mod 3 are coded on their own (`tail=paper` fills up a triplet);
//! the published split (b+1, b-1) spends 3b+1 bits a triplet, `split=even`, (b+1, b), is better at its own rate.
//!
//! A block: the norm, then one bit stream of ⌈D/3⌉ fields; see [`octaplex_arch::TripletLayout`].

use super::planes::{CentreCode, LEAD, Pages, Rotated, rows_of, take_planes};
use super::query::{Body, QueryFormat};
use super::scratch::{bytes_of, with_scratch, words_for};
use super::sketched::Coarse;
use super::{
    Codec, MAX_VALUE, SMALLEST_NORM, check_accumulate, check_block, check_scales, check_score, norm,
    read_f16, score_checked, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::octahedral::{Directions, directions_of};
use crate::codebook::{Codebook, WIDTHS, lloyd_max, octahedral_coordinates, triplet_radii};
use crate::codec::turboquant::Gain;
use crate::rotation::Rotation;
use crate::spec::{Key, Sample, Spec, Value, builders, one_of, parse_int};
use crate::stream::{Purpose, Stream};
use crate::{Backend, Error};
use octaplex_arch::{Float, Rows, Search, TripletLayout};

/// Which directions the encoder tries for a triplet. All decode alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// The centroids that bracket each coordinate, at most four: chooses as `Local3` does, in half the time.
    #[default]
    Local2,
    /// Each coordinate's nearest centroid and its neighbours, nine: the published encoder.
    Local3,
    /// Each coordinate's nearest centroid, and the triplet's own radius.
    Scalar,
    /// Every direction: 4^bdir candidates.
    Full,
}

impl Rounding {
    const NAMES: [(&'static str, Self); 4] =
        [("local2", Self::Local2), ("local3", Self::Local3), ("scalar", Self::Scalar), ("full", Self::Full)];

    pub(crate) const fn search(self) -> Search {
        match self {
            Self::Local2 => Search::Bracket,
            Self::Local3 => Search::Neighbours,
            Self::Scalar => Search::Nearest,
            Self::Full => Search::All,
        }
    }
}

/// What becomes of the one or two coordinates that are left over where D is no multiple of three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tail {
    /// TurboQuant's codebook for each, ⌈(2·bdir + bnrm)/3⌉ bits.
    #[default]
    Scalar,
    /// A triplet filled up with zeros, as published: five to seven times the distortion for D mod 3 = 1.
    Paper,
}

impl Tail {
    const NAMES: [(&'static str, Self); 2] = [("scalar", Self::Scalar), ("paper", Self::Paper)];
}

/// How a block stores its norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NormFormat {
    /// Two bytes.
    #[default]
    F16,
    /// Four bytes, as published.
    F32,
}

impl NormFormat {
    const NAMES: [(&'static str, Self); 2] = [("f16", Self::F16), ("f32", Self::F32)];

    pub(super) const fn float(self) -> Float {
        match self {
            Self::F16 => Float::F16,
            Self::F32 => Float::F32,
        }
    }

    const fn bytes(self) -> usize {
        self.float().bytes()
    }
}

/// `octopus:bits=3,split=paper,bdir=…,bnrm=…,rounding=local2,tail=scalar,norm=f16,gain=mse,rounds=1,seed=0`
/// A block of D values: the norm, then ⌈D/3⌉ fields of 2·`bdir` + `bnrm` bits in one stream. 0.8125 to 6.875 bits a value at D = 128.
///
/// ```
/// let spec = octaplex::codecs::OctopusSpec::new(3); // 4 bits for each of a direction's coordinates, 2 for its radius
/// assert_eq!(spec.block_bytes(128), 2 + (43usize * 10).div_ceil(8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OctopusSpec {
    /// Bits of each of a direction's two coordinates, 1 to 7; `bits=b` is b+1.
    pub bdir: u8,
    /// Bits of a triplet's radius, 0 to 6; `bits=b` is b-1, with `split=even` b.
    pub bnrm: u8,
    /// Which directions the encoder tries.
    pub rounding: Rounding,
    /// Coordinates left over.
    pub tail: Tail,
    /// How the norm is stored.
    pub norm: NormFormat,
    /// What the stored norm is.
    pub gain: Gain,
    /// Rounds of signs and Hadamard transform, 1 to 3.
    pub rounds: u8,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for OctopusSpec {
    fn default() -> Self {
        Self::new(3)
    }
}

const BDIR: Key = Key::new("bdir", "1..=7").excludes(2);
const BNRM: Key = Key::new("bnrm", "0..=6").excludes_but(2, 1);
const ROUNDS: Key = Key::new("rounds", "1..=3");
const SPLITS: [(&str, u8); 2] = [("paper", 2), ("even", 1)];

impl OctopusSpec {
    /// The published split for `bits` bits, 1 to 5, (bits+1, bits-1); everything else by default.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        Self {
            bdir: bits.saturating_add(1),
            bnrm: bits.saturating_sub(1),
            rounding: Rounding::Local2,
            tail: Tail::Scalar,
            norm: NormFormat::F16,
            gain: Gain::Mse,
            rounds: 1,
            seed: 0,
        }
    }

    /// The same with `bdir` bits for each coordinate of a direction, 1 to 7, and `bnrm` for a radius, 0 to 6.
    #[must_use]
    pub const fn split_bits(self, bdir: u8, bnrm: u8) -> Self {
        Self { bdir, bnrm, ..self }
    }

    builders! {
        rounding: Rounding;
        tail: Tail;
        norm: NormFormat;
        gain: Gain;
        rounds: u8;
        seed: u64;
    }

    pub(super) const fn is_valid(&self) -> bool {
        self.bdir >= 1 && self.bdir <= 7 && self.bnrm <= 6
    }

    /// Bits of a triplet.
    pub(crate) const fn field_bits(&self) -> usize {
        2 * self.bdir as usize + self.bnrm as usize
    }

    /// Bytes of a block of `dim` values; 0 for impossible numbers of bits.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        if !self.is_valid() {
            return 0;
        }
        self.norm.bytes() + (dim.div_ceil(3) * self.field_bits()).div_ceil(8)
    }

    /// Bytes of a block without its norm, where a page may keep norms apart; else 0. Scores are sums of integers up to 5 bits.
    pub(crate) const fn plane_bytes(&self, dim: usize) -> usize {
        match self.norm {
            NormFormat::F16 if self.bdir <= 5 => self.block_bytes(dim).saturating_sub(LEAD),
            _ => 0,
        }
    }

    /// bdir - bnrm, where `bits` and `split` say both.
    fn split(&self) -> Option<u8> {
        let split = self.bdir.checked_sub(self.bnrm).filter(|split| (1..=2).contains(split));
        split.filter(|_| (2..=6).contains(&self.bdir))
    }
}

impl Spec for OctopusSpec {
    const NAME: &'static str = "octopus";
    const SAMPLES: &'static [Sample] = &[
        ("octopus", 128),
        ("octopus:bits=1", 64),
        ("octopus:bits=2", 512),
        ("octopus:bits=4", 96),
        ("octopus:bits=5", 32),
        ("octopus:bits=4,split=even", 112),
        ("octopus:bits=5,split=even", 64),
        ("octopus:bdir=1,bnrm=0", 64),
        ("octopus:bdir=7,bnrm=6", 160),
        ("octopus:bits=2,rounding=full", 64),
        ("octopus:rounding=local3,tail=paper,norm=f32,gain=norm", 128),
        ("octopus:rounding=scalar,gain=unbiased,rounds=2,seed=7", 80),
    ];
    const SUMMARY: &'static str = "random rotation; triplets as an octahedral direction and a radius";
    const KEYS: &'static [Key] = &[
        Key::new("bits", "1..=5"),
        Key::new("split", "paper, even"),
        BDIR,
        BNRM,
        Key::new("rounding", "local2, local3, scalar, full"),
        Key::new("tail", "scalar, paper"),
        Key::new("norm", "f16, f32"),
        Key::new("gain", "mse, norm, unbiased"),
        ROUNDS,
        Key::new("seed", "0..2^64"),
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => {
                let split = self.bdir - self.bnrm; // the parser never mixes these keys with `bdir` and `bnrm`
                self.bdir = parse_int(value, 1..=5)? as u8 + 1;
                self.bnrm = self.bdir - split;
            }
            1 => self.bnrm = self.bdir - one_of(value, &SPLITS)?,
            2 => self.bdir = parse_int(value, 1..=7)? as u8,
            3 => self.bnrm = parse_int(value, 0..=6)? as u8,
            4 => self.rounding = one_of(value, &Rounding::NAMES)?,
            5 => self.tail = one_of(value, &Tail::NAMES)?,
            6 => self.norm = one_of(value, &NormFormat::NAMES)?,
            7 => self.gain = one_of(value, &Gain::NAMES)?,
            8 => self.rounds = parse_int(value, 1..=3)? as u8,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match (key, self.split()) {
            (0, Some(_)) => Value::Int(u64::from(self.bdir) - 1),
            (1, Some(split)) => Value::word(split, &SPLITS),
            (0 | 1, None) | (2 | 3, Some(_)) => Value::Absent,
            (2, None) => Value::Int(self.bdir.into()),
            (3, None) => Value::Int(self.bnrm.into()),
            (4, _) => Value::word(self.rounding, &Rounding::NAMES),
            (5, _) => Value::word(self.tail, &Tail::NAMES),
            (6, _) => Value::word(self.norm, &NormFormat::NAMES),
            (7, _) => Value::word(self.gain, &Gain::NAMES),
            (8, _) => Value::Int(self.rounds.into()),
            _ => Value::Int(self.seed),
        }
    }

    fn is_default(&self, key: usize) -> bool {
        // One of `bdir` and `bnrm` alone leaves the other as in the default (4, 2), which itself prints as `bits`.
        match key {
            2 => self.bdir == Self::default().bdir,
            3 => self.bnrm == Self::default().bnrm,
            _ => self.get(key) == Self::default().get(key),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if !self.is_valid() {
            return;
        }
        match self.norm {
            NormFormat::F16 => line(2, "f16 norm with its gain"),
            NormFormat::F32 => line(4, "f32 norm with its gain"),
        }
        let bytes = self.block_bytes(dim) - self.norm.bytes();
        match (self.tail, dim % 3) {
            (_, 0) => line(bytes, "bit stream of triplets: direction codes, radius code"),
            (Tail::Scalar, _) => {
                line(bytes, "bit stream of triplets: direction codes, radius code; last the codes left over")
            }
            (Tail::Paper, _) => {
                line(bytes, "bit stream of triplets, the last filled up: direction codes, radius code")
            }
        }
    }
}

/// OCTOPUS for vectors of `D` values; keys: [`OctopusSpec`]. State: 2.3 KiB of signs
/// and 768 bytes of centroids.
///
/// Encoding and decoding are O(D log D), a score O(D) in integers. The method is OCTOPUS (Boss, Voleti, Donné, Vainer,
/// Algorithm 1) with an f16 norm that carries the least-squares gain, and codebooks from the closed-form marginals;
/// `docs/octopus.md` has every deviation. The true rate is about bits + 1/3 + 16/D bits a value: see
/// [`CodecSpec::bits_per_value`](crate::CodecSpec::bits_per_value).
///
/// ```
/// use octaplex::codecs::Octopus;
/// use octaplex::Error;
///
/// let codec = Octopus::<96>::new(3)?;
/// let (mut block, mut decoded) = (vec![0; codec.block_bytes()], [0.0; 96]);
/// codec.encode(&[0.5; 96], &mut block)?;
/// codec.decode(&block, &mut decoded)?;
/// assert!(decoded.iter().all(|x| (x - 0.5).abs() < 0.4));
/// # Ok::<(), Error>(())
/// ```
pub type Octopus<const D: usize> = crate::typed::Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: OctopusSpec,
    backend: Kernels,
    rotation: Rotation,
    centre: Codebook,
    directions: &'static Directions,
    coordinates: [f32; 128],
    radii: [f32; 64],
    rest: Option<Codebook>,
}

/// The largest magnitude of a query's integers.
const QUERY_LIMIT: i16 = 127;

impl<const D: usize> Octopus<D> {
    /// The published split for `bits` bits, (bits+1, bits-1), everything else by default, on the fastest backend of
    /// this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 1 to 5, [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn new(bits: u8) -> Result<Self, Error> {
        if !(1..=5).contains(&bits) {
            return Err(OctopusSpec::KEYS[0].error(0));
        }
        Self::build(OctopusSpec::new(bits), Backend::detect(), Stream::default())
    }
}

impl Core {
    /// The codec of a spec, for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for bits or rounds outside their range, [`Error::Width`] unless `dim` is one of [`WIDTHS`].
    pub(crate) fn build(
        spec: OctopusSpec,
        dim: usize,
        backend: Backend,
        stream: Stream,
    ) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        let upper = octahedral_coordinates(spec.bdir).ok_or(BDIR.error(0))?;
        let directions = directions_of(spec.bdir).ok_or(BDIR.error(0))?;
        let radius_units = triplet_radii(dim, spec.bnrm).ok_or(BNRM.error(0))?;
        if !(1..=3).contains(&spec.rounds) {
            return Err(ROUNDS.error(0));
        }
        let mut coordinates = [0.0; 128];
        let (lower_half, upper_half) = coordinates[..2 * upper.len()].split_at_mut(upper.len());
        for ((below, above), c) in lower_half.iter_mut().rev().zip(upper_half).zip(upper) {
            *above = f32::from(*c) / 32768.0;
            *below = -*above;
        }
        let mut radii = [0.0; 64];
        for (radius, units) in radii.iter_mut().zip(radius_units) {
            *radius = f32::from(*units) / 65536.0;
        }
        let rest = match spec.tail {
            Tail::Scalar if !dim.is_multiple_of(3) => lloyd_max(dim, 1 << spec.field_bits().div_ceil(3)),
            _ => None,
        };
        let rotation = Rotation::wht(dim, spec.rounds, spec.seed, Purpose::RotationSigns, stream)?;
        let centre = CentreCode::codebook(dim)?;
        Ok(Self { spec, backend: backend.kernels(), rotation, centre, directions, coordinates, radii, rest })
    }

    pub(crate) fn shape(&self) -> TripletLayout<'_> {
        TripletLayout {
            dim: self.dim(),
            scale: self.spec.norm.float(),
            direction_bits: self.spec.bdir,
            radius_bits: self.spec.bnrm,
            rest_bits: self.rest.map_or(0, |book| book.levels().trailing_zeros() as u8),
            coordinates: &self.coordinates[..1 << self.spec.bdir],
            lengths: self.directions.lengths,
            directions: self.directions.directions,
            planes: self.directions.planes,
            radii: &self.radii[..1 << self.spec.bnrm],
            rest: self.rest.map_or(&[], |book| book.centroids()),
            rest_scale: self.rest.map_or(0.0, |book| book.scale()),
        }
    }

    /// Whether scores are sums of integers.
    fn is_int(&self) -> bool {
        !self.directions.directions.is_empty()
    }

    /// Writes the norm at the head of a block; gives it as it reads back.
    fn write_norm(&self, norm: f32, block: &mut [u8]) -> Result<f32, Error> {
        match self.spec.norm {
            NormFormat::F16 => {
                let stored = to_f16(norm)?;
                block[..2].copy_from_slice(&stored.to_le_bytes());
                Ok(stored.to_f32())
            }
            NormFormat::F32 if norm.abs() < MAX_VALUE => {
                block[..4].copy_from_slice(&norm.to_le_bytes());
                Ok(norm)
            }
            NormFormat::F32 => Err(Error::Overflow),
        }
    }

    /// `Ok` if the norm at the head of every row is one that `encode` could have written.
    fn check_block_norms(&self, rows: &[u8], stride: usize) -> Result<(), Error> {
        if self.spec.norm == NormFormat::F16 {
            return check_scales(rows, stride, 1);
        }
        let is_norm = |row: &[u8]| read_f32(row).abs() < MAX_VALUE;
        let wrong = rows.chunks_exact(stride).position(|row| !is_norm(row));
        wrong.map_or(Ok(()), |block| Err(Error::Corrupt { block }))
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
        QueryFormat::new(self.dim(), if self.is_int() { Body::Int(QUERY_LIMIT) } else { Body::Float })
    }

    fn encode_rotated(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error> {
        let (dim, bytes) = (self.dim(), self.block_bytes());
        with_scratch(words_for(bytes), |block| {
            let block = bytes_of(block, bytes);
            let rows = rows.chunks_exact(dim).zip(planes.chunks_exact_mut(bytes - LEAD));
            for ((x, planes), norm) in rows.zip(norms.chunks_exact_mut(1)) {
                self.encode_with_residual(x, block, None)?;
                take_planes(block, bytes, planes, norm);
            }
            Ok(())
        })
    }

    fn decode_rotated(&self, row: &[u8], norm: f32, x: &mut [f32]) -> Result<(), Error> {
        self.backend.decode_triplets(&self.shape(), &row[self.spec.norm.bytes()..], norm, x);
        Ok(())
    }

    fn score_rows(
        &self,
        format: &QueryFormat,
        queries: &[&[f32]],
        rows: &Rows,
        scores: &mut [f32],
    ) -> Result<(), Error> {
        let (shape, backend) = (self.shape(), self.backend);
        if self.is_int() {
            return format.in_int_batches(queries, scores, |q, s| backend.score_triplets(&shape, rows, q, s));
        }
        format.in_float_batches(queries, scores, |q, s| backend.score_triplets_floats(&shape, rows, q, s))
    }

    fn accumulate_rows(&self, weights: &[f32], rows: &Rows, acc: &mut [f32]) {
        self.backend.accumulate_triplets(&self.shape(), rows, weights, acc);
    }
}

impl Coarse for Core {
    /// A unit vector's residual is about as long as the vector at most: norms stay below 16.
    const RESIDUALS_BELOW: u8 = 0x4c;

    fn norm_format(&self) -> Float {
        self.spec.norm.float()
    }

    fn read_norm(&self, block: &[u8]) -> f32 {
        if self.spec.norm == NormFormat::F16 { read_f16(block).to_f32() } else { read_f32(block) }
    }

    /// The residual is in units of the stored norm.
    fn encode_with_residual(
        &self,
        x: &[f32],
        block: &mut [u8],
        residual: Option<&mut [f32]>,
    ) -> Result<bool, Error> {
        let norm = norm(self.backend, x)?;
        if norm < SMALLEST_NORM {
            block.fill(0);
            return Ok(true);
        }
        let (dim, mut zero, mut residual) = (self.dim(), false, residual);
        let stream_bytes = block.len() - self.spec.norm.bytes();
        with_scratch(2 * dim + words_for(stream_bytes), |memory| {
            let (z, memory) = memory.split_at_mut(dim);
            let (decoded, stream) = memory.split_at_mut(dim);
            let stream = bytes_of(stream, stream_bytes);
            z.copy_from_slice(x);
            self.rotation.forward(self.backend, z);
            self.backend.encode_triplets(&self.shape(), self.spec.rounding.search(), z, 1.0 / norm, stream);
            if self.spec.gain != Gain::Norm || residual.is_some() {
                self.backend.decode_triplets(&self.shape(), stream, 1.0, decoded);
            }
            let stored = match self.spec.gain {
                Gain::Norm => norm,
                gain => {
                    let correlation = self.backend.dot(z, decoded) / norm;
                    let stored = gain.stored(norm, correlation, self.backend.dot(decoded, decoded));
                    // In units of a much smaller norm the residual would be longer than its field may say.
                    if residual.is_some() && stored < norm / 8.0 { norm } else { stored }
                }
            };
            let stored = self.write_norm(stored, block)?;
            if stored == 0.0 {
                block.fill(0); // the sign of the zero as well
                zero = true;
                return Ok(());
            }
            block[self.spec.norm.bytes()..].copy_from_slice(stream);
            if let Some(residual) = residual.as_deref_mut() {
                let inverse = 1.0 / stored;
                for ((residual, z), decoded) in residual.iter_mut().zip(z).zip(decoded) {
                    *residual = *z * inverse - *decoded;
                }
            }
            Ok(())
        })?;
        Ok(zero)
    }

    fn check_norms(&self, rows: &[u8], stride: usize) -> Result<(), Error> {
        self.check_block_norms(rows, stride)
    }

    fn scores_tell_norms(&self) -> bool {
        self.spec.norm == NormFormat::F16 && self.backend.scores_tell_scales()
    }
}

fn read_f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.rotation.dim()
    }

    fn block_bytes(&self) -> usize {
        self.spec.block_bytes(self.dim())
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.encode_with_residual(x, block, None).map(drop)
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.check_block_norms(block, block.len())?;
        self.decode_rotated(block, self.read_norm(block), x)?;
        self.rotation.inverse(self.backend, x);
        Ok(())
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        self.format().prepare((&self.rotation, self.backend), q, query, |_, _| ())
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let stride = self.block_bytes();
        check_score(queries, blocks, stride, scores)?;
        let (format, rows) = (self.format(), rows_of(blocks, stride, stride, self.dim()));
        format.check(queries)?;
        let check = || self.check_block_norms(blocks, stride);
        score_checked(self.scores_tell_norms(), queries, scores, check, |s| {
            self.score_rows(&format, queries, &rows, s)
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let stride = self.block_bytes();
        check_accumulate(weights, blocks, stride, acc, self.dim())?;
        self.check_block_norms(blocks, stride)?;
        self.accumulate_rows(weights, &rows_of(blocks, stride, stride, self.dim()), acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32]) {
        self.rotation.inverse_rows(self.backend, acc);
    }

    fn pages(&self) -> Pages<'_> {
        if self.spec.plane_bytes(self.dim()) > 0 { Pages::Lean(self) } else { Pages::Blocks }
    }
}
