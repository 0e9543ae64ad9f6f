//! Attention to be timed by the host, which has a clock: compressed, and as a plain loop in f32.

use crate::{floats, plain, say};
use alloc::{boxed::Box, string::ToString, vec, vec::Vec};
use core::slice;
use octaplex::{Backend, CacheConfig, KvCache};

const TOKENS: usize = 2000;
const HEADS: usize = 2;
const QUERIES: usize = 8;

/// 2,000 tokens of two heads, and eight queries.
pub struct Run {
    cache: Option<KvCache>,
    dim: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
    scores: Vec<f32>,
    output: Vec<f32>,
}

/// A run of `codec backend`, or of plain f32 for an empty text; null, and why, if there is none. `rows` are the f32
/// keys and values, \[head]\[token], and then the queries.
///
/// # Safety
/// The pointers and lengths describe bytes that the caller wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prepare(
    text: *const u8,
    text_len: usize,
    dim: usize,
    rows: *const u8,
    rows_len: usize,
) -> *mut Run {
    // SAFETY: the caller's promise.
    let (text, rows) =
        unsafe { (slice::from_raw_parts(text, text_len), slice::from_raw_parts(rows, rows_len)) };
    let rows = floats(rows);
    let (keys, rest) = rows.split_at(HEADS * TOKENS * dim);
    let (values, queries) = rest.split_at(HEADS * TOKENS * dim);
    let cache = str::from_utf8(text).unwrap_or_default().split_once(' ').map(|(codec, backend)| {
        let backend =
            Backend::named(backend).ok_or(octaplex::Error::Unsupported { why: "no such backend" })?;
        let mut config = CacheConfig::new(1, HEADS, dim, TOKENS);
        (config.each.keys, config.each.values) = (codec.parse()?, codec.parse()?);
        let mut cache = KvCache::new(config.layers(), backend)?;
        cache.reserve(QUERIES);
        cache.append(0, keys, values)?;
        Ok::<_, octaplex::Error>(cache)
    });
    match cache.transpose() {
        Err(error) => {
            say(&error.to_string());
            core::ptr::null_mut()
        }
        Ok(cache) => Box::into_raw(Box::new(Run {
            cache,
            dim,
            keys: keys.to_vec(),
            values: values.to_vec(),
            queries: queries.to_vec(),
            scores: vec![0.0; TOKENS],
            output: vec![0.0; QUERIES * dim],
        })),
    }
}

/// Attends once; 0 when all went well.
///
/// # Safety
/// `run` comes from [`prepare`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn attend(run: *mut Run) -> u32 {
    // SAFETY: the caller's promise.
    let run = unsafe { &mut *run };
    if let Some(cache) = &mut run.cache {
        return u32::from(cache.attend(0, &run.queries, &mut run.output).is_err());
    }
    let (rows, queries) = (TOKENS * run.dim, QUERIES / HEADS * run.dim);
    let scale = 1.0 / libm::sqrtf(run.dim as f32);
    for head in 0..HEADS {
        plain::attention(
            libm::expf,
            &run.queries[head * queries..][..queries],
            &run.keys[head * rows..][..rows],
            &run.values[head * rows..][..rows],
            scale,
            &mut run.scores,
            &mut run.output[head * queries..][..queries],
        );
    }
    0
}
