//! Programs of nothing but octaplex, whose sizes `ci/sizes.sh` measures.
#![no_std]
#![allow(unsafe_code, missing_docs)] // the entry is found by its name

use octaplex::Error;
#[cfg(not(feature = "codec"))]
use octaplex::{Backend, LayerConfig};

#[cfg(feature = "run-time")]
type Keys = octaplex::codecs::Typed<octaplex::codecs::AnyCodec, 32>;
#[cfg(feature = "two")]
type Keys = octaplex::codecs::Trellis<32>;
#[cfg(any(feature = "cache", feature = "codec"))]
type Keys = octaplex::codecs::TurboQuant<32>;
#[cfg(any(feature = "cache", feature = "two"))]
type Values = octaplex::codecs::TurboQuant<32>;
#[cfg(feature = "run-time")]
type Values = Keys;

#[cfg(not(feature = "codec"))]
const CONFIG: LayerConfig = {
    let four_bits = octaplex::CodecSpec::TurboQuant(octaplex::codecs::TurboQuantSpec::new(4));
    #[cfg(feature = "two")]
    let keys = octaplex::CodecSpec::Trellis(octaplex::codecs::TrellisSpec::new(4, 8));
    #[cfg(not(feature = "two"))]
    let keys = four_bits;
    LayerConfig::new(1, 32, 512).keys(keys).values(four_bits)
};

/// Appends rows and attends, or encodes them and scores.
#[cfg(not(feature = "codec"))]
fn run(memory: &mut [u8], scratch: &mut [f32], rows: &[f32], output: &mut [f32]) -> Result<(), Error> {
    let mut cache = octaplex::cache::LayerCache::<Keys, Values, _>::new(&CONFIG, Backend::detect(), memory)?;
    cache.append(rows, rows, scratch)?;
    cache.attend(&rows[..32], output, scratch)
}

#[cfg(feature = "codec")]
fn run(memory: &mut [u8], scratch: &mut [f32], rows: &[f32], output: &mut [f32]) -> Result<(), Error> {
    let codec = Keys::new(4)?;
    let rows = rows.as_chunks::<32>().0;
    let bytes = codec.encode_page(rows, memory)?;
    codec.score(&[codec.prepare_query(&rows[0])?], &memory[..bytes], scratch)?;
    let mut sum = [[0.0; 32]];
    codec.accumulate(scratch, &memory[..bytes], &mut sum)?;
    codec.finish(&mut sum[0]);
    output.copy_from_slice(&sum[0]);
    Ok(())
}

/// # Safety
/// The pointers are valid for these numbers of values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_run(
    memory: *mut u8,
    bytes: usize,
    values: *mut f32,
    scratch: usize,
    rows: usize,
) -> bool {
    // SAFETY: the caller's promise; scratch, rows and output lie one behind the other.
    let (memory, values) = unsafe {
        (
            core::slice::from_raw_parts_mut(memory, bytes),
            core::slice::from_raw_parts_mut(values, scratch + rows + 32),
        )
    };
    let (scratch, values) = values.split_at_mut(scratch);
    let (rows, output) = values.split_at_mut(rows);
    run(memory, scratch, rows, output).is_ok()
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
