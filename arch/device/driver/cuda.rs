//! NVIDIA's driver, and NVRTC.

use super::{Driver, Failure, Gpu, Handle, Launch, Vendor};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use cudarc::driver::{DriverError, result, sys};
use cudarc::nvrtc;

#[derive(Debug)]
struct Cuda;

/// Returns the driver, if its library is found.
pub(super) fn driver() -> Result<&'static dyn Driver, Failure> {
    // SAFETY: opens the driver's library; its initialisers are the driver's responsibility.
    if unsafe { sys::is_culib_present() } { Ok(&Cuda) } else { Err(Failure::NoDriver) }
}

/// Checks that the kernels support the GPU's compute capability.
fn is_new(capability: u32) -> Result<(), Failure> {
    if capability < 80 { Err(Failure::OldGpu { capability }) } else { Ok(()) }
}

/// Turns the driver's error of a call into a `Failure`.
fn checked<T>(call: &'static str, answer: Result<T, DriverError>) -> Result<T, Failure> {
    answer.map_err(|error| {
        let name = error
            .error_name()
            .map_or_else(|_| "unknown".to_string(), |name| name.to_string_lossy().into_owned());
        Failure::Driver { call, name }
    })
}

impl Driver for Cuda {
    fn count(&self) -> Result<usize, Failure> {
        match result::init() {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
            Err(error) => checked("cuInit", Err(error)),
            Ok(()) => Ok(checked("cuDeviceGetCount", result::device::get_count())? as usize),
        }
    }

    fn open(&self, number: usize) -> Result<Gpu, Failure> {
        let device = checked("cuDeviceGet", result::device::get(number as i32))?;
        use sys::CUdevice_attribute as Attribute;
        // SAFETY: the driver returned the device.
        let attribute =
            |of| checked("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, of) });
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let capability = (10 * major + minor) as u32;
        is_new(capability)?;
        let name = checked("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the driver returned the device; `close` releases the context.
        let context = checked("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        let gpu = Gpu {
            number: device,
            context: context.cast(),
            name,
            architecture: format!("sm_{capability}"),
            multiprocessors,
            shared_memory: shared as usize,
        };
        if let Err(failure) = self.enter(&gpu) {
            // SAFETY: retained above, and nobody uses it.
            unsafe { self.close(&gpu) };
            return Err(failure);
        }
        Ok(gpu)
    }

    unsafe fn close(&self, gpu: &Gpu) {
        // SAFETY: retained in `open`.
        let _ = unsafe { result::primary_ctx::release(gpu.number) };
    }

    fn enter(&self, gpu: &Gpu) -> Result<(), Failure> {
        // SAFETY: the context lives as long as the GPU.
        checked("cuCtxSetCurrent", unsafe { result::ctx::set_current(gpu.context.cast()) })
    }

    fn current(&self) -> Result<Handle, Failure> {
        let mut context = core::ptr::null_mut();
        // SAFETY: writes a handle.
        checked("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) }.result())?;
        Ok(context.cast())
    }

    unsafe fn restore(&self, current: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(current.cast()) }.result())
    }

    fn stream(&self) -> Result<Handle, Failure> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(checked("cuStreamCreate", stream)?.cast())
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        // SAFETY: the caller's.
        let _ = unsafe { result::stream::destroy(stream.cast()) };
    }

    unsafe fn synchronize(&self, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuStreamSynchronize", unsafe { result::stream::synchronize(stream.cast()) })
    }

    unsafe fn load(&self, image: &[u8]) -> Result<Handle, Failure> {
        // SAFETY: the caller's.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
        Ok(checked("cuModuleLoadData", module)?.cast())
    }

    unsafe fn unload(&self, module: Handle) {
        // SAFETY: the caller's.
        let _ = unsafe { result::module::unload(module.cast()) };
    }

    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle, Failure> {
        let mut function = core::ptr::null_mut();
        // SAFETY: the caller's; the name ends in a zero.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, module.cast(), name.as_ptr()) };
        checked("cuModuleGetFunction", found.result())?;
        Ok(function.cast())
    }

    unsafe fn own_shared(&self, function: Handle) -> Result<usize, Failure> {
        let mut bytes = 0;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: the caller's.
        let answer = unsafe { sys::cuFuncGetAttribute(&mut bytes, attribute, function.cast()) };
        checked("cuFuncGetAttribute", answer.result())?;
        Ok(bytes as usize)
    }

    unsafe fn share(&self, function: Handle, bytes: usize) -> Result<(), Failure> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the caller's.
        let set =
            unsafe { result::function::set_function_attribute(function.cast(), attribute, bytes as i32) };
        checked("cuFuncSetAttribute", set)
    }

    unsafe fn launch(&self, stream: Handle, launch: &Launch, parameter: Handle) -> Result<(), Failure> {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: stream.cast(),
            attrs: &mut attribute,
            numAttrs: launch.early.into(),
        };
        let (mut parameters, none) = ([parameter], core::ptr::null_mut());
        // SAFETY: the caller's.
        let answer =
            unsafe { sys::cuLaunchKernelEx(&config, launch.function.cast(), parameters.as_mut_ptr(), none) };
        checked("cuLaunchKernelEx", answer.result())
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Failure> {
        // SAFETY: the caller frees the memory.
        match unsafe { result::malloc_sync(bytes) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(Failure::Memory { bytes })
            }
            answer => checked("cuMemAlloc", answer),
        }
    }

    unsafe fn free(&self, address: u64) {
        // SAFETY: the caller's.
        let _ = unsafe { result::free_sync(address) };
    }

    unsafe fn zero(&self, address: u64, bytes: usize, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuMemsetD8", unsafe { result::memset_d8_async(address, 0, bytes, stream.cast()) })
    }

    unsafe fn write(&self, to: u64, from: &[u8], stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuMemcpyHtoD", unsafe { result::memcpy_htod_async(to, from, stream.cast()) })
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuMemcpyDtoD", unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cast()) })
    }

    unsafe fn read(&self, to: &mut [u8], from: u64, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_async(to, from, stream.cast()) })
    }

    fn event(&self, timed: bool) -> Result<Handle, Failure> {
        use sys::CUevent_flags as Flags;
        let flags = if timed { Flags::CU_EVENT_DEFAULT } else { Flags::CU_EVENT_DISABLE_TIMING };
        Ok(checked("cuEventCreate", result::event::create(flags))?.cast())
    }

    unsafe fn destroy_event(&self, event: Handle) {
        // SAFETY: the caller's.
        let _ = unsafe { result::event::destroy(event.cast()) };
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuEventRecord", unsafe { result::event::record(event.cast(), stream.cast()) })
    }

    unsafe fn wait(&self, stream: Handle, event: Handle) -> Result<(), Failure> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the caller's.
        let answer = unsafe { result::stream::wait_event(stream.cast(), event.cast(), flags) };
        checked("cuStreamWaitEvent", answer)
    }

    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<f32, Failure> {
        // SAFETY: the caller's.
        unsafe {
            checked("cuEventSynchronize", result::event::synchronize(end.cast()))?;
            checked("cuEventElapsedTime", result::event::elapsed(start.cast(), end.cast()))
        }
    }

    unsafe fn begin_capture(&self, stream: Handle, relaxed: bool) -> Result<(), Failure> {
        use sys::CUstreamCaptureMode as Mode;
        let mode = if relaxed {
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED
        } else {
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        };
        // SAFETY: the caller's.
        checked("cuStreamBeginCapture", unsafe { result::stream::begin_capture(stream.cast(), mode) })
    }

    unsafe fn end_capture(&self, stream: Handle, wanted: bool) -> Result<Option<Handle>, Failure> {
        // SAFETY: the caller's; the graph is created here, and not used after it is destroyed.
        unsafe {
            let graph = checked("cuStreamEndCapture", result::stream::end_capture(stream.cast()))?;
            let flags = sys::CUgraphInstantiate_flags_enum(0);
            let executable =
                wanted.then(|| checked("cuGraphInstantiate", result::graph::instantiate(graph, flags)));
            let _ = result::graph::destroy(graph);
            executable.map(|executable| executable.map(<*mut _>::cast)).transpose()
        }
    }

    unsafe fn is_captured(&self, stream: Handle) -> Result<bool, Failure> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the caller's.
        let answer = unsafe { sys::cuStreamIsCapturing(stream.cast(), &mut status) };
        checked("cuStreamIsCapturing", answer.result())?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the caller's.
        checked("cuGraphLaunch", unsafe { result::graph::launch(graph.cast(), stream.cast()) })
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        // SAFETY: the caller's.
        let _ = unsafe { result::graph::exec_destroy(graph.cast()) };
    }
}

/// Returns NVRTC's version, such as 12,009 for 12.9, or 0 without it.
pub(super) fn compiler_version() -> u64 {
    use nvrtc::sys;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: opens the compiler's library, and calls it as its header says.
    let found =
        unsafe { sys::is_culib_present() && sys::nvrtcVersion(&mut major, &mut minor).result().is_ok() };
    if found { u64::from(major.unsigned_abs()) * 1000 + u64::from(minor.unsigned_abs()) } else { 0 }
}

/// Compiles with NVRTC: to a cubin for `sm_..`, to PTX for `compute_..`.
pub(super) fn compile(source: &CStr, target: &str, options: &[String]) -> Result<Vec<u8>, Failure> {
    use nvrtc::{result, sys};
    // SAFETY: opens the compiler's library; its initialisers are the compiler's responsibility.
    if !unsafe { sys::is_culib_present() } {
        return Err(Failure::NoCompiler(Vendor::Nvidia));
    }
    let failed = |call: &str, error: result::NvrtcError| Failure::Compile(format!("{call}: {error:?}"));
    let program =
        result::create_program(source, None).map_err(|error| failed("nvrtcCreateProgram", error))?;
    // SAFETY: the program was created above, is destroyed below and not used after that. Buffers have the
    // sizes that the compiler returned.
    let image = unsafe {
        match result::compile_program(program, options) {
            Err(_) => {
                let log = result::get_program_log(program).unwrap_or_default();
                let text: Vec<u8> = log.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
                Err(Failure::Compile(String::from_utf8_lossy(&text).into_owned()))
            }
            Ok(()) if target.starts_with("compute") => result::get_ptx(program)
                .map(|ptx| ptx.iter().map(|c| *c as u8).collect())
                .map_err(|error| failed("nvrtcGetPTX", error)),
            Ok(()) => {
                let mut size = 0;
                let sized = sys::nvrtcGetCUBINSize(program, &mut size).result();
                let mut image = vec![0u8; size];
                let got =
                    sized.and_then(|()| sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result());
                got.map(|()| image).map_err(|error| failed("nvrtcGetCUBIN", error))
            }
        }
    };
    // SAFETY: created above.
    let _ = unsafe { result::destroy_program(program) };
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_of_compute_capability_8_and_later() {
        for capability in [80, 86, 89, 90, 100, 120] {
            assert_eq!(is_new(capability), Ok(()));
        }
        for capability in [0, 35, 70, 75, 79] {
            assert_eq!(is_new(capability), Err(Failure::OldGpu { capability }));
        }
    }
}
