//! Checks that the host lays out its interface as `abi.rs` declares it.
//!
//! ggml's version moves often and its layout rarely, so no list of versions decides. The host creates a tensor, a buffer and
//! a backend of its own CPU. Each field must hold what the host's own functions say about it, and each function pointer must
//! lead into the library that owns it. A pointer is called only after it has passed.

use crate::abi::{Backend, Buffer, DEVICE_CPU, Device, F32, Registry, Tensor, Version};
use crate::functions::{Functions, InitParams};
use crate::system::base_of;
use core::ffi::c_void;
use core::mem::{offset_of, size_of};
use std::ptr::null_mut;

/// Whether a field of a table of functions may be null.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Set,
    Any,
}
use Slot::{Any, Set};

/// The functions of a buffer type; the device follows them.
const BUFFER_TYPE_3: [Slot; 8] = [Set, Set, Any, Set, Any, Any, Any, Set];
const BUFFER_TYPE_2: [Slot; 6] = [Set, Set, Set, Any, Any, Set];
const BUFFER: [Slot; 11] = [Set, Set, Any, Set, Set, Set, Any, Any, Set, Set, Any];
const DEVICE: [Slot; 15] = [Set, Set, Set, Set, Set, Set, Set, Any, Any, Set, Set, Any, Any, Any, Any];
/// The functions of a backend behind its guid.
const BACKEND: [Slot; 16] = [Set, Set, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Set, Any, Any, Any];

/// Returns the layout of the host's buffer types, or what differs from every layout that is known.
pub(crate) fn layout(functions: &Functions) -> Result<Version, &'static str> {
    // SAFETY: calls as ggml-backend.h declares them.
    let cpu = unsafe { (functions.ggml_backend_cpu_buffer_type)() };
    if cpu.is_null() {
        return Err("the CPU's buffer type");
    }
    let version = [Version::Api3, Version::Api2].into_iter().find(|version| {
        let (slots, alignment): (&[Slot], _) = match version {
            Version::Api3 => (&BUFFER_TYPE_3, 3),
            Version::Api2 => (&BUFFER_TYPE_2, 2),
        };
        // SAFETY: a buffer type begins with its functions. Reading stops at the first that is null but must not be, so
        // the shorter table is not read beyond its end.
        unsafe {
            is_table(cpu.cast(), slots)
                && word(cpu, slots.len()) == (functions.ggml_backend_buft_get_device)(cpu) as usize
                && call(cpu, alignment, cpu) == (functions.ggml_backend_buft_get_alignment)(cpu)
        }
    });
    let version = version.ok_or("its buffer types")?;
    // SAFETY: each check reads structs of the host within their size, as far as the checks before it found them in place.
    unsafe {
        buffer(functions, cpu)?;
        tensor(functions)?;
        device(functions, version)?;
    }
    Ok(version)
}

/// Returns word `number` behind a pointer.
unsafe fn word(table: *const c_void, number: usize) -> usize {
    // SAFETY: the caller promises that the struct has this many words.
    unsafe { *table.cast::<usize>().add(number) }
}

/// Calls function `number` of a table with one pointer as its argument.
unsafe fn call(table: *const c_void, number: usize, argument: *mut c_void) -> usize {
    // SAFETY: the caller promises a function of this type, and `is_table` found it in a library.
    unsafe {
        let function =
            core::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void) -> usize>(word(table, number));
        function(argument)
    }
}

/// Returns whether pointers lead into one library, except those that may be null and are.
unsafe fn is_table(table: *const usize, slots: &[Slot]) -> bool {
    // SAFETY: the caller promises a struct that begins with a function.
    let library = base_of(unsafe { *table });
    library != 0
        && slots.iter().enumerate().all(|(number, slot)| {
            // SAFETY: see `layout`.
            let pointer = unsafe { *table.add(number) };
            if pointer == 0 { *slot == Any } else { base_of(pointer) == library }
        })
}

/// Returns whether a GPU's device and buffer type are laid out as those of the CPU, whose layout is known.
///
/// # Safety
/// Both are the host's.
#[cfg(feature = "cuda")]
pub(crate) unsafe fn is_device(
    functions: &Functions,
    version: Version,
    device: *mut Device,
    buffer_type: *mut c_void,
) -> bool {
    let (mut of_cpu, alignment) = match version {
        Version::Api3 => (BUFFER_TYPE_3.to_vec(), 3),
        Version::Api2 => (BUFFER_TYPE_2.to_vec(), 2),
    };
    // A GPU's memory is not the host's, so its buffer type need not say so.
    let last = of_cpu.len() - 1;
    of_cpu[last] = Any;
    let slots = &of_cpu;
    let at = offset_of!(Device, registry) / size_of::<usize>();
    // SAFETY: tables are read no further than they are right.
    unsafe {
        is_table(device.cast(), &DEVICE)
            && word(device.cast(), at) == (functions.ggml_backend_dev_backend_reg)(device) as usize
            && is_table(buffer_type.cast(), slots)
            && word(buffer_type, slots.len()) == device as usize
            && call(buffer_type, alignment, buffer_type)
                == (functions.ggml_backend_buft_get_alignment)(buffer_type)
    }
}

/// Returns whether a GPU's backend is laid out as the CPU's.
///
/// # Safety
/// It is the host's.
#[cfg(feature = "cuda")]
pub(crate) unsafe fn is_backend(backend: *mut Backend, device: *mut Device) -> bool {
    // SAFETY: as above.
    unsafe { is_table(backend.cast::<usize>().add(1), &BACKEND) && (*backend).device == device }
}

/// Returns whether a GPU's buffer is laid out as the CPU's.
///
/// # Safety
/// It is the host's, and of this type and size.
#[cfg(feature = "cuda")]
pub(crate) unsafe fn is_buffer(buffer: *mut Buffer, buffer_type: *mut c_void, size: usize) -> bool {
    // SAFETY: as above.
    unsafe {
        is_table(buffer.cast(), &BUFFER) && (*buffer).buffer_type == buffer_type && (*buffer).size == size
    }
}

unsafe fn buffer(functions: &Functions, cpu: *mut c_void) -> Result<(), &'static str> {
    // SAFETY: the caller promises the CPU's buffer type; calls as ggml-backend.h declares them.
    unsafe {
        let buffer = (functions.ggml_backend_buft_alloc_buffer)(cpu, 1);
        if buffer.is_null() {
            return Err("a buffer of its CPU");
        }
        let words: *const c_void = buffer.cast();
        let size = offset_of!(Buffer, context) / size_of::<usize>() + 1;
        let base = (functions.ggml_backend_buffer_get_base)(buffer);
        let fits = is_table(words.cast(), &BUFFER)
            && (*buffer).buffer_type == cpu
            && word(words, size) == (functions.ggml_backend_buffer_get_size)(buffer)
            && call(words, 1, buffer.cast()) == base as usize;
        if fits {
            ((*buffer).interface.clear)(buffer, 0x5a);
        }
        let fits = fits && *base.cast::<u8>() == 0x5a;
        (functions.ggml_backend_buffer_free)(buffer);
        if fits { Ok(()) } else { Err("its buffers") }
    }
}

unsafe fn tensor(functions: &Functions) -> Result<(), &'static str> {
    let wrong = Err("its tensors");
    // A context puts 32 bytes before each tensor.
    // SAFETY: ggml.h declares the function so.
    if unsafe { (functions.ggml_tensor_overhead)() } != size_of::<Tensor>() + 32 {
        return wrong;
    }
    // SAFETY: calls as ggml.h declares them; a tensor has at least the size that was just compared.
    unsafe {
        let context = (functions.ggml_init)(InitParams { size: 1 << 14, memory: null_mut(), no_alloc: true });
        if context.is_null() {
            return wrong;
        }
        let whole = (functions.ggml_new_tensor_1d)(context, F32, 24);
        let view = (functions.ggml_view_1d)(context, whole, 8, 64);
        (functions.ggml_set_name)(whole, c"octaplex".as_ptr());
        let (whole_ref, view_ref) = (&*whole, &*view);
        let fits = whole_ref.kind == F32
            && (whole_ref.ne, whole_ref.nb) == ([24, 1, 1, 1], [4, 96, 96, 96])
            && whole_ref.name() == b"octaplex"
            && whole_ref.buffer.is_null()
            && whole_ref.data.is_null()
            && whole_ref.extra.is_null()
            && (view_ref.view_src, view_ref.view_offs) == (whole, 64)
            && (view_ref.src[0], view_ref.op_params[0]) == (whole, 64)
            && core::ffi::CStr::from_ptr((functions.ggml_op_name)(view_ref.op)) == c"VIEW";
        (functions.ggml_free)(context);
        if fits { Ok(()) } else { wrong }
    }
}

/// Checks the CPU's device and backend. Programs that load their CPU as a library may not have it yet.
unsafe fn device(functions: &Functions, version: Version) -> Result<(), &'static str> {
    // SAFETY: calls as ggml-backend.h declares them. The registry's first field is its API version in every version.
    unsafe {
        let device = (functions.ggml_backend_dev_by_type)(DEVICE_CPU);
        if device.is_null() {
            return Ok(());
        }
        let registry = (functions.ggml_backend_dev_backend_reg)(device);
        if registry.is_null() || (*registry.cast::<Registry>()).api_version != version.api() {
            return Err("its backend API");
        }
        let at = offset_of!(Device, registry) / size_of::<usize>();
        let words: *const c_void = device.cast();
        if !is_table(words.cast(), &DEVICE)
            || word(words, at) != registry as usize
            || ((*device).get_type)(device) != DEVICE_CPU
        {
            return Err("its devices");
        }
        let backend = (functions.ggml_backend_dev_init)(device, core::ptr::null());
        if backend.is_null() {
            return Ok(());
        }
        let fits = is_table(backend.cast::<usize>().add(1), &BACKEND)
            && (*backend).device == device
            && word(backend.cast(), offset_of!(Backend, device) / size_of::<usize>())
                == (functions.ggml_backend_get_device)(backend) as usize;
        (functions.ggml_backend_free)(backend);
        if fits { Ok(()) } else { Err("its backends") }
    }
}
