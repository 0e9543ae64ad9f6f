use super::*;

#[test]
fn kernels_have_as_much_shared_memory_as_there_is() {
    assert_eq!(fits(65_536, 65_536), Ok(()));
    assert_eq!(fits(65_537, 65_536), Err(Failure::SharedMemory { needed: 65_537, most: 65_536 }));
}

/// A source with errors fails to compile, or there is no compiler.
#[test]
fn a_source_with_errors_is_refused() {
    for (vendor, target) in [(Vendor::Nvidia, "compute_80"), (Vendor::Amd, "gfx90a")] {
        match compile(vendor, c"this is no C++", target, &[]) {
            Err(Failure::NoCompiler(missing)) => assert_eq!(missing, vendor),
            Err(Failure::Compile(log)) => assert!(!log.is_empty() && Vendor::ALL.contains(&vendor)),
            other => unreachable!("{vendor:?}: {other:?}"),
        }
    }
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let is_built = Vendor::ALL.contains(&vendor);
        let driver = driver_of(vendor).map(drop);
        assert!(is_built || driver == Err(Failure::NoDriver), "{vendor:?}: {driver:?}");
    }
}
