//! Detects the instructions of this CPU, and creates the token that proves it.

/// The instruction sets with their own kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Isa {
    /// The specification.
    Scalar,
    /// Plain Rust. Not on bare metal, where a program would link every kernel twice.
    #[cfg(not(target_os = "none"))]
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 with `vpdpbusd` and `vpdpwssd` on its registers: Intel from Alder Lake on, AMD from Zen
    /// 5 on.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with AMX's tiles for blocks of 32 queries, if the system permits them: Intel from
    /// Sapphire Rapids on.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// `wide.rs` everywhere, as on ARM and WebAssembly, with AVX2's registers. It lets an x86-64
    /// machine test that code.
    #[cfg(all(target_arch = "x86_64", feature = "wide"))]
    Wide,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128,
}

/// The kernels of one instruction set that this CPU has. All backends give the same bits, and
/// differ in speed.
///
/// A token cannot be forged. It comes from [`detect`](Self::detect), [`available`](Self::available)
/// or [`named`](Self::named), which query the CPU.
///
/// ```
/// use octaplex_arch::Backend;
/// let best = Backend::detect();
/// assert_eq!(Backend::named(best.name()), Some(best));
/// assert_eq!(best.dot(&[1.0, 2.0], &[3.0, 4.0]), 11.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backend {
    pub(crate) isa: Isa,
}

/// Every instruction set of this build, fastest first.
const KNOWN: &[Isa] = &[
    #[cfg(target_arch = "x86_64")]
    Isa::Amx,
    #[cfg(target_arch = "x86_64")]
    Isa::Avx512,
    #[cfg(target_arch = "x86_64")]
    Isa::AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Isa::Avx2,
    #[cfg(all(target_arch = "x86_64", feature = "wide"))]
    Isa::Wide,
    #[cfg(target_arch = "aarch64")]
    Isa::NeonDotprod,
    #[cfg(target_arch = "aarch64")]
    Isa::Neon,
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Isa::Simd128,
    #[cfg(not(target_os = "none"))]
    Isa::Portable,
    Isa::Scalar,
];

impl Backend {
    /// The specification, which every build has. Without vector instructions,
    /// [`detect`](Self::detect) chooses `portable`, and on bare metal this one.
    pub const SCALAR: Self = Self { isa: Isa::Scalar };

    /// Returns whether kernels on [`Rows`](crate::Rows) of codes prefetch what comes next block by
    /// block.
    pub(crate) fn prefetches_by_blocks(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.isa, Isa::Avx512 | Isa::Amx | Isa::Avx2 | Isa::AvxVnni);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Returns whether a row with a scale that is not finite always gives scores that are not
    /// finite.
    ///
    /// If so, a caller need not check scales before it scores. AVX-512 converts every f16 with its
    /// own instruction. Some paths of other backends are only right for finite f16.
    #[must_use]
    pub fn scores_tell_scales(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.isa, Isa::Avx512 | Isa::Amx);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Returns the same as [`scores_tell_scales`](Self::scores_tell_scales), for scores of codes
    /// and trellis codes.
    ///
    /// AVX2 and NEON read these scales in ways that all keep exponents of all ones (F16C, `fcvtl`,
    /// `Rows::read_scales`, `Rows::scale`).
    #[must_use]
    pub fn codes_tell_scales(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.scores_tell_scales() || matches!(self.isa, Isa::Avx2 | Isa::AvxVnni);
        #[cfg(target_arch = "aarch64")]
        return matches!(self.isa, Isa::Neon | Isa::NeonDotprod);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        false
    }

    /// Returns the same as [`scores_tell_scales`](Self::scores_tell_scales), for scores of small
    /// blocks and chunks. Rows of f16 tell whether any of their values is not finite.
    #[must_use]
    pub fn blocks_tell_scales(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.codes_tell_scales();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Returns the backend for short calls between plain code, and for groups that fill at most
    /// half of a wide register.
    ///
    /// That is AVX2 in place of AVX-512. On Sapphire Rapids, plain code and such calls together are
    /// 5 to 18% slower with registers of 512 bits. The results have the same bits.
    #[must_use]
    pub fn among_plain_code(self) -> Self {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.isa, Isa::Avx512 | Isa::Amx) {
            // A CPU with AVX-512 has AVX2: `has_avx512` checks it.
            return Self { isa: Isa::Avx2 };
        }
        self
    }

    /// Returns the fastest backend of this CPU.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().next().unwrap_or(Self::SCALAR)
    }

    /// Returns all backends of this CPU, fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        KNOWN.iter().filter(|isa| isa.is_available()).map(|&isa| Self { isa })
    }

    /// Returns the backend with this name, or `None` if this CPU or this build lacks it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        // Compare names first, and request tiles from the system only if they are wanted.
        KNOWN
            .iter()
            .map(|&isa| Self { isa })
            .find(|backend| backend.name() == name && backend.isa.is_available())
    }

    /// Returns the name: `scalar`, `portable`, `avx2`, `avx-vnni`, `avx512`, `amx`, `neon`,
    /// `neon-dotprod` or `simd128`; `wide` with the feature of that name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.isa {
            Isa::Scalar => "scalar",
            #[cfg(not(target_os = "none"))]
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => "amx",
            #[cfg(all(target_arch = "x86_64", feature = "wide"))]
            Isa::Wide => "wide",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => "neon-dotprod",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => "simd128",
        }
    }
}

impl Isa {
    /// Queries the CPU, and for AMX the system.
    fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(not(target_os = "none"))]
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86_64::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => x86_64::has_avx_vnni(),
            #[cfg(all(target_arch = "x86_64", feature = "wide"))]
            Self::Wide => x86_64::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => x86_64::has_avx512(),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => x86_64::has_amx() && crate::registers::amx::permitted(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => has_dotprod(),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Self::Simd128 => true,
        }
    }
}

/// Returns whether the CPU has dot products of bytes. Without std there is no portable way to query
/// an ARM CPU, so the build's target features decide.
#[cfg(target_arch = "aarch64")]
fn has_dotprod() -> bool {
    #[cfg(feature = "std")]
    return std::arch::is_aarch64_feature_detected!("dotprod");
    #[cfg(not(feature = "std"))]
    return cfg!(target_feature = "dotprod");
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    cpufeatures::new!(avx2, "avx2", "fma");
    cpufeatures::new!(avx512, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi");

    /// Returns whether the CPU has AVX2, FMA and F16C (bit 29 of leaf 1's ecx). Every CPU with AVX2
    /// has F16C, but the safety of kernels must not rest on that.
    pub(super) fn has_avx2() -> bool {
        avx2::get() && ecx(1) & (1 << 29) != 0
    }

    /// Returns whether the CPU has AVX-512 with VBMI and VNNI (bit 11 of leaf 7's ecx). AVX-512F
    /// implies that the system saves the registers.
    pub(super) fn has_avx512() -> bool {
        has_avx2() && avx512::get() && ecx(7) & (1 << 11) != 0
    }

    /// Returns whether the CPU has AVX-VNNI: bit 4 of eax in the second part of leaf 7. The eax of
    /// the first part says whether that part exists.
    pub(super) fn has_avx_vnni() -> bool {
        has_avx2() && leaf(7, 0).eax >= 1 && leaf(7, 1).eax & (1 << 4) != 0
    }

    /// Returns whether the CPU has AMX-TILE and AMX-INT8 (bits 24 and 25 of leaf 7's edx).
    ///
    /// It also checks that the system saves both parts of the tiles' state, and that there are
    /// eight tiles of sixteen rows of 64 bytes.
    pub(super) fn has_amx() -> bool {
        const BITS: u32 = 3 << 24;
        const STATE: u64 = 3 << 17;
        if !has_avx512() || leaf(7, 0).edx & BITS != BITS {
            return false;
        }
        let palette = leaf(0x1d, 1);
        // SAFETY: a system that permits AVX-512 has set the register, and then `xgetbv` is
        // permitted.
        let state = unsafe { core::arch::x86_64::_xgetbv(0) };
        state & STATE == STATE && palette.ebx == 8 << 16 | 64 && palette.ecx & 0xffff == 16
    }

    fn ecx(number: u32) -> u32 {
        leaf(number, 0).ecx
    }

    #[allow(unused_unsafe)] // an unsafe function before Rust 1.95
    fn leaf(number: u32, part: u32) -> core::arch::x86_64::CpuidResult {
        // SAFETY: x86-64 without SGX has `cpuid`, and a CPU with AVX2, which callers have detected,
        // has leaf 7. For a leaf that is missing, like that of AMX, the result differs, and callers
        // compare it.
        unsafe { core::arch::x86_64::__cpuid_count(number, part) }
    }
}
