//! Integers in registers of one and two lanes.
//!
//! AVX2's instructions for 256 bits do in each lane what those for 128 bits do, so one macro
//! implements both. A third type has two lanes and AVX-VNNI's products.

use super::{Avx2, Vnni, Ymm};
use crate::Rows;
use crate::codes::scalar::PAGE;
use crate::registers::Integers;
use core::arch::x86_64::*;

/// Returns the upper halves of the products of words. LLVM replaces the intrinsic by eight
/// instructions that go through dwords, so this is assembly.
macro_rules! upper_products {
    ($register:ident) => {
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(crate) fn upper_products(a: V, b: V) -> V {
            let product;
            // SAFETY: AVX2, which this function enables, has the instruction. It only uses
            // registers.
            unsafe {
                core::arch::asm!(
                    "vpmulhuw {}, {}, {}",
                    out($register) product, in($register) a, in($register) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            product
        }
    };
}

/// The instructions for 128 bits, named by what they do.
mod xmm {
    pub(super) use core::arch::x86_64::{
        __m128i as V, _mm_abs_epi8 as abs_bytes, _mm_add_epi32 as add_ints, _mm_adds_epu8 as add_saturated,
        _mm_and_si128 as and, _mm_andnot_si128 as and_not, _mm_hadd_epi32 as add_pairs,
        _mm_madd_epi16 as dot_pairs, _mm_maddubs_epi16 as dot_byte_pairs, _mm_mullo_epi16 as multiply_words,
        _mm_or_si128 as or, _mm_packus_epi16 as pack, _mm_set1_epi8 as splat, _mm_set1_epi16 as splat_word,
        _mm_shuffle_epi8 as shuffle, _mm_sign_epi8 as with_signs, _mm_srai_epi16 as shift_signed,
        _mm_srl_epi16 as shift_by, _mm_srli_epi16 as shift_words, _mm_sub_epi8 as sub_bytes,
        _mm_unpackhi_epi8 as upper_bytes, _mm_unpackhi_epi16 as upper_words,
        _mm_unpacklo_epi8 as lower_bytes, _mm_unpacklo_epi16 as lower_words, _mm_xor_si128 as xor,
    };

    upper_products!(xmm_reg);
}

/// The same for 256 bits.
pub(crate) use ymm::upper_products;
mod ymm {
    pub(super) use core::arch::x86_64::{
        __m256i as V, _mm256_abs_epi8 as abs_bytes, _mm256_add_epi32 as add_ints,
        _mm256_adds_epu8 as add_saturated, _mm256_and_si256 as and, _mm256_andnot_si256 as and_not,
        _mm256_hadd_epi32 as add_pairs, _mm256_madd_epi16 as dot_pairs,
        _mm256_maddubs_epi16 as dot_byte_pairs, _mm256_mullo_epi16 as multiply_words, _mm256_or_si256 as or,
        _mm256_packus_epi16 as pack, _mm256_set1_epi8 as splat, _mm256_set1_epi16 as splat_word,
        _mm256_shuffle_epi8 as shuffle, _mm256_sign_epi8 as with_signs, _mm256_srai_epi16 as shift_signed,
        _mm256_srl_epi16 as shift_by, _mm256_srli_epi16 as shift_words, _mm256_sub_epi8 as sub_bytes,
        _mm256_unpackhi_epi8 as upper_bytes, _mm256_unpackhi_epi16 as upper_words,
        _mm256_unpacklo_epi8 as lower_bytes, _mm256_unpacklo_epi16 as lower_words, _mm256_xor_si256 as xor,
    };

    upper_products!(ymm_reg);
}

macro_rules! integers {
    ($registers:ident, $of:ident, $lanes:literal lanes: $($own:tt)*) => {
        impl Integers for $registers {
            type V = $of::V;
            const LANES: usize = $lanes;

            methods! { Self::V;
                and(a, b) = avx2!($of::and(a, b));
                or(a, b) = avx2!($of::or(a, b));
                select(mask, a, b) = avx2!($of::or($of::and(mask, a), $of::and_not(mask, b)));
                sub_bytes(a, b) = avx2!($of::sub_bytes(a, b));
                multiply_words(a, b) = avx2!($of::multiply_words(a, b));
                upper_bytes(a, b) = avx2!($of::pack($of::shift_words::<8>(a), $of::shift_words::<8>(b)));
                lookup_16(table, index) = avx2!($of::shuffle(table, index));
            }

            methods! {
                splat(byte: u8) -> Self::V = avx2!($of::splat(byte as i8));
                splat_word(word: u16) -> Self::V = avx2!($of::splat_word(word as i16));
                magnitudes(signed: Self::V) -> Self::V = avx2!($of::abs_bytes(signed));
            }

            $($own)*

            #[inline(always)]
            fn quantize_weights(
                rows: &Rows,
                weights: &[f32],
                limit: i16,
                products: &mut [f32; PAGE],
                ints: &mut [i16; PAGE],
            ) -> Option<f32> {
                avx2!(super::quantize_weights(rows, weights, limit, products, ints))
            }

            #[inline(always)]
            fn shift_bytes_right(x: Self::V, bits: u32) -> Self::V {
                let mask = Self::splat((0xffu32 >> bits) as u8);
                avx2!($of::and($of::shift_by(x, _mm_cvtsi32_si128(bits as i32)), mask))
            }

            #[inline(always)]
            fn shift_words_right<const BITS: i32>(x: Self::V) -> Self::V {
                avx2!($of::shift_words::<BITS>(x))
            }

            #[inline(always)]
            fn upper_bits(a: Self::V, b: Self::V, bits: u32) -> Self::V {
                Self::multiply_fractions(a, b, 1 << bits)
            }

            #[inline(always)]
            fn multiply_fractions(low: Self::V, high: Self::V, factor: u16) -> Self::V {
                let factor = Self::splat_word(factor);
                avx2!($of::pack($of::upper_products(low, factor), $of::upper_products(high, factor)))
            }

            #[inline(always)]
            fn interleave(low: Self::V, high: Self::V) -> [Self::V; 2] {
                avx2!([$of::lower_bytes(low, high), $of::upper_bytes(low, high)])
            }

            #[inline(always)]
            fn extend(bytes: Self::V) -> [Self::V; 2] {
                let [low, high] = Self::interleave(bytes, bytes);
                avx2!([$of::shift_signed::<8>(low), $of::shift_signed::<8>(high)])
            }

            /// Saturating addition sets the highest bit for an index above 15. The shuffle gives 0
            /// then.
            #[inline(always)]
            fn lookup(table: Self::V, index: Self::V) -> Self::V {
                Self::lookup_16(table, avx2!($of::add_saturated(index, $of::splat(0x70))))
            }

            /// For an index below 16 the difference has its highest bit set, and the shuffle gives
            /// 0.
            #[inline(always)]
            fn lookup_32([a, b]: [Self::V; 2], index: Self::V) -> Self::V {
                Self::or(Self::lookup(a, index), Self::lookup_16(b, Self::sub_bytes(index, Self::splat(16))))
            }

            #[inline(always)]
            fn lookup_64(&[a, b, c, d]: &[Self::V; 4], index: Self::V) -> Self::V {
                let from = |start| Self::sub_bytes(index, Self::splat(start));
                let low = Self::or(Self::lookup(a, index), Self::lookup(b, from(16)));
                Self::or(low, Self::or(Self::lookup(c, from(32)), Self::lookup(d, from(48))))
            }

            #[inline(always)]
            fn lookup_words([lower, upper]: [Self::V; 2], index: Self::V) -> [Self::V; 2] {
                Self::interleave(Self::lookup_16(lower, index), Self::lookup_16(upper, index))
            }

            #[inline(always)]
            fn add_weighted([low, high]: [Self::V; 2], a: Self::V, b: Self::V, weights: Self::V) -> [Self::V; 2] {
                let (lower, upper) = avx2!(($of::lower_words(a, b), $of::upper_words(a, b)));
                [Self::dot_words(low, lower, weights), Self::dot_words(high, upper, weights)]
            }

            #[inline(always)]
            fn sum_four([a, b, c, d]: [Self::V; 4]) -> [[i32; 4]; 2] {
                Self::rows(avx2!($of::add_pairs($of::add_pairs(a, b), $of::add_pairs(c, d))))
            }
        }
    };
}

/// Products for CPUs without VNNI.
macro_rules! dots {
    ($of:ident) => {
        #[inline(always)]
        fn dot_bytes(sums: Self::V, a: Self::V, b: Self::V) -> Self::V {
            Self::dot_signed(sums, a, Self::magnitudes(b), b)
        }

        #[inline(always)]
        fn dot_words(sums: Self::V, a: Self::V, b: Self::V) -> Self::V {
            avx2!($of::add_ints(sums, $of::dot_pairs(a, b)))
        }

        /// `vpmaddubsw` needs one unsigned operand, so its signs move to the other one. The sum of
        /// two products of ±127 fits a word.
        #[inline(always)]
        fn dot_signed(sums: Self::V, a: Self::V, magnitudes: Self::V, signed: Self::V) -> Self::V {
            Self::dot_magnitudes(sums, avx2!($of::with_signs(a, signed)), magnitudes)
        }

        #[inline(always)]
        fn flip(a: Self::V, b: Self::V) -> Self::V {
            avx2!($of::xor(a, b))
        }

        #[inline(always)]
        fn dot_magnitudes(sums: Self::V, a: Self::V, magnitudes: Self::V) -> Self::V {
            Self::dot_words(sums, avx2!($of::dot_byte_pairs(magnitudes, a)), Self::splat_word(1))
        }
    };
}

impl Avx2 {
    #[inline(always)]
    fn rows(x: __m128i) -> [[i32; 4]; 2] {
        [Self::add_lanes(x), [0; 4]]
    }
}

integers! { Avx2, xmm, 1 lanes:
    dots! { xmm }

    #[inline(always)]
    fn load(bytes: &[u8; 16]) -> __m128i {
        avx2!(_mm_loadu_si128(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn load_words(words: &[i16; 8]) -> __m128i {
        avx2!(_mm_loadu_si128(words.as_ptr().cast()))
    }

    #[inline(always)]
    unsafe fn load_pointers([bytes, _]: [*const u8; 2]) -> __m128i {
        // SAFETY: the caller promises 16 readable bytes. `Avx2` is only used where AVX2 was detected.
        unsafe { _mm_loadu_si128(bytes.cast()) }
    }

    #[inline(always)]
    fn splat_pairs([words, _]: [u32; 2]) -> __m128i {
        avx2!(_mm_set1_epi32(words as i32))
    }

    #[inline(always)]
    fn add_lanes(x: __m128i) -> [i32; 4] {
        let mut lanes = [0; 4];
        avx2!(_mm_storeu_si128(lanes.as_mut_ptr().cast(), x));
        lanes
    }
}

impl Ymm {
    #[inline(always)]
    fn rows(x: __m256i) -> [[i32; 4]; 2] {
        two_lanes(x)
    }
}

impl Vnni {
    #[inline(always)]
    fn rows(x: __m256i) -> [[i32; 4]; 2] {
        two_lanes(x)
    }
}

/// Hides a constant from LLVM, which would replace shuffles with known indices by others, half as
/// many again.
#[inline]
#[target_feature(enable = "avx2")]
fn kept(mut x: __m256i) -> __m256i {
    // SAFETY: the assembly has no instruction.
    unsafe {
        core::arch::asm!("/* {} */", inout(ymm_reg) x, options(pure, nomem, nostack, preserves_flags));
    }
    x
}

/// Stores both lanes.
#[inline(always)]
fn two_lanes(x: __m256i) -> [[i32; 4]; 2] {
    let mut lanes = [[0; 4]; 2];
    avx2!(_mm256_storeu_si256(lanes.as_mut_ptr().cast(), x));
    lanes
}

/// Methods that are the same for both types of two lanes.
macro_rules! two_lanes {
    () => {
        #[inline(always)]
        fn load(bytes: &[u8; 16]) -> __m256i {
            avx2!(_mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())))
        }

        #[inline(always)]
        fn load_words(words: &[i16; 8]) -> __m256i {
            avx2!(_mm256_broadcastsi128_si256(_mm_loadu_si128(words.as_ptr().cast())))
        }

        #[inline(always)]
        unsafe fn load_pointers([lower, upper]: [*const u8; 2]) -> __m256i {
            // SAFETY: the caller promises 16 readable bytes for each lane. These types are only used where
            // AVX2 was detected.
            unsafe { _mm256_loadu2_m128i(upper.cast(), lower.cast()) }
        }

        #[inline(always)]
        fn splat_pairs([lower, upper]: [u32; 2]) -> __m256i {
            avx2!(_mm256_blend_epi32::<0xf0>(
                _mm256_set1_epi32(lower as i32),
                _mm256_set1_epi32(upper as i32)
            ))
        }

        #[inline(always)]
        fn read_scales<const N: usize>(rows: &Rows, first: usize) -> [f32; N] {
            let mut out = [0.0; N];
            match out.first_chunk_mut() {
                Some(sixteen) if N == 16 => avx2!(super::read_scales(rows, first, sixteen)),
                _ => rows.read_scales(first, &mut out),
            }
            out
        }

        #[inline(always)]
        fn thirds(four: [__m256i; 4]) -> [__m256i; 3] {
            avx2!({
                let places = kept(Self::load(&[0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 255, 255, 255, 255]));
                let [a, b, c, d] = four;
                let (a, b) = (_mm256_shuffle_epi8(a, places), _mm256_shuffle_epi8(b, places));
                let (c, d) = (_mm256_shuffle_epi8(c, places), _mm256_shuffle_epi8(d, places));
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                let (ab_last, cd_last) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                [
                    _mm256_unpacklo_epi64(ab, cd),
                    _mm256_unpackhi_epi64(ab, cd),
                    _mm256_unpacklo_epi64(ab_last, cd_last),
                ]
            })
        }

        #[inline(always)]
        fn add_lanes(x: __m256i) -> [i32; 4] {
            Avx2::add_lanes(avx2!(_mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))))
        }
    };
}

integers! { Ymm, ymm, 2 lanes:
    dots! { ymm }
    two_lanes! {}
}

/// Defines a product by the name of its instruction. The code around it is compiled for AVX2 only,
/// where the intrinsic would be a call.
macro_rules! with_vnni {
    ($name:ident = $instruction:literal) => {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(mut sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `Vnni` is only used where AVX-VNNI was detected. The instruction only uses
            // registers.
            unsafe {
                core::arch::asm!(
                    concat!("{{vex}} ", $instruction, " {}, {}, {}"),
                    inout(ymm_reg) sums, in(ymm_reg) a, in(ymm_reg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sums
        }
    };
}

with_vnni! { dot_bytes_unsigned = "vpdpbusd" }
with_vnni! { dot_words = "vpdpwssd" }

integers! { Vnni, ymm, 2 lanes:
    #[inline(always)]
    fn dot_words(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        avx2!(dot_words(sums, a, b))
    }

    #[inline(always)]
    fn dot_bytes(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        avx2!(dot_bytes_unsigned(sums, _mm256_abs_epi8(b), _mm256_sign_epi8(a, b)))
    }

    /// `vpdpbusd` takes the first operand as unsigned. With this bias, no signs have to be moved.
    const BIAS: u8 = 128;

    #[inline(always)]
    fn dot_signed(sums: __m256i, a: __m256i, _magnitudes: __m256i, signed: __m256i) -> __m256i {
        avx2!(dot_bytes_unsigned(sums, a, signed))
    }

    two_lanes! {}
}
