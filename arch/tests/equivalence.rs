//! Every available backend equals the specification bit for bit. With
//! `OCTAPLEX_REQUIRE=avx2,avx512`, a missing backend is an error (`parts.rs`).

extern crate alloc;

#[path = "buffers/painted.rs"]
mod buffer;
mod methods;
mod suite;

use octaplex_arch::Backend;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::{iter, thread};

#[test]
fn every_backend_equals_the_specification() {
    let backends: Vec<_> = Backend::available().collect();
    let (backends, next) = (&backends, &Mutex::new(suite::checks()));
    let work = || {
        let next = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        let failed = |&(name, check): &(&str, suite::Check)| {
            check(backends).err().map(|words| format!("{name}: {words}"))
        };
        iter::from_fn(next).filter_map(failed).collect::<Vec<_>>()
    };
    let failures: Vec<String> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let runs: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        runs.into_iter()
            .flat_map(|run| run.join().unwrap_or_else(|_| vec!["a kernel panicked".into()]))
            .collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A kernel without a check would be a kernel without a specification.
#[test]
fn every_kernel_has_a_check() {
    let mut methods: Vec<&str> = methods::all()
        // Not kernels: the benchmarks' baseline, which is not bit-exact, and a hint, which computes
        // nothing.
        .filter(|method| !["f16_dot_fma", "prefetch"].contains(method))
        .collect();
    let mut checks: Vec<&str> = suite::KERNELS.iter().map(|(name, _)| *name).collect();
    methods.sort_unstable();
    checks.sort_unstable();
    assert_eq!(methods, checks);
}
