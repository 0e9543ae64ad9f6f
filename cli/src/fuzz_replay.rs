//! Runs the fuzz targets of the tool's readers on the committed corpus, and on damaged files.
#![allow(clippy::unwrap_used)] // tests fail by panicking

use crate::fuzz_body;
use std::fs;
use std::path::Path;

fn replay(target: &str, body: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files: Vec<_> =
        fs::read_dir(&corpus).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(files.len() >= 3, "{}: {} inputs", corpus.display(), files.len());
    for file in &files {
        body(file);
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << (at % 8);
            body(&damaged);
            body(&file[..at]);
        }
    }
}

#[test]
fn npy() {
    replay("npy", fuzz_body::npy);
}

#[test]
fn safetensors() {
    replay("safetensors", fuzz_body::safetensors);
}
