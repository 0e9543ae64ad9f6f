//! The library where there is no std: the bit-equality suite as a WebAssembly module, driven by `run.mjs`.
#![no_std]

extern crate alloc;

mod heap;
#[path = "../../../arch/tests/suite/mod.rs"]
mod suite;

use alloc::format;
use core::panic::PanicInfo;
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

/// Checks every kernel of every backend, says what differs, and returns how many kernels do.
#[unsafe(no_mangle)]
pub extern "C" fn run_suite() -> u32 {
    let mut failures = 0;
    for backend in Backend::available() {
        for (kernel, check) in suite::KERNELS {
            if let Err(mismatch) = check(backend) {
                failures += 1;
                say(&format!("{} {kernel}: {mismatch}", backend.name()));
            }
        }
    }
    failures
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    say(&format!("{info}"));
    core::arch::wasm32::unreachable()
}
