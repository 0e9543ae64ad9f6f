//! The driver: a card, its memory, kernels, graphs. One stream a device, on which everything happens in order.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::fmt;
use core::marker::PhantomData;
use cudarc::driver::{DriverError, result, sys};

/// Why a card did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The driver's library is not there.
    NoDriver,
    /// The run-time compiler's library is not there, and the kernels are not in the cache.
    NoCompiler,
    /// No card of that number.
    NoCard {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The card's compute capability is below 8.0.
    OldCard {
        /// Its compute capability, ten times the major number and the minor one.
        capability: u32,
    },
    /// So many bytes are not free on the card.
    Memory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// The kernels do not compile; the compiler's words.
    Compile(String),
    /// The driver refused a call, or a kernel failed; after the latter the device is lost.
    Driver {
        /// Which call.
        call: &'static str,
        /// The driver's name of the error.
        name: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => f.write_str("no NVIDIA driver: its library (libcuda.so, nvcuda.dll) is not on this machine"),
            Self::NoCompiler => f.write_str(
                "no NVRTC: the run-time compiler's library (libnvrtc.so, of CUDA 12 or 13) is not where libraries are \
                 looked for; install it, or name its folder in LD_LIBRARY_PATH",
            ),
            Self::NoCard { count: 0, .. } => f.write_str("the NVIDIA driver finds no card"),
            Self::NoCard { ordinal, count } => write!(f, "no card {ordinal}: there are {count}, from 0"),
            Self::OldCard { capability } => {
                let (major, minor) = (capability / 10, capability % 10);
                write!(f, "the card's compute capability is {major}.{minor}; 8.0 is the least")
            }
            Self::Memory { bytes } => write!(f, "the card has not {bytes} bytes free"),
            Self::Compile(log) => write!(f, "the kernels do not compile: {log}"),
            Self::Driver { call, name } => write!(f, "{call}: {name}"),
        }
    }
}

impl core::error::Error for Failure {}

/// The driver's answer to a call.
fn driver<T>(call: &'static str, answer: Result<T, DriverError>) -> Result<T, Failure> {
    answer.map_err(|error| {
        let name = error
            .error_name()
            .map_or_else(|_| "unknown".to_string(), |name| name.to_string_lossy().into_owned());
        Failure::Driver { call, name }
    })
}

/// A card, with a context and a stream. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    capability: u32,
    multiprocessors: usize,
}

// SAFETY: contexts and streams of the driver's may be used from any thread; every method makes the context current first.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver serialises calls on a stream.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made in `Device::new`, and nothing that uses them is left: all of it holds the `Arc`.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl Device {
    /// The card of that number, from 0.
    ///
    /// # Errors
    /// [`Failure::NoDriver`], [`Failure::NoCard`], [`Failure::OldCard`], [`Failure::Driver`].
    pub fn new(ordinal: usize) -> Result<Self, Failure> {
        // SAFETY: opens the driver's library, whose initialisers are its own affair.
        if !unsafe { sys::is_culib_present() } {
            return Err(Failure::NoDriver);
        }
        let no_card = |count| Failure::NoCard { ordinal, count };
        if let Err(error) = result::init() {
            let missing = error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE;
            return if missing { Err(no_card(0)) } else { driver("cuInit", Err(error)) };
        }
        let count = driver("cuDeviceGetCount", result::device::get_count())? as usize;
        if ordinal >= count {
            return Err(no_card(count));
        }
        let device = driver("cuDeviceGet", result::device::get(ordinal as i32))?;
        use sys::CUdevice_attribute as Attribute;
        // SAFETY: the device is the driver's own answer.
        let attribute =
            |of| driver("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, of) });
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let capability = (10 * major + minor) as u32;
        if capability < 80 {
            return Err(Failure::OldCard { capability });
        }
        let name = driver("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the device is the driver's own answer; released in `drop`, or below.
        let context = driver("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context was made above.
        let stream = driver("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) }).and_then(|()| {
            driver("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))
        });
        match stream {
            Ok(stream) => {
                Ok(Self(Arc::new(Inner { device, context, stream, name, capability, multiprocessors })))
            }
            Err(failure) => {
                // SAFETY: retained above, and used by nobody.
                let _ = unsafe { result::primary_ctx::release(device) };
                Err(failure)
            }
        }
    }

    /// The card's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its compute capability, ten times the major number and the minor one: 90 for Hopper.
    #[must_use]
    pub fn capability(&self) -> u32 {
        self.0.capability
    }

    /// Its multiprocessors.
    #[must_use]
    pub fn multiprocessors(&self) -> usize {
        self.0.multiprocessors
    }

    /// Whether both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context lives as long as `self`.
        driver("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.0.context) })
    }

    /// Waits until everything asked for is done.
    ///
    /// # Errors
    /// [`Failure::Driver`], where something of it failed.
    pub fn synchronize(&self) -> Result<(), Failure> {
        self.enter()?;
        // SAFETY: the stream lives as long as `self`.
        driver("cuStreamSynchronize", unsafe { result::stream::synchronize(self.0.stream) })
    }

    /// Kernels from a compiled image: a cubin, or PTX that ends in a zero.
    ///
    /// # Safety
    /// The image is one that the driver or the run-time compiler made.
    pub(super) unsafe fn load(&self, image: &[u8], names: &[&'static CStr]) -> Result<Kernels, Failure> {
        self.enter()?;
        // SAFETY: images say themselves how long they are, and this one is whole, says the caller.
        let module = driver("cuModuleLoadData", unsafe { result::module::load_data(image.as_ptr().cast()) })?;
        let mut kernels =
            Kernels { device: self.clone(), module, functions: Vec::new(), shared: vec![0; names.len()] };
        for name in names {
            // SAFETY: the module was made above.
            let function = unsafe { result::module::get_function(module, (*name).into()) };
            kernels.functions.push(driver("cuModuleGetFunction", function)?);
        }
        Ok(kernels)
    }

    /// The stream on which everything happens.
    pub(super) fn stream(&self) -> Stream {
        Stream(self.0.stream)
    }

    /// Records what `work` asks for on the stream that it is given, instead of doing it. That stream is of the capture alone:
    /// other threads go on using the device's.
    pub(super) fn capture(&self, work: impl FnOnce(Stream) -> Result<(), Failure>) -> Result<Graph, Failure> {
        self.enter()?;
        let stream =
            driver("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream was made above, and is used by nobody else.
        let begun = driver("cuStreamBeginCapture", unsafe { result::stream::begin_capture(stream, mode) });
        let done = begun.and_then(|()| work(Stream(stream)));
        // SAFETY: as above; where the capture was not begun, this is refused.
        let graph = unsafe {
            let graph = driver("cuStreamEndCapture", result::stream::end_capture(stream));
            let _ = result::stream::destroy(stream);
            graph
        };
        let graph = match (done, graph) {
            (Ok(()), graph) => graph?,
            (Err(failure), graph) => {
                // SAFETY: the graph was made above, and nobody else has it.
                let _ = graph.map(|graph| unsafe { result::graph::destroy(graph) });
                return Err(failure);
            }
        };
        // SAFETY: the graph was made above, and is not used after it is destroyed.
        let executable = unsafe {
            let flags = sys::CUgraphInstantiate_flags_enum(0);
            let executable = driver("cuGraphInstantiate", result::graph::instantiate(graph, flags));
            let _ = result::graph::destroy(graph);
            executable?
        };
        Ok(Graph { device: self.clone(), executable })
    }
}

/// A stream of the caller's, of the card's primary context: the CUDA runtime's streams, and so PyTorch's, are.
#[derive(Clone, Copy, Debug)]
pub struct CallerStream(usize);

impl CallerStream {
    /// The stream of that handle: a `CUstream` or `cudaStream_t` as a number, 0 the legacy default one, 2 the default one of each thread.
    ///
    /// # Safety
    /// It is such a stream, of the card that it is used with, and is neither destroyed nor asked for anything else while a call has
    /// it. Work of a layer that was captured from it into a graph uses the layer's memory and kernels: it is launched only while the layer
    /// lives and has not been asked for another `reserve`, and not beside other work of that layer.
    #[must_use]
    pub const unsafe fn new(handle: usize) -> Self {
        Self(handle)
    }

    fn handle(self) -> sys::CUstream {
        core::ptr::without_provenance_mut(self.0)
    }

    /// Whether what it is asked goes into a graph.
    ///
    /// # Errors
    /// [`Failure::Driver`]; so it is for the legacy default stream while one that waits for it is captured.
    pub(super) fn is_captured(self, device: &Device) -> Result<bool, Failure> {
        device.enter()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: it is a stream, says who made this.
        let asked = unsafe { sys::cuStreamIsCapturing(self.handle(), &mut status) };
        driver("cuStreamIsCapturing", asked.result())?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// To launch on.
    pub(super) fn stream(self) -> Stream {
        Stream(self.handle())
    }
}

/// What puts two streams in order.
#[derive(Debug)]
pub(super) struct Event {
    device: Device,
    event: sys::CUevent,
}

// SAFETY: handles of the driver's, as those of `Inner`.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(device: &Device) -> Result<Self, Failure> {
        device.enter()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Self { device: device.clone(), event: driver("cuEventCreate", event)? })
    }

    fn order(&self, first: sys::CUstream, then: sys::CUstream) -> Result<(), Failure> {
        self.device.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event was made in `new`; one stream is the device's, the other is one, says who made the `CallerStream`.
        unsafe {
            driver("cuEventRecord", result::event::record(self.event, first))?;
            driver("cuStreamWaitEvent", result::stream::wait_event(then, self.event, flags))
        }
    }

    /// What is asked of the device from now on comes after what the caller's stream has been asked.
    pub(super) fn after(&self, caller: CallerStream) -> Result<(), Failure> {
        self.order(caller.handle(), self.device.0.stream)
    }

    /// What the caller's stream is asked from now on comes after what the device has been asked.
    pub(super) fn before(&self, caller: CallerStream) -> Result<(), Failure> {
        self.order(self.device.0.stream, caller.handle())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: made in `new`.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// A stream of a device's.
#[derive(Clone, Copy)]
pub(super) struct Stream(sys::CUstream);

/// Plain numbers: any bytes are values, and values are bytes.
///
/// # Safety
/// No padding, no pointers of the host's, no invalid bit patterns.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for i16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

/// Memory of the card, zeros at first.
#[derive(Debug)]
pub(super) struct Buffer<T> {
    device: Device,
    pointer: sys::CUdeviceptr,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// Room for `len` values, at least one.
    pub(super) fn new(device: &Device, len: usize) -> Result<Self, Failure> {
        device.enter()?;
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Failure::Memory { bytes: usize::MAX })?.max(16);
        // SAFETY: freed in `drop`.
        let pointer = unsafe { result::malloc_sync(bytes) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Failure::Memory { bytes },
            _ => driver::<()>("cuMemAlloc", Err(error)).err().unwrap_or(Failure::Memory { bytes }),
        })?;
        let buffer = Self { device: device.clone(), pointer, len, values: PhantomData };
        // SAFETY: so many bytes were allocated above.
        driver("cuMemsetD8", unsafe { result::memset_d8_async(pointer, 0, bytes, device.0.stream) })?;
        Ok(buffer)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Its address on the card.
    pub(super) fn address(&self) -> u64 {
        self.pointer
    }

    fn at(&self, from: usize, count: usize) -> sys::CUdeviceptr {
        assert!(from <= self.len && count <= self.len - from, "{from} + {count} of {} values", self.len);
        self.pointer + (from * size_of::<T>()) as u64
    }

    /// Copies values to the card, from place `from` on.
    pub(super) fn write(&self, from: usize, values: &[T]) -> Result<(), Failure> {
        self.device.enter()?;
        let at = self.at(from, values.len());
        // SAFETY: the range is inside the allocation, the values are plain; what is pageable has been copied, or is
        // staged, when the call returns, and it is waited for below.
        driver("cuMemcpyHtoD", unsafe { result::memcpy_htod_async(at, values, self.device.0.stream) })?;
        self.device.synchronize()
    }

    /// Copies values from another place of the card's memory, which is not overlapped.
    pub(super) fn copy(&self, to: usize, from: &Self, at: usize, count: usize) -> Result<(), Failure> {
        self.device.enter()?;
        let (to, from) = (self.at(to, count), from.at(at, count));
        let stream = self.device.0.stream;
        // SAFETY: both ranges are inside their allocations.
        driver("cuMemcpyDtoD", unsafe { result::memcpy_dtod_async(to, from, count * size_of::<T>(), stream) })
    }

    /// Copies values from the card when all before is done.
    pub(super) fn read(&self, from: usize, values: &mut [T]) -> Result<(), Failure> {
        self.device.enter()?;
        let at = self.at(from, values.len());
        // SAFETY: the range is inside the allocation, any bytes are values, and the copy is waited for.
        driver("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_async(values, at, self.device.0.stream) })?;
        self.device.synchronize()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: allocated in `new`; freeing waits for what still uses it.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

/// A loaded image and its kernels.
#[derive(Debug)]
pub(super) struct Kernels {
    device: Device,
    module: sys::CUmodule,
    functions: Vec<sys::CUfunction>,
    /// Bytes of shared memory that each is given beside its own.
    shared: Vec<u32>,
}

// SAFETY: handles of the driver's, as those of `Inner`.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: loaded in `Device::load`; kernels that run on the device's stream are waited for, and on a caller's none runs any
            // more, says who made a `CallerStream`.
            unsafe {
                let _ = result::stream::synchronize(self.device.0.stream);
                let _ = result::module::unload(self.module);
            }
        }
    }
}

impl Kernels {
    /// Gives kernel `number` so many bytes of shared memory beside its own from now on.
    pub(super) fn share(&mut self, number: usize, bytes: usize) -> Result<(), Failure> {
        self.device.enter()?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is of this module.
        let set = unsafe {
            result::function::set_function_attribute(self.functions[number], attribute, bytes as i32)
        };
        driver("cuFuncSetAttribute", set)?;
        self.shared[number] = bytes as u32;
        Ok(())
    }

    /// Asks for kernel `number` on a stream. `early`: it may begin before the one before it has ended, for which it waits itself.
    ///
    /// # Safety
    /// `parameters` is what the kernel takes, and its pointers are of memory that the kernel may use as it does and that
    /// lives until it has run.
    pub(super) unsafe fn launch<P>(
        &self,
        stream: Stream,
        number: usize,
        grid: [usize; 3],
        threads: usize,
        early: bool,
        parameters: &P,
    ) -> Result<(), Failure> {
        self.device.enter()?;
        // More than there can be: the driver refuses it.
        let [x, y, z] = grid.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared[number],
            hStream: stream.0,
            attrs: &mut attribute,
            numAttrs: early.into(),
        };
        let mut pointers = [core::ptr::from_ref(parameters).cast_mut().cast::<c_void>()];
        let none = core::ptr::null_mut();
        // SAFETY: the function is of this module, and one parameter is what it takes, says the caller; it is copied here.
        let asked =
            unsafe { sys::cuLaunchKernelEx(&config, self.functions[number], pointers.as_mut_ptr(), none) };
        driver("cuLaunchKernelEx", asked.result())
    }
}

/// What was captured, to be done again and again.
#[derive(Debug)]
pub(super) struct Graph {
    device: Device,
    executable: sys::CUgraphExec,
}

// SAFETY: handles of the driver's, as those of `Inner`.
unsafe impl Send for Graph {}
// SAFETY: as above; launching takes `&self`, and the driver orders launches on the stream.
unsafe impl Sync for Graph {}

impl Graph {
    /// Asks for all of it.
    ///
    /// # Safety
    /// What its kernels use is still there.
    pub(super) unsafe fn launch(&self) -> Result<(), Failure> {
        self.device.enter()?;
        // SAFETY: made in `capture`; its kernels' memory is the caller's affair.
        driver("cuGraphLaunch", unsafe { result::graph::launch(self.executable, self.device.0.stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: made in `capture`.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

/// Microseconds of each of `times` runs of what `work` asks for, as the card's clock has them.
pub(super) fn time(
    device: &Device,
    times: usize,
    work: impl Fn() -> Result<(), Failure>,
) -> Result<Vec<f32>, Failure> {
    device.enter()?;
    let event = || driver("cuEventCreate", result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT));
    let (start, end) = (event()?, event()?);
    let mut microseconds = vec![0.0; times];
    let run = |microseconds: &mut f32| {
        // SAFETY: events and stream are alive.
        driver("cuEventRecord", unsafe { result::event::record(start, device.0.stream) })?;
        work()?;
        // SAFETY: as above.
        unsafe {
            driver("cuEventRecord", result::event::record(end, device.0.stream))?;
            driver("cuEventSynchronize", result::event::synchronize(end))?;
            *microseconds = 1000.0 * driver("cuEventElapsedTime", result::event::elapsed(start, end))?;
        }
        Ok(())
    };
    let done = microseconds.iter_mut().try_for_each(run);
    // SAFETY: created above.
    unsafe {
        let _ = result::event::destroy(start);
        let _ = result::event::destroy(end);
    }
    done.map(|()| microseconds)
}
