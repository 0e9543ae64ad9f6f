//! Checks that a few bytes from outside cannot ask for much memory, nor for many codecs that take long to build. They are
//! refused before anything is allocated for them.
#![cfg(feature = "alloc")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::snapshot::crc32;
use octaplex::cache::Center;
use octaplex::chunk::{ChunkCodec, ChunkConfig, ChunkInfo};
use octaplex::{Backend, Error, KvCache, LayerConfig};

/// Codecs that keep much for a block of few bytes.
const HEAVY: [(&str, &str); 5] = [
    ("hqmq:s=255,r=2", "hqmq:s=255,r=2"),
    ("hqmq:s=15,r=2", "hqmq:s=16,r=2"),
    ("additive:k=1024,r=2", "additive:k=1024,r=2"),
    ("turboquant:bits=1,rotation=haar", "qjl:sketch=gauss"),
    ("turboquant-qjl:bits=2,rotation=haar,sketch=gauss", "octopus-qjl:bits=2,sketch=gauss"),
];

/// Returns a chunk of zeros: one token and `layers` equal layers.
fn blob(keys: &str, values: &str, layers: usize) -> Vec<u8> {
    let config = ChunkConfig::new(1, 1, 32).keys(keys.parse().unwrap()).values(values.parse().unwrap());
    let config = config.center(Center::Off).balance(false);
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let one = codec.encode(&[0.0; 64][..]).unwrap();
    let header = 52 + 8 + config.keys.to_string().len() + config.values.to_string().len();
    let body = &one[header + 4..];
    let mut blob = one[..header].to_vec();
    blob[16..20].copy_from_slice(&(layers as u32).to_le_bytes());
    let length = (header + 4 + layers * body.len()) as u64;
    blob[44..52].copy_from_slice(&length.to_le_bytes());
    blob.extend(crc32(&blob).to_le_bytes());
    blob.extend(body.repeat(layers));
    blob
}

/// Returns the snapshot of `layers` empty layers, all with the same bytes.
fn snapshot(keys: &str, values: &str, layers: usize) -> Vec<u8> {
    let config = LayerConfig::new(1, 32, 200).keys(keys.parse().unwrap()).values(values.parse().unwrap());
    let config = config.sink_tokens(0).recent_window(0).max_rollback(0).balance(false).center(Center::Off);
    let one = KvCache::new([config], Backend::detect()).unwrap().save();
    [&one[..12], &(layers as u32).to_le_bytes(), &one[16..].repeat(layers)].concat()
}

/// Bytes in use at most while `work` runs.
fn most(work: impl FnOnce()) -> usize {
    allocation_counter::measure(work).bytes_max as usize
}

/// 16 MiB, 256 times the bytes, and the temporary memory of building one codec.
fn allowed(bytes: &[u8]) -> usize {
    (1 << 24) + 256 * bytes.len() + (1 << 20)
}

#[test]
fn chunk_codecs_are_in_proportion_to_the_blob() {
    for (keys, values) in HEAVY {
        let few = blob(keys, values, 40);
        let info = ChunkInfo::read(&few).unwrap();
        let memory = most(|| drop(ChunkCodec::new(info.config, Backend::detect()).unwrap()));
        assert!(memory <= allowed(&few), "{keys}, {values}: {memory} bytes of {}", few.len());
        // As many as are let through: a bisection, which builds nothing.
        let (mut fits, mut refused) = (40, 4000);
        while refused - fits > 1 {
            let layers = usize::midpoint(fits, refused);
            match ChunkInfo::read(&blob(keys, values, layers)) {
                Ok(_) => fits = layers,
                Err(Error::Snapshot { at: 44, .. }) => refused = layers,
                Err(error) => panic!("{keys}, {values}, {layers} layers: {error}"),
            }
        }
        let many = blob(keys, values, fits);
        let info = ChunkInfo::read(&many).unwrap();
        let memory = most(|| drop(ChunkCodec::new(info.config, Backend::detect()).unwrap()));
        assert!(
            memory <= allowed(&many),
            "{keys}, {values}, {fits} layers: {memory} bytes of {}",
            many.len()
        );
    }
}

/// A codec decodes its own blobs, however much memory it took to build it.
#[test]
fn a_codec_decodes_its_own_blobs() {
    let spec = "additive:k=1024,r=2".parse().unwrap();
    let config = ChunkConfig::new(500, 1, 32).keys(spec).values(spec).center(Center::Off).balance(false);
    let codec = ChunkCodec::new(config, Backend::detect()).unwrap();
    let blob = codec.encode(&vec![0.0; 2 * 500 * 32][..]).unwrap();
    assert!(matches!(ChunkInfo::read(&blob), Err(Error::Snapshot { at: 44, .. })));
    let mut decoded = vec![1.0; 2 * 500 * 32];
    codec.decode(&blob, &mut decoded[..]).unwrap();
    assert!(decoded.iter().all(|x| *x == 0.0));
}

#[test]
fn layers_are_in_proportion_to_the_snapshot() {
    for (keys, values) in HEAVY {
        for layers in [20, 1500] {
            let bytes = snapshot(keys, values, layers);
            let mut loaded = Ok(());
            let memory = most(|| loaded = KvCache::load(&bytes, Backend::detect()).map(drop));
            assert!(
                memory <= allowed(&bytes),
                "{keys}, {values}, {layers}: {memory} bytes of {}",
                bytes.len()
            );
            assert!(layers > 20 || loaded.is_ok(), "{keys}, {values}: {loaded:?}");
            if layers > 20 && keys.contains("255") {
                assert!(matches!(loaded, Err(Error::Snapshot { .. })), "{keys}, {values}: {loaded:?}");
            }
        }
    }
}

/// A stream whose bytes begin so, and then are zeros for ever.
#[cfg(feature = "std")]
struct Endless {
    head: Vec<u8>,
    taken: usize,
}

#[cfg(feature = "std")]
impl std::io::Read for Endless {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        if self.taken > 1 << 24 {
            return Err(std::io::Error::other("the peer stops"));
        }
        for byte in &mut *bytes {
            *byte = self.head.get(self.taken).copied().unwrap_or(0);
            self.taken += 1;
        }
        Ok(bytes.len())
    }
}

/// Lengths that lie, in front of a layer that is none, of one that ends early, and of pages that are not there.
#[cfg(feature = "std")]
#[test]
fn streams_that_lie_are_refused_early() {
    let config = LayerConfig::new(1, 32, 1 << 40).sink_tokens(0).recent_window(0).max_rollback(0);
    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
    cache.append(0, &[0.5; 128 * 32], &[0.5; 128 * 32]).unwrap();
    let whole = cache.save();
    let texts = config.keys.to_string().len() + config.values.to_string().len();
    let pages = 24 + 12 + 52 + 8 + texts + 60;
    assert_eq!(whole[pages..pages + 8], 2u64.to_le_bytes());
    let mut more_pages = whole.clone();
    more_pages[pages..pages + 8].copy_from_slice(&(1u64 << 33).to_le_bytes());
    let crc = crc32(&more_pages[24..pages + 8]);
    more_pages[pages + 8..pages + 12].copy_from_slice(&crc.to_le_bytes());
    let beginnings = [&whole[..16], &whole[..pages], &whole[..pages + 12], &whole[..], &more_pages[..]];
    for (index, beginning) in beginnings.into_iter().enumerate() {
        for length in [u64::MAX, u64::MAX >> 2, 1 << 40, 1 << 23, whole.len() as u64 - 23, 200, 0] {
            let mut head = beginning.to_vec();
            head.resize(head.len().max(24), 0);
            head[16..24].copy_from_slice(&length.to_le_bytes());
            let end = head.len();
            let mut stream = Endless { head, taken: 0 };
            let mut kind = None;
            let memory = most(|| {
                kind = KvCache::load_from(&mut stream, Backend::detect()).err().map(|error| error.kind());
            });
            let what = format!("beginning {index}, length {length}");
            assert_eq!(kind, Some(std::io::ErrorKind::InvalidData), "{what}");
            assert!(stream.taken <= end + 20_000, "{what}: {} bytes were taken", stream.taken);
            assert!(memory <= 200_000, "{what}: {memory} bytes were allocated");
        }
    }
}
