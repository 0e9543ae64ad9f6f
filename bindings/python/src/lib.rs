//! The extension module of the package `octaplex`. The package's Python code checks arrays: here they are one-dimensional,
//! contiguous, and of a type that NumPy has. Calls release the interpreter's lock while they work.

mod arrays;
mod cache;
mod chunk;
mod codec;
mod device;
mod profile;
mod work;

use octaplex::{Backend, CodecSpec, ErrorKind, verify};
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use std::path::Path;

pyo3::create_exception!(
    octaplex,
    Error,
    pyo3::exceptions::PyValueError,
    "Says what was wrong, and what to do."
);

/// Returns the type `OutOfMemory`, which is both an `Error` and Python's MemoryError.
fn out_of_memory_type(py: Python<'_>) -> Result<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let make = || -> Result<Py<PyType>> {
        let bases = (py.get_type::<Error>(), py.get_type::<PyMemoryError>());
        let dict = PyDict::new(py);
        dict.set_item("__module__", "octaplex")?;
        dict.set_item(
            "__doc__",
            "The machine or the GPU has too little free memory. The cache is unchanged.",
        )?;
        let made = py.get_type::<PyType>().call1(("OutOfMemory", bases, dict))?;
        Ok(made.cast_into::<PyType>()?.unbind())
    };
    Ok(TYPE.get_or_try_init(py, make)?.bind(py))
}

/// Creates the error of a machine or a GPU with too little memory.
pub(crate) fn out_of_memory(words: String) -> PyErr {
    Python::attach(|py| match out_of_memory_type(py) {
        Ok(kind) => PyErr::from_type(kind.clone(), words),
        Err(error) => error,
    })
}

/// The result of every call.
pub(crate) type Result<T> = PyResult<T>;

/// Converts the library's errors to Python's.
pub(crate) trait OrRaise<T> {
    fn or_raise(self) -> Result<T>;
}

impl<T> OrRaise<T> for core::result::Result<T, octaplex::Error> {
    fn or_raise(self) -> Result<T> {
        self.map_err(|error| raised(error, ""))
    }
}

/// Converts an error of the library. Its words follow `before`.
pub(crate) fn raised(error: octaplex::Error, before: &str) -> PyErr {
    let words = format!("{before}{error}");
    match error.kind() {
        ErrorKind::Memory => out_of_memory(words),
        _ => Error::new_err(words),
    }
}

/// Converts a file's error to Python's OSError, with its number and path. Too little memory is an `OutOfMemory`.
pub(crate) fn os_error(error: std::io::Error, path: &Path) -> PyErr {
    let words = error.to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    if error.kind() == std::io::ErrorKind::OutOfMemory {
        return out_of_memory(format!("{}: {words}", path.display()));
    }
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
    module.add("OutOfMemory", out_of_memory_type(module.py())?)?;
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
