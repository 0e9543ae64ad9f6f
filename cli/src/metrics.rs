//! Computes the figures of `octaplex-metrics` for a whole sample in a [`Store`].

use crate::failure::{At, Failure, Result};
use crate::input::{Sample, role_name};
use crate::store::Store;
use octaplex::codecs::Role;
use octaplex_metrics::{AttentionErrors, ExactHead, VectorErrors};

/// Averages over a whole sample.
#[derive(Clone, Copy)]
pub(crate) struct Metrics {
    pub(crate) stored_bytes: usize,
    pub(crate) bits_per_value: f64,
    pub(crate) distortion: f64,
    pub(crate) cosine: f64,
    /// `None` without queries.
    pub(crate) attention: Option<AttentionMetrics>,
}

/// Errors that need queries.
#[derive(Clone, Copy)]
pub(crate) struct AttentionMetrics {
    pub(crate) score_error: f64,
    pub(crate) kl: f64,
    pub(crate) output_error: f64,
}

/// Exact attention of every query head of a sample.
pub(crate) struct Exact {
    pub(crate) heads: Vec<ExactHead>,
}

impl Exact {
    /// `None` without queries.
    pub(crate) fn new(sample: &Sample) -> Result<Option<Self>> {
        let Some(queries) = &sample.queries else { return Ok(None) };
        let (keys, values) = (sample.heads(Role::Keys), sample.heads(Role::Values));
        let heads = queries.heads.iter().enumerate().map(|(head, rows)| {
            let shared = head / queries.group;
            let exact = ExactHead::new(rows, &queries.positions, &keys[shared], &values[shared], sample.dim);
            exact.at(format!("query head {head}"))
        });
        Ok(Some(Self { heads: heads.collect::<Result<_>>()? }))
    }
}

/// Measures each head's keys or values in `store`. Keys are measured on the queries from `first` on, every `step`-th.
pub(crate) fn measure<'a>(
    sample: &Sample,
    exact: Option<&Exact>,
    role: Role,
    (first, step): (usize, usize),
    store: impl Fn(usize, &[f32]) -> std::result::Result<Store<'a>, octaplex::Error>,
) -> Result<Metrics> {
    let (mut vectors, mut attention) = (VectorErrors::default(), AttentionErrors::default());
    let mut stored_bytes = 0;
    for (index, rows) in sample.heads(role).iter().enumerate() {
        let failed =
            |error: &dyn std::fmt::Display| Failure(format!("{} of head {index}: {error}", role_name(role)));
        let store = store(index, rows).map_err(|error| failed(&error))?;
        stored_bytes += store.bytes();
        let decoded = store.decode().map_err(|error| failed(&error))?;
        vectors.add(rows, &decoded, sample.dim).map_err(|error| failed(&error))?;
        let (Some(queries), Some(exact)) = (&sample.queries, exact) else { continue };
        for head in index * queries.group..(index + 1) * queries.group {
            let exact = &exact.heads[head];
            let added = match role {
                Role::Keys => {
                    let scores = store.score(&queries.heads[head]).map_err(|error| failed(&error))?;
                    let values = &sample.heads(Role::Values)[index];
                    let chosen = (first..exact.queries()).step_by(step);
                    attention.add_keys(exact, &scores, values, chosen)
                }
                Role::Values => {
                    let outputs = store.attend(&weights(exact, sample.tokens));
                    attention.add_values(exact, &outputs.map_err(|error| failed(&error))?)
                }
            };
            added.map_err(|error| failed(&error))?;
        }
    }
    Ok(Metrics {
        stored_bytes,
        bits_per_value: 8.0 * stored_bytes as f64 / (vectors.vectors() * sample.dim) as f64,
        distortion: vectors.distortion(),
        cosine: vectors.cosine(),
        attention: exact.map(|_| AttentionMetrics {
            score_error: attention.score_error(),
            kl: attention.kl(),
            output_error: attention.output_error(),
        }),
    })
}

/// Returns exact weights in f32; they are 0 for tokens that a query does not see.
fn weights(exact: &ExactHead, tokens: usize) -> Vec<f32> {
    let mut weights = vec![0.0; exact.queries() * tokens];
    for (query, row) in weights.chunks_exact_mut(tokens).enumerate() {
        row.iter_mut().zip(exact.weights(query)).for_each(|(weight, &exact)| *weight = exact as f32);
    }
    weights
}
