//! Codecs whose block is a norm and planes that it scales, so that a page can keep the norms of all rows together.
//!
//! [`Planes`] is what a page asks of such a codec, of this library or not. [`Rotated`] is what those of this library
//! implement: kernels in a rotated basis, from which [`Planes`] follows.

use super::query::QueryFormat;
use super::scratch::{bytes_of, with_scratch, words_for};
use super::{Codec, SMALLEST_NORM, norm, read_f16, to_f16};
use crate::Error;
use crate::backend::Kernels;
use crate::codebook::{Codebook, lloyd_max};
use crate::rotation::Rotation;
use octaplex_arch::{Packing, Rows};

/// Bytes in front of a row of planes that belong to the row before it.
///
/// Kernels read rows of one form: an f16 norm, then planes. A page keeps norms elsewhere and its rows without gaps, so
/// the two bytes where a kernel expects the norm are the last two of the previous row. No kernel reads them.
///
/// ```text
/// block      │norm│ planes ……………… │norm│ planes ……………… │
/// page    ┆..│ planes of row 0 │ planes of row 1 │ …
///          └─ row 0 ──────────┘
///                          └─ row 1 ──────────┘
/// ```
pub(crate) const LEAD: usize = 2;

/// How pages keep a codec's rows: what [`Codec::pages`] answers.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Pages<'a> {
    /// Blocks, one behind the other.
    Blocks,
    /// Rows of planes without their norms, which a page keeps together in 6 bits each.
    Lean(&'a dyn Planes),
    /// Two codecs of half the width each: the first for the channels that queries weigh most. For keys; values in such a
    /// codec are kept as blocks.
    Graded([&'a dyn Planes; 2]),
}

/// A codec whose block is a norm, and planes that code a direction: x̂ = norm · direction, whatever the norm.
///
/// A cache keeps the pages of such a codec *lean*: planes without gaps, and norms of 6 bits. That saves 0.1 to 0.3 bits a
/// value. A codec of your own has lean pages if it implements this trait and returns `Pages::Lean(self)` from
/// [`Codec::pages`]. Pages are lean where planes take 4.5 bits a value at most; more precise codecs keep their blocks.
///
/// Three methods are enough. The others decode by default.
pub trait Planes: Codec {
    /// Bytes of a row without its norm.
    fn plane_bytes(&self) -> usize;

    /// Encodes rows into planes of [`plane_bytes`](Self::plane_bytes) each, and writes one norm for each row. After an
    /// error both may hold anything.
    ///
    /// # Errors
    /// As [`Codec::encode_page`].
    fn encode_planes(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error>;

    /// Decodes row `row` into `x`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for planes that no encoder writes.
    fn decode_planes(&self, rows: &PlaneRows, row: usize, x: &mut [f32]) -> Result<(), Error>;

    /// Scores every prepared query with every row, laid out \[query]\[row]: [`Codec::score`] on planes.
    ///
    /// # Errors
    /// As [`Codec::score`].
    fn score_planes(&self, queries: &[&[f32]], rows: &PlaneRows, scores: &mut [f32]) -> Result<(), Error> {
        let count = rows.count();
        with_scratch(self.dim(), |x| {
            for row in 0..count {
                self.decode_planes(rows, row, x)?;
                for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count)) {
                    scores[row] = Kernels::SCALAR.dot(query, x);
                }
            }
            Ok(())
        })
    }

    /// acc\[query] += Σ weight·v̂ over the rows, in the codec's basis: [`Codec::accumulate`] on planes.
    ///
    /// # Errors
    /// As [`Codec::accumulate`].
    fn accumulate_planes(&self, weights: &[f32], rows: &PlaneRows, acc: &mut [f32]) -> Result<(), Error> {
        let (count, dim) = (rows.count(), self.dim());
        with_scratch(dim, |x| {
            for row in 0..count {
                self.decode_planes(rows, row, x)?;
                for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(dim)) {
                    acc.iter_mut().zip(&*x).for_each(|(acc, x)| *acc += weights[row] * x);
                }
            }
            Ok(())
        })
    }

    /// How the mean of a page's keys is coded in the codec's own basis; `None` (the default) keeps it in f16. A codec that
    /// wraps one of this library can forward its answer.
    fn centre(&self) -> Option<CentreCode<'_>> {
        None
    }
}

/// Rows of planes and their norms, as a page holds them.
#[derive(Clone, Copy, Debug)]
pub struct PlaneRows<'a>(Rows<'a>);

impl<'a> PlaneRows<'a> {
    /// Rows of `dim` values, `stride` bytes each behind [`LEAD`] bytes; `ahead` is read next.
    pub(crate) fn new(bytes: &'a [u8], stride: usize, dim: usize, norms: &'a [f32], ahead: &'a [u8]) -> Self {
        Self(Rows { bytes, stride, len: stride + LEAD, dim, scales: Some(norms), ahead })
    }

    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// The planes of a row.
    ///
    /// # Panics
    /// Where `row` is not below [`count`](Self::count).
    #[must_use]
    pub fn planes(&self, row: usize) -> &'a [u8] {
        &self.with_lead(row)[LEAD..]
    }

    /// The norm of a row: finite.
    ///
    /// # Panics
    /// Where `row` is not below [`count`](Self::count).
    #[must_use]
    pub fn norm(&self, row: usize) -> f32 {
        self.0.scales.map_or(0.0, |norms| norms[row])
    }

    fn with_lead(&self, row: usize) -> &'a [u8] {
        &self.0.bytes[row * self.0.stride..][..self.0.len]
    }
}

/// A codec of this library that is a norm and planes in a rotated basis, and the kernels for it.
pub(crate) trait Rotated: Codec {
    fn backend(&self) -> Kernels;

    fn rotation(&self) -> &Rotation;

    /// The codebook of [`CentreCode`], found when the codec was made: programs that know its width then link no other's.
    fn centre_codebook(&self) -> Codebook;

    /// Prepared queries.
    fn format(&self) -> QueryFormat;

    /// See [`Planes::encode_planes`].
    fn encode_rotated(&self, rows: &[f32], planes: &mut [u8], norms: &mut [f32]) -> Result<(), Error>;

    /// Decodes a row, as [`Rows`] has them, for a norm that it need not have itself, in the rotated basis.
    fn decode_rotated(&self, row: &[u8], norm: f32, x: &mut [f32]) -> Result<(), Error>;

    /// Scores of rows whose norms are finite.
    fn score_rows(
        &self,
        format: &QueryFormat,
        queries: &[&[f32]],
        rows: &Rows,
        scores: &mut [f32],
    ) -> Result<(), Error>;

    /// Sums of rows whose norms are finite, by weights of at most [`MAX_WEIGHT`](crate::codecs::MAX_WEIGHT).
    fn accumulate_rows(&self, weights: &[f32], rows: &Rows, acc: &mut [f32]);
}

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

    fn score_planes(&self, queries: &[&[f32]], rows: &PlaneRows, scores: &mut [f32]) -> Result<(), Error> {
        self.score_rows(&self.format(), queries, &rows.0, scores)
    }

    fn accumulate_planes(&self, weights: &[f32], rows: &PlaneRows, acc: &mut [f32]) -> Result<(), Error> {
        self.accumulate_rows(weights, &rows.0, acc);
        Ok(())
    }

    fn centre(&self) -> Option<CentreCode<'_>> {
        let (backend, rotation, format) = (self.backend(), self.rotation(), self.format());
        Some(CentreCode { backend, rotation, format, codebook: self.centre_codebook() })
    }
}

/// Takes blocks of an f16 norm and planes apart.
pub(crate) fn take_planes(blocks: &[u8], bytes: usize, planes: &mut [u8], norms: &mut [f32]) {
    let rows = blocks.chunks_exact(bytes).zip(planes.chunks_exact_mut(bytes - LEAD));
    for ((block, planes), norm) in rows.zip(norms) {
        *norm = read_f16(block).to_f32();
        planes.copy_from_slice(&block[LEAD..]);
    }
}

/// Blocks of `len` bytes, and whatever follows each of them.
pub(crate) fn rows_of(blocks: &[u8], stride: usize, len: usize, dim: usize) -> Rows<'_> {
    Rows { bytes: blocks, stride, len, dim, scales: None, ahead: &[] }
}

/// How a page's centre is stored beside rows of [`Planes`]: as a block of `turboquant:bits=5`, in the rotation of the rows'
/// codec, so that prepared queries meet it as they meet the rows.
///
/// A centre's error is that of all keys of its page: 5 bits leave a tenth of what the keys' own 3 bits do. On real keys 8
/// bits gain 3% of attention's divergence, and cost 0.05 bits a key at pages of 64, which are worth 10%.
#[derive(Debug)]
pub struct CentreCode<'a> {
    backend: Kernels,
    rotation: &'a Rotation,
    format: QueryFormat,
    codebook: Codebook,
}

/// Codes of a centre. Their codebook goes with the queries of every codec: integers of at most ±1023.
const LEVELS: usize = 32;
const PACKING: Packing = Packing::bits(LEVELS.trailing_zeros() as u8);

/// Bytes of a coded centre.
pub(crate) const fn centre_bytes(dim: usize) -> usize {
    2 + PACKING.bytes(dim)
}

impl CentreCode<'_> {
    pub(crate) fn codebook(dim: usize) -> Result<Codebook, Error> {
        lloyd_max(dim, LEVELS).ok_or(Error::Width { actual: dim })
    }

    /// Encodes a centre, and puts what it decodes to in its place.
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

    /// Any bytes are allowed whose f16 is finite.
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

    /// Scores q·centre of each query, centres being `stride` bytes apart.
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
            self.backend.score_codes(PACKING, &rows, centroids, scale, queries, scores);
        })
    }
}
