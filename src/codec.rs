//! The trait that all codecs implement, [`Codec`], and the loops that its default methods share.
//!
//! Each codec has its own file below `codec/`. None of them knows the list of codecs, which is in
//! `codecs.rs`. Your own type may implement the trait as well.

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
pub(crate) mod sketch;
mod sketched;
pub(crate) mod tq3_0;
pub(crate) mod trellis;
pub(crate) mod turboquant;
pub(crate) mod turboquant_qjl;
pub(crate) mod typed;

pub(crate) use checks::*;

use crate::Error;
use crate::backend::Kernels;
pub use planes::{CentreCode, Pages, PlanePages, PlaneRows, Planes};
use scratch::with_scratch;

/// Encodes vectors into blocks of bytes, and computes attention's two products on the blocks.
///
/// The width is a run-time value. Rows are slices of [`dim`](Self::dim) values, and no method needs
/// a heap. Where the compiler knows the width, [`Typed`](crate::codecs::Typed) takes arrays.
///
/// A block carries no tag: the caller keeps the codec that belongs to its bytes. Blocks of
/// consecutive tokens, one after the other, form a page. The products take a whole page, so that
/// run-time choices are made once a page and not once a token.
///
/// After an `Err`, outputs hold what they held before the call. The exception is
/// [`score`](Self::score) with corrupt blocks.
///
/// A page of most codecs is its blocks and nothing else. A codec that keeps outliers exactly (`med`
/// in specs) appends a list of them behind the blocks. The data decide how long the list is:
/// [`page_bytes_max`](Self::page_bytes_max) bounds it, and [`encode_page`](Self::encode_page)
/// returns the page's length. Methods that take blocks take one whole page. Blocks from
/// [`encode`](Self::encode) have no list, and are a valid page without one.
///
/// # Your own codec
/// Four methods are enough: `dim`, `block_bytes`, `encode`, `decode`. The other methods have
/// defaults that decode. For speed, override [`score`](Self::score) and
/// [`accumulate`](Self::accumulate). If these work in another basis or in integers, override
/// [`query_len`](Self::query_len), [`prepare_query`](Self::prepare_query) and
/// [`finish`](Self::finish) too. Caches take your codec through
/// [`LayerCache::with_codecs`](crate::cache::LayerCache::with_codecs).
///
/// ```
/// use octaplex::codecs::Codec;
/// use octaplex::Error;
///
/// /// Stores each value in one byte, in steps of 0.125.
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
    /// Returns the width: the number of values in a vector.
    fn dim(&self) -> usize;

    /// Returns the number of bytes in a block.
    fn block_bytes(&self) -> usize;

    /// Encodes one vector of [`dim`](Self::dim) values into one block. Most codecs take O(dim log
    /// dim).
    ///
    /// A codec must accept every finite vector whose norm is below 1,024. Caches and
    /// [`encode_page`](Self::encode_page) rely on this: only for longer vectors do they try the
    /// encoding before they write.
    ///
    /// # Errors
    /// [`Error::NonFinite`]; [`Error::Overflow`] if a stored f16 would be infinite;
    /// [`Error::Length`].
    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error>;

    /// Decodes one block into [`dim`](Self::dim) values. Any bytes are allowed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a stored scale is not finite; [`Error::Length`].
    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error>;

    /// Returns the largest number of bytes that a page of `tokens` vectors takes. A page of most
    /// codecs always takes exactly this many.
    fn page_bytes_max(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.block_bytes())
    }

    /// Encodes rows into the front of `page` and returns the number of bytes used. `page` must have
    /// [`page_bytes_max`](Self::page_bytes_max) bytes.
    ///
    /// Either all rows are encoded or none. For most codecs the page equals the blocks that
    /// [`encode`](Self::encode) writes.
    ///
    /// # Errors
    /// As [`encode`](Self::encode). Indices in errors count over the whole of `rows`.
    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        encode_blocks(self, rows, page)
    }

    /// Returns (tokens, bytes) of the first page in `bytes`.
    ///
    /// `bytes` holds pages of `tokens` vectors each. The last page may be shorter.
    ///
    /// # Errors
    /// [`Error::Length`] if the bytes end inside a page.
    fn first_page(&self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
        first_blocks(bytes, self.block_bytes(), tokens)
    }

    /// Decodes a page into rows, all or none. Any bytes are allowed.
    ///
    /// # Errors
    /// As [`decode`](Self::decode). [`Error::Length`] if the page does not have the length that its
    /// flags announce.
    fn decode_page(&self, page: &[u8], rows: &mut [f32]) -> Result<(), Error> {
        decode_blocks(self, page, rows)
    }

    /// Returns the number of words in a prepared query, at most 2·[`dim`](Self::dim).
    fn query_len(&self) -> usize {
        self.dim()
    }

    /// Prepares a query once for all pages: rotates it, and quantises it if the codec scores in
    /// integers.
    ///
    /// The meaning of the [`query_len`](Self::query_len) words is private to the codec. Passing
    /// them to another codec returns an error or meaningless scores. The default copies the query.
    ///
    /// # Errors
    /// [`Error::NonFinite`]; [`Error::Overflow`] for magnitudes of 2⁵⁸ and more; [`Error::Length`].
    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        Error::expect_length("values of a query", self.dim(), q.len())?;
        Error::expect_length("words of a prepared query", self.dim(), query.len())?;
        check_values(q, MAX_VALUE)?;
        query.copy_from_slice(q);
        Ok(())
    }

    /// Scores q·k̂ of every prepared query with every block, laid out \[query]\[block].
    ///
    /// Query heads that share a key under grouped-query attention share one pass over the blocks.
    /// The default decodes each block.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Unsupported`] for queries that a codec of another kind prepared;
    /// [`Error::Corrupt`]. After `Corrupt`, `scores` may be zeros. After the others, `scores` is
    /// unchanged.
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

    /// Adds Σ weight·v̂ over the blocks to `acc`, *in the codec's own basis*.
    ///
    /// Weights are laid out \[query]\[block], sums \[query]\[dim]. Start from zeros, and call
    /// [`finish`](Self::finish) once after the last page. The default decodes each block.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::NonFinite`] and [`Error::Weight`] for the weights;
    /// [`Error::Corrupt`].
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

    /// Brings accumulated rows back to the basis of the vectors.
    ///
    /// This costs one inverse rotation an output, not one a token. Values beyond whole rows stay as
    /// they are. The default does nothing.
    fn finish(&self, _acc: &mut [f32]) {}

    /// Returns how pages of a cache keep this codec's rows. The default is blocks; codecs that
    /// implement [`Planes`] return themselves.
    fn pages(&self) -> Pages<'_> {
        Pages::Blocks
    }
}

impl core::fmt::Debug for dyn Codec + '_ {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a codec of width {} in {} bytes", self.dim(), self.block_bytes())
    }
}

/// Decodes the blocks one after the other, and calls `f` with the index and the values of each.
///
/// The default methods call this twice: a first pass that only looks for corrupt blocks keeps the
/// promise of "all or none".
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

/// Encodes vectors into consecutive blocks, all or none. The default of [`Codec::encode_page`].
pub(crate) fn encode_blocks<C: Codec + ?Sized>(
    codec: &C,
    rows: &[f32],
    page: &mut [u8],
) -> Result<usize, Error> {
    encode_blocks_by(codec, None, rows, page, |x, block| codec.encode(x, block))
}

/// Encodes vectors into consecutive blocks with the given `encode`, all or none.
///
/// Codecs use it to share scratch memory between rows. `backend` speeds up the check for rows that
/// might be refused. Only if there is such a row, all rows are first encoded into a block that is
/// thrown away: so no byte of `page` changes if one of them fails.
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

/// Decodes consecutive blocks into rows, all or none. The default of [`Codec::decode_page`].
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
