//! Caches on GPUs and attention on them: NVIDIA's with the feature `cuda`, AMD's with `hip`.
//!
//! Pages are those of the CPU, byte by byte, and go both ways. Attention is close to the CPU's, and not bit-exact.
//!
//! Nothing of CUDA or ROCm is needed to build. The driver and its run-time compiler, NVRTC or hipRTC, are looked for when a
//! [`Device`] is made and its kernels are first used, and [`Failure`] says what is missing. Kernels are compiled for the GPU
//! that is found, which takes some seconds the first time. They are kept in the user's cache folder (`OCTAPLEX_CACHE`, else
//! the system's).
//!
//! | you want | call |
//! |---|---|
//! | add tokens from the host | [`Layer::append`] |
//! | add tokens that lie on the GPU | [`Layer::append_on`], and [`Layer::append_step_on`], which waits for nothing |
//! | move a sequence from or to a layer on the CPU | [`Layer::upload`], [`Layer::download`] |
//! | take tokens back, drop old ones | [`Layer::truncate`], [`Layer::evict`] |
//! | snapshots, which are the CPU's | [`Layer::save`], [`Layer::load`] |
//! | attention | [`Layer::attend`], [`Layer::attend_with`], [`Layer::attend_on`], [`Layer::attend_sequences_on`] |
//!
//! | codec | keys | values |
//! |---|---|---|
//! | [`turboquant`](crate::codecs::TurboQuantSpec), every number of levels, `rotation=wht` | yes | yes |
//! | [`trellis`](crate::codecs::TrellisSpec) | yes | yes |
//! | [`graded`](crate::codecs::GradedSpec) of 1, 2, 4, 8 or 16 centroids, at widths of 64, 128, 192 and 256 | yes | no |
//! | [`int`](crate::codecs::IntSpec), all bits, a token or a group, also asymmetric and with outliers | yes | yes |
//! | [`octopus`](crate::codecs::OctopusSpec) with `bdir` up to 5 | yes | no |
//! | [`tq3_0`](crate::codecs::Tq3Spec), not at a width of 80 | yes | no |
//! | [`hqmq`](crate::codecs::HqmqSpec), also with outliers | yes | no |
//!
//! Widths are 64, 80, 96, 128, 192 and 256. Other codecs and widths are an [`Error::Unsupported`].
//!
//! The CPU encodes pages with outliers, also of tokens that lie on the GPU. An outlier takes 12 bytes on the GPU. A layer
//! begins with room for one in 32 of all chunks of such a side (0.75 bits a value), and takes more when a page finds none:
//! [`Failure::Memory`] if the GPU has none left, with the layer as it was.
//!
//! AMD: it has never run on an AMD GPU. The kernels compile for gfx900 and later, and the host's side was tried over
//! stand-ins for AMD's libraries, on NVIDIA's GPUs and on a CPU. Those GPUs have 64 KB of shared memory for a block of threads.
//! Codecs and widths whose decode steps need more, such as a width of 256, are [`Failure::SharedMemory`].
//!
//! ```no_run
//! use octaplex::{LayerConfig, gpu};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = LayerConfig::new(2, 128, 4096);
//! let device = gpu::Device::new(0)?;
//! let mut layer = gpu::Layer::new(&device, &config, 1, 4096)?; // one sequence, 4,096 tokens in pages
//! let rows = vec![0.5; 2 * 1000 * 128]; // [heads][tokens][width]
//! layer.append(0, &rows, &rows)?;
//! layer.reserve(8)?; // query heads; steps allocate nothing from here on
//! let mut output = [0.0; 8 * 128];
//! layer.attend(&[0.1; 8 * 128], &mut output)?;
//! # Ok(())
//! # }
//! ```

mod append;
mod bias;
mod block;
mod engine;
mod exchange;
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
use core::fmt;
use core::ops::Range;
use octaplex_arch::device::{Attention, Paged, Queries, Sequence, Shape, WIDTHS};
use outliers::Apart;
use step::Stepped;

pub use octaplex_arch::Float;
pub use octaplex_arch::device::{CallerStream, Device, DeviceRows, DeviceSlice, Failure, Step, Vendor};

/// Why a GPU did not do what it was asked. The layer on the GPU is as it was; after [`Device`](Self::Device) the sequence that was changed
/// is to be [cleared](Layer::clear).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The driver, the compiler or the GPU.
    Device(Failure),
    /// What the library refuses on a CPU as well.
    Library(crate::Error),
    /// What the GPU's kernels do not do yet.
    Unsupported {
        /// What, and what to do instead.
        why: &'static str,
    },
    /// No room for so many pages more.
    Full {
        /// Pages that were to come.
        needed: usize,
        /// Pages that are free.
        free: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(failure) => failure.fmt(f),
            Self::Library(error) => error.fmt(f),
            Self::Unsupported { why } => f.write_str(why),
            Self::Full { needed, free } => {
                write!(
                    f,
                    "{needed} pages more, and {free} are free: clear a sequence, or make room for more tokens"
                )
            }
        }
    }
}

impl core::error::Error for Error {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Device(failure)
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Self::Library(error)
    }
}

/// Pages of a sequence that a table has room for at most, where the layer has no more at first: 64 million tokens.
const MOST_EACH: usize = 1 << 20;

/// Whether it is more than a decode step.
fn is_block(options: &Attend) -> bool {
    options.queries.is_some_and(|queries| queries != 1) || options.position.is_some()
}

const fn refuse<T>(why: &'static str) -> Result<T, Error> {
    Err(Error::Unsupported { why })
}

/// One attention layer on a GPU, of one or more sequences: pages in a pool, a table of them for each sequence, exact tokens in
/// f16 beside them.
#[derive(Debug)]
pub struct Layer {
    config: LayerConfig,
    layout: Layout,
    apart: Apart,
    /// What decides balances, and tries rows.
    backend: Kernels,
    codecs: [Arc<dyn Codec>; 2],
    paged: Paged,
    sequences: Vec<Held>,
    /// Of each page of the pool, how many sequences have it.
    owners: Vec<u32>,
    /// Pages of one sequence at most.
    pages_each: usize,
    query_heads: usize,
    /// Whether the GPU may have counted tokens that are not known here.
    stepped: Stepped,
    /// Of each sequence, tokens that it was given by steps since it was last asked.
    pending: Vec<usize>,
}

/// A sequence, and what is needed to give it to another one, and to go on with it.
#[derive(Clone, Debug)]
struct Held {
    /// What the GPU knows of it.
    sequence: Sequence,
    /// As a layer on the CPU has it: the ring on the GPU has the same rows in the same places.
    state: State,
    /// Of each page, the position of its first token.
    positions: Vec<usize>,
    /// \[kv heads]\[balance, prefix centre]\[width]: ones and zeros until they are decided.
    front: Vec<f32>,
}

impl Held {
    /// A sequence of no tokens.
    fn empty(layout: &Layout) -> Self {
        let state = State::new(layout);
        let sequence = sequence_of(layout, &state, Vec::new());
        Self { sequence, state, positions: Vec::new(), front: open_front(layout) }
    }

    /// Puts it into another state, with the pages that it has.
    fn enter(&mut self, layout: &Layout, state: State) {
        self.sequence = sequence_of(layout, &state, core::mem::take(&mut self.sequence.pages));
        self.state = state;
    }

    /// Asks what a change will do.
    fn standing<T>(&self, config: &LayerConfig, ask: impl FnOnce(&Standing) -> T) -> T {
        let position = &|index: usize| self.positions[index];
        ask(&Standing { config, state: &self.state, pages: self.positions.len(), position })
    }

    /// Of each head what keys are divided by, and the least of it in magnitude.
    fn balances(&self, dim: usize) -> impl Iterator<Item = (&[f32], f32)> {
        self.front.chunks_exact(2 * dim).map(move |front| {
            let balance = &front[..dim];
            (balance, balance.iter().fold(f32::INFINITY, |least, s| least.min(s.abs())))
        })
    }
}

/// A sequence in such a state, as the GPU is told.
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

/// Of a sequence whose balances and prefix centres are not decided.
fn open_front(layout: &Layout) -> Vec<f32> {
    let dim = layout.key_dim;
    (0..layout.heads * 2 * dim).map(|i| if (i / dim).is_multiple_of(2) { 1.0 } else { 0.0 }).collect()
}

impl Layer {
    /// An empty layer of so many sequences; `tokens` in pages, all sequences together, of which one has at most the
    /// configuration's capacity.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for codecs and widths that the GPU has no kernels for, [`Error::Library`] for impossible
    /// configurations, [`Error::Device`] where there is not enough memory.
    pub fn new(
        device: &Device,
        config: &LayerConfig,
        sequences: usize,
        tokens: usize,
    ) -> Result<Self, Error> {
        config.check()?;
        if config.key_dim != config.value_dim || !WIDTHS.contains(&config.key_dim) {
            return refuse("GPUs take keys and values of one width: 64, 80, 96, 128, 192 or 256");
        }
        if !(1..=1 << 12).contains(&sequences) || config.kv_heads > 1 << 10 {
            return refuse("a layer on a GPU has 1 to 4,096 sequences and at most 1,024 key/value heads");
        }
        if config.recent_window > 1 << 14 {
            return refuse("at most 16,384 recent tokens are exact on a GPU");
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
            return refuse("at most 2^28 pages on a GPU");
        }
        // A sequence's table has room for all that the layer may grow to, within reason.
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

    /// As it was made.
    #[must_use]
    pub fn config(&self) -> &LayerConfig {
        &self.config
    }

    /// Tokens that a sequence holds: sinks, pages, window.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] for a number that is too high.
    pub fn tokens(&self, sequence: usize) -> Result<usize, Error> {
        let held = self.sequence(sequence)?;
        Ok(held.exact + held.pages.len() * self.config.page)
    }

    /// Pages that a sequence holds.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] for a number that is too high.
    pub fn pages(&self, sequence: usize) -> Result<usize, Error> {
        Ok(self.sequence(sequence)?.pages.len())
    }

    /// Bytes that a page takes on the GPU: a little more than the CPU's; at a width of 80 a quarter to a third more, since
    /// rows are of 96 coordinates there. Outliers are not among them, nor their flags: 12 bytes each, in memory of their own.
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

    /// So many places that no sequence has, nor outliers: what evicted pages, and calls that ended with an error, left there is forgotten.
    fn free(&mut self, needed: usize) -> Result<Vec<u32>, Error> {
        let free = self.owners.iter().zip(0u32..).filter(|(owners, _)| **owners == 0).map(|(_, place)| place);
        let free: Vec<u32> = free.collect();
        free.iter().for_each(|place| self.paged.release(*place));
        let missing = Error::Full { needed, free: free.len() };
        free.get(..needed).map(<[u32]>::to_vec).ok_or(missing)
    }

    /// Puts a sequence in place of another; its pages and its exact tokens are there.
    fn place(&mut self, number: usize, held: Held) -> Result<(), Error> {
        self.paged.set(number, &held.sequence, &held.front)?;
        held.sequence.pages.iter().for_each(|page| self.owners[*page as usize] += 1);
        let old = core::mem::replace(&mut self.sequences[number], held);
        old.sequence.pages.iter().for_each(|page| self.owners[*page as usize] -= 1);
        Ok(())
    }

    /// Makes sequence `to` what `from` is: their pages are shared, exact tokens are copied.
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

    /// Forgets a sequence; pages that no other has are free.
    ///
    /// # Errors
    /// [`crate::Error::Missing`], [`Error::Device`].
    pub fn clear(&mut self, sequence: usize) -> Result<(), Error> {
        self.sequence(sequence)?;
        self.settle_without(Some(sequence))?;
        self.place(sequence, Held::empty(&self.layout))
    }

    /// A page's bytes as the CPU has them, the same that were uploaded, back from the GPU. With outliers a page is as long as it says itself:
    /// [`crate::Error::Length`] has that length.
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

    /// Allocates what steps of so many query heads work in, and compiles their kernels: then they allocate nothing. (The first step
    /// with a soft cap, or a window that the configuration does not have, compiles others.)
    ///
    /// # Errors
    /// [`crate::Error::Heads`], [`Error::Device`].
    pub fn reserve(&mut self, query_heads: usize) -> Result<(), Error> {
        self.reserve_splits(query_heads, None)
    }

    /// The same; `splits` parts of a sequence's pages are worked on at once, by default as many as fill the GPU.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
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

    /// `Ok` if the configuration has so many query heads, or does not say.
    fn check_query_heads(&self, query_heads: usize) -> Result<(), Error> {
        match self.config.query_heads {
            Some(expected) => Ok(crate::Error::expect_length("query heads", expected, query_heads)?),
            None => Ok(()),
        }
    }

    /// What a step keeps of the options.
    fn attention(&self, options: &Attend) -> Result<Attention, Error> {
        if options.first_head != 0 || options.heads.is_some() {
            return refuse("a GPU answers all heads at once: `first_head` and `heads` are the CPU's");
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

    /// Checks queries that the host has, and that there is anything to attend to.
    fn check_queries(&self, queries: Queries, options: &Attend, of: Range<usize>) -> Result<(), Error> {
        let scale = options.scale.unwrap_or(1.0).abs();
        let limit = crate::cache::view::MAX_QUERY;
        if let Queries::Host(queries) = queries {
            check_values(queries, if scale > 1.0 { limit / scale } else { limit })?;
        }
        if self.sequences[of].iter().all(|held| held.sequence.exact == 0 && held.sequence.pages.is_empty()) {
            return Err(crate::Error::Empty.into());
        }
        Ok(())
    }

    /// Checks what a step of some sequences reads, and sets sink logits and biases.
    fn check_step(&mut self, queries: Queries, options: &Attend, of: Range<usize>) -> Result<(), Error> {
        if self.query_heads == 0 {
            return refuse("a step comes after `reserve`, which says of how many query heads");
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

    /// The same of queries of the host's, and sets them.
    fn set(&mut self, queries: &[f32], options: &Attend) -> Result<(), Error> {
        let all = 0..self.sequences.len();
        self.check_step(Queries::Host(queries), options, all)?;
        Ok(self.paged.set_queries(queries)?)
    }

    /// Computes attention of one query for each query head of each sequence, at the sequence's newest token.
    ///
    /// `queries` and `output` are \[sequences]\[query heads]\[width]. A sequence that holds nothing gives zeros.
    /// [`attend_with`](Self::attend_with) has options and blocks of queries.
    ///
    /// The output is within 3·10⁻⁴ of attention in f64 on what the pages decode to, relative to a head's norm: closer than
    /// [`Layer::attend`](crate::cache::Layer::attend), whose queries have 8 bits, these 16. It is the same bits at each call on
    /// one GPU. It differs from the CPU's, and from that of a GPU with more or fewer multiprocessors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before [`reserve`](Self::reserve); [`Error::Library`] for what
    /// [`Layer::attend`](crate::cache::Layer::attend) refuses; [`Error::Device`]. The output is then unspecified.
    pub fn attend(&mut self, queries: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.attend_with(queries, &Attend::default(), output)
    }

    /// [`attend`](Self::attend) with options: a scale, a soft cap, a window, biases, sink logits, blocks of queries.
    ///
    /// With [`queries`](Attend::queries) of more than one or a [`position`](Attend::position) it is a block, as
    /// [`Layer::attend_with`](crate::cache::Layer::attend_with) has it: \[sequences]\[query heads]\[queries]\[width], of all
    /// sequences alike. Tokens are decoded to f16, 64 to 32,768 of a sequence at a time (the more heads and sequences, the
    /// fewer), and multiplied with all queries. A block allocates its memory for the duration of the call, and needs no
    /// [`reserve`](Self::reserve). It rounds queries, keys, values and weights to f16, and sums are f32: the output is within
    /// 2.7·10⁻³ of f64, at the default scale.
    ///
    /// [`bias`](Attend::bias) has one row of positions for each sequence, or one for each of its query heads, sequence after
    /// sequence. Each row is as long as that sequence has positions. A bias of -7·10²⁹ or less hides a token as -∞ does. Steps
    /// with biases allocate memory for them when there are more than before.
    ///
    /// # Errors
    /// As [`attend`](Self::attend). [`Error::Unsupported`] for `first_head` and `heads`, which let a CPU's threads share the
    /// heads of one token: a GPU's blocks of threads do that among themselves.
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

    /// Captures a step with these options as a graph, to be launched by [`launch`](Self::launch) on whatever queries, pages and
    /// exact tokens there are then.
    ///
    /// # Errors
    /// As [`attend_with`](Self::attend_with); [`Error::Unsupported`] for blocks of queries and for a bias.
    pub fn capture(&mut self, options: &Attend) -> Result<Step, Error> {
        Self::capture_all(&mut [self], options)
    }

    /// The same of several layers, one after the other in one graph.
    ///
    /// # Errors
    /// As [`attend_with`](Self::attend_with); [`Error::Unsupported`] for layers that would attend otherwise than the first, or on different devices.
    pub fn capture_all(layers: &mut [&mut Self], options: &Attend) -> Result<Step, Error> {
        if is_block(options) {
            return refuse("a graph is of decode steps: one query a head, at the newest token");
        }
        if !options.bias.is_empty() {
            return refuse("a graph has no biases: there would be more of them with each token");
        }
        let mut attention = None;
        for layer in layers.iter_mut() {
            if layer.query_heads == 0 {
                return refuse("a step comes after `reserve`, which says of how many query heads");
            }
            let mine = layer.attention(options)?;
            if *attention.get_or_insert(mine) != mine {
                return refuse("layers of one graph have the same scale and sliding window");
            }
            if mine.sink_logits {
                crate::Error::expect_length("sink logits", layer.query_heads, options.sink_logits.len())?;
                check_values(options.sink_logits, f32::INFINITY)?;
                layer.paged.set_sink_logits(options.sink_logits)?;
            }
        }
        let Some(attention) = attention else { return refuse("a graph has at least one layer") };
        if !layers.iter().all(|layer| layer.paged.is_on_device_of(&layers[0].paged)) {
            return refuse("layers of one graph are on one device");
        }
        let mut paged: Vec<&mut Paged> = layers.iter_mut().map(|layer| &mut layer.paged).collect();
        Ok(Paged::capture(&mut paged, &attention)?)
    }

    /// Launches a captured step of this layer.
    ///
    /// # Errors
    /// As [`attend`](Self::attend); [`Error::Unsupported`] for a step that was captured elsewhere, or before another
    /// [`reserve`](Self::reserve).
    pub fn launch(&mut self, step: &Step, queries: &[f32], output: &mut [f32]) -> Result<(), Error> {
        crate::Error::expect_length("values of the output", queries.len(), output.len())?;
        self.set(queries, &Attend::default())?;
        if !self.paged.is_of(step) {
            return refuse("the step was captured from another layer, or before `reserve`");
        }
        self.paged.launch(step)?;
        Ok(self.paged.output(output)?)
    }

    /// Microseconds on the GPU's clock of each of `times` launches of a captured step, on what is set.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn time(&mut self, step: &Step, times: usize) -> Result<Vec<f32>, Error> {
        Ok(self.paged.time(step, times)?)
    }
}
