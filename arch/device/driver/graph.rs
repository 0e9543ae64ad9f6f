//! Graphs: work that is captured once, and then launched as a whole.

use super::{Device, Failure, Handle};

/// Recorded work of a device's stream, and of other streams.
#[derive(Debug)]
pub struct Recording(pub(super) Graph);

impl Recording {
    /// Runs the work on the device's stream.
    ///
    /// # Safety
    /// All memory that the work uses is there, and used by nobody else, until the stream has run it.
    ///
    /// # Errors
    /// [`Failure::Driver`].
    pub unsafe fn run(&self) -> Result<(), Failure> {
        // SAFETY: the caller's.
        unsafe { self.0.launch() }
    }
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(super) device: Device,
    pub(super) graph: Handle,
}

// SAFETY: a driver's handles, as those of `Inner`.
unsafe impl Send for Graph {}
// SAFETY: as above; launching takes `&self`, and drivers order launches on the stream.
unsafe impl Sync for Graph {}

impl Graph {
    /// Launches the graph.
    ///
    /// # Safety
    /// The memory that its kernels use is alive.
    pub(crate) unsafe fn launch(&self) -> Result<(), Failure> {
        // SAFETY: created in `capture`; the caller keeps the kernels' memory.
        unsafe { self.device.enter()?.launch_graph(self.graph, self.device.0.stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: created in `capture`.
            unsafe { driver.destroy_graph(self.graph) };
        }
    }
}
