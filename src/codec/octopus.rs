//! The codec `octopus`: norm, random rotation, then triplets of coordinates as an octahedral
//! direction and a radius.
//!
//! The method is OCTOPUS (Boss, Voleti, Donné, Vainer), Algorithm 1. Deviations:
//!
//! * The norm is f16 by default and carries the least-squares gain. `norm=f32,gain=norm` is the
//!   published norm.
//! * Codebooks come from the closed-form marginals, not from samples.
//! * `local2` tries the centroids that bracket a coordinate. It chooses as the published nine
//!   candidates do, with four.
//! * Coordinates left over by D mod 3 are coded on their own. `tail=paper` fills up a triplet.
//! * `split=even`, (b+1, b), is offered. At its rate it is better than the published split (b+1,
//!   b-1), which takes 3b+1 bits a triplet.
//!
//! ```text
//! block   norm │ field of triplet 0 │ field of triplet 1 │ …      one bit stream of ⌈D/3⌉ fields
//! field   ξ code, bdir bits │ η code, bdir bits │ radius code, bnrm bits
//! ```
//!
//! [`octaplex_arch::TripletLayout`] has the order of the bits.

mod spec;

pub use spec::{NormFormat, OctopusSpec, Rounding, Tail};

use super::planes::{CentreCode, LEAD, Pages, Rotated, per_page, rotated_blocks, take_planes};
use super::query::{Body, QueryFormat};
use super::scratch::{bytes_of, with_scratch, words_for};
use super::sketched::Coarse;
use super::{Codec, MAX_VALUE, SMALLEST_NORM, check_block, check_scales, norm, read_f16, to_f16};
use crate::backend::Kernels;
use crate::codebook::octahedral::{Directions, directions_of};
use crate::codebook::{Codebook, WIDTHS, lloyd_max, octahedral_coordinates, triplet_radii};
use crate::codec::turboquant::Gain;
use crate::random::{HeadId, Purpose};
use crate::rotation::Rotation;
use crate::spec::Spec;
use crate::{Backend, Error};
use octaplex_arch::{Float, Rows, TripletLayout};
use spec::{BDIR, BNRM, ROUNDS};

/// OCTOPUS for vectors of `D` values. [`OctopusSpec`] has the parameters. The state is 2.3 KiB of
/// signs and 768 bytes of centroids.
///
/// Encoding and decoding take O(D log D), scoring O(D) in integers. The method is OCTOPUS (Boss,
/// Voleti, Donné, Vainer, Algorithm 1) with an f16 norm that carries the least-squares gain, and
/// codebooks from the closed-form marginals. `docs/octopus.md` has the format. The rate is about
/// bits + 1/3 + 16/D bits a value: see
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
pub type Octopus<const D: usize> = crate::codec::typed::Typed<Core, D>;

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
    /// Creates a codec with the published split for `bits` bits, (bits+1, bits-1), other parameters
    /// by default, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 1 to 5; [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn new(bits: u8) -> Result<Self, Error> {
        if !(1..=5).contains(&bits) {
            return Err(OctopusSpec::KEYS[0].error(0));
        }
        Self::build(OctopusSpec::new(bits), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for bits or rounds out of range; [`Error::Width`] unless `dim` is one of
    /// [`WIDTHS`].
    pub(crate) fn build(
        spec: OctopusSpec,
        dim: usize,
        backend: Backend,
        head: HeadId,
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
        let rotation = Rotation::wht(dim, spec.rounds, spec.seed, Purpose::RotationSigns, head)?;
        let centre = CentreCode::codebook(dim)?;
        Ok(Self { spec, backend: backend.kernels(), rotation, centre, directions, coordinates, radii, rest })
    }

    /// Returns the layout of a row and its codebooks, as kernels take them.
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

    /// Returns whether scores are sums of integers.
    fn is_int(&self) -> bool {
        !self.directions.directions.is_empty()
    }

    /// Writes the norm to the front of a block, and returns it as it will be read.
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

    fn read_norm(&self, block: &[u8]) -> f32 {
        if self.spec.norm == NormFormat::F16 { read_f16(block).to_f32() } else { read_f32(block) }
    }

    fn check_norms(&self, rows: &[u8], stride: usize) -> Result<(), Error> {
        if self.spec.norm == NormFormat::F16 {
            return check_scales(rows, stride, 1);
        }
        let is_norm = |row: &[u8]| read_f32(row).abs() < MAX_VALUE;
        let wrong = rows.chunks_exact(stride).position(|row| !is_norm(row));
        wrong.map_or(Ok(()), |block| Err(Error::Corrupt { block }))
    }

    fn scores_tell_norms(&self) -> bool {
        self.spec.norm == NormFormat::F16 && self.backend.scores_tell_scales()
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
        pages: &[Rows],
        scores: &mut [f32],
    ) -> Result<(), Error> {
        let (shape, backend) = (self.shape(), self.backend);
        let mut scores = scores.chunks_exact_mut(per_page(pages, queries.len()));
        for (rows, scores) in pages.iter().zip(&mut scores) {
            if self.is_int() {
                format.in_int_batches(queries, scores, |q, s| backend.score_triplets(&shape, rows, q, s))?;
            } else {
                format.in_float_batches(queries, scores, |q, s| {
                    backend.score_triplets_floats(&shape, rows, q, s);
                })?;
            }
        }
        Ok(())
    }

    fn accumulate_rows(&self, weights: &[f32], pages: &[Rows], acc: &mut [f32]) {
        let each = per_page(pages, acc.len() / self.dim());
        for (rows, weights) in pages.iter().zip(weights.chunks_exact(each)) {
            self.backend.accumulate_triplets(&self.shape(), rows, weights, acc);
        }
    }
}

impl Coarse for Core {
    /// The residual is relative to a norm that is at least an eighth of the vector's, so its norm stays below 16,
    /// which is 0x4c00 in f16.
    const RESIDUALS_BELOW: u8 = 0x4c;

    fn norm_format(&self) -> Float {
        self.spec.norm.float()
    }

    /// The residual is relative to the stored norm.
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
                    // Relative to a much smaller norm, the residual would be too long for its
                    // field.
                    if residual.is_some() && stored < norm / 8.0 { norm } else { stored }
                }
            };
            let stored = self.write_norm(stored, block)?;
            if stored == 0.0 {
                block.fill(0); // clears the sign of a negative zero too
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

    rotated_blocks!();

    fn pages(&self) -> Pages<'_> {
        if self.spec.plane_bytes(self.dim()) > 0 { Pages::Lean(self) } else { Pages::Blocks }
    }
}
