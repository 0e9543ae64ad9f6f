//! Checks that attention allocates nothing: the caller gives its memory.
#![cfg(all(feature = "alloc", not(feature = "rayon")))] // threads take memory
#![allow(missing_docs, clippy::unwrap_used)] // tests fail by panicking

use crate::common::Random;
use octaplex::{Backend, Error, KvCache, LayerConfig};

#[test]
fn attend_and_append_allocate_nothing_but_pages() {
    for (keys, values) in [("turboquant", "turboquant:bits=3"), ("trellis", "octopus"), ("hqmq", "f16")] {
        let (keys, values) = (keys.parse().unwrap(), values.parse().unwrap());
        let config = LayerConfig::new(2, 64, 2000).keys(keys).values(values).balance(true);
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.reserve(8).unwrap();
        let mut random = Random::new(3);
        let (rows, queries) = (random.gaussians(2 * 1000 * 64), random.gaussians(8 * 64));
        let mut output = vec![0.0; 8 * 64];
        cache.append(0, &rows, &rows).unwrap();
        let mut scores = vec![0.0; cache.layers()[0].tokens()];
        let mut results = [const { Ok::<(), Error>(()) }; 5];
        let attends = allocation_counter::measure(|| {
            results[0] = cache.attend(0, &queries, &mut output);
        });
        assert_eq!(attends.count_total, 0, "attend");
        let products = allocation_counter::measure(|| {
            results[3] = cache.scores(0, 1, &queries[..64], &mut scores);
            results[4] = cache.accumulate(0, 1, &scores, &mut output[..64]);
        });
        assert_eq!(products.count_total, 0, "scores, accumulate");
        // A token that closes no page: it fits.
        let appends = allocation_counter::measure(|| {
            results[1] = cache.append(0, &rows[..2 * 64], &rows[..2 * 64]);
            results[2] = cache.truncate(1000);
        });
        assert_eq!(appends.count_total, 0, "append, truncate");
        results.into_iter().for_each(|result| result.unwrap());
    }
}
