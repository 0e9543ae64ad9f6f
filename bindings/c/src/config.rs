//! The structs of a cache: its configuration, rows to append, how to attend, what it holds. Those that may grow begin with
//! their size.

use crate::error::{Failure, Result, octaplex_error, octaplex_status, run};
use crate::given;
use octaplex::cache::Center;
use octaplex::{Attend, CacheConfig, CodecSpec, Floats, LayerConfig, Profile, Stats, bf16, f16};
use std::borrow::Cow;
use std::ffi::{c_char, c_void};
use std::mem::offset_of;

/// Nothing is subtracted from keys.
pub const OCTAPLEX_CENTER_OFF: u32 = 0;
/// One centre a head, the mean of the first keys.
pub const OCTAPLEX_CENTER_PREFIX: u32 = 1;
/// Each page's own mean: the default.
pub const OCTAPLEX_CENTER_PAGE: u32 = 2;

/// The cache of a model, every layer alike. `octaplex_config_init` fills in the defaults; what is to be otherwise is then
/// assigned. Texts are read while a call lasts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_config {
    /// `sizeof(octaplex_config)`: the struct may grow.
    pub size: usize,
    /// Attention layers.
    pub layers: usize,
    /// Key/value heads of a layer.
    pub kv_heads: usize,
    /// Width of a key: 32, 64, 80, 96, 112, 128, 160, 192, 256, 512 or 576.
    pub key_dim: usize,
    /// Width of a value, likewise.
    pub value_dim: usize,
    /// Tokens that a layer holds at most.
    pub capacity: usize,
    /// Spec of the keys' codec, `"trellis:m=4"`; null: `"graded"`, or `"trellis"` at the widths 32, 80, 96, 112 and 576.
    pub keys: *const c_char,
    /// Spec of the values' codec; null: `"trellis"`.
    pub values: *const c_char,
    /// Name of a backend; null: the fastest of this CPU. All give the same bits.
    pub backend: *const c_char,
    /// Number of the first layer, from 0: layers are rotated differently.
    pub first_layer: u32,
    /// What is subtracted from keys: `OCTAPLEX_CENTER_PAGE`, `…_PREFIX` or `…_OFF`.
    pub center: u32,
    /// Whether keys are divided by a diagonal that makes the channels' errors count alike: 1 or 0.
    pub balance: u32,
    /// The first and the last so many layers are kept in f16.
    pub boundary_layers: u32,
    /// Tokens of a page: 64, 128 or 256.
    pub page: usize,
    /// The first tokens, kept exact for ever.
    pub sink_tokens: usize,
    /// At least so many of the newest tokens are kept exact, in f16.
    pub recent_window: usize,
    /// So many tokens can be taken back without a trace.
    pub max_rollback: usize,
    /// Queries see so many tokens, their own included, and pages that none will see again are dropped; 0: all.
    pub sliding_window: usize,
    /// Query heads of a layer, a multiple of `kv_heads`; 0: not known, and then every call of `octaplex_cache_attend` says
    /// `queries`.
    pub query_heads: usize,
    /// Instead of `keys` and `values`: the most accurate codecs whose pages take at most so many bits a value; 0: not asked for.
    pub bits: f64,
    /// The text of a profile, from `octaplex calibrate`: it spends `bits` where the model needs them. Null: none.
    pub profile: *const c_char,
}

/// What the first version of the struct had: less is no `octaplex_config`.
const CONFIG_LEAST: usize = offset_of!(octaplex_config, query_heads);

/// Fills in the defaults: `graded` keys and `trellis` values (3.2 bits a value), pages of 64, four sinks, 64 recent tokens,
/// rollbacks of 64, keys centred page by page and balanced. `size` is `sizeof(octaplex_config)`.
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
    unsafe { run(error, || given::fill(config, size, CONFIG_LEAST, defaults)) }
}

/// The configuration of all layers, and what was given.
///
/// # Safety
/// `config` is null or the caller's, and its texts are texts.
pub(crate) unsafe fn read(config: *const octaplex_config) -> Result<(CacheConfig, octaplex_config)> {
    const NULL: Failure = Failure::Here(
        octaplex_status::Pointer,
        "the configuration is null: octaplex_config_init fills one in",
    );
    // SAFETY: the caller's promises.
    let config = unsafe { given::sized(config, CONFIG_LEAST) }?.ok_or(NULL)?;
    let mut each = LayerConfig::new(config.kv_heads, config.key_dim, config.capacity);
    each.value_dim = config.value_dim;
    // SAFETY: the caller's promises.
    let [keys, values] = unsafe { [given::text(config.keys)?, given::text(config.values)?] };
    if config.bits != 0.0 && (keys.is_some() || values.is_some()) {
        let why = "bits chooses the codecs of keys and values: give bits, or codecs, not both";
        return Err(Failure::Here(octaplex_status::Unsupported, why));
    }
    if config.bits == 0.0 && !config.profile.is_null() {
        let why = "a profile spends bits: set bits as well";
        return Err(Failure::Here(octaplex_status::Unsupported, why));
    }
    for (text, spec) in [(keys, &mut each.keys), (values, &mut each.values)] {
        if let Some(text) = text {
            *spec = text.parse::<CodecSpec>()?;
        }
    }
    each.center = match config.center {
        OCTAPLEX_CENTER_OFF => Center::Off,
        OCTAPLEX_CENTER_PREFIX => Center::Prefix,
        OCTAPLEX_CENTER_PAGE => Center::Page,
        _ => {
            let why = "center is OCTAPLEX_CENTER_PAGE, OCTAPLEX_CENTER_PREFIX or OCTAPLEX_CENTER_OFF";
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
    let by_bits = config.bits != 0.0 && config.profile.is_null();
    Ok((if by_bits { cache.for_bits(config.bits)? } else { cache }, config))
}

/// The layers of a configuration, numbered from its first one.
pub(crate) fn layers(cache: &CacheConfig, first: u32) -> impl Iterator<Item = LayerConfig> {
    cache.layers().map(move |layer| layer.layer(layer.layer.wrapping_add(first)))
}

/// The same with the codecs that a profile chooses; `None` where none is given.
///
/// # Safety
/// The configuration's texts are texts.
pub(crate) unsafe fn profiled(
    cache: &CacheConfig,
    given: &octaplex_config,
) -> Result<Option<Vec<LayerConfig>>> {
    // SAFETY: the caller's promise.
    let Some(profile) = (unsafe { given::text(given.profile) })? else { return Ok(None) };
    let mut layers = profile.parse::<Profile>()?.solve(cache, given.bits)?;
    layers.iter_mut().for_each(|layer| layer.layer = layer.layer.wrapping_add(given.first_layer));
    Ok(Some(layers))
}

/// 32-bit floats.
pub const OCTAPLEX_F32: u32 = 0;
/// IEEE's 16-bit floats.
pub const OCTAPLEX_F16: u32 = 1;
/// bfloat16.
pub const OCTAPLEX_BF16: u32 = 2;

/// Keys or values to append: value c of head h's token t is at h·head_stride + t·token_stride + c.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_tensor {
    /// The first value, aligned for its type.
    pub data: *const c_void,
    /// Values from there on that may be read.
    pub length: usize,
    /// `OCTAPLEX_F32`, `OCTAPLEX_F16` or `OCTAPLEX_BF16`.
    pub dtype: u32,
    /// Values from a head's first row to the next head's; 0: tokens · width, as in `[heads][tokens][width]`.
    pub head_stride: usize,
    /// Values from a row to the next token's; 0: width.
    pub token_stride: usize,
}

/// Rows of some type, packed: the caller's, or gathered.
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

    /// Whether they are where the caller has them.
    pub(crate) fn are_packed(&self) -> bool {
        matches!(
            self,
            Self::F32(Cow::Borrowed(_)) | Self::F16(Cow::Borrowed(_)) | Self::Bf16(Cow::Borrowed(_))
        )
    }
}

/// The rows of a tensor of this shape.
///
/// # Safety
/// The tensor's data are there, and nothing changes them meanwhile.
pub(crate) unsafe fn rows<'a>(
    tensor: *const octaplex_tensor,
    shape: (usize, usize, usize),
) -> Result<Rows<'a>> {
    // SAFETY: the caller's promises.
    unsafe {
        let tensor = given::values(tensor, 1)?[0];
        Ok(match tensor.dtype {
            OCTAPLEX_F32 => Rows::F32(pack(&tensor, tensor.data.cast(), shape)?),
            OCTAPLEX_F16 => Rows::F16(pack(&tensor, tensor.data.cast(), shape)?),
            OCTAPLEX_BF16 => Rows::Bf16(pack(&tensor, tensor.data.cast(), shape)?),
            _ => {
                let why = "a tensor's type is OCTAPLEX_F32, OCTAPLEX_F16 or OCTAPLEX_BF16";
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
    const OVERFLOW: Failure = Failure::Here(
        octaplex_status::Length,
        "tokens and strides of a tensor that overflow: no memory has them",
    );
    // SAFETY: the caller's promise.
    let given = unsafe { given::values(data, tensor.length) }?;
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

/// How to attend. Zeros everywhere but in `size` are the defaults, and null stands for all of them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_attend {
    /// `sizeof(octaplex_attend)`: the struct may grow.
    pub size: usize,
    /// Queries of the block, for each query head; 0: as many as there are, which takes a configuration
    /// with `query_heads`.
    pub queries: usize,
    /// logit = scale · q·k; 0: 1/√(key width).
    pub scale: f32,
    /// logit = cap · tanh(logit/cap), before the bias; 0: none.
    pub soft_cap: f32,
    /// A query sees so many positions, its own included; 0: the layer's sliding window, or all.
    pub window: usize,
    /// Whether the sinks are seen from beyond the window as well: 1 or 0.
    pub keep_sinks: u32,
    /// Whether `position` says where the block begins: 1, or 0 for a block at the end, whose last query has the position of
    /// the newest token.
    pub has_position: u32,
    /// Position of the first query of the block.
    pub position: usize,
    /// A learned logit of each query head that takes weight and gives nothing; or null.
    pub sink_logits: *const f32,
    /// Their number: the query heads.
    pub sink_logits_length: usize,
    /// Added to the logits, `[positions]` or `[query heads][positions]`; -∞ hides a token; or null.
    pub bias: *const f32,
    /// Its length.
    pub bias_length: usize,
    /// The key/value head whose query heads come first: with `heads`, threads share the heads of one token, each in a call
    /// of its own. `sink_logits` and `bias` are those of all query heads all the same.
    pub first_head: usize,
    /// Key/value heads whose queries are given; 0: all from the first on.
    pub heads: usize,
}

/// The options.
///
/// # Safety
/// `options` is null or the caller's, and its arrays are there.
pub(crate) unsafe fn attend<'a>(options: *const octaplex_attend) -> Result<Attend<'a>> {
    let mut attend = Attend::default();
    // SAFETY: the caller's promises.
    unsafe {
        let Some(given) = given::sized(options, size_of::<octaplex_attend>())? else { return Ok(attend) };
        let some = |number: usize| (number > 0).then_some(number);
        attend.queries = some(given.queries);
        attend.scale = (given.scale != 0.0).then_some(given.scale);
        attend.soft_cap = (given.soft_cap != 0.0).then_some(given.soft_cap);
        attend.window = some(given.window);
        attend.keep_sinks = given.keep_sinks != 0;
        attend.position = (given.has_position != 0).then_some(given.position);
        attend.sink_logits = given::values(given.sink_logits, given.sink_logits_length)?;
        attend.bias = given::values(given.bias, given.bias_length)?;
        attend.first_head = given.first_head;
        attend.heads = some(given.heads);
    }
    Ok(attend)
}

/// What a cache or a layer holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_stats {
    /// `sizeof(octaplex_stats)`, given: the struct may grow.
    pub size: usize,
    /// Tokens that attention can see; of a whole cache, those of the layer that has most. So are the other counts of tokens.
    pub tokens: usize,
    /// Of these, in pages.
    pub paged_tokens: usize,
    /// Tokens with an exact row.
    pub exact_tokens: usize,
    /// The position of the next token; of a whole cache, the furthest layer's.
    pub next_position: usize,
    /// Tokens dropped by eviction, or behind a sliding window.
    pub evicted_tokens: usize,
    /// Tokens that a truncation decoded back into the window.
    pub decoded_tokens: usize,
    /// Bytes in use: exact rows, pages with centres and headers, balance.
    pub bytes: usize,
    /// Of these, those in pages that another fork holds as well.
    pub shared_bytes: usize,
    /// Values that these bytes stand for.
    pub values: usize,
    /// Tokens that there is room for in each layer.
    pub capacity: usize,
    /// Of the bytes, those in pages: what a long context tends to.
    pub paged_bytes: usize,
    /// Heads whose keys are balanced: those whose channels differ by more than chance, once that is decided.
    pub balanced_heads: usize,
}

/// # Safety
/// `place` is null or begins with its size, and has so many bytes.
pub(crate) unsafe fn put_stats(place: *mut octaplex_stats, stats: &Stats, capacity: usize) -> Result<()> {
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
    };
    let least = offset_of!(octaplex_stats, capacity) + size_of::<usize>();
    // SAFETY: the caller's promise.
    unsafe {
        let size = given::values(place.cast::<usize>().cast_const(), 1)?[0];
        given::fill(place, size, least, all)
    }
}
