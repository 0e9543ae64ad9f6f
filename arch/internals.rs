//! Parts of kernels that `tests/parts.rs` tests on their own: checks that `// SAFETY:` comments rely on,
//! and that no call of a method of [`Backend`] reaches. All are inlined, so the library has no code of them.

#[cfg(target_arch = "x86_64")]
pub use crate::quaternions::layout::unit_reciprocal;
pub use crate::quaternions::scalar::unpack_chunks;
#[cfg(target_arch = "x86_64")]
pub use crate::rows::blocks::{Block, Blocks, Padded, ROWS, Window};

use crate::prefetch::{AHEAD, LONG};
use crate::{Backend, Rows};

/// Reads the scales of the first two rows.
#[inline]
#[must_use]
pub fn two_scales(rows: &Rows) -> [f32; 2] {
    let mut scales = [0.0; 2];
    rows.read_scales(0, &mut scales);
    scales
}

/// Returns the f16 of the first two rows, if the bytes contain them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[inline]
#[must_use]
pub fn two_halves(rows: &Rows) -> Option<[u16; 2]> {
    rows.halves(0)
}

/// Returns the bytes that a kernel of this backend prefetches after it has started, for `count` rows
/// from `first` on.
#[inline]
#[must_use]
pub fn prefetched<'a>(backend: Backend, rows: &Rows<'a>, first: usize, count: usize) -> &'a [u8] {
    rows.some(first, count).prefetch(backend).ahead
}

/// Returns from which byte on rows longer than the second number prefetch themselves. `None` if kernels
/// of this backend do not prefetch block by block.
#[inline]
#[must_use]
pub fn prefetches(backend: Backend) -> Option<(usize, usize)> {
    backend.prefetches_by_blocks().then_some((AHEAD, LONG))
}
