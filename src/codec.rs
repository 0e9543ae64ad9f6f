//! What every codec does: one trait over slices, which one need not be of this library to implement.

pub(crate) mod additive;
mod checks;
mod decoded;
pub(crate) mod float;
pub(crate) mod fp8;
pub(crate) mod ggml;
pub(crate) mod graded;
pub(crate) mod hqmq;
pub(crate) mod int;
pub(crate) mod octopus;
pub(crate) mod octopus_qjl;
pub(crate) mod outliers;
pub(crate) mod planes;
pub(crate) mod polarquant;
pub(crate) mod qjl;
pub(crate) mod query;
pub(crate) mod scratch;
mod sketched;
pub(crate) mod tq3_0;
pub(crate) mod trellis;
pub(crate) mod turboquant;
pub(crate) mod turboquant_qjl;

pub(crate) use checks::*;

use crate::Error;
use crate::backend::Kernels;
pub use planes::{CentreCode, Pages, PlaneRows, Planes};
use scratch::with_scratch;

/// Encodes vectors into blocks of bytes, and computes attention's two products on the blocks. The width is a run-time
/// value, rows are slices of [`dim`](Self::dim) values, and nothing here needs a heap; where the width is known to the
/// compiler, [`Typed`](crate::codecs::Typed) takes arrays.
///
/// A raw block carries no tag: whoever made the codec knows what its bytes mean. Blocks of consecutive tokens, one
/// after the other, are a page; the products take a page at a time, so that run-time choices cost nothing a token. On
/// any `Err`, outputs are as they were before the call, but for those of [`score`](Self::score) where blocks are corrupt.
///
/// Most codecs' pages are their blocks and nothing else. A codec that keeps some values exactly (`med` in specs)
/// appends a list of them behind the blocks, as long as the data make it: [`page_bytes_max`](Self::page_bytes_max)
/// bounds it, [`encode_page`](Self::encode_page) says how long it came out, and wherever bytes of blocks are given,
/// they are one whole page. Blocks from [`encode`](Self::encode) have no such values, and are a page as they stand.
///
/// # A codec of one's own
/// Four methods are enough: `dim`, `block_bytes`, `encode`, `decode`. The others have defaults that decode. A faster
/// codec overrides [`score`](Self::score) and [`accumulate`](Self::accumulate), and where these work in another basis
/// or in integers, [`query_len`](Self::query_len), [`prepare_query`](Self::prepare_query) and
/// [`finish`](Self::finish). Caches take it as it is: [`LayerCache::with_codecs`](crate::cache::LayerCache::with_codecs).
///
/// ```
/// use octaplex::codecs::Codec;
/// use octaplex::Error;
///
/// /// A value as an eighth.
/// struct Eighths;
///
/// impl Codec for Eighths {
///     fn dim(&self) -> usize {
///         32
///     }
///     fn block_bytes(&self) -> usize {
///         32
///     }
///     fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
///         x.iter().zip(block).for_each(|(x, byte)| *byte = (x * 8.0).round() as i8 as u8);
///         Ok(())
///     }
///     fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
///         block.iter().zip(x).for_each(|(byte, x)| *x = f32::from(*byte as i8) / 8.0);
///         Ok(())
///     }
/// }
///
/// let (mut page, mut query, mut scores) = ([0; 64], [0.0; 32], [0.0; 2]);
/// Eighths.encode_page(&[0.5; 64], &mut page)?;
/// Eighths.prepare_query(&[0.25; 32], &mut query)?;
/// Eighths.score(&[&query], &page, &mut scores)?;
/// assert_eq!(scores, [4.0; 2]); // 32 · 0.5 · 0.25
/// # Ok::<(), Error>(())
/// ```
pub trait Codec: Send + Sync {
    /// Returns the width: the number of values of a vector.
    fn dim(&self) -> usize;

    /// Returns the number of bytes of a block.
    fn block_bytes(&self) -> usize;

    /// Encodes one vector. O(dim log dim) for most.
    ///
    /// A codec takes every finite vector whose norm is below 1,024: caches and [`encode_page`](Self::encode_page)
    /// rely on it, and try only longer ones before they write.
    ///
    /// # Errors
    /// [`Error::NonFinite`], [`Error::Overflow`] where a stored f16 would be infinite, [`Error::Length`].
    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error>;

    /// Decodes one block. Any bytes are allowed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a stored scale is not finite, [`Error::Length`].
    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error>;

    /// Returns the most bytes that a page of `tokens` vectors takes. For most codecs a page always takes this many.
    fn page_bytes_max(&self, tokens: usize) -> usize {
        tokens * self.block_bytes()
    }

    /// Encodes rows into the front of `page`, [`page_bytes_max`](Self::page_bytes_max) bytes, all or none; returns
    /// how many bytes it took. For most codecs, the blocks that [`encode`](Self::encode) gives.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); indices count over the whole of `rows`.
    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        encode_blocks(self, rows, page)
    }

    /// (tokens, bytes) of the page at the head of `bytes`, which holds whole pages of `tokens` vectors each, but for
    /// the last one, which may be shorter.
    ///
    /// # Errors
    /// [`Error::Length`] where the bytes end inside a page.
    fn first_page(&self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
        first_blocks(bytes, self.block_bytes(), tokens)
    }

    /// Decodes a page into rows, all or none. Any bytes are allowed.
    ///
    /// # Errors
    /// As [`decode`](Self::decode); [`Error::Length`] where the page is of another length than its flags say.
    fn decode_page(&self, page: &[u8], rows: &mut [f32]) -> Result<(), Error> {
        decode_blocks(self, page, rows)
    }

    /// Returns the number of words of a prepared query, at most 2·[`dim`](Self::dim).
    fn query_len(&self) -> usize {
        self.dim()
    }

    /// Prepares a query once for all pages: rotates it, and quantises it where the codec scores in integers. What the
    /// [`query_len`](Self::query_len) words mean is the codec's own affair; another codec's refuse them or score
    /// nonsense. The default is the query itself.
    ///
    /// # Errors
    /// [`Error::NonFinite`]; [`Error::Overflow`] for values of 2⁵⁸ and up; [`Error::Length`].
    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        Error::expect_length("values of a query", self.dim(), q.len())?;
        Error::expect_length("words of a prepared query", self.dim(), query.len())?;
        check_values(q, MAX_VALUE)?;
        query.copy_from_slice(q);
        Ok(())
    }

    /// Scores q·k̂ of every prepared query with every block, laid out \[query]\[block]: several queries (the heads
    /// that share a key under grouped-query attention) take one pass over the blocks. The default decodes.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Unsupported`] for queries that a codec of another kind prepared; [`Error::Corrupt`], behind which
    /// `scores` may be zeros. All others leave them alone.
    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let (dim, bytes) = (self.dim(), self.block_bytes());
        let count = check_score(queries, blocks, bytes, scores)?;
        for query in queries {
            Error::expect_length("words of a prepared query", dim, query.len())?;
        }
        each_decoded(self, blocks, |_, _| {})?;
        each_decoded(self, blocks, |row, x| {
            for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
                scores[row] = Kernels::SCALAR.dot(query, x);
            }
        })
    }

    /// acc\[query] += Σ weight·v̂ over the blocks, *in the codec's own basis*; weights are laid out \[query]\[block],
    /// sums \[query]\[dim]. Start from zeros, and call [`finish`](Self::finish) once after the last page. The default
    /// decodes.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::NonFinite`] and [`Error::Weight`] for the weights, [`Error::Corrupt`].
    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let dim = self.dim();
        let count = check_accumulate(weights, blocks, self.block_bytes(), acc, dim)?;
        each_decoded(self, blocks, |_, _| {})?;
        each_decoded(self, blocks, |row, x| {
            for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
                acc.iter_mut().zip(x).for_each(|(acc, x)| *acc += weights[row] * x);
            }
        })
    }

    /// Brings accumulated rows back to the vectors' basis: one inverse rotation an output, not one a token. Values
    /// beyond whole rows are left alone. The default does nothing.
    fn finish(&self, _acc: &mut [f32]) {}

    /// How pages of a cache keep this codec's rows: as blocks, unless the codec implements [`Planes`].
    fn pages(&self) -> Pages<'_> {
        Pages::Blocks
    }
}

impl core::fmt::Debug for dyn Codec + '_ {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a codec of width {} in {} bytes", self.dim(), self.block_bytes())
    }
}

/// Calls `f` with the number and the values of each block.
fn each_decoded<C: Codec + ?Sized>(
    codec: &C,
    blocks: &[u8],
    mut f: impl FnMut(usize, &[f32]),
) -> Result<(), Error> {
    with_scratch(codec.dim(), |x| {
        for (row, block) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
            codec.decode(block, x).map_err(|error| in_block(error, row))?;
            f(row, x);
        }
        Ok(())
    })
}

/// Encodes vectors into blocks one after the other, all or none.
pub(crate) fn encode_blocks<C: Codec + ?Sized>(
    codec: &C,
    rows: &[f32],
    page: &mut [u8],
) -> Result<usize, Error> {
    encode_blocks_by(codec, None, rows, page, |x, block| codec.encode(x, block))
}

/// The same by a codec's own way to encode a row, on memory that rows share, and on a backend where one is at hand.
pub(crate) fn encode_blocks_by<C: Codec + ?Sized>(
    codec: &C,
    backend: Option<Kernels>,
    rows: &[f32],
    page: &mut [u8],
    mut encode: impl FnMut(&[f32], &mut [u8]) -> Result<(), Error>,
) -> Result<usize, Error> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    Error::expect_length("bytes of blocks", count_rows(rows, dim)? * bytes, page.len())?;
    if !rows.chunks_exact(dim).all(|x| surely_encodable(backend, x)) {
        let mut first = [0; MAX_BLOCK_BYTES];
        let Some(first) = first.get_mut(..bytes) else {
            return Err(Error::Unsupported { why: "blocks have at most four bytes a value" });
        };
        for (row, x) in rows.chunks_exact(dim).enumerate() {
            encode(x, first).map_err(|error| at_row(error, row, dim))?;
        }
    }
    rows.chunks_exact(dim).zip(page.chunks_exact_mut(bytes)).try_for_each(|(x, block)| encode(x, block))?;
    Ok(page.len())
}

/// Decodes blocks one after the other, all or none.
pub(crate) fn decode_blocks<C: Codec + ?Sized>(
    codec: &C,
    page: &[u8],
    rows: &mut [f32],
) -> Result<(), Error> {
    let (dim, bytes) = (codec.dim(), codec.block_bytes());
    Error::expect_length("bytes of blocks", count_rows(rows, dim)? * bytes, page.len())?;
    each_decoded(codec, page, |_, _| {})?;
    page.chunks_exact(bytes).zip(rows.chunks_exact_mut(dim)).try_for_each(|(block, x)| codec.decode(block, x))
}
