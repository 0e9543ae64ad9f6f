//! The logarithm, sine and cosine that decide bytes: random matrices, and so every block behind a dense rotation or
//! sketch, depend on the last bit of these, which a library of mathematics may change from one version to the next.
//!
//! They are fdlibm's (FreeBSD's `e_log.c`, `k_sin.c`, `k_cos.c` and, up to 9π/4, `e_rem_pio2.c`), without the branches for
//! arguments that a random number does not have. Its error bound, one unit in the last place, holds; plain f64
//! operations in this order, so the bits are the same on every machine. The notice that comes with it:
//!
//! > Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved.
//! > Developed at SunPro, a Sun Microsystems, Inc. business.
//! > Permission to use, copy, modify, and distribute this software is freely granted, provided that this notice is
//! > preserved.
//!
//! What bare metal needs of it, [`inverse_sqrt`], has no f64, whose arithmetic would take flash.
#![cfg_attr(not(feature = "alloc"), allow(dead_code))]

use crate::backend::Kernels;

/// 1/√n as an f32, to nearest, for n from 1 to 4,096.
///
/// The quotient of two f32 is wrong by a unit in the last place at most. With y = m·2⁻ᵏ, 1/√n is above y's upper neighbours'
/// midpoint where (2m+1)²·n < 4ᵏ⁺¹, and below the lower where (2m-1)²·n is more; both are whole numbers.
pub(crate) fn inverse_sqrt(n: usize) -> f32 {
    let bits = (1.0 / Kernels::SCALAR.sqrt(n as f32)).to_bits();
    let twice = 2 * u64::from(bits & 0x7f_ffff | 0x80_0000);
    let one = 1 << (2 * (151 - (bits >> 23)));
    let [below, above] = [twice - 1, twice + 1].map(|x| x * x * n as u64);
    f32::from_bits(bits + u32::from(above < one) - u32::from(below > one))
}

/// ln x for a positive normal number.
///
/// x = 2ᵏ(1+f) with 1+f within [√½, √2); ln(1+f) = f - f²/2 + s(f²/2 + R) with s = f/(2+f), and R a polynomial in s²
/// that is wrong by 2⁻⁵⁸·⁴⁵ at most. ln 2 is split so that k times its high part is exact.
pub(crate) fn ln(x: f64) -> f64 {
    const LN_2: [f64; 2] = [0.6931471803691238, 1.9082149292705877e-10];
    const R: [f64; 7] = [
        0.6666666666666735,
        0.3999999999940942,
        0.2857142874366239,
        0.22222198432149784,
        0.1818357216161805,
        0.15313837699209373,
        0.14798198605116586,
    ];
    /// The upper words of 1 and √½.
    const ONE: u64 = 0x3ff0_0000;
    const ROOT: u64 = 0x3fe6_a09e;

    let bits = x.to_bits();
    let high = (bits >> 32) + (ONE - ROOT);
    let k = (high >> 20) as f64 - 1023.0;
    let f = f64::from_bits(((high & 0xf_ffff) + ROOT) << 32 | bits & 0xffff_ffff) - 1.0;
    let half = 0.5 * f * f;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (R[1] + w * (R[3] + w * R[5]));
    let odd = z * (R[0] + w * (R[2] + w * (R[4] + w * R[6])));
    s * (half + (odd + even)) + k * LN_2[1] - half + f + k * LN_2[0]
}

/// sin x and cos x for x from 0 to 9π/4.
///
/// x less its nearest multiple n of π/2 is kept in two numbers, y and its tail. π/2 is taken off in pieces of 33 bits:
/// two of them where x is no closer to that multiple than 2⁻²⁰ of itself, more where subtracting cancels.
pub(crate) fn sin_cos(x: f64) -> [f64; 2] {
    /// The upper words of odd multiples of π/4: which multiple of π/2 is nearest.
    const BETWEEN: [u32; 4] = [0x3fe9_21fb, 0x4002_d97c, 0x400f_6a7a, 0x4015_fdbc];
    /// The upper words of π/2, π, 3π/2 and 2π.
    const MULTIPLES: [u32; 4] = [0x3ff9_21fb, 0x4009_21fb, 0x4012_d97c, 0x4019_21fb];
    /// The first, second and third 33 bits of π/2, each with what is behind it.
    const HALF_PI: [[f64; 2]; 3] = [
        [1.5707963267341256, 6.077100506506192e-11],
        [6.077100506303966e-11, 2.0222662487959506e-21],
        [2.0222662487111665e-21, 8.4784276603689e-32],
    ];

    let upper = |x: f64| (x.to_bits() >> 32) as u32;
    let exponent = |x: f64| (upper(x) >> 20 & 0x7ff) as i32;
    let n = BETWEEN.iter().filter(|&&between| upper(x) > between).count();
    if n == 0 {
        return [sin_small(x), cos_small(x, 0.0)];
    }
    let turns = n as f64;
    let mut rest = x - turns * HALF_PI[0][0];
    let mut tail = turns * HALF_PI[0][1];
    let mut y = rest - tail;
    if MULTIPLES.contains(&upper(x)) {
        for (piece, cancelled) in HALF_PI[1..].iter().zip([16, 49]) {
            if exponent(x) - exponent(y) > cancelled {
                let before = rest;
                let next = turns * piece[0];
                rest = before - next;
                tail = turns * piece[1] - ((before - rest) - next);
                y = rest - tail;
            }
        }
    }
    let tail = (rest - y) - tail;
    let (sin, cos) = (sin_with_tail(y, tail), cos_small(y, tail));
    match n % 4 {
        0 => [sin, cos],
        1 => [cos, -sin],
        2 => [-sin, -cos],
        _ => [-cos, sin],
    }
}

/// sin x = x + x³(S₀ + S₁x² + …) for x up to π/4, wrong by 2⁻⁵⁸ of x at most.
const SIN: [f64; 6] = [
    -0.16666666666666632,
    0.00833333333332249,
    -0.0001984126982985795,
    2.7557313707070068e-06,
    -2.5050760253406863e-08,
    1.58969099521155e-10,
];

/// S₁ + S₂z + … + S₅z⁴ with z = x².
fn sin_rest(z: f64) -> f64 {
    SIN[1] + z * (SIN[2] + z * SIN[3]) + z * (z * z) * (SIN[4] + z * SIN[5])
}

fn sin_small(x: f64) -> f64 {
    let z = x * x;
    x + z * x * (SIN[0] + z * sin_rest(z))
}

fn sin_with_tail(x: f64, tail: f64) -> f64 {
    let z = x * x;
    let cube = z * x;
    x - ((z * (0.5 * tail - cube * sin_rest(z)) - tail) - cube * SIN[0])
}

/// cos(x + tail) = 1 - x²/2 + x⁴(C₀ + C₁x² + …) - x·tail for x up to π/4, wrong by 2⁻⁵⁸ at most.
fn cos_small(x: f64, tail: f64) -> f64 {
    const COS: [f64; 6] = [
        0.0416666666666666,
        -0.001388888888887411,
        2.480158728947673e-05,
        -2.7557314351390663e-07,
        2.087572321298175e-09,
        -1.1359647557788195e-11,
    ];
    let z = x * x;
    let w = z * z;
    let r = z * (COS[0] + z * (COS[1] + z * COS[2])) + w * w * (COS[3] + z * (COS[4] + z * COS[5]));
    let half = 0.5 * z;
    let one = 1.0 - half;
    one + (((1.0 - one) - half) + (z * r - x * tail))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::f64::consts::PI;

    #[test]
    fn inverse_square_roots_are_the_nearest() {
        for n in 1..=4096 {
            assert_eq!(inverse_sqrt(n), (1.0 / libm::sqrt(n as f64)) as f32, "{n}");
        }
    }

    /// Numbers from 0 to 1 at a stride that visits every exponent and low bit, with those at the ends.
    fn units(count: u64) -> impl Iterator<Item = f64> {
        const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0; // 2⁻⁵³
        let spread = (0..count).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 * UNIT);
        // Around 1, ½, ¼ …: powers of two of the logarithm, multiples of π/2 of the angle.
        let close = (0..53)
            .flat_map(|k| (0..8).map(move |i| ((1u64 << 53 >> k) - i.min(1u64 << 53 >> k)) as f64 * UNIT));
        let turns = (0..8).flat_map(|k| (0..64u64).map(move |i| ((k << 50) + i) as f64 * UNIT));
        spread.chain(close).chain(turns)
    }

    /// All arguments that the Gaussian stream has: ln of a unit above 0, sine and cosine of a turn's part.
    fn all(count: u64) -> impl Iterator<Item = (f64, [f64; 3])> {
        units(count).map(|u| {
            let [sin, cos] = sin_cos(2.0 * PI * u);
            (u, [ln(if u == 0.0 { 1.0 } else { u }), sin, cos])
        })
    }

    /// Frozen: a changed bit is a changed format. Made with libm 0.2.16, whose results these are on all of 46 million
    /// arguments that were compared once: 30 million random ones, the rest around powers of two and multiples of π/4.
    #[test]
    fn bits_are_frozen() {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for (_, results) in all(1 << 18) {
            for byte in results.iter().flat_map(|x| x.to_bits().to_le_bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        assert_eq!(hash, 0x0868_3a0b_56c1_9390);
    }

    /// Against the platform's, which are within one unit in the last place themselves.
    #[test]
    fn errors_are_within_two_units_in_the_last_place() {
        let units = |x: f64, exact: f64| (x.to_bits() as i64).abs_diff(exact.to_bits() as i64);
        for (u, [ln, sin, cos]) in all(1 << 16) {
            let angle = 2.0 * PI * u;
            let exact = [if u == 0.0 { 0.0 } else { u.ln() }, angle.sin(), angle.cos()];
            for (result, exact) in [ln, sin, cos].into_iter().zip(exact) {
                assert!(units(result, exact) <= 2, "{u:e}: {result:e}, not {exact:e}");
            }
        }
    }
}
