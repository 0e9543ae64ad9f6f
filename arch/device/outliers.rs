//! Chunks of four values that pages keep exactly, in addition to their codes.
//!
//! They have their own memory. It grows piece by piece, so that addresses in captured steps stay valid.

use super::driver::Buffer;
use super::failure::Failure;
use super::lists::{Outlier, Run, WORDS, lists_of};
use super::paged::Paged;
use alloc::vec;
use alloc::vec::Vec;
use std::sync::{MutexGuard, PoisonError};

impl Paged {
    fn pieces(&self) -> MutexGuard<'_, Vec<Buffer<u32>>> {
        self.held.outliers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece of memory for at least `count` outliers.
    pub(super) fn add_outliers(&mut self, count: usize) -> Result<(), Failure> {
        if self.lists.runs.is_empty() {
            return Ok(());
        }
        let count = self.lists.each.max(count);
        let piece = Buffer::new(&self.device, count.saturating_mul(WORDS))?;
        self.pieces().push(piece);
        self.lists.add(count);
        Ok(())
    }

    /// Allocates `count` outliers, and adds a piece of memory if none has enough space.
    fn space_for(&mut self, count: usize) -> Result<(usize, usize), Failure> {
        if count == 0 {
            return Ok((0, 0));
        }
        if let Some(space) = self.lists.take(count) {
            return Ok(space);
        }
        self.add_outliers(count)?;
        match self.lists.take(count) {
            Some(space) => Ok(space),
            None => unreachable!("as much was added"),
        }
    }

    /// Copies outliers to the GPU, in place of those that these pages had. It returns the words that
    /// describe where they are.
    pub(super) fn keep_outliers(
        &mut self,
        pages: &[u32],
        lists: &[Vec<Outlier>],
    ) -> Result<Vec<u32>, Failure> {
        let (shape, mut all) = (self.shape, Vec::new());
        for (page, list) in pages.iter().zip(lists) {
            let is_of_page = |outlier: &Outlier| {
                let (token, head) = (usize::from(outlier.token), usize::from(outlier.head));
                let chunk = usize::from(outlier.chunk);
                let exact = shape.outliers[usize::from(outlier.of_value)];
                token < shape.page_tokens && head < shape.kv_heads && chunk < shape.dim / 4 && exact
            };
            assert!(list.iter().all(is_of_page) && (*page as usize) < shape.pages);
            let mut list = list.clone();
            list.sort_unstable_by_key(Outlier::order);
            self.lists.forget(*page);
            let (piece, first) = self.space_for(list.len())?;
            let address = self.pieces()[piece].address() + (4 * WORDS * first) as u64;
            let (words, counts) = lists_of(&list, &shape, address);
            self.lists.runs[*page as usize] = Some(Run { piece, first, counts });
            all.extend(words);
            let records: Vec<u32> = list.iter().flat_map(Outlier::words).collect();
            if !records.is_empty() {
                self.pieces()[piece].write(WORDS * first, &records)?;
            }
        }
        Ok(all)
    }

    /// Reads the outliers of a page, sorted by head, keys before values, then token and chunk.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for a place beyond the pool.
    pub fn outliers(&self, page: u32) -> Result<Vec<Outlier>, Failure> {
        assert!((page as usize) < self.shape.pages);
        let Some(run) = self.lists.runs.get(page as usize).and_then(Option::as_ref) else {
            return Ok(Vec::new());
        };
        let mut words = vec![0; WORDS * run.places().len()];
        self.pieces()[run.piece].read(WORDS * run.first, &mut words)?;
        let mut records = words.as_chunks::<WORDS>().0.iter();
        let mut list = Vec::with_capacity(records.len());
        for (side, count) in run.counts.iter().enumerate() {
            let (slot, head) = (side / 2 / self.shape.kv_heads, side / 2 % self.shape.kv_heads);
            let own = records.by_ref().take(usize::from(*count));
            list.extend(own.map(|words| Outlier::of_words(*words, slot, head, side % 2 == 1)));
        }
        list.sort_unstable();
        Ok(list)
    }

    /// Frees the outliers of a page that no sequence holds.
    pub fn release(&mut self, page: u32) {
        self.lists.forget(page);
    }
}
