//! The memory of a layer on a GPU, and how it grows.

use super::{Error, Layer, refuse};
use crate::Stats;

impl Layer {
    /// Returns the position of a sequence's next token.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if the layer has no such sequence.
    pub fn next_position(&self, sequence: usize) -> Result<usize, Error> {
        self.sequence(sequence)?;
        Ok(self.sequences[sequence].state.next)
    }

    /// Returns the number of sequences, empty ones included.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Returns how many tokens fit in the pages of all sequences together.
    #[must_use]
    pub fn paged_capacity(&self) -> usize {
        self.owners.len() * self.config.page
    }

    /// Grows the pages to hold `tokens` tokens, all sequences together. A smaller number changes nothing.
    ///
    /// The pages move to new memory, so the old and the new memory exist together for a moment. Do not
    /// launch graphs that you captured from your own stream before.
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
    /// * [`Error::Unsupported`] while a captured [`Step`](super::Step) of this layer is alive, and for more
    ///   than 2²⁸ pages.
    /// * [`Error::Device`] if memory runs out.
    ///
    /// The layer is then as it was.
    pub fn grow(&mut self, tokens: usize) -> Result<(), Error> {
        let pages = tokens.div_ceil(self.config.page);
        if pages <= self.owners.len() {
            return Ok(());
        }
        if pages > 1 << 28 {
            return refuse("a layer on a GPU has at most 2^28 pages");
        }
        if !self.paged.grow(pages)? {
            return refuse(
                "a captured step uses this layer's pages: drop it, grow the layer, and capture again",
            );
        }
        self.owners.resize(pages, 0);
        Ok(())
    }

    /// Returns what a sequence holds, with bytes as on the GPU.
    ///
    /// Pages are a little longer than the CPU's and do not count outliers. Exact rows are f16. Pages that
    /// another sequence holds too count as shared.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if the layer has no such sequence.
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

    /// Checks whether [`truncate`](Self::truncate) would succeed, and changes nothing.
    ///
    /// # Errors
    /// [`crate::Error::Dropped`], [`crate::Error::Missing`].
    pub fn check_truncate(&self, sequence: usize, position: usize) -> Result<(), Error> {
        self.sequence(sequence)?;
        self.sequences[sequence].standing(&self.config, |standing| standing.cut(position))?;
        Ok(())
    }

    /// Decides a sequence's balance from keys and queries of a prompt, as
    /// [`Layer::calibrate`](crate::cache::Layer::calibrate) does.
    ///
    /// Call it before a page has closed. It copies the sequence to the host and back.
    ///
    /// # Errors
    /// The errors of [`Layer::calibrate`](crate::cache::Layer::calibrate); [`crate::Error::Missing`],
    /// [`Error::Device`].
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
