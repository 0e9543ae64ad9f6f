//! The device, its registry, and its backend, which computes graphs.

use crate::abi::{self, Backend, Device, FAILED, Props, Registry, SUCCESS, Tensor, Version, source};
use crate::abi::{BufferType2, BufferType3};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::host::Host;
use crate::instance::{Instance, NAME, instance_of, lock};
use crate::lent::{self, Lender};
use crate::settings::Settings;
use crate::store::{self, Store};
use crate::threads::{self, Team};
use crate::{buffer, guarded, memory, ops};
use core::ffi::{c_char, c_int, c_void};
use std::collections::HashSet;
use std::ptr::null;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const DESCRIPTION: &core::ffi::CStr = c"compressed key/value cache on the CPU";
static GUID: [u8; 16] = *b"octaplex-ggml\0\0\x02";

/// Creates the registry with its device for a host.
pub(crate) fn registry(host: Host, settings: Option<Settings>) -> *mut c_void {
    let (version, text) = (host.version, host.version_text.clone());
    let instance = Box::into_raw(Box::new(Instance {
        host,
        is_passive: settings.is_none(),
        settings: settings.unwrap_or_else(Settings::none),
        team: Team::new(),
        device: core::ptr::null_mut(),
        buffer_type: core::ptr::null_mut(),
        is_debug: false,
        plan: Mutex::default(),
        declined: AtomicBool::new(false),
        stores: AtomicUsize::new(0),
        fresh: AtomicBool::new(false),
        inner: Mutex::new(None),
        lenders: Mutex::default(),
        said: Mutex::new(HashSet::new()),
    }));
    let context: *mut c_void = instance.cast();
    let registry = Box::into_raw(Box::new(Registry {
        api_version: version.api(),
        get_name: registry_name,
        get_device_count: device_count,
        get_device: device_of,
        get_proc_address: proc_address,
        context,
    }));
    let device = Box::into_raw(Box::new(Device {
        get_name: device_name,
        get_description: device_description,
        get_memory: device_memory,
        get_type: device_type,
        get_props: device_props,
        init_backend,
        get_buffer_type: device_buffer_type,
        get_host_buffer_type: null(),
        buffer_from_host_ptr: null(),
        supports_op,
        supports_buft: supports_buffer_type,
        offload_op: null(),
        events: [null(); 3],
        registry,
        context,
    }));
    let buffer_type: *mut c_void = match version {
        Version::Api2 => Box::into_raw(Box::new(BufferType2 {
            get_name: buffer::type_name,
            alloc_buffer: buffer::alloc::<BufferType2>,
            get_alignment: buffer::alignment,
            get_max_size: null(),
            get_alloc_size: buffer::alloc_size::<BufferType2>,
            is_host: null(),
            device,
            context,
        }))
        .cast(),
        Version::Api3 => Box::into_raw(Box::new(BufferType3 {
            get_name: buffer::type_name,
            alloc_buffer: buffer::alloc::<BufferType3>,
            alloc_buffer_n: null(),
            get_alignment: buffer::alignment,
            get_max_size: null(),
            get_alloc_size: buffer::alloc_size::<BufferType3>,
            get_alloc_size_n: null(),
            is_host: null(),
            device,
            context,
        }))
        .cast(),
    };
    // SAFETY: no other thread has the instance yet.
    unsafe {
        (*instance).device = device;
        (*instance).buffer_type = buffer_type;
        (*instance).is_debug = (*instance).host.is_debug(buffer_type);
        if !(*instance).is_passive {
            (*instance).host.info(&format!(
                "loaded into ggml {text}; lines with OCTAPLEX KV buffer name the compressed caches"
            ));
        }
    }
    #[cfg(feature = "cuda")]
    cuda::attach(instance_of(context));
    registry.cast()
}

extern "C" fn registry_name(_: *mut Registry) -> *const c_char {
    NAME.as_ptr()
}

extern "C" fn device_count(_: *mut Registry) -> usize {
    1
}

extern "C" fn device_of(registry: *mut Registry, _: usize) -> *mut Device {
    // SAFETY: the host passes the registry that it was given.
    instance_of(unsafe { (*registry).context }).device
}

extern "C" fn proc_address(_: *mut Registry, name: *const c_char) -> *const c_void {
    // SAFETY: the host passes a string that ends with a zero.
    let name = unsafe { core::ffi::CStr::from_ptr(name) };
    if name == c"ggml_backend_set_n_threads" { set_threads as *const c_void } else { null() }
}

extern "C" fn set_threads(backend: *mut Backend, threads: c_int) {
    // SAFETY: the host passes a backend of this library.
    let instance = instance_of(unsafe { (*backend).context });
    instance.fresh.store(false, Ordering::Relaxed);
    let threads = usize::try_from(threads).unwrap_or(1);
    instance.team.set(threads);
    let mut lenders = lock(&instance.lenders);
    let known = lenders.remove(&(backend as usize));
    if let Some(lender) = Lender::meet(&instance.host.functions, known, threads) {
        lenders.insert(backend as usize, lender);
    }
    drop(lenders);
    if instance.stores.load(Ordering::Relaxed) == 0 && !instance.declined.load(Ordering::Relaxed) {
        instance.say_once(
            "this device holds no layer's cache, because llama.cpp asked it for none: options such as -ngl 99 give it layers",
        );
    }
}

extern "C" fn device_name(_: *mut Device) -> *const c_char {
    NAME.as_ptr()
}

extern "C" fn device_description(_: *mut Device) -> *const c_char {
    DESCRIPTION.as_ptr()
}

extern "C" fn device_memory(_: *mut Device, free: *mut usize, total: *mut usize) {
    let (available, all) = guarded((0, 0), memory::available);
    // SAFETY: the host passes two valid pointers.
    unsafe { (*free, *total) = (available, all) };
}

extern "C" fn device_type(_: *mut Device) -> c_int {
    abi::DEVICE_IGPU
}

extern "C" fn device_props(device: *mut Device, props: *mut Props) {
    let (mut memory_free, mut memory_total) = (0, 0);
    device_memory(device, &mut memory_free, &mut memory_total);
    // SAFETY: the host passes a valid pointer; see `Props::mmap_support` for older hosts.
    unsafe {
        *props = Props {
            name: NAME.as_ptr(),
            description: DESCRIPTION.as_ptr(),
            memory_free,
            memory_total,
            kind: abi::DEVICE_IGPU,
            device_id: null(),
            asynchronous: false,
            host_buffer: false,
            buffer_from_host_ptr: false,
            events: false,
            mmap_support: true,
        };
    }
}

extern "C" fn device_buffer_type(device: *mut Device) -> *mut c_void {
    // SAFETY: the host passes a device of this library.
    instance_of(unsafe { (*device).context }).buffer_type
}

extern "C" fn supports_buffer_type(device: *mut Device, buffer_type: *mut c_void) -> bool {
    // SAFETY: the host passes a device of this library, and a buffer type of its own.
    unsafe {
        let instance = instance_of((*device).context);
        // This device reads the CPU's memory in place, so the host copies no queries, masks and indices.
        buffer_type == instance.buffer_type
            || (instance.host.functions.ggml_backend_buft_is_host)(buffer_type)
    }
}

/// The work of this device for an operation.
enum Kind<'a> {
    /// Nothing: the operation only creates a view.
    Nothing,
    SetRows(&'a Store),
    Attend,
    Rope(&'a Store),
    /// The host's CPU computes it, on plain memory of this library.
    Plain,
    /// The host's CPU computes it, on a cache that pages do not serve and that is turned into plain memory.
    Flat,
    /// An operation on a cache that was left to the host. While a context is created, the host turns fused operations off
    /// unless they run on the device of their layer. So this device takes them until the first computation.
    Fused,
    Foreign,
}

fn kind_of<'a>(instance: &Instance, op: &'a Tensor) -> Kind<'a> {
    match instance.host.op_name(op) {
        b"NONE" | b"VIEW" | b"RESHAPE" | b"PERMUTE" | b"TRANSPOSE" => return Kind::Nothing,
        b"SET_ROWS" => {
            if let Some(store) = store::of(instance, op) {
                return Kind::SetRows(store);
            }
        }
        b"ROPE" => {
            if let Some(store) = store::of(instance, op) {
                return Kind::Rope(store);
            }
        }
        b"FLASH_ATTN_EXT" => {
            let stored = |number| source(op, number).and_then(|tensor| store::of(instance, tensor)).is_some();
            if stored(1) && stored(2) && ops::can_attend(instance, op) {
                return Kind::Attend;
            }
        }
        _ => {}
    }
    // SAFETY: sources are null or tensors of the host's.
    let sources = op.src.iter().filter_map(|source| unsafe { source.as_ref() });
    let (mut any, mut stored) = (false, false);
    for tensor in sources.chain([op]) {
        stored |= store::of(instance, tensor).is_some();
        // Weights that are only imagined here belong to the CPU.
        let is_needed = !store::is_imagined(tensor)
            || core::ptr::eq(tensor, op)
            || instance.host.op_name(op) == b"FLASH_ATTN_EXT";
        any |= is_needed && store::is_plain(instance, tensor);
    }
    match (stored, any) {
        (true, _) => Kind::Flat,
        (false, true) => Kind::Plain,
        (false, false) if is_fused(instance, op) => Kind::Fused,
        (false, false) => Kind::Foreign,
    }
}

/// Returns whether an operation is one of [`Kind::Fused`].
fn is_fused(instance: &Instance, op: &Tensor) -> bool {
    if !instance.declined.load(Ordering::Relaxed) {
        return false;
    }
    match instance.host.op_name(op) {
        // It draws the operations between it and the next weights to this device.
        b"SET_ROWS" => store::is_on_host(instance, op),
        b"FLASH_ATTN_EXT" => source(op, 1).is_some_and(|keys| store::is_on_host(instance, keys)),
        _ => false,
    }
}

extern "C" fn supports_op(device: *mut Device, op: *const Tensor) -> bool {
    guarded(false, || {
        // SAFETY: the host passes a device of this library, and a tensor.
        let (instance, tensor) = unsafe { (instance_of((*device).context), &*op) };
        match kind_of(instance, tensor) {
            Kind::Nothing | Kind::SetRows(_) | Kind::Rope(_) => true,
            Kind::Attend => true,
            Kind::Plain => instance.host_supports(op),
            Kind::Flat => instance.host_supports(op) && ops::flatten(instance, tensor),
            Kind::Fused => instance.fresh.load(Ordering::Relaxed) && instance.host_supports(op),
            Kind::Foreign => false,
        }
    })
}

extern "C" fn init_backend(device: *mut Device, _: *const c_char) -> *mut Backend {
    // SAFETY: the host passes a device of this library.
    let context = unsafe { (*device).context };
    let instance = instance_of(context);
    instance.fresh.store(true, Ordering::Relaxed);
    lent::prepare(&instance.host.functions, threads::openmp().is_some());
    Box::into_raw(Box::new(Backend {
        guid: &GUID,
        get_name: backend_name,
        free: free_backend,
        transfers: [null(); 5],
        synchronize: null(),
        graph_plans: [null(); 4],
        graph_compute,
        events: [null(); 2],
        graph_optimize: null(),
        device,
        context,
    }))
}

extern "C" fn backend_name(_: *mut Backend) -> *const c_char {
    NAME.as_ptr()
}

extern "C" fn free_backend(backend: *mut Backend) {
    // SAFETY: the host passes a backend of this library.
    let instance = instance_of(unsafe { (*backend).context });
    drop(lock(&instance.lenders).remove(&(backend as usize)));
    // SAFETY: `init_backend` allocated it, and the host frees it once.
    drop(unsafe { Box::from_raw(backend) });
}

extern "C" fn graph_compute(backend: *mut Backend, graph: *mut c_void) -> c_int {
    guarded(FAILED, || {
        // SAFETY: the host passes a backend of this library, and a graph of its own.
        let instance = instance_of(unsafe { (*backend).context });
        instance.fresh.store(false, Ordering::Relaxed);
        let lender = lock(&instance.lenders).get(&(backend as usize)).cloned();
        Lender::lend(lender, || compute(instance, graph))
    })
}

/// Computes the operations of a graph, one after the other.
fn compute(instance: &Instance, graph: *mut c_void) -> c_int {
    let functions = &instance.host.functions;
    // SAFETY: the graph is the host's, and ggml.h declares the function with this argument.
    let count = unsafe { (functions.ggml_graph_n_nodes)(graph) };
    for number in 0..count {
        // SAFETY: nodes from 0 to the count are tensors.
        let node = unsafe { (functions.ggml_graph_node)(graph, number) };
        // SAFETY: the node is a tensor, and nobody writes the struct during the computation.
        let tensor = unsafe { &*node };
        let done = match kind_of(instance, tensor) {
            Kind::Nothing => SUCCESS,
            Kind::SetRows(store) => ops::set_rows(instance, store, tensor),
            Kind::Attend => ops::attend(instance, tensor),
            Kind::Rope(store) => ops::rope(instance, store, tensor),
            // SAFETY: all its tensors lie in memory of the host or of this library.
            Kind::Plain | Kind::Fused => unsafe { instance.compute_on_host(node) },
            Kind::Flat => ops::on_flat(instance, tensor),
            Kind::Foreign => {
                let name = String::from_utf8_lossy(instance.host.op_name(tensor)).into_owned();
                instance.fail(&format!("the host requests {name}, which this device does not support"))
            }
        };
        if done != SUCCESS {
            return done;
        }
    }
    SUCCESS
}
