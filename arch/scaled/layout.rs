//! The layout of blocks of 32 integers that follow their scale.

/// Values in a block.
pub(crate) const VALUES: usize = 32;

/// A block of 32 integers that follow their f16 scale: value = scale · integer.
///
/// ```text
/// Bytes      f16 scale │ 32 integers of 8 bits, two's complement
/// Fives      f16 scale │ fifth bits, u32 │ 16 bytes of two codes       integer = code - 16
/// Nibbles    f16 scale │ 16 bytes of two codes                         integer = code - 8
/// ```
///
/// A byte of two codes has the code of value j in its low half, and of value j + 16 in its high
/// half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaled {
    /// Integers of 8 bits.
    Bytes,
    /// Codes of 5 bits. The fifth bits are apart.
    Fives,
    /// Codes of 4 bits.
    Nibbles,
}

impl Scaled {
    /// Returns the bytes of a block.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes => 34,
            Self::Fives => 22,
            Self::Nibbles => 18,
        }
    }
}
