//! ggml's blocks against its C code (blocks that it gave, below), against its reference functions written out a second
//! time, and against blocks worked out by hand; llama.cpp's rotation against its matrix.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random};
use half::f16;
use octaplex::codecs::{AnyCodec, HeadId};
use octaplex::{Backend, Error};

const TYPES: [&str; 4] = ["q8_0", "q5_0", "q4_0", "iq4_nl"];

fn build<const D: usize>(spec: &str) -> Any<D> {
    Any::build(spec.parse().unwrap(), Backend::detect(), HeadId::default()).unwrap()
}

fn encode(spec: &str, x: &[f32; 32]) -> Vec<u8> {
    let codec = build::<32>(spec);
    let mut block = vec![0; codec.block_bytes()];
    codec.encode(x, &mut block).unwrap();
    block
}

fn decode(spec: &str, block: &[u8]) -> [f32; 32] {
    let mut x = [0.0; 32];
    build::<32>(spec).decode(block, &mut x).unwrap();
    x
}

const TABLE: [f32; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// ggml's reference quantisers, statement by statement.
fn reference(name: &str, x: &[f32; 32]) -> Vec<u8> {
    let (mut amax, mut max) = (0.0f32, 0.0f32);
    for v in x {
        if amax < v.abs() {
            (amax, max) = (v.abs(), *v);
        }
    }
    // If 1/d is no finite f32, C converts infinity to an integer, which means nothing; here the block is zeros.
    let inverse = |d: f32| if (1.0 / d).is_finite() { 1.0 / d } else { 0.0 };
    let mut block = vec![0, 0];
    let d = match name {
        "q8_0" => {
            let d = amax / 127.0;
            block.extend(x.map(|x| libm::roundf(x * inverse(d)) as i8 as u8));
            d
        }
        "q4_0" => {
            let d = max / -8.0;
            for j in 0..16 {
                let x0 = ((x[j] * inverse(d) + 8.5) as i8).min(15) as u8;
                let x1 = ((x[j + 16] * inverse(d) + 8.5) as i8).min(15) as u8;
                block.push(x0 | x1 << 4);
            }
            d
        }
        "q5_0" => {
            let d = max / -16.0;
            let (mut high, mut low) = (0u32, Vec::new());
            for j in 0..16 {
                let x0 = ((x[j] * inverse(d) + 16.5) as i8).min(31) as u8;
                let x1 = ((x[j + 16] * inverse(d) + 16.5) as i8).min(31) as u8;
                low.push((x0 & 0x0f) | (x1 & 0x0f) << 4);
                high |= u32::from((x0 & 0x10) >> 4) << j;
                high |= u32::from((x1 & 0x10) >> 4) << (j + 16);
            }
            block.extend(high.to_le_bytes());
            block.extend(low);
            d
        }
        _ => {
            if amax < 1e-15 {
                return vec![0; 18];
            }
            let id = 1.0 / (max / TABLE[0]);
            let (mut sumqx, mut sumq2, mut codes) = (0.0f32, 0.0f32, [0u8; 32]);
            for (code, x) in codes.iter_mut().zip(x) {
                // The branchless search of four steps.
                let x2 = id * x + id * x;
                let mut index = 0;
                for step in [8, 4, 2, 1] {
                    let j = index + step;
                    if x2 >= TABLE[j - 1] + TABLE[j] {
                        index = j;
                    }
                }
                *code = index as u8;
                let (q, w) = (TABLE[index], x * x);
                sumqx += w * q * x;
                sumq2 += w * q * q;
            }
            block.extend((0..16).map(|j| codes[j] | codes[j + 16] << 4));
            sumqx / sumq2
        }
    };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block
}

/// The same for ggml's `dequantize_row_…`.
fn reference_values(name: &str, block: &[u8]) -> [f32; 32] {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
    let nibble = |qs: &[u8], j: usize| i32::from(if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 });
    std::array::from_fn(|j| match name {
        "q8_0" => f32::from(block[2 + j] as i8) * d,
        "q4_0" => (nibble(&block[2..], j) - 8) as f32 * d,
        "q5_0" => {
            let high = u32::from_le_bytes(block[2..6].try_into().unwrap());
            ((nibble(&block[6..], j) | ((high >> j & 1) << 4) as i32) - 16) as f32 * d
        }
        _ => TABLE[nibble(&block[2..], j) as usize] * d,
    })
}

/// Blocks of many shapes: Gaussian at all magnitudes, one outlier, ties on the grid, one sign, nearly nothing.
fn inputs() -> Vec<[f32; 32]> {
    let mut random = Random::new(60);
    let mut inputs =
        vec![[0.0; 32], [-0.0; 32], [1.0; 32], [-3.0; 32], [1e-15; 32], [9e-16; 32], [f32::MIN_POSITIVE; 32]];
    for exponent in -28..14 {
        for _ in 0..20 {
            let scale = libm::exp2f(exponent as f32);
            inputs.push(std::array::from_fn(|_| random.gaussian() * scale));
        }
    }
    for step in [0.5f32, 0.25, 1.0] {
        for largest in [8.0, -8.0, 16.0, -16.0, 127.0, -127.0] {
            // Multiples of half a step: values on thresholds.
            let mut x: [f32; 32] = std::array::from_fn(|_| (random.below(33) as f32 - 16.0) * 0.5 * step);
            x[random.below(32)] = largest * step;
            inputs.push(x);
        }
    }
    let mut outlier: [f32; 32] = std::array::from_fn(|_| random.gaussian() * 0.01);
    outlier[17] = 250.0;
    inputs.push(outlier);
    // Two largest of equal magnitude: the first gives the sign.
    for (a, b) in [(3, 20), (20, 3)] {
        let mut x: [f32; 32] = std::array::from_fn(|j| j as f32 * 0.03);
        (x[a], x[b]) = (2.0, -2.0);
        inputs.push(x);
    }
    inputs
}

#[test]
fn bytes_and_values_are_those_of_the_reference_functions() {
    for name in TYPES {
        for x in inputs() {
            let block = encode(name, &x);
            assert_eq!(block, reference(name, &x), "{name} of {x:?}");
            assert_eq!(
                decode(name, &block).map(f32::to_bits),
                reference_values(name, &block).map(f32::to_bits),
                "{name} of {x:?}"
            );
        }
    }
}

/// Every code at every place, not only those that a quantiser gives.
#[test]
fn any_block_decodes_as_ggml_does() {
    let mut random = Random::new(61);
    for name in TYPES {
        let bytes = encode(name, &[0.0; 32]).len();
        for _ in 0..500 {
            let mut block: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
            block[1] &= 0xbf; // a finite scale
            let expected = reference_values(name, &block).map(f32::to_bits);
            assert_eq!(decode(name, &block).map(f32::to_bits), expected, "{name}: {block:02x?}");
        }
    }
}

/// -8, 7 and everything between in steps of 1: scale 1, codes 0 to 15.
#[test]
fn blocks_by_hand() {
    let x: [f32; 32] = std::array::from_fn(|j| if j < 16 { j as f32 - 8.0 } else { 7.0 - (j - 16) as f32 });
    let mut expected = vec![0x00, 0x3c];
    expected.extend((0..16u8).map(|j| j | (15 - j) << 4));
    assert_eq!(encode("q4_0", &x), expected);
    assert_eq!(decode("q4_0", &expected), x);

    // Twice that, from -16: scale 1, codes 0, 2 … 30 and 30, 28 … 0; fifth bits from code 16 on.
    let mut expected = vec![0x00, 0x3c, 0x00, 0xff, 0xff, 0x00];
    expected.extend((0..16u8).map(|j| ((2 * j) & 15) | ((2 * (15 - j)) & 15) << 4));
    assert_eq!(encode("q5_0", &x.map(|x| 2.0 * x)), expected);

    // 127, then -1, -2 …: scale 1.
    let x: [f32; 32] = std::array::from_fn(|j| if j == 0 { 127.0 } else { -(j as f32) });
    let mut expected = vec![0x00, 0x3c, 127];
    expected.extend((1..32).map(|j: u8| j.wrapping_neg()));
    assert_eq!(encode("q8_0", &x), expected);

    // The table itself: scale 1, codes 0 to 15 and back.
    let x: [f32; 32] = std::array::from_fn(|j| TABLE[if j < 16 { j } else { 31 - j }]);
    let mut expected = vec![0x00, 0x3c];
    expected.extend((0..16u8).map(|j| j | (15 - j) << 4));
    assert_eq!(encode("iq4_nl", &x), expected);
    assert_eq!(decode("iq4_nl", &expected), x);

    // ggml's zeros: -0 as scale where the offset is in the middle.
    assert_eq!(encode("q4_0", &[0.0; 32]), [&[0x00, 0x80][..], &[0x88; 16]].concat());
    assert_eq!(encode("q5_0", &[0.0; 32]), [&[0x00, 0x80, 0xff, 0xff, 0xff, 0xff][..], &[0; 16]].concat());
}

/// Halves go away from zero in `q8_0`.
#[test]
fn halves_of_q8_0_go_away_from_zero() {
    let mut x = [0.5f32; 32];
    (x[0], x[1], x[2], x[3]) = (127.0, -0.5, 1.5, -2.5);
    assert_eq!(&encode("q8_0", &x)[2..7], [127, 0xff, 2, 0xfd, 1]);
}

#[test]
fn scales_beyond_f16_are_refused_and_so_are_widths() {
    for (name, largest) in [("q8_0", 127.0), ("q5_0", 16.0), ("q4_0", 8.0)] {
        let (codec, mut block) = (build::<32>(name), vec![0xaa; encode(name, &[0.0; 32]).len()]);
        let mut x = [1.0; 32];
        x[5] = 65519.0 * largest;
        codec.encode(&x, &mut block).unwrap();
        let kept = block.clone();
        x[5] = 65521.0 * largest;
        assert_eq!(codec.encode(&x, &mut block), Err(Error::Overflow), "{name}");
        x[5] = 1e17;
        assert_eq!(codec.encode(&x, &mut block), Err(Error::Overflow), "{name}");
        assert_eq!(block, kept, "{name}: an error leaves the block as it was");
    }
    assert_eq!(build::<32>("iq4_nl").encode(&[1e17; 32], &mut [0; 18]), Err(Error::Overflow));
    // The first block is sound, the second is not.
    let (codec, mut row) = (build::<64>("q4_0"), vec![0xaa; 36]);
    let mut x = [1.0; 64];
    x[40] = 1e9;
    assert_eq!(codec.encode(&x, &mut row), Err(Error::Overflow));
    assert_eq!(row, [0xaa; 36]);

    let at =
        |dim, spec: &str| AnyCodec::build(spec.parse().unwrap(), dim, Backend::detect(), HeadId::default());
    assert!(matches!(at(80, "q4_0"), Err(Error::Unsupported { .. })));
    assert!(at(96, "q4_0").is_ok());
    for rotate in ["keys", "values"] {
        assert!(matches!(at(96, &format!("q4_0:rotate={rotate}")), Err(Error::Unsupported { .. })));
    }
}

/// llama.cpp's matrix: H[i][j] = ±1/√n, the sign that of an odd number of common bits.
fn rotated(x: &[f32], n: usize) -> Vec<f64> {
    let sign = |i: usize, j: usize| if (i & j).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
    let block = |x: &[f32]| -> Vec<f64> {
        let sum = |i: usize| (0..n).map(|j| sign(i, j) * f64::from(x[j])).sum::<f64>();
        (0..n).map(|i| sum(i) / (n as f64).sqrt()).collect()
    };
    x.chunks(n).flat_map(block).collect()
}

fn check_rotation<const D: usize>(rotate: &str, n: usize) {
    let mut random = Random::new(62);
    let x: [f32; D] = std::array::from_fn(|_| random.gaussian());
    let (plain, codec) = (build::<D>("q8_0"), build::<D>(&format!("q8_0:rotate={rotate}")));
    let mut block = vec![0; codec.block_bytes()];
    codec.encode(&x, &mut block).unwrap();
    // The values of the block, without the rotation back.
    let mut held = [0.0; D];
    plain.decode(&block, &mut held).unwrap();
    for (held, expected) in held.iter().zip(rotated(&x, n)) {
        assert!((f64::from(*held) - expected).abs() < 0.02, "{rotate} at {D}: {held} for {expected}");
    }
    // And back: decoded values and outputs are close to the vector, scores to its products.
    let mut decoded = [0.0; D];
    codec.decode(&block, &mut decoded).unwrap();
    let mut output = [[0.0; D]];
    codec.accumulate(&[1.0], &block, &mut output).unwrap();
    codec.finish(&mut output[0]);
    let mut score = [0.0];
    codec.score(&[codec.prepare_query(&x).unwrap()], &block, &mut score).unwrap();
    let energy: f32 = x.iter().map(|x| x * x).sum();
    assert!((score[0] / energy - 1.0).abs() < 0.01, "{rotate} at {D}");
    for ((x, decoded), output) in x.iter().zip(decoded).zip(output[0]) {
        assert!((x - decoded).abs() < 0.05 && (x - output).abs() < 0.05, "{rotate} at {D}");
    }
}

#[test]
fn the_rotation_is_llama_cpps() {
    check_rotation::<64>("keys", 64);
    check_rotation::<128>("keys", 128);
    check_rotation::<192>("keys", 64);
    check_rotation::<256>("keys", 256);
    check_rotation::<512>("keys", 512);
    check_rotation::<576>("keys", 64);
    check_rotation::<64>("values", 64);
    check_rotation::<128>("values", 64);
    check_rotation::<512>("values", 64);
}

/// A file of blocks that ggml's own C code made: `type`, 32 values, block, decoded values, in hexadecimal.
#[test]
fn blocks_of_ggmls_own_code() {
    let file = include_str!("vectors/ggml.hex");
    let unhex = |text: &str| -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    };
    let floats = |text: &str| -> [f32; 32] {
        let bytes = unhex(text);
        std::array::from_fn(|i| f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
    };
    let mut blocks = 0;
    for line in file.lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<&str> = line.split(' ').collect();
        let [name, x, block, values] = parts[..] else { panic!("{line}") };
        assert_eq!(encode(name, &floats(x)), unhex(block), "{name} of {:?}", floats(x));
        assert_eq!(decode(name, &unhex(block)).map(f32::to_bits), floats(values).map(f32::to_bits), "{name}");
        blocks += 1;
    }
    assert_eq!(blocks, 40);
}
