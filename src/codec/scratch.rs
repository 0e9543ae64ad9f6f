//! Scratch memory on the stack, for a number of values that is known at run time only.

use crate::Error;
use octaplex_arch::MAX_DIM;

/// The largest number of values: eight prepared queries of the widest vectors.
pub(crate) const MAX_SCRATCH: usize = 16 * MAX_DIM;

const TOO_WIDE: Result<(), Error> = Err(Error::Unsupported { why: "vectors are too wide for the stack" });

/// Calls `f` with `len` zeros on the stack.
///
/// The stack frame has about that size. So a microcontroller with narrow vectors does not pay for
/// the widest. `f` is compiled once, for all sizes.
///
/// # Errors
/// Those of `f`; [`Error::Unsupported`] for more than [`MAX_SCRATCH`] values.
#[inline]
pub(crate) fn with_scratch(
    len: usize,
    mut f: impl FnMut(&mut [f32]) -> Result<(), Error>,
) -> Result<(), Error> {
    in_frame(len, &mut |memory| memory.get_mut(..len).map_or(TOO_WIDE, &mut f))
}

type Body<'a> = &'a mut dyn FnMut(&mut [f32]) -> Result<(), Error>;

/// Calls a frame of the right size. On bare metal it is not inlined, so that it is in the program
/// only once.
#[cfg_attr(target_os = "none", inline(never))]
#[cfg_attr(not(target_os = "none"), inline)]
fn in_frame(len: usize, f: Body<'_>) -> Result<(), Error> {
    match len {
        0..=32 => frame::<32>(f),
        33..=80 => frame::<80>(f),
        81..=160 => frame::<160>(f),
        161..=320 => frame::<320>(f),
        321..=704 => frame::<704>(f),
        705..=1440 => frame::<1440>(f),
        1441..=2304 => frame::<2304>(f),
        2305..=4608 => frame::<4608>(f),
        4609..=MAX_SCRATCH => frame::<MAX_SCRATCH>(f),
        _ => TOO_WIDE,
    }
}

/// Values that begin on a cache line, so that no load or store of a register crosses two lines.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct Values<const N: usize>([f32; N]);

/// Reserves the memory. Never inlined: otherwise the caller's frame would contain the frames of all
/// sizes.
#[inline(never)]
fn frame<const N: usize>(f: Body<'_>) -> Result<(), Error> {
    #[cfg(target_arch = "x86_64")]
    let values = &mut Values([0.0; N]).0;
    // When built for size, the wrapper struct would be a second array that is copied. So it is used
    // on x86-64 only.
    #[cfg(not(target_arch = "x86_64"))]
    let values = &mut [0.0; N];
    f(values)
}

/// Returns the first `len` bytes of some words.
pub(crate) fn bytes_of(words: &mut [f32], len: usize) -> &mut [u8] {
    let bytes = bytemuck::cast_slice_mut(words);
    let len = len.min(bytes.len());
    &mut bytes[..len]
}

/// Returns the number of words that hold `bytes` bytes.
pub(crate) const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(4)
}
