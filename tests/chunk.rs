//! Tests chunks: decoded values are those of a cache, for every codec, layout, type and number of tokens. There are golden
//! files, and blobs with each of their bytes damaged. `OCTAPLEX_BLESS=1 cargo test --test suite chunk` rewrites the files.
#![cfg(feature = "alloc")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random, bits, specs};
use octaplex::cache::Center;
use octaplex::chunk::{ChunkCodec, ChunkConfig, ChunkInfo, ChunkLayout, Dtype};
use octaplex::codecs::{HeadId, Role};
use octaplex::{Backend, CodecSpec, Error, KvCache, LayerConfig, bf16, f16};

/// Numbers that need no floats to make, those of the golden codecs; exact in f16 and in bf16.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = 2_463_534_242u32.wrapping_add(seed);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 24) as f32 - 128.0) / 32.0
    };
    (0..count).map(|_| next()).collect()
}

/// Keys as models have them: a large constant channel, channels of different widths, noise.
fn tensor(config: &ChunkConfig, tokens: usize, random: &mut Random) -> Vec<f32> {
    let mut tensor = vec![0.0; 2 * config.layers * tokens * config.kv_heads * config.head_dim];
    for values in [false, true] {
        for layer in 0..config.layers {
            for head in 0..config.kv_heads {
                for token in 0..tokens {
                    let at = place(config, tokens, values, layer, head, token);
                    for (channel, x) in tensor[at..at + config.head_dim].iter_mut().enumerate() {
                        let scale = if !values && channel % 16 == 3 { 8.0 } else { 1.0 };
                        let constant = if !values && channel == 5 { 20.0 } else { 0.0 };
                        *x = f16::from_f32(constant + scale * random.gaussian()).to_f32();
                    }
                }
            }
        }
    }
    tensor
}

/// The place of a row, by a second implementation of the layout.
fn place(
    config: &ChunkConfig,
    tokens: usize,
    values: bool,
    layer: usize,
    head: usize,
    token: usize,
) -> usize {
    let (layers, heads, dim) = (config.layers, config.kv_heads, config.head_dim);
    match config.layout {
        ChunkLayout::Split => {
            (((usize::from(values) * layers + layer) * tokens + token) * heads + head) * dim
        }
        ChunkLayout::Fused => (((layer * tokens + token) * heads + head) * 2 + usize::from(values)) * dim,
    }
}

/// The rows of a layer, \[heads]\[tokens]\[width].
fn rows(config: &ChunkConfig, tensor: &[f32], values: bool, layer: usize) -> Vec<f32> {
    let tokens = tensor.len() / (2 * config.layers * config.kv_heads * config.head_dim);
    let mut rows = Vec::new();
    for head in 0..config.kv_heads {
        for token in 0..tokens {
            let at = place(config, tokens, values, layer, head, token);
            rows.extend_from_slice(&tensor[at..at + config.head_dim]);
        }
    }
    rows
}

fn decode(codec: &ChunkCodec, blob: &[u8]) -> Result<Vec<f32>, Error> {
    let mut decoded = vec![0.0; ChunkInfo::read(blob)?.values()];
    codec.decode(blob, &mut decoded[..])?;
    Ok(decoded)
}

fn error(a: &[f32], b: &[f32]) -> f64 {
    let sum = |f: &dyn Fn(f64, f64) -> f64| {
        a.iter().zip(b).map(|(a, b)| f(f64::from(*a), f64::from(*b))).sum::<f64>()
    };
    sum(&|a, b| (a - b) * (a - b)) / sum(&|a, _| a * a)
}

/// A cache that keeps nothing exact, of the chunk's layers.
fn cache_of(config: &ChunkConfig) -> KvCache {
    let layers = (0..config.layers).map(|layer| {
        LayerConfig::new(config.kv_heads, config.head_dim, 4096)
            .layer(config.first_layer + layer as u32)
            .keys(config.keys)
            .values(config.values)
            .page(config.page)
            .center(config.center)
            .balance(config.balance)
            .sink_tokens(0)
            .recent_window(0)
            .max_rollback(0)
    });
    KvCache::new(layers, Backend::detect()).unwrap()
}

fn config(keys: &str, values: &str, dim: usize) -> ChunkConfig {
    ChunkConfig::new(2, 2, dim).keys(keys.parse().unwrap()).values(values.parse().unwrap())
}

/// A width that the codec has.
fn width_of(spec: CodecSpec) -> usize {
    [64, 128, 32, 96].into_iter().find(|&dim| spec.block_bytes(dim) > 0).unwrap()
}

/// Every codec: the tokens are those that a cache reads from the same pages, and no worse than the cache's own.
#[test]
fn every_codec_comes_back() {
    let mut random = Random::new(1);
    for spec in specs() {
        let dim = width_of(spec);
        for (tokens, layout) in [(130, ChunkLayout::Split), (64, ChunkLayout::Fused)] {
            let config = ChunkConfig::new(2, 2, dim).first_layer(3).keys(spec).values(spec).layout(layout);
            let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
            let tensor = tensor(&config, tokens, &mut random);
            let blob = codec.encode(&tensor).unwrap();
            assert!(blob.len() <= codec.max_bytes(tokens), "{spec}");
            if !spec.to_string().contains("med=") {
                assert_eq!(blob.len(), codec.max_bytes(tokens), "{spec}");
            }
            let decoded = decode(&codec, &blob).unwrap();
            let (mut loaded, mut own) = (cache_of(&config), cache_of(&config));
            loaded.append_chunk(&blob).unwrap();
            assert_eq!(loaded.stats().tokens, tokens);
            for layer in 0..2 {
                let [keys, values] = [false, true].map(|values| rows(&config, &decoded, values, layer));
                for head in 0..2 {
                    let (mut key, mut value) = (vec![0.0; dim], vec![0.0; dim]);
                    for token in 0..tokens {
                        let at = (head * tokens + token) * dim;
                        let exact = |x: &[f32]| -> Vec<f32> {
                            x.iter().map(|x| f16::from_f32(*x).to_f32()).collect()
                        };
                        loaded.layers()[layer].decode(head, token, &mut key, &mut value).unwrap();
                        let (mut want, mut wanted) =
                            (keys[at..at + dim].to_vec(), values[at..at + dim].to_vec());
                        if token >= tokens / 64 * 64 {
                            (want, wanted) = (exact(&want), exact(&wanted)); // in the window
                        }
                        assert!(
                            bits(&key) == bits(&want) && bits(&value) == bits(&wanted),
                            "{spec}: token {token}"
                        );
                    }
                }
                let [k, v] = [false, true].map(|values| rows(&config, &tensor, values, layer));
                let _ = own.calibrate(layer, &k, &[]); // plain floats have no balance
                own.append(layer, &k, &v).unwrap();
                let queries = random.gaussians(4 * dim);
                let mut outputs = [vec![0.0; 4 * dim], vec![0.0; 4 * dim]];
                for (cache, output) in [&loaded, &own].into_iter().zip(&mut outputs) {
                    cache.attend(layer, &queries, output).unwrap();
                }
                if tokens == 64 {
                    // The same balance; the prefix centre alone is rounded otherwise.
                    let apart = error(&outputs[0], &outputs[1]);
                    assert!(apart < 0.02, "{spec}: {apart}");
                }
            }
        }
    }
}

/// Attention after the round trip, compared with a cache of the same tokens: errors within a few percent, in both directions.
#[test]
fn attention_is_that_of_a_cache() {
    let mut random = Random::new(2);
    for spec in ["turboquant", "turboquant:bits=2", "trellis", "graded", "int", "hqmq", "octopus"] {
        let config =
            ChunkConfig::new(1, 4, 128).keys(spec.parse().unwrap()).values("turboquant".parse().unwrap());
        let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
        let tensor = tensor(&config, 512, &mut random);
        let decoded = decode(&codec, &codec.encode(&tensor).unwrap()).unwrap();
        let exact = config.keys("f32".parse().unwrap()).values("f32".parse().unwrap());
        let (mut own, mut round_trip, mut reference) =
            (cache_of(&config), cache_of(&exact), cache_of(&exact));
        for (cache, tensor) in [(&mut own, &tensor), (&mut round_trip, &decoded), (&mut reference, &tensor)] {
            let [k, v] = [false, true].map(|values| rows(&config, tensor, values, 0));
            cache.append(0, &k, &v).unwrap();
        }
        let queries: Vec<f32> = random.gaussians(64 * 128).iter().map(|x| 0.1 * x).collect();
        let [own, round_trip, reference] = [own, round_trip, reference].map(|cache| {
            let mut output = vec![0.0; queries.len()];
            cache.attend(0, &queries, &mut output).unwrap();
            output
        });
        let (own, ours) = (error(&reference, &own), error(&reference, &round_trip));
        assert!(ours < 1.1 * own && ours > 0.3 * own, "{spec}: {ours}, and {own} without the round trip");
    }
}

/// Any number of tokens, all types: rows of two bytes a value give the same blob as their values in four bytes.
#[test]
fn every_size_and_type() {
    for layout in [ChunkLayout::Split, ChunkLayout::Fused] {
        for tokens in [1, 2, 31, 63, 64, 65, 127, 128, 129, 257] {
            for (page, center, spec) in [
                (64, Center::Page, "trellis:m=2"),
                (128, Center::Prefix, "int:bits=3,med=2"),
                (256, Center::Off, "fp8"),
            ] {
                let config = config(spec, "turboquant:bits=3", 64).layout(layout).page(page).center(center);
                let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
                let floats = numbers(tokens as u32, 4 * tokens * 2 * 64);
                let blob = codec.encode(&floats).unwrap();
                assert!(blob.len() <= codec.max_bytes(tokens), "{tokens} tokens of {spec}");
                let decoded = decode(&codec, &blob).unwrap();
                let limit = if spec == "trellis:m=2" { 0.15 } else { 0.1 };
                assert!(error(&floats, &decoded) < limit, "{tokens} of {spec}: {}", error(&floats, &decoded));

                let halves: Vec<f16> = floats.iter().map(|x| f16::from_f32(*x)).collect();
                let short: Vec<bf16> = floats.iter().map(|x| bf16::from_f32(*x)).collect();
                let others = [codec.encode(&halves[..]).unwrap(), codec.encode(&short[..]).unwrap()];
                for (other, dtype) in others.iter().zip([Dtype::F16, Dtype::Bf16]) {
                    let info = ChunkInfo::read(other).unwrap();
                    assert_eq!((info.dtype, info.tokens, info.bytes), (dtype, tokens, other.len()));
                    assert_eq!(info.config, config);
                    assert_eq!(decode(&codec, other).unwrap(), decoded);
                }
                let (mut halves, mut short) = (halves, short);
                codec.decode(&blob, &mut halves[..]).unwrap();
                codec.decode(&blob, &mut short[..]).unwrap();
                for ((x, half), short) in decoded.iter().zip(&halves).zip(&short) {
                    assert_eq!(half.to_bits(), f16::from_f32(*x).to_bits());
                    assert_eq!(short.to_bits(), bf16::from_f32(*x).to_bits());
                }
            }
        }
    }
}

/// bf16 and f32 that f16 does not hold exactly are rounded as a cache rounds them.
#[test]
fn small_numbers_are_rounded_to_f16() {
    let config = ChunkConfig::new(1, 1, 32).keys("f32".parse().unwrap()).values("f32".parse().unwrap());
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let floats: Vec<f32> = (0..64).map(|i| (0.3 + i as f32) * (-(i as f32) / 3.0).exp2()).collect();
    let short: Vec<bf16> = floats.iter().map(|x| bf16::from_f32(*x)).collect();
    let decoded = decode(&codec, &codec.encode(&floats).unwrap()).unwrap();
    let from_short = decode(&codec, &codec.encode(&short[..]).unwrap()).unwrap();
    for ((x, short), (a, b)) in floats.iter().zip(&short).zip(decoded.iter().zip(&from_short)) {
        assert_eq!(*a, f16::from_f32(*x).to_f32());
        assert_eq!(*b, f16::from_f32(short.to_f32()).to_f32());
    }
}

fn golden() -> [(&'static str, ChunkConfig, usize); 2] {
    let split = ChunkConfig::new(2, 1, 32)
        .keys("turboquant:bits=3".parse().unwrap())
        .values("hqmq:s=24,r=3,med=2".parse().unwrap())
        .first_layer(5);
    let fused = ChunkConfig::new(1, 2, 64)
        .keys("graded:bits=2".parse().unwrap())
        .values("trellis:m=2".parse().unwrap())
        .layout(ChunkLayout::Fused);
    [("split", split, 70), ("fused", fused, 9)]
}

/// f32 of the first, bf16 of the second.
fn golden_blob(codec: &ChunkCodec, tokens: usize) -> Vec<u8> {
    let ChunkConfig { layers, kv_heads, head_dim, layout, .. } = *codec.config();
    let floats = numbers(0, 2 * layers * tokens * kv_heads * head_dim);
    match layout {
        ChunkLayout::Split => codec.encode(&floats),
        ChunkLayout::Fused => {
            codec.encode(&floats.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>()[..])
        }
    }
    .unwrap()
}

#[test]
fn golden_bytes_on_every_backend() {
    for (name, config, tokens) in golden() {
        let file = format!("{}/tests/snapshots/{name}.chunk", env!("CARGO_MANIFEST_DIR"));
        for backend in Backend::available() {
            let codec = ChunkCodec::new(config, backend).unwrap();
            let blob = golden_blob(&codec, tokens);
            if std::env::var_os("OCTAPLEX_BLESS").is_some() {
                std::fs::write(&file, &blob).unwrap();
            }
            assert!(std::fs::read(&file).unwrap() == blob, "{file}: other bytes on {backend:?}");
            let first =
                decode(&ChunkCodec::new(config, Backend::named("scalar").unwrap()).unwrap(), &blob).unwrap();
            assert_eq!(bits(&decode(&codec, &blob).unwrap()), bits(&first), "{backend:?}");
        }
    }
}

/// Every byte damaged, every length cut off: an error, and the tensor and the cache as they were.
#[test]
fn damage_is_found() {
    for (_, config, tokens) in golden() {
        let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
        let blob = golden_blob(&codec, tokens);
        let values = ChunkInfo::read(&blob).unwrap().values();
        let (mut tensor, mut cache) = (vec![7.0; values], cache_of(&config));
        let empty = cache.stats();
        let mut check = |damaged: &[u8], what: &str, at: usize| {
            assert!(codec.decode(damaged, &mut tensor[..]).is_err(), "{what} {at}");
            assert!(tensor.iter().all(|x| *x == 7.0), "{what} {at}: something was written");
            assert!(cache.append_chunk(damaged).is_err(), "{what} {at}");
            assert_eq!(cache.stats(), empty);
        };
        for at in 0..blob.len() {
            let mut damaged = blob.clone();
            damaged[at] ^= 1 << (at % 8);
            check(&damaged, "byte", at);
        }
        (0..blob.len()).for_each(|at| check(&blob[..at], "length", at));
        check(&[&blob[..], &[0]].concat(), "longer by", 1);
    }
}

/// Every byte replaced and the checksums made right: an error or finite numbers, never a panic.
#[test]
fn forged_blobs_are_errors_or_finite() {
    let mut random = Random::new(3);
    for (_, config, tokens) in golden() {
        let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
        let blob = golden_blob(&codec, tokens);
        let sections = sections(&blob, &config, tokens);
        let (mut fine, mut refused, cache) = (0, 0, cache_of(&config));
        for at in 0..blob.len() {
            for value in [0xff, random.word() as u8] {
                let mut forged = blob.clone();
                forged[at] = value;
                for range in &sections {
                    let checksum = crc32fast::hash(&forged[range.clone()]);
                    forged[range.end..range.end + 4].copy_from_slice(&checksum.to_le_bytes());
                }
                let _ = cache.fork().append_chunk(&forged);
                match ChunkInfo::read(&forged) {
                    Ok(info) if info.values() <= 1 << 20 => {
                        let same = info.config == config;
                        let other = (!same).then(|| ChunkCodec::new(info.config, Backend::detect()));
                        let other = other.and_then(Result::ok);
                        match decode(other.as_ref().unwrap_or(&codec), &forged) {
                            Ok(decoded) => {
                                fine += 1;
                                assert!(decoded.iter().all(|x| x.abs() <= 65504.0), "byte {at}");
                            }
                            Err(_) => refused += 1,
                        }
                    }
                    Ok(info) => panic!("byte {at}: {} values from {} bytes", info.values(), forged.len()),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(fine > blob.len() && refused > 100, "{fine} fine, {refused} refused");
    }
}

/// Returns the section that each checksum covers, found by trying all ends.
fn sections(blob: &[u8], config: &ChunkConfig, tokens: usize) -> Vec<std::ops::Range<usize>> {
    let (mut sections, mut start) = (Vec::new(), 0);
    while start < blob.len() {
        let ends = |end: &usize| blob[*end..*end + 4] == crc32fast::hash(&blob[start..*end]).to_le_bytes();
        let end = (start + 1..blob.len() - 3).find(ends).unwrap();
        sections.push(start..end);
        start = end + 4;
    }
    assert_eq!(sections.len(), 1 + config.layers, "{tokens} tokens");
    sections
}

/// A header that lies about its size is refused before anything is allocated.
#[test]
fn headers_that_lie_allocate_nothing() {
    let (_, config, tokens) = golden()[1];
    let blob = golden_blob(&ChunkCodec::new(config, Backend::detect()).unwrap(), tokens);
    let counted = allocation_counter::measure(|| assert!(ChunkInfo::read(&blob).is_ok()));
    assert_eq!(counted.count_total, 0);
    let header = sections(&blob, &config, tokens)[0].end;
    for (at, bytes) in [(16, 4), (24, 4), (28, 4), (36, 8), (44, 8)] {
        for value in [0u64, 2, 576, 65_536, 1 << 31, 1 << 40, 1 << 62, u64::MAX] {
            let mut forged = blob.clone();
            forged[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            let checksum = crc32fast::hash(&forged[..header]);
            forged[header..header + 4].copy_from_slice(&checksum.to_le_bytes());
            if forged == blob {
                continue;
            }
            let mut read = Ok(());
            let counted = allocation_counter::measure(|| read = ChunkInfo::read(&forged).map(|_| ()));
            assert!(read.is_err(), "{value} at {at}");
            assert_eq!(counted.count_total, 0, "{value} at {at}");
        }
    }
}

/// A codec with a dense matrix takes megabytes a layer, and a layer of a blob a hundred bytes.
#[test]
fn many_dense_matrices_are_refused() {
    for (layers, refused) in [(3, false), (20, true)] {
        let spec = "turboquant:bits=1".parse().unwrap();
        let config = ChunkConfig::new(layers, 1, 576).keys(spec).values(spec);
        let config = config.center(Center::Off).balance(false);
        let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
        let blob = codec.encode(&vec![0.5; 2 * layers * 576]).unwrap();
        // The same pages, and another rotation in the header.
        let (header, text) = (52 + 2 * (4 + "turboquant:bits=1".len()), b"turboquant:bits=1,rotation=haar");
        let mut forged = blob[..52].to_vec();
        for _ in 0..2 {
            forged.extend((text.len() as u32).to_le_bytes());
            forged.extend(text);
        }
        let length = (blob.len() - header + forged.len()) as u64;
        forged[44..52].copy_from_slice(&length.to_le_bytes());
        forged.extend(crc32fast::hash(&forged).to_le_bytes());
        forged.extend(&blob[header + 4..]);
        let read = ChunkInfo::read(&forged);
        assert_eq!(read.is_err(), refused, "{layers}: {read:?}");
        assert!(read.is_ok() || matches!(read, Err(Error::Snapshot { at: 44, .. })), "{read:?}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    for layout in [ChunkLayout::Split, ChunkLayout::Fused] {
        let config = config("turboquant", "turboquant", 32).first_layer(7).layout(layout);
        let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
        let fine = numbers(1, 4 * 3 * 2 * 32);
        for len in [0, 1, 255, fine.len() - 1] {
            assert!(matches!(codec.encode(&fine[..len]), Err(Error::Length { .. })), "{len}");
        }
        for (value, finite) in [(f32::NAN, false), (f32::INFINITY, false), (-1e5, true), (65520.0, true)] {
            for (values, layer, head, token) in
                [(false, 0, 0, 0), (false, 1, 1, 2), (true, 1, 0, 1), (true, 0, 1, 2)]
            {
                let mut tensor = fine.clone();
                tensor[place(&config, 3, values, layer, head, token) + 9] = value;
                let refused = Err(Error::Row {
                    layer: 7 + layer as u32,
                    what: if values { "values" } else { "keys" },
                    head,
                    row: token,
                    channel: Some(9),
                    finite,
                });
                assert_eq!(codec.encode(&tensor), refused);
                let short: Vec<bf16> = tensor.iter().map(|x| bf16::from_f32(*x)).collect();
                assert_eq!(codec.encode(&short[..]), refused);
                if !finite {
                    let halves: Vec<f16> = tensor.iter().map(|x| f16::from_f32(*x)).collect();
                    assert_eq!(codec.encode(&halves[..]), refused);
                }
            }
        }
        // The largest that f16 holds, in each type; and a buffer that is too short.
        let most = [fine[0], 65504.0, -65504.0].repeat(fine.len() / 3);
        assert!(matches!(codec.encode(&most), Err(Error::Page { layer: 7, .. })));
        // A row that is one large coordinate in the codec's basis is clipped, and its gain leaves f16.
        let head = HeadId { layer: 7, role: Role::Values, head: 0 };
        let values = Any::<32>::build(config.values, Backend::detect(), head).unwrap();
        let mut row = [0.0; 32];
        row[3] = 60_000.0;
        values.finish(&mut row);
        let mut tensor = fine.repeat(50);
        tensor[place(&config, 150, true, 0, 1, 90)..][..32].copy_from_slice(&row);
        let (what, head, position, row) = ("values", 1, 64, Some(26));
        assert_eq!(codec.encode(&tensor), Err(Error::Page { layer: 7, what, head, position, row }));
        let needed = codec.max_bytes(3);
        let short = codec.encode_into(&fine, &mut vec![0; needed - 1]);
        assert_eq!(
            short,
            Err(Error::Length { what: "bytes of a blob", expected: needed, actual: needed - 1 })
        );
        let blob = codec.encode(&fine).unwrap();
        assert!(matches!(codec.decode(&blob, &mut [0.0; 5][..]), Err(Error::Length { .. })));
        let other = ChunkCodec::new(config.first_layer(0), Backend::detect()).unwrap();
        assert!(matches!(decode(&other, &blob), Err(Error::Snapshot { at: 12, .. })));
    }
    for impossible in [
        ChunkConfig::new(0, 1, 64),
        ChunkConfig::new(1, 1, 65),
        ChunkConfig::new(2, 1, 64).first_layer(u32::MAX),
    ] {
        assert!(ChunkCodec::new(impossible, Backend::detect()).is_err());
    }
}

/// A cache takes pages as they are where it can, says why where it cannot, and is then as it was.
#[test]
fn appended_to_a_cache() {
    let config = config("trellis", "turboquant", 64).first_layer(1);
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let (one, two) = (numbers(1, 4 * 128 * 2 * 64), numbers(2, 4 * 70 * 2 * 64));
    let (first, second) = (codec.encode(&one).unwrap(), codec.encode(&two).unwrap());
    let mut cache = cache_of(&config);
    cache.append_chunk(&first).unwrap();
    assert_eq!(cache.layers()[1].positions().collect::<Vec<_>>(), (0..128).collect::<Vec<_>>());
    let refused = |cache: &mut KvCache, blob: &[u8], word: &str| {
        let before = cache.save();
        let error = cache.append_chunk(blob).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert!(cache.save() == before, "{error}: the cache has changed");
    };
    refused(&mut cache, &second, "another balance");
    cache.append_chunk(&first).unwrap(); // of the same balance, at new positions
    assert_eq!(cache.layers()[0].positions().last(), Some(255));
    assert_eq!(KvCache::load(&cache.save(), Backend::detect()).unwrap().stats(), cache.stats());
    let short = codec.encode(&numbers(3, 4 * 10 * 2 * 64)).unwrap();
    cache.append_chunk(&short).unwrap(); // no page, nothing to agree on
    assert_eq!(cache.stats().tokens, 266);
    refused(&mut cache, &first, "window that is not empty");

    let layers = |change: fn(LayerConfig) -> LayerConfig| {
        let cache = cache_of(&config);
        KvCache::new(cache.layers().iter().map(|layer| change(*layer.config())), Backend::detect()).unwrap()
    };
    refused(&mut layers(|layer| layer.keys("trellis:m=2".parse().unwrap())), &first, "other codecs");
    refused(&mut layers(|layer| layer.balance(false)), &first, "other codecs");
    refused(&mut layers(|layer| layer.layer(layer.layer + 1)), &first, "layer 1 is out of range");
    refused(&mut layers(|layer| layer.capacity(64)), &first, "full");
    refused(&mut layers(|layer| layer.sink_tokens(4)), &first, "sinks");
    // Behind sinks that are there.
    let mut sinks = layers(|layer| layer.sink_tokens(4).recent_window(32).max_rollback(64));
    for layer in 0..2 {
        sinks.append(layer, &numbers(4, 2 * 4 * 64), &numbers(5, 2 * 4 * 64)).unwrap();
    }
    sinks.append_chunk(&second).unwrap();
    assert_eq!((sinks.stats().tokens, sinks.stats().paged_tokens), (74, 64));
    // The second layer refuses the chunk that the first has taken.
    let mut one_of_two = cache_of(&config);
    one_of_two.append(1, &numbers(6, 2 * 64 * 64), &numbers(7, 2 * 64 * 64)).unwrap();
    refused(&mut one_of_two, &first, "another balance");
}

/// Pages say where they lie, and are believed only where they do.
#[test]
fn pages_out_of_order_are_refused() {
    let (_, config, tokens) = golden()[0];
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let mut forged = golden_blob(&codec, tokens);
    let layer = sections(&forged, &config, tokens)[1].clone();
    let page = layer.start + 4 * 32; // behind a balance and a prefix centre
    assert_eq!(forged[page..page + 8], [0; 8]);
    forged[page] = 64;
    let checksum = crc32fast::hash(&forged[layer.clone()]);
    forged[layer.end..layer.end + 4].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(decode(&codec, &forged), Err(Error::Snapshot { at: page, why: "the page is out of order" }));
}

/// A block that no codec wrote, under a correct checksum: it is counted within its page, when a chunk is decoded and when
/// the rest after full pages is appended.
#[test]
fn forged_blocks_are_counted_within_their_page() {
    let spec = "int".parse().unwrap();
    let config = ChunkConfig::new(1, 1, 32).keys(spec).values(spec).center(Center::Off).balance(false);
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let (tokens, block) = (2 * 64 + 9, config.keys.block_bytes(32));
    let blob = codec.encode(&numbers(1, 2 * tokens * 32)).unwrap();
    let layer = sections(&blob, &config, tokens)[1].clone();
    for (page, row) in [(0, 7), (1, 5), (2, 3)] {
        let (mut forged, at) = (blob.clone(), layer.start + page * (8 + 2 * 64 * block) + 8 + row * block);
        forged[at..at + 2].copy_from_slice(&[0, 0x7c]);
        let checksum = crc32fast::hash(&forged[layer.clone()]);
        forged[layer.end..layer.end + 4].copy_from_slice(&checksum.to_le_bytes());
        let corrupt = Err(Error::Corrupt { block: row });
        assert_eq!(decode(&codec, &forged).map(|_| ()), corrupt, "page {page}");
        let appended = cache_of(&config).append_chunk(&forged);
        assert_eq!(appended, if page == 2 { corrupt } else { Ok(()) }, "page {page}");
    }
}

/// The largest numbers come back as numbers, where a codec's rounding goes beyond f16.
#[test]
fn the_largest_numbers_stay_finite() {
    let spec = "int:bits=8".parse().unwrap();
    let config = ChunkConfig::new(1, 1, 32).keys(spec).values(spec).center(Center::Off).balance(false);
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let mut tensor = numbers(1, 2 * 3 * 32);
    tensor.chunks_mut(32).for_each(|row| row[7] = -65504.0);
    let blob = codec.encode(&tensor).unwrap();
    let mut halves = vec![f16::ZERO; tensor.len()];
    codec.decode(&blob, &mut halves[..]).unwrap();
    assert!(
        halves.chunks(32).all(|row| row[7] == f16::MIN && row.iter().all(|x| x.is_finite())),
        "{halves:?}"
    );
}
