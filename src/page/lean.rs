//! Lean pages: rows of planes without gaps, all norms together in 6 bits each, the centre in the
//! codec's own basis.
//!
//! A graded page is a lean page of two halves. Each half has half of the channels and its own
//! codec, the first a finer one. [`Balance`](super::Balance) sorts the channels beforehand. Kernels
//! do not know about halves: they are called twice, with half the width.
//!
//! ```text
//! lean      rows    │ token 0 │ token 1 │ …                        all channels
//! graded    rows    │ fine: token 0 │ fine: token 1 │ … │ coarse: token 0 │ coarse: token 1 │ …
//! ```

use super::{PageFormat, Part, PartMut, Queries, Shape, balance, norms};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::planes::{LEAD, Pages, PlanePages, PlaneRows, Planes};
use crate::codec::query::{QUERY_BATCH, each_batch};
use crate::codec::scratch::{MAX_SCRATCH, bytes_of, with_scratch, words_for};
use crate::codec::{Codec, check_values, in_page};
use core::ops::Range;
use heapless::Vec;
use octaplex_arch::{MAX_DIM, MAX_PAGES};

/// The number of rows whose channels are gathered before they are encoded. It is the batch size of
/// the encoders.
const SIDE_BY_SIDE: usize = 16;

// The weights of a call fit into memory.
const _: () = assert!(MAX_PAGES * super::MAX_TOKENS <= MAX_SCRATCH);

/// The page format for codecs with planes, with one or two halves of the channels.
pub(crate) struct Lean<'a> {
    backend: Kernels,
    shape: Shape,
    halves: [Option<Half<'a>>; 2],
}

/// One half of the channels (or all of them): its codec, and where its bytes lie.
struct Half<'a> {
    /// The codec of this half.
    planes: &'a dyn Planes,
    /// Its channels in a row.
    channels: Range<usize>,
    /// Its words in a prepared query.
    words: Range<usize>,
    /// Bytes of one row.
    row: usize,
    /// Its bytes in [`PartMut::rows`]. In [`Part::rows`] they lie [`LEAD`] bytes further on.
    rows: Range<usize>,
    /// Its bytes in the norms.
    norms: Range<usize>,
    /// 0 or 1.
    number: usize,
}

impl<'a> Lean<'a> {
    /// Returns the lean format of a codec, or `None` if the shape has blocks.
    pub(super) fn new(codec: &'a dyn Codec, shape: &Shape, backend: Kernels) -> Option<Self> {
        let [first, second] = match codec.pages() {
            _ if !shape.is_lean() => return None,
            Pages::Blocks => return None,
            Pages::Lean(planes) => [planes, planes],
            Pages::Graded(halves) => halves,
        };
        let mut words = 0;
        let mut start = 0;
        let mut half = |number: usize, planes: &'a dyn Planes| {
            let (dim, row, len) = (planes.dim(), shape.planes()[number], planes.query_len());
            (words, start) = (words + len, start + row * shape.tokens);
            Half {
                planes,
                channels: number * dim..(number + 1) * dim,
                words: words - len..words,
                row,
                rows: start - row * shape.tokens..start,
                norms: shape.of_half(shape.norms, number),
                number,
            }
        };
        let first = half(0, first);
        let second = (shape.halves() > 1).then(|| half(1, second));
        Some(Self { backend, shape: *shape, halves: [Some(first), second] })
    }

    /// The halves that exist, one or two.
    fn halves(&self) -> impl Iterator<Item = &Half<'a>> {
        self.halves.iter().flatten()
    }

    /// Returns the bytes of a half's centre within `bytes` bytes for the whole page.
    fn centre(&self, half: &Half, bytes: usize) -> Range<usize> {
        self.shape.of_half(bytes, half.number)
    }

    /// Returns whether a centre of `bytes` bytes is coded in the bases of the halves. Otherwise it
    /// is in f16.
    fn is_coded(&self, bytes: usize) -> bool {
        bytes != 2 * self.shape.dim
    }

    /// Returns the queries that fit into memory for the scores of the second half.
    fn batch(&self, count: usize) -> usize {
        (MAX_SCRATCH / self.shape.tokens.max(1) - 1).min(count)
    }

    /// Returns the pages that are scored together: as many as fit into memory.
    fn together(&self, count: usize) -> usize {
        let each = self.shape.tokens * if self.shape.halves() > 1 { 1 + count } else { 1 };
        (MAX_SCRATCH / each.max(1)).clamp(1, MAX_PAGES)
    }

    /// Scores some pages. With two halves, a score is the sum of the products of both.
    ///
    /// `memory` has a value for each token, and if there are two halves also for each score. If it
    /// has less, for a single page, it has values for the scores of a [`batch`](Self::batch).
    fn score_pages(
        &self,
        queries: &[Option<[&[f32]; QUERY_BATCH]>; 2],
        count: usize,
        parts: &[Part],
        scores: &mut [f32],
        memory: &mut [f32],
    ) -> Result<(), Error> {
        let (norms, more) = memory.split_at_mut(parts.len() * self.shape.tokens);
        for (half, queries) in self.halves().zip(queries.iter().flatten()) {
            let queries = &queries[..count];
            let pages = half.pages(self.backend, parts, norms)?;
            if half.number == 0 {
                half.planes.score_planes(queries, &pages, scores)?;
                continue;
            }
            let batch = if parts.len() > 1 { count } else { self.batch(count) };
            let mut scored = Ok(());
            each_batch(batch.max(1), queries, scores, |queries, scores| {
                let more = &mut more[..scores.len()];
                scored = scored.and_then(|()| half.planes.score_planes(queries, &pages, more));
                self.backend.add(more, scores);
            });
            scored?;
        }
        Ok(())
    }
}

impl Half<'_> {
    /// Decodes the norms of a page.
    fn read_norms(&self, backend: Kernels, part: &Part, norms: &mut [f32]) -> Result<(), Error> {
        norms::decode(backend, &part.norms[self.norms.clone()], norms)
    }

    /// Returns the rows of a page, whose norms are decoded.
    fn read<'r>(&self, part: &Part<'r>, norms: &'r [f32]) -> PlaneRows<'r> {
        let rows = self.rows.start..self.rows.end + LEAD;
        let ahead = part.ahead.get(rows.clone()).unwrap_or_default();
        PlaneRows::new(&part.rows[rows], self.row, self.channels.len(), norms, ahead)
    }

    /// Returns the rows of pages, and decodes their norms into `norms`.
    fn pages<'r>(
        &self,
        backend: Kernels,
        parts: &[Part<'r>],
        norms: &'r mut [f32],
    ) -> Result<PlanePages<'r>, Error> {
        let tokens = norms.len() / parts.len().max(1);
        for (page, (part, norms)) in parts.iter().zip(norms.chunks_exact_mut(tokens.max(1))).enumerate() {
            self.read_norms(backend, part, norms).map_err(|error| in_page(error, page, tokens))?;
        }
        let mut pages = PlanePages::default();
        for (part, norms) in parts.iter().zip(norms.chunks_exact(tokens.max(1))) {
            pages.push(self.read(part, norms));
        }
        Ok(pages)
    }

    /// Selects the words of this half from prepared queries.
    fn queries<'q>(&self, prepared: &[&'q [f32]]) -> [&'q [f32]; QUERY_BATCH] {
        let mut queries: [&[f32]; QUERY_BATCH] = [&[]; QUERY_BATCH];
        queries.iter_mut().zip(prepared).for_each(|(slot, words)| *slot = &words[self.words.clone()]);
        queries
    }

    /// Encodes this half's channels of rows with `dim` values each.
    ///
    /// If there are two halves, the channels of a batch of rows are first gathered side by side.
    fn encode(&self, rows: &[f32], dim: usize, planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error> {
        let width = self.channels.len();
        if width == dim {
            return self.planes.encode_planes(rows, planes, norms);
        }
        with_scratch(SIDE_BY_SIDE * width, |memory| {
            let batches = rows.chunks(SIDE_BY_SIDE * dim).zip(planes.chunks_mut(SIDE_BY_SIDE * self.row));
            for ((rows, planes), norms) in batches.zip(norms.chunks_mut(SIDE_BY_SIDE)) {
                let side = &mut memory[..rows.len() / dim * width];
                for (side, row) in side.chunks_exact_mut(width).zip(rows.chunks_exact(dim)) {
                    side.copy_from_slice(&row[self.channels.clone()]);
                }
                self.planes.encode_planes(side, planes, norms)?;
            }
            Ok(())
        })
    }
}

impl PageFormat for Lean<'_> {
    fn take_centre(&self, rows: &mut [f32], bytes: &mut [u8]) -> Result<(), Error> {
        let (dim, len) = (self.shape.dim, bytes.len());
        if !self.is_coded(len) {
            return balance::take_mean(self.backend, rows, dim, bytes);
        }
        let mut centre = [0.0; MAX_DIM];
        let centre = &mut centre[..dim];
        balance::mean(rows, centre);
        for half in self.halves() {
            if let Some(code) = half.planes.centre() {
                code.encode(&mut centre[half.channels.clone()], &mut bytes[self.centre(half, len)])?;
            }
        }
        balance::subtract(rows, centre);
        Ok(())
    }

    fn read_centre(&self, bytes: &[u8], centre: &mut [f32]) -> Result<(), Error> {
        if !self.is_coded(bytes.len()) {
            balance::read_floats(self.backend, bytes, centre);
            return Ok(());
        }
        for half in self.halves() {
            if let Some(code) = half.planes.centre() {
                code.decode(&bytes[self.centre(half, bytes.len())], &mut centre[half.channels.clone()])?;
            }
        }
        Ok(())
    }

    fn encode(&self, rows: &[f32], part: &mut PartMut) -> Result<usize, Error> {
        for half in self.halves() {
            with_scratch(self.shape.tokens, |norms| {
                let planes = &mut part.rows[half.rows.clone()];
                half.encode(rows, self.shape.dim, planes, norms)?;
                // Anybody can implement `Planes`, so its norms are not trusted.
                check_values(norms, f32::INFINITY)?;
                norms::encode(self.backend, norms, &mut part.norms[half.norms.clone()])
            })?;
        }
        Ok(self.shape.rows)
    }

    fn decode(&self, part: &Part, tokens: Range<usize>, x: &mut [f32]) -> Result<(), Error> {
        let dim = self.shape.dim;
        for half in self.halves() {
            with_scratch(self.shape.tokens, |norms| {
                half.read_norms(self.backend, part, norms)?;
                let rows = half.read(part, norms);
                for (token, x) in tokens.clone().zip(x.chunks_exact_mut(dim)) {
                    half.planes.decode_planes(&rows, token, &mut x[half.channels.clone()])?;
                }
                Ok(())
            })?;
        }
        if !part.centre.is_empty() {
            let mut centre = [0.0; MAX_DIM];
            let centre = &mut centre[..dim];
            self.read_centre(part.centre, centre)?;
            balance::add(x, centre);
        }
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
        let (each, tokens) = (offsets.len() / count.max(1), self.shape.tokens);
        let of_half =
            [0, 1].map(|number| self.halves[number].as_ref().map(|half| half.queries(queries.prepared)));
        // Coded centres are copied together, so that one call for each half scores them all:
        //
        //  centres   │ fine, page 0 │ coarse, page 0 │ fine, page 1 │ coarse, page 1 │ …      `len` bytes a page
        //                           └──── `own`: where the coarse half lies in a page
        //                           └──────────────────────────────────────────► `last`: its end in the last page
        let most = each * self.shape.centre_bytes()[0];
        with_scratch(words_for(most) + offsets.len(), |memory| {
            let (found, memory) = memory.split_at_mut(offsets.len());
            let centres = bytes_of(memory, most);
            let (mut len, mut end) = (0, 0);
            let together = self.together(count).min(each);
            let more = match (self.shape.halves(), together) {
                (1, _) => 0,
                (_, 1) => self.batch(count),
                _ => together * count,
            };
            with_scratch(tokens * (together + more), |memory| {
                let mut page = 0;
                for scores in scores.chunks_mut((together * count * tokens).max(1)) {
                    let mut some = Vec::<Part, MAX_PAGES>::new();
                    for part in (&mut *parts).take(scores.len() / (count * tokens)) {
                        let _ = some.push(part);
                    }
                    if some.is_empty() {
                        break;
                    }
                    let scores = &mut scores[..some.len() * count * tokens];
                    let scored = self.score_pages(&of_half, count, &some, scores, memory);
                    scored.map_err(|error| in_page(error, page, tokens))?;
                    for part in some {
                        len = part.centre.len();
                        if self.is_coded(len) {
                            centres[end..end + len].copy_from_slice(part.centre);
                            end += len;
                        } else {
                            queries.score_centre(self.backend, self.shape.dim, page, part.centre, offsets);
                        }
                        page += 1;
                    }
                }
                Ok(())
            })?;
            if end == 0 {
                return Ok(());
            }
            for (half, queries) in self.halves().zip(of_half.iter().flatten()) {
                let Some(code) = half.planes.centre() else { continue };
                let own = self.centre(half, len);
                // `offsets` has `each` pages, even if `parts` ends earlier. So their centres count too.
                let last = each * len - len + own.end;
                code.score(&queries[..count], &centres[own.start..last], len, found)?;
                offsets.iter_mut().zip(&*found).for_each(|(offset, found)| *offset += *found);
            }
            Ok(())
        })
    }

    fn accumulate(&self, weights: &[f32], parts: &[Part], acc: &mut [f32]) -> Result<(), Error> {
        let [Some(half), None] = &self.halves else {
            return Err(Error::Unsupported { why: "values have no halves of channels" });
        };
        with_scratch(parts.len() * self.shape.tokens, |norms| {
            half.planes.accumulate_planes(weights, &half.pages(self.backend, parts, norms)?, acc)
        })
    }
}
