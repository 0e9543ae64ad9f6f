//! Norms of a page's rows, kept together: the largest in f16, and for each row how far below it lies, in some bits.
//!
//! A code is a step of a logarithmic scale: 0 is zero, the highest one the largest norm, the others 4/2^bits octaves apart.
//! The scale ends four octaves below the largest, so that a shorter row gets the least norm or none, whichever is nearer.
//! Where that would cost more than it saves (one row as long as none of the others), steps are twice as wide and the scale
//! reaches eight octaves down: the sign of the f16, which a norm has no use for, says so.

use crate::Error;
use crate::backend::Kernels;
use crate::codec::{read_f16, to_f16};
use half::f16;
use octaplex_arch::Packing;

/// Bits of a norm beside planes of so many bytes for `dim` values; 0 where blocks stay as they are.
///
/// A step's error is uniform: with 6 bits 1.6·10⁻⁴ of a row's energy, .7% of what codes of 3 bits lose; with 8 bits 10⁻⁵,
/// 2% of codes of 6 bits. Finer codes keep norms in f16.
pub(crate) const fn norm_bits(planes: usize, dim: usize) -> u8 {
    match 8 * planes {
        0 => 0,
        bits if bits <= 3 * dim => 6,
        bits if bits <= 6 * dim => 8,
        _ => 0,
    }
}

/// Bytes of the norms of a page's rows.
pub(crate) const fn norm_bytes(bits: u8, tokens: usize) -> usize {
    if bits == 0 { 0 } else { 2 + Packing::bits(bits).bytes(tokens) }
}

/// The largest integer of a scale.
const TOP: i16 = i16::MAX;

static FOUR_OCTAVES: ([i16; 64], [i16; 256]) = (scale(4), scale(4));
static EIGHT_OCTAVES: ([i16; 64], [i16; 256]) = (scale(8), scale(8));

/// What codes stand for, in units of the largest norm over [`TOP`].
fn scale_of(bits: u8, wide: bool) -> &'static [i16] {
    let scales = if wide { &EIGHT_OCTAVES } else { &FOUR_OCTAVES };
    if bits == 6 { &scales.0 } else { &scales.1 }
}

/// Nearest integers to `TOP`·2^(-octaves·k/N) for the k-th code from above; 0 for code 0.
const fn scale<const N: usize>(octaves: u32) -> [i16; N] {
    // 2^(-octaves/N) with 62 bits behind the point, by square roots of a half.
    let mut ratio = 1u128 << 61;
    let mut halvings = N.trailing_zeros() - octaves.trailing_zeros();
    while halvings > 0 {
        ratio = (ratio << 62).isqrt();
        halvings -= 1;
    }
    let (mut scale, mut value, mut code) = ([0; N], (TOP as u128) << 48, N - 1);
    while code > 0 {
        scale[code] = ((value + (1 << 47)) >> 48) as i16;
        value = (value * ratio) >> 62;
        code -= 1;
    }
    scale
}

/// Encodes norms, finite and not negative.
pub(crate) fn encode(backend: Kernels, bits: u8, norms: &[f32], bytes: &mut [u8]) -> Result<(), Error> {
    let largest = to_f16(backend.min_max(norms).1.max(0.0))?;
    let (head, plane) = bytes.split_at_mut(2);
    if largest == f16::ZERO {
        bytes.fill(0);
        return Ok(());
    }
    let (mut codes, mut wide_codes) = ([0; 256], [0; 256]);
    let (codes, wide_codes) = (&mut codes[..norms.len()], &mut wide_codes[..norms.len()]);
    let loss = choose(scale_of(bits, false), norms, largest.to_f32(), codes);
    let wide = choose(scale_of(bits, true), norms, largest.to_f32(), wide_codes) < loss;
    let flag = if wide { 0x8000 } else { 0 };
    head.copy_from_slice(&(largest.to_bits() | flag).to_le_bytes());
    backend.pack(Packing::bits(bits), if wide { wide_codes } else { codes }, plane);
    Ok(())
}

/// The nearest code of each norm, and Σ(norm - its code's)²/norm.
fn choose(scale: &[i16], norms: &[f32], largest: f32, codes: &mut [u8]) -> f32 {
    let (unit, per_unit) = (largest / f32::from(TOP), f32::from(TOP) / largest);
    let mut loss = 0.0;
    for (norm, code) in norms.iter().zip(codes) {
        let twice = 2.0 * (norm * per_unit);
        let next = |k: usize| i32::from(scale[k]) + i32::from(scale[k + 1]);
        // The number of midpoints that are not above.
        let (mut low, mut high) = (0, scale.len() - 1);
        while low < high {
            let middle = (low + high) / 2;
            if twice >= next(middle) as f32 { low = middle + 1 } else { high = middle }
        }
        *code = low as u8;
        let error = norm - f32::from(scale[low]) * unit;
        loss += if *norm > 0.0 { error * error / norm } else { 0.0 };
    }
    loss
}

/// Decodes norms.
///
/// # Errors
/// [`Error::Corrupt`] where the largest is not finite.
pub(crate) fn decode(backend: Kernels, bits: u8, bytes: &[u8], norms: &mut [f32]) -> Result<(), Error> {
    let largest = read_f16(bytes);
    if !largest.is_finite() {
        return Err(Error::Corrupt { block: 0 });
    }
    let mut codes = [0; 256];
    let codes = &mut codes[..norms.len()];
    backend.unpack(Packing::bits(bits), &bytes[2..], codes);
    let scale = scale_of(bits, largest.is_sign_negative());
    backend.lookup(codes, scale, largest.to_f32().abs() / f32::from(TOP), norms);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn scales_are_powers_of_two() {
        for (bits, wide) in [(6, false), (6, true), (8, false), (8, true)] {
            let scale = scale_of(bits, wide);
            assert_eq!((scale.len(), scale[0]), (1 << bits, 0));
            let octaves = if wide { 8.0 } else { 4.0 };
            for (code, value) in scale.iter().enumerate().skip(1) {
                let below = (scale.len() - 1 - code) as f64 * octaves / scale.len() as f64;
                let exact = f64::from(TOP) * (-below).exp2();
                assert_eq!(f64::from(*value), exact.round(), "code {code} of {bits} bits");
            }
        }
    }

    fn round_trip(bits: u8, norms: &[f32]) -> (bool, std::vec::Vec<f32>) {
        let mut bytes = std::vec![0xaa; norm_bytes(bits, norms.len())];
        let mut decoded = std::vec![0.0; norms.len()];
        assert_eq!(encode(Kernels::SCALAR, bits, norms, &mut bytes), Ok(()));
        assert_eq!(decode(Kernels::SCALAR, bits, &bytes, &mut decoded), Ok(()));
        (bytes[1] & 0x80 != 0, decoded)
    }

    /// Half a step at most, in either scale; zeros stay zeros, tiny rows get nothing.
    #[test]
    fn norms_come_back() {
        for (bits, step) in [(6, 1.0 / 16.0), (8, 1.0 / 64.0)] {
            let even: [f32; 64] = core::array::from_fn(|i| 3.0 * (-0.06 * i as f32).exp2());
            let (wide, decoded) = round_trip(bits, &even);
            assert!(!wide);
            for (a, b) in even.iter().zip(&decoded) {
                assert!((a / b).log2().abs() < 0.51 * step, "{a} {b}");
            }
            // All but one are less than a sixteenth of the largest.
            let mut spiked = even.map(|x| x / 40.0);
            spiked[20] = 3.0;
            let (wide, decoded) = round_trip(bits, &spiked);
            assert!(wide);
            for (a, b) in spiked.iter().zip(&decoded) {
                let below = a < &(3.0 * (-8.0f32).exp2());
                assert!((a / b).log2().abs() < 1.02 * step || below, "{a} {b}");
            }
            let mut sparse = even;
            (sparse[1], sparse[2], sparse[3]) = (0.0, 1e-6, 3.0 / 17.0);
            let (wide, decoded) = round_trip(bits, &sparse);
            assert_eq!((wide, &decoded[1..3]), (false, &[0.0; 2][..]));
            assert!((decoded[3] - sparse[3]).abs() < 0.03);
            assert_eq!(round_trip(bits, &[0.0; 64]).1, [0.0; 64]);
        }
    }

    #[test]
    fn norms_that_are_not_finite_are_refused() {
        let mut norms = [0.0; 64];
        for head in [0x7c00u16, 0xfc00, 0x7e00, 0xffff] {
            let mut bytes = [0; norm_bytes(6, 64)];
            bytes[..2].copy_from_slice(&head.to_le_bytes());
            let refused = Err(Error::Corrupt { block: 0 });
            assert_eq!(decode(Kernels::SCALAR, 6, &bytes, &mut norms), refused);
        }
        assert_eq!(encode(Kernels::SCALAR, 6, &[1e6; 64], &mut [0; norm_bytes(6, 64)]), Err(Error::Overflow));
    }

    /// How many bits go with which codes.
    #[test]
    fn finer_codes_have_finer_norms() {
        let bits = [1, 2, 3, 4, 5, 6, 7, 8].map(|bits| norm_bits(16 * bits, 128));
        assert_eq!(bits, [6, 6, 6, 8, 8, 8, 0, 0]);
        assert_eq!([norm_bits(0, 128), norm_bits(49, 128), norm_bits(97, 128)], [0, 8, 0]);
    }
}
