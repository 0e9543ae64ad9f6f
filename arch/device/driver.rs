//! The driver: a GPU, its memory, kernels and graphs. Each device has one stream, which orders all work.
//!
//! Code here is common to all vendors. Each vendor has a file that implements [`Driver`].

// One vendor's driver needs calls that another's does not.
#![cfg_attr(not(all(feature = "cuda", feature = "hip")), allow(dead_code, unused_variables))]

#[cfg(feature = "cuda")]
mod cuda;
mod graph;
#[cfg(feature = "hip")]
mod hip;
mod order;
mod thread;

pub(crate) use graph::Graph;
pub use graph::Recording;
pub use order::CallerStream;
pub(super) use order::Event;

use super::failure::{Failure, Vendor};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::fmt;
use core::marker::PhantomData;

/// A driver's handle of a stream, a kernel, an event and so on.
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

/// A launch of a kernel.
pub(super) struct Launch {
    function: Handle,
    grid: [u32; 3],
    threads: u32,
    /// Bytes of shared memory in addition to the kernel's own.
    shared: u32,
    /// The kernel may start before the previous one ends, and waits for it itself. Drivers without this
    /// ignore it.
    early: bool,
}

/// A vendor's driver. Each method is one or two of its calls.
///
/// # Safety
/// For all unsafe methods: handles belong to this driver and to the GPU last [entered](Self::enter) on this
/// thread. They are alive, and destroyed once. Memory at an address has at least the given bytes: on the
/// GPU, and on the host until the stream has finished the call.
pub(super) trait Driver: fmt::Debug + Send + Sync {
    /// Returns the number of GPUs.
    fn count(&self) -> Result<usize, Failure>;
    /// Opens and enters a GPU. `number` is below `count`.
    fn open(&self, number: usize) -> Result<Gpu, Failure>;
    unsafe fn close(&self, gpu: &Gpu);
    /// Selects the GPU for this thread's calls.
    fn enter(&self, gpu: &Gpu) -> Result<(), Failure>;
    /// Returns which GPU this thread's calls use: a handle, or a number as a handle.
    fn current(&self) -> Result<Handle, Failure>;
    /// Selects it again. [`current`](Self::current) returned it on this thread.
    unsafe fn restore(&self, current: Handle) -> Result<(), Failure>;

    /// Creates a stream that does not wait for the default stream.
    fn stream(&self) -> Result<Handle, Failure>;
    unsafe fn destroy_stream(&self, stream: Handle);
    unsafe fn synchronize(&self, stream: Handle) -> Result<(), Failure>;

    unsafe fn load(&self, image: &[u8]) -> Result<Handle, Failure>;
    unsafe fn unload(&self, module: Handle);
    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle, Failure>;
    /// Returns the bytes of a kernel's own shared memory.
    unsafe fn own_shared(&self, function: Handle) -> Result<usize, Failure>;
    /// Allows launches with `bytes` of shared memory in addition.
    unsafe fn share(&self, function: Handle, bytes: usize) -> Result<(), Failure>;
    /// Launches a kernel. The driver copies `parameter`, the kernel's only one.
    unsafe fn launch(&self, stream: Handle, launch: &Launch, parameter: Handle) -> Result<(), Failure>;

    fn allocate(&self, bytes: usize) -> Result<u64, Failure>;
    /// Frees memory after all work that uses it.
    unsafe fn free(&self, address: u64);
    unsafe fn zero(&self, address: u64, bytes: usize, stream: Handle) -> Result<(), Failure>;
    unsafe fn write(&self, to: u64, from: &[u8], stream: Handle) -> Result<(), Failure>;
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<(), Failure>;
    unsafe fn read(&self, to: &mut [u8], from: u64, stream: Handle) -> Result<(), Failure>;

    fn event(&self, timed: bool) -> Result<Handle, Failure>;
    unsafe fn destroy_event(&self, event: Handle);
    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<(), Failure>;
    unsafe fn wait(&self, stream: Handle, event: Handle) -> Result<(), Failure>;
    /// Waits for `end` and returns the milliseconds between both events.
    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<f32, Failure>;

    /// `relaxed`: other calls of this thread, such as allocations, stay possible.
    unsafe fn begin_capture(&self, stream: Handle, relaxed: bool) -> Result<(), Failure>;
    /// Ends a capture and returns a graph that can be launched; `None` if it is not wanted.
    unsafe fn end_capture(&self, stream: Handle, wanted: bool) -> Result<Option<Handle>, Failure>;
    unsafe fn is_captured(&self, stream: Handle) -> Result<bool, Failure>;
    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<(), Failure>;
    unsafe fn destroy_graph(&self, graph: Handle);
}

/// Returns a vendor's driver.
pub(super) fn driver_of(vendor: Vendor) -> Result<&'static dyn Driver, Failure> {
    match vendor {
        #[cfg(feature = "cuda")]
        Vendor::Nvidia => cuda::driver(),
        #[cfg(feature = "hip")]
        Vendor::Amd => hip::driver(),
        #[allow(unreachable_patterns)] // if both features are on
        _ => Err(Failure::NoDriver),
    }
}

/// Compiles a source with a vendor's compiler, for a target of that vendor.
pub(super) fn compile(
    vendor: Vendor,
    source: &CStr,
    target: &str,
    options: &[String],
) -> Result<Vec<u8>, Failure> {
    match vendor {
        #[cfg(feature = "cuda")]
        Vendor::Nvidia => cuda::compile(source, target, options),
        #[cfg(feature = "hip")]
        Vendor::Amd => hip::compile(source, options),
        #[allow(unreachable_patterns)] // if both features are on
        _ => Err(Failure::NoCompiler(vendor)),
    }
}

/// Returns the version of a vendor's compiler, or 0 without one, and for AMD's: its code objects say what they need.
pub(super) fn compiler_version(vendor: Vendor) -> u64 {
    match vendor {
        #[cfg(feature = "cuda")]
        Vendor::Nvidia => cuda::compiler_version(),
        #[allow(unreachable_patterns)] // without the feature
        _ => 0,
    }
}

/// Checks that the GPU has the shared memory that kernels need, in bytes.
fn fits(needed: usize, most: usize) -> Result<(), Failure> {
    if needed > most { Err(Failure::SharedMemory { needed, most }) } else { Ok(()) }
}

/// A GPU with a context and a stream. Clones share them.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: &'static dyn Driver,
    vendor: Vendor,
    gpu: Gpu,
    stream: Handle,
}

// SAFETY: any thread may use contexts and streams of the drivers; every method enters the GPU first.
unsafe impl Send for Inner {}
// SAFETY: as above; drivers serialise calls on a stream.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let entered = self.driver.enter(&self.gpu).is_ok();
        // SAFETY: created in `Device::of`. All users hold the `Arc`, so none is left.
        unsafe {
            if entered {
                self.driver.destroy_stream(self.stream);
            }
            self.driver.close(&self.gpu);
        }
    }
}

impl Device {
    /// Opens GPU number `ordinal`, from 0. NVIDIA GPUs are counted first, then AMD GPUs, as far as this
    /// build supports them.
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

    /// Opens GPU number `ordinal` of a vendor, from 0.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new); [`Failure::NoDriver`] for a vendor that this build does not
    /// support.
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
            // SAFETY: the driver returned it on this thread. So other users of a GPU on this thread keep
            // theirs.
            let _ = unsafe { driver.restore(before) };
        }
        match stream {
            Ok(stream) => Ok(Self(Arc::new(Inner { driver, vendor, gpu, stream }))),
            Err(failure) => {
                // SAFETY: opened above, and nobody uses it.
                unsafe { driver.close(&gpu) };
                Err(failure)
            }
        }
    }

    /// Returns the vendor.
    #[must_use]
    pub fn vendor(&self) -> Vendor {
        self.0.vendor
    }

    /// Returns the GPU's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.gpu.name
    }

    /// Returns the target of the kernels: `sm_90` for NVIDIA's Hopper, `gfx90a:sramecc+:xnack-` for AMD's
    /// MI200.
    #[must_use]
    pub fn architecture(&self) -> &str {
        &self.0.gpu.architecture
    }

    /// Returns the number of multiprocessors, or of compute units.
    #[must_use]
    pub fn multiprocessors(&self) -> usize {
        self.0.gpu.multiprocessors
    }

    /// Checks that the GPU has the shared memory that kernels need, in bytes.
    pub(super) fn has_shared(&self, needed: usize) -> Result<(), Failure> {
        fits(needed, self.0.gpu.shared_memory)
    }

    /// Returns whether both are the same device.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Enters the GPU on this thread and returns the driver.
    fn enter(&self) -> Result<&'static dyn Driver, Failure> {
        self.0.driver.enter(&self.0.gpu)?;
        Ok(self.0.driver)
    }

    /// Loads kernels from an image: a cubin, PTX that ends in a zero, or AMD's code object.
    ///
    /// # Safety
    /// The driver or the run-time compiler made the image.
    pub(super) unsafe fn load(&self, image: &[u8], names: &[&'static CStr]) -> Result<Kernels, Failure> {
        let driver = self.enter()?;
        // SAFETY: an image contains its own length, and the caller promises that it is whole.
        let module = unsafe { driver.load(image) }?;
        let mut kernels =
            Kernels { device: self.clone(), module, functions: Vec::new(), shared: vec![0; names.len()] };
        for name in names {
            // SAFETY: the module was loaded above.
            kernels.functions.push(unsafe { driver.function(module, name) }?);
        }
        Ok(kernels)
    }

    /// Copies bytes from the GPU, after all earlier work, and waits.
    ///
    /// # Safety
    /// The GPU has these bytes at this address.
    pub(super) unsafe fn read_at(&self, from: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        // SAFETY: the caller's.
        unsafe { self.enter()?.read(bytes, from, self.0.stream) }?;
        self.synchronize()
    }

    /// Copies bytes to the GPU, after all earlier work, and waits.
    ///
    /// # Safety
    /// As [`read_at`](Self::read_at).
    pub(super) unsafe fn write_at(&self, to: u64, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: the caller's.
        unsafe { self.enter()?.write(to, bytes, self.0.stream) }?;
        self.synchronize()
    }

    /// Records another owner's event behind all work so far.
    ///
    /// # Safety
    /// The handle is an event of this GPU's primary context: a `CUevent`, `cudaEvent_t` or `hipEvent_t`.
    ///
    /// # Errors
    /// [`Failure::Driver`].
    pub unsafe fn record(&self, event: usize) -> Result<(), Failure> {
        // SAFETY: the caller's.
        unsafe { self.enter()?.record(event as Handle, self.0.stream) }
    }

    /// Orders all later work behind another owner's event.
    ///
    /// # Safety
    /// As [`record`](Self::record).
    ///
    /// # Errors
    /// [`Failure::Driver`].
    pub unsafe fn wait_for(&self, event: usize) -> Result<(), Failure> {
        // SAFETY: the caller's.
        unsafe { self.enter()?.wait(self.0.stream, event as Handle) }
    }

    /// Records work on the device's stream, instead of running it, until [`end_recording`](Self::end_recording). Work on
    /// other streams that events order after it is recorded too.
    ///
    /// # Errors
    /// [`Failure::Driver`].
    pub fn begin_recording(&self) -> Result<(), Failure> {
        // SAFETY: the stream is the device's.
        unsafe { self.enter()?.begin_capture(self.0.stream, true) }
    }

    /// Ends a recording, and returns it. Events must have ordered the device's stream after all other streams of it.
    ///
    /// # Errors
    /// [`Failure::Driver`], also if the recorded work cannot be repeated.
    pub fn end_recording(&self) -> Result<Recording, Failure> {
        // SAFETY: the stream is the device's.
        match unsafe { self.enter()?.end_capture(self.0.stream, true) }? {
            Some(graph) => Ok(Recording(Graph { device: self.clone(), graph })),
            None => unreachable!("asked for"),
        }
    }

    /// Returns the stream that orders all work.
    pub(super) fn stream(&self) -> Stream {
        Stream(self.0.stream)
    }

    /// Records the calls of `work` as a graph instead of running them. `work` takes a stream of its own, so
    /// other threads can use the device's stream.
    pub(super) fn capture(&self, work: impl FnOnce(Stream) -> Result<(), Failure>) -> Result<Graph, Failure> {
        let driver = self.enter()?;
        let stream = driver.stream()?;
        // SAFETY: created above; nobody else uses the stream.
        let done = unsafe { driver.begin_capture(stream, false) }.and_then(|()| work(Stream(stream)));
        // SAFETY: as above. If the capture did not begin, the driver rejects its end.
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

/// A stream of the device, or of a caller.
#[derive(Clone, Copy)]
pub(super) struct Stream(Handle);

/// Plain numbers: any bytes are valid values, and values are bytes.
///
/// # Safety
/// The type has no padding, no pointers and no invalid bit patterns.
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

/// Memory of the GPU, zeroed at first.
#[derive(Debug)]
pub(super) struct Buffer<T> {
    device: Device,
    address: u64,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// Allocates `len` values, at least 16 bytes.
    pub(super) fn new(device: &Device, len: usize) -> Result<Self, Failure> {
        let driver = device.enter()?;
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Failure::Memory { bytes: usize::MAX })?.max(16);
        let address = driver.allocate(bytes)?;
        let buffer = Self { device: device.clone(), address, len, values: PhantomData };
        // SAFETY: the bytes were allocated above.
        unsafe { driver.zero(address, bytes, device.0.stream) }?;
        Ok(buffer)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sets all values to zeros.
    pub(super) fn zero(&self) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        // SAFETY: the bytes were allocated in `new`.
        unsafe { driver.zero(self.address, self.len * size_of::<T>(), self.device.0.stream) }
    }

    /// Returns the address on the GPU.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    fn at(&self, from: usize, count: usize) -> u64 {
        assert!(from <= self.len && count <= self.len - from, "{from} + {count} of {} values", self.len);
        self.address + (from * size_of::<T>()) as u64
    }

    /// Copies values to the GPU, to index `from` on.
    pub(super) fn write(&self, from: usize, values: &[T]) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        let at = self.at(from, values.len());
        // SAFETY: the range is inside the allocation, and plain values are bytes. The driver copies or
        // stages pageable memory; the call waits for it.
        unsafe {
            let bytes = core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values));
            driver.write(at, bytes, self.device.0.stream)?;
        }
        self.device.synchronize()
    }

    /// Copies values from another place in the GPU's memory that does not overlap.
    pub(super) fn copy(&self, to: usize, from: &Self, at: usize, count: usize) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        let (to, from) = (self.at(to, count), from.at(at, count));
        // SAFETY: both ranges are inside their allocations.
        unsafe { driver.copy(to, from, count * size_of::<T>(), self.device.0.stream) }
    }

    /// Copies values from the GPU, after all earlier work.
    pub(super) fn read(&self, from: usize, values: &mut [T]) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        let at = self.at(from, values.len());
        // SAFETY: the range is inside the allocation, any bytes are values, and the call waits for the
        // copy.
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
            // SAFETY: allocated in `new`; freeing waits for work that uses it.
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
    /// Bytes of shared memory of each kernel, in addition to its own.
    shared: Vec<u32>,
}

// SAFETY: a driver's handles, as those of `Inner`.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: loaded in `Device::load`. Kernels on the device's stream end first; by the promise of
            // `CallerStream::new` none runs on a caller's stream.
            unsafe {
                let _ = driver.synchronize(self.device.0.stream);
                driver.unload(self.module);
            }
        }
    }
}

impl Kernels {
    /// Gives kernel `number` additional shared memory, in bytes, for all later launches.
    pub(super) fn share(&mut self, number: usize, bytes: usize) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        // SAFETY: the function belongs to this module.
        let needed = bytes + unsafe { driver.own_shared(self.functions[number]) }?;
        self.device.has_shared(needed)?;
        // SAFETY: as above.
        unsafe { driver.share(self.functions[number], bytes) }?;
        self.shared[number] = bytes as u32;
        Ok(())
    }

    /// Launches kernel `number` on a stream. With `early` it may start before the previous kernel ends, and
    /// waits for it itself.
    ///
    /// # Safety
    /// `parameters` is the kernel's parameter. Its pointers lead to memory that the kernel may use as it
    /// does, and that lives until the kernel ends.
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
            // A size beyond 32 bits becomes one that the driver rejects.
            grid: grid.map(|size| u32::try_from(size).unwrap_or(u32::MAX)),
            threads: threads as u32,
            shared: self.shared[number],
            early,
        };
        // SAFETY: the function belongs to this module, and the caller promises that the parameter fits.
        unsafe { driver.launch(stream.0, &launch, core::ptr::from_ref(parameters).cast_mut().cast()) }
    }
}

/// Measures `times` runs of `work`, in microseconds of the GPU's clock.
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
