//! Registers of AVX2: helpers of the hand-written kernels, and the 128-bit registers for `wide.rs`.
//!
//! It also uses F16C, and FMA only where a product is exact. The algorithms are those of the
//! AVX-512 backend with weaker instructions. `vpshufb` looks up sixteen bytes. Shifts of bytes are
//! multiplications of words. `vpmaddubsw` and `vpmaddwd` together replace `vpdpbusd`.

use super::{Integers, Registers};
use crate::Rows;
use crate::codes::scalar::{self, PAGE};
use crate::rows::Block;
use core::arch::x86_64::*;

/// Loads 32 bytes of plain integers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load<T: Lanes + ?Sized>(values: &T) -> __m256i {
    assert!(size_of_val(values) >= 32);
    // SAFETY: the values have as many bytes as are read, and `Lanes` have no padding.
    unsafe { _mm256_loadu_si256(core::ptr::from_ref(values).cast()) }
}

/// Arrays of plain integers, which have no padding.
pub(crate) trait Lanes {}
impl Lanes for [u8; 32] {}
impl Lanes for [i8; 32] {}
impl Lanes for [u32; 8] {}
impl Lanes for [i32; 8] {}
impl Lanes for [u16; 16] {}
impl Lanes for [i16; 16] {}
impl Lanes for [i16] {}

/// Stores the first `values.len()` of 8 values, or all 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store_first(values: &mut [f32], x: __m256) {
    match values.first_chunk_mut() {
        Some(values) => store_ps(values, x),
        None => {
            let mut all = [0.0; 8];
            store_ps(&mut all, x);
            values.copy_from_slice(&all[..values.len()]);
        }
    }
}

/// Stores 8 floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store_ps(values: &mut [f32; 8], x: __m256) {
    // SAFETY: the array holds the 32 bytes that are written.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), x) }
}

/// Returns the scales of eight rows of a block. Behind the last row they may be any finite numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn scales_of_eight(block: &Block, first: usize) -> __m256 {
    if let Some(scales) = block.scales {
        return load_first(scales.get(first..).unwrap_or(&[]));
    }
    let scales = block.window(0, 2);
    // Assembled in general registers, which have nothing else to do here.
    let mut quads = [0; 2];
    for (i, quad) in quads.iter_mut().enumerate() {
        for r in 0..4 {
            *quad |= i64::from(scales.word(first + 4 * i + r) as u16) << (16 * r);
        }
    }
    _mm256_cvtph_ps(_mm_set_epi64x(quads[1], quads[0]))
}

/// Reads sixteen scales as `Rows::read_scales` does, with F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn read_scales(rows: &Rows, first: usize, out: &mut [f32; 16]) {
    let Some(words) = rows.halves::<16>(first) else { return rows.read_scales(first, out) };
    for (out, words) in out.as_chunks_mut().0.iter_mut().zip(words.as_chunks::<8>().0) {
        // SAFETY: the array has 16 bytes.
        let words = unsafe { _mm_loadu_si128(words.as_ptr().cast()) };
        store_ps(out, _mm256_cvtph_ps(words));
    }
}

/// Quantises weights as `scalar::quantize_weights` does. Not inlined, so that there is one copy for
/// all kernels.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn quantize_weights(
    rows: &Rows,
    weights: &[f32],
    limit: i16,
    products: &mut [f32; PAGE],
    ints: &mut [i16; PAGE],
) -> Option<f32> {
    scalar::quantize_weights_in(rows, weights, limit, products, ints)
}

/// Loads 8 floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_ps(values: &[f32; 8]) -> __m256 {
    // SAFETY: the array holds the 32 bytes that are read.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Loads up to 8 floats, with zeros behind them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_first(values: &[f32]) -> __m256 {
    match values.first_chunk() {
        Some(values) => load_ps(values),
        None => {
            let mut all = [0.0; 8];
            all[..values.len()].copy_from_slice(values);
            load_ps(&all)
        }
    }
}

/// Loads up to 8 floats through a mask. It is faster if there are usually fewer than 8: a load from
/// a copy would wait for the copy's stores.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_few(values: &[f32]) -> __m256 {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(values.len() as i32), lanes);
    // SAFETY: a masked load does not touch values whose mask is clear. The others are inside
    // `values`.
    unsafe { _mm256_maskload_ps(values.as_ptr(), mask) }
}

/// Rounds as `floats::rint` does, with the same two additions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rint(x: __m256) -> __m256 {
    let magic = _mm256_set1_ps(12_582_912.0);
    _mm256_sub_ps(_mm256_add_ps(x, magic), magic)
}

/// The sixteen lanes of a sum, in two registers.
pub(crate) type Sixteen = [__m256; 2];

/// Adds lanes 8 to 15 to lanes 0 to 7, and so on down to one, as `floats::halve` does.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn halve([lower, upper]: Sixteen) -> f32 {
    let eight = _mm256_add_ps(lower, upper);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Loads up to sixteen floats, with zeros behind them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_sixteen(values: &[f32]) -> Sixteen {
    let (lower, upper) = values.split_at(values.len().min(8));
    [load_first(lower), load_first(upper)]
}

/// Adds a·b to the lanes: a multiplication and an addition, not fused.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn add_products(lanes: &mut Sixteen, a: Sixteen, b: Sixteen) {
    for i in 0..2 {
        lanes[i] = _mm256_add_ps(lanes[i], _mm256_mul_ps(a[i], b[i]));
    }
}

/// Splits sixteen floats into two registers' worth.
#[inline]
pub(crate) fn first_chunks(values: &mut [f32; 16]) -> &mut [[f32; 8]] {
    values.as_chunks_mut().0
}

/// Registers of 128 bits with AVX2's instructions. Name this type only where AVX2 is enabled.
pub(crate) struct Avx2;

/// Registers of two lanes of 128 bits. Name this type only where AVX2 is enabled.
pub(crate) struct Ymm;

/// [`Ymm`] with AVX-VNNI's products of bytes and words. Name this type only on a CPU that has
/// AVX-VNNI.
///
/// Compared with [`Ymm`] on Sapphire Rapids, scores take 0.71 to 0.86 of the time with one query,
/// 0.52 to 0.72 with eight, and 0.62 to 0.67 with 32. Sums take 0.88 to 0.97. `vpdpbusd` takes
/// centroids as unsigned bytes, which saves moving signs. Sums of blocks of queries are bound by
/// chains of `vpdpwssd`, five cycles each.
pub(crate) struct Vnni;

/// Calls intrinsics in trait methods, which cannot carry `#[target_feature]`.
macro_rules! avx2 {
    ($($body:tt)*) => {{
        // SAFETY: `Avx2` is only used where AVX2 was detected. Loads and stores take arrays of
        // their size.
        unsafe { $($body)* }
    }};
}

/// Reinterprets a register as floats.
#[inline(always)]
fn floats(x: __m128i) -> __m128 {
    avx2!(_mm_castsi128_ps(x))
}

/// Reinterprets a register as integers.
#[inline(always)]
fn bits(x: __m128) -> __m128i {
    avx2!(_mm_castps_si128(x))
}

mod elementwise;
pub(crate) mod fields;
mod integers;
pub(crate) use integers::upper_products;

/// A byte shuffle by constants. Index -1 gives 0.
macro_rules! shuffle {
    ($x:expr; $($index:expr),*) => { _mm_shuffle_epi8($x, _mm_setr_epi8($($index),*)) };
}

impl Registers for Avx2 {
    const TABLE: usize = 64;

    methods! { __m128i;
        xor(a, b) = avx2!(_mm_xor_si128(a, b));
        min_bytes(a, b) = avx2!(_mm_min_epu8(a, b));
        multiply_floats(a, b) = avx2!(bits(_mm_mul_ps(floats(a), floats(b))));
        add_floats(a, b) = avx2!(bits(_mm_add_ps(floats(a), floats(b))));
        sub_floats(a, b) = avx2!(bits(_mm_sub_ps(floats(a), floats(b))));
        divide_floats(a, b) = avx2!(bits(_mm_div_ps(floats(a), floats(b))));
        sqrt_floats(x) = avx2!(bits(_mm_sqrt_ps(floats(x))));
        min_floats(a, b) = avx2!(bits(_mm_min_ps(floats(a), floats(b))));
        max_floats(a, b) = avx2!(bits(_mm_max_ps(floats(a), floats(b))));
        greater(a, b) = avx2!(bits(_mm_cmpgt_ps(floats(a), floats(b))));
        equal(a, b) = avx2!(bits(_mm_cmpeq_ps(floats(a), floats(b))));
        to_floats(x) = avx2!(bits(_mm_cvtepi32_ps(x)));
        add_ints(a, b) = avx2!(_mm_add_epi32(a, b));
        multiply_ints(a, b) = avx2!(_mm_mullo_epi32(a, b));
        min_ints(a, b) = avx2!(_mm_min_epi32(a, b));
        max_ints(a, b) = avx2!(_mm_max_epi32(a, b));
        signs(x) = avx2!(_mm_srai_epi32::<31>(x));
    }

    methods! {
        load_floats(floats: &[f32; 4]) -> __m128i = avx2!(_mm_castps_si128(_mm_loadu_ps(floats.as_ptr())));
        load_pairs(low: &[f32; 2], high: &[f32; 2]) -> __m128i = avx2!({
            let low = _mm_castsi128_pd(_mm_loadl_epi64(low.as_ptr().cast()));
            _mm_castpd_si128(_mm_loadh_pd(low, high.as_ptr().cast()))
        });
        store(bytes: &mut [u8; 16], x: __m128i) = avx2!(_mm_storeu_si128(bytes.as_mut_ptr().cast(), x));
        store_words(words: &mut [i16; 8], x: __m128i) = avx2!(_mm_storeu_si128(words.as_mut_ptr().cast(), x));
        store_sums(sums: &mut [i32; 4], x: __m128i) = avx2!(_mm_storeu_si128(sums.as_mut_ptr().cast(), x));
        store_floats(out: &mut [f32; 4], x: __m128i) = avx2!(_mm_storeu_ps(out.as_mut_ptr(), floats(x)));
        splat_float(x: f32) -> __m128i = avx2!(bits(_mm_set1_ps(x)));
    }

    /// Chooses among the registers in a tree, by the index's upper bits. Each bit is shifted to the
    /// top of its byte, where `vpblendvb` looks.
    #[inline(always)]
    fn lookup_within<const N: usize>(table: &[__m128i; 16], index: __m128i) -> __m128i {
        avx2!({
            // The shuffle would give 0 for an index above 127.
            let low = if N > 8 { _mm_and_si128(index, _mm_set1_epi8(15)) } else { index };
            let (by_16, by_32) = (_mm_slli_epi16::<3>(index), _mm_slli_epi16::<2>(index));
            let mut found = [index; N];
            for (found, table) in found.iter_mut().zip(table) {
                *found = _mm_shuffle_epi8(*table, low);
            }
            let mut left = N;
            for bit in [by_16, by_32, _mm_slli_epi16::<1>(index), index] {
                for i in 0..left / 2 {
                    found[i] = _mm_blendv_epi8(found[2 * i], found[2 * i + 1], bit);
                }
                left /= 2;
            }
            found[0]
        })
    }

    #[inline(always)]
    fn deal_2(bytes: &[u8; 32]) -> [__m128i; 2] {
        let (parts, _) = bytes.as_chunks::<16>();
        let (a, b) = (Self::load(&parts[0]), Self::load(&parts[1]));
        avx2!({
            let low = _mm_set1_epi16(0xff);
            let even = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
            [even, Self::upper_bytes(a, b)]
        })
    }

    #[inline(always)]
    fn deal_3(bytes: &[u8; 48]) -> [__m128i; 3] {
        let (parts, _) = bytes.as_chunks::<16>();
        let (a, b, c) = (Self::load(&parts[0]), Self::load(&parts[1]), Self::load(&parts[2]));
        avx2!({
            let or = |x, y, z| _mm_or_si128(_mm_or_si128(x, y), z);
            [
                or(
                    shuffle!(a; 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                    shuffle!(b; -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1),
                    shuffle!(c; -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13),
                ),
                or(
                    shuffle!(a; 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                    shuffle!(b; -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1),
                    shuffle!(c; -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14),
                ),
                or(
                    shuffle!(a; 2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                    shuffle!(b; -1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1),
                    shuffle!(c; -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15),
                ),
            ]
        })
    }

    #[inline(always)]
    fn deal_4(bytes: &[u8; 64]) -> [__m128i; 4] {
        let (parts, _) = bytes.as_chunks::<16>();
        avx2!({
            // Bring each four together within the registers, then transpose dwords.
            let fours = |i: usize| shuffle!(Self::load(&parts[i]); 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let (a, b, c, d) = (fours(0), fours(1), fours(2), fours(3));
            let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
            [
                _mm_unpacklo_epi64(ab, cd),
                _mm_unpackhi_epi64(ab, cd),
                _mm_unpacklo_epi64(ab_high, cd_high),
                _mm_unpackhi_epi64(ab_high, cd_high),
            ]
        })
    }

    #[inline(always)]
    fn sum(x: __m128i) -> i32 {
        avx2!({
            let pairs = _mm_add_epi32(x, _mm_unpackhi_epi64(x, x));
            _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<1>(pairs)))
        })
    }

    #[inline(always)]
    fn count_at_least(counts: __m128i, x: __m128i, threshold: __m128i) -> __m128i {
        // A mask is -1, so subtracting it adds 1.
        avx2!(_mm_sub_epi32(counts, bits(_mm_cmpge_ps(floats(x), floats(threshold)))))
    }

    #[inline(always)]
    fn unzip_floats(a: __m128i, b: __m128i) -> [__m128i; 2] {
        avx2!({
            let (a, b) = (floats(a), floats(b));
            [bits(_mm_shuffle_ps::<0x88>(a, b)), bits(_mm_shuffle_ps::<0xdd>(a, b))]
        })
    }

    /// The sum of two products of ±127 fits a word.
    #[inline(always)]
    fn dot_quads(a: __m128i, b: __m128i) -> __m128i {
        avx2!({
            let pairs = _mm_maddubs_epi16(_mm_abs_epi8(a), _mm_sign_epi8(b, a));
            _mm_madd_epi16(pairs, _mm_set1_epi16(1))
        })
    }

    #[inline(always)]
    fn load_triplets(x: &[f32; 12]) -> [__m128i; 3] {
        // The three registers hold x y z x, y z x y and z x y z.
        let (rows, _) = x.as_chunks::<4>();
        avx2!({
            let [a, b, c] = [&rows[0], &rows[1], &rows[2]].map(|row| _mm_loadu_ps(row.as_ptr()));
            // Collect the x, the y and the z of all three, then put them in order.
            let xs = _mm_blend_ps::<0b0010>(_mm_blend_ps::<0b0100>(a, b), c);
            let ys = _mm_blend_ps::<0b0100>(_mm_blend_ps::<0b1001>(a, b), c);
            let zs = _mm_blend_ps::<0b1001>(_mm_blend_ps::<0b0010>(a, b), c);
            [
                bits(_mm_shuffle_ps::<0b01_10_11_00>(xs, xs)),
                bits(_mm_shuffle_ps::<0b10_11_00_01>(ys, ys)),
                bits(_mm_shuffle_ps::<0b11_00_01_10>(zs, zs)),
            ]
        })
    }

    #[inline(always)]
    fn load_four([a, b, c, d]: [u32; 4]) -> __m128i {
        avx2!(_mm_setr_epi32(a as i32, b as i32, c as i32, d as i32))
    }
}
