//! The public choice of an instruction set. The kernels behind it stay private.

pub(crate) use octaplex_arch::Backend as Kernels;

/// Names the instruction set that a codec or a cache runs on. All backends are bit-exact; they differ in speed.
///
/// Only [`detect`](Self::detect), [`available`](Self::available) and [`named`](Self::named) create a backend, and they
/// check the CPU. So holding one proves that the CPU has the instructions.
///
/// ```
/// use octaplex::Backend;
/// let best = Backend::detect();
/// assert_eq!(Backend::named(best.name()), Some(best));
/// assert_eq!(Backend::available().last(), Some(Backend::SCALAR));
/// assert_eq!(Backend::named("sse9"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backend(Kernels);

impl Backend {
    /// The specification: plain scalar code for every CPU, which all other backends equal bit for bit.
    ///
    /// It is written to be read. `portable` runs everywhere too, and is faster. Bare metal (a target without an
    /// operating system) has only `scalar`, to save flash.
    pub const SCALAR: Self = Self(Kernels::SCALAR);

    /// Returns the fastest backend of this CPU.
    ///
    /// This is `portable` if the library has no implementation for the CPU's instructions, and `scalar` on bare metal.
    /// On ARM, dot-product instructions are detected only with the feature `std`, or if the build requires them.
    ///
    /// # AMX
    /// A process needs Linux's permission to use AMX tiles (`arch_prctl`, `ARCH_REQ_XCOMP_PERM`). The first call of
    /// `detect`, [`available`](Self::available), or [`named`](Self::named) for `amx` asks for it, once a process.
    /// Without the permission there is no backend `amx`. With it, Linux refuses alternate signal stacks that are too
    /// small for the tiles' state of 8 KiB.
    #[must_use]
    pub fn detect() -> Self {
        Self(Kernels::detect())
    }

    /// Returns all backends that this CPU supports, fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Kernels::available().map(Self)
    }

    /// Returns the backend with this name, or `None` if it is not supported here.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Kernels::named(name).map(Self)
    }

    /// Returns the backend's name: `scalar`, `portable`, `avx2`, `avx-vnni`, `avx512`, `amx`, `neon`, `neon-dotprod` or
    /// `simd128`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    pub(crate) const fn kernels(self) -> Kernels {
        self.0
    }
}
