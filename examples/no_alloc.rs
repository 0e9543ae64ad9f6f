//! A cache in static memory, without std and without a heap: the same file runs on a PC
//! (`cargo run --example no_alloc --no-default-features`) and is what a microcontroller's firmware calls
//! ([`attend_once`]; the library and this code build for thumbv7em, see `ci/cross.sh`).
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]

use octaplex::{Attend, Backend, Error, LayerCache, LayerConfig};

const D: usize = 32;

/// One layer of one head, 512 tokens, everything known at compile time.
const CONFIG: LayerConfig = LayerConfig::new(1, D, 512);
const BYTES: usize = CONFIG.required_bytes();
const SCRATCH: usize = CONFIG.scratch_len(1);

/// Fills the cache and attends once; returns the first value of the output.
pub fn attend_once(memory: &mut [u8; BYTES], scratch: &mut [f32; SCRATCH]) -> Result<f32, Error> {
    let mut cache = LayerCache::<D, D, _>::new(&CONFIG, Backend::detect(), &mut memory[..])?;
    for token in 0..400usize {
        let row: [f32; D] = core::array::from_fn(|i| ((token * 31 + i * 17) % 29) as f32 / 29.0 - 0.5);
        cache.append(&row, &row, scratch)?;
    }
    let mut output = [0.0; D];
    cache.attend(&[0.25; D], &Attend::default(), &mut output, scratch)?;
    Ok(output[0])
}

#[cfg(not(target_os = "none"))]
fn main() -> Result<(), Error> {
    let (mut memory, mut scratch) = ([0; BYTES], [0.0; SCRATCH]);
    let first = attend_once(&mut memory, &mut scratch)?;
    println!("{BYTES} bytes for 512 tokens, {SCRATCH} values of scratch; the output begins with {first}");
    assert!(first.is_finite());
    Ok(())
}

/// Kept in the image for a board's reset handler to call; its runtime crate brings vector table and memory map.
#[cfg(target_os = "none")]
#[used]
static FIRMWARE: fn(&mut [u8; BYTES], &mut [f32; SCRATCH]) -> Result<f32, Error> = attend_once;

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
