//! AMD's HIP and hipRTC, of ROCm 6 and 7.
//!
//! The libraries are loaded at their first use. All calls are looked up before the first is made. This has
//! never run on an AMD GPU: tests run it with stand-ins for these libraries on the CPU (ci/hip-on-cpu).

use super::{Driver, Failure, Gpu, Handle, Launch, Vendor};
use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};
use core::ptr::null_mut;
use libloading::Library;
use std::path::Path;
use std::sync::OnceLock;

/// Functions of a library, by their names in it.
macro_rules! calls {
    ($name:ident { $($call:ident($($type:ty),*) -> $answer:ty;)* }) => {
        #[allow(non_snake_case)]
        #[derive(Debug)]
        struct $name {
            $($call: unsafe extern "C" fn($($type),*) -> $answer,)*
            /// The library, which closes last.
            _library: Library,
        }

        impl $name {
            fn of(library: Library) -> Result<Self, Failure> {
                // SAFETY: in every library of that name it has these parameters.
                let found = Self { $($call: unsafe { call(&library, stringify!($call)) }?,)* _library: library };
                Ok(found)
            }
        }
    };
}

/// Looks up a function of a library.
///
/// # Safety
/// `F` is the function's type.
unsafe fn call<F: Copy>(library: &Library, name: &'static str) -> Result<F, Failure> {
    // SAFETY: the caller's.
    unsafe { library.get::<F>(name) }.map(|call| *call).map_err(|_| Failure::OldDriver { call: name })
}

calls! { Hip {
    hipInit(c_uint) -> c_int;
    hipGetErrorName(c_int) -> *const c_char;
    hipGetLastError() -> c_int;
    hipGetDeviceCount(*mut c_int) -> c_int;
    hipGetDevicePropertiesR0600(*mut Properties, c_int) -> c_int;
    hipSetDevice(c_int) -> c_int;
    hipGetDevice(*mut c_int) -> c_int;
    hipStreamCreateWithFlags(*mut Handle, c_uint) -> c_int;
    hipStreamDestroy(Handle) -> c_int;
    hipStreamSynchronize(Handle) -> c_int;
    hipModuleLoadData(*mut Handle, *const u8) -> c_int;
    hipModuleUnload(Handle) -> c_int;
    hipModuleGetFunction(*mut Handle, Handle, *const c_char) -> c_int;
    hipFuncGetAttribute(*mut c_int, c_int, Handle) -> c_int;
    hipModuleLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle) -> c_int;
    hipMalloc(*mut u64, usize) -> c_int;
    hipFree(u64) -> c_int;
    hipMemsetAsync(u64, c_int, usize, Handle) -> c_int;
    hipMemcpyAsync(u64, u64, usize, c_int, Handle) -> c_int;
    hipEventCreateWithFlags(*mut Handle, c_uint) -> c_int;
    hipEventDestroy(Handle) -> c_int;
    hipEventRecord(Handle, Handle) -> c_int;
    hipEventSynchronize(Handle) -> c_int;
    hipEventElapsedTime(*mut f32, Handle, Handle) -> c_int;
    hipStreamWaitEvent(Handle, Handle, c_uint) -> c_int;
    hipStreamBeginCapture(Handle, c_int) -> c_int;
    hipStreamEndCapture(Handle, *mut Handle) -> c_int;
    hipStreamIsCapturing(Handle, *mut c_int) -> c_int;
    hipGraphInstantiateWithFlags(*mut Handle, Handle, c_ulonglong) -> c_int;
    hipGraphDestroy(Handle) -> c_int;
    hipGraphExecDestroy(Handle) -> c_int;
    hipGraphLaunch(Handle, Handle) -> c_int;
} }

calls! { HipRtc {
    hiprtcCreateProgram(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
    hiprtcCompileProgram(Handle, c_int, *const *const c_char) -> c_int;
    hiprtcDestroyProgram(*mut Handle) -> c_int;
    hiprtcGetProgramLogSize(Handle, *mut usize) -> c_int;
    hiprtcGetProgramLog(Handle, *mut c_char) -> c_int;
    hiprtcGetCodeSize(Handle, *mut usize) -> c_int;
    hiprtcGetCode(Handle, *mut c_char) -> c_int;
    hiprtcGetErrorString(c_int) -> *const c_char;
} }

// Constants of hip_runtime_api.h.
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const NON_BLOCKING: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const THREAD_LOCAL: c_int = 1;
const RELAXED: i32 = 2;
const SHARED_SIZE_BYTES: c_int = 1;
const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const DEVICE_TO_DEVICE: c_int = 3;

/// `hipDeviceProp_tR0600`. Its name fixes the layout of 1,472 bytes; this has more space than that.
#[repr(C, align(16))]
struct Properties([u8; 4096]);

impl Properties {
    const SHARED_MEM_PER_BLOCK: usize = 296; // size_t
    const WARP_SIZE: usize = 308; // int
    const MULTI_PROCESSOR_COUNT: usize = 388; // int
    const GCN_ARCH_NAME: usize = 1160; // char[256]

    fn int(&self, at: usize) -> usize {
        self.0[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)) as usize
    }

    fn text(&self, at: usize) -> String {
        let bytes = &self.0[at..at + 256];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// Returns whether the kernels support the architecture: gfx900 and later, with any features after a colon.
fn is_known(architecture: &str) -> bool {
    let name = architecture.split(':').next().unwrap_or_default();
    let digits = name.strip_prefix("gfx").unwrap_or_default();
    let major = digits.len().checked_sub(2).and_then(|end| digits.get(..end)?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 9)
}

/// Opens the library of that name. A library that the process has already, such as PyTorch's, comes before
/// ROCm's.
fn library(name: &str) -> Option<Library> {
    #[cfg(target_os = "linux")]
    {
        use libloading::os::unix::{Library as Unix, RTLD_LOCAL, RTLD_NOW};
        const NOLOAD: c_int = 4;
        let file = |version: &str| alloc::format!("lib{name}.so{version}");
        let files = [file(""), file(".7"), file(".6")];
        // SAFETY: opens a library; its initialisers are the library's responsibility.
        let open = |path: &Path, flags| unsafe { Unix::open(Some(path), RTLD_NOW | flags) }.ok();
        let named = std::env::var_os("ROCM_PATH").filter(|path| !path.is_empty());
        let folders = named.iter().map(Path::new).chain([Path::new("/opt/rocm")]);
        let in_folders =
            folders.flat_map(|folder| files.iter().map(move |file| folder.join("lib").join(file)));
        let found = files.iter().find_map(|file| open(Path::new(file), NOLOAD));
        let found = found.or_else(|| in_folders.into_iter().find_map(|path| open(&path, RTLD_LOCAL)));
        let found = found.or_else(|| files.iter().find_map(|file| open(Path::new(file), RTLD_LOCAL)));
        found.map(Library::from)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (name, Path::new(""));
        None
    }
}

/// Returns the driver, if its library is found.
pub(super) fn driver() -> Result<&'static dyn Driver, Failure> {
    static HIP: OnceLock<Result<Hip, Failure>> = OnceLock::new();
    let found = HIP.get_or_init(|| Hip::of(library("amdhip64").ok_or(Failure::NoDriver)?));
    found.as_ref().map(|hip| hip as &dyn Driver).map_err(Clone::clone)
}

impl Hip {
    /// Turns the driver's error of a call into a `Failure`.
    fn checked(&self, call: &'static str, answer: c_int) -> Result<(), Failure> {
        if answer == 0 {
            return Ok(());
        }
        // SAFETY: the answer of a call; names live for ever. Clearing the thread's last error keeps it from
        // other users of HIP in this process.
        let name = unsafe {
            (self.hipGetLastError)();
            let name = (self.hipGetErrorName)(answer);
            if name.is_null() { c"unknown" } else { CStr::from_ptr(name) }
        };
        Err(Failure::Driver { call, name: name.to_string_lossy().into_owned() })
    }

    /// Returns the handle that a call creates.
    fn created(
        &self,
        call: &'static str,
        make: impl FnOnce(*mut Handle) -> c_int,
    ) -> Result<Handle, Failure> {
        let mut handle = null_mut();
        self.checked(call, make(&mut handle))?;
        Ok(handle)
    }

    /// Ignores the error of a call that fails only if the device is lost.
    fn ignored(&self, call: &'static str, answer: c_int) {
        let _ = self.checked(call, answer);
    }
}

impl Driver for Hip {
    fn count(&self) -> Result<usize, Failure> {
        let mut count = 0;
        // SAFETY: repeated calls are allowed.
        let (call, answer) = match unsafe { (self.hipInit)(0) } {
            // SAFETY: writes a number.
            0 => ("hipGetDeviceCount", unsafe { (self.hipGetDeviceCount)(&mut count) }),
            refused => ("hipInit", refused),
        };
        match self.checked(call, answer) {
            Err(_) if answer == NO_DEVICE => Ok(0),
            checked => checked.map(|()| usize::try_from(count).unwrap_or(0)),
        }
    }

    fn open(&self, number: usize) -> Result<Gpu, Failure> {
        let mut properties = Properties([0; 4096]);
        // SAFETY: the buffer has more space than the call writes.
        let answer = unsafe { (self.hipGetDevicePropertiesR0600)(&mut properties, number as c_int) };
        self.checked("hipGetDeviceProperties", answer)?;
        let architecture = properties.text(Properties::GCN_ARCH_NAME);
        if !is_known(&architecture) || !matches!(properties.int(Properties::WARP_SIZE), 32 | 64) {
            return Err(Failure::Architecture { name: architecture });
        }
        let gpu = Gpu {
            number: number as c_int,
            context: null_mut(),
            name: properties.text(0),
            architecture,
            multiprocessors: properties.int(Properties::MULTI_PROCESSOR_COUNT).max(1),
            shared_memory: properties.int(Properties::SHARED_MEM_PER_BLOCK),
        };
        self.enter(&gpu)?;
        Ok(gpu)
    }

    unsafe fn close(&self, _: &Gpu) {}

    fn enter(&self, gpu: &Gpu) -> Result<(), Failure> {
        // SAFETY: any number is allowed.
        self.checked("hipSetDevice", unsafe { (self.hipSetDevice)(gpu.number) })
    }

    fn current(&self) -> Result<Handle, Failure> {
        let mut number = 0;
        // SAFETY: writes a number.
        self.checked("hipGetDevice", unsafe { (self.hipGetDevice)(&mut number) })?;
        Ok(core::ptr::without_provenance_mut(number as usize))
    }

    unsafe fn restore(&self, current: Handle) -> Result<(), Failure> {
        // SAFETY: any number is allowed.
        self.checked("hipSetDevice", unsafe { (self.hipSetDevice)(current.addr() as c_int) })
    }

    fn stream(&self) -> Result<Handle, Failure> {
        // SAFETY: writes a handle.
        self.created("hipStreamCreate", |to| unsafe { (self.hipStreamCreateWithFlags)(to, NON_BLOCKING) })
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        // SAFETY: the caller's.
        self.ignored("hipStreamDestroy", unsafe { (self.hipStreamDestroy)(stream) });
    }

    unsafe fn synchronize(&self, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        self.checked("hipStreamSynchronize", unsafe { (self.hipStreamSynchronize)(stream) })
    }

    unsafe fn load(&self, image: &[u8]) -> Result<Handle, Failure> {
        // SAFETY: the caller's.
        self.created("hipModuleLoadData", |to| unsafe { (self.hipModuleLoadData)(to, image.as_ptr()) })
    }

    unsafe fn unload(&self, module: Handle) {
        // SAFETY: the caller's.
        self.ignored("hipModuleUnload", unsafe { (self.hipModuleUnload)(module) });
    }

    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle, Failure> {
        let find = self.hipModuleGetFunction;
        // SAFETY: the caller's; the name ends in a zero.
        self.created("hipModuleGetFunction", |to| unsafe { find(to, module, name.as_ptr()) })
    }

    unsafe fn own_shared(&self, function: Handle) -> Result<usize, Failure> {
        let mut bytes = 0;
        // SAFETY: the caller's; writes a number.
        let answer = unsafe { (self.hipFuncGetAttribute)(&mut bytes, SHARED_SIZE_BYTES, function) };
        self.checked("hipFuncGetAttribute", answer)?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    /// HIP allows all shared memory of the GPU at a launch without a call.
    unsafe fn share(&self, _: Handle, _: usize) -> Result<(), Failure> {
        Ok(())
    }

    unsafe fn launch(&self, stream: Handle, launch: &Launch, parameter: Handle) -> Result<(), Failure> {
        let ([x, y, z], mut parameters) = (launch.grid, [parameter]);
        let ask = self.hipModuleLaunchKernel;
        // SAFETY: the caller's.
        let answer = unsafe {
            let parameters = parameters.as_mut_ptr();
            ask(launch.function, x, y, z, launch.threads, 1, 1, launch.shared, stream, parameters, null_mut())
        };
        self.checked("hipModuleLaunchKernel", answer)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Failure> {
        let mut address = 0;
        // SAFETY: writes an address.
        let answer = unsafe { (self.hipMalloc)(&mut address, bytes) };
        match self.checked("hipMalloc", answer) {
            Err(_) if answer == OUT_OF_MEMORY => Err(Failure::Memory { bytes }),
            checked => checked.map(|()| address),
        }
    }

    unsafe fn free(&self, address: u64) {
        // SAFETY: the caller's.
        self.ignored("hipFree", unsafe { (self.hipFree)(address) });
    }

    unsafe fn zero(&self, address: u64, bytes: usize, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        self.checked("hipMemsetAsync", unsafe { (self.hipMemsetAsync)(address, 0, bytes, stream) })
    }

    unsafe fn write(&self, to: u64, from: &[u8], stream: Handle) -> Result<(), Failure> {
        let address = from.as_ptr().expose_provenance() as u64;
        // SAFETY: the caller's.
        let answer = unsafe { (self.hipMemcpyAsync)(to, address, from.len(), HOST_TO_DEVICE, stream) };
        self.checked("hipMemcpyAsync", answer)
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        let answer = unsafe { (self.hipMemcpyAsync)(to, from, bytes, DEVICE_TO_DEVICE, stream) };
        self.checked("hipMemcpyAsync", answer)
    }

    unsafe fn read(&self, to: &mut [u8], from: u64, stream: Handle) -> Result<(), Failure> {
        let address = to.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the caller's.
        let answer = unsafe { (self.hipMemcpyAsync)(address, from, to.len(), DEVICE_TO_HOST, stream) };
        self.checked("hipMemcpyAsync", answer)
    }

    fn event(&self, timed: bool) -> Result<Handle, Failure> {
        let flags = if timed { 0 } else { DISABLE_TIMING };
        // SAFETY: writes a handle.
        self.created("hipEventCreate", |to| unsafe { (self.hipEventCreateWithFlags)(to, flags) })
    }

    unsafe fn destroy_event(&self, event: Handle) {
        // SAFETY: the caller's.
        self.ignored("hipEventDestroy", unsafe { (self.hipEventDestroy)(event) });
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        self.checked("hipEventRecord", unsafe { (self.hipEventRecord)(event, stream) })
    }

    unsafe fn wait(&self, stream: Handle, event: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        self.checked("hipStreamWaitEvent", unsafe { (self.hipStreamWaitEvent)(stream, event, 0) })
    }

    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<f32, Failure> {
        let mut milliseconds = 0.0;
        // SAFETY: the caller's; writes a number.
        unsafe {
            self.checked("hipEventSynchronize", (self.hipEventSynchronize)(end))?;
            self.checked("hipEventElapsedTime", (self.hipEventElapsedTime)(&mut milliseconds, start, end))?;
        }
        Ok(milliseconds)
    }

    unsafe fn begin_capture(&self, stream: Handle, relaxed: bool) -> Result<(), Failure> {
        let mode = if relaxed { RELAXED } else { THREAD_LOCAL };
        // SAFETY: the caller's.
        self.checked("hipStreamBeginCapture", unsafe { (self.hipStreamBeginCapture)(stream, mode) })
    }

    unsafe fn end_capture(&self, stream: Handle, wanted: bool) -> Result<Option<Handle>, Failure> {
        // SAFETY: the caller's; the graph is created here, and not used after it is destroyed.
        unsafe {
            let graph = self.created("hipStreamEndCapture", |to| (self.hipStreamEndCapture)(stream, to))?;
            let instantiate = self.hipGraphInstantiateWithFlags;
            let executable =
                wanted.then(|| self.created("hipGraphInstantiate", |to| instantiate(to, graph, 0)));
            self.ignored("hipGraphDestroy", (self.hipGraphDestroy)(graph));
            executable.transpose()
        }
    }

    unsafe fn is_captured(&self, stream: Handle) -> Result<bool, Failure> {
        let mut status = 0;
        // SAFETY: the caller's; writes a number.
        let answer = unsafe { (self.hipStreamIsCapturing)(stream, &mut status) };
        self.checked("hipStreamIsCapturing", answer)?;
        Ok(status != 0)
    }

    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        self.checked("hipGraphLaunch", unsafe { (self.hipGraphLaunch)(graph, stream) })
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        // SAFETY: the caller's.
        self.ignored("hipGraphExecDestroy", unsafe { (self.hipGraphExecDestroy)(graph) });
    }
}

/// Compiles with hipRTC to a code object. This needs no GPU.
pub(super) fn compile(text: &CStr, options: &[String]) -> Result<Vec<u8>, Failure> {
    static RTC: OnceLock<Result<HipRtc, Failure>> = OnceLock::new();
    let missing = Failure::NoCompiler(Vendor::Amd);
    let rtc =
        RTC.get_or_init(|| HipRtc::of(library("hiprtc").ok_or(missing)?)).as_ref().map_err(Clone::clone)?;
    let texts: Result<Vec<CString>, _> = options.iter().map(|option| CString::new(option.as_str())).collect();
    let texts = texts.map_err(|error| Failure::Compile(error.to_string()))?;
    let words: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
    let checked = |call: &str, answer: c_int| match answer {
        0 => Ok(()),
        // SAFETY: the answer of a call; its messages live for ever.
        _ => Err(Failure::Compile(alloc::format!("{call}: {}", unsafe {
            CStr::from_ptr((rtc.hiprtcGetErrorString)(answer)).to_string_lossy()
        }))),
    };
    let (mut program, mut size, none) = (null_mut(), 0, core::ptr::null());
    // SAFETY: source and options end in a zero. Buffers have the sizes that the compiler returned. The
    // program is destroyed below and not used after that.
    unsafe {
        let name = c"octaplex".as_ptr();
        checked(
            "hiprtcCreateProgram",
            (rtc.hiprtcCreateProgram)(&mut program, text.as_ptr(), name, 0, none, none),
        )?;
        let compiled = (rtc.hiprtcCompileProgram)(program, words.len() as c_int, words.as_ptr());
        let image = match checked("hiprtcCompileProgram", compiled) {
            Ok(()) => {
                checked("hiprtcGetCodeSize", (rtc.hiprtcGetCodeSize)(program, &mut size)).and_then(|()| {
                    let mut image = vec![0u8; size];
                    checked("hiprtcGetCode", (rtc.hiprtcGetCode)(program, image.as_mut_ptr().cast()))?;
                    Ok(image)
                })
            }
            Err(refused) => {
                let sized = (rtc.hiprtcGetProgramLogSize)(program, &mut size);
                let mut log = vec![0u8; if sized == 0 { size } else { 0 }];
                let got = sized == 0 && (rtc.hiprtcGetProgramLog)(program, log.as_mut_ptr().cast()) == 0;
                let log: Vec<u8> = log.into_iter().take_while(|byte| *byte != 0).collect();
                Err(if got && !log.is_empty() {
                    Failure::Compile(String::from_utf8_lossy(&log).into_owned())
                } else {
                    refused
                })
            }
        };
        (rtc.hiprtcDestroyProgram)(&mut program);
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_known_by_their_major_number() {
        for known in ["gfx900", "gfx90a:sramecc+:xnack-", "gfx942", "gfx1030", "gfx1100", "gfx1201"] {
            assert!(is_known(known), "{known}");
        }
        for other in ["", "gfx", "gfx803", "gfx701:x", "sm_90", "gfx9", "gfxé0", "gfx-900"] {
            assert!(!is_known(other), "{other}");
        }
    }

    /// Any other library looks like a HIP that is too old.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_a_call_is_too_old() {
        let own = || Library::from(libloading::os::unix::Library::this());
        let (hip, rtc) = (Hip::of(own()).map(drop), HipRtc::of(own()).map(drop));
        assert_eq!(hip, Err(Failure::OldDriver { call: "hipInit" }));
        assert_eq!(rtc, Err(Failure::OldDriver { call: "hiprtcCreateProgram" }));
    }
}
