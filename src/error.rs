//! One error type for the whole library.

use crate::spec::{CodecInfo, Key};
use core::fmt;

/// What went wrong. The caller's output is as it was before the call, but for attention's (see `Layer::attend`).
/// It is `Copy`, without an allocation, and its text says what was expected, what was found and where:
///
/// ```
/// use octaplex::{CodecSpec, Error};
///
/// let error = "int:bits=9".parse::<CodecSpec>().unwrap_err();
/// assert!(matches!(error, Error::Value { at: 9, key: "bits", .. }));
/// assert!(error.to_string().contains("2..=8"), "{error}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A NaN or an infinity among the inputs, at this index (counted over all vectors given).
    NonFinite {
        /// Index of the first such value.
        index: usize,
    },
    /// A value or a scale leaves the range of its stored format (65520 and up for f16), or a query or a bias that of
    /// scores (the method says which).
    Overflow,
    /// A weight is larger than [`MAX_WEIGHT`](crate::codecs::MAX_WEIGHT).
    Weight {
        /// Index of the first such weight.
        index: usize,
    },
    /// A buffer of the wrong length.
    Length {
        /// Which buffer, and in what unit.
        what: &'static str,
        /// The length it should have (or be a multiple of).
        expected: usize,
        /// The length it has.
        actual: usize,
    },
    /// A row that a layer cannot take: keys or values to append, queries, weights, biases or sink logits.
    Row {
        /// The layer's number in its configuration.
        layer: u32,
        /// Which: keys, values, queries, weights, bias, sink logits.
        what: &'static str,
        /// Head, among those that the rows are of.
        head: usize,
        /// Number of the row in its head.
        row: usize,
        /// The value of it that is too large (`Some`), or the row's norm (`None`).
        channel: Option<usize>,
        /// Whether that is a number. Keys and values are to be below 65520, where f16 ends, with norms that their
        /// codec holds (f16's for most; half of it where keys are centred); queries, and queries times the scale, below
        /// 2⁵⁰; weights at most 2³²; biases below 2¹²⁶.
        finite: bool,
    },
    /// A page that its codec cannot hold now that it closes: rows near the end of f16 that fitted one by one.
    Page {
        /// The layer's number in its configuration.
        layer: u32,
        /// Which: keys, values.
        what: &'static str,
        /// The key/value head.
        head: usize,
        /// Position of the page's first token.
        position: usize,
        /// The row of the page that does not fit, where it is one.
        row: Option<usize>,
    },
    /// A layer, head or page that is not there.
    Missing {
        /// Which.
        what: &'static str,
        /// Its number.
        number: usize,
        /// How many there are.
        count: usize,
    },
    /// A capacity that is too small for what a layer keeps exact.
    Capacity {
        /// The configuration's.
        capacity: usize,
        /// Its sinks.
        sinks: usize,
        /// Its recent window.
        window: usize,
        /// Tokens of its pages.
        page: usize,
    },
    /// Rows of a layer that do not come out even.
    Rows {
        /// Which: keys, values, queries, output.
        what: &'static str,
        /// Heads that they are of.
        heads: usize,
        /// Width of a row.
        width: usize,
        /// Rows of each head, where something else says how many; `None` for any number.
        each: Option<usize>,
        /// Values given.
        actual: usize,
    },
    /// Query heads that do not divide into key/value heads.
    Heads {
        /// Query heads given.
        queries: usize,
        /// Key/value heads of the layer.
        kv_heads: usize,
    },
    /// A width that is not on the list of [`codebook::WIDTHS`](crate::codebook::WIDTHS).
    Width {
        /// The width asked for.
        actual: usize,
    },
    /// A stored scale or value is infinite, NaN or out of range: the bytes are not what this codec wrote.
    Corrupt {
        /// Index of the block in the slice given.
        block: usize,
    },
    /// A cache has no room for the tokens.
    Full {
        /// Tokens that fit.
        capacity: usize,
        /// Tokens there would be.
        needed: usize,
    },
    /// The machine does not give this much memory.
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// Tokens that would be seen were dropped behind a layer's sliding window: a rollback longer than its
    /// `max_rollback`, or a block of queries that begins too far back.
    Dropped {
        /// The first position that would be seen, sinks aside.
        visible: usize,
        /// The first position that the layer still has.
        held: usize,
        /// A `max_rollback` that would have kept them.
        max_rollback: usize,
    },
    /// Attention on a cache without tokens.
    Empty,
    /// Bytes that are no snapshot of this kind, version or configuration, or damaged.
    Snapshot {
        /// Byte offset.
        at: usize,
        /// What is wrong there.
        why: &'static str,
    },
    /// A text that is no profile, or of another version, or damaged; or numbers and names that no profile has.
    Profile {
        /// The line, from 1; 0 where no text was read.
        line: usize,
        /// What is wrong there.
        why: &'static str,
    },
    /// A profile of another model: it does not fit the cache.
    ProfileShape {
        /// What differs.
        what: &'static str,
        /// How many the profile has.
        profile: usize,
        /// How many the cache has.
        cache: usize,
    },
    /// A spec names a codec that does not exist.
    UnknownCodec {
        /// Byte offset of the name in the spec.
        at: usize,
        /// The codecs that exist.
        allowed: &'static [CodecInfo],
    },
    /// A spec has a key that its codec does not know, or that has no `=`.
    UnknownKey {
        /// Byte offset of the key in the spec.
        at: usize,
        /// The codec's name.
        codec: &'static str,
        /// What it takes.
        allowed: &'static [Key],
    },
    /// A spec gives a key a value it cannot have.
    Value {
        /// Byte offset of the value in the spec; 0 when the spec was not text.
        at: usize,
        /// The key.
        key: &'static str,
        /// The values it takes.
        allowed: &'static str,
    },
    /// A spec gives a key twice, or two keys that exclude each other.
    Conflict {
        /// Byte offset of the second key.
        at: usize,
        /// The second key.
        key: &'static str,
        /// The key given before it.
        with: &'static str,
    },
    /// A combination that the codec does not offer.
    Unsupported {
        /// What is asked for, and what to do instead.
        why: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NonFinite { index } => write!(f, "value {index} is NaN or infinite"),
            Self::Overflow => write!(
                f,
                "a number is too large: a value or norm for its stored format (f16 ends below 65520), or a query"
            ),
            Self::Weight { index } => write!(f, "weight {index} is larger than 2^32"),
            Self::Length { what, expected, actual } => write!(f, "{what}: expected {expected}, got {actual}"),
            Self::Row { layer, what, head, row, channel, finite } => {
                write!(f, "layer {layer}, {what}: head {head}, row {row}, ")?;
                match channel {
                    Some(channel) if finite => write!(f, "value {channel} is too large"),
                    Some(channel) => write!(f, "value {channel} is NaN or infinite"),
                    None => f.write_str("its norm is too large for the codec"),
                }?;
                match what {
                    "queries" if finite => {
                        f.write_str(": queries, and queries times the scale, are below 2^50")
                    }
                    "weights" if finite => f.write_str(": weights are at most 2^32"),
                    "bias" if finite => f.write_str(": biases are below 2^126"),
                    _ if finite => f.write_str(": f16 ends below 65520"),
                    _ => Ok(()),
                }
            }
            Self::Page { layer, what, head, position, row } => {
                write!(f, "layer {layer}, {what}: head {head}, the page from position {position} on")?;
                match row {
                    Some(row) => {
                        write!(f, " closes, and its row {row}, less the page's mean where keys are centred,")
                    }
                    None => f.write_str(" closes, and it"),
                }?;
                f.write_str(" does not fit the codec: f16 ends below 65520")
            }
            Self::Missing { what, number, count } => {
                write!(f, "{what} {number} is out of range (0..{count})")
            }
            Self::Capacity { capacity, sinks, window, page } => write!(
                f,
                "capacity {capacity}: sinks {sinks} + window {window} + page {page} need {}",
                sinks.saturating_add(window).saturating_add(page)
            ),
            Self::Rows { what, heads, width, each: None, actual } => write!(
                f,
                "{what}: {heads} heads of width {width} take a multiple of {} values, got {actual}",
                heads.saturating_mul(width)
            ),
            Self::Rows { what, heads, width, each: Some(each), actual } => write!(
                f,
                "{what}: {heads} heads of width {width} with {each} rows each take {} values, got {actual}",
                heads.saturating_mul(width).saturating_mul(each)
            ),
            Self::Heads { queries, kv_heads } => {
                write!(f, "{queries} query heads do not divide into {kv_heads} key/value heads")
            }
            Self::Width { actual } if crate::codebook::WIDTHS.contains(&actual) => {
                write!(f, "width {actual} is not offered by this codec")
            }
            Self::Width { actual } => {
                write!(f, "width {actual} is not offered; the widths are")?;
                list(f, crate::codebook::WIDTHS.iter(), ",")
            }
            Self::Corrupt { block } => {
                write!(f, "block {block} holds an infinite, NaN or out-of-range value")
            }
            Self::Full { capacity, needed } => {
                write!(
                    f,
                    "the cache is full: its capacity is {capacity} tokens, and this call needs {needed}"
                )
            }
            Self::Memory { what, bytes } => {
                write!(f, "cannot allocate {bytes} bytes for {what}")
            }
            Self::Dropped { visible, held, max_rollback } => write!(
                f,
                "tokens from position {visible} on would be seen, and the sliding window has dropped those before {held}: \
                 configure a max_rollback of {max_rollback}, or clear the layer and append again"
            ),
            Self::Empty => f.write_str("the cache has no tokens to attend to"),
            Self::Snapshot { at, why } => write!(f, "snapshot, byte {at}: {why}"),
            Self::Profile { line: 0, why } => write!(f, "profile: {why}"),
            Self::Profile { line, why } => write!(f, "profile, line {line}: {why}"),
            Self::ProfileShape { what, profile, cache } => write!(
                f,
                "the profile is of another model: it has {profile} {what}, and the cache has {cache}"
            ),
            Self::UnknownCodec { allowed, .. } => {
                write!(f, "no such codec; the codecs are")?;
                list(f, allowed.iter().map(|codec| codec.name), ",")
            }
            Self::UnknownKey { codec, allowed: [], .. } => write!(f, "{codec} takes no keys"),
            Self::UnknownKey { codec, allowed, .. } => {
                write!(f, "{codec} has no such key; it takes")?;
                list(f, allowed.iter(), ";")
            }
            Self::Value { key, allowed, .. } => write!(f, "invalid value for {key}: expected {allowed}"),
            Self::Conflict { key, with, .. } if key == with => write!(f, "{key} is given twice"),
            Self::Conflict { key, with, .. } => write!(f, "{key} and {with} exclude each other"),
            Self::Unsupported { why } => f.write_str(why),
        }
    }
}

fn list(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item: fmt::Display>,
    separator: &str,
) -> fmt::Result {
    for (i, item) in items.enumerate() {
        write!(f, "{} {item}", if i == 0 { "" } else { separator })?;
    }
    Ok(())
}

impl core::error::Error for Error {}

/// What a caller can do about an [`Error`]: [`Error::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is wrong: a length, a number of heads, a layer that does not exist. Correct the call.
    Argument,
    /// A float is NaN, infinite or too large. Look at the data.
    Value,
    /// The text of a codec's spec is wrong. Correct the text.
    Spec,
    /// The cache cannot do this now: it is full or empty, or the tokens were dropped. Change the cache, not the call.
    State,
    /// Bytes are damaged, cut off or of another kind. Get them again.
    Corrupt,
    /// The machine has too little memory.
    Memory,
    /// The library or this build does not offer it.
    Unsupported,
}

impl Error {
    /// What a caller can do about it.
    ///
    /// ```
    /// use octaplex::{CodecSpec, ErrorKind};
    ///
    /// let error = "trelis".parse::<CodecSpec>().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Spec);
    /// ```
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Length { .. }
            | Self::Missing { .. }
            | Self::Rows { .. }
            | Self::Heads { .. }
            | Self::ProfileShape { .. } => ErrorKind::Argument,
            Self::NonFinite { .. }
            | Self::Overflow
            | Self::Weight { .. }
            | Self::Row { .. }
            | Self::Page { .. } => ErrorKind::Value,
            Self::UnknownCodec { .. }
            | Self::UnknownKey { .. }
            | Self::Value { .. }
            | Self::Conflict { .. } => ErrorKind::Spec,
            Self::Full { .. } | Self::Dropped { .. } | Self::Empty => ErrorKind::State,
            Self::Corrupt { .. } | Self::Snapshot { .. } | Self::Profile { .. } => ErrorKind::Corrupt,
            Self::Memory { .. } => ErrorKind::Memory,
            Self::Width { .. } | Self::Capacity { .. } | Self::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }

    pub(crate) fn expect_length(what: &'static str, expected: usize, actual: usize) -> Result<(), Self> {
        if expected == actual { Ok(()) } else { Err(Self::Length { what, expected, actual }) }
    }
}
