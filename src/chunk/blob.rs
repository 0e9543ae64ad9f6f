//! The bytes of a chunk: sizes, header, and checks of untrusted bytes.

use super::*;
use crate::cache::layout::Layout;
use crate::cache::snapshot::{Reader, Writer, check_snapshot_memory, damaged, read_page, write_spec};
use crate::cache::{MAX_POSITION, position};

const CHUNK: &[u8; 8] = b"octachnk";
const VERSION: usize = 1;

/// Offset of the field that holds the blob's own length.
const LENGTH: usize = 44;

/// Bytes of a checksum.
const CRC: usize = 4;

/// The pages of a layer with a number of tokens, and their sizes.
pub(super) struct Plan {
    config: ChunkConfig,
    tokens: usize,
    /// The number of full pages.
    pub(super) pages: usize,
    full: Layout,
    /// The layout of the last page, if it is shorter.
    tail: Option<Layout>,
    /// Bytes of a layer's balances and prefix centres.
    decided: usize,
}

impl Plan {
    /// Creates the plan of a configuration that was checked.
    pub(super) fn new(config: &ChunkConfig, tokens: usize) -> Self {
        let layer = config.layer(0);
        let tail = tokens % config.page;
        let full = Layout::new(&layer);
        let decided = full.decided_pieces().flatten().map(|(piece, _)| piece.len()).sum();
        let tail = (tail > 0).then(|| Layout::new(&layer.page(tail)));
        Self { config: *config, tokens, pages: tokens / config.page, full, tail, decided }
    }

    /// Returns the layout and the first token of every page.
    pub(super) fn layouts(&self) -> impl Iterator<Item = (&Layout, usize)> {
        let pages = core::iter::repeat_n(&self.full, self.pages).chain(&self.tail);
        pages.enumerate().map(|(index, layout)| (layout, index * self.config.page))
    }

    pub(super) fn full(&self) -> &Layout {
        &self.full
    }

    /// Returns the least and the largest number of bytes of a layer.
    pub(super) fn layer_bytes(&self) -> (usize, usize) {
        let of = |page: fn(&Layout) -> usize| {
            let pages = self.pages.saturating_mul(page(&self.full));
            pages.saturating_add(self.tail.as_ref().map_or(0, page)).saturating_add(self.decided + CRC)
        };
        (of(least_page_bytes), of(|layout| layout.page_bytes))
    }

    /// Returns the largest number of bytes of a blob.
    pub(super) fn most(&self) -> usize {
        self.layer_bytes()
            .1
            .saturating_mul(self.config.layers)
            .saturating_add(self.header(Dtype::F32, 0).len())
    }

    /// Returns the header of a blob with `length` bytes.
    pub(super) fn header(&self, dtype: Dtype, length: usize) -> Vec<u8> {
        let (config, mut header) = (&self.config, Vec::new());
        let mut write = |bytes: &[u8]| header.extend_from_slice(bytes);
        let mut writer = Writer::new(&mut write);
        writer.bytes(CHUNK);
        writer.u32(VERSION);
        writer.bytes(&[dtype as u8, config.layout as u8, config.center as u8, u8::from(config.balance)]);
        for number in
            [config.layers, config.first_layer as usize, config.kv_heads, config.head_dim, config.page]
        {
            writer.u32(number);
        }
        writer.u64(self.tokens);
        writer.u64(length);
        write_spec(&mut writer, config.keys);
        write_spec(&mut writer, config.values);
        writer.checksum();
        header
    }

    /// Splits a blob with this header into layers. It checks everything except the contents of
    /// blocks.
    pub(super) fn sections<'a>(&self, blob: &'a [u8], info: &ChunkInfo) -> Result<Vec<Section<'a>>, Error> {
        if blob.len() != info.bytes {
            return damaged(info.bytes.min(blob.len()), "bytes behind the end, or too few");
        }
        let mut reader = Reader::new(blob);
        reader.skip(info.header)?;
        let mut sections = Vec::with_capacity(self.config.layers);
        for _ in 0..self.config.layers {
            let start = reader.at;
            for (piece, kind) in self.full.decided_pieces().flatten() {
                let (at, bytes) = (reader.at, reader.take(piece.len())?);
                if !kind.is_sound(bytes) {
                    return damaged(at, "a balance or a centre that no chunk has");
                }
            }
            let mut pages = Vec::with_capacity(self.pages + 1);
            for (layout, token) in self.layouts() {
                let (at, page) = (reader.at, read_page(&mut reader, layout)?);
                if position(page) != token {
                    return damaged(at, "a page out of order");
                }
                pages.push(page);
            }
            reader.checksum()?;
            sections.push(Section { start, decided: &blob[start..start + self.decided], pages });
        }
        if reader.at != blob.len() {
            return damaged(reader.at, "bytes behind the end");
        }
        Ok(sections)
    }
}

/// A layer in a blob.
pub(super) struct Section<'a> {
    /// Offset at which it begins.
    pub(super) start: usize,
    decided: &'a [u8],
    pub(super) pages: Vec<&'a [u8]>,
}

impl<'a> Section<'a> {
    /// Returns a reader of the balances and prefix centres of all heads.
    pub(super) fn decided(&self) -> Reader<'a> {
        Reader::new(self.decided)
    }

    /// Returns the balance and the prefix centre of a head.
    pub(super) fn of_head(&self, layout: &Layout, head: usize) -> (&'a [u8], &'a [u8]) {
        let (balance, prefix) = (layout.balance(0).len(), layout.prefix(0).len());
        self.decided[head * (balance + prefix)..][..balance + prefix].split_at(balance)
    }
}

/// Returns the bytes of a page without outliers.
fn least_page_bytes(layout: &Layout) -> usize {
    let spare = [layout.keys, layout.values].map(|side| side.rows - side.least());
    layout.page_bytes - layout.heads * (spare[0] + spare[1])
}

/// Describes a blob, from its header.
///
/// ```
/// use octaplex::chunk::{ChunkCodec, ChunkConfig, ChunkInfo, Dtype};
/// use octaplex::{Backend, Error};
///
/// let codec = ChunkCodec::new(ChunkConfig::new(1, 1, 64), Backend::detect())?;
/// let blob = codec.encode(&[0.5; 2 * 3 * 64])?; // f32, three tokens
/// let info = ChunkInfo::read(&blob)?;
/// assert_eq!((info.tokens, info.dtype, info.bytes), (3, Dtype::F32, blob.len()));
/// assert_eq!(info.config, *codec.config());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkInfo {
    /// The configuration. A [`ChunkCodec`] with it decodes the blob.
    pub config: ChunkConfig,
    /// The number of tokens, at least one.
    pub tokens: usize,
    /// The type of the values that were encoded.
    pub dtype: Dtype,
    /// The number of bytes in the blob.
    pub bytes: usize,
    header: usize,
}

impl ChunkInfo {
    /// Reads a header, and checks that the blob's length agrees with it. Any bytes are allowed, and
    /// more bytes may follow the blob.
    ///
    /// Nothing is allocated. The rest of the blob is checked when it is used.
    ///
    /// # Errors
    /// * [`Error::Snapshot`] for bytes that are no chunk, of another version, damaged or cut off.
    ///   Also for a blob whose [`ChunkCodec`] would take more than 16 MiB and more than 256 times
    ///   the blob's bytes; a codec that exists already can decode such a blob.
    /// * [`Error::Unsupported`] and [`Error::Width`] for an impossible configuration.
    pub fn read(blob: &[u8]) -> Result<Self, Error> {
        let info = Self::parse(blob)?;
        check_snapshot_memory(info.config.codec_bytes(), 0, info.bytes, LENGTH)?;
        Ok(info)
    }

    /// Reads a header without the limit on the codec's memory: the codec exists already.
    pub(super) fn parse(blob: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(blob);
        if reader.array()? != *CHUNK {
            return damaged(0, "no chunk");
        }
        if reader.u32()? != VERSION {
            return damaged(8, "a chunk of another version");
        }
        let [dtype @ 0..3, layout @ 0..2, center @ 0..3, balance @ 0..2] = reader.array()? else {
            return damaged(12, "a type, a layout, a centre or a balance of another kind");
        };
        let [layers, first_layer, kv_heads, head_dim, page] =
            [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
        let (tokens, bytes) = (reader.u64()?, reader.u64()?);
        let config = ChunkConfig {
            layers,
            first_layer: first_layer as u32,
            kv_heads,
            head_dim,
            keys: reader.spec()?,
            values: reader.spec()?,
            page,
            center: [Center::Off, Center::Prefix, Center::Page][usize::from(center)],
            balance: balance == 1,
            layout: [ChunkLayout::Split, ChunkLayout::Fused][usize::from(layout)],
        };
        reader.checksum()?;
        config.check()?;
        let (least, most) = match tokens {
            0 => (usize::MAX, 0),
            _ => Plan::new(&config, tokens).layer_bytes(),
        };
        let (least, most) = (least.saturating_mul(layers), most.saturating_mul(layers));
        let holds = bytes.checked_sub(reader.at).is_some_and(|held| least <= held && held <= most);
        if !holds || bytes > blob.len() {
            return damaged(LENGTH, "the blob is cut off, or not as long as its tokens make it");
        }
        let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][usize::from(dtype)];
        let info = Self { config, tokens, dtype, bytes, header: reader.at };
        if info.checked_values().is_none_or(|values| values > MAX_POSITION) {
            return damaged(36, "more values than this machine can hold");
        }
        Ok(info)
    }

    /// Returns the number of values of the tensor: 2 · layers · tokens · heads · width.
    #[must_use]
    pub fn values(&self) -> usize {
        self.checked_values().unwrap_or(usize::MAX)
    }

    fn checked_values(&self) -> Option<usize> {
        let ChunkConfig { layers, kv_heads, head_dim, .. } = self.config;
        [layers, self.tokens, kv_heads, head_dim]
            .iter()
            .try_fold(2usize, |product, &x| product.checked_mul(x))
    }
}
