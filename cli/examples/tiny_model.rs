//! Writes the language model of the tests, two layers with random weights, and a text in its alphabet. `ci/readme.sh` uses
//! it in place of a downloaded model.
//!
//! ```text
//! cargo run -p octaplex-cli --example tiny_model -- MODEL.gguf TEXT.txt
//! ```

#[allow(dead_code, clippy::unwrap_used, clippy::panic)] // its oracle; the rest is test code
#[path = "../tests/tiny/mod.rs"]
mod tiny;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, text] = arguments.as_slice() else {
        return Err("usage: tiny_model MODEL.gguf TEXT.txt".into());
    };
    tiny::Tiny::new("qwen2", 7).write(model.as_ref());
    let mut state = 12345u64;
    let letters = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b"abcdefghijklmnopqrstuvwxyz ,.\n"[(state >> 33) as usize % 30]
    });
    std::fs::write(text, letters.take(12_000).collect::<Vec<u8>>())?;
    Ok(())
}
