//! Norms of a page's rows, coded together in 6 bits each relative to the largest.
//!
//! ```text
//! bytes   f16 largest norm │ u8 log2 of the octaves (its lowest two bits count) │ codes, row after row
//!
//! code    0        1                       2  …  62               63
//! norm    zero     ≈ largest / 2^(octaves · 62/64)                largest
//! ```
//!
//! Codes are steps of a logarithmic scale, `octaves`/64 octaves apart. A page uses the scale of 1,
//! 2, 4 or 8 octaves that loses least. Rows of similar norms thus get fine steps. One very long row
//! does not push all others to zero, because the scale can be wide. A norm below the scale becomes
//! the scale's least norm or zero, whichever is nearer.

use crate::Error;
use crate::backend::Kernels;
use crate::codec::{read_f16, to_f16};
use half::f16;
use octaplex_arch::Packing;

/// Bits of a norm.
///
/// Five bits would save 0.02 bits a value at a width of 64. On keys and values of real models they
/// raise the error of attention's output by 4%, which costs more than it saves.
pub(crate) const NORM_BITS: u8 = 6;
const BITS: u8 = NORM_BITS;
const PACKING: Packing = Packing::bits(BITS);

/// Bytes in front of the codes: the largest norm and the scale.
const HEAD: usize = 3;

/// Returns the bytes of the norms of a page with `tokens` rows.
pub(crate) const fn bytes(tokens: usize) -> usize {
    HEAD + PACKING.bytes(tokens)
}

/// The integer that stands for the largest norm.
const TOP: i16 = i16::MAX;

/// The widths of the scales, in octaves.
const OCTAVES: [u32; 4] = [1, 2, 4, 8];
/// The values of the codes on each scale, in units of the largest norm divided by [`TOP`].
static SCALES: [[i16; LEVELS]; 4] =
    [scale(OCTAVES[0]), scale(OCTAVES[1]), scale(OCTAVES[2]), scale(OCTAVES[3])];
/// The number of codes.
const LEVELS: usize = 1 << BITS;

/// Computes a scale: the k-th code from above is `TOP`·2^(-octaves·k/LEVELS) to the nearest
/// integer, and code 0 is 0.
const fn scale(octaves: u32) -> [i16; LEVELS] {
    // 2^(-octaves/LEVELS) with 62 fractional bits, by repeated square roots of ½. Only integer
    // arithmetic gives the same table on every machine.
    let mut ratio = 1u128 << 61;
    let mut halvings = BITS as u32 - octaves.trailing_zeros();
    while halvings > 0 {
        ratio = (ratio << 62).isqrt();
        halvings -= 1;
    }
    let (mut scale, mut value, mut code) = ([0; LEVELS], (TOP as u128) << 48, LEVELS - 1);
    while code > 0 {
        scale[code] = ((value + (1 << 47)) >> 48) as i16;
        value = (value * ratio) >> 62;
        code -= 1;
    }
    scale
}

/// Returns all scales, one after the other, for GPU kernels.
#[cfg(feature = "gpu")]
pub(crate) fn scales() -> [u16; OCTAVES.len() * LEVELS] {
    core::array::from_fn(|i| SCALES[i / LEVELS][i % LEVELS].unsigned_abs())
}

/// The largest number of tokens in a page.
pub(crate) const MAX_TOKENS: usize = 256;

/// Encodes finite norms. Negative norms are encoded as zeros.
///
/// # Errors
/// [`Error::Overflow`] if f16 cannot hold the largest norm.
pub(crate) fn encode(backend: Kernels, norms: &[f32], bytes: &mut [u8]) -> Result<(), Error> {
    let largest =
        to_f16(norms.iter().fold(0.0, |largest, norm| if *norm > largest { *norm } else { largest }))?;
    bytes.fill(0);
    if largest == f16::ZERO {
        return Ok(());
    }
    bytes[..2].copy_from_slice(&largest.to_le_bytes());
    let unit = largest.to_f32() / f32::from(TOP);
    let mut least = f32::INFINITY;
    for (number, scale) in SCALES.iter().enumerate() {
        let mut codes = [0; MAX_TOKENS];
        let codes = &mut codes[..norms.len()];
        let mut thresholds = [0.0; LEVELS - 1];
        for (threshold, pair) in thresholds.iter_mut().zip(scale.windows(2)) {
            *threshold = 0.5 * (i32::from(pair[0]) + i32::from(pair[1])) as f32;
        }
        backend.quantize(norms, f32::from(TOP) / largest.to_f32(), &thresholds, codes);
        let loss = loss(scale, unit, norms, codes);
        if loss < least {
            least = loss;
            bytes[2] = number as u8;
            backend.pack(PACKING, codes, &mut bytes[HEAD..]);
        }
        // If every norm lies on this scale, a wider one only has coarser steps.
        if norms.iter().all(|norm| *norm <= 0.0 || *norm >= f32::from(scale[1]) * unit) {
            break;
        }
    }
    Ok(())
}

/// Returns Σ(norm - decoded)²/norm, by which scales are compared.
///
/// Dividing by the norm makes rows of every length count. Dividing by its square would let one tiny
/// row outweigh all others.
fn loss(scale: &[i16], unit: f32, norms: &[f32], codes: &[u8]) -> f32 {
    let mut loss = 0.0;
    for (norm, code) in norms.iter().zip(codes).filter(|(norm, _)| **norm > 0.0) {
        let error = norm - f32::from(scale[usize::from(*code)]) * unit;
        loss += error * error / norm;
    }
    loss
}

/// Decodes norms, multiplied by the largest one.
///
/// # Errors
/// [`Error::Corrupt`] if the largest norm is not finite.
pub(crate) fn decode(backend: Kernels, bytes: &[u8], norms: &mut [f32]) -> Result<(), Error> {
    let largest = read_f16(bytes);
    if !largest.is_finite() {
        return Err(Error::Corrupt { block: 0 });
    }
    let scale = &SCALES[usize::from(bytes[2]) % OCTAVES.len()];
    let unit = largest.to_f32() / f32::from(TOP);
    backend.lookup_packed(PACKING, bytes.get(HEAD..).unwrap_or_default(), scale, unit, norms);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn scales_are_powers_of_two() {
        for (number, scale) in SCALES.iter().enumerate() {
            assert_eq!(scale[0], 0);
            for (code, value) in scale.iter().enumerate().skip(1) {
                let below = (scale.len() - 1 - code) as f64 * f64::from(1 << number) / scale.len() as f64;
                let exact = f64::from(TOP) * (-below).exp2();
                assert!((f64::from(*value) - exact).abs() < 0.500_001, "code {code} of {number}");
            }
        }
    }

    /// Encodes and decodes norms. Returns the octaves of the chosen scale, and the decoded norms.
    fn round_trip(norms: &[f32]) -> (u32, std::vec::Vec<f32>) {
        let mut bytes = std::vec![0xaa; super::bytes(norms.len())];
        let mut decoded = std::vec![0.0; norms.len()];
        assert_eq!(encode(Kernels::SCALAR, norms, &mut bytes), Ok(()));
        assert_eq!(decode(Kernels::detect(), &bytes, &mut decoded), Ok(()));
        (1 << bytes[2], decoded)
    }

    /// The error is half a step at most on every scale. Zeros stay zeros, and tiny norms become
    /// zeros.
    #[test]
    fn norms_come_back() {
        for octaves in OCTAVES {
            let step = octaves as f32 / LEVELS as f32;
            let even: [f32; 64] =
                core::array::from_fn(|i| 3.0 * (-0.0145 * (i * octaves as usize) as f32).exp2());
            let (chosen, decoded) = round_trip(&even);
            assert_eq!(chosen, octaves);
            for (a, b) in even.iter().zip(&decoded) {
                assert!((a / b).log2().abs() < 0.53 * step, "{octaves} octaves: {a} {b}");
            }
            let mut sparse = even;
            (sparse[1], sparse[2]) = (0.0, 1e-6);
            let (chosen, decoded) = round_trip(&sparse);
            assert_eq!((chosen, &decoded[1..3]), (octaves, &[0.0; 2][..]));
            assert_eq!(round_trip(&[0.0; 64]).1, [0.0; 64]);
            assert_eq!(round_trip(&[-1.0; 64]).1, [0.0; 64]);
        }
        // One norm is far above the others: these must not vanish.
        let mut spiked = [0.02; 64];
        spiked[20] = 3.0;
        let (octaves, decoded) = round_trip(&spiked);
        assert_eq!(octaves, 8);
        assert!(decoded.iter().all(|norm| (norm - 0.02).abs() < 0.001 || *norm > 2.9));
    }

    /// A page of a chunk may have fewer rows than others. Its norms are those of longer pages.
    #[test]
    fn any_number_of_norms_comes_back() {
        let norms: [f32; 64] = core::array::from_fn(|i| 3.0 - 0.02 * i as f32);
        let all = round_trip(&norms).1;
        for count in 1..64 {
            assert_eq!(round_trip(&norms[..count]).1, all[..count], "{count} norms");
        }
    }

    #[test]
    fn norms_that_are_not_finite_are_refused() {
        let mut norms = [0.0; 64];
        for head in [0x7c00u16, 0xfc00, 0x7e00, 0xffff] {
            let mut bytes = [0; super::bytes(64)];
            bytes[..2].copy_from_slice(&head.to_le_bytes());
            let refused = Err(Error::Corrupt { block: 0 });
            assert_eq!(decode(Kernels::SCALAR, &bytes, &mut norms), refused);
        }
        assert_eq!(encode(Kernels::SCALAR, &[1e6; 64], &mut [0; super::bytes(64)]), Err(Error::Overflow));
    }
}
