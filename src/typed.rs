//! Codecs whose width the compiler knows: arrays in, arrays out. What they do is compiled once, behind
//! [`Codec`](crate::codecs::Codec); here is nothing but the width.

use crate::Error;
use crate::codec::Codec;

/// A codec of vectors of `D` values: `TurboQuant<D>` and the others are names for it.
///
/// Its methods are [`Codec`](crate::codecs::Codec)'s, on arrays instead of slices; it is a `Codec` itself.
#[derive(Clone, Debug)]
pub struct Typed<C, const D: usize>(C);

/// A query ready to be scored, 8·D bytes and a few: rotated, quantised where its codec scores in integers, and
/// sketched where it has a sign sketch.
///
/// It belongs to the codec that prepared it: another rotation's scores mean nothing.
#[derive(Clone, Debug)]
pub struct Query<const D: usize> {
    words: [[f32; D]; 2],
    len: usize,
}

impl<const D: usize> Query<D> {
    /// What [`Codec::prepare_query`](crate::codecs::Codec::prepare_query) wrote, for [`Codec::score`](crate::codecs::Codec::score).
    #[must_use]
    pub fn words(&self) -> &[f32] {
        &self.words.as_flattened()[..self.len]
    }
}

/// Queries that one call scores: those that a kernel takes at a time.
const BATCH: usize = crate::codec::query::QUERY_BATCH;

impl<C: Codec, const D: usize> Typed<C, D> {
    /// Wraps your own codec, so that its methods take arrays.
    ///
    /// # Errors
    /// [`Error::Width`] if its width is not `D`, [`Error::Unsupported`] if its prepared queries are longer than 2·D.
    pub fn new_with(codec: C) -> Result<Self, Error> {
        if codec.dim() != D {
            return Err(Error::Width { actual: codec.dim() });
        }
        if codec.query_len() > 2 * D {
            return Err(Error::Unsupported { why: "a prepared query has at most two words a value" });
        }
        Ok(Self(codec))
    }

    /// Returns the number of bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    /// Encodes one vector.
    ///
    /// # Errors
    /// As [`Codec::encode`](crate::codecs::Codec::encode).
    pub fn encode(&self, x: &[f32; D], block: &mut [u8]) -> Result<(), Error> {
        self.0.encode(x, block)
    }

    /// Returns the most bytes that a page of `tokens` vectors takes. For most codecs a page always takes this many.
    pub fn page_bytes_max(&self, tokens: usize) -> usize {
        self.0.page_bytes_max(tokens)
    }

    /// Encodes vectors into the front of `page`, all or none; returns how many bytes it took.
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
    /// As [`Codec::score`](crate::codecs::Codec::score): where blocks are corrupt, the first scores may be zeros.
    pub fn score(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        if queries.len() <= BATCH {
            return self.score_batch(queries, blocks, scores);
        }
        if !scores.len().is_multiple_of(queries.len()) {
            let expected = scores.len() / queries.len() * queries.len();
            return Err(Error::Length { what: "scores", expected, actual: scores.len() });
        }
        // All or none: what is wrong with a query shows without blocks, what is wrong with a block in the first batch.
        queries.chunks(BATCH).try_for_each(|queries| self.score_batch(queries, &[], &mut []))?;
        let rows = scores.len() / queries.len();
        let mut batches = queries.chunks(BATCH).zip(scores.chunks_mut((BATCH * rows).max(1)));
        batches.try_for_each(|(queries, scores)| self.score_batch(queries, blocks, scores))
    }

    fn score_batch(&self, queries: &[Query<D>], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let mut words: [&[f32]; BATCH] = [&[]; BATCH];
        words.iter_mut().zip(queries).for_each(|(slot, query)| *slot = query.words());
        self.0.score(&words[..queries.len()], blocks, scores)
    }

    /// acc\[query] += Σ weight·v̂ over the blocks, *in the codec's own basis*; weights are laid out \[query]\[block].
    /// Start from zeros, and call [`finish`](Self::finish) once after the last page.
    ///
    /// # Errors
    /// As [`Codec::accumulate`](crate::codecs::Codec::accumulate).
    pub fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [[f32; D]]) -> Result<(), Error> {
        self.0.accumulate(weights, blocks, acc.as_flattened_mut())
    }

    /// Brings an accumulated output back to the vectors' basis.
    pub fn finish(&self, acc: &mut [f32; D]) {
        self.0.finish(acc);
    }
}

/// Implements [`Codec`] for something that holds one.
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
