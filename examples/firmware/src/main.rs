//! Samples of a sensor arrive by interrupt, wait in a queue, are kept in a compressed cache of static memory, and attended
//! to: which earlier moments were like this one? Without std, without a heap, with one codec linked. `cargo run` here runs
//! the same on this machine, and both print the same lines, checksums included; `ci/cross.sh thumb` compares them.
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
