//! The C interface of octaplex: `octaplex.h`, which cbindgen writes from this crate. The conventions are those of usearch's:
//! opaque handles, no global state, and a last argument for the error that nobody frees. README.md shows how to build
//! against it.
#![allow(non_camel_case_types)] // they are C's

mod cache;
mod codec;
mod config;
mod error;
mod given;
mod snapshot;

pub use cache::*;
pub use codec::*;
pub use config::*;
pub use error::{OCTAPLEX_MESSAGE_BYTES, octaplex_error, octaplex_status};
pub use snapshot::*;

use error::{Failure, run};
use octaplex::{Backend, CodecSpec, verify};
use std::ffi::{CStr, c_char};

/// The library's version, `"0.1.0"`: a text that is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn octaplex_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// The names of all backends as texts of C.
const NAMES: [&CStr; 9] =
    [c"amx", c"avx512", c"avx-vnni", c"avx2", c"neon-dotprod", c"neon", c"simd128", c"portable", c"scalar"];

fn name(backend: Option<Backend>) -> *const c_char {
    let found = |backend: Backend| NAMES.iter().find(|name| name.to_bytes() == backend.name().as_bytes());
    backend.and_then(found).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// The instructions that calls without a backend's name run on, the fastest of this CPU: a text that is never freed. Where a CPU has
/// AMX, Linux is asked once a process to permit its tiles.
#[unsafe(no_mangle)]
pub extern "C" fn octaplex_hardware_acceleration() -> *const c_char {
    name(Some(Backend::detect()))
}

/// The backends of this CPU and build by number, the fastest first; null behind the last one. Texts are never freed.
#[unsafe(no_mangle)]
pub extern "C" fn octaplex_backend_name(number: usize) -> *const c_char {
    name(Backend::available().nth(number))
}

/// Computes the checksums of a codec (its name, without keys), or of all where `codec` is null, and compares them with the
/// table that every machine must give. `checksum` (or null) becomes what was found, even where it is another
/// (`OCTAPLEX_STATUS_DIFFERS`).
///
/// # Safety
/// Texts end in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_verify(
    codec: *const c_char,
    backend: *const c_char,
    checksum: *mut u32,
    error: *mut octaplex_error,
) -> octaplex_status {
    let verify = || {
        // SAFETY: the caller's promises.
        let (only, backend) = unsafe { (given::text(codec)?, given::backend(backend)?) };
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
            let why = "no codec of that name: a name without keys, \"turboquant\", or null for all";
            return Err(Failure::Here(octaplex_status::Text, why));
        }
        // SAFETY: the caller's promise.
        unsafe { given::put(checksum, verify::together(sums)) }?;
        differs.map_or(Ok(()), |name| Err(Failure::Differs(name)))
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, verify) }
}
