//! The two kinds of memory that a layer lives in: the caller's bytes, and pages on the heap that forks share.

use super::layout::Layout;
#[cfg(feature = "alloc")]
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
    /// Number of pages.
    #[doc(hidden)]
    fn pages(&self) -> usize;
    #[doc(hidden)]
    fn page(&self, index: usize) -> &[u8];
    /// Whether another fork holds the page as well.
    #[doc(hidden)]
    fn is_shared(&self, _index: usize) -> bool {
        false
    }
    /// Pages that can be written before some are removed.
    #[doc(hidden)]
    fn free(&self) -> usize;
    /// The front; and the memory of page `pages() + index`, which is no part of the cache until it is committed.
    /// `index` is below [`free`](Self::free).
    #[doc(hidden)]
    fn front_and_draft(&mut self, index: usize) -> (&[u8], &mut [u8]);
    /// Adds the first `count` drafts, and forgets the others.
    #[doc(hidden)]
    fn commit(&mut self, count: usize);
    /// Removes pages.
    #[doc(hidden)]
    fn remove(&mut self, range: Range<usize>);
}

/// Stores a layer in the caller's memory: `&mut [u8]`, an array, a `Vec`.
#[derive(Debug)]
pub struct Fixed<S> {
    bytes: S,
    front: usize,
    page: usize,
    slots: usize,
    /// The slot of the first page; the others follow in a circle.
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

/// Asks for memory and gives it back. A configuration may ask for any amount, and a failed allocation would end the program.
/// The allocation that follows stays `vec![0; n]`, whose pages the system provides as they are used.
#[cfg(feature = "alloc")]
pub(crate) fn check_memory(what: &'static str, bytes: usize) -> Result<(), Error> {
    let mut memory = Vec::<u8>::new();
    let given = memory.try_reserve_exact(bytes);
    core::hint::black_box(&memory); // or the compiler removes an allocation that nobody uses
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
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn new(layout: &Layout) -> Result<Self, Error> {
        check_memory("the exact tokens of a layer", layout.front_bytes)?;
        Ok(Self {
            front: vec![0; layout.front_bytes],
            layout: *layout,
            pages: VecDeque::new(),
            drafts: Vec::new(),
        })
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
