//! Attention on a cache of any state that it can have.
#![no_std]
#![no_main]

use octaplex::cache::LayerCache;
use octaplex::codecs::TurboQuant;

type Cache<'a> = LayerCache<TurboQuant<64>, TurboQuant<64>, &'a mut [u8]>;

#[unsafe(no_mangle)]
extern "C" fn _start(
    cache: &Cache,
    query: &[f32; 64],
    output: &mut [f32; 64],
    scratch: &mut [f32; 4096],
) -> bool {
    cache.attend(query, output, scratch).is_ok()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
