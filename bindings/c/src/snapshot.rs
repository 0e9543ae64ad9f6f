//! A cache as bytes, to keep and to move.

use crate::cache::{Inside, change, octaplex_cache, read};
use crate::error::{Failure, Result, give, octaplex_error, octaplex_status, run};
use crate::given;
use octaplex::KvCache;
use std::io::{self, Write};

/// Bytes that are counted and written, as far as there is room.
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
        Failure::Here(octaplex_status::Internal, "a snapshot that was not written: please report it")
    })?;
    Ok(out.len)
}

/// Bytes of a snapshot of the cache as it is; 0 where it fails.
///
/// # Safety
/// The handle came from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_serialized_length(
    cache: *const octaplex_cache,
    error: *mut octaplex_error,
) -> usize {
    // SAFETY: the caller's promises.
    unsafe { give(error, 0, || save(read(cache)?, &mut [])) }
}

/// Writes a snapshot into a buffer of `octaplex_cache_serialized_length` bytes or more; `used` (or null) becomes its length.
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
            let needed = save(read(cache)?, given::values_mut(buffer, length)?)?;
            if needed > length {
                let why = "the buffer is too short for the snapshot, octaplex_cache_serialized_length says how long: bytes";
                return Err(Failure::Expected(octaplex_status::Length, why, needed));
            }
            given::put(used, needed)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, save) }
}

/// Makes the cache what a snapshot says, its bytes and no more, and checks all of it. On the heap the configuration is the
/// snapshot's, except for `query_heads`, which stays; in memory that was brought it must be the cache's own but for its capacity. Where
/// it fails, the cache is as it was.
///
/// There is no view of a buffer without a copy. Pages lie in it as they do in a cache, but a cache owns its pages: it drops
/// them behind a window, and forks count who shares them. Its exact tokens are a ring, which a snapshot has in order. A view
/// would save no pass over the bytes either: every page is checked before anything attends to it.
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
    let load = || {
        // SAFETY: the caller's promises.
        unsafe {
            let bytes = given::values(buffer, length)?;
            match change(cache)? {
                Inside::Heap(cache, backend) => {
                    let mut loaded = KvCache::load(bytes, *backend)?;
                    let known = cache.layers().first().and_then(|layer| layer.config().query_heads);
                    for index in 0..loaded.layers().len() {
                        if let Some(query_heads) = known {
                            // Where they do not suit the snapshot's heads, they are not known any more.
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
