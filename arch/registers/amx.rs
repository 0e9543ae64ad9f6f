//! AMX: products of tiles of sixteen rows of 64 bytes, for blocks of 32 queries.
//!
//! Rust's intrinsics for AMX are not stable, so this is assembly. One instruction multiplies
//! sixteen rows of one operand with sixteen columns of the other. It takes sixteen cycles;
//! `vpdpbusd` would need 128. The sums then still have to be brought back to registers.
//!
//! ```text
//! tiles of a     tiles of b          tmm0 = a0·b0   tmm1 = a0·b1
//! tmm4 = a0      tmm6 = b0           tmm2 = a1·b0   tmm3 = a1·b1
//! tmm5 = a1      tmm7 = b1
//! ```
//!
//! A thread has one configuration of tiles, and its host may have set one: ggml does so once for
//! each thread. So [`Configured`] saves the host's configuration, and restores it at the end. If
//! there was none, tiles return to their initial state, and the system does not have to save them.
//! The host's *data* in tiles is lost, as it is in any call of a function.

use core::arch::asm;
use core::arch::x86_64::__m512i;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

/// Rows in a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Proves that this CPU has tiles, and that the system permits them.
#[derive(Clone, Copy)]
pub(crate) struct Tiles(());

/// The operand of `ldtilecfg` and `sttilecfg`: the palette, then each tile's bytes a row, then each
/// tile's rows. Without a configuration, all bytes are zero.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config([u8; 64]);

static CONFIG: Config = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = TILE_ROWS as u8;
        tile += 1;
    }
    Config(bytes)
};

impl Tiles {
    /// # Safety
    /// The CPU has AMX-INT8, and `detect.rs` was permitted to use it.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }

    /// Configures all eight tiles for as long as the result lives. A thread may have one result at
    /// a time. It takes some 200 cycles.
    ///
    /// This and [`Configured::drop`] are never inlined: `ci/instructions.sh` counts the
    /// instructions of both in a built library.
    #[inline(never)]
    pub(crate) fn configure(self) -> Configured {
        let host = self.configuration();
        // SAFETY: `self` proves that the CPU has tiles. The instruction reads the 64 bytes of
        // `CONFIG`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly, preserves_flags)) }
        Configured { host, thread: PhantomData }
    }

    /// Returns this thread's configuration.
    #[inline(always)]
    fn configuration(self) -> Config {
        let mut config = Config([0; 64]);
        // SAFETY: `self` proves that the CPU has tiles. The instruction writes 64 bytes.
        unsafe { asm!("sttilecfg [{}]", in(reg) &mut config, options(nostack, preserves_flags)) }
        config
    }
}

/// Proves that tiles are configured on this thread. Restores its configuration when dropped.
pub(crate) struct Configured {
    host: Config,
    /// A configuration belongs to a thread, so this value stays on it.
    thread: PhantomData<*const ()>,
}

impl Drop for Configured {
    #[inline(never)]
    fn drop(&mut self) {
        if self.host.0[0] == 0 {
            // SAFETY: the CPU has tiles, and nothing uses them after this value.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
        } else {
            // SAFETY: as above. The instruction reads 64 bytes, which `sttilecfg` wrote.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &self.host, options(nostack, readonly, preserves_flags)) }
        }
    }
}

/// Pairs of tiles in memory. Rows of 64 bytes are `stride` bytes apart. The second tile of a pair
/// lies `second` bytes behind the first, and the next pair `step` bytes behind this one.
#[derive(Clone, Copy)]
pub(crate) struct Pairs {
    pub(crate) at: *const u8,
    pub(crate) second: usize,
    pub(crate) stride: usize,
    pub(crate) step: usize,
}

/// Sums of both tiles of `a` with both of `b`: \[row of a]\[which a]\[which b], sixteen columns of
/// b each.
pub(crate) type Products = [MaybeUninit<[[__m512i; 2]; 2]>; TILE_ROWS];

/// Bytes from the sums of one row to those of the next.
const STRIDE: usize = size_of::<[[__m512i; 2]; 2]>();

macro_rules! products {
    ($(#[$doc:meta])* $name:ident: $instruction:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `count` pairs of `a` and of `b`, one at least, may be read and are set.
        #[inline]
        pub(crate) unsafe fn $name(&self, a: Pairs, b: Pairs, count: usize, sums: &mut Products) {
            assert!(count > 0);
            // SAFETY: tiles are configured, and the caller vouches for what is read. `sums` holds
            // four tiles whose rows are `STRIDE` apart.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    "tileloadd tmm6, [{b} + {b_stride}*1]",
                    "tileloadd tmm4, [{a} + {a_stride}*1]",
                    "tileloadd tmm7, [{b_second} + {b_stride}*1]",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{a_second} + {a_stride}*1]",
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "add {a}, {a_step}",
                    "add {a_second}, {a_step}",
                    "add {b}, {b_step}",
                    "add {b_second}, {b_step}",
                    "dec {count}",
                    "jnz 2b",
                    "tilestored [{sums} + {stride}*1], tmm0",
                    "tilestored [{sums} + {stride}*1 + 64], tmm1",
                    "tilestored [{sums} + {stride}*1 + 128], tmm2",
                    "tilestored [{sums} + {stride}*1 + 192], tmm3",
                    a = inout(reg) a.at => _,
                    a_second = inout(reg) a.at.wrapping_add(a.second) => _,
                    b = inout(reg) b.at => _,
                    b_second = inout(reg) b.at.wrapping_add(b.second) => _,
                    a_stride = in(reg) a.stride,
                    b_stride = in(reg) b.stride,
                    a_step = in(reg) a.step,
                    b_step = in(reg) b.step,
                    count = inout(reg) count => _,
                    sums = in(reg) sums.as_mut_ptr(),
                    stride = in(reg) STRIDE,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                )
            }
        }
    };
}

impl Configured {
    products! {
        /// Signed bytes of `a` with unsigned ones of `b`.
        signed: "tdpbsud"
    }
    products! {
        /// Unsigned bytes of `a` with signed ones of `b`.
        unsigned: "tdpbusd"
    }
}

/// Returns whether the system lets this process use tiles. Linux permits it on request. Its answer
/// is only meaningful on a CPU that has tiles.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub(crate) fn permitted() -> bool {
    use core::sync::atomic::{AtomicU8, Ordering};
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XTILEDATA: usize = 18;
    /// 0 before the first request, then 1 for no and 2 for yes.
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    if ANSWER.load(Ordering::Relaxed) == 0 {
        let result: isize;
        // SAFETY: the system call takes two numbers, and does not touch the program's memory.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack)
            );
        }
        ANSWER.store(if result == 0 { 2 } else { 1 }, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == 2
}

/// On other systems, the way to request tiles is not known.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(crate) fn permitted() -> bool {
    false
}
