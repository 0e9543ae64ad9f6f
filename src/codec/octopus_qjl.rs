//! OCTOPUS with a sign sketch of what it leaves over: unbiased scores.
//!
//! OCTOPUS (Boss, Voleti, Donné, Vainer), section 3.6. Scores are those of `octopus` plus the sketch's estimate of
//! <q, residual>. Deviations are those of `octopus` and of the sketch (see `qjl`); the residual is that of the vector
//! divided by its *stored* norm, so that the estimate makes up for the gain and for the norm's rounding too. `decode`
//! adds the sketch's reconstruction, which scores as the estimate does and is a worse reconstruction at low rates.
//!
//! A block: a block of `octopus`, f16 norm of the residual, sign plane.

use super::octopus::{Octopus, OctopusSpec};
use super::{Codec, Query, check_accumulate, count_blocks, read_f16, to_f16};
use crate::sketch::{Sketch, SketchSpec};
use crate::spec::{Key, Spec, Value};
use crate::{Backend, CodecSpec, Error, Stream};
use octaplex_arch::SignRows;

/// `octopus-qjl:bits=3,split=paper,…,gain=mse,rounds=1,seed=0,sketch=wht,sketch_rounds=2`: the keys of `octopus`, and
/// the sketch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OctopusQjlSpec {
    /// The octahedral stage.
    pub octopus: OctopusSpec,
    /// The sketch of the residual.
    pub sketch: SketchSpec,
}

impl OctopusQjlSpec {
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

/// The codec. State: that of `octopus`, and 4·D bytes (8·D² with `sketch=gauss`).
#[derive(Clone, Debug)]
pub struct OctopusQjl<const D: usize> {
    spec: OctopusQjlSpec,
    coarse: Octopus<D>,
    sketch: Sketch<D>,
    /// Where the residual's norm is.
    residual_at: usize,
}

/// Norms of residuals stay below 16, of which this is the upper byte: a unit vector's residual is about as long as the
/// vector at most.
const MAX_RESIDUAL_BITS: u8 = 0x4c;

impl<const D: usize> OctopusQjl<D> {
    /// The published split for `bits` bits and a sketch, everything else by default, on the fastest backend of this
    /// CPU. The true rate is about bits + 1 + 1/3 + 32/D bits a value: see [`CodecSpec::bits_per_value`].
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 1 to 5, [`Error::Width`] unless `D` is a listed width.
    pub fn new(bits: u8) -> Result<Self, Error> {
        if !(1..=5).contains(&bits) {
            return Err(OCTOPUS[0].error(0));
        }
        let octopus = OctopusSpec { bdir: bits + 1, bnrm: bits - 1, ..Default::default() };
        let spec = OctopusQjlSpec { octopus, ..Default::default() };
        Self::build(spec, Backend::detect(), Stream::default())
    }

    /// The codec of a spec, for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for bits or rounds outside their range, [`Error::Width`] unless `D` is a listed width,
    /// [`Error::Unsupported`] for a dense sketch of several rounds, or without `alloc`.
    pub fn build(spec: OctopusQjlSpec, backend: Backend, stream: Stream) -> Result<Self, Error> {
        let coarse = Octopus::build(spec.octopus, backend, stream)?;
        let sketch = Sketch::build(spec.sketch, spec.octopus.seed, backend, stream)?;
        Ok(Self { spec, coarse, sketch, residual_at: spec.octopus.block_bytes(D) })
    }

    fn signs<'a>(&self, blocks: &'a [u8]) -> SignRows<'a> {
        SignRows {
            bytes: blocks,
            stride: self.block_bytes(),
            dim: D,
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

impl<const D: usize> Codec<D> for OctopusQjl<D> {
    fn spec(&self) -> CodecSpec {
        CodecSpec::OctopusQjl(self.spec)
    }

    fn block_bytes(&self) -> usize {
        self.residual_at + 2 + SketchSpec::bytes(D)
    }

    fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        let mut residual = [0.0; D];
        let (coarse, fine) = block.split_at_mut(self.residual_at);
        let zero = self.coarse.encode_with_residual(x, coarse, Some(&mut residual))?;
        let norm = to_f16(self.coarse.backend().sqrt(self.coarse.backend().dot(&residual, &residual)))?;
        if zero || norm.to_bits() == 0 {
            fine.fill(0);
            return Ok(());
        }
        let (head, plane) = fine.split_at_mut(2);
        head.copy_from_slice(&norm.to_le_bytes());
        self.sketch.encode(&residual, plane);
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        self.check_scales(block)?;
        let (coarse, fine) = block.split_at(self.residual_at);
        let norm = self.coarse.read_norm(coarse) * read_f16(fine).to_f32();
        let mut residual = [0.0; D];
        self.sketch.decode(&fine[2..], norm, &mut residual);
        self.coarse.decode_rotated(coarse, x);
        x.iter_mut().zip(residual).for_each(|(x, r)| *x += r);
        self.coarse.finish(x);
        Ok(())
    }

    fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error> {
        let mut query = self.coarse.prepare_query(q)?;
        let rotated = query.rotated;
        self.sketch.prepare(&rotated, &mut query);
        Ok(query)
    }

    fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let stride = self.block_bytes();
        let count = count_blocks(blocks, stride)?;
        Error::expect_length("scores", queries.len().saturating_mul(count), scores.len())?;
        self.check_scales(blocks)?;
        Query::check_sketches(queries)?;
        self.coarse.score_rows(queries, blocks, stride, scores)?;
        self.sketch.score(queries, &self.signs(blocks), scores);
        Ok(())
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        let stride = self.block_bytes();
        check_accumulate(weights, blocks, stride, acc.len())?;
        self.check_scales(blocks)?;
        self.coarse.accumulate_rows(weights, blocks, stride, acc);
        self.sketch.accumulate(weights, &self.signs(blocks), acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32; D]) {
        self.coarse.finish(acc);
    }
}
