//! Threads that the host lends: those of the CPU backend of its context.
//!
//! A ggml without OpenMP has thread pools. If a program attaches none to its context, ggml creates new threads for each graph
//! that its CPU computes. Alone that is one graph a token. Next to this device it is one a layer, and with eight threads their
//! creation took more time than all computation. So:
//!
//! * the CPU backend of such a context gets a pool that lasts;
//! * tasks of this device run there too, as one operation `CUSTOM`, which the CPU backend hands to all its threads.
//!
//! ```text
//! llama.cpp, before each graph                           this module
//! asks the CPU's registry for                            returns `set_pool` instead
//!   "ggml_backend_cpu_set_threadpool"
//! calls it with the CPU backend, and its pool or null    passes it on, notes the backend for this thread
//! sets the number of threads of each backend             `Lender::meet` joins the noted backend with ours
//! computes                                               `Lender::run` hands tasks to the CPU backend
//! ```
//!
//! With OpenMP nothing is replaced: `threads.rs` uses its threads.

use crate::abi::{Backend, DEVICE_CPU, F32, Registry, Tensor};
use crate::functions::{Functions, InitParams};
use crate::system::is_writable;
use crate::work::Work;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::cell::{Cell, RefCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

type SetPool = unsafe extern "C" fn(*mut Backend, *mut c_void);
type ProcAddress = extern "C" fn(*mut Registry, *const c_char) -> *const c_void;

/// The functions of the host's CPU registry.
struct Pools {
    registry: usize,
    proc_address: ProcAddress,
    set: SetPool,
    create: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    default_params: unsafe extern "C" fn(*mut c_void, c_int),
}

/// Those of the first ggml of the process. Others keep their own threads.
static POOLS: OnceLock<Option<Pools>> = OnceLock::new();

thread_local! {
    /// The CPU backend of the graph that this thread is about to compute, and whether its program attached no pool.
    static NOTED: Cell<Option<(*mut Backend, bool)>> = const { Cell::new(None) };
}

/// Replaces the function that attaches pools, once, if the host has pools and no OpenMP.
pub(crate) fn prepare(functions: &Functions, openmp: bool) {
    let mut slot = None;
    POOLS.get_or_init(|| {
        if openmp {
            return None;
        }
        let (pools, found) = Pools::find(functions)?;
        slot = Some(found);
        Some(pools)
    });
    // Only now, because other threads may call `lent_address` at once, and it reads `POOLS`.
    if let Some(slot) = slot {
        // SAFETY: `find` found the slot, which belongs to a static variable of the host and may be written.
        unsafe { slot.write(lent_address) };
    }
}

impl Pools {
    /// Finds the host's pools, and the place of its CPU registry's function that looks up others.
    fn find(functions: &Functions) -> Option<(Self, *mut ProcAddress)> {
        // SAFETY: calls as ggml-backend.h declares them; null pointers are checked. `probe.rs` found the layout of devices and
        // registries in place. The CPU's registry is a static variable that ggml writes when it is first used.
        unsafe {
            let device = (functions.ggml_backend_dev_by_type)(DEVICE_CPU);
            if device.is_null() {
                return None;
            }
            let registry: *mut Registry = (functions.ggml_backend_dev_backend_reg)(device).cast();
            let proc_address = (*registry).get_proc_address;
            let find = |name: &CStr| {
                let found = (functions.ggml_backend_reg_get_proc_address)(registry.cast(), name.as_ptr());
                (!found.is_null() && proc_address(registry, name.as_ptr()).cast_mut() == found)
                    .then_some(found)
            };
            let set = core::mem::transmute::<*mut c_void, SetPool>(find(SET)?);
            let create = core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> *mut c_void>(
                find(c"ggml_threadpool_new")?,
            );
            let free = core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(find(
                c"ggml_threadpool_free",
            )?);
            let slot = &raw mut (*registry).get_proc_address;
            if !is_writable(slot as usize) {
                return None;
            }
            let default_params = functions.ggml_threadpool_params_init;
            let registry = registry as usize;
            Some((Self { registry, proc_address, set, create, free, default_params }, slot))
        }
    }

    fn get() -> Option<&'static Self> {
        POOLS.get().and_then(Option::as_ref)
    }

    /// Creates a pool with ggml's defaults.
    fn pool(&self, threads: usize) -> *mut c_void {
        // The struct has some 530 bytes; the host fills in its own size.
        let mut params = [0u64; 512];
        // SAFETY: both functions take a `struct ggml_threadpool_params`, for which there is more than enough memory.
        unsafe {
            (self.default_params)(params.as_mut_ptr().cast(), threads as c_int);
            (self.create)(params.as_mut_ptr().cast())
        }
    }
}

const SET: &CStr = c"ggml_backend_cpu_set_threadpool";

/// The CPU registry's `get_proc_address`.
extern "C" fn lent_address(registry: *mut Registry, name: *const c_char) -> *const c_void {
    let Some(pools) = Pools::get() else { return core::ptr::null() };
    // SAFETY: the host passes a string that ends with a zero.
    let is_set = registry as usize == pools.registry && unsafe { CStr::from_ptr(name) } == SET;
    if is_set { set_pool as *const c_void } else { (pools.proc_address)(registry, name) }
}

/// Attaches the program's pool, or none, to a CPU backend. Notes the backend for [`Lender::meet`].
extern "C" fn set_pool(backend: *mut Backend, pool: *mut c_void) {
    let Some(pools) = Pools::get() else { return };
    NOTED.set(Some((backend, pool.is_null())));
    // SAFETY: the host passes its CPU backend and its pool.
    unsafe { (pools.set)(backend, pool) };
}

/// The threads of a context's CPU backend.
pub(crate) struct Lender {
    cpu: *mut Backend,
    /// The pool that this library created, or null, and its threads.
    pool: *mut c_void,
    threads: usize,
    functions: Functions,
    context: *mut c_void,
    /// A graph of one operation, which takes tasks of `work`.
    graph: *mut c_void,
    work: Box<AtomicPtr<c_void>>,
}

// SAFETY: ggml's backends, pools and graphs are tied to no thread. A context computes on one thread at a time.
unsafe impl Send for Lender {}
// SAFETY: as above.
unsafe impl Sync for Lender {}

impl Lender {
    /// Returns the lender of the CPU backend that this thread noted. `known` is that of the last graph.
    ///
    /// If the program attached no pool, the backend gets one for this number of threads.
    pub(crate) fn meet(functions: &Functions, known: Option<Arc<Self>>, threads: usize) -> Option<Arc<Self>> {
        let (Some(pools), Some((cpu, is_alone))) = (Pools::get(), NOTED.take()) else { return known };
        let fits = |known: &Arc<Self>| known.cpu == cpu && (!is_alone || threads <= known.threads);
        let lender = match known.filter(fits) {
            Some(known) => known,
            None => Arc::new(Self::new(functions, cpu, if is_alone { threads } else { 0 })?),
        };
        if is_alone && !lender.pool.is_null() {
            // SAFETY: the host has just called the same function with this backend. The pool lives as long as the lender.
            unsafe { (pools.set)(cpu, lender.pool) };
        }
        Some(lender)
    }

    fn new(functions: &Functions, cpu: *mut Backend, threads: usize) -> Option<Self> {
        let work = Box::new(AtomicPtr::new(null_mut()));
        let userdata = (&raw const *work).cast_mut().cast();
        // SAFETY: calls as ggml.h declares them; null pointers are checked. `work` outlives the graph.
        unsafe {
            let size = (functions.ggml_graph_overhead)() + (1 << 16);
            let context = (functions.ggml_init)(InitParams { size, memory: null_mut(), no_alloc: true });
            if context.is_null() {
                return None;
            }
            let node =
                (functions.ggml_custom_4d)(context, F32, 1, 1, 1, 1, null_mut(), 0, take, ALL, userdata);
            let graph = (functions.ggml_new_graph)(context);
            (functions.ggml_build_forward_expand)(graph, node); // unlike `ggml_graph_add_node`, marks it to be computed
            let pool = if threads > 1 { Pools::get()?.pool(threads) } else { null_mut() };
            Some(Self { cpu, pool, threads, functions: *functions, context, graph, work })
        }
    }

    /// Takes tasks on all threads of the CPU backend, and returns when each has ended.
    fn run(&self, work: &Work) {
        self.work.store(core::ptr::from_ref(work).cast_mut().cast(), Ordering::Release);
        // SAFETY: this thread computes the graph of the context, so its CPU backend is idle. The graph's operation reads
        // `work` only during the call.
        unsafe { (self.functions.ggml_backend_graph_compute)(self.cpu, self.graph) };
    }

    /// Calls `f`. Meanwhile [`share`] uses this lender's threads.
    pub(crate) fn lend<T>(lender: Option<Arc<Self>>, f: impl FnOnce() -> T) -> T {
        struct Ends;
        impl Drop for Ends {
            fn drop(&mut self) {
                LENDER.set(None);
            }
        }
        LENDER.set(lender);
        let _ends = Ends;
        f()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // SAFETY: both were created for this value. No graph is being computed, because the host frees the context's
        // backends, or has just attached another pool.
        unsafe {
            (self.functions.ggml_free)(self.context);
            if let (Some(pools), false) = (Pools::get(), self.pool.is_null()) {
                (pools.free)(self.pool);
            }
        }
    }
}

thread_local! {
    /// The lender of the graph that this thread computes.
    static LENDER: RefCell<Option<Arc<Lender>>> = const { RefCell::new(None) };
}

/// Hands work to the threads of the context that this thread computes for. Takes nothing if there are none.
pub(crate) fn share(work: &Work) {
    let lender = LENDER.with_borrow(Clone::clone);
    if let Some(lender) = lender {
        lender.run(work);
    }
}

/// As many threads as there are.
const ALL: c_int = -1;

/// The operation `CUSTOM`: each thread takes tasks until none is left.
extern "C" fn take(_: *mut Tensor, _: c_int, _: c_int, work: *mut c_void) {
    // SAFETY: `Lender::run` stored the work, which lives until all threads have left the operation.
    unsafe { (*(*work.cast::<AtomicPtr<c_void>>()).load(Ordering::Acquire).cast::<Work>()).share() };
}
