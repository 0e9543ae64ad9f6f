//! Times a codec as the cache runs it, in nanoseconds a vector on one core: pages of a layer of one head.

use crate::codecs::is_float;
use crate::keys::Keys;
use crate::store::{BALANCED_FROM, layer};
use octaplex::cache::SharedLayer;
use octaplex::codecs::Role;
use octaplex::{Backend, CodecSpec, Error, LayerConfig};
use std::time::{Duration, Instant};

/// Tokens of the layer.
const TOKENS: usize = 4096;

/// Time given to each measurement.
const BUDGET: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// Appends a token, whose other side is f16.
    pub(crate) encode: f64,
    /// Reads it: a key's product with one query, or a value's part of one output.
    pub(crate) read: f64,
}

/// The vectors that are timed, and how the cache prepares them.
pub(crate) struct Setup<'a> {
    pub(crate) role: Role,
    pub(crate) keys: Keys,
    pub(crate) page: usize,
    /// Vectors, which are repeated as often as necessary.
    pub(crate) rows: &'a [f32],
    pub(crate) dim: usize,
    pub(crate) backend: Backend,
}

impl Setup<'_> {
    /// Times a codec.
    pub(crate) fn times(&self, spec: CodecSpec) -> Result<Times, Error> {
        let Self { role, keys, page, dim, backend, .. } = *self;
        let rows: Vec<f32> = self.rows.iter().copied().cycle().take(TOKENS * dim).collect();
        let config = layer((spec, role), keys, page, [dim, TOKENS]);
        let (layer, encode) = append(&config, backend, &rows)?;
        let mut scratch = vec![0.0; config.scratch_len(1)];
        let (mut scores, mut output) = (vec![0.0; TOKENS], vec![0.0; dim]);
        let weights = vec![1.0 / TOKENS as f32; TOKENS];
        let read = best(|| {
            let start = Instant::now();
            match role {
                Role::Keys => layer.scores(0, &rows[..dim], &mut scores, &mut scratch)?,
                Role::Values => layer.accumulate(0, &weights, &mut output, &mut scratch)?,
            }
            Ok(start.elapsed())
        })?;
        Ok(Times { encode, read })
    }
}

/// Fills a layer, and returns the nanoseconds a token of its fastest filling.
fn append(config: &LayerConfig, backend: Backend, rows: &[f32]) -> Result<(SharedLayer, f64), Error> {
    let mut layer = SharedLayer::on_heap(config, backend)?;
    let mut scratch = vec![0.0; config.scratch_len(1)];
    let ns = best(|| {
        layer.clear();
        if config.balance && !is_float(config.keys) {
            layer.calibrate(&rows[..BALANCED_FROM * config.key_dim], &[])?;
        }
        let start = Instant::now();
        layer.append(rows, rows, &mut scratch)?;
        Ok(start.elapsed())
    })?;
    Ok((layer, ns))
}

/// Returns the nanoseconds a token of the fastest pass, of three passes or more.
fn best(mut pass: impl FnMut() -> Result<Duration, Error>) -> Result<f64, Error> {
    let (start, mut best, mut passes) = (Instant::now(), Duration::MAX, 0);
    while passes < 3 || start.elapsed() < BUDGET {
        best = best.min(pass()?);
        passes += 1;
    }
    Ok(best.as_nanos() as f64 / TOKENS as f64)
}
