//! Chunks of four values as quaternions.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub mod layout;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::Backend;
use crate::detect::Isa;
use layout::{ChunkLayout, QuaternionSet, RadiusSteps};

impl Backend {
    /// Computes the Euclidean norm of each chunk of four values.
    ///
    /// # Panics
    /// If there are not four values for each norm.
    pub fn chunk_norms(self, x: &[f32], norms: &mut [f32]) {
        contract!(x.len() == 4 * norms.len());
        dispatch!(
            self, avx2: wide<Ymm>, avx512: wide<Zmm>, registers: wide;
            chunk_norms(x: &[f32], norms: &mut [f32])
        )
    }

    /// Writes the radius and the code of each chunk.
    ///
    /// The radius follows from the norm by `steps`. The code p·S + s is the product with the
    /// largest inner product with the chunk, the lowest on ties. It is 0 where the radius is 0.
    /// Norms must be finite and not negative. A norm of 0 skips the chunk, any other must be the
    /// chunk's.
    ///
    /// # Panics
    /// If the set is not valid, or there are not four values, a code and a radius for each norm.
    pub fn encode_quaternions(
        self,
        set: &QuaternionSet,
        x: &[f32],
        norms: &[f32],
        steps: RadiusSteps,
        codes: &mut [u16],
        radii: &mut [u8],
    ) {
        check_set(set);
        contract!(x.len() == 4 * norms.len());
        contract!((codes.len(), radii.len()) == (norms.len(), norms.len()));
        dispatch!(
            self, avx2: wide<Ymm>, avx512: avx512, registers: wide;
            encode_quaternions(set: &QuaternionSet, x: &[f32], norms: &[f32], steps: RadiusSteps, codes: &mut [u16], radii: &mut [u8])
        )
    }

    /// Writes a row, except its scale and its flags. Codes must be below `layout.codes()`, radii at
    /// most the limit.
    ///
    /// # Panics
    /// If the layout is not valid, or lengths do not fit it.
    pub fn pack_chunks(self, layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]) {
        contract!(layout.is_valid());
        contract!(
            (codes.len(), radii.len(), row.len()) == (layout.chunks, layout.chunks, layout.row_bytes())
        );
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            pack_chunks(layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8])
        )
    }

    /// Computes out = radius · (row scale/limit) · unit·member, chunk by chunk. Any bytes with a
    /// finite scale are allowed.
    ///
    /// # Panics
    /// If layout and set do not match, or lengths do not fit them.
    pub fn decode_quaternions(self, layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]) {
        check_chunks(layout, set, row);
        contract!((row.len(), out.len()) == (layout.row_bytes(), 4 * layout.chunks));
        dispatch!(
            self, avx2: wide, avx512: wide, registers: wide;
            decode_quaternions(layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32])
        )
    }

    /// Computes score\[query]\[row]. Each chunk adds an integer product of 8-bit numbers.
    ///
    /// # Panics
    /// If layout and set do not match, or `bytes`, queries or scores are not whole rows.
    pub fn score_quaternions(
        self,
        layout: &ChunkLayout,
        set: &QuaternionSet,
        bytes: &[u8],
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        check_chunks(layout, set, bytes);
        contract!(queries.iter().all(|query| query.len() == 4 * layout.chunks));
        contract!(scores.len() == queries.len() * (bytes.len() / layout.row_bytes()));
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: wide + dots;
            score_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32])
        )
    }

    /// Computes acc\[query] += Σ weight·decoded row, rows ascending. Weights are \[query]\[row].
    ///
    /// # Panics
    /// If layout and set do not match, or `bytes`, `acc` or weights are not whole rows.
    pub fn accumulate_quaternions(
        self,
        layout: &ChunkLayout,
        set: &QuaternionSet,
        bytes: &[u8],
        weights: &[f32],
        acc: &mut [f32],
    ) {
        check_chunks(layout, set, bytes);
        contract!(acc.len().is_multiple_of(4 * layout.chunks));
        contract!(weights.len() == acc.len() / (4 * layout.chunks) * (bytes.len() / layout.row_bytes()));
        if !bytes.is_empty() {
            dispatch!(
                self, avx2: avx2, avx512: avx2, registers: wide;
                accumulate_quaternions(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8], weights: &[f32], acc: &mut [f32])
            )
        }
    }
}

/// Checks that a set has 1 to 255 members and an index that was built for as many.
fn check_set(set: &QuaternionSet) {
    let members = set.members.len();
    contract!((1..=255).contains(&members) && set.ints.len() == members);
    contract!(set.index.is_none_or(|index| index.members() == members));
}

/// Checks that a layout, a set and rows belong together.
fn check_chunks(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8]) {
    check_set(set);
    contract!(layout.is_valid() && usize::from(layout.members) == set.members.len());
    contract!(bytes.len().is_multiple_of(layout.row_bytes()));
}
