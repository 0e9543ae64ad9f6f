//! Codecs whose width is a run-time value, over slices and without an allocator: what a cache calls.

use super::page::BATCH;
use crate::codec::{Codec, Query, at_row};
use crate::{AnyCodec, CodecSpec, Error};

/// A codec over rows in slices, [`dim`](Self::dim) values each. [`AnyCodec`] is one; so are codecs of any width
/// behind a box.
pub trait RowCodec: Send + Sync {
    /// Width of a row.
    fn dim(&self) -> usize;

    /// What the bytes mean.
    fn spec(&self) -> CodecSpec;

    /// Bytes of a block.
    fn block_bytes(&self) -> usize;

    /// As [`Codec::encode_page`].
    ///
    /// # Errors
    /// As there.
    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error>;

    /// As [`Codec::encode`].
    ///
    /// # Errors
    /// As there.
    fn encode(&self, row: &[f32], block: &mut [u8]) -> Result<(), Error>;

    /// As [`Codec::decode`].
    ///
    /// # Errors
    /// As there.
    fn decode(&self, block: &[u8], row: &mut [f32]) -> Result<(), Error>;

    /// Prepares at most eight queries once, and scores the pages of `tokens` each, one after the other: scores are laid out
    /// \[page]\[query]\[block].
    ///
    /// # Errors
    /// As [`Codec::prepare_query`] and [`Codec::score`].
    fn score_pages(
        &self,
        queries: &[f32],
        tokens: usize,
        pages: &mut dyn Iterator<Item = &[u8]>,
        scores: &mut [f32],
    ) -> Result<(), Error>;

    /// As [`Codec::accumulate`].
    ///
    /// # Errors
    /// As there.
    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error>;

    /// As [`Codec::finish`], for each row.
    fn finish(&self, acc: &mut [f32]);
}

impl core::fmt::Debug for dyn RowCodec {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} of width {}", self.spec(), self.dim())
    }
}

fn rows<const D: usize>(values: &[f32]) -> Result<&[[f32; D]], Error> {
    match values.as_chunks() {
        (rows, []) => Ok(rows),
        _ => Err(Error::Length { what: "values, a multiple of", expected: D, actual: values.len() }),
    }
}

fn rows_mut<const D: usize>(values: &mut [f32]) -> Result<&mut [[f32; D]], Error> {
    let actual = values.len();
    match values.as_chunks_mut() {
        (rows, []) => Ok(rows),
        _ => Err(Error::Length { what: "values, a multiple of", expected: D, actual }),
    }
}

fn row_mut<const D: usize>(values: &mut [f32]) -> Result<&mut [f32; D], Error> {
    let actual = values.len();
    values.try_into().map_err(|_| Error::Length { what: "values of a row", expected: D, actual })
}

/// A function, not a method of each type, so that it is compiled once a width.
fn score_pages<const D: usize>(
    codec: &dyn Codec<D>,
    queries: &[f32],
    tokens: usize,
    pages: &mut dyn Iterator<Item = &[u8]>,
    mut scores: &mut [f32],
) -> Result<(), Error> {
    let queries = rows(queries)?;
    let mut failed = None;
    // On the stack: preparing is cheap beside thousands of scores, and no memory of the caller's has this type.
    let prepared: [Query<D>; BATCH] = core::array::from_fn(|i| {
        let none = || Query::float([0.0; D]);
        queries.get(i).map_or_else(none, |query| {
            codec.prepare_query(query).unwrap_or_else(|error| {
                failed = failed.or(Some(at_row(error, i, D)));
                none()
            })
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let prepared = &prepared[..queries.len()];
    for blocks in pages {
        let (page, rest) = scores.split_at_mut(prepared.len() * tokens);
        codec.score(prepared, blocks, page)?;
        scores = rest;
    }
    Ok(())
}

macro_rules! row_codec {
    ($type:ty, $self:ident => $codec:expr) => {
        impl<const D: usize> RowCodec for $type {
            fn dim(&self) -> usize {
                D
            }
            fn spec(&$self) -> CodecSpec {
                $codec.spec()
            }
            fn block_bytes(&$self) -> usize {
                $codec.block_bytes()
            }
            fn encode_page(&$self, values: &[f32], page: &mut [u8]) -> Result<usize, Error> {
                $codec.encode_page(rows(values)?, page)
            }
            fn encode(&$self, row: &[f32], block: &mut [u8]) -> Result<(), Error> {
                rows(row)?.iter().try_for_each(|row| $codec.encode(row, block))
            }
            fn decode(&$self, block: &[u8], row: &mut [f32]) -> Result<(), Error> {
                $codec.decode(block, row_mut(row)?)
            }
            fn score_pages(
                &$self,
                queries: &[f32],
                tokens: usize,
                pages: &mut dyn Iterator<Item = &[u8]>,
                scores: &mut [f32],
            ) -> Result<(), Error> {
                score_pages::<D>($codec, queries, tokens, pages, scores)
            }
            fn accumulate(&$self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
                $codec.accumulate(weights, blocks, rows_mut(acc)?)
            }
            fn finish(&$self, acc: &mut [f32]) {
                for acc in acc.as_chunks_mut().0 {
                    $codec.finish(acc);
                }
            }
        }
    };
}

row_codec!(AnyCodec<D>, self => self as &dyn Codec<D>);

#[cfg(feature = "alloc")]
mod boxed {
    use super::*;
    use crate::{Backend, Stream};
    use alloc::{boxed::Box, sync::Arc};

    /// A codec behind its width.
    struct Boxed<const D: usize>(Box<dyn Codec<D>>);

    row_codec!(Boxed<D>, self => &*self.0);

    impl RowCodec for Arc<dyn RowCodec> {
        fn dim(&self) -> usize {
            (**self).dim()
        }
        fn spec(&self) -> CodecSpec {
            (**self).spec()
        }
        fn block_bytes(&self) -> usize {
            (**self).block_bytes()
        }
        fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
            (**self).encode_page(rows, page)
        }
        fn encode(&self, row: &[f32], block: &mut [u8]) -> Result<(), Error> {
            (**self).encode(row, block)
        }
        fn decode(&self, block: &[u8], row: &mut [f32]) -> Result<(), Error> {
            (**self).decode(block, row)
        }
        fn score_pages(
            &self,
            queries: &[f32],
            tokens: usize,
            pages: &mut dyn Iterator<Item = &[u8]>,
            scores: &mut [f32],
        ) -> Result<(), Error> {
            (**self).score_pages(queries, tokens, pages, scores)
        }
        fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
            (**self).accumulate(weights, blocks, acc)
        }
        fn finish(&self, acc: &mut [f32]) {
            (**self).finish(acc);
        }
    }

    /// The codec of a spec at a width known at run time.
    pub(crate) fn build(
        spec: CodecSpec,
        dim: usize,
        backend: Backend,
        stream: Stream,
    ) -> Result<Arc<dyn RowCodec>, Error> {
        let codec = spec.build_dyn(dim, backend, stream)?;
        macro_rules! build {
            ($($width:literal),*) => {{
                const { assert!(matches!(crate::codebook::WIDTHS, [$($width),*])) };
                match dim {
                    $($width => match codec.typed::<$width>() {
                        Some(codec) => Ok(Arc::new(Boxed(codec))),
                        None => Err(Error::Width { actual: dim }),
                    },)*
                    actual => Err(Error::Width { actual }),
                }
            }};
        }
        build!(32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576)
    }
}

#[cfg(feature = "alloc")]
pub(crate) use boxed::build;
