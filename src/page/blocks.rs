//! Pages of blocks: the format that fits every codec.

use super::{MAX_TOKENS, PageFormat, Part, PartMut, Queries, Shape, balance};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::query::QUERY_BATCH;
use crate::codec::{Codec, in_block, in_page};
use core::ops::Range;
use octaplex_arch::Float;

/// The number of bytes of the next page to prefetch. The CPU's own prefetcher finds the rest: all lines of a
/// page of f16 at once would wait for one another, which took 1.2 times as long.
const FIRST: usize = 2048;

/// Consecutive blocks, with the centre in f16.
pub(crate) struct Blocks<'a> {
    backend: Kernels,
    codec: &'a dyn Codec,
    /// Tokens in a page.
    tokens: usize,
    /// Bytes of a block.
    block: usize,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(codec: &'a dyn Codec, shape: &Shape, backend: Kernels) -> Self {
        Self { backend, codec, tokens: shape.tokens, block: shape.block() }
    }

    /// Decodes rows without adding the centre.
    ///
    /// If blocks are all there is, it decodes just the blocks of `tokens`. If the page has a list
    /// of outliers, blocks cannot be decoded alone: it then decodes the whole page, or a single
    /// token. A single token is a weighted sum in which one weight is 1 and the others are 0.
    fn rows(&self, bytes: &[u8], tokens: Range<usize>, x: &mut [f32]) -> Result<(), Error> {
        let (codec, count) = (self.codec, self.tokens);
        if bytes.len() == count * self.block {
            let blocks = bytes.chunks_exact(self.block).enumerate().skip(tokens.start);
            return blocks.zip(x.chunks_exact_mut(codec.dim())).try_for_each(|((token, block), x)| {
                codec.decode(block, x).map_err(|error| in_block(error, token))
            });
        }
        if tokens == (0..count) {
            return codec.decode_page(bytes, x);
        }
        let mut weights = [0.0; MAX_TOKENS];
        weights[tokens.start] = 1.0;
        x.fill(0.0);
        codec.accumulate(&weights[..count], bytes, x)?;
        codec.finish(x);
        Ok(())
    }
}

impl PageFormat for Blocks<'_> {
    fn take_centre(&self, rows: &mut [f32], centre: &mut [u8]) -> Result<(), Error> {
        balance::take_mean(self.backend, rows, self.codec.dim(), centre)
    }

    fn read_centre(&self, bytes: &[u8], centre: &mut [f32]) -> Result<(), Error> {
        balance::read_floats(self.backend, bytes, centre);
        Ok(())
    }

    fn encode(&self, rows: &[f32], part: &mut PartMut) -> Result<usize, Error> {
        self.codec.encode_page(rows, part.rows)
    }

    fn decode(&self, part: &Part, tokens: Range<usize>, x: &mut [f32]) -> Result<(), Error> {
        self.rows(part.rows, tokens, x)?;
        balance::add_floats(self.backend, x, self.codec.dim(), part.centre);
        Ok(())
    }

    fn score(
        &self,
        queries: &Queries,
        parts: &mut dyn Iterator<Item = Part>,
        scores: &mut [f32],
        offsets: &mut [f32],
    ) -> Result<(), Error> {
        let count = queries.prepared.len();
        for (page, (part, scores)) in parts.zip(scores.chunks_exact_mut(count * self.tokens)).enumerate() {
            self.backend.prefetch(&part.ahead[..part.ahead.len().min(FIRST)]);
            let scored = self.codec.score(queries.prepared, part.rows, scores);
            scored.map_err(|error| in_page(error, page, self.tokens))?;
            queries.score_centre(self.backend, self.codec.dim(), page, part.centre, offsets);
        }
        Ok(())
    }

    fn accumulate(&self, weights: &[f32], parts: &[Part], acc: &mut [f32]) -> Result<(), Error> {
        let each = (acc.len() / self.codec.dim() * self.tokens).max(1);
        for (page, (part, weights)) in parts.iter().zip(weights.chunks_exact(each)).enumerate() {
            self.backend.prefetch(&part.ahead[..part.ahead.len().min(FIRST)]);
            let added = self.codec.accumulate(weights, part.rows, acc);
            added.map_err(|error| in_page(error, page, self.tokens))?;
        }
        Ok(())
    }
}

/// Adds q·centre of each query to its offset. `centre` is in f16, or empty.
///
/// All keys of a page share the centre, so this product is computed once a page instead of once a
/// token.
pub(crate) fn score_floats<'a>(
    backend: Kernels,
    queries: &[f32],
    dim: usize,
    centre: &[u8],
    offsets: impl Iterator<Item = &'a mut f32>,
) {
    if centre.is_empty() {
        return;
    }
    let (mut rows, mut products): ([&[f32]; QUERY_BATCH], _) = ([&[]; QUERY_BATCH], [0.0; QUERY_BATCH]);
    let count = queries.len() / dim;
    rows.iter_mut().zip(queries.chunks_exact(dim)).for_each(|(row, query)| *row = query);
    backend.score_floats(Float::F16, dim, centre, &rows[..count], &mut products[..count]);
    offsets.zip(&products[..count]).for_each(|(offset, product)| *offset += product);
}
