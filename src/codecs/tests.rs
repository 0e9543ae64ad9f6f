//! Compares what specs say with the codecs that are built from them: memory, and the format of pages.
#![allow(clippy::unwrap_used)] // tests fail by panicking

use super::*;
use crate::page::{Shape, Sizes};
use crate::random::Role;
use alloc::vec::Vec;

#[test]
fn codecs_keep_what_they_say() {
    let mut specs: Vec<CodecSpec> = CODECS.iter().map(|codec| codec.name.parse().unwrap()).collect();
    let heavy = [
        "turboquant:rotation=haar",
        "turboquant-qjl:bits=2,rotation=haar,sketch=gauss",
        "qjl:sketch=gauss",
        "octopus-qjl:sketch=gauss",
        "hqmq:s=1,r=2",
        "hqmq:s=15,r=2",
        "hqmq:s=16,r=2",
        "hqmq:s=192,r=2",
        "hqmq:s=254,r=2",
        "hqmq:s=255,r=2,seed=5",
        "hqmq:s=192,secondary=optimised",
        "additive:k=1024",
    ];
    specs.extend(heavy.iter().map(|text| text.parse::<CodecSpec>().unwrap()));
    for spec in specs {
        for dim in [32, 64, 128, 576] {
            let mut codec = None;
            let build = || codec = spec.build_dyn(dim, Backend::detect(), HeadId::default()).ok();
            let kept = allocation_counter::measure(build).bytes_current as usize;
            if codec.is_some() {
                let said = spec.memory_bytes(dim);
                assert!(kept <= said && said <= kept + 16_000, "{spec} at {dim}: {kept} bytes, not {said}");
            }
        }
    }
}

/// A layer's memory is laid out by its spec, and read by its codec.
#[test]
fn specs_and_codecs_have_the_same_pages() {
    for codec in CODECS {
        for &(text, dim) in codec.samples {
            let spec: CodecSpec = text.parse().unwrap();
            let built = spec.build_dyn(dim, Backend::detect(), HeadId::default()).unwrap();
            for (role, tokens) in [(Role::Keys, 64), (Role::Values, 64), (Role::Keys, 1), (Role::Values, 256)]
            {
                let of_spec = Shape::new(&Sizes::of_spec(&spec, dim, tokens), role, dim, tokens);
                let of_codec = Shape::new(&Sizes::of_codec(&*built, tokens), role, dim, tokens);
                assert_eq!(of_spec, of_codec, "{text} at {dim}, {role:?}, pages of {tokens}");
            }
        }
    }
}
