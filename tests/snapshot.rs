//! Snapshots: the same bits after saving and loading, a golden file, and a hundred thousand damaged ones.
//! `OCTAPLEX_BLESS=1 cargo test --test suite snapshot` rewrites the golden file.
#![cfg(feature = "alloc")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Any, Random, bits, share};
use octaplex::cache::{Center, LayerCache, SharedLayer};
use octaplex::{Attend, Backend, CacheConfig, Error, KvCache, LayerConfig};

/// Numbers that need no floats to make: the golden file is read elsewhere too.
fn rows(seed: u32, count: usize) -> Vec<f32> {
    let mut state = 2_463_534_242u32.wrapping_add(seed);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 16) as f32 - 32768.0) / 8192.0
    };
    (0..count).map(|_| next()).collect()
}

fn output(cache: &mut KvCache, layer: usize, queries: &[f32]) -> Vec<u32> {
    let config = cache.layers()[layer].config();
    let mut output = vec![0.0; queries.len() / config.key_dim * config.value_dim];
    cache.attend(layer, queries, &mut output).unwrap();
    bits(&output)
}

/// A cache with everything in it: sinks, pages, a window that has gone round, balance, a hole.
fn cache(center: Center) -> KvCache {
    let each = LayerConfig::new(2, 32, 700)
        .keys("turboquant:bits=3".parse().unwrap())
        .values("hqmq:s=24,r=3,med=2".parse().unwrap())
        .center(center)
        .balance(true)
        .recent_window(16);
    let config = CacheConfig::new(3, 2, 32, 700).boundary_layers(1).each(each);
    let mut cache = KvCache::new(config.layers(), Backend::detect()).unwrap();
    for layer in 0..3 {
        if layer == 1 {
            // Outer layers are exact.
            cache.calibrate(layer, &rows(layer as u32, 2 * 150 * 32), &rows(9, 4 * 40 * 32)).unwrap();
        }
        cache.append(layer, &rows(layer as u32, 2 * 300 * 32), &rows(7, 2 * 300 * 32)).unwrap();
    }
    cache.evict(60..140);
    cache
}

#[test]
fn the_same_bits_after_saving_and_loading() {
    for center in [Center::Off, Center::Prefix, Center::Page] {
        let mut before = cache(center);
        let bytes = before.save();
        let mut after = KvCache::load(&bytes, Backend::detect()).unwrap();
        assert_eq!(after.stats(), before.stats());
        assert_eq!(after.save(), bytes);
        for step in 0..3 {
            for layer in 0..3 {
                let queries = rows(step, 4 * 32);
                assert_eq!(output(&mut before, layer, &queries), output(&mut after, layer, &queries));
                let more = rows(step + 50, 2 * 70 * 32);
                before.append(layer, &more, &more).unwrap();
                after.append(layer, &more, &more).unwrap();
            }
        }
        // Into the caller's memory, which had other tokens.
        let layer = &before.layers()[1];
        let mut bytes = Vec::new();
        layer.save(&mut |piece| bytes.extend_from_slice(piece));
        let config = *layer.config();
        let mut scratch = vec![0.0; config.scratch_len(2)];
        let mut fixed = LayerCache::<Any<32>, Any<32>, _>::new(
            &config,
            Backend::detect(),
            vec![0; config.required_bytes()],
        )
        .unwrap();
        fixed.append(&rows(1, 2 * 500 * 32), &rows(2, 2 * 500 * 32), &mut scratch).unwrap();
        fixed.load(&bytes).unwrap();
        let queries = rows(3, 2 * 32);
        let mut out = [0.0; 64];
        fixed.attend(&queries, &mut out, &mut scratch).unwrap();
        assert_eq!(bits(&out), output(&mut before, 1, &queries));
        let other = config.page(128);
        let mut other = LayerCache::<Any<32>, Any<32>, _>::new(
            &other,
            Backend::detect(),
            vec![0; other.required_bytes()],
        )
        .unwrap();
        assert!(matches!(other.load(&bytes), Err(Error::Snapshot { .. })));
    }
}

#[test]
fn pages_travel_alone() {
    let config = LayerConfig::new(2, 32, 700).recent_window(0).sink_tokens(0);
    let mut from = KvCache::new([config], Backend::detect()).unwrap();
    let mut to = KvCache::new([config], Backend::detect()).unwrap();
    // Channels that differ, so that the balance is not ones.
    let tokens: Vec<f32> =
        rows(3, 2 * 192 * 32).iter().enumerate().map(|(i, x)| x * (1 + i % 8) as f32).collect();
    from.append(0, &tokens, &tokens).unwrap();
    for page in 0..3 {
        let mut bytes = Vec::new();
        from.layers()[0].save_page(page, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
        let layer = to.layer_mut(0).unwrap();
        for cut in [0, 7, 20, bytes.len() - 1] {
            assert!(layer.load_page(&bytes[..cut]).is_err());
        }
        layer.load_page(&bytes).unwrap();
        assert!(layer.load_page(&bytes).is_err(), "twice");
    }
    assert!(from.layers()[0].save_page(3, &mut |_| ()).is_err());
    // With another balance, they are refused.
    let mut balanced = KvCache::new([config], Backend::detect()).unwrap();
    let wild: Vec<f32> = tokens.iter().enumerate().map(|(i, x)| x * (i % 32) as f32).collect();
    balanced.calibrate(0, &wild, &[]).unwrap();
    let mut page = Vec::new();
    from.layers()[0].save_page(0, &mut |piece| page.extend_from_slice(piece)).unwrap();
    assert!(matches!(balanced.layer_mut(0).unwrap().load_page(&page), Err(Error::Snapshot { .. })));
    let queries = rows(5, 2 * 32);
    assert_eq!(output(&mut from, 0, &queries), output(&mut to, 0, &queries));
    let other = config.center(Center::Off);
    let mut other = SharedLayer::on_heap(&other, Backend::detect()).unwrap();
    let mut bytes = Vec::new();
    from.layers()[0].save_page(0, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
    assert!(matches!(other.load_page(&bytes), Err(Error::Snapshot { .. })));
}

/// Keys as large as bytes can say, queries as large as they may be: the right answer or an `Error`, and no logit that
/// is infinite, whose weights would be NaN.
#[test]
fn the_largest_keys_and_queries_give_no_nan() {
    const TWO_58: f32 = 288_230_376_151_711_744.0;
    const TWO_50: f32 = 1_125_899_906_842_624.0;
    let below = |x: f32| f32::from_bits(x.to_bits() - 1);
    for (keys, word, rest) in [
        ("f32", below(TWO_58).to_le_bytes(), None),
        ("octopus:norm=f32", below(TWO_58).to_le_bytes(), Some(0xff)),
        ("octopus-qjl:norm=f32", below(TWO_58).to_le_bytes(), Some(0x4b)),
        ("int:bits=8", [0xff, 0x7b, 0xff, 0xff], Some(0xff)),
    ] {
        let config = LayerConfig::new(1, 32, 200)
            .keys(keys.parse().unwrap())
            .values("f16".parse().unwrap())
            .recent_window(0)
            .sink_tokens(0)
            .center(Center::Off)
            .balance(true);
        let mut scratch = vec![0.0; config.scratch_len(1)];
        let new = || {
            let mut layer = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
            if keys != "f32" {
                // A balance of 2⁸: keys that vary much, queries that are zero.
                let wild: Vec<f32> = (0..64 * 32).map(|i| [500.0, -500.0][i / 32 % 2]).collect();
                layer.calibrate(&wild, &[0.0; 32 * 32]).unwrap();
            }
            layer
        };
        let mut layer = new();
        layer.append(&rows(1, 64 * 32), &[1.0; 64 * 32], &mut scratch).unwrap();
        let mut page = Vec::new();
        layer.save_page(0, &mut |piece| page.extend_from_slice(piece)).unwrap();
        let block = config.keys.block_bytes(32);
        // Magic, version, fingerprint; the balance; the page's header.
        let balance = if keys == "f32" { 0 } else { 2 * 32 };
        for block in page[16 + balance + 8..].chunks_exact_mut(block).take(64) {
            match rest {
                Some(byte) => block.fill(byte),
                None => block.as_chunks_mut().0.fill(word),
            }
            block[..4].copy_from_slice(&word);
        }
        let end = page.len() - 4;
        let crc = crc32(&page[..end]);
        page[end..].copy_from_slice(&crc.to_le_bytes());
        let mut layer = new();
        layer.load_page(&page).unwrap_or_else(|error| panic!("{keys}: {error}"));

        let mut refused = 0;
        for scale in [None, Some(1.0), Some(-1.0), Some(1e12), Some(1e-12)] {
            for bias in [0.0, 8e37, -3e38, 9e37] {
                for query in [1e3, -1e3, below(TWO_50), -below(TWO_50)] {
                    let bias = [bias; 64];
                    let mut options = Attend::default().bias(&bias);
                    options.scale = scale;
                    let mut output = [f32::NAN; 32];
                    match layer.attend_with(&[query; 32], &options, &mut output, &mut scratch) {
                        // All values are 1.
                        Ok(()) => assert!(
                            output.iter().all(|x| (x - 1.0).abs() < 1e-3),
                            "{keys}, {options:?}, {query}: {output:?}"
                        ),
                        Err(error) => {
                            assert!(matches!(error, Error::Row { what: "queries" | "bias", .. }), "{keys}");
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(refused, 5 * 4 + 3 * 2, "{keys}: a bias beyond 2¹²⁶, or 10¹² times the largest query");
    }
}

/// Planes of any bytes, norms and a centre as large as f16 allows: results are never NaN, and non-finite numbers are refused.
#[test]
fn hostile_lean_pages() {
    for (codec, dim, scaled) in
        [("turboquant", 32, 3), ("trellis", 32, 3), ("octopus:bits=2", 32, 3), ("graded", 64, 5)]
    {
        let config = LayerConfig::new(1, dim, 200)
            .keys(codec.parse().unwrap())
            .values(if codec == "graded" { "trellis" } else { codec }.parse().unwrap())
            .recent_window(0)
            .sink_tokens(0)
            .balance(false);
        let mut scratch = vec![0.0; config.scratch_len(1)];
        let mut layer = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
        layer.append(&rows(1, 64 * dim), &rows(2, 64 * dim), &mut scratch).unwrap();
        let mut sound = Vec::new();
        layer.save_page(0, &mut |piece| sound.extend_from_slice(piece)).unwrap();
        let mut parts = Vec::new();
        // Magic, version, fingerprint; the signs of the grades; the prefix centre; the page.
        let mut at = 16 + 2 * dim * if codec == "graded" { 2 } else { 1 };
        config.page_layout(|bytes, what| {
            parts.push((at..at + bytes, what.contains("f16")));
            at += bytes;
        });
        assert_eq!(
            (at + 4, parts.iter().filter(|(_, scaled)| *scaled).count()),
            (sound.len(), scaled),
            "{codec}"
        );
        let load = |damaged: Option<usize>| {
            let mut page = sound.clone();
            for (number, (part, scaled)) in parts.iter().enumerate().skip(1) {
                page[part.clone()].fill(0xff);
                if *scaled {
                    let largest = if damaged == Some(number) { 0x7c00u16 } else { 0x7bff };
                    page[part.start..part.start + 2].copy_from_slice(&largest.to_le_bytes());
                }
            }
            let end = page.len() - 4;
            let crc = crc32(&page[..end]);
            page[end..].copy_from_slice(&crc.to_le_bytes());
            let mut layer = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
            layer.load_page(&page).map(|()| layer)
        };
        let layer = load(None).unwrap();
        for query in [1.0, -1e15, 1e15] {
            let mut output = vec![f32::NAN; dim];
            layer.attend(&vec![query; dim], &mut output, &mut scratch).unwrap();
            assert!(output.iter().all(|x| x.is_finite()), "{codec}, {query}: {output:?}");
        }
        for (number, _) in parts.iter().enumerate().filter(|(_, (_, scaled))| *scaled) {
            assert!(matches!(load(Some(number)), Err(Error::Snapshot { .. })), "{codec}, part {number}");
        }
    }
}

/// Layers whose keys and values are lean: each codec that can be.
fn lean_cache() -> KvCache {
    let codecs = [
        ("turboquant", "turboquant:bits=2"),
        ("trellis", "trellis:m=2"),
        ("octopus", "octopus:bits=2"),
        ("graded", "graded:bits=2"),
    ];
    let layers = codecs.into_iter().zip(0..).map(|((keys, values), layer)| {
        let config = LayerConfig::new(2, 64, 300).layer(layer).sink_tokens(1).recent_window(0);
        config.keys(keys.parse().unwrap()).values(values.parse().unwrap())
    });
    let mut cache = KvCache::new(layers, Backend::detect()).unwrap();
    for layer in 0..3 {
        cache.append(layer, &rows(20, 2 * 200 * 64), &rows(21, 2 * 200 * 64)).unwrap();
    }
    cache
}

/// Lean pages of keys whose channels are sorted: eight of them are larger than the others, and one key is longer.
fn graded_cache() -> KvCache {
    let config = LayerConfig::new(2, 64, 300).sink_tokens(1).recent_window(0).max_rollback(0);
    let config = config.keys("graded".parse().unwrap()).values("graded:bits=2".parse().unwrap());
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    let mut keys = rows(20, 2 * 140 * 64);
    keys.chunks_mut(64).flat_map(|key| &mut key[24..32]).for_each(|x| *x *= 8.0);
    keys[70 * 64..71 * 64].iter_mut().for_each(|x| *x *= 16.0);
    cache.append(0, &keys, &rows(21, 2 * 140 * 64)).unwrap();
    cache
}

#[test]
fn golden_snapshots() {
    for (file, made, queries) in [
        ("version3.snapshot", (|| cache(Center::Page)) as fn() -> KvCache, rows(11, 2 * 32)),
        ("lean.snapshot", lean_cache, rows(11, 4 * 64)),
        ("graded.snapshot", graded_cache, rows(11, 4 * 64)),
    ] {
        let path = format!("{}/tests/snapshots/{file}", env!("CARGO_MANIFEST_DIR"));
        let (mut original, bytes) = (made(), made().save());
        if std::env::var_os("OCTAPLEX_BLESS").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        let golden = std::fs::read(&path).unwrap();
        assert!(golden == bytes, "the snapshot of the same cache has other bytes than {path}");
        for backend in Backend::available() {
            let mut loaded = KvCache::load(&golden, backend).unwrap();
            assert_eq!(loaded.stats(), original.stats());
            for layer in 0..original.layers().len().min(3) {
                let (ours, theirs) =
                    (output(&mut original, layer, &queries), output(&mut loaded, layer, &queries));
                assert_eq!(ours, theirs, "{file}, layer {layer}, {backend:?}");
            }
        }
    }
}

/// A layer's sections end with checksums: gives damaged bytes correct ones, where the walk still finds their ends.
fn repair(bytes: &mut [u8], sections: &[(usize, usize)]) {
    for &(start, end) in sections {
        let crc = crc32(&bytes[start..end]);
        bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Of each byte: a bit at a time, half of the time of a hundred thousand snapshots would be checksums.
const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| (crc >> 8) ^ CRC_TABLE[usize::from(crc as u8 ^ byte)])
}

/// Returns the sections: they end at every place whose four bytes are the checksum of the bytes since the last such place.
fn sections(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut found, mut start, mut crc) = (Vec::new(), 0, !0u32);
    for at in 0..bytes.len() - 3 {
        if at > start && !crc == u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        {
            found.push((start, at));
            (start, crc) = (at + 4, !0);
        } else if at >= start {
            let byte = crc ^ u32::from(bytes[at]);
            crc = (0..8).fold(byte, |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()));
        }
    }
    found
}

#[test]
fn a_hundred_thousand_damaged_snapshots() {
    let config = LayerConfig::new(1, 32, 500)
        .keys("turboquant:bits=2".parse().unwrap())
        .values("hqmq:s=24,r=2,med=2".parse().unwrap())
        .balance(true)
        .recent_window(4)
        .sink_tokens(2);
    let mut layer = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
    let mut scratch = vec![0.0; config.scratch_len(1)];
    layer.append(&rows(1, 150 * 32), &rows(2, 150 * 32), &mut scratch).unwrap();
    let mut bytes = Vec::new();
    layer.save(&mut |piece| bytes.extend_from_slice(piece));
    let sections = sections(&bytes);
    assert_eq!(sections.len(), 2 + 2, "header, exact tokens, two pages");

    let mut random = Random::new(77);
    let (mut loaded, mut attended, mut went_on) = (0, 0, 0);
    let mut target = layer.clone();
    for round in 0..share(100_000) {
        let mut damaged = bytes.clone();
        // Headers get most of the damage: that is where lengths are.
        for _ in 0..1 + random.below(3) {
            let (start, end) = sections[random.below(sections.len())];
            let length = if random.below(3) > 0 { (end - start).min(150) } else { end - start };
            let at = start + random.below(length);
            damaged[at] = match random.below(3) {
                0 => random.word() as u8,
                1 => damaged[at] ^ (1 << random.below(8)),
                _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            };
        }
        if round % 8 > 0 {
            repair(&mut damaged, &sections);
        }
        if round % 16 == 1 {
            damaged.truncate(random.below(damaged.len()));
        }
        // Making a cache takes longer than refusing one: a tenth of them.
        let found = if round % 10 == 0 {
            SharedLayer::from_snapshot(&damaged, Backend::detect()).ok()
        } else {
            target.load(&damaged).ok().map(|()| target.clone())
        };
        let Some(mut layer) = found else { continue };
        loaded += 1;
        let dim = layer.config().value_dim;
        let queries = vec![0.5; layer.config().kv_heads * layer.config().key_dim];
        let mut output = vec![0.0; layer.config().kv_heads * dim];
        let mut scratch = vec![0.0; layer.config().scratch_len(layer.config().kv_heads)];
        let done = layer.attend(&queries, &mut output, &mut scratch);
        attended += usize::from(done.is_ok());
        assert!(done.is_err() || output.iter().all(|x| x.is_finite()), "round {round}");

        // A third of the loaded caches continue like any other cache: cut, grown, read.
        if round % 3 > 0 {
            continue;
        }
        let config = *layer.config();
        let position = layer.next_position().saturating_sub(random.below(200));
        let _ = layer.truncate(position);
        let more = rows(round as u32, 80 * config.kv_heads * config.key_dim.max(config.value_dim));
        let rows_of = |width: usize| &more[..80 * config.kv_heads * width];
        let grown = layer.append(rows_of(config.key_dim), rows_of(config.value_dim), &mut scratch);
        went_on += usize::from(grown.is_ok());
        let (mut key, mut value) = (vec![0.0; config.key_dim], vec![0.0; dim]);
        if layer.decode(0, random.below(layer.tokens().max(1)), &mut key, &mut value).is_ok() {
            assert!(key.iter().chain(&value).all(|x| x.is_finite()), "round {round}");
        }
        let done = layer.attend(&queries, &mut output, &mut scratch);
        assert!(done.is_err() || output.iter().all(|x| x.is_finite()), "round {round}, later");
    }
    assert!(
        loaded > share(1000) && attended > share(1000) && went_on > share(300),
        "{loaded} loaded, {attended} attended, {went_on} went on"
    );
}

/// A layer's snapshot with other bytes at `at`, and checksums that are right.
fn changed(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let sections = sections(&bytes);
    bytes[at..at + new.len()].copy_from_slice(new);
    repair(&mut bytes, &sections);
    bytes
}

#[test]
fn states_that_no_cache_can_be_in_are_refused() {
    for center in [Center::Off, Center::Prefix, Center::Page] {
        let cache = cache(center);
        let layer = &cache.layers()[1];
        let config = *layer.config();
        let mut bytes = Vec::new();
        layer.save(&mut |piece| bytes.extend_from_slice(piece));
        // Magic, version, thirteen numbers of the configuration; then its two codecs, the state.
        let specs = config.keys.to_string().len() + config.values.to_string().len();
        let state = 12 + 52 + 8 + specs;
        let load = |bytes: &[u8]| SharedLayer::from_snapshot(bytes, Backend::detect());
        assert!(load(&changed(&bytes, 0, b"octa")).is_ok());
        // next, start, kept, place, floor; two counters; whether it is calibrated.
        let number = |index: usize| {
            let at = state + 8 * index;
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
        };
        let with = |index: usize, value: u64| load(&changed(&bytes, state + 8 * index, &value.to_le_bytes()));
        let [next, start, kept, place, floor] = [0, 1, 2, 3, 4].map(number);
        assert_eq!((next, start, kept, place, floor), (300, 260, 196, 0, 0), "{center:?}");
        for (index, value) in [
            (0, next + 64),    // pages that should have closed
            (0, start - 1),    // a window that begins behind its end
            (1, start - 64),   // a page open that is closed
            (1, start + 64),   // and the other way round
            (2, kept - 128),   // more than the ring has places for
            (2, 3),            // within the sinks
            (3, place + 1),    // a page that wraps
            (3, 1 << 20),      // beyond the ring
            (4, start + 1),    // dropped tokens that are there
            (0, u64::MAX / 2), // no position
            (5, u64::MAX / 2), // no count
        ] {
            let loaded = with(index, value);
            assert!(matches!(loaded, Err(Error::Snapshot { .. })), "{center:?}, {index}: {value}");
        }
        let calibrated = state + 56;
        assert!(matches!(load(&changed(&bytes, calibrated, &[2])), Err(Error::Snapshot { .. })));
        // A balance that is none.
        let exact = sections(&bytes)[1].0;
        let in_ring = (number(0) - kept) as usize + 4;
        let balance = exact + 2 * in_ring * (config.key_dim + config.value_dim);
        for value in [0u16, 0x1bff, 0x5c01, 0x7c00, 0xbc00] {
            let changed = changed(&bytes, balance, &value.to_le_bytes());
            assert!(matches!(load(&changed), Err(Error::Snapshot { .. })), "{center:?}: {value:x}");
        }
    }
    // Decisions that are still open are zero.
    let layer = SharedLayer::on_heap(&LayerConfig::new(1, 32, 500), Backend::detect()).unwrap();
    let mut bytes = Vec::new();
    layer.save(&mut |piece| bytes.extend_from_slice(piece));
    let at = sections(&bytes)[1].0;
    assert!(SharedLayer::from_snapshot(&changed(&bytes, at, &[0]), Backend::detect()).is_ok());
    assert!(SharedLayer::from_snapshot(&changed(&bytes, at, &[1]), Backend::detect()).is_err());
}

/// Wherever a snapshot says that a cache is, it can go on and be saved again.
#[test]
fn positions_end_where_snapshots_do() {
    const LAST: u64 = (usize::MAX / 4) as u64;
    let config = LayerConfig::new(1, 32, 500).recent_window(0).sliding_window(64).balance(false);
    let mut layer = SharedLayer::on_heap(&config, Backend::detect()).unwrap();
    let mut scratch = vec![0.0; config.scratch_len(1)];
    layer.append(&rows(1, 4 * 32), &rows(1, 4 * 32), &mut scratch).unwrap();
    let mut bytes = Vec::new();
    layer.save(&mut |piece| bytes.extend_from_slice(piece));
    let state = 12 + 52 + 8 + config.keys.to_string().len() + config.values.to_string().len();
    let numbers: Vec<u8> = [LAST - 10, LAST - 10, LAST - 10, 0, 0, LAST, LAST]
        .iter()
        .flat_map(|n: &u64| n.to_le_bytes())
        .collect();
    let far = changed(&bytes, state, &numbers);
    let mut layer = SharedLayer::from_snapshot(&far, Backend::detect()).unwrap();
    layer.append(&rows(1, 10 * 32), &rows(1, 10 * 32), &mut scratch).unwrap();
    let mut bytes = Vec::new();
    layer.save(&mut |piece| bytes.extend_from_slice(piece));
    let mut layer = SharedLayer::from_snapshot(&bytes, Backend::detect()).unwrap();
    let refused = layer.append(&rows(1, 32), &rows(1, 32), &mut scratch);
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
}

/// A few hundred bytes a layer must not become gigabytes.
#[test]
fn many_empty_layers_with_long_windows_are_refused() {
    let each = LayerConfig::new(1, 64, 30_000).recent_window(28_000);
    let save =
        |layers: usize| KvCache::new(std::iter::repeat_n(each, layers), Backend::detect()).unwrap().save();
    assert_eq!(KvCache::load(&save(10), Backend::detect()).unwrap().layers().len(), 10);
    let refused = KvCache::load(&save(50), Backend::detect());
    assert!(matches!(refused, Err(Error::Snapshot { .. })));
    #[cfg(feature = "std")]
    assert!(KvCache::load_from(&mut &save(50)[..], Backend::detect()).is_err());
}

/// To a writer and from a reader: the same bytes as slices, nothing read behind the end, and no memory for bytes that
/// are not there.
#[cfg(feature = "std")]
#[test]
fn writers_and_readers() {
    let cache = cache(Center::Page);
    let mut file = Vec::new();
    cache.save_to(&mut file).unwrap();
    assert!(file == cache.save());
    file.push(7);
    let mut reader = &file[..];
    let loaded = KvCache::load_from(&mut reader, Backend::detect()).unwrap();
    assert!(loaded.save() == file[..file.len() - 1] && reader == [7]);
    for cut in [0, 10, 20, 100, file.len() / 2, file.len() - 2] {
        assert!(KvCache::load_from(&mut &file[..cut], Backend::detect()).is_err(), "{cut}");
    }
    file[16..24].fill(0xff);
    let error = KvCache::load_from(&mut &file[..], Backend::detect()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
}
