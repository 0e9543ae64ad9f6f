//! Functions of the host, and how they are looked up.

#[cfg(feature = "cuda")]
use crate::abi::Graph;
use crate::abi::{Backend, Buffer, BufferInterface, Device, Tensor};
use crate::system::Libraries;
use core::ffi::{CStr, c_char, c_int, c_void};

/// Declares functions of the host, and a method that looks them up.
macro_rules! functions {
    ($(#[$about:meta])* $struct:ident: $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub(crate) struct $struct {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl $struct {
            pub(crate) fn look_up(library: &Libraries) -> Result<Self, String> {
                Ok(Self { $($name: {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    };
                    let found = library.symbol(NAME);
                    if found.is_null() {
                        return Err(format!("the host has no function {}", stringify!($name)));
                    }
                    // SAFETY: ggml.h and ggml-backend.h declare the function of this name with these arguments.
                    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found) }
                },)+ })
            }
        }
    };
}

functions! {
    /// Functions of the host.
    Functions:
    ggml_log_get: fn(*mut Option<LogCallback>, *mut *mut c_void);
    ggml_log_set: fn(Option<LogCallback>, *mut c_void);
    ggml_op_name: fn(c_int) -> *const c_char;
    ggml_nbytes: fn(*const Tensor) -> usize;
    ggml_tensor_overhead: fn() -> usize;
    ggml_new_tensor_1d: fn(*mut c_void, c_int, i64) -> *mut Tensor;
    ggml_view_1d: fn(*mut c_void, *mut Tensor, i64, usize) -> *mut Tensor;
    ggml_set_name: fn(*mut Tensor, *const c_char) -> *mut Tensor;
    ggml_init: fn(InitParams) -> *mut c_void;
    ggml_free: fn(*mut c_void);
    ggml_new_graph: fn(*mut c_void) -> *mut c_void;
    ggml_graph_clear: fn(*mut c_void);
    ggml_build_forward_expand: fn(*mut c_void, *mut Tensor);
    ggml_graph_add_node: fn(*mut c_void, *mut Tensor);
    ggml_graph_overhead: fn() -> usize;
    ggml_graph_n_nodes: fn(*mut c_void) -> c_int;
    ggml_graph_node: fn(*mut c_void, c_int) -> *mut Tensor;
    ggml_backend_buffer_init: fn(*mut c_void, BufferInterface, *mut c_void, usize) -> *mut Buffer;
    ggml_backend_buffer_get_type: fn(*mut Buffer) -> *mut c_void;
    ggml_backend_buffer_get_base: fn(*mut Buffer) -> *mut c_void;
    ggml_backend_buffer_get_size: fn(*mut Buffer) -> usize;
    ggml_backend_buffer_free: fn(*mut Buffer);
    ggml_backend_cpu_buffer_type: fn() -> *mut c_void;
    ggml_backend_buft_alloc_buffer: fn(*mut c_void, usize) -> *mut Buffer;
    ggml_backend_buft_get_alignment: fn(*mut c_void) -> usize;
    ggml_backend_buft_get_device: fn(*mut c_void) -> *mut Device;
    ggml_backend_alloc_ctx_tensors_from_buft: fn(*mut c_void, *mut c_void) -> *mut Buffer;
    ggml_backend_buft_is_host: fn(*mut c_void) -> bool;
    ggml_backend_dev_by_type: fn(c_int) -> *mut Device;
    ggml_backend_dev_init: fn(*mut Device, *const c_char) -> *mut Backend;
    ggml_backend_get_device: fn(*mut Backend) -> *mut Device;
    ggml_backend_free: fn(*mut Backend);
    ggml_backend_dev_supports_op: fn(*mut Device, *const Tensor) -> bool;
    ggml_backend_dev_backend_reg: fn(*mut Device) -> *mut c_void;
    ggml_backend_reg_get_proc_address: fn(*mut c_void, *const c_char) -> *mut c_void;
    ggml_backend_graph_compute: fn(*mut Backend, *mut c_void) -> c_int;
    ggml_custom_4d: fn(*mut c_void, c_int, i64, i64, i64, i64, *mut *mut Tensor, c_int, Task, c_int, *mut c_void) -> *mut Tensor;
    ggml_threadpool_params_init: fn(*mut c_void, c_int);
}

#[cfg(feature = "cuda")]
functions! {
    /// Functions that only caches on GPUs need.
    GpuFunctions:
    ggml_backend_dev_count: fn() -> usize;
    ggml_backend_dev_get: fn(usize) -> *mut Device;
    ggml_backend_dev_buffer_type: fn(*mut Device) -> *mut c_void;
    ggml_backend_reg_name: fn(*mut c_void) -> *const c_char;
    ggml_graph_nodes: fn(*mut c_void) -> *mut *mut Tensor;
    ggml_graph_view: fn(*mut c_void, c_int, c_int) -> Graph;
    ggml_backend_synchronize: fn(*mut Backend);
}

/// `ggml_custom_op_t`: takes the operation's result, the thread's number, the number of threads, and a pointer of the caller's.
type Task = extern "C" fn(*mut Tensor, c_int, c_int, *mut c_void);

pub(crate) type LogCallback = unsafe extern "C" fn(c_int, *const c_char, *mut c_void);

/// `struct ggml_init_params`.
#[repr(C)]
pub(crate) struct InitParams {
    pub(crate) size: usize,
    pub(crate) memory: *mut c_void,
    pub(crate) no_alloc: bool,
}
