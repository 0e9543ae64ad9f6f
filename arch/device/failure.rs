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

/// Why a call on a GPU failed.
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
                f.write_str("no driver of a GPU")?;
                // Not that none is there: who asked for one vendor's may have another's.
                for vendor in Vendor::ALL {
                    f.write_str(match vendor {
                        Vendor::Nvidia => "; NVIDIA's is a library, libcuda.so or nvcuda.dll",
                        Vendor::Amd => {
                            "; AMD's is HIP, libamdhip64.so of ROCm 6 or 7, on Linux, where libraries are looked for, in \
                             ROCM_PATH or in /opt/rocm"
                        }
                    })?;
                }
                Ok(())
            }
            Self::OldDriver { call } => {
                let (whose, file) =
                    if call.starts_with("hiprtc") { ("hipRTC", "hiprtc") } else { ("HIP", "amdhip64") };
                write!(f, "{whose}'s library (lib{file}.so) has no {call}: ROCm 6.0 is the least")
            }
            Self::NoCompiler(Vendor::Nvidia) => f.write_str(
                "no NVRTC: the run-time compiler's library (libnvrtc.so, of CUDA 12 or 13) is not where libraries are \
                 looked for; install it, or name its folder in LD_LIBRARY_PATH",
            ),
            Self::NoCompiler(Vendor::Amd) => f.write_str(
                "no hipRTC: the run-time compiler's library (libhiprtc.so, of ROCm 6 or 7) is not where libraries are \
                 looked for; install it, or name ROCm's folder in ROCM_PATH",
            ),
            Self::NoGpu { count: 0, .. } => f.write_str("the driver finds no GPU"),
            Self::NoGpu { ordinal, count } => write!(f, "no GPU {ordinal}: there are {count}, from 0"),
            Self::OldGpu { capability } => {
                let (major, minor) = (capability / 10, capability % 10);
                write!(f, "the GPU's compute capability is {major}.{minor}; 8.0 is the least")
            }
            Self::Architecture { name } => {
                write!(f, "the GPU is of {name}; gfx900 is the least, with waves of 32 or 64 lanes")
            }
            Self::Memory { bytes } => write!(f, "the GPU has not {bytes} bytes free"),
            Self::SharedMemory { needed, most } => write!(
                f,
                "kernels of these codecs and this width work in {needed} bytes of shared memory, and the GPU gives a block of \
                 threads {most}: take codecs of fewer bits"
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
            (Failure::NoDriver, &["no driver"][..]),
            (Failure::OldDriver { call: "hipNone" }, &["libamdhip64.so", "hipNone", "ROCm 6.0"]),
            (Failure::OldDriver { call: "hiprtcNone" }, &["libhiprtc.so", "hiprtcNone", "ROCm 6.0"]),
            (Failure::NoCompiler(Vendor::Nvidia), &["libnvrtc.so", "LD_LIBRARY_PATH"]),
            (Failure::NoCompiler(Vendor::Amd), &["libhiprtc.so", "ROCM_PATH"]),
            (Failure::NoGpu { ordinal: 0, count: 0 }, &["no GPU"]),
            (Failure::NoGpu { ordinal: 3, count: 2 }, &["no GPU 3", "2, from 0"]),
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
