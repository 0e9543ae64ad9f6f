//! CPU kernels of [octaplex](https://docs.rs/octaplex). **No stability promise; use `octaplex`.**
//!
//! [`Backend`] is a token: it can only be obtained from detection, so holding one proves that the CPU has its
//! instructions. Each kernel is one safe method; the methods check lengths (a wrong one is a programming error and
//! panics) and jump to the backend's function. `scalar.rs` is the specification, and every other backend equals it
//! bit for bit on finite inputs.
#![no_std]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod detect;
pub mod hadamard;
mod layout;
mod octahedral;
pub mod quaternion;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
mod search;
mod windows;
#[macro_use]
#[allow(unused_macros, reason = "where the specification is the only backend")]
mod forward;
#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
mod lanes;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm32;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use detect::Backend;
pub use layout::{
    Affine, AngleTree, Angles, BLOCK_BYTES, BLOCK_VALUES, BlockBook, Float, IntQuery, Packing, Rows,
    SignQuery, SignRows,
};
pub use octahedral::{Octahedral, Search};
pub use windows::{Fit, WindowCodebook};

use detect::Isa;
use quaternion::{ChunkLayout, QuaternionSet, RadiusSteps};

/// The widest vector that kernels with internal buffers take.
pub const MAX_DIM: usize = 576;

/// The largest weight, in magnitude, that accumulating kernels take: no product or sum leaves `f32`'s range.
pub const MAX_WEIGHT: f32 = 4_294_967_296.0;

/// Runs a kernel of the backend at hand: the one place where a token turns into instructions.
macro_rules! dispatch {
    ($backend:expr, $kernel:ident($($argument:expr),* $(,)?)) => {
        match $backend.isa {
            Isa::Scalar => scalar::$kernel($($argument),*),
            // SAFETY: tokens of this ISA are only made by `detect.rs`, after the CPU was asked for its instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86_64::avx2::$kernel($($argument),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { x86_64::avx512::$kernel($($argument),*) },
            // NEON is part of every aarch64 target with floats.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => aarch64::neon::$kernel($($argument),*),
            // SAFETY: as for AVX2: the CPU was asked for its dot-product instructions.
            #[cfg(target_arch = "aarch64")]
            #[allow(unused_unsafe, reason = "kernels that are NEON's own are safe")]
            Isa::NeonDotprod => unsafe { aarch64::dotprod::$kernel($($argument),*) },
            // SIMD128 is enabled for the whole build where this variant exists.
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => wasm32::simd128::$kernel($($argument),*),
        }
    };
}

impl Backend {
    /// Σ aᵢ·bᵢ in 16 lanes, then by halves.
    #[must_use]
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len());
        dispatch!(self, dot(a, b))
    }

    /// The largest magnitude; 0 for an empty slice.
    #[must_use]
    pub fn max_abs(self, x: &[f32]) -> f32 {
        dispatch!(self, max_abs(x))
    }

    /// The smallest and the largest value; (∞, -∞) for an empty slice.
    #[must_use]
    pub fn min_max(self, x: &[f32]) -> (f32, f32) {
        dispatch!(self, min_max(x))
    }

    /// x ← scale · H·(signs∘x); `signs` are masks, 0 or the sign bit. The width has a [`hadamard::base`].
    pub fn rotate(self, x: &mut [f32], signs: &[u32], scale: f32) {
        assert_eq!(x.len(), signs.len());
        assert!(hadamard::base(x.len()).is_some());
        dispatch!(self, rotate(x, signs, scale))
    }

    /// x ← signs∘(scale · Hᵀx).
    pub fn rotate_inverse(self, x: &mut [f32], signs: &[u32], scale: f32) {
        assert_eq!(x.len(), signs.len());
        assert!(hadamard::base(x.len()).is_some());
        dispatch!(self, rotate_inverse(x, signs, scale))
    }

    /// y = Σⱼ xⱼ·columnⱼ of a dense matrix, stored column by column.
    pub fn multiply_columns(self, columns: &[f32], x: &[f32], y: &mut [f32]) {
        assert_eq!(columns.len(), x.len() * y.len());
        assert_eq!(x.len(), y.len());
        dispatch!(self, multiply_columns(columns, x, y))
    }

    /// code = number of thresholds ≤ x·scale. Thresholds ascend; at most 255.
    pub fn quantize(self, x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
        assert_eq!(x.len(), codes.len());
        assert!(thresholds.len() < 256);
        dispatch!(self, quantize(x, scale, thresholds, codes))
    }

    /// out = scale · centroid\[code]; codes above the codebook take its last centroid.
    pub fn lookup(self, codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
        assert_eq!(codes.len(), out.len());
        assert!((1..=256).contains(&centroids.len()));
        dispatch!(self, lookup(codes, centroids, scale, out))
    }

    /// Packs codes, each below `packing.levels()`, into `packing.bytes(codes.len())` bytes.
    pub fn pack(self, packing: Packing, codes: &[u8], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), packing.bytes(codes.len()));
        dispatch!(self, pack(packing, codes, bytes))
    }

    /// The inverse of [`pack`](Self::pack). Any bytes are allowed; the codes stay below `packing.levels()`.
    pub fn unpack(self, packing: Packing, bytes: &[u8], codes: &mut [u8]) {
        assert_eq!(bytes.len(), packing.bytes(codes.len()));
        dispatch!(self, unpack(packing, bytes, codes))
    }

    /// out = rint(x · limit/max|x|); returns the value of one unit, max|x|/limit.
    pub fn quantize_query(self, x: &[f32], limit: i16, out: &mut [i16]) -> f32 {
        assert_eq!(x.len(), out.len());
        assert!(limit > 0);
        dispatch!(self, quantize_query(x, limit, out))
    }

    /// score\[query]\[row] = (Σ q·centroid, an exact integer) · (query scale · `scale`) · row scale.
    /// Centroids are at most ±127 where there are up to 16, ±2047 otherwise.
    pub fn score_codes(
        self,
        rows: &Rows,
        centroids: &[i16],
        scale: f32,
        queries: &[IntQuery],
        scores: &mut [f32],
    ) {
        check_rows(rows, centroids);
        assert!(queries.iter().all(|query| query.values.len() == rows.dim));
        assert_eq!(scores.len(), queries.len() * rows.count());
        dispatch!(self, score_codes(rows, centroids, scale, queries, scores))
    }

    /// acc\[query] += Σ weight·row scale·`scale`·centroid, with integer weights and sums for each run of 256 rows.
    /// Weights (\[query]\[row]) are at most [`MAX_WEIGHT`] in magnitude, row scales finite.
    pub fn accumulate_codes(
        self,
        rows: &Rows,
        centroids: &[i16],
        scale: f32,
        weights: &[f32],
        acc: &mut [f32],
    ) {
        check_rows(rows, centroids);
        assert_eq!(acc.len() % rows.dim, 0);
        assert_eq!(weights.len(), acc.len() / rows.dim * rows.count());
        dispatch!(self, accumulate_codes(rows, centroids, scale, weights, acc))
    }

    /// out = scale · centroid of a row of [`WindowCodebook`] codes.
    pub fn decode_windows(self, book: &WindowCodebook, row: &[u8], scale: f32, out: &mut [f32]) {
        check_windows(book, out.len(), row);
        assert_eq!(row.len(), book.row_bytes(out.len()));
        dispatch!(self, decode_windows(book, row, scale, out))
    }

    /// score\[query]\[row] = (Σ q·centroid, an exact integer) · (query scale · `scale`) · row scale, for queries of at
    /// most ±127.
    pub fn score_windows(
        self,
        book: &WindowCodebook,
        dim: usize,
        bytes: &[u8],
        scale: f32,
        queries: &[IntQuery],
        scores: &mut [f32],
    ) {
        check_windows(book, dim, bytes);
        assert!(queries.iter().all(|query| query.values.len() == dim));
        assert_eq!(scores.len(), queries.len() * (bytes.len() / book.row_bytes(dim)));
        dispatch!(self, score_windows(book, dim, bytes, scale, queries, scores))
    }

    /// acc\[query] += Σ weight·row scale·`scale`·centroid, with integer weights and sums for each run of 256 rows.
    /// Weights (\[query]\[row]) are at most [`MAX_WEIGHT`] in magnitude, row scales finite.
    pub fn accumulate_windows(
        self,
        book: &WindowCodebook,
        dim: usize,
        bytes: &[u8],
        scale: f32,
        weights: &[f32],
        acc: &mut [f32],
    ) {
        check_windows(book, dim, bytes);
        assert_eq!(acc.len() % dim, 0);
        assert_eq!(weights.len(), acc.len() / dim * (bytes.len() / book.row_bytes(dim)));
        dispatch!(self, accumulate_windows(book, dim, bytes, scale, weights, acc))
    }

    /// Finds, for each `dim`-wide vector z·scale, the row of least squared error of all rows, by Viterbi's algorithm;
    /// writes its planes (the two bytes of its scale stay as they are), and how well it fits. z·scale is at most 2²⁰
    /// in magnitude. O(dim · states · levels) a vector.
    pub fn viterbi_encode(
        self,
        book: &WindowCodebook,
        dim: usize,
        z: &[f32],
        scales: &[f32],
        bytes: &mut [u8],
        fits: &mut [Fit],
    ) {
        check_windows(book, dim, bytes);
        let count = fits.len();
        assert_eq!((z.len(), scales.len()), (count * dim, count));
        assert_eq!(bytes.len(), count * book.row_bytes(dim));
        dispatch!(self, viterbi_encode(book, dim, z, scales, bytes, fits))
    }

    /// Reads little-endian floats; finite ones exactly, others to unspecified values.
    pub fn decode_floats(self, format: Float, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * format.bytes());
        dispatch!(self, decode_floats(format, bytes, out))
    }

    /// The largest bits of little-endian floats without their signs: all are finite if this is below infinity's.
    #[must_use]
    pub fn largest_bits(self, format: Float, bytes: &[u8]) -> u32 {
        assert_eq!(bytes.len() % format.bytes(), 0);
        dispatch!(self, largest_bits(format, bytes))
    }

    /// Writes little-endian floats, rounded to nearest even.
    pub fn encode_floats(self, format: Float, x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), x.len() * format.bytes());
        dispatch!(self, encode_floats(format, x, bytes))
    }

    /// score\[query]\[row] = [`dot`](Self::dot) of the query and the row of `dim` floats.
    pub fn score_floats(
        self,
        format: Float,
        dim: usize,
        bytes: &[u8],
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        check_widths(dim, dim * format.bytes(), bytes, queries);
        assert_eq!(scores.len(), queries.len() * (bytes.len() / (dim * format.bytes())));
        dispatch!(self, score_floats(format, dim, bytes, queries, scores))
    }

    /// acc\[query] += Σ weight·row, rows ascending; weights are \[query]\[row].
    pub fn accumulate_floats(
        self,
        format: Float,
        dim: usize,
        bytes: &[u8],
        weights: &[f32],
        acc: &mut [f32],
    ) {
        check_widths(dim, dim * format.bytes(), bytes, &[]);
        assert_eq!(acc.len() % dim, 0);
        assert_eq!(weights.len(), acc.len() / dim * (bytes.len() / (dim * format.bytes())));
        if !bytes.is_empty() {
            dispatch!(self, accumulate_floats(format, dim, bytes, weights, acc))
        }
    }

    /// code = clamp(rint((x - zero)/scale), range) + offset; a zero scale gives codes 0.
    pub fn quantize_affine(
        self,
        x: &[f32],
        zero: f32,
        scale: f32,
        offset: i32,
        range: (i32, i32),
        codes: &mut [u8],
    ) {
        assert_eq!(x.len(), codes.len());
        assert!(range.0 <= range.1 && range.0 + offset >= 0 && range.1 + offset <= 255);
        dispatch!(self, quantize_affine(x, zero, scale, offset, range, codes))
    }

    /// out = (code - offset)·scale + zero, group by group, of one row.
    pub fn decode_affine(self, layout: &Affine, row: &[u8], out: &mut [f32]) {
        check_affine(layout, row, &[]);
        assert_eq!((row.len(), out.len()), (layout.row_bytes(), layout.dim));
        dispatch!(self, decode_affine(layout, row, out))
    }

    /// score\[query]\[row] of the `f32` query and the row's decoded values, summed as `scalar.rs` says.
    pub fn score_affine(self, layout: &Affine, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
        check_affine(layout, bytes, queries);
        assert_eq!(scores.len(), queries.len() * (bytes.len() / layout.row_bytes()));
        dispatch!(self, score_affine(layout, bytes, queries, scores))
    }

    /// acc\[query] += Σ weight·decoded row, rows ascending; weights are \[query]\[row].
    pub fn accumulate_affine(self, layout: &Affine, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
        check_affine(layout, bytes, &[]);
        assert_eq!(acc.len() % layout.dim, 0);
        assert_eq!(weights.len(), acc.len() / layout.dim * (bytes.len() / layout.row_bytes()));
        if !bytes.is_empty() {
            dispatch!(self, accumulate_affine(layout, bytes, weights, acc))
        }
    }

    /// x ← (x + `offset`)·`scale`; returns the largest result, -∞ for none.
    #[must_use]
    pub fn scale_logits(self, x: &mut [f32], offset: f32, scale: f32) -> f32 {
        dispatch!(self, scale_logits(x, offset, scale))
    }

    /// x ← `cap`·tanh(x/`cap`), absolute error below 2·10⁻⁷·`cap`. The cap is positive.
    pub fn soft_cap(self, x: &mut [f32], cap: f32) {
        assert!(cap > 0.0);
        dispatch!(self, soft_cap(x, cap))
    }

    /// x ← e^(x - `max`), relative error below 1.5·10⁻⁷, 0 from -87 down; returns the sum, 16 lanes, then by halves.
    /// No x is above `max`; -∞ gives 0.
    #[must_use]
    pub fn exp_weights(self, x: &mut [f32], max: f32) -> f32 {
        dispatch!(self, exp_weights(x, max))
    }

    /// Writes the stream of x·scale: for every triplet the direction that `search` finds, and a radius.
    pub fn octahedral_encode(
        self,
        layout: &Octahedral,
        search: Search,
        x: &[f32],
        scale: f32,
        stream: &mut [u8],
    ) {
        check_octahedral(layout);
        assert_eq!((x.len(), stream.len()), (layout.dim, layout.stream_bytes()));
        dispatch!(self, octahedral_encode(layout, search, x, scale, stream))
    }

    /// out = scale · the vector of a stream. Any bytes are allowed.
    pub fn octahedral_decode(self, layout: &Octahedral, stream: &[u8], scale: f32, out: &mut [f32]) {
        check_octahedral(layout);
        assert_eq!((out.len(), stream.len()), (layout.dim, layout.stream_bytes()));
        dispatch!(self, octahedral_decode(layout, stream, scale, out))
    }

    /// score\[query]\[row] for rows `stride` bytes apart, directions of up to 5 bits and queries of at most ±127.
    pub fn score_octahedral(
        self,
        layout: &Octahedral,
        stride: usize,
        bytes: &[u8],
        queries: &[IntQuery],
        scores: &mut [f32],
    ) {
        check_octahedral_rows(layout, stride, bytes);
        assert!(!layout.directions.is_empty());
        assert!(queries.iter().all(|query| query.values.len() == layout.dim));
        assert_eq!(scores.len(), queries.len() * (bytes.len() / stride));
        dispatch!(self, score_octahedral(layout, stride, bytes, queries, scores))
    }

    /// The same for queries in `f32` and directions of any number of bits.
    pub fn score_octahedral_floats(
        self,
        layout: &Octahedral,
        stride: usize,
        bytes: &[u8],
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        check_octahedral_rows(layout, stride, bytes);
        assert!(queries.iter().all(|query| query.len() == layout.dim));
        assert_eq!(scores.len(), queries.len() * (bytes.len() / stride));
        dispatch!(self, score_octahedral_floats(layout, stride, bytes, queries, scores))
    }

    /// acc\[query] += Σ weight·row, rows ascending; weights are \[query]\[row].
    pub fn accumulate_octahedral(
        self,
        layout: &Octahedral,
        stride: usize,
        bytes: &[u8],
        weights: &[f32],
        acc: &mut [f32],
    ) {
        check_octahedral_rows(layout, stride, bytes);
        assert_eq!(acc.len() % layout.dim, 0);
        assert_eq!(weights.len(), acc.len() / layout.dim * (bytes.len() / stride));
        if !bytes.is_empty() {
            dispatch!(self, accumulate_octahedral(layout, stride, bytes, weights, acc))
        }
    }

    /// Asks for bytes that will be read soon; it changes nothing but time.
    pub fn prefetch(self, bytes: &[u8]) {
        for line in bytes.chunks(64) {
            // SAFETY: SSE is part of every x86-64 target, and a prefetch neither reads nor writes for the program.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast());
            }
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                core::arch::asm!("prfm pldl1keep, [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
            }
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            let _ = line;
        }
    }

    /// Benchmark baseline, not bit-exact: scores a page of f16 rows, row by row, as an uncompressed cache would, with
    /// fused multiply-adds where the CPU has them.
    #[doc(hidden)]
    pub fn f16_dot_fma(self, query: &[f32], bytes: &[u8], scores: &mut [f32]) {
        check_widths(query.len(), 2 * query.len(), bytes, &[]);
        assert_eq!(scores.len(), bytes.len() / (2 * query.len()));
        match self.isa {
            // SAFETY: as in `dispatch!`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86_64::baseline::f16_dot_fma_avx2(query, bytes, scores) },
            // SAFETY: as in `dispatch!`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { x86_64::baseline::f16_dot_fma_avx512(query, bytes, scores) },
            _ => self.score_floats(Float::F16, query.len(), bytes, &[query], scores),
        }
    }
}

/// Planes of signs.
impl Backend {
    /// bit = x ≥ 0 (-0 is positive), least significant bit first; a whole number of bytes.
    pub fn pack_signs(self, x: &[f32], plane: &mut [u8]) {
        assert_eq!(x.len(), 8 * plane.len());
        dispatch!(self, pack_signs(x, plane))
    }

    /// out = scale where the bit is set, -scale elsewhere.
    pub fn unpack_signs(self, plane: &[u8], scale: f32, out: &mut [f32]) {
        assert_eq!(out.len(), 8 * plane.len());
        dispatch!(self, unpack_signs(plane, scale, out))
    }

    /// score\[query]\[row] += (Σ ±q, an exact integer) · (query scale · `scale`) · row scale.
    pub fn score_signs(self, rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]) {
        check_sign_rows(rows);
        assert!(queries.iter().all(|query| query.values.len() == rows.dim));
        assert_eq!(scores.len(), queries.len() * rows.count());
        dispatch!(self, score_signs(rows, scale, queries, scores))
    }

    /// acc\[query] += Σ ±weight·row scale·`scale`, with integer weights and sums for each run of 256 rows. Weights
    /// (\[query]\[row]) are at most [`MAX_WEIGHT`] in magnitude, row scales finite.
    pub fn accumulate_signs(self, rows: &SignRows, scale: f32, weights: &[f32], acc: &mut [f32]) {
        check_sign_rows(rows);
        assert_eq!(acc.len() % rows.dim, 0);
        assert_eq!(weights.len(), acc.len() / rows.dim * rows.count());
        dispatch!(self, accumulate_signs(rows, scale, weights, acc))
    }
}

/// Small blocks.
impl Backend {
    /// Scales, codes and bit planes of each 32 values; a scale must not round to infinity as an f16.
    pub fn quantize_blocks(self, book: &BlockBook, x: &[f32], bytes: &mut [u8]) {
        check_blocks(x.len(), bytes);
        dispatch!(self, quantize_blocks(book, x, bytes))
    }

    /// Whether all scales are finite.
    #[must_use]
    pub fn blocks_are_finite(self, bytes: &[u8]) -> bool {
        assert!(bytes.len().is_multiple_of(BLOCK_BYTES));
        dispatch!(self, blocks_are_finite(bytes))
    }

    /// out = scale · centroid\[code]. Scales are finite.
    pub fn decode_blocks(self, book: &BlockBook, bytes: &[u8], out: &mut [f32]) {
        check_blocks(out.len(), bytes);
        dispatch!(self, decode_blocks(book, bytes, out))
    }

    /// score\[query]\[row] = [`dot`](Self::dot) of the query and the decoded row of `dim` values.
    pub fn score_blocks(
        self,
        book: &BlockBook,
        dim: usize,
        bytes: &[u8],
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        let rows = check_block_rows(dim, bytes);
        assert!(queries.iter().all(|query| query.len() == dim));
        assert_eq!(scores.len(), queries.len() * rows);
        dispatch!(self, score_blocks(book, dim, bytes, queries, scores))
    }

    /// acc\[query] += Σ weight·decoded row, rows ascending; weights are \[query]\[row].
    pub fn accumulate_blocks(
        self,
        book: &BlockBook,
        dim: usize,
        bytes: &[u8],
        weights: &[f32],
        acc: &mut [f32],
    ) {
        let rows = check_block_rows(dim, bytes);
        assert_eq!(acc.len() % dim, 0);
        assert_eq!(weights.len(), acc.len() / dim * rows);
        if !bytes.is_empty() {
            dispatch!(self, accumulate_blocks(book, dim, bytes, weights, acc))
        }
    }
}

/// Trees of polar coordinates.
impl Backend {
    /// x\[..roots] ← the roots' radii; codes of level 1, then level 2, …
    pub fn quantize_angles(self, tree: &AngleTree, x: &mut [f32], codes: &mut [u8]) {
        check_tree(tree);
        assert_eq!((x.len(), codes.len()), (tree.dim, tree.codes()));
        dispatch!(self, quantize_angles(tree, x, codes))
    }

    /// The coordinates of a row with finite roots. Any other bytes are allowed.
    pub fn decode_angles(self, tree: &AngleTree, row: &[u8], out: &mut [f32]) {
        check_tree(tree);
        assert_eq!((row.len(), out.len()), (tree.row_bytes(), tree.dim));
        dispatch!(self, decode_angles(tree, row, out))
    }

    /// score\[query]\[row], a tree of products.
    pub fn score_angles(self, tree: &AngleTree, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]) {
        check_tree(tree);
        check_widths(tree.dim, tree.row_bytes(), bytes, queries);
        assert_eq!(scores.len(), queries.len() * (bytes.len() / tree.row_bytes()));
        dispatch!(self, score_angles(tree, bytes, queries, scores))
    }

    /// acc\[query] += Σ weight·decoded row, rows ascending; weights are \[query]\[row].
    pub fn accumulate_angles(self, tree: &AngleTree, bytes: &[u8], weights: &[f32], acc: &mut [f32]) {
        check_tree(tree);
        check_widths(tree.dim, tree.row_bytes(), bytes, &[]);
        assert_eq!(acc.len() % tree.dim, 0);
        assert_eq!(weights.len(), acc.len() / tree.dim * (bytes.len() / tree.row_bytes()));
        if !bytes.is_empty() {
            dispatch!(self, accumulate_angles(tree, bytes, weights, acc))
        }
    }
}

fn check_tree(tree: &AngleTree) {
    assert!((1..=9).contains(&tree.levels.len()) && tree.dim <= MAX_DIM);
    assert!(tree.roots() > 0 && tree.dim.is_multiple_of(1 << tree.levels.len()));
    for (level, angles) in tree.levels.iter().enumerate() {
        assert!((1..=8).contains(&angles.bits));
        let codes = 1 << angles.bits;
        assert_eq!((angles.cos.len(), angles.sin.len()), (codes, codes));
        assert_eq!(angles.tangents.len(), if level == 0 { (codes / 4).max(1) } else { codes } - 1);
    }
}

fn check_blocks(values: usize, bytes: &[u8]) {
    assert!(values.is_multiple_of(BLOCK_VALUES));
    assert_eq!(bytes.len(), values / BLOCK_VALUES * BLOCK_BYTES);
}

fn check_block_rows(dim: usize, bytes: &[u8]) -> usize {
    assert!((BLOCK_VALUES..=MAX_DIM).contains(&dim) && dim.is_multiple_of(BLOCK_VALUES));
    let row_bytes = dim / BLOCK_VALUES * BLOCK_BYTES;
    assert_eq!(bytes.len() % row_bytes, 0);
    bytes.len() / row_bytes
}

fn check_sign_rows(rows: &SignRows) {
    assert!((1..=MAX_DIM).contains(&rows.dim) && rows.dim.is_multiple_of(8));
    assert!(rows.at >= rows.outer.map_or(0, Float::bytes));
    assert!(rows.stride >= rows.at + 2 + rows.dim / 8);
    assert_eq!(rows.bytes.len() % rows.stride, 0);
}

fn check_octahedral(layout: &Octahedral) {
    let (directions, radii, rest) = (layout.direction_bits, layout.radius_bits, layout.rest_bits);
    assert!((1..=MAX_DIM).contains(&layout.dim));
    assert!((1..=7).contains(&directions) && radii <= 6 && rest <= 7);
    assert!(2 * usize::from(rest) <= layout.field_bits());
    assert_eq!(layout.coordinates.len(), 1 << directions);
    assert_eq!(layout.lengths.len(), 1 << (2 * (directions - 1)));
    let codes = if directions <= 5 { 1 << (2 * directions) } else { 0 };
    assert_eq!(layout.directions.len(), codes);
    let entries = [128, 256, 0][usize::from(directions.saturating_sub(4)).min(2)];
    assert!(layout.planes.iter().all(|plane| plane.len() == entries));
    assert_eq!(layout.radii.len(), 1 << radii);
    assert_eq!(layout.rest.len(), if rest > 0 { 1 << rest } else { 0 });
    assert_ne!(layout.scale, Float::Bf16);
}

fn check_octahedral_rows(layout: &Octahedral, stride: usize, bytes: &[u8]) {
    check_octahedral(layout);
    // Kernels multiply strides by numbers of rows in 32 bits.
    let row_bytes = layout.header_bytes() + layout.stream_bytes();
    assert!((row_bytes..=1 << 16).contains(&stride));
    assert_eq!(bytes.len() % stride, 0);
}

/// Chunks of four values as quaternions.
impl Backend {
    /// The Euclidean norm of each chunk of four values.
    pub fn chunk_norms(self, x: &[f32], norms: &mut [f32]) {
        assert_eq!(x.len(), 4 * norms.len());
        dispatch!(self, chunk_norms(x, norms))
    }

    /// radius as `steps` says; code p·S + s = the product of the largest inner product with the chunk, the lowest on
    /// ties, and 0 where the radius is 0. A chunk whose norm is set to 0 is left out. Norms are finite and not negative;
    /// a chunk of a positive norm has that norm.
    pub fn quaternion_encode(
        self,
        set: &QuaternionSet,
        x: &[f32],
        norms: &[f32],
        steps: RadiusSteps,
        codes: &mut [u16],
        radii: &mut [u8],
    ) {
        check_set(set);
        assert_eq!(x.len(), 4 * norms.len());
        assert_eq!((codes.len(), radii.len()), (norms.len(), norms.len()));
        dispatch!(self, quaternion_encode(set, x, norms, steps, codes, radii))
    }

    /// Writes a row but for its scale and its flags. Codes are below `layout.codes()`, radii at most the limit.
    pub fn pack_chunks(self, layout: &ChunkLayout, codes: &[u16], radii: &[u8], row: &mut [u8]) {
        assert!(layout.is_valid());
        assert_eq!((codes.len(), radii.len(), row.len()), (layout.chunks, layout.chunks, layout.row_bytes()));
        dispatch!(self, pack_chunks(layout, codes, radii, row))
    }

    /// out = radius · (row scale/limit) · unit·member, chunk by chunk. Any bytes with a finite scale are allowed.
    pub fn decode_quaternions(self, layout: &ChunkLayout, set: &QuaternionSet, row: &[u8], out: &mut [f32]) {
        check_chunks(layout, set, row);
        assert_eq!((row.len(), out.len()), (layout.row_bytes(), 4 * layout.chunks));
        dispatch!(self, decode_quaternions(layout, set, row, out))
    }

    /// score\[query]\[row], each chunk an integer product of 8-bit numbers: see `scalar.rs`.
    pub fn score_quaternions(
        self,
        layout: &ChunkLayout,
        set: &QuaternionSet,
        bytes: &[u8],
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        check_chunks(layout, set, bytes);
        assert!(queries.iter().all(|query| query.len() == 4 * layout.chunks));
        assert_eq!(scores.len(), queries.len() * (bytes.len() / layout.row_bytes()));
        dispatch!(self, score_quaternions(layout, set, bytes, queries, scores))
    }

    /// acc\[query] += Σ weight·decoded row, rows ascending; weights are \[query]\[row].
    pub fn accumulate_quaternions(
        self,
        layout: &ChunkLayout,
        set: &QuaternionSet,
        bytes: &[u8],
        weights: &[f32],
        acc: &mut [f32],
    ) {
        check_chunks(layout, set, bytes);
        assert_eq!(acc.len() % (4 * layout.chunks), 0);
        assert_eq!(weights.len(), acc.len() / (4 * layout.chunks) * (bytes.len() / layout.row_bytes()));
        if !bytes.is_empty() {
            dispatch!(self, accumulate_quaternions(layout, set, bytes, weights, acc))
        }
    }
}

fn check_set(set: &QuaternionSet) {
    let members = set.members.len();
    assert!((1..=255).contains(&members) && set.ints.len() == members);
    assert!(set.index.is_none_or(|index| index.members() == members));
}

fn check_chunks(layout: &ChunkLayout, set: &QuaternionSet, bytes: &[u8]) {
    check_set(set);
    assert!(layout.is_valid() && usize::from(layout.members) == set.members.len());
    assert_eq!(bytes.len() % layout.row_bytes(), 0);
}

fn check_rows(rows: &Rows, centroids: &[i16]) {
    assert!((1..=MAX_DIM).contains(&rows.dim));
    assert!(rows.stride >= 2 + rows.packing.bytes(rows.dim));
    assert_eq!(rows.bytes.len() % rows.stride, 0);
    assert_eq!(centroids.len(), rows.packing.levels());
}

fn check_windows(book: &WindowCodebook, dim: usize, bytes: &[u8]) {
    assert!((16..=MAX_DIM).contains(&dim) && dim.is_multiple_of(16));
    assert_eq!(bytes.len() % book.row_bytes(dim), 0);
}

fn check_widths(dim: usize, row_bytes: usize, bytes: &[u8], queries: &[&[f32]]) {
    assert!((1..=MAX_DIM).contains(&dim));
    assert_eq!(bytes.len() % row_bytes, 0);
    assert!(queries.iter().all(|query| query.len() == dim));
}

fn check_affine(layout: &Affine, bytes: &[u8], queries: &[&[f32]]) {
    assert!(layout.group > 0 && layout.group.is_multiple_of(16) && layout.dim.is_multiple_of(layout.group));
    assert!((2..=8).contains(&layout.bits));
    check_widths(layout.dim, layout.row_bytes(), bytes, queries);
}
