//! Helpers of the AVX-512 kernels (F, BW, DQ, VL, VBMI, VNNI).
//!
//! Three instructions carry most of this backend:
//!
//! ```text
//! vpermb          64 lookups in a table of 64 bytes. A codebook of up to 16 centroids fits four times,
//!                 so that stray high bits of an index do no harm
//! vpmultishiftqb  eight bytes from any bit offsets of a quadword: b bytes become eight codes of b bits
//!
//!                   quadword  …│c₃ c₃ c₃│c₂ c₂ c₂│c₁ c₁ c₁│c₀ c₀ c₀│      here b = 3
//!                   offsets        9        6        3        0
//!                   bytes     │xxxxx c₃c₃c₃│xxxxx c₂c₂c₂│xxxxx c₁c₁c₁│xxxxx c₀c₀c₀│   x: stray bits
//!
//! vpdpbusd        adds four products of bytes to each of 16 `i32`
//! ```
//!
//! Integer sums are exact in any order, so scores and weighted sums use the fastest order of lanes.
//! Sums of `f32` follow `scalar.rs` lane by lane.
//!
//! The number of shuffles decides between two ways. An Intel core (Sapphire Rapids, where the
//! numbers here were measured) does one shuffle of 64 bytes a cycle, a Zen 5 two.

/// A table of `count` constants, each computed from its index.
macro_rules! table {
    ($count:expr; $index:ident => $entry:expr) => {{
        let mut table = [{
            let $index = 0;
            $entry
        }; $count];
        let mut $index = 0;
        while $index < $count {
            table[$index] = $entry;
            $index += 1;
        }
        table
    }};
}
pub(crate) use table;

/// A table of a byte for each byte position of a register.
macro_rules! places {
    ($place:ident => $byte:expr) => {
        $crate::registers::avx512::table!(64; $place => ($byte) as u8)
    };
}
pub(crate) use places;

mod elementwise;
mod sums;

use crate::rows::Block;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;
pub(crate) use elementwise::Zmm;
pub(crate) use sums::*;

// AVX-512VBMI implies F and BW. F implies AVX2, FMA and F16C.

/// Loads up to 32 words, with zeros behind them. An empty slice is not loaded, because a fully
/// masked load takes hundreds of cycles (Zen 5).
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn load_words(words: &[i16]) -> __m512i {
    if words.is_empty() {
        return _mm512_setzero_si512();
    }
    // SAFETY: a masked load touches nothing whose mask bit is clear, and the mask has `words.len()` bits at most.
    unsafe { _mm512_maskz_loadu_epi16(first(words.len()) as u32, words.as_ptr()) }
}

/// Loads 64 bytes of plain numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load<T: Lanes>(values: &T) -> __m512i {
    // SAFETY: `Lanes` are plain numbers of 64 bytes in all.
    unsafe { _mm512_loadu_si512(core::ptr::from_ref(values).cast()) }
}

/// Stores a register to an array.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn to_array<T: Lanes>(x: __m512i) -> T {
    let mut array = MaybeUninit::<T>::uninit();
    // SAFETY: `Lanes` are plain numbers of 64 bytes in all. All bytes are written, and any bits are
    // valid.
    unsafe {
        _mm512_storeu_si512(array.as_mut_ptr().cast(), x);
        array.assume_init()
    }
}

/// Arrays that fill a register.
pub(crate) trait Lanes {}
impl Lanes for [u8; 64] {}
impl Lanes for [i8; 64] {}
impl Lanes for [i16; 32] {}
impl Lanes for [u16; 32] {}
impl Lanes for [i32; 16] {}
impl Lanes for [u32; 16] {}
impl Lanes for [u64; 8] {}
impl Lanes for [[i32; 8]; 2] {}

/// Returns a mask of the lowest `count` bits.
#[inline]
pub(crate) fn first(count: usize) -> u64 {
    if count < 64 { (1 << count) - 1 } else { !0 }
}

/// Loads 16 floats.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_ps(values: &[f32; 16]) -> __m512 {
    // SAFETY: the array holds the 64 bytes that are read.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Loads up to 16 floats, with zeros behind them. An empty slice is not loaded either.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_tail(values: &[f32]) -> __m512 {
    if values.is_empty() {
        return _mm512_setzero_ps();
    }
    // SAFETY: a masked load touches nothing whose mask bit is clear, and the mask has `values.len()` bits at most.
    unsafe { _mm512_maskz_loadu_ps(first(values.len()) as u16, values.as_ptr()) }
}

/// Loads up to 16 floats, with zeros behind them. It is faster than [`load_tail`] if there usually
/// are 16.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_some(values: &[f32]) -> __m512 {
    values.first_chunk().map_or_else(|| load_tail(values), |values| load_ps(values))
}

/// Stores 16 floats.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_ps(values: &mut [f32; 16], x: __m512) {
    // SAFETY: the array holds the 64 bytes that are written.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), x) }
}

/// Stores the first `out.len()` of 16 floats, or all 16.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_first(x: __m512, out: &mut [f32]) {
    match out.first_chunk_mut() {
        Some(out) => store_ps(out, x),
        None => store_tail(out, x),
    }
}

/// Stores the first `values.len()` of 16 floats through a mask.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_tail(values: &mut [f32], x: __m512) {
    // SAFETY: a masked store touches nothing whose mask bit is clear, and the mask has `values.len()` bits at most.
    unsafe { _mm512_mask_storeu_ps(values.as_mut_ptr(), first(values.len()) as u16, x) }
}

/// Loads up to 64 bytes, with zeros behind them.
#[inline]
#[target_feature(enable = "avx512bw")]
pub(crate) fn load_bytes(bytes: &[u8]) -> __m512i {
    // SAFETY: a masked load touches nothing whose mask bit is clear, and the mask has `bytes.len()` bits at most.
    unsafe { _mm512_maskz_loadu_epi8(first(bytes.len()), bytes.as_ptr().cast()) }
}

/// Loads an array of at most 64 bytes, with zeros behind them.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_array<const N: usize>(bytes: &[u8; N]) -> __m512i {
    const { assert!(N <= 64) };
    // SAFETY: the array has the bytes that are loaded. Masks have a bit for each byte inside, and
    // touch no others.
    unsafe {
        match N {
            16 => _mm512_zextsi128_si512(_mm_loadu_si128(bytes.as_ptr().cast())),
            32 => _mm512_zextsi256_si512(_mm256_loadu_si256(bytes.as_ptr().cast())),
            _ if N < 32 => {
                _mm512_zextsi256_si512(_mm256_maskz_loadu_epi8(first(N) as u32, bytes.as_ptr().cast()))
            }
            _ => _mm512_maskz_loadu_epi8(first(N), bytes.as_ptr().cast()),
        }
    }
}

/// The bytes 0, 1, 2 …
pub(crate) static IDENTITY: [u8; 64] = places!(i => i);

/// Loads 16 codes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_codes(codes: &[u8; 16]) -> __m128i {
    // SAFETY: the array holds the 16 bytes that are read.
    unsafe { _mm_loadu_si128(codes.as_ptr().cast()) }
}

/// Stores 16 codes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_codes(codes: &mut [u8; 16], x: __m128i) {
    // SAFETY: the array holds the 16 bytes that are written.
    unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), x) }
}

/// Returns the low bytes of 64 words.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn narrow(a: __m512i, b: __m512i) -> __m512i {
    // This takes two shuffles. `vpmovwb` alone is two.
    static EVEN: [u8; 64] = places!(i => 2 * i % 64);
    let even = load(&EVEN);
    _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(even, a), !0 << 32, even, b)
}

/// Stores the first `bytes.len()` of 64 bytes.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn store_bytes(bytes: &mut [u8], x: __m512i) {
    // SAFETY: a masked store touches nothing whose mask bit is clear, and the mask has `bytes.len()` bits at most.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), first(bytes.len()), x) }
}

/// Interleaves the bytes of four rows. Lane l of register k has the positions 16·l + 4·k …, four
/// bytes each.
///
/// ```text
/// a₀ a₁ a₂ a₃ …
/// b₀ b₁ b₂ b₃ …        ─►   a₀ b₀ c₀ d₀ │ a₁ b₁ c₁ d₁ │ a₂ b₂ c₂ d₂ │ a₃ b₃ c₃ d₃   (lane 0, register 0)
/// c₀ …  d₀ …
/// ```
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn interleave([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
    let (ab_upper, cd_upper) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab, cd),
        _mm512_unpackhi_epi16(ab, cd),
        _mm512_unpacklo_epi16(ab_upper, cd_upper),
        _mm512_unpackhi_epi16(ab_upper, cd_upper),
    ]
}

/// Brings what [`interleave`] returned into the order of the positions: a transposition of 4 × 4
/// lanes of 128 bits.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn in_order([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let pairs = |x, y| (_mm512_shuffle_i32x4::<0x44>(x, y), _mm512_shuffle_i32x4::<0xee>(x, y));
    let ((ab, ab_upper), (cd, cd_upper)) = (pairs(a, b), pairs(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(ab, cd),
        _mm512_shuffle_i32x4::<0xdd>(ab, cd),
        _mm512_shuffle_i32x4::<0x88>(ab_upper, cd_upper),
        _mm512_shuffle_i32x4::<0xdd>(ab_upper, cd_upper),
    ]
}

/// Separates the dwords of two registers at even and at odd places.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn unzip(a: __m512i, b: __m512i) -> [__m512i; 2] {
    let (even, odd) = const { (&table!(16; k => 2 * k as u32), &table!(16; k => 2 * k as u32 + 1)) };
    [_mm512_permutex2var_epi32(a, load(even), b), _mm512_permutex2var_epi32(a, load(odd), b)]
}

/// Transposes 16 × 16 dwords.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn transpose(rows: &[__m512i; 16]) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    // First within lanes of 128 bits: register 4·k + j has dword j of each lane of the rows 4·k ….
    let mut lanes = [zero; 16];
    for (rows, lanes) in rows.as_chunks::<4>().0.iter().zip(lanes.as_chunks_mut::<4>().0) {
        let [a, b, c, d] = *rows;
        let (ab, ab_upper) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd, cd_upper) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        *lanes = [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_upper, cd_upper),
            _mm512_unpackhi_epi64(ab_upper, cd_upper),
        ];
    }
    // Then transpose the lanes.
    let mut columns = [zero; 16];
    for j in 0..4 {
        [columns[j], columns[4 + j], columns[8 + j], columns[12 + j]] =
            in_order([lanes[j], lanes[4 + j], lanes[8 + j], lanes[12 + j]]);
    }
    columns
}

/// Indices that separate the components of triplets. Component c of triplet k is element 3k + c of
/// three registers. See [`permute_three`].
const DEINTERLEAVE: [[[u32; 16]; 2]; 3] = table!(3; component => [
    table!(16; k => (3 * k as u32 + component as u32) % 32),
    table!(16; k => if 3 * k + component < 32 { k as u32 } else { (3 * k + component - 16) as u32 }),
]);

/// Permutes elements of three registers. The first index selects from the first two registers, the
/// second from that result and the third register.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn permute_three(from: [__m512; 3], index: &[[[u32; 16]; 2]; 3]) -> [__m512; 3] {
    let [a, b, c] = from;
    let one = |index: &[[u32; 16]; 2]| {
        let ab = _mm512_permutex2var_ps(a, load(&index[0]), b);
        _mm512_permutex2var_ps(ab, load(&index[1]), c)
    };
    [one(&index[0]), one(&index[1]), one(&index[2])]
}

/// Loads up to sixteen triplets, a register for each component. Missing ones are zeros.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn load_triplets(x: &[f32]) -> [__m512; 3] {
    let part = |k: usize| load_tail(x.get(16 * k..).unwrap_or(&[]));
    permute_three([part(0), part(1), part(2)], &DEINTERLEAVE)
}

/// Rounds as `floats::rint` does, with the same two additions.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn rint(x: __m512) -> __m512 {
    let magic = _mm512_set1_ps(12_582_912.0);
    _mm512_sub_ps(_mm512_add_ps(x, magic), magic)
}

/// Returns the upper halves of the products of words.
///
/// `_mm512_mulhi_epu16` is plain arithmetic to LLVM, which widens it to dwords and back: eight
/// instructions for one, and twice the time of a mixed-radix score.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn mulhi(a: __m512i, b: __m512i) -> __m512i {
    let product;
    // SAFETY: AVX-512BW, which this function enables, has the instruction. It only uses registers.
    unsafe {
        core::arch::asm!(
            "vpmulhuw {}, {}, {}",
            out(zmm_reg) product, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    product
}

/// Byte indices that collect the lowest `few` bytes of every `step` bytes.
pub(crate) const fn together(step: usize, few: usize) -> [u8; 64] {
    places!(i => if i < 64 / step * few { i / few * step + i % few } else { 0 })
}

/// Reads up to 16 f16, with zeros behind them.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn decode_f16(bytes: &[u8]) -> __m512 {
    // SAFETY: a masked load touches nothing whose mask bit is clear, and the mask has `bytes.len()` bits.
    let words = unsafe { _mm256_maskz_loadu_epi8(first(bytes.len()) as u32, bytes.as_ptr().cast()) };
    // `_mm512_cvtph_ps` asks for no exceptions. That form has no memory operand, and takes port 5
    // once more.
    _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(words)
}

/// Returns the scales of a block's rows. Behind the last row they may be any finite numbers.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn scales(block: &Block) -> __m512 {
    match block.scales {
        None => scales_at(block, 0),
        Some(scales) => load_some(scales),
    }
}

/// Returns the f16 at byte `at` of each row.
///
/// Each row is loaded from this many bytes before the f16 that it lands in its own word of the
/// register. Blends then take one word from each load:
///
/// ```text
/// row 0    w₀ .  .  .  .  .  .  .
/// row 1    .  w₁ .  .  .  .  .  .         loaded 2 bytes before w₁
/// row 2    .  .  w₂ .  .  .  .  .         loaded 4 bytes before w₂
/// blends   w₀ w₁ w₂ …
/// ```
///
/// An insertion would be a shuffle, for which Intel has one port. Through memory, one load of
/// sixteen fresh stores would wait for all of them.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn scales_at(block: &Block, at: usize) -> __m512 {
    let words = block.window(at, at + 2);
    let mut halves = [_mm_setzero_si128(); 2];
    for (half, rows) in halves.iter_mut().zip([0, 8]) {
        // SAFETY: the arrays have sixteen bytes.
        let word = |r: usize| unsafe { _mm_loadu_si128(words.word_in_place(rows + r).as_ptr().cast()) };
        *half = _mm_blend_epi16::<0b10>(word(0), word(1));
        *half = _mm_blend_epi16::<0b100>(*half, word(2));
        *half = _mm_blend_epi16::<0b1000>(*half, word(3));
        *half = _mm_blend_epi16::<0b1_0000>(*half, word(4));
        *half = _mm_blend_epi16::<0b10_0000>(*half, word(5));
        *half = _mm_blend_epi16::<0b100_0000>(*half, word(6));
        *half = _mm_blend_epi16::<0b1000_0000>(*half, word(7));
    }
    _mm512_cvtph_ps(_mm256_set_m128i(halves[1], halves[0]))
}
