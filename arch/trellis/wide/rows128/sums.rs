//! Weighted sums of rows.
//!
//! Eight coordinates of 16 bytes have more sums than there are registers. So the planes of some
//! lines are brought together in memory once, and passes over them look up one or two coordinates
//! of each byte:
//!
//! ```text
//! planes of a line     p₀ p₁ p₂ … p₁₅                     four lines a, b, c, d are a group
//! woven, for `udot`    a₀ b₀ c₀ d₀ a₁ b₁ c₁ d₁ …          sum of byte 0: Σ centroid of a₀ · weight of a …
//! ```
//!
//! Dot products take unsigned bytes: centroids plus 128, and the halves of weights, which are
//! seldom negative. If some are, their absolute values are subtracted in a turn of their own.

use super::{DIM, EACH, Planes, Rows128};
use crate::Rows;
use crate::codes::scalar::{PAGE, weight_limit};
use crate::codes::wide::woven::{self, TOGETHER};
use crate::registers::Registers;
use core::ops::Range;

/// Lines whose planes are in memory.
const RUN: usize = 64;
/// Lines of a group.
const GROUP: usize = 4;

/// The planes of a group: the path, its inner halves, and codes.
type Group<V> = [[V; GROUP]; 5];
/// Groups of a run.
type Groups<V> = [Group<V>; RUN / GROUP];
/// For each coordinate of a byte, the sums of 16 bytes.
type Sums<V> = [[V; 8]; EACH];

impl<L: Registers, const BITS: usize, const WINDOW: usize> Rows128<L, BITS, WINDOW> {
    /// Adds weighted rows (ROWS make a line) to the sums of all queries.
    #[inline(always)]
    pub(super) fn add_rows<const ROWS: usize>(
        mut self,
        pages: &[Rows],
        scale: f32,
        weights: &[f32],
        acc: &mut [f32],
    ) {
        if L::ROW_DOTS {
            for centroids in &mut self.table {
                *centroids = L::xor(*centroids, L::splat(128));
            }
        }
        let dim = DIM / ROWS;
        let shape = woven::Shape {
            dim,
            stride: EACH,
            lanes: 16 / ROWS,
            width: dim,
            scale,
            limit: weight_limit(1 << BITS),
        };
        let mut lines = Lines::<L, BITS, WINDOW, ROWS> {
            codes: self,
            groups: [[[L::splat(0); GROUP]; 5]; RUN / GROUP],
            weights: [[L::splat(0); RUN / GROUP]; TOGETHER],
        };
        woven::add_rows::<L, DIM>(&mut lines, &shape, pages, (weights, acc.len() / dim, 0), acc);
    }
}

/// Lines of ROWS rows, and memory for a run of them.
struct Lines<L: Registers, const BITS: usize, const WINDOW: usize, const ROWS: usize> {
    codes: Rows128<L, BITS, WINDOW>,
    groups: Groups<L::V>,
    /// For each query, the weights of the groups.
    weights: [[L::V; RUN / GROUP]; TOGETHER],
}

impl<L: Registers, const BITS: usize, const WINDOW: usize, const ROWS: usize> woven::Sums<DIM>
    for Lines<L, BITS, WINDOW, ROWS>
{
    #[inline(always)]
    fn add_ints<const Q: usize>(
        &mut self,
        page: &Rows,
        sign: i32,
        ints: &[[i16; PAGE]; Q],
        sums: &mut [[i32; DIM]; Q],
    ) {
        let Self { codes, groups, weights } = self;
        let count = page.count();
        let order = L::load(&L::WEIGHTS[ROWS - 1]);
        let mut of_bytes: [Sums<L::V>; Q] = [[[L::splat(0); 8]; EACH]; Q];
        for first in (0..count).step_by(RUN * ROWS) {
            let groups = &mut groups[..(count - first).min(RUN * ROWS).div_ceil(GROUP * ROWS)];
            for (g, group) in groups.iter_mut().enumerate() {
                let first = first + GROUP * ROWS * g;
                *group = Rows128::<L, BITS, WINDOW>::group::<ROWS>(page, first);
                for (weights, ints) in weights.iter_mut().zip(ints) {
                    let mut words = [0; 8];
                    words[..GROUP * ROWS].copy_from_slice(&ints[first..][..GROUP * ROWS]);
                    weights[g] = L::lookup(L::load_words(&words), order);
                }
            }
            codes.pass(0, groups, weights, &mut of_bytes);
            codes.pass(2, groups, weights, &mut of_bytes);
            codes.pass(4, groups, weights, &mut of_bytes);
            codes.pass(6, groups, weights, &mut of_bytes);
        }
        for ((sums, of_bytes), ints) in sums.iter_mut().zip(&of_bytes).zip(ints) {
            // The unsigned centroids add this.
            let bias: i32 = if L::ROW_DOTS { ints.iter().map(|int| 128 * i32::from(*int)).sum() } else { 0 };
            for sum in &mut sums[..DIM / ROWS] {
                *sum -= sign * bias;
            }
            for (sums, of_bytes) in sums.chunks_exact_mut(16 / ROWS).zip(of_bytes) {
                for j in 0..4 {
                    let (upper, lower) = (L::add_lanes(of_bytes[j]), L::add_lanes(of_bytes[4 + j]));
                    for (i, (upper, lower)) in upper.into_iter().zip(lower).enumerate() {
                        let added = if L::ROW_DOTS { 256 * upper + lower } else { upper };
                        sums[(4 * j + i) % (16 / ROWS)] += sign * added;
                    }
                }
            }
        }
    }
}

impl<L: Registers, const BITS: usize, const WINDOW: usize> Rows128<L, BITS, WINDOW> {
    /// Loads the planes of four lines. Behind the last row it is repeated; its weight there is 0.
    #[inline(always)]
    fn group<const ROWS: usize>(page: &Rows, first: usize) -> Group<L::V> {
        let last = page.count() - 1;
        let mut lines = [[L::splat(0); 5]; GROUP];
        for (i, line) in lines.iter_mut().enumerate() {
            let at = first + ROWS * i;
            let Planes { path, inner, codes } = if ROWS == 1 {
                Self::planes(page.row(at.min(last)))
            } else {
                Self::planes_of_two([page.row(at.min(last)), page.row((at + 1).min(last))])
            };
            *line = [path, inner, codes[0], codes[1], codes[2]];
        }
        let mut group = [[L::splat(0); GROUP]; 5];
        let [a, b, c, d] = lines;
        for (plane, woven) in group[..2 + BITS].iter_mut().enumerate() {
            *woven = L::weave([a[plane], b[plane], c[plane], d[plane]]);
        }
        group
    }

    /// Adds coordinates `k` and `k + 1` of each byte.
    #[inline(always)]
    fn pass<const Q: usize>(
        &self,
        k: usize,
        groups: &[Group<L::V>],
        weights: &[[L::V; RUN / GROUP]; TOGETHER],
        sums: &mut [Sums<L::V>; Q],
    ) {
        if let Some(sums) = sums.first_chunk_mut() {
            // Written out: in a loop, each step would choose its planes and shifts.
            self.share(k, groups, weights, sums);
            self.share(k + 1, groups, weights, sums);
        } else if L::ROW_DOTS {
            self.add_one(k, groups, &weights[0], &mut sums[0]);
            self.add_one(k + 1, groups, &weights[0], &mut sums[0]);
        } else {
            self.add_two(k, groups, &weights[0], &mut sums[0]);
        }
    }

    // Sums of a query are variables of their own below. In an array of queries they would stay in memory.

    /// Adds coordinate `k` to the sums of a query.
    #[inline(always)]
    fn add_one(&self, k: usize, groups: &[Group<L::V>], weights: &[L::V; RUN / GROUP], all: &mut Sums<L::V>) {
        let mut sums = all[k];
        for (group, weights) in groups.iter().zip(weights) {
            L::add_woven::<0>(&mut sums, self.look_up(k, &Self::planes_of(group, 0)), *weights);
            L::add_woven::<1>(&mut sums, self.look_up(k, &Self::planes_of(group, 1)), *weights);
            L::add_woven::<2>(&mut sums, self.look_up(k, &Self::planes_of(group, 2)), *weights);
            L::add_woven::<3>(&mut sums, self.look_up(k, &Self::planes_of(group, 3)), *weights);
        }
        all[k] = sums;
    }

    /// Adds coordinates `k` and `k + 1` to the sums of a query.
    #[inline(always)]
    fn add_two(&self, k: usize, groups: &[Group<L::V>], weights: &[L::V; RUN / GROUP], all: &mut Sums<L::V>) {
        let (mut a, mut b) = (all[k], all[k + 1]);
        for (group, weights) in groups.iter().zip(weights) {
            self.add_register::<0>(k, group, *weights, &mut a, &mut b);
            self.add_register::<1>(k, group, *weights, &mut a, &mut b);
            self.add_register::<2>(k, group, *weights, &mut a, &mut b);
            self.add_register::<3>(k, group, *weights, &mut a, &mut b);
        }
        (all[k], all[k + 1]) = (a, b);
    }

    /// Adds two coordinates of register J.
    #[inline(always)]
    fn add_register<const J: usize>(
        &self,
        k: usize,
        group: &Group<L::V>,
        weights: L::V,
        a: &mut [L::V; 8],
        b: &mut [L::V; 8],
    ) {
        let planes = Self::planes_of(group, J);
        L::add_woven::<J>(a, self.look_up(k, &planes), weights);
        L::add_woven::<J>(b, self.look_up(k + 1, &planes), weights);
    }

    /// Adds coordinate `k` to the sums of four queries.
    #[inline(always)]
    fn share(
        &self,
        k: usize,
        groups: &[Group<L::V>],
        weights: &[[L::V; RUN / GROUP]; TOGETHER],
        all: &mut [Sums<L::V>; TOGETHER],
    ) {
        if L::ROW_DOTS {
            // Sums of two registers at a time: those of all four would not stay in registers.
            self.share_some(k, 0..2, groups, weights, all);
            self.share_some(k, 2..4, groups, weights, all);
        } else {
            self.share_some(k, 0..4, groups, weights, all);
        }
    }

    /// Adds coordinate `k` of the first two registers, the last two or all.
    #[inline(always)]
    fn share_some(
        &self,
        k: usize,
        registers: Range<usize>,
        groups: &[Group<L::V>],
        weights: &[[L::V; RUN / GROUP]; TOGETHER],
        all: &mut [Sums<L::V>; TOGETHER],
    ) {
        let (mut a, mut b, mut c, mut d) = (all[0][k], all[1][k], all[2][k], all[3][k]);
        for (g, group) in groups.iter().enumerate() {
            let weights = [weights[0][g], weights[1][g], weights[2][g], weights[3][g]];
            if registers.start == 0 {
                self.add_to_four::<0>(k, group, weights, [&mut a, &mut b, &mut c, &mut d]);
                self.add_to_four::<1>(k, group, weights, [&mut a, &mut b, &mut c, &mut d]);
            }
            if registers.end == 4 {
                self.add_to_four::<2>(k, group, weights, [&mut a, &mut b, &mut c, &mut d]);
                self.add_to_four::<3>(k, group, weights, [&mut a, &mut b, &mut c, &mut d]);
            }
        }
        (all[0][k], all[1][k], all[2][k], all[3][k]) = (a, b, c, d);
    }

    /// Adds coordinate `k` of register J.
    #[inline(always)]
    fn add_to_four<const J: usize>(
        &self,
        k: usize,
        group: &Group<L::V>,
        weights: [L::V; TOGETHER],
        [a, b, c, d]: [&mut [L::V; 8]; TOGETHER],
    ) {
        let found = self.look_up(k, &Self::planes_of(group, J));
        L::add_woven::<J>(a, found, weights[0]);
        L::add_woven::<J>(b, found, weights[1]);
        L::add_woven::<J>(c, found, weights[2]);
        L::add_woven::<J>(d, found, weights[3]);
    }

    /// Returns the planes of a register of a group.
    #[inline(always)]
    fn planes_of(group: &Group<L::V>, register: usize) -> Planes<L> {
        let [path, inner, a, b, c] = group.each_ref().map(|plane| plane[register]);
        Planes { path, inner, codes: [a, b, c, c] }
    }
}
