//! What kernels look codes up in.

use crate::TrellisCodebook;

/// How a row of keys or of values is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeShape {
    /// Codes of so many bits: 2, 3 or 4, with centroids that are antisymmetric.
    Codes(u8),
    /// A trellis of 8 states with codes of so many bits: 1, 2 or 3.
    Trellis(u8),
}

impl CodeShape {
    /// As the kernels' source has it.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Codes(bits) => bits.into(),
            Self::Trellis(bits) => 10 + u32::from(bits),
        }
    }

    /// Bits a coordinate.
    pub(super) fn bits(self) -> usize {
        match self {
            Self::Codes(bits) => bits.into(),
            Self::Trellis(bits) => 1 + usize::from(bits),
        }
    }
}

/// A table of 32 words, and what one integer of it is worth; how vectors are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    pub(super) shape: CodeShape,
    pub(super) words: [u32; 32],
    pub(super) unit: f32,
    pub(super) signs: [u32; 4],
    pub(super) rounds: u32,
}

fn word(bytes: [i16; 4]) -> u32 {
    u32::from_le_bytes(bytes.map(|byte| byte as i8 as u8))
}

impl Tables {
    /// Codes that stand for these centroids, 4, 8 or 16 of them, each `unit`; rotated by signs (one mask a coordinate, its highest
    /// bit counts) and transform in so many rounds. `None` for other numbers of centroids, and such as are not antisymmetric.
    #[must_use]
    pub fn codes(centroids: &[i16], unit: f32, signs: &[u32], rounds: u8) -> Option<Self> {
        let last = centroids.len().wrapping_sub(1);
        let antisymmetric =
            centroids.iter().enumerate().all(|(i, c)| *c == -centroids[last - i] && c.abs() <= 127);
        if !matches!(centroids.len(), 4 | 8 | 16) || !antisymmetric {
            return None;
        }
        let mut words = [0; 32];
        for (word_of, four) in words.iter_mut().zip(centroids.as_chunks::<4>().0) {
            // Of sixteen, the first eight are subtracted.
            *word_of = word(if centroids.len() == 16 { four.map(i16::abs) } else { *four });
        }
        let shape = CodeShape::Codes(centroids.len().trailing_zeros() as u8);
        Some(Self { shape, words, unit, signs: bits_of(signs), rounds: rounds.into() })
    }

    /// Codes of a trellis. Keys of codes of one bit are looked up two at a time, values one. `None` unless it has 8 states and
    /// 2, 4 or 8 codes a window.
    #[must_use]
    pub fn trellis(
        book: &TrellisCodebook,
        of_keys: bool,
        unit: f32,
        signs: &[u32],
        rounds: u8,
    ) -> Option<Self> {
        if book.history() != 3 || !matches!(book.levels(), 2 | 4 | 8) {
            return None;
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
        Some(Self { shape, words, unit, signs: bits_of(signs), rounds: rounds.into() })
    }
}

/// Masks as bits.
fn bits_of(signs: &[u32]) -> [u32; 4] {
    let mut bits = [0; 4];
    signs.iter().take(128).enumerate().for_each(|(c, mask)| bits[c / 32] |= (mask >> 31) << (c % 32));
    bits
}
