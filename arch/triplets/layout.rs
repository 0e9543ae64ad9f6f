//! Rows of triplets of coordinates, each a direction on the sphere and a radius.

use crate::{Float, Rows};

/// A row: a scale, then one bit stream of fields.
///
/// The first field comes first, least significant bit first. A field of 2·`direction_bits` +
/// `radius_bits` bits is a triplet (x, y, z):
///
/// ```text
/// row     │ scale │ field 0 │ field 1 │ … │
/// field   │ radius │ η │ ξ │                         ξ lowest
///
///        η
///   ┌────┬────┐
///   │  ╱ │ ╲  │      inside the diamond |ξ|+|η| ≤ 1: z ≥ 0, (ξ, η) = (x, y)/(|x|+|y|+|z|)
///   ├─┼──┼──┼─┤ ξ    outside: z < 0, folded outwards, (sgn ξ·(1-|η|), sgn η·(1-|ξ|))
///   │  ╲ │ ╱  │
///   └────┴────┘
/// ```
///
/// This is the octahedral map of the direction.
///
/// If `dim` is not a multiple of three, one or two coordinates are left over. They are a last
/// triplet padded with zeros. Or, with `rest_bits` above zero, each takes `rest_bits` bits of the
/// last field, whose other bits are zero.
#[derive(Clone, Copy, Debug)]
pub struct TripletLayout<'a> {
    /// Number of coordinates of a row.
    pub dim: usize,
    /// Format of the scale at the beginning of a row: F16 or F32.
    pub scale: Float,
    /// Bits of ξ, and of η: 1 to 7.
    pub direction_bits: u8,
    /// Bits of a radius: 0 to 6.
    pub radius_bits: u8,
    /// Bits of a coordinate left over, at most 7. 0 for a triplet padded with zeros.
    pub rest_bits: u8,
    /// Values of the codes of ξ and η: ascending, c\[k] = -c\[last - k], multiples of 2⁻¹⁵.
    pub coordinates: &'a [f32],
    /// 1/‖(x, y, z)‖ of the unfolded point. The index is η's magnitude (major) and ξ's, as ranks
    /// among the positive values.
    pub lengths: &'a [f32],
    /// 127 times each direction in integers, by the code of η (major) and ξ. The fourth byte is
    /// zero.
    ///
    /// Scores and decoded values use it up to 5 bits. From 6 bits on it is empty, and they use the
    /// exact direction.
    pub directions: &'a [[i8; 4]],
    /// The same integers plus 128, with one plane for each component, as kernels look them up.
    ///
    /// Up to 4 bits a plane has 128 entries: all codes, repeated, or with 4 bits the codes of
    /// positive η. With 5 bits it has the 256 positive codes, with η's rank major. The others
    /// mirror them.
    pub planes: [&'a [u8]; 3],
    /// Values of the codes of the radius, ascending.
    pub radii: &'a [f32],
    /// Values of the codes of a coordinate left over, in units of `rest_scale`. Empty without
    /// `rest_bits`.
    pub rest: &'a [i16],
    /// The unit of `rest`.
    pub rest_scale: f32,
}

/// The directions that an encoder tries for a triplet.
///
/// All but `Nearest` take the direction with the largest projection of the triplet, and the radius
/// nearest to that projection. Among equals the lowest code wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Search {
    /// Only the nearest code of each coordinate, and the code of the triplet's own radius.
    Nearest,
    /// The two codes around each coordinate: at most four directions.
    Bracket,
    /// The nearest code of each coordinate and its neighbours: at most nine directions.
    Neighbours,
    /// Every direction.
    All,
}

/// Largest number of fields of a row.
pub(crate) const MAX_FIELDS: usize = crate::MAX_DIM.div_ceil(3);

impl TripletLayout<'_> {
    /// Returns the bits of a field.
    #[must_use]
    pub const fn field_bits(&self) -> usize {
        2 * self.direction_bits as usize + self.radius_bits as usize
    }

    /// Returns the bytes of the scale.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        self.scale.bytes()
    }

    /// Returns the bytes of the stream.
    #[must_use]
    pub const fn stream_bytes(&self) -> usize {
        (self.dim.div_ceil(3) * self.field_bits()).div_ceil(8)
    }

    /// Returns the number of fields that are triplets.
    #[must_use]
    pub const fn triplets(&self) -> usize {
        if self.rest_bits == 0 { self.dim.div_ceil(3) } else { self.dim / 3 }
    }

    /// Returns the value of one unit of a decoded direction.
    #[must_use]
    pub const fn unit(&self) -> f32 {
        if self.directions.is_empty() { 1.0 } else { 1.0 / 127.0 }
    }

    /// Returns the scale of a row.
    #[inline(always)]
    pub(crate) fn row_scale(&self, rows: &Rows, r: usize) -> f32 {
        match (self.scale, rows.row(r)) {
            (Float::F32, [a, b, c, d, ..]) => f32::from_le_bytes([*a, *b, *c, *d]),
            _ => rows.scale(r),
        }
    }

    /// Returns the stream of a row.
    #[inline(always)]
    pub(crate) fn stream<'r>(&self, row: &'r [u8]) -> &'r [u8] {
        &row[self.header_bytes()..][..self.stream_bytes()]
    }

    /// Returns field `index` of a stream.
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

    /// Splits a field into the codes of direction and radius.
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

    /// Returns the coordinates left over, in units of `rest_scale`.
    #[inline(always)]
    pub(crate) fn rest(&self, stream: &[u8]) -> impl Iterator<Item = i16> {
        let count = self.dim - (3 * self.triplets()).min(self.dim);
        let field = if count > 0 { self.field(stream, self.triplets()) } else { 0 };
        let mask = (1 << self.rest_bits) - 1;
        (0..count)
            .map(move |i| self.rest[((field >> (i as u32 * u32::from(self.rest_bits))) & mask) as usize])
    }
}
