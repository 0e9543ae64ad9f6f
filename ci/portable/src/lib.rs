//! The library where there is no std: the bit-equality suite, the trellis codec's test of backends and the checksums of
//! all codecs as a WebAssembly module, driven by `run.mjs`.
#![no_std]

extern crate alloc;

mod heap;
#[path = "../../../benches/common/plain.rs"]
mod plain;
#[path = "../../../arch/tests/buffers/painted.rs"]
mod buffer;
#[path = "../../../arch/tests/suite/mod.rs"]
mod suite;
mod timing;
#[path = "../../../tests/trellis/backends.rs"]
mod trellis;
#[path = "../../../tests/common/vectors.rs"]
#[allow(dead_code)] // other tests take the rest
mod vectors;

/// The test of backends takes its helpers from this module.
mod common {
    pub(crate) use crate::vectors;

    /// Returns the number of cases to run: all.
    pub(crate) const fn share(all: usize) -> usize {
        all
    }
}

use alloc::{boxed::Box, format, vec, vec::Vec};
use core::panic::PanicInfo;
use octaplex::{CodecSpec, verify};
use octaplex_arch::Backend;

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    fn print(text: *const u8, len: usize);
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

/// Checks every kernel of every backend, prints the differences, and returns the number of different kernels.
#[unsafe(no_mangle)]
pub extern "C" fn run_suite() -> u32 {
    let (backends, mut failures): (Vec<_>, _) = (Backend::available().collect(), 0);
    for (kernel, check) in suite::checks() {
        if let Err(mismatch) = check(&backends) {
            failures += 1;
            say(&format!("{kernel}: {mismatch}"));
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

/// Allocates `len` bytes that the host fills and owns.
#[unsafe(no_mangle)]
pub extern "C" fn room(len: usize) -> *mut u8 {
    Box::leak(vec![0u8; len].into_boxed_slice()).as_mut_ptr()
}

/// Prints each codec's checksums on every backend, and the expected ones if they differ. Returns the number of differences.
#[unsafe(no_mangle)]
pub extern "C" fn run_verify() -> u32 {
    let (mut memory, mut differ) = (vec![0.0; verify::MEMORY], 0);
    for backend in octaplex::Backend::available() {
        for codec in CodecSpec::all() {
            let found = verify::check(codec.name, backend, &mut memory).ok();
            if found.is_none() || found != verify::expected(codec.name) {
                differ += 1;
                say(&format!("{} on {}: {found:x?}", codec.name, backend.name()));
            }
        }
    }
    differ
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    say(&format!("{info}"));
    core::arch::wasm32::unreachable()
}
