//! Codecs whose width is chosen at run time as well: slices instead of arrays, behind one object-safe trait.

use crate::codebook::WIDTHS;
use crate::codec::{Codec, at_row};
use crate::{AnyCodec, Backend, CodecSpec, Error, Stream};
use alloc::{boxed::Box, vec, vec::Vec};
use core::any::Any;

/// A codec of any kind and width. Vectors are rows of a slice, [`dim`](Self::dim) values each.
///
/// ```
/// use octaplex::{Backend, CodecSpec, Stream};
/// let spec: CodecSpec = "int:bits=4,group=32".parse()?;
/// let codec = spec.build_dyn(96, Backend::detect(), Stream::default())?;
/// let blocks = codec.encode(&[0.5; 2 * 96])?;
/// assert_eq!(blocks.len(), 2 * codec.block_bytes());
/// let scores = codec.score(&[1.0; 96], &blocks)?;
/// assert!(scores.iter().all(|score| (score - 48.0).abs() < 0.1)); // 96 · 1 · 0.5
/// # Ok::<(), octaplex::Error>(())
/// ```
pub trait DynCodec: Send + Sync {
    /// Width of a vector.
    fn dim(&self) -> usize;

    /// What the bytes mean.
    fn spec(&self) -> CodecSpec;

    /// Bytes of a block.
    fn block_bytes(&self) -> usize;

    /// Encodes rows, in pages of 64 (with the feature `rayon`, on all cores). For most codecs that is one block after
    /// the other; those that keep outliers (`med`) append them to each page.
    ///
    /// # Errors
    /// As [`Codec::encode_page`].
    fn encode(&self, rows: &[f32]) -> Result<Vec<u8>, Error>;

    /// The longest run of whole pages at the head of `blocks` that has at most `rows` rows, as (rows, bytes): where
    /// one may cut what [`encode`](Self::encode) returned.
    ///
    /// # Errors
    /// [`Error::Length`] where the bytes end inside a page.
    fn split(&self, blocks: &[u8], rows: usize) -> Result<(usize, usize), Error>;

    /// Decodes blocks into rows.
    ///
    /// # Errors
    /// As [`Codec::decode`].
    fn decode(&self, blocks: &[u8]) -> Result<Vec<f32>, Error>;

    /// Scores every row of `queries` with every block, laid out \[query]\[block].
    ///
    /// # Errors
    /// As [`Codec::prepare_query`] and [`Codec::score`].
    fn score(&self, queries: &[f32], blocks: &[u8]) -> Result<Vec<f32>, Error>;

    /// Σ weight·v̂ over the blocks for every row of `weights` (\[output]\[block]), in the vectors' own basis.
    ///
    /// # Errors
    /// As [`Codec::accumulate`].
    fn attend(&self, weights: &[f32], blocks: &[u8]) -> Result<Vec<f32>, Error>;

    #[doc(hidden)]
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl dyn DynCodec {
    /// The same codec with its width in the type, for prepared queries and sums over several pages; `None` if its
    /// width is not `D`. Its code is the library's own: a caller that goes through here need not compile all codecs
    /// again, as one that names [`AnyCodec`] does.
    ///
    /// ```
    /// use octaplex::{Backend, Codec, CodecSpec, Stream};
    /// let build = |dim| CodecSpec::build_dyn("int:bits=8".parse()?, dim, Backend::detect(), Stream::default());
    /// assert!(build(64)?.typed::<96>().is_none());
    /// let codec = build(64)?.typed::<64>().expect("the width is 64");
    /// let query = codec.prepare_query(&[1.0; 64])?;
    /// # Ok::<(), octaplex::Error>(())
    /// ```
    #[must_use]
    pub fn typed<const D: usize>(self: Box<Self>) -> Option<Box<dyn Codec<D>>> {
        self.into_any().downcast::<Box<dyn Codec<D>>>().ok().map(|codec| *codec)
    }
}

/// Rows encoded in one call.
const PAGE: usize = 64;

/// A codec behind its width.
struct Typed<const D: usize>(Box<dyn Codec<D>>);

impl<const D: usize> DynCodec for Typed<D> {
    fn dim(&self) -> usize {
        D
    }

    fn spec(&self) -> CodecSpec {
        self.0.spec()
    }

    fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    fn encode(&self, rows: &[f32]) -> Result<Vec<u8>, Error> {
        let rows = as_rows(rows)?;
        let page_bytes = self.0.page_bytes_max(PAGE);
        let full = rows.len() / PAGE;
        let mut blocks = vec![0; full * page_bytes + self.0.page_bytes_max(rows.len() % PAGE)];
        let encode = |(page, (rows, blocks)): (usize, (&[[f32; D]], &mut [u8]))| {
            self.0.encode_page(rows, blocks).map_err(|error| at_row(error, page * PAGE, D))
        };
        #[cfg(feature = "rayon")]
        let used: Vec<usize> = {
            use rayon::prelude::*;
            let pages = rows.par_chunks(PAGE).zip(blocks.par_chunks_mut(page_bytes));
            let results: Vec<_> = pages.enumerate().map(encode).collect();
            results.into_iter().collect::<Result<_, Error>>()? // the first page's error, not the fastest one's
        };
        #[cfg(not(feature = "rayon"))]
        let used: Vec<usize> = {
            let pages = rows.chunks(PAGE).zip(blocks.chunks_mut(page_bytes));
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

    fn split(&self, blocks: &[u8], rows: usize) -> Result<(usize, usize), Error> {
        let mut taken = (0, 0);
        while taken.1 < blocks.len() {
            let page = self.0.first_page(&blocks[taken.1..], PAGE)?;
            if taken.0 + page.0 > rows {
                break;
            }
            taken = (taken.0 + page.0, taken.1 + page.1);
        }
        Ok(taken)
    }

    fn decode(&self, blocks: &[u8]) -> Result<Vec<f32>, Error> {
        let mut rows = Vec::new();
        for (start, page) in self.pages(blocks)? {
            let from = rows.len();
            rows.resize(from + page.0, [0.0; D]);
            let decoded = self.0.decode_page(&blocks[start..][..page.1], &mut rows[from..]);
            decoded.map_err(|error| after(error, from))?;
        }
        Ok(rows.into_flattened())
    }

    fn score(&self, queries: &[f32], blocks: &[u8]) -> Result<Vec<f32>, Error> {
        let queries = as_rows(queries)?;
        let prepare = |(row, query)| self.0.prepare_query(query).map_err(|error| at_row(error, row, D));
        let queries: Vec<_> = queries.iter().enumerate().map(prepare).collect::<Result<_, Error>>()?;
        let pages = self.pages(blocks)?;
        let count: usize = pages.iter().map(|(_, page)| page.0).sum();
        let mut scores = vec![0.0; queries.len() * count];
        if let [(_, (_, bytes))] = pages[..] {
            self.0.score(&queries, &blocks[..bytes], &mut scores)?;
            return Ok(scores);
        }
        let (mut from, mut part) = (0, Vec::new());
        for (start, (rows, bytes)) in pages {
            part.clear();
            part.resize(queries.len() * rows, 0.0);
            let scored = self.0.score(&queries, &blocks[start..][..bytes], &mut part);
            scored.map_err(|error| after(error, from))?;
            for (query, part) in part.chunks_exact(rows).enumerate() {
                scores[query * count + from..][..rows].copy_from_slice(part);
            }
            from += rows;
        }
        Ok(scores)
    }

    fn attend(&self, weights: &[f32], blocks: &[u8]) -> Result<Vec<f32>, Error> {
        let pages = self.pages(blocks)?;
        let count: usize = pages.iter().map(|(_, page)| page.0).sum();
        Error::expect_length(
            "weights, a multiple of the blocks",
            weights.len() / count.max(1) * count,
            weights.len(),
        )?;
        let mut outputs = vec![[0.0; D]; weights.len() / count.max(1)];
        let (mut from, mut part) = (0, Vec::new());
        for (start, (rows, bytes)) in pages {
            part.clear();
            part.extend(weights.chunks_exact(count).flat_map(|weights| &weights[from..from + rows]));
            let attended = self.0.accumulate(&part, &blocks[start..][..bytes], &mut outputs);
            attended.map_err(|error| after(error, from))?;
            from += rows;
        }
        for output in &mut outputs {
            self.0.finish(output);
        }
        Ok(outputs.into_flattened())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        Box::new(self.0)
    }
}

impl<const D: usize> Typed<D> {
    /// The pages of `blocks`: where each begins, its rows and bytes. Codecs whose pages are their blocks and nothing
    /// else have one.
    #[allow(clippy::type_complexity)]
    fn pages(&self, blocks: &[u8]) -> Result<Vec<(usize, (usize, usize))>, Error> {
        let tokens = if self.0.page_bytes_max(2) == 2 * self.0.block_bytes() { usize::MAX } else { PAGE };
        let (mut pages, mut start) = (Vec::new(), 0);
        while start < blocks.len() {
            let page = self.0.first_page(&blocks[start..], tokens)?;
            pages.push((start, page));
            start += page.1;
        }
        Ok(pages)
    }
}

/// The same error for blocks that have `rows` before them.
fn after(error: Error, rows: usize) -> Error {
    match error {
        Error::Corrupt { block } => Error::Corrupt { block: rows + block },
        other => other,
    }
}

fn as_rows<const D: usize>(values: &[f32]) -> Result<&[[f32; D]], Error> {
    match values.as_chunks() {
        (rows, []) => Ok(rows),
        _ => Err(Error::Length { what: "values, a multiple of", expected: D, actual: values.len() }),
    }
}

impl CodecSpec {
    /// The codec of this spec for vectors of `dim` values.
    ///
    /// # Errors
    /// [`Error::Width`] unless `dim` is one of [`WIDTHS`], and what [`AnyCodec::build`] refuses.
    pub fn build_dyn(self, dim: usize, backend: Backend, stream: Stream) -> Result<Box<dyn DynCodec>, Error> {
        macro_rules! build {
            ($($width:literal),*) => {{
                const { assert!(matches!(WIDTHS, [$($width),*])) };
                match dim {
                    $($width => {
                        let codec = AnyCodec::<$width>::build(self, backend, stream)?;
                        Ok(Box::new(Typed(Box::new(codec))))
                    })*
                    actual => Err(Error::Width { actual }),
                }
            }};
        }
        build!(32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576)
    }
}
