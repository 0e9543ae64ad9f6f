//! Rows that come in, in any float type.

use crate::backend::Kernels;
#[cfg(feature = "alloc")]
use core::ops::Range;
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

/// Values on the stack: most rows, and few zeros to clear.
const AT_ONCE: usize = 128;

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

    /// Some of them.
    #[cfg(feature = "alloc")]
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        match *self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F16(values) => Self::F16(&values[range]),
            Self::Bf16(values) => Self::Bf16(&values[range]),
        }
    }

    /// The first value that f16 cannot hold, if there is one, and whether it is finite.
    pub(crate) fn first_unfit(&self) -> Option<(usize, bool)> {
        fn first(values: impl Iterator<Item = f32>) -> Option<(usize, bool)> {
            values
                .enumerate()
                .find(|(_, x)| x.is_nan() || x.abs() >= LIMIT)
                .map(|(at, x)| (at, x.is_finite()))
        }
        // Without an early exit, and on bits, compilers make vectors of it. The first bf16 from LIMIT on is 65536.
        let is_fit = match self {
            Self::F32(values) => values.iter().fold(true, |fit, x| fit & (x.abs() < LIMIT)),
            Self::F16(values) => values.iter().fold(true, |fit, x| fit & (x.to_bits() & 0x7c00 < 0x7c00)),
            Self::Bf16(values) => values.iter().fold(true, |fit, x| fit & (x.to_bits() & 0x7fff < 0x4780)),
        };
        match self {
            _ if is_fit => None,
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
                let mut row = [0.0; AT_ONCE];
                for (values, bytes) in values[range].chunks(AT_ONCE).zip(bytes.chunks_mut(2 * AT_ONCE)) {
                    let row = &mut row[..values.len()];
                    let finite = values.iter().map(|x| f32::from_bits(u32::from(x.to_bits()) << 16));
                    row.iter_mut().zip(finite).for_each(|(slot, x)| *slot = x);
                    backend.encode_floats(Float::F16, row, bytes);
                }
            }
        }
    }

    /// Rows of `dim` values, rounded to f16, the first from value `from` on, each `stride` behind the one before.
    pub(crate) fn read(&self, backend: Kernels, from: usize, (stride, dim): (usize, usize), out: &mut [f32]) {
        let mut bytes = [0; 2 * MAX_DIM];
        for (row, out) in out.chunks_exact_mut(dim).enumerate() {
            self.write(backend, from + row * stride, &mut bytes[..2 * dim]);
            backend.decode_floats(Float::F16, &bytes[..2 * dim], out);
        }
    }
}
