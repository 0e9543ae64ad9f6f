//! Chooses the implementation of a kernel for a backend.

/// Calls the implementation of a kernel that a backend runs. It is one `match` with an arm for each
/// instruction set.
///
/// ```text
/// dispatch!(
///     self, avx2: scalar, avx512: wide<Zmm>, registers: wide;
///     score(rows: &Rows, scores: &mut [f32]) -> f32
/// )
/// ```
///
/// The signature behind the semicolon is the one that all implementations share. The words in front
/// of it name a module of the kernel's folder, for AVX2, for AVX-512 and for the other instruction
/// sets (`registers`: NEON, SIMD128):
///
/// - `scalar`: the specification, which LLVM compiles for the instruction set. `avx2`, `avx512`:
///   written for it.
/// - `wide`: generic over registers, of 128 bits on x86-64. `wide<Ymm>`, `wide<Zmm>`: with
///   registers of 256 and of 512 bits.
/// - `avx2<Ymm | Vnni>`: generic over registers of two lanes, the first for AVX2, the second for
///   AVX-VNNI. It doubles the machine code, so only scores have the second.
/// - `avx512 + tiles`: takes an `Option<Tiles>` in front of its arguments, which is `Some` with
///   AMX.
/// - `wide + dots`: compiled once more for ARM CPUs with dot products of bytes.
///
/// `portable: portable` in front of all these names plain Rust that is faster than the
/// specification. Without it, the backend `portable` runs the specification.
macro_rules! dispatch {
    ($backend:expr, $(portable: $portable:ident,)? avx2: $avx2:ident $(<$ymm:ident $(| $vnni:ident)?>)?,
        avx512: $avx512:ident $(<$zmm:ident>)? $(+ $tiles:ident)?, registers: $registers:ident $(+ $dots:ident)?;
        $kernel:ident $arguments:tt) => {
        dispatch!($backend, $(portable: $portable,)? avx2: $avx2 $(<$ymm $(| $vnni)?>)?,
            avx512: $avx512 $(<$zmm>)? $(+ $tiles)?, registers: $registers $(+ $dots)?; $kernel $arguments -> ())
    };
    ($backend:expr, $(portable: $portable:ident,)? avx2: $avx2:ident $(<$ymm:ident $(| $vnni:ident)?>)?,
        avx512: $avx512:ident $(<$zmm:ident>)? $(+ $tiles:ident)?, registers: $registers:ident $(+ $dots:ident)?;
        $kernel:ident $arguments:tt -> $result:tt) => {
        #[allow(unreachable_patterns, reason = "sets that share an arm, where one of them has none of its own")]
        match $backend.isa {
            $(
                #[cfg(not(target_os = "none"))]
                Isa::Portable => call!($portable, (), $kernel $arguments),
            )?
            $($(
                #[cfg(target_arch = "x86_64")]
                Isa::AvxVnni => enter!(
                    "avx2,fma,f16c", $arguments -> $result,
                    call!($avx2 <$vnni>, (), $kernel $arguments)
                ),
            )?)?
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => enter!(
                "avx2,fma,f16c", $arguments -> $result,
                call!($avx2 $(<$ymm>)?, $crate::registers::avx2::Avx2, $kernel $arguments)
            ),
            #[cfg(all(target_arch = "x86_64", feature = "wide"))]
            Isa::Wide => enter!(
                "avx2,fma,f16c", $arguments -> $result,
                call!($registers, $crate::registers::avx2::Avx2, $kernel $arguments)
            ),
            $(
                #[cfg(target_arch = "x86_64")]
                Isa::Amx => enter!(
                    "avx512dq,avx512vl,avx512vbmi,avx512vnni", $arguments -> $result,
                    // SAFETY: tokens of this ISA are only made where the system permits tiles.
                    call!($avx512 + $tiles (Some(unsafe { $crate::registers::amx::Tiles::new() })), (), $kernel $arguments)
                ),
            )?
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => enter!(
                "avx512dq,avx512vl,avx512vbmi,avx512vnni", $arguments -> $result,
                call!($avx512 $(<$zmm>)? $(+ $tiles (None))?, $crate::registers::avx2::Avx2, $kernel $arguments)
            ),
            $(
                #[cfg(target_arch = "aarch64")]
                Isa::NeonDotprod => enter!(
                    "dotprod", $arguments -> $result,
                    call!($registers + $dots, $crate::registers::neon::Neon<true>, $kernel $arguments)
                ),
            )?
            // Every aarch64 target with floats has NEON.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDotprod => {
                call!($registers, $crate::registers::neon::Neon<false>, $kernel $arguments)
            }
            // This variant exists only if SIMD128 is enabled for the whole build.
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => call!($registers, $crate::registers::simd128::Simd128, $kernel $arguments),
            #[cfg(target_os = "none")]
            Isa::Scalar => call!(scalar, (), $kernel $arguments),
            // One arm for both, so that the specification is compiled once.
            #[cfg(not(target_os = "none"))]
            Isa::Scalar | Isa::Portable => call!(scalar, (), $kernel $arguments),
        }
    };
}

/// Compiles a call for some target features, and runs it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! enter {
    ($features:literal, ($($argument:ident: $kind:ty),*) -> $result:ty, $call:expr) => {{
        #[target_feature(enable = $features)]
        fn enter($($argument: $kind),*) -> $result {
            $call
        }
        // SAFETY: only `detect.rs` creates tokens of an ISA. It has detected the CPU's instructions
        // first, and for tiles the permission of the system.
        unsafe { enter($($argument),*) }
    }};
}

/// Calls one implementation of a kernel. Implementations that are generic over registers get the
/// register type.
macro_rules! call {
    (wide $(+ dots)?, $registers:ty, $kernel:ident($($argument:ident: $kind:ty),*)) => {
        wide::$kernel::<$registers>($($argument),*)
    };
    ($module:ident <Zmm>, $registers:ty, $kernel:ident($($argument:ident: $kind:ty),*)) => {
        $module::$kernel::<$crate::registers::avx512::Zmm>($($argument),*)
    };
    ($module:ident <$lanes:ident>, $registers:ty, $kernel:ident($($argument:ident: $kind:ty),*)) => {
        $module::$kernel::<$crate::registers::avx2::$lanes>($($argument),*)
    };
    ($module:ident + tiles ($tiles:expr), $registers:ty, $kernel:ident($($argument:ident: $kind:ty),*)) => {
        $module::$kernel($tiles, $($argument),*)
    };
    ($module:ident, $registers:ty, $kernel:ident($($argument:ident: $kind:ty),*)) => {
        $module::$kernel($($argument),*)
    };
}
