//! Runs every call's work: without the interpreter's lock, on threads of this process, in the default float environment.

use crate::{Error, Result};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::Cell;
use std::io::{Read, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Calls and a fork of the process, which may not overlap. So a child never starts with a lock that a thread of its parent
/// holds, or with a half-changed cache.
struct Running {
    calls: usize,
    is_forking: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { calls: 0, is_forking: false });
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The guard that this thread holds from before a fork until after it.
    static FORKING: Cell<Option<MutexGuard<'static, Running>>> = const { Cell::new(None) };
}

/// Waits until no process forks.
fn between_forks() -> MutexGuard<'static, Running> {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    CHANGED.wait_while(running, |running| running.is_forking).unwrap_or_else(PoisonError::into_inner)
}

/// A call in progress, for which forks wait.
pub(crate) struct Call;

impl Call {
    pub(crate) fn begin() -> Self {
        between_forks().calls += 1;
        Self
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.calls -= 1;
        if running.calls == 0 {
            CHANGED.notify_all();
        }
    }
}

/// Runs a part of a call that may wait for another process, such as a read from a pipe. Forks do not wait for it. It must
/// not hold a lock.
pub(crate) fn waiting<T>(part: impl FnOnce() -> T) -> T {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            mem::forget(Call::begin());
        }
    }
    drop(Call);
    let _again = Again;
    part()
}

/// A file whose reads and writes are `waiting`.
pub(crate) struct Waiting<T>(pub(crate) T);

impl<T: Read> Read for Waiting<T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        waiting(|| self.0.read(bytes))
    }
}

impl<T: Write> Write for Waiting<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        waiting(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        waiting(|| self.0.flush())
    }
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
        let _call = Call::begin();
        octaplex::with_default_floats(|| match pool()? {
            None => Ok(work()),
            Some(pool) => Ok(pool.install(work)),
        })
    })
}

/// Waits for calls in progress, without the interpreter's lock. New calls wait for the fork.
#[pyfunction]
pub(crate) fn before_fork(py: Python) {
    py.detach(|| {
        let mut running = between_forks();
        running.is_forking = true;
        let running = CHANGED.wait_while(running, |running| running.calls > 0);
        FORKING.set(Some(running.unwrap_or_else(PoisonError::into_inner)));
    });
}

#[pyfunction]
pub(crate) fn after_fork() {
    if let Some(mut running) = FORKING.take() {
        running.is_forking = false;
        drop(running);
        CHANGED.notify_all();
    }
}

#[pyfunction]
pub(crate) fn after_fork_in_child() {
    let before =
        mem::replace(&mut *THREADS.lock().unwrap_or_else(PoisonError::into_inner), Threads::Child(None));
    mem::forget(before); // dropping the pool would wait for threads that this process does not have
    after_fork();
}
