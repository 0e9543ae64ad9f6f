//! Codecs by their spec: vectors into blocks of bytes, and attention's two products on the blocks.

use crate::error::{Failure, Result, give, octaplex_error, octaplex_status, run};
use crate::given::{self, Held};
use octaplex::CodecSpec;
use octaplex::codecs::{Codec, HeadId, Role};
use std::ffi::c_char;

/// A codec of one width. It never changes: any number of threads may use one at once, but for its freeing.
pub struct octaplex_codec {
    _opaque: [u8; 0],
}

struct Inside {
    codec: Box<dyn Codec>,
    bits_per_value: f64,
}

/// "octcodec"
const WORD: u64 = u64::from_le_bytes(*b"octcodec");

/// Which head of which layer a codec serves: vectors of different ones are rotated differently. Blocks decode with the
/// id that they were encoded with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_head_id {
    /// Layer, from 0.
    pub layer: u32,
    /// Key/value head, from 0.
    pub head: u32,
    /// 0 for keys, 1 for values.
    pub role: u32,
}

/// The codec of a spec, `"turboquant:bits=3"`, for vectors of `dim` values. `head` may be null (layer 0, head 0, keys),
/// and so may the backend's name (the fastest). Null where it fails; freed by `octaplex_codec_free`.
///
/// # Safety
/// Texts end in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_create(
    spec: *const c_char,
    dim: usize,
    head: *const octaplex_head_id,
    backend: *const c_char,
    error: *mut octaplex_error,
) -> *mut octaplex_codec {
    const NULL: Failure =
        Failure::Here(octaplex_status::Pointer, "the spec is null: \"turboquant:bits=4\", for example");
    const ROLE: Failure = Failure::Here(
        octaplex_status::Unsupported,
        "the head's role is neither 0 (keys) nor 1 (values): set one of them",
    );
    let create = || {
        // SAFETY: the caller's promises.
        let (spec, backend) = unsafe { (given::text(spec)?.ok_or(NULL)?, given::backend(backend)?) };
        let mut of = HeadId::default();
        if !head.is_null() {
            // SAFETY: the caller's promises.
            let given = unsafe { given::values(head, 1) }?[0];
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

/// Frees a codec; null is nothing to free.
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
/// The handle is null, or came from this library.
unsafe fn inside<'a>(codec: *const octaplex_codec) -> Result<&'a Inside> {
    // SAFETY: the caller's promise; this is what `create` made.
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
    /// `sizeof(octaplex_codec_sizes)`, given: the struct may grow.
    pub size: usize,
    /// Values of a vector.
    pub dim: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Words of a prepared query.
    pub query_words: usize,
    /// Everything stored counted, but for lists of exact values (`med`).
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
            let size = given::values(sizes.cast::<usize>().cast_const(), 1)?[0];
            given::fill(sizes, size, size_of::<octaplex_codec_sizes>(), all)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, fill) }
}

/// The most bytes that a page of `rows` vectors takes, for most codecs the bytes that it always takes; 0 where it fails.
///
/// # Safety
/// The handle came from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn octaplex_codec_page_bytes_max(
    codec: *const octaplex_codec,
    rows: usize,
    error: *mut octaplex_error,
) -> usize {
    const OVERFLOW: Failure = Failure::Here(octaplex_status::Length, "a page of so many rows overflows");
    // SAFETY: the caller's promises.
    unsafe { give(error, 0, || page_bytes(codec_of(codec)?, rows).ok_or(OVERFLOW)) }
}

/// Nothing where the rows are too many for memory.
fn page_bytes(codec: &dyn Codec, rows: usize) -> Option<usize> {
    let one = codec.page_bytes_max(1).max(4 * codec.dim());
    rows.checked_mul(one).filter(|bytes| *bytes <= isize::MAX as usize / 2)?;
    Some(codec.page_bytes_max(rows))
}

/// Encodes vectors, `rows_length` values, into the front of a page, all or none. The page has room for
/// `octaplex_codec_page_bytes_max` of them or more; `used` (or null) becomes the bytes that they took.
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
            let (rows, page) = (given::values(rows, rows_length)?, given::values_mut(page, page_length)?);
            let needed = codec.page_bytes_max(rows.len() / codec.dim());
            if page.len() < needed {
                let why =
                    "the page is too short for the rows, octaplex_codec_page_bytes_max says how long: bytes";
                return Err(Failure::Expected(octaplex_status::Length, why, needed));
            }
            let bytes = codec.encode_page(rows, &mut page[..needed])?;
            given::put(used, bytes)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, encode) }
}

/// Decodes a page, its bytes and no more, into `rows_length` values. Any bytes are allowed.
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
            let (page, rows) = (given::values(page, page_length)?, given::values_mut(rows, rows_length)?);
            Ok(codec_of(codec)?.decode_page(page, rows)?)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, decode) }
}

/// Prepares one query, `dim` values, for all pages: `query_words` words, which belong to this codec.
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
                (given::values(query, query_length)?, given::values_mut(words, words_length)?);
            Ok(codec_of(codec)?.prepare_query(query, words)?)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, prepare) }
}

/// Prepared queries that one pass takes.
const BATCH: usize = 8;

/// Scores q·k of every prepared query, one behind the other in `words`, with every row of a page, its bytes and no more:
/// `[query][row]`. Where it fails, scores may hold anything.
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
            let (words, page) = (given::values(words, words_length)?, given::values(page, page_length)?);
            let scores = given::values_mut(scores, scores_length)?;
            let len = codec.query_len();
            let count = words.len() / len;
            if count * len != words.len() {
                let why = "prepared queries come out uneven: each has query_words words,";
                return Err(Failure::Expected(octaplex_status::Length, why, len));
            }
            if count == 0 && !scores.is_empty() || !scores.len().is_multiple_of(count.max(1)) {
                let why = "scores are [queries][rows]: their number must be a multiple of the queries,";
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

/// Adds Σ weight·v over a page's rows to sums, `[output][dim]` in the codec's own basis; weights are `[output][row]`. Sums
/// begin as zeros, and `octaplex_codec_finish` comes once behind the last page.
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
                (given::values(weights, weights_length)?, given::values(page, page_length)?);
            Ok(codec_of(codec)?.accumulate(weights, page, given::values_mut(sums, sums_length)?)?)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, accumulate) }
}

/// Brings sums back to the vectors' basis.
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
            let (codec, sums) = (codec_of(codec)?, given::values_mut(sums, sums_length)?);
            if !sums.len().is_multiple_of(codec.dim()) {
                let why = "sums are [outputs][dim]: their number must be a multiple of";
                return Err(Failure::Expected(octaplex_status::Length, why, codec.dim()));
            }
            codec.finish(sums);
            Ok(())
        }
    };
    // SAFETY: the caller's promise.
    unsafe { run(error, finish) }
}
