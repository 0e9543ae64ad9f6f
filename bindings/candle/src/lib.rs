//! The compressed key/value cache of [octaplex](https://docs.rs/octaplex) on [candle](https://docs.rs/candle-core)'s
//! tensors.
//!
//! A [`KvCache`] holds one attention layer, like `candle_nn::kv_cache::KvCache`, and takes tensors of the same shapes:
//! \[batch]\[heads]\[tokens]\[width], in f32, f16 or bf16. It gives no tensors of old keys and values back:
//! [`append_attend`](KvCache::append_attend) takes the place of concatenation, repeated heads, mask, softmax and both
//! products.
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
//! // Drafts: append them, look at them, take the rejected ones back.
//! cache.append(&random(2, 4)?, &random(2, 4)?)?;
//! cache.attend(&random(8, 4)?)?;
//! cache.truncate(303)?;
//! assert!(cache.stats().bits_per_value() < 16.0); // 3.2 in pages; sinks and the newest tokens are exact
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! The cache is on the CPU, and so are its results. Tensors on another device are refused, and so are other types,
//! shapes, NaN and infinities: an error says which, and the cache is as it was before the call.
#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod rows;

use candle_core::{DType, Error, Result, Tensor, bail};
use octaplex::cache::SharedLayer;
pub use octaplex::{Attend, Backend, CacheConfig, CodecSpec, LayerConfig, Stats};
use rows::{Rows, check_new};

/// Keys and values of one attention layer, compressed, for every sequence of a batch.
///
/// All sequences are of one length, as a tensor's are. Pages are shared between clones, so that a clone costs the exact
/// tokens alone.
#[derive(Debug)]
pub struct KvCache {
    /// What a sequence begins as.
    empty: SharedLayer,
    /// A layer for each sequence of the batch, as many as the first tokens were of.
    sequences: octaplex::KvCache,
    max_append: Option<usize>,
    calibration: usize,
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        Self { empty: self.empty.clone(), sequences: self.sequences.fork(), ..*self }
    }
}

/// First tokens of a prompt that decide the balance.
const CALIBRATION: usize = 256;

/// An error of the library, which says where in a sequence it is.
fn of_sequence(sequence: usize, error: octaplex::Error) -> Error {
    Error::msg(format!("sequence {sequence} of the batch: {error}"))
}

impl KvCache {
    /// An empty cache of one layer, with the best instructions of this CPU. Give each layer its number
    /// ([`LayerConfig::layer`]), as [`CacheConfig::layers`] does: layers are rotated differently.
    ///
    /// # Errors
    /// An impossible configuration, or a codec that the width does not suit, as [`SharedLayer::on_heap`] says.
    pub fn new(config: &LayerConfig) -> Result<Self> {
        Self::with_backend(config, Backend::detect())
    }

    /// The same with instructions of one's choice; results are the same bits with any.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_backend(config: &LayerConfig, backend: Backend) -> Result<Self> {
        let empty = SharedLayer::on_heap(config, backend).map_err(Error::wrap)?;
        let sequences = octaplex::KvCache::from_layers(Vec::new());
        Ok(Self { empty, sequences, max_append: None, calibration: CALIBRATION })
    }

    /// Sets how many tokens [`append_attend`](Self::append_attend) appends at once, at most. By default it stops where a page
    /// closes, so that every query sees what it would see if tokens came one by one. With a larger number, early queries see
    /// more of what is compressed.
    #[must_use]
    pub fn max_append(self, tokens: usize) -> Self {
        Self { max_append: Some(tokens.max(1)), ..self }
    }

    /// The first tokens of a prompt whose keys and queries decide the balance of keys in
    /// [`append_attend`](Self::append_attend); 256 by default. 0: the first page decides, from keys alone, as it does in
    /// [`append`](Self::append) and where a prompt is so short that no page closes in it.
    #[must_use]
    pub fn calibration(self, tokens: usize) -> Self {
        Self { calibration: tokens, ..self }
    }

    /// As it was made.
    #[must_use]
    pub fn config(&self) -> &LayerConfig {
        self.empty.config()
    }

    /// Tokens so far, which is the position of the next one.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.sequences.layers().first().map_or(0, SharedLayer::next_position)
    }

    /// What it holds, all sequences together; counts of tokens are those of one sequence.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.sequences.stats()
    }

    /// The sequences, for snapshots ([`SharedLayer::save`]) and views; none before the first tokens.
    #[must_use]
    pub fn sequences(&self) -> &[SharedLayer] {
        self.sequences.layers()
    }

    /// Takes over one sequence's snapshot, of a layer of the same configuration, in place of all that is here.
    ///
    /// # Errors
    /// As [`SharedLayer::load`]; the cache is then as it was.
    pub fn load(&mut self, snapshot: &[u8]) -> Result<()> {
        let mut layer = self.empty.clone();
        layer.load(snapshot).map_err(Error::wrap)?;
        self.sequences = octaplex::KvCache::from_layers(vec![layer]);
        Ok(())
    }

    /// Forgets everything, the size of the batch included.
    pub fn reset(&mut self) {
        self.sequences = octaplex::KvCache::from_layers(Vec::new());
    }

    /// Forgets the tokens from `position` on, as after rejected drafts; beyond the end, nothing happens. Up to
    /// [`LayerConfig::max_rollback`] tokens back it is then the cache that never had them, bit for bit.
    ///
    /// # Errors
    /// A sliding window that would show what it has dropped, as [`SharedLayer::truncate`] says; the cache is then as it
    /// was.
    pub fn truncate(&mut self, position: usize) -> Result<()> {
        self.sequences.truncate(position).map_err(Error::wrap)
    }

    /// Adds tokens to every sequence: keys after the rotary embedding, \[batch]\[key/value heads]\[tokens]\[key width], and
    /// values, \[batch]\[key/value heads]\[tokens]\[value width], f32, f16 or bf16. Tensors that are not contiguous are
    /// copied.
    ///
    /// # Errors
    /// Another device, type or shape, another batch than before, values that are NaN, infinite or beyond f16, no room;
    /// the cache is then as it was.
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let (batch, _) = check_new(self.config(), keys, values, None)?;
        self.change(batch, batch > 1, |cache| cache.append_block(keys, values))
    }

    /// Computes attention of queries to what the cache holds.
    ///
    /// `queries` are \[batch]\[query heads]\[queries]\[key width]. The result has as many rows of \[value width], in the
    /// queries' type. Query heads are a multiple of key/value heads and share them in order. The last query has the position of
    /// the newest token, those before it the positions before, and none sees a later token: no mask is needed.
    /// [`attend_with`](Self::attend_with) has options.
    ///
    /// # Errors
    /// Another device, type or shape, another batch than the cache's, queries that are NaN or infinite, an empty cache.
    pub fn attend(&self, queries: &Tensor) -> Result<Tensor> {
        self.attend_with(queries, &Attend::default())
    }

    /// [`attend`](Self::attend) with options: scale, soft cap, sliding window and the rest. Their `queries` is the tensor's.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
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

    /// Appends the tokens and computes attention of as many queries, as a model's layer does.
    ///
    /// A prompt goes in by blocks, so that its tokens see what they would see one by one. Its beginning decides the balance
    /// ([`calibration`](Self::calibration)). [`append_attend_with`](Self::append_attend_with) has options.
    ///
    /// # Errors
    /// As [`append`](Self::append) and [`attend`](Self::attend). The cache is then as it was. With a `max_rollback` of 0, a page
    /// that closed with the last token stays closed.
    pub fn append_attend(&mut self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        self.append_attend_with(queries, keys, values, &Attend::default())
    }

    /// [`append_attend`](Self::append_attend) with options.
    ///
    /// # Errors
    /// As [`append_attend`](Self::append_attend), and for options with a bias or a position, which have no meaning for blocks.
    pub fn append_attend_with(
        &mut self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        options: &Attend,
    ) -> Result<Tensor> {
        if options.position.is_some() || !options.bias.is_empty() {
            bail!("options with a position or a bias: call append, then attend_with");
        }
        self.append_attend_by(queries, keys, values, |cache, queries| cache.attend_with(queries, options))
    }

    /// [`append_attend`](Self::append_attend) with your own attention, such as that of a GPU that has the pages
    /// ([`sequences`](Self::sequences)).
    ///
    /// It calls `attend` after it appended each block, with the block's queries. `attend` returns
    /// \[batch]\[query heads]\[queries]\[value width].
    ///
    /// # Errors
    /// As [`append_attend`](Self::append_attend), and what `attend` returns.
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

    /// Makes a change, which is taken back if it fails. Of one token in one sequence nothing is kept for that.
    fn change<T>(
        &mut self,
        batch: usize,
        keep: bool,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let (before, first) = (self.current_seq_len(), self.sequences.layers().is_empty());
        let kept = keep.then(|| self.sequences.fork());
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
            count => bail!("a batch of {batch}, and the cache has one of {count}: reset it first"),
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

    /// The end of the block that starts with token `from`. In blocks from one closing page to the next, every query sees
    /// the pages that it would see if tokens came one by one.
    fn block_end(&self, from: usize) -> usize {
        let config = self.config();
        let first = config.sink_tokens + config.recent_window + config.page - 1;
        let end = match self.max_append {
            Some(tokens) => from.saturating_add(tokens),
            None if from < first => first,
            None => next_page(from, first, config.page),
        };
        // A local layer drops a page once its newest query is past it: the first query of a block must be as well.
        config.sliding_window.map_or(end, |window| {
            let seen = (from + 1).saturating_sub(window).max(config.sink_tokens);
            end.min(next_page(seen, config.sink_tokens, config.page).saturating_add(window - 1))
        })
    }

    /// Decides the balance where the first page closes within this prompt, from its first keys and queries.
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

/// The end of the page that `position` is in, where the first one starts at `first`.
fn next_page(position: usize, first: usize, page: usize) -> usize {
    first + ((position - first) / page + 1) * page
}
