//! `octaplex verify` without std and without a heap: every codec's checksums, as in the library's table.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]

use octaplex::verify::{Checksums, MEMORY, check, expected, together};
use octaplex::{Backend, CodecSpec, Error};

/// Calls `line` with the results of each codec, and returns the checksum of all; an error if one differs.
fn verify(memory: &mut [f32], mut line: impl FnMut(&str, Checksums)) -> Result<u32, Error> {
    let mut sums = [Checksums { blocks: 0, cache: 0 }; CodecSpec::all().len()];
    for (codec, sum) in CodecSpec::all().iter().zip(&mut sums) {
        *sum = check(codec.name, Backend::detect(), memory)?;
        line(codec.name, *sum);
        if expected(codec.name) != Some(*sum) {
            return Err(Error::Unsupported { why: "this differs from the table" });
        }
    }
    Ok(together(sums))
}

#[cfg(not(target_os = "none"))]
fn main() -> Result<(), Error> {
    let all = verify(&mut vec![0.0; MEMORY], |name, sum| println!("{name:14} {sum}"))?;
    println!("{:14} {all:08x}", "all");
    Ok(())
}

#[cfg(target_os = "none")]
use panic_semihosting as _; // a panic ends the emulator with an error status

#[cfg(target_os = "none")]
#[cortex_m_rt::entry]
fn main() -> ! {
    // The runtime lends the statics at its head to this function as `&mut`.
    static mut MEMORY_OF_CHECKS: [f32; MEMORY] = [0.0; MEMORY];
    use cortex_m_semihosting::{debug, hprintln};
    let status = match verify(MEMORY_OF_CHECKS, |name, sum| hprintln!("{:14} {}", name, sum)) {
        Ok(all) => {
            hprintln!("{:14} {:08x}", "all", all);
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
