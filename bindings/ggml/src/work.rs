//! Tasks that several threads share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Tasks. Threads take the next one until none is left.
pub(crate) struct Work<'a> {
    next: AtomicUsize,
    count: usize,
    task: &'a (dyn Fn(usize) + Sync),
    failed: AtomicBool,
}

impl<'a> Work<'a> {
    pub(crate) fn new(count: usize, task: &'a (dyn Fn(usize) + Sync)) -> Self {
        Self { next: AtomicUsize::new(0), count, task, failed: AtomicBool::new(false) }
    }

    /// Returns whether a task has panicked.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns whether no task is left.
    pub(crate) fn is_taken(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.count
    }

    /// Takes tasks. Never unwinds.
    pub(crate) fn share(&self) {
        // Threads of the host's OpenMP may round otherwise or flush denormals.
        let tasks = || octaplex::with_default_floats(|| self.take_tasks());
        let shared = catch_unwind(AssertUnwindSafe(tasks));
        if shared.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    fn take_tasks(&self) {
        loop {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            if next >= self.count {
                break;
            }
            (self.task)(next);
        }
    }
}
