//! The wrapped things: the host's GPUs, and its buffers and backends that have functions of this library.

use super::cache::Cache;
use super::cells::Steps;
use super::seam::Seam;
use crate::abi::{Backend, Tensor};
use crate::instance::lock;
use core::ffi::{c_char, c_void};
use core::ops::Deref;
use octaplex::gpu;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// All that is wrapped in this process.
pub(super) struct Registry {
    seam: Seam,
    /// Caches by the addresses of their buffers.
    pub(super) caches: Mutex<HashMap<usize, Arc<Cache>>>,
    /// Backends by their addresses.
    pub(super) backends: Mutex<HashMap<usize, Arc<Wrapped>>>,
}

impl Deref for Registry {
    type Target = Seam;

    fn deref(&self) -> &Seam {
        &self.seam
    }
}

/// A wrapped backend, and its own functions.
pub(super) struct Wrapped {
    pub(super) gpu: usize,
    pub(super) own: Backend,
    /// Two of the host's events, or null.
    pub(super) events: [*mut c_void; 2],
    pub(super) recorded: Mutex<Recorded>,
}

/// A whole graph of the host's, recorded as one graph of CUDA's.
#[derive(Default)]
pub(super) struct Recorded {
    /// The number of the last graph that was not recorded.
    pub(super) seen: u64,
    pub(super) last: Option<Arc<Known>>,
    /// Whether a recording has failed. There is no other attempt then.
    pub(super) failed: bool,
}

/// A recorded graph.
pub(super) struct Known {
    pub(super) uid: u64,
    pub(super) recording: gpu::Recording,
    /// Its caches, and what it asks of each.
    pub(super) caches: Vec<(Arc<Cache>, Steps)>,
}

// SAFETY: as for `Seam`. The host uses a backend from one thread at a time.
unsafe impl Send for Wrapped {}
// SAFETY: as above.
unsafe impl Sync for Wrapped {}

static REGISTRY: OnceLock<Option<Registry>> = OnceLock::new();

pub(super) fn registry() -> Option<&'static Registry> {
    REGISTRY.get().and_then(Option::as_ref)
}

/// Makes the registry, with the GPUs that `find` finds, if this is the first call.
pub(super) fn register(find: impl FnOnce() -> Option<Seam>) {
    REGISTRY.get_or_init(|| {
        find().map(|seam| Registry { seam, caches: Mutex::default(), backends: Mutex::default() })
    });
}

impl Registry {
    pub(super) fn backend(&self, backend: *mut Backend) -> Option<Arc<Wrapped>> {
        lock(&self.backends).get(&(backend as usize)).cloned()
    }

    /// Returns the cache that a tensor, or the tensor behind a view, belongs to.
    pub(super) fn cache_of(&self, tensor: &Tensor) -> Option<Arc<Cache>> {
        let root = tensor.root();
        // Nearly all tensors end here.
        if root.buffer.is_null() || root.name[..6] != CACHE {
            return None;
        }
        lock(&self.caches).get(&(root.buffer as usize)).cloned()
    }
}

/// The beginning of the names of caches.
const CACHE: [c_char; 6] =
    [b'c' as c_char, b'a' as c_char, b'c' as c_char, b'h' as c_char, b'e' as c_char, b'_' as c_char];
