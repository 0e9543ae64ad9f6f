//! The state for one ggml that loaded this library.

use crate::abi::{self, Device, FAILED, Tensor};
use crate::host::Host;
use crate::inner::Inner;
use crate::lent::Lender;
use crate::plan::Plan;
use crate::settings::Settings;
use crate::threads::Team;
use core::ffi::{c_int, c_void};
use octaplex::CodecSpec;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) const NAME: &core::ffi::CStr = c"OCTAPLEX";

/// The state for one ggml that loaded this library. It lives as long as the process.
pub(crate) struct Instance {
    pub(crate) host: Host,
    pub(crate) settings: Settings,
    pub(crate) team: Team,
    pub(crate) device: *mut Device,
    pub(crate) buffer_type: *mut c_void,
    /// Whether the host is a debug build.
    pub(crate) is_debug: bool,
    /// Whether all memory is left to the host, because a setting was refused.
    pub(crate) is_passive: bool,
    /// The sizes that the host asked for.
    pub(crate) plan: Mutex<Plan>,
    /// Whether memory was left to the host's CPU.
    pub(crate) declined: AtomicBool,
    /// Number of existing caches.
    pub(crate) stores: AtomicUsize,
    /// Whether a backend was created since the last computation: the host is creating a context.
    pub(crate) fresh: AtomicBool,
    pub(crate) inner: Mutex<Option<Inner>>,
    /// The threads that a backend of this library may use, by its address.
    pub(crate) lenders: Mutex<HashMap<usize, Arc<Lender>>>,
    pub(crate) said: Mutex<HashSet<String>>,
}

// SAFETY: the memory behind the two pointers is written once, before any other thread has them.
unsafe impl Sync for Instance {}
// SAFETY: the two pointers lead to memory that is tied to no thread. Everything else in it is `Send`.
unsafe impl Send for Instance {}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance {
    /// Logs a line once.
    pub(crate) fn say_once(&self, text: &str) {
        if lock(&self.said).insert(text.to_owned()) {
            self.host.info(text);
        }
    }

    /// Says on standard error that the first cache is compressed, and what computes on it. Hosts often hide their log.
    pub(crate) fn announce(
        &self,
        keys: (CodecSpec, usize, f64),
        values: (CodecSpec, usize, f64),
        place: &str,
    ) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if SAID.swap(true, Ordering::Relaxed) {
            return;
        }
        let (key_dim, value_dim) = (keys.1 as f64, values.1 as f64);
        let bits = (keys.2 * key_dim + values.2 * value_dim) / (key_dim + value_dim);
        eprintln!(
            "octaplex is on: keys in {}, values in {}, {bits:.1} bits per value ({place})",
            keys.0, values.0
        );
    }

    /// Logs an error once, and returns the status of a failed call.
    pub(crate) fn fail(&self, text: &str) -> c_int {
        if lock(&self.said).insert(text.to_owned()) {
            self.host.error(text);
        }
        FAILED
    }

    /// Computes one operation on the host's CPU.
    ///
    /// # Safety
    /// As [`Inner::compute`].
    pub(crate) unsafe fn compute_on_host(&self, node: *mut Tensor) -> c_int {
        let mut inner = lock(&self.inner);
        if inner.is_none() {
            *inner = Inner::new(&self.host);
        }
        match &mut *inner {
            // SAFETY: the caller promises valid tensors that nobody else writes.
            Some(inner) => unsafe { inner.compute(&self.host, node, self.team.threads()) },
            None => self.fail("the host has no CPU backend"),
        }
    }

    /// Returns whether the host's CPU can compute an operation.
    pub(crate) fn host_supports(&self, op: *const Tensor) -> bool {
        // SAFETY: calls as ggml-backend.h declares them, on a tensor of the host's.
        unsafe {
            let device = (self.host.functions.ggml_backend_dev_by_type)(abi::DEVICE_CPU);
            !device.is_null() && (self.host.functions.ggml_backend_dev_supports_op)(device, op)
        }
    }
}

/// Returns the instance behind a context pointer.
pub(crate) fn instance_of(context: *mut c_void) -> &'static Instance {
    // SAFETY: every context that this library hands out is a leaked instance.
    unsafe { &*context.cast::<Instance>() }
}
