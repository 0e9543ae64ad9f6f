//! Codecs: vectors to bytes and back, scores and sums on the bytes.

use crate::memory::{expect_memory, input, output, words};
use crate::text::write;
use crate::{Failure, answer};
use alloc::boxed::Box;
use alloc::vec::Vec;
use octaplex::codecs::{Codec, HeadId, PAGE, Role};
use octaplex::{Backend, CodecSpec, Error};

/// Queries that share a pass over the blocks.
const BATCH: usize = 8;

pub struct Coder {
    #[cfg_attr(not(feature = "specs"), allow(dead_code))] // printing a spec links all of them
    spec: CodecSpec,
    codec: Box<dyn Codec>,
    /// Prepared queries, or sums.
    scratch: Vec<f32>,
    /// Whether a page is its blocks and nothing else. Then pages of any number of rows need no copy.
    plain: bool,
}

#[cfg(feature = "specs")]
fn build(spec: &str, dim: usize, head: HeadId) -> Result<(CodecSpec, Box<dyn Codec>), Failure> {
    let spec: CodecSpec = spec.parse()?;
    let codec = spec.build_dyn(dim, Backend::detect(), head);
    Ok((spec, codec.map_err(|error| Failure::of(spec, error))?))
}

/// Parses `turboquant`, with or without its bits. The parser of all specs would double the size of this build.
#[cfg(not(feature = "specs"))]
fn build(spec: &str, dim: usize, head: HeadId) -> Result<(CodecSpec, Box<dyn Codec>), Error> {
    use octaplex::codecs::{TurboQuant, TurboQuantSpec};
    let bits = match spec.strip_prefix("turboquant") {
        Some("") => 4,
        Some(keys) => keys.strip_prefix(":bits=").and_then(|bits| bits.parse().ok()).unwrap_or(0),
        None => 0,
    };
    if bits == 0 {
        return Err(Error::Unsupported { why: "this build has turboquant:bits=1 to 8 and no other codec" });
    }
    let spec = TurboQuantSpec::new(bits);
    let backend = Backend::detect();
    let codec: Box<dyn Codec> = match dim {
        64 => Box::new(TurboQuant::<64>::build(spec, backend, head)?),
        128 => Box::new(TurboQuant::<128>::build(spec, backend, head)?),
        _ => return Err(Error::Unsupported { why: "this build has the widths 64 and 128" }),
    };
    Ok((spec.into(), codec))
}

impl Coder {
    fn new(spec: &str, dim: usize, head: HeadId) -> Result<Self, Failure> {
        let (spec, codec) = build(spec, dim, head)?;
        let plain = codec.page_bytes_max(2) == 2 * codec.block_bytes();
        Ok(Self { spec, codec, scratch: Vec::new(), plain })
    }

    /// Returns scratch memory of this many zeros.
    fn reserve(scratch: &mut Vec<f32>, length: Option<usize>) -> Result<&mut [f32], Failure> {
        let length = length.unwrap_or(usize::MAX);
        scratch.clear();
        scratch.try_reserve_exact(length).map_err(|_| Failure::Memory(4 * length as u64))?;
        scratch.resize(length, 0.0);
        Ok(scratch)
    }

    /// Returns the number of blocks in these bytes.
    fn rows(&self, blocks: &[u8]) -> Result<usize, Failure> {
        if self.plain {
            let bytes = self.codec.block_bytes();
            expect_length("bytes of blocks", blocks.len() / bytes * bytes, blocks.len())?;
            return Ok(blocks.len() / bytes);
        }
        Ok(self.codec.split_rows(blocks, usize::MAX)?.0)
    }

    /// Returns an upper bound of the bytes of this many rows.
    fn bytes_max(&self, rows: usize) -> usize {
        if self.plain {
            return rows.saturating_mul(self.codec.block_bytes());
        }
        let pages = |rows: usize| self.codec.page_bytes_max(rows);
        (rows / PAGE).saturating_mul(pages(PAGE)).saturating_add(pages(rows % PAGE))
    }

    fn encode(&self, rows: &[f32], blocks: &mut [u8]) -> Result<usize, Failure> {
        if self.plain {
            return Ok(self.codec.encode_page(rows, blocks)?);
        }
        expect_length("bytes of blocks", self.bytes_max(rows.len() / self.codec.dim()), blocks.len())?;
        expect_memory(blocks.len() as u64)?;
        let encoded = self.codec.encode_rows(rows)?;
        blocks[..encoded.len()].copy_from_slice(&encoded);
        Ok(encoded.len())
    }

    fn decode(&self, blocks: &[u8], rows: &mut [f32]) -> Result<usize, Failure> {
        if self.plain {
            self.codec.decode_page(blocks, rows)?;
        } else {
            expect_length("values of rows", self.rows(blocks)? * self.codec.dim(), rows.len())?;
            expect_memory(4 * rows.len() as u64)?;
            rows.copy_from_slice(&self.codec.decode_rows(blocks)?);
        }
        Ok(rows.len())
    }

    fn score(&mut self, queries: &[f32], blocks: &[u8], scores: &mut [f32]) -> Result<usize, Failure> {
        let (dim, len, count) = (self.codec.dim(), self.codec.query_len(), self.rows(blocks)?);
        let rows = queries.len() / dim;
        expect_length("values of queries", rows * dim, queries.len())?;
        expect_length("scores", rows.saturating_mul(count), scores.len())?;
        if scores.is_empty() {
            return Ok(0);
        }
        if !self.plain {
            expect_memory(8 * (rows * len + scores.len()) as u64)?;
            scores.copy_from_slice(&self.codec.score_rows(queries, blocks)?);
            return Ok(scores.len());
        }
        let prepared = Self::reserve(&mut self.scratch, rows.checked_mul(len))?;
        for (row, (query, words)) in queries.chunks_exact(dim).zip(prepared.chunks_exact_mut(len)).enumerate()
        {
            self.codec.prepare_query(query, words).map_err(|error| at_row(error, row * dim))?;
        }
        for (words, scores) in prepared.chunks(BATCH * len).zip(scores.chunks_mut(BATCH * count)) {
            let mut batch = [&[][..]; BATCH];
            words.chunks_exact(len).zip(&mut batch).for_each(|(words, query)| *query = words);
            self.codec.score(&batch[..words.len() / len], blocks, scores)?;
        }
        Ok(scores.len())
    }

    fn accumulate(&mut self, weights: &[f32], blocks: &[u8], sums: &mut [f32]) -> Result<usize, Failure> {
        let (dim, count) = (self.codec.dim(), self.rows(blocks)?);
        let rows = weights.len() / count.max(1);
        expect_length("weights, a multiple of the blocks", rows * count, weights.len())?;
        expect_length("values of sums", rows.saturating_mul(dim), sums.len())?;
        if sums.is_empty() {
            return Ok(0);
        }
        if !self.plain {
            expect_memory(8 * (weights.len() + sums.len()) as u64)?;
            sums.copy_from_slice(&self.codec.attend_rows(weights, blocks)?);
            return Ok(sums.len());
        }
        let acc = Self::reserve(&mut self.scratch, Some(sums.len()))?;
        self.codec.accumulate(weights, blocks, acc)?;
        self.codec.finish(acc);
        sums.copy_from_slice(acc);
        Ok(sums.len())
    }
}

/// Returns the same error with its index moved by the `before` values in front of these.
fn at_row(error: Error, before: usize) -> Error {
    match error {
        Error::NonFinite { index } => Error::NonFinite { index: before + index },
        other => other,
    }
}

fn expect_length(what: &'static str, expected: usize, actual: usize) -> Result<(), Error> {
    if expected == actual { Ok(()) } else { Err(Error::Length { what, expected, actual }) }
}

/// Creates a codec for one head's vectors of `dim` values. `values` is 1 for a codec of values.
///
/// # Safety
/// The text is as `memory::words` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_new(
    spec: *const u8,
    spec_length: usize,
    dim: usize,
    layer: u32,
    head: u32,
    values: u32,
) -> usize {
    let role = if values == 0 { Role::Keys } else { Role::Values };
    // SAFETY: the caller's promise.
    let made = Coder::new(unsafe { words(spec, spec_length) }, dim, HeadId { layer, head, role });
    answer(made.map(|coder| Box::into_raw(Box::new(coder)).addr()))
}

/// # Safety
/// The handle is from [`codec_new`], and no later call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_drop(coder: *mut Coder) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(coder) });
}

/// Writes the spec in its shortest form as text. Returns its length.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
#[cfg(feature = "specs")]
pub unsafe extern "C" fn codec_spec(coder: *const Coder) -> usize {
    // SAFETY: the caller's promise.
    write(&unsafe { &*coder }.spec)
}

/// Returns the bytes of a block.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_block_bytes(coder: *const Coder) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*coder }.codec.block_bytes()
}

/// Returns an upper bound of the bytes of this many rows.
///
/// # Safety
/// The handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_bytes_max(coder: *const Coder, rows: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*coder }.bytes_max(rows)
}

/// Returns the number of rows in these blocks.
///
/// # Safety
/// The handle lives, and the blocks are as `memory::input` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_rows(coder: *const Coder, blocks: *const u8, blocks_length: usize) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe { (*coder).rows(input(blocks, blocks_length)) })
}

/// Encodes rows. Returns the bytes used.
///
/// # Safety
/// The handle lives; the rest is as `memory::input` and `memory::output` say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_encode(
    coder: *const Coder,
    rows: *const f32,
    rows_length: usize,
    blocks: *mut u8,
    blocks_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe { (*coder).encode(input(rows, rows_length), output(blocks, blocks_length)) })
}

/// Decodes blocks.
///
/// # Safety
/// As [`codec_encode`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_decode(
    coder: *const Coder,
    blocks: *const u8,
    blocks_length: usize,
    rows: *mut f32,
    rows_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe { (*coder).decode(input(blocks, blocks_length), output(rows, rows_length)) })
}

/// Computes the scores of all queries with all blocks, \[query]\[block].
///
/// # Safety
/// As [`codec_encode`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_score(
    coder: *mut Coder,
    queries: *const f32,
    queries_length: usize,
    blocks: *const u8,
    blocks_length: usize,
    scores: *mut f32,
    scores_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe {
        (*coder).score(
            input(queries, queries_length),
            input(blocks, blocks_length),
            output(scores, scores_length),
        )
    })
}

/// Adds up decoded blocks times weights, \[query]\[block], in the basis of the vectors.
///
/// # Safety
/// As [`codec_encode`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn codec_accumulate(
    coder: *mut Coder,
    weights: *const f32,
    weights_length: usize,
    blocks: *const u8,
    blocks_length: usize,
    sums: *mut f32,
    sums_length: usize,
) -> usize {
    // SAFETY: the caller's promise.
    answer(unsafe {
        (*coder).accumulate(
            input(weights, weights_length),
            input(blocks, blocks_length),
            output(sums, sums_length),
        )
    })
}

/// Writes the name of the backend as text. Returns its length.
#[unsafe(no_mangle)]
pub extern "C" fn backend() -> usize {
    write(&Backend::detect().name())
}

/// All codecs of this build.
#[cfg(feature = "specs")]
pub fn built() -> impl Iterator<Item = &'static octaplex::codecs::CodecInfo> {
    CodecSpec::all().iter().filter(|codec| codec.name.parse().is_ok_and(|spec: CodecSpec| spec.is_built()))
}

/// Writes all codecs of this build as text. A line has name, summary and keys, with tabs between them.
#[cfg(feature = "specs")]
#[unsafe(no_mangle)]
pub extern "C" fn codecs() -> usize {
    struct List;
    impl core::fmt::Display for List {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            for codec in built() {
                write!(f, "{}\t{}", codec.name, codec.summary)?;
                codec.keys.iter().try_for_each(|key| write!(f, "\t{key}"))?;
                f.write_str("\n")?;
            }
            Ok(())
        }
    }
    write(&List)
}
