//! Kernels for rows of codes, and for single vectors on their way to codes and back. Each code
//! stands for a centroid of a codebook.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod layout;
#[cfg(not(target_os = "none"))]
pub(crate) mod portable;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::rows::Pages;
use crate::{Backend, IntQuery, MAX_DIM, Packing, Rows};
use layout::Codebook;

impl Backend {
    /// Quantises values: code = number of thresholds ≤ x·scale. Thresholds must ascend; there may
    /// be at most 255.
    ///
    /// # Panics
    /// If lengths differ, or there are more than 255 thresholds.
    pub fn quantize(self, x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
        contract!(x.len() == codes.len());
        contract!(thresholds.len() < 256);
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8])
        )
    }

    /// Looks up codes: out = scale · centroid\[code]. Codes beyond the codebook give its last
    /// centroid.
    ///
    /// # Panics
    /// If lengths differ, or there are not 1 to 256 centroids.
    pub fn lookup(self, codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
        contract!(codes.len() == out.len());
        contract!((1..=256).contains(&centroids.len()));
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            lookup(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32])
        )
    }

    /// Packs codes below `packing.levels()` into `packing.bytes(codes.len())` bytes.
    ///
    /// # Panics
    /// If `bytes` is not `packing.bytes(codes.len())` long.
    pub fn pack(self, packing: Packing, codes: &[u8], bytes: &mut [u8]) {
        contract!(bytes.len() == packing.bytes(codes.len()));
        dispatch!(
            self, avx2: avx2, avx512: avx512, registers: wide;
            pack(packing: Packing, codes: &[u8], bytes: &mut [u8])
        )
    }

    /// Unpacks codes, the inverse of [`pack`](Self::pack). Any bytes are allowed, and the codes are
    /// below `packing.levels()`.
    ///
    /// # Panics
    /// If `bytes` is not `packing.bytes(codes.len())` long.
    pub fn unpack(self, packing: Packing, bytes: &[u8], codes: &mut [u8]) {
        contract!(bytes.len() == packing.bytes(codes.len()));
        dispatch!(
            self, avx2: wide, avx512: avx512, registers: wide;
            unpack(packing: Packing, bytes: &[u8], codes: &mut [u8])
        )
    }

    /// Looks up packed codes, as [`unpack`](Self::unpack) and [`lookup`](Self::lookup) in one: out
    /// = scale · centroid\[code].
    ///
    /// If the packing has digits, there may be at most [`MAX_DIM`] codes.
    ///
    /// # Panics
    /// If `bytes` is not `packing.bytes(out.len())` long, or there is not one centroid for each
    /// code.
    pub fn lookup_packed(
        self,
        packing: Packing,
        bytes: &[u8],
        centroids: &[i16],
        scale: f32,
        out: &mut [f32],
    ) {
        contract!(bytes.len() == packing.bytes(out.len()));
        contract!(centroids.len() == packing.levels());
        contract!(packing.radix() == 1 || out.len() <= MAX_DIM);
        #[cfg(target_arch = "x86_64")]
        if matches!(self.isa, Isa::Avx512 | Isa::Amx) {
            // SAFETY: `detect.rs` creates tokens of these two only after it has found AVX-512.
            return unsafe { avx512::lookup_packed(packing, bytes, centroids, scale, out) };
        }
        if let (Some(centroids), true) = (centroids.as_array(), packing == Packing::bits(6)) {
            dispatch!(
                self, avx2: avx2, avx512: avx2, registers: scalar;
                lookup_sixes(bytes: &[u8], centroids: &[i16; 64], scale: f32, out: &mut [f32])
            );
            return;
        }
        let (mut bytes, mut out) = (bytes, out);
        // Not `chunks`, whose count is a division: microcontrollers would link its panic. Planes
        // with digits are never that long.
        while out.len() > MAX_DIM {
            let (first, rest) = core::mem::take(&mut out).split_at_mut(MAX_DIM);
            let Some((plane, planes)) = bytes.split_at_checked(MAX_DIM / 8 * packing.raw_bits() as usize)
            else {
                return;
            };
            self.lookup_unpacked::<MAX_DIM>(packing, plane, centroids, scale, first);
            (bytes, out) = (planes, rest);
        }
        match out.len() {
            ..=128 => self.lookup_unpacked::<128>(packing, bytes, centroids, scale, out),
            _ => self.lookup_unpacked::<MAX_DIM>(packing, bytes, centroids, scale, out),
        }
    }

    /// Looks up packed codes through an array of codes. With few codes the stack frame is small.
    #[inline(never)]
    fn lookup_unpacked<const N: usize>(
        self,
        packing: Packing,
        bytes: &[u8],
        centroids: &[i16],
        scale: f32,
        out: &mut [f32],
    ) {
        let mut codes = [0; N];
        // `get_mut` instead of an index, so that microcontrollers link no panic.
        if let Some(codes) = codes.get_mut(..out.len()) {
            self.unpack(packing, bytes, codes);
            self.lookup(codes, centroids, scale, out);
        }
    }

    /// Scores every query with every row of up to [`MAX_PAGES`](crate::MAX_PAGES) pages, laid out
    /// \[page]\[query]\[row]: (Σ q·centroid, an exact integer) · (query scale · `scale`) · row scale.
    ///
    /// Centroids must be within ±127 if there are up to 16 of them, and within ±2047 otherwise.
    ///
    /// # Panics
    /// If the rows do not fit the packing, or queries or scores do not fit the rows.
    pub fn score_codes(
        self,
        packing: Packing,
        pages: &[Rows],
        centroids: &[i16],
        scale: f32,
        queries: &[IntQuery],
        scores: &mut [f32],
    ) {
        let pages = Pages::new(pages, self, |dim| row_bytes(packing, dim, centroids));
        let Some(dim) = pages.dim() else { return };
        contract!(queries.iter().all(|query| query.values.len() == dim));
        contract!(scores.len() == queries.len() * pages.rows());
        let (book, pages) = (&Codebook { packing, centroids, scale }, pages.get());
        dispatch!(
            self, portable: portable, avx2: avx2<Ymm | Vnni>, avx512: avx512 + tiles, registers: wide + dots;
            score_codes(book: &Codebook, pages: &[Rows], queries: &[IntQuery], scores: &mut [f32])
        )
    }

    /// Adds Σ weight·row scale·`scale`·centroid to `acc`, laid out \[query]\[dim].
    ///
    /// Weights and sums are integers within each run of 256 rows of a page. Weights, laid out
    /// \[page]\[query]\[row], must be at most [`MAX_WEIGHT`](crate::MAX_WEIGHT) in magnitude, and row
    /// scales finite. There are up to [`MAX_PAGES`](crate::MAX_PAGES) pages, which are added in order.
    ///
    /// # Panics
    /// If the rows do not fit the packing, or `acc` and weights do not fit the rows.
    pub fn accumulate_codes(
        self,
        packing: Packing,
        pages: &[Rows],
        centroids: &[i16],
        scale: f32,
        weights: &[f32],
        acc: &mut [f32],
    ) {
        let pages = Pages::new(pages, self, |dim| row_bytes(packing, dim, centroids));
        let Some(dim) = pages.dim() else { return };
        contract!(acc.len().is_multiple_of(dim));
        contract!(weights.len() == acc.len() / dim * pages.rows());
        let (book, pages) = (&Codebook { packing, centroids, scale }, pages.get());
        dispatch!(
            self, portable: portable, avx2: avx2<Ymm>, avx512: avx512 + tiles, registers: wide + dots;
            accumulate_codes(book: &Codebook, pages: &[Rows], weights: &[f32], acc: &mut [f32])
        )
    }
}

/// Checks that there is a centroid for each code, and returns the bytes of a row.
fn row_bytes(packing: Packing, dim: usize, centroids: &[i16]) -> usize {
    contract!(centroids.len() == packing.levels());
    2 + packing.bytes(dim)
}
