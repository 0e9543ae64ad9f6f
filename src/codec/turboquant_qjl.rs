//! TurboQuant, inner-product form: the MSE form with one bit less, and a sign sketch of what it left over.
//!
//! TurboQuant (Zandieh, Daliri, Hadian, Mirrokni), Algorithm 2. Scores are the published unbiased estimator: the MSE
//! stage's integer score, and the sketch's estimate of <q, residual>. `decode` is offered as the paper gives it;
//! scoring does not use it. Deviations are those of the MSE form and of the sketch (see `qjl`); the residual's
//! norm is stored, since it cannot be recomputed from the codes.
//!
//! A block: f16 norm, raw plane of `bits - 1` bits a code, f16 norm of the unit vector's residual, sign plane.

use super::turboquant::{Gain, TurboQuant, TurboQuantSpec};
use super::{Codec, Query, check_accumulate, check_scales_at, count_blocks, read_f16, to_f16};
use crate::rotation::RotationKind;
use crate::sketch::{Sketch, SketchSpec};
use crate::spec::{Key, Spec, Value, describe_planes, one_of, parse_int};
use crate::{Backend, CodecSpec, Error, Stream};
use octaplex_arch::{Float, Packing, SignRows};

/// `turboquant-qjl:bits=3,sketch=wht,sketch_rounds=2,rounds=1,rotation=wht,seed=0`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TurboQuantQjlSpec {
    /// Bits of a value, 2 to 8: `bits - 1` and the sketch.
    pub bits: u8,
    /// The sketch of the residual.
    pub sketch: SketchSpec,
    /// Rounds of the rotation, 1 to 3.
    pub rounds: u8,
    /// The family of rotations.
    pub rotation: RotationKind,
    /// Seed of the rotation and of the sketch.
    pub seed: u64,
}

impl Default for TurboQuantQjlSpec {
    fn default() -> Self {
        Self { bits: 3, sketch: SketchSpec::default(), rounds: 1, rotation: RotationKind::Wht, seed: 0 }
    }
}

impl TurboQuantQjlSpec {
    /// Bytes of a block of `dim` values; 0 for impossible bits.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.bits {
            2..=8 => self.residual_at(dim) + 2 + SketchSpec::bytes(dim),
            _ => 0,
        }
    }

    /// Where the residual's norm is.
    const fn residual_at(&self, dim: usize) -> usize {
        2 + Packing::bits(self.bits - 1).bytes(dim)
    }
}

const BITS: Key = Key::new("bits", "2..=8");

impl Spec for TurboQuantQjlSpec {
    const NAME: &'static str = "turboquant-qjl";
    const SUMMARY: &'static str =
        "turboquant with one bit less and a sign sketch of the residual, unbiased scores";
    const KEYS: &'static [Key] = &[
        BITS,
        SketchSpec::KEYS[0],
        SketchSpec::KEYS[1],
        Key::new("rounds", "1..=3"),
        Key::new("rotation", "wht, haar"),
        Key::new("seed", "0..2^64"),
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.bits = parse_int(value, 2..=8)? as u8,
            1 | 2 => self.sketch.set(key - 1, value)?,
            3 => self.rounds = parse_int(value, 1..=3)? as u8,
            4 => self.rotation = one_of(value, &RotationKind::NAMES)?,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Int(self.bits.into()),
            1 | 2 => self.sketch.get(key - 1),
            3 => Value::Int(self.rounds.into()),
            4 => Value::word(self.rotation, &RotationKind::NAMES),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if !(2..=8).contains(&self.bits) {
            return;
        }
        line(2, "f16 norm");
        describe_planes(Packing::bits(self.bits - 1), dim, line);
        line(2, "f16 norm of the unit vector's residual");
        line(SketchSpec::bytes(dim), "sign plane, 1 = not negative");
    }
}

/// The codec. State: that of `turboquant`, and 4·D bytes (8·D² with `sketch=gauss`).
#[derive(Clone, Debug)]
pub struct TurboQuantQjl<const D: usize> {
    spec: TurboQuantQjlSpec,
    /// The MSE stage.
    coarse: TurboQuant<D>,
    sketch: Sketch<D>,
    residual_at: usize,
}

impl<const D: usize> TurboQuantQjl<D> {
    /// `bits` bits a value (one of them the sketch's), everything else by default, on the fastest backend of this
    /// CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 2 to 8, [`Error::Width`] unless `D` is a listed width.
    pub fn new(bits: u8) -> Result<Self, Error> {
        Self::build(TurboQuantQjlSpec { bits, ..Default::default() }, Backend::detect(), Stream::default())
    }

    /// The codec of a spec, for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for bits or rounds outside their range, [`Error::Width`] unless `D` is a listed width,
    /// [`Error::Unsupported`] for dense matrices of several rounds, or without `alloc`.
    pub fn build(spec: TurboQuantQjlSpec, backend: Backend, stream: Stream) -> Result<Self, Error> {
        if !(2..=8).contains(&spec.bits) {
            return Err(BITS.error(0));
        }
        let coarse = TurboQuantSpec {
            levels: 1 << (spec.bits - 1),
            gain: Gain::Norm,
            rounds: spec.rounds,
            rotation: spec.rotation,
            seed: spec.seed,
        };
        let coarse = TurboQuant::build(coarse, backend, stream)?;
        let sketch = Sketch::build(spec.sketch, spec.seed, backend, stream)?;
        Ok(Self { spec, coarse, sketch, residual_at: spec.residual_at(D) })
    }

    fn signs<'a>(&self, blocks: &'a [u8]) -> SignRows<'a> {
        SignRows {
            bytes: blocks,
            stride: self.block_bytes(),
            dim: D,
            at: self.residual_at,
            outer: Some(Float::F16),
        }
    }

    fn check_scales(&self, blocks: &[u8]) -> Result<(), Error> {
        check_scales_at(blocks, self.block_bytes(), [0, self.residual_at])
    }
}

impl<const D: usize> Codec<D> for TurboQuantQjl<D> {
    fn spec(&self) -> CodecSpec {
        CodecSpec::TurboQuantQjl(self.spec)
    }

    fn block_bytes(&self) -> usize {
        self.residual_at + 2 + SketchSpec::bytes(D)
    }

    fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        let mut residual = [0.0; D];
        let (coarse, fine) = block.split_at_mut(self.residual_at);
        let zero = self.coarse.encode_with_residual(x, coarse, &mut residual)?;
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
        let norm = read_f16(coarse).to_f32() * read_f16(fine).to_f32();
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
        let count = count_blocks(blocks, self.block_bytes())?;
        Error::expect_length("scores", queries.len().saturating_mul(count), scores.len())?;
        self.check_scales(blocks)?;
        Query::check_sketches(queries)?;
        self.coarse.score_rows(queries, blocks, self.block_bytes(), scores)?;
        self.sketch.score(queries, &self.signs(blocks), scores);
        Ok(())
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc.len())?;
        self.check_scales(blocks)?;
        self.coarse.accumulate_rows(weights, blocks, self.block_bytes(), acc);
        self.sketch.accumulate(weights, &self.signs(blocks), acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32; D]) {
        self.coarse.finish(acc);
    }
}
