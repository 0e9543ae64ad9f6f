//! Weighted sums with dot products over rows: of bytes of four rows at a time.
//!
//! ```text
//! rows a, b, c, d      a₀ a₁ a₂ …    b₀ b₁ b₂ …    c₀ c₁ c₂ …    d₀ d₁ d₂ …
//! woven                a₀ b₀ c₀ d₀ │ a₁ b₁ c₁ d₁ │ …      ·   wa wb wc wd │ wa wb wc wd │ …
//! ```
//!
//! Both are unsigned. Centroids are 128 larger, and a weight is two bytes with a product each.
//! Weights are seldom negative. If some are, their absolute values are subtracted in a turn of
//! their own.
//!
//! [`add_rows`] does what does not depend on the layout of rows. Trellis codes use it too.

use super::unpack::{Bytes, kind};
use crate::codes::layout::Codebook;
use crate::codes::scalar::{PAGE, finish_sums, weight_limit};
use crate::registers::Integers;
use crate::rows::{each_page_of, give_strided, take_strided};
use crate::{MAX_DIM, Rows};
use core::ops::Range;

/// All weights, for how many queries they are, and the first query to add.
pub(crate) type Weights<'a> = (&'a [f32], usize, usize);

/// Bytes of a row that are added together.
const BYTES: usize = 16;
/// Rows of a group.
const GROUP: usize = 4;
/// Queries that share the lookups, if there are several.
pub(crate) const TOGETHER: usize = 4;

/// Adds rows of a layout to up to N sums a query.
pub(crate) trait Sums<const N: usize> {
    /// Adds a page with integer weights, or subtracts it. For dot products, they are not negative.
    fn add_ints<const Q: usize>(
        &mut self,
        page: &Rows,
        sign: i32,
        ints: &[[i16; PAGE]; Q],
        sums: &mut [[i32; N]; Q],
    );
}

/// The numbers that all rows of a layout share.
pub(crate) struct Shape {
    /// Coordinates of a row.
    pub(crate) dim: usize,
    /// A lookup takes every `stride`-th of `stride` · `lanes` coordinates.
    pub(crate) stride: usize,
    pub(crate) lanes: usize,
    /// Sums of a row.
    pub(crate) width: usize,
    pub(crate) scale: f32,
    /// The largest integer weight.
    pub(crate) limit: i16,
}

/// Adds weighted rows for the queries from `first` on, four or one at a time.
#[inline(always)]
pub(crate) fn add_rows<L: Integers, const N: usize>(
    layout: &mut impl Sums<N>,
    shape: &Shape,
    pages: &[Rows],
    (weights, queries, first): Weights,
    acc: &mut [f32],
) {
    for (i, acc) in acc.chunks_mut(TOGETHER * shape.dim).enumerate() {
        let start = first + i * TOGETHER;
        if start + 1 == queries {
            add_pages::<L, 1, N>(layout, shape, pages, (weights, queries, start..queries), acc);
        } else {
            let some = start..queries.min(start + TOGETHER);
            add_pages::<L, TOGETHER, N>(layout, shape, pages, (weights, queries, some), acc);
        }
    }
}

/// Adds pages to the sums of some of the queries, up to Q. Sums of pages are in the order of the lookups until the last
/// page.
#[inline(always)]
fn add_pages<L: Integers, const Q: usize, const N: usize>(
    layout: &mut impl Sums<N>,
    shape: &Shape,
    pages: &[Rows],
    (weights, queries, some): (&[f32], usize, Range<usize>),
    acc: &mut [f32],
) {
    let (mut ints, mut products) = ([[0; PAGE]; Q], [0.0; PAGE]);
    let (mut sums, mut totals) = ([[0; N]; Q], [[0.0; N]; Q]);
    for (totals, acc) in totals.iter_mut().zip(acc.chunks_exact(shape.dim)) {
        take_strided(shape.stride, shape.lanes, acc, &mut totals[..shape.width]);
    }
    for (rows, weights) in each_page_of(pages, queries, some, weights) {
        let count = rows.count();
        for (p, page) in rows.pages(PAGE).enumerate() {
            let mut units = [None; Q];
            for ((ints, unit), weights) in ints.iter_mut().zip(&mut units).zip(weights.chunks_exact(count)) {
                let weights = &weights[p * PAGE..][..page.count()];
                *unit = L::quantize_weights(&page, weights, shape.limit, &mut products, ints);
                ints[weights.len()..].fill(0);
            }
            if units.iter().all(Option::is_none) {
                continue;
            }
            for sums in &mut sums {
                sums[..shape.width].fill(0);
            }
            for sign in signs::<L>(ints.as_flattened()) {
                let ints = ints.map(|ints| part::<L>(ints, *sign));
                layout.add_ints(&page, i32::from(*sign), &ints, &mut sums);
            }
            for ((totals, sums), unit) in totals.iter_mut().zip(&sums).zip(units) {
                if let Some(unit) = unit {
                    finish_sums(&sums[..shape.width], unit * shape.scale, totals);
                }
            }
        }
    }
    for (totals, acc) in totals.iter().zip(acc.chunks_exact_mut(shape.dim)) {
        give_strided(shape.stride, shape.lanes, &totals[..shape.width], acc);
    }
}

/// Returns the signs of weights that are added in turns of their own.
#[inline(always)]
fn signs<L: Integers>(ints: &[i16]) -> &'static [i16] {
    // A fold, because `any` compares one by one.
    if L::ROW_DOTS && ints.iter().fold(0, |all, int| all | int) < 0 { &[-1, 1] } else { &[1] }
}

/// Returns the magnitudes of the weights of a sign, and 0 for the others.
#[inline(always)]
fn part<L: Integers>(ints: [i16; PAGE], sign: i16) -> [i16; PAGE] {
    if L::ROW_DOTS { ints.map(|int| (sign * int).max(0)) } else { ints }
}

/// Adds weighted rows of codes if there is a kernel for their shape. Returns whether there is.
#[inline(always)]
pub(super) fn accumulate<L: Integers>(
    book: &Codebook,
    dim: usize,
    pages: &[Rows],
    weights: Weights,
    acc: &mut [f32],
) -> bool {
    let Codebook { packing, centroids, .. } = *book;
    let whole = packing.bytes(dim).is_multiple_of(BYTES);
    if !L::ROW_DOTS || !whole || packing.radix() != 1 || centroids.len() > 16 {
        return false;
    }
    match packing.raw_bits() {
        1 => add_codes::<L, 1>(book, dim, pages, weights, acc),
        2 => add_codes::<L, 2>(book, dim, pages, weights, acc),
        4 => add_codes::<L, 4>(book, dim, pages, weights, acc),
        _ => return false,
    }
    true
}

#[inline(always)]
fn add_codes<L: Integers, const KIND: u8>(
    book: &Codebook,
    dim: usize,
    pages: &[Rows],
    weights: Weights,
    acc: &mut [f32],
) {
    let stride = kind::stride(KIND);
    let shape = Shape {
        dim,
        stride,
        lanes: BYTES,
        // The last bytes may have places behind the last coordinate.
        width: book.packing.bytes(dim) * stride,
        scale: book.scale,
        limit: weight_limit(book.centroids.len()),
    };
    let mut codes = Codes::<L, KIND> {
        bytes: Bytes::new(KIND, book.centroids, 128),
        weights: [[L::splat(0); PAGE / GROUP]; TOGETHER],
    };
    add_rows::<L, MAX_DIM>(&mut codes, &shape, pages, weights, acc);
}

struct Codes<L: Integers, const KIND: u8> {
    bytes: Bytes<L>,
    /// For each query, the weights of the groups.
    weights: [[L::V; PAGE / GROUP]; TOGETHER],
}

impl<L: Integers, const KIND: u8> Sums<MAX_DIM> for Codes<L, KIND> {
    #[inline(always)]
    fn add_ints<const Q: usize>(
        &mut self,
        page: &Rows,
        sign: i32,
        ints: &[[i16; PAGE]; Q],
        sums: &mut [[i32; MAX_DIM]; Q],
    ) {
        let (order, groups) = (L::load(&L::WEIGHTS[0]), page.count().div_ceil(GROUP));
        for (weights, ints) in self.weights.iter_mut().zip(ints) {
            for (weights, ints) in weights[..groups].iter_mut().zip(ints.as_chunks::<GROUP>().0) {
                let mut words = [0; 8];
                words[..GROUP].copy_from_slice(ints);
                *weights = L::lookup(L::load_words(&words), order);
            }
        }
        // The unsigned centroids add this.
        let bias = ints.map(|ints| ints.iter().map(|int| 128 * i32::from(*int)).sum::<i32>());
        let tables = kind::tables(KIND);
        for start in (0..page.len - 2).step_by(BYTES) {
            for table in 0..tables {
                // For each query, the sums of the lower and of the upper halves of bytes.
                let mut all = [[[L::splat(0); 8]; 2]; Q];
                if Q == 1 {
                    self.add::<Q>(page, start, table, 0..4, &mut all);
                } else {
                    // Sums of a register at a time: those of all four would not stay in registers.
                    self.add::<Q>(page, start, table, 0..1, &mut all);
                    self.add::<Q>(page, start, table, 1..2, &mut all);
                    self.add::<Q>(page, start, table, 2..3, &mut all);
                    self.add::<Q>(page, start, table, 3..4, &mut all);
                }
                for ((sums, all), bias) in sums.iter_mut().zip(&all).zip(bias) {
                    // The lower half of a byte has its first coordinates.
                    let sums = sums[start * 2 * tables..].as_chunks_mut::<16>().0;
                    for (sums, half) in sums.iter_mut().skip(table).step_by(tables).zip(all) {
                        for (j, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                            let (upper, lower) = (L::add_lanes(half[j]), L::add_lanes(half[4 + j]));
                            for ((upper, lower), sum) in upper.into_iter().zip(lower).zip(sums) {
                                *sum += sign * (256 * upper + lower - bias);
                            }
                        }
                    }
                }
            }
        }
    }
}

impl<L: Integers, const KIND: u8> Codes<L, KIND> {
    /// Adds some registers of the woven bytes from `start` on.
    #[inline(always)]
    fn add<const Q: usize>(
        &self,
        page: &Rows,
        start: usize,
        table: usize,
        registers: Range<usize>,
        all: &mut [[[L::V; 8]; 2]; Q],
    ) {
        let (count, stride) = (page.count(), page.stride);
        contract!(start + 2 + BYTES <= page.len);
        let mut sums = *all;
        for (g, first) in (0..count).step_by(GROUP).enumerate() {
            let mut steps = [1, 2, 3].map(|i| i * stride);
            if first + GROUP > count {
                steps = last_steps(count - first, stride);
            }
            let mut rows = [L::splat(0); GROUP];
            for (row, step) in rows.iter_mut().zip([0, steps[0], steps[1], steps[2]]) {
                // SAFETY: the row is below `count`, so its `len` bytes are inside `bytes`. These are among them.
                *row = unsafe {
                    let bytes = page.bytes.as_ptr().add(first * stride + step + 2 + start);
                    L::load_pointers([bytes, bytes])
                };
            }
            let woven = L::weave(rows);
            let weights = self.weights.each_ref().map(|weights| weights[g]);
            self.add_register::<0, Q>(&registers, table, woven, weights, &mut sums);
            self.add_register::<1, Q>(&registers, table, woven, weights, &mut sums);
            self.add_register::<2, Q>(&registers, table, woven, weights, &mut sums);
            self.add_register::<3, Q>(&registers, table, woven, weights, &mut sums);
        }
        *all = sums;
    }

    /// Adds the lower and the upper halves of the bytes of register J, if it is one of `registers`.
    #[inline(always)]
    fn add_register<const J: usize, const Q: usize>(
        &self,
        registers: &Range<usize>,
        table: usize,
        woven: [L::V; 4],
        weights: [L::V; TOGETHER],
        all: &mut [[[L::V; 8]; 2]; Q],
    ) {
        if !registers.contains(&J) {
            return;
        }
        let low = self.bytes.lookup(table, L::and(woven[J], L::splat(15)));
        let high = self.bytes.lookup(table, L::shift_bytes_right(woven[J], 4));
        for ([lower, upper], weights) in all.iter_mut().zip(weights) {
            L::add_woven::<J>(lower, low, weights);
            L::add_woven::<J>(upper, high, weights);
        }
    }
}

/// Returns the distances of a group's last rows from its first. The last of `left` rows stands for those behind it,
/// whose weights are 0.
#[cold]
fn last_steps(left: usize, stride: usize) -> [usize; 3] {
    [1, 2, 3].map(|i: usize| i.min(left - 1) * stride)
}
