//! Keys, values and queries to measure on: from a safetensors file, an `.npy` file, or the bundled sample.

use crate::failure::{At, Failure, Result, fail, shown};
use crate::{files, npy};
use half::{bf16, f16};
use octaplex::codecs::Role;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::path::Path;

/// Cut from a real model's cache; see `cli/data/README.txt`.
const BUNDLED: &[u8] = include_bytes!("../data/sample.safetensors");

/// What codecs are measured on.
pub(crate) struct Sample {
    /// For people.
    pub(crate) name: String,
    /// Where the numbers come from, as the file itself says.
    pub(crate) origin: Option<String>,
    /// Width of every vector.
    pub(crate) dim: usize,
    /// Vectors of a head.
    pub(crate) tokens: usize,
    /// Of keys: \[layers, heads, tokens, width].
    pub(crate) shape: [usize; 4],
    keys: Vec<Vec<f32>>,
    /// None for plain vectors, which serve as both.
    values: Option<Vec<Vec<f32>>>,
    /// None for plain vectors.
    pub(crate) queries: Option<Queries>,
}

/// Queries at some of the tokens.
pub(crate) struct Queries {
    /// The token of each query: it attends to this token and all before it.
    pub(crate) positions: Vec<usize>,
    /// Rows of each query head, layer after layer.
    pub(crate) heads: Vec<Vec<f32>>,
    /// Query heads that share a key/value head.
    pub(crate) group: usize,
}

impl Sample {
    /// The rows of each head, layer after layer.
    pub(crate) fn heads(&self, role: Role) -> &[Vec<f32>] {
        match (&self.values, role) {
            (Some(values), Role::Values) => values,
            _ => &self.keys,
        }
    }

    /// One line about the sample.
    pub(crate) fn describe(&self) -> String {
        let (heads, tokens, dim) = (self.keys.len(), self.tokens, self.dim);
        match &self.queries {
            Some(queries) => format!(
                "{}: {heads} key/value heads of {tokens} tokens, width {dim}, {} queries",
                self.name,
                queries.heads.len() * queries.positions.len()
            ),
            None => format!(
                "{}: {tokens} plain vectors of width {dim}, taken as keys and as values; no queries, so no attention \
                 columns",
                self.name
            ),
        }
    }

    /// The file's sample, or the bundled one.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Self::from_safetensors("bundled sample".into(), BUNDLED);
        };
        let bytes = files::read(path)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self::from_bytes(name, &bytes).at(path.display())
    }

    /// The sample in a file, whichever of the two kinds it is.
    pub(crate) fn from_bytes(name: String, bytes: &[u8]) -> Result<Self> {
        if bytes.starts_with(npy::MAGIC) {
            let (shape, values) = npy::parse(bytes)?;
            return Self::from_rows(name, &shape, values);
        }
        Self::from_safetensors(name, bytes)
    }

    /// Plain vectors.
    fn from_rows(name: String, shape: &[usize], values: Vec<f32>) -> Result<Self> {
        let &[.., dim] = shape else { fail!("the array has no dimensions; rows of vectors are needed") };
        if values.is_empty() {
            fail!("the array of shape {shape:?} is empty");
        }
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            fail!("row {}, column {} is NaN or infinite", index / dim, index % dim);
        }
        let tokens = values.len() / dim;
        let shape = [1, 1, tokens, dim];
        Ok(Self { name, origin: None, dim, tokens, shape, keys: vec![values], values: None, queries: None })
    }

    /// Tensors k and v \[layers, kv_heads, T, D] and q \[layers, q_heads, queries, D], with or without q_pos.
    fn from_safetensors(name: String, bytes: &[u8]) -> Result<Self> {
        let Ok(file) = SafeTensors::deserialize(bytes) else {
            fail!(
                "neither a safetensors file with tensors k, v and q nor an .npy array of vectors{}",
                guess(bytes)
            );
        };
        let tensor = |name: &str| {
            file.tensor(name).map_err(|_| {
                let mut names: Vec<_> = file.names().into_iter().collect();
                names.sort_unstable();
                let names = shown(&names.join(", "));
                Failure(format!("no tensor {name}; k, v and q are needed, the file has {names}"))
            })
        };
        let (k, v, q) = (tensor("k")?, tensor("v")?, tensor("q")?);
        let shape = |name: &str, tensor: &TensorView| match *tensor.shape() {
            [a, b, c, d] if a * b * c * d > 0 => Ok([a, b, c, d]),
            ref other => {
                Err(Failure(format!("{name} has shape {other:?}; [layers, heads, tokens, width] is needed")))
            }
        };
        let [layers, kv_heads, tokens, dim] = shape("k", &k)?;
        if v.shape() != k.shape() {
            fail!("v has shape {:?}, k has {:?}; they must be the same", v.shape(), k.shape());
        }
        let [q_layers, q_heads, count, q_dim] = shape("q", &q)?;
        if (q_layers, q_dim) != (layers, dim) {
            let (q, k) = (q.shape(), k.shape());
            fail!(
                "q has shape {q:?}, k {k:?}: [{layers}, heads, queries, {dim}] is expected, the same layers and width"
            );
        }
        if !q_heads.is_multiple_of(kv_heads) {
            fail!(
                "{q_heads} query heads (q) do not divide into {kv_heads} key/value heads (k): a multiple is expected"
            );
        }
        let positions = match file.tensor("q_pos") {
            Ok(positions) => read_positions(&positions, count, tokens)?,
            Err(_) if count <= tokens => (tokens - count..tokens).collect(),
            Err(_) => fail!("{count} queries for {tokens} tokens, and no q_pos that says where they are"),
        };
        let queries =
            Queries { positions, heads: read_heads("q", &q, count * dim)?, group: q_heads / kv_heads };
        let metadata =
            SafeTensors::read_metadata(bytes).ok().and_then(|(_, metadata)| metadata.metadata().clone());
        let origin = metadata.and_then(|metadata| {
            let parts = ["model", "text", "layers", "license"];
            let known = parts.iter().filter_map(|&key| Some(format!("{key}: {}", shown(metadata.get(key)?))));
            Some(known.collect::<Vec<_>>().join(", ")).filter(|origin| !origin.is_empty())
        });
        Ok(Self {
            name,
            origin,
            dim,
            tokens,
            shape: [layers, kv_heads, tokens, dim],
            keys: read_heads("k", &k, tokens * dim)?,
            values: Some(read_heads("v", &v, tokens * dim)?),
            queries: Some(queries),
        })
    }
}

/// What a file is that was taken for keys and values.
fn guess(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "; it is empty",
        [b'G', b'G', b'U', b'F', ..] => "; it is a GGUF model, which `octaplex perplexity --model` takes",
        [b'P', b'K', 3, 4, ..] => {
            "; it is a zip archive (.npz or .pt): save the arrays one by one, or as safetensors"
        }
        _ => "; it may be damaged",
    }
}

fn read_positions(tensor: &TensorView, count: usize, tokens: usize) -> Result<Vec<usize>> {
    let data = tensor.data();
    let positions: Vec<i64> = match tensor.dtype() {
        Dtype::I32 => data.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
        Dtype::I64 => data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        other => fail!("q_pos is {other:?}; I32 and I64 are read"),
    };
    if positions.len() != count {
        fail!("q_pos has {} positions for {count} queries", positions.len());
    }
    let inside = |position: i64| usize::try_from(position).ok().filter(|&position| position < tokens);
    let checked = positions.iter().map(|&position| {
        inside(position).ok_or_else(|| Failure(format!("q_pos {position} is outside of the {tokens} tokens")))
    });
    checked.collect()
}

/// The rows of each head, `size` values of a head.
pub(crate) fn read_heads(name: &str, tensor: &TensorView, size: usize) -> Result<Vec<Vec<f32>>> {
    let data = tensor.data();
    let values: Vec<f32> = match tensor.dtype() {
        Dtype::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        other => fail!("{name} is {other:?}; F16, BF16 and F32 are read"),
    };
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        let &[_, heads, rows, dim] = tensor.shape() else { fail!("{name} has no four dimensions") };
        let (row, column) = (index / dim, index % dim);
        let (head, row) = (row / rows, row % rows);
        fail!(
            "{name}, layer {}, head {}, row {row}, column {column} is NaN or infinite",
            head / heads,
            head % heads
        );
    }
    Ok(values.chunks_exact(size).map(<[f32]>::to_vec).collect())
}

/// For people and file fields.
pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Keys => "keys",
        Role::Values => "values",
    }
}
