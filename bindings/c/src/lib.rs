//! The C interface of octaplex. cbindgen writes `octaplex.h` from this crate.
//!
//! The conventions follow usearch: opaque handles, no global state, and a last argument for the error, which nobody
//! frees. README.md shows how to build against it.
#![allow(non_camel_case_types)] // names follow C

mod arguments;
mod cache;
mod codec;
mod config;
mod error;
mod snapshot;

pub use cache::*;
pub use codec::*;
pub use config::*;
pub use error::{OCTAPLEX_MESSAGE_BYTES, octaplex_error, octaplex_status};
pub use snapshot::*;

use error::{Failure, run};
use octaplex::{Backend, CodecSpec, verify};
use std::ffi::{CStr, c_char};

/// Returns the library's version, such as `"0.1.0"`. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn octaplex_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// The names of all backends as C strings.
const NAMES: [&CStr; 9] =
    [c"amx", c"avx512", c"avx-vnni", c"avx2", c"neon-dotprod", c"neon", c"simd128", c"portable", c"scalar"];

fn name(backend: Option<Backend>) -> *const c_char {
    let found = |backend: Backend| NAMES.iter().find(|name| name.to_bytes() == backend.name().as_bytes());
    backend.and_then(found).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Returns the name of the fastest backend of this CPU, which calls without a backend's name use. Do not free it. On a
/// CPU with AMX, the first call asks Linux for permission to use its tiles.
#[unsafe(no_mangle)]
pub extern "C" fn octaplex_hardware_acceleration() -> *const c_char {
    name(Some(Backend::detect()))
}

/// Returns the name of backend `number` of this CPU and build, fastest first. Returns null after the last one. Do not
/// free names.
#[unsafe(no_mangle)]
pub extern "C" fn octaplex_backend_name(number: usize) -> *const c_char {
    name(Backend::available().nth(number))
}

/// Computes the checksum of a codec and compares it with the published table. Every machine must compute the same
/// results.
///
/// `codec` is a name without parameters; null checks all codecs. `checksum`, if not null, receives the computed
/// checksum, even if it differs (`OCTAPLEX_STATUS_DIFFERS`).
///
/// # Safety
/// Strings end in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_verify(
    codec: *const c_char,
    backend: *const c_char,
    checksum: *mut u32,
    error: *mut octaplex_error,
) -> octaplex_status {
    let verify = || {
        // SAFETY: the caller's promises.
        let (only, backend) = unsafe { (arguments::text(codec)?, arguments::backend(backend)?) };
        let (mut memory, mut sums, mut differs) = (vec![0.0; verify::MEMORY], Vec::new(), None);
        let codecs = CodecSpec::all().iter().map(|codec| codec.name);
        for name in codecs.filter(|name| only.is_none_or(|only| only == *name)) {
            let found = verify::check(name, backend, &mut memory)?;
            if verify::expected(name) != Some(found) {
                differs = differs.or(Some(name));
            }
            sums.push(found);
        }
        if sums.is_empty() {
            let why = "no codec has that name: pass a name without parameters, such as \"turboquant\", or null for all";
            return Err(Failure::Here(octaplex_status::Text, why));
        }
        // SAFETY: the caller's promise.
        unsafe { arguments::put(checksum, verify::together(sums)) }?;
        differs.map_or(Ok(()), |name| Err(Failure::Differs(name)))
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, verify) }
}
