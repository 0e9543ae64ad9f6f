//! Tests the errors of a build without some codecs. `ci/package.sh` runs it with one family.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::codecs::{AnyCodec, HeadId};
use octaplex::{Backend, CodecSpec, Error};

/// Every codec, and the feature that it needs to be chosen at run time.
const FEATURES: [(&str, bool, &[&str]); 9] = [
    ("trellis", cfg!(feature = "trellis"), &["trellis", "graded"]),
    ("turboquant", cfg!(feature = "turboquant"), &["turboquant"]),
    ("octopus", cfg!(feature = "octopus"), &["octopus"]),
    ("sketches", cfg!(feature = "sketches"), &["qjl", "turboquant-qjl", "octopus-qjl"]),
    ("polarquant", cfg!(feature = "polarquant"), &["polarquant"]),
    ("quaternions", cfg!(feature = "quaternions"), &["hqmq", "additive"]),
    ("integers", cfg!(feature = "integers"), &["int"]),
    ("ggml", cfg!(feature = "ggml"), &["q8_0", "q5_0", "q4_0", "iq4_nl", "tq3_0"]),
    ("fp8", cfg!(feature = "fp8"), &["fp8"]),
];

#[test]
fn a_codec_that_is_not_built_says_which_feature_it_needs() {
    for codec in CodecSpec::all() {
        let feature = FEATURES.iter().find(|(.., codecs)| codecs.contains(&codec.name));
        let (name, enabled) = feature.map_or(("", true), |(name, enabled, _)| (name, *enabled));
        for (text, dim) in codec.samples {
            // Every spec can be read and measured, also of codecs that are not built.
            let spec: CodecSpec = text.parse().unwrap();
            assert!(spec.block_bytes(*dim) > 0, "{text}");
            assert_eq!(spec.is_built(), enabled, "{text}");
            let built = AnyCodec::build(spec, *dim, Backend::detect(), HeadId::default());
            match built.map(drop) {
                Ok(()) => assert!(enabled, "{text}"),
                Err(Error::Unsupported { why }) => {
                    assert!(!enabled && why.contains(&format!("`{name}`")), "{text}: {why}");
                }
                Err(other) => panic!("{text}: {other}"),
            }
            #[cfg(feature = "alloc")]
            assert_eq!(spec.build_dyn(*dim, Backend::detect(), HeadId::default()).is_ok(), enabled, "{text}");
        }
    }
}
