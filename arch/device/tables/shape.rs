//! The shape of a code: the number that kernels know it by, and the bytes of a row on the CPU and on the GPU.

use octaplex_arch::quaternion::ChunkLayout;
use octaplex_arch::{BLOCK_BYTES, BLOCK_VALUES, Packing};

/// The code of a row of keys or of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeShape {
    /// Codes of n bits. Codes of 2, 3 and 4 bits have antisymmetric centroids. Codes of 1 and 5 to 8 bits
    /// have centroids of up to ±2047 in shared memory.
    Codes(u8),
    /// n codes, 3, 5, 6, 10 or 12, in shared memory too: low bits, and digits of radix 3 or 5.
    Levels(u8),
    /// A trellis of 8 states with codes of 1, 2 or 3 bits.
    Trellis(u8),
    /// Another trellis, in shared memory: bits of the path in addition to the newest, and codes of a
    /// window.
    Paths([u8; 2]),
    /// Integers of 2 to 8 bits, with a scale in f16 before each row.
    Int(u8),
    /// Such integers with fields in f16 before each row: a scale for each group, or a scale and a zero.
    Groups(Groups),
    /// Triplets, for keys only: bits of ξ and of η, of a radius, and of a coordinate that is left over (0
    /// if none is).
    Triplets([u8; 3]),
    /// Small blocks, for keys only: codes of 3 bits, or of 2 and a sign, with a scale in f16 for each
    /// block.
    Blocks,
    /// Chunks of four values, for keys only: members of the set, bits of a radius, and 1 for codes in mixed
    /// radix.
    Chunks([u8; 3]),
    /// Two trellis codes of half the width, for keys only: for each, bits of the path in addition to the
    /// newest, and codes of a window. Norms of both lie outside of the rows.
    Halves([[u8; 2]; 2]),
}

/// Returns the shape of a trellis: [`CodeShape::Trellis`] if registers hold its codebook.
const fn trellis_shape(history: u8, levels: u8) -> CodeShape {
    match (history, levels) {
        (3, 2 | 4 | 8) => CodeShape::Trellis(levels.trailing_zeros() as u8),
        _ => CodeShape::Paths([history, levels]),
    }
}

/// `Kind` in `kernels/layout.cuh`.
enum Kind {
    Codes,
    Indexed,
    Trellis,
    Integers,
    Groups,
    Triplets,
    Blocks,
    Chunks,
}

/// `shape_of` in `kernels/layout.cuh`.
fn shape_of(kind: Kind, bits: u8, history: u8, radix: u32, octaves: u32, zeros: bool) -> u32 {
    (kind as u32) << 20
        | u32::from(zeros) << 16
        | octaves << 12
        | radix << 8
        | u32::from(history) << 4
        | u32::from(bits)
}

/// Integers whose groups have their own scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Bits of an integer: 2 to 8.
    pub bits: u8,
    /// Integers of a group: 16, 32 or 64; `None` for a whole row, with zeros.
    pub group: Option<u8>,
    /// Whether a group has a zero too.
    pub zeros: bool,
}

impl Groups {
    /// Returns the fields of a row.
    fn fields(self, dim: usize) -> usize {
        self.group.map_or(1, |group| dim / usize::from(group)) * if self.zeros { 2 } else { 1 }
    }
}

impl CodeShape {
    /// Returns the number that the kernels' source uses.
    pub(crate) fn number(self) -> u32 {
        let plain = |kind, bits| shape_of(kind, bits, 0, 1, 0, false);
        let indexed = |history, levels| {
            shape_of(Kind::Indexed, gpu_bits(levels) as u8, history, radix_of(levels), 0, false)
        };
        match self {
            Self::Codes(bits @ 2..=4) => plain(Kind::Codes, bits),
            Self::Codes(bits) => plain(Kind::Indexed, bits),
            Self::Levels(levels) => indexed(0, levels),
            Self::Trellis(bits) => plain(Kind::Trellis, bits),
            Self::Paths([history, levels]) => indexed(history, levels),
            Self::Int(bits) => plain(Kind::Integers, bits),
            Self::Groups(Groups { bits, group, zeros }) => {
                shape_of(Kind::Groups, bits, 0, 1, group.map_or(0, u8::ilog2), zeros)
            }
            Self::Triplets(_) => plain(Kind::Triplets, 0),
            Self::Blocks => plain(Kind::Blocks, 3),
            Self::Chunks(_) => plain(Kind::Chunks, 0),
            // Kernels use the shapes of both halves. The code for whole keys is compiled for a trellis, but
            // never runs.
            Self::Halves(_) => plain(Kind::Trellis, 3),
        }
    }

    /// Returns the shapes of both halves.
    pub(crate) fn halves(self) -> Option<[Self; 2]> {
        match self {
            Self::Halves(halves) => Some(halves.map(|[history, levels]| trellis_shape(history, levels))),
            _ => None,
        }
    }

    /// Returns the sum over both halves, each of half the width.
    fn of_halves(halves: [[u8; 2]; 2], each: impl Fn(Self) -> usize) -> usize {
        halves.iter().map(|[history, levels]| each(trellis_shape(*history, *levels))).sum()
    }

    /// Returns the parameters of triplets and chunks as the kernels' source packs them.
    pub(crate) fn triplets(self) -> u32 {
        match self {
            Self::Triplets([first, second, third]) | Self::Chunks([first, second, third]) => {
                u32::from(first) << 8 | u32::from(second) << 4 | u32::from(third)
            }
            _ => 0,
        }
    }

    /// Returns the bytes of a row of this width on the CPU.
    pub(crate) fn row(self, dim: usize) -> usize {
        match self {
            Self::Codes(bits) => self.row_head(dim) + dim * usize::from(bits) / 8,
            Self::Levels(levels) => packed_bytes(levels, dim),
            Self::Trellis(bits) => dim * (1 + usize::from(bits)) / 8,
            Self::Paths([_, levels]) => self.row_head(dim) + dim / 8 + packed_bytes(levels, dim),
            Self::Int(bits) => self.row_head(dim) + dim * usize::from(bits) / 8,
            Self::Groups(groups) => self.row_head(dim) + dim * usize::from(groups.bits) / 8,
            Self::Triplets(_) => (dim.div_ceil(3) * self.field()).div_ceil(8),
            Self::Blocks => dim / BLOCK_VALUES * BLOCK_BYTES,
            Self::Chunks([members, radius_bits, radix]) => {
                let layout =
                    ChunkLayout { chunks: dim / 4, members, radius_bits, radix: radix == 1, flags: false };
                layout.row_bytes()
            }
            Self::Halves(halves) => {
                Self::of_halves(halves, |half| half.row(dim / 2) - half.row_head(dim / 2))
            }
        }
    }

    /// Returns the fields of a row on the GPU: scales, zeros and norms of 16 bits.
    pub(crate) fn fields(self, dim: usize) -> usize {
        match self {
            Self::Groups(groups) => groups.fields(dim),
            Self::Blocks => dim / BLOCK_VALUES,
            Self::Halves(_) => 2,
            _ => 1,
        }
    }

    /// Returns whether rows contain their scales or norms, and a page's centre is f16. Codes of more than
    /// 4.5 bits contain norms.
    pub(crate) fn in_rows(self) -> bool {
        match self {
            Self::Codes(bits) => bits > 4,
            Self::Paths([_, levels]) => levels > 8,
            Self::Int(_) | Self::Groups(_) | Self::Blocks | Self::Chunks(_) => true,
            Self::Levels(_) | Self::Trellis(_) | Self::Triplets(_) | Self::Halves(_) => false,
        }
    }

    /// Returns the bytes of scales, zeros or a norm before a row.
    fn row_head(self, dim: usize) -> usize {
        if self.in_rows() && self != Self::Blocks { 2 * self.fields(dim) } else { 0 }
    }

    /// Returns the bytes of a row on the GPU.
    pub(crate) fn gpu_row(self, dim: usize) -> usize {
        match self {
            Self::Triplets(_) | Self::Chunks(_) => 16 * (self.each_fields(dim) * self.field()).div_ceil(32),
            Self::Int(bits) | Self::Groups(Groups { bits, .. }) => {
                dim.next_multiple_of(32) * usize::from(bits) / 8
            }
            Self::Blocks => dim * 3 / 8,
            Self::Levels(levels) => dim.next_multiple_of(32) * gpu_bits(levels) / 8,
            Self::Paths([_, levels]) => dim.next_multiple_of(32) * (1 + gpu_bits(levels)) / 8,
            Self::Halves(halves) => Self::of_halves(halves, |half| half.gpu_row(dim / 2)),
            _ => self.row(dim.next_multiple_of(32)) - self.row_head(dim),
        }
    }

    /// Returns the bytes of a page's norms.
    pub(crate) fn norms(self, tokens: usize) -> usize {
        let each = if self.in_rows() { 0 } else { 3 + tokens * 6 / 8 };
        if self.halves().is_some() { 2 * each } else { each }
    }

    /// Returns the bytes of a key's operands.
    pub(crate) fn operands(self, dim: usize) -> usize {
        match self {
            Self::Triplets(_) | Self::Chunks(_) => 32 * self.each_fields(dim).div_ceil(2),
            _ => dim.next_multiple_of(32),
        }
    }

    /// Returns the bits of a triplet, or of a chunk: a direction, where opposite directions share a code,
    /// and a radius with a sign.
    fn field(self) -> usize {
        match self {
            Self::Chunks([members, radius_bits, _]) => {
                let directions = 12 * u32::from(members);
                (u32::BITS - (directions - 1).leading_zeros()) as usize + usize::from(radius_bits) + 1
            }
            Self::Triplets([direction, radius, _]) => 2 * usize::from(direction) + usize::from(radius),
            _ => 0,
        }
    }

    /// Returns the triplets or chunks of a row that one of four threads holds.
    fn each_fields(self, dim: usize) -> usize {
        dim.div_ceil(if matches!(self, Self::Chunks(_)) { 4 } else { 3 }).div_ceil(4)
    }
}

/// Returns the bits of a code on the GPU.
pub(super) fn gpu_bits(levels: u8) -> usize {
    usize::from(levels).next_power_of_two().trailing_zeros() as usize
}

/// Returns the radix of the digits of codes, or 1 if they are plain bits.
fn radix_of(levels: u8) -> u32 {
    [5, 3].into_iter().find(|radix| levels.is_multiple_of(*radix)).map_or(1, u32::from)
}

/// Returns the bytes of a row of codes as the CPU packs them; 0 for one level.
fn packed_bytes(levels: u8, dim: usize) -> usize {
    Packing::for_levels(levels.into()).map_or(0, |packing| packing.bytes(dim))
}

#[cfg(test)]
mod tests {
    use super::CodeShape;
    use crate::layout::WIDTHS;
    use alloc::vec::Vec;

    /// Bytes of rows, and unique numbers of shapes, for all trellises.
    #[test]
    fn shapes_of_trellises() {
        let mut numbers = Vec::new();
        for history in 2..=6 {
            for levels in [1, 2, 3, 4, 6, 8, 12, 16] {
                let shape = CodeShape::Paths([history, levels]);
                let bits = usize::from(levels).next_power_of_two().trailing_zeros() as usize;
                numbers.push(shape.number());
                for dim in WIDTHS {
                    let path = dim / 8;
                    let packed = match levels {
                        1 => 0,
                        3 | 6 | 12 => dim * (bits - 2) / 8 + dim.div_ceil(5), // as in layout.cuh
                        _ => dim * bits / 8,
                    };
                    assert_eq!(
                        shape.row(dim),
                        path + packed + if levels > 8 { 2 } else { 0 },
                        "{levels} codes, width {dim}"
                    );
                    assert_eq!(shape.gpu_row(dim), dim.next_multiple_of(32) * (1 + bits) / 8);
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 40);
    }
}
