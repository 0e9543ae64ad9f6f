//! The fuzz targets' bodies on the committed corpus, `fuzz/corpus/<target>/`, and on inputs made up on the spot.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking
#![cfg(feature = "alloc")] // the bodies choose widths at run time

use crate::common::Random;
use crate::fuzz_bodies;
use std::fs;
use std::path::Path;

fn replay(target: &str, body: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 5, "{}: {} inputs", corpus.display(), files.len());
    for file in files {
        println!("{}", file.display());
        body(&fs::read(file).unwrap());
    }
    // Every codec with every choice of its first key, on random data.
    let mut random = Random::new(50);
    for codec in 0..octaplex::CodecSpec::all().len() {
        for choice in 0..16 {
            let mut data = random.bytes(1500);
            data[0] = codec as u8;
            data[1] = choice;
            body(&data);
        }
    }
    body(&[]);
}

#[test]
fn roundtrip() {
    replay("roundtrip", fuzz_bodies::roundtrip);
}

#[test]
fn decode() {
    replay("decode", fuzz_bodies::decode);
}

#[test]
fn backends() {
    replay("backends", fuzz_bodies::backends);
}
