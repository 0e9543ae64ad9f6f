//! Wraps devices, buffer types, buffers and backends of the host's CUDA in place.
//!
//! Buffers stay CUDA's own. A buffer that holds caches gets functions of this library, and so does every backend. CUDA tells
//! its own buffers by one of the replaced functions, so nothing copies a cache past this library.

mod transfers;

use super::cache::Cache;
use super::registry::{BACKENDS, CACHES, Wrapped, cache_of, register, seam, wrapped_of};
use super::seam::{Alloc, AllocSize, Gpu, Seam};
use super::told::Purpose;
use super::{Op, cells, cut};
use crate::abi::{
    Backend, Buffer, BufferInterface, BufferType2, BufferType3, Device, F16, SUCCESS, Tensor, Version,
};
use crate::functions::GpuFunctions;
use crate::instance::{Instance, lock};
use crate::store::Store;
use crate::{guarded, probe};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::offset_of;
use octaplex::gpu;
use std::collections::HashMap;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use transfers::{get_2d_async, get_async, set_2d_async, set_async, synchronize};

/// Wraps the GPUs of the ggml that loaded this library, if they are to hold compressed caches.
pub(crate) fn attach(instance: &'static Instance) {
    if instance.is_passive || !instance.settings.gpu {
        return;
    }
    let mut wraps = false;
    register(|| match find(instance) {
        Ok(seam) => {
            wraps = true;
            Some(seam)
        }
        Err(why) => {
            instance.host.info(&format!("caches on GPUs stay uncompressed: {why}"));
            None
        }
    });
    // Only now, because other threads may call the new functions at once, and they ask for the GPUs.
    if let Some(found) = seam().filter(|_| wraps) {
        gpu::on_compile(|line| {
            if let Some(seam) = seam() {
                seam.instance.host.info(line);
            }
        });
        wrap(found);
    }
}

/// Finds the host's GPUs.
fn find(instance: &'static Instance) -> Result<Seam, String> {
    if std::env::var_os("GGML_CUDA_GRAPH_OPT").is_some_and(|value| value == "1") {
        return Err("GGML_CUDA_GRAPH_OPT=1 splits graphs over several streams".into());
    }
    let functions = GpuFunctions::look_up(&instance.host.library)?;
    let mut gpus = Vec::new();
    // SAFETY: calls as ggml-backend.h declares them, with devices of the host.
    unsafe {
        let mut counts = HashMap::<String, usize>::new();
        for number in 0..(functions.ggml_backend_dev_count)() {
            let device = (functions.ggml_backend_dev_get)(number);
            let registry = (instance.host.functions.ggml_backend_dev_backend_reg)(device);
            if device.is_null() || registry.is_null() {
                continue;
            }
            let name =
                CStr::from_ptr((functions.ggml_backend_reg_name)(registry)).to_string_lossy().into_owned();
            let vendor = match name.as_str() {
                "CUDA" => gpu::Vendor::Nvidia,
                "ROCm" => gpu::Vendor::Amd,
                _ => continue,
            };
            let ordinal = counts.entry(name.clone()).or_default();
            let buffer_type = (functions.ggml_backend_dev_buffer_type)(device);
            let host = &instance.host;
            if buffer_type.is_null() || !probe::is_device(&host.functions, host.version, device, buffer_type)
            {
                return Err(format!("the devices of {name} have another layout"));
            }
            let slots = slots_of(host.version, buffer_type);
            let all = [
                slots.0 as usize,
                slots.1 as usize,
                &raw const (*device).init_backend as usize,
                &raw const (*device).supports_op as usize,
            ];
            if !all.into_iter().all(crate::system::is_writable) {
                return Err(format!("the tables of {name} are read-only"));
            }
            gpus.push(Gpu {
                device,
                buffer_type,
                alloc: *slots.0,
                alloc_size: *slots.1,
                init_backend: (*device).init_backend,
                supports_op: (*device).supports_op,
                vendor,
                ordinal: *ordinal,
                told: Mutex::default(),
                set: OnceLock::new(),
                init: OnceLock::new(),
                opened: OnceLock::new(),
                turn: Mutex::default(),
                unread: AtomicBool::new(false),
            });
            *ordinal += 1;
        }
    }
    if gpus.is_empty() {
        return Err("llama.cpp has no CUDA device; load its CUDA library before this one".into());
    }
    Ok(Seam { instance, functions, gpus, inputs: Mutex::default(), ops: [const { AtomicU8::new(0) }; 256] })
}

fn wrap(seam: &Seam) {
    for gpu in &seam.gpus {
        // SAFETY: `find` checked that these places may be written, and they have these types.
        unsafe {
            let (alloc_slot, size_slot) = slots_of(seam.instance.host.version, gpu.buffer_type);
            size_slot.write(Some(alloc_size));
            alloc_slot.write(alloc);
            (*gpu.device).supports_op = supports_op;
            (*gpu.device).init_backend = init_backend;
        }
    }
    seam.instance.host.info(&format!("caches of {} GPUs are compressed where they can be", seam.gpus.len()));
}

/// Returns where a buffer type has its functions that allocate, and that tell sizes.
fn slots_of(version: Version, buffer_type: *mut c_void) -> (*mut Alloc, *mut Option<AllocSize>) {
    let (alloc, size) = match version {
        Version::Api2 => (offset_of!(BufferType2, alloc_buffer), offset_of!(BufferType2, get_alloc_size)),
        Version::Api3 => (offset_of!(BufferType3, alloc_buffer), offset_of!(BufferType3, get_alloc_size)),
    };
    let at = |offset: usize| buffer_type.wrapping_byte_add(offset);
    (at(alloc).cast(), at(size).cast())
}

extern "C" fn alloc_size(buffer_type: *mut c_void, tensor: *const Tensor) -> usize {
    let Some((seam, (_, gpu))) = seam().and_then(|seam| Some((seam, seam.gpu_of_type(buffer_type)?))) else {
        return 0;
    };
    let nominal = gpu.nominal(seam.instance, tensor);
    guarded(nominal, || {
        // SAFETY: the host passes a tensor.
        let about = unsafe { &*tensor };
        if !about.view_src.is_null() || seam.op(about) != Op::Nothing {
            return nominal;
        }
        let name = String::from_utf8_lossy(about.name()).into_owned();
        let mut told = lock(&gpu.told);
        let cache = Store::new(about).filter(|store| store.kind == F16).map(|store| {
            let bytes = cells::expected_bytes(seam, &store, !told.has_cache()).next_multiple_of(256);
            (store.role, if seam.instance.is_debug { nominal } else { bytes })
        });
        told.tell(tensor as usize, &name, nominal, cache)
    })
}

/// Bytes of the host's buffer behind a cache. Nobody uses it: the cache has memory of its own.
const SMALL: usize = 4096;

extern "C" fn alloc(buffer_type: *mut c_void, size: usize) -> *mut Buffer {
    let Some((seam, (number, gpu))) = seam().and_then(|seam| Some((seam, seam.gpu_of_type(buffer_type)?)))
    else {
        return null_mut();
    };
    guarded(null_mut(), || {
        // SAFETY: the host's function, with its own buffer type.
        let alignment =
            unsafe { (seam.instance.host.functions.ggml_backend_buft_get_alignment)(buffer_type) };
        let serves = || {
            let settings = &seam.instance.settings;
            let exact = |role| settings.codec(role, 0, 1, 128).is_ok_and(|codec| codec.to_string() == "f16");
            if exact(octaplex::codecs::Role::Keys) && exact(octaplex::codecs::Role::Values) {
                return Err("f16 rows are what CUDA has".to_owned());
            }
            gpu.open().map(drop)
        };
        let purpose = lock(&gpu.told).decide(size, alignment, serves);
        match purpose {
            Purpose::Cache => {
                let buffer = gpu.allocate(SMALL.max(alignment));
                // SAFETY: the host's own buffer, of this type and size.
                if buffer.is_null() || unsafe { !probe::is_buffer(buffer, buffer_type, SMALL.max(alignment)) }
                {
                    seam.instance.fail("a buffer for a cache could not be made");
                    return null_mut();
                }
                take_buffer(number, buffer, size);
                buffer
            }
            Purpose::Declined { bytes, why } => {
                seam.instance.say_once(&format!("left to CUDA, in f16: {why}"));
                let buffer = watched(gpu, gpu.allocate(bytes));
                // SAFETY: the buffer was just allocated, and nobody else has it.
                if let Some(buffer) = unsafe { buffer.as_mut() }
                    // SAFETY: a function, or null.
                    && !unsafe { *(&raw const buffer.interface.init_tensor).cast::<*const c_void>() }.is_null()
                {
                    gpu.init.get_or_init(|| buffer.interface.init_tensor);
                    buffer.interface.init_tensor = init_declined;
                }
                buffer
            }
            Purpose::Other => watched(gpu, gpu.allocate(size)),
        }
    })
}

/// Makes a buffer of the host's one that holds caches.
fn take_buffer(gpu: usize, buffer: *mut Buffer, size: usize) {
    // SAFETY: the buffer was just allocated, and nobody else has it.
    let buffer_ref = unsafe { &mut *buffer };
    let cache = Arc::new(Cache::new(gpu, buffer_ref.interface));
    lock(&CACHES).insert(buffer as usize, cache);
    let interface = &mut buffer_ref.interface;
    interface.free_buffer = free_cache;
    interface.init_tensor = init_cache_tensor;
    interface.memset_tensor = fill_cache;
    interface.set_tensor = set_cache;
    interface.get_tensor = get_cache;
    interface.set_tensor_2d = null();
    interface.get_tensor_2d = null();
    interface.cpy_tensor = copy_cache;
    interface.clear = clear_cache;
    buffer_ref.size = size;
}

/// Notes what the host writes to a buffer.
fn watched(gpu: &Gpu, buffer: *mut Buffer) -> *mut Buffer {
    // SAFETY: the buffer was just allocated, and nobody else has it.
    if let Some(buffer) = unsafe { buffer.as_mut() } {
        let own = *gpu.set.get_or_init(|| buffer.interface.set_tensor);
        // SAFETY: compares two addresses.
        if core::ptr::fn_addr_eq(own, buffer.interface.set_tensor) {
            buffer.interface.set_tensor = set_input;
        }
    }
    buffer
}

/// The use of a buffer that holds weights.
const WEIGHTS: c_int = 1;

extern "C" fn set_input(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: the host passes its buffer.
    let (buffer_type, usage) = unsafe { ((*buffer).buffer_type, (*buffer).usage) };
    let Some((seam, (_, gpu))) = seam().and_then(|seam| Some((seam, seam.gpu_of_type(buffer_type)?))) else {
        return;
    };
    if usage != WEIGHTS {
        guarded((), || note(seam, tensor, data, offset, size));
    }
    if let Some(set) = gpu.set.get() {
        set(buffer, tensor, data, offset, size);
    }
}

fn note(seam: &Seam, tensor: *mut Tensor, data: *const c_void, offset: usize, size: usize) {
    // SAFETY: the host passes a tensor and `size` bytes.
    let (about, bytes) = unsafe { (&*tensor, core::slice::from_raw_parts(data.cast::<u8>(), size)) };
    lock(&seam.inputs).note(tensor, about, offset, bytes, seam.instance.settings.sinks);
}

fn cache_of_buffer(buffer: *mut Buffer) -> Option<(&'static Seam, Arc<Cache>)> {
    seam().zip(lock(&CACHES).get(&(buffer as usize)).cloned())
}

extern "C" fn free_cache(buffer: *mut Buffer) {
    guarded((), || {
        let Some((seam, cache)) = cache_of_buffer(buffer) else { return };
        lock(&CACHES).remove(&(buffer as usize));
        let own: BufferInterface = cache.own;
        cache.free(seam);
        // SAFETY: the host frees its buffer once; its own function follows.
        unsafe { (*buffer).interface = own };
        (own.free_buffer)(buffer);
    });
}

/// Places a tensor of a cache that was declined.
extern "C" fn init_declined(buffer: *mut Buffer, tensor: *mut Tensor) -> c_int {
    // SAFETY: the host passes its buffer.
    let buffer_type = unsafe { (*buffer).buffer_type };
    let Some((_, gpu)) = seam().and_then(|seam| seam.gpu_of_type(buffer_type)) else {
        return crate::abi::FAILED;
    };
    guarded((), || lock(&gpu.told).placed(tensor as usize));
    gpu.init.get().map_or(SUCCESS, |init| init(buffer, tensor))
}

extern "C" fn init_cache_tensor(buffer: *mut Buffer, tensor: *mut Tensor) -> c_int {
    guarded(crate::abi::FAILED, || {
        let Some((seam, cache)) = cache_of_buffer(buffer) else { return crate::abi::FAILED };
        lock(&seam.gpus[cache.gpu].told).placed(tensor as usize);
        // SAFETY: the host passes a tensor that it is allocating.
        if unsafe { (*tensor).view_src.is_null() } {
            cache.add(tensor);
        }
        SUCCESS
    })
}

extern "C" fn fill_cache(buffer: *mut Buffer, tensor: *mut Tensor, value: u8, offset: usize, size: usize) {
    let bytes = vec![value; size];
    set_cache(buffer, tensor, bytes.as_ptr().cast(), offset, size);
}

extern "C" fn set_cache(
    buffer: *mut Buffer,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    guarded((), || {
        let Some((seam, cache)) = cache_of_buffer(buffer) else { return };
        // SAFETY: the host passes a tensor of the buffer, and `size` bytes.
        let (about, bytes) = unsafe { (&*tensor, core::slice::from_raw_parts(data.cast::<u8>(), size)) };
        let _turn = seam.gpus[cache.gpu].take_turn();
        if let Err(why) = cache.set(seam, about, offset, bytes) {
            seam.instance.fail(&why);
        }
    });
}

extern "C" fn get_cache(
    buffer: *mut Buffer,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    guarded((), || {
        // SAFETY: the host's memory has space for `size` bytes.
        unsafe { core::ptr::write_bytes(data.cast::<u8>(), 0, size) };
        let Some((seam, cache)) = cache_of_buffer(buffer) else { return };
        // SAFETY: the host passes a tensor of the buffer; the memory was set to zeros above.
        let (about, out) = unsafe { (&*tensor, core::slice::from_raw_parts_mut(data.cast::<u8>(), size)) };
        let _turn = seam.gpus[cache.gpu].take_turn();
        if let Err(why) = cache.get(about, offset, out) {
            seam.instance.fail(&why);
        }
    });
}

/// The host copies through its own memory.
extern "C" fn copy_cache(_: *mut Buffer, _: *const Tensor, _: *mut Tensor) -> bool {
    false
}

extern "C" fn clear_cache(buffer: *mut Buffer, value: u8) {
    guarded((), || {
        let Some((seam, cache)) = cache_of_buffer(buffer) else { return };
        let _turn = seam.gpus[cache.gpu].take_turn();
        cache.clear(seam, value);
    });
}

extern "C" fn supports_op(device: *mut Device, op: *const Tensor) -> bool {
    let Some((seam, (_, gpu))) = seam().and_then(|seam| Some((seam, seam.gpu_of(device)?))) else {
        return false;
    };
    let supports = (gpu.supports_op)(device, op);
    guarded((), || {
        // SAFETY: the host passes an operation of its own.
        let about = unsafe { &*op };
        if supports && seam.op(about) == Op::Attend {
            // SAFETY: sources are null or tensors of the host's.
            let keys = unsafe { about.src[1].as_ref() };
            if let Some(cache) = keys.and_then(cache_of) {
                let _turn = gpu.take_turn();
                cache.learn(seam, about);
            }
        }
    });
    supports
}

type Events = [Option<extern "C" fn(*mut Device) -> *mut c_void>; 1];
type FreeEvent = extern "C" fn(*mut Device, *mut c_void);

extern "C" fn init_backend(device: *mut Device, parameters: *const c_char) -> *mut Backend {
    let Some((seam, (number, gpu))) = seam().and_then(|seam| Some((seam, seam.gpu_of(device)?))) else {
        return null_mut();
    };
    let backend = (gpu.init_backend)(device, parameters);
    if backend.is_null() {
        return backend;
    }
    guarded(backend, || {
        // SAFETY: the backend was just created, and nobody else has it.
        unsafe {
            if !probe::is_backend(backend, device) {
                seam.instance.fail("CUDA's backends have another layout, so caches on GPUs cannot be used");
                return backend;
            }
            // SAFETY: ggml-backend-impl.h declares the function so.
            let new = core::mem::transmute::<[*const c_void; 1], Events>([(*device).events[0]])[0];
            let has = new.is_some() && !(*backend).events[0].is_null() && !(*backend).events[1].is_null();
            let new = new.filter(|_| has);
            let events = [(); 2].map(|()| new.map_or(null_mut(), |new| new(device)));
            let own = core::ptr::read(backend);
            lock(&BACKENDS).insert(
                backend as usize,
                Arc::new(Wrapped { gpu: number, own, events, recorded: Mutex::default() }),
            );
            (*backend).graph_compute = cut::graph_compute;
            (*backend).free = free_backend;
            if !(*backend).synchronize.is_null() {
                (*backend).synchronize = synchronize as *const c_void;
            }
            for (slot, function) in [
                (0, set_async as *const c_void),
                (1, get_async as *const c_void),
                (2, set_2d_async as *const c_void),
                (3, get_2d_async as *const c_void),
            ] {
                if !(*backend).transfers[slot].is_null() {
                    (*backend).transfers[slot] = function;
                }
            }
        }
        backend
    })
}

extern "C" fn free_backend(backend: *mut Backend) {
    guarded((), || {
        let Some(wrapped) = lock(&BACKENDS).remove(&(backend as usize)) else { return };
        // SAFETY: the host frees its backend once. Events come from the device's own functions.
        unsafe {
            let device = (*backend).device;
            let free = (*device).events[1];
            for event in wrapped.events.into_iter().filter(|event| !event.is_null() && !free.is_null()) {
                core::mem::transmute::<*const c_void, FreeEvent>(free)(device, event);
            }
            (*backend).graph_compute = wrapped.own.graph_compute;
            (*backend).free = wrapped.own.free;
            (*backend).transfers = wrapped.own.transfers;
            (*backend).synchronize = wrapped.own.synchronize;
            (wrapped.own.free)(backend);
        }
    });
}
