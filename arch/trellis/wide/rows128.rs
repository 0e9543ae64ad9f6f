//! Scores and sums of trellis codes for rows of 128 coordinates with codes of whole bits, and up to
//! 16 states (8 with codes of four bits). Rows of 64 coordinates share registers: two make a line. Four rows of 32 do, for scores.
//!
//! A register has the 16 bytes of the path plane. Each byte has the path bits of eight neighbouring
//! coordinates, and each of eight lookups takes one of them. A window is a shift and a mask away:
//!
//! ```text
//! path        p₇ p₆ p₅ p₄ p₃ p₂ p₁ p₀          the byte of coordinates 8k … 8k+7
//! inner       p₃ p₂ p₁ p₀ o₇ o₆ o₅ o₄          o: the byte before; the inner halves of the two bytes
//!
//! coordinate 5: bits 2 … 5 of `path`            window p₅p₄p₃p₂ of 4 bits
//! coordinate 1: bits 2 … 5 of `inner`           window p₁p₀o₇o₆
//! ```
//!
//! A code is a shift away too, after the bytes of its plane are distributed to as many registers as
//! eight codes take bytes. Window and code together are the index of a table. The query is put into
//! this order once a call, and sums stay in it until the last page.

mod sums;

use crate::codes::wide::score::{BLOCK, finish_block};
use crate::registers::Registers;
use crate::rows::each_page_mut_of;
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, Rows};

/// Coordinates of a row.
const DIM: usize = 128;
/// The coordinates of a row at which two rows make a line.
const HALF: usize = DIM / 2;
/// The coordinates of a row at which four rows make a line.
const QUARTER: usize = DIM / 4;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;
/// Coordinates of a byte.
const EACH: usize = 8;

/// A shuffle that moves bytes up by one, with a zero in front of each row: of one, of two, and of four.
static BEFORE: [[u8; 16]; 3] = [
    [255, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    [255, 0, 1, 2, 3, 4, 5, 6, 255, 8, 9, 10, 11, 12, 13, 14],
    [255, 0, 1, 2, 255, 4, 5, 6, 255, 8, 9, 10, 255, 12, 13, 14],
];

/// A shuffle that follows a path of four bytes by the first, second and third bytes of four threes.
static THREES: [u8; 16] = [0, 1, 2, 3, 4, 7, 10, 13, 5, 8, 11, 14, 6, 9, 12, 15];

/// The constants that find the centroids of a row. Codes have BITS bits, and windows WINDOW bits (4
/// or 5).
struct Rows128<L: Registers, const BITS: usize, const WINDOW: usize> {
    /// The centroid of `code << WINDOW | window`. A shorter history uses the upper bits of the
    /// windows.
    table: [L::V; 16],
}

/// The bytes of a row, distributed to registers.
struct Planes<L: Registers> {
    path: L::V,
    /// The inner halves of each byte of the path and the byte before it.
    inner: L::V,
    /// One register for each byte that eight codes take.
    codes: [L::V; 4],
}

/// Scores rows if there is a kernel for their shape. Returns whether there is.
#[inline(always)]
pub(crate) fn score<L: Registers>(
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) -> bool {
    if dim == HALF {
        match (book.levels(), book.states()) {
            (2, ..=8) => Rows128::<L, 1, 4>::new(book).score::<2>(pages, scale, queries, scores),
            (4, ..=8) => Rows128::<L, 2, 4>::new(book).score::<2>(pages, scale, queries, scores),
            (8, ..=8) => Rows128::<L, 3, 4>::new(book).score::<2>(pages, scale, queries, scores),
            _ => return false,
        }
        return true;
    }
    if dim == QUARTER {
        match (book.levels(), book.states()) {
            (2, ..=8) => Rows128::<L, 1, 4>::new(book).score::<4>(pages, scale, queries, scores),
            (8, ..=8) => Rows128::<L, 3, 4>::new(book).score::<4>(pages, scale, queries, scores),
            _ => return false,
        }
        return true;
    }
    if dim != DIM {
        return false;
    }
    match (book.levels(), book.states()) {
        (1, ..=8) => Rows128::<L, 0, 4>::new(book).score::<1>(pages, scale, queries, scores),
        (2, ..=8) => Rows128::<L, 1, 4>::new(book).score::<1>(pages, scale, queries, scores),
        (4, ..=8) => Rows128::<L, 2, 4>::new(book).score::<1>(pages, scale, queries, scores),
        (8, ..=8) => Rows128::<L, 3, 4>::new(book).score::<1>(pages, scale, queries, scores),
        (16, ..=8) => Rows128::<L, 4, 4>::new(book).score::<1>(pages, scale, queries, scores),
        (1, 16) => Rows128::<L, 0, 5>::new(book).score::<1>(pages, scale, queries, scores),
        (2, 16) => Rows128::<L, 1, 5>::new(book).score::<1>(pages, scale, queries, scores),
        (4, 16) => Rows128::<L, 2, 5>::new(book).score::<1>(pages, scale, queries, scores),
        (8, 16) => Rows128::<L, 3, 5>::new(book).score::<1>(pages, scale, queries, scores),
        _ => return false,
    }
    true
}

/// Adds weighted rows if there is a kernel for their shape. Returns whether there is.
#[inline(always)]
pub(crate) fn accumulate<L: Registers>(
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) -> bool {
    match (dim, book.levels(), book.states()) {
        (DIM, 2, ..=8) => Rows128::<L, 1, 4>::new(book).add_rows::<1>(pages, scale, weights, acc),
        (DIM, 4, ..=8) => Rows128::<L, 2, 4>::new(book).add_rows::<1>(pages, scale, weights, acc),
        (DIM, 8, ..=8) => Rows128::<L, 3, 4>::new(book).add_rows::<1>(pages, scale, weights, acc),
        (HALF, 2, ..=8) => Rows128::<L, 1, 4>::new(book).add_rows::<2>(pages, scale, weights, acc),
        (HALF, 4, ..=8) => Rows128::<L, 2, 4>::new(book).add_rows::<2>(pages, scale, weights, acc),
        (HALF, 8, ..=8) => Rows128::<L, 3, 4>::new(book).add_rows::<2>(pages, scale, weights, acc),
        _ => return false,
    }
    true
}

impl<L: Registers, const BITS: usize, const WINDOW: usize> Rows128<L, BITS, WINDOW> {
    /// Path bits of a window that belong to earlier coordinates.
    const HISTORY: usize = WINDOW - 1;

    /// Builds the table of a codebook.
    #[inline(always)]
    fn new(book: &TrellisCodebook) -> Self {
        let mut bytes = [[0; 16]; 16];
        let unused = Self::HISTORY - book.history() as usize;
        for (i, byte) in bytes.as_flattened_mut()[..1 << (BITS + WINDOW)].iter_mut().enumerate() {
            *byte = book.centroids()[i >> unused] as u8;
        }
        Self { table: bytes.map(|bytes| L::load(&bytes)) }
    }

    /// Scores all queries, four or one at a time.
    #[inline(always)]
    fn score<const ROWS: usize>(&self, pages: &[Rows], scale: f32, queries: &[IntQuery], scores: &mut [f32]) {
        let fours = queries.len() / 4 * 4;
        for first in (0..fours).step_by(4) {
            self.score_with::<ROWS, 4>(pages, scale, (queries, first), scores);
        }
        for first in fours..queries.len() {
            self.score_with::<ROWS, 1>(pages, scale, (queries, first), scores);
        }
    }

    /// Scores rows (ROWS make a line) with Q of all queries, from `from` on. They share the
    /// lookups.
    #[inline(always)]
    fn score_with<const ROWS: usize, const Q: usize>(
        &self,
        pages: &[Rows],
        scale: f32,
        (all, from): (&[IntQuery], usize),
        scores: &mut [f32],
    ) {
        let (mut values, mut factors) = ([[L::splat(0); EACH]; Q], [0.0; Q]);
        for ((values, factor), query) in values.iter_mut().zip(&mut factors).zip(&all[from..from + Q]) {
            *factor = query.scale * scale;
            // Row after row of the transposed bytes: gathering a register's bytes one by one would wait for each.
            let mut bytes = [[0; 16]; EACH];
            for (at, ints) in (0..16).zip(query.values.as_chunks::<EACH>().0.iter().cycle()) {
                for (bytes, int) in bytes.iter_mut().zip(ints) {
                    bytes[at] = *int as u8;
                }
            }
            for (value, bytes) in values.iter_mut().zip(&bytes) {
                *value = L::load(bytes);
            }
        }
        for (rows, scores) in each_page_mut_of(pages, all.len(), from..from + Q, scores) {
            let count = rows.count();
            for first in (0..count).step_by(BLOCK) {
                let ours = first..count.min(first + BLOCK);
                let mut block_sums = [[0; BLOCK]; Q];
                if ROWS == 1 {
                    for (r, row) in ours.clone().map(|r| rows.row(r)).enumerate() {
                        let sums = self.add_all::<1, Q>(&Self::planes(row), &values);
                        for (block_sums, sum) in block_sums.iter_mut().zip(sums) {
                            block_sums[r % BLOCK] = L::sum(sum);
                        }
                    }
                } else {
                    for r in ours.clone().step_by(4) {
                        let at = |i: usize| rows.row((r + i).min(count - 1));
                        if ROWS == 4 {
                            let planes = Self::planes_of_four([at(0), at(1), at(2), at(3)]);
                            let sums = self.add_all::<4, Q>(&planes, &values);
                            for (block_sums, sum) in block_sums.iter_mut().zip(sums) {
                                block_sums.as_chunks_mut().0[r % BLOCK / 4] = L::add_lanes(sum);
                            }
                            continue;
                        }
                        let a = self.add_all::<2, Q>(&Self::planes_of_two([at(0), at(1)]), &values);
                        let b = self.add_all::<2, Q>(&Self::planes_of_two([at(2), at(3)]), &values);
                        for (block_sums, (a, b)) in block_sums.iter_mut().zip(a.into_iter().zip(b)) {
                            block_sums.as_chunks_mut().0[r % BLOCK / 4] = L::sum_halves(a, b);
                        }
                    }
                }
                finish_block(&block_sums, L::read_scales(rows, first), count, factors, ours, scores);
            }
        }
    }

    /// Loads the planes of a row.
    #[inline(always)]
    fn planes(row: &[u8]) -> Planes<L> {
        let (path, rest) = row[2..].split_at(PATH);
        let path = path.first_chunk().map_or(L::splat(0), |bytes| L::load(bytes));
        let inner = Self::inner(path, &BEFORE[0]);
        let mut codes = [path; 4];
        match BITS {
            1 => codes[0] = rest.first_chunk().map_or(path, |bytes| L::load(bytes)),
            2 => codes[..2].copy_from_slice(&rest.first_chunk().map_or([path; 2], |bytes| L::deal_2(bytes))),
            3 => codes[..3].copy_from_slice(&rest.first_chunk().map_or([path; 3], |bytes| L::deal_3(bytes))),
            4 => codes = rest.first_chunk().map_or([path; 4], |bytes| L::deal_4(bytes)),
            _ => {}
        }
        Planes { path, inner, codes }
    }

    /// Loads the planes of two rows of half the width.
    #[inline(always)]
    fn planes_of_two([a, b]: [&[u8]; 2]) -> Planes<L> {
        let ((paths, a), (other_paths, b)) = (a[2..].split_at(PATH / 2), b[2..].split_at(PATH / 2));
        let path = L::load_halves(first(paths), first(other_paths));
        let mut codes = [path; 4];
        match BITS {
            1 => codes[0] = L::load_halves(first(a), first(b)),
            2 => codes[..2].copy_from_slice(&L::deal_halves_2(first(a), first(b))),
            _ => codes[..3].copy_from_slice(&L::deal_halves_3(first(a), first(b))),
        }
        Planes { path, inner: Self::inner(path, &BEFORE[1]), codes }
    }

    /// Loads the planes of four rows of a quarter of the width, with codes of one or of three bits.
    #[inline(always)]
    fn planes_of_four([a, b, c, d]: [&[u8]; 4]) -> Planes<L> {
        if BITS == 1 {
            // A row is a path and codes, four bytes each.
            let ab = L::load_halves(first(&a[2..]), first(&b[2..]));
            let cd = L::load_halves(first(&c[2..]), first(&d[2..]));
            let [path, codes] = L::unzip_floats(ab, cd);
            return Planes { path, inner: Self::inner(path, &BEFORE[2]), codes: [codes; 4] };
        }
        let threes = L::load(&THREES);
        let [a_even, a_odd] = L::unzip_floats(
            L::lookup(L::load(first(&a[2..])), threes),
            L::lookup(L::load(first(&b[2..])), threes),
        );
        let [c_even, c_odd] = L::unzip_floats(
            L::lookup(L::load(first(&c[2..])), threes),
            L::lookup(L::load(first(&d[2..])), threes),
        );
        let ([path, second], [one, third]) = (L::unzip_floats(a_even, c_even), L::unzip_floats(a_odd, c_odd));
        Planes { path, inner: Self::inner(path, &BEFORE[2]), codes: [one, second, third, third] }
    }

    /// Returns the inner halves of each byte of the path and the byte before it.
    #[inline(always)]
    fn inner(path: L::V, before: &[u8; 16]) -> L::V {
        let before = L::shift_bytes_right(L::lookup(path, L::load(before)), 4);
        L::or(L::multiply_words(L::and(path, L::splat(15)), L::splat_word(16)), before)
    }

    /// Adds the products of a line. If it has several rows, their products stay apart.
    #[inline(always)]
    fn add_all<const ROWS: usize, const Q: usize>(
        &self,
        planes: &Planes<L>,
        values: &[[L::V; EACH]; Q],
    ) -> [L::V; Q] {
        // Written out: each step has its own shifts, and a loop would not always be unrolled.
        let mut sums = [L::splat(0); Q];
        sums = self.add::<ROWS, Q>(0, planes, values, sums);
        sums = self.add::<ROWS, Q>(1, planes, values, sums);
        sums = self.add::<ROWS, Q>(2, planes, values, sums);
        sums = self.add::<ROWS, Q>(3, planes, values, sums);
        sums = self.add::<ROWS, Q>(4, planes, values, sums);
        sums = self.add::<ROWS, Q>(5, planes, values, sums);
        sums = self.add::<ROWS, Q>(6, planes, values, sums);
        self.add::<ROWS, Q>(7, planes, values, sums)
    }

    /// Adds the products of coordinate `i` of each byte.
    #[inline(always)]
    fn add<const ROWS: usize, const Q: usize>(
        &self,
        i: usize,
        planes: &Planes<L>,
        values: &[[L::V; EACH]; Q],
        mut sums: [L::V; Q],
    ) -> [L::V; Q] {
        let centroids = self.look_up(i, planes);
        for (sum, values) in sums.iter_mut().zip(values) {
            *sum = if ROWS == 1 || L::ROW_DOTS {
                L::dot_bytes(*sum, centroids, values[i])
            } else {
                L::add_ints(*sum, L::dot_quads(centroids, values[i]))
            };
        }
        sums
    }

    /// Looks up coordinate `i` of each byte.
    #[inline(always)]
    fn look_up(&self, i: usize, Planes { path, inner, codes }: &Planes<L>) -> L::V {
        let (from, down) =
            if i < Self::HISTORY { (*inner, 4 + i - Self::HISTORY) } else { (*path, i - Self::HISTORY) };
        let mut index = if down == 0 { from } else { L::shift_bytes_right(from, down as u32) };
        if BITS > 0 && L::INSERTS {
            return self.table_at(Self::insert_code(i, index, codes));
        }
        if BITS > 0 {
            let (byte, bit) = (BITS * i / 8, BITS * i % 8);
            let mut code = Self::move_code(codes[byte], bit as isize);
            if bit + BITS > 8 {
                // The rest of the code is in the next byte.
                let upper = Self::move_code(codes[(byte + 1) % 4], bit as isize - 8);
                code = L::select(L::splat((0xff << (WINDOW + 8 - bit)) as u8), upper, code);
            }
            index = L::select(L::splat((0xff << WINDOW) as u8), code, index);
        }
        if BITS + WINDOW < 8 {
            index = L::and(index, L::splat((1 << (BITS + WINDOW)) - 1));
        }
        self.table_at(index)
    }

    /// Looks up an index.
    #[inline(always)]
    fn table_at(&self, index: L::V) -> L::V {
        match BITS + WINDOW {
            4 => L::lookup_within::<1>(&self.table, index),
            5 => L::lookup_within::<2>(&self.table, index),
            6 => L::lookup_within::<4>(&self.table, index),
            7 => L::lookup_within::<8>(&self.table, index),
            _ => L::lookup_within::<16>(&self.table, index),
        }
    }

    /// Places the code of coordinate `i` above a window, for registers that insert.
    ///
    /// ```text
    /// bytes of codes    … c₂c₂c₁c₁c₀c₀       shifted and masked   0 0 0 0 0 0 c₁c₁
    /// window            . . . . w w w w      inserted             0 0 c₁c₁w w w w
    /// ```
    #[inline(always)]
    fn insert_code(i: usize, window: L::V, codes: &[L::V; 4]) -> L::V {
        let (byte, bit) = (BITS * i / 8, BITS * i % 8);
        let mut code = codes[byte];
        if bit > 0 {
            code = L::shift_bytes_right(code, bit as u32);
        }
        if bit + BITS > 8 {
            code = L::or(code, L::shift_bytes_left(codes[(byte + 1) % 4], (8 - bit) as u32));
        }
        if bit + BITS != 8 {
            code = L::and(code, L::splat((1 << BITS) - 1));
        }
        match WINDOW {
            4 => L::insert::<4>(window, code),
            _ => L::insert::<5>(window, code),
        }
    }

    /// Moves a bit to where codes begin in an index. Shifts of words move bits into the next byte,
    /// but only below it.
    #[inline(always)]
    fn move_code(codes: L::V, bit: isize) -> L::V {
        match WINDOW as isize - bit {
            0 => codes,
            up @ 1.. => L::multiply_words(codes, L::splat_word(1 << up)),
            down => L::shift_bytes_right(codes, -down as u32),
        }
    }
}

/// Returns the first bytes, which are there.
#[inline(always)]
fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().unwrap_or(&[0; N])
}
