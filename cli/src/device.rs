//! `--device`: what codecs or attention run on.

use crate::failure::Result;

/// Where they run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Device {
    Cpu,
    /// The first NVIDIA card; needs a build with the feature cuda
    Cuda,
}

impl Device {
    /// Whether it is there: before work that would be in vain.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Cpu => Ok(()),
            #[cfg(feature = "cuda")]
            Self::Cuda => first_card().map(drop),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda => crate::failure::fail!(
                "--device cuda: this build has no feature cuda: cargo install octaplex-cli --features cuda"
            ),
        }
    }

    /// Its name in results.
    #[cfg(feature = "models")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

#[cfg(feature = "cuda")]
pub(crate) fn first_card() -> Result<octaplex::gpu::Device> {
    crate::failure::At::at(octaplex::gpu::Device::new(0), "--device cuda")
}
