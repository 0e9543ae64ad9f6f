//! Tokens that come in pieces and at once, and so do queries.

use super::{attend, spec};
use crate::common::{Random, bits, is_thorough};
use octaplex::{Attend, Backend, KvCache, LayerConfig};

/// Attends with more queries than share a pass. On every backend, each has the bits that it has alone.
#[test]
fn queries_of_a_block_get_the_bits_of_one() {
    const D: usize = 64;
    const TOKENS: usize = 500;
    let pairs = [
        ("turboquant", "turboquant:bits=3"),
        ("trellis", "trellis:m=8"),
        ("graded", "turboquant:bits=6"),
        ("int", "int"),
        ("octopus", "polarquant:bits=3"),
        ("f16", "hqmq"),
    ];
    for (keys, values) in pairs {
        for backend in Backend::available() {
            let config = LayerConfig::new(1, D, TOKENS).keys(spec(keys)).values(spec(values));
            check_together_and_alone(config, 1, backend);
        }
    }
}

/// Keys are so wide that the stack holds fewer prepared queries than scores, so fewer queries share a pass. With two query
/// heads, a pass ends inside a head. A sliding window begins elsewhere for each query of a pass.
#[test]
fn queries_of_wide_keys_get_the_bits_of_one() {
    for (keys, dim) in [("int", 576), ("octopus-qjl", 576), ("graded", 512)] {
        for backend in Backend::available() {
            for sliding in [None, Some(70)] {
                let mut config = LayerConfig::new(1, dim, 230).keys(spec(keys)).values(spec("f16"));
                (config.value_dim, config.sliding_window, config.max_rollback) = (32, sliding, 75);
                check_together_and_alone(config, 2, backend);
            }
        }
    }
}

/// On the longest pages, the stack does not hold the scores of all queries for codecs that work in it.
#[test]
fn queries_on_the_longest_pages_get_the_bits_of_one() {
    for (keys, dim) in
        [("graded", 128), ("int:group=16", 64), ("int:asymmetric=true", 64), ("int:med=3", 576)]
    {
        for backend in Backend::available() {
            let mut config = LayerConfig::new(1, dim, 400).keys(spec(keys)).values(spec("f16")).page(256);
            config.value_dim = 32;
            check_together_and_alone(config, 1, backend);
        }
    }
}

/// Checks that 75 queries a head in one call have the bits of each alone, in a full cache.
fn check_together_and_alone(config: LayerConfig, heads: usize, backend: Backend) {
    const QUERIES: usize = 75;
    let (dim, tokens) = (config.key_dim, config.capacity);
    let mut random = Random::new(5);
    let mut cache = KvCache::new([config], backend).unwrap();
    let (keys, values) = (random.gaussians(tokens * dim), random.gaussians(tokens * config.value_dim));
    cache.append(0, &keys, &values).unwrap();
    assert!(cache.stats().paged_tokens > 0);
    let queries = random.gaussians(heads * QUERIES * dim);
    let block = attend(&mut cache, &queries, &Attend::default().queries(QUERIES));
    let outputs = block.chunks_exact(config.value_dim);
    for (i, (query, output)) in queries.chunks_exact(dim).zip(outputs).enumerate() {
        let options = Attend::default().position(tokens - QUERIES + i % QUERIES);
        let alone = attend(&mut cache, query, &options);
        assert_eq!(bits(&alone), bits(output), "{config:?}, {}, query {i}", backend.name());
    }
}

/// Heads in calls of their own get the bits that they get together, whatever is added to their logits.
#[test]
fn heads_of_a_token_get_the_bits_of_all() {
    const D: usize = 64;
    const TOKENS: usize = 300;
    let mut random = Random::new(6);
    let mut cache = KvCache::new([LayerConfig::new(3, D, TOKENS)], Backend::detect()).unwrap();
    let rows = random.gaussians(3 * TOKENS * D);
    cache.append(0, &rows, &rows).unwrap();
    let (queries, bias, sinks) = (random.gaussians(6 * D), random.gaussians(6 * TOKENS), random.gaussians(6));
    let options = Attend::default().bias(&bias).sink_logits(&sinks);
    let last = bits(&attend(&mut cache, &queries[4 * D..], &options.first_head(2))); // with the memory of one head
    let all = bits(&attend(&mut cache, &queries, &options));
    assert_eq!(last, all[4 * D..]);
    for (first, heads) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (0, 3)] {
        let of = 2 * first * D..2 * (first + heads) * D;
        let found = attend(&mut cache, &queries[of.clone()], &options.first_head(first).heads(heads));
        assert_eq!(bits(&found), all[of], "{heads} heads from {first}");
    }
    let rest = attend(&mut cache, &queries[2 * D..], &options.first_head(1));
    assert_eq!(bits(&rest), all[2 * D..]);
}

#[test]
fn pieces_and_the_whole_are_accepted_alike() {
    const D: usize = 32;
    let rows = vec![0.25; 330 * D];
    let mut different = Vec::new();
    // Sinks, recent window, sliding window, rollback, capacity: too small, just enough, or one too few.
    for (sinks, recent, window, rollback, capacity) in [
        (0, 0, Some(64), 0, 64),
        (0, 0, Some(64), 0, 126),
        (0, 0, Some(64), 0, 127),
        (4, 0, Some(70), 10, 140),
        (4, 0, Some(70), 10, 146),
        (4, 64, Some(100), 0, 140),
        (4, 64, Some(100), 70, 190),
        (4, 64, Some(100), 70, 240),
        (4, 64, Some(1), 0, 132),
        (4, 64, Some(60), 50, 141),
        (4, 100, Some(30), 5, 168),
        (4, 64, None, 0, 400),
        (4, 64, None, 100, 400),
    ] {
        let mut config = LayerConfig::new(1, D, capacity);
        (config.sink_tokens, config.recent_window) = (sinks, recent);
        (config.sliding_window, config.max_rollback) = (window, rollback);
        let empty = KvCache::new([config], Backend::SCALAR).unwrap();
        for count in (1..330).step_by(if is_thorough() { 1 } else { 7 }) {
            for piece in [1, 50, 64] {
                let mut whole = empty.fork();
                let whole_fits = whole.append(0, &rows[..count * D], &rows[..count * D]).is_ok();
                let mut pieces = empty.fork();
                let pieces_fit =
                    rows[..count * D].chunks(piece * D).all(|rows| pieces.append(0, rows, rows).is_ok());
                if whole_fits != pieces_fit {
                    different.push(format!("{sinks} {recent} {window:?} {rollback} {capacity}: {count} by {piece}: whole {whole_fits}, pieces {pieces_fit}"));
                }
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
