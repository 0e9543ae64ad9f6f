//! What a layer on a GPU holds, and room for more.

use super::{Error, Layer, refuse};
use crate::Stats;

impl Layer {
    /// The position of a sequence's next token.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] for a number that is too high.
    pub fn next_position(&self, sequence: usize) -> Result<usize, Error> {
        self.sequence(sequence)?;
        Ok(self.sequences[sequence].state.next)
    }

    /// How many sequences there are, empty ones included.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// How many tokens have room in pages, all sequences together.
    #[must_use]
    pub fn paged_capacity(&self) -> usize {
        self.owners.len() * self.config.page
    }

    /// Makes room for `tokens` in pages, all sequences together. Less than there is changes nothing.
    ///
    /// The pages move to new memory, so both are there for a moment. What was captured from a stream of the caller's before must not
    /// be launched any more.
    ///
    /// ```no_run
    /// use octaplex::{LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(1, 64, 100_000), 1, 4096)?;
    /// layer.append(0, &[0.5; 4000 * 64], &[0.5; 4000 * 64])?;
    /// layer.grow(8192)?;
    /// assert_eq!(layer.paged_capacity(), 8192);
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] while a captured [`Step`](super::Step) of this layer is alive, and for 2²⁸ pages and more; [`Error::Device`] where there is
    /// not enough memory. The layer is then as it was.
    pub fn grow(&mut self, tokens: usize) -> Result<(), Error> {
        let pages = tokens.div_ceil(self.config.page);
        if pages <= self.owners.len() {
            return Ok(());
        }
        if pages > 1 << 28 {
            return refuse("a layer on a GPU has at most 2^28 pages");
        }
        if !self.paged.grow(pages)? {
            return refuse("a captured step uses this layer's pages: drop it, make room, and capture again");
        }
        self.owners.resize(pages, 0);
        Ok(())
    }

    /// What a sequence holds. Bytes are those on the GPU: pages a little longer than the CPU's (outliers not counted), exact rows in f16.
    /// Pages that another sequence holds as well count as shared.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] for a number that is too high.
    pub fn stats(&self, sequence: usize) -> Result<Stats, Error> {
        self.sequence(sequence)?;
        let (held, layout, dim) = (&self.sequences[sequence], &self.layout, self.config.key_dim);
        let (pages, state, heads) = (&held.sequence.pages, &held.state, self.config.kv_heads);
        let exact = held.sequence.sinks + state.in_ring();
        let tokens = held.sequence.exact + pages.len() * self.config.page;
        let each = self.gpu_page_bytes();
        let shared = pages.iter().filter(|page| self.owners[**page as usize] > 1).count();
        let balanced = held.balances(dim).filter(|(balance, _)| balance.iter().any(|s| s.abs() != 1.0));
        Ok(Stats {
            tokens,
            paged_tokens: pages.len() * self.config.page,
            exact_tokens: exact,
            next_position: state.next,
            evicted_tokens: state.evicted,
            decoded_tokens: state.decoded,
            bytes: exact * heads * 4 * dim + pages.len() * each + 4 * held.front.len(),
            paged_bytes: pages.len() * each,
            shared_bytes: shared * each,
            values: tokens * heads * (layout.key_dim + layout.value_dim),
            balanced_heads: balanced.count(),
        })
    }

    /// Whether [`truncate`](Self::truncate) would do its work.
    ///
    /// # Errors
    /// [`crate::Error::Dropped`], [`crate::Error::Missing`].
    pub fn check_truncate(&self, sequence: usize, position: usize) -> Result<(), Error> {
        self.sequence(sequence)?;
        self.sequences[sequence].standing(&self.config, |standing| standing.cut(position))?;
        Ok(())
    }

    /// Decides a sequence's balance from keys and queries of a prompt, as [`Layer::calibrate`](crate::cache::Layer::calibrate) does: before a page has
    /// closed. What the sequence holds passes through the host.
    ///
    /// # Errors
    /// As [`Layer::calibrate`](crate::cache::Layer::calibrate); [`crate::Error::Missing`], [`Error::Device`].
    pub fn calibrate(&mut self, sequence: usize, keys: &[f32], queries: &[f32]) -> Result<(), Error> {
        self.sequence(sequence)?;
        if self.sequences[sequence].state.has_closed(&self.layout) {
            return Err(crate::Error::Unsupported {
                why: "the balance is decided: keys are encoded with it; calibrate before the first page closes",
            }
            .into());
        }
        let mut layer = self.download(sequence)?;
        layer.calibrate(keys, queries)?;
        self.upload(sequence, &layer)
    }
}
