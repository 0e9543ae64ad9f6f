//! Norms of chunks and the best products, one chunk a lane.

use crate::quaternions::layout::{INDEX_CELLS, INDEX_GRID, INDEX_PADDING, QuaternionSet, RadiusSteps};
use crate::quaternions::scalar::{best_product, radius_code};
use crate::registers::Elementwise;

/// Lanes of the widest register.
const LANES: usize = 16;

/// Loads chunks, one component a register. Missing chunks are zeros.
#[inline(always)]
fn load_chunks<T: Elementwise>(chunks: &[[f32; 4]]) -> [T::V; 4] {
    let padded;
    let chunks = if chunks.len() < T::LANES {
        let mut copy = [[0.0; 4]; LANES];
        copy[..chunks.len()].copy_from_slice(chunks);
        padded = copy;
        &padded[..T::LANES]
    } else {
        &chunks[..T::LANES]
    };
    let mut quads = [&chunks[0]; LANES];
    for lane in 1..T::LANES {
        quads[lane] = &chunks[lane];
    }
    T::quads(&quads)
}

/// Implements `scalar::chunk_norms`.
#[inline(always)]
pub(crate) fn chunk_norms<T: Elementwise>(x: &[f32], norms: &mut [f32]) {
    for (chunks, norms) in x.as_chunks().0.chunks(T::LANES).zip(norms.chunks_mut(T::LANES)) {
        let [w, x, y, z] = load_chunks::<T>(chunks);
        let mut found = [0.0; LANES];
        T::store(&mut found, T::sqrt(T::add(sum::<T>(w, w, x, x), sum::<T>(y, y, z, z))));
        norms.copy_from_slice(&found[..norms.len()]);
    }
}

/// Implements `scalar::encode_quaternions`.
#[inline(always)]
pub(crate) fn encode_quaternions<T: Elementwise>(
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
    let chunks = x.as_chunks::<4>().0.chunks(T::LANES).zip(radii.chunks(T::LANES));
    for ((chunks, radii), codes) in chunks.zip(codes.chunks_mut(T::LANES)) {
        best_products::<T>(set, chunks, radii, codes);
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

/// Finds the best codes of a register of chunks. 0 where the radius is 0.
#[inline(always)]
fn best_products<T: Elementwise>(set: &QuaternionSet, chunks: &[[f32; 4]], radii: &[u8], codes: &mut [u16]) {
    let u = load_chunks::<T>(chunks);
    let mut padded = [0; LANES];
    padded[..radii.len()].copy_from_slice(radii);
    let radii = padded;
    // The starts of the lists of candidates, and the number of candidates of each lane.
    let (mut starts, mut lengths) = ([0; LANES], [0; LANES]);
    let mut lists = &ALL[..];
    match &set.index {
        Some(index) => {
            T::store_ints(&mut starts, cells_of::<T>(&u));
            let (cells, members) = index.tables();
            for lane in 0..T::LANES {
                let cell = cells[starts[lane] as usize % INDEX_CELLS];
                (starts[lane], lengths[lane]) = (cell >> 8, cell & 0xff);
            }
            lists = members;
        }
        None => lengths = [set.members.len() as u32; LANES],
    }
    let mut longest = 0;
    let mut counts = [0.0; LANES];
    for lane in 0..T::LANES {
        let length = if radii[lane] > 0 { lengths[lane] } else { 0 };
        longest = length.max(longest);
        counts[lane] = length as f32;
    }
    let counts = T::load(&counts);
    const { assert!(INDEX_PADDING > u8::MAX as usize) };
    let candidate = |lane: usize, k: usize| {
        let at = starts[lane] as usize + k;
        debug_assert!(at < lists.len());
        // SAFETY: `QuaternionIndex::new` checked that `INDEX_PADDING` bytes follow every list, and
        // `k` is below the length of one, which is below that. Without an index, `k` is below the
        // number of members, at most 255.
        unsafe { *lists.get_unchecked(at) }
    };
    let member = |s: u8| {
        debug_assert!(usize::from(s) < set.members.len());
        // SAFETY: `QuaternionIndex::new` compared all bytes with the number of members, which is
        // the set's. Without an index, candidates are below it.
        unsafe { set.members.get_unchecked(usize::from(s)) }
    };
    let mut quads = [&set.members[0]; LANES];
    let mut best = T::splat(-1.0);
    let (none, one) = (T::splat_int(0), T::splat_int(1));
    let (mut chosen, mut ties) = (none, none);
    for k in 0..longest {
        for lane in 0..T::LANES {
            quads[lane] = member(candidate(lane, k as usize));
        }
        let q = T::quads(&quads);
        // A list that has ended offers less than any member.
        let product = nearest::<T>(&times_conjugates::<T>(&u, &q));
        let product = T::greater(counts, T::splat(k as f32), product, T::splat(-2.0));
        // A better product discards earlier ties.
        ties = T::greater(product, best, none, T::equal(product, best, one, ties));
        chosen = T::greater(product, best, T::splat_int(k as i32), chosen);
        best = T::greater(product, best, product, best);
    }
    let (mut numbers, mut found, mut tied) = ([0; LANES], [0; LANES], [0; LANES]);
    T::store_ints(&mut numbers, chosen);
    T::store_ints(&mut tied, ties);
    for lane in 0..T::LANES {
        let number = candidate(lane, numbers[lane] as usize);
        (numbers[lane], quads[lane]) = (number.into(), member(number));
    }
    let q = T::quads(&quads);
    let units = nearest_units::<T>(&times_conjugates::<T>(&u, &q));
    let all =
        T::add_ints(T::multiply_ints(units, T::splat_int(set.members.len() as i32)), T::load_ints(&numbers));
    T::store_ints(&mut found, all);
    let (mut all, mut ties) = ([0; LANES], 0);
    for lane in 0..T::LANES {
        all[lane] = if radii[lane] > 0 { found[lane] as u16 } else { 0 };
        ties |= if radii[lane] > 0 { tied[lane] } else { 0 };
    }
    codes.copy_from_slice(&all[..codes.len()]);
    if ties > 0 {
        for (lane, code) in codes.iter_mut().enumerate() {
            if radii[lane] > 0 && tied[lane] > 0 {
                *code = best_product(set, &chunks[lane]);
            }
        }
    }
}

/// Returns the components' magnitudes, the largest of them, and half their sum.
#[inline(always)]
fn magnitudes<T: Elementwise>(y: &[T::V; 4]) -> ([T::V; 4], T::V, T::V) {
    let [w, x, y, z] = [T::magnitude(y[0]), T::magnitude(y[1]), T::magnitude(y[2]), T::magnitude(y[3])];
    let axis = T::max(T::max(w, x), T::max(y, z));
    let sum = T::add(T::add(w, x), T::add(y, z));
    ([w, x, y, z], axis, T::multiply(sum, T::splat(0.5)))
}

/// Returns the largest inner products with a unit: max(‖y‖∞, ‖y‖₁/2).
#[inline(always)]
pub(crate) fn nearest<T: Elementwise>(y: &[T::V; 4]) -> T::V {
    let (_, axis, half) = magnitudes::<T>(y);
    T::max(axis, half)
}

/// Returns which units are nearest, see `scalar::nearest_unit`.
#[inline(always)]
pub(crate) fn nearest_units<T: Elementwise>(y: &[T::V; 4]) -> T::V {
    let (magnitudes, axis, half) = magnitudes::<T>(y);
    let zero = T::splat_int(0);
    let (mut axis_unit, mut half_unit) = (zero, T::splat_int(8));
    for c in (0..4).rev() {
        let at = T::splat_int(2 * c as i32);
        half_unit = T::add_ints(half_unit, T::greater(zero, y[c], T::splat_int(1 << c), zero));
        let unit = T::greater(zero, y[c], T::add_ints(at, T::splat_int(1)), at);
        axis_unit = T::equal(magnitudes[c], axis, unit, axis_unit);
    }
    T::greater(half, axis, half_unit, axis_unit)
}

/// Returns cells of the index, in the low twelve bits, see `scalar::cell_of`. The index's margin
/// covers any rounding.
#[inline(always)]
pub(crate) fn cells_of<T: Elementwise>(u: &[T::V; 4]) -> T::V {
    let (one, zero, grid) = (T::splat(1.0), T::splat(0.0), INDEX_GRID as f32);
    let (magnitudes, axis, half) = magnitudes::<T>(u);
    // The nearest unit: the first largest component is 1, or all components are ½. Signs are u's.
    let (mut unit, mut free) = ([one; 4], one);
    for c in 0..4 {
        let size = T::equal(magnitudes[c], axis, free, zero);
        free = T::equal(magnitudes[c], axis, zero, free);
        let size = T::greater(half, axis, T::splat(0.5), size);
        unit[c] = T::or(size, T::and(u[c], T::splat_int(i32::MIN)));
    }
    let ([a, b, c, d], [w, x, y, z]) = (unit, *u);
    let real = T::add(sum::<T>(a, w, b, x), sum::<T>(c, y, d, z));
    let scale = T::divide(T::splat(grid / 2.0), real);
    let x_step = step::<T>(T::add(difference::<T>(a, x, b, w), difference::<T>(d, y, c, z)), scale);
    let y_step = step::<T>(T::add(difference::<T>(a, y, c, w), difference::<T>(b, z, d, x)), scale);
    let z_step = step::<T>(T::add(difference::<T>(a, z, d, w), difference::<T>(c, x, b, y)), scale);
    let grid = T::splat(grid);
    let cell = T::add(T::multiply(T::add(T::multiply(x_step, grid), y_step), grid), z_step);
    T::and(T::add(cell, T::splat(INTEGER)), T::splat_int(INDEX_CELLS as i32 - 1))
}

/// Added to a float in its range, it leaves the nearest integer in the lowest bits.
const INTEGER: f32 = (1u32 << 23) as f32;

/// Returns the step of the grid on one of its axes.
#[inline(always)]
fn step<T: Elementwise>(x: T::V, scale: T::V) -> T::V {
    let grid = INDEX_GRID as f32;
    let at = T::add(T::multiply(x, scale), T::splat(grid / 2.0 - 0.5));
    let at = T::min(T::max(at, T::splat(0.0)), T::splat(grid - 1.0));
    T::sub(T::add(at, T::splat(INTEGER)), T::splat(INTEGER))
}

/// Returns a·b + c·d.
#[inline(always)]
fn sum<T: Elementwise>(a: T::V, b: T::V, c: T::V, d: T::V) -> T::V {
    T::add(T::multiply(a, b), T::multiply(c, d))
}

/// Returns a·b - c·d.
#[inline(always)]
fn difference<T: Elementwise>(a: T::V, b: T::V, c: T::V, d: T::V) -> T::V {
    T::sub(T::multiply(a, b), T::multiply(c, d))
}

/// Returns u·q*.
#[inline(always)]
pub(crate) fn times_conjugates<T: Elementwise>(
    &[w, x, y, z]: &[T::V; 4],
    &[a, b, c, d]: &[T::V; 4],
) -> [T::V; 4] {
    [
        T::add(sum::<T>(w, a, x, b), sum::<T>(y, c, z, d)),
        T::add(difference::<T>(x, a, w, b), difference::<T>(z, c, y, d)),
        T::add(difference::<T>(y, a, w, c), difference::<T>(x, d, z, b)),
        T::add(difference::<T>(z, a, w, d), difference::<T>(y, b, x, c)),
    ]
}
