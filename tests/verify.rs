//! Tests the table of checksums: every backend has the same, and it changes with any byte or result.
//!
//! `OCTAPLEX_BLESS=1 cargo test --test suite verify` rewrites `src/verify/expected.txt`, which the build reads: run the
//! test once more after that. A changed number means that bytes or results have changed.

use crate::common::four_bits;
use octaplex::cache::LayerCache;
use octaplex::codecs::{AnyCodec, Codec, HeadId, TurboQuant};
use octaplex::verify::{
    Checksums, MEMORY, SEED, cases, check, codec, codec_memory, expected, layer, layer_memory,
};
use octaplex::{Backend, CodecSpec, Error, LayerConfig};
use std::fmt::Write;

/// Returns whether this run rewrites the table. The table that was compiled in is then out of date.
fn is_blessing() -> bool {
    std::env::var_os("OCTAPLEX_BLESS").is_some_and(|bless| bless == "1")
}

#[test]
fn every_backend_gives_the_table() {
    let mut memory = vec![0.0; MEMORY];
    let mut names = CodecSpec::all().iter().map(|codec| codec.name);
    if is_blessing() {
        let table = names.fold(String::new(), |mut table, name| {
            writeln!(table, "{name} {}", check(name, Backend::SCALAR, &mut memory).unwrap()).unwrap();
            table
        });
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/verify/expected.txt");
        std::fs::write(path, table).unwrap();
        return;
    }
    assert_eq!(include_str!("../src/verify/expected.txt").lines().count(), CodecSpec::all().len());
    for name in &mut names {
        for backend in Backend::available() {
            let found = check(name, backend, &mut memory).unwrap();
            assert_eq!(Some(found), expected(name), "{name} on {}", backend.name());
        }
    }
    assert_eq!(expected("turbo"), None);
    assert!(matches!(check("turbo", Backend::SCALAR, &mut memory), Err(Error::UnknownCodec { .. })));
}

#[test]
fn every_codec_and_width_is_a_case() {
    let mut specs: Vec<_> = cases().map(|(spec, _)| spec).collect();
    for (text, dim) in cases() {
        let spec: CodecSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text, "cases are canonical");
        AnyCodec::build(spec, dim, Backend::SCALAR, HeadId::default()).unwrap();
    }
    specs.sort_unstable();
    specs.dedup();
    assert_eq!(specs.len(), cases().count());
    for codec in CodecSpec::all() {
        assert!(specs.contains(&codec.name), "{} has no case", codec.name);
    }
    for width in &octaplex::codebook::WIDTHS {
        assert!(cases().any(|(_, dim)| dim == *width), "{width}");
    }
}

/// A codec with one bit of one result changed: of a float, this one.
struct Off {
    codec: TurboQuant<32>,
    what: &'static str,
    bit: u32,
}

impl Off {
    fn flip(&self, what: &'static str, values: &mut [f32]) {
        if what == self.what {
            let last = values.last_mut().unwrap();
            *last = f32::from_bits(last.to_bits() ^ 1 << self.bit);
        }
    }
}

impl Codec for Off {
    fn dim(&self) -> usize {
        self.codec.dim()
    }
    fn block_bytes(&self) -> usize {
        self.codec.block_bytes()
    }
    fn query_len(&self) -> usize {
        self.codec.query_len()
    }
    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        Codec::encode(&self.codec, x, block)?;
        if self.what == "encode" {
            block[10] ^= 16;
        }
        Ok(())
    }
    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        Codec::decode(&self.codec, block, x)?;
        self.flip("decode", x);
        Ok(())
    }
    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        let used = Codec::encode_page(&self.codec, rows, page)?;
        if self.what == "encode_page" {
            page[used - 1] ^= 1;
        }
        Ok(used)
    }
    fn decode_page(&self, page: &[u8], rows: &mut [f32]) -> Result<(), Error> {
        Codec::decode_page(&self.codec, page, rows)?;
        self.flip("decode_page", rows);
        Ok(())
    }
    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        let mut q = q.to_vec();
        if self.what == "prepare_query" {
            q[0] += 0.1;
        }
        Codec::prepare_query(&self.codec, &q, query)
    }
    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        Codec::score(&self.codec, queries, blocks, scores)?;
        self.flip(["score one", "", "score some"][(queries.len() - 1).min(2)], scores);
        Ok(())
    }
    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        Codec::accumulate(&self.codec, weights, blocks, acc)?;
        self.flip("accumulate", acc);
        Ok(())
    }
    fn finish(&self, acc: &mut [f32]) {
        Codec::finish(&self.codec, acc);
        self.flip("finish", acc);
    }
}

/// One bit of any result of any method.
#[test]
fn no_result_changes_without_the_checksum() {
    let all = [
        "encode",
        "decode",
        "encode_page",
        "decode_page",
        "prepare_query",
        "score one",
        "score some",
        "accumulate",
        "finish",
    ];
    let off = |what| Off { codec: TurboQuant::new(4).unwrap(), what, bit: 0 };
    let sum = |of: &dyn Codec| codec(of, SEED, &mut vec![0.0; codec_memory(of)]).unwrap();
    let right = sum(&off("nothing"));
    assert_eq!(right, sum(&TurboQuant::<32>::new(4).unwrap()));
    for what in all {
        assert_ne!(sum(&off(what)), right, "{what}");
    }
    let config = LayerConfig::new(1, 32, 256);
    let in_layer = |what| {
        // The lowest bits of a score are lost in its weight, which is an integer.
        let [keys, values] = [off(what), off(what)].map(|off| Off { bit: 22, ..off });
        let mut bytes = vec![0; config.required_bytes_with(&keys, &values).unwrap()];
        let mut cache =
            LayerCache::with_codecs(&config, keys, values, Backend::detect(), &mut bytes).unwrap();
        layer(&mut cache, SEED, &mut vec![0.0; layer_memory(&config)]).unwrap()
    };
    let right = in_layer("nothing");
    for what in ["encode_page", "prepare_query", "score some", "accumulate", "finish"] {
        assert_ne!(in_layer(what), right, "{what}");
    }
}

#[test]
fn too_little_memory_and_room_are_refused() {
    let codec_of = TurboQuant::<32>::new(4).unwrap();
    let needed = codec_memory(&codec_of);
    let refused = codec(&codec_of, SEED, &mut vec![0.0; needed - 1]);
    assert!(matches!(refused, Err(Error::Length { expected, .. }) if expected == needed));
    // The stated memory is enough, and not much more than that.
    let needs = |name: &str| match check(name, Backend::SCALAR, &mut vec![0.0; 40_000]) {
        Err(Error::Length { expected, .. }) => expected,
        _ => 0,
    };
    let most = CodecSpec::all().iter().map(|codec| needs(codec.name)).max().unwrap();
    assert!(most <= MEMORY && most > MEMORY / 2, "{most}");
    let config = four_bits(LayerConfig::new(1, 32, 140));
    let mut bytes = vec![0; config.required_bytes()];
    let mut cache =
        LayerCache::<TurboQuant<32>, TurboQuant<32>, _>::new(&config, Backend::SCALAR, &mut bytes).unwrap();
    let mut memory = vec![0.0; layer_memory(&config)];
    assert!(matches!(layer(&mut cache, SEED, &mut memory), Err(Error::Full { .. })));
    assert!(matches!(layer(&mut cache, SEED, &mut memory[1..]), Err(Error::Length { .. })));
}

#[test]
fn one_checksum_for_all() {
    let some = Checksums { blocks: 1, cache: 2 };
    let other = Checksums { blocks: 2, cache: 1 };
    let together = octaplex::verify::together;
    assert_ne!(together([some, other]), together([other, some]));
    assert_eq!(some.to_string(), "00000001 00000002");
}
