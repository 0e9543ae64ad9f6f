//! Every available backend equals the specification bit for bit. `OCTAPLEX_REQUIRE=avx2,avx512` makes an absent
//! backend an error (`detect.rs`).

extern crate alloc;

mod suite;

use octaplex_arch::Backend;
use std::thread;

#[test]
fn every_backend_equals_the_specification() {
    let failures: Vec<String> = thread::scope(|scope| {
        let runs: Vec<_> = Backend::available()
            .map(|backend| {
                scope.spawn(move || {
                    let failed = |&(name, check): &(&str, suite::Check)| {
                        check(backend).err().map(|words| format!("{} {name}: {words}", backend.name()))
                    };
                    suite::KERNELS.iter().filter_map(failed).collect::<Vec<_>>()
                })
            })
            .collect();
        runs.into_iter()
            .flat_map(|run| run.join().unwrap_or_else(|_| vec!["a kernel panicked".into()]))
            .collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A kernel without a check would be a kernel without a specification.
#[test]
fn every_kernel_has_a_check() {
    let contracts = [
        include_str!("../affine.rs"),
        include_str!("../angles.rs"),
        include_str!("../blocks.rs"),
        include_str!("../codes.rs"),
        include_str!("../quaternions.rs"),
        include_str!("../signs.rs"),
        include_str!("../trellis.rs"),
        include_str!("../triplets.rs"),
        include_str!("../vectors.rs"),
    ];
    let mut methods: Vec<&str> = contracts
        .iter()
        .flat_map(|contract| contract.lines())
        .filter_map(|line| line.strip_prefix("    pub fn "))
        .filter_map(|line| line.split('(').next())
        // The benchmarks' baseline, which is not bit-exact, and a hint, which computes nothing, are no kernels.
        .filter(|method| !["f16_dot_fma", "prefetch"].contains(method))
        .collect();
    let mut checks: Vec<&str> = suite::KERNELS.iter().map(|(name, _)| *name).collect();
    methods.sort_unstable();
    checks.sort_unstable();
    assert_eq!(methods, checks);
}
