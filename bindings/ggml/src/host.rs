//! The host: the ggml that loaded this library. Finds it and writes to its log.

use crate::abi::{KNOWN, Tensor, Version};
use crate::functions::{Functions, InitParams, LogCallback};
use crate::probe;
use crate::system::Libraries;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

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
