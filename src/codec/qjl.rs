//! The codec `qjl`: the norm and the signs of a sketched vector, one bit a value, with unbiased
//! scores.
//!
//! The method is QJL (Zandieh, Daliri, Han). The default sketch is orthonormal, of two Hadamard
//! rounds. `sketch=gauss` is the published dense matrix. Scores take a query of int8 values in the
//! sketch's basis.
//!
//! ```text
//! block   f16 norm │ sign plane
//! ```

use super::query::{Body, QueryFormat};
use super::scratch::with_scratch;
use super::{
    Codec, SMALLEST_NORM, check_accumulate, check_block, check_scales, check_score, norm, read_f16, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::codec::sketch::{Sketch, SketchSpec};
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value, builders, parse_int};
use crate::{Backend, Error};
use octaplex_arch::SignRows;

/// Parameters of [`Qjl`]: `qjl:sketch=wht,sketch_rounds=2,seed=0`.
///
/// A block of D values has an f16 norm, and ⌈D/8⌉ bytes of signs.
///
/// ```
/// use octaplex::codecs::QjlSpec;
/// use octaplex::CodecSpec;
///
/// let spec = QjlSpec::new();
/// assert_eq!(CodecSpec::from(spec).to_string(), "qjl");
/// assert_eq!(spec.block_bytes(128), 2 + 16);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QjlSpec {
    /// Parameters of the sketch.
    pub sketch: SketchSpec,
    /// Seed of the sketch.
    pub seed: u64,
}

impl QjlSpec {
    /// Creates the default parameters.
    #[must_use]
    pub const fn new() -> Self {
        Self { sketch: SketchSpec::new(), seed: 0 }
    }

    builders! {
        sketch: SketchSpec;
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        2 + SketchSpec::bytes(dim)
    }
}

impl Spec for QjlSpec {
    const NAME: &'static str = "qjl";
    const SAMPLES: &'static [Sample] = &[("qjl", 128), ("qjl:sketch_rounds=1,seed=2", 112)];
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

/// QJL for vectors of `D` values. [`QjlSpec`] has the parameters. The state is 2.3 KiB of signs
/// (8·D² bytes with `sketch=gauss`).
///
/// It is the published estimator (Zandieh, Daliri, Han), with an orthonormal sketch by default.
/// Encoding takes O(D log D), and O(D²) with `gauss`.
///
/// ```
/// use octaplex::codecs::Qjl;
/// use octaplex::Error;
///
/// let codec = Qjl::<128>::new()?;
/// let mut block = [0; 18];
/// codec.encode(&[1.0; 128], &mut block)?;
/// let mut score = [0.0];
/// codec.score(&[codec.prepare_query(&[1.0; 128])?], &block, &mut score)?;
/// assert!((score[0] - 128.0).abs() < 40.0); // one bit a value: unbiased, and noisy
/// # Ok::<(), Error>(())
/// ```
pub type Qjl<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    dim: usize,
    backend: Kernels,
    sketch: Sketch,
}

impl<const D: usize> Qjl<D> {
    /// Creates a codec with default parameters, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Width`] unless `D` is one of [`WIDTHS`].
    pub fn new() -> Result<Self, Error> {
        Self::build(QjlSpec::default(), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Width`] unless `dim` is one of [`WIDTHS`]; [`Error::Value`] for rounds out of
    /// range; [`Error::Unsupported`] for a dense sketch of several rounds, or without `alloc`.
    pub(crate) fn build(spec: QjlSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        let sketch = Sketch::build(spec.sketch, dim, spec.seed, backend, head)?;
        Ok(Self { dim, backend: backend.kernels(), sketch })
    }

    fn format(&self) -> QueryFormat {
        QueryFormat::new(self.dim, Body::None).sketched()
    }

    fn rows<'a>(&self, blocks: &'a [u8]) -> SignRows<'a> {
        SignRows { bytes: blocks, stride: self.block_bytes(), dim: self.dim, at: 0, outer: None }
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.dim
    }

    fn block_bytes(&self) -> usize {
        2 + SketchSpec::bytes(self.dim)
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        let norm = norm(self.backend, x)?;
        let stored = to_f16(norm)?;
        if norm < SMALLEST_NORM || stored.to_bits() == 0 {
            block.fill(0);
            return Ok(());
        }
        let (head, plane) = block.split_at_mut(2);
        head.copy_from_slice(&stored.to_le_bytes());
        with_scratch(self.dim, |sketched| {
            sketched.copy_from_slice(x);
            self.sketch.encode(sketched, plane);
            Ok(())
        })
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim, x, self.block_bytes(), block)?;
        check_scales(block, block.len(), 1)?;
        self.sketch.decode(&block[2..], read_f16(block).to_f32(), x);
        Ok(())
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        let format = self.format();
        format.check_prepare(q, query)?;
        format.write(self.backend, q, query);
        with_scratch(self.dim, |basis| {
            basis.copy_from_slice(q);
            self.sketch.prepare(&format, basis, query);
            Ok(())
        })
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        check_score(queries, blocks, self.block_bytes(), scores)?;
        check_scales(blocks, self.block_bytes(), 1)?;
        let format = self.format();
        format.check(queries)?;
        scores.fill(0.0);
        self.sketch.score(&format, queries, &self.rows(blocks), scores)
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        check_accumulate(weights, blocks, self.block_bytes(), acc, self.dim)?;
        check_scales(blocks, self.block_bytes(), 1)?;
        self.sketch.accumulate_sketched(weights, &self.rows(blocks), acc);
        Ok(())
    }

    fn finish(&self, acc: &mut [f32]) {
        acc.chunks_exact_mut(self.dim).for_each(|acc| self.sketch.transposed(acc));
    }
}
