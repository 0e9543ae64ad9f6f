//! Errors of attention.

use crate::vectors::{dot, relative_error};
use crate::{Error, check_rows, expect};

/// Exact causal attention of one query head, the reference for compressed caches. It is computed once. It takes
/// O(queries · tokens · width) time, and two `f64` a query and token of memory.
#[derive(Clone, Debug)]
pub struct ExactHead {
    dim: usize,
    tokens: usize,
    scores: Vec<Vec<f64>>,
    weights: Vec<Vec<f64>>,
    outputs: Vec<Vec<f64>>,
}

impl ExactHead {
    /// Computes attention of `queries` \[query]\[dim] to `keys` and `values` \[token]\[dim]. Query i sees the tokens up to and
    /// with `positions[i]`. Queries are not scaled: weights are softmax(q·k/√dim).
    ///
    /// # Errors
    /// [`Error::Length`] unless all are whole rows, keys and values have the same number of rows, and each query has a position
    /// inside of the tokens; [`Error::NonFinite`] for a NaN or an infinity.
    pub fn new(
        queries: &[f32],
        positions: &[usize],
        keys: &[f32],
        values: &[f32],
        dim: usize,
    ) -> Result<Self, Error> {
        check_rows("queries", queries, dim)?;
        check_rows("keys", keys, dim)?;
        check_rows("values", values, dim)?;
        expect("values", keys.len(), values.len())?;
        expect("positions", queries.len() / dim, positions.len())?;
        let tokens = keys.len() / dim;
        if let Some(&outside) = positions.iter().find(|&&position| position >= tokens) {
            return Err(Error::Length {
                what: "tokens up to a position",
                expected: tokens,
                actual: outside + 1,
            });
        }
        let mut head = Self { dim, tokens, scores: vec![], weights: vec![], outputs: vec![] };
        for (query, position) in queries.chunks_exact(dim).zip(positions) {
            let scores: Vec<f64> =
                keys.chunks_exact(dim).take(position + 1).map(|key| dot(query, key)).collect();
            let weights = softmax(&scores, dim);
            head.outputs.push(mix(&weights, values, dim));
            head.scores.push(scores);
            head.weights.push(weights);
        }
        Ok(head)
    }

    /// Returns the number of queries.
    #[must_use]
    pub fn queries(&self) -> usize {
        self.outputs.len()
    }

    /// Returns q·k of a query and each token that it sees; empty if the query does not exist.
    #[must_use]
    pub fn scores(&self, query: usize) -> &[f64] {
        self.scores.get(query).map_or(&[], Vec::as_slice)
    }

    /// Returns softmax(q·k/√D) of a query; empty if the query does not exist.
    #[must_use]
    pub fn weights(&self, query: usize) -> &[f64] {
        self.weights.get(query).map_or(&[], Vec::as_slice)
    }

    /// Returns Σ weight·value of each query.
    #[must_use]
    pub fn outputs(&self) -> &[Vec<f64>] {
        &self.outputs
    }

    /// Returns the KL divergence, in nats, of the weights of `scores` from the exact weights of a query. Scores of tokens that the
    /// query does not see are ignored.
    ///
    /// # Errors
    /// [`Error::Length`] if the query sees more tokens than there are scores, [`Error::NonFinite`] for a NaN or an infinity.
    pub fn divergence(&self, query: usize, scores: &[f32]) -> Result<f64, Error> {
        Ok(kl_divergence(self.scores(query), &self.seen(query, scores)?, self.dim))
    }

    /// The scores that a query sees.
    fn seen(&self, query: usize, scores: &[f32]) -> Result<Vec<f64>, Error> {
        let expected = self.scores(query).len();
        let Some(scores) = scores.get(..expected) else {
            return Err(Error::Length { what: "scores", expected, actual: scores.len() });
        };
        check_rows("scores", scores, 1)?;
        Ok(scores.iter().map(|&score| f64::from(score)).collect())
    }
}

/// Errors of attention with compressed keys or values, added up one query head at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionErrors {
    score_error: f64,
    /// Sum over pairs of a query and a token that it sees.
    pairs: usize,
    kl: f64,
    queries: usize,
    output_error: f64,
    heads: usize,
}

impl AttentionErrors {
    /// Adds a head with compressed keys and exact `values`: its unscaled `scores` \[query]\[token] of every query and token, and
    /// the queries to count.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::NonFinite`] as in [`ExactHead::new`], also for a query that does not exist.
    pub fn add_keys(
        &mut self,
        exact: &ExactHead,
        scores: &[f32],
        values: &[f32],
        queries: impl IntoIterator<Item = usize>,
    ) -> Result<(), Error> {
        expect("scores", exact.queries() * exact.tokens, scores.len())?;
        check_rows("values", values, exact.dim)?;
        expect("values", exact.tokens * exact.dim, values.len())?;
        let mut sum = *self;
        let (mut outputs, mut exact_outputs) = (Vec::new(), Vec::new());
        for query in queries {
            let Some(exact_output) = exact.outputs.get(query) else {
                return Err(Error::Length { what: "queries", expected: exact.queries(), actual: query + 1 });
            };
            let (truth, scores) = (exact.scores(query), exact.seen(query, &scores[query * exact.tokens..])?);
            sum.score_error += truth.iter().zip(&scores).map(|(a, b)| (a - b).abs()).sum::<f64>();
            sum.pairs += truth.len();
            sum.kl += kl_divergence(truth, &scores, exact.dim);
            sum.queries += 1;
            outputs.push(mix(&softmax(&scores, exact.dim), values, exact.dim));
            exact_outputs.push(exact_output.clone());
        }
        sum.output_error += relative_error(&exact_outputs, &outputs);
        sum.heads += 1;
        *self = sum;
        Ok(())
    }

    /// Adds a head with compressed values and exact weights: its `outputs` \[query]\[width].
    ///
    /// # Errors
    /// [`Error::Length`] unless there is one output a query, [`Error::NonFinite`] for a NaN or an infinity.
    pub fn add_values(&mut self, exact: &ExactHead, outputs: &[f32]) -> Result<(), Error> {
        expect("outputs", exact.queries() * exact.dim, outputs.len())?;
        check_rows("outputs", outputs, exact.dim)?;
        let rows = outputs.chunks_exact(exact.dim);
        let rows: Vec<Vec<f64>> = rows.map(|row| row.iter().map(|&value| value.into()).collect()).collect();
        self.output_error += relative_error(&exact.outputs, &rows);
        self.queries += exact.queries();
        self.heads += 1;
        Ok(())
    }

    /// Returns the mean |q·k - score| over every counted query and the tokens that it sees; 0 for exact keys.
    #[must_use]
    pub fn score_error(&self) -> f64 {
        self.score_error / self.pairs.max(1) as f64
    }

    /// Returns the mean KL divergence of attention weights over queries, in nats; 0 for exact keys.
    #[must_use]
    pub fn kl(&self) -> f64 {
        self.kl / self.queries.max(1) as f64
    }

    /// Returns the mean over heads of Σ‖o-ô‖² / Σ‖o‖².
    #[must_use]
    pub fn output_error(&self) -> f64 {
        self.output_error / self.heads.max(1) as f64
    }
}

/// ln Σ exp(score/√D)
fn log_sum(scores: &[f64], dim: usize) -> f64 {
    let scale = 1.0 / (dim as f64).sqrt();
    let max = scores.iter().fold(f64::NEG_INFINITY, |max, score| max.max(score * scale));
    max + scores.iter().map(|score| (score * scale - max).exp()).sum::<f64>().ln()
}

/// Returns softmax(scores/√dim).
///
/// ```
/// let weights = octaplex_metrics::softmax(&[0.0, 8.0 * 3f64.ln()], 64);
/// assert!((weights[1] - 0.75).abs() < 1e-15);
/// ```
#[must_use]
pub fn softmax(scores: &[f64], dim: usize) -> Vec<f64> {
    let (scale, log_sum) = (1.0 / (dim as f64).sqrt(), log_sum(scores, dim));
    scores.iter().map(|score| (score * scale - log_sum).exp()).collect()
}

/// Returns the KL divergence of softmax(`scores`/√dim) from softmax(`exact`/√dim) in nats: Σ p·ln(p/p̂), where p is exact. It is
/// never negative, and a constant added to all scores does not change it.
///
/// ```
/// use octaplex_metrics::kl_divergence;
/// assert!(kl_divergence(&[1.0, 2.0], &[11.0, 12.0], 64) < 1e-15);
/// let (p, q) = (0.5f64, 0.25f64); // softmax of (0, 0), and of (0, ln 3)
/// let expected = p * (p / q).ln() + p * (p / (1.0 - q)).ln();
/// assert!((kl_divergence(&[0.0, 0.0], &[0.0, 3f64.ln()], 1) - expected).abs() < 1e-15);
/// ```
#[must_use]
pub fn kl_divergence(exact: &[f64], scores: &[f64], dim: usize) -> f64 {
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
