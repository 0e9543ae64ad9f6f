//! Callers' streams, and events that order them with the device's stream.

use super::{Device, Failure, Handle, Stream};

/// A caller's stream in the GPU's primary context. CUDA's runtime, HIP and PyTorch use that context.
#[derive(Clone, Copy, Debug)]
pub struct CallerStream(usize);

impl CallerStream {
    /// Wraps a handle: a `CUstream`, `cudaStream_t` or `hipStream_t` as a number. 0 is the legacy default
    /// stream, 2 the default stream of each thread.
    ///
    /// # Safety
    /// It is such a stream of the GPU that it is used with. While a call uses it, nobody destroys it or
    /// adds other work.
    ///
    /// Work that was captured from it into a graph uses a layer's memory and kernels. Launch the graph only
    /// while the layer lives, before another `reserve`, and not at the same time as other work of the
    /// layer.
    #[must_use]
    pub const unsafe fn new(handle: usize) -> Self {
        Self(handle)
    }

    fn handle(self) -> Handle {
        core::ptr::without_provenance_mut(self.0)
    }

    /// Returns whether work on the stream goes into a graph.
    ///
    /// # Errors
    /// [`Failure::Driver`]; also for the legacy default stream, while a stream that waits for it is
    /// captured.
    pub(crate) fn is_captured(self, device: &Device) -> Result<bool, Failure> {
        // SAFETY: whoever created this promised that it is a stream.
        unsafe { device.enter()?.is_captured(self.handle()) }
    }

    /// Returns the stream for launches.
    pub(crate) fn stream(self) -> Stream {
        Stream(self.handle())
    }
}

/// Orders two streams.
#[derive(Debug)]
pub(crate) struct Event {
    device: Device,
    event: Handle,
}

// SAFETY: a driver's handle, as those of `Inner`.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(device: &Device) -> Result<Self, Failure> {
        let event = device.enter()?.event(false)?;
        Ok(Self { device: device.clone(), event })
    }

    fn order(&self, first: Handle, then: Handle) -> Result<(), Failure> {
        let driver = self.device.enter()?;
        // SAFETY: the event was created in `new`. One stream is the device's; the other is valid by the
        // promise of `CallerStream::new`.
        unsafe {
            driver.record(self.event, first)?;
            driver.wait(then, self.event)
        }
    }

    /// Orders later work of the device after all earlier work of the caller's stream.
    pub(crate) fn after(&self, caller: CallerStream) -> Result<(), Failure> {
        self.order(caller.handle(), self.device.0.stream)
    }

    /// Orders later work of the caller's stream after all earlier work of the device.
    pub(crate) fn before(&self, caller: CallerStream) -> Result<(), Failure> {
        self.order(self.device.0.stream, caller.handle())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: created in `new`.
            unsafe { driver.destroy_event(self.event) };
        }
    }
}
