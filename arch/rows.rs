//! Rows of bytes at equal distances, the input of most kernels.

#[cfg(target_arch = "x86_64")]
pub(crate) mod blocks;
#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::*;

use crate::floats::{f16_to_f32, row_scale};
use crate::prefetch::{AHEAD, LONG, prefetch};
use crate::{Backend, CHECKED, MAX_DIM};

/// Rows of a scale and planes, one every `stride` bytes.
///
/// A row has `len` bytes: an f16 scale, then planes. If `scales` are given separately, the f16 is
/// not read, and planes need no gaps between them. Then `stride` is `len` - 2, and a row's first
/// two bytes are the end of the previous row:
///
/// ```text
/// scales in rows     │ss│ planes 0 │ss│ planes 1 │         len = stride
/// scales apart       │..│ planes 0 │ planes 1 │            len = stride + 2; .. is never read
///                     └─ row 0 ────┘
///                             └─ row 1 ────────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows<'a> {
    /// All rows, up to the end of the last one or of its `stride`.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of a row, with the two bytes of its f16.
    pub len: usize,
    /// Coordinates of a row.
    pub dim: usize,
    /// The scales, if they are not in the rows.
    pub scales: Option<&'a [f32]>,
    /// Bytes that will be read next, in rows like these. They are prefetched while these rows are
    /// processed. Empty if unknown.
    pub ahead: &'a [u8],
}

impl<'a> Rows<'a> {
    /// Returns the number of rows.
    #[must_use]
    #[inline(always)]
    pub const fn count(&self) -> usize {
        match self.scales {
            // `check` compares them with the bytes. The division takes as long as many additions.
            Some(scales) => scales.len(),
            None => self.count_bytes(),
        }
    }

    /// Returns the number of rows that the bytes hold.
    const fn count_bytes(&self) -> usize {
        if self.bytes.len() < self.len || (!CHECKED && self.stride == 0) {
            return 0;
        }
        (self.bytes.len() - self.len) / self.stride + 1
    }

    /// Panics unless the bytes are whole rows of `len` bytes, with as many scales as rows.
    #[track_caller]
    pub(crate) fn check(&self, len: usize) {
        contract!((1..=MAX_DIM).contains(&self.dim));
        contract!(self.len == len);
        // Kernels multiply strides by row numbers in 32 bits.
        contract!(self.stride <= 1 << 16 && self.stride + if self.scales.is_some() { 2 } else { 0 } >= len);
        let (count, bytes) = (self.count(), self.bytes.len());
        // Up to the end of the last row, or of its stride. The number of scales needs no division.
        let whole = bytes == count * self.stride && (count == 0 || len <= self.stride);
        contract!(whole || bytes + self.stride == count * self.stride + len);
    }

    /// Starts prefetching, at the beginning of a kernel.
    ///
    /// Kernels that prefetch block by block continue with the returned rows: without `ahead`, long
    /// rows prefetch their own later bytes. For other kernels it prefetches all of `ahead`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, backend: Backend) -> Self {
        let mut rows = *self;
        if !backend.prefetches_by_blocks() {
            prefetch(self.ahead);
        } else if self.ahead.is_empty() && self.bytes.len() > LONG {
            rows.ahead = &self.bytes[AHEAD..];
        }
        rows
    }

    /// Prefetches `count` rows of `ahead`, from `first` on.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128")),
        allow(dead_code, reason = "its callers are written for registers")
    )]
    #[inline(always)]
    pub(crate) fn prefetch_some(&self, first: usize, count: usize) {
        let start = self.ahead.len().min(first * self.stride);
        prefetch(&self.ahead[start..self.ahead.len().min(start + count * self.stride)]);
    }

    /// Returns the bytes of a row. Empty if out of range, in builds without checks.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> &'a [u8] {
        if CHECKED {
            return &self.bytes[r * self.stride..][..self.len];
        }
        self.bytes.get(r * self.stride..).and_then(|bytes| bytes.get(..self.len)).unwrap_or_default()
    }

    /// Iterates over the bytes of the rows.
    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let rows = *self;
        (0..rows.count()).map(move |r| rows.row(r))
    }

    /// Returns the scale of a row.
    #[inline(always)]
    pub(crate) fn scale(&self, r: usize) -> f32 {
        self.scales.map_or_else(
            || row_scale(self.row(r)),
            |scales| if CHECKED { scales[r] } else { scales.get(r).copied().unwrap_or(0.0) },
        )
    }

    /// Reads the scales of N rows from `first` on. Entries behind the last row keep their values.
    #[inline(always)]
    pub(crate) fn read_scales<const N: usize>(&self, first: usize, out: &mut [f32; N]) {
        let count = N.min(self.count() - first);
        if let Some(scales) = self.scales {
            // As an array, so that `memcpy` is not called.
            if let Some(whole) = scales.get(first..).and_then(<[f32]>::first_chunk) {
                *out = *whole;
                return;
            }
            let scales = scales.get(first..first + count);
            contract!(scales.is_some());
            return out[..count].copy_from_slice(scales.unwrap_or(&[0.0; N][..count]));
        }
        let mut halves = [0; N];
        // One check for all rows: a check for each would take a tenth of the time of a score.
        let whole = count == 0 || (first + count - 1) * self.stride + 2 <= self.bytes.len();
        contract!(whole);
        let count = if whole { count } else { 0 };
        for (half, r) in halves[..count].iter_mut().zip(first..) {
            // SAFETY: the check above: two bytes of the last of these rows, and so of every row,
            // are inside `bytes`.
            *half = u16::from_le_bytes(unsafe {
                self.bytes.as_ptr().add(r * self.stride).cast::<[u8; 2]>().read()
            });
        }
        for (out, half) in out[..count].iter_mut().zip(halves) {
            *out = f16_to_f32(half);
        }
    }

    /// Returns the f16 of N rows from `first` on, if there are that many and the rows contain them.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
    #[inline(always)]
    pub(crate) fn halves<const N: usize>(&self, first: usize) -> Option<[u16; N]> {
        if self.scales.is_some() || (first + N - 1) * self.stride + 2 > self.bytes.len() {
            return None;
        }
        let mut halves = [0; N];
        // SAFETY: the check above: the last row's f16 ends inside `bytes`.
        let start = unsafe { self.bytes.as_ptr().add(first * self.stride) };
        for (r, half) in halves.iter_mut().enumerate() {
            // SAFETY: the check above: row `first + r` is at most the last one, whose f16 ends inside `bytes`.
            *half = u16::from_le_bytes(unsafe { start.add(r * self.stride).cast::<[u8; 2]>().read() });
        }
        Some(halves)
    }

    /// Returns at most `count` rows from `first` on.
    #[inline(always)]
    pub(crate) fn some(&self, first: usize, count: usize) -> Self {
        let count = count.min(self.count() - first);
        let start = first * self.stride;
        let end = start + if count > 0 { (count - 1) * self.stride + self.len } else { 0 };
        let bytes = self.bytes.get(start..end);
        let scales = self.scales.map(|scales| scales.get(first..first + count).unwrap_or_default());
        contract!(scales.is_none_or(|scales| scales.len() == count));
        Self {
            bytes: bytes.unwrap_or_default(),
            scales,
            ahead: self.ahead.get(start..).unwrap_or_default(),
            ..*self
        }
    }

    /// Splits the rows into runs of at most `count`.
    #[inline(always)]
    pub(crate) fn pages(self, count: usize) -> impl Iterator<Item = Rows<'a>> {
        (0..self.count()).step_by(count).map(move |first| self.some(first, count))
    }
}

/// The largest number of pages in a call of a kernel. What a kernel prepares, it prepares once for
/// all of them.
pub const MAX_PAGES: usize = if cfg!(target_os = "none") { 1 } else { 32 };

/// Rows that a call of a kernel takes as pages.
pub(crate) struct Pages<'p, 'a> {
    given: &'p [Rows<'a>],
    /// The same, if some prefetch their own later bytes. A copy of all takes as long as some rows.
    changed: Option<[Rows<'a>; MAX_PAGES]>,
}

impl<'p, 'a> Pages<'p, 'a> {
    /// Checks the pages, and starts prefetching. `len` checks the width, and returns the bytes of a row.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn new(pages: &'p [Rows<'a>], backend: Backend, len: impl FnOnce(usize) -> usize) -> Self {
        contract!(pages.len() <= MAX_PAGES);
        let mut all = Self { given: pages, changed: None };
        let Some(first) = pages.first() else { return all };
        let len = len(first.dim);
        for (page, rows) in pages.iter().enumerate() {
            contract!((rows.dim, rows.stride) == (first.dim, first.stride));
            rows.check(len);
            let ahead = rows.prefetch(backend).ahead;
            if ahead.len() != rows.ahead.len() {
                all.change(page, ahead);
            }
        }
        all
    }

    /// Changes what page number `page` prefetches.
    #[cold]
    fn change(&mut self, page: usize, ahead: &'a [u8]) {
        let all = self.changed.get_or_insert_with(|| {
            let mut all = [Rows::default(); MAX_PAGES];
            all.iter_mut().zip(self.given).for_each(|(place, rows)| *place = *rows);
            all
        });
        if let Some(rows) = all.get_mut(page) {
            rows.ahead = ahead;
        }
    }

    /// Returns the pages.
    #[inline(always)]
    pub(crate) fn get(&self) -> &[Rows<'a>] {
        match &self.changed {
            Some(all) => all.get(..self.given.len()).unwrap_or_default(),
            None => self.given,
        }
    }

    /// Returns the coordinates of a row. `None` without pages.
    #[inline(always)]
    pub(crate) fn dim(&self) -> Option<usize> {
        self.get().first().map(|rows| rows.dim)
    }

    /// Returns the number of rows of all pages.
    #[inline(always)]
    pub(crate) fn rows(&self) -> usize {
        self.get().iter().map(Rows::count).sum()
    }
}

/// Returns each page with its part of `values`, which are laid out \[page]\[query]\[row].
#[inline(always)]
pub(crate) fn each_page<'r, 'a, 'v>(
    pages: &'r [Rows<'a>],
    queries: usize,
    values: &'v [f32],
) -> impl Iterator<Item = (&'r Rows<'a>, &'v [f32])> {
    let mut rest = values;
    pages.iter().map(move |rows| {
        let (first, others) = rest.split_at_checked(queries * rows.count()).unwrap_or_default();
        rest = others;
        (rows, first)
    })
}

/// Returns the same for values to write.
#[inline(always)]
pub(crate) fn each_page_mut<'r, 'a, 'v>(
    pages: &'r [Rows<'a>],
    queries: usize,
    values: &'v mut [f32],
) -> impl Iterator<Item = (&'r Rows<'a>, &'v mut [f32])> {
    let mut rest = values;
    pages.iter().map(move |rows| {
        let all = core::mem::take(&mut rest);
        let (first, others) = all.split_at_mut_checked(queries * rows.count()).unwrap_or_default();
        rest = others;
        (rows, first)
    })
}

/// Returns each page with the values of `some` of the queries.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[inline(always)]
pub(crate) fn each_page_of<'r, 'a, 'v>(
    pages: &'r [Rows<'a>],
    queries: usize,
    some: core::ops::Range<usize>,
    values: &'v [f32],
) -> impl Iterator<Item = (&'r Rows<'a>, &'v [f32])> {
    each_page(pages, queries, values).map(move |(rows, values)| {
        let count = rows.count();
        (rows, values.get(some.start * count..some.end * count).unwrap_or_default())
    })
}

/// Returns the same for values to write.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[inline(always)]
pub(crate) fn each_page_mut_of<'r, 'a, 'v>(
    pages: &'r [Rows<'a>],
    queries: usize,
    some: core::ops::Range<usize>,
    values: &'v mut [f32],
) -> impl Iterator<Item = (&'r Rows<'a>, &'v mut [f32])> {
    each_page_mut(pages, queries, values).map(move |(rows, values)| {
        let count = rows.count();
        (rows, values.get_mut(some.start * count..some.end * count).unwrap_or_default())
    })
}

/// Copies sums into the order in which a kernel adds: `order` has the coordinate of each place, and
/// a place behind the last coordinate gets 0. Not inlined, so that there is one copy for all kernels.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
pub(crate) fn take_order(order: &[u16], acc: &[f32], sums: &mut [f32]) {
    for (sum, coordinate) in sums.iter_mut().zip(order) {
        *sum = acc.get(usize::from(*coordinate)).copied().unwrap_or(0.0);
    }
}

/// Copies sums back from that order.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
pub(crate) fn give_back(order: &[u16], sums: &[f32], acc: &mut [f32]) {
    for (sum, coordinate) in sums.iter().zip(order) {
        if let Some(acc) = acc.get_mut(usize::from(*coordinate)) {
            *acc = *sum;
        }
    }
}

/// Copies sums into the order of lookups that take every `stride`-th coordinate: of as many coordinates as `lanes` such
/// lookups take, those from the first on, then those from the second on.
///
/// ```text
/// stride 2, 4 lanes    c₀ c₁ c₂ c₃ c₄ c₅ c₆ c₇ …   ─►   c₀ c₂ c₄ c₆ │ c₁ c₃ c₅ c₇ │ …
/// ```
///
/// Not inlined, so that there is one copy for all kernels.
#[inline(never)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
pub(crate) fn take_strided(stride: usize, lanes: usize, acc: &[f32], sums: &mut [f32]) {
    for (acc, sums) in acc.chunks(stride * lanes).zip(sums.chunks_mut(stride * lanes)) {
        for (k, sums) in sums.chunks_mut(lanes).enumerate() {
            let acc = acc.get(k..).unwrap_or_default();
            sums.iter_mut().zip(acc.iter().step_by(stride)).for_each(|(sum, acc)| *sum = *acc);
        }
    }
}

/// Copies sums back from that order.
#[inline(never)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
pub(crate) fn give_strided(stride: usize, lanes: usize, sums: &[f32], acc: &mut [f32]) {
    for (acc, sums) in acc.chunks_mut(stride * lanes).zip(sums.chunks(stride * lanes)) {
        for (k, sums) in sums.chunks(lanes).enumerate() {
            let acc = acc.get_mut(k..).unwrap_or_default();
            acc.iter_mut().step_by(stride).zip(sums).for_each(|(acc, sum)| *acc = *sum);
        }
    }
}
