//! Sets of unit quaternions, optimised under the symmetry of the 24 Hurwitz units.

#[allow(clippy::excessive_precision, reason = "nine digits name every f32")]
mod tables;

/// A set as kernels read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) members: &'static [[f32; 4]],
    /// The members times 127, rounded.
    pub(crate) ints: &'static [[i8; 4]],
}

/// The optimised set of that many members: 24, 48, 96 or 192.
pub(crate) fn table(count: usize) -> Option<Table> {
    tables::TABLES.iter().find(|table| table.members.len() == count).copied()
}
