//! Codecs whose block is a norm, and planes that code a direction. A page can keep the norms of all
//! such rows together.
//!
//! [`Planes`] is the interface of pages to such a codec, which may be your own. [`Rotated`] is the
//! interface of this library's codecs to their kernels, in a rotated basis. Every `Rotated` codec
//! implements `Planes`.

use super::query::QueryFormat;
use super::scratch::{bytes_of, with_scratch, words_for};
use super::{Codec, SMALLEST_NORM, check_scales, in_page, norm, read_f16, to_f16};
use crate::Error;
use crate::backend::Kernels;
use crate::codebook::{Codebook, lloyd_max};
use crate::rotation::Rotation;
use heapless::Vec;
use octaplex_arch::{MAX_PAGES, Packing, Rows};

/// Bytes in front of a row of planes that belong to the row before it.
///
/// Kernels read one form of rows: an f16 norm, then planes. A page keeps its norms elsewhere and
/// its rows without gaps. So it passes each row with the two bytes in front of it, which are the
/// last two of the previous row. Kernels never read these two bytes if norms are passed separately.
///
/// ```text
/// block      │norm│ planes ……………… │norm│ planes ……………… │
/// page    ┆..│ planes of row 0 │ planes of row 1 │ …
///          └─ row 0 ──────────┘
///                          └─ row 1 ──────────┘
/// ```
pub(crate) const LEAD: usize = 2;

/// The layout of a codec's rows in pages: the result of [`Codec::pages`].
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Pages<'a> {
    /// As consecutive blocks.
    Blocks,
    /// As rows of planes without norms. The page keeps the norms together in 6 bits each.
    Lean(&'a dyn Planes),
    /// As two codecs of half the width each. The first codes the channels that queries weigh most.
    /// This is for keys; values in such a codec are kept as blocks.
    Graded([&'a dyn Planes; 2]),
}

/// A codec whose block is a norm, and planes that code a direction: x̂ = norm · direction, for
/// every norm.
///
/// A cache keeps such a codec in *lean* pages: planes without gaps, and norms of 6 bits. That saves
/// 0.1 to 0.3 bits a value. Your own codec gets lean pages if it implements this trait and returns
/// `Pages::Lean(self)` from [`Codec::pages`]. Pages are lean if planes take at most 4.5 bits a
/// value. More precise codecs keep their blocks.
///
/// Three methods are enough. The defaults of the others decode.
pub trait Planes: Codec {
    /// Returns the bytes of a row without its norm.
    fn plane_bytes(&self) -> usize;

    /// Encodes rows into planes of [`plane_bytes`](Self::plane_bytes) bytes each, and writes one
    /// norm for each row.
    ///
    /// After an error both outputs may hold anything.
    ///
    /// # Errors
    /// As [`Codec::encode_page`].
    fn encode_planes(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error>;

    /// Decodes row `row` into `x`, in the basis of the input.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for planes that no encoder writes.
    fn decode_planes(&self, rows: &PlaneRows, row: usize, x: &mut [f32]) -> Result<(), Error>;

    /// Scores every prepared query with every row of some pages, laid out \[page]\[query]\[row], as
    /// [`Codec::score`] does on blocks. There are at most 64 queries.
    ///
    /// # Errors
    /// As [`Codec::score`]. A corrupt block is counted over all pages.
    fn score_planes(&self, queries: &[&[f32]], pages: &PlanePages, scores: &mut [f32]) -> Result<(), Error> {
        let count = pages.count();
        with_scratch(self.dim(), |x| {
            let scores = scores.chunks_exact_mut(per_page(pages.rows(), queries.len()));
            for (page, (rows, scores)) in pages.iter().zip(scores).enumerate() {
                for row in 0..count {
                    self.decode_planes(&rows, row, x).map_err(|error| in_page(error, page, count))?;
                    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
                        scores[row] = Kernels::SCALAR.dot(query, x);
                    }
                }
            }
            Ok(())
        })
    }

    /// Adds Σ weight·v̂ over the rows of some pages to `acc`, in the codec's basis, as
    /// [`Codec::accumulate`] does on blocks. Weights are laid out \[page]\[query]\[row].
    ///
    /// # Errors
    /// As [`Codec::accumulate`]. A corrupt block is counted over all pages.
    fn accumulate_planes(&self, weights: &[f32], pages: &PlanePages, acc: &mut [f32]) -> Result<(), Error> {
        let (count, dim) = (pages.count(), self.dim());
        with_scratch(dim, |x| {
            let weights = weights.chunks_exact(per_page(pages.rows(), acc.len() / dim));
            for (page, (rows, weights)) in pages.iter().zip(weights).enumerate() {
                for row in 0..count {
                    self.decode_planes(&rows, row, x).map_err(|error| in_page(error, page, count))?;
                    for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
                        acc.iter_mut().zip(&*x).for_each(|(acc, x)| *acc += weights[row] * x);
                    }
                }
            }
            Ok(())
        })
    }

    /// Returns how the mean of a page's keys is coded in the codec's own basis. With `None`, the
    /// default, it is kept in f16.
    ///
    /// A codec that wraps one of this library can forward to it.
    fn centre(&self) -> Option<CentreCode<'_>> {
        None
    }
}

/// Rows of planes and their norms, as a page holds them.
#[derive(Clone, Copy, Debug)]
pub struct PlaneRows<'a>(Rows<'a>);

impl<'a> PlaneRows<'a> {
    /// Wraps rows of `dim` values. Each has `stride` bytes, and [`LEAD`] bytes stand in front of
    /// the first. `ahead` is prefetched.
    pub(crate) fn new(bytes: &'a [u8], stride: usize, dim: usize, norms: &'a [f32], ahead: &'a [u8]) -> Self {
        Self(Rows { bytes, stride, len: stride + LEAD, dim, scales: Some(norms), ahead })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Returns the planes of a row.
    ///
    /// # Panics
    /// If `row` is not below [`count`](Self::count).
    #[must_use]
    pub fn planes(&self, row: usize) -> &'a [u8] {
        &self.with_lead(row)[LEAD..]
    }

    /// Returns the norm of a row. It is finite.
    ///
    /// # Panics
    /// If `row` is not below [`count`](Self::count).
    #[must_use]
    pub fn norm(&self, row: usize) -> f32 {
        self.0.scales.map_or(0.0, |norms| norms[row])
    }

    /// Returns the planes of a row with the two bytes in front of them, the form that kernels take.
    fn with_lead(&self, row: usize) -> &'a [u8] {
        &self.0.bytes[row * self.0.stride..][..self.0.len]
    }
}

/// The rows of some pages of a head, up to [`MAX_PAGES`] that follow each other. All have the same
/// number of rows.
///
/// Kernels prepare tables and queries once for all of them.
#[derive(Clone, Debug, Default)]
pub struct PlanePages<'a> {
    pages: Vec<Rows<'a>, MAX_PAGES>, // an array would be cleared for each call
}

impl<'a> PlanePages<'a> {
    /// Adds the rows of a page. It is lost if there are [`MAX_PAGES`] already.
    pub(crate) fn push(&mut self, rows: PlaneRows<'a>) {
        let _ = self.pages.push(rows.0);
    }

    /// Returns the rows of each page.
    pub fn iter(&self) -> impl Iterator<Item = PlaneRows<'a>> {
        self.rows().iter().map(|rows| PlaneRows(*rows))
    }

    /// Returns the number of rows of a page.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rows().first().map_or(0, Rows::count)
    }

    /// Returns the pages in the form that kernels take.
    fn rows(&self) -> &[Rows<'a>] {
        &self.pages
    }
}

/// Returns the values that a page has for all queries, at least 1.
pub(crate) fn per_page(pages: &[Rows], queries: usize) -> usize {
    (queries * pages.first().map_or(0, Rows::count)).max(1)
}

/// A codec of this library with a norm and planes in a rotated basis, and its kernels.
pub(crate) trait Rotated: Codec {
    fn backend(&self) -> Kernels;

    fn rotation(&self) -> &Rotation;

    /// Returns the codebook of [`CentreCode`]. It is found when the codec is built, so that
    /// programs with a constant width link only one.
    fn centre_codebook(&self) -> Codebook;

    /// Returns the format of prepared queries.
    fn format(&self) -> QueryFormat;

    /// Encodes rows; see [`Planes::encode_planes`].
    fn encode_rotated(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error>;

    /// Reads the norm at the front of a block: an f16, unless the codec says otherwise.
    fn read_norm(&self, block: &[u8]) -> f32 {
        read_f16(block).to_f32()
    }

    /// Checks that the norm of every row is one that encoding writes.
    fn check_norms(&self, rows: &[u8], stride: usize) -> Result<(), Error> {
        check_scales(rows, stride, 1)
    }

    /// Returns whether another norm always makes scores non-finite. See
    /// `Kernels::codes_tell_scales`.
    fn scores_tell_norms(&self) -> bool {
        self.backend().codes_tell_scales()
    }

    /// Decodes a row in the form of [`Rows`] into the rotated basis, scaled to `norm`. The norm
    /// inside the row is not read.
    fn decode_rotated(&self, row: &[u8], norm: f32, x: &mut [f32]) -> Result<(), Error>;

    /// Scores pages of rows whose norms are finite, laid out \[page]\[query]\[row]. If there is more
    /// than one page, there are at most [`QUERY_BATCH`](super::query::QUERY_BATCH) queries.
    fn score_rows(
        &self,
        format: &QueryFormat,
        queries: &[&[f32]],
        pages: &[Rows],
        scores: &mut [f32],
    ) -> Result<(), Error>;

    /// Adds weighted rows of pages. Norms must be finite, and weights, laid out
    /// \[page]\[query]\[row], at most [`MAX_WEIGHT`](crate::codecs::MAX_WEIGHT).
    fn accumulate_rows(&self, weights: &[f32], pages: &[Rows], acc: &mut [f32]);
}

/// Methods of [`Codec`] on the blocks of a [`Rotated`] codec, for its `impl Codec`. A block is a row
/// with its norm.
macro_rules! rotated_blocks {
    () => {
        fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
            $crate::codec::check_block(self.dim(), x, self.block_bytes(), block)?;
            self.check_norms(block, block.len())?;
            self.decode_rotated(block, self.read_norm(block), x)?;
            self.rotation.inverse(self.backend, x);
            Ok(())
        }

        fn query_len(&self) -> usize {
            self.format().len()
        }

        fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
            self.format().prepare((&self.rotation, self.backend), q, query, |_, _| ())
        }

        fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
            let (stride, format) = (self.block_bytes(), self.format());
            $crate::codec::check_score(queries, blocks, stride, scores)?;
            format.check(queries)?;
            let rows = $crate::codec::planes::rows_of(blocks, stride, stride, self.dim());
            let check = || self.check_norms(blocks, stride);
            $crate::codec::score_checked(self.scores_tell_norms(), queries, scores, check, |scores| {
                self.score_rows(&format, queries, &[rows], scores)
            })
        }

        fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
            let (stride, dim) = (self.block_bytes(), self.dim());
            $crate::codec::check_accumulate(weights, blocks, stride, acc, dim)?;
            self.check_norms(blocks, stride)?;
            let rows = $crate::codec::planes::rows_of(blocks, stride, stride, dim);
            self.accumulate_rows(weights, &[rows], acc);
            Ok(())
        }

        fn finish(&self, acc: &mut [f32]) {
            self.rotation.inverse_rows(self.backend, acc);
        }
    };
}
pub(super) use rotated_blocks;

impl<C: Rotated> Planes for C {
    fn plane_bytes(&self) -> usize {
        self.block_bytes() - LEAD
    }

    fn encode_planes(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error> {
        self.encode_rotated(rows, planes, norms)
    }

    fn decode_planes(&self, rows: &PlaneRows, row: usize, x: &mut [f32]) -> Result<(), Error> {
        self.decode_rotated(rows.with_lead(row), rows.norm(row), x)?;
        self.rotation().inverse(self.backend(), x);
        Ok(())
    }

    fn score_planes(&self, queries: &[&[f32]], pages: &PlanePages, scores: &mut [f32]) -> Result<(), Error> {
        self.score_rows(&self.format(), queries, pages.rows(), scores)
    }

    fn accumulate_planes(&self, weights: &[f32], pages: &PlanePages, acc: &mut [f32]) -> Result<(), Error> {
        self.accumulate_rows(weights, pages.rows(), acc);
        Ok(())
    }

    fn centre(&self) -> Option<CentreCode<'_>> {
        let (backend, rotation, format) = (self.backend(), self.rotation(), self.format());
        Some(CentreCode { backend, rotation, format, codebook: self.centre_codebook() })
    }
}

/// Splits blocks into their f16 norms and their planes.
pub(crate) fn take_planes(blocks: &[u8], bytes: usize, planes: &mut [u8], norms: &mut [f32]) {
    let rows = blocks.chunks_exact(bytes).zip(planes.chunks_exact_mut(bytes - LEAD));
    for ((block, planes), norm) in rows.zip(norms) {
        *norm = read_f16(block).to_f32();
        planes.copy_from_slice(&block[LEAD..]);
    }
}

/// Describes rows of `len` bytes that begin every `stride` bytes. Kernels skip what lies between.
pub(crate) fn rows_of(blocks: &[u8], stride: usize, len: usize, dim: usize) -> Rows<'_> {
    Rows { bytes: blocks, stride, len, dim, scales: None, ahead: &[] }
}

/// The code of a page's centre for codecs with [`Planes`]: a block of `turboquant:bits=5`, in the
/// rotation of the codec.
///
/// Because of that rotation, queries that are prepared for the rows can be scored with the centre
/// too.
///
/// The error of a centre affects all keys of its page. With 5 bits that error is a tenth of what
/// the 3 bits of the keys leave. On real keys, 8 bits would lower attention's divergence by 3%.
/// They would cost 0.05 bits a key value at pages of 64, and those bits are worth 10% elsewhere.
#[derive(Debug)]
pub struct CentreCode<'a> {
    backend: Kernels,
    rotation: &'a Rotation,
    format: QueryFormat,
    codebook: Codebook,
}

/// The levels of a centre's code. Its codebook works with the queries of every codec, whose
/// integers are at most ±1023.
const LEVELS: usize = 32;
const PACKING: Packing = Packing::bits(LEVELS.trailing_zeros() as u8);

/// Returns the bytes of a coded centre.
pub(crate) const fn centre_bytes(dim: usize) -> usize {
    2 + PACKING.bytes(dim)
}

impl CentreCode<'_> {
    pub(crate) fn codebook(dim: usize) -> Result<Codebook, Error> {
        lloyd_max(dim, LEVELS).ok_or(Error::Width { actual: dim })
    }

    /// Encodes a centre, and replaces it by what was encoded.
    pub(crate) fn encode(&self, centre: &mut [f32], bytes: &mut [u8]) -> Result<(), Error> {
        let (dim, backend) = (centre.len(), self.backend);
        let norm = norm(backend, centre)?;
        bytes.fill(0);
        if norm >= SMALLEST_NORM {
            let mut thresholds = [0.0; 255];
            let count = self.codebook.thresholds(&mut thresholds);
            let (head, plane) = bytes.split_at_mut(2);
            with_scratch(dim + words_for(dim), |memory| {
                let (decoded, codes) = memory.split_at_mut(dim);
                let codes = bytes_of(codes, dim);
                self.rotation.forward(backend, centre);
                backend.quantize(centre, 1.0 / norm, &thresholds[..count], codes);
                backend.lookup(codes, self.codebook.centroids(), self.codebook.scale(), decoded);
                let stored = to_f16(
                    backend.dot(centre, decoded) / backend.dot(decoded, decoded).max(f32::MIN_POSITIVE),
                )?;
                head.copy_from_slice(&stored.to_le_bytes());
                backend.pack(PACKING, codes, plane);
                Ok(())
            })?;
        }
        self.decode(bytes, centre)
    }

    /// Decodes a centre. Any bytes are allowed if their f16 is finite.
    pub(crate) fn decode(&self, bytes: &[u8], centre: &mut [f32]) -> Result<(), Error> {
        let backend = self.backend;
        with_scratch(words_for(centre.len()), |codes| {
            let codes = bytes_of(codes, centre.len());
            backend.unpack(PACKING, &bytes[2..], codes);
            let scale = read_f16(bytes).to_f32() * self.codebook.scale();
            backend.lookup(codes, self.codebook.centroids(), scale, centre);
            Ok(())
        })?;
        self.rotation.inverse(backend, centre);
        Ok(())
    }

    /// Scores q·centre of each query with centres that are `stride` bytes apart.
    pub(crate) fn score(
        &self,
        queries: &[&[f32]],
        bytes: &[u8],
        stride: usize,
        scores: &mut [f32],
    ) -> Result<(), Error> {
        let dim = self.rotation.dim();
        let rows = rows_of(bytes, stride, centre_bytes(dim), dim);
        self.format.in_int_batches(queries, scores, |queries, scores| {
            let (centroids, scale) = (self.codebook.centroids(), self.codebook.scale());
            self.backend.score_codes(PACKING, &[rows], centroids, scale, queries, scores);
        })
    }
}
