//! TQ3_0 against blocks of the original C code, and against its rules written out a second time.
//!
//! `OCTAPLEX_TQ3_0=FOLDER` also compares with the files `input.f32`, `blocks.bin`, `output.f32` and
//! `variant_3bit/{blocks.bin,output.f32}` of a folder of vectors.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random};
use octaplex::codecs::HeadId;
use octaplex::{Backend, CodecSpec, Error};

const SPECS: [&str; 2] = ["tq3_0", "tq3_0:variant=3bit"];

fn build<const D: usize>(spec: &str) -> Any<D> {
    let spec: CodecSpec = spec.parse().unwrap();
    Any::build(spec, Backend::detect(), HeadId::default()).unwrap()
}

/// The rules in words, one step after the other, for one block.
fn rules(spec: &str, x: &[f32; 32]) -> ([u8; 14], [f32; 32]) {
    let signs = "+-++--+-++-+-+--+--++-+--+++--+-";
    let sign = |j: usize| if signs.as_bytes()[j] == b'+' { 1.0f32 } else { -1.0 };
    let transform = |mut r: [f32; 32]| {
        for step in [1, 2, 4, 8, 16] {
            for j in (0..32).filter(|j| j & step == 0) {
                (r[j], r[j + step]) = (r[j] + r[j + step], r[j] - r[j + step]);
            }
        }
        r
    };
    let (centroids, thresholds): (&[f32], &[f32]) = if spec == "tq3_0" {
        (&[-1.510, -0.4528, 0.4528, 1.510], &[-0.9814, 0.0, 0.9814])
    } else {
        (
            &[-2.1573, -1.3336, -0.7434, -0.2428, 0.2428, 0.7434, 1.3336, 2.1573],
            &[-1.7455, -1.0385, -0.4931, 0.0, 0.4931, 1.0385, 1.7455],
        )
    };
    let root = (1.0 / libm::sqrt(32.0)) as f32;
    let r = transform(std::array::from_fn(|j| x[j] * sign(j))).map(|r| r * root);
    let mut largest = 0.0f32;
    for r in r {
        if r.abs() > largest {
            largest = r.abs();
        }
    }
    let d = largest / centroids[centroids.len() - 1];
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    let mut block = [0u8; 14];
    let mut codes = [0; 32];
    for j in 0..32 {
        let y = r[j] * inverse;
        // "Below this threshold: that index"; a NaN is below none.
        let code = thresholds.iter().position(|t| y < *t).unwrap_or(thresholds.len());
        codes[j] = code;
        block[j / 4] |= ((code & 3) as u8) << (2 * (j % 4));
        let bit = if spec == "tq3_0" { r[j] - d * centroids[code] >= 0.0 } else { code > 3 };
        block[8 + j / 8] |= u8::from(bit) << (j % 8);
    }
    let gamma = half::f16::from_f32(d);
    block[12..].copy_from_slice(&gamma.to_le_bytes());
    let v = transform(std::array::from_fn(|j| gamma.to_f32() * centroids[codes[j]]));
    (block, std::array::from_fn(|j| v[j] * (root * sign(j))))
}

/// Encodes and decodes one block.
fn codec(spec: &str, x: &[f32; 32]) -> ([u8; 14], [f32; 32]) {
    let (mut block, mut decoded) = ([0; 14], [0.0; 32]);
    let codec = build::<32>(spec);
    codec.encode(x, &mut block).unwrap();
    codec.decode(&block, &mut decoded).unwrap();
    (block, decoded)
}

fn bits(x: &[f32; 32]) -> [u32; 32] {
    x.map(f32::to_bits)
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..][..2], 16).unwrap()).collect()
}

fn floats(bytes: &[u8]) -> [f32; 32] {
    std::array::from_fn(|j| f32::from_le_bytes([0, 1, 2, 3].map(|k| bytes[4 * j + k])))
}

fn fnv(x: &[f32; 32]) -> u64 {
    let bytes = x.iter().flat_map(|x| x.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn blocks_of_the_original_code() {
    for line in include_str!("vectors/tq3_0.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let x = floats(&unhex(fields[0]));
        for (spec, expected) in SPECS.into_iter().zip([&fields[1..3], &fields[3..5]]) {
            for (whose, (block, decoded)) in [("ours", codec(spec, &x)), ("rules", rules(spec, &x))] {
                assert_eq!(block.to_vec(), unhex(expected[0]), "{whose}, {spec}: {}", fields[5]);
                assert_eq!(format!("{:016x}", fnv(&decoded)), expected[1], "{whose}, {spec}: {}", fields[5]);
            }
        }
    }
}

#[test]
fn a_folder_of_blocks() {
    let Some(folder) = std::env::var_os("OCTAPLEX_TQ3_0") else {
        println!("skipped: OCTAPLEX_TQ3_0 names no folder");
        return;
    };
    let read = |name: &str| std::fs::read(std::path::Path::new(&folder).join(name)).unwrap();
    let inputs = read("input.f32");
    for (spec, prefix) in SPECS.into_iter().zip(["", "variant_3bit/"]) {
        let (blocks, outputs) = (read(&format!("{prefix}blocks.bin")), read(&format!("{prefix}output.f32")));
        let mut count = 0;
        for ((x, block), output) in inputs.chunks(128).zip(blocks.chunks(14)).zip(outputs.chunks(128)) {
            let (ours, decoded) = codec(spec, &floats(x));
            assert_eq!(ours, block, "{spec}: block {count}");
            assert_eq!(bits(&decoded), bits(&floats(output)), "{spec}: output {count}");
            assert_eq!(rules(spec, &floats(x)).0, block, "{spec}: rules {count}");
            count += 1;
        }
        println!("{spec}: {count} blocks match byte for byte");
    }
}

/// Every magnitude, subnormal scales and reciprocals that overflow included, on every backend.
#[test]
fn the_rules_hold_at_every_magnitude() {
    let mut random = Random::new(1);
    for spec in SPECS {
        for backend in Backend::available() {
            let spec_value: CodecSpec = spec.parse().unwrap();
            let codec = Any::<32>::build(spec_value, backend, HeadId::default()).unwrap();
            for round in 0..4096 {
                let exponent = random.below(165) as i32 - 150;
                let factor = libm::exp2(f64::from(exponent)) as f32;
                let x: [f32; 32] = std::array::from_fn(|_| match round % 3 {
                    0 => random.gaussian() * factor,
                    1 => random.below(5) as f32 * factor - 2.0 * factor,
                    _ => f32::from_bits(random.below(30) as u32 * u32::from(random.below(4) == 0)),
                });
                let (mut block, mut decoded) = ([0; 14], [0.0; 32]);
                let (expected, expected_decoded) = rules(spec, &x);
                let result = codec.encode(&x, &mut block);
                if half::f16::from_le_bytes([expected[12], expected[13]]).is_finite() {
                    assert_eq!(result, Ok(()));
                    assert_eq!(block, expected, "{spec}, {}: {x:?}", backend.name());
                    codec.decode(&block, &mut decoded).unwrap();
                    assert_eq!(bits(&decoded), bits(&expected_decoded), "{spec}: {x:?}");
                } else {
                    assert_eq!(result, Err(Error::Overflow));
                }
            }
        }
    }
}

/// Blocks of 32 lie one after the other; scores and outputs are those of the decoded values.
#[test]
fn rows_are_blocks_in_order() {
    const ROWS: usize = 37;
    let mut random = Random::new(2);
    for spec in SPECS {
        let codec = build::<96>(spec);
        assert_eq!(codec.block_bytes(), 42);
        let rows: Vec<[f32; 96]> = (0..ROWS).map(|_| std::array::from_fn(|_| random.gaussian())).collect();
        let mut blocks = vec![0; 42 * ROWS];
        codec.encode_page(&rows, &mut blocks).unwrap();
        let mut decoded = vec![[0.0f32; 96]; ROWS];
        for ((row, block), decoded) in rows.iter().zip(blocks.chunks(42)).zip(&mut decoded) {
            codec.decode(block, decoded).unwrap();
            for part in 0..3 {
                let x: [f32; 32] = std::array::from_fn(|j| row[32 * part + j]);
                assert_eq!(block[14 * part..][..14], rules(spec, &x).0);
            }
        }
        let queries: [[f32; 96]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| random.gaussian()));
        let prepared = queries.map(|query| codec.prepare_query(&query).unwrap());
        let mut scores = [0.0; 3 * ROWS];
        codec.score(&prepared, &blocks, &mut scores).unwrap();
        for (query, scores) in queries.iter().zip(scores.chunks(ROWS)) {
            for (row, score) in decoded.iter().zip(scores) {
                let exact: f64 = query.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                assert!((exact - f64::from(*score)).abs() < 1e-4, "{spec}: {exact} {score}");
            }
        }
        let weights: [f32; 2 * ROWS] = std::array::from_fn(|_| random.unit() as f32 / ROWS as f32);
        let mut acc = [[0.0; 96]; 2];
        codec.accumulate(&weights, &blocks, &mut acc).unwrap();
        for (acc, weights) in acc.iter_mut().zip(weights.chunks(ROWS)) {
            codec.finish(acc);
            for (j, acc) in acc.iter().enumerate() {
                let exact: f64 =
                    weights.iter().zip(&decoded).map(|(w, row)| f64::from(*w) * f64::from(row[j])).sum();
                assert!((exact - f64::from(*acc)).abs() < 1e-5, "{spec}: {exact} {acc}");
            }
        }
    }
}

/// E‖x-x̂‖²/E‖x‖² on Gaussian blocks.
#[test]
fn distortion_is_that_of_the_fork() {
    for (spec, expected) in SPECS.into_iter().zip([0.189, 0.0315]) {
        let codec = build::<128>(spec);
        let mut random = Random::new(3);
        let (mut error, mut energy) = (0.0, 0.0);
        for _ in 0..2000 {
            let x: [f32; 128] = std::array::from_fn(|_| random.gaussian());
            let (mut block, mut decoded) = ([0; 56], [0.0; 128]);
            codec.encode(&x, &mut block).unwrap();
            codec.decode(&block, &mut decoded).unwrap();
            for (x, y) in x.iter().zip(decoded) {
                error += f64::from(x - y) * f64::from(x - y);
                energy += f64::from(*x) * f64::from(*x);
            }
        }
        println!("{spec}: {:.4}", error / energy);
        assert!((error / energy / expected - 1.0).abs() < 0.015, "{spec}: {}", error / energy);
    }
}

#[test]
fn bad_input_and_bad_bytes_are_errors() {
    for spec in SPECS {
        let codec = build::<64>(spec);
        let mut block = [7; 28];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.0; 64];
            x[40] = bad;
            assert_eq!(codec.encode(&x, &mut block), Err(Error::NonFinite { index: 40 }));
            assert!(codec.prepare_query(&x).is_err());
        }
        for large in [4.0e5, 1e30, f32::MAX] {
            assert_eq!(codec.encode(&[large; 64], &mut block), Err(Error::Overflow));
        }
        assert_eq!(block, [7; 28], "an error leaves the block alone");
        let query = codec.prepare_query(&[1.0; 64]).unwrap();
        for scale in [0x7c00u16, 0xfc00, 0x7e00, 0xffff] {
            for at in [12, 26] {
                let mut bytes = [0; 56];
                bytes[28 + at..][..2].copy_from_slice(&scale.to_le_bytes());
                let mut scores = [3.0; 2];
                let corrupt = Err(Error::Corrupt { block: 1 });
                assert_eq!(codec.score(std::slice::from_ref(&query), &bytes, &mut scores), corrupt);
                assert_eq!(scores, [0.0; 2]);
                assert_eq!(codec.accumulate(&[1.0; 2], &bytes, &mut [[0.0; 64]]), corrupt);
                assert!(codec.decode(&bytes[28..], &mut [0.0; 64]).is_err());
            }
        }
        assert_eq!(codec.encode(&[0.0; 64], &mut block), Ok(()));
        let zero = if spec == "tq3_0" { 0xaa } else { 0 };
        assert!(block.chunks(14).all(|b| b[..8] == [zero; 8] && b[8..12] == [0xff; 4] && b[12..] == [0, 0]));
    }
    let spec: CodecSpec = "tq3_0".parse().unwrap();
    assert!(Any::<80>::build(spec, Backend::SCALAR, HeadId::default()).is_err());
    assert_eq!(spec.block_bytes(128), 56);
}
