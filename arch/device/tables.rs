//! Lookup tables of kernels.

mod cells;
mod shape;
mod small;
mod triplets;

pub(super) use cells::Cells;
pub use shape::{CodeShape, Groups};

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;
use octaplex_arch::TrellisCodebook;
use shape::gpu_bits;

/// The tables of one side: a table of 32 words, what an integer of it is worth, and the rotation of
/// vectors.
#[derive(Clone, Debug)]
pub struct Tables {
    pub(super) shape: CodeShape,
    pub(super) words: [u32; 32],
    pub(super) unit: f32,
    pub(super) signs: [u32; 8],
    pub(super) rounds: u32,
    /// For encoding. `gain`: which norm is stored, as kernels number them; the last code of small blocks.
    /// `kappa`: integers to a standard deviation of a trellis. `centroids`: by code; of a trellis by code ·
    /// 16 + window; of small blocks eight centroids, then thresholds. `cells`: codes of other rows.
    pub(super) gain: u32,
    pub(super) kappa: f32,
    pub(super) centroids: [f32; 128],
    pub(super) cells: Cells,
    /// For kernels with look-ups in shared memory: what fields of triplets and chunks, or codes, stand for.
    pub(super) entries: Vec<u32>,
    /// For searches: `Search` of the kernels for triplets; the set's members for chunks; thresholds, then
    /// centroids, for codes in shared memory, as many as their bits count; centroids by code and window for
    /// [`CodeShape::Paths`].
    pub(super) search: Vec<u32>,
    /// For [`CodeShape::Halves`], the tables of each half. The fields above are those of the first half,
    /// except signs, entries and searches, which are those of both.
    pub(super) halves: Option<Arc<[Self; 2]>>,
}

/// The rotation of rows, and the norm that they store.
#[derive(Clone, Copy, Debug)]
pub struct Rotated<'a> {
    /// A mask for each coordinate; its highest bit counts.
    pub signs: &'a [u32],
    /// Rounds of signs and transform.
    pub rounds: u8,
    /// 0 minimises the squared error, 1 removes the bias of products, 2 stores the row's own norm.
    pub gain: u8,
}

fn word(bytes: [i16; 4]) -> u32 {
    u32::from_le_bytes(bytes.map(|byte| byte as i8 as u8))
}

impl Tables {
    /// Creates tables of codes from centroids, each worth `unit`, and the thresholds between them.
    ///
    /// The number of centroids is 2, 3, 5, 6, 10, 12 or a power of two up to 256. It returns `None` in
    /// these cases:
    ///
    /// * another number of centroids, or of thresholds;
    /// * 4, 8 or 16 centroids that are not antisymmetric, or thresholds that are too close;
    /// * centroids beyond ±127, or beyond ±2047 for more than 16 centroids.
    #[must_use]
    pub fn codes(centroids: &[i16], thresholds: &[f32], unit: f32, rotated: Rotated) -> Option<Self> {
        let last = centroids.len().wrapping_sub(1);
        if matches!(centroids.len(), 2 | 3 | 5 | 6 | 10 | 12 | 32 | 64 | 128 | 256) {
            return Self::looked_up(centroids, thresholds, unit, rotated);
        }
        let antisymmetric =
            centroids.iter().enumerate().all(|(i, c)| *c == -centroids[last - i] && c.abs() <= 127);
        if !matches!(centroids.len(), 4 | 8 | 16) || !antisymmetric || thresholds.len() != last {
            return None;
        }
        let mut words = [0; 32];
        let fours = centroids.as_chunks::<4>().0;
        if centroids.len() == 16 {
            // The negative centroids minus 1, then the positive ones from the largest down: see `Halves` of
            // the kernels.
            for (half, four) in fours[..2].iter().enumerate() {
                words[half] = word(four.map(|centroid| centroid - 1));
                words[2 + half] = word(four.map(|centroid| -centroid));
            }
        } else {
            words.iter_mut().zip(fours).for_each(|(own, four)| *own = word(*four));
        }
        let shape = CodeShape::Codes(centroids.len().trailing_zeros() as u8);
        let mut tables = Self::new(shape, words, unit, rotated);
        tables.cells = Cells::new(thresholds, centroids)?;
        tables.centroids.iter_mut().zip(centroids).for_each(|(own, centroid)| *own = f32::from(*centroid));
        Some(tables)
    }

    /// Creates tables of codes in shared memory. There is an entry for each value of a code's bits. No page
    /// has codes beyond the last.
    fn looked_up(centroids: &[i16], thresholds: &[f32], unit: f32, rotated: Rotated) -> Option<Self> {
        let (levels, last) = (centroids.len(), centroids.len().checked_sub(1)?);
        if thresholds.len() != last {
            return None;
        }
        let padded = levels.next_power_of_two();
        let shape = if levels == padded {
            CodeShape::Codes(padded.trailing_zeros() as u8)
        } else {
            CodeShape::Levels(levels as u8)
        };
        let all = (0..padded).map(|code| centroids[code.min(last)]);
        let entries =
            all.clone().map(if padded > 16 { entry } else { small_entry }).collect::<Option<_>>()?;
        let known = thresholds.iter().copied().chain(iter::repeat(f32::INFINITY)).take(padded);
        let search = known.chain(all.map(f32::from)).map(f32::to_bits).collect();
        Some(Self { entries, search, ..Self::new(shape, [0; 32], unit, rotated) })
    }

    /// Returns what an integer of a key is worth, in addition to a norm. Blocks have their own norms; other
    /// norms are steps of 1/32,767 of the page's largest.
    pub(super) fn key_unit(&self) -> f32 {
        match self.shape {
            CodeShape::Codes(_) | CodeShape::Paths(_) if self.shape.in_rows() => self.unit,
            _ => self.unit / 32767.0,
        }
    }

    /// Returns the same for the second half, if there is one.
    pub(super) fn coarse_unit(&self) -> f32 {
        self.halves.as_ref().map_or(0.0, |halves| halves[1].unit / 32767.0)
    }

    fn new(shape: CodeShape, words: [u32; 32], unit: f32, rotated: Rotated) -> Self {
        Self {
            shape,
            words,
            unit,
            signs: bits_of(rotated.signs),
            rounds: rotated.rounds.into(),
            gain: rotated.gain.into(),
            kappa: 0.0,
            centroids: [0.0; 128],
            cells: Cells::NONE,
            entries: Vec::new(),
            search: Vec::new(),
            halves: None,
        }
    }

    /// Creates tables of keys with two trellis codes, each of half of `dim` channels; `None` for other
    /// codes.
    #[must_use]
    pub fn halves(fine: Self, coarse: Self, dim: usize) -> Option<Self> {
        let of = |tables: &Self| match tables.shape {
            CodeShape::Trellis(bits) => Some([3, 1 << bits]),
            CodeShape::Paths(shape) => Some(shape),
            _ => None,
        };
        let shape = CodeShape::Halves([of(&fine)?, of(&coarse)?]);
        let both = |one: &[u32], other: &[u32]| one.iter().chain(other).copied().collect::<Vec<_>>();
        let (entries, search) = (both(&fine.entries, &coarse.entries), both(&fine.search, &coarse.search));
        let (mut signs, half) = ([0; 8], dim / 2);
        for c in 0..dim.min(256) {
            let own = if c < half { &fine } else { &coarse };
            signs[c / 32] |= (own.signs[c % half / 32] >> (c % half % 32) & 1) << (c % 32);
        }
        let own = Self { shape, signs, entries, search, halves: None, ..fine.clone() };
        Some(Self { halves: Some(Arc::new([fine, coarse])), ..own })
    }

    /// Creates tables of integers of 2 to 8 bits; `None` for other numbers.
    #[must_use]
    pub fn integers(bits: u8, of_keys: bool, rotated: Rotated) -> Option<Self> {
        // Norms of other keys are steps of 1/32,767.
        let unit = if of_keys { 32767.0 } else { 1.0 };
        // Except for 4 bits, codes lie in the high bits of bytes: see kernels/slices.cuh.
        let times = if bits == 4 { 1 } else { 1 << 8u8.checked_sub(bits)? };
        let unit = unit / times as f32;
        (2..=8).contains(&bits).then(|| Self::new(CodeShape::Int(bits), [0; 32], unit, rotated))
    }

    /// Creates tables of integers with fields for each group. Groups have 16, 32 or 64 integers, or are a
    /// whole row with zeros; it returns `None` for others.
    #[must_use]
    pub fn groups(groups: Groups, of_keys: bool, rotated: Rotated) -> Option<Self> {
        let tables = Self::integers(groups.bits, of_keys, rotated)?;
        let known = groups.group.map_or(groups.zeros, |group| matches!(group, 16 | 32 | 64));
        known.then_some(Self { shape: CodeShape::Groups(groups), ..tables })
    }

    /// Creates tables of trellis codes, with `kappa` integers to a standard deviation.
    ///
    /// Registers hold trellises of 8 states with 2, 4 or 8 codes in a window. Then keys with codes of one
    /// bit are looked up in pairs, values one by one. Other trellises are looked up in shared memory.
    #[must_use]
    pub fn trellis(book: &TrellisCodebook, of_keys: bool, unit: f32, kappa: f32, rotated: Rotated) -> Self {
        if book.history() != 3 || !matches!(book.levels(), 2 | 4 | 8) {
            let shape = CodeShape::Paths([book.history() as u8, book.levels() as u8]);
            let entries = (0..1 << gpu_bits(book.levels() as u8)).flat_map(|code: usize| {
                let code = code.min(book.levels() - 1); // codes beyond the last occur in no page
                let windows = &book.centroids()[code * book.windows()..][..book.windows()];
                windows.iter().map(|centroid| u32::from(*centroid as u8))
            });
            let search = book.centroids().iter().map(|centroid| f32::from(*centroid).to_bits()).collect();
            return Self {
                kappa,
                entries: entries.collect(),
                search,
                ..Self::new(shape, [0; 32], unit, rotated)
            };
        }
        let centroid = |code: usize, window: usize| i16::from(book.centroids()[code * 16 + window]);
        let row = |lane: usize| {
            let (window, high) = (lane % 16, lane / 16);
            match (book.levels(), of_keys) {
                (2, true) => [(0, window), (1, window), (0, lane / 2), (1, lane / 2)],
                (2, false) => [(0, window), (1, window), (0, window), (1, window)],
                (4, _) => [0, 1, 2, 3].map(|code| (code, window)),
                _ => [0, 1, 2, 3].map(|code| (4 * high + code, window)),
            }
        };
        let words = core::array::from_fn(|lane| word(row(lane).map(|(code, window)| centroid(code, window))));
        let shape = CodeShape::Trellis(book.levels().trailing_zeros() as u8);
        let mut tables = Self { kappa, ..Self::new(shape, words, unit, rotated) };
        let all = tables.centroids.iter_mut().zip(book.centroids());
        all.for_each(|(own, centroid)| *own = f32::from(*centroid));
        tables
    }
}

/// Returns a centroid as kernels look it up: 16 · high + low.
///
/// ```text
/// bit   31 … 24   23 … 16         15 … 4   3 … 0
///       0         high, signed    0        low
/// ```
fn entry(centroid: i16) -> Option<u32> {
    let high = i8::try_from(centroid >> 4).ok()?;
    Some(u32::from(high as u8) << 16 | u32::from(centroid as u16 & 15))
}

/// Returns a centroid of up to 16 as one byte.
fn small_entry(centroid: i16) -> Option<u32> {
    i8::try_from(centroid).ok().map(|centroid| u32::from(centroid as u8))
}

/// Packs the highest bit of each mask.
fn bits_of(signs: &[u32]) -> [u32; 8] {
    let mut bits = [0; 8];
    signs.iter().take(256).enumerate().for_each(|(c, mask)| bits[c / 32] |= (mask >> 31) << (c % 32));
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// High and low part make up each centroid, and all other bits are 0.
    #[test]
    fn entries_are_centroids() {
        for centroid in -2048..=2047 {
            let entry = entry(centroid).expect("12 bits");
            assert_eq!(i16::from((entry >> 16) as u8 as i8) * 16 + i16::from(entry as u8 as i8), centroid);
            assert_eq!(entry & 0xFF00_FFF0, 0);
        }
        assert!(entry(2048).is_none() && entry(-2049).is_none());
    }

    /// Unique numbers of shapes, bytes of rows, and an entry for each value of a code's bits.
    #[test]
    fn shapes_of_levels() {
        let rotated = Rotated { signs: &[], rounds: 1, gain: 0 };
        let tables = |count: i16, step: i16| {
            let centroids: Vec<i16> = (0..count).map(|code| (2 * code + 1 - count) * step).collect();
            let thresholds: Vec<f32> = centroids.windows(2).map(|c| f32::from(c[0] + c[1]) * 0.5).collect();
            Tables::codes(&centroids, &thresholds, 1.0, rotated)
        };
        // Bits of a code on the GPU. On the CPU: low bits, digits of a group, bits of a group.
        for (levels, bits, raw, group, group_bits) in [
            (2, 1, 1, 1, 0),
            (3, 2, 0, 5, 8),
            (5, 3, 0, 3, 7),
            (6, 3, 1, 5, 8),
            (10, 4, 1, 3, 7),
            (12, 4, 2, 5, 8),
        ] {
            let Tables { shape, entries, search, .. } = tables(levels, 7).expect("centroids of a byte");
            assert!(!shape.in_rows(), "{levels} levels");
            for dim in crate::layout::WIDTHS {
                let radix = levels as usize >> raw;
                let last = radix.pow((dim % group) as u32).next_power_of_two().trailing_zeros() as usize;
                let digits = (dim / group * group_bits + last).div_ceil(8);
                assert_eq!(shape.row(dim), dim * raw / 8 + digits, "{levels} levels, width {dim}");
                assert_eq!(shape.gpu_row(dim), dim.next_multiple_of(32) * bits / 8);
            }
            let (codes, last) = (1 << bits, levels as usize - 1);
            assert_eq!((entries.len(), search.len()), (codes, 2 * codes), "{levels} levels");
            for code in 0..codes {
                let centroid = (2 * code.min(last) as i16 + 1 - levels) * 7;
                assert_eq!(entries[code], u32::from(centroid as u8), "code {code} of {levels}");
                assert_eq!(search[codes + code], f32::from(centroid).to_bits());
                let threshold = f32::from_bits(search[code]);
                assert_eq!(threshold.is_infinite(), code >= last, "threshold {code} of {levels}");
            }
            assert!(tables(levels, 128).is_none(), "{levels} levels beyond a byte");
        }
        assert!([0, 1, 7, 9, 18, 20, 24, 257].iter().all(|levels| tables(*levels, 1).is_none()));
    }
}
