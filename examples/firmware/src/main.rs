//! A sensor's samples arrive by interrupt and wait in a queue. A compressed cache in static memory stores them, and
//! attention finds the earlier moments that are like the present one. It needs no std and no heap, and links one codec.
//! `cargo run` here runs the same program on this machine. Both print the same lines and checksums; `ci/cross.sh thumb`
//! compares them.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]

#[cfg(target_os = "none")]
mod board;
#[cfg(not(target_os = "none"))]
mod desktop;
mod monitor;
mod sensor;

#[cfg(not(target_os = "none"))]
fn main() -> Result<(), octaplex::Error> {
    desktop::run()
}
