//! Trellis codes with AVX-512: rows of centroids, 64 at a time, by bit extraction and byte lookups.
//!
//! A quadword contains the path bits of 64 coordinates. Broadcast to all lanes, it gives the
//! windows of all 64 in one `vpmultishiftqb`. That takes any eight neighbouring bits of a quadword
//! for each byte:
//!
//! ```text
//! quadword     p₆₃ … p₄ p₃ p₂ p₁ p₀              path bits, coordinate 0 lowest
//! byte t       bits t-3 … t+4                     window of coordinate t in the low 4 bits, others above
//!
//! index        │ code │ window │                  the window is masked in, the code lies above it
//! table        in one register (`vpermb`), in two or four (`vpermi2b`)
//! ```
//!
//! Only the first eight coordinates need the byte before, so their lane is shifted by a byte. Codes
//! of 1, 2 or 4 bits come from a broadcast of their 8, 16 or 32 bytes in the same way.
//!
//! Each lane takes eight coordinates that its own quadword contains, so scores shuffle no bytes.
//! Instead the query is put into the order of the lanes, once a page. Sums of several queries put
//! the centroids in order.
//!
//! A single query goes to `score_one.rs` where that is faster. The path search is in `search.rs`.

mod lanes;
mod score_one;
mod search;

pub(crate) use search::viterbi_encode;

use super::avx2;
use super::layout::{MAX_LEVELS, MAX_STATES, TrellisCodebook};
use crate::codes::avx2::many::Buffer;
use crate::codes::avx512::accumulate::{ByteWeights, Sums, Tile, byte_weights, configure, four, run_scales};
use crate::codes::avx512::codebook::kind::RAW as NATURAL;
use crate::codes::avx512::score::{ByteQuery, Many};
use crate::codes::avx512::sums::{Columns, QUERIES, finish};
use crate::codes::avx512::tiles::TileQueries;
use crate::codes::avx512::unpack::{CHUNK, Chunk, MAX_CHUNKS, Masked, Place, Unpack};
use crate::codes::scalar::{PAGE, finish_sums};
use crate::registers::amx::Tiles;
use crate::registers::avx2::Ymm;
use crate::registers::avx512::{
    self, add_four, add_lanes, in_order, interleave, load, load_array, load_codes, scales, store_first,
    to_array, transpose,
};
use crate::rows::{Block, Blocks, ROWS};
use crate::{IntQuery, Rows};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;
use lanes::{FOURS, GROUPS, LANES, NEIGHBOUR_SHIFTS, NEIGHBOURS, PATH_SHIFTS, RAW_SHIFTS, THREES, tables};

/// Centroids of the largest codebook.
const MAX_CENTROIDS: usize = 2 * MAX_STATES * MAX_LEVELS;

/// The lookup path. The first three take tables of 1, 2 or 4 registers, plain bits, and widths that
/// 64 divides. `GENERAL` takes everything else: base-3 digits, other widths, larger tables.
const SMALL: usize = 1;
const MEDIUM: usize = 2;
const WIDE: usize = 4;
const GENERAL: usize = 0;

/// The form of codes in the general path: raw bits or nothing, digits, or both.
const POWERS: usize = 0;
const TERNARY: usize = 1;
const MIXED: usize = 2;

/// Returns which order of `lanes.rs` a kind and form have. The general path takes lanes as they come,
/// which is order 0. The others have an order for each number of raw bits.
const fn order(kind: usize, form: usize) -> usize {
    if kind == GENERAL { 0 } else { form }
}

/// The constants that find the centroids of a row.
struct Lookup<'a> {
    kind: usize,
    /// With `GENERAL`: [`POWERS`], [`TERNARY`] or [`MIXED`]. Otherwise: raw bits of a code.
    form: usize,
    history: u32,
    chunks: usize,
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
type Large = Buffer<__m512i, { MAX_CENTROIDS / CHUNK }>;

/// How codes are found that are not plain bits.
type Parts = Option<(Unpack, [Chunk; MAX_CHUNKS])>;

/// Queries from which on rows of 32 are scored faster here than with AVX2.
const FEW: usize = 8;

/// Adds 128 to centroids by xor, so that they are unsigned operands.
const BIAS: i8 = -128;

/// Calls a method for the kind of lookup and the raw bits.
macro_rules! for_kind {
    ($lookup:expr, $function:ident($($argument:expr),*)) => {
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
    };
}

/// Implements `scalar::decode_trellis`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn decode_trellis(book: &TrellisCodebook, row: &[u8], scale: f32, out: &mut [f32]) {
    let (mut large, mut unpack) = (Large::EMPTY, None);
    let lookup = &Lookup::new(book, out.len(), 0, &mut large, &mut unpack);
    for_kind!(lookup, decode(row, scale, out));
}

/// Decodes a row.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn decode<const KIND: usize, const RAW: usize>(lookup: &Lookup, row: &[u8], scale: f32, out: &mut [f32]) {
    let (scale, lanes) = (_mm512_set1_ps(scale), load(&LANES[order(KIND, RAW)]));
    let block = Block::one(row);
    for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
        let [centroids, ..] = lookup.centroids::<KIND, RAW>(&block, chunk, 0);
        let mut rest = _mm512_permutexvar_epi64(lanes, centroids);
        for out in out.as_chunks_mut::<16>().0 {
            let values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_castsi512_si128(rest)));
            avx512::store_ps(out, _mm512_mul_ps(values, scale));
            rest = _mm512_shuffle_i64x2::<0b11_11_10_01>(rest, rest);
        }
    }
}

/// Implements `scalar::score_trellis`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_trellis(
    tiles: Option<Tiles>,
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let count = rows.count();
    if count == 0 {
        return;
    }
    if let [query] = queries
        && score_one::score(book, rows, scale, query, scores)
    {
        return;
    }
    // Rows of 32 fill half of a register here. In AVX2's lanes they lie side by side.
    if queries.len() < FEW && rows.dim < CHUNK && avx2::lanes::takes(book, rows.dim) {
        return avx2::score_trellis::<Ymm>(book, rows, scale, queries, scores);
    }
    let (mut large, mut unpack) = (Large::EMPTY, None);
    let lookup = &Lookup::new(book, rows.dim, BIAS, &mut large, &mut unpack);
    let mut padded = None;
    let blocks = Blocks::new(rows, &mut padded);
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        for_kind!(lookup, score(tiles, &blocks, count, scale, queries, scores));
    }
}

/// Scores rows of one kind, with one, four, eight or 32 queries at a time.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score<const KIND: usize, const RAW: usize>(
    lookup: &Lookup,
    tiles: Option<Tiles>,
    blocks: &Blocks,
    count: usize,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    if let [query] = queries {
        return score_single::<KIND, RAW>(lookup, blocks, scale, query, scores);
    }
    if let (Some(tiles), QUERIES) = (tiles, queries.len()) {
        let mut tiled = TileQueries::new(lookup.chunks);
        for query in queries {
            let ByteQuery { values, excess, factor } = lookup.query::<KIND, RAW>(query, scale);
            tiled.push(&values, excess, factor);
        }
        // SAFETY: `columns` sets all of its output.
        unsafe {
            tiled.score(tiles, blocks, count, scores, |block, columns| {
                lookup.columns::<KIND, RAW>(block, columns)
            })
        }
    } else if queries.len() <= 4 {
        score_many::<KIND, RAW, 4>(lookup, blocks, count, scale, queries, scores);
    } else {
        score_many::<KIND, RAW, 8>(lookup, blocks, count, scale, queries, scores);
    }
}

/// Scores rows with one query. It is a function of its own: inside the one with all kinds, the compiler
/// would keep its pointers in memory.
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_single<const KIND: usize, const RAW: usize>(
    lookup: &Lookup,
    blocks: &Blocks,
    scale: f32,
    query: &IntQuery,
    scores: &mut [f32],
) {
    let query = lookup.query::<KIND, RAW>(query, scale);
    for (i, scores) in scores.chunks_mut(ROWS).enumerate() {
        blocks.prefetch(i);
        let block = blocks.get(i);
        let mut fours = [_mm512_setzero_si512(); ROWS / 4];
        for (i, four) in fours.iter_mut().enumerate() {
            let mut sums = [_mm512_setzero_si512(); 4];
            for (chunk, values) in query.values[..lookup.chunks].iter().enumerate() {
                let centroids = lookup.centroids::<KIND, RAW>(&block, chunk, 4 * i);
                for (sum, centroids) in sums.iter_mut().zip(centroids) {
                    *sum = _mm512_dpbusd_epi32(*sum, centroids, *values);
                }
            }
            *four = add_four(sums);
        }
        let sums = add_lanes(fours);
        store_first(finish(sums, query.excess, query.factor, scales(&block)), scores);
    }
}

/// Scores rows with up to [`QUERIES`] queries, which share lookups. `Q` of them share each load of
/// a looked-up register.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn score_many<const KIND: usize, const RAW: usize, const Q: usize>(
    lookup: &Lookup,
    blocks: &Blocks,
    count: usize,
    scale: f32,
    queries: &[IntQuery],
    scores: &mut [f32],
) {
    let mut many = Many::<Q>::new();
    for query in queries {
        let ByteQuery { values, excess, factor } = lookup.query::<KIND, RAW>(query, scale);
        many.push(&values[..lookup.chunks], excess, factor);
    }
    let mut columns = [const { MaybeUninit::<Columns>::uninit() }; MAX_CHUNKS];
    for first in (0..count).step_by(ROWS) {
        blocks.prefetch(first / ROWS);
        let block = blocks.get(first / ROWS);
        lookup.columns::<KIND, RAW>(&block, &mut columns[..lookup.chunks]);
        // SAFETY: `Lookup::columns` wrote all elements of the slice that it got, `lookup.chunks`.
        let columns = unsafe { core::slice::from_raw_parts(columns.as_ptr().cast(), lookup.chunks) };
        many.score(columns, scales(&block), count, first, scores);
    }
}

/// Implements `scalar::accumulate_trellis`.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn accumulate_trellis(
    tiles: Option<Tiles>,
    book: &TrellisCodebook,
    rows: &Rows,
    scale: f32,
    weights: &[f32],
    acc: &mut [f32],
) {
    let count = rows.count();
    if count == 0 {
        return;
    }
    let (mut large, mut unpack) = (Large::EMPTY, None);
    let lookup = &Lookup::new(book, rows.dim, 0, &mut large, &mut unpack);
    for (weights, acc) in weights.chunks(QUERIES * count).zip(acc.chunks_mut(QUERIES * rows.dim)) {
        for (p, rows) in rows.pages(PAGE).enumerate() {
            let mut padded = None;
            let blocks = &Blocks::new(&rows, &mut padded);
            let scales = run_scales(blocks, 0..rows.count().div_ceil(ROWS));
            let mut ints = [const { MaybeUninit::uninit() }; QUERIES];
            let weights = weights.chunks_exact(count).map(|weights| &weights[p * PAGE..][..rows.count()]);
            let ints = byte_weights(weights, &scales, &mut ints);
            for_kind!(lookup, sum_page(tiles, blocks, &rows, scale, ints, acc));
        }
    }
}

/// Adds up to 256 rows for up to [`QUERIES`] queries. Each 64 coordinates are decoded once, and
/// then multiplied for all queries.
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sum_page<const KIND: usize, const RAW: usize>(
    lookup: &Lookup,
    tiles: Option<Tiles>,
    blocks: &Blocks,
    rows: &Rows,
    scale: f32,
    ints: &[ByteWeights],
    acc: &mut [f32],
) {
    let mut tile = Tile::new();
    if let [ints] = ints {
        return sum_one::<KIND, RAW>(lookup, blocks, rows, scale, ints, acc);
    }
    let (configured, order) = (configure(tiles, ints), load(&FOURS[order(KIND, RAW)]));
    for chunk in 0..lookup.chunks {
        tile.clear();
        for block in 0..rows.count().div_ceil(ROWS) {
            if chunk == 0 {
                blocks.prefetch(block);
            }
            let block = blocks.get(block);
            for first in (0..ROWS).step_by(4) {
                let centroids = lookup.centroids::<KIND, RAW>(&block, chunk, first);
                tile.push(interleave(centroids.map(|x| _mm512_permutexvar_epi8(order, x))));
            }
        }
        tile.add(&configured, ints, scale, chunk * CHUNK, acc, rows.dim);
    }
}

/// Adds rows for one query. Looked-up centroids are used at once and never stored, which is a fifth
/// faster. Not inlined for the reason of [`score_single`].
#[inline(never)]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn sum_one<const KIND: usize, const RAW: usize>(
    lookup: &Lookup,
    blocks: &Blocks,
    rows: &Rows,
    scale: f32,
    ints: &ByteWeights,
    acc: &mut [f32],
) {
    let zero = [_mm512_setzero_si512(); 4];
    for chunk in 0..lookup.chunks {
        let ([mut low, mut high], mut plain) = ([zero; 2], zero);
        for (i, (l, h)) in ints.low().iter().zip(ints.high()).enumerate() {
            let row = 4 * i;
            if row >= rows.count() {
                break;
            }
            if chunk == 0 && row.is_multiple_of(ROWS) {
                blocks.prefetch(row / ROWS);
            }
            let block = blocks.get(row / ROWS);
            let centroids = interleave(lookup.centroids::<KIND, RAW>(&block, chunk, row % ROWS));
            let (l, h) = (four(l), four(h));
            for k in 0..4 {
                low[k] = _mm512_dpbusd_epi32(low[k], l, centroids[k]);
                high[k] = _mm512_dpbusd_epi32(high[k], h, centroids[k]);
                if ints.offset != 0 {
                    plain[k] = _mm512_dpbusd_epi32(plain[k], _mm512_set1_epi8(1), centroids[k]);
                }
            }
        }
        let totals = core::array::from_fn(|k| ints.total(low[k], high[k], plain[k]));
        add_totals::<KIND, RAW>(chunk, ints, scale, totals, acc);
    }
}

/// Adds the sums of a chunk to those of one query.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn add_totals<const KIND: usize, const RAW: usize>(
    chunk: usize,
    ints: &ByteWeights,
    scale: f32,
    totals: Sums,
    acc: &mut [f32],
) {
    if ints.unit != 0.0 {
        let acc = &mut acc[chunk * CHUNK..];
        let width = acc.len().min(CHUNK);
        finish_sums(&coordinates::<KIND, RAW>(totals)[..width], ints.unit * scale, &mut acc[..width]);
    }
}

/// Returns sums of interleaved bytes in the order of coordinates.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn coordinates<const KIND: usize, const RAW: usize>(sums: Sums) -> [i32; CHUNK] {
    let mut lanes = [[0i32; 8]; 8];
    for (lanes, sums) in lanes.as_chunks_mut::<2>().0.iter_mut().zip(in_order(sums)) {
        *lanes = to_array(sums);
    }
    let mut out = [0; CHUNK];
    for (out, lane) in out.as_chunks_mut::<8>().0.iter_mut().zip(LANES[order(KIND, RAW)]) {
        *out = lanes[lane as usize];
    }
    out
}

/// Looks up indices of 6, 7 or 8 bits in a table of `kind` registers.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn find(kind: usize, table: &[__m512i], index: __m512i) -> __m512i {
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
    fn new(
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
    fn centroids<const KIND: usize, const RAW: usize>(
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
    fn columns<const KIND: usize, const RAW: usize>(
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
    fn query<const KIND: usize, const RAW: usize>(&self, query: &IntQuery, scale: f32) -> ByteQuery {
        let mut query = ByteQuery::new(query, scale, NATURAL);
        let groups = load(&GROUPS[order(KIND, RAW)]);
        for values in &mut query.values[..self.chunks] {
            *values = _mm512_permutexvar_epi64(groups, *values);
        }
        query
    }
}
