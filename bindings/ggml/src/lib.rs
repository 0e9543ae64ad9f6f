//! octaplex as the key/value cache of an unmodified llama.cpp.
//!
//! `cargo build --release -p octaplex-ggml` builds `liboctaplex_ggml.so` (`.dylib`, `octaplex_ggml.dll`), a ggml *backend library*. llama.cpp
//! loads it through the environment variable `GGML_BACKEND_PATH` or through `ggml_backend_load`. Its device owns only the
//! key/value cache: weights and all other work stay on the CPU. With `OCTAPLEX_GPU=1` and the feature `cuda`, which is on by
//! default, caches on NVIDIA GPUs are compressed there (`cuda.rs`).
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
//! This library does not link ggml. `abi.rs` declares the layout of ggml's backend interface. `functions.rs` looks up ggml's
//! functions in the library that called [`ggml_backend_init`], and `probe.rs` compares the layout. A ggml that is laid out
//! otherwise gets no device, and a line on standard error.
//!
//! Tensors that are not pairs of keys and values stay on the host's CPU: `plan.rs` decides it before their buffer exists.

#![cfg(any(unix, windows))]

mod abi;
mod buffer;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod functions;
mod host;
mod inner;
mod instance;
mod lent;
mod memory;
mod ops;
mod plan;
mod probe;
mod settings;
mod store;
mod system;
mod threads;
mod work;

use core::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// Returns the registry with this library's device, or null. ggml calls it after loading the library.
///
/// The host's functions are looked up in the calling library. So hosts inside Python or Node work, whose symbols are not
/// global. Only the return address tells which library called.
///
/// # Safety
/// The caller is ggml's `ggml_backend_load`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
pub unsafe extern "C" fn ggml_backend_init() -> *mut c_void {
    #[cfg(not(windows))]
    core::arch::naked_asm!("mov rdi, [rsp]", "jmp {init}", init = sym init);
    #[cfg(windows)]
    core::arch::naked_asm!("mov rcx, [rsp]", "jmp {init}", init = sym init)
}

/// Returns the registry with this library's device, or null. ggml calls it after loading the library.
///
/// # Safety
/// The caller is ggml's `ggml_backend_load`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "aarch64")]
pub unsafe extern "C" fn ggml_backend_init() -> *mut c_void {
    core::arch::naked_asm!("mov x0, x30", "b {init}", init = sym init)
}

/// Returns the registry with this library's device, or null. ggml calls it after loading the library.
///
/// # Safety
/// The caller is ggml's `ggml_backend_load`.
#[unsafe(no_mangle)]
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe extern "C" fn ggml_backend_init() -> *mut c_void {
    // Without the return address, only hosts with global symbols work.
    init(core::ptr::null())
}

extern "C" fn init(caller: *const c_void) -> *mut c_void {
    guarded(null_mut(), || {
        system::keep_loaded(init as *const c_void);
        let host = match host::Host::find(caller) {
            Ok(host) => host,
            Err(why) => {
                eprintln!("octaplex: {why}; llama.cpp continues without it (leave out --device OCTAPLEX)");
                return null_mut();
            }
        };
        let settings = settings::Settings::from_environment().and_then(|settings| {
            if settings.only_known && !abi::is_known(&host.version_text) {
                let (found, known) = (&host.version_text, abi::KNOWN);
                return Err(format!("ggml {found} is not one of {known}, and OCTAPLEX_ONLY_KNOWN is set"));
            }
            Ok(settings)
        });
        if let Err(why) = &settings {
            host.error(&format!("{why}; llama.cpp continues without it"));
        }
        device::registry(host, settings.ok())
    })
}

/// Runs a callback with the floats of Rust programs, and restores those of the host's thread. A panic would abort the host, so it
/// becomes a message and the result `otherwise`.
fn guarded<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(|| octaplex::with_default_floats(f))).unwrap_or_else(|_| {
        eprintln!("octaplex has a bug: please report it with the lines above");
        otherwise
    })
}
