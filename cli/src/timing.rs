//! Nanoseconds a vector of each operation, on one core, with the width known at compile time and queries prepared.

use octaplex::Backend;
use octaplex::{Codec, DynCodec, Error, Query};
use std::time::{Duration, Instant};

/// What is timed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Op {
    /// Vectors one by one.
    Encode,
    /// Pages of 64 vectors.
    EncodePage,
    /// Blocks one by one.
    Decode,
    /// One prepared query with every block.
    Score,
    /// Eight prepared queries in one pass, the time of one.
    Score8,
    /// One output.
    Accumulate,
}

impl Op {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Encode, Self::EncodePage, Self::Decode, Self::Score, Self::Score8, Self::Accumulate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::EncodePage => "encode_page",
            Self::Decode => "decode",
            Self::Score => "score",
            Self::Score8 => "score8",
            Self::Accumulate => "accumulate",
        }
    }

    /// Times that each block is read or written in one pass.
    fn repeats(self) -> usize {
        if self == Self::Score8 { QUERIES } else { 1 }
    }
}

/// A codec of some width with vectors, blocks and queries, ready to run.
pub(crate) trait Runner {
    /// Runs the operation once over all vectors.
    fn pass(&mut self, op: Op) -> Result<(), Error>;

    /// Vectors in a pass.
    fn vectors(&self) -> usize;

    /// Repeats the blocks `times` times, so that they no longer fit a cache; vectors to encode are taken in a cycle.
    fn repeat(&mut self, times: usize);
}

/// Vectors of a page.
const PAGE: usize = 64;

/// Queries of `score8`.
const QUERIES: usize = 8;

struct Typed<const D: usize> {
    codec: Box<dyn Codec<D>>,
    rows: Vec<[f32; D]>,
    blocks: Vec<u8>,
    queries: Vec<Query<D>>,
    scores: Vec<f32>,
    weights: Vec<f32>,
}

impl<const D: usize> Typed<D> {
    fn new(codec: Box<dyn Codec<D>>, rows: &[f32]) -> Result<Self, Error> {
        let rows = rows.as_chunks().0.to_vec();
        let mut blocks = vec![0; rows.len() * codec.block_bytes()];
        codec.encode_page(&rows, &mut blocks)?;
        let queries = rows
            .iter()
            .cycle()
            .take(QUERIES)
            .map(|row| codec.prepare_query(row))
            .collect::<Result<_, _>>()?;
        let scores = vec![0.0; QUERIES * rows.len()];
        let weights = weights(rows.len());
        Ok(Self { codec, rows, blocks, queries, scores, weights })
    }
}

/// Weights as of attention: positive, of different sizes, with sum 1 or so.
fn weights(count: usize) -> Vec<f32> {
    (0..count).map(|i| (1 + i * 7919 % 97) as f32 / (49 * count) as f32).collect()
}

impl<const D: usize> Runner for Typed<D> {
    fn pass(&mut self, op: Op) -> Result<(), Error> {
        let Self { codec, rows, blocks, queries, scores, weights } = self;
        let bytes = codec.block_bytes();
        match op {
            Op::Encode => {
                let mut blocks = blocks.chunks_exact_mut(bytes);
                rows.iter().cycle().zip(&mut blocks).try_for_each(|(row, block)| codec.encode(row, block))
            }
            Op::EncodePage => {
                for blocks in blocks.chunks_mut(rows.len() * bytes) {
                    let pages = rows.chunks(PAGE).zip(blocks.chunks_mut(PAGE * bytes));
                    pages
                        .into_iter()
                        .try_for_each(|(rows, blocks)| codec.encode_page(rows, blocks).map(drop))?;
                }
                Ok(())
            }
            Op::Decode => {
                let mut x = [0.0; D];
                blocks.chunks_exact(bytes).try_for_each(|block| {
                    codec.decode(block, &mut x)?;
                    std::hint::black_box(&x);
                    Ok(())
                })
            }
            Op::Score => {
                let count = blocks.len() / bytes;
                codec.score(&queries[..1], blocks, &mut scores[..count])
            }
            Op::Score8 => codec.score(queries, blocks, scores),
            Op::Accumulate => {
                let mut acc = [[0.0; D]];
                codec.accumulate(weights, blocks, &mut acc)?;
                std::hint::black_box(&acc);
                Ok(())
            }
        }
    }

    fn vectors(&self) -> usize {
        self.blocks.len() / self.codec.block_bytes()
    }

    fn repeat(&mut self, times: usize) {
        self.blocks = self.blocks.repeat(times);
        self.scores.resize(QUERIES * self.vectors(), 0.0);
        self.weights = weights(self.vectors());
    }
}

/// The codec on these rows, its width known at compile time.
pub(crate) fn runner(codec: Box<dyn DynCodec>, rows: &[f32]) -> Result<Box<dyn Runner>, Error> {
    macro_rules! runner {
        ($($width:literal),*) => {{
            const { assert!(matches!(octaplex::codebook::WIDTHS, [$($width),*])) };
            match codec.dim() {
                $($width => match codec.typed::<$width>() {
                    Some(codec) => Ok(Box::new(Typed::new(codec, rows)?)),
                    None => Err(Error::Width { actual: $width }),
                },)*
                actual => Err(Error::Width { actual }),
            }
        }};
    }
    runner!(32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576)
}

/// What the compressed scores compete with: dot products of one query with a page of f16 rows, as fast as this CPU
/// allows. Returns the nanoseconds a row of the fastest pass within `budget`.
pub(crate) fn best_f16_dot(
    backend: Backend,
    query: &[f32],
    page: &[u8],
    scores: &mut [f32],
    budget: Duration,
) -> f64 {
    let rows = scores.len();
    best_pass(rows, budget, || {
        backend.f16_dot_fma(query, page, scores);
        std::hint::black_box(&scores);
        Ok(())
    })
    .unwrap_or(f64::INFINITY)
}

/// Nanoseconds a vector of the fastest pass within `budget`, after two that warm the caches.
pub(crate) fn best(runner: &mut dyn Runner, op: Op, budget: Duration) -> Result<f64, Error> {
    let warm = best_cold(runner, op, Duration::ZERO)?;
    let second = best_cold(runner, op, Duration::ZERO)?;
    Ok(best_cold(runner, op, budget)?.min(second).min(warm))
}

/// The same without them: for pages larger than any cache.
pub(crate) fn best_cold(runner: &mut dyn Runner, op: Op, budget: Duration) -> Result<f64, Error> {
    best_pass(runner.vectors() * op.repeats(), budget, || runner.pass(op))
}

fn best_pass(
    vectors: usize,
    budget: Duration,
    mut pass: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let start = Instant::now();
    let mut best = Duration::MAX;
    loop {
        let begin = Instant::now();
        pass()?;
        best = best.min(begin.elapsed());
        if start.elapsed() >= budget {
            return Ok(best.as_nanos() as f64 / vectors.max(1) as f64);
        }
    }
}
