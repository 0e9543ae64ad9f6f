//! Keys, values and queries to measure on: from a safetensors file, an `.npy` file, or the bundled sample.

use crate::failure::{At, Failure, Result, fail, first_line, shown};
use crate::paths::is_dash;
use crate::{files, npy};
use half::{bf16, f16};
use octaplex::codecs::Role;
use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::TensorView};
use std::path::Path;

/// Cut from a real model's cache; see `cli/data/README.txt`.
const BUNDLED: &[u8] = include_bytes!("../data/sample.safetensors");

/// The fewest tokens for advice: a page.
pub(crate) const FEWEST: usize = 64;

/// The keys, values and queries that codecs are measured on.
pub(crate) struct Sample {
    /// The name for people.
    pub(crate) name: String,
    /// The origin of the numbers, from the file's own metadata.
    pub(crate) origin: Option<String>,
    /// Width of every vector.
    pub(crate) dim: usize,
    /// Number of vectors of a head.
    pub(crate) tokens: usize,
    /// Shape of the keys: \[layers, heads, tokens, width].
    pub(crate) shape: [usize; 4],
    /// Shape of the keys in the file.
    pub(crate) given: Vec<usize>,
    keys: Vec<Vec<f32>>,
    /// Values; `None` for plain vectors, which serve as both.
    values: Option<Vec<Vec<f32>>>,
    /// Queries; `None` for plain vectors.
    pub(crate) queries: Option<Queries>,
}

/// Queries at some of the tokens.
pub(crate) struct Queries {
    /// The token of each query. The query attends to this token and all before it.
    pub(crate) positions: Vec<usize>,
    /// Rows of each query head, layer after layer.
    pub(crate) heads: Vec<Vec<f32>>,
    /// Query heads that share a key/value head.
    pub(crate) group: usize,
}

impl Sample {
    /// Returns the keys or the values of each head, layer after layer.
    pub(crate) fn heads(&self, role: Role) -> &[Vec<f32>] {
        match (&self.values, role) {
            (Some(values), Role::Values) => values,
            _ => &self.keys,
        }
    }

    /// Returns whether its vectors are of no known kind. They are then taken as keys and as values.
    pub(crate) fn is_plain(&self) -> bool {
        self.values.is_none()
    }

    /// Describes the sample in one line.
    pub(crate) fn describe(&self) -> String {
        let (heads, tokens, dim) = (self.keys.len(), self.tokens, self.dim);
        match &self.queries {
            Some(queries) => format!(
                "{}: {heads} key/value heads of {tokens} tokens, width {dim}, {} queries",
                self.name,
                queries.heads.len() * queries.positions.len()
            ),
            None if self.is_plain() => format!(
                "{}: {tokens} plain vectors of width {dim}, taken as keys and as values; no queries, so no KL and no \
                 attention output",
                self.name
            ),
            None => format!(
                "{}: {heads} key/value heads of {tokens} tokens, width {dim}; no queries (tensor q), so distortion alone: \
                 no KL and no attention output",
                self.name
            ),
        }
    }

    /// Reads a file, or the bundled sample without one.
    pub(crate) fn load(path: Option<&Path>, dim: Option<usize>) -> Result<Self> {
        let Some(path) = path else {
            return Self::from_safetensors("bundled sample".into(), BUNDLED);
        };
        let bytes = files::read(path)?;
        let name = match is_dash(path) {
            true => files::name(path),
            false => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        };
        // A damaged file of tensors must not be read as raw rows.
        let names_tensors = path.extension().is_some_and(|extension| extension == "safetensors");
        let is_raw =
            !names_tensors && !bytes.starts_with(npy::MAGIC) && SafeTensors::deserialize(&bytes).is_err();
        let sample = match dim {
            Some(dim) if is_raw => {
                raw_rows(&bytes, dim).and_then(|rows| Self::from_rows(name, &[rows.len() / dim, dim], rows))
            }
            _ => Self::from_bytes(name, &bytes),
        };
        let sample = sample.at(files::name(path))?;
        match dim.filter(|dim| *dim != sample.dim) {
            Some(dim) => {
                fail!("{}: its vectors have width {}, not --dim {dim}", files::name(path), sample.dim)
            }
            None => Ok(sample),
        }
    }

    /// Returns the reason why the sample is unfit for advice.
    pub(crate) fn unadvised(&self) -> Option<String> {
        let is_zero = |heads: &[Vec<f32>]| heads.iter().flatten().all(|value| *value == 0.0);
        let zeros = [Role::Keys, Role::Values].into_iter().find(|role| is_zero(self.heads(*role)));
        match zeros {
            _ if self.tokens < FEWEST => {
                Some(format!("Too few tokens to advise: {}, and a page has {FEWEST}.", self.tokens))
            }
            Some(_) if self.is_plain() => Some("All vectors are zero: no advice.".into()),
            Some(role) => Some(format!("All {} are zero: no advice.", role_name(role))),
            None => None,
        }
    }

    /// Reads a file of one of the two kinds.
    pub(crate) fn from_bytes(name: String, bytes: &[u8]) -> Result<Self> {
        if bytes.starts_with(npy::MAGIC) {
            let (shape, values) = npy::parse(bytes)?;
            return Self::from_rows(name, &shape, values);
        }
        Self::from_safetensors(name, bytes)
    }

    /// Reads plain vectors.
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
        Ok(Self {
            name,
            origin: None,
            dim,
            tokens,
            shape,
            given: shape.to_vec(),
            keys: vec![values],
            values: None,
            queries: None,
        })
    }

    /// Reads the tensors k and v, in an order of [`Grid`], and q and q_pos if present.
    fn from_safetensors(name: String, bytes: &[u8]) -> Result<Self> {
        let file = match SafeTensors::deserialize(bytes) {
            Ok(file) => file,
            Err(error) => fail!(
                "neither a safetensors file with tensors k, v and q nor an .npy array of vectors; {}",
                guess(bytes, &error)
            ),
        };
        let tensor = |name: &str| {
            file.tensor(name).map_err(|_| {
                let mut names: Vec<_> = file.names().into_iter().collect();
                names.sort_unstable();
                let names = if names.is_empty() { "no tensors".into() } else { shown(&names.join(", ")) };
                Failure(format!(
                    "no tensor {name}; k and v are needed, and q for attention; the file has {names}"
                ))
            })
        };
        let (k, v) = (tensor("k")?, tensor("v")?);
        let grid = Grid::of("k", "tokens", k.shape())?;
        let Grid { layers, heads: kv_heads, rows: tokens, dim, .. } = grid;
        if v.shape() != k.shape() {
            fail!("v has shape {:?}, k has {:?}; they must be the same", v.shape(), k.shape());
        }
        let queries = match file.tensor("q") {
            Ok(q) => Some(read_queries(&file, &q, k.shape(), grid)?),
            Err(_) => None,
        };
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
            given: k.shape().to_vec(),
            keys: read_heads("k", &k, grid)?,
            values: Some(read_heads("v", &v, grid)?),
            queries,
        })
    }
}

/// The order of a tensor's axes: \[layers, heads, rows, width], \[rows, heads, width] of one layer in an engine, or
/// \[rows, width] of one head.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    layers: usize,
    heads: usize,
    rows: usize,
    dim: usize,
    /// The heads of a row are stored together.
    rows_first: bool,
}

impl Grid {
    /// Describes a shape; `rows` is the name of its rows.
    pub(crate) fn of(name: &str, rows: &str, shape: &[usize]) -> Result<Self> {
        let grid = match *shape {
            [layers, heads, rows, dim] => Self { layers, heads, rows, dim, rows_first: false },
            [rows, heads, dim] => Self { layers: 1, heads, rows, dim, rows_first: true },
            [rows, dim] => Self { layers: 1, heads: 1, rows, dim, rows_first: true },
            _ => fail!(
                "{name} has shape {shape:?}; [layers, heads, {rows}, width] is needed, or [{rows}, heads, width] of a layer"
            ),
        };
        if shape.contains(&0) {
            fail!("{name} has shape {shape:?}: it is empty");
        }
        Ok(grid)
    }

    /// Returns the index where the row of a head begins.
    fn at(self, head: usize, row: usize) -> usize {
        self.dim * if self.rows_first { row * self.heads + head } else { head * self.rows + row }
    }
}

fn read_queries(file: &SafeTensors, q: &TensorView, k: &[usize], keys: Grid) -> Result<Queries> {
    let Grid { layers, heads: kv_heads, rows: tokens, dim, .. } = keys;
    let grid = Grid::of("q", "queries", q.shape())?;
    let (q_heads, count) = (grid.heads, grid.rows);
    if (grid.layers, grid.dim, q.shape().len()) != (layers, dim, k.len()) {
        let expected = match k.len() {
            4 => format!("[{layers}, heads, queries, {dim}]"),
            3 => format!("[queries, heads, {dim}]"),
            _ => format!("[queries, {dim}]"),
        };
        fail!("q has shape {:?}, k {k:?}: {expected} is expected, the same layers and width", q.shape());
    }
    if !q_heads.is_multiple_of(kv_heads) {
        let hint = if keys.rows_first && kv_heads > tokens {
            format!(
                "; k of three dimensions is [tokens, heads, width]: make it [1, {tokens}, {kv_heads}, {dim}] if heads come first"
            )
        } else {
            String::new()
        };
        fail!(
            "{q_heads} query heads (q) do not divide into {kv_heads} key/value heads (k): a multiple is expected{hint}"
        );
    }
    let positions = match file.tensor("q_pos") {
        Ok(positions) => read_positions(&positions, count, tokens)?,
        Err(_) if count <= tokens => (tokens - count..tokens).collect(),
        Err(_) => fail!("{count} queries for {tokens} tokens, and no q_pos that says where they are"),
    };
    Ok(Queries { positions, heads: read_heads("q", q, grid)?, group: q_heads / kv_heads })
}

/// Guesses the format of a file that is no safetensors file, for the error message.
fn guess(bytes: &[u8], error: &SafeTensorError) -> String {
    match bytes {
        [] => "it is empty".into(),
        [b'G', b'G', b'U', b'F', ..] => {
            "it is a GGUF model; `octaplex capture --model` writes such a file from it".into()
        }
        [b'P', b'K', 3, 4, ..] => {
            "it is a zip archive (.npz or .pt): save the arrays one by one, or as safetensors".into()
        }
        _ => format!(
            "as safetensors it is damaged: {}; raw f32 rows need their width, for example --dim 128",
            first_line(error)
        ),
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

/// Returns the rows of each head, layer after layer.
pub(crate) fn read_heads(name: &str, tensor: &TensorView, grid: Grid) -> Result<Vec<Vec<f32>>> {
    let data = tensor.data();
    let values: Vec<f32> = match tensor.dtype() {
        Dtype::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F64 => data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        other => fail!("{name} is {other:?}; F16, BF16, F32 and F64 are read"),
    };
    let Grid { layers, heads, rows, dim, .. } = grid;
    let mut all = Vec::with_capacity(layers * heads);
    for head in 0..layers * heads {
        let mut of_head = Vec::with_capacity(rows * dim);
        for row in 0..rows {
            let vector = &values[grid.at(head, row)..][..dim];
            if let Some(column) = vector.iter().position(|value| !value.is_finite()) {
                let (layer, head) = (head / heads, head % heads);
                fail!(
                    "{name}, layer {layer}, head {head}, row {row}, column {column} is NaN or infinite in f32"
                );
            }
            of_head.extend_from_slice(vector);
        }
        all.push(of_head);
    }
    Ok(all)
}

/// Returns the values of raw little-endian f32 rows.
pub(crate) fn raw_rows(bytes: &[u8], dim: usize) -> Result<Vec<f32>> {
    match bytes.as_chunks() {
        (values, []) if dim > 0 && values.len().is_multiple_of(dim) => {
            Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
        _ => fail!(
            "{} bytes are no whole number of rows; a row of {dim} f32 values has {} bytes",
            bytes.len(),
            dim.saturating_mul(4)
        ),
    }
}

/// For people and file fields.
pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Keys => "keys",
        Role::Values => "values",
    }
}
