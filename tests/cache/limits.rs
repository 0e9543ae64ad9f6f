//! Numbers at the limits: counts that no memory holds, and layers without a number of their own.

use super::spec;
use crate::common::Random;
use octaplex::chunk::{ChunkCodec, ChunkConfig};
use octaplex::{Attend, Backend, CacheConfig, CodecSpec, Error, KvCache, LayerConfig, Rows, RowsMut};

/// Strided rows can claim any number of tokens. The error comes before their values are looked at.
#[test]
fn strided_rows_of_any_number_are_refused_at_once() {
    let row = [0.5f32; 64];
    for sliding in [None, Some(100)] {
        let mut config = LayerConfig::new(2, 64, 4096).query_heads(4);
        config.sliding_window = sliding;
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.append(0, &[0.5; 2 * 300 * 64], &[0.5; 2 * 300 * 64]).unwrap();
        let before = cache.save();
        for tokens in [65, 5000, 1 << 31, usize::MAX / 128, usize::MAX / 4, usize::MAX - 1, usize::MAX] {
            let rows = || Rows::strided(&row, tokens, 0, 0);
            let error = cache.append(0, rows(), rows()).unwrap_err();
            match error {
                Error::Full { .. } => {}
                Error::Length { expected, actual: 64, .. } if expected == tokens => {}
                other => panic!("{tokens} tokens: {other}"),
            }
            let mut output = [0.0f32; 64];
            for options in [Attend::default(), Attend::default().queries(tokens).position(0)] {
                let output = RowsMut::strided(&mut output, tokens, 0, 0);
                assert!(cache.attend_with(0, rows(), &options, output).is_err(), "{tokens} queries");
            }
        }
        assert!(cache.save() == before);
        // As many tokens as values are rows that somebody may mean.
        cache.append(0, Rows::strided(&row, 64, 0, 0), Rows::strided(&row, 64, 0, 0)).unwrap();
        let mut output = [0.0f32; 64];
        cache.attend(0, Rows::strided(&row, 64, 0, 0), RowsMut::strided(&mut output, 64, 0, 0)).unwrap();
    }
}

#[test]
fn layers_have_numbers_of_their_own() {
    let (layer, backend) = (LayerConfig::new(1, 64, 1000), Backend::detect());
    let numbers = |layers: &[LayerConfig]| -> Result<Vec<u32>, Error> {
        let cache = KvCache::new(layers.iter().copied(), backend)?;
        Ok(cache.layers().iter().map(|layer| layer.config().layer).collect())
    };
    assert_eq!(numbers(&[layer; 3]), Ok(vec![0, 1, 2]), "nobody has numbered them");
    assert_eq!(numbers(&[layer.layer(7)]), Ok(vec![7]));
    assert_eq!(numbers(&[layer.layer(5), layer.layer(4), layer]), Ok(vec![5, 4, 0]));
    for twice in [[layer.layer(3), layer.layer(3)], [layer.layer(u32::MAX); 2]] {
        let error = numbers(&twice).unwrap_err();
        assert!(error.to_string().contains("two layers have the same number"), "{error}");
    }
    assert!(numbers(&[layer, layer.layer(1), layer]).is_err(), "some are numbered, so none is by its place");

    // Equal rows in different layers get different bytes.
    let rows = Random::new(3).gaussians(300 * 64);
    let mut cache = KvCache::new([layer; 2], backend).unwrap();
    (0..2).for_each(|layer| cache.append(layer, &rows, &rows).unwrap());
    let pages = [0, 1].map(|number| {
        let mut bytes = Vec::new();
        cache.layers()[number].save_page(0, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
        bytes.split_off(16 + 2 * 2 * 64) // the balance and the prefix centre are equal
    });
    assert!(pages[0] != pages[1]);
    // Layers that share a number, as in snapshots of earlier revisions, still load.
    let shared = KvCache::from_layers(vec![cache.layers()[0].clone(), cache.layers()[0].clone()]);
    let loaded = KvCache::load(&shared.save(), backend).unwrap();
    assert!(loaded.save() == shared.save());
}

/// No number of layers, heads, rows or tokens panics, wraps or takes for ever.
#[test]
fn numbers_at_the_limits_are_errors_or_numbers() {
    let backend = Backend::detect();
    let large = [0, 1, 65_537, 1 << 31, (1 << 32) + 1, usize::MAX / 2 + 1, usize::MAX];
    for number in large {
        for [layers, heads, width, capacity] in
            [[number, 1, 64, 1000], [1, number, 64, 1000], [1, 1, number, 1000], [1, 1, 64, number]]
        {
            let config = CacheConfig::new(layers, heads, width, capacity).boundary_layers(number);
            let _ =
                (config.page_bits(), config.for_bits(3.2), config.for_bytes(number), config.layers().next());
            if layers != 1 || heads != 1 || width != 64 || !(132..=1 << 40).contains(&capacity) {
                assert!(KvCache::builder(layers, heads, width, capacity).build().is_err() || number == 1);
            }
            let chunk = ChunkConfig::new(layers, heads, width).page(64).first_layer(u32::MAX);
            assert!(ChunkCodec::new(chunk, backend).is_err() || [layers, heads, width] == [1, 1, 64]);
        }
        let layer = LayerConfig::new(1, 64, 4096);
        for config in [
            layer.sink_tokens(number),
            layer.recent_window(number),
            layer.max_rollback(number),
            layer.sliding_window(number),
            layer.page(number),
            layer.value_dim(number),
            layer.query_heads(number),
        ] {
            let _ = (config.required_bytes(), config.scratch_len(number), config.page_bits());
            let _ = KvCache::new([config], backend);
        }
        let mut cache = KvCache::new([layer], backend).unwrap();
        cache.append(0, &[0.5; 300 * 64], &[0.5; 300 * 64]).unwrap();
        if number > 1 << 31 {
            assert!(cache.reserve(number).is_ok(), "queries share 64 rows of scratch memory");
        }
        let _ =
            (cache.truncate(number.max(300)), cache.evict(number..usize::MAX), cache.set_query_heads(number));
        let _ = (cache.calibrate(number.max(1), &[], &[]), cache.next_position(number));
        for text in ["turboquant", "trellis", "int:med=4", "hqmq:med=4", "f32", "octopus-qjl"] {
            if let Ok(spec) = text.parse::<CodecSpec>() {
                let _ = (spec.page_bytes_max(64, number), spec.page_bytes_max(number, 64));
                let codec = spec.build_dyn(64, backend, Default::default()).unwrap();
                assert!(codec.page_bytes_max(number) >= number, "{text}");
            }
        }
        let chunks = ChunkCodec::new(ChunkConfig::new(1, 1, 64).keys(spec("turboquant")), backend).unwrap();
        assert!(chunks.max_bytes(number) >= number);
    }
}
