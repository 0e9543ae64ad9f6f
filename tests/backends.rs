//! Every backend of this CPU equals the scalar specification bit for bit, through whole codecs: all of them, at all
//! widths, on random and on adversarial vectors. Single kernels are compared in `arch/tests`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Random, Steps, adversarial, bits, build_all, specs, try_build};
use octaplex::codecs::Codec;
use octaplex::{Backend, CodecSpec, Error};

/// `OCTAPLEX_REQUIRE=avx2,avx512` makes the absence of a backend a failure, so that none is skipped unseen.
#[test]
fn required_backends_are_available() {
    let required = std::env::var("OCTAPLEX_REQUIRE").unwrap_or_else(|_| "scalar".to_owned());
    let available: Vec<&str> = Backend::available().map(Backend::name).collect();
    println!("backends compared: {available:?}");
    for name in required.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        assert!(
            available.contains(&name),
            "OCTAPLEX_REQUIRE asks for {name}; this CPU or build has {available:?}"
        );
    }
}

/// The results of a codec as bits. Outputs start from a pattern, so that outputs after an error are compared too.
#[derive(PartialEq, Debug)]
struct Answers {
    encoded: Vec<(Result<(), Error>, Vec<u8>)>,
    page: (Result<usize, Error>, Vec<u8>),
    decoded: Vec<(Result<(), Error>, Vec<u32>)>,
    scores: Vec<(Result<(), Error>, Vec<u32>)>,
    outputs: Vec<(Result<(), Error>, Vec<u32>)>,
}

fn answers(codec: &dyn Codec, vectors: &[Vec<f32>], hostile: &[u8]) -> Answers {
    let bytes = codec.block_bytes();
    let encoded: Vec<_> = vectors
        .iter()
        .map(|x| {
            let mut block = vec![0x5a; bytes];
            (codec.encode(x, &mut block), block)
        })
        .collect();
    let rows: Vec<f32> =
        vectors.iter().zip(&encoded).filter(|(_, e)| e.0.is_ok()).flat_map(|(x, _)| x.clone()).collect();
    let mut page = vec![0x5a; rows.len() / codec.dim() * bytes];
    let page = (codec.encode_page(&rows, &mut page), page);
    let blocks: Vec<u8> = [&page.1, hostile].concat();
    // Blocks of hostile bytes, and every good block after one.
    let pages = [&page.1[..], hostile, &blocks[..]];
    let decoded = blocks
        .chunks(bytes)
        .map(|block| {
            let mut x = vec![0.5; codec.dim()];
            (codec.decode(block, &mut x), bits(&x))
        })
        .collect();
    let mut random = Random::new(99);
    let mut scores = Vec::new();
    let mut outputs = Vec::new();
    for blocks in pages {
        let count = blocks.len() / bytes;
        for queries in [
            vectors[0].clone(),
            vectors.iter().take(11).flatten().copied().collect(),
            random.gaussians(3 * codec.dim()),
        ] {
            let rows = queries.len() / codec.dim();
            let mut scored = vec![0.5; rows * count];
            scores.push((codec.prepare_and_score(&queries, blocks, &mut scored), bits(&scored)));
            let weights: Vec<f32> =
                (0..rows * count).map(|i| random.signed() * [1.0, 0.0, 1e-9, 1e9, -0.0][i % 5]).collect();
            let mut acc = random.gaussians(rows * codec.dim());
            let result = codec.accumulate(&weights, blocks, &mut acc);
            codec.finish(&mut acc);
            outputs.push((result, bits(&acc)));
        }
    }
    Answers { encoded, page, decoded, scores, outputs }
}

fn compare(spec: CodecSpec, random: &mut Random) {
    for scalar in build_all(spec, Backend::SCALAR) {
        let dim = scalar.dim();
        let mut vectors: Vec<Vec<f32>> = (0..4).map(|_| random.gaussians(dim)).collect();
        vectors.extend(adversarial(dim, random));
        vectors.push((0..dim).map(|i| if i == dim / 2 { f32::NAN } else { 1.0 }).collect());
        vectors.push((0..dim).map(|i| if i == dim - 1 { f32::INFINITY } else { 1.0 }).collect());
        // Any bytes, with finite scales: exponents short of all ones.
        let mut hostile = random.bytes(7 * scalar.block_bytes());
        for byte in &mut hostile {
            *byte &= if random.below(4) > 0 { 0xbb } else { 0x3b };
        }
        let expected = answers(&*scalar, &vectors, &hostile);
        assert!(expected.page.0.is_ok() && expected.scores.iter().any(|(result, _)| result.is_ok()));
        for backend in Backend::available().filter(|backend| *backend != Backend::SCALAR) {
            let codec = try_build(spec, dim, backend).unwrap();
            let got = answers(&*codec, &vectors, &hostile);
            let at = format!("{spec} at {dim}, {}", backend.name());
            for (i, (got, expected)) in got.encoded.iter().zip(&expected.encoded).enumerate() {
                assert_eq!(got, expected, "{at}: encode of {:?}", vectors[i]);
            }
            assert!(got.page == expected.page, "{at}: encode_page");
            assert!(got.decoded == expected.decoded, "{at}: decode");
            assert!(got.scores == expected.scores, "{at}: score");
            assert!(got.outputs == expected.outputs, "{at}: accumulate");
        }
    }
}

#[test]
fn every_backend_equals_scalar() {
    let mut random = Random::new(20);
    for spec in specs() {
        compare(spec, &mut random);
    }
}

#[cfg(feature = "alloc")]
#[test]
fn every_backend_equals_scalar_with_dense_rotations() {
    let mut random = Random::new(21);
    let spec: CodecSpec = "turboquant:bits=3,rotation=haar".parse().unwrap();
    for dim in [32, 80, 112] {
        let scalar = try_build(spec, dim, Backend::SCALAR).unwrap();
        let vectors = adversarial(dim, &mut random);
        let expected = answers(&*scalar, &vectors, &[]);
        for backend in Backend::available() {
            let codec = try_build(spec, dim, backend).unwrap();
            assert!(answers(&*codec, &vectors, &[]) == expected, "{spec} at {dim}, {}", backend.name());
        }
    }
}

/// The unaligned and odd-sized: pages of every small count, at every offset in memory.
#[test]
fn alignment_and_counts_do_not_matter() {
    let mut random = Random::new(22);
    for spec in specs() {
        for backend in Backend::available() {
            let codec = try_build(spec, 64, backend).unwrap();
            let rows = random.gaussians(33 * 64);
            let expected = crate::common::encode_rows(&*try_build(spec, 64, Backend::SCALAR).unwrap(), &rows);
            for count in [0, 1, 2, 3, 15, 16, 17, 31, 33] {
                let offset = count % 7 + 1;
                let mut memory = vec![0x77; offset + count * codec.block_bytes()];
                codec.encode_page(&rows[..count * 64], &mut memory[offset..]).unwrap();
                assert!(
                    memory[offset..] == expected[..count * codec.block_bytes()],
                    "{spec}, {}",
                    backend.name()
                );
                assert!(memory[..offset].iter().all(|byte| *byte == 0x77), "{spec}: wrote before its block");
            }
        }
    }
}
