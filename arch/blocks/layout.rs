//! Rows of small blocks that each have a scale of their own.

/// Values in a small block.
pub const BLOCK_VALUES: usize = 32;

/// Bytes of a small block: 2 bits of code for each value, then a plane of one bit for each, then an f16 scale. Code and
/// plane are least significant bit first.
pub const BLOCK_BYTES: usize = 14;

/// The codebook of small blocks, and what their bit plane holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockBook {
    /// Four values, ascending, and the thresholds between them. The plane holds the signs of the residuals (1 = not
    /// negative), and nothing reads it.
    TwoBits {
        /// Values for a scale of 1.
        centroids: [f32; 4],
        /// A value on a threshold goes to the upper cell.
        thresholds: [f32; 3],
    },
    /// Eight values. The plane holds the codes' high bits.
    ThreeBits {
        /// Values for a scale of 1.
        centroids: [f32; 8],
        /// A value on a threshold goes to the upper cell.
        thresholds: [f32; 7],
    },
}

impl BlockBook {
    /// The largest centroid: the block's largest magnitude is this times its scale.
    #[must_use]
    pub const fn largest(&self) -> f32 {
        match self {
            Self::TwoBits { centroids, .. } => centroids[3],
            Self::ThreeBits { centroids, .. } => centroids[7],
        }
    }
}
