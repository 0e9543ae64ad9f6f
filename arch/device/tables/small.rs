//! Lookup tables of keys in small blocks and in chunks.

use super::{CodeShape, Rotated, Tables};
use alloc::vec::Vec;
use octaplex_arch::quaternion::{ChunkLayout, QuaternionSet, UNITS, product};
use octaplex_arch::{BLOCK_VALUES, BlockBook};

impl Tables {
    /// Creates tables of small blocks with this codebook, each rotated with these signs; `None` unless
    /// there is a sign for each value of a block.
    #[must_use]
    pub fn blocks(book: &BlockBook, signs: &[u32]) -> Option<Self> {
        let (centroids, thresholds) = match book {
            // The remaining sign bit does not matter.
            BlockBook::TwoBits { centroids, thresholds } => {
                ([&centroids[..], centroids].concat(), &thresholds[..])
            }
            BlockBook::ThreeBits { centroids, thresholds } => (centroids.to_vec(), &thresholds[..]),
        };
        if signs.len() != BLOCK_VALUES {
            return None;
        }
        // Integers of 16 bits: high bytes, which are signed, and low bytes.
        let unit = book.largest() / 32_512.0;
        let integers: Vec<i32> = centroids.iter().map(|c| (c / unit).round_ties_even() as i32).collect();
        let bytes =
            |four: &[i32], by: u32| u32::from_le_bytes(core::array::from_fn(|i| (four[i] >> by) as u8));
        let mut words = [0; 32];
        for (number, four) in integers.chunks_exact(4).enumerate() {
            (words[number], words[2 + number]) = (bytes(four, 8), bytes(four, 0));
        }
        let signs = signs.repeat(256 / BLOCK_VALUES);
        let rotated = Rotated { signs: &signs, rounds: 1, gain: thresholds.len() as u8 };
        // Norms of other keys are steps of 1/32,767.
        let mut tables = Self::new(CodeShape::Blocks, words, 32_767.0 * unit, rotated);
        tables.centroids[..8].copy_from_slice(&centroids);
        tables.centroids[8..15].fill(f32::INFINITY);
        tables.centroids[8..8 + thresholds.len()].copy_from_slice(thresholds);
        Some(tables)
    }

    /// Creates tables of chunks with this layout, without flags, and with directions of this set.
    ///
    /// It returns `None` for flags, for a number of chunks that is no multiple of 4, and for sets of
    /// another size.
    #[must_use]
    pub fn chunks(layout: &ChunkLayout, set: &QuaternionSet, rotated: Rotated) -> Option<Self> {
        let ChunkLayout { chunks, members, radius_bits, radix, flags } = *layout;
        if flags
            || !layout.is_valid()
            || !chunks.is_multiple_of(4)
            || set.members.len() != usize::from(members)
        {
            return None;
        }
        // The first of each two opposite units: 1, i, j, k, then those with a positive last component.
        let units = [0, 2, 4, 6].into_iter().chain(8..16).map(|p| &UNITS[p]);
        let directions = units.flat_map(|unit| set.members.iter().map(|member| product(unit, member)));
        let two = |low: f32, high: f32| {
            let [low, high] = [low, high]
                .map(|x| (x * 32_767.0).round_ties_even().clamp(-32_767.0, 32_767.0) as i16 as u16);
            u32::from(low) | u32::from(high) << 16
        };
        let entries = directions.flat_map(|[w, x, y, z]| [two(w, x), two(y, z)]).collect();
        let shape = CodeShape::Chunks([members, radius_bits, radix.into()]);
        // A direction's integer times a radius and a step is 65,536 times a key's integer. Norms of other
        // keys are steps of 1/32,767; a direction's length has as many.
        let limit = u16::from(layout.radius_limit());
        let unit = 65_536.0 / (f32::from(u16::MAX / limit) * f32::from(limit));
        let search = set.members.iter().flatten().map(|x| x.to_bits()).collect();
        Some(Self { entries, search, ..Self::new(shape, [0; 32], unit, rotated) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that selectors take from both words make up a centroid in integers of 16 bits.
    #[test]
    fn bytes_of_small_blocks_are_centroids() {
        let two = BlockBook::TwoBits {
            centroids: [-1.510, -0.4528, 0.4528, 1.510],
            thresholds: [-0.9814, 0.0, 0.9814],
        };
        let three = BlockBook::ThreeBits {
            centroids: [-2.1573, -1.3336, -0.7434, -0.2428, 0.2428, 0.7434, 1.3336, 2.1573],
            thresholds: [-1.7455, -1.0385, -0.4931, 0.0, 0.4931, 1.0385, 1.7455],
        };
        for book in [two, three] {
            let tables = Tables::blocks(&book, &[0; BLOCK_VALUES]).expect("a sign each");
            for code in 0..8 {
                let byte = |first: usize| (tables.words[first + code / 4] >> (8 * (code % 4))) as u8;
                let integer = i32::from(byte(0) as i8) * 256 + i32::from(byte(2));
                let centroid = match book {
                    BlockBook::TwoBits { centroids, .. } => centroids[code % 4],
                    BlockBook::ThreeBits { centroids, .. } => centroids[code],
                };
                let unit = tables.unit / 32_767.0;
                assert!((integer as f32 * unit - centroid).abs() <= 0.51 * unit, "code {code}: {integer}");
                assert_eq!(tables.centroids[code], centroid);
            }
        }
        assert!(Tables::blocks(&two, &[0; 31]).is_none());
    }

    /// A direction times a radius in the kernels equals what the CPU decodes, to within 1/32,767 of a row's
    /// scale, and fits.
    #[test]
    fn chunks_are_what_the_cpu_decodes() {
        let mut state = 5_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        let mut members: Vec<[f32; 4]> = alloc::vec![[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0]];
        members.extend((2..255).map(|_| {
            let q = [next(), next(), next(), next()];
            let norm = q.iter().map(|c| c * c).sum::<f32>().sqrt();
            q.map(|c| c / norm)
        }));
        let ints: Vec<[i8; 4]> =
            members.iter().map(|q| octaplex_arch::quaternion::quaternion_ints(*q)).collect();
        for (count, radius_bits) in [(1, 2), (2, 6), (24, 3), (96, 4), (100, 5), (255, 6)] {
            let set = QuaternionSet { members: &members[..count], ints: &ints[..count], index: None };
            let layout =
                ChunkLayout { chunks: 16, members: count as u8, radius_bits, radix: false, flags: false };
            let rotated = Rotated { signs: &[], rounds: 0, gain: 0 };
            let tables = Tables::chunks(&layout, &set, rotated).expect("a table");
            assert_eq!(tables.entries.len(), 24 * count);
            let limit = i32::from(layout.radius_limit());
            for code in 0..24 * count {
                // As in `chunk_field`.
                let (unit, member) = (code / count, code % count);
                let opposite = if unit < 8 { unit % 2 == 1 } else { unit >= 16 };
                let first = if unit < 8 {
                    unit / 2
                } else if unit < 16 {
                    unit - 4
                } else {
                    27 - unit
                };
                let words = &tables.entries[2 * (first * count + member)..][..2];
                let direction = product(&UNITS[unit], &members[member]);
                for radius in [0, 1, limit / 2, limit] {
                    for (component, exact) in direction.iter().enumerate() {
                        let integer = (words[component / 2] >> (16 * (component % 2))) as i16;
                        let radius = if opposite { -radius } else { radius };
                        let x = i32::from(integer) * (radius * (65_535 / limit)) + 32_768;
                        let decoded = (x >> 16) as f32 * tables.unit / 32_767.0;
                        let expected = exact * radius.abs() as f32 / limit as f32;
                        assert!(
                            (decoded - expected).abs() < 1.1 / 32_767.0,
                            "{code}, {radius}: {decoded} {expected}"
                        );
                    }
                }
            }
        }
    }
}
