#![no_main]

#[path = "../../bindings/c/tests/fuzz_body/mod.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| { body::c_api(data); });
