//! Square roots.

/// The exact square root, rounded to nearest: the same bits on every machine. `libm` writes the instruction in assembly, in
/// an encoding that waits for the upper halves of AVX-512's registers (on an Intel server core 1.8 ns become 181);
/// the intrinsic is encoded as the function around it is, and LLVM takes several at a time.
#[inline(always)]
pub(crate) fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    return {
        use core::arch::x86_64::{_mm_cvtss_f32, _mm_set_ss, _mm_sqrt_ss};
        // SAFETY: SSE is part of every x86-64 target.
        unsafe { _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))) }
    };
    #[cfg(not(target_arch = "x86_64"))]
    return libm::sqrtf(x);
}
