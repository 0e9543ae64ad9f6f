//! Octahedral directions: four triplets a register, their directions looked up one by one.

mod encode;

pub(crate) use encode::octahedral_encode;

use super::layout::MAX_FIELDS;
use super::look_up::{Quads, score_with};
use super::scalar;
use crate::registers::Registers;
use crate::vectors::scalar::{LANES, halve};
use crate::{IntQuery, Octahedral};

#[inline(always)]
pub(crate) fn score_octahedral<L: Registers>(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    score_with(layout, stride, bytes, queries, scores, sum::<L>);
}

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

/// Which bytes of four triplets' directions become the top ones of twelve coordinates, four a register.
static COORDINATES: [[u8; 16]; 3] = {
    let mut order = [[255; 16]; 3];
    let mut i = 0;
    while i < 12 {
        order[i / 4][i % 4 * 4 + 3] = (i / 3 * 4 + i % 3) as u8;
        i += 1;
    }
    order
};

/// Which bytes of four radii belong to the same coordinates.
static RADII: [[u8; 16]; 3] = {
    let mut order = [[0; 16]; 3];
    let mut i = 0;
    while i < 48 {
        order[i / 16][i % 16] = (i / 12 * 4 + i % 4) as u8;
        i += 1;
    }
    order
};

/// What a unit of a coordinate is worth in the top byte of an `i32`: its reciprocal.
const TOP: f32 = 1.0 / (1 << 24) as f32;

/// radius·n of a row's triplets, twelve coordinates at a time.
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
        // Exact, as the products with n·2²⁴ are those with n.
        let radii = L::multiply_floats(L::load_floats(radii), L::splat_float(TOP));
        let times = |k: usize| {
            L::multiply_floats(L::lookup(radii, spread[k]), L::to_floats(L::lookup(n, coordinates[k])))
        };
        [times(0), times(1), times(2)]
    })
}

/// Takes the registers' floats, as many as there is room for.
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

pub(crate) fn octahedral_decode<L: Registers>(
    layout: &Octahedral,
    stream: &[u8],
    scale: f32,
    out: &mut [f32],
) {
    if layout.directions.is_empty() {
        return scalar::octahedral_decode(layout, stream, scale, out);
    }
    let (mut directions, mut radii) = ([[0; 4]; MAX_FIELDS], [0.0; MAX_FIELDS]);
    layout.look_up(stream, 0, &mut directions, &mut radii);
    let (triplets, rest) = out.split_at_mut((3 * layout.triplets()).min(layout.dim));
    let factor = L::splat_float(scale * layout.unit());
    let vectors = vectors::<L>(&directions, &radii, triplets.len().div_ceil(12));
    for (x, out) in vectors.zip(triplets.chunks_mut(12)) {
        store_twelve::<L>(x.map(|x| L::multiply_floats(x, factor)), out);
    }
    for (out, centroid) in rest.iter_mut().zip(layout.rest(stream)) {
        *out = f32::from(centroid) * (scale * layout.rest_scale);
    }
}

pub(crate) fn accumulate_octahedral<L: Registers>(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    if layout.directions.is_empty() {
        return scalar::accumulate_octahedral(layout, stride, bytes, weights, acc);
    }
    let count = bytes.len() / stride;
    let split = (3 * layout.triplets()).min(layout.dim);
    let (mut directions, mut radii) = ([[0; 4]; MAX_FIELDS], [0.0; MAX_FIELDS]);
    let mut values = [0.0; crate::MAX_DIM];
    let values = &mut values[..layout.dim];
    for (r, row) in bytes.chunks_exact(stride).enumerate() {
        layout.look_up(bytes, r * stride + layout.header_bytes(), &mut directions, &mut radii);
        let vectors = vectors::<L>(&directions, &radii, split.div_ceil(12));
        for (x, values) in vectors.zip(values[..split].chunks_mut(12)) {
            store_twelve::<L>(x, values);
        }
        for (value, centroid) in values[split..].iter_mut().zip(layout.rest(layout.stream(row))) {
            *value = f32::from(centroid);
        }
        let row_scale = layout.row_scale(row);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(layout.dim)) {
            let weight = weights[r] * row_scale;
            let ((values, rest), (acc, rest_acc)) = (values.split_at(split), acc.split_at_mut(split));
            scalar::add_row(weight * layout.unit(), values, acc);
            scalar::add_row(weight * layout.rest_scale, rest, rest_acc);
        }
    }
}
