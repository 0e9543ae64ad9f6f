//! Kernels for blocks of 32 integers that follow their scale.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod layout;
pub(crate) mod scalar;

use crate::detect::Isa;
use crate::{Backend, Scaled};

impl Backend {
    /// Quantises values into blocks. Returns whether all scales are finite as f16. If not, the
    /// bytes are unspecified.
    ///
    /// # Panics
    /// If `x` is not whole blocks of 32 values, or `bytes` does not have as many blocks.
    #[must_use]
    pub fn quantize_scaled(self, layout: Scaled, x: &[f32], bytes: &mut [u8]) -> bool {
        check_scaled(layout, x.len(), bytes.len());
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: scalar;
            quantize_scaled(layout: Scaled, x: &[f32], bytes: &mut [u8]) -> bool
        )
    }

    /// Decodes blocks: out = integer · scale. Scales must be finite.
    ///
    /// # Panics
    /// If `out` is not whole blocks of 32 values, or `bytes` does not have as many blocks.
    pub fn decode_scaled(self, layout: Scaled, bytes: &[u8], out: &mut [f32]) {
        check_scaled(layout, out.len(), bytes.len());
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: scalar;
            decode_scaled(layout: Scaled, bytes: &[u8], out: &mut [f32])
        )
    }
}

/// Checks that the bytes are the blocks of `values` values.
fn check_scaled(layout: Scaled, values: usize, bytes: usize) {
    contract!(values.is_multiple_of(layout::VALUES));
    contract!(bytes == values / layout::VALUES * layout.bytes());
}
