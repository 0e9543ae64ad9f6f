//! Runs the bodies of the fuzz targets on the committed corpus, `fuzz/corpus/<target>/`, and on random inputs.
//!
//! `OCTAPLEX_BLESS=1 cargo test --test suite fuzz_replay` writes the corpus's seeds: every codec, width and kind of page.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking
#![cfg(feature = "alloc")] // the bodies choose widths at run time

use crate::common::Random;
use crate::fuzz_bodies;
use octaplex::CodecSpec;
use octaplex::codebook::WIDTHS;
use std::fs;
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// Checks that the corpus has the generated seeds. Then runs the body on each of its inputs, and on no bytes.
fn replay(target: &str, seeds: impl FnOnce() -> Vec<(String, Vec<u8>)>, body: fn(&[u8])) {
    let corpus = corpus(target);
    let seeds = seeds();
    if std::env::var_os("OCTAPLEX_BLESS").is_some() {
        fs::create_dir_all(&corpus).unwrap();
        seeds.iter().for_each(|(name, data)| fs::write(corpus.join(name), data).unwrap());
    }
    let mut files: Vec<_> = fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    for (name, data) in seeds {
        assert!(
            fs::read(corpus.join(&name)).ok() == Some(data),
            "{target}/{name}: not the seed that is made here"
        );
    }
    for file in files {
        println!("{}", file.display());
        body(&fs::read(file).unwrap());
    }
    body(&[]);
}

/// Bits of floats at the edges. Codecs refuse or take all of one kind. The bits are even, because only those reach a body
/// unchanged: see `Input::float`.
const EDGES: [(&str, &[u32]); 4] = [
    ("infinite", &[0x7f80_0000, 0xff80_0000]),
    ("nan", &[0x7fc0_0000, 0xff80_0002]),
    ("largest", &[0x7f7f_fffe, 0xff7f_fffe]),
    ("least", &[0x0000_0002, 0x8000_0002, 0x007f_fffe, 0x8000_0000, 0]),
];

/// Returns two kinds of seeds. The first have every codec at every width, one of its keys, and a few bytes of data. The
/// others have two rows of width 32 with edges in them.
fn codecs() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (number, codec) in CodecSpec::all().iter().enumerate() {
        for (index, width) in WIDTHS.iter().enumerate() {
            let mut data = vec![number as u8];
            data.extend(
                (0..codec.keys.len())
                    .map(|key| if key == index { 1 + width.trailing_zeros() as u8 } else { 0 }),
            );
            data.push((128..).find(|choice| choice % WIDTHS.len() == index).unwrap() as u8);
            data.extend((0..24).map(|i| (number * 29 + index * 13 + i * 37) as u8));
            seeds.push((format!("{}-{width}", codec.name), data));
        }
        for (kind, edges) in EDGES {
            let mut data = vec![0; 2 + codec.keys.len()]; // the first width
            data[0] = number as u8;
            let float = |i: usize| match i % 5 {
                4 => edges[i / 5 % edges.len()],
                _ => (i as u32 * 37 % 64) << 12 | 1, // 0 to 2 in steps of 1/32
            };
            data.extend((0..64).flat_map(|i| float(i).to_le_bytes()));
            seeds.push((format!("{}-edges-{kind}", codec.name), data));
        }
    }
    seeds
}

/// Runs the body on random data, for every codec with every choice of its first key.
fn made_up(body: fn(&[u8])) {
    let mut random = Random::new(50);
    for codec in 0..CodecSpec::all().len() {
        for choice in 0..16 {
            let mut data = random.bytes(1500);
            data[0] = codec as u8;
            data[1] = choice;
            body(&data);
        }
    }
}

/// Runs the body on `count` inputs of random bytes.
fn random(count: usize, bytes: usize, body: fn(&[u8])) {
    let mut random = Random::new(51);
    (0..count).for_each(|_| body(&random.bytes(bytes)));
}

#[test]
fn roundtrip() {
    replay("roundtrip", codecs, fuzz_bodies::roundtrip);
    made_up(fuzz_bodies::roundtrip);
}

/// The seeds are those of `roundtrip`, because inputs of both begin in the same way.
#[test]
fn decode() {
    replay("roundtrip", Vec::new, fuzz_bodies::decode);
    made_up(fuzz_bodies::decode);
}

#[test]
fn backends() {
    replay("roundtrip", Vec::new, fuzz_bodies::backends);
    made_up(fuzz_bodies::backends);
}

#[test]
fn cache() {
    let seeds = || {
        let mut seeds = Vec::new();
        for pair in 0..4 {
            for sliding in 0..5 {
                let head = [
                    pair / 2,
                    sliding,
                    pair,
                    u8::from(sliding == 4) * 3,
                    pair % 3,
                    sliding % 4,
                    sliding,
                    pair,
                    sliding % 3,
                    pair,
                ];
                let life = [0, 0, 200, 0, 0, 90, 3, 70, 5, 0, 1, 2, 7, 4, 5, 255, 6, 0, 0, 0, 130, 3, 20, 7];
                seeds.push((format!("pair-{pair}-sliding-{sliding}"), [&head[..], &life].concat()));
            }
        }
        seeds
    };
    replay("cache", seeds, fuzz_bodies::cache);
    random(300, 60, fuzz_bodies::cache);
}

/// Returns each codec with the byte that chooses its layer: 70 tokens, windows that go by the codec's number, and each of
/// the bits `extra`. Only codecs with outliers get bit 128.
fn kinds(extra: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let codecs = CodecSpec::all().iter().enumerate();
    codecs.flat_map(move |(number, codec)| {
        let outliers = ["int", "hqmq"].contains(&codec.name);
        let bits = extra.iter().filter(move |bits| outliers || **bits < 128);
        bits.map(move |bits| (number, 32 | (number as u8 & 15) | bits))
    })
}

/// Bit 64 of the kind chooses single pages, bit 128 codecs with outliers.
#[test]
fn snapshot() {
    let seeds = || {
        kinds(&[0, 64, 128, 192])
            .map(|(codec, kind)| {
                (format!("{}-{kind}", CodecSpec::all()[codec].name), vec![codec as u8, kind, 0, 40, 2, 9])
            })
            .collect()
    };
    replay("snapshot", seeds, fuzz_bodies::snapshot);
    random(2000, 40, fuzz_bodies::snapshot);
}

#[test]
fn chunk() {
    let seeds = || {
        kinds(&[0, 128])
            .map(|(codec, kind)| {
                (format!("{}-{kind}", CodecSpec::all()[codec].name), vec![kind, codec as u8, 0, 40, 2, 9])
            })
            .collect()
    };
    replay("chunk", seeds, fuzz_bodies::chunk);
    random(2000, 40, fuzz_bodies::chunk);
}

#[test]
fn spec() {
    let seeds = || {
        CodecSpec::all().iter().map(|codec| (codec.name.to_owned(), codec.name.as_bytes().to_vec())).collect()
    };
    replay("spec", seeds, fuzz_bodies::spec);
    random(5000, 24, fuzz_bodies::spec);
}
