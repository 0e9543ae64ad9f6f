//! Codecs for a number of bits or bytes: the largest that fit, and never more.

use super::spec;
use octaplex::cache::Finer;
use octaplex::{CacheConfig, Error, LayerConfig};

fn bytes(config: &CacheConfig) -> usize {
    config.layers().map(|layer| layer.required_bytes()).sum()
}

#[test]
fn a_budget_is_used_up() {
    for (dim, boundary) in [(64, 0), (128, 0), (128, 3), (96, 2), (256, 1)] {
        let model = CacheConfig::new(26, 4, dim, 5000).boundary_layers(boundary);
        let exact = 16.0 * 2.0 * boundary as f64 / 26.0;
        for step in 0..200 {
            let bits = exact + 2.3 + 0.09 * f64::from(step);
            let config = model.for_bits(bits).unwrap();
            assert!(config.page_bits() <= bits, "{dim}, {bits}: {}", config.page_bits());
            // One layer more with the finer codecs is too much.
            let Some(finer) = config.finer else { continue };
            let more = config.finer(Finer { layers: finer.layers + 1, ..finer });
            assert!(more.page_bits() > bits && finer.layers > 0, "{dim}, {bits}: {finer:?}");

            let total = bytes(&config);
            let same = model.for_bytes(total).unwrap();
            assert!(
                bytes(&same) <= total && bytes(&same) + bytes(&more) > 2 * total - (bytes(&more) - total)
            );
        }
        assert!(matches!(model.for_bits(1.5), Err(Error::Unsupported { .. })));
        let least = match model.for_bytes(1000) {
            Err(Error::Length { expected, actual: 1000, .. }) => expected,
            other => panic!("{other:?}"),
        };
        assert_eq!(bytes(&model.for_bytes(least).unwrap()), least);
        assert!(model.for_bytes(least - 1).is_err());
    }
    let most = CacheConfig::new(2, 1, 64, 1000).for_bits(16.5).unwrap();
    assert_eq!((most.each.keys, most.each.values, most.finer), (spec("f16"), spec("f16"), None));
}

#[test]
fn extreme_numbers_are_no_panic() {
    let most = usize::MAX;
    let wild = CacheConfig::new(most, most, 128, most);
    assert!(wild.for_bits(3.0).is_err() && wild.for_bytes(most).is_err());
    assert_eq!(wild.each.page_bits(), 0.0);
    let model = CacheConfig::new(4, 1, 64, 1000);
    for bits in [f64::NAN, -1.0, 0.0] {
        assert!(model.for_bits(bits).is_err(), "{bits}");
    }
    assert_eq!(model.for_bits(f64::INFINITY).unwrap().each.keys, spec("f16"));
    let exact = model.boundary_layers(most);
    assert!(exact.layers().all(|layer| layer.keys == spec("f16")) && exact.for_bits(16.5).is_ok());
    assert!(CacheConfig::new(most, 1, 64, 1000).for_bits(3.0).is_ok());
}

/// More bits are never a worse choice: the place in the table, then the layers with the finer codecs.
#[test]
fn more_bits_are_finer() {
    let model = CacheConfig::new(30, 2, 128, 5000);
    let mut last = (0.0, String::new());
    let mut choices = std::collections::HashSet::new();
    for step in 0..1500 {
        let config = model.for_bits(2.2 + 0.01 * f64::from(step)).unwrap();
        let chosen = format!("{} {} {:?}", config.each.keys, config.each.values, config.finer);
        if chosen != last.1 {
            assert!(config.page_bits() > last.0 && choices.insert(chosen.clone()), "{chosen}");
            last = (config.page_bits(), chosen);
        }
    }
}

#[test]
fn finer_layers_are_spread_evenly() {
    let finer = |layers| Finer { layers, keys: spec("trellis:m=8"), values: spec("trellis") };
    let model = CacheConfig::new(12, 1, 64, 1000).each(LayerConfig::new(1, 64, 1000).keys(spec("trellis")));
    let places = |config: CacheConfig| -> Vec<usize> {
        let layers = config.layers().enumerate();
        layers.filter(|(_, layer)| layer.keys == spec("trellis:m=8")).map(|(number, _)| number).collect()
    };
    assert!(places(model.finer(finer(0))).is_empty());
    assert_eq!(places(model.finer(finer(1))), [11]);
    assert_eq!(places(model.finer(finer(4))), [2, 5, 8, 11]);
    assert_eq!(places(model.finer(finer(12))), (0..12).collect::<Vec<_>>());
    assert_eq!(places(model.finer(finer(usize::MAX))), (0..12).collect::<Vec<_>>());
    // Those in f16 are none of them.
    let inner = model.boundary_layers(2).finer(finer(4));
    assert_eq!(places(inner), [3, 5, 7, 9]);
    assert!(inner.layers().filter(|layer| layer.keys == spec("f16")).count() == 4);
    assert!(places(model.boundary_layers(7).finer(finer(4))).is_empty());
}

/// As many layers have the finer codecs as the bytes allow, from a single one on.
#[test]
fn each_finer_layer_that_fits_is_used() {
    let model = CacheConfig::new(6, 2, 64, 2000);
    let coarse = model.for_bits(2.95).unwrap();
    let (coarse, finer) = (coarse.finer(Finer { layers: 0, ..coarse.finer.unwrap() }), coarse.finer.unwrap());
    let all = |layers| coarse.finer(Finer { layers, ..finer });
    let each = bytes(&all(1)) - bytes(&all(0));
    for layers in 1..6 {
        let total = bytes(&all(layers));
        assert_eq!(total, bytes(&all(0)) + layers * each);
        for (total, expected) in [(total, layers), (total + each - 1, layers), (total - 1, layers - 1)] {
            let found = model.for_bytes(total).unwrap();
            assert_eq!(found.each.keys, coarse.each.keys, "{total}");
            assert_eq!(found.finer, (expected > 0).then_some(Finer { layers: expected, ..finer }), "{total}");
            let having =
                found.layers().filter(|layer| (layer.keys, layer.values) == (finer.keys, finer.values));
            assert_eq!(having.count(), expected, "{total}");
        }
    }
}
