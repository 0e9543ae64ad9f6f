//! Rows of triplets of coordinates, each a direction on the sphere and a radius: the shape that kernels read and write.

use crate::{Float, Rows};

/// Rows of a scale and one bit stream of fields, first field first, least significant bit first.
///
/// A field of 2·`direction_bits` + `radius_bits` bits is a triplet (x, y, z): the code of ξ, above it that of η, above
/// it the radius. (ξ, η) is the octahedral map of the direction: (x, y)/(|x|+|y|+|z|), and where z < 0 the lower half
/// of the octahedron folded outwards, (sgn ξ·(1-|η|), sgn η·(1-|ξ|)). The one or two coordinates that are left over
/// where `dim` is no multiple of three are a last triplet filled up with zeros, or, with `rest_bits` above zero, take
/// that many bits each of the last field; the field's other bits are zero.
#[derive(Clone, Copy, Debug)]
pub struct TripletLayout<'a> {
    /// Coordinates of a row.
    pub dim: usize,
    /// Format of the scale at the head of a row: F16 or F32.
    pub scale: Float,
    /// Bits of ξ, and of η: 1 to 7.
    pub direction_bits: u8,
    /// Bits of a radius: 0 to 6.
    pub radius_bits: u8,
    /// Bits of a coordinate left over, at most 7; 0 for a triplet filled up with zeros.
    pub rest_bits: u8,
    /// What the codes of ξ and η stand for: ascending, c\[k] = -c\[last - k], multiples of 2⁻¹⁵.
    pub coordinates: &'a [f32],
    /// 1/‖(x, y, z)‖ of the unfolded point, by η's magnitude (major) and ξ's, ranks among the positive coordinates.
    pub lengths: &'a [f32],
    /// Up to 5 bits, what scores and decoded values are made of: 127 times the direction, in integers, by the code of
    /// η (major) and ξ; the fourth byte is zero. From 6 bits on empty: the direction itself is taken.
    pub directions: &'a [[i8; 4]],
    /// The same integers plus 128, the three components in planes of their own, as kernels look them up: up to 4 bits
    /// 128 entries, those of all codes over and over or, with 4, of the codes of positive η; with 5 bits the 256 of
    /// positive codes, η's rank major. The others mirror them.
    pub planes: [&'a [u8]; 3],
    /// What the codes of the radius stand for, ascending.
    pub radii: &'a [f32],
    /// What the codes of a coordinate left over stand for, in units of `rest_scale`; empty without `rest_bits`.
    pub rest: &'a [i16],
    /// See `rest`.
    pub rest_scale: f32,
}

/// Which directions an encoder tries for a triplet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Search {
    /// Each coordinate's nearest code alone, and the code of the triplet's own radius.
    Nearest,
    /// The codes that bracket each coordinate: at most four. This and the next two take the direction that has the
    /// largest projection of the triplet (the lowest code among equals), and the radius nearest to that projection.
    Bracket,
    /// Each coordinate's nearest code and its neighbours: at most nine.
    Neighbours,
    /// Every direction.
    All,
}

/// The most fields of a row.
pub(crate) const MAX_FIELDS: usize = crate::MAX_DIM.div_ceil(3);

impl TripletLayout<'_> {
    /// Bits of a field.
    #[must_use]
    pub const fn field_bits(&self) -> usize {
        2 * self.direction_bits as usize + self.radius_bits as usize
    }

    /// Bytes of the scale.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        self.scale.bytes()
    }

    /// Bytes of the stream.
    #[must_use]
    pub const fn stream_bytes(&self) -> usize {
        (self.dim.div_ceil(3) * self.field_bits()).div_ceil(8)
    }

    /// Fields that are triplets.
    #[must_use]
    pub const fn triplets(&self) -> usize {
        if self.rest_bits == 0 { self.dim.div_ceil(3) } else { self.dim / 3 }
    }

    /// What one unit of a decoded direction is worth.
    #[must_use]
    pub const fn unit(&self) -> f32 {
        if self.directions.is_empty() { 1.0 } else { 1.0 / 127.0 }
    }

    #[inline(always)]
    pub(crate) fn row_scale(&self, rows: &Rows, r: usize) -> f32 {
        match (self.scale, rows.row(r)) {
            (Float::F32, [a, b, c, d, ..]) => f32::from_le_bytes([*a, *b, *c, *d]),
            _ => rows.scale(r),
        }
    }

    #[inline(always)]
    pub(crate) fn stream<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        &row[self.header_bytes()..][..self.stream_bytes()]
    }

    /// Field number `index` of a stream.
    #[inline(always)]
    pub(crate) fn field(&self, stream: &[u8], index: usize) -> u32 {
        let bit = index * self.field_bits();
        let window = match stream.get(bit / 8..) {
            Some([a, b, c, d, ..]) => u32::from_le_bytes([*a, *b, *c, *d]),
            Some(rest) => rest.iter().rev().fold(0, |window, byte| window << 8 | u32::from(*byte)),
            None => 0,
        };
        (window >> (bit % 8)) & ((1 << self.field_bits()) - 1)
    }

    /// (direction, radius) codes of a field.
    #[inline(always)]
    pub(crate) fn split(&self, field: u32) -> (usize, usize) {
        let bits = 2 * u32::from(self.direction_bits);
        ((field & ((1 << bits) - 1)) as usize, (field >> bits) as usize)
    }

    /// Decodes the coordinates left over: centroid·(scale·`rest_scale`).
    #[inline(always)]
    pub(crate) fn decode_rest(&self, stream: &[u8], scale: f32, rest: &mut [f32]) {
        for (out, centroid) in rest.iter_mut().zip(self.rest(stream)) {
            *out = f32::from(centroid) * (scale * self.rest_scale);
        }
    }

    /// The coordinates left over, in units of `rest_scale`.
    #[inline(always)]
    pub(crate) fn rest(&self, stream: &[u8]) -> impl Iterator<Item = i16> {
        let count = self.dim - (3 * self.triplets()).min(self.dim);
        let field = if count > 0 { self.field(stream, self.triplets()) } else { 0 };
        let mask = (1 << self.rest_bits) - 1;
        (0..count)
            .map(move |i| self.rest[((field >> (i as u32 * u32::from(self.rest_bits))) & mask) as usize])
    }
}
