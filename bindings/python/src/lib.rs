//! The extension module of the package `octaplex`. The package's Python code checks arrays: here they are one-dimensional,
//! contiguous, and of a type that NumPy has. Calls release the interpreter's lock while they work.

mod arrays;
mod cache;
mod chunk;
mod codec;
mod device;
mod profile;
mod work;

use octaplex::{Backend, CodecSpec, verify};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::path::Path;

pyo3::create_exception!(
    octaplex,
    Error,
    pyo3::exceptions::PyValueError,
    "Says what was wrong, and what to do."
);
pyo3::create_exception!(
    octaplex,
    OutOfMemory,
    Error,
    "A GPU has too little free memory. The cache is unchanged."
);

/// The result of every call.
pub(crate) type Result<T> = PyResult<T>;

/// Converts the library's errors to Python's.
pub(crate) trait OrRaise<T> {
    fn or_raise(self) -> Result<T>;
}

impl<T> OrRaise<T> for core::result::Result<T, octaplex::Error> {
    fn or_raise(self) -> Result<T> {
        self.map_err(|error| Error::new_err(error.to_string()))
    }
}

/// Converts a file's error to Python's OSError, with its number and path.
pub(crate) fn os_error(error: std::io::Error, path: &Path) -> PyErr {
    let words = error.to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    match error.raw_os_error() {
        Some(code) if cfg!(windows) => {
            PyOSError::new_err((0, words.to_owned(), path.as_os_str().to_owned(), code))
        }
        Some(code) => PyOSError::new_err((code, words.to_owned(), path.as_os_str().to_owned())),
        None => std::io::Error::new(error.kind(), format!("{}: {words}", path.display())).into(),
    }
}

pub(crate) fn spec(text: &str) -> Result<CodecSpec> {
    text.parse().map_err(|error: octaplex::Error| Error::new_err(format!("\"{text}\": {error}")))
}

/// Parses a spec, or returns the default for `None`.
pub(crate) fn spec_or(text: Option<&str>, default: CodecSpec) -> Result<CodecSpec> {
    text.map_or(Ok(default), spec)
}

/// Returns the names of all codecs.
#[pyfunction]
fn codecs() -> Vec<&'static str> {
    CodecSpec::all().iter().map(|codec| codec.name).collect()
}

/// Returns the name of the backend in use.
#[pyfunction]
fn backend() -> &'static str {
    Backend::detect().name()
}

/// A codec's name, its checksum, and the expected checksum.
type Line = (&'static str, String, Option<String>);

/// Returns a line for each codec, and the checksum of all.
#[pyfunction(name = "verify")]
fn checksums(py: Python) -> Result<(Vec<Line>, String)> {
    work::work(py, || {
        let (mut memory, mut found) = (vec![0.0; verify::MEMORY], Vec::new());
        for name in codecs() {
            found.push((name, verify::check(name, Backend::detect(), &mut memory).or_raise()?));
        }
        let all = verify::together(found.iter().map(|(_, sums)| *sums));
        let line = |(name, sums): (_, verify::Checksums)| {
            (name, sums.to_string(), verify::expected(name).map(|sums| sums.to_string()))
        };
        Ok((found.into_iter().map(line).collect(), format!("{all:08x}")))
    })?
}

#[pymodule]
fn _octaplex(module: &Bound<PyModule>) -> Result<()> {
    module.add("Error", module.py().get_type::<Error>())?;
    module.add("OutOfMemory", module.py().get_type::<OutOfMemory>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<codec::Codec>()?;
    module.add_class::<cache::Cache>()?;
    module.add_class::<chunk::ChunkCodec>()?;
    module.add_class::<profile::Calibration>()?;
    module.add_class::<device::DeviceCache>()?;
    module.add_function(wrap_pyfunction!(codecs, module)?)?;
    module.add_function(wrap_pyfunction!(backend, module)?)?;
    module.add_function(wrap_pyfunction!(checksums, module)?)?;
    module.add_function(wrap_pyfunction!(profile::expected_divergence, module)?)?;
    module.add_function(wrap_pyfunction!(device::gpu_name, module)?)?;
    module.add_function(wrap_pyfunction!(work::before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(work::after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(work::after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(chunk::chunk_info, module)?)
}
