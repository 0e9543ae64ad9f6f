//! The two kinds of memory of a layer: the caller's bytes, and pages on the heap that forks share.
//!
//! The pages in the caller's bytes are a ring of slots:
//!
//! ```text
//!  bytes   front │ slot 0: page 2 │ slot 1: free │ slot 2: page 0 │ slot 3: page 1 │      first = 2, len = 3
//! ```

use super::layout::Layout;
use crate::Error;
#[cfg(feature = "alloc")]
use alloc::{collections::VecDeque, sync::Arc, vec, vec::Vec};
use core::ops::Range;

/// Stores a layer: a front of fixed size, and pages in the order of their tokens.
pub trait Storage: Send + Sync {
    #[doc(hidden)]
    fn front(&self) -> &[u8];
    #[doc(hidden)]
    fn front_mut(&mut self) -> &mut [u8];
    /// Returns the number of pages.
    #[doc(hidden)]
    fn pages(&self) -> usize;
    #[doc(hidden)]
    fn page(&self, index: usize) -> &[u8];
    /// Returns whether another fork holds the page as well.
    #[doc(hidden)]
    fn is_shared(&self, _index: usize) -> bool {
        false
    }
    /// Returns the number of pages that can be added before others are removed.
    #[doc(hidden)]
    fn free(&self) -> usize;
    /// Returns the front, and the memory of a draft: page `pages() + index`, which is not yet part of the cache.
    ///
    /// `index` is below [`free`](Self::free).
    #[doc(hidden)]
    fn front_and_draft(&mut self, index: usize) -> (&[u8], &mut [u8]);
    /// Checks that there is memory for `count` drafts.
    ///
    /// # Errors
    /// [`Error::Memory`] if the machine has too little memory.
    #[doc(hidden)]
    fn reserve(&mut self, _count: usize) -> Result<(), Error> {
        Ok(())
    }
    /// Adds the first `count` drafts to the cache, and discards the others.
    #[doc(hidden)]
    fn commit(&mut self, count: usize);
    /// Removes a range of pages.
    #[doc(hidden)]
    fn remove(&mut self, range: Range<usize>);
}

/// Stores a layer in the caller's memory: `&mut [u8]`, an array or a `Vec`.
#[derive(Debug)]
pub struct Fixed<S> {
    bytes: S,
    front: usize,
    page: usize,
    slots: usize,
    /// The slot of the first page. The others follow, and continue in slot 0 after the last slot.
    first: usize,
    len: usize,
}

impl<S: AsRef<[u8]> + AsMut<[u8]>> Fixed<S> {
    pub(crate) fn new(layout: &Layout, bytes: S) -> Self {
        Self {
            bytes,
            front: layout.front_bytes,
            page: layout.page_bytes,
            slots: layout.slots,
            first: 0,
            len: 0,
        }
    }

    /// Returns the bytes of the slot of page `index`.
    fn slot(&self, index: usize) -> Range<usize> {
        let start = self.front + (self.first + index) % self.slots.max(1) * self.page;
        start..start + self.page
    }
}

impl<S: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> Storage for Fixed<S> {
    fn front(&self) -> &[u8] {
        &self.bytes.as_ref()[..self.front]
    }

    fn front_mut(&mut self) -> &mut [u8] {
        &mut self.bytes.as_mut()[..self.front]
    }

    fn pages(&self) -> usize {
        self.len
    }

    fn page(&self, index: usize) -> &[u8] {
        &self.bytes.as_ref()[self.slot(index)]
    }

    fn free(&self) -> usize {
        self.slots - self.len
    }

    fn front_and_draft(&mut self, index: usize) -> (&[u8], &mut [u8]) {
        let slot = self.slot(self.len + index);
        let (front, pages) = self.bytes.as_mut().split_at_mut(self.front);
        (front, &mut pages[slot.start - self.front..slot.end - self.front])
    }

    fn commit(&mut self, count: usize) {
        self.len += count;
    }

    fn remove(&mut self, range: Range<usize>) {
        if range.start == 0 {
            self.first = (self.first + range.end) % self.slots.max(1);
        } else {
            for index in range.end..self.len {
                let (from, to) = (self.slot(index), self.slot(index - range.len()));
                self.bytes.as_mut().copy_within(from, to.start);
            }
        }
        self.len -= range.len();
    }
}

/// Checks that the machine has `bytes` bytes of memory: allocates them and frees them again.
///
/// A configuration may need any amount, and a failed allocation would end the program. The real allocation that follows
/// stays `vec![0; n]`, because the system then provides its pages only as they are used.
///
/// # Errors
/// [`Error::Memory`] if the machine has too little memory.
#[cfg(feature = "alloc")]
pub(crate) fn check_memory(what: &'static str, bytes: usize) -> Result<(), Error> {
    let mut memory = Vec::<u8>::new();
    let given = memory.try_reserve_exact(bytes);
    core::hint::black_box(&memory); // without this, the compiler removes the unused allocation
    given.map_err(|_| Error::Memory { what, bytes })
}

/// Stores a layer on the heap. Each page is allocated when it closes, and forks share it.
#[cfg(feature = "alloc")]
#[derive(Clone, Debug)]
pub struct Shared {
    front: Vec<u8>,
    layout: Layout,
    pages: VecDeque<Arc<[u8]>>,
    drafts: Vec<Arc<[u8]>>,
}

#[cfg(feature = "alloc")]
impl Shared {
    /// Creates the storage of an empty layer.
    ///
    /// # Errors
    /// [`Error::Memory`] if the machine has too little memory.
    pub(crate) fn new(layout: &Layout) -> Result<Self, Error> {
        check_memory("the exact tokens of a layer", layout.front_bytes)?;
        Ok(Self {
            front: vec![0; layout.front_bytes],
            layout: *layout,
            pages: VecDeque::new(),
            drafts: Vec::new(),
        })
    }

    /// Returns the bytes that a clone copies.
    pub(crate) fn own_bytes(&self) -> usize {
        self.front.len() + self.pages.len() * size_of::<Arc<[u8]>>()
    }

    pub(crate) fn all_pages(&self) -> &VecDeque<Arc<[u8]>> {
        &self.pages
    }
}

#[cfg(feature = "alloc")]
impl Storage for Shared {
    fn front(&self) -> &[u8] {
        &self.front
    }

    fn front_mut(&mut self) -> &mut [u8] {
        &mut self.front
    }

    fn pages(&self) -> usize {
        self.pages.len()
    }

    fn page(&self, index: usize) -> &[u8] {
        &self.pages[index]
    }

    fn is_shared(&self, index: usize) -> bool {
        Arc::strong_count(&self.pages[index]) > 1
    }

    fn free(&self) -> usize {
        usize::MAX
    }

    fn front_and_draft(&mut self, index: usize) -> (&[u8], &mut [u8]) {
        while self.drafts.len() <= index {
            self.drafts.push(core::iter::repeat_n(0, self.layout.page_bytes).collect());
        }
        (&self.front, Arc::make_mut(&mut self.drafts[index]))
    }

    fn reserve(&mut self, count: usize) -> Result<(), Error> {
        /// Bytes that the counters of a page and the allocator take in addition to it.
        const BESIDE: usize = 64;
        // One page more: pages that vary in size are copied when they are committed.
        let bytes = count.saturating_add(1).saturating_mul(self.layout.page_bytes + BESIDE);
        let short = Error::Memory { what: "pages", bytes };
        self.pages.try_reserve(count).map_err(|_| short)?;
        self.drafts.try_reserve(count).map_err(|_| short)?;
        check_memory("pages", bytes)
    }

    fn commit(&mut self, count: usize) {
        for draft in self.drafts.drain(..).take(count) {
            let length = self.layout.page_length(&draft);
            self.pages.push_back(if length < draft.len() { Arc::from(&draft[..length]) } else { draft });
        }
    }

    fn remove(&mut self, range: Range<usize>) {
        self.pages.drain(range);
    }
}
