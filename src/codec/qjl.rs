//! QJL: the norm and the signs of a sketched vector, one bit a value, with unbiased scores.
//!
//! QJL (Zandieh, Daliri, Han), with an orthonormal sketch of two Hadamard rounds by default (`sketch=gauss` is the
//! published dense matrix). Scores take an int8 query in the sketch's basis.
//!
//! A block: f16 norm, sign plane.

use super::{
    Codec, MAX_VALUE, Query, SMALLEST_NORM, check_accumulate, check_scales, check_values, count_blocks, norm,
    read_f16, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::sketch::{Sketch, SketchSpec};
use crate::spec::{Key, Spec, Value, parse_int};
use crate::{Backend, CodecSpec, Error, Stream};
use octaplex_arch::SignRows;

/// `qjl:sketch=wht,sketch_rounds=2,seed=0`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QjlSpec {
    /// The sketch.
    pub sketch: SketchSpec,
    /// Its seed.
    pub seed: u64,
}

impl QjlSpec {
    /// Bytes of a block of `dim` values.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        2 + SketchSpec::bytes(dim)
    }
}

impl Spec for QjlSpec {
    const NAME: &'static str = "qjl";
    const SUMMARY: &'static str = "signs of a sketch, one bit a value, unbiased scores";
    const KEYS: &'static [Key] = &[SketchSpec::KEYS[0], SketchSpec::KEYS[1], Key::new("seed", "0..2^64")];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 | 1 => self.sketch.set(key, value)?,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 | 1 => self.sketch.get(key),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        line(2, "f16 norm");
        line(SketchSpec::bytes(dim), "sign plane, 1 = not negative");
    }
}

/// The codec. State: 4·D bytes (and 8·D² with `sketch=gauss`).
#[derive(Clone, Debug)]
pub struct Qjl<const D: usize> {
    spec: QjlSpec,
    backend: Kernels,
    sketch: Sketch<D>,
}

impl<const D: usize> Qjl<D> {
    /// Everything by default, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn new() -> Result<Self, Error> {
        Self::build(QjlSpec::default(), Backend::detect(), Stream::default())
    }

    /// The codec of a spec, for one head.
    ///
    /// # Errors
    /// [`Error::Width`] unless `D` is one of [`WIDTHS`]; [`Error::Value`] for rounds outside their range;
    /// [`Error::Unsupported`] for a dense sketch of several rounds, or without `alloc`.
    pub fn build(spec: QjlSpec, backend: Backend, stream: Stream) -> Result<Self, Error> {
        if !WIDTHS.contains(&D) {
            return Err(Error::Width { actual: D });
        }
        let sketch = Sketch::build(spec.sketch, spec.seed, backend, stream)?;
        Ok(Self { spec, backend: backend.kernels(), sketch })
    }

    fn rows<'a>(&self, blocks: &'a [u8]) -> SignRows<'a> {
        SignRows { bytes: blocks, stride: self.block_bytes(), dim: D, at: 0, outer: None }
    }
}

impl<const D: usize> Codec<D> for Qjl<D> {
    fn spec(&self) -> CodecSpec {
        CodecSpec::Qjl(self.spec)
    }

    fn block_bytes(&self) -> usize {
        self.spec.block_bytes(D)
    }

    fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        let norm = norm(self.backend, x)?;
        let stored = to_f16(norm)?;
        if norm < SMALLEST_NORM || stored.to_bits() == 0 {
            block.fill(0);
            return Ok(());
        }
        let (head, plane) = block.split_at_mut(2);
        head.copy_from_slice(&stored.to_le_bytes());
        self.sketch.encode(x, plane);
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error> {
        Error::expect_length("bytes of a block", self.block_bytes(), block.len())?;
        check_scales(block, block.len(), 1)?;
        self.sketch.decode(&block[2..], read_f16(block).to_f32(), x);
        Ok(())
    }

    fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error> {
        check_values(q, MAX_VALUE)?;
        let mut query = Query::float(*q);
        self.sketch.prepare(q, &mut query);
        Ok(query)
    }

    fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let count = count_blocks(blocks, self.block_bytes())?;
        Error::expect_length("scores", queries.len().saturating_mul(count), scores.len())?;
        check_scales(blocks, self.block_bytes(), 1)?;
        Query::check_sketches(queries)?;
        scores.fill(0.0);
        self.sketch.score(queries, &self.rows(blocks), scores);
        Ok(())
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc.len())?;
        check_scales(blocks, self.block_bytes(), 1)?;
        self.sketch.accumulate_sketched(weights, &self.rows(blocks), acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32; D]) {
        self.sketch.transposed(acc);
    }
}
