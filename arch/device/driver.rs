//! The driver: a GPU, its memory, kernels, graphs. One stream a device, on which everything happens in order.
//!
//! What is here is common to all vendors; their calls are in a file each, behind [`Driver`].

// What one vendor's driver needs another's may not.
#![cfg_attr(not(all(feature = "cuda", feature = "hip")), allow(dead_code, unused_variables))]

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "hip")]
mod hip;
mod thread;

use super::failure::{Failure, Vendor};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::fmt;
use core::marker::PhantomData;

/// What a driver calls a stream, a kernel and the like by.
pub(super) type Handle = *mut c_void;

/// A GPU as its driver opens it.
#[derive(Debug)]
pub(super) struct Gpu {
    number: i32,
    context: Handle,
    name: String,
    architecture: String,
    multiprocessors: usize,
    shared_memory: usize,
}

/// What is launched.
pub(super) struct Launch {
    function: Handle,
    grid: [u32; 3],
    threads: u32,
    /// Bytes of shared memory beside the kernel's own.
    shared: u32,
    /// It may begin before the one before it has ended, for which it waits itself; drivers without that ignore it.
    early: bool,
}

/// A vendor's driver, a call or two each.
///
/// # Safety
/// Of all that are unsafe: handles are this driver's, of the GPU last [entered](Self::enter) on this thread, and are there: what
/// destroys one is called once. Addresses have so many bytes of the GPU's memory, and of the host's until the stream has done
/// what was asked.
pub(super) trait Driver: fmt::Debug + Send + Sync {
    /// How many GPUs there are.
    fn count(&self) -> Result<usize, Failure>;
    /// The GPU of a number below that, which is entered.
    fn open(&self, number: usize) -> Result<Gpu, Failure>;
    unsafe fn close(&self, gpu: &Gpu);
    /// Makes it the one that this thread's calls are for.
    fn enter(&self, gpu: &Gpu) -> Result<(), Failure>;
    /// What this thread's calls are for: a handle, or a number as one.
    fn current(&self) -> Result<Handle, Failure>;
    /// Makes it that again: what [`current`](Self::current) said on this thread.
    unsafe fn restore(&self, current: Handle) -> Result<(), Failure>;

    /// A stream that does not wait for the default one.
    fn stream(&self) -> Result<Handle, Failure>;
    unsafe fn destroy_stream(&self, stream: Handle);
    unsafe fn synchronize(&self, stream: Handle) -> Result<(), Failure>;

    unsafe fn load(&self, image: &[u8]) -> Result<Handle, Failure>;
    unsafe fn unload(&self, module: Handle);
    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle, Failure>;
    /// Bytes of shared memory that a kernel has of its own.
    unsafe fn own_shared(&self, function: Handle) -> Result<usize, Failure>;
    /// Lets it be launched with so many beside those.
    unsafe fn share(&self, function: Handle, bytes: usize) -> Result<(), Failure>;
    /// `parameter` is the one that the kernel takes; it is copied.
    unsafe fn launch(&self, stream: Handle, launch: &Launch, parameter: Handle) -> Result<(), Failure>;

    fn allocate(&self, bytes: usize) -> Result<u64, Failure>;
    /// Waits for what uses it.
    unsafe fn free(&self, address: u64);
    unsafe fn zero(&self, address: u64, bytes: usize, stream: Handle) -> Result<(), Failure>;
    unsafe fn write(&self, to: u64, from: &[u8], stream: Handle) -> Result<(), Failure>;
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<(), Failure>;
    unsafe fn read(&self, to: &mut [u8], from: u64, stream: Handle) -> Result<(), Failure>;

    fn event(&self, timed: bool) -> Result<Handle, Failure>;
    unsafe fn destroy_event(&self, event: Handle);
    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<(), Failure>;
    unsafe fn wait(&self, stream: Handle, event: Handle) -> Result<(), Failure>;
    /// Milliseconds between two, when the second has come.
    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<f32, Failure>;

    unsafe fn begin_capture(&self, stream: Handle) -> Result<(), Failure>;
    /// What was captured, to be launched; `None`: not what is asked for, so that there is nothing.
    unsafe fn end_capture(&self, stream: Handle, wanted: bool) -> Result<Option<Handle>, Failure>;
    unsafe fn is_captured(&self, stream: Handle) -> Result<bool, Failure>;
    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<(), Failure>;
    unsafe fn destroy_graph(&self, graph: Handle);
}

/// A vendor's driver.
pub(super) fn driver_of(vendor: Vendor) -> Result<&'static dyn Driver, Failure> {
    match vendor {
        #[cfg(feature = "cuda")]
        Vendor::Nvidia => cuda::driver(),
        #[cfg(feature = "hip")]
        Vendor::Amd => hip::driver(),
        #[allow(unreachable_patterns)] // where both are there
        _ => Err(Failure::NoDriver),
    }
}

/// An image of a text, by a vendor's compiler, for a target of that vendor's.
pub(super) fn compile(
    vendor: Vendor,
    text: &CStr,
    target: &str,
    options: &[String],
) -> Result<Vec<u8>, Failure> {
    match vendor {
        #[cfg(feature = "cuda")]
        Vendor::Nvidia => cuda::compile(text, target, options),
        #[cfg(feature = "hip")]
        Vendor::Amd => hip::compile(text, options),
        #[allow(unreachable_patterns)] // where both are there
        _ => Err(Failure::NoCompiler(vendor)),
    }
}

/// Refuses kernels that work in more shared memory than there is.
fn fits(needed: usize, most: usize) -> Result<(), Failure> {
    if needed > most { Err(Failure::SharedMemory { needed, most }) } else { Ok(()) }
}

/// A GPU, with a context and a stream. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: &'static dyn Driver,
    vendor: Vendor,
    gpu: Gpu,
    stream: Handle,
}

// SAFETY: contexts and streams of the drivers' may be used from any thread; every method enters the GPU first.
unsafe impl Send for Inner {}
// SAFETY: as above; drivers serialise calls on a stream.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let entered = self.driver.enter(&self.gpu).is_ok();
        // SAFETY: made in `Device::of`, and nothing that uses them is left: all of it holds the `Arc`.
        unsafe {
            if entered {
                self.driver.destroy_stream(self.stream);
            }
            self.driver.close(&self.gpu);
        }
    }
}

impl Device {
    /// The GPU of that number, from 0: NVIDIA's are counted first, then AMD's, of those that this is built for.
    ///
    /// # Errors
    /// [`Failure::NoDriver`], [`Failure::NoGpu`], [`Failure::OldGpu`], [`Failure::Architecture`], [`Failure::OldDriver`],
    /// [`Failure::Driver`].
    pub fn new(ordinal: usize) -> Result<Self, Failure> {
        let (mut before, mut failure) = (0, Failure::NoDriver);
        for vendor in Vendor::ALL {
            match Self::of(*vendor, ordinal - before) {
                Err(Failure::NoDriver) => {}
                Err(Failure::NoGpu { count, .. }) => {
                    before += count;
                    failure = Failure::NoGpu { ordinal, count: before };
                }
                done => return done,
            }
        }
        Err(failure)
    }

    /// The GPU of that number among a vendor's.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Failure::NoDriver`] for a vendor that this is not built for.
    pub fn of(vendor: Vendor, ordinal: usize) -> Result<Self, Failure> {
        let driver = driver_of(vendor)?;
        let count = driver.count()?;
        if ordinal >= count {
            return Err(Failure::NoGpu { ordinal, count });
        }
        let before = driver.current()?;
        let gpu = driver.open(ordinal)?;
        let stream = driver.stream();
        if !before.is_null() {
            // SAFETY: the driver said so on this thread. Who uses another GPU here goes on with it.
            let _ = unsafe { driver.restore(before) };
        }
        match stream {
            Ok(stream) => Ok(Self(Arc::new(Inner { driver, vendor, gpu, stream }))),
            Err(failure) => {
                // SAFETY: opened above, and used by nobody.
                unsafe { driver.close(&gpu) };
                Err(failure)
            }
        }
    }

    /// Who makes it.
    #[must_use]
    pub fn vendor(&self) -> Vendor {
        self.0.vendor
    }

    /// The GPU's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.gpu.name
    }

    /// What kernels are compiled for: `sm_90` for NVIDIA's Hopper, `gfx90a:sramecc+:xnack-` for AMD's MI200.
    #[must_use]
    pub fn architecture(&self) -> &str {
        &self.0.gpu.architecture
    }

    /// Its multiprocessors, or compute units.
    #[must_use]
    pub fn multiprocessors(&self) -> usize {
        self.0.gpu.multiprocessors
    }

    /// Refuses kernels that work in more.
    pub(super) fn has_shared(&self, needed: usize) -> Result<(), Failure> {
        fits(needed, self.0.gpu.shared_memory)
    }

    /// Whether both are the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The driver, for calls on this thread.
    fn enter(&self) -> Result<&'static dyn Driver, Failure> {
        self.0.driver.enter(&self.0.gpu)?;
        Ok(self.0.driver)
    }

    /// Kernels from a compiled image: a cubin, or PTX that ends in a zero, or a code object of AMD's.
    ///
    /// # Safety
    /// The image is one that the driver or the run-time compiler made.
    pub(super) unsafe fn load(&self, image: &[u8], names: &[&'static CStr]) -> Result<Kernels, Failure> {
        let driver = self.enter()?;
        // SAFETY: images say themselves how long they are, and this one is whole, says the caller.
        let module = unsafe { driver.load(image) }?;
        let mut kernels =
            Kernels { device: self.clone(), module, functions: Vec::new(), shared: vec![0; names.len()] };
        for name in names {
            // SAFETY: the module was made above.
            kernels.functions.push(unsafe { driver.function(module, name) }?);
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
        let driver = self.enter()?;
        let stream = driver.stream()?;
        // SAFETY: the stream was made above, and is used by nobody else.
        let done = unsafe { driver.begin_capture(stream) }.and_then(|()| work(Stream(stream)));
        // SAFETY: as above; where the capture was not begun, its end is refused.
        let captured = unsafe {
            let captured = driver.end_capture(stream, done.is_ok());
            driver.destroy_stream(stream);
            captured
        };
        done?;
        match captured? {
            Some(graph) => Ok(Graph { device: self.clone(), graph }),
            None => unreachable!("asked for"),
        }
    }
}

/// A stream of the caller's, of the GPU's primary context: the streams of CUDA's runtime and of HIP's, and so PyTorch's, are.
#[derive(Clone, Copy, Debug)]
pub struct CallerStream(usize);

impl CallerStream {
    /// The stream of that handle: a `CUstream`, `cudaStream_t` or `hipStream_t` as a number, 0 the legacy default one, 2 the default one
    /// of each thread.
    ///
    /// # Safety
    /// It is such a stream, of the GPU that it is used with, and is neither destroyed nor asked for anything else while a call has
    /// it. Work of a layer that was captured from it into a graph uses the layer's memory and kernels: it is launched only while the layer
    /// lives and has not been asked for another `reserve`, and not beside other work of that layer.
    #[must_use]
    pub const unsafe fn new(handle: usize) -> Self {
        Self(handle)
    }

    fn handle(self) -> Handle {
        core::ptr::without_provenance_mut(self.0)
    }

    /// Whether what it is asked goes into a graph.
    ///
    /// # Errors
    /// [`Failure::Driver`]; so it is for the legacy default stream while one that waits for it is captured.
    pub(super) fn is_captured(self, device: &Device) -> Result<bool, Failure> {
        // SAFETY: it is a stream, says who made this.
        unsafe { device.enter()?.is_captured(self.handle()) }
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
    event: Handle,
}

// SAFETY: handles of a driver's, as those of `Inner`.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(device: &Device) -> Result<Self, Failure> {
        let event = device.enter()?.event(false)?;
        Ok(Self { device: device.clone(), event })
    }

    fn order(&self, first: Handle, then: Handle) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        // SAFETY: the event was made in `new`; one stream is the device's, the other is one, says who made the `CallerStream`.
        unsafe {
            driver.record(self.event, first)?;
            driver.wait(then, self.event)
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
        if let Ok(driver) = self.device.enter() {
            // SAFETY: made in `new`.
            unsafe { driver.destroy_event(self.event) };
        }
    }
}

/// A stream of a device's.
#[derive(Clone, Copy)]
pub(super) struct Stream(Handle);

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

/// Memory of the GPU, zeros at first.
#[derive(Debug)]
pub(super) struct Buffer<T> {
    device: Device,
    address: u64,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// Room for `len` values, at least one.
    pub(super) fn new(device: &Device, len: usize) -> Result<Self, Failure> {
        let driver = device.enter()?;
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Failure::Memory { bytes: usize::MAX })?.max(16);
        let address = driver.allocate(bytes)?;
        let buffer = Self { device: device.clone(), address, len, values: PhantomData };
        // SAFETY: so many bytes were allocated above.
        unsafe { driver.zero(address, bytes, device.0.stream) }?;
        Ok(buffer)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Its address on the GPU.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    fn at(&self, from: usize, count: usize) -> u64 {
        assert!(from <= self.len && count <= self.len - from, "{from} + {count} of {} values", self.len);
        self.address + (from * size_of::<T>()) as u64
    }

    /// Copies values to the GPU, from place `from` on.
    pub(super) fn write(&self, from: usize, values: &[T]) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        let at = self.at(from, values.len());
        // SAFETY: the range is inside the allocation, the values are plain: bytes; what is pageable has been copied, or is
        // staged, when the call returns, and it is waited for below.
        unsafe {
            let bytes = core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values));
            driver.write(at, bytes, self.device.0.stream)?;
        }
        self.device.synchronize()
    }

    /// Copies values from another place of the GPU's memory, which is not overlapped.
    pub(super) fn copy(&self, to: usize, from: &Self, at: usize, count: usize) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        let (to, from) = (self.at(to, count), from.at(at, count));
        // SAFETY: both ranges are inside their allocations.
        unsafe { driver.copy(to, from, count * size_of::<T>(), self.device.0.stream) }
    }

    /// Copies values from the GPU when all before is done.
    pub(super) fn read(&self, from: usize, values: &mut [T]) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        let at = self.at(from, values.len());
        // SAFETY: the range is inside the allocation, any bytes are values, and the copy is waited for.
        unsafe {
            let bytes = core::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values));
            driver.read(bytes, at, self.device.0.stream)?;
        }
        self.device.synchronize()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: allocated in `new`; freeing waits for what still uses it.
            unsafe { driver.free(self.address) };
        }
    }
}

/// A loaded image and its kernels.
#[derive(Debug)]
pub(super) struct Kernels {
    device: Device,
    module: Handle,
    functions: Vec<Handle>,
    /// Bytes of shared memory that each is given beside its own.
    shared: Vec<u32>,
}

// SAFETY: handles of a driver's, as those of `Inner`.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: loaded in `Device::load`; kernels that run on the device's stream are waited for, and on a caller's none runs any
            // more, says who made a `CallerStream`.
            unsafe {
                let _ = driver.synchronize(self.device.0.stream);
                driver.unload(self.module);
            }
        }
    }
}

impl Kernels {
    /// Gives kernel `number` so many bytes of shared memory beside its own from now on.
    pub(super) fn share(&mut self, number: usize, bytes: usize) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        // SAFETY: the function is of this module.
        let needed = bytes + unsafe { driver.own_shared(self.functions[number]) }?;
        self.device.has_shared(needed)?;
        // SAFETY: as above.
        unsafe { driver.share(self.functions[number], bytes) }?;
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
        let driver = self.device.enter()?;
        let launch = Launch {
            function: self.functions[number],
            // More than there can be: the driver refuses it.
            grid: grid.map(|size| u32::try_from(size).unwrap_or(u32::MAX)),
            threads: threads as u32,
            shared: self.shared[number],
            early,
        };
        // SAFETY: the function is of this module, and one parameter is what it takes, says the caller.
        unsafe { driver.launch(stream.0, &launch, core::ptr::from_ref(parameters).cast_mut().cast()) }
    }
}

/// What was captured, to be done again and again.
#[derive(Debug)]
pub(super) struct Graph {
    device: Device,
    graph: Handle,
}

// SAFETY: handles of a driver's, as those of `Inner`.
unsafe impl Send for Graph {}
// SAFETY: as above; launching takes `&self`, and drivers order launches on the stream.
unsafe impl Sync for Graph {}

impl Graph {
    /// Asks for all of it.
    ///
    /// # Safety
    /// What its kernels use is still there.
    pub(super) unsafe fn launch(&self) -> Result<(), Failure> {
        // SAFETY: made in `capture`; its kernels' memory is the caller's affair.
        unsafe { self.device.enter()?.launch_graph(self.graph, self.device.0.stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: made in `capture`.
            unsafe { driver.destroy_graph(self.graph) };
        }
    }
}

/// Microseconds of each of `times` runs of what `work` asks for, as the GPU's clock has them.
pub(super) fn time(
    device: &Device,
    times: usize,
    work: impl Fn() -> Result<(), Failure>,
) -> Result<Vec<f32>, Failure> {
    let driver = device.enter()?;
    let (start, end) = (driver.event(true)?, driver.event(true)?);
    let mut microseconds = vec![0.0; times];
    let run = |microseconds: &mut f32| {
        // SAFETY: events and stream are alive.
        unsafe { driver.record(start, device.0.stream) }?;
        work()?;
        // SAFETY: as above.
        unsafe {
            driver.record(end, device.0.stream)?;
            *microseconds = 1000.0 * driver.elapsed(start, end)?;
        }
        Ok(())
    };
    let done = microseconds.iter_mut().try_for_each(run);
    // SAFETY: created above.
    unsafe {
        driver.destroy_event(start);
        driver.destroy_event(end);
    }
    done.map(|()| microseconds)
}

#[cfg(test)]
mod tests;
