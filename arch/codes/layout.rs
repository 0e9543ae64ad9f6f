//! Where the codes of a row lie in its bytes.

/// How codes of `radix · 2^raw_bits` levels become bits.
///
/// A code splits into `raw_bits` low bits and a digit `code >> raw_bits` below `radix`. Low bits go to the *raw
/// plane*, code after code; digits go to the *digit plane*, first digit least significant: base 3 five to a byte,
/// base 5 three to 7 bits, base 9 two to 7 bits. A last short group takes ⌈log2 radixⁿ⌉ bits. Both planes are
/// little-endian bit streams, least significant bit first, and start on a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    raw_bits: u8,
    radix: u8,
}

impl Packing {
    /// Codes of `bits` bits, 1 to 8.
    ///
    /// # Panics
    /// Outside 1..=8.
    #[must_use]
    pub const fn bits(bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
        Self { raw_bits: bits, radix: 1 }
    }

    /// The packing for `levels` = radix · 2ⁿ with radix 1, 3, 5 or 9; `None` for other counts, below 2 and above 256.
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

    /// Number of codes.
    #[must_use]
    pub const fn levels(self) -> usize {
        (self.radix as usize) << self.raw_bits
    }

    /// Low bits of a code that are stored as they are.
    #[must_use]
    pub const fn raw_bits(self) -> u32 {
        self.raw_bits as u32
    }

    /// 1 (no digits), 3, 5 or 9.
    #[must_use]
    pub const fn radix(self) -> u32 {
        self.radix as u32
    }

    /// (digits in a full group, its bits).
    #[must_use]
    pub const fn digit_group(self) -> (usize, u32) {
        match self.radix {
            3 => (5, 8),
            5 => (3, 7),
            9 => (2, 7),
            _ => (1, 0),
        }
    }

    /// Bits of a last group of `digits` digits: ⌈log2 radix^digits⌉.
    #[must_use]
    pub const fn short_group_bits(self, digits: usize) -> u32 {
        let combinations = (self.radix as u32).pow(digits as u32);
        u32::BITS - (combinations - 1).leading_zeros()
    }

    /// Bytes of the raw plane for `count` codes.
    #[must_use]
    pub const fn raw_bytes(self, count: usize) -> usize {
        (count * self.raw_bits as usize).div_ceil(8)
    }

    /// Bytes of both planes for `count` codes.
    #[must_use]
    #[inline]
    pub const fn bytes(self, count: usize) -> usize {
        self.raw_bytes(count) + if self.radix == 1 { 0 } else { self.digit_bits(count).div_ceil(8) }
    }

    /// Bits of the digit plane for `count` codes.
    #[must_use]
    pub const fn digit_bits(self, count: usize) -> usize {
        // Every call asks for it: what a group has is a constant, so that nothing is divided.
        match self.radix {
            3 => self.bits_of_groups::<5, 8>(count),
            5 => self.bits_of_groups::<3, 7>(count),
            9 => self.bits_of_groups::<2, 7>(count),
            _ => 0,
        }
    }

    const fn bits_of_groups<const GROUP: usize, const WIDTH: usize>(self, count: usize) -> usize {
        let short = match count % GROUP {
            0 => 0,
            rest => self.short_group_bits(rest) as usize,
        };
        count / GROUP * WIDTH + short
    }
}

/// A query of integers: the `i`-th coordinate is about `values[i] as f32 * scale`.
#[derive(Clone, Copy, Debug)]
pub struct IntQuery<'a> {
    /// At most ±127 for codebooks of up to 16 centroids, at most ±1023 for larger ones.
    pub values: &'a [i16],
    /// Value of one unit.
    pub scale: f32,
}

/// What the codes of packed rows stand for.
#[derive(Clone, Copy)]
pub(crate) struct Codebook<'a> {
    pub(crate) packing: Packing,
    /// One integer for each code.
    pub(crate) centroids: &'a [i16],
    /// The value of one unit of these integers.
    pub(crate) scale: f32,
}
