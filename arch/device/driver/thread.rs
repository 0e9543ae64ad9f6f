//! The calling thread and a device: which GPU is the thread's current one, and waiting.

use super::{Device, Failure};

impl Device {
    /// Runs `work`, then makes the calling thread's current GPU what it was before. Calls of this library change it, and
    /// other libraries in the process, such as PyTorch, go by it.
    ///
    /// # Errors
    /// [`Failure::Driver`], where the driver does not say which GPU is current. `work` has not run then.
    pub fn keep_current<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        let driver = self.0.driver;
        let current = driver.current()?;
        let done = work();
        // SAFETY: the driver said so on this thread. A context that was destroyed meanwhile is refused, and stays left.
        let _ = unsafe { driver.restore(current) };
        Ok(done)
    }

    /// Waits until everything asked for is done.
    ///
    /// # Errors
    /// [`Failure::Driver`], where something of it failed.
    pub fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.enter()?.synchronize(self.0.stream) }
    }
}
