//! Tests how the operations of a codec relate to each other, for every codec and width, on random inputs.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{
    Any, Random, Steps, adversarial, bits, build_all, build_if_it_fits, decode_rows, encode_rows, name_of,
    signs, sketch_signs, specs, try_build,
};
use half::f16;
use octaplex::codebook::WIDTHS;
use octaplex::codecs::{self, Codec, HeadId, IntSpec, Typed};
use octaplex::{Backend, CodecSpec};
use octaplex_arch::{Backend as Kernels, Packing};
use proptest::prelude::*;

/// Codes as the format says: the raw plane, then digits; bit by bit.
fn packed(levels: usize, codes: &[u8]) -> Vec<u8> {
    let raw_bits = levels.trailing_zeros();
    let radix = u32::try_from(levels >> raw_bits).unwrap();
    let (mut raw, mut digits) = (Vec::new(), Vec::new());
    for code in codes {
        raw.extend((0..raw_bits).map(|bit| code >> bit & 1));
    }
    let (group, width) = match radix {
        3 => (5, 8),
        5 => (3, 7),
        9 => (2, 7),
        _ => (codes.len().max(1), 0),
    };
    for group_codes in codes.chunks(group) {
        let number: u32 =
            group_codes.iter().rev().fold(0, |number, code| number * radix + (u32::from(*code) >> raw_bits));
        let short = (0..).find(|&bits| 1 << bits >= radix.pow(group_codes.len() as u32));
        let width = if group_codes.len() == group { width } else { short.unwrap() };
        digits.extend((0..width).map(|bit| (number >> bit & 1) as u8));
    }
    if radix == 1 {
        digits.clear();
    }
    let bytes = |plane: &[u8]| -> Vec<u8> {
        plane.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit)).collect()
    };
    [bytes(&raw), bytes(&digits)].concat()
}

fn packings() -> impl Iterator<Item = (usize, Packing)> {
    (2..=256).filter_map(|levels| Some((levels, Packing::for_levels(levels)?)))
}

#[test]
fn unpack_inverts_pack_for_every_packing() {
    let mut random = Random::new(2);
    let counts = (0..=40).chain(WIDTHS);
    assert_eq!(packings().count(), 8 + 7 + 6 + 5, "radix 1, 3, 5, 9 times a power of two, up to 256 levels");
    for count in counts {
        for (levels, packing) in packings() {
            let codes: Vec<u8> = (0..count).map(|_| random.below(levels) as u8).collect();
            let expected = packed(levels, &codes);
            for backend in Kernels::available() {
                let at = format!("{count} codes of {levels} levels, {}", backend.name());
                let mut bytes = vec![0xa5; packing.bytes(count)];
                backend.pack(packing, &codes, &mut bytes);
                assert_eq!(bytes, expected, "{at}");
                let mut unpacked = vec![0x5a; count];
                backend.unpack(packing, &bytes, &mut unpacked);
                assert_eq!(unpacked, codes, "{at}");
            }
        }
    }
}

#[test]
fn unpacked_codes_are_below_the_levels_whatever_the_bytes() {
    let mut random = Random::new(3);
    for (levels, packing) in packings() {
        for count in [1, 2, 3, 4, 5, 14, 15, 16, 31, 64, 80, 576] {
            let garbage = random.bytes(packing.bytes(count));
            for bytes in [garbage, vec![0xff; packing.bytes(count)]] {
                for backend in Kernels::available() {
                    let mut codes = vec![0xff; count];
                    backend.unpack(packing, &bytes, &mut codes);
                    assert!(codes.iter().all(|code| usize::from(*code) < levels), "{levels} levels");
                }
            }
        }
    }
}

/// Rows that every codec takes.
fn plain_rows(dim: usize, random: &mut Random) -> Vec<f32> {
    let mut rows = random.gaussians(5 * dim);
    rows.extend(
        adversarial(dim, random).into_iter().filter(|x| x.iter().all(|x| x.abs() < 1000.0)).flatten(),
    );
    rows
}

#[test]
fn a_page_is_its_blocks() {
    let mut random = Random::new(4);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let dim = codec.dim();
            let mut rows = plain_rows(dim, &mut random);
            // Large enough that the page is checked before it is written.
            rows.extend(random.gaussians(dim).iter().map(|x| x * 1000.0));
            let mut page = vec![0xee; rows.len() / dim * codec.block_bytes()];
            codec.encode_page(&rows, &mut page).unwrap();
            for (i, (row, block)) in rows.chunks(dim).zip(page.chunks(codec.block_bytes())).enumerate() {
                let mut single = vec![0x11; codec.block_bytes()];
                codec.encode(row, &mut single).unwrap();
                assert_eq!(single, block, "{spec} at {dim}, row {i}");
            }
        }
    }
}

#[test]
fn several_queries_are_queries_one_at_a_time() {
    let mut random = Random::new(5);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let dim = codec.dim();
            let blocks = encode_rows(&*codec, &plain_rows(dim, &mut random));
            let count = blocks.len() / codec.block_bytes();
            for queries in [1, 2, 7, 8, 9, 17] {
                let rows = random.gaussians(queries * dim);
                let mut together = vec![f32::NAN; queries * count];
                codec.prepare_and_score(&rows, &blocks, &mut together).unwrap();
                for (query, together) in rows.chunks(dim).zip(together.chunks(count)) {
                    let mut alone = vec![f32::NAN; count];
                    codec.prepare_and_score(query, &blocks, &mut alone).unwrap();
                    assert_eq!(bits(&alone), bits(together), "{spec} at {dim}, {queries} queries");
                }
                let weights: Vec<f32> = (0..queries * count).map(|_| random.signed()).collect();
                let start = random.gaussians(queries * dim);
                let mut together = start.clone();
                codec.accumulate(&weights, &blocks, &mut together).unwrap();
                for ((weights, start), together) in
                    weights.chunks(count).zip(start.chunks(dim)).zip(together.chunks(dim))
                {
                    let mut alone = start.to_vec();
                    codec.accumulate(weights, &blocks, &mut alone).unwrap();
                    assert_eq!(bits(&alone), bits(together), "{spec} at {dim}, {queries} outputs");
                }
            }
        }
    }
}

/// Blocks score alone as they do in a page.
#[test]
fn scores_do_not_depend_on_the_page() {
    let mut random = Random::new(6);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let query = random.gaussians(codec.dim());
            let blocks = encode_rows(&*codec, &random.gaussians(37 * codec.dim()));
            let mut page = [0.0; 37];
            codec.prepare_and_score(&query, &blocks, &mut page).unwrap();
            for (block, score) in blocks.chunks(codec.block_bytes()).zip(page) {
                let mut alone = [f32::NAN];
                codec.prepare_and_score(&query, block, &mut alone).unwrap();
                assert_eq!(alone[0].to_bits(), score.to_bits(), "{spec} at {}", codec.dim());
            }
        }
    }
}

/// Returns the integers that a codec makes of queries and weights: the largest of a query and of a weight, infinite if weights
/// stay f32.
fn integer_limits(spec: CodecSpec) -> Option<(f64, f64)> {
    match spec {
        CodecSpec::TurboQuant(spec) if spec.levels <= 16 => Some((127.0, 32767.0)),
        CodecSpec::Trellis(_) | CodecSpec::Graded(_) => Some((127.0, 32767.0)),
        CodecSpec::TurboQuant(_) => Some((1023.0, 4095.0)),
        CodecSpec::Int(spec) if spec.bits <= 4 => Some((127.0, 32767.0)),
        CodecSpec::Int(_) => Some((1023.0, 4095.0)),
        CodecSpec::TurboQuantQjl(spec) if spec.bits <= 5 => Some((127.0, 32767.0)),
        CodecSpec::TurboQuantQjl(_) => Some((127.0, 4095.0)),
        CodecSpec::Qjl(_) => Some((127.0, 32767.0)),
        CodecSpec::Octopus(spec) if spec.bdir <= 5 => Some((127.0, f64::INFINITY)),
        // Exact weights on the octahedral stage, 32767 on the sketch.
        CodecSpec::OctopusQjl(_) => Some((127.0, 32767.0)),
        _ => None,
    }
}

/// Rounding of f32 sums over a row, relative to the sum of magnitudes.
const F32_SUM: f64 = 3e-6;
/// Rounding where products fall below f32's normal range: 576 times 2⁻¹⁴⁹, and to spare.
const SUBNORMAL: f64 = 1e-41;

fn norm(x: &[f64]) -> f64 {
    crate::oracle::dot(x, x).sqrt()
}

#[test]
fn scores_are_products_with_the_decoded_vectors() {
    let mut random = Random::new(7);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let dim = codec.dim();
            let blocks = encode_rows(&*codec, &plain_rows(dim, &mut random));
            let decoded = crate::oracle::to_f64(&decode_rows(&*codec, &blocks));
            let query = random.gaussians(dim);
            let exact_query = crate::oracle::to_f64(&query);
            let mut scores = vec![f32::NAN; decoded.len() / dim];
            codec.prepare_and_score(&query, &blocks, &mut scores).unwrap();
            // Half a unit of the integer query a coordinate, each with a random sign: six standard deviations.
            // A unit is the rotated query's largest coordinate over the limit.
            let unit = integer_limits(spec)
                .map_or(0.0, |(limit, _)| exact_query_peak(spec, dim, &exact_query) / limit);
            let chunk_deviation = chunk_deviation(spec, dim, &exact_query);
            for (row, (score, decoded)) in scores.iter().zip(decoded.chunks(dim)).enumerate() {
                let exact = crate::oracle::dot(&exact_query, decoded);
                let sums = F32_SUM * norm(&exact_query) * norm(decoded) + SUBNORMAL;
                let bound = 6.0 * unit / 12f64.sqrt() * norm(decoded) + 6.0 * chunk_deviation(decoded) + sums;
                let error = (f64::from(*score) - exact).abs();
                assert!(
                    error <= bound,
                    "{spec} at {dim}, row {row}: {score} is {error} from {exact}, bound {bound}"
                );
            }
        }
    }
}

/// Standard deviation of the score of a decoded vector by quaternions: both the query's chunk and the member are rounded to
/// 1/127 of their largest inner product with a unit, at most their norm.
fn chunk_deviation(spec: CodecSpec, dim: usize, query: &[f64]) -> impl Fn(&[f64]) -> f64 {
    let basis = match spec {
        CodecSpec::Hqmq(spec) if spec.rotate => {
            Some((crate::oracle::hadamard(dim), signs(spec.seed, HeadId::default(), dim)))
        }
        _ => None,
    };
    let norms = move |x: &[f64]| -> Vec<f64> {
        let x = match &basis {
            Some((matrix, signs)) => crate::oracle::rotate(matrix, signs, 1, x),
            None => x.to_vec(),
        };
        x.chunks(4).map(norm).collect()
    };
    let query = norms(query);
    move |decoded| {
        if !matches!(spec, CodecSpec::Hqmq(_)) {
            return 0.0;
        }
        let products: Vec<f64> = query.iter().zip(norms(decoded)).map(|(q, k)| q * k).collect();
        norm(&products) * (2.0 / 12f64).sqrt() / 127.0
    }
}

/// The largest coordinate of the rotated query; where a codec rounds it twice, the sum of both.
fn exact_query_peak(spec: CodecSpec, dim: usize, query: &[f64]) -> f64 {
    let peak = |signs: &[f64], rounds: u8, query: &[f64]| {
        let rotated = crate::oracle::rotate(&crate::oracle::hadamard(dim), signs, rounds.into(), query);
        (rotated.iter().fold(0.0, |max: f64, x| max.max(x.abs())), rotated)
    };
    let head = HeadId::default();
    match spec {
        CodecSpec::TurboQuant(spec) => peak(&signs(spec.seed, head, dim), spec.rounds, query).0,
        CodecSpec::Trellis(spec) => peak(&signs(spec.seed, head, dim), spec.rounds, query).0,
        CodecSpec::Graded(spec) => {
            let signs = signs(spec.seed, head, dim / 2);
            let half = |half| {
                let rotated = crate::oracle::rotate(&crate::oracle::hadamard(dim / 2), &signs, 1, half);
                rotated.iter().fold(0.0, |max: f64, x| max.max(x.abs()))
            };
            query.chunks(dim / 2).map(half).fold(0.0, f64::max)
        }
        CodecSpec::Octopus(spec) => peak(&signs(spec.seed, head, dim), spec.rounds, query).0,
        CodecSpec::Int(spec) if spec.rotate => peak(&signs(spec.seed, head, dim), 1, query).0,
        CodecSpec::Int(_) => query.iter().fold(0.0, |max, x| max.max(x.abs())),
        CodecSpec::Qjl(spec) => peak(&sketch_signs(spec.seed, head, dim), spec.sketch.rounds, query).0,
        CodecSpec::OctopusQjl(spec) => {
            let octopus = spec.octopus;
            let (coarse, rotated) = peak(&signs(octopus.seed, head, dim), octopus.rounds, query);
            let coarse = if octopus.bdir <= 5 { coarse } else { 0.0 };
            coarse + peak(&sketch_signs(octopus.seed, head, dim), spec.sketch.rounds, &rotated).0
        }
        CodecSpec::TurboQuantQjl(spec) => {
            let (coarse, rotated) = peak(&signs(spec.seed, head, dim), spec.rounds, query);
            coarse + peak(&sketch_signs(spec.seed, head, dim), spec.sketch.rounds, &rotated).0
        }
        _ => panic!("{spec} has no integer queries"),
    }
}

/// Bounds the error of `int` outputs: half a unit of each group's integer weights times the largest code, over all rows.
fn int_weight_errors(spec: IntSpec, dim: usize, weights: &[f32], blocks: &[u8], limit: f64) -> f64 {
    let group = spec.group.map_or(dim, usize::from);
    let (fields, largest) =
        if spec.asymmetric { (4, (1 << spec.bits) - 1) } else { (2, 1 << (spec.bits - 1)) };
    let rows = || weights.iter().zip(blocks.chunks(blocks.len() / weights.len()));
    let units: Vec<f64> = (0..dim / group)
        .map(|g| {
            let scale = |row: &[u8]| f16::from_le_bytes([row[fields * g], row[fields * g + 1]]).to_f64();
            rows().map(|(weight, row)| (f64::from(*weight) * scale(row)).abs()).fold(0.0, f64::max) / limit
        })
        .collect();
    0.5 * norm(&units) * (group as f64).sqrt() * f64::from(largest) * weights.len() as f64
}

#[test]
fn accumulated_outputs_are_weighted_sums_of_decoded_vectors() {
    let mut random = Random::new(8);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let (dim, bytes) = (codec.dim(), codec.block_bytes());
            // More than one run of 256 rows.
            let count = 300;
            let blocks = encode_rows(&*codec, &random.gaussians(count * dim));
            let decoded = crate::oracle::to_f64(&decode_rows(&*codec, &blocks));
            let weights: Vec<f32> = (0..count).map(|_| random.signed()).collect();
            let mut output = vec![0.0; dim];
            codec.accumulate(&weights, &blocks, &mut output).unwrap();
            codec.finish(&mut output);

            let mut exact = vec![0.0; dim];
            let (mut weight_errors, mut magnitude) = (0.0, 0.0);
            let scale = |row: usize| match spec {
                CodecSpec::OctopusQjl(spec) if spec.octopus.norm == codecs::NormFormat::F32 => {
                    f64::from(f32::from_le_bytes(*blocks[row * bytes..].first_chunk().unwrap()))
                }
                _ => f16::from_le_bytes([blocks[row * bytes], blocks[row * bytes + 1]]).to_f64(),
            };
            let limits = integer_limits(spec).filter(|(_, weight)| weight.is_finite());
            let largest = if limits.is_none() {
                0.0
            } else {
                (0..count).map(|row| (f64::from(weights[row]) * scale(row)).abs()).fold(0.0, f64::max)
            };
            for (row, x) in decoded.chunks(dim).enumerate() {
                for (exact, x) in exact.iter_mut().zip(x) {
                    *exact += f64::from(weights[row]) * x;
                }
                if let (CodecSpec::Int(spec), Some((_, limit))) = (spec, limits) {
                    weight_errors = int_weight_errors(spec, dim, &weights, &blocks, limit);
                } else if let Some((_, limit)) = limits {
                    // Half a unit of the integer weight for this row's vector of centroids.
                    weight_errors += 0.5 * largest / limit * norm(x) / scale(row);
                    if matches!(spec, CodecSpec::TurboQuantQjl(_) | CodecSpec::OctopusQjl(_)) {
                        // The signs have integer weights of their own: c·‖s‖ is √(π/2), a residual's norm below 1.
                        weight_errors += 0.5 * largest / limit * 1.2534;
                    }
                }
                magnitude += f64::from(weights[row]).abs() * norm(x);
            }
            let error: Vec<f64> = exact.iter().zip(&output).map(|(e, o)| e - f64::from(*o)).collect();
            let bound = weight_errors + F32_SUM * magnitude;
            assert!(norm(&error) <= bound, "{spec} at {dim}: off by {}, bound {bound}", norm(&error));
        }
    }
}

#[test]
fn accumulating_nothing_changes_nothing() {
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let mut acc = vec![1.5; codec.dim()];
            codec.accumulate(&[], &[], &mut acc).unwrap();
            codec.accumulate(&[], &[], &mut []).unwrap();
            assert!(acc.iter().all(|acc| *acc == 1.5), "{spec}");
            codec.prepare_and_score(&acc, &[], &mut []).unwrap();
            codec.encode_page(&[], &mut []).unwrap();
        }
    }
}

/// Formats that hold their own decoded values: decoding and encoding again gives the same bytes.
#[test]
fn decoded_values_encode_to_the_same_bytes() {
    let stable = [
        "f16",
        "bf16",
        "f32",
        "int:bits=3",
        "int",
        "int:bits=8",
        "int:bits=5,group=16",
        "int:bits=4,asymmetric=true",
    ];
    let mut random = Random::new(9);
    for spec in stable {
        for codec in build_all(spec.parse().unwrap(), Backend::detect()) {
            let blocks = encode_rows(&*codec, &random.gaussians(20 * codec.dim()));
            let again = encode_rows(&*codec, &decode_rows(&*codec, &blocks));
            assert!(again == blocks, "{spec} at {}", codec.dim());
        }
    }
}

/// A sign is the same sign again after decoding, whatever the rotation rounds; the norm may move by a unit of f16.
#[test]
fn one_bit_codes_are_stable() {
    let mut random = Random::new(10);
    for codec in build_all("turboquant:bits=1".parse().unwrap(), Backend::detect()) {
        let blocks = encode_rows(&*codec, &random.gaussians(20 * codec.dim()));
        let again = encode_rows(&*codec, &decode_rows(&*codec, &blocks));
        for (a, b) in blocks.chunks(codec.block_bytes()).zip(again.chunks(codec.block_bytes())) {
            assert_eq!(a[2..], b[2..], "width {}", codec.dim());
            let norm = |block: &[u8]| i32::from(u16::from_le_bytes([block[0], block[1]]));
            assert!((norm(a) - norm(b)).abs() <= 1, "width {}", codec.dim());
        }
    }
}

/// A value on a threshold goes to the upper cell, and so does the sign of either zero: two equal values leave zeros in
/// half of the rotated coordinates, and +0 and -0 among them.
#[test]
fn zeros_after_the_rotation_are_positive() {
    for width in WIDTHS.into_iter().filter(|width| width.is_power_of_two()) {
        let mut x = vec![0.0; width];
        (x[0], x[1]) = (-1.0, 1.0);
        let rotated = crate::oracle::rotate(
            &crate::oracle::hadamard(width),
            &signs(0, HeadId::default(), width),
            1,
            &crate::oracle::to_f64(&x),
        );
        assert_eq!(rotated.iter().filter(|z| **z == 0.0).count(), width / 2);
        for backend in Backend::available() {
            for bits in [1, 2, 8] {
                let codec =
                    try_build(format!("turboquant:bits={bits}").parse().unwrap(), width, backend).unwrap();
                let mut block = vec![0; codec.block_bytes()];
                codec.encode(&x, &mut block).unwrap();
                let mut codes = vec![0; width];
                Kernels::SCALAR.unpack(Packing::bits(bits), &block[2..], &mut codes);
                for (code, z) in codes.iter().zip(&rotated) {
                    let upper = 1 << (bits - 1);
                    assert_eq!(*code >= upper, *z >= 0.0, "code {code} for {z}, {bits} bits at {width}");
                    assert!(*z != 0.0 || *code == upper, "code {code} for 0, {bits} bits at {width}");
                }
            }
        }
    }
}

/// A zero f16 has zero codes and decodes to zero.
#[test]
fn zero_vectors_are_zero_bytes_and_decode_to_zero() {
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let mut block = vec![0xee; codec.block_bytes()];
            codec.encode(&vec![0.0; codec.dim()], &mut block).unwrap();
            // In other people's blocks zero lies in the middle of the codes.
            let foreign = ["tq3_0", "q5_0", "q4_0"].contains(&&*name_of(spec));
            let zero = block.iter().all(|byte| *byte == 0) || foreign;
            assert!(zero, "{spec} at {}", codec.dim());
            let mut x = vec![f32::NAN; codec.dim()];
            codec.decode(&block, &mut x).unwrap();
            assert!(x.iter().all(|x| *x == 0.0), "{spec} at {}", codec.dim());
        }
    }
}

#[test]
fn blocks_have_the_bytes_that_the_spec_and_its_layout_say() {
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let dim = codec.dim();
            assert_eq!(spec.block_bytes(dim), codec.block_bytes(), "{spec} at {dim}");
            let mut lines = 0;
            spec.layout(dim, |bytes, meaning| {
                assert!(bytes > 0 && !meaning.is_empty(), "{spec} at {dim}: {bytes} bytes of '{meaning}'");
                lines += bytes;
            });
            assert_eq!(lines, codec.block_bytes(), "{spec} at {dim}: the layout's lines");
            assert_eq!(spec.bits_per_value(dim), codec.block_bytes() as f64 * 8.0 / dim as f64);
        }
    }
}

/// Everything a codec says about one vector, one query and one weight.
fn answers<const D: usize>(codec: &Typed<impl Codec, D>, x: &[f32; D], q: &[f32; D]) -> (Vec<u8>, Vec<u32>) {
    let mut block = vec![0; codec.block_bytes()];
    codec.encode(x, &mut block).unwrap();
    let (mut decoded, mut score, mut acc) = ([0.0; D], [0.0], [[0.0; D]]);
    codec.decode(&block, &mut decoded).unwrap();
    codec.score(&[codec.prepare_query(q).unwrap()], &block, &mut score).unwrap();
    codec.accumulate(&[0.7], &block, &mut acc).unwrap();
    codec.finish(&mut acc[0]);
    (block, [bits(&decoded), bits(&score), bits(&acc[0])].concat())
}

#[test]
fn a_codec_chosen_at_run_time_is_the_concrete_codec() {
    let mut random = Random::new(11);
    let backend = Backend::detect();
    let mut x = || -> [f32; 96] { core::array::from_fn(|_| random.gaussian()) };
    for spec in specs() {
        let (x, q) = (x(), x());
        let Ok(any) = Any::<96>::build(spec, backend, HeadId::default()) else { continue };
        let any_answers = answers(&any, &x, &q);
        let concrete = match spec {
            CodecSpec::TurboQuant(s) => {
                answers(&codecs::TurboQuant::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::TurboQuantQjl(s) => {
                answers(&codecs::TurboQuantQjl::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::Octopus(s) => {
                answers(&codecs::Octopus::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::OctopusQjl(s) => {
                answers(&codecs::OctopusQjl::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::Qjl(s) => {
                answers(&codecs::Qjl::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::PolarQuant(s) => {
                answers(&codecs::PolarQuant::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::Tq3(s) => {
                answers(&codecs::Tq3::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::Int(s) => {
                answers(&codecs::Int::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::Q8_0(s) => answers(
                &codecs::Ggml::<96, codecs::Q8_0Spec>::build(s, backend, HeadId::default()).unwrap(),
                &x,
                &q,
            ),
            CodecSpec::Q5_0(s) => answers(
                &codecs::Ggml::<96, codecs::Q5_0Spec>::build(s, backend, HeadId::default()).unwrap(),
                &x,
                &q,
            ),
            CodecSpec::Q4_0(s) => answers(
                &codecs::Ggml::<96, codecs::Q4_0Spec>::build(s, backend, HeadId::default()).unwrap(),
                &x,
                &q,
            ),
            CodecSpec::Iq4Nl(s) => answers(
                &codecs::Ggml::<96, codecs::Iq4NlSpec>::build(s, backend, HeadId::default()).unwrap(),
                &x,
                &q,
            ),
            CodecSpec::Fp8(s) => {
                answers(&codecs::Fp8::<96>::build(s, backend, HeadId::default()).unwrap(), &x, &q)
            }
            CodecSpec::F16(s) => answers(
                &codecs::FloatRows::<96, codecs::F16Spec>::build(s, backend, HeadId::default()).unwrap(),
                &x,
                &q,
            ),
            CodecSpec::Bf16(s) => answers(
                &codecs::FloatRows::<96, codecs::Bf16Spec>::build(s, backend, HeadId::default()).unwrap(),
                &x,
                &q,
            ),
            CodecSpec::F32(s) => answers(
                &codecs::FloatRows::<96, codecs::F32Spec>::build(s, backend, HeadId::default()).unwrap(),
                &x,
                &q,
            ),
            // A new codec is compared through `AnyCodec` only until it has an arm here.
            _ => continue,
        };
        assert_eq!(any_answers, concrete, "{spec}");
    }
}

#[cfg(feature = "alloc")]
#[test]
fn a_codec_of_run_time_width_is_the_same_codec() {
    let mut random = Random::new(12);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let dim = codec.dim();
            let rows = random.gaussians(70 * dim); // more than a page of 64
            let dynamic = spec.build_dyn(dim, Backend::detect(), HeadId::default()).unwrap();
            assert_eq!(
                (dynamic.dim(), dynamic.block_bytes(), dynamic.query_len()),
                (dim, codec.block_bytes(), codec.query_len())
            );
            let blocks = dynamic.encode_rows(&rows).unwrap();
            assert!(blocks == encode_rows(&*codec, &rows), "{spec} at {dim}");
            assert_eq!(bits(&dynamic.decode_rows(&blocks).unwrap()), bits(&decode_rows(&*codec, &blocks)));
            let mut scores = vec![0.0; 140];
            codec.prepare_and_score(&rows[..2 * dim], &blocks, &mut scores).unwrap();
            assert_eq!(
                bits(&dynamic.score_rows(&rows[..2 * dim], &blocks).unwrap()),
                bits(&scores),
                "{spec} at {dim}"
            );
            let mut outputs = vec![0.0; 2 * dim];
            codec.accumulate(&rows[..140], &blocks, &mut outputs).unwrap();
            codec.finish(&mut outputs);
            assert_eq!(
                bits(&dynamic.attend_rows(&rows[..140], &blocks).unwrap()),
                bits(&outputs),
                "{spec} at {dim}"
            );
        }
    }
}

/// Attention on compressed keys and values tends to the textbook's: with f32 rows, to rounding.
#[test]
fn attention_on_f32_rows_is_the_textbooks() {
    let mut random = Random::new(13);
    let codec = crate::common::build("f32", 64);
    let (keys, values, query) = (random.gaussians(50 * 64), random.gaussians(50 * 64), random.gaussians(64));
    let mut logits = vec![0.0; 50];
    codec.prepare_and_score(&query, &encode_rows(&*codec, &keys), &mut logits).unwrap();
    let weights: Vec<f64> = logits.iter().map(|score| (f64::from(*score) / 8.0).exp()).collect();
    let total: f64 = weights.iter().sum();
    let weights: Vec<f32> = weights.iter().map(|weight| (weight / total) as f32).collect();
    let mut output = vec![0.0; 64];
    codec.accumulate(&weights, &encode_rows(&*codec, &values), &mut output).unwrap();
    codec.finish(&mut output);
    let rows =
        |x: &[f32]| -> Vec<Vec<f64>> { crate::oracle::to_f64(x).chunks(64).map(<[f64]>::to_vec).collect() };
    let exact = crate::oracle::attention(&crate::oracle::to_f64(&query), &rows(&keys), &rows(&values));
    for (output, exact) in output.iter().zip(exact) {
        assert!((f64::from(*output) - exact).abs() < 1e-5, "{output} for {exact}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever finite vector: an error, or a block that decodes to finite values no farther away than its norm.
    #[test]
    fn any_finite_vector_is_encoded_or_refused(
        spec in proptest::sample::select(specs()),
        width in proptest::sample::select(vec![32, 80, 96, 112, 128]),
        mantissas in proptest::collection::vec(-1.0f32..1.0, 128),
        exponents in proptest::collection::vec(-30i32..16, 128),
    ) {
        let x: Vec<f32> =
            mantissas.iter().zip(&exponents).map(|(m, e)| m * libm::exp2f(*e as f32)).take(width).collect();
        let Some(codec) = build_if_it_fits(spec, width, Backend::detect()) else { return Ok(()) };
        let mut block = vec![0; codec.block_bytes()];
        let Ok(()) = codec.encode(&x, &mut block) else {
            // Only scales beyond f16 are refused; below this nothing is.
            prop_assert!(norm(&crate::oracle::to_f64(&x)) > 65504.0 / 20.0, "{spec} refused {x:?}");
            return Ok(());
        };
        let mut decoded = vec![f32::NAN; width];
        codec.decode(&block, &mut decoded).unwrap();
        let residual: Vec<f64> = x.iter().zip(&decoded).map(|(x, y)| f64::from(*x) - f64::from(*y)).collect();
        prop_assert!(decoded.iter().all(|x| x.is_finite()));
        // 2⁻¹³ a coordinate: scales below f16's normal range are coarse.
        let limit = 1.5 * norm(&crate::oracle::to_f64(&x)) + 1e-4 * (width as f64).sqrt();
        prop_assert!(norm(&residual) <= limit, "{spec}: {} of {}", norm(&residual), norm(&crate::oracle::to_f64(&x)));
    }
}

/// Two lists of the same thing must not drift apart: each codec is among the specs tested.
#[test]
fn every_codec_is_tested() {
    for codec in CodecSpec::all() {
        assert!(specs().iter().any(|spec| name_of(*spec) == codec.name), "{}", codec.name);
    }
}

/// rint((x - zero)/scale) by true division: halves of an f16 scale are exact f32, and go to the even integer.
#[test]
fn integers_round_ties_to_even() {
    let mut random = Random::new(14);
    for backend in Backend::available() {
        for (spec, low, high) in [("int:bits=8", -127, 127), ("int:bits=8,asymmetric=true", 0, 255)] {
            let codec = try_build(spec.parse().unwrap(), 64, backend).unwrap();
            for _ in 0..50 {
                let scale = f16::from_f32(0.01 + random.unit() as f32).to_f32();
                let mut x: Vec<f32> =
                    (0..64).map(|_| (low + random.below(254) as i32) as f32 * scale + 0.5 * scale).collect();
                // The ends fix the scale and the zero.
                (x[0], x[1]) = (low as f32 * scale, high as f32 * scale);
                let mut block = vec![0; codec.block_bytes()];
                codec.encode(&x, &mut block).unwrap();
                let mut decoded = vec![0.0; 64];
                codec.decode(&block, &mut decoded).unwrap();
                for (x, decoded) in x.iter().zip(&decoded) {
                    let expected = (x / scale).round_ties_even().min(high as f32) * scale;
                    assert_eq!(*decoded, expected, "{spec}, {}: {x} by {scale}", backend.name());
                }
            }
        }
    }
}
