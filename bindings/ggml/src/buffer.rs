//! Buffers: memory for plain tensors, and stores for caches. The host reads and writes both through this module.

use crate::abi::{Buffer, BufferInterface, BufferType2, BufferType3, FAILED, SUCCESS, Tensor};
use crate::guarded;
use crate::instance::{Instance, NAME, instance_of, lock};
use crate::store::{self, Rows, Store};
use crate::system;
use core::ffi::{c_char, c_int, c_void};
use octaplex::cells::PAGE;
use octaplex::f16;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

/// A buffer's own data.
struct Memory {
    instance: &'static Instance,
    /// Address space. Plain tensors use its memory; addresses of caches are never used.
    base: *mut c_void,
    size: usize,
    #[allow(clippy::vec_box, reason = "tensors hold the addresses of their stores")]
    stores: Vec<Box<Store>>,
    /// Whether the buffer has a plain tensor.
    plain: bool,
}

impl Memory {
    /// Makes the memory usable for plain tensors.
    fn commit(&self) -> bool {
        // SAFETY: the reservation of `alloc`, of this size.
        let done = unsafe { system::commit(self.base, self.size) };
        if !done {
            self.instance.fail(&format!("the system has no memory for {} bytes", self.size));
        }
        done
    }
}

/// A buffer type of any API version.
pub(crate) trait BufferType {
    fn context(&self) -> *mut c_void;
}

impl BufferType for BufferType2 {
    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl BufferType for BufferType3 {
    fn context(&self) -> *mut c_void {
        self.context
    }
}

pub(crate) extern "C" fn type_name(_: *mut c_void) -> *const c_char {
    NAME.as_ptr()
}

pub(crate) extern "C" fn alignment(_: *mut c_void) -> usize {
    64
}

/// Returns the bytes that the host should count for a tensor: for a cache, the bytes of its full pages.
///
/// Debug builds of the host assert that this is at least the nominal size, so they get the nominal size. The memory used is
/// the same.
pub(crate) extern "C" fn alloc_size<T: BufferType>(buffer_type: *mut c_void, tensor: *const Tensor) -> usize {
    // SAFETY: the host passes the buffer type that it was given, and a tensor.
    let (instance, tensor) = unsafe { (instance_of((*buffer_type.cast::<T>()).context()), &*tensor) };
    // SAFETY: ggml.h declares the function with a tensor as its argument.
    let nominal = unsafe { (instance.host.functions.ggml_nbytes)(tensor) };
    guarded(nominal, || {
        if !tensor.view_src.is_null() {
            return nominal;
        }
        if instance.host.op_name(tensor) != b"NONE" {
            lock(&instance.plan).forget(); // results of a graph: scratch memory
            return nominal;
        }
        let store = Store::new(tensor).filter(|_| !instance.is_passive).map(|store| {
            let told = if instance.is_debug { nominal } else { store.expected_bytes(instance) };
            (store.role, told)
        });
        lock(&instance.plan).tell(tensor.name(), nominal, store)
    })
}

pub(crate) extern "C" fn alloc<T: BufferType>(buffer_type: *mut c_void, size: usize) -> *mut Buffer {
    guarded(null_mut(), || {
        // SAFETY: the host passes the buffer type that it was given.
        let instance = instance_of(unsafe { (*buffer_type.cast::<T>()).context() });
        let declined = lock(&instance.plan).take(size);
        let size = size.max(1);
        if instance.is_passive || declined.is_some() {
            if let Some(declined) = declined.as_ref().filter(|_| !instance.is_passive) {
                instance.say_once(&format!("left to llama.cpp: {}", declined.why));
            }
            instance.declined.store(true, Ordering::Relaxed);
            let functions = &instance.host.functions;
            let size = declined.map_or(size, |declined| declined.bytes.max(size));
            // SAFETY: calls as ggml-backend.h declares them.
            return unsafe {
                (functions.ggml_backend_buft_alloc_buffer)((functions.ggml_backend_cpu_buffer_type)(), size)
            };
        }
        let base = system::reserve(size);
        if base.is_null() {
            instance.fail(&format!("the system has no address space for {size} bytes"));
            return null_mut();
        }
        let memory =
            Box::into_raw(Box::new(Memory { instance, base, size, stores: Vec::new(), plain: false }));
        let interface = BufferInterface {
            free_buffer: free,
            get_base: base_of,
            init_tensor,
            memset_tensor: fill,
            set_tensor: set,
            get_tensor: get,
            set_tensor_2d: null(),
            get_tensor_2d: null(),
            cpy_tensor: copy,
            clear,
            reset: null(),
        };
        // SAFETY: ggml-backend-impl.h declares the function with these arguments.
        unsafe {
            (instance.host.functions.ggml_backend_buffer_init)(buffer_type, interface, memory.cast(), size)
        }
    })
}

fn memory<'a>(buffer: *mut Buffer) -> &'a mut Memory {
    // SAFETY: the host passes buffers of this library, from one thread at a time.
    unsafe { &mut *(*buffer).context.cast::<Memory>() }
}

extern "C" fn free(buffer: *mut Buffer) {
    guarded((), || {
        // SAFETY: the host frees a buffer once.
        let memory = unsafe { Box::from_raw((*buffer).context.cast::<Memory>()) };
        memory.stores.iter().for_each(|_| store::count(memory.instance, false));
        // SAFETY: the reservation of `alloc`, of this size.
        unsafe { system::release(memory.base, memory.size) };
    });
}

extern "C" fn base_of(buffer: *mut Buffer) -> *mut c_void {
    memory(buffer).base
}

extern "C" fn init_tensor(buffer: *mut Buffer, tensor: *mut Tensor) -> c_int {
    guarded(FAILED, || {
        let memory = memory(buffer);
        // SAFETY: the host passes a tensor that it is allocating.
        let tensor = unsafe { &mut *tensor };
        if !tensor.view_src.is_null() {
            return SUCCESS;
        }
        match Store::new(tensor) {
            Some(store) => {
                let store = Box::new(store);
                tensor.extra = core::ptr::from_ref(&*store).cast_mut().cast();
                memory.stores.push(store);
                store::count(memory.instance, true);
            }
            None => {
                if !memory.plain && !memory.commit() {
                    return FAILED;
                }
                memory.plain = true;
            }
        }
        SUCCESS
    })
}

/// Returns the offset in the store of byte `offset` of a view.
fn offset_in(tensor: &Tensor, offset: usize) -> usize {
    tensor.view_offset() + offset
}

/// Reads the bytes of a store from `at` on, in the tensor's type.
fn read(store: &Store, at: usize, out: &mut [u8]) -> Result<(), String> {
    match &*store.rows() {
        Rows::Unknown => out.fill(0),
        Rows::Flat(bytes) => {
            let bytes = bytes.get(at..at + out.len()).ok_or("the host reads beyond a cache's end")?;
            out.copy_from_slice(bytes);
        }
        Rows::Pages(pages) => {
            let row = store.row_bytes();
            // Page by page, because the host reads a whole state in one call.
            let (mut at, mut out) = (at, out);
            while !out.is_empty() {
                let (first, skip) = (at / row, at % row);
                let last = ((first / PAGE + 1) * PAGE).min((at + out.len()).div_ceil(row));
                let mut rows = vec![f16::ZERO; (last - first) * store.width];
                pages.read_rows(first..last, &mut rows).map_err(|why| why.to_string())?;
                let mut encoded = Vec::with_capacity(2 * rows.len());
                store.encode(&rows, &mut encoded);
                let len = (encoded.len() - skip).min(out.len());
                let (now, rest) = out.split_at_mut(len);
                now.copy_from_slice(&encoded[skip..skip + len]);
                (at, out) = (at + len, rest);
            }
        }
    }
    Ok(())
}

/// Writes bytes of a store in the tensor's type.
fn write(instance: &Instance, store: &Store, at: usize, bytes: &[u8]) -> Result<(), String> {
    let mut rows = store.rows();
    if let Rows::Unknown = *rows {
        store.flatten(instance, &mut rows, "the host writes them before it attends to them");
    }
    match &mut *rows {
        Rows::Unknown => {}
        Rows::Flat(flat) => {
            let flat = flat.get_mut(at..at + bytes.len()).ok_or("the host writes beyond a cache's end")?;
            flat.copy_from_slice(bytes);
        }
        Rows::Pages(pages) => {
            let row = store.row_bytes();
            let (mut at, mut bytes) = (at, bytes);
            while !bytes.is_empty() {
                let (first, skip) = (at / row, at % row);
                let len = (row - skip).min(bytes.len());
                let (now, rest) = bytes.split_at(len);
                let mut values = vec![f16::ZERO; store.width];
                if len < row {
                    pages.read_rows(first..first + 1, &mut values).map_err(|why| why.to_string())?;
                }
                let mut encoded = Vec::with_capacity(row);
                store.encode(&values, &mut encoded);
                encoded[skip..skip + len].copy_from_slice(now);
                pages.write_rows(first, &store.decode(&encoded)).map_err(|why| why.to_string())?;
                // Pages close here, so that a whole state does not stay in f16. No queries decide its balance then.
                if pages.open_pages() > 4 * pages.config().open_pages {
                    pages
                        .settle(&[], &|count, task| instance.team.run(count, task))
                        .map_err(|why| why.to_string())?;
                }
                (at, bytes) = (at + len, rest);
            }
        }
    }
    Ok(())
}

extern "C" fn set(buffer: *mut Buffer, tensor: *mut Tensor, data: *const c_void, offset: usize, size: usize) {
    guarded((), || {
        let instance = memory(buffer).instance;
        // SAFETY: the host passes a tensor of this buffer, and `size` bytes.
        let (tensor, bytes) = unsafe { (&*tensor, core::slice::from_raw_parts(data.cast::<u8>(), size)) };
        match store::of(instance, tensor) {
            Some(store) => {
                if let Err(why) = write(instance, store, offset_in(tensor, offset), bytes) {
                    instance.fail(&why);
                }
            }
            // SAFETY: plain tensors lie in the buffer's memory.
            None => unsafe { core::ptr::copy(data.cast::<u8>(), tensor.data.cast::<u8>().add(offset), size) },
        }
    });
}

extern "C" fn get(buffer: *mut Buffer, tensor: *const Tensor, data: *mut c_void, offset: usize, size: usize) {
    guarded((), || {
        let instance = memory(buffer).instance;
        // SAFETY: the host passes a tensor of this buffer, and space for `size` bytes, which it may not have written.
        let tensor = unsafe {
            core::ptr::write_bytes(data.cast::<u8>(), 0, size);
            &*tensor
        };
        match store::of(instance, tensor) {
            Some(store) => {
                // SAFETY: the host's memory has space for `size` bytes, which were set to zeros above.
                let out = unsafe { core::slice::from_raw_parts_mut(data.cast::<u8>(), size) };
                if let Err(why) = read(store, offset_in(tensor, offset), out) {
                    instance.fail(&why);
                }
            }
            // SAFETY: plain tensors lie in the buffer's memory.
            None => unsafe { core::ptr::copy(tensor.data.cast::<u8>().add(offset), data.cast::<u8>(), size) },
        }
    });
}

extern "C" fn fill(buffer: *mut Buffer, tensor: *mut Tensor, value: u8, offset: usize, size: usize) {
    guarded((), || {
        let instance = memory(buffer).instance;
        // SAFETY: the host passes a tensor of this buffer.
        let tensor = unsafe { &*tensor };
        match store::of(instance, tensor) {
            Some(store) => {
                if let Err(why) = write(instance, store, offset_in(tensor, offset), &vec![value; size]) {
                    instance.fail(&why);
                }
            }
            // SAFETY: plain tensors lie in the buffer's memory.
            None => unsafe { core::ptr::write_bytes(tensor.data.cast::<u8>().add(offset), value, size) },
        }
    });
}

/// Copies one stream of a cache to another. They share pages until one of them is written. For any other copy this returns
/// false, and the host copies through its own memory.
extern "C" fn copy(buffer: *mut Buffer, source: *const Tensor, target: *mut Tensor) -> bool {
    guarded(false, || {
        let instance = memory(buffer).instance;
        // SAFETY: the host passes two tensors.
        let (source, target) = unsafe { (&*source, &*target) };
        let (Some(from), Some(to)) = (store::of(instance, source), store::of(instance, target)) else {
            return false;
        };
        if !core::ptr::eq(from, to) {
            return false;
        }
        // SAFETY: ggml.h declares the function with a tensor as its argument.
        let size = unsafe { (instance.host.functions.ggml_nbytes)(source) };
        let (row, starts) = (from.row_bytes(), [offset_in(source, 0), offset_in(target, 0)]);
        let mut rows = from.rows();
        let Rows::Pages(pages) = &mut *rows else { return false };
        if [size, starts[0], starts[1]].iter().any(|bytes| !bytes.is_multiple_of(row)) {
            return false;
        }
        let [start, to] = starts.map(|start| start / row);
        match pages.copy_cells(start..start + size / row, to) {
            Ok(()) => true,
            Err(why) => {
                instance.fail(&why.to_string());
                false
            }
        }
    })
}

extern "C" fn clear(buffer: *mut Buffer, value: u8) {
    guarded((), || {
        let memory = memory(buffer);
        if memory.plain || memory.stores.is_empty() && memory.commit() {
            // SAFETY: the reservation has this size. Addresses of caches in it are never read.
            unsafe { core::ptr::write_bytes(memory.base.cast::<u8>(), value, memory.size) };
        }
        for store in &memory.stores {
            match &mut *store.rows() {
                Rows::Unknown => {}
                Rows::Pages(pages) => pages.clear(),
                Rows::Flat(bytes) => bytes.fill(value),
            }
        }
    });
}
