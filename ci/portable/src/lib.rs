//! The library where there is no std: the bit-equality suite, the trellis codec's test of backends, encoding and scoring as
//! a WebAssembly module, driven by `run.mjs`.
#![no_std]

extern crate alloc;

mod heap;
#[path = "../../../benches/common/plain.rs"]
mod plain;
#[path = "../../../arch/tests/rooms/painted.rs"]
mod room;
#[path = "../../../arch/tests/suite/mod.rs"]
mod suite;
mod timing;
#[path = "../../../tests/trellis/backends.rs"]
mod trellis;
#[path = "../../../tests/common/vectors.rs"]
#[allow(dead_code)] // other tests take the rest
mod vectors;

/// Where the test of backends looks for them.
mod common {
    pub(crate) use crate::vectors;
}

use alloc::{boxed::Box, format, string::ToString, vec, vec::Vec};
use core::panic::PanicInfo;
use core::slice;
use octaplex::{CodecSpec, Codec, Stream};
use octaplex_arch::Backend;

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    fn print(text: *const u8, len: usize);
    fn emit(bytes: *const u8, len: usize);
}

fn say(text: &str) {
    // SAFETY: the host reads `len` bytes at `text` before it returns, and a `str` has them.
    unsafe { print(text.as_ptr(), text.len()) }
}

/// Says the name of each backend of this build.
#[unsafe(no_mangle)]
pub extern "C" fn backends() {
    Backend::available().for_each(|backend| say(backend.name()));
}

/// Checks every kernel of every backend, says what differs, and returns how many kernels do.
#[unsafe(no_mangle)]
pub extern "C" fn run_suite() -> u32 {
    let mut failures = 0;
    for backend in Backend::available() {
        for (kernel, check) in suite::checks() {
            if let Err(mismatch) = check(backend) {
                failures += 1;
                say(&format!("{} {kernel}: {mismatch}", backend.name()));
            }
        }
    }
    failures
}

/// Compares the trellis codec on every backend with the specification, and says on how many vectors; traps at the first
/// difference.
#[unsafe(no_mangle)]
pub extern "C" fn run_trellis() -> u32 {
    let random = trellis::random_vectors_agree();
    let [encoded, all] = trellis::adversarial_vectors_agree();
    assert!(random >= 110_000 && all >= 4400 && encoded >= 1000, "{random} random, {encoded} of {all} adversarial");
    say(&format!("{random} random and {all} adversarial vectors"));
    0
}

/// Room for `len` bytes that the host fills; it stays the host's.
#[unsafe(no_mangle)]
pub extern "C" fn room(len: usize) -> *mut u8 {
    Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr()
}

/// Encodes f32 rows with the codec of a spec and emits the blocks; 0 when all went well.
///
/// # Safety
/// Each pointer came from [`room`] with at least the length given beside it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn encode(
    spec: *const u8,
    spec_len: usize,
    dim: usize,
    rows: *const u8,
    rows_len: usize,
) -> u32 {
    // SAFETY: the caller's promise.
    let (spec, rows) = unsafe { (slice::from_raw_parts(spec, spec_len), slice::from_raw_parts(rows, rows_len)) };
    finish(codec(spec, dim).and_then(|codec| codec.encode_rows(&floats(rows))))
}

/// Scores f32 query rows with blocks and emits the f32 scores, query after query; 0 when all went well.
///
/// # Safety
/// As for [`encode`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn score(
    spec: *const u8,
    spec_len: usize,
    dim: usize,
    queries: *const u8,
    queries_len: usize,
    blocks: *const u8,
    blocks_len: usize,
) -> u32 {
    // SAFETY: the caller's promise.
    let (spec, queries, blocks) = unsafe {
        (
            slice::from_raw_parts(spec, spec_len),
            slice::from_raw_parts(queries, queries_len),
            slice::from_raw_parts(blocks, blocks_len),
        )
    };
    let scores = codec(spec, dim).and_then(|codec| codec.score_rows(&floats(queries), blocks));
    finish(scores.map(|scores| scores.iter().flat_map(|score| score.to_le_bytes()).collect()))
}

fn codec(spec: &[u8], dim: usize) -> Result<Box<dyn Codec>, octaplex::Error> {
    let spec: CodecSpec = str::from_utf8(spec).unwrap_or_default().parse()?;
    spec.build_dyn(dim, octaplex::Backend::detect(), Stream::default())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn finish(result: Result<Vec<u8>, octaplex::Error>) -> u32 {
    match result {
        Ok(bytes) => {
            // SAFETY: the host reads `len` bytes before it returns, and the vector has them.
            unsafe { emit(bytes.as_ptr(), bytes.len()) };
            0
        }
        Err(error) => {
            say(&error.to_string());
            1
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    say(&format!("{info}"));
    core::arch::wasm32::unreachable()
}
