//! OCTOPUS with a sign sketch of what it leaves over: unbiased scores.
//!
//! OCTOPUS (Boss, Voleti, Donné, Vainer), section 3.6. Scores are those of `octopus` plus the sketch's estimate of
//! <q, residual>. Deviations are those of `octopus` and of the sketch (see `qjl`); the residual is that of the vector
//! divided by its *stored* norm, so that the estimate makes up for the gain and for the norm's rounding too. `decode`
//! adds the sketch's reconstruction, which scores as the estimate does and is a worse reconstruction at low rates.
//!
//! A block: a block of `octopus`, f16 norm of the residual, sign plane.

use super::octopus::{self, OctopusSpec};
use super::query::QueryFormat;
use super::scratch::with_scratch;
use super::{Codec, check_accumulate, check_block, check_score, read_f16, to_f16};
use crate::sketch::{Sketch, SketchSpec};
use crate::spec::{Key, Spec, Value};
use crate::typed::Typed;
use crate::{Backend, Error, Stream};
use octaplex_arch::SignRows;

/// `octopus-qjl:bits=3,split=paper,…,gain=mse,rounds=1,seed=0,sketch=wht,sketch_rounds=2`: the keys of `octopus`, and
/// the sketch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OctopusQjlSpec {
    /// The octahedral stage.
    pub octopus: OctopusSpec,
    /// The sketch of the residual.
    pub sketch: SketchSpec,
}

impl OctopusQjlSpec {
    /// The published split for `bits` bits, 1 to 5, and a sketch; everything else by default.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        Self { octopus: OctopusSpec::new(bits), sketch: SketchSpec::new() }
    }

    /// The same with another octahedral stage.
    #[must_use]
    pub const fn octopus(self, octopus: OctopusSpec) -> Self {
        Self { octopus, ..self }
    }

    /// The same with another sketch.
    #[must_use]
    pub const fn sketch(self, sketch: SketchSpec) -> Self {
        Self { sketch, ..self }
    }

    /// Bytes of a block of `dim` values; 0 for impossible numbers of bits.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.octopus.block_bytes(dim) {
            0 => 0,
            bytes => bytes + 2 + SketchSpec::bytes(dim),
        }
    }
}

const OCTOPUS: &[Key] = OctopusSpec::KEYS;

impl Spec for OctopusQjlSpec {
    const NAME: &'static str = "octopus-qjl";
    const SUMMARY: &'static str = "octopus and a sign sketch of the residual, unbiased scores";
    const KEYS: &'static [Key] = &[
        OCTOPUS[0],
        OCTOPUS[1],
        OCTOPUS[2],
        OCTOPUS[3],
        OCTOPUS[4],
        OCTOPUS[5],
        OCTOPUS[6],
        OCTOPUS[7],
        OCTOPUS[8],
        OCTOPUS[9],
        SketchSpec::KEYS[0],
        SketchSpec::KEYS[1],
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key.checked_sub(OCTOPUS.len()) {
            Some(key) => self.sketch.set(key, value),
            None => self.octopus.set(key, value),
        }
    }

    fn get(&self, key: usize) -> Value {
        match key.checked_sub(OCTOPUS.len()) {
            Some(key) => self.sketch.get(key),
            None => self.octopus.get(key),
        }
    }

    fn is_default(&self, key: usize) -> bool {
        match key.checked_sub(OCTOPUS.len()) {
            Some(key) => self.sketch.get(key) == SketchSpec::default().get(key),
            None => self.octopus.is_default(key),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if self.octopus.block_bytes(dim) == 0 {
            return;
        }
        self.octopus.layout(dim, line);
        line(2, "f16 norm of the residual, in units of the stored norm");
        line(SketchSpec::bytes(dim), "sign plane, 1 = not negative");
    }
}

/// OCTOPUS and a sign sketch of its residual, for vectors of `D` values; keys: [`OctopusQjlSpec`]. State: that of
/// [`Octopus`](crate::Octopus), and 2.3 KiB of signs (8·D² bytes with `sketch=gauss`).
///
/// OCTOPUS (Boss, Voleti, Donné, Vainer), section 3.6; what it costs is what its two stages cost. The true rate is about
/// bits + 1 + 1/3 + 32/D bits a value: see [`CodecSpec::bits_per_value`](crate::CodecSpec::bits_per_value).
///
/// ```
/// use octaplex::{Error, OctopusQjl};
///
/// let codec = OctopusQjl::<96>::new(3)?;
/// let mut block = vec![0; codec.block_bytes()];
/// codec.encode(&[0.5; 96], &mut block)?;
/// let mut score = [0.0];
/// codec.score(&[codec.prepare_query(&[0.25; 96])?], &block, &mut score)?;
/// assert!((score[0] - 12.0).abs() < 1.0); // 96 · 0.5 · 0.25
/// # Ok::<(), Error>(())
/// ```
pub type OctopusQjl<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    coarse: octopus::Core,
    sketch: Sketch,
    /// Where the residual's norm is.
    residual_at: usize,
}

/// Norms of residuals stay below 16, of which this is the upper byte: a unit vector's residual is about as long as the
/// vector at most.
const MAX_RESIDUAL_BITS: u8 = 0x4c;

impl<const D: usize> OctopusQjl<D> {
    /// The published split for `bits` bits and a sketch, everything else by default, on the fastest backend of this
    /// CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 1 to 5, [`Error::Width`] unless `D` is a listed width.
    pub fn new(bits: u8) -> Result<Self, Error> {
        if !(1..=5).contains(&bits) {
            return Err(OCTOPUS[0].error(0));
        }
        Self::build(OctopusQjlSpec::new(bits), Backend::detect(), Stream::default())
    }
}

impl Core {
    /// The codec of a spec, for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for bits or rounds outside their range, [`Error::Width`] unless `dim` is a listed width,
    /// [`Error::Unsupported`] for a dense sketch of several rounds, or without `alloc`.
    pub(crate) fn build(
        spec: OctopusQjlSpec,
        dim: usize,
        backend: Backend,
        stream: Stream,
    ) -> Result<Self, Error> {
        let coarse = octopus::Core::build(spec.octopus, dim, backend, stream)?;
        let sketch = Sketch::build(spec.sketch, dim, spec.octopus.seed, backend, stream)?;
        Ok(Self { coarse, sketch, residual_at: spec.octopus.block_bytes(dim) })
    }

    fn format(&self) -> QueryFormat {
        self.coarse.format().sketched()
    }

    fn signs<'a>(&self, blocks: &'a [u8]) -> SignRows<'a> {
        SignRows {
            bytes: blocks,
            stride: self.block_bytes(),
            dim: self.dim(),
            at: self.residual_at,
            outer: Some(self.coarse.norm_format().float()),
        }
    }

    fn check_scales(&self, blocks: &[u8]) -> Result<(), Error> {
        let stride = self.block_bytes();
        // The upper byte of an f16 orders magnitudes.
        let is_norm = |block: &[u8]| block[self.residual_at + 1] & 0x7f < MAX_RESIDUAL_BITS;
        let norms = self.coarse.check_norms(blocks, stride);
        if blocks.chunks_exact(stride).fold(true, |all, block| all & is_norm(block)) {
            return norms;
        }
        // The first block that is wrong, whichever of its scales it is.
        let residual = blocks.chunks_exact(stride).position(|block| !is_norm(block)).unwrap_or(0);
        match norms {
            Err(Error::Corrupt { block }) => Err(Error::Corrupt { block: block.min(residual) }),
            _ => Err(Error::Corrupt { block: residual }),
        }
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.coarse.dim()
    }

    fn block_bytes(&self) -> usize {
        self.residual_at + 2 + SketchSpec::bytes(self.dim())
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        let (coarse, fine) = block.split_at_mut(self.residual_at);
        with_scratch(self.dim(), |residual| {
            let zero = self.coarse.encode_with_residual(x, coarse, Some(residual))?;
            let norm = to_f16(libm::sqrtf(self.coarse.backend().dot(residual, residual)))?;
            if zero || norm.to_bits() == 0 {
                fine.fill(0);
                return Ok(());
            }
            let (head, plane) = fine.split_at_mut(2);
            head.copy_from_slice(&norm.to_le_bytes());
            self.sketch.encode(residual, plane);
            Ok(())
        })
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        self.check_scales(block)?;
        let (coarse, fine) = block.split_at(self.residual_at);
        let norm = self.coarse.read_norm(coarse) * read_f16(fine).to_f32();
        with_scratch(self.dim(), |residual| {
            self.sketch.decode(&fine[2..], norm, residual);
            self.coarse.decode_rotated(coarse, x);
            x.iter_mut().zip(&*residual).for_each(|(x, r)| *x += r);
            self.coarse.finish(x);
            Ok(())
        })
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        let format = self.format();
        format.check_prepare(q, query)?;
        with_scratch(self.dim(), |rotated| {
            self.coarse.prepare_rotated(&format, q, rotated, query);
            self.sketch.prepare(&format, rotated, query);
            Ok(())
        })
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        check_score(queries, blocks, self.block_bytes(), scores)?;
        self.check_scales(blocks)?;
        let format = self.format();
        self.coarse.score_rows(&format, queries, blocks, self.block_bytes(), scores)?;
        self.sketch.score(&format, queries, &self.signs(blocks), scores)
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc, self.dim())?;
        self.check_scales(blocks)?;
        self.coarse.accumulate_rows(weights, blocks, self.block_bytes(), acc);
        self.sketch.accumulate(weights, &self.signs(blocks), acc)
    }

    fn finish(&self, acc: &mut [f32]) {
        self.coarse.finish(acc);
    }
}
