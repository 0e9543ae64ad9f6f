//! Triplets for any registers: four a register, with directions looked up one by one.

pub(crate) mod encode;

pub(crate) use encode::encode_triplets;

use super::layout::MAX_FIELDS;
use super::scalar;
use crate::floats::{LANES, halve};
use crate::registers::{Registers, add_row};
use crate::{IntQuery, Rows, TripletLayout};

/// Signed bytes x, y, z and 0 for each triplet of a row, then zeros.
type Quads = [[u8; 4]; MAX_FIELDS];

/// Number of queries that share the lookups.
const QUERIES: usize = 4;

/// Implements `scalar::score_triplets`.
#[inline(always)]
pub(crate) fn score_triplets<L: Registers>(
    layout: &TripletLayout,
    rows: &Rows,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = rows.count();
    let split = (3 * layout.triplets()).min(layout.dim);
    let groups = layout.triplets().div_ceil(LANES);
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
        for (r, row) in rows.iter().enumerate() {
            layout.look_up(rows.bytes, r * rows.stride + layout.header_bytes(), &mut directions, &mut radii);
            let mut rest = [0; 2];
            for (rest, centroid) in rest.iter_mut().zip(layout.rest(layout.stream(row))) {
                *rest = i32::from(centroid);
            }
            let row_scale = layout.row_scale(rows, r);
            for (q, (query, prepared)) in queries.iter().zip(&prepared).enumerate() {
                let sum = sum::<L>(&directions, &radii, prepared, groups);
                let rest: i32 = query.values[split..].iter().zip(rest).map(|(q, c)| i32::from(*q) * c).sum();
                scores[q * count + r] =
                    scalar::finish_score(layout, sum, rest as f32, query.scale, row_scale);
            }
        }
    }
}

/// Returns Σ radius·(q·n) over the groups of a row.
#[inline(always)]
fn sum<L: Registers>(directions: &Quads, radii: &[f32; MAX_FIELDS], query: &Quads, groups: usize) -> f32 {
    let mut lanes = [L::splat(0); 4];
    let products =
        directions.as_flattened().as_chunks::<64>().0.iter().zip(query.as_flattened().as_chunks::<64>().0);
    for ((n, q), radii) in products.zip(radii.as_chunks::<16>().0).take(groups) {
        let registers = n.as_chunks().0.iter().zip(q.as_chunks().0).zip(radii.as_chunks().0);
        for (lanes, ((n, q), radii)) in lanes.iter_mut().zip(registers) {
            let dots = L::to_floats(L::dot_quads(L::load(n), L::load(q)));
            *lanes = L::add_floats(*lanes, L::multiply_floats(dots, L::load_floats(radii)));
        }
    }
    let mut sums = [0.0; LANES];
    for (lanes, sums) in lanes.iter().zip(sums.as_chunks_mut::<4>().0) {
        L::store_floats(sums, *lanes);
    }
    halve(sums)
}

/// The bytes of four triplets' directions that become the top bytes of twelve coordinates, four a
/// register.
pub(super) static COORDINATES: [[u8; 16]; 3] = {
    let mut order = [[255; 16]; 3];
    let mut i = 0;
    while i < 12 {
        order[i / 4][i % 4 * 4 + 3] = (i / 3 * 4 + i % 3) as u8;
        i += 1;
    }
    order
};

/// The bytes of four radii that belong to the same coordinates.
pub(super) static RADII: [[u8; 16]; 3] = {
    let mut order = [[0; 16]; 3];
    let mut i = 0;
    while i < 48 {
        order[i / 16][i % 16] = (i / 12 * 4 + i % 4) as u8;
        i += 1;
    }
    order
};

/// The reciprocal of one unit of a coordinate in the top byte of an `i32`.
pub(super) const TOP: f32 = 1.0 / (1 << 24) as f32;

/// Passes radius·n of a row's triplets on, twelve coordinates at a time.
#[inline(always)]
fn vectors<L: Registers>(
    directions: &Quads,
    radii: &[f32; MAX_FIELDS],
    groups: usize,
) -> impl Iterator<Item = [L::V; 3]> {
    let coordinates = COORDINATES.each_ref().map(|order| L::load(order));
    let spread = RADII.each_ref().map(|order| L::load(order));
    let fours = directions.as_flattened().as_chunks().0.iter().zip(radii.as_chunks().0);
    fours.take(groups).map(move |(n, radii)| {
        let n = L::load(n);
        // Exact: n·2²⁴ times radius·2⁻²⁴ rounds like n·radius.
        let radii = L::multiply_floats(L::load_floats(radii), L::splat_float(TOP));
        let times = |k: usize| {
            L::multiply_floats(L::lookup(radii, spread[k]), L::to_floats(L::lookup(n, coordinates[k])))
        };
        [times(0), times(1), times(2)]
    })
}

/// Stores the first `out.len()` floats of three registers.
#[inline(always)]
fn store_twelve<L: Registers>(x: [L::V; 3], out: &mut [f32]) {
    let mut floats = [0.0; 12];
    let whole = out.len() == 12;
    let place = if whole { &mut *out } else { &mut floats };
    for (place, x) in place.as_chunks_mut().0.iter_mut().zip(x) {
        L::store_floats(place, x);
    }
    if !whole {
        out.copy_from_slice(&floats[..out.len()]);
    }
}

/// Implements `scalar::decode_triplets`.
#[inline(always)]
pub(crate) fn decode_triplets<L: Registers>(
    layout: &TripletLayout,
    stream: &[u8],
    scale: f32,
    out: &mut [f32],
) {
    if layout.directions.is_empty() {
        return scalar::decode_triplets(layout, stream, scale, out);
    }
    let (mut directions, mut radii) = ([[0; 4]; MAX_FIELDS], [0.0; MAX_FIELDS]);
    layout.look_up(stream, 0, &mut directions, &mut radii);
    let (triplets, rest) = out.split_at_mut((3 * layout.triplets()).min(layout.dim));
    let factor = L::splat_float(scale * layout.unit());
    let vectors = vectors::<L>(&directions, &radii, triplets.len().div_ceil(12));
    for (x, out) in vectors.zip(triplets.chunks_mut(12)) {
        store_twelve::<L>(x.map(|x| L::multiply_floats(x, factor)), out);
    }
    layout.decode_rest(stream, scale, rest);
}

/// Implements `scalar::accumulate_triplets`.
#[inline(always)]
pub(crate) fn accumulate_triplets<L: Registers>(
    layout: &TripletLayout,
    rows: &Rows,
    weights: &[f32],
    acc: &mut [f32],
) {
    if layout.directions.is_empty() {
        return scalar::accumulate_triplets(layout, rows, weights, acc);
    }
    let count = rows.count();
    let split = (3 * layout.triplets()).min(layout.dim);
    let (mut directions, mut radii) = ([[0; 4]; MAX_FIELDS], [0.0; MAX_FIELDS]);
    let mut values = [0.0; crate::MAX_DIM];
    let values = &mut values[..layout.dim];
    for (r, row) in rows.iter().enumerate() {
        layout.look_up(rows.bytes, r * rows.stride + layout.header_bytes(), &mut directions, &mut radii);
        let vectors = vectors::<L>(&directions, &radii, split.div_ceil(12));
        for (x, values) in vectors.zip(values[..split].chunks_mut(12)) {
            store_twelve::<L>(x, values);
        }
        for (value, centroid) in values[split..].iter_mut().zip(layout.rest(layout.stream(row))) {
            *value = f32::from(centroid);
        }
        let row_scale = layout.row_scale(rows, r);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(layout.dim)) {
            let weight = weights[r] * row_scale;
            let ((values, rest), (acc, rest_acc)) = (values.split_at(split), acc.split_at_mut(split));
            add_row::<L>(weight * layout.unit(), values, acc);
            add_row::<L>(weight * layout.rest_scale, rest, rest_acc);
        }
    }
}

impl TripletLayout<'_> {
    /// Looks up the integer directions and radii of the fields that begin at byte `first` of a
    /// page.
    ///
    /// Behind the last field, up to three results have no meaning.
    #[inline(always)]
    fn look_up(&self, page: &[u8], first: usize, directions: &mut Quads, radii: &mut [f32; MAX_FIELDS]) {
        let (bits, direction_bits) = (self.field_bits(), 2 * u32::from(self.direction_bits));
        // Masks show the compiler that no index is out of bounds. They change nothing.
        let (last_direction, last_radius) = (self.directions.len() - 1, self.radii.len() - 1);
        let fours = directions.as_chunks_mut::<4>().0.iter_mut().zip(radii.as_chunks_mut::<4>().0);
        for (i, (directions, radii)) in fours.enumerate().take(self.triplets().div_ceil(4)) {
            // Four fields of up to 16 bits begin at the first bit of a byte. If they have less than
            // 64 bits in all, they may begin at the fifth.
            let bit = 4 * i * bits;
            let at = first + bit / 8;
            // Bytes that follow the row do not matter.
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
