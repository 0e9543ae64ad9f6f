//! The WebAssembly module behind the npm package: plain functions over addresses in the module's memory, which the
//! package's JavaScript (`../js`) alone calls. It checks types, widths and handles; what the bytes say is checked here.
//!
//! A boundary by hand, not by wasm-bindgen: typed arrays in the module's memory go through without a copy, and the glue
//! is two kilobytes.
//!
//! Every function returns a number; [`text::FAILED`] says that there is an error, whose text [`text::text`] has: its code on
//! the first line, its words behind it. Nothing is changed then. A panic, which would be a bug, and memory that ran out in
//! the middle of a call leave through the import `host.fail`, which throws: nothing traps.
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

/// The host's `fail` throws; should it return, the instance stops. A build of one codec saves the texts of what cannot
/// happen.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    #[cfg(feature = "specs")]
    let length = text::write(&format_args!("Internal\n{info}"));
    #[cfg(not(feature = "specs"))]
    let (_, length) = (info, text::write(&"Internal\na panic"));
    text::fail(length)
}
