//! The choices and the refusals of [`KvCache::builder`].

use octaplex::{CacheConfig, CodecSpec, Error, KvCache};

fn codecs(cache: &KvCache) -> Vec<[String; 2]> {
    let configs = cache.layers().iter().map(|layer| *layer.config());
    configs.map(|config| [config.keys.to_string(), config.values.to_string()]).collect()
}

#[test]
fn the_default_is_what_is_recommended() {
    for (dim, keys) in [(128, "graded"), (64, "graded"), (96, "trellis"), (80, "trellis")] {
        let cache = KvCache::builder(3, 2, dim, 1000).build().unwrap();
        assert_eq!(codecs(&cache), vec![[keys.to_string(), "trellis".to_string()]; 3], "{dim}");
    }
}

#[test]
fn bits_and_codecs_are_those_of_configurations() {
    let config = CacheConfig::new(8, 2, 128, 1000).for_bits(2.75).unwrap();
    let expected = KvCache::new(config.layers(), octaplex::Backend::detect()).unwrap();
    let cache = KvCache::builder(8, 2, 128, 1000).bits(2.75).build().unwrap();
    assert_eq!(codecs(&cache), codecs(&expected));
    let spec: CodecSpec = "int:bits=8".parse().unwrap();
    let cache = KvCache::builder(1, 2, 128, 1000).keys("turboquant:bits=3").values(spec).build().unwrap();
    assert_eq!(codecs(&cache), [["turboquant:bits=3".to_string(), "int:bits=8".to_string()]]);
    // Settings that are not named stay as recommended.
    let cache = KvCache::builder(1, 2, 128, 1000).values("f16").build().unwrap();
    assert_eq!(codecs(&cache), [["graded".to_string(), "f16".to_string()]]);
    let builder = KvCache::builder(1, 2, 128, 1000).value_dim(64).sliding_window(300).query_heads(8);
    let cache = builder.build().unwrap();
    let config = cache.layers()[0].config();
    assert_eq!((config.value_dim, config.sliding_window, config.query_heads), (64, Some(300), Some(8)));
}

#[test]
fn build_returns_the_errors_of_invalid_specs() {
    let of = |builder: octaplex::cache::KvCacheBuilder| builder.build().map(drop);
    let begin = || KvCache::builder(1, 2, 128, 1000);
    assert!(matches!(of(begin().keys("nosuch")), Err(Error::UnknownCodec { .. })));
    // The first of two.
    let value = of(begin().values("int:bits=9").keys("nosuch"));
    assert!(matches!(value, Err(Error::Value { key: "bits", .. })), "{value:?}");
    for builder in [begin().bits(3.0).keys("trellis"), begin().values("trellis").bits(3.0), begin().bits(1.0)]
    {
        assert!(matches!(of(builder), Err(Error::Unsupported { .. })));
    }
    for bits in [f64::NAN, -1.0, 0.0] {
        assert!(of(begin().bits(bits)).is_err(), "{bits}");
    }
    assert_eq!(of(begin().query_heads(3)), Err(Error::Heads { queries: 3, kv_heads: 2 }));
    assert_eq!(of(KvCache::builder(1, 2, 100, 1000)), Err(Error::Width { actual: 100 }));
}
