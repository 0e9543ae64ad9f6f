//! Integer directions and radii of whole rows, four fields a look-up, for kernels with registers.

use super::layout::MAX_FIELDS;
use super::scalar;
use crate::{IntQuery, Octahedral, vectors};

/// Signed bytes x, y, z and 0 for each triplet of a row; zeros behind them.
pub(crate) type Quads = [[u8; 4]; MAX_FIELDS];

/// Queries that share the look-ups.
const QUERIES: usize = 4;

/// Scores rows with `sum`, which gives Σ radius·(q·n) over so many groups of sixteen triplets, zeros behind the last.
#[inline(always)]
pub(crate) fn score_with(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    queries: &[IntQuery],
    scores: &mut [f32],
    sum: impl Fn(&Quads, &[f32; MAX_FIELDS], &Quads, usize) -> f32,
) {
    let count = bytes.len() / stride;
    let split = (3 * layout.triplets()).min(layout.dim);
    let groups = layout.triplets().div_ceil(vectors::scalar::LANES);
    let (mut directions, mut radii) = ([[0; 4]; MAX_FIELDS], [0.0; MAX_FIELDS]);
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut((QUERIES * count).max(1))) {
        let mut prepared = [[[0; 4]; MAX_FIELDS]; QUERIES];
        for (prepared, query) in prepared.iter_mut().zip(queries) {
            for (quad, values) in prepared.iter_mut().zip(query.values[..split].chunks(3)) {
                for (byte, value) in quad.iter_mut().zip(values) {
                    *byte = *value as u8;
                }
            }
        }
        for (r, row) in bytes.chunks_exact(stride).enumerate() {
            layout.look_up(bytes, r * stride + layout.header_bytes(), &mut directions, &mut radii);
            let mut rest = [0; 2];
            for (rest, centroid) in rest.iter_mut().zip(layout.rest(layout.stream(row))) {
                *rest = i32::from(centroid);
            }
            let row_scale = layout.row_scale(row);
            for (q, (query, prepared)) in queries.iter().zip(&prepared).enumerate() {
                let sum = sum(&directions, &radii, prepared, groups);
                let rest: i32 = query.values[split..].iter().zip(rest).map(|(q, c)| i32::from(*q) * c).sum();
                scores[q * count + r] =
                    scalar::finish_score(layout, sum, rest as f32, query.scale, row_scale);
            }
        }
    }
}

impl Octahedral<'_> {
    /// Integer directions and radii of the fields that begin at byte `first` of a page, field after field; behind the
    /// last one up to three of no meaning.
    #[inline(always)]
    pub(crate) fn look_up(
        &self,
        page: &[u8],
        first: usize,
        directions: &mut Quads,
        radii: &mut [f32; MAX_FIELDS],
    ) {
        let (bits, direction_bits) = (self.field_bits(), 2 * u32::from(self.direction_bits));
        // Masks tell the compiler that no index is out of bounds; they change nothing.
        let (last_direction, last_radius) = (self.directions.len() - 1, self.radii.len() - 1);
        let fours = directions.as_chunks_mut::<4>().0.iter_mut().zip(radii.as_chunks_mut::<4>().0);
        for (i, (directions, radii)) in fours.enumerate().take(self.triplets().div_ceil(4)) {
            // Four fields of up to 16 bits begin at a byte's first bit or, if they have less than 64 in all, its fifth.
            let bit = 4 * i * bits;
            let at = first + bit / 8;
            // Bytes that follow the row do no harm.
            let window = match page.get(at..at + 8).and_then(|bytes| bytes.first_chunk()) {
                Some(bytes) => u64::from_le_bytes(*bytes),
                None => page[at..].iter().rev().fold(0, |window, byte| window << 8 | u64::from(*byte)),
            };
            let mut window = window >> (bit % 8);
            for (direction, radius) in directions.iter_mut().zip(radii) {
                let field = window as usize;
                *direction = self.directions[field & last_direction].map(|component| component as u8);
                *radius = self.radii[(field >> direction_bits) & last_radius];
                window >>= bits;
            }
        }
    }
}
