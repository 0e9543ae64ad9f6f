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

use super::unpack::{Bytes, kind};
use crate::codes::layout::Codebook;
use crate::codes::scalar::{PAGE, finish_sums, weight_limit};
use crate::registers::Integers;
use crate::rows::{each_page_of, give_back, take_order};
use crate::{MAX_DIM, Rows};

/// All weights, for how many queries they are, and the first query to add.
pub(super) type Weights<'a> = (&'a [f32], usize, usize);

/// Bytes of a row that are added together.
const BYTES: usize = 16;
/// Rows of a group.
const GROUP: usize = 4;

/// Adds weighted rows if there is a kernel for their shape. Returns whether there is.
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
        1 => add_rows::<L, 1>(book, dim, pages, weights, acc),
        2 => add_rows::<L, 2>(book, dim, pages, weights, acc),
        4 => add_rows::<L, 4>(book, dim, pages, weights, acc),
        _ => return false,
    }
    true
}

/// Returns the signs of weights that are added in turns of their own.
#[inline(always)]
pub(crate) fn signs<L: Integers>(ints: &[i16]) -> &'static [i16] {
    // A fold, and no `any`, which compares one by one.
    if L::ROW_DOTS && ints.iter().fold(0, |all, int| all | int) < 0 { &[-1, 1] } else { &[1] }
}

/// Returns the magnitudes of the weights of a sign, and 0 for the others.
#[inline(always)]
pub(crate) fn part<L: Integers>(ints: [i16; PAGE], sign: i16) -> [i16; PAGE] {
    if L::ROW_DOTS { ints.map(|int| (sign * int).max(0)) } else { ints }
}

#[inline(always)]
fn add_rows<L: Integers, const KIND: u8>(
    book: &Codebook,
    dim: usize,
    pages: &[Rows],
    (weights, queries, first): Weights,
    acc: &mut [f32],
) {
    let bytes = Bytes::<L>::new(KIND, book.centroids, 128);
    let (mut products, mut ints) = ([0.0; PAGE], [0; PAGE]);
    let (mut sums, mut totals) = ([0; MAX_DIM], [0.0; MAX_DIM]);
    // For each sixteen bytes, table and half byte, the coordinates of the bytes. The last bytes may
    // have places behind the last coordinate.
    let (stride, tables) = (kind::stride(KIND), kind::tables(KIND));
    let width = book.packing.bytes(dim) * stride;
    let (sums, totals) = (&mut sums[..width], &mut totals[..width]);
    let mut order = [0; MAX_DIM];
    for (at, order) in order[..width].iter_mut().enumerate() {
        let (run, byte) = (at / 16, at % 16);
        let (start, table, half) = (run / stride * BYTES, run % stride / 2, run % 2);
        *order = ((start + byte) * stride + half * tables + table) as u16;
    }
    let order = &order[..width];
    for (q, acc) in (first..).zip(acc.chunks_exact_mut(dim)) {
        take_order(order, acc, totals);
        for (rows, weights) in each_page_of(pages, queries, q..q + 1, weights) {
            for (page, weights) in rows.pages(PAGE).zip(weights.chunks(PAGE)) {
                let limit = weight_limit(book.centroids.len());
                let unit = L::quantize_weights(&page, weights, limit, &mut products, &mut ints);
                let Some(unit) = unit else { continue };
                ints[weights.len()..].fill(0);
                sums.fill(0);
                for sign in signs::<L>(&ints) {
                    let ints = part::<L>(ints, *sign);
                    add_ints::<L, KIND>(&bytes, &page, i32::from(*sign), &ints, sums);
                }
                finish_sums(sums, unit * book.scale, totals);
            }
        }
        give_back(order, totals, acc);
    }
}

/// Adds a page with integer weights that are not negative, or subtracts it.
#[inline(always)]
fn add_ints<L: Integers, const KIND: u8>(
    bytes: &Bytes<L>,
    page: &Rows,
    sign: i32,
    ints: &[i16; PAGE],
    sums: &mut [i32],
) {
    let order = L::load(&L::WEIGHTS[0]);
    let mut weights = [L::splat(0); PAGE / GROUP];
    for (weights, ints) in weights.iter_mut().zip(ints.as_chunks::<GROUP>().0) {
        let mut words = [0; 8];
        words[..GROUP].copy_from_slice(ints);
        *weights = L::lookup(L::load_words(&words), order);
    }
    // The unsigned centroids add this.
    let bias: i32 = ints.iter().map(|int| 128 * i32::from(*int)).sum();
    let (count, tables) = (page.count(), kind::tables(KIND));
    let mut sums = sums.as_chunks_mut::<16>().0.iter_mut();
    for start in (0..page.len - 2).step_by(BYTES) {
        for table in 0..tables {
            let (mut lower, mut upper) = ([L::splat(0); 8], [L::splat(0); 8]);
            for (first, weights) in (0..count).step_by(GROUP).zip(&weights) {
                let woven = load_group::<L>(page, first, start);
                add_register::<L, 0>(bytes, table, woven, *weights, [&mut lower, &mut upper]);
                add_register::<L, 1>(bytes, table, woven, *weights, [&mut lower, &mut upper]);
                add_register::<L, 2>(bytes, table, woven, *weights, [&mut lower, &mut upper]);
                add_register::<L, 3>(bytes, table, woven, *weights, [&mut lower, &mut upper]);
            }
            for (totals, sums) in [lower, upper].into_iter().zip(&mut sums) {
                for (j, sums) in sums.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let (upper, lower) = (L::add_lanes(totals[j]), L::add_lanes(totals[4 + j]));
                    for ((upper, lower), sum) in upper.into_iter().zip(lower).zip(sums) {
                        *sum += sign * (256 * upper + lower - bias);
                    }
                }
            }
        }
    }
}

/// Loads bytes of four rows. The last row stands for those behind it, whose weights are 0.
#[inline(always)]
fn load_group<L: Integers>(page: &Rows, first: usize, start: usize) -> [L::V; 4] {
    let (count, stride) = (page.count(), page.stride);
    let steps = if first + GROUP <= count { [1, 2, 3] } else { [1, 2, 3].map(|i| i.min(count - 1 - first)) };
    contract!(first < count && start + 2 + BYTES <= page.len);
    let mut rows = [L::splat(0); 4];
    for (row, step) in rows.iter_mut().zip([0, steps[0], steps[1], steps[2]]) {
        // SAFETY: the row's number is below `count`, so its `len` bytes are inside `bytes`, and these are among them.
        *row = unsafe {
            let bytes = page.bytes.as_ptr().add((first + step) * stride + 2 + start);
            L::load_pointers([bytes, bytes])
        };
    }
    L::weave(rows)
}

/// Adds the lower and the upper halves of the bytes of register J.
#[inline(always)]
fn add_register<L: Integers, const J: usize>(
    bytes: &Bytes<L>,
    table: usize,
    woven: [L::V; 4],
    weights: L::V,
    [lower, upper]: [&mut [L::V; 8]; 2],
) {
    let low = bytes.lookup(table, L::and(woven[J], L::splat(15)));
    L::add_woven::<J>(lower, low, weights);
    let high = bytes.lookup(table, L::shift_bytes_right(woven[J], 4));
    L::add_woven::<J>(upper, high, weights);
}
