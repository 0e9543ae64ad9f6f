#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| octaplex_fuzz::bodies::roundtrip(data));
