//! The layout of rows of small blocks that each have a scale.

/// Values in a small block.
pub const BLOCK_VALUES: usize = 32;

/// Bytes of a small block. Codes and plane are least significant bit first.
///
/// ```text
/// byte    0              8              12       14
///         │ codes, 2 bits │ plane, 1 bit │ f16 scale │
/// ```
pub const BLOCK_BYTES: usize = 14;

/// The codebook of small blocks, which also says what the bit plane holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockBook {
    /// Four values, ascending, and the thresholds between them. The plane holds the signs of the
    /// residuals (1 = not negative), which no decoder reads.
    TwoBits {
        /// The values for a scale of 1.
        centroids: [f32; 4],
        /// The thresholds. A value on a threshold gets the upper code.
        thresholds: [f32; 3],
    },
    /// Eight values. The plane holds the high bits of the codes.
    ThreeBits {
        /// The values for a scale of 1.
        centroids: [f32; 8],
        /// The thresholds. A value on a threshold gets the upper code.
        thresholds: [f32; 7],
    },
}

impl BlockBook {
    /// Returns the largest centroid. A block's largest magnitude is this times its scale.
    #[must_use]
    pub const fn largest(&self) -> f32 {
        match self {
            Self::TwoBits { centroids, .. } => centroids[3],
            Self::ThreeBits { centroids, .. } => centroids[7],
        }
    }
}
