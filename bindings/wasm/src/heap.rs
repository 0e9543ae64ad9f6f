//! The heap. It counts the bytes in use: `memory()` reports them, and tests find leaks with them.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use dlmalloc::GlobalDlmalloc;

struct Counted {
    heap: GlobalDlmalloc,
    used: AtomicUsize,
}

// SAFETY: every call passes its arguments on to dlmalloc.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { self.heap.alloc(layout) };
        if !block.is_null() {
            self.used.fetch_add(layout.size(), Relaxed);
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { self.heap.alloc_zeroed(layout) };
        if !block.is_null() {
            self.used.fetch_add(layout.size(), Relaxed);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.used.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.heap.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let moved = unsafe { self.heap.realloc(block, layout, size) };
        if !moved.is_null() {
            self.used.fetch_add(size, Relaxed);
            self.used.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }
}

#[global_allocator]
static HEAP: Counted = Counted { heap: GlobalDlmalloc, used: AtomicUsize::new(0) };

/// Returns the bytes in use by buffers, codecs and caches.
#[unsafe(no_mangle)]
pub extern "C" fn heap_used() -> usize {
    HEAP.used.load(Relaxed)
}
