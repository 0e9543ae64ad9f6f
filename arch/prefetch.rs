//! Prefetches. They change nothing but time.

/// Rows longer than this many bytes in all do not fit in a first-level cache, so their later rows
/// are prefetched.
///
/// Kernels read sixteen rows and more at once, which the CPU's own prefetcher follows badly. On Zen
/// 5, 4,096 rows of 8-bit codes from memory take 18.4 ns each without prefetches and 4.9 ns with
/// them. From the second-level cache it is 3.8 and 4.0 ns.
pub(crate) const LONG: usize = 1 << 16;
/// The number of bytes ahead to prefetch. 16 KiB is half of a small first-level cache, and too much: on
/// Zen 4, scores of long slices from memory take 0.84 to 0.93 of its time with 8 KiB.
pub(crate) const AHEAD: usize = 1 << 13;

/// Prefetches bytes, in lines of 64 bytes. It may fetch up to three lines more: four at a time cost
/// a third or less of four single ones (Zen 5).
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8]) {
    for lines in bytes.chunks(4 * 64) {
        for line in 0..4 {
            prefetch_line(lines.as_ptr().wrapping_add(64 * line));
        }
    }
}

/// Prefetches the line of an address. The address need not be valid.
#[inline(always)]
pub(crate) fn prefetch_line(line: *const u8) {
    // SAFETY: SSE is part of every x86-64 target. A prefetch of any address has no effect that a
    // program can see.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    // SAFETY: every AArch64 CPU has `prfm`. A prefetch of any address has no effect that a program can
    // see.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
