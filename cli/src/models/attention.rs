//! The source of keys and values of a model's attention: a cache of this library, or plain f32.

use super::shape::Shape;
use crate::device::Device;
use crate::failure::{Failure, Result, fail, first_line};
use candle_core::Tensor;
use octaplex_candle::{KvCache, Stats};
use std::time::{Duration, Instant};

/// Attention and its memory. Tensors are \[1]\[heads]\[tokens]\[width], after the rotary embedding.
pub(crate) trait Attention {
    /// Returns the tokens stored in every layer.
    fn tokens(&self) -> usize;

    /// Stores the next tokens of a layer, and attends: each query sees the tokens up to its own.
    fn attend(&mut self, layer: usize, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor>;
}

/// The cache of this library: queries see only its compressed tokens.
pub(crate) struct Cached {
    layers: Vec<KvCache>,
    /// Tokens appended at once; by default as many as see the same pages.
    block: Option<usize>,
    time: Duration,
    #[cfg(feature = "gpu")]
    gpu: Option<super::gpu::Gpu>,
}

impl Cached {
    pub(crate) fn new(layers: Vec<KvCache>, block: Option<usize>) -> Self {
        Self {
            layers,
            block,
            time: Duration::ZERO,
            #[cfg(feature = "gpu")]
            gpu: None,
        }
    }

    /// Creates the same cache with attention on a device.
    pub(crate) fn on(self, device: Device) -> Result<Self> {
        match device {
            Device::Cpu => Ok(self),
            #[cfg(feature = "gpu")]
            _ => Ok(Self { gpu: Some(super::gpu::Gpu::new(device, &self.layers)?), ..self }),
            #[cfg(not(feature = "gpu"))]
            _ => device.check().map(|()| self),
        }
    }

    /// Copies the cache, with attention on the CPU. The two then change independently.
    pub(crate) fn fork(&self) -> Self {
        Self::new(self.layers.clone(), self.block)
    }

    pub(crate) fn clear(&mut self) {
        self.layers.iter_mut().for_each(KvCache::reset);
    }

    /// Keeps the first `tokens`, or fewer if that would cut a closed page, so that none is encoded twice. Returns the
    /// number, or the reason why none is left.
    pub(crate) fn keep(&mut self, tokens: usize) -> std::result::Result<usize, &'static str> {
        let decoded = |layers: &[KvCache]| layers.iter().map(|layer| layer.stats().decoded_tokens).max();
        let (before, had_pages) = (decoded(&self.layers), self.stats().paged_tokens > 0);
        let mut trial = self.layers.clone();
        let cut = truncate(&mut trial, tokens).and_then(|()| {
            let kept = tokens.saturating_sub(decoded(&trial).unwrap_or(0) - before.unwrap_or(0));
            truncate(&mut self.layers, kept).map(|()| kept)
        });
        let why = match cut {
            Err(_) => "a sliding window has dropped what it would show there",
            // Their common part did not decide the balance.
            Ok(_) if had_pages && self.stats().paged_tokens == 0 => "no page lies before it",
            Ok(kept) => return Ok(kept),
        };
        self.clear();
        Err(why)
    }

    /// Returns the layers' snapshots.
    pub(crate) fn save(&self) -> impl Iterator<Item = Vec<u8>> {
        self.layers.iter().flat_map(KvCache::sequences).map(|layer| {
            let mut bytes = Vec::new();
            layer.save(&mut |piece| bytes.extend_from_slice(piece));
            bytes
        })
    }

    /// Loads the snapshot of a layer that has `tokens` tokens.
    pub(crate) fn load(&mut self, number: usize, tokens: usize, bytes: &[u8]) -> Result<()> {
        let layer = &mut self.layers[number];
        layer.load(bytes).map_err(|error| Failure(format!("layer {number}: {}", first_line(&error))))?;
        match layer.current_seq_len() {
            position if position == tokens => Ok(()),
            position => fail!("layer {number}: {position} tokens in place of {tokens}"),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.layers.iter().map(KvCache::stats).sum()
    }

    /// Returns the time spent in the cache.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    /// Returns the bits of a value in pages, which a long context approaches: everything except the exact tokens, and the parts
    /// that a head has once.
    pub(crate) fn page_bits(&self) -> f64 {
        let (mut bytes, mut values) = (0, 0);
        for layer in &self.layers {
            let (config, stats) = (layer.config(), layer.stats());
            let a_token = config.kv_heads * (config.key_dim + config.value_dim);
            bytes += stats.paged_bytes;
            values += a_token * stats.paged_tokens;
        }
        match values {
            // No page has closed: estimate the size of pages.
            0 => {
                self.layers.iter().map(|layer| layer.config().page_bits()).sum::<f64>()
                    / self.layers.len() as f64
            }
            _ => 8.0 * bytes as f64 / values as f64,
        }
    }

    /// Returns the first position of a prompt whose query reads a page. Earlier ones see exact tokens only.
    pub(crate) fn first_paged_position(&self) -> usize {
        let Some(layer) = self.layers.first() else { return 0 };
        let config = layer.config();
        let first = config.sink_tokens + config.recent_window + config.page - 1;
        match self.block {
            None => first,
            // All queries of a block see the pages that close with it.
            Some(block) => (first / block * block).max(config.sink_tokens),
        }
    }
}

fn truncate(layers: &mut [KvCache], tokens: usize) -> candle_core::Result<()> {
    layers.iter_mut().try_for_each(|layer| layer.truncate(tokens))
}

impl Attention for Cached {
    fn tokens(&self) -> usize {
        self.layers.last().map_or(0, KvCache::current_seq_len)
    }

    fn attend(&mut self, layer: usize, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let start = Instant::now();
        let cache = &mut self.layers[layer];
        let output = cache.append_attend_by(queries, keys, values, |cache, queries| {
            #[cfg(feature = "gpu")]
            if let Some(gpu) = &mut self.gpu {
                return gpu.attend(layer, cache, queries);
            }
            cache.attend(queries)
        });
        self.time += start.elapsed();
        output.map_err(|error| Failure(format!("cache, layer {layer}: {}", first_line(&error))))
    }
}

/// Keys and values in f32 with textbook attention, the reference of the f16 cache. It takes one prompt.
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

    fn attend(&mut self, layer: usize, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let Shape { head_dim, heads, kv_heads, .. } = self.shape;
        let attend = || {
            let tokens = keys.dim(2)?;
            let window = self.shape.window(layer).unwrap_or(tokens);
            let outputs = (0..heads).map(|head| {
                let shared = head / (heads / kv_heads);
                let rows = |tensor: &Tensor, head: usize| tensor.get_on_dim(1, head)?.squeeze(0);
                let scores = rows(queries, head)?.matmul(&rows(keys, shared)?.t()?)?;
                let mut weights = scores.flatten_all()?.to_vec1::<f32>()?;
                for (token, row) in weights.chunks_exact_mut(tokens).enumerate() {
                    let first = (token + 1).saturating_sub(window);
                    softmax(&mut row[first..=token], 1.0 / (head_dim as f32).sqrt());
                    row[..first].fill(0.0);
                    row[token + 1..].fill(0.0);
                }
                let weights = Tensor::from_vec(weights, (tokens, tokens), &candle_core::Device::Cpu)?;
                weights.matmul(&rows(values, shared)?.contiguous()?)
            });
            Tensor::stack(&outputs.collect::<candle_core::Result<Vec<_>>>()?, 0)?.unsqueeze(0)
        };
        attend().map_err(|error| Failure(first_line(&error)))
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
