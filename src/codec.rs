//! What every codec does: the trait, the prepared query, and checks that codecs share.

pub(crate) mod additive;
pub(crate) mod decoded;
pub(crate) mod float;
pub(crate) mod fp8;
pub(crate) mod ggml;
pub(crate) mod hqmq;
pub(crate) mod int;
pub(crate) mod octopus;
pub(crate) mod octopus_qjl;
pub(crate) mod outliers;
pub(crate) mod polarquant;
pub(crate) mod qjl;
pub(crate) mod tq3_0;
pub(crate) mod trellis;
pub(crate) mod turboquant;
pub(crate) mod turboquant_qjl;

use crate::backend::Kernels;
use crate::spec::MAX_BLOCK_BYTES;
use crate::{CodecSpec, Error, MAX_WEIGHT};
use half::f16;
use octaplex_arch::IntQuery;

/// Encodes `D`-wide vectors into blocks of bytes, and computes attention's two products on the blocks.
///
/// A raw block carries no tag: the [`spec`](Self::spec) says what its bytes mean. Blocks of consecutive tokens,
/// one after the other, are a page; the products take a page at a time, so that run-time choices cost nothing a
/// token. On any `Err`, outputs are as they were before the call.
///
/// Most codecs' pages are their blocks and nothing else. A codec that keeps some values exactly (`med` in specs)
/// appends a list of them behind the blocks, as long as the data make it: [`page_bytes_max`](Self::page_bytes_max)
/// bounds it, [`encode_page`](Self::encode_page) says how long it came out, and wherever bytes of blocks are given,
/// they are one whole page. Blocks from [`encode`](Self::encode) have no such values, and are a page as they stand.
///
/// ```
/// use octaplex::{Codec, Error, TurboQuant};
///
/// let codec = TurboQuant::<64>::new(3)?;
/// let (key, query) = ([0.5; 64], [0.25; 64]);
/// let mut block = [0; 26];
/// codec.encode(&key, &mut block)?;
///
/// let mut score = [0.0];
/// codec.score(&[codec.prepare_query(&query)?], &block, &mut score)?;
/// assert!((score[0] - 8.0).abs() < 0.5); // 64 · 0.5 · 0.25
/// # Ok::<(), Error>(())
/// ```
pub trait Codec<const D: usize>: Send + Sync {
    /// What the bytes mean.
    fn spec(&self) -> CodecSpec;

    /// Bytes of a block.
    fn block_bytes(&self) -> usize;

    /// Encodes one vector. O(D log D).
    ///
    /// # Errors
    /// [`Error::NonFinite`], [`Error::Overflow`] where a stored f16 would be infinite, [`Error::Length`].
    fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error>;

    /// The most bytes that a page of `tokens` vectors takes: for most codecs, the bytes that it always takes.
    fn page_bytes_max(&self, tokens: usize) -> usize {
        tokens * self.block_bytes()
    }

    /// Encodes vectors into the front of `page`, [`page_bytes_max`](Self::page_bytes_max) bytes, all or none; returns
    /// how many bytes it took. For most codecs, the blocks that [`encode`](Self::encode) gives.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); indices count over the whole of `xs`.
    fn encode_page(&self, xs: &[[f32; D]], page: &mut [u8]) -> Result<usize, Error> {
        encode_blocks(self, xs, page)
    }

    /// (tokens, bytes) of the page at the head of `bytes`, which holds whole pages of `tokens` vectors each, but for
    /// the last one, which may be shorter.
    ///
    /// # Errors
    /// [`Error::Length`] where the bytes end inside a page.
    fn first_page(&self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
        first_blocks(bytes, self.block_bytes(), tokens)
    }

    /// Decodes one block. Any bytes are allowed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a stored scale is not finite, [`Error::Length`].
    fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error>;

    /// Decodes a page of `xs.len()` vectors, all or none. Any bytes are allowed.
    ///
    /// # Errors
    /// As [`decode`](Self::decode); [`Error::Length`] where the page is of another length than its flags say.
    fn decode_page(&self, page: &[u8], xs: &mut [[f32; D]]) -> Result<(), Error> {
        decode_blocks(self, page, xs)
    }

    /// Rotates and quantises a query, once for all pages.
    ///
    /// # Errors
    /// [`Error::NonFinite`]; [`Error::Overflow`] for values of 2⁵⁸ and up.
    fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error>;

    /// Scores q·k̂ of every query with every block, laid out \[query]\[block]: several queries (the heads that
    /// share a key under grouped-query attention) take one pass over the blocks.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Corrupt`].
    fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error>;

    /// acc\[query] += Σ weight·v̂ over the blocks, *in the codec's own basis*; weights are laid out \[query]\[block].
    /// Start from zeros, and call [`finish`](Self::finish) once after the last page.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::NonFinite`] and [`Error::Weight`] for the weights, [`Error::Corrupt`].
    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error>;

    /// Brings an accumulated output back to the vectors' basis: one inverse rotation an output, not one a token.
    fn finish(&self, acc: &mut [f32; D]);
}

/// A query ready to be scored, 7·D + 12 bytes: rotated, quantised where its codec scores in integers, and sketched
/// where it has a sign sketch.
///
/// It belongs to the codec that prepared it: another rotation's scores mean nothing.
#[derive(Clone, Debug)]
pub struct Query<const D: usize> {
    /// In the codec's basis.
    pub(crate) rotated: [f32; D],
    /// The same as integers of at most ±`limit`, one unit worth `scale`; zeros where the codec scores in f32.
    pub(crate) ints: [i16; D],
    pub(crate) scale: f32,
    limit: i16,
    /// In the basis of a sign sketch, as integers of at most ±127; for codecs that have one.
    pub(crate) sketch: Option<([i8; D], f32)>,
}

/// Queries that one pass over the blocks takes.
pub(crate) const QUERY_BATCH: usize = 8;

impl<const D: usize> Query<D> {
    /// For codecs that score in f32.
    pub(crate) fn float(rotated: [f32; D]) -> Self {
        Self { rotated, ints: [0; D], scale: 0.0, limit: 0, sketch: None }
    }

    /// For codecs that score in integers of at most ±`limit`.
    pub(crate) fn int(rotated: [f32; D], limit: i16, backend: Kernels) -> Self {
        let mut query = Self::float(rotated);
        query.scale = backend.quantize_query(&query.rotated, limit, &mut query.ints);
        query.limit = limit;
        query
    }

    /// Calls `score` with eight integer queries of at most ±`limit` and their part of `scores` at a time.
    pub(crate) fn in_int_batches(
        queries: &[Self],
        limit: i16,
        scores: &mut [f32],
        score: impl Fn(&[IntQuery], &mut [f32]),
    ) -> Result<(), Error> {
        if queries.iter().any(|query| query.limit != limit) {
            return Err(Error::Unsupported { why: "the query was prepared by a codec of another kind" });
        }
        let rows = scores.len() / queries.len().max(1);
        for (queries, scores) in
            queries.chunks(QUERY_BATCH).zip(scores.chunks_mut((QUERY_BATCH * rows).max(1)))
        {
            let mut batch = [IntQuery { values: &[], scale: 0.0 }; QUERY_BATCH];
            for (slot, query) in batch.iter_mut().zip(queries) {
                *slot = IntQuery { values: &query.ints, scale: query.scale };
            }
            score(&batch[..queries.len()], scores);
        }
        Ok(())
    }

    /// `Ok` if the queries have been sketched.
    pub(crate) fn check_sketches(queries: &[Self]) -> Result<(), Error> {
        if queries.iter().any(|query| query.sketch.is_none()) {
            return Err(Error::Unsupported { why: "the query was prepared by a codec of another kind" });
        }
        Ok(())
    }

    /// The same for queries in f32.
    pub(crate) fn in_float_batches(
        queries: &[Self],
        scores: &mut [f32],
        score: impl Fn(&[&[f32]], &mut [f32]),
    ) {
        let rows = scores.len() / queries.len().max(1);
        for (queries, scores) in
            queries.chunks(QUERY_BATCH).zip(scores.chunks_mut((QUERY_BATCH * rows).max(1)))
        {
            let mut batch: [&[f32]; QUERY_BATCH] = [&[]; QUERY_BATCH];
            for (slot, query) in batch.iter_mut().zip(queries) {
                *slot = &query.rotated;
            }
            score(&batch[..queries.len()], scores);
        }
    }
}

/// Magnitudes of queries and of stored bf16 and f32 values stay below this (2⁵⁸), so that no product of two, summed
/// over any width, leaves f32's range.
pub(crate) const MAX_VALUE: f32 = 288_230_376_151_711_744.0;

/// `Ok` if every value is finite and below `limit` in magnitude.
pub(crate) fn check_values(x: &[f32], limit: f32) -> Result<(), Error> {
    if x.iter().all(|x| x.abs() < limit) {
        return Ok(());
    }
    match x.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(Error::NonFinite { index }),
        None => Err(Error::Overflow),
    }
}

/// Norms below this (2⁻³⁰) are stored as zero whatever the gain, which is at most 20: half the smallest f16 is 2⁻²⁵.
pub(crate) const SMALLEST_NORM: f32 = f32::from_bits((127 - 30) << 23);

/// ‖x‖ for a finite vector whose sum of squares fits f32.
pub(crate) fn norm(backend: Kernels, x: &[f32]) -> Result<f32, Error> {
    let energy = backend.dot(x, x);
    if energy.is_finite() {
        return Ok(libm::sqrtf(energy));
    }
    check_values(x, f32::MAX)?;
    Err(Error::Overflow)
}

/// Rounds to f16, to nearest even.
pub(crate) fn to_f16(x: f32) -> Result<f16, Error> {
    let rounded = f16::from_f32(x);
    if rounded.is_finite() { Ok(rounded) } else { Err(Error::Overflow) }
}

pub(crate) fn read_f16(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// A cheap proof that no codec refuses `x`: a norm below 2048. An f16 holds 65504, and no gain exceeds 20 (three levels
/// at D = 576, where a vector that the rotation takes to one coordinate is coded as 1.22/24 of its norm).
fn surely_encodable<const D: usize>(x: &[f32; D]) -> bool {
    let mut lanes = [0.0; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x * x;
    }
    lanes.iter().sum::<f32>() < 2048.0 * 2048.0
}

pub(crate) fn at_row(error: Error, row: usize, dim: usize) -> Error {
    match error {
        Error::NonFinite { index } => Error::NonFinite { index: row * dim + index },
        other => other,
    }
}

/// Encodes vectors into blocks one after the other, all or none.
pub(crate) fn encode_blocks<const D: usize>(
    codec: &(impl Codec<D> + ?Sized),
    xs: &[[f32; D]],
    page: &mut [u8],
) -> Result<usize, Error> {
    let bytes = codec.block_bytes();
    Error::expect_length("bytes of blocks", xs.len() * bytes, page.len())?;
    if !xs.iter().all(surely_encodable) {
        let mut scratch = [0; MAX_BLOCK_BYTES];
        for (row, x) in xs.iter().enumerate() {
            codec.encode(x, &mut scratch[..bytes]).map_err(|error| at_row(error, row, D))?;
        }
    }
    xs.iter().zip(page.chunks_exact_mut(bytes)).try_for_each(|(x, block)| codec.encode(x, block))?;
    Ok(page.len())
}

/// Decodes blocks one after the other, all or none.
pub(crate) fn decode_blocks<const D: usize>(
    codec: &(impl Codec<D> + ?Sized),
    page: &[u8],
    xs: &mut [[f32; D]],
) -> Result<(), Error> {
    let bytes = codec.block_bytes();
    Error::expect_length("bytes of blocks", xs.len() * bytes, page.len())?;
    let mut decoded = [0.0; D];
    for (row, block) in page.chunks_exact(bytes).enumerate() {
        codec.decode(block, &mut decoded).map_err(|error| in_block(error, row))?;
    }
    page.chunks_exact(bytes).zip(xs).try_for_each(|(block, x)| codec.decode(block, x))
}

/// Up to `tokens` blocks at the head of `bytes`, and their bytes.
pub(crate) fn first_blocks(bytes: &[u8], block_bytes: usize, tokens: usize) -> Result<(usize, usize), Error> {
    let tokens = count_blocks(bytes, block_bytes)?.min(tokens);
    Ok((tokens, tokens * block_bytes))
}

pub(crate) fn in_block(error: Error, row: usize) -> Error {
    match error {
        Error::Corrupt { .. } => Error::Corrupt { block: row },
        other => other,
    }
}

/// The number of blocks in a page.
pub(crate) fn count_blocks(blocks: &[u8], block_bytes: usize) -> Result<usize, Error> {
    if !blocks.len().is_multiple_of(block_bytes) {
        return Err(Error::Length {
            what: "bytes of blocks, a multiple of",
            expected: block_bytes,
            actual: blocks.len(),
        });
    }
    Ok(blocks.len() / block_bytes)
}

/// `Ok` if the first `scales` f16 of every block are finite: an exponent of all ones stands for infinity and NaN.
pub(crate) fn check_scales(blocks: &[u8], block_bytes: usize, scales: usize) -> Result<(), Error> {
    let is_finite = |block: &[u8]| block.as_chunks::<2>().0[..scales].iter().all(|b| b[1] & 0x7c != 0x7c);
    let blocks_of = || blocks.chunks_exact(block_bytes);
    // No branch a block for the usual single scale: this runs before every score.
    let all_finite = match scales {
        1 => blocks_of().fold(true, |finite, block| finite & (block[1] & 0x7c != 0x7c)),
        _ => blocks_of().all(is_finite),
    };
    if all_finite {
        return Ok(());
    }
    Err(Error::Corrupt { block: blocks_of().position(|block| !is_finite(block)).unwrap_or(0) })
}

/// `Ok` if the f16 at these bytes of every block are finite.
pub(crate) fn check_scales_at<const N: usize>(
    blocks: &[u8],
    block_bytes: usize,
    at: [usize; N],
) -> Result<(), Error> {
    let is_finite = |block: &[u8]| at.iter().fold(true, |finite, at| finite & (block[at + 1] & 0x7c != 0x7c));
    if blocks.chunks_exact(block_bytes).fold(true, |finite, block| finite & is_finite(block)) {
        return Ok(());
    }
    let block = blocks.chunks_exact(block_bytes).position(|block| !is_finite(block));
    Err(Error::Corrupt { block: block.unwrap_or(0) })
}

/// Checks the lengths and weights of an `accumulate` call; `Ok` gives the number of blocks.
pub(crate) fn check_accumulate(
    weights: &[f32],
    blocks: &[u8],
    block_bytes: usize,
    outputs: usize,
) -> Result<usize, Error> {
    let count = count_blocks(blocks, block_bytes)?;
    Error::expect_length("weights", outputs.saturating_mul(count), weights.len())?;
    if weights.iter().fold(true, |fits, w| fits & (w.abs() <= MAX_WEIGHT)) {
        return Ok(count);
    }
    match weights.iter().position(|w| !w.is_finite()) {
        Some(index) => Err(Error::NonFinite { index }),
        None => Err(Error::Weight { index: weights.iter().position(|w| w.abs() > MAX_WEIGHT).unwrap_or(0) }),
    }
}
