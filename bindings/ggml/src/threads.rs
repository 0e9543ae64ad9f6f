//! Threads that do not compete with the host's for cores.
//!
//! The host's threads spin for a while after each graph, so any other threads would wait for a core. If the host has an OpenMP
//! runtime, work runs on its threads, through the call that compilers emit for `#pragma omp parallel`. Otherwise it runs on
//! the threads of the host's CPU backend (`lent.rs`). Without either it runs in a pool whose idle threads sleep.

use crate::lent;
use crate::system::Libraries;
use crate::work::Work;
use core::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// The type of `GOMP_parallel` in GCC's and LLVM's runtimes.
pub(crate) type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// The threads that run tasks.
pub(crate) struct Team {
    threads: AtomicUsize,
    pool: Mutex<Option<rayon::ThreadPool>>,
}

impl Team {
    pub(crate) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
        Self { threads: AtomicUsize::new(threads), pool: Mutex::new(None) }
    }

    pub(crate) fn set(&self, threads: usize) {
        self.threads.store(threads.max(1), Ordering::Relaxed);
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    /// Runs tasks 0..count. Panics if a task panics.
    pub(crate) fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let threads = self.threads().min(count);
        if threads <= 1 {
            return (0..count).for_each(task);
        }
        let work = Work::new(count, task);
        match openmp() {
            Some(parallel) => {
                let data = core::ptr::from_ref(&work).cast_mut().cast();
                // SAFETY: `share` takes a pointer to `Work` and never unwinds. The call returns when all threads are done.
                unsafe { parallel(share, data, threads as c_uint, 0) };
            }
            None => {
                lent::share(&work);
                if !work.is_taken() {
                    self.in_pool(threads, &work);
                }
            }
        }
        assert!(!work.has_failed(), "a task panicked");
    }

    fn in_pool(&self, threads: usize, work: &Work) {
        let mut pool = self.pool.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let all = self.threads();
        if pool.as_ref().is_none_or(|pool| pool.current_num_threads() != all.max(2) - 1) {
            *pool = rayon::ThreadPoolBuilder::new().num_threads(all.max(2) - 1).build().ok();
        }
        match &*pool {
            Some(pool) => pool.in_place_scope(|scope| {
                // The caller works too, so that a short job does not wait for a thread to wake.
                (1..threads).for_each(|_| scope.spawn(|_| work.share()));
                work.share();
            }),
            None => work.share(),
        }
    }
}

extern "C" fn share(data: *mut c_void) {
    // SAFETY: `data` is the work that `Team::run` holds until all threads are done.
    unsafe { &*data.cast::<Work>() }.share();
}

/// Returns `GOMP_parallel` of this process's OpenMP runtime, if it has one.
pub(crate) fn openmp() -> Option<Parallel> {
    static FOUND: OnceLock<Option<Parallel>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = Libraries::openmp()?.symbol(c"GOMP_parallel");
        // SAFETY: both runtimes define `void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned)`.
        (!found.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Parallel>(found) })
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{Ordering, Team};
    use core::arch::asm;
    use core::hint::black_box;
    use std::sync::atomic::AtomicBool;

    fn set_control(word: u32) {
        // SAFETY: both words of the test are valid: reserved bits are zero.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, preserves_flags)) };
    }

    fn keeps_denormals() -> bool {
        black_box(black_box(f32::MIN_POSITIVE) * black_box(0.5)) != 0.0
    }

    #[test]
    fn tasks_keep_denormals_on_a_thread_that_flushes_them() {
        let (team, kept) = (Team::new(), AtomicBool::new(true));
        team.set(2);
        set_control(0x1f80 | 0x8040); // a host's
        team.run(8, &|_| {
            kept.fetch_and(keeps_denormals(), Ordering::Relaxed);
        });
        let after = keeps_denormals();
        set_control(0x1f80);
        assert!(kept.into_inner());
        assert!(!after, "the host's control word is restored");
    }
}
