//! Checks that this build on this machine computes the same bits as every other one.
//!
//! Codecs and caches compute on fixed inputs. Checksums cover all bytes and bits of their results, and the table
//! `verify/expected.txt` has the expected checksums. [`check`] checks a codec by its name. [`codec`] and [`layer`]
//! check one codec, for example the only one that a firmware links. This module needs neither a heap nor files.
//!
//! ```
//! use octaplex::{Backend, verify};
//!
//! let mut memory = vec![0.0; verify::MEMORY];
//! for backend in Backend::available() {
//!     let found = verify::check("turboquant", backend, &mut memory)?;
//!     assert_eq!(Some(found), verify::expected("turboquant"));
//! }
//! # Ok::<(), octaplex::Error>(())
//! ```
//!
//! A generator of 32 bits computes the inputs. It starts from the seed and steps s ← s·1664525 + 1013904223. Each value
//! is ((s >> 16) - 32768)/8192, which is exact in f32. Dense rotations and sketches (`haar`, `gauss`) need a heap, so
//! they are not among the cases. The golden files cover them.

use crate::cache::{Layer, LayerCache, Storage};
use crate::codec::Codec;
use crate::codec::scratch::{bytes_of, words_for};
use crate::codecs::AnyCodec;
use crate::codecs::CODECS;
use crate::random::HeadId;
use crate::{Attend, Backend, CodecSpec, Error, LayerConfig};
use core::fmt;

/// The seed of the expected checksums.
pub const SEED: u32 = 2_463_534_242;

/// The largest number of queries of a call.
const QUERIES: usize = 8;

/// The words of memory that [`check`] needs for any codec.
pub const MEMORY: usize = 110_000;

/// Returns the cases of [`check`]: the [`samples`](crate::codecs::CodecInfo::samples) of all codecs, each a spec and a
/// width.
///
/// The first case of a codec is also the one of its cache.
pub fn cases() -> impl Iterator<Item = (&'static str, usize)> {
    CODECS.iter().flat_map(|codec| codec.samples.iter().copied())
}

/// Holds the checksums of a codec's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// Checksum of blocks and products, for all [`cases`] of the codec.
    pub blocks: u32,
    /// Checksum of a cache, for the codec's first case.
    pub cache: u32,
}

/// Prints the checksums as in the table: `1234abcd 5678ef90`.
impl fmt::Display for Checksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x} {:08x}", self.blocks, self.cache)
    }
}

/// Returns the expected checksums of the codec with this name, or `None` for an unknown name.
///
/// The [module](self) has an example.
#[must_use]
pub fn expected(name: &str) -> Option<Checksums> {
    let mut words = include_str!("verify/expected.txt").lines().map(|line| line.split_ascii_whitespace());
    let mut found = words.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    let mut number = || u32::from_str_radix(found.next()?, 16).ok();
    Some(Checksums { blocks: number()?, cache: number()? })
}

/// Combines the checksums of many codecs, in the order of [`CodecSpec::all`], into one.
pub fn together(codecs: impl IntoIterator<Item = Checksums>) -> u32 {
    let mut fold = Fold::EMPTY;
    codecs.into_iter().for_each(|Checksums { blocks, cache }| {
        fold.bytes(&blocks.to_le_bytes());
        fold.bytes(&cache.to_le_bytes());
    });
    fold.finish()
}

/// Checks that this thread has the default floating-point environment. The error says how to get it.
fn check_floats() -> Result<(), Error> {
    use core::hint::black_box;
    let (tiny, ulp) = (f32::MIN_POSITIVE, f32::EPSILON);
    let halved = black_box(tiny) * black_box(0.5); // a denormal result
    let doubled = black_box(f32::from_bits(1)) * black_box(1.0 / tiny); // a denormal operand
    if halved.to_bits() == 0 || doubled == 0.0 {
        return Err(Error::Unsupported {
            why: "this thread flushes denormals to zero (code linked with -ffast-math or torch.set_flush_denormal set this): \
                  call octaplex through octaplex::with_default_floats",
        });
    }
    let sums = [0.25, 0.75].map(|part| black_box(1.0) + black_box(part * ulp));
    let negative = [0.25, 0.75].map(|part| black_box(-1.0) - black_box(part * ulp));
    if sums != [1.0, 1.0 + ulp] || negative != [-1.0, -1.0 - ulp] {
        return Err(Error::Unsupported {
            why: "this thread does not round to nearest (fesetround): call octaplex through octaplex::with_default_floats",
        });
    }
    Ok(())
}

/// Computes the checksums of the codec with this name (`turboquant`) on a backend. Compare them with [`expected`].
///
/// `memory` has [`MEMORY`] words or more. The call takes milliseconds, or a second or two with the backend
/// `scalar`. The [module](self) has an example.
///
/// # Errors
/// * [`Error::UnknownCodec`] for an unknown name.
/// * [`Error::Length`] if `memory` is too short.
/// * [`Error::Unsupported`] if this build lacks the codec.
/// * [`Error::Unsupported`] if the thread flushes denormals or does not round to nearest, as checksums would then
///   differ.
pub fn check(name: &str, backend: Backend, memory: &mut [f32]) -> Result<Checksums, Error> {
    check_floats()?;
    let mut blocks = Fold::EMPTY;
    let mut first = None;
    let samples = CODECS.iter().find(|codec| codec.name == name).map_or(&[][..], |codec| codec.samples);
    for &(text, dim) in samples {
        let spec: CodecSpec = text.parse()?;
        first = first.or(Some((spec, dim)));
        let built = AnyCodec::build(spec, dim, backend, HeadId::default())?;
        blocks.bytes(&codec(&built, SEED, memory)?.to_le_bytes());
    }
    let (spec, dim) = first.ok_or(Error::UnknownCodec { at: 0, allowed: CODECS })?;
    let config = LayerConfig::new(2, dim, 256).keys(spec).values(spec).recent_window(16).max_rollback(16);
    let (bytes, words) = (config.required_bytes(), words_for(config.required_bytes()));
    let needed = words + layer_memory(&config);
    if memory.len() < needed {
        return Err(Error::Length { what: "words of memory", expected: needed, actual: memory.len() });
    }
    let (held, memory) = memory.split_at_mut(words);
    let mut cache = LayerCache::<AnyCodec, AnyCodec, _>::new(&config, backend, bytes_of(held, bytes))?;
    Ok(Checksums { blocks: blocks.finish(), cache: layer(&mut cache, SEED, memory)? })
}

/// The number of rows of a page. It is larger than the batches of kernels, and no multiple of them.
const ROWS: usize = 69;

/// Returns the words of memory that [`codec`] needs.
#[must_use]
pub fn codec_memory(codec: &dyn Codec) -> usize {
    let page = words_for(codec.page_bytes_max(ROWS));
    ROWS * codec.dim() + page + QUERIES * (codec.query_len() + ROWS + codec.dim())
}

/// Computes the checksum of a codec.
///
/// It covers 69 rows, encoded as single blocks and as a page, and the decoded rows. It also covers scores and weighted
/// sums for one, three and eight queries.
///
/// ```
/// use octaplex::codecs::TurboQuant;
/// use octaplex::{Error, verify};
///
/// let codec = TurboQuant::<32>::new(4)?;
/// let mut memory = vec![0.0; verify::codec_memory(&codec)];
/// let checksum = verify::codec(&codec, 1, &mut memory)?;
/// assert_eq!(checksum, verify::codec(&codec, 1, &mut memory)?);
/// assert_ne!(checksum, verify::codec(&codec, 2, &mut memory)?);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] if `memory` has fewer words than [`codec_memory`], and errors of the codec.
pub fn codec(codec: &dyn Codec, seed: u32, memory: &mut [f32]) -> Result<u32, Error> {
    let (dim, len) = (codec.dim(), codec.query_len());
    let mut memory = Memory::new(memory, codec_memory(codec))?;
    let [rows, page, queries] =
        [ROWS * dim, words_for(codec.page_bytes_max(ROWS)), QUERIES * len].map(|len| memory.take(len));
    let [scores, sums] = [QUERIES * ROWS, QUERIES * dim].map(|len| memory.take(len));
    let page = bytes_of(page, codec.page_bytes_max(ROWS));
    let (mut numbers, mut fold) = (Numbers(seed), Fold::EMPTY);

    numbers.fill_rows(rows, dim);
    for row in rows.chunks_exact(dim) {
        let block = &mut page[..codec.block_bytes()];
        codec.encode(row, block)?;
        fold.bytes(block);
        codec.decode(block, &mut sums[..dim])?;
        fold.floats(&sums[..dim]);
    }
    let used = codec.encode_page(rows, page)?;
    let page = &page[..used];
    fold.bytes(page);
    codec.decode_page(page, rows)?;
    fold.floats(rows);

    for query in queries.chunks_exact_mut(len) {
        numbers.fill(&mut sums[..dim]);
        codec.prepare_query(&sums[..dim], query)?;
    }
    let mut prepared: [&[f32]; QUERIES] = [&[]; QUERIES];
    prepared.iter_mut().zip(queries.chunks_exact(len)).for_each(|(slot, query)| *slot = query);
    for count in [1, 3, QUERIES] {
        let scores = &mut scores[..count * ROWS];
        codec.score(&prepared[..count], page, scores)?;
        fold.floats(scores);
        let (weights, sums) = (scores, &mut sums[..count * dim]);
        numbers.fill(weights);
        sums.fill(0.0);
        codec.accumulate(weights, page, sums)?;
        fold.floats(sums);
        codec.finish(sums);
        fold.floats(sums);
    }
    Ok(fold.finish())
}

/// The tokens of each append of [`layer`].
const STEP: usize = 10;
/// The query heads of a key/value head.
const GROUP: usize = 2;
/// The queries of a block.
const BLOCK: usize = 3;
/// The largest number of tokens of a layer.
const TOKENS: usize = 200;

/// Returns the words of memory that [`layer`] needs.
#[must_use]
pub fn layer_memory(config: &LayerConfig) -> usize {
    let (heads, width) = (config.kv_heads, config.key_dim + config.value_dim);
    let queries = heads * GROUP * BLOCK;
    STEP * heads * width + queries * width + TOKENS + heads * GROUP + config.scratch_len(queries)
}

/// Computes the checksum of a layer.
///
/// It covers attention with every option, the two products of attention, a rollback, an eviction, and snapshots. The
/// layer is cleared first, and the next position is 193 in the end. It needs a capacity of 200 tokens, and pages of at
/// most 128 tokens.
///
/// ```
/// use octaplex::cache::SharedLayer;
/// use octaplex::{Backend, Error, LayerConfig, verify};
///
/// let config = LayerConfig::new(1, 64, 256);
/// let mut layer = SharedLayer::on_heap(&config, Backend::detect())?;
/// let mut memory = vec![0.0; verify::layer_memory(&config)];
/// let checksum = verify::layer(&mut layer, verify::SEED, &mut memory)?;
/// assert_eq!(checksum, verify::layer(&mut layer, verify::SEED, &mut memory)?);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// * [`Error::Length`] if `memory` has fewer words than [`layer_memory`].
/// * [`Error::Full`] if the capacity is too small.
/// * Errors of the codecs.
pub fn layer<K: Codec, V: Codec, S: Storage>(
    layer: &mut Layer<K, V, S>,
    seed: u32,
    memory: &mut [f32],
) -> Result<u32, Error> {
    let config = *layer.config();
    let (heads, key_dim, value_dim) = (config.kv_heads, config.key_dim, config.value_dim);
    let mut memory = Memory::new(memory, layer_memory(&config))?;
    let query_heads = heads * GROUP;
    let [keys, values] = [key_dim, value_dim].map(|dim| memory.take(STEP * heads * dim));
    let [queries, output] = [key_dim, value_dim].map(|dim| memory.take(query_heads * BLOCK * dim));
    let [bias, sinks] = [TOKENS, query_heads].map(|len| memory.take(len));
    let scratch = memory.0;
    let (mut numbers, mut fold) = (Numbers(seed), Fold::EMPTY);

    layer.clear();
    if config.balances() {
        numbers.fill_rows(keys, key_dim);
        numbers.fill(queries);
        layer.calibrate(keys, queries)?;
    }
    let mut append = |layer: &mut Layer<K, V, S>, scratch: &mut [f32], numbers: &mut Numbers| {
        numbers.fill_rows(keys, key_dim);
        numbers.fill_rows(values, value_dim);
        layer.append(&*keys, &*values, scratch)
    };
    while layer.next_position() + STEP <= TOKENS {
        append(layer, scratch, &mut numbers)?;
    }
    numbers.fill(queries);
    queries.iter_mut().for_each(|x| *x /= 64.0); // so that every token has some weight
    let block = Attend::default().queries(BLOCK);
    layer.attend_with(queries, &block, output, scratch)?;
    fold.floats(output);
    layer.save(&mut |bytes| fold.bytes(bytes));

    layer.truncate(TOKENS - STEP - 7)?;
    append(layer, scratch, &mut numbers)?;
    layer.evict(0..config.sink_tokens + config.page);
    numbers.fill(bias);
    numbers.fill(sinks);
    let bias = &mut bias[..layer.next_position()];
    bias[bias.len() / 2] = f32::NEG_INFINITY;
    let all = block.scale(0.25).soft_cap(2.0).window(100).keep_sinks(true).sink_logits(sinks).bias(bias);
    layer.attend_with(queries, &all.position(layer.next_position() - BLOCK - 2), output, scratch)?;
    fold.floats(output);

    let scores = &mut bias[..layer.tokens()];
    for head in 0..heads {
        layer.scores(head, &queries[..key_dim], scores, scratch)?;
        fold.floats(scores);
        numbers.fill(scores);
        layer.accumulate(head, scores, &mut output[..value_dim], scratch)?;
        fold.floats(&output[..value_dim]);
    }
    layer.save(&mut |bytes| fold.bytes(bytes));
    Ok(fold.finish())
}

/// Memory that is split into pieces.
struct Memory<'a>(&'a mut [f32]);

impl<'a> Memory<'a> {
    fn new(memory: &'a mut [f32], needed: usize) -> Result<Self, Error> {
        let actual = memory.len();
        match memory.get_mut(..needed) {
            Some(memory) => Ok(Self(memory)),
            None => Err(Error::Length { what: "words of memory", expected: needed, actual }),
        }
    }

    fn take(&mut self, len: usize) -> &'a mut [f32] {
        let (piece, rest) = core::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        piece
    }
}

/// Generates the inputs.
struct Numbers(u32);

impl Numbers {
    fn fill(&mut self, values: &mut [f32]) {
        for value in values {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = ((self.0 >> 16) as f32 - 32768.0) / 8192.0;
        }
    }

    /// Fills rows. Every eight have several magnitudes, a row of zeros, a constant row, and a row with one large
    /// channel.
    fn fill_rows(&mut self, rows: &mut [f32], dim: usize) {
        for (number, row) in rows.chunks_exact_mut(dim).enumerate() {
            self.fill(row);
            match number % 8 {
                3 => row.fill(0.0),
                4 => row.fill(0.75),
                5 => row[number % dim] *= 64.0,
                6 => row.iter_mut().for_each(|x| *x /= 1_048_576.0),
                other => row.iter_mut().for_each(|x| *x *= [1.0, 0.125, 8.0, 0.0, 0.0, 0.0, 0.0, 2.0][other]),
            }
        }
    }
}

/// Computes FNV-1a of 64 bits over bytes, and over floats as their little-endian bits. At the end, it folds the halves.
///
/// A CRC-32 would be wrong here. Sections of a snapshot end in their CRC-32, and a CRC over data and its CRC does not
/// depend on the data.
struct Fold(u64);

impl Fold {
    const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn floats(&mut self, values: &[f32]) {
        values.iter().for_each(|value| self.bytes(&value.to_le_bytes()));
    }

    fn finish(self) -> u32 {
        (self.0 >> 32) as u32 ^ self.0 as u32
    }
}
