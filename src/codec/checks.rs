//! Checks that codecs share, and the bounds that they check.

use crate::Error;
use crate::backend::Kernels;
use half::f16;
use octaplex_arch::MAX_WEIGHT;

/// The largest block of any codec: f32 values at the widest width.
pub(crate) const MAX_BLOCK_BYTES: usize = 4 * octaplex_arch::MAX_DIM;

/// The bound of queries and of stored bf16 and f32 values, 2⁵⁸. A sum of products of two such
/// values, over any width, stays within f32's range.
pub(crate) const MAX_VALUE: f32 = 288_230_376_151_711_744.0;

/// Norms below this, 2⁻³⁰, are stored as zero. No gain exceeds 20, and half of the smallest f16 is
/// 2⁻²⁵, so they would round to zero anyway.
pub(crate) const SMALLEST_NORM: f32 = f32::from_bits((127 - 30) << 23);

/// A norm below which no codec refuses a vector.
///
/// An f16 holds up to 65504, and no gain exceeds 20. The worst case is three levels at 576 values:
/// a vector that the rotation maps to one coordinate is coded as 1.22/24 of its norm.
pub(crate) const SURE_NORM: f32 = 1024.0;

/// Returns whether the norm of `x` is below [`SURE_NORM`], which proves cheaply that no codec
/// refuses it.
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

/// Checks that every value is finite and below `limit` in magnitude.
pub(crate) fn check_values(x: &[f32], limit: f32) -> Result<(), Error> {
    // No branch for each value, so that the compiler vectorises the loop.
    if x.iter().fold(true, |fits, x| fits & (x.abs() < limit)) {
        return Ok(());
    }
    match x.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(Error::NonFinite { index }),
        None => Err(Error::Overflow),
    }
}

/// Does the same with a backend, which takes a fraction of the time: no value exceeds the norm.
pub(crate) fn check_values_by(backend: Kernels, x: &[f32], limit: f32) -> Result<(), Error> {
    if backend.dot(x, x) < limit * limit { Ok(()) } else { check_values(x, limit) }
}

/// Returns ‖x‖. An error if a value is not finite, or if the sum of squares overflows f32.
pub(crate) fn norm(backend: Kernels, x: &[f32]) -> Result<f32, Error> {
    let energy = backend.dot(x, x);
    if energy.is_finite() {
        return Ok(backend.sqrt(energy));
    }
    check_values(x, f32::MAX)?;
    Err(Error::Overflow)
}

/// Rounds to f16, to nearest even. [`Error::Overflow`] if the result is not finite.
pub(crate) fn to_f16(x: f32) -> Result<f16, Error> {
    let rounded = f16::from_f32(x);
    if rounded.is_finite() { Ok(rounded) } else { Err(Error::Overflow) }
}

/// Reads the f16 at the front of `bytes`.
pub(crate) fn read_f16(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// Converts an index within one row to an index over all rows.
pub(crate) fn at_row(error: Error, row: usize, dim: usize) -> Error {
    match error {
        Error::NonFinite { index } => Error::NonFinite { index: row * dim + index },
        other => other,
    }
}

/// Returns (blocks, bytes) of up to `tokens` blocks at the front of `bytes`.
pub(crate) fn first_blocks(bytes: &[u8], block_bytes: usize, tokens: usize) -> Result<(usize, usize), Error> {
    let tokens = count_blocks(bytes, block_bytes)?.min(tokens);
    Ok((tokens, tokens * block_bytes))
}

/// Sets the block number of a corrupt block.
pub(crate) fn in_block(error: Error, row: usize) -> Error {
    match error {
        Error::Corrupt { .. } => Error::Corrupt { block: row },
        other => other,
    }
}

/// Adds the blocks of `page` pages, of `tokens` tokens each, to the block number of an error.
pub(crate) fn in_page(error: Error, page: usize, tokens: usize) -> Error {
    match error {
        Error::Corrupt { block } => Error::Corrupt { block: page * tokens + block },
        other => other,
    }
}

/// Returns the number of blocks in a page. An error unless they are whole.
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

/// Checks that the first `scales` f16 of every block are finite. An exponent of all ones means
/// infinity or NaN.
pub(crate) fn check_scales(blocks: &[u8], block_bytes: usize, scales: usize) -> Result<(), Error> {
    let is_finite = |block: &[u8]| {
        let scales = block.as_chunks::<2>().0.get(..scales).unwrap_or_default();
        scales.iter().all(|b| b[1] & 0x7c != 0x7c)
    };
    // A single block needs no division by its length.
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

/// Returns whether the first f16 of every block is finite.
///
/// This runs before sums and many scores, so it must be fast. It has no branch for each block, and
/// takes four blocks at a time: half the time of one by one on Sapphire Rapids. The four are
/// neighbours, so that memory is read in order. Four that are a quarter of all blocks apart take
/// 1.3 to 1.5 times as long on Zen 4, for sums over 4,096 rows from memory.
///
/// ```text
/// upper byte of an f16    s eeeee mm
/// & 0x7c                  0 eeeee 00
/// + 0x04                  carries into bit 7 exactly if eeeee is all ones
/// ```
fn first_are_finite(blocks: &[u8], block_bytes: usize) -> bool {
    let block_bytes = block_bytes.max(1);
    // The addition sets the highest bit exactly if the exponent is all ones.
    let more =
        |blocks: &[u8], n: usize| blocks.get(n * block_bytes + 1).map_or(0x80, |byte| (byte & 0x7c) + 4);
    if cfg!(target_os = "none") {
        // `chunks_exact` by four blocks would link a panic into programs without an operating
        // system.
        return blocks.chunks_exact(block_bytes).fold(0, |all, block| all | more(block, 0)) & 0x80 == 0;
    }
    let fours = blocks.chunks_exact(4 * block_bytes);
    let rest = fours.remainder().chunks_exact(block_bytes);
    let all =
        fours.fold(0, |all, four| all | (more(four, 0) | more(four, 1)) | (more(four, 2) | more(four, 3)));
    rest.fold(all, |all, block| all | more(block, 0)) & 0x80 == 0
}

/// Scores rows after checking that their scales are finite. If they are not, all scores become
/// zeros.
///
/// If scores are `telling`, no finite score can come from a row whose scale is not finite (see
/// [`Kernels::scores_tell_scales`]). Then the rows are scored first, and checked only if a score is
/// not finite. So the rows are read once instead of twice.
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
        // Every query's score contains the scale, so looking at one query is enough. No branch for
        // each score, so that the compiler vectorises the loop. The addition sets the highest bit
        // exactly if the exponent is all ones.
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

/// Checks that the f16 at these offsets of every block are finite.
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

/// Checks lengths and weights of an `accumulate` call. Returns the number of blocks.
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

/// Checks lengths of a `score` call. Returns the number of blocks.
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

/// Returns the number of rows of `dim` values. An error unless they are whole.
pub(crate) fn count_rows(values: &[f32], dim: usize) -> Result<usize, Error> {
    if !values.len().is_multiple_of(dim) {
        let what = "values of rows, a multiple of";
        return Err(Error::Length { what, expected: dim, actual: values.len() });
    }
    Ok(values.len() / dim)
}
