use super::*;

#[test]
fn kernels_have_as_much_shared_memory_as_there_is() {
    assert_eq!(fits(65_536, 65_536), Ok(()));
    assert_eq!(fits(65_537, 65_536), Err(Failure::SharedMemory { needed: 65_537, most: 65_536 }));
}

/// Without its compiler, or by it: a text that is none is refused, and nothing else happens.
#[test]
fn a_text_that_is_none_is_refused() {
    for (maker, target) in [(Maker::Nvidia, "compute_80"), (Maker::Amd, "gfx90a")] {
        match compile(maker, c"this is no C++", target, &[]) {
            Err(Failure::NoCompiler(missing)) => assert_eq!(missing, maker),
            Err(Failure::Compile(log)) => assert!(!log.is_empty() && Maker::ALL.contains(&maker)),
            other => unreachable!("{maker:?}: {other:?}"),
        }
    }
    for maker in [Maker::Nvidia, Maker::Amd] {
        let is_built = Maker::ALL.contains(&maker);
        let driver = driver_of(maker).map(drop);
        assert!(is_built || driver == Err(Failure::NoDriver), "{maker:?}: {driver:?}");
    }
}
