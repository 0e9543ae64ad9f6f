//! Replaces the attention of an engine that keeps keys and values in f32: its own attention over `Vec<f32>`, then the same
//! calls on a compressed cache. `cargo run --release --example own_model`

use octaplex::{Backend, Error, KvCache, LayerConfig};

const D: usize = 128;

/// The attention of the engine: one head, all keys and values in f32.
struct PlainCache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl PlainCache {
    fn append(&mut self, key: &[f32], value: &[f32]) {
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
    }

    fn attend(&self, query: &[f32], output: &mut [f32]) {
        let logit = |key: &[f32]| key.iter().zip(query).map(|(k, q)| k * q).sum::<f32>() / (D as f32).sqrt();
        let logits: Vec<f32> = self.keys.chunks_exact(D).map(logit).collect();
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let weights: Vec<f32> = logits.iter().map(|x| (x - max).exp()).collect();
        let sum: f32 = weights.iter().sum();
        output.fill(0.0);
        for (weight, value) in weights.iter().zip(self.values.chunks_exact(D)) {
            output.iter_mut().zip(value).for_each(|(o, v)| *o += weight / sum * v);
        }
    }
}

/// The same two calls on a compressed cache.
struct CompressedCache(KvCache);

impl CompressedCache {
    fn new(capacity: usize) -> Result<Self, Error> {
        Ok(Self(KvCache::new([LayerConfig::new(1, D, capacity)], Backend::detect())?))
    }

    fn append(&mut self, key: &[f32], value: &[f32]) -> Result<(), Error> {
        self.0.append(0, key, value)
    }

    fn attend(&mut self, query: &[f32], output: &mut [f32]) -> Result<(), Error> {
        self.0.attend(0, query, output)
    }
}

/// Returns keys like those of models: a large constant part, and a small one that varies.
fn row(seed: usize, constant: f32) -> Vec<f32> {
    let noise = |i: usize| ((seed * 7919 + i * 104_729 + seed * i * 31) % 2003) as f32 / 1001.0 - 1.0;
    (0..D).map(|i| constant * ((i % 5) as f32 - 2.0) + noise(i)).collect()
}

fn main() -> Result<(), Error> {
    let mut plain = PlainCache { keys: vec![], values: vec![] };
    let mut compressed = CompressedCache::new(4096)?;
    for token in 0..2000 {
        let (key, value) = (row(token, 5.0), row(token + 10_000, 0.0));
        plain.append(&key, &value);
        compressed.append(&key, &value)?;
    }
    let (mut exact, mut output) = (vec![0.0; D], vec![0.0; D]);
    let query = row(77, 0.3);
    plain.attend(&query, &mut exact);
    compressed.attend(&query, &mut output)?;

    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
    let error =
        square(&mut exact.iter().zip(&output).map(|(a, b)| a - b)) / square(&mut exact.iter().copied());
    let bytes = compressed.0.stats().bytes;
    println!(
        "{} bytes instead of {}; error of the output {error:.4}",
        bytes,
        4 * (plain.keys.len() + plain.values.len())
    );
    assert!(error < 0.05);
    Ok(())
}
