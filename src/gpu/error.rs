//! The error of calls on a GPU.

use super::Failure;
use core::fmt;

/// The reason for which a call failed. The layer is as it was. After [`Device`](Self::Device), [clear](super::Layer::clear) the
/// sequence that the call changed.
///
/// ```no_run
/// use octaplex::{LayerConfig, gpu};
///
/// let config = LayerConfig::new(1, 64, 4096);
/// match gpu::Device::new(0).map_err(gpu::Error::from).and_then(|device| gpu::Layer::new(&device, &config, 1, 4096)) {
///     Ok(layer) => println!("space for {} tokens", layer.paged_capacity()),
///     Err(gpu::Error::Device(gpu::Failure::Memory { bytes })) => println!("{bytes} bytes are not free"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The driver, the run-time compiler or the GPU failed.
    Device(Failure),
    /// The arguments are wrong on a CPU too.
    Library(crate::Error),
    /// The GPU kernels do not support this yet.
    Unsupported {
        /// The unsupported thing, and what to do instead.
        why: &'static str,
    },
    /// The layer has too few free pages.
    Full {
        /// Pages that the call needs.
        needed: usize,
        /// Pages that are free.
        free: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(failure) => failure.fmt(f),
            Self::Library(error) => error.fmt(f),
            Self::Unsupported { why } => f.write_str(why),
            Self::Full { needed, free } => {
                write!(
                    f,
                    "{needed} more pages are needed, but {free} are free: clear a sequence, or grow the layer"
                )
            }
        }
    }
}

impl core::error::Error for Error {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Device(failure)
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Self::Library(error)
    }
}
