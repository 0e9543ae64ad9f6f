//! Sets of unit quaternions, optimised under the symmetry of the 24 Hurwitz units.

#[allow(clippy::excessive_precision, reason = "nine digits name every f32")]
mod tables;

use octaplex_arch::quaternion::{INDEX_CELLS, QuaternionIndex, QuaternionSet};

/// A set of quaternions in the two forms that kernels read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) members: &'static [[f32; 4]],
    /// The members times 127, rounded.
    pub(crate) ints: &'static [[i8; 4]],
}

/// Embeds a search index: 4,096 cells of four bytes each, then their lists.
///
/// `src/codec/hqmq/set/index.rs` builds the file for a set. The compiler splits it, so that a
/// program holds its bytes once.
macro_rules! index {
    ($members:literal, $file:literal) => {{
        const FILE: &[u8] = include_bytes!($file);
        static CELLS: [u32; INDEX_CELLS] = cells(FILE);
        static LISTS: [u8; FILE.len() - 4 * INDEX_CELLS] = lists(FILE);
        QuaternionIndex::new($members, &CELLS, &LISTS)
    }};
}

static INDEXES: [QuaternionIndex<'static>; 4] = [
    index!(24, "quaternions/index_24.bin"),
    index!(48, "quaternions/index_48.bin"),
    index!(96, "quaternions/index_96.bin"),
    index!(192, "quaternions/index_192.bin"),
];

/// Reads the cells at the front of an index file.
const fn cells(file: &[u8]) -> [u32; INDEX_CELLS] {
    let mut cells = [0; INDEX_CELLS];
    let mut i = 0;
    while i < INDEX_CELLS {
        cells[i] = u32::from_le_bytes([file[4 * i], file[4 * i + 1], file[4 * i + 2], file[4 * i + 3]]);
        i += 1;
    }
    cells
}

/// Reads the lists behind the cells of an index file.
const fn lists<const N: usize>(file: &[u8]) -> [u8; N] {
    let mut lists = [0; N];
    lists.copy_from_slice(file.split_at(4 * INDEX_CELLS).1);
    lists
}

/// Returns the optimised set with `count` members: 24, 48, 96 or 192.
pub(crate) fn optimised(count: usize) -> Option<QuaternionSet<'static>> {
    let sets = tables::TABLES.iter().zip(&INDEXES);
    let (Table { members, ints }, index) = sets.into_iter().find(|(set, _)| set.members.len() == count)?;
    Some(QuaternionSet { members, ints, index: Some(*index) })
}
