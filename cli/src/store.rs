//! Stores vectors of a head as a cache would. All measurements of the tool use it.

use crate::codecs::{Codec, is_float};
use crate::keys::Keys;
use octaplex::cache::SharedLayer;
use octaplex::codecs::Role;
use octaplex::{Backend, CodecSpec, Error, LayerConfig};
use std::cell::RefCell;

/// The first tokens whose deviations decide the balance of keys.
pub(crate) const BALANCED_FROM: usize = 256;

pub(crate) enum Store<'a> {
    Blocks {
        codec: &'a Codec,
        blocks: Vec<u8>,
    },
    /// The keys or the values of a layer of one head. All its tokens are in pages, except those that fill none.
    Cache {
        layer: Box<SharedLayer>,
        role: Role,
        scratch: RefCell<Vec<f32>>,
    },
    /// Rows that another program decoded, and the bytes that it says it stored.
    Decoded {
        rows: &'a [f32],
        dim: usize,
        bytes: usize,
    },
}

/// Configures a layer of one head that has all its keys, or all its values, in pages of this codec. The other side is f16.
pub(crate) fn layer(
    (spec, role): (CodecSpec, Role),
    keys: Keys,
    page: usize,
    [dim, tokens]: [usize; 2],
) -> LayerConfig {
    let exact = CodecSpec::F16(Default::default());
    let (key_spec, value_spec) = if role == Role::Keys { (spec, exact) } else { (exact, spec) };
    LayerConfig::new(1, dim, tokens.max(page))
        .keys(key_spec)
        .values(value_spec)
        .page(page)
        .sink_tokens(0)
        .recent_window(0)
        .max_rollback(0)
        .center(keys.center)
        .balance(keys.balance)
}

impl<'a> Store<'a> {
    pub(crate) fn new(codec: &'a Codec, rows: &[f32]) -> Result<Self, Error> {
        Ok(Self::Blocks { codec, blocks: codec.encode_rows(rows)? })
    }

    /// Stores keys or values as a cache does. The first keys and `queries` decide the balance; floats stay as they are.
    pub(crate) fn cached(
        (spec, codec): (CodecSpec, &'a Codec),
        (role, keys, page): (Role, Keys, usize),
        rows: &[f32],
        queries: &[f32],
        backend: Backend,
    ) -> Result<Self, Error> {
        if keys == Keys::RAW || is_float(spec) {
            return Self::new(codec, rows);
        }
        let dim = codec.dim();
        let config = layer((spec, role), keys, page, [dim, rows.len() / dim]);
        let mut layer = Box::new(SharedLayer::on_heap(&config, backend)?);
        let mut scratch = vec![0.0; config.scratch_len(usize::MAX)]; // for any number of queries
        if keys.balance && role == Role::Keys {
            layer.calibrate(&rows[..rows.len().min(BALANCED_FROM * dim)], queries)?;
        }
        layer.append(rows, rows, &mut scratch)?;
        Ok(Self::Cache { layer, role, scratch: RefCell::new(scratch) })
    }

    /// Returns the bytes of the vectors: blocks, centres, headers of pages, balance.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Blocks { blocks, .. } => blocks.len(),
            Self::Cache { layer, .. } => {
                let (stats, config) = (layer.stats(), layer.config());
                // The other tensor is f16.
                stats.bytes - stats.tokens * 2 * config.value_dim
            }
            Self::Decoded { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn decode(&self) -> Result<Vec<f32>, Error> {
        match self {
            Self::Blocks { codec, blocks } => codec.decode_rows(blocks),
            Self::Cache { layer, role, .. } => {
                let dim = layer.config().key_dim;
                let (mut rows, mut other) = (vec![0.0; layer.tokens() * dim], vec![0.0; dim]);
                for (token, row) in rows.chunks_exact_mut(dim).enumerate() {
                    let (key, value) =
                        if *role == Role::Keys { (row, &mut other[..]) } else { (&mut other[..], row) };
                    layer.decode(0, token, key, value)?;
                }
                Ok(rows)
            }
            Self::Decoded { rows, .. } => Ok(rows.to_vec()),
        }
    }

    /// Computes scores, \[query]\[token].
    pub(crate) fn score(&self, queries: &[f32]) -> Result<Vec<f32>, Error> {
        match self {
            Self::Blocks { codec, blocks } => codec.score_rows(queries, blocks),
            Self::Cache { layer, scratch, .. } => {
                let count = queries.len() / layer.config().key_dim;
                let mut scores = vec![0.0; count * layer.tokens()];
                layer.scores(0, queries, &mut scores, &mut scratch.borrow_mut())?;
                Ok(scores)
            }
            Self::Decoded { rows, dim, .. } => {
                let dot = |(q, k): (&f32, &f32)| f64::from(*q) * f64::from(*k);
                let score = |query: &[f32], key: &[f32]| query.iter().zip(key).map(dot).sum::<f64>() as f32;
                let scores = queries
                    .chunks_exact(*dim)
                    .flat_map(|query| rows.chunks_exact(*dim).map(move |key| score(query, key)));
                Ok(scores.collect())
            }
        }
    }

    /// Computes outputs from weights, \[output]\[token].
    pub(crate) fn attend(&self, weights: &[f32]) -> Result<Vec<f32>, Error> {
        match self {
            Self::Blocks { codec, blocks } => codec.attend_rows(weights, blocks),
            Self::Cache { layer, scratch, .. } => {
                let mut outputs = vec![0.0; weights.len() / layer.tokens() * layer.config().value_dim];
                layer.accumulate(0, weights, &mut outputs, &mut scratch.borrow_mut())?;
                Ok(outputs)
            }
            Self::Decoded { rows, dim, .. } => {
                let mut outputs = Vec::new();
                for weights in weights.chunks_exact(rows.len() / dim) {
                    let mut output = vec![0.0; *dim];
                    for (weight, row) in weights.iter().zip(rows.chunks_exact(*dim)) {
                        let add = |(sum, x): (&mut f64, &f32)| *sum += f64::from(*weight) * f64::from(*x);
                        output.iter_mut().zip(row).for_each(add);
                    }
                    outputs.extend(output.into_iter().map(|x| x as f32));
                }
                Ok(outputs)
            }
        }
    }
}
