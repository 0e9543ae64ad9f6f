//! Pages that keep outliers (`med`), of every codec that does: exact values, lengths, bytes that lie.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random, Steps, bits, try_build};
use octaplex::codecs::{Codec, HeadId, Hqmq, Int, Typed};
use octaplex::{Backend, CodecSpec, Error};

/// Both codecs, with whole chunks of flags and without, with and without a rotation.
const SPECS: [(&str, usize); 7] = [
    ("hqmq:r=6,med=3", 128),
    ("hqmq:s=24,secondary=optimised,med=3", 80),
    ("hqmq:s=100,med=2,rotate=true", 96),
    ("int:med=3", 128),
    ("int:bits=3,group=16,med=3", 80),
    ("int:bits=8,med=1,rotate=true", 64),
    ("int:bits=2,med=255", 576),
];

fn codec<const D: usize>(text: &str) -> Any<D> {
    Any::build(text.parse().unwrap(), Backend::detect(), HeadId::default()).unwrap()
}

/// The whole page, with the proof that nothing behind it was touched.
fn page<const D: usize>(codec: &Typed<impl Codec, D>, xs: &[[f32; D]]) -> Vec<u8> {
    let mut page = vec![0xaa; codec.page_bytes_max(xs.len())];
    let used = codec.encode_page(xs, &mut page).unwrap();
    assert!(page[used..].iter().all(|byte| *byte == 0xaa), "bytes behind the page were touched");
    page.truncate(used);
    page
}

/// Returns vectors in which every 9th chunk is large.
fn with_outliers(dim: usize, tokens: usize, random: &mut Random) -> Vec<f32> {
    let large = |i: usize| if (i % dim / 4).is_multiple_of(9) { 40.0 } else { 1.0 };
    (0..dim * tokens).map(|i| random.gaussian() * large(i)).collect()
}

fn norm(chunk: &[f32]) -> f32 {
    chunk.iter().map(|c| c * c).sum::<f32>().sqrt()
}

fn median<const D: usize>(xs: &[[f32; D]]) -> f32 {
    let mut norms: Vec<f32> = xs.iter().flat_map(|x| x.chunks(4).map(norm)).collect();
    norms.sort_by(f32::total_cmp);
    norms[(norms.len() - 1) / 2]
}

/// Outputs are within `tolerance`: where weights are integers, half a unit of theirs (the largest weight · scale over their limit) a
/// code and row, with random signs.
fn check_exactness<const D: usize>(codec: &Typed<impl Codec, D>, tolerance: f64) {
    let mut random = Random::new(5);
    for tokens in [1, 2, 7, 64] {
        let values = with_outliers(D, tokens, &mut random);
        let xs = values.as_chunks::<D>().0;
        let threshold = 3.0 * median(xs);
        let bytes = page(codec, xs);
        let mut decoded = vec![[0.0; D]; tokens];
        codec.decode_page(&bytes, &mut decoded).unwrap();
        let mut count = 0;
        for (x, y) in xs.iter().zip(&decoded) {
            for (x, y) in x.chunks(4).zip(y.chunks(4)).filter(|(x, _)| norm(x) > threshold) {
                count += 1;
                let halves: Vec<f32> = x.iter().map(|c| half::f16::from_f32(*c).to_f32()).collect();
                assert_eq!(halves, y);
            }
        }
        assert!(count > 0 || tokens < 7);
        assert_eq!(bytes.len(), tokens * codec.block_bytes() + 8 * count);
        assert_eq!(codec.first_page(&bytes, 64).unwrap(), (tokens, bytes.len()));
        // Scores and outputs are those of the decoded vectors.
        let q: [f32; D] = random.gaussians(D).try_into().unwrap();
        let mut scores = vec![0.0; 2 * tokens];
        let query = codec.prepare_query(&q).unwrap();
        codec.score(&[query.clone(), query], &bytes, &mut scores).unwrap();
        let weights: Vec<f32> = (0..tokens).map(|i| 0.1 * i as f32 - 0.3).collect();
        let mut acc = [[0.0; D]];
        codec.accumulate(&weights, &bytes, &mut acc).unwrap();
        let mut expected = [0.0f64; D];
        for (t, y) in decoded.iter().enumerate() {
            let exact: f64 = q.iter().zip(y).map(|(a, b)| f64::from(a * b)).sum();
            let size = norm(y) * norm(&q);
            assert!((f64::from(scores[t]) - exact).abs() < 0.02 * f64::from(size));
            assert_eq!(scores[t].to_bits(), scores[tokens + t].to_bits());
            expected.iter_mut().zip(y).for_each(|(sum, y)| *sum += f64::from(weights[t]) * f64::from(*y));
        }
        for (acc, expected) in acc[0].iter().zip(expected) {
            assert!((f64::from(*acc) - expected).abs() < tolerance * (1.0 + expected.abs()));
        }
    }
}

#[test]
fn outliers_are_kept_exactly() {
    check_exactness(&codec::<128>("hqmq:r=6,med=3"), 1e-3);
    check_exactness(&codec::<80>("hqmq:s=24,med=3,secondary=optimised"), 1e-3);
    check_exactness(&codec::<128>("int:med=3"), 4e-3);
    check_exactness(&codec::<80>("int:bits=5,group=16,med=3"), 2e-2);
    let CodecSpec::Hqmq(spec) = "hqmq:s=192,med=3,packing=index".parse().unwrap() else { panic!() };
    check_exactness(&Hqmq::<45>::build(spec, Backend::detect(), HeadId::default()).unwrap(), 1e-3);
}

/// Outliers harm integers: they set the scale of their token.
#[test]
fn integers_gain_from_outliers_that_are_kept() {
    let values = with_outliers(128, 64, &mut Random::new(6));
    let small_errors = |text: &str| {
        let codec = try_build(text.parse().unwrap(), 128, Backend::detect()).unwrap();
        let mut decoded = vec![0.0; values.len()];
        codec.decode_page(&codec.page(&values).unwrap(), &mut decoded).unwrap();
        let errors = values.iter().zip(&decoded).map(|(x, y)| f64::from(x - y).powi(2)).enumerate();
        errors.filter(|(i, _)| !(i % 128 / 4).is_multiple_of(9)).map(|(_, error)| error).sum::<f64>()
    };
    let gain = small_errors("int") / small_errors("int:med=3");
    assert!(gain > 50.0, "the small values gain a factor of {gain}");
    let CodecSpec::Int(spec) = "int:asymmetric=true,med=3".parse().unwrap() else { panic!() };
    let refused = Int::<128>::build(spec, Backend::detect(), HeadId::default()).map(drop);
    assert!(matches!(refused, Err(Error::Unsupported { why }) if why.contains("asymmetric=false")));
}

/// Half of all chunks is the most that can be outliers, and the list has space for that.
#[test]
fn the_list_holds_half_of_all_chunks() {
    for text in ["hqmq:med=1", "int:med=1"] {
        let (codec, spec) = (codec::<64>(text), text.parse::<CodecSpec>().unwrap());
        for tokens in [1, 3, 8] {
            let chunks = 16 * tokens;
            // Norms 1, 2, 3 …: exactly the upper half is above the lower median.
            let value =
                |t: usize, i: usize| if i.is_multiple_of(4) { (16 * t + i / 4 + 1) as f32 } else { 0.0 };
            let xs: Vec<[f32; 64]> = (0..tokens).map(|t| std::array::from_fn(|i| value(t, i))).collect();
            let bytes = page(&codec, &xs);
            assert_eq!(bytes.len(), tokens * codec.block_bytes() + 8 * (chunks / 2));
            assert_eq!(bytes.len(), codec.page_bytes_max(tokens));
            assert_eq!(bytes.len(), spec.page_bytes_max(64, tokens));
        }
    }
}

#[test]
fn unusual_pages() {
    for codec in [codec::<64>("hqmq:r=6,med=3"), codec::<64>("int:bits=6,med=3")] {
        let plain = |xs: &[[f32; 64]]| page(&codec, xs).len() == xs.len() * codec.block_bytes();
        // A median of zero, nothing but zeros, nothing at all.
        let mut mostly_zero = [0.0; 64];
        mostly_zero[5] = 100.0;
        assert!(plain(&[mostly_zero]) && plain(&[[0.0; 64]; 3]) && plain(&[]));
        // All chunks alike: none is an outlier, however large.
        assert!(plain(&[[30000.0; 64]; 4]));
        // Denormals: their norms are 0 in f32, and so is the median.
        assert!(plain(&[[1e-41; 64]; 2]));
        // One huge chunk leaves the others their resolution.
        let mut huge = [1.0; 64];
        huge[8] = 60000.0;
        let mut decoded = [[0.0; 64]];
        codec.decode_page(&page(&codec, &[huge]), &mut decoded).unwrap();
        assert_eq!(decoded[0][8], half::f16::from_f32(60000.0).to_f32());
        assert!(decoded[0][20..].iter().all(|x| (x - 1.0).abs() < 0.4));
        // Beyond f16: an error, and nothing written.
        huge[8] = 70000.0;
        let mut untouched = vec![0x55; codec.page_bytes_max(2)];
        assert_eq!(codec.encode_page(&[[1.0; 64], huge], &mut untouched), Err(Error::Overflow));
        huge[8] = f32::NAN;
        let nan = codec.encode_page(&[[1.0; 64], huge], &mut untouched);
        assert_eq!(nan, Err(Error::NonFinite { index: 72 }));
        assert!(untouched.iter().all(|byte| *byte == 0x55));
    }
}

/// The error of all that reads a page of six, with the proof that the outputs stayed; behind corrupt blocks, scores may be zeros.
fn refused(codec: &Any<80>, bytes: &[u8]) -> Error {
    let query = [codec.prepare_query(&[1.0; 80]).unwrap()];
    let (mut decoded, mut scores, mut acc) = (vec![[7.0; 80]; 6], [7.0; 6], [[7.0; 80]]);
    let errors = [
        codec.decode_page(bytes, &mut decoded).unwrap_err(),
        codec.score(&query, bytes, &mut scores).unwrap_err(),
        codec.accumulate(&[1.0; 6], bytes, &mut acc).unwrap_err(),
    ];
    assert!(decoded.as_flattened().iter().chain(&acc[0]).all(|x| *x == 7.0));
    let zeros = matches!(errors[0], Error::Corrupt { .. }) && scores == [0.0; 6];
    assert!(zeros || scores == [7.0; 6], "{scores:?}");
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    errors[0]
}

/// Codecs of run-time width have pages of 64 of these: a bad block is counted from the first of all.
#[cfg(feature = "alloc")]
#[test]
fn corrupt_blocks_are_counted_over_pages() {
    for text in ["hqmq:med=3", "int:med=3"] {
        let spec: CodecSpec = text.parse().unwrap();
        let codec = spec.build_dyn(80, Backend::detect(), HeadId::default()).unwrap();
        let rows = with_outliers(80, 130, &mut Random::new(10));
        let mut blocks = codec.encode_rows(&rows).unwrap();
        let second_page = codec.encode_rows(&rows[..64 * 80]).unwrap().len();
        blocks[second_page + 5 * codec.block_bytes() + 1] = 0x7c; // an infinite scale
        let corrupt = Err(Error::Corrupt { block: 64 + 5 });
        assert_eq!(codec.decode_rows(&blocks), corrupt, "{text}");
        assert_eq!(codec.score_rows(&rows[..80], &blocks), corrupt, "{text}");
        assert_eq!(codec.attend_rows(&[1.0; 130], &blocks), corrupt, "{text}");
    }
}

#[test]
fn corrupt_outlier_lists_are_errors_and_leave_outputs() {
    for text in ["hqmq:med=3", "int:med=3"] {
        let codec = codec::<80>(text);
        let values = with_outliers(80, 6, &mut Random::new(9));
        let good = page(&codec, values.as_chunks().0);
        let refused = |bytes: &[u8]| refused(&codec, bytes);
        let bytes = codec.block_bytes();
        assert!(matches!(refused(&good[..good.len() - 8]), Error::Length { .. }));
        assert!(matches!(refused(&[&good[..], &[0; 8]].concat()), Error::Length { .. }));
        assert!(matches!(refused(&good[..3]), Error::Length { .. }));
        // A flag more or less than the list has.
        let mut bad = good.clone();
        bad[3 * bytes - 3] ^= 2;
        assert!(matches!(refused(&bad), Error::Length { .. }));
        // Twenty chunks: the flags past the end, one of them moved there from a chunk that exists.
        let mut bad = good.clone();
        let flags = &mut bad[2 * bytes - 3..2 * bytes];
        assert_eq!(flags[0] & 1, 1, "chunk 0 is an outlier");
        flags[0] ^= 1;
        flags[2] |= 0x10;
        assert_eq!(refused(&bad), Error::Corrupt { block: 1 });
        // An outlier that is not finite, and a scale.
        let mut bad = good.clone();
        bad[good.len() - 1] = 0x7c;
        assert_eq!(refused(&bad), Error::Corrupt { block: 5 });
        // Of two, the first is named: each block has an outlier at its chunk 0.
        bad[6 * bytes + 1] = 0xfc;
        assert_eq!(refused(&bad), Error::Corrupt { block: 0 });
        let mut bad = good.clone();
        bad[4 * bytes + 1] = 0x7c;
        assert_eq!(refused(&bad), Error::Corrupt { block: 4 });
        // A block whose outliers are elsewhere.
        assert!(matches!(codec.decode(&good[..bytes], &mut [0.0; 80]), Err(Error::Unsupported { .. })));
        // Bytes that end inside a page.
        assert!(codec.first_page(&good[..good.len() - 1], 6).is_err());
        assert!(codec.first_page(&good, 4).is_ok_and(|(tokens, bytes)| tokens == 4 && bytes < good.len()));
    }
}

/// Bits of all that a page gives, or its error.
fn read(codec: &dyn Codec, page: &[u8], tokens: usize) -> [Result<Vec<u32>, Error>; 3] {
    let (dim, mut random) = (codec.dim(), Random::new(77));
    let mut decoded = vec![0.5; tokens * dim];
    let mut scores = vec![0.5; 3 * tokens];
    let mut outputs = random.gaussians(3 * dim);
    let results = [
        codec.decode_page(page, &mut decoded),
        codec.prepare_and_score(&random.gaussians(3 * dim), page, &mut scores),
        codec.accumulate(&random.gaussians(3 * tokens), page, &mut outputs),
    ];
    let outputs = [&decoded, &scores, &outputs];
    assert!(outputs.iter().all(|values| values.iter().all(|x| x.is_finite())));
    std::array::from_fn(|i| results[i].map(|()| bits(outputs[i])))
}

/// Pages, and pages with some bits turned: an error, or finite numbers, the same ones on every backend.
#[test]
fn every_backend_reads_and_writes_the_same_pages() {
    for (text, dim) in SPECS {
        let build = |backend| try_build(text.parse().unwrap(), dim, backend).unwrap();
        let (scalar, mut random) = (build(Backend::SCALAR), Random::new(8));
        let others: Vec<_> = Backend::available().map(|backend| (backend.name(), build(backend))).collect();
        let (mut errors, mut successes) = (0, 0);
        for tokens in [1, 3, 9] {
            let values = with_outliers(dim, tokens, &mut random);
            let page = scalar.page(&values).unwrap();
            assert!(others.iter().all(|(_, codec)| codec.page(&values).unwrap() == page), "{text}");
            for turned in 0..60 {
                let mut page = page.clone();
                for _ in 0..turned % 4 {
                    let at = random.below(page.len());
                    page[at] ^= 1 << random.below(8);
                }
                let expected = read(&*scalar, &page, tokens);
                for (name, codec) in &others {
                    assert!(read(&**codec, &page, tokens) == expected, "{text}, {name}");
                }
                errors += usize::from(expected[0].is_err());
                successes += usize::from(expected[0].is_ok());
            }
        }
        assert!(successes > 40 && (errors > 0 || text.contains("255")), "{text}: {errors}, {successes}");
    }
}

/// Blocks that were encoded alone are a page as they stand.
#[test]
fn a_lone_block_has_no_outliers() {
    for codec in [codec::<128>("hqmq:r=6,med=3"), codec::<128>("int:med=3,rotate=true")] {
        let values = with_outliers(128, 3, &mut Random::new(2));
        let mut blocks = vec![0xff; 3 * codec.block_bytes()];
        for (x, block) in values.as_chunks().0.iter().zip(blocks.chunks_exact_mut(codec.block_bytes())) {
            codec.encode(x, block).unwrap();
        }
        let (mut decoded, mut alone) = ([[0.0; 128]; 3], [0.0; 128]);
        codec.decode_page(&blocks, &mut decoded).unwrap();
        for (block, decoded) in blocks.chunks_exact(codec.block_bytes()).zip(&decoded) {
            codec.decode(block, &mut alone).unwrap();
            assert_eq!(&alone, decoded);
        }
    }
}
