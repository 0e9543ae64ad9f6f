//! `fp8` against the definition of E4M3 and against a search for the nearest value.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random};
use octaplex::codecs::HeadId;
use octaplex::{Backend, Error};

fn build(spec: &str) -> Any<32> {
    Any::build(spec.parse().unwrap(), Backend::detect(), HeadId::default()).unwrap()
}

/// One value's code and decoded value.
fn through(x: f32) -> (u8, f32) {
    let (codec, mut block, mut decoded) = (build("fp8"), [0; 32], [0.0; 32]);
    codec.encode(&[x; 32], &mut block).unwrap();
    codec.decode(&block, &mut decoded).unwrap();
    (block[0], decoded[0])
}

/// Sign, 4 bits of exponent with bias 7, 3 bits of mantissa; exponent 0 is subnormal; 0x7f and 0xff are NaN.
fn value(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = if exponent == 0 {
        mantissa / 8.0 * 2f64.powi(-6)
    } else {
        (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7)
    };
    if code < 128 { magnitude } else { -magnitude }
}

#[test]
fn every_code_is_the_value_that_the_standard_says() {
    assert_eq!((value(0x7e), value(0x01), value(0x38)), (448.0, 2f64.powi(-9), 1.0));
    for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
        let mut x = [0.0; 32];
        build("fp8").decode(&[code; 32], &mut x).unwrap();
        assert_eq!(f64::from(x[0]).to_bits(), value(code).to_bits(), "code {code:#x}");
        assert_eq!(through(x[0]).0, code);
    }
}

/// The nearest value; of two, the one with the even code.
#[test]
fn codes_are_the_nearest_and_ties_go_to_even() {
    let nearest = |x: f64| {
        let codes = (0..=0x7eu8).map(|code| if x.is_sign_negative() { code | 0x80 } else { code });
        codes.min_by(|a, b| {
            let distance = |code: &u8| (value(*code) - x).abs();
            distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))
        })
    };
    let mut random = Random::new(70);
    let mut inputs: Vec<f32> =
        (0..3000).map(|_| random.gaussian() * libm::exp2f(random.unit() as f32 * 24.0 - 12.0)).collect();
    for code in 0..0x7eu8 {
        let middle = ((value(code) + value(code + 1)) / 2.0) as f32;
        inputs.extend([middle, -middle, middle.next_up(), middle.next_down()]);
    }
    inputs.extend([447.9, 448.0, 463.9, 464.0, 465.0, 1e9, -1e9, 0.0, -0.0, f32::MIN_POSITIVE, 1e-45]);
    for x in inputs {
        assert_eq!(Some(through(x).0), nearest(f64::from(x)), "{x}");
    }
}

#[test]
fn a_scale_for_each_token() {
    let codec = build("fp8:scale=token");
    let mut random = Random::new(71);
    for magnitude in [1e-30, 1e-3, 1.0, 1e6, 1e17] {
        let x: [f32; 32] = std::array::from_fn(|_| random.gaussian() * magnitude);
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let (mut block, mut decoded) = ([0; 36], [0.0; 32]);
        codec.encode(&x, &mut block).unwrap();
        assert_eq!(block[..4], (largest / 448.0).to_le_bytes());
        codec.decode(&block, &mut decoded).unwrap();
        for (x, decoded) in x.iter().zip(decoded) {
            // Half a step of 3 bits of mantissa, or of the smallest ones.
            assert!(
                (x - decoded).abs() <= (x.abs() / 16.0).max(largest / 448.0 / 1024.0) * 1.0001,
                "{x}: {decoded}"
            );
        }
        assert!(block[4..].iter().any(|code| code & 0x7f == 0x7e), "the largest value has the largest code");
    }
    let mut block = [0xaa; 36];
    codec.encode(&[0.0; 32], &mut block).unwrap();
    assert_eq!(block, [0; 36]);
}

#[test]
fn hostile_bytes_and_values_are_refused() {
    let mut x = [0.0; 32];
    for nan in [0x7f, 0xff] {
        let mut block = [0; 32];
        block[31] = nan;
        assert_eq!(build("fp8").decode(&block, &mut x), Err(Error::Corrupt { block: 0 }));
        assert_eq!(
            build("fp8").accumulate(&[1.0; 2], &[[0; 32], block].concat(), &mut [[0.0; 32]]),
            Err(Error::Corrupt { block: 1 })
        );
    }
    let scaled = |scale: f32, x: &mut [f32; 32]| {
        let mut block = [0x7e; 36];
        block[..4].copy_from_slice(&scale.to_le_bytes());
        build("fp8:scale=token").decode(&block, x)
    };
    let limit = 288_230_376_151_711_744.0f32 / 448.0;
    scaled(limit, &mut x).unwrap();
    scaled(-limit, &mut x).unwrap();
    assert_eq!(x, [-448.0 * limit; 32], "bytes that the codec does not write, but that mean something");
    for scale in [limit.next_up(), -limit.next_up(), f32::INFINITY, f32::NAN, -f32::NAN] {
        assert_eq!(scaled(scale, &mut x), Err(Error::Corrupt { block: 0 }), "{scale}");
    }
    let mut block = [0xaa; 32];
    assert_eq!(build("fp8").encode(&[f32::NAN; 32], &mut block), Err(Error::NonFinite { index: 0 }));
    assert_eq!(build("fp8").encode(&[3e17; 32], &mut block), Err(Error::Overflow));
    assert_eq!(block, [0xaa; 32]);
}
