//! The cache of all layers of a model, on the heap.

use super::config::MAX_LAYERS;
use super::layout::Layout;
use super::storage::{Shared, check_memory};
use super::{Layer, LayerConfig, State, Stats};
use crate::codec::Codec;
use crate::random::Role;
use crate::rows::{Rows, RowsMut};
use crate::{Attend, Backend, CodecSpec, Error};
use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;
use crossbeam_queue::ArrayQueue;

/// Holds one layer of a [`KvCache`], on the heap.
///
/// ```
/// use octaplex::cache::SharedLayer;
/// use octaplex::{Backend, Error, LayerConfig};
///
/// let config = LayerConfig::new(1, 64, 1000);
/// let mut layer = SharedLayer::on_heap(&config, Backend::detect())?;
/// let mut scratch = vec![0.0; config.scratch_len(1)];
/// layer.append(&[0.5; 10 * 64], &[0.25; 10 * 64], &mut scratch)?;
/// let mut fork = layer.clone(); // shares the pages
/// fork.truncate(5)?;
/// let mut output = [0.0; 64];
/// layer.attend(&[1.0; 64], &mut output, &mut scratch)?;
/// assert_eq!((layer.tokens(), fork.tokens(), output), (10, 5, [0.25; 64]));
/// # Ok::<(), Error>(())
/// ```
pub type SharedLayer = Layer<Arc<dyn Codec>, Arc<dyn Codec>, Shared>;

impl SharedLayer {
    /// Creates an empty layer that grows on the heap.
    ///
    /// # Errors
    /// * [`Error::Unsupported`] and [`Error::Width`] for impossible configurations.
    /// * [`Error::Memory`] if the machine has too little memory for the exact tokens.
    /// * Errors of the codecs' constructors.
    pub fn on_heap(config: &LayerConfig, backend: Backend) -> Result<Self, Error> {
        config.check()?;
        let build = |spec: CodecSpec, dim, role| {
            spec.build_dyn(dim, backend, config.head_id(role)).map(Arc::<dyn Codec>::from)
        };
        let keys = build(config.keys, config.key_dim, Role::Keys)?;
        let values = build(config.values, config.value_dim, Role::Values)?;
        Self::empty(config, Layout::new(config), keys, values, backend)
    }

    /// Creates an empty layer with your own codecs, which all heads share. The configuration's codecs are ignored.
    ///
    /// # Errors
    /// * Errors of [`LayerCache::with_codecs`](crate::cache::LayerCache::with_codecs), except [`Error::Length`].
    /// * [`Error::Memory`] if the machine has too little memory for the exact tokens.
    pub fn on_heap_with(
        config: &LayerConfig,
        keys: Arc<dyn Codec>,
        values: Arc<dyn Codec>,
        backend: Backend,
    ) -> Result<Self, Error> {
        let layout = config.layout_with(&keys, &values)?;
        Ok(Self { own_codecs: true, ..Self::empty(config, layout, keys, values, backend)? })
    }

    pub(crate) fn empty(
        config: &LayerConfig,
        layout: Layout,
        keys: Arc<dyn Codec>,
        values: Arc<dyn Codec>,
        backend: Backend,
    ) -> Result<Self, Error> {
        Ok(Self {
            config: *config,
            layout,
            state: State::new(&layout),
            backend: backend.kernels(),
            keys,
            values,
            own_codecs: false,
            store: Shared::new(&layout)?,
        })
    }
}

/// Holds the compressed keys and values of one sequence in all layers of a model, and computes attention on them.
///
/// For a batch, create one cache for each sequence. [`fork`](Self::fork) shares the pages of a common prompt.
///
/// Begin with [`KvCache::builder`]. [`KvCache::new`] creates layers with different widths and codecs.
///
/// ```
/// use octaplex::{Backend, CacheConfig, Error, KvCache};
///
/// let config = CacheConfig::new(2, 2, 64, 4096); // two layers, two heads of width 64, 4,096 tokens
/// let mut cache = KvCache::new(config.layers(), Backend::detect())?;
/// let rows = vec![0.5; 2 * 200 * 64]; // [heads][tokens][width]
/// for layer in 0..2 {
///     cache.append(layer, &rows, &rows)?;
/// }
/// let fork = cache.fork(); // shares all pages
/// let mut output = vec![0.0; 4 * 64]; // four query heads
/// cache.attend(0, &vec![0.1; 4 * 64], &mut output)?;
/// assert!(output.iter().all(|x| (x - 0.5).abs() < 0.15));
/// assert_eq!((fork.stats().tokens, fork.next_position(1)?), (200, 200));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    pub(crate) layers: Vec<SharedLayer>,
    scratch: Pool,
}

/// Holds scratch memory for calls. Each call takes a vector and puts it back, so each thread has its own.
///
/// The queue needs neither a lock nor std.
#[derive(Debug)]
struct Pool(ArrayQueue<Vec<f32>>);

impl Pool {
    /// The largest number of vectors that are kept. If more threads call at once, the others allocate at each call.
    const KEPT: usize = 32;

    /// Bytes of an empty pool, at most.
    const BYTES: usize = Self::KEPT * 2 * size_of::<Vec<f32>>() + 1024;

    /// Calls `work` with `needed` values.
    fn with<T>(&self, needed: usize, work: impl FnOnce(&mut [f32]) -> Result<T, Error>) -> Result<T, Error> {
        let mut scratch = self.0.pop().unwrap_or_default();
        let missing = needed.saturating_sub(scratch.len());
        let result = match scratch.try_reserve(missing) {
            Ok(()) => {
                scratch.resize(scratch.len() + missing, 0.0);
                work(&mut scratch[..needed])
            }
            Err(_) => {
                let bytes = needed.saturating_mul(size_of::<f32>());
                Err(Error::Memory { what: "the scratch memory of attention and append", bytes })
            }
        };
        let _ = self.0.push(scratch);
        result
    }
}

impl KvCache {
    /// Creates an empty cache with one layer for each configuration.
    ///
    /// Layers are numbered by their place if all of them have the number 0, as [`LayerConfig::new`] leaves it. Other
    /// numbers stay, for example those of a part of a model.
    ///
    /// ```
    /// use octaplex::{Backend, Error, KvCache, LayerConfig};
    ///
    /// let layer = LayerConfig::new(2, 64, 4096);
    /// let cache = KvCache::new([layer, layer.sliding_window(1024)], Backend::detect())?;
    /// assert_eq!(cache.layers()[1].config().layer, 1);
    /// assert!(KvCache::new([layer.layer(16), layer.layer(16)], Backend::detect()).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Unsupported`] for no layers or more than 65,536.
    /// * [`Error::Unsupported`] if two layers have the same number, unless all have the number 0.
    /// * [`Error::Memory`] if the machine has too little memory for the exact tokens of all layers.
    /// * Errors of [`SharedLayer::on_heap`].
    pub fn new(layers: impl IntoIterator<Item = LayerConfig>, backend: Backend) -> Result<Self, Error> {
        let mut configs: Vec<_> = layers.into_iter().take(MAX_LAYERS + 1).collect();
        if !(1..=MAX_LAYERS).contains(&configs.len()) {
            return Err(Error::Unsupported { why: "a cache has 1 to 65,536 layers" });
        }
        if configs.iter().all(|config| config.layer == 0) {
            (0..).zip(&mut configs).for_each(|(number, config)| config.layer = number);
        }
        let mut numbers: Vec<_> = configs.iter().map(|config| config.layer).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            let why = "two layers have the same number, so both would be rotated alike: give each its own number, or \
                       leave all at 0 to number them by their place";
            return Err(Error::Unsupported { why });
        }
        // Check the sum: memory may suffice for each layer alone, but not for all.
        let bytes = configs.iter().fold(0usize, |sum, layer| sum.saturating_add(layer.front_bytes()));
        check_memory("the exact tokens of all layers", bytes)?;
        let layers = configs.iter().map(|config| SharedLayer::on_heap(config, backend));
        Ok(Self::from_layers(layers.collect::<Result<_, Error>>()?))
    }

    /// Creates a cache from layers. They may have your own codecs ([`SharedLayer::on_heap_with`]).
    #[must_use]
    pub fn from_layers(layers: Vec<SharedLayer>) -> Self {
        Self { layers, scratch: Pool(ArrayQueue::new(Pool::KEPT)) }
    }

    /// Returns the layers.
    #[must_use]
    pub fn layers(&self) -> &[SharedLayer] {
        &self.layers
    }

    /// Returns one layer.
    ///
    /// # Errors
    /// [`Error::Missing`] for a layer that is out of range.
    pub fn layer_mut(&mut self, layer: usize) -> Result<&mut SharedLayer, Error> {
        let count = self.layers.len();
        self.layers.get_mut(layer).ok_or(Error::Missing { what: "layer", number: layer, count })
    }

    fn layer(&self, layer: usize) -> Result<&SharedLayer, Error> {
        let count = self.layers.len();
        self.layers.get(layer).ok_or(Error::Missing { what: "layer", number: layer, count })
    }

    /// Sets the number of query heads of every layer.
    ///
    /// Use it after loading a snapshot, because snapshots do not hold this number.
    ///
    /// # Errors
    /// [`Error::Heads`] unless it is a positive multiple of each layer's key/value heads. All layers are then as they
    /// were.
    ///
    /// ```
    /// use octaplex::{Backend, Error, KvCache};
    ///
    /// let mut cache = KvCache::builder(2, 2, 64, 1000).query_heads(8).build()?;
    /// let rows = [0.5; 2 * 10 * 64];
    /// (0..2).try_for_each(|layer| cache.append(layer, &rows, &rows))?;
    /// let mut loaded = KvCache::load(&cache.save(), Backend::detect())?;
    /// loaded.set_query_heads(8)?;
    /// let (queries, mut output) = ([0.1; 8 * 5 * 64], [0.0; 8 * 5 * 64]); // eight heads, five queries each
    /// loaded.attend(1, &queries, &mut output)?;
    /// assert_eq!(loaded.set_query_heads(3), Err(Error::Heads { queries: 3, kv_heads: 2 }));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_query_heads(&mut self, query_heads: usize) -> Result<(), Error> {
        for layer in &self.layers {
            layer.config.query_heads(query_heads).check()?;
        }
        // All layers have been checked, so no layer fails after another has changed.
        self.layers.iter_mut().try_for_each(|layer| layer.set_query_heads(query_heads))
    }

    /// Preallocates scratch memory for `queries` rows (query heads · queries of a block), so that later calls do not
    /// allocate.
    ///
    /// Without it, the first call allocates, and so does the first call of each further thread.
    ///
    /// # Errors
    /// [`Error::Memory`] if the machine has too little memory.
    pub fn reserve(&mut self, queries: usize) -> Result<(), Error> {
        let needed = self.layers.iter().map(|layer| scratch_len(&layer.config, queries)).max();
        // A call takes the first vector of the queue and puts it back at the end, so this visits each one.
        (0..self.scratch.0.len().max(1)).try_for_each(|_| self.scratch.with(needed.unwrap_or(0), |_| Ok(())))
    }

    /// Decides a layer's balance from a prompt's keys and queries: [`Layer::calibrate`].
    ///
    /// This has nothing to do with the command `octaplex calibrate`, which writes a [`Profile`](crate::Profile).
    ///
    /// # Errors
    /// [`Error::Missing`] for a layer that is out of range, and errors of [`Layer::calibrate`].
    pub fn calibrate(&mut self, layer: usize, keys: &[f32], queries: &[f32]) -> Result<(), Error> {
        self.layer_mut(layer)?.calibrate(keys, queries)
    }

    /// Appends tokens to a layer.
    ///
    /// `keys` are \[kv_heads]\[tokens]\[key width] and `values` are \[kv_heads]\[tokens]\[value width], in f32, f16 or
    /// bf16. Keys come after the rotary embedding; the cache does not rotate them by position. [`Rows`] describes other
    /// orders. Tokens appended one by one or many at a time give the same bytes.
    ///
    /// # Errors
    /// [`Error::Missing`] for a layer that is out of range, and errors of [`Layer::append`]. The cache is then as it
    /// was.
    pub fn append<'a>(
        &mut self,
        layer: usize,
        keys: impl Into<Rows<'a>>,
        values: impl Into<Rows<'a>>,
    ) -> Result<(), Error> {
        let needed = scratch_len(&self.layer(layer)?.config, 0);
        let layer = &mut self.layers[layer];
        self.scratch.with(needed, |scratch| layer.append(keys, values, scratch))
    }

    /// Computes causal attention of the newest tokens' queries, with scores scaled by 1/√width.
    ///
    /// Append the tokens first: each query sees its own token and all before it.
    ///
    /// `queries` are \[query heads]\[queries]\[key width] and `output` is \[query heads]\[queries]\[value width], in
    /// f32, f16 or bf16. [`Rows`] describes other orders. Query head h uses key/value head h / (query heads / key/value
    /// heads).
    ///
    /// A cache with a known number of [`query_heads`](super::KvCacheBuilder::query_heads) takes any number of queries a
    /// head. Without it, a cache takes one query a head. [`attend_with`](Self::attend_with) has options. Several
    /// threads can attend at once, to different layers or to the same one.
    ///
    /// ```
    /// # use octaplex::{Error, KvCache};
    /// # let mut cache = KvCache::builder(2, 1, 64, 1000).build()?;
    /// # for layer in 0..2 { cache.append(layer, &[0.5; 64], &[0.5; 64])?; }
    /// let outputs = std::thread::scope(|scope| {
    ///     let attend = |layer| {
    ///         let mut output = [0.0; 64];
    ///         cache.attend(layer, &[0.1; 64], &mut output).map(|()| output)
    ///     };
    ///     [0, 1].map(|layer| scope.spawn(move || attend(layer))).map(|thread| thread.join().unwrap())
    /// });
    /// assert!(outputs.iter().all(|output| output.is_ok()));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Missing`] for a layer that is out of range, and errors of [`Layer::attend`]. The cache is then as it
    /// was.
    pub fn attend<'a, 'b>(
        &self,
        layer: usize,
        queries: impl Into<Rows<'a>>,
        output: impl Into<RowsMut<'b>>,
    ) -> Result<(), Error> {
        self.attend_with(layer, queries, &Attend::default(), output)
    }

    /// Computes attention with options: a scale, a soft cap, a window, biases, sink logits, earlier queries.
    ///
    /// [`attend`](Self::attend) describes the shapes, and [`Attend`] the options.
    ///
    /// # Errors
    /// Errors of [`attend`](Self::attend), and [`Error::Unsupported`] for strided queries without a known number of
    /// query heads.
    pub fn attend_with<'a, 'b>(
        &self,
        layer: usize,
        queries: impl Into<Rows<'a>>,
        options: &Attend,
        output: impl Into<RowsMut<'b>>,
    ) -> Result<(), Error> {
        let (queries, mut output) = (queries.into(), output.into());
        let layer = self.layer(layer)?;
        let config = &layer.config;
        let heads = options.heads_of(config.kv_heads)?.len();
        let rows = |len: usize| len.div_ceil(heads);
        if let (Some(queries), Some(output)) = (queries.plain(), output.plain()) {
            let needed = part_scratch_len(config, rows(queries.len() / config.key_dim));
            return self.scratch.with(needed, |scratch| layer.attend_with(queries, options, output, scratch));
        }
        // Other types and orders: convert queries to f32 in the usual order, and convert the output back.
        let (query_heads, block) = query_shape(layer, heads, &queries, options)?;
        let grid = queries.grid("queries", (query_heads, config.key_dim), Some(block))?;
        grid.check_count("queries")?;
        let place = output.place((query_heads, config.value_dim), block)?;
        let count = query_heads.saturating_mul(block);
        let [of_queries, of_output] = [config.key_dim, config.value_dim].map(|dim| count.saturating_mul(dim));
        let needed =
            part_scratch_len(config, rows(count)).saturating_add(of_queries).saturating_add(of_output);
        self.scratch.with(needed, |scratch| {
            let (queries, scratch) = scratch.split_at_mut(of_queries);
            let (rows, scratch) = scratch.split_at_mut(of_output);
            grid.to_f32(layer.backend, queries);
            layer.attend_with(queries, &options.queries(block), rows, scratch)?;
            output.write(layer.backend, place, config.value_dim, rows);
            Ok(())
        })
    }

    /// Computes the scores of one key/value head's queries with every token, for engines with their own softmax.
    ///
    /// [`Layer::scores`] describes the shapes.
    ///
    /// # Errors
    /// [`Error::Missing`] for a layer that is out of range, and errors of [`Layer::scores`].
    pub fn scores(
        &self,
        layer: usize,
        head: usize,
        queries: &[f32],
        scores: &mut [f32],
    ) -> Result<(), Error> {
        let layer = self.layer(layer)?;
        let needed = part_scratch_len(&layer.config, queries.len() / layer.config.key_dim);
        self.scratch.with(needed, |scratch| layer.scores(head, queries, scores, scratch))
    }

    /// Computes the sum of one key/value head's values with your weights.
    ///
    /// [`Layer::accumulate`] describes the shapes.
    ///
    /// # Errors
    /// [`Error::Missing`] for a layer that is out of range, and errors of [`Layer::accumulate`].
    pub fn accumulate(
        &self,
        layer: usize,
        head: usize,
        weights: &[f32],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let layer = self.layer(layer)?;
        let needed = part_scratch_len(&layer.config, output.len() / layer.config.value_dim);
        self.scratch.with(needed, |scratch| layer.accumulate(head, weights, output, scratch))
    }

    /// Removes the tokens from `position` on, in every layer: [`Layer::truncate`].
    ///
    /// # Errors
    /// Errors of [`Layer::truncate`]. All layers are then as they were.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        for layer in &self.layers {
            layer.check_truncate(position)?;
        }
        // All layers have been checked, so no layer fails after another has changed.
        self.layers.iter_mut().try_for_each(|layer| layer.truncate(position))
    }

    /// Drops the whole pages that lie within `positions`, in every layer: [`Layer::evict`].
    ///
    /// Returns the number of tokens dropped, added up over all layers.
    pub fn evict(&mut self, positions: Range<usize>) -> usize {
        self.layers.iter_mut().map(|layer| layer.evict(positions.clone())).sum()
    }

    /// Removes all tokens of all layers, and their balances.
    pub fn clear(&mut self) {
        self.layers.iter_mut().for_each(Layer::clear);
    }

    /// Creates a second cache with the same tokens, for prompts with a common beginning.
    ///
    /// Both share the closed pages. Sinks and the window are copied. If the machine has too little memory, the program
    /// ends; [`try_fork`](Self::try_fork) returns an error instead.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::from_layers(self.layers.clone())
    }

    /// Creates a second cache as [`fork`](Self::fork) does, if there is memory for it.
    ///
    /// ```
    /// use octaplex::{Backend, Error, KvCache, LayerConfig};
    ///
    /// let cache = KvCache::new([LayerConfig::new(1, 64, 1000)], Backend::detect())?;
    /// assert_eq!(cache.try_fork()?.stats(), cache.stats());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the machine has too little memory for the sinks and the windows of all layers.
    pub fn try_fork(&self) -> Result<Self, Error> {
        let bytes = self.layers.iter().map(|layer| size_of::<SharedLayer>() + layer.store.own_bytes());
        check_memory("the exact tokens of a fork", bytes.sum::<usize>() + Pool::BYTES)?;
        Ok(self.fork())
    }

    /// Returns the bytes that several caches hold together. A page that they share counts once.
    ///
    /// ```
    /// use octaplex::{Backend, Error, KvCache, LayerConfig};
    ///
    /// let mut cache = KvCache::new([LayerConfig::new(1, 64, 1000)], Backend::detect())?;
    /// cache.append(0, &[0.5; 900 * 64], &[0.5; 900 * 64])?;
    /// let fork = cache.fork();
    /// let (one, both) = (cache.stats(), KvCache::bytes_together([&cache, &fork]));
    /// assert_eq!(both, one.bytes + fork.stats().own_bytes());
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn bytes_together<'a>(caches: impl IntoIterator<Item = &'a Self>) -> usize {
        let (mut bytes, mut pages) = (0, Vec::new());
        for layer in caches.into_iter().flat_map(|cache| &cache.layers) {
            let all = layer.store.all_pages();
            let stats = layer.stats();
            bytes += stats.bytes - stats.paged_bytes;
            pages.extend(all.iter().map(|page| (page.as_ptr(), layer.layout.page_length(page))));
        }
        pages.sort_unstable();
        pages.dedup();
        bytes + pages.iter().map(|(_, length)| length).sum::<usize>()
    }

    /// Returns the position of a layer's next token.
    ///
    /// # Errors
    /// [`Error::Missing`] for a layer that is out of range.
    ///
    /// ```
    /// use octaplex::{Backend, CacheConfig, Error, KvCache};
    ///
    /// let mut cache = KvCache::new(CacheConfig::new(2, 1, 64, 1000).layers(), Backend::detect())?;
    /// cache.append(1, &[0.5; 10 * 64], &[0.5; 10 * 64])?;
    /// assert_eq!((cache.next_position(0)?, cache.next_position(1)?), (0, 10));
    /// assert_eq!(cache.next_position(2), Err(Error::Missing { what: "layer", number: 2, count: 2 }));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn next_position(&self, layer: usize) -> Result<usize, Error> {
        self.layer(layer).map(Layer::next_position)
    }

    /// Counts the tokens and bytes of all layers together.
    ///
    /// A token counts once, not in each layer. If layers have different numbers of tokens, the largest counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.layers.iter().map(Layer::stats).sum()
    }
}

/// Returns the number of query heads, and of queries a head, of queries that are not plain f32 rows.
fn query_shape(
    layer: &SharedLayer,
    heads: usize,
    queries: &Rows,
    options: &Attend,
) -> Result<(usize, usize), Error> {
    let config = &layer.config;
    let known = config.query_heads.map(|all| all / config.kv_heads * heads);
    match (known, queries.count(config.key_dim)) {
        (Some(known), Some(rows)) => Ok((known, layer.block(options, heads, rows))),
        (Some(known), None) => Ok((known, options.queries.or(queries.tokens()).unwrap_or(1))),
        (None, Some(rows)) => {
            let block = options.queries.unwrap_or(1);
            Ok((rows / block.max(1), block))
        }
        (None, None) => {
            let why =
                "strided queries need a cache that knows its query heads: set query_heads when you build it";
            Err(Error::Unsupported { why })
        }
    }
}

/// Returns the values of scratch memory for `rows` queries of each key/value head.
fn part_scratch_len(config: &LayerConfig, rows: usize) -> usize {
    scratch_len(config, rows.saturating_mul(config.kv_heads))
}

/// Returns the values of scratch memory for `queries` rows, with all threads.
///
/// Memory for threads over parts grows with the capacity. So it counts at most 2²² tokens of it: a cache may never fill
/// its capacity, and a damaged snapshot may claim any capacity.
fn scratch_len(config: &LayerConfig, queries: usize) -> usize {
    let alone = config.scratch_len(queries);
    #[cfg(feature = "rayon")]
    if rayon::current_num_threads() > 1 {
        let config = LayerConfig { capacity: config.capacity.min(1 << 22), ..*config };
        return alone.max(config.parallel_scratch_len(queries, rayon::current_num_threads()));
    }
    alone
}
