//! The structs of a cache: its configuration, rows to append, options of attention, statistics. Structs that may grow
//! begin with their size.

use crate::arguments;
use crate::error::{Failure, Result, octaplex_error, octaplex_status, run};
use octaplex::cache::{Center, Choice};
use octaplex::{Attend, CacheConfig, CodecSpec, Floats, LayerConfig, Profile, Stats, bf16, f16};
use std::borrow::Cow;
use std::ffi::{c_char, c_void};
use std::mem::offset_of;

/// Subtracts nothing from keys.
pub const OCTAPLEX_CENTER_OFF: u32 = 0;
/// Subtracts one centre for each head: the mean of its first keys.
pub const OCTAPLEX_CENTER_PREFIX: u32 = 1;
/// Subtracts each page's own mean. This is the default.
pub const OCTAPLEX_CENTER_PAGE: u32 = 2;

/// Configures the cache of layers that are all alike. Call `octaplex_config_init` for the defaults, then set fields.
/// Strings are read during the call only.
///
/// A model whose layers differ, such as one with a sliding window in some layers, needs a cache for each kind of layer.
/// Set `first_layer` to 0 in the first cache, and in each later one to the number of layers in the caches before it. So
/// every layer has its own rotation. The `layer` of a call counts from 0 in each cache. Call `octaplex_cache_truncate`
/// and the functions for snapshots for each cache. A profile is of a whole model, and needs one cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_config {
    /// Set it to `sizeof(octaplex_config)`. The struct may grow.
    pub size: usize,
    /// Number of attention layers.
    pub layers: usize,
    /// Key/value heads in each layer.
    pub kv_heads: usize,
    /// Width of a key: 32, 64, 80, 96, 112, 128, 160, 192, 256, 512 or 576.
    pub key_dim: usize,
    /// Width of a value: one of the same numbers.
    pub value_dim: usize,
    /// The largest number of tokens that a layer holds.
    pub capacity: usize,
    /// Spec of the keys' codec, such as `"trellis:m=4"`. Null: `"graded"`, or `"trellis"` at widths 32, 80, 96, 112 and
    /// 576.
    pub keys: *const c_char,
    /// Spec of the values' codec. Null: `"trellis"`.
    pub values: *const c_char,
    /// Name of a backend. Null: the fastest of this CPU. All backends are bit-exact.
    pub backend: *const c_char,
    /// Number of the cache's first layer. Each number has its own rotation, so layers of a model have different numbers.
    pub first_layer: u32,
    /// Chooses what is subtracted from keys: `OCTAPLEX_CENTER_PAGE`, `…_PREFIX` or `…_OFF`.
    pub center: u32,
    /// 1: keys are divided by a per-channel scale, so that the errors of all channels count alike. 0: off.
    pub balance: u32,
    /// n: the first n and the last n layers stay in f16.
    pub boundary_layers: u32,
    /// Tokens in a page: 64, 128 or 256.
    pub page: usize,
    /// Number of first tokens that always stay exact.
    pub sink_tokens: usize,
    /// At least this many of the newest tokens stay exact, in f16.
    pub recent_window: usize,
    /// `octaplex_cache_truncate` restores the exact earlier state up to this many tokens back.
    pub max_rollback: usize,
    /// Positions that a query sees, its own included. Pages that no later query sees are dropped. 0: all.
    pub sliding_window: usize,
    /// Query heads of a layer, a multiple of `kv_heads`. 0: unknown; every `octaplex_cache_attend` must then set
    /// `queries`.
    pub query_heads: usize,
    /// Chooses the most accurate codecs whose pages take at most this many bits a value. Set it instead of `keys` and
    /// `values`. 0: off.
    pub bits: f64,
    /// Text of a profile from `octaplex calibrate`. It needs `bits`, and spends them where the model needs them. Null:
    /// none.
    pub profile: *const c_char,
}

/// Size of the struct's first version. A smaller struct is not an `octaplex_config`.
const CONFIG_LEAST: usize = offset_of!(octaplex_config, query_heads);

/// Fills in the defaults. `size` is `sizeof(octaplex_config)`.
///
/// Keys and values take 3.2 bits a value: `graded` keys and `trellis` values. Pages have 64 tokens. Four sinks and 64
/// recent tokens stay exact, and rollbacks of 64 tokens are exact. Keys are centred page by page and balanced.
///
/// # Safety
/// `config` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_config_init(
    config: *mut octaplex_config,
    size: usize,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let each = LayerConfig::new(kv_heads, head_dim, capacity);
    let defaults = octaplex_config {
        size,
        layers,
        kv_heads,
        key_dim: head_dim,
        value_dim: head_dim,
        capacity,
        keys: std::ptr::null(),
        values: std::ptr::null(),
        backend: std::ptr::null(),
        first_layer: 0,
        center: OCTAPLEX_CENTER_PAGE,
        balance: u32::from(each.balance),
        boundary_layers: 0,
        page: each.page,
        sink_tokens: each.sink_tokens,
        recent_window: each.recent_window,
        max_rollback: each.max_rollback,
        sliding_window: 0,
        query_heads: 0,
        bits: 0.0,
        profile: std::ptr::null(),
    };
    // SAFETY: the caller's promises.
    unsafe { run(error, || arguments::fill(config, size, CONFIG_LEAST, defaults)) }
}

/// Returns the configuration of all layers, the choice of codecs, and the caller's struct.
///
/// # Safety
/// `config` is null or the caller's, and its strings end in a zero.
pub(crate) unsafe fn read(config: *const octaplex_config) -> Result<(CacheConfig, Choice, octaplex_config)> {
    const NULL: Failure = Failure::Here(
        octaplex_status::Pointer,
        "the configuration is null: fill one in with octaplex_config_init",
    );
    // SAFETY: the caller's promises.
    let config = unsafe { arguments::sized(config, CONFIG_LEAST) }?.ok_or(NULL)?;
    let mut each = LayerConfig::new(config.kv_heads, config.key_dim, config.capacity);
    each.value_dim = config.value_dim;
    // SAFETY: the caller's promises.
    let [keys, values] = unsafe { [arguments::text(config.keys)?, arguments::text(config.values)?] };
    let spec = |text: Option<&str>| text.map(str::parse::<CodecSpec>).transpose();
    // SAFETY: the caller's promises.
    let profile = unsafe { arguments::text(config.profile) }?.map(str::parse::<Profile>).transpose()?;
    let bits = (config.bits != 0.0).then_some(config.bits);
    let choice = Choice { keys: spec(keys)?, values: spec(values)?, bits, profile };
    each.center = match config.center {
        OCTAPLEX_CENTER_OFF => Center::Off,
        OCTAPLEX_CENTER_PREFIX => Center::Prefix,
        OCTAPLEX_CENTER_PAGE => Center::Page,
        _ => {
            let why =
                "center is unknown: set OCTAPLEX_CENTER_PAGE, OCTAPLEX_CENTER_PREFIX or OCTAPLEX_CENTER_OFF";
            return Err(Failure::Here(octaplex_status::Unsupported, why));
        }
    };
    each.balance = config.balance != 0;
    each.page = config.page;
    each.sink_tokens = config.sink_tokens;
    each.recent_window = config.recent_window;
    each.max_rollback = config.max_rollback;
    each.sliding_window = (config.sliding_window > 0).then_some(config.sliding_window);
    each.query_heads = (config.query_heads > 0).then_some(config.query_heads);
    let boundary = config.boundary_layers as usize;
    let cache = CacheConfig::new(config.layers, 0, 0, 0).each(each).boundary_layers(boundary);
    Ok((cache, choice, config))
}

/// Returns the layers of a configuration, numbered from `first` on.
pub(crate) fn layers(cache: &CacheConfig, choice: &Choice, first: u32) -> Result<Vec<LayerConfig>> {
    let mut layers = cache.choose(choice)?;
    layers.iter_mut().for_each(|layer| layer.layer = layer.layer.wrapping_add(first));
    Ok(layers)
}

/// 32-bit floats.
pub const OCTAPLEX_F32: u32 = 0;
/// 16-bit floats of IEEE 754.
pub const OCTAPLEX_F16: u32 = 1;
/// bfloat16.
pub const OCTAPLEX_BF16: u32 = 2;

/// Describes keys or values to append. Value c of token t of head h is at h·head_stride + t·token_stride + c.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_tensor {
    /// The first value, aligned for its type.
    pub data: *const c_void,
    /// Number of values from `data` on that may be read.
    pub length: usize,
    /// `OCTAPLEX_F32`, `OCTAPLEX_F16` or `OCTAPLEX_BF16`.
    pub dtype: u32,
    /// Values from a head's first row to the next head's first row. 0: tokens · width, as in `[heads][tokens][width]`.
    pub head_stride: usize,
    /// Values from a token's row to the next token's row. 0: width.
    pub token_stride: usize,
}

/// Packed rows: the caller's own, or a gathered copy.
pub(crate) enum Rows<'a> {
    F32(Cow<'a, [f32]>),
    F16(Cow<'a, [f16]>),
    Bf16(Cow<'a, [bf16]>),
}

impl Rows<'_> {
    pub(crate) fn tensor(&self) -> Floats<'_> {
        match self {
            Self::F32(rows) => Floats::F32(rows),
            Self::F16(rows) => Floats::F16(rows),
            Self::Bf16(rows) => Floats::Bf16(rows),
        }
    }

    /// Returns whether these are the caller's own rows.
    pub(crate) fn are_packed(&self) -> bool {
        matches!(
            self,
            Self::F32(Cow::Borrowed(_)) | Self::F16(Cow::Borrowed(_)) | Self::Bf16(Cow::Borrowed(_))
        )
    }
}

/// Returns the rows of a tensor of this shape.
///
/// # Safety
/// The tensor's data are readable, and nothing changes them meanwhile.
pub(crate) unsafe fn rows<'a>(
    tensor: *const octaplex_tensor,
    shape: (usize, usize, usize),
) -> Result<Rows<'a>> {
    // SAFETY: the caller's promises.
    unsafe {
        let tensor = arguments::values(tensor, 1)?[0];
        Ok(match tensor.dtype {
            OCTAPLEX_F32 => Rows::F32(pack(&tensor, tensor.data.cast(), shape)?),
            OCTAPLEX_F16 => Rows::F16(pack(&tensor, tensor.data.cast(), shape)?),
            OCTAPLEX_BF16 => Rows::Bf16(pack(&tensor, tensor.data.cast(), shape)?),
            _ => {
                let why = "a tensor has an unknown dtype: set OCTAPLEX_F32, OCTAPLEX_F16 or OCTAPLEX_BF16";
                return Err(Failure::Here(octaplex_status::Unsupported, why));
            }
        })
    }
}

/// # Safety
/// As for [`rows`].
unsafe fn pack<'a, T: Copy>(
    tensor: &octaplex_tensor,
    data: *const T,
    (heads, tokens, width): (usize, usize, usize),
) -> Result<Cow<'a, [T]>> {
    const OVERFLOW: Failure =
        Failure::Here(octaplex_status::Length, "the tokens and strides of a tensor overflow: check both");
    // SAFETY: the caller's promise.
    let given = unsafe { arguments::values(data, tensor.length) }?;
    let of_head = tokens.checked_mul(width).ok_or(OVERFLOW)?;
    let all = of_head.checked_mul(heads).ok_or(OVERFLOW)?;
    let [head_stride, token_stride] = [(tensor.head_stride, of_head), (tensor.token_stride, width)]
        .map(|(stride, packed)| if stride == 0 { packed } else { stride });
    let needed = if all == 0 {
        0
    } else {
        let last = (heads - 1).checked_mul(head_stride).zip((tokens - 1).checked_mul(token_stride));
        last.and_then(|(head, token)| head.checked_add(token)?.checked_add(width)).ok_or(OVERFLOW)?
    };
    if given.len() < needed {
        let why = "a tensor has too few values for its heads, tokens and strides: it needs";
        return Err(Failure::Expected(octaplex_status::Length, why, needed));
    }
    let is_packed = (heads <= 1 || head_stride == of_head) && (tokens <= 1 || token_stride == width);
    if is_packed {
        return Ok(Cow::Borrowed(&given[..needed]));
    }
    let mut packed = Vec::with_capacity(all);
    for head in 0..heads {
        for token in 0..tokens {
            packed.extend_from_slice(&given[head * head_stride + token * token_stride..][..width]);
        }
    }
    Ok(Cow::Owned(packed))
}

/// Options of attention. A zero in any field except `size` is its default. A null pointer means all defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_attend {
    /// Set it to `sizeof(octaplex_attend)`. The struct may grow.
    pub size: usize,
    /// Queries of each query head. 0: computed from the length, if the configuration sets `query_heads`.
    pub queries: usize,
    /// Factor of the logits: logit = scale · q·k. 0: 1/√(key width).
    pub scale: f32,
    /// Soft cap, applied before the bias: logit = cap · tanh(logit/cap). 0: none.
    pub soft_cap: f32,
    /// Positions that a query sees, its own included. 0: the layer's sliding window, or all.
    pub window: usize,
    /// 1: queries also see the sinks outside the window. 0: they do not.
    pub keep_sinks: u32,
    /// 1: `position` is the position of the first query. 0: the last query has the position of the newest token.
    pub has_position: u32,
    /// Position of the first query. Later queries have the next positions.
    pub position: usize,
    /// A learned logit for each query head, which takes weight and adds nothing to the output. Null: none.
    pub sink_logits: *const f32,
    /// Length of `sink_logits`: the number of query heads.
    pub sink_logits_length: usize,
    /// Values to add to the logits, `[positions]` or `[query heads][positions]`. -∞ hides a token. Null: none.
    pub bias: *const f32,
    /// Length of `bias`.
    pub bias_length: usize,
    /// The key/value head whose query heads are first in the input. With `heads`, several threads can share the heads
    /// of one token, each in its own call. `sink_logits` and `bias` still cover all query heads.
    pub first_head: usize,
    /// Number of key/value heads whose queries are passed. 0: all from `first_head` on.
    pub heads: usize,
}

/// Returns the options of attention.
///
/// # Safety
/// `options` is null or the caller's, and its arrays are readable.
pub(crate) unsafe fn attend<'a>(options: *const octaplex_attend) -> Result<Attend<'a>> {
    let mut attend = Attend::default();
    // SAFETY: the caller's promises.
    unsafe {
        let Some(given) = arguments::sized(options, size_of::<octaplex_attend>())? else { return Ok(attend) };
        let some = |number: usize| (number > 0).then_some(number);
        attend.queries = some(given.queries);
        attend.scale = (given.scale != 0.0).then_some(given.scale);
        attend.soft_cap = (given.soft_cap != 0.0).then_some(given.soft_cap);
        attend.window = some(given.window);
        attend.keep_sinks = given.keep_sinks != 0;
        attend.position = (given.has_position != 0).then_some(given.position);
        attend.sink_logits = arguments::values(given.sink_logits, given.sink_logits_length)?;
        attend.bias = arguments::values(given.bias, given.bias_length)?;
        attend.first_head = given.first_head;
        attend.heads = some(given.heads);
    }
    Ok(attend)
}

/// Counts what a cache or a layer holds. For a whole cache, `tokens`, `paged_tokens`, `exact_tokens`, `next_position`,
/// `evicted_tokens` and `decoded_tokens` are those of the layer with the most.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_stats {
    /// Set it to `sizeof(octaplex_stats)` before the call. The struct may grow.
    pub size: usize,
    /// Tokens that attention can see.
    pub tokens: usize,
    /// Visible tokens in pages.
    pub paged_tokens: usize,
    /// Tokens with an exact row: sinks, window, and tokens of closed pages that a rollback may open again.
    pub exact_tokens: usize,
    /// Position of the next token.
    pub next_position: usize,
    /// Tokens dropped by eviction or by a sliding window.
    pub evicted_tokens: usize,
    /// Tokens that a truncation decoded back into the window.
    pub decoded_tokens: usize,
    /// Bytes in use: exact rows, pages with centres and headers, balance.
    pub bytes: usize,
    /// Bytes of pages that another fork also holds.
    pub shared_bytes: usize,
    /// Number of values that these bytes encode.
    pub values: usize,
    /// The largest number of tokens that a layer holds.
    pub capacity: usize,
    /// Bytes of pages. They dominate in a long context.
    pub paged_bytes: usize,
    /// Heads whose keys are balanced: their channels differ by more than chance. 0 until the balance is decided.
    pub balanced_heads: usize,
    /// Bits a value in pages, everything counted: a long context approaches this rate. Short contexts take more, because
    /// sinks and the newest tokens are in f16. For a whole cache, the mean over its layers.
    pub page_bits: f64,
}

/// # Safety
/// `place` is null, or begins with its size and has that many bytes.
pub(crate) unsafe fn put_stats(
    place: *mut octaplex_stats,
    stats: &Stats,
    capacity: usize,
    page_bits: f64,
) -> Result<()> {
    let all = octaplex_stats {
        size: 0,
        tokens: stats.tokens,
        paged_tokens: stats.paged_tokens,
        exact_tokens: stats.exact_tokens,
        next_position: stats.next_position,
        evicted_tokens: stats.evicted_tokens,
        decoded_tokens: stats.decoded_tokens,
        bytes: stats.bytes,
        shared_bytes: stats.shared_bytes,
        values: stats.values,
        capacity,
        paged_bytes: stats.paged_bytes,
        balanced_heads: stats.balanced_heads,
        page_bits,
    };
    let least = offset_of!(octaplex_stats, capacity) + size_of::<usize>();
    // SAFETY: the caller's promise.
    unsafe {
        let size = arguments::values(place.cast::<usize>().cast_const(), 1)?[0];
        arguments::fill(place, size, least, all)
    }
}
