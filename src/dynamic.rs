//! Conveniences of `dyn Codec` for programs with a heap: any number of rows, results in vectors.

use crate::Error;
use crate::codec::{Codec, at_row, count_rows};
use crate::page::PAGE;
use alloc::vec::Vec;

/// Methods that take any number of rows, [`dim`](Codec::dim) values each, and return vectors.
///
/// ```
/// use octaplex::codecs::HeadId;
/// use octaplex::{Backend, CodecSpec};
/// let spec: CodecSpec = "int:bits=4,group=32".parse()?;
/// let codec = spec.build_dyn(96, Backend::detect(), HeadId::default())?;
/// let blocks = codec.encode_rows(&[0.5; 2 * 96])?;
/// assert_eq!(blocks.len(), 2 * codec.block_bytes());
/// let scores = codec.score_rows(&[1.0; 96], &blocks)?;
/// assert!(scores.iter().all(|score| (score - 48.0).abs() < 0.1)); // 96 · 1 · 0.5
/// # Ok::<(), octaplex::Error>(())
/// ```
impl dyn Codec + '_ {
    /// Encodes rows in pages of 64 ([`PAGE`](crate::codecs::PAGE)). With the feature `rayon` it uses all cores.
    ///
    /// For most codecs the result is one block after the other. Codecs that keep outliers (`med`)
    /// append a list to each page.
    ///
    /// # Errors
    /// As [`encode_page`](Codec::encode_page), and [`Error::Memory`].
    pub fn encode_rows(&self, rows: &[f32]) -> Result<Vec<u8>, Error> {
        let dim = self.dim();
        let count = count_rows(rows, dim)?;
        let page_bytes = self.page_bytes_max(PAGE);
        let mut blocks = zeros("blocks", count / PAGE * page_bytes + self.page_bytes_max(count % PAGE))?;
        let encode = |(page, (rows, blocks)): (usize, (&[f32], &mut [u8]))| {
            self.encode_page(rows, blocks).map_err(|error| at_row(error, page * PAGE, dim))
        };
        #[cfg(feature = "rayon")]
        let used: Vec<usize> = {
            use rayon::prelude::*;
            let pages = rows.par_chunks(PAGE * dim).zip(blocks.par_chunks_mut(page_bytes));
            let results: Vec<_> = pages.enumerate().map(encode).collect();
            results.into_iter().collect::<Result<_, Error>>()? // the error of the first page, not of the fastest thread
        };
        #[cfg(not(feature = "rayon"))]
        let used: Vec<usize> = {
            let pages = rows.chunks(PAGE * dim).zip(blocks.chunks_mut(page_bytes));
            pages.enumerate().map(encode).collect::<Result<_, Error>>()?
        };
        let mut end = 0;
        for (page, used) in used.into_iter().enumerate() {
            blocks.copy_within(page * page_bytes..page * page_bytes + used, end);
            end += used;
        }
        blocks.truncate(end);
        Ok(blocks)
    }

    /// Returns (rows, bytes) of the longest run of whole pages at the front of `blocks` with at
    /// most `rows` rows.
    ///
    /// Use it to cut what `encode_rows` returned: a page cannot be cut in the middle.
    ///
    /// # Errors
    /// [`Error::Length`] if the bytes end inside a page.
    pub fn split_rows(&self, blocks: &[u8], rows: usize) -> Result<(usize, usize), Error> {
        let mut taken = (0, 0);
        while taken.1 < blocks.len() {
            let page = self.first_page(&blocks[taken.1..], PAGE)?;
            if taken.0 + page.0 > rows {
                break;
            }
            taken = (taken.0 + page.0, taken.1 + page.1);
        }
        Ok(taken)
    }

    /// Decodes pages from `encode_rows` into rows.
    ///
    /// # Errors
    /// As [`decode`](Codec::decode), and [`Error::Memory`].
    pub fn decode_rows(&self, blocks: &[u8]) -> Result<Vec<f32>, Error> {
        let (dim, mut rows) = (self.dim(), Vec::new());
        for (start, page) in self.split_pages(blocks)? {
            let from = rows.len();
            let values = page.0.saturating_mul(dim);
            let bytes = rows.len().saturating_add(values).saturating_mul(size_of::<f32>());
            rows.try_reserve(values).map_err(|_| Error::Memory { what: "rows", bytes })?;
            rows.resize(from + values, 0.0);
            let decoded = self.decode_page(&blocks[start..][..page.1], &mut rows[from..]);
            decoded.map_err(|error| after(error, from / dim))?;
        }
        Ok(rows)
    }

    /// Scores every row of `queries` with every block, laid out \[query]\[block].
    ///
    /// # Errors
    /// As [`prepare_query`](Codec::prepare_query) and [`score`](Codec::score), and
    /// [`Error::Memory`].
    pub fn score_rows(&self, queries: &[f32], blocks: &[u8]) -> Result<Vec<f32>, Error> {
        let (dim, len) = (self.dim(), self.query_len());
        let rows = count_rows(queries, dim)?;
        let mut words = zeros("queries", rows.saturating_mul(len))?;
        for (row, (q, words)) in queries.chunks_exact(dim).zip(words.chunks_exact_mut(len)).enumerate() {
            self.prepare_query(q, words).map_err(|error| at_row(error, row, dim))?;
        }
        let queries: Vec<&[f32]> = words.chunks_exact(len).collect();
        let pages = self.split_pages(blocks)?;
        let count: usize = pages.iter().map(|(_, page)| page.0).sum();
        let mut scores = zeros("scores", rows.saturating_mul(count))?;
        if let [(_, (_, bytes))] = pages[..] {
            self.score(&queries, &blocks[..bytes], &mut scores)?;
            return Ok(scores);
        }
        let (mut from, mut part) = (0, Vec::new());
        for (start, (rows, bytes)) in pages {
            part.clear();
            part.resize(queries.len() * rows, 0.0);
            let scored = self.score(&queries, &blocks[start..][..bytes], &mut part);
            scored.map_err(|error| after(error, from))?;
            for (query, part) in part.chunks_exact(rows).enumerate() {
                scores[query * count + from..][..rows].copy_from_slice(part);
            }
            from += rows;
        }
        Ok(scores)
    }

    /// Returns Σ weight·v̂ over the blocks for every row of `weights`, in the basis of the vectors.
    /// Weights are laid out \[output]\[block].
    ///
    /// # Errors
    /// As [`accumulate`](Codec::accumulate), and [`Error::Memory`].
    pub fn attend_rows(&self, weights: &[f32], blocks: &[u8]) -> Result<Vec<f32>, Error> {
        let pages = self.split_pages(blocks)?;
        let count: usize = pages.iter().map(|(_, page)| page.0).sum();
        Error::expect_length(
            "weights, a multiple of the blocks",
            weights.len() / count.max(1) * count,
            weights.len(),
        )?;
        let mut outputs = zeros("outputs", (weights.len() / count.max(1)).saturating_mul(self.dim()))?;
        let (mut from, mut part) = (0, Vec::new());
        for (start, (rows, bytes)) in pages {
            part.clear();
            part.extend(weights.chunks_exact(count).flat_map(|weights| &weights[from..from + rows]));
            let attended = self.accumulate(&part, &blocks[start..][..bytes], &mut outputs);
            attended.map_err(|error| after(error, from))?;
            from += rows;
        }
        self.finish(&mut outputs);
        Ok(outputs)
    }

    /// Returns where each page of `blocks` begins, with its rows and bytes.
    ///
    /// If pages of the codec are their blocks and nothing else, all rows form one page: then one
    /// call scores them all.
    #[allow(clippy::type_complexity)]
    fn split_pages(&self, blocks: &[u8]) -> Result<Vec<(usize, (usize, usize))>, Error> {
        let tokens = if self.page_bytes_max(2) == 2 * self.block_bytes() { usize::MAX } else { PAGE };
        let (mut pages, mut start) = (Vec::new(), 0);
        while start < blocks.len() {
            let page = self.first_page(&blocks[start..], tokens)?;
            pages.push((start, page));
            start += page.1;
        }
        Ok(pages)
    }
}

/// Allocates `count` zeros.
fn zeros<T: Copy + Default>(what: &'static str, count: usize) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    zeros.try_reserve_exact(count).map_err(|_| Error::Memory { what, bytes })?;
    zeros.resize(count, T::default());
    Ok(zeros)
}

/// Adds the number of rows in earlier pages to the block number of an error.
fn after(error: Error, rows: usize) -> Error {
    match error {
        Error::Corrupt { block } => Error::Corrupt { block: rows + block },
        other => other,
    }
}
