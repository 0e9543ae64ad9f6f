//! The specification of blocks of 32 integers that follow their scale.
//!
//! Loops are written for LLVM to vectorise. Conversions to integers read the low bits of a sum with
//! [`RINT_MAGIC`], because Rust's casts saturate, which takes twice as long.

use super::layout::VALUES;
use crate::Scaled;
use crate::floats::{RINT_MAGIC, f16_to_f32, f32_to_f16};

/// Quantises blocks. Returns whether all scales are finite as f16.
#[inline(always)]
pub(crate) fn quantize_scaled(layout: Scaled, x: &[f32], bytes: &mut [u8]) -> bool {
    match layout {
        Scaled::Bytes => each::<{ Scaled::Bytes.bytes() }>(x, bytes, quantize_bytes),
        Scaled::Fives => each::<{ Scaled::Fives.bytes() }>(x, bytes, quantize_fives),
        Scaled::Nibbles => each::<{ Scaled::Nibbles.bytes() }>(x, bytes, quantize_nibbles),
    }
}

/// Quantises to 8 bits.
#[inline(always)]
fn quantize_bytes(x: &[f32; VALUES], codes: &mut [u8]) -> f32 {
    let scale = magnitude(x) / 127.0;
    let inverse = inverse(scale);
    for (code, x) in codes.iter_mut().zip(x) {
        *code = round_half_away(x * inverse);
    }
    scale
}

/// Quantises to 5 bits.
#[inline(always)]
fn quantize_fives(x: &[f32; VALUES], bytes: &mut [u8]) -> f32 {
    let (scale, codes) = quantize_offset::<16>(x);
    let (fifths, nibbles) = bytes.split_at_mut(4);
    let mut bits = 0;
    for (j, code) in codes.iter().enumerate() {
        bits |= u32::from(code >> 4) << j;
    }
    fifths.copy_from_slice(&bits.to_le_bytes());
    pack(&codes, nibbles);
    scale
}

/// Quantises to 4 bits.
#[inline(always)]
fn quantize_nibbles(x: &[f32; VALUES], nibbles: &mut [u8]) -> f32 {
    let (scale, codes) = quantize_offset::<8>(x);
    pack(&codes, nibbles);
    scale
}

/// Quantises each block with `quantize`, which writes the bytes behind the scale and returns it.
#[inline(always)]
fn each<const BYTES: usize>(
    x: &[f32],
    bytes: &mut [u8],
    quantize: impl Fn(&[f32; VALUES], &mut [u8]) -> f32,
) -> bool {
    let mut finite = true;
    for (x, block) in x.as_chunks().0.iter().zip(bytes.as_chunks_mut::<BYTES>().0) {
        let (head, rest) = block.split_at_mut(2);
        let scale = f32_to_f16(quantize(x, rest));
        finite &= scale & 0x7c00 != 0x7c00;
        head.copy_from_slice(&scale.to_le_bytes());
    }
    finite
}

/// Returns the largest magnitude. Bits of magnitudes are ordered as the magnitudes are.
#[inline(always)]
fn magnitude(x: &[f32; VALUES]) -> f32 {
    let mut bits = [0; VALUES];
    bits.iter_mut().zip(x).for_each(|(bits, x)| *bits = x.abs().to_bits() as i32);
    let mut width = VALUES / 2;
    while width > 0 {
        for i in 0..width {
            bits[i] = bits[i].max(bits[i + width]);
        }
        width /= 2;
    }
    f32::from_bits(bits[0] as u32)
}

/// Returns the value with the largest magnitude, the first among equals. The sign matters: see
/// [`quantize_offset`].
#[inline(always)]
fn largest(x: &[f32; VALUES]) -> f32 {
    let (mut high, mut low) = (*x, *x);
    let mut width = VALUES / 2;
    while width > 0 {
        for i in 0..width {
            high[i] = if high[i] > high[i + width] { high[i] } else { high[i + width] };
            low[i] = if low[i] < low[i + width] { low[i] } else { low[i + width] };
        }
        width /= 2;
    }
    largest_of(high[0], low[0], x)
}

/// Returns the value with the largest magnitude, given the highest and the lowest of `x`.
#[inline(always)]
pub(super) fn largest_of(high: f32, low: f32, x: &[f32; VALUES]) -> f32 {
    if high == -low {
        // Zeros give +0, whatever their signs.
        return x.iter().fold(0.0, |largest: f32, x| if x.abs() > largest.abs() { *x } else { largest });
    }
    if high > -low { high } else { low }
}

/// Returns 1/scale, or 0 if that overflows f32.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Rounds to the nearest integer, and halves away from zero, for magnitudes up to 127.5.
#[inline(always)]
fn round_half_away(x: f32) -> u8 {
    let sum = x.abs() + RINT_MAGIC;
    // Halves went to the even neighbour, which may be the lower one.
    let up = if x.abs() - (sum - RINT_MAGIC) == 0.5 { 1 } else { 0 };
    let (magnitude, sign) = (sum.to_bits() as i32 + up, x.to_bits() as i32 >> 31);
    ((magnitude ^ sign) - sign) as u8
}

/// Quantises to codes below 2·OFFSET, and returns the scale. The value with the largest magnitude
/// gets code 0, the lowest integer.
#[inline(always)]
fn quantize_offset<const OFFSET: u8>(x: &[f32; VALUES]) -> (f32, [u8; VALUES]) {
    let scale = largest(x) / -f32::from(OFFSET);
    let inverse = inverse(scale);
    let mut codes = [0; VALUES];
    for (code, x) in codes.iter_mut().zip(x) {
        let y = x * inverse + (f32::from(OFFSET) + 0.5);
        let sum = y + RINT_MAGIC;
        // The code is ⌊y⌋, and the sum may have rounded it up.
        let up = if sum - RINT_MAGIC > y { 1 } else { 0 };
        *code = ((sum.to_bits() as i32 - up) as u8).min(2 * OFFSET - 1);
    }
    (scale, codes)
}

/// Packs the low four bits of codes.
#[inline(always)]
fn pack(codes: &[u8; VALUES], bytes: &mut [u8]) {
    let (low, high) = codes.split_at(VALUES / 2);
    for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = low & 15 | high << 4;
    }
}

/// Decodes blocks: out = integer · scale.
#[inline(always)]
pub(crate) fn decode_scaled(layout: Scaled, bytes: &[u8], out: &mut [f32]) {
    match layout {
        Scaled::Bytes => each_decoded::<{ Scaled::Bytes.bytes() }, 0>(bytes, out, unpack_bytes),
        Scaled::Fives => each_decoded::<{ Scaled::Fives.bytes() }, 16>(bytes, out, unpack_fives),
        Scaled::Nibbles => each_decoded::<{ Scaled::Nibbles.bytes() }, 8>(bytes, out, unpack_nibbles),
    }
}

/// Decodes each block with `unpack`, which gets the bytes behind the scale.
#[inline(always)]
fn each_decoded<const BYTES: usize, const OFFSET: i8>(
    bytes: &[u8],
    out: &mut [f32],
    unpack: impl Fn(&[u8], &mut [u8; VALUES]),
) {
    for (block, out) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<VALUES>().0) {
        let (head, rest) = block.split_at(2);
        let scale = f16_to_f32(u16::from_le_bytes([head[0], head[1]]));
        let mut codes = [0; VALUES];
        unpack(rest, &mut codes);
        for (x, code) in out.iter_mut().zip(codes) {
            *x = f32::from(code as i8 - OFFSET) * scale;
        }
    }
}

/// Reads codes of 8 bits.
#[inline(always)]
fn unpack_bytes(bytes: &[u8], codes: &mut [u8; VALUES]) {
    codes.copy_from_slice(bytes);
}

/// Unpacks codes of 5 bits.
#[inline(always)]
fn unpack_fives(bytes: &[u8], codes: &mut [u8; VALUES]) {
    let (fifths, nibbles) = bytes.split_at(4);
    unpack_nibbles(nibbles, codes);
    for (codes, byte) in codes.as_chunks_mut::<8>().0.iter_mut().zip(fifths) {
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= if byte & 1 << j == 0 { 0 } else { 16 };
        }
    }
}

/// Unpacks codes of 4 bits.
#[inline(always)]
fn unpack_nibbles(bytes: &[u8], codes: &mut [u8; VALUES]) {
    let (low, high) = codes.split_at_mut(VALUES / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}
