//! Outliers: chunks of four values that a page keeps in f16.
//!
//! ```text
//! page    block of token 0 │ block of token 1 │ … │ list of outliers, 8 bytes each
//!         codes │ flags      codes │ flags            f16 f16 f16 f16
//!                 ─────
//!                 one bit for each chunk of four values: 1 = the chunk is in the list
//! ```
//!
//! A chunk is an outlier if its norm is above C times the lower median of all chunk norms of the
//! page. If that median is 0, there are no outliers. At most half of all chunks lie above their
//! median, so the list holds at most half of them: it cannot overflow, and nothing is clipped. A
//! flagged chunk decodes to its four f16 plus the values in its block, which encoders set to zero.

use super::{Codec, Error, MAX_BLOCK_BYTES, at_row, count_rows, to_f16};
use octaplex_arch::f16_to_f32;

/// The error for decoding a block with flags on its own.
pub(crate) const LONE_BLOCK: &str = "a block's outliers are behind its page; decode the whole page";

/// Bytes of an outlier in the list.
const BYTES: usize = 8;

/// The size of a codec's blocks, and where their flags lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outliers {
    pub(crate) block_bytes: usize,
    /// The offset of the flags in a block. They end with the block.
    pub(crate) flags_at: usize,
    /// Chunks in a block.
    pub(crate) chunks: usize,
}

/// Returns the largest number of bytes that the outliers of a page take.
pub(crate) const fn bytes_max(chunks: usize, tokens: usize) -> usize {
    (tokens.saturating_mul(chunks) / 2).saturating_mul(BYTES)
}

/// A page, split into blocks and the list.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    outliers: Outliers,
    pub(crate) blocks: &'a [u8],
    list: &'a [u8],
}

impl Outliers {
    /// Returns the largest number of bytes of a page.
    pub(crate) fn page_bytes_max(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.block_bytes).saturating_add(bytes_max(self.chunks, tokens))
    }

    /// Returns the number of outliers of a block.
    fn count(&self, block: &[u8]) -> usize {
        block[self.flags_at..].iter().map(|flags| flags.count_ones() as usize).sum()
    }

    /// Returns the bytes of a page with these blocks.
    pub(crate) fn page_bytes(&self, blocks: &[u8]) -> usize {
        blocks.len()
            + blocks.chunks_exact(self.block_bytes).map(|block| self.count(block)).sum::<usize>() * BYTES
    }

    /// Implements [`Codec::first_page`](super::Codec::first_page).
    pub(crate) fn first_page(&self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
        let mut taken = (0, 0);
        while taken.0 < tokens && taken.1 < bytes.len() {
            let block = bytes[taken.0 * self.block_bytes..].get(..self.block_bytes);
            let end = taken.1 + self.block_bytes + block.map_or(0, |block| self.count(block) * BYTES);
            if block.is_none() || end > bytes.len() {
                let what = "bytes of pages, at least";
                return Err(Error::Length { what, expected: end, actual: bytes.len() });
            }
            taken = (taken.0 + 1, end);
        }
        Ok(taken)
    }

    /// Splits a page of `tokens` vectors.
    ///
    /// # Errors
    /// [`Error::Length`] unless the page is as long as its flags announce; [`Error::Corrupt`] for
    /// flags of chunks that do not exist, and for outliers that are not finite.
    pub(crate) fn split<'a>(&self, page: &'a [u8], tokens: usize) -> Result<Page<'a>, Error> {
        let what = "bytes of a page";
        let Some((blocks, list)) = page.split_at_checked(tokens.saturating_mul(self.block_bytes)) else {
            let expected = tokens.saturating_mul(self.block_bytes);
            return Err(Error::Length { what, expected, actual: page.len() });
        };
        Error::expect_length(what, self.page_bytes(blocks), page.len())?;
        let spare = match self.chunks % 8 {
            0 => 0,
            used => 0xff << used,
        };
        let is_beyond = |block: &[u8]| block.last().is_some_and(|flags| flags & spare != 0);
        if let Some(block) = blocks.chunks_exact(self.block_bytes).position(is_beyond) {
            return Err(Error::Corrupt { block });
        }
        let page = Page { outliers: *self, blocks, list };
        if list.as_chunks::<2>().0.iter().fold(true, |finite, half| finite & (half[1] & 0x7c != 0x7c)) {
            return Ok(page);
        }
        let mut corrupt = None;
        page.for_each(|row, _, values| {
            if corrupt.is_none() && values.iter().any(|x| !x.is_finite()) {
                corrupt = Some(row);
            }
        });
        Err(Error::Corrupt { block: corrupt.unwrap_or(0) })
    }

    /// Splits the page of a call that has `results` results for `times` queries or outputs
    /// together.
    pub(crate) fn split_for<'a>(
        &self,
        page: &'a [u8],
        what: &'static str,
        results: usize,
        times: usize,
    ) -> Result<Page<'a>, Error> {
        if times == 0 || !results.is_multiple_of(times) {
            let expected = if times == 0 { 0 } else { results - results % times };
            Error::expect_length(what, expected, results)?;
            return Ok(Page { outliers: *self, blocks: &[], list: &[] });
        }
        self.split(page, results / times)
    }

    /// Implements [`Codec::encode_page`](super::Codec::encode_page). `multiplier` is the factor C.
    pub(crate) fn encode_page(
        &self,
        codec: &dyn Chunked,
        multiplier: u8,
        rows: &[f32],
        page: &mut [u8],
    ) -> Result<usize, Error> {
        let dim = codec.dim();
        let (tokens, xs) = (count_rows(rows, dim)?, || rows.chunks_exact(dim));
        Error::expect_length("bytes of a page", self.page_bytes_max(tokens), page.len())?;
        let mut largest = 0.0f32;
        for (row, x) in xs().enumerate() {
            let read = codec.with_chunks(x, &mut |_, norms| {
                largest = norms.iter().fold(largest, |largest, norm| largest.max(*norm));
                Ok(())
            });
            read.map_err(|error| at_row(error, row, dim))?;
        }
        let threshold = threshold(multiplier, tokens * self.chunks, |visit| {
            for x in xs() {
                let visited = codec.with_chunks(x, &mut |_, norms| {
                    norms.iter().for_each(|norm| visit(*norm));
                    Ok(())
                });
                debug_assert!(visited.is_ok(), "the same vector was read before");
            }
        });
        if largest >= SURELY_F16 {
            // Encode once without keeping the result, so that a vector that cannot be encoded
            // leaves the page as it was.
            let mut scratch = [0; MAX_BLOCK_BYTES];
            for x in xs() {
                self.encode_block(codec, x, threshold, &mut scratch[..self.block_bytes], |_| {})?;
            }
        }
        let (blocks, list) = page.split_at_mut(tokens * self.block_bytes);
        let mut list = list.as_chunks_mut().0.iter_mut();
        for (x, block) in xs().zip(blocks.chunks_exact_mut(self.block_bytes)) {
            self.encode_block(codec, x, threshold, block, |values| {
                if let Some(slot) = list.next() {
                    *slot = values;
                }
            })?;
        }
        Ok(self.page_bytes(blocks))
    }

    /// Encodes a block with its flags, and passes its outliers to `push`.
    fn encode_block(
        &self,
        codec: &dyn Chunked,
        x: &[f32],
        threshold: f32,
        block: &mut [u8],
        mut push: impl FnMut([u8; BYTES]),
    ) -> Result<(), Error> {
        codec.with_chunks(x, &mut |values, norms| {
            let flags = &mut block[self.flags_at..];
            flags.fill(0);
            for (c, (chunk, norm)) in values.as_chunks::<4>().0.iter().zip(norms.iter_mut()).enumerate() {
                if *norm > threshold {
                    *norm = 0.0;
                    flags[c / 8] |= 1 << (c % 8);
                    let mut bytes = [0; BYTES];
                    for (bytes, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(chunk) {
                        *bytes = to_f16(*value)?.to_le_bytes();
                    }
                    push(bytes);
                }
            }
            codec.write(values, norms, block)
        })
    }
}

/// If all norms are below this, every scale and every outlier fits an f16.
const SURELY_F16: f32 = 32768.0;

/// Returns C times the lower median of `count` norms. `visit` passes each norm to its argument.
///
/// The norms are finite and not negative. Without norms, or if the median is 0, the result is
/// infinite.
#[cfg(feature = "alloc")]
fn threshold(multiplier: u8, count: usize, visit: impl Fn(&mut dyn FnMut(f32))) -> f32 {
    let mut norms = alloc::vec::Vec::with_capacity(count);
    visit(&mut |norm| norms.push(norm.to_bits()));
    if norms.is_empty() {
        return f32::INFINITY;
    }
    // For floats that are not negative, the order of the bits is the order of the values.
    let middle = (norms.len() - 1) / 2;
    times_median(multiplier, f32::from_bits(*norms.select_nth_unstable(middle).1))
}

/// Finds the same median without a heap: a radix search, one byte of the result at a time, in four
/// visits.
#[cfg(not(feature = "alloc"))]
fn threshold(multiplier: u8, count: usize, visit: impl Fn(&mut dyn FnMut(f32))) -> f32 {
    let (mut rank, mut prefix) = (count.saturating_sub(1) / 2, 0u32);
    for shift in [24, 16, 8, 0] {
        let mut histogram = [0usize; 256];
        visit(&mut |norm| {
            let bits = norm.to_bits();
            if u64::from(bits ^ prefix) >> (shift + 8) == 0 {
                histogram[(bits >> shift) as usize & 0xff] += 1;
            }
        });
        let mut digit = 0;
        while digit < 255 && histogram[digit] <= rank {
            rank -= histogram[digit];
            digit += 1;
        }
        prefix |= (digit as u32) << shift;
    }
    if count == 0 { f32::INFINITY } else { times_median(multiplier, f32::from_bits(prefix)) }
}

/// Returns the threshold for a median.
fn times_median(multiplier: u8, median: f32) -> f32 {
    if median == 0.0 { f32::INFINITY } else { median * f32::from(multiplier) }
}

/// A function of a vector's values in the codec's basis and the norms of its chunks.
pub(crate) type WithChunks<'a> = &'a mut dyn FnMut(&[f32], &mut [f32]) -> Result<(), Error>;

/// The operations of a codec that keeps outliers.
pub(crate) trait Chunked: Codec {
    /// Calls `f` with the vector in the codec's basis, padded to whole chunks, and the norms of the
    /// chunks.
    ///
    /// # Errors
    /// [`Error::NonFinite`] and [`Error::Overflow`] if a norm is not finite; errors of `f`.
    fn with_chunks(&self, x: &[f32], f: WithChunks<'_>) -> Result<(), Error>;

    /// Writes a block without its flags. Chunks with a norm of 0 are encoded as zeros.
    fn write(&self, values: &[f32], norms: &[f32], block: &mut [u8]) -> Result<(), Error>;
}

impl Page<'_> {
    /// Calls `f` with the row, the chunk and the values of each outlier, in order.
    pub(crate) fn for_each(&self, mut f: impl FnMut(usize, usize, [f32; 4])) {
        self.for_each_exactly(|row, chunk, halves| f(row, chunk, halves.map(f16_to_f32)));
    }

    /// Calls `f` with the row, the chunk and the f16 bits of each outlier, in order.
    pub(crate) fn for_each_exactly(&self, mut f: impl FnMut(usize, usize, [u16; 4])) {
        let mut list = self.list.as_chunks::<BYTES>().0.iter();
        for (row, block) in self.blocks.chunks_exact(self.outliers.block_bytes).enumerate() {
            for (byte, &flags) in block[self.outliers.flags_at..].iter().enumerate() {
                let mut flags = flags;
                while flags != 0 {
                    let chunk = 8 * byte + flags.trailing_zeros() as usize;
                    if let Some(bytes) = list.next() {
                        let half = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
                        f(row, chunk, [half(0), half(1), half(2), half(3)]);
                    }
                    flags &= flags - 1;
                }
            }
        }
    }

    /// Adds the outliers to decoded rows.
    pub(crate) fn add_to(&self, dim: usize, xs: &mut [f32]) {
        self.for_each(|row, chunk, values| {
            xs[row * dim..][..dim][4 * chunk..].iter_mut().zip(values).for_each(|(x, value)| *x += value);
        });
    }

    /// Adds query · outlier to the scores, outliers in order. Each product sums as ((w+x)+(y+z)).
    ///
    /// Queries have the page's width, and count as padded with zeros.
    pub(crate) fn add_scores(&self, queries: &[&[f32]], scores: &mut [f32]) {
        let rows = self.blocks.len() / self.outliers.block_bytes;
        self.for_each(|row, chunk, [w, x, y, z]| {
            for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(rows)) {
                let q = match query[4 * chunk..].first_chunk::<4>() {
                    Some(q) => *q,
                    // The last chunk of a width that four does not divide.
                    None => core::array::from_fn(|i| query.get(4 * chunk + i).copied().unwrap_or(0.0)),
                };
                scores[row] += (q[0] * w + q[1] * x) + (q[2] * y + q[3] * z);
            }
        });
    }

    /// Adds weight · outlier to the sums, outliers in order.
    pub(crate) fn accumulate(&self, weights: &[f32], dim: usize, acc: &mut [f32]) {
        let rows = self.blocks.len() / self.outliers.block_bytes;
        self.for_each(|row, chunk, values| {
            for (weights, acc) in weights.chunks_exact(rows).zip(acc.chunks_exact_mut(dim)) {
                for (acc, value) in acc[4 * chunk..].iter_mut().zip(values) {
                    *acc += weights[row] * value;
                }
            }
        });
    }
}
