//! Caches: a model's keys and values over time, and attention on them.

use crate::memory::{expect_memory, input, output, words};
use crate::text::write;
use crate::{Failure, answer};
use alloc::boxed::Box;
use core::fmt;
use octaplex::cache::{Center, Choice};
use octaplex::codecs::HeadId;
use octaplex::{
    Attend, Backend, CacheConfig, CodecSpec, Error, Floats, KvCache, LayerConfig, Profile, Stats, bf16, f16,
};

pub struct Cache {
    cache: KvCache,
    /// Query rows of all heads that fit the scratch memory.
    queries: usize,
}

const NO_QUERY_HEADS: &str = "the number of query heads is unknown: set queryHeads when you create the cache, or pass \
                              queries: 1 if each head has one query";

/// Stands for a number that JavaScript did not pass.
const NONE: u32 = u32::MAX;

fn given(number: u32) -> Option<usize> {
    (number != NONE).then_some(number as usize)
}

/// Returns an upper bound of the bytes of a layer's exact rows. A new layer allocates them.
fn exact_bytes(config: &LayerConfig) -> u64 {
    let rows = config.sink_tokens + config.recent_window + config.max_rollback + 2 * config.page + 3;
    (rows as u64).saturating_mul((config.kv_heads * 2 * (config.key_dim + config.value_dim)) as u64)
}

/// Returns an upper bound of the bytes that encoding a page needs.
fn page_bytes(config: &LayerConfig) -> u64 {
    let blocks = config.keys.page_bytes_max(config.key_dim, config.page)
        + config.values.page_bytes_max(config.value_dim, config.page);
    config.kv_heads as u64 * (blocks + 4 * config.key_dim + 64) as u64 + 64
}

/// Returns the profile of a text, for a cache of this number of layers.
fn profile(text: &str, layers: usize) -> Result<Profile, Failure> {
    // A parsed profile takes a few times the memory of its text. Solving it takes a step for each codec and layer.
    expect_memory(8 * text.len() as u64)?;
    let profile = text.parse::<Profile>().map_err(|error| misread(text, error))?;
    let codecs = text.lines().filter(|line| line.trim_start().starts_with(['k', 'v'])).count();
    expect_memory(128 * (codecs * profile.layers().min(layers)) as u64)?;
    Ok(profile)
}

/// Returns the error of a profile's text. Its line may name a codec that this module lacks.
fn misread(text: &str, error: Error) -> Failure {
    let Error::Profile { line, .. } = error else { return error.into() };
    let line = text.lines().nth(line.wrapping_sub(1)).unwrap_or_default().trim();
    let codec = line.strip_prefix("keys ").or_else(|| line.strip_prefix("values "));
    match codec.and_then(|rest| rest.split_whitespace().next()?.parse().ok()) {
        Some(spec) => Failure::of(spec, error),
        None => error.into(),
    }
}

impl Cache {
    /// The handle of a cache.
    fn handle(cache: KvCache) -> usize {
        Box::into_raw(Box::new(Self { cache, queries: 0 })).addr()
    }

    fn configured(
        numbers: &[u32; 14],
        bits: Option<f64>,
        keys: &str,
        values: &str,
        profile_text: Option<&str>,
    ) -> Result<usize, Failure> {
        let [
            layers,
            boundary,
            heads,
            key_dim,
            value_dim,
            capacity,
            page,
            sinks,
            recent,
            center,
            balance,
            window,
            rollback,
            query_heads,
        ] = numbers.map(|number| number as usize);
        // An empty text stands for the default.
        let spec = |text: &str| (!text.is_empty()).then(|| text.parse::<CodecSpec>()).transpose();
        let (keys, values) = (spec(keys)?, spec(values)?);
        let profile = profile_text.map(|text| profile(text, layers)).transpose()?;
        let mut each = LayerConfig::new(heads, key_dim, capacity)
            .value_dim(value_dim)
            .center([Center::Off, Center::Prefix, Center::Page][center.min(2)])
            .balance(balance != 0);
        let or = |number: usize, default| given(number as u32).unwrap_or(default);
        each.page = or(page, each.page);
        each.sink_tokens = or(sinks, each.sink_tokens);
        each.recent_window = or(recent, each.recent_window);
        each.max_rollback = or(rollback, each.max_rollback);
        each.sliding_window = given(window as u32);
        each.query_heads = given(query_heads as u32);
        // Errors of the configuration come before errors of memory.
        let codec = |spec: CodecSpec, dim| {
            let codec = spec.build_dyn(dim, Backend::detect(), HeadId::default());
            codec.map_err(|error| Failure::of(spec, error))
        };
        let (k, v) = (keys.unwrap_or(each.keys), values.unwrap_or(each.values));
        let named = each.keys(k).values(v);
        named.required_bytes_with(&*codec(k, key_dim)?, &*codec(v, value_dim)?)?;
        if !(1..=1 << 16).contains(&layers) {
            return Err(Error::Unsupported { why: "a cache has 1 to 65,536 layers" }.into());
        }
        expect_memory((exact_bytes(&named) + 4096).saturating_mul(layers as u64))?;
        let config = CacheConfig::new(layers, heads, key_dim, capacity).each(each).boundary_layers(boundary);
        let layers = config.choose(&Choice { keys, values, bits, profile })?;
        Ok(Self::handle(KvCache::new(layers, Backend::detect())?))
    }

    fn config(&self, layer: usize) -> Result<&LayerConfig, Error> {
        let layers = self.cache.layers();
        Ok(layers
            .get(layer)
            .ok_or(Error::Missing { what: "layer", number: layer, count: layers.len() })?
            .config())
    }

    /// Allocates scratch memory for this number of query rows, of all heads together.
    fn reserve(&mut self, layer: usize, queries: usize) -> Result<(), Failure> {
        let config = self.config(layer)?;
        if queries > self.queries {
            expect_memory(4 * config.scratch_len(queries) as u64)?;
            self.cache.reserve(queries)?;
            self.queries = queries;
        }
        Ok(())
    }

    fn append(&mut self, layer: usize, keys: Floats, values: Floats) -> Result<usize, Failure> {
        let config = *self.config(layer)?;
        let tokens = keys.len() / config.kv_heads / config.key_dim;
        expect_memory((tokens / config.page + 1) as u64 * page_bytes(&config))?;
        self.reserve(layer, 1)?;
        self.cache.append(layer, keys, values)?;
        Ok(tokens)
    }

    fn attend(
        &mut self,
        layer: usize,
        queries: &[f32],
        options: &Attend,
        out: &mut [f32],
    ) -> Result<usize, Failure> {
        let config = self.config(layer)?;
        if options.queries.is_none() && config.query_heads.is_none() {
            return Err(Error::Unsupported { why: NO_QUERY_HEADS }.into());
        }
        self.reserve(layer, queries.len() / config.key_dim)?;
        self.cache.attend_with(layer, queries, options, &mut *out)?;
        Ok(out.len())
    }

    fn scores(
        &mut self,
        layer: usize,
        head: usize,
        queries: &[f32],
        scores: &mut [f32],
    ) -> Result<usize, Failure> {
        let config = self.config(layer)?;
        self.reserve(layer, queries.len() / config.key_dim * config.kv_heads)?;
        self.cache.scores(layer, head, queries, scores)?;
        Ok(scores.len())
    }

    fn accumulate(
        &mut self,
        layer: usize,
        head: usize,
        weights: &[f32],
        sums: &mut [f32],
    ) -> Result<usize, Failure> {
        let config = self.config(layer)?;
        self.reserve(layer, sums.len() / config.value_dim * config.kv_heads)?;
        self.cache.accumulate(layer, head, weights, sums)?;
        Ok(sums.len())
    }

    fn fork(&self) -> Result<usize, Failure> {
        let layers = self.cache.layers().iter();
        let bytes = layers.map(|layer| exact_bytes(layer.config()) + 8 * (layer.tokens() / 64) as u64 + 4096);
        expect_memory(bytes.sum())?;
        Ok(Self::handle(self.cache.try_fork()?))
    }

    fn save(&self) -> Result<Box<[u8]>, Failure> {
        // A vector that grows may hold its bytes three times.
        expect_memory(4 * self.cache.stats().bytes as u64 + 4096 * self.cache.layers().len() as u64)?;
        Ok(self.cache.try_save()?.into_boxed_slice())
    }

    fn load(bytes: &[u8]) -> Result<usize, Failure> {
        expect_memory(2 * bytes.len() as u64)?;
        Ok(Self::handle(KvCache::load(bytes, Backend::detect())?))
    }
}

/// Creates an empty cache. [`Cache::configured`] names the numbers. NaN stands for no `bits`, and the length [`NONE`] for no
/// profile.
///
/// # Safety
/// There are 14 numbers. Texts are as `memory::words` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_new(
    numbers: *const [u32; 14],
    bits: f64,
    keys: *const u8,
    keys_length: usize,
    values: *const u8,
    values_length: usize,
    profile: *const u8,
    profile_length: usize,
) -> usize {
    let bits = (!bits.is_nan()).then_some(bits);
    // SAFETY: the caller's promise.
    answer(unsafe {
        let profile = given(profile_length as u32).map(|length| words(profile, length));
        Cache::configured(&*numbers, bits, words(keys, keys_length), words(values, values_length), profile)
    })
}

/// # Safety
/// The handle is from this module, and no later call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_drop(cache: *mut Cache) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(cache) });
}

/// Returns the caller's rows, in f32, f16 or bf16.
///
/// # Safety
/// As `memory::input`.
unsafe fn tensor<'a>(format: u32, at: *const u8, length: usize) -> Floats<'a> {
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            1 => Floats::F16(input(at.cast::<f16>(), length)),
            2 => Floats::Bf16(input(at.cast::<bf16>(), length)),
            _ => Floats::F32(input(at.cast::<f32>(), length)),
        }
    }
}

/// Appends tokens to a layer. The format is 0 for f32, 1 for f16 and 2 for bf16.
///
/// # Safety
/// The handle lives; the rest is as `memory::input` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_append(
    cache: *mut Cache,
    layer: usize,
    format: u32,
    keys: *const u8,
    keys_length: usize,
    values: *const u8,
    values_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe {
        (*cache).append(layer, tensor(format, keys, keys_length), tensor(format, values, values_length))
    })
}

/// Decides a layer's balance.
///
/// # Safety
/// As [`cache_append`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_calibrate(
    cache: *mut Cache,
    layer: usize,
    keys: *const f32,
    keys_length: usize,
    queries: *const f32,
    queries_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let done =
        unsafe { (*cache).cache.calibrate(layer, input(keys, keys_length), input(queries, queries_length)) };
    answer(done.map(|()| 0).map_err(Failure::from))
}

/// Options of attention, as JavaScript writes them. [`NONE`] or NaN stands for a missing number.
#[repr(C)]
pub struct Options {
    queries: u32,
    window: u32,
    position: u32,
    keep_sinks: u32,
    scale: f32,
    soft_cap: f32,
    bias: *const f32,
    bias_length: usize,
    sink_logits: *const f32,
    sink_logits_length: usize,
}

/// Computes attention. Null options are the defaults.
///
/// # Safety
/// The handle lives; the rest is as `memory::input` and `memory::output` say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_attend(
    cache: *mut Cache,
    layer: usize,
    queries: *const f32,
    queries_length: usize,
    options: *const Options,
    out: *mut f32,
    out_length: usize,
) -> usize {
    let mut attend = Attend::default();
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(options) = options.as_ref() {
            let number = |x: f32| (!x.is_nan()).then_some(x);
            attend.queries = given(options.queries);
            attend.window = given(options.window);
            attend.position = given(options.position);
            attend.keep_sinks = options.keep_sinks != 0;
            attend.scale = number(options.scale);
            attend.soft_cap = number(options.soft_cap);
            attend.bias = input(options.bias, options.bias_length);
            attend.sink_logits = input(options.sink_logits, options.sink_logits_length);
        }
        answer((*cache).attend(layer, input(queries, queries_length), &attend, output(out, out_length)))
    }
}

/// Computes the scores of one head.
///
/// # Safety
/// As [`cache_attend`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_scores(
    cache: *mut Cache,
    layer: usize,
    head: usize,
    queries: *const f32,
    queries_length: usize,
    scores: *mut f32,
    scores_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe {
        (*cache).scores(layer, head, input(queries, queries_length), output(scores, scores_length))
    })
}

/// Computes the weighted sums of one head.
///
/// # Safety
/// As [`cache_attend`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_accumulate(
    cache: *mut Cache,
    layer: usize,
    head: usize,
    weights: *const f32,
    weights_length: usize,
    sums: *mut f32,
    sums_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe {
        (*cache).accumulate(layer, head, input(weights, weights_length), output(sums, sums_length))
    })
}

/// Returns the number of tokens in a layer, which is the length of a row of scores.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_tokens(cache: *const Cache, layer: usize) -> usize {
    // SAFETY: the caller's promise.
    let cache = unsafe { &*cache };
    answer(cache.config(layer).map(|_| cache.cache.layers()[layer].tokens()).map_err(Failure::from))
}

/// Returns the bits a value in a layer's pages, keys and values together, everything counted. Without such a layer it is NaN.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_page_bits(cache: *const Cache, layer: usize) -> f64 {
    // SAFETY: the caller's promise.
    unsafe { &*cache }.config(layer).map_or(f64::NAN, LayerConfig::page_bits)
}

/// Removes the tokens from a position on.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_truncate(cache: *mut Cache, position: usize) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe { &mut *cache }.cache.truncate(position).map(|()| 0).map_err(Failure::from))
}

/// Drops whole pages. Returns the number of dropped tokens.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_evict(cache: *mut Cache, from: usize, to: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &mut *cache }.cache.evict(from..to)
}

/// Removes all tokens.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_clear(cache: *mut Cache) {
    // SAFETY: the caller's promise.
    unsafe { &mut *cache }.cache.clear();
}

/// Creates a second cache that shares the pages.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_fork(cache: *const Cache) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe { &*cache }.fork())
}

/// Writes the numbers of [`Stats`] as text: a JSON array, in the order of the fields.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_stats(cache: *const Cache) -> usize {
    // SAFETY: the caller's promise.
    let stats = unsafe { &*cache }.cache.stats();
    write(&Numbers(&stats))
}

struct Numbers<'a>(&'a Stats);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats {
            tokens,
            paged_tokens,
            exact_tokens,
            next_position,
            evicted_tokens,
            decoded_tokens,
            bytes,
            paged_bytes,
            shared_bytes,
            values,
            balanced_heads,
        } = self.0;
        write!(
            f,
            "[{tokens},{paged_tokens},{exact_tokens},{next_position},{evicted_tokens},{decoded_tokens},{bytes},{paged_bytes},{shared_bytes},{values},{balanced_heads}]"
        )
    }
}

/// Writes the shape of a cache as text: the number of layers, and the heads, widths and codecs of one layer.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_shape(cache: *const Cache, layer: usize) -> usize {
    // SAFETY: the caller's promise.
    let cache = unsafe { &*cache };
    let shape = |config: &LayerConfig| {
        let LayerConfig { kv_heads, key_dim, value_dim, keys, values, .. } = config;
        let layers = cache.cache.layers().len();
        write(&format_args!("[{layers},{kv_heads},{key_dim},{value_dim},\"{keys}\",\"{values}\"]"))
    };
    answer(cache.config(layer).map(shape).map_err(Failure::from))
}

/// Creates a snapshot. Its address and length are written to `at`. [`cache_release`] frees it.
///
/// # Safety
/// The handle lives, and `at` has space for two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_save(cache: *const Cache, at: *mut [usize; 2]) -> usize {
    // SAFETY: the caller's promise.
    let (cache, at) = unsafe { (&*cache, &mut *at) };
    answer(cache.save().map(|bytes| {
        *at = [bytes.as_ptr().addr(), bytes.len()];
        core::mem::forget(bytes);
        0
    }))
}

/// Frees a snapshot of [`cache_save`].
///
/// # Safety
/// Address and length are those of one snapshot, and it is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_release(at: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(at, length)) });
}

/// Creates the cache of a snapshot.
///
/// # Safety
/// As `memory::input` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cache_load(bytes: *const u8, length: usize) -> usize {
    // SAFETY: the caller's promise.
    answer(Cache::load(unsafe { input(bytes, length) }))
}
