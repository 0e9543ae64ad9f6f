//! Chunks of four values as a radius and a product of quaternions: the specification.

use super::layout::{
    ChunkLayout, INDEX_GRID, MAX_CHUNKS, MAX_ROW, QuaternionIndex, QuaternionSet, RadiusSteps, TURNS, UNITS,
    product,
};
use crate::codes::scalar::{BitReader, BitWriter};
use crate::floats::{rint, row_scale, sqrt};
use crate::vectors::scalar::accumulate_rows;

/// Computes √((w²+x²) + (y²+z²)) of each chunk.
#[inline(always)]
pub(crate) fn chunk_norms(x: &[f32], norms: &mut [f32]) {
    for ([w, x, y, z], norm) in x.as_chunks::<4>().0.iter().zip(norms) {
        *norm = sqrt((w * w + x * x) + (y * y + z * z));
    }
}

/// Encodes chunks: radius = min(limit, ⌊norm·factor + ½⌋), and the best product's code. The code is
/// 0 where the radius is 0.
#[inline(always)]
pub(crate) fn encode_quaternions(
    set: &QuaternionSet,
    x: &[f32],
    norms: &[f32],
    steps: RadiusSteps,
    codes: &mut [u16],
    radii: &mut [u8],
) {
    let coded = codes.iter_mut().zip(radii);
    for ((chunk, norm), (code, radius)) in x.as_chunks::<4>().0.iter().zip(norms).zip(coded) {
        *radius = radius_code(*norm, steps);
        *code = if *radius == 0 { 0 } else { best_product(set, chunk) };
    }
}

/// Returns the radius code of a norm.
#[inline(always)]
pub(crate) fn radius_code(norm: f32, RadiusSteps { factor, limit }: RadiusSteps) -> u8 {
    let (steps, limit) = (norm * factor + 0.5, f32::from(limit));
    // By way of `i32`, which LLVM vectorises.
    (if steps < limit { steps } else { limit }) as i32 as u8
}

/// Returns the code p·S + s of the largest inner product, the lowest on ties.
#[inline(always)]
pub(crate) fn best_product(set: &QuaternionSet, u: &[f32; 4]) -> u16 {
    match set.index {
        Some(index) => best_of(set, u, index.candidates(u).iter().map(|s| usize::from(*s))),
        None => best_of(set, u, 0..set.members.len()),
    }
}

/// Returns the best code among candidates.
#[inline(always)]
fn best_of(set: &QuaternionSet, u: &[f32; 4], candidates: impl Iterator<Item = usize>) -> u16 {
    let (mut best, mut code) = (-1.0, usize::MAX);
    for s in candidates {
        let (product, p) = nearest_unit(&times_conjugate(u, &set.members[s]));
        let candidate = p * set.members.len() + s;
        if product > best || (product == best && candidate < code) {
            (best, code) = (product, candidate);
        }
    }
    code as u16
}

/// Returns u·q*: four sums of four products, by pairs.
#[inline(always)]
pub(crate) fn times_conjugate(u: &[f32; 4], q: &[f32; 4]) -> [f32; 4] {
    let ([w, x, y, z], [a, b, c, d]) = (*u, *q);
    [
        (w * a + x * b) + (y * c + z * d),
        (x * a - w * b) + (z * c - y * d),
        (y * a - w * c) + (x * d - z * b),
        (z * a - w * d) + (y * b - x * c),
    ]
}

/// Returns the largest inner product with a unit, max(‖y‖∞, ‖y‖₁/2), and that unit.
///
/// On ties an axis wins, and of several the lowest. -0 counts as positive.
#[inline(always)]
pub(crate) fn nearest_unit(y: &[f32; 4]) -> (f32, usize) {
    let [w, x, y_, z] = y.map(f32::abs);
    let half = ((w + x) + (y_ + z)) * 0.5;
    let (mut axis, mut at) = (w, 0);
    for (component, value) in [x, y_, z].into_iter().enumerate() {
        if value > axis {
            (axis, at) = (value, component + 1);
        }
    }
    if axis >= half {
        (axis, 2 * at + usize::from(y[at] < 0.0))
    } else {
        (half, (0..4).fold(8, |p, c| p + (usize::from(y[c] < 0.0) << c)))
    }
}

/// Writes a row, except its scale and its flags.
#[inline(always)]
pub(crate) fn pack_chunks(layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]) {
    let raw_bits = layout.raw_bits();
    let mut raw = BitWriter::new(&mut row[2..layout.digits_at()]);
    for code in codes {
        raw.push(u32::from(*code) & ((1 << raw_bits) - 1), raw_bits);
    }
    raw.finish();
    let digit_plane = &mut row[layout.digits_at()..layout.radii_at()];
    for (i, byte) in digit_plane.iter_mut().enumerate() {
        let digit = |j: usize| codes.get(j / 2).map_or(0, |code| digits(code >> raw_bits)[j % 2]);
        *byte = (0..5).rev().fold(0, |sum, j| sum * 3 + digit(5 * i + j));
    }
    let mut plane = BitWriter::new(&mut row[layout.radii_at()..layout.flags_at()]);
    for radius in radii {
        plane.push(u32::from(*radius), layout.radius_bits.into());
    }
    plane.finish();
}

/// Returns the two base-3 digits of a base-9 digit, the lower first.
#[inline(always)]
fn digits(digit: u16) -> [u8; 2] {
    [(digit % 3) as u8, (digit / 3) as u8]
}

/// Reads what `pack_chunks` wrote. Any bytes are allowed: digits count modulo 3, and codes above
/// the last one become the last one.
#[inline(always)]
pub fn unpack_chunks(layout: &ChunkLayout, row: &[u8], codes: &mut [u16], radii: &mut [u8]) {
    let raw_bits = layout.raw_bits();
    let mut raw = BitReader::new(&row[2..layout.digits_at()]);
    for code in codes.iter_mut() {
        *code = raw.take(raw_bits) as u16;
    }
    if layout.radix {
        let digit_plane = &row[layout.digits_at()..layout.radii_at()];
        let digit = |j: usize| (digit_plane[j / 5] / [1, 3, 9, 27, 81][j % 5]) % 3;
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= u16::from(digit(2 * i) + 3 * digit(2 * i + 1)) << raw_bits;
        }
    } else {
        let last = (layout.codes() - 1) as u16;
        for code in codes.iter_mut() {
            *code = (*code).min(last);
        }
    }
    let mut plane = BitReader::new(&row[layout.radii_at()..layout.flags_at()]);
    for radius in radii {
        *radius = plane.take(layout.radius_bits.into()) as u8;
    }
}

impl ChunkLayout {
    /// Returns whether a row has the bytes that [`pack_chunks`](crate::Backend::pack_chunks)
    /// writes, and no direction where it has no radius.
    ///
    /// Scale and flags may be any.
    #[must_use]
    pub fn is_packed(&self, row: &[u8]) -> bool {
        if !self.is_valid() || row.len() != self.row_bytes() {
            return false;
        }
        let (mut codes, mut radii) = ([0; MAX_CHUNKS], [0; MAX_CHUNKS]);
        let (codes, radii) = (&mut codes[..self.chunks], &mut radii[..self.chunks]);
        unpack_chunks(self, row, codes, radii);
        let mut packed = [0; MAX_ROW];
        let packed = &mut packed[..self.flags_at()];
        pack_chunks(self, codes, radii, packed);
        let without = codes.iter().zip(&*radii).all(|(code, radius)| *radius > 0 || *code == 0);
        without && packed[2..] == row[2..self.flags_at()]
    }
}

/// Returns the value of one radius step.
#[inline(always)]
pub(crate) fn radius_unit(layout: &ChunkLayout, row: &[u8]) -> f32 {
    row_scale(row) / f32::from(layout.radius_limit())
}

/// Computes out = (radius · (row scale/limit)) · (unit·member).
#[inline(always)]
pub(crate) fn decode_quaternions(layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]) {
    let (mut codes, mut radii) = ([0; MAX_CHUNKS], [0; MAX_CHUNKS]);
    let (codes, radii) = (&mut codes[..layout.chunks], &mut radii[..layout.chunks]);
    unpack_chunks(layout, row, codes, radii);
    let unit = radius_unit(layout, row);
    for ((code, radius), out) in codes.iter().zip(radii).zip(out.as_chunks_mut::<4>().0) {
        let (p, s) = split_code(*code, set.members.len());
        let radius = f32::from(*radius) * unit;
        *out = product(&UNITS[p], &set.members[s]).map(|c| c * radius);
    }
}

/// Splits a code into unit and member.
#[inline(always)]
fn split_code(code: u16, members: usize) -> (usize, usize) {
    (usize::from(code) / members, usize::from(code) % members)
}

/// A chunk of a query.
///
/// It has the inner products with the 24 units, as integers of at most ±127, and the value of one
/// step of a product.
pub(crate) struct ChunkQuery {
    pub(crate) ints: [i8; 24],
    pub(crate) unit: f32,
}

impl ChunkQuery {
    /// Prepares a chunk.
    ///
    /// The inner products are ±w, ±x, ±y, ±z and ½((±w±x) + (±y±z)). The largest becomes 127, and
    /// the others are rounded to nearest, ties to even. All are 0 if 127 divided by the largest is
    /// infinite.
    #[inline(always)]
    pub(crate) fn new(q: &[f32; 4]) -> Self {
        let signed = |c: usize, negative: bool| if negative { -q[c] } else { q[c] };
        let dot = |p: usize| match p {
            0..8 => signed(p / 2, p % 2 == 1),
            _ => {
                let part = |c: usize| signed(c, (p - 8) >> c & 1 == 1);
                ((part(0) + part(1)) + (part(2) + part(3))) * 0.5
            }
        };
        let (max, _) = nearest_unit(q);
        let factor = 127.0 / max;
        if factor.is_infinite() {
            return Self { ints: [0; 24], unit: 0.0 };
        }
        let mut ints = [0; 24];
        for (p, int) in ints.iter_mut().enumerate() {
            *int = rint(dot(p) * factor) as i8;
        }
        Self { ints, unit: (max / 127.0) / 127.0 }
    }

    /// Returns <unit*·query, member> in integers.
    #[inline(always)]
    fn dot(&self, p: usize, member: &[i8; 4]) -> i32 {
        (0..4).map(|c| i32::from(self.ints[usize::from(TURNS[c][p])]) * i32::from(member[c])).sum()
    }
}

/// Computes score\[query]\[row] = (Σ f32(dot·radius)·(chunk's unit)) · (row scale/limit).
///
/// The sum takes chunks in ascending order. `dot` is the integer inner product of the code's member
/// and the query's chunk, turned back by the code's unit.
#[inline(always)]
pub(crate) fn score_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = bytes.len() / layout.row_bytes();
    let (mut codes, mut radii) = ([0; MAX_CHUNKS], [0; MAX_CHUNKS]);
    let (codes, radii) = (&mut codes[..layout.chunks], &mut radii[..layout.chunks]);
    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count.max(1))) {
        let mut turned = [const { ChunkQuery { ints: [0; 24], unit: 0.0 } }; MAX_CHUNKS];
        for (turned, q) in turned.iter_mut().zip(query.as_chunks::<4>().0) {
            *turned = ChunkQuery::new(q);
        }
        for (row, score) in bytes.chunks_exact(layout.row_bytes()).zip(scores) {
            unpack_chunks(layout, row, codes, radii);
            let mut sum = 0.0;
            for ((code, radius), query) in codes.iter().zip(radii.iter()).zip(&turned) {
                let (p, s) = split_code(*code, set.members.len());
                sum += (query.dot(p, &set.ints[s]) * i32::from(*radius)) as f32 * query.unit;
            }
            *score = sum * radius_unit(layout, row);
        }
    }
}

/// Computes acc\[query]\[j] += weight·x̂\[j] with x̂ of [`decode_quaternions`], rows ascending.
#[inline(always)]
pub(crate) fn accumulate_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let rows = bytes.chunks_exact(layout.row_bytes());
    let decode = |row: &[u8], values: &mut [f32]| decode_quaternions(layout, set, row, values);
    accumulate_rows(decode, 4 * layout.chunks, rows, weights, acc);
}

impl<'a> QuaternionIndex<'a> {
    /// Returns the candidates for a chunk.
    #[inline(always)]
    pub(crate) fn candidates(&self, u: &[f32; 4]) -> &'a [u8] {
        let (cells, lists) = self.tables();
        let cell = cells[cell_of(u)];
        &lists[(cell >> 8) as usize..][..(cell & 0xff) as usize]
    }
}

/// Returns the cell of a direction: multiplied from the left by the inverse of its nearest unit,
/// then divided by w.
#[inline(always)]
fn cell_of(u: &[f32; 4]) -> usize {
    let [a, b, c, d] = UNITS[nearest_unit(u).1];
    let [w, x, y, z] = *u;
    let scale = 1.0 / ((a * w + b * x) + (c * y + d * z));
    let step = |numerator: f32| {
        let at = (numerator * scale + 1.0) * (INDEX_GRID as f32 / 2.0);
        // The cast saturates, so a rounding beyond the cube, or a NaN, stays in the table.
        (at as usize).min(INDEX_GRID - 1)
    };
    let x_step = step((a * x - b * w) + (d * y - c * z));
    let y_step = step((a * y - c * w) + (b * z - d * x));
    let z_step = step((a * z - d * w) + (c * x - b * y));
    (x_step * INDEX_GRID + y_step) * INDEX_GRID + z_step
}
