//! Scores of trellis codes for rows of 128 coordinates with codes of whole bits, and up to 16
//! states (8 with codes of four bits).
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
//! this order once a page.

use crate::codes::wide::score::{BLOCK, finish_block};
use crate::registers::Registers;
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, Rows};

/// Coordinates of a row.
const DIM: usize = 128;
/// Bytes of a row's path plane.
const PATH: usize = DIM / 8;
/// Coordinates of a byte.
const EACH: usize = 8;

/// A shuffle that moves bytes up by one, with a zero in front.
static BEFORE: [u8; 16] = [255, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

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
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) -> bool {
    if rows.dim != DIM {
        return false;
    }
    match (book.levels(), book.states()) {
        (1, ..=8) => Rows128::<L, 0, 4>::new(book).score(rows, scale, queries, scores),
        (2, ..=8) => Rows128::<L, 1, 4>::new(book).score(rows, scale, queries, scores),
        (4, ..=8) => Rows128::<L, 2, 4>::new(book).score(rows, scale, queries, scores),
        (8, ..=8) => Rows128::<L, 3, 4>::new(book).score(rows, scale, queries, scores),
        (16, ..=8) => Rows128::<L, 4, 4>::new(book).score(rows, scale, queries, scores),
        (1, 16) => Rows128::<L, 0, 5>::new(book).score(rows, scale, queries, scores),
        (2, 16) => Rows128::<L, 1, 5>::new(book).score(rows, scale, queries, scores),
        (4, 16) => Rows128::<L, 2, 5>::new(book).score(rows, scale, queries, scores),
        (8, 16) => Rows128::<L, 3, 5>::new(book).score(rows, scale, queries, scores),
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

    /// Scores all queries, four, two or one at a time.
    #[inline(always)]
    fn score(&self, rows: &Rows, scale: f32, queries: &[IntQuery], scores: &mut [f32]) {
        let count = rows.count();
        let (fours, ones) = queries.as_chunks::<4>();
        let (four_scores, one_scores) = scores.split_at_mut(4 * fours.len() * count);
        for (queries, scores) in fours.iter().zip(four_scores.chunks_exact_mut(4 * count)) {
            self.score_with(rows, scale, queries, scores);
        }
        for (query, scores) in ones.iter().zip(one_scores.chunks_exact_mut(count)) {
            self.score_with(rows, scale, &[*query], scores);
        }
    }

    /// Scores rows. Q queries share the lookups.
    #[inline(always)]
    fn score_with<const Q: usize>(
        &self,
        rows: &Rows,
        scale: f32,
        queries: &[IntQuery; Q],
        scores: &mut [f32],
    ) {
        let mut values = [[L::splat(0); EACH]; Q];
        for (values, query) in values.iter_mut().zip(queries) {
            for (i, value) in values.iter_mut().enumerate() {
                let mut bytes = [0; 16];
                for (byte, ints) in bytes.iter_mut().zip(query.values.as_chunks::<EACH>().0) {
                    *byte = ints[i] as u8;
                }
                *value = L::load(&bytes);
            }
        }
        let factors = queries.each_ref().map(|query| query.scale * scale);
        let count = rows.count();
        for first in (0..count).step_by(BLOCK) {
            let ours = first..count.min(first + BLOCK);
            let mut block_sums = [[0; BLOCK]; Q];
            for (r, row) in ours.clone().map(|r| rows.row(r)).enumerate() {
                let planes = Self::planes(row);
                // Written out: each step has its own shifts, and a loop would not always be
                // unrolled.
                let mut sums = [L::splat(0); Q];
                sums = self.add(0, &planes, &values, sums);
                sums = self.add(1, &planes, &values, sums);
                sums = self.add(2, &planes, &values, sums);
                sums = self.add(3, &planes, &values, sums);
                sums = self.add(4, &planes, &values, sums);
                sums = self.add(5, &planes, &values, sums);
                sums = self.add(6, &planes, &values, sums);
                sums = self.add(7, &planes, &values, sums);
                for (block_sums, sum) in block_sums.iter_mut().zip(sums) {
                    block_sums[r % BLOCK] = L::sum(sum);
                }
            }
            finish_block(&block_sums, L::read_scales(rows, first), count, factors, ours, scores);
        }
    }

    /// Loads the planes of a row.
    #[inline(always)]
    fn planes(row: &[u8]) -> Planes<L> {
        let (path, rest) = row[2..].split_at(PATH);
        let path = path.first_chunk().map_or(L::splat(0), |bytes| L::load(bytes));
        let before = L::shift_bytes_right(L::lookup(path, L::load(&BEFORE)), 4);
        let inner = L::or(L::multiply_words(L::and(path, L::splat(15)), L::splat_word(16)), before);
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

    /// Adds the products of coordinate `i` of each byte.
    #[inline(always)]
    fn add<const Q: usize>(
        &self,
        i: usize,
        planes: &Planes<L>,
        values: &[[L::V; EACH]; Q],
        mut sums: [L::V; Q],
    ) -> [L::V; Q] {
        let centroids = self.look_up(i, planes);
        for (sum, values) in sums.iter_mut().zip(values) {
            *sum = L::dot_bytes(*sum, centroids, values[i]);
        }
        sums
    }

    /// Looks up coordinate `i` of each byte.
    #[inline(always)]
    fn look_up(&self, i: usize, Planes { path, inner, codes }: &Planes<L>) -> L::V {
        let (from, down) =
            if i < Self::HISTORY { (*inner, 4 + i - Self::HISTORY) } else { (*path, i - Self::HISTORY) };
        let mut index = if down == 0 { from } else { L::shift_bytes_right(from, down as u32) };
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
        match BITS + WINDOW {
            4 => L::lookup_within::<1>(&self.table, index),
            5 => L::lookup_within::<2>(&self.table, index),
            6 => L::lookup_within::<4>(&self.table, index),
            7 => L::lookup_within::<8>(&self.table, index),
            _ => L::lookup_within::<16>(&self.table, index),
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
