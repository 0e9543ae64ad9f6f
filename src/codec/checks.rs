//! Checks that codecs share, and their bounds.

use crate::Error;
use crate::backend::Kernels;
use half::f16;
use octaplex_arch::MAX_WEIGHT;

/// The largest block of any codec: f32 at the widest width.
pub(crate) const MAX_BLOCK_BYTES: usize = 4 * octaplex_arch::MAX_DIM;

/// Magnitudes of queries and of stored bf16 and f32 values stay below this (2⁵⁸), so that no product of two, summed
/// over any width, leaves f32's range.
pub(crate) const MAX_VALUE: f32 = 288_230_376_151_711_744.0;

/// Norms below this (2⁻³⁰) are stored as zero whatever the gain, which is at most 20: half the smallest f16 is 2⁻²⁵.
pub(crate) const SMALLEST_NORM: f32 = f32::from_bits((127 - 30) << 23);

/// No codec refuses a vector whose norm is below this. An f16 holds 65504, and no gain exceeds 20 (three levels at 576
/// values, where a vector that the rotation takes to one coordinate is coded as 1.22/24 of its norm).
pub(crate) const SURE_NORM: f32 = 1024.0;

/// A cheap proof that no codec refuses `x`: a norm below [`SURE_NORM`], by a backend where one is at hand.
pub(crate) fn surely_encodable(backend: Option<Kernels>, x: &[f32]) -> bool {
    if let Some(backend) = backend {
        return backend.dot(x, x) < SURE_NORM * SURE_NORM;
    }
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
    lanes.iter().sum::<f32>() < SURE_NORM * SURE_NORM
}

/// `Ok` if every value is finite and below `limit` in magnitude.
pub(crate) fn check_values(x: &[f32], limit: f32) -> Result<(), Error> {
    // No branch a value: compilers turn it into vectors.
    if x.iter().fold(true, |fits, x| fits & (x.abs() < limit)) {
        return Ok(());
    }
    match x.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(Error::NonFinite { index }),
        None => Err(Error::Overflow),
    }
}

/// ‖x‖ for a finite vector whose sum of squares fits f32.
pub(crate) fn norm(backend: Kernels, x: &[f32]) -> Result<f32, Error> {
    let energy = backend.dot(x, x);
    if energy.is_finite() {
        return Ok(backend.sqrt(energy));
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

pub(crate) fn at_row(error: Error, row: usize, dim: usize) -> Error {
    match error {
        Error::NonFinite { index } => Error::NonFinite { index: row * dim + index },
        other => other,
    }
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
    let is_finite = |block: &[u8]| {
        let scales = block.as_chunks::<2>().0.get(..scales).unwrap_or_default();
        scales.iter().all(|b| b[1] & 0x7c != 0x7c)
    };
    // One block, which need not be divided.
    if blocks.len() == block_bytes {
        return if is_finite(blocks) { Ok(()) } else { Err(Error::Corrupt { block: 0 }) };
    }
    let blocks_of = || blocks.chunks_exact(block_bytes.max(1));
    let all_finite =
        if scales == 1 { first_are_finite(blocks, block_bytes) } else { blocks_of().all(is_finite) };
    if all_finite {
        return Ok(());
    }
    Err(Error::Corrupt { block: blocks_of().position(|block| !is_finite(block)).unwrap_or(0) })
}

/// Whether the first f16 of every block is finite. This runs before sums and many scores: no branch a block, and four at once, which
/// takes half the time of one after the other (Sapphire Rapids). The four lie side by side, so that memory is read in order: four that
/// are quarters of all blocks apart take 1.3 to 1.5 times as long in sums of 4,096 rows from memory (Zen 4).
fn first_are_finite(blocks: &[u8], block_bytes: usize) -> bool {
    let block_bytes = block_bytes.max(1);
    // Four more than an exponent of all ones, and of no other, have the highest bit set.
    let more =
        |blocks: &[u8], n: usize| blocks.get(n * block_bytes + 1).map_or(0x80, |byte| (byte & 0x7c) + 4);
    if cfg!(target_os = "none") {
        // Boards link a panic for chunks of four blocks.
        return blocks.chunks_exact(block_bytes).fold(0, |all, block| all | more(block, 0)) & 0x80 == 0;
    }
    let fours = blocks.chunks_exact(4 * block_bytes);
    let rest = fours.remainder().chunks_exact(block_bytes);
    let all =
        fours.fold(0, |all, four| all | (more(four, 0) | more(four, 1)) | (more(four, 2) | more(four, 3)));
    rest.fold(all, |all, block| all | more(block, 0)) & 0x80 == 0
}

/// Scores rows whose scales are finite if `check` says so; if not, the scores are zeros. Where scores are `telling`, see
/// [`Kernels::scores_tell_scales`] and what is beside it, it is only asked if they say no: the rows are read once, not twice.
pub(crate) fn score_checked(
    telling: bool,
    queries: &[&[f32]],
    scores: &mut [f32],
    check: impl Fn() -> Result<(), Error>,
    score: impl FnOnce(&mut [f32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let telling = telling && !queries.is_empty();
    let mut checked = if telling { Ok(()) } else { check() };
    if checked.is_ok() {
        score(scores)?;
        // A scale is in every query's score. No branch a score: compilers turn it into vectors. One more than an exponent of all
        // ones, and than no other, has the highest bit set.
        let more = |score: &f32| (score.to_bits() & 0x7fff_ffff) + 0x0080_0000;
        let first = &scores[..if telling { scores.len() / queries.len() } else { 0 }];
        if first.iter().fold(0, |all, score| all | more(score)) >> 31 != 0 {
            checked = check();
        }
    }
    if checked.is_err() {
        scores.fill(0.0);
    }
    checked
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
    acc: &[f32],
    dim: usize,
) -> Result<usize, Error> {
    let count = count_blocks(blocks, block_bytes)?;
    let outputs = count_rows(acc, dim)?;
    Error::expect_length("weights", outputs.saturating_mul(count), weights.len())?;
    if weights.iter().fold(true, |fits, w| fits & (w.abs() <= MAX_WEIGHT)) {
        return Ok(count);
    }
    match weights.iter().position(|w| !w.is_finite()) {
        Some(index) => Err(Error::NonFinite { index }),
        None => Err(Error::Weight { index: weights.iter().position(|w| w.abs() > MAX_WEIGHT).unwrap_or(0) }),
    }
}

/// Checks the lengths of a `score` call; `Ok` gives the number of blocks.
pub(crate) fn check_score(
    queries: &[&[f32]],
    blocks: &[u8],
    block_bytes: usize,
    scores: &[f32],
) -> Result<usize, Error> {
    let count = count_blocks(blocks, block_bytes)?;
    Error::expect_length("scores", queries.len().saturating_mul(count), scores.len())?;
    Ok(count)
}

/// Checks the lengths of a vector and its block.
pub(crate) fn check_block(dim: usize, x: &[f32], block_bytes: usize, block: &[u8]) -> Result<(), Error> {
    Error::expect_length("values of a row", dim, x.len())?;
    Error::expect_length("bytes of a block", block_bytes, block.len())
}

/// The number of rows of `dim` values.
pub(crate) fn count_rows(values: &[f32], dim: usize) -> Result<usize, Error> {
    if !values.len().is_multiple_of(dim) {
        let what = "values of rows, a multiple of";
        return Err(Error::Length { what, expected: dim, actual: values.len() });
    }
    Ok(values.len() / dim)
}
