//! Codecs without a cache.

use crate::arrays::{Floats, bytes, floats};
use crate::work::work;
use crate::{OrRaise, Result, spec};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use octaplex::Backend;
use octaplex::codecs::{HeadId, Role};
use pyo3::prelude::*;

#[pyclass(frozen, module = "octaplex._octaplex")]
pub(crate) struct Codec {
    codec: Box<dyn octaplex::codecs::Codec>,
    spec: String,
}

#[pymethods]
impl Codec {
    #[new]
    fn new(py: Python, text: &str, dim: usize, layer: u32, head: u32, values: bool) -> Result<Self> {
        let (spec, role) = (spec(text)?, if values { Role::Values } else { Role::Keys });
        let build = || spec.build_dyn(dim, Backend::detect(), HeadId { layer, head, role });
        let codec = work(py, build)?.or_raise()?;
        Ok(Self { codec, spec: spec.to_string() })
    }

    #[getter]
    fn spec(&self) -> &str {
        &self.spec
    }

    #[getter]
    fn dim(&self) -> usize {
        self.codec.dim()
    }

    #[getter]
    fn block_bytes(&self) -> usize {
        self.codec.block_bytes()
    }

    fn encode<'py>(&self, py: Python<'py>, rows: Floats<'py>) -> Result<Bound<'py, PyArray1<u8>>> {
        let rows = rows.tensor()?;
        let blocks = work(py, || self.codec.encode_rows(&floats(rows)))?.or_raise()?;
        Ok(blocks.into_pyarray(py))
    }

    fn decode<'py>(
        &self,
        py: Python<'py>,
        blocks: PyReadonlyArray1<'py, u8>,
    ) -> Result<Bound<'py, PyArray1<f32>>> {
        let blocks = bytes(&blocks)?;
        Ok(work(py, || self.codec.decode_rows(blocks))?.or_raise()?.into_pyarray(py))
    }

    fn score<'py>(
        &self,
        py: Python<'py>,
        queries: Floats<'py>,
        blocks: PyReadonlyArray1<'py, u8>,
    ) -> Result<Bound<'py, PyArray1<f32>>> {
        let (queries, blocks) = (queries.tensor()?, bytes(&blocks)?);
        Ok(work(py, || self.codec.score_rows(&floats(queries), blocks))?.or_raise()?.into_pyarray(py))
    }

    fn attend<'py>(
        &self,
        py: Python<'py>,
        weights: Floats<'py>,
        blocks: PyReadonlyArray1<'py, u8>,
    ) -> Result<Bound<'py, PyArray1<f32>>> {
        let (weights, blocks) = (weights.tensor()?, bytes(&blocks)?);
        Ok(work(py, || self.codec.attend_rows(&floats(weights), blocks))?.or_raise()?.into_pyarray(py))
    }
}
