//! A heap for one thread: blocks follow one another, and all space returns when the last block is freed. The suite
//! frees everything after each case.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32::{memory_grow, memory_size};
use core::cell::Cell;
use core::ptr::null_mut;

const WASM_PAGE: usize = 65536;

struct Heap {
    start: Cell<usize>,
    next: Cell<usize>,
    live: Cell<usize>,
}

// SAFETY: this build has no threads.
unsafe impl Sync for Heap {}

// SAFETY: a block lies between `next` and the end of memory, and `next` only falls back when no block is live.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.start.get() == 0 {
            self.start.set(memory_size::<0>() * WASM_PAGE);
        }
        if self.live.get() == 0 {
            self.next.set(self.start.get());
        }
        let block = self.next.get().next_multiple_of(layout.align());
        let missing = (block + layout.size()).saturating_sub(memory_size::<0>() * WASM_PAGE);
        if missing > 0 && memory_grow::<0>(missing.div_ceil(WASM_PAGE)) == usize::MAX {
            return null_mut();
        }
        self.next.set(block + layout.size());
        self.live.set(self.live.get() + 1);
        block as *mut u8
    }

    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {
        self.live.set(self.live.get() - 1);
    }
}

#[global_allocator]
static HEAP: Heap = Heap { start: Cell::new(0), next: Cell::new(0), live: Cell::new(0) };
