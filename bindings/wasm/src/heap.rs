//! The heap, which counts what is in use: how tests see a leak, and what `memory()` reports.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use dlmalloc::GlobalDlmalloc;

struct Counted {
    heap: GlobalDlmalloc,
    used: AtomicUsize,
}

// SAFETY: all is passed on to dlmalloc as it came.
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

/// Bytes in use: buffers that were handed out, codecs and caches.
#[unsafe(no_mangle)]
pub extern "C" fn heap_used() -> usize {
    HEAP.used.load(Relaxed)
}
