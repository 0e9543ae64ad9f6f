//! The floating-point environment of a thread: its rounding mode, and whether it keeps denormals.

/// Runs `work` with rounding to nearest, with denormals and without traps. Afterwards it restores
/// the thread's environment, also after a panic.
///
/// Rust programs always have this environment. Programs in other languages may not: `-ffast-math`
/// links code that changes MXCSR. Only x86-64 and AArch64 are covered. Elsewhere this just calls
/// `work`.
///
/// ```
/// assert_eq!(octaplex_arch::with_default_floats(|| 1.0 + 1.0), 2.0);
/// ```
pub fn with_default_floats<T>(work: impl FnOnce() -> T) -> T {
    let _restores = Restores::new();
    work()
}

/// Restores the thread's control word when dropped. `None` if it was the default.
struct Restores(Option<control::Word>);

impl Restores {
    /// Sets the default environment, and remembers the thread's own.
    fn new() -> Self {
        let word = control::read();
        let differs = word & control::MEANT != control::DEFAULT;
        if differs {
            // SAFETY: the default word is valid, and is what compiled Rust code expects.
            unsafe { control::write(control::DEFAULT) };
        }
        Self(differs.then_some(word))
    }
}

impl Drop for Restores {
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            // SAFETY: the word was read from this thread's own register, and its owner relies on
            // it.
            unsafe { control::write(word) };
        }
    }
}

/// The control register of x86-64: MXCSR.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod control {
    use core::arch::asm;

    pub(super) type Word = u32;
    /// All exceptions masked, rounding to nearest, neither FTZ nor DAZ.
    pub(super) const DEFAULT: Word = 0x1f80;
    /// The bits that control; the low six only report what happened.
    pub(super) const MEANT: Word = !0x3f;

    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: x86-64 has SSE. The instruction stores four bytes at the address of `word`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    /// # Safety
    /// `word` was read from MXCSR, or is the default: reserved bits fault.
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: the caller promises it. The instruction loads four bytes at the address of
        // `word`. The compiler must assume that it changes memory, so loads, and arithmetic on
        // loaded values, are not moved across it.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

/// The control register of AArch64: FPCR.
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod control {
    use core::arch::asm;

    pub(super) type Word = u64;
    /// No traps, rounding to nearest, no flushing.
    pub(super) const DEFAULT: Word = 0;
    /// All bits control. Another register reports what happened.
    pub(super) const MEANT: Word = !0;

    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: every AArch64 program may read FPCR.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    /// # Safety
    /// `word` was read from FPCR, or is the default.
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: the caller promises it. The compiler must assume that it changes memory, so
        // loads, and arithmetic on loaded values, are not moved across it.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// Other machines: nothing is read or set.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod control {
    pub(super) type Word = u32;
    pub(super) const DEFAULT: Word = 0;
    pub(super) const MEANT: Word = !0;

    pub(super) fn read() -> Word {
        DEFAULT
    }

    /// # Safety
    /// None is needed.
    pub(super) unsafe fn write(_: Word) {}
}
