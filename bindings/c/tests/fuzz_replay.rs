//! The fuzz target of the C interface on the committed corpus, `fuzz/corpus/c_api/`, and on inputs made up on the spot.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod fuzz_body;

use std::fs;
use std::path::Path;

/// Runs an input, and checks that no memory is left. Builds with debug assertions keep the words of freed handles.
fn run(input: &[u8], name: &str) -> usize {
    let mut outcome = fuzz_body::Outcome::default();
    let left = allocation_counter::measure(|| outcome = fuzz_body::c_api(input));
    // Counted when it was asked for, and not when it was refused.
    let kept = outcome.refused + if cfg!(debug_assertions) { outcome.freed } else { 0 };
    assert_eq!(left.count_current, kept as i64, "{name}: {} bytes were not given back", left.bytes_current);
    outcome.well
}

#[test]
fn nothing_panics_and_nothing_leaks() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/c_api");
    let mut files: Vec<_> = fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 5, "{}: {} inputs", corpus.display(), files.len());
    fuzz_body::c_api(&[]); // whatever is made once
    for file in files {
        let well = run(&fs::read(&file).unwrap(), &file.display().to_string());
        println!("{}: {well} calls went well", file.display());
        // Freeing five handles that are not there goes well in any case.
        assert!(well >= 10, "{}: {well} calls went well", file.display());
    }
    let inputs = std::env::var("OCTAPLEX_FUZZ_INPUTS").map_or(300, |count| count.parse().unwrap());
    let mut state = 12345u64;
    for number in 0..inputs {
        let byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        let input: Vec<u8> = std::iter::repeat_with(byte).take(1500).collect();
        run(&input, &format!("input {number}"));
    }
}
