//! Codecs by spec: encode vectors into blocks of bytes, and compute attention's two products on the blocks.

use crate::arguments::{self, Held};
use crate::error::{Failure, Result, give, octaplex_error, octaplex_status, run};
use octaplex::CodecSpec;
use octaplex::codecs::{Codec, HeadId, Role};
use std::ffi::c_char;

/// A codec for vectors of one width. It never changes, so any threads may use it at once. Freeing it needs exclusive
/// access.
pub struct octaplex_codec {
    _opaque: [u8; 0],
}

struct Inside {
    codec: Box<dyn Codec>,
    bits_per_value: f64,
}

/// "octcodec"
const WORD: u64 = u64::from_le_bytes(*b"octcodec");

/// Identifies the layer, the head and the role of a codec's vectors. Each id has its own rotation. Decode blocks with
/// the id that encoded them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_head_id {
    /// Number of the layer, from 0.
    pub layer: u32,
    /// Number of the key/value head, from 0.
    pub head: u32,
    /// 0: keys. 1: values.
    pub role: u32,
}

/// Creates the codec of a spec, such as `"turboquant:bits=3"`, for vectors of `dim` values. Returns null on failure.
/// Free it with `octaplex_codec_free`.
///
/// `head` may be null: layer 0, head 0, keys. `backend` may be null: the fastest of this CPU.
///
/// # Safety
/// Strings end in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_create(
    spec: *const c_char,
    dim: usize,
    head: *const octaplex_head_id,
    backend: *const c_char,
    error: *mut octaplex_error,
) -> *mut octaplex_codec {
    const NULL: Failure =
        Failure::Here(octaplex_status::Pointer, "the spec is null: pass one, such as \"turboquant:bits=4\"");
    const ROLE: Failure = Failure::Here(
        octaplex_status::Unsupported,
        "the head's role is neither 0 (keys) nor 1 (values): set one of them",
    );
    let create = || {
        // SAFETY: the caller's promises.
        let (spec, backend) = unsafe { (arguments::text(spec)?.ok_or(NULL)?, arguments::backend(backend)?) };
        let mut of = HeadId::default();
        if !head.is_null() {
            // SAFETY: the caller's promises.
            let given = unsafe { arguments::values(head, 1) }?[0];
            let role = match given.role {
                0 => Role::Keys,
                1 => Role::Values,
                _ => return Err(ROLE),
            };
            of = HeadId { layer: given.layer, head: given.head, role };
        }
        let spec: CodecSpec = spec.parse()?;
        let codec = spec.build_dyn(dim, backend, of)?;
        let inside = Inside { codec, bits_per_value: spec.bits_per_value(dim) };
        Ok(Box::into_raw(Box::new(Held::new(WORD, inside))).cast())
    };
    // SAFETY: the caller's promise.
    unsafe { give(error, std::ptr::null_mut(), create) }
}

/// Frees a codec. Null does nothing.
///
/// # Safety
/// No other call uses it, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_free(
    codec: *mut octaplex_codec,
    error: *mut octaplex_error,
) -> octaplex_status {
    // SAFETY: the caller's promises.
    unsafe { run(error, || Held::free(codec.cast::<Held<Inside>>(), WORD)) }
}

/// # Safety
/// The handle is null or of this library.
unsafe fn inside<'a>(codec: *const octaplex_codec) -> Result<&'a Inside> {
    // SAFETY: the caller's promise; `create` returned this type.
    unsafe { Held::get(codec.cast::<Held<Inside>>(), WORD) }
}

/// # Safety
/// As for [`inside`].
unsafe fn codec_of<'a>(codec: *const octaplex_codec) -> Result<&'a dyn Codec> {
    // SAFETY: the caller's promise.
    Ok(&*unsafe { inside(codec) }?.codec)
}

/// The sizes of a codec.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_codec_sizes {
    /// Set it to `sizeof(octaplex_codec_sizes)` before the call. The struct may grow.
    pub size: usize,
    /// Values in a vector.
    pub dim: usize,
    /// Bytes in a block.
    pub block_bytes: usize,
    /// Words in a prepared query.
    pub query_words: usize,
    /// All stored bits divided by the number of values. Lists of exact values (`med`) are not counted.
    pub bits_per_value: f64,
}

/// Fills in the sizes of a codec.
///
/// # Safety
/// `sizes` begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_get_sizes(
    codec: *const octaplex_codec,
    sizes: *mut octaplex_codec_sizes,
    error: *mut octaplex_error,
) -> octaplex_status {
    let fill = || {
        // SAFETY: the caller's promises.
        unsafe {
            let Inside { codec, bits_per_value } = inside(codec)?;
            let all = octaplex_codec_sizes {
                size: 0,
                dim: codec.dim(),
                block_bytes: codec.block_bytes(),
                query_words: codec.query_len(),
                bits_per_value: *bits_per_value,
            };
            let size = arguments::values(sizes.cast::<usize>().cast_const(), 1)?[0];
            arguments::fill(sizes, size, size_of::<octaplex_codec_sizes>(), all)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, fill) }
}

/// Returns the largest size of a page of `rows` vectors in bytes, or 0 on failure. With most codecs every page has this
/// size.
///
/// # Safety
/// The handle is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_page_bytes_max(
    codec: *const octaplex_codec,
    rows: usize,
    error: *mut octaplex_error,
) -> usize {
    const OVERFLOW: Failure = Failure::Here(
        octaplex_status::Length,
        "the size of a page of this many rows overflows: pass fewer rows",
    );
    // SAFETY: the caller's promises.
    unsafe { give(error, 0, || page_bytes(codec_of(codec)?, rows).ok_or(OVERFLOW)) }
}

/// Returns `None` if no memory could hold the rows.
fn page_bytes(codec: &dyn Codec, rows: usize) -> Option<usize> {
    let one = codec.page_bytes_max(1).max(4 * codec.dim());
    rows.checked_mul(one).filter(|bytes| *bytes <= isize::MAX as usize / 2)?;
    Some(codec.page_bytes_max(rows))
}

/// Encodes vectors of `rows_length` values together into the front of a page: all of them, or none after an error. The
/// page needs at least `octaplex_codec_page_bytes_max` bytes. `used`, if not null, receives the bytes written.
///
/// # Safety
/// The buffers have their lengths, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_encode(
    codec: *const octaplex_codec,
    rows: *const f32,
    rows_length: usize,
    page: *mut u8,
    page_length: usize,
    used: *mut usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let encode = || {
        // SAFETY: the caller's promises.
        unsafe {
            let codec = codec_of(codec)?;
            let (rows, page) =
                (arguments::values(rows, rows_length)?, arguments::values_mut(page, page_length)?);
            let needed = codec.page_bytes_max(rows.len() / codec.dim());
            if page.len() < needed {
                let why = "the page is too short, see octaplex_codec_page_bytes_max: expected at least this many bytes:";
                return Err(Failure::Expected(octaplex_status::Length, why, needed));
            }
            let bytes = codec.encode_page(rows, &mut page[..needed])?;
            arguments::put(used, bytes)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, encode) }
}

/// Decodes a page into `rows_length` values. `page_length` must be the page's exact length. Untrusted bytes are safe.
///
/// # Safety
/// The buffers have their lengths, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_decode(
    codec: *const octaplex_codec,
    page: *const u8,
    page_length: usize,
    rows: *mut f32,
    rows_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let decode = || {
        // SAFETY: the caller's promises.
        unsafe {
            let (page, rows) =
                (arguments::values(page, page_length)?, arguments::values_mut(rows, rows_length)?);
            Ok(codec_of(codec)?.decode_page(page, rows)?)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, decode) }
}

/// Prepares one query of `dim` values for all pages. It writes `query_words` words, which only this codec can use.
///
/// # Safety
/// The buffers have their lengths, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_prepare_query(
    codec: *const octaplex_codec,
    query: *const f32,
    query_length: usize,
    words: *mut f32,
    words_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let prepare = || {
        // SAFETY: the caller's promises.
        unsafe {
            let (query, words) =
                (arguments::values(query, query_length)?, arguments::values_mut(words, words_length)?);
            Ok(codec_of(codec)?.prepare_query(query, words)?)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, prepare) }
}

/// Prepared queries in one pass.
const BATCH: usize = 8;

/// Computes scores q·k of prepared queries with all rows of a page.
///
/// `words` holds the queries one after the other, and scores are `[query][row]`. `page_length` must be the page's exact
/// length. After an error the scores are unspecified.
///
/// # Safety
/// The buffers have their lengths, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_score(
    codec: *const octaplex_codec,
    words: *const f32,
    words_length: usize,
    page: *const u8,
    page_length: usize,
    scores: *mut f32,
    scores_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let score = || {
        // SAFETY: the caller's promises.
        unsafe {
            let codec = codec_of(codec)?;
            let (words, page) =
                (arguments::values(words, words_length)?, arguments::values(page, page_length)?);
            let scores = arguments::values_mut(scores, scores_length)?;
            let len = codec.query_len();
            let count = words.len() / len;
            if count * len != words.len() {
                let why = "words has the wrong length: pass query_words words for each query, a multiple of";
                return Err(Failure::Expected(octaplex_status::Length, why, len));
            }
            if count == 0 && !scores.is_empty() || !scores.len().is_multiple_of(count.max(1)) {
                let why =
                    "scores has the wrong length: pass [queries][rows], a multiple of the number of queries,";
                return Err(Failure::Expected(octaplex_status::Length, why, count));
            }
            let rows = scores.len() / count.max(1);
            let mut from = 0;
            for words in words.chunks(BATCH * len) {
                let mut queries: [&[f32]; BATCH] = [&[]; BATCH];
                queries.iter_mut().zip(words.chunks_exact(len)).for_each(|(slot, query)| *slot = query);
                let queries = &queries[..words.len() / len];
                codec.score(queries, page, &mut scores[from..][..queries.len() * rows])?;
                from += queries.len() * rows;
            }
            Ok(())
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, score) }
}

/// Adds Σ weight·v over a page's rows to sums. Weights are `[output][row]`, sums `[output][dim]`.
///
/// Set sums to zero before the first page. Call `octaplex_codec_finish` once after the last page: until then sums are
/// in the codec's own basis.
///
/// # Safety
/// The buffers have their lengths, and do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_accumulate(
    codec: *const octaplex_codec,
    weights: *const f32,
    weights_length: usize,
    page: *const u8,
    page_length: usize,
    sums: *mut f32,
    sums_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let accumulate = || {
        // SAFETY: the caller's promises.
        unsafe {
            let (weights, page) =
                (arguments::values(weights, weights_length)?, arguments::values(page, page_length)?);
            Ok(codec_of(codec)?.accumulate(weights, page, arguments::values_mut(sums, sums_length)?)?)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, accumulate) }
}

/// Transforms sums back to the basis of the vectors.
///
/// # Safety
/// The buffer has its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_finish(
    codec: *const octaplex_codec,
    sums: *mut f32,
    sums_length: usize,
    error: *mut octaplex_error,
) -> octaplex_status {
    let finish = || {
        // SAFETY: the caller's promises.
        unsafe {
            let (codec, sums) = (codec_of(codec)?, arguments::values_mut(sums, sums_length)?);
            if !sums.len().is_multiple_of(codec.dim()) {
                let why = "sums has the wrong length: pass [outputs][dim], a multiple of";
                return Err(Failure::Expected(octaplex_status::Length, why, codec.dim()));
            }
            codec.finish(sums);
            Ok(())
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, finish) }
}
