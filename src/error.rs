//! The one error type of the library.

use crate::spec::{CodecInfo, Key};
use core::fmt;

/// Says what went wrong: what was expected, what was found, and where.
///
/// After an error, the caller's output is as it was before the call, except the output of attention (see
/// `Layer::attend`). An `Error` is `Copy` and does not allocate. [`kind`](Self::kind) says what a caller can do about
/// it.
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
    /// An input value is NaN or infinite.
    NonFinite {
        /// Index of the first such value, counted over all vectors of the call.
        index: usize,
    },
    /// A number is too large. The method says which of these cases applies:
    /// * a value or a scale for its stored format (65520 and up for f16)
    /// * a query or a bias for scores
    Overflow,
    /// A weight is larger than [`MAX_WEIGHT`](crate::codecs::MAX_WEIGHT).
    Weight {
        /// Index of the first such weight.
        index: usize,
    },
    /// A buffer has the wrong length.
    Length {
        /// The buffer, and the unit of its length.
        what: &'static str,
        /// The length that it must have, or that its length must be a multiple of.
        expected: usize,
        /// The length that it has.
        actual: usize,
    },
    /// A layer cannot take a row of keys, values, queries, weights, biases or sink logits.
    ///
    /// These are the limits of finite rows:
    ///
    /// | rows | limit |
    /// |---|---|
    /// | keys, values | values are below 65520, where f16 ends |
    /// | | the codec can hold the norm (most codecs: f16); centred keys: twice the norm |
    /// | queries | below 2⁵⁰, and so are queries times the scale |
    /// | weights | at most 2³² |
    /// | biases | below 2¹²⁶ |
    Row {
        /// The layer's number in its configuration.
        layer: u32,
        /// The kind of row: keys, values, queries, weights, bias or sink logits.
        what: &'static str,
        /// The head, counted among the heads of these rows.
        head: usize,
        /// The row, counted within its head.
        row: usize,
        /// The value that is too large, counted within the row; `None` if the row's norm is.
        channel: Option<usize>,
        /// Whether the value is a finite number.
        finite: bool,
    },
    /// A page that closes cannot be encoded, although its rows fitted one by one. They are near the end of f16.
    Page {
        /// The layer's number in its configuration.
        layer: u32,
        /// The kind of row: keys or values.
        what: &'static str,
        /// The key/value head.
        head: usize,
        /// Position of the page's first token.
        position: usize,
        /// The row of the page that is too large; `None` if no single row is.
        row: Option<usize>,
    },
    /// A layer, head, token or page is out of range.
    Missing {
        /// The kind of thing.
        what: &'static str,
        /// Its number.
        number: usize,
        /// The number of them.
        count: usize,
    },
    /// A capacity is too small for the tokens that a layer keeps exact.
    Capacity {
        /// Tokens of the configured capacity.
        capacity: usize,
        /// Configured sinks.
        sinks: usize,
        /// Tokens of the configured recent window.
        window: usize,
        /// Tokens of a page.
        page: usize,
    },
    /// A layer's rows have the wrong number of values.
    Rows {
        /// The kind of row: keys, values, queries or output.
        what: &'static str,
        /// Heads of these rows.
        heads: usize,
        /// Values of a row.
        width: usize,
        /// Rows that each head must have; `None` if any number is allowed.
        each: Option<usize>,
        /// Values of the call.
        actual: usize,
    },
    /// The number of query heads is not a multiple of the key/value heads.
    Heads {
        /// Query heads of the call.
        queries: usize,
        /// Key/value heads of the layer.
        kv_heads: usize,
    },
    /// A width is not one of [`codebook::WIDTHS`](crate::codebook::WIDTHS), or the codec does not support it.
    Width {
        /// The width of the call.
        actual: usize,
    },
    /// A stored scale or value is infinite, NaN or out of range. This codec did not write these bytes.
    Corrupt {
        /// Index of the block in the slice of the call.
        block: usize,
    },
    /// A cache is full.
    Full {
        /// Tokens that fit.
        capacity: usize,
        /// Tokens that the call needs.
        needed: usize,
    },
    /// The machine has too little memory.
    ///
    /// Memory that grows with the input is checked before it is used: pages, exact tokens, scratch memory, snapshots,
    /// chunks, blocks. The program ends without an error in two cases. Another thread takes the memory between the
    /// check and the use, or there is none even for a codec or for counters.
    Memory {
        /// The use of the memory.
        what: &'static str,
        /// Bytes requested.
        bytes: usize,
    },
    /// A call needs tokens that were dropped behind a layer's sliding window.
    ///
    /// A rollback was longer than `max_rollback`, or a block of queries begins too far back.
    Dropped {
        /// The first position that queries would see, sinks aside.
        visible: usize,
        /// The first position that the layer still has.
        held: usize,
        /// A `max_rollback` that would have kept these tokens.
        max_rollback: usize,
    },
    /// A cache has no tokens to attend to.
    Empty,
    /// Bytes are damaged, or are no snapshot of this kind, version or configuration.
    Snapshot {
        /// Byte offset.
        at: usize,
        /// The fault there.
        why: &'static str,
    },
    /// A text is damaged, is no profile or one of another version, or a profile has an invalid number or name.
    Profile {
        /// The line, from 1; 0 if the profile was not read from text.
        line: usize,
        /// The fault there.
        why: &'static str,
    },
    /// A profile does not fit the cache: it is for another model.
    ProfileShape {
        /// The property that differs.
        what: &'static str,
        /// Its number in the profile.
        profile: usize,
        /// Its number in the cache.
        cache: usize,
    },
    /// A spec names a codec that does not exist.
    UnknownCodec {
        /// Byte offset of the name in the spec.
        at: usize,
        /// The codecs that exist.
        allowed: &'static [CodecInfo],
    },
    /// A spec has a key that its codec does not know.
    UnknownKey {
        /// Byte offset of the key in the spec.
        at: usize,
        /// The codec's name.
        codec: &'static str,
        /// The keys that the codec takes.
        allowed: &'static [Key],
    },
    /// A spec gives a key an invalid value, or none.
    Value {
        /// Byte offset of the value in the spec; 0 if the spec was not text.
        at: usize,
        /// The key.
        key: &'static str,
        /// The values that the key takes.
        allowed: &'static str,
    },
    /// A spec gives a key twice, or two keys that exclude each other.
    Conflict {
        /// Byte offset of the second key.
        at: usize,
        /// The second key.
        key: &'static str,
        /// The key that stands before it.
        with: &'static str,
    },
    /// The library, this build or the codec does not support this.
    Unsupported {
        /// The unsupported thing, and what to do instead.
        why: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NonFinite { index } => write!(f, "value {index} is NaN or infinite"),
            Self::Overflow => write!(
                f,
                "a value or norm is too large for its stored format (f16 ends below 65520), or a query is too large"
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
                        f.write_str(": queries, and queries times the scale, must be below 2^50")
                    }
                    "weights" if finite => f.write_str(": weights must be at most 2^32"),
                    "bias" if finite => f.write_str(": biases must be below 2^126"),
                    _ if finite => f.write_str(": f16 ends below 65520"),
                    _ => Ok(()),
                }
            }
            Self::Page { layer, what, head, position, row } => {
                write!(f, "layer {layer}, {what}: head {head}, the page that begins at position {position}")?;
                match row {
                    Some(row) => {
                        write!(f, " cannot close: row {row} (minus the page's mean if keys are centred)")
                    }
                    None => f.write_str(" cannot close: it"),
                }?;
                f.write_str(" is too large for the codec (f16 ends below 65520)")
            }
            Self::Missing { what, number, count } => {
                write!(f, "{what} {number} is out of range (0..{count})")
            }
            Self::Capacity { capacity, sinks, window, page } => write!(
                f,
                "capacity {capacity} is too small: sinks {sinks} + window {window} + page {page} need {}",
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
                write!(f, "{queries} query heads are not a multiple of {kv_heads} key/value heads")
            }
            Self::Width { actual } if crate::codebook::WIDTHS.contains(&actual) => {
                write!(f, "this codec does not support width {actual}")
            }
            Self::Width { actual } => {
                write!(f, "width {actual} is not supported; the widths are")?;
                list(f, crate::codebook::WIDTHS.iter(), ",")
            }
            Self::Corrupt { block } => {
                write!(
                    f,
                    "block {block} holds an infinite, NaN or out-of-range value: it is damaged, or another codec wrote it"
                )
            }
            Self::Full { capacity, needed } => {
                write!(
                    f,
                    "the cache is full: its capacity is {capacity} tokens, and this call needs {needed}; \
                     create it with a larger capacity, or remove tokens"
                )
            }
            Self::Memory { what, bytes } => {
                write!(f, "cannot allocate {bytes} bytes for {what}")
            }
            Self::Dropped { visible, held, max_rollback } => write!(
                f,
                "the sliding window needs the tokens from position {visible} on, but those before {held} were dropped: \
                 pass fewer tokens at a time, configure a max_rollback of {max_rollback}, or clear the layer and append \
                 again"
            ),
            Self::Empty => f.write_str("the cache has no tokens to attend to: append some first"),
            Self::Snapshot { at, why } => write!(f, "snapshot, byte {at}: {why}"),
            Self::Profile { line: 0, why } => write!(f, "profile: {why}"),
            Self::Profile { line, why } => write!(f, "profile, line {line}: {why}"),
            Self::ProfileShape { what, profile, cache } => write!(
                f,
                "the profile is for another model: it has {profile} {what}, and the cache has {cache}"
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

/// Says what a caller can do about an [`Error`]. [`Error::kind`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is wrong: a length, a number of heads, a layer that does not exist. Correct the call.
    Argument,
    /// A float is NaN, infinite or too large. Look at the data.
    Value,
    /// The text of a codec's spec is wrong. Correct the text.
    Spec,
    /// The cache cannot do this now: it is full or empty, or tokens were dropped. Change the cache, not the call.
    State,
    /// Bytes are damaged, cut off or of another kind. Get them again.
    Corrupt,
    /// The machine has too little memory.
    Memory,
    /// The library or this build does not support it.
    Unsupported,
}

impl Error {
    /// Returns what a caller can do about this error.
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
