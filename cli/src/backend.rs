//! The instruction set: values of `--backend`, and this CPU's name.

use octaplex::Backend;
use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// Parses the argument `--backend`.
pub(crate) fn parse(name: &str) -> Result<Backend, String> {
    let names = || Backend::available().map(Backend::name).collect::<Vec<_>>().join(", ");
    Backend::named(name).ok_or_else(|| format!("this CPU has {}", names()))
}

/// Returns the kernels of a backend. The f16 baseline calls them without a codec.
pub(crate) fn kernels(backend: Backend) -> octaplex_arch::Backend {
    octaplex_arch::Backend::named(backend.name()).unwrap_or(octaplex_arch::Backend::SCALAR)
}

/// Returns the name of the CPU, as its vendor writes it, for the head of measured times.
pub(crate) fn cpu() -> String {
    let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
    let name = system.cpus().first().map_or("", |cpu| cpu.brand()).trim();
    if name.is_empty() { format!("an unnamed {} CPU", std::env::consts::ARCH) } else { name.to_owned() }
}
