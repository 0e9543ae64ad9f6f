//! What a cache keeps of codecs whose blocks are a norm and what it scales: rows without their norms, which a page keeps
//! together, and a page's centre in the codec's own basis.

use super::query::QueryFormat;
use super::scratch::{bytes_of, with_scratch, words_for};
use super::{Codec, SMALLEST_NORM, norm, read_f16, to_f16};
use crate::Error;
use crate::backend::Kernels;
use crate::codebook::{Codebook, lloyd_max};
use crate::rotation::Rotation;
use core::ops::Range;
use octaplex_arch::{Packing, Rows};

/// A codec whose block is a norm, and planes that code a direction: x̂ = norm · direction, whatever the norm.
pub(crate) trait Planes: Codec {
    fn backend(&self) -> Kernels;

    fn rotation(&self) -> &Rotation;

    /// The codebook of [`CentreCode`], found when the codec was made: programs that know its width then link no other's.
    fn centre(&self) -> Codebook;

    /// Bytes of a row without its norm.
    fn plane_bytes(&self) -> usize {
        self.block_bytes() - 2
    }

    /// Prepared queries.
    fn format(&self) -> QueryFormat;

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

    /// Sums of rows whose norms are finite, by weights of at most [`MAX_WEIGHT`](crate::MAX_WEIGHT).
    fn accumulate_rows(&self, weights: &[f32], rows: &Rows, acc: &mut [f32]);
}

/// What a codec's blocks are made of: nothing that a cache takes apart, one block, or two of half the width, the second with
/// fewer bits.
pub(crate) type Grades<'a> = [Option<&'a dyn Planes>; 2];

/// Encodes some channels of rows of `dim` values.
///
/// # Errors
/// As [`Codec::encode_page`]; blocks may be written then.
pub(crate) fn encode_channels(
    codec: &(impl Codec + ?Sized),
    channels: Range<usize>,
    rows: &[f32],
    dim: usize,
    blocks: &mut [u8],
) -> Result<(), Error> {
    let (width, bytes) = (channels.len(), codec.block_bytes());
    if width == dim {
        return codec.encode_page(rows, blocks).map(|_| ());
    }
    with_scratch(SIDE_BY_SIDE * width, |memory| {
        for (rows, blocks) in rows.chunks(SIDE_BY_SIDE * dim).zip(blocks.chunks_mut(SIDE_BY_SIDE * bytes)) {
            let side = &mut memory[..rows.len() / dim * width];
            for (side, row) in side.chunks_exact_mut(width).zip(rows.chunks_exact(dim)) {
                side.copy_from_slice(&row[channels.clone()]);
            }
            codec.encode_page(side, blocks)?;
        }
        Ok(())
    })
}

/// Blocks of `len` bytes, and whatever follows each of them.
pub(crate) fn rows_of(blocks: &[u8], stride: usize, len: usize, dim: usize) -> Rows<'_> {
    Rows { bytes: blocks, stride, len, dim, scales: None, ahead: &[] }
}

/// Rows whose channels [`encode_channels`] takes side by side: what an encoder of pages takes at a time.
pub(crate) const SIDE_BY_SIDE: usize = 16;

/// How a page's centre is stored beside rows of [`Planes`]: as a block of `turboquant:bits=5`, in the rotation of the rows'
/// codec, so that prepared queries meet it as they meet the rows.
///
/// A centre's error is that of all keys of its page: 5 bits leave a tenth of what the keys' own 3 bits do. On real keys 8 bits
/// gain 3% of attention's divergence, and cost .05 bits a key at pages of 64, which are worth 10%.
pub(crate) struct CentreCode<'a> {
    codec: &'a dyn Planes,
    codebook: Codebook,
}

/// Codes of a centre. Their codebook goes with the queries of every codec: integers of at most ±1023.
const LEVELS: usize = 32;
const PACKING: Packing = Packing::bits(LEVELS.trailing_zeros() as u8);

/// Bytes of a centre.
pub(crate) const fn centre_bytes(dim: usize) -> usize {
    2 + PACKING.bytes(dim)
}

impl<'a> CentreCode<'a> {
    pub(crate) fn new(codec: &'a dyn Planes) -> Self {
        Self { codec, codebook: codec.centre() }
    }

    pub(crate) fn codebook(dim: usize) -> Result<Codebook, Error> {
        lloyd_max(dim, LEVELS).ok_or(Error::Width { actual: dim })
    }

    /// Encodes a centre, and puts what it decodes to in its place.
    pub(crate) fn encode(&self, centre: &mut [f32], bytes: &mut [u8]) -> Result<(), Error> {
        let (dim, backend) = (centre.len(), self.codec.backend());
        let norm = norm(backend, centre)?;
        bytes.fill(0);
        if norm >= SMALLEST_NORM {
            let mut thresholds = [0.0; 255];
            let count = self.codebook.thresholds(&mut thresholds);
            let (head, plane) = bytes.split_at_mut(2);
            with_scratch(dim + words_for(dim), |memory| {
                let (decoded, codes) = memory.split_at_mut(dim);
                let codes = bytes_of(codes, dim);
                self.codec.rotation().forward(backend, centre);
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
        let backend = self.codec.backend();
        with_scratch(words_for(centre.len()), |codes| {
            let codes = bytes_of(codes, centre.len());
            backend.unpack(PACKING, &bytes[2..], codes);
            let scale = read_f16(bytes).to_f32() * self.codebook.scale();
            backend.lookup(codes, self.codebook.centroids(), scale, centre);
            Ok(())
        })?;
        self.codec.rotation().inverse(backend, centre);
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
        let rows = rows_of(bytes, stride, centre_bytes(self.codec.dim()), self.codec.dim());
        self.codec.format().in_int_batches(queries, scores, |queries, scores| {
            let (centroids, scale) = (self.codebook.centroids(), self.codebook.scale());
            self.codec.backend().score_codes(PACKING, &rows, centroids, scale, queries, scores);
        })
    }
}
