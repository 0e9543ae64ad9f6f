//! Where a model's attention gets its keys and values from: a cache of this library, or plain f32.

use super::gguf::first_line;
use super::shape::Shape;
use crate::codecs::is_float;
use crate::failure::{At, Failure, Result, fail};
use candle_core::{Device, Tensor};
use octaplex::{Attend, KvCache, LayerConfig, Stats};
use std::time::{Duration, Instant};

/// Attention with a memory. Rows are \[heads]\[tokens]\[width], after the rotary embedding.
pub(crate) trait Attention {
    /// Tokens that it has in every layer.
    fn tokens(&self) -> usize;

    /// Takes in the next tokens of a layer, and answers their queries: each sees the tokens up to its own.
    fn attend(
        &mut self,
        layer: usize,
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
        outputs: &mut [f32],
    ) -> Result<()>;
}

/// The cache of this library: what it has compressed is all that queries see.
pub(crate) struct Cached {
    cache: KvCache,
    shape: Shape,
    /// Tokens appended at once; by default as many as see the same pages.
    block: Option<usize>,
    /// First tokens of a prompt whose keys and queries decide the balance; none leave it to the cache.
    calibration: usize,
    time: Duration,
}

impl Cached {
    pub(crate) fn new(cache: KvCache, shape: &Shape, block: Option<usize>, calibration: usize) -> Self {
        Self { cache, shape: *shape, block, calibration, time: Duration::ZERO }
    }

    /// The same tokens; from now on apart.
    pub(crate) fn fork(&self) -> Self {
        Self { cache: self.cache.fork(), time: Duration::ZERO, ..*self }
    }

    pub(crate) fn clear(&mut self) {
        self.cache.clear();
    }

    /// Keeps the first `tokens`, or fewer where that would cut a closed page, so that none is encoded twice. Returns how
    /// many; or why none, the cache then being empty.
    pub(crate) fn keep(&mut self, tokens: usize) -> std::result::Result<usize, &'static str> {
        let decoded = |cache: &KvCache| cache.layers().iter().map(|layer| layer.stats().decoded_tokens).max();
        let (before, had_pages) = (decoded(&self.cache), self.stats().paged_tokens > 0);
        let mut trial = self.cache.fork();
        let cut = trial.truncate(tokens).and_then(|()| {
            let kept = tokens.saturating_sub(decoded(&trial).unwrap_or(0) - before.unwrap_or(0));
            self.cache.truncate(kept).map(|()| kept)
        });
        let why = match cut {
            Err(_) => "a sliding window has dropped what it would show there",
            // What they have in common did not decide the balance.
            Ok(_) if had_pages && self.stats().paged_tokens == 0 => "no page lies before it",
            Ok(kept) => return Ok(kept),
        };
        self.clear();
        Err(why)
    }

    /// The layers' snapshots.
    pub(crate) fn save(&self) -> impl Iterator<Item = Vec<u8>> {
        self.cache.layers().iter().map(|layer| {
            let mut bytes = Vec::new();
            layer.save(&mut |piece| bytes.extend_from_slice(piece));
            bytes
        })
    }

    /// Takes over the snapshot of a layer that has so many tokens.
    pub(crate) fn load(&mut self, layer: usize, tokens: usize, bytes: &[u8]) -> Result<()> {
        let place = format!("layer {layer}");
        let layer = self.cache.layer_mut(layer).at(&place)?;
        layer.load(bytes).at(&place)?;
        match layer.next_position() {
            position if position == tokens => Ok(()),
            position => fail!("{place}: {position} tokens in place of {tokens}"),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Time spent in the cache so far.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    /// Bits of a value in pages, which is what a long context tends to: everything but the exact tokens, and what a head has
    /// once.
    pub(crate) fn page_bits(&self) -> f64 {
        let (mut bytes, mut values) = (0, 0);
        for layer in self.cache.layers() {
            let (config, stats) = (layer.config(), layer.stats());
            let a_token = config.kv_heads * (config.key_dim + config.value_dim);
            bytes += stats.paged_bytes;
            values += a_token * stats.paged_tokens;
        }
        8.0 * bytes as f64 / values.max(1) as f64
    }

    /// The end of the block that starts with token `from`. In blocks from one closing page to the next, every query sees
    /// the pages that it would see if tokens came one by one.
    fn block_end(&self, config: &LayerConfig, from: usize) -> usize {
        let first = config.sink_tokens + config.recent_window + config.page - 1;
        let end = match self.block {
            Some(block) => from + block,
            None if from < first => first,
            None => next_page(from, first, config.page),
        };
        // A local layer drops a page once its newest query is past it: the first query of a block must be as well.
        config.sliding_window.map_or(end, |window| {
            let seen = (from + 1).saturating_sub(window).max(config.sink_tokens);
            end.min(next_page(seen, config.sink_tokens, config.page) + window - 1)
        })
    }

    /// The first position of a prompt whose query reads a page: those before it see exact tokens only.
    pub(crate) fn first_paged_position(&self) -> usize {
        let Some(layer) = self.cache.layers().first() else { return 0 };
        let config = layer.config();
        let first = config.sink_tokens + config.recent_window + config.page - 1;
        match self.block {
            None => first,
            // All queries of a block see the pages that close with it.
            Some(block) => (first / block * block).max(config.sink_tokens),
        }
    }

    /// Decides the balance where the first page closes within this prompt, from its first keys and queries.
    fn calibrate(&mut self, layer: usize, queries: &[f32], keys: &[f32]) -> Result<()> {
        let Shape { head_dim, kv_heads, .. } = self.shape;
        let layer = self.cache.layer_mut(layer).at("cache")?;
        let config = *layer.config();
        let tokens = keys.len() / (kv_heads * head_dim);
        let closes = tokens >= config.sink_tokens + config.recent_window + config.page;
        let first = 0..tokens.min(self.calibration);
        if !config.balance
            || is_float(config.keys)
            || layer.next_position() > 0
            || !closes
            || first.is_empty()
        {
            return Ok(());
        }
        let [keys, queries] = [keys, queries].map(|rows| cut(rows, tokens, head_dim, first.clone()));
        layer.calibrate(&keys, &queries).at("balance")
    }
}

/// The end of the page that `position` is in, where the first one starts at `first`.
fn next_page(position: usize, first: usize, page: usize) -> usize {
    first + ((position - first) / page + 1) * page
}

/// Tokens `range` of each head.
fn cut(rows: &[f32], tokens: usize, width: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    let heads = rows.chunks_exact(tokens * width);
    heads.flat_map(|head| &head[range.start * width..range.end * width]).copied().collect()
}

impl Attention for Cached {
    fn tokens(&self) -> usize {
        self.cache.layers().last().map_or(0, |layer| layer.next_position())
    }

    fn attend(
        &mut self,
        layer: usize,
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
        outputs: &mut [f32],
    ) -> Result<()> {
        let start = Instant::now();
        let Shape { head_dim, kv_heads, .. } = self.shape;
        let tokens = keys.len() / (kv_heads * head_dim);
        let place = format!("cache, layer {layer}");
        let config = *self.cache.layers()[layer].config();
        let before = self.cache.layers()[layer].next_position();
        self.calibrate(layer, queries, keys)?;
        let mut done = 0;
        while done < tokens {
            let range = done..tokens.min(self.block_end(&config, before + done) - before);
            let count = range.len();
            let queries = cut(queries, tokens, head_dim, range.clone());
            let keys = cut(keys, tokens, head_dim, range.clone());
            let values = cut(values, tokens, head_dim, range.clone());
            self.cache.append(layer, &keys, &values).at(&place)?;
            let mut output = vec![0.0; queries.len()];
            let options = Attend::default().queries(count);
            self.cache.attend(layer, &queries, &options, &mut output).at(&place)?;
            let heads = outputs.chunks_exact_mut(tokens * head_dim);
            for (whole, part) in heads.zip(output.chunks_exact(count * head_dim)) {
                whole[range.start * head_dim..range.end * head_dim].copy_from_slice(part);
            }
            done = range.end;
        }
        self.time += start.elapsed();
        Ok(())
    }
}

/// Keys and values in f32, attention as the textbook has it: what the f16 cache is measured against. It sees one prompt.
pub(crate) struct Exact {
    shape: Shape,
}

impl Exact {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self { shape: *shape }
    }
}

impl Attention for Exact {
    fn tokens(&self) -> usize {
        0
    }

    fn attend(
        &mut self,
        layer: usize,
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
        outputs: &mut [f32],
    ) -> Result<()> {
        let Shape { head_dim, heads, kv_heads, .. } = self.shape;
        let tokens = keys.len() / (kv_heads * head_dim);
        let window = self.shape.window(layer).unwrap_or(tokens);
        let rows = |rows: &[f32], head: usize| {
            let head = &rows[head * tokens * head_dim..][..tokens * head_dim];
            Tensor::from_slice(head, (tokens, head_dim), &Device::Cpu)
        };
        let product = |a: &Tensor, b: &Tensor| a.matmul(b)?.flatten_all()?.to_vec1::<f32>();
        for (head, output) in outputs.chunks_exact_mut(tokens * head_dim).enumerate() {
            let shared = head / (heads / kv_heads);
            let attend = || {
                let mut weights = product(&rows(queries, head)?, &rows(keys, shared)?.t()?)?;
                for (token, row) in weights.chunks_exact_mut(tokens).enumerate() {
                    let first = (token + 1).saturating_sub(window);
                    softmax(&mut row[first..=token], 1.0 / (head_dim as f32).sqrt());
                    row[..first].fill(0.0);
                    row[token + 1..].fill(0.0);
                }
                let weights = Tensor::from_vec(weights, (tokens, tokens), &Device::Cpu)?;
                product(&weights, &rows(values, shared)?)
            };
            output.copy_from_slice(&attend().map_err(|error| Failure(first_line(&error)))?);
        }
        Ok(())
    }
}

fn softmax(scores: &mut [f32], scale: f32) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in &mut *scores {
        *score = ((*score - max) * scale).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|weight| *weight /= sum);
}
