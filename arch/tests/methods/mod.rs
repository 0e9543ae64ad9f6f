//! The names of the kernels, from the files that have their contracts.

/// Returns the names of all methods of `Backend` in these files.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    let contracts = [
        include_str!("../../affine.rs"),
        include_str!("../../angles.rs"),
        include_str!("../../blocks.rs"),
        include_str!("../../codes.rs"),
        include_str!("../../quaternions.rs"),
        include_str!("../../scaled.rs"),
        include_str!("../../signs.rs"),
        include_str!("../../trellis.rs"),
        include_str!("../../triplets.rs"),
        include_str!("../../vectors.rs"),
    ];
    contracts
        .into_iter()
        .flat_map(|contract| contract.lines())
        .filter_map(|line| line.strip_prefix("    pub fn "))
        .filter_map(|line| line.split('(').next())
}
