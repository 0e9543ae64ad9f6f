//! Memory for a caller's own use.

use super::{Address, Buffer, Device, Failure};

/// Memory on a GPU for a caller's own use.
#[derive(Debug)]
pub struct Scratch(Buffer<u8>);

impl Scratch {
    /// Allocates zeros.
    ///
    /// # Errors
    /// [`Failure::Memory`].
    pub fn new(device: &Device, bytes: usize) -> Result<Self, Failure> {
        Ok(Self(Buffer::new(device, bytes)?))
    }

    /// Returns the address of byte `at`, for as many bytes as follow it while this value lives.
    ///
    /// # Panics
    /// Panics for a byte beyond the last.
    #[must_use]
    pub fn address(&self, at: usize) -> Address {
        assert!(at <= self.0.len());
        Address(self.0.address() + at as u64)
    }

    /// Returns the address as a number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.address()
    }

    /// Sets all bytes to zeros.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn zero(&self) -> Result<(), Failure> {
        self.0.zero()
    }

    /// Copies bytes from the host, and waits.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Panics
    /// Panics for bytes beyond the last.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write(at, bytes)
    }

    /// Copies bytes to the host, after all earlier work.
    ///
    /// # Errors
    /// Errors of the driver, also of earlier kernels.
    ///
    /// # Panics
    /// Panics for bytes beyond the last.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        self.0.read(at, bytes)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}
