//! A block of any bytes, decoded.
#![no_std]
#![no_main]

use octaplex::codecs::{Codec, TurboQuant};

#[unsafe(no_mangle)]
extern "C" fn _start(codec: &TurboQuant<64>, block: &[u8; 34], row: &mut [f32; 64]) -> bool {
    Codec::decode(codec, block, row).is_ok()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
