//! Memory that JavaScript writes and reads: addresses become slices.

use crate::Failure;
use alloc::alloc::{alloc_zeroed, dealloc};
use alloc::vec::Vec;
use core::alloc::Layout;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), 16).ok()
}

/// Allocates zeros at a multiple of 16. Returns 0 if there is no memory left.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(bytes: usize) -> *mut u8 {
    // SAFETY: the layout is of one byte or more.
    layout(bytes).map_or(core::ptr::null_mut(), |layout| unsafe { alloc_zeroed(layout) })
}

/// # Safety
/// `block` is from [`allocate`] with this number of bytes, and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release(block: *mut u8, bytes: usize) {
    if let Some(layout) = layout(bytes) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(block, layout) }
    }
}

/// Returns `length` values at an address, for reading.
///
/// # Safety
/// They lie in a block of [`allocate`] that lives as long as the call. They are aligned for `T`, and no output of the
/// call overlaps them.
pub(crate) unsafe fn input<'a, T>(at: *const T, length: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if length == 0 { &[] } else { unsafe { core::slice::from_raw_parts(at, length) } }
}

/// Returns `length` values at an address, for writing.
///
/// # Safety
/// As for [`input`], and no other argument of the call overlaps them.
pub(crate) unsafe fn output<'a, T>(at: *mut T, length: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    if length == 0 { &mut [] } else { unsafe { core::slice::from_raw_parts_mut(at, length) } }
}

/// Returns a text of the caller.
///
/// # Safety
/// As [`input`].
pub(crate) unsafe fn words<'a>(at: *const u8, length: usize) -> &'a str {
    // SAFETY: the caller's promise. The parser refuses the replacement of a text that is not UTF-8.
    core::str::from_utf8(unsafe { input(at, length) }).unwrap_or("\u{fffd}")
}

/// Checks that this many bytes can be allocated now. Call it before a call that would panic midway without them.
pub(crate) fn expect_memory(bytes: u64) -> Result<(), Failure> {
    let room = usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    if room { Ok(()) } else { Err(Failure::Memory(bytes)) }
}
