//! The one door of all work: without the interpreter's lock, on threads that exist, with floats that round as everywhere.

use crate::{Error, Result};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::Cell;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

/// Read by calls that work, written while the process forks. So a child never starts with a lock that a thread of its parent
/// holds, or with a cache in the middle of a change.
static FORKS: RwLock<()> = RwLock::new(());

thread_local! {
    /// What this thread holds from before a fork until after it.
    static FORKING: Cell<Option<RwLockWriteGuard<'static, ()>>> = const { Cell::new(None) };
}

/// Whose threads work.
enum Threads {
    /// Rayon's own, which start with the first call that has work for several.
    Process,
    /// Those of a forked child, which start with its first call: the parent's are not in it.
    Child(Option<Arc<ThreadPool>>),
}

static THREADS: Mutex<Threads> = Mutex::new(Threads::Process);

/// The pool to work in, where it is not rayon's own.
fn pool() -> Result<Option<Arc<ThreadPool>>> {
    match &mut *THREADS.lock().unwrap_or_else(PoisonError::into_inner) {
        Threads::Process => Ok(None),
        Threads::Child(Some(pool)) => Ok(Some(Arc::clone(pool))),
        Threads::Child(none) => {
            let built = ThreadPoolBuilder::new().build();
            let pool = built
                .map_err(|error| Error::new_err(format!("this process can start no threads: {error}")))?;
            Ok(Some(Arc::clone(none.insert(Arc::new(pool)))))
        }
    }
}

/// Runs `work`. Threads that it starts inherit the default floating-point environment, whatever the caller's is.
pub(crate) fn work<T: Send>(py: Python, work: impl FnOnce() -> T + Send) -> Result<T> {
    py.detach(|| {
        let _no_fork = FORKS.read().unwrap_or_else(PoisonError::into_inner);
        octaplex::with_default_floats(|| match pool()? {
            None => Ok(work()),
            Some(pool) => Ok(pool.install(work)),
        })
    })
}

/// Waits for calls in progress. They do not need the interpreter's lock, which this thread holds.
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
    mem::forget(before); // dropping a pool waits for threads, which this process does not have
    FORKING.take();
}
