//! The WebAssembly module of the npm package: plain functions that take addresses in the module's memory. Only the package's
//! JavaScript (`../js`) calls them. JavaScript checks types, widths and handles. This module checks the bytes.
//!
//! The boundary is written by hand, without wasm-bindgen. So typed arrays in the module's memory need no copy, and the
//! JavaScript takes few kilobytes.
//!
//! Every function returns a number. [`text::FAILED`] means an error, and then nothing has changed. [`text::text`] has its
//! text: the code on the first line, then the message. A panic (a bug), and memory that runs out within a call, leave through
//! the import `host.fail`, which throws. So nothing traps.
#![no_std]
#![allow(unsafe_code)] // addresses come in as numbers

extern crate alloc;

#[cfg(feature = "specs")]
mod cache;
mod codec;
mod heap;
mod memory;
mod text;
#[cfg(feature = "specs")]
mod verify;

pub(crate) use text::{Failure, answer};

/// Calls the host's `fail`, which throws. If it returned, the instance would stop. The build of one codec leaves out the
/// messages of panics.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    #[cfg(feature = "specs")]
    let length = text::write(&format_args!("Internal\n{info}"));
    #[cfg(not(feature = "specs"))]
    let (_, length) = (info, text::write(&"Internal\na panic"));
    text::fail(length)
}
