//! Buffers that end just before, or begin just behind, pages without access.

use crate::suite::Bits;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use rustix::param::page_size;
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The guard that a buffer touches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Start,
    End,
}

/// Bytes between two guard pages: more than any buffer of the suite.
const BYTES: usize = 1 << 19;

thread_local! {
    /// The side of this thread's next buffers.
    pub(crate) static SIDE: Cell<Side> = const { Cell::new(Side::End) };
    /// Mappings that no buffer uses.
    static FREE: RefCell<Vec<*mut u8>> = const { RefCell::new(Vec::new()) };
}

/// Maps `BYTES` bytes between two pages without access, and returns the first.
fn map() -> *mut u8 {
    let page = page_size();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: new anonymous memory at an unused address. The protected pages are its first and its
    // last, which no buffer uses.
    unsafe {
        let start = mmap_anonymous(null_mut(), BYTES + 2 * page, access, flags).expect("memory");
        for guard in [start, start.byte_add(page + BYTES)] {
            mprotect(guard, page, MprotectFlags::empty()).expect("a page can be protected");
        }
        start.byte_add(page).cast()
    }
}

pub(crate) struct Buffer<T> {
    mapping: *mut u8,
    first: *mut T,
    len: usize,
}

impl<T: Bits> Buffer<T> {
    pub(crate) fn new(values: &[T]) -> Self {
        let bytes = size_of_val(values);
        assert!(bytes <= BYTES);
        let mapping = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(map);
        let offset = if SIDE.get() == Side::End { BYTES - bytes } else { 0 };
        // SAFETY: `offset + bytes` is at most `BYTES`, and only this buffer uses the mapping until
        // it is dropped. Both ends are page boundaries, and a size is a multiple of its alignment.
        let first = unsafe { mapping.add(offset) }.cast();
        let mut buffer = Self { mapping, first, len: values.len() };
        buffer.copy_from_slice(values);
        buffer
    }

    /// A kernel that touches memory next to its buffers does not return.
    pub(crate) fn is_intact(&self) -> bool {
        true
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        FREE.with_borrow_mut(|free| free.push(self.mapping));
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: see `new`. Every byte of a mapping is initialised, and every bit pattern is a
        // valid `Bits`.
        unsafe { from_raw_parts(self.first, self.len) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed mutably, so that no other reference exists.
        unsafe { from_raw_parts_mut(self.first, self.len) }
    }
}
