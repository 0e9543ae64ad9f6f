#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| octaplex_fuzz::reader_bodies::safetensors(data));
