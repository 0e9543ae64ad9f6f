//! Directions in four dimensions as products of quaternions: the 24 Hurwitz units, rows of coded
//! chunks, and an index of candidates.
//!
//! A *member* is a unit quaternion of a set of S. Code p·S + s stands for unit `p` times member
//! `s`, by Hamilton's product with components in the order 1, i, j, k.
//!
//! ```text
//! direction u       ≈ unit · member            24·S directions
//! <u, unit·member>  = <u·member*, unit>        * conjugates: one multiplication for all 24 units of a member
//! best unit of y    : max(‖y‖∞, ‖y‖₁/2)         y = u·member*
//! ```
//!
//! So the best product needs one multiplication for each member. It works because the units are a
//! group.

use crate::floats::rint;

/// The Hurwitz units: ±1, ±i, ±j, ±k, then 8 + b: ½(±1±i±j±k). Bit c of b makes component c
/// negative.
pub const UNITS: [[f32; 4]; 24] = {
    let mut units = [[0.0; 4]; 24];
    let mut p = 0;
    while p < 24 {
        let mut c = 0;
        while c < 4 {
            units[p][c] = DOUBLE_UNITS[p][c] as f32 * 0.5;
            c += 1;
        }
        p += 1;
    }
    units
};

/// Twice the units, in integers.
const DOUBLE_UNITS: [[i8; 4]; 24] = {
    let mut units = [[0; 4]; 24];
    let mut p = 0;
    while p < 8 {
        units[p][p / 2] = if p % 2 == 0 { 2 } else { -2 };
        p += 1;
    }
    while p < 24 {
        let mut c = 0;
        while c < 4 {
            units[p][c] = if (p - 8) >> c & 1 == 0 { 1 } else { -1 };
            c += 1;
        }
        p += 1;
    }
    units
};

/// `TURNS[c][p]` is the number of unit `p` times the `c`-th of 1, i, j, k. Component c of unit*·q
/// is the inner product of q and that unit.
pub(crate) const TURNS: [[u8; 24]; 4] = {
    let mut turns = [[0; 24]; 4];
    let mut c = 0;
    while c < 4 {
        let mut p = 0;
        while p < 24 {
            let product = multiply_doubles(DOUBLE_UNITS[p], DOUBLE_UNITS[2 * c]);
            let mut found = 0;
            while !same(DOUBLE_UNITS[found], product) {
                found += 1;
            }
            turns[c][p] = found as u8;
            p += 1;
        }
        c += 1;
    }
    turns
};

/// Multiplies two doubled quaternions to a doubled one.
const fn multiply_doubles(a: [i8; 4], b: [i8; 4]) -> [i8; 4] {
    [
        (a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3]) / 2,
        (a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2]) / 2,
        (a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1]) / 2,
        (a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0]) / 2,
    ]
}

/// Compares two quaternions.
const fn same(a: [i8; 4], b: [i8; 4]) -> bool {
    a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3]
}

/// Returns unit·q: four sums of four products, by pairs.
#[inline(always)]
#[must_use]
pub fn product(unit: &[f32; 4], q: &[f32; 4]) -> [f32; 4] {
    let ([a, b, c, d], [w, x, y, z]) = (*unit, *q);
    [
        (a * w - b * x) - (c * y + d * z),
        (a * x + b * w) + (c * z - d * y),
        (a * y + c * w) + (d * x - b * z),
        (a * z + d * w) + (b * y - c * x),
    ]
}

/// The layout of a row of coded chunks. Planes are little-endian bit streams, least significant bit
/// first, and start on a byte.
///
/// ```text
/// │ scale: f16 │ raw: bits of direction codes │ digits, if `radix` │ radius codes │ flags, if `flags` │
///   2 bytes
/// ```
///
/// Without mixed radix, a code is ⌈log2 24·S⌉ bits of the raw plane. In mixed radix, 24·S = 9·2^k:
///
/// ```text
/// code = base-9 digit · 2^k + k raw bits
///             │
///             two base-3 digits, the lower first, five to a byte: d₀ + 3·d₁ + 9·d₂ + 27·d₃ + 81·d₄
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkLayout {
    /// Number of chunks of four values in a row.
    pub chunks: usize,
    /// Number of members of the set, S: 1 to 255.
    pub members: u8,
    /// Bits of a radius code, 1 to 6.
    pub radius_bits: u8,
    /// Mixed radix. S must be 3·2ⁿ.
    pub radix: bool,
    /// Whether a row ends with a plane of one bit a chunk, for the caller's use.
    pub flags: bool,
}

/// Returns a reciprocal of S and a shift.
///
/// `mulhi(4·code, reciprocal) >> shift` is the unit of every code below 24·S, where `mulhi` is the
/// upper 16 of 32 bits. The remainder is the member.
#[cfg(target_arch = "x86_64")]
pub const fn unit_reciprocal(members: u8) -> (u16, u32) {
    let mut shift = 0;
    while (1u32 << (15 + shift)).div_ceil(members as u32) < 1 << 16 {
        shift += 1;
    }
    ((1u32 << (14 + shift)).div_ceil(members as u32) as u16, shift)
}

/// Number of chunks in the widest vector.
pub(crate) const MAX_CHUNKS: usize = crate::MAX_DIM / 4;

/// Bytes of the widest row before its flags: 13 + 6 bits a chunk.
pub(crate) const MAX_ROW: usize = 2 + (MAX_CHUNKS * 13).div_ceil(8) + (MAX_CHUNKS * 6).div_ceil(8);

impl ChunkLayout {
    /// Returns the number of codes, 24·S.
    #[must_use]
    pub const fn codes(&self) -> u32 {
        24 * self.members as u32
    }

    /// Returns the bits of a code in the raw plane.
    #[must_use]
    pub const fn raw_bits(&self) -> u32 {
        if self.radix {
            self.codes().trailing_zeros()
        } else {
            u32::BITS - (self.codes() - 1).leading_zeros()
        }
    }

    /// Returns the largest radius code.
    #[must_use]
    pub const fn radius_limit(&self) -> u8 {
        (0xff_u32 >> (8 - self.radius_bits)) as u8
    }

    /// Returns the byte at which the digit plane starts.
    #[must_use]
    pub const fn digits_at(&self) -> usize {
        2 + (self.chunks * self.raw_bits() as usize).div_ceil(8)
    }

    /// Returns the byte at which the radius plane starts.
    #[must_use]
    pub const fn radii_at(&self) -> usize {
        self.digits_at() + if self.radix { (2 * self.chunks).div_ceil(5) } else { 0 }
    }

    /// Returns the byte at which the flags start.
    #[must_use]
    pub const fn flags_at(&self) -> usize {
        self.radii_at() + (self.chunks * self.radius_bits as usize).div_ceil(8)
    }

    /// Returns the bytes of a row.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.flags_at() + if self.flags { self.chunks.div_ceil(8) } else { 0 }
    }

    /// Returns whether the numbers are in their ranges.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.chunks >= 1
            && self.chunks <= MAX_CHUNKS
            && self.members >= 1
            && self.radius_bits >= 1
            && self.radius_bits <= 6
            && (!self.radix || self.codes() >> self.raw_bits() == 9)
    }
}

/// The step from norms to radius codes: min(limit, ⌊norm·factor + ½⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RadiusSteps {
    /// Steps for each unit of the norm. Finite, not negative.
    pub factor: f32,
    /// The largest code.
    pub limit: u8,
}

/// A set of 1 to 255 members, in the forms that kernels need.
#[derive(Clone, Copy, Debug)]
pub struct QuaternionSet<'a> {
    /// Unit quaternions.
    pub members: &'a [[f32; 4]],
    /// The same, times 127 and rounded, for scores.
    pub ints: &'a [[i8; 4]],
    /// Finds candidates for the best code. Without it, every member is tried.
    pub index: Option<QuaternionIndex<'a>>,
}

/// Returns a member times 127, rounded to nearest, ties to even.
#[must_use]
pub fn quaternion_ints(member: [f32; 4]) -> [i8; 4] {
    member.map(|c| rint(c * 127.0) as i8)
}

/// Steps of the index's grid along each axis.
pub const INDEX_GRID: usize = 16;

/// Entries of an index's table of cells.
pub const INDEX_CELLS: usize = INDEX_GRID * INDEX_GRID * INDEX_GRID;

/// Number of bytes behind the last list of an index, so that kernels may read beyond a list's end.
pub const INDEX_PADDING: usize = 256;

/// For each part of space, the members that can be the best there.
///
/// The inverse of its nearest unit turns a direction to w ≥ |x|+|y|+|z|. This is an octahedron in
/// the coordinates g = (x, y, z)/w. A grid of [`INDEX_GRID`]³ cells divides the cube \[-1, 1]³
/// around it, the last axis fastest. A cell lists, ascending, every member that can win anywhere in
/// it.
///
/// The caller builds the lists. With a margin for rounding, the index changes only speed, never the
/// result.
#[derive(Clone, Copy, Debug)]
pub struct QuaternionIndex<'a> {
    cells: &'a [u32; INDEX_CELLS],
    lists: &'a [u8],
    members: usize,
}

/// The tables of a [`QuaternionIndex`].
#[cfg(feature = "alloc")]
#[derive(Clone, Debug)]
pub struct QuaternionIndexTables {
    cells: alloc::boxed::Box<[u32; INDEX_CELLS]>,
    lists: alloc::boxed::Box<[u8]>,
    members: usize,
}

#[cfg(feature = "alloc")]
impl QuaternionIndexTables {
    /// Checks the tables and keeps them, see [`QuaternionIndex::new`].
    ///
    /// # Panics
    /// Like [`QuaternionIndex::new`].
    #[must_use]
    pub fn new(
        members: usize,
        cells: alloc::boxed::Box<[u32; INDEX_CELLS]>,
        lists: alloc::boxed::Box<[u8]>,
    ) -> Self {
        let _checked = QuaternionIndex::new(members, &cells, &lists);
        Self { cells, lists, members }
    }

    /// Returns the index for kernels.
    #[must_use]
    pub fn index(&self) -> QuaternionIndex<'_> {
        QuaternionIndex { cells: &self.cells, lists: &self.lists, members: self.members }
    }

    /// Returns the bytes of the tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        core::mem::size_of_val(&*self.cells) + self.lists.len()
    }
}

impl<'a> QuaternionIndex<'a> {
    /// Checks the tables.
    ///
    /// A cell is its list's offset · 256 + length, where the length is at least 1. `lists` has
    /// [`INDEX_PADDING`] more bytes at its end.
    ///
    /// # Panics
    /// If a list leaves `lists`, or names a member that a set of `members` does not have.
    #[must_use]
    pub const fn new(members: usize, cells: &'a [u32; INDEX_CELLS], lists: &'a [u8]) -> Self {
        let end = lists.len().saturating_sub(INDEX_PADDING);
        let mut i = 0;
        while i < INDEX_CELLS {
            let (start, length) = ((cells[i] >> 8) as usize, (cells[i] & 0xff) as usize);
            assert!(length > 0 && start + length <= end, "a list is not inside the lists");
            i += 1;
        }
        let mut i = 0;
        while i < lists.len() {
            assert!((lists[i] as usize) < members, "a list names a member that does not exist");
            i += 1;
        }
        Self { cells, lists, members }
    }

    /// Returns the number of members of the set for which it was built.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members
    }

    /// Returns the table of cells, and the lists. Offsets and lengths are inside the lists, the
    /// padding excluded.
    pub(crate) fn tables(&self) -> (&'a [u32; INDEX_CELLS], &'a [u8]) {
        (self.cells, self.lists)
    }
}
