//! `--device`: the device that runs codecs or attention.

use crate::failure::{Result, fail};

/// The device that runs codecs or attention.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Device {
    Cpu,
    /// The first NVIDIA GPU; needs a build with the feature cuda
    Cuda,
    /// The first AMD GPU, which this has never run on; needs a build with the feature hip
    Hip,
}

impl Device {
    /// Fails if the device is absent, before work that would be in vain.
    pub(crate) fn check(self) -> Result<()> {
        #[cfg(feature = "gpu")]
        if self != Self::Cpu {
            return self.gpu().map(drop);
        }
        self.built()
    }

    /// Fails if this build lacks the device's feature.
    fn built(self) -> Result<()> {
        let built = match self {
            Self::Cpu => true,
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Hip => cfg!(feature = "hip"),
        };
        if !built {
            let name = self.name();
            fail!(
                "--device {name}: this build has no feature {name}: cargo install --path cli --features {name}"
            );
        }
        Ok(())
    }

    /// Opens the vendor's first GPU.
    #[cfg(feature = "gpu")]
    pub(crate) fn gpu(self) -> Result<octaplex::gpu::Device> {
        use octaplex::gpu::{Device, Vendor};
        self.built()?;
        let vendor = if self == Self::Hip { Vendor::Amd } else { Vendor::Nvidia };
        crate::failure::At::at(Device::of(vendor, 0), format_args!("--device {}", self.name()))
    }

    /// Returns the name of the device in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Hip => "hip",
        }
    }
}
