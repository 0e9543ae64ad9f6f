//! Runs single operations on the host's own CPU backend, on plain memory of this library and on decoded rows.

use crate::abi::{Backend, DEVICE_CPU, FAILED, Tensor};
use crate::functions::InitParams;
use crate::host::Host;
use core::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

/// The host's CPU backend, and a graph of one node.
pub(crate) struct Inner {
    backend: *mut Backend,
    graph: *mut c_void,
    set_threads: Option<unsafe extern "C" fn(*mut Backend, c_int)>,
}

// SAFETY: ggml's backends and graphs are tied to no thread. `Instance` keeps this value in a mutex, so one thread at a
// time uses it.
unsafe impl Send for Inner {}

impl Inner {
    /// Returns `None` if the host has no CPU backend.
    pub(crate) fn new(host: &Host) -> Option<Self> {
        let functions = &host.functions;
        // SAFETY: calls as ggml-backend.h and ggml.h declare them; null pointers are checked. The context is never freed,
        // because the process has one for each ggml.
        unsafe {
            let device = (functions.ggml_backend_dev_by_type)(DEVICE_CPU);
            if device.is_null() {
                return None;
            }
            let backend = (functions.ggml_backend_dev_init)(device, null());
            let registry = (functions.ggml_backend_dev_backend_reg)(device);
            let name = c"ggml_backend_set_n_threads";
            let found = (functions.ggml_backend_reg_get_proc_address)(registry, name.as_ptr());
            let size = (functions.ggml_graph_overhead)() + (1 << 16);
            let context = (functions.ggml_init)(InitParams { size, memory: null_mut(), no_alloc: true });
            if backend.is_null() || context.is_null() {
                return None;
            }
            let graph = (functions.ggml_new_graph)(context);
            let set_threads = (!found.is_null()).then(|| {
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Backend, c_int)>(found)
            });
            (!graph.is_null()).then_some(Self { backend, graph, set_threads })
        }
    }

    /// Computes one operation. All its tensors lie in plain memory.
    ///
    /// # Safety
    /// The tensors' data are valid, and nobody else writes them meanwhile.
    pub(crate) unsafe fn compute(&mut self, host: &Host, node: *mut Tensor, threads: usize) -> c_int {
        if self.backend.is_null() {
            return FAILED;
        }
        // SAFETY: the graph has space for a node; the caller vouches for the tensors.
        unsafe {
            if let Some(set_threads) = self.set_threads {
                set_threads(self.backend, threads as c_int);
            }
            (host.functions.ggml_graph_clear)(self.graph);
            (host.functions.ggml_graph_add_node)(self.graph, node);
            (host.functions.ggml_backend_graph_compute)(self.backend, self.graph)
        }
    }
}
