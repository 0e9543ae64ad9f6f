//! Times each operation on one core in nanoseconds a vector, with prepared queries.

use crate::backend::kernels;
use octaplex::codecs::{Codec, PAGE};
use octaplex::{Backend, Error};
use std::time::{Duration, Instant};

/// The operation that is timed.
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
    /// All operations.
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

    /// Returns how often a pass reads or writes each block.
    fn repeats(self) -> usize {
        if self == Self::Score8 { QUERIES } else { 1 }
    }
}

/// Queries of `score8`.
const QUERIES: usize = 8;

/// A codec with vectors, blocks and queries, ready to run.
pub(crate) struct Runner {
    codec: Box<dyn Codec>,
    rows: Vec<f32>,
    /// Pages of all rows, one after the other.
    blocks: Vec<u8>,
    page_bytes: usize,
    /// Prepared, one after the other.
    queries: Vec<f32>,
    scores: Vec<f32>,
    weights: Vec<f32>,
}

impl Runner {
    pub(crate) fn new(codec: Box<dyn Codec>, rows: &[f32]) -> Result<Self, Error> {
        let (dim, len) = (codec.dim(), codec.query_len());
        let blocks = page(&*codec, rows)?;
        let page_bytes = blocks.len();
        let mut queries = vec![0.0; QUERIES * len];
        for (row, query) in rows.chunks_exact(dim).cycle().zip(queries.chunks_exact_mut(len)) {
            codec.prepare_query(row, query)?;
        }
        let scores = vec![0.0; QUERIES * rows.len() / dim];
        let weights = weights(rows.len() / dim);
        Ok(Self { codec, rows: rows.to_vec(), blocks, page_bytes, queries, scores, weights })
    }

    fn times(&self) -> usize {
        self.blocks.len() / self.page_bytes.max(1)
    }
}

/// One page of all rows.
fn page(codec: &dyn Codec, rows: &[f32]) -> Result<Vec<u8>, Error> {
    let mut page = vec![0; codec.page_bytes_max(rows.len() / codec.dim())];
    let bytes = codec.encode_page(rows, &mut page)?;
    page.truncate(bytes);
    Ok(page)
}

/// Returns weights like those of attention: positive, of different sizes, with a sum near 1.
fn weights(count: usize) -> Vec<f32> {
    (0..count).map(|i| (1 + i * 7919 % 97) as f32 / (49 * count) as f32).collect()
}

impl Runner {
    /// Runs the operation once over all vectors.
    fn pass(&mut self, op: Op) -> Result<(), Error> {
        let times = self.times();
        let Self { codec, rows, blocks, page_bytes, queries, scores, weights } = self;
        let (dim, bytes, count) = (codec.dim(), codec.block_bytes(), weights.len());
        let queries: Vec<&[f32]> = queries.chunks_exact(codec.query_len()).collect();
        let mut pages = blocks.chunks_exact(*page_bytes);
        match op {
            Op::Encode => {
                let mut block = vec![0; bytes];
                rows.chunks_exact(dim).cycle().take(times * count).try_for_each(|row| {
                    codec.encode(row, &mut block)?;
                    std::hint::black_box(&block);
                    Ok(())
                })
            }
            Op::EncodePage => {
                let mut page = vec![0; codec.page_bytes_max(PAGE)];
                (0..times).flat_map(|_| rows.chunks(PAGE * dim)).try_for_each(|rows| {
                    codec.encode_page(rows, &mut page[..codec.page_bytes_max(rows.len() / dim)])?;
                    std::hint::black_box(&page);
                    Ok(())
                })
            }
            // If pages are blocks only, one by one. Outliers need the page.
            Op::Decode if *page_bytes == count * bytes => {
                let mut x = vec![0.0; dim];
                blocks.chunks_exact(bytes).try_for_each(|block| {
                    codec.decode(block, &mut x)?;
                    std::hint::black_box(&x);
                    Ok(())
                })
            }
            Op::Decode => {
                let mut xs = vec![0.0; rows.len()];
                pages.try_for_each(|page| {
                    codec.decode_page(page, &mut xs)?;
                    std::hint::black_box(&xs);
                    Ok(())
                })
            }
            Op::Score => pages.try_for_each(|page| codec.score(&queries[..1], page, &mut scores[..count])),
            Op::Score8 => pages.try_for_each(|page| codec.score(&queries, page, scores)),
            Op::Accumulate => {
                let mut acc = vec![0.0; dim];
                pages.try_for_each(|page| codec.accumulate(weights, page, &mut acc))?;
                std::hint::black_box(&acc);
                Ok(())
            }
        }
    }

    /// Returns the vectors in a pass.
    fn vectors(&self) -> usize {
        self.times() * self.weights.len()
    }

    /// Repeats the blocks `times` times, so that they no longer fit a CPU cache. Vectors to encode are taken in a cycle.
    pub(crate) fn repeat(&mut self, times: usize) {
        self.blocks = self.blocks.repeat(times);
    }
}

/// Times the baseline of the compressed scores: dot products of one query with a page of f16 rows, as fast as this CPU
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

/// Returns the nanoseconds a vector of the fastest pass within `budget`, after two passes that warm the CPU caches.
pub(crate) fn best(runner: &mut Runner, op: Op, budget: Duration) -> Result<f64, Error> {
    let warm = best_cold(runner, op, Duration::ZERO)?;
    let second = best_cold(runner, op, Duration::ZERO)?;
    Ok(best_cold(runner, op, budget)?.min(second).min(warm))
}

/// Does the same without warming them, for pages larger than any CPU cache.
pub(crate) fn best_cold(runner: &mut Runner, op: Op, budget: Duration) -> Result<f64, Error> {
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
