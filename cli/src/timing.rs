//! Nanoseconds a vector of each operation, on one core, with the width known at compile time and queries prepared.

use crate::backend::kernels;
use crate::codecs;
use octaplex::{Backend, Codec, Error, Query};
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
    /// Pages of all rows, the same one after the other.
    blocks: Vec<u8>,
    page_bytes: usize,
    queries: Vec<Query<D>>,
    scores: Vec<f32>,
    weights: Vec<f32>,
}

impl<const D: usize> Typed<D> {
    fn new(codec: Box<dyn Codec<D>>, rows: &[f32]) -> Result<Self, Error> {
        let rows = rows.as_chunks().0.to_vec();
        let blocks = page(&*codec, &rows)?;
        let page_bytes = blocks.len();
        let queries = rows
            .iter()
            .cycle()
            .take(QUERIES)
            .map(|row| codec.prepare_query(row))
            .collect::<Result<_, _>>()?;
        let scores = vec![0.0; QUERIES * rows.len()];
        let weights = weights(rows.len());
        Ok(Self { codec, rows, blocks, page_bytes, queries, scores, weights })
    }
}

impl<const D: usize> Typed<D> {
    fn times(&self) -> usize {
        self.blocks.len() / self.page_bytes.max(1)
    }
}

/// One page of all rows.
fn page<const D: usize>(codec: &dyn Codec<D>, rows: &[[f32; D]]) -> Result<Vec<u8>, Error> {
    let mut page = vec![0; codec.page_bytes_max(rows.len())];
    let bytes = codec.encode_page(rows, &mut page)?;
    page.truncate(bytes);
    Ok(page)
}

/// Weights as of attention: positive, of different sizes, with sum 1 or so.
fn weights(count: usize) -> Vec<f32> {
    (0..count).map(|i| (1 + i * 7919 % 97) as f32 / (49 * count) as f32).collect()
}

impl<const D: usize> Runner for Typed<D> {
    fn pass(&mut self, op: Op) -> Result<(), Error> {
        let times = self.times();
        let Self { codec, rows, blocks, page_bytes, queries, scores, weights } = self;
        let bytes = codec.block_bytes();
        let mut pages = blocks.chunks_exact(*page_bytes);
        match op {
            Op::Encode => {
                let mut block = vec![0; bytes];
                rows.iter().cycle().take(times * rows.len()).try_for_each(|row| {
                    codec.encode(row, &mut block)?;
                    std::hint::black_box(&block);
                    Ok(())
                })
            }
            Op::EncodePage => {
                let mut page = vec![0; codec.page_bytes_max(PAGE)];
                (0..times).flat_map(|_| rows.chunks(PAGE)).try_for_each(|rows| {
                    codec.encode_page(rows, &mut page[..codec.page_bytes_max(rows.len())])?;
                    std::hint::black_box(&page);
                    Ok(())
                })
            }
            // Where blocks are all there is, one by one; outliers need the page.
            Op::Decode if *page_bytes == rows.len() * bytes => {
                let mut x = [0.0; D];
                blocks.chunks_exact(bytes).try_for_each(|block| {
                    codec.decode(block, &mut x)?;
                    std::hint::black_box(&x);
                    Ok(())
                })
            }
            Op::Decode => {
                let mut xs = vec![[0.0; D]; rows.len()];
                pages.try_for_each(|page| {
                    codec.decode_page(page, &mut xs)?;
                    std::hint::black_box(&xs);
                    Ok(())
                })
            }
            Op::Score => {
                pages.try_for_each(|page| codec.score(&queries[..1], page, &mut scores[..rows.len()]))
            }
            Op::Score8 => pages.try_for_each(|page| codec.score(queries, page, scores)),
            Op::Accumulate => {
                let mut acc = [[0.0; D]];
                pages.try_for_each(|page| codec.accumulate(weights, page, &mut acc))?;
                std::hint::black_box(&acc);
                Ok(())
            }
        }
    }

    fn vectors(&self) -> usize {
        self.times() * self.rows.len()
    }

    fn repeat(&mut self, times: usize) {
        self.blocks = self.blocks.repeat(times);
    }
}

/// The codec on these rows, its width known at compile time.
pub(crate) fn runner(codec: codecs::Codec, rows: &[f32]) -> Result<Box<dyn Runner>, Error> {
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
    let (rows, kernels) = (scores.len(), kernels(backend));
    best_pass(rows, budget, || {
        kernels.f16_dot_fma(query, page, scores);
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
