//! From scores to weights: scaling, soft caps, and the exponential function.

use super::{LANES, halve};

/// Below this, eˣ becomes 0. e⁻⁸⁷ is still a normal f32.
const LOWEST: f32 = -87.0;

/// Returns eˣ for x ≤ 0 with a relative error below 1.5·10⁻⁷. It is 0 for x ≤ -87, for -∞ and for
/// NaN.
///
/// x = n·ln 2 + r with n = rint(x·log2 e), so |r| ≤ ln 2/2. ln 2 is split in two (Cody and Waite):
/// n has seven bits and `LN2_HI` nine, so their product is exact. A polynomial of degree 7 in r
/// follows, by Horner's rule and not fused. 2ⁿ goes straight into the exponent.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = core::f32::consts::LOG2_E;
    const LN2_HI: f32 = 355.0 / 512.0;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // 1.5·2²³. The sum with it has no fraction bits left, and n is in its lowest bits.
    const MAGIC: f32 = 12_582_912.0;
    let shifted = x * LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = (p * (r * r) + r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x > LOWEST { y * power } else { 0.0 }
}

/// Scales: x ← (x + offset)·scale. Returns the largest result, -∞ for none.
#[inline(always)]
pub(crate) fn scale_logits(x: &mut [f32], offset: f32, scale: f32) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = (chunk[lane] + offset) * scale;
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    for x in tail {
        *x = (*x + offset) * scale;
        lanes[0] = if *x > lanes[0] { *x } else { lanes[0] };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
}

/// Applies a soft cap: x ← cap·tanh(x/cap), with an absolute error below 2·10⁻⁷·cap. It uses tanh t
/// = ±(1 - e)/(1 + e) with e = e^(-2|t|).
#[inline(always)]
pub(crate) fn soft_cap(x: &mut [f32], cap: f32) {
    let factor = -2.0 / cap;
    for x in x {
        let e = exp(x.abs() * factor);
        *x = (cap * ((1.0 - e) / (1.0 + e))).copysign(*x);
    }
}

/// Turns logits into weights: x ← e^(x - max). Returns the sum, in 16 lanes and then by halves.
#[inline(always)]
pub(crate) fn exp_weights(x: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - max);
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, x) in tail.iter_mut().enumerate() {
        *x = exp(*x - max);
        lanes[lane] += *x;
    }
    halve(lanes)
}
