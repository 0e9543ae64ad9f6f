//! Runs every call's work: without the interpreter's lock, on threads of this process, in the default float environment.

use crate::{Error, Result};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::Cell;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

/// Calls hold this lock for reading, and a fork of the process holds it for writing. So a child never starts with a lock
/// that a thread of its parent holds, or with a half-changed cache.
static FORKS: RwLock<()> = RwLock::new(());

thread_local! {
    /// The guard that this thread holds from before a fork until after it.
    static FORKING: Cell<Option<RwLockWriteGuard<'static, ()>>> = const { Cell::new(None) };
}

/// The threads that work.
enum Threads {
    /// Rayon's global pool, which starts with the first parallel call.
    Process,
    /// The pool of a forked child, which starts with its first call. A child has none of its parent's threads.
    Child(Option<Arc<ThreadPool>>),
}

static THREADS: Mutex<Threads> = Mutex::new(Threads::Process);

/// Returns the pool to work in, or `None` for rayon's global pool.
fn pool() -> Result<Option<Arc<ThreadPool>>> {
    match &mut *THREADS.lock().unwrap_or_else(PoisonError::into_inner) {
        Threads::Process => Ok(None),
        Threads::Child(Some(pool)) => Ok(Some(Arc::clone(pool))),
        Threads::Child(none) => {
            let built = ThreadPoolBuilder::new().build();
            let pool = built
                .map_err(|error| Error::new_err(format!("cannot start threads in this process: {error}")))?;
            Ok(Some(Arc::clone(none.insert(Arc::new(pool)))))
        }
    }
}

/// Runs `work` in the default floating-point environment, which its threads inherit.
pub(crate) fn work<T: Send>(py: Python, work: impl FnOnce() -> T + Send) -> Result<T> {
    py.detach(|| {
        let _no_fork = FORKS.read().unwrap_or_else(PoisonError::into_inner);
        octaplex::with_default_floats(|| match pool()? {
            None => Ok(work()),
            Some(pool) => Ok(pool.install(work)),
        })
    })
}

/// Waits for calls in progress. This thread holds the interpreter's lock, which they do not need.
#[pyfunction]
pub(crate) fn before_fork() {
    FORKING.set(Some(FORKS.write().unwrap_or_else(PoisonError::into_inner)));
}

#[pyfunction]
pub(crate) fn after_fork() {
    FORKING.take();
}

#[pyfunction]
pub(crate) fn after_fork_in_child() {
    let before =
        mem::replace(&mut *THREADS.lock().unwrap_or_else(PoisonError::into_inner), Threads::Child(None));
    mem::forget(before); // dropping the pool would wait for threads that this process does not have
    FORKING.take();
}
