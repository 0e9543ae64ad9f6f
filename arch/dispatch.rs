//! Where a token turns into instructions.

/// Runs a kernel of the backend at hand: one match, an arm for each instruction set.
///
/// `avx2`, `avx512` and `registers` name the text that each runs, a module of the kernel's folder. `scalar`: the
/// specification, compiled for the instruction set at hand, where LLVM vectorises it as well as intrinsics would.
/// `portable` is named where plain Rust has a faster text than the specification.
/// `tiles`: for AVX-512 with AMX's tiles, or without.
/// `lanes`: for AVX2 and for AVX-VNNI, each with its own registers of two lanes.
/// `wide`: the text for registers. `ymm`, `zmm`: the same, for wider ones. `dots`: the same, and once more for ARM's dot products of bytes.
macro_rules! dispatch {
    (
        $backend:expr, portable: $portable:ident, $($others:ident: $text:ident),*;
        $kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?
    ) => {
        match $backend.isa {
            #[cfg(not(target_os = "none"))]
            Isa::Portable => $portable::$kernel($($argument),*),
            _ => dispatch!($backend, $($others: $text),*; $kernel($($argument: $kind),*) $(-> $result)?),
        }
    };
    (
        $backend:expr, avx2: lanes, $($others:ident: $text:ident),*;
        $kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?
    ) => {
        match $backend.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn enter($($argument: $kind),*) $(-> $result)? {
                    avx2::$kernel::<$crate::registers::avx2::Vnni>($($argument),*)
                }
                // SAFETY: tokens of this ISA are only made by `detect.rs`, after the CPU was asked for its
                // instructions, VNNI's among them.
                unsafe { enter($($argument),*) }
            }
            _ => dispatch!($backend, avx2: ymm_lanes, $($others: $text),*; $kernel($($argument: $kind),*) $(-> $result)?),
        }
    };
    (
        $backend:expr, avx2: $avx2:ident, avx512: tiles, registers: $registers:ident;
        $kernel:ident($($argument:ident: $kind:ty),*)
    ) => {
        match $backend.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => {
                #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
                fn enter(tiles: $crate::registers::amx::Tiles, $($argument: $kind),*) {
                    avx512::$kernel(Some(tiles), $($argument),*)
                }
                // SAFETY: tokens of this ISA are only made by `detect.rs`, after the CPU was asked for its instructions, and the
                // system to permit tiles.
                unsafe { enter($crate::registers::amx::Tiles::new(), $($argument),*) }
            }
            _ => dispatch!($backend, avx2: $avx2, avx512: no_tiles, registers: $registers; $kernel($($argument: $kind),*)),
        }
    };
    (
        $backend:expr, avx2: $avx2:ident, avx512: $avx512:ident, registers: $registers:ident;
        $kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?
    ) => {
        match $backend.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn enter($($argument: $kind),*) $(-> $result)? {
                    text!($avx2, $crate::registers::avx2::Avx2, $kernel($($argument),*))
                }
                // SAFETY: tokens of this ISA are only made by `detect.rs`, after the CPU was asked for its
                // instructions.
                unsafe { enter($($argument),*) }
            }
            #[cfg(all(target_arch = "x86_64", feature = "wide"))]
            Isa::Wide => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn enter($($argument: $kind),*) $(-> $result)? {
                    text!($registers, $crate::registers::avx2::Avx2, $kernel($($argument),*))
                }
                // SAFETY: as above: such tokens need AVX2.
                unsafe { enter($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => {
                #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
                fn enter($($argument: $kind),*) $(-> $result)? {
                    text!($avx512, $crate::registers::avx2::Avx2, $kernel($($argument),*))
                }
                // SAFETY: as above.
                unsafe { enter($($argument),*) }
            }
            // NEON is part of every aarch64 target with floats.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => text!($registers, $crate::registers::neon::Neon<false>, $kernel($($argument),*)),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => with_dots!($registers, $kernel($($argument: $kind),*) $(-> $result)?),
            // SIMD128 is enabled for the whole build where this variant exists.
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => text!($registers, $crate::registers::simd128::Simd128, $kernel($($argument),*)),
            #[cfg(target_os = "none")]
            Isa::Scalar => scalar::$kernel($($argument),*),
            // In one arm, so that the text is compiled once for both.
            #[cfg(not(target_os = "none"))]
            Isa::Scalar | Isa::Portable => scalar::$kernel($($argument),*),
        }
    };
}

/// A call of one of a kernel's texts.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
macro_rules! text {
    (wide, $registers:ty, $kernel:ident($($argument:ident),*)) => { wide::$kernel::<$registers>($($argument),*) };
    (ymm, $registers:ty, $kernel:ident($($argument:ident),*)) => {
        wide::$kernel::<$crate::registers::avx2::Ymm>($($argument),*)
    };
    (zmm, $registers:ty, $kernel:ident($($argument:ident),*)) => {
        wide::$kernel::<$crate::registers::avx512::Zmm>($($argument),*)
    };
    (ymm_lanes, $registers:ty, $kernel:ident($($argument:ident),*)) => {
        avx2::$kernel::<$crate::registers::avx2::Ymm>($($argument),*)
    };
    (no_tiles, $registers:ty, $kernel:ident($($argument:ident),*)) => { avx512::$kernel(None, $($argument),*) };
    (dots, $registers:ty, $kernel:ident($($argument:ident),*)) => { wide::$kernel::<$registers>($($argument),*) };
    ($text:ident, $registers:ty, $kernel:ident($($argument:ident),*)) => { $text::$kernel($($argument),*) };
}

/// A call of the text for registers on an ARM CPU that has dot products of bytes.
#[cfg(target_arch = "aarch64")]
macro_rules! with_dots {
    (dots, $kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?) => {{
        #[target_feature(enable = "dotprod")]
        fn enter($($argument: $kind),*) $(-> $result)? {
            wide::$kernel::<$crate::registers::neon::Neon<true>>($($argument),*)
        }
        // SAFETY: tokens of this ISA are only made by `detect.rs`, after the CPU was asked for the instructions.
        unsafe { enter($($argument),*) }
    }};
    ($registers:ident, $kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?) => {
        text!($registers, $crate::registers::neon::Neon<false>, $kernel($($argument),*))
    };
}
