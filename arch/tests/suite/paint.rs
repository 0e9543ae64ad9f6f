//! Inputs that reveal a wrong kernel: every element differs from its neighbours.

use crate::buffer::Buffer;

/// The values of a vector of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Random,
    /// Random signs and exponents from 2⁻⁴⁰ to 2⁴⁰: sums in another order differ.
    Wide,
    /// Magnitudes up to 2⁶⁰.
    Huge,
    Subnormal,
    /// +0 and -0 at random.
    Zeros,
    Constant,
    OneHot,
}

pub(crate) const STYLES: [Style; 7] =
    [Style::Random, Style::Wide, Style::Huge, Style::Subnormal, Style::Zeros, Style::Constant, Style::OneHot];

/// The generator SplitMix64.
pub(crate) struct Painter(u64);

impl Painter {
    /// Creates a stream that depends on every number of the case.
    pub(crate) fn new(case: &[usize]) -> Self {
        let mut painter = Self(0x6f63_7461_706c_6578);
        for number in case {
            painter.0 ^= *number as u64;
            painter.0 = painter.next();
        }
        painter
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (((self.next() >> 32) * end as u64) >> 32) as usize
    }

    /// Returns an integer from -limit to limit.
    pub(crate) fn integer(&mut self, limit: i16) -> i16 {
        (self.below(2 * limit as usize + 1) as i32 - i32::from(limit)) as i16
    }

    /// Returns a float from -1 to 1, with 24 significant bits.
    pub(crate) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn with_exponent(&mut self, lowest: i32, highest: i32) -> f32 {
        let exponent = lowest + self.below((highest - lowest + 1) as usize) as i32;
        let bits = self.next() as u32;
        f32::from_bits((bits & 0x807f_ffff) | ((exponent + 127) as u32) << 23)
    }

    pub(crate) fn floats(&mut self, style: Style, count: usize) -> Buffer<f32> {
        let (constant, hot) = (self.float() * 3.0, self.below(count.max(1)));
        (0..count)
            .map(|i| match style {
                Style::Random => self.float(),
                Style::Wide => self.with_exponent(-40, 40),
                Style::Huge => self.with_exponent(50, 60),
                Style::Subnormal => f32::from_bits(self.next() as u32 & 0x807f_ffff),
                Style::Zeros => f32::from_bits(self.next() as u32 & 0x8000_0000),
                Style::Constant => constant,
                Style::OneHot => f32::from(i == hot) * constant,
            })
            .collect()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Buffer<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    pub(crate) fn integers(&mut self, limit: i16, count: usize) -> Buffer<i16> {
        (0..count).map(|_| self.integer(limit)).collect()
    }

    /// Returns the bits of a finite f16, possibly a subnormal or a zero.
    pub(crate) fn finite_f16(&mut self) -> [u8; 2] {
        let bits = self.next() as u16;
        (if bits & 0x7c00 == 0x7c00 { bits ^ 0x4000 } else { bits }).to_le_bytes()
    }
}
