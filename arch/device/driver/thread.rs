//! The current GPU of the calling thread, and waiting.

use super::{Device, Failure};

impl Device {
    /// Runs `work`, then restores the calling thread's current GPU.
    ///
    /// Calls of this library change the current GPU. Other libraries in the process, such as PyTorch,
    /// depend on it.
    ///
    /// # Errors
    /// [`Failure::Driver`] if the driver does not return the current GPU. `work` then does not run.
    pub fn keep_current<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        let driver = self.0.driver;
        let current = driver.current()?;
        let done = work();
        // SAFETY: the driver returned it on this thread. The driver rejects a context that was destroyed
        // meanwhile; the thread then has none.
        let _ = unsafe { driver.restore(current) };
        Ok(done)
    }

    /// Waits until all work is done.
    ///
    /// # Errors
    /// [`Failure::Driver`] if any of it failed.
    pub fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.enter()?.synchronize(self.0.stream) }
    }
}
