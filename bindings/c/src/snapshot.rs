//! Snapshots: saves a cache to bytes, and loads it.

use crate::arguments;
use crate::cache::{Inside, change, octaplex_cache, read};
use crate::error::{Failure, Result, give, octaplex_error, octaplex_status, run};
use octaplex::KvCache;
use std::io::{self, Write};

/// Counts bytes, and writes those that fit the buffer.
struct Out<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(buffer) = self.buffer.get_mut(self.len..).and_then(|buffer| buffer.get_mut(..bytes.len()))
        {
            buffer.copy_from_slice(bytes);
        }
        self.len = self.len.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn save(inside: &Inside, buffer: &mut [u8]) -> Result<usize> {
    let mut out = Out { buffer, len: 0 };
    let saved = match inside {
        Inside::Heap(cache, _) => cache.save_to(&mut out),
        Inside::Brought(brought) => {
            let mut saved = Ok(());
            brought.layer.save(&mut |bytes| saved = out.write_all(bytes));
            saved
        }
    };
    saved.map_err(|_| {
        Failure::Here(
            octaplex_status::Internal,
            "octaplex has a bug: a snapshot was not written. Please report it",
        )
    })?;
    Ok(out.len)
}

/// Returns the length of a snapshot of the cache in its current state, or 0 on failure.
///
/// # Safety
/// The handle is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_serialized_length(
    cache: *const octaplex_cache,
    error: *mut octaplex_error,
) -> usize {
    // SAFETY: the caller's promises.
    unsafe { give(error, 0, || save(read(cache)?, &mut [])) }
}

/// Writes a snapshot into a buffer of at least `octaplex_cache_serialized_length` bytes. `used`, if not null, receives
/// its length.
///
/// # Safety
/// The buffer has its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_save_buffer(
    cache: *const octaplex_cache,
    buffer: *mut u8,
    length: usize,
    used: *mut usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let save = || {
        // SAFETY: the caller's promises.
        unsafe {
            let needed = save(read(cache)?, arguments::values_mut(buffer, length)?)?;
            if needed > length {
                let why = "the buffer is too short, see octaplex_cache_serialized_length: expected at least this many bytes:";
                return Err(Failure::Expected(octaplex_status::Length, why, needed));
            }
            arguments::put(used, needed)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, save) }
}

/// Replaces the cache's contents with a snapshot of exactly `length` bytes, after checking and copying all of it. After
/// an error the cache is unchanged.
///
/// A cache on the heap takes the snapshot's configuration and keeps its own `query_heads`. The configuration of a cache
/// of `octaplex_cache_create_in` must equal the snapshot's, except for `capacity`.
///
/// # Safety
/// The buffer has its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_load_buffer(
    cache: *mut octaplex_cache,
    buffer: *const u8,
    length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    // There is no view of a buffer without a copy. A cache owns its pages: it drops them, and forks share them. Its
    // exact tokens are a ring, which a snapshot stores in order. A view would save no pass over the bytes: loading
    // checks every page.
    let load = || {
        // SAFETY: the caller's promises.
        unsafe {
            let bytes = arguments::values(buffer, length)?;
            match change(cache)? {
                Inside::Heap(cache, backend) => {
                    let mut loaded = KvCache::load(bytes, *backend)?;
                    let known = cache.layers().first().and_then(|layer| layer.config().query_heads);
                    for index in 0..loaded.layers().len() {
                        if let Some(query_heads) = known {
                            // If the number does not suit the snapshot's heads, it stays unknown.
                            let _ = loaded.layer_mut(index)?.set_query_heads(query_heads);
                        }
                    }
                    **cache = loaded;
                }
                Inside::Brought(brought) => brought.layer.load(bytes)?,
            }
            Ok(())
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, load) }
}
