//! The codec `turboquant-qjl`, TurboQuant's inner-product form: the MSE form with one bit less, and
//! a sign sketch of its residual.
//!
//! The method is TurboQuant (Zandieh, Daliri, Hadian, Mirrokni), Algorithm 2. Scores are the
//! published unbiased estimator: the integer score of the MSE stage, plus the sketch's estimate of
//! <q, residual>. `decode` follows the paper; scoring does not use it. Deviations are those of the
//! MSE form and of the sketch (see `qjl`). The norm of the residual is stored, because it cannot be
//! computed from the codes.
//!
//! ```text
//! block   f16 norm │ raw plane, `bits - 1` bits a code │ f16 norm of the unit vector's residual │ sign plane
//! ```

use super::sketched::Sketched;
use super::turboquant::{self, Gain, TurboQuantSpec};
use crate::codec::sketch::{Sketch, SketchSpec};
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::rotation::RotationKind;
use crate::spec::{Key, Sample, Spec, Value, builders, describe_planes, one_of, parse_int};
use crate::{Backend, Error};
use octaplex_arch::Packing;

/// Parameters of [`TurboQuantQjl`]:
/// `turboquant-qjl:bits=3,sketch=wht,sketch_rounds=2,rounds=1,rotation=wht,seed=0`.
///
/// A block of D values has a block of `turboquant` with one bit less, an f16 norm of the residual,
/// and ⌈D/8⌉ bytes of signs. That is 2.25 to 8.25 bits a value at D = 128.
///
/// ```
/// use octaplex::codecs::TurboQuantQjlSpec;
/// use octaplex::CodecSpec;
///
/// let spec = TurboQuantQjlSpec::new(4);
/// assert_eq!(CodecSpec::from(spec).to_string(), "turboquant-qjl:bits=4");
/// assert_eq!(spec.block_bytes(128), (2 + 48) + 2 + 16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TurboQuantQjlSpec {
    /// Bits of a value, 2 to 8: one for the sketch, the others for the codes.
    pub bits: u8,
    /// Parameters of the sketch of the residual.
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
        Self::new(3)
    }
}

impl TurboQuantQjlSpec {
    /// Creates parameters with `bits` bits a value, 2 to 8, one of them for the sketch. Others are
    /// defaults.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        Self { bits, sketch: SketchSpec::new(), rounds: 1, rotation: RotationKind::Wht, seed: 0 }
    }

    builders! {
        sketch: SketchSpec;
        rounds: u8;
        rotation: RotationKind;
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values. 0 for impossible bits.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.bits {
            2..=8 => self.residual_at(dim) + 2 + SketchSpec::bytes(dim),
            _ => 0,
        }
    }

    /// Returns the offset of the residual's norm.
    const fn residual_at(&self, dim: usize) -> usize {
        2 + Packing::bits(self.bits - 1).bytes(dim)
    }
}

const BITS: Key = Key::new("bits", "2..=8");

impl Spec for TurboQuantQjlSpec {
    const NAME: &'static str = "turboquant-qjl";
    const SAMPLES: &'static [Sample] = &[
        ("turboquant-qjl", 128),
        ("turboquant-qjl:bits=2", 96),
        ("turboquant-qjl:bits=6,sketch_rounds=3,seed=5", 64),
        ("turboquant-qjl:bits=8,sketch_rounds=1,rounds=2", 80),
    ];
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

/// TurboQuant and a sign sketch of its residual, for vectors of `D` values. [`TurboQuantQjlSpec`]
/// has the parameters.
///
/// The state is that of [`TurboQuant`](crate::codecs::TurboQuant), and 2.3 KiB of signs (8·D² bytes
/// with `sketch=gauss`). The cost is that of both stages. The method is TurboQuant's inner-product
/// form (Zandieh, Daliri, Hadian, Mirrokni, Algorithm 2).
///
/// ```
/// use octaplex::codecs::TurboQuantQjl;
/// use octaplex::Error;
///
/// let codec = TurboQuantQjl::<64>::new(4)?;
/// let mut block = [0; 36];
/// codec.encode(&[0.5; 64], &mut block)?;
/// let mut score = [0.0];
/// codec.score(&[codec.prepare_query(&[0.25; 64])?], &block, &mut score)?;
/// assert!((score[0] - 8.0).abs() < 1.0); // 64 · 0.5 · 0.25
/// # Ok::<(), Error>(())
/// ```
pub type TurboQuantQjl<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
pub(crate) type Core = Sketched<turboquant::Core>;

impl<const D: usize> TurboQuantQjl<D> {
    /// Creates a codec with `bits` bits a value (one of them for the sketch), other parameters by
    /// default, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 2 to 8; [`Error::Width`] unless `D` is a listed width.
    pub fn new(bits: u8) -> Result<Self, Error> {
        Self::build(TurboQuantQjlSpec::new(bits), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for bits or rounds out of range; [`Error::Width`] unless `dim` is a listed
    /// width; [`Error::Unsupported`] for dense matrices of several rounds, or without `alloc`.
    pub(crate) fn build(
        spec: TurboQuantQjlSpec,
        dim: usize,
        backend: Backend,
        head: HeadId,
    ) -> Result<Self, Error> {
        if !(2..=8).contains(&spec.bits) {
            return Err(BITS.error(0));
        }
        let coarse = TurboQuantSpec::new(spec.bits - 1)
            .gain(Gain::Norm)
            .rounds(spec.rounds)
            .rotation(spec.rotation)
            .seed(spec.seed);
        let coarse = turboquant::Core::build(coarse, dim, backend, head)?;
        let sketch = Sketch::build(spec.sketch, dim, spec.seed, backend, head)?;
        Ok(Self::new(coarse, sketch))
    }
}
