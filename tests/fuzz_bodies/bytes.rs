//! Loads snapshots, chunks and specs that may be anything.
//!
//! Inputs are built so: save a valid state, change some bytes, and repair the checksums. Otherwise nearly every
//! input would end at a checksum, and no code behind it would run.

use super::{Input, Kept, choices, choose_spec, is_finite};
use octaplex::cache::{Center, SharedLayer};
use octaplex::chunk::{ChunkCodec, ChunkConfig, ChunkInfo, ChunkLayout};
use octaplex::{Backend, CodecSpec, KvCache, LayerConfig};
use std::rc::Rc;

const DIM: usize = 32;

/// Returns a codec and a width that it takes. With bit 128 of `kind`, codecs that can have outliers have them, so that pages
/// differ in length.
fn spec_of(codec: usize, kind: u8) -> (CodecSpec, usize) {
    let spec = match CodecSpec::all()[codec].name {
        "int" if kind & 128 != 0 => "int:med=1",
        "hqmq" if kind & 128 != 0 => "hqmq:r=6,med=3",
        name => name,
    };
    let spec = spec.parse().unwrap();
    (spec, if matches!(spec, CodecSpec::Graded(_)) { 2 * DIM } else { DIM })
}

fn rows(count: usize, dim: usize) -> Vec<f32> {
    (0..count * dim).map(|i| ((i * 31 % 97) as f32 - 48.0) / 7.0).collect()
}

/// Returns where the sections of sound bytes end. A section ends where four bytes are the checksum of all bytes since the
/// last checksum:
///
/// ```text
/// header │ CRC │ section │ CRC │ … │ section │ CRC
///        └ end           └ end              └ end
/// ```
///
/// No bytes have the checksum 0. So four zeros would look like an empty section, and only the last section may be empty.
fn sections(bytes: &[u8]) -> Vec<usize> {
    let (mut ends, mut section, mut at, mut start) = (Vec::new(), crc32fast::Hasher::new(), 0, 0);
    while at + 4 <= bytes.len() {
        let can_end = at > start || at + 4 == bytes.len();
        if can_end && section.clone().finalize().to_le_bytes() == bytes[at..at + 4] {
            ends.push(at);
            (section, at) = (crc32fast::Hasher::new(), at + 4);
            start = at;
            continue;
        }
        section.update(&bytes[at..=at]);
        at += 1;
    }
    assert!(ends.len() >= 2, "a header, and what it describes: {ends:?}");
    assert_eq!(ends.last(), Some(&(bytes.len() - 4)), "bytes behind the last checksum");
    ends
}

/// Returns a sound snapshot of a layer, and where its sections end.
fn sound(codec: usize, kind: u8) -> Option<Rc<(Vec<u8>, Vec<usize>)>> {
    type Made = Option<Rc<(Vec<u8>, Vec<usize>)>>;
    thread_local!(static SNAPSHOTS: Kept<(usize, u8), Made> = Kept::new());
    let make = || {
        let (spec, dim) = spec_of(codec, kind);
        let mut config = LayerConfig::new(1, dim, 400).keys(spec).values(spec);
        config.sink_tokens = 1;
        config.recent_window = 2;
        config.max_rollback = [0, 64][usize::from(kind & 1)];
        config.sliding_window = [None, Some(100)][usize::from(kind >> 1 & 1)];
        config.center = [Center::Page, Center::Prefix, Center::Off][usize::from(kind >> 2 & 3) % 3];
        let mut layer = SharedLayer::on_heap(&config, Backend::detect()).ok()?;
        let tokens = [0, 1, 70, 200][usize::from(kind >> 4 & 3)];
        let mut scratch = vec![0.0; config.scratch_len(1)];
        layer.append(&rows(tokens, dim), &rows(tokens, dim), &mut scratch).ok()?;
        let mut bytes = Vec::new();
        layer.save(&mut |piece| bytes.extend_from_slice(piece));
        let ends = sections(&bytes);
        Some(Rc::new((bytes, ends)))
    };
    SNAPSHOTS.with(|snapshots| snapshots.get((codec, kind & !64), make))
}

/// Writes the checksum of each section behind it. Sections end at `ends`.
fn repair(bytes: &mut [u8], ends: &[usize]) {
    let mut from = 0;
    for &end in ends {
        let Some(section) = bytes.get(from..end) else { return };
        let crc = crc32fast::hash(section);
        let Some(place) = bytes.get_mut(end..end + 4) else { return };
        place.copy_from_slice(&crc.to_le_bytes());
        from = end + 4;
    }
}

/// Changes up to four places: flips bits, writes numbers at the edges of their types, or cuts the end off.
fn mutate(input: &mut Input, bytes: &mut Vec<u8>) {
    for _ in 0..1 + input.below(4) {
        // Three of four places are in the first 256 bytes, because headers decide the most.
        let at = usize::from(input.byte())
            + if input.byte() & 3 == 3 { 256 * usize::from(input.byte()) } else { 0 };
        let at = at % bytes.len().max(1);
        match input.below(6) {
            0 => bytes[at] ^= 1 << (input.byte() & 7),
            1 => bytes[at] = input.byte(),
            2 | 3 => {
                let edges = [
                    0,
                    1,
                    2,
                    63,
                    64,
                    65,
                    u64::MAX,
                    1 << 62,
                    1 << 61,
                    (1 << 62) - 1,
                    1 << 40,
                    1 << 32,
                    1 << 24,
                    1 << 16,
                ];
                let edge = input.pick(&edges);
                let length = [4, 8][input.below(2)].min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&edge.to_le_bytes()[..length]);
            }
            4 => {
                let value = input.bytes(4);
                let length = 4.min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&value[..length]);
            }
            _ => bytes.truncate(at + 1),
        }
    }
}

/// Loads a changed snapshot. That is an error, or the layer attends, appends, and saves bytes that load again. Inputs that
/// begin with `octa` are loaded unchanged, as a cache and as a layer.
pub fn snapshot(data: &[u8]) {
    if data.starts_with(b"octa") {
        let _ = KvCache::load(data, Backend::detect());
        let _ = SharedLayer::from_snapshot(data, Backend::detect());
        return;
    }
    let mut input = Input::new(data);
    let (codec, kind) = (input.below(CodecSpec::all().len()), input.byte());
    let Some(made) = sound(codec, kind) else { return };
    if kind & 64 != 0 {
        // `empty` holds only the sink, because a page is loaded behind the sinks.
        return sound(codec, kind & !48 | 16)
            .into_iter()
            .for_each(|empty| load_page(&mut input, &made.0, &empty.0));
    }
    let (mut bytes, ends) = (made.0.clone(), &made.1);
    mutate(&mut input, &mut bytes);
    repair(&mut bytes, ends);
    // Load into a layer of the original configuration, and one time in eight into one of the configuration in the bytes.
    for own in [true, false] {
        let layer = if own {
            SharedLayer::from_snapshot(&made.0, Backend::detect()).and_then(|mut layer| {
                let loaded = layer.load(&bytes);
                assert!(loaded.is_ok() || saved(&layer) == made.0, "{loaded:?}, but the layer is another");
                loaded.map(|()| layer)
            })
        } else if input.byte() & 7 == 0 {
            SharedLayer::from_snapshot(&bytes, Backend::detect())
        } else {
            continue;
        };
        if let Ok(layer) = layer {
            check_life(layer);
        }
    }
}

/// Saves a page of a layer and loads it into a layer that has the sinks only, first unchanged, then changed.
fn load_page(input: &mut Input, full: &[u8], empty: &[u8]) {
    let from = SharedLayer::from_snapshot(full, Backend::detect()).unwrap();
    let mut bytes = Vec::new();
    if from.save_page(input.below(3), &mut |piece| bytes.extend_from_slice(piece)).is_err() {
        return;
    }
    let layer = || SharedLayer::from_snapshot(empty, Backend::detect()).unwrap();
    layer().load_page(&bytes).unwrap();
    let end = bytes.len() - 4;
    mutate(input, &mut bytes);
    repair(&mut bytes, &[end]);
    let mut layer = layer();
    match layer.load_page(&bytes) {
        Ok(()) => check_life(layer),
        Err(error) => assert!(saved(&layer) == empty, "{error}, but the layer is another"),
    }
}

fn saved(layer: &SharedLayer) -> Vec<u8> {
    let mut bytes = Vec::new();
    layer.save(&mut |piece| bytes.extend_from_slice(piece));
    bytes
}

/// Checks that a loaded layer attends, and that it saves bytes that load again: at once, and after a rollback, an append and an
/// eviction.
fn check_life(mut layer: SharedLayer) {
    let config = *layer.config();
    let before = saved(&layer);
    layer
        .load(&before)
        .unwrap_or_else(|error| panic!("{config:?}: a loaded layer saves what does not load: {error}"));
    // Configurations can be large, but not where bytes were found for them.
    if config.kv_heads > 64 || config.scratch_len(1) > 1 << 20 {
        return;
    }
    let mut scratch = vec![0.0; config.scratch_len(config.kv_heads)];
    let queries = vec![0.5; config.kv_heads * config.key_dim];
    let mut output = vec![0.0; config.kv_heads * config.value_dim];
    if layer.attend(&queries, &mut output, &mut scratch).is_ok() {
        assert!(is_finite(&output), "{config:?}: {output:?}");
    }
    let next = layer.next_position();
    let _ = layer.truncate(next.saturating_sub(70));
    let row = |dim: usize| vec![0.25; config.kv_heads * dim];
    let _ = layer.append(&row(config.key_dim), &row(config.value_dim), &mut scratch);
    let _ = layer.evict(0..next);
    let after = saved(&layer);
    layer.load(&after).unwrap_or_else(|error| {
        panic!("{config:?}: after more operations, a layer saves what does not load: {error}")
    });
}

/// Returns a sound chunk, and where its sections end.
fn sound_chunk(codec: usize, kind: u8) -> Option<Rc<(Vec<u8>, Vec<usize>)>> {
    type Made = Option<Rc<(Vec<u8>, Vec<usize>)>>;
    thread_local!(static CHUNKS: Kept<(usize, u8), Made> = Kept::new());
    let make = || {
        let (spec, dim) = spec_of(codec, kind);
        let config = ChunkConfig::new(1 + usize::from(kind & 1), 1, dim)
            .keys(spec)
            .values(spec)
            .layout([ChunkLayout::Split, ChunkLayout::Fused][usize::from(kind >> 1 & 1)])
            .center([Center::Page, Center::Prefix, Center::Off][usize::from(kind >> 2 & 3) % 3]);
        let coder = ChunkCodec::new(config, Backend::detect()).ok()?;
        let tokens = [1, 3, 66, 17][usize::from(kind >> 4 & 3)];
        let bytes = coder.encode(&rows(2 * config.layers * tokens, dim)[..]).unwrap();
        let ends = sections(&bytes);
        Some(Rc::new((bytes, ends)))
    };
    CHUNKS.with(|chunks| chunks.get((codec, kind & !64), make))
}

/// Reads a changed chunk. That is an error, or its values are finite and a cache takes it over.
pub fn chunk(data: &[u8]) {
    if data.starts_with(b"octa") {
        let _ = ChunkInfo::read(data);
        return;
    }
    let mut input = Input::new(data);
    let kind = input.byte();
    let Some(sound) = sound_chunk(input.below(CodecSpec::all().len()), kind) else { return };
    let (mut bytes, ends) = (sound.0.clone(), &sound.1);
    mutate(&mut input, &mut bytes);
    repair(&mut bytes, ends);
    let Ok(info) = ChunkInfo::read(&bytes) else { return };
    assert!(info.bytes <= bytes.len());
    if info.values() > 1 << 20 || info.config.layers > 4 {
        return;
    }
    thread_local!(static CODECS: Kept<ChunkConfig, Option<Rc<ChunkCodec>>> = Kept::new());
    let make = || ChunkCodec::new(info.config, Backend::detect()).ok().map(Rc::new);
    let Some(codec) = CODECS.with(|codecs| codecs.get(info.config, make)) else { return };
    let mut values = vec![f32::NAN; info.values()];
    let decoded = codec.decode(&bytes, &mut values[..]);
    if decoded.is_ok() {
        assert!(is_finite(&values), "{info:?}");
    }
    let Some(mut cache) = taking(info.config) else { return };
    let before = cache.save();
    match cache.append_chunk(&bytes) {
        Ok(()) => takes_over(&cache, &info),
        Err(error) => assert!(cache.save() == before, "{info:?}: {error}, but the cache is another"),
    }
}

/// Returns an empty cache that takes chunks of a configuration over, or `None` if too few of this size fit into memory.
fn taking(config: ChunkConfig) -> Option<KvCache> {
    if config.kv_heads * config.head_dim * config.page > 1 << 16 {
        return None;
    }
    thread_local!(static CACHES: Kept<ChunkConfig, Option<Rc<KvCache>>> = Kept::new());
    let make = || {
        let layer = |index| {
            LayerConfig::new(config.kv_heads, config.head_dim, 1 << 15)
                .layer(config.first_layer + index as u32)
                .keys(config.keys)
                .values(config.values)
                .page(config.page)
                .sink_tokens(0)
                .center(config.center)
                .balance(config.balance)
        };
        KvCache::new((0..config.layers).map(layer), Backend::detect()).ok().map(Rc::new)
    };
    CACHES.with(|caches| caches.get(config, make)).map(|cache| cache.fork()) // which shares the codecs
}

/// Checks that a cache that took a chunk over attends, and saves bytes that load again.
fn takes_over(cache: &KvCache, info: &ChunkInfo) {
    let config = &info.config;
    assert_eq!(cache.layers()[0].tokens(), info.tokens, "{info:?}");
    let queries = vec![0.5; config.kv_heads * config.head_dim];
    let mut output = vec![f32::NAN; queries.len()];
    for layer in 0..config.layers {
        if cache.attend(layer, &queries, &mut output).is_ok() {
            assert!(is_finite(&output), "{info:?}: {output:?}");
        }
    }
    let saved = cache.save();
    let loaded = KvCache::load(&saved, Backend::detect())
        .unwrap_or_else(|error| panic!("{info:?}: taken over, not to be saved and loaded: {error}"));
    assert!(loaded.save() == saved, "{info:?}: a snapshot is not what was loaded");
}

/// Any text as a spec: an error that can be shown, or a spec whose text is the same again, and whose sizes are numbers. Other inputs
/// choose codecs and keys, so that valid specs are reached as well.
pub fn spec(data: &[u8]) {
    let text = match data.split_first() {
        Some((0, rest)) => {
            let Some(spec) = choose_spec(&mut Input::new(rest)) else { return };
            spec.to_string()
        }
        Some((1, rest)) => {
            let mut input = Input::new(rest);
            let codec = input.below(CodecSpec::all().len());
            let mut text = CodecSpec::all()[codec].name.to_owned();
            while !input.is_empty() {
                let (separator, other) =
                    (input.pick(&[",", ":", "=", ",", ""]), input.below(CodecSpec::all().len()));
                text.push_str(separator);
                match choices()[other].first() {
                    Some(choices) => text.push_str(&input.pick(choices)),
                    None => text.push(char::from(input.byte() & 127)),
                }
            }
            text
        }
        _ => String::from_utf8_lossy(data).into_owned(),
    };
    match text.parse::<CodecSpec>() {
        Ok(spec) => {
            assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
            assert_eq!(spec.full().to_string().parse(), Ok(spec), "{text}");
            for dim in [0, 1, 32, 128, 576, 1 << 20, usize::MAX] {
                let bytes = spec.block_bytes(dim);
                assert!(bytes <= dim.saturating_mul(4).saturating_add(16), "{text} at {dim}: {bytes} bytes");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
