//! Registers of any instruction set, as traits. `wide.rs` of each shape is written with them.
//!
//! Registers have 128 bits, or 256 where two rows of codes lie side by side. NEON, SIMD128 and AVX2
//! differ only in how they spell the operations.
//!
//! The most important operation is the table lookup of 16 bytes: a codebook of up to 16 centroids
//! is one register. Integer sums are exact in any order. So scores and weighted sums take
//! coordinates in the order in which they come out of the bytes.

/// Writes methods of one expression each. The second form takes registers and returns a register.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),+) $(-> $result:ty)? = $value:expr;)*) => {$(
        #[inline(always)]
        fn $name($($argument: $type),+) $(-> $result)? {
            $value
        }
    )*};
    ($register:ty; $($name:ident($($argument:ident),+) = $value:expr;)*) => {$(
        #[inline(always)]
        fn $name($($argument: $register),+) -> $register {
            $value
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) mod simd128;
mod tuning;

use crate::codes::scalar::{self, PAGE};
use crate::{Float, Rows};
pub(crate) use tuning::Tuning;

/// Returns the byte indices that put the four floats of a register into another order.
pub(crate) const fn order(of: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = 4 * of[i / 4] + (i % 4) as u8;
        i += 1;
    }
    bytes
}

/// Adds weight·x to `acc`, element by element.
///
/// It uses registers as wide as those from which `x` was stored. A wider load would wait until the
/// stores are finished.
#[inline(always)]
pub(crate) fn add_row<L: Registers>(weight: f32, x: &[f32], acc: &mut [f32]) {
    let ((fours, x), (fours_of_acc, acc)) = (x.as_chunks::<4>(), acc.as_chunks_mut::<4>());
    let weights = L::splat_float(weight);
    for (x, acc) in fours.iter().zip(fours_of_acc) {
        let product = L::multiply_floats(weights, L::load_floats(x));
        L::store_floats(acc, L::add_floats(L::load_floats(acc), product));
    }
    for (x, acc) in x.iter().zip(acc) {
        *acc += weight * x;
    }
}

/// Integers in registers of one lane of 16 bytes, or of two lanes.
///
/// All operations treat both lanes alike: they hold two rows side by side. Words have 16 bits.
/// Everything is little-endian.
///
/// ```text
/// 1 lane    │ row 0: 16 bytes │
/// 2 lanes   │ row 0: 16 bytes │ row 1: 16 bytes │
/// ```
pub(crate) trait Integers: Tuning {
    /// A register.
    type V: Copy;
    /// The number of lanes, 1 or 2.
    const LANES: usize;

    /// Loads bytes or words, the same into each lane.
    fn load(bytes: &[u8; 16]) -> Self::V;
    fn load_words(words: &[i16; 8]) -> Self::V;
    /// Loads 16 bytes from a pointer for each lane.
    ///
    /// # Safety
    /// 16 bytes can be read from as many of them as there are lanes.
    unsafe fn load_pointers(bytes: [*const u8; 2]) -> Self::V;
    fn splat(byte: u8) -> Self::V;
    fn splat_word(word: u16) -> Self::V;
    /// Repeats two words four times, the lower one first. The second lane gets two others.
    fn splat_pairs(words: [u32; 2]) -> Self::V;

    fn and(a: Self::V, b: Self::V) -> Self::V;
    fn or(a: Self::V, b: Self::V) -> Self::V;
    /// Takes bits of `a` where the mask has ones, and of `b` elsewhere.
    fn select(mask: Self::V, a: Self::V, b: Self::V) -> Self::V;
    fn sub_bytes(a: Self::V, b: Self::V) -> Self::V;
    fn shift_bytes_right(x: Self::V, bits: u32) -> Self::V;
    fn multiply_words(a: Self::V, b: Self::V) -> Self::V;
    fn shift_words_right<const BITS: i32>(x: Self::V) -> Self::V;
    /// Multiplies 16 fractions of 16 bits by `factor`, and returns the integer parts as bytes.
    /// `factor` is below 256.
    ///
    /// The result may be wrong if the exact product lies within 3/1024 below an integer; callers
    /// ensure that it never does.
    fn multiply_fractions(low: Self::V, high: Self::V, factor: u16) -> Self::V;
    /// Returns the upper bytes of 16 words.
    fn upper_bytes(a: Self::V, b: Self::V) -> Self::V;
    /// Returns the upper `bits` bits of 16 words as bytes. `bits` is at most 8.
    #[inline(always)]
    fn upper_bits(a: Self::V, b: Self::V, bits: u32) -> Self::V {
        Self::shift_bytes_right(Self::upper_bytes(a, b), 8 - bits)
    }
    /// Returns words whose lower byte is from `low` and whose upper byte is from `high`.
    fn interleave(low: Self::V, high: Self::V) -> [Self::V; 2];
    /// Extends signed bytes to words.
    fn extend(bytes: Self::V) -> [Self::V; 2];

    /// Looks up bytes in a table of 16. Returns 0 for an index above 15.
    fn lookup(table: Self::V, index: Self::V) -> Self::V;
    /// Looks up bytes in a table of 16, for an index below 16. Returns 0 for index 255.
    #[inline(always)]
    fn lookup_16(table: Self::V, index: Self::V) -> Self::V {
        Self::lookup(table, index)
    }
    /// Looks up bytes in a table of 32, for an index below 32.
    fn lookup_32(table: [Self::V; 2], index: Self::V) -> Self::V;
    /// Looks up bytes in a table of 64. Returns 0 for an index above 63.
    fn lookup_64(table: &[Self::V; 4], index: Self::V) -> Self::V;

    /// Looks up words for an index below 16. The table is split into lower and upper bytes; the
    /// upper ones only repeat the sign.
    #[inline(always)]
    fn lookup_words([lower, _]: [Self::V; 2], index: Self::V) -> [Self::V; 2] {
        Self::extend(Self::lookup_16(lower, index))
    }

    /// Quantises the weights of rows as [`quantize_weights`](scalar::quantize_weights) does. `products` may hold
    /// anything: zeros would cost as much as some rows.
    #[inline(always)]
    fn quantize_weights(
        rows: &Rows,
        weights: &[f32],
        limit: i16,
        products: &mut [f32; PAGE],
        ints: &mut [i16; PAGE],
    ) -> Option<f32> {
        scalar::quantize_weights_in(rows, weights, limit, products, ints)
    }

    /// Adds 16 products of signed bytes, within ±127, to four `i32`: four neighbouring products to
    /// each.
    fn dot_bytes(sums: Self::V, a: Self::V, b: Self::V) -> Self::V;
    // Scores are Σ a·s over centroids a and the query's bytes s. Instruction sets differ in the products
    // of bytes that they have, so each computes the sum in its own way:
    //
    //  NEON        Σ a·s
    //  AVX2        Σ |s|·(a with the sign of s)      `magnitudes` returns |s|
    //  AVX-VNNI    Σ (a + 128)·s - 128·Σ s           `BIAS` is 128, and the caller subtracts 128·Σ s
    //  SIMD128     the same                          `magnitudes` returns every second byte of s as a word

    /// Returns what [`dot_signed`](Self::dot_signed) needs besides the signed bytes. It is computed
    /// once for many sums.
    #[inline(always)]
    fn magnitudes(signed: Self::V) -> Self::V {
        signed
    }
    /// The offset that makes the first operand of [`dot_signed`](Self::dot_signed) unsigned. The
    /// sum is too large by the offset times the sum of the other operand.
    const BIAS: u8 = 0;
    /// Adds products of `a` minus [`BIAS`](Self::BIAS) and `signed`, as
    /// [`dot_bytes`](Self::dot_bytes) does.
    #[inline(always)]
    fn dot_signed(sums: Self::V, a: Self::V, _magnitudes: Self::V, signed: Self::V) -> Self::V {
        Self::dot_bytes(sums, a, signed)
    }
    /// Returns `a` with its bits inverted where `b` has ones. For registers that
    /// [flip](Tuning::FLIPS).
    #[inline(always)]
    fn flip(a: Self::V, _b: Self::V) -> Self::V {
        a
    }
    /// Adds products of `a` and of what [`magnitudes`](Self::magnitudes) returned. For registers
    /// that flip.
    #[inline(always)]
    fn dot_magnitudes(sums: Self::V, a: Self::V, magnitudes: Self::V) -> Self::V {
        Self::dot_bytes(sums, a, magnitudes)
    }
    /// Adds 8 products of words to four `i32`.
    fn dot_words(sums: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Adds words of `a` times the first weight and words of `b` times the second to eight `i32`.
    fn add_weighted(sums: [Self::V; 2], a: Self::V, b: Self::V, weights: Self::V) -> [Self::V; 2];
    /// Separates the first, second and third bytes of sixteen threes. Four threes are at the front
    /// of each of four registers. For registers that take codes by [threes](Tuning::THREES).
    #[inline(always)]
    fn thirds([a, b, c, _]: [Self::V; 4]) -> [Self::V; 3] {
        [a, b, c]
    }
    /// Returns, for each lane, the sums of the four `i32` of four registers.
    fn sum_four(x: [Self::V; 4]) -> [[i32; 4]; 2];
    /// Reads the scales of N rows, 8 or 16. Rows behind the last one keep 0.
    #[inline(always)]
    fn read_scales<const N: usize>(rows: &Rows, first: usize) -> [f32; N] {
        let mut scales = [0.0; N];
        rows.read_scales(first, &mut scales);
        scales
    }
    /// Returns the sum of the lanes.
    fn add_lanes(x: Self::V) -> [i32; 4];

    // Weighted sums over rows take a group of four registers, which have a row each, or two rows in their
    // halves. `weave` brings bytes that are added together next to each other:
    //
    //  NEON with dot products   of all four in a dword      `udot` with the upper and with the lower bytes of weights
    //  NEON                     none                        a product for each row
    //  SIMD128                  of two in a word            as words, products with two weights
    //
    // Weights of a group are a register: those of the lower halves, then those of the upper halves.

    /// Sums over rows take unsigned bytes, and weights that are not negative, as [`WEIGHTS`](Self::WEIGHTS) has them.
    const ROW_DOTS: bool = false;
    /// A shuffle that brings the words of weights into the order of a group: of four rows, and of eight.
    const WEIGHTS: [[u8; 16]; 2] = [
        [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7],
        [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15],
    ];
    /// Brings bytes of a group together.
    #[inline(always)]
    fn weave([a, b, c, d]: [Self::V; 4]) -> [Self::V; 4] {
        let ([a, b], [c, d]) = (Self::interleave(a, b), Self::interleave(c, d));
        [a, b, c, d]
    }
    /// Adds the weighted bytes of register J of a woven group to 16 sums. With dot products, the first four
    /// registers are for the upper bytes of weights, and the others for the lower ones.
    #[inline(always)]
    fn add_woven<const J: usize>(sums: &mut [Self::V; 8], bytes: Self::V, weights: Self::V) {
        let half = J % 2;
        let first = (8 * half + 4 * (J / 2)) as u8;
        let mut pattern = [0; 16];
        for (i, byte) in pattern.iter_mut().enumerate() {
            *byte = first + (i % 4) as u8;
        }
        let (weights, [low, high]) = (Self::lookup(weights, Self::load(&pattern)), Self::extend(bytes));
        sums[2 * half] = Self::dot_words(sums[2 * half], low, weights);
        sums[2 * half + 1] = Self::dot_words(sums[2 * half + 1], high, weights);
    }
}

/// All operations that an instruction set must offer, on registers of one lane.
#[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "not all of it is used there"))]
pub(crate) trait Registers: Integers {
    /// The table size, in words, up to which lookups are faster than single loads.
    const TABLE: usize;

    fn load_floats(floats: &[f32; 4]) -> Self::V;
    /// Loads two pairs of floats from two places.
    fn load_pairs(low: &[f32; 2], high: &[f32; 2]) -> Self::V;
    fn store_floats(floats: &mut [f32; 4], x: Self::V);
    fn store(bytes: &mut [u8; 16], x: Self::V);
    fn store_words(words: &mut [i16; 8], x: Self::V);
    fn store_sums(sums: &mut [i32; 4], x: Self::V);
    /// Repeats two words four times, the lower one first.
    #[inline(always)]
    fn splat_pair(words: u32) -> Self::V {
        Self::splat_pairs([words; 2])
    }

    fn min_bytes(a: Self::V, b: Self::V) -> Self::V;
    /// Looks up bytes in the first N registers (1, 2, 4, 8 or 16) of a table. The index must be
    /// within them.
    fn lookup_within<const N: usize>(table: &[Self::V; 16], index: Self::V) -> Self::V;
    /// Distributes bytes to registers one by one: byte i goes to register i mod 2, 3 or 4.
    ///
    /// ```text
    /// bytes    0 1 2 3 4 5 6 7 8 …        deal_3:   0 3 6 …   1 4 7 …   2 5 8 …
    /// ```
    fn deal_2(bytes: &[u8; 32]) -> [Self::V; 2];
    fn deal_3(bytes: &[u8; 48]) -> [Self::V; 3];
    fn deal_4(bytes: &[u8; 64]) -> [Self::V; 4];
    /// Loads eight bytes into each half.
    #[inline(always)]
    fn load_halves(low: &[u8; 8], high: &[u8; 8]) -> Self::V {
        Self::load([*low, *high].as_flattened().first_chunk().unwrap_or(&[0; 16]))
    }
    /// Distributes bytes to registers as [`deal_2`](Self::deal_2) does, from two places to the halves.
    #[inline(always)]
    fn deal_halves_2(low: &[u8; 16], high: &[u8; 16]) -> [Self::V; 2] {
        Self::deal_2([*low, *high].as_flattened().first_chunk().unwrap_or(&[0; 32]))
    }
    /// Distributes bytes to registers as [`deal_3`](Self::deal_3) does, from two places to the halves.
    #[inline(always)]
    fn deal_halves_3(low: &[u8; 24], high: &[u8; 24]) -> [Self::V; 3] {
        Self::deal_3([*low, *high].as_flattened().first_chunk().unwrap_or(&[0; 48]))
    }
    /// [`insert`](Self::insert) is an instruction, and so is a shift of bytes to the left.
    const INSERTS: bool = false;
    #[inline(always)]
    fn shift_bytes_left(x: Self::V, _bits: u32) -> Self::V {
        x
    }
    /// Moves `upper` by BITS to the left and takes the lowest BITS bits of `lower` below it.
    #[inline(always)]
    fn insert<const BITS: i32>(lower: Self::V, _upper: Self::V) -> Self::V {
        lower
    }
    /// Returns the sums of the halves of `a` and of `b`.
    #[inline(always)]
    fn sum_halves(a: Self::V, b: Self::V) -> [i32; 4] {
        let ([a, b, c, d], [e, f, g, h]) = (Self::add_lanes(a), Self::add_lanes(b));
        [a + b, c + d, e + f, g + h]
    }
    /// Returns the sum of four `i32`.
    fn sum(x: Self::V) -> i32;

    fn splat_float(x: f32) -> Self::V;
    fn multiply_floats(a: Self::V, b: Self::V) -> Self::V;
    /// Adds 1 to each of four `i32` where `x` ≥ `threshold`.
    fn count_at_least(counts: Self::V, x: Self::V, threshold: Self::V) -> Self::V;
    fn add_floats(a: Self::V, b: Self::V) -> Self::V;
    fn sub_floats(a: Self::V, b: Self::V) -> Self::V;
    /// Returns elements 0 and 2 of `a` and of `b`, and elements 1 and 3 of both.
    fn unzip_floats(a: Self::V, b: Self::V) -> [Self::V; 2];

    /// Reads little-endian floats.
    #[inline(always)]
    fn decode_floats(format: Float, bytes: &[u8], out: &mut [f32]) {
        crate::floats::decode_floats(format, bytes, out);
    }

    /// Writes little-endian floats, rounded to nearest even.
    #[inline(always)]
    fn encode_floats(format: Float, x: &[f32], bytes: &mut [u8]) {
        crate::floats::encode_floats(format, x, bytes);
    }

    /// Returns sums of the products of four neighbouring signed bytes, within ±127, as four `i32`.
    fn dot_quads(a: Self::V, b: Self::V) -> Self::V;
    /// Converts four `i32` to floats.
    fn to_floats(x: Self::V) -> Self::V;
    /// Returns the x, the y and the z of four triplets.
    fn load_triplets(floats: &[f32; 12]) -> [Self::V; 3];
    fn xor(a: Self::V, b: Self::V) -> Self::V;
    /// Returns the smaller of two floats, none of them NaN.
    fn min_floats(a: Self::V, b: Self::V) -> Self::V;
    /// Returns ones where a > b.
    fn greater(a: Self::V, b: Self::V) -> Self::V;
    fn divide_floats(a: Self::V, b: Self::V) -> Self::V;
    fn sqrt_floats(x: Self::V) -> Self::V;
    fn add_ints(a: Self::V, b: Self::V) -> Self::V;
    fn multiply_ints(a: Self::V, b: Self::V) -> Self::V;
    fn min_ints(a: Self::V, b: Self::V) -> Self::V;
    fn max_ints(a: Self::V, b: Self::V) -> Self::V;
    /// Returns ones where an `i32` is negative.
    fn signs(x: Self::V) -> Self::V;

    /// Returns the larger of two floats, none of them NaN.
    fn max_floats(a: Self::V, b: Self::V) -> Self::V;
    /// Returns ones where a = b.
    fn equal(a: Self::V, b: Self::V) -> Self::V;
    /// Loads four words of 32 bits, the first one lowest.
    fn load_four(words: [u32; 4]) -> Self::V;
}

/// Floats, or `i32`, in the lanes of a register of any width, for kernels whose lanes never meet.
///
/// Registers of 128 bits have it through [`Registers`]. `Ymm` and `Zmm` have their own
/// implementations.
///
/// Call these methods only in functions that are `#[inline(always)]`, and never in a closure, which
/// cannot be. A closure would be compiled without the instruction set, and each operation would
/// become a call (ten times as slow).
pub(crate) trait Elementwise: Sized {
    /// A register.
    type V: Copy;
    /// The number of lanes: 4, 8 or 16.
    const LANES: usize;

    fn splat(x: f32) -> Self::V;
    fn splat_int(x: i32) -> Self::V;
    /// Loads the first lanes of a slice that is at least a register long.
    fn load(x: &[f32]) -> Self::V;
    fn load_ints(x: &[u32]) -> Self::V;
    fn store(out: &mut [f32], x: Self::V);
    fn store_ints(out: &mut [u32], x: Self::V);
    /// Returns the components of the first quadruples, one quadruple a lane.
    fn quads(of: &[&[f32; 4]; 16]) -> [Self::V; 4];
    /// Returns the components of triplets, one triplet a lane.
    fn triplets(x: &[f32]) -> [Self::V; 3];

    fn add(a: Self::V, b: Self::V) -> Self::V;
    fn sub(a: Self::V, b: Self::V) -> Self::V;
    fn multiply(a: Self::V, b: Self::V) -> Self::V;
    fn divide(a: Self::V, b: Self::V) -> Self::V;
    fn sqrt(x: Self::V) -> Self::V;
    /// Returns the smaller of two floats, none of them NaN.
    fn min(a: Self::V, b: Self::V) -> Self::V;
    /// Returns the larger of two floats, none of them NaN.
    fn max(a: Self::V, b: Self::V) -> Self::V;
    fn and(a: Self::V, b: Self::V) -> Self::V;
    fn or(a: Self::V, b: Self::V) -> Self::V;
    fn xor(a: Self::V, b: Self::V) -> Self::V;
    fn add_ints(a: Self::V, b: Self::V) -> Self::V;
    fn multiply_ints(a: Self::V, b: Self::V) -> Self::V;
    fn min_ints(a: Self::V, b: Self::V) -> Self::V;
    fn max_ints(a: Self::V, b: Self::V) -> Self::V;
    /// Returns ones where an `i32` is negative.
    fn signs(x: Self::V) -> Self::V;

    /// Takes the lanes of `yes` where a > b, and of `no` elsewhere.
    fn greater(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Takes the lanes of `yes` where a = b, and of `no` elsewhere.
    fn equal(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Adds 1 to `i32` counts where `x` ≥ `threshold`.
    fn count_at_least(counts: Self::V, x: Self::V, threshold: Self::V) -> Self::V;
    /// Looks up elements of a table. Indices must be below its length.
    fn look_up(table: &Table<Self>, index: Self::V) -> Self::V;

    /// Clears the sign.
    #[inline(always)]
    fn magnitude(x: Self::V) -> Self::V {
        Self::and(x, Self::splat_int(i32::MAX))
    }
}

/// A table of floats for lookups. Its length is a power of two.
pub(crate) struct Table<'a, T: Elementwise> {
    all: &'a [f32],
    /// The first elements in four registers, filled up with zeros.
    first: [T::V; 4],
}

impl<'a, T: Elementwise> Table<'a, T> {
    /// Loads the first elements of a table.
    #[inline(always)]
    pub(crate) fn new(all: &'a [f32]) -> Self {
        assert!(all.len().is_power_of_two());
        let mut padded = [0.0; 64];
        let count = all.len().min(4 * T::LANES);
        padded[..count].copy_from_slice(&all[..count]);
        let mut first = [T::splat(0.0); 4];
        for (i, first) in first.iter_mut().enumerate() {
            *first = T::load(&padded[i * T::LANES..]);
        }
        Self { all, first }
    }
}

impl<L: Registers> Elementwise for L {
    type V = <L as Integers>::V;
    const LANES: usize = 4;

    methods! { Self::V;
        add(a, b) = L::add_floats(a, b);
        sub(a, b) = L::sub_floats(a, b);
        multiply(a, b) = L::multiply_floats(a, b);
        divide(a, b) = L::divide_floats(a, b);
        sqrt(x) = L::sqrt_floats(x);
        min(a, b) = L::min_floats(a, b);
        max(a, b) = L::max_floats(a, b);
        and(a, b) = <L as Integers>::and(a, b);
        or(a, b) = <L as Integers>::or(a, b);
        xor(a, b) = <L as Registers>::xor(a, b);
        add_ints(a, b) = <L as Registers>::add_ints(a, b);
        multiply_ints(a, b) = <L as Registers>::multiply_ints(a, b);
        min_ints(a, b) = <L as Registers>::min_ints(a, b);
        max_ints(a, b) = <L as Registers>::max_ints(a, b);
        signs(x) = <L as Registers>::signs(x);
        greater(a, b, yes, no) = L::select(<L as Registers>::greater(a, b), yes, no);
        equal(a, b, yes, no) = L::select(<L as Registers>::equal(a, b), yes, no);
        count_at_least(counts, x, threshold) = <L as Registers>::count_at_least(counts, x, threshold);
    }

    methods! {
        splat(x: f32) -> Self::V = L::splat_float(x);
        splat_int(x: i32) -> Self::V = L::splat_pair(x as u32);
        load(x: &[f32]) -> Self::V = L::load_floats(&[x[0], x[1], x[2], x[3]]);
        load_ints(x: &[u32]) -> Self::V = L::load_four([x[0], x[1], x[2], x[3]]);
        triplets(x: &[f32]) -> [Self::V; 3] = L::load_triplets(x.first_chunk().unwrap_or(&[0.0; 12]));
    }

    #[inline(always)]
    fn store(out: &mut [f32], x: Self::V) {
        let mut floats = [0.0; 4];
        L::store_floats(&mut floats, x);
        out[..4].copy_from_slice(&floats);
    }

    #[inline(always)]
    fn store_ints(out: &mut [u32], x: Self::V) {
        let mut ints = [0; 4];
        L::store_sums(&mut ints, x);
        out[..4].copy_from_slice(&ints.map(|int| int as u32));
    }

    #[inline(always)]
    fn quads(of: &[&[f32; 4]; 16]) -> [Self::V; 4] {
        let [ab_even, ab_odd] = L::unzip_floats(L::load_floats(of[0]), L::load_floats(of[1]));
        let [cd_even, cd_odd] = L::unzip_floats(L::load_floats(of[2]), L::load_floats(of[3]));
        let ([first, third], [second, fourth]) =
            (L::unzip_floats(ab_even, cd_even), L::unzip_floats(ab_odd, cd_odd));
        [first, second, third, fourth]
    }

    #[inline(always)]
    fn look_up(table: &Table<Self>, index: Self::V) -> Self::V {
        if table.all.len() <= 16 {
            let bytes = <L as Registers>::multiply_ints(index, L::splat_pair(0x0404_0404));
            return L::lookup_64(&table.first, <L as Registers>::add_ints(bytes, L::splat_pair(0x0302_0100)));
        }
        let mut indices = [0; 4];
        L::store_sums(&mut indices, index);
        let at = |i: i32| table.all[i as usize & (table.all.len() - 1)];
        L::load_floats(&indices.map(at))
    }
}
