//! Pages of cells on a GPU, for engines that place tokens themselves.
//!
//! [`octaplex::cells`](crate::cells) has the same on the CPU, and says what cells and pages are. Here keys and values of a
//! layer lie together, and all layers of a cache have the same pages in the same places. So there are three parts:
//!
//! ```text
//! Book        on the host: which pages are open, which are closed, which rows stay exact
//! CellPlan    the same on the GPU, for kernels
//! CellLayer   keys and values of one layer
//! ```
//!
//! A closed page has the bytes that [`CellPages`](crate::cells::CellPages) has if all its cells are coded and if balance and
//! prefix centre are equal.

mod book;

use super::{Error, open_front, refuse, tables};
use crate::backend::Kernels;
use crate::cache::layout::Layout;
use crate::page::{DEVIATIONS, Deciding, FEW};
use crate::{Backend, LayerConfig};
use alloc::vec;
use alloc::vec::Vec;
use octaplex_arch::Float;
use octaplex_device::{CellPool, Device, WIDTHS};

pub use crate::page::PAGE;
pub use book::{Book, Settled};
pub use octaplex_device::{Address, Area, CellAttention, CellPlan, MOST_QUERIES, Scratch, Write};

/// Pages that decide the balance, at most.
const DECIDING: usize = 8;

/// Keys and values of one layer in cells on a GPU.
#[derive(Debug)]
pub struct CellLayer {
    config: LayerConfig,
    layout: Layout,
    backend: Kernels,
    pool: CellPool,
    /// \[kv heads]\[balance, prefix centre]\[width].
    front: Vec<f32>,
    decided: bool,
}

impl CellLayer {
    /// Allocates slots for `pages` pages of 64 cells, and places for `exact` exact rows. Of the configuration, only heads,
    /// widths, codecs, number of the layer, balance and centre count.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for codecs and widths without GPU kernels; [`Error::Library`] for impossible configurations;
    /// [`Error::Device`] if memory runs out.
    pub fn new(device: &Device, config: &LayerConfig, pages: usize, exact: usize) -> Result<Self, Error> {
        let config = config.page(PAGE);
        config.check()?;
        if config.key_dim != config.value_dim || !WIDTHS.contains(&config.key_dim) {
            return refuse("GPUs need keys and values of the same width: 64, 80, 96, 128, 192 or 256");
        }
        if config.kv_heads > 1 << 10 || pages == 0 || pages > 1 << 24 || exact == 0 || exact > 1 << 20 {
            return refuse("cells on a GPU have at most 1,024 key/value heads, and 2^24 pages");
        }
        if !tables::are_encoded(&config) {
            return refuse("the CPU encodes pages of these codecs, and cells on a GPU need kernels for it");
        }
        let layout = Layout::new(&config);
        let tables = (tables::of_keys(&config)?, tables::of_values(&config)?);
        let (book, thresholds, unit) = tables::centre(layout.keys.coded_width())?;
        let shape = (config.key_dim, config.kv_heads, layout.centre_bytes > 0);
        let steps = crate::page::scales();
        let pool = CellPool::new(device, shape, (pages, exact), tables, &steps, (&book, &thresholds, unit))?;
        let front = open_front(&layout);
        pool.set_front(&front)?;
        let decided = layout.balance.is_none() && layout.prefix(0).is_empty();
        Ok(Self { config, layout, backend: Backend::detect().kernels(), pool, front, decided })
    }

    /// Compiles the kernels that these layers and their plan lack, side by side. Then [`prepare`](Self::prepare) compiles
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn compile(device: &Device, layers: &[&Self]) -> Result<(), Error> {
        let pools: Vec<&CellPool> = layers.iter().map(|layer| &layer.pool).collect();
        Ok(CellPool::compile(device, &pools)?)
    }

    /// Compiles kernels and allocates the memory of steps. Layers in `like` lend theirs if they have the same codecs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless the query heads are a multiple of the key/value heads; [`Error::Device`].
    pub fn prepare(&mut self, query_heads: usize, like: &[&Self]) -> Result<(), Error> {
        if query_heads == 0 || !query_heads.is_multiple_of(self.config.kv_heads) || query_heads >= 1 << 16 {
            return refuse("the number of query heads is no multiple of the number of key/value heads");
        }
        let like: Vec<&CellPool> = like.iter().map(|layer| &layer.pool).collect();
        Ok(self.pool.prepare(query_heads, &like)?)
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &LayerConfig {
        &self.config
    }

    /// Returns the bytes of slots and places.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// Returns the kernels' side of this layer.
    pub fn pool(&mut self) -> &mut CellPool {
        &mut self.pool
    }

    /// Forgets balance and prefix centre. All pages must be empty.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn clear(&mut self) -> Result<(), Error> {
        self.front = open_front(&self.layout);
        self.decided = self.layout.balance.is_none() && self.layout.prefix(0).is_empty();
        Ok(self.pool.set_front(&self.front)?)
    }

    /// Copies rows of an area to places, and encodes pages of it, as a [`Book`] says and
    /// [`CellPlan::set_closing`] was told. The first pages that close decide balance and prefix centre.
    ///
    /// [`CellPlan::take_lost`] says which cells could not be held, for example because a value is not finite.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn settle(&mut self, plan: &CellPlan, settled: &Settled, area: &Area) -> Result<(), Error> {
        if !self.decided && !settled.close.is_empty() {
            self.decide(settled, area)?;
        }
        Ok(self.pool.close(plan, area)?)
    }

    /// Returns the bytes of slots and places of a layer of this configuration.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for codecs and widths without GPU kernels; [`Error::Library`].
    pub fn bytes_of(config: &LayerConfig, pages: usize, exact: usize) -> Result<usize, Error> {
        let config = config.page(PAGE);
        config.check()?;
        if !WIDTHS.contains(&config.key_dim) {
            return refuse("GPUs need keys and values of the same width: 64, 80, 96, 128, 192 or 256");
        }
        let layout = Layout::new(&config);
        let tables = (tables::of_keys(&config)?, tables::of_values(&config)?);
        let shape = (config.key_dim, config.kv_heads, layout.centre_bytes > 0);
        Ok(CellPool::bytes_of(shape, (pages, exact), &tables))
    }

    /// Decides balance and prefix centre of each head from the pages that were open, as
    /// [`CellPages`](crate::cells::CellPages) does without queries.
    fn decide(&mut self, settled: &Settled, area: &Area) -> Result<(), Error> {
        let (dim, heads) = (self.config.key_dim, self.config.kv_heads);
        let pages = &settled.sample[..settled.sample.len().min(DECIDING)];
        // As in `CellPages`: too few rows show no outlying value, so their pages count only where the others are not enough.
        let deviations = |least: u32| {
            let rows = pages.iter().map(|(_, coded)| coded.count_ones()).filter(|rows| *rows >= least);
            rows.map(|rows| rows.saturating_sub(1)).sum::<u32>()
        };
        let least = if deviations(FEW as u32) >= DEVIATIONS as u32 { FEW } else { 0 };
        let mut sides = Vec::new();
        for (page, coded) in pages {
            let cells = *page as usize * PAGE..(*page as usize + 1) * PAGE;
            sides.push((*coded, self.pool.read(area, false, cells)?));
        }
        let mut front = open_front(&self.layout);
        let (backend, kind) = (self.backend, self.layout.balance);
        let mut memory = vec![0.0; PAGE * dim];
        for (head, front) in front.chunks_exact_mut(2 * dim).enumerate() {
            let (balance, prefix) = front.split_at_mut(dim);
            let mut read = |page: usize, rows: &mut [f32]| {
                let ((coded, bytes), mut count) = (&sides[page], 0);
                for cell in (0..PAGE).filter(|cell| coded >> cell & 1 == 1) {
                    let (row, bytes) =
                        (&mut rows[count * dim..][..dim], &bytes[2 * (cell * heads + head) * dim..]);
                    backend.decode_floats(Float::F16, &bytes[..2 * dim], row);
                    count += usize::from(row.iter().all(|x| x.is_finite()));
                }
                if count < least { 0 } else { count * dim }
            };
            let pages = sides.len();
            let mut deciding = Deciding { backend, kind, pages, rows: &mut memory, read: &mut read };
            deciding.balance(&[], balance);
            // A centre that f16 cannot hold stays zero.
            if !self.layout.prefix(head).is_empty() {
                let _ = deciding.centre(usize::MAX, balance, prefix);
            }
        }
        self.pool.set_front(&front)?;
        (self.front, self.decided) = (front, true);
        Ok(())
    }
}
