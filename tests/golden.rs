//! Bytes are the API: every codec has a file of golden bytes in `tests/golden/`, and every backend gives them.
//! `OCTAPLEX_BLESS=1 cargo test --test suite golden` rewrites the files; a changed byte is a breaking change.
//!
//! # The files
//! Text, for readers in any language. `#` starts a comment line. A line `case SPEC DIM` opens a case; the lines that
//! follow it, until the next case, are:
//!
//! - `block HEX`: the encoded bytes of vector 0, 1, 2 … of the case, one line each.
//! - `list HEX`: bytes of a page after its blocks, if any (exact outliers, `med`).
//! - `decode HEX`: FNV-1a 64 of the decoded vectors, one after the other, as little-endian f32.
//! - `score HEX HEX …`: the bits of the scores, f32, big-endian hex: query 0 with every block, then query 1.
//! - `accumulate HEX`: FNV-1a 64 of two outputs after `finish`, as little-endian f32: accumulated from zeros with weight
//!   1/(1 + block) for output 0, -1/(2 + block) for output 1 (divisions in f32).
//!
//! The codec serves layer 0, head 0, keys. Inputs need integers only: state s = 2463534242 (u32) at the start of a case;
//! each value steps s ← s·1664525 + 1013904223 mod 2³², and is ((s >> 16) - 32768)/8192, exactly an f32. With three
//! blocks, two vectors come from the generator and the third is 0.75 everywhere; a case of one block (blocks of more than
//! 200 bytes) has one vector from it. The two queries come next from the same numbers.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Steps, name_of, try_build};
#[cfg(feature = "alloc")]
use octaplex::codecs::Codec; // methods of boxed codecs
use octaplex::{Backend, CodecSpec};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// (spec, widths), canonical specs; a codec that is not listed has its default spec at two widths. Few and small: the files are read in other languages too.
const CASES: &[(&str, &[usize])] = &[
    ("trellis", &[32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576]),
    ("trellis:m=1", &[64]),
    ("trellis:m=2,states=4", &[96]),
    ("trellis:m=3,states=16,gain=norm", &[64]),
    ("trellis:m=6,gain=unbiased", &[80]),
    ("trellis:m=8,states=32", &[128]),
    ("trellis:m=12,rounds=2,seed=7", &[64]),
    ("trellis:m=8,states=64", &[64]),
    ("trellis:m=16,states=64", &[64]),
    ("trellis:scales=5", &[64]),
    ("graded", &[64, 128, 160, 192, 256, 512]),
    ("graded:fine=4,coarse=1", &[64]),
    ("graded:fine=16,coarse=3,states=16,seed=7", &[128]),
    ("turboquant", &[32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576]),
    ("turboquant:bits=1", &[64, 112]),
    ("turboquant:bits=2", &[80, 128]),
    ("turboquant:bits=3", &[96, 128]),
    ("turboquant:bits=5", &[64]),
    ("turboquant:bits=6", &[96]),
    ("turboquant:bits=7", &[80]),
    ("turboquant:bits=8", &[128]),
    ("turboquant:levels=3", &[64, 96]),
    ("turboquant:levels=5", &[80, 128]),
    ("turboquant:levels=6", &[96]),
    ("turboquant:levels=10", &[64]),
    ("turboquant:levels=12", &[112]),
    ("turboquant:bits=3,gain=norm", &[64]),
    ("turboquant:bits=2,gain=unbiased", &[64]),
    ("turboquant:rounds=3,seed=18446744073709551615", &[96]),
    ("turboquant:bits=2,rotation=haar,seed=7", &[64]),
    ("turboquant-qjl", &[32, 64, 80, 112, 128]),
    ("turboquant-qjl:bits=2", &[96]),
    ("turboquant-qjl:bits=6,sketch_rounds=1,rounds=2,seed=7", &[64]),
    ("turboquant-qjl:bits=4,sketch=gauss", &[64]),
    ("qjl", &[32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576]),
    ("qjl:sketch_rounds=3,seed=5", &[64]),
    ("qjl:sketch=gauss", &[96]),
    ("polarquant", &[32, 64, 128, 256, 512]),
    ("polarquant:bits=1", &[64]),
    ("polarquant:bits=2", &[128]),
    ("polarquant:bits=3,rounds=2,seed=7", &[64]),
    ("polarquant:bits=6", &[64]),
    ("polarquant:bits=8", &[128]),
    ("polarquant:depth=4", &[80, 96, 128, 576]),
    ("tq3_0", &[32, 64, 96, 128, 160]),
    ("tq3_0:variant=3bit", &[32, 64, 96, 128, 160]),
    ("octopus", &[32, 64, 80, 96, 112, 128, 160, 192, 256, 512]),
    ("octopus:bits=1", &[64]),
    ("octopus:bits=2", &[80]),
    ("octopus:bits=4", &[128]),
    ("octopus:bits=5", &[96]),
    ("octopus:bits=1,split=even", &[64]),
    ("octopus:bits=5,split=even", &[64]),
    ("octopus:bdir=5,bnrm=6", &[112]),
    ("octopus:bdir=7,bnrm=0", &[64]),
    ("octopus:bits=2,rounding=full", &[64]),
    ("octopus:rounding=scalar,gain=norm", &[80]),
    ("octopus:rounding=local3,tail=paper,norm=f32,gain=norm", &[128]),
    ("octopus:gain=unbiased,rounds=2,seed=7", &[64]),
    ("octopus-qjl", &[32, 64, 80, 96, 112, 128]),
    ("octopus-qjl:bits=2,norm=f32,gain=norm,seed=7,sketch_rounds=1", &[64]),
    ("octopus-qjl:bits=5,sketch=gauss", &[64]),
    ("hqmq", &[32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576]),
    ("hqmq:s=24,r=3", &[128]),
    ("hqmq:s=192,r=6", &[128]),
    ("hqmq:s=1,r=2", &[64]),
    ("hqmq:s=255,r=5,seed=9", &[80]),
    ("hqmq:packing=index", &[96]),
    ("hqmq:s=24,secondary=optimised", &[64]),
    ("hqmq:s=48,secondary=optimised", &[64]),
    ("hqmq:secondary=optimised", &[64]),
    ("hqmq:s=192,secondary=optimised,rotate=true", &[64]),
    ("hqmq:med=1", &[64]),
    ("hqmq:s=33,r=6,med=1,rotate=true", &[80]),
    ("additive", &[64]),
    ("additive:k=24,r=3,seed=1", &[128]),
    ("int", &[32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576]),
    ("int:bits=2", &[64]),
    ("int:bits=3", &[80]),
    ("int:bits=5,group=32", &[96]),
    ("int:bits=6,group=64", &[128]),
    ("int:bits=7,group=16", &[64]),
    ("int:bits=8", &[112]),
    ("int:group=32,asymmetric=true", &[128]),
    ("int:bits=2,asymmetric=true", &[64]),
    ("int:rotate=true,seed=3", &[80, 96, 128]),
    ("int:med=1", &[64]),
    ("int:bits=3,group=16,med=1,rotate=true", &[80]),
    ("q8_0", &[32, 64]),
    ("q8_0:rotate=keys", &[64]),
    ("q5_0", &[32, 64, 96, 128]),
    ("q5_0:rotate=values", &[64]),
    ("q4_0", &[32, 64, 96, 128, 160, 192, 256, 512, 576]),
    ("q4_0:rotate=keys", &[64, 128, 192, 256, 512, 576]),
    ("q4_0:rotate=values", &[128, 192]),
    ("iq4_nl", &[32, 64, 96, 128]),
    ("iq4_nl:rotate=keys", &[128]),
    ("fp8", &[32, 80, 128]),
    ("fp8:scale=token", &[32, 80, 128]),
    ("f16", &[32, 80, 128]),
    ("bf16", &[32, 80, 128]),
    ("f32", &[32, 80, 128]),
];

/// Without a heap there are no dense matrices.
fn is_built(spec: &str) -> bool {
    cfg!(feature = "alloc") || !(spec.contains("haar") || spec.contains("gauss"))
}

struct Numbers(u32);

impl Numbers {
    fn vector(&mut self, dim: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((self.0 >> 16) as f32 - 32768.0) / 8192.0
        };
        (0..dim).map(|_| next()).collect()
    }
}

fn fnv(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn case(spec: &str, dim: usize, backend: Backend) -> String {
    let codec = try_build(spec.parse().unwrap(), dim, backend).unwrap();
    let mut numbers = Numbers(2_463_534_242);
    // One random vector where blocks are long, two elsewhere.
    let random = if codec.block_bytes() > 200 { 1 } else { 2 };
    let mut rows: Vec<f32> = (0..random).flat_map(|_| numbers.vector(dim)).collect();
    if random > 1 {
        rows.extend(vec![0.75; dim]);
    }
    let count = rows.len() / dim;
    let page = codec.page(&rows).unwrap();
    let (blocks, list) = page.split_at(count * codec.block_bytes());
    let mut text = format!("case {spec} {dim}\n");
    let mut line = |name: &str, bytes: &[u8]| {
        write!(text, "{name} ").unwrap();
        bytes.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
    };
    blocks.chunks(codec.block_bytes()).for_each(|block| line("block", block));
    if !list.is_empty() {
        line("list", list);
    }
    let mut decoded = vec![0.0; rows.len()];
    codec.decode_page(&page, &mut decoded).unwrap();
    if list.is_empty() {
        for (block, x) in blocks.chunks(codec.block_bytes()).zip(decoded.chunks_mut(dim)) {
            codec.decode(block, x).unwrap();
        }
    }
    let mut scores = vec![0.0; 2 * count];
    codec
        .prepare_and_score(&[numbers.vector(dim), numbers.vector(dim)].concat(), &page, &mut scores)
        .unwrap();
    let mut weights: Vec<f32> = (0..count).map(|block| 1.0 / (1 + block) as f32).collect();
    weights.extend((0..count).map(|block| -1.0 / (2 + block) as f32));
    let mut outputs = vec![0.0; 2 * dim];
    codec.accumulate(&weights, &page, &mut outputs).unwrap();
    codec.finish(&mut outputs);
    writeln!(text, "decode {:016x}", fnv(&decoded)).unwrap();
    let scores: Vec<String> = scores.iter().map(|score| format!("{:08x}", score.to_bits())).collect();
    writeln!(text, "score {}\naccumulate {:016x}", scores.join(" "), fnv(&outputs)).unwrap();
    text
}

/// The cases of a codec: those listed, or its default spec.
fn cases_of(codec: &str) -> Vec<(String, usize)> {
    let specs = CASES.iter().filter(|(spec, _)| spec.split(':').next() == Some(codec));
    let mut cases: Vec<_> =
        specs.flat_map(|(spec, widths)| widths.iter().map(|width| (spec.to_string(), *width))).collect();
    if cases.is_empty() {
        cases = [64, 128].map(|width| (codec.to_owned(), width)).into();
    }
    cases
}

fn path(codec: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("{codec}.hex")].iter().collect()
}

#[test]
fn every_backend_gives_the_golden_bytes() {
    for codec in CodecSpec::all() {
        let name = codec.name;
        if std::env::var_os("OCTAPLEX_BLESS").is_some_and(|bless| bless == "1") {
            let unbuilt = cases_of(name).into_iter().find(|(spec, _)| !is_built(spec));
            assert_eq!(unbuilt, None, "bless with the feature alloc, so that every case is written");
            let cases: Vec<String> =
                cases_of(name).iter().map(|(spec, dim)| case(spec, *dim, Backend::SCALAR)).collect();
            let head =
                "# Golden bytes; tests/golden.rs describes this file and writes it (OCTAPLEX_BLESS=1).\n";
            fs::write(path(name), head.to_owned() + &cases.concat()).unwrap();
        }
        let file = fs::read_to_string(path(name))
            .unwrap_or_else(|error| panic!("{}: {error}; OCTAPLEX_BLESS=1 writes it", path(name).display()));
        assert!(file.len() < 20_000, "{name}.hex: {} bytes are too many to review", file.len());
        let golden: Vec<String> = file.split("case ").skip(1).map(|case| format!("case {case}")).collect();
        assert_eq!(golden.len(), cases_of(name).len(), "{name}.hex has other cases than the test");
        for ((spec, dim), golden) in cases_of(name).iter().zip(golden) {
            if !is_built(spec) {
                assert!(golden.starts_with(&format!("case {spec} {dim}\n")));
                continue;
            }
            for backend in Backend::available() {
                assert_eq!(case(spec, *dim, backend), golden, "{spec} at {dim}, backend {}", backend.name());
            }
        }
    }
}

/// A file without a codec is a codec that was renamed.
#[test]
fn every_golden_file_has_a_codec() {
    for entry in fs::read_dir(path("f32").parent().unwrap()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let name = file.strip_suffix(".hex").unwrap_or_else(|| panic!("{file} is no golden file"));
        assert!(CodecSpec::all().iter().any(|codec| codec.name == name), "{file} has no codec");
    }
    for (spec, _) in CASES {
        let parsed: CodecSpec = spec.parse().unwrap();
        assert_eq!(parsed.to_string(), *spec, "golden cases have canonical specs");
        assert!(CodecSpec::all().iter().any(|codec| codec.name == name_of(parsed)));
    }
}

/// The generator and the digest, as any reader must write them.
#[test]
fn the_files_generator_and_digest() {
    assert_eq!(Numbers(2_463_534_242).vector(4), [3.286_865_2, 1.091_430_7, 0.073_852_54, 0.811_401_37]);
    assert_eq!(fnv(&[]), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv(&[0.0]), 0x4d25_767f_9dce_13f5);
}
