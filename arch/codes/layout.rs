//! The layout of codes in a row.

/// The packing of codes of `radix · 2^raw_bits` levels into bits.
///
/// A code splits into `raw_bits` low bits, and a digit `code >> raw_bits` below `radix`. The low
/// bits form the *raw plane*. Digits form the *digit plane* in groups, with the first digit least
/// significant:
///
/// ```text
/// levels 12 = 3·2²      code = digit (0..3) · 4 + low bits (0..4)
/// row                   │ raw plane: 2 bits a code │ digit plane: groups of five digits, a byte each │
///
/// radix 3     five digits in 8 bits     3⁵ = 243 ≤ 256
/// radix 5     three digits in 7 bits    5³ = 125 ≤ 128
/// radix 9     two digits in 7 bits      9² =  81 ≤ 128
/// ```
///
/// A last short group takes ⌈log2 radixⁿ⌉ bits. Both planes are little-endian bit streams, least
/// significant bit first, and begin on a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    raw_bits: u8,
    radix: u8,
}

impl Packing {
    /// Returns the packing of codes with `bits` bits, 1 to 8.
    ///
    /// # Panics
    /// If `bits` is not 1 to 8.
    #[must_use]
    pub const fn bits(bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
        Self { raw_bits: bits, radix: 1 }
    }

    /// Returns the packing for `levels` = radix · 2ⁿ with radix 1, 3, 5 or 9. `None` for other
    /// numbers, and outside 2..=256.
    #[must_use]
    pub const fn for_levels(levels: usize) -> Option<Self> {
        if levels < 2 || levels > 256 {
            return None;
        }
        let raw_bits = levels.trailing_zeros() as u8;
        match levels >> raw_bits {
            radix @ (1 | 3 | 5 | 9) => Some(Self { raw_bits, radix: radix as u8 }),
            _ => None,
        }
    }

    /// Returns the number of different codes.
    #[must_use]
    pub const fn levels(self) -> usize {
        (self.radix as usize) << self.raw_bits
    }

    /// Returns the number of low bits of a code, which are stored as they are.
    #[must_use]
    pub const fn raw_bits(self) -> u32 {
        self.raw_bits as u32
    }

    /// Returns the radix of the digits: 1 (no digits), 3, 5 or 9.
    #[must_use]
    pub const fn radix(self) -> u32 {
        self.radix as u32
    }

    /// Returns (digits in a full group, bits of a full group).
    #[must_use]
    pub const fn digit_group(self) -> (usize, u32) {
        match self.radix {
            3 => (5, 8),
            5 => (3, 7),
            9 => (2, 7),
            _ => (1, 0),
        }
    }

    /// Returns the bits of a last group of `digits` digits: ⌈log2 radix^digits⌉.
    #[must_use]
    pub const fn short_group_bits(self, digits: usize) -> u32 {
        let combinations = (self.radix as u32).pow(digits as u32);
        u32::BITS - (combinations - 1).leading_zeros()
    }

    /// Returns the bytes of the raw plane for `count` codes.
    #[must_use]
    pub const fn raw_bytes(self, count: usize) -> usize {
        (count * self.raw_bits as usize).div_ceil(8)
    }

    /// Returns the bytes of both planes for `count` codes.
    #[must_use]
    #[inline]
    pub const fn bytes(self, count: usize) -> usize {
        self.raw_bytes(count) + if self.radix == 1 { 0 } else { self.digit_bits(count).div_ceil(8) }
    }

    /// Returns the bits of the digit plane for `count` codes.
    #[must_use]
    pub const fn digit_bits(self, count: usize) -> usize {
        // Every kernel call needs this, so the group sizes are constants and nothing is divided.
        match self.radix {
            3 => self.bits_of_groups::<5, 8>(count),
            5 => self.bits_of_groups::<3, 7>(count),
            9 => self.bits_of_groups::<2, 7>(count),
            _ => 0,
        }
    }

    /// Returns the bits of groups of `GROUP` digits in `WIDTH` bits each, with a last short group.
    const fn bits_of_groups<const GROUP: usize, const WIDTH: usize>(self, count: usize) -> usize {
        let short = match count % GROUP {
            0 => 0,
            rest => self.short_group_bits(rest) as usize,
        };
        count / GROUP * WIDTH + short
    }
}

/// A query of integers. Coordinate `i` is about `values[i] as f32 * scale`.
#[derive(Clone, Copy, Debug)]
pub struct IntQuery<'a> {
    /// The integers: at most ±127 for codebooks of up to 16 centroids, and at most ±1023 for larger
    /// ones.
    pub values: &'a [i16],
    /// The value of one integer step.
    pub scale: f32,
}

/// The codebook of packed rows.
#[derive(Clone, Copy)]
pub(crate) struct Codebook<'a> {
    pub(crate) packing: Packing,
    /// One integer for each code.
    pub(crate) centroids: &'a [i16],
    /// The value of one integer step.
    pub(crate) scale: f32,
}
