//! Scores one query with 4,096 keys of 4 bits many times, within one call from JavaScript.
#![no_std]
#![allow(unsafe_code)]

use octaplex::codecs::{HeadId, TurboQuant, TurboQuantSpec};
use octaplex::Backend;

const DIM: usize = 128;
const KEYS: usize = 4096;
const BYTES: usize = 66;

static mut ROWS: [f32; KEYS * DIM] = [0.0; KEYS * DIM];
static mut PAGE: [u8; KEYS * BYTES] = [0; KEYS * BYTES];
static mut SCORES: [f32; KEYS] = [0.0; KEYS];

/// Returns the address where the host writes the rows.
#[unsafe(no_mangle)]
pub extern "C" fn rows() -> *mut f32 {
    (&raw mut ROWS).cast()
}

/// Returns the address where the host reads the scores.
#[unsafe(no_mangle)]
pub extern "C" fn scores() -> *const f32 {
    (&raw const SCORES).cast()
}

/// Encodes the rows, then scores the first row with the first `keys` keys, `times` times. Returns 1 for an error.
#[unsafe(no_mangle)]
pub extern "C" fn score(keys: usize, times: usize) -> u32 {
    // SAFETY: one thread, and one call at a time.
    let (rows, page, scores) =
        unsafe { (&*(&raw const ROWS), &mut *(&raw mut PAGE), &mut *(&raw mut SCORES)) };
    run(rows.as_chunks().0, page, &mut scores[..keys], times).map_or(1, |()| 0)
}

fn run(
    rows: &[[f32; DIM]],
    page: &mut [u8],
    scores: &mut [f32],
    times: usize,
) -> Result<(), octaplex::Error> {
    let codec = TurboQuant::<DIM>::build(TurboQuantSpec::new(4), Backend::detect(), HeadId::default())?;
    let page = &mut page[..scores.len() * BYTES];
    if times == 0 {
        codec.encode_page(&rows[..scores.len()], page)?;
    }
    for _ in 0..times {
        let query = codec.prepare_query(core::hint::black_box(&rows[0]))?;
        codec.score(&[query], page, scores)?;
    }
    Ok(())
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
