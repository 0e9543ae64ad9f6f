//! A cache in static memory, without std and without a heap. `cargo run` here runs it on this machine, and
//! `ci/cross.sh thumb` on an emulated Cortex-M4: both print the same line, because backends are bit-exact.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]

use octaplex::cache::LayerCache;
use octaplex::codecs::{TurboQuant, TurboQuantSpec};
use octaplex::{Backend, CodecSpec, Error, LayerConfig};

const D: usize = 32;

/// The codec of keys and of values: the only one that is linked.
type Codec = TurboQuant<D>;
const FOUR_BITS: CodecSpec = CodecSpec::TurboQuant(TurboQuantSpec::new(4));

/// One layer of one head, 512 tokens, four bits a value; sizes are known when the firmware is built.
const CONFIG: LayerConfig = LayerConfig::new(1, D, 512).keys(FOUR_BITS).values(FOUR_BITS);
const BYTES: usize = CONFIG.required_bytes();
const SCRATCH: usize = CONFIG.scratch_len(1);

/// The state that a firmware keeps in a `static`.
struct Memory {
    cache: [u8; BYTES],
    scratch: [f32; SCRATCH],
}

/// Fills the cache with 400 tokens, attends once, and returns the output.
fn attend_once(memory: &mut Memory) -> Result<[f32; D], Error> {
    let mut cache = LayerCache::<Codec, Codec, _>::new(&CONFIG, Backend::detect(), &mut memory.cache[..])?;
    for token in 0..400usize {
        let row: [f32; D] = core::array::from_fn(|i| ((token * 31 + i * 17) % 29) as f32 / 29.0 - 0.5);
        cache.append(&row, &row, &mut memory.scratch)?;
    }
    let mut output = [0.0; D];
    cache.attend(&[0.25; D], &mut output, &mut memory.scratch)?;
    Ok(output)
}

/// Reduces an output to three numbers, to compare outputs.
fn summary(output: &[f32; D]) -> (usize, f32, u32) {
    (BYTES, output[0], output.iter().fold(0, |bits, x| bits.rotate_left(1) ^ x.to_bits()))
}

#[cfg(not(target_os = "none"))]
fn main() -> Result<(), Error> {
    let mut memory = Memory { cache: [0; BYTES], scratch: [0.0; SCRATCH] };
    let (bytes, first, bits) = summary(&attend_once(&mut memory)?);
    println!("{bytes} bytes for 512 tokens; the output begins with {first} and sums up to {bits:08x}");
    Ok(())
}

#[cfg(target_os = "none")]
use panic_semihosting as _; // a panic ends the emulator with an error status

#[cfg(target_os = "none")]
#[cortex_m_rt::entry]
fn main() -> ! {
    // The runtime lends the statics at its head to this function as `&mut`.
    static mut MEMORY: Memory = Memory { cache: [0; BYTES], scratch: [0.0; SCRATCH] };
    use cortex_m_semihosting::{debug, hprintln};
    let status = match attend_once(MEMORY) {
        Ok(output) => {
            let (bytes, first, bits) = summary(&output);
            hprintln!("{} bytes for 512 tokens; the output begins with {} and sums up to {:08x}", bytes, first, bits);
            debug::EXIT_SUCCESS
        }
        Err(error) => {
            hprintln!("{}", error);
            debug::EXIT_FAILURE
        }
    };
    debug::exit(status);
    loop {
        cortex_m::asm::wfi();
    }
}
