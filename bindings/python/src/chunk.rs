//! The codec of chunks, which has no state.

use crate::arrays::{Floats, FloatsMut, bytes};
use crate::cache::center;
use crate::work::work;
use crate::{Error, OrRaise, Result, spec_or};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use octaplex::Backend;
use octaplex::chunk::{ChunkConfig, ChunkInfo, ChunkLayout, Dtype};
use pyo3::prelude::*;

#[pyclass(frozen, module = "octaplex._octaplex")]
pub(crate) struct ChunkCodec(octaplex::chunk::ChunkCodec);

fn layout(name: &str) -> Result<ChunkLayout> {
    match name {
        "split" => Ok(ChunkLayout::Split),
        "fused" => Ok(ChunkLayout::Fused),
        other => Err(Error::new_err(format!("layout is \"{other}\": pass \"split\" or \"fused\""))),
    }
}

/// Settings of a chunk, without its size.
#[derive(FromPyObject)]
struct Settings {
    #[pyo3(item)]
    keys: Option<String>,
    #[pyo3(item)]
    values: Option<String>,
    #[pyo3(item)]
    layout: String,
    #[pyo3(item)]
    first_layer: u32,
    #[pyo3(item)]
    page: usize,
    #[pyo3(item)]
    center: String,
    #[pyo3(item)]
    balance: bool,
}

/// (layers, key/value heads, width), settings in Python's form, (tokens, bytes), type.
type Info = (
    (usize, usize, usize),
    (String, String, &'static str, u32, usize, &'static str, bool),
    (usize, usize),
    &'static str,
);

/// Reads a blob's header.
#[pyfunction]
pub(crate) fn chunk_info(blob: PyReadonlyArray1<u8>) -> Result<Info> {
    let ChunkInfo { config, tokens, dtype, bytes, .. } = ChunkInfo::read(bytes(&blob)?).or_raise()?;
    let layout = match config.layout {
        ChunkLayout::Split => "split",
        ChunkLayout::Fused => "fused",
    };
    let dtype = match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    };
    let center = ["off", "prefix", "page"][config.center as usize];
    let (keys, values) = (config.keys.to_string(), config.values.to_string());
    let settings = (keys, values, layout, config.first_layer, config.page, center, config.balance);
    Ok(((config.layers, config.kv_heads, config.head_dim), settings, (tokens, bytes), dtype))
}

#[pymethods]
impl ChunkCodec {
    #[new]
    fn new(py: Python, layers: usize, kv_heads: usize, head_dim: usize, settings: Settings) -> Result<Self> {
        let default = ChunkConfig::new(layers, kv_heads, head_dim);
        let config = default
            .keys(spec_or(settings.keys.as_deref(), default.keys)?)
            .values(spec_or(settings.values.as_deref(), default.values)?)
            .layout(layout(&settings.layout)?)
            .first_layer(settings.first_layer)
            .page(settings.page)
            .center(center(&settings.center)?)
            .balance(settings.balance);
        Ok(Self(work(py, || octaplex::chunk::ChunkCodec::new(config, Backend::detect()))?.or_raise()?))
    }

    fn max_bytes(&self, tokens: usize) -> usize {
        self.0.max_bytes(tokens)
    }

    fn encode_into(&self, py: Python, tensor: Floats, mut blob: PyReadwriteArray1<u8>) -> Result<usize> {
        let tensor = tensor.tensor()?;
        let blob = blob
            .as_slice_mut()
            .map_err(|_| Error::new_err("out is not contiguous: pass a contiguous buffer"))?;
        work(py, || self.0.encode_into(tensor, blob))?.or_raise()
    }

    fn decode_into(&self, py: Python, blob: PyReadonlyArray1<u8>, mut tensor: FloatsMut) -> Result<()> {
        let (blob, tensor) = (bytes(&blob)?, tensor.tensor()?);
        work(py, || self.0.decode(blob, tensor))?.or_raise()
    }
}
