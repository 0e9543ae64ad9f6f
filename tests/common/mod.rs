//! What the tests share: codecs behind run-time widths (without `alloc`, so that every build is tested alike),
//! seeded vectors, and the list of specs that "all codecs" means.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test binary takes what it needs

pub mod vectors;

pub use vectors::{Random, adversarial};

use octaplex::codebook::WIDTHS;
use octaplex::{AnyCodec, Backend, Codec, CodecSpec, Error, Stream};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Specs that reach every branch of every codec. A codec that is not named here still joins, by its default spec:
/// use [`specs`].
const SPECS: &[&str] = &[
    "turboquant:bits=1",
    "turboquant:bits=2",
    "turboquant:bits=3",
    "turboquant",
    "turboquant:bits=5",
    "turboquant:bits=6",
    "turboquant:bits=7",
    "turboquant:bits=8",
    "turboquant:levels=3",
    "turboquant:levels=5",
    "turboquant:levels=6",
    "turboquant:levels=10",
    "turboquant:levels=12",
    "turboquant:bits=3,gain=norm",
    "turboquant:bits=2,gain=unbiased",
    "turboquant:bits=3,rounds=2,seed=7",
    "turboquant:levels=6,rounds=3,seed=18446744073709551615",
    "turboquant-qjl:bits=2",
    "turboquant-qjl",
    "turboquant-qjl:bits=6,sketch_rounds=3,seed=5",
    "turboquant-qjl:bits=8,rounds=2,sketch_rounds=1",
    "qjl",
    "qjl:sketch_rounds=1,seed=2",
    "polarquant:bits=1",
    "polarquant:bits=2",
    "polarquant:bits=3,seed=4",
    "polarquant",
    "polarquant:bits=5,rounds=3",
    "polarquant:bits=8",
    "polarquant:depth=4",
    "polarquant:depth=4,rounds=2",
    "tq3_0",
    "tq3_0:variant=3bit",
    "octopus:bits=1",
    "octopus:bits=2",
    "octopus",
    "octopus:bits=4",
    "octopus:bits=5",
    "octopus:bits=4,split=even",
    "octopus:bits=5,split=even",
    "octopus:bdir=1,bnrm=0",
    "octopus:bdir=7,bnrm=6",
    "octopus:bits=2,rounding=full",
    "octopus:rounding=local3,tail=paper,norm=f32,gain=norm",
    "octopus:rounding=scalar,gain=unbiased,rounds=2,seed=7",
    "octopus-qjl:bits=2,gain=norm",
    "octopus-qjl",
    "octopus-qjl:bits=5,split=even,norm=f32,tail=paper,sketch_rounds=3,seed=5",
    "int:bits=2",
    "int:bits=3",
    "int",
    "int:bits=5,group=16",
    "int:bits=8",
    "int:bits=2,group=32,asymmetric=true",
    "int:bits=4,group=16,asymmetric=true",
    "int:bits=6,asymmetric=true",
    "int:bits=7,group=64",
    "int:rotate=true,seed=3",
    "hqmq",
    "hqmq:s=1,r=2",
    "hqmq:s=24,r=3,rotate=true,seed=5",
    "hqmq:s=48,secondary=optimised",
    "hqmq:s=96,r=5,packing=index",
    "hqmq:s=192,r=6",
    "hqmq:s=255,r=6",
    "additive",
    "additive:k=17,r=2,seed=3",
    "int:bits=8,asymmetric=true,rotate=true",
    "q8_0",
    "q8_0:rotate=keys",
    "q5_0",
    "q4_0",
    "q4_0:rotate=keys",
    "q4_0:rotate=values",
    "iq4_nl",
    "fp8",
    "fp8:scale=token",
];

/// Every spec of the list, and the default spec of each codec that the list leaves out. Dense rotations are a matter
/// of `tests/rotation.rs` and the golden files: they cost D² a vector.
pub fn specs() -> Vec<CodecSpec> {
    let mut specs: Vec<CodecSpec> = SPECS.iter().map(|text| text.parse().unwrap()).collect();
    for codec in CodecSpec::all() {
        if !SPECS.iter().any(|text| text.split(':').next() == Some(codec.name)) {
            specs.push(codec.name.parse().unwrap());
        }
    }
    specs
}

/// The name of a spec's codec.
pub fn name_of(spec: CodecSpec) -> String {
    spec.to_string().split(':').next().unwrap_or_default().to_owned()
}

/// A codec whose width is a run-time value: [`Codec`] with slices. Rows are `dim` values each.
pub trait Rows {
    fn dim(&self) -> usize;
    fn block_bytes(&self) -> usize;
    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error>;
    fn encode_page(&self, xs: &[f32], blocks: &mut [u8]) -> Result<(), Error>;
    /// A page of any codec, with what it keeps behind its blocks.
    fn page(&self, xs: &[f32]) -> Result<Vec<u8>, Error>;
    fn decode_page(&self, page: &[u8], xs: &mut [f32]) -> Result<(), Error>;
    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error>;
    /// Prepares each row of `queries`, then scores.
    fn score(&self, queries: &[f32], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error>;
    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error>;
    fn finish(&self, acc: &mut [f32]);
}

fn rows<const D: usize>(values: &[f32]) -> &[[f32; D]] {
    let (rows, rest) = values.as_chunks();
    assert!(rest.is_empty());
    rows
}

fn rows_mut<const D: usize>(values: &mut [f32]) -> &mut [[f32; D]] {
    let (rows, rest) = values.as_chunks_mut();
    assert!(rest.is_empty());
    rows
}

impl<const D: usize> Rows for AnyCodec<D> {
    fn dim(&self) -> usize {
        D
    }
    fn block_bytes(&self) -> usize {
        Codec::block_bytes(self)
    }
    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        Codec::encode(self, &rows(x)[0], block)
    }
    fn encode_page(&self, xs: &[f32], blocks: &mut [u8]) -> Result<(), Error> {
        Codec::encode_page(self, rows(xs), blocks).map(drop)
    }
    fn page(&self, xs: &[f32]) -> Result<Vec<u8>, Error> {
        let mut page = vec![0xaa; self.page_bytes_max(xs.len() / D)];
        let used = Codec::encode_page(self, rows(xs), &mut page)?;
        assert!(page[used..].iter().all(|byte| *byte == 0xaa), "bytes behind the page were touched");
        page.truncate(used);
        Ok(page)
    }
    fn decode_page(&self, page: &[u8], xs: &mut [f32]) -> Result<(), Error> {
        Codec::decode_page(self, page, rows_mut(xs))
    }
    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        Codec::decode(self, block, &mut rows_mut(x)[0])
    }
    fn score(&self, queries: &[f32], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let prepared: Vec<_> =
            rows(queries).iter().map(|query| self.prepare_query(query)).collect::<Result<_, _>>()?;
        Codec::score(self, &prepared, blocks, scores)
    }
    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        Codec::accumulate(self, weights, blocks, rows_mut(acc))
    }
    fn finish(&self, acc: &mut [f32]) {
        for acc in rows_mut(acc) {
            Codec::finish(self, acc);
        }
    }
}

/// Calls a function that is generic over the width with a width known at run time.
#[macro_export]
macro_rules! with_width {
    ($dim:expr, $d:ident => $body:expr) => {
        match $dim {
            32 => {
                const $d: usize = 32;
                $body
            }
            64 => {
                const $d: usize = 64;
                $body
            }
            80 => {
                const $d: usize = 80;
                $body
            }
            96 => {
                const $d: usize = 96;
                $body
            }
            112 => {
                const $d: usize = 112;
                $body
            }
            128 => {
                const $d: usize = 128;
                $body
            }
            160 => {
                const $d: usize = 160;
                $body
            }
            192 => {
                const $d: usize = 192;
                $body
            }
            256 => {
                const $d: usize = 256;
                $body
            }
            512 => {
                const $d: usize = 512;
                $body
            }
            576 => {
                const $d: usize = 576;
                $body
            }
            dim => unreachable!("width {dim}"),
        }
    };
}

/// The codec of a spec, or what its constructor refuses.
pub fn try_build(spec: CodecSpec, dim: usize, backend: Backend) -> Result<Box<dyn Rows>, Error> {
    with_width!(dim, D => Ok(Box::new(AnyCodec::<D>::build(spec, backend, Stream::default())?)))
}

/// The codec of a spec for every width that takes it (a group may not divide the width), with its width.
pub fn build_all(spec: CodecSpec, backend: Backend) -> Vec<Box<dyn Rows>> {
    let codecs: Vec<_> = WIDTHS.iter().filter_map(|&dim| try_build(spec, dim, backend).ok()).collect();
    assert!(!codecs.is_empty(), "{spec}: no width takes it");
    codecs
}

/// The codec of a spec that is known to be possible.
pub fn build(spec: &str, dim: usize) -> Box<dyn Rows> {
    try_build(spec.parse().unwrap(), dim, Backend::detect()).unwrap()
}

/// Encodes rows one by one.
pub fn encode_rows(codec: &dyn Rows, rows: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; rows.len() / codec.dim() * codec.block_bytes()];
    codec.encode_page(rows, &mut blocks).unwrap();
    blocks
}

/// Decodes blocks one by one.
pub fn decode_rows(codec: &dyn Rows, blocks: &[u8]) -> Vec<f32> {
    let mut rows = vec![0.0; blocks.len() / codec.block_bytes() * codec.dim()];
    let blocks = blocks.chunks_exact(codec.block_bytes());
    for (block, row) in blocks.zip(rows.chunks_exact_mut(codec.dim())) {
        codec.decode(block, row).unwrap();
    }
    rows
}

/// Bits, for comparisons that tell 0 from -0.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// ChaCha8 of a format's stream (codecs' documentation: "Streams"), written down a second time.
pub fn stream(seed: u64, stream: Stream, purpose: u8) -> impl FnMut() -> u64 {
    let mut bytes = b"octaplex".to_vec();
    bytes.extend(seed.to_le_bytes());
    bytes.extend(stream.layer.to_le_bytes());
    bytes.extend(stream.head.to_le_bytes());
    bytes.extend([u8::from(stream.role == octaplex::Role::Values), purpose, 0, 0, 0, 0, 0, 0]);
    let mut words = ChaCha8Rng::from_seed(bytes.try_into().unwrap());
    move || words.next_u64()
}

/// The signs of a rotation, ±1.
pub fn signs(seed: u64, head: Stream, dim: usize) -> Vec<f64> {
    signs_for(seed, head, 0, dim)
}

/// The signs of a sketch, ±1.
pub fn sketch_signs(seed: u64, head: Stream, dim: usize) -> Vec<f64> {
    signs_for(seed, head, 2, dim)
}

fn signs_for(seed: u64, head: Stream, purpose: u8, dim: usize) -> Vec<f64> {
    let mut words = stream(seed, head, purpose);
    let words: Vec<u64> = (0..dim.div_ceil(64)).map(|_| words()).collect();
    (0..dim).map(|j| if words[j / 64] >> (j % 64) & 1 == 1 { -1.0 } else { 1.0 }).collect()
}
