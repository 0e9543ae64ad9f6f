//! octaplex as the key/value cache of an unmodified llama.cpp.
//!
//! `cargo build --release -p octaplex-ggml` builds `liboctaplex_ggml.so` (`.dylib`): a ggml *backend library*, which llama.cpp
//! loads by the environment variable `GGML_BACKEND_PATH`, or by a call of `ggml_backend_load`. It brings a device that owns
//! the key/value cache and nothing else: weights and all other work stay on the CPU.
//!
//! ```text
//! host                      this library
//! allocates cache_k_l0  ->  buffer.rs   a tensor of nominal type f16, backed by octaplex::cells::CellPages (store.rs)
//! SET_ROWS              ->  ops.rs      writes cells
//! FLASH_ATTN_EXT        ->  ops.rs      attention on compressed pages, then pages close
//! ROPE (K-shift)        ->  ops.rs      decodes cells, lets the host's CPU backend rotate them (inner.rs), encodes them
//! get, set, copy, clear ->  buffer.rs   rows in f16
//! ```
//!
//! Nothing of ggml is linked. `abi.rs` declares the layout of its backend interface, `host.rs` looks its functions up in
//! whichever library called [`ggml_backend_init`]. An unknown version of ggml gets no device, and a sentence in its log.

#![cfg(unix)]

mod abi;
mod buffer;
mod device;
mod host;
mod inner;
mod ops;
mod settings;
mod store;
mod threads;

use core::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// What ggml calls once it has loaded this library: gives the registry of its one device, or null.
///
/// The host's functions are looked up in the library that the call comes from, so that hosts inside Python or Node work,
/// whose symbols are not global. Only the return address tells which one that is.
///
/// # Safety
/// The caller is ggml's `ggml_backend_load`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
pub unsafe extern "C" fn ggml_backend_init() -> *mut c_void {
    core::arch::naked_asm!("mov rdi, [rsp]", "jmp {init}", init = sym init)
}

/// What ggml calls once it has loaded this library: gives the registry of its one device, or null.
///
/// # Safety
/// The caller is ggml's `ggml_backend_load`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "aarch64")]
pub unsafe extern "C" fn ggml_backend_init() -> *mut c_void {
    core::arch::naked_asm!("mov x0, x30", "b {init}", init = sym init)
}

/// What ggml calls once it has loaded this library: gives the registry of its one device, or null.
///
/// # Safety
/// The caller is ggml's `ggml_backend_load`.
#[unsafe(no_mangle)]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe extern "C" fn ggml_backend_init() -> *mut c_void {
    // Without the return address: hosts whose symbols are global.
    init(core::ptr::null())
}

extern "C" fn init(caller: *const c_void) -> *mut c_void {
    guarded(null_mut(), || {
        threads::keep_loaded(init as *const c_void);
        let host = match host::Host::find(caller) {
            Ok(host) => host,
            Err(why) => {
                eprintln!("octaplex: {why}; llama.cpp goes on without it");
                return null_mut();
            }
        };
        match settings::Settings::from_environment() {
            Ok(settings) => device::registry(host, settings),
            Err(why) => {
                host.error(&format!("{why}; llama.cpp goes on without it"));
                null_mut()
            }
        }
    })
}

/// Runs a callback. A panic would abort the host: it becomes a sentence and `otherwise`.
fn guarded<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        eprintln!("octaplex: an internal error; please report it with the lines above");
        otherwise
    })
}
