//! Missing memory is an error, and the cache is as it was. The allocator of this binary refuses memory beyond a test's limit.
//!
//! Counters of a few bytes and the codecs of a layer are not covered: without memory for them, the program ends.
#![cfg(feature = "alloc")]
#![allow(missing_docs, unsafe_code, clippy::unwrap_used, clippy::panic)] // tests fail by panicking; an allocator is unsafe

use octaplex::chunk::{ChunkCodec, ChunkConfig};
use octaplex::{Backend, Error, ErrorKind, KvCache};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Limited;

thread_local! {
    /// Bytes that this thread may still allocate.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

// SAFETY: all memory is that of `System`. A null pointer means that there is none.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let left = LEFT.try_with(Cell::get).unwrap_or(usize::MAX);
        if layout.size() > left {
            return std::ptr::null_mut();
        }
        if left < usize::MAX {
            let _ = LEFT.try_with(|cell| cell.set(left - layout.size()));
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let left = LEFT.try_with(Cell::get).unwrap_or(usize::MAX);
        if left < usize::MAX {
            let _ = LEFT.try_with(|cell| cell.set(left.saturating_add(layout.size())));
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Calls `work`, which may allocate `bytes` bytes.
fn limited<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    LEFT.set(bytes);
    let result = work();
    LEFT.set(usize::MAX);
    result
}

/// Calls `work` with more and more memory until it succeeds. Before that, each call must return [`Error::Memory`].
/// Returns the number of these errors.
fn errors(from: usize, step: usize, mut work: impl FnMut() -> Result<(), Error>) -> usize {
    (0..)
        .take_while(|number| match limited(from + number * step, &mut work) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
                true
            }
        })
        .count()
}

const DIM: usize = 64;

/// A cache with 300 tokens in two layers. Pages of `int:med` vary in size.
fn cache(keys: &str) -> KvCache {
    let mut cache = KvCache::builder(2, 2, DIM, 100_000).keys(keys).build().unwrap();
    let rows = rows(300);
    (0..2).for_each(|layer| cache.append(layer, &rows, &rows).unwrap());
    cache
}

fn rows(tokens: usize) -> Vec<f32> {
    (0..tokens * 2 * DIM).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

#[test]
fn append_without_memory_is_an_error() {
    for keys in ["turboquant", "int:bits=4,med=8"] {
        let (mut cache, rows) = (cache(keys), rows(2000));
        cache.reserve(8).unwrap();
        let before = cache.save();
        let refused = errors(0, 5000, || {
            let result = cache.append(1, &rows, &rows);
            if result.is_err() {
                // Comparing takes memory.
                let left = LEFT.replace(usize::MAX);
                assert!(cache.save() == before);
                LEFT.set(left);
            }
            result
        });
        assert!(refused > 20, "{keys}: {refused}");
        assert_eq!(cache.next_position(1).unwrap(), 2300);
    }
}

#[test]
fn fork_save_and_load_without_memory_are_errors() {
    let mut cache = cache("turboquant");
    let rows = rows(5000);
    cache.append(0, &rows, &rows).unwrap();
    let snapshot = cache.save();
    assert!(errors(0, 3000, || cache.try_fork().map(drop)) > 10);
    assert!(errors(0, 20_000, || cache.try_save().map(drop)) > 10);
    // Codecs and counters take a few bytes that are not checked.
    assert!(errors(100_000, 20_000, || KvCache::load(&snapshot, Backend::detect()).map(drop)) > 10);

    let mut other = KvCache::builder(1, 2, DIM, 100_000).keys("turboquant").build().unwrap();
    other.append(0, &rows, &rows).unwrap();
    let mut saved = Vec::new();
    cache.layers()[0].save(&mut |piece| saved.extend_from_slice(piece));
    let before = other.save();
    let result = limited(100_000, || other.layer_mut(0).unwrap().load(&saved));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Memory);
    assert!(other.save() == before, "the layer is as it was");
}

#[test]
fn chunks_without_memory_are_errors() {
    let codec = ChunkCodec::new(ChunkConfig::new(1, 2, DIM), Backend::detect()).unwrap();
    let tensor = [rows(5000), rows(5000)].concat();
    let scratch = 200_000; // counters of the pages, and rows of a page that is decoded
    assert!(errors(scratch, 20_000, || codec.encode(&tensor).map(drop)) > 1);
    let blob = codec.encode(&tensor).unwrap();
    let mut cache = KvCache::builder(1, 2, DIM, 100_000).layer(|layer| layer.sink_tokens(0)).build().unwrap();
    assert!(errors(scratch, 20_000, || cache.append_chunk(&blob)) > 1);
}

#[test]
fn blocks_without_memory_are_errors() {
    let spec: octaplex::CodecSpec = "turboquant".parse().unwrap();
    let codec = spec.build_dyn(DIM, Backend::detect(), Default::default()).unwrap();
    let rows = rows(2000);
    let counters = 20_000; // of the pages
    assert!(errors(counters, 20_000, || codec.encode_rows(&rows).map(drop)) > 1);
    let blocks = codec.encode_rows(&rows).unwrap();
    assert!(errors(counters, 20_000, || codec.decode_rows(&blocks).map(drop)) > 1);
    assert!(errors(counters, 20_000, || codec.score_rows(&rows[..20 * DIM], &blocks).map(drop)) > 1);
}

#[test]
fn the_error_says_how_many_bytes() {
    let mut cache = cache("turboquant");
    cache.reserve(8).unwrap();
    let rows = rows(1000);
    let error = limited(1000, || cache.append(0, &rows, &rows)).unwrap_err();
    let Error::Memory { bytes, .. } = error else { panic!("{error}") };
    assert!(error.to_string().contains(&format!("cannot allocate {bytes} bytes for pages")), "{error}");
    assert!(bytes > 15 * 64 * 2 * 2 * DIM * 4 / 8, "more than the codes of 15 pages");
}
