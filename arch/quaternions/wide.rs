//! Chunks as products of quaternions: lanes are four chunks in a search, four rows in a score, the four components of
//! one chunk in decoding.

use super::layout::{ChunkLayout, INDEX_CELLS, INDEX_GRID, QuaternionSet, RadiusSteps, TURNS, UNITS};
use super::scalar::{ChunkQuery, MAX_CHUNKS, best_product, radius_code, radius_unit};
use crate::registers::{Registers, add_row, order};

/// Four registers, their elements turned to be the elements of one.
#[inline(always)]
fn transpose<L: Registers>([a, b, c, d]: [L::V; 4]) -> [L::V; 4] {
    let ([ab_even, ab_odd], [cd_even, cd_odd]) = (L::unzip_floats(a, b), L::unzip_floats(c, d));
    let ([first, third], [second, fourth]) =
        (L::unzip_floats(ab_even, cd_even), L::unzip_floats(ab_odd, cd_odd));
    [first, second, third, fourth]
}

#[inline(always)]
pub(crate) fn encode_quaternions<L: Registers>(
    set: &QuaternionSet,
    x: &[f32],
    norms: &[f32],
    steps: RadiusSteps,
    codes: &mut [u16],
    radii: &mut [u8],
) {
    for (radius, norm) in radii.iter_mut().zip(norms) {
        *radius = radius_code(*norm, steps);
    }
    let fours = x.as_chunks::<4>().0.chunks(4).zip(radii.chunks(4));
    for ((chunks, radii), codes) in fours.zip(codes.chunks_mut(4)) {
        let found = best_products::<L>(set, chunks, radii);
        codes.copy_from_slice(&found[..codes.len()]);
    }
}

/// The candidates of a set without an index: all members.
static ALL: [u8; 255] = {
    let mut members = [0; 255];
    let mut s = 0;
    while s < 255 {
        members[s] = s as u8;
        s += 1;
    }
    members
};

/// The best codes of up to four chunks, a lane each; 0 where the radius is 0.
#[inline(always)]
fn best_products<L: Registers>(set: &QuaternionSet, chunks: &[[f32; 4]], radii: &[u8]) -> [u16; 4] {
    let chunk = |lane: usize| chunks.get(lane).unwrap_or(&[0.0; 4]);
    let is_searched = |lane: usize| radii.get(lane).is_some_and(|radius| *radius > 0);
    let load = |lane| L::load_floats(chunk(lane));
    let u = transpose::<L>([load(0), load(1), load(2), load(3)]);
    let mut lists = [&ALL[..set.members.len()]; 4];
    if let Some(index) = &set.index {
        let ((cells, members), mut at) = (index.tables(), [0; 4]);
        L::store_sums(&mut at, cells_of::<L>(&u));
        for (list, at) in lists.iter_mut().zip(at) {
            let cell = cells[at as usize % INDEX_CELLS];
            *list = &members[(cell >> 8) as usize..][..(cell & 0xff) as usize];
        }
    }
    let mut lengths = [0.0; 4];
    for lane in 0..4 {
        if is_searched(lane) {
            lengths[lane] = lists[lane].len() as f32;
        }
    }
    let longest = lengths.iter().fold(0, |longest, length| longest.max(*length as usize));
    let lengths = L::load_floats(&lengths);
    // Lists that have ended go on with their last member, which counts no more.
    let member = |lane: usize, k: usize| usize::from(lists[lane][k.min(lists[lane].len() - 1)]);
    let load = |lane: usize, k: usize| L::load_floats(&set.members[member(lane, k)]);
    let mut best = L::splat_float(-1.0);
    let (mut chosen, mut ties) = (L::splat(0), L::splat(0));
    for k in 0..longest {
        let q = transpose::<L>([load(0, k), load(1, k), load(2, k), load(3, k)]);
        let product = nearest::<L>(&times_conjugates::<L>(&u, &q));
        let k = L::splat_float(k as f32);
        let counts = L::greater(lengths, k);
        let better = L::and(counts, L::greater(product, best));
        let equal = L::and(counts, L::equal(product, best));
        // What equals the best so far is forgotten when a better one comes.
        ties = L::select(better, L::splat(0), L::or(ties, equal));
        chosen = L::select(better, k, chosen);
        best = L::select(better, product, best);
    }
    let (mut numbers, mut units, mut tied) = ([0.0; 4], [0.0; 4], [0; 4]);
    L::store_floats(&mut numbers, chosen);
    L::store_sums(&mut tied, ties);
    let [a, b, c, d] = numbers.map(|k| k as usize);
    let q = transpose::<L>([load(0, a), load(1, b), load(2, c), load(3, d)]);
    L::store_floats(&mut units, nearest_units::<L>(&times_conjugates::<L>(&u, &q)));
    let mut codes = [0; 4];
    for lane in 0..4 {
        codes[lane] = match (is_searched(lane), tied[lane]) {
            (false, _) => 0,
            (true, 0) => {
                units[lane] as u16 * set.members.len() as u16 + member(lane, numbers[lane] as usize) as u16
            }
            (true, _) => best_product(set, chunk(lane)),
        };
    }
    codes
}

/// Components' magnitudes, the largest of them, and half their sum.
#[inline(always)]
fn magnitudes<L: Registers>(y: &[L::V; 4]) -> ([L::V; 4], L::V, L::V) {
    let magnitude = |c| L::and(c, L::splat_pair(0x7fff_ffff));
    let [w, x, y, z] = [magnitude(y[0]), magnitude(y[1]), magnitude(y[2]), magnitude(y[3])];
    let axis = L::max_floats(L::max_floats(w, x), L::max_floats(y, z));
    let sum = L::add_floats(L::add_floats(w, x), L::add_floats(y, z));
    ([w, x, y, z], axis, L::multiply_floats(sum, L::splat_float(0.5)))
}

/// The largest inner products with a unit: max(‖y‖∞, ‖y‖₁/2).
#[inline(always)]
fn nearest<L: Registers>(y: &[L::V; 4]) -> L::V {
    let (_, axis, half) = magnitudes::<L>(y);
    L::max_floats(axis, half)
}

/// Which units are nearest, as floats: see `scalar::nearest_unit`.
#[inline(always)]
fn nearest_units<L: Registers>(y: &[L::V; 4]) -> L::V {
    let (magnitudes, axis, half) = magnitudes::<L>(y);
    let (mut axis_unit, mut half_unit) = (L::splat(0), L::splat_float(8.0));
    for c in (0..4).rev() {
        let negative = L::greater(L::splat(0), y[c]);
        half_unit = L::add_floats(half_unit, L::and(negative, L::splat_float((1 << c) as f32)));
        let unit = L::select(negative, L::splat_float((2 * c + 1) as f32), L::splat_float((2 * c) as f32));
        axis_unit = L::select(L::equal(magnitudes[c], axis), unit, axis_unit);
    }
    L::select(L::greater(half, axis), half_unit, axis_unit)
}

/// Cells of the index, in the low twelve bits: see `scalar::cell_of`. Any rounding is inside the index's margin.
#[inline(always)]
fn cells_of<L: Registers>(u: &[L::V; 4]) -> L::V {
    let (one, grid) = (L::splat_float(1.0), INDEX_GRID as f32);
    let (magnitudes, axis, half) = magnitudes::<L>(u);
    let is_half = L::greater(half, axis);
    // The nearest unit: one of its components is 1, the first that is largest, or all are ½; signs are u's.
    let (mut unit, mut free) = ([one; 4], L::splat(0xff));
    for c in 0..4 {
        let largest = L::and(free, L::equal(magnitudes[c], axis));
        free = L::xor(free, largest);
        let size = L::select(is_half, L::splat_float(0.5), L::and(largest, one));
        unit[c] = L::or(size, L::and(u[c], L::splat_pair(0x8000_0000)));
    }
    let m = |a, b| L::multiply_floats(a, b);
    let ([a, b, c, d], [w, x, y, z]) = (unit, *u);
    let real = L::add_floats(L::add_floats(m(a, w), m(b, x)), L::add_floats(m(c, y), m(d, z)));
    let scale = L::divide_floats(L::splat_float(grid / 2.0), real);
    // Added to a float in its range, this leaves the nearest integer in the lowest bits.
    let integer = L::splat_float((1u32 << 23) as f32);
    let step = |plus: [L::V; 2], minus: [L::V; 2]| {
        let sum = L::add_floats(L::sub_floats(plus[0], minus[0]), L::sub_floats(plus[1], minus[1]));
        let at = L::add_floats(m(sum, scale), L::splat_float(grid / 2.0 - 0.5));
        let at = L::min_floats(L::max_floats(at, L::splat(0)), L::splat_float(grid - 1.0));
        L::sub_floats(L::add_floats(at, integer), integer)
    };
    let x_step = step([m(a, x), m(d, y)], [m(b, w), m(c, z)]);
    let y_step = step([m(a, y), m(b, z)], [m(c, w), m(d, x)]);
    let z_step = step([m(a, z), m(c, x)], [m(d, w), m(b, y)]);
    let grid = L::splat_float(grid);
    let cell = L::add_floats(m(L::add_floats(m(x_step, grid), y_step), grid), z_step);
    L::and(L::add_floats(cell, integer), L::splat_pair(INDEX_CELLS as u32 - 1))
}

/// u·q* of four q.
#[inline(always)]
fn times_conjugates<L: Registers>([w, x, y, z]: &[L::V; 4], [a, b, c, d]: &[L::V; 4]) -> [L::V; 4] {
    let m = |a: &L::V, b: &L::V| L::multiply_floats(*a, *b);
    let plus = |a, b| L::add_floats(a, b);
    let minus = |a, b| L::sub_floats(a, b);
    [
        plus(plus(m(w, a), m(x, b)), plus(m(y, c), m(z, d))),
        plus(minus(m(x, a), m(w, b)), minus(m(z, c), m(y, d))),
        plus(minus(m(y, a), m(w, c)), minus(m(x, d), m(z, b))),
        plus(minus(m(z, a), m(w, d)), minus(m(y, b), m(x, c))),
    ]
}

/// Bytes of the widest row, and as many as are read beyond it.
const ROOM: usize = 2 + MAX_CHUNKS * 13 / 8 + (2 * MAX_CHUNKS).div_ceil(5) + MAX_CHUNKS + 16;

/// The parts of a row's codes, taken from its planes with a few integer instructions each.
struct Unpack {
    layout: ChunkLayout,
    /// ⌈2²²/S⌉: exact for codes below 24·255.
    reciprocal: u32,
    bytes: [u8; ROOM],
}

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
        Self { layout: *layout, reciprocal, bytes: [0; ROOM] }
    }

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

/// Fields of up to 13 bits, four from each eight bytes.
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

/// The five base-3 digits of a byte, the lowest first, modulo 3, and room to store them eight at a time.
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

/// 24 units and room for what a mask may leave of a unit's number.
const UNITS_ROOM: usize = 32;

/// What multiplies (w, x, y, z), (x, w, w, w), (y, z, x, y) and (z, y, z, x) of a member q to the four sums of unit·q:
/// the first two and the last two are added, then both, the latter with its first lane's sign turned.
static FACTORS: [[[f32; 4]; 4]; UNITS_ROOM] = {
    let mut factors = [[[0.0; 4]; 4]; UNITS_ROOM];
    let mut p = 0;
    while p < 24 {
        let [a, b, c, d] = UNITS[p];
        factors[p] = [[a; 4], [-b, b, c, d], [c, c, d, b], [d, -d, -b, -c]];
        p += 1;
    }
    factors
};

/// Decodes a row whose parts are known.
#[inline(always)]
fn decode_parts<L: Registers>(set: &QuaternionSet, parts: &Parts, unit: f32, out: &mut [f32]) {
    let orders = [order([1, 0, 0, 0]), order([2, 3, 1, 2]), order([3, 2, 3, 1])].map(|order| L::load(&order));
    let turn = L::load_floats(&[-1.0, 1.0, 1.0, 1.0]);
    let parts = parts.units.iter().zip(&parts.members).zip(&parts.radii);
    for (((p, s), radius), out) in parts.zip(out.as_chunks_mut::<4>().0) {
        let q = L::load_floats(&set.members[usize::from(*s)]);
        let [f0, f1, f2, f3] = FACTORS[usize::from(*p) % UNITS_ROOM].each_ref().map(|f| L::load_floats(f));
        let [q1, q2, q3] = orders.map(|order| L::lookup(q, order));
        let first = L::add_floats(L::multiply_floats(f0, q), L::multiply_floats(f1, q1));
        let second = L::add_floats(L::multiply_floats(f2, q2), L::multiply_floats(f3, q3));
        let product = L::add_floats(first, L::multiply_floats(second, turn));
        L::store_floats(out, L::multiply_floats(product, L::splat_float(radius * unit)));
    }
}

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
    chunks: [[u32; UNITS_ROOM]; MAX_CHUNKS],
    units: [f32; MAX_CHUNKS],
}

impl Turned {
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
    // Two queries share what is taken from the rows.
    let mut turned =
        [const { Turned { chunks: [[0; UNITS_ROOM]; MAX_CHUNKS], units: [0.0; MAX_CHUNKS] } }; 2];
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
                    let query = L::load_four(four.units.map(|p| chunk[usize::from(p) % UNITS_ROOM]));
                    let dots = L::to_floats(L::dot_quads(query, L::load_four(four.members)));
                    // Exact, like the integers' product: both are below 2²⁴.
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
