//! Measures how well a model predicts a text with one cache, and how much the predictions differ from those with another.

use super::attention::{Attention, Cached, Exact};
use super::forward::Model;
use super::matrix::{Dense, check_finite};
use super::options::{Codecs, ModelOptions};
use crate::backend::kernels;
use crate::device::Device;
use crate::failure::Result;
use crate::progress::Progress;
use octaplex_arch::Backend;
use rayon::prelude::*;
use serde_json::{Value, json};

/// A model on windows of a text with the f16 cache, the baseline of other caches.
pub(crate) struct Reference<'a> {
    model: &'a Model,
    options: &'a ModelOptions,
    windows: Vec<&'a [u32]>,
    output: Dense,
    /// Hidden states of each window. Logits are computed again for a comparison, which is quicker than to store them.
    hidden: Vec<Vec<f32>>,
    kv_bytes: usize,
}

/// Sums over predicted tokens.
#[derive(Clone, Default)]
struct Predictions {
    /// Nats: -ln of the probability of the actual token.
    loss: f64,
    reference_loss: f64,
    divergences: Vec<f64>,
    agreed: usize,
}

/// The results of a model with one cache.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) tokens: usize,
    pub(crate) perplexity: f64,
    pub(crate) perplexity_f16: f64,
    pub(crate) kl_mean: f64,
    /// The mean over positions whose queries read pages; others see exact tokens only. `None` without such positions.
    pub(crate) kl_paged: Option<f64>,
    pub(crate) kl_p99: f64,
    pub(crate) top1_agreement: f64,
    /// Bytes at the end of a window.
    pub(crate) kv_bytes: usize,
    pub(crate) kv_bytes_f16: usize,
    pub(crate) bits_per_value: f64,
    pub(crate) bits_per_value_pages: f64,
}

/// Rows whose logits are in memory at once.
const ROWS: usize = 64;

impl<'a> Reference<'a> {
    /// Runs `windows` windows of equal length, each from an empty cache.
    pub(crate) fn new(
        model: &'a Model,
        options: &'a ModelOptions,
        tokens: &'a [u32],
        windows: usize,
        progress: &Progress,
    ) -> Result<Self> {
        let windows: Vec<_> = tokens.chunks_exact(tokens.len() / windows).collect();
        let mut cache = options.cache(model, &Codecs::f16(), windows[0].len())?;
        progress.about("f16 cache");
        let hidden = run(model, &windows, &mut cache, Cached::clear, progress)?;
        let (kv_bytes, output) = (cache.stats().bytes, model.dense_output()?);
        Ok(Self { model, options, windows, output, hidden, kv_bytes })
    }

    /// Returns the steps that a measurement reports.
    pub(crate) fn steps(model: &Model, windows: usize) -> usize {
        model.shape.layers * windows
    }

    /// Measures the same text with another cache, whose attention runs on a device.
    pub(crate) fn measure(&self, codecs: &Codecs, device: Device, progress: &Progress) -> Result<Outcome> {
        let mut cache = self.options.cache(self.model, codecs, self.windows[0].len())?.on(device)?;
        progress.about(&codecs.describe());
        let (hidden, stats);
        let hidden = if codecs.is_f16() {
            stats = (self.kv_bytes, 16.0, 16.0);
            &self.hidden
        } else {
            hidden = run(self.model, &self.windows, &mut cache, Cached::clear, progress)?;
            stats = (cache.stats().bytes, cache.stats().bits_per_value(), cache.page_bits());
            &hidden
        };
        let predictions = self.compare(hidden)?;
        let first = cache.first_paged_position();
        let of_windows = predictions.divergences.chunks_exact(self.windows[0].len() - 1);
        let paged: Vec<_> = of_windows.flat_map(|window| window.iter().skip(first)).collect();
        let kl_paged = paged.iter().copied().sum::<f64>() / paged.len() as f64;
        let kl_paged = (!codecs.is_f16() && !paged.is_empty()).then_some(kl_paged);
        let mut divergences = predictions.divergences;
        divergences.sort_by(f64::total_cmp);
        let count = divergences.len();
        Ok(Outcome {
            tokens: count,
            perplexity: (predictions.loss / count as f64).exp(),
            perplexity_f16: (predictions.reference_loss / count as f64).exp(),
            kl_mean: divergences.iter().sum::<f64>() / count as f64,
            kl_paged,
            kl_p99: divergences[(count * 99).div_ceil(100).max(1) - 1],
            top1_agreement: predictions.agreed as f64 / count as f64,
            kv_bytes: stats.0,
            kv_bytes_f16: self.kv_bytes,
            bits_per_value: stats.1,
            bits_per_value_pages: stats.2,
        })
    }

    /// Returns the perplexity without a cache, all in f32.
    pub(crate) fn exact_perplexity(&self, progress: &Progress) -> Result<f64> {
        progress.about("f32");
        let hidden = run(self.model, &self.windows, &mut Exact::new(&self.model.shape), |_| (), progress)?;
        let predictions = self.compare(&hidden)?;
        Ok((predictions.loss / predictions.divergences.len() as f64).exp())
    }

    /// Compares the predictions: every position except a window's last predicts the token after it.
    fn compare(&self, hidden: &[Vec<f32>]) -> Result<Predictions> {
        let (width, backend) = (self.model.shape.width, kernels(self.options.backend()));
        let mut sum = Predictions::default();
        for ((window, reference), hidden) in self.windows.iter().zip(&self.hidden).zip(hidden) {
            let predicting = (window.len() - 1) * width;
            let blocks = reference[..predicting].chunks(ROWS * width).zip(hidden.chunks(ROWS * width));
            for ((reference, hidden), targets) in blocks.zip(window[1..].chunks(ROWS)) {
                let rows = targets.len();
                let both = [reference, &hidden[..rows * width]].concat();
                let predictions = self.output.apply(&both, |logits| {
                    check_finite(logits)?;
                    let vocabulary = logits.len() / (2 * rows);
                    let (reference, logits) = logits.split_at(rows * vocabulary);
                    let pairs =
                        reference.par_chunks_exact(vocabulary).zip(logits.par_chunks_exact(vocabulary));
                    let predictions = pairs.zip(targets).map(|((reference, logits), &target)| {
                        Predictions::of(reference, logits, target as usize, backend)
                    });
                    Ok(predictions.collect::<Vec<_>>())
                })??;
                predictions.into_iter().for_each(|predictions| sum.add(predictions));
            }
        }
        Ok(sum)
    }
}

/// Returns the hidden states of each window.
fn run<A: Attention>(
    model: &Model,
    windows: &[&[u32]],
    attention: &mut A,
    empty: impl Fn(&mut A),
    progress: &Progress,
) -> Result<Vec<Vec<f32>>> {
    let hidden = windows.iter().map(|window| {
        empty(attention);
        model.forward(window, attention, || progress.step(1))
    });
    hidden.collect()
}

/// Computes the divergence of a prediction from another.
pub(super) fn divergence(reference: &[f32], logits: &[f32], backend: Backend) -> f64 {
    Predictions::of(reference, logits, 0, backend).divergences[0]
}

impl Predictions {
    /// Measures one prediction.
    fn of(reference: &[f32], logits: &[f32], target: usize, backend: Backend) -> Self {
        let best = |x: &[f32]| {
            let max = backend.min_max(x).1;
            (x.iter().position(|x| *x == max), max)
        };
        let ((top, max), (other_top, other_max)) = (best(reference), best(logits));
        let mut weights = logits.to_vec();
        let log_sum = f64::from(other_max) + f64::from(backend.exp_weights(&mut weights, other_max)).ln();
        weights.copy_from_slice(reference);
        let sum = f64::from(backend.exp_weights(&mut weights, max));
        let reference_log_sum = f64::from(max) + sum.ln();
        let differences = weights.iter().zip(reference).zip(logits);
        let difference: f64 = differences.map(|((weight, a), b)| f64::from(*weight) * f64::from(a - b)).sum();
        Self {
            loss: log_sum - f64::from(logits[target]),
            reference_loss: reference_log_sum - f64::from(reference[target]),
            divergences: vec![(difference / sum - reference_log_sum + log_sum).max(0.0)],
            agreed: usize::from(top == other_top),
        }
    }

    fn add(&mut self, other: Self) {
        self.loss += other.loss;
        self.reference_loss += other.reference_loss;
        self.divergences.extend(other.divergences);
        self.agreed += other.agreed;
    }
}

impl Outcome {
    pub(crate) fn json(&self) -> Value {
        json!({
            "tokens": self.tokens, "perplexity": self.perplexity, "perplexity_f16": self.perplexity_f16,
            "kl_mean": self.kl_mean, "kl_paged": self.kl_paged, "kl_p99": self.kl_p99, "top1_agreement": self.top1_agreement,
            "kv_bytes": self.kv_bytes, "kv_bytes_f16": self.kv_bytes_f16,
            "bits_per_value": self.bits_per_value, "bits_per_value_pages": self.bits_per_value_pages,
        })
    }

    /// Reads the numbers back; `None` if one is missing.
    pub(crate) fn from_json(json: &Value) -> Option<Self> {
        let number = |name: &str| json[name].as_f64();
        let count = |name: &str| json[name].as_u64().map(|count| count as usize);
        Some(Self {
            tokens: count("tokens")?,
            perplexity: number("perplexity")?,
            perplexity_f16: number("perplexity_f16")?,
            kl_mean: number("kl_mean")?,
            kl_paged: number("kl_paged"),
            kl_p99: number("kl_p99")?,
            top1_agreement: number("top1_agreement")?,
            kv_bytes: count("kv_bytes")?,
            kv_bytes_f16: count("kv_bytes_f16")?,
            bits_per_value: number("bits_per_value")?,
            bits_per_value_pages: number("bits_per_value_pages")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_of_three_tokens() {
        let backend = Backend::detect();
        let (p, q) = ([0.5f32, 0.3, 0.2], [0.25f32, 0.5, 0.25]);
        let logits = |p: [f32; 3]| p.map(|p| p.ln() + 3.0);
        let found = Predictions::of(&logits(p), &logits(q), 2, backend);
        let divergence: f64 = p.iter().zip(q).map(|(p, q)| f64::from(p * (p / q).ln())).sum();
        assert!((found.divergences[0] - divergence).abs() < 1e-6, "{:?}", found.divergences);
        assert!((found.loss - 4f64.ln()).abs() < 1e-6 && (found.reference_loss - 5f64.ln()).abs() < 1e-6);
        assert_eq!(found.agreed, 0);
        let same = Predictions::of(&logits(p), &logits(p), 0, backend);
        assert!(same.divergences[0] < 1e-12 && same.agreed == 1);
    }
}
