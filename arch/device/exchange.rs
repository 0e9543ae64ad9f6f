//! Copies pages between the CPU's format and the GPU: `kernels/exchange.cuh`.

use super::failure::Failure;
use super::layout::Exchange;
use super::lists::Outlier;
use super::paged::{CROSSING, Paged, THREADS};
use alloc::vec::Vec;

/// Numbers of the kernels `upload` and `download` among the names.
const UPLOAD: usize = 0;
const DOWNLOAD: usize = 1;

impl Paged {
    fn exchange(&self) -> Exchange {
        Exchange {
            pages: self.crossing.address(),
            pool: self.held.pool.address(),
            slots: self.crossing_slots.address(),
            steps: self.steps.address(),
            book: self.book.address(),
            page_bytes: self.page_bytes() as u64,
            kv_heads: self.shape.kv_heads as u32,
            page_tokens: self.shape.page_tokens as u32,
            outliers: self.crossing_lists.address(),
        }
    }

    fn cross(&mut self, kernel: usize, pages: &[u32]) -> Result<(), Failure> {
        let slots: Vec<u32> = pages.iter().flat_map(|page| self.slots_of(*page)).collect();
        self.crossing_slots.write(0, &slots)?;
        let kernels = self.kernels(0)?;
        let grid = [slots.len(), self.shape.kv_heads, 1];
        // SAFETY: these kernels take an Exchange. At most `CROSSING` pages fit the buffers, and slots are
        // below the pool's.
        unsafe { kernels.launch(self.device.stream(), kernel, grid, THREADS, false, &self.exchange()) }?;
        self.device.synchronize()
    }

    /// Copies consecutive pages in the CPU's format to these places. `lists` has the outliers of each page,
    /// if the codecs have any.
    ///
    /// # Errors
    /// Errors of the compiler and the driver; [`Failure::Memory`]. The contents of the places are then
    /// unspecified.
    ///
    /// # Panics
    /// Panics for places beyond the pool, for wrong numbers of bytes or lists, and for outliers outside of
    /// a page.
    pub fn upload(&mut self, pages: &[u32], bytes: &[u8], lists: &[Vec<Outlier>]) -> Result<(), Failure> {
        let each = self.page_bytes();
        assert_eq!(bytes.len(), pages.len() * each);
        let exact = self.shape.outliers_number() > 0;
        assert_eq!(lists.len(), if exact { pages.len() } else { 0 });
        for (number, (pages, bytes)) in pages.chunks(CROSSING).zip(bytes.chunks(CROSSING * each)).enumerate()
        {
            if exact {
                let words = self.keep_outliers(pages, &lists[number * CROSSING..][..pages.len()])?;
                self.crossing_lists.write(0, &words)?;
            }
            self.crossing.write(0, bytes)?;
            self.cross(UPLOAD, pages)?;
        }
        Ok(())
    }

    /// Copies pages from these places in the CPU's format: bit-exact with what was uploaded.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    ///
    /// # Panics
    /// As [`upload`](Self::upload).
    pub fn download(&mut self, pages: &[u32], bytes: &mut [u8]) -> Result<(), Failure> {
        let each = self.page_bytes();
        assert_eq!(bytes.len(), pages.len() * each);
        for (pages, bytes) in pages.chunks(CROSSING).zip(bytes.chunks_mut(CROSSING * each)) {
            self.cross(DOWNLOAD, pages)?;
            self.crossing.read(0, bytes)?;
        }
        Ok(())
    }
}
