//! A configuration that says how many query heads there are: the queries of a block are counted.

use crate::common::Random;
use octaplex::cache::LayerCache;
use octaplex::codecs::TurboQuant;
use octaplex::{Attend, Backend, CacheConfig, Error, KvCache, LayerConfig};

#[test]
fn a_block_of_queries_is_not_taken_for_more_heads() {
    let mut random = Random::new(1);
    let (tokens, queries) = (random.gaussians(2 * 200 * 64), random.gaussians(8 * 5 * 64));
    let each = LayerConfig::new(2, 64, 1000).query_heads(8);
    let mut cache =
        KvCache::new(CacheConfig::new(1, 0, 0, 0).each(each).layers(), Backend::detect()).unwrap();
    cache.append(0, &tokens, &tokens).unwrap();
    let (mut output, mut expected) = (vec![0.0; 8 * 5 * 64], vec![0.0; 8 * 5 * 64]);
    let attend = |cache: &KvCache, options: &Attend, output: &mut [f32]| {
        cache.attend_with(0, &queries[..output.len()], options, output)
    };
    let rows = |heads, each, actual| Err(Error::Rows { what: "queries", heads, width: 64, each, actual });
    assert_eq!(attend(&cache, &Attend::default().queries(4), &mut output), rows(8, Some(4), 8 * 5 * 64));
    // Not even whole heads of 3 queries: the error names the heads, not the queries.
    assert_eq!(attend(&cache, &Attend::default().queries(3), &mut output), rows(8, Some(3), 8 * 5 * 64));
    assert_eq!(attend(&cache, &Attend::default().queries(5), &mut expected), Ok(()));
    assert_eq!(attend(&cache, &Attend::default(), &mut output), Ok(()));
    assert_eq!(output, expected);
    assert_eq!(attend(&cache, &Attend::default(), &mut output[..8 * 64]), Ok(()));
    assert_eq!(attend(&cache, &Attend::default(), &mut output[..4 * 64]), rows(8, None, 4 * 64));
    assert_eq!(attend(&cache, &Attend::default(), &mut output[..12 * 64]), rows(8, None, 12 * 64));
    // A part of the key/value heads has its share of the query heads.
    let part = Attend::default().first_head(1);
    assert_eq!(attend(&cache, &part.queries(5), &mut output[..4 * 5 * 64]), Ok(()));
    assert_eq!(attend(&cache, &part.heads(1), &mut output[..4 * 5 * 64]), Ok(()));
    assert_eq!(attend(&cache, &part.heads(1), &mut output[..5 * 64]), rows(4, None, 5 * 64));

    // Snapshots do not hold it, and fit all the same.
    let bytes = cache.save();
    let mut loaded = KvCache::load(&bytes, Backend::detect()).unwrap();
    assert_eq!(loaded.layers()[0].config().query_heads, None);
    assert_eq!(loaded.save(), bytes);
    let layer = loaded.layer_mut(0).unwrap();
    assert_eq!(layer.set_query_heads(7), Err(Error::Heads { queries: 7, kv_heads: 2 }));
    layer.set_query_heads(8).unwrap();
    assert_eq!(attend(&loaded, &Attend::default(), &mut output), Ok(()));
    assert_eq!(output, expected);
    let mut page = Vec::new();
    cache.layers()[0].save_page(0, &mut |bytes| page.extend_from_slice(bytes)).unwrap();
    let fresh = LayerConfig::new(2, 64, 1000).sink_tokens(0);
    KvCache::new([fresh], Backend::detect()).unwrap().layer_mut(0).unwrap().load_page(&page).unwrap();
    let mut one = Vec::new();
    cache.layers()[0].save(&mut |bytes| one.extend_from_slice(bytes));
    cache.layer_mut(0).unwrap().load(&one).unwrap();
    assert_eq!(cache.layers()[0].config().query_heads, Some(8));
}

#[test]
fn a_block_with_more_queries_than_tokens_is_refused() {
    let mut cache = KvCache::builder(1, 1, 64, 1000).query_heads(1).build().unwrap();
    cache.append(0, &[0.5; 64], &[0.5; 64]).unwrap();
    let refused = cache.attend(0, &[0.1; 2 * 64], &mut [0.0; 2 * 64]).unwrap_err();
    let said = "queries of a head, at most one for each token that was appended: expected 1, got 2";
    assert_eq!(refused.to_string(), said);
}

#[test]
fn query_heads_that_key_value_heads_do_not_divide_are_refused() {
    for query_heads in [0, 1, 3, usize::MAX] {
        let config = LayerConfig::new(2, 64, 1000).query_heads(query_heads);
        let heads = Error::Heads { queries: query_heads, kv_heads: 2 };
        assert_eq!(KvCache::new([config], Backend::detect()).err(), Some(heads));
        assert_eq!((config.required_bytes(), config.scratch_len(1)), (0, 0));
        let cache = LayerCache::<TurboQuant<64>, TurboQuant<64>, _>::new(&config, Backend::detect(), [0; 8]);
        assert_eq!(cache.err(), Some(heads));
    }
}

#[test]
fn more_query_heads_than_any_model_has_are_refused() {
    for query_heads in [(1 << 24) + 2, usize::MAX - 1, usize::MAX / 2 + 1] {
        let config = LayerConfig::new(2, 64, 1000).query_heads(query_heads);
        let refused = KvCache::new([config], Backend::detect()).err().unwrap().to_string();
        assert!(refused.contains("at most 2^24 query heads"), "{refused}");
        assert_eq!((config.required_bytes(), config.scratch_len(1)), (0, 0));
    }
    KvCache::new([LayerConfig::new(2, 64, 1000).query_heads(1 << 24)], Backend::detect()).unwrap();
}
