//! Triplets of coordinates as octahedral directions and radii: see [`Octahedral`].
//!
//! Candidates are compared by their exact directions: n = (x', y', z')·length, where (x', y', z') is the unfolded
//! point of the codes' (ξ, η), exact in f32 because both are multiples of 2⁻¹⁵, and `length` comes from a table. Up to
//! 5 bits, decoded values and scores take the direction from a table of integers instead.

use super::{LANES, halve};
use crate::{IntQuery, Octahedral, Search};

/// Triplets whose |x|+|y|+|z| is below this (2⁻¹⁰⁰) count as zero: (ξ, η) is about (0, 0).
pub(crate) const SMALLEST: f32 = 7.888_609e-31;

/// Sixteen triplets, component by component.
type Triplets = [[f32; LANES]; 3];

/// Writes the fields of x·scale. All bytes of the stream are written.
#[inline(always)]
pub(crate) fn octahedral_encode(
    layout: &Octahedral,
    search: Search,
    x: &[f32],
    scale: f32,
    stream: &mut [u8],
) {
    let mut fields = [0; Octahedral::MAX_FIELDS];
    for (x, fields) in x.chunks(3 * LANES).zip(fields.as_chunks_mut::<LANES>().0) {
        let mut t = [[0.0; LANES]; 3];
        for (i, x) in x.iter().enumerate() {
            t[i % 3][i / 3] = x * scale;
        }
        encode_triplets(layout, search, &t, fields);
    }
    finish_fields(layout, x, scale, &mut fields, stream);
}

/// Puts the coordinates left over into the last field, if they have codes of their own, and packs the fields.
#[inline(always)]
pub(crate) fn finish_fields(
    layout: &Octahedral,
    x: &[f32],
    scale: f32,
    fields: &mut [u32; Octahedral::MAX_FIELDS],
    stream: &mut [u8],
) {
    let triplets = layout.triplets();
    if 3 * triplets < x.len() {
        fields[triplets] = 0;
        for (i, x) in x[3 * triplets..].iter().enumerate() {
            let y = x * scale;
            let is_below =
                |pair: &[i16]| (f32::from(pair[0]) + f32::from(pair[1])) * 0.5 * layout.rest_scale <= y;
            let code = layout.rest.windows(2).filter(|pair| is_below(pair)).count() as u32;
            fields[triplets] |= code << (i as u32 * u32::from(layout.rest_bits));
        }
    }
    pack_fields(layout.field_bits(), &fields[..layout.dim.div_ceil(3)], stream);
}

#[inline(always)]
fn pack_fields(bits: usize, fields: &[u32], stream: &mut [u8]) {
    let (mut buffer, mut filled, mut at) = (0u64, 0, 0);
    for field in fields {
        buffer |= u64::from(*field) << filled;
        filled += bits;
        if filled >= 32 {
            if let Some(word) = stream.get_mut(at..at + 4) {
                word.copy_from_slice(&(buffer as u32).to_le_bytes());
            }
            buffer >>= 32;
            filled -= 32;
            at += 4;
        }
    }
    for byte in &mut stream[at..] {
        *byte = buffer as u8;
        buffer >>= 8;
    }
}

/// The fields of sixteen triplets.
#[inline(always)]
fn encode_triplets(layout: &Octahedral, search: Search, t: &Triplets, fields: &mut [u32; LANES]) {
    let (xi, eta) = octahedral_map(t);
    let centroids = layout.coordinates;
    let last = centroids.len() - 1;
    let (mut best, mut codes) = ([0.0; LANES], [0u32; LANES]);
    match search {
        Search::Nearest => {
            let (i, j) = (count_thresholds(centroids, &xi), count_thresholds(centroids, &eta));
            for lane in 0..LANES {
                codes[lane] = i[lane] | j[lane] << layout.direction_bits;
                best[lane] = libm::sqrtf(
                    (t[0][lane] * t[0][lane] + t[1][lane] * t[1][lane]) + t[2][lane] * t[2][lane],
                );
            }
        }
        Search::Bracket => {
            let (i, j) = (count_centroids(centroids, &xi), count_centroids(centroids, &eta));
            let bounds = |count: u32| (count.saturating_sub(1) as usize, (count as usize).min(last));
            for lane in 0..LANES {
                let (columns, rows) = (bounds(i[lane]), bounds(j[lane]));
                (codes[lane], best[lane]) = best_direction(layout, t, lane, columns, rows);
            }
        }
        Search::Neighbours => {
            let (i, j) = (count_thresholds(centroids, &xi), count_thresholds(centroids, &eta));
            let bounds = |code: u32| (code.saturating_sub(1) as usize, (code as usize + 1).min(last));
            for lane in 0..LANES {
                let (columns, rows) = (bounds(i[lane]), bounds(j[lane]));
                (codes[lane], best[lane]) = best_direction(layout, t, lane, columns, rows);
            }
        }
        Search::All => {
            for lane in 0..LANES {
                (codes[lane], best[lane]) = best_direction(layout, t, lane, (0, last), (0, last));
            }
        }
    }
    let radii = count_thresholds(layout.radii, &best);
    for lane in 0..LANES {
        fields[lane] = codes[lane] | radii[lane] << (2 * layout.direction_bits);
    }
}

/// The direction among codes `columns.0..=columns.1` of ξ and `rows` of η that has the largest projection, the lowest
/// code among equals, and that projection.
#[inline(always)]
fn best_direction(
    layout: &Octahedral,
    t: &Triplets,
    lane: usize,
    columns: (usize, usize),
    rows: (usize, usize),
) -> (u32, f32) {
    let (mut best, mut code) = (f32::NEG_INFINITY, 0);
    for j in rows.0..=rows.1 {
        for i in columns.0..=columns.1 {
            let n = exact_direction(layout, i, j);
            let projection = (t[0][lane] * n[0] + t[1][lane] * n[1]) + t[2][lane] * n[2];
            if projection > best {
                (best, code) = (projection, (i | j << layout.direction_bits) as u32);
            }
        }
    }
    (code, best)
}

/// (ξ, η) of sixteen triplets.
#[inline(always)]
fn octahedral_map(t: &Triplets) -> ([f32; LANES], [f32; LANES]) {
    let (mut xi, mut eta) = ([0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        let [x, y, z] = [t[0][lane], t[1][lane], t[2][lane]];
        let sum = (x.abs() + y.abs()) + z.abs();
        let inverse = 1.0 / if sum >= SMALLEST { sum } else { 1.0 };
        let (p, q) = (x * inverse, y * inverse);
        let (folded_p, folded_q) = (1.0 - q.abs(), 1.0 - p.abs());
        let folded_p = if p < 0.0 { -folded_p } else { folded_p };
        let folded_q = if q < 0.0 { -folded_q } else { folded_q };
        xi[lane] = if z < 0.0 { folded_p } else { p };
        eta[lane] = if z < 0.0 { folded_q } else { q };
    }
    (xi, eta)
}

/// For each value, how many midpoints of neighbouring centroids are at most as large.
#[inline(always)]
fn count_thresholds(centroids: &[f32], values: &[f32; LANES]) -> [u32; LANES] {
    let mut counts = [0; LANES];
    for pair in centroids.windows(2) {
        let threshold = (pair[0] + pair[1]) * 0.5;
        for lane in 0..LANES {
            counts[lane] += u32::from(values[lane] >= threshold);
        }
    }
    counts
}

/// For each value, how many centroids are at most as large.
#[inline(always)]
fn count_centroids(centroids: &[f32], values: &[f32; LANES]) -> [u32; LANES] {
    let mut counts = [0; LANES];
    for centroid in centroids {
        for lane in 0..LANES {
            counts[lane] += u32::from(values[lane] >= *centroid);
        }
    }
    counts
}

/// The unit vector of codes (i, j) of (ξ, η).
#[inline(always)]
fn exact_direction(layout: &Octahedral, i: usize, j: usize) -> [f32; 3] {
    let (xi, eta) = (layout.coordinates[i], layout.coordinates[j]);
    let (a, b) = (xi.abs(), eta.abs());
    let z = (1.0 - a) - b;
    let x = if z < 0.0 { (1.0 - b).copysign(xi) } else { xi };
    let y = if z < 0.0 { (1.0 - a).copysign(eta) } else { eta };
    let half = layout.coordinates.len() / 2;
    let rank = |code: usize| if code < half { half - 1 - code } else { code - half };
    let length = layout.lengths[rank(j) * half + rank(i)];
    [x * length, y * length, z * length]
}

/// The direction of a code in units of [`Octahedral::unit`].
#[inline(always)]
fn direction(layout: &Octahedral, code: usize) -> [f32; 3] {
    if layout.directions.is_empty() {
        exact_direction(layout, code & ((1 << layout.direction_bits) - 1), code >> layout.direction_bits)
    } else {
        let [x, y, z, _] = layout.directions[code];
        [f32::from(x), f32::from(y), f32::from(z)]
    }
}

/// out = (radius·direction)·(scale·unit), and centroid·(scale·`rest_scale`) for coordinates left over.
#[inline(always)]
pub(crate) fn octahedral_decode(layout: &Octahedral, stream: &[u8], scale: f32, out: &mut [f32]) {
    let (triplets, rest) = out.split_at_mut((3 * layout.triplets()).min(layout.dim));
    let factor = scale * layout.unit();
    for (index, out) in triplets.chunks_mut(3).enumerate() {
        let (code, radius) = layout.split(layout.field(stream, index));
        for (out, n) in out.iter_mut().zip(direction(layout, code)) {
            *out = (layout.radii[radius] * n) * factor;
        }
    }
    for (out, centroid) in rest.iter_mut().zip(layout.rest(stream)) {
        *out = f32::from(centroid) * (scale * layout.rest_scale);
    }
}

/// score\[query]\[row] = ((sum·unit + rest·`rest_scale`)·query scale)·row scale. The sum of radius·(q·direction) has 16
/// lanes, triplet `i` in lane `i % 16`; q·direction and the sum over the coordinates left over are exact integers.
#[inline(always)]
pub(crate) fn score_octahedral(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = bytes.len() / stride;
    let triplets = layout.triplets();
    for (r, row) in bytes.chunks_exact(stride).enumerate() {
        let stream = layout.stream(row);
        let row_scale = layout.row_scale(row);
        let mut dots = [([0i8; 4], 0.0); Octahedral::MAX_FIELDS];
        for (index, slot) in dots[..triplets].iter_mut().enumerate() {
            let (code, radius) = layout.split(layout.field(stream, index));
            *slot = (layout.directions[code], layout.radii[radius]);
        }
        for (q, query) in queries.iter().enumerate() {
            let (values, rest_values) = query.values.split_at((3 * triplets).min(layout.dim));
            let mut lanes = [0.0; LANES];
            for (index, (values, (direction, radius))) in values.chunks(3).zip(dots).enumerate() {
                let dot: i32 = values.iter().zip(direction).map(|(q, n)| i32::from(*q) * i32::from(n)).sum();
                lanes[index % LANES] += dot as f32 * radius;
            }
            let rest: i32 =
                rest_values.iter().zip(layout.rest(stream)).map(|(q, c)| i32::from(*q) * i32::from(c)).sum();
            scores[q * count + r] = finish_score(layout, halve(lanes), rest as f32, query.scale, row_scale);
        }
    }
}

#[inline(always)]
pub(crate) fn finish_score(
    layout: &Octahedral,
    sum: f32,
    rest: f32,
    query_scale: f32,
    row_scale: f32,
) -> f32 {
    ((sum * layout.unit() + rest * layout.rest_scale) * query_scale) * row_scale
}

/// The same for queries in f32: q·direction is (qx·nx + qy·ny) + qz·nz, coordinates left over ascending, the query
/// scale 1. Missing coordinates of a filled-up triplet are zeros.
#[inline(always)]
pub(crate) fn score_octahedral_floats(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = bytes.len() / stride;
    let triplets = layout.triplets();
    let mut dots = [([0.0; 3], 0.0); Octahedral::MAX_FIELDS];
    for (r, row) in bytes.chunks_exact(stride).enumerate() {
        let stream = layout.stream(row);
        let row_scale = layout.row_scale(row);
        for (index, slot) in dots[..triplets].iter_mut().enumerate() {
            let (code, radius) = layout.split(layout.field(stream, index));
            *slot = (direction(layout, code), layout.radii[radius]);
        }
        for (q, query) in queries.iter().enumerate() {
            let (values, rest_values) = query.split_at((3 * triplets).min(layout.dim));
            let mut lanes = [0.0; LANES];
            for (index, (values, (n, radius))) in values.chunks(3).zip(dots).enumerate() {
                let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
                lanes[index % LANES] += ((at(0) * n[0] + at(1) * n[1]) + at(2) * n[2]) * radius;
            }
            let rest =
                rest_values.iter().zip(layout.rest(stream)).fold(0.0, |sum, (q, c)| sum + q * f32::from(c));
            scores[q * count + r] = finish_score(layout, halve(lanes), rest, 1.0, row_scale);
        }
    }
}

/// acc\[query] += ((weight·row scale)·unit)·(radius·direction), rows ascending; for coordinates left over
/// ((weight·row scale)·`rest_scale`)·centroid. Weights are \[query]\[row].
#[inline(always)]
pub(crate) fn accumulate_octahedral(
    layout: &Octahedral,
    stride: usize,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let count = bytes.len() / stride;
    let triplets = (3 * layout.triplets()).min(layout.dim);
    let mut values = [0.0; crate::MAX_DIM];
    let values = &mut values[..layout.dim];
    for (r, row) in bytes.chunks_exact(stride).enumerate() {
        let (stream, row_scale) = (layout.stream(row), layout.row_scale(row));
        for (index, values) in values[..triplets].chunks_mut(3).enumerate() {
            let (code, radius) = layout.split(layout.field(stream, index));
            for (value, n) in values.iter_mut().zip(direction(layout, code)) {
                *value = layout.radii[radius] * n;
            }
        }
        for (value, centroid) in values[triplets..].iter_mut().zip(layout.rest(stream)) {
            *value = f32::from(centroid);
        }
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(layout.dim)) {
            let weight = weights[r] * row_scale;
            add_row(weight * layout.unit(), &values[..triplets], &mut acc[..triplets]);
            add_row(weight * layout.rest_scale, &values[triplets..], &mut acc[triplets..]);
        }
    }
}

#[inline(always)]
pub(crate) fn add_row(weight: f32, values: &[f32], acc: &mut [f32]) {
    for (acc, x) in acc.iter_mut().zip(values) {
        *acc += weight * x;
    }
}
