//! Rows that come in, in any float type.

use crate::backend::Kernels;
use half::{bf16, f16};
use octaplex_arch::{Float, MAX_DIM};

/// Rows to append, head by head: \[heads]\[tokens]\[width]. A slice of any of the three types turns into one; values are below 65,520 in magnitude, as f16 keeps the newest ones.
///
/// ```
/// use octaplex::{Backend, Error, LayerCache, LayerConfig, TurboQuant, bf16};
///
/// let config = LayerConfig::new(2, 64, 1000);
/// let (mut memory, mut scratch) = (vec![0; config.required_bytes()], vec![0.0; config.scratch_len(2)]);
/// let mut cache = LayerCache::<TurboQuant<64>, TurboQuant<64>, _>::new(&config, Backend::detect(), &mut memory)?;
/// let (keys, values) = (vec![bf16::ONE; 2 * 3 * 64], vec![0.5f32; 2 * 3 * 64]); // three tokens of two heads
/// cache.append(&keys[..], &values[..], &mut scratch)?;
/// assert_eq!(cache.stats().tokens, 3);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Tensor<'a> {
    /// In f32.
    F32(&'a [f32]),
    /// In f16.
    F16(&'a [f16]),
    /// In bf16.
    Bf16(&'a [bf16]),
}

impl<'a> From<&'a [f32]> for Tensor<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a [f16]> for Tensor<'a> {
    fn from(values: &'a [f16]) -> Self {
        Self::F16(values)
    }
}

impl<'a> From<&'a [bf16]> for Tensor<'a> {
    fn from(values: &'a [bf16]) -> Self {
        Self::Bf16(values)
    }
}

#[cfg(feature = "alloc")]
impl<'a> From<&'a alloc::vec::Vec<f32>> for Tensor<'a> {
    fn from(values: &'a alloc::vec::Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Tensor<'a> {
    fn from(values: &'a [f32; N]) -> Self {
        Self::F32(values)
    }
}

/// f16 rounds this to infinity.
pub(crate) const LIMIT: f32 = 65520.0;

impl Tensor<'_> {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first value that f16 cannot hold, if there is one, and whether it is finite.
    pub(crate) fn first_unfit(&self) -> Option<(usize, bool)> {
        fn first(values: impl Iterator<Item = f32>) -> Option<(usize, bool)> {
            values
                .enumerate()
                .find(|(_, x)| x.is_nan() || x.abs() >= LIMIT)
                .map(|(at, x)| (at, x.is_finite()))
        }
        // Sixteen at a time, without a way out between them: a compiler makes vectors of that.
        let fit = |values: &[f32]| values.iter().fold(true, |fit, x| fit & (x.abs() < LIMIT));
        match self {
            Self::F32(values) if values.chunks(16).all(fit) => None,
            Self::F32(values) => first(values.iter().copied()),
            Self::F16(values) => first(values.iter().map(|x| x.to_f32())),
            Self::Bf16(values) => first(values.iter().map(|x| x.to_f32())),
        }
    }

    /// Writes values `from..from + bytes.len() / 2` as f16.
    pub(crate) fn write(&self, backend: Kernels, from: usize, bytes: &mut [u8]) {
        let range = from..from + bytes.len() / 2;
        match self {
            Self::F32(values) => backend.encode_floats(Float::F16, &values[range], bytes),
            Self::F16(values) => {
                for (x, bytes) in values[range].iter().zip(bytes.as_chunks_mut::<2>().0) {
                    *bytes = x.to_le_bytes();
                }
            }
            Self::Bf16(values) => {
                for (x, bytes) in values[range].iter().zip(bytes.as_chunks_mut::<2>().0) {
                    *bytes = f16::from_f32(x.to_f32()).to_le_bytes();
                }
            }
        }
    }

    /// Values `from..from + out.len()`, rounded to f16, `dim` at a time.
    pub(crate) fn read(&self, backend: Kernels, from: usize, dim: usize, out: &mut [f32]) {
        let mut bytes = [0; 2 * MAX_DIM];
        for (row, out) in out.chunks_exact_mut(dim).enumerate() {
            self.write(backend, from + row * dim, &mut bytes[..2 * dim]);
            backend.decode_floats(Float::F16, &bytes[..2 * dim], out);
        }
    }
}
