//! Declares the memory layout of ggml's tensors and of its backend interface. It follows `ggml.h` and `ggml-backend-impl.h`.
//!
//! The two layouts differ in one interface: that of buffer types has two more functions from API 3 on. `probe.rs` finds out
//! which one the host has. Functions that this library does not implement are null pointers, so their types do not matter.

use core::ffi::{CStr, c_char, c_int, c_void};

/// A function that this library neither implements nor calls.
pub(crate) type Unused = *const c_void;

/// Numbers of ggml's value types. They never change, because model files contain them.
pub(crate) const F32: c_int = 0;
pub(crate) const F16: c_int = 1;
pub(crate) const I32: c_int = 26;
pub(crate) const I64: c_int = 27;
pub(crate) const BF16: c_int = 30;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const FAILED: c_int = -1;

/// The device's type: an integrated GPU. Hosts prefer a real GPU to it, and count no memory of its own.
pub(crate) const DEVICE_IGPU: c_int = 2;
pub(crate) const DEVICE_CPU: c_int = 0;

/// `struct ggml_tensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Tensor {
    pub(crate) kind: c_int,
    pub(crate) buffer: *mut Buffer,
    pub(crate) ne: [i64; 4],
    pub(crate) nb: [usize; 4],
    pub(crate) op: c_int,
    pub(crate) op_params: [i32; 16],
    pub(crate) flags: i32,
    pub(crate) src: [*mut Tensor; 10],
    pub(crate) view_src: *mut Tensor,
    pub(crate) view_offs: usize,
    pub(crate) data: *mut c_void,
    pub(crate) name: [c_char; 64],
    pub(crate) extra: *mut c_void,
    pub(crate) padding: [u8; 8],
}

// SAFETY: while a graph is computed nobody writes the struct; threads read it.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Returns parameter `number` of the operation as a float.
    pub(crate) fn float(&self, number: usize) -> f32 {
        f32::from_bits(self.op_params[number] as u32)
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &[u8] {
        // SAFETY: ggml ends names with a zero within the array.
        unsafe { CStr::from_ptr(self.name.as_ptr()) }.to_bytes()
    }

    /// Returns the tensor behind a view, or this tensor.
    pub(crate) fn root(&self) -> &Self {
        // SAFETY: `view_src` is null or a tensor that lives as long as its views.
        unsafe { self.view_src.as_ref() }.unwrap_or(self)
    }

    /// Returns the offset of a view in the tensor behind it, in bytes, or 0.
    pub(crate) fn view_offset(&self) -> usize {
        if self.view_src.is_null() { 0 } else { self.view_offs }
    }
}

/// Returns source `number` of an operation.
pub(crate) fn source(op: &Tensor, number: usize) -> Option<&Tensor> {
    // SAFETY: sources are null or tensors of the host's.
    unsafe { op.src[number].as_ref() }
}

/// Returns the size of a tensor along an axis.
pub(crate) fn size(tensor: &Tensor, axis: usize) -> usize {
    usize::try_from(tensor.ne[axis]).unwrap_or(0)
}

/// `struct ggml_cgraph`. Only its identity is known here.
#[cfg(feature = "cuda")]
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Graph {
    pub(crate) words: [u64; 12],
}

#[cfg(feature = "cuda")]
impl Graph {
    /// The place at which some versions have a number that tells graphs apart.
    pub(crate) const UID: usize = 11;

    /// Returns whether a version has that number there. Without it, tokens are computed in parts. No CUDA build of 0.27 was
    /// seen, so it is not named.
    pub(crate) fn has_uid(version: &str) -> bool {
        ["0.25.", "0.26."].iter().any(|known| version.starts_with(known))
    }
}

/// A layout of ggml's backend interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// ggml 0.9.11 to 0.25.
    Api2,
    /// From ggml 0.26 on.
    Api3,
}

/// The versions that tests have seen, for messages.
pub(crate) const KNOWN: &str = "0.9.11 to 0.27";

/// Returns whether tests have seen a version such as "0.25.3".
pub(crate) fn is_known(text: &str) -> bool {
    let numbers: Vec<Option<u32>> = text.split(['.', '-']).take(3).map(|part| part.parse().ok()).collect();
    match numbers[..] {
        [Some(0), Some(9), Some(patch)] => patch >= 11,
        [Some(0), Some(minor), Some(_)] => (10..=27).contains(&minor),
        _ => false,
    }
}

impl Version {
    pub(crate) fn api(self) -> c_int {
        match self {
            Self::Api2 => 2,
            Self::Api3 => 3,
        }
    }
}

/// `struct ggml_backend_buffer_type` of API 2.
#[repr(C)]
pub(crate) struct BufferType2 {
    pub(crate) get_name: extern "C" fn(*mut c_void) -> *const c_char,
    pub(crate) alloc_buffer: extern "C" fn(*mut c_void, usize) -> *mut Buffer,
    pub(crate) get_alignment: extern "C" fn(*mut c_void) -> usize,
    pub(crate) get_max_size: Unused,
    pub(crate) get_alloc_size: extern "C" fn(*mut c_void, *const Tensor) -> usize,
    pub(crate) is_host: Unused,
    pub(crate) device: *mut Device,
    pub(crate) context: *mut c_void,
}

/// `struct ggml_backend_buffer_type` of API 3.
#[repr(C)]
pub(crate) struct BufferType3 {
    pub(crate) get_name: extern "C" fn(*mut c_void) -> *const c_char,
    pub(crate) alloc_buffer: extern "C" fn(*mut c_void, usize) -> *mut Buffer,
    pub(crate) alloc_buffer_n: Unused,
    pub(crate) get_alignment: extern "C" fn(*mut c_void) -> usize,
    pub(crate) get_max_size: Unused,
    pub(crate) get_alloc_size: extern "C" fn(*mut c_void, *const Tensor) -> usize,
    pub(crate) get_alloc_size_n: Unused,
    pub(crate) is_host: Unused,
    pub(crate) device: *mut Device,
    pub(crate) context: *mut c_void,
}

/// `struct ggml_backend_buffer_i`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BufferInterface {
    pub(crate) free_buffer: extern "C" fn(*mut Buffer),
    pub(crate) get_base: extern "C" fn(*mut Buffer) -> *mut c_void,
    pub(crate) init_tensor: extern "C" fn(*mut Buffer, *mut Tensor) -> c_int,
    pub(crate) memset_tensor: extern "C" fn(*mut Buffer, *mut Tensor, u8, usize, usize),
    pub(crate) set_tensor: extern "C" fn(*mut Buffer, *mut Tensor, *const c_void, usize, usize),
    pub(crate) get_tensor: extern "C" fn(*mut Buffer, *const Tensor, *mut c_void, usize, usize),
    pub(crate) set_tensor_2d: Unused,
    pub(crate) get_tensor_2d: Unused,
    pub(crate) cpy_tensor: extern "C" fn(*mut Buffer, *const Tensor, *mut Tensor) -> bool,
    pub(crate) clear: extern "C" fn(*mut Buffer, u8),
    pub(crate) reset: Unused,
}

/// `struct ggml_backend_buffer`.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) interface: BufferInterface,
    pub(crate) buffer_type: *mut c_void,
    pub(crate) context: *mut c_void,
    pub(crate) size: usize,
    pub(crate) usage: c_int,
}

/// `struct ggml_backend`.
#[repr(C)]
pub(crate) struct Backend {
    pub(crate) guid: *const [u8; 16],
    pub(crate) get_name: extern "C" fn(*mut Backend) -> *const c_char,
    pub(crate) free: extern "C" fn(*mut Backend),
    pub(crate) transfers: [Unused; 5],
    pub(crate) synchronize: Unused,
    pub(crate) graph_plans: [Unused; 4],
    pub(crate) graph_compute: extern "C" fn(*mut Backend, *mut c_void) -> c_int,
    pub(crate) events: [Unused; 2],
    pub(crate) graph_optimize: Unused,
    pub(crate) device: *mut Device,
    pub(crate) context: *mut c_void,
}

/// `struct ggml_backend_device`.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) get_name: extern "C" fn(*mut Device) -> *const c_char,
    pub(crate) get_description: extern "C" fn(*mut Device) -> *const c_char,
    pub(crate) get_memory: extern "C" fn(*mut Device, *mut usize, *mut usize),
    pub(crate) get_type: extern "C" fn(*mut Device) -> c_int,
    pub(crate) get_props: extern "C" fn(*mut Device, *mut Props),
    pub(crate) init_backend: extern "C" fn(*mut Device, *const c_char) -> *mut Backend,
    pub(crate) get_buffer_type: extern "C" fn(*mut Device) -> *mut c_void,
    pub(crate) get_host_buffer_type: Unused,
    pub(crate) buffer_from_host_ptr: Unused,
    pub(crate) supports_op: extern "C" fn(*mut Device, *const Tensor) -> bool,
    pub(crate) supports_buft: extern "C" fn(*mut Device, *mut c_void) -> bool,
    pub(crate) offload_op: Unused,
    pub(crate) events: [Unused; 3],
    pub(crate) registry: *mut Registry,
    pub(crate) context: *mut c_void,
}

/// `struct ggml_backend_dev_props`.
#[repr(C)]
pub(crate) struct Props {
    pub(crate) name: *const c_char,
    pub(crate) description: *const c_char,
    pub(crate) memory_free: usize,
    pub(crate) memory_total: usize,
    pub(crate) kind: c_int,
    pub(crate) device_id: *const c_char,
    pub(crate) asynchronous: bool,
    pub(crate) host_buffer: bool,
    pub(crate) buffer_from_host_ptr: bool,
    pub(crate) events: bool,
    /// In versions without this field, its byte is padding of the struct.
    pub(crate) mmap_support: bool,
}

/// `struct ggml_backend_reg`.
#[repr(C)]
pub(crate) struct Registry {
    pub(crate) api_version: c_int,
    pub(crate) get_name: extern "C" fn(*mut Registry) -> *const c_char,
    pub(crate) get_device_count: extern "C" fn(*mut Registry) -> usize,
    pub(crate) get_device: extern "C" fn(*mut Registry, usize) -> *mut Device,
    pub(crate) get_proc_address: extern "C" fn(*mut Registry, *const c_char) -> *const c_void,
    pub(crate) context: *mut c_void,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// Compares with the layout of ggml 0.25.3 and 0.26.0 by a C compiler on 64-bit machines.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_are_laid_out_as_in_ggml() {
        assert_eq!(
            (size_of::<Tensor>(), offset_of!(Tensor, view_src), offset_of!(Tensor, extra)),
            (336, 232, 320)
        );
        assert_eq!((size_of::<BufferType2>(), size_of::<BufferType3>()), (8 * 8, 10 * 8));
        assert_eq!((size_of::<BufferInterface>(), offset_of!(Buffer, context)), (11 * 8, 12 * 8));
        assert_eq!((offset_of!(Backend, graph_compute), offset_of!(Backend, context)), (13 * 8, 18 * 8));
        assert_eq!((offset_of!(Device, supports_op), offset_of!(Device, context)), (9 * 8, 16 * 8));
        assert_eq!((offset_of!(Props, mmap_support), size_of::<Props>()), (52, 56));
        assert_eq!(size_of::<Registry>(), 6 * 8);
    }

    #[test]
    fn versions_are_known_or_not() {
        assert_eq!(["0.9.11", "0.10.0", "0.23.0", "0.25.3-dirty", "0.27.1"].map(is_known), [true; 5]);
        assert_eq!(["0.9.10", "0.28.0", "1.0.0", "", "0.26", "x.y.z"].map(is_known), [false; 6]);
    }
}
