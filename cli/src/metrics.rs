//! How close a codec stays to the exact vectors, the exact scores and the exact attention.
//!
//! - distortion: Σ‖x-x̂‖² / Σ‖x‖² over all vectors; cosine: the mean over vectors.
//! - score error: mean |q·k - score| over every query and the tokens up to its own, q·k unscaled, the score computed
//!   on compressed bytes.
//! - attention KL: Σ p·ln(p/p̂), p = softmax(q·k/√D) over the tokens up to the query's own, in f64 from the input's
//!   values, p̂ the same from the codec's scores; the mean over layers, query heads and queries.
//! - output error: Σ‖o-ô‖² / Σ‖o‖² over the queries of a query head, the mean over layers and query heads; keys:
//!   weights p̂, exact values; values: weights p, the codec's sum over compressed values.

use crate::failure::{Failure, Result};
use crate::input::Sample;
use octaplex::{Backend, Center, CodecSpec, DynCodec, Error, LayerConfig, Role, SharedLayer};
use std::cell::RefCell;

/// What exact attention gives, computed once.
pub(crate) struct Exact {
    /// Of each query head.
    pub(crate) heads: Vec<ExactHead>,
}

/// Rows of queries; a row has as many tokens as the query sees.
pub(crate) struct ExactHead {
    scores: Vec<Vec<f64>>,
    weights: Vec<Vec<f64>>,
    pub(crate) outputs: Vec<Vec<f64>>,
}

impl ExactHead {
    /// KL divergence, in nats, of the attention weights that a query's `scores` give from the exact ones.
    pub(crate) fn divergence(&self, query: usize, scores: &[f32], dim: usize) -> f64 {
        let scores: Vec<f64> = scores.iter().map(|&score| f64::from(score)).collect();
        divergence(&self.scores[query], &scores, dim)
    }
}

/// Averages over a whole sample.
#[derive(Clone, Copy, Default)]
pub(crate) struct Metrics {
    pub(crate) stored_bytes: usize,
    pub(crate) bits_per_value: f64,
    pub(crate) distortion: f64,
    pub(crate) cosine: f64,
    /// None without queries.
    pub(crate) attention: Option<AttentionMetrics>,
}

/// What needs queries.
#[derive(Clone, Copy, Default)]
pub(crate) struct AttentionMetrics {
    pub(crate) score_error: f64,
    /// Of a query and a token it sees; 0 where keys are exact.
    pairs: usize,
    pub(crate) kl: f64,
    pub(crate) output_error: f64,
}

/// How keys are prepared before they are encoded.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) center: Center,
    /// Tokens of a page that has a centre.
    pub(crate) page: usize,
    pub(crate) balance: bool,
}

impl Keys {
    /// As they are.
    pub(crate) const PLAIN: Self = Self { center: Center::Off, page: 64, balance: false };

    pub(crate) fn is_plain(self) -> bool {
        self.center == Center::Off && !self.balance
    }
}

/// Stored as they are: never centred, never balanced, and nothing is paid for it.
pub(crate) fn is_float(spec: CodecSpec) -> bool {
    matches!(spec, CodecSpec::F16(_) | CodecSpec::Bf16(_) | CodecSpec::F32(_))
}

/// Keys whose channels are balanced: the deviations come from so many of the first tokens.
const BALANCED_FROM: usize = 256;

/// Vectors of a head as a cache would hold them: what the tool measures goes through here.
enum Store<'a> {
    Blocks {
        codec: &'a dyn DynCodec,
        blocks: Vec<u8>,
    },
    /// A layer of one head whose tokens are all in pages.
    Cache {
        layer: Box<SharedLayer>,
        scratch: RefCell<Vec<f32>>,
    },
}

impl<'a> Store<'a> {
    fn new(codec: &'a dyn DynCodec, rows: &[f32]) -> std::result::Result<Self, Error> {
        Ok(Self::Blocks { codec, blocks: codec.encode(rows)? })
    }

    /// Keys in a cache, balanced from the first of them and from `queries`.
    fn cached(
        codec: &dyn DynCodec,
        keys: Keys,
        rows: &[f32],
        queries: &[f32],
        backend: Backend,
    ) -> std::result::Result<Self, Error> {
        let (dim, tokens) = (codec.dim(), rows.len() / codec.dim());
        let config = LayerConfig {
            keys: codec.spec(),
            values: CodecSpec::F16(Default::default()),
            page: keys.page,
            sink_tokens: 0,
            recent_window: 0,
            center: keys.center,
            balance: keys.balance,
            ..LayerConfig::new(1, dim, tokens.max(keys.page))
        };
        let mut layer = Box::new(SharedLayer::on_heap(&config, backend)?);
        let mut scratch = vec![0.0; config.scratch_len(8)];
        if keys.balance {
            layer.calibrate(0, &rows[..rows.len().min(BALANCED_FROM * dim)], queries)?;
        }
        layer.append(rows, rows, &mut scratch)?;
        Ok(Self::Cache { layer, scratch: RefCell::new(scratch) })
    }

    /// Everything that keys take: blocks, centres, headers of pages, balance.
    fn bytes(&self) -> usize {
        match self {
            Self::Blocks { blocks, .. } => blocks.len(),
            Self::Cache { layer, .. } => {
                let (stats, config) = (layer.stats(), layer.config());
                // The values beside them are f16.
                stats.bytes - stats.tokens * 2 * config.value_dim
            }
        }
    }

    fn decode(&self) -> std::result::Result<Vec<f32>, Error> {
        match self {
            Self::Blocks { codec, blocks } => codec.decode(blocks),
            Self::Cache { layer, .. } => {
                let dim = layer.config().key_dim;
                let (mut rows, mut value) = (vec![0.0; layer.tokens() * dim], vec![0.0; dim]);
                for (token, key) in rows.chunks_exact_mut(dim).enumerate() {
                    layer.decode(0, token, key, &mut value)?;
                }
                Ok(rows)
            }
        }
    }

    /// \[query]\[token]
    fn score(&self, queries: &[f32]) -> std::result::Result<Vec<f32>, Error> {
        match self {
            Self::Blocks { codec, blocks } => codec.score(queries, blocks),
            Self::Cache { layer, scratch } => {
                let count = queries.len() / layer.config().key_dim;
                let mut scores = vec![0.0; count * layer.tokens()];
                layer.scores(0, queries, &mut scores, &mut scratch.borrow_mut())?;
                Ok(scores)
            }
        }
    }

    /// Weights \[output]\[token] to outputs.
    fn attend(&self, weights: &[f32]) -> std::result::Result<Vec<f32>, Error> {
        match self {
            Self::Blocks { codec, blocks } => codec.attend(weights, blocks),
            Self::Cache { layer, scratch } => {
                let mut outputs = vec![0.0; weights.len() / layer.tokens() * layer.config().value_dim];
                layer.accumulate(0, weights, &mut outputs, &mut scratch.borrow_mut())?;
                Ok(outputs)
            }
        }
    }
}

impl Exact {
    /// Exact attention of every query of the sample; None without queries.
    pub(crate) fn new(sample: &Sample) -> Option<Self> {
        let queries = sample.queries.as_ref()?;
        let (keys, values) = (sample.heads(Role::Keys), sample.heads(Role::Values));
        let head = |(index, rows): (usize, &Vec<f32>)| {
            let (keys, values) = (&keys[index / queries.group], &values[index / queries.group]);
            let mut head = ExactHead { scores: vec![], weights: vec![], outputs: vec![] };
            for (query, position) in rows.chunks_exact(sample.dim).zip(&queries.positions) {
                let seen = keys.chunks_exact(sample.dim).take(position + 1);
                let scores: Vec<f64> = seen.map(|key| dot(query, key)).collect();
                let weights = softmax(&scores, sample.dim);
                head.outputs.push(mix(&weights, values, sample.dim));
                head.scores.push(scores);
                head.weights.push(weights);
            }
            head
        };
        Some(Self { heads: queries.heads.iter().enumerate().map(head).collect() })
    }
}

/// Measures a codec on the sample's keys or values.
pub(crate) fn measure(
    sample: &Sample,
    exact: Option<&Exact>,
    role: Role,
    codec: &dyn DynCodec,
    prepared: Keys,
    backend: Backend,
) -> Result<Metrics> {
    let mut metrics = Metrics::default();
    let mut attention = AttentionMetrics::default();
    let (mut noise, mut energy) = (0.0, 0.0);
    let (mut vectors, mut heads, mut queries_seen) = (0usize, 0usize, 0usize);
    for (index, rows) in sample.heads(role).iter().enumerate() {
        let failed = |error| Failure(format!("{} of head {index}: {error}", role_name(role)));
        let store = match role {
            Role::Keys if !prepared.is_plain() && !is_float(codec.spec()) => {
                Store::cached(codec, prepared, rows, &calibration(sample, index), backend)
            }
            _ => Store::new(codec, rows),
        };
        let store = store.map_err(failed)?;
        // Balanced keys are measured with the other half of the queries.
        let step = if role == Role::Keys && prepared.balance { 2 } else { 1 };
        metrics.stored_bytes += store.bytes();
        let decoded = store.decode().map_err(failed)?;
        for (x, y) in rows.chunks_exact(sample.dim).zip(decoded.chunks_exact(sample.dim)) {
            let (xx, yy, xy) = (dot(x, x), dot(y, y), dot(x, y));
            noise += x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum::<f64>();
            energy += xx;
            metrics.cosine += if xx == 0.0 && yy == 0.0 { 1.0 } else { xy / (xx * yy).sqrt().max(1e-300) };
            vectors += 1;
        }
        if let (Some(queries), Some(exact)) = (&sample.queries, exact) {
            for head in index * queries.group..(index + 1) * queries.group {
                let exact = &exact.heads[head];
                let added = match role {
                    Role::Keys => {
                        let values = &sample.heads(Role::Values)[index];
                        add_keys(&mut attention, &store, (&queries.heads[head], step), values, exact, sample)
                    }
                    Role::Values => add_values(&mut attention, &store, exact, sample),
                };
                added.map_err(failed)?;
                heads += 1;
                queries_seen += (queries.positions.len() / step).max(1);
            }
        }
    }
    metrics.bits_per_value = 8.0 * metrics.stored_bytes as f64 / (vectors * sample.dim) as f64;
    metrics.distortion = if energy > 0.0 { noise / energy } else { noise };
    metrics.cosine /= vectors as f64;
    if exact.is_some() {
        metrics.attention = Some(AttentionMetrics {
            score_error: attention.score_error / attention.pairs.max(1) as f64,
            pairs: attention.pairs,
            kl: attention.kl / queries_seen as f64,
            output_error: attention.output_error / heads as f64,
        });
    }
    Ok(metrics)
}

/// Adds a query head's errors with compressed keys.
fn add_keys(
    sum: &mut AttentionMetrics,
    store: &Store,
    (queries, step): (&[f32], usize),
    values: &[f32],
    exact: &ExactHead,
    sample: &Sample,
) -> std::result::Result<(), Error> {
    let scores = store.score(queries)?;
    let (mut outputs, mut exact_outputs) = (Vec::new(), Vec::new());
    for (query, scores) in scores.chunks_exact(sample.tokens).enumerate().skip(step - 1).step_by(step) {
        let truth = &exact.scores[query];
        let scores: Vec<f64> = scores[..truth.len()].iter().map(|&score| f64::from(score)).collect();
        let error = truth.iter().zip(&scores).map(|(a, b)| (a - b).abs()).sum::<f64>();
        sum.score_error += error;
        sum.pairs += truth.len();
        sum.kl += divergence(truth, &scores, sample.dim);
        outputs.push(mix(&softmax(&scores, sample.dim), values, sample.dim));
        exact_outputs.push(exact.outputs[query].clone());
    }
    sum.output_error += relative_error(&exact_outputs, &outputs);
    Ok(())
}

/// The queries, every second one, of all query heads that share a key/value head.
fn calibration(sample: &Sample, index: usize) -> Vec<f32> {
    let Some(queries) = &sample.queries else { return Vec::new() };
    let heads = &queries.heads[index * queries.group..(index + 1) * queries.group];
    heads.iter().flat_map(|rows| rows.chunks_exact(sample.dim).step_by(2)).flatten().copied().collect()
}

/// Adds a query head's errors with compressed values; keys, and so weights, are exact.
fn add_values(
    sum: &mut AttentionMetrics,
    store: &Store,
    exact: &ExactHead,
    sample: &Sample,
) -> std::result::Result<(), Error> {
    let mut weights = vec![0.0; exact.weights.len() * sample.tokens];
    for (row, exact) in weights.chunks_exact_mut(sample.tokens).zip(&exact.weights) {
        row.iter_mut().zip(exact).for_each(|(weight, &exact)| *weight = exact as f32);
    }
    let outputs = store.attend(&weights)?;
    let outputs = outputs.chunks_exact(sample.dim);
    let outputs: Vec<Vec<f64>> = outputs.map(|row| row.iter().map(|&value| value.into()).collect()).collect();
    sum.output_error += relative_error(&exact.outputs, &outputs);
    Ok(())
}

/// For people and file fields.
pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Keys => "keys",
        Role::Values => "values",
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// ln Σ exp(score/√D)
fn log_sum(scores: &[f64], dim: usize) -> f64 {
    let scale = 1.0 / (dim as f64).sqrt();
    let max = scores.iter().fold(f64::NEG_INFINITY, |max, score| max.max(score * scale));
    max + scores.iter().map(|score| (score * scale - max).exp()).sum::<f64>().ln()
}

fn softmax(scores: &[f64], dim: usize) -> Vec<f64> {
    let (scale, log_sum) = (1.0 / (dim as f64).sqrt(), log_sum(scores, dim));
    scores.iter().map(|score| (score * scale - log_sum).exp()).collect()
}

/// KL divergence of the softmax of `scores` from that of `exact`, nats.
fn divergence(exact: &[f64], scores: &[f64], dim: usize) -> f64 {
    let scale = 1.0 / (dim as f64).sqrt();
    let (exact_sum, sum) = (log_sum(exact, dim), log_sum(scores, dim));
    let terms = exact.iter().zip(scores).map(|(exact, score)| {
        let log_weight = exact * scale - exact_sum;
        log_weight.exp() * (log_weight - (score * scale - sum))
    });
    terms.sum::<f64>().max(0.0)
}

/// Σ weight·value
fn mix(weights: &[f64], values: &[f32], dim: usize) -> Vec<f64> {
    let mut output = vec![0.0; dim];
    for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
        output.iter_mut().zip(value).for_each(|(sum, &value)| *sum += weight * f64::from(value));
    }
    output
}

/// Σ‖o-ô‖² / Σ‖o‖²
pub(crate) fn relative_error(exact: &[Vec<f64>], outputs: &[Vec<f64>]) -> f64 {
    let (exact, outputs) = (exact.iter().flatten(), outputs.iter().flatten());
    let (noise, energy) = exact
        .zip(outputs)
        .fold((0.0, 0.0), |(noise, energy), (a, b)| (noise + (a - b) * (a - b), energy + a * a));
    noise / energy.max(1e-300)
}
