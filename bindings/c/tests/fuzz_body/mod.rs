//! The body of the fuzz target `c_api`: calls of octaplex.h in an order and with arguments that the input chooses, many of
//! them wrong. `fuzz/` runs it on libFuzzer's inputs, `tests/fuzz_replay.rs` on the committed corpus.
//!
//! Wrong arguments are those that a library can detect: null, misaligned, too short, too long for any memory, sizes of structs,
//! handles of another kind or freed, damaged snapshots, NaN. A pointer with a wrong length cannot be detected.
//!
//! In an input, a byte chooses a call, and the next bytes its arguments. Data that run out become zeros, and then the calls
//! end.
#![allow(dead_code, unreachable_pub)] // each binary takes what it needs

use octaplex_c::*;
use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{null, null_mut};

/// Calls of one input: a few thousand take a second.
const CALLS: usize = 64;
const SPECS: [&CStr; 8] =
    [c"trellis", c"turboquant:bits=3", c"int", c"f16", c"hqmq:r=6,med=3", c"q8_0", c"octopus-qjl", c"fp8"];
/// Names of backends, and texts that are neither one nor a spec.
const NO_SPECS: [&CStr; 6] = [c"scalar", c"avx2", c"nothing", c"", c"\xff", c"trellis:bits=99"];
const WIDTHS: [usize; 4] = [32, 64, 32, 96];
/// Numbers at the edges of valid configurations.
const EDGES: [usize; 11] =
    [0, 1, 2, 63, 64, 65, 256, 1 << 16, u32::MAX as usize, isize::MAX as usize, usize::MAX];

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::from(self.byte()) % items.len()]
    }

    /// Decides whether the next value is a wrong one: one in 16 is.
    fn wrong(&mut self) -> bool {
        self.byte() & 15 == 15
    }

    /// A small number, or one at an edge.
    fn number(&mut self, below: usize) -> usize {
        if self.wrong() { self.pick(&EDGES) } else { usize::from(self.byte()) % below }
    }

    fn text(&mut self) -> *const c_char {
        if self.wrong() { self.no_spec() } else { self.pick(&SPECS).as_ptr() }
    }

    fn no_spec(&mut self) -> *const c_char {
        self.pick(&NO_SPECS.map(CStr::as_ptr).map(Some)).filter(|_| !self.wrong()).unwrap_or(null())
    }

    /// Returns values; some are not finite, some are huge.
    fn floats(&mut self, count: usize) -> Vec<f32> {
        let (seed, odd) = (u32::from(self.byte()), self.wrong());
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let mut floats: Vec<f32> = (0..count).map(|_| next()).collect();
        if odd && count > 0 {
            let at = usize::from(self.byte()) % count;
            floats[at] = self.pick(&[f32::NAN, f32::INFINITY, f32::MAX, 65_504.0, 1e-45, -1e30]);
        }
        floats
    }

    /// A slice as a pointer and a length: its own, or wrong ones.
    fn given<T>(&mut self, values: &mut [T]) -> (*mut T, usize) {
        let (data, len) = (values.as_mut_ptr(), values.len());
        if !self.wrong() {
            return (data, len);
        }
        match self.byte() % 5 {
            0 => (null_mut(), len),
            1 if len > 0 && size_of::<T>() > 1 => (data.wrapping_byte_add(1), len - 1),
            2 => (data, usize::MAX),
            3 => (null_mut(), 0),
            _ => (data, len.saturating_sub(1 + usize::from(self.byte()) % 8)),
        }
    }
}

/// A struct that begins with its size, and space after it for a size that is too large.
#[repr(C)]
struct Roomy<T> {
    known: T,
    behind: [u8; 4096],
}

impl<T> Roomy<T> {
    fn new(known: T) -> Box<Self> {
        Box::new(Self { known, behind: [0; 4096] })
    }

    /// Returns its pointer. Some sizes become wrong, and some of the space after the struct is used.
    fn given(&mut self, input: &mut Input) -> *mut T {
        if input.wrong() {
            let size = input.pick(&[0, 8, size_of::<T>() - 1, size_of::<T>() + 8, 4096, 4097, usize::MAX]);
            // SAFETY: the struct begins with its size.
            unsafe { (&raw mut self.known).cast::<usize>().write(size) };
            self.behind[0] = input.byte() & 1;
        }
        if input.wrong() { null_mut() } else { (&raw mut self.known).cast() }
    }
}

struct Session {
    error: octaplex_error,
    caches: [*mut octaplex_cache; 3],
    codecs: [*mut octaplex_codec; 2],
    /// The memory of caches that the caller provides, for as long as the cache lives.
    memory: Vec<(*mut octaplex_cache, Vec<MaybeUninit<u8>>)>,
    snapshot: Vec<u8>,
    outcome: Outcome,
}

/// Counts that a test of allocations needs.
#[derive(Clone, Copy, Default)]
pub struct Outcome {
    /// Handles on the heap that were freed, which is all of them: builds with debug assertions keep their few words.
    pub freed: usize,
    /// Memory that was asked for and refused.
    pub refused: usize,
    /// Calls that went well.
    pub well: usize,
}

/// Calls until the input ends.
pub fn c_api(data: &[u8]) -> Outcome {
    let mut input = Input(data);
    let mut session = Session {
        // SAFETY: zeros are an error.
        error: unsafe { zeroed() },
        caches: [null_mut(); 3],
        codecs: [null_mut(); 2],
        memory: Vec::new(),
        snapshot: Vec::new(),
        outcome: Outcome::default(),
    };
    for _ in 0..CALLS {
        if input.0.is_empty() {
            break;
        }
        session.step(&mut input);
    }
    for slot in 0..3 {
        session.free_cache(slot);
    }
    for slot in 0..2 {
        session.free_codec(slot);
    }
    session.outcome
}

/// Returns whether a cache of this configuration takes gigabytes. Smaller ones are created; larger ones must be refused.
fn takes_gigabytes(config: &octaplex_config) -> bool {
    let octaplex_config {
        layers,
        kv_heads,
        key_dim,
        value_dim,
        page,
        sink_tokens,
        recent_window,
        max_rollback,
        ..
    } = *config;
    let tokens =
        [64, page, sink_tokens, recent_window, max_rollback].iter().map(|count| *count as u128).sum();
    let factors = [layers as u128, kv_heads as u128, key_dim as u128 + value_dim as u128, tokens, 2];
    let front = factors.into_iter().fold(1u128, u128::saturating_mul);
    (1 << 28..1 << 42).contains(&front)
}

/// Clears what depends on the capacity in a snapshot, because a cache of another capacity may load it: the capacity of each
/// layer, and the checksum of its section (`docs/formats.md`).
fn without_capacity(mut snapshot: Vec<u8>) -> Vec<u8> {
    let layers: Vec<_> = (0..snapshot.len()).filter(|at| snapshot[*at..].starts_with(b"octalayr")).collect();
    for at in layers {
        let mut specs = at + 64;
        for _ in 0..2 {
            let length = snapshot[specs..specs + 4].try_into().map_or(0, u32::from_le_bytes);
            specs += 4 + length as usize;
        }
        snapshot[at + 56..at + 64].fill(0);
        snapshot[specs + 68..specs + 72].fill(0);
    }
    snapshot
}

impl Session {
    /// Checks the result of a call: the error repeats the status and has a sentence if something failed, and nothing is
    /// internal.
    fn judge(&mut self, status: octaplex_status) -> bool {
        let well = status == octaplex_status::Ok;
        let bytes: Vec<u8> = self.error.message.iter().map(|byte| *byte as u8).collect();
        let Ok(message) = CStr::from_bytes_until_nul(&bytes) else { panic!("a message without an end") };
        let Ok(message) = message.to_str() else { panic!("a message that is not UTF-8") };
        assert_ne!(status, octaplex_status::Internal, "a panic reached the boundary");
        assert_eq!(self.error.status, status, "{message}");
        assert_eq!(message.is_empty(), well, "{status:?}: {message}");
        // The error of this call must not be accepted for the next one.
        self.error.status = octaplex_status::Internal;
        self.outcome.well += usize::from(well);
        well
    }

    /// The same for a call that gives something or nothing.
    fn judge_given(&mut self, given: bool) {
        let status = self.error.status;
        let refused = c"cannot allocate".to_bytes();
        let starts = self.error.message.iter().zip(refused).all(|(found, byte)| *found as u8 == *byte);
        self.outcome.refused += usize::from(starts);
        assert_eq!(self.judge(status), given);
    }

    /// A cache, or a handle that is none: null, or a codec's.
    fn cache(&self, input: &mut Input) -> *mut octaplex_cache {
        if input.wrong() { self.codecs[0].cast() } else { input.pick(&self.caches) }
    }

    fn free_cache(&mut self, slot: usize) {
        let cache = std::mem::replace(&mut self.caches[slot], null_mut());
        let brought = self.memory.iter().position(|(handle, _)| *handle == cache && !cache.is_null());
        // SAFETY: the handle is of a cache that lives, or null, and nothing uses it any more.
        let status = unsafe { octaplex_cache_free(cache, &mut self.error) };
        assert!(self.judge(status));
        match brought {
            Some(at) => drop(self.memory.swap_remove(at)),
            None if cache.is_null() => {}
            None => {
                self.outcome.freed += 1;
                if cfg!(debug_assertions) {
                    // SAFETY: these builds keep a freed handle's words.
                    let status = unsafe { octaplex_cache_clear(cache, &mut self.error) };
                    assert_eq!(status, octaplex_status::Handle);
                    self.judge(status);
                }
            }
        }
    }

    fn free_codec(&mut self, slot: usize) {
        let codec = std::mem::replace(&mut self.codecs[slot], null_mut());
        // SAFETY: the handle is of a codec that lives, or null, and nothing uses it any more.
        let status = unsafe { octaplex_codec_free(codec, &mut self.error) };
        assert!(self.judge(status));
        self.outcome.freed += usize::from(!codec.is_null());
    }

    /// Returns the state of a cache as bytes; nothing for an invalid handle.
    fn contents(&mut self, cache: *mut octaplex_cache) -> Vec<u8> {
        if !self.caches.contains(&cache) {
            return Vec::new();
        }
        // SAFETY: the handle is null or a cache's; the buffer has its length.
        unsafe {
            let mut bytes = vec![0; octaplex_cache_serialized_length(cache, null_mut())];
            octaplex_cache_save_buffer(cache, bytes.as_mut_ptr(), bytes.len(), null_mut(), null_mut());
            bytes
        }
    }

    /// A call that changes a cache, or leaves it as it was.
    fn change(
        &mut self,
        cache: *mut octaplex_cache,
        call: impl FnOnce(&mut octaplex_error) -> octaplex_status,
    ) -> bool {
        let before = self.contents(cache);
        let status = call(&mut self.error);
        let well = self.judge(status);
        assert!(well || self.contents(cache) == before, "{status:?}, but the cache is another");
        well
    }

    fn config(&mut self, input: &mut Input) -> Box<Roomy<octaplex_config>> {
        // SAFETY: zeros are a configuration, and the struct has the size that it says.
        unsafe {
            let mut config = Roomy::new(zeroed::<octaplex_config>());
            let (layers, heads) = (1 + usize::from(input.byte() & 1), 1 + usize::from(input.byte() & 1));
            let (width, capacity) = (input.pick(&WIDTHS), 200 + 2 * usize::from(input.byte()));
            let size = size_of::<octaplex_config>();
            let status = octaplex_config_init(
                &mut config.known,
                size,
                layers,
                heads,
                width,
                capacity,
                &mut self.error,
            );
            assert!(self.judge(status));
            let known = &mut config.known;
            (known.keys, known.values) = (input.text(), input.text());
            known.center = u32::from(input.byte() % 3);
            known.balance = u32::from(input.byte() & 1);
            known.max_rollback = input.pick(&[0, 64, 100]);
            known.recent_window = input.pick(&[0, 64, 10]);
            known.sliding_window = input.pick(&[0, 0, 100]);
            known.query_heads = if layers == 2 { 2 * heads } else { 0 };
            if input.wrong() {
                let edge = input.pick(&EDGES);
                match input.byte() % 12 {
                    0 => known.layers = edge,
                    1 => known.kv_heads = edge,
                    2 => known.key_dim = edge,
                    3 => known.value_dim = edge,
                    4 => known.capacity = edge,
                    5 => known.page = edge,
                    6 => known.sink_tokens = edge,
                    7 => {
                        (known.recent_window, known.kv_heads, known.capacity) =
                            (1 << 24, 1 << 16, edge.max(1 << 40))
                    }
                    8 => known.max_rollback = edge,
                    9 => known.boundary_layers = edge as u32,
                    10 => known.center = edge as u32,
                    _ => known.backend = input.no_spec(),
                }
            }
            config
        }
    }

    fn step(&mut self, input: &mut Input) {
        let call = input.byte();
        let slot = usize::from(input.byte()) % 3;
        let error: *mut octaplex_error = &raw mut self.error;
        // SAFETY: handles are null or live, of some kind; pointers come with lengths that they have, or with some that
        // are refused before anything is read; structs have space for every size that is not refused.
        unsafe {
            match call % 16 {
                0 => {
                    self.free_cache(slot);
                    let mut config = self.config(input);
                    if takes_gigabytes(&config.known) {
                        return;
                    }
                    self.caches[slot] = octaplex_cache_create(config.given(input), error);
                    self.judge_given(!self.caches[slot].is_null());
                }
                1 => {
                    self.free_cache(slot);
                    let mut config = self.config(input);
                    let (config, queries) = (config.given(input), input.number(32));
                    let needed = octaplex_cache_memory_needed(config, queries, error);
                    self.judge_given(needed > 0);
                    let mut memory = vec![MaybeUninit::<u8>::uninit(); needed.min(1 << 22)];
                    let (data, length) = input.given(&mut memory);
                    let length = length.min(memory.len());
                    let cache = octaplex_cache_create_in(config, queries, data.cast(), length, error);
                    self.judge_given(!cache.is_null());
                    if !cache.is_null() {
                        self.memory.push((cache, memory));
                        self.caches[slot] = cache;
                    }
                }
                2 => self.free_cache(slot),
                3..6 => self.append(input),
                6 | 7 => self.attend(input),
                8 => {
                    let (cache, layer, head) = (self.cache(input), input.number(2), input.number(2));
                    let (rows, tokens) = (1 + input.number(4).min(8), self.tokens(cache, layer));
                    let (mut queries, width) = (Vec::new(), input.pick(&WIDTHS));
                    queries.resize_with(rows * width, || 0.5f32);
                    let (mut scores, mut output) = (vec![0f32; rows * tokens], vec![0f32; rows * width]);
                    let ((q, q_len), (s, s_len)) = (input.given(&mut queries), input.given(&mut scores));
                    let status = octaplex_cache_score(cache, layer, head, q, q_len, s, s_len, error);
                    let _ = self.judge(status);
                    let (o, o_len) = input.given(&mut output);
                    let status = octaplex_cache_accumulate(cache, layer, head, s, s_len, o, o_len, error);
                    let _ = self.judge(status);
                }
                9 => {
                    let (cache, first, last) = (self.cache(input), input.number(200), input.number(256));
                    let mut dropped = 0;
                    match input.byte() % 8 {
                        0..4 => self.change(cache, |error| octaplex_cache_truncate(cache, last, error)),
                        4..7 => self.change(cache, |error| {
                            octaplex_cache_evict(cache, first, last, &mut dropped, error)
                        }),
                        _ => self.change(cache, |error| octaplex_cache_clear(cache, error)),
                    };
                }
                10 => {
                    let from = self.cache(input);
                    if from != self.caches[slot] {
                        self.free_cache(slot);
                        self.caches[slot] = octaplex_cache_fork(from, error);
                        self.judge_given(!self.caches[slot].is_null());
                    }
                }
                11 => {
                    let mut stats =
                        Roomy::new(octaplex_stats { size: size_of::<octaplex_stats>(), ..zeroed() });
                    let (cache, layer) = (self.cache(input), input.number(3));
                    let status = octaplex_cache_get_stats(cache, layer, stats.given(input), error);
                    self.judge(status);
                    let rows = input.number(64);
                    self.change(cache, |error| octaplex_cache_reserve(cache, rows, error));
                }
                12 => self.save_and_load(input),
                13 => {
                    let (cache, layer, width) = (self.cache(input), input.number(2), input.pick(&WIDTHS));
                    let (mut keys, mut queries) =
                        (input.floats(2 * 16 * width), input.floats(2 * 16 * width));
                    let ((k, k_len), (q, q_len)) = (input.given(&mut keys), input.given(&mut queries));
                    self.change(cache, |error| {
                        octaplex_cache_calibrate(cache, layer, k, k_len, q, q_len, error)
                    });
                }
                14 => {
                    self.free_codec(slot % 2);
                    let id = octaplex_head_id {
                        layer: call.into(),
                        head: slot as u32,
                        role: (input.byte() % 3).into(),
                    };
                    let (spec, width) =
                        (input.text(), if input.wrong() { input.pick(&EDGES) } else { input.pick(&WIDTHS) });
                    let backend = if input.wrong() { input.no_spec() } else { null() };
                    self.codecs[slot % 2] = octaplex_codec_create(spec, width, &id, backend, error);
                    self.judge_given(!self.codecs[slot % 2].is_null());
                    // A name that is none: the others take seconds.
                    let status = octaplex_verify(c"nothing".as_ptr(), null(), null_mut(), error);
                    assert_eq!(status, octaplex_status::Text);
                }
                _ => self.code(input),
            }
        }
    }

    /// Tokens of a layer.
    fn tokens(&self, cache: *const octaplex_cache, layer: usize) -> usize {
        // SAFETY: zeros are a struct that says its size; the handle lives, or is null or a codec's, which is refused.
        unsafe {
            let mut stats = octaplex_stats { size: size_of::<octaplex_stats>(), ..zeroed() };
            octaplex_cache_get_stats(cache, layer, &mut stats, null_mut());
            stats.tokens
        }
    }

    fn append(&mut self, input: &mut Input) {
        let (cache, layer) = (self.cache(input), input.number(2));
        let (tokens, heads, width) =
            (usize::from(input.byte()), 1 + usize::from(input.byte() & 1), input.pick(&WIDTHS));
        let dtype = input.pick(&[OCTAPLEX_F32, OCTAPLEX_F32, OCTAPLEX_F16, OCTAPLEX_BF16]);
        let mut rows = [input.floats(tokens * heads * width), input.floats(tokens * heads * width)];
        let tensors = rows.each_mut().map(|rows| {
            let (data, length) = input.given(rows);
            let (mut tensor, turned) = (
                octaplex_tensor { data: data.cast(), length, dtype, head_stride: 0, token_stride: 0 },
                input.byte() & 3 == 3,
            );
            if turned {
                (tensor.head_stride, tensor.token_stride) = (width, heads * width);
            }
            if input.wrong() {
                tensor.dtype = input.byte().into();
                (tensor.head_stride, tensor.token_stride) = (input.number(256), input.number(256));
            }
            tensor
        });
        let tokens = if input.wrong() { input.pick(&EDGES) } else { tokens };
        let keys: *const octaplex_tensor = if input.wrong() { null() } else { &tensors[0] };
        // SAFETY: f32 rows are long enough for 16-bit ones of as many values; lengths are true or refused.
        self.change(cache, |error| unsafe {
            octaplex_cache_append(cache, layer, tokens, keys, &tensors[1], error)
        });
    }

    fn attend(&mut self, input: &mut Input) {
        let (cache, layer, queries) = (self.cache(input), input.number(2), 1 + input.number(4).min(8));
        let (heads, width) = (1 + usize::from(input.byte() & 3), input.pick(&WIDTHS));
        let mut rows = input.floats(heads * queries * width);
        let mut output = vec![0f32; rows.len()];
        // SAFETY: zeros are options; arrays have the lengths given or such as are refused.
        unsafe {
            let mut options = Roomy::new(octaplex_attend { size: size_of::<octaplex_attend>(), ..zeroed() });
            let (mut bias, mut sinks) = (input.floats(self.tokens(cache, layer)), input.floats(heads));
            let known = &mut options.known;
            known.queries = if input.wrong() { input.pick(&EDGES) } else { queries };
            let choice = input.byte();
            if choice & 1 != 0 {
                (known.scale, known.soft_cap) = (input.floats(1)[0], input.floats(1)[0]);
            }
            if choice & 2 != 0 {
                (known.window, known.keep_sinks) = (input.number(200), 1);
            }
            if choice & 4 != 0 {
                (known.has_position, known.position) = (1, input.number(200));
            }
            if choice & 8 != 0 {
                let (data, len) = input.given(&mut bias);
                (known.bias, known.bias_length) = (data, len);
            }
            if choice & 16 != 0 {
                let (data, len) = input.given(&mut sinks);
                (known.sink_logits, known.sink_logits_length) = (data, len);
            }
            if choice & 64 != 0 {
                (known.first_head, known.heads) = (input.number(4), input.number(4));
            }
            let options = if choice & 32 != 0 { null() } else { options.given(input).cast_const() };
            let ((q, q_len), (out, out_len)) = (input.given(&mut rows), input.given(&mut output));
            let error = &raw mut self.error;
            let status = octaplex_cache_attend(cache, layer, q, q_len, options, out, out_len, error);
            if self.judge(status) {
                assert!(output.iter().all(|x| x.is_finite()), "attention that is not finite: {output:?}");
            }
        }
    }

    fn save_and_load(&mut self, input: &mut Input) {
        let (cache, other, mut used) = (self.cache(input), self.cache(input), 0);
        let error = &raw mut self.error;
        // SAFETY: handles live or are refused; lengths are true or refused.
        unsafe {
            let length = octaplex_cache_serialized_length(cache, error);
            self.judge_given(length > 0);
            let mut buffer = vec![0u8; length];
            let (data, given) = input.given(&mut buffer);
            let status = octaplex_cache_save_buffer(cache, data, given, &mut used, error);
            if self.judge(status) {
                assert_eq!(used, length);
                self.snapshot = buffer;
            }
            let mut bytes = self.snapshot.clone();
            let damaged = input.byte() & 1 == 1 && !bytes.is_empty();
            if damaged {
                let at = usize::from(input.byte()) * 256 + usize::from(input.byte());
                let at = at % bytes.len();
                match input.byte() & 1 {
                    0 => bytes[at] ^= 1 << (input.byte() & 7),
                    _ => bytes.truncate(at),
                }
            }
            let (data, given) =
                if damaged { (bytes.as_mut_ptr(), bytes.len()) } else { input.given(&mut bytes) };
            let well = self.change(other, |error| octaplex_cache_load_buffer(other, data, given, error));
            assert!(!(well && damaged), "a damaged snapshot was loaded");
            if well {
                let (loaded, saved) = (self.contents(other), self.snapshot.clone());
                assert!(without_capacity(loaded) == without_capacity(saved), "another cache than was saved");
            }
        }
    }

    fn code(&mut self, input: &mut Input) {
        let codec = if input.wrong() { self.caches[0].cast() } else { input.pick(&self.codecs) };
        let error = &raw mut self.error;
        // SAFETY: handles live or are refused; lengths are true or refused; any bytes are a page.
        unsafe {
            let mut sizes = octaplex_codec_sizes { size: size_of::<octaplex_codec_sizes>(), ..zeroed() };
            let status = octaplex_codec_get_sizes(codec, &mut sizes, error);
            let _ = self.judge(status);
            let count = usize::from(input.byte() % 70);
            let bytes = octaplex_codec_page_bytes_max(
                codec,
                if input.wrong() { usize::MAX / 8 } else { count },
                error,
            );
            let status = self.error.status;
            self.judge(status);
            let (mut rows, mut page) =
                (input.floats(count * sizes.dim.min(96)), vec![0u8; bytes.min(1 << 20)]);
            let (mut words, mut scores) = (vec![0f32; sizes.query_words], vec![0f32; count]);
            let (mut decoded, mut used) = (vec![0f32; rows.len()], 0);
            let ((r, r_len), (p, p_len)) = (input.given(&mut rows), input.given(&mut page));
            let status = octaplex_codec_encode(codec, r, r_len, p, p_len, &mut used, error);
            if self.judge(status) {
                page.truncate(used);
            }
            if input.byte() & 1 == 1 && !page.is_empty() {
                let at = usize::from(input.byte()) % page.len();
                page[at] = input.byte();
            }
            let ((p, p_len), (d, d_len)) = (input.given(&mut page), input.given(&mut decoded));
            let status = octaplex_codec_decode(codec, p, p_len, d, d_len, error);
            if self.judge(status) {
                assert!(decoded.iter().all(|x| x.is_finite()), "decoded to what is not finite");
            }
            let mut query = input.floats(sizes.dim.min(96));
            let ((q, q_len), (w, w_len)) = (input.given(&mut query), input.given(&mut words));
            let status = octaplex_codec_prepare_query(codec, q, q_len, w, w_len, error);
            let prepared = self.judge(status);
            let (s, s_len) = input.given(&mut scores);
            let status = octaplex_codec_score(codec, w, w_len, p, p_len, s, s_len, error);
            if self.judge(status) && prepared {
                assert!(scores.iter().all(|x| x.is_finite()), "scores that are not finite");
            }
            let mut sums = vec![0f32; sizes.dim];
            let (sum, sum_len) = input.given(&mut sums);
            let status = octaplex_codec_accumulate(codec, s, s_len, p, p_len, sum, sum_len, error);
            let _ = self.judge(status);
            let status = octaplex_codec_finish(codec, sum, sum_len, error);
            let _ = self.judge(status);
        }
    }
}
