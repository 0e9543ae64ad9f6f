//! Which instructions: what `--backend` takes, and this CPU's name.

use octaplex::Backend;
use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// For arguments.
pub(crate) fn parse(name: &str) -> Result<Backend, String> {
    let names = || Backend::available().map(Backend::name).collect::<Vec<_>>().join(", ");
    Backend::named(name).ok_or_else(|| format!("this CPU has {}", names()))
}

/// The kernels behind a backend: for a baseline, which no codec has anything to do with.
pub(crate) fn kernels(backend: Backend) -> octaplex_arch::Backend {
    octaplex_arch::Backend::named(backend.name()).unwrap_or(octaplex_arch::Backend::SCALAR)
}

/// The CPU, in its vendor's words: what times were measured on.
pub(crate) fn cpu() -> String {
    let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
    let name = system.cpus().first().map_or("", |cpu| cpu.brand()).trim();
    if name.is_empty() { format!("an unnamed {} CPU", std::env::consts::ARCH) } else { name.to_owned() }
}
