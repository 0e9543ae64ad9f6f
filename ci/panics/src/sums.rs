//! The weighted sum of a page of any bytes.
#![no_std]
#![no_main]

use octaplex::codecs::{Codec, TurboQuant};

#[unsafe(no_mangle)]
extern "C" fn _start(
    codec: &TurboQuant<64>,
    weights: &[f32; 64],
    page: &[u8; 64 * 34],
    sums: &mut [f32; 64],
) -> bool {
    Codec::accumulate(codec, weights, page, sums).is_ok()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
