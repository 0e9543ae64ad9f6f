//! The search for octahedral directions, one triplet a lane.
//!
//! Decision points and directions are symmetric, so magnitudes are compared with the positive
//! points alone. A code is searched as s = code - half. Its sign is the sign of the coordinate, and
//! its rank among the centroids of that sign is s or ~s:
//!
//! ```text
//! code          0    1    2    3    4    5    6    7         half = 4
//! s = code - 4  -4   -3   -2   -1   0    1    2    3
//! rank          3    2    1    0    0    1    2    3          s < 0: ~s
//! ```
//!
//! If a + b > 1, the fold replaces the magnitudes (a, b) by (1 - b, 1 - a), which are smaller.
//! So two minima unfold a point.

use crate::registers::{Elementwise, Table};
use crate::triplets::layout::MAX_FIELDS;
use crate::triplets::scalar;
use crate::triplets::scalar::SMALLEST;
use crate::{Search, TripletLayout};

/// Largest number of positive centroids, and of radii.
const POINTS: usize = 64;

/// Implements `scalar::encode_triplets`.
#[inline(always)]
pub(crate) fn encode_triplets<T: Elementwise>(
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
    let encoder = Encoder::<T>::new(layout, search);
    let scales = T::splat(scale);
    for (x, fields) in x.chunks(3 * T::LANES).zip(fields.chunks_exact_mut(T::LANES)) {
        let mut filled = [0.0; 48];
        let [x, y, z] = T::triplets(if x.len() < 3 * T::LANES {
            filled[..x.len()].copy_from_slice(x);
            &filled
        } else {
            x
        });
        let t = [T::multiply(x, scales), T::multiply(y, scales), T::multiply(z, scales)];
        T::store_ints(fields, encoder.fields(search, &t));
    }
    scalar::finish_fields(layout, x, scale, &mut fields, stream);
}

/// The tables and decision points of a layout.
struct Encoder<'a, T: Elementwise> {
    /// Half the number of codes of ξ, or of η.
    half: usize,
    /// Positive centroids.
    upper: Table<'a, T>,
    lengths: Table<'a, T>,
    /// Positive decision points of ξ and η. `points` of them are set.
    directions: [f32; POINTS],
    points: usize,
    /// Decision points of the radius, one less than there are radii.
    radii: [f32; POINTS],
    radius_points: usize,
}

/// Codes of ξ or η, minus half their number, and what follows from them.
#[derive(Clone, Copy)]
struct Side<V> {
    code: V,
    rank: V,
    /// The centroid's magnitude, then 1 minus that.
    magnitude: V,
    one_less: V,
    /// The triplets' coordinate, times the sign of the centroid.
    t: V,
}

/// Writes the midpoints of neighbouring centroids.
#[inline(always)]
fn midpoints(centroids: &[f32], points: &mut [f32; POINTS]) {
    for (point, pair) in points.iter_mut().zip(centroids.windows(2)) {
        *point = (pair[0] + pair[1]) * 0.5;
    }
}

/// Negates `x` where the mask has ones.
#[inline(always)]
fn turn<T: Elementwise>(x: T::V, mask: T::V) -> T::V {
    T::xor(x, T::and(mask, T::splat_int(i32::MIN)))
}

impl<'a, T: Elementwise> Encoder<'a, T> {
    #[inline(always)]
    fn new(layout: &'a TripletLayout<'a>, search: Search) -> Self {
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
        let (upper, lengths) = (Table::new(upper), Table::new(layout.lengths));
        Self { half, upper, lengths, directions, points, radii, radius_points: layout.radii.len() - 1 }
    }

    /// Encodes a register of triplets to fields.
    #[inline(always)]
    fn fields(&self, search: Search, t: &[T::V; 3]) -> T::V {
        let (one, minus_one) = (T::splat_int(1), T::splat_int(-1));
        let half = self.half as i32;
        let (first, last) = (T::splat_int(-half), T::splat_int(half - 1));
        let [xi, eta] = octahedral_map::<T>(t);
        let negative = [is_negative::<T>(xi), is_negative::<T>(eta)];
        // For a negative coordinate, count the points below its magnitude, otherwise those up to
        // it.
        let xi = T::add_ints(T::magnitude(xi), negative[0]);
        let eta = T::add_ints(T::magnitude(eta), negative[1]);
        let (mut column, mut row) = (T::splat_int(0), T::splat_int(0));
        for point in &self.directions[..self.points] {
            let point = T::splat(*point);
            (column, row) = (T::count_at_least(column, xi, point), T::count_at_least(row, eta, point));
        }
        let codes = [T::xor(column, negative[0]), T::xor(row, negative[1])];
        let (codes, best) = match search {
            Search::Bracket => {
                let mut around = [codes; 2];
                for (around, (code, negative)) in around.iter_mut().zip(codes.into_iter().zip(negative)) {
                    // A negative coordinate is bracketed by its code here and the code above.
                    let below = T::add_ints(code, T::xor(negative, minus_one));
                    *around = [T::max_ints(below, first), T::min_ints(T::add_ints(below, one), last)];
                }
                self.best_direction(t, around)
            }
            Search::Neighbours => {
                let mut around = [[first; 3]; 2];
                for (around, code) in around.iter_mut().zip(codes) {
                    let (below, above) = (T::add_ints(code, minus_one), T::add_ints(code, one));
                    *around = [T::max_ints(below, first), code, T::min_ints(above, last)];
                }
                self.best_direction(t, around)
            }
            Search::Nearest | Search::All => {
                let [x, y, z] = *t;
                let xy = T::add(T::multiply(x, x), T::multiply(y, y));
                let squares = T::add(xy, T::multiply(z, z));
                let rows = T::multiply_ints(codes[1], T::splat_int(2 * half));
                (T::add_ints(codes[0], rows), T::sqrt(squares))
            }
        };
        let mut radius = T::splat_int(0);
        for point in &self.radii[..self.radius_points] {
            radius = T::count_at_least(radius, best, T::splat(*point));
        }
        let radius = T::multiply_ints(radius, T::splat_int(4 * half * half));
        T::add_ints(T::add_ints(codes, T::splat_int(half + 2 * half * half)), radius)
    }

    /// Returns the values of a code, minus half the number of codes.
    #[inline(always)]
    fn side(&self, code: T::V, t: T::V) -> Side<T::V> {
        let negative = T::signs(code);
        let rank = T::xor(code, negative);
        let magnitude = T::look_up(&self.upper, rank);
        let one_less = T::sub(T::splat(1.0), magnitude);
        Side { code, rank, magnitude, one_less, t: turn::<T>(t, negative) }
    }

    /// Returns the best direction's code, minus the code of two zeros, and its projection.
    ///
    /// Codes ascend, and the first of equals wins.
    #[inline(always)]
    fn best_direction<const N: usize>(&self, t: &[T::V; 3], [columns, rows]: [[T::V; N]; 2]) -> (T::V, T::V) {
        let half = self.half as i32;
        let mut sides = [self.side(columns[0], t[0]); N];
        for k in 1..N {
            sides[k] = self.side(columns[k], t[0]);
        }
        let (mut codes, mut best) = (T::splat_int(0), T::splat(f32::NEG_INFINITY));
        for code in rows {
            let mut row = self.side(code, t[1]);
            row.code = T::multiply_ints(row.code, T::splat_int(2 * half));
            row.rank = T::multiply_ints(row.rank, T::splat_int(half));
            for column in &sides {
                let length = T::look_up(&self.lengths, T::add_ints(row.rank, column.rank));
                let x = T::multiply(T::min(column.magnitude, row.one_less), length);
                let y = T::multiply(T::min(row.magnitude, column.one_less), length);
                let z = T::multiply(T::sub(column.one_less, row.magnitude), length);
                let xy = T::add(T::multiply(column.t, x), T::multiply(row.t, y));
                let projection = T::add(xy, T::multiply(t[2], z));
                codes = T::greater(projection, best, T::add_ints(row.code, column.code), codes);
                best = T::greater(projection, best, projection, best);
            }
        }
        (codes, best)
    }
}

/// Returns ones where a float is below 0.
#[inline(always)]
fn is_negative<T: Elementwise>(x: T::V) -> T::V {
    let zero = T::splat_int(0);
    T::greater(zero, x, T::splat_int(-1), zero)
}

/// Returns ξ and η of triplets.
#[inline(always)]
fn octahedral_map<T: Elementwise>(&[x, y, z]: &[T::V; 3]) -> [T::V; 2] {
    let (zero, one) = (T::splat_int(0), T::splat(1.0));
    let sum = T::add(T::add(T::magnitude(x), T::magnitude(y)), T::magnitude(z));
    let inverse = T::divide(one, T::greater(T::splat(SMALLEST), sum, one, sum));
    let (p, q) = (T::multiply(x, inverse), T::multiply(y, inverse));
    let folded_p = turn::<T>(T::sub(one, T::magnitude(q)), is_negative::<T>(p));
    let folded_q = turn::<T>(T::sub(one, T::magnitude(p)), is_negative::<T>(q));
    [T::greater(zero, z, folded_p, p), T::greater(zero, z, folded_q, q)]
}
