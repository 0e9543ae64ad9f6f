//! Which instructions the library runs on: a choice, without the kernels behind it.

pub(crate) use octaplex_arch::Backend as Kernels;

/// Names the instruction set that a codec or a cache runs on. All give the same bits; they differ in speed.
///
/// A value cannot be forged: it comes from [`detect`](Self::detect), [`available`](Self::available) or
/// [`named`](Self::named), which ask the CPU.
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
    /// The specification, on every CPU: what all others equal bit for bit. It is written to be read; `portable` is as
    /// much at home everywhere, and faster; bare metal (targets without an operating system) has this one alone, for
    /// the sake of flash.
    pub const SCALAR: Self = Self(Kernels::SCALAR);

    /// Returns the fastest backend of this CPU. Where it has AMX, Linux is asked once a process to permit its tiles, by this,
    /// [`available`](Self::available) or [`named`](Self::named) for `amx`, whichever comes first (`arch_prctl`,
    /// `ARCH_REQ_XCOMP_PERM`); if it refuses, there is no backend `amx`. From then on it refuses alternate signal stacks that have no
    /// room for the tiles' state, 8 KiB. `portable` where the library has none of its instructions, `scalar` where there is no
    /// operating system either. On ARM, dot-product instructions are looked for only with the feature `std`, or where
    /// the build requires them.
    #[must_use]
    pub fn detect() -> Self {
        Self(Kernels::detect())
    }

    /// Returns all backends that this CPU supports, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Kernels::available().map(Self)
    }

    /// Returns the backend with this name, or `None` if it is not supported here.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Kernels::named(name).map(Self)
    }

    /// Returns its name: `scalar`, `portable`, `avx2`, `avx-vnni`, `avx512`, `amx`, `neon`, `neon-dotprod` or `simd128`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    pub(crate) const fn kernels(self) -> Kernels {
        self.0
    }
}
