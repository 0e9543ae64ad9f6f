//! The search for octahedral directions, four triplets a register.
//!
//! Decision points and directions mirror each other, so magnitudes are compared with the positive points alone, and a
//! code is searched as s = code - half: its sign is the coordinate's, its rank among the centroids of that sign is s or
//! ~s. Where a + b > 1 the fold takes (1 - b, 1 - a) for the magnitudes (a, b), the smaller ones: two minima unfold.

use crate::registers::Registers;
use crate::triplets::layout::MAX_FIELDS;
use crate::triplets::scalar;
use crate::triplets::scalar::SMALLEST;
use crate::{Search, TripletLayout};

/// The most positive centroids, and the most radii.
const POINTS: usize = 64;

#[inline(always)]
pub(crate) fn encode_triplets<L: Registers>(
    layout: &TripletLayout,
    search: Search,
    x: &[f32],
    scale: f32,
    stream: &mut [u8],
) {
    if search == Search::All {
        return scalar::encode_triplets(layout, search, x, scale, stream);
    }
    let mut fields = [0; MAX_FIELDS];
    let encoder = Encoder::<L>::new(layout, search);
    for (x, fields) in x.chunks(12).zip(fields.as_chunks_mut::<4>().0) {
        let t = match x.first_chunk() {
            Some(x) => L::load_triplets(x),
            None => {
                let mut filled = [0.0; 12];
                filled[..x.len()].copy_from_slice(x);
                L::load_triplets(&filled)
            }
        };
        let scale = L::splat_float(scale);
        let t = [
            L::multiply_floats(t[0], scale),
            L::multiply_floats(t[1], scale),
            L::multiply_floats(t[2], scale),
        ];
        let mut lanes = [0; 4];
        L::store_sums(&mut lanes, encoder.fields(search, &t));
        *fields = lanes.map(|field| field as u32);
    }
    scalar::finish_fields(layout, x, scale, &mut fields, stream);
}

/// What encoding compares with and looks up.
pub(crate) struct Encoder<'a, L: Registers> {
    pub(crate) layout: &'a TripletLayout<'a>,
    /// Positive centroids.
    pub(crate) upper: &'a [f32],
    /// Up to sixteen of them.
    table: [L::V; 4],
    /// Positive decision points of ξ and η: `points` of them.
    pub(crate) directions: [f32; POINTS],
    pub(crate) points: usize,
    /// Decision points of the radius, one less than radii.
    pub(crate) radii: [f32; POINTS],
}

/// Codes of ξ or η, less half their number, and what follows from them.
struct Side<L: Registers> {
    code: L::V,
    rank: L::V,
    /// The centroid's magnitude, and 1 less that.
    magnitude: L::V,
    one_less: L::V,
    /// The triplets' coordinate, with the centroid's sign multiplied in.
    t: L::V,
}

impl<L: Registers> Clone for Side<L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<L: Registers> Copy for Side<L> {}

/// Writes the midpoints of neighbours.
#[inline(always)]
fn midpoints(centroids: &[f32], points: &mut [f32; POINTS]) {
    for (point, pair) in points.iter_mut().zip(centroids.windows(2)) {
        *point = (pair[0] + pair[1]) * 0.5;
    }
}

#[inline(always)]
fn splat_int<L: Registers>(x: i32) -> L::V {
    L::splat_pair(x as u32)
}

#[inline(always)]
fn magnitude<L: Registers>(x: L::V) -> L::V {
    L::and(x, L::splat_pair(0x7fff_ffff))
}

/// `x`, its sign turned where the mask has ones.
#[inline(always)]
fn turn<L: Registers>(x: L::V, mask: L::V) -> L::V {
    L::xor(x, L::and(mask, L::splat_pair(0x8000_0000)))
}

impl<'a, L: Registers> Encoder<'a, L> {
    #[inline(always)]
    pub(crate) fn new(layout: &'a TripletLayout<'a>, search: Search) -> Self {
        let half = layout.coordinates.len() / 2;
        let upper = &layout.coordinates[half..];
        let (mut directions, mut radii) = ([0.0; POINTS], [0.0; POINTS]);
        let points = if search == Search::Bracket {
            directions[..half].copy_from_slice(upper);
            half
        } else {
            midpoints(upper, &mut directions);
            half - 1
        };
        midpoints(layout.radii, &mut radii);
        let mut first = [0.0; 16];
        first[..half.min(16)].copy_from_slice(&upper[..half.min(16)]);
        let mut table = [L::splat(0); 4];
        for (table, floats) in table.iter_mut().zip(first.as_chunks().0) {
            *table = L::load_floats(floats);
        }
        Self { layout, upper, table, directions, points, radii }
    }

    /// Four fields.
    #[inline(always)]
    fn fields(&self, search: Search, t: &[L::V; 3]) -> L::V {
        let (one, minus_one) = (splat_int::<L>(1), splat_int::<L>(-1));
        let half = self.upper.len() as i32;
        let (first, last) = (splat_int::<L>(-half), splat_int::<L>(half - 1));
        let [xi, eta] = octahedral_map::<L>(t);
        let negative = [L::greater(L::splat(0), xi), L::greater(L::splat(0), eta)];
        // Of a negative one the points below its magnitude, of others those up to it.
        let xi = L::add_ints(magnitude::<L>(xi), negative[0]);
        let eta = L::add_ints(magnitude::<L>(eta), negative[1]);
        let (mut column, mut row) = (L::splat(0), L::splat(0));
        for point in &self.directions[..self.points] {
            let point = L::splat_float(*point);
            (column, row) = (L::count_at_least(column, xi, point), L::count_at_least(row, eta, point));
        }
        let codes = [L::xor(column, negative[0]), L::xor(row, negative[1])];
        let (codes, best) = match search {
            Search::Bracket => {
                // Those that bracket a negative one: its code here and the one above.
                let around = |code, negative| {
                    let below = L::add_ints(code, L::xor(negative, minus_one));
                    [L::max_ints(below, first), L::min_ints(L::add_ints(below, one), last)]
                };
                self.best_direction(t, [around(codes[0], negative[0]), around(codes[1], negative[1])])
            }
            Search::Neighbours => {
                let around = |code| {
                    let (below, above) = (L::add_ints(code, minus_one), L::add_ints(code, one));
                    [L::max_ints(below, first), code, L::min_ints(above, last)]
                };
                self.best_direction(t, [around(codes[0]), around(codes[1])])
            }
            Search::Nearest | Search::All => {
                let [x, y, z] = *t;
                let xy = L::add_floats(L::multiply_floats(x, x), L::multiply_floats(y, y));
                let squares = L::add_floats(xy, L::multiply_floats(z, z));
                let rows = L::multiply_ints(codes[1], splat_int::<L>(2 * half));
                (L::add_ints(codes[0], rows), L::sqrt_floats(squares))
            }
        };
        let mut radius = L::splat(0);
        for point in &self.radii[..self.layout.radii.len() - 1] {
            radius = L::count_at_least(radius, best, L::splat_float(*point));
        }
        let radius = L::multiply_ints(radius, splat_int::<L>(4 * half * half));
        L::add_ints(L::add_ints(codes, splat_int::<L>(half + 2 * half * half)), radius)
    }

    /// What a code, less half their number, stands for.
    #[inline(always)]
    fn side(&self, code: L::V, t: L::V) -> Side<L> {
        let negative = L::signs(code);
        let rank = L::xor(code, negative);
        let magnitude = if self.upper.len() <= 16 {
            let bytes = L::multiply_ints(rank, splat_int::<L>(0x0404_0404));
            L::lookup_64(&self.table, L::add_ints(bytes, splat_int::<L>(0x0302_0100)))
        } else {
            gather::<L>(self.upper, rank)
        };
        let one_less = L::sub_floats(L::splat_float(1.0), magnitude);
        Side { code, rank, magnitude, one_less, t: turn::<L>(t, negative) }
    }

    /// The best direction's code, less that of two zeros, and its projection; codes ascend, and equals of an earlier
    /// one lose.
    #[inline(always)]
    fn best_direction<const N: usize>(&self, t: &[L::V; 3], [columns, rows]: [[L::V; N]; 2]) -> (L::V, L::V) {
        let half = self.upper.len() as i32;
        let mut sides = [self.side(columns[0], t[0]); N];
        for k in 1..N {
            sides[k] = self.side(columns[k], t[0]);
        }
        let (mut codes, mut best) = (L::splat(0), L::splat_float(f32::NEG_INFINITY));
        for code in rows {
            let mut row = self.side(code, t[1]);
            row.code = L::multiply_ints(row.code, splat_int::<L>(2 * half));
            row.rank = L::multiply_ints(row.rank, splat_int::<L>(half));
            for column in &sides {
                let length = gather::<L>(self.layout.lengths, L::add_ints(row.rank, column.rank));
                let x = L::multiply_floats(L::min_floats(column.magnitude, row.one_less), length);
                let y = L::multiply_floats(L::min_floats(row.magnitude, column.one_less), length);
                let z = L::multiply_floats(L::sub_floats(column.one_less, row.magnitude), length);
                let xy = L::add_floats(L::multiply_floats(column.t, x), L::multiply_floats(row.t, y));
                let projection = L::add_floats(xy, L::multiply_floats(t[2], z));
                let better = L::greater(projection, best);
                codes = L::select(better, L::add_ints(row.code, column.code), codes);
                best = L::select(better, projection, best);
            }
        }
        (codes, best)
    }
}

/// Four elements of a table, modulo whose length, a power of two, indices are taken.
#[inline(always)]
fn gather<L: Registers>(table: &[f32], index: L::V) -> L::V {
    let mut indices = [0; 4];
    L::store_sums(&mut indices, index);
    let [a, b, c, d] = indices;
    let at = |i: i32| table[i as usize & (table.len() - 1)];
    L::load_floats(&[at(a), at(b), at(c), at(d)])
}

/// ξ and η.
#[inline(always)]
fn octahedral_map<L: Registers>(&[x, y, z]: &[L::V; 3]) -> [L::V; 2] {
    let (zero, one) = (L::splat(0), L::splat_float(1.0));
    let sum = L::add_floats(L::add_floats(magnitude::<L>(x), magnitude::<L>(y)), magnitude::<L>(z));
    let is_zero = L::greater(L::splat_float(SMALLEST), sum);
    let inverse = L::divide_floats(one, L::select(is_zero, one, sum));
    let (p, q) = (L::multiply_floats(x, inverse), L::multiply_floats(y, inverse));
    let fold = |p: L::V, q: L::V| turn::<L>(L::sub_floats(one, magnitude::<L>(q)), L::greater(zero, p));
    let lower = L::greater(zero, z);
    [L::select(lower, fold(p, q), p), L::select(lower, fold(q, p), q)]
}
