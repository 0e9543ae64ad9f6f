//! Scores for rows of 32 and of 64 coordinates, with codes of one, two or three bits and up to eight
//! states.
//!
//! A register has two, four or eight rows, so most of a query's sum is done when the rows of a block
//! have been added to it. For several queries, columns are separated instead: `unzip` takes as many
//! steps as a row has doublings of a dword. Each byte has four neighbouring coordinates, or two if
//! codes have three bits. There is one lookup for each of them, in the bits of a path byte and a code
//! byte:
//!
//! ```text
//! codes     row of 32    row of 64    path byte                      code byte
//! 1 bit     8 bytes      16 bytes     p₄ … p₋₃                       . c₃ c₂ c₁ c₀ . . .
//! 2 bits    12           24           p₃ … p₋₄, see `woven.rs`       c₃ c₃ c₂ c₂ c₁ c₁ c₀ c₀
//! 3 bits    16           32           … p₁ p₀ p₋₁ p₋₂ p₋₃            . c₁ c₁ c₁ c₀ c₀ c₀ .
//! ```
//!
//! `vpermb` brings the bytes of a plane to the quadwords that need them, and `vpmultishiftqb` takes
//! eight bits for each byte.

use super::BIAS;
use super::lanes::Places;
use super::lookup::{MEDIUM, SMALL};
use super::woven::{Fours, sixteens, table};
use crate::codes::avx512::codebook::kind::RAW as NATURAL;
use crate::codes::avx512::pairs::Query;
use crate::codes::avx512::score::{ByteQuery, score_blocks};
use crate::codes::avx512::sums::{Columns, finish};
use crate::codes::avx512::unpack::CHUNK;
use crate::registers::amx::Tiles;
use crate::registers::avx512::{add_four, load, load_array, places, scales, store_first, table, unzip};
use crate::rows::{Block, Blocks, ROWS, Window, each_page_mut};
use crate::trellis::layout::TrellisCodebook;
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Scores queries if there is a kernel for the shape. Returns whether there is.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn score(
    tiles: Option<Tiles>,
    book: &TrellisCodebook,
    dim: usize,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) -> bool {
    match (dim, book.levels()) {
        _ if book.history() > 3 => return false,
        (32, 2) => score_as::<32, 1, 4>(tiles, book, pages, scale, queries, scores),
        (32, 4) => score_as::<32, 2, 4>(tiles, book, pages, scale, queries, scores),
        (32, 8) => score_as::<32, 3, 2>(tiles, book, pages, scale, queries, scores),
        (64, 2) => score_as::<64, 1, 4>(tiles, book, pages, scale, queries, scores),
        (64, 4) => score_as::<64, 2, 4>(tiles, book, pages, scale, queries, scores),
        (64, 8) => score_as::<64, 3, 2>(tiles, book, pages, scale, queries, scores),
        _ => return false,
    }
    true
}

/// Scores rows of `DIM` coordinates with codes of `RAW` bits. Each byte has `EACH` coordinates.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_as<const DIM: usize, const RAW: usize, const EACH: usize>(
    tiles: Option<Tiles>,
    book: &TrellisCodebook,
    pages: &[Rows],
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let way = Way::<DIM, RAW, EACH>::new(book);
    if let [query] = queries {
        return way.score_one(pages, scale, query, scores);
    }
    let prepare = prepare(scale, const { &Way::<DIM, RAW, EACH>::ORDER });
    let look_up = |block: &Block, columns: &mut [MaybeUninit<Columns>]| {
        if let Some(columns) = columns.first_mut() {
            columns.write(way.columns(block));
        }
    };
    // SAFETY: rows are one chunk, whose columns are set.
    unsafe { score_blocks(tiles, DIM / 4, pages, queries, scores, &prepare, &look_up) }
}

/// Returns the function that brings queries into an order of columns.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn prepare(scale: f32, order: &Places) -> impl Fn(&IntQuery, &mut ByteQuery) {
    let order = load(order);
    move |query, bytes| {
        bytes.set(query, scale, NATURAL);
        bytes.values[0] = _mm512_permutexvar_epi8(order, bytes.values[0]);
    }
}

/// The constants that find the centroids of the rows in a register.
struct Way<const DIM: usize, const RAW: usize, const EACH: usize> {
    /// Codes of two bits.
    fours: Fours,
    /// Others.
    tables: [__m512i; 2],
    path_bytes: __m512i,
    path_shifts: __m512i,
    code_bytes: __m512i,
    code_shifts: __m512i,
}

/// The codes and windows of indices, as code << 4 | window. With one bit, an index has five bits of
/// path and then codes of two coordinates; the table ignores the path bit and the code of the later
/// one.
static INDICES: [Places; 3] =
    [places!(i => (i >> 5 & 1) << 4 | i & 15), places!(i => i), places!(i => 64 + i)];

impl<const DIM: usize, const RAW: usize, const EACH: usize> Way<DIM, RAW, EACH> {
    /// Bytes of a row in a register.
    const BYTES: usize = DIM / EACH;
    /// Rows in a register.
    const ROWS: usize = 64 / Self::BYTES;
    /// Bytes of a row's path plane.
    const PATH: usize = DIM / 8;
    /// Coordinates of a quadword.
    const QUAD: usize = 8 * EACH;

    /// For each lookup, the coordinate of each position.
    const COORDINATES: [Places; EACH] = table!(EACH; i => places!(place => place % Self::BYTES * EACH + i));

    /// The coordinate of each byte in the columns of a row: lookup after lookup. Behind the last one is a zero.
    const ORDER: Places = places!(place => match place / Self::BYTES {
        i if i < EACH => place % Self::BYTES * EACH + i,
        _ => CHUNK - 1,
    });

    /// The bytes for each quadword, from the one before its path bits or codes on. Loaded rows take
    /// as many bytes as in a register.
    const fn bytes(start: usize, each: usize) -> Places {
        places!(i => {
            let (row, quad, byte) = (i / Self::BYTES, i % Self::BYTES / 8, i % 8);
            let at = start + quad * each + byte;
            let at = if at == 0 { 63 } else { at - 1 };
            let at = if at < Self::BYTES { at } else { Self::BYTES - 1 };
            row * Self::BYTES + at
        })
    }

    const PATH_BYTES: Places = Self::bytes(0, Self::QUAD / 8);
    const CODE_BYTES: Places = Self::bytes(Self::PATH, Self::QUAD / 8 * RAW);

    /// The bits of bytes in their quadword, in which path bits and codes begin at bit 8.
    const PATH_SHIFTS: Places = places!(i => 8 + i % 8 * EACH - if RAW == 2 { 4 } else { 3 });
    const CODE_SHIFTS: Places = places!(i => match (DIM, RAW) {
        (32, 1) => 32 + i % 8 * EACH - 3,
        (_, 1) => 8 + i % 8 * EACH - 3,
        _ => 8 + i % 8 * EACH * RAW - 1,
    });

    /// Prepares a codebook.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(book: &TrellisCodebook) -> Self {
        let zero = _mm512_setzero_si512();
        let tables = match RAW {
            1 => [table(book, SMALL, BIAS, &INDICES[0]), zero],
            2 => [zero; 2],
            _ => [table(book, MEDIUM, BIAS, &INDICES[1]), table(book, MEDIUM, BIAS, &INDICES[2])],
        };
        Self {
            fours: Fours::new(book, BIAS),
            tables,
            path_bytes: load(const { &Self::PATH_BYTES }),
            path_shifts: load(const { &Self::PATH_SHIFTS }),
            code_bytes: load(const { &Self::CODE_BYTES }),
            code_shifts: load(const { &Self::CODE_SHIFTS }),
        }
    }

    /// Scores pages with one query.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn score_one(&self, pages: &[Rows], scale: f32, query: &IntQuery, scores: &mut [f32]) {
        let query = Query::<EACH, 1>::new(query, scale, DIM, const { &Self::COORDINATES });
        for (rows, scores) in each_page_mut(pages, 1, scores) {
            let mut padded = None;
            let blocks = Blocks::new(rows, &mut padded);
            for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
                blocks.prefetch(i);
                let block = blocks.get(i);
                let mut sums = [_mm512_setzero_si512(); 8];
                for (i, sum) in sums[..const { ROWS / Self::ROWS }].iter_mut().enumerate() {
                    let [path, codes] = self.planes(&block, i * Self::ROWS);
                    for (centroids, values) in self.centroids(path, codes).iter().zip(query.values[0]) {
                        *sum = _mm512_dpbusd_epi32(*sum, *centroids, values);
                    }
                }
                let sums = Self::add_rows(&sums);
                store_first(finish(sums, query.excess, query.factor, scales(&block)), scores);
            }
        }
    }

    /// Returns the columns of a block. Those behind the end of the rows are zeros.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn columns(&self, block: &Block) -> Columns {
        let mut found = [[_mm512_setzero_si512(); 8]; EACH];
        for i in 0..const { ROWS / Self::ROWS } {
            let [path, codes] = self.planes(block, i * Self::ROWS);
            for (found, centroids) in found.iter_mut().zip(self.centroids(path, codes)) {
                found[i] = centroids;
            }
        }
        let mut columns = [_mm512_setzero_si512(); ROWS];
        for (found, columns) in found.iter().zip(columns.chunks_exact_mut(const { Self::BYTES / 4 })) {
            columns.copy_from_slice(&Self::separate(*found)[..Self::BYTES / 4]);
        }
        columns
    }

    /// Separates the dwords of rows. Register d of the result has dword d of each row.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn separate(mut registers: [__m512i; 8]) -> [__m512i; 8] {
        let count = const { Self::BYTES / 4 };
        // The bits of a dword's place are those of its register and its lane. Each step turns them by one.
        for _ in 0..const { (Self::BYTES / 4).ilog2() } {
            let from = registers;
            for i in 0..count / 2 {
                [registers[i], registers[count / 2 + i]] = unzip(from[2 * i], from[2 * i + 1]);
            }
        }
        registers
    }

    /// Returns the path bytes and the code bytes of the rows from `r` on.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn planes(&self, block: &Block, r: usize) -> [__m512i; 2] {
        const FRONT: usize = 2;
        let window = block.window(FRONT, FRONT + Self::BYTES);
        // Rows in planes without gaps fill a register, except with two bits.
        let rows = match window.together(r) {
            Some(rows) if RAW != 2 => load(rows),
            _ => match Self::BYTES {
                8 => eights(&window, r),
                16 => sixteens(&window, r),
                _ => thirty_twos(&window, r),
            },
        };
        let path = if Self::BYTES == 8 {
            // The first quadword is the only one. The shift brings zeros in front of its path bits.
            _mm512_slli_epi64::<8>(rows)
        } else {
            let front = if Self::BYTES == 16 { 0x0001_0001_0001_0001 } else { 0x0000_0001_0000_0001 };
            _mm512_maskz_permutexvar_epi8(!front, self.path_bytes, rows)
        };
        let path = _mm512_multishift_epi64_epi8(self.path_shifts, path);
        let start = FRONT + Self::PATH;
        let codes = match (Self::BYTES, RAW) {
            (8, 2) => eights(&block.window(start, start + 8), r),
            (_, 2) => sixteens(&block.window(start, start + 16), r),
            (8, _) => _mm512_multishift_epi64_epi8(self.code_shifts, rows),
            _ => {
                let codes = _mm512_permutexvar_epi8(self.code_bytes, rows);
                _mm512_multishift_epi64_epi8(self.code_shifts, codes)
            }
        };
        [path, codes]
    }

    /// Returns the centroids of the coordinates of each byte.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroids(&self, path: __m512i, codes: __m512i) -> [__m512i; EACH] {
        let join = |window, path, codes| _mm512_ternarylogic_epi64::<0xca>(window, path, codes);
        let mut found = [_mm512_setzero_si512(); EACH];
        match RAW {
            1 => {
                // Shifted down by one bit, an index is that of the next coordinate.
                let five = _mm512_set1_epi8(0x1f);
                let first = join(five, path, _mm512_slli_epi16::<2>(codes));
                let third = join(five, _mm512_srli_epi16::<2>(path), codes);
                let index = [first, _mm512_srli_epi16::<1>(first), third, _mm512_srli_epi16::<1>(third)];
                for (found, index) in found.iter_mut().zip(index) {
                    *found = _mm512_permutexvar_epi8(index, self.tables[0]);
                }
            }
            2 => found.copy_from_slice(&self.fours.centroids(path, codes)[..EACH]),
            _ => {
                let four = _mm512_set1_epi8(0xf);
                let first = join(four, path, _mm512_slli_epi16::<3>(codes));
                let second = join(four, _mm512_srli_epi16::<1>(path), codes);
                for (found, index) in found.iter_mut().zip([first, second]) {
                    *found = _mm512_permutex2var_epi8(self.tables[0], index, self.tables[1]);
                }
            }
        }
        found
    }

    /// Adds up the dwords of each row. Lane r of the result is the sum of row r.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn add_rows(sums: &[__m512i; 8]) -> __m512i {
        let [a, b, c, d, e, f, g, h] = *sums;
        match Self::ROWS {
            // Lane l of 128 bits gets rows 2l and 2l + 1 of both registers.
            8 => {
                let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
                let even = _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(a, b));
                let odd = _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(a, b));
                let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
                _mm512_permutexvar_epi64(order, _mm512_add_epi32(even, odd))
            }
            // Lane l gets row l of each of the four registers.
            4 => {
                let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                _mm512_permutexvar_epi32(order, add_four([a, b, c, d]))
            }
            // Two lanes of each register belong to one row.
            _ => {
                let (low, high) = (add_four([a, b, c, d]), add_four([e, f, g, h]));
                let even = _mm512_shuffle_i32x4::<0x88>(low, high);
                let odd = _mm512_shuffle_i32x4::<0xdd>(low, high);
                let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
                _mm512_permutexvar_epi32(order, _mm512_add_epi32(even, odd))
            }
        }
    }
}

/// Loads eight bytes of each of the eight rows from `r` on.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn eights(window: &Window, r: usize) -> __m512i {
    let mut rows = _mm512_set1_epi64(window.quad(r) as i64);
    for i in 1..8 {
        rows = _mm512_mask_set1_epi64(rows, 1 << i, window.quad(r + i) as i64);
    }
    rows
}

/// Loads 32 bytes of each of the two rows from `r` on.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn thirty_twos(window: &Window, r: usize) -> __m512i {
    let (a, b) = (load_array::<32>(window.first(r)), load_array::<32>(window.first(r + 1)));
    _mm512_inserti64x4::<1>(a, _mm512_castsi512_si256(b))
}
