//! The wrapped things: the host's GPUs, and its buffers and backends that have functions of this library.

use super::cache::Cache;
use super::cells::Steps;
use super::seam::Seam;
use crate::abi::{Backend, Tensor};
use crate::instance::lock;
use core::ffi::{c_char, c_void};
use octaplex::gpu;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

static SEAM: OnceLock<Option<Seam>> = OnceLock::new();

/// Caches by the addresses of their buffers.
pub(super) static CACHES: Mutex<BTreeMap<usize, Arc<Cache>>> = Mutex::new(BTreeMap::new());

/// Backends by their addresses.
pub(super) static BACKENDS: Mutex<BTreeMap<usize, Arc<Wrapped>>> = Mutex::new(BTreeMap::new());

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

/// Returns the host's GPUs, if this process wraps them.
pub(super) fn seam() -> Option<&'static Seam> {
    SEAM.get().and_then(Option::as_ref)
}

/// Wraps the GPUs that `find` finds, if this is the first call.
pub(super) fn register(find: impl FnOnce() -> Option<Seam>) {
    SEAM.get_or_init(find);
}

pub(super) fn wrapped_of(backend: *mut Backend) -> Option<Arc<Wrapped>> {
    lock(&BACKENDS).get(&(backend as usize)).cloned()
}

/// Returns the cache that a tensor, or the tensor behind a view, belongs to.
pub(super) fn cache_of(tensor: &Tensor) -> Option<Arc<Cache>> {
    let root = tensor.root();
    // Nearly all tensors end here.
    if root.buffer.is_null() || root.name[..6] != CACHE {
        return None;
    }
    lock(&CACHES).get(&(root.buffer as usize)).cloned()
}

/// The beginning of the names of caches.
const CACHE: [c_char; 6] =
    [b'c' as c_char, b'a' as c_char, b'c' as c_char, b'h' as c_char, b'e' as c_char, b'_' as c_char];
