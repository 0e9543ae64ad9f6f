//! A plain model of a cache's layer: uncompressed tokens, and attention in f64. Tests, the fuzz target `cache` and the soak
//! compare a cache with it.
#![allow(dead_code, unreachable_pub)] // each binary takes what it needs
#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::{Attend, KvCache, LayerConfig, f16};

#[derive(Clone)]
pub struct Model {
    pub config: LayerConfig,
    /// Of the tokens held, ascending.
    pub positions: Vec<usize>,
    /// \[tokens]\[heads]\[width], rounded to f16 as the cache's exact rows are.
    keys: Vec<f32>,
    values: Vec<f32>,
    pub next: usize,
    /// The furthest that it has reached.
    pub furthest: usize,
}

pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x));
    let weights: Vec<f64> = logits.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

impl Model {
    pub fn new(config: LayerConfig) -> Self {
        Self { config, positions: vec![], keys: vec![], values: vec![], next: 0, furthest: 0 }
    }

    /// Values of a token, keys and values.
    fn widths(&self) -> [usize; 2] {
        [self.config.kv_heads * self.config.key_dim, self.config.kv_heads * self.config.value_dim]
    }

    /// Rows \[heads]\[count]\[width].
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        let config = self.config;
        let count = keys.len() / self.widths()[0];
        for (to, rows, dim) in
            [(&mut self.keys, keys, config.key_dim), (&mut self.values, values, config.value_dim)]
        {
            for token in 0..count {
                for head in 0..config.kv_heads {
                    let row = &rows[(head * count + token) * dim..][..dim];
                    to.extend(row.iter().map(|x| f16::from_f32(*x).to_f32()));
                }
            }
        }
        self.positions.extend(self.next..self.next + count);
        self.next += count;
        self.furthest = self.furthest.max(self.next);
    }

    pub fn truncate(&mut self, position: usize) {
        let left = self.positions.partition_point(|held| *held < position);
        self.positions.truncate(left);
        let [keys, values] = self.widths();
        self.keys.truncate(left * keys);
        self.values.truncate(left * values);
        self.next = self.next.min(position);
    }

    /// The cache holds nothing else, and everything that a query may see: all of a layer without a sliding window.
    pub fn check_held(&self, cache: &KvCache) {
        let held: Vec<usize> = cache.layers()[0].positions().collect();
        assert!(held.is_sorted() && held.len() == cache.layers()[0].tokens());
        assert!(held.iter().all(|position| self.positions.binary_search(position).is_ok()));
        let visible = self.config.sliding_window.map_or(0, |window| self.next.saturating_sub(window));
        for &position in &self.positions {
            let seen = position < self.config.sink_tokens || position >= visible;
            assert!(!seen || held.binary_search(&position).is_ok(), "{position} is gone, {:?}", self.config);
        }
    }

    /// Forgets the tokens that the cache held `before` an eviction and no longer holds. Returns their positions. (Tokens
    /// that a sliding window hides may be in the cache again after a rollback.)
    pub fn forget_evicted(&mut self, before: &[usize], cache: &KvCache) -> Vec<usize> {
        let held: Vec<usize> = cache.layers()[0].positions().collect();
        let [keys, values] = self.widths();
        let (mut kept, mut dropped) = (0, Vec::new());
        for token in 0..self.positions.len() {
            let position = self.positions[token];
            if before.binary_search(&position).is_ok() && held.binary_search(&position).is_err() {
                dropped.push(position);
                continue;
            }
            self.positions[kept] = position;
            self.keys.copy_within(token * keys..(token + 1) * keys, kept * keys);
            self.values.copy_within(token * values..(token + 1) * values, kept * values);
            kept += 1;
        }
        self.positions.truncate(kept);
        self.keys.truncate(kept * keys);
        self.values.truncate(kept * values);
        dropped
    }

    pub fn attend(&self, queries: &[f32], options: &Attend) -> Vec<f32> {
        let (dk, dv, n) = (self.config.key_dim, self.config.value_dim, options.queries.unwrap_or(1));
        let heads = queries.len() / dk / n;
        let group = heads / self.config.kv_heads;
        let first = options.position.unwrap_or(self.next - n);
        let scale = options.scale.map_or(1.0 / (dk as f64).sqrt(), f64::from);
        let window = options.window.or(self.config.sliding_window).unwrap_or(usize::MAX);
        let mut output = Vec::new();
        for (row, query) in queries.chunks_exact(dk).enumerate() {
            let (head, position) = (row / n, first + row % n);
            let row_of = |token: usize, dim: usize| (token * self.config.kv_heads + head / group) * dim;
            let mut logits = Vec::new();
            for (token, &held) in self.positions.iter().enumerate() {
                let mut logit = dot(query, &self.keys[row_of(token, dk)..][..dk]) * scale;
                if let Some(cap) = options.soft_cap {
                    logit = f64::from(cap) * (logit / f64::from(cap)).tanh();
                }
                if !options.bias.is_empty() {
                    let row = if options.bias.len() == self.next { 0 } else { head };
                    logit += f64::from(options.bias[row * self.next + held]);
                }
                let kept = options.keep_sinks && held < self.config.sink_tokens;
                let visible = held <= position && (position - held < window || kept);
                logits.push(if visible { logit } else { f64::NEG_INFINITY });
            }
            logits.extend(options.sink_logits.get(head).map(|x| f64::from(*x)));
            let weights = softmax(&logits);
            let mut sums = vec![0.0; dv];
            for (token, weight) in weights.iter().enumerate().take(self.positions.len()) {
                let value = &self.values[row_of(token, dv)..][..dv];
                sums.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * f64::from(*x));
            }
            output.extend(sums.iter().map(|sum| if sum.is_nan() { 0.0 } else { *sum as f32 }));
        }
        output
    }
}

/// Returns the distance of two outputs, relative to the norm of the expected one.
pub fn distance(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let energy = expected.iter().map(|x| x * x).sum::<f32>().sqrt() + 1e-3;
    actual.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt() / energy
}
