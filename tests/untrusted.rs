//! Tests untrusted inputs: floats of every kind, blocks of any bytes, buffers of any length. Every call returns finite
//! results, or a typed error and leaves its outputs as they were. None panics.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random, Steps, adversarial, build, build_all, encode_rows, name_of, specs};
use octaplex::codebook::WIDTHS;
use octaplex::codecs::{Codec, HeadId, Int, IntSpec, TurboQuant, TurboQuantSpec};
use octaplex::{Backend, CodecSpec, Error};

const PATTERN: u8 = 0xa7;
const FLOAT_PATTERN: f32 = -1234.5;

/// Encodes, and proves that an error leaves the output as it was.
fn encode(codec: &dyn Codec, x: &[f32]) -> Result<Vec<u8>, Error> {
    let mut block = vec![PATTERN; codec.block_bytes()];
    let result = codec.encode(x, &mut block);
    if result.is_err() {
        assert!(block.iter().all(|byte| *byte == PATTERN), "{result:?} wrote to the block");
    }
    let mut page = vec![PATTERN; 3 * codec.block_bytes()];
    let good = vec![1.0; codec.dim()];
    let page_result = codec.encode_page(&[&good, x, &good].concat(), &mut page).map(drop);
    match (result, page_result) {
        (Ok(()), Ok(())) => assert_eq!(page[codec.block_bytes()..][..codec.block_bytes()], block),
        (Err(error), Err(page_error)) => {
            assert!(page.iter().all(|byte| *byte == PATTERN), "{error:?} wrote to the page");
            match (error, page_error) {
                (Error::NonFinite { index }, Error::NonFinite { index: in_page }) => {
                    assert_eq!(index + codec.dim(), in_page);
                }
                (error, page_error) => assert_eq!(error, page_error),
            }
        }
        (block, page) => panic!("a block says {block:?}, its page {page:?}"),
    }
    result.map(|()| block)
}

fn decode(codec: &dyn Codec, block: &[u8]) -> Result<Vec<f32>, Error> {
    let mut x = vec![FLOAT_PATTERN; codec.dim()];
    let result = codec.decode(block, &mut x);
    if result.is_err() {
        assert!(x.iter().all(|x| *x == FLOAT_PATTERN), "{result:?} wrote to the vector");
    } else {
        assert!(x.iter().all(|x| x.is_finite()), "decoded to {x:?}");
    }
    result.map(|()| x)
}

fn score(codec: &dyn Codec, queries: &[f32], blocks: &[u8], count: usize) -> Result<Vec<f32>, Error> {
    let mut scores = vec![FLOAT_PATTERN; count];
    let result = codec.prepare_and_score(queries, blocks, &mut scores);
    if result.is_err() {
        let all = |value| scores.iter().all(|score| *score == value);
        let is_corrupt = matches!(result, Err(Error::Corrupt { .. }));
        assert!(all(FLOAT_PATTERN) || is_corrupt && all(0.0), "{result:?} wrote to the scores");
    } else {
        assert!(scores.iter().all(|score| score.is_finite()), "scores {scores:?}");
    }
    result.map(|()| scores)
}

fn accumulate(codec: &dyn Codec, weights: &[f32], blocks: &[u8]) -> Result<Vec<f32>, Error> {
    let mut acc = vec![FLOAT_PATTERN; codec.dim()];
    let result = codec.accumulate(weights, blocks, &mut acc);
    if let Err(error) = result {
        assert!(acc.iter().all(|acc| *acc == FLOAT_PATTERN), "{error:?} wrote to the output");
        return Err(error);
    }
    codec.finish(&mut acc);
    assert!(acc.iter().all(|acc| acc.is_finite()), "accumulated {acc:?}");
    Ok(acc)
}

#[test]
fn non_finite_values_are_refused_by_index() {
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let dim = codec.dim();
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
                for index in [0, 1, 15, 16, dim - 1] {
                    let mut x = vec![0.25; dim];
                    x[index] = bad;
                    x[dim - 1] = if index == dim - 1 { bad } else { f32::NAN };
                    let error = Error::NonFinite { index };
                    assert_eq!(encode(&*codec, &x), Err(error), "{spec} at {dim}, {bad} at {index}");
                    assert_eq!(score(&*codec, &x, &[], 0), Err(error), "{spec} at {dim}: query");
                }
            }
        }
    }
}

#[test]
fn every_finite_vector_is_refused_or_decodes_to_finite_values() {
    let mut random = Random::new(30);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let dim = codec.dim();
            let weights = [4_294_967_296.0];
            let mut vectors = adversarial(dim, &mut random);
            let prepare = |query: &[f32]| {
                let mut words = vec![0.0; codec.query_len()];
                codec.prepare_query(query, &mut words).map(|()| words)
            };
            let mut queries = Vec::new();
            for query in &vectors {
                match prepare(query) {
                    Ok(words) => {
                        assert!(query.iter().all(|q| q.abs() < 2.9e17));
                        queries.push(words);
                    }
                    Err(error) => {
                        assert_eq!(error, Error::Overflow);
                        assert!(query.iter().any(|q| q.abs() > 2.8e17), "{spec}: refused {query:?}");
                    }
                }
            }
            let queries: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
            // Any bits at all.
            vectors.extend((0..20).map(|_| (0..dim).map(|_| f32::from_bits(random.word() as u32)).collect()));
            for x in &vectors {
                let Ok(block) = encode(&*codec, x) else { continue };
                decode(&*codec, &block).unwrap_or_else(|error| panic!("{spec} at {dim}: {error} for {x:?}"));
                accumulate(&*codec, &weights, &block).unwrap();
                let mut scores = vec![FLOAT_PATTERN; queries.len()];
                codec.score(&queries, &block, &mut scores).unwrap();
                assert!(scores.iter().all(|score| score.is_finite()), "{spec} at {dim}: {scores:?}");
            }
        }
    }
}

/// A finite vector is refused exactly where a stored number would be infinite.
#[test]
fn the_ends_of_the_stored_formats() {
    let below = |x: f32| f32::from_bits(x.to_bits() - 1);
    let one = |value: f32| {
        let mut x = vec![0.0; 32];
        x[3] = value;
        x
    };
    let two_58 = 288_230_376_151_711_744.0;
    // The first value that rounds up to the format's first forbidden one.
    for (spec, first_refused) in [
        ("f16", 65520.0),
        ("bf16", two_58 * (1.0 - 1.0 / 512.0)),
        ("f32", two_58),
        ("int:bits=2", 65520.0),
        ("int:bits=8", 127.0 * 65520.0),
        ("int:bits=8,asymmetric=true", 255.0 * 65520.0),
        ("turboquant:gain=norm", 65520.0),
        ("turboquant-qjl:bits=8", 65520.0),
        ("octopus:gain=norm", 65520.0),
        ("octopus-qjl:gain=norm", 65520.0),
        ("polarquant:bits=7", 65520.0),
    ] {
        let codec = build(spec, 32);
        assert_eq!(encode(&*codec, &one(first_refused)), Err(Error::Overflow), "{spec}");
        let x = one(below(first_refused));
        let block =
            encode(&*codec, &x).unwrap_or_else(|error| panic!("{spec}: {error} below {first_refused}"));
        let decoded = decode(&*codec, &block).unwrap_or_else(|error| panic!("{spec}: {error}"));
        assert!((decoded[3] / x[3] - 1.0).abs() < 0.2, "{spec}: {} for {}", decoded[3], x[3]);
        score(&*codec, &one(1.0), &block, 1).unwrap();
        accumulate(&*codec, &[1.0], &block).unwrap();
    }
    let asymmetric = build("int:bits=4,asymmetric=true", 32);
    assert_eq!(encode(&*asymmetric, &[-65520.0; 32]), Err(Error::Overflow), "the zero is an f16 too");
    assert!(encode(&*asymmetric, &[below(65520.0); 32]).is_ok());
}

/// Three levels have a centroid at zero, and a vector that the rotation takes to a single coordinate has the largest
/// gain of all: √D over the outer centroid.
#[test]
fn the_largest_gain_overflows_a_page_as_a_whole() {
    for dim in WIDTHS {
        for gain in ["mse", "unbiased", "norm"] {
            let codec = build(&format!("turboquant:levels=3,gain={gain}"), dim);
            for norm in [1000.0, 2000.0, 3000.0, 4000.0, 4090.0, 10000.0, 30000.0, 60000.0] {
                let mut x = vec![0.0; dim];
                x[dim / 2] = norm;
                codec.finish(&mut x); // the inverse rotation
                if let Ok(block) = encode(&*codec, &x) {
                    decode(&*codec, &block).unwrap();
                }
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let (dim, bytes) = (codec.dim(), codec.block_bytes());
            let x = vec![0.5; dim];
            for wrong in [0, 1, bytes - 1, bytes + 1, 2 * bytes] {
                let mut block = vec![PATTERN; wrong];
                let is_length = |result| matches!(result, Err(Error::Length { .. }));
                let error = codec.encode(&x, &mut block);
                assert!(
                    matches!(error, Err(Error::Length { expected, actual, .. }) if (expected, actual) == (bytes, wrong))
                );
                assert!(
                    is_length(codec.encode_page(&[&x[..], &x, &x].concat(), &mut block).map(drop)),
                    "{spec}: page"
                );
                assert!(block.iter().all(|byte| *byte == PATTERN));
                assert!(
                    matches!(decode(&*codec, &block), Err(Error::Length { .. })),
                    "{spec}: decode {wrong}"
                );
                if wrong % bytes != 0 {
                    assert!(
                        matches!(score(&*codec, &x, &block, 1), Err(Error::Length { .. })),
                        "{spec}: score"
                    );
                    let error = accumulate(&*codec, &[1.0], &block);
                    assert!(matches!(error, Err(Error::Length { .. })), "{spec}: accumulate");
                }
            }
            let blocks = encode_rows(&*codec, &[&x[..], &x].concat());
            for wrong in [0, 1, 3, 4] {
                assert!(matches!(score(&*codec, &x, &blocks, wrong), Err(Error::Length { expected: 2, .. })));
                let weights = vec![1.0; wrong];
                assert!(matches!(
                    accumulate(&*codec, &weights, &blocks),
                    Err(Error::Length { expected: 2, .. })
                ));
            }
        }
    }
}

/// More queries than one batch. The last query of the last batch was prepared by no codec.
#[test]
fn a_query_of_another_kind_leaves_all_scores_alone() {
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let good = vec![1.0; codec.dim()];
            let blocks = encode_rows(&*codec, &good);
            let (mut query, wrong) = (vec![0.0; codec.query_len()], vec![0.0; codec.query_len()]);
            codec.prepare_query(&good, &mut query).unwrap();
            let queries: Vec<&[f32]> = (0..17).map(|i| if i < 16 { &query[..] } else { &wrong }).collect();
            let mut scores = [FLOAT_PATTERN; 17];
            let result = codec.score(&queries, &blocks, &mut scores);
            // If a prepared query is the query itself, no query is of another kind.
            let is_any = codec.query_len() == codec.dim();
            assert!(result.is_err() || is_any, "{spec} at {}", codec.dim());
            let untouched = scores.iter().all(|score| *score == FLOAT_PATTERN);
            assert_eq!(result.is_err(), untouched, "{spec} at {}: {result:?}", codec.dim());
        }
    }
}

#[test]
fn weights_that_are_no_weights_are_refused() {
    for spec in specs() {
        let codec = build_all(spec, Backend::detect()).remove(0);
        let blocks = encode_rows(&*codec, &vec![0.5; 3 * codec.dim()]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = Err(Error::NonFinite { index: 1 });
            assert_eq!(accumulate(&*codec, &[1.0, bad, 1.0], &blocks), error, "{spec}: {bad}");
        }
        for large in [4_294_967_808.0, -1e10, f32::MAX] {
            let error = Err(Error::Weight { index: 2 });
            assert_eq!(accumulate(&*codec, &[1.0, 1.0, large], &blocks), error, "{spec}: {large}");
        }
        for weights in [[0.0; 3], [-0.0; 3], [1e-45; 3], [4_294_967_296.0; 3]] {
            accumulate(&*codec, &weights, &blocks).unwrap();
        }
    }
}

/// All that can be done with blocks of any bytes.
fn read(codec: &dyn Codec, blocks: &[u8], random: &mut Random) -> bool {
    let count = blocks.len() / codec.block_bytes();
    let mut sound = true;
    for (index, block) in blocks.chunks(codec.block_bytes()).enumerate() {
        if let Err(error) = decode(codec, block) {
            assert_eq!(error, Error::Corrupt { block: 0 });
            let first = Error::Corrupt { block: index };
            if sound {
                let at = format!("width {}, {} bytes a block", codec.dim(), codec.block_bytes());
                assert_eq!(score(codec, &random.gaussians(codec.dim()), blocks, count), Err(first), "{at}");
                assert_eq!(accumulate(codec, &vec![1.0; count], blocks), Err(first), "{at}");
            }
            sound = false;
        }
    }
    if sound {
        // The largest query and weights allowed.
        let query: Vec<f32> = random.gaussians(codec.dim()).iter().map(|x| x.signum() * 2.8e17).collect();
        score(codec, &query, blocks, count).unwrap();
        accumulate(codec, &vec![-4_294_967_296.0; count], blocks).unwrap();
    }
    sound
}

#[test]
fn blocks_of_any_bytes_are_corrupt_or_finite() {
    let mut random = Random::new(31);
    for spec in specs() {
        for codec in build_all(spec, Backend::detect()) {
            let bytes = codec.block_bytes();
            for byte in [0x00, 0x7b, 0x80, 0xfb] {
                read(&*codec, &vec![byte; 3 * bytes], &mut random);
            }
            // In 8-bit floats only 0x7f and 0xff are no numbers.
            let is_fp8 = name_of(spec) == "fp8";
            for byte in [0x7c, 0x7f, 0xfc, 0xff].into_iter().filter(|byte| !is_fp8 || byte & 0x7f == 0x7f) {
                assert!(
                    !read(&*codec, &vec![byte; 3 * bytes], &mut random),
                    "{spec}: {byte:x} are infinities"
                );
            }
            for _ in 0..8 {
                let mut blocks = random.bytes(4 * bytes);
                read(&*codec, &blocks, &mut random);
                // The same with exponents short of all ones.
                blocks.iter_mut().for_each(|byte| *byte &= 0xbb);
                assert!(read(&*codec, &blocks, &mut random), "{spec} at {}", codec.dim());
            }
            // A good page with one byte changed.
            let page = encode_rows(&*codec, &random.gaussians(3 * codec.dim()));
            for _ in 0..16 {
                let mut page = page.clone();
                let at = random.below(page.len());
                page[at] ^= 1 << random.below(8);
                read(&*codec, &page, &mut random);
            }
        }
    }
}

/// Each f16 at the head of a block is looked at.
#[test]
fn infinite_scales_are_corrupt_wherever_they_are() {
    for (spec, scales) in [
        ("turboquant", 1),
        ("turboquant:bits=2", 1),
        ("turboquant:bits=3", 1),
        ("turboquant:bits=8", 1),
        ("trellis", 1),
        ("trellis:m=2", 1),
        ("trellis:m=8,states=32", 1),
        ("int", 1),
        ("int:asymmetric=true", 2),
        ("int:group=16", 4),
        ("int:group=32,asymmetric=true", 4),
        ("qjl", 1),
        ("turboquant-qjl", 1),
        ("octopus", 1),
        ("octopus-qjl", 1),
        ("polarquant", 1),
        ("polarquant:depth=4", 4),
        ("f16", 64),
        ("bf16", 64),
    ] {
        for (dim, rows) in [(64, 3), (128, 18)] {
            let codec = build(spec, dim);
            let page = encode_rows(&*codec, &vec![0.5; rows * dim]);
            for scale in 0..scales {
                for high in [0x7c, 0x7f, 0xfc, 0xff] {
                    let mut page = page.clone();
                    page[codec.block_bytes() + 2 * scale + 1] = high;
                    assert!(!read(&*codec, &page, &mut Random::new(0)), "{spec}: scale {scale}");
                    // Nothing times infinity is no number either.
                    for queries in [1, 2, 4, 9, 41] {
                        let nothing = score(&*codec, &vec![0.0; queries * dim], &page, queries * rows);
                        assert_eq!(
                            nothing,
                            Err(Error::Corrupt { block: 1 }),
                            "{spec}: scale {scale}, {queries} queries"
                        );
                    }
                }
            }
        }
    }
}

/// Values of a spec's public fields that no parser lets through.
#[test]
fn impossible_specs_are_refused() {
    let backend = Backend::detect();
    let turboquant = |spec| TurboQuant::<64>::build(spec, backend, HeadId::default()).map(|_| ());
    for levels in [0, 1, 7, 9, 11, 18, 20, 24, 255, 257, 512, 65535] {
        let spec = TurboQuantSpec::default().levels(levels);
        assert!(matches!(turboquant(spec), Err(Error::Value { .. })), "{levels} levels");
    }
    for rounds in [0, 4, 255] {
        let spec = TurboQuantSpec::default().rounds(rounds);
        assert!(matches!(turboquant(spec), Err(Error::Value { key: "rounds", .. })), "{rounds} rounds");
    }
    for bits in [0, 9, 15, 16, 17, 32, 255] {
        assert!(matches!(TurboQuant::<64>::new(bits), Err(Error::Value { key: "bits", .. })), "{bits} bits");
    }
    let int = |spec| Int::<80>::build(spec, backend, HeadId::default()).map(|_| ());
    for bits in [0, 1, 9, 32, 33, 255] {
        let spec = IntSpec::new(bits);
        assert!(matches!(int(spec), Err(Error::Value { key: "bits", .. })), "{bits} bits");
    }
    for group in [0, 1, 8, 15, 48, 80, 255] {
        let spec = IntSpec::default().group(Some(group));
        assert!(matches!(int(spec), Err(Error::Value { key: "group", .. })), "group {group}");
    }
    for group in [32, 64] {
        let spec = IntSpec::default().group(Some(group));
        assert!(matches!(int(spec), Err(Error::Unsupported { .. })), "group {group} of 80");
    }
    for spec in specs() {
        fn refused<const D: usize>(spec: CodecSpec) {
            let error = Any::<D>::build(spec, Backend::detect(), HeadId::default()).map(|_| ());
            assert_eq!(error, Err(Error::Width { actual: D }), "{spec}");
        }
        refused::<1>(spec);
        refused::<16>(spec);
        refused::<100>(spec);
        refused::<144>(spec);
        refused::<1024>(spec);
        #[cfg(feature = "alloc")]
        for dim in [0, 1, 16, 100, 127, 1024, usize::MAX] {
            let error = spec.build_dyn(dim, backend, HeadId::default()).map(|_| ());
            assert_eq!(error, Err(Error::Width { actual: dim }), "{spec}");
        }
    }
    let haar = "turboquant:rotation=haar,rounds=2".parse().unwrap();
    assert!(matches!(Any::<64>::build(haar, backend, HeadId::default()), Err(Error::Unsupported { .. })));
}

/// Sizes of specs that no codec is built from do not panic either.
#[test]
fn sizes_of_impossible_specs_are_numbers() {
    for dim in [0, 1, 3, 17, 21, 100, 1 << 20] {
        for levels in [0, 1, 7, 24, 65535] {
            let spec = CodecSpec::TurboQuant(TurboQuantSpec::default().levels(levels));
            assert_eq!(spec.block_bytes(dim), 0, "{spec} at {dim}");
            spec.layout(dim, |_, _| panic!("{spec} has no layout"));
        }
        for (bits, group) in [(0, None), (255, Some(0)), (8, Some(7)), (4, Some(48)), (1, Some(255))] {
            let spec = CodecSpec::Int(IntSpec::new(bits).group(group));
            spec.layout(dim, |_, _| {});
            assert_eq!(spec.block_bytes(dim), 0, "{spec} at {dim}");
        }
    }
}

#[cfg(feature = "alloc")]
#[test]
fn codecs_of_run_time_width_refuse_the_same() {
    let mut random = Random::new(32);
    for spec in specs() {
        let codec = spec.build_dyn(64, Backend::detect(), HeadId::default()).unwrap();
        let mut rows = random.gaussians(130 * 64);
        let blocks = codec.encode_rows(&rows).unwrap();
        assert!(matches!(codec.encode_rows(&rows[1..]), Err(Error::Length { expected: 64, .. })));
        assert!(matches!(codec.decode_rows(&blocks[1..]), Err(Error::Length { .. })));
        assert!(matches!(codec.score_rows(&rows[1..], &blocks), Err(Error::Length { .. })));
        assert!(matches!(codec.score_rows(&rows[..64], &blocks[1..]), Err(Error::Length { .. })));
        assert!(matches!(codec.attend_rows(&rows[..131], &blocks), Err(Error::Length { .. })));
        assert!(matches!(codec.attend_rows(&rows[..1], &[]), Err(Error::Length { .. })));
        assert_eq!(codec.attend_rows(&[], &[]), Ok(vec![]));
        rows[100 * 64 + 5] = f32::NAN;
        assert_eq!(codec.encode_rows(&rows), Err(Error::NonFinite { index: 100 * 64 + 5 }), "{spec}");
        assert_eq!(
            codec.score_rows(&rows, &blocks[..0]),
            Err(Error::NonFinite { index: 100 * 64 + 5 }),
            "{spec}"
        );
        let mut blocks = blocks;
        let bytes = codec.block_bytes();
        blocks[7 * bytes..8 * bytes].fill(0xff);
        assert_eq!(codec.decode_rows(&blocks), Err(Error::Corrupt { block: 7 }), "{spec}");
        assert_eq!(codec.score_rows(&rows[..64], &blocks), Err(Error::Corrupt { block: 7 }), "{spec}");
        assert_eq!(codec.attend_rows(&[1.0; 130], &blocks), Err(Error::Corrupt { block: 7 }), "{spec}");
    }
}
