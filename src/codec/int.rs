//! The codec `int`: plain integers with a scale for each token, or for each group of 16, 32 or 64
//! values.
//!
//! It is the baseline that inference engines ship (q4_0 and KIVI are of this kind). With
//! `rotate=true` it is the baseline "rotation + q4_0".
//!
//! ```text
//!                  scale                          zero       integers                    code
//! symmetric        f16(max|x|/M)                  0          -M..=M, M = 2^(bits-1) - 1  integer + 2^(bits-1)
//! asymmetric       f16((max-min)/(2^bits - 1))    f16(min)   0..2^bits                   integer
//!
//! block            scale (and zero) of each group │ one stream of codes │ flags (with `med`)
//! ```
//!
//! Integers are rint((x - zero)/scale), ties to even and clamped, with the *rounded* scale and
//! zero. Two symmetric bits give three levels.

mod spec;

pub use spec::IntSpec;

use super::outliers::{Chunked, LONE_BLOCK, Outliers, WithChunks};
use super::planes::rows_of;
use super::query::{Body, QUERY_BATCH, QueryFormat, each_batch};
use super::scratch::{MAX_SCRATCH, bytes_of, with_scratch, words_for};
use super::{
    Codec, MAX_VALUE, check_accumulate, check_block, check_scales, check_score, check_values, count_rows,
    decode_blocks, encode_blocks, first_blocks, score_checked, to_f16,
};
use crate::backend::Kernels;
use crate::codebook::WIDTHS;
use crate::codec::typed::Typed;
use crate::random::HeadId;
use crate::random::Purpose;
use crate::rotation::Rotation;
use crate::{Backend, Error};
use core::ops::Range;
use half::f16;
use octaplex_arch::{Affine, Float, IntQuery, Rows};
use spec::{BITS, GROUP};

/// Plain integers for vectors of `D` values. [`IntSpec`] has the parameters. The state is 2.3 KiB.
///
/// All methods take O(D), and O(D log D) with `rotate=true`. Scores and sums are in integers. This
/// is the baseline that engines ship.
///
/// ```
/// use octaplex::codecs::{Int, IntSpec, HeadId};
/// use octaplex::{Backend, Error};
///
/// let codec = Int::<64>::build(IntSpec::new(4).group(Some(32)), Backend::detect(), HeadId::default())?;
/// let (mut block, mut decoded) = ([0; 36], [0.0; 64]);
/// codec.encode(&[0.5; 64], &mut block)?;
/// codec.decode(&block, &mut decoded)?;
/// assert!(decoded.iter().all(|x| (x - 0.5).abs() < 1e-3));
/// # Ok::<(), Error>(())
/// ```
pub type Int<const D: usize> = Typed<Core, D>;

/// The codec at a width known at run time.
#[derive(Clone, Debug)]
pub struct Core {
    spec: IntSpec,
    backend: Kernels,
    rotation: Rotation,
    affine: Affine,
}

/// The integers from -128 on. A codec's table of values is a slice of it.
const INTEGERS: [i16; 384] = {
    let mut integers = [0; 384];
    let mut i = 0;
    while i < integers.len() {
        integers[i] = i as i16 - 128;
        i += 1;
    }
    integers
};

/// Rows whose groups are read together if a row has several groups. In a sum these rows share
/// integer weights.
const RUN: usize = 256;

impl Core {
    /// Builds the codec of a spec for one head.
    ///
    /// # Errors
    /// [`Error::Width`] unless `dim` is one of [`WIDTHS`]; [`Error::Value`] for bits or groups out
    /// of range; [`Error::Unsupported`] unless the group divides `dim`, and for `med` with
    /// `asymmetric`.
    pub(crate) fn build(spec: IntSpec, dim: usize, backend: Backend, head: HeadId) -> Result<Self, Error> {
        if !WIDTHS.contains(&dim) {
            return Err(Error::Width { actual: dim });
        }
        if !(2..=8).contains(&spec.bits) {
            return Err(BITS.error(0));
        }
        if !matches!(spec.group, None | Some(16 | 32 | 64)) {
            return Err(GROUP.error(0));
        }
        if spec.med > 0 && spec.asymmetric {
            return Err(Error::Unsupported {
                why: "med needs asymmetric=false: outliers must count as zero",
            });
        }
        let why = "the group does not divide the width; use a smaller group or group=token";
        let affine = spec.affine(dim).ok_or(Error::Unsupported { why })?;
        let rotation = match spec.rotate {
            true => Rotation::wht(dim, 1, spec.seed, Purpose::RotationSigns, head)?,
            false => Rotation::identity(dim),
        };
        Ok(Self { spec, backend: backend.kernels(), rotation, affine })
    }

    /// Returns the format of prepared queries: integers. With outliers it is floats, which `score`
    /// quantises itself.
    fn format(&self) -> QueryFormat {
        let body = if self.spec.med > 0 { Body::Float } else { Body::Int(self.query_limit()) };
        QueryFormat::new(self.dim(), body)
    }

    /// Limits the query's integers, so that sums over the widest vector fit an i32.
    fn query_limit(&self) -> i16 {
        if self.affine.bits <= 4 { 127 } else { 1023 }
    }

    /// Returns the integers that codes stand for.
    fn integers(&self) -> &'static [i16] {
        &INTEGERS[128 - self.affine.offset as usize..][..self.affine.packing().levels()]
    }

    /// Computes the scale and the zero of a group as they are stored.
    fn scale_and_zero(&self, group: &[f32]) -> Result<(f16, f16), Error> {
        if self.spec.asymmetric {
            let (min, max) = self.backend.min_max(group);
            let steps = (1u32 << self.spec.bits) - 1;
            Ok((to_f16((max - min) / steps as f32)?, to_f16(min)?))
        } else {
            let largest = (1u32 << (self.spec.bits - 1)) - 1;
            Ok((to_f16(self.backend.max_abs(group) / largest as f32)?, f16::ZERO))
        }
    }

    /// Encodes a vector in the codec's basis. `codes` is memory for its codes.
    fn encode_row(&self, z: &[f32], codes: &mut [u8], row: &mut [u8]) -> Result<(), Error> {
        let affine = &self.affine;
        let largest = (1 << (affine.bits - 1)) - 1;
        let range = if affine.asymmetric { (0, 2 * largest + 1) } else { (-largest, largest) };
        let mut header = [0; 4 * (octaplex_arch::MAX_DIM / 16)];
        let fields = if affine.asymmetric { 4 } else { 2 };
        let groups = z.chunks_exact(affine.group).zip(codes.chunks_exact_mut(affine.group));
        for ((values, codes), header) in groups.zip(header.chunks_exact_mut(fields)) {
            let (scale, zero) = self.scale_and_zero(values)?;
            header[..2].copy_from_slice(&scale.to_le_bytes());
            if affine.asymmetric {
                header[2..].copy_from_slice(&zero.to_le_bytes());
            }
            self.backend.quantize_affine(values, zero.to_f32(), scale.to_f32(), affine.offset, range, codes);
        }
        let (head, planes) = row.split_at_mut(affine.header_bytes());
        head.copy_from_slice(&header[..affine.header_bytes()]);
        self.backend.pack(affine.packing(), codes, planes);
        Ok(())
    }

    /// Returns where blocks have their flags, if outliers are kept.
    fn outliers(&self) -> Option<Outliers> {
        let (block_bytes, flags_at) = (self.block_bytes(), self.affine.row_bytes());
        (self.spec.med > 0).then_some(Outliers { block_bytes, flags_at, chunks: self.dim() / 4 })
    }

    /// Returns checked blocks as rows with one scale, if a block has only one.
    fn plain<'a>(&self, blocks: &'a [u8]) -> Option<Rows<'a>> {
        let plain = self.affine.groups() == 1 && !self.affine.asymmetric;
        plain.then(|| rows_of(blocks, self.block_bytes(), self.affine.row_bytes(), self.dim()))
    }

    /// Chooses the backend for groups. Groups of up to 32 coordinates fill at most half of a wide
    /// register, so one query is faster with narrower registers.
    fn of_groups(&self, queries: usize) -> Kernels {
        match (queries, self.affine.group) {
            (1, ..=32) => self.backend.among_plain_code(),
            _ => self.backend,
        }
    }

    /// Calls `f` for each group of each run of [`RUN`] checked blocks.
    ///
    /// `f` receives the index of the run's first block, the group's coordinates, its rows with
    /// their scales, and their zeros.
    fn each_group(
        &self,
        backend: Kernels,
        blocks: &[u8],
        mut f: impl FnMut(usize, Range<usize>, &Rows, &[f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Affine { dim, group, asymmetric, .. } = self.affine;
        let (stride, plane) = (self.block_bytes(), self.affine.packing().bytes(group));
        let fields = if asymmetric { 4 } else { 2 };
        let (mut scales, mut zeros, mut halves) = ([0.0; RUN], [0.0; RUN], [[0; 2]; RUN]);
        for (run, bytes) in blocks.chunks(RUN * stride).enumerate() {
            let count = bytes.len() / stride;
            let mut read = |at: usize, out: &mut [f32]| {
                for (half, row) in halves.iter_mut().zip(bytes.chunks_exact(stride)) {
                    *half = [row[at], row[at + 1]];
                }
                backend.decode_floats(Float::F16, halves[..count].as_flattened(), &mut out[..count]);
            };
            for g in 0..dim / group {
                read(g * fields, &mut scales);
                if asymmetric {
                    read(g * fields + 2, &mut zeros);
                }
                // Kernels take rows that begin with an f16 scale, but read it from `scales` if that
                // is given. So the two bytes in front of a group's codes, whatever they are, stand
                // in for it:
                //
                // block   scales │ group 0 │ group 1 │ …
                // rows             ░░ group 1 ┘          ░░: two bytes that no kernel reads
                let (start, len) = (self.affine.header_bytes() + g * plane - 2, 2 + plane);
                let bytes = &bytes[start..][..(count - 1) * stride + len];
                let rows =
                    Rows { bytes, stride, len, dim: group, scales: Some(&scales[..count]), ahead: &[] };
                f(run * RUN, g * group..(g + 1) * group, &rows, &zeros[..count])?;
            }
        }
        Ok(())
    }

    /// Scores rows group by group, in ascending order. The sum of a query's integers over a group
    /// is multiplied by the group's zero.
    fn score_rows(&self, blocks: &[u8], queries: &[IntQuery], scores: &mut [f32]) -> Result<(), Error> {
        let (packing, integers) = (self.affine.packing(), self.integers());
        if let Some(rows) = self.plain(blocks) {
            self.backend.score_codes(packing, &[rows], integers, 1.0, queries, scores);
            return Ok(());
        }
        scores.fill(0.0);
        let backend = self.of_groups(queries.len());
        let count = blocks.len() / self.block_bytes();
        self.each_group(backend, blocks, |first, coordinates, rows, zeros| {
            // The number of queries that fit on the stack.
            let batch = QUERY_BATCH.min(MAX_SCRATCH / zeros.len());
            let mut scored = Ok(());
            each_batch(batch, queries, scores, |queries, scores| {
                let mut parts = [IntQuery { values: &[], scale: 0.0 }; QUERY_BATCH];
                for (part, query) in parts.iter_mut().zip(queries) {
                    *part = IntQuery { values: &query.values[coordinates.clone()], ..*query };
                }
                let parts = &parts[..queries.len()];
                let score = with_scratch(parts.len() * zeros.len(), |found| {
                    backend.score_codes(packing, &[*rows], integers, 1.0, parts, found);
                    let of_queries = found.chunks_exact(zeros.len()).zip(scores.chunks_exact_mut(count));
                    for (part, (found, scores)) in parts.iter().zip(of_queries) {
                        let sum =
                            part.values.iter().map(|&int| i32::from(int)).sum::<i32>() as f32 * part.scale;
                        for ((score, found), zero) in scores[first..].iter_mut().zip(found).zip(zeros) {
                            *score += found + sum * zero;
                        }
                    }
                    Ok(())
                });
                scored = scored.and(score);
            });
            scored
        })
    }

    /// Adds weighted rows group by group. Zeros contribute Σ weight·zero to every coordinate of a
    /// group.
    fn accumulate_rows(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let (packing, integers, dim) = (self.affine.packing(), self.integers(), self.dim());
        if let Some(rows) = self.plain(blocks) {
            self.backend.accumulate_codes(packing, &[rows], integers, 1.0, weights, acc);
            return Ok(());
        }
        let count = blocks.len() / self.block_bytes();
        let backend = self.of_groups(acc.len() / dim);
        self.each_group(backend, blocks, |first, coordinates, rows, zeros| {
            let width = coordinates.len();
            // The number of outputs that fit on the stack.
            let batch = QUERY_BATCH.min(MAX_SCRATCH / (zeros.len() + width));
            let batches = weights.chunks(batch * count).zip(acc.chunks_mut(batch * dim));
            for (weights, acc) in batches {
                let queries = acc.len() / dim;
                with_scratch(queries * (zeros.len() + width), |memory| {
                    let (ours, sums) = memory.split_at_mut(queries * zeros.len());
                    for (ours, weights) in ours.chunks_exact_mut(zeros.len()).zip(weights.chunks_exact(count))
                    {
                        ours.copy_from_slice(&weights[first..][..zeros.len()]);
                    }
                    backend.accumulate_codes(packing, &[*rows], integers, 1.0, ours, sums);
                    let of_queries = ours.chunks_exact(zeros.len()).zip(sums.chunks_exact(width));
                    for ((weights, sums), acc) in of_queries.zip(acc.chunks_exact_mut(dim)) {
                        let zero =
                            if self.affine.asymmetric { self.backend.dot(weights, zeros) } else { 0.0 };
                        for (acc, sum) in acc[coordinates.clone()].iter_mut().zip(sums) {
                            *acc += sum + zero;
                        }
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    /// Returns the number of f16 at the front of a block.
    fn scales(&self) -> usize {
        self.affine.header_bytes() / 2
    }
}

impl Chunked for Core {
    fn with_chunks(&self, x: &[f32], f: WithChunks<'_>) -> Result<(), Error> {
        check_values(x, MAX_VALUE)?;
        let dim = self.dim();
        with_scratch(dim + dim / 4, |memory| {
            let (z, norms) = memory.split_at_mut(dim);
            z.copy_from_slice(x);
            self.rotation.forward(self.backend, z);
            self.backend.chunk_norms(z, norms);
            match norms.iter().fold(true, |finite, norm| finite & norm.is_finite()) {
                true => f(z, norms),
                false => Err(Error::Overflow),
            }
        })
    }

    fn write(&self, values: &[f32], norms: &[f32], block: &mut [u8]) -> Result<(), Error> {
        let dim = self.dim();
        with_scratch(dim + words_for(dim), |memory| {
            let (z, codes) = memory.split_at_mut(dim);
            let chunks = z.as_chunks_mut::<4>().0.iter_mut().zip(values.as_chunks::<4>().0);
            for ((z, values), _) in chunks.zip(norms).filter(|(_, norm)| **norm > 0.0) {
                *z = *values;
            }
            self.encode_row(z, bytes_of(codes, dim), &mut block[..self.affine.row_bytes()])
        })
    }
}

impl Codec for Core {
    fn dim(&self) -> usize {
        self.affine.dim
    }

    fn block_bytes(&self) -> usize {
        self.affine.row_bytes() + self.spec.flag_bytes(self.dim())
    }

    fn encode(&self, x: &[f32], block: &mut [u8]) -> Result<(), Error> {
        let dim = self.dim();
        check_block(dim, x, self.block_bytes(), block)?;
        check_values(x, MAX_VALUE)?;
        with_scratch(dim + words_for(dim), |memory| {
            let (z, codes) = memory.split_at_mut(dim);
            let z = if self.spec.rotate {
                z.copy_from_slice(x);
                self.rotation.forward(self.backend, z);
                z
            } else {
                x
            };
            self.encode_row(z, bytes_of(codes, dim), &mut block[..self.affine.row_bytes()])
        })?;
        block[self.affine.row_bytes()..].fill(0);
        Ok(())
    }

    fn decode(&self, block: &[u8], x: &mut [f32]) -> Result<(), Error> {
        check_block(self.dim(), x, self.block_bytes(), block)?;
        let (row, flags) = block.split_at(self.affine.row_bytes());
        if flags.iter().any(|flags| *flags != 0) {
            return Err(Error::Unsupported { why: LONE_BLOCK });
        }
        check_scales(block, block.len(), self.scales())?;
        self.backend.decode_affine(&self.affine, row, x);
        self.rotation.inverse(self.backend, x);
        Ok(())
    }

    fn page_bytes_max(&self, tokens: usize) -> usize {
        match self.outliers() {
            Some(outliers) => outliers.page_bytes_max(tokens),
            None => tokens * self.block_bytes(),
        }
    }

    fn encode_page(&self, rows: &[f32], page: &mut [u8]) -> Result<usize, Error> {
        match self.outliers() {
            Some(outliers) => outliers.encode_page(self, self.spec.med, rows, page),
            None => encode_blocks(self, rows, page),
        }
    }

    fn first_page(&self, bytes: &[u8], tokens: usize) -> Result<(usize, usize), Error> {
        match self.outliers() {
            Some(outliers) => outliers.first_page(bytes, tokens),
            None => first_blocks(bytes, self.block_bytes(), tokens),
        }
    }

    fn decode_page(&self, page: &[u8], rows: &mut [f32]) -> Result<(), Error> {
        let Some(outliers) = self.outliers() else { return decode_blocks(self, page, rows) };
        let dim = self.dim();
        let page = outliers.split(page, count_rows(rows, dim)?)?;
        check_scales(page.blocks, self.block_bytes(), self.scales())?;
        for (block, x) in page.blocks.chunks_exact(self.block_bytes()).zip(rows.chunks_exact_mut(dim)) {
            self.backend.decode_affine(&self.affine, &block[..self.affine.row_bytes()], x);
        }
        page.add_to(dim, rows);
        self.rotation.inverse_rows(self.backend, rows);
        Ok(())
    }

    fn query_len(&self) -> usize {
        self.format().len()
    }

    fn prepare_query(&self, q: &[f32], query: &mut [f32]) -> Result<(), Error> {
        self.format().prepare((&self.rotation, self.backend), q, query, |_, _| ())
    }

    fn score(&self, queries: &[&[f32]], blocks: &[u8], scores: &mut [f32]) -> Result<(), Error> {
        let format = self.format();
        let Some(outliers) = self.outliers() else {
            check_score(queries, blocks, self.block_bytes(), scores)?;
            format.check(queries)?;
            let check = || check_scales(blocks, self.block_bytes(), self.scales());
            let telling = self.plain(blocks).is_some() && self.backend.codes_tell_scales();
            return score_checked(telling, queries, scores, check, |scores| {
                let mut scored = Ok(());
                format.in_int_batches(queries, scores, |queries, scores| {
                    scored = scored.and_then(|()| self.score_rows(blocks, queries, scores));
                })?;
                scored
            });
        };
        let page = outliers.split_for(blocks, "scores", scores.len(), queries.len())?;
        check_scales(page.blocks, self.block_bytes(), self.scales())?;
        let dim = self.dim();
        // The number of queries whose integers fit on the stack.
        let batch = QUERY_BATCH.min(MAX_SCRATCH / words_for(2 * dim));
        with_scratch(queries.len().min(batch) * words_for(2 * dim), |memory| {
            let memory: &mut [i16] = bytemuck::cast_slice_mut(memory);
            let mut scored = Ok(());
            format.in_float_batches(queries, scores, |queries, scores| {
                each_batch(batch, queries, scores, |queries, scores| {
                    let mut ints = [IntQuery { values: &[], scale: 0.0 }; QUERY_BATCH];
                    let memory = memory.chunks_exact_mut(dim);
                    for ((query, values), int) in queries.iter().zip(memory).zip(&mut ints) {
                        let scale = self.backend.quantize_query(query, self.query_limit(), values);
                        *int = IntQuery { values, scale };
                    }
                    let ints = &ints[..queries.len()];
                    scored = scored.and_then(|()| self.score_rows(page.blocks, ints, scores));
                    page.add_scores(queries, scores);
                });
            })?;
            scored
        })
    }

    fn accumulate(&self, weights: &[f32], blocks: &[u8], acc: &mut [f32]) -> Result<(), Error> {
        let (dim, bytes) = (self.dim(), self.block_bytes());
        let page = match self.outliers() {
            Some(outliers) => {
                Some(outliers.split_for(blocks, "weights", weights.len(), count_rows(acc, dim)?)?)
            }
            None => None,
        };
        let blocks = page.map_or(blocks, |page| page.blocks);
        check_accumulate(weights, blocks, bytes, acc, dim)?;
        check_scales(blocks, bytes, self.scales())?;
        self.accumulate_rows(weights, blocks, acc)?;
        if let Some(page) = page {
            page.accumulate(weights, dim, acc);
        }
        Ok(())
    }

    fn finish(&self, acc: &mut [f32]) {
        self.rotation.inverse_rows(self.backend, acc);
    }
}
