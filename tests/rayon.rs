//! Tests the feature `rayon`: threads share heads, parts of a head and layers of a chunk, and results have the same bits. All
//! other tests of caches and chunks run without it.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod common;

use common::{Random, bits};
use octaplex::chunk::{ChunkCodec, ChunkConfig};
use octaplex::codecs::HeadId;
use octaplex::{Backend, CodecSpec, KvCache, LayerConfig};

/// Returns the result of a function in a pool of `threads` threads.
fn with<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

#[test]
fn attention_has_the_bits_of_one_thread() {
    let mut random = Random::new(6);
    let each = LayerConfig::new(2, 64, 20_000).balance(true);
    let (rows, queries) = (random.gaussians(2 * 19_000 * 64), random.gaussians(2 * 3 * 64));
    let run = || {
        let mut cache = KvCache::new([each], Backend::detect()).unwrap();
        cache.append(0, &rows, &rows).unwrap();
        let mut output = vec![f32::NAN; queries.len()];
        cache.attend(0, &queries, &mut output).unwrap();
        (cache.save(), bits(&output))
    };
    let alone = with(1, run);
    for threads in [2, 3, 8] {
        assert!(with(threads, run) == alone, "{threads} threads give other bits than one");
    }
}

/// Rows are looked at before heads are encoded side by side: with any number of threads the error is that of one, and the cache
/// as it was.
#[test]
fn an_append_that_fails_leaves_no_trace() {
    let config = LayerConfig::new(4, 64, 2_000);
    let mut rows = Random::new(7).gaussians(4 * 500 * 64);
    rows[4 * 499 * 64] = f32::NAN;
    let run = || {
        let mut cache = KvCache::new([config], Backend::detect()).unwrap();
        cache.append(0, &rows[..4 * 100 * 64], &rows[..4 * 100 * 64]).unwrap();
        let before = cache.save();
        (cache.append(0, &rows, &rows), cache.save() == before)
    };
    let alone = with(1, run);
    assert!(alone.0.is_err() && alone.1, "{alone:?}");
    assert_eq!(with(8, run), alone);
}

/// Pages are encoded side by side, and the error is the first page's, not the fastest one's.
#[test]
fn rows_have_the_first_pages_error() {
    let spec: CodecSpec = "turboquant".parse().unwrap();
    let codec = spec.build_dyn(64, Backend::detect(), HeadId::default()).unwrap();
    let mut rows = Random::new(9).gaussians(40 * 64 * 64);
    let alone = with(1, || codec.encode_rows(&rows));
    assert!(alone.is_ok() && with(8, || codec.encode_rows(&rows)) == alone);
    for page in [3, 4, 20, 39] {
        rows[page * 64 * 64 + 5] = f32::NAN;
    }
    let alone = with(1, || codec.encode_rows(&rows));
    assert!(alone.is_err());
    for _ in 0..20 {
        assert_eq!(with(8, || codec.encode_rows(&rows)), alone);
    }
}

#[test]
fn chunks_have_the_bytes_of_one_thread() {
    let config = ChunkConfig::new(5, 2, 64).values("hqmq:s=24,r=3,med=2".parse().unwrap());
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let tensor = Random::new(8).gaussians(10 * 130 * 2 * 64);
    let run = || {
        let (blob, mut decoded) = (codec.encode(&tensor).unwrap(), vec![0.0; tensor.len()]);
        codec.decode(&blob, &mut decoded[..]).unwrap();
        (blob, bits(&decoded))
    };
    let alone = with(1, run);
    assert!([2, 3, 8].into_iter().all(|threads| with(threads, run) == alone));
}
