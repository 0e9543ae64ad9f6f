//! Vendors of GPUs, and why a call on a GPU failed.

use alloc::string::String;
use core::fmt;

/// The vendor of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Vendor {
    /// NVIDIA: feature `cuda`.
    Nvidia,
    /// AMD: feature `hip`.
    Amd,
}

impl Vendor {
    /// The vendors that this build supports, in the order in which [`Device::new`](super::Device::new)
    /// counts GPUs.
    pub const ALL: &[Self] = &[
        #[cfg(feature = "cuda")]
        Self::Nvidia,
        #[cfg(feature = "hip")]
        Self::Amd,
    ];
}

/// The reason for which a call on a GPU failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No driver library of a supported vendor was found.
    NoDriver,
    /// The driver library is too old and lacks a call.
    OldDriver {
        /// The missing call.
        call: &'static str,
    },
    /// The library of the run-time compiler was not found, and the kernels are not in the cache.
    NoCompiler(Vendor),
    /// There is no GPU with this number.
    NoGpu {
        /// The requested number.
        ordinal: usize,
        /// The number of GPUs.
        count: usize,
    },
    /// The compute capability of an NVIDIA GPU is below 8.0.
    OldGpu {
        /// The compute capability: ten times the major number, plus the minor number.
        capability: u32,
    },
    /// The kernels do not support the architecture of this AMD GPU.
    Architecture {
        /// The architecture, as AMD names it.
        name: String,
    },
    /// The GPU does not have enough free memory.
    Memory {
        /// The requested bytes.
        bytes: usize,
    },
    /// Kernels need more shared memory than the GPU has for a block of threads.
    SharedMemory {
        /// Bytes that the kernels need.
        needed: usize,
        /// Bytes that the GPU has.
        most: usize,
    },
    /// The kernels do not compile. It contains the compiler's messages.
    Compile(String),
    /// The driver rejected a call, or a kernel failed. After a failed kernel the device is lost.
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's name for the error.
        name: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => {
                f.write_str("no GPU driver was found")?;
                // A GPU may be there: a build for one vendor may run with a GPU of another.
                for vendor in Vendor::ALL {
                    f.write_str(match vendor {
                        Vendor::Nvidia => "; for NVIDIA install the driver (libcuda.so or nvcuda.dll)",
                        Vendor::Amd => {
                            "; for AMD, on Linux, install HIP (libamdhip64.so of ROCm 6 or 7), and name ROCm's folder in \
                             ROCM_PATH if it is not /opt/rocm"
                        }
                    })?;
                }
                Ok(())
            }
            Self::OldDriver { call } => {
                let (whose, file) =
                    if call.starts_with("hiprtc") { ("hipRTC", "hiprtc") } else { ("HIP", "amdhip64") };
                write!(f, "{whose}'s library (lib{file}.so) lacks {call}: install ROCm 6.0 or newer")
            }
            Self::NoCompiler(Vendor::Nvidia) => f.write_str(
                "NVRTC was not found: install the run-time compiler's library (libnvrtc.so of CUDA 12 or 13), or name \
                 its folder in LD_LIBRARY_PATH",
            ),
            Self::NoCompiler(Vendor::Amd) => f.write_str(
                "hipRTC was not found: install the run-time compiler's library (libhiprtc.so of ROCm 6 or 7), or name \
                 ROCm's folder in ROCM_PATH",
            ),
            Self::NoGpu { count: 0, .. } => f.write_str("the driver finds no GPU"),
            Self::NoGpu { ordinal, count } => write!(f, "GPU {ordinal} is out of range (0..{count})"),
            Self::OldGpu { capability } => {
                let (major, minor) = (capability / 10, capability % 10);
                write!(f, "the GPU has compute capability {major}.{minor}; 8.0 or higher is needed")
            }
            Self::Architecture { name } => {
                write!(f, "the GPU's architecture is {name}; gfx900 or newer is needed, with waves of 32 or 64 lanes")
            }
            Self::Memory { bytes } => write!(f, "the GPU does not have {bytes} bytes of free memory"),
            Self::SharedMemory { needed, most } => write!(
                f,
                "the kernels of these codecs at this width need {needed} bytes of shared memory, and the GPU has {most} \
                 for a block of threads: choose codecs of fewer bits"
            ),
            Self::Compile(log) => write!(f, "the kernels do not compile: {log}"),
            Self::Driver { call, name } => write!(f, "{call}: {name}"),
        }
    }
}

impl core::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn each_failure_says_what_to_do_or_which_call_it_was() {
        let name = || String::from("a name");
        for (failure, words) in [
            (Failure::NoDriver, &["no GPU driver"][..]),
            (Failure::OldDriver { call: "hipNone" }, &["libamdhip64.so", "hipNone", "ROCm 6.0"]),
            (Failure::OldDriver { call: "hiprtcNone" }, &["libhiprtc.so", "hiprtcNone", "ROCm 6.0"]),
            (Failure::NoCompiler(Vendor::Nvidia), &["libnvrtc.so", "LD_LIBRARY_PATH"]),
            (Failure::NoCompiler(Vendor::Amd), &["libhiprtc.so", "ROCM_PATH"]),
            (Failure::NoGpu { ordinal: 0, count: 0 }, &["finds no GPU"]),
            (Failure::NoGpu { ordinal: 3, count: 2 }, &["GPU 3 is out of range", "0..2"]),
            (Failure::OldGpu { capability: 75 }, &["7.5", "8.0"]),
            (Failure::Architecture { name: name() }, &["a name", "gfx900"]),
            (Failure::Memory { bytes: 1234 }, &["1234 bytes"]),
            (Failure::SharedMemory { needed: 72_720, most: 65_536 }, &["72720", "65536", "fewer bits"]),
            (Failure::Compile(name()), &["do not compile", "a name"]),
            (Failure::Driver { call: "cuNone", name: name() }, &["cuNone: a name"]),
        ] {
            let text = failure.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{failure:?}: {text}");
        }
    }
}
