//! The cache of a model on the heap, or the cache of one layer in the caller's memory.

use crate::arguments::{self, Held};
use crate::config::{self, octaplex_attend, octaplex_config, octaplex_stats, octaplex_tensor};
use crate::error::{Failure, Result, give, octaplex_error, octaplex_status, run};
use octaplex::cache::LayerCache;
use octaplex::codecs::AnyCodec;
use octaplex::{Backend, KvCache, LayerConfig, Stats};
use std::ffi::c_void;
use std::slice;

/// Compressed keys and values of one sequence, in all layers of a model. A batch needs one cache for each sequence.
///
/// Calls that take it `const` may run at once on any threads. All other calls need exclusive access. A cache created by
/// `octaplex_cache_create_in` needs exclusive access for every call, because its calls share scratch memory.
pub struct octaplex_cache {
    _opaque: [u8; 0],
}

/// "octcache"
const WORD: u64 = u64::from_le_bytes(*b"octcache");

/// Selects all layers.
pub const OCTAPLEX_ALL_LAYERS: usize = usize::MAX;

pub(crate) enum Inside {
    /// In a box, because a `KvCache` needs a larger alignment than a handle.
    Heap(Box<KvCache>, Backend),
    Brought(&'static mut Brought),
}

/// A layer in the caller's memory, and the scratch memory of its calls.
pub(crate) struct Brought {
    pub(crate) layer: LayerCache<AnyCodec, AnyCodec, &'static mut [u8]>,
    scratch: *mut f32,
    scratch_len: usize,
}

impl Brought {
    /// # Safety
    /// No other call uses the cache meanwhile.
    #[allow(clippy::mut_from_ref)] // the caller's promise
    unsafe fn scratch(&self) -> &mut [f32] {
        // SAFETY: the plan reserves these floats in the caller's memory, and `create_in` zeroed them.
        unsafe { slice::from_raw_parts_mut(self.scratch, self.scratch_len) }
    }

    fn check(&self, layer: usize) -> Result<()> {
        let missing = octaplex::Error::Missing { what: "layer", number: layer, count: 1 };
        if layer == 0 { Ok(()) } else { Err(missing.into()) }
    }
}

/// # Safety
/// The handle is null or of this library, and nothing changes it meanwhile.
pub(crate) unsafe fn read<'a>(cache: *const octaplex_cache) -> Result<&'a Inside> {
    // SAFETY: the caller's promise; `create` returned this type.
    unsafe { Held::get(cache.cast::<Held<Inside>>(), WORD) }
}

/// # Safety
/// The handle is null or of this library, and nothing uses it meanwhile.
pub(crate) unsafe fn change<'a>(cache: *mut octaplex_cache) -> Result<&'a mut Inside> {
    // SAFETY: the caller's promise; `create` returned this type.
    unsafe { Held::get_mut(cache.cast::<Held<Inside>>(), WORD) }
}

/// Creates an empty cache that grows on the heap. Returns null on failure. Free it with `octaplex_cache_free`.
///
/// # Safety
/// The configuration begins with its size, and its strings end in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_create(
    config: *const octaplex_config,
    error: *mut octaplex_error,
) -> *mut octaplex_cache {
    let create = || {
        // SAFETY: the caller's promises.
        let (layers, backend) = unsafe {
            let (cache, choice, given) = config::read(config)?;
            (config::layers(&cache, &choice, given.first_layer)?, arguments::backend(given.backend)?)
        };
        let cache = KvCache::new(layers, backend)?;
        Ok(Box::into_raw(Box::new(Held::new(WORD, Inside::Heap(Box::new(cache), backend)))).cast())
    };
    // SAFETY: the caller's promise.
    unsafe { give(error, std::ptr::null_mut(), create) }
}

/// Offsets in the caller's memory, from the first aligned address on.
#[derive(Clone, Copy)]
struct Plan {
    scratch_len: usize,
    bytes: usize,
    /// The handle lies at offset 0; `Brought`, scratch and the layer's bytes follow.
    brought: usize,
    scratch: usize,
    layer: usize,
    end: usize,
}

const ALIGNMENT: usize = 64;
const _: () = assert!(align_of::<Held<Inside>>() <= 16 && align_of::<Brought>() <= ALIGNMENT);

impl Plan {
    fn new(config: &LayerConfig, queries: usize) -> Option<Self> {
        let next = |from: usize, bytes: usize| from.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT);
        let (scratch_len, bytes) = (config.scratch_len(queries), config.required_bytes());
        let brought = next(0, size_of::<Held<Inside>>())?;
        let scratch = next(brought, size_of::<Brought>())?;
        let layer = next(scratch, scratch_len.checked_mul(size_of::<f32>())?)?;
        let end = next(layer, bytes)?.checked_add(ALIGNMENT)?;
        (bytes > 0 && end <= isize::MAX as usize).then_some(Self {
            scratch_len,
            bytes,
            brought,
            scratch,
            layer,
            end,
        })
    }
}

/// # Safety
/// As for [`octaplex_cache_create`].
unsafe fn plan(config: *const octaplex_config, queries: usize) -> Result<(LayerConfig, Backend, Plan)> {
    // SAFETY: the caller's promises.
    let (cache, backend, first) = unsafe {
        let (cache, choice, given) = config::read(config)?;
        if choice.profile.is_some() {
            let why =
                "octaplex_cache_create_in holds one layer, and a profile is of all: set keys and values";
            return Err(Failure::Here(octaplex_status::Unsupported, why));
        }
        (cache.with_codecs(&choice)?, arguments::backend(given.backend)?, given.first_layer)
    };
    let mut layers = cache.layers();
    let (Some(layer), None) = (layers.next(), layers.next()) else {
        let why = "octaplex_cache_create_in holds one layer: set layers to 1, and first_layer to its number";
        return Err(Failure::Here(octaplex_status::Unsupported, why));
    };
    let layer = layer.layer(layer.layer.wrapping_add(first));
    // The constructor on the heap reports what is wrong with a configuration, because the plan builds no codecs.
    let Some(plan) = Plan::new(&layer, queries) else {
        octaplex::cache::SharedLayer::on_heap(&layer, backend)?;
        let why = "the configuration takes more memory than this machine can address: lower capacity";
        return Err(Failure::Here(octaplex_status::Length, why));
    };
    Ok((layer, backend, plan))
}

/// Returns the bytes that `octaplex_cache_create_in` needs, or 0 on failure. `queries` is the largest number of query
/// rows in a call of `octaplex_cache_attend`: query heads times queries of each head.
///
/// # Safety
/// As for `octaplex_cache_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_memory_needed(
    config: *const octaplex_config,
    queries: usize,
    error: *mut octaplex_error,
) -> usize {
    // SAFETY: the caller's promises.
    unsafe { give(error, 0, || Ok(plan(config, queries)?.2.end)) }
}

/// Creates an empty cache of one layer in the caller's memory, of any alignment. Returns null on failure.
///
/// The cache uses the memory until `octaplex_cache_free`, which does not release it. Later calls do not allocate. This
/// call allocates only for dense rotations and sketches (`haar` and `gauss`). Rows to append must be packed. The cache
/// cannot be forked.
///
/// # Safety
/// As for `octaplex_cache_create`. `memory` has `length` bytes that nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_create_in(
    config: *const octaplex_config,
    queries: usize,
    memory: *mut c_void,
    length: usize,
    error: *mut octaplex_error,
) -> *mut octaplex_cache {
    let create = || {
        // SAFETY: the caller's promises. Every byte is written before it is read. The plan aligns the handle, the layer and
        // the scratch memory, and they do not overlap.
        unsafe {
            let (config, backend, plan) = plan(config, queries)?;
            let (memory, length) =
                (arguments::values_mut(memory.cast::<std::mem::MaybeUninit<u8>>(), length)?, length);
            if length < plan.end {
                let why = "the memory is too short, see octaplex_cache_memory_needed: expected at least this many bytes:";
                return Err(Failure::Expected(octaplex_status::Length, why, plan.end));
            }
            let base = memory.as_mut_ptr().cast::<u8>();
            let base = base.add(base.align_offset(ALIGNMENT));
            base.add(plan.scratch).write_bytes(0, plan.layer - plan.scratch + plan.bytes);
            let bytes = slice::from_raw_parts_mut(base.add(plan.layer), plan.bytes);
            let layer = LayerCache::new(&config, backend, bytes)?;
            let brought = base.add(plan.brought).cast::<Brought>();
            let scratch = base.add(plan.scratch).cast();
            brought.write(Brought { layer, scratch, scratch_len: plan.scratch_len });
            let handle = base.cast::<Held<Inside>>();
            handle.write(Held::new(WORD, Inside::Brought(&mut *brought)));
            Ok(handle.cast())
        }
    };
    // SAFETY: the caller's promise.
    unsafe { give(error, std::ptr::null_mut(), create) }
}

/// Frees a cache. Null does nothing. The memory of `octaplex_cache_create_in` stays with its owner.
///
/// # Safety
/// No other call uses it, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_free(
    cache: *mut octaplex_cache,
    error: *mut octaplex_error,
) -> octaplex_status {
    let free = || {
        if cache.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promises.
        unsafe {
            let held = cache.cast::<Held<Inside>>();
            match change(cache)? {
                Inside::Heap(..) => Held::free(held, WORD),
                Inside::Brought(brought) => {
                    std::ptr::drop_in_place(&raw mut **brought);
                    Held::empty(held, WORD)
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, free) }
}

/// Preallocates scratch memory for `queries` query rows, so that attention does not allocate. Query rows are query
/// heads times queries of each head.
///
/// # Safety
/// The handle is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_reserve(
    cache: *mut octaplex_cache,
    queries: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let reserve = || {
        // SAFETY: the caller's promises.
        match unsafe { change(cache) }? {
            Inside::Heap(cache, _) if queries <= 1 << 24 => cache.reserve(queries)?,
            Inside::Brought(brought)
                if brought.layer.config().scratch_len(queries) <= brought.scratch_len => {}
            _ => {
                let why = "too many query rows: pass at most 2^24, and at most the queries of octaplex_cache_create_in";
                return Err(Failure::Here(octaplex_status::Length, why));
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, reserve) }
}

/// Returns a layer's configuration.
fn config_of(inside: &Inside, layer: usize) -> Result<LayerConfig> {
    match inside {
        Inside::Heap(cache, _) => {
            let missing =
                octaplex::Error::Missing { what: "layer", number: layer, count: cache.layers().len() };
            Ok(*cache.layers().get(layer).ok_or(missing)?.config())
        }
        Inside::Brought(brought) => brought.check(layer).map(|()| *brought.layer.config()),
    }
}

/// Appends `tokens` tokens to a layer: keys and values of all heads. Keys come after the rotary embedding. The bytes
/// do not depend on how many tokens a call appends. After an error the cache is unchanged.
///
/// # Safety
/// The tensors' data are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_append(
    cache: *mut octaplex_cache,
    layer: usize,
    tokens: usize,
    keys: *const octaplex_tensor,
    values: *const octaplex_tensor,
    error: *mut octaplex_error,
) -> octaplex_status {
    let append = || {
        // SAFETY: the caller's promises.
        unsafe {
            let inside = change(cache)?;
            let config = config_of(inside, layer)?;
            let keys = config::rows(keys, (config.kv_heads, tokens, config.key_dim))?;
            let values = config::rows(values, (config.kv_heads, tokens, config.value_dim))?;
            match inside {
                Inside::Heap(cache, _) => Ok(cache.append(layer, keys.tensor(), values.tensor())?),
                Inside::Brought(brought) => {
                    if !keys.are_packed() || !values.are_packed() {
                        let why = "a cache of octaplex_cache_create_in takes packed rows, [heads][tokens][width]: set the \
                                   strides to 0";
                        return Err(Failure::Here(octaplex_status::Unsupported, why));
                    }
                    let scratch = slice::from_raw_parts_mut(brought.scratch, brought.scratch_len);
                    Ok(brought.layer.append(keys.tensor(), values.tensor(), scratch)?)
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, append) }
}

/// Decides a layer's balance from keys and queries of a prompt, which is better than from keys alone. Call it before
/// the first page closes. Keys are `[kv heads][tokens][width]`, queries `[query heads][queries][width]`.
/// The command `octaplex calibrate` is something else: it writes a profile.
///
/// # Safety
/// The buffers have their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_calibrate(
    cache: *mut octaplex_cache,
    layer: usize,
    keys: *const f32,
    keys_length: usize,
    queries: *const f32,
    queries_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let calibrate = || {
        // SAFETY: the caller's promises.
        unsafe {
            let (keys, queries) =
                (arguments::values(keys, keys_length)?, arguments::values(queries, queries_length)?);
            match change(cache)? {
                Inside::Heap(cache, _) => Ok(cache.calibrate(layer, keys, queries)?),
                Inside::Brought(brought) => {
                    brought.check(layer)?;
                    Ok(brought.layer.calibrate(keys, queries)?)
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, calibrate) }
}

/// Computes attention on a layer. Queries are `[query heads][queries][key width]`, outputs
/// `[query heads][queries][value width]`.
///
/// `options` may be null if the configuration sets `query_heads`. Otherwise set `options.queries`: heads and queries
/// cannot be told apart by length alone. The result is bit-exact on every machine. After an error the output is
/// unspecified.
///
/// # Safety
/// The buffers have their lengths and do not overlap; the options begin with their size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_attend(
    cache: *const octaplex_cache,
    layer: usize,
    queries: *const f32,
    queries_length: usize,
    options: *const octaplex_attend,
    output: *mut f32,
    output_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let attend = || {
        // SAFETY: the caller's promises.
        unsafe {
            let (queries, options) = (arguments::values(queries, queries_length)?, config::attend(options)?);
            let output = arguments::values_mut(output, output_length)?;
            let inside = read(cache)?;
            if options.queries.is_none() && config_of(inside, layer)?.query_heads.is_none() {
                let why = "the number of queries is unknown: set query_heads in the octaplex_config, or queries in the \
                           octaplex_attend (1 for one query of each head)";
                return Err(Failure::Here(octaplex_status::Unsupported, why));
            }
            match inside {
                Inside::Heap(cache, _) => Ok(cache.attend_with(layer, queries, &options, output)?),
                Inside::Brought(brought) => {
                    brought.check(layer)?;
                    Ok(brought.layer.attend_with(queries, &options, output, brought.scratch())?)
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, attend) }
}

/// Computes scores q·k of a key/value head, without scale and mask, for engines with their own softmax.
///
/// Queries are `[queries][width]`, scores `[queries][tokens]`. `tokens` in `octaplex_stats` is the layer's number of
/// tokens.
///
/// # Safety
/// The buffers have their lengths, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_score(
    cache: *const octaplex_cache,
    layer: usize,
    head: usize,
    queries: *const f32,
    queries_length: usize,
    scores: *mut f32,
    scores_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let score = || {
        // SAFETY: the caller's promises.
        unsafe {
            let queries = arguments::values(queries, queries_length)?;
            let scores = arguments::values_mut(scores, scores_length)?;
            match read(cache)? {
                Inside::Heap(cache, _) => Ok(cache.scores(layer, head, queries, scores)?),
                Inside::Brought(brought) => {
                    brought.check(layer)?;
                    Ok(brought.layer.scores(head, queries, scores, brought.scratch())?)
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, score) }
}

/// Computes Σ weight·v of a key/value head. Weights are `[rows][tokens]`, outputs `[rows][value width]`.
///
/// # Safety
/// The buffers have their lengths, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_accumulate(
    cache: *const octaplex_cache,
    layer: usize,
    head: usize,
    weights: *const f32,
    weights_length: usize,
    output: *mut f32,
    output_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let accumulate = || {
        // SAFETY: the caller's promises.
        unsafe {
            let weights = arguments::values(weights, weights_length)?;
            let output = arguments::values_mut(output, output_length)?;
            match read(cache)? {
                Inside::Heap(cache, _) => Ok(cache.accumulate(layer, head, weights, output)?),
                Inside::Brought(brought) => {
                    brought.check(layer)?;
                    Ok(brought.layer.accumulate(head, weights, output, brought.scratch())?)
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, accumulate) }
}

/// Removes the tokens from `position` on, in every layer, for example after rejected drafts. Up to `max_rollback`
/// tokens back the cache is exactly what it was before. After an error the cache is unchanged.
///
/// # Safety
/// The handle is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_truncate(
    cache: *mut octaplex_cache,
    position: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let truncate = || {
        // SAFETY: the caller's promises.
        match unsafe { change(cache) }? {
            Inside::Heap(cache, _) => Ok(cache.truncate(position)?),
            Inside::Brought(brought) => Ok(brought.layer.truncate(position)?),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, truncate) }
}

/// Drops the pages that lie entirely in positions `first..last` (`last` excluded), in every layer. Other tokens keep
/// their positions. `dropped`, if not null, receives the number of dropped tokens, summed over layers.
///
/// # Safety
/// The handle is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_evict(
    cache: *mut octaplex_cache,
    first: usize,
    last: usize,
    dropped: *mut usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let evict = || {
        // SAFETY: the caller's promises.
        unsafe {
            let tokens = match change(cache)? {
                Inside::Heap(cache, _) => cache.evict(first..last),
                Inside::Brought(brought) => brought.layer.evict(first..last),
            };
            arguments::put(dropped, tokens)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, evict) }
}

/// Removes all tokens.
///
/// # Safety
/// The handle is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_clear(
    cache: *mut octaplex_cache,
    error: *mut octaplex_error,
) -> octaplex_status {
    let clear = || {
        // SAFETY: the caller's promises.
        match unsafe { change(cache) }? {
            Inside::Heap(cache, _) => cache.clear(),
            Inside::Brought(brought) => brought.layer.clear(),
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, clear) }
}

/// Creates a second cache with the same tokens. The two share closed pages, change independently, and are freed
/// separately. Returns null on failure.
///
/// # Safety
/// The handle is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_fork(
    cache: *const octaplex_cache,
    error: *mut octaplex_error,
) -> *mut octaplex_cache {
    let fork = || {
        // SAFETY: the caller's promises.
        match unsafe { read(cache) }? {
            Inside::Heap(cache, backend) => {
                let fork = Inside::Heap(Box::new(cache.try_fork()?), *backend);
                Ok(Box::into_raw(Box::new(Held::new(WORD, fork))).cast())
            }
            Inside::Brought(_) => {
                let why = "a cache of octaplex_cache_create_in cannot be forked: save it, and load it into another one";
                Err(Failure::Here(octaplex_status::Unsupported, why))
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { give(error, std::ptr::null_mut(), fork) }
}

/// Fills in the statistics of a layer, or of all layers together (`OCTAPLEX_ALL_LAYERS`).
///
/// # Safety
/// `stats` begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_cache_get_stats(
    cache: *const octaplex_cache,
    layer: usize,
    stats: *mut octaplex_stats,
    error: *mut octaplex_error,
) -> octaplex_status {
    let fill = || {
        // SAFETY: the caller's promises.
        unsafe {
            let inside = read(cache)?;
            let all = layer == OCTAPLEX_ALL_LAYERS;
            let config = config_of(inside, if all { 0 } else { layer })?;
            let held: Stats = match inside {
                Inside::Heap(cache, _) if all => cache.stats(),
                Inside::Heap(cache, _) => cache.layers()[layer].stats(),
                Inside::Brought(brought) => brought.layer.stats(),
            };
            let page_bits = match inside {
                Inside::Heap(cache, _) if all => {
                    let bits = cache.layers().iter().map(|layer| layer.config().page_bits());
                    bits.sum::<f64>() / cache.layers().len() as f64
                }
                _ => config.page_bits(),
            };
            config::put_stats(stats, &held, config.capacity, page_bits)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, fill) }
}
