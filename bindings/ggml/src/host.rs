//! The host: the ggml that loaded this library. Looks up its functions and writes to its log.

use crate::abi::{Backend, Buffer, BufferInterface, Device, KNOWN, Tensor, Version};
use crate::probe;
use crate::system::Libraries;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

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
    ggml_graph_view: fn(*mut c_void, c_int, c_int) -> crate::abi::Graph;
    ggml_backend_synchronize: fn(*mut Backend);
}

/// `ggml_custom_op_t`: takes the operation's result, the thread's number, the number of threads, and a pointer of the caller's.
type Task = extern "C" fn(*mut Tensor, c_int, c_int, *mut c_void);

type LogCallback = unsafe extern "C" fn(c_int, *const c_char, *mut c_void);

/// `struct ggml_init_params`.
#[repr(C)]
pub(crate) struct InitParams {
    pub(crate) size: usize,
    pub(crate) memory: *mut c_void,
    pub(crate) no_alloc: bool,
}

/// A ggml whose layout is known.
pub(crate) struct Host {
    pub(crate) version: Version,
    pub(crate) version_text: String,
    pub(crate) functions: Functions,
    /// The library that called.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) library: Libraries,
}

impl Host {
    /// Finds the ggml that called.
    pub(crate) fn find(caller: *const c_void) -> Result<Self, String> {
        let library = Libraries::of(caller).ok_or("the host's library was not found")?;
        let version = library.symbol(c"ggml_version");
        if version.is_null() {
            return Err(format!("this ggml has no function ggml_version; use a version of {KNOWN}"));
        }
        // SAFETY: ggml.h declares `const char * ggml_version(void)`, which returns a constant.
        let text = unsafe {
            let version =
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(version);
            CStr::from_ptr(version())
        };
        let version_text = text.to_string_lossy().into_owned();
        let functions = Functions::look_up(&library).map_err(|why| format!("ggml {version_text}: {why}"))?;
        let version = probe::layout(&functions).map_err(|what| {
            format!(
                "ggml {version_text} is not supported, because its layout differs in {what}; use ggml {KNOWN}"
            )
        })?;
        Ok(Self { version, version_text, functions, library })
    }

    pub(crate) fn info(&self, text: &str) {
        self.log(2, text);
    }

    pub(crate) fn error(&self, text: &str) {
        self.log(4, text);
    }

    /// Writes a line to the host's log, or to standard error without one.
    fn log(&self, level: c_int, text: &str) {
        let Ok(line) = CString::new(format!("octaplex: {text}\n")) else { return };
        let (mut callback, mut context): (Option<LogCallback>, _) = (None, null_mut());
        // SAFETY: both pointers are valid; the host's callback takes a string that ends with a zero.
        unsafe {
            (self.functions.ggml_log_get)(&mut callback, &mut context);
            if let Some(callback) = callback {
                callback(level, line.as_ptr(), context);
                return;
            }
        }
        eprint!("{}", line.to_string_lossy());
    }

    /// Returns whether the host is a debug build, which stops at assertions. Only debug builds log a line when they allocate
    /// an empty context.
    pub(crate) fn is_debug(&self, buffer_type: *mut c_void) -> bool {
        unsafe extern "C" fn listen(_: c_int, text: *const c_char, heard: *mut c_void) {
            // SAFETY: the string ends with a zero; `heard` is the flag below.
            let (text, heard) = unsafe { (CStr::from_ptr(text), &*heard.cast::<AtomicBool>()) };
            if text.to_bytes().ends_with(b"already allocated\n") {
                heard.store(true, Ordering::Relaxed);
            }
        }
        let heard = AtomicBool::new(false);
        let functions = &self.functions;
        let (mut callback, mut context): (Option<LogCallback>, _) = (None, null_mut());
        // SAFETY: calls as ggml.h, ggml-alloc.h declare them. The flag outlives the time that the callback is set.
        unsafe {
            let empty =
                (functions.ggml_init)(InitParams { size: 1 << 12, memory: null_mut(), no_alloc: true });
            if empty.is_null() {
                return false;
            }
            (functions.ggml_log_get)(&mut callback, &mut context);
            (functions.ggml_log_set)(Some(listen), (&raw const heard).cast_mut().cast());
            (functions.ggml_backend_alloc_ctx_tensors_from_buft)(empty, buffer_type);
            (functions.ggml_log_set)(callback, context);
            (functions.ggml_free)(empty);
        }
        heard.into_inner()
    }

    /// Returns an operation's name. Its number differs between versions.
    pub(crate) fn op_name(&self, tensor: &Tensor) -> &'static [u8] {
        // SAFETY: names are constants of the host, which outlives what it loaded.
        unsafe { CStr::from_ptr((self.functions.ggml_op_name)(tensor.op)) }.to_bytes()
    }
}
