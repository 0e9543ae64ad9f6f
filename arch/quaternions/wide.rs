//! Chunks as products of quaternions, for any registers. Lanes are chunks in a search, four rows in
//! a score, and the components of one chunk in decoding.

pub(crate) mod search;

pub(crate) use search::{chunk_norms, encode_quaternions};

use super::layout::{ChunkLayout, MAX_CHUNKS, QuaternionSet, TURNS, UNITS};
use super::scalar::{ChunkQuery, radius_unit};
use crate::registers::{Registers, add_row, order};

/// Bytes of the widest row, with padding for reads beyond it.
const PADDED_ROW: usize = 2 + MAX_CHUNKS * 13 / 8 + (2 * MAX_CHUNKS).div_ceil(5) + MAX_CHUNKS + 16;

/// Unpacks a row's codes with a few integer instructions a plane.
struct Unpack {
    layout: ChunkLayout,
    /// ⌈2²²/S⌉: exact for codes below 24·255.
    reciprocal: u32,
    bytes: [u8; PADDED_ROW],
}

/// Units, members and radii of the chunks of a row.
struct Parts {
    units: [u8; MAX_CHUNKS],
    members: [u8; MAX_CHUNKS],
    radii: [f32; MAX_CHUNKS],
}

impl Parts {
    const NONE: Self = Self { units: [0; MAX_CHUNKS], members: [0; MAX_CHUNKS], radii: [0.0; MAX_CHUNKS] };
}

impl Unpack {
    #[inline(always)]
    fn new(layout: &ChunkLayout) -> Self {
        let reciprocal = (1u32 << 22).div_ceil(layout.members.into());
        Self { layout: *layout, reciprocal, bytes: [0; PADDED_ROW] }
    }

    /// Unpacks a row. The row is copied, so that reads beyond its end stay in the copy.
    #[inline(always)]
    fn parts(&mut self, row: &[u8], parts: &mut Parts) {
        let layout = &self.layout;
        self.bytes[..row.len()].copy_from_slice(row);
        let raw_bits = layout.raw_bits();
        let mut codes = [0; MAX_CHUNKS];
        take_fields(&self.bytes[2..], raw_bits, &mut codes[..layout.chunks.next_multiple_of(4)]);
        let codes = &mut codes[..layout.chunks];
        if layout.radix {
            let mut digits = [[0; 2]; MAX_CHUNKS + 4];
            let plane = &self.bytes[layout.digits_at()..layout.radii_at()];
            for (i, byte) in plane.iter().enumerate() {
                if let Some(place) = digits.as_flattened_mut()[5 * i..].first_chunk_mut() {
                    *place = DIGITS[usize::from(*byte)];
                }
            }
            for (code, [low, high]) in codes.iter_mut().zip(&digits) {
                *code |= (u16::from(*low) + 3 * u16::from(*high)) << raw_bits;
            }
        } else {
            let last = (layout.codes() - 1) as u16;
            codes.iter_mut().for_each(|code| *code = (*code).min(last));
        }
        let count = u32::from(layout.members);
        for ((code, unit), member) in codes.iter().zip(&mut parts.units).zip(&mut parts.members) {
            let p = (u32::from(*code) * self.reciprocal) >> 22;
            *unit = p as u8;
            *member = (u32::from(*code) - p * count) as u8;
        }
        let mut radii = [0; MAX_CHUNKS];
        let radii = &mut radii[..layout.chunks.next_multiple_of(4)];
        take_fields(&self.bytes[layout.radii_at()..], layout.radius_bits.into(), radii);
        for (radius, code) in parts.radii.iter_mut().zip(radii) {
            *radius = f32::from(*code);
        }
    }
}

/// Extracts fields of up to 13 bits, four from each eight bytes.
#[inline(always)]
fn take_fields(plane: &[u8], width: u32, fields: &mut [u16]) {
    let mask = (1 << width) - 1;
    for (i, fields) in fields.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let bit = 4 * i * width as usize;
        let word = plane[bit / 8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) >> (bit % 8);
        for (j, field) in (0..).zip(fields) {
            *field = (word >> (j * width)) as u16 & mask;
        }
    }
}

/// The five base-3 digits of a byte, the lowest first, modulo 3, padded so that they can be stored
/// eight at a time.
static DIGITS: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut j) = (byte, 0);
        while j < 5 {
            table[byte][j] = (rest % 3) as u8;
            rest /= 3;
            j += 1;
        }
        byte += 1;
    }
    table
};

/// 24 units, padded to the numbers that a mask can leave.
const PADDED_UNITS: usize = 32;

/// Factors for unit·q. They multiply (w, x, y, z), (x, w, w, w), (y, z, x, y) and (z, y, z, x) of a
/// member q.
///
/// The first two and the last two products are added. Then both sums are added, the latter with its
/// first lane negated.
static FACTORS: [[[f32; 4]; 4]; PADDED_UNITS] = {
    let mut factors = [[[0.0; 4]; 4]; PADDED_UNITS];
    let mut p = 0;
    while p < 24 {
        let [a, b, c, d] = UNITS[p];
        factors[p] = [[a; 4], [-b, b, c, d], [c, c, d, b], [d, -d, -b, -c]];
        p += 1;
    }
    factors
};

/// Decodes a row from its parts.
#[inline(always)]
fn decode_parts<L: Registers>(set: &QuaternionSet, parts: &Parts, unit: f32, out: &mut [f32]) {
    let orders = [order([1, 0, 0, 0]), order([2, 3, 1, 2]), order([3, 2, 3, 1])].map(|order| L::load(&order));
    let turn = L::load_floats(&[-1.0, 1.0, 1.0, 1.0]);
    let parts = parts.units.iter().zip(&parts.members).zip(&parts.radii);
    for (((p, s), radius), out) in parts.zip(out.as_chunks_mut::<4>().0) {
        let q = L::load_floats(&set.members[usize::from(*s)]);
        let [f0, f1, f2, f3] = FACTORS[usize::from(*p) % PADDED_UNITS].each_ref().map(|f| L::load_floats(f));
        let [q1, q2, q3] = orders.map(|order| L::lookup(q, order));
        let first = L::add_floats(L::multiply_floats(f0, q), L::multiply_floats(f1, q1));
        let second = L::add_floats(L::multiply_floats(f2, q2), L::multiply_floats(f3, q3));
        let product = L::add_floats(first, L::multiply_floats(second, turn));
        L::store_floats(out, L::multiply_floats(product, L::splat_float(radius * unit)));
    }
}

/// Implements `scalar::decode_quaternions`.
#[inline(always)]
pub(crate) fn decode_quaternions<L: Registers>(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    row: &[u8],
    out: &mut [f32],
) {
    let mut parts = Parts::NONE;
    Unpack::new(layout).parts(row, &mut parts);
    decode_parts::<L>(set, &parts, radius_unit(layout, row), out);
}

/// Implements `scalar::accumulate_quaternions`.
#[inline(always)]
pub(crate) fn accumulate_quaternions<L: Registers>(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    weights: &[f32],
    acc: &mut [f32],
) {
    let (count, width) = (bytes.len() / layout.row_bytes(), 4 * layout.chunks);
    let (mut unpack, mut parts, mut values) = (Unpack::new(layout), Parts::NONE, [0.0; crate::MAX_DIM]);
    for (r, row) in bytes.chunks_exact(layout.row_bytes()).enumerate() {
        unpack.parts(row, &mut parts);
        decode_parts::<L>(set, &parts, radius_unit(layout, row), &mut values[..width]);
        for (weights, acc) in weights.chunks_exact(count).zip(acc.chunks_exact_mut(width)) {
            add_row::<L>(weights[r], &values[..width], acc);
        }
    }
}

/// A query's chunks, each turned back by every unit: four bytes.
struct Turned {
    chunks: [[u32; PADDED_UNITS]; MAX_CHUNKS],
    units: [f32; MAX_CHUNKS],
}

impl Turned {
    const NONE: Self = Self { chunks: [[0; PADDED_UNITS]; MAX_CHUNKS], units: [0.0; MAX_CHUNKS] };

    /// Prepares the chunks of a query, see `scalar::ChunkQuery`.
    #[inline(always)]
    fn fill(&mut self, query: &[f32]) {
        let places = self.chunks.iter_mut().zip(&mut self.units);
        for (q, (chunk, unit)) in query.as_chunks::<4>().0.iter().zip(places) {
            let turned = ChunkQuery::new(q);
            for (p, word) in chunk[..UNITS.len()].iter_mut().enumerate() {
                let component = |c: usize| turned.ints[usize::from(TURNS[c][p])] as u8;
                *word = u32::from_le_bytes([component(0), component(1), component(2), component(3)]);
            }
            *unit = turned.unit;
        }
    }
}

/// Four rows, chunk by chunk.
#[derive(Clone, Copy)]
struct FourParts {
    units: [u8; 4],
    members: [u32; 4],
    radii: [f32; 4],
}

/// Implements `scalar::score_quaternions`.
#[inline(always)]
pub(crate) fn score_quaternions<L: Registers>(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = bytes.len() / layout.row_bytes();
    let (mut unpack, mut parts) = (Unpack::new(layout), Parts::NONE);
    let mut fours = [FourParts { units: [0; 4], members: [0; 4], radii: [0.0; 4] }; MAX_CHUNKS];
    let fours = &mut fours[..layout.chunks];
    // Two queries share what is unpacked from the rows.
    let mut turned = [const { Turned::NONE }; 2];
    for (queries, scores) in queries.chunks(2).zip(scores.chunks_mut((2 * count).max(1))) {
        turned.iter_mut().zip(queries).for_each(|(turned, query)| turned.fill(query));
        for (block, rows) in bytes.chunks(4 * layout.row_bytes()).enumerate() {
            let mut scales = [0.0; 4];
            for (r, row) in rows.chunks_exact(layout.row_bytes()).enumerate() {
                scales[r] = radius_unit(layout, row);
                unpack.parts(row, &mut parts);
                for (c, four) in fours.iter_mut().enumerate() {
                    four.units[r] = parts.units[c];
                    let ints = set.ints[usize::from(parts.members[c])];
                    four.members[r] = u32::from_le_bytes(ints.map(|int| int as u8));
                    four.radii[r] = parts.radii[c];
                }
            }
            for (turned, scores) in turned.iter().zip(scores.chunks_mut(count.max(1))) {
                let mut sums = L::splat(0);
                for (four, (chunk, unit)) in fours.iter().zip(turned.chunks.iter().zip(&turned.units)) {
                    let query = L::load_four(four.units.map(|p| chunk[usize::from(p) % PADDED_UNITS]));
                    let dots = L::to_floats(L::dot_quads(query, L::load_four(four.members)));
                    // Exact, like the integer product: both are below 2²⁴.
                    let steps = L::multiply_floats(dots, L::load_floats(&four.radii));
                    sums = L::add_floats(sums, L::multiply_floats(steps, L::splat_float(*unit)));
                }
                let mut four_scores = [0.0; 4];
                L::store_floats(&mut four_scores, L::multiply_floats(sums, L::load_floats(&scales)));
                for (score, four) in scores[4 * block..].iter_mut().zip(four_scores) {
                    *score = four;
                }
            }
        }
    }
}
