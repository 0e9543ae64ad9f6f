//! Finds the centroids of rows, 64 coordinates at a time.

use super::lanes::{GROUPS, NEIGHBOUR_SHIFTS, NEIGHBOURS, PATH_SHIFTS, RAW_SHIFTS, THREES, tables};
use crate::IntQuery;
use crate::codes::avx2::many::Buffer;
use crate::codes::avx512::codebook::kind::RAW as NATURAL;
use crate::codes::avx512::score::ByteQuery;
use crate::codes::avx512::sums::Columns;
use crate::codes::avx512::unpack::{CHUNK, Chunk, MAX_CHUNKS, Masked, Place, Unpack};
use crate::registers::avx512::{load, load_array, load_codes, transpose};
use crate::rows::{Block, ROWS};
use crate::trellis::layout::{MAX_LEVELS, MAX_STATES, TrellisCodebook};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Centroids of the largest codebook.
const MAX_CENTROIDS: usize = 2 * MAX_STATES * MAX_LEVELS;

/// The lookup path. The first three take tables of 1, 2 or 4 registers, plain bits, and widths that
/// 64 divides. `GENERAL` takes everything else: base-3 digits, other widths, larger tables.
pub(super) const SMALL: usize = 1;
pub(super) const MEDIUM: usize = 2;
pub(super) const WIDE: usize = 4;
pub(super) const GENERAL: usize = 0;

/// The form of codes in the general path: raw bits or nothing, digits, or both.
pub(super) const POWERS: usize = 0;
pub(super) const TERNARY: usize = 1;
pub(super) const MIXED: usize = 2;

/// Returns which order of `lanes.rs` a kind and form have. The general path takes lanes as they come,
/// which is order 0. The others have an order for each number of raw bits.
pub(super) const fn order(kind: usize, form: usize) -> usize {
    if kind == GENERAL { 0 } else { form }
}

/// The constants that find the centroids of a row.
pub(super) struct Lookup<'a> {
    pub(super) kind: usize,
    /// With `GENERAL`: [`POWERS`], [`TERNARY`] or [`MIXED`]. Otherwise: raw bits of a code.
    pub(super) form: usize,
    history: u32,
    pub(super) chunks: usize,
    /// Columns of four coordinates.
    pub(super) columns: usize,
    /// The end of the path plane.
    path_end: usize,
    /// For codes that are not extracted by bits alone.
    unpack: &'a Parts,
    /// The first registers of the centroids, see [`tables`].
    table: [__m512i; WIDE],
    /// All registers of the centroids, an even number.
    large: &'a [__m512i],
    path_shifts: __m512i,
    raw_shifts: __m512i,
    window_bits: __m512i,
}

/// Memory for the centroids of the largest codebook.
pub(super) type Large = Buffer<__m512i, { MAX_CENTROIDS / CHUNK }>;

/// The means to find codes that are not plain bits.
pub(super) type Parts = Option<(Unpack, [Chunk; MAX_CHUNKS])>;

/// Calls a method for the kind of lookup and the raw bits.
macro_rules! for_kind {
    ($lookup:expr, $function:ident($($argument:expr),*)) => {{
        use $crate::trellis::avx512::lookup::*;
        match ($lookup.kind, $lookup.form) {
            (SMALL, 0) => $function::<SMALL, 0>($lookup, $($argument),*),
            (SMALL, 1) => $function::<SMALL, 1>($lookup, $($argument),*),
            (SMALL, 2) => $function::<SMALL, 2>($lookup, $($argument),*),
            (SMALL, _) => $function::<SMALL, 3>($lookup, $($argument),*),
            (MEDIUM, 0) => $function::<MEDIUM, 0>($lookup, $($argument),*),
            (MEDIUM, 1) => $function::<MEDIUM, 1>($lookup, $($argument),*),
            (MEDIUM, 2) => $function::<MEDIUM, 2>($lookup, $($argument),*),
            (MEDIUM, 3) => $function::<MEDIUM, 3>($lookup, $($argument),*),
            (MEDIUM, _) => $function::<MEDIUM, 4>($lookup, $($argument),*),
            (WIDE, 1) => $function::<WIDE, 1>($lookup, $($argument),*),
            (WIDE, 2) => $function::<WIDE, 2>($lookup, $($argument),*),
            (WIDE, 3) => $function::<WIDE, 3>($lookup, $($argument),*),
            (WIDE, _) => $function::<WIDE, 4>($lookup, $($argument),*),
            (_, POWERS) => $function::<GENERAL, POWERS>($lookup, $($argument),*),
            (_, TERNARY) => $function::<GENERAL, TERNARY>($lookup, $($argument),*),
            _ => $function::<GENERAL, MIXED>($lookup, $($argument),*),
        }
    }};
}
pub(super) use for_kind;

/// Looks up indices of 6, 7 or 8 bits in a table of `kind` registers.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn find(kind: usize, table: &[__m512i], index: __m512i) -> __m512i {
    if kind == SMALL {
        return _mm512_permutexvar_epi8(index, table[0]);
    }
    let low = _mm512_permutex2var_epi8(table[0], index, table[1]);
    if kind == MEDIUM {
        return low;
    }
    let high = _mm512_permutex2var_epi8(table[2], index, table[3]);
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high)
}

impl<'a> Lookup<'a> {
    /// Prepares a codebook and a width. Centroids are xored with `flip`. The memory is for rare codebooks:
    /// inside the value, it would take longer to move than a page's rows to score.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn new(
        book: &TrellisCodebook,
        dim: usize,
        flip: i8,
        memory: &'a mut Large,
        found: &'a mut Parts,
    ) -> Self {
        let (bits, radix) = book.packing().map_or((0, 1), |p| (p.raw_bits() as usize, p.radix()));
        let path_end = 2 + TrellisCodebook::path_bytes(dim);
        let kind = match book.centroids().len() {
            _ if radix != 1 || !dim.is_multiple_of(CHUNK) => GENERAL,
            ..=64 => SMALL,
            65..=128 => MEDIUM,
            129..=256 => WIDE,
            _ => GENERAL,
        };
        let form = match (kind, radix, bits) {
            (GENERAL, 1, _) => POWERS,
            (GENERAL, _, 0) => TERNARY,
            (GENERAL, _, _) => MIXED,
            _ => bits,
        };
        let chunks = dim.div_ceil(CHUNK);
        if let (Some(packing), GENERAL) = (book.packing(), kind) {
            let unpack = Unpack::new(packing, dim, path_end);
            let mut parts = [unpack.chunk(0); MAX_CHUNKS];
            for (i, part) in parts[..chunks].iter_mut().enumerate().skip(1) {
                *part = unpack.chunk(i);
            }
            *found = Some((unpack, parts));
        }
        let mut table = [_mm512_setzero_si512(); WIDE];
        let mut large: &[_] = &[];
        if kind == GENERAL {
            let pairs = book.centroids().len().div_ceil(2 * CHUNK);
            let all = memory.first(2 * pairs, _mm512_setzero_si512());
            tables(book, flip, all);
            large = all;
        } else {
            tables(book, flip, &mut table);
        }
        let above = _mm512_set1_epi8(book.history() as i8 + 1);
        let path_shifts = if kind == GENERAL { &NEIGHBOUR_SHIFTS } else { &PATH_SHIFTS[form] };
        Self {
            kind,
            form,
            history: book.history(),
            chunks,
            columns: dim.div_ceil(4),
            path_end,
            unpack: found,
            table,
            large,
            path_shifts: _mm512_sub_epi8(load(path_shifts), _mm512_set1_epi8(book.history() as i8)),
            raw_shifts: _mm512_sub_epi8(load(&RAW_SHIFTS[order(kind, form)]), above),
            window_bits: _mm512_set1_epi8((book.windows() - 1) as i8),
        }
    }

    /// Returns the centroids from 64·chunk on of four rows from `first` on, in the order of the
    /// lanes. Behind the end of the rows they are unspecified.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn centroids<const KIND: usize, const RAW: usize>(
        &self,
        block: &Block,
        chunk: usize,
        first: usize,
    ) -> [__m512i; 4] {
        if KIND == GENERAL {
            return self.centroids_large::<RAW>(block, chunk, first);
        }
        let mut out = [_mm512_setzero_si512(); 4];
        let start = 2 + 8 * chunk;
        let path = block.window(start, start + 8);
        let before = block.window(start - 1, start + 7);
        let raw_start = self.path_end + 8 * RAW * chunk;
        let raw = block.window(raw_start, raw_start + 8 * RAW);
        for (i, out) in out.iter_mut().enumerate() {
            let r = first + i;
            let quads = _mm512_set1_epi64(path.quad(r) as i64);
            let quads = if chunk == 0 {
                _mm512_mask_slli_epi64::<8>(quads, 1, quads)
            } else {
                _mm512_mask_set1_epi64(quads, 1, before.quad(r) as i64)
            };
            let windows = _mm512_multishift_epi64_epi8(self.path_shifts, quads);
            let codes = match RAW {
                0 => windows,
                1 => _mm512_set1_epi64(raw.quad(r) as i64),
                2 => _mm512_broadcast_i32x4(load_codes(raw.first(r))),
                3 => _mm512_permutexvar_epi8(load(&THREES), load_array::<24>(raw.first(r))),
                _ => _mm512_broadcast_i64x4(_mm512_castsi512_si256(load_array::<32>(raw.first(r)))),
            };
            let codes = _mm512_multishift_epi64_epi8(self.raw_shifts, codes);
            // The window's bits below, the code's above. Bits above both do not count.
            let index = if RAW == 0 {
                windows
            } else {
                _mm512_ternarylogic_epi64::<0xca>(self.window_bits, windows, codes)
            };
            *out = find(KIND, &self.table, index);
        }
        out
    }

    /// Returns the same for any width and any table, in blocks of two registers, which take 7 bits
    /// of an index. `FORM` says what codes consist of.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn centroids_large<const FORM: usize>(&self, block: &Block, chunk: usize, first: usize) -> [__m512i; 4] {
        let start = 1 + 8 * chunk;
        let path = Masked::new(block, &Place::new(start, self.path_end.min(start + 9)));
        // The byte in front of the path plane is no part of it.
        let keep = _mm512_maskz_mov_epi8(if chunk == 0 { !1 } else { !0 }, _mm512_set1_epi8(-1));
        let neighbours = load(&NEIGHBOURS);
        let above = _mm_cvtsi32_si128(self.history as i32 + 1);
        let mut codes = [_mm512_setzero_si512(); 4];
        if let Some((unpack, parts)) = self.unpack {
            let part = &parts[chunk];
            let (raw, digits) = (Masked::new(block, &part.raw), Masked::new(block, &part.digits));
            for (i, codes) in codes.iter_mut().enumerate() {
                let r = first + i;
                *codes = match FORM {
                    POWERS => _mm512_and_si512(unpack.raw(&raw, r), unpack.raw_mask),
                    TERNARY => unpack.digits::<8>(part, &digits, r),
                    _ => unpack.mixed::<8>(part, &raw, &digits, r),
                };
            }
        }
        let mut out = [_mm512_setzero_si512(); 4];
        for (i, (out, codes)) in out.iter_mut().zip(codes).enumerate() {
            let path = _mm512_permutexvar_epi8(neighbours, _mm512_and_si512(path.load_half(first + i), keep));
            let windows = _mm512_multishift_epi64_epi8(self.path_shifts, path);
            // Shifts of words move bits into the next byte: below the window, where they are
            // masked.
            let codes = _mm512_sll_epi16(codes, above);
            *out = _mm512_ternarylogic_epi64::<0xca>(self.window_bits, windows, codes);
        }
        if let [low, high] = *self.large {
            return out.map(|index| _mm512_permutex2var_epi8(low, index, high));
        }
        let below = _mm_cvtsi32_si128(6 - self.history as i32);
        let high = codes.map(|codes| {
            let block_bits = _mm512_set1_epi8((15 >> (6 - self.history)) as i8);
            _mm512_and_si512(_mm512_srl_epi16(codes, below), block_bits)
        });
        let index = out;
        out = [_mm512_setzero_si512(); 4];
        for (b, table) in self.large.as_chunks::<2>().0.iter().enumerate() {
            let this = _mm512_set1_epi8(b as i8);
            for ((out, high), index) in out.iter_mut().zip(high).zip(index) {
                let here = _mm512_cmpeq_epi8_mask(high, this);
                let found = _mm512_maskz_permutex2var_epi8(here, table[0], index, table[1]);
                *out = _mm512_or_si512(*out, found);
            }
        }
        out
    }

    /// Writes the transposed centroids of a block, for as many chunks as `columns` has.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn columns<const KIND: usize, const RAW: usize>(
        &self,
        block: &Block,
        columns: &mut [MaybeUninit<Columns>],
    ) {
        for (chunk, columns) in columns.iter_mut().enumerate() {
            let mut rows = [_mm512_setzero_si512(); ROWS];
            for (four, rows) in rows.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *rows = self.centroids::<KIND, RAW>(block, chunk, 4 * four);
            }
            columns.write(transpose(&rows));
        }
    }

    /// Puts a query into the order of the lanes.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    pub(super) fn query(&self, query: &IntQuery, scale: f32, bytes: &mut ByteQuery) {
        bytes.set(query, scale, NATURAL);
        let groups = load(&GROUPS[order(self.kind, self.form)]);
        for values in &mut bytes.values[..self.chunks] {
            *values = _mm512_permutexvar_epi64(groups, *values);
        }
    }
}
