//! Codecs whose width the compiler knows: they take and return arrays.
//!
//! The code of a codec is compiled once, behind [`Codec`](crate::codecs::Codec). This file adds the
//! width as a type parameter and nothing else.

use crate::Error;
use crate::codec::Codec;

/// A codec of vectors of `D` values. `TurboQuant<D>` and the other codec types are aliases of it.
///
/// Its methods are those of [`Codec`](crate::codecs::Codec), on arrays instead of slices. It
/// implements `Codec` itself.
#[derive(Clone, Debug)]
pub struct Typed<C, const D: usize>(C);

/// A prepared query: rotated, quantised if its codec scores in integers, and sketched if its codec
/// has a sign sketch. It takes little more than 8·D bytes.
///
/// Use it only with the codec that prepared it. Another codec returns an error or meaningless
/// scores.
#[derive(Clone, Debug)]
pub struct Query<const D: usize> {
    words: [[f32; D]; 2],
    len: usize,
}

impl<const D: usize> Query<D> {
    /// Returns the words that [`Codec::prepare_query`](crate::codecs::Codec::prepare_query) wrote,
    /// as [`Codec::score`](crate::codecs::Codec::score) takes them.
    #[must_use]
    pub fn words(&self) -> &[f32] {
        &self.words.as_flattened()[..self.len]
    }
}

/// The number of queries that one kernel call scores. Longer lists are scored in batches.
const BATCH: usize = crate::codec::query::QUERY_BATCH;

impl<C: Codec, const D: usize> Typed<C, D> {
    /// Wraps your own codec, so that its methods take arrays.
    ///
    /// # Errors
    /// [`Error::Width`] if its width is not `D`; [`Error::Unsupported`] if its prepared queries
    /// have more than 2·D words.
    pub fn new_with(codec: C) -> Result<Self, Error> {
        if codec.dim() != D {
            return Err(Error::Width { actual: codec.dim() });
        }
        if codec.query_len() > 2 * D {
            return Err(Error::Unsupported { why: "a prepared query has at most two words a value" });
        }
        Ok(Self(codec))
    }

    /// Returns the number of bytes in a block.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    /// Encodes one vector into one block of [`block_bytes`](Self::block_bytes) bytes.
    ///
    /// # Errors
    /// As [`Codec::encode`](crate::codecs::Codec::encode).
    pub fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        self.0.encode(x, block)
    }

    /// Returns the largest number of bytes that a page of `tokens` vectors takes. A page of most
    /// codecs always takes exactly this many.
    pub fn page_bytes_max(&self, tokens: usize) -> usize {
        self.0.page_bytes_max(tokens)
    }

    /// Encodes vectors into the front of `page`, all or none, and returns the number of bytes used.
    ///
    /// # Errors
    /// As [`Codec::encode_page`](crate::codecs::Codec::encode_page).
    pub fn encode_page(&self, xs: &[[f32; D]], page: &mut [u8]) -> Result<usize, Error> {
        self.0.encode_page(xs.as_flattened(), page)
    }

    /// Decodes one block. Any bytes are allowed.
    ///
    /// # Errors
    /// As [`Codec::decode`](crate::codecs::Codec::decode).
    pub fn decode(&self, block: &[u8], x: &mut [f32; D]) -> Result<(), Error> {
        self.0.decode(block, x)
    }

    /// Decodes a page of `xs.len()` vectors, all or none. Any bytes are allowed.
    ///
    /// # Errors
    /// As [`Codec::decode_page`](crate::codecs::Codec::decode_page).
    pub fn decode_page(&self, page: &[u8], xs: &mut [[f32; D]]) -> Result<(), Error> {
        self.0.decode_page(page, xs.as_flattened_mut())
    }

    /// Prepares a query once for all pages.
    ///
    /// # Errors
    /// As [`Codec::prepare_query`](crate::codecs::Codec::prepare_query).
    pub fn prepare_query(&self, q: &[f32; D]) -> Result<Query<D>, Error> {
        let mut query = Query { words: [[0.0; D]; 2], len: self.0.query_len() };
        self.0.prepare_query(q, &mut query.words.as_flattened_mut()[..query.len])?;
        Ok(query)
    }

    /// Scores q·k̂ of every query with every block, laid out \[query]\[block].
    ///
    /// # Errors
    /// As [`Codec::score`](crate::codecs::Codec::score). If blocks are corrupt, `scores` may be
    /// zeros.
    pub fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        if queries.len() <= BATCH {
            return self.score_batch(queries, blocks, scores);
        }
        if !scores.len().is_multiple_of(queries.len()) {
            let expected = scores.len() / queries.len() * queries.len();
            return Err(Error::Length { what: "scores", expected, actual: scores.len() });
        }
        // All batches must succeed or none: a call without blocks finds errors of a query, and the
        // first batch finds errors of a block.
        queries.chunks(BATCH).try_for_each(|queries| self.score_batch(queries, &[], &mut []))?;
        let rows = scores.len() / queries.len();
        let mut batches = queries.chunks(BATCH).zip(scores.chunks_mut((BATCH * rows).max(1)));
        batches.try_for_each(|(queries, scores)| self.score_batch(queries, blocks, scores))
    }

    /// Scores at most `BATCH` queries.
    fn score_batch(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let mut words: [&[f32]; BATCH] = [&[]; BATCH];
        words.iter_mut().zip(queries).for_each(|(slot, query)| *slot = query.words());
        self.0.score(&words[..queries.len()], blocks, scores)
    }

    /// Adds Σ weight·v̂ over the blocks to `acc`, *in the codec's own basis*. Weights are laid out
    /// \[query]\[block].
    ///
    /// Start from zeros, and call [`finish`](Self::finish) once after the last page.
    ///
    /// # Errors
    /// As [`Codec::accumulate`](crate::codecs::Codec::accumulate).
    pub fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        self.0.accumulate(weights, blocks, acc.as_flattened_mut())
    }

    /// Brings an accumulated output back to the basis of the vectors.
    pub fn finish(&self, acc: &mut [f32; D]) {
        self.0.finish(acc);
    }
}

/// Implements [`Codec`] for a type that holds or points to a codec. Every method forwards, so that
/// a faster override is not lost behind a reference.
macro_rules! forward_codec {
    (($($generics:tt)*) $type:ty, $self:ident => $codec:expr) => {
        impl<$($generics)*> Codec for $type {
            fn dim(&$self) -> usize {
                $codec.dim()
            }
            fn block_bytes(&$self) -> usize {
                $codec.block_bytes()
            }
            fn encode(&$self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
                $codec.encode(x, block)
            }
            fn decode(&$self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
                $codec.decode(block, x)
            }
            fn page_bytes_max(&$self, tokens: usize) -> usize {
                $codec.page_bytes_max(tokens)
            }
            fn encode_page(&$self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
                $codec.encode_page(rows, page)
            }
            fn first_page(&$self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
                $codec.first_page(bytes, tokens)
            }
            fn decode_page(&$self, page: &[u8], rows: &mut [f32]) -> Result<(), Error> {
                $codec.decode_page(page, rows)
            }
            fn query_len(&$self) -> usize {
                $codec.query_len()
            }
            fn prepare_query(&$self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
                $codec.prepare_query(q, query)
            }
            fn score(&$self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
                $codec.score(queries, blocks, scores)
            }
            fn accumulate(&$self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
                $codec.accumulate(weights, blocks, acc)
            }
            fn finish(&$self, acc: &mut [f32]) {
                $codec.finish(acc);
            }
            fn pages(&$self) -> $crate::codec::Pages<'_> {
                $codec.pages()
            }
        }
    };
}
pub(crate) use forward_codec;

forward_codec!((C: Codec, const D: usize) Typed<C, D>, self => self.0);
forward_codec!((C: Codec + ?Sized) &C, self => (**self));
#[cfg(feature = "alloc")]
forward_codec!((C: Codec + ?Sized) alloc::boxed::Box<C>, self => (**self));
#[cfg(feature = "alloc")]
forward_codec!((C: Codec + ?Sized) alloc::sync::Arc<C>, self => (**self));
