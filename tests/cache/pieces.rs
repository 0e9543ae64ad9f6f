//! Tokens that come in pieces and at once, and so do queries.

use super::{attend, spec};
use crate::common::{Random, bits};
use octaplex::{Attend, Backend, KvCache, LayerConfig};

/// More queries than share a pass, on every backend: each gets the bits that it gets alone.
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
            let mut random = Random::new(5);
            let config = LayerConfig::new(1, D, TOKENS).keys(spec(keys)).values(spec(values));
            let mut cache = KvCache::new([config], backend).unwrap();
            cache.append(0, &random.gaussians(TOKENS * D), &random.gaussians(TOKENS * D)).unwrap();
            let queries = random.gaussians(75 * D);
            let block = attend(&mut cache, &queries, &Attend::default().queries(75));
            for (i, (query, output)) in queries.chunks_exact(D).zip(block.chunks_exact(D)).enumerate() {
                let options = Attend::default().position(TOKENS - 75 + i);
                let alone = attend(&mut cache, query, &options);
                assert_eq!(bits(&alone), bits(output), "{keys} / {values}, {}, query {i}", backend.name());
            }
        }
    }
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
        for count in 1..330 {
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
