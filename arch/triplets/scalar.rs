//! Triplets of coordinates as octahedral directions and radii: the specification. See
//! [`TripletLayout`].
//!
//! Candidates are compared by their exact directions, n = (x', y', z')·length. (x', y', z') is the
//! unfolded point of (ξ, η), and `length` comes from a table. The point is exact in f32, because ξ
//! and η are multiples of 2⁻¹⁵. Up to 5 bits, decoded values and scores take the direction from a
//! table of integers.

use super::layout::MAX_FIELDS;
use crate::floats::{LANES, halve};
use crate::{IntQuery, Rows, Search, TripletLayout};

/// Triplets with |x|+|y|+|z| below 2⁻¹⁰⁰ count as zero: (ξ, η) is about (0, 0).
pub(crate) const SMALLEST: f32 = 7.888_609e-31;

/// Triplets that are encoded together, component by component. Their number does not affect the
/// bytes.
type Triplets = [[f32; LANES]; 3];

/// Writes the fields of `x`·`scale`, and with them all bytes of the stream.
#[inline(always)]
pub(crate) fn encode_triplets(
    layout: &TripletLayout,
    search: Search,
    x: &[f32],
    scale: f32,
    stream: &mut [u8],
) {
    let mut fields = [0; MAX_FIELDS];
    for (x, fields) in x.chunks(3 * LANES).zip(fields.as_chunks_mut::<LANES>().0) {
        let mut t = [[0.0; LANES]; 3];
        for (i, x) in x.iter().enumerate() {
            t[i % 3][i / 3] = x * scale;
        }
        encode_fields(layout, search, &t, fields);
    }
    finish_fields(layout, x, scale, &mut fields, stream);
}

/// Writes the coordinates left over to the last field, if they have codes, and packs the fields.
#[inline(always)]
pub(crate) fn finish_fields(
    layout: &TripletLayout,
    x: &[f32],
    scale: f32,
    fields: &mut [u32; MAX_FIELDS],
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

/// Packs fields to a stream, least significant bit first.
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

/// Encodes a register of triplets.
#[inline(always)]
fn encode_fields(layout: &TripletLayout, search: Search, t: &Triplets, fields: &mut [u32; LANES]) {
    let (xi, eta) = octahedral_map(t);
    let centroids = layout.coordinates;
    let last = centroids.len() as u32 - 1;
    let (codes, best) = match search {
        Search::Nearest => {
            let (i, j) = (count_thresholds(centroids, &xi), count_thresholds(centroids, &eta));
            let (mut codes, mut radii) = ([0; LANES], [0.0; LANES]);
            for lane in 0..LANES {
                codes[lane] = i[lane] | j[lane] << layout.direction_bits;
                let [x, y, z] = [t[0][lane], t[1][lane], t[2][lane]];
                radii[lane] = crate::floats::sqrt((x * x + y * y) + z * z);
            }
            (codes, radii)
        }
        Search::Bracket => {
            let (i, j) = (count_centroids(centroids, &xi), count_centroids(centroids, &eta));
            let around = |counts| {
                [each(counts, |count| count.saturating_sub(1)), each(counts, |count| count.min(last))]
            };
            best_direction(layout, t, &around(&i), &around(&j))
        }
        Search::Neighbours => {
            let (i, j) = (count_thresholds(centroids, &xi), count_thresholds(centroids, &eta));
            let around = |codes| {
                [each(codes, |code| code.saturating_sub(1)), *codes, each(codes, |code| (code + 1).min(last))]
            };
            best_direction(layout, t, &around(&i), &around(&j))
        }
        Search::All => {
            let (mut codes, mut best) = ([0; LANES], [f32::NEG_INFINITY; LANES]);
            for (j, i) in (0..=last).flat_map(|j| (0..=last).map(move |i| (j, i))) {
                let (column, row) = (Side::new(layout, &[i; LANES]), Side::new(layout, &[j; LANES]));
                try_direction(layout, t, &column, &row, &mut codes, &mut best);
            }
            (codes, best)
        }
    };
    let radii = count_thresholds(layout.radii, &best);
    for lane in 0..LANES {
        fields[lane] = codes[lane] | radii[lane] << (2 * layout.direction_bits);
    }
}

/// Applies `f` to each code.
#[inline(always)]
fn each(codes: &[u32; LANES], f: impl Fn(u32) -> u32) -> [u32; LANES] {
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = f(codes[lane]);
    }
    out
}

/// Codes of ξ or η, their centroids, and their ranks among the positive centroids.
struct Side {
    codes: [u32; LANES],
    centroids: [f32; LANES],
    ranks: [u32; LANES],
}

impl Side {
    #[inline(always)]
    fn new(layout: &TripletLayout, codes: &[u32; LANES]) -> Self {
        let half = layout.coordinates.len() as u32 / 2;
        let mut centroids = [0.0; LANES];
        for lane in 0..LANES {
            centroids[lane] = layout.coordinates[codes[lane] as usize & (layout.coordinates.len() - 1)];
        }
        let rank = |code: u32| if code < half { half - 1 - code } else { code - half };
        Self { codes: *codes, centroids, ranks: each(codes, rank) }
    }
}

/// Finds the directions with the largest projections, among `columns` (codes of ξ) and `rows` (of
/// η).
///
/// Both ascend, and among equals the lowest code wins. It returns the codes and the projections.
#[inline(always)]
fn best_direction<const M: usize>(
    layout: &TripletLayout,
    t: &Triplets,
    columns: &[[u32; LANES]; M],
    rows: &[[u32; LANES]; M],
) -> ([u32; LANES], [f32; LANES]) {
    let (mut codes, mut best) = ([0; LANES], [f32::NEG_INFINITY; LANES]);
    let columns = columns.each_ref().map(|codes| Side::new(layout, codes));
    for row in rows {
        let row = Side::new(layout, row);
        for column in &columns {
            try_direction(layout, t, column, &row, &mut codes, &mut best);
        }
    }
    (codes, best)
}

/// Takes the directions of these codes where their projections exceed the best so far.
#[inline(always)]
fn try_direction(
    layout: &TripletLayout,
    t: &Triplets,
    column: &Side,
    row: &Side,
    codes: &mut [u32; LANES],
    best: &mut [f32; LANES],
) {
    let half = layout.coordinates.len() / 2;
    let mut lengths = [0.0; LANES];
    for lane in 0..LANES {
        let index = row.ranks[lane] as usize * half + column.ranks[lane] as usize;
        lengths[lane] = layout.lengths[index & (layout.lengths.len() - 1)];
    }
    for lane in 0..LANES {
        let n = unit_vector(column.centroids[lane], row.centroids[lane], lengths[lane]);
        let projection = (t[0][lane] * n[0] + t[1][lane] * n[1]) + t[2][lane] * n[2];
        let is_better = projection > best[lane];
        let code = column.codes[lane] | row.codes[lane] << layout.direction_bits;
        codes[lane] = if is_better { code } else { codes[lane] };
        best[lane] = if is_better { projection } else { best[lane] };
    }
}

/// Returns the unfolded point of (ξ, η), times its `length`'s reciprocal from the table.
#[inline(always)]
fn unit_vector(xi: f32, eta: f32, length: f32) -> [f32; 3] {
    let (a, b) = (xi.abs(), eta.abs());
    let z = (1.0 - a) - b;
    let x = if z < 0.0 { (1.0 - b).copysign(xi) } else { xi };
    let y = if z < 0.0 { (1.0 - a).copysign(eta) } else { eta };
    [x * length, y * length, z * length]
}

/// Returns (ξ, η) of triplets.
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

/// Returns for each value the number of midpoints between neighbouring centroids that are not
/// larger.
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

/// Returns for each value the number of centroids that are not larger.
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

/// Returns the unit vector of codes (i, j) of (ξ, η).
#[inline(always)]
fn exact_direction(layout: &TripletLayout, i: usize, j: usize) -> [f32; 3] {
    let half = layout.coordinates.len() / 2;
    let rank = |code: usize| if code < half { half - 1 - code } else { code - half };
    let length = layout.lengths[rank(j) * half + rank(i)];
    unit_vector(layout.coordinates[i], layout.coordinates[j], length)
}

/// Returns the direction of a code, in units of [`TripletLayout::unit`].
#[inline(always)]
fn direction(layout: &TripletLayout, code: usize) -> [f32; 3] {
    if layout.directions.is_empty() {
        exact_direction(layout, code & ((1 << layout.direction_bits) - 1), code >> layout.direction_bits)
    } else {
        let [x, y, z, _] = layout.directions[code];
        [f32::from(x), f32::from(y), f32::from(z)]
    }
}

/// Computes out = (radius·direction)·(scale·unit), and centroid·(scale·`rest_scale`) for
/// coordinates left over.
#[inline(always)]
pub(crate) fn decode_triplets(layout: &TripletLayout, stream: &[u8], scale: f32, out: &mut [f32]) {
    let (triplets, rest) = out.split_at_mut((3 * layout.triplets()).min(layout.dim));
    let factor = scale * layout.unit();
    for (index, out) in triplets.chunks_mut(3).enumerate() {
        let (code, radius) = layout.split(layout.field(stream, index));
        for (out, n) in out.iter_mut().zip(direction(layout, code)) {
            *out = (layout.radii[radius] * n) * factor;
        }
    }
    layout.decode_rest(stream, scale, rest);
}

/// Computes score\[query]\[row] = ((sum·unit + rest·`rest_scale`)·query scale)·row scale.
///
/// The sum of radius·(q·direction) has 16 lanes, and triplet `i` adds to lane `i % 16`. q·direction
/// and the sum over the coordinates left over are exact integers.
#[inline(always)]
pub(crate) fn score_triplets(layout: &TripletLayout, rows: &Rows, queries: &[IntQuery], scores: &mut [f32]) {
    let count = rows.count();
    let triplets = layout.triplets();
    for (r, row) in rows.iter().enumerate() {
        let stream = layout.stream(row);
        let row_scale = layout.row_scale(rows, r);
        let mut dots = [([0i8; 4], 0.0); MAX_FIELDS];
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

/// Computes a score from the sums over triplets and over the coordinates left over.
#[inline(always)]
pub(crate) fn finish_score(
    layout: &TripletLayout,
    sum: f32,
    rest: f32,
    query_scale: f32,
    row_scale: f32,
) -> f32 {
    ((sum * layout.unit() + rest * layout.rest_scale) * query_scale) * row_scale
}

/// Scores queries in f32.
///
/// q·direction is (qx·nx + qy·ny) + qz·nz. Then come the coordinates left over, ascending. The
/// query scale is 1. Coordinates that pad a triplet are zeros.
#[inline(always)]
pub(crate) fn score_triplets_floats(
    layout: &TripletLayout,
    rows: &Rows,
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = rows.count();
    let triplets = layout.triplets();
    let mut dots = [([0.0; 3], 0.0); MAX_FIELDS];
    for (r, row) in rows.iter().enumerate() {
        let stream = layout.stream(row);
        let row_scale = layout.row_scale(rows, r);
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

/// Computes acc\[query] += ((weight·row scale)·unit)·(radius·direction), rows ascending.
///
/// For coordinates left over it adds ((weight·row scale)·`rest_scale`)·centroid. Weights are
/// \[query]\[row].
#[inline(always)]
pub(crate) fn accumulate_triplets(layout: &TripletLayout, rows: &Rows, weights: &[f32], acc: &mut [f32]) {
    let count = rows.count();
    let triplets = (3 * layout.triplets()).min(layout.dim);
    let mut values = [0.0; crate::MAX_DIM];
    let values = &mut values[..layout.dim];
    for (r, row) in rows.iter().enumerate() {
        let (stream, row_scale) = (layout.stream(row), layout.row_scale(rows, r));
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

/// Adds weight·values to `acc`, element by element.
#[inline(always)]
pub(crate) fn add_row(weight: f32, values: &[f32], acc: &mut [f32]) {
    for (acc, x) in acc.iter_mut().zip(values) {
        *acc += weight * x;
    }
}
