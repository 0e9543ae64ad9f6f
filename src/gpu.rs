//! Caches on GPUs and attention on them: NVIDIA's with the feature `cuda`, AMD's with `hip`.
//!
//! Pages are bit-exact with the CPU's, and sequences move both ways. Attention is close to the CPU's, but
//! not bit-exact.
//!
//! Building needs neither CUDA nor ROCm. [`Device::new`] loads the driver. The first use of a kernel loads
//! the run-time compiler, NVRTC or hipRTC. [`Failure`] says what is missing. Compiling for the GPU takes
//! some seconds the first time. The result is kept in the user's cache folder (`OCTAPLEX_CACHE`, else the
//! system's).
//!
//! | you want | call |
//! |---|---|
//! | add tokens from the host | [`Layer::append`] |
//! | add tokens that lie on the GPU | [`Layer::append_on`]; [`Layer::append_step_on`] does not wait |
//! | move a sequence from or to a layer on the CPU | [`Layer::upload`], [`Layer::download`] |
//! | remove the newest tokens, or drop old ones | [`Layer::truncate`], [`Layer::evict`] |
//! | write and read snapshots in the CPU's format | [`Layer::save`], [`Layer::load`] |
//! | compute attention | [`Layer::attend`], [`Layer::attend_with`], [`Layer::attend_on`], [`Layer::attend_sequences_on`] |
//!
//! | codec | keys | values |
//! |---|---|---|
//! | [`turboquant`](crate::codecs::TurboQuantSpec), every number of levels, `rotation=wht` | yes | yes |
//! | [`trellis`](crate::codecs::TrellisSpec) | yes | yes |
//! | [`graded`](crate::codecs::GradedSpec) with 1, 2, 4, 8 or 16 centroids, at widths of 64, 128, 192 and 256 | yes | no |
//! | [`int`](crate::codecs::IntSpec), all bits, by token or group, also asymmetric and with outliers | yes | yes |
//! | [`octopus`](crate::codecs::OctopusSpec) with `bdir` up to 5 | yes | no |
//! | [`tq3_0`](crate::codecs::Tq3Spec), not at a width of 80 | yes | no |
//! | [`hqmq`](crate::codecs::HqmqSpec), also with outliers | yes | no |
//!
//! Widths are 64, 80, 96, 128, 192 and 256. Other codecs and widths return [`Error::Unsupported`].
//!
//! The CPU encodes pages with outliers, and of `trellis` with `scales` above 1, even if their tokens lie
//! on the GPU. An outlier takes 12 bytes on the GPU. A layer first allocates space for one outlier in 32 chunks of each side that has them (0.75
//! bits a value). It allocates more when a page needs more. If the GPU has no memory left, the call returns
//! [`Failure::Memory`] and leaves the layer as it was.
//!
//! AMD: octaplex has never run on an AMD GPU. The kernels compile for gfx900 and later. The host's side was
//! tested with stand-ins for AMD's libraries, on NVIDIA GPUs and on a CPU. AMD GPUs have 64 KB of shared
//! memory for a block of threads. If a decode step needs more, as at a width of 256, it returns
//! [`Failure::SharedMemory`].
//!
//! ```no_run
//! use octaplex::{LayerConfig, gpu};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = LayerConfig::new(2, 128, 4096);
//! let device = gpu::Device::new(0)?;
//! let mut layer = gpu::Layer::new(&device, &config, 1, 4096)?; // one sequence, pages for 4,096 tokens
//! let rows = vec![0.5; 2 * 1000 * 128]; // [heads][tokens][width]
//! layer.append(0, &rows, &rows)?;
//! layer.reserve(8)?; // 8 query heads; later steps do not allocate
//! let mut output = [0.0; 8 * 128];
//! layer.attend(&[0.1; 8 * 128], &mut output)?;
//! # Ok(())
//! # }
//! ```

mod append;
mod bias;
mod block;
pub mod cells;
mod engine;
mod error;
mod exchange;
mod graph;
mod outliers;
mod size;
mod step;
mod tables;

use crate::backend::Kernels;
use crate::cache::State;
use crate::cache::layout::Layout;
use crate::cache::window::Standing;
use crate::codec::{Codec, check_values};
use crate::math::inverse_sqrt;
use crate::random::Role;
use crate::{Attend, Backend, CodecSpec, LayerConfig};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use octaplex_device::{Attention, Paged, Queries, Sequence, Shape, WIDTHS};
use outliers::Apart;
use step::Stepped;

pub use error::Error;
pub use octaplex_arch::Float;
pub use octaplex_device::{
    CallerStream, Device, DeviceRows, DeviceSlice, Failure, Recording, Step, Vendor, on_compile,
};

/// Largest page table of one sequence, in pages of at least 64 tokens: 64 million tokens. A layer that
/// starts larger has a larger table.
const MOST_EACH: usize = 1 << 20;

/// Returns whether the call is more than a decode step.
fn is_block(options: &Attend) -> bool {
    options.queries.is_some_and(|queries| queries != 1) || options.position.is_some()
}

const fn refuse<T>(why: &'static str) -> Result<T, Error> {
    Err(Error::Unsupported { why })
}

/// One attention layer on a GPU, with one or more sequences.
///
/// ```text
/// tables   sequence 0: 4 0 7      sequence 1: 4 2          one entry for each page
///                      │ │ │                  │ │
/// pool     pages       0 1 2 3 4 5 6 7 …                   page 4 is shared: `fork`
/// exact    rows in f16 of each sequence: sinks, and a ring of the newest tokens
/// ```
#[derive(Debug)]
pub struct Layer {
    config: LayerConfig,
    layout: Layout,
    apart: Apart,
    /// Decides balances and checks rows.
    backend: Kernels,
    codecs: [Arc<dyn Codec>; 2],
    paged: Paged,
    sequences: Vec<Held>,
    /// The number of sequences that hold each page of the pool.
    owners: Vec<u32>,
    /// Entries in the page table of one sequence.
    pages_each: usize,
    query_heads: usize,
    /// Whether the GPU may have counted tokens that the host does not know.
    stepped: Stepped,
    /// Tokens that steps have added to each sequence since the last `settle`.
    pending: Vec<usize>,
}

/// A sequence: what the GPU knows, and what the host needs to continue, fork or save it.
#[derive(Clone, Debug)]
struct Held {
    /// The GPU's part of it.
    sequence: Sequence,
    /// The state of the equal layer on the CPU. Both rings hold the same rows in the same places.
    state: State,
    /// The position of each page's first token.
    positions: Vec<usize>,
    /// \[kv heads]\[balance, prefix centre]\[width]: ones and zeros until they are decided.
    front: Vec<f32>,
}

impl Held {
    /// Creates a sequence without tokens.
    fn empty(layout: &Layout) -> Self {
        let state = State::new(layout);
        let sequence = sequence_of(layout, &state, Vec::new());
        Self { sequence, state, positions: Vec::new(), front: open_front(layout) }
    }

    /// Enters another state and keeps the pages.
    fn enter(&mut self, layout: &Layout, state: State) {
        self.sequence = sequence_of(layout, &state, core::mem::take(&mut self.sequence.pages));
        self.state = state;
    }

    /// Calls `ask` with what a change would do.
    fn standing<T>(&self, config: &LayerConfig, ask: impl FnOnce(&Standing) -> T) -> T {
        let position = &|index: usize| self.positions[index];
        ask(&Standing { config, state: &self.state, pages: self.positions.len(), position })
    }

    /// Returns, for each head, the divisors of keys and the smallest magnitude among them.
    fn balances(&self, dim: usize) -> impl Iterator<Item = (&[f32], f32)> {
        self.front.chunks_exact(2 * dim).map(move |front| {
            let balance = &front[..dim];
            (balance, balance.iter().fold(f32::INFINITY, |least, s| least.min(s.abs())))
        })
    }
}

/// Describes a sequence in this state to the GPU.
fn sequence_of(layout: &Layout, state: &State, pages: Vec<u32>) -> Sequence {
    let sinks = state.next.min(layout.sinks);
    Sequence {
        pages,
        exact: sinks + state.window(),
        sinks,
        place: state.place_of(layout, state.start),
        next: state.next as u64,
        window_start: state.start as u64,
    }
}

/// Returns the front of a sequence without decided balances and prefix centres.
fn open_front(layout: &Layout) -> Vec<f32> {
    let dim = layout.key_dim;
    (0..layout.heads * 2 * dim).map(|i| if (i / dim).is_multiple_of(2) { 1.0 } else { 0.0 }).collect()
}

impl Layer {
    /// Creates a layer of `sequences` empty sequences with pages for `tokens` tokens.
    ///
    /// All sequences share the pages. Each sequence holds at most the configuration's `capacity` tokens.
    ///
    /// # Errors
    /// * [`Error::Unsupported`] for codecs and widths without GPU kernels.
    /// * [`Error::Library`] for impossible configurations.
    /// * [`Error::Device`] if memory runs out.
    pub fn new(
        device: &Device,
        config: &LayerConfig,
        sequences: usize,
        tokens: usize,
    ) -> Result<Self, Error> {
        config.check()?;
        if config.key_dim != config.value_dim || !WIDTHS.contains(&config.key_dim) {
            return refuse("GPUs need keys and values of the same width: 64, 80, 96, 128, 192 or 256");
        }
        if !(1..=1 << 12).contains(&sequences) || config.kv_heads > 1 << 10 {
            return refuse("a layer on a GPU takes 1 to 4,096 sequences and at most 1,024 key/value heads");
        }
        if config.recent_window > 1 << 14 {
            return refuse("a recent window on a GPU holds at most 16,384 tokens");
        }
        let layout = Layout::new(config);
        let apart = Apart::new(config, &layout);
        let (keys, values) = (tables::of_keys(config)?, tables::of_values(config)?);
        let backend = Backend::detect();
        let codec = |spec: CodecSpec, role| {
            spec.build_dyn(config.key_dim, backend, config.head_id(role)).map(Arc::<dyn Codec>::from)
        };
        let codecs = [codec(config.keys, Role::Keys)?, codec(config.values, Role::Values)?];
        let (pages, pages_each) = (tokens.div_ceil(config.page), config.capacity.div_ceil(config.page));
        if pages.max(pages_each) > 1 << 28 {
            return refuse("a layer on a GPU has at most 2^28 pages");
        }
        // The table has entries for all pages that the layer may grow to, up to a limit.
        let pages_each = pages_each.min(pages.max(MOST_EACH));
        let shape = Shape {
            dim: config.key_dim,
            kv_heads: config.kv_heads,
            page_tokens: config.page,
            centres: layout.centre_bytes > 0,
            sequences,
            pages,
            pages_each,
            exact: config.sink_tokens + config.recent_window + config.page,
            sinks: config.sink_tokens,
            ring: layout.ring,
            outliers: apart.sides(),
        };
        let (book, thresholds, unit) = tables::centre(layout.keys.coded_width())?;
        let steps = crate::page::scales();
        let paged = Paged::new(device, shape, (keys, values), &steps, (&book, &thresholds, unit))?;
        crate::Error::expect_length("bytes of a page", apart.page_bytes(), paged.page_bytes())?;
        let mut layer = Self {
            config: *config,
            layout,
            apart,
            backend: backend.kernels(),
            codecs,
            paged,
            sequences: vec![Held::empty(&layout); sequences],
            owners: vec![0; pages],
            pages_each,
            query_heads: 0,
            stepped: Stepped::Never,
            pending: vec![0; sequences],
        };
        (0..sequences).try_for_each(|number| layer.clear(number))?;
        Ok(layer)
    }

    /// Returns the configuration that the layer was created with.
    #[must_use]
    pub fn config(&self) -> &LayerConfig {
        &self.config
    }

    /// Returns how many tokens a sequence holds: in sinks, pages and window.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if the layer has no such sequence.
    pub fn tokens(&self, sequence: usize) -> Result<usize, Error> {
        let held = self.sequence(sequence)?;
        Ok(held.exact + held.pages.len() * self.config.page)
    }

    /// Returns how many pages a sequence holds.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if the layer has no such sequence.
    pub fn pages(&self, sequence: usize) -> Result<usize, Error> {
        Ok(self.sequence(sequence)?.pages.len())
    }

    /// Returns the bytes of one page on the GPU, without outliers.
    ///
    /// A page takes a little more than on the CPU. At a width of 80 it takes a quarter to a third more,
    /// because the GPU stores rows of 96 coordinates. Each outlier takes 12 more bytes in a separate
    /// buffer.
    #[must_use]
    pub fn gpu_page_bytes(&self) -> usize {
        self.paged.gpu_page_bytes()
    }

    fn sequence(&self, number: usize) -> Result<&Sequence, Error> {
        let count = self.sequences.len();
        let held =
            self.sequences.get(number).ok_or(crate::Error::Missing { what: "sequence", number, count })?;
        Ok(&held.sequence)
    }

    /// Returns `needed` free places of the pool. It first releases the outliers of all free places. Evicted
    /// pages and failed calls leave such outliers.
    fn free(&mut self, needed: usize) -> Result<Vec<u32>, Error> {
        let free = self.owners.iter().zip(0u32..).filter(|(owners, _)| **owners == 0).map(|(_, place)| place);
        let free: Vec<u32> = free.collect();
        free.iter().for_each(|place| self.paged.release(*place));
        let missing = Error::Full { needed, free: free.len() };
        free.get(..needed).map(<[u32]>::to_vec).ok_or(missing)
    }

    /// Replaces a sequence. The pages and exact tokens of the new one are already on the GPU.
    fn place(&mut self, number: usize, held: Held) -> Result<(), Error> {
        self.paged.set(number, &held.sequence, &held.front)?;
        held.sequence.pages.iter().for_each(|page| self.owners[*page as usize] += 1);
        let old = core::mem::replace(&mut self.sequences[number], held);
        old.sequence.pages.iter().for_each(|page| self.owners[*page as usize] -= 1);
        Ok(())
    }

    /// Makes sequence `to` a copy of `from`. They share pages; exact tokens are copied.
    ///
    /// ```no_run
    /// use octaplex::{LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(1, 64, 4096), 2, 8192)?;
    /// layer.append(0, &[0.5; 1000 * 64], &[0.5; 1000 * 64])?;
    /// layer.fork(0, 1)?;
    /// assert_eq!(layer.stats(1)?.shared_bytes, layer.stats(1)?.paged_bytes);
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Missing`], [`Error::Device`].
    pub fn fork(&mut self, from: usize, to: usize) -> Result<(), Error> {
        self.sequence(to)?;
        self.sequence(from)?;
        self.settle()?;
        self.paged.copy_exact(from, to)?;
        self.place(to, self.sequences[from].clone())
    }

    /// Removes all tokens of a sequence. Pages that no other sequence holds become free.
    ///
    /// # Errors
    /// [`crate::Error::Missing`], [`Error::Device`].
    pub fn clear(&mut self, sequence: usize) -> Result<(), Error> {
        self.sequence(sequence)?;
        self.settle_without(Some(sequence))?;
        self.place(sequence, Held::empty(&self.layout))
    }

    /// Copies a page's bytes from the GPU, as the CPU stores them.
    ///
    /// Pages with outliers have different lengths. If `bytes` has another length than the page,
    /// [`crate::Error::Length`] contains the page's length.
    ///
    /// # Errors
    /// [`crate::Error::Missing`], [`crate::Error::Length`], [`Error::Device`].
    pub fn page(&mut self, sequence: usize, index: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let pages = &self.sequence(sequence)?.pages;
        let count = pages.len();
        let missing = crate::Error::Missing { what: "page", number: index, count };
        let place = *pages.get(index).ok_or(missing)?;
        let page = self.whole_page(place)?;
        crate::Error::expect_length("bytes of a page", page.len(), bytes.len())?;
        bytes.copy_from_slice(&page);
        Ok(())
    }

    /// Allocates the memory of decode steps with `query_heads` query heads, and compiles their kernels.
    ///
    /// Later steps do not allocate. The first step with a soft cap, or with a window that the configuration
    /// does not have, compiles further kernels.
    ///
    /// # Errors
    /// [`crate::Error::Heads`] unless `query_heads` is a multiple of the key/value heads;
    /// [`Error::Device`].
    pub fn reserve(&mut self, query_heads: usize) -> Result<(), Error> {
        self.reserve_splits(query_heads, None)
    }

    /// Does the same with `splits` parts of a sequence's pages in parallel. `None` chooses as many parts as
    /// fill the GPU.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn reserve_splits(&mut self, query_heads: usize, splits: Option<usize>) -> Result<(), Error> {
        self.check_query_heads(query_heads)?;
        let kv_heads = self.config.kv_heads;
        if query_heads == 0 || !query_heads.is_multiple_of(kv_heads) || query_heads > 1 << 14 {
            return Err(crate::Error::Heads { queries: query_heads, kv_heads }.into());
        }
        self.paged.reserve(query_heads, splits)?;
        self.query_heads = query_heads;
        let usual = self.attention(&Attend::default())?;
        Ok(self.paged.prepare(&usual)?)
    }

    /// Checks the number of query heads, if the configuration has one.
    fn check_query_heads(&self, query_heads: usize) -> Result<(), Error> {
        match self.config.query_heads {
            Some(expected) => Ok(crate::Error::expect_length("query heads", expected, query_heads)?),
            None => Ok(()),
        }
    }

    /// Returns the options that a step uses.
    fn attention(&self, options: &Attend) -> Result<Attention, Error> {
        if options.first_head != 0 || options.heads.is_some() {
            return refuse("a GPU attends with all heads at once: leave out `first_head` and `heads`");
        }
        let scale = options.scale.unwrap_or_else(|| inverse_sqrt(self.config.key_dim));
        crate::attention::check_options(options)?;
        let window = options.window.or(self.config.sliding_window).map_or(0, |window| window as u64);
        Ok(Attention {
            scale,
            soft_cap: options.soft_cap.unwrap_or(0.0),
            window,
            keep_sinks: options.keep_sinks,
            sink_logits: !options.sink_logits.is_empty(),
            biased: !options.bias.is_empty(),
        })
    }

    /// Checks queries on the host, and that at least one sequence has tokens. Only the GPU knows the tokens
    /// of steps that are not settled.
    fn check_queries(&self, queries: Queries, options: &Attend, of: Range<usize>) -> Result<(), Error> {
        let scale = options.scale.unwrap_or(1.0).abs();
        let limit = crate::cache::view::MAX_QUERY;
        let mut unknown = false;
        match queries {
            Queries::Host(queries) => check_values(queries, if scale > 1.0 { limit / scale } else { limit })?,
            // A graph may append to an empty sequence at any time, unless a block has settled its tokens.
            Queries::Device(_) => unknown = self.stepped == Stepped::Captured && !is_block(options),
        }
        let empty = |number: usize| {
            let held = &self.sequences[number].sequence;
            held.exact == 0 && held.pages.is_empty() && self.pending[number] == 0
        };
        if !unknown && of.into_iter().all(empty) {
            return Err(crate::Error::Empty.into());
        }
        Ok(())
    }

    /// Checks what a step of some sequences reads, and writes sink logits and biases to the GPU.
    fn check_step(&mut self, queries: Queries, options: &Attend, of: Range<usize>) -> Result<(), Error> {
        if self.query_heads == 0 {
            return refuse("the number of query heads is unknown: call `reserve` before a step");
        }
        let (dim, heads) = (self.config.key_dim, self.query_heads);
        crate::Error::expect_length("values of queries", of.len() * heads * dim, queries.len())?;
        self.check_queries(queries, options, of.clone())?;
        if !options.sink_logits.is_empty() {
            crate::Error::expect_length("sink logits", heads, options.sink_logits.len())?;
            check_values(options.sink_logits, f32::INFINITY)?;
            self.paged.set_sink_logits(options.sink_logits)?;
        }
        self.set_bias(options, heads, of)
    }

    /// Checks queries on the host, and copies them to the GPU.
    fn set(&mut self, queries: &[f32], options: &Attend) -> Result<(), Error> {
        let all = 0..self.sequences.len();
        self.check_step(Queries::Host(queries), options, all)?;
        Ok(self.paged.set_queries(queries)?)
    }

    /// Computes attention of one query for each query head of each sequence, at the sequence's newest token.
    ///
    /// `queries` and `output` are \[sequences]\[query heads]\[width]. The output of an empty sequence is
    /// zeros. [`attend_with`](Self::attend_with) has options and takes blocks of queries.
    ///
    /// The reference is attention in f64 on the decoded pages. The output is within 3·10⁻⁴ of it, relative
    /// to a head's norm. This is closer than [`Layer::attend`](crate::cache::Layer::attend), because
    /// queries have 16 bits here and 8 bits there.
    ///
    /// Calls on one GPU are bit-exact to each other. The output differs from the CPU's, and from that of a
    /// GPU with another number of multiprocessors.
    ///
    /// # Errors
    /// * [`Error::Unsupported`] before [`reserve`](Self::reserve).
    /// * [`Error::Library`] as [`Layer::attend`](crate::cache::Layer::attend) returns it.
    /// * [`Error::Device`]; the output is then unspecified.
    pub fn attend(&mut self, queries: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.attend_with(queries, &Attend::default(), output)
    }

    /// Computes attention with options: scale, soft cap, window, biases, sink logits, blocks of queries.
    ///
    /// More than one of [`queries`](Attend::queries), or a [`position`](Attend::position), makes the call a
    /// *block*, as in [`Layer::attend_with`](crate::cache::Layer::attend_with). All sequences then have the
    /// same options, and the shape is \[sequences]\[query heads]\[queries]\[width].
    ///
    /// A block decodes tokens to f16 and multiplies them with all queries. It decodes 64 to 32,768 tokens
    /// of a sequence at a time: the more heads and sequences, the fewer. It allocates memory during the
    /// call and does not need [`reserve`](Self::reserve).
    ///
    /// A block rounds queries, keys, values and weights to f16, and sums in f32. At the default scale the
    /// output is within 2.7·10⁻³ of f64.
    ///
    /// [`bias`](Attend::bias) has one row for each sequence, or one for each of its query heads, sequence
    /// after sequence. A row has one value for each position of its sequence. A bias of -7·10²⁹ or less
    /// hides a token, as -∞ does. Biases take memory, which grows with their number.
    ///
    /// ```no_run
    /// use octaplex::{Attend, LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(1, 64, 4096), 1, 4096)?;
    /// layer.append(0, &[0.5; 300 * 64], &[0.5; 300 * 64])?;
    /// let mut output = [0.0; 4 * 300 * 64]; // 4 query heads, 300 queries
    /// layer.attend_with(&[0.1; 4 * 300 * 64], &Attend::default().queries(300), &mut output)?;
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend). [`Error::Unsupported`] for `first_head` and `heads`: they
    /// let CPU threads share the heads of one token, which a GPU does not need.
    pub fn attend_with(
        &mut self,
        queries: &[f32],
        options: &Attend,
        output: &mut [f32],
    ) -> Result<(), Error> {
        self.settle()?;
        if is_block(options) {
            return self.attend_block(queries, options, output);
        }
        let attention = self.attention(options)?;
        crate::Error::expect_length("values of the output", queries.len(), output.len())?;
        self.set(queries, options)?;
        self.paged.attend(&attention)?;
        Ok(self.paged.output(output)?)
    }
}
