//! Helpers of the tests: codecs behind run-time widths (without `alloc`, so that every build is tested alike),
//! seeded vectors, and the list of specs that "all codecs" means.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test binary takes what it needs
#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

pub mod vectors;

pub use vectors::{Random, adversarial};

use chacha20::ChaCha8Rng;
use octaplex::codebook::WIDTHS;
use octaplex::codecs::{AnyCodec, Codec, HeadId, Typed};
use octaplex::{Backend, CodecSpec, Error, LayerConfig};
use rand_core::{Rng, SeedableRng};

/// Returns whether all cases of the long tests run, as in CI: `OCTAPLEX_THOROUGH=1`. Otherwise they take a share, so that
/// `cargo test` ends in half a minute.
pub fn is_thorough() -> bool {
    std::env::var_os("OCTAPLEX_THOROUGH").is_some()
}

/// Returns the number of cases to run: all, or a tenth.
pub fn share(all: usize) -> usize {
    if is_thorough() { all } else { all.div_ceil(10) }
}

/// Returns specs that reach every branch of every codec whose pages are only blocks. `tests/outliers.rs` tests the others.
/// Dense rotations cost D² a vector, so only `tests/rotation.rs` and the golden files have them.
pub fn specs() -> Vec<CodecSpec> {
    let samples = CodecSpec::all().iter().flat_map(|codec| codec.samples);
    let specs = samples.map(|(text, dim)| (text.parse::<CodecSpec>().unwrap(), *dim));
    specs
        .filter(|(spec, dim)| spec.page_bytes_max(*dim, 1) == spec.block_bytes(*dim))
        .map(|(spec, _)| spec)
        .collect()
}

/// Sets `turboquant` for keys and values, for tests that are not about a codec. It keeps the order of channels.
pub fn four_bits(config: LayerConfig) -> LayerConfig {
    let codec = "turboquant".parse().unwrap();
    config.keys(codec).values(codec)
}

/// Returns the name of a spec's codec.
pub fn name_of(spec: CodecSpec) -> String {
    spec.to_string().split(':').next().unwrap_or_default().to_owned()
}

/// Any codec at a width known to the compiler.
pub type Any<const D: usize> = Typed<AnyCodec, D>;

/// Calls that tests make on any codec, in one step.
pub trait Steps: Codec {
    /// Encodes a page, including the codec's data after the blocks.
    fn page(&self, xs: &[f32]) -> Result<Vec<u8>, Error> {
        let mut page = vec![0xaa; self.page_bytes_max(xs.len() / self.dim())];
        let used = self.encode_page(xs, &mut page)?;
        assert!(page[used..].iter().all(|byte| *byte == 0xaa), "bytes behind the page were touched");
        page.truncate(used);
        Ok(page)
    }

    /// Prepares each row of `queries`, then scores.
    fn prepare_and_score(&self, queries: &[f32], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let mut words = vec![0.0; queries.len() / self.dim() * self.query_len()];
        let rows = queries.chunks_exact(self.dim());
        rows.zip(words.chunks_exact_mut(self.query_len()))
            .try_for_each(|(query, words)| self.prepare_query(query, words))?;
        let queries: Vec<&[f32]> = words.chunks_exact(self.query_len()).collect();
        self.score(&queries, blocks, scores)
    }
}

impl<C: Codec + ?Sized> Steps for C {}

/// Builds the codec of a spec, or returns the constructor's error.
pub fn try_build(spec: CodecSpec, dim: usize, backend: Backend) -> Result<Box<dyn Codec>, Error> {
    Ok(Box::new(AnyCodec::build(spec, dim, backend, HeadId::default())?))
}

/// Builds the codec of a spec. Returns `None` if it refuses the width, and panics on other errors.
pub fn build_if_it_fits(spec: CodecSpec, dim: usize, backend: Backend) -> Option<Box<dyn Codec>> {
    match try_build(spec, dim, backend) {
        Ok(codec) => Some(codec),
        Err(Error::Width { actual }) if actual == dim => None,
        Err(Error::Unsupported { why }) if why.contains("width") => None,
        Err(error) => panic!("{spec} at {dim}: {error}"),
    }
}

/// Builds the codec of a spec for every width that it takes: its group must divide the width. If tests are not thorough, for
/// every third of these widths, from one on that depends on the spec.
pub fn build_all(spec: CodecSpec, backend: Backend) -> Vec<Box<dyn Codec>> {
    let mut codecs: Vec<_> = WIDTHS.iter().filter_map(|&dim| build_if_it_fits(spec, dim, backend)).collect();
    assert!(!codecs.is_empty(), "{spec}: no width takes it");
    if !is_thorough() {
        let first = spec.to_string().bytes().map(usize::from).sum::<usize>() % codecs.len().min(3);
        codecs = codecs.into_iter().skip(first).step_by(3).collect();
    }
    codecs
}

/// Builds a codec that is known to exist.
pub fn build(spec: &str, dim: usize) -> Box<dyn Codec> {
    try_build(spec.parse().unwrap(), dim, Backend::detect()).unwrap()
}

/// Encodes rows one by one.
pub fn encode_rows(codec: &dyn Codec, rows: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; rows.len() / codec.dim() * codec.block_bytes()];
    codec.encode_page(rows, &mut blocks).unwrap();
    blocks
}

/// Decodes blocks one by one.
pub fn decode_rows(codec: &dyn Codec, blocks: &[u8]) -> Vec<f32> {
    let mut rows = vec![0.0; blocks.len() / codec.block_bytes() * codec.dim()];
    let blocks = blocks.chunks_exact(codec.block_bytes());
    for (block, row) in blocks.zip(rows.chunks_exact_mut(codec.dim())) {
        codec.decode(block, row).unwrap();
    }
    rows
}

/// Returns the bits of floats, for comparisons that tell 0 from -0.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Returns a format's stream of ChaCha8, implemented a second time. See "Random streams" in docs/formats.md.
pub fn stream(seed: u64, head: HeadId, purpose: u8) -> impl FnMut() -> u64 {
    let mut bytes = b"octaplex".to_vec();
    bytes.extend(seed.to_le_bytes());
    bytes.extend(head.layer.to_le_bytes());
    bytes.extend(head.head.to_le_bytes());
    bytes.extend([u8::from(head.role == octaplex::codecs::Role::Values), purpose, 0, 0, 0, 0, 0, 0]);
    let mut words = ChaCha8Rng::from_seed(bytes.try_into().unwrap());
    move || words.next_u64()
}

/// The signs of a rotation, ±1.
pub fn signs(seed: u64, head: HeadId, dim: usize) -> Vec<f64> {
    signs_for(seed, head, 0, dim)
}

/// The signs of a sketch, ±1.
pub fn sketch_signs(seed: u64, head: HeadId, dim: usize) -> Vec<f64> {
    signs_for(seed, head, 2, dim)
}

fn signs_for(seed: u64, head: HeadId, purpose: u8, dim: usize) -> Vec<f64> {
    let mut words = stream(seed, head, purpose);
    let words: Vec<u64> = (0..dim.div_ceil(64)).map(|_| words()).collect();
    (0..dim).map(|j| if words[j / 64] >> (j % 64) & 1 == 1 { -1.0 } else { 1.0 }).collect()
}
