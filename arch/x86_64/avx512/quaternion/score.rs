//! Scores of 64 rows at a time: lanes are rows, so that every table is one chunk's and fits registers.
//!
//! Per chunk, `vpermb` looks the components of 64 members up (two or four registers a component, for any set), and
//! those of the query, turned back by 64 units (one register for all); `vpdpbusd` multiplies. Its first operand is
//! unsigned, so the query's bytes are 128 too large, and the sum starts at -128·Σ member, which all queries share.

use super::super::{load, load_bytes};
use super::search::to_bytes;
use super::unpack::Unpack;
use crate::quaternion::{ChunkLayout, QuaternionSet, TURNS};
use crate::scalar::quaternion::MAX_CHUNKS;
use core::arch::x86_64::*;

/// Rows of a block.
const ROWS: usize = 64;

/// Queries of a pass.
const QUERIES: usize = 8;

/// 16 chunks of a query: the twelve inner products that differ by more than sign, and what one unit is worth.
struct Turned {
    ints: [[u8; 16]; 16],
    units: [f32; 16],
}

/// Runs of 16 chunks in the widest vector.
const STEPS: usize = MAX_CHUNKS / 16;

#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn score_quaternions(
    layout: &ChunkLayout,
    set: &QuaternionSet,
    bytes: &[u8],
    queries: &[&[f32]],
    scores: &mut [f32],
) {
    let count = bytes.len() / layout.row_bytes();
    if count == 0 {
        return;
    }
    let (members, unpack, steps) = (Members::new(set), Unpack::new(layout), layout.chunks.div_ceil(16));
    for (queries, scores) in queries.chunks(QUERIES).zip(scores.chunks_mut(QUERIES * count)) {
        let mut turned = [const { [const { None }; QUERIES] }; STEPS];
        for (q, query) in queries.iter().enumerate() {
            for (turned, query) in turned.iter_mut().zip(query.chunks(64)) {
                turned[q] = Some(Turned::new(query));
            }
        }
        for (b, rows) in bytes.chunks(ROWS * layout.row_bytes()).enumerate() {
            let mut sums = [[_mm512_setzero_ps(); 4]; QUERIES];
            for (step, turned) in turned[..steps].iter().enumerate() {
                let block = Block::new(&unpack, layout.row_bytes(), rows, step);
                let chunks = (layout.chunks - 16 * step).min(16);
                block.add_scores(&members, chunks, &turned[..queries.len()], &mut sums);
            }
            for (sums, scores) in sums.iter().zip(scores.chunks_mut(count)) {
                finish(*sums, rows, layout, &mut scores[b * ROWS..]);
            }
        }
    }
}

impl Turned {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(query: &[f32]) -> Self {
        let q = super::search::load_chunks(query);
        let [w, x, y, z] = q;
        let a = each!(c in q => _mm512_abs_ps(c));
        let axis = _mm512_max_ps(_mm512_max_ps(a[0], a[1]), _mm512_max_ps(a[2], a[3]));
        let half = _mm512_set1_ps(0.5);
        let sum = _mm512_add_ps(_mm512_add_ps(a[0], a[1]), _mm512_add_ps(a[2], a[3]));
        let max = _mm512_max_ps(axis, _mm512_mul_ps(sum, half));
        let limit = _mm512_set1_ps(127.0);
        let factor = _mm512_div_ps(limit, max);
        let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(factor, _mm512_set1_ps(f32::INFINITY));
        let unit = _mm512_maskz_div_ps(finite, _mm512_div_ps(max, limit), limit);
        // The halves with a positive w, x, y, z negative by the bits of their number.
        let pairs = [_mm512_add_ps(w, x), _mm512_sub_ps(w, x)];
        let others = [
            _mm512_add_ps(y, z),
            _mm512_sub_ps(z, y),
            _mm512_sub_ps(y, z),
            _mm512_sub_ps(_mm512_sub_ps(_mm512_setzero_ps(), y), z),
        ];
        let mut table = [[0; 16]; 16];
        for (i, row) in table[..12].iter_mut().enumerate() {
            let product = match i {
                0..4 => q[i],
                _ => _mm512_mul_ps(_mm512_add_ps(pairs[i % 2], others[i / 2 - 2]), half),
            };
            *row = to_bytes(_mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(product, factor)));
        }
        let mut turned = Self { ints: transpose_16(&table), units: [0.0; 16] };
        // SAFETY: `units` has 16 values.
        unsafe { _mm512_storeu_ps(turned.units.as_mut_ptr(), unit) };
        turned
    }
}

/// For every unit p and component c, at 32·c + p, one of the twelve products, or at 16 + … its negative, of which
/// the 24 units' inner products with a query consist.
static TABLE: [[u8; 64]; 2] = {
    let mut table = [[0; 64]; 2];
    let mut c = 0;
    while c < 4 {
        let mut p = 0;
        while p < 24 {
            let unit = TURNS[c][p] as usize;
            let (product, negative) = if unit < 8 {
                (unit / 2, unit % 2 == 1)
            } else if (unit - 8) % 2 == 0 {
                (4 + (unit - 8) / 2, false)
            } else {
                (4 + (15 - (unit - 8)) / 2, true)
            };
            table[c / 2][32 * (c % 2) + p] = (product + if negative { 16 } else { 0 }) as u8;
            p += 1;
        }
        c += 1;
    }
    table
};

/// Components of members as bytes, 64 to a register.
struct Members {
    planes: [[__m512i; 4]; 4],
    count: usize,
}

impl Members {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(set: &QuaternionSet) -> Self {
        let mut planes = [[_mm512_setzero_si512(); 4]; 4];
        let bytes = as_bytes(set.ints);
        for (part, bytes) in bytes.chunks(256).enumerate() {
            let quarter = |i: usize| load_bytes(bytes.get(64 * i..).map_or(&[], |b| &b[..b.len().min(64)]));
            let [a, b, c, d] = [quarter(0), quarter(1), quarter(2), quarter(3)];
            for (component, plane) in planes.iter_mut().enumerate() {
                let picks = load(&EVERY_FOURTH[component]);
                let (low, high) =
                    (_mm512_permutex2var_epi8(a, picks, b), _mm512_permutex2var_epi8(c, picks, d));
                plane[part] = _mm512_mask_mov_epi8(low, 0xffff_ffff_0000_0000, high);
            }
        }
        Self { planes, count: set.ints.len() }
    }

    /// One component of 64 members.
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn look_up(&self, component: usize, members: __m512i, upper: __mmask64) -> __m512i {
        let plane = &self.planes[component];
        let low = _mm512_permutex2var_epi8(plane[0], members, plane[1]);
        if self.count <= 128 {
            return low;
        }
        _mm512_mask_mov_epi8(low, upper, _mm512_permutex2var_epi8(plane[2], members, plane[3]))
    }
}

fn as_bytes(ints: &[[i8; 4]]) -> &[u8] {
    let flat = ints.as_flattened();
    // SAFETY: i8 and u8 have the same size and alignment, and every bit pattern is valid for both.
    unsafe { core::slice::from_raw_parts(flat.as_ptr().cast(), flat.len()) }
}

static EVERY_FOURTH: [[u8; 64]; 4] = {
    let mut picks = [[0; 64]; 4];
    let mut i = 0;
    while i < 256 {
        picks[i % 4][i / 4] = (i % 128) as u8;
        i += 1;
    }
    picks
};

/// Units, members and radii of 16 chunks of 64 rows: \[chunk]\[row].
struct Block([[[u8; 64]; 16]; 3]);

impl Block {
    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn new(unpack: &Unpack, row_bytes: usize, rows: &[u8], step: usize) -> Self {
        let mut planes = [[[0; 64]; 16]; 3];
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let codes = unpack.codes(row, step);
            let mut put = |plane: usize, lanes: __m512i| {
                let slot = &mut planes[plane][r % 16].as_chunks_mut::<16>().0[r / 16];
                // SAFETY: the slot has 16 bytes.
                unsafe { _mm_storeu_si128(slot.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(lanes)) };
            };
            put(0, codes.units);
            put(1, codes.members);
            put(2, codes.radii);
        }
        for plane in &mut planes {
            transpose(plane);
        }
        Self(planes)
    }

    #[inline]
    #[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
    fn add_scores(
        &self,
        members: &Members,
        chunks: usize,
        queries: &[Option<Turned>],
        sums: &mut [[__m512; 4]],
    ) {
        let zero = _mm512_setzero_si512();
        for chunk in 0..chunks {
            let [units, member_plane, radii] = &self.0;
            let s = load(&member_plane[chunk]);
            let upper = _mm512_movepi8_mask(s);
            let component = |c: usize| members.look_up(c, s, upper);
            let products = quarters(component(0), component(1), component(2), component(3));
            let offset = each!(b in products => {
                _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(-128), b))
            });
            let radii = each!(r in quarters(load(&radii[chunk]), zero, zero, zero) => _mm512_cvtepi32_ps(r));
            let p = load(&units[chunk]);
            let at = each!(p in quarters(p, p, p, p) => _mm512_add_epi8(p, _mm512_set1_epi32(0x6040_2000)));
            for (query, sums) in queries.iter().flatten().zip(sums.iter_mut()) {
                // SAFETY: the array holds the 16 bytes that are read.
                let ints = unsafe { _mm_loadu_si128(query.ints[chunk].as_ptr().cast()) };
                let both = _mm256_set_m128i(_mm_sub_epi8(_mm_setzero_si128(), ints), ints);
                let source = _mm512_castsi256_si512(_mm256_xor_si256(both, _mm256_set1_epi8(-128)));
                let low = _mm512_permutexvar_epi8(load(&TABLE[0]), source);
                let high = _mm512_permutexvar_epi8(load(&TABLE[1]), source);
                let unit = _mm512_set1_ps(query.units[chunk]);
                for quarter in 0..4 {
                    let turned = _mm512_permutex2var_epi8(low, at[quarter], high);
                    let dot = _mm512_dpbusd_epi32(offset[quarter], turned, products[quarter]);
                    // |dot·radius| < 2²⁴: exact.
                    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), radii[quarter]);
                    sums[quarter] = _mm512_add_ps(sums[quarter], _mm512_mul_ps(scaled, unit));
                }
            }
        }
    }
}

/// Times the rows' scales, to up to 64 scores.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn finish(sums: [__m512; 4], rows: &[u8], layout: &ChunkLayout, scores: &mut [f32]) {
    let mut units = [0u16; ROWS];
    for (unit, row) in units.iter_mut().zip(rows.chunks_exact(layout.row_bytes())) {
        *unit = u16::from_le_bytes([row[0], row[1]]);
    }
    let limit = _mm512_set1_ps(layout.radius_limit().into());
    let count = rows.len() / layout.row_bytes();
    for (part, (sum, scores)) in
        natural_order(sums).into_iter().zip(scores[..count].chunks_mut(16)).enumerate()
    {
        let mask = if scores.len() < 16 { (1 << scores.len()) - 1 } else { !0 };
        // SAFETY: `units` has 64 values, of which 16 are read; the mask has as many bits as `scores` has values.
        unsafe {
            let units = _mm256_loadu_si256(units.as_ptr().add(16 * part).cast());
            let units = _mm512_div_ps(_mm512_cvtph_ps(units), limit);
            _mm512_mask_storeu_ps(scores.as_mut_ptr(), mask, _mm512_mul_ps(sum, units));
        }
    }
}

/// Four bytes of each of 64 rows side by side: register v holds rows 4v … 4v + 3 of each sixteen.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab_low, cd_low),
        _mm512_unpackhi_epi16(ab_low, cd_low),
        _mm512_unpacklo_epi16(ab_high, cd_high),
        _mm512_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// From the rows' order in [`quarters`] to ascending.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn natural_order([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let (ab_low, ab_high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let (cd_low, cd_high) = (_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
    [
        _mm512_shuffle_f32x4::<0x88>(ab_low, cd_low),
        _mm512_shuffle_f32x4::<0xdd>(ab_low, cd_low),
        _mm512_shuffle_f32x4::<0x88>(ab_high, cd_high),
        _mm512_shuffle_f32x4::<0xdd>(ab_high, cd_high),
    ]
}

/// Transposes 16 × 16 bytes in each of four 128-bit lanes.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn transpose(rows: &mut [[u8; 64]; 16]) {
    let mut now = [_mm512_setzero_si512(); 16];
    for (now, row) in now.iter_mut().zip(rows.iter()) {
        *now = load(row);
    }
    // Interleaving row i with row i + 8, four times over, is a transposition.
    for _ in 0..4 {
        let mut next = now;
        for i in 0..8 {
            next[2 * i] = _mm512_unpacklo_epi8(now[i], now[i + 8]);
            next[2 * i + 1] = _mm512_unpackhi_epi8(now[i], now[i + 8]);
        }
        now = next;
    }
    for (now, row) in now.into_iter().zip(rows) {
        // SAFETY: the row has 64 bytes.
        unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), now) };
    }
}

/// The same for 16 rows of 16 bytes.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
fn transpose_16(rows: &[[u8; 16]; 16]) -> [[u8; 16]; 16] {
    let mut now = [_mm_setzero_si128(); 16];
    for (now, row) in now.iter_mut().zip(rows) {
        // SAFETY: the row has 16 bytes.
        *now = unsafe { _mm_loadu_si128(row.as_ptr().cast()) };
    }
    for _ in 0..4 {
        let mut next = now;
        for i in 0..8 {
            next[2 * i] = _mm_unpacklo_epi8(now[i], now[i + 8]);
            next[2 * i + 1] = _mm_unpackhi_epi8(now[i], now[i + 8]);
        }
        now = next;
    }
    let mut columns = [[0; 16]; 16];
    for (now, column) in now.into_iter().zip(&mut columns) {
        // SAFETY: the column has 16 bytes.
        unsafe { _mm_storeu_si128(column.as_mut_ptr().cast(), now) };
    }
    columns
}
