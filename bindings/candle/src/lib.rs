//! The compressed key/value cache of [octaplex](https://docs.rs/octaplex) on [candle](https://docs.rs/candle-core)'s
//! tensors.
//!
//! A [`KvCache`] holds one attention layer. It takes tensors of the same shapes as
//! `candle_nn::kv_cache::KvCache`: \[batch]\[heads]\[tokens]\[width], in f32, f16 or bf16.
//!
//! It does not return old keys and values. Instead [`append_attend`](KvCache::append_attend) replaces
//! concatenation, repeated heads, mask, softmax and both products.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use octaplex_candle::{KvCache, LayerConfig};
//!
//! // A layer of 2 key/value heads of width 64, for 4,096 tokens; 8 query heads.
//! let mut cache = KvCache::new(&LayerConfig::new(2, 64, 4096))?;
//! let random = |heads, tokens| Tensor::randn(0f32, 1.0, (1, heads, tokens, 64), &Device::Cpu);
//! let prompt = cache.append_attend(&random(8, 300)?, &random(2, 300)?, &random(2, 300)?)?;
//! assert_eq!(prompt.dims(), [1, 8, 300, 64]); // each query sees the tokens up to its own
//! let token = cache.append_attend(&random(8, 1)?, &random(2, 1)?, &random(2, 1)?)?;
//! assert_eq!((token.dims(), cache.current_seq_len()), (&[1, 8, 1, 64][..], 301));
//! // Drafts: append them, attend to them, remove the rejected ones.
//! cache.append(&random(2, 4)?, &random(2, 4)?)?;
//! cache.attend(&random(8, 4)?)?;
//! cache.truncate(303)?;
//! assert!(cache.stats().bits_per_value() < 16.0); // 3.2 in pages; sinks and the newest tokens are exact
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! The cache and its results are on the CPU. Other devices, types and shapes return an error, and so do NaN
//! and infinities. The error names the tensor, and the cache is as it was before the call.
#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod rows;

use candle_core::{DType, Error, Result, Tensor, bail};
use octaplex::cache::SharedLayer;
pub use octaplex::{Attend, Backend, CacheConfig, CodecSpec, LayerConfig, Stats};
use rows::{Rows, check_new};

/// The compressed keys and values of one attention layer, for every sequence of a batch.
///
/// All sequences have the same length, as in a tensor. Clones share pages, so a clone copies only exact
/// tokens.
#[derive(Debug)]
pub struct KvCache {
    /// A sequence without tokens.
    empty: SharedLayer,
    /// A layer for each sequence of the batch. The first tokens decide the size of the batch.
    sequences: octaplex::KvCache,
    max_append: Option<usize>,
    calibration: usize,
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        Self { empty: self.empty.clone(), sequences: self.sequences.fork(), ..*self }
    }
}

/// Tokens at the beginning of a prompt that decide the balance.
const CALIBRATION: usize = 256;

/// Adds the number of the sequence to an error.
fn of_sequence(sequence: usize, error: octaplex::Error) -> Error {
    Error::msg(format!("sequence {sequence} of the batch: {error}"))
}

impl KvCache {
    /// Creates an empty cache of one layer, with the fastest backend of this CPU.
    ///
    /// Give each layer its number ([`LayerConfig::layer`]), as [`CacheConfig::layers`] does, because layers
    /// are rotated differently.
    ///
    /// # Errors
    /// The errors of [`SharedLayer::on_heap`]: an impossible configuration, or a codec that does not
    /// support the width.
    pub fn new(config: &LayerConfig) -> Result<Self> {
        Self::with_backend(config, Backend::detect())
    }

    /// Creates a cache with a given backend. Backends are bit-exact to each other.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_backend(config: &LayerConfig, backend: Backend) -> Result<Self> {
        let empty = SharedLayer::on_heap(config, backend).map_err(Error::wrap)?;
        let sequences = octaplex::KvCache::from_layers(Vec::new());
        Ok(Self { empty, sequences, max_append: None, calibration: CALIBRATION })
    }

    /// Sets the maximum number of tokens that [`append_attend`](Self::append_attend) appends at a time.
    ///
    /// By default it stops where a page closes. Then every query sees what it would see if tokens came one
    /// by one. With a larger number, early queries see more compressed tokens.
    #[must_use]
    pub fn max_append(self, tokens: usize) -> Self {
        Self { max_append: Some(tokens.max(1)), ..self }
    }

    /// Sets how many tokens of a prompt decide the balance of keys in
    /// [`append_attend`](Self::append_attend), with their queries; 256 by default.
    ///
    /// With 0, the first page decides from keys alone. So it does in [`append`](Self::append), and if no
    /// page closes in a prompt.
    #[must_use]
    pub fn calibration(self, tokens: usize) -> Self {
        Self { calibration: tokens, ..self }
    }

    /// Returns the configuration that the cache was created with.
    #[must_use]
    pub fn config(&self) -> &LayerConfig {
        self.empty.config()
    }

    /// Returns the number of tokens so far, which is the position of the next one.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.sequences.layers().first().map_or(0, SharedLayer::next_position)
    }

    /// Returns what all sequences hold together. Counts of tokens are those of one sequence.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.sequences.stats()
    }

    /// Returns the sequences, for snapshots ([`SharedLayer::save`]) and views. It is empty before the first
    /// tokens.
    #[must_use]
    pub fn sequences(&self) -> &[SharedLayer] {
        self.sequences.layers()
    }

    /// Replaces the contents by one sequence's snapshot. Its layer must have the same configuration.
    ///
    /// # Errors
    /// The errors of [`SharedLayer::load`]; the cache is then as it was.
    pub fn load(&mut self, snapshot: &[u8]) -> Result<()> {
        let mut layer = self.empty.clone();
        layer.load(snapshot).map_err(Error::wrap)?;
        self.sequences = octaplex::KvCache::from_layers(vec![layer]);
        Ok(())
    }

    /// Removes all tokens, and the size of the batch.
    pub fn reset(&mut self) {
        self.sequences = octaplex::KvCache::from_layers(Vec::new());
    }

    /// Removes the tokens from `position` on, such as rejected drafts. A position beyond the end changes
    /// nothing.
    ///
    /// Up to [`LayerConfig::max_rollback`] tokens back, the cache is then bit-exact with one that never had
    /// these tokens.
    ///
    /// # Errors
    /// The errors of [`SharedLayer::truncate`]: a sliding window would show tokens that it has dropped. The
    /// cache is then as it was.
    pub fn truncate(&mut self, position: usize) -> Result<()> {
        self.sequences.truncate(position).map_err(Error::wrap)
    }

    /// Appends tokens to every sequence, in f32, f16 or bf16. Tensors that are not contiguous are copied.
    ///
    /// `keys` come after the rotary embedding, \[batch]\[key/value heads]\[tokens]\[key width]. `values`
    /// are \[batch]\[key/value heads]\[tokens]\[value width].
    ///
    /// # Errors
    /// * Another device, type, shape or batch.
    /// * Values that are NaN, infinite or beyond f16.
    /// * A full cache.
    ///
    /// The cache is then as it was.
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let (batch, _) = check_new(self.config(), keys, values, None)?;
        self.change(batch, batch > 1, |cache| cache.append_block(keys, values))
    }

    /// Computes attention of queries to what the cache holds.
    ///
    /// `queries` are \[batch]\[query heads]\[queries]\[key width]. The result has as many rows of \[value
    /// width], in the queries' type. Query heads are a multiple of key/value heads and share them in order.
    ///
    /// The last query has the position of the newest token; the others have the positions before it. No
    /// query sees a later token, so no mask is needed. [`attend_with`](Self::attend_with) has options.
    ///
    /// # Errors
    /// Another device, type, shape or batch; queries that are NaN or infinite; an empty cache.
    pub fn attend(&self, queries: &Tensor) -> Result<Tensor> {
        self.attend_with(queries, &Attend::default())
    }

    /// Computes attention with options: scale, soft cap, sliding window and the rest. The tensor sets their
    /// `queries`.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend).
    pub fn attend_with(&self, queries: &Tensor, options: &Attend) -> Result<Tensor> {
        let width = self.config().value_dim;
        let rows = Rows::queries(self.config(), queries)?;
        self.check_batch(rows.batch())?;
        let options = options.queries(rows.tokens());
        let mut outputs = vec![0.0; rows.count() * width];
        let each = outputs.chunks_exact_mut(rows.count() / rows.batch() * width);
        rows.read(|rows| {
            each.enumerate().try_for_each(|(sequence, output)| {
                let result = self.sequences.attend_with(sequence, rows.in_f32(sequence), &options, output);
                result.map_err(|error| of_sequence(sequence, error))
            })
        })?;
        let shape = (rows.batch(), rows.heads(), rows.tokens(), width);
        Tensor::from_vec(outputs, shape, queries.device())?.to_dtype(queries.dtype())
    }

    /// Appends tokens and computes attention of as many queries, as a model's layer does.
    ///
    /// It appends a prompt in blocks, so that its queries see what they would see one by one. The beginning
    /// of the prompt decides the balance ([`calibration`](Self::calibration)).
    /// [`append_attend_with`](Self::append_attend_with) has options.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append) and [`attend`](Self::attend). The cache is then as it was,
    /// with one exception: with a `max_rollback` of 0, a page that closed with the last token stays closed.
    pub fn append_attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        self.append_attend_with(queries, keys, values, &Attend::default())
    }

    /// Appends and computes attention with options, as [`append_attend`](Self::append_attend) does without.
    ///
    /// # Errors
    /// The errors of [`append_attend`](Self::append_attend). A bias or a position in the options is an
    /// error too, because it has no meaning for blocks.
    pub fn append_attend_with(
        &mut self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        options: &Attend,
    ) -> Result<Tensor> {
        if options.position.is_some() || !options.bias.is_empty() {
            bail!(
                "options have a position or a bias, which blocks cannot use: call append, then attend_with"
            );
        }
        self.append_attend_by(queries, keys, values, |cache, queries| cache.attend_with(queries, options))
    }

    /// Appends and calls your own attention, such as that of a GPU that has the pages
    /// ([`sequences`](Self::sequences)).
    ///
    /// It calls `attend` after each block, with the block's queries. `attend` returns \[batch]\[query
    /// heads]\[queries]\[value width].
    ///
    /// # Errors
    /// The errors of [`append_attend`](Self::append_attend), and those of `attend`.
    pub fn append_attend_by(
        &mut self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mut attend: impl FnMut(&Self, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (batch, tokens) = check_new(self.config(), keys, values, Some(queries))?;
        self.change(batch, batch > 1 || tokens > 1, |cache| {
            cache.calibrate(queries, keys)?;
            let (mut done, mut outputs) = (0, Vec::new());
            while done < tokens {
                let from = cache.current_seq_len();
                let count = (cache.block_end(from) - from).min(tokens - done);
                let of_block = |tensor: &Tensor| tensor.narrow(2, done, count);
                cache.append_block(&of_block(keys)?, &of_block(values)?)?;
                outputs.push(attend(cache, &of_block(queries)?)?);
                done += count;
            }
            Tensor::cat(&outputs, 2)
        })
    }

    /// Changes the cache, and restores it if `work` fails. One token in one sequence needs no copy for
    /// that.
    fn change<T>(
        &mut self,
        batch: usize,
        keep: bool,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let (before, first) = (self.current_seq_len(), self.sequences.layers().is_empty());
        let kept = keep.then(|| self.sequences.try_fork()).transpose().map_err(Error::wrap)?;
        if first {
            self.sequences = octaplex::KvCache::from_layers(vec![self.empty.clone(); batch]);
        }
        let result = self.check_batch(batch).and_then(|()| work(self));
        if result.is_err() {
            match kept {
                _ if first => self.reset(),
                Some(kept) => self.sequences = kept,
                None => self.truncate(before)?,
            }
        }
        result
    }

    fn check_batch(&self, batch: usize) -> Result<()> {
        match self.sequences.layers().len() {
            0 => bail!("the cache has no tokens yet"),
            count if count == batch => Ok(()),
            count => bail!("a batch of {batch}, expected {count}: reset the cache to use another batch"),
        }
    }

    fn append_block(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let config = *self.config();
        let (keys, values) = (Rows::keys(&config, keys)?, Rows::values(&config, values)?);
        keys.read(|k| {
            values.read(|v| {
                (0..keys.batch()).try_for_each(|sequence| {
                    let result = self.sequences.append(sequence, k.sequence(sequence), v.sequence(sequence));
                    result.map_err(|error| of_sequence(sequence, error))
                })
            })
        })
    }

    /// Returns the end of the block that starts with token `from`. Blocks end where pages close, so every
    /// query sees the pages that it would see if tokens came one by one.
    fn block_end(&self, from: usize) -> usize {
        let config = self.config();
        let first = config.sink_tokens + config.recent_window + config.page - 1;
        let end = match self.max_append {
            Some(tokens) => from.saturating_add(tokens),
            None if from < first => first,
            None => next_page(from, first, config.page),
        };
        // A layer with a sliding window drops a page once its newest query is past it. So the first query
        // of a block must be past it too.
        config.sliding_window.map_or(end, |window| {
            let seen = (from + 1).saturating_sub(window).max(config.sink_tokens);
            end.min(next_page(seen, config.sink_tokens, config.page).saturating_add(window - 1))
        })
    }

    /// Decides the balance from a prompt's first keys and queries, if the first page closes within the
    /// prompt.
    fn calibrate(&mut self, queries: &Tensor, keys: &Tensor) -> Result<()> {
        let config = *self.config();
        let tokens = keys.dim(2)?;
        let exact = matches!(config.keys, CodecSpec::F16(_) | CodecSpec::Bf16(_) | CodecSpec::F32(_));
        let closes = tokens >= config.sink_tokens + config.recent_window + config.page;
        let first = tokens.min(self.calibration);
        if !config.balance || exact || self.current_seq_len() > 0 || !closes || first == 0 {
            return Ok(());
        }
        let [keys, queries] = [keys, queries].map(|tensor| tensor.narrow(2, 0, first)?.to_dtype(DType::F32));
        let (keys, queries) = (Rows::keys(&config, &keys?)?, Rows::queries(&config, &queries?)?);
        keys.read(|keys| {
            queries.read(|queries| {
                (0..self.sequences.layers().len()).try_for_each(|sequence| {
                    let (keys, queries) = (keys.in_f32(sequence), queries.in_f32(sequence));
                    let result = self.sequences.calibrate(sequence, keys, queries);
                    result.map_err(|error| of_sequence(sequence, error))
                })
            })
        })
    }
}

/// Returns the end of the page with `position`. The first page starts at `first`.
fn next_page(position: usize, first: usize, page: usize) -> usize {
    first + ((position - first) / page + 1) * page
}
