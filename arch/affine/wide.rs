//! Rows of integers with a scale, for registers: the specification around a faster `unpack`.

use super::scalar;
use crate::Affine;
use crate::codes::wide::unpack;
use crate::registers::Registers;

/// Implements `scalar::decode_affine`.
#[inline(always)]
pub(crate) fn decode_affine<L: Registers>(layout: &Affine, row: &[u8], out: &mut [f32]) {
    scalar::decode_affine_with(unpack::<L>, layout, row, out);
}
