//! The codec `octopus-qjl`: OCTOPUS and a sign sketch of its residual, which makes scores unbiased.
//!
//! The method is OCTOPUS (Boss, Voleti, Donné, Vainer), section 3.6. Scores are those of `octopus`
//! plus the sketch's estimate of <q, residual>. Deviations are those of `octopus` and of the sketch
//! (see `qjl`). The residual is that of the vector divided by its *stored* norm. So the estimate
//! also corrects the gain and the rounding of the norm. `decode` adds the sketch's reconstruction.
//! It scores as the estimate does, but at low rates it is a worse reconstruction.
//!
//! ```text
//! block   block of `octopus` │ f16 norm of the residual │ sign plane
//! ```

use super::octopus::{self, OctopusSpec};
use super::sketched::Sketched;
use crate::codec::sketch::{Sketch, SketchSpec};
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::spec::{Key, Sample, Spec, Value, builders};
use crate::{Backend, Error};

/// Parameters of [`OctopusQjl`]: the keys of `octopus`, then those of the sketch.
/// `octopus-qjl:bits=3,split=paper,…,gain=mse,rounds=1,seed=0,sketch=wht,sketch_rounds=2`.
///
/// A block of D values takes a block of `octopus`, two bytes for the norm of the residual, and
/// ⌈D/8⌉ bytes of signs. That is 1.9375 to 8 bits a value at D = 128.
///
/// ```
/// use octaplex::codecs::OctopusQjlSpec;
/// use octaplex::CodecSpec;
///
/// let spec = OctopusQjlSpec::new(3);
/// assert_eq!(CodecSpec::from(spec).to_string(), "octopus-qjl");
/// assert_eq!(spec.block_bytes(128), 56 + 2 + 16);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OctopusQjlSpec {
    /// Parameters of the octahedral stage.
    pub octopus: OctopusSpec,
    /// Parameters of the sketch of the residual.
    pub sketch: SketchSpec,
}

impl OctopusQjlSpec {
    /// Creates parameters with the published split for `bits` bits, 1 to 5. Others are defaults.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        Self { octopus: OctopusSpec::new(bits), sketch: SketchSpec::new() }
    }

    builders! {
        octopus: OctopusSpec;
        sketch: SketchSpec;
    }

    /// Returns the bytes of a block of `dim` values. 0 for impossible numbers of bits.
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
    const SAMPLES: &'static [Sample] = &[
        ("octopus-qjl", 64),
        ("octopus-qjl:bits=2,gain=norm", 96),
        ("octopus-qjl:bits=5,split=even,tail=paper,norm=f32,seed=5,sketch_rounds=3", 128),
    ];
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

/// OCTOPUS and a sign sketch of its residual, for vectors of `D` values. [`OctopusQjlSpec`] has the
/// parameters.
///
/// The state is that of [`Octopus`](crate::codecs::Octopus), and 2.3 KiB of signs (8·D² bytes with
/// `sketch=gauss`). The cost is that of both stages.
///
/// The method is OCTOPUS (Boss, Voleti, Donné, Vainer), section 3.6. The rate is about bits + 1 +
/// 1/3 + 32/D bits a value: see [`CodecSpec::bits_per_value`](crate::CodecSpec::bits_per_value).
///
/// ```
/// use octaplex::codecs::OctopusQjl;
/// use octaplex::Error;
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
pub(crate) type Core = Sketched<octopus::Core>;

impl<const D: usize> OctopusQjl<D> {
    /// Creates a codec with the published split for `bits` bits and a sketch, other parameters by
    /// default, on the fastest backend of this CPU.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bits` is 1 to 5; [`Error::Width`] unless `D` is a listed width.
    pub fn new(bits: u8) -> Result<Self, Error> {
        if !(1..=5).contains(&bits) {
            return Err(OCTOPUS[0].error(0));
        }
        Self::build(OctopusQjlSpec::new(bits), Backend::detect(), HeadId::default())
    }
}

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Value`] for bits or rounds out of range; [`Error::Width`] unless `dim` is a listed
    /// width; [`Error::Unsupported`] for a dense sketch of several rounds, or without `alloc`.
    pub(crate) fn build(
        spec: OctopusQjlSpec,
        dim: usize,
        backend: Backend,
        head: HeadId,
    ) -> Result<Self, Error> {
        let coarse = octopus::Core::build(spec.octopus, dim, backend, head)?;
        let sketch = Sketch::build(spec.sketch, dim, spec.octopus.seed, backend, head)?;
        Ok(Self::new(coarse, sketch))
    }
}
